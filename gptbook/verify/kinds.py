"""Attention and layer norm taken apart: each part in the ways that people get wrong, to be put together at will.

A part is a dictionary: the name of a wrong way, the words for it, and what it does. `attend` and `layer_norm_as` build
a version from one way for each part; a part that is not named is done right.
"""

import math
from collections.abc import Callable

import torch


def _ones(scores):
    return torch.ones(scores.shape[-2:], dtype=torch.bool)  # (T, T)


def _fill(hidden: Callable, value: float) -> Callable:
    """Hide what `hidden(ones (T, T))` marks by writing `value` over the scores."""
    return lambda scores: scores.masked_fill(hidden(_ones(scores)), value)


def _future(ones):
    return ones.triu(1)


_HIDE = _fill(_future, -math.inf)


def _keep(weights):
    return weights


def _softmax(dim: int) -> Callable:
    return lambda scores: scores.softmax(dim)


SCALE = {  # (words, the factor of the scores)
    "unscaled": ("the scores are not divided by the root of the head's width D", lambda q: 1.0),
    "scaled-by-D": ("the scores are divided by D, where the root of D belongs", lambda q: 1 / q.size(-1)),
    "scaled-up": ("the scores are multiplied by √D, where they must be divided", lambda q: math.sqrt(q.size(-1))),
    "scaled-by-width": (
        "the scores are divided by the root of the width C of all heads, not of the head's own width D",
        lambda q: 1 / math.sqrt(_width(q)),
    ),
    "scaled-by-whole-width": (
        "the scores are divided by the width C of all heads, not by the root of the head's own width D",
        lambda q: 1 / _width(q),
    ),
    "scaled-by-positions": (
        "the scores are divided by the root of the number of positions T, not of the head's width D",
        lambda q: 1 / math.sqrt(q.size(-2)),
    ),
    "scaled-by-second-axis": (
        "the scores are divided by the root of the second axis (the heads, or the positions), not of the last one, D",
        lambda q: 1 / math.sqrt(q.size(1)),
    ),
    "scaled-by-batch": ("the scores are divided by the root of the batch B", lambda q: 1 / math.sqrt(q.size(0))),
    "scaled-by-fourth-root": ("the scores are divided by the fourth root of D", lambda q: q.size(-1) ** -0.25),
    "sign": ("the scores have the wrong sign", lambda q: -1 / math.sqrt(q.size(-1))),
}


def _width(q) -> int:
    return q.size(-1) * (q.size(1) if q.dim() == 4 else 1)


MASK = {  # (words, (what is done to the scores, what is done to the weights))
    "no-mask": ("no mask: every position reads its future too", (_keep, _keep)),
    "one-ahead": (
        "the mask is off by one: each position reads one token ahead",
        (_fill(lambda ones: ones.triu(2), -math.inf), _keep),
    ),
    "own-hidden": (
        "a position's own token is hidden too, so that the first has nothing to choose from: NaN",
        (_fill(lambda ones: ones.triu(), -math.inf), _keep),
    ),
    "own-hidden-finite": (
        "a position's own token is hidden too, and the first row averages its whole future",
        (_fill(lambda ones: ones.triu(), -1e9), _keep),
    ),
    "transposed": (
        "the mask is transposed: a position reads itself and its future, not its past",
        (_fill(lambda ones: ones.tril(-1), -math.inf), _keep),
    ),
    "inverted": (
        "the mask is inverted: what should be hidden is read, and nothing else",
        (_fill(lambda ones: ones.tril(), -math.inf), _keep),
    ),
    "inverted-finite": (
        "the mask is inverted: what should be hidden is read, and the last position reads everything alike",
        (_fill(lambda ones: ones.tril(), -1e9), _keep),
    ),
    "multiplied": (
        "the scores are multiplied by the mask, or filled with 0: a score of 0 is no −inf, the softmax still counts it",
        (_fill(_future, 0.0), _keep),
    ),
    "added": (
        "the mask of zeros and ones is added to the scores: it hides nothing",
        (lambda scores: scores + _ones(scores).tril().to(scores), _keep),
    ),
    "one-filled": ("the scores of the future are filled with −1: no −inf, the softmax still counts it",
     (_fill(_future, -1.0), _keep)),
    "ten-filled": ("the scores of the future are filled with −10: no −inf, the softmax still counts it",
     (_fill(_future, -10.0), _keep)),
    "positive-fill": ("the future is filled with a large positive number, so that nothing else counts",
     (_fill(_future, 1e9), _keep)),
    "plus-infinity": ("the future is filled with +inf, not with −inf: NaN", (_fill(_future, math.inf), _keep)),
    "zero-times-infinity": (
        "a mask of zeros and ones is multiplied by −inf: zero times infinity is NaN",
        (lambda scores: scores + _ones(scores).triu(1).to(scores) * -math.inf, _keep),
    ),
    "after-softmax": (
        "the mask comes after the softmax, and the rows are not made to sum to 1 again",
        (_keep, lambda weights: weights * _ones(weights).tril()),
    ),
    "softmax-again": (
        "the mask comes after the softmax, and a second softmax follows",
        (_keep, lambda weights: _HIDE(weights).softmax(-1)),
    ),
    "infinity-after-softmax": (
        "−inf is written over the weights, after the softmax, where 0 would belong",
        (_keep, _HIDE),
    ),
    "first-hidden": (
        "the first position is hidden from all others",
        (_fill(lambda ones: ones.triu(1) | ones.tril(-1) & (torch.arange(len(ones)) == 0), -math.inf), _keep),
    ),
    "window": (
        "only the last two positions are read, not all of the past",
        (_fill(lambda ones: ones.triu(1) | ones.tril(-2), -math.inf), _keep),
    ),
}  # fmt: skip

SOFTMAX = {  # (words, scores -> weights)
    "over-queries": ("the softmax runs over the queries, not over the keys: use the last axis", _softmax(-2)),
    "over-second-axis": ("the softmax runs over axis 1 (the heads, or the queries), not over the last one, the keys",
     _softmax(1)),
    "over-batch": ("the softmax runs over the batch, axis 0, not over the keys", _softmax(0)),
    "over-everything": (
        "the softmax runs over queries and keys together",
        lambda scores: scores.flatten(-2).softmax(-1).view(scores.shape),
    ),
    "no-softmax": ("the softmax is missing: scores are used as weights",
     lambda scores: scores.masked_fill(scores == -math.inf, 0.0)),
    "no-softmax-infinite": ("the softmax is missing: −inf itself is mixed in", _keep),
    "sigmoid": ("a sigmoid, not a softmax: a row's weights do not sum to 1", torch.sigmoid),
    "exponential": ("the exponentials are not divided by their sum", torch.exp),
    "twice": ("the softmax is taken twice", lambda scores: scores.softmax(-1).softmax(-1)),
    "log": ("a log_softmax, not a softmax", lambda scores: scores.log_softmax(-1)),
    "base-2": ("powers of 2, not of e, in the softmax", lambda scores: (scores * math.log(2)).softmax(-1)),
    "hardest": ("only the largest score counts: a maximum, not a softmax",
     lambda scores: torch.zeros_like(scores).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)),
}  # fmt: skip

MIX = {  # (words, (weights, q, k, v) -> answer)
    "mixed-transposed": ("the values are mixed over the wrong axis: the weights are transposed",
     lambda w, q, k, v: w.mT @ v),
    "mixes-keys": ("the keys are mixed, not the values", lambda w, q, k, v: w @ k),
    "mixes-queries": ("the queries are mixed, not the values", lambda w, q, k, v: w @ q),
    "scaled-values": ("the weights are divided by √D after the softmax",
     lambda w, q, k, v: w @ v / math.sqrt(q.size(-1))),
    "divided-by-T": ("the answer is divided by T, although the weights sum to 1 already",
     lambda w, q, k, v: w @ v / q.size(-2)),
    "weights": ("the weights are returned, not the mixture of values that they give", lambda w, q, k, v: w),
    "transposed-answer": ("the answer is transposed: positions and channels are exchanged",
     lambda w, q, k, v: (w @ v).mT),
}  # fmt: skip

SIDES = {  # (words, (q, k) -> what is multiplied)
    "queries-and-keys-exchanged": ("queries and keys are exchanged: the scores are transposed", lambda q, k: (k, q)),
    "keys-with-keys": ("keys are compared with keys: the queries are not used", lambda q, k: (k, k)),
    "queries-with-queries": ("queries are compared with queries: the keys are not used", lambda q, k: (q, q)),
}
ATTENTION = {"scale": SCALE, "mask": MASK, "softmax": SOFTMAX, "mix": MIX, "sides": SIDES}


def attend(scale: str = "", mask: str = "", softmax: str = "", mix: str = "", sides: str = "") -> Callable:
    """Causal attention (q, k, v), each (..., T, D), with each part in the wrong way that is named, or the right one."""
    factor = SCALE[scale][1] if scale else lambda q: 1 / math.sqrt(q.size(-1))
    before, after = MASK[mask][1] if mask else (_HIDE, _keep)
    normalise = SOFTMAX[softmax][1] if softmax else _softmax(-1)
    combine = MIX[mix][1] if mix else lambda w, q, k, v: w @ v
    choose = SIDES[sides][1] if sides else lambda q, k: (q, k)

    def attention(q, k, v):
        left, right = choose(q, k)
        weights = after(normalise(before(left @ right.mT * factor(q))))  # (..., T, T)
        return combine(weights, q, k, v)

    return attention


# ---- layer norm


def _variance(unbiased: bool = False) -> Callable:
    return lambda x, mean, axes: (
        ((x - mean) ** 2).mean(axes, keepdim=True)
        * ((n := math.prod(x.size(a) for a in axes)) / (n - 1 if n > 1 else math.nan) if unbiased else 1.0)
    )


SPREAD = {  # (words, (x, mean, axes) -> variance)
    "unbiased": ("the variance is divided by C − 1, not by C: unbiased=False belongs there", _variance(True)),
    "sum": (
        "the squares are summed, never divided by C",
        lambda x, mean, axes: ((x - mean) ** 2).sum(axes, keepdim=True),
    ),
    "absolute": (
        "absolute differences are averaged, not their squares",
        lambda x, mean, axes: (x - mean).abs().mean(axes, keepdim=True) ** 2,
    ),
    "second-moment": (
        "the squares of x itself are averaged, without its mean",
        lambda x, mean, axes: (x**2).mean(axes, keepdim=True),
    ),
}
EPSILON = {  # (words, variance -> what it is divided by)
    "no-epsilon": ("epsilon is missing: a row of equal numbers gives NaN", lambda var: var.sqrt()),
    "outside": ("epsilon is added outside of the root, to the standard deviation", lambda var: var.sqrt() + 1e-5),
    "outside-1e-6": ("epsilon is added outside of the root, and is 1e-06", lambda var: var.sqrt() + 1e-6),
    "outside-1e-8": ("epsilon is added outside of the root, and is 1e-08", lambda var: var.sqrt() + 1e-8),
    "clamped": ("epsilon is a lower bound of the variance, not added to it", lambda var: var.clamp(min=1e-5).sqrt()),
    "tenth": ("epsilon is 0.1, far too large: 1e-05 belongs there", lambda var: (var + 0.1).sqrt()),
    "hundredth": ("epsilon is 0.01, far too large: 1e-05 belongs there", lambda var: (var + 1e-2).sqrt()),
    "thousandth": ("epsilon is 0.001, too large: 1e-05 belongs there", lambda var: (var + 1e-3).sqrt()),
    "ten-thousandth": ("epsilon is 0.0001, too large: 1e-05 belongs there", lambda var: (var + 1e-4).sqrt()),
    "one": ("epsilon is 1, far too large: 1e-05 belongs there", lambda var: (var + 1).sqrt()),
    "no-root": ("the root is missing: x is divided by its variance, not by its standard deviation",
     lambda var: var + 1e-5),
    "root-twice": ("the root is taken twice", lambda var: (var + 1e-5).sqrt().sqrt()),
    "not-divided": ("the mean is subtracted, but nothing divided", lambda var: torch.ones_like(var)),
    "multiplied": ("the standard deviation is multiplied by, not divided by", lambda var: 1 / (var + 1e-5).sqrt()),
}  # fmt: skip
AXES = {  # (words, x -> the axes of mean and variance)
    "over-positions-and-channels": (
        "mean and variance are taken over positions and channels, so that what comes later leaks",
        lambda x: tuple(range(max(0, x.dim() - 2), x.dim())),
    ),
    "over-all-but-batch": (
        "mean and variance are taken over all axes but the first",
        lambda x: tuple(range(1, x.dim())) or (0,),
    ),
    "over-everything": (
        "mean and variance are taken over the whole tensor, not over each row",
        lambda x: tuple(range(x.dim())),
    ),
    "over-batch": ("mean and variance are taken over the batch, as BatchNorm does", lambda x: (0,)),
    "over-positions": ("mean and variance are taken over the positions, not over the channels",
     lambda x: (max(0, x.dim() - 2),)),
    "over-axis-1": ("mean and variance are taken over axis 1, not over the last one", lambda x: (min(1, x.dim() - 1),)),
    "over-batch-and-positions": (
        "mean and variance are taken over batch and positions, as BatchNorm does",
        lambda x: tuple(range(x.dim() - 1)) or (0,),
    ),
}  # fmt: skip
CENTRE = {  # (words, (x, mean) -> numerator)
    "no-mean": ("the mean is not subtracted from x", lambda x, mean: x),
    "plus-mean": ("the mean is added, not subtracted", lambda x, mean: x + mean),
    "median": ("the median is subtracted, not the mean", lambda x, mean: x - x.median(-1, keepdim=True).values),
}
AFFINE = {  # (words, (normalised, weight, bias) -> answer)
    "weight-added": ("the weight is added, not multiplied by", lambda x, weight, bias: x + weight + bias),
    "no-weight": ("the weight is forgotten", lambda x, weight, bias: x + bias),
    "no-bias": ("the bias is forgotten", lambda x, weight, bias: x * weight),
    "no-weight-no-bias": ("weight and bias are forgotten", lambda x, weight, bias: x),
    "bias-subtracted": ("the bias is subtracted, not added", lambda x, weight, bias: x * weight - bias),
    "bias-multiplied": ("the bias is multiplied by, not added", lambda x, weight, bias: x * weight * bias),
    "bias-first": ("the bias is added before the weight is multiplied by", lambda x, weight, bias: (x + bias) * weight),
    "exchanged": ("weight and bias are exchanged", lambda x, weight, bias: x * bias + weight),
    "one-plus-weight": ("1 is added to the weight", lambda x, weight, bias: x * (1 + weight) + bias),
    "divided": ("it is divided by the weight, not multiplied", lambda x, weight, bias: x / weight + bias),
}
LAYER_NORM = {"spread": SPREAD, "epsilon": EPSILON, "axes": AXES, "centre": CENTRE, "affine": AFFINE}


def layer_norm_as(spread: str = "", epsilon: str = "", axes: str = "", centre: str = "", affine: str = "") -> Callable:
    """A layer norm (x, weight, bias), x (..., C), with each part in the wrong way that is named, or the right one."""
    variance = SPREAD[spread][1] if spread else _variance()
    root = EPSILON[epsilon][1] if epsilon else lambda var: (var + 1e-5).sqrt()
    over = AXES[axes][1] if axes else lambda x: (-1,)
    subtract = CENTRE[centre][1] if centre else lambda x, mean: x - mean
    finish = AFFINE[affine][1] if affine else lambda x, weight, bias: x * weight + bias

    def layer_norm(x, weight, bias):
        mean = x.mean(over(x), keepdim=True)
        return finish(subtract(x, mean) / root(variance(x, mean, over(x))), weight, bias)

    return layer_norm
