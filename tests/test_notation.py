"""The notation page, held against the code that it speaks of: shape comments, configurations, pages."""

import re
from dataclasses import asdict
from pathlib import Path

import jupytext
import pytest

import shapes
from gptbook.model import GPTConfig
from gptbook.recipes import PRESETS, TRAINING

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGE = (DOCS / "notation.md").read_text(encoding="utf-8")
SYMBOLS, GLOSSARY = PAGE.split("\n## Glossary\n")
PAGES = sorted(DOCS.glob("*.py"))
FIELDS = asdict(GPTConfig()) | {"batch_size": TRAINING["step-5"].batch_size}


def rows() -> list[list[str]]:
    """The cells of every row of the tables, heads and rules aside."""
    lines = [line for line in SYMBOLS.splitlines() if line.startswith("| $")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def symbols() -> list[str]:
    return [symbol for row in rows() for symbol in re.findall(r"\$([^$]+)\$", row[0])]


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def sources() -> list[tuple[str, str]]:
    """(name, code) of each cell of a page, and of each file of the package."""
    found = [(path.name, path.read_text(encoding="utf-8")) for path in sorted((ROOT / "gptbook").rglob("*.py"))]
    for path in PAGES:
        notebook = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")
        found += [(path.name, cell.source) for cell in notebook.cells if cell.cell_type == "code"]
    return found


def letters(code: str) -> set[str]:
    """The letters in the shape comments of this code; a longer name, such as `length`, is a variable of its place."""
    used = set()
    for comment, *_ in shapes.comments(code):
        try:
            read = shapes.parse(comment)
        except shapes.NotUnderstood:
            continue  # not on a page: test_shapes.py says so
        for axes in (read.axes, *read.sides) if read else ():
            used.update(name for axis in axes for name in shapes.names(axis))
    return {letter for letter in used if re.fullmatch("[A-Za-z]", letter)}


def test_letters_are_found():
    """If this fails, the next test sees no letters, and passes whatever the page says."""
    assert letters("x = 1  # (B, 4C) each\ny = 2  # (t+1, length) @ (T, ...) -> (D,)") == set("BCtTD")


def test_every_letter_of_a_shape_comment_has_its_row():
    """If this fails, a reader meets a letter in a comment and looks for it in vain."""
    missing = {(name, letter) for name, code in sources() for letter in letters(code) if letter not in symbols()}
    assert missing == set()
    assert {"B", "T", "C", "H", "D", "V"} <= set().union(*(letters(code) for _, code in sources()))


def test_every_symbol_stands_once():
    """If this fails, the page says two things of one symbol."""
    twice = {symbol for symbol in symbols() if symbols().count(symbol) > 1}
    assert twice == set()
    assert {*"BTCHDVLN", *"tsij", *"xqkvW", r"\sigma", r"\varepsilon", r"\ln", r"\operatorname{softmax}"} <= set(
        symbols()
    )


def test_values_are_those_of_the_code():
    """If this fails, the page gives a size of the book's own model that it does not have, or a field that is none."""
    assert asdict(PRESETS["step-5"]) == asdict(GPTConfig())
    sizes = SYMBOLS[SYMBOLS.index("## Sizes") : SYMBOLS.index("## Positions")]
    given = re.findall(r"`([\w /]+) = (\d+)`", sizes)
    for formula, value in given:
        assert eval(formula, {"__builtins__": {}}, FIELDS) == int(value), formula
    assert {name for formula, _ in given for name in re.findall(r"\w+", formula)} == {
        "batch_size", "block_size", "n_embd", "n_head", "vocab_size", "n_layer",
    }  # fmt: skip


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_symbol_leads_to_a_page_that_has_it(row):
    """If this fails, the reader follows the link and does not find the symbol."""
    link = re.fullmatch(r"\[(\d+)\]\((\d\d_\w+\.py)\)", row[-1].strip())
    assert int(link[1]) == int(link[2][:2])
    text = text_of(link[2])
    if "PLACEHOLDER" not in text:  # while the book is being written
        for symbol in re.findall(r"\$([^$]+)\$", row[0]):
            name = re.match(r"\\\w+(?:\{\w+\})?|\w", symbol)[0]
            assert re.search(rf"(?<![a-zA-Z\\]){re.escape(name)}(?![a-zA-Z])", text), symbol


# A word may stand on its page in another form.
FORMS = {"AdamW": "Adam", "bits per character": "bits", "GPT": "GPT"}


def terms() -> list[tuple[str, str, str]]:
    """(word, anchor, sentence) of each entry of the glossary."""
    return re.findall(r"^(\S[^\n]*?) \{ #([\w-]+) \}\n:   (.*?)(?=\n\n|\Z)", GLOSSARY, re.M | re.S)


@pytest.mark.parametrize(("word", "anchor", "sentence"), terms(), ids=[anchor for _, anchor, _ in terms()])
def test_a_word_leads_to_the_page_that_explains_it(word, anchor, sentence):
    """If this fails, the reader follows the link and does not find the word."""
    assert anchor == word.lower().replace(" ", "-")
    links = re.findall(r"\[Page (\d+)\]\((\d\d_\w+\.py)\)", sentence)
    ((number, name),) = links
    assert int(number) == int(name[:2])
    text = text_of(name)
    if "PLACEHOLDER" not in text:  # while the book is being written
        assert FORMS.get(word, word).lower() in " ".join(text.lower().split())


def test_the_glossary_is_complete_and_in_order():
    """If this fails, an entry has another form than the others, or stands where nobody looks."""
    words = [word.lower() for word, _, _ in terms()]
    assert len(words) == GLOSSARY.count("\n:   ") == len(set(words))
    assert words == sorted(words)
    assert {"token", "window", "logit", "nat", "head", "residual stream", "pre-norm", "clipping"} <= set(words)
