"""How the checks call a reader's function and read what it returns: without torch, and never raising its errors."""

import inspect
import linecache
import math
import numbers
import operator
import random
import sys
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path


class Wrong(Exception):
    """The answer is not right; the message is the sentence that the reader gets."""


@contextmanager
def random_state_kept():
    """Give Python, NumPy and PyTorch, as far as they are loaded, their random states back."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    cuda = torch is not None and torch.cuda.is_initialized()
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    torch_state = torch.get_rng_state() if torch else None
    cuda_states = torch.cuda.get_rng_state_all() if cuda else None
    try:
        yield
    finally:
        random.setstate(python_state)
        if numpy:
            numpy.random.set_state(numpy_state)
        if torch:
            torch.set_rng_state(torch_state)
        if cuda:
            torch.cuda.set_rng_state_all(cuda_states)


def one_line(text, limit=120) -> str:
    """The text on one line, cut where it is longer than `limit` characters."""
    text = " ".join(str(text).split())
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def shown(value, limit=60) -> str:
    """A value as a message may show it: short, on one line, tensors by their shape."""
    if value is None:
        return "None (is a return missing?)"
    if hasattr(value, "shape") and len(value.shape):
        return f"a {type(value).__name__} of shape {tuple(value.shape)}"
    if inspect.isgenerator(value):
        return "a generator"
    if callable(value):
        return "a function"
    return f"{one_line(repr(value), limit)} ({type(value).__name__})"


def need_function(answer, form: str):
    """Refuse an answer that cannot be called as `form`, such as "make(text)", says."""
    if not callable(answer):
        got = "got nothing" if answer is None else f"not the result of a call, got {shown(answer)}"
        raise Wrong(f"the answer is the function {form} itself, {got}")
    try:
        signature = inspect.signature(answer)
    except (TypeError, ValueError):
        return  # some built-in functions do not tell
    wanted = form[form.index("(") + 1 : -1].split(", ")
    try:
        signature.bind(*wanted)
    except TypeError:
        raise Wrong(f"the function must take {form[form.index('(') :]}, yours takes {signature}") from None


def ask(function, what: str, *arguments):
    """What the function returns; an error of its own becomes the sentence that `what`, the call in words, raised it."""
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:
        raise Wrong(complaint(what, error)) from None


def complaint(what: str, error) -> str:
    """The sentence that says what the reader's code raised, and at which of its lines."""
    if isinstance(error, NotImplementedError):
        return f"{what} raised NotImplementedError: it is not written yet"
    text = one_line(error)
    line = _line(error.__traceback__)
    return f"{what} raised {type(error).__name__}{f': {text}' if text else ''}" + (
        f", at the line `{line}`" if line else ""
    )


def _line(trace) -> str:
    """The line of the reader's code that the error came through last: not a library's, not the checks' own."""
    found, readers_file, checks = "", None, Path(__file__).parent
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if Path(name).parent != checks:
            readers_file = readers_file or name  # the first frame below the check is the reader's
            if name == readers_file:
                found = linecache.getline(name, trace.tb_lineno).strip()
        trace = trace.tb_next
    return one_line(found, 80)


def whole_number(value, what: str, floats=False) -> int:
    """A count that the reader's code gave: int, or an integer scalar of NumPy or PyTorch; with `floats` also 196.0."""
    try:
        if floats and float(value).is_integer() and not isinstance(value, str | bytes | bool):
            value = int(value)
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except Exception:  # a tensor of several elements refuses with an error of its own
        raise Wrong(f"{what} must be a whole number, got {shown(value)}") from None


def number(value, what: str) -> float:
    """A number that the reader's code gave: int, float, Decimal, Fraction, or a scalar of NumPy or PyTorch."""
    if hasattr(value, "item") and math.prod(getattr(value, "shape", ())) == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real | Decimal):
        raise Wrong(f"{what} must be a number, got {shown(value)}")
    try:
        return float(value)
    except (OverflowError, ValueError):
        raise Wrong(f"{what} is a number that no float can hold") from None


def apart(a: float, b: float, digits=4) -> tuple[str, str]:
    """Two numbers in words, with as many digits as it takes to tell them apart."""
    while f"{a:.{digits}g}" == f"{b:.{digits}g}" and digits < 17:
        digits += 1
    return f"{a:.{digits}g}", f"{b:.{digits}g}"


def listed(value, what: str) -> list:
    """A list that the reader's code gave: list, tuple, or an array or tensor of one axis."""
    if hasattr(value, "tolist") and len(getattr(value, "shape", ())) == 1:
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise Wrong(f"{what} must be a list, got {shown(value)}")
    return list(value)


def settled(got, right, cases, catalogue, same) -> bool:
    """Whether the answer is right in every case; raises the sentence of a known mistake that gives the same instead."""
    if all(same(mine, true) for mine, true in zip(got, right, strict=True)):
        return True
    if sentence := explain(got, cases, catalogue, same):
        raise Wrong(sentence)
    return False


def first_off(cases, got, right, same):
    """The first case that the answer does not get right: (case, what it gave, what it must give)."""
    return next(t for t in zip(cases, got, right, strict=True) if not same(*t[1:]))


def explain(got, cases, catalogue, same) -> str | None:
    """The sentence of the first known mistake that gives what the answer gave in every case, or None.

    `catalogue` is pairs (sentence, wrong version); `same(a, b)` says whether two results agree.
    """
    for sentence, wrong in catalogue:
        if all(same(mine, wrong(*case)) for mine, case in zip(got, cases, strict=True)):
            return sentence
    return None
