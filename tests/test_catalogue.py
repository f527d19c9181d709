"""The catalogue of mistakes: each is caught by the check that it is for, and named by it."""

import math
import re

import pytest
import torch

from gptbook.verify import catalogue
from gptbook.verify.catalogue import Mistake, likely, same
from gptbook.verify.report import FAILED, Report, Result

MISTAKES = catalogue.all_mistakes()
PAGE = re.compile(r"pages? \d+( and \d+)?")


@pytest.mark.parametrize("mistake", MISTAKES, ids=[m.name for m in MISTAKES])
def test_every_mistake_is_caught_and_named(mistake):
    report = catalogue.caught(mistake)
    assert not report.passed, report
    assert catalogue.is_named(mistake, report), report
    named = [r for r in report.results if r.status == FAILED and mistake.words in r.cause]
    assert any(PAGE.search(r.cause) for r in named), "a cause says where the book explains it"


def test_the_catalogue_is_well_kept():
    names = [m.name for m in MISTAKES]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-zA-Z0-9.-]+", name) for name in names)
    assert all(PAGE.fullmatch(m.page) and m.words and callable(m.wrong) for m in MISTAKES)
    for about in {m.about for m in MISTAKES}:
        words = [m.words for m in MISTAKES if m.about == about]
        assert len(words) >= 2 or about in ("model",)


def test_the_catalogue_is_large_enough():
    functions = [
        m
        for m in MISTAKES
        if m.about in ("average", "attention", "multihead", "layer_norm", "gelu", "block", "loss_fn")
    ]
    assert len(functions) >= 30
    assert len({m.about for m in functions}) == 7


def test_a_mistake_that_no_check_is_about_is_a_fault_of_the_catalogue():
    with pytest.raises(KeyError, match="weather"):
        catalogue.caught(Mistake("rain", "weather", "it rains", "page 1", print))


def test_only_a_failed_result_names_a_mistake():
    mistake = Mistake("a", "gelu", "the half is missing", "page 6", print)
    assert mistake.cause == "the half is missing (page 6)"
    assert catalogue.is_named(mistake, Report((Result("values", FAILED, cause=mistake.cause),)))
    assert not catalogue.is_named(mistake, Report((Result("values", "passed", cause=mistake.cause),)))


def test_same_is_equal_but_for_rounding():
    a = torch.tensor([1.0, 1000.0, math.nan, math.inf])
    assert same(a, a.double())
    assert same(a, torch.tensor([1.009, 1000.0, math.nan, math.inf]), 1e-5)  # of the largest number
    for other in (
        torch.tensor([1.1, 1000.0, math.nan, math.inf]),
        torch.tensor([1.0, 1000.0, 0.0, math.inf]),
        torch.tensor([1.0, 1000.0, math.nan, -math.inf]),
        torch.tensor([1.0, 1000.0, math.nan, 1.0]),
        a[:3],
        None,
    ):
        assert not same(a, other)
    assert same(torch.zeros(0, 3), torch.zeros(0, 3))


def test_the_first_that_equals_all_answers_is_likely():
    def ask(wrong):
        return [wrong(torch.tensor(2.0)), wrong(torch.tensor(3.0))]

    double = Mistake("double", "x", "doubled", "page 1", lambda x: 2 * x)
    square = Mistake("square", "x", "squared", "page 1", lambda x: x * x)
    broken = Mistake("broken", "x", "raises", "page 1", lambda x: 1 / 0)
    assert likely((double, square), ask(lambda x: x**2), ask) is square
    assert likely((broken, double), ask(lambda x: x + x), ask) is double
    assert likely((double, square), ask(lambda x: x + 1), ask) is None
    assert likely((double,), [ValueError("no"), ValueError("no")], ask) is None
