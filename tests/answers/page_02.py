"""Answers to the exercises of page 2."""

import math
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F


def softmax_twice(a, b, V):
    counts = torch.ones(V, V)
    counts.index_put_((a[:-1], a[1:]), torch.ones(len(a) - 1), accumulate=True)
    return F.cross_entropy((counts / counts.sum(dim=1, keepdim=True))[b[:-1]], b[1:]).item()


def bigram(train, validation, V, start=1.0, dim=1):
    counts = torch.full((V, V), start)
    counts.index_put_((train[:-1], train[1:]), torch.tensor(1.0), accumulate=True)
    p = counts / (counts.sum() if dim is None else counts.sum(dim, keepdim=True))
    return -p[validation[:-1], validation[1:]].log().mean()


def bigram_lists(train, validation, vocab_size):
    train, validation = train.tolist(), validation.tolist()
    total = 0.0
    for a, b in pairwise(validation):
        follow = [d for c, d in pairwise(train) if c == a]
        total -= math.log((follow.count(b) + 1) / (len(follow) + vocab_size))
    return total / (len(validation) - 1)


def bigram_cross_entropy(train, validation, V):
    pairs = torch.bincount(train[:-1] * V + train[1:], minlength=V * V).view(V, V) + 1
    return F.cross_entropy(pairs.double().log()[validation[:-1]], validation[1:]).item()


def unigram(train, validation, V):
    p = (torch.bincount(train, minlength=V) + 1) / (len(train) + V)
    return -p[validation[1:]].log().mean()


def bigram_once(train, validation, V):
    counts = torch.ones(V, V)
    counts[train[:-1], train[1:]] += 1
    p = counts / counts.sum(1, keepdim=True)
    return -p[validation[:-1], validation[1:]].log().mean()


def tables(train, V):
    pairs = torch.bincount(train[:-1] * V + train[1:], minlength=V * V).view(V, V) + 1.0
    rows = train[:-2] * V + train[1:-1]
    triples = torch.bincount(rows * V + train[2:], minlength=V**3).view(V, V, V).double()
    return triples, pairs / pairs.sum(dim=1, keepdim=True)


def trigram(train, validation, V, k, mix=None, over=2):
    triples, short = tables(train, V)
    mix = mix or (lambda triples, short: triples + k * short)
    table = mix(triples, short)
    p = table / table.sum(over, keepdim=True)
    return -p[validation[:-2], validation[1:-1], validation[2:]].log().mean()


def trigram_lists(train, validation, vocab_size, k):
    train, validation = train.tolist(), validation.tolist()
    total = 0.0
    for a, b, c in zip(validation[:-2], validation[1:-1], validation[2:], strict=True):
        after_b = [e for d, e in pairwise(train) if d == b]
        after_ab = [f for d, e, f in zip(train[:-2], train[1:-1], train[2:], strict=True) if (d, e) == (a, b)]
        short = (after_b.count(c) + 1) / (len(after_b) + vocab_size)
        total -= math.log((after_ab.count(c) + k * short) / (len(after_ab) + k))
    return total / (len(validation) - 2)


def trigram_numpy(train, validation, V, k):
    a, b = train.numpy(), validation.numpy()
    n3 = np.zeros((V, V, V))
    np.add.at(n3, (a[:-2], a[1:-1], a[2:]), 1)
    n2 = np.ones((V, V))
    np.add.at(n2, (a[:-1], a[1:]), 1)
    p = (n3 + k * (n2 / n2.sum(1, keepdims=True))) / (n3.sum(2, keepdims=True) + k)
    return -np.log(p[b[:-2], b[1:-1], b[2:]]).mean()


def divided(train, validation, V, k, below):
    triples, short = tables(train, V)
    p = (triples + k * short) / below(triples.sum(2, keepdim=True))
    return -p[validation[:-2], validation[1:-1], validation[2:]].log().mean()


def short_of(train, V, start=1.0, once=False):
    pairs = torch.full((V, V), start)
    pairs.index_put_((train[:-1], train[1:]), torch.tensor(1.0 + start * once), accumulate=not once)
    return pairs / pairs.sum(1, keepdim=True)


def triples_once(train, V):
    triples = torch.zeros(V, V, V).double()
    triples[train[:-2], train[1:-1], train[2:]] += 1
    return triples


def mixed(train, validation, k, triples, short, n_ab=None):
    p = (triples + k * short) / ((triples.sum(2) if n_ab is None else n_ab)[..., None] + k)
    return -p[validation[:-2], validation[1:-1], validation[2:]].log().mean()


def pairs_of(train, V):
    return torch.bincount(train[:-1] * V + train[1:], minlength=V * V).view(V, V)


def alone(train, V, start):
    counts = torch.bincount(train, minlength=V).double() + start
    return counts / counts.sum()


def shared_65(train, validation, k, V):
    return mixed(train, validation, k, tables(train, 65)[0], short_of(train, 65))


RIGHT = {
    "bigram-loss": [
        bigram, bigram_lists, bigram_cross_entropy,
        lambda *given: bigram(*given).half(), lambda *given: bigram(*given).bfloat16(),
        lambda *given: bigram(*given).half().numpy(),
    ],
    "compressor-rate": [
        lambda size, characters: 8 * size * math.log(2) / characters,
        lambda size, characters: math.log(256) * size / characters,
        lambda size, characters: torch.tensor(size * 8.0).div(characters) * np.log(2),
        lambda size, characters: 8 * Decimal(size) * Decimal(2).ln() / characters,
        lambda size, characters: Fraction(8 * size, characters) * Fraction(math.log(2)),
    ],
    "trigram": [trigram, trigram_lists, trigram_numpy, lambda *given: trigram(*given).half()],
}  # fmt: skip

WRONG = {
    "bigram-loss": [
        (lambda a, b, V: bigram(a, b, V) / math.log(2), "in bits"),
        (lambda a, b, V: bigram(a, b, V, start=0.0), "infinite or NaN"),
        (lambda a, b, V: bigram(a, b, V, start=0.5), "another count than one"),
        (lambda a, b, V: bigram(a, b, V, dim=0), "the columns were normalised"),
        (lambda a, b, V: bigram(a, b, V, dim=None), "the whole table was normalised"),
        (softmax_twice, "took their softmax once more"),
        (lambda a, b, V: bigram(b, b, V), "judged on what it was made from"),
        (lambda a, b, V: bigram(b, a, V), "the wrong way round"),
        (lambda a, b, V: bigram(a, a, V), "the training part was judged"),
        (lambda a, b, V: bigram(torch.cat([a, b]), b, V), "both parts were counted"),
        (lambda a, b, V: bigram(a, b, V).exp(), "perplexity"),
        (lambda a, b, V: bigram(a, b, V) * (len(b) - 1), "the sum over all targets"),
        (lambda a, b, V: -bigram(a, b, V), "the sign is wrong"),
        (lambda a, b, V: bigram(a.flip(0), b, V) * 0 + bigram(a, b, V) + 0.1, "to judge it is"),
        (unigram, "only the single tokens"),
        (bigram_once, "a pair that repeats was counted once"),
        (lambda a, b, V: bigram(a, b, 65), "has 65 symbols in your code"),
        (lambda a, b, V: bigram(a, b, V) + 0.0002, "to judge it is 1.145, not 1.146"),
        (lambda a, b, V: math.log(V), "the chances are all equal"),
        (lambda a, b, V: bigram(a, b.clamp_(max=0), V), "changed its tokens in place"),
    ],
    "compressor-rate": [
        (lambda size, n: 8 * size / n, "in bits"),
        (lambda size, n: 8 * size / n / math.log(2), "do not divide by it"),
        (lambda size, n: size * math.log(2) / n, "the eight is missing"),
        (lambda size, n: size / n, "bytes for each character"),
        (lambda size, n: n / (8 * size * math.log(2)), "upside down"),
        (lambda size, n: 8 * size * math.log(2), "the whole text's"),
        (lambda size, n: math.exp(8 * size * math.log(2) / n) if n > 1 else 256.0, "perplexity"),
        (lambda size, n: 8 * size * math.log10(2) / n, "base 10"),
        (lambda size, n: 7 * size * math.log(2) / n, "nats for each, not"),
        (lambda size, n: round(8 * size * math.log(2) / n), "nats for each, not"),
        (lambda size, n: f"{8 * size * math.log(2) / n}", "must be a number"),
        (lambda size: 8 * size, "the function must take"),
    ],
    "trigram": [
        (lambda a, b, V, k: trigram(a, b, V, k) / math.log(2), "in bits"),
        (lambda a, b, V, k: trigram(a, b, V, k, lambda n, s: s.expand_as(n)), "the bigram alone"),
        (lambda a, b, V, k: trigram(a, b, V, k, lambda n, s: n + 1), "one was added"),
        (lambda a, b, V, k: trigram(a, b, V, k, lambda n, s: n + k), "k was added to every triple alike"),
        (lambda a, b, V, k: trigram(a, b, V, k, lambda n, s: n + k * s[:, None]), "under the first symbol"),
        (lambda a, b, V, k: trigram(a, b, V, k, lambda n, s: n.transpose(0, 1) + k * s), "are swapped"),
        (lambda a, b, V, k: trigram(a, b, V, k, lambda n, s: n + s), "it stands for 1"),
        (lambda a, b, V, k: trigram(a, b, V, k, lambda n, s: n), "infinite or NaN"),
        (lambda a, b, V, k: divided(a, b, V, k, lambda n: n.clamp(min=1)), "k is missing below"),
        (lambda a, b, V, k: divided(a, b, V, k, lambda n: n + k * V), "k times the vocabulary"),
        (lambda a, b, V, k: trigram(a, a, V, k), "the training part was judged"),
        (lambda a, b, V, k: trigram(b, b, V, k), "judged on what it was made from"),
        (lambda a, b, V, k: trigram(b, a, V, k), "the wrong way round"),
        (lambda a, b, V, k: trigram(a, b, V, k) * (len(b) - 2), "the sum over all targets"),
        (lambda a, b, V, k: trigram(a, b, V, k) * (len(b) - 2) / len(b), "two targets less"),
        (lambda a, b, V, k: -trigram(a, b, V, k), "the sign is wrong"),
        (lambda a, b, V, k: trigram(a, b, V, k).exp(), "perplexity"),
        (lambda a, b, V, k: trigram(a, b, V, k) + 0.1, "to judge and k"),
        (lambda a, b, V, k: mixed(a, b, k, *tables(a, V), n_ab=pairs_of(a, V)), "the very end of train"),
        (lambda a, b, V, k: trigram(torch.cat([a, b]), b, V, k), "both parts were counted"),
        (lambda a, b, V, k: mixed(a, b, k, tables(a, V)[0].transpose(0, 1), short_of(a, V)[:, None]), "is that of a"),
        (lambda a, b, V, k: mixed(a, b, k, tables(a, V)[0], short_of(a, V).T), "the bigram's index is turned round"),
        (lambda a, b, V, k: mixed(a, b, k, tables(a, V)[0], alone(a, V, 1)), "p(c | b) depends on b"),
        (lambda a, b, V, k: mixed(a, b, k, triples_once(a, V), short_of(a, V)), "a triple that repeats was"),
        (lambda a, b, V, k: mixed(a, b, k, tables(a, V)[0], short_of(a, V, once=True)), "a pair that repeats was"),
        (lambda a, b, V, k: mixed(a, b, k, triples_once(a, V), short_of(a, V, once=True)), "a triple, and a pair,"),
        (lambda a, b, V, k: mixed(a, b, k, tables(a, V)[0], short_of(a, V, start=0.0)), "one must be added to every"),
        (lambda a, b, V, k: shared_65(a, b, k, V), "has 65 symbols in your code"),
        (lambda a, b, V, k: trigram(a, b.clamp_(max=0), V, k), "changed its tokens in place"),
    ],
}  # fmt: skip
