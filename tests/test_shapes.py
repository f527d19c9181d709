"""Shape comments: read, woven into code, held against values; on the pages, and in the package's own modules.

A case is a piece of code and what is wrong with it; an empty string says that nothing is.
"""

import ast
import builtins
import inspect
import linecache
import re
import sys
import textwrap
import traceback
import types
from pathlib import Path

import jupytext
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

import gptbook.verify  # noqa: F401 (before its modules are taken out of it)
import shapes

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.py"))


@pytest.fixture
def ledger(monkeypatch):
    """A ledger of its own, where woven code looks for it."""
    made = shapes.Ledger()
    monkeypatch.setattr(builtins, shapes.LEDGER, made, raising=False)
    return made


def run(ledger, code, variables=None, place="a cell"):
    """Run a cell as a page does, each of its statements by itself: what its error says, or an empty string."""
    code = textwrap.dedent(code)
    variables = {"torch": torch, "x": torch.zeros(4, 2), **(variables or {})} if variables is None else variables
    tree = ledger.weave(ast.parse(code), code, place)
    try:
        for statement in tree.body if not ledger.faults else ():
            exec(compile(ast.Module([statement], []), str(place), "exec"), variables)
    except shapes.WrongShape as error:
        return str(error)
    return ""


# Reading -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("comment", "text", "axes", "each", "name", "sides"),
    [
        ("# (B, T, C)", "(B, T, C)", "B T C", False, "", 0),
        ("# (4, 8, 32)", "(4, 8, 32)", "4 8 32", False, "", 0),
        ("# (N,)", "(N,)", "N", False, "", 0),
        ("# ()", "()", "", False, "", 0),
        ("# (0, 3)", "(0, 3)", "0 3", False, "", 0),
        ("# (..., C)", "(..., C)", "... C", False, "", 0),
        ("# (1, length)", "(1, length)", "1 length", False, "", 0),
        ("# (T+1, 4C, T*H)", "(T+1, 4C, T*H)", "T+1 4C T*H", False, "", 0),
        ("# (T, D) each", "(T, D) each", "T D", True, "", 0),
        ("# each (B, H, T, D)", "each (B, H, T, D)", "B H T D", True, "", 0),
        ("# (T,) each: the questions and the answers", "(T,) each", "T", True, "", 0),
        ("# (T, T): t - s, and 0 in the future", "(T, T)", "T T", False, "", 0),
        ("# (B, H, T, T), rows sum to 1", "(B, H, T, T)", "B H T T", False, "", 0),
        ("# (B, V); stable: ties keep their order", "(B, V)", "B V", False, "", 0),
        ("# (T, C) of floats", "(T, C)", "T C", False, "", 0),
        ("# (T, C): see (T, V) below", "(T, C)", "T C", False, "", 0),
        ("# x (T, C), one row of text", "x (T, C)", "T C", False, "x", 0),
        ("# (T, T) @ (T, C) -> (T, C)", "(T, T) @ (T, C) -> (T, C)", "T C", False, "", 2),
    ],
)
def test_every_form_is_read(comment, text, axes, each, name, sides):
    """If this fails, the book writes comments of this form, and nobody holds them against anything."""
    read = shapes.parse(comment)
    assert read.text == text
    assert read.axes == tuple(axes.split())
    assert (read.each, read.name, len(read.sides)) == (each, name, sides)


@pytest.mark.parametrize(
    ("axis", "letters", "value"),
    [
        ("t+1", {"t": 3}, 4), ("T + 1", {"T": 3}, 4), ("4C", {"C": 3}, 12), ("T*H", {"T": 3, "H": 2}, 6),
        ("2T*H - 3*4", {"T": 3, "H": 2}, 0), ("N-T+1", {"N": 9, "T": 4}, 6), ("1 + length", {"length": 4}, 5),
    ],
)  # fmt: skip
def test_sums_and_products_are_computed(axis, letters, value):
    """If this fails, (T, 4C) is held against another number than four times C."""
    assert shapes.parse(f"# (B, {axis})").axes == ("B", axis)
    assert shapes._value(axis, letters.get) == value
    assert shapes._value(axis, {}.get) is None


@pytest.mark.parametrize(
    "comment",
    [
        "# mean over B * T questions", "# divided by C, not by C - 1", "# no shape at all", "# row 0 (the first)",
        "# (as on page 1)", "# (see below, and above)", "# like randint(0, V)", "# noqa: F821", "#", "# (1) first",
        "# both orthogonal to (1, 1, 1)", "# a uniform number of (0, 1)", "# in (0, 1)", "# in [0, 1]", "# [4, 2]",
        "# softmax (stable)", "# the size of a step (here, too)", "# f (x)", "# w (1 - w): zero where w is 0 or 1",

    ],
)  # fmt: skip
def test_other_comments_are_left_alone(comment):
    """If this fails, authors cannot write ordinary comments."""
    assert shapes.parse(comment) is None


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ("# (T)", "one axis"), ("# (C+1)", "one axis"), ("# x (T)", "one axis"), ("# x: (T, C)", "one axis"),
        ("# (T, C?)", "axes are"), ("# (B, T^2)", "axes are"), ("# (..., T, ...)", "axes are"),
        ("# (B, one more)", "axes are"), ("# [T, T]", "axes are"), ("# x [T, T]", "axes are"),
        ("# x, y (B, T)", "write the shape first"), ("# the rows of (T, C)", "write the shape first"),
        ("# the shape is (4, 3)", "write the shape first"), ("# sizes: (4,)", "axes are"),
        ("# of shape [4, 3]", "write the shape first"),
        ("# (T, C) or (T, D)", "put a colon before the words, and one alone"),
        ("# (T, T) @ (T, C)", "one alone"), ("# x (T, C), (T, D)", "one alone"), ("# (B, T), (V,)", "one alone"),
        ("# (T, C) -> (T, D)", "one alone"), ("# (T, T) @ (T, T) @ (T, C) -> (T, C)", "one alone"),
    ],
)  # fmt: skip
def test_what_looks_like_a_shape_and_is_none_is_refused(comment, words):
    """If this fails, a slip of the pen takes a comment out of the checks, and nobody hears of it."""
    with pytest.raises(shapes.NotUnderstood, match="looks like a shape") as caught:
        shapes.parse(comment)
    assert words in str(caught.value)


# Holding -------------------------------------------------------------------------------------------------------------

CASES = {
    # the forms, right and wrong
    "numbers": ("x.T  # (2, 4)", ""),
    "wrong number": ("x.T  # (4, 2)", "the comment says (4, 2), and this is (2, 4): 2 stands where the comment has 4"),
    "axes": ("y = x[0]  # (T, C)", "the comment says (T, C), and this is (2,): 1 axes, not 2"),
    "no axis": ("x.sum()  # ()", ""),
    "wrong no axis": ("x.sum(dim=0)  # ()", "1 axes, not 0"),
    "same letter twice": ("x @ x.T  # (T, T)", ""),
    "same letter for two sizes": ("x  # (T, T)", "this is (4, 2): T is 4 since line 1"),
    "letters in a cell": ("y = x  # (T, C)\nz = x.T  # (C, T)", ""),
    "letters swapped": ("y = x  # (T, C)\nz = x.T  # (T, C)", "this is (2, 4): T is 4 since line 1"),
    "words swapped": ("y = x  # (rows, C)\nz = x.T  # (rows, C)", "this is (2, 4): rows is 4 since line 1"),
    "dots": ("y = x[None, None]  # (..., T, C)\ny = x[0]  # (..., C)\nz = x.T[None]  # (1, ..., T)", ""),
    "wrong dots": ("y = x  # (T, C)\ny = y.T[None]  # (..., C)", "C is 2 since line 1"),
    "wrong dots at the end": ("y = x  # (T, C)\ny = y.T[None]  # (1, T, ...)", "T is 4 since line 1"),
    "too few for dots": ("x[0]  # (..., T, C)", "too few axes"),
    "a product": ("y = x  # (T, C)\nz = torch.zeros(4, 8)  # (T, 4C)", ""),
    "a wrong product": ("y = x  # (T, C)\nz = torch.zeros(4, 6)  # (T, 4C)", "6 stands where the comment has 4C = 8"),
    "a product that waits": ("z = torch.zeros(4, 8)  # (T, 4C)\ny = x  # (T, C)", ""),
    "a product that waited in vain": (
        "z = torch.zeros(4, 6)  # (T, 4C)\ny = x  # (T, C)", "then 4C is 8, and in line 1 it is 6",
    ),
    "a product that waits for a turn of a loop": (
        "for n in (1, 2):\n    z = torch.zeros(4 * n, 2)  # (4T, C)\n    y = x[:n]  # (T, C)", "",
    ),
    "widths": ("y = torch.zeros(3, 2, 4)  # (T, H, D)\nz = torch.zeros(3, 8)  # (T, C)", ""),
    "wrong widths": (
        "y = torch.zeros(3, 2, 4)  # (T, H, D)\nz = torch.zeros(3, 9)  # (T, C)", "C = 9 is not H * D = 2 * 4",
    ),
    "each": ("a, b = x.split(1, dim=1)  # (T, 1) each", ""),
    "wrong each": ("a, b = x.split(1, dim=1)  # (T, 2) each", "a is (4, 1)"),
    "each of a generator": ("a, b = (x[i] for i in range(2))  # (C,) each", ""),
    "each of a wrong generator": ("a, b = (x[: i + 1, 0] for i in range(2))  # (T,) each", "b is (2,): T is 1"),
    "each of a list": ("parts = [x, x[1:]]  # (T, C) each", "value 2 is (3, 2)"),
    "each of a list of lists": ("parts = [[x, x], (x,)]  # (T, C) each", ""),
    "each of a wrong list of lists": ("parts = [[x, x], (x.T,)]  # (T, C) each", "value 3 is (2, 4)"),
    "each of nothing": ("parts = []  # (T, C) each", "this is no list of several"),
    "each of one": ("y = x  # (C,) each", "this is no list of several, it is of type Tensor"),
    "several targets": ("a, b = x, x  # (T, C)", ""),
    "a target that nobody wants": ("a, _ = x, None  # (T, C)", ""),
    "a wrong one beside it": ("_, a = None, x  # (C, C)", "a is (4, 2)"),
    "none but such": ("_, _ = x, x  # (C, C)", "nothing in its line has a value"),
    "several wrong targets": ("[a, b] = x, x.T  # (T, C)", "b is (2, 4)"),
    "targets that would be evaluated twice": (
        "a = [0, 0, 0]\na[2], i = x, 9  # (T, C)", "its targets are no plain names",
    ),
    "several without each": ("y = x, x  # (T, C)", "this is of type tuple, which has no shape: say `each`"),
    "sides": ("x @ x.T  # (T, C) @ (C, T) -> (T, T)", ""),
    "a wrong result": ("x @ x.T  # (T, C) @ (C, T) -> (T, C)", "C is 2"),
    "a wrong left side": ("x @ x.T  # (T, T) @ (C, T) -> (T, T)", "this is (4, 2): T is 4"),
    "a wrong right side": ("w = torch.ones(4, 4)\nw @ x  # (T, T) @ (C, T) -> (T, C)", "this is (4, 2): "),
    "no sides": ("torch.matmul(x, x.T)  # (T, C) @ (C, T) -> (T, T)", "its value is no product of two sides with @"),
    "sides of targets": ("y = x\ny += 1  # (T, C) @ (C, C) -> (T, C)", "its targets are no plain names"),
    # what they stand beside
    "print": ("print(x)  # (4, 2)", ""),
    "wrong print": ("print(x)  # (2, 4)", "this is (4, 2)"),
    "append": ("heads = []\nheads.append(x)  # (T, T)", "this is (4, 2)"),
    "subscript": ("y = torch.zeros(3, 2)\ny[1] = x[0]  # (C,)", ""),
    "wrong subscript": ("y = torch.zeros(3, 2)\ny[1] = x[0]  # (3,)", "this is (2,)"),
    "a subscript is evaluated once": ("n = iter([1])\ny = {}\ny[next(n)] = x  # (4, 2)", ""),
    "attribute": ("import types\na = types.SimpleNamespace()\na.y = x  # (T, T)", "this is (4, 2)"),
    "augmented": ("y = x.clone()\ny += 1  # (4, 2)", ""),
    "wrong augmented": ("y = x.clone()\ny += 1  # (4, 4)", "y is (4, 2)"),
    "augmented subscript": ("y = x.clone()\ny[0] += 1  # (2,)", "its targets are no plain names"),
    "annotated": ("y: object = x  # (4, 4)", "this is (4, 2)"),
    "two targets": ("y = z = x  # (4, 4)", "this is (4, 2)"),
    "a number": ("y = 3.0  # (T, C)", "this is of type float, which has no shape"),
    "nothing": ("y = None  # (2, 2)", "this is of type NoneType, which has no shape"),
    "many lines": ("y = torch.zeros(\n    4, 2\n)  # (4, 3)", "this is (4, 2)"),
    "several in a line": ("y = x; z = x.T  # (4, 2)", "this is (2, 4)"),
    "an opening bracket": ("y = [  # (T, C) each\n    x,\n    x,\n]", "nothing that has a value ends in its line"),
    "an argument": ("y = torch.cat((\n    x,  # (4, 2)\n    x + 1,  # (4, 2)\n))", ""),
    "a wrong argument": ("y = torch.cat((\n    x,  # (4, 2)\n    x[:, :1],  # (4, 2)\n    x[:, :1]), dim=1)", "(4, 1)"),
    "an argument with a star": ("y = max(\n    *x,  # (4, 2)\n    key=len)", ""),
    "behind letters of more bytes": ("y = dict(a=['ä€', x], b=[\n    'ä€', x,  # (4, 4)\n])", "this is (4, 2)"),
    "an operand in its line": ("y = (\n    x  # (4, 2)\n    @ x.T  # (4, 3)\n)", "this is (4, 4)"),
    "for": ("for row in x:  # (C,)\n    pass", ""),
    "wrong for": ("for row in x:  # (3,)\n    pass", "row is (2,)"),
    "wrong for each": ("for a, b in zip(x, x.T):  # (C,) each\n    pass", "b is (4,)"),
    # functions
    "parameter": ("def f(a, b):  # b (C,), a row\n    return b\nf(0, x[0])", ""),
    "wrong parameter": ("def f(a, b):  # b (C,)\n    return b\nf(0, x)", "b is (4, 2): 2 axes, not 1"),
    "parameter without its name": ("def f(a):  # (C,)\n    return a", "of which parameter?"),
    "unknown parameter": ("def f(a):  # b (C,)\n    return a", "there is no parameter b"),
    "parameters in their lines": (
        "def f(\n    a, /,  # a (T, C)\n    *, b=None,  # b (C,)\n):\n    return a @ b\nf(x, b=x[:, 0])",
        "b is (4,): C is 2",
    ),
    "a name on a class": ("class A:  # x (T, C)\n    pass", "its line defines no function with a parameter x"),
    "a name elsewhere": ("y, z = 3, x[0]  # z (C,)", "its line defines no function with a parameter z"),
    "returned": ("def f(a):\n    return a[0]  # (C,)\nf(x)", ""),
    "wrongly returned": ("def f(a):\n    return a[0]  # (C, T)\nf(x)", "this is (2,)"),
    "each returned": ("def f(a):\n    return a, a[1:]  # (T, C) each\nf(x)", "value 2 is (3, 2): T is 4"),
    "in a line": ("def f(a): return a[0]  # (3,)\nf(x)", "this is (2,)"),
    "calls are apart": ("def f(a):\n    return a + 1  # (T, C)\nf(x), f(x.T)", ""),
    "calls within calls": (
        "def f(a, n):\n    y = a  # (T, C)\n    if n:\n        f(a.T, n - 1)\n    return y  # (T, C)\nf(x, 2)", "",
    ),
    "a generator between calls": (
        "def f(a):\n    y = a  # (T, C)\n    yield a\n    z = a  # (T, C)\n\n"
        "n, m = f(x), f(x.T)\nnext(n), next(m), next(n, 0), next(m, 0)", "",
    ),
    "a local number": ("def f(a):\n    T, C = a.shape\n    return a  # (T, C)\nf(x)", ""),
    "another local number": ("def f(a):\n    C, T = a.shape\n    return a  # (T, C)\nf(x)", "T is 2 here"),
    "a local number changes": (
        "def f(a):\n    T = 4\n    y = a  # (T, C)\n    T = 2\n    return a.T  # (T, 4)\nf(x)", "",
    ),
    "a local that is none": ("def f(a, T=True):\n    return a  # (T, C)\nf(x)", ""),
    "a wrong parameter, a number": ("def f(T):\n    return torch.zeros(T, T + 1)  # (T, T)\nf(3)", "T is 3 here"),
    "a sum of a local number": ("def f(t):\n    return x[: t + 1]  # (t+1, C)\nf(2)", ""),
    "a wrong sum of a local number": ("def f(t):\n    return x[:t]  # (t+1, C)\nf(2)", "has t+1 = 3"),
    "a number further out": ("T = 9\ndef f(a):\n    return a  # (T, C)\nf(x)", ""),
    "a function within a function": (
        "def f(a):\n    T = 9\n    def g(b):\n        return b  # (T, C)\n    return g(a)  # (T, C)\nf(x)",
        "T is 9 here",
    ),
    # what is held by itself
    "a comprehension over sizes": ("y = x  # (T, C)\nz = [\n    x[:n]  # (T, C)\n    for n in (1, 2, 3)\n]", ""),
    "a wrong comprehension over sizes": ("z = [\n    x[:n]  # (n, n)\n    for n in (2, 3)\n]", "n is 3 here"),
    "a lambda": ("f = lambda a: (\n    a + 0  # (T, C)\n    + 1)\nf(x), f(x.T)", ""),
    "a wrong lambda": ("f = lambda a: (\n    a + 0  # (T, T)\n    + 1)\nf(x)", "T is 4"),
    "a class body": ("class A:\n    for n in (1, 2):\n        y = x[:n]  # (n, C)", ""),
    "an async function": (
        "import asyncio\nasync def f(a):\n    for n in (1, 2):\n        y = a[:n]  # (T, C)\nasyncio.run(f(x))", "",
    ),
    # cells and loops
    "a number of this cell": ("T = 4\ny = x  # (T, C)", ""),
    "a wrong number of this cell": ("T = 3\ny = x  # (T, C)", "T is 3 here"),
    "a number of this cell, set below": ("y = x  # (T, C)\nT = 3", ""),
    "a number of another level": ("T = 3\ndel T\ndef f():\n    T = 3\nz = [0 for T in (3,)]\ny = x  # (T, C)", ""),
    "a loop over sizes": ("for n in (1, 2, 3):\n    y = x[:n]  # (T, C)\n    z = y.T  # (C, T)", ""),
    "a loop over sizes in a function": (
        "def f():\n    for n in (1, 2, 3):\n        y = x[:n]  # (T, C)\n        z = y.T  # (C, T)\nf()", "",
    ),
    "a loop over sizes, wrong": ("for n in (1, 2, 3):\n    y = x[:n]  # (T, C)\n    z = y  # (C, T)", "C is 2"),
    "a loop within a size": ("y = x  # (T, C)\nfor n in (4, 3):\n    z = x[:n]  # (T, C)", "T is 4 since line 1"),
    "behind a loop": ("for n in (1, 2):\n    y = x[:n]  # (T, C)\nz = x  # (T, C)", ""),
    "the else of a loop": (
        "n = 3\nwhile n:\n    n -= 1\n    y = x[:n]  # (T, C)\nelse:\n    z = x  # (T, C)", "",
    ),
    "a loop over a letter": ("for t in range(4):\n    y = x[: t + 1]  # (t+1, C)", ""),
    "a loop over a letter, wrong": ("for t in range(4):\n    y = x[:t]  # (t+1, C)", "has t+1 = 1"),
    # no place for it
    "alone": ("# (T, C)\ny = x", "it has a line of its own"),
    "alone in a cell": ("# (T, C)", "it has a line of its own"),
    "an if": ("if len(x) > 2:  # (T, C)\n    pass", "nothing in its line has a value"),
    "an else": ("if len(x) < 2:\n    pass\nelse:  # (T, C)\n    pass", "nothing in its line has a value"),
    "a with": ("import contextlib\nwith contextlib.nullcontext(x) as y:  # (4, 2)\n    pass", "nothing in its line"),
    "an assertion": ("assert x.sum() == 0  # (T, C)", "nothing in its line has a value"),
    "a bare return": ("def f():\n    return  # (T, C)", "nothing in its line has a value"),
    "an operator": ("y = (\n    x +  # (T, C)\n    x\n)", "nothing that has a value ends in its line"),
    "a slice": ("y = x[\n    :,  # (T, C)\n    0]", "nothing that has a value ends in its line"),
    "a name that is set": ("y = torch.cat([\n    z := x[:1]])\n(\n  y,  # (T, C)\n  z) = x, x", "nothing that has"),
    "not understood": ("y = x  # (T)", "one axis"),
    "a magic": ("get_ipython = lambda: types\nget_ipython().run_cell_magic('time', '', 'y = x  # (T, C)')", "a % or !"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_comments_are_held(ledger, case):
    """If this fails, a wrong comment of this form stands in the book, or a right one ends the build."""
    code, wrong = CASES[case]
    run(ledger, code)
    found = [what for _, _, what in ledger.report() if "never ran" not in what]
    assert len(found) == bool(wrong)
    assert wrong in "".join(found)
    assert "\n" not in "".join(found)


def test_a_number_of_an_earlier_cell_is_not_forced_on_a_later_one(ledger):
    """If this fails, a page cannot show four tokens in one cell and eight in the next."""
    variables = {"torch": torch}
    assert run(ledger, "T = 4\nx = torch.zeros(T, 2)  # (T, C)", variables) == ""
    assert run(ledger, "X = torch.zeros(3, 8, 2)  # (B, T, C)", variables) == ""
    assert run(ledger, "T = 8\nX = torch.zeros(3, 9, 2)  # (B, T, C)", variables) != ""


def test_a_comment_whose_line_never_runs_is_reported(ledger):
    """If this fails, comments in functions that nobody calls, and in branches that nobody takes, are never held."""
    code = "def f(a):\n    return a  # (T, C)\n\nif False:\n    y = x  # (T, C)\nz = x  # (T, C)"
    assert run(ledger, code, place=3) == ""
    never = "the comment says (T, C), and its line never ran"
    assert ledger.report() == [(3, 2, never), (3, 5, never)]


@pytest.mark.parametrize(
    ("code", "missing"),
    [
        ("y = torch.zeros(8, 2)  # (4N, C)", "N is never known"),
        ("y = torch.zeros(8, 2)  # (1 + length*N, width)", "length and N is never known"),
        ("def f(a):\n    return a  # (N-1, C)\nf(x)\ny = x  # (N, C)", "N is never known"),
        ("z = [\n    x[:n]  # (n + 0, 2)\n    for n in (1, 2)]\nz = x  # (4, 2)", ""),
        ("def f(a, again):\n    y = a  # (2N, C)\n    if again:\n        z = a[:2]  # (N, C)\n"
         "f(x, False), f(x, True), f(x, False)", ""),
        ("def f(t):\n    y = x  # (N-t, C)\n    t = None\n    z = x.repeat(2, 1)  # (N, C)\nf(4)", ""),
    ],
)  # fmt: skip
def test_what_waits_to_the_end_is_reported(ledger, code, missing):
    """If this fails, a sum of letters that nothing ever binds looks as if it were held."""
    assert run(ledger, code) == ""
    found = [what for _, _, what in ledger.report()]
    assert len(found) == bool(missing)
    assert "".join(found).endswith(missing)


def test_an_error_that_the_page_catches_is_reported(ledger):
    """If this fails, a wrong comment in a solution, or where an error is shown on purpose, passes."""
    assert run(ledger, "try:\n    y = x  # (T, T)\nexcept Exception:\n    y = None") == ""
    ((place, line, what),) = ledger.report()
    assert (place, line) == ("a cell", 2)
    assert "this is (4, 2)" in what


# What must not change ------------------------------------------------------------------------------------------------

PLAIN = '''\
def f(
    a,  # a row
    b=2,
):
    """What it does."""
    for i in range(b):  # b times
        a = a + i  # (T, C)
    return torch.stack(
        [a, a]
    )  # (2, T, C)


def g(a):  # a (T, C)
    """Fails in its third line."""
    y = f(a)  # (2, T, C)
    return y / nothing  # (2, T, C)


print(f(x).shape)
f(x)  # (2, T, C)
'''


def test_outputs_sources_and_docstrings_are_unchanged(capsys):
    """If this fails, a page shows other outputs, or another source, than its code says."""
    shell = InteractiveShell(user_ns={"torch": torch, "x": torch.zeros(4, 2)})
    before = shell.run_cell(PLAIN)
    printed = capsys.readouterr().out
    try:
        ledger = shapes.install(shell)
        names = set(shell.user_ns)
        after = shell.run_cell(PLAIN, store_history=True)
        assert capsys.readouterr().out.replace("Out[1]:", "Out[0]:") == printed
        assert torch.equal(after.result, before.result)
        assert len(ledger.sites) == 6
        assert [site.seen for site in ledger.sites].count(False) == 3, "those of g"
        assert inspect.getsource(shell.user_ns["f"]) == PLAIN[: PLAIN.index("\n\n\ndef g")] + "\n"
        assert shell.user_ns["f"].__doc__ == "What it does."
        assert {n for n in shell.user_ns if n.startswith(".")} == set()
        assert shell.user_ns["f"].__code__.co_varnames == ("a", "b", "i")
        assert [name for name in set(shell.user_ns) - names if not name.startswith("_")] == []
        assert shell.run_cell("y = x  # (4, 2)").result is None
        failed = shell.run_cell("g(x)")
        assert isinstance(failed.error_in_exec, NameError)
        lines = [frame.lineno for frame in traceback.extract_tb(failed.error_in_exec.__traceback__)]
        assert lines[-2:] == [1, 1 + PLAIN.splitlines().index("    return y / nothing  # (2, T, C)")]
        wrong = shell.run_cell("y = 3\nz = torch.zeros(\n    2,\n)  # (3,)")
        frames = traceback.extract_tb(wrong.error_in_exec.__traceback__)
        assert [frame.lineno for frame in frames if frame.name == "<module>"] == [4]
    finally:
        builtins.__dict__.pop(shapes.LEDGER, None)


def test_code_without_shape_comments_stays_as_it_is(ledger):
    """If this fails, every loop of the book pays for comments that it does not have."""
    code = "for i in range(3):  # three times\n    y = [i]  # a list\n"
    assert ast.dump(ledger.weave(ast.parse(code), code, 1), include_attributes=True) == ast.dump(
        ast.parse(code), include_attributes=True
    )


@pytest.fixture
def shell():
    """An IPython shell that holds the comments of its cells, with its ledger as `shell.held`."""
    made = InteractiveShell(user_ns={"torch": torch, "x": torch.zeros(4, 2)})
    made.held = shapes.install(made)
    yield made
    builtins.__dict__.pop(shapes.LEDGER, None)


@pytest.mark.parametrize(
    ("cell", "faults"),
    [
        ("# (T, C)", ["it has a line of its own"]),
        ("%%capture out\ny = x  # (T, C)", ["a % or ! hands it on"]),
        ("%%capture out\ny = x  # (T)", ["looks like a shape"] * 2),
        ("%timeit -n1 -r1 x + 1  # (T, C)", ["a % or ! hands it on"]),
        ("!echo 1  # (T, C)", ["a % or ! hands it on"]),
        ("%%capture out\ny = x  # twice", []),
        ("get_ipython().run_cell('y = x  # (T, C)')\nz = x.T  # (T, C)", []),
        ("get_ipython().run_cell('y = x  # (T, T)', silent=True)", ["T is 4"]),
    ],
)
def test_cells_that_run_cells(shell, cell, faults, capsys):
    """If this fails, a comment in such a cell is passed over, or right code around it ends the build."""
    shell.run_cell(cell, store_history=True)
    shell.run_cell("y = x  # (4, 3)", store_history=True)
    *found, last = shell.held.faults
    assert last[0] == 3, "the cell's own number, however many cells ran in others"
    assert [place for place, _, _ in found] == [2] * len(faults)
    assert all(words in what for words, (_, _, what) in zip(faults, found, strict=True))
    capsys.readouterr()


def test_what_stands_behind_an_error_is_not_missed(shell, capsys):
    """If this fails, a cell that shows an error on purpose can bear no comment below it, or needs none above."""
    code = "if False:\n    z = x  # (T, C)\n1 / 0\ny = x  # (T, C)"
    shell.run_cell(code, store_history=True)
    shell.run_cell("if False:\n\n\n\n\n    z = x  # (T, C)", store_history=True)
    assert [(place, line) for place, line, _ in shell.held.report()] == [(2, 2), (3, 6)]
    capsys.readouterr()


def test_code_that_is_none_is_left_to_the_shell(shell, capsys):
    """If this fails, a slip of the pen in the code is reported as one of the comments."""
    assert isinstance(shell.run_cell("y = (  # (T, C)").error_before_exec, SyntaxError)
    assert shell.held.report() == []
    capsys.readouterr()


def test_a_fault_of_the_weaver_is_no_pardon(monkeypatch):
    """If this fails, a mistake in shapes.py turns all checks off, and the build passes."""
    shell = InteractiveShell(user_ns={})
    try:
        ledger = shapes.install(shell)
        monkeypatch.setattr(ledger, "weave", lambda *_: 1 / 0)
        assert shell.run_cell("y = 3").success
        assert "ZeroDivisionError" in str(ledger.report())
    finally:
        builtins.__dict__.pop(shapes.LEDGER, None)


# The book and the package --------------------------------------------------------------------------------------------


def cells(page: Path) -> list[str]:
    notebook = jupytext.reads(page.read_text(encoding="utf-8"), fmt="py:percent")
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_shape_comment_of_a_page_has_its_place(page, ledger):
    """If this fails, a comment on this page looks like a shape, and the build would refuse it."""
    for number, cell in enumerate(cells(page)):
        ledger.weave(ast.parse(cell), cell, number)
    assert ledger.faults == []
    looks = re.compile(r"^# (?:each )?\([\w.+*-]+,[ \w.+*,-]*\)|[^\w]\((?:[A-Z]|\d+), ?[A-Z][,)]")
    found = [c[0] for cell in cells(page) for c in shapes.comments(cell) if looks.search(c[0])]
    lines = {site.text for site in ledger.sites}
    assert [comment for comment in found if not any(text in comment for text in lines)] == []
    if "import torch" in page.read_text(encoding="utf-8"):
        assert ledger.sites, "tensors, and not a single shape"


def load(ledger, monkeypatch, name: str):
    """A module of the package, with its shape comments held, in the place of the plain one."""
    path = ROOT / "gptbook" / f"{name.replace('.', '/')}.py"
    module = types.ModuleType(f"gptbook.{name}")
    module.__file__, module.__package__ = str(path), f"gptbook.{name}".rpartition(".")[0]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    source = path.read_text(encoding="utf-8")
    exec(compile(ledger.weave(ast.parse(source), source, name), path, "exec"), module.__dict__)
    linecache.checkcache(str(path))
    return module


def test_the_lens_keeps_its_comments(ledger, monkeypatch, tiny_config):
    """If this fails, page 12 shows source whose shape comments are wrong."""
    from gptbook.model import GPT

    lens = load(ledger, monkeypatch, "lens")
    gpt, idx = GPT(tiny_config), torch.zeros(3, 4, dtype=torch.long)
    says = lens.logit_lens(gpt, idx)
    lens.ranks(says[:, 0, -1], 3)
    lens.previous_token_scores(gpt, idx)
    lens.induction_scores(gpt, idx)
    lens.duplicate_token_scores(gpt, idx)
    lens.neighbours(gpt.wte.weight, 0)
    lens.arithmetic(gpt.wte.weight, [0, 1], [2], centred=True)
    lens.attribution(gpt, idx, gpt.lm_head.weight[0])
    with lens.ablated(gpt, [(0, 1)]):
        gpt(idx)
    assert len(ledger.sites) > 5
    assert ledger.report() == []


def test_fine_tuning_keeps_its_comments(ledger, monkeypatch, tiny_config):
    """If this fails, page 19 shows source whose shape comments are wrong."""
    from gptbook.model import GPT
    from gptbook.tokenizers import CharTokenizer
    from gptbook.trainer import TrainConfig

    finetuning = load(ledger, monkeypatch, "finetuning")
    gpt, config = GPT(tiny_config), TrainConfig(steps=4, batch_size=6)
    pieces = [([5, 1], [3, 9]), ([5, 1, 7], [4, 3, 9]), ([2], [9])]
    finetuning.finetune(gpt, pieces, config, replay=torch.arange(30) % 11, every=2)
    finetuning.prefer(gpt, GPT(tiny_config), [(pieces[0], pieces[1]), (pieces[2], pieces[0])], config, 0.1)
    finetuning.answers(gpt, CharTokenizer("$abcdefghij"), ["ab", "c", "de"], 3)
    finetuning.best_policy(torch.tensor([0.5, 0.5]), torch.tensor([0.0, 1.0]), 1.0)
    assert len(ledger.sites) > 12
    assert ledger.report() == []


def test_the_writer_keeps_its_comments(ledger, monkeypatch, tiny_config):
    """If this fails, page 11 shows source whose shape comments are wrong."""
    from gptbook.model import GPT
    from gptbook.modern import ModernConfig, ModernGPT

    writer = load(ledger, monkeypatch, "writer")
    monkeypatch.setattr(writer, "_compiled", lambda function, inputs: (function, ""))
    idx = torch.zeros(1, 3, dtype=torch.long)
    modern = ModernConfig(vocab_size=11, block_size=8, n_head=4, n_kv_head=2, n_embd=24, qk_norm=True)
    newer = ModernConfig(vocab_size=11, block_size=8, n_embd=24, embedding_norm=True, activation="relu2", ngrams=3)
    for model in (GPT(tiny_config), ModernGPT(modern), ModernGPT(newer)):
        for precision in writer.PRECISIONS:
            writer.Writer(model, precision).generate(idx, tiny_config.block_size)
    assert len(ledger.sites) > 12
    assert ledger.report() == []


def test_the_package_keeps_its_comments(ledger, monkeypatch, tiny_config):
    """If this fails, the shape comments that pages show with the package's source are wrong."""
    from dataclasses import asdict

    model, modern, data, sampling, kv_cache = (
        load(ledger, monkeypatch, name) for name in ("model", "modern", "data", "sampling", "kv_cache")
    )
    trainer, checks, measure = (
        load(ledger, monkeypatch, name) for name in ("trainer", "verify.checks", "verify.measure")
    )
    random = torch.Generator().manual_seed(0)
    gpt = model.GPT(model.GPTConfig(**asdict(tiny_config)))
    tokens = torch.randint(tiny_config.vocab_size, (100,), generator=random)
    x, y = data.get_batch(tokens, 8, 3, random)
    assert gpt(x).shape == (*y.shape, tiny_config.vocab_size)
    sampling.generate(gpt, x[:, :5], 6, top_k=4, generator=random)
    sampling.next_token(gpt(x)[:, -1], temperature=0)
    sampling.probabilities(gpt(x)[:, -1], top_k=3, top_p=0.8)
    kv_cache.generate(gpt, x[:, :5], 6, generator=random)
    _, cache = kv_cache.forward(gpt, x[:, :3])
    kv_cache.forward(gpt, x[:, 3:], cache)
    for fields in ({}, {"n_kv_head": 1}, {"positions": "learned", "activation": "gelu"}, {"ngrams": 3}):
        config = modern.ModernConfig(
            **{"vocab_size": 11, "block_size": 8, "n_layer": 2, "n_head": 4, "n_embd": 24, **fields}
        )
        llama = modern.ModernGPT(config)
        assert llama(x).shape == (3, 8, 11)
        _, cache = kv_cache.forward(llama, x[:, :3])
        kv_cache.forward(llama, x[:, 3:], cache)
    trainer.train(gpt, tokens, tokens, trainer.TrainConfig(steps=2, batch_size=3, random_batches=2))
    measure.leak_matrix(gpt, x[:1])
    report = checks.check_model(gpt, vocab_size=tiny_config.vocab_size, block_size=8, expect=gpt.config)
    assert report.passed, str(report)
    gpt.wpe.weight.data.zero_()
    gpt.wpe.weight.requires_grad_(False)
    for block in gpt.h:
        block.attn.past.fill_(True)
    report = checks.check_model(gpt, vocab_size=tiny_config.vocab_size, block_size=8)
    assert {"causal", "position-sensitive"} <= set(report.failed), str(report)
    assert len(ledger.sites) > 25
    assert ledger.report() == []


def test_a_wrong_comment_in_the_package_is_seen(ledger, monkeypatch, tiny_config):
    """If this fails, the test above cannot fail."""
    source = (ROOT / "gptbook" / "model.py").read_text(encoding="utf-8")
    assert source.count("# (B, T, 4C)") == 1
    source = source.replace("# (B, T, 4C)", "# (B, T, 3C)")
    module = types.ModuleType("wrong")
    monkeypatch.setitem(sys.modules, "wrong", module)
    exec(compile(ledger.weave(ast.parse(source), source, "wrong"), "wrong", "exec"), module.__dict__)
    gpt = module.GPT(module.GPTConfig(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_embd=12))
    with pytest.raises(shapes.WrongShape, match="3C is 36, and in line"):
        gpt(torch.zeros(2, 5, dtype=torch.int64))
