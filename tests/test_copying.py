"""The memorisation meter: how much is copied, and from which page, against slower ways that share no code."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gptbook import copying, corpora
from gptbook.copying import longest_copied, passage, place

few = st.text(alphabet="ab \n", max_size=12)

PAGES = """# One

Words of *one*.

## A part

```
# no heading
## nor this
```

After the code, a word.

### A part

Deeper.

# Two `x`, [linked](x.py) { #top }

Words of two.

## Über *uns*: 1 & 2

The end.
"""


def by_hand(sample, text):
    """Every piece of both, the longest first."""
    pieces = {text[i:j] for i in range(len(text)) for j in range(i + 1, len(text) + 1)}
    for length in range(len(sample), 0, -1):
        for start in range(len(sample) - length + 1):
            if sample[start : start + length] in pieces:
                return length, start
    return 0, 0


@given(few, few)
def test_the_longest_span_is_the_longest(sample, text):
    """A failure would make the meter of page 14 read too much or too little."""
    assert longest_copied(sample, text) == by_hand(sample, text)


@pytest.mark.parametrize("wrong", [
    lambda s, t: (max(n for n in range(len(s) + 1) if s[:n] in t), 0),
    lambda s, t: (max((len(word) for word in s.split() if word in t), default=0), 0),
])  # fmt: skip
def test_a_wrong_meter_would_be_seen(wrong):
    """The negative control: the oracle refuses a meter of beginnings only, and one of words."""
    assert any(wrong(*case) != by_hand(*case) for case in [("ab ab", "b a"), ("a b", "xa by")])


@pytest.mark.parametrize(
    ("words", "page", "heading", "anchor"),
    [
        ("Words of *one*", "One", "One", "one"),
        ("# no heading", "One", "A part", "a-part"),
        ("After the code", "One", "A part", "a-part"),
        ("Deeper", "One", "A part", "a-part_1"),
        ("Words of two", "Two x, linked", "Two x, linked", "top"),
        ("The end", "Two x, linked", "Über uns: 1 & 2", "uber-uns-1-2"),
    ],
)
def test_a_place_is_the_heading_above(monkeypatch, words, page, heading, anchor):
    """A failure would lead a reader to another paragraph than the one that was copied."""
    monkeypatch.setattr(copying, "_folders", lambda: {"One": "", "Two x, linked": "02_two/"})
    at = place(PAGES, PAGES.index(words))
    assert (at.page, at.heading) == (page, heading)
    assert at.address == f"../{'' if page == 'One' else '02_two/'}#{anchor}"


def test_a_page_that_is_not_there_has_no_address():
    """A failure would publish a link that leads nowhere, or end the page that shows it."""
    at = place("before\n# Nowhere\n\nwords", 20)
    assert (at.page, at.address) == ("Nowhere", "")
    assert place("before", 3) == copying.Place("", "", "")
    shown = passage("some words", "# Nowhere\n\nwords")
    assert "<a" not in shown._repr_html_()
    assert "Nowhere" in shown._repr_html_()


def test_every_heading_of_the_book_is_found_as_markdown_finds_it(monkeypatch):
    """A failure would break links to copied paragraphs. The oracle is the library that makes the site's anchors."""
    markdown = pytest.importorskip("markdown", reason="the site's extra: pip install -e '.[site]'")
    monkeypatch.setattr(corpora, "BOOK_LENGTH", 10**9)  # the whole of it, not what a model reads
    text = corpora.load("book").text
    starts = [match.start() for match in re.finditer(r"^# ", copying._FENCED.sub(_blank, text), re.MULTILINE)]
    assert len(starts) == len([*copying.DOCS.glob("*.py"), *copying.DOCS.glob("*.md")])
    checked = 0
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        page = text[start:end]
        extensions = ["toc", "attr_list", "fenced_code", "admonition", "def_list", "md_in_html"]
        anchors = re.findall(r'<h\d id="([^"]+)"', markdown.Markdown(extensions=extensions).convert(page))
        clear = copying._FENCED.sub(_blank, page)
        for match, anchor in zip(re.finditer(r"^#+ ", clear, re.MULTILINE), anchors, strict=True):
            at = place(text, start + match.end())
            assert at.address.endswith(f"/#{anchor}"), at
            folder = at.address.removeprefix("../").partition("#")[0].strip("/") or "index"
            assert (copying.DOCS / f"{folder}.py").exists() or (copying.DOCS / f"{folder}.md").exists()
            checked += 1
    assert checked > 50


def _blank(match):
    return re.sub(r"[^\n]", " ", match[0])


def test_a_passage_shows_the_span_and_where_it_is_from(monkeypatch):
    """A failure would mark another piece than the copied one, or let a page's text work as HTML."""
    monkeypatch.setattr(copying, "_folders", lambda: {"One": "01_one/"})
    text = "# One\n\n## Signs & more\n\na < b holds here\n"
    shown = passage("so, a < b holds, they say", text, around=4, label="After 5 steps")
    assert (shown.before, shown.span, shown.after) == ("so, ", "a < b holds", ", th")
    assert "<mark>a &lt; b holds</mark>" in shown._repr_html_()
    assert '<a href="../01_one/#signs-more">One, under “Signs &amp; more”</a>' in shown._repr_html_()
    assert str(shown) == "After 5 steps: One, under “Signs & more”\nso, [a < b holds], th"


def test_nothing_copied_has_no_source():
    """If this fails, a page names the source of a text that shares no character with the book."""
    shown = passage("一丁", "# A page\n\nwords")
    assert (shown.span, shown.where) == ("", copying.Place("", "", ""))
