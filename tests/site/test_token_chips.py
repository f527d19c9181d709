"""The token chips of page 15 as readers use them: ids against tiktoken, keys, what is heard, and what stands without a
script or without its tables.
"""

import contextlib
import hashlib
import os
import random
import shutil
import unicodedata
from collections import Counter
from types import SimpleNamespace

import pytest
from reading import SITE, missing
from test_site import faults, violations

from gptbook import assets, display

if reason := missing():
    if os.environ.get("GPTBOOK_SITE_REQUIRED"):
        raise RuntimeError(reason)  # where the site must be looked at, a skip is a failure
    pytest.skip(reason, allow_module_level=True)

tiktoken = pytest.importorskip("tiktoken", reason="nothing to hold the chips against: pip install -e '.[pretrained]'")

PAGE, BEFORE = "15_tokens/", "14_overfitting/"
if "This page was not run" in (SITE / PAGE / "index.html").read_text(encoding="utf-8"):
    pytest.skip(
        "no chips to look at: the vocabularies could not be had when the site was built", allow_module_level=True
    )
BASES = {"gpt2": "r50k_base", "cl100k_base": "cl100k_base", "o200k_base": "o200k_base"}
each_vocabulary = pytest.mark.parametrize("name", BASES)


@pytest.fixture(scope="module")
def encodings(tmp_path_factory):
    """tiktoken's own encodings, by our names; it reads its files where it looks for them, named by their addresses."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("tiktoken")
        for base in BASES.values():
            path = assets.find(base)  # the build has fetched it
            assert path, f"{base} is not on this machine: build the site first"
            shutil.copy(path, folder / hashlib.sha1(assets.KNOWN[base].url.encode()).hexdigest())
        patch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
        return {name: tiktoken.get_encoding(base) for name, base in BASES.items()}


class TokenChips:
    """The element on a page that stands in the browser, with its script at work."""

    def __init__(self, page):
        self.page, self.whole = page, page.locator("token-chips")
        self.area = self.whole.get_by_role("textbox", name="Your own text")
        self.area.wait_for()
        self.status = self.whole.get_by_role("status")
        self.text = self.area.input_value()

    def type(self, text: str) -> None:
        """Put a text into the text area, and wait until all three vocabularies have had their say."""
        self.area.fill(text)
        self.settle()

    def settle(self) -> None:
        self.page.wait_for_timeout(300)  # longer than it waits for the next key
        self.page.wait_for_function("!document.querySelector('token-chips [aria-busy]')")

    def choose(self, name: str) -> None:
        self.whole.get_by_role("radio", name=name).check()

    def counts(self) -> dict[str, str]:
        labels = self.whole.locator("fieldset label").all()
        return {label.locator(".name").inner_text(): label.locator(".tokens").inner_text() for label in labels}

    def ids(self) -> list[int]:
        return [int(text) for text in self.whole.locator("ol > li > small:visible").all_inner_texts()]

    def html(self) -> list[str]:
        """The chips that are seen, as HTML."""
        return self.whole.locator("ol > li:visible").evaluate_all("(items) => items.map((item) => item.outerHTML)")


def tokens(n: int) -> str:
    return f"{n:,} token{'s' * (n != 1)}"


# Texts ----------------------------------------------------------------------------------------------------------------

BLANKS = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", " \n ", "\x0b", "\x0c", "\x1c", "\x85", "\xa0", "\u1680",
          "\u2003", "\u2028", "\u202f", "\u3000", "\ufeff", "\u200b", "\u180e", "    \n\n\t ", " " * 90]  # fmt: skip
SPECIAL = ["<|endoftext|>", "<|fim_prefix|>", "'s", "'S", "'ſ", "'LL", "'ll", "'vE", "’t", "'d", "'t've", "\ufffd",
           "\0", "://", "/\n", "...\n\n", "!?/\r\n/", "++i;", "e\u0301", "\u0301", "ǅ", "ʰ", "ª", "Ⅷ", "½", "٣٤٥٦",
           "१२३४५", "😀", "👍🏽", "👩‍👩‍👧", "🇩🇪", "❤️", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "naïve", "don't", "HTTPServer", "iPhone",
           "ßẞ"]  # fmt: skip
SCRIPTS = {
    "latin": (0x41, 0x17F), "greek": (0x370, 0x3FF), "cyrillic": (0x400, 0x4FF), "hebrew": (0x5D0, 0x5EA),
    "arabic": (0x620, 0x6D3), "devanagari": (0x900, 0x97F), "thai": (0xE01, 0xE4E), "georgian": (0x10A0, 0x10FF),
    "kana": (0x3041, 0x30FE), "han": (0x4E00, 0x9FA5), "hangul": (0xAC00, 0xD7A3), "emoji": (0x1F300, 0x1F64F),
    "signs": (0x2000, 0x2BFF), "letters of mathematics": (0x1D400, 0x1D7FF), "ascii": (0x20, 0x7E),
    "all": (0x00, 0x1FFFF),
}  # fmt: skip


def random_texts(n: int, seed: int = 0) -> list[str]:
    """Texts of several scripts, of characters that this Python's version of Unicode knows and that are no surrogates:
    for newer ones, a browser and tiktoken may not yet agree on what a letter is.
    """
    draw = random.Random(seed)

    def word() -> str:
        kind = draw.random()
        if kind < 0.2:
            return draw.choice(BLANKS)
        if kind < 0.4:
            return draw.choice(SPECIAL)
        if kind < 0.5:
            return str(draw.randrange(10 ** draw.randrange(1, 12)))
        if kind < 0.7:
            made = "".join(draw.choice("etaoinshrdlcumwfgyp") for _ in range(draw.randrange(1, 12)))
            return draw.choice([made, made.title(), made.upper(), made[:1] + made[1:].title()])
        low, high = draw.choice(list(SCRIPTS.values()))
        drawn = (chr(draw.randint(low, high)) for _ in range(draw.randrange(1, 9)))
        return "".join(c for c in drawn if unicodedata.category(c) not in ("Cn", "Cs"))

    return ["".join(word() + draw.choice(["", " "]) for _ in range(draw.randrange(40))) for _ in range(n)]


ENCODE = """
async ([script, name, about, texts, split]) => {
  const { Vocabulary, encode } = await import(script);
  const answer = await fetch(new URL("data/" + about.file, script));
  const vocabulary = new Vocabulary(split ?? name, await answer.arrayBuffer(), about);
  return texts.map((text) => encode(text, vocabulary).map(([, id]) => id));
}
"""


def encode(chips: TokenChips, name: str, texts: list[str], split=None) -> list[list[int]]:
    """The ids by the page's own script, in the browser."""
    script = chips.page.locator("script[src$='token-chips.js']").evaluate("(script) => script.src")
    about = chips.whole.evaluate("(element) => JSON.parse(element.dataset.about).tables")[name]
    return chips.page.evaluate(ENCODE, [script, name, about, texts, split])


@each_vocabulary
def test_a_thousand_random_texts_have_tiktokens_ids(visit, encodings, name):
    """A failure would show readers tokens that no model sees."""
    texts = random_texts(1000)
    assert Counter(unicodedata.category(c)[0] for text in texts for c in text).keys() == set("LMNPSZC")
    right = [encodings[name].encode_ordinary(text) for text in texts]
    with visit(PAGE) as seen:
        chips = TokenChips(seen.page)
        got = encode(chips, name, texts)
        wrong = [text for text, a, b in zip(texts, got, right, strict=True) if a != b]
        assert wrong == []
        assert seen.problems == []


@each_vocabulary
def test_long_chunks_have_tiktokens_ids(visit, encodings, name):
    """A failure would freeze the page, or merge in another order, where a text has no blank to cut at."""
    draw = random.Random(1)
    letters = "".join(draw.choice("abcdefghij") for _ in range(20_000))
    texts = [
        "a" * 20_000,
        " " * 20_000,
        "\n" * 5_000,
        "=" * 20_000,
        letters,
        "😀" * 5_000,
        "Ж" * 9_999,
        letters.upper(),
    ]
    right = [encodings[name].encode_ordinary(text) for text in texts]
    with visit(PAGE) as seen:
        got = encode(TokenChips(seen.page), name, texts)
        assert [a == b for a, b in zip(got, right, strict=True)] == [True] * len(texts)


def test_another_cut_is_seen(visit, encodings):
    """The negative control: if this fails, the comparison above would pass a wrong encoder."""
    texts = random_texts(50)
    with visit(PAGE) as seen:
        chips = TokenChips(seen.page)
        for name, split in [("gpt2", "cl100k_base"), ("cl100k_base", "gpt2"), ("o200k_base", "cl100k_base")]:
            right = [encodings[name].encode_ordinary(text) for text in texts]
            assert encode(chips, name, texts, split) != right
            assert encode(chips, name, texts) == right


# What readers see -----------------------------------------------------------------------------------------------------


@each_vocabulary
def test_typed_text_is_shown_in_tokens(visit, encodings, name):
    """A failure would show chips of another text, of another vocabulary, or wrong counts beside them."""
    text = "Hello, wörld! Привет\n\tif x:    return 1234567  😀 <|endoftext|> 'S"
    with visit(PAGE) as seen:
        chips = TokenChips(seen.page)
        chips.choose(name)
        chips.type(text)
        right = encodings[name].encode_ordinary(text)
        assert chips.ids() == right
        assert chips.counts() == {n: tokens(len(e.encode_ordinary(text))) for n, e in encodings.items()}
        said = chips.status.inner_text()
        assert said.startswith(f"{len(text)} characters, {len(text.encode())} bytes in UTF-8")
        assert f"{name}: {tokens(len(right))}" in said
        chips.type("")
        assert chips.ids() == []
        assert set(chips.counts().values()) == {"0 tokens"}
        chips.type("a")
        assert chips.counts()[name] == "1 token"
        assert chips.status.inner_text().startswith("1 character, 1 byte")
        assert seen.problems == []


@each_vocabulary
def test_script_and_package_make_the_same_chips(visit, encodings, name):
    """A failure would mean that the picture without a script and the one with it differ, in looks or in words."""
    encoding = encodings[name]
    vocab = [b""] * encoding.n_vocab
    for i in range(encoding.n_vocab):
        with contextlib.suppress(KeyError):  # a number without a token
            vocab[i] = encoding.decode_single_token_bytes(i)
    tokenizer = SimpleNamespace(vocab=vocab, encode=encoding.encode_ordinary)
    texts = [*display.EXAMPLES.values(), *(t.replace("\r", "") for t in random_texts(25, seed=2)), *"𐍈ж\u0301\u200d"]
    with visit(PAGE) as seen:
        chips = TokenChips(seen.page)
        chips.choose(name)
        for text in filter(None, texts):
            chips.type(text)
            html = display.chips(text, {name: tokenizer}, live=False)._repr_html_()
            parse = """(html) => {
                const whole = Object.assign(document.createElement("template"), { innerHTML: html });
                return [...whole.content.querySelectorAll("ol > li")].map((item) => item.outerHTML);
            }"""
            assert chips.html() == seen.page.evaluate(parse, html), text


def test_parts_of_a_character_and_blanks_are_seen_and_heard(visit):
    """A failure would show a sign for broken text, or nothing at all, where a token is a piece of a character."""
    with visit(PAGE) as seen:
        chips = TokenChips(seen.page)
        chips.choose("gpt2")
        chips.type("a 😀\n\n\t" + " " * 12)
        items = chips.whole.locator("ol > li:visible")
        assert items.locator("code").first.inner_text() == "a"
        split = items.nth(1).get_by_role("img")
        assert split.inner_text() == "␣F09F98"
        assert split.get_attribute("aria-label") == "blank byte F0 byte 9F byte 98, part of 😀"
        assert split.get_attribute("title") == "part of 😀"
        assert items.nth(2).get_by_role("img").get_attribute("aria-label") == "byte 80, part of 😀"
        heard = [code.get_attribute("aria-label") for code in items.get_by_role("img").all()[2:]]
        assert "2 line ends" in heard[0]
        assert "tab" in " ".join(heard)
        assert heard[-1].endswith("blanks") or heard[-1].endswith("blank")
        boxes = split.locator(".byte")
        assert boxes.count() == 3
        assert boxes.first.evaluate("(box) => getComputedStyle(box).borderTopStyle") == "solid"


def test_examples_are_ready_and_lead_back(visit, encodings):
    """A failure would leave a reader who has no text at hand without anything to try."""
    with visit(PAGE) as seen:
        chips = TokenChips(seen.page)
        first, text = chips.html(), chips.text
        buttons = chips.whole.get_by_role("group", name="Example texts").get_by_role("button")
        names = buttons.all_inner_texts()
        assert len(names) >= 8
        for button in buttons.all()[1:]:
            button.click()
            chips.settle()
            shown = chips.area.input_value()
            assert shown not in ("", text)
            assert chips.ids() == encodings["gpt2"].encode_ordinary(shown)
        buttons.first.click()
        chips.settle()
        assert (chips.area.input_value(), chips.html()) == (text, first)
        assert seen.problems == []


def test_tables_are_asked_for_when_the_text_changes_and_not_before(visit):
    """A failure would make every visitor of the page load megabytes, or load them anew with each key."""
    with visit(None) as seen:
        asked = []
        seen.page.on("request", lambda request: asked.append(request.url) if "vocab-" in request.url else None)
        seen.page.goto(seen.base + PAGE, wait_until="load")
        chips = TokenChips(seen.page)
        for name in BASES:
            chips.choose(name)
            assert chips.ids()
        seen.page.wait_for_timeout(300)
        assert asked == []
        chips.type("one")
        assert len(asked) == 3
        assert "vocab-o200k_base" in asked[0]  # the one that is looked at
        chips.type("two")
        assert len(asked) == 3
        assert seen.problems == []


def test_without_a_script_the_picture_stands(visit, encodings):
    """A failure would leave a reader without scripts with nothing, or with other tokens than those of the models."""
    with visit(PAGE) as seen:
        text = TokenChips(seen.page).text
    for width in (390, 1280):
        with visit(PAGE, javascript=False, width=width) as seen:
            whole = seen.page.locator("token-chips")
            assert whole.locator("input, textarea, button").count() == 0
            assert whole.locator(".size").inner_text() == (
                f"{len(text):,} characters, {len(text.encode()):,} bytes in UTF-8"
            )
            sections = whole.locator("section")
            assert [s.get_attribute("data-name") for s in sections.all()] == list(BASES)
            for section, (name, encoding) in zip(sections.all(), encodings.items(), strict=True):
                right = encoding.encode_ordinary(text)
                assert section.locator(".count").inner_text() == f"{name}: {tokens(len(right))}"
                assert [int(i) for i in section.locator("li > small:visible").all_inner_texts()] == right
            assert faults(seen.page) == []


@pytest.mark.parametrize(
    ("name", "damage"),
    [(n, "missing") for n in BASES] + [("gpt2", d) for d in ("cut short", "longer", "changed", "a page instead")],
)
def test_a_table_that_is_lost_or_damaged_leaves_the_chips_and_says_so(visit, name, damage):
    """A failure would show wrong tokens, or an empty box without a reason."""

    def serve(route):
        if damage == "missing":
            return route.fulfill(status=404, body="")
        body = b"<!doctype html>" if damage == "a page instead" else route.fetch().body()
        bodies = {"cut short": body[:-1000], "longer": body + b"\x01a", "changed": b"\x02" + body[1:]}
        return route.fulfill(status=200, body=bodies.get(damage, body))

    with visit(PAGE) as seen:
        chips = TokenChips(seen.page)
        chips.choose(name)
        still = chips.html()
        seen.page.route(f"**/vocab-{name}-*.bin", serve)
        chips.type("mine")
        assert chips.html() == still
        note = chips.whole.locator("section:visible .note")
        assert f"The vocabulary {name} cannot be loaded" in note.inner_text()
        assert chips.counts()[name] == "not loaded"
        assert f"{name}: not loaded" in chips.status.inner_text()
        others = [n for n in BASES if n != name]
        assert all(chips.counts()[other].endswith(("token", "tokens")) for other in others)
        chips.choose(others[0])
        assert not chips.whole.locator("section:visible .note").is_visible()
        assert len(chips.ids()) == 1 or chips.counts()[others[0]] != "1 token"
        chips.choose(name)
        seen.page.unroute(f"**/vocab-{name}-*.bin")
        chips.type("mine again")
        assert not note.is_visible()
        assert len(chips.ids()) == 2
        assert [problem for problem in seen.problems if "ailed to load" not in problem] == []


def test_very_long_text_is_cut_and_said_to_be(visit, encodings):
    """A failure would freeze the page on a pasted book, or count a part as if it were the whole."""
    text = "word " * 5_000  # 25,000 characters
    with visit(PAGE) as seen:
        chips = TokenChips(seen.page)
        chips.type(text)
        note = chips.whole.locator(".controls .note")
        assert note.inner_text() == ("Your text has 25,000 characters. Only the first 20,000 characters are encoded.")
        right = encodings["gpt2"].encode_ordinary(text[:20_000])
        assert chips.counts()["gpt2"] == tokens(len(right))
        assert chips.ids() == right[:1_000]
        section = chips.whole.locator("section:visible .note")
        assert section.inner_text() == f"The first 1,000 tokens of {tokens(len(right))}:"
        chips.type("😀" * 20_001)  # each of two halves in JavaScript
        assert note.inner_text().startswith("Your text has 20,001 characters.")
        assert chips.status.inner_text().startswith("20,000 characters, 80,000 bytes")
        chips.type("short")
        assert not note.is_visible()
        assert not section.is_visible()
        assert seen.problems == []


def test_half_of_a_pair_counts_as_tiktoken_counts_it(visit, encodings):
    """A failure would show tokens of a text that cannot be written as UTF-8."""
    with visit(PAGE) as seen:
        chips = TokenChips(seen.page)
        chips.area.evaluate("(a) => { a.value = 'a\\ud800b'; a.dispatchEvent(new Event('input')); }")
        chips.settle()
        assert chips.ids() == encodings["gpt2"].encode_ordinary("a\ufffdb")
        assert "U+FFFD" in chips.whole.locator(".controls .note").inner_text()


def test_the_last_of_many_changes_wins(visit, encodings):
    """A failure would show the tokens of a text that the reader has since changed, when a table comes late."""
    with visit(PAGE) as seen:
        chips = TokenChips(seen.page)
        held = []
        seen.page.route("**/vocab-gpt2-*.bin", lambda route: held.append(route))
        chips.area.fill("first")
        seen.page.wait_for_function("document.querySelector('token-chips [aria-busy]')")
        chips.area.fill("the second one")
        seen.page.wait_for_timeout(400)
        assert len(held) == 1
        held[0].continue_()
        chips.settle()
        assert chips.ids() == encodings["gpt2"].encode_ordinary("the second one")
        assert chips.counts() == {n: tokens(len(e.encode_ordinary("the second one"))) for n, e in encodings.items()}


def test_keys_do_all_that_the_mouse_does(visit, encodings):
    """A failure would shut out who uses no mouse, or who listens."""
    with visit(PAGE) as seen:
        chips, page = TokenChips(seen.page), seen.page
        chips.area.focus()
        page.keyboard.press("Control+A")
        page.keyboard.type("some typing")
        page.keyboard.press("Tab")
        focused = "document.activeElement"
        assert page.evaluate(f"{focused}.textContent") == "first text"
        for _ in range(chips.whole.get_by_role("button").count()):
            page.keyboard.press("Tab")
        assert page.evaluate(f"{focused}.value") == "gpt2"
        page.keyboard.press("ArrowDown")
        assert page.evaluate(f"{focused}.value") == "cl100k_base"
        chips.settle()
        assert chips.ids() == encodings["cl100k_base"].encode_ordinary("some typing")
        assert chips.whole.get_by_role("radio", name="cl100k_base 2 tokens").count() == 1
        assert chips.whole.get_by_role("group", name="Vocabulary").count() == 1
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Enter")
        chips.settle()
        assert chips.area.input_value() == list(display.EXAMPLES.values())[-1]
        assert seen.problems == []


def test_it_starts_and_starts_again_when_pages_change_without_a_reload(visit, encodings):
    """A failure would show a dead picture, or two rows of controls, to readers who come from another page."""
    with visit(BEFORE) as seen:
        page = seen.page
        page.evaluate("window.sameDocument = true")
        page.locator(f".md-nav--primary a[href$='{PAGE}']").first.click()
        chips = TokenChips(page)
        text = chips.text
        chips.type("here")
        page.locator(f".md-nav--primary a[href$='{BEFORE}']").first.click()
        page.wait_for_function("!document.querySelector('token-chips')")
        page.go_back()
        chips = TokenChips(page)
        assert page.evaluate("window.sameDocument === true"), "the document was loaded anew"
        assert chips.whole.count() == 1
        assert chips.whole.get_by_role("radio").count() == 3
        assert chips.text == text
        chips.type("here again")
        assert chips.ids() == encodings["gpt2"].encode_ordinary("here again")
        assert [problem for problem in seen.problems if not problem.startswith("failed to load")] == []


def test_moving_the_element_does_not_double_its_controls(visit):
    """A failure would add a second set of controls whenever something moves the element within the page."""
    with visit(PAGE) as seen:
        chips = TokenChips(seen.page)
        chips.type("mine")
        before = chips.html()
        chips.whole.evaluate("(element) => element.parentElement.append(element)")
        assert chips.whole.get_by_role("radio").count() == 3
        assert chips.whole.get_by_role("textbox").count() == 1
        assert chips.html() == before
        chips.type("mine too")
        assert len(chips.ids()) == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_state_is_in_order_and_accessible(visit, scheme, width):
    """A failure would stick out of a phone, or be too pale to read: with chips of all colours, a cut, and an error."""
    text = f"{' '.join(map(str, range(40)))} 😀 {'x' * 500}\n\t Привет {'-' * 20_000}"
    with visit(PAGE, scheme=scheme, width=width) as seen:
        chips = TokenChips(seen.page)
        chips.type(text)
        assert len({chips.html()[i].split('"')[1] for i in range(60)}) == 6  # colours
        assert faults(seen.page) == []
        assert violations(seen.page) == []
        cramped = "(labels) => labels.filter((label) => label.scrollWidth > label.clientWidth).length"
        assert chips.whole.locator("fieldset label").evaluate_all(cramped) == 0
        room = chips.whole.bounding_box()
        for item in chips.whole.locator("ol > li:visible").all()[:80]:
            box = item.bounding_box()
            assert room["x"] <= box["x"]
            assert box["x"] + box["width"] <= room["x"] + room["width"] + 1
        seen.page.route("**/vocab-*.bin", lambda route: route.abort())
        seen.page.reload()
        chips = TokenChips(seen.page)
        chips.type("a")
        assert chips.whole.locator("section:visible .note.wrong").is_visible()
        assert faults(seen.page) == []
        assert violations(seen.page) == []


def test_print_has_the_chips_and_no_controls(visit):
    """A failure would print buttons, or a picture without what it counts."""
    with visit(PAGE) as seen:
        chips = TokenChips(seen.page)
        chips.type("on paper")
        seen.page.emulate_media(media="print")
        assert not chips.area.is_visible()
        assert not chips.whole.locator("fieldset").is_visible()
        assert chips.whole.locator("section:visible .count").inner_text() == "gpt2: 2 tokens"
        assert len(chips.ids()) == 2
