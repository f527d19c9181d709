"""The loss ladder: what a text costs without any network, so that every loss in this book has something below it.

It leaves out tables cleverer than these two kinds, and compressors cleverer than bzip2; page 2.
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
    Raises ValueError if n is below 1, a text has fewer than n tokens or one that is no whole number below vocab_size,
    or vocab_size to the n-th is no 64-bit number.
    """
    _check(train, validation, vocab_size, n)
    seen, of = _counted(train, validation, vocab_size, n)
    return 0.0 - ((seen + 1.0) / (of + vocab_size)).log().mean().item()  # never -0.0


MIXED_LENGTH, MIXED_WEIGHT = 6, 30  # best of a few on the development split of Tiny Shakespeare: page 2 shows it


def mixed_loss(train, validation, vocab_size, n=MIXED_LENGTH, k=MIXED_WEIGHT) -> float:
    """As `ngram_loss`, but a row of the table is mixed with k times what the next shorter context says, and so on down.

    The shortest, without any context, is counted with one more for each symbol. Errors as `ngram_loss`; k above 0.
    """
    _check(train, validation, vocab_size, n)
    if not k > 0:
        raise ValueError(f"k must be above 0, got {k!r}")
    chance = 1.0 / vocab_size
    for m in range(1, n + 1):
        seen, of = (numbers[n - m :] for numbers in _counted(train, validation, vocab_size, m))  # ends of the longest
        weight = k if m > 1 else vocab_size  # below the shortest lies the blind guess: one more for each symbol
        chance = (seen + weight * chance) / (of + weight)
    return 0.0 - chance.log().mean().item()


def _check(train, validation, vocab_size, n):
    if n < 1 or len(train) < n or len(validation) < n:
        raise ValueError(f"n must be at least 1 and at most the length of both texts, got {n}")
    for tokens in (train, validation):
        if tokens.is_floating_point() or tokens.min() < 0 or tokens.max() >= vocab_size:
            raise ValueError(f"tokens must be whole numbers from 0 to {vocab_size - 1}, those of {vocab_size} symbols")
    if vocab_size**n >= 2**63:
        raise ValueError(f"{vocab_size} symbols to the power {n} are too many to number: choose a smaller n")


def _counted(train, validation, vocab_size, n):
    """How often each run of n tokens of `validation` stands in `train`, and how often its first n - 1 go on there."""
    known, asked = (_grams(tokens, vocab_size, n) for tokens in (train, validation))
    return tuple(
        _look_up(*(known // cut).unique(return_counts=True), asked // cut) for cut in (1, vocab_size)
    )  # (N-n+1,) each


def _grams(tokens, vocab_size, n):
    """Every run of n tokens as one number, its tokens being the digits: (N,) -> (N - n + 1,)."""
    place = vocab_size ** torch.arange(n - 1, -1, -1)  # (n,)
    return (tokens.unfold(0, n, 1) * place).sum(dim=1)


def _look_up(keys, values, asked):
    """The values of the keys that were asked for, and 0 where a key is not there: keys sorted."""
    at = torch.searchsorted(keys, asked).clamp(max=len(keys) - 1)
    return torch.where(keys[at] == asked, values[at], 0)


BLOCK = 880_000  # bytes: bzip2 sorts blocks of a little more, and what lies in another block helps it nothing


def compressor_loss(train: str, validation: str) -> float:
    """What bzip2 needs for a character of `validation`, right behind as much of `train` as fits its block, in nats.

    Raises ValueError for an empty validation text.
    """
    if not validation:
        raise ValueError("there is no validation text: nothing to compress")
    judged = validation.encode()
    read = train.encode()[-max(BLOCK - len(judged), 1) :]
    return 8 * (len(bz2.compress(read + judged)) - len(bz2.compress(read))) * math.log(2) / len(validation)


def ladder(tokens, tokenizer) -> list[Rung]:
    """The rungs for a text of tokens (N,), judged on its validation part: from a blind guess to a compressor's rate.

    Raises ValueError for a text too short to have a run of the longest length in its validation part.
    """
    V = tokenizer.vocab_size
    train, validation = split(tokens)
    if min(len(train), len(validation)) < MIXED_LENGTH:
        raise ValueError(
            f"the text is too short for the ladder: of its {len(tokens)} tokens {len(validation)} are for validation, "
            f"and the longest runs that are counted have {MIXED_LENGTH}"
        )
    knows = ("how often each symbol occurs", "the symbol before", "the two symbols before")
    return [
        Rung("uniform", "how many symbols there are", math.log(V)),
        *(
            Rung(name, words, ngram_loss(train, validation, V, n))
            for n, (name, words) in enumerate(zip(("unigram", "bigram", "trigram"), knows, strict=True), start=1)
        ),
        Rung("mixed runs", "all runs of up to six symbols", mixed_loss(train, validation, V)),
        Rung(
            "bzip2",
            "every repetition in its block",
            compressor_loss(tokenizer.decode(train), tokenizer.decode(validation)),
        ),
    ]
