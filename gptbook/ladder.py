"""The loss ladder: what a text costs without any network, so that every loss in this book has something below it.

It leaves out smoothing cleverer than "one more than counted", and compressors cleverer than bzip2; page 2.
"""

import bz2
import math
from dataclasses import dataclass

import torch

from gptbook.data import split


@dataclass(frozen=True)
class Rung:
    """One step of the ladder: its name, what that model knows of the text, and its validation loss in nats."""

    name: str
    knows: str
    loss: float


def ngram_loss(train, validation, vocab_size, n) -> float:
    """The mean surprise in nats of each token of `validation` given the n - 1 before it, by a table counted on `train`.

    train, validation (N,) whole numbers below vocab_size; the first n - 1 of validation have no context and are not
    judged. Every count is raised by one, so that nothing is impossible.
    Raises ValueError if n is below 1, a text has fewer than n tokens, or vocab_size to the n-th is no 64-bit number.
    """
    if n < 1 or len(train) < n or len(validation) < n:
        raise ValueError(f"n must be at least 1 and at most the length of both texts, got {n}")
    if vocab_size**n >= 2**63:
        raise ValueError(f"{vocab_size} symbols to the power {n} are too many to number: choose a smaller n")
    grams, counts = _grams(train, vocab_size, n).unique(return_counts=True)
    contexts, totals = (_grams(train, vocab_size, n) // vocab_size).unique(return_counts=True)
    asked = _grams(validation, vocab_size, n)  # (N-n+1,)
    seen = _look_up(grams, counts, asked)  # (N-n+1,)
    of = _look_up(contexts, totals, asked // vocab_size)  # (N-n+1,)
    return -((seen + 1.0) / (of + vocab_size)).log().mean().item()


def _grams(tokens, vocab_size, n):
    """Every run of n tokens as one number, its tokens being the digits: (N,) -> (N - n + 1,)."""
    place = vocab_size ** torch.arange(n - 1, -1, -1)  # (n,)
    return (tokens.unfold(0, n, 1) * place).sum(dim=1)


def _look_up(keys, values, asked):
    """The values of the keys that were asked for, and 0 where a key is not there: keys sorted."""
    at = torch.searchsorted(keys, asked).clamp(max=len(keys) - 1)
    return torch.where(keys[at] == asked, values[at], 0)


def compressor_loss(train: str, validation: str) -> float:
    """What bzip2 needs for each character of `validation` when it comes right after `train`, in nats."""
    before, after = (len(bz2.compress(text.encode())) for text in (train, train + validation))
    return 8 * (after - before) * math.log(2) / len(validation)


def ladder(tokens, tokenizer) -> list[Rung]:
    """The rungs for a text of tokens (N,), judged on its validation part: from a blind guess to a compressor's rate."""
    V = tokenizer.vocab_size
    train, validation = split(tokens)
    knows = ("how often each symbol occurs", "the symbol before", "the two symbols before")
    return [
        Rung("uniform", "how many symbols there are", math.log(V)),
        *(
            Rung(name, words, ngram_loss(train, validation, V, n))
            for n, (name, words) in enumerate(zip(("unigram", "bigram", "trigram"), knows, strict=True), start=1)
        ),
        Rung(
            "bzip2",
            "every repetition it has met",
            compressor_loss(tokenizer.decode(train), tokenizer.decode(validation)),
        ),
    ]
