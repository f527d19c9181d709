"""The codes of passed self-checks, and the checklist of the home page that they tick."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gptbook import exercises
from gptbook.exercises import codes

ROOT = Path(__file__).parents[1]
HOME = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
LOOK_ALIKES = ["0OQD", "1IL", "2Z", "5S", "8B", "6G", "UV"]


def items() -> list[tuple[str, str, str]]:
    """(page, id, exercise or "") of each item of the checklist."""
    listed = HOME[HOME.index('<div class="checklist"') :].split("</div>")[0]
    found = re.findall(r"^\* .*?\((\w+)\.py\)\s+\{: #([\w-]+)(?: data-exercise=\"([^\"]+)\")? \}$", listed, re.M | re.S)
    assert len(found) == listed.count("\n* ")
    return found


def test_codes_stay_what_they_are():
    """A failure would void the codes that readers have written down, and those of every installed package."""
    assert codes.code("decaying-average") == "decaying-average-XHR7"
    assert codes.code("clip") == "clip-H44A"


def test_codes_differ():
    """A failure would let one exercise tick the item of another."""
    names = [*exercises.registry, *(f"exercise-{i}" for i in range(500))]
    made = {codes.code(name) for name in names}
    assert len(made) == len({codes.mark(code) for code in made}) == len(names)
    assert len({code[-codes.LENGTH :] for code in made}) > 490  # the signs depend on the whole name


@pytest.mark.parametrize("alike", LOOK_ALIKES)
def test_no_two_signs_look_alike(alike):
    """A failure would send a reader, who copied a code by hand, back to the exercise."""
    assert sum(sign in codes.SIGNS for sign in alike) <= 1
    assert len(set(codes.SIGNS)) == len(codes.SIGNS)
    assert all(re.fullmatch(rf"{name}-[{codes.SIGNS}]{{4}}", codes.code(name)) for name in exercises.registry)


def test_only_a_passed_check_has_a_code(monkeypatch):
    """A failure would give the code away, or keep it from a reader who earned it."""
    monkeypatch.delenv("GPTBOOK_HIDE_CODES", raising=False)
    good, bad = exercises.check("largest-width", 196), exercises.check("largest-width", 100)
    assert good.code == codes.code("largest-width")
    assert str(good) == f"✓ largest-width: {good.message}. Your code: {good.code}"
    assert f"Your code: <code>{good.code}</code>" in good._repr_html_()
    assert good.code in good._repr_mimebundle_()["text/plain"]
    assert bad.code == ""
    assert "code" not in str(bad) + bad._repr_html_().replace("<code", "")
    assert codes.code("largest-width") not in str(bad) + bad._repr_html_()


def test_a_sentence_with_its_own_full_stop_gets_no_second_one():
    """A failure would print two full stops in a row."""
    assert "done. Your code" in str(exercises.Verdict("clip", True, "done."))
    assert "done. Your code" in exercises.Verdict("clip", True, "done.")._repr_html_()


def test_the_build_keeps_codes_out_of_outputs():
    """A failure would show the code to everybody who opens a solution."""
    program = (
        "from gptbook import exercises\n"
        "v = exercises.check('unseen-character', lambda text, ids: [ids[c] for c in text])\n"
        "w = exercises.Verdict('clip', True, 'done')\n"
        "print(v, w, w._repr_html_(), w.code)\n"
    )
    for hide, times in (("1", 1), ("", 3)):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True, cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "GPTBOOK_HIDE_CODES": hide},
        )  # fmt: skip
        assert done.stdout.count(codes.code("clip")) == times  # the attribute keeps it


@pytest.mark.parametrize(
    "typed", ["clip-H44A", " Clip-h44a\n", "CLIP H44A", "clip\u2011H44A", "cliph44a", "ｃｌｉｐＨ４４Ａ"]
)
def test_how_a_code_is_typed_does_not_matter(typed):
    """A failure would refuse a right code for a blank or a small letter."""
    assert codes.mark(typed) == codes.mark(codes.code("clip"))
    assert codes.mark(typed + "A") != codes.mark(codes.code("clip"))


@pytest.mark.parametrize(("text", "value"), [("", "811c9dc5"), ("a", "e40c292c"), ("foobar", "bf9cf968")])
def test_the_mark_is_fnv_1a(text, value):
    """A failure would mean that the page, which computes the published function, knows no code again."""
    assert codes.mark(text) == value


def test_the_checklist_has_the_items_of_the_course():
    """A failure would mean an item without its page, or two that a browser keeps as one."""
    assert len(items()) == 7
    assert len({name for _, name, _ in items()}) == 7
    tied = [exercise for _, _, exercise in items() if exercise]
    assert tied
    assert len(set(tied)) == len(tied)


@pytest.mark.parametrize(("page", "name", "exercise"), items(), ids=lambda value: value or "no exercise")
def test_each_item_leads_to_its_exercise(page, name, exercise):
    """A failure would send a reader to a page that does not have the exercise, or to none."""
    source = (ROOT / "docs" / f"{page}.py").read_text(encoding="utf-8")
    if exercise:
        assert exercise in exercises.registry
        assert f'exercises.check("{exercise}"' in source


def test_codes_are_not_on_the_pages():
    """A failure would put a code in the clear into a page's source."""
    for path in (ROOT / "docs").rglob("*.*"):
        if path.suffix in (".py", ".md", ".js"):
            text = path.read_text(encoding="utf-8")
            assert not [name for name in exercises.registry if codes.code(name) in text], path
