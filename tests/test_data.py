"""Splits and batches: every target exactly where it should be, and no token on both sides of a border."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gptbook import data
from gptbook.tokenizers import BPETokenizer, CharTokenizer


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def one_line(error):
    assert "\n" not in str(error.value)


@given(N=st.integers(2, 400), fraction=st.floats(0.05, 0.95))
def test_split_cuts_once(N, fraction):
    """If this fails, tokens are lost at the border or stand on both sides of it."""
    n = int(fraction * N)
    if not 0 < n < N:
        with pytest.raises(ValueError, match="too few"):
            data.split(torch.arange(N), fraction)
        return
    train, validation = data.split(torch.arange(N), fraction)
    assert train.tolist() == list(range(n))
    assert validation.tolist() == list(range(n, N))


@given(text=st.text("aé🙂 b", min_size=12), pieces=st.booleans())
def test_both_parts_are_the_same_text_whatever_a_token_is(text, pieces):
    """If this fails, models with different tokens are compared on different texts."""
    tokenizer = BPETokenizer.train(text, 264) if pieces else CharTokenizer.train(text)
    parts = data.encoded(text, tokenizer)
    for part, tokens in zip(data.split(text), parts, strict=True):
        assert (tokens.dtype, tokens.dim()) == (torch.int64, 1)
        assert tokenizer.decode(tokens) == part
        judged = data.judged(part, tokenizer, tokens)
        assert part.endswith(judged)
        if not pieces:
            assert judged == part[1:]
        elif "\ufffd" not in tokenizer.decode(tokens[:1]):  # else it ends inside of a character
            assert judged == tokenizer.decode(tokens[1:])
    if not pieces:
        assert torch.equal(torch.cat(parts), torch.tensor(tokenizer.encode(text)))


def test_no_target_of_validation_is_seen_in_training():
    """If this fails, the validation loss measures memory. Each token is its own position here."""
    train, validation = data.split(torch.arange(200))
    seen = {int(i) for batch in data.windows(train, 8) for side in batch for i in side.flatten()}
    asked = {int(i) for batch in data.windows(validation, 8) for side in batch for i in side.flatten()}
    assert seen == set(range(180))
    assert asked == set(range(180, 200))


def test_the_check_above_sees_an_overlap():
    """Negative control: a split with a window's overlap at the border shares tokens."""
    tokens = torch.arange(200)
    train, validation = tokens[:180], tokens[172:]
    assert set(train.tolist()) & set(validation.tolist())


def test_development_split_is_the_last_tenth_of_training():
    """If this fails, choices are made on tokens that the final report uses, or on those trained on."""
    train, validation = data.split(torch.arange(1000))
    smaller, development = data.development_split(train)
    assert smaller.tolist() == list(range(810))
    assert development.tolist() == list(range(810, 900))
    assert set(development.tolist()).isdisjoint(validation.tolist())


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan"), "0.9", True, None])
def test_split_refuses_a_fraction_that_leaves_nothing(fraction):
    """If this fails, training or validation silently has the whole text."""
    with pytest.raises(ValueError, match="fraction") as error:
        data.split(torch.arange(100), fraction)
    one_line(error)


def slices(tokens, T, starts):
    """The oracle: plain slices."""
    return [tokens[s : s + T] for s in starts], [tokens[s + 1 : s + 1 + T] for s in starts]


@given(N=st.integers(2, 60), T=st.integers(1, 12), B=st.integers(1, 6), seed=st.integers(0, 2**31))
def test_batches_are_slices_of_the_text(N, T, B, seed):
    """If this fails, targets are not the inputs moved by one, or windows begin where they were not told to."""
    tokens = torch.randint(0, 1000, (N,), generator=generator(seed))
    if N < T + 1:
        with pytest.raises(ValueError, match=f"has {N} tokens"):
            data.get_batch(tokens, T, B)
        return
    x, y = data.get_batch(tokens, T, B, generator(seed))
    assert x.shape == y.shape == (B, T)
    assert x.dtype == y.dtype == torch.int64
    starts = torch.randint(N - T, (B,), generator=generator(seed)).tolist()
    assert [row.tolist() for row in x] == [row.tolist() for row in slices(tokens, T, starts)[0]]
    assert [row.tolist() for row in y] == [row.tolist() for row in slices(tokens, T, starts)[1]]


@pytest.mark.parametrize("N", [9, 10, 20])
def test_every_start_is_drawn_and_no_other(N):
    """If this fails, the last token is never a target, or the last window is short. Drawn often enough to be sure."""
    x, y = data.get_batch(torch.arange(N), 8, 2000, generator())
    assert set(x[:, 0].tolist()) == set(range(N - 8))
    assert y.max() == N - 1


def test_the_check_above_sees_a_range_one_too_small():
    """Negative control: the classic mistake, `randint(N - T - 1)`, never draws the last start."""
    N, T = 20, 8
    starts = torch.randint(N - T - 1, (2000,), generator=generator())
    assert set(starts.tolist()) != set(range(N - T))


def test_starts_are_equally_likely():
    """If this fails, some parts of the text are trained on more than others. Chi-square with 11 degrees of freedom:
    above 31.3 once in a thousand seeds, and the seed is fixed.
    """
    x, _ = data.get_batch(torch.arange(20), 8, 12_000, generator(3))
    counts = torch.bincount(x[:, 0], minlength=12)
    assert ((counts - 1000.0) ** 2 / 1000).sum() < 31.3


def test_generator_alone_decides():
    """If this fails, a run cannot be repeated, or drawing a batch disturbs dropout's random numbers."""
    tokens = torch.arange(500)
    before = torch.get_rng_state()
    first = data.get_batch(tokens, 8, 4, generator(5))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first, data.get_batch(tokens, 8, 4, generator(5)), strict=True))
    assert not torch.equal(first[0], data.get_batch(tokens, 8, 4, generator(6))[0])


def batches(tokens):
    yield data.get_batch(tokens, 4, 3, generator())
    yield data.get_batch(tokens, 4, 1, generator())
    yield from data.windows(tokens, 4, 2)


def test_writing_into_a_batch_changes_nothing_else():
    """If this fails, masking targets in place changes the text or the inputs, and later batches are spoiled."""
    tokens = torch.arange(30)
    for x, y in batches(tokens):
        inputs = x.clone()
        y.fill_(-100)
        assert torch.equal(x, inputs)
        x.fill_(-1)
        assert torch.equal(tokens, torch.arange(30))


@given(N=st.integers(2, 300), T=st.integers(1, 20), B=st.integers(1, 7))
def test_windows_hold_every_target_once(N, T, B):
    """If this fails, a measured loss leaves tokens out or counts some twice."""
    if N < T + 1:
        with pytest.raises(ValueError, match=f"has {N} tokens"):
            data.windows(torch.arange(N), T, B)
        return
    inputs, targets = [], []
    for x, y in data.windows(torch.arange(N), T, B):
        assert x.shape == y.shape
        assert x.dtype == y.dtype == torch.int64
        assert 1 <= x.size(0) <= B
        assert 1 <= x.size(1) <= T
        inputs += x.flatten().tolist()
        targets += y.flatten().tolist()
    assert inputs == list(range(N - 1))
    assert targets == list(range(1, N))


def test_shortest_text_gives_exactly_one_window():
    """If this fails, the smallest case is lost: T + 1 tokens are one window."""
    ((x, y),) = data.windows(torch.arange(9), 8)
    assert x.tolist() == [list(range(8))]
    assert y.tolist() == [list(range(1, 9))]


@pytest.mark.parametrize("call", [lambda t: data.get_batch(t, 64, 4), lambda t: data.windows(t, 64)])
@pytest.mark.parametrize("N", [0, 1, 64])
def test_too_short_a_text_is_said_with_numbers(call, N):
    """If this fails, a short text ends in an error about a negative range, or in an endless loop."""
    with pytest.raises(ValueError, match=rf"has {N} tokens.* 64 .* 65") as error:
        call(torch.arange(N))
    one_line(error)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.uint16])
def test_small_types_widen_without_wrapping(dtype):
    """If this fails, token numbers wrap around in storage types that save memory."""
    top = torch.iinfo(dtype).max
    tokens = torch.tensor([0, 1, top - 1, top], dtype=torch.int64).to(dtype)
    x, y = data.get_batch(tokens, 3, 2, generator())
    assert x.dtype == y.dtype == torch.int64
    assert x.tolist() == [[0, 1, top - 1]] * 2
    assert y.tolist() == [[1, top - 1, top]] * 2
    ((x, y),) = data.windows(tokens, 3)
    assert x.dtype == y.dtype == torch.int64
    assert y.tolist() == [[1, top - 1, top]]


def test_lists_and_arrays_serve_as_tokens():
    """If this fails, what a tokenizer gives has to be wrapped before it is used."""
    x, _ = data.get_batch(list(range(9)), 8, 1)
    assert x.tolist() == [list(range(8))]
    x, _ = data.get_batch(torch.arange(18)[::2].numpy(), 8, 1)
    assert x.tolist() == [list(range(0, 16, 2))]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: data.get_batch(torch.zeros(4, 20, dtype=torch.long), 8, 2), "one row"),
        (lambda: data.get_batch(torch.zeros(20), 8, 2), "whole numbers"),
        (lambda: data.get_batch(torch.arange(20), 0, 2), "block_size"),
        (lambda: data.windows(torch.arange(20), 8, 0), "batch_size"),
        (lambda: data.windows(torch.arange(20), 8.0), "block_size"),
    ],
)
def test_nonsense_is_refused(call, words):
    """If this fails, a wrong argument becomes a wrong batch."""
    with pytest.raises(ValueError, match=words) as error:
        call()
    one_line(error)
