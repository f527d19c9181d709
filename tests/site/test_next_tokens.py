"""The next tokens of page 10 as readers use them: numbers, keys, what is heard, and what stands without a script."""

import json
import math
import os

import pytest
import torch
from reading import missing

if reason := missing():
    if os.environ.get("GPTBOOK_SITE_REQUIRED"):
        raise RuntimeError(reason)  # where the site must be looked at, a skip is a failure
    pytest.skip(reason, allow_module_level=True)

PAGE = "10_sampling/"


class NextTokens:
    """The element on a page that stands in the browser, with its script at work."""

    def __init__(self, page):
        self.page, self.whole = page, page.locator("next-tokens")
        self.whole.locator("select").wait_for()
        self.about = json.loads(self.whole.get_attribute("data-rows"))
        self.prompt, self.status = self.whole.get_by_role("combobox"), self.whole.get_by_role("status")

    def slider(self, name):
        return self.whole.get_by_role("slider", name=name)

    def set(self, **values):
        """Move the controls to the values of temperature, k and p, and choose a prompt, as far as they are given."""
        if "prompt" in values:
            self.prompt.select_option(str(values.pop("prompt")))
        for name, value in values.items():
            self.slider({"k": "top-k", "p": "top-p"}.get(name, name)).fill(str(value))

    def bars(self) -> list[tuple[str, float, str]]:
        """(symbol, chance as the bar's length, chance as text) of each bar."""
        read = """(items) => items.map((item) => [
            item.querySelector("code").textContent, Number(item.style.getPropertyValue("--p")),
            item.querySelector(".share").textContent,
        ])"""
        return [tuple(bar) for bar in self.whole.locator("ol > li").evaluate_all(read)]


def expected(about, prompt, temperature, k, p) -> list[tuple[str, float]]:
    """The bars from the published logits, by a formula of the test's own: picking, and no sort."""
    row = torch.tensor(about["rows"][prompt], dtype=torch.float64)  # (V,)
    left, picked = dict(enumerate(row.tolist())), []
    while left:
        best = max(left, key=lambda i: (left[i], -i))
        picked.append(best)
        del left[best]
    allowed = picked[: 1 if temperature == 0 else k]
    scaled = row[allowed] / temperature if temperature else torch.zeros(1, dtype=torch.float64)
    chances = torch.softmax(scaled, dim=0).tolist()
    kept = {}
    for i, chance in zip(allowed, chances, strict=True):
        if kept and p < 1 and math.fsum(kept.values()) >= p:
            break
        kept[i] = chance
    total = math.fsum(kept.values())
    shown = {" ": "␣", "\n": "↵"}
    symbols = about["symbols"]
    return [(shown.get(symbols[i], symbols[i]), kept.get(i, 0.0) / total) for i in picked[: about["top"]]]


SETTINGS = [
    {"temperature": 0.5}, {}, {"temperature": 2}, {"temperature": 0}, {"temperature": 0.05}, {"k": 1}, {"k": 3},
    {"p": 0}, {"p": 0.9}, {"p": 0.5, "temperature": 1.5}, {"k": 5, "p": 0.8, "temperature": 0.7},
]  # fmt: skip


@pytest.mark.parametrize("prompt", [0, 5, 11])
def test_the_numbers_are_those_of_pytorch(visit, prompt):
    """A failure would show chances that no model gave: a wrong softmax, a setting ignored, another prompt's row."""
    with visit(PAGE) as seen:
        tokens = NextTokens(seen.page)
        V = len(tokens.about["symbols"])
        for changed in SETTINGS:
            now = {"temperature": 1, "k": V, "p": 1} | changed
            tokens.set(prompt=prompt, **now)
            right, bars = expected(tokens.about, prompt, **now), tokens.bars()
            assert [bar[0] for bar in bars] == [symbol for symbol, _ in right]
            assert [bar[1] for bar in bars] == pytest.approx([p for _, p in right], abs=1e-9), now
            for (_, _, text), (_, p) in zip(bars, right, strict=True):
                assert text == ("–" if p == 0 else "< 0.1 %" if p < 0.0005 else f"{100 * p:.1f} %"), now
        wrong = expected(tokens.about, prompt, temperature=1, k=V, p=1)  # a control: not the last setting's chances
        assert [bar[1] for bar in bars] != pytest.approx([p for _, p in wrong], abs=1e-3)
        assert seen.problems == []


def test_the_published_logits_are_those_of_the_table_beside(visit):
    """A failure would mean that the element was given other logits than the page speaks of."""
    with visit(PAGE) as seen:
        tokens = NextTokens(seen.page)
        table = next(t for t in seen.page.locator("table").all() if "kept at p = 0.9" in t.inner_text())
        cells = [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]
        assert [row[0] for row in cells] == tokens.about["prompts"]
        for i, (_, entropy, kept) in enumerate(cells):
            p = torch.softmax(torch.tensor(tokens.about["rows"][i], dtype=torch.float64), dim=0)
            assert float(entropy) == pytest.approx(-(p * p.log()).sum().item(), abs=0.006)
            tokens.set(prompt=i, p=1)
            assert (
                tokens.status.inner_text()
                == f"{len(p)} of {len(p)} tokens can come. Entropy: {float(entropy):.2f} nats."
            )
            tokens.set(p=0.9)
            assert tokens.status.inner_text().startswith(f"{kept} of {len(p)} tokens can come.")


def test_keys_move_the_controls_and_what_changed_is_heard(visit):
    """A failure would shut out who uses no mouse, or who listens."""
    with visit(PAGE) as seen:
        tokens, page = NextTokens(seen.page), seen.page
        before = tokens.bars()
        tokens.slider("temperature").focus()
        page.keyboard.press("ArrowLeft")
        assert tokens.slider("temperature").get_attribute("aria-valuetext") == "0.95"
        assert tokens.bars() != before
        page.keyboard.press("Home")
        assert tokens.slider("temperature").get_attribute("aria-valuetext") == "0, greedy"
        assert tokens.status.inner_text() == f"1 of {len(tokens.about['symbols'])} tokens can come. Entropy: 0.00 nats."
        page.keyboard.press("Tab")
        page.keyboard.press("Home")
        assert tokens.slider("top-k").get_attribute("aria-valuetext") == "1"
        page.keyboard.press("Tab")
        page.keyboard.press("Home")
        assert tokens.slider("top-p").get_attribute("aria-valuetext") == "0.00"
        tokens.whole.get_by_role("button", name="Reset").focus()
        page.keyboard.press("Enter")
        assert tokens.bars() == before
        assert tokens.slider("top-k").get_attribute("aria-valuetext").startswith("all ")
        assert tokens.whole.get_by_role("combobox", name="after").count() == 1
        assert tokens.whole.get_by_role("listitem").count() == tokens.about["top"]
        assert seen.problems == []


def test_it_starts_and_starts_again_when_pages_change_without_a_reload(visit):
    """A failure would show a dead picture, or two rows of controls, to readers who come from another page."""
    with visit("09_training/") as seen:
        page = seen.page
        page.evaluate("window.sameDocument = true")
        page.locator(f".md-nav--primary a[href$='{PAGE}']").first.click()
        tokens = NextTokens(page)
        tokens.set(temperature=0.5)
        cold = tokens.bars()
        page.locator(".md-nav--primary a[href$='09_training/']").first.click()
        page.wait_for_function("!document.querySelector('next-tokens')")
        page.go_back()
        tokens = NextTokens(page)
        assert page.evaluate("window.sameDocument === true"), "the document was loaded anew"
        assert tokens.whole.count() == 1
        assert tokens.whole.get_by_role("slider").count() == 3
        assert tokens.bars() != cold  # a new element, at temperature 1
        tokens.set(temperature=0.5)
        assert tokens.bars() == cold
        assert [problem for problem in seen.problems if not problem.startswith("failed to load")] == []


def test_moving_the_element_does_not_double_its_controls(visit):
    """A failure would add a second set of controls whenever something moves the element within the page."""
    with visit(PAGE) as seen:
        tokens = NextTokens(seen.page)
        tokens.set(temperature=0.5)
        before = tokens.bars()
        tokens.whole.evaluate("(element) => element.parentElement.append(element)")
        assert tokens.whole.get_by_role("slider").count() == 3
        assert tokens.bars() == before


@pytest.mark.parametrize("width", [390, 1280])
def test_without_javascript_the_picture_stands(visit, width):
    """A failure would leave a reader without scripts with nothing, or with other numbers than those of the script."""
    with visit(PAGE, javascript=False, width=width) as seen:
        whole = seen.page.locator("next-tokens")
        about = json.loads(whole.get_attribute("data-rows"))
        assert whole.locator("input, select, button").count() == 0
        assert about["prompts"][0] in whole.locator("p").inner_text()
        items = whole.locator("ol > li")
        right = expected(about, 0, 1, len(about["symbols"]), 1)
        assert [item.locator("code").inner_text() for item in items.all()] == [symbol for symbol, _ in right]
        shares = [item.locator(".share").inner_text() for item in items.all()]
        assert shares == [f"{100 * p:.1f} %" if p >= 0.0005 else "< 0.1 %" for _, p in right]
        widths = [item.locator(".bar").bounding_box()["width"] for item in items.all()]
        assert widths[0] / widths[1] == pytest.approx(right[0][1] / right[1][1], rel=0.05)
        assert widths == sorted(widths, reverse=True)


@pytest.mark.parametrize("width", [390, 1280])
def test_bars_are_as_long_as_their_chances_and_names_fit(visit, width):
    """A failure would draw bars that lie, or break a control's name in two on a phone."""
    with visit(PAGE, width=width) as seen:
        tokens = NextTokens(seen.page)
        tokens.set(prompt=0, temperature=1)
        room = (
            "(item) => [item.querySelector('.bar').getBoundingClientRect().width, item.getBoundingClientRect().width]"
        )
        pairs = [item.evaluate(room) for item in tokens.whole.locator("ol > li").all()[:4]]
        chances = [bar[1] for bar in tokens.bars()[:4]]
        assert [a / pairs[0][0] for a, _ in pairs] == pytest.approx([p / chances[0] for p in chances], rel=0.05)
        assert all(a < b for a, b in pairs)
        heights = tokens.whole.locator("label").evaluate_all("(l) => l.map((e) => e.getClientRects().length)")
        assert set(heights) == {1}
