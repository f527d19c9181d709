"""What the build asks of prose, piece by piece; `test_build.py` shows that it ends a build."""

import pytest

import prose


def numbers(text: str, *exceptions: str) -> list[str]:
    return [number for _, number in prose.bare_numbers(text, prose.Exceptions(dict.fromkeys(exceptions, "a reason")))]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It is 3.5 wide.", ["3.5"]),
        ("It has 1,115,394 characters.", ["1,115,394"]),
        ("A width of 128.", ["128"]),
        ("At .5 and -0.25.", [".5", "0.25"]),
        ("With a narrow blank, 1\u202f000.", ["1\u202f000"]),
        ("**816,640** *4.17*", ["816,640", "4.17"]),
        ("!!! note \"Of 512\"\n\n    Indented 1.5 here.", ["512", "1.5"]),
        ("| a | 0.1 |", ["0.1"]),
        ("<figcaption>It is 2.5</figcaption>", ["2.5"]),
        ("A `code` and 200 more `code`", ["200"]),
        ("Costs $5, then 300 and $6.", ["300"]),
        ("Version 3.11", ["3.11"]),
    ],
)  # fmt: skip
def test_bare_numbers_are_found(text, found):
    """If this fails, a number that nobody computed can stand in prose."""
    assert numbers(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "Page 8 has 12 parts, a 90th and 3 more.",
        "In `3.14` and ``a ` 128`` code.",
        "```\n1.5\n```",
        "    ```python\n    x = 1.5\n    ```",
        "~~~~\n```\n1.5\n~~~~",
        "$x = 0.02$ and $$\n1.5\n$$ and \\(2.5\\) and \\[ 300 \\]",
        "\\begin{aligned}\n1.5\n\\end{aligned}",
        "<!-- 1.5 -->",
        "[of 2015](https://example.org/1234) and ![1.5](a500.png) and [x][123]",
        "https://example.org/12345 and <https://example.org/1.5>",
        "[id]: https://example.org/1234",
        '<img width="1024" src="a.png"> <pre>1.5</pre> <svg><text>1000</text></svg>',
        "{{ share:.25f }} {: width=100 } &#8212;",
        "A sentence ends with 12. Another begins with 5, or 6: 7.",
        "A note.[^123]",
    ],
)
def test_code_formulas_links_and_markup_are_left_alone(text):
    """If this fails, the build forbids what the contract allows."""
    assert numbers(text) == []


def test_exceptions_cover_their_phrase_and_no_more():
    """If this fails, an exception for a year opens the door to every number that holds it."""
    assert numbers("It was in\n2015, and 2015 more.", "in 2015") == ["2015"]
    assert numbers("Version 3.11, 3.110 and 13.11", "3.11") == ["3.110", "13.11"]


def test_unused_exceptions_are_known():
    """If this fails, the list of exceptions only grows."""
    exceptions = prose.Exceptions({"in 2015": "a year", "in 2016": "a year"})
    prose.bare_numbers("in 2015", exceptions)
    assert exceptions.unused() == ["in 2016"]


def test_exception_needs_a_reason(tmp_path):
    """If this fails, exceptions come without saying why."""
    (tmp_path / "exceptions.toml").write_text('[[exception]]\ntext = "in 2015"\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"exceptions\.toml: every exception needs a text and a reason"):
        prose.Exceptions.read(tmp_path / "exceptions.toml")


def test_claims_are_filled_outside_code_and_formulas():
    """If this fails, a claim stays unfilled, or a formula's braces are taken for one."""
    text = "{{ n:,}} and {{n}}, `{{ n }}`, $a_{{n}}$\n\n```\n{{ n }}\n```\n\n<pre>{{ s }}</pre>"
    filled, problems = prose.fill(text, {"n": 1234, "s": "a\n<b>"})
    assert problems == []
    assert filled == "1,234 and 1234, `{{ n }}`, $a_{{n}}$\n\n```\n{{ n }}\n```\n\n<pre>a&#10;&#60;b&#62;</pre>"
    assert prose.fill("{{ s }}", {"s": "a*b*"}, escape=False) == ("a*b*", [])


def test_a_claim_that_nobody_recorded_is_a_dash_where_a_page_was_not_run():
    """If this fails, a page without its asset shows braces, or a slip of the pen passes for a missing number."""
    text = "{{ here }}, {{ gone:,.2f }}, `{{ gone }}`, {{ go ne }}"
    filled, problems = prose.fill(text, {"here": 3}, absent=True)
    assert filled == f"3, {prose.ABSENT}, `{{{{ gone }}}}`, {{{{ go ne }}}}"
    assert len(problems) == 1
    assert len(prose.fill(text, {"here": 3})[1]) == 2  # the control


@pytest.mark.parametrize("text", ["{{ none }}", "{{ n:q }}", "{{ n", "{{ N }}", "{{ }}", "{{ a b }}"])
def test_claims_that_cannot_be_filled_are_named(text):
    """If this fails, braces are published."""
    _, problems = prose.fill(text, {"n": 1})
    assert len(problems) == 1
    assert text.strip("{} ").split(":")[0] in problems[0]


def test_theorems_pair_with_their_tests(tmp_path):
    """If this fails, a theorem can stand untested."""
    page = '!!! theorem "A"\n\n    It holds.\n\n    Tested by `test_a`.\n\nTested by `test_b`.\n'
    tests = tmp_path / "test_theorems.py"
    tests.write_text('import nothing\n\n\n@pytest.mark.theorem("A")\n@other(1)\ndef test_a(): ...\n', encoding="utf-8")
    on_pages, in_tests = prose.theorems_on_pages([("p", page)]), prose.theorems_in_tests(tests)
    assert on_pages == [("p", "A", "test_a")]
    assert in_tests == {"test_a": "A"}
    assert prose.unpaired(on_pages, in_tests, "t") == []
    assert "stands on p already" in prose.unpaired([*on_pages, ("q", "A", "test_a")], in_tests, "t")[0]
    assert "does not say" in prose.unpaired([("p", "A", "")], {}, "t")[0]
    assert "does not mark" in prose.unpaired(on_pages, {}, "t")[0]
    assert "which tests 'B'" in prose.unpaired(on_pages, {"test_a": "B"}, "t")[0]
    assert "no theorem on a page" in prose.unpaired([], in_tests, "t")[0]


def test_addition_stands_below_the_title_and_its_sentence():
    """If this fails, the line about the reading time tears the opening apart."""
    assert prose.after_opening("# T\n\nOne\nline.\n\nTwo.", "+") == "# T\n\nOne\nline.\n\n+\n\nTwo."
    assert prose.after_opening("# T\n\n## U\n\nTwo.", "+") == "# T\n\n+\n\n## U\n\nTwo."
    assert prose.after_opening("# T", "+").split() == ["#", "T", "+"]
