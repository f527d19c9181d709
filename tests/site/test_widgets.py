"""The controls of a real model as readers use them: numbers, keys, what is heard, and what stands without a script.

Most tests put an element of their own, made from tensors that they know, into a page of the site; its file is handed
out by the test. So PyTorch is the judge, whatever model the site was built with.
"""

import math
import os
import re
from importlib import util

import pytest
import torch
import torch.nn.functional as F
from reading import SITE, missing

if reason := missing():
    if os.environ.get("GPTBOOK_SITE_REQUIRED"):
        raise RuntimeError(reason)  # where the site must be looked at, a skip is a failure
    pytest.skip(reason, allow_module_level=True)

from test_site import faults, violations

from gptbook import widgets

PAGE = "16_pretrained/"
BEFORE = "09_training/"
of_the_page = pytest.mark.skipif(
    "This page was not run" in (SITE / PAGE / "index.html").read_text(encoding="utf-8"),
    reason="no elements to look at on the page: the weights could not be had when the site was built",
)
TAGS = ["next-tokens", "attention-view", "lens-grid", "word-arithmetic"]
made = torch.Generator().manual_seed(0)


def symbol(i: int) -> str:
    return [" ", "\n", " <b>"][i] if i < 3 else f" t{i}"


PROMPTS = ["The capital of", "Once"]
LOGITS = 3 * torch.randn(2, 50_257, generator=made)  # (2, V)
LOGITS[1, 1] = LOGITS[1].max() + 1

TEXTS = [["A", " <b>", "\n", *(f" t{i}" for i in range(21))], ["B", " c", "d"]]


def attention_of(T: int) -> torch.Tensor:
    scores = 3 * torch.randn(5, 3, T, T, generator=made)  # (L, H, T, T)
    return scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf).softmax(-1)


ATTENTION = [attention_of(len(tokens)) for tokens in TEXTS]
LENS = [5 * torch.randn(7, T, 900, generator=made) for T in (8, 3)]  # (L+1, T, V) each
ANSWERS = [[5, 17], [899]]
LENS_TEXTS = [TEXTS[0][:8], TEXTS[1]]
WORDS = ["king", "man", "woman", "Paris", *(f"word{i}" for i in range(296))]
EMBEDDINGS = torch.randn(384, generator=made) + torch.randn(300, 384, generator=made)  # (N, C)
MEAN = torch.randn(384, generator=made) / 2  # (C,)

THINGS = {
    "next-tokens": widgets.next_tokens(PROMPTS, LOGITS, symbol),
    "attention-view": widgets.attention_view(TEXTS, ATTENTION, (3, 1), {"induction": (3, 1), "previous": (4, 2)}, 4),
    "lens-grid": widgets.lens_grid(LENS_TEXTS, LENS, ANSWERS, symbol),
    "word-arithmetic": widgets.arithmetic(
        WORDS, EMBEDDINGS, [("king", "man", "woman"), ("Paris", "word1", "word2")],
        {"strawberry": [" str", "aw", "berry"]}, MEAN,
    ),
}  # fmt: skip


def put(page, tag: str, answer=None):
    """Put the element of this name into the page, and wait for its controls; `answer` handles requests for its file."""
    shown = THINGS[tag]
    file = shown.data()
    page.route(f"**/assets/data/{file.name}", answer or (lambda route: route.fulfill(body=file.content)))
    page.evaluate(
        """(html) => document.querySelector("article").insertAdjacentHTML("beforeend",
            `<div class="cell"><div class="output html" tabindex="0">${html}</div></div>`)""",
        shown._repr_html_(),
    )
    whole = page.locator(tag).last
    whole.scroll_into_view_if_needed()
    if answer is None:
        whole.locator("select, input").first.wait_for()
    return whole


def bars(whole) -> list[tuple[str, float, str]]:
    """(name, length, words) of each bar."""
    read = """(items) => items.map((item) => [
        item.querySelector("code").textContent, Number(item.style.getPropertyValue("--p")),
        item.querySelector(".share").textContent,
    ])"""
    return [tuple(bar) for bar in whole.locator("ol > li").evaluate_all(read)]


# Next tokens ----------------------------------------------------------------------------------------------------------


def steps(V: int) -> list[int]:
    """The numbers that the slider of top-k goes through: in ones to 100, then in hundreds, in thousands, ..."""
    found = [*range(1, 100)]
    for ten in (100, 1_000, 10_000, 100_000):
        found += range(ten, min(10 * ten, V), ten)
    return [*(k for k in found if k < V), V]


@pytest.mark.parametrize("prompt", [0, 1])
def test_chances_of_a_large_vocabulary_are_those_of_pytorch(visit, prompt):
    """A failure would show chances, an entropy or a count that the whole row of logits does not give."""
    with visit("") as seen:
        whole = put(seen.page, "next-tokens")
        whole.get_by_role("combobox", name="after").select_option(str(prompt))
        values, ids = LOGITS[prompt].double().sort(descending=True, stable=True)
        V = len(values)
        for t in (0.05, 0.1, 0.5, 1, 1.7, 3):
            for k, p in ((V, 1), (40, 1), (3000, 1), (V, 0.5), (2000, 0.9), (V, 0)):
                for name, value in (("temperature", t), ("top-k", 1 + steps(V).index(k)), ("top-p", p)):
                    whole.get_by_role("slider", name=name).fill(str(value))
                chances = torch.softmax(values[:k] / t, 0)
                kept = k if p == 1 else 1 + int((chances.cumsum(0)[:-1] < p).sum())
                chances = F.pad(chances[:kept] / chances[:kept].sum(), (0, V - kept))
                shown = bars(whole)
                names = [symbol(i).replace(" ", "␣").replace("\n", "↵") for i in ids[:15].tolist()]
                assert [name for name, *_ in shown] == names
                assert [length for _, length, _ in shown] == pytest.approx(chances[:15].tolist(), rel=1e-3, abs=1e-12)
                for (_, length, words), chance in zip(shown, chances.tolist(), strict=False):
                    assert words == ("–" if chance == 0 else "< 0.1 %" if length < 0.0005 else f"{100 * length:.1f} %")
                status = whole.get_by_role("status").inner_text()
                count, of, nats = re.fullmatch(
                    r"([\d,]+) of ([\d,]+) tokens can come\. Entropy: (.*) nats\.", status
                ).groups()
                assert of == f"{V:,}"
                assert int(count.replace(",", "")) == pytest.approx(kept, rel=0.002 if p < 1 and kept > 100 else 0)
                assert float(nats) == pytest.approx(-torch.special.entr(chances).sum().item() * -1, abs=0.007)
        whole.get_by_role("button", name="Reset").click()
        assert bars(whole)[0][1] == pytest.approx(values.softmax(0)[0].item(), rel=1e-3)
        assert bars(whole)[0][1] != pytest.approx((values / 1.1).softmax(0)[0].item(), rel=1e-3)  # a control
        assert whole.get_by_role("slider", name="top-k").get_attribute("aria-valuetext") == f"all {V:,}"
        assert seen.problems == []


# Attention ------------------------------------------------------------------------------------------------------------


def read(tokens) -> list[str]:
    return [token.replace(" ", "␣").replace("\n", "↵") for token in tokens]


def looks(whole) -> dict[int, float]:
    """What the line says of the token that is chosen or pointed at: place -> weight."""
    shades = whole.locator(".line label").evaluate_all(
        "(all) => all.map((e) => Number(e.style.getPropertyValue('--p')))"
    )
    return dict(enumerate(shades))


def cells(whole, T: int) -> list[list[float]]:
    values = whole.locator(".map i").evaluate_all("(all) => all.map((e) => Number(e.style.getPropertyValue('--p')))")
    assert len(values) == T * (T + 1) // 2
    return [values[t * (t + 1) // 2 : (t + 1) * (t + 2) // 2] for t in range(T)]


def test_attention_is_that_of_the_head_and_the_text_that_are_chosen(visit):
    """A failure would show another head, another text, or rows for columns."""
    with visit("") as seen:
        whole = put(seen.page, "attention-view")
        for text, layer, head in ((0, 3, 1), (1, 0, 0), (0, 4, 2), (1, 4, 0)):
            whole.get_by_role("combobox", name="text").select_option(str(text))
            whole.get_by_role("slider", name="layer").fill(str(layer))
            whole.get_by_role("slider", name="head").fill(str(head))
            T, right = len(TEXTS[text]), ATTENTION[text][layer, head]
            assert whole.locator(".map .row").all_inner_texts() == read(TEXTS[text])
            assert whole.locator(".map .column").all_inner_texts() == read(TEXTS[text])
            for t, row in enumerate(cells(whole, T)):
                assert row == pytest.approx(right[t, : t + 1].tolist(), abs=0.002)
            for t in {0, T - 1, T // 2}:
                whole.locator(".line label").nth(t).click()
                assert list(looks(whole).values()) == pytest.approx(right[t].tolist(), abs=0.002)
                best = int(right[t].argmax())
                status = whole.get_by_role("status").inner_text()
                itself = " (itself)" if best == t else ""
                begin = (
                    f"Layer {layer}, head {head}: {read(TEXTS[text])[t]} looks at {read(TEXTS[text])[best]}{itself} "
                )
                assert status.startswith(begin)
                said = int(re.match(r"\d+", status.removeprefix(begin))[0])
                assert said == pytest.approx(100 * right[t, best].item(), abs=0.71)
        other = ATTENTION[1][4, 1]  # a control
        assert cells(whole, 3)[2] != pytest.approx(other[2].tolist(), abs=0.002)
        assert seen.problems == []


def test_known_heads_and_keys_and_pointing(visit):
    """A failure would shut out who uses no mouse, or show one row under the name of another."""
    with visit("") as seen:
        whole, page = put(seen.page, "attention-view"), seen.page
        tokens = read(TEXTS[0])  # the token that the page names is chosen first, and the last of a text otherwise
        assert f": {tokens[4]} looks at" in whole.get_by_role("status").inner_text()
        whole.locator(".line label").nth(len(tokens) - 1).click()
        page.mouse.move(0, 0)
        known = whole.get_by_role("button", name="previous: 4.2")
        assert known.get_attribute("aria-pressed") == "false"
        known.focus()
        page.keyboard.press("Enter")
        assert known.get_attribute("aria-pressed") == "true"
        assert whole.get_by_role("slider", name="layer").get_attribute("aria-valuetext") == "4 (0–4)"
        assert whole.get_by_role("slider", name="head").get_attribute("aria-valuetext") == "2 (0–2)"
        T, right = len(TEXTS[0]), ATTENTION[0][4, 2]
        assert cells(whole, T)[5] == pytest.approx(right[5, :6].tolist(), abs=0.002)
        page.keyboard.press("Tab")  # from the buttons to the tokens, of which one is in the order
        page.keyboard.press("ArrowLeft")
        assert list(looks(whole).values()) == pytest.approx(right[T - 2].tolist(), abs=0.002)
        assert f": {read(TEXTS[0])[T - 2]} looks at" in whole.get_by_role("status").inner_text()
        places = "(all) => all.map((e) => JSON.stringify(e.getBoundingClientRect()))"
        before = whole.locator(".line label").evaluate_all(places)
        whole.locator(".map i").nth(3).hover()  # the first cell of row 2
        assert list(looks(whole).values()) == pytest.approx(right[2].tolist(), abs=0.002)
        whole.locator(".map i").nth(3).click()
        assert f": {read(TEXTS[0])[2]} looks at" in whole.get_by_role("status").inner_text()
        assert whole.locator(".line label").evaluate_all(places) == before  # nothing moves away from under a pointer
        whole.get_by_role("slider", name="layer").hover()
        assert list(looks(whole).values()) == pytest.approx(right[2].tolist(), abs=0.002)
        assert whole.get_by_role("radio").count() == T
        assert seen.problems == []


# The logit lens -------------------------------------------------------------------------------------------------------


def percent(p: float) -> str:
    return f"{100 * p:.1f} %" if p >= 0.0005 else "< 0.1 %"


@pytest.mark.parametrize(("text", "answer"), [(0, 0), (0, 1), (1, 0)])
def test_the_lens_is_that_of_the_text_and_the_answer_that_are_chosen(visit, text, answer):
    """A failure would put a token, a rank or a chance into another layer, or under another text."""
    with visit("") as seen:
        whole = put(seen.page, "lens-grid")
        whole.get_by_role("combobox", name="text").select_option(str(text))
        choice = whole.get_by_role("combobox", name="answer")
        assert choice.count() == (len(ANSWERS[text]) > 1)
        if answer:
            choice.select_option(str(answer))
        rows = whole.locator("tr").evaluate_all("(rows) => rows.map((r) => [...r.cells].map((c) => c.textContent))")
        logits, i = LENS[text].double(), ANSWERS[text][answer]
        p = logits.softmax(-1)
        assert rows[0] == ["layer", f"rank of {read([symbol(i)])[0]}", "its chance", *read(LENS_TEXTS[text])]
        for layer, row in enumerate(rows[1:]):
            rank = 1 + int((logits[layer, -1] > logits[layer, -1, i]).sum())
            assert row[:3] == [str(layer), f"{rank:,}", percent(p[layer, -1, i].item())]
            assert row[3:] == read(map(symbol, p[layer].argmax(-1).tolist()))
        shades = whole.locator(".says").evaluate_all("(all) => all.map((e) => Number(e.style.getPropertyValue('--p')))")
        assert shades == pytest.approx(p.max(-1).values.flatten().tolist(), rel=1e-3)
        assert seen.problems == []


def test_arrows_go_from_cell_to_cell_of_the_lens_and_tell_what_is_there(visit):
    """A failure would keep the other tokens of a layer from who uses no mouse, or who listens."""
    with visit("") as seen:
        whole, page = put(seen.page, "lens-grid"), seen.page
        said = whole.get_by_role("status")

        def words(layer, t):
            values, ids = LENS[0][layer, t].double().softmax(-1).topk(5)
            pairs = zip(read(map(symbol, ids.tolist())), map(percent, values.tolist()), strict=True)
            return f"Layer {layer}, after {read(LENS_TEXTS[0])[t]}: {', '.join(map(' '.join, pairs))}."

        assert said.text_content() == words(6, 7)
        assert whole.locator("[tabindex='0'].says").count() == 1
        whole.locator("[tabindex='0'].says").focus()
        for key, place in (("ArrowUp", (5, 7)), ("ArrowLeft", (5, 6)), ("ArrowDown", (6, 6)), ("ArrowDown", (6, 6))):
            page.keyboard.press(key)
            assert said.text_content() == words(*place)
        for _ in range(9):
            page.keyboard.press("ArrowLeft")
        assert said.text_content() == words(6, 0)
        assert whole.locator("[tabindex='0'].says").count() == 1
        whole.locator(".says").nth(9).hover()
        assert said.text_content() == words(1, 1)
        assert seen.problems == []


# Arithmetic with words ------------------------------------------------------------------------------------------------


def nearest(a, b, c, inputs=False, centred=False) -> dict[str, float]:
    vectors = (EMBEDDINGS - MEAN if centred else EMBEDDINGS).double()
    i, j, k = map(WORDS.index, (a, b, c))
    cosines = F.cosine_similarity(vectors, (vectors[i] - vectors[j] + vectors[k])[None], dim=-1)
    return {word: p for word, p in zip(WORDS, cosines.tolist(), strict=True) if inputs or word not in (a, b, c)}


def test_the_nearest_words_are_those_of_pytorch(visit):
    """A failure would answer with other words than the model's embeddings do, or not do what a box says."""
    with visit("") as seen:
        whole, page = put(seen.page, "word-arithmetic"), seen.page
        fields = [whole.get_by_role("combobox", name=name) for name in ("first word", "minus", "plus")]
        without = whole.get_by_role("checkbox", name="leave out the three words")
        centred = whole.get_by_role("checkbox", name="take the mean off first")
        assert [field.input_value() for field in fields] == ["king", "man", "woman"]
        for words in (("king", "man", "woman"), ("Paris", "word1", "word2"), ("word7", "word8", "word8")):
            for field, word in zip(fields, words, strict=True):
                field.fill(word)
            page.keyboard.press("Enter")
            for leave in (True, False):
                for mean in (False, True):
                    without.set_checked(leave)
                    centred.set_checked(mean)
                    right = nearest(*words, inputs=not leave, centred=mean)
                    best = sorted(right.values(), reverse=True)[:8]
                    shown = bars(whole)
                    assert [right[word] for word, *_ in shown] == pytest.approx(best, abs=0.005)
                    assert [length for _, length, _ in shown] == pytest.approx(best, abs=0.005)
                    assert [said for *_, said in shown] == [f"{length:.2f}" for _, length, _ in shown]
                    a, b, c = words
                    begin = f"Nearest to {a} − {b} + {c}: {shown[0][0]}, with a cosine of {shown[0][2]}."
                    assert whole.get_by_role("status").inner_text() == begin
                    marked = whole.locator("li.own code").all_inner_texts()
                    assert set(marked) == ({word for word, *_ in shown} & set(words))
                    assert bool(marked) == (not leave)
        other = nearest(*words, inputs=True, centred=False)  # a control: without the mean taken off
        assert [other[word] for word, *_ in shown] != pytest.approx([p for _, p, _ in shown], abs=0.005)
        assert seen.problems == []


def test_a_word_that_is_no_token_or_not_in_the_list_is_said_to_be_so(visit):
    """A failure would answer for another word, or with nothing at all."""
    with visit("") as seen:
        whole, page = put(seen.page, "word-arithmetic"), seen.page
        field, said = whole.get_by_role("combobox", name="first word"), whole.get_by_role("status")
        for typed, words in (
            ("strawberry", "“strawberry” is not one token but 3: ␣str · aw · berry."),
            ("xyzzy", "“xyzzy” is not among the 300 words of this list."),
            ("<b>x</b>", "“<b>x</b>” is not among"),
            ("", "A word is missing."),
        ):
            field.fill(typed)
            page.keyboard.press("Enter")
            assert said.inner_text().startswith(words)
            assert field.get_attribute("aria-invalid") == "true"
            assert bars(whole) == []
        for typed, word in ((" paris ", "Paris"), ("KING", "king")):
            field.fill(typed)
            page.keyboard.press("Enter")
            assert said.inner_text().startswith(f"Nearest to {word} − man + woman: ")
            folded = f"“{typed.strip()}” is not in the list: this is the answer for “{word}”, which is another one to "
            assert said.inner_text().endswith(folded + "the model.")
            field.fill(word)
            assert said.inner_text().startswith(f"Nearest to {word} − man + woman: ")
            assert "not in the list" not in said.inner_text()
            assert (field.input_value(), field.get_attribute("aria-invalid")) == (word, "false")
        whole.get_by_role("button", name="Paris − word1 + word2").click()
        assert said.inner_text().startswith("Nearest to Paris − word1 + word2: ")
        assert seen.problems == []


# All of them ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not util.find_spec("axe_playwright_python"), reason="no axe: pip install axe-playwright-python")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_they_fit_and_are_accessible(visit, scheme, width):
    """A failure would shut out readers who see little contrast, use a keyboard, listen, or hold a phone."""
    with visit("", scheme=scheme, width=width) as seen:
        for tag in TAGS:
            put(seen.page, tag)
        seen.page.locator("attention-view .line label").nth(9).click()
        shown = seen.page.locator("word-arithmetic input").first
        shown.fill("xyzzy")
        shown.press("Enter")
        assert violations(seen.page) == []
        assert faults(seen.page) == []
        room = seen.page.locator("attention-view, next-tokens, word-arithmetic")
        for element in room.all():
            assert element.evaluate("(e) => e.scrollWidth <= e.clientWidth")
        heights = seen.page.locator(".control label").evaluate_all("(all) => all.map((e) => e.getClientRects().length)")
        assert set(heights) == {1}
        assert seen.problems == []


@pytest.mark.parametrize("tag", TAGS)
def test_a_missing_file_leaves_the_picture_and_says_so(visit, tag):
    """A failure would leave a reader with nothing, or with controls that do nothing."""
    with visit("") as seen:
        there = []
        content = THINGS[tag].data().content

        def answer(route):
            return route.fulfill(body=content) if there else route.fulfill(status=404, body="<html>")

        whole = put(seen.page, tag, answer)
        said = whole.get_by_role("status").filter(has_text="could not be loaded")
        said.wait_for()
        assert whole.locator("select, input").count() == 0
        assert whole.locator("ol > li, .map i, td.says").first.is_visible()
        again = whole.get_by_role("button", name="Try again")
        again.click()
        said.wait_for()
        assert said.count() == 1
        there.append(True)
        again.click()
        whole.locator("select, input").first.wait_for()
        assert said.count() == 0
        assert [problem for problem in seen.problems if "404" not in problem] == []


def test_a_file_is_asked_for_when_the_reader_comes_near(visit):
    """A failure would load all files with the page, for readers who never come to them."""
    with visit("") as seen:
        page, asked = seen.page, []
        file = THINGS["word-arithmetic"].data()
        page.route("**/assets/data/*", lambda route: (asked.append(1), route.fulfill(body=file.content)))
        page.evaluate(
            """(html) => document.querySelector("article").insertAdjacentHTML("beforeend",
                `<div style="height: 5000px"></div>${html}`)""",
            THINGS["word-arithmetic"]._repr_html_(),
        )
        page.wait_for_timeout(300)
        assert asked == []
        page.locator("word-arithmetic").last.scroll_into_view_if_needed()
        page.locator("word-arithmetic").last.locator("input").first.wait_for()
        assert asked == [1]


def test_in_print_the_pictures_stand_without_their_controls(visit):
    """A failure would print sliders that nobody can move."""
    with visit("") as seen:
        for tag in TAGS:
            whole = put(seen.page, tag)
            seen.page.emulate_media(media="print")
            assert [one for one in whole.locator("button, select, .control, .sum").all() if one.is_visible()] == []
            assert whole.locator("ol > li, .map i, td.says").first.is_visible()
            seen.page.emulate_media(media="screen")
            assert whole.locator("select, input[type='text']").first.is_visible()


@pytest.mark.parametrize("tag", TAGS)
def test_moving_an_element_does_not_double_its_controls(visit, tag):
    with visit("") as seen:
        whole = put(seen.page, tag)
        before = whole.locator("select, input, button").count()
        whole.evaluate("(element) => element.parentElement.append(element)")
        assert whole.locator("select, input, button").count() == before
        assert seen.problems == []


@of_the_page
@pytest.mark.parametrize("width", [390, 1280])
def test_without_javascript_the_pictures_of_the_page_stand(visit, width):
    """A failure would leave a reader without scripts with nothing."""
    with visit(PAGE, javascript=False, width=width) as seen:
        for tag in TAGS:
            whole = seen.page.locator(tag).first
            assert whole.locator("input, select, button").count() == 0
            assert whole.locator("ol > li, .map i, td.says").count() > 7
            assert whole.locator("ol > li, .map i, td.says").first.is_visible()
            assert whole.locator("p").first.is_visible()
        assert seen.problems == []


@of_the_page
def test_they_start_and_start_again_when_pages_change_without_a_reload(visit):
    """A failure would show dead pictures, or two rows of controls, to readers who come from another page."""
    with visit(BEFORE) as seen:
        page = seen.page
        page.evaluate("window.sameDocument = true")
        page.locator(f".md-nav--primary a[href$='{PAGE}']").first.click()

        def started():
            page.wait_for_function("document.querySelector('word-arithmetic')")
            found = {}
            for tag in TAGS:
                whole = page.locator(tag).first
                whole.scroll_into_view_if_needed()
                whole.locator("select, input").first.wait_for()
                found[tag] = whole.locator("select, input, button").count()
            return found

        cold = started()
        page.locator(f".md-nav--primary a[href$='{BEFORE}']").first.click()
        page.wait_for_function("!document.querySelector('word-arithmetic')")
        page.go_back()
        assert started() == cold
        assert page.evaluate("window.sameDocument === true"), "the document was loaded anew"
        assert [problem for problem in seen.problems if not problem.startswith("failed to load")] == []
