"""Claims: a claim that cannot fail, or that fails silently, would let a wrong number into the prose."""

import math

import pytest
import torch

from gptbook import claims
from gptbook.claims import ClaimFailed, claim


@pytest.fixture(autouse=True)
def _empty(monkeypatch):
    monkeypatch.setattr(claims, "recorded", {})


def test_returns_and_records_the_value():
    assert claim("answer", 42, expected=42) == 42
    assert claims.recorded["answer"].value == 42
    assert claim("free", 1.5) == 1.5


def test_takes_tensors_and_numpy_numbers():
    assert claim("loss", torch.tensor(2.5), expected=2.5) == 2.5
    assert isinstance(claims.recorded["loss"].value, float)


@pytest.mark.parametrize(
    ("value", "settings"),
    [
        (43, {"expected": 42}),
        (42.0, {"expected": 42}),  # another type is not exactly the same
        (True, {"expected": 1}),
        (1.1, {"expected": 1.0, "tolerance": 0.05, "kind": "tolerance"}),
        (4.6, {"expected": (4.0, 4.5), "kind": "statistical"}),
        (3.9, {"expected": (4.0, None)}),
        (4.1, {"expected": (None, 4.0)}),
        (math.nan, {}),
        (math.inf, {"expected": (0.0, None)}),
        (math.nan, {"expected": 0.0, "tolerance": 1.0, "kind": "tolerance"}),
    ],
)
def test_a_wrong_value_fails(value, settings):
    with pytest.raises(ClaimFailed, match="wrong"):
        claim("wrong", value, **settings)
    assert "wrong" not in claims.recorded


@pytest.mark.parametrize(
    ("value", "settings"),
    [
        (1.04, {"expected": 1.0, "tolerance": 0.05, "kind": "tolerance"}),
        (4.0, {"expected": (4.0, 4.5), "kind": "statistical"}),
        (4.5, {"expected": (4.0, 4.5)}),
        (10**9, {"expected": (1, None)}),
        ("text", {"expected": "text"}),
    ],
)
def test_a_right_value_passes(value, settings):
    assert claim("right", value, **settings) == value


@pytest.mark.parametrize(
    ("name", "value", "settings"),
    [
        ("Bad Name", 1, {}),
        ("kind", 1, {"kind": "roughly"}),
        ("loose", 1.0, {"expected": 1.0, "kind": "tolerance"}),  # a tolerance is missing
        ("exact", 1.0, {"expected": 1.0, "tolerance": 0.1}),  # exact, with a tolerance
        ("alone", 1.0, {"tolerance": 0.1, "kind": "tolerance"}),  # a tolerance round nothing
        ("both", 1.0, {"expected": (0.0, 1.0), "tolerance": 0.1, "kind": "tolerance"}),
        ("open", 1.0, {"expected": (None, None)}),
        ("minus", 1.0, {"expected": 1.0, "tolerance": -1.0, "kind": "tolerance"}),
        ("endless", 1.0, {"expected": 1.0, "tolerance": math.inf, "kind": "tolerance"}),
    ],
)
def test_a_claim_that_makes_no_sense_is_refused(name, value, settings):
    with pytest.raises(ValueError, match=name):
        claim(name, value, **settings)


def test_a_value_must_be_one_number_or_a_text():
    with pytest.raises(TypeError, match="list"):
        claim("many", [1, 2])


def test_one_name_has_one_value():
    claim("twice", 1)
    claim("twice", 1)  # a cell run again
    with pytest.raises(ClaimFailed, match="twice"):
        claim("twice", 2)
