"""Hold every shape comment against the tensor that it stands beside, while the page runs.

    weights @ x  # (T, T) @ (T, C) -> (T, C)

Comments are no part of Python's syntax tree, so the cell's tokens give the comments, its tree the statements, and the
two meet in the line.  Each statement that bears a comment gets a call woven in, which compares.  It is put on the line
of the comment: an error leads there, and all other lines, outputs and sources stay what they were.

What a comment can say, with anything after it for the reader alone, as long as it holds no second shape (after a
colon, a semicolon or a full stop it may):

    # (B, T, C)                     numbers, names, sums and products (t+1, 4C, T*H), one `...`; () has no axis
    # (T, D) each                   of all in a tuple or list (of lists), and of several targets; or: # each (T, D)
    # x (T, C)                      on a def line: of that parameter
    # (T, T) @ (T, C) -> (T, C)     of both sides of the @ and of the result

What it stands beside: the value of a statement, and of `print`, `append` and `register_buffer` the argument; what an
unpacking, an augmented assignment or a `for` names, but for names that begin with _; on a line inside of a longer
statement the expression that ends there.  A comment that has none of these beside it is a fault, and so is one that
looks like a shape and cannot be read, one of a line that never runs, and one in a cell or line that a % hands on as
text: none is passed over.

How names are read: in one call of a function, or one run of a cell's top level, a name is bound where it is first met,
and stays the same; in a loop, for one turn.  A whole number in a variable of that name is what it means (at the top
level, one that this cell sets above the comment).  A sum or product waits until its names are bound; if they never
are, that is a fault.  And where C, H and D are all known, C = H * D.

So some comments are held only in part: a name that is met once holds nothing but the number of axes.  In a lambda, a
comprehension, a class body or an `async def` each comment is held by itself.
"""

import ast
import builtins
import io
import keyword
import math
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field

LEDGER = ".shapes"  # where woven code finds the ledger: among the builtins, under a name that no program can write

_NAME = r"[A-Za-z_]\w*"
_TERM = rf"(?:\d*{_NAME}|\d+)(?:\*(?:{_NAME}|\d+))*"
_AXIS = re.compile(rf"\.\.\.|{_TERM}(?: *[-+] *{_TERM})*", re.ASCII)
_GROUP = r"\(([^()]*)\)"
_COMMENT = re.compile(rf"(?:{_GROUP} @ {_GROUP} -> |(each) |({_NAME}) )?{_GROUP}( each\b)?")
_BEGINS = re.compile(rf"(?!(?:{'|'.join(keyword.kwlist)}) )(?:{_NAME}(?:: *| +))?(?:{_GROUP}|\[([^][]*[A-Z][^][]*)\])")
_LATER = re.compile(r"(?<![\w\])])[(\[]([^][()]*,[^][()]*)[\])]")
_ARGUMENT = {"print": 0, "append": 0, "register_buffer": 1}  # calls that return None, and what they are about
_MAGIC = {"run_cell_magic", "run_line_magic", "system", "getoutput"}  # what IPython makes of % and !
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_APART = (ast.Lambda, ast.AsyncFunctionDef, ast.ClassDef, *_COMPREHENSIONS)
_SELF = "_ledger"  # LEDGER, while woven code is still text
_NOTHING = "nothing in its line has a value: put it where the value is made"


class NotUnderstood(ValueError):
    """A comment that looks like a shape, and is none."""


class WrongShape(Exception):
    """A shape comment says what is not so."""


# What a comment says --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comment:
    """`axes` are held, each a text: a number, a name, a sum, or "..."; `sides` are those of an @."""

    text: str
    axes: tuple[str, ...]
    each: bool = False
    name: str = ""
    sides: tuple[tuple[str, ...], ...] = ()


def parse(comment: str) -> Comment | None:
    """What a comment (with or without its #) says of shapes, None where it says nothing; raises NotUnderstood."""
    text = comment.lstrip("#").strip()
    match = _COMMENT.match(text)
    shapes = [_axes(inside) for inside in match.group(1, 2, 5) if inside is not None] if match else [None]
    read = None not in shapes and not keyword.iskeyword(match[4] or "")
    begins, rest = _BEGINS.match(text), text[match.end() :] if read else text
    if not read and begins and _looks(begins[1] or begins[2] or ""):
        raise NotUnderstood(f"the comment {text!r} looks like a shape: (T,) has one axis, axes are T, 3, t+1, 4C")
    sizes = re.search(r"\b(?:shape|size)s?\b", text)
    for inside in _LATER.findall(rest) if rest[:1] not in tuple(":;.") else ():
        if _looks(inside) and (sizes or re.search(r"\b\d*[A-Z]\b", inside)):
            how = "put a colon before the words" if read else "write the shape first"
            raise NotUnderstood(f"the comment {text!r} looks like a shape: {how}, and one alone")
    if read:
        return Comment(text[: match.end()], shapes[-1], bool(match[3] or match[6]), match[4] or "", tuple(shapes[:-1]))
    return None


def names(axis: str) -> list[str]:
    """The names in an axis."""
    return re.findall(_NAME, axis)


def _axes(inside: str) -> tuple[str, ...] | None:
    """The axes between two parentheses, None where they hold something else."""
    *parts, last = (part.strip() for part in inside.split(","))
    if last:
        parts.append(last)
    one_without_comma = last and len(parts) == 1
    understood = all(map(_AXIS.fullmatch, parts)) and parts.count("...") <= 1
    return tuple(parts) if understood and not one_without_comma else None


def _looks(inside: str) -> bool:
    """Whether somebody may have meant this for a shape; a single axis only where it is a capital, unlike f (x)."""
    parts = [part.strip() for part in inside.split(",")]
    if len(parts) == 1:
        return bool(re.fullmatch(r"[\d +*-]*[A-Z][\d +*-]*", inside))
    return any(re.fullmatch(r"\.\.\.|\d+|\d*[A-Za-z]", part) for part in parts)


def _value(axis: str, find) -> int | None:
    """The value of a sum of products, with find(name) for its names; None where one of them is not known."""
    known = {name: find(name) for name in names(axis)}
    if None in known.values():
        return None
    total = 0
    for sign, term in re.findall(r"([-+]?) *([\w*]+)", axis):
        factors = re.findall(rf"\d+|{_NAME}", term)
        total += math.prod(int(f) if f.isdigit() else known[f] for f in factors) * (-1 if sign == "-" else 1)
    return total


# Holding it against values --------------------------------------------------------------------------------------------


@dataclass
class Scope:
    """One run of a cell's top level, or one call of a function: what its names mean so far."""

    bound: dict[str, tuple] = field(default_factory=dict)  # name -> (size, line, loops around)
    waiting: list[tuple] = field(default_factory=list)  # (site, axis, size, what was known)

    def get(self, name: str, loops: tuple) -> int | None:
        size, _, around = self.bound.get(name, (None, 0, ()))
        return size if around == loops[: len(around)] else None  # what a loop bound means nothing behind it

    def turn(self, loop: int) -> None:
        self.bound = {name: b for name, b in self.bound.items() if loop not in b[2]}
        self.waiting = [w for w in self.waiting if loop not in w[0].loops]


@dataclass
class Site:
    """A shape of a comment, and where it is held."""

    place: object  # the number of the cell, or the file
    line: int
    text: str
    axes: tuple[str, ...]
    each: bool
    scope: Scope | None  # of the cell; None in a function, where it is that of the call
    apart: bool  # a scope of its own each time
    loops: tuple[int, ...]
    above: frozenset[str]  # the names that the cell's own level has set by then
    targets: tuple[str, ...] = ()  # the names whose values are held, where it is not one value
    seen: bool = False
    unknown: dict[str, str] = field(default_factory=dict)  # axis that waited -> what for; "" when it was held


class Ledger:
    """All sites of a page, and what was wrong."""

    def __init__(self):
        self.sites: list[Site] = []
        self.calls: dict[int, Scope] = {}  # id of a frame -> the scope of the call that it is now
        self.loops: list[Scope | None] = []  # as Site.scope
        self.faults: list[tuple] = []  # (place, line, what)

    def begin(self) -> None:
        """A function begins; whatever call had this frame before has ended."""
        self.calls[id(sys._getframe(1))] = Scope()

    def turn(self, loop: int) -> None:
        """Another turn of the loop: what was bound in it is free again."""
        (self.loops[loop] or self.calls[id(sys._getframe(1))]).turn(loop)

    def hold(self, number: int, value):
        """Compare, and return the value."""
        site, frame = self.sites[number], sys._getframe(1)
        site.seen = True
        scope = Scope() if site.apart else site.scope or self.calls[id(frame)]
        values = [("this", value)]
        if site.targets:
            values = zip(site.targets, value, strict=True)
        elif site.each:
            values = [(f"value {n}", one) for n, one in enumerate(_leaves(value), 1)]
            if not values or not isinstance(value, list | tuple):
                self._fault(site, f"this is no list of several, it is of type {type(value).__name__}")
        for name, one in values:
            shape = getattr(one, "shape", None)
            if not isinstance(shape, tuple):
                more = ": say `each`" if isinstance(one, list | tuple) else ""
                self._fault(site, f"{name} is of type {type(one).__name__}, which has no shape{more}")
            self._fit(site, name, tuple(shape), scope, frame)
        return value

    def excuse(self, place, line: int) -> None:
        """The cell ended with an error in this line of its own level: what stands below could not run."""
        for site in self.sites:
            site.seen = site.seen or (site.place == place and site.line > line)

    def report(self) -> list[tuple]:
        """(place, line, what) of each comment that was wrong, could not be held, or never was."""
        found = list(self.faults)
        for site in self.sites:
            wrong = [f"{missing} is never known" for missing in site.unknown.values() if missing]
            wrong += ["its line never ran"] * (not site.seen)
            found += [(site.place, site.line, f"the comment says {site.text}, and {what}") for what in wrong]
        return list(dict.fromkeys(found))

    def _fault(self, site: Site, what: str):
        what = f"the comment says {site.text}, and {what}"
        self.faults.append((site.place, site.line, what))
        raise WrongShape(what)

    def _fit(self, site: Site, name: str, shape: tuple, scope: Scope, frame) -> None:
        def wrong(why: str):
            shown = f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(map(str, shape))})"
            self._fault(site, f"{name} is {shown}: {why}")

        def local(name: str) -> int | None:
            out_of_sight = frame.f_locals is frame.f_globals and name not in site.above
            value = None if out_of_sight else frame.f_locals.get(name)
            return value if type(value) is int else None

        def known(name: str) -> int | None:
            value = local(name)
            return scope.get(name, site.loops) if value is None else value

        axes, sizes = site.axes, shape
        if "..." in axes and len(shape) >= len(axes) - 1:
            at = axes.index("...")
            axes, sizes = axes[:at] + axes[at + 1 :], shape[:at] + shape[len(shape) - len(axes) + at + 1 :]
        if len(axes) != len(sizes):
            wrong("too few axes" if "..." in axes else f"{len(shape)} axes, not {len(axes)}")
        for axis, size in zip(axes, sizes, strict=True):
            if axis.isidentifier():
                own, before = local(axis), scope.get(axis, site.loops)
                if own not in (None, size):
                    wrong(f"{axis} is {own} here")
                if own is None and before not in (None, size):
                    wrong(f"{axis} is {before} since line {scope.bound[axis][1]}")
                if before != size:
                    scope.bound[axis] = (size, site.line, site.loops)
        for axis, size in zip(axes, sizes, strict=True):
            if (value := _value(axis, known)) is None:
                scope.waiting.append((site, axis, size, {name: known(name) for name in names(axis)}))
                site.unknown.setdefault(axis, " and ".join(name for name in names(axis) if known(name) is None))
            elif value != size:
                wrong(f"{size} stands where the comment has {axis if axis.isdigit() else f'{axis} = {value}'}")
        for waiting in list(scope.waiting):
            where, axis, size, before = waiting
            now = {name: scope.get(name, where.loops) if old is None else old for name, old in before.items()}
            if (value := _value(axis, now.get)) is not None:
                scope.waiting.remove(waiting)
                where.unknown[axis] = ""
                if value != size:
                    wrong(f"then {axis} is {value}, and in line {where.line} it is {size}")
        C, H, D = (scope.get(letter, site.loops) for letter in "CHD")
        if None not in (C, H, D) and C != H * D:
            wrong(f"C = {C} is not H * D = {H} * {D}")

    def weave(self, tree: ast.Module, source: str, place) -> ast.Module:
        """The tree of this source with its comparisons; the ledger knows them under `place`."""
        return _Weaver(self, tree, source, place).woven()


def _leaves(value) -> list:
    """What is in lists of lists."""
    return [leaf for one in value for leaf in _leaves(one)] if isinstance(value, list | tuple) else [value]


# Weaving it into the code ---------------------------------------------------------------------------------------------


def comments(source: str) -> Iterator[tuple]:
    """(text, line, (line, byte) where what stands before it ends, or None where nothing does) of each comment."""
    lines, previous, before = source.split("\n"), None, None
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            end = None
            if before and before.end[0] == token.start[0]:
                row, column = (previous if before.string == "," else before).end
                end = (row, len(lines[row - 1][:column].encode()))
            yield token.string, token.start[0], end
        elif token.string.strip():
            previous, before = before, token


class _Weaver(ast.NodeTransformer):
    def __init__(self, ledger: Ledger, tree: ast.Module, source: str, place):
        self.ledger, self.tree, self.place, self.top = ledger, tree, place, Scope()
        self.above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self.statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
        stores = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self.stores = [n for n in stores if self._around(n)[:2] == (None, False)]  # those of the cell's own level
        self.wraps: dict[ast.AST, list[int]] = {}  # expression -> its sites
        self.first: dict[ast.AST, list] = {}  # function or loop -> what comes first in its body
        self.after: dict[ast.AST, list] = {}  # statement -> what comes behind it
        self.loops: dict[ast.AST, int] = {}  # loops with a comment in them -> their numbers
        for text, line, end in comments(source):
            self._attach(text, line, end)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MAGIC:
                texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
                for text in re.findall("#.*", "\n".join(texts)):
                    self._attach(text, node.lineno, "a % or ! hands it on as text: leave it out, or the % out")

    def woven(self) -> ast.Module:
        for loop, number in self.loops.items():
            self.first.setdefault(loop, []).insert(0, _code(f"{_SELF}.turn({number})", loop.lineno))
        return ast.fix_missing_locations(self.visit(self.tree))

    def visit(self, node):
        new = self.generic_visit(node)
        for number in self.wraps.get(node, ()):
            call = _code(f"{_SELF}.hold({number}, 0)", self.ledger.sites[number].line).value
            call.args[1] = new
            new = call
        if node in self.first:
            documented = isinstance(node, ast.FunctionDef) and ast.get_docstring(node, clean=False) is not None
            node.body[documented:documented] = self.first[node]
        return [new, *self.after[node]] if node in self.after else new

    def _attach(self, text: str, line: int, end) -> None:
        """Hold this comment where it stands, behind what ends at `end`; else note why that cannot be."""
        try:
            comment = parse(text)
            why = comment and (end if isinstance(end, str) else self._place(comment, line, end))
            problem = why and f"the comment says {comment.text}, and {why}"
        except NotUnderstood as error:
            problem = str(error)
        if problem:
            self.ledger.faults.append((self.place, line, problem))

    def _place(self, comment: Comment, line: int, end) -> str | None:
        if end is None:
            return "it has a line of its own: put it at the end of the line that it is about"
        owners = [s for s in self.statements if s.lineno <= line <= _head_end(s)]
        owner = max(owners, key=_begin, default=None)  # the innermost
        if isinstance(owner, ast.FunctionDef):
            parameters = [a.arg for a in (*owner.args.posonlyargs, *owner.args.args, *owner.args.kwonlyargs)]
            if comment.name not in parameters:
                return f"there is no parameter {comment.name}" if comment.name else "of which parameter? Say x (T, C)"
            return self._targets(owner, owner.body[0], ast.Name(comment.name), comment, line)
        if comment.name:
            return f"its line defines no function with a parameter {comment.name}"
        if isinstance(owner, ast.For) and line == owner.iter.end_lineno:
            return self._targets(owner, owner.body[0], owner.target, comment, line)
        if owner is None or hasattr(owner, "body"):
            return _NOTHING
        if line < owner.end_lineno:
            inside = [
                n for n in ast.walk(owner) if isinstance(n, ast.expr) and not isinstance(n, ast.Starred | ast.Slice)
            ]
            read = [n for n in inside if isinstance(getattr(n, "ctx", None), ast.Load | None)]
            ends = [n for n in read if (n.end_lineno, n.end_col_offset) == end]
            if not ends:
                return "nothing that has a value ends in its line"
            return self._value(min(ends, key=_begin), comment, line)
        target = owner.targets[0] if isinstance(owner, ast.Assign) else getattr(owner, "target", None)
        if isinstance(owner, ast.AugAssign) or isinstance(target, ast.Tuple | ast.List):
            return self._targets(owner, None, target, comment, line)
        value = getattr(owner, "value", None)
        if not isinstance(owner, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr) or value is None:
            return _NOTHING
        if isinstance(owner, ast.Expr) and isinstance(value, ast.Call):
            called = getattr(value.func, "attr", None) or getattr(value.func, "id", "")
            value = dict(enumerate(value.args)).get(_ARGUMENT.get(called), value)
        return self._value(value, comment, line)

    def _value(self, value, comment: Comment, line: int) -> str | None:
        if comment.sides:
            if not (isinstance(value, ast.BinOp) and isinstance(value.op, ast.MatMult)):
                return "its value is no product of two sides with @"
            for side, axes in zip((value.left, value.right), comment.sides, strict=True):
                self.wraps.setdefault(side, []).append(self._site(side, comment, line, axes))
        self.wraps.setdefault(value, []).append(self._site(value, comment, line, comment.axes))
        return None

    def _targets(self, owner, inner, target, comment: Comment, line: int) -> str | None:
        """Hold what these names have: behind the owner, or first in its body, before the statement `inner`."""
        targets = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        if comment.sides or not all(isinstance(one, ast.Name) for one in targets):
            return "its targets are no plain names: give the value a name first"
        wanted = tuple(one.id for one in targets if not one.id.startswith("_"))
        if not wanted:
            return _NOTHING
        number = self._site(inner or owner, comment, line, comment.axes, wanted)
        place = self.after if inner is None else self.first
        # No expression, so that it is never the cell's last value.
        place.setdefault(owner, []).append(_code(f"if {_SELF}.hold({number}, ({', '.join(wanted)},)): pass", line))
        return None

    def _site(self, node, comment: Comment, line: int, axes: tuple, targets: tuple = ()) -> int:
        function, apart, loops = self._around(node)
        scope = None if function else self.top
        if function and function not in self.first:
            self.first[function] = [_code(f"{_SELF}.begin()", function.lineno)]
        for loop in loops:
            if loop not in self.loops:
                self.loops[loop] = len(self.ledger.loops)
                self.ledger.loops.append(scope)
        while not isinstance(node, ast.stmt):
            node = self.above[node]
        above = frozenset(name.id for name in self.stores if name.lineno < node.lineno)
        around = tuple(self.loops[loop] for loop in loops)
        site = Site(self.place, line, comment.text, axes, comment.each, scope, apart, around, above, targets)
        self.ledger.sites.append(site)
        return len(self.ledger.sites) - 1

    def _around(self, node) -> tuple:
        """The function that this is in, or None; whether it is apart from its scope; and the loops around it."""
        loops, at = [], self.above.get(node)
        while at is not None:
            if isinstance(at, _APART):
                return None, True, ()
            if isinstance(at, ast.FunctionDef) and node in at.body:
                return at, False, tuple(loops)
            if isinstance(at, ast.For | ast.While) and node in at.body:  # its `else` comes once
                loops.insert(0, at)
            node, at = at, self.above.get(at)
        return None, False, tuple(loops)


def _begin(node) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _head_end(statement) -> int:
    """The last line of a statement; of a compound one, of its head."""
    body = getattr(statement, "body", None)
    return body[0].lineno - 1 if body and body[0].lineno > statement.lineno else statement.end_lineno


def _code(text: str, line: int) -> ast.stmt:
    """A statement of woven code, on this line."""
    statement = ast.parse(text).body[0]
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and node.id == _SELF:
            node.id = LEDGER
        if hasattr(node, "lineno"):
            node.lineno, node.end_lineno, node.col_offset, node.end_col_offset = line, line, 0, 0
    return statement


# In a kernel ----------------------------------------------------------------------------------------------------------


def install(shell) -> Ledger:
    """Hold the comments of all cells that this IPython shell runs after the one that calls this, numbered from 2 on."""
    ledger, parsed, number = Ledger(), shell.compile.ast_parse, 1
    setattr(builtins, LEDGER, ledger)

    def begun(info):
        nonlocal number
        number += bool(info.store_history)  # %%capture and get_ipython().run_cell run cells within a cell

    def ast_parse(source, *rest, **more):  # what IPython lets us register for this is not told the source
        tree = parsed(source, *rest, **more)
        try:
            return ledger.weave(tree, source, number)
        except Exception as error:
            ledger.faults.append((number, 1, f"its shape comments cannot be held: {error!r}"))
            return parsed(source, *rest, **more)

    def ended(result):
        trace = getattr(result.error_in_exec, "__traceback__", None)
        while trace and trace.tb_frame.f_locals is not shell.user_global_ns:
            trace = trace.tb_next
        if trace and result.info.store_history:
            ledger.excuse(number, trace.tb_lineno)

    shell.compile.ast_parse = ast_parse
    shell.events.register("pre_run_cell", begun)
    shell.events.register("post_run_cell", ended)
    return ledger
