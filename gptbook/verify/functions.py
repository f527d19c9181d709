"""Checks of the functions that a reader writes on the way to a GPT: averaging, attention, layer norm, GELU, the loss.

Each answer is compared with PyTorch's own, computed in float64; an answer that is wrong is compared with the catalogue
below, and with properties where nothing in the catalogue equals it. Modules have theirs in `heads` and `blocks`.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F

from gptbook.verify import blocks, heads
from gptbook.verify.calling import Answer, ask
from gptbook.verify.catalogue import Mistake, distance, likely, same
from gptbook.verify.kinds import ATTENTION, attend, layer_norm_as
from gptbook.verify.kinds import LAYER_NORM as NORM
from gptbook.verify.report import DIFFERS, FAILED, NOT_CHECKED, PASSED, Report, Result
from gptbook.verify.subject import one_line, untouched

ROUNDING = 1e-5  # of the size of the numbers: in float32 a difference below this can be rounding


# ---- what is asked of every function


@dataclass(frozen=True)
class Task:
    """What a function is to do: its name, the page, an oracle, the inputs that it is tried on, and its known mistakes.

    `right` computes in the precision of its inputs. `differs` are versions that are right, but not what GPT-2 does;
    `pairs` makes further mistakes when none of the catalogue fits. `single` says that the answer is one number.
    """

    name: str
    page: str
    right: Callable
    cases: tuple
    mistakes: tuple = ()
    differs: tuple = ()
    pairs: Callable[[], tuple] = tuple
    fits: Callable | None = None  # (function) -> words, where a number alone is wrong and can be measured
    properties: Callable | None = None  # (function) -> words, where nothing in the catalogue equals the answers
    single: bool = False
    learns: bool = True  # then an answer through which no gradient flows has failed, else it differs
    more: tuple = ()  # further questions, (name, ask(task, function) -> Result)
    optional: Callable = field(default=lambda case: False)  # inputs that a function need not take


def _tensor(answer, case, single: bool = False):
    """The answer as a tensor, or an exception that says why there is none."""
    if answer.error:
        return ValueError(answer.error)
    value, wanted = answer.value, () if single else case[0].shape
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):  # with extra outputs: the first of the right shape
        tensors = [v for v in value if isinstance(v, torch.Tensor)]
        value = next((v for v in tensors if v.shape == wanted), tensors[0] if tensors else value)
    if single and isinstance(value, int | float) and not isinstance(value, bool):
        value = torch.tensor(float(value), dtype=torch.float64)
    if not isinstance(value, torch.Tensor):
        kind = "the class itself: make one first" if callable(value) else f"a {type(value).__name__}"
        return TypeError("returns nothing" if value is None else f"returns {kind}, not a tensor")
    if not value.is_floating_point():
        return TypeError(f"returns {str(value.dtype).removeprefix('torch.')}, not numbers with a fraction")
    return value.reshape(()) if single and value.numel() == 1 else value


def check(task: Task, function) -> Report:
    """Every question of a task, in an order in which an early failure cannot make a later answer a lie."""
    if not callable(function):
        raise TypeError(f"{task.name} must be a function, got a {type(function).__name__}")
    asked = _ask_all(function, task.cases)
    answers = [_tensor(a, case, task.single) for a, case in zip(asked, task.cases, strict=True)]
    right = [task.right(*_double(case)) for case in task.cases]

    results = [_shapes(task, answers, right)]
    works = [
        i
        for i, (a, r) in enumerate(zip(answers, right, strict=True))
        if isinstance(a, torch.Tensor) and a.shape == r.shape
    ]
    questions = [
        ("untouched", lambda: _untouched(asked)),
        ("deterministic", lambda: _deterministic(task, function, works)),
    ]
    as_known = [task]  # the task, or the same with the version that this one is, where it "differs"

    def values() -> Result:
        result, as_known[0] = _values(task, function, answers, right, works)
        return result

    questions += [("values", values)]
    questions += [(name, lambda question=question: question(as_known[0], function)) for name, question in task.more]
    questions += [
        ("float64", lambda: _float64(as_known[0], function, works)),
        ("gradient", lambda: _gradient(as_known[0], function, works)),
    ]
    stopped = "" if works else "it would mislead, because “shapes” failed"
    for name, question in questions:
        result = _not(stopped) if stopped and name != "untouched" else _careful(question)
        result = Result(name, result.status, result.measured, result.expected, result.cause)
        results.append(result)
        if result.status == FAILED and name in ("deterministic", "values"):
            stopped = f"it would mislead, because “{name}” failed"
    return Report(tuple(results))


def _ask_all(function, cases) -> list[Answer]:
    """The answers to all cases; a function that is stopped once is not asked again."""
    answers = []
    for case in cases:
        late = answers and answers[-1].late
        answers.append(answers[-1] if late else ask(function, *case))
    return answers


def _careful(question) -> Result:
    try:
        return question()
    except Exception as error:
        return _not(f"the check was stopped by {one_line(error)}")


def _not(cause: str) -> Result:
    return Result("", NOT_CHECKED, cause=cause)


def _double(case) -> tuple:
    return tuple(x.double() if x.is_floating_point() else x for x in case)


def _size(case) -> str:
    return str(tuple(case[0].shape))


def _named(mistakes, task: Task, answers, works) -> Mistake | None:
    """The one of `mistakes` whose answers are those of the reader: everywhere, or at least where the reader's works."""
    some = [answers[i] for i in works], [task.cases[i] for i in works]
    for mine, cases in ((answers, task.cases), *((some,) if 0 < len(works) < len(answers) else ())):
        found = likely(mistakes, mine, _asking(task, cases))
        if found:
            return found
    return None


def _asking(task: Task, cases) -> Callable:
    """How a version of our own is asked: one case after the other, without the care that a reader's needs."""

    def of(wrong):
        for case in cases:
            try:
                yield _tensor(Answer(wrong(*case)), case, task.single)
            except Exception as error:  # a wrong version may work for some sizes alone, as the reader's does
                yield error

    return of


def _shapes(task: Task, answers, right) -> Result:
    expected = "one number" if task.single else "the shape of the input"
    bad = []
    for case, answer, known in zip(task.cases, answers, right, strict=True):
        problem = str(answer) if isinstance(answer, Exception) else ""
        if not problem and answer.shape != known.shape:
            problem = f"returns {tuple(answer.shape)}"
        if problem:
            bad.append((case, problem))
    if not bad:
        return Result("shapes", PASSED, f"right for {len(answers)} sizes", expected)
    needed = [b for b in bad if not task.optional(b[0])]
    case, problem = (needed or bad)[0]
    measured = f"for {_size(case)}: {problem}"
    mistake = _named(task.mistakes, task, answers, ())
    if mistake:
        return Result("shapes", FAILED, measured, expected, mistake.cause)
    fine = [_size(case) for case, answer in zip(task.cases, answers, strict=True) if all(case is not b[0] for b in bad)]
    raised = all(
        isinstance(a, Exception) for c, a in zip(task.cases, answers, strict=True) if any(c is b[0] for b in bad)
    )
    optional = [bool(task.optional(case)) for case in task.cases]
    some = {o for o, c in zip(optional, task.cases, strict=True) if any(c is b[0] for b in bad)}
    if raised and len(some) == 1 and len(bad) == optional.count(next(iter(some))) and fine:
        # a function for one kind of input alone is right in what it does: the other kind was not looked at
        return Result("shapes", NOT_CHECKED, measured, expected, f"it takes inputs such as {fine[0]} alone")
    cause = f"it works for {fine[0]}: is a size written into it?" if fine else "it works for none of the sizes tried"
    return Result("shapes", FAILED, measured, expected, f"{cause} ({task.page})")


def _untouched(asked) -> Result:
    expected = "inputs and random numbers as they were"
    if any(a.changed for a in asked):
        cause = "it writes into what it is given: an operation in place (x -= ..., a method that ends in _)"
        return Result("", FAILED, "an input was changed", expected, cause)
    if any(a.drew for a in asked):
        cause = "it draws random numbers, or sets their seed, for the whole program"
        return Result("", FAILED, "the random numbers moved", expected, cause)
    if all(a.error for a in asked):
        return Result("", NOT_CHECKED, cause="it would mislead, because “shapes” failed")
    return Result("", PASSED, "both as they were", expected)


def _deterministic(task, function, works) -> Result:
    case = max((task.cases[i] for i in works), key=lambda case: case[0].numel())
    once, again = (_tensor(ask(function, *case), case, task.single) for _ in range(2))
    expected = "the same answer twice"
    if not same(once, again, 0.0):
        # random states are put back between the two calls: what differs is kept by the function itself
        cause = "the function keeps something from one call to the next, or has a random generator of its own"
        return Result("", FAILED, "two calls differ", expected, cause)
    with untouched(nn.Identity()):  # for its random states
        torch.manual_seed(12345)
        other = _tensor(ask(function, *case), case, task.single)
    if not same(once, other, 0.0):
        return Result("", FAILED, "two calls differ", expected, "it draws random numbers: dropout that is always on?")
    return Result("", PASSED, "two calls agree", expected)


def _values(task, function, answers, right, works) -> tuple[Result, Task]:
    """The result, and the task to go on with: where an answer differs, it is held against the version that it is."""
    cases = [task.cases[i] for i in works]
    worst, size = _worst([answers[i] for i in works], [right[i] for i in works], cases)
    expected = f"PyTorch's own, to {ROUNDING:.0e}"
    if worst <= ROUNDING:
        return Result("", PASSED, f"largest difference {worst:.0e}", expected), task
    measured = "NaN where there should be numbers" if worst == math.inf else f"difference {worst:.2g} for {size}"
    mine = [answers[i] for i in works]
    for known in task.differs:
        if likely((known,), mine, _asking(task, cases)):
            return Result("", DIFFERS, measured, expected, known.cause), replace(task, right=known.wrong)
    mistake = _named(task.mistakes, task, answers, works)
    words = task.fits(function) if task.fits and not mistake else ""
    mistake = mistake or (None if words else _named(task.pairs(), task, answers, works))
    if mistake:
        return Result("", FAILED, measured, expected, f"your output equals this version: {mistake.cause}"), task
    words = words or (task.properties(function) if task.properties else "")
    words = words or "it equals none of the mistakes known here"
    return Result("", FAILED, measured, expected, f"{words} ({task.page})"), task


def _worst(answers, right, cases) -> tuple[float, str]:
    """The largest difference relative to the size of the numbers, and the input for which it comes."""
    worst = (0.0, "")
    for answer, known, case in zip(answers, right, cases, strict=True):
        apart = distance(answer, known) / max(1.0, known.abs().nan_to_num(0.0, 0.0, 0.0).max().item())
        worst = max(worst, (apart, _size(case)))
    return worst


def _float64(task, function, works) -> Result:
    cases = [_double(task.cases[i]) for i in works]
    answers = [_tensor(ask(function, *case), case, task.single) for case in cases]
    expected = "the same in float64"
    for answer in answers:
        if isinstance(answer, Exception):  # a tensor of ones in float32 is no mistake where all is float32
            return Result("", NOT_CHECKED, cause=f"it takes float32 alone: {answer}")
    worst, size = _worst(answers, [task.right(*case) for case in cases], cases)
    if worst > ROUNDING and not any(same(a, task.right(*c), 1e-3) for a, c in zip(answers, cases, strict=True)):
        return Result(
            "", FAILED, f"difference {worst:.2g} for {size}", expected, f"another answer in float64 ({task.page})"
        )
    return Result("", PASSED, f"largest difference {worst:.0e}", expected)


def _gradient(task, function, works, double: bool = False) -> Result:
    """Backward through the answer gives what backward through PyTorch's own gives."""
    expected = "PyTorch's own, to 1e-03"
    worst = 0.0
    for i in works:
        case = _double(task.cases[i]) if double else task.cases[i]
        case = tuple(x.clone().requires_grad_() if x.is_floating_point() else x for x in case)
        with torch.enable_grad():
            answer = ask(function, *case)
            value = _tensor(answer, case, task.single)
            if isinstance(value, Exception):
                return Result("", NOT_CHECKED, cause=f"it cannot be called with a gradient: {value}")
            known = _double(tuple(x.detach() for x in case))
            known = tuple(x.requires_grad_() if x.is_floating_point() else x for x in known)
            right = task.right(*known)
            weights = torch.randn(right.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
            (right * weights).sum().backward()
            if not value.requires_grad:
                cause = "no gradient flows through it: detach(), no_grad(), item(), or a tensor made anew"
                status = FAILED if task.learns else DIFFERS
                return Result("", status, "no gradient", expected, f"{cause} ({task.page})")
            try:
                (value.double() * weights).sum().backward()
            except Exception as error:
                return Result("", FAILED, one_line(error), expected, f"backward does not work ({task.page})")
        for mine, theirs in zip(answer.arguments, known, strict=True):
            if theirs.is_floating_point():
                grad = torch.zeros_like(theirs) if mine.grad is None else mine.grad
                worst = max(worst, distance(grad, theirs.grad) / max(1.0, theirs.grad.abs().max().item()))
    if worst > 1e-3 and not double and _gradient(task, function, works, double=True).status == PASSED:
        return Result("", PASSED, f"largest difference {worst:.0e}, which is rounding: none in float64", expected)
    if worst > 1e-3:
        measured = "the gradient is NaN" if worst == math.inf else f"largest difference {worst:.2g}"
        cause = "the values are right and the gradient is not: a part of it is detached, or made by data or in place"
        return Result("", FAILED, measured, expected, f"{cause} ({task.page})")
    return Result("", PASSED, f"largest difference {worst:.0e}", expected)


def _random(*shape, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _mistakes(about: str, page: str, rows) -> tuple[Mistake, ...]:
    return tuple(Mistake(f"{about.replace('_', '-')}-{name}", about, words, page, wrong) for name, words, wrong in rows)


# ---- averaging


def _average(x):
    T = x.size(1)
    return x.cumsum(1) / torch.arange(1, T + 1, dtype=x.dtype).view(-1, 1)  # (B, T, C)


def _weighted(make) -> Callable:
    """An averaging by a matrix (T, T) that depends on T alone."""
    return lambda x: make(x.size(1)).to(x) @ x


def _rows(make) -> Callable:
    return _weighted(lambda T: (w := make(T)) / w.sum(1, keepdim=True))


def _fixed(x):
    return _average(x) if x.size(1) == 8 else (torch.ones(8, 8).tril() / torch.arange(1, 9).view(-1, 1)) @ x


def _strict_zero(T):
    w = torch.ones(T, T).tril(-1)
    return w / w.sum(1, keepdim=True).clamp(min=1)


def _ones(T):
    return torch.ones(T, T)


AVERAGE = _mistakes(
    "average",
    "page 3",
    [
        ("no-mask", "every position averages the whole row, its future too", _rows(_ones)),
        ("one-ahead", "each position sees one token ahead: the triangle is off by one",
         _rows(lambda T: _ones(T).tril(1))),
        ("strict", "a position leaves itself out, so that the first has nothing: NaN",
         _rows(lambda T: _ones(T).tril(-1))),
        ("strict-zero", "a position leaves itself out, and the first one gives zeros", _weighted(_strict_zero)),
        ("future", "the triangle is upside down: a position averages itself and its future",
         _rows(lambda T: _ones(T).triu())),
        ("strict-future", "the triangle is inverted: a position averages its future alone",
         _rows(lambda T: _ones(T).triu(1))),
        ("sum", "the past is summed, never divided by its length", lambda x: x.cumsum(1)),
        ("by-T", "every sum is divided by T, not by the number of positions seen", lambda x: x.cumsum(1) / x.size(1)),
        ("by-t", "the sum is divided by one too few: by t, not by t + 1",
         lambda x: x.cumsum(1) / torch.arange(x.size(1)).view(-1, 1)),
        ("by-t-2", "the sum is divided by one too many",
         lambda x: x.cumsum(1) / torch.arange(2, x.size(1) + 2).view(-1, 1)),
        ("columns", "the columns of the weights sum to one, not the rows: the wrong axis is normalised",
         _weighted(lambda T: (w := _ones(T).tril()) / w.sum(0, keepdim=True))),
        ("triangle-transposed", "the normalised triangle is transposed before it is used",
         _weighted(lambda T: (_ones(T).tril() / torch.arange(1, T + 1).view(-1, 1)).T)),
        ("zeros-in-softmax", "the mask is 0, or small, not −inf, in front of the softmax: e⁰ is 1, the future counts",
         _weighted(lambda T: _ones(T).tril().softmax(1))),
        ("over-batch", "the mean runs over the batch, not over the positions",
         lambda x: x.cumsum(0) / torch.arange(1, x.size(0) + 1).view(-1, 1, 1)),
        ("over-channels", "the mean runs over the channels, not over the positions",
         lambda x: x.cumsum(2) / torch.arange(1, x.size(2) + 1)),
        ("all-rows", "the mean runs over the rows of the batch too",
         lambda x: _average(x).mean(0, keepdim=True).expand_as(x)),
        ("all-channels", "the mean runs over the channels too",
         lambda x: _average(x).mean(2, keepdim=True).expand_as(x)),
        ("everything", "one mean of rows and channels and past together",
         lambda x: _average(x).mean((0, 2), keepdim=True).expand_as(x)),
        ("row-mean", "only one mean a row is returned, not one a position", lambda x: x.mean(1)),
        ("unchanged", "the input is returned as it was", lambda x: x.clone()),
        ("shifted", "the answer is moved by one position", lambda x: torch.cat([x[:, :1], _average(x)[:, :-1]], 1)),
        ("without-first", "the first position is left out of every mean",
         _rows(lambda T: _ones(T).tril().index_fill(1, torch.tensor([0]), 0) + torch.eye(T)[:, :1] * torch.eye(T)[:1])),
        ("running", "a running mean of the last mean and the token weighs the newest tokens most",
         lambda x: torch.stack(list(itertools.accumulate(x.unbind(1), lambda mean, new: (mean + new) / 2)), 1)),
        ("window", "only a window of the past is averaged, not all of it",
         _rows(lambda T: _ones(T).tril() - _ones(T).tril(-2))),
        ("fixed-length", "a length is written into it: it works for T = 8 alone", _fixed),
        ("largest", "the largest value of the past, not its mean", lambda x: x.cummax(1).values),
    ],
)  # fmt: skip


def _average_properties(function) -> str:
    """In words, what kind of weights an averaging uses: read off where the input is the identity."""
    weights = _tensor(ask(function, torch.eye(6)[None]), (torch.eye(6)[None],))  # (1, T, T)
    return "" if isinstance(weights, Exception) or weights.shape != (1, 6, 6) else _describe(weights[0])


def _describe(weights) -> str:
    """In words, what is wrong with weights (T, T) by which rows are to be mixed."""
    w = weights.detach().double()
    if w[0].isnan().any() and not w[1:].isnan().any():
        return "the first row is NaN: is its own token hidden as well?"
    if w.isnan().any():
        return "there are NaN in the weights: a row that has nothing to choose from, or a division by zero"
    ahead = w.triu(1).abs()
    if ahead.max() > 1e-6:
        t, s = divmod(ahead.argmax().item(), w.size(1))
        return f"it is not causal: position {t} gives {w[t, s]:.2g} of its weight to position {s}, which comes later"
    sums = w.sum(1)
    if (sums - 1).abs().max() > 1e-4:
        t = (sums - 1).abs().argmax().item()
        return f"the weights of a row must sum to 1, those of position {t} sum to {sums[t]:.3g}"
    return ""


# ---- causality, for averaging and attention


def _causal(task, function) -> Result:
    """What comes later cannot move an answer: the future is replaced, by large numbers too, at every cut."""
    expected = "earlier positions move by 0"
    worst, where, looked = 0.0, "", 0
    for loud in (1.0, 100.0):
        for case in task.cases:
            T = case[0].size(-2)
            answer = _tensor(ask(function, *case), case)
            if T == 1 or isinstance(answer, Exception):
                continue
            for cut in range(1, T):
                other = tuple(x.clone() for x in case)
                for n, x in enumerate(other):
                    x[..., cut:, :] = _random(
                        *x[..., cut:, :].shape, seed=cut + n, scale=loud if n == len(other) - 1 else 3.0
                    )
                moved = _tensor(ask(function, *other), other)
                if isinstance(moved, Exception):
                    continue
                looked += 1
                apart = distance(answer[..., :cut, :], moved[..., :cut, :]) / max(1.0, loud)
                worst, where = max((worst, where), (apart, f"when position {cut} and later change"))
    if not looked:
        return _not("it gave no two answers to compare")
    if worst > ROUNDING:
        cause = f"what comes later moves what came before ({task.page})"
        return Result("", FAILED, f"earlier positions move by {worst:.2g} {where}", expected, cause)
    remark = "rounding, not a leak: is the mask applied after the softmax?" if worst else ""
    return Result(
        "",
        PASSED,
        f"earlier positions move by {worst:.0e}" if worst else "earlier positions move by 0",
        expected,
        remark,
    )


_SIZES = ((4, 8, 2), (2, 5, 4), (1, 1, 1), (2, 1, 3), (3, 7, 5), (4, 4, 4), (1, 33, 3))

AVERAGING = Task(
    "average",
    "page 3",
    _average,
    tuple((_random(*size, seed=i),) for i, size in enumerate(_SIZES)),
    AVERAGE,
    properties=_average_properties,
    learns=False,
    more=(("causal", _causal),),
)


def check_averaging(average) -> Report:
    """Check a causal mean: average(x), x (B, T, C) -> (B, T, C), position t the mean of positions 0..t; page 3."""
    return check(AVERAGING, average)


# ---- attention


def _attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _qkv(*shape, seed: int) -> tuple:
    return tuple(_random(*shape, seed=3 * seed + i, scale=1.5 if i < 2 else 1.0) for i in range(3))


_HEADS = (
    *((2, 5, 4), (1, 1, 3), (3, 6, 16), (2, 7, 5), (4, 4, 4), (2, 9, 1)),
    *((2, 3, 5, 4), (1, 2, 1, 3), (3, 4, 6, 8), (2, 4, 4, 4), (1, 5, 7, 2)),
)


def _either(function, *case):
    """What an attention gives for (B, T, D): asked so, or as one head of (B, H, T, D) where it takes that alone."""
    answer = _tensor(ask(function, *case), case)
    if isinstance(answer, Exception):
        wide = tuple(x[:, None] for x in case)  # (B, 1, T, D)
        again = _tensor(ask(function, *wide), wide)
        return again[:, 0] if isinstance(again, torch.Tensor) and again.shape == wide[0].shape else answer
    return answer


def _attention_properties(function) -> str:
    """In words, what kind of weights an attention uses: read off where the values are the identity."""
    T = 6
    q, k, v = _random(1, T, T, seed=5), _random(1, T, T, seed=6), torch.eye(T)[None]
    weights = _either(function, q, k, v)
    return "" if isinstance(weights, Exception) or weights.shape != (1, T, T) else _describe(weights[0])


def _attention_scale(function) -> str:
    """In words, by what the scores are divided, if that alone is wrong: measured for two widths of a head."""
    if _attention_properties(function):
        return ""
    found = {}
    for D in (4, 16):
        T = D
        q, k, v = _random(1, T, D, seed=7, scale=0.7), _random(1, T, D, seed=8, scale=0.7), torch.eye(T)[None]
        weights = _either(function, q, k, v)
        if isinstance(weights, Exception) or weights.shape != (1, T, T) or (weights[0, -1] <= 0).any():
            return ""
        logs = weights[0, -1].detach().double().log()  # (T,), the scores of the last row but for a constant
        scores = (q.double() @ k.double().mT)[0, -1]
        logs, scores = logs - logs.mean(), scores - scores.mean()
        slope = (logs @ scores / (scores @ scores)).item()
        if (logs - slope * scores).abs().max() > 1e-3:
            return ""
        found[D] = slope
    (small, s), (large, b) = found.items()
    times = [1 / (slope**2 * D) if slope else 0 for D, slope in found.items()]
    if all(abs(t - 1) < 1e-2 for t in times) and s > 0:
        return ""
    if s > 0 and abs(s - b) < 1e-3 * s:
        return (
            f"the scores are multiplied by {s:.3g} whatever D is, the root of 1/{1 / s**2:.4g}: a number that is "
            "written into it, or the width C of the model where the head's width D belongs"
        )
    if s > 0 and abs(times[0] - times[1]) < 1e-2 * times[0]:
        root = f"the root of {times[0]:.3g} times D"
        return f"the scores are divided by {root}: by the width C of the model, not the head's D"
    return f"the scores are multiplied by {s:.3g} for D = {small} and {b:.3g} for D = {large}, not by 1/√D"


def _extreme(task, function) -> Result:
    """Scores far above and below zero, and scores of the future far above the past's: the formula stays the same."""
    expected = "the same formula at scores of 300"
    q, k, v = _qkv(2, 6, 4, seed=20)
    for words, (a, b) in (
        ("large scores", (300.0, 0.0)),
        ("very negative scores", (-300.0, 0.0)),
        ("a loud future", (0.0, 60.0)),
    ):
        first, second = q.clone(), k.clone()
        first[..., 0], second[..., 0] = 2.0, a  # a number that all scores of a row share: 2 · a / √D
        second[..., 0] += b * torch.arange(6)  # and one that grows with the key's position
        case = (first, second, v)
        answer, right = _either(function, *case), _attention(*_double(case))
        if isinstance(answer, Exception):
            return _not(f"it could not be called so: {answer}")
        if same(answer, right, 1e-3):
            continue
        if not answer.isfinite().all():
            cause = "it breaks at extreme weights: NaN. "
            if b:
                cause += "The mask comes after the softmax, and all that a row may see can round to nothing: mask first"
            else:
                cause += "A softmax written by hand must subtract the largest score before it takes the exponential"
        else:
            cause = (
                "it breaks at extreme weights: what hides the future is a finite number that scores can reach: use −inf"
            )
        return Result(
            "", DIFFERS, f"wrong at {words}", expected, f"right at ordinary weights, but {cause} ({task.page})"
        )
    return Result("", PASSED, "right at scores of ±300", expected)


def _half(task, function) -> Result:
    """In half precision, where a number like −1e9 does not exist."""
    case = tuple(x.half() for x in _qkv(2, 5, 4, seed=21))
    answer, right = _either(function, *case), _attention(*_double(case))
    expected = "the same to 1e-02"
    if isinstance(answer, Exception):
        if "overflow" in str(answer):
            cause = f"the number that hides the future does not fit float16 (about ±65,504): use −inf ({task.page})"
            return Result("", DIFFERS, str(answer), expected, cause)
        return _not(f"it takes no half precision: {answer}")
    if not same(answer, right, 1e-2):
        return Result(
            "", DIFFERS, "wrong in half precision", expected, f"numbers that float16 cannot hold ({task.page})"
        )
    return Result("", PASSED, f"largest difference {distance(answer, right):.0e}", expected)


def _pairs(about: str, page: str, kinds: dict, made) -> tuple[Mistake, ...]:
    """Two mistakes at once, of two different kinds: made only when no single one fits."""
    found = []
    for one, other in itertools.combinations(kinds, 2):
        for (a, (words, _)), (b, (more, _)) in itertools.product(kinds[one].items(), kinds[other].items()):
            wrong = made(**{one: a, other: b})
            found.append(Mistake(f"{a}, {b}", about, f"two at once: {words}; and {more}", page, wrong))
    return tuple(found)


_OTHER_ATTENTION = [
    ("over-heads", "the axes of heads and positions are exchanged: heads attend to heads",
     lambda q, k, v: attend()(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)),
    ("adds-values", "the values are added to the answer: the residual belongs to the block",
     lambda q, k, v: attend()(q, k, v) + v),
    ("adds-queries", "the queries are added to the answer: the residual belongs to the block",
     lambda q, k, v: attend()(q, k, v) + q),
    ("own-only", "every position reads itself alone", lambda q, k, v: v.clone()),
    ("average", "the weights do not depend on queries and keys: a mean of the past",
     lambda q, k, v: attend()(0 * q, k, v)),
    ("batch-mixed", "rows of the batch are averaged",
     lambda q, k, v: attend()(q, k, v).mean(0, keepdim=True).expand_as(v)),
    ("heads-mixed", "the heads are averaged",
     lambda q, k, v: attend()(q, k, v).mean(1, keepdim=True).expand_as(v) if q.dim() == 4 else attend()(q, k, v)),
    ("merged-wrong", "the answer is transposed and laid out anew: the numbers of several positions are mixed",
     lambda q, k, v: attend()(q, k, v).mT.reshape(v.shape)),
]  # fmt: skip
ATTENTION_MISTAKES = _mistakes(
    "attention",
    "page 4",
    [(name, words, attend(**{part: name})) for part, known in ATTENTION.items() for name, (words, _) in known.items()]
    + _OTHER_ATTENTION,
)

ATTENDING = Task(
    "attention",
    "page 4",
    _attention,
    tuple(_qkv(*size, seed=i) for i, size in enumerate(_HEADS)),
    ATTENTION_MISTAKES,
    pairs=partial(_pairs, "attention", "page 4", ATTENTION, attend),
    fits=_attention_scale,
    properties=_attention_properties,
    more=(("causal", _causal), ("extreme", _extreme), ("half", _half)),
    optional=lambda case: case[0].dim() == 4,
)


def check_attention(attention) -> Report:
    """Check causal attention: attention(q, k, v), each (B, T, D) or (B, H, T, D) -> the same shape; page 4.

    Position t mixes the values of positions 0..t by softmax(q·k / √D). What returns more than that may: the first
    tensor of the right shape counts. A function for one of the two shapes alone is checked on that.
    """
    return check(ATTENDING, attention)


# ---- layer norm


def _layer_norm(x, weight, bias):
    return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


def _norm_case(*shape, seed: int, scale: float = 1.0, offset: float = 0.0) -> tuple:
    C = shape[-1]
    return offset + _random(*shape, seed=seed, scale=scale), _random(C, seed=seed + 100), _random(C, seed=seed + 200)


_NORM_CASES = (
    _norm_case(2, 5, 4, seed=0),
    _norm_case(6, seed=1),
    _norm_case(3, 7, seed=2, scale=3.0, offset=2.0),
    _norm_case(2, 3, 4, 5, seed=3),
    _norm_case(1, 1, 16, seed=4),
    _norm_case(3, 3, 3, seed=5),
    _norm_case(2, 4, 8, seed=6, scale=0.01),  # here epsilon counts
    _norm_case(2, 4, 8, seed=8, scale=1e-3),
    _norm_case(2, 4, 8, seed=9, scale=1e-4),
    _norm_case(4, 6, seed=7, scale=0.0, offset=1.5),  # and here it is all that there is
)


def _norm_extreme(task, function) -> Result:
    """Rows far from zero: a variance as the mean of squares less the square of the mean loses all its digits there."""
    case = _norm_case(2, 3, 64, seed=30, offset=3000.0)
    answer, right = _tensor(ask(function, *case), case), task.right(*_double(case))
    expected = "the same for rows around 3000"
    if isinstance(answer, Exception) or not same(answer, right, 1e-2):
        cause = "right at ordinary numbers, but the variance loses its digits far from zero: subtract the mean first"
        return Result("", DIFFERS, "wrong for rows around 3000", expected, f"{cause} ({task.page})")
    return Result("", PASSED, f"largest difference {distance(answer, right):.0e}", expected)


def _norm_properties(function) -> str:
    """In words, what mean, spread and epsilon an answer has."""
    x, one, zero = _random(2, 32, 8, seed=31), torch.ones(8), torch.zeros(8)
    y = _tensor(ask(function, x, one, zero), (x,))
    if isinstance(y, Exception) or y.shape != x.shape:
        return ""
    y = y.detach().double()
    if y.isnan().any():
        return "there are NaN at ordinary numbers"
    if y.mean(-1).abs().max() > 1e-4:
        return f"with weight 1 and bias 0 a row must have mean 0: one has {y.mean(-1).abs().max():.2g}"
    spread = y.var(-1, unbiased=False)
    if (spread - 1).abs().max() > 1e-2:
        return (
            f"with weight 1 and bias 0 a row must have variance 1: they have {spread.min():.3g} to {spread.max():.3g}"
        )
    small = 1e-3 * x
    y, var = _tensor(ask(function, small, one, zero), (x,)).detach().double(), small.double().var(-1, unbiased=False)
    eps = var / y.var(-1, unbiased=False) - var
    if eps.std() < 0.02 * eps.mean().abs():
        return f"epsilon is about {eps.mean():.1e}, GPT-2's is 1e-05"
    return "epsilon is not 1e-05, or not where it belongs: inside of the root, added to the variance"


NORM_MISTAKES = _mistakes(
    "layer_norm",
    "page 6",
    [(name, words, layer_norm_as(**{part: name})) for part, known in NORM.items() for name, (words, _) in known.items()]
    + [
        ("unchanged", "the input is returned as it was", lambda x, weight, bias: x.clone()),
        ("no-norm", "nothing is normalised: only weight and bias are applied",
         lambda x, weight, bias: x * weight + bias),
        ("softmax", "a softmax, not a normalisation", lambda x, weight, bias: x.softmax(-1) * weight + bias),
        ("length", "a row is divided by its length, so that the squares sum to 1 and not to C",
         lambda x, weight, bias: F.normalize(x - x.mean(-1, keepdim=True), dim=-1) * weight + bias),
        ("min-max", "a row is stretched between its smallest and largest number",
         lambda x, weight, bias: (x - (low := x.amin(-1, keepdim=True)))
         / (x.amax(-1, keepdim=True) - low + 1e-5) * weight + bias),
    ],
)  # fmt: skip
NORM_DIFFERS = _mistakes(
    "layer_norm",
    "page 6",
    [
        (f"epsilon-{eps:.0e}", f"right but for epsilon, which is {eps:.0e}; GPT-2's and PyTorch's is 1e-05",
         lambda x, weight, bias, eps=eps: F.layer_norm(x, x.shape[-1:], weight, bias, eps))
        for eps in (1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12)
    ],
)  # fmt: skip

NORMALISING = Task(
    "layer_norm",
    "page 6",
    _layer_norm,
    _NORM_CASES,
    NORM_MISTAKES,
    NORM_DIFFERS,
    pairs=partial(_pairs, "layer_norm", "page 6", NORM, layer_norm_as),
    properties=_norm_properties,
    learns=False,
    more=(("extreme", _norm_extreme),),
    optional=lambda case: case[0].dim() != 3,
)


def check_layer_norm(layer_norm) -> Report:
    """Check a layer norm: layer_norm(x (..., C), weight (C,), bias (C,)) -> (..., C), with epsilon 1e-5; page 6."""
    return check(NORMALISING, layer_norm)


# ---- GELU


def _squash(x):
    return torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


GELU_MISTAKES = _mistakes(
    "gelu",
    "page 6",
    [
        ("relu", "a ReLU, which is 0 below zero", F.relu),
        ("silu", "a SiLU: x times the sigmoid of x", F.silu),
        ("sigmoid", "x times the sigmoid of 1.702 x, an approximation that is off by 0.02",
         lambda x: x * torch.sigmoid(1.702 * x)),
        ("no-half", "the half is missing: twice the right answer", lambda x: 2 * F.gelu(x)),
        ("no-x", "the factor x is missing: the probability alone", lambda x: 0.5 * (1 + torch.erf(x / math.sqrt(2)))),
        ("no-root-2", "x is not divided by √2 inside of erf", lambda x: 0.5 * x * (1 + torch.erf(x))),
        ("by-2", "x is divided by 2, not by √2, inside of erf", lambda x: 0.5 * x * (1 + torch.erf(x / 2))),
        ("times-root-2", "x is multiplied by √2, not divided by it, inside of erf",
         lambda x: 0.5 * x * (1 + torch.erf(x * math.sqrt(2)))),
        ("no-one", "the 1 is missing in front of erf", lambda x: 0.5 * x * torch.erf(x / math.sqrt(2))),
        ("tanh-no-one", "the 1 is missing in front of tanh", lambda x: 0.5 * x * _squash(x)),
        ("minus", "1 less erf, not 1 and erf: it is mirrored", lambda x: 0.5 * x * (1 - torch.erf(x / math.sqrt(2)))),
        ("density", "x times the density of the normal distribution, not its integral",
         lambda x: x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)),
        ("identity", "x is returned as it was", lambda x: x.clone()),
        ("tanh", "a tanh", torch.tanh),
        ("plain-sigmoid", "a sigmoid, without the factor x", torch.sigmoid),
        ("erf", "erf alone", torch.erf),
        ("elu", "an ELU", F.elu),
        ("leaky-relu", "a leaky ReLU", F.leaky_relu),
        ("softplus", "a softplus", F.softplus),
        ("mish", "a Mish: x times the tanh of its softplus", F.mish),
        ("tanh-no-cube", "the approximation by tanh lacks its cube",
         lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * x))),
        ("tanh-square", "the approximation by tanh has a square where a cube belongs",
         lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**2)))),
        ("tanh-no-root", "the approximation by tanh has 2/π without its root",
         lambda x: 0.5 * x * (1 + torch.tanh(2 / math.pi * (x + 0.044715 * x**3)))),
        ("tanh-pi-2", "the approximation by tanh has √(π/2) where √(2/π) belongs",
         lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(math.pi / 2) * (x + 0.044715 * x**3)))),
        ("tanh-0.44715", "the approximation by tanh has 0.44715 where 0.044715 belongs",
         lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.44715 * x**3)))),
        ("tanh-cube-outside", "the cube is outside of the bracket that √(2/π) multiplies",
         lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * x + 0.044715 * x**3))),
        ("tanh-no-half", "the approximation by tanh lacks its half", lambda x: x * (1 + _squash(x))),
    ],
)  # fmt: skip
GELU_DIFFERS = _mistakes(
    "gelu",
    "page 6",
    [("approximate", "GPT-2's own approximation by tanh, off from the exact GELU by up to 0.0005",
      lambda x: F.gelu(x, approximate="tanh"))],
)  # fmt: skip


def _gelu_properties(function) -> str:
    """In words, where an activation is off: at 0, far above, or far below."""
    x = torch.tensor([0.0, 100.0, -100.0, 20.0])
    y = _tensor(ask(function, x), (x,))
    if isinstance(y, Exception) or y.shape != x.shape:
        return ""
    if not y.isfinite().all():
        return "it is not finite for large inputs: an exponential overflows"
    if y[0].abs() > 1e-6:
        return f"it must be 0 at 0, and is {y[0].item():.3g}"
    if (y[1] - 100).abs() > 1e-3:
        return f"far above zero it must give x itself: it gives {y[1].item():.4g} for 100"
    if y[2].abs() > 1e-3:
        return f"far below zero it must give 0: it gives {y[2].item():.3g} for -100"
    return ""


ACTIVATING = Task(
    "gelu",
    "page 6",
    F.gelu,
    (
        (torch.linspace(-6, 6, 97),),
        (_random(2, 3, 4, seed=0),),
        (_random(5, 2, seed=1, scale=2.0),),
        (torch.tensor([-100.0, -20.0, -10.0, 10.0, 20.0, 100.0]),),
    ),
    GELU_MISTAKES,
    GELU_DIFFERS,
    properties=_gelu_properties,
    learns=False,
)


def check_gelu(gelu) -> Report:
    """Check a GELU: gelu(x) of any shape -> the same shape, x Φ(x) exactly; GPT-2's approximation "differs"; page 6."""
    return check(ACTIVATING, gelu)


# ---- the loss


def _loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _logs(z):
    return z.log_softmax(-1)


def _picked(z, targets):
    return z.gather(-1, targets[..., None])[..., 0]  # (B, T)


def _case(B: int, T: int, V: int, seed: int, scale: float = 2.0) -> tuple:
    targets = torch.randint(V, (B, T), generator=torch.Generator().manual_seed(seed))
    return _random(B, T, V, seed=seed, scale=scale), targets


def _moved(z, targets):
    return _loss(z[:, :-1], targets[:, 1:])


LOSS_MISTAKES = _mistakes(
    "loss_fn",
    "page 2",
    [
        ("sum", "the sum over all tokens, not their mean",
         lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), reduction="sum")),
        ("over-batch", "the sum of a row, averaged over the rows alone: T times too large",
         lambda z, y: _loss(z, y) * y.size(1)),
        ("over-positions", "the sum over the rows, averaged over the positions alone: B times too large",
         lambda z, y: _loss(z, y) * y.size(0)),
        ("shifted-twice", "the targets are shifted once more: they are the next tokens already", _moved),
        ("shifted-logits", "logits and targets are shifted against each other, the wrong way round",
         lambda z, y: _loss(z[:, 1:], y[:, :-1])),
        ("rolled", "the targets are rolled by one position", lambda z, y: _loss(z, y.roll(-1, 1))),
        ("rolled-back", "the targets are rolled by one position, backwards", lambda z, y: _loss(z, y.roll(1, 1))),
        ("flattened-wrong", "the targets are flattened in another order than the logits: transposed",
         lambda z, y: _loss(z, y.T.reshape(y.shape))),
        ("logits-flattened-wrong", "the logits are flattened in another order than the targets: transposed",
         lambda z, y: F.cross_entropy(z.transpose(0, 1).reshape(-1, z.size(-1)), y.flatten())),
        ("viewed-not-transposed", "the logits are reshaped to (B, V, T), where they must be transposed",
         lambda z, y: F.cross_entropy(z.reshape(z.size(0), z.size(2), z.size(1)), y)),
        ("softmax-first", "a softmax in front of the cross-entropy, which has its own",
         lambda z, y: _loss(z.softmax(-1), y)),
        ("sigmoid-first", "a sigmoid in front of the cross-entropy, which wants logits",
         lambda z, y: _loss(z.sigmoid(), y)),
        ("bits", "the logarithm to base 2: bits, not nats", lambda z, y: _loss(z, y) / math.log(2)),
        ("log-10", "the logarithm to base 10, not the natural one", lambda z, y: _loss(z, y) / math.log(10)),
        ("without-last", "the last position is left out", lambda z, y: _loss(z[:, :-1], y[:, :-1])),
        ("without-first", "the first position is left out", lambda z, y: _loss(z[:, 1:], y[:, 1:])),
        ("last-only", "only the last position counts", lambda z, y: _loss(z[:, -1:], y[:, -1:])),
        ("first-only", "only the first position counts", lambda z, y: _loss(z[:, :1], y[:, :1])),
        ("first-row", "only the first row of the batch counts", lambda z, y: _loss(z[:1], y[:1])),
        ("sign", "the sign is missing: a loss that falls makes the model worse", lambda z, y: -_loss(z, y)),
        ("no-log", "the probability of the target, not its logarithm", lambda z, y: -_picked(z.softmax(-1), y).mean()),
        ("one-minus", "one less the probability of the target, not its logarithm",
         lambda z, y: 1 - _picked(z.softmax(-1), y).mean()),
        ("mean-before-log", "the logarithm of the mean probability, not the mean of the logarithms",
         lambda z, y: -_picked(z.softmax(-1), y).mean().log()),
        ("raw-logits", "the logits themselves are picked: log_softmax is missing", lambda z, y: -_picked(z, y).mean()),
        ("softmax-over-positions", "the softmax runs over the positions, not over the vocabulary",
         lambda z, y: -_picked(z.log_softmax(1), y).mean()),
        ("softmax-over-batch", "the softmax runs over the batch, not over the vocabulary",
         lambda z, y: -_picked(z.log_softmax(0), y).mean()),
        ("over-vocabulary", "it is divided by the size of the vocabulary too", lambda z, y: _loss(z, y) / z.size(-1)),
        ("one-too-few", "the sum is divided by one too few", lambda z, y: _loss(z, y) * y.numel() / (y.numel() - 1)),
        ("ignores-zero", "token 0 is taken for padding and ignored: here it is a token like any other",
         lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), ignore_index=0)),
        ("zero-counts-nothing", "token 0 adds nothing to the sum, but is counted",
         lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), ignore_index=0, reduction="sum") / y.numel()),
        ("targets-plus-one", "the targets are off by one symbol", lambda z, y: _loss(z, (y + 1) % z.size(-1))),
        ("perplexity", "the perplexity, e to the loss, not the loss", lambda z, y: _loss(z, y).exp()),
        ("smoothed", "the labels are smoothed by 0.1",
         lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), label_smoothing=0.1)),
        ("squares", "squared differences of probabilities, not the cross-entropy",
         lambda z, y: F.mse_loss(z.softmax(-1), F.one_hot(y, z.size(-1)).to(z))),
        ("squares-of-logits", "squared differences of logits, not the cross-entropy",
         lambda z, y: F.mse_loss(z, F.one_hot(y, z.size(-1)).to(z))),
        ("binary", "a binary cross-entropy for each symbol, not one over all of them",
         lambda z, y: F.binary_cross_entropy_with_logits(z, F.one_hot(y, z.size(-1)).to(z))),
        ("entropy", "the entropy of the prediction: the targets are not used",
         lambda z, y: -(z.softmax(-1) * _logs(z)).sum(-1).mean()),
        ("greedy", "the loss of the likeliest token: the targets are not used", lambda z, y: -_logs(z).amax(-1).mean()),
        ("not-averaged", "one loss for each token is returned, not their mean", lambda z, y: -_picked(_logs(z), y)),
        ("one-a-row", "one loss for each row is returned, not their mean", lambda z, y: -_picked(_logs(z), y).mean(1)),
        ("epsilon", "a number is added to the probabilities before the logarithm, and changes them",
         lambda z, y: -(_picked(z.softmax(-1), y) + 1e-3).log().mean()),
        ("half", "half of the loss", lambda z, y: _loss(z, y) / 2),
        ("twice", "twice the loss", lambda z, y: _loss(z, y) * 2),
        ("most-likely-shift", "the largest logit is subtracted from the sum, but not from the target's logit",
         lambda z, y: ((z - z.amax(-1, keepdim=True)).exp().sum(-1).log() - _picked(z, y)).mean()),
    ],
)  # fmt: skip


def _loss_properties(function) -> str:
    """In words, what a loss gives where the answer is known: equal logits, and a sure prediction that is right."""
    B, T, V = 2, 5, 7
    _, targets = _case(B, T, V, seed=9)
    flat = torch.zeros(B, T, V)
    sure = 20.0 * F.one_hot(targets, V).float()
    at_flat, at_sure = (_tensor(ask(function, z, targets), (z, targets), True) for z in (flat, sure))
    if isinstance(at_flat, Exception) or isinstance(at_sure, Exception) or at_flat.dim() or at_sure.dim():
        return ""
    if abs(at_flat.item() - math.log(V)) > 1e-4:
        return f"equal logits for {V} symbols must cost ln {V} = {math.log(V):.4g}, and cost {at_flat.item():.4g}"
    if abs(at_sure.item()) > 1e-4:
        return f"a prediction that is sure and right must cost 0, and costs {at_sure.item():.4g}"
    return ""


def _loss_extreme(task, function) -> Result:
    """Logits of several hundred: the logarithm of a softmax that rounds to 0 is minus infinity there."""
    case = _case(2, 5, 7, seed=12, scale=300.0)
    answer, right = _tensor(ask(function, *case), case, True), _loss(*_double(case))
    expected = "the same at logits of 300"
    if isinstance(answer, Exception) or not same(answer, right, 1e-4):
        what = str(answer) if isinstance(answer, Exception) else f"{answer.item():.4g} for {right.item():.4g}"
        cause = "right at ordinary logits, but it breaks at extreme ones: use log_softmax, not the log of a softmax"
        return Result("", DIFFERS, what, expected, f"{cause} ({task.page})")
    return Result("", PASSED, "right at logits of 300", expected)


_COSTS = ((2, 5, 7), (3, 4, 11), (4, 4, 4), (3, 2, 65), (1, 6, 5), (5, 1, 3), (1, 1, 9))

COSTING = Task(
    "loss_fn",
    "page 2",
    _loss,
    tuple(_case(*size, seed=i) for i, size in enumerate(_COSTS)),
    LOSS_MISTAKES,
    properties=_loss_properties,
    single=True,
    more=(("extreme", _loss_extreme),),
)  # fmt: skip


def check_loss(loss_fn) -> Report:
    """Check a loss: loss_fn(logits (B, T, V), targets (B, T)) -> the mean cross-entropy in nats, one number; page 2."""
    return check(COSTING, loss_fn)


# ---- with the modules, the catalogue of this part

MISTAKES = (
    *(*AVERAGE, *ATTENTION_MISTAKES, *NORM_MISTAKES, *GELU_MISTAKES, *LOSS_MISTAKES),
    *(*heads.MISTAKES, *blocks.MISTAKES),
)
ASK = {
    "average": check_averaging,
    "attention": check_attention,
    "layer_norm": check_layer_norm,
    "gelu": check_gelu,
    "loss_fn": check_loss,
    **heads.ASK,
    **blocks.ASK,
}
