"""Answers to the exercises of page 4."""

import math

import torch
import torch.nn.functional as F


def future(T, diagonal=1):
    return torch.ones(T, T, dtype=torch.bool).triu(diagonal)


def head(x, w_q, w_k, w_v, by=None, dim=-1, hide=None, value=-math.inf):
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    scores = q @ k.transpose(-2, -1) * (q.size(-1) ** -0.5 if by is None else by(x.size(-1), q.size(-1)))
    hidden = future(x.size(1)) if hide is None else hide(x.size(1))
    return F.softmax(scores.masked_fill(hidden, value), dim=dim) @ v


def wrong_head(**how):
    return lambda *given: head(*given, **how)


def head_loops(x, w_q, w_k, w_v):
    B, T, _ = x.shape
    D = w_q.size(1)
    rows = []
    for b in range(B):
        out = []
        for t in range(T):
            past = x[b, : t + 1]
            weights = torch.exp((past @ w_k) @ (x[b, t] @ w_q) / math.sqrt(D))
            out.append((weights / weights.sum()) @ (past @ w_v))
        rows.append(torch.stack(out))
    return torch.stack(rows)


def head_einsum(x, w_q, w_k, w_v):
    q, k, v = (torch.einsum("btc,cd->btd", x.double(), w.double()) for w in (w_q, w_k, w_v))
    scores = torch.einsum("btd,bsd->bts", q, k) / w_q.size(1) ** 0.5
    return torch.einsum("bts,bsd->btd", F.softmax(scores + torch.full_like(scores, -1e30).triu(1), -1), v)


def head_math_exp(x, w_q, w_k, w_v):
    out = torch.zeros(*x.shape[:2], w_q.size(1))
    for b in range(x.size(0)):
        q, k, v = x[b] @ w_q, x[b] @ w_k, x[b] @ w_v
        for t in range(x.size(1)):
            powers = [math.exp(float(q[t] @ k[s]) / math.sqrt(w_q.size(1))) for s in range(t + 1)]
            for s, power in enumerate(powers):
                out[b, t] += power / sum(powers) * v[s]
    return out


def head_in(dtype):
    return lambda *given: head(*(tensor.to(dtype) for tensor in given))


def head_added(low):
    def weak(x, w_q, w_k, w_v):
        scores = (x @ w_q) @ (x @ w_k).transpose(-2, -1) / math.sqrt(w_q.size(1))
        return F.softmax(scores + low * future(x.size(1)), dim=-1) @ (x @ w_v)

    return weak


def head_with_dropout(*given):
    return F.dropout(head(*given), 0.1)


def late_weights(x, w_q, w_k):
    return F.softmax((x @ w_q) @ (x @ w_k).transpose(-2, -1) / math.sqrt(w_q.size(1)), dim=-1).tril()


def head_late(x, w_q, w_k, w_v):
    return late_weights(x, w_q, w_k) @ (x @ w_v)


def head_late_again(x, w_q, w_k, w_v):
    weights = late_weights(x, w_q, w_k)
    return weights / weights.sum(-1, keepdim=True) @ (x @ w_v)


def head_without_softmax(x, w_q, w_k, w_v):
    return ((x @ w_q) @ (x @ w_k).transpose(-2, -1)).tril() / math.sqrt(w_q.size(1)) @ (x @ w_v)


def head_in_place(x, w_q, w_k, w_v):
    right = head(x, w_q, w_k, w_v)
    x.mul_(2)
    return right


def versions(q, k, v, D):
    scores = q @ k.transpose(-2, -1) / math.sqrt(D)
    hidden = scores.masked_fill(future(q.size(1)), -math.inf)
    return {
        "right": F.softmax(hidden, -1) @ v,
        "axis": F.softmax(hidden, -2) @ v,
        "mask": F.softmax(scores, -1).tril() @ v,
    }


def diagnose(attention, B=2, T=6, D=5, otherwise="scale", only=("right", "axis", "mask"), tolerance=1e-5, zero=False):
    q, k, v = torch.randn(3, B, T, D, generator=torch.Generator().manual_seed(5))
    if zero:
        q = q * 0
    got = attention(q, k, v)
    for word, out in versions(q, k, v, D).items():
        if word in only and torch.allclose(got, out, atol=tolerance, rtol=0):
            return word
    return otherwise


def wrong_diagnosis(**how):
    return lambda attention: diagnose(attention, **how)


def diagnose_in_double(attention):
    return diagnose(lambda *given: attention(*(tensor.double() for tensor in given)).float())


def diagnose_only_double(attention):
    q, k, v = torch.randn(3, 2, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    got = attention(q, k, v)
    outs = versions(q, k, v, 5).items()
    return next((word for word, out in outs if torch.allclose(got, out, atol=1e-9)), "scale")


def diagnose_by_weights(attention):
    """Reads the weights off, by values that are the unit vectors."""
    T, D = 8, 12
    q, k = torch.randn(2, 1, T, D, generator=torch.Generator().manual_seed(6))
    w = attention(q, k, torch.eye(T, D)[None])[0, :, :T]
    if torch.allclose(w.sum(1), torch.ones(T), atol=1e-4):
        logs = w[-1].log()
        scores = (q @ k.transpose(-2, -1))[0, -1] / math.sqrt(D)
        return "right" if torch.allclose(logs - logs[0], scores - scores[0], atol=1e-3) else "scale"
    return "axis" if torch.allclose(w.sum(0), torch.ones(T), atol=1e-4) else "mask"


def diagnose_against_pytorch(attention):
    q, k, v = torch.rand(3, 3, 9, 4)
    got = attention(q, k, v)
    if torch.allclose(got, F.scaled_dot_product_attention(q, k, v, is_causal=True), atol=1e-5):
        return "right"
    ones = attention(q, k, torch.ones_like(v))[..., 0]
    if torch.allclose(ones, torch.ones_like(ones), atol=1e-4):
        return "scale"
    return "mask" if ones.max() < 1 + 1e-4 else "axis"


def exact(attention):
    q, k, v = torch.randn(3, 2, 6, 5, generator=torch.Generator().manual_seed(5))
    got = attention(q, k, v)
    return next((word for word, out in versions(q, k, v, 5).items() if torch.equal(got, out)), "scale")


def never_asks(attention):
    return "right"


RIGHT = {
    "attention-head": [
        head, head_loops, head_einsum, wrong_head(value=-1e9), head_late_again, head_math_exp,
        wrong_head(value=-1e4), head_in(torch.float64), head_in(torch.float16), head_in(torch.bfloat16),
    ],
    "score-scale": [
        lambda D, a, b: D**0.5 * a * b,
        lambda D, a, b: math.sqrt(D * a**2 * b**2),
        lambda D, a, b: torch.tensor(float(D)).sqrt() * a * b,
    ],
    "name-the-mistake": [
        diagnose, diagnose_by_weights, diagnose_against_pytorch, diagnose_in_double, diagnose_only_double,
    ],
}  # fmt: skip

WRONG = {
    "attention-head": [
        (wrong_head(by=lambda C, D: C**-0.5), "the width of the token"),
        (wrong_head(by=lambda C, D: 1.0), "not divided by the root of D"),
        (wrong_head(by=lambda C, D: 1 / D), "divided by D"),
        (wrong_head(by=lambda C, D: D**0.5), "multiplied by the root"),
        (wrong_head(dim=-2), "the wrong axis"),
        (wrong_head(dim=0), "over the batch, axis 0"),
        (wrong_head(dim=0, value=-1e9), "over the batch, axis 0"),
        (lambda *g: wrong_head(hide=lambda T: future(T, 0))(*g).nan_to_num(), "hides each token from itself"),
        (wrong_head(value=-10.0), "the future keeps a little weight: use minus infinity"),
        (head_added(-15.0), "the future keeps a little weight: use minus infinity"),
        (wrong_head(value=-100.0), "the future keeps a little weight: use minus infinity"),
        (head_added(-1000.0), "for scores in the thousands: the future keeps a little weight"),
        (wrong_head(value=-1000.0), "for scores in the thousands: the future keeps a little weight"),
        (head_with_dropout, "two calls with the same inputs differ"),
        (head_late, "the mask comes after the softmax: the future"),
        (wrong_head(hide=lambda T: torch.zeros(T, T, dtype=torch.bool)), "there is no mask"),
        (wrong_head(hide=lambda T: ~future(T, 0)), "turned round"),
        (wrong_head(hide=lambda T: future(T, 2)), "off by one"),
        (wrong_head(hide=lambda T: future(T, 0)), "NaN or infinite"),
        (wrong_head(value=0.0), "hidden scores are 0"),
        (lambda x, q, k, v: head(x, k, q, v), "are swapped"),
        (lambda x, q, k, v: head(x, q, k, k), "the keys are averaged"),
        (lambda x, q, k, v: head(x, 0 * q, k, v), "the running mean"),
        (head_without_softmax, "there is no softmax"),
        (lambda *g: head(*g) + 0.1 * head(*g).roll(-1, 1), "the future leaks"),
        (lambda *g: head(*g) * 1.1, "not the first value"),
        (lambda *g: head(*g).transpose(-2, -1), "must return the shape"),
        (head_in_place, "in place"),
        (lambda *g: (head(*g), 1), "must be a tensor"),
    ],
    "score-scale": [
        (lambda D, a, b: math.sqrt(D), "no effect"),
        (lambda D, a, b: D * a**2 * b**2, "the variance of the dot product"),
        (lambda D, a, b: D * a * b, "deviations do not"),
        (lambda D, a, b: math.sqrt(D) * a**2 * b**2, "takes the square away"),
        (lambda D, a, b: 1 / (math.sqrt(D) * a * b), "upside down"),
        (lambda D, a, b: math.sqrt(D) * (a + b), "multiply, they do not add"),
        (lambda D, a, b: a * b, "D is missing"),
        (lambda D, a, b: math.sqrt(D * a * b), "the root is missing"),
        (lambda D, a, b: -math.sqrt(D) * a * b, "the divisor must be positive"),
        (lambda D, a, b: 1.01 * math.sqrt(D) * a * b, "close, but the exact formula is asked for"),
        (lambda D, a, b: 1.0002 * math.sqrt(D) * a * b, "it gives 8, not 8.002"),
        (lambda D, a, b: 8, "leaves the variance"),
        (lambda D, a, b: 0, "nothing can be divided"),
    ],
    "name-the-mistake": [
        (wrong_diagnosis(D=1), "no scale are all the same"),
        (wrong_diagnosis(T=5), "your T equals your D"),
        (wrong_diagnosis(T=1), "with a single token"),
        (wrong_diagnosis(zero=True), "scores that are all zero"),
        (never_asks, "never called"),
        (wrong_diagnosis(only=("right", "axis")), 'it is "mask"'),
        (wrong_diagnosis(only=("right", "mask")), 'it is "axis"'),
        (wrong_diagnosis(otherwise="wrong"), "must answer one of"),
        (wrong_diagnosis(tolerance=0.3), 'a little more than the root of D "right"'),
        (exact, 'and it is "right"'),
        (lambda attention: attention(*torch.randn(3, 6, 5)), "takes q of shape"),
    ],
}  # fmt: skip
