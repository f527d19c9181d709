"""Every page of the built site, as a reader's browser shows it: light and dark, on a phone and on a desk.

`faults` looks at a page as it stands in the browser and says in words what is wrong with it; the tests on small
sabotaged pages at the end show that it sees each thing that it is there to see.
"""

import html
import json
import os
import re
import runpy
from importlib import resources, util

import pytest
from reading import SITE, missing, paths

if reason := missing():
    if os.environ.get("GPTBOOK_SITE_REQUIRED"):
        raise RuntimeError(reason)  # where the site must be looked at, a skip is a failure
    pytest.skip(reason, allow_module_level=True)

PAGES = paths()
AXE = util.find_spec("axe_playwright_python") is not None
each_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.strip("/") or "home")
each_scheme = pytest.mark.parametrize("scheme", ["light", "dark"])

# Runs in the page: a list of faults, each one line.
EXAMINE = r"""
() => {
  const faults = [];
  const say = (text, node) => faults.push(node ? `${text}: ${node.outerHTML.slice(0, 120)}` : text);
  const article = document.querySelector("article") ?? document.body;
  for (const details of article.querySelectorAll("details")) details.open = true;

  // nothing wider than the window
  const wide = document.documentElement.scrollWidth - window.innerWidth;
  if (wide > 0) {
    const held = (e) =>
      e !== document.documentElement && e !== document.body &&
      (getComputedStyle(e).overflowX !== "visible" || held(e.parentElement));
    const culprits = [...document.body.querySelectorAll("*")]
      .filter((e) => e.getBoundingClientRect().right > window.innerWidth + 1 && !held(e.parentElement))
      .map((e) => `${e.tagName.toLowerCase()}.${e.className}`);
    say(`${wide} px wider than the window: ${culprits.slice(0, 6).join(", ")}`);
  }

  // no source that should have been turned into something else
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const source = [
    [/\$/, "raw $"], [/\\[([]/, "raw TeX bracket"], [/\{\{|\}\}/, "unfilled claim"], [/^\s*(!!!|\?\?\?)/, "raw box"],
  ];
  while (texts.nextNode()) {
    const node = texts.currentNode;
    if (node.parentElement.closest("code, pre, .output, script, style, noscript, textarea, math, svg")) continue;
    for (const [pattern, name] of source)
      if (pattern.test(node.data)) say(`${name} in "${node.data.trim().slice(0, 80)}"`);
  }
  if (/\$|\\\(/.test(document.title)) say(`raw TeX in the title "${document.title}"`);

  // formulas
  for (const math of article.querySelectorAll("math")) {
    const box = math.getBoundingClientRect();
    if (!(box.width > 0 && box.height > 0)) say("a formula without extent", math);
    if (math.querySelector("merror")) say("a formula with an error", math);
  }

  // figures
  for (const picture of article.querySelectorAll("img, figure svg, figure canvas")) {
    if (picture.parentElement.closest("svg")) continue;
    const words = picture.getAttribute("alt") ?? picture.getAttribute("aria-label");
    if (!words?.trim()) say("a picture without words", picture);
    const box = picture.getBoundingClientRect();
    if (!(box.width > 0 && box.height > 0)) say("a picture without extent", picture);
  }

  // outputs
  for (const pre of article.querySelectorAll("pre")) {
    if (pre.closest(".highlight")) continue;
    if (/Traceback \(most recent call last\)/.test(pre.textContent)) say("a traceback", pre);
    if (/site-packages|\/tmp\/|\/home\//.test(pre.textContent)) say("a folder of the building machine", pre);
  }
  for (const box of article.querySelectorAll(".output.stderr")) say("text on stderr", box);

  // headings and ids
  const headings = [...document.querySelectorAll("h1, article :is(h2, h3, h4, h5, h6)")];
  const first = headings.filter((h) => h.tagName === "H1");
  if (first.length !== 1) say(`${first.length} headings of level 1`);
  let level = 0;
  for (const heading of headings) {
    const next = Number(heading.tagName[1]);
    if (next > level + 1) say(`a heading skips from level ${level} to ${next}`, heading);
    level = next;
  }
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of new Set(ids.filter((id, i) => ids.indexOf(id) !== i))) say(`the id "${id}" stands twice`);
  return faults;
}
"""


def faults(page) -> list[str]:
    """What is wrong with the page that stands in the browser, in words; opens every folded box to look inside."""
    page.evaluate("document.fonts.ready")
    return page.evaluate(EXAMINE)


def violations(page) -> list[str]:
    """What axe finds against WCAG 2.1 A and AA, one line each."""
    page.evaluate("document.querySelectorAll('article details').forEach((d) => { d.open = true })")
    page.evaluate((resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
    rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
    found = page.evaluate("(rules) => axe.run(document, { runOnly: rules, resultTypes: ['violations'] })", rules)
    return [f"{v['id']}: {n['target'][0]}: {n['failureSummary']}" for v in found["violations"] for n in v["nodes"]]


@each_page
@each_scheme
def test_page_is_in_order(visit, path, scheme):
    """A failure would be seen by every reader: something sticks out, is raw, is missing, or is asked of strangers.

    Or it would shut out readers who see little contrast, use a keyboard, or listen. A page is loaded once for both
    widths. The rules for those readers take longest: of each page but the first they see the desk in light colours and
    the phone in dark ones.
    """
    with visit(path, scheme=scheme, width=1280) as seen:
        wrong = []
        for width in (1280, 390):
            wrong += at_width(seen.page, width)
            if AXE and (path == PAGES[0] or (scheme, width) in {("light", 1280), ("dark", 390)}):
                wrong += violations(seen.page)
        if seen.page.locator("article math").count():
            assert seen.page.evaluate("document.fonts.check('16px \"Book Math\"')"), (
                "the font of the formulas is missing"
            )
        dark = brightness(seen.page, "backgroundColor") < brightness(seen.page, "color")
        assert dark == (scheme == "dark")
        assert wrong + seen.problems == []


@each_page
@each_scheme
def test_page_reads_without_javascript(visit, path, scheme):
    """A failure would leave readers without scripts with an empty, raw, or blinding page."""
    with visit(path, scheme=scheme, width=1280, javascript=False) as seen:
        page = seen.page
        assert at_width(page, 1280) + at_width(page, 390) == []
        assert page.locator("article p").first.is_visible()
        paper, ink = (brightness(page, name) for name in ("backgroundColor", "color"))
        assert (paper < ink) == (scheme == "dark")
        assert abs(paper - ink) > 300
        assert seen.problems == []


def at_width(page, width: int) -> list[str]:
    """What is wrong with the page in a window of this width."""
    page.set_viewport_size({"width": width, "height": 900})
    return [f"{width} px: {fault}" for fault in faults(page)]


def brightness(page, name: str) -> int:
    """The sum of red, green and blue of a colour of the page."""
    colour = page.evaluate("(name) => getComputedStyle(document.body)[name]", name)
    return sum(map(int, re.findall(r"\d+", colour)[:3]))


@pytest.mark.skipif(len(PAGES) < 2, reason="the site has one page only")
def test_a_link_inside_the_site_keeps_the_document(visit):
    """A failure would mean that the theme loads every page from the start again: slow, and widgets lose their state."""
    with visit("") as seen:
        seen.page.evaluate("window.sameDocument = true")
        target = next(path for path in PAGES if path)
        before = seen.page.locator("h1").inner_text()
        seen.page.locator(f".md-nav--primary a[href$='{target}']").first.click()
        seen.page.wait_for_function("(before) => document.querySelector('h1')?.innerText !== before", arg=before)
        assert seen.page.evaluate("window.sameDocument === true"), "the document was loaded anew"
        assert seen.page.url.endswith(target)
        assert faults(seen.page) == []
        seen.page.go_back()
        seen.page.wait_for_function("(before) => document.querySelector('h1')?.innerText === before", arg=before)
        assert seen.problems == []


def test_the_figures_of_the_benchmarks_are_on_the_page():
    """If this fails, the page says how fast the book is, and shows nothing, or figures of another day."""
    report = runpy.run_path(str(SITE.parent / "benchmarks" / "report.py"))
    page = (SITE / "18_scaling" / "index.html").read_text(encoding="utf-8")
    rows = [row for result in report["results"]() for row in result["rows"]]
    assert rows
    for row in rows:
        assert row["ours"] in html.unescape(page), row["what"]


def test_search_finds_a_heading(visit):
    """A failure would mean that readers look for a word that stands in a heading and are told there is nothing."""
    index = json.loads((SITE / "search" / "search_index.json").read_text(encoding="utf-8"))
    titles = [entry["title"] for entry in index["docs"] if "#" in entry["location"]] or [index["docs"][0]["title"]]
    word = max((word for title in titles for word in title.split() if word.isalpha()), key=len)
    with visit("") as seen:
        box = seen.page.locator(".md-search__input")
        box.click()
        box.press_sequentially(word)  # the theme listens to keys
        results = seen.page.locator(".md-search-result__item")
        results.filter(has_text=re.compile(re.escape(word), re.IGNORECASE)).first.wait_for()  # they follow the typing
        assert seen.problems == []


# The negative controls: what `faults` and `violations` are there to see.

GOOD = "<article><h1>Title</h1><p>Fine words, and <code>$HOME</code>.</p><h2>Part</h2></article>"
SABOTAGED = {
    "wider than the window": GOOD + '<div style="width: 3000px">x</div>',
    "raw $": GOOD + "<p>the size $d_k$</p>",
    "raw TeX bracket": GOOD + r"<p>the size \(d_k\)</p>",
    "unfilled claim": GOOD + "<p>{{ loss }} nats</p>",
    "raw box": GOOD + "<p>!!! theorem</p>",
    "a formula without extent": GOOD.replace("Fine", '<math style="display: none"><mi>x</mi></math>'),
    "a formula with an error": GOOD.replace("Fine", "<math><merror><mi>x</mi></merror></math>"),
    "a picture without words": GOOD.replace("Fine", '<figure><svg role="img" width="9" height="9"></svg></figure>'),
    "a picture without extent": GOOD.replace("Fine", '<img alt="words" width="0" height="0">'),
    "a traceback": GOOD.replace("Fine", "<pre>Traceback (most recent call last):</pre>"),
    "a folder of the building machine": GOOD.replace("Fine", "<pre>/x/site-packages/torch</pre>"),
    "text on stderr": GOOD.replace("Fine", '<div class="output stderr">careful</div>'),
    "0 headings of level 1": GOOD.replace("h1>", "h2>"),
    "2 headings of level 1": GOOD.replace("h2>", "h1>"),
    "skips from level 1 to 3": GOOD.replace("h2>", "h3>"),
    'the id "a" stands twice': GOOD + '<b id="a"></b><b id="a"></b>',
}


def test_a_good_page_has_no_faults(visit):
    with visit(None) as seen:
        seen.page.set_content(GOOD)
        assert faults(seen.page) == []


@pytest.mark.parametrize("fault", SABOTAGED)
def test_a_sabotaged_page_is_seen(visit, fault):
    """A failure would mean that the check above passes pages that have this fault."""
    with visit(None, width=390) as seen:
        seen.page.set_content(SABOTAGED[fault])
        assert any(fault in found for found in faults(seen.page))


@pytest.mark.skipif(not AXE, reason="no axe: its rules were held against no page: pip install axe-playwright-python")
def test_an_inaccessible_page_is_seen(visit):
    with visit(None) as seen:
        seen.page.set_content(
            '<html lang="en"><title>t</title><img src="data:,"><p style="color: #ccc">pale</p></html>'
        )
        assert {line.split(":")[0] for line in violations(seen.page)} >= {"image-alt", "color-contrast"}


def test_errors_and_requests_to_strangers_are_seen(visit):
    with visit("") as seen:
        seen.page.evaluate("console.error('boom')")
        seen.page.evaluate("fetch('http://localhost:9/nothing').catch(() => 0)")
        assert any("boom" in problem for problem in seen.problems)
        assert any("asks another host: http://localhost:9/" in problem for problem in seen.problems)
