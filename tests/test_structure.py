"""The inside of models: what `verify` finds by their weights, of right ones, unusual ones and broken ones.

Right models are those of `sabotage`, written apart from `gptbook.model`; a wrong `expect` is the negative control.
"""

import copy
import re
from dataclasses import replace
from functools import partial

import pytest
import sabotage
import torch
import torch.nn as nn
from hypothesis import given, settings
from hypothesis import strategies as st
from sabotage import CONFIG, Other, Packed, T, Toy, V

from gptbook import verify
from gptbook.model import GPT, GPTConfig
from gptbook.modern import ModernConfig, ModernGPT, rotary, rotate
from gptbook.verify import broken
from gptbook.verify.catalogue import is_named
from gptbook.verify.checks import ORDER, ask_all
from gptbook.verify.structure import rotated, structure
from gptbook.verify.subject import CannotLook, Subject

BIASED = replace(CONFIG, qkv_bias=True)
LLAMA = broken.LLAMA

# Right models, and what they may be expected to be; None where no configuration of the book describes them.
LOOK_ALIKES = {
    "a key bias": (partial(Toy, odd="key bias"), None),
    "zero projections": (partial(Toy, odd="zero projections"), CONFIG),
    "zero projections and head": (partial(Toy, odd="zero projections and head"), CONFIG),
    "mask after softmax, divided again": (partial(Toy, odd="mask after softmax, divided again"), CONFIG),
    "post-norm": (partial(Toy, odd="post-norm"), None),
    "RMSNorm": (partial(Toy, odd="rms norm"), None),
    "squared ReLU": (partial(Toy, odd="squared relu"), None),
    "sinusoidal": (partial(Toy, odd="sinusoidal"), None),
    "zero positions": (partial(Toy, odd="zero positions"), CONFIG),
    "rotary": (partial(Toy, odd="rotary"), None),
    "a bias by distance": (partial(Toy, odd="linear bias"), None),
    "a window": (partial(Toy, odd="window"), None),
    "tied": (partial(Toy, odd="tied"), replace(CONFIG, tied=True)),
    "padded": (partial(Toy, odd="padded head"), None),
    "dropout": (partial(Toy, odd="dropout"), replace(CONFIG, dropout=0.1)),
    "copies drawn anew": (sabotage.Reinitialised, CONFIG),
    "only the last position without targets": (partial(sabotage.WithLoss, odd="last position only"), CONFIG),
    "logits and loss": (sabotage.WithLoss, CONFIG),
    "heads of their own": (Other, CONFIG),
    "summed heads": (partial(Other, sabotage.SummedHeads), CONFIG),
    "nn.MultiheadAttention": (partial(Other, sabotage.FromTorch), BIASED),
    "einsum": (partial(Other, sabotage.Einsum), None),
    **{f"packed {order}": (partial(Other, partial(Packed, order)), CONFIG) for order in ("3HD", "HD3", "D3H")},
    "bare parameters": (sabotage.Bare, None),
    "one block": (sabotage.OneBlock, replace(CONFIG, n_layer=1)),
    "nn.TransformerEncoderLayer": (sabotage.FromLayers, None),
    "GPT2LMHeadModel": (sabotage.hugging_face, None),
    "LlamaForCausalLM": (partial(sabotage.hugging_face, "llama"), None),
    "GPTNeoXForCausalLM": (partial(sabotage.hugging_face, "neox"), None),
    "a small Llama": (partial(ModernGPT, LLAMA), LLAMA),
    "shared keys": (partial(ModernGPT, replace(LLAMA, n_kv_head=2)), replace(LLAMA, n_kv_head=2)),
}
UNKNOWN = ("a bias by distance", "a window", "summed heads", "GPTNeoXForCausalLM")  # what is inside is not found out


def made(make, seed=0):
    torch.manual_seed(seed)
    return make()


def asked(make, expect=None, names=ORDER, seed=0):
    return ask_all(Subject(made(make, seed), V, T, expect), names)


INSIDE = ("embeddings", "norms", "residual", "activation", "attention", "layers")


# ---- what is right passes


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(sorted(LOOK_ALIKES)), st.integers(0, 10_000), st.booleans())
def test_a_look_alike_never_fails(name, seed, expecting):
    """If this fails, `verify` calls a right model wrong, for some initial values."""
    make, expect = LOOK_ALIKES[name]
    names = [n for n in ORDER if n not in ("causal", "gradients", "memorise")]  # the slow ones: tests of their own
    found = asked(make, expect if expecting else None, [*names, "layers"], seed)
    assert found.failed == [], str(found)


@pytest.mark.parametrize("name", ["nn.MultiheadAttention", "bare parameters"])
def test_a_look_alike_passes_what_is_slow(name):
    make, expect = LOOK_ALIKES[name]
    found = asked(make, expect)
    assert found.failed == [], str(found)
    assert {found[n].status for n in ("causal", "gradients", "memorise")} == {"passed"}


@pytest.mark.parametrize("name", sorted(set(LOOK_ALIKES) - set(UNKNOWN)))
def test_the_inside_of_a_look_alike_is_found(name):
    """If this fails, a right model is "not checked" where it was: its weights are not recognised any more."""
    make, expect = LOOK_ALIKES[name]
    subject = Subject(made(make), V, T, expect)
    subject.probe()
    assert structure(subject).known == {"ends", "mlp", "attention", "whole"}


@pytest.mark.parametrize("name", UNKNOWN[1:3])
def test_what_is_not_found_out_is_not_passed(name):
    found = asked(LOOK_ALIKES[name][0], names=[*ORDER[:-3]])
    assert found.failed == []
    assert {"residual", "attention"} <= set(found.not_checked), str(found)


numbers = st.integers(0, 10_000)
gpts = st.builds(
    lambda heads, width, **rest: GPTConfig(V, T, n_head=heads, n_embd=heads * width, **rest),
    heads=st.sampled_from([1, 2, 3, 4]), width=st.sampled_from([4, 6, 8]), n_layer=st.integers(1, 3),
    activation=st.sampled_from(["gelu", "gelu_tanh", "relu"]), qkv_bias=st.booleans(), head_bias=st.booleans(),
    tied=st.booleans(), init=st.sampled_from(["torch", "gpt2"]),
)  # fmt: skip
moderns = st.builds(
    lambda heads, width, groups, **rest: ModernConfig(
        V, T, n_head=heads, n_embd=heads * width, n_kv_head=heads // groups, **rest
    ),
    heads=st.sampled_from([2, 4]), width=st.sampled_from([8, 12]), groups=st.sampled_from([1, 2]),
    n_layer=st.integers(1, 2), norm=st.sampled_from(["rms", "layer"]), norm_eps=st.sampled_from([1e-5, 1e-6]),
    positions=st.sampled_from(["rotary", "learned"]), rope_base=st.sampled_from([10000.0, 500.0]),
    activation=st.sampled_from(["swiglu", "geglu", "gelu", "relu"]), bias=st.booleans(), tied=st.booleans(),
)  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(st.one_of(gpts, moderns), numbers)
def test_a_model_of_the_book_is_what_its_configuration_says(config, seed):
    """If this fails, `expect=` refuses a model for being what it was expected to be."""
    make = partial(ModernGPT if isinstance(config, ModernConfig) else GPT, config)
    found = asked(make, config, INSIDE, seed)
    assert [result.status for result in found.results] == ["passed"] * len(INSIDE), f"{config}\n{found}"


# ---- what is unlike is seen


@pytest.mark.parametrize(
    ("check", "expect", "words"),
    [
        (verify.activation, replace(CONFIG, activation="relu"), "GELU, exact (erf), not ReLU"),
        (verify.activation, replace(CONFIG, activation="gelu_tanh"), "not GELU, approximated by tanh"),
        (verify.attention, replace(CONFIG, n_head=2), "there are 4 heads, not 2"),
        (verify.attention, replace(CONFIG, n_head=8), "there are 4 heads, not 8"),
        (verify.embeddings, replace(CONFIG, tied=True), "is a matrix of its own: tie it"),
        (verify.layers, replace(CONFIG, n_layer=3), "there are 2 blocks, not 3"),
        (verify.norms, replace(LLAMA, activation="gelu", positions="learned"), "LayerNorm"),
        (verify.activation, LLAMA, "not SwiGLU"),
        (verify.embeddings, LLAMA, "where rotary ones are expected"),
        (verify.attention, LLAMA, "rotary positions are expected"),
    ],
)
def test_expect_fails_another_design(check, expect, words):
    """If this fails, a reader who says what the model should be is not told that it is something else."""
    result = check(made(partial(Other, partial(Packed, "H3D"))), V, T, expect)
    assert result.status == "failed", str(result)
    assert words in result.cause


@pytest.mark.parametrize(
    ("fields", "check", "words"),
    [
        ({"rope_base": 500.0}, verify.attention, "the base of the rotary turns is 500, not 10000"),
        ({"rope_base": 777.0}, verify.attention, "the base of the rotary turns is 777, not 10000"),
        ({"norm": "layer"}, verify.norms, "LayerNorm"),
        ({"norm_eps": 1e-6}, verify.norms, "eps is 1e-06, not 1e-05"),
        ({"n_kv_head": 1}, verify.attention, "there are 1 heads of keys and values, not 4"),
        ({"activation": "geglu"}, verify.activation, "GEGLU, not SwiGLU"),
        ({"positions": "learned"}, verify.attention, "rotary positions are expected"),
        ({"tied": False}, verify.embeddings, "tie it"),
    ],
)
def test_expect_fails_another_modern_design(fields, check, words):
    result = check(made(lambda: ModernGPT(replace(LLAMA, **fields))), V, T, LLAMA)
    assert result.status == "failed", str(result)
    assert words in result.cause


SEEN_WITHOUT_EXPECT = {  # fault -> (check, status)
    "no scale": (verify.attention, "differs"),
    "scaled by the width": (verify.attention, "differs"),
    "no residual round attention": (verify.residual, "failed"),
    "no residual round the MLP": (verify.residual, "failed"),
    "no residual": (verify.residual, "failed"),
    "branch added to itself": (verify.residual, "failed"),
    "residual of the norm": (verify.residual, "differs"),
    "no activation": (verify.activation, "failed"),
    "norm without the root": (verify.norms, "failed"),
    "unbiased norm": (verify.norms, "differs"),
    "no final norm": (verify.norms, "differs"),
    "blocks that are copies": (verify.layers, "differs"),
    "same block twice": (verify.layers, "differs"),
    "positions twice": (verify.embeddings, "differs"),
}


@pytest.mark.parametrize("fault", sorted(SEEN_WITHOUT_EXPECT))
def test_what_is_seen_without_expect(fault):
    """What some design does on purpose "differs"; what no design does has failed."""
    check, status = SEEN_WITHOUT_EXPECT[fault]
    result = check(made(lambda: Toy(fault)), V, T)
    assert result.status == status, str(result)
    assert "(page" in result.cause


def test_an_odd_scale_is_measured():
    """7.3 in place of the root of 8: fitted, for it is in no catalogue."""
    result = verify.attention(made(lambda: Toy("scaled oddly")), V, T)
    assert f"{8**0.5 / 7.3:.4g} times" in result.cause


class KeysFirst(sabotage.Head):
    """A head that declares its keys before its queries, and divides by the root of the width, as lectures do."""

    def forward(self, x):
        T = x.size(1)
        scores = self.query(x) @ self.key(x).mT * x.size(-1) ** -0.5
        return scores.masked_fill(self.tril[:T, :T] == 0, float("-inf")).softmax(-1) @ self.value(x)


class LectureHeads(sabotage.ManyHeads):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(KeysFirst() for _ in self.heads)


def test_a_wrong_scale_is_named_where_keys_stand_before_queries():
    """If this fails, the commonest wrong scale, in heads of their own, is "not checked"."""
    assert [name for name, _ in KeysFirst().named_parameters()] == ["key.weight", "query.weight", "value.weight"]
    result = verify.attention(made(partial(Other, LectureHeads)), V, T)
    assert result.status == "differs", str(result)
    assert "root of the model's width C" in result.cause


class Bent(Toy):
    """An activation that nobody knows."""

    def __init__(self):
        super().__init__()
        for block in self.blocks:
            block.activation = lambda x: (x * x).sin() + x


class LastUnscaled(Toy):
    """Only the last block does not scale its scores."""

    def __init__(self):
        super().__init__()
        self.blocks[-1].attention.fault = "no scale"


class Insists(Bent):
    """Works in float32 alone."""

    def forward(self, idx):
        assert self.head.weight.dtype == torch.float32
        return super().forward(idx)


class Scaled(Toy):
    """A gain on what attention writes, as in LayerScale."""

    def __init__(self):
        super().__init__()
        self.blocks[0].attention.gain = nn.Parameter(torch.ones(1))


@pytest.mark.parametrize(
    ("make", "check", "without"),
    [(Bent, verify.activation, "not checked"), (LastUnscaled, verify.residual, "not checked")],
)
def test_what_equals_nothing_known_is_not_what_was_expected(make, check, without):
    """If this fails, a fault that is not in the catalogue passes, or fails a design that is merely unknown."""
    assert check(made(make), V, T).status == without
    result = check(made(make), V, T, CONFIG)
    assert result.status == "failed"
    assert result.measured == "nothing known"


@pytest.mark.parametrize("make", [Insists, Scaled])
def test_what_cannot_be_looked_at_closely_is_not_failed(make):
    """Rounding, or a part that nobody knows, could be the reason: then the answer is open, with `expect` too."""
    assert verify.activation(made(make), V, T, CONFIG).status == "not checked"


def test_a_linear_mlp_is_seen_where_nothing_else_is_known():
    """Negating both layers changes nothing if nothing bends between them, whatever the layers are added to."""

    class Weighted(broken.Block):
        def forward(self, x):
            x = x + self.attention(self.norm_1(x))
            return x + 0.3 * self.mlp(self.norm_2(x))

    class Odd(Toy):
        def __init__(self, fault):
            super().__init__()
            self.blocks = nn.ModuleList(Weighted(fault) for _ in range(2))

    assert verify.activation(made(lambda: Odd("no activation")), V, T).status == "failed"
    assert verify.activation(made(lambda: Odd("")), V, T).status == "not checked"


# ---- the catalogue


@pytest.mark.parametrize("mistake", broken.MISTAKES[::15], ids=lambda m: m.name)
def test_a_broken_model_is_named(mistake):
    """A sample; the test of the whole catalogue asks all."""
    assert is_named(mistake, broken.ask(mistake.wrong))


def test_the_catalogue_of_models():
    names = [mistake.name for mistake in broken.MISTAKES]
    assert len(names) == len(set(names)) >= 60
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in names), names
    assert broken.ask(Toy).failed == []


# ---- leaks that only loud weights show, and masks that break there


def test_a_mask_that_is_merely_very_negative_is_outweighed():
    """If this fails, a mask of -100 passes: ordinary weights never reach it."""

    class Weak(broken.Attention):
        def weights(self, scores):
            T = scores.size(-1)
            return scores.masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), -100.0).softmax(-1)

    model = made(Toy)
    for block in model.blocks:
        block.attention.__class__ = Weak
    result = verify.causal(model, V, T)
    assert result.status == "failed"
    assert "outweighed" in result.cause


def test_dividing_again_is_said_to_break_at_extreme_weights():
    result = verify.causal(made(partial(Toy, odd="mask after softmax, divided again")), V, T)
    assert result.status == "passed"
    assert "rounding, not a leak" in result.cause
    assert "breaks at extreme weights" in result.cause


# ---- parts


def test_turns_are_those_of_the_book():
    config = ModernConfig(block_size=5, n_embd=24, n_head=2)
    z = torch.randn(2, 3, 5, 12)
    assert torch.allclose(rotated(z.double(), "pairs", 10000.0).float(), rotate(z, *rotary(config)), atol=1e-5)
    order = torch.arange(12).view(6, 2).T.flatten()  # neighbours, moved a half apart
    assert torch.allclose(rotated(z[..., order], "halves", 100.0), rotated(z, "pairs", 100.0)[..., order], atol=1e-6)


def test_taking_parts_out_leaves_no_trace():
    """If this fails, one question changes the weights that the next one looks at."""
    subject = Subject(made(Toy), V, T)
    subject.probe()
    found = structure(subject).anatomy
    before = copy.deepcopy(found.model.state_dict())
    found.logits(frozenset({"attention", "mlp"}), found.idx)
    verify.inside._is_linear(structure(subject))
    for name, tensor in found.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize(
    ("make", "words"),
    [(sabotage.Bigram, "no blocks are found"), (partial(Toy, "blocks in a list"), "no blocks are found")],
)
def test_a_model_without_known_parts_is_not_checked(make, words):
    subject = Subject(made(make), V, T)
    subject.probe()
    with pytest.raises(CannotLook, match=words):
        structure(subject)
