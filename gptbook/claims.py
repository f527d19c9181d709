"""Numbers that prose may quote: recorded under a name, asserted where something is expected, published by the build."""

import math
import re
import sys
from dataclasses import asdict, dataclass

MIME = "application/vnd.gptbook.claim+json"
KINDS = ("exact", "tolerance", "statistical")


class ClaimFailed(AssertionError):
    """A recorded value is not what the page says it is."""


@dataclass(frozen=True)
class Claim:
    """One recorded number: `expected` is a value, a pair (low, high) with None for an open end, or None."""

    name: str
    value: bool | int | float | str
    expected: object = None
    tolerance: float | None = None
    kind: str = "exact"


recorded: dict[str, Claim] = {}


def claim(name, value, expected=None, tolerance=None, kind="exact"):
    """Record `value` under `name`, assert it where an expectation is given, and return it.

    "exact" asks for equality. "tolerance" and "statistical" ask for |value - expected| <= tolerance, or for a value
    inside the pair (low, high); "statistical" says that the value comes from a random run. Raises ClaimFailed when the
    value is not as expected, ValueError or TypeError when the claim itself makes no sense.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(f"claim {name!r}: a name is small letters, digits and underscores, and starts with a letter")
    value, expected = _plain(name, value), _plain_expectation(name, expected)
    if kind not in KINDS:
        raise ValueError(f"claim {name!r}: kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if (tolerance is not None) != (kind != "exact" and expected is not None and not isinstance(expected, list)):
        raise ValueError(
            f"claim {name!r}: a tolerance goes with one expected number and kind 'tolerance' or 'statistical'"
        )
    if tolerance is not None and not (math.isfinite(tolerance) and tolerance >= 0):
        raise ValueError(f"claim {name!r}: a tolerance is a finite number of at least 0, got {tolerance!r}")
    if expected is not None and not _holds(value, expected, tolerance):
        raise ClaimFailed(f"claim {name!r}: got {value!r}, expected {_words(expected, tolerance)}")
    made = Claim(name, value, expected, tolerance, kind)
    if recorded.get(name, made) != made:
        raise ClaimFailed(
            f"claim {name!r}: recorded as {recorded[name].value!r} before, now as {value!r}: use two names"
        )
    recorded[name] = made
    _publish(made)
    return value


def _plain(name, value):
    value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, bool | int | float | str):
        raise TypeError(f"claim {name!r}: a value is a number, a text or True/False, got {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ClaimFailed(f"claim {name!r}: the value is {value}")
    return value


def _plain_expectation(name, expected):
    if isinstance(expected, tuple | list):
        if len(expected) != 2 or all(end is None for end in expected):
            raise ValueError(f"claim {name!r}: an expected range is a pair (low, high), one of which may be None")
        return [None if end is None else _plain(name, end) for end in expected]
    return None if expected is None else _plain(name, expected)


def _holds(value, expected, tolerance) -> bool:
    if isinstance(expected, list):
        low, high = expected
        return (low is None or low <= value) and (high is None or value <= high)
    if tolerance is not None:
        return abs(value - expected) <= tolerance
    return type(value) is type(expected) and value == expected


def _words(expected, tolerance) -> str:
    if isinstance(expected, list):
        low, high = expected
        return f"at most {high!r}" if low is None else f"at least {low!r}" if high is None else f"{low!r} to {high!r}"
    return f"{expected!r}" if tolerance is None else f"{expected!r} ± {tolerance!r}"


def _publish(made: Claim):
    """Inside a notebook kernel, put the claim among the cell's outputs: they are what the build keeps."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and hasattr(shell, "kernel"):
        shell.display_pub.publish({MIME: asdict(made)})
