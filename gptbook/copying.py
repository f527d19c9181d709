"""How much of a text stands word for word in another one, and where in the book that is.

It leaves out copies with a letter changed: one different character ends a span.
"""

import html
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"

_FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#{1,6})[ \t]+([^\n]+?)[ \t]*$", re.MULTILINE)


def longest_copied(sample: str, text: str) -> tuple[int, int]:
    """The length of the longest piece of `sample` that stands somewhere in `text`, and where in `sample` it begins.

    Of several the first; (0, 0) if the two share no character.
    """
    length, start = 0, 0
    for i in range(len(sample)):
        # Only what is longer than the best so far is worth a search; each search that succeeds raises the best.
        while i + length < len(sample) and sample[i : i + length + 1] in text:
            length, start = length + 1, i
    return length, start


@dataclass(frozen=True)
class Place:
    """A spot of the book's text: the page it stands on, the heading above it, and its address as seen from a page."""

    page: str
    heading: str
    address: str

    @property
    def name(self) -> str:
        """Page and heading in words."""
        return self.page if self.heading == self.page else f"{self.page}, under “{self.heading}”"


def place(text: str, position: int) -> Place:
    """Where character number `position` of the corpus "book" stands in the book.

    Every page begins with a heading of level 1, and no other heading has it. The address is that of the built site, and
    empty where no file of the docs folder begins with that heading.
    """
    clear = _FENCED.sub(lambda fence: re.sub(r"[^\n]", " ", fence[0]), text)  # "# ..." in code is no heading
    page, heading, used = "", "", set()
    for match in _HEADING.finditer(clear):
        if match.start() > position:
            break
        if match[1] == "#":
            page, used = _words(match[2]), set()
        heading = _words(match[2])
        anchor = named[1] if (named := re.search(r"\{[^}]*#([\w-]+)[^}]*\}$", match[2])) else _anchor(heading, used)
        used.add(anchor)
    if not page:
        return Place("", "", "")
    folder = _folders().get(page)
    return Place(page, heading, "" if folder is None else f"../{folder}#{anchor}")


def _words(heading: str) -> str:
    """A heading as it reads: without marks of emphasis and code, links and attributes."""
    heading = re.sub(r"\s*\{[^}]*\}$", "", heading)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")


def _anchor(heading: str, used: set[str]) -> str:
    """The name that Markdown's table of contents gives a heading: tests hold it against the original."""
    plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    anchor = base = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
    number = 0
    while anchor in used:
        number += 1
        anchor = f"{base}_{number}"
    return anchor


def _folders() -> dict[str, str]:
    """Title of a page -> its folder in the built site."""
    found = {}
    for path in (*DOCS.glob("*.py"), *DOCS.glob("*.md")):
        if title := re.search(r"^# (?!%%)([^\n]+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            found[_words(title[1])] = "" if path.stem == "index" else f"{path.stem}/"
    return found


@dataclass(frozen=True)
class Passage:
    """A copied span with a little of the sample on both sides, and the place in the book that it was copied from."""

    before: str
    span: str
    after: str
    where: Place
    label: str = ""

    def __str__(self):
        label = f"{self.label}: " if self.label else ""
        return f"{label}{self.where.name}\n{self.before}[{self.span}]{self.after}"

    __repr__ = __str__

    def _repr_html_(self):
        name = html.escape(self.where.name)
        link = f'<a href="{html.escape(self.where.address)}">{name}</a>' if self.where.address else name
        label = f"{html.escape(self.label)}: " if self.label else ""
        before, span, after = map(html.escape, (self.before, self.span, self.after))
        return (
            f'<figure class="book-sample"><figcaption>{label}{link}</figcaption>'
            f"<pre>{before}<mark>{span}</mark>{after}</pre></figure>"
        )


def passage(sample: str, text: str, around: int = 40, label: str = "") -> Passage:
    """The longest piece of `sample` that stands in `text`, the corpus "book", with the place where it stands first."""
    length, start = longest_copied(sample, text)
    end = start + length
    where = place(text, text.find(sample[start:end])) if length else Place("", "", "")
    return Passage(sample[max(0, start - around) : start], sample[start:end], sample[end : end + around], where, label)
