"""Answers to the exercises of page 8."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from gptbook.model import GPT, GPTConfig


def count(V, T, L, C):
    return (2 * V + T + 2) * C + L * (12 * C**2 + 10 * C)


def count_by_building(vocab_size, block_size, n_layer, n_embd):
    config = GPTConfig(vocab_size=vocab_size, block_size=block_size, n_layer=n_layer, n_head=1, n_embd=n_embd)
    return sum(p.numel() for p in GPT(config).parameters())


def count_by_parts(vocab_size, block_size, n_layer, n_embd):
    C = n_embd
    attention = 3 * C * C + C * C + C
    mlp = C * 4 * C + 4 * C + 4 * C * C + C
    norms = 2 * 2 * C
    return np.int64(vocab_size * C + block_size * C + n_layer * (attention + mlp + norms) + 2 * C + C * vocab_size)


def plus(extra):
    return lambda V, T, L, C: count(V, T, L, C) + extra(V, T, L, C)


def initial(V, C, std):
    return math.log(V) + C * std**2 / 2


def initial_sampled(vocab_size, n_embd, std):
    rows = torch.randn(300, vocab_size) * std * math.sqrt(n_embd)
    return F.cross_entropy(rows, torch.randint(vocab_size, (300,))) if std == 0 else rows.logsumexp(1).mean()


RIGHT = {
    "count-parameters": [count, count_by_building, count_by_parts, lambda V, T, L, C: count(V, T, L, C) / 1],
    "initial-loss": [
        initial,
        initial_sampled,
        lambda V, C, s: torch.tensor(math.log(V) + C * s * s / 2 - math.expm1(C * s * s) / (2 * V)),
    ],
    "largest-width": [196, np.int64(196), torch.tensor(196), 196.0, torch.tensor(196.0)],
}

# Plausible wrong answers, each with words that its message must hold.
WRONG = {
    "count-parameters": [
        (plus(lambda V, T, L, C: 3 * L * C), "query, key and value"),
        (plus(lambda V, T, L, C: -2 * C), "final LayerNorm"),
        (plus(lambda V, T, L, C: -(2 * L + 1) * C), "a bias beside its gain"),
        (plus(lambda V, T, L, C: -T * C), "position embeddings"),
        (plus(lambda V, T, L, C: V), "unembedding has no bias"),
        (plus(lambda V, T, L, C: -V * C), "not tied"),
        (plus(lambda V, T, L, C: -5 * L * C), "MLP's two layers have biases"),
        (plus(lambda V, T, L, C: -L * C), "output projection of the attention has a bias"),
        (lambda V, T, L, C: count(V, T, 1, C), "only one block"),
        (plus(lambda V, T, L, C: 3 * L * C - 2 * C), "two things"),
        (plus(lambda V, T, L, C: 17), "part by part"),
        (lambda V, T, L, C: 816_640, "for the page's own model only"),
        (lambda V, T, L, C: 800_000, "the same for every shape"),
        (lambda V, T, L, C: count(V, T, L, C) + 0.5, "must be a whole number"),
        (lambda V, T, L, C: str(count(V, T, L, C)), "must be a whole number"),
    ],
    "initial-loss": [
        (lambda V, C, s: math.log(V), "ln V alone"),
        (lambda V, C, s: math.log(V) + 1 / 6, "uniform numbers"),
        (lambda V, C, s: math.log(V) + C * s**2 / 6, "the 1/3"),
        (lambda V, C, s: math.log(V) + C * s**2, "twice too much"),
        (lambda V, C, s: math.log(V) + s**2 / 2, "does not grow with n_embd"),
        (lambda V, C, s: math.log(V) + C * s / 2, "where the variance belongs"),
        (lambda V, C, s: math.log(V) - C * s**2 / 2, "wrong sign"),
        (lambda V, C, s: math.log2(V) + C * s**2 / 2, "ln V is in bits"),
        (lambda V, C, s: (math.log(V) + C * s**2 / 2) / math.log(2), "this is in bits"),
        (lambda V, C, s: C * s**2 / 2, "ln V is missing"),
        (lambda V, C, s: math.nan, "is nan"),
        (lambda V, C, s: 4.2, "measure"),
        (lambda V, C, s: str(math.log(V)), "must be a number"),
    ],
    "largest-width": [
        (200, "3,200 too many"),
        (192, "a wider one fits too"),
        (199, "cannot be shared equally by 4 heads"),
        (196.5, "must be a whole number"),
        (lambda: 196, "the width itself"),
        (0, "lies between"),
        (10**9, "1,000,000,000 is far off"),
        (None, "got nothing"),
        ("196", "'196' (str)"),
    ],
}  # fmt: skip
