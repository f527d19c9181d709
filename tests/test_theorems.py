"""The theorems of the book, each under the name that its page gives it.

The build pairs the two: a theorem without a test here, or a test without its theorem on a page, fails it.
"""

import itertools
import math
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gptbook import kv_cache, lens, modern, writer
from gptbook.model import GPT, Block, CausalSelfAttention, GPTConfig
from gptbook.modern import ModernConfig, ModernGPT, rotary, rotate
from gptbook.sampling import generate, probabilities
from gptbook.tokenizers import BYTES, BPETokenizer, CharTokenizer
from gptbook.verify import expected_parameters


@pytest.mark.theorem("The three averages are equal")
@settings(max_examples=50, deadline=None)
@given(T=st.integers(1, 12), C=st.integers(1, 5), seed=st.integers(0, 2**31))
def test_three_averages_are_equal(T, C, seed):
    """If this fails, the theorem of page 3 is wrong: its three formulas, written out here, are not the same mean.

    That the page's own functions compute these formulas is asserted on the page.
    """
    x = torch.randn(T, C, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    mean = torch.cumsum(x, dim=0) / torch.arange(1, T + 1)[:, None]
    matrix = torch.tensor([[1 / (t + 1) if s <= t else 0.0 for s in range(T)] for t in range(T)], dtype=torch.float64)
    hidden = torch.tensor([[0.0 if s <= t else -math.inf for s in range(T)] for t in range(T)], dtype=torch.float64)
    torch.testing.assert_close(matrix @ x, mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(F.softmax(hidden, dim=1) @ x, mean, rtol=0, atol=1e-12)


@pytest.mark.theorem("Decoding undoes encoding")
@settings(max_examples=100, deadline=None)
@given(data=st.data(), text=st.text(min_size=1))
def test_decoding_undoes_encoding(data, text):
    """If this fails, some character does not survive the way into numbers and back."""
    tokenizer = CharTokenizer.train(text)
    string = data.draw(st.text(st.sampled_from(sorted(set(text)))))
    assert tokenizer.decode(tokenizer.encode(string)) == string


@pytest.mark.theorem("Counting gives the best table")
@settings(max_examples=100, deadline=None)
@given(counts=st.lists(st.integers(0, 50), min_size=2, max_size=8).filter(any), seed=st.integers(0, 2**31))
def test_counting_gives_the_best_table(counts, seed):
    """If this fails, some other probabilities cost less on counts like these than their own shares do."""
    n = torch.tensor(counts, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    others = torch.rand(20, len(n), dtype=torch.float64, generator=generator) + 1e-9
    shares = n / n.sum()

    def cost(p):
        seen = n > 0  # what never occurs costs nothing, whatever its probability
        return -(n[seen] * p[..., seen].log()).sum(dim=-1) / n.sum()

    assert (cost(others / others.sum(dim=1, keepdim=True)) >= cost(shares) - 1e-12).all()
    near = shares + 1e-3 * (1 / len(n) - shares)  # a small step towards the blind guess
    if not torch.allclose(shares, near, atol=1e-9):
        assert cost(near) > cost(shares)


@pytest.mark.theorem("Softmax ignores a shift")
@settings(max_examples=100, deadline=None)
@given(row=st.lists(st.floats(-20, 20), min_size=1, max_size=9), shift=st.floats(-300, 300))
def test_softmax_ignores_a_shift(row, shift):
    """If this fails, more than the differences between scores decides what PyTorch's softmax makes of them."""
    by_hand = [math.exp(a) / sum(map(math.exp, row)) for a in row]
    scores = torch.tensor(row, dtype=torch.float64)
    torch.testing.assert_close(F.softmax(scores + shift, dim=0).tolist(), by_hand, rtol=1e-9, atol=1e-12)
    if len(row) > 1:  # the control: a factor is no shift
        spread = scores - scores.min()
        if spread.max() > 0.1:
            assert not torch.allclose(F.softmax(2 * scores, dim=0), F.softmax(scores, dim=0), rtol=1e-3, atol=0)


@pytest.mark.theorem("The variance of a dot product")
@settings(max_examples=40, deadline=None)
@given(
    D=st.integers(1, 3),
    values=st.lists(st.floats(-5, 5), min_size=2, max_size=3).filter(lambda v: max(v) - min(v) > 0.1),
    others=st.lists(st.floats(-5, 5), min_size=2, max_size=3).filter(lambda v: max(v) - min(v) > 0.1),
)
def test_variance_of_a_dot_product(D, values, others):
    """If this fails, scores need another scale than the root of D: every case of small distributions is enumerated."""

    def standard(numbers):  # the same chance for each number, brought to mean 0 and variance 1
        mean = sum(numbers) / len(numbers)
        deviation = math.sqrt(sum((n - mean) ** 2 for n in numbers) / len(numbers))
        return [(n - mean) / deviation for n in numbers]

    queries = list(itertools.product(standard(values), repeat=D))
    keys = list(itertools.product(standard(others), repeat=D))
    dots = [sum(a * b for a, b in zip(q, k, strict=True)) for q in queries for k in keys]
    mean = sum(dots) / len(dots)
    assert abs(mean) < 1e-9
    assert sum(d * d for d in dots) / len(dots) == pytest.approx(D)


configurations = st.builds(
    lambda heads, width, **rest: GPTConfig(n_head=heads, n_embd=heads * width, **rest),
    heads=st.integers(1, 4),
    width=st.integers(1, 6),
    vocab_size=st.integers(2, 40),
    block_size=st.integers(2, 12),
    n_layer=st.integers(1, 4),
)


@pytest.mark.theorem("The parameter formula")
@settings(max_examples=50, deadline=None)
@given(config=configurations)
def test_parameter_formula(config):
    """If this fails, a parameter was added to the model, or lost, that page 8 does not account for."""
    V, T, L, C = config.vocab_size, config.block_size, config.n_layer, config.n_embd
    counted = sum(p.numel() for p in GPT(config).parameters())
    assert counted == (2 * V + T + 2) * C + L * (12 * C**2 + 10 * C)
    assert counted == expected_parameters(config)


@pytest.mark.theorem("The GPT is causal")
@settings(max_examples=30, deadline=None)
@given(config=configurations, data=st.data(), seed=st.integers(0, 2**31))
def test_gpt_is_causal(config, data, seed):
    """If this fails, some logit depends on a token that comes after its position."""
    torch.manual_seed(seed)
    model = GPT(config).eval()
    for parameter in model.parameters():  # any weights, not only initial ones
        torch.nn.init.normal_(parameter)
    T = config.block_size
    cut = data.draw(st.integers(1, T - 1))
    idx = torch.randint(config.vocab_size, (2, T))  # (B, T)
    other = idx.clone()
    other[:, cut:] = torch.randint(config.vocab_size, (2, T - cut))
    with torch.no_grad():
        assert torch.equal(model(idx)[:, :cut], model(other)[:, :cut])


@pytest.mark.theorem("LayerNorm lands on a sphere")
@settings(max_examples=50, deadline=None)
@given(C=st.integers(3, 200), scale=st.floats(0.1, 10.0), seed=st.integers(0, 2**31))
def test_layer_norm_lands_on_a_sphere(C, scale, seed):
    """If this fails, PyTorch's LayerNorm (without epsilon, gain and bias) has another image than page 6 says."""
    u = torch.randn(20, C, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    y = F.layer_norm(u, (C,), eps=0.0)
    torch.testing.assert_close(y.sum(dim=1), torch.zeros(20, dtype=torch.float64), rtol=0, atol=1e-9)
    torch.testing.assert_close(y.norm(dim=1), torch.full((20,), math.sqrt(C), dtype=torch.float64))
    torch.testing.assert_close(F.layer_norm(scale * u + 3.0, (C,), eps=0.0), y, rtol=1e-6, atol=1e-6)
    # Onto, not only into: a point of the sphere is its own image.
    torch.testing.assert_close(F.layer_norm(y, (C,), eps=0.0), y, rtol=1e-9, atol=1e-9)


@pytest.mark.theorem("The straight path")
@settings(max_examples=30, deadline=None)
@given(N=st.integers(1, 5), C=st.integers(1, 4), size=st.floats(0.1, 2.0), seed=st.integers(0, 2**31))
def test_straight_path(N, C, size, seed):
    """If this fails, the Jacobian of a residual stream is not the sum over all ways past or through its layers.

    The stream here is one of formulas; the next test holds the model's blocks to the theorem. The layers' own Jacobians
    come from a formula, the stream's Jacobian and gradients from automatic differentiation.
    """
    generator = torch.Generator().manual_seed(seed)
    ups, downs = size * torch.randn(2, N, C, C, dtype=torch.float64, generator=generator)
    x, last = torch.randn(2, C, dtype=torch.float64, generator=generator)

    def layer(n, u):
        return downs[n] @ torch.tanh(ups[n] @ u)

    def stream(u):
        for n in range(N):
            u = u + layer(n, u)
        return u

    streams, jacobians = [x.requires_grad_()], []
    for n in range(N):
        u = streams[-1]
        slope = 1 - torch.tanh(ups[n] @ u.detach()) ** 2
        jacobians.append(downs[n] @ torch.diag(slope) @ ups[n])
        streams.append(u + layer(n, u))

    paths = []
    for chosen in itertools.product((False, True), repeat=N):
        path = torch.eye(C, dtype=torch.float64)
        for n in range(N):
            path = jacobians[n] @ path if chosen[n] else path
        paths.append(path)
    assert len(paths) == 2**N
    assert torch.equal(paths[0], torch.eye(C, dtype=torch.float64))  # past every layer
    true = torch.autograd.functional.jacobian(stream, x.detach())
    torch.testing.assert_close(sum(paths), true, rtol=1e-8, atol=1e-8 * float(1 + true.abs().max()))

    gradients = torch.autograd.grad(streams[-1] @ last, streams)
    torch.testing.assert_close(gradients[-1], last)
    through = sum(jacobian.T @ g for jacobian, g in zip(jacobians, gradients[1:], strict=True))
    torch.testing.assert_close(gradients[0], last + through, rtol=1e-8, atol=1e-8 * float(1 + gradients[0].abs().max()))


class PostNorm(Block):
    """The block of Vaswani et al. 2017, section 3.1: the norms stand on the stream itself."""

    def forward(self, x):
        x = self.ln_1(x + self.attn(x))
        return self.ln_2(x + self.mlp(x))


def straight_path_error(kind, N, H, D, T, seed) -> float:
    """How far the Jacobian of N blocks is from the sum over all paths, and the gradient from its own sum, at most.

    The paths are those of the theorem: past or through each sublayer, an attention layer or an MLP behind its norm.
    """
    torch.manual_seed(seed)
    config = GPTConfig(block_size=T, n_layer=N, n_head=H, n_embd=H * D)
    blocks = [kind(config).double().requires_grad_(False) for _ in range(N)]
    for norm in (norm for block in blocks for norm in (block.ln_1, block.ln_2)):  # a gain and a bias that are some
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    sublayers = [f for b in blocks for f in (lambda x, b=b: b.attn(b.ln_1(x)), lambda x, b=b: b.mlp(b.ln_2(x)))]
    shape = (1, T, H * D)
    x = torch.randn(shape, dtype=torch.float64)

    def jacobian(f, at):
        return torch.autograd.functional.jacobian(lambda row: f(row.view(shape)).flatten(), at.flatten())

    stream, jacobians, paths = x, [], [torch.eye(x.numel(), dtype=torch.float64)]
    for sublayer in sublayers:
        jacobians.append(jacobian(sublayer, stream))
        paths += [jacobians[-1] @ path for path in paths]
        stream = stream + sublayer(stream)
    assert len(paths) == 2 ** (2 * N)
    true = jacobian(torch.nn.Sequential(*blocks), x)
    end = torch.randn(x.numel(), dtype=torch.float64)
    gradients = [end]
    for n in range(N, 0, -1):  # by automatic differentiation, block by block from the end
        at = torch.nn.Sequential(*blocks[: n - 1])(x)
        gradients.append(jacobian(blocks[n - 1], at).T @ gradients[-1])
    added = end
    for J in reversed(jacobians):
        added = added + J.T @ added
    return max(float((sum(paths) - true).abs().max()), float((added - gradients[-1]).abs().max()))


@settings(max_examples=15, deadline=None)
@given(N=st.integers(1, 2), H=st.integers(1, 2), D=st.integers(1, 2), T=st.integers(1, 3), seed=st.integers(0, 2**31))
def test_straight_path_of_the_models_blocks(N, H, D, T, seed):
    """If this fails, a block of the model does more to the stream than to add to it."""
    if H * D > 1:  # a norm of one number is its bias, and its slope divides zero by zero
        assert straight_path_error(Block, N, H, D, T, seed) < 1e-7


@pytest.mark.parametrize("seed", range(3))
def test_no_straight_path_with_the_norms_on_the_stream(seed):
    """If this fails, the test above would pass for a post-norm block as well."""
    assert straight_path_error(PostNorm, 1, 2, 2, 3, seed) > 1e-2


@pytest.mark.theorem("Heads add up")
@settings(max_examples=50, deadline=None)
@given(H=st.integers(1, 5), D=st.integers(1, 4), T=st.integers(1, 6), seed=st.integers(0, 2**31))
def test_heads_add_up(H, D, T, seed):
    """If this fails, the attention layer is not the sum of its heads, each through its own slice of the projection."""
    torch.manual_seed(seed)
    C = H * D
    layer = CausalSelfAttention(GPTConfig(block_size=T, n_head=H, n_embd=C)).double().requires_grad_(False)
    x = torch.randn(2, T, C, dtype=torch.float64)  # (B, T, C)
    w_q, w_k, w_v = layer.c_attn.weight.split(C)  # (C, C) each
    terms = []
    for h in range(H):
        rows = slice(h * D, (h + 1) * D)
        # PyTorch's own attention is the oracle for a head, so that nothing of the layer's way to cut heads is used.
        y = F.scaled_dot_product_attention(x @ w_q[rows].T, x @ w_k[rows].T, x @ w_v[rows].T, is_causal=True)
        terms.append((y, layer.c_proj.weight[:, rows].T))  # (B, T, D) and (D, C)
    added = sum(y @ w for y, w in terms) + layer.c_proj.bias
    torch.testing.assert_close(layer(x), added, rtol=0, atol=1e-12)
    if H > 1:  # each head through its neighbour's slice is another layer
        swapped = sum(y @ terms[h - 1][1] for h, (y, _) in enumerate(terms)) + layer.c_proj.bias
        assert (layer(x) - swapped).abs().max() > 1e-9


def unmasked(config, seed):
    """A GPT of any weights in float64, without a mask and without positions."""
    torch.manual_seed(seed)
    model = GPT(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        model.wpe.weight.zero_()
    for block in model.h:
        block.attn.past.fill_(True)
    return model


@pytest.mark.theorem("Attention without a mask is permutation equivariant")
@settings(max_examples=50, deadline=None)
@given(config=configurations, data=st.data(), seed=st.integers(0, 2**31))
def test_attention_without_a_mask_is_permutation_equivariant(config, data, seed):
    """If this fails, something other than the mask and the positions tells the model the order of its tokens."""
    model = unmasked(config, seed)
    order = data.draw(st.permutations(range(config.block_size)))
    P = torch.eye(config.block_size, dtype=torch.float64)[order]  # (T, T)
    x = torch.randn(2, config.block_size, config.n_embd, dtype=torch.float64)  # (B, T, C)
    idx = torch.randint(config.vocab_size, (2, config.block_size))  # (B, T)
    with torch.no_grad():
        for f in (model.h[0].attn, model.h[0], model.h):  # one layer, one block, the stack of all
            one_after_another = torch.nn.Sequential(*f) if f is model.h else f
            torch.testing.assert_close(one_after_another(P @ x), P @ one_after_another(x), rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(model(idx[:, order]), P @ model(idx), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("given_away_by", ["mask", "positions"])
def test_the_mask_and_the_positions_each_end_the_equivariance(given_away_by):
    """If this fails, the test above would also pass for a model that knows the order of its tokens."""
    config = GPTConfig(vocab_size=9, block_size=6, n_layer=2, n_head=2, n_embd=8)
    model = unmasked(config, 0)
    if given_away_by == "mask":
        for block in model.h:
            block.attn.past.tril_()
    else:
        torch.nn.init.normal_(model.wpe.weight)
    idx = torch.arange(6)[None]  # (B, T)
    for order in ([1, 0, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [1, 2, 3, 4, 5, 0]):
        with torch.no_grad():
            assert (model(idx[:, order]) - model(idx)[:, order]).abs().max() > 1e-3


@pytest.mark.theorem("Greedy is the limit of temperature")
@settings(max_examples=200, deadline=None)
@given(row=st.lists(st.integers(-4, 4), min_size=1, max_size=8), exponent=st.floats(-3, 2))
def test_greedy_is_the_limit_of_temperature(row, exponent):
    """If this fails, a low temperature does not lead to the likeliest tokens, or ties are not shared evenly."""
    temperature = 10**exponent
    highest = [i for i, z in enumerate(row) if z == max(row)]
    others = [z for z in row if z < max(row)]
    p = F.softmax(torch.tensor(row, dtype=torch.float64) / temperature, dim=0).tolist()  # (V,)
    bound = len(row) * math.exp(-(max(row) - max(others)) / temperature) if others else 0.0
    assert math.fsum(p) - math.fsum(p[i] for i in highest) <= bound + 1e-12
    for i in highest:
        assert abs(p[i] - 1 / len(highest)) <= bound + 1e-12
    if temperature <= 0.01:  # the distance is 1 at least: here the limit is reached to the last digit
        assert p == pytest.approx([1 / len(highest) * (z == max(row)) for z in row], abs=1e-12)
        assert probabilities(torch.tensor(row).float(), temperature).tolist() == pytest.approx(p, abs=1e-6)
    first = [float(i == highest[0]) for i in range(len(row))]
    assert probabilities(torch.tensor(row).float(), 0).tolist() == first


def test_the_limit_of_high_temperatures_is_not_greedy():
    """If this fails, the test above would also pass for a temperature that is upside down."""
    p = F.softmax(torch.tensor([3.0, 1.0, 0.0], dtype=torch.float64) / 1000, dim=0)
    assert (p - 1 / 3).abs().max() < 1e-2
    assert p[0] < 0.5


@pytest.mark.theorem("Greedy text ends in a loop")
@settings(max_examples=25, deadline=None)
@given(V=st.integers(2, 3), T=st.integers(1, 4), seed=st.integers(0, 2**31), data=st.data())
def test_greedy_text_ends_in_a_loop(V, T, seed, data):
    """If this fails, the next token at temperature 0 depends on more than the window: on the past, or on chance."""
    torch.manual_seed(seed)
    model = GPT(GPTConfig(vocab_size=V, block_size=T, n_layer=1, n_head=1, n_embd=4))
    for parameter in model.parameters():  # weights large enough for every window to have an opinion of its own
        torch.nn.init.normal_(parameter)
    start = data.draw(st.lists(st.integers(0, V - 1), min_size=T, max_size=T))
    out = generate(model, torch.tensor([start]), 4 * V**T, temperature=0)[0].tolist()

    met, n = {}, 0  # by hand, from the windows alone
    while (window := tuple(out[n : n + T])) not in met:
        met[window] = n
        n += 1
    assert n <= V**T
    period = n - met[window]
    loop = out[met[window] :]
    assert all(loop[i] == loop[i + period] for i in range(len(loop) - period))


def test_sampled_text_need_not_end_in_a_loop():
    """If this fails, the test above would also pass for a model that can say one thing only."""
    model = GPT(GPTConfig(vocab_size=2, block_size=3, n_layer=1, n_head=1, n_embd=4))
    torch.nn.init.zeros_(model.lm_head.weight)  # both tokens are alike: temperature 0 takes the first, a draw either
    start = torch.tensor([[0, 1, 0]])
    greedy = generate(model, start, 60, temperature=0)[0].tolist()
    drawn = generate(model, start, 60, generator=torch.Generator().manual_seed(0))[0].tolist()
    assert greedy[3:] == [0] * 60
    assert all(any(drawn[i] != drawn[i + n] for i in range(20, len(drawn) - n)) for n in range(1, 9))


def any_model(config, seed):
    """A GPT of any weights in float64, not only of initial ones."""
    torch.manual_seed(seed)
    model = GPT(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model


@pytest.mark.theorem("The cache changes nothing")
@settings(max_examples=50, deadline=None)
@given(config=configurations, data=st.data(), seed=st.integers(0, 2**31))
def test_cache_changes_nothing(config, data, seed):
    """If this fails, some logit, or some key or value that is kept, depends on whether the past was read before.

    The oracle is the model's own forward pass, for the keys and values too: a hook takes them from its c_attn.
    """
    model = any_model(config, seed)
    total = data.draw(st.integers(2, config.block_size))
    S = data.draw(st.integers(1, total - 1))
    idx = torch.randint(config.vocab_size, (2, total))  # (B, S+T)
    with torch.no_grad():
        _, cache = kv_cache.forward(model, idx[:, :S])
        logits, cache = kv_cache.forward(model, idx[:, S:], cache)  # (B, T, V)
        made = []
        hooks = [block.attn.c_attn.register_forward_hook(lambda *call: made.append(call[2])) for block in model.h]
        whole = model(idx)  # (B, S+T, V)
    for hook in hooks:
        hook.remove()
    torch.testing.assert_close(logits, whole[:, S:], rtol=1e-9, atol=1e-9)
    for (keys, values), qkv in zip(cache.layers, made, strict=True):
        _, k, v = qkv.split(config.n_embd, dim=-1)  # (B, S+T, C) each
        torch.testing.assert_close(keys.transpose(1, 2).flatten(2), k, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(values.transpose(1, 2).flatten(2), v, rtol=1e-9, atol=1e-9)


@pytest.mark.theorem("Half a scale")
@settings(max_examples=100, deadline=None)
@given(width=st.integers(1, 40), size=st.sampled_from([1e-6, 0.02, 1.0, 1e6]), seed=st.integers(0, 2**31))
def test_half_a_scale(width, size, seed):
    """If this fails, rounding to whole numbers moves some weight farther than the page says."""
    random = torch.Generator().manual_seed(seed)
    weight = size * torch.randn(3, width, generator=random, dtype=torch.float64)
    whole, scale = writer.round_rows(weight)
    step = weight.abs().amax(dim=1, keepdim=True) / 127
    torch.testing.assert_close(scale, step[:, 0], rtol=1e-12, atol=0)
    assert whole.abs().max() <= 127
    assert ((whole * step - weight).abs() <= step / 2 * (1 + 1e-9)).all()
    if width > 9:  # the control: rounding down is another thing
        assert ((weight / step).floor() * step - weight).abs().max() > (step / 2 * (1 + 1e-9)).min()


def test_the_cache_needs_the_mask():
    """If this fails, the theorem above also holds for a model that looks ahead, and its proof leans on nothing."""
    model = any_model(GPTConfig(vocab_size=9, block_size=6, n_layer=2, n_head=2, n_embd=8), 0)
    for block in model.h:
        block.attn.past.fill_(True)
    idx = torch.arange(6)[None]  # (B, T)
    with torch.no_grad():
        _, cache = kv_cache.forward(model, idx[:, :4])
        logits, _ = kv_cache.forward(model, idx[:, 4:], cache)
        assert (logits - model(idx)[:, 4:]).abs().max() > 1e-3


@pytest.mark.theorem("What an indifferent head scores")
@settings(max_examples=30, deadline=None)
@given(T=st.integers(2, 12), H=st.integers(1, 3), seed=st.integers(0, 2**31))
def test_indifferent_head(T, H, seed):
    """If this fails, page 12 holds heads against a wrong baseline: fractions are the oracle for a real model."""
    torch.manual_seed(seed)
    model = GPT(GPTConfig(vocab_size=7, block_size=2 * T, n_layer=2, n_head=H, n_embd=4 * H)).double()
    for block in model.h:
        torch.nn.init.zeros_(block.attn.c_attn.weight[: 4 * H])  # all queries are zero, so all scores
    one, two = torch.randint(7, (2, 3, T))  # (B, T) each
    previous = sum(Fraction(1, n) for n in range(2, T + 1)) / (T - 1)
    second = sum(Fraction(1, n) for n in range(T + 1, 2 * T + 1)) / T
    assert second * T < math.log(2)
    assert all(s.score == pytest.approx(float(previous), abs=1e-12) for s in lens.previous_token_scores(model, one))
    assert all(s.score == pytest.approx(float(second), abs=1e-12) for s in lens.induction_scores(model, two))
    torch.nn.init.normal_(model.h[0].attn.c_attn.weight)  # a head that cares scores something else
    assert any(abs(s.score - float(second)) > 1e-9 for s in lens.induction_scores(model, two))


@pytest.mark.theorem("Two ways to encode")
@settings(max_examples=60, deadline=None)
@given(text=st.text("abc", min_size=8, max_size=80), chunk=st.text("abc", min_size=1, max_size=20))
def test_replaying_the_merges(text, chunk):
    """If this fails, the order in which merges are applied decides what a text's tokens are."""
    tokenizer = BPETokenizer.train(text, vocab_size=300)
    merges = tokenizer.merges

    def joined(ids, n, places):
        """The ids after merge n, at every place from left to right, or at the first `places` of them."""
        out = []
        for i in ids:
            if places and out and (out[-1], i) == merges[n]:
                out[-1] = 256 + n
                places -= 1
            else:
                out.append(i)
        return out

    replayed = [BYTES.index(byte) for byte in chunk.encode()]
    earliest = list(replayed)
    for n in range(len(merges)):
        replayed = joined(replayed, n, len(chunk))
    rank = {pair: n for n, pair in enumerate(merges)}
    while fits := [rank[pair] for pair in itertools.pairwise(earliest) if pair in rank]:
        earliest = joined(earliest, min(fits), 1)
    assert replayed == earliest == tokenizer.encode(chunk)


def _parts(model, idx):
    """What was added to the stream after the last token, one by one: the parts (N, B, C), in float64."""
    found = [lens.stream(model, idx)[0, :, -1]]  # (B, C)
    H = model.config.n_head
    written = {}

    def look(key):
        return lambda module, given: written.__setitem__(key, given[0][:, -1].detach())

    hooks = [
        layer.register_forward_pre_hook(look((i, name)))
        for i, block in enumerate(model.h)
        for name, layer in (("attn", block.attn.c_proj), ("mlp", block.mlp.c_proj))
    ]
    model(idx)
    for hook in hooks:
        hook.remove()
    for i, block in enumerate(model.h):
        heads = written[i, "attn"].unflatten(-1, (H, -1))  # (B, H, D)
        slices = block.attn.c_proj.weight.detach().unflatten(-1, (H, -1))  # (C, H, D)
        found += torch.einsum("bhd,chd->hbc", heads, slices)
        if block.attn.c_proj.bias is not None:
            found.append(block.attn.c_proj.bias.detach().expand_as(found[0]))
        found.append(block.mlp.c_proj(written[i, "mlp"]).detach())
    return torch.stack(found)


def _sum_over_parts(model, parts, a, b, centred):
    """The right side of the theorem for z_a - z_b: (B,)."""
    w, gamma = (model.lm_head.weight[a] - model.lm_head.weight[b]).detach(), model.ln_f.weight.detach()
    x = parts.sum(dim=0)  # (B, C)
    if centred:
        parts, x = parts - parts.mean(dim=-1, keepdim=True), x - x.mean(dim=-1, keepdim=True)
    r = (x.pow(2).mean(dim=-1) + model.ln_f.eps).sqrt()  # (B,)
    total = (parts @ (gamma * w)).sum(dim=0) / r
    return total + (model.ln_f.bias.detach() @ w if centred else 0)


@pytest.mark.theorem("The logits are a sum over the parts")
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), norm=st.sampled_from(("rms", "layer")), H=st.integers(1, 3))
def test_logits_are_a_sum(seed, norm, H):
    """If this fails, page 16 divides a logit among the heads by a sum that is not the logit."""
    torch.manual_seed(seed)
    modern = ModernConfig(
        vocab_size=9, block_size=6, n_layer=2, n_head=H, n_embd=4 * H, norm=norm, bias=norm == "layer", tied=False
    )
    old = GPT(GPTConfig(vocab_size=9, block_size=6, n_layer=2, n_head=H, n_embd=4 * H))
    for model, centred in ((ModernGPT(modern), norm == "layer"), (old, True)):
        model = model.double()
        for parameter in model.parameters():  # norms and biases too
            torch.nn.init.normal_(parameter, mean=0.1)
        idx = torch.randint(9, (3, 5))  # (B, T)
        z = model(idx)[:, -1].detach()  # (B, V)
        difference = z[:, 2] - z[:, 7]  # (B,): a bias of the unembedding is not in the theorem
        if model.lm_head.bias is not None:
            difference = difference - (model.lm_head.bias[2] - model.lm_head.bias[7]).detach()
        parts = _parts(model, idx)  # (N, B, C)
        torch.testing.assert_close(_sum_over_parts(model, parts, 2, 7, centred), difference, rtol=1e-8, atol=1e-8)
        # A part that is left out is missed, and so is the mean that LayerNorm takes off.
        assert not torch.allclose(_sum_over_parts(model, parts[:-1], 2, 7, centred), difference, atol=1e-6)
        if centred:
            shifted = parts + 1.0
            torch.testing.assert_close(_sum_over_parts(model, shifted, 2, 7, True), difference, rtol=1e-8, atol=1e-8)


@pytest.mark.theorem("LayerNorm is RMSNorm of the centred vector")
@settings(max_examples=60, deadline=None)
@given(C=st.integers(2, 24), shift=st.floats(-5, 5), eps=st.sampled_from([1e-6, 1e-5, 0.1]), seed=st.integers(0, 2**31))
def test_layer_norm_is_rms_norm_of_the_centred_vector(C, shift, eps, seed):
    """If this fails, the two norms differ by more than the mean."""
    x = torch.randn(C, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + shift
    centred = [v - sum(x.tolist()) / C for v in x.tolist()]
    root = math.sqrt(sum(v * v for v in centred) / C + eps)
    by_hand = torch.tensor([v / root for v in centred], dtype=torch.float64)
    torch.testing.assert_close(F.layer_norm(x, (C,), eps=eps), by_hand, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(F.rms_norm(x - x.mean(), (C,), eps=eps), by_hand, rtol=1e-7, atol=1e-9)
    if abs(x.mean()) > 0.5:  # the control: with a mean they are not the same
        assert not torch.allclose(F.rms_norm(x, (C,), eps=eps), by_hand, atol=1e-3)


@pytest.mark.theorem("A turned score depends on the distance alone")
@settings(max_examples=60, deadline=None)
@given(
    pairs=st.integers(1, 8),
    base=st.floats(2, 1e5),
    m=st.integers(0, 40),
    n=st.integers(0, 40),
    further=st.integers(1, 20),
    seed=st.integers(0, 2**31),
)
def test_turned_score_depends_on_the_distance_alone(pairs, base, m, n, further, seed):
    """If this fails, the package's rotary positions put more into a score than how far apart two tokens stand."""
    config = ModernConfig(n_head=1, n_embd=2 * pairs, block_size=64, rope_base=base)
    q, k = torch.randn(2, 2 * pairs, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    cos, sin = (table.double() for table in rotary(config))

    def at(x, place):
        return rotate(x, cos[place], sin[place])

    score = at(q, m) @ at(k, n)
    angles = [(n - m) * base ** (-2 * i / (2 * pairs)) for i in range(pairs)]
    points = [complex(*k[2 * i : 2 * i + 2].tolist()) * complex(math.cos(a), math.sin(a)) for i, a in enumerate(angles)]
    by_hand = sum(q[2 * i].item() * p.real + q[2 * i + 1].item() * p.imag for i, p in enumerate(points))
    assert score.item() == pytest.approx(by_hand, abs=2e-5)
    torch.testing.assert_close(at(q, m + further) @ at(k, n + further), score, rtol=0, atol=2e-5)
    torch.testing.assert_close(at(q, m).norm(), q.norm(), rtol=1e-6, atol=0)
    # The control: another distance turns the first pair by a radian more.
    other = rotate(k[:2], cos[n + 1, :1], sin[n + 1, :1])
    assert not torch.allclose(other, rotate(k[:2], cos[n, :1], sin[n, :1]), atol=0.1 * k[:2].norm().item())


@pytest.mark.theorem("QK norm bounds the scores")
@settings(max_examples=40, deadline=None)
@given(
    H=st.sampled_from([1, 2, 4]),
    pairs=st.integers(1, 6),
    T=st.integers(2, 12),
    size=st.sampled_from([0.01, 1.0, 1e4]),
    turned=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_qk_norm_bounds_the_scores(H, pairs, T, size, turned, seed):
    """If this fails, the package's QK norm lets scores grow with the weights."""
    D = 2 * pairs
    config = ModernConfig(n_head=H, n_kv_head=1, n_embd=H * D, block_size=T, qk_norm=True)
    generator = torch.Generator().manual_seed(seed)
    attn = modern.CausalSelfAttention(config)
    with torch.no_grad():
        for weight in attn.parameters():
            weight.copy_(size * torch.randn(weight.shape, generator=generator))
        x = torch.randn(1, T, H * D, generator=generator)
        q, k, _ = attn.project(x, rotary(config) if turned else None)
        scores = q @ k.mT / math.sqrt(D)
        assert scores.abs().max() <= math.sqrt(D) * (1 + 1e-5)
        weights = F.softmax(scores, dim=-1)  # of full rows: the mask only makes them shorter
        assert weights.max() <= 1 / (1 + (T - 1) * math.exp(-2 * math.sqrt(D))) + 1e-5
        if size > 1:  # the control: without the norm nothing bounds them
            attn.eps = None
            q, k, _ = attn.project(x)
            assert (q @ k.mT / math.sqrt(D)).abs().max() > math.sqrt(D)


def test_the_bound_of_qk_norm_is_reached():
    """A failure would mean that the theorem could say more than it does."""
    q = k = torch.ones(1, 6)
    assert (q @ k.mT / math.sqrt(6)).item() == pytest.approx(math.sqrt(6))
    row = torch.tensor([math.sqrt(6), -math.sqrt(6), -math.sqrt(6)])
    assert F.softmax(row, dim=0)[0].item() == pytest.approx(1 / (1 + 2 * math.exp(-2 * math.sqrt(6))))


@pytest.mark.theorem("The steepest step under the spectral norm")
@settings(max_examples=60, deadline=None)
@given(m=st.integers(1, 7), n=st.integers(1, 7), seed=st.integers(0, 2**31))
def test_steepest_step_under_the_spectral_norm(m, n, seed):
    """If this fails, some step that stretches no vector by more than 1 goes further down than U V^T."""
    generator = torch.Generator().manual_seed(seed)
    G = torch.randn(m, n, dtype=torch.float64, generator=generator)
    U, S, Vh = torch.linalg.svd(G, full_matrices=False)
    best = U @ Vh
    assert torch.linalg.svdvals(best).max() <= 1 + 1e-9
    torch.testing.assert_close((G * best).sum(), S.sum())
    others = torch.randn(50, m, n, dtype=torch.float64, generator=generator)
    near = best + 0.1 * others
    for steps in (others, near, G[None], best[None] * 0.9):
        steps = steps / torch.linalg.svdvals(steps).amax(dim=-1)[:, None, None]  # as large as is allowed
        assert ((G * steps).sum(dim=(1, 2)) <= S.sum() + 1e-9).all()
    if len(S) > 1 and S[1] > 0.1:  # the control: under another norm the gradient itself is steepest
        assert (G * G / G.norm()).sum() > (G * best / best.norm()).sum() - 1e-9
        assert (G * G / S[0]).sum() < S.sum()


@pytest.mark.theorem("The inputs stay near")
@settings(max_examples=100, deadline=None)
@given(C=st.integers(3, 12), seed=st.integers(0, 2**31), size=st.floats(0.01, 100))
def test_inputs_stay_near(C, seed, size):
    """If this fails, page 16 tells readers that a cosine comes for free which does not."""
    generator = torch.Generator().manual_seed(seed)
    a, b, c = torch.randn(3, C, dtype=torch.float64, generator=generator)
    a = a * size
    if a @ c < a @ b:
        b, c = c, b

    def near(a, b, c):
        return F.cosine_similarity(a - b + c, a, dim=0).item()

    def bound(a, b, c):
        return 1 / math.sqrt(1 + ((c - b).norm() / a.norm()).item() ** 2)

    assert near(a, b, c) >= bound(a, b, c) - 1e-9
    level = c - a * (a @ (c - b)) / (a @ a)  # now a is as much like it as like b
    assert near(a, b, level) == pytest.approx(bound(a, b, level), abs=1e-7)
    if a @ (c - b) <= (c - b) @ (c - b):  # without its condition the bound is none
        assert near(a, c, b) <= bound(a, c, b) + 1e-9
    corner = torch.linalg.qr(torch.randn(C, 3, dtype=torch.float64, generator=generator))[0].T * size  # (3, C)
    x, y, z = corner
    assert near(x, y, z) == pytest.approx(1 / math.sqrt(3), abs=1e-9)
    assert F.cosine_similarity(x - y + z, z, dim=0).item() == pytest.approx(1 / math.sqrt(3), abs=1e-9)


answers_of_a_policy = st.integers(2, 7).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(0.01, 1.0), min_size=n, max_size=n),
        st.lists(st.floats(-5, 5), min_size=n, max_size=n),
    )
)


def divergence(p, q):
    """KL(p || q) in nats; what p never says costs nothing."""
    return torch.where(p > 0, p * (p / q).log(), 0.0).sum(dim=-1)


@pytest.mark.theorem("The best policy near a reference")
@settings(max_examples=60, deadline=None)
@given(case=answers_of_a_policy, beta=st.floats(0.2, 5.0), seed=st.integers(0, 2**31))
def test_best_policy_near_a_reference(case, beta, seed):
    """If this fails, some policy earns more, less its distance, than the formula's, or climbing ends elsewhere."""
    from gptbook.finetuning import best_policy

    weights, reward = (torch.tensor(numbers, dtype=torch.float64) for numbers in case)
    reference = weights / weights.sum()
    best = best_policy(reference, reward, beta)
    raw = reference * (reward / beta).exp()
    torch.testing.assert_close(best, raw / raw.sum())
    random = torch.Generator().manual_seed(seed)
    others = torch.rand(50, len(reward), dtype=torch.float64, generator=random) ** 4 + 1e-12
    others = torch.cat((others / others.sum(dim=1, keepdim=True), torch.eye(len(reward), dtype=torch.float64)))

    def worth(policy):
        return policy @ reward - beta * divergence(policy, reference)

    torch.testing.assert_close(worth(others), beta * raw.sum().log() - beta * divergence(others, best))
    assert (worth(others) <= worth(best) + 1e-9).all()
    # Climbing along the gradient, which knows nothing of the formula, ends at the same policy.
    z = reference.log().requires_grad_()
    climb = torch.optim.LBFGS([z], max_iter=300, line_search_fn="strong_wolfe", tolerance_grad=1e-10)

    def loss():
        climb.zero_grad()
        lost = -worth(F.softmax(z, dim=0))
        lost.backward()
        return lost

    climb.step(loss)
    torch.testing.assert_close(F.softmax(z.detach(), dim=0), best, rtol=0, atol=1e-3)
    if reward.max() - reward.min() > 0.5:  # the control: beta on the wrong side of the fraction is no best policy
        wrong = F.softmax(reference.log() + reward * beta, dim=0)
        if abs(beta - 1) > 0.3:
            assert worth(wrong) < worth(best)


@pytest.mark.theorem("Preferences lead to the best policy")
@settings(max_examples=60, deadline=None)
@given(case=answers_of_a_policy, beta=st.floats(0.2, 5.0), seed=st.integers(0, 2**31))
def test_preferences_lead_to_the_best_policy(case, beta, seed):
    """If this fails, some policy has a lower mean loss of DPO over choices by Bradley and Terry than the best one."""
    from gptbook.finetuning import best_policy, dpo_loss

    weights, reward = (torch.tensor(numbers, dtype=torch.float64) for numbers in case)
    reference = (weights / weights.sum()).log()
    best = best_policy(reference.exp(), reward, beta).log()
    pairs = list(itertools.permutations(range(len(reward)), 2))

    def loss(policy):
        total = 0.0
        for a, b in pairs:
            prefers = 1 / (1 + math.exp(reward[b] - reward[a]))
            total += prefers * dpo_loss(policy[[a]], policy[[b]], reference[[a]], reference[[b]], beta)
        return total / len(pairs)

    z = best.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(F.log_softmax(z, dim=0)), z)
    torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-9)
    random = torch.Generator().manual_seed(seed)
    for size in (0.01, 0.3, 3.0):
        away = size * torch.randn(len(reward), dtype=torch.float64, generator=random)
        other = F.log_softmax(best + away, dim=0)
        assert loss(other) > loss(best) - 1e-12
        if (other - best).abs().max() > 0.05:
            assert loss(other) > loss(best)


@pytest.mark.theorem("The gradient of the whole")
@settings(max_examples=50, deadline=None)
@given(counts=st.lists(st.integers(1, 4), min_size=2, max_size=4), seed=st.integers(0, 2**31))
def test_gradient_of_the_whole(counts, seed):
    """If this fails, processes that share a batch do not make the step of one: the theorem of page 18 is wrong."""
    torch.manual_seed(seed)
    model = GPT(GPTConfig(vocab_size=7, block_size=4, n_layer=1, n_head=2, n_embd=8)).double()
    N = sum(counts)
    idx, targets = torch.randint(7, (2, N, 4))  # (B, T) each

    def gradient(rows):
        loss = F.cross_entropy(model(idx[rows]).flatten(0, 1), targets[rows].flatten())
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])

    ends = list(itertools.accumulate(counts, initial=0))
    shares = [gradient(slice(*pair)) for pair in itertools.pairwise(ends)]
    whole = gradient(slice(0, N))
    weighted = sum(n / N * g for n, g in zip(counts, shares, strict=True))
    torch.testing.assert_close(weighted, whole, rtol=0, atol=1e-12)
    plain = sum(shares) / len(shares)
    assert (len(set(counts)) == 1) == torch.allclose(plain, whole, rtol=0, atol=1e-12)  # unequal shares are seen
