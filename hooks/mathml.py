"""Formulas: TeX to MathML while the site is built, and the one font that draws them.

A page then needs no maths script and reads with JavaScript off.  math-core does the conversion; the font,
STIX Two Math, comes out of the installed package ziamath, cut down to the characters that the book's formulas use.
"""

import hashlib
import html as escapes
import io
import re
import unicodedata
from functools import cache
from importlib import metadata
from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTFont
from math_core import LatexError, LatexToMathML

from dependencies import write_aside

FONT_URI = "assets/fonts/stix-two-math.woff2"  # named in docs/assets/book.css as well
LICENCE_URI = "assets/fonts/stix-two-math-licence.txt"

_converter = LatexToMathML(fancy_error=False)
_FORMULA = re.compile(r'<(?P<tag>span|div) class="arithmatex">(?P<tex>.*?)</(?P=tag)>', re.DOTALL)
_HEADING = re.compile(r"<h([1-6])\b[^>]*>(?P<text>.*?)</h\1>", re.DOTALL)
_MATH = re.compile(r"<math\b.*?</math>", re.DOTALL)
# A formula in a line, alone in emphasis or in a link or not, and what is written close behind it: signs, 's, -th.
_CLOSED = re.compile(
    r"(?P<opened>(?:<(?:em|strong|a)\b[^>]*>)*)(?P<math><math>(?:(?!</math>).)*</math>)(?P<closed>(?:</(?:em|strong|a)>)*)"
    r"""(?P<signs>(?:['’]s\b|[-‑]\w+|[.,;:?!)\]’”"'…%])+)""",
    re.DOTALL,
)
_LONE_LETTER = re.compile(r"<mi>([^<]|&[^;<]+;)</mi>")


class FormulaError(ValueError):
    """A formula that cannot be shown; the message is one line that names the formula and the cause."""


def convert(html: str) -> str:
    r"""The page with each of arithmatex's ``\(...\)`` spans and ``\[...\]`` blocks turned into MathML.

    Raises FormulaError for a formula that does not convert, and for one inside a heading, because the list of
    contents, the page title and the search take a heading's text, where MathML cannot go.
    """
    for heading in _HEADING.finditer(html):
        if formula := _FORMULA.search(heading["text"]):
            raise FormulaError(f"formula {_short(formula['tex'])} stands in a heading: write the heading in words")
    html = _FORMULA.sub(_convert_one, html)
    # A browser may break a line after a formula; what closes the sentence must not open the next line.
    return _CLOSED.sub(_unbroken, html)


def characters(html: str) -> set[str]:
    """Every character that the page's MathML makes a browser draw."""
    found: set[str] = set()
    for math in _MATH.findall(html):
        found.update(escapes.unescape(re.sub(r"<[^>]*>", "", math)))
        # A browser draws a letter that stands alone in <mi> with the italic letter of the mathematical block.
        found.update(filter(None, (_italic(escapes.unescape(m)) for m in _LONE_LETTER.findall(math))))
        if "<msqrt" in math or "<mroot" in math:
            found.add("√")  # no character in the page stands for it
    return found


def font_bytes(characters: set[str], memory: Path | None = None) -> bytes:
    """STIX Two Math as a woff2 file with these characters, their tall and wide variants, and its MATH table.

    The font last made is kept in the folder `memory`, and serves while nothing that made it has changed.
    """
    if memory is None:
        return _font_bytes(frozenset(characters))
    versions = [metadata.version(name) for name in ("fonttools", "brotli", "ziamath")]
    key = repr([sorted(characters), versions, Path(__file__).read_text(encoding="utf-8")])
    path = memory / f"font-{hashlib.sha256(key.encode()).hexdigest()[:24]}.woff2"
    if not path.is_file():
        for old in memory.glob("font-*.woff2"):
            old.unlink(missing_ok=True)
        write_aside(path, _font_bytes(frozenset(characters)))
    return path.read_bytes()


def licence_text() -> str:
    """What the font's licence asks to stand beside the font: its copyright notice and the SIL Open Font License."""
    package = metadata.distribution("fonttools")  # quotes the licence in full, for fonts of its own
    path = next(f for f in package.files if f.name == "LICENSE.external")
    text = path.read_text(encoding="utf-8")
    start = text.index("SIL OPEN FONT LICENSE Version 1.1")
    end = "OTHER DEALINGS IN THE FONT SOFTWARE."
    names = _load_font()["name"]
    notice = f"{names.getDebugName(1)}, cut down to the characters that this site uses.\n{names.getDebugName(0)}\n"
    return f"{notice}{names.getDebugName(13)}\n\n{text[start : text.index(end, start)]}{end}\n"


def _convert_one(match: re.Match) -> str:
    tex = escapes.unescape(match["tex"]).strip()
    block = match["tag"] == "div"
    bare = tex[2:-2].strip() if tex.startswith((r"\(", r"\[")) else tex  # \begin{...} blocks stand without brackets
    if not bare:
        raise FormulaError("a formula is empty: write something between the dollar signs")
    try:
        mathml = _converter.convert_with_local_state(bare, displaystyle=block)
    except LatexError as error:
        raise FormulaError(f"formula {_short(tex)} does not render: {_one_line(error)}") from None
    if "<merror" in mathml:
        raise FormulaError(f"formula {_short(tex)} does not render: its MathML contains an error")
    # A wide formula scrolls inside its own box, which the keyboard must reach to scroll it.
    return f'<div class="formula" tabindex="0">{mathml}</div>' if block else mathml


def _unbroken(match: re.Match) -> str:
    """The match with a span about it, which begins inside of what the match does not close."""
    tags, closing = re.findall("<[^>]*>", match["opened"]), match["closed"].count("<")
    if closing > len(tags):  # words stand before the formula: a span cannot begin among them
        return match[0]
    outer, inner = "".join(tags[: len(tags) - closing]), "".join(tags[len(tags) - closing :])
    return f'{outer}<span class="unbroken">{inner}{match["math"]}{match["closed"]}{match["signs"]}</span>'


def _short(tex: str) -> str:
    tex = _one_line(escapes.unescape(tex))
    return tex if len(tex) <= 90 else tex[:87] + "..."


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


@cache
def _italics() -> dict[str, str]:
    """Letter -> its mathematical italic form, by Unicode's own decompositions."""
    table = {"h": "ℎ"}  # the one that Unicode had before it made the block
    for code in range(0x1D434, 0x1D7CC):
        if unicodedata.name(chr(code), "").startswith("MATHEMATICAL ITALIC"):
            table[chr(int(unicodedata.decomposition(chr(code)).split()[1], 16))] = chr(code)
    return table


def _italic(letter: str) -> str | None:
    return _italics().get(letter)


def _load_font() -> TTFont:
    # By its path: to import ziamath would load all of it, and warn.
    path = metadata.distribution("ziamath").locate_file("ziamath/fonts/STIXTwoMath-Regular.ttf")
    return TTFont(path, recalcTimestamp=False)


@cache
def _font_bytes(characters: frozenset[str]) -> bytes:
    options = subset.Options()
    options.flavor = "woff2"
    options.hinting = False
    options.name_IDs = [0, 1, 2, 3, 4, 5, 6, 13, 14]  # the copyright and licence lines travel with the font
    # ssty: letters drawn for the size of an index; dtls: i and j without their dot under an accent.
    options.layout_features = ["ccmp", "kern", "mark", "mkmk", "ssty", "dtls"]
    font = _load_font()
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=sorted({ord(c) for c in characters} | {0x20}))
    subsetter.subset(font)
    font.flavor = "woff2"
    target = io.BytesIO()
    font.save(target)
    return target.getvalue()
