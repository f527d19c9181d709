"""Answers to the exercises of page 15."""

import math

import numpy as np


def merge_walking(ids, pair, new):
    out, i = [], 0
    while i < len(ids):
        if i + 1 < len(ids) and (ids[i], ids[i + 1]) == pair:
            out.append(new)
            i += 2
        else:
            out.append(ids[i])
            i += 1
    return out


def merge_looking_back(ids, pair, new):
    out, free = [], False  # whether the last token of out may still become the first of a pair
    for i in ids:
        if free and (out[-1], i) == pair:
            out[-1], free = new, False
        else:
            out.append(i)
            free = True
    return out


def merge_recursively(ids, pair, new):
    if len(ids) < 2:
        return tuple(ids)
    if tuple(ids[:2]) == pair:
        return (new, *merge_recursively(ids[2:], pair, new))
    return (ids[0], *merge_recursively(ids[1:], pair, new))


def merge_to_an_array(ids, pair, new):
    return np.array(merge_walking(ids, pair, new), dtype=int)


def merge_step_one(ids, pair, new):
    out = []
    skip = False
    for i, token in enumerate(ids):
        if i + 1 < len(ids) and (token, ids[i + 1]) == pair:
            out.append(new)
            skip = True
        elif skip and i and (ids[i - 1], token) == pair:
            out.append(token)
        else:
            out.append(token)
    return out


def merge_from_the_right(ids, pair, new):
    return merge_walking(ids[::-1], pair[::-1], new)[::-1]


def merge_first(ids, pair, new):
    for i in range(len(ids) - 1):
        if (ids[i], ids[i + 1]) == pair:
            return [*ids[:i], new, *ids[i + 2 :]]
    return ids


def merge_until_none(ids, pair, new):
    before = None
    while before != ids:
        before, ids = ids, merge_walking(ids, pair, new)
    return ids


def merge_short(ids, pair, new):
    out, i = [], 0
    while i < len(ids) - 1:
        if (ids[i], ids[i + 1]) == pair:
            out.append(new)
            i += 2
        else:
            out.append(ids[i])
            i += 1
    return out


def merge_in_place(ids, pair, new):
    i = 0
    while i + 1 < len(ids):
        if (ids[i], ids[i + 1]) == pair:
            ids[i : i + 2] = [new]
        i += 1
    return ids


def merge_in_place_silently(ids, pair, new):
    merge_in_place(ids, pair, new)


def merge_any_order(ids, pair, new):
    out, i = [], 0
    while i < len(ids):
        if i + 1 < len(ids) and sorted(ids[i : i + 2]) == sorted(pair):
            out.append(new)
            i += 2
        else:
            out.append(ids[i])
            i += 1
    return out


def kept(words, old, new):
    return [w for w in words if len(old(" " + w)) > 1 and len(new(" " + w)) == 1]


def kept_in_a_loop(words, old, new):
    found = []
    for word in words:
        text = f" {word}"
        if len(new(text)) == 1 != len(old(text)):
            found.append(word)
    return found


def kept_by_filter(words, old, new):
    return tuple(filter(lambda w: len(new(" " + w)) == 1 < len(old(" " + w)), words))


def bits(nats_per_token, tokens, text):
    return nats_per_token / math.log(2) * tokens / len(text.encode("utf-8"))


def bits_by_log2(nats_per_token, tokens, text):
    return math.log2(math.e) * nats_per_token * tokens / len(bytes(text, "utf-8"))


def bits_with_numpy(nats_per_token, tokens, text):
    return np.float32(nats_per_token * tokens / np.log(2) / len(text.encode()))


RIGHT = {
    "merge-pair": [merge_walking, merge_looking_back, merge_recursively, merge_to_an_array],
    "kept-whole": [kept, kept_in_a_loop, kept_by_filter],
    "bits-per-byte": [bits, bits_by_log2, bits_with_numpy],
}

WRONG = {
    "merge-pair": [
        (merge_step_one, "go on by two places"),
        (merge_from_the_right, "from right to left"),
        (merge_first, "only the first pair"),
        (merge_until_none, "one walk through the list"),
        (merge_short, "the last token is lost"),
        (lambda ids, pair, new: merge_walking(ids[:-1], pair, new) + ids[-1:], "at the very end"),
        (merge_in_place, "build a new one"),
        (merge_in_place_silently, "returns nothing"),
        (merge_any_order, "in either order"),
        (lambda ids, pair, new: [new if i in pair else i for i in ids], "replaced alone"),
        (lambda ids, pair, new: list(ids), "never replaces anything"),
        (lambda ids, pair, new: str(ids), "must be a list"),
        (lambda ids, pair, new: [float(i) for i in ids], "must be a whole number"),
        (lambda ids, pair, new: ids[0] and merge_walking(ids, pair, new), "raised IndexError"),
        (lambda ids, pair, new: merge_walking(ids, pair, new + 1), "is [9, 3, 9], not"),
    ],
    "kept-whole": [
        (lambda ws, old, new: [w for w in ws if len(old(w)) > 1 and len(new(w)) == 1], "without the blank"),
        (lambda ws, old, new: kept(ws, new, old), "are exchanged"),
        (lambda ws, old, new: [w for w in ws if len(new(" " + w)) == 1], "it must split them"),
        (lambda ws, old, new: [w for w in ws if len(old(" " + w)) > 1], "keep them as one token"),
        (lambda ws, old, new: [w for w in ws if len(old(" " + w)) > len(new(" " + w))], "it must take one"),
        (lambda ws, old, new: list(dict.fromkeys(kept(ws, old, new))), "comes twice"),
        (lambda ws, old, new: sorted(kept(ws, old, new)), "another order"),
        (lambda ws, old, new: [" " + w for w in kept(ws, old, new)], "with the blank"),
        (lambda ws, old, new: [], "finds none"),
        (lambda ws, old, new: [new(" " + w) for w in kept(ws, old, new)], "the words themselves"),
        (lambda ws, old, new: set(kept(ws, old, new)), "must be a list"),
        (lambda ws, old, new: [len(w) for w in kept(ws, old, new)], "must be a word"),
    ],
    "bits-per-byte": [
        (lambda nats, n, text: nats * n / math.log(2) / len(text), "taken for characters"),
        (lambda nats, n, text: nats * n / len(text.encode()), "in nats"),
        (lambda nats, n, text: nats * n * math.log(2) / len(text.encode()), "multiply by ln 2"),
        (lambda nats, n, text: nats / math.log(2) * len(text.encode()) / n, "wrong way round"),
        (lambda nats, n, text: nats / math.log(2), "bits per token"),
        (lambda nats, n, text: nats * n / math.log(2), "the whole text"),
        (lambda nats, n, text: nats * n / math.log10(2) / len(text.encode()), "log10"),
        (lambda nats, n, text: math.exp(nats) * n / len(text.encode()), "perplexity"),
        (lambda nats, n, text: bits(nats, n, text) / 8, "eight for each byte"),
        (lambda nats, n, text: None, "must be a number"),
        (lambda nats, n, text: bits(nats, n - 1, text), "is 0.75"),
    ],
}  # fmt: skip
