"""The ledger: what each page says at its foot of the numbers it checked, and the page that lists them all."""

import html
from collections import Counter
from datetime import date

MARK = "<div data-ledger></div>"  # where the list goes on its page

KINDS = {
    "exact": ("Exact", "The value is equal to what was expected, to the last digit."),
    "tolerance": ("Within a tolerance", "The value lies in the range beside it, which leaves room for rounding."),
    "statistical": (
        "From random runs", "The value depends on chance or on the machine, and lies in the range beside it."
    ),
    "recorded": ("Recorded only", "Computed, and quoted in the text. Nothing was expected of it."),
}  # fmt: skip


def kind(claim: dict) -> str:
    """Which part of the ledger a claim belongs to."""
    return "recorded" if claim["expected"] is None else claim["kind"]


def foot(claims: list[dict], versions: dict[str, str], machine: str, when: str, ledger: str) -> str:
    """The line at the foot of a page, as HTML; `when` is a day as YYYY-MM-DD, `ledger` the address of the list."""
    counts = Counter(map(kind, claims))
    checked = len(claims) - counts["recorded"]
    parts = [
        f"{counts[name]} {words}"
        for name, words in (
            ("exact", "exactly"),
            ("tolerance", "within a tolerance"),
            ("statistical", "in random runs"),
        )
        if counts[name]
    ]
    said = []
    if checked:
        kinds = f": {', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else ""
        said.append(f"{_numbers(checked)} on this page {'was' if checked == 1 else 'were'} checked{kinds}")
    if count := counts["recorded"]:
        more = _numbers(count, "more ") if checked else f"{_numbers(count)} on this page"
        said.append(f"{more} {'was' if count == 1 else 'were'} computed")
    what = ". ".join(said)
    day = date.fromisoformat(when)
    where = f"with Python {versions['python']} and PyTorch {versions['torch']}, on {day.day} {day:%B %Y}" + (
        f", on {machine}" if machine else ""
    )
    return f'<p class="book-ledger"><a href="{html.escape(ledger)}">{what}.</a> The code ran {html.escape(where)}.</p>'


def _numbers(count: int, more: str = "") -> str:
    return f"{count:,} {more}{'number' if count == 1 else 'numbers'}"


def tables(claims: list[dict], titles: dict[str, tuple[str, str]]) -> str:
    """Every claim, by kind and in the order of the book, as HTML; `titles` is page -> name and address."""
    parts = []
    for name, (title, words) in KINDS.items():
        chosen = [claim for claim in claims if kind(claim) == name]
        if not chosen:
            continue
        rows = "".join(_row(claim, titles) for claim in chosen)
        expected = "" if name == "recorded" else "<th>expected</th>"
        head = f"<thead><tr><th>claim</th><th>value</th>{expected}<th>page</th></tr></thead>"
        parts.append(
            f'<h2 id="{name}">{title}: {len(chosen):,}</h2><p>{words}</p>'
            f'<table class="book-table ledger">{head}<tbody>{rows}</tbody></table>'
        )
    return "".join(parts)


def _row(claim: dict, titles: dict[str, tuple[str, str]]) -> str:
    shown = [_shown(claim["value"])] + ([] if claim["expected"] is None else [_expected(claim)])
    cells = [f"<code>{_breakable(claim['name'])}</code>", *map(html.escape, shown)]
    name, address = titles.get(claim["page"], (claim["page"], ""))
    cells.append(f'<a href="{html.escape(address)}">{html.escape(name)}</a>' if address else html.escape(name))
    whole = ' class="whole"' if not isinstance(claim["value"], str) else ""
    return f"<tr{whole}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _breakable(name: str) -> str:
    return html.escape(name).replace("_", "_<wbr>")


def _shown(value) -> str:
    """A value in few characters: numbers to four digits or more, texts cut short."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"
    line = " ".join(value.split())
    return f"“{line}”" if len(line) <= 40 else f"“{line[:39]}…”"


def _expected(claim: dict) -> str:
    expected = claim["expected"]
    if isinstance(expected, list):
        low, high = expected
        return (
            f"≤ {_shown(high)}"
            if low is None
            else f"≥ {_shown(low)}"
            if high is None
            else f"{_shown(low)} to {_shown(high)}"
        )
    return _shown(expected) + (f" ± {claim['tolerance']:.2g}" if claim["tolerance"] is not None else "")
