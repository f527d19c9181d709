"""Logits to tokens: the right chances, the right support, the right position, and the model as it was."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn as nn
from hypothesis import given
from hypothesis import strategies as st

from gptbook.model import GPT, GPTConfig
from gptbook.sampling import generate, next_token

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5, -0.5])
DRAWS = 20_000


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def one_line(error):
    assert "\n" not in str(error.value)


def chances(logits, temperature, top_k=None):
    """The oracle, in plain Python: exp(z / T) over the k highest."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:top_k]
    weights = [math.exp(logits[i] / temperature) if i in order else 0.0 for i in range(len(logits))]
    return [weight / sum(weights) for weight in weights]


def chi_square(tokens, expected):
    """The statistic over the outcomes that can happen; infinite if one came that cannot."""
    counts = torch.bincount(tokens, minlength=len(expected)).tolist()
    if any(count and not p for count, p in zip(counts, expected, strict=True)):
        return math.inf
    pairs = zip(counts, expected, strict=True)
    return sum((count - p * len(tokens)) ** 2 / (p * len(tokens)) for count, p in pairs if p)


# Of seeds for a right sampler, fewer than one in a thousand exceed this with 5 degrees of freedom; the seed is fixed.
LIMIT = 20.5


@pytest.mark.parametrize("temperature", [0.5, 1, 2.0])
@pytest.mark.parametrize("top_k", [None, 1, 3, 6, 7])
def test_frequencies_are_those_of_the_softmax(temperature, top_k):
    """If this fails, temperature or top-k is applied twice, in the wrong place, or to the wrong axis."""
    drawn = next_token(LOGITS.expand(DRAWS, -1), temperature, top_k, generator())
    assert chi_square(drawn, chances(LOGITS.tolist(), temperature, top_k)) < LIMIT


def temperature_after_softmax(logits, temperature, generator):
    return torch.multinomial(logits.softmax(-1) / temperature, 1, generator=generator)[:, 0]


def temperature_twice(logits, temperature, generator):
    return torch.multinomial((logits / temperature**2).softmax(-1), 1, generator=generator)[:, 0]


def softmax_over_chances(logits, temperature, generator):
    return torch.multinomial((logits / temperature).softmax(-1).softmax(-1), 1, generator=generator)[:, 0]


def softmax_over_rows(logits, temperature, generator):
    return torch.multinomial((logits / temperature).softmax(0), 1, generator=generator)[:, 0]


@pytest.mark.parametrize("temperature", [0.5, 2.0])
@pytest.mark.parametrize(
    "wrong", [temperature_after_softmax, temperature_twice, softmax_over_chances, softmax_over_rows]
)
def test_the_check_above_sees_wrong_samplers(wrong, temperature):
    """Negative control: four known mistakes. At temperature 1 the first two would not show."""
    drawn = wrong(LOGITS.expand(DRAWS, -1), temperature, generator())
    assert chi_square(drawn, chances(LOGITS.tolist(), temperature)) > LIMIT


def test_each_row_has_its_own_chances():
    """If this fails, rows of a batch mix: each has one huge logit, and must draw it."""
    logits = 100 * torch.eye(7)[[3, 0, 6, 2]]
    assert next_token(logits, generator=generator()).tolist() == [3, 0, 6, 2]
    assert next_token(logits[:1], generator=generator()).tolist() == [3]


rows = st.lists(st.integers(-3, 3).map(float) | st.just(-math.inf), min_size=1, max_size=8).filter(
    lambda row: max(row) > -math.inf
)


@given(row=rows, k=st.integers(1, 10))
def test_exactly_k_are_kept_and_ties_go_to_lower_ids(row, k):
    """If this fails, top-k keeps one too many or too few, or more wherever logits tie."""
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]
    possible = {i for i in order if row[i] > -math.inf}
    logits = torch.tensor(row)
    drawn = set(next_token(logits.expand(3000, -1), 2.0, k, generator()).tolist())
    assert drawn <= possible
    if min(p for p in chances(row, 2.0, k) if p) > 0.01:  # rarer ones may fail to come in 3000 draws
        assert drawn == possible


def test_ties_go_to_lower_ids_in_a_large_vocabulary_too():
    """If this fails, which of many equal symbols are kept depends on how the machine sorts."""
    drawn = next_token(torch.zeros(500, 5000), top_k=5, generator=generator())
    assert set(drawn.tolist()) == {0, 1, 2, 3, 4}
    assert next_token(torch.zeros(1, 5000), 0).tolist() == [0]


@given(row=rows, k=st.none() | st.integers(1, 10))
def test_temperature_zero_takes_the_highest(row, k):
    """If this fails, greedy decoding divides by zero, or does not take the first of the highest."""
    state = torch.get_rng_state()
    assert next_token(torch.tensor([row]), 0, k).tolist() == [row.index(max(row))]
    assert next_token(torch.tensor([row]), 0.0, k).tolist() == [row.index(max(row))]
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-46, 5e-324])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_low_temperatures_come_near_the_highest(temperature, dtype):
    """If this fails, a temperature just above 0 overflows into NaN."""
    assert next_token(torch.tensor([[50.0, -50.0, 60.0, -math.inf]], dtype=dtype), temperature).tolist() == [2]


def test_a_very_high_temperature_is_uniform_but_for_what_is_excluded():
    """If this fails, -inf divided by the temperature no longer excludes."""
    drawn = next_token(torch.tensor([[5.0, -math.inf, -5.0]]).expand(DRAWS, -1), 1e30, generator=generator())
    assert chi_square(drawn, [0.5, 0.0, 0.5]) < LIMIT


def test_logits_are_left_as_they_were():
    """If this fails, drawing changes the caller's tensor."""
    logits = LOGITS.repeat(2, 1)
    next_token(logits, 0.5, 2, generator())
    assert torch.equal(logits, LOGITS.repeat(2, 1))


def test_the_generator_alone_decides():
    """If this fails, a sample cannot be repeated."""
    logits = torch.zeros(50, 9)
    state = torch.get_rng_state()
    first = next_token(logits, generator=generator(1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, next_token(logits, generator=generator(1)))
    assert not torch.equal(first, next_token(logits, generator=generator(2)))
    assert first.dtype == torch.int64


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -1}, "temperature .* at least 0, got -1"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": None}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_k": 0}, "top_k .* got 0"),
        ({"top_k": -3}, "top_k"),
        ({"top_k": 2.0}, "top_k"),
        ({"top_k": True}, "top_k"),
    ],
)
def test_nonsense_is_refused(options, words):
    """If this fails, a wrong setting gives text that looks like a bad model's."""
    with pytest.raises(ValueError, match=words) as error:
        next_token(LOGITS[None], **options)
    one_line(error)


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("row", [[0.0, math.nan], [0.0, math.inf], [-math.inf, -math.inf], [math.nan, math.inf]])
def test_broken_logits_are_refused(row, temperature):
    """If this fails, a model that has diverged goes on writing, or ends in an error about probabilities."""
    with pytest.raises(ValueError, match="logits hold NaN or inf") as error:
        next_token(torch.tensor([[0.0, 0.0], row]), temperature)
    one_line(error)


@pytest.mark.parametrize("logits", [LOGITS, LOGITS[None, None], torch.zeros(1, 3, dtype=torch.long), torch.zeros(2, 0)])
def test_logits_of_another_shape_or_type_are_refused(logits):
    """If this fails, a missing axis gives a token for each symbol."""
    with pytest.raises(ValueError, match=r"shape \(B, V\)") as error:
        next_token(logits)
    one_line(error)


# Generating -----------------------------------------------------------------------------------------------------------


class Recorder(nn.Module):
    """Answers after position t with token x[t] + 1, and remembers what it was given and how."""

    def __init__(self, vocab_size=11, block_size=4, width=None):
        super().__init__()
        self.config = SimpleNamespace(vocab_size=vocab_size, block_size=block_size)
        self.width = width or vocab_size
        self.dropout = nn.Dropout(0.5)
        self.seen = []

    def forward(self, idx):
        self.seen.append(idx.clone())
        self.looked = (self.training, self.dropout.training, torch.is_grad_enabled())
        return 100 * nn.functional.one_hot((idx + 1) % self.width, self.width).float()  # (B, T, V)


def test_the_last_position_decides():
    """If this fails, the next token is read off the first position, or off all of them."""
    out = generate(Recorder(), torch.tensor([[5, 1], [2, 7]]), 3, generator=generator())
    assert out.tolist() == [[5, 1, 2, 3, 4], [2, 7, 8, 9, 10]]


@given(T=st.integers(1, 9), N=st.integers(0, 7), B=st.integers(1, 3), block=st.integers(1, 5))
def test_length_prefix_and_context(T, N, B, block):
    """If this fails, the prompt is counted as output, a token is lost, or the context is cut from the wrong end."""
    model = Recorder(block_size=block)
    idx = torch.randint(0, 11, (B, T), generator=generator(T))
    out = generate(model, idx, N, generator=generator())
    assert out.shape == (B, T + N)
    assert torch.equal(out[:, :T], idx)
    assert len(model.seen) == N
    for i, seen in enumerate(model.seen):
        assert torch.equal(seen, out[:, max(0, T + i - block) : T + i])


def test_tokens_of_a_padded_head_are_never_drawn():
    """If this fails, a head that is wider than the vocabulary writes tokens that cannot be decoded."""
    model = Recorder(vocab_size=5, width=8)
    out = generate(model, torch.tensor([[4]]), 50, generator=generator())
    assert out.max() < 5
    assert model(torch.tensor([[4]])).argmax() == 5  # negative control: the model itself would write it


@pytest.mark.parametrize("training", [True, False])
def test_dropout_rests_meanwhile_and_modes_come_back(training):
    """If this fails, samples are drawn with dropout, or training goes on without it."""
    model = Recorder().train(training)
    model.dropout.train(not training)  # each module has a mode of its own
    generate(model, torch.tensor([[1]]), 1)
    assert model.looked == (False, False, False)
    assert (model.training, model.dropout.training) == (training, not training)
    assert torch.is_grad_enabled()


def test_modes_come_back_after_an_error_too():
    """If this fails, one interrupted sample leaves the model without dropout for the rest of training."""

    class Broken(Recorder):
        def forward(self, idx):
            raise KeyboardInterrupt

    model = Broken().train()
    with pytest.raises(KeyboardInterrupt):
        generate(model, torch.tensor([[1]]), 1)
    assert model.training
    assert model.dropout.training


def test_a_real_model_writes_as_its_logits_say(tiny_config):
    """If this fails, generating is more than the model and the sampler, step by step."""
    torch.manual_seed(0)
    model = GPT(tiny_config)
    idx = torch.tensor([[1, 2, 3], [4, 5, 6]])
    out = generate(model, idx, 12, temperature=0.8, top_k=4, generator=generator(3))
    random, expected = generator(3), idx
    for _ in range(12):
        logits = model(expected[:, -tiny_config.block_size :])[:, -1]
        expected = torch.cat((expected, next_token(logits, 0.8, 4, random)[:, None]), dim=1)
    assert torch.equal(out, expected)
    assert torch.equal(out[:1, :4], generate(model, idx[:1], 1, 0.8, 4, generator(3)))


def test_what_is_written_can_be_written_on_and_trained_on(tiny_config):
    """If this fails, generated tokens are a special kind of tensor that autograd refuses."""
    model = GPT(tiny_config)
    out = generate(model, torch.tensor([[1]]), 3)
    model(out).sum().backward()
    assert generate(model, out, 1).shape == (1, 5)


@pytest.mark.parametrize(
    ("idx", "n", "words"),
    [
        (torch.zeros(1, 0, dtype=torch.long), 5, "no token to continue from"),
        (torch.zeros(3, dtype=torch.long), 5, r"shape \(B, T\)"),
        (torch.zeros(1, 3), 5, "whole numbers"),
        (torch.tensor([[1]]), -1, "max_new_tokens"),
        (torch.tensor([[1]]), 2.0, "max_new_tokens"),
        (torch.tensor([[1]]), True, "max_new_tokens"),
    ],
)
def test_nothing_to_continue_from_is_refused(idx, n, words):
    """If this fails, an empty prompt ends in an error about an index."""
    with pytest.raises(ValueError, match=words) as error:
        generate(Recorder(), idx, n)
    one_line(error)


def test_a_diverged_model_is_named():
    """If this fails, a model full of NaN ends in an error about probabilities."""
    model = GPT(GPTConfig(vocab_size=5, block_size=4, n_layer=1, n_head=1, n_embd=4))
    nn.init.constant_(model.lm_head.weight, math.nan)
    with pytest.raises(ValueError, match="weights or inputs are broken"):
        generate(model, torch.tensor([[1]]), 2)
