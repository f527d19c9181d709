"""Verify: each check must catch the broken models it is for, and must let right ones pass, however unusual.

The models are those of sabotage.py, which are written apart from gptbook.model.
"""

import copy
import json
import math
import random
import re
from dataclasses import replace

import numpy as np
import pytest
import sabotage
import torch
import torch.nn as nn
from hypothesis import given, settings
from hypothesis import strategies as st
from sabotage import CONFIG, T, Toy, V, WithLoss

from gptbook import verify
from gptbook.model import GPT, GPTConfig
from gptbook.modern import ModernConfig, ModernGPT
from gptbook.recipes import PRESETS
from gptbook.verify.subject import untouched

ORDER = [
    "finite", "deterministic", "dropout", "shapes", "loss", "causal", "batch-independent", "position-sensitive",
    "reach", "embeddings", "norms", "residual", "activation", "attention", "layers", "parameters", "initial-loss",
    "gradients", "memorise",
]  # fmt: skip


def build(make):
    torch.manual_seed(0)
    return make() if callable(make) else make


def report(make, expect=None):
    return verify.check_model(build(make), V, T, expect)


# ---- what must be caught


@pytest.mark.parametrize(
    ("fault", "check", "words"),
    [
        ("own token hidden", verify.finite, "position 0"),
        ("divides by zero", verify.finite, "outside of every named part"),
        ("dropout always on", verify.deterministic, "dropout"),
        ("keeps state", verify.deterministic, "from one call to the next"),
        ("dropout never applied", verify.dropout, "never applied"),
        ("transposed", verify.shapes, "exchanged|transpose"),
        ("narrow head", verify.shapes, "vocab_size"),
        ("only a full context", verify.shapes, "cut to the length"),
        ("probabilities", verify.loss, "softmax"),
        ("no mask", verify.causal, "no mask"),
        ("mask one ahead", verify.causal, "off by one"),
        ("mask inverted", verify.causal, "upside down"),
        ("own token hidden, finite", verify.causal, "position 0 is hidden from itself"),
        ("scores multiplied", verify.causal, "misses the scores"),
        ("mask added", verify.causal, "misses the scores"),
        ("mask after softmax", verify.causal, "after the softmax"),
        ("softmax over queries", verify.causal, "softmax over queries"),
        ("heads merged askew", verify.causal, "heads merged"),
        ("norm over positions", verify.causal, "position 0 sees token"),
        ("weak fill", verify.causal, "once scores are large"),
        ("no mask in training", verify.causal, "in training mode only"),
        ("norm over the batch", verify.batch_independent, "rows read each other"),
        ("softmax over the batch", verify.batch_independent, "rows read each other"),
        ("positions by row", verify.batch_independent, "which row it is matters"),
        ("positions not added", verify.position_sensitive, "never added"),
        ("no position table", verify.position_sensitive, "never added"),
        ("positions all 0", verify.position_sensitive, "all the same"),
        ("positions in pairs", verify.position_sensitive, "0 and 1 get the same"),
        ("rotary over heads", verify.position_sensitive, "never added"),
        ("mask inverted", verify.reach, "sees only itself"),
        ("blocks in a list", verify.parameter_count, "`blocks` is not registered"),
        ("tied, drawn wide", verify.initial_loss, "tokens.weight and head.weight are one matrix"),
        ("gains drawn around 0", verify.initial_loss, "too high"),
        ("positions not added", verify.gradients, "never used.*positions.weight"),
        ("unused parameter", verify.gradients, "spare"),
        ("stream detached", verify.gradients, "tokens.weight"),
        ("no gradient", verify.gradients, "cut off"),
        ("probabilities", verify.memorise, "softmax"),
        ("gains drawn around 0", verify.memorise, "too large"),
    ],
)
def test_a_broken_model_is_caught(fault, check, words):
    """If this fails, a reader with this mistake is told that all is well, or is sent the wrong way."""
    result = check(build(lambda: Toy(fault)), V, T)
    assert result.status == "failed", str(result)
    assert re.search(words, result.cause), result.cause
    assert result.measured
    assert result.expected


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("targets not shifted", "tokens of the input"),
        ("shifted twice", "shifted already"),
        ("viewed", "reshaped"),
        ("softmax in front", "softmax stands in front"),
        ("summed", "sum over tokens"),
        ("targets leak", "targets reach the logits"),
    ],
)
def test_a_wrong_loss_is_caught(fault, words):
    """If this fails, a model may train towards other targets than the caller's, its loss falling all the while."""
    result = verify.loss(build(lambda: WithLoss(fault)), V, T)
    assert result.status == "failed", str(result)
    assert words in result.cause


@pytest.mark.parametrize("fault", ["targets not shifted", "shifted twice", "viewed", "softmax in front"])
def test_memorising_is_judged_by_the_callers_targets(fault):
    """If this fails, a loss that falls is enough to pass, whatever it measures."""
    result = verify.memorise(build(lambda: WithLoss(fault)), V, T)
    assert result.status == "failed", str(result)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("no final norm", "final LayerNorm is missing"),
        ("no output projection", "output projection of attention is missing"),
        ("no position table", "no learned position embedding"),
        ("same block twice", "the same block object"),
        ("unused parameter", "too many"),
        ("tied, drawn wide", "tied"),
    ],
)
def test_a_wrong_count_is_explained(fault, words):
    """If this fails, a missing or doubled part is counted, and the reader is not told which."""
    model = build(lambda: Toy(fault))
    result = verify.parameter_count(model, V, T, CONFIG)
    assert result.status == "failed"
    assert words in result.cause, result.cause
    assert result.measured == f"{sum(p.numel() for p in model.parameters()):,}"


def test_an_untied_copy_is_seen_where_a_tied_head_is_expected():
    tied = GPTConfig(vocab_size=V, block_size=T, n_layer=sabotage.L, n_head=4, n_embd=sabotage.C, tied=True)
    assert verify.parameter_count(build(lambda: Toy(odd="tied")), V, T, tied).status == "passed"
    result = verify.parameter_count(build(lambda: Toy("tied by copying")), V, T, tied)
    assert result.status == "failed"
    assert "a copy" in result.cause


def test_shared_storage_counts_once():
    """Two parameters that are one piece of memory are one matrix: counting them twice would be a false alarm."""
    model = build(Toy)
    model.head.weight.data = model.tokens.weight.data
    tied = GPTConfig(vocab_size=V, block_size=T, n_layer=sabotage.L, n_head=4, n_embd=sabotage.C, tied=True)
    assert verify.parameter_count(model, V, T, tied).status == "passed"


def test_forward_must_work_without_targets():
    result = verify.shapes(build(lambda: sabotage.NeedsTargets(strict=True)), V, T)
    assert result.status == "failed"
    assert "without targets" in result.cause


def test_torch_layers_without_their_mask_are_caught():
    assert verify.causal(build(lambda: sabotage.FromLayers(masked=False)), V, T).status == "failed"


def test_a_bigram_is_no_gpt():
    """A model that sees one token only is causal, and is caught by what it cannot do."""
    found = report(sabotage.Bigram)
    assert found["causal"].status == "passed"
    assert {"position-sensitive", "reach"} <= set(found.failed)


def test_a_frozen_table_of_zeros_is_no_position():
    """If this fails, random weights have been put where the reader's model cannot learn any."""
    assert report(sabotage.frozen_without_positions)["position-sensitive"].status == "failed"


def test_a_table_that_is_not_learned_yet_is_a_position():
    assert report(lambda: Toy(odd="zero positions"))["position-sensitive"].status == "passed"


# ---- what must not be caught


def test_the_right_model_passes_everything():
    found = report(WithLoss, CONFIG)
    assert [result.name for result in found.results] == ORDER
    assert [result.status for result in found.results] == ["passed"] * len(ORDER), str(found)
    assert found.passed
    assert found.failed == []


def test_the_books_own_model_passes_everything():
    """Fails if the model of page 8 or the checks changed so that they no longer agree."""
    torch.manual_seed(1337)
    found = verify.check_model(GPT(GPTConfig()), expect=GPTConfig())
    assert found.passed, str(found)
    assert found.not_checked == ["loss"]  # the book computes it outside
    assert found["parameters"].measured == found["parameters"].expected == "816,640"


@pytest.mark.parametrize(
    ("odd", "differs"),
    [
        ("key bias", []),
        ("zero projections", []),
        ("zero projections and head", []),
        ("post-norm", ["residual"]),
        ("rms norm", ["norms"]),
        ("squared relu", ["activation"]),
        ("sinusoidal", ["embeddings"]),
        ("zero positions", []),
        ("tied", []),
        ("dropout", []),
        ("mask after softmax, divided again", []),
        ("rotary", ["position-sensitive", "attention"]),
        ("linear bias", ["position-sensitive"]),
        ("window", ["reach"]),
        ("padded head", ["shapes"]),
    ],
)
def test_a_right_but_unusual_model_does_not_fail(odd, differs):
    """If this fails, `verify` cries wolf at a design that people use on purpose."""
    found = report(lambda: Toy(odd=odd))
    assert found.failed == [], str(found)
    assert [r.name for r in found.results if r.status == "differs"] == differs
    unknown = ["residual", "attention"] if odd in ("linear bias", "window") else []
    assert found.not_checked == ["loss", *unknown, "parameters"]


@pytest.mark.parametrize("odd", ["last position only", "flattened", "loss first", "object", "dictionary"])
def test_every_way_of_returning_logits_and_loss_is_understood(odd):
    found = report(lambda: WithLoss(odd=odd), CONFIG)
    assert [result.status for result in found.results if result.name != "parameters"] == ["passed"] * 18, str(found)


def test_targets_without_a_default_value_are_understood():
    assert report(sabotage.NeedsTargets).failed == []


def test_a_model_that_shifts_its_labels_itself_differs():
    found = report(sabotage.ShiftsItself)
    assert found.failed == [], str(found)
    assert found["loss"].status == "differs"


@pytest.mark.parametrize("p", [0.0, 0.1])
def test_torch_layers_with_their_mask_pass(p):
    """Encoder layers with a causal mask are a GPT; in evaluation mode PyTorch takes another way through them."""
    found = report(lambda: sabotage.FromLayers(dropout=p))
    assert found.failed == [], str(found)
    assert found["causal"].status == "passed"


def test_rounding_is_a_remark_and_not_a_leak():
    result = verify.causal(build(lambda: Toy(odd="mask after softmax, divided again")), V, T)
    assert result.status == "passed"
    assert "rounding, not a leak" in result.cause


def test_a_key_bias_without_gradient_is_explained():
    """A bias whose gradient is exactly zero passes only beside a matrix that learns."""

    class NoEffect(Toy):
        def __init__(self):
            super().__init__()
            self.offset = nn.Linear(1, 1)

        def forward(self, idx):
            return super().forward(idx) + 0 * self.offset.bias + self.offset.weight.sum() * torch.arange(V)

    assert "key bias" in verify.gradients(build(NoEffect), V, T).cause

    class Dead(Toy):
        def __init__(self):
            super().__init__()
            self.dead = nn.Parameter(torch.ones(3, 3))

        def forward(self, idx):
            return super().forward(idx) + 0 * self.dead.sum()

    result = verify.gradients(build(Dead), V, T)
    assert result.status == "failed"
    assert "without effect" in result.cause


def test_a_trained_model_is_not_asked_for_its_initial_loss():
    """A trained model is sure of itself on random tokens; that says nothing about its initial values."""
    found = report(sabotage.trained)
    assert found.failed == [], str(found)
    assert found["initial-loss"].status == "not checked"


def test_a_frozen_model_is_not_trained():
    model = build(Toy).requires_grad_(False)
    found = verify.check_model(model, V, T)
    assert found.failed == []
    assert {"gradients", "memorise"} <= set(found.not_checked)
    assert found["causal"].status == "passed"
    assert verify.causal(build(lambda: Toy("mask after softmax")).requires_grad_(False), V, T).status == "failed"


def test_half_precision_and_double_pass():
    for dtype in (torch.float64, torch.bfloat16):
        model = build(lambda: GPT(CONFIG)).to(dtype)
        for check in (verify.finite, verify.causal, verify.batch_independent, verify.position_sensitive, verify.reach):
            result = check(model, V, T)
            assert result.status == "passed", f"{dtype}: {result}"


@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_tiny_contexts(block_size):
    found = verify.check_model(build(lambda: GPT(GPTConfig(V, block_size, 1, 2, 8))), V, block_size)
    assert not set(found.failed) - {"memorise"}, str(found)  # one position cannot tell two targets of one token apart
    assert ("causal" in found.not_checked) == (block_size == 1)


def test_long_contexts_are_looked_at_in_full():
    """If this fails, a mask that is made for shorter rows than the context goes unnoticed."""
    config = GPTConfig(V, 96, 1, 2, 8)
    model = build(lambda: GPT(config))
    assert verify.causal(model, V, 96).status == "passed"
    model.h[0].attn.past[64:, 64:] = True
    result = verify.causal(model, V, 96)
    assert result.status == "failed"
    assert "full context" in result.cause


# ---- the order, and what is not checked


def test_nan_stops_what_it_would_make_lie():
    found = report(lambda: Toy("own token hidden"))
    assert found.failed == ["finite"]
    assert set(ORDER) - {"finite", "shapes", "parameters"} == set(found.not_checked) - {"parameters"}
    assert "would mislead" in found["causal"].cause


def test_live_dropout_is_not_reported_as_a_leak():
    found = report(lambda: Toy("dropout always on"))
    assert found.failed == ["deterministic"]
    assert {"causal", "batch-independent", "position-sensitive", "reach"} <= set(found.not_checked)


def test_what_merely_differs_stops_nothing():
    found = report(lambda: Toy(odd="padded head"), CONFIG)
    assert "shapes" in found.failed  # expect= makes it a failure
    assert found["causal"].status == "passed"


def test_expect_turns_what_differs_into_a_failure():
    assert report(lambda: Toy(odd="rotary"))["position-sensitive"].status == "differs"
    assert report(lambda: Toy(odd="rotary"), CONFIG)["position-sensitive"].status == "failed"


@pytest.mark.parametrize("make", [sabotage.CannotCopy, sabotage.CopiesToItself, sabotage.Hidden])
def test_what_cannot_be_copied_is_not_checked(make):
    """If this fails, a check either worked on the reader's own model, or passed without having looked."""
    found = report(make)
    assert found.failed == [], str(found)
    assert {"shapes", "causal", "gradients", "memorise"} <= set(found.not_checked)
    assert "cannot be copied" in found["shapes"].cause


def test_a_model_that_always_raises_fails_in_words():
    class Broken(nn.Module):
        def forward(self, idx):
            raise KeyError("wte")

    found = verify.check_model(Broken(), V, T)
    assert found.failed == ["shapes"]
    assert "KeyError: 'wte'" in found["shapes"].measured
    assert set(found.not_checked) == set(ORDER) - {"shapes"}


def test_dropout_is_compared_with_what_is_expected():
    config = GPTConfig(V, T, 2, 4, 32, dropout=0.1)
    assert verify.dropout(build(lambda: GPT(config)), V, T, config).status == "passed"
    assert verify.dropout(build(Toy), V, T, config).status == "failed"
    assert verify.dropout(build(lambda: GPT(config)), V, T, CONFIG).status == "failed"


@pytest.mark.parametrize("name", ["dropout", "channel_dropout", "ngram_dropout"])
def test_each_kind_of_dropout_is_compared(name):
    """If this fails, a model that leaves out n-grams or channels is called random, or one that does not is passed."""
    shape = {"vocab_size": V, "block_size": T, "n_layer": 2, "n_head": 4, "n_embd": 32, "ngrams": 2, "ngram_rows": 97}
    without, config = ModernConfig(**shape), ModernConfig(**shape, **{name: 0.2})
    right, wrong = build(lambda: ModernGPT(config)), build(lambda: ModernGPT(without))
    assert verify.dropout(right, V, T, config).status == verify.dropout(wrong, V, T, without).status == "passed"
    assert verify.dropout(right, V, T, without).status == verify.dropout(wrong, V, T, config).status == "failed"
    for rate in (0.001, 0.999):  # and little to draw: four tokens, of few channels
        tiny = ModernConfig(vocab_size=V, block_size=4, n_layer=1, n_head=1, n_embd=4, ngrams=2, **{name: rate})
        for config_ in (tiny, None):
            assert verify.dropout(build(lambda tiny=tiny: ModernGPT(tiny)), V, 4, config_).status == "passed"
    if name == "ngram_dropout":  # without n-grams there is nothing to leave out
        config = replace(config, ngrams=1)
        assert verify.dropout(build(lambda: ModernGPT(config)), V, T, config).status == "passed"


@pytest.mark.parametrize(("side", "std"), [("passed", 0.02), ("differs", 0.2), ("failed", 2.0)])
def test_the_initial_loss_is_judged_by_its_distance_from_ln_v(side, std):
    model = build(Toy)
    nn.init.normal_(model.head.weight, std=std)
    result = verify.initial_loss(model, V, T)
    assert result.status == side, str(result)
    assert f"ln {V} = {math.log(V):.2f}" in result.expected


def test_a_loss_below_a_blind_guess_is_suspicious():
    """Nobody can know targets that are drawn apart from the inputs: a model that does has been told."""
    result = verify.initial_loss(build(lambda: WithLoss("targets leak")), V, T)
    assert result.status == "failed", str(result)
    assert "too low" in result.cause


# ---- nothing changes


def snapshot(model):
    return {
        "tensors": {k: v.clone() for k, v in [*model.named_parameters(), *model.named_buffers()]},
        "ids": [id(p) for p in model.parameters()],
        "flags": [p.requires_grad for p in model.parameters()],
        "grads": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "modes": [m.training for m in model.modules()],
        "hooks": [(dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in model.modules()],
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].copy(),
        "torch": torch.get_rng_state().clone(),
    }


def assert_same(before, after):
    for key in ("ids", "flags", "modes", "hooks", "python"):
        assert before[key] == after[key], key
    for name, tensor in before["tensors"].items():
        assert torch.equal(tensor, after["tensors"][name]), name
    for a, b in zip(before["grads"], after["grads"], strict=True):
        assert (a is None and b is None) or torch.equal(a, b)
    assert np.array_equal(before["numpy"], after["numpy"])
    assert torch.equal(before["torch"], after["torch"])


class Raises(Toy):
    """Works a few times, draws random numbers, then raises, with something that is not an Exception."""

    calls = 0

    def forward(self, idx):
        Raises.calls += 1
        random.random(), np.random.rand(), torch.rand(1)
        if Raises.calls == 5:
            raise KeyboardInterrupt
        return super().forward(idx)


DIFFICULT = [lambda: Toy(odd="dropout"), WithLoss, sabotage.Hidden, sabotage.CopiesToItself, Raises]


@pytest.mark.parametrize("make", DIFFICULT)
def test_the_readers_model_and_random_state_stay_as_they_were(make, capsys):
    """If this fails, checking a model in the middle of training changes the training."""
    model = build(make).train()
    next(model.children()).eval()  # a mode of its own
    parameters = list(model.parameters())
    parameters[0].grad = torch.ones_like(parameters[0])
    parameters[1].requires_grad_(False)
    seen = []
    handle = model.register_forward_hook(lambda *_: seen.append(1))
    before = snapshot(model)
    Raises.calls = 0
    if make is Raises:
        with pytest.raises(KeyboardInterrupt):
            verify.check_model(model, V, T)
    else:
        verify.check_model(model, V, T, CONFIG if make is not sabotage.Hidden else None)
    assert_same(before, snapshot(model))
    handle.remove()
    assert capsys.readouterr().out == ""


def meddle(model):
    with untouched(model):
        model.train(False)
        model.norm.weight.data += 1
        model.head.weight.requires_grad_(False)
        model.tokens.weight.grad = torch.ones_like(model.tokens.weight)
        torch.rand(3), np.random.rand(3), random.random()
        raise ZeroDivisionError


def test_untouched_puts_back_even_what_is_changed_directly():
    """The last line of defence: without it, the test above would hold for copies alone."""
    model = build(Toy)
    before = snapshot(model)
    with pytest.raises(ZeroDivisionError):
        meddle(model)
    assert_same(before, snapshot(model))


def test_the_answer_does_not_depend_on_the_surroundings():
    """Checking inside no_grad or inference mode must not turn gradients off for the checks that need them."""
    model = build(Toy)
    torch.manual_seed(5)
    with torch.no_grad():
        first = verify.check_model(model, V, T)
    torch.manual_seed(6)
    with torch.inference_mode():
        second = verify.check_model(model, V, T)
    assert str(first) == str(second) == str(verify.check_model(model, V, T))


# ---- parameters


def test_the_parts_of_the_books_model():
    table = verify.parameter_table(PRESETS["step-5"])
    assert [row.count for row in table] == [16_512, 262_656, 526_848, 2_048, 8_576]
    assert table.total == verify.expected_parameters(PRESETS["step-5"]) == 816_640
    assert [f"{row.share:.1%}" for row in table] == ["2.0%", "32.2%", "64.5%", "0.3%", "1.1%"]
    assert math.isclose(sum(row.share for row in table), 1)


def test_the_other_models_of_the_book():
    assert verify.expected_parameters(PRESETS["lets-build"]) == 159_937
    assert verify.expected_parameters(PRESETS["gpt2"]) == 124_439_808
    hood = PRESETS["under-the-hood"]
    attention = verify.parameter_table(hood).rows[1].count
    assert attention == hood.n_layer * (4 * hood.n_embd**2 + 4 * hood.n_embd)


configurations = st.builds(
    lambda heads, width, **rest: GPTConfig(n_head=heads, n_embd=heads * width, **rest),
    heads=st.integers(1, 3), width=st.integers(1, 5), vocab_size=st.integers(1, 40), block_size=st.integers(1, 12),
    n_layer=st.integers(1, 3), qkv_bias=st.booleans(), head_bias=st.booleans(), tied=st.booleans(),
    init=st.sampled_from(["torch", "gpt2"]),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(config=configurations)
def test_the_formula_counts_what_the_model_has(config):
    """If this fails, formula and model disagree for some configuration, so one of them is wrong."""
    model = GPT(config)
    assert verify.expected_parameters(config) == sum(p.numel() for p in model.parameters())
    rows = verify.parameter_table(config).rows
    assert rows[0].count == model.wte.weight.numel() + model.wpe.weight.numel()
    assert rows[1].count == sum(p.numel() for block in model.h for p in block.attn.parameters())
    assert rows[2].count == sum(p.numel() for block in model.h for p in block.mlp.parameters())
    for row in rows:
        symbols = {"V": config.vocab_size, "T": config.block_size, "L": config.n_layer, "C": config.n_embd}
        assert evaluated(row.formula, symbols) == row.count, row.formula


def evaluated(formula, symbols):
    """A formula such as "L (4C² + C)" worked out: an oracle that reads what the reader reads."""
    python = formula.replace("²", "**2").replace("·", "*").replace(" (", "*(")
    out = ""
    for sign in python:
        if sign in symbols and out and (out[-1] in symbols or (out[-1].isdigit() and not out.endswith("**2"))):
            out += "*"
        out += sign
    return eval(out, {}, symbols)


def test_the_table_reads_well():
    table = verify.parameter_table(GPTConfig())
    assert "attention                   L (4C² + C)      262,656   32.2%" in str(table).splitlines()
    assert table._repr_html_().count("<tr") == 7
    assert "style=" not in table._repr_html_()


# ---- the report


def test_a_report_prints_aligned_lines():
    text = str(report(lambda: Toy("no mask"), CONFIG))
    lines = text.splitlines()
    assert lines[0].startswith("✓ passed       finite ")
    where = {line.index("expected ") for line in lines if line.startswith(("✓", "✗")) and "expected " in line}
    assert len(where) == 1
    assert max(map(len, lines)) <= 140
    assert lines[-1].startswith("something failed: ")


def test_a_report_is_a_table_with_escaped_text_and_no_colours():
    found = verify.Report((verify.Result("<b>", "failed", "a < b", "&", "<script>"),))
    html = found._repr_html_()
    assert "<script>" not in html
    assert "<b>" not in html
    assert "&lt;script&gt;" in html
    assert "style=" not in html
    assert "color" not in html
    assert 'class="verify-failed"' in html


def test_a_report_as_json():
    found = report(lambda: Toy("no mask"))
    content = json.loads(found.to_json())
    assert content["passed"] is False
    assert content["failed"] == ["causal"]
    assert [result["name"] for result in content["results"]] == ORDER


def test_not_checked_and_differs_are_not_passed():
    """If this fails, a check that could not look counts as a yes."""
    results = tuple(verify.Result(status, status) for status in ("passed", "differs", "not checked"))
    found = verify.Report(results)
    assert found.passed  # nothing failed
    assert [result.passed for result in results] == [True, False, False]
    assert found.not_checked == ["not checked"]
    assert found.summary == "nothing failed: 1 passed, 1 differs, 1 not checked"
    with pytest.raises(ValueError, match="status"):
        verify.Result("x", "skipped")
    with pytest.raises(KeyError, match="no check 'y'"):
        found["y"]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"model": GPT}, TypeError, "the class itself"),
        ({"model": lambda idx: idx}, TypeError, "torch.nn.Module"),
        ({"vocab_size": 1}, ValueError, "vocab_size must be at least 2"),
        ({"block_size": 0}, ValueError, "block_size must be at least 1"),
        ({"vocab_size": 65.0}, TypeError, "whole number"),
        ({"vocab_size": 30, "expect": CONFIG}, ValueError, "expect says 31"),
        ({"expect": {"vocab_size": 31}}, TypeError, "GPTConfig"),
    ],
)
def test_arguments_that_make_no_sense_get_one_line(arguments, error, words):
    with pytest.raises(error, match=words) as caught:
        verify.check_model(**{"model": Toy(), **arguments})
    assert "\n" not in str(caught.value)


def test_expect_gives_the_sizes():
    assert verify.shapes(build(Toy), expect=CONFIG).status == "passed"


# ---- measurements


def test_leak_matrix_says_who_moves_whom():
    idx = torch.randint(V, (1, T), generator=torch.Generator().manual_seed(0))
    right = verify.leak_matrix(build(Toy), idx)
    assert right.shape == (T, T)
    assert (right.triu(1) == 0).all()
    assert (right.tril() > 0)[torch.ones(T, T, dtype=torch.bool).tril()].all()
    ahead = verify.leak_matrix(build(lambda: Toy("mask one ahead")), idx)
    assert (ahead.diagonal(1) > 0).all()
    assert (ahead.triu(sabotage.L + 1) == 0).all()
    bigram = verify.leak_matrix(build(sabotage.Bigram), idx)
    assert torch.equal(bigram > 0, torch.eye(T, dtype=torch.bool))


def test_leak_matrix_is_what_one_change_does():
    model, idx = build(Toy).eval(), torch.randint(V, (2, T), generator=torch.Generator().manual_seed(0))
    changed = idx.clone()
    changed[:, 3] = (changed[:, 3] + 1) % V
    with torch.no_grad():
        moved = (model(changed) - model(idx)).abs().amax(dim=(0, 2))
    assert torch.equal(verify.leak_matrix(model, idx, V)[:, 3], moved)


def test_leak_matrix_leaves_the_model_alone_and_refuses_nonsense():
    model = build(lambda: Toy(odd="dropout")).train()
    before = snapshot(model)
    idx = torch.full((1, 4), V - 1)
    assert (verify.leak_matrix(model, idx).triu(1) == 0).all()
    assert_same(before, snapshot(model))
    with pytest.raises(ValueError, match="shape"):
        verify.leak_matrix(model, torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="exchanged"):
        verify.leak_matrix(Toy("transposed"), torch.arange(6).view(2, 3))


def test_shape_table_shows_every_stage():
    torch.manual_seed(0)
    model = GPT(GPTConfig(V, T, 2, 4, 32, dropout=0.5)).train()
    idx = torch.randint(V, (3, 7))
    before = snapshot(model)
    stages = verify.shape_table(model, idx)
    assert_same(before, snapshot(model))  # hooks and mode among the rest
    names = ["embeddings", "attention 1", "MLP 1", "attention 2", "MLP 2", "final norm", "logits"]
    assert [stage.name for stage in stages] == names
    assert {stage.shape for stage in stages[:-1]} == {(3, 7, 32)}
    assert stages[-1].shape == (3, 7, V)
    model.eval()
    with torch.no_grad():  # the same path by hand
        x = model.wte(idx) + model.wpe.weight[:7]
        by_hand = [x]
        for block in model.h:
            x = x + block.attn(block.ln_1(x))
            by_hand.append(x)
            x = x + block.mlp(block.ln_2(x))
            by_hand.append(x)
        by_hand += [model.ln_f(x), model.lm_head(model.ln_f(x))]
    for stage, tensor in zip(stages, by_hand, strict=True):
        assert math.isclose(stage.rms, tensor.pow(2).mean().sqrt().item(), rel_tol=1e-5)


def test_shape_table_refuses_other_models_and_cleans_up_after_an_error():
    with pytest.raises(TypeError, match="Toy"):
        verify.shape_table(Toy(), torch.zeros(1, 2, dtype=torch.long))
    model = GPT(CONFIG)
    before = snapshot(model)
    with pytest.raises(ValueError, match="tokens a row"):
        verify.shape_table(model, torch.zeros(1, T + 1, dtype=torch.long))
    assert_same(before, snapshot(model))


def test_a_copy_of_a_model_is_checked_like_the_model():
    """A deep copy with its mask filled in place must be seen as leaking: buffers are kept as they are."""
    model = build(lambda: GPT(CONFIG))
    leaking = copy.deepcopy(model)
    for block in leaking.h:
        block.attn.past.fill_(True)
    assert verify.causal(model, V, T).status == "passed"
    assert verify.causal(leaking, V, T).status == "failed"


@pytest.mark.parametrize(
    ("model", "cure"),
    [
        (nn.Sequential(nn.Embedding(V, 8), nn.LazyLinear(V)), "call the model once"),
        (nn.Embedding(V, V, device="meta"), "on the CPU"),
    ],
    ids=["lazy", "meta"],
)
def test_a_model_without_numbers_is_refused_in_a_line(model, cure):
    """If this fails, the reader gets PyTorch's own words from deep inside a check."""
    with pytest.raises(ValueError, match=cure):
        verify.check_model(model, V, T)
