"""Answers to the exercises of page 17, right and wrong."""

import math

import torch
import torch.nn.functional as F

# --- rms-norm ---


def rms_norm(x, gain, eps):
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * gain


def rms_by_pytorch(x, gain, eps):
    return F.rms_norm(x, gain.shape, gain, eps)


def rms_by_rows(x, gain, eps):
    flat = [row * (row.dot(row) / len(row) + eps) ** -0.5 * gain for row in x.double().view(-1, len(gain))]
    return torch.stack(flat).view(x.shape)


def rms_in_place(x, gain, eps):
    x /= (x.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    return x * gain


# --- rotary ---


def rotate(x, base, start):
    T, D = x.shape
    angles = torch.arange(start, start + T)[:, None] * base ** (-torch.arange(0, D, 2) / D)
    a, b = x[:, 0::2], x[:, 1::2]
    return torch.stack((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1).flatten(1)


def rotate_by_complex_numbers(x, base, start):
    T, D = x.shape
    angles = torch.arange(start, start + T).double()[:, None] * base ** (-torch.arange(0, D, 2).double() / D)
    points = torch.view_as_complex(x.double().view(T, D // 2, 2).contiguous())
    return torch.view_as_real(points * torch.polar(torch.ones_like(angles), angles)).flatten(1)


def rotate_by_matrices(x, base, start):
    rows = []
    for t, row in enumerate(x.double()):
        turns = []
        for i in range(len(row) // 2):
            angle = (start + t) / base ** (2 * i / len(row))
            turns.append(torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]))
        rows.append(torch.block_diag(*turns).double() @ row)
    return torch.stack(rows)


def turning(speed=lambda i, D, base: base ** (-2 * i / D), place=lambda t, start: start + t, join=None, sign=1):
    def wrong(x, base, start):
        T, D = x.shape
        places = torch.tensor([float(place(t, start)) for t in range(T)])
        angles = places[:, None] * torch.tensor([speed(i, D, base) for i in range(D // 2)])
        a, b = x[:, 0::2], x[:, 1::2]
        c, s = angles.cos(), sign * angles.sin()
        first, second = a * c - b * s, a * s + b * c
        return torch.stack((first, second), -1).flatten(1) if join is None else join(first, second)

    return wrong


def rotate_halves(x, base, start):
    T, D = x.shape
    angles = torch.arange(start, start + T)[:, None] * base ** (-torch.arange(0, D, 2) / D)
    a, b = x[:, : D // 2], x[:, D // 2 :]
    return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), 1)


def rotate_without_sign(x, base, start):
    T, D = x.shape
    angles = torch.arange(start, start + T)[:, None] * base ** (-torch.arange(0, D, 2) / D)
    a, b = x[:, 0::2], x[:, 1::2]
    return torch.stack((a * angles.cos() + b * angles.sin(), a * angles.sin() + b * angles.cos()), -1).flatten(1)


def rotate_over_itself(x, base, start):
    """The second channel is made from the first as it is after its turn."""
    T, D = x.shape
    angles = torch.arange(start, start + T)[:, None] * base ** (-torch.arange(0, D, 2) / D)
    x = x.clone()
    x[:, 0::2] = x[:, 0::2] * angles.cos() - x[:, 1::2] * angles.sin()
    x[:, 1::2] = x[:, 0::2] * angles.sin() + x[:, 1::2] * angles.cos()
    return x


# --- grouped-queries ---


def grouped(q, k, v):
    k, v = (part.repeat_interleave(len(q) // len(part), dim=0) for part in (k, v))
    scores = q @ k.mT / math.sqrt(q.size(-1))
    future = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
    return F.softmax(scores.masked_fill(future, -math.inf), dim=-1) @ v


def grouped_by_pytorch(q, k, v):
    return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)[0]


def grouped_by_views(q, k, v):
    (H, T, D), G = q.shape, len(k)
    scores = q.view(G, H // G, T, D) @ k.mT[:, None] / D**0.5
    scores = scores + torch.full((T, T), -math.inf).triu(1)
    return (scores.softmax(-1) @ v[:, None]).view(H, T, D)


def scored(q, k, v):
    """The scores of all heads, their values, and what a row may read."""
    k, v = (part.repeat_interleave(len(q) // len(part), dim=0) for part in (k, v))
    scores = q @ k.mT / math.sqrt(q.size(-1))
    return scores, v, torch.ones(scores.shape[1:], dtype=torch.bool).tril()


def grouped_by_columns(q, k, v):
    scores, v, seen = scored(q, k, v)
    return scores.masked_fill(~seen, -math.inf).softmax(dim=1) @ v


def grouped_and_then_masked(q, k, v):
    scores, v, seen = scored(q, k, v)
    return scores.softmax(dim=-1) * seen @ v


def grouped_with_the_past_hidden(q, k, v):
    scores, v, seen = scored(q, k, v)
    return scores.masked_fill(~seen.T, -math.inf).softmax(dim=-1) @ v


def by_the_number_of_groups(x, n):
    """Head h reads group h // G, or the last one where that is too many."""
    return x[[min(h // len(x), len(x) - 1) for h in range(n * len(x))]]


def grouping(repeat=None, hide=1, scale=math.sqrt, values=None):
    def wrong(q, k, v):
        times = len(q) // len(k)
        repeats = repeat or (lambda x, n: x.repeat_interleave(n, dim=0))
        k, v = repeats(k, times), (values or repeats)(v, times)
        scores = q @ k.mT / scale(q.size(-1))
        scores = scores.masked_fill(torch.ones(scores.shape[1:], dtype=torch.bool).triu(hide), -math.inf)
        return scores.softmax(dim=-1) @ v

    return wrong


def round_robin(x, n):
    return x.repeat(n, 1, 1)


# --- grouped-cache ---


def cache_bytes(config, tokens, size):
    return 2 * config.n_layer * tokens * config.kv_heads * config.head_size * size


def cache_bytes_from_a_cache(config, tokens, size):
    from dataclasses import replace

    from gptbook import kv_cache
    from gptbook.modern import ModernGPT

    model = ModernGPT(replace(config, block_size=max(tokens, config.block_size)))
    with torch.no_grad():
        _, cache = kv_cache.forward(model, torch.zeros(1, tokens, dtype=torch.long))
    return cache.bytes * size // 4


def cache_bytes_by_loops(config, tokens, size):
    total = 0.0
    for _ in range(config.n_layer):
        for _ in ("key", "value"):
            total += tokens * size * config.n_embd / config.n_head * config.kv_heads
    return torch.tensor(total)


def cache(kinds=2, width=lambda c: c.kv_heads * c.head_size, layers=lambda c: c.n_layer):
    return lambda c, tokens, size: kinds * layers(c) * tokens * width(c) * size


# --- newton-schulz ---


def alike(G, steps, a, b, c):
    X = G / G.square().sum().sqrt()
    for _ in range(steps):
        gram = X @ X.mT
        X = a * X + b * gram @ X + c * gram @ gram @ X
    return X


def alike_on_the_other_side(G, steps, a, b, c):
    X = (G / G.norm()).double()
    for _ in range(steps):
        gram = X.mT @ X
        X = a * X + X @ (b * gram + c * gram @ gram)
    return X


def alike_by_decomposition(G, steps, a, b, c):
    U, S, Vh = torch.linalg.svd(G, full_matrices=False)
    S = S / S.square().sum().sqrt()
    for _ in range(steps):
        S = S * (a + b * S**2 + c * S**4)
    return U @ torch.diag(S) @ Vh


def schulz(size=lambda G: G.norm(), rounds=lambda steps: steps, step=None):
    def wrong(G, steps, a, b, c):
        X = G / size(G)
        for _ in range(rounds(steps)):
            gram = X @ X.mT
            X = (step or (lambda X, g, a, b, c: a * X + b * g @ X + c * g @ g @ X))(X, gram, a, b, c)
        return X

    return wrong


def alike_in_place(G, steps, a, b, c):
    G /= G.norm()
    return alike(G, steps, a, b, c)


RIGHT = {
    "rms-norm": [rms_norm, rms_by_pytorch, rms_by_rows],
    "rotary": [rotate, rotate_by_complex_numbers, rotate_by_matrices],
    "grouped-queries": [grouped, grouped_by_pytorch, grouped_by_views],
    "grouped-cache": [cache_bytes, cache_bytes_from_a_cache, cache_bytes_by_loops],
    "newton-schulz": [alike, alike_on_the_other_side, alike_by_decomposition],
}

WRONG = {
    "rms-norm": [
        (lambda x, g, eps: rms_norm(x - x.mean(dim=-1, keepdim=True), g, eps), "the mean is taken off"),
        (lambda x, g, eps: x / (x.square().mean(-1, keepdim=True) + eps) * g, "the root is missing"),
        (lambda x, g, eps: x / (x.square().mean(-1, keepdim=True).sqrt() + eps) * g, "outside of the root"),
        (lambda x, g, eps: rms_norm(x, g, 0.0), "eps has no effect"),
        (lambda x, g, eps: x / (x.square().sum(-1, keepdim=True) + eps).sqrt() * g, "divided by its length"),
        (lambda x, g, eps: x / (x.square().mean(0, keepdim=True) + eps).sqrt() * g, "wrong axis"),
        (lambda x, g, eps: x / (x.square().mean() + eps).sqrt() * g, "goes over everything"),
        (lambda x, g, eps: rms_norm(x, 1.0, eps), "the gain has no effect"),
        (lambda x, g, eps: x * (x.square().mean(-1, keepdim=True) + eps).sqrt() * g, "is multiplied by the root"),
        (lambda x, g, eps: x / (x.abs().mean(-1, keepdim=True) + eps) * g, "absolute values"),
        (lambda x, g, eps: rms_norm(x, 1 + g, eps), "added to 1"),
        (
            lambda x, g, eps: x / (x.var(-1, keepdim=True, correction=0) + eps).sqrt() * g,
            "the mean off inside",
        ),
        (lambda x, g, eps: x / (x.var(-1, keepdim=True) + eps).sqrt() * g, "standard deviation, and by C - 1"),
        (lambda x, g, eps: rms_norm(x * g, 1.0, eps), "in before the norm"),
        (rms_in_place, "changes what it was given"),
        (lambda x, g, eps: rms_norm(x, g, eps).flatten()[:3], "must have the shape"),
        (lambda x, g, eps: 1.1 * rms_norm(x, g, eps), "is off by"),
        (lambda x, g, eps: rms_norm(x, g, eps) / 0, "NaN or infinity"),
    ],
    "rotary": [
        (lambda x, base, start: x.clone(), "gives x back"),
        (turning(sign=-1), "the other way"),
        (rotate_halves, "channel i + D/2"),
        (turning(place=lambda t, start: t), "start has no effect"),
        (turning(place=lambda t, start: start + t + 1), "counted from 1"),
        (turning(speed=lambda i, D, base: 1.0), "the same speed"),
        (turning(speed=lambda i, D, base: base ** (-i / D)), "the exponent is -i/D"),
        (turning(speed=lambda i, D, base: base ** (2 * i / D)), "later pairs turn faster"),
        (turning(speed=lambda i, D, base: 1e4 ** (-2 * i / D)), "the base has no effect"),
        (turning(join=lambda a, b: torch.cat((a, b), dim=1)), "side by side"),
        (rotate_without_sign, "a sign is missing"),
        (turning(speed=lambda i, D, base: base ** (-4 * i / D)), "the exponent is -4i/D"),
        (turning(speed=lambda i, D, base: base ** (-2 * i / D) * math.pi / 180), "taken as degrees"),
        (rotate_over_itself, "as turned already"),
        (lambda x, base, start: rotate(x, base, start).T, "must have the shape"),
        (lambda x, base, start: rotate(x, base, start) + 0.1, "is off by"),
        (lambda x, base, start: x.mul_(2) / 2, "changes what it was given"),
    ],
    "grouped-queries": [
        (grouping(repeat=round_robin), "the groups go round"),
        (grouping(repeat=lambda x, n: x[:1].repeat(n * len(x), 1, 1)), "every head reads group 0"),
        (grouping(repeat=lambda x, n: x.flip(0).repeat_interleave(n, dim=0)), "reverse order"),
        (grouping(values=round_robin), "different groups"),
        (grouping(hide=99), "there is no mask"),
        (grouping(hide=2), "off by one"),
        (grouping(scale=lambda D: 1.0), "not divided by the root"),
        (grouping(scale=lambda D: D), "divided by D, not by its root"),
        (lambda q, k, v: grouped(q, v, k), "keys and values changed places"),
        (grouped_by_columns, "along the wrong axis"),
        (grouped_and_then_masked, "the mask comes after"),
        (grouped_with_the_past_hidden, "hides the past"),
        (grouping(repeat=by_the_number_of_groups), "is divided by G"),
        (lambda q, k, v: grouped(q, k, v).transpose(0, 1), "must have the shape"),
        (lambda q, k, v: grouped(q, k, v) * 0.9, "is off by"),
        (lambda q, k, v: grouped(q.mul_(2), k, v), "changes what it was given"),
        (lambda q, k, v: q @ k.mT @ v, "raised RuntimeError"),
    ],
    "grouped-cache": [
        (cache(kinds=1), "both kept"),
        (cache(kinds=3), "queries are counted"),
        (cache(width=lambda c: c.n_embd), "keys of its own"),
        (cache(width=lambda c: c.head_size), "one group only"),
        (cache(width=lambda c: c.kv_heads), "the width of a head is missing"),
        (cache(width=lambda c: c.kv_heads * c.n_embd), "a part of C"),
        (cache(width=lambda c: c.n_head // c.kv_heads * c.head_size), "heads that share a group"),
        (cache(layers=lambda c: 1), "one layer only"),
        (cache(kinds=1, width=lambda c: c.n_embd), "keys or values are left out"),
        (cache(kinds=1, width=lambda c: c.n_embd + 2 * c.kv_heads * c.head_size), "C for each token"),
        (lambda c, tokens, size: cache_bytes(c, 1, size), "tokens has no effect"),
        (lambda c, tokens, size: cache_bytes(c, c.block_size, size), "a full window"),
        (lambda c, tokens, size: cache_bytes(c, tokens, 1), "the answer is in bytes"),
        (lambda c, tokens, size: cache_bytes(c, tokens, size) + 4, "your function says"),
        (lambda c, tokens, size: cache_bytes(c, tokens, size) / 7.5, "must be a whole number"),
    ],
    "newton-schulz": [
        (schulz(size=lambda G: 1.0), "not divided by its size"),
        (schulz(size=lambda G: torch.linalg.matrix_norm(G, 2)), "largest singular value"),
        (schulz(size=lambda G: G.square().sum()), "take the root"),
        (schulz(size=lambda G: G.abs().max()), "largest entry"),
        (schulz(step=lambda X, g, a, b, c: a * X + b * g @ X), "the last term is missing"),
        (schulz(step=lambda X, g, a, b, c: a * X + c * g @ X + b * g @ g @ X), "changed places"),
        (schulz(step=lambda X, g, a, b, c: a * X + c * g @ g @ X), "the middle term is missing"),
        (schulz(step=lambda X, g, a, b, c: b * g @ X + c * g @ g @ X), "the first term is missing"),
        (schulz(step=lambda X, g, a, b, c: X + b * g @ X + c * g @ g @ X), "the first term is X itself"),
        (schulz(rounds=lambda steps: steps - 1), "one round too few"),
        (schulz(rounds=lambda steps: steps + 1), "one round too many"),
        (schulz(rounds=lambda steps: 1), "one round only"),
        (schulz(rounds=lambda steps: 5), "whatever `steps` says"),
        (schulz(step=lambda X, g, a, b, c: a * X + b * g @ X + c * g @ X), "has X Xᵀ once"),
        (schulz(step=lambda X, g, a, b, c: a * X + b * g @ X + c * g @ g @ g @ X), "has X Xᵀ three times"),
        (schulz(step=lambda X, g, a, b, c: a * X + b * X**3 + c * X**5), "each entry"),
        (lambda G, *rest: alike(G, 40, 1.875, -1.25, 0.375), "all made 1"),
        (alike_in_place, "changes what it was given"),
        (lambda G, *rest: alike(G, *rest).T, "must have the shape"),
        (lambda G, *rest: alike(G, *rest) * 1.01, "is off by"),
    ],
}
