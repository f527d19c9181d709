"""The loss ladder: each rung against a count by hand, or against what the compressor writes."""

import bz2
import math
from collections import Counter
from itertools import pairwise

import pytest
import torch

from gptbook.data import split
from gptbook.ladder import compressor_loss, ladder, ngram_loss
from gptbook.tokenizers import CharTokenizer

TEXT = "the cat sat on the mat; the rat sat on the cat. " * 12 + "a dog, at last: the end! "


def by_hand(train, validation, V, n):
    """Pairs of (context, symbol) counted in dictionaries."""
    grams = Counter(tuple(train[i : i + n]) for i in range(len(train) - n + 1))
    contexts = Counter(gram[:-1] for gram in grams.elements())
    judged = [tuple(validation[i : i + n]) for i in range(len(validation) - n + 1)]
    return -sum(math.log((grams[g] + 1) / (contexts[g[:-1]] + V)) for g in judged) / len(judged)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_a_table_of_runs_agrees_with_a_count_by_hand(n):
    """A failure would put a rung at the wrong height, and with it every comparison in the book."""
    tokenizer = CharTokenizer.train(TEXT)
    tokens = torch.tensor(tokenizer.encode(TEXT))
    train, validation = split(tokens)
    V = tokenizer.vocab_size
    assert ngram_loss(train, validation, V, n) == pytest.approx(by_hand(train.tolist(), validation.tolist(), V, n))


def test_a_table_never_counts_what_it_is_judged_on():
    """A failure would let the validation part into the table: the loss there would be too low."""
    train, validation = torch.tensor([0, 1] * 50), torch.tensor([0, 2] * 50)
    assert ngram_loss(train, validation, 3, 2) > math.log(3)
    assert ngram_loss(train, train, 3, 2) < 0.1


@pytest.mark.parametrize(("n", "V"), [(0, 3), (11, 3), (2, 2**32)])
def test_what_cannot_be_counted_is_refused_in_one_line(n, V):
    tokens = torch.tensor([0, 1, 2] * 3)
    with pytest.raises(ValueError, match=r"n must be|too many to number"):
        ngram_loss(tokens, tokens, V, n)


def test_the_compressors_rate_is_the_growth_of_its_file():
    train, validation = TEXT * 3, TEXT
    grown = len(bz2.compress((train + validation).encode())) - len(bz2.compress(train.encode()))
    assert compressor_loss(train, validation) == pytest.approx(grown * 8 * math.log(2) / len(validation))
    noise = "".join(map(chr, torch.randint(33, 97, (2000,), generator=torch.Generator().manual_seed(0)).tolist()))
    assert compressor_loss(noise, noise[::-1]) > math.log(64) * 0.9  # noise of 64 signs cannot be pressed


def test_each_rung_lies_below_the_one_before():
    """A failure would mean that knowing more of an ordinary text makes the loss worse, or that rungs are mixed up."""
    tokenizer = CharTokenizer.train(TEXT)
    rungs = ladder(torch.tensor(tokenizer.encode(TEXT)), tokenizer)
    assert [rung.name for rung in rungs] == ["uniform", "unigram", "bigram", "trigram", "bzip2"]
    losses = [rung.loss for rung in rungs[:4]]
    assert losses == sorted(losses, reverse=True)
    assert all(pair[0] > pair[1] for pair in pairwise(losses))
    assert losses[0] == pytest.approx(math.log(tokenizer.vocab_size))
