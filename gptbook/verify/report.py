"""What checks found: a `Result` for each question, and the `Report` of all of them; nothing prints itself."""

import html
import json
import textwrap
from dataclasses import asdict, dataclass

PASSED, FAILED, DIFFERS, NOT_CHECKED = "passed", "failed", "differs", "not checked"
STATUSES = (PASSED, FAILED, DIFFERS, NOT_CHECKED)
SIGNS = {PASSED: "✓", FAILED: "✗", DIFFERS: "≠", NOT_CHECKED: "–"}


@dataclass(frozen=True)
class Result:
    """The answer to one question: what was measured, what was expected, and the likely cause or a remark, in words.

    `status` is "passed", "failed", "differs" (right, but not what GPT-2 does) or "not checked" (could not be looked at,
    or would mislead; `cause` says why). Raises ValueError for another status.
    """

    name: str
    status: str
    measured: str = ""
    expected: str = ""
    cause: str = ""

    def __post_init__(self):
        if self.status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}, got {self.status!r}")

    @property
    def passed(self) -> bool:
        """True for "passed" alone: neither "differs" nor "not checked" is an answer of yes."""
        return self.status == PASSED

    def __str__(self):
        return "\n".join(_lines((self,)))

    __repr__ = __str__

    def _repr_html_(self):
        return _table((self,))


@dataclass(frozen=True)
class Report:
    """All results of one call, in the order in which they were asked."""

    results: tuple[Result, ...]

    def __post_init__(self):
        object.__setattr__(self, "results", tuple(self.results))

    @property
    def passed(self) -> bool:
        """True if nothing failed. What was not checked is not covered by it: see `not_checked`."""
        return not self.failed

    @property
    def failed(self) -> list[str]:
        """The names of the checks that failed."""
        return self._names(FAILED)

    @property
    def not_checked(self) -> list[str]:
        """The names of the checks that could not be made."""
        return self._names(NOT_CHECKED)

    def _names(self, status: str) -> list[str]:
        return [result.name for result in self.results if result.status == status]

    def __getitem__(self, name: str) -> Result:
        """The result of the check `name`. Raises KeyError for a name that is not in the report."""
        for result in self.results:
            if result.name == name:
                return result
        raise KeyError(f"no check {name!r} in this report: it has {', '.join(r.name for r in self.results)}")

    @property
    def summary(self) -> str:
        """One sentence: how many passed, failed, differ, were not checked."""
        counts = [f"{len(self._names(status))} {status}" for status in STATUSES if self._names(status)]
        if not counts:
            return "nothing was checked"
        return ("nothing failed: " if self.passed else "something failed: ") + ", ".join(counts)

    def __str__(self):
        return "\n".join([*_lines(self.results), "", self.summary])

    __repr__ = __str__

    def _repr_html_(self):
        return _table(self.results, self.summary)

    def to_json(self) -> str:
        """The report as one JSON object: passed, failed, results."""
        content = {"passed": self.passed, "failed": self.failed, "results": [asdict(r) for r in self.results]}
        return json.dumps(content, ensure_ascii=False, indent=1)


def _lines(results) -> list[str]:
    """The results for a terminal: columns aligned, the cause on lines of its own."""
    rows = [(f"{SIGNS[r.status]} {r.status}", r.name, r.measured) for r in results]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
    lines = []
    for row, result in zip(rows, results, strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        expected = f"expected {result.expected}" if result.expected else ""
        lines.append("  ".join([*cells, expected]).rstrip())
        indent = " " * (widths[0] + 2)
        lines += textwrap.wrap(result.cause, 112, initial_indent=indent, subsequent_indent=indent)
    return lines


def _table(results, caption: str = "") -> str:
    """The results for a notebook: text escaped, and classes, not colours, so that the page decides how they look."""
    rows = []
    for result in results:
        sign = f'<span class="verify-sign">{SIGNS[result.status]}</span> {result.status}'
        inner = "".join(f"<td>{html.escape(c)}</td>" for c in (result.measured, result.expected, result.cause))
        head = f'<td class="verify-status">{sign}</td><th scope="row">{html.escape(result.name)}</th>'
        rows.append(f'<tr class="verify-{result.status.replace(" ", "-")}">{head}{inner}</tr>')
    names = "".join(f'<th scope="col">{name}</th>' for name in ("status", "check", "measured", "expected", "remark"))
    top = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    top += f"<thead><tr>{names}</tr></thead>"
    return f'<table class="book-table verify-report">{top}<tbody>{"".join(rows)}</tbody></table>'
