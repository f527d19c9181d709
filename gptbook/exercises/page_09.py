"""The checks of page 9, training."""

import math

import torch

from gptbook.exercises.answers import Wrong, ask, first_off, need_function, number, settled, shown
from gptbook.exercises.tensors import as_tensor, kept

WARMUP, STEPS, PEAK, MINIMUM = 100, 1000, 1e-3, 1e-4


def learning_rate(lr_at) -> str:
    """lr_at(step): 100 steps of linear warm-up to 1e-3, then a cosine that gives step 999 exactly 1e-4."""
    need_function(lr_at, "lr_at(step)")
    got = [number(ask(lr_at, f"lr_at({step})", step), f"lr_at({step})") for step in range(STEPS)]
    for step, rate in enumerate(got):
        if not (math.isfinite(rate) and rate >= 0):
            raise Wrong(f"lr_at({step}) is {rate}: a learning rate is a finite number above 0")
    if max(got) == min(got):
        raise Wrong(f"the rate is {got[0]:g} at every step: it must depend on the step")
    if got[0] == 0:
        raise Wrong("lr_at(0) is 0, so the first step changes nothing: step 0 already gets a share of the peak")
    if abs(got[WARMUP - 1] - 1) < 0.02:
        raise Wrong(f"lr_at({WARMUP - 1}) is {got[WARMUP - 1]:g}: the rate is asked for, not its share of the peak")
    _check_warmup(got)
    _check_decay(got)
    return f"right at all {STEPS} steps, from {got[0]:g} through {max(got):g} to {got[-1]:g}"


def _near(a, b, tolerance=1e-6) -> bool:
    return abs(a - b) <= tolerance * b  # relative; float32 answers pass


def _check_warmup(got):
    if _near(got[0], PEAK):
        raise Wrong("there is no warm-up: the first step gets the peak at once")
    # The peak may be the last step of the warm-up, or, as in the package, the first one after it.
    parts = WARMUP if _near(got[0], PEAK / WARMUP) else WARMUP + 1
    for step in range(WARMUP):
        if not _near(got[step], PEAK * (step + 1) / parts):
            straight = all(_near(got[s] - got[s - 1], got[1] - got[0], 1e-3) for s in range(1, WARMUP - 1))
            shape = "a straight line, but not the right one" if straight else "not a straight line"
            raise Wrong(
                f"the warm-up is {shape}: lr_at({step}) is {got[step]:.4g}, and {WARMUP} equal parts must lead from "
                f"0, before the first step, to the peak"
            )
    if abs(got[WARMUP] - got[WARMUP - 1]) > 0.02 * PEAK:
        raise Wrong(
            f"the rate jumps from {got[WARMUP - 1]:.4g} at step {WARMUP - 1} to {got[WARMUP]:.4g} at step {WARMUP}: "
            f"the decay must begin where the warm-up ends"
        )


def _check_decay(got):
    end = STEPS - 1
    span = end - WARMUP
    cosine = [MINIMUM + (PEAK - MINIMUM) * (1 + math.cos(math.pi * k / span)) / 2 for k in range(span + 1)]
    for step in range(WARMUP + 1, STEPS):
        if got[step] > got[step - 1] * (1 + 1e-6):
            raise Wrong(f"the rate rises again at step {step}: the cosine has passed its lowest point")
    if max(got[WARMUP:]) - min(got[WARMUP:]) < 1e-6 * PEAK:
        raise Wrong("after the warm-up the rate stays where it is: it must fall")
    if not _near(got[end], MINIMUM):
        if got[end] < 0.05 * MINIMUM:
            raise Wrong(f"lr_at({end}), the last, is {got[end]:.3g}: the rate falls towards 0, not to the minimum")
        if got[end] < MINIMUM:
            raise Wrong(f"lr_at({end}), the last, is {got[end]:.10g}, which is below the minimum")
        late = f"lr_at({end}), the last, is {got[end]:.10g} and never reaches the minimum"
        if got[end] > 2 * MINIMUM:
            raise Wrong(f"{late}: the cosine must go from 1 to -1, which is half a turn, the angle pi")
        raise Wrong(f"{late}: from step {WARMUP} to step {end} there are {span} steps to go")
    middle = WARMUP + span // 2
    straight = [PEAK + (MINIMUM - PEAK) * k / span for k in range(span + 1)]
    if all(abs(rate - line) < 2e-3 * PEAK for rate, line in zip(got[WARMUP:], straight, strict=True)):
        raise Wrong("the rate falls along a straight line: half a wave of the cosine is asked for")
    flat = sum(_near(rate, MINIMUM) for rate in got)
    if flat > 20:
        raise Wrong(
            f"the rate lies at the minimum for the last {flat} steps: the cosine must end there, not be cut off"
        )
    if _near(got[middle], math.sqrt(PEAK * MINIMUM), 0.02):
        raise Wrong("the rate falls by the same factor at every step: half a wave of the cosine is asked for")
    off = got[middle] - cosine[span // 2]
    if abs(off) > 0.01 * PEAK:
        raise Wrong(
            f"halfway down, lr_at({middle}) is {got[middle]:.3g}, and half a wave of the cosine is then at "
            f"{cosine[span // 2]:.3g}"
        )
    for k, rate in enumerate(got[WARMUP:]):
        # Whether the decay counts from the last step of the warm-up or from the one after it is a matter of taste.
        low, high = cosine[min(k + 1, span)], cosine[max(k - 1, 0)]
        if not low * (1 - 1e-6) <= rate <= high * (1 + 1e-6):
            way = "high" if rate > high else "low"
            raise Wrong(f"lr_at({WARMUP + k}) is {rate:.4g}, too {way}: between its two ends the decay is no cosine")


def clip(answer) -> str:
    """clip(gradients, max_norm) -> the gradients, scaled together so that their common norm is at most max_norm."""
    need_function(answer, "clip(gradients, max_norm)")
    generator = torch.Generator().manual_seed(9)
    shapes = ((3, 4), (5,), (2, 2, 2), ())
    draw = [torch.randn(shape, generator=generator) for shape in shapes]
    norm = math.sqrt(sum(g.square().sum().item() for g in draw))
    one_large = [draw[0] * 0.01, draw[1] * 20.0, draw[2] * 0.5]
    cases = [(draw, 0.3 * norm), (one_large, 2.0), ([g * 7 for g in draw], 1.0), (draw, 1.5 * norm), (draw[:1], 1e-2)]
    got = []
    for gradients, limit in cases:
        what = f"clip({len(gradients)} gradients, {limit:.3g})"
        given = [g.clone() for g in gradients]
        value = ask(answer, what, given, limit)
        kept(given, gradients, f"{what} changed the gradients that it was given: return new ones")
        got.append(_gradients(value, gradients, what))
    zeros = [torch.zeros(3), torch.zeros(2, 2)]
    right = [_clipped(*case) for case in cases]
    if not settled(got, right, cases, CLIP_MISTAKES, _all_close):
        (gradients, limit), mine, _ = first_off(cases, got, right, _all_close)
        raise Wrong(_why_not_clipped(gradients, limit, mine))
    if not _all_close(_gradients(ask(answer, "clip(zeros, 1)", zeros, 1.0), zeros, "clip(zeros, 1)"), zeros):
        raise Wrong("gradients that are all zero come back as something else: 0 divided by 0 is NaN")
    return "large gradients keep their common direction and get the norm, small ones stay as they are"


def _gradients(value, gradients, what):
    if not isinstance(value, list | tuple):
        raise Wrong(f"{what} must return a list of tensors, got {shown(value)}")
    if len(value) != len(gradients):
        raise Wrong(f"{what} returned {len(value)} tensors: one for each gradient is asked for")
    tensors = [as_tensor(v, f"every entry of {what}").double() for v in value]
    for tensor, gradient in zip(tensors, gradients, strict=True):
        if tensor.shape != gradient.shape:
            raise Wrong(f"{what} changed a shape from {tuple(gradient.shape)} to {tuple(tensor.shape)}")
    return tensors


def _all_close(a, b) -> bool:
    return all(torch.allclose(x.double(), y.double(), rtol=1e-4, atol=1e-7) for x, y in zip(a, b, strict=True))


def _norm(gradients) -> float:
    """The norm of all numbers in all gradients, one by one."""
    return math.sqrt(math.fsum(number**2 for g in gradients for number in g.double().flatten().tolist()))


def _clipped(gradients, limit):
    norm = _norm(gradients)
    return [g * (limit / norm if norm > limit else 1.0) for g in gradients]


def _scaled_by(norm_of, always=False):
    """Clipping with another idea of the norm; `always` scales small gradients as well."""

    def clipped(gradients, limit):
        norm = norm_of(gradients)
        return [g * (limit / norm if always or norm > limit else 1.0) for g in gradients]

    return clipped


CLIP_MISTAKES = (
    ("each tensor was clipped alone, which turns the step's direction: the norm is that of all of them together",
     lambda gs, m: [_clipped([g], m)[0] for g in gs]),
    ("every number was cut off at max_norm, which turns the step's direction: scale all by one factor",
     lambda gs, m: [g.clamp(-m, m) for g in gs]),
    ("small gradients were scaled up: what lies below max_norm must stay as it is", _scaled_by(_norm, always=True)),
    ("every gradient was scaled to norm 1, whatever max_norm says", lambda gs, m: [g / _norm(gs) for g in gs]),
    ("large gradients got the norm 1: max_norm is missing from the factor",
     lambda gs, m: [g / _norm(gs) if _norm(gs) > m else g for g in gs]),
    ("the norm lacks its square root", _scaled_by(lambda gs: _norm(gs) ** 2)),
    ("the norms of the tensors were added up: the norm of all of them is less than that",
     _scaled_by(lambda gs: sum(_norm([g]) for g in gs))),
    ("the largest of the tensors' norms was taken: the norm of all of them is more than that",
     _scaled_by(lambda gs: max(_norm([g]) for g in gs))),
    ("the largest number was taken for the norm", _scaled_by(lambda gs: max(g.abs().max().item() for g in gs))),
    ("the absolute values were added up: the norm is the root of the sum of squares",
     _scaled_by(lambda gs: sum(g.abs().sum().item() for g in gs))),
    ("the norm was divided by the number of numbers: it is the root of the sum of squares, not of their mean",
     _scaled_by(lambda gs: _norm(gs) / math.sqrt(sum(g.numel() for g in gs)))),
    ("the factor is upside down: it makes large gradients larger",
     lambda gs, m: [g * (_norm(gs) / m if _norm(gs) > m else 1.0) for g in gs]),
    ("nothing was clipped: the gradients came back as they were", lambda gs, m: gs),
)  # fmt: skip


def _why_not_clipped(gradients, limit, mine) -> str:
    before, after = _norm(gradients), _norm(mine)
    if not math.isfinite(after):
        return "some gradients come back as NaN or infinity"
    if before <= limit:
        return f"gradients of norm {before:.3g} must stay as they are for max_norm {limit:.3g}, yours changed"
    if abs(after - limit) > 1e-3 * limit:
        return f"gradients of norm {before:.3g} came back with the norm {after:.3g} for max_norm {limit:.3g}"
    return "the norm is right, but the direction is not: every number must be scaled by the same factor"
