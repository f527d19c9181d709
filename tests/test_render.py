"""The HTML of code cells: cut out of what mkdocs-jupyter really makes of a notebook, then read back."""

import warnings

import nbformat
import pytest
from bs4 import BeautifulSoup
from mkdocs_jupyter.nbconvert2 import nb2html
from nbformat import v4

import render

CLAIM, VERDICT = "application/vnd.gptbook.claim+json", "application/vnd.gptbook.verdict+json"
DRAWING = """<?xml version="1.0" encoding="utf-8"?>
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="80pt" viewBox="0 0 80 40">
 <metadata><date>2026-01-01</date></metadata>
 <defs><style type="text/css">*{stroke-linejoin: round}</style></defs>
 <g id="figure_1">
  <path id="patch" d="M 0 0" style="fill: #ffffff; stroke: #000000"/>
  <clipPath id="clip"><rect/></clipPath>
  <g clip-path="url(#clip)"><use xlink:href="#patch" style="fill: #1f77b4"/></g>
  <text style="font-size: 10px">step</text>
  <text style="fill: #ffffff">0.50</text>
  <text style="fill: #111111">0.25</text>
 </g>
</svg>"""


def stream(text, name="stdout"):
    return v4.new_output("stream", name=name, text=text)


def shown(kind="display_data", **data):
    mimes = {"text": "text/plain", "html": "text/html", "svg": "image/svg+xml", "claim": CLAIM, "verdict": VERDICT}
    return v4.new_output(kind, data={mimes[k]: v for k, v in data.items()})


def error(name="ValueError", value="k must be at least 1: got 0"):
    trace = ["\x1b[31m-----\x1b[39m", "File /somewhere/secret/model.py:3", f"\x1b[31m{name}\x1b[39m: {value}"]
    return v4.new_output("error", ename=name, evalue=value, traceback=trace)


@pytest.fixture(scope="module")
def convert(tmp_path_factory):
    """Runs real cells through the real converter: (source, metadata, outputs) ... -> (HTML by index, warnings)."""
    path = tmp_path_factory.mktemp("render") / "page.ipynb"

    def run(*cells):
        made = [v4.new_markdown_cell("# Title")]
        made += [
            v4.new_code_cell(source, metadata=metadata, outputs=list(outputs)) for source, metadata, *outputs in cells
        ]
        nb = v4.new_notebook(cells=made)
        nb.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(nb, path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nbconvert, of the records that nobody shows
            content = nb2html(str(path))
        found = []
        return {
            i: BeautifulSoup(h, "html.parser") for i, h in render.code_cells(content, nb, found.append).items()
        }, found

    return run


def test_code_and_printed_text_come_out_whole(convert):
    """A failure would mean code or numbers missing from a page, or angle brackets eaten."""
    source = "def f(x):\n    return x < 1 and '<b>'\n\n\nf(0)"
    html, found = convert((source, {}, stream("a < b & c\n  indented\n"), shown("execute_result", text="tensor([1])")))
    assert list(html) == [1]  # the index among all cells, prose included
    cell = html[1]
    assert cell.select_one(".highlight pre > code").get_text() == source + "\n"
    assert cell.select_one(".highlight .k").get_text() == "def"
    assert cell.select_one(".output pre").get_text() == "a < b & c\n  indented\ntensor([1])\n"
    assert found == []


def test_the_converters_own_weight_is_left_behind(convert):
    """A failure would bring 590 KB of styles, prompts and a second copy of the code to every page."""
    html, _ = convert(("x = 1", {"tags": ["anything"]}, stream("1\n")))
    assert len(str(html[1])) < 700
    for leftover in ("script", "style", "clipboard-copy", ".jp-InputPrompt", ".cell-tag", ".clipboard-copy-txt"):
        assert html[1].select(leftover) == []
    assert "In [" not in html[1].get_text()


def test_wide_text_is_in_reach_of_the_keyboard(convert):
    html, _ = convert(("x", {}, stream("0" * 500), shown(html="<pre>wide</pre>", text="wide")))
    assert all(pre.get("tabindex") == "0" for pre in html[1].select(".output pre"))
    assert len(html[1].select(".output pre")) == 2
    assert html[1].code["tabindex"] == "0"


def test_claims_and_verdicts_are_dropped_and_their_neighbours_joined(convert):
    """A failure would show the build's records to readers, or tear one print into many boxes."""
    verdict = shown(verdict={"name": "a", "passed": True}, text="passed", html="<p>well done</p>")
    html, found = convert(("x", {}, stream("one\n"), shown(claim={"name": "n"}), stream("two\n"), verdict))
    assert html[1].select_one(".output pre").get_text() == "one\ntwo\n"
    assert len(html[1].select(".output")) == 2
    assert html[1].select_one(".output.html p").get_text() == "well done"
    assert "vnd.gptbook" not in str(html[1])
    assert found == []


def test_a_figure_is_part_of_the_page(convert):
    """A failure would mean a picture without words for those who cannot see it, or one that is black on black."""
    cell = (
        "plot()",
        {"alt": 'Loss "falls" & flattens', "caption": "Loss of *two* runs, see `train`, $x<1$"},
        shown(svg=DRAWING),
    )
    html, found = convert(cell)
    figure = html[1].figure
    svg = figure.svg
    assert found == []
    assert (svg["role"], svg["aria-label"]) == ("img", 'Loss "falls" & flattens')
    assert figure.figcaption.em.get_text() == "two"
    assert figure.figcaption.code.get_text() == "train"
    assert figure.figcaption.select_one("span.arithmatex").get_text() == r"\(x<1\)"  # mathml.py's to convert
    text = str(svg)
    assert "viewbox" in text.lower()
    assert "<style" not in text  # its selector * would reach every drawing of the page
    assert "2026-01-01" not in text
    # black is the page's ink, white areas let the page through, other colours stay
    assert "stroke: currentColor" in text
    assert "fill: none" in svg.path["style"]
    assert "#1f77b4" in text
    step, white, dark = svg.find_all("text")
    assert step["fill"] == "currentColor"
    assert "#ffffff" in white["style"]
    assert "#111111" in dark["style"]


def test_ids_of_figures_are_unique_on_the_page_and_still_meet(convert):
    """A failure would draw one figure with the clip paths of another."""
    two = {"alt": ["first", "second"], "caption": ["", "The second."]}
    html, found = convert(
        ("a", two, shown(svg=DRAWING), shown(svg=DRAWING)), ("b", {"alt": "third"}, shown(svg=DRAWING))
    )
    figures = [figure for cell in html.values() for figure in cell.select("figure")]
    assert [f.svg["aria-label"] for f in figures] == ["first", "second", "third"]
    assert [bool(f.figcaption) for f in figures] == [False, True, False]
    assert found == []
    ids = [node["id"] for f in figures for node in f.select("[id]")]
    assert len(ids) == 9
    assert len(set(ids)) == 9
    for figure in figures:
        own = {node["id"] for node in figure.select("[id]")}
        assert figure.use["xlink:href"].removeprefix("#") in own
        assert figure.select_one("[clip-path]")["clip-path"].removeprefix("url(#").removesuffix(")") in own


@pytest.mark.parametrize(
    ("metadata", "figures", "words"),
    [
        ({}, 1, "figure 1 has no alternative text"),
        ({"alt": "  "}, 1, "figure 1 has no alternative text"),
        ({"alt": "only one"}, 2, "figure 2 has no alternative text"),
        ({"alt": ["one", "two"]}, 1, "2 alt texts for 1 figures"),
        ({"alt": "one", "caption": ["a", "b"]}, 1, "2 caption texts for 1 figures"),
        ({"alt": "words for nothing"}, 0, "1 alt texts for 0 figures"),
    ],
)
def test_a_figure_without_words_is_a_warning(convert, metadata, figures, words):
    """The negative control of alternative texts: a warning fails the strict build."""
    _, found = convert(("plot()", metadata, *[shown(svg=DRAWING)] * figures))
    assert [words in line for line in found] == [True]
    assert "plot()" in found[0]


def test_tables_stand_in_a_box_that_scrolls_with_their_numbers_to_the_right(convert):
    """A failure would set figures ragged, or words to the right."""
    rows = (("embedding", "8,320", "1.0%"), ("blocks", "791,552", "≈ 97%"), ("none", "–", "3.1e-5"))
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    table = f"<table><thead><tr><th>part</th><th>n</th><th>share</th></tr></thead><tbody>{body}</tbody></table>"
    html, _ = convert(("t", {}, shown("execute_result", html=table, text="t")))
    box = html[1].select_one(".output.html")
    assert box["tabindex"] == "0"
    for row in box.select("tr"):
        assert ["num" in cell.get("class", []) for cell in row.find_all(["td", "th"])] == [False, True, True]


def test_a_table_that_marks_its_own_numbers_is_left_alone(convert):
    table = '<table><tr><td class="num">1</td><td>2</td></tr></table>'
    html, _ = convert(("t", {}, shown(html=table, text="t")))
    assert str(html[1].table) == table


def test_tags_fold_code_and_solutions_and_hide_set_up(convert):
    """A failure would give solutions away, or show set-up that means nothing to readers."""
    html, found = convert(
        ("show()", {"tags": ["hide-input"]}, stream("seen\n")),
        ("answer = 42", {"tags": ["solution"]}, stream("passed\n")),
        ("setup()", {"tags": ["hidden"]}, stream("no\n")),
        ("setup()", {"tags": ["remove-cell"]}, stream("no\n")),
        ("", {}),
    )
    code = html[1].select_one("details.code")
    assert code.summary.get_text() == "Code"
    assert "show()" in code.get_text()
    assert "seen" not in code.get_text()
    assert "seen" in html[1].get_text()
    solution = html[2].select_one("details.solution")
    assert solution.summary.get_text() == "Solution"
    assert not solution.has_attr("open")
    assert solution.get_text().count("answer = 42") == 1
    assert "passed" in solution.get_text()
    assert html[2].get_text() == solution.get_text()  # nothing stands outside
    assert [str(html[i]) for i in (3, 4, 5)] == ["", "", ""]
    assert found == []


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ([stream("careful\n", "stderr")], "stderr: careful"),
        ([stream("10%\r20%\n")], "carriage return"),
        ([error()], "fails without"),
        ([v4.new_output("display_data", data={"application/x-unknown": "1"})], "application/x-unknown"),
    ],
)
@pytest.mark.parametrize("tags", [[], ["hidden"]])
def test_what_must_not_be_published_is_a_warning(convert, outputs, words, tags):
    """The negative control of outputs; a hidden cell's warnings count too."""
    _, found = convert(("work()", {"tags": tags}, *outputs))
    assert [words in line for line in found] == [True]
    assert "\n" not in found[0]


def test_an_error_on_purpose_is_shown_as_its_last_line(convert):
    """A failure would print folders of the building machine, or hide the lesson."""
    html, found = convert(("bad()", {"tags": ["raises-exception"]}, error()))
    assert found == []
    assert html[1].select_one(".output.error").get_text().strip() == "ValueError: k must be at least 1: got 0"
    assert "secret" not in str(html[1])


def test_colours_of_a_terminal_become_classes_of_the_page(convert):
    html, _ = convert(("x", {}, stream("\x1b[31mred\x1b[0m plain\n")))
    assert html[1].select_one(".ansi-red-fg").get_text() == "red"
    assert "\x1b" not in str(html[1])


def test_a_cell_that_the_converter_lost_is_an_error(convert):
    """A failure would put outputs under the code of another cell."""
    nb = v4.new_notebook(cells=[v4.new_code_cell("a"), v4.new_code_cell("b")])
    content = '<div class="jupyter-wrapper"><div class="jp-Notebook"><div class="jp-CodeCell"></div></div></div>'
    with pytest.raises(ValueError, match="1 code cells of 2"):
        render.code_cells(content, nb, print)
