"""The checklist of the home page as readers use it: by mouse, by keys, with codes, where scripts or storage fail."""

import os
from itertools import pairwise

import pytest
from reading import missing

from gptbook import exercises
from gptbook.exercises import codes

if reason := missing():
    if os.environ.get("GPTBOOK_SITE_REQUIRED"):
        raise RuntimeError(reason)  # where the site must be looked at, a skip is a failure
    pytest.skip(reason, allow_module_level=True)

CLOSED = """
for (const name of ["getItem", "setItem", "removeItem"]) {
  const real = Storage.prototype[name];
  Storage.prototype[name] = function (key, ...rest) {
    if (key.startsWith("gptbook")) throw new DOMException("no", "SecurityError");
    return real.call(this, key, ...rest);
  };
}
"""
GONE = """
Object.defineProperty(window, "localStorage", {
  get() { throw new DOMException("no storage here", "SecurityError"); },
});
"""


class Checklist:
    """The checklist on a page that stands in the browser."""

    def __init__(self, page):
        self.page, self.whole = page, page.locator(".checklist")
        self.boxes, self.field = self.whole.get_by_role("checkbox"), self.whole.get_by_role("textbox")
        self.message = self.whole.get_by_role("status")
        self.boxes.first.wait_for()

    @property
    def ticked(self) -> list[bool]:
        return [box.is_checked() for box in self.boxes.all()]

    @property
    def count(self) -> str:
        return self.whole.locator(".checklist-count").inner_text()

    def enter(self, typed: str) -> str:
        """Type a code, press Enter, and return what the page says to it."""
        self.page.evaluate("document.querySelector('.checklist-message').textContent = ''")
        self.field.fill(typed)
        self.field.press("Enter")
        self.page.wait_for_function("document.querySelector('.checklist-message').textContent !== ''")
        return self.message.inner_text()


def faults(seen) -> list[str]:
    """What went wrong, but for what a reload or another page cut off while it loaded: test_site.py asks for loads."""
    return [problem for problem in seen.problems if not problem.startswith("failed to load")]


def tied(page) -> dict[str, int]:
    """Exercise -> the number of its item."""
    found = page.locator(".checklist li").evaluate_all("(items) => items.map((item) => item.dataset.exercise ?? '')")
    return {exercise: i for i, exercise in enumerate(found) if exercise}


def only(i: int) -> list[bool]:
    return [k == i for k in range(7)]


def test_ticks_by_mouse_survive_a_reload(visit):
    """A failure would lose what a reader has ticked, or tick what they have not."""
    with visit("") as seen:
        checklist = Checklist(seen.page)
        assert checklist.ticked == [False] * 7
        assert checklist.count == "0 of 7 done"
        seen.page.locator(".checklist label").nth(1).click()  # the words belong to the box
        assert checklist.ticked == only(1)
        assert checklist.count == "1 of 7 done"
        seen.page.reload()
        checklist = Checklist(seen.page)
        assert checklist.ticked == only(1)
        assert checklist.count == "1 of 7 done"
        checklist.boxes.nth(1).click()
        seen.page.reload()
        assert Checklist(seen.page).ticked == [False] * 7
        assert faults(seen) == []


def test_everything_is_in_reach_of_the_keyboard(visit):
    """A failure would shut out who uses no mouse."""
    with visit("") as seen:
        checklist, page = Checklist(seen.page), seen.page
        checklist.boxes.first.focus()
        page.keyboard.press("Space")
        assert checklist.ticked == only(0)
        met = []
        while "Clear all" not in met and len(met) < 30:
            page.keyboard.press("Tab")
            met.append(page.evaluate("(({ type, id, innerText }) => innerText || id || type)(document.activeElement)"))
        assert sum(name.endswith("-box") for name in met) == 6
        assert "checklist-code" in met
        page.keyboard.press("Space")
        assert checklist.ticked == [False] * 7
        assert checklist.message.inner_text() == "All ticks are cleared."
        assert faults(seen) == []


def test_names_for_who_listens(visit):
    """A failure would read boxes without names to a reader who does not see the page."""
    with visit("") as seen:
        checklist = Checklist(seen.page)
        assert checklist.boxes.count() == 7
        for i in range(7):
            words = seen.page.locator(".checklist label").nth(i).inner_text()
            assert len(words) > 20
            assert checklist.whole.get_by_role("checkbox", name=words, exact=True).count() == 1
        assert checklist.whole.get_by_role("textbox", name="The code of a passed check").count() == 1
        assert checklist.message.count() == 1  # a live region


def test_ticks_stay_when_pages_change_without_a_reload(visit):
    """A failure would show a dead or a doubled list to a reader who comes back to the home page."""
    with visit("") as seen:
        page = seen.page
        page.evaluate("window.sameDocument = true")
        Checklist(page).boxes.nth(2).click()
        link = page.locator(".checklist li a").first
        link.click()
        page.wait_for_function("!document.querySelector('.checklist')")
        assert page.evaluate("window.sameDocument === true"), "the document was loaded anew"
        page.locator(".md-nav--primary a", has_text="Home").first.click()
        checklist = Checklist(page)
        assert page.evaluate("window.sameDocument === true"), "the document was loaded anew"
        assert checklist.boxes.count() == 7
        assert checklist.ticked == only(2)
        checklist.boxes.nth(2).click()
        page.go_back()
        page.wait_for_function("!document.querySelector('.checklist')")
        page.go_forward()
        assert Checklist(page).ticked == [False] * 7
        assert faults(seen) == []


def test_the_list_starts_when_a_reader_comes_from_another_page(visit):
    """A failure would leave the list plain for everybody who enters the book elsewhere."""
    with visit("03_averaging/") as seen:
        seen.page.locator(".md-nav--primary a", has_text="Home").first.click()
        checklist = Checklist(seen.page)
        assert "Ticked" in checklist.enter(codes.code("decaying-average"))  # codes.json is found from there too
        assert faults(seen) == []


def test_every_code_is_known_and_ticks_its_item_alone(visit):
    """A failure would refuse a reader who solved an exercise, or tick another item."""
    with visit("") as seen:
        items = tied(seen.page)
        checklist = Checklist(seen.page)
        assert items
        for exercise in exercises.registry:
            said = checklist.enter(codes.code(exercise))
            assert said.startswith(f"Right: you solved “{exercise}”.")
            assert ("Ticked:" in said) == (exercise in items)
            assert ("No item of the list waits for it" in said) == (exercise not in items)
            if exercise in items:
                assert checklist.ticked[items[exercise]]
            assert checklist.field.input_value() == ""
        assert checklist.ticked == [i in items.values() for i in range(7)]
        assert checklist.count == f"{len(items)} of 7 done"
        seen.page.reload()
        assert Checklist(seen.page).count == f"{len(items)} of 7 done"
        assert faults(seen) == []


def wide(text: str) -> str:
    """The text in the letters of a keyboard for Chinese or Japanese."""
    return "".join(chr(ord(sign) + 0xFEE0) for sign in text)


@pytest.mark.parametrize(
    "change",
    [
        "  {}  ", "{upper}", "{lower}", "{spaced}", "✓ x-y: all is well. Your code: {}", "{wide}", "my code: {} yes",
        "{spaced} is what I got",
    ],
)  # fmt: skip
def test_how_a_code_is_typed_does_not_matter(visit, change):
    """A failure would refuse a right code for a blank or a small letter."""
    with visit("") as seen:
        exercise, i = next(iter(tied(seen.page).items()))
        code, checklist = codes.code(exercise), Checklist(seen.page)
        forms = {"upper": code.upper(), "lower": code.lower(), "spaced": code.replace("-", " "), "wide": wide(code)}
        typed = change.format(code, **forms)
        assert "Ticked:" in checklist.enter(typed)
        assert checklist.ticked == only(i)


def test_wrong_codes_say_so(visit):
    """A failure would tick without a reason, or leave a reader without a word."""
    with visit("") as seen:
        exercise = next(iter(tied(seen.page)))
        code, checklist = codes.code(exercise), Checklist(seen.page)
        other = codes.SIGNS[codes.SIGNS.index(code[-1]) - 1]
        assert "No exercise has this code" in checklist.enter("attention-is-all")
        assert checklist.field.get_attribute("aria-invalid") == "true"
        assert f"“{exercise}” is an exercise, but" in checklist.enter(code[:-1] + other)
        assert f"“{exercise}” is an exercise, but" in checklist.enter(exercise)
        assert "No exercise has this code" in checklist.enter(code.split("-")[-1])
        assert "Type or paste" in checklist.enter(" … ")
        assert "No exercise" in checklist.enter("<img src=x onerror=alert(1)>")
        assert checklist.ticked == [False] * 7
        assert "Ticked" in checklist.enter(code)
        assert checklist.field.get_attribute("aria-invalid") == "false"
        assert faults(seen) == []


def test_codes_that_do_not_load_are_no_riddle(visit):
    """A failure would call a right code wrong when the connection is down."""
    with visit("") as seen:
        checklist = Checklist(seen.page)
        seen.page.route("**/codes.json", lambda route: route.abort())
        assert "could not be loaded" in checklist.enter("anything")
        seen.page.unroute("**/codes.json")
        assert "No exercise has this code" in checklist.enter("anything")


def test_clear_all(visit):
    """A failure would leave ticks that a reader wants to be rid of."""
    with visit("") as seen:
        checklist = Checklist(seen.page)
        for box in checklist.boxes.all():
            box.click()
        assert checklist.count == "7 of 7 done"
        checklist.whole.get_by_role("button", name="Clear all").click()
        assert checklist.ticked == [False] * 7
        assert checklist.count == "0 of 7 done"
        seen.page.reload()
        assert Checklist(seen.page).ticked == [False] * 7


def test_two_windows_stay_alike(visit, base):
    """A failure would let an old window take back what was ticked in another."""
    with visit("") as seen:
        first = Checklist(seen.page)
        other = seen.context.new_page()
        other.goto(base)
        second = Checklist(other)
        first.boxes.nth(4).click()
        other.wait_for_function("document.querySelectorAll('.checklist input:checked').length === 1")
        assert second.ticked == only(4)
        assert second.count == "1 of 7 done"
        second.boxes.nth(0).click()
        seen.page.wait_for_function("document.querySelectorAll('.checklist input:checked').length === 2")
        second.whole.get_by_role("button", name="Clear all").click()
        seen.page.wait_for_function("document.querySelectorAll('.checklist input:checked').length === 0")
        assert faults(seen) == []


def test_without_javascript_it_is_a_plain_list(visit):
    """A failure would show boxes that do nothing, or no list."""
    with visit("", javascript=False) as seen:
        items = seen.page.locator(".checklist > ul > li")
        assert items.count() == 7
        assert all(item.locator("a").count() == 1 for item in items.all())
        assert seen.page.locator("article").locator("input, button, form").count() == 0
        assert items.first.evaluate("(item) => getComputedStyle(item.parentElement).listStyleType") == "disc"
        assert "Exercise:" not in seen.page.locator(".checklist").inner_text()


@pytest.mark.parametrize("kept", ["{", "7", "null", '{"a": 1}', '["no-such-item", 3, null]'])
def test_what_somebody_else_left_in_storage_does_no_harm(visit, kept):
    """A failure would break the list for good in a browser whose storage holds something odd."""
    with visit("") as seen:
        seen.page.evaluate("(kept) => localStorage.setItem('gptbook.checklist', kept)", kept)
        seen.page.reload()
        checklist = Checklist(seen.page)
        assert checklist.count == "0 of 7 done"
        checklist.boxes.nth(3).click()
        seen.page.reload()
        assert Checklist(seen.page).ticked == only(3)
        assert faults(seen) == []


def test_closed_storage_keeps_ticks_while_the_page_lives(visit, base):
    """A failure would break the list for readers whose browser keeps nothing, or promise them what it does not keep."""
    with visit(None) as seen:
        seen.page.add_init_script(CLOSED)
        seen.page.goto(base)
        checklist = Checklist(seen.page)
        checklist.boxes.nth(2).click()
        assert "Ticked:" in checklist.enter(codes.code("decaying-average"))
        assert "keeps nothing for this site" in checklist.whole.inner_text()
        seen.page.locator(".checklist li a").first.click()
        seen.page.wait_for_function("!document.querySelector('.checklist')")
        seen.page.go_back()
        checklist = Checklist(seen.page)
        assert checklist.ticked == [i in (0, 2) for i in range(7)]
        checklist.whole.get_by_role("button", name="Clear all").click()
        assert checklist.ticked == [False] * 7
        assert faults(seen) == []


def test_the_list_works_where_the_theme_does_not(visit, base):
    """A failure would mean that the list needs the theme's script, which itself fails where storage is forbidden."""
    with visit(None) as seen:
        seen.page.add_init_script(GONE)
        seen.page.goto(base)
        checklist = Checklist(seen.page)
        checklist.boxes.nth(2).click()
        assert checklist.count == "1 of 7 done"
        assert not [problem for problem in seen.problems if "checklist" in problem]


FAILS = """
window.failing = "";
for (const name of ["getItem", "setItem"]) {
  const real = Storage.prototype[name];
  Storage.prototype[name] = function (key, ...rest) {
    if (key.startsWith("gptbook") && window.failing === name)
      throw new DOMException("no", name === "setItem" ? "QuotaExceededError" : "SecurityError");
    return real.call(this, key, ...rest);
  };
}
"""


def test_storage_that_fails_once_loses_nothing(visit, base):
    """A failure would write over all ticks of a reader whose browser stumbled once."""
    with visit(None) as seen:
        seen.page.add_init_script(FAILS)
        seen.page.goto(base)
        checklist, page = Checklist(seen.page), seen.page
        checklist.boxes.nth(1).click()
        page.evaluate("failing = 'getItem'")
        checklist.boxes.nth(2).click()
        assert "keeps nothing for this site" in checklist.whole.inner_text()
        page.evaluate("failing = ''")
        checklist.boxes.nth(3).click()
        assert checklist.ticked == [i in (1, 2, 3) for i in range(7)]
        assert "kept in this browser only" in checklist.whole.inner_text()
        page.reload()
        assert Checklist(page).ticked == [i in (1, 2, 3) for i in range(7)]
        assert faults(seen) == []


def test_full_storage_is_called_full(visit, base):
    """A failure would tell a reader that nothing is kept, where all but the last ticks are."""
    with visit(None) as seen:
        seen.page.add_init_script(FAILS)
        seen.page.goto(base)
        checklist = Checklist(seen.page)
        checklist.boxes.nth(1).click()
        seen.page.evaluate("failing = 'setItem'")
        checklist.boxes.nth(2).click()
        assert checklist.ticked == [i in (1, 2) for i in range(7)]
        assert "has no room left" in checklist.whole.inner_text()
        assert "keeps nothing" not in checklist.whole.inner_text()
        seen.page.reload()
        assert Checklist(seen.page).ticked == only(1)
        assert faults(seen) == []


def test_a_second_list_has_ids_of_its_own(visit):
    """A failure would tie the second list's label to the first list's field."""
    with visit("") as seen:
        Checklist(seen.page)
        seen.page.evaluate(
            """() => {
              const list = document.createElement("div");
              list.className = "checklist";
              list.innerHTML = '<ul><li id="another">Another <a href="#">link</a></li></ul>';
              document.querySelector(".checklist").after(list);
              return import(document.querySelector('script[src*="checklist"]').src + "?again");
            }"""
        )
        seen.page.locator("#another-box").wait_for()
        ids = seen.page.evaluate("[...document.querySelectorAll('.checklist [id]')].map((one) => one.id)")
        assert len(ids) == len(set(ids)) > 12
        assert seen.page.get_by_label("The code of a passed check").count() == 2


@pytest.mark.parametrize("width", [390, 1280])
def test_the_words_beside_the_picture_do_not_collide(visit, width):
    """A failure would print the parts of the path over each other, or beside the wrong part."""
    with visit("", width=width) as seen:
        tops = "(items) => items.map((item) => item.getBoundingClientRect()).map((box) => [box.top, box.bottom])"
        boxes = seen.page.locator(".path-figure li").evaluate_all(tops)
        picture = seen.page.locator(".path-figure svg").bounding_box()
        assert len(boxes) == 6
        assert all(above[1] <= below[0] for above, below in pairwise(boxes))
        assert picture["y"] <= boxes[0][0]
        caption = seen.page.locator(".path-figure figcaption").bounding_box()
        assert boxes[-1][1] <= caption["y"]
