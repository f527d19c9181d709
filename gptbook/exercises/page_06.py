"""The checks of page 6, the block."""

import math

import torch
import torch.nn.functional as F

from gptbook.exercises.answers import Wrong, ask, complaint, explain, need_function, settled, shown
from gptbook.exercises.tensors import as_tensor, close, kept


def _same(a, b) -> bool:
    wider = 10 if a.dtype == torch.float32 else 1
    return close(a, b, rtol=wider * 1e-5, atol=wider * 1e-6)


def _result(value, shape, what: str):
    """The tensor that the reader's function returned, of the shape that it must have."""
    got = as_tensor(value, what)
    if tuple(got.shape) != tuple(shape):
        raise Wrong(f"{what} must have the shape {tuple(shape)}, got {tuple(got.shape)}")
    return got


def _tried(function, what: str, *arguments):
    """What the function returns on copies of the arguments; refused where it writes into one of them.

    The arguments are in float64; a function that mixes them with float32 tensors of its own gets them in float32.
    """
    given = [argument for argument in arguments if torch.is_tensor(argument)]
    copies = [argument.clone() for argument in given]
    try:
        value = function(*copies, *arguments[len(given) :])
    except Exception as error:
        if not (isinstance(error, RuntimeError) and any(word in str(error) for word in ("dtype", "scalar type"))):
            raise Wrong(complaint(what, error)) from None
        given = [argument.float() for argument in given]
        copies = [argument.clone() for argument in given]
        value = ask(function, what, *copies, *arguments[len(given) :])
    sentence = f"{what} changes its input in place: make a new tensor, as `x = x + y` does and `x += y` not"
    kept(copies, given, sentence)
    return value


def _normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# --- LayerNorm --------------------------------------------------------------------------------------------------------


def _layer_norm(
    x, weight, bias, dim=-1, eps=1e-5, unbiased=False, centre=True, scale=lambda var, eps: (var + eps).sqrt()
):
    """A right LayerNorm whose parts can be replaced by wrong ones."""
    dims = tuple(range(x.dim())) if dim is None else dim
    variance = x.var(dim=dims, unbiased=unbiased, keepdim=True)
    y = x - x.mean(dim=dims, keepdim=True) if centre else x
    return y / scale(variance, eps) * weight + bias


def _with(**parts):
    return lambda x, weight, bias: _layer_norm(x, weight, bias, **parts)


def _outside(variance, eps):
    return variance.sqrt() + eps


def _root_mean_square(x, weight, bias):
    return x / (x.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * weight + bias


LAYER_NORM_MISTAKES = (
    ("your variance divides by C - 1: `x.var` and `x.std` do so unless you pass unbiased=False", _with(unbiased=True)),
    ("your epsilon stands outside the root: the root is taken of variance plus epsilon", _with(scale=_outside)),
    ("two things: the deviation divides by C - 1, as `x.std` does, and the epsilon stands outside the root",
     _with(unbiased=True, scale=_outside)),
    ("there is no epsilon: a constant row divides zero by zero, and rows of tiny variance come out too long",
     _with(eps=0.0)),
    ("your variance divides by C - 1, and there is no epsilon", _with(eps=0.0, unbiased=True)),
    ("your epsilon is not 1e-5 but smaller, which rows of tiny variance feel", _with(eps=1e-6)),
    ("your epsilon is not 1e-5 but smaller, which rows of tiny variance feel", _with(eps=1e-8)),
    ("your epsilon is not 1e-5 but smaller, which rows of tiny variance feel", _with(eps=1e-12)),
    ("you normalise over the second to last axis, so tokens are mixed: mean and variance belong to the last axis",
     _with(dim=-2)),
    ("you normalise over the first axis, so rows are mixed: mean and variance belong to the last axis", _with(dim=0)),
    ("one mean and one variance are taken of the whole tensor: each row along the last axis has its own",
     _with(dim=None)),
    ("gain and bias are missing: multiply by weight, then add bias", lambda x, w, b: _layer_norm(x, 1.0, 0.0)),
    ("the gain is missing: multiply by weight before you add bias", lambda x, w, b: _layer_norm(x, 1.0, b)),
    ("the bias is missing: add it at the end", lambda x, w, b: _layer_norm(x, w, 0.0)),
    ("gain and bias have changed places", lambda x, w, b: _layer_norm(x, b, w)),
    ("the bias is added before the gain multiplies: it must come last", lambda x, w, b: (_layer_norm(x, 1.0, b)) * w),
    ("the variance is right, but the mean is not taken away from x", _with(centre=False)),
    ("this is RMSNorm: the mean has to go first, from x and so from the squares", _root_mean_square),
    ("you divide by the variance: its square root is missing", _with(scale=lambda variance, eps: variance + eps)),
    ("you multiply by the deviation in place of dividing by it",
     _with(scale=lambda variance, eps: (variance + eps).rsqrt())),
)  # fmt: skip


def layer_norm(layer_norm) -> str:
    """layer_norm(x, weight, bias) -> LayerNorm over the last axis, epsilon 1e-5 inside the root, variance over C."""
    need_function(layer_norm, "layer_norm(x, weight, bias)")
    narrow, wide = _normal(5, 6, seed=1), _normal(3, 4, 8, seed=2)
    flat = 2e-3 * _normal(3, 6, seed=3)
    flat[1] = 0.5  # a constant row
    cases = [
        (x, 1 + 0.5 * _normal(x.size(-1), seed=4), _normal(x.size(-1), seed=5))
        for x in (narrow, 3 * wide - 2, flat, _normal(2, 1, 3, 5, seed=6))
    ]
    got = []
    for case in cases:
        what = f"layer_norm of a tensor of shape {tuple(case[0].shape)}"
        got.append(_result(_tried(layer_norm, what, *case), case[0].shape, what))
    right = [F.layer_norm(x, x.shape[-1:], weight, bias, eps=1e-5) for x, weight, bias in cases]
    if settled(got, right, cases, LAYER_NORM_MISTAKES, _same):
        return "right on rows of several widths, on tiny variances and on a constant row"
    if _same(got[0], right[0]) and not torch.isfinite(got[2]).all():
        raise Wrong("a constant row gives NaN or infinity: the epsilon inside the root is there for it")
    if close(got[0], right[0], rtol=0.0, atol=5e-2) and not _same(got[2], right[2]):
        raise Wrong("nearly right where the variance is near 1, wrong where it is tiny: look at your epsilon")
    if _same(got[0], right[0]):
        raise Wrong("right for two axes and wrong for three: the mean is over the last axis, dim=-1, not dim=1")
    _, weight, bias = cases[0]
    y = (got[0][0] - bias) / weight
    raise Wrong(
        "the result is not LayerNorm: without gain and bias its first row has "
        f"the mean {float(y.mean()):.4g} and the variance {float(y.var(unbiased=False)):.4g}, not 0 and 1"
    )


# --- GELU -------------------------------------------------------------------------------------------------------------

BRACKET = "a bracket is missing: x times the half of all of 1 + erf(x / √2), so a bracket goes round that sum"

GELU_MISTAKES = (
    ("this is the tanh approximation, which GPT-2 used, and not the exact GELU: close, but off in the fourth decimal",
     lambda x: F.gelu(x, approximate="tanh")),
    ("this is x times sigmoid of 1.702 x, a rough approximation of GELU: use torch.erf",
     lambda x: x * torch.sigmoid(1.702 * x)),
    ("this is SiLU, x times the sigmoid of x: GELU has the normal distribution's function in its place",
     lambda x: x * torch.sigmoid(x)),
    ("this is ReLU: it has a corner at 0, and GELU is round there", F.relu),
    ("the root of 2 is missing: erf and Φ count in different units, Φ(x) needs erf of x / √2",
     lambda x: x * 0.5 * (1 + torch.erf(x))),
    ("you multiply by √2 inside erf: it must divide", lambda x: x * 0.5 * (1 + torch.erf(x * math.sqrt(2)))),
    ("you divide by 2 inside erf: it must be the root of 2", lambda x: x * 0.5 * (1 + torch.erf(x / 2))),
    ("the factor 1/2 is missing: 1 + erf runs from 0 to 2, and a probability from 0 to 1",
     lambda x: x * (1 + torch.erf(x / math.sqrt(2)))),
    ("the 1 is missing: half of erf runs from -1/2 to 1/2, and a probability from 0 to 1",
     lambda x: x * 0.5 * torch.erf(x / math.sqrt(2))),
    ("the 1 and the factor 1/2 are missing: erf runs from -1 to 1, and a probability from 0 to 1",
     lambda x: x * torch.erf(x / math.sqrt(2))),
    (BRACKET, lambda x: x * 0.5 + torch.erf(x / math.sqrt(2))),
    (BRACKET, lambda x: x + torch.erf(x / math.sqrt(2)) / 2),
    (BRACKET, lambda x: x * (1 + torch.erf(x / math.sqrt(2)) / 2)),
    (BRACKET, lambda x: x * (0.5 + torch.erf(x / math.sqrt(2)))),
    ("`2 ** 1 / 2` is 1, since powers come before division: write math.sqrt(2), or put brackets round 1 / 2",
     lambda x: x * 0.5 * (1 + torch.erf(x / 4))),
    ("√2 divides what erf gives: it must divide x, inside of erf's brackets",
     lambda x: x * 0.5 * (1 + torch.erf(x) / math.sqrt(2))),
    ("this is Φ alone: it has to be multiplied by x", lambda x: 0.5 * (1 + torch.erf(x / math.sqrt(2)))),
    ("the sign is wrong: x belongs to the probability of lying below x, not above",
     lambda x: x * 0.5 * (1 - torch.erf(x / math.sqrt(2)))),
    ("x is multiplied by the bell curve itself: Φ is the area below it, up to x",
     lambda x: x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)),
)  # fmt: skip


def gelu(gelu) -> str:
    """gelu(x) -> x times the standard normal distribution function of x, exactly, for a tensor of any shape."""
    need_function(gelu, "gelu(x)")
    far = torch.tensor([-30.0, -12.0, 12.0, 30.0], dtype=torch.float64)
    cases = [(x,) for x in (torch.linspace(-4, 4, 33).double(), 3 * _normal(2, 3, 5, seed=7), torch.zeros(1), far)]
    got = []
    for case in cases:
        what = f"gelu of a tensor of shape {tuple(case[0].shape)}"
        got.append(_result(_tried(gelu, what, *case), case[0].shape, what))
    right = [torch.special.ndtr(x) * x for (x,) in cases]
    if all(map(_close_gelu, got, right)):
        return "exact from -30 to 30, and on tensors of three axes"
    # Without the far values, where a known mistake may overflow in one way of writing it and not in another.
    if not all(map(_close_gelu, got[:3], right[:3])) and (
        sentence := explain(got[:3], cases[:3], GELU_MISTAKES, _close_gelu)
    ):
        raise Wrong(sentence)
    if any(not torch.isfinite(mine).all() for mine in got[:3]):
        raise Wrong("the result holds NaN or infinity: GELU is finite everywhere, and 0 at 0")
    if not torch.isfinite(got[3]).all():
        raise Wrong("the result holds NaN or infinity for x of size 30: does e to a large power overflow?")
    i = next(i for i in (0, 1, 2, 3) if not _close_gelu(got[i], right[i]))
    x, mine, true = cases[i][0].flatten(), got[i].flatten().double(), right[i].flatten().double()
    worst = int((mine - true).abs().argmax())
    raise Wrong(f"gelu({float(x[worst]):g}) must be {true[worst]:.6f}, got {mine[worst]:.6f}")


def _close_gelu(a, b) -> bool:
    return close(a, b, rtol=1e-5, atol=1e-5 if a.dtype == torch.float32 else 2e-6)


# --- the block --------------------------------------------------------------------------------------------------------


def _parts(C, seed):
    """Four functions of a tensor (B, T, C) that can be told apart: attention, mlp, norm_1, norm_2."""
    mix, up, down = (_normal(C, C, seed=seed + i) / math.sqrt(C) for i in range(3))
    gains = [1 + 0.5 * _normal(C, seed=seed + 3), 1 + 0.5 * _normal(C, seed=seed + 4)]

    def attention(x):
        T = x.size(1)
        past = torch.ones(T, T, dtype=x.dtype).tril()
        return past / past.sum(dim=1, keepdim=True) @ x @ mix.to(x.dtype)

    def mlp(x):
        return torch.tanh(x @ up.to(x.dtype)) @ down.to(x.dtype)

    def norm(gain):
        return lambda x: F.layer_norm(x, (C,)) * gain.to(x.dtype)

    return attention, mlp, norm(gains[0]), norm(gains[1])


def _block(x, attention, mlp, norm_1, norm_2):
    x = x + attention(norm_1(x))
    return x + mlp(norm_2(x))


def _normed_stream(x, attention, mlp, norm_1, norm_2):
    x = norm_1(x)
    x = x + attention(x)
    x = norm_2(x)
    return x + mlp(x)


def _parallel(x, attention, mlp, norm_1, norm_2):
    return x + attention(norm_1(x)) + mlp(norm_2(x))


def _twice(x, attention, mlp, norm_1, norm_2):
    y = x + attention(norm_1(x))
    return x + y + mlp(norm_2(y))


def _input_again(x, attention, mlp, norm_1, norm_2):
    return x + mlp(norm_2(x + attention(norm_1(x))))


BLOCK_MISTAKES = (
    ("this is post-norm, LN(x + f(x)): pre-norm puts the norm on what the layer reads, and not on the stream",
     lambda x, a, m, n, k: k((y := n(x + a(x))) + m(y))),
    ("the norm follows the layer, x + LN(f(x)): it belongs before, on what the layer reads",
     lambda x, a, m, n, k: (y := x + n(a(x))) + k(m(y))),
    ("nothing is added: each layer replaces the stream, and the straight path is gone",
     lambda x, a, m, n, k: m(k(a(n(x))))),
    ("the addition round attention is missing", lambda x, a, m, n, k: (y := a(n(x))) + m(k(y))),
    ("the addition round the MLP is missing", lambda x, a, m, n, k: m(k(x + a(n(x))))),
    ("the stream itself was normalised: x = norm(x) overwrites it, and the layers then add to the copy",
     _normed_stream),
    ("norm_1 stands before both layers: the MLP has its own, norm_2", lambda x, a, m, n, k: _block(x, a, m, n, n)),
    ("norm_2 stands before both layers: attention has its own, norm_1", lambda x, a, m, n, k: _block(x, a, m, k, k)),
    ("the norms have changed places: norm_1 belongs to attention", lambda x, a, m, n, k: _block(x, a, m, k, n)),
    ("the MLP reads the stream from before attention: the two run side by side, not one after the other", _parallel),
    ("the input is added twice: the second addition already holds it", _twice),
    ("what attention wrote is lost: the second addition must be to the new stream, not to the input", _input_again),
    ("the MLP is missing", lambda x, a, m, n, k: x + a(n(x))),
    ("attention is missing", lambda x, a, m, n, k: x + m(k(x))),
    ("the MLP comes before attention: it is the other way round",
     lambda x, a, m, n, k: (y := x + m(k(x))) + a(n(y))),
    ("there is no norm at all: each layer reads a normalised copy", lambda x, a, m, n, k: (y := x + a(x)) + m(y)),
    ("norm_1 is missing before attention", lambda x, a, m, n, k: (y := x + a(x)) + m(k(y))),
    ("norm_2 is missing before the MLP", lambda x, a, m, n, k: (y := x + a(n(x))) + m(y)),
    ("there is one norm too many, on the stream at the end: a block has two", lambda *c: c[4](_block(*c))),
    ("each layer adds to the normalised copy, and not to the stream that it was made from",
     lambda x, a, m, n, k: (z := k((y := n(x)) + a(y))) + m(z)),
)  # fmt: skip


def block(block) -> str:
    """block(x, attention, mlp, norm_1, norm_2) -> the pre-norm block: x + attention(norm_1(x)), then the MLP's."""
    need_function(block, "block(x, attention, mlp, norm_1, norm_2)")
    cases = [(2 * _normal(2, 5, C, seed=C) + 1, *_parts(C, 10 * C)) for C in (6, 3)]
    got = []
    for case in cases:
        what = f"block of a stream of shape {tuple(case[0].shape)}"
        got.append(_result(_tried(block, what, *case), case[0].shape, what))
    right = [_block(*case) for case in cases]
    if settled(got, right, cases, BLOCK_MISTAKES, _same):
        return "two additions to the stream, each of what a layer made of a normalised copy"
    if any(not torch.isfinite(mine).all() for mine in got):
        raise Wrong("the result holds NaN or infinity, and none of the four functions returns any")
    # Where both layers write nothing, a pre-norm block returns its input.
    x, _, _, norm_1, norm_2 = cases[0]
    idle = _result(ask(block, "block", x.clone(), torch.zeros_like, torch.zeros_like, norm_1, norm_2), x.shape, "block")
    if not _same(idle, x):
        raise Wrong("with layers that write zeros the block must return its input: something stands on the stream")
    raise Wrong(
        "with layers that write zeros the block returns its input, as it must: so look at what each layer reads"
    )


# --- two layers without a bend ----------------------------------------------------------------------------------------

MERGE_MISTAKES = (
    ("the matrices are multiplied in the wrong order: W_1 acts first, so it stands next to x, on the right",
     lambda A, a, B, b: (A @ B, B @ a + b)),
    ("both the matrix and its bias come from the wrong order: W_2 acts on what W_1 made",
     lambda A, a, B, b: (A @ B, A @ b + a)),
    ("the matrix is right, but b_1 is added as it is: it passes through W_2 first", lambda A, a, B, b: (B @ A, a + b)),
    ("the matrix is right, but b_1 is lost: at x = 0 the first layer still gives b_1, and W_2 reads it",
     lambda A, a, B, b: (B @ A, b)),
    ("the matrix is right, but b_2 is lost: it is added at the end", lambda A, a, B, b: (B @ A, B @ a)),
    ("the matrix is right, but the bias is W_1 b_2 + b_1: the layers have changed places in it",
     lambda A, a, B, b: (B @ A, A @ b + a)),
    ("the matrix is transposed: a weight has the shape (out, in)", lambda A, a, B, b: ((B @ A).T, B @ a + b)),
    ("b_1 is multiplied by the transposed W_2: `b_1 @ W_2` is the same as `W_2.T @ b_1`",
     lambda A, a, B, b: (B @ A, B.T @ a + b)),
    ("the matrices were multiplied entry by entry: `*` is not `@`", lambda A, a, B, b: (B * A, B @ a + b)),
    ("the matrices were added: one acts on the result of the other, so they multiply",
     lambda A, a, B, b: (B + A, B @ a + b)),
    ("the matrices and the biases were added: one layer acts on the result of the other",
     lambda A, a, B, b: (B + A, b + a)),
    ("b_1 passes through the merged matrix: W_1 has no part in it, since b_1 is added after W_1",
     lambda A, a, B, b: (B @ A, B @ A @ a + b)),
)  # fmt: skip


def merge_layers(merge) -> str:
    """merge(W_1, b_1, W_2, b_2) -> (W, b) with W x + b = W_2 (W_1 x + b_1) + b_2 for every x."""
    need_function(merge, "merge(W_1, b_1, W_2, b_2)")
    # Square matrices first: on them also a wrong order gives a result, which the catalogue then knows.
    for n, (i, h, o) in enumerate(((4, 4, 4), (3, 12, 3), (2, 7, 5))):
        layers = (_normal(h, i, seed=n), _normal(h, seed=9 + n), _normal(o, h, seed=18 + n), _normal(o, seed=27 + n))
        what = f"merge of layers {i} → {h} → {o}"
        W, b = _pair(_tried(merge, what, *layers), what)
        square = i == h == o
        if square and W.shape == (o,) and b.shape == (o, i):
            raise Wrong(f"{what} returns the bias first: asked for is the pair (W, b)")
        W, b = _result(W, (o, i), f"the W in {what}"), _result(b, (o,), f"the b in {what}")
        A, a, B, c = layers
        if _same(W, B @ A) and _same(b, B @ a + c):
            continue
        if square:
            known = explain([(W, b)], [layers], MERGE_MISTAKES, lambda p, q: all(map(_same, p, q)))
            if known:
                raise Wrong(known)
        part = "W" if not _same(W, B @ A) else "b"
        raise Wrong(f"{what}: W x + b is not what the two layers give, and it is {part} that is wrong")
    return "one layer does what the two did, for three shapes"


def _pair(value, what: str):
    if isinstance(value, torch.nn.Module):
        raise Wrong(f"{what} must return the pair (W, b), got a {type(value).__name__} layer")
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise Wrong(f"{what} must return the pair (W, b), got {shown(value)}")
    return tuple(as_tensor(part, f"the {name} in {what}") for part, name in zip(value, "Wb", strict=True))
