"""The writer against the model's own forward pass and `kv_cache.generate`: every kind of model, and broken steps."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn as nn
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kv_cache import ALL, CONFIG, MODERN, any_weights, rows

from gptbook import kv_cache, writer
from gptbook.writer import Writer, rounded

NEWER = replace(MODERN, qk_norm=True, embedding_norm=True, gain=False, activation="relu2", tied=False)
KINDS = ALL | {"newer": NEWER, "width without four parts": replace(CONFIG, n_head=3, n_embd=9)}
NARROW = torch.float32  # what a writer computes in


@pytest.fixture
def uncompiled(monkeypatch):
    """The same step, run as it stands: then its arithmetic is tested where nothing can be compiled, and quickly."""
    monkeypatch.setattr(writer, "_compiled", lambda function, inputs: (function, ""))


def off(made, model, idx, prompt=2):
    """How far any logit of a text (1, T), read token by token after a prompt, is from the model's own pass over it."""
    with torch.inference_mode():
        found = [made.read(idx[:, :prompt])]
        found += [made.step(idx[:, t], t) for t in range(prompt, idx.size(1))]
        return (torch.stack(found) - model(idx)[0, prompt - 1 :]).abs().max().item()


def written(generate, idx, tokens=20, **options):
    return generate(idx, tokens, generator=torch.Generator().manual_seed(4), **options)


@pytest.mark.parametrize("precision", writer.PRECISIONS)
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_a_step_is_the_models_own_forward(config, precision, uncompiled):
    """If this fails, some kind of model gets other logits from the writer than from its own forward pass."""
    model = any_weights(config, dtype=NARROW)
    made = Writer(model, precision)
    own = model if precision == "float32" else rounded(model)
    assert off(made, own, rows(1, 8)) < 1e-4
    if precision == "int8":
        assert off(made, model, rows(1, 8)) > 1e-4  # the control: the weights were really rounded


@pytest.mark.parametrize("precision", writer.PRECISIONS)
@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"temperature": 0.7, "top_k": 5}, {"top_p": 0.8}], ids=str)
@pytest.mark.parametrize("config", [CONFIG, MODERN, ALL["n-grams"]], ids=["gpt", "modern", "n-grams"])
def test_the_text_is_that_of_the_cache(config, options, precision, uncompiled):
    """If this fails, the writer writes something else, in the window or past it, or a text hears of the one before."""
    model = any_weights(config, dtype=NARROW)
    made, own = Writer(model, precision), model if precision == "float32" else rounded(model)
    for prompt in (1, 2, 5, 8, 11):
        idx = rows(1, prompt, seed=prompt)
        expected = written(lambda *a, **k: kv_cache.generate(own, *a, **k), idx, **options)
        found = written(made.generate, idx, **options)
        assert torch.equal(found, expected)
        assert not found.is_inference()
    assert torch.equal(made.generate(idx, 0), idx)
    several = rows(3, 4)
    assert torch.equal(
        made.generate(several, 9, temperature=0), kv_cache.generate(own, several, 9, temperature=0)
    )  # fmt: skip


FAULTS = {
    "the mask shows what is not written": lambda made: made._hidden.zero_(),
    "the mask hides the first token": lambda made: made._hidden[:1].fill_(-torch.inf),
    "keys of another text": lambda made: made._cache[0].normal_(),
    "one scale is lost": lambda made: made._shelf.get("h.0.mlp.c_fc.weight scale").fill_(1.0),
    "the bytes of a word change places": lambda made: _swap(made, "h.1.attn.c_attn.weight"),
}


def _swap(made, name):
    words = made._shelf.get(name)
    words.copy_(words << 8 | words >> 24 & 255)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_broken_step_is_told(fault, uncompiled):
    """The negative control of the tests above."""
    model = any_weights(CONFIG, dtype=NARROW)
    made, own = Writer(model, "int8"), rounded(model)
    step = made.step

    def breaking(token, position):
        fault(made)
        return step(token, position)

    assert off(made, own, rows(1, 8)) < 1e-4
    made.step = breaking
    assert off(made, own, rows(1, 8)) > 1e-3


def test_compiled_it_is_the_same():
    """If this fails, what the compiler makes of the step is another function. Page 11 asserts it for float32."""
    model, another = (any_weights(replace(MODERN, n_layer=1), seed, dtype=NARROW) for seed in (0, 1))
    made, own = Writer(model, "int8"), rounded(model)
    if not made.compiled:
        pytest.skip(f"this machine cannot compile: {made.note}")
    assert (made.seconds > 0, made.note) == (True, "")
    assert off(made, own, rows(1, 8)) < 1e-4
    assert off(made, another, rows(1, 8)) > 1e-3  # the control
    idx = rows(1, 3)
    assert torch.equal(written(made.generate, idx), written(lambda *a, **k: kv_cache.generate(own, *a, **k), idx))


def test_where_it_cannot_be_compiled_the_plain_code_writes_and_says_so(monkeypatch):
    """A failure would mean that a reader without a compiler cannot write at all."""

    def fails(*_, **__):
        def call(*_):
            raise RuntimeError("\nno C++ compiler\nmore")

        return call

    monkeypatch.setattr(torch, "compile", fails)
    model, idx = any_weights(CONFIG, dtype=NARROW), rows(1, 3)
    for precision in writer.PRECISIONS:
        made = Writer(model, precision)
        assert not made.compiled
        assert made.note == "not compiled, and slower for it (no C++ compiler)"
        own = model if precision == "float32" else rounded(model)
        assert torch.equal(
            written(made.generate, idx), written(lambda *a, o=own, **k: kv_cache.generate(o, *a, **k), idx)
        )
    wide = Writer(any_weights(CONFIG), "int8")
    assert not wide.compiled
    assert "float64" in wide.note
    plain = Writer(model, compile=False)
    assert (plain.compiled, plain.note) == (False, "")


def test_the_writer_keeps_weights_of_its_own(uncompiled):
    """If this fails, training a model further changes half of what a writer holds, or making one changes the model."""
    for config in (CONFIG, MODERN, replace(CONFIG, tied=True)):
        model = any_weights(config, dtype=NARROW).train()
        before = copy.deepcopy(model.state_dict())
        for precision in writer.PRECISIONS:
            made = Writer(model, precision)
            assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
            assert all(module.training for module in model.modules())
            text = made.generate(rows(1, 2), 12, temperature=0)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(1.0)
            assert torch.equal(made.generate(rows(1, 2), 12, temperature=0), text)
            model.load_state_dict(before)


def test_what_it_does_not_know_is_refused():
    with pytest.raises(ValueError, match="precision must be one of float32, int8, got 'int4'"):
        Writer(any_weights(CONFIG), "int4")
    with pytest.raises(ValueError, match="a Writer knows GPT and ModernGPT, got Linear"):
        Writer(nn.Linear(2, 2))
    made = Writer(any_weights(CONFIG, dtype=NARROW), compile=False)
    for idx, tokens in ((rows(1, 0), 3), (rows(1, 2), -1), (rows(1, 2).double(), 3)):
        with pytest.raises(ValueError, match=r"token|idx"):
            made.generate(idx, tokens)


# Whole numbers --------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    rows=st.integers(1, 5), width=st.integers(1, 9), size=st.sampled_from([0.0, 1e-30, 0.02, 1.0, 1e30]),
    seed=st.integers(0, 2**31),
)  # fmt: skip
def test_no_weight_moves_by_more_than_half_of_its_rows_scale(rows, width, size, seed):
    """If this fails, rounding loses more than the page says, or a row of zeros becomes something else."""
    weight = size * torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weight = weight.float()
    whole, scale = writer.round_rows(weight)
    assert whole.dtype == torch.int8
    assert whole.abs().max() <= 127
    moved = (whole * scale[:, None] - weight).double().abs()
    assert (moved <= scale[:, None].double() * (0.5 + 1e-4)).all()
    assert torch.equal(whole.abs().amax(dim=1) == 127, weight.abs().amax(dim=1) > 1e-35)  # the whole range is used


@settings(max_examples=40)
@given(rows=st.integers(1, 4), width=st.integers(1, 19), seed=st.integers(0, 2**31))
def test_what_is_packed_comes_out_again(rows, width, seed):
    """If this fails, a sign is lost, or bytes change places."""
    whole = torch.randint(-127, 128, (rows, width), generator=torch.Generator().manual_seed(seed)).to(torch.int8)
    words = writer.packed(whole)
    assert (words.dtype, words.shape) == (torch.int32, (rows, -(-width // 4)))
    out = torch.cat(writer.unpacked(words), dim=1)
    assert torch.equal(out[:, :width], whole.float())
    assert not out[:, width:].any()


def test_rounding_is_for_matrices_alone():
    """If this fails, norms, biases or embeddings are rounded too, or a matrix is passed over."""
    model = any_weights(replace(CONFIG, qkv_bias=True, head_bias=True), dtype=NARROW)
    after = rounded(model).state_dict()
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, after[name])}
    assert changed == {f"{name}.weight" for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    assert len(changed) == 4 * CONFIG.n_layer + 1


def test_a_weight_takes_a_byte(uncompiled):
    """If this fails, int8 reads as much memory as float32, and cannot be faster."""
    model = any_weights(replace(CONFIG, n_head=4, n_embd=128), dtype=NARROW)
    matrices = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))
    sizes = [Writer(model, precision)._shelf.tensors for precision in writer.PRECISIONS]
    assert sizes[1][1].nbytes == matrices
    assert sizes[0][0].nbytes - sizes[1][0].nbytes == pytest.approx(4 * matrices, rel=0.02)  # scales came in
