"""The cache against the model's own forward pass: every way to feed a text, and broken caches that must be told."""

import copy
import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from gptbook import kv_cache, modern, sampling
from gptbook.kv_cache import Cache
from gptbook.model import GPT, GPTConfig
from gptbook.modern import ModernConfig
from gptbook.recipes import PRESETS, build

CONFIG = GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=12)
EXACT = 1e-10  # float64, and weights of the size of one
FAMILY = {
    "qkv_bias": {"qkv_bias": True},
    "head_bias": {"head_bias": True},
    "tied": {"tied": True},
    "relu": {"activation": "relu"},
    "gelu_tanh": {"activation": "gelu_tanh"},
    "gpt2 init": {"init": "gpt2"},
    "no scaled residual": {"scale_residual": False},
    "all of them": {"qkv_bias": True, "head_bias": True, "tied": True, "activation": "relu", "init": "gpt2"},
    "one head, one layer": {"n_head": 1, "n_layer": 1},
}
MODERN = ModernConfig(vocab_size=11, block_size=8, n_layer=2, n_head=4, n_kv_head=2, n_embd=24)
MODERN_FAMILY = {
    "modern": {},
    "untied": {"tied": False},
    "one key for all": {"n_kv_head": 1},
    "as many keys as queries": {"n_kv_head": None},
    "layer norms and biases": {"norm": "layer", "bias": True},
    "learned positions": {"positions": "learned"},
    "without a gate": {"activation": "gelu"},
    "another gate": {"activation": "geglu"},
    "n-grams": {"ngrams": 4, "ngram_rows": 53, "ngram_width": 6},
    "pairs, and positions learned": {"ngrams": 2, "positions": "learned"},
    "none of them": {"n_kv_head": None, "norm": "layer", "bias": True, "positions": "learned", "activation": "relu"},
}
ALL = {name: replace(CONFIG, **options) for name, options in FAMILY.items()}
ALL |= {name: replace(MODERN, **options) for name, options in MODERN_FAMILY.items()}


def any_weights(config, seed=0, dtype=torch.float64):
    """A model whose every parameter is drawn anew, biases and gains too, so that each of them matters."""
    torch.manual_seed(seed)
    model = build(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


def rows(B, T, seed=0, V=CONFIG.vocab_size):
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(seed))


def fed(forward, model, idx, pieces):
    """The logits (B, T, V) of idx (B, T), read in pieces of these lengths, each with the cache of those before."""
    assert sum(pieces) == idx.size(1)
    cache, logits = None, []
    with torch.no_grad():
        for piece in idx.split(list(pieces), dim=1):
            out, cache = forward(model, piece, cache)
            logits.append(out)
    return torch.cat(logits, dim=1)


def off(forward, model, idx, pieces):
    """How far any logit at any position is from the model's own forward pass over the whole."""
    with torch.no_grad():
        return (fed(forward, model, idx, pieces) - model(idx)).abs().max().item()


def all_splits(T):
    """Every way to cut T tokens into pieces: 2^(T-1) of them."""
    for cuts in range(2 ** (T - 1)):
        pieces, length = [], 1
        for bit in range(T - 1):
            if cuts >> bit & 1:
                pieces.append(length)
                length = 0
            length += 1
        yield (*pieces, length)


ONE_BY_ONE = (1,) * 8
PATTERNS = {"one by one": ONE_BY_ONE, "prompt, then one by one": (5, 1, 1, 1), "chunks after a prefix": (2, 3, 3)}


@pytest.mark.parametrize("pieces", PATTERNS.values(), ids=PATTERNS)
@pytest.mark.parametrize("config", ALL.values(), ids=ALL)
def test_equal_to_the_full_forward(config, pieces):
    """If this fails, a token read with a cache gets other logits than without, for some member of a family."""
    assert off(kv_cache.forward, any_weights(config), rows(3, 8), pieces) < EXACT


@pytest.mark.parametrize("name", ["step-5", "lets-build", "under-the-hood"])
def test_equal_at_the_books_sizes_and_precision(name):
    """If this fails, the models of the book, as they are used, write something else with a cache than without."""
    torch.manual_seed(0)
    model = GPT(PRESETS[name]).eval()
    T = model.config.block_size
    idx = rows(2, T, V=model.config.vocab_size)
    for pieces in ((1,) * T, (T // 2, *(1,) * (T // 2)), (T // 4, T // 2, T // 4)):
        assert off(kv_cache.forward, model, idx, pieces) < 1e-4


def test_all_splits_of_a_short_text():
    """If this fails, some way to cut a text into pieces is not the same text."""
    splits = list(all_splits(6))
    assert len(set(splits)) == 32
    assert {sum(pieces) for pieces in splits} == {6}
    for config in (CONFIG, MODERN):
        model, idx = any_weights(config), rows(2, 6)
        assert max(off(kv_cache.forward, model, idx, pieces) for pieces in splits) < EXACT


@settings(max_examples=40)
@given(
    heads=st.integers(1, 3), width=st.integers(1, 4), layers=st.integers(1, 3), window=st.integers(1, 9),
    B=st.integers(1, 3), seed=st.integers(0, 2**31), data=st.data(),
)  # fmt: skip
def test_any_model_any_pieces(heads, width, layers, window, B, seed, data):
    """If this fails, the cache is right for the sizes that we tried by hand, and wrong for others."""
    config = GPTConfig(vocab_size=11, block_size=window, n_layer=layers, n_head=heads, n_embd=heads * width)
    pieces = data.draw(st.lists(st.integers(1, window), min_size=1, max_size=window).filter(lambda p: sum(p) <= window))
    assert off(kv_cache.forward, any_weights(config, seed), rows(B, sum(pieces), seed), pieces) < EXACT


@settings(max_examples=40)
@given(
    groups=st.integers(1, 3), shared=st.integers(1, 3), pairs=st.integers(1, 2), layers=st.integers(1, 3),
    window=st.integers(1, 9), B=st.integers(1, 3), seed=st.integers(0, 2**31), data=st.data(),
)  # fmt: skip
def test_any_modern_model_any_pieces(groups, shared, pairs, layers, window, B, seed, data):
    """If this fails, the cache is right for the modern sizes that we tried by hand, and wrong for others."""
    heads = groups * shared
    config = ModernConfig(
        vocab_size=11, block_size=window, n_layer=layers, n_head=heads, n_kv_head=groups, n_embd=2 * pairs * heads
    )  # fmt: skip
    pieces = data.draw(st.lists(st.integers(1, window), min_size=1, max_size=window).filter(lambda p: sum(p) <= window))
    assert off(kv_cache.forward, any_weights(config, seed), rows(B, sum(pieces), seed), pieces) < EXACT


def test_a_cache_without_its_last_tokens_is_refused():
    """If this fails, n-grams after a cache are looked up as if the text began there, and nobody hears of it."""
    model, other = (any_weights(ALL[name]) for name in ("n-grams", "modern"))
    idx = rows(2, 5)
    _, cache = kv_cache.forward(model, idx)
    assert torch.equal(cache.last, idx[:, -3:])
    _, short = kv_cache.forward(model, idx[:, :1])
    assert short.last.tolist() == [[11, 11, row] for row in idx[:, 0].tolist()]  # 11: no token stands there
    for wrong in (None, idx[:, -2:], idx[:1, -3:]):
        with pytest.raises(ValueError, match="the cache is of a model with other n-grams"):
            kv_cache.forward(model, idx[:, :1], replace(cache, last=wrong))
    with pytest.raises(ValueError, match="the cache is of a model with other n-grams"):
        kv_cache.forward(other, idx[:, :1], cache)
    forgetful = replace(cache, last=torch.full_like(cache.last, 11))
    with torch.no_grad():
        right, wrong = (kv_cache.forward(model, idx[:, :1], kept)[0] for kept in (cache, forgetful))
    assert (right - wrong).abs().max() > 1e-3


# Broken caches --------------------------------------------------------------------------------------------------------


def with_weights(change):
    """`forward` on a copy of the model that `change(model, S, T)` has altered for the call."""

    def forward(model, idx, cache=None):
        model = copy.deepcopy(model)
        change(model, 0 if cache is None else len(cache), idx.size(1))
        return kv_cache.forward(model, idx, cache)

    return forward


def with_kept(change):
    """`forward` that hands on a cache whose every tensor is change(tensor)."""

    def forward(model, idx, cache=None):
        logits, cache = kv_cache.forward(model, idx, cache)
        return logits, Cache(tuple((change(k), change(v)) for k, v in cache.layers))

    return forward


@with_weights
def forgets_positions(model, S, T):
    model.wpe.weight.data[S : S + T] = model.wpe.weight.data[:T].clone()  # every call counts from position 0


@with_weights
def no_mask_in_a_chunk(model, S, T):
    for block in model.h:
        block.attn.past[S : S + T, : S + T] = True


@with_weights
def mask_without_the_offset(model, S, T):
    for block in model.h:
        block.attn.past[S : S + T, : S + T] = torch.ones(T, S + T, dtype=torch.bool).tril()  # row t sees 0..t only


@with_weights
def mask_hides_the_token_itself(model, S, T):
    if S:
        for block in model.h:
            block.attn.past[S : S + T, : S + T] = torch.ones(T, S + T, dtype=torch.bool).tril(S - 1)


def drops_the_last(kept):
    """The newest key or value is lost: zeros stand in its place, so that the count still fits."""
    return torch.cat((kept[..., :-1, :], torch.zeros_like(kept[..., -1:, :])), dim=-2)


def keys_from_one_layer(model, idx, cache=None):
    logits, cache = kv_cache.forward(model, idx, cache)
    return logits, Cache(cache.layers[:1] * len(cache.layers))


def keys_and_values_swapped(model, idx, cache=None):
    logits, cache = kv_cache.forward(model, idx, cache)
    return logits, Cache(tuple((v, k) for k, v in cache.layers))


def keys_reversed(model, idx, cache=None):
    logits, cache = kv_cache.forward(model, idx, cache)
    return logits, Cache(tuple((k.flip(-2), v) for k, v in cache.layers))


BROKEN = {
    "positions start again": forgets_positions,
    "the last key is dropped": with_kept(drops_the_last),
    "the rows are mixed": with_kept(lambda kept: kept.roll(1, 0)),
    "the heads are mixed": with_kept(lambda kept: kept.roll(1, 1)),
    "keys in another order than values": keys_reversed,
    "the mask has no offset": mask_without_the_offset,
    "the mask hides the token itself": mask_hides_the_token_itself,
    "one layer's cache for all": keys_from_one_layer,
    "keys and values swapped": keys_and_values_swapped,
}


@pytest.mark.parametrize("pieces", PATTERNS.values(), ids=PATTERNS)
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_cache_is_told(broken, pieces):
    """If this fails, the comparison above would also pass for this broken cache."""
    assert off(broken, any_weights(CONFIG), rows(3, 8), pieces) > 1e-3


@with_weights
def turns_start_again(model, S, T):
    embed = model.embed
    model.embed = lambda idx, start=0, before=None, **rest: embed(idx, 0, before, **rest)


@with_weights
def turns_lag_behind(model, S, T):
    embed = model.embed
    model.embed = lambda idx, start=0, before=None, **rest: embed(idx, max(0, start - 1), before, **rest)


@with_weights
def modern_without_a_mask(model, S, T):
    for block in model.h:
        n = block.attn.shared
        block.attn.weights = lambda q, k, n=n: (q @ k.repeat_interleave(n, dim=1).mT / q.size(-1) ** 0.5).softmax(-1)


@with_weights
def keys_are_kept_as_they_were_before_the_turn(model, S, T):
    """The past is turned again with each call: as if what is kept had no position in it yet."""
    for block in model.h:
        weights = block.attn.weights
        block.attn.weights = lambda q, k, weights=weights: weights(
            q, torch.cat((modern.rotate(k[:, :, :S], model.cos[:S], model.sin[:S]), k[:, :, S:]), dim=-2)
        )


MODERN_BROKEN = {name: BROKEN[name] for name in BROKEN if "mask" not in name and "positions" not in name} | {
    "turns start again": turns_start_again,
    "turns lag behind": turns_lag_behind,
    "keys are turned twice": keys_are_kept_as_they_were_before_the_turn,
}


@pytest.mark.parametrize("pieces", PATTERNS.values(), ids=PATTERNS)
@pytest.mark.parametrize("broken", MODERN_BROKEN.values(), ids=MODERN_BROKEN)
def test_a_broken_cache_of_a_modern_model_is_told(broken, pieces):
    """If this fails, the comparison above would also pass for this broken cache of a modern model."""
    assert off(broken, any_weights(MODERN), rows(3, 8), pieces) > 1e-3


def test_a_modern_chunk_without_a_mask_is_told():
    """If this fails, new tokens of a modern model may read each other's future."""
    model, idx = any_weights(MODERN), rows(3, 8)
    assert off(modern_without_a_mask, model, idx, PATTERNS["chunks after a prefix"]) > 1e-3
    assert off(modern_without_a_mask, model, idx, ONE_BY_ONE) < EXACT


def test_what_only_some_patterns_see():
    """If this fails, fewer patterns or rows would do, and the page says something wrong about them."""
    model, idx = any_weights(CONFIG), rows(3, 8)
    assert off(no_mask_in_a_chunk, model, idx, PATTERNS["chunks after a prefix"]) > 1e-3
    assert off(no_mask_in_a_chunk, model, idx, ONE_BY_ONE) < EXACT  # one new token has no future to hide
    mixed = BROKEN["the rows are mixed"]
    assert off(mixed, model, idx[:1], ONE_BY_ONE) < EXACT  # one row alone cannot be mixed
    assert off(mixed, model, idx[:1].expand(3, 8), ONE_BY_ONE) < EXACT  # nor can equal rows


def test_the_order_of_what_is_kept_does_not_matter():
    """If this fails, the order of the cache tells the model something that is not in keys and values themselves."""
    for config, pieces in itertools.product((CONFIG, MODERN), PATTERNS.values()):
        model, idx = any_weights(config), rows(3, 8)
        assert off(with_kept(lambda kept: kept.flip(-2)), model, idx, pieces) < EXACT


# A value, and nothing else --------------------------------------------------------------------------------------------


def snapshot(cache):
    return [tensor.clone() for layer in cache.layers for tensor in layer]


def unchanged(cache, before):
    return all(torch.equal(a, b) for a, b in zip(snapshot(cache), before, strict=True))


def test_the_cache_passed_in_is_unchanged():
    """If this fails, two continuations of one prompt disturb each other."""
    model, idx = any_weights(CONFIG), rows(2, 8)
    with torch.no_grad():
        _, cache = kv_cache.forward(model, idx[:, :4])
        before = snapshot(cache)
        one, longer = kv_cache.forward(model, idx[:, 4:6], cache)
        other, _ = kv_cache.forward(model, rows(2, 3, seed=9), cache)
        again, _ = kv_cache.forward(model, idx[:, 4:6], cache)
    assert unchanged(cache, before)
    assert (len(cache), len(longer)) == (4, 6)
    assert torch.equal(one, again)
    assert one.shape != other.shape
    cache.layers[0][0][0, 0, 0, 0] += 1.0  # the control: a change of one number is seen
    assert not unchanged(cache, before)
    assert all((a[..., :4, :] == b).all() for a, b in zip(snapshot(longer), before, strict=True))


@pytest.mark.parametrize("config", [CONFIG, MODERN], ids=["gpt", "modern"])
def test_nothing_is_left_on_the_model(config):
    """If this fails, a second text with the same model is read as if it continued the first."""
    model = any_weights(config)
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    tensors = {name: tensor.clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    for seed in (1, 2):
        assert off(kv_cache.forward, model, rows(2, 8, seed), (3, 1, 4)) < EXACT
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    now = dict((*model.named_parameters(), *model.named_buffers()))
    assert all(torch.equal(tensor, now[name]) for name, tensor in tensors.items())
    assert now.keys() == tensors.keys()


class Remembering:
    """The control: a cache that is state of its own, as one kept on the model would be."""

    def __init__(self):
        self.cache = None

    def __call__(self, model, idx, cache=None):
        logits, self.cache = kv_cache.forward(model, idx, self.cache)
        return logits, self.cache


def test_a_cache_that_remembers_is_told():
    """If this fails, the test of a second text above sees nothing."""
    model, remembering = any_weights(CONFIG), Remembering()
    assert off(remembering, model, rows(2, 4, 1), (3, 1)) < EXACT
    assert off(remembering, model, rows(2, 4, 2), (3, 1)) > 1e-3


@pytest.mark.parametrize(
    ("config", "name"),
    [(CONFIG, "dropout"), (MODERN, "dropout"), (MODERN, "channel_dropout"), (MODERN, "ngram_dropout")],
)
def test_training_mode_has_no_dropout_in_it(config, name):
    """If this fails, a model that was left in training mode writes at random with a cache."""
    more = {"ngrams": 3, "ngram_rows": 53} if name == "ngram_dropout" else {}
    model = any_weights(replace(config, **{name: 0.5}, **more))
    idx = rows(2, 8)
    expected = model(idx)
    model.train()
    state = torch.get_rng_state()
    assert (fed(kv_cache.forward, model, idx, (4, 1, 3)) - expected).abs().max() < EXACT
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in model.modules())
    assert (model(idx) - expected).abs().max() > 1e-3  # the control: the model's own dropout is live


def test_the_precision_is_the_models():
    """If this fails, a cache loses digits, or widens what should stay narrow."""
    for config, dtype in itertools.product((CONFIG, MODERN), (torch.float64, torch.float32, torch.bfloat16)):
        model = any_weights(config, dtype=dtype)
        logits, cache = kv_cache.forward(model, rows(1, 4))
        assert {logits.dtype, *(tensor.dtype for tensor in snapshot(cache))} == {dtype}


@pytest.mark.parametrize("config", [CONFIG, MODERN], ids=["gpt", "modern"])
def test_gradients_are_those_of_the_full_forward(config):
    """If this fails, the cache cuts the way back: it is the same function, so it has the same gradients."""
    model, idx = any_weights(config), rows(2, 6)
    _, cache = kv_cache.forward(model, idx[:, :4])
    kv_cache.forward(model, idx[:, 4:], cache)[0].square().sum().backward()
    got = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(idx)[:, 4:].square().sum().backward()
    for mine, parameter in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, rtol=1e-8, atol=1e-8)


# The edge of the window -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [CONFIG, MODERN], ids=["gpt", "modern"])
@pytest.mark.parametrize(("kept", "new"), [(8, 1), (7, 2), (1, 8), (4, 6)])
def test_one_token_too_many_is_refused(kept, new, config):
    """If this fails, a token gets a position that no training has seen, or an IndexError that says nothing."""
    model, idx = any_weights(config), rows(2, 8)
    _, cache = kv_cache.forward(model, idx[:, :kept])
    before = snapshot(cache)
    with pytest.raises(ValueError, match=r"start again, without a cache, from the last tokens") as error:
        kv_cache.forward(model, rows(2, new), cache)
    assert "\n" not in str(error.value)
    assert f"the cache holds {kept} tokens and {new} more come, the model reads 8" in str(error.value)
    assert unchanged(cache, before)
    if kept < 8:  # exactly full is no error
        logits, full = kv_cache.forward(model, idx[:, kept:], cache)
        assert len(full) == 8
        assert (logits - model(idx)[:, kept:]).abs().max() < EXACT


def test_what_does_not_fit_together_is_refused():
    """If this fails, a cache of other rows or of another model is broadcast, or read as if it were this one's."""
    model = any_weights(CONFIG)
    _, cache = kv_cache.forward(model, rows(2, 3))
    for idx in (rows(1, 2), rows(3, 2)):
        with pytest.raises(ValueError, match="goes with the model and the rows"):
            kv_cache.forward(model, idx, cache)
    for options in ({"n_layer": 1}, {"n_layer": 3}, {"n_head": 3}, {"n_embd": 24}):
        with pytest.raises(ValueError, match="goes with the model and the rows") as error:
            kv_cache.forward(any_weights(replace(CONFIG, **options)), rows(2, 2), cache)
        assert "\n" not in str(error.value)
    _, other = kv_cache.forward(any_weights(MODERN), rows(2, 3))
    for options in ({"n_kv_head": None}, {"n_kv_head": 1}, {"n_layer": 1}, {"n_embd": 48}):
        with pytest.raises(ValueError, match="goes with the model and the rows"):
            kv_cache.forward(any_weights(replace(MODERN, **options)), rows(2, 2), other)
    for idx in (torch.zeros(3, dtype=torch.long), torch.zeros(2, 0, dtype=torch.long), torch.zeros(2, 2)):
        with pytest.raises(ValueError, match="idx"):
            kv_cache.forward(model, idx, cache)
    with pytest.raises(ValueError, match="outside"):
        kv_cache.forward(model, torch.full((2, 1), 11), cache)


# Generation -----------------------------------------------------------------------------------------------------------


def both(model, idx, tokens, forward_generate=kv_cache.generate, **settings):
    """What generation without a cache writes, and what `forward_generate` does, from the same seed."""
    return tuple(
        generate(model, idx, tokens, generator=torch.Generator().manual_seed(4), **settings)
        for generate in (sampling.generate, forward_generate)
    )


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0}, {"temperature": 0.7, "top_k": 5}, {"top_p": 0.8}], ids=str
)
@pytest.mark.parametrize("window", [256, 64, 3, 1])
@pytest.mark.parametrize("config", [CONFIG, MODERN], ids=["gpt", "modern"])
def test_generation_writes_the_same(config, window, settings):
    """If this fails, keeping the past changes what a model writes: in the window, at its edge, or past it."""
    model = any_weights(replace(config, block_size=window))
    without, cached = both(model, rows(2, 2), 200, **settings)
    assert cached.shape == (2, 202)
    assert torch.equal(without, cached)


@pytest.mark.parametrize("prompt", [1, 7, 8, 9, 20])
def test_generation_from_any_prompt(prompt):
    """If this fails, a prompt that fills the window, or does not fit it, is continued in another way."""
    without, cached = both(any_weights(CONFIG), rows(3, prompt), 12)
    assert torch.equal(without, cached)
    assert torch.equal(cached[:, :prompt], rows(3, prompt))


def goes_on_past_the_window(model, idx, tokens, generator):
    """The wrong way: the oldest entry is dropped, and the rest kept as it is."""
    logits, cache = kv_cache.forward(model, idx)
    for _ in range(tokens):
        token = sampling.next_token(logits[:, -1], generator=generator)
        idx = torch.cat((idx, token[:, None]), dim=1)
        if len(cache) == model.config.block_size:
            cache = Cache(tuple((k[..., 1:, :], v[..., 1:, :]) for k, v in cache.layers))
        logits, cache = kv_cache.forward(model, token[:, None], cache)
    return idx


def test_a_cache_that_slides_is_told():
    """If this fails, the comparison of what is written would also pass for a cache with wrong positions in it."""
    model = any_weights(CONFIG)
    without, sliding = both(model, rows(3, 2), 60, goes_on_past_the_window)
    assert torch.equal(without[:, :8], sliding[:, :8])
    assert not torch.equal(without, sliding)


def test_generation_leaves_modes_and_checks_as_without_a_cache():
    """If this fails, the two ways to generate differ in what they accept or leave behind."""
    model = any_weights(replace(CONFIG, dropout=0.5))
    model.train()
    model.h[0].eval()
    modes = [module.training for module in model.modules()]
    without, cached = both(model, rows(2, 2), 12)
    assert torch.equal(without, cached)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(kv_cache.generate(model, rows(2, 3), 0), rows(2, 3))
    for idx, tokens in ((rows(2, 0), 3), (rows(2, 2), -1), (rows(2, 2).double(), 3)):
        with pytest.raises(ValueError, match=r"token|idx"):
            kv_cache.generate(model, idx, tokens)


def test_each_step_in_the_window_computes_one_token():
    """If this fails, generation with a cache gives the right tokens and saves nothing."""
    model, lengths = any_weights(CONFIG), []
    hook = model.lm_head.register_forward_hook(lambda module, args, output: lengths.append(args[0].size(1)))
    kv_cache.generate(model, rows(1, 3), 8)
    hook.remove()
    assert lengths == [3, 1, 1, 1, 1, 1, 8, 8]


# Work and memory ------------------------------------------------------------------------------------------------------


def counted(model, idx, cache=None):
    """Multiply-adds of one row as PyTorch counts them; it counts multiplications and additions apart."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        kv_cache.forward(model, idx, cache)
    return counter.get_total_flops() / 2 / idx.size(0)


@settings(max_examples=30)
@given(
    heads=st.integers(1, 3), width=st.integers(1, 4), layers=st.integers(1, 3), V=st.integers(2, 9),
    kept=st.integers(0, 4), new=st.integers(1, 4), B=st.integers(1, 2), biased=st.booleans(),
)  # fmt: skip
def test_work_is_what_pytorch_counts(heads, width, layers, V, kept, new, B, biased):
    """If this fails, the page's formula leaves out a matrix product, or counts one that is not there."""
    config = GPTConfig(
        vocab_size=V, block_size=8, n_layer=layers, n_head=heads, n_embd=heads * width, qkv_bias=biased
    )  # fmt: skip
    model = any_weights(config)
    cache = kv_cache.forward(model, rows(B, kept, V=V))[1] if kept else None
    assert kv_cache.multiply_adds(config, new, kept) == counted(model, rows(B, new, V=V), cache)


@settings(max_examples=30)
@given(
    groups=st.integers(1, 3), shared=st.integers(1, 3), pairs=st.integers(1, 2), layers=st.integers(1, 3),
    kept=st.integers(0, 4), new=st.integers(1, 4), inner=st.none() | st.integers(1, 9), biased=st.booleans(),
    activation=st.sampled_from(["swiglu", "geglu", "relu"]),
)  # fmt: skip
def test_work_of_a_modern_model_is_what_pytorch_counts(
    groups, shared, pairs, layers, kept, new, inner, biased, activation
):  # fmt: skip
    """If this fails, the formula for a modern model leaves out a matrix product, or counts one that is not there."""
    config = ModernConfig(
        vocab_size=7, block_size=8, n_layer=layers, n_head=groups * shared, n_kv_head=groups, n_inner=inner,
        n_embd=2 * pairs * groups * shared, activation=activation, bias=biased,
    )  # fmt: skip
    model = any_weights(config)
    cache = kv_cache.forward(model, rows(2, kept, V=7))[1] if kept else None
    assert kv_cache.multiply_adds(config, new, kept) == counted(model, rows(2, new, V=7), cache)


def test_work_of_the_models_own_forward():
    """If this fails, the work without a cache is not what the page says it is."""
    model = any_weights(CONFIG)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(rows(1, 7))
    assert kv_cache.multiply_adds(CONFIG, 7) == counter.get_total_flops() / 2
    assert kv_cache.multiply_adds(CONFIG, 7) != kv_cache.multiply_adds(CONFIG, 6)
    # The control: hidden scores are computed too, and half of the square is another number.
    pairs = 7 * 8 // 2
    assert 7 * (12 * 2 * 12**2 + 11 * 12) + 2 * 2 * 12 * pairs != counter.get_total_flops() / 2


def test_memory_is_what_is_held():
    """If this fails, the cache holds more memory than it says: the queries too, or a past that was copied."""
    model, idx = any_weights(CONFIG), rows(3, 8)
    for pieces in ((8,), (1,) * 8, (3, 5)):
        cache = None
        for piece in idx.split(list(pieces), dim=1):
            with torch.no_grad():
                _, cache = kv_cache.forward(model, piece, cache)
        held = sum(tensor.untyped_storage().nbytes() for tensor in tensors_of(cache))
        assert cache.bytes == held == 2 * 2 * 3 * 8 * 12 * 8  # keys and values, L, B, T, C, bytes of a float64
    _, cache = kv_cache.forward(any_weights(MODERN), idx)  # fewer heads are kept than ask
    held = sum(tensor.untyped_storage().nbytes() for tensor in tensors_of(cache))
    assert cache.bytes == held == 2 * 2 * 3 * 8 * (2 * 6) * 8
    views = Cache(tuple((k[..., :4, :], v[..., :4, :]) for k, v in cache.layers))
    assert views.bytes != sum(tensor.untyped_storage().nbytes() for tensor in tensors_of(views))


def tensors_of(cache):
    """The tensors themselves, not copies."""
    return [tensor for layer in cache.layers for tensor in layer]


def test_memory_of_a_model_that_is_never_filled():
    """If this fails, the page's numbers for GPT-2, taken from shapes alone, are not those of a real cache."""
    with torch.device("meta"):
        model = GPT(replace(PRESETS["gpt2"], vocab_size=3))
        _, cache = kv_cache.forward(model, torch.zeros(1, 1024, dtype=torch.long))
    assert cache.bytes == 2 * 12 * 1024 * 768 * 4


def test_a_cache_of_one_token_holds_no_more_than_it_says(tiny_config):
    """If this fails, kept keys and values hold the queries' memory too, also where a view would be contiguous."""
    _, cache = kv_cache.forward(GPT(tiny_config), torch.zeros(1, 1, dtype=torch.long))
    held = sum(t.untyped_storage().nbytes() for layer in cache.layers for t in layer)
    assert held == cache.bytes


def test_a_cache_without_layers_is_refused(tiny_config):
    with pytest.raises(ValueError, match="the cache holds 0 layers"):
        kv_cache.forward(GPT(tiny_config), torch.zeros(1, 1, dtype=torch.long), kv_cache.Cache(()))
