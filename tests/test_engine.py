"""The engine against the plain computation: the same losses and gradients, compiled, in bfloat16, or both."""

import pytest
import torch
import torch.nn.functional as F

from gptbook import engine, machine, trainer
from gptbook.model import GPT, GPTConfig
from gptbook.modern import ModernConfig, ModernGPT

CLASSIC = GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=16)
MODERN = ModernConfig(
    vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=16,
    activation="relu2", gain=False, qk_norm=True, embedding_norm=True, tied=False,
)  # fmt: skip
FAMILIES = {"classic": lambda: GPT(CLASSIC), "modern": lambda: ModernGPT(MODERN)}


def batch(seed=0, rows=3):
    tokens = torch.randint(11, (rows, 9), generator=torch.Generator().manual_seed(seed))
    return tokens[:, :-1], tokens[:, 1:]


def losses_and_gradients(model, loss):
    model.zero_grad()
    found = loss(*batch(1))
    found.backward()
    return found.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


def plainly(model):
    return losses_and_gradients(model, lambda x, y: F.cross_entropy(model(x).flatten(0, 1), y.flatten()))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_losses_and_gradients_are_those_of_the_plain_code(family, precision):
    torch.manual_seed(0)
    model = FAMILIES[family]()
    made = engine.make(model, trainer.loss_fn, precision)
    (expected, plain), (found, gradients) = plainly(model), losses_and_gradients(model, made.loss)
    close = {"float32": 1e-6, "bfloat16": 0.05}[precision]
    assert abs(found - expected) <= close * expected
    assert found.dtype == torch.float32
    for name, gradient in gradients.items():
        assert gradient.dtype == torch.float32, name  # the masters stay in float32
        assert (gradient - plain[name]).norm() <= close * plain[name].norm() + 1e-7, name
    if precision == "bfloat16":
        assert found != expected  # it was really used


def test_compiled_losses_and_gradients_are_those_of_the_plain_code():
    """Two models one after the other: what was compiled for the first must not serve, or trip, the second."""
    for family in FAMILIES.values():
        torch.manual_seed(0)
        model = family()
        before = [p.detach().clone() for p in model.parameters()]
        state = torch.get_rng_state()
        made = engine.make(model, trainer.loss_fn, compile=True, example=batch())
        if not made.compiled:
            pytest.skip(f"this machine cannot compile: {made.note}")
        assert torch.equal(torch.get_rng_state(), state)
        assert all(p.grad is None for p in model.parameters())
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert made.seconds > 0
        (expected, plain), (found, gradients) = plainly(model), losses_and_gradients(model, made.loss)
        assert torch.allclose(found, expected, atol=1e-5)
        assert all(torch.allclose(gradients[name], plain[name], atol=1e-5) for name in plain)


def test_where_it_cannot_be_compiled_the_plain_code_serves_and_says_so(monkeypatch):
    """A failure would mean that a reader without a compiler cannot train at all."""

    def fails(*_, **__):
        def call(*_):
            raise RuntimeError("\nno C++ compiler\nmore")

        return call

    monkeypatch.setattr(torch, "compile", fails)
    model = FAMILIES["classic"]()
    made = engine.make(model, trainer.loss_fn, compile=True, example=batch())
    assert not made.compiled
    assert "no C++ compiler" in made.note
    assert "more" not in made.note
    assert torch.equal(made.loss(*batch(1)), plainly(model)[0])


def test_auto_is_what_the_processor_has(monkeypatch):
    for has, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(engine, "multiplies_bfloat16", lambda has=has: has)
        assert engine.dtype_of("auto") == dtype
    with pytest.raises(ValueError, match="precision must be one of float32, bfloat16, auto, got 'fp8'"):
        engine.dtype_of("fp8")


@pytest.mark.parametrize(
    ("line", "has"),
    [
        ("flags\t\t: fpu sse avx512f avx512_bf16 x", True),
        ("flags : amx_tile amx_bf16", True),
        ("Features : fp asimd bf16", True),
        ("flags : fpu avx512f avx512_vnni", False),
        ("model name : avx512_bf16", False),
        ("flags : avx512_bf16x", False),
    ],
)
def test_a_processor_says_whether_it_multiplies_bfloat16(monkeypatch, line, has):
    monkeypatch.setattr(machine.Path, "read_text", lambda *_, **__: f"processor : 0\n{line}\n")
    assert machine.multiplies_bfloat16() == has


def test_a_machine_that_says_nothing_has_no_bfloat16(monkeypatch):
    def nothing(*_, **__):
        raise OSError

    monkeypatch.setattr(machine.Path, "read_text", nothing)
    assert machine.multiplies_bfloat16() is False


def test_keeping_memory_does_no_harm(monkeypatch):
    engine.keep_memory()
    assert torch.ones(1000, 1000).sum() == 1_000_000

    def nowhere(_):
        raise OSError("no such library")

    monkeypatch.setattr(engine.ctypes, "CDLL", nowhere)
    engine.keep_memory()


def test_an_engine_says_what_is_not_plain_about_it():
    made = engine.Engine(None)
    assert made.words == ""
    made = engine.Engine(None, torch.bfloat16, True, 3.21)
    assert made.words == "products in bfloat16; compiled in 3.2 s, which do not count"
    assert engine.Engine(None, note="not compiled").words == "not compiled"
