"""Logits to tokens: the right chances, the right support, the right position, and the model as it was."""

import math
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
import torch.nn as nn
from hypothesis import assume, given
from hypothesis import strategies as st

from gptbook.model import GPT, GPTConfig
from gptbook.sampling import generate, next_token, probabilities

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


# Chances --------------------------------------------------------------------------------------------------------------


def oracle(row, temperature=1.0, top_k=None, top_p=None):
    """The chances in plain Python, by repeated picking: no sort, no cumulated sums."""
    left, picked = list(range(len(row))), []
    while left and (top_k is None or len(picked) < top_k) and not (temperature == 0 and picked):
        best = max(left, key=lambda i: row[i])  # max takes the first of equals: the lower id
        left.remove(best)
        picked.append(best)
    highest = row[picked[0]]
    weights = {
        i: 1.0 if row[i] == highest else math.exp(max((row[i] - highest) / max(temperature, 1e-30), -1e4))
        for i in picked
    }
    total = math.fsum(weights.values())
    if top_p is not None and top_p < 1:
        kept, held = {}, 0.0
        for i in picked:
            if kept and held >= top_p:
                break
            kept[i] = weights[i]
            held = math.fsum(kept.values()) / total
        weights, total = kept, math.fsum(kept.values())
    return [weights.get(i, 0.0) / total for i in range(len(row))]


def far_from_a_border(row, temperature, top_k, top_p):
    """Whether no sum of the likeliest chances is so near to p that rounding decides."""
    if top_p is None or top_p in (0, 1):
        return True
    sums, held = [], 0.0
    for chance in sorted(oracle(row, temperature, top_k), reverse=True):
        held += chance
        sums.append(held)
    return all(abs(held - top_p) > 1e-5 for held in sums)


settings_of_a_draw = {
    "temperature": st.sampled_from([0, 1e-3, 0.3, 1, 1.7, 40.0]),
    "top_k": st.none() | st.integers(1, 10),
    "top_p": st.none() | st.sampled_from([0, 0.05, 0.3, 0.5, 0.83, 0.99, 1, 1.0]),
}


@given(row=rows, **settings_of_a_draw)
def test_chances_are_those_of_the_oracle(row, temperature, top_k, top_p):
    """If this fails, some mixture of temperature, top-k and top-p gives other chances than their definitions."""
    assume(far_from_a_border(row, temperature, top_k, top_p))
    got = probabilities(torch.tensor(row), temperature, top_k, top_p)
    assert got.tolist() == pytest.approx(oracle(row, temperature, top_k, top_p), abs=2e-6)


@given(seed=st.integers(0, 2**31), **settings_of_a_draw)
def test_rows_of_any_batch_are_those_of_the_oracle(seed, temperature, top_k, top_p):
    """If this fails, an axis is mixed up: rows of a batch share what they keep, or the result has another shape."""
    logits = 3 * torch.randn(2, 3, 9, generator=generator(seed), dtype=torch.float64)  # (2, 3, V)
    assume(all(far_from_a_border(row, temperature, top_k, top_p) for row in logits.flatten(0, 1).tolist()))
    got = probabilities(logits, temperature, top_k, top_p)
    assert got.shape == logits.shape
    for row, chances in zip(logits.flatten(0, 1).tolist(), got.flatten(0, 1).tolist(), strict=True):
        assert chances == pytest.approx(oracle(row, temperature, top_k, top_p), abs=2e-6)
    assert torch.equal(got[1], probabilities(logits[1], temperature, top_k, top_p))


def no_renormalising(logits, p):
    ranked, ids = logits.softmax(-1).sort(descending=True, stable=True)
    outside = ranked.cumsum(-1) - ranked >= p
    return torch.zeros_like(logits).scatter(-1, ids, ranked.masked_fill(outside, 0))


def without_the_crossing_token(logits, p):
    ranked, ids = logits.softmax(-1).sort(descending=True, stable=True)
    outside = ranked.cumsum(-1) > p
    outside[0] = False
    kept = ranked.masked_fill(outside, 0)
    return torch.zeros_like(logits).scatter(-1, ids, kept / kept.sum())


def least_likely_first(logits, p):
    ranked, ids = logits.softmax(-1).sort(stable=True)
    kept = ranked.masked_fill(ranked.cumsum(-1) - ranked >= p, 0)
    return torch.zeros_like(logits).scatter(-1, ids, kept / kept.sum())


def threshold_on_single_chances(logits, p):
    chances = logits.softmax(-1)
    kept = chances.masked_fill(chances < p * chances.max(), 0)
    return kept / kept.sum()


@pytest.mark.parametrize(
    "wrong", [no_renormalising, without_the_crossing_token, least_likely_first, threshold_on_single_chances]
)
def test_the_oracle_tells_wrong_top_ps_apart(wrong):
    """Negative control: four known mistakes, at a p for which each of them shows."""
    right = oracle(LOGITS.tolist(), 1.0, None, 0.8)
    assert probabilities(LOGITS, top_p=0.8).tolist() == pytest.approx(right, abs=1e-6)
    assert wrong(LOGITS, 0.8).tolist() != pytest.approx(right, abs=1e-2)


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16])
def test_a_p_on_the_border_needs_no_further_token(n):
    """If this fails, "the fewest that hold p" keeps one too many where their chances are exactly p."""
    for kept in range(1, n + 1):  # n equal chances 1/n, which floats hold exactly
        border = kept / n
        chance = float(Fraction(1, kept))
        assert probabilities(torch.zeros(n), top_p=border).tolist() == pytest.approx(
            [chance] * kept + [0.0] * (n - kept)
        )
        above = math.nextafter(border, 2) + 1e-6
        if above < 1:
            assert (probabilities(torch.zeros(n), top_p=above) > 0).sum() == kept + 1
        assert (probabilities(torch.zeros(n), top_p=border - 1e-6) > 0).sum() == kept


def test_of_a_tie_at_the_border_the_lower_ids_are_kept():
    """If this fails, which of several equally likely tokens can be drawn depends on how the machine sorts."""
    row = torch.tensor([1.0, 3.0, 1.0, 3.0, 1.0])
    assert (probabilities(row, top_k=1) > 0).tolist() == [False, True, False, False, False]
    assert (probabilities(row, top_k=3) > 0).tolist() == [True, True, False, True, False]
    assert (probabilities(row, top_p=0.1) > 0).tolist() == [False, True, False, False, False]
    assert (probabilities(row, top_p=0.85) > 0).tolist() == [True, True, False, True, False]


def test_a_p_of_zero_keeps_the_likeliest_and_a_p_of_one_keeps_all():
    """If this fails, p = 0 leaves nothing to draw, or p = 1 loses the rarest tokens to rounding."""
    logits = 5 * torch.randn(200, 65, generator=generator())
    assert torch.equal((probabilities(logits, top_p=0) > 0).sum(-1), torch.ones(200, dtype=torch.long))
    assert torch.equal(probabilities(logits, top_p=0).argmax(-1), logits.argmax(-1))
    for p in (1, 1.0):
        assert torch.equal(probabilities(logits, top_p=p), probabilities(logits))
    rare = torch.tensor([0.0, -18.0, -20.0])  # the likeliest rounds to 1 in float32
    assert (probabilities(rare, top_p=1.0) > 0).all()
    assert rare.softmax(-1).cumsum(-1)[0] == 1  # negative control: sums reach 1 before the row is over


@pytest.mark.parametrize("k", [6, 7, 10**9])
def test_a_k_of_v_or_more_changes_nothing(k):
    """If this fails, a k that is too large for a small vocabulary is an error, or drops a token."""
    assert torch.equal(probabilities(LOGITS, top_k=k), probabilities(LOGITS))
    assert not torch.equal(probabilities(LOGITS, top_k=5), probabilities(LOGITS))


@pytest.mark.parametrize("temperature", [0, 1e-3, 1.0, 30.0])
def test_what_is_excluded_stays_excluded(temperature):
    """If this fails, a logit of -inf gets a chance, or makes NaN of the others."""
    got = probabilities(torch.tensor([[-math.inf, 1.0, -math.inf, 1.5]]), temperature, 4, 1.0)
    assert got[0, [0, 2]].tolist() == [0, 0]
    assert got.sum() == pytest.approx(1)


@pytest.mark.parametrize("temperature", [0, 0.0, 5e-324, 1e-46, 1e-38, 1e-8])
def test_temperatures_of_zero_and_near_it_put_all_on_the_highest(temperature):
    """If this fails, a division by (nearly) zero gives NaN, or the highest loses its chance."""
    for row in ([1.0, 3.0, 2.0], [-1e30, 1e30, 0.0], [3e38, 3.1e38, -3e38]):
        assert probabilities(torch.tensor(row), temperature).tolist() == [row.index(max(row)) == i for i in range(3)]
    assert not (torch.tensor([1.0, 3.0, 2.0]) / 1e-46).softmax(-1).isfinite().all()  # negative control


def test_a_tie_is_shared_at_every_temperature_above_zero():
    """If this fails, the limit of low temperatures is not what page 10 proves; at 0 itself the first is taken."""
    row = torch.tensor([2.0, 5.0, 5.0, 4.0])
    assert probabilities(row, 1e-30).tolist() == [0, 0.5, 0.5, 0]
    assert probabilities(row, 0).tolist() == [0, 1, 0, 0]


@given(seed=st.integers(0, 2**31), low=st.floats(0.05, 5), factor=st.floats(1.01, 20))
def test_a_higher_temperature_is_more_even(seed, low, factor):
    """If this fails, the temperature is upside down: entropy must rise with it, and ratios must shrink."""
    logits = torch.randn(8, generator=generator(seed))
    cold, warm = (probabilities(logits, t).double() for t in (low, low * factor))
    entropy = lambda p: -(p * p.clamp(min=1e-30).log()).sum()  # noqa: E731
    assert entropy(warm) >= entropy(cold) - 1e-5
    assert warm.max() <= cold.max() + 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_chances_are_computed_in_single_precision_at_least(dtype):
    """If this fails, sums over a large vocabulary are lost in the rounding of half precision."""
    got = probabilities(torch.zeros(3, 5000, dtype=dtype), top_p=0.5)
    assert got.dtype == torch.float32
    assert got.sum(-1).tolist() == pytest.approx([1, 1, 1], abs=1e-5)
    assert (got > 0).sum(-1).tolist() == pytest.approx([2500] * 3, abs=2)


@pytest.mark.parametrize(
    "options", [{"top_p": -0.1}, {"top_p": 1.1}, {"top_p": math.nan}, {"top_p": "1"}, {"top_p": True}]
)
def test_a_p_outside_of_zero_to_one_is_refused(options):
    """If this fails, 90 for 90 percent keeps everything, silently."""
    for function in (probabilities, next_token):
        with pytest.raises(ValueError, match=r"top_p must lie between 0 and 1.* got") as error:
            function(LOGITS[None], **options)
        one_line(error)


@pytest.mark.parametrize("row", [[0.0, math.nan], [0.0, math.inf], [-math.inf, -math.inf]])
@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"top_k": 1}, {"top_p": 0.5}])
def test_chances_of_broken_logits_are_refused(row, options):
    """If this fails, a model that has diverged gets chances all the same."""
    with pytest.raises(ValueError, match="logits hold NaN or inf") as error:
        probabilities(torch.tensor([[[0.0, 0.0], row]]), **options)
    one_line(error)


@pytest.mark.parametrize("logits", [torch.tensor(1.0), torch.zeros(2, 0), torch.zeros(3, dtype=torch.long)])
def test_chances_need_a_row_of_numbers(logits):
    """If this fails, an empty vocabulary or a row of ids gives an error about something else."""
    with pytest.raises(ValueError, match=r"shape \(\.\.\., V\)") as error:
        probabilities(logits)
    one_line(error)


@pytest.mark.parametrize("top_p", [0.5, 0.9])
def test_frequencies_are_those_of_the_chances(top_p):
    """If this fails, what is drawn is not what `probabilities` says."""
    expected = oracle(LOGITS.tolist(), 1.4, 5, top_p)
    drawn = next_token(LOGITS.expand(DRAWS, -1), 1.4, 5, generator(), top_p)
    assert chi_square(drawn, expected) < LIMIT
    assert chi_square(next_token(LOGITS.expand(DRAWS, -1), 1.0, 5, generator(), top_p), expected) > LIMIT  # a control


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
        ("To be", 5, "got a str: encode the text first"),
        ([[1]], 5, "got a list"),
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


@pytest.mark.parametrize("temperature", [1e38, 1e39, 10**400])
def test_any_finite_temperature_gives_chances(temperature):
    """If this fails, a temperature beyond the range of float32 turns a hidden token, or all of them, into NaN."""
    found = probabilities(torch.tensor([[0.0, -math.inf, 1.0]]), temperature=temperature)
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.0, 0.5]]))


def test_greedy_and_chances_agree_where_logits_differ_by_less_than_float32_can_say():
    """If this fails, temperature 0 draws a token whose chance is 0."""
    logits = torch.tensor([[1.0, 1.0 + 1e-12]], dtype=torch.float64)
    assert probabilities(logits, temperature=0)[0, next_token(logits, temperature=0).item()] == 1
