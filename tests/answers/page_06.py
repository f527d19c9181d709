"""Right and wrong answers to the exercises of page 6: LayerNorm, GELU, the block, and two layers without a bend."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

# --- LayerNorm --------------------------------------------------------------------------------------------------------


def norm_by_hand(x, weight, bias):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5) ** 0.5 * weight + bias


def norm_by_module(x, weight, bias):
    module = nn.LayerNorm(x.size(-1))
    module.weight.data, module.bias.data = weight.float(), bias.float()
    return module(x.float())


def norm_by_loop(x, weight, bias):
    rows = []
    for row in x.reshape(-1, x.size(-1)).tolist():
        mean = sum(row) / len(row)
        variance = sum((value - mean) ** 2 for value in row) / len(row)
        rows.append([(value - mean) / math.sqrt(variance + 1e-5) for value in row])
    return torch.tensor(rows).reshape(x.shape) * weight + bias


def norm_by_moments(x, weight, bias):
    mean, square = x.mean(-1, keepdim=True), x.pow(2).mean(-1, keepdim=True)
    return torch.addcmul(bias, weight, (x - mean) * torch.rsqrt(square - mean**2 + 1e-5))


def norm_by_matrix(x, weight, bias):
    """The mean by a product with a float32 matrix, which does not mix with other dtypes."""
    C = x.size(-1)
    centred = x - x @ torch.full((C, C), 1 / C)
    return centred / ((centred**2) @ torch.full((C, C), 1 / C) + 1e-5).sqrt() * weight + bias


def norm_in(dtype):
    return lambda *given: norm_by_hand(*(tensor.to(dtype) for tensor in given))


def norm_over(dim):
    def norm(x, weight, bias):
        mean, variance = x.mean(dim, keepdim=True), x.var(dim, unbiased=False, keepdim=True)
        return (x - mean) / (variance + 1e-5).sqrt() * weight + bias

    return norm


def norm_in_place(x, weight, bias):
    x -= x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


def norm_without_keepdim(x, weight, bias):
    return (x - x.mean(-1)) / (x.var(-1, unbiased=False) + 1e-5).sqrt() * weight + bias


def moments(x):
    return x - x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)


# --- GELU -------------------------------------------------------------------------------------------------------------


def phi(x):
    return (1 + torch.erf(x / math.sqrt(2))) / 2


def gelu_number_by_number(x):
    return torch.tensor([v * 0.5 * math.erfc(-v / 2**0.5) for v in x.flatten().tolist()]).reshape(x.shape)


# --- the block --------------------------------------------------------------------------------------------------------


def block_with_names(x, attention, mlp, norm_1, norm_2):
    copy = norm_1(x)
    middle = x + attention(copy)
    return middle + mlp(norm_2(middle))


def block_sum(x, attention, mlp, norm_1, norm_2):
    written = attention(norm_1(x))
    return sum([x, written, mlp(norm_2(x + written))])


class BlockModule(nn.Module):
    def forward(self, x, attention, mlp, norm_1, norm_2):
        for norm, layer in ((norm_1, attention), (norm_2, mlp)):
            x = torch.add(x, layer(norm(x)))
        return x


def block_in_place(x, attention, mlp, norm_1, norm_2):
    x += attention(norm_1(x))
    x += mlp(norm_2(x))
    return x


def block_post(x, attention, mlp, norm_1, norm_2):
    x = norm_1(x + attention(x))
    return norm_2(x + mlp(x))


def block_stream_normed(x, attention, mlp, norm_1, norm_2):
    x = norm_1(x)
    x = x + attention(x)
    x = norm_2(x)
    return x + mlp(x)


def block_first_copy(x, attention, mlp, norm_1, norm_2):
    x = x + attention(norm_1(x))
    return norm_2(x) + mlp(norm_2(x))


# --- two layers without a bend ----------------------------------------------------------------------------------------


def merge_by_probing(W_1, b_1, W_2, b_2):
    def both(x):
        return F.linear(F.linear(x, W_1, b_1), W_2, b_2)

    b = both(torch.zeros(W_1.size(1), dtype=W_1.dtype))
    return (both(torch.eye(W_1.size(1), dtype=W_1.dtype)) - b).T, b


def merge_by_module(W_1, b_1, W_2, b_2):
    layer = nn.Linear(W_1.size(1), W_2.size(0))
    layer.weight.data, layer.bias.data = (W_2 @ W_1).float(), (b_2 + b_1 @ W_2.T).float()
    return layer.weight, layer.bias


def merge_by_extra_column(W_1, b_1, W_2, b_2):
    """Both layers as one matrix with the bias in a column of its own, in float32."""
    n = W_1.size(1)
    first = torch.cat([torch.cat([W_1, b_1[:, None]], 1), torch.eye(n + 1)[-1:]])
    both = torch.cat([W_2, b_2[:, None]], 1) @ first @ torch.eye(n + 1)
    return both[:, :-1], both[:, -1]


def merge_in(dtype):
    def merge(*given):
        A, a, B, b = (tensor.to(dtype) for tensor in given)
        return B @ A, B @ a + b

    return merge


def tanh_by_powers(z):
    return (z.exp() - (-z).exp()) / (z.exp() + (-z).exp())


def gelu_by_powers(x):
    """Right up to 8 or so: erf is right, but a factor that is 1 overflows."""
    return x * phi(x) * (x**2).exp() / (x**2).exp()


RIGHT = {
    "layer-norm": [norm_by_hand, norm_by_module, norm_by_loop, norm_by_moments, norm_by_matrix,
                   norm_in(torch.float32), norm_in(torch.float16), norm_in(torch.bfloat16),
                   lambda x, w, b: F.layer_norm(x, (x.size(-1),), w, b)],
    "gelu": [lambda x: x * phi(x), gelu_number_by_number, nn.GELU(), F.gelu,
             lambda x: F.gelu(x.half()), lambda x: F.gelu(x.bfloat16()), lambda x: F.gelu(x.float()),
             lambda x: x * torch.distributions.Normal(0.0, 1.0).cdf(x.float())],
    "block": [block_with_names, block_sum, BlockModule(),
              lambda x, *f: block_sum(x.float(), *f), lambda x, *f: block_sum(x.half(), *f),
              lambda x, *f: block_sum(x.bfloat16(), *f)],
    "merge-layers": [lambda A, a, B, b: (B @ A, B @ a + b), merge_by_probing, merge_by_module,
                     merge_by_extra_column, merge_in(torch.float16), merge_in(torch.bfloat16),
                     lambda A, a, B, b: [(A.T @ B.T).T.tolist(), (a @ B.T + b).tolist()]],
}  # fmt: skip

WRONG = {
    "layer-norm": [
        (lambda x, w, b: (x - x.mean(-1, True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt() * w + b, "divides by C - 1"),
        (lambda x, w, b: moments(x)[0] / (moments(x)[1].sqrt() + 1e-5) * w + b, "stands outside the root"),
        (lambda x, w, b: (x - x.mean(-1, True)) / (x.std(-1, keepdim=True) + 1e-5) * w + b, "two things"),
        (lambda x, w, b: moments(x)[0] / moments(x)[1].sqrt() * w + b, "there is no epsilon"),
        (lambda x, w, b: (x - x.mean(-1, True)) / x.std(-1, keepdim=True) * w + b, "C - 1, and there is no epsilon"),
        (lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b, eps=1e-8), "not 1e-5 but smaller"),
        (norm_over(0), "over the first axis"),
        (norm_over(-2), "over the second to last axis"),
        (norm_over(1), "the last axis, dim=-1, not dim=1"),
        (lambda x, w, b: (x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt() * w + b, "of the whole tensor"),
        (lambda x, w, b: F.layer_norm(x, x.shape[-1:]), "gain and bias are missing"),
        (lambda x, w, b: F.layer_norm(x, x.shape[-1:], bias=b), "the gain is missing"),
        (lambda x, w, b: F.layer_norm(x, x.shape[-1:], w), "the bias is missing"),
        (lambda x, w, b: F.layer_norm(x, x.shape[-1:], b, w), "have changed places"),
        (lambda x, w, b: (F.layer_norm(x, x.shape[-1:]) + b) * w, "it must come last"),
        (lambda x, w, b: x / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt() * w + b, "not taken away from x"),
        (lambda x, w, b: x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * w + b, "this is RMSNorm"),
        (lambda x, w, b: moments(x)[0] / (moments(x)[1] + 1e-5) * w + b, "square root is missing"),
        (lambda x, w, b: moments(x)[0] * (moments(x)[1] + 1e-5).sqrt() * w + b, "in place of dividing"),
        (lambda x, w, b: x * w + b, "not 0 and 1"),
        (lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b, eps=1e-3), "look at your epsilon"),
        (lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b, eps=2e-5), "look at your epsilon"),
        (norm_in_place, "changes its input in place"),
        (norm_without_keepdim, "raised RuntimeError"),
        (lambda x, w, b: norm_by_hand(x, w, b).sum(-1), "must have the shape (5, 6)"),
        (lambda x, w, b: None, "is a return missing?"),
        (lambda x: x, "the function must take (x, weight, bias)"),
    ],
    "gelu": [
        (lambda x: F.gelu(x, approximate="tanh"), "the tanh approximation, which GPT-2 used"),
        (lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
         "the tanh approximation, which GPT-2 used"),
        (lambda x: x * torch.sigmoid(1.702 * x), "sigmoid of 1.702 x"),
        (F.silu, "this is SiLU"),
        (lambda x: x.clamp(min=0), "this is ReLU"),
        (lambda x: x * 0.5 * (1 + torch.erf(x)), "the root of 2 is missing"),
        (lambda x: x * 0.5 * (1 + torch.erf(x * math.sqrt(2))), "it must divide"),
        (lambda x: x * 0.5 * (1 + torch.erf(x / 2)), "the root of 2"),
        (lambda x: 2 * x * phi(x), "the factor 1/2 is missing"),
        (lambda x: x * (phi(x) - 0.5), "the 1 is missing"),
        (lambda x: x * torch.erf(x / 2**0.5), "the 1 and the factor 1/2 are missing"),
        (lambda x: x * 0.5 * 1 + torch.erf(x / math.sqrt(2)), "a bracket is missing"),
        (lambda x: x * 0.5 + torch.erf(x / math.sqrt(2)), "a bracket is missing"),
        (lambda x: x * (1 + torch.erf(x / math.sqrt(2)) / 2), "a bracket is missing"),
        (lambda x: x / 2 * (1 + torch.erf(x / 2 ** 1 / 2)), "powers come before division"),
        (lambda x: x / 2 * (1 + torch.erf(x) / math.sqrt(2)), "inside of erf's brackets"),
        (lambda x: 0.5 * x * (1 + tanh_by_powers(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
         "the tanh approximation, which GPT-2 used"),
        (gelu_by_powers, "for x of size 30: does e to a large power overflow?"),
        (lambda x: (x * phi(x)).clamp(max=20), "gelu(30) must be 30.000000, got 20.000000"),
        (phi, "this is Φ alone"),
        (lambda x: x * phi(-x), "the sign is wrong"),
        (lambda x: x * torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi), "the bell curve itself"),
        (lambda x: x * x * phi(x) / x, "NaN or infinity"),
        (lambda x: 1.01 * x * phi(x), "gelu(4) must be 3.999873, got 4.039872"),
        (lambda x: x.mul_(phi(x)), "changes its input in place"),
        (lambda x: (x * phi(x)).flatten(), "must have the shape (2, 3, 5)"),
        (lambda x: math.erf(x), "raised"),
    ],
    "block": [
        (block_post, "this is post-norm"),
        (lambda x, a, m, n, k: (y := x + n(a(x))) + k(m(y)), "the norm follows the layer"),
        (lambda x, a, m, n, k: m(k(a(n(x)))), "nothing is added"),
        (lambda x, a, m, n, k: (y := a(n(x))) + m(k(y)), "the addition round attention is missing"),
        (lambda x, a, m, n, k: m(k(x + a(n(x)))), "the addition round the MLP is missing"),
        (block_stream_normed, "the stream itself was normalised"),
        (lambda x, a, m, n, k: (y := x + a(n(x))) + m(n(y)), "norm_1 stands before both"),
        (lambda x, a, m, n, k: (y := x + a(k(x))) + m(k(y)), "norm_2 stands before both"),
        (lambda x, a, m, n, k: (y := x + a(k(x))) + m(n(y)), "the norms have changed places"),
        (lambda x, a, m, n, k: x + a(n(x)) + m(k(x)), "side by side"),
        (lambda x, a, m, n, k: x + (y := x + a(n(x))) + m(k(y)), "the input is added twice"),
        (lambda x, a, m, n, k: x + m(k(x + a(n(x)))), "what attention wrote is lost"),
        (lambda x, a, m, n, k: x + a(n(x)), "the MLP is missing"),
        (lambda x, a, m, n, k: x + m(k(x)), "attention is missing"),
        (lambda x, a, m, n, k: (y := x + m(k(x))) + a(n(y)), "the other way round"),
        (lambda x, a, m, n, k: (y := x + a(x)) + m(y), "no norm at all"),
        (lambda x, a, m, n, k: (y := x + a(x)) + m(k(y)), "norm_1 is missing"),
        (lambda x, a, m, n, k: (y := x + a(n(x))) + m(y), "norm_2 is missing"),
        (lambda x, a, m, n, k: k((y := x + a(n(x))) + m(k(y))), "one norm too many"),
        (block_first_copy, "something stands on the stream"),
        (lambda x, a, m, n, k: (y := x + a(n(x))) + m(k(n(y))), "look at what each layer reads"),
        (lambda x, a, m, n, k: x / 0, "NaN or infinity"),
        (block_in_place, "changes its input in place"),
        (lambda x, a, m, n, k: x[0], "must have the shape (2, 5, 6)"),
        (lambda x, a, m: x, "the function must take (x, attention, mlp, norm_1, norm_2)"),
    ],
    "merge-layers": [
        (lambda A, a, B, b: (A @ B, B @ a + b), "in the wrong order"),
        (lambda A, a, B, b: (A @ B, A @ b + a), "both the matrix and its bias"),
        (lambda A, a, B, b: (B @ A, a + b), "b_1 is added as it is"),
        (lambda A, a, B, b: (B @ A, b), "b_1 is lost"),
        (lambda A, a, B, b: (B @ A, B @ a), "b_2 is lost"),
        (lambda A, a, B, b: (B @ A, A @ b + a), "W_1 b_2 + b_1"),
        (lambda A, a, B, b: ((B @ A).T, B @ a + b), "is transposed"),
        (lambda A, a, B, b: (B @ A, a @ B + b), "the transposed W_2"),
        (lambda A, a, B, b: (B * A, B @ a + b), "entry by entry"),
        (lambda A, a, B, b: (B + A, B @ a + b), "the matrices were added"),
        (lambda A, a, B, b: (B + A, b + a), "the matrices and the biases were added"),
        (lambda A, a, B, b: (B @ A, B @ A @ a + b), "through the merged matrix"),
        (lambda A, a, B, b: (B @ A, B @ a - b), "it is b that is wrong"),
        (lambda A, a, B, b: (2 * B @ A, B @ a + b), "it is W that is wrong"),
        (lambda A, a, B, b: B @ A, "must return the pair (W, b)"),
        (lambda A, a, B, b: (B @ a + b, B @ A), "returns the bias first"),
        (lambda A, a, B, b: (B @ A, (B @ a + b)[:, None]), "the b in merge of layers 4 → 4 → 4 must have the shape"),
        (lambda A, a, B, b: (B @ A, b.add_(B @ a)), "changes its input in place"),
        (lambda A, a, B, b: nn.Linear(4, 4), "must return the pair (W, b), got a Linear layer"),
    ],
}  # fmt: skip
