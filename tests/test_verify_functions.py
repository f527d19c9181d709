"""Checks of functions and modules: what is right but unusual passes, what is wrong is caught, nothing is changed.

What is in the catalogue is tried in test_catalogue.py; here are others of the same kinds, and the look-alikes.
"""

import copy
import math
import random
import re

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gptbook import modern, verify
from gptbook.model import Block, CausalSelfAttention, GPTConfig
from gptbook.verify import blocks, broken, calling, functions
from gptbook.verify.report import DIFFERS, FAILED, NOT_CHECKED, PASSED

INF = float("-inf")


def tril(T):
    return torch.ones(T, T).tril()


def hand(q, k, v):
    """Attention as page 4 writes it."""
    scores = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).masked_fill(tril(q.size(-2)) == 0, INF)
    return F.softmax(scores, dim=-1) @ v


def filled(number):
    def attention(q, k, v):
        scores = q @ k.mT / math.sqrt(q.size(-1))
        return scores.masked_fill(tril(q.size(-2)) == 0, number).softmax(-1) @ v

    return attention


def causes(report):
    return " | ".join(r.cause for r in report.results if r.status == FAILED)


def statuses(report, *names):
    return [report[name].status for name in names]


# ---- what is right, however unusual


def loop(x):
    out = torch.zeros_like(x)
    for b in range(x.size(0)):
        for t in range(x.size(1)):
            out[b, t] = x[b, : t + 1].mean(0)
    return out


def by_softmax(x):
    return torch.zeros_like(x @ x.mT)[0].masked_fill(tril(x.size(1)) == 0, INF).softmax(-1) @ x


AVERAGES = {
    "loop": loop,
    "matrix": lambda x: (tril(x.size(1)) / tril(x.size(1)).sum(1, keepdim=True)) @ x,
    "softmax": by_softmax,
    "cumsum": lambda x: x.cumsum(-2) / torch.arange(1, x.shape[-2] + 1)[:, None],
    "backwards": lambda x: torch.stack([x[:, : t + 1].sum(1) / (t + 1) for t in reversed(range(x.size(1)))], 1).flip(1),
    "float64": lambda x: loop(x.double()),
    "weights too": lambda x: (torch.ones(2, 2), loop(x)),
    "dictionary": lambda x: {"mean": loop(x)},
    "no gradient": torch.no_grad()(loop),
    "einsum": lambda x: torch.einsum("ts,bsc->btc", tril(x.size(1)) / torch.arange(1, x.size(1) + 1)[:, None], x),
    "numpy": lambda x: torch.from_numpy(np.cumsum(x.numpy(), 1) / np.arange(1, x.size(1) + 1)[:, None]),
}


@pytest.mark.parametrize("name", AVERAGES)
def test_an_unusual_average_passes(name):
    report = verify.check_averaging(AVERAGES[name])
    assert report.passed, report
    assert statuses(report, "shapes", "untouched", "deterministic", "values", "causal") == [PASSED] * 5


def token_by_token(q, k, v):
    rows = []
    for t in range(q.size(-2)):
        scores = q[..., t : t + 1, :] @ k[..., : t + 1, :].mT / math.sqrt(q.size(-1))
        rows.append(scores.softmax(-1) @ v[..., : t + 1, :])
    return torch.cat(rows, -2)


def scores(q, k):
    return q @ k.mT / q.size(-1) ** 0.5


def masked(s):
    return s.masked_fill(tril(s.size(-1)) == 0, INF)


ATTENTIONS = {
    "by hand": hand,
    "fused": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "fused, with a mask": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, tril(q.size(-2)).bool()),
    "token by token": token_by_token,
    "queries scaled": lambda q, k, v: F.scaled_dot_product_attention(
        q * q.size(-1) ** -0.25, k * q.size(-1) ** -0.25, v, is_causal=True, scale=1.0
    ),
    "mask added": lambda q, k, v: (scores(q, k) + torch.full((q.size(-2),) * 2, INF).triu(1)).softmax(-1) @ v,
    "einsum": lambda q, k, v: torch.einsum(
        "...ts,...sd->...td",
        masked(torch.einsum("...td,...sd->...ts", q, k) / q.size(-1) ** 0.5).softmax(-1),
        v,
    ),
    "the largest subtracted": lambda q, k, v: (
        lambda e: (e / e.sum(-1, keepdim=True)) @ v
    )((lambda s: (s - s.amax(-1, keepdim=True)).exp())(masked(scores(q, k)))),
    "weights too": lambda q, k, v: (hand(q, k, v), torch.ones(2, 2)),
    "float64": lambda q, k, v: hand(q.double(), k.double(), v.double()),
    "-1e4": filled(-1e4),
    "three axes": lambda q, k, v: hand(*(x.view(*x.shape) if x.dim() == 3 else 1 / 0 for x in (q, k, v))),
    "four axes": lambda q, k, v: hand(*(x if x.dim() == 4 else 1 / 0 for x in (q, k, v))),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTENTIONS)
def test_an_unusual_attention_passes(name):
    report = verify.check_attention(ATTENTIONS[name])
    assert report.passed, report
    assert statuses(report, "untouched", "values", "causal", "extreme", "gradient") == [PASSED] * 5, report
    one_kind = name.endswith("axes")
    assert report["shapes"].status == (NOT_CHECKED if one_kind else PASSED), "what it does not take is not passed"


def renormalised(q, k, v):
    weights = (q @ k.mT / q.size(-1) ** 0.5).softmax(-1) * tril(q.size(-2))
    return weights / weights.sum(-1, keepdim=True) @ v


def unshifted(q, k, v):
    weights = (q @ k.mT / q.size(-1) ** 0.5).exp() * tril(q.size(-2))
    return weights / weights.sum(-1, keepdim=True) @ v


@pytest.mark.parametrize(
    ("attention", "words"),
    [
        (renormalised, "mask comes after the softmax"),
        (unshifted, "subtract the largest score"),
        (filled(-100.0), "finite number"),
        (filled(-50.0), "finite number"),
    ],
)
def test_what_is_right_at_ordinary_weights_passes_and_is_said_to_break_at_extreme_ones(attention, words):
    report = verify.check_attention(attention)
    assert report.passed
    assert report["values"].status == report["causal"].status == PASSED
    assert report["extreme"].status == DIFFERS
    assert words in report["extreme"].cause
    assert "extreme" in report["extreme"].cause


def test_a_fill_that_half_precision_lacks_is_a_difference():
    report = verify.check_attention(filled(-1e9))
    assert report.passed
    assert report["half"].status == DIFFERS
    assert "float16" in report["half"].cause


def centred(x):
    return x - x.mean(-1, keepdim=True)


def norm(x, weight, bias, eps=1e-5):
    mean = x.mean(-1, keepdim=True)
    return weight * (x - mean) / torch.sqrt(((x - mean) ** 2).mean(-1, keepdim=True) + eps) + bias


NORMS = {
    "by hand": norm,
    "torch": lambda x, weight, bias: F.layer_norm(x, weight.shape, weight, bias),
    "rsqrt": lambda x, w, b: torch.addcmul(b, centred(x) * (x.var(-1, keepdim=True, correction=0) + 1e-5).rsqrt(), w),
    "three axes": lambda x, w, b: norm(x, w, b) if x.dim() == 3 else 1 / 0,
    "float64": lambda x, w, b: norm(x.double(), w, b),
    "statistics too": lambda x, w, b: (norm(x, w, b), x.mean(-1), x.var(-1)),
}  # fmt: skip
GELUS = {
    "torch": F.gelu,
    "module": nn.GELU(),
    "erf": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    "erfc": lambda x: 0.5 * x * torch.erfc(-x / math.sqrt(2)),
    "normal": lambda x: x * torch.distributions.Normal(0, 1).cdf(x),
    "one by one": lambda x: torch.tensor([v * 0.5 * (1 + math.erf(v / 2**0.5)) for v in x.flatten().tolist()]).view(
        x.shape
    ),
    "float64": lambda x: F.gelu(x.double()),
}
LOSSES = {
    "view": lambda z, y: F.cross_entropy(z.view(-1, z.size(-1)), y.view(-1)),
    "transposed": lambda z, y: F.cross_entropy(z.transpose(1, 2), y),
    "gathered": lambda z, y: -z.log_softmax(-1).gather(-1, y.unsqueeze(-1)).mean(),
    "one-hot": lambda z, y: -(F.one_hot(y, z.size(-1)) * z.log_softmax(-1)).sum(-1).mean(),
    "logsumexp": lambda z, y: (z.logsumexp(-1) - z.gather(-1, y[..., None])[..., 0]).mean(),
    "log_softmax first": lambda z, y: F.cross_entropy(z.log_softmax(-1).flatten(0, 1), y.flatten()),
    "row by row": lambda z, y: torch.stack([F.cross_entropy(a, b) for a, b in zip(z, y, strict=True)]).mean(),
    "one number in a list": lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten()).view(1),
    "with logits": lambda z, y: (z, F.cross_entropy(z.flatten(0, 1), y.flatten())),
    "float64": lambda z, y: F.cross_entropy(z.flatten(0, 1).double(), y.flatten()),
    "ignoring -1": lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), ignore_index=-1),
}


@pytest.mark.parametrize(
    ("check", "right"),
    [
        *((verify.check_layer_norm, f) for f in NORMS.values()),
        *((verify.check_gelu, f) for f in GELUS.values()),
        *((verify.check_loss, f) for f in LOSSES.values()),
    ],
    ids=[*NORMS, *GELUS, *LOSSES],
)
def test_an_unusual_norm_gelu_or_loss_passes(check, right):
    report = check(right)
    assert report.passed, report
    assert report["values"].status == PASSED
    assert report["float64"].status == PASSED


@pytest.mark.parametrize(
    ("check", "function", "name", "words"),
    [
        (verify.check_gelu, lambda x: F.gelu(x, approximate="tanh"), "values", "GPT-2's own approximation"),
        (verify.check_layer_norm, lambda x, w, b: norm(x, w, b, 1e-6), "values", "epsilon"),
        (verify.check_layer_norm, lambda x, w, b: norm(x, w, b, 1e-12), "values", "1e-12"),
        (
            verify.check_layer_norm,
            lambda x, w, b: (
                w * centred(x) / ((x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2 + 1e-5).sqrt() + b
            ),
            "extreme",
            "subtract the mean first",
        ),
        (verify.check_loss, lambda z, y: -z.softmax(-1).log().gather(2, y[..., None]).mean(), "extreme", "log_softmax"),
    ],
)  # fmt: skip
def test_what_merely_differs_does_not_fail(check, function, name, words):
    report = check(function)
    assert report.passed, report
    assert report[name].status == DIFFERS
    assert words in report[name].cause


# ---- others of the kinds that the catalogue has


def narrower(n):
    """Attention whose scale takes the width of n heads for that of one."""
    return lambda q, k, v: hand(q / math.sqrt(n), k, v)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 12))
def test_a_scale_by_the_width_is_told_from_outside_for_any_number_of_heads(n):
    report = verify.check_attention(narrower(n))
    assert f"the root of {n} times D" in causes(report)
    assert "width C" in causes(report)


@pytest.mark.parametrize("C", [32, 384])
def test_a_scale_that_is_one_number_is_told_from_outside(C):
    report = verify.check_attention(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=C**-0.5)
    )
    assert f"1/{C}" in causes(report)
    assert "width C" in causes(report)


@pytest.mark.parametrize(
    ("check", "wrong", "words"),
    [
        (verify.check_attention, lambda q, k, v: (q @ k.mT).softmax(-1) @ v, "two at once.*not divided.*no mask"),
        (verify.check_attention, lambda q, k, v: masked(q @ k.mT).softmax(-2) @ v, "two at once"),
        (verify.check_attention, filled(-12.0), "not causal"),
        (verify.check_attention, lambda q, k, v: 1.5 * hand(q, k, v), "sum to 1.5"),
        (verify.check_attention, lambda q, k, v: hand(q.detach(), k, v), "detached"),
        (verify.check_attention, lambda q, k, v: F.dropout(hand(q, k, v), 0.1), "dropout"),
        (verify.check_attention, lambda q, k, v: (torch.manual_seed(0), hand(q, k, v))[1], "random numbers"),
        (verify.check_attention, lambda q, k, v: hand(q.mul_(1.5).div_(1.5).add_(0.1).sub_(0.1), k, v), "in place"),
        (verify.check_averaging, lambda x: x.cumsum_(1).div_(torch.arange(1, x.size(1) + 1)[:, None]), "in place"),
        (verify.check_averaging, lambda x: (torch.ones(8, 8).tril() / torch.arange(1, 9)[:, None]) @ x, "T = 8 alone"),
        (verify.check_averaging, lambda x: 0.9 * loop(x), "sum to 0.9"),
        (verify.check_averaging, lambda x: loop(x).roll(-1, 1), "not causal"),
        (verify.check_averaging, lambda x: None, "none of the sizes"),
        (verify.check_averaging, lambda x: loop(x).long(), "none of the sizes"),
        (verify.check_layer_norm, lambda x, w, b: w * centred(x) / (x.std(-1)[..., None] + 1e-6) + b, "C − 1.*outside"),
        (verify.check_layer_norm, lambda x, w, b: norm(x, w, b, 3e-5), "epsilon is about 3.0e-05"),
        (verify.check_layer_norm, lambda x, w, b: norm(x, w, b) + 0.1, "mean 0"),
        (verify.check_layer_norm, lambda x, w, b: 1.1 * norm(x, w, b), "variance 1"),
        (verify.check_layer_norm, lambda x, w, b: norm(x.detach(), w, b), "detached"),
        (verify.check_gelu, lambda x: F.gelu(x) + 0.01, "0 at 0"),
        (verify.check_gelu, lambda x: 1.01 * F.gelu(x), "far above zero"),
        (verify.check_gelu, lambda x: 0.5 * x * (1 + (x.exp() - (-x).exp()) / (x.exp() + (-x).exp())), "overflows"),
        (verify.check_gelu, lambda x: x.mul_(0.5).mul_(1 + torch.erf(x * 2 / math.sqrt(2))), "in place"),
        (verify.check_gelu, nn.GELU, "none of the sizes"),
        (verify.check_loss, lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten()).item(), "no gradient"),
        (verify.check_loss, lambda z, y: F.cross_entropy(z, y), "transposed"),
        (verify.check_loss, lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten()) + 0.1, "ln 7"),
        (verify.check_loss, lambda z, y: F.cross_entropy(z.flatten(0, 1) / 2, y.flatten()), "must cost 0"),
    ],
)  # fmt: skip
def test_others_of_the_same_kinds_are_caught_and_explained(check, wrong, words):
    report = check(wrong)
    assert not report.passed
    assert re.search(words, causes(report)), report


def test_every_cause_of_a_failure_leads_to_a_page():
    for report in (verify.check_attention(filled(-12.0)), verify.check_gelu(lambda x: F.gelu(x) + 0.01)):
        assert "(page" in causes(report)


# ---- functions that misbehave


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(calling, "LIMIT", 0.3)


def forever(*_):
    while True:
        pass


@pytest.mark.parametrize("check", [verify.check_averaging, verify.check_gelu])
def test_a_function_that_never_returns_is_stopped_once(check, short):
    report = check(forever)
    assert "no answer within" in report["shapes"].measured
    assert set(statuses(report, "values", "gradient")) == {NOT_CHECKED}


@pytest.mark.parametrize(
    "error", [ValueError("boom"), SystemExit(3), KeyboardInterrupt(), RecursionError("deep"), MemoryError()]
)
def test_a_function_that_raises_gets_a_line(error):
    def raises(*_):
        raise error

    for check in (verify.check_attention, verify.check_loss):
        report = check(raises)
        assert report.failed == ["shapes"]
        assert type(error).__name__ in report["shapes"].measured
        assert "\n" not in report["shapes"].measured


@pytest.mark.parametrize(
    "check",
    [verify.check_averaging, verify.check_attention, verify.check_layer_norm, verify.check_gelu, verify.check_loss],
)
def test_what_is_no_function_is_refused(check):
    with pytest.raises(TypeError, match="must be a function, got a int"):
        check(3)


def test_random_states_and_the_default_type_are_put_back():
    def rude(x):
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        torch.set_default_dtype(torch.float64)
        return loop(x)

    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    report = verify.check_averaging(rude)
    assert report.failed == ["untouched"]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]
    assert torch.get_default_dtype() == torch.float32


def test_ask_hands_over_copies():
    x, seen = torch.ones(3), []
    answer = calling.ask(lambda a, b: (a.add_(1), seen.append(b)), x, b=[1])
    assert torch.equal(x, torch.ones(3))
    assert answer.changed
    assert seen[0] == [1]
    assert not answer.drew
    assert calling.ask(torch.rand, 2).drew


# ---- several heads


class Packed(nn.Module):
    """Heads in other layouts: order of the packed parts, by head or by kind, with a bias or none."""

    def __init__(self, C, H, order=(0, 1, 2), by_head=False, bias=True):
        super().__init__()
        self.H, self.order, self.by_head = H, order, by_head
        self.inner, self.outer = nn.Linear(C, 3 * C, bias=bias), nn.Linear(C, C, bias=bias)

    def forward(self, x):
        B, T, C = x.shape
        z = self.inner(x)
        z = (
            z.view(B, T, self.H, 3, -1).permute(3, 0, 2, 1, 4)
            if self.by_head
            else z.view(B, T, 3, self.H, -1).permute(2, 0, 3, 1, 4)
        )
        return self.outer(hand(*(z[i] for i in self.order)).transpose(1, 2).reshape(B, T, C))


class Head(nn.Module):
    def __init__(self, C, D, block_size=8):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(C, D, bias=False) for _ in range(3))
        self.register_buffer("tril", tril(block_size))
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        T = x.size(1)
        weights = self.query(x) @ self.key(x).mT * self.key.out_features**-0.5
        return self.dropout(weights.masked_fill(self.tril[:T, :T] == 0, INF).softmax(-1)) @ self.value(x)


class Listed(nn.Module):
    def __init__(self, C, H):
        super().__init__()
        self.heads = nn.ModuleList(Head(C, C // H) for _ in range(H))
        self.proj = nn.Linear(C, C)

    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.heads], -1))


class Summed(nn.Module):
    """Each head with an output matrix of its own, added up: the same as side by side and projected."""

    def __init__(self, C, H):
        super().__init__()
        self.heads = nn.ModuleList(Head(C, C // H) for _ in range(H))
        self.outs = nn.ModuleList(nn.Linear(C // H, C) for _ in range(H))

    def forward(self, x):
        return sum(out(head(x)) for head, out in zip(self.heads, self.outs, strict=True))


class Raw(nn.Module):
    """Parameters without nn.Linear, multiplied from the right."""

    def __init__(self, C, H):
        super().__init__()
        self.H = H
        self.Wq, self.Wk, self.Wv, self.Wo = (nn.Parameter(torch.randn(C, C) / C**0.5) for _ in range(4))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = ((x @ w).view(B, T, self.H, -1).transpose(1, 2) for w in (self.Wq, self.Wk, self.Wv))
        return hand(q, k, v).transpose(1, 2).reshape(B, T, C) @ self.Wo


class Stacked(nn.Module):
    def __init__(self, C, H):
        super().__init__()
        self.q, self.k, self.v = (nn.Parameter(torch.randn(H, C, C // H) / C**0.5) for _ in range(3))
        self.o = nn.Parameter(torch.randn(H, C // H, C) / C**0.5)

    def forward(self, x):
        q, k, v = (torch.einsum("btc,hcd->bhtd", x, w) for w in (self.q, self.k, self.v))
        return torch.einsum("bhtd,hdc->btc", hand(q, k, v), self.o)


class Theirs(nn.Module):
    """torch's own, used rightly."""

    def __init__(self, C, H):
        super().__init__()
        self.inner = nn.MultiheadAttention(C, H, batch_first=True, dropout=0.1)

    def forward(self, x):
        hide = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        return self.inner(x, x, x, attn_mask=hide)


def _own(C, H):
    return CausalSelfAttention(GPTConfig(n_embd=C, n_head=H, block_size=7, dropout=0.1))


def _own_bias(C, H):
    return CausalSelfAttention(GPTConfig(n_embd=C, n_head=H, qkv_bias=True))


def _kqv(C, H):
    return Packed(C, H, order=(1, 0, 2))


def _by_head(C, H):
    return Packed(C, H, by_head=True, bias=False)


def _zero_projection(C, H):
    module = Packed(C, H)
    nn.init.zeros_(module.outer.weight)
    return module


HEADS = [_own, _own_bias, _kqv, _by_head, _zero_projection, Listed, Summed, Raw, Stacked, Theirs]


@pytest.mark.parametrize("make", HEADS)
@settings(max_examples=20, deadline=None)
@given(H=st.integers(1, 4), D=st.integers(2, 5), seed=st.integers(0, 2**31))
def test_right_heads_pass_in_any_layout(make, H, D, seed):
    torch.manual_seed(seed)
    report = verify.check_multihead(make(H * D, H), H)
    assert report.passed, report
    assert report["values"].status == PASSED, report


def test_heads_can_be_told_of():
    told = {"q": "b.weight", "k": "c.weight", "v": "a.weight", "o": "d.weight"}
    told |= {f"{role}_bias": name.replace("weight", "bias") for role, name in told.items()}

    class Odd(nn.Module):
        def __init__(self, turn=0.0):
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Linear(12, 12) for _ in range(4))
            self.turn = turn

        def forward(self, x):
            v, q, k = (f(x).view(*x.shape[:2], 3, 4).transpose(1, 2) for f in (self.a, self.b, self.c))
            return self.d(hand(q, k, v).transpose(1, 2).flatten(2)) + self.turn

    assert verify.check_multihead(Odd(), 3, told)["values"].status == PASSED
    assert verify.check_multihead(Odd(0.1), 3, told)["values"].status == FAILED
    assert verify.check_multihead(Odd(0.1), 3)["values"].status == NOT_CHECKED, "it may compute something else as well"
    with pytest.raises(ValueError, match=r"no parameter 'e\.weight'"):
        verify.check_multihead(Odd(), 3, told | {"q": "e.weight"})
    with pytest.raises(ValueError, match="query"):
        verify.check_multihead(Odd(), 3, {"query": "a.weight"})


def test_a_scale_in_heads_is_measured():
    class Cold(Packed):
        def forward(self, x):
            with torch.no_grad():
                self.inner.weight[: x.size(-1)].mul_(0.3), self.inner.bias[: x.size(-1)].mul_(0.3)
            y = super().forward(x)
            with torch.no_grad():
                self.inner.weight[: x.size(-1)].div_(0.3), self.inner.bias[: x.size(-1)].div_(0.3)
            return y

    assert "multiplied by 0.15," in causes(verify.check_multihead(Cold(12, 3), 3))


def test_the_wrong_number_of_heads_is_named():
    assert "4 heads where 2" in causes(verify.check_multihead(Packed(16, 4), 2))


@pytest.mark.parametrize(("n_head", "error"), [(0, ValueError), (2.0, TypeError), (True, TypeError)])
def test_a_number_of_heads_that_makes_no_sense_is_refused(n_head, error):
    with pytest.raises(error, match="n_head"):
        verify.check_multihead(Packed(12, 3), n_head)


# ---- the block


class WithLinears(nn.Module):
    """A block whose MLP is no module of its own."""

    def __init__(self, C, H, straight=False):
        super().__init__()
        self.ln1, self.ln2, self.sa = nn.LayerNorm(C), nn.LayerNorm(C), Listed(C, H)
        self.up, self.down, self.straight = nn.Linear(C, 4 * C), nn.Linear(4 * C, C), straight

    def forward(self, x):
        x = x + self.sa(self.ln1(x))
        z = self.up(self.ln2(x))
        return x + self.down(z if self.straight else z.relu())


class Layer(nn.Module):
    def __init__(self, C, H, first=True):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(C, H, 4 * C, 0.1, batch_first=True, norm_first=first)

    def forward(self, x):
        return self.layer(x, src_mask=nn.Transformer.generate_square_subsequent_mask(x.size(1)))


def _own_block(C, H):
    return Block(GPTConfig(n_embd=C, n_head=H, block_size=7, dropout=0.1))


def _fresh_zeros(C, H):
    block = _own_block(C, H)
    for projection in (block.attn.c_proj, block.mlp.c_proj):
        nn.init.zeros_(projection.weight)
        nn.init.zeros_(projection.bias)
    return block


@pytest.mark.parametrize("make", [_own_block, _fresh_zeros, WithLinears, Layer])
@settings(max_examples=20, deadline=None)
@given(H=st.integers(1, 4), D=st.integers(2, 5), seed=st.integers(0, 2**31))
def test_right_blocks_pass(make, H, D, seed):
    torch.manual_seed(seed)
    report = verify.check_block(make(H * D, H))
    assert report.passed, report
    assert not report.not_checked, report
    assert all(r.status == PASSED for r in report.results), report


def test_the_block_of_hugging_face_passes():
    transformers = pytest.importorskip("transformers")
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    sizes = {
        "n_embd": 24,
        "n_head": 3,
        "n_layer": 2,
        "n_positions": 16,
        "vocab_size": 31,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    report = verify.check_block(GPT2Block(transformers.GPT2Config(**sizes, attn_implementation="sdpa"), layer_idx=0))
    assert all(r.status == PASSED for r in report.results), report


@pytest.mark.parametrize("mistake", blocks.DIFFERENCES, ids=[m.name for m in blocks.DIFFERENCES])
def test_other_designs_of_a_block_differ(mistake):
    report = blocks.ASK["block"](mistake.wrong)
    assert report.passed, report
    assert report["structure"].status == DIFFERS
    assert mistake.words in report["structure"].cause


def test_torch_s_layer_with_norms_behind_differs():
    report = verify.check_block(Layer(24, 4, first=False))
    assert report.passed
    assert "post-norm" in report["structure"].cause


@pytest.mark.parametrize(
    ("block", "name", "words"),
    [
        (lambda: broken.Block(odd="rms norm"), "norms", "RMSNorm"),
        (lambda: modern.Block(modern.ModernConfig(n_layer=1, n_head=4, n_embd=32)), "norms", "RMSNorm"),
    ],
)  # fmt: skip
def test_another_norm_differs(block, name, words):
    report = verify.check_block(block())
    assert report.passed, report
    assert report[name].status == DIFFERS
    assert words in report[name].cause


class AllFunctional(nn.Module):
    """No part is a module: what goes in and out of the parts cannot be seen."""

    def __init__(self, C=24, H=3, way="right"):
        super().__init__()
        self.H, self.way = H, way
        shapes = {"a": (C, 3 * C), "b": (C, C), "c": (C, 4 * C), "d": (4 * C, C)}
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.randn(shape) / 5))

    def heads(self, h):
        q, k, v = (z.view(*h.shape[:2], self.H, -1).transpose(1, 2) for z in (h @ self.a).split(h.size(-1), -1))
        return hand(q, k, v).transpose(1, 2).flatten(2) @ self.b

    def forward(self, x):
        def ln(z):
            return F.layer_norm(z, z.shape[-1:])

        if self.way == "no residual":
            h = self.heads(ln(x))
            return F.gelu(ln(h) @ self.c) @ self.d
        if self.way == "normalised":
            h = ln(x) + self.heads(ln(x))
            return h + F.gelu(ln(h) @ self.c) @ self.d
        if self.way == "post-norm":
            h = ln(x + self.heads(x))
            return ln(h + F.gelu(h @ self.c) @ self.d)
        h = x + self.heads(ln(x))
        return h + F.gelu(ln(h) @ self.c) @ self.d


@pytest.mark.parametrize(
    ("way", "status", "words"),
    [
        ("right", PASSED, ""),
        ("no residual", FAILED, "missing"),
        ("normalised", FAILED, "normalised stream"),
        ("post-norm", DIFFERS, "post-norm"),
    ],
)  # fmt: skip
def test_a_block_without_parts_is_looked_at_from_outside_alone(way, status, words):
    report = verify.check_block(AllFunctional(way=way))
    assert report["residual"].status == status
    assert words in report["residual"].cause
    assert statuses(report, "structure", "norms", "attention", "activation") == [NOT_CHECKED] * 4


def test_an_mlp_without_activation_is_seen_where_its_layers_are_parts_of_the_block():
    assert blocks.NO_ACTIVATION in causes(verify.check_block(WithLinears(12, 3, straight=True)))


@pytest.mark.parametrize(
    "fault",
    [
        "no mask",
        "mask one ahead",
        "own token hidden",
        "no output projection",
        "norm over positions",
        "norm over the batch",
        "weak fill",
        "scores multiplied",
    ],
)
def test_the_broken_blocks_of_the_other_tests_are_caught(fault):
    report = verify.check_block(broken.Block(fault))
    assert not report.passed
    assert "(page" in causes(report)


# ---- modules that misbehave, and that stay as they were


class Broken(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how, self.w = how, nn.Linear(6, 6)

    def forward(self, x):
        match self.how:
            case "raises":
                raise ValueError("boom")
            case "hangs":
                forever()
            case "text":
                return "text"
            case "short":
                return self.w(x)[:, -1]
            case "in place":
                return x.add_(self.w(x))
            case "counts":
                self.calls = getattr(self, "calls", 0) + 1
                return self.w(x) * self.calls
            case "first row":
                return self.w(x) if x.size(0) > 1 else 1 / 0


@pytest.mark.parametrize("how", ["raises", "hangs", "text", "short", "in place", "counts", "first row"])
def test_a_module_that_misbehaves_gets_a_line(how, short):
    for report in (verify.check_block(Broken(how)), verify.check_multihead(Broken(how), 2)):
        assert report.failed[0] in ("shapes", "deterministic")
        assert len(report.failed) == 1


class NoCopy(Packed):
    def __deepcopy__(self, memo):
        raise TypeError("no")


def test_what_cannot_be_copied_is_not_checked():
    for report in (verify.check_block(NoCopy(12, 3)), verify.check_multihead(NoCopy(12, 3), 3)):
        assert {r.status for r in report.results} == {NOT_CHECKED}
        assert "cannot be copied" in report["shapes"].cause


@pytest.mark.parametrize("what", [Packed, 3, F.gelu])
def test_what_is_no_module_is_refused(what):
    for check in (verify.check_block, lambda m: verify.check_multihead(m, 3)):
        with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module"):
            check(what)


@pytest.mark.parametrize(
    "make", [_own_block, Layer, Theirs, lambda C, H: Broken("raises"), lambda C, H: Broken("counts")]
)
def test_a_reader_s_module_is_never_changed(make):
    module = make(12, 3).train()
    module.register_forward_hook(lambda *_: None)
    first = next(module.parameters())
    first.requires_grad_(False)
    last = list(module.parameters())[-1]
    last.grad = torch.full_like(last, 2.0)
    kept = copy.deepcopy(module.state_dict()), [p.requires_grad for p in module.parameters()], torch.get_rng_state()
    hooks = [len(m._forward_hooks) for m in module.modules()]
    verify.check_block(module)
    if not isinstance(module, Block | Layer):  # whose matrices are not those of heads alone
        verify.check_multihead(module, 3)
    assert all(torch.equal(a, b) for a, b in zip(kept[0].values(), module.state_dict().values(), strict=True))
    assert [p.requires_grad for p in module.parameters()] == kept[1]
    assert torch.equal(torch.get_rng_state(), kept[2])
    assert all(m.training for m in module.modules())
    assert [len(m._forward_hooks) for m in module.modules()] == hooks
    assert first.grad is None
    assert torch.equal(last.grad, torch.full_like(last, 2.0))
    assert not hasattr(module, "calls")


def test_the_right_parts_of_the_catalogue_are_right():
    """The oracle of the families: with no mistake named, they are PyTorch's own."""
    assert verify.check_attention(functions.attend()).passed
    assert verify.check_layer_norm(functions.layer_norm_as()).passed
    assert verify.check_multihead(blocks.WrongHeads(12, 3), 3).passed
    assert verify.check_block(blocks.WrongBlock(12, 3)).passed


def test_rounding_of_a_gradient_is_no_mistake():
    """Where a row hardly varies and epsilon is tiny, float32 has few digits left: the same in float64 is right."""

    def layer_norm(x, weight, bias):
        return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-12)

    def detached(x, weight, bias):
        return F.layer_norm(x, x.shape[-1:], weight.detach(), bias, 1e-12)

    assert verify.check_layer_norm(layer_norm).failed == []
    assert verify.check_layer_norm(detached).failed == ["gradient"]
