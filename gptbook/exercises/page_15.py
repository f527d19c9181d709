"""The checks of page 15, byte-pair encoding: plain Python, no torch."""

import math

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

# What a token is made of ----------------------------------------------------------------------------------------------


def _unfold(i, merges):
    if i < 256:
        return [i]
    left, right = merges[i - 256]
    return _unfold(left, merges) + _unfold(right, merges)


def _one_level(i, merges):
    return [i] if i < 256 else list(merges[i - 256])


def _two_levels(i, merges):
    return [part for half in _one_level(i, merges) for part in _one_level(half, merges)]


def _left_only(i, merges):
    """The left half is taken apart, the right one is left as it is."""
    if i < 256:
        return [i]
    left, right = merges[i - 256]
    return [*_left_only(left, merges), right]


def _right_only(i, merges):
    if i < 256:
        return [i]
    left, right = merges[i - 256]
    return [left, *_right_only(right, merges)]


def _backwards(i, merges):
    return _unfold(i, merges)[::-1]


def _with_tokens(i, merges):
    """The tokens on the way stand in the list as well."""
    if i < 256:
        return [i]
    left, right = merges[i - 256]
    return [i, *_with_tokens(left, merges), *_with_tokens(right, merges)]


UNFOLD_MISTAKES = (
    ("only the first step is taken: the two tokens of a merge may be made of others", _one_level),
    ("your function stops after two steps: a token may be made of tokens that are made of tokens", _two_levels),
    ("the right token of a merge is left as it is: both sides must be taken apart", _left_only),
    ("the left token of a merge is left as it is: both sides must be taken apart", _right_only),
    ("the bytes come from right to left: the left token of a merge comes first", _backwards),
    ("the tokens on the way are in your list: only bytes belong there, numbers below 256", _with_tokens),
    ("each byte is in your list once: one that comes twice is asked for twice",
     lambda i, merges: list(dict.fromkeys(_unfold(i, merges)))),
    ("the bytes are sorted: they are asked for in the order of the text", lambda i, merges: sorted(_unfold(i, merges))),
    ("your function always gives the token itself", lambda i, merges: [i]),
)  # fmt: skip


def unfold(answer) -> str:
    """unfold(i, merges) -> the numbers below 256 that token i is made of, from left to right."""
    need_function(answer, "unfold(i, merges)")
    merges = [(5, 3), (256, 7), (0, 0), (257, 258), (2, 257), (259, 260), (258, 258), (261, 262)]
    cases = [(i, merges) for i in (263, 261, 260, 259, 257, 256, 258, 0, 9, 255)] + [(256, [(255, 1)])]
    got = []
    for i, table in cases:
        what, given = f"unfold({i}, merges)", list(table)
        value = ask(answer, what, i, given)
        if isinstance(value, bytes):
            raise Wrong(f"{what} returned bytes: the numbers of GPT-2's order are asked for, as a list")
        if given != table:
            raise Wrong("your function changes the list of merges: only read it")
        got.append([whole_number(n, f"every number in {what}") for n in listed(value, what)])
    right = [_unfold(*case) for case in cases]
    if settled(got, right, cases, UNFOLD_MISTAKES, list.__eq__):
        return f"right for {len(cases)} tokens, up to one of {max(map(len, right))} bytes"
    (i, table), mine, true = first_off(cases, got, right, list.__eq__)
    raise Wrong(f"with merges {table} the token {i} is {true}, not {mine}")


# Words kept whole -----------------------------------------------------------------------------------------------------

OLD = {" the", " of", " cat", " s", "elf", "ie", " sel", "f", " bi", "cycle", "dog", " do", "g", " a", "b", " house"}
NEW = {
    " the", " of", " cat", " selfie", " bicycle", "selfie", " self", " d", "og", " Katze", "Katze", "Katze ", "b",
    " rain", "bow", " ho", "use", " selfie ",
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
    ("the words are tried with a blank on both sides: only the one before them belongs to the token",
     lambda words, old, new: [w for w in words if len(old(f" {w} ")) > 1 and len(new(f" {w} ")) == 1]),
    ("it is not enough that one of the two holds: old must split the word, and new must keep it",
     lambda words, old, new: [w for w in words if len(old(" " + w)) > 1 or len(new(" " + w)) == 1]),
    ("it is not enough that the two differ: old must split the word, and new must keep it",
     lambda words, old, new: [w for w in words if (len(old(" " + w)) == 1) != (len(new(" " + w)) == 1)]),
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
    ("the number of tokens has no effect: a text that is cut into more tokens costs more",
     lambda nats, n, text: nats / math.log(2) / len(text.encode())),
    ("you divide by the number of tokens: every one of them costs as much as the loss says, so multiply",
     lambda nats, n, text: nats / math.log(2) / n / len(text.encode())),
    ("you take the logarithm of the loss: the loss is a logarithm already, so divide it by ln 2",
     lambda nats, n, text: math.log2(nats) * n / len(text.encode())),
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
