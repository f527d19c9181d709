"""The checks of page 15, byte-pair encoding: plain Python, no torch."""

import math
import random

from gptbook.exercises.answers import (
    Wrong,
    ask,
    explain,
    first_off,
    listed,
    need_function,
    number,
    settled,
    shown,
    whole_number,
)

# Merging a pair -------------------------------------------------------------------------------------------------------


def _replace(ids, pair, new, step=2, start=0):
    out, i = list(ids[:start]), start
    while i < len(ids):
        fits = i + 1 < len(ids) and (ids[i], ids[i + 1]) == tuple(pair)
        out.append(new if fits else ids[i])
        i += step if fits else 1
    return out


def _from_the_right(ids, pair, new):
    return _replace(ids[::-1], pair[::-1], new)[::-1]


def _first_only(ids, pair, new):
    at = next((i for i in range(len(ids) - 1) if (ids[i], ids[i + 1]) == pair), None)
    return list(ids) if at is None else [*ids[:at], new, *ids[at + 2 :]]


def _until_none(ids, pair, new):
    while (shorter := _replace(ids, pair, new)) != list(ids):
        ids = shorter
    return list(ids)


def _without_the_last(ids, pair, new):
    """A loop over range(len(ids) - 1): a last token that is in no pair is never reached."""
    out, i = [], 0
    while i < len(ids) - 1:
        fits = (ids[i], ids[i + 1]) == pair
        out.append(new if fits else ids[i])
        i += 2 if fits else 1
    return out


def _not_the_end(ids, pair, new):
    """A pair at the very end is passed over."""
    return [*_replace(ids[:-1], pair, new), *ids[-1:]]


def _either_order(ids, pair, new):
    out, i = [], 0
    while i < len(ids):
        fits = i + 1 < len(ids) and {ids[i], ids[i + 1]} == set(pair)
        out.append(new if fits else ids[i])
        i += 2 if fits else 1
    return out


def _each_member(ids, pair, new):
    return [new if i in pair else i for i in ids]


def _before_the_pair(ids, pair, new):
    out, i = [], 0
    while i < len(ids):
        fits = i + 1 < len(ids) and (ids[i], ids[i + 1]) == pair
        out += [new, *pair] if fits else [ids[i]]
        i += 2 if fits else 1
    return out


MERGE_MISTAKES = (
    ("a pair may take a token that another pair has taken: after a pair go on by two places, or [5, 5, 5] gives two "
     "new tokens", lambda ids, pair, new: _replace(ids, pair, new, step=1)),
    ("your function goes from right to left: of [5, 5, 5] the pair takes the first two", _from_the_right),
    ("only the first pair is replaced: every one is asked for", _first_only),
    ("a new token is merged again where new is a member of the pair itself: one walk through the list is enough",
     _until_none),
    ("the last token is lost where it is in no pair: the walk ends one place too early", _without_the_last),
    ("a pair at the very end of the list is passed over", _not_the_end),
    ("your function takes the pair in either order: (a, b) is not (b, a)", _either_order),
    ("each member of the pair is replaced alone: both must stand side by side, and give one token", _each_member),
    ("the new token is put beside the pair: it takes the pair's place", _before_the_pair),
    ("your function never replaces anything", lambda ids, pair, new: list(ids)),
)  # fmt: skip


def merge_pair(merge) -> str:
    """merge_pair(ids, pair, new) -> the list with each pair of neighbours, from left to right, replaced by new."""
    need_function(merge, "merge_pair(ids, pair, new)")
    draw = random.Random(15)
    cases = [
        ([1, 2, 3, 1, 2], (1, 2), 9),
        ([5, 5, 5], (5, 5), 7),
        ([5, 5, 5, 5], (5, 5), 5),  # new may be a member of the pair
        ([2, 1, 2, 1, 1], (1, 2), 3),
        ([], (1, 2), 3),
        ([4], (4, 4), 5),
        ([1, 2], (1, 2), 3),
        ([1, 1, 2, 2], (1, 2), 1),
        ([0, 0, 1], (0, 0), 256),  # a number may be 0
        *(([draw.randrange(3) for _ in range(n)], (draw.randrange(3), draw.randrange(3)), 3) for n in (7, 8, 40, 41)),
    ]
    got = []
    for ids, pair, new in cases:
        what = f"merge_pair({ids if len(ids) < 9 else '...'}, {pair}, {new})"
        given = list(ids)
        value = ask(merge, what, given, pair, new)
        if value is None and given != ids:
            raise Wrong("your function changes the list that it was given and returns nothing: return a new list")
        if given != ids:
            raise Wrong("your function changes the list that it was given: build a new one")
        got.append([whole_number(i, f"every id in {what}") for i in listed(value, what)])
    right = [_replace(*case) for case in cases]
    if settled(got, right, cases, MERGE_MISTAKES, list.__eq__):
        return f"right on {len(cases)} lists: empty ones, overlapping pairs, a pair at the end"
    (ids, pair, new), mine, true = first_off(cases, got, right, list.__eq__)
    raise Wrong(f"merge_pair({ids}, {pair}, {new}) is {true}, not {mine}")


# Words kept whole -----------------------------------------------------------------------------------------------------

OLD = {" the", " of", " cat", " s", "elf", "ie", " sel", "f", " bi", "cycle", "dog", " do", "g", " a", "b", " house"}
NEW = {
    " the", " of", " cat", " selfie", " bicycle", "selfie", " self", " d", "og", " Katze", "Katze", "Katze ", "b",
    " rain", "bow", " ho", "use",
}  # fmt: skip
WORDS = ("the", "selfie", "bicycle", "dog", "cat", "Katze", "selfie", "of", "b", "rainbow", "house")


def _encoder(pieces):
    """An encoder of a made-up vocabulary: the longest piece first, single characters where none fits."""
    numbers = {piece: i for i, piece in enumerate(sorted(pieces))}

    def encode(text):
        ids = []
        while text:
            piece = next((text[:n] for n in range(len(text), 1, -1) if text[:n] in numbers), text[0])
            ids.append(numbers.get(piece, 1000 + ord(piece[0])))
            text = text[len(piece) :]
        return ids

    return encode


def _kept(words, old, new, blank=" ", splits=lambda n: n > 1, keeps=lambda n: n == 1):
    return [w for w in words if splits(len(old(blank + w))) and keeps(len(new(blank + w)))]


KEPT_MISTAKES = (
    ("the words are tried without the blank before them: inside a sentence a word has one, and it belongs to the token",
     lambda words, old, new: _kept(words, old, new, blank="")),
    ("the blank stands behind the words: it belongs before them",
     lambda words, old, new: [w for w in words if len(old(w + " ")) > 1 and len(new(w + " ")) == 1]),
    ("old and new are exchanged: the old vocabulary splits the word, the new one keeps it",
     lambda words, old, new: _kept(words, new, old)),
    ("words that the old vocabulary keeps as well are in your list: it must split them",
     lambda words, old, new: _kept(words, old, new, splits=lambda n: True)),
    ("words that the new vocabulary splits as well are in your list: it must keep them as one token",
     lambda words, old, new: _kept(words, old, new, keeps=lambda n: True)),
    ("it is not enough that the new vocabulary takes fewer tokens: it must take one",
     lambda words, old, new: [w for w in words if len(new(" " + w)) < len(old(" " + w))]),
    ("each word is in your list once: the words come as they stand in the list, and one that comes twice comes twice",
     lambda words, old, new: list(dict.fromkeys(_kept(words, old, new)))),
    ("your list is in another order than the words", lambda words, old, new: sorted(_kept(words, old, new))),
    ("the words come back with the blank: return them as they were given",
     lambda words, old, new: [" " + w for w in _kept(words, old, new)]),
    ("your function finds none", lambda words, old, new: []),
)  # fmt: skip


def kept_whole(kept) -> str:
    """kept_whole(words, old, new) -> the words that the encoder old splits and the encoder new keeps as one token."""
    need_function(kept, "kept_whole(words, old, new)")
    old, new = _encoder(OLD), _encoder(NEW)
    cases = [(list(WORDS), old, new), (["the", "of"], old, new), ([], old, new), (["dog", "Katze"], old, new),
             (list(WORDS)[::-1], old, new)]  # fmt: skip
    got = []
    for words, a, b in cases:
        what = f"kept_whole({words}, old, new)"
        value = listed(ask(kept, what, list(words), a, b), what)
        if value and all(isinstance(v, list | tuple) for v in value):
            raise Wrong(f"{what} returned lists of tokens: return the words themselves")
        if wrong := [v for v in value if not isinstance(v, str)]:
            raise Wrong(f"every entry in {what} must be a word, got {shown(wrong[0])}")
        got.append(value)
    right = [_kept(*case) for case in cases]
    if settled(got, right, cases, KEPT_MISTAKES, list.__eq__):
        return f"right on {len(cases)} lists of words; now try it on words of your own language"
    (words, _, _), mine, true = first_off(cases, got, right, list.__eq__)
    raise Wrong(f"of {words} it is {true}, not {mine}, with the made-up vocabularies of this check")


# Bits per byte --------------------------------------------------------------------------------------------------------


def _bits(nats, tokens, text):
    return nats * tokens / math.log(2) / len(text.encode("utf-8"))


BITS_MISTAKES = (
    ("the bytes are taken for characters: é is two bytes and 🙂 four, len(text) counts each once",
     lambda nats, n, text: nats * n / math.log(2) / len(text)),
    ("the result is in nats: a bit is ln 2 of a nat, so divide by ln 2",
     lambda nats, n, text: nats * n / len(text.encode())),
    ("you multiply by ln 2: a bit is less than a nat, so it takes more of them",
     lambda nats, n, text: nats * n * math.log(2) / len(text.encode())),
    ("bytes over tokens is the wrong way round: more tokens for the same text cost more",
     lambda nats, n, text: nats * len(text.encode()) / n / math.log(2)),
    ("these are bits per token: multiply by the tokens, divide by the bytes", lambda nats, n, text: nats / math.log(2)),
    ("these are the bits of the whole text: divide by its bytes", lambda nats, n, text: nats * n / math.log(2)),
    ("these are bits per character of a text without its white space: a blank is a byte as well",
     lambda nats, n, text: nats * n / math.log(2) / len("".join(text.split()).encode())),
    ("you divide by log10(2): the loss is in nats, so the logarithm is the natural one",
     lambda nats, n, text: nats * n / math.log10(2) / len(text.encode())),
    ("the loss is taken to the power of e, as for a perplexity: bits add up, so they are proportional to the loss",
     lambda nats, n, text: math.exp(nats) * n / len(text.encode())),
    ("you divide by the bits of the text, eight for each byte",
     lambda nats, n, text: _bits(nats, n, text) / 8),
)  # fmt: skip


def bits_per_byte(bits) -> str:
    """bits_per_byte(nats_per_token, tokens, text) -> what the text costs, in bits for each of its bytes."""
    need_function(bits, "bits_per_byte(nats_per_token, tokens, text)")
    cases = [
        (2.0, 5, "To be, or not to be"),
        (3.5, 4, "Zoë naïve café"),
        (1.25, 11, "日本語 🙂\n and a blank "),
        (0.5, 1, "x"),
        (4.0, 3, "Электрон"),
    ]
    got = []
    for nats, n, text in cases:
        what = f"bits_per_byte({nats}, {n}, {text!r})"
        got.append(number(ask(bits, what, nats, n, text), f"what {what} returns"))

    def same(a, b):
        return math.isclose(a, b, rel_tol=1e-5)

    right = [_bits(*case) for case in cases]
    if settled(got, right, cases, BITS_MISTAKES, same):
        return f"right on {len(cases)} texts, also where a character is more than a byte"
    (nats, n, text), mine, true = first_off(cases, got, right, same)
    if sentence := explain([mine], [(nats, n, text)], BITS_MISTAKES, same):
        raise Wrong(sentence)
    raise Wrong(f"bits_per_byte({nats}, {n}, {text!r}) is {true:.5g}, not {mine:.5g}")
