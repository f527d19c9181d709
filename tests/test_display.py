"""Display: what a page shows must be what the package holds, and must read in a terminal as well."""

import sys

import pytest

from gptbook import display
from gptbook.model import GPT, Block


def test_source_is_the_source():
    shown = display.source(Block.forward)
    assert "self.attn(self.ln_1(x))" in str(shown)
    assert shown.title == "gptbook/model.py: Block.forward"
    assert str(display.source(GPT)).startswith("class GPT(nn.Module):")


def test_source_is_escaped_in_html():
    assert "<T>" not in display.Source("<T>", "a < b").code.join(["", ""])
    assert "&lt;T&gt;" in display.Source("<T>", "a < b")._repr_html_()


def test_table_aligns_numbers_to_the_right():
    text = str(display.table([("a", "1,000"), ("bb", "20")], header=("part", "count")))
    assert text.splitlines() == ["part  count", "a     1,000", "bb       20"]
    html = display.table([("a", "12.5 %"), ("b", "−3")], header=("part", "share"), total=True)._repr_html_()
    assert html.count('class="num"') == 3  # header and both rows
    assert html.count('class="total"') == 1


def test_table_escapes_what_it_is_given():
    assert "<b>" not in display.table([("<b>", "1")], header=("x", "y"))._repr_html_()


@pytest.mark.parametrize("rows", [[], [("a", "b"), ("c",)]])
def test_a_table_without_rows_or_with_ragged_ones_is_refused(rows):
    with pytest.raises(ValueError, match="row"):
        display.table(rows, header=("x", "y"))


def test_sample_keeps_line_ends_and_escapes():
    shown = display.sample("a\n<i>b", label="x & y")
    assert str(shown) == "x & y\na\n<i>b"
    assert "a\n&lt;i&gt;b" in shown._repr_html_()
    assert "x &amp; y" in shown._repr_html_()


def test_blanks_and_line_ends_are_made_visible():
    assert display.characters("a \n") == ["a", "␣", "↵"]


def test_a_figure_without_matplotlib_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # what an import of a missing module finds
    with pytest.raises(ImportError, match="pip install"):
        display.figure()


def test_heatmap_writes_only_what_is_not_zero():
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="figures need matplotlib, an extra")
    figure, ax = display.figure(2, 2)
    display.heatmap(ax, [[1.0, 0.0], [0.5, 0.5]], numbers=True)
    assert [text.get_text() for text in ax.texts] == ["1.00", "0.50", "0.50"]
    pyplot.close(figure)
