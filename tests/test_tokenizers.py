"""Text to numbers and back: nothing lost, nothing invented, and a clear word where that cannot be."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from gptbook.tokenizers import UNKNOWN, CharTokenizer

anything = st.text(st.characters(), min_size=1)  # lone surrogates too


def one_line(error) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


@given(anything)
def test_numbers_are_places_in_the_sorted_characters(text):
    """If this fails, the same text no longer gives the same numbers, and saved models read it wrongly."""
    tokenizer = CharTokenizer.train(text)
    order = sorted(set(text))
    assert tokenizer.symbols == order
    assert tokenizer.vocab_size == len(order)
    assert tokenizer.encode(text) == [order.index(character) for character in text]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_number_can_be_decoded():
    """If this fails, a model may draw a token that cannot be shown."""
    tokenizer = CharTokenizer.train("to be or not to be", vocab_size=5)
    assert len(tokenizer.decode(range(tokenizer.vocab_size))) == tokenizer.vocab_size


def test_a_character_of_the_last_place_only_has_a_number():
    """If this fails, the vocabulary leaves out what only the validation part holds."""
    text = "a" * 99 + "ß"
    assert CharTokenizer.train(text).decode(CharTokenizer.train(text).encode("ß")) == "ß"


@given(anything, st.integers(1, 8))
def test_a_small_vocabulary_keeps_the_most_frequent(text, size):
    """If this fails, a text with more characters than the model has room for is cut down in the wrong place."""
    tokenizer = CharTokenizer.train(text, vocab_size=size)
    distinct = sorted(set(text))
    if len(distinct) <= size:
        assert tokenizer == CharTokenizer.train(text)
        return
    assert tokenizer.vocab_size == size
    assert tokenizer.symbols[-1] == tokenizer.unknown == UNKNOWN
    kept, lost = set(tokenizer.symbols[:-1]), set(distinct) - set(tokenizer.symbols)
    for one in kept:
        for other in lost:
            assert (-text.count(one), one) < (-text.count(other), other)
    assert tokenizer.decode(tokenizer.encode(text)) == "".join(c if c in kept else UNKNOWN for c in text)
    assert max(tokenizer.encode(text + "\U0010fffe")) < size


def test_ties_go_to_the_lower_code_point():
    """If this fails, the vocabulary depends on the order in which a text brings its characters."""
    assert CharTokenizer.train("dcbadcba", vocab_size=3).symbols == ["a", "b", UNKNOWN]


def test_the_sign_for_others_in_the_text_itself_is_no_second_symbol():
    """If this fails, a text with U+FFFD in it breaks the vocabulary."""
    tokenizer = CharTokenizer.train(UNKNOWN * 9 + "aab", vocab_size=2)
    assert tokenizer.symbols == ["a", UNKNOWN]
    assert tokenizer.decode(tokenizer.encode(f"ab{UNKNOWN}")) == f"a{UNKNOWN}{UNKNOWN}"


@given(anything, anything)
def test_an_unknown_character_is_named_with_its_position(text, other):
    """If this fails, a reader's prompt ends in a KeyError, or in a prompt that silently lacks a character."""
    known = set(text)
    strange = [i for i, character in enumerate(other) if character not in known]
    assume(strange)
    with pytest.raises(ValueError, match="vocabulary") as error:
        CharTokenizer.train(text).encode(other)
    message = one_line(error)
    assert f"position {strange[0]} " in message
    assert repr(other[strange[0]]) in message


@pytest.mark.parametrize(
    "kind", [list, tuple, iter, torch.tensor, np.array, lambda ids: torch.tensor(ids, dtype=torch.uint8)]
)
def test_decode_takes_rows_of_every_kind(kind):
    """If this fails, what a model generates has to be converted by hand."""
    tokenizer = CharTokenizer.train("hello")
    assert tokenizer.decode(kind(tokenizer.encode("hole"))) == "hole"


@pytest.mark.parametrize("wrong", [-1, 4, 10**20])
def test_decode_refuses_what_is_no_token(wrong):
    """If this fails, id -1 reads as the last symbol, and a model with too many tokens is not noticed."""
    with pytest.raises(ValueError, match=r"outside 0\.\.3") as error:
        CharTokenizer.train("hello").decode([0, wrong])
    assert f"{wrong} at position 1" in one_line(error)


@pytest.mark.parametrize(
    "wrong", [torch.zeros(2, 3, dtype=torch.long), torch.zeros(2), [0.0], ["0"], 3, torch.tensor(1)]
)
def test_decode_refuses_what_is_no_row(wrong):
    """If this fails, a whole batch or a row of floats is decoded to something."""
    with pytest.raises(TypeError, match="one row of whole numbers") as error:
        CharTokenizer.train("hello").decode(wrong)
    one_line(error)


@pytest.mark.parametrize("method", ["encode", "train"])
@pytest.mark.parametrize("wrong", [b"hello", None, ["h", "e"], 7])
def test_only_strings_are_text(method, wrong):
    """If this fails, bytes give the numbers of bytes instead of characters."""
    with pytest.raises(TypeError, match="must be a string") as error:
        getattr(CharTokenizer.train("hello"), method)(wrong)
    one_line(error)


@pytest.mark.parametrize(
    ("text", "size", "words"),
    [("", None, "empty"), ("ab", 0, "at least 1"), ("ab", 1.0, "whole number"), ("ab", True, "whole number")],
)
def test_train_refuses_nonsense(text, size, words):
    """If this fails, a vocabulary of nothing comes into being and the model fails later, elsewhere."""
    with pytest.raises((ValueError, TypeError), match=words) as error:
        CharTokenizer.train(text, size)
    one_line(error)


@given(text=anything, size=st.none() | st.integers(1, 5))
def test_saved_and_loaded_is_the_same(tmp_path_factory, text, size):
    """If this fails, a saved model reads and writes other characters than it was trained on."""
    path = tmp_path_factory.getbasetemp() / "tokenizer.json"
    tokenizer = CharTokenizer.train(text, size)
    tokenizer.save(path)
    again = CharTokenizer.load(path)
    assert again == tokenizer
    assert again.encode(text) == tokenizer.encode(text)
    assert again == CharTokenizer.from_dict(json.loads(json.dumps(tokenizer.to_dict())))


def test_different_tokenizers_are_not_equal():
    """If this fails, equality in the test above means nothing."""
    assert CharTokenizer(["a", "b"]) != CharTokenizer(["b", "a"])
    assert CharTokenizer(["a", "b"]) != CharTokenizer(["a", "b"], unknown="b")


def test_saving_leaves_one_file_that_any_encoding_reads(tmp_path):
    """If this fails, a file written on one system is unreadable on another, or scraps stay behind."""
    CharTokenizer.train("aß🙂").save(tmp_path / "tokenizer.json")
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
    assert (tmp_path / "tokenizer.json").read_bytes().isascii()


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    """If this fails, a full disk takes the tokenizer of a trained model with it."""
    path = tmp_path / "tokenizer.json"
    CharTokenizer.train("old").save(path)
    before = path.read_bytes()

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        CharTokenizer.train("new").save(path)
    assert path.read_bytes() == before
    assert [other.name for other in tmp_path.iterdir()] == ["tokenizer.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[1]",
        b"{}",
        b"[" * 100_000,
        b'{"type": "characters"}',
        b'{"type": "characters", "symbols": []}',
        b'{"type": "characters", "symbols": ["a", "a"]}',
        b'{"type": "characters", "symbols": ["ab"]}',
        b'{"type": "characters", "symbols": [1]}',
        b'{"type": "characters", "symbols": ["a"], "unknown": "b"}',
        b'{"type": "characters", "symbols": ["a"], "unknown": ["b"]}',
        b'{"type": "bpe", "symbols": ["a"]}',
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, content):
    """If this fails, a damaged file gives a tokenizer that is silently wrong, or a traceback without a file name."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="tokenizer") as error:
        CharTokenizer.load(path)
    assert str(path) in one_line(error)


def test_a_missing_file_is_named(tmp_path):
    """If this fails, the reader does not learn which file is missing."""
    with pytest.raises(ValueError, match="No such file") as error:
        CharTokenizer.load(tmp_path / "nothing.json")
    assert "nothing.json" in one_line(error)


@pytest.mark.parametrize("module", ["tokenizers", "corpora"])
def test_import_is_cheap(module):
    """If this fails, the build and the command line wait for torch where no tensor is in sight."""
    code = f"import sys, gptbook.{module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
