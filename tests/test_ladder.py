"""The loss ladder: each rung against a count by hand, or against what the compressor writes."""

import bz2
import math
from collections import Counter

import pytest
import torch

from gptbook.data import split
from gptbook.ladder import MIXED_LENGTH, MIXED_WEIGHT, compressor_loss, ladder, mixed_loss, ngram_loss
from gptbook.tokenizers import CharTokenizer

TEXT = "the cat sat on the mat; the rat sat on the cat. " * 12 + "a dog, at last: the end! "


def by_hand(train, validation, V, n):
    """Pairs of (context, symbol) counted in dictionaries."""
    grams = Counter(tuple(train[i : i + n]) for i in range(len(train) - n + 1))
    contexts = Counter(gram[:-1] for gram in grams.elements())
    judged = [tuple(validation[i : i + n]) for i in range(len(validation) - n + 1)]
    return -sum(math.log((grams[g] + 1) / (contexts[g[:-1]] + V)) for g in judged) / len(judged)


def mixed_by_hand(train, validation, V, n, k):
    """The same as a recursion over contexts, each token asked by itself."""
    grams = [Counter(tuple(train[i : i + m]) for i in range(len(train) - m + 1)) for m in range(n + 1)]
    starts = [Counter() for _ in range(n + 1)]
    for m in range(1, n + 1):
        for gram, count in grams[m].items():
            starts[m][gram[:-1]] += count

    def chance(gram):
        m = len(gram)
        if m == 1:
            return (grams[1][gram] + 1) / (len(train) + V)
        return (grams[m][gram] + k * chance(gram[1:])) / (starts[m][gram[:-1]] + k)

    judged = [tuple(validation[i : i + n]) for i in range(len(validation) - n + 1)]
    return -sum(math.log(chance(gram)) for gram in judged) / len(judged)


@pytest.mark.parametrize("k", [0.5, 1, 30])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_a_mixed_table_agrees_with_a_count_by_hand(n, k):
    """A failure would put the highest bar that the book sets for a network at the wrong height."""
    tokenizer = CharTokenizer.train(TEXT)
    train, validation = split(torch.tensor(tokenizer.encode(TEXT)))
    V = tokenizer.vocab_size
    expected = mixed_by_hand(train.tolist(), validation.tolist(), V, n, k)
    assert mixed_loss(train, validation, V, n, k) == pytest.approx(expected, rel=1e-5)
    swapped = mixed_by_hand(validation.tolist(), train.tolist(), V, n, k)
    assert abs(expected - swapped) > 1e-3, "this text would not show the two exchanged"


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


def test_each_rung_is_the_one_that_its_name_says():
    """A failure would mix rungs up, or judge one on other text than the rest: on what it was counted on, say."""
    tokenizer = CharTokenizer.train(TEXT)
    tokens = torch.tensor(tokenizer.encode(TEXT))
    V, train, validation = tokenizer.vocab_size, *(part.tolist() for part in split(tokens))
    expected = {
        "uniform": math.log(V),
        "unigram": by_hand(train, validation, V, 1),
        "bigram": by_hand(train, validation, V, 2),
        "trigram": by_hand(train, validation, V, 3),
        "mixed runs": mixed_by_hand(train, validation, V, MIXED_LENGTH, MIXED_WEIGHT),
        "bzip2": compressor_loss(tokenizer.decode(train), tokenizer.decode(validation)),
    }
    rungs = ladder(tokens, tokenizer)
    assert [rung.name for rung in rungs] == list(expected)
    assert [rung.loss for rung in rungs] == pytest.approx(list(expected.values()), rel=1e-5)
    assert len({round(loss, 3) for loss in expected.values()}) == len(expected), "two rungs could be exchanged unseen"
    assert len({rung.knows for rung in rungs}) == len(rungs)
    for what, wrong in {
        "judged on train": by_hand(train, train, V, 2),
        "exchanged": by_hand(validation, train, V, 2),
    }.items():
        assert abs(wrong - expected["bigram"]) > 0.01, f"this text would not show a rung {what}"
    for given in ("", tokenizer.decode(validation)):
        assert compressor_loss(given, tokenizer.decode(validation)) != pytest.approx(expected["bzip2"], rel=0.01)


@pytest.mark.parametrize("loss", [ngram_loss, mixed_loss])
@pytest.mark.parametrize("wrong", [[0, 1, 3], [0, -1, 2], [0.0, 1.0, 2.0]])
@pytest.mark.parametrize("part", [0, 1])
def test_tokens_that_are_none_are_refused_in_one_line(loss, wrong, part):
    """A failure would count a token of another vocabulary as some other run of symbols, and say nothing."""
    parts = [torch.tensor([0, 1, 2] * 3), torch.tensor([0, 1, 2] * 3)]
    loss(*parts, 3, 2)
    parts[part] = torch.tensor(wrong * 3)
    with pytest.raises(ValueError, match=r"\Atokens must be whole numbers from 0 to 2[^\n]*\Z"):
        loss(*parts, 3, 2)


@pytest.mark.parametrize("length", [2, 3, 5, 10, 50])
def test_a_text_too_short_for_the_ladder_is_refused(length):
    """A failure would answer with a word about an n that the caller never gave."""
    tokenizer = CharTokenizer.train(TEXT)
    words = rf"\Athe text is too short for the ladder: of its {length} tokens[^\n]*\Z"
    with pytest.raises(ValueError, match=words) as told:
        ladder(torch.tensor(tokenizer.encode(TEXT[:length])), tokenizer)
    assert " n " not in str(told.value)
    ladder(torch.tensor(tokenizer.encode(TEXT[:60])), tokenizer)


def test_a_text_without_surprise_costs_nothing():
    """A failure would print a loss of -0.0, or divide by the length of a text that is not there."""
    tokens = torch.zeros(100, dtype=torch.int64)
    assert [str(ngram_loss(tokens, tokens, 1, n)) for n in (1, 2)] == ["0.0", "0.0"]
    assert [str(mixed_loss(tokens, tokens, 1, n)) for n in (1, 2)] == ["0.0", "0.0"]
    with pytest.raises(ValueError, match="no validation text"):
        compressor_loss("abc", "")
    for loss in (ngram_loss, mixed_loss):
        with pytest.raises(ValueError, match="at most the length of both texts"):
            loss(tokens, tokens[:0], 1, 1)
