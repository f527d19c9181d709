"""Answers to the exercises of page 1."""

import unicodedata

import torch


def tables(text):
    symbols = sorted(set(text))
    return symbols, {symbol: i for i, symbol in enumerate(symbols)}


def tokenizer(encode=None, decode=None, table=tables, join="".join):
    """A `make` whose parts can be replaced by wrong ones."""

    def make(text):
        symbols, ids = table(text)
        return (
            lambda s: encode(s, symbols, ids) if encode else [ids[c] for c in s],
            lambda numbers: decode(numbers, symbols, ids) if decode else join(symbols[i] for i in numbers),
        )

    return make


def make_by_first_occurrence(text):
    symbols = list(dict.fromkeys(text))
    return (lambda s: [symbols.index(c) for c in s]), (lambda numbers: "".join(map(symbols.__getitem__, numbers)))


def make_tensors(text):
    symbols, ids = tables(text)

    def encode(s):
        return torch.tensor([ids[c] for c in s], dtype=torch.long)

    return encode, lambda tensor: "".join(symbols[i] for i in tensor.tolist())


shared_table = {}


def make_with_global_table(text):
    shared_table.clear()
    shared_table.update(tables(text)[1])
    back = {i: c for c, i in shared_table.items()}
    return (lambda s: [shared_table[c] for c in s]), (lambda numbers: "".join(back[i] for i in numbers))


def make_that_remembers(text):
    ids, last = tables(text)[1], [""]

    def encode(s):
        last[0] = s
        return [ids[c] for c in s]

    return encode, lambda numbers: last[0]


def table_of_normalised(text):
    symbols, ids = tables(unicodedata.normalize("NFC", text))
    return symbols, ids


def targets(starts, T, first=1, last=1):
    return [p for s in starts for p in range(s + first, s + T + last)]


def shared_with_tensors(train_starts, val_starts, block_size):
    def positions(starts):
        return (torch.tensor(starts, dtype=torch.long)[:, None] + torch.arange(1, block_size + 1)).unique()

    return torch.isin(positions(val_starts), positions(train_starts)).sum()


def shared_with_marks(train_starts, val_starts, block_size):
    marks = [0] * (max([*train_starts, *val_starts]) + block_size + 1)
    for bit, starts in ((1, train_starts), (2, val_starts)):
        for s in starts:
            for k in range(block_size):
                marks[s + 1 + k] |= bit
    return marks.count(3)


def encode_right(text, ids):
    for position, character in enumerate(text):
        if character not in ids:
            raise ValueError(f"character {character!r} at position {position} is not in the vocabulary")
    return [ids[character] for character in text]


def encode_with_try(text, ids):
    out = []
    for c in text:
        try:
            out.append(ids[c])
        except KeyError:
            raise ValueError(f"no id for {c} (index {len(out)}), {len(ids)} symbols are known") from None
    return out


def encode_with_tensor(text, ids):
    unknown = [(i, c) for i, c in enumerate(text) if c not in ids]
    if unknown:
        raise ValueError("unknown: " + ", ".join(f"{c!a} at {i}" for i, c in unknown))
    return torch.tensor([ids[c] for c in text], dtype=torch.long)


def encode_message(message, which=lambda unknown: unknown[0], test=lambda c, ids: c not in ids):
    def encode(text, ids):
        unknown = [(i, c) for i, c in enumerate(text) if test(c, ids)]
        if unknown:
            i, c = which(unknown)
            raise ValueError(message.format(i=i, next=i + 1, c=c, text=text))
        return [ids[c] for c in text]

    return encode


def encode_growing(text, ids):
    return [ids.setdefault(c, len(ids)) for c in text]


def encode_lazily(text, ids):
    for i, c in enumerate(text):
        if c not in ids:
            raise ValueError(f"{c!r} at {i}")
        yield ids[c]


def encode_and_print(text, ids):
    try:
        return encode_right(text, ids)
    except ValueError as error:
        print(error)


def encode_with_index(text, ids):
    known = list(ids)
    return [ids[known[known.index(c)]] for c in text]


def encode_returning(text, ids):
    return [ids[c] for c in text] if all(c in ids for c in text) else ValueError(text)


def swapped(make):
    return lambda text: make(text)[::-1]


RIGHT = {
    "round-trip": [tokenizer(), make_by_first_occurrence, make_tensors],
    "shared-targets": [
        lambda a, b, T: len(set(targets(a, T)) & set(targets(b, T))),
        shared_with_tensors,
        shared_with_marks,
    ],
    "unseen-character": [encode_right, encode_with_try, encode_with_tensor],
}

# Plausible wrong answers, each with words that its message must hold.
WRONG = {
    "round-trip": [
        (swapped(tokenizer()), "wrong order"),
        (tokenizer(encode=lambda s, _, ids: [ids[c] + 1 for c in s],
                   decode=lambda n, sy, _: "".join(sy[i - 1] for i in n)),
         "run from 1"),
        (lambda text: ((lambda s: [ord(c) for c in s]), (lambda n: "".join(map(chr, n)))), "Unicode's numbers"),
        (tokenizer(join=list), "must give a text, got"),
        (tokenizer(join=" ".join), "puts spaces between"),
        (tokenizer(decode=lambda n, sy, _: "".join(sy[i] for i in n).strip()), "lost spaces or line ends"),
        (tokenizer(decode=lambda n, sy, _: "".join(sy[i] for i in n).lower()), "lost upper and lower case"),
        (tokenizer(encode=lambda s, _, ids: [ids[c.lower()] for c in s], table=lambda t: tables(t.lower())),
         "upper and lower case are different"),
        (tokenizer(table=table_of_normalised,
                   encode=lambda s, _, ids: [ids[c] for c in unicodedata.normalize("NFC", s)]),
         "each gets exactly one"),
        (make_with_global_table, "tables of its own"),
        (make_that_remembers, "differ from position 0"),
        (lambda text: tokenizer()(text)[0], "must return two functions"),
        (tokenizer(encode=lambda s, _, ids: [float(ids[c]) for c in s]), "must be a whole number"),
        (tokenizer(encode=lambda s, _, ids: [ids[c] for c in s] if s else None), "None"),
        (tokenizer(encode=lambda s, _, ids: [s[0]] and [ids[c] for c in s]), "IndexError"),
    ],
    "shared-targets": [
        (lambda a, b, T: len(set(targets(a, T, first=0)) & set(targets(b, T, first=0))), "one position too many"),
        (lambda a, b, T: len(set(targets(a, T, last=0)) & set(targets(b, T, last=0))), "one target too few"),
        (lambda a, b, T: len(set(targets(a, T, 0, 0)) & set(targets(b, T))), "with the training inputs"),
        (lambda a, b, T: sum(p in set(targets(a, T)) for p in targets(b, T)), "once for every validation window"),
        (lambda a, b, T: sum(targets(a, T).count(p) for p in targets(b, T)), "once for every pair"),
        (lambda a, b, T: len(set(a) & set(b)), "only equal starts"),
        (lambda a, b, T: len(set(targets(a, T)) | set(targets(b, T))), "only those that both kinds have"),
        (lambda a, b, T: len([s for s in b if set(targets([s], T)) & set(targets(a, T))]), "windows were counted"),
        (lambda a, b, T: min(len(set(targets(a, T)) & set(targets(b, T))), 2), "it is 3, not 2"),
        (lambda a, b, T: set(targets(a, T)) & set(targets(b, T)), "return how many"),
        (lambda a, b: 0, "must take (train_starts, val_starts, block_size), yours takes (a, b)"),
        (lambda a, b, T: len(set(targets(a, T)) & set(targets(b, T))) / 1, "must be a whole number"),
    ],
    "unseen-character": [
        (lambda text, ids: [ids[c] for c in text], "raised KeyError"),
        (lambda text, ids: [ids[c] for c in text if c in ids], "dropped the unknown character"),
        (lambda text, ids: [ids.get(c, 0) for c in text], "gave the unknown character some id"),
        (encode_returning, "returned the ValueError"),
        (encode_growing, "a new id"),
        (encode_message("{c!r} at {i}", which=lambda unknown: unknown[-1]), "the first of them, not the last"),
        (encode_message("{c!r} at {next}"), "counted from 1"),
        (encode_message("unknown character {c!r}"), "but not its position"),
        (encode_with_index, "but not its position"),
        (encode_message("unknown character at {i}"), "does not say which character"),
        (encode_message("unknown character in {text!r} at {i}"), "does not say which character"),
        (encode_message("{c!r} at {i}", test=lambda c, ids: not ids.get(c)), "an id may be 0"),
        (encode_lazily, "generator"),
        (encode_and_print, "returned None"),
        (lambda text, ids: encode_right(text, {c: i for i, c in enumerate(ids)} if text else ids), "from the table"),
    ],
}  # fmt: skip
