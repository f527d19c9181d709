"""The one module that knows the HTML of mkdocs-jupyter 0.26 and nbconvert.

mkdocs-jupyter converts the executed notebook; from its page this module cuts the code and the outputs of each code
cell and leaves the rest (prompts, copy buttons of its own, 590 KB of styles) behind.  Figures become inline SVG that
follows the reader's colour scheme.  To put another converter in its place, replace this file.
"""

import hashlib
import json
import re
from collections.abc import Callable
from html import escape
from pathlib import Path

from bs4 import BeautifulSoup, Tag
from markdown import Markdown

import dependencies

MADE_BY = dependencies.made_by(__file__, "mkdocs-jupyter", "nbconvert", "pygments", "markdown")
HIDDEN = {"remove-cell", "hidden"}  # set-up that runs and is not shown
SVG = "image/svg+xml"
PRIVATE = "application/vnd.gptbook."  # records for the build (claims, verdicts), never shown
_NUMBER = re.compile(r"[-+−±~≈]?[\d,.  ]*\d(?:e[-+]?\d+)?\s?(?:%|[a-zµ]{0,2}/?s|×|x|[kMG]?B)?", re.IGNORECASE)

Warn = Callable[[str], None]


def code_cells(content_html: str, nb, warn: Warn) -> dict[int, str]:
    """Index of each code cell in nb -> its final HTML; "" for a hidden cell.

    content_html is what mkdocs-jupyter made of nb, in which every output must still stand.  warn is called with one
    line for each thing that must not be published: a figure without alternative text, text on stderr, a carriage
    return, an error that no tag announces.
    """
    soup = BeautifulSoup(content_html[content_html.index('<div class="jupyter-wrapper">') :], "html.parser")
    nodes = soup.select(".jp-Notebook > .jp-CodeCell")
    cells = [(i, cell) for i, cell in enumerate(nb.cells) if cell.cell_type == "code"]
    if len(nodes) != len(cells):
        raise ValueError(f"mkdocs-jupyter shows {len(nodes)} code cells of {len(cells)}: remove nothing by its options")
    return {i: _cell(i, cell, node, warn) for (i, cell), node in zip(cells, nodes, strict=True)}


class Kept:
    """The HTML of a notebook's code cells from an earlier build: the conversion is the dearest part of a warm one.

    It serves as long as those cells and their places, their outputs included, this module, and the versions of the
    converters are the same.
    """

    def __init__(self, path: Path, nb):
        code = [(i, c) for i, c in enumerate(nb.cells) if c.cell_type == "code"]  # prose is none of its business
        cells = [(i, c.source, c.metadata, c.get("outputs")) for i, c in code]  # ids differ each time
        self.path, self.key = path, hashlib.sha256(json.dumps([cells, MADE_BY]).encode()).hexdigest()

    def cells(self) -> dict[int, str] | None:
        """What was kept of this very notebook, else None."""
        try:
            return {int(i): text for i, text in dependencies.kept(self.path, self.key)["cells"].items()}
        except (ValueError, KeyError, AttributeError):
            return None  # none yet, or damaged: it is made anew

    def keep(self, cells: dict[int, str]) -> None:
        """Keep the HTML for the next build."""
        dependencies.keep(self.path, self.key, cells=cells)


def _cell(index: int, cell, node: Tag, warn: Warn) -> str:
    tags = set(cell.metadata.get("tags", []))
    outputs = _outputs(index, cell, node, warn)
    if tags & HIDDEN or not (cell.source.strip() or outputs):
        return ""
    code = _code(node) if cell.source.strip() else ""
    if "solution" in tags:
        return _details("solution", "Solution", f'<div class="cell">{code}{outputs}</div>')
    if "hide-input" in tags:
        code = _details("code", "Code", code)
    return f'<div class="cell">{code}{outputs}</div>'


def _details(kind: str, summary: str, content: str) -> str:
    return f'<details class="{kind}"><summary>{summary}</summary>{content}</details>'


def _code(node: Tag) -> str:
    """The coloured source, dressed as the theme's own code blocks are, so that its copy button finds it."""
    lines = node.select_one(".highlight-ipynb pre").decode_contents().removeprefix("<span></span>").rstrip("\n")
    return f'<div class="language-python highlight"><pre><code tabindex="0">{lines}\n</code></pre></div>'


def _outputs(index: int, cell, node: Tag, warn: Warn) -> str:
    areas = node.select(".jp-OutputArea-child")
    figures = _Figures(index, cell, warn)
    parts: list[tuple[str, str]] = []  # (kind, HTML); text that follows text joins its box
    for output, area in zip(cell.outputs, areas, strict=True):
        data = {mime: value for mime, value in output.get("data", {}).items() if not mime.startswith(PRIVATE)}
        if output.output_type == "stream":
            if output.name == "stderr":
                warn(f"{_where(cell)} writes to stderr: {_short(output.text)}")
            if "\r" in output.text:
                warn(f"{_where(cell)} prints a carriage return (a progress bar?): {_short(output.text)}")
            parts.append((output.name, _inner(area.pre)))
        elif output.output_type == "error":
            if "raises-exception" not in cell.metadata.get("tags", []):
                warn(f'{_where(cell)} fails without tags=["raises-exception"]: {output.ename}: {_short(output.evalue)}')
            # The last line alone: the lines above it name folders of the machine that built the site.
            parts.append(("error", f"<strong>{escape(output.ename)}</strong>: {escape(output.evalue)}"))
        elif SVG in data:
            parts.append(("figure", figures.next(data[SVG])))
        elif "text/html" in data:
            parts.append(("html", _html(area.select_one(".jp-OutputArea-output"))))
        elif "text/plain" in data:
            parts.append(("stdout", _inner(area.pre)))
        elif data:
            warn(f"{_where(cell)} has an output that no page can show: {', '.join(data)}")
    figures.finish()
    return "".join(_box(kind, text) for kind, text in _joined(parts) if text.strip())


def _joined(parts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    joined: list[tuple[str, str]] = []
    for kind, text in parts:
        if joined and kind == joined[-1][0] and kind in ("stdout", "stderr"):
            text = joined.pop()[1].rstrip("\n") + "\n" + text
        joined.append((kind, text))
    return joined


def _box(kind: str, content: str) -> str:
    if kind == "figure":
        return content
    if kind == "html":
        return f'<div class="output html" tabindex="0" data-search-exclude>{content}</div>'
    text = content.strip("\n")
    return f'<div class="output {kind}" data-search-exclude><pre tabindex="0">{text}\n</pre></div>'


def _inner(pre: Tag) -> str:
    return pre.decode_contents()


def _html(area: Tag) -> str:
    for table in area.select("table:not(:has(.num))"):
        _align_numbers(table)
    for pre in area.select("pre"):
        pre["tabindex"] = "0"
    return area.decode_contents().strip()


def _align_numbers(table: Tag) -> None:
    """Gives class "num" to each column whose cells, heading aside, are numbers, so that the style can set it right."""
    rows = [row.find_all(["td", "th"], recursive=False) for row in table.select("tr")]
    body = [row for row in rows if any(cell.name == "td" for cell in row)]
    for column in range(max(map(len, rows), default=0)):
        values = [row[column].get_text(strip=True) for row in body if column < len(row)]
        if any(values) and all(not value or value in "–—-" or _NUMBER.fullmatch(value) for value in values):
            for row in rows:
                if column < len(row):
                    row[column]["class"] = [*row[column].get("class", []), "num"]


class _Figures:
    """The figures of one cell: `alt` and `caption` are one text, or a list with one text for each figure."""

    def __init__(self, index: int, cell, warn: Warn):
        self.index, self.cell, self.warn, self.count = index, cell, warn, 0
        self.alts, self.captions = _listed(cell.metadata.get("alt")), _listed(cell.metadata.get("caption"))

    def next(self, svg: str) -> str:
        alt, caption = _item(self.alts, self.count), _item(self.captions, self.count)
        self.count += 1
        if not alt.strip():
            self.warn(f'{_where(self.cell)}: figure {self.count} has no alternative text: add alt="..." to the cell')
        picture = inline_svg(svg, f"cell-{self.index}-{self.count}-", alt)
        caption = f"<figcaption>{inline_markdown(caption)}</figcaption>" if caption else ""
        return f'<figure class="figure" data-search-exclude>{picture}{caption}</figure>'

    def finish(self) -> None:
        for name, texts in (("alt", self.alts), ("caption", self.captions)):
            if len(texts) > self.count:
                self.warn(f"{_where(self.cell)}: {len(texts)} {name} texts for {self.count} figures")


def inline_svg(svg: str, prefix: str, alt: str) -> str:
    """An SVG file as an element of the page: its ids prefixed, its black and white left to the page's colours."""
    svg = svg[svg.index("<svg") :]
    # matplotlib's <style> speaks to every drawing of the page; book.css says the same to figures alone.
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r"""\b(id=["'])""", rf"\g<1>{prefix}", svg)
    svg = re.sub(r"""(href=["']#|url\(#)""", rf"\g<1>{prefix}", svg)
    svg = re.sub(r"<[^/!?][^>]*>", lambda tag: _recolour(tag[0]), svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(" ".join(alt.split()))}"', 1).strip()


def _recolour(tag: str) -> str:
    """Pure black becomes the page's ink and white areas let the page shine through; all other colours stay.

    Letters keep a colour that the drawing gave them, white included (numbers on dark cells); a near-black such as
    #111111 stays dark in both schemes.
    """
    tag = re.sub(r"#000000\b|#000\b|\bblack\b", "currentColor", tag)
    if tag.startswith("<text"):
        return tag if "fill" in tag else tag.replace("<text", '<text fill="currentColor"', 1)
    return re.sub(r"(\bfill(?::\s*|=[\"']))(?:#ffffff|#fff|white)\b", r"\g<1>none", tag)


def inline_markdown(text: str) -> str:
    """One line of Markdown (emphasis, code, links, $formulas$) as HTML without its paragraph."""
    converter = Markdown(
        extensions=["pymdownx.arithmatex"], extension_configs={"pymdownx.arithmatex": {"generic": True}}
    )
    return converter.convert(" ".join(text.split())).removeprefix("<p>").removesuffix("</p>")


def _listed(value: str | list[str] | None) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def _item(texts: list[str], index: int) -> str:
    return texts[index] if index < len(texts) else ""


def _where(cell) -> str:
    return f"the cell that begins {_short(cell.source)!r}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."
