"""The last look at the built site: references that lead nowhere, and other hosts."""

import pytest

import links

HOME = "https://example.org/book/"
RIGHT = """<!doctype html><link rel="canonical" href="https://example.org/book/a/">
<link rel="stylesheet" href="../style.css"><link rel="icon" href="data:image/png;base64,AA">
<h1 id="top">A</h1><a href="#top">x</a><a href="..">home</a><a href="../#there">x</a><a href="/book/a/">x</a>
<a href="https://example.com/">other</a><a href="mailto:a@example.com">m</a>
<img src="../p%20q.png" alt=""><svg><path id="c1"/><use href="#c1"/><g clip-path="url(#c1)"/></svg>"""


@pytest.fixture
def site(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "index.html").write_text(RIGHT, encoding="utf-8")
    (tmp_path / "index.html").write_text('<p id="there">home</p>', encoding="utf-8")
    (tmp_path / "style.css").write_text("a { background: url('p q.png') } /* url(none.png) */", encoding="utf-8")
    (tmp_path / "p q.png").write_bytes(b"")
    return tmp_path


def test_right_site_passes(site):
    """If this fails, the check accuses a site in which all is well."""
    assert links.check(site, HOME) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ('<a href="b/">', "b/ leads nowhere"),
        ('<a href="../b.html#x">', "../b.html#x leads nowhere"),
        ('<a href="#bottom">', "#bottom names a place"),
        ('<a href="../#bottom">', "../#bottom names a place"),
        ('<a href="https://example.org/book/none/">', "leads nowhere"),
        ('<a href="/elsewhere/">', "leads out of the site"),
        ('<img src="../none.png" alt="x">', "leads nowhere"),
        ('<img src="../p%20q.png">', "no alt text"),
        ('<img srcset="../p%20q.png 1x, ../none.png 2x" alt="x">', "leads nowhere"),
        ('<img src="https://example.com/x.png" alt="x">', "another host"),
        ('<script src="//example.com/x.js"></script>', "another host"),
        ('<link rel="stylesheet" href="https://example.com/x.css">', "another host"),
        ('<link rel="preconnect" href="https://example.com">', "another host"),
        ('<link rel="shortcut icon" href="https://example.com/x.png">', "another host"),
        ('<iframe src="https://example.com/"></iframe>', "another host"),
        ("<style>@import 'https://example.com/x.css';</style>", "another host"),
        ('<p style="background: url(https://example.com/x.png)">', "another host"),
        ('<svg><use href="#none"/></svg>', "#none names a place"),
        ('<svg><g clip-path="url(#none)"/></svg>', "#none names a place"),
    ],
)
def test_each_fault_is_found(site, wrong, message):
    """If this fails, the site may be published with this fault."""
    (site / "a" / "index.html").write_text(RIGHT + wrong, encoding="utf-8")
    (problem,) = links.check(site, HOME)
    assert problem.startswith("a/index.html: ")
    assert message in problem


def test_style_sheets_are_read_too(site):
    """If this fails, a font may come from another host."""
    (site / "style.css").write_text('@font-face { src: url("https://example.com/f.woff2"), url(f.woff2) }', "utf-8")
    assert len(links.check(site, HOME)) == 2


def test_what_pages_say_is_remembered_by_their_content(site, monkeypatch):
    """If this fails, a build reads every page again, or takes a page for what it was before an edit."""
    memory, read = site / "memory.json", []
    feed = links._Document.feed
    monkeypatch.setattr(links._Document, "feed", lambda self, html: read.append(html) or feed(self, html))
    assert links.check(site, HOME, memory) == links.check(site, HOME, memory) == []
    assert len(read) == 2
    page = site / "a" / "index.html"
    page.write_text(RIGHT + '<a href="b/">', encoding="utf-8")
    for _ in range(2):
        assert len(links.check(site, HOME, memory)) == 1
    assert len(read) == 3
    page.write_text(RIGHT, encoding="utf-8")
    (site / "index.html").write_text("<p>home</p>", encoding="utf-8")  # the place that the other names
    assert len(links.check(site, HOME, memory)) == 1
    memory.write_text("{", encoding="utf-8")
    assert len(links.check(site, HOME, memory)) == 1
