"""The modern model against an independent Llama, against the GPT of page 8, and against broken versions of itself."""

import math
from dataclasses import asdict, replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_verify import evaluated
from transformers import LlamaConfig, LlamaForCausalLM

from gptbook import modern, sampling, trainer, verify
from gptbook.model import GPT, GPTConfig
from gptbook.modern import ModernConfig, ModernGPT
from gptbook.recipes import PRESETS

SMALL = ModernConfig(vocab_size=23, block_size=16, n_layer=2, n_head=4, n_kv_head=2, n_embd=32, n_inner=40)
PLAIN = ModernConfig(
    vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=12,
    norm="layer", positions="learned", activation="gelu", bias=True, tied=False,
)  # fmt: skip
CHANGES = {
    "norm": {"norm": "rms"},
    "positions": {"positions": "rotary"},
    "groups": {"n_kv_head": 1},
    "gate": {"activation": "swiglu"},
    "other gate": {"activation": "geglu"},
    "inner": {"n_inner": 7},
    "no bias": {"bias": False},
    "tied": {"tied": True},
    "dropout": {"dropout": 0.3},
    "dropout of channels": {"channel_dropout": 0.3},
    "squared ReLU": {"activation": "relu2"},
    "no gain": {"gain": False},
    "norm of queries and keys": {"qk_norm": True},
    "norm of the embedding": {"embedding_norm": True},
    "n-grams": {"ngrams": 3, "ngram_rows": 101, "ngram_width": 5},
    "dropout of n-grams": {"ngrams": 3, "ngram_rows": 101, "ngram_width": 5, "ngram_dropout": 0.3},
}
OFF = 1e-5  # of the size of the logits: rounding in float32 stays below


def randomised(model, seed=0):
    """The model with every parameter drawn anew, norms and biases too, so that each of them matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise / math.sqrt(parameter.size(-1)))
            else:
                parameter.add_(0.3 * noise)
    return model.eval()


def rows(B, T, V=SMALL.vocab_size, seed=0):
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(seed))


# Against a Llama ------------------------------------------------------------------------------------------------------


def llama(config, seed=0):
    """The same shape in transformers, with random weights."""
    theirs = LlamaConfig(
        vocab_size=config.vocab_size, max_position_embeddings=config.block_size, hidden_size=config.n_embd,
        num_hidden_layers=config.n_layer, num_attention_heads=config.n_head, num_key_value_heads=config.kv_heads,
        intermediate_size=config.inner, rms_norm_eps=config.norm_eps, tie_word_embeddings=config.tied,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_base}, hidden_act="silu",
        attention_bias=config.bias, mlp_bias=config.bias, attn_implementation="eager",
    )  # fmt: skip
    return randomised(LlamaForCausalLM(theirs), seed)


def neighbouring(rows, heads):
    """Rows (H*D, ...) of queries or keys, from pairs (i, i + D/2) to pairs (2i, 2i + 1) within each head."""
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def from_llama(theirs, config, permute=neighbouring):
    """Our model with the weights of a Llama."""
    state, ours = theirs.state_dict(), {}
    names = {
        "ln_1": "input_layernorm", "attn.c_proj": "self_attn.o_proj", "ln_2": "post_attention_layernorm",
        "mlp.c_fc": "mlp.up_proj", "mlp.c_gate": "mlp.gate_proj", "mlp.c_proj": "mlp.down_proj",
    }  # fmt: skip
    kinds = ("weight", "bias") if config.bias else ("weight",)
    for i in range(config.n_layer):
        for kind in kinds:
            q, k, v = (state[f"model.layers.{i}.self_attn.{part}_proj.{kind}"] for part in "qkv")
            packed = torch.cat((permute(q, config.n_head), permute(k, config.kv_heads), v))
            ours[f"h.{i}.attn.c_attn.{kind}"] = packed
            for mine, name in names.items():
                if f"model.layers.{i}.{name}.{kind}" in state:
                    ours[f"h.{i}.{mine}.{kind}"] = state[f"model.layers.{i}.{name}.{kind}"]
    ours["wte.weight"], ours["ln_f.weight"] = state["model.embed_tokens.weight"], state["model.norm.weight"]
    ours["lm_head.weight"] = state["lm_head.weight"]
    model = ModernGPT(config).eval()
    model.load_state_dict(ours)
    return model


def off_llama(config, seed=0, permute=neighbouring):
    """The largest difference of a logit from the Llama's, as a share of the logits' standard deviation."""
    theirs, idx = llama(config, seed), rows(3, config.block_size, config.vocab_size, seed)
    model = from_llama(theirs, config, permute)
    with torch.no_grad():
        expected = theirs(idx).logits
        return ((model(idx) - expected).abs().max() / expected.std()).item()


LLAMAS = {
    "grouped, tied": SMALL,
    "untied": replace(SMALL, tied=False),
    "as many keys as queries": replace(SMALL, n_kv_head=None),
    "one key for all": replace(SMALL, n_kv_head=1),
    "three heads a key, like SmolLM2": replace(SMALL, n_head=9, n_kv_head=3, n_embd=36, rope_base=100000.0),
    "heads of two": replace(SMALL, n_head=16, n_kv_head=4, n_embd=32),
    "one wide head": replace(SMALL, n_head=1, n_kv_head=1, n_embd=64),
    "biases": replace(SMALL, bias=True),
    "large epsilon": replace(SMALL, norm_eps=0.5),
    "deep": replace(SMALL, n_layer=5),
}


@pytest.mark.parametrize("config", LLAMAS.values(), ids=LLAMAS)
def test_equal_to_a_llama(config):
    """If this fails, weights of a Llama give other logits here than in transformers."""
    assert off_llama(config) < OFF


@settings(max_examples=15)
@given(
    groups=st.integers(1, 3), shared=st.integers(1, 3), pairs=st.integers(1, 4), layers=st.integers(1, 3),
    inner=st.integers(1, 40), window=st.integers(1, 40), tied=st.booleans(), bias=st.booleans(),
    base=st.sampled_from([10.0, 1e4, 1e5, 5e5]), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_equal_to_any_llama(groups, shared, pairs, layers, inner, window, tied, bias, base, seed):
    """If this fails, some shape of Llama is read wrongly."""
    heads = groups * shared
    config = ModernConfig(
        vocab_size=19, block_size=window, n_layer=layers, n_head=heads, n_kv_head=groups, n_embd=2 * pairs * heads,
        n_inner=inner, tied=tied, bias=bias, rope_base=base,
    )  # fmt: skip
    assert off_llama(config, seed) < 10 * OFF


def test_without_the_permutation_it_is_another_model():
    """If this fails, the tests above would not notice pairs that are turned in another order."""
    assert off_llama(SMALL, permute=lambda rows, heads: rows) > 0.1
    assert off_llama(replace(SMALL, n_head=16, n_kv_head=4), permute=lambda rows, heads: rows) < OFF  # D = 2: one pair
    backwards = lambda rows, heads: rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)  # noqa: E731
    assert off_llama(SMALL, permute=backwards) > 0.1
    turned = torch.arange(8)[:, None]
    assert neighbouring(turned, 1).flatten().tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert neighbouring(turned, 2).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


# Broken versions ------------------------------------------------------------------------------------------------------

ATTENTION = modern.CausalSelfAttention
PROJECT, WEIGHTS, READ, ROTATE = ATTENTION.project, ATTENTION.weights, ATTENTION.read, modern.rotate


def over_heads(x, cos, sin):
    """Turned by the number of the head instead of the position."""
    cos, sin = (table[: x.size(1)] for table in modern.rotary(SMALL))
    return ROTATE(x.transpose(1, 2), cos, sin).transpose(1, 2)


def by_halves(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


def with_values_turned(self, x, turn=None):
    q, k, v = PROJECT(self, x, turn)
    return q, k, ROTATE(v, *turn)


def packed_head_by_head(self, x, turn=None):
    """Queries, keys and values of each group side by side, as some files have them."""
    B, T, _ = x.shape
    H, G = self.n_head, self.n_kv_head
    qkv = self.c_attn(x).view(B, T, G, H // G + 2, -1)
    q, k, v = (part.flatten(2, 3).transpose(1, 2) for part in qkv.split((H // G, 1, 1), dim=3))
    return ROTATE(q, *turn), ROTATE(k, *turn), v


def in_turns(heads, n):
    """Keys 0, 1, 0, 1 for heads 0, 1, 2, 3, where 0, 0, 1, 1 is right; twice the right way gives them back."""
    return heads.repeat(1, n, 1, 1)


def repeated(method):
    """Heads of keys and values repeated in turns, 0 1 0 1, before the layer repeats each of them 0 0 1 1."""

    def broken(self, first, second):
        n, self.shared = self.shared, 1
        try:
            return method(self, first, in_turns(second, n))
        finally:
            self.shared = n

    return broken


def without_mask(self, q, k):
    k = k.repeat_interleave(self.shared, dim=1)
    return F.softmax(q @ k.mT / math.sqrt(q.size(-1)), dim=-1)


def with_mean_subtracted(config):
    return torch.nn.LayerNorm(config.n_embd, eps=config.norm_eps, bias=False)


BROKEN = {
    "turned over the heads": [(modern, "rotate", over_heads)],
    "halves turned, not neighbours": [(modern, "rotate", by_halves)],
    "turned the other way": [(modern, "rotate", lambda x, cos, sin: ROTATE(x, cos, -sin))],
    "not turned": [(modern, "rotate", lambda x, cos, sin: x)],
    "values turned too": [(ATTENTION, "project", with_values_turned)],
    "packed head by head": [(ATTENTION, "project", packed_head_by_head)],
    "scale missing": [(ATTENTION, "weights", lambda self, q, k: WEIGHTS(self, q * math.sqrt(q.size(-1)), k))],
    "scaled twice": [(ATTENTION, "weights", lambda self, q, k: WEIGHTS(self, q / math.sqrt(q.size(-1)), k))],
    "no mask": [(ATTENTION, "weights", without_mask)],
    "keys repeated in turns": [(ATTENTION, "weights", repeated(WEIGHTS))],
    "values repeated in turns": [(ATTENTION, "read", repeated(READ))],
    "both repeated in turns": [(ATTENTION, "weights", repeated(WEIGHTS)), (ATTENTION, "read", repeated(READ))],
    "gate on the wrong branch": [
        (modern.MLP, "inside", lambda self, x: self.activation(self.c_fc(x)) * self.c_gate(x))
    ],
    "gate left out": [(modern.MLP, "inside", lambda self, x: self.activation(self.c_fc(x)))],
    "sigmoid for silu": [(modern.MLP, "inside", lambda self, x: self.c_gate(x).sigmoid() * self.c_fc(x))],
    "mean subtracted": [(modern, "norm", with_mean_subtracted)],
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_version_is_told(fault, monkeypatch):
    """If this fails, the comparison with a Llama would also pass for this mistake."""
    for where, name, broken in BROKEN[fault]:
        monkeypatch.setattr(where, name, broken)
    assert off_llama(SMALL) > 1e-2


# Norm -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [1e-5, 0.1])
def test_rms_norm_is_its_formula(eps):
    """If this fails, a vector is divided by something else than the root of its mean square."""
    made = modern.norm(replace(SMALL, norm_eps=eps)).double()
    torch.manual_seed(0)
    torch.nn.init.normal_(made.weight)
    x = torch.randn(3, 5, 32, dtype=torch.float64) + 2
    by_hand = torch.tensor(
        [
            [[v / math.sqrt(sum(u * u for u in row) / 32 + eps) for v in row] for row in sheet]
            for sheet in x.tolist()
        ],
        dtype=torch.float64,
    )  # fmt: skip
    torch.testing.assert_close(made(x), by_hand * made.weight)
    assert [name for name, _ in made.named_parameters()] == ["weight"]
    centred = torch.nn.functional.layer_norm(x, (32,), made.weight, eps=eps)
    assert (made(x) - centred).abs().max() > 0.1  # the control: the mean stays
    x = x - x.mean(-1, keepdim=True)  # and where it is 0, the two are one
    torch.testing.assert_close(made(x), torch.nn.functional.layer_norm(x, (32,), made.weight, eps=eps))


# Rotary positions -----------------------------------------------------------------------------------------------------


def turned(config, x, start=0):
    """x (B, H, T, D) turned as tokens at positions start, start + 1, ..."""
    cos, sin = modern.rotary(config)
    here = slice(start, start + x.size(-2))
    return modern.rotate(x, cos[here].to(x), sin[here].to(x))


def test_a_pair_is_a_complex_number():
    """If this fails, a rotation is none: by the oracle, pair i at position t is multiplied by e^(i t base^(-2i/D))."""
    config = replace(SMALL, n_head=2, n_kv_head=2, rope_base=50.0)
    x = torch.randn(2, 2, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    t, i = torch.arange(16, dtype=torch.float64)[:, None], torch.arange(8)
    numbers = torch.view_as_complex(x.unflatten(-1, (8, 2))) * torch.exp(1j * t * 50.0 ** (-2 * i / 16))
    expected = torch.view_as_real(numbers).flatten(-2)
    torch.testing.assert_close(turned(config, x), expected, rtol=1e-6, atol=1e-6)  # the tables are float32
    torch.testing.assert_close(turned(config, x).norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=1e-6)
    assert (by_halves(x, *(table.double() for table in modern.rotary(config))) - expected).abs().max() > 0.1
    assert torch.equal(turned(config, x)[:, :, 0], x[:, :, 0])


def test_scores_know_the_distance_alone():
    """If this fails, how much a token reads another depends on where the two stand, not on how far apart."""
    config = replace(SMALL, block_size=64)
    random = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 4, 10, 8, dtype=torch.float64, generator=random) for _ in "qk")

    def scores(q_start, k_start):
        return turned(config, q, q_start) @ turned(config, k, k_start).mT

    base = scores(0, 0)
    for shift in (1, 7, 50):
        torch.testing.assert_close(scores(shift, shift), base, rtol=1e-5, atol=1e-5)
        assert (scores(shift, 0) - base).abs().max() > 0.1  # the control: another distance
    assert (scores(3, 0) - scores(0, 3)).abs().max() > 0.1  # and the past is not the future


def test_the_model_reads_a_text_the_same_wherever_it_stands():
    """If this fails, something else than distances tells the positions of a rotary model."""
    model = randomised(ModernGPT(SMALL))
    idx = rows(2, 6)

    def logits(start):
        x, turn = model.embed(idx, start)
        for block in model.h:
            x = block(x, turn)
        return model.lm_head(model.ln_f(x))

    with torch.no_grad():
        assert torch.equal(logits(0), model(idx))
        torch.testing.assert_close(logits(10), model(idx), rtol=1e-4, atol=1e-4)
        learned = randomised(ModernGPT(replace(SMALL, positions="learned")))
        first, later = (learned.embed(idx, start)[0] for start in (0, 10))
        assert (first - later).abs().max() > 0.1  # the control
        assert torch.equal(later, learned.wte(idx) + learned.wpe.weight[10:16])


# Groups ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_groups_are_heads_with_equal_keys_and_values(groups):
    """If this fails, a group of heads reads other keys or values than its own."""
    config = replace(SMALL, n_kv_head=groups)
    grouped, full = randomised(ModernGPT(config)), ModernGPT(replace(config, n_kv_head=None)).eval()
    D, n = config.head_size, config.n_head // groups

    def copied(many):
        state = grouped.state_dict()
        for name in state:
            if "c_attn" in name:
                q, k, v = state[name].split((4 * D, groups * D, groups * D))
                k, v = (many(part.unflatten(0, (groups, D))).flatten(0, 1) for part in (k, v))
                state[name] = torch.cat((q, k, v))
        full.load_state_dict(state)
        with torch.no_grad():
            return (full(rows(3, 16)) - grouped(rows(3, 16))).abs().max().item()

    assert copied(lambda heads: heads.repeat_interleave(n, dim=0)) < 1e-4
    wrong = copied(lambda heads: heads.repeat(n, 1, 1))
    assert (wrong > 1e-2) == (groups == 2)  # one group, or four: in any order they are the same


# Beside the GPT of page 8 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("tied", [False, True])
def test_without_the_changes_it_is_the_gpt_of_page_8(activation, tied):
    """If this fails, something has changed since GPT-2 that no field of the configuration names."""
    shape = {"vocab_size": 11, "block_size": 8, "n_layer": 2, "n_head": 2, "n_embd": 12}
    gpt = randomised(GPT(GPTConfig(**shape, activation=activation, tied=tied, qkv_bias=True)))
    ours = ModernGPT(replace(PLAIN, activation=activation, tied=tied)).eval()
    assert list(ours.state_dict()) == list(gpt.state_dict())
    ours.load_state_dict(gpt.state_dict())
    idx = rows(3, 8, 11)
    with torch.no_grad():
        torch.testing.assert_close(ours(idx), gpt(idx), rtol=1e-5, atol=1e-5)
        for name, parameter in ours.named_parameters():  # the control: each weight counts
            kept = parameter.clone()
            parameter.mul_(1.5).add_(torch.linspace(0, 1, parameter.numel()).view_as(parameter))
            keys = name.endswith("c_attn.bias")  # a bias of the keys alone would have no effect
            assert (ours(idx) - gpt(idx)).abs().max() > (1e-6 if keys else 1e-4), name
            parameter.copy_(kept)


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_works_alone(change):
    """If this fails, an option works only together with another one, or not at all."""
    config = replace(PLAIN, **CHANGES[change])
    torch.manual_seed(0)
    model = ModernGPT(config)
    idx, targets = rows(4, 8, 11), rows(4, 8, 11, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = [trainer.update(model, optimizer, idx, targets, 1e-2) for _ in range(12)]
    assert losses[-1] < losses[0] - 0.1
    model.eval()
    assert model(idx).shape == (4, 8, 11)
    assert torch.equal(model(idx), model(idx))
    assert verify.expected_parameters(config) == sum(p.numel() for p in model.parameters())
    assert verify.causal(model, 11, 8).status == "passed"


@pytest.mark.parametrize("change", [c for c in CHANGES if "dropout" not in c and c != "inner"])
def test_each_change_is_one(change):
    """If this fails, a field of the configuration says something and does nothing."""
    ours = randomised(ModernGPT(PLAIN))
    other = ModernGPT(replace(PLAIN, **CHANGES[change])).eval()
    state, wanted = ours.state_dict(), other.state_dict()
    fitted = {name: state[name] if name in state and state[name].shape == v.shape else v for name, v in wanted.items()}
    other.load_state_dict(fitted)
    assert (other(rows(2, 8, 11)) - ours(rows(2, 8, 11))).abs().max() > 1e-2


@pytest.mark.parametrize("C", [12, 64, 128, 576])
def test_a_gate_costs_nothing(C):
    """If this fails, a model with a gate is larger than one without, and the two cannot be compared."""
    plain, gated = (ModernConfig(n_embd=C, n_head=2, activation=name) for name in ("gelu", "swiglu"))
    assert plain.inner == 4 * C
    assert 0 <= 2 * C * plain.inner - 3 * C * gated.inner < 3 * C
    assert replace(gated, n_inner=100).inner == replace(plain, n_inner=100).inner == 100


def test_names_are_those_of_model():
    """If this fails, weights that are read by name, or tools that look inside by name, find nothing."""
    model = ModernGPT(replace(SMALL, n_layer=1))
    linears = ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_gate", "mlp.c_proj"]
    names = ["wte", *(f"h.0.{name}" for name in ("ln_1", *linears[:2], "ln_2", *linears[2:])), "ln_f", "lm_head"]
    assert list(model.state_dict()) == [f"{name}.weight" for name in names]
    assert {name for name, _ in model.named_buffers()} == {"cos", "sin"}  # in no file: they follow from the numbers
    assert model.cos.shape == model.sin.shape == (16, 4)
    assert model.h[0].attn.c_attn.weight.shape == ((4 + 2 * 2) * 8, 32)
    assert model.lm_head.weight is model.wte.weight


def test_initial_weights_are_those_of_gpt2():
    """If this fails, a fresh model starts loud, and its first losses are far above ln V."""
    torch.manual_seed(0)
    model = ModernGPT(ModernConfig(n_embd=256, n_layer=8, bias=True))
    spread = {name: p.std().item() for name, p in model.named_parameters() if p.dim() == 2}
    for name, std in spread.items():
        assert std == pytest.approx(0.02 / 4 if name.endswith("c_proj.weight") else 0.02, rel=0.05), name
    assert all((p == 0).all() for name, p in model.named_parameters() if name.endswith("bias"))
    assert all((p == 1).all() for name, p in model.named_parameters() if "ln_" in name and name.endswith("weight"))


# Verified, sampled, refused -------------------------------------------------------------------------------------------

TINY = ModernConfig(vocab_size=31, block_size=12, n_layer=2, n_head=4, n_kv_head=2, n_embd=32)


def built(config):
    torch.manual_seed(0)
    return ModernGPT(config)


def test_a_modern_model_passes_every_check():
    """If this fails, a right model is called wrong: rotary positions are not GPT-2's, and no mistake."""
    found = verify.check_model(built(TINY), 31, 12)
    assert found.passed, str(found)
    status = {result.name: result.status for result in found.results}
    assert status["causal"] == status["batch-independent"] == status["reach"] == status["memorise"] == "passed"
    assert [name for name, what in status.items() if what == "differs"] == [
        "position-sensitive", "norms", "activation", "attention",
    ]  # fmt: skip
    assert status["loss"] == status["parameters"] == "not checked"


def test_a_modern_model_is_what_its_configuration_says():
    """If this fails, expect= cannot be used with a ModernConfig."""
    found = verify.check_model(built(TINY), expect=TINY)
    assert found.passed, str(found)
    assert {result.name for result in found.results if result.status != "passed"} == {"loss"}
    learned = replace(TINY, positions="learned")
    assert verify.position_sensitive(built(learned), expect=learned).status == "passed"
    assert verify.position_sensitive(built(TINY), expect=learned).status == "failed"
    wrong = verify.position_sensitive(built(learned), expect=TINY)
    assert wrong.status == "failed"
    assert "are to be rotary" in wrong.cause
    assert verify.position_sensitive(built(TINY), expect=GPTConfig(31, 12, 2, 4, 32)).status == "failed"


@pytest.mark.parametrize("fault", ["no mask", "turned over the heads", "not turned"])
def test_checks_see_a_broken_modern_model(fault, monkeypatch):
    """If this fails, the checks pass whatever is called modern."""
    for where, name, broken in BROKEN[fault]:
        monkeypatch.setattr(where, name, broken)
    model = built(TINY)
    found = [check(model, expect=TINY).status for check in (verify.causal, verify.position_sensitive)]
    assert "failed" in found


def test_smollm2_has_the_parameters_that_it_has():
    """If this fails, the preset is another model than the one whose weights are read into it."""
    config = PRESETS["smollm2"]
    assert verify.expected_parameters(config) == 134_515_008
    with torch.device("meta"):
        model = ModernGPT(config)
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    table = verify.parameter_table(config)
    assert [row.count for row in table] == [28_311_552, 26_542_080, 79_626_240, 34_560, 576]
    assert table.total != verify.expected_parameters(replace(config, n_kv_head=None))


configurations = st.builds(
    lambda groups, shared, pairs, **rest: ModernConfig(
        n_head=groups * shared, n_kv_head=groups, n_embd=2 * pairs * groups * shared, **rest
    ),
    groups=st.integers(1, 3), shared=st.integers(1, 2), pairs=st.integers(1, 3), vocab_size=st.integers(1, 40),
    block_size=st.integers(1, 12), n_layer=st.integers(1, 3), n_inner=st.none() | st.integers(1, 9),
    norm=st.sampled_from(modern.NORMS), positions=st.sampled_from(modern.POSITIONS),
    activation=st.sampled_from(["swiglu", "geglu", "gelu", "relu"]), bias=st.booleans(), tied=st.booleans(),
)  # fmt: skip


@settings(max_examples=60)
@given(config=configurations)
def test_the_formula_counts_what_the_model_has(config):
    """If this fails, formula and model disagree for some configuration, so one of them is wrong."""
    model = ModernGPT(config)
    table = verify.parameter_table(config)
    assert table.total == sum(p.numel() for p in model.parameters())
    assert table.rows[1].count == sum(p.numel() for block in model.h for p in block.attn.parameters())
    assert table.rows[2].count == sum(p.numel() for block in model.h for p in block.mlp.parameters())
    symbols = {"V": config.vocab_size, "T": config.block_size, "L": config.n_layer, "C": config.n_embd}
    symbols |= {"G": config.kv_heads, "D": config.head_size, "M": config.inner}
    for row in table:
        assert evaluated(row.formula, symbols) == row.count, row.formula


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"positions": "learned"}, "there is a learned position embedding"),
        ({"n_kv_head": None}, "keys and values of its own"),
        ({"n_kv_head": 1}, "share one head"),
        ({"activation": "relu", "n_inner": TINY.inner}, "no gate"),
        ({"n_inner": 128}, "128 wide inside, not 85"),
        ({"tied": False}, "not tied"),
        ({"bias": True}, "have a bias"),
        ({"n_layer": 1}, "one block is missing"),
        ({"n_layer": 3}, "one block too many"),
    ],
)
def test_a_difference_in_parameters_is_explained(fields, words):
    """If this fails, the count is off and nobody says why."""
    result = verify.parameter_count(built(replace(TINY, **fields)), expect=TINY)
    assert result.status == "failed"
    assert words in result.cause
    assert verify.parameter_count(built(TINY), expect=TINY).status == "passed"


def test_every_stage_of_a_modern_model_is_shown():
    """If this fails, the table of stages leaves out a modern model, or shows another stream than it has."""
    model, idx = randomised(ModernGPT(TINY)), rows(2, 5, 31)
    stages = verify.shape_table(model, idx)
    assert [stage.name for stage in stages][:3] == ["embeddings", "attention 1", "MLP 1"]
    assert stages[0].rms == pytest.approx(model.wte(idx).square().mean().sqrt().item(), rel=1e-5)
    assert stages[-1].rms == pytest.approx(model(idx).square().mean().sqrt().item(), rel=1e-5)


def test_a_modern_model_writes():
    """If this fails, text cannot be sampled from a modern model."""
    model = built(TINY)
    random = torch.Generator().manual_seed(0)
    out = sampling.generate(model, rows(2, 3, 31), 20, generator=random)
    assert out.shape == (2, 23)
    assert out.max() < 31


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"n_head": 3}, ValueError, "n_embd must be a multiple of n_head, got 128 and 3"),
        ({"n_kv_head": 3}, ValueError, "n_head must be a multiple of n_kv_head, got 4 and 3"),
        ({"n_kv_head": 8}, ValueError, "n_head must be a multiple of n_kv_head"),
        ({"n_kv_head": 0}, ValueError, "n_kv_head must be at least 1"),
        ({"n_inner": 1.5}, TypeError, "n_inner must be a whole number, got 1.5"),
        ({"n_layer": True}, TypeError, "n_layer must be a whole number"),
        ({"vocab_size": None}, TypeError, "vocab_size must be a whole number"),
        ({"n_embd": 4}, ValueError, "n_embd / n_head must be even, got 1"),
        ({"norm": "batch"}, ValueError, "norm must be one of rms, layer, got 'batch'"),
        ({"positions": None}, ValueError, "positions must be one of rotary, learned"),
        ({"activation": "silu"}, ValueError, "activation must be one of swiglu, geglu, gelu"),
        ({"bias": 1}, TypeError, "bias must be True or False"),
        ({"tied": "no"}, TypeError, "tied must be True or False"),
        ({"dropout": 1.0}, ValueError, "dropout must be at least 0 and below 1"),
        ({"ngrams": 10, "block_size": 9}, ValueError, "ngrams must be at most block_size, got 10 and 9"),
        ({"channel_dropout": -0.1}, ValueError, "channel_dropout must be at least 0 and below 1, got -0.1"),
        ({"ngram_dropout": 1.0}, ValueError, "ngram_dropout must be at least 0 and below 1, got 1.0"),
        ({"ngrams": 3, "ngram_rows": 66}, ValueError, "ngram_rows must share no factor with vocab_size + 1, got 66"),
        ({"dropout": "0"}, TypeError, "dropout must be a number"),
        ({"rope_base": 0.5}, ValueError, "rope_base must be at least 1"),
        ({"rope_base": math.inf}, ValueError, "rope_base must be"),
        ({"norm_eps": -1e-5}, ValueError, "norm_eps must be"),
        ({"norm_eps": math.nan}, ValueError, "norm_eps must be"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(fields, error, words):
    """If this fails, a slip in a configuration ends in a traceback from the depths, or in a wrong model."""
    with pytest.raises(error) as caught:
        ModernConfig(**fields)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_odd_heads_are_no_matter_without_turns():
    """If this fails, learned positions are refused for what only rotary ones need."""
    assert ModernGPT(ModernConfig(n_embd=12, n_head=4, positions="learned"))(rows(1, 4, 65)).shape == (1, 4, 65)
    assert asdict(ModernConfig(**asdict(SMALL))) == asdict(SMALL)


@pytest.mark.parametrize(
    ("idx", "words"),
    [
        (torch.zeros(1, 13, dtype=torch.long), "crop it to block_size"),
        (torch.full((1, 2), 31), "outside 0..30"),
        (torch.zeros(3, dtype=torch.long), r"of shape \(B, T\)"),
        (torch.zeros(1, 0, dtype=torch.long), "0 tokens a row"),
    ],
)
def test_bad_tokens_are_refused_in_one_line(idx, words):
    """If this fails, a mistake in the tokens ends in an IndexError from the depths."""
    with pytest.raises(ValueError, match=words) as caught:
        built(TINY)(idx)
    assert "\n" not in str(caught.value)


# One vector at a time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (1,), (), (3,), (2, 1)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [(512, 512), (384, 700), (8, 8)], ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_linear_layer_is_torchs_own_however_its_rows_are_shared_out(shape, bias, size, threads):
    """A failure would mean that a model writes another text with its cache than without."""
    torch.manual_seed(0)
    layer = modern.Linear(*size, bias=bias)
    x = torch.randn(*shape, size[0])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            found = layer(x)
    finally:
        torch.set_num_threads(before)
    expected = F.linear(x, layer.weight, layer.bias)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_linear_layer_shares_its_rows_out(monkeypatch):
    """The negative control of the test above: with two threads the other way is really taken."""
    products = []
    bmm = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b: products.append(b.shape) or bmm(a, b))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    layer = modern.Linear(512, 600, bias=False)
    with torch.no_grad():
        layer(torch.randn(1, 1, 512))
        assert products == [(2, 512, 300)]
        layer(torch.randn(1, 2, 512))
    assert len(products) == 1


# Later changes --------------------------------------------------------------------------------------------------------


def test_queries_and_keys_have_one_size_before_they_are_turned():
    """A failure would mean that scores can still grow without bound."""
    config = replace(SMALL, qk_norm=True, norm_eps=1e-12)
    attention = randomised(ModernGPT(config)).h[0].attn
    q, k, v = attention.project(5 * torch.randn(2, 6, config.n_embd), (torch.ones(6, 4), torch.zeros(6, 4)))
    for t in (q, k):
        assert torch.allclose(t.square().mean(-1), torch.ones(t.shape[:-1]), atol=1e-4)
    assert not torch.allclose(v.square().mean(-1), torch.ones(v.shape[:-1]), atol=1e-1)
    turned, _, _ = attention.project(torch.randn(2, 6, config.n_embd), modern.rotary(replace(config, block_size=6)))
    assert torch.allclose(turned.square().mean(-1), torch.ones(turned.shape[:-1]), atol=1e-4)


def test_squared_relu_by_hand():
    assert modern.ACTIVATIONS["relu2"](torch.tensor([-2.0, 0.0, 0.5, 3.0])).tolist() == [0, 0, 0.25, 9]


def test_the_embedding_is_divided_by_its_size():
    config = replace(SMALL, embedding_norm=True, gain=False, norm_eps=1e-12)
    model = ModernGPT(config)
    x, _ = model.embed(rows(2, 5))
    assert torch.allclose(x.square().mean(-1), torch.ones(2, 5), atol=1e-4)
    assert not any("ln" in name for name, _ in model.named_parameters())


LATER = replace(PRESETS["shakespeare"], vocab_size=29, block_size=16, n_embd=32)


@pytest.mark.parametrize(
    ("change", "failed", "cause"),
    [
        ({}, [], ""),
        ({"qk_norm": False}, ["attention"], "queries and keys are not normalised, and should be"),
        ({"embedding_norm": False}, ["embeddings"], "the stream is not normalised before the first block"),
        ({"activation": "relu"}, ["activation"], "ReLU, not squared relu"),
        (
            {"positions": "learned"},
            ["position-sensitive", "embeddings", "attention", "parameters"],
            "positions act on the stream, and are to be rotary",
        ),
        ({"ngrams": 1}, ["dropout", "parameters"], "dropout is declared but never applied"),
    ],
)
def test_what_is_later_than_a_llama_is_found_in_a_model(change, failed, cause):
    """A failure would mean that the book's own fast model is called wrong, or that a wrong one passes for it."""
    torch.manual_seed(0)
    model = ModernGPT(replace(LATER, **change))
    report = verify.check_model(model, 29, 16, expect=LATER)
    assert report.failed == failed
    assert cause in " ".join(result.cause for result in report.results if result.status == "failed")
    assert verify.check_model(model, 29, 16).failed == []


# N-grams --------------------------------------------------------------------------------------------------------------

GRAMS = replace(SMALL, vocab_size=5, block_size=9, ngrams=4, ngram_rows=211, ngram_width=6, tied=False)


def number_of(tokens, t, n, V):
    """Tokens t - n + 1 to t as the digits of a number in base V + 1; V where there is no token."""
    return int(sum((tokens[s] if s >= 0 else V) * (V + 1) ** (t - s) for s in range(t - n + 1, t + 1)))


@given(seed=st.integers(0, 2**31), V=st.integers(1, 300), N=st.integers(2, 6), R=st.integers(1, 20000))
@settings(max_examples=40)
def test_the_place_of_an_ngram_is_its_number(seed, V, N, R):
    """If this fails, the same tokens are looked up in other rows, or what should stand before a text is another token.

    The numbers of six tokens of 300 go beyond 64 bits nowhere on the way, and Python's have no end.
    """
    assume(math.gcd(R, V + 1) == 1)
    module = modern.Ngrams(replace(GRAMS, vocab_size=V, ngrams=N, ngram_rows=R, ngram_width=1))
    idx = torch.randint(V, (2, 7), generator=torch.Generator().manual_seed(seed))
    for row, found in zip(idx.tolist(), module.places(idx).tolist(), strict=True):
        for t, places in enumerate(found):
            assert places == [number_of(row, t, n, V) % R + (n - 2) * R for n in range(2, N + 1)]


def test_places_are_counted_in_64_bits():
    """If this fails, tokens in 32 bits are looked up in other rows than the same tokens in 64."""
    module = modern.Ngrams(replace(GRAMS, vocab_size=49152, ngram_rows=131071, ngram_width=1))
    idx = torch.randint(49152, (2, 7), generator=torch.Generator().manual_seed(0))
    assert torch.equal(module.places(idx.int()), module.places(idx))


def test_tokens_before_are_as_many_as_are_looked_up():
    """If this fails, a cache that keeps too few or too many tokens is followed without a word."""
    module = modern.Ngrams(GRAMS)
    for shape in ((2, 2), (2, 4), (1, 3), (3,)):
        with pytest.raises(ValueError, match=r"before must be the last 3 tokens of 2 rows, got \("):
            module.places(torch.zeros(2, 5, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64))


def test_pairs_have_rows_of_their_own_where_they_fit():
    """If this fails, the default table lets two pairs of 65 characters share a row, which it has room for."""
    module = modern.Ngrams(replace(PRESETS["shakespeare"], ngrams=2))
    pairs = torch.cartesian_prod(torch.arange(65), torch.arange(65))  # (V^2, 2)
    assert len(module.places(pairs)[:, 1, 0].unique()) == 65**2 < module.rows
    assert all(module.rows % n for n in range(2, math.isqrt(module.rows) + 1))  # a prime


def test_ngrams_add_what_their_tables_say():
    """If this fails, the sum is of other rows, or one that the docstring does not tell."""
    model = randomised(ModernGPT(GRAMS))
    idx = rows(2, 6, V=5)
    x, _ = model.embed(idx)
    module = model.ngrams
    for b, row in enumerate(idx.tolist()):
        for t in range(6):
            looked_up = [module.table.weight[number_of(row, t, n, 5) % 211 + (n - 2) * 211] for n in (2, 3, 4)]
            expected = model.wte.weight[row[t]] + module.mix.weight @ torch.cat(looked_up)
            torch.testing.assert_close(x[b, t], expected)


def test_an_ngram_ends_at_its_token(monkeypatch):
    """If this fails, n-grams may show the token that is to be predicted, and no check would see it."""
    torch.manual_seed(0)
    model = ModernGPT(GRAMS)
    assert "causal" not in verify.check_model(model, 5, 9, expect=GRAMS).failed
    right = modern.Ngrams.places
    monkeypatch.setattr(modern.Ngrams, "places", lambda self, idx, before=None: right(self, idx, before).roll(-1, 1))
    assert "causal" in verify.check_model(model, 5, 9).failed


def test_ngrams_begin_as_large_as_the_embedding():
    torch.manual_seed(0)
    model = ModernGPT(PRESETS["shakespeare"])
    idx = rows(4, 64, V=65)
    assert model.ngrams(idx).std().item() == pytest.approx(model.wte(idx).std().item(), rel=0.1)


def test_ngrams_are_left_out_as_whole_rows_and_in_training_alone():
    """If this fails, a long run learns its text by heart as before, or a model that writes misses what it looked up."""
    torch.manual_seed(0)
    config = replace(GRAMS, n_embd=18, n_head=1, n_kv_head=1, ngram_dropout=0.25)  # as wide as the three rows
    module = modern.Ngrams(config)
    with torch.no_grad():
        module.mix.weight.copy_(torch.eye(18))  # what comes out is what was looked up
    idx = rows(40, 9, V=5)
    found = module.table(module.places(idx))  # (B, T, 3, width)
    share = module(idx).view_as(found) / found
    left_out, kept = (share == 0).all(dim=-1), torch.isclose(share, torch.tensor(4 / 3)).all(dim=-1)
    assert (left_out ^ kept).all()
    assert left_out.float().mean().item() == pytest.approx(0.25, abs=0.05)
    assert not torch.equal(left_out[..., 0], left_out[..., 1])  # each length by itself
    assert torch.equal(module.eval()(idx).view_as(found), found)


@pytest.mark.parametrize(("layer", "norm", "silent"), [("attn", "ln_1", "mlp"), ("mlp", "ln_2", "attn")])
def test_channels_are_left_out_at_all_positions_and_in_training_alone(layer, norm, silent):
    """If this fails, what is left out at one position is told by the next, or a model that writes lacks channels."""
    torch.manual_seed(0)
    block = modern.Block(replace(SMALL, channel_dropout=0.25))
    getattr(block, silent).c_proj.weight.data.zero_()  # the other one alone adds
    x = torch.randn(60, SMALL.block_size, SMALL.n_embd)  # (B, T, C)
    with torch.no_grad():
        adds = getattr(block, layer)(getattr(block, norm)(x))
        share = (block(x) - x) / adds
        gone = share.abs() < 0.1
        assert torch.equal(gone, gone[:, :1].expand_as(gone))
        assert gone[:, 0].float().mean().item() == pytest.approx(0.25, abs=0.05)
        assert gone[:, 0].sum(dim=0).max() < 60  # each text loses channels of its own
        torch.testing.assert_close(share[~gone].median(), torch.tensor(4 / 3))
        torch.testing.assert_close(block.eval()(x), x + adds)


def test_only_tables_decay_at_their_own_rate():
    """If this fails, rare tokens keep what one text taught them, or the embedding is pulled to zero with the tables."""
    for optimizer in ("adamw", "muon"):
        config = trainer.TrainConfig(weight_decay=0.1, table_decay=0.7, optimizer=optimizer)
        model = ModernGPT(GRAMS)
        made = trainer.make_optimizer(model, config)
        groups = [(id(p), group["weight_decay"]) for group in made.param_groups for p in group["params"]]
        assert sorted(n for n, _ in groups) == sorted(map(id, model.parameters()))
        assert dict(groups)[id(model.ngrams.table.weight)] == 0.7
        assert [n for n, rate in groups if rate == 0.7] == [id(model.ngrams.table.weight)]
        assert dict(groups)[id(model.wte.weight)] == 0.0
