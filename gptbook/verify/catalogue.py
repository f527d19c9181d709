"""The catalogue of known wrong versions, and how an answer is recognised as one of them.

A check that finds an answer wrong compares it with the wrong versions of the same thing: what equals one of them, on
all that was asked, is most likely that one. The catalogue also proves the checks: each of its entries must be caught
by the check that it is for, and be named by it (`caught`).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module

import torch

from gptbook.verify.report import FAILED, Report

MODULES = ("functions", "writing", "learning", "broken")  # each has MISTAKES, and ASK: how its checks are asked


@dataclass(frozen=True)
class Mistake:
    """A known wrong version of something that readers write.

    `name` is short and unique; `about` is what it is a mistake of, as the contract calls it ("attention", "sample");
    `words` is the likely cause as a report says it; `page` is where the book explains it; `wrong` is the wrong version,
    or makes it, as ASK of its module expects for this `about`.
    """

    name: str
    about: str
    words: str
    page: str
    wrong: Callable

    @property
    def cause(self) -> str:
        """What a report says: the likely cause, and the page that explains it."""
        return f"{self.words} ({self.page})"


def all_mistakes() -> tuple[Mistake, ...]:
    """Every mistake that the checks know by name."""
    return tuple(mistake for module in _modules() for mistake in module.MISTAKES)


def caught(mistake: Mistake) -> Report:
    """What the check of `mistake.about` reports of it. Raises KeyError where no check is about that."""
    for module in _modules():
        if mistake.about in module.ASK:
            return module.ASK[mistake.about](mistake.wrong)
    raise KeyError(f"no check is about {mistake.about!r}")


def is_named(mistake: Mistake, report: Report) -> bool:
    """Whether a failed result of the report gives this mistake as its cause."""
    return any(mistake.words in result.cause for result in report.results if result.status == FAILED)


def _modules():
    """The modules of checks, imported when they are asked for: they import this one."""
    found = []
    for name in MODULES:
        try:
            found.append(import_module(f"gptbook.verify.{name}"))
        except ModuleNotFoundError as error:
            if error.name != f"gptbook.verify.{name}":
                raise
    return found


# ---- recognising


def same(answer, known, tolerance: float = 1e-5) -> bool:
    """Whether two outputs are equal but for rounding: of one shape, NaN and infinities at the same places.

    The tolerance is relative to the largest finite number of the two, and at least of 1.
    """
    if not isinstance(answer, torch.Tensor) or not isinstance(known, torch.Tensor) or answer.shape != known.shape:
        return False
    a, b = answer.detach().double(), known.detach().double()
    return distance(a, b) <= tolerance * max(1.0, _size(a), _size(b))


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference of two tensors of one shape; infinity where one alone is NaN, or infinite."""
    a, b = a.detach().double(), b.detach().double()
    if not a.numel():
        return 0.0
    apart = (a - b).abs()  # (...)
    apart[(a == b) | (a.isnan() & b.isnan())] = 0
    return apart.nan_to_num(math.inf, math.inf).max().item()


def _size(a: torch.Tensor) -> float:
    finite = a[a.isfinite()]
    return finite.abs().max().item() if finite.numel() else 0.0


def likely(mistakes, answers, ask: Callable[[Callable], Iterable], tolerance: float = 1e-5) -> Mistake | None:
    """The first of the mistakes whose answers equal `answers` everywhere, or None.

    `ask(wrong)` gives, one after the other, what a version answers to the same questions: a generator is asked no
    further than the first that differs. An answer can be an exception, which equals any other.
    """
    for mistake in mistakes:
        try:
            if all(_alike(a, known, tolerance) for a, known in zip(answers, ask(mistake.wrong), strict=False)):
                return mistake
        except Exception:  # this version cannot be asked so: then it is not what the reader wrote
            continue
    return None


def _alike(answer, known, tolerance: float) -> bool:
    if isinstance(answer, Exception) or isinstance(known, Exception):
        return isinstance(answer, Exception) and isinstance(known, Exception)
    return same(answer, known, tolerance)
