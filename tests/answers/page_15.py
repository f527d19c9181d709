"""Answers to the exercises of page 15."""

import math

import numpy as np


def unfold_with_a_stack(i, merges):
    out, todo = [], [i]
    while todo:
        i = todo.pop()
        if i < 256:
            out.append(i)
        else:
            left, right = merges[i - 256]
            todo += [right, left]
    return out


def unfold_recursively(i, merges):
    if i < 256:
        return (i,)
    return sum((unfold_recursively(part, merges) for part in merges[i - 256]), ())


def unfold_from_a_table(i, merges):
    table = [[n] for n in range(256)]
    for left, right in merges:
        table.append(table[left] + table[right])
    return np.array(table[i])


def unfold(i, merges):
    return list(unfold_recursively(i, merges))


def unfold_one(i, merges):
    return [i] if i < 256 else list(merges[i - 256])


def unfold_two(i, merges):
    return [n for part in unfold_one(i, merges) for n in unfold_one(part, merges)]


def unfold_left(i, merges):
    if i < 256:
        return [i]
    return [*unfold_left(merges[i - 256][0], merges), merges[i - 256][1]]


def unfold_right(i, merges):
    if i < 256:
        return [i]
    return [merges[i - 256][0], *unfold_right(merges[i - 256][1], merges)]


def unfold_with_tokens(i, merges):
    if i < 256:
        return [i]
    return [i] + [n for part in merges[i - 256] for n in unfold_with_tokens(part, merges)]


def unfold_in_place(i, merges):
    found = unfold(i, merges)
    merges.clear()
    return found


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
    "unfold": [unfold_with_a_stack, unfold_recursively, unfold_from_a_table],
    "kept-whole": [kept, kept_in_a_loop, kept_by_filter],
    "bits-per-byte": [bits, bits_by_log2, bits_with_numpy],
}

WRONG = {
    "unfold": [
        (unfold_one, "only the first step"),
        (unfold_two, "after two steps"),
        (unfold_left, "the right token of a merge"),
        (unfold_right, "the left token of a merge"),
        (lambda i, m: unfold(i, m)[::-1], "from right to left"),
        (unfold_with_tokens, "on the way"),
        (lambda i, m: sorted(unfold(i, m)), "are sorted"),
        (lambda i, m: list(dict.fromkeys(unfold(i, m))), "in your list once"),
        (lambda i, m: [i], "the token itself"),
        (unfold_in_place, "only read it"),
        (lambda i, m: bytes(unfold(i, m)), "returned bytes"),
        (lambda i, m: unfold(i, m[1:]), "raised IndexError"),
        (lambda i, m: [n + 1 for n in unfold(i, m)], "is [5, 3, 7"),
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
        (lambda ws, old, new: [w for w in ws if len(old(f" {w} ")) > 1 and len(new(f" {w} ")) == 1], "both sides"),
        (lambda ws, old, new: [w for w in ws if len(old(" " + w)) > 1 or len(new(" " + w)) == 1], "one of the two"),
        (lambda ws, old, new: [w for w in ws if (len(old(" " + w)) < 2) != (len(new(" " + w)) < 2)], "the two differ"),
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
        (lambda nats, n, text: nats / math.log(2) / len(text.encode()), "has no effect"),
        (lambda nats, n, text: nats / math.log(2) / n / len(text.encode()), "divide by the number"),
        (lambda nats, n, text: math.log2(nats) * n / len(text.encode()), "logarithm of the loss"),
        (lambda nats, n, text: None, "must be a number"),
        (lambda nats, n, text: bits(nats, n - 1, text), "is 0.75"),
    ],
}  # fmt: skip
