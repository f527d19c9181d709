"""The ledger: it counts what was checked and no more, and lists every claim once."""

import pytest
from bs4 import BeautifulSoup

import ledger

VERSIONS = {"python": "3.11.7", "torch": "2.13.0"}


def claim(name="a", value=1, expected=None, tolerance=None, kind="exact", page="02_bigram"):
    return {"name": name, "value": value, "expected": expected, "tolerance": tolerance, "kind": kind, "page": page}


MIXED = [
    claim("one", 3, 3),
    claim("two", 3, 3),
    claim("near", 1.02, 1.0, 0.1, "tolerance"),
    claim("run", 2.0, [None, 2.5], None, "statistical"),
    claim("seen", 2.0),
    claim("heard", 2.0, kind="statistical"),
]


def foot(claims):
    return BeautifulSoup(
        ledger.foot(claims, VERSIONS, "a <fast> processor", "2026-11-05", "../ledger/"), "html.parser"
    ).p


def test_a_page_says_how_much_of_it_was_checked():
    """A failure would count numbers as checked that nothing was expected of, or miscount the kinds."""
    line = foot(MIXED)
    assert "4 numbers on this page were checked: 2 exactly, 1 within a tolerance and 1 in random runs." in line.text
    assert "2 more numbers were computed." in line.text
    assert "Python 3.11.7 and PyTorch 2.13.0, on 5 November 2026, on a <fast> processor" in line.text
    assert line.a["href"] == "../ledger/"


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        (MIXED[:1], "1 number on this page was checked."),
        (MIXED[4:5], "1 number on this page was computed."),
    ],
)
def test_one_number_and_none(claims, words):
    assert words in foot(claims).text


def test_every_claim_stands_in_the_list_once_under_its_kind():
    """A failure would hide a claim, or show one that was only recorded as if it had been checked."""
    page = BeautifulSoup(ledger.tables(MIXED, {"02_bigram": ("2", "../02_bigram/")}), "html.parser")
    parts = {h.text: h.find_next("table") for h in page.find_all("h2")}
    names = {title: [code.text for code in table.find_all("code")] for title, table in parts.items()}
    assert names == {
        "Exact: 2": ["one", "two"],
        "Within a tolerance: 1": ["near"],
        "From random runs: 1": ["run"],
        "Recorded only: 2": ["seen", "heard"],
    }
    cells = [cell.text for cell in parts["Within a tolerance: 1"].tbody.find_all("td")]
    assert cells == ["near", "1.02", "1 ± 0.1", "2"]
    assert {a["href"] for a in page.find_all("a")} == {"../02_bigram/"}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "yes"), (1_115_394, "1,115,394"), (2.4818895, "2.482"), (23227.6, "23,227.6"), (5.96e-08, "5.96e-08"),
        ("ROMEO:\nO", "“ROMEO: O”"), ("<b>" + "x" * 60, "“<b>" + "x" * 36 + "…”"),
    ],
)  # fmt: skip
def test_values_are_shown_short_and_as_text(value, shown):
    """A failure would let a sample of text into the page as HTML, or break the table with it."""
    page = BeautifulSoup(ledger.tables([claim(value=value)], {}), "html.parser")
    assert page.tbody.find_all("td")[1].text == shown


@pytest.mark.parametrize(
    ("expected", "shown"), [([1.5, None], "≥ 1.5"), ([None, 2], "≤ 2"), ([1, 2], "1 to 2"), (3, "3")]
)
def test_what_was_expected_is_shown_as_a_reader_would_write_it(expected, shown):
    page = BeautifulSoup(ledger.tables([claim(expected=expected)], {}), "html.parser")
    assert page.tbody.find_all("td")[2].text == shown
