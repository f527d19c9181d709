"""What is asked of every module (B, T, C) -> (B, T, C) that a reader writes, heads of attention or a block.

They are looked at on copies with random weights: fresh weights hide faults, as projections that start near zero do.
"""

import itertools
import math
from collections.abc import Callable

import torch
import torch.nn as nn

from gptbook.verify.calling import ask
from gptbook.verify.catalogue import distance, same
from gptbook.verify.report import DIFFERS, FAILED, NOT_CHECKED, PASSED, Report, Result
from gptbook.verify.subject import CannotLook, copied, one_line

ROUNDING = 2e-5  # of the size of the numbers: several products in float32 in a row


class TooLate(CannotLook):
    """A module that was stopped once is not asked again."""


class Piece:
    """A reader's module (B, T, C) -> (B, T, C): its copies, its width C, and a length T that it takes.

    Raises TypeError for what is no module.
    """

    def __init__(self, module):
        if not isinstance(module, nn.Module):
            kind = "the class itself: build it first" if isinstance(module, type) else f"a {type(module).__name__}"
            raise TypeError(f"module must be a torch.nn.Module, got {kind}")
        self.original, self.changed, self._random = module, False, {}
        parameter = next(module.parameters(), torch.zeros(0))
        self.device = parameter.device

    def copied(self) -> nn.Module:
        """A copy in evaluation mode and float32. Raises CannotLook where there can be none."""
        return copied(self.original).float().eval()

    def random(self, gain: float = 1.0) -> nn.Module:
        """A copy with random weights: fresh ones hide faults, and zeros hide everything. Do not change it."""
        if gain not in self._random:
            self._random[gain] = self.randomised(gain)
        return self._random[gain]

    def randomised(self, gain: float = 1.0, vectors: bool = True) -> nn.Module:
        """A copy of its own whose matrices, and vectors unless told otherwise, are random; the same each time."""
        model, generator = self.copied(), torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in model.parameters():
                noise = torch.randn(p.shape, generator=generator).to(p)
                if p.dim() >= 2:
                    p.copy_(gain / math.sqrt(min(p.shape[-2:])) * noise)
                elif vectors:
                    p.add_(0.3 * noise)
        return model

    def x(self, B: int = 2, T: int | None = None, seed: int = 0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(B, T or self.T, self.C, generator=generator).to(self.device)

    def call(self, model, x):
        """The output for x (B, T, C): the first tensor of its shape. Raises CannotLook with the reason if none."""

        def quietly(x):
            with torch.no_grad():
                return model(x)

        answer = ask(quietly, x)
        self.changed |= answer.changed
        return self.tensor(answer, x)

    def tensor(self, answer, x):
        """The tensor of x's shape in an answer. Raises CannotLook with the reason if there is none."""
        if answer.late:
            raise TooLate(answer.error)
        if answer.error:
            raise CannotLook(answer.error)
        value = answer.value
        if isinstance(value, dict):
            value = tuple(value.values())
        if isinstance(value, tuple | list):
            tensors = [v for v in value if isinstance(v, torch.Tensor)]
            value = next((v for v in tensors if v.shape == x.shape), tensors[0] if tensors else None)
        if not isinstance(value, torch.Tensor):
            raise CannotLook(f"returns a {type(value).__name__}, not a tensor")
        if value.shape != x.shape:
            raise CannotLook(f"returns {tuple(value.shape)} for {tuple(x.shape)}")
        return value

    def measure(self):
        """Find C and T by trying. Raises CannotLook with what the likeliest width gave."""
        model, sizes = self.copied(), [s for p in self.original.parameters() for s in p.shape]
        widths = [s for s in sorted(set(sizes), key=lambda s: (-sizes.count(s), s)) if s > 1] or [8]
        reasons = []
        for C, T in itertools.product(widths[:8], (6, 5, 4, 3, 2, 1)):
            self.C, self.T = C, T
            try:
                self.call(model, self.x())
                return
            except TooLate:
                raise
            except CannotLook as reason:
                reasons.append((str(reason).startswith("returns"), str(reason)))
        raise CannotLook(max(reasons, key=lambda r: r[0])[1])


# ---- what is asked of both


def _shapes(piece: Piece) -> Result:
    model, expected = piece.copied(), "(B, T, C) for any B and T"
    for B, T in {(1, 1), (3, piece.T), (2, max(1, piece.T - 1))}:
        try:
            piece.call(model, piece.x(B, T))
        except CannotLook as reason:
            return outcome(FAILED, f"B = {B}, T = {T}: {reason}", expected, "the shape depends on B or T")
    if piece.changed:
        return outcome(FAILED, "the input was changed", expected, "it writes into its input: x += ... does that")
    return outcome(PASSED, f"right, with C = {piece.C}", expected)


def deterministic(piece: Piece) -> Result:
    model, x, answers = piece.random(), piece.x(), []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        answers.append(piece.call(model, x))
    expected = "0, bit for bit"
    for other, cause in (
        (answers[1], "it keeps something from one call to the next"),
        (answers[2], "dropout that is on in evaluation mode: a functional call that ignores eval()?"),
    ):
        if not same(answers[0], other, 0.0):
            return outcome(FAILED, f"two calls differ by {distance(answers[0], other):.1e}", expected, cause)
    return outcome(PASSED, "two calls differ by 0", expected)


def finite(piece: Piece) -> Result:
    y, expected = piece.call(piece.random(), piece.x()), "no NaN, no infinity"
    if y.isfinite().all():
        return outcome(PASSED, "all finite", expected)
    if not y[:, 0].isfinite().all() and y[:, 1:].isfinite().all():
        cause = "is a position's own token hidden too? Then the first has nothing to choose from"
    else:
        cause = "a softmax over the wrong axis or over nothing, or a division by zero"
    return outcome(FAILED, f"{1 - y.isfinite().float().mean():.0%} of the output is not finite", expected, cause)


def causal(piece: Piece) -> Result:
    """At small, ordinary and large weights, at every cut: what comes later moves nothing that came before."""
    worst, where = 0.0, ""
    for gain in (0.3, 1.0, 3.0):
        model, x = piece.random(gain), piece.x()
        y = piece.call(model, x)
        others = [torch.cat([x[:, :cut], 3 * piece.x(seed=cut + 1)[:, cut:]], 1) for cut in range(1, piece.T)]
        for cut, moved in enumerate(_together(piece, model, others), 1):
            apart = distance(y[:, :cut], moved[:, :cut]) / max(1.0, y.abs().max().item())
            if apart:  # asked again by itself: rows of a batch may move each other, which is another question
                apart = distance(y[:, :cut], piece.call(model, others[cut - 1])[:, :cut]) / max(
                    1.0, y.abs().max().item()
                )
            worst, where = max((worst, where), (apart, f" when position {cut} and later change"))
    expected = "earlier positions move by 0"
    if piece.T == 1:
        return outcome(NOT_CHECKED, cause="it takes one position alone")
    if worst > 1e-6:
        cause = "what comes later moves what came before: a mask, a softmax, or a mean over the wrong axis"
        return outcome(FAILED, f"earlier positions move by {worst:.1e}{where}", expected, cause)
    return outcome(PASSED, f"earlier positions move by {worst:.0e}" if worst else expected, expected)


def _together(piece: Piece, model, inputs) -> list:
    """What a module gives for several inputs, each (B, T, C), asked at once as one larger batch."""
    return list(piece.call(model, torch.cat(inputs)).chunk(len(inputs))) if inputs else []


def batch_independent(piece: Piece) -> Result:
    model, x = piece.random(), piece.x(3)
    together = piece.call(model, x)
    apart = distance(together, torch.cat([piece.call(model, row[None]) for row in x])) / max(
        1.0, together.abs().max().item()
    )
    expected = "a row alone gives what it gives among others"
    if apart > ROUNDING:
        cause = "rows of a batch move each other: a softmax, a mean or a view over the wrong axis"
        return outcome(FAILED, f"differs by {apart:.1e}", expected, cause)
    return outcome(PASSED, f"differs by {apart:.0e}", expected)


def reaches_back(piece: Piece) -> Result:
    """Every earlier position moves the last."""
    model, x, others = piece.random(), piece.x(), []
    for t in range(piece.T):
        other = x.clone()
        other[:, t] = piece.x(seed=9)[:, t]
        others.append(other)
    y, *moved = _together(piece, model, [x, *others])
    dead = [t for t, z in enumerate(moved) if distance(y[:, -1], z[:, -1]) < 1e-7]
    expected = "every position moves the last"
    if dead:
        cause = "the last position does not read all that came before"
        return outcome(FAILED, f"{len(dead)} of {piece.T} do not", expected, cause)
    return outcome(PASSED, f"all {piece.T} do", expected)


def has_gradient(piece: Piece) -> Result:
    """Backward reaches the input and every parameter. How large a gradient is does not count: a key's bias has none."""
    model, x, expected = piece.randomised(), piece.x().requires_grad_(), "a gradient for the input and every parameter"
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    answer = ask(model, x)
    y = piece.tensor(answer, x)
    wanted = [answer.arguments[0], *(p for p in model.parameters() if p.requires_grad)]
    if not y.requires_grad:
        return outcome(FAILED, "no gradient at all", expected, "the output is detached: no_grad(), detach(), or item()")
    found = torch.autograd.grad((y * y).sum(), wanted, allow_unused=True)
    if found[0] is None:
        return outcome(FAILED, "none for the input", expected, "the input is detached, so that nothing below it learns")
    without = [name for name, g in zip(names, found[1:], strict=True) if g is None]
    if without:
        few = ", ".join(f"`{name}`" for name in without[:3]) + (" and more" if len(without) > 3 else "")
        return outcome(FAILED, f"none for {few}", expected, f"{UNUSED}: {few}")
    return outcome(PASSED, f"all {len(names)} parameters have one", expected)


UNUSED = "built and never used, or detached"


def outcome(status: str, measured: str = "", expected: str = "", cause: str = "") -> Result:
    return Result("", status, measured, expected, cause)


def answers_to(questions, page: str) -> Report:
    """The answers in order; after one that failed and is `vital`, the rest would mislead."""
    results, stopped = [], ""
    for name, question, vital in questions:
        try:
            result = outcome(NOT_CHECKED, cause=stopped) if stopped else question()
        except CannotLook as reason:
            result = outcome(NOT_CHECKED, cause=str(reason))
        except Exception as error:
            result = outcome(NOT_CHECKED, cause=f"the check was stopped by {one_line(error)}")
        cause = result.cause
        if result.status in (FAILED, DIFFERS) and "(page" not in cause:
            cause = f"{cause} ({page})"
        results.append(Result(name, result.status, result.measured, result.expected, cause))
        if vital and result.status in (FAILED, NOT_CHECKED) and not stopped:
            stopped = f"it would mislead, because “{name}” " + (
                "failed" if result.status == FAILED else "could not be checked"
            )
    return Report(tuple(results))


def takes_shapes(piece: Piece) -> Result:
    try:
        piece.measure()
    except CannotLook as reason:
        if "cannot be copied" in str(reason):
            raise
        return outcome(FAILED, str(reason), "(B, T, C) -> (B, T, C)", "it takes no (B, T, C), or gives none back")
    return _shapes(piece)


# ---- wrong versions are built alike


def making(cls, **how) -> Callable:
    """Makes a wrong version of a module, given its width and number of heads."""
    return lambda n_embd, n_head: cls(n_embd, n_head, **how)


def built(check: Callable, *arguments) -> Callable:
    """Build the wrong version at a width of 12 with 3 heads, always with the same weights, and check it."""

    def ask_about(make) -> Report:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = make(12, 3)
        return check(module, *arguments)

    return ask_about
