"""Answers to the exercises of page 16."""

import math

import torch
import torch.nn.functional as F

KINDS = ("previous", "same", "induction", "first")


def rank_in_a_loop(z, token):
    if z.dim() > 1:
        return torch.stack([rank_in_a_loop(row, token) for row in z])
    values = z.tolist()
    return torch.tensor(1 + sum(value > values[token] for value in values))


def sorted_place(z, token, descending=True):
    return (z.argsort(dim=-1, descending=descending) == token).int().argmax(dim=-1)


def in_place(z, token):
    z -= z[..., token : token + 1].clone()
    return 1 + (z > 0).sum(-1)


def mine(z, token):
    return z[..., token : token + 1]


def wanted(t, a, b, c):
    return t[a] - t[b] + t[c]


def best(cosines, out, n):
    cosines = cosines.clone()
    cosines[list(out)] = -math.inf
    return cosines.argsort(descending=True)[:n].tolist()


def by_lengths(t, a, b, c, n):
    w = wanted(t, a, b, c)
    return best(t @ w / (t.norm(dim=1) * w.norm()), (a, b, c), n)


def in_a_loop(t, a, b, c, n):
    w = wanted(t, a, b, c).tolist()
    found = []
    for i, row in enumerate(t.tolist()):
        if i not in (a, b, c):
            dot = sum(x * y for x, y in zip(row, w, strict=True))
            found.append((dot / math.sqrt(sum(x * x for x in row)), i))
    return [i for _, i in sorted(found, reverse=True)[:n]]


def afterwards(t, a, b, c, n):
    order = F.cosine_similarity(t, wanted(t, a, b, c)[None]).argsort(descending=True)
    return [i for i in order if i not in (a, b, c)][:n]


def cos(t, w):
    return F.cosine_similarity(t, w[None])


def zero_for_inputs(t, a, b, c, n):
    cosines = cos(t, wanted(t, a, b, c))
    cosines[[a, b, c]] = 0
    return cosines.topk(n).indices.tolist()


def filtered_late(t, a, b, c, n):
    return [i for i in cos(t, wanted(t, a, b, c)).topk(n).indices.tolist() if i not in (a, b, c)]


def spoil(t, a, b, c, n):
    t[a] -= t[b]
    return [0] * n


def means(w, rows=None, shift=1):
    half = w.size(-1) // 2
    rows = torch.arange(half, 2 * half) if rows is None else rows
    at = (rows - 1, rows - half, rows - half + shift, rows * 0)
    return torch.stack([w[:, rows, place.clamp(min=0)].mean(-1) for place in at])


def named(numbers):
    return [KINDS[i] for i in numbers.argmax(0)]


def kinds_in_a_loop(w):
    H, T, _ = w.shape
    half, names = T // 2, []
    for h in range(H):
        total = dict.fromkeys(KINDS, 0.0)
        for t in range(half, T):
            for kind, place in (("previous", t - 1), ("same", t - half), ("induction", t - half + 1), ("first", 0)):
                total[kind] += float(w[h, t, place])
        names.append(max(total, key=total.get))
    return names


def kinds_by_diagonals(w):
    half = w.size(-1) // 2
    lower = w[:, half:]

    def line(offset):
        return lower.diagonal(offset=offset, dim1=1, dim2=2)[:, :half].mean(-1)

    return named(torch.stack((line(half - 1), line(0), line(1), lower[..., 0].mean(-1))))


def tops(w):
    half = w.size(-1) // 2
    rows = torch.arange(half, 2 * half)
    at = (rows - 1, rows - half, rows - half + 1, rows * 0)
    return named(torch.stack([w[:, rows, place].amax(-1) for place in at]))


def votes(w):
    half, names = w.size(-1) // 2, []
    for head in w.tolist():
        won = dict.fromkeys(KINDS, 0)
        for t in range(half, 2 * half):
            looks = [head[t][place] for place in (t - 1, t - half, t - half + 1, 0)]
            won[KINDS[looks.index(max(looks))]] += 1
        names.append(max(won, key=won.get))
    return names


def itself(w):
    half = w.size(-1) // 2
    rows = torch.arange(half, 2 * half)
    at = (rows, rows - half, rows - half + 1, rows * 0)
    return named(torch.stack([w[:, rows, place].mean(-1) for place in at]))


def zeroed(w):
    w[..., 0] = 0
    return named(means(w))


RIGHT = {
    "answer-rank": [
        lambda z, token: 1 + (z > mine(z, token)).sum(-1),
        lambda z, token: (z > z[..., [token]]).sum(-1).int() + 1,
        rank_in_a_loop,
        lambda z, token: z.size(-1) - (z <= mine(z, token)).sum(-1) + 1,
    ],
    "word-arithmetic": [by_lengths, in_a_loop, afterwards, lambda t, *abcn: torch.tensor(by_lengths(t, *abcn))],
    "name-the-heads": [lambda w: named(means(w)), kinds_in_a_loop, kinds_by_diagonals],
}

WRONG = {
    "answer-rank": [
        (lambda z, a: (z > mine(z, a)).sum(-1), "counts from 0"),
        (lambda z, a: 1 + (z < mine(z, a)).sum(-1), "counts from the bottom: rank 1"),
        (lambda z, a: (z < mine(z, a)).sum(-1), "from the bottom, and from 0"),
        (lambda z, a: z.argsort(-1, descending=True)[..., a], "takes the id for a place"),
        (lambda z, a: 1 + (z >= mine(z, a)).sum(-1), "at least as high"),
        (lambda z, a: (z >= mine(z, a)).sum(-1), "lets tokens that tie push it back: only"),
        (lambda z, a: 1 + sorted_place(z, a), "tie"),
        (lambda z, a: sorted_place(z, a), "counts from 0"),
        (lambda z, a: z.argmax(-1), "the id of the token on top"),
        (lambda z, a: (z.argmax(-1) == a).int(), "whether the token is on top"),
        (lambda z, a: z.argmax(-1) == a, "True and False"),
        (lambda z, a: z.softmax(-1)[..., a], "whole numbers"),
        (lambda z, a: 1 + (z > mine(z, a)).sum(-1, keepdim=True), "axis of the vocabulary"),
        (lambda z, a: z > mine(z, a), "a number for each token"),
        (lambda z, a: (z > mine(z, a)).sum(-1).float() + 1, "whole numbers, got torch.float32"),
        (lambda z, a: 1 + (z > z[..., a]).sum(-1), "Keep the axis of the one logit"),
        (lambda z, a: 1 + (z > mine(z, a)).sum(0), "the first axis is gone"),
        (lambda z, a: 1 + (z > mine(z, a)).sum(), "one number for all rows"),
        (in_place, "work on a copy"),
        (lambda z, a: None, "is a return missing?"),
        (lambda z, a: 3 + (z > mine(z, a)).sum(-1), "has rank"),
    ],
    "word-arithmetic": [
        (lambda t, a, b, c, n: best(cos(t, wanted(t, a, b, c)), (), n), "gives the inputs too"),
        (lambda t, a, b, c, n: best(cos(t, wanted(t, a, b, c)), (a,), n), "only row a out"),
        (lambda t, a, b, c, n: best(cos(t, wanted(t, a, b, c)), (b,), n), "gives the inputs too"),
        (lambda t, a, b, c, n: best(cos(t, wanted(t, a, c, b)), (a, b, c), n), "adds row b and takes row c off"),
        (lambda t, a, b, c, n: best(cos(t, wanted(t, b, a, c)), (a, b, c), n), "takes a off and adds b"),
        (lambda t, a, b, c, n: best(cos(t, t[a] + t[b] + t[c]), (a, b, c), n), "a plus b plus c"),
        (lambda t, a, b, c, n: best(cos(t, t[a] - t[b]), (a, b, c), n), "forgets c"),
        (lambda t, a, b, c, n: best(t @ wanted(t, a, b, c), (a, b, c), n), "prefers long rows"),
        (lambda t, a, b, c, n: best(-(t - wanted(t, a, b, c)).norm(dim=1), (a, b, c), n), "by distance"),
        (lambda t, a, b, c, n: best(-cos(t, wanted(t, a, b, c)), (a, b, c), n), "the farthest"),
        (
            lambda t, a, b, c, n: best(cos(t, wanted(F.normalize(t, dim=1), a, b, c)), (a, b, c), n),
            "before it adds them",
        ),
        (lambda t, *abcn: by_lengths(t - t.mean(0), *abcn), "takes the mean of all rows off first"),
        (zero_for_inputs, "a cosine of 0, which is more"),
        (filtered_late, "leave them out first, and then take as many"),
        (lambda t, *abcn: by_lengths(t, *abcn)[::-1], "the nearest first"),
        (lambda t, a, b, c, n: cos(t, wanted(t, a, b, c)), "the cosines? Sort them"),
        (lambda t, a, b, c, n: by_lengths(t, a, b, c, n + 1), "ids, got"),
        (lambda t, a, b, c, n: [c, *by_lengths(t, a, b, c, n - 1)], "one of its inputs"),
        (lambda t, a, b, c, n: [(i + 1) % len(t) for i in by_lengths(t, a, b, c, n)], ""),
        (spoil, "work on a copy"),
        (lambda t, a, b, c, n: None, "must be a list"),
    ],
    "name-the-heads": [
        (
            lambda w: [{"same": "induction", "induction": "same"}.get(k, k) for k in kinds_in_a_loop(w)],
            "what *followed*",
        ),
        (lambda w: named(means(w, torch.arange(w.size(-1) - 1, w.size(-1)))), "the last row only"),
        (tops, "one row is no habit"),
        (votes, "counts the rows"),
        (itself, "takes the row itself"),
        (lambda w: named(means(w, torch.arange(w.size(-1) // 2 + 1, w.size(-1)))), "out the first row of the second"),
        (lambda w: named(means(w, torch.arange(w.size(-1) // 2, w.size(-1) - 1))), "out the last row of the second"),
        (lambda w: named(means(w, shift=-1)), "one place left"),
        (lambda w: named(means(w.transpose(1, 2))), "rows and columns exchanged"),
        (lambda w: named(means(w)[:3]), "never says first"),
        (lambda w: ["induction"] * len(w), "says induction for every head"),
        (lambda w: ["first"] * len(w), "says first for every head"),
        (lambda w: ["induction"] * w.size(-1), "one for each head"),
        (lambda w: ["sink"] * len(w), "names out of"),
        (lambda w: means(w).argmax(0).tolist(), "names out of"),
        (zeroed, "work on a copy"),
        (lambda w: None, "must be a list"),
        (lambda w: kinds_in_a_loop(w)[::-1], "asked for is"),
        (lambda w: w[99], "raised IndexError"),
    ],
}
