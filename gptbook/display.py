"""How pages show things: source code, tables, samples of text, and figures that read on white and in the dark."""

import base64
import hashlib
import html
import inspect
import itertools
import json
import math
import os
import re
import textwrap
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path

DATA = "application/vnd.gptbook.data+json"  # file name -> content in base64, from a page to the build
BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#3b82c4", "#d9730d", "#2f9e63", "#d64550", "#8a63d2", "#808890"


@dataclass(frozen=True)
class Source:
    """The source of one object of the package, highlighted in a notebook, plain elsewhere."""

    title: str
    code: str

    def __str__(self):
        return self.code

    __repr__ = __str__

    def _repr_html_(self):
        try:
            from pygments import highlight
            from pygments.formatters import HtmlFormatter
            from pygments.lexers import PythonLexer
        except ImportError:
            shown = f"<pre>{html.escape(self.code)}</pre>"
        else:
            shown = highlight(self.code, PythonLexer(), HtmlFormatter(cssclass="highlight"))
        return f'<div class="book-source"><p class="book-source-title">{html.escape(self.title)}</p>{shown}</div>'


def source(thing) -> Source:
    """The source of a class or function of the package, under the name of its file."""
    thing = inspect.unwrap(thing)
    file = Path(inspect.getsourcefile(thing))
    return Source(
        f"{file.parent.name}/{file.name}: {thing.__qualname__}", textwrap.dedent(inspect.getsource(thing)).rstrip()
    )


LONG = 40  # characters from which on a cell is a sentence, and keeps a width that can be read on a phone


@dataclass(frozen=True)
class Table:
    """Rows under a header; numbers are set to the right, the last row in bold where `total` is true."""

    header: tuple
    rows: tuple
    caption: str = ""
    total: bool = False

    def __str__(self):
        cells = [[str(cell) for cell in row] for row in (self.header, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        numeric = [all(map(_is_number, column)) for column in zip(*cells[1:], strict=True)] or [False] * len(widths)
        lines = (
            "  ".join(c.rjust(w) if n else c.ljust(w) for c, w, n in zip(row, widths, numeric, strict=True)).rstrip()
            for row in cells
        )
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self):
        numeric = [all(_is_number(str(c)) for c in column) for column in zip(*self.rows, strict=True)]

        def line(row, tag, last=False):
            kinds = (
                ' class="num"' if n else ' class="long"' if len(str(c)) > LONG else ""
                for c, n in zip(row, numeric, strict=True)
            )
            inner = "".join(f"<{tag}{k}>{html.escape(str(c))}</{tag}>" for c, k in zip(row, kinds, strict=True))
            return f'<tr class="total">{inner}</tr>' if last else f"<tr>{inner}</tr>"

        body = [line(row, "td", self.total and i == len(self.rows) - 1) for i, row in enumerate(self.rows)]
        caption = f"<caption>{html.escape(self.caption)}</caption>" if self.caption else ""
        head = f"<thead>{line(self.header, 'th')}</thead>" if any(self.header) else ""
        return f'<table class="book-table">{caption}{head}<tbody>{"".join(body)}</tbody></table>'


def _is_number(cell: str) -> bool:
    digits = cell.strip().strip("−+-~≈<>%").replace(",", "").replace(".", "").replace("e-", "").replace(" ", "")
    return digits.isdigit() or cell.strip() in ("", "–", "—")


def table(rows, header=(), caption="", total=False) -> Table:
    """A table of rows (sequences of equal length); `total` marks the last row. ValueError for ragged rows."""
    rows = tuple(tuple(row) for row in rows)
    if not rows:
        raise ValueError("a table needs at least one row")
    header = tuple(header) or ("",) * len(rows[0])
    if any(len(row) != len(header) for row in rows):
        raise ValueError(f"every row needs {len(header)} cells, as many as the header")
    return Table(header, rows, caption, total)


STATUSES = {"passed": "·", "failed": "✗", "differs": "≠", "not checked": "–"}
"""The sign of each status of a report in the cell of a matrix."""


@dataclass(frozen=True)
class Matrix:
    """Rows against columns, a status in each cell; on the site in a box of its own that scrolls, its heads in view."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    caption: str = ""

    def __str__(self):
        width = max(map(len, self.rows))
        lines = [f"{i:>3} {column}" for i, column in enumerate(self.columns, 1)]
        lines.append(" " * width + "".join(f"{i:>3}" for i in range(1, len(self.columns) + 1)))
        for row, cells in zip(self.rows, self.cells, strict=True):
            lines.append(row.ljust(width) + "".join(f"{STATUSES[cell]:>3}" for cell in cells))
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self):
        head = "".join(f'<th scope="col"><span>{html.escape(column)}</span></th>' for column in self.columns)
        body = []
        for row, cells in zip(self.rows, self.cells, strict=True):
            # A sign is drawn, and the word is read out: a cross has many names.
            signs = ((cell, f'<span role="img" aria-label="{cell}">{STATUSES[cell]}</span>') for cell in cells)
            inner = "".join(f'<td class="{cell.replace(" ", "-")}">{sign}</td>' for cell, sign in signs)
            body.append(f'<tr><th scope="row">{html.escape(row)}</th>{inner}</tr>')
        caption = html.escape(self.caption)
        return (
            f'<figure class="book-matrix"><div tabindex="0" role="region" aria-label="{caption or "A table"}">'
            f'<table class="matrix"><thead><tr><td></td>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
            + (f"<figcaption>{caption}</figcaption></figure>" if caption else "</figure>")
        )


def matrix(rows, columns, cells, caption="") -> Matrix:
    """A matrix of statuses, "passed", "failed", "differs" or "not checked": `cells` has a list of them for each row.

    Raises ValueError for rows that do not fit, or for another status.
    """
    rows, columns, cells = tuple(rows), tuple(columns), tuple(map(tuple, cells))
    if not rows or len(cells) != len(rows) or any(len(line) != len(columns) for line in cells):
        raise ValueError(f"a matrix needs a line of {len(columns)} cells for each row, and one row at least")
    odd = sorted({cell for line in cells for cell in line} - STATUSES.keys())
    if odd:
        raise ValueError(f"a cell is one of {', '.join(STATUSES)}, got {odd[0]!r}")
    return Matrix(rows, columns, cells, caption)


@dataclass(frozen=True)
class Sample:
    """A piece of text as somebody wrote it, line by line."""

    text: str
    label: str = ""

    def __str__(self):
        return f"{self.label}\n{self.text}" if self.label else self.text

    __repr__ = __str__

    def _repr_html_(self):
        label = f"<figcaption>{html.escape(self.label)}</figcaption>" if self.label else ""
        return f'<figure class="book-sample">{label}<pre>{html.escape(self.text)}</pre></figure>'


def sample(text: str, label: str = "") -> Sample:
    """Show a generated text, with a label that says whose it is."""
    return Sample(text, label)


def characters(text: str) -> list[str]:
    """The characters of a text as labels for an axis: blanks, line ends and tabs made visible."""
    return [{" ": "␣", "\n": "↵", "\t": "⇥"}.get(character, character) for character in text]


def readable(text: str) -> str:
    """A text, or a token's piece of one, with its blanks, line ends and tabs made visible."""
    return "".join(characters(text))


@dataclass(frozen=True)
class NextTokens:
    """Bars of the likeliest next tokens after some prompts, with controls where the page has its script.

    Without it, and in print, the bars of the first prompt stand, at temperature 1. docs/assets/next-tokens.js reads the
    attribute `data-rows`, draws the same bars, and computes them anew as the reader moves a control.
    """

    prompts: tuple[str, ...]
    rows: tuple[tuple[float, ...], ...]
    symbols: tuple[str, ...]
    top: int

    def bars(self) -> list[tuple[str, float]]:
        """(symbol, chance) of the likeliest tokens after the first prompt, of equal ones the lower id first."""
        row = self.rows[0]
        weights = [math.exp(logit - max(row)) for logit in row]
        order = sorted(range(len(row)), key=lambda i: -row[i])[: self.top]
        return [(self.symbols[i], weights[i] / math.fsum(weights)) for i in order]

    def __str__(self):
        lines = [f"after {self.prompts[0]!r}:"]
        lines += [f"{readable(s)}  {p:6.1%}  {'█' * round(40 * p)}".rstrip() for s, p in self.bars()]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self):
        prompts = [readable(prompt) for prompt in self.prompts]
        about = {"prompts": prompts, "symbols": self.symbols, "rows": self.rows, "top": self.top}
        bars = share_bars(prompts[0], [(readable(symbol), p) for symbol, p in self.bars()])
        # An attribute, and not a script: the theme runs what it takes for one when it swaps pages.
        return f'<next-tokens data-rows="{html.escape(json.dumps(about))}">{bars}</next-tokens>'


def share(p: float) -> str:
    """A chance in percent, with one decimal."""
    return f"{100 * p:.1f} %" if p >= 0.0005 else "< 0.1 %"


def share_bars(prompt: str, bars) -> str:
    """The picture inside <next-tokens>: pairs (token, chance) as bars, all names as they are to be read."""
    items = "".join(
        f'<li style="--p: {p:.6f}"><code>{html.escape(symbol)}</code><span class="bar"></span>'
        f'<span class="share">{html.escape(share(p))}</span></li>'
        for symbol, p in bars
    )
    about = f"The likeliest tokens after <code>{html.escape(prompt)}</code>, at temperature 1."
    return f'<p class="about">{about}</p><ol role="list">{items}</ol>'


def next_tokens(prompts, logits, symbols, top: int = 15) -> NextTokens:
    """Bars of the `top` likeliest tokens after each prompt, from its row of logits (V,), one logit for each symbol.

    Logits are kept to 4 decimals. Raises ValueError where the rows do not fit, or hold something that is not finite.
    """
    rows = tuple(tuple(round(float(logit), 4) for logit in row) for row in logits)
    if not rows or len(rows) != len(prompts) or any(len(row) != len(symbols) for row in rows):
        raise ValueError(f"needs a row of {len(symbols)} logits for each prompt, and one prompt at least")
    if not all(math.isfinite(logit) for row in rows for logit in row):
        raise ValueError("the logits hold NaN or inf: the model's weights or inputs are broken")
    return NextTokens(tuple(prompts), rows, tuple(symbols), min(top, len(symbols)))


@dataclass(frozen=True)
class Data:
    """A file for the scripts of a page, too large for an attribute: the build publishes it as assets/data/NAME.

    The name ends in the content's hash: a changed file is another file, and no cache hands out the old one. Raises
    ValueError for a stem or suffix that is no part of a file name.
    """

    stem: str
    content: bytes = field(repr=False)
    suffix: str = "bin"

    def __post_init__(self):
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", self.stem) or not re.fullmatch(r"[a-z0-9]+", self.suffix):
            raise ValueError(f"{self.stem!r}, {self.suffix!r}: a file's name is of small letters, digits, - and _")

    @property
    def name(self) -> str:
        return f"{self.stem}-{hashlib.sha256(self.content).hexdigest()[:16]}.{self.suffix}"


def bundle(shown, *files: Data) -> dict:
    """What a notebook stores of something shown: its text, its HTML and, where the build asks for them, its files.

    For `_repr_mimebundle_`. In a reader's notebook, which has no site to put them in, the files stay away.
    """
    made = {"text/plain": str(shown), "text/html": shown._repr_html_()}
    if files and os.environ.get("GPTBOOK_PUBLISH"):
        made[DATA] = {file.name: base64.b64encode(file.content).decode() for file in files}
    return made


EXAMPLES = {
    "English": "A token is often a word, sometimes a piece of a word: antidisestablishmentarianism.",
    "German": "Die Straßenbahnhaltestelle liegt vor der Donaudampfschifffahrtsgesellschaft.",
    "Russian": "Достопримечательности города видны с набережной.",
    "digits": "1 + 12 + 123 + 1234 + 12345 = 13715; 3.14159265",
    "blanks": "four    blanks,\ta tab,\n\n\nthree line ends, and more blanks:            ",
    "code": "def square(x):\n    if x is None:\n        return 0\n    return x ** 2\n",
    "emoji": "😀 👍🏽 👩‍👩‍👧 ☕ naïve café 你好",
}
"""Texts to begin with, by the names of their buttons."""

SPLITS = ("gpt2", "r50k_base", "cl100k_base", "o200k_base")
"""The vocabularies whose way to cut a text into chunks docs/assets/token-chips.js knows."""

_GAPS = {" ": ("␣", "blank"), "\n": ("↵", "line end"), "\t": ("⇥", "tab")}  # sign, and what is heard
_MOST_SIGNS = 8  # of the same kind in a row; more are counted


@dataclass(frozen=True)
class Chips:
    """The tokens of a text as chips with their ids, in several vocabularies; on the site, of the reader's own text too.

    docs/assets/token-chips.js reads the attribute `data-about`, puts controls above the chips, loads the tables when
    the reader first types, and encodes in the browser. Where no script runs, the chips of `text` stand.
    """

    text: str
    tokens: dict[str, list[tuple[bytes, int]]]  # vocabulary -> (bytes, id) of each token of the text
    tables: dict[str, tuple[int, Data]]  # vocabulary -> how many tokens it has, and their bytes
    examples: dict[str, str]

    def __str__(self):
        lines = []
        for name, tokens in self.tokens.items():
            shown = "|".join("".join(sign for sign, _ in pieces(token)) for token, _ in tokens)
            lines.append(f"{name}, {_many(len(tokens), 'token')}: {shown}")
        return "\n".join([f"{_size(self.text)}:", *lines])

    __repr__ = __str__

    def _repr_html_(self):
        tables = {
            name: {"file": data.name, "bytes": len(data.content), "count": count}
            for name, (count, data) in self.tables.items()
        }
        about = {"text": self.text, "tables": tables, "examples": self.examples}
        sections = "".join(
            f'<section data-name="{html.escape(name)}"><p class="count"><b>{html.escape(name)}</b>: '
            f'{_many(len(tokens), "token")}</p><ol role="list">{"".join(self._chips(tokens))}</ol></section>'
            for name, tokens in self.tokens.items()
        )
        return (
            f'<token-chips data-about="{html.escape(json.dumps(about))}"><p class="size">{_size(self.text)}</p>'
            f'{sections}<p class="legend">␣ is a blank, ↵ a line end, ⇥ a tab. A box holds bytes, in base 16, of a '
            "character that is split between tokens.</p></token-chips>"
        )

    def _chips(self, tokens):
        """The HTML of each chip; the script makes the same."""
        ends, end = [], 0  # of the characters, in bytes
        for character in self.text:
            end += len(character.encode())
            ends.append(end)
        start = at = 0
        for token, id in tokens:
            stop, split = start + len(token), []
            while at < len(ends) and ends[at] <= start:
                at += 1
            for i in range(at, len(ends)):
                begin = ends[i - 1] if i else 0
                if begin >= stop:
                    break
                if begin < start or ends[i] > stop:
                    split.append(self.text[i])
            start = stop
            yield f'<li class="c{id % 6}">{_code(token, split)}<small>{id}</small></li>'

    def _repr_mimebundle_(self, include=None, exclude=None):
        return bundle(self, *(data for _, data in self.tables.values()))


def pieces(token: bytes) -> list[tuple[str, str]]:
    """What a token shows, (sign, kind) for each of its parts: kind is "" for text, "gap" for blanks and all else that
    is not seen, "byte" for a byte that is no whole character, in hexadecimal.
    """
    found, at = [], 0
    while at < len(token):
        for size in range(1, 5):
            try:
                character = token[at : at + size].decode()
                break
            except UnicodeDecodeError:
                character, size = "", 1
        at += size
        if not character:
            sign, kind = f"{token[at - 1]:02X}", "byte"
        elif character in _GAPS:
            sign, kind = _GAPS[character][0], "gap"
        elif unicodedata.category(character)[0] in "CZ" or "\ufe00" <= character <= "\ufe0f":
            sign, kind = f"U+{ord(character):04X}", "gap"
        else:
            sign, kind = character, ""
        if kind == "" and found and found[-1][1] == "":
            sign = found.pop()[0] + sign
        elif kind == "" and unicodedata.category(character)[0] == "M":
            sign = "\u25cc" + sign  # a mark that stands on nothing
        found.append((sign, kind))
    return found


def _code(token: bytes, split: list[str]) -> str:
    """A token as it is seen, and in words where they differ; `split` are the characters of which it has a part."""
    shown, heard, parts = "", [], pieces(token)
    for (sign, kind), group in itertools.groupby(parts):
        n = len(list(group))
        if kind == "gap":
            many = f"{sign}×{n}" if n > _MOST_SIGNS else sign * n
            shown += f'<span class="gap">{many}</span>'
            name = next((name for other, name in _GAPS.values() if other == sign), sign)
            heard.append(name if n == 1 else f"{n} {name}s")
        elif kind == "byte":
            shown += f'<span class="byte">{sign}</span>' * n
            heard += [f"byte {sign}"] * n
        else:
            shown += html.escape(sign)
            heard.append(sign)
    if all(kind == "" for _, kind in parts):
        return f"<code>{shown}</code>"
    words, title = " ".join(heard), ""
    if split:
        title = f"part of {' and '.join(split)}"
        words += f", {title}"
        title = f' title="{html.escape(title)}"'
    return f'<code role="img" aria-label="{html.escape(words)}"{title}>{shown}</code>'


def _size(text: str) -> str:
    return f"{_many(len(text), 'character')}, {_many(len(text.encode()), 'byte')} in UTF-8"


def _many(number: int, unit: str) -> str:
    return f"{number:,} {unit}{'s' * (number != 1)}"


def chips(text: str, vocabularies, examples=None, live: bool = True) -> Chips:
    """Chips of the tokens of a text; `vocabularies` is a dictionary from name to tokenizer.

    A tokenizer has `encode(text)` and `vocab`, the bytes of each id; `special` names ids that no plain text gives. With
    `live`, the reader's own text is encoded on the site: only for names in SPLITS, and ordinary tokens numbered from 0.
    Raises ValueError where the tokens do not make up the text, or a vocabulary cannot be published.
    """
    if not vocabularies:
        raise ValueError("chips need one vocabulary at least")
    tokens, tables = {}, {}
    for name, tokenizer in vocabularies.items():
        tokens[name] = [(tokenizer.vocab[id], id) for id in tokenizer.encode(text)]
        if b"".join(token for token, _ in tokens[name]) != text.encode():
            raise ValueError(f"{name}: the tokens do not make up the text: was it encoded with this vocabulary?")
        if live:
            tables[name] = _table(name, tokenizer)
    return Chips(text, tokens, tables, dict(EXAMPLES if examples is None else examples) if live else {})


def _table(name, tokenizer) -> tuple[int, Data]:
    """How many ordinary tokens there are, and their bytes in the order of their ids, each after its length."""
    if name not in SPLITS:
        raise ValueError(f"{name}: the page cannot cut a text for it, only for {', '.join(SPLITS)}: pass live=False")
    special = set(getattr(tokenizer, "special", {}).values())
    ordinary = [token for id, token in enumerate(tokenizer.vocab) if token and id not in special]
    if tokenizer.vocab[: len(ordinary)] != ordinary:
        raise ValueError(f"{name}: a special token, or none, stands before an ordinary one: pass live=False")
    if not set(ordinary).issuperset(bytes([b]) for b in range(256)) or len(set(ordinary)) != len(ordinary):
        raise ValueError(f"{name}: a byte has no token of its own, or a token comes twice: pass live=False")
    if max(map(len, ordinary)) > 255:
        raise ValueError(f"{name}: a token is longer than 255 bytes: pass live=False")
    content = b"".join(bytes([len(token)]) + token for token in ordinary)
    return len(ordinary), Data(f"vocab-{name}", content)


def figure(width: float = 5.2, height: float = 2.8, columns: int = 1, rows: int = 1, **settings):
    """A figure of the book's style, width and height in inches: returns what `plt.subplots` returns.

    Raises ImportError saying how to install matplotlib, which the package itself can do without.
    """
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError:
        raise ImportError("figures need matplotlib, which is not installed: pip install -e '.[site]'") from None

    plt.rcParams.update(_STYLE)
    return plt.subplots(rows, columns, figsize=(width, height), layout="constrained", **settings)


def heatmap(ax, matrix, rows=None, columns=None, numbers: bool = False, title: str = "", low=0.0, high=None):
    """Draw a matrix (rows down, columns across) on an axis, darker for more, its numbers inside where asked.

    `low` and `high` are the ends of the colour scale; `high` is the largest entry where it is not given. A scale with 0
    inside it is red below 0 and blue above.
    """
    matrix = [[float(value) for value in row] for row in matrix]
    high = max(max(row) for row in matrix) if high is None else high
    ax.imshow(
        matrix,
        cmap=_red_to_blue() if low < 0 < high else _blues(),
        vmin=low,
        vmax=high or 1.0,
        aspect="equal",
        interpolation="none",
    )
    for axis, labels, size in ((ax.yaxis, rows, len(matrix)), (ax.xaxis, columns, len(matrix[0]))):
        axis.set_ticks(range(size), labels if labels is not None else range(size))
    ax.grid(False)
    ax.tick_params(length=0)
    ax.xaxis.tick_top()
    for side in ax.spines.values():
        side.set_visible(False)
    if numbers:
        for i, row in enumerate(matrix):
            for j, value in enumerate(row):
                if value != 0:
                    # White on the dark half of the scale, the page's own text colour on the pale half.
                    colour = "white" if (value - low) / ((high or 1.0) - low) > 0.5 else "black"
                    ax.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8)
    if title:
        ax.set_title(title, fontsize=10)
    return ax


def rungs(ax, ladder):
    """Draw the loss ladder across an axis whose y is a loss in nats: a dotted line for every rung, named beside it."""
    losses = [rung.loss for rung in ladder]
    for rung in ladder:
        ax.axhline(rung.loss, color=GREY, linewidth=1, linestyle=":", zorder=0)
        # Beside the axis, where no curve runs; the names of two near ones make way for each other.
        above, below = (any(0 < sign * (loss - rung.loss) < 0.2 for loss in losses) for sign in (1, -1))
        ax.annotate(
            rung.name, (1, rung.loss), xytext=(4, 0), xycoords=ax.get_yaxis_transform(), textcoords="offset points",
            ha="left", va="top" if above else "bottom" if below else "center", fontsize=8, color="black",
            annotation_clip=False,
        )  # fmt: skip
    return ax


def _blues():
    from matplotlib.colors import LinearSegmentedColormap

    # From nothing to a strong blue: a zero shows the page itself, white or dark.
    return LinearSegmentedColormap.from_list("book", [(0.16, 0.43, 0.71, 0.06), (0.16, 0.43, 0.71, 1.0)])


def _red_to_blue():
    from matplotlib.colors import LinearSegmentedColormap

    ends = [(0.78, 0.24, 0.18, 1.0), (0.5, 0.5, 0.5, 0.06), (0.16, 0.43, 0.71, 1.0)]
    return LinearSegmentedColormap.from_list("book-signed", ends)


_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gptbook",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "axes.axisbelow": True,
    "lines.linewidth": 1.8,
}
