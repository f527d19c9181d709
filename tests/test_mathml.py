"""Formulas: what a page's TeX becomes, what is refused, and the font that must draw it."""

import html
import io
import re

import pytest
from bs4 import BeautifulSoup
from fontTools.ttLib import TTFont

import mathml

# TeX of the kind that the book writes -> what must stand in the MathML, in reading order.
FORMULAS = {
    r"\frac{Q K^\top}{\sqrt{d_k}}": "QK⊤dk",
    r"\operatorname{softmax}\!\left(\frac{QK^\top}{\sqrt{d_k}} + M\right) V": "softmax(QK⊤dk+M)V",
    r"p(x_t \mid x_{<t})": "p(xt∣x<t)",
    r"M_{ts} = \begin{cases} 0 & s \le t \\ -\infty & s > t \end{cases}": "Mts={0s≤t−∞s>t",
    r"\begin{aligned} a &= b + c \\ &= d \end{aligned}": "a=b+c=d",
    r"\begin{bmatrix} 1 & 0 \\ \tfrac12 & \tfrac12 \end{bmatrix}": "[101212]",
    r"\begin{pmatrix} a \\ b \end{pmatrix}": "(ab)",
    r"\underbrace{W x}_{C \text{ numbers}} + b": "Wx⏟C numbers+b",
    r"X \in \mathbb{R}^{T \times C}": "X∈ℝT×C",
    r"\mathcal{L} = -\frac{1}{T} \sum_{t=1}^{T} \log p_t": "ℒ=−1T∑t=1Tlogpt",
    r"\mathbf{x} \cdot \mathbf{w}": "𝐱⋅𝐰",
    r"\hat{y} = \arg\max_i z_i": "yˆ=argmaxizi",
    r"\bar{x}_t = \frac{1}{t}\sum_{s \le t} x_s": "x¯t=1t∑s≤txs",
    r"\lVert x - \mu \rVert_2 = \sqrt{C}": "‖x−μ‖2=C",
    r"\lfloor 0.9\,n \rfloor": "⌊0.9n⌋",
    r"\varepsilon \to 0,\quad \sigma^2 \approx 1": "ε→0,σ2≈1",
    r"12 L C^2 + \dots": "12LC2+...",
    r"\ln 65 \approx 4.17": "ln65≈4.17",
    r"e^{z_i/\tau} \Big/ \sum_j e^{z_j/\tau}": "ezi/τ/∑jezj/τ",
    r"\blacksquare": "■",
    r"A \odot B \oplus C": "A⊙B⊕C",
    r"s + 1, \dots, s + T": "s+1,...,s+T",
    r"\{x \colon x > 0\}": "{x:x>0}",
}


def inline(tex):
    return f'<p>see <span class="arithmatex">\\({html.escape(tex)}\\)</span>.</p>'


def block(tex):
    return f'<div class="arithmatex">\\[\n{html.escape(tex)}\n\\]</div>'


def visible(text):
    """The text of the formula without blanks and invisible signs."""
    node = BeautifulSoup(text, "html.parser").math
    return "".join(c for c in node.get_text() if c.isprintable() and c not in " \u2061\u2062\u2063\ufe00")


@pytest.mark.parametrize("tex", FORMULAS)
def test_formulas_of_the_books_kind_render(tex):
    """A failure would mean that readers see a formula with parts missing, or that the build refuses a good one."""
    expected = FORMULAS[tex].replace(" ", "")
    for page in (inline(tex), block(tex)):
        converted = mathml.convert(page)
        assert visible(converted) == expected
        assert "arithmatex" not in converted
        assert "merror" not in converted


def test_a_sentence_keeps_what_stands_round_the_formula():
    """A failure would mean that a formula swallows words of its sentence."""
    assert mathml.convert(inline("x")) == '<p>see <span class="unbroken"><math><mi>x</mi></math>.</span></p>'
    assert mathml.convert("<p>no formula, $5</p>") == "<p>no formula, $5</p>"


def test_what_closes_a_sentence_stays_with_its_formula():
    """If this fails, a full stop or a bracket may stand alone at the start of a line."""
    found = mathml.convert(
        '<p>(<span class="arithmatex">\\(T\\)</span>), then <span class="arithmatex">\\(C\\)</span> and</p>'
    )
    assert re.fullmatch(
        r'<p>\(<span class="unbroken"><math>[^,]*</math>\),</span> then <math>.*?</math> and</p>', found
    ), found


M = '<span class="arithmatex">\\(x\\)</span>'


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (f"{M}'s rows", "{}'s"), (f"{M}’s rows", "{}’s"), (f"the {M}-th row", "{}-th"), (f'of "{M}". And', '{}".'),
        (f"{M}% of", "{}%"), (f"{M}… and", "{}…"), (f"<em>{M}</em>. And", "<em>{}</em>."),
        (f"<strong>{M}</strong>.", "<strong>{}</strong>."), (f'<a href="y">{M}</a>, b', '<a href="y">{}</a>,'),
        (f"<em><strong>{M}</strong></em>)", "<em><strong>{}</strong></em>)"), (f"<em>{M}, b</em>.", "{},"),
        (f"<em><strong>{M}</strong>, b</em>.", "<strong>{}</strong>,"),
        # the controls: what begins anew, what a span cannot hold, and a block
        (f"{M} 's", ""), (f"{M} – and", ""), (f'{M} "y"', ""), (f"<em>see {M}</em>.", ""), (f"<b>{M}</b>.", ""),
        ('<div class="arithmatex">\\[x\\]</div>. And', ""),
    ],
)  # fmt: skip
def test_what_is_written_close_behind_a_formula_stays_with_it(written, kept):
    """If this fails, a line may begin with 's or with a full stop; or the page's elements cross each other."""
    found = mathml.convert(f"<p>{written}</p>")
    spans = re.findall('<span class="unbroken">(.*?)</span>', found)
    assert spans == ([kept.replace("{}", "<math><mi>x</mi></math>")] if kept else [])
    open_tags = []
    for end, tag in re.findall(r"<(/?)(\w+)", found):
        assert not end or open_tags.pop() == tag
        open_tags += [] if end else [tag]


def test_a_block_formula_scrolls_in_a_box_of_its_own():
    """A failure would mean that a wide formula pushes the page beyond a narrow window, out of the keyboard's reach."""
    box = BeautifulSoup(mathml.convert(block("x")), "html.parser").find("div", class_="formula")
    assert box["tabindex"] == "0"
    assert box.math["display"] == "block"


def test_an_environment_without_brackets_is_a_block():
    page = mathml.convert(r'<div class="arithmatex">\begin{align*} a &amp;= b \end{align*}</div>')
    assert visible(page) == "a=b"


@pytest.mark.parametrize(
    ("tex", "cause"), [(r"\frac{1}{", "1}"), (r"\notacommand x", "notacommand"), (r"\left( x", "left"), ("", "empty")]
)
def test_a_broken_formula_is_refused_by_name(tex, cause):
    """The negative control: were a broken formula let through, readers would see red TeX on a green build."""
    with pytest.raises(mathml.FormulaError, match=r"\A[^\n]*\Z") as error:
        mathml.convert("<p>good</p>" + inline(tex))
    assert cause in str(error.value) or tex in str(error.value)


def test_an_error_inside_the_mathml_is_refused(monkeypatch):
    """A converter that reports errors inside its result must not slip through."""

    class Sloppy:
        def convert_with_local_state(self, tex, displaystyle):
            return "<math><merror><mtext>oh</mtext></merror></math>"

    monkeypatch.setattr(mathml, "_converter", Sloppy())
    with pytest.raises(mathml.FormulaError, match=r"x\\\) does not render"):
        mathml.convert(inline("x"))


def test_a_formula_in_a_heading_is_refused():
    """Contents, title and search show a heading's text: raw TeX would stand there."""
    page = '<h2 id="a">The <span class="arithmatex">\\(d_k\\)</span> scale</h2>'
    with pytest.raises(mathml.FormulaError, match=r"d_k.* heading"):
        mathml.convert(page)
    assert mathml.convert("<h2>a</h2>" + inline("x") + "<h2>b</h2>")  # a formula between headings is fine


def font_of(page):
    characters = mathml.characters(page)
    return characters, TTFont(io.BytesIO(mathml.font_bytes(characters)))


def test_the_font_has_the_glyphs_that_a_browser_draws():
    """A failure would mean letters from another font in the middle of a formula."""
    page = mathml.convert("".join(map(block, FORMULAS)))
    characters, font = font_of(page)
    cmap = font.getBestCmap()
    drawn = {c for c in characters if c.isprintable() and not c.isspace() and c != "\ufe00"}  # picks a form
    assert {c for c in drawn if ord(c) not in cmap} == set()
    # a lone letter is drawn in italics, whose code point stands nowhere in the page
    assert ord("𝑥") in cmap
    assert ord("𝜇") in cmap
    assert ord("√") in cmap
    assert ord("ж") not in cmap  # the negative control: nobody asked for it
    assert font.flavor == "woff2"


def test_the_font_keeps_what_stretches():
    """A failure would mean small brackets round tall fractions, or formulas without mathematical spacing."""
    font = font_of(mathml.convert(block(r"\left\{ \sqrt{\frac{a}{b}} \right.")))[1]
    assert font["MATH"].table.MathConstants.AxisHeight.Value > 0
    tall = dict(
        zip(
            font["MATH"].table.MathVariants.VertGlyphCoverage.glyphs,
            font["MATH"].table.MathVariants.VertGlyphConstruction,
            strict=True,
        )
    )
    cmap, glyphs = font.getBestCmap(), set(font.getGlyphOrder())
    for sign in "{√":
        construction = tall[cmap[ord(sign)]]
        assert len(construction.MathGlyphVariantRecord) > 2
        parts = [r.VariantGlyph for r in construction.MathGlyphVariantRecord]
        parts += [p.glyph for p in construction.GlyphAssembly.PartRecords]
        assert set(parts) <= glyphs
    assert ord("[") not in cmap


def test_the_font_last_made_serves_until_a_formula_needs_another_character(tmp_path, monkeypatch):
    """A failure would mean seconds more for every build, or a font without the new character."""
    first = mathml.font_bytes({"x"}, tmp_path)
    assert first == mathml.font_bytes({"x"})
    monkeypatch.setattr(mathml, "_font_bytes", lambda characters: b"made anew")
    assert mathml.font_bytes({"x"}, tmp_path) == first
    assert mathml.font_bytes({"x", "y"}, tmp_path) == b"made anew"
    assert len(list(tmp_path.iterdir())) == 1


def test_the_font_is_the_same_bytes_each_time_and_small():
    """A failure would mean that every build publishes another font file, or the whole 300 kB of it."""
    characters = mathml.characters(mathml.convert("".join(map(block, FORMULAS))))
    first = mathml.font_bytes(characters)
    mathml._font_bytes.cache_clear()
    assert mathml.font_bytes(characters | set()) == first
    assert len(first) < 60_000


def test_the_licence_stands_beside_the_font():
    """The font's licence asks for its notice and its own text with each copy."""
    text = mathml.licence_text()
    assert "STIX Fonts Project Authors" in text
    assert "SIL OPEN FONT LICENSE Version 1.1" in text
    assert text.rstrip().endswith("OTHER DEALINGS IN THE FONT SOFTWARE.")
    assert "fontTools" not in text
