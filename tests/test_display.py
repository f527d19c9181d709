"""Display: what a page shows must be what the package holds, and must read in a terminal as well."""

import json
import math
import sys
from types import SimpleNamespace

import pytest

from gptbook import display
from gptbook.ladder import Rung
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


def test_a_matrix_says_its_statuses_in_signs_and_in_words():
    """If this fails, a cell stands in another column than its own, or nobody hears what it says."""
    shown = display.matrix(["no <mask>"], ["causal", "loss"], [["failed", "not checked"]], caption="a & b")
    assert str(shown).splitlines() == ["  1 causal", "  2 loss", "           1  2", "no <mask>  ✗  –"]
    html = shown._repr_html_()
    assert html.index(">causal<") < html.index(">loss<") < html.index('aria-label="failed">✗')
    assert html.index('class="failed"') < html.index('class="not-checked"')
    assert "no &lt;mask&gt;" in html
    assert 'role="region" aria-label="a &amp; b"' in html
    assert "<figcaption>a &amp; b</figcaption>" in html
    assert 'tabindex="0"' in html  # or a keyboard cannot scroll it


@pytest.mark.parametrize(
    ("rows", "cells", "words"),
    [
        ([], [], "one row at least"),
        (["a"], [["passed"]], "2 cells"),
        (["a"], [["passed", "passed"], ["passed", "failed"]], "2 cells"),
        (["a"], [["passed", "perhaps"]], "perhaps"),
    ],
)
def test_a_matrix_that_does_not_fit_is_refused(rows, cells, words):
    with pytest.raises(ValueError, match=words):
        display.matrix(rows, ["x", "y"], cells)


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


def test_rungs_lie_at_their_losses_with_their_names_beside_them():
    """A failure would draw a curve below a rung that it has not reached, or give the rung another's name."""
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="figures need matplotlib, an extra")
    ladder = [Rung("uniform", "little", 4.0), Rung("bigram", "more", 2.5), Rung("bzip2", "a lot", 1.0)]
    figure, ax = display.figure(4, 3)
    ax.set(xlim=(0, 500), ylim=(0.5, 4.5))
    assert display.rungs(ax, ladder) is ax
    assert [tuple(line.get_ydata()) for line in ax.lines] == [(4.0, 4.0), (2.5, 2.5), (1.0, 1.0)]
    assert [text.get_text() for text in ax.texts] == ["uniform", "bigram", "bzip2"]
    figure.canvas.draw()
    right, bottom, height = ax.bbox.x1, ax.bbox.y0, ax.bbox.height
    for rung, line, text in zip(ladder, ax.lines, ax.texts, strict=True):
        across = line.get_transform().transform([(0, rung.loss), (1, rung.loss)])
        assert across[:, 0].tolist() == pytest.approx([ax.bbox.x0, right])  # from side to side, whatever x means
        box = text.get_window_extent()
        assert box.x0 > right
        middle = bottom + height * (rung.loss - 0.5) / 4.0
        assert (box.y0 + box.y1) / 2 == pytest.approx(middle, abs=2)
    pyplot.close(figure)


def test_names_of_near_rungs_do_not_lie_on_each_other():
    """A failure would print two names over one another: the compressor's and the mixed table's are nearly equal."""
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="figures need matplotlib, an extra")
    figure, ax = display.figure(5.2, 2.6)
    ax.set(ylim=(0, 4.8))
    display.rungs(ax, [Rung("mixed runs", "", 1.598), Rung("bzip2", "", 1.564)])
    figure.canvas.draw()
    upper, lower = (text.get_window_extent() for text in ax.texts)
    assert lower.y1 <= upper.y0 + 1
    pyplot.close(figure)


def test_heatmap_writes_only_what_is_not_zero():
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="figures need matplotlib, an extra")
    figure, ax = display.figure(2, 2)
    display.heatmap(ax, [[1.0, 0.0], [0.5, 0.5]], numbers=True)
    assert [text.get_text() for text in ax.texts] == ["1.00", "0.50", "0.50"]
    pyplot.close(figure)


def bars():
    logits = [[0.0, 2.0, 2.0, -1.0], [1.0, 0.0, 0.0, 0.0]]
    return display.next_tokens(["a\n", "<b"], logits, ["x", " ", "<", "\n"], top=3)


def test_next_tokens_are_the_likeliest_of_the_first_prompt():
    """If this fails, the bars that stand without a script show other chances than softmax gives."""
    total = 1 + 2 * math.exp(2) + math.exp(-1)
    shown = bars().bars()
    assert [symbol for symbol, _ in shown] == [" ", "<", "x"]  # of equal ones the lower id first
    assert [p for _, p in shown] == pytest.approx([math.exp(2) / total, math.exp(2) / total, 1 / total])
    assert str(bars()).splitlines()[1].split() == ["␣", f"{math.exp(2) / total:.1%}", "█" * 18]


def test_next_tokens_keep_all_rows_for_the_script_and_no_script_inside():
    """If this fails, the controls have nothing to compute from, or a symbol breaks out of the markup."""
    html = bars()._repr_html_()
    assert "<script" not in html  # the theme runs what it takes for one when it swaps pages
    bs4 = pytest.importorskip("bs4", reason="Beautiful Soup comes with the extra 'site'")
    (element,) = bs4.BeautifulSoup(html, "html.parser").select("next-tokens")
    about = json.loads(element["data-rows"])
    assert about == {
        "prompts": ["a↵", "<b"], "symbols": ["x", " ", "<", "\n"], "top": 3,
        "rows": [[0.0, 2.0, 2.0, -1.0], [1.0, 0.0, 0.0, 0.0]],
    }  # fmt: skip
    items = element.select("ol > li")
    assert [item.code.get_text() for item in items] == ["␣", "<", "x"]
    assert items[0].select_one(".share").get_text() == "45.8 %"
    assert len(element.find_all()) == 2 + 1 + 4 * 3  # p, code, ol; li with code, bar and share


@pytest.mark.parametrize(
    ("prompts", "logits"),
    [([], []), (["a"], []), (["a"], [[1.0]]), (["a", "b"], [[1.0, 2.0]]), (["a"], [[1.0, math.nan]]),
     (["a"], [[1.0, -math.inf]])],
)  # fmt: skip
def test_next_tokens_that_do_not_fit_are_refused(prompts, logits):
    """If this fails, a row of another vocabulary is shown under wrong letters, or NaN as a bar."""
    with pytest.raises(ValueError, match="logits"):
        display.next_tokens(prompts, logits, ["x", "y"])
    assert display.next_tokens(["a"], [[1.0, 2.0]], ["x", "y"]).top == 2


def test_a_file_is_named_after_its_content_and_stays_out_of_readers_notebooks(monkeypatch):
    """If this fails, browsers keep an old table under the new one's name, or a reader's notebook grows by megabytes."""
    one, other = display.Data("table", b"one"), display.Data("table", b"other", "json")
    assert one.name == "table-7692c3ad3540bb80.bin"
    assert one.name == display.Data("table", b"one").name != other.name
    shown = display.table([("a", "1")])
    monkeypatch.delenv("GPTBOOK_PUBLISH", raising=False)
    assert set(display.bundle(shown, one)) == {"text/plain", "text/html"}
    monkeypatch.setenv("GPTBOOK_PUBLISH", "1")
    assert display.bundle(shown, one, other)[display.DATA] == {one.name: "b25l", other.name: "b3RoZXI="}
    assert set(display.bundle(shown)) == {"text/plain", "text/html"}


@pytest.mark.parametrize("words", [("../table",), ("",), ("a/b",), ("Table",), ("table", "a.b"), ("table", "")])
def test_a_file_with_a_name_that_is_no_name_is_refused(words):
    """If this fails, a page could write outside of the folder of its files."""
    with pytest.raises(ValueError, match="name"):
        display.Data(words[0], b"", *words[1:])


def tokenizer(*more: bytes, cut=lambda data: [data[i : i + 1] for i in range(len(data))], special=()):
    """One token a byte, and some more: `cut` says which bytes a text becomes."""
    vocab = [*(bytes([b]) for b in range(256)), *more]
    names = {name: len(vocab) + i for i, name in enumerate(special)}
    whole = [*vocab, *(name.encode() for name in special)]
    return SimpleNamespace(
        vocab=whole, special=names, encode=lambda text: [whole.index(part) for part in cut(text.encode())]
    )


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (b" the", [("␣", "gap"), ("the", "")]),
        (b"\n\n\t", [("↵", "gap"), ("↵", "gap"), ("⇥", "gap")]),
        ("é😀".encode(), [("é😀", "")]),
        (b" \xf0\x9f", [("␣", "gap"), ("F0", "byte"), ("9F", "byte")]),
        (b"\x98a\xd0", [("98", "byte"), ("a", ""), ("D0", "byte")]),
        (b"\xed\xa0\x80", [("ED", "byte"), ("A0", "byte"), ("80", "byte")]),  # a surrogate is no character
        (b"\xc0\x80", [("C0", "byte"), ("80", "byte")]),  # nor is a long way to write NUL
        ("\xa0\u200d\ufeff".encode(), [("U+00A0", "gap"), ("U+200D", "gap"), ("U+FEFF", "gap")]),
        (b"\x00\r", [("U+0000", "gap"), ("U+000D", "gap")]),
        ("e\u0301".encode(), [("e\u0301", "")]),
        ("\u0301x".encode(), [("\u25cc\u0301x", "")]),
        (b"", []),
    ],
)
def test_pieces_of_a_token_show_all_of_its_bytes(token, shown):
    """If this fails, a token looks like another: a blank unseen, or a broken character as a sign for any."""
    assert display.pieces(token) == shown


def test_chips_show_tokens_with_their_ids_and_say_what_cannot_be_read():
    """If this fails, a chip has another token's number, or stays silent about what it shows."""
    bs4 = pytest.importorskip("bs4", reason="Beautiful Soup comes with the extra 'site'")
    parts = [b"<b>", b" a", b"\xf0\x9f", b"\x98\x80\xd0", b"\x96", b" " * 9]
    shown = display.chips(
        "<b> a😀Ж" + " " * 9, {"mine": tokenizer(*parts[:4], parts[5], cut=lambda data: parts)}, live=False
    )
    html = shown._repr_html_()
    assert "<script" not in html
    (element,) = bs4.BeautifulSoup(html, "html.parser").select("token-chips")
    assert element.select_one(".size").get_text() == "16 characters, 20 bytes in UTF-8"
    assert element.section["data-name"] == "mine"
    assert element.select_one(".count").get_text() == "mine: 6 tokens"
    chips = element.select("ol > li")
    assert [chip.small.get_text() for chip in chips] == ["256", "257", "258", "259", "150", "260"]
    assert [chip["class"] for chip in chips] == [["c4"], ["c5"], ["c0"], ["c1"], ["c0"], ["c2"]]
    assert [chip.code.get_text() for chip in chips] == ["<b>", "␣a", "F09F", "9880D0", "96", "␣×9"]
    assert chips[0].code.attrs == {}
    assert [chip.code["aria-label"] for chip in chips[1:]] == [
        "blank a", "byte F0 byte 9F, part of 😀", "byte 98 byte 80 byte D0, part of 😀 and Ж", "byte 96, part of Ж",
        "9 blanks",
    ]  # fmt: skip
    assert [chip.code.get("title") for chip in chips[2:4]] == ["part of 😀", "part of 😀 and Ж"]
    assert str(shown).splitlines()[1] == "mine, 6 tokens: <b>|␣a|F09F|9880D0|96|" + "␣" * 9


def test_live_chips_publish_their_vocabulary_in_the_order_of_its_ids(monkeypatch):
    """If this fails, the browser gives tokens wrong numbers, or finds a special token in plain text."""
    bs4 = pytest.importorskip("bs4", reason="Beautiful Soup comes with the extra 'site'")
    monkeypatch.setenv("GPTBOOK_PUBLISH", "1")
    shown = display.chips("ab", {"gpt2": tokenizer(b"ab", special=["<end>"])}, examples={"one": "1"})
    about = json.loads(bs4.BeautifulSoup(shown._repr_html_(), "html.parser").select_one("token-chips")["data-about"])
    (data,) = [data for _, data in shown.tables.values()]
    assert about == {
        "text": "ab",
        "examples": {"one": "1"},
        "tables": {"gpt2": {"file": data.name, "bytes": 256 * 2 + 3, "count": 257}},
    }
    assert data.content == b"".join(bytes([1, b]) for b in range(256)) + b"\x02ab"
    assert list(shown._repr_mimebundle_()[display.DATA]) == [data.name]
    assert display.DATA not in display.chips("ab", {"gpt2": tokenizer()}, live=False)._repr_mimebundle_()


@pytest.mark.parametrize(
    ("name", "made", "words"),
    [
        ("mine", tokenizer(), "cannot cut a text"),
        ("gpt2", tokenizer(b"ab", cut=lambda data: [b"ab"]), "do not make up the text"),
        ("gpt2", tokenizer(b"x" * 256), "longer than 255 bytes"),
        ("gpt2", tokenizer(b"a"), "comes twice"),
        ("gpt2", SimpleNamespace(vocab=[b"a", b"b", b"c"], encode=lambda text: [0, 1, 2]), "no token of its own"),
        ("gpt2", SimpleNamespace(vocab=[b"<s>", b"abc"], special={"<s>": 0}, encode=lambda text: [1]), "stands before"),
    ],
)
def test_chips_that_would_lie_are_refused(name, made, words):
    """If this fails, the page shows tokens that are not the text's, or numbers that are not the tokens'."""
    with pytest.raises(ValueError, match=words):
        display.chips("abc", {name: made})
    with pytest.raises(ValueError, match="one vocabulary"):
        display.chips("abc", {})


def test_a_sentence_in_a_cell_keeps_a_width_that_can_be_read():
    """A failure would mean that on a phone the words of a sentence stand one under the other."""
    made = display.table([("a", "x" * 41, 7), ("b", "short", 8)])._repr_html_()
    assert made.count('class="long"') == 1
    assert f'<td class="long">{"x" * 41}</td>' in made
