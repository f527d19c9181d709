"""The checks of page 4, one head of self-attention."""

import math

import torch
import torch.nn.functional as F

from gptbook.exercises.answers import Wrong, apart, ask, first_off, need_function, number, settled, shown
from gptbook.exercises.tensors import as_tensor, close, kept

# --- versions of attention on q, k, v (B, T, D): the right one, and those that people write ---------------------------


def _hidden(scores):
    T = scores.size(-1)
    return scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf)


def _scores(q, k, by):
    return q @ k.transpose(-2, -1) * by


def _causal(q, k, v, by=None):
    by = q.size(-1) ** -0.5 if by is None else by
    return F.softmax(_hidden(_scores(q, k, by)), dim=-1) @ v


def _axis(q, k, v):
    return F.softmax(_hidden(_scores(q, k, q.size(-1) ** -0.5)), dim=-2) @ v


def _late(q, k, v):
    return F.softmax(_scores(q, k, q.size(-1) ** -0.5), dim=-1).tril() @ v


# --- attention-head ---------------------------------------------------------------------------------------------------


def attention_head(head) -> str:
    """head(x, w_q, w_k, w_v): x (B, T, C), matrices (C, D) each -> (B, T, D), causal and scaled."""
    form = "head(x, w_q, w_k, w_v)"
    need_function(head, form)
    generator = torch.Generator().manual_seed(40)
    cases, got = [], []
    for B, T, C, D in ((2, 7, 12, 5), (1, 1, 4, 4), (3, 5, 5, 9), (2, 6, 8, 1)):
        x = torch.randn(B, T, C, generator=generator)  # (B, T, C)
        cases.append((x, *1.5 * torch.randn(3, C, D, generator=generator) / math.sqrt(C)))
    for case in cases:
        given = [tensor.clone() for tensor in case]
        what = f"head on x {tuple(case[0].shape)} and matrices {tuple(case[1].shape)}"
        value = as_tensor(ask(head, what, *given), what)
        kept(given, case, f"{what} changed one of its inputs in place: work on copies")
        wanted = (*case[0].shape[:2], case[1].size(1))
        if tuple(value.shape) != wanted:
            raise Wrong(f"{what} must return the shape {wanted}, got {tuple(value.shape)}")
        got.append(value)
    again = as_tensor(ask(head, "head", *(tensor.clone() for tensor in cases[0])), "head's answer")
    if not _alike(again, got[0]):
        raise Wrong("two calls with the same inputs differ: is dropout left on, or anything else that is random?")
    if settled(got, [_head(*case) for case in cases], cases, HEAD_MISTAKES, _alike):
        return "scaled by the width of the head, masked, and equal to PyTorch's own" + _but(head)
    if any(not torch.isfinite(mine).all() for mine in got):
        raise Wrong("some outputs are NaN or infinite: does a row of the mask leave nothing to look at?")
    x, *weights = cases[0]
    spoiled = x.clone()
    spoiled[:, -1] += 100.0
    again = as_tensor(ask(head, "head", spoiled, *weights), "head's answer")
    if not _alike(again[:, :-1], got[0][:, :-1]):
        raise Wrong("earlier outputs move when the last token changes: the future leaks into the past")
    if not _alike(got[0][:, 0], (x @ weights[2])[:, 0].double()):
        raise Wrong("the first output is not the first value: token 0 has nobody but itself to look at")
    off = max((mine.double() - _head(*case)).abs().max().item() for mine, case in zip(got, cases, strict=True))
    raise Wrong(f"causal, but off by up to {off:.2g} from PyTorch's own: check scores, scale and softmax one by one")


def _but(head) -> str:
    """What a right answer must still hear: what breaks at scores in the thousands; refuses a finite mask."""
    for own, later, remark in (
        (60.0, 60.0, "e to a large score overflows: subtract the row's largest first"),
        (-60.0, 0.0, "where a hidden score is far above the others it gives NaN: mask the scores before the softmax"),
    ):
        case = extreme(own, later)
        try:
            value = head(*(tensor.clone() for tensor in case))
        except ArithmeticError:  # math.exp overflows, or a row of zeros is divided by its sum
            return f", but {remark}"
        value = as_tensor(value, "head's answer")
        if not torch.isfinite(value).all():
            return f", but {remark}"
        if not _alike(value, _head(*case)):
            raise Wrong(f"right for scores of an ordinary size, but not for scores in the thousands: {WEAK_MASK}")
    return ""


def extreme(own, later):
    """x (1, 3, 4) and three matrices (4, 4): 35 own is the score of tokens 0 and 1, 35 later that of token 2."""
    x = torch.tensor([[[1.0, own, 1.0, 2.0], [1.0, own, 3.0, 0.5], [1.0, later, 5.0, 1.0]]])  # (B, T, C)
    w_q, w_k, w_v = torch.zeros(3, 4, 4)
    w_q[0, 0], w_k[1, 0], w_v[2, 0], w_v[3, 1] = 70.0, 1.0, 1.0, 1.0
    return x, w_q, w_k, w_v


def _alike(a, b) -> bool:
    return close(a, b, rtol=1e-4, atol=1e-4)


def _head(x, w_q, w_k, w_v):
    return F.scaled_dot_product_attention(x @ w_q, x @ w_k, x @ w_v, is_causal=True)


def _of(attention):
    """The head that uses this version of attention."""
    return lambda x, w_q, w_k, w_v: attention(x @ w_q, x @ w_k, x @ w_v)


def _by(factor):
    """The head that multiplies its scores by factor(C, D) and not by 1 / sqrt(D)."""
    return lambda x, w_q, w_k, w_v: _causal(x @ w_q, x @ w_k, x @ w_v, factor(x.size(-1), w_q.size(1)))


WEAK_MASK = "the future keeps a little weight: use minus infinity"
WEAK = (-1.0, -5.0, -10.0, -15.0, -20.0, -30.0, -50.0, -100.0)  # what people fill a mask with

HEAD_MISTAKES = (
    ("the scores are not divided by the root of D", _by(lambda C, D: 1.0)),
    ("the scores are divided by the root of C, the width of the token: the root of D, the head's, is asked for",
     _by(lambda C, D: C**-0.5)),
    ("the scores are divided by D: its root is asked for", _by(lambda C, D: 1 / D)),
    ("the scores are multiplied by the root of D: divide by it", _by(lambda C, D: D**0.5)),
    ("the softmax runs over the wrong axis: each row, over the tokens that are looked at, must sum to 1", _of(_axis)),
    *(("the softmax runs over the batch, axis 0: each row, over the tokens that are looked at, must sum to 1",
       _of(lambda q, k, v, over=over: over(_hidden(_scores(q, k, q.size(-1) ** -0.5))) @ v)) for over in (
        lambda hidden: F.softmax(hidden, dim=0), lambda hidden: F.softmax(hidden, dim=0).nan_to_num(),
        lambda hidden: F.softmax(hidden.clamp(min=-1e9), dim=0))),
    ("the mask hides each token from itself: it may look at itself and at all before it",
     _of(lambda q, k, v: F.softmax(_scores(q, k, q.size(-1) ** -0.5).masked_fill(
         torch.ones(q.size(1), q.size(1), dtype=torch.bool).triu(), -math.inf), dim=-1).nan_to_num() @ v)),
    *((WEAK_MASK, _of(lambda q, k, v, low=low: F.softmax(_scores(q, k, q.size(-1) ** -0.5).masked_fill(
        torch.ones(q.size(1), q.size(1), dtype=torch.bool).triu(1), low), dim=-1) @ v)) for low in WEAK),
    *((WEAK_MASK, _of(lambda q, k, v, low=low: F.softmax(_scores(q, k, q.size(-1) ** -0.5) + torch.full(
        (q.size(1), q.size(1)), low).triu(1), dim=-1) @ v)) for low in WEAK),
    ("the mask comes after the softmax: the future has taken its share of each row by then, so mask the scores",
     _of(_late)),
    ("there is no mask: every token sees the future",
     _of(lambda q, k, v: F.scaled_dot_product_attention(q, k, v))),
    ("the mask is turned round: it hides the past and shows the future", _of(
        lambda q, k, v: F.softmax(_scores(q, k, q.size(-1) ** -0.5).masked_fill(
            torch.ones(q.size(1), q.size(1), dtype=torch.bool).tril(-1), -math.inf), dim=-1) @ v)),
    ("the mask is off by one: every token sees the next one too", _of(
        lambda q, k, v: F.softmax(_scores(q, k, q.size(-1) ** -0.5).masked_fill(
            torch.ones(q.size(1), q.size(1), dtype=torch.bool).triu(2), -math.inf), dim=-1) @ v)),
    ("hidden scores are 0 and not minus infinity, and e to the 0 is 1",
     _of(lambda q, k, v: F.softmax(_scores(q, k, q.size(-1) ** -0.5).tril(), dim=-1) @ v)),
    ("queries and keys are swapped: the row belongs to the token that asks",
     lambda x, w_q, w_k, w_v: _causal(x @ w_k, x @ w_q, x @ w_v)),
    ("the keys are averaged: the weights belong to the values",
     lambda x, w_q, w_k, w_v: _causal(x @ w_q, x @ w_k, x @ w_k)),
    ("all scores have no effect: this is the running mean of page 3",
     lambda x, w_q, w_k, w_v: _causal(0 * (x @ w_q), x @ w_k, x @ w_v)),
    ("there is no softmax: the masked scores themselves are the weights",
     _of(lambda q, k, v: _scores(q, k, q.size(-1) ** -0.5).tril() @ v)),
    ("the scale comes after the softmax: divide the scores",
     _of(lambda q, k, v: _causal(q, k, v, 1.0) * q.size(-1) ** -0.5)),
)  # fmt: skip


# --- score-scale ------------------------------------------------------------------------------------------------------


def score_scale(divisor) -> str:
    """divisor(D, a, b): what brings the dot product of entries with deviations a and b to variance 1."""
    need_function(divisor, "divisor(D, a, b)")
    cases = [(64, 1.0, 1.0), (16, 2.0, 0.5), (9, 3.0, 2.0), (50, 0.1, 0.7)]
    got = [number(ask(divisor, f"divisor{case}", *case), f"divisor{case}") for case in cases]
    right = [math.sqrt(D) * a * b for D, a, b in cases]
    if settled(got, right, cases, SCALE_MISTAKES, _near):
        return "the root of D, times both deviations"
    (D, a, b), mine, true = first_off(cases, got, right, _near)
    if not math.isfinite(mine) or mine == 0:
        raise Wrong(f"divisor({D}, {a}, {b}) is {mine:g}, and nothing can be divided by that")
    if mine < 0:
        raise Wrong(f"divisor({D}, {a}, {b}) is {mine:g}, which turns every sign round: the divisor must be positive")
    if all(abs(one / other - 1) < 0.05 for one, other in zip(got, right, strict=True)):
        mine, true = apart(mine, true)
        raise Wrong(
            f"close, but the exact formula is asked for: with D = {D}, a = {a} and b = {b} it gives {true}, not {mine}"
        )
    variance, one = apart((true / mine) ** 2, 1.0, digits=3)
    raise Wrong(f"with D = {D}, a = {a} and b = {b}, dividing by {mine:.4g} leaves the variance {variance}, not {one}")


def _near(a, b) -> bool:
    return abs(a - b) <= 1e-4 * max(abs(b), 1e-12)


SCALE_MISTAKES = (
    ("this is right for deviations of 1 only: a and b have no effect", lambda D, a, b: math.sqrt(D)),
    ("this is the variance of the dot product: divide by its root, the standard deviation",
     lambda D, a, b: D * a**2 * b**2),
    ("this grows with D: variances add, deviations do not, so the root of D counts", lambda D, a, b: D * a * b),
    ("deviations are squared in the variance, and its root takes the square away again",
     lambda D, a, b: math.sqrt(D) * a**2 * b**2),
    ("this is upside down: it multiplies where the question asks for a divisor",
     lambda D, a, b: 1 / (math.sqrt(D) * a * b)),
    ("deviations of a product multiply, they do not add", lambda D, a, b: math.sqrt(D) * (a + b)),
    ("variances of a product multiply, they do not add", lambda D, a, b: math.sqrt(D * (a**2 + b**2))),
    ("D is missing: that is the deviation of one product of D", lambda D, a, b: a * b),
    ("the root is missing from a and b: a deviation is given, and a variance would be its square",
     lambda D, a, b: math.sqrt(D * a * b)),
)  # fmt: skip


# --- name-the-mistake -------------------------------------------------------------------------------------------------

BY_LENGTH = "one that divides by the root of T"

_VERSIONS = (
    ("right", "a right one", _causal),
    ("right", "PyTorch's own", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
    ("right", "a right one in double precision",
     lambda q, k, v: _causal(q.double(), k.double(), v.double()).to(q.dtype)),
    ("scale", "one that does not scale", lambda q, k, v: _causal(q, k, v, 1.0)),
    ("scale", "one that divides by D", lambda q, k, v: _causal(q, k, v, 1 / q.size(-1))),
    ("scale", "one that divides by the root of 4 D", lambda q, k, v: _causal(q, k, v, 0.5 * q.size(-1) ** -0.5)),
    ("scale", "one that divides by a little more than the root of D",
     lambda q, k, v: _causal(q, k, v, (q.size(-1) + 1) ** -0.5)),
    ("scale", BY_LENGTH, lambda q, k, v: _causal(q, k, v, q.size(1) ** -0.5)),
    ("axis", "one with its softmax over the columns", _axis),
    ("mask", "one that masks after the softmax", _late),
)  # fmt: skip


class _Watched:
    """A version of attention that remembers what it was asked, so that a message can say why the answer is off."""

    def __init__(self, attention):
        self.attention, self.asked = attention, []

    def __call__(self, q, k, v):
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            if not torch.is_tensor(tensor) or tensor.dim() != 3:
                raise TypeError(f"attention takes {name} of shape (B, T, D), got {shown(tensor)}")
        if not q.shape == k.shape == v.shape:
            raise TypeError("q, k and v must have the same shape here")
        self.asked.append((q, k, v))
        return self.attention(*(t if t.is_floating_point() else t.float() for t in (q, k, v)))

    def habit(self) -> str:
        """What in the way of asking explains a wrong answer; empty where nothing does."""
        if not self.asked:
            return ": your function never called attention"
        if max(q.size(1) for q, _, _ in self.asked) < 2:
            return ": with a single token there is nothing to mask, and every version returns its value"
        if all(q.size(-1) == 1 for q, _, _ in self.asked):
            return ": for D = 1 the root of D, D itself and no scale are all the same"
        if all(not q.any() or not k.any() for q, k, _ in self.asked):
            return ": scores that are all zero look the same under every scale"
        if all(torch.equal(v, v[:, :1].expand_as(v)) for _, _, v in self.asked):
            return ": values that are all alike hide the weights"
        return ""


def name_the_mistake(diagnose) -> str:
    """diagnose(attention) -> "right", "scale", "axis" or "mask", for a function of q, k, v (B, T, D) each."""
    need_function(diagnose, "diagnose(attention)")
    words = ("right", "scale", "axis", "mask")
    for expected, description, version in _VERSIONS:
        watched = _Watched(version)
        answer = ask(diagnose, f"diagnose, given {description},", watched)
        if not isinstance(answer, str) or answer not in words:
            allowed = ", ".join(f'"{word}"' for word in words)
            raise Wrong(f"diagnose must answer one of {allowed}, got {shown(answer)}")
        if answer != expected:
            habit = watched.habit()
            if not habit and description == BY_LENGTH and all(q.size(1) == q.size(2) for q, _, _ in watched.asked):
                habit = ": your T equals your D, so its root is the same"
            raise Wrong(f'you call {description} "{answer}", and it is "{expected}"{habit}')
    return f"{len(_VERSIONS)} versions, each called by its name"
