"""The checks of page 17, from GPT-2 to today."""

import math

import torch

from gptbook.exercises.answers import Wrong, ask, explain, need_function, shown, whole_number
from gptbook.exercises.tensors import as_tensor, close, kept
from gptbook.modern import ModernConfig


def _random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _tried(function, cases, words):
    """What the reader's function gives in all cases, tensors of the right shape; `words(*case)` is the call."""
    got = []
    for case, shape in cases:
        what = words(*case)
        given = [argument.clone() if torch.is_tensor(argument) else argument for argument in case]
        result = as_tensor(ask(function, what, *given), what)
        tensors = [argument for argument in given if torch.is_tensor(argument)]
        kept(tensors, [a for a in case if torch.is_tensor(a)], f"{what} changes what it was given: build new tensors")
        if tuple(result.shape) != shape:
            raise Wrong(f"{what} must have the shape {shape}, got {tuple(result.shape)}")
        got.append(result)
    return got


def _judge(got, cases, right, mistakes, words, praise, rtol=1e-4, atol=1e-4):
    """The praise if all agree, else the sentence of a known mistake, or by how much the first wrong one is off."""

    def same(mine, true):  # of numbers that a mistake made huge, the small ones hold nothing but rounding
        largest = float(true.abs().max())
        if largest > 1e30:  # more than float32 may hold
            return mine.shape == true.shape and not float(mine.abs().max()) < 1e30
        return close(mine, true, 0, max(atol, rtol * largest))

    cases = [case for case, _ in cases]
    wanted = [right(*case) for case in cases]
    if all(same(mine, true) for mine, true in zip(got, wanted, strict=True)):
        return praise
    if sentence := explain(got, cases, mistakes, same):
        raise Wrong(sentence)
    case, mine, true = next(t for t in zip(cases, got, wanted, strict=True) if not same(*t[1:]))
    if not torch.isfinite(mine.double()).all():
        raise Wrong(f"{words(*case)} holds NaN or infinity")
    raise Wrong(f"{words(*case)} is off by up to {float((mine.double() - true.double()).abs().max()):.2g}")


# --- rms-norm ---------------------------------------------------------------------------------------------------------


def _rms(x, gain, eps, *, mean=0.0, root=True, inside=True, axis=-1, total=False, scale=True, power=2):
    """RMSNorm in float64, with places where a wrong version puts something else."""
    x, gain = x.double(), gain.double()
    x = x - mean * x.mean(dim=-1, keepdim=True)
    size = x.abs().pow(power)
    size = size.sum(dim=axis, keepdim=True) if total else size.mean(dim=axis, keepdim=True)
    size = (size + eps * inside) ** (1 / power if root else 1) + eps * (not inside)
    return x / size * (gain if scale else 1.0)


def _rms_wrong(**changes):
    return lambda *case: _rms(*case, **changes)


RMS_MISTAKES = (
    ("the mean is taken off: that is LayerNorm, and RMSNorm only divides", _rms_wrong(mean=1.0)),
    ("the root is missing: divide by the root of the mean of the squares", _rms_wrong(root=False)),
    ("eps is added outside of the root: it belongs to the mean of the squares", _rms_wrong(inside=False)),
    ("eps has no effect: it is added to the mean of the squares", lambda x, g, eps: _rms(x, g, 0.0)),
    ("the vector is divided by its length: asked for is the root of the mean, not of the sum", _rms_wrong(total=True)),
    ("the mean goes over the wrong axis: over the channels, the last one", _rms_wrong(axis=0)),
    ("the mean goes over everything: each vector has a mean of its own",
     lambda x, g, eps: x.double() / (x.double().square().mean() + eps).sqrt() * g),
    ("the gain has no effect: multiply by it in the end", _rms_wrong(scale=False)),
    ("the vector is multiplied by the root of the mean square: divide by it",
     lambda x, g, eps: x.double() * (x.double().square().mean(dim=-1, keepdim=True) + eps).sqrt() * g),
    ("the mean of the absolute values is taken: asked for is the root of the mean of the squares", _rms_wrong(power=1)),
    ("the gain is added to 1 before it multiplies: it is the factor itself", lambda x, g, eps: _rms(x, 1 + g, eps)),
    ("the vector is divided by its standard deviation, which takes the mean off inside: take the mean of the squares",
     lambda x, g, eps: x.double() / (x.double().var(dim=-1, keepdim=True, correction=0) + eps).sqrt() * g),
    ("the vector is divided by its standard deviation, and by C - 1 inside: take the mean of the squares",
     lambda x, g, eps: x.double() / (x.double().var(dim=-1, keepdim=True) + eps).sqrt() * g),
    ("the gain is multiplied in before the norm: it comes after",
     lambda x, g, eps: _rms(x * g, torch.ones_like(g), eps)),
)  # fmt: skip


def rms_norm(norm) -> str:
    """rms_norm(x (..., C), gain (C,), eps) -> (..., C)."""
    need_function(norm, "rms_norm(x, gain, eps)")
    cases = []
    for seed, (shape, eps) in enumerate((((3, 4), 1e-5), ((2, 5, 6), 0.5), ((4, 4), 0.1), ((8,), 1e-3))):
        x = 0.7 * _random(*shape, seed=seed) + 0.4
        cases.append(((x, _random(shape[-1], seed=seed + 20), eps), shape))

    def words(x, gain, eps):
        return f"rms_norm(x of shape {tuple(x.shape)}, gain, {eps})"

    got = _tried(norm, cases, words)
    return _judge(got, cases, _rms, RMS_MISTAKES, words, "equal to the formula, for several shapes and values of eps")


# --- rotary -----------------------------------------------------------------------------------------------------------


def _turned(x, base, start, *, sign=1, pairs="beside", first=0, power=2, swap=False):
    """Pair by pair and place by place, with places where a wrong version puts something else."""
    T, D = x.shape
    half, out = D // 2, torch.empty(T, D, dtype=torch.float64)
    for t in range(T):
        for i in range(half):
            at, other = (2 * i, 2 * i + 1) if pairs == "beside" else (i, i + half)
            place = start + t + first
            angle = sign * (place if not swap else 1) * base ** (-power * i / D) * (1 if not swap else place)
            a, b = float(x[t, at]), float(x[t, other])
            out[t, at] = a * math.cos(angle) - b * math.sin(angle)
            out[t, other] = a * math.sin(angle) + b * math.cos(angle)
    return out


def _turned_wrong(**changes):
    return lambda *case: _turned(*case, **changes)


def _side_by_side(x, base, start):
    right = _turned(x, base, start)
    return torch.cat((right[:, 0::2], right[:, 1::2]), dim=1)


def _overwritten(x, base, start):
    right = _turned(x, base, start)
    T, D = x.shape
    angle = torch.arange(start, start + T)[:, None] * base ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    first = right[:, 0::2]
    return torch.stack((first, first * angle.sin() + x[:, 1::2].double() * angle.cos()), -1).flatten(1)


def _in_degrees(x, base, start):
    T, D = x.shape
    angle = torch.arange(start, start + T)[:, None] * base ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    angle, a, b = angle * math.pi / 180, x[:, 0::2].double(), x[:, 1::2].double()
    return torch.stack((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1).flatten(1)


def _no_minus(x, base, start):
    T, D = x.shape
    angle = torch.arange(start, start + T)[:, None] * base ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    a, b = x[:, 0::2].double(), x[:, 1::2].double()
    return torch.stack((a * angle.cos() + b * angle.sin(), a * angle.sin() + b * angle.cos()), -1).flatten(1)


ROTARY_MISTAKES = (
    ("your function gives x back as it is: each pair is turned as its place asks", lambda x, base, start: x.double()),
    ("the turn goes the other way: the first channel gets minus the sine of the second", _turned_wrong(sign=-1)),
    ("channel i is paired with channel i + D/2, as in some programs: asked for are the neighbours 2i and 2i + 1",
     _turned_wrong(pairs="apart")),
    ("start has no effect: the first row stands at that place", lambda x, base, start: _turned(x, base, 0)),
    ("the places are counted from 1: the first row stands at start itself", _turned_wrong(first=1)),
    ("all pairs turn at the same speed: pair i turns by the base to the power -2i/D", _turned_wrong(power=0)),
    ("the exponent is -i/D: for pair i it is -2i/D", _turned_wrong(power=1)),
    ("the exponent is -4i/D: for pair i it is -2i/D, with the 2 once", _turned_wrong(power=4)),
    ("later pairs turn faster: the exponent is negative", _turned_wrong(power=-2)),
    ("the base has no effect, or is taken as 10000", lambda x, base, start: _turned(x, 10000.0, start)),
    ("the turned pairs are put side by side, all first channels and then all second ones: put each back in its place",
     _side_by_side),
    ("a sign is missing: this is no turn, for it does not keep lengths", _no_minus),
    ("the second channel of a pair is made from the first one as turned already: keep the old one for it",
     _overwritten),
    ("the angles are taken as degrees: they are radians, which sin and cos ask for", _in_degrees),
)  # fmt: skip


def rotary(rotate) -> str:
    """rotate(x (T, D), base, start) -> (T, D): the rows turned as their places start, start + 1, ... ask."""
    need_function(rotate, "rotate(x, base, start)")
    sizes = ((5, 4, 100.0, 0), (3, 8, 50.0, 7), (1, 6, 10000.0, 2), (7, 2, 10.0, 3), (4, 10, 500.0, 1))
    cases = [((_random(T, D, seed=T), base, start), (T, D)) for T, D, base, start in sizes]

    def words(x, base, start):
        return f"rotate(x of shape {tuple(x.shape)}, {base:g}, {start})"

    got = _tried(rotate, cases, words)
    return _judge(got, cases, _turned, ROTARY_MISTAKES, words, "every pair turned as its place asks")


# --- grouped-queries --------------------------------------------------------------------------------------------------


def _grouped(q, k, v, *, group=lambda h, H, G: h // (H // G), scale=math.sqrt, ahead=0, values=None, causal=True):
    """Head by head and row by row, with places where a wrong version puts something else."""
    (H, T, D), G = q.shape, k.size(0)
    q, k, v, out = q.double(), k.double(), v.double(), torch.empty(H, T, D, dtype=torch.float64)
    for h in range(H):
        g = group(h, H, G)
        for t in range(T):
            seen = slice(0, min(T, t + 1 + ahead) if causal else T)
            weights = torch.softmax(k[g, seen] @ q[h, t] / scale(D), dim=0)
            out[h, t] = weights @ v[values(h, H, G) if values else g, seen]
    return out


def _grouped_wrong(**changes):
    return lambda *case: _grouped(*case, **changes)


def _grouped_at_once(q, k, v, *, axis=-1, hidden_first=True, future=True):
    """All heads at once, with places where a wrong version puts something else."""
    repeats = len(q) // len(k)
    q, k, v = q.double(), k.double().repeat_interleave(repeats, 0), v.double().repeat_interleave(repeats, 0)
    scores = q @ k.mT / math.sqrt(q.size(-1))
    ones = torch.ones(scores.shape[1:], dtype=torch.bool)
    hidden = ones.triu(1) if future else ones.tril(-1)
    if hidden_first:
        return torch.softmax(scores.masked_fill(hidden, -1e9), dim=axis) @ v
    return torch.softmax(scores, dim=axis).masked_fill(hidden, 0.0) @ v


def _grouped_at_once_wrong(**changes):
    return lambda *case: _grouped_at_once(*case, **changes)


GROUPED_MISTAKES = (
    ("the groups go round, 0, 1, 2, 0, 1, 2: heads that share a group stand next to each other, so repeat each group "
     "before the next one", _grouped_wrong(group=lambda h, H, G: h % G)),
    ("every head reads group 0", _grouped_wrong(group=lambda h, H, G: 0)),
    ("the groups are in the reverse order", _grouped_wrong(group=lambda h, H, G: G - 1 - h // (H // G))),
    ("keys and values of a head come from different groups: repeat both in the same way",
     _grouped_wrong(values=lambda h, H, G: h % G)),
    ("there is no mask: row t may read places 0 to t", _grouped_wrong(causal=False)),
    ("the mask is off by one: every row sees the next one", _grouped_wrong(ahead=1)),
    ("the scores are not divided by the root of D", _grouped_wrong(scale=lambda D: 1.0)),
    ("the scores are divided by D, not by its root", _grouped_wrong(scale=lambda D: D)),
    ("keys and values changed places: scores are made with keys, and the average is of values",
     lambda q, k, v: _grouped(q, v, k)),
    ("softmax goes along the wrong axis: the weights of each query add up to 1, along the last axis",
     _grouped_at_once_wrong(axis=1)),
    ("the mask comes after softmax: the weights left no longer add up to 1",
     _grouped_at_once_wrong(hidden_first=False)),
    ("the mask hides the past: it hides what comes later", _grouped_at_once_wrong(future=False)),
    ("a head is divided by G to find its group: divide it by the heads in a group, H / G",
     _grouped_wrong(group=lambda h, H, G: min(h // G, G - 1))),
)  # fmt: skip


def grouped_queries(grouped) -> str:
    """grouped(q (H, T, D), k (G, T, D), v (G, T, D)) -> (H, T, D)."""
    need_function(grouped, "grouped(q, k, v)")
    cases = []
    for seed, (H, G, T, D) in enumerate(((4, 2, 5, 3), (6, 3, 4, 4), (6, 2, 3, 2), (3, 1, 6, 5), (2, 2, 4, 3))):
        q, k, v = (_random(n, T, D, seed=3 * seed + i) for i, n in enumerate((H, G, G)))
        cases.append(((1.5 * q, k, v), (H, T, D)))

    def words(q, k, v):
        return f"grouped(q of shape {tuple(q.shape)}, k and v of {tuple(k.shape)})"

    got = _tried(grouped, cases, words)
    praise = "equal to attention head by head, with as many groups as heads and with fewer"
    return _judge(got, cases, _grouped, GROUPED_MISTAKES, words, praise)


# --- grouped-cache ----------------------------------------------------------------------------------------------------


def _bytes(config, tokens, size, *, kinds=2, width=None, layers=None):
    width = config.kv_heads * config.head_size if width is None else width(config)
    return kinds * (config.n_layer if layers is None else layers) * tokens * width * size


def _bytes_wrong(**changes):
    return lambda *case: _bytes(*case, **changes)


BYTES_MISTAKES = (
    ("keys and values are both kept: that is twice as much as one of them", _bytes_wrong(kinds=1)),
    ("queries are counted as well: they are not kept", _bytes_wrong(kinds=3)),
    ("every head of queries is given keys of its own: there are G groups of them",
     _bytes_wrong(width=lambda c: c.n_embd)),
    ("every head of queries is given keys of its own, and keys or values are left out",
     _bytes_wrong(kinds=1, width=lambda c: c.n_embd)),
    ("queries are counted as well, C for each token: they are not kept",
     lambda c, t, s: _bytes(c, t, s) + _bytes(c, t, s, kinds=1, width=lambda c: c.n_embd)),
    ("one group only is counted: there are G", _bytes_wrong(width=lambda c: c.head_size)),
    ("a group's keys have D numbers each: the width of a head is missing", _bytes_wrong(width=lambda c: c.kv_heads)),
    ("a group's keys have D numbers each, and D is a part of C", _bytes_wrong(width=lambda c: c.kv_heads * c.n_embd)),
    ("D was taken as C / G: a head is C / H wide, and G of them are kept",
     _bytes_wrong(width=lambda c: c.kv_heads * (c.n_embd // c.kv_heads))),
    ("the heads that share a group were counted, H / G of them: the groups themselves are G",
     _bytes_wrong(width=lambda c: c.n_head // c.kv_heads * c.head_size)),
    ("one layer only is counted: each has a cache of its own", _bytes_wrong(layers=1)),
    ("the number of tokens has no effect", lambda c, t, s: _bytes(c, 1, s)),
    ("a full window is counted: asked for are as many tokens as the argument says",
     lambda c, t, s: _bytes(c, c.block_size, s)),
    ("the size of a number has no effect: the answer is in bytes", lambda c, t, s: _bytes(c, t, 1)),
)  # fmt: skip


def grouped_cache(cache_bytes) -> str:
    """cache_bytes(config, tokens, size) -> the bytes of the cache of one row."""
    need_function(cache_bytes, "cache_bytes(config, tokens, size)")
    small = ModernConfig(n_layer=3, n_head=6, n_kv_head=2, n_embd=24, block_size=32)
    cases = [
        (small, 7, 4), (small, 32, 2), (ModernConfig(n_layer=2, n_head=9, n_kv_head=3, n_embd=72), 10, 2),
        (ModernConfig(n_layer=5, n_head=4, n_kv_head=1, n_embd=16), 3, 4), (ModernConfig(n_embd=40), 9, 8),
    ]  # fmt: skip
    got = []
    for config, tokens, size in cases:
        what = f"cache_bytes(config, {tokens}, {size})"
        got.append(whole_number(ask(cache_bytes, what, config, tokens, size), what, floats=True))
    right = [_bytes(*case) for case in cases]
    if got == right:
        return f"right for {len(cases)} caches"
    if sentence := explain(got, cases, BYTES_MISTAKES, lambda a, b: a == b):
        raise Wrong(sentence)
    (config, tokens, size), mine, true = next(t for t in zip(cases, got, right, strict=True) if t[1] != t[2])
    raise Wrong(
        f"{tokens} tokens of {size} bytes a number, L = {config.n_layer}, H = {config.n_head}, G = {config.kv_heads}, "
        f"D = {config.head_size}: the cache takes {true:,} bytes, your function says {shown(mine)}"
    )


# --- newton-schulz ----------------------------------------------------------------------------------------------------


def _by_svd(G, steps, a, b, c, *, cubic=None, size=None, cut=0):
    """What the iteration must give, by the singular value decomposition, which it avoids."""
    U, S, Vh = torch.linalg.svd(G.double(), full_matrices=False)
    S = S / (S.norm() if size is None else size(S))
    for _ in range(steps - cut):
        S = a * S + b * S**3 + c * S**5 if cubic is None else cubic(S, a, b, c)
    return (U * S) @ Vh


def _by_svd_wrong(**changes):
    return lambda *case: _by_svd(*case, **changes)


def _entry_by_entry(G, steps, a, b, c):
    X = G.double() / G.double().norm()
    for _ in range(steps):
        X = a * X + b * X**3 + c * X**5
    return X


SCHULZ_MISTAKES = (
    ("the matrix is not divided by its size first", _by_svd_wrong(size=lambda S: 1.0)),
    ("the matrix is divided by its largest singular value: asked for is the root of the sum of its squares",
     _by_svd_wrong(size=lambda S: S[0])),
    ("the matrix is divided by the sum of its squares: take the root", _by_svd_wrong(size=lambda S: S.square().sum())),
    ("the matrix is divided by its largest entry: asked for is the root of the sum of its squares",
     lambda G, *rest: _by_svd(G, *rest, size=lambda S: G.abs().max().double())),
    ("the last term is missing: c times X Xᵀ X Xᵀ X", _by_svd_wrong(cubic=lambda S, a, b, c: a * S + b * S**3)),
    ("b and c changed places", _by_svd_wrong(cubic=lambda S, a, b, c: a * S + c * S**3 + b * S**5)),
    ("the middle term is missing: b times X Xᵀ X", _by_svd_wrong(cubic=lambda S, a, b, c: a * S + c * S**5)),
    ("the first term is missing: a times X", _by_svd_wrong(cubic=lambda S, a, b, c: b * S**3 + c * S**5)),
    ("the first term is X itself: it is a times X", _by_svd_wrong(cubic=lambda S, a, b, c: S + b * S**3 + c * S**5)),
    ("there is one round too few", _by_svd_wrong(cut=1)),
    ("there is one round too many", _by_svd_wrong(cut=-1)),
    ("there is one round only: put the result through `steps` times", lambda G, steps, *abc: _by_svd(G, 1, *abc)),
    ("the number of rounds is 5 whatever `steps` says", lambda G, steps, *abc: _by_svd(G, 5, *abc)),
    ("the singular values are all made 1: asked for is the iteration, which brings them near to it",
     _by_svd_wrong(cubic=lambda S, a, b, c: torch.ones_like(S))),
    ("the last term has X Xᵀ once: it has its square", _by_svd_wrong(cubic=lambda S, a, b, c: a * S + (b + c) * S**3)),
    ("the last term has X Xᵀ three times: it has its square",
     _by_svd_wrong(cubic=lambda S, a, b, c: a * S + b * S**3 + c * S**7)),
    ("each entry is put through the polynomial: X Xᵀ is a product of matrices", _entry_by_entry),
    ("the result is divided by its size in every round: only the first matrix is",
     _by_svd_wrong(cubic=lambda S, a, b, c: (a * S + b * S**3 + c * S**5)
                   / (a * S + b * S**3 + c * S**5).norm())),
)  # fmt: skip


def newton_schulz(alike) -> str:
    """alike(G (m, n), steps, a, b, c) -> (m, n): the polynomial, `steps` times, of G divided by its Frobenius norm."""
    need_function(alike, "alike(G, steps, a, b, c)")
    muon, gentle = (3.4445, -4.7750, 2.0315), (1.875, -1.25, 0.375)
    cases = []
    for seed, (m, n, steps, abc) in enumerate(
        ((3, 5, 2, muon), (5, 3, 3, gentle), (4, 4, 1, muon), (2, 6, 4, gentle), (6, 2, 3, muon))
    ):
        cases.append(((0.5 * _random(m, n, seed=seed), steps, *abc), (m, n)))

    def words(G, steps, *abc):
        return f"alike(G of shape {tuple(G.shape)}, {steps}, {', '.join(map(str, abc))})"

    got = _tried(alike, cases, words)
    praise = "the polynomial acts on every singular value, for wide, tall and square matrices"
    return _judge(got, cases, _by_svd, SCHULZ_MISTAKES, words, praise, rtol=1e-3, atol=1e-3)
