"""Hold every shape comment against the tensor that it stands beside, while the page runs.

    weights @ x  # (T, T) @ (T, C) -> (T, C)

Comments are no part of Python's syntax tree, so the cell's tokens give the comments, its tree the statements, and the
two meet in the line.  Behind each statement that bears a comment a call is woven in, which compares.  It is put on the
line of the comment: an error leads there, and all other lines, outputs and sources stay what they were.

What a comment can say, with anything after a colon, a semicolon, a comma or a blank for the reader alone:

    # (B, T, C)                     whole numbers, letters, sums and products (t+1, 4C, T*H), one `...`; () has no axis
    # (T, D) each                   of all in a tuple, list (of lists) or dictionary; or: # each (T, D)
    # (B, T), (V,)                  one after the other; one shape alone is that of each where there are several targets
    # x (T, C)                      of the variable x; on a def line, of that parameter; x, y (T, C): of both
    # (T, T) @ (T, C) -> (T, C)     the last one counts; the operands are held too where the code has the operator
    # (T, C) -> (T, D)              on a def line: of its only parameter, and of all that it returns

What it stands beside: the value of a statement, and of `print`, `append` and `register_buffer` the argument; on a line
inside of a longer statement, behind an opening bracket the same, else the expression or the parameter that ends there
(a name is its label); on the line of a `for` or `with`, what it names.  Targets that begin with _ do not count.  Where
a line has no such thing, where the comment has a line of its own, or where it looks like a shape and cannot be read,
the page fails: no comment is passed over.  Nor is one whose line never runs.

How letters are read: in one call of a function, or one run of a cell's top level, a letter is bound where it is first
met, and stays the same; in a loop, for one turn.  A whole number in a local variable of that name is what the letter
means (at the top level, one that this cell sets above the comment).  Other expressions wait until their letters are
bound.  And where C, H and D are all known, C = H * D.
"""

import ast
import builtins
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field

LEDGER, SCOPE = ".shapes", ".scope"  # names that no program can have: nobody's variables, and none more in dir()

_GROUP = re.compile(r"(?<![\w\])])\(([^()]*)\)")
_ITEM = re.compile(r"(?:([A-Za-z_][\w.]*(?:\s*,\s*[A-Za-z_][\w.]*)*)\s*:?\s+)?\(([^()]*)\)(\s+each\b)?")
_JOIN = re.compile(r"\s*(->|→|@|[-+−*·/]|,|and\b)\s*")
_WORDS = re.compile(r"[a-z]+(?: [a-z]+)+")
_OPERATORS = {"@": ast.MatMult, "+": ast.Add, "-": ast.Sub, "−": ast.Sub, "*": ast.Mult, "·": ast.Mult, "/": ast.Div}
_ARGUMENT = {"print": 0, "append": 0, "register_buffer": 1}  # calls that return None, and what they are about
_IMPURE = (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)  # not to be evaluated a second time
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class NotUnderstood(ValueError):
    """A comment that looks like a shape, and is none."""


class WrongShape(Exception):
    """A shape comment says what is not so."""


# What a comment says --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Item:
    """A shape, of the variables `names` if there are any: entries: a number, a letter, Expression, "any" or "..."."""

    text: str
    entries: tuple
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Expression:
    text: str
    names: frozenset[str]
    code: object

    def value(self, find) -> int | None:
        """Its value, with find(name) for each of its names; None where one of them is not known."""
        known = {name: find(name) for name in self.names}
        return None if None in known.values() else eval(self.code, {"__builtins__": {}}, known)


@dataclass(frozen=True)
class Comment:
    """`items` are held; `before` stands before an arrow, its shapes joined by `operator`."""

    text: str
    items: tuple[Item, ...]
    each: bool = False
    before: tuple[Item, ...] = ()
    operator: str = ""


def parse(comment: str) -> Comment | None:
    """What a comment (with or without its #) says of shapes, None where it says nothing; raises NotUnderstood."""
    text = comment.lstrip("#").strip()
    each = bool(start := re.match(r"each\s+(?=\()", text))
    position, joins, items = start.end() if start else 0, [], []
    while match := _ITEM.match(text, position):
        entries = _entries(match[2], first=match.start(2) == 1)
        if entries is None:
            break
        names = tuple(re.split(r"\s*,\s*", match[1])) if match[1] else ()
        items.append(Item(f"({match[2].strip()})", entries, names))
        each, position = each or bool(match[3]), match.end()
        if not (join := _JOIN.match(text, position)):
            break
        joins.append(join[1].replace("→", "->"))
        following = _ITEM.match(text, join.end())
        if not following or _entries(following[2]) is None:
            joins.pop()
            break
        position = join.end()
    rest = text[position:]
    elsewhere = (group[1] for group in _GROUP.finditer(rest) if re.search("[A-Z]", group[1]))
    if rest[:1] not in tuple(":;,.") and any(_entries(inside) is not None for inside in elsewhere):
        how = "put a colon before the words" if items else "write the shape first, the words after it"
        raise NotUnderstood(f"the comment {text!r} looks like a shape: {how}")
    if not items:
        return None
    text = text[:position].strip()
    joins = ["," if join == "and" else join for join in joins]
    if "->" in joins:
        at = joins.index("->")
        operators = set(joins[:at])
        if len(items) != at + 2 or len(operators) > 1:
            raise NotUnderstood(f"the comment {text!r} looks like a shape: one operator, one arrow, one result")
        return Comment(text, tuple(items[-1:]), each, tuple(items[:-1]), "".join(operators))
    if set(joins) - {","}:
        raise NotUnderstood(f"the comment {text!r} looks like a shape: what comes out? Write it after ->")
    if len({bool(item.names) for item in items}) > 1:
        raise NotUnderstood(f"the comment {text!r} looks like a shape: give all of its shapes a name, or none")
    return Comment(text, tuple(items), each)


def _entries(inside: str, first: bool = False) -> tuple | None:
    """The axes between two parentheses, None where they hold something else."""
    parts = [part.strip() for part in inside.split(",")]
    if parts == [""]:
        return () if first else None
    if len(parts) == 1:
        if first and re.fullmatch(r"\d*[A-Z]|[A-Z] *[-+*] *\d+", parts[0]):
            raise NotUnderstood(f"the comment ({inside}) looks like a shape: one axis is written ({parts[0]},)")
        return None
    if parts[-1] == "":
        parts.pop()
    entries = [_entry(part) for part in parts]
    understood = [part for part, entry in zip(parts, entries, strict=True) if entry is not None]
    if not any(re.search(r"[A-Z0-9]|^[a-z]$|^\.\.\.$", part) for part in understood):
        return None
    if None in entries or parts.count("...") > 1:
        if first or any(re.fullmatch(r"\d*[A-Z]", part) for part in parts):
            raise NotUnderstood(f"the comment ({inside}) looks like a shape: use whole numbers, letters, t+1, 4C, T*H")
        return None
    return tuple(entries)


def _entry(part: str):
    """A number, a letter, an Expression, "..." or "any"; None for anything else."""
    if part == "...":
        return part
    if part.isascii() and part.isdigit():
        return int(part)
    if re.fullmatch(r"[A-Za-z]", part):
        return part
    if _WORDS.fullmatch(part):  # (B, one more): an axis, and words for it
        return "any"
    plain = re.sub(r"(?<=\d) ?(?=[A-Za-z])", "*", part.replace("−", "-").replace("·", "*").replace("×", "*"))
    plain = re.sub(r"(?<!/)/(?!/)", "//", plain)
    try:
        tree = ast.parse(plain, mode="eval")
    except SyntaxError:
        return None
    known = (ast.Expression, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Name, ast.Load, ast.Constant)
    nodes = list(ast.walk(tree))
    if not all(isinstance(n, known) and not (isinstance(n, ast.Constant) and type(n.value) is not int) for n in nodes):
        return None
    names = frozenset(node.id for node in nodes if isinstance(node, ast.Name))
    return Expression(part, names, compile(tree, "<shape>", "eval"))


# Holding it against values --------------------------------------------------------------------------------------------


@dataclass
class Scope:
    """One run of a cell's top level, or one call of a function: what its letters mean so far."""

    bound: dict[str, tuple] = field(default_factory=dict)  # letter -> (size, loops around, line)
    waiting: list[tuple] = field(default_factory=list)  # (site, expression, size, loops around)

    def get(self, letter: str, loops: tuple) -> int | None:
        size, around, _ = self.bound.get(letter, (None, (), 0))
        return size if around == loops[: len(around)] else None  # what a loop bound means nothing behind it

    def turn(self, loop: int) -> None:
        """Another turn of the loop: what was bound in it is free again."""
        if self.bound or self.waiting:
            self.bound = {letter: b for letter, b in self.bound.items() if loop not in b[1]}
            self.waiting = [w for w in self.waiting if loop not in w[3]]


@dataclass
class Site:
    """A comment, or one of its shapes, and where it is held."""

    place: object  # the number of the cell, or the file
    line: int
    comment: str
    items: tuple[Item, ...]
    each: bool
    top: Scope  # of the cell
    loops: tuple = ()
    inside: bool = False  # of a function
    above: frozenset = frozenset()  # at the top level: the names that the cell has set by then
    problem: str = ""  # why it cannot be held
    seen: bool = False


class Ledger:
    """All sites of a page, and what was wrong."""

    def __init__(self):
        self.sites: list[Site] = []
        self.loops: list[Scope] = []
        self.faults: list[tuple] = []  # (place, line, what)

    # What woven code calls

    def open(self) -> Scope:
        return Scope()

    def turn(self, loop: int, scope: Scope | None) -> None:
        (scope or self.loops[loop]).turn(loop)

    def hold(self, number: int, value, scope: Scope | None = None):
        """Compare, and return the value."""
        self._compare(self.sites[number], value, scope, sys._getframe(1))
        return value

    def see(self, number: int, value=None, scope: Scope | None = None) -> None:
        self._compare(self.sites[number], value, scope, sys._getframe(1))

    # The comparison

    def report(self) -> list[tuple]:
        """(place, line, what) of each comment that was wrong, could not be held, or never was."""
        silent = [site for site in self.sites if not site.seen and not site.problem]
        never = [(s.place, s.line, f"the comment says {s.comment}, and its line never ran") for s in silent]
        return list(dict.fromkeys(self.faults + never))

    def _fault(self, site: Site, what: str):
        self.faults.append((site.place, site.line, what))
        raise WrongShape(what)

    def _compare(self, site: Site, value, scope: Scope | None, frame) -> None:
        site.seen = True
        if site.problem:
            self._fault(site, site.problem)
        scope = scope or site.top
        if site.items[0].names:
            values = [(item, name, self._find(site, name, frame)) for item in site.items for name in item.names]
        else:
            values = self._spread(site, value)
        for item, name, one in values:
            shape = one if type(one).__name__ == "Size" else getattr(one, "shape", None)
            if not isinstance(shape, tuple):
                more = ": say `each`" if isinstance(one, list | tuple) else ""
                self._fault(site, f"the comment says {site.comment}, and {name or 'this'} is {_kind(one)}{more}")
            self._fit(site, item, name, tuple(shape), scope, frame)

    def _find(self, site: Site, name: str, frame):
        first, *rest = name.split(".")
        try:
            value = frame.f_locals[first] if first in frame.f_locals else frame.f_globals[first]
            for part in rest:
                value = getattr(value, part)
        except (KeyError, AttributeError):
            self._fault(site, f"the comment says {site.comment}, and there is no variable {name} here")
        return value

    def _spread(self, site: Site, value) -> list[tuple]:
        if not site.each and len(site.items) == 1:
            return [(site.items[0], "", value)]
        values = list(value.values()) if isinstance(value, dict) else value
        if isinstance(values, Iterator) or not hasattr(values, "__iter__"):
            self._fault(site, f"the comment says {site.comment}, and this is {_kind(value)}, not several values")
        values = list(_leaves(values)) if site.each else list(values)
        items = site.items * len(values) if site.each and len(site.items) == 1 else site.items
        if len(items) != len(values) or not values:
            self._fault(site, f"the comment says {site.comment}, and the values are {len(values)}")
        return [(item, f"value {n}", one) for n, (item, one) in enumerate(zip(items, values, strict=True), start=1)]

    def _fit(self, site: Site, item: Item, name: str, shape: tuple, scope: Scope, frame) -> None:
        loops = site.loops

        def wrong(why: str):
            self._fault(site, f"the comment says {site.comment}, and {name or 'this'} is {_text(shape)}: {why}")

        def local(letter: str) -> int | None:
            if site.inside:
                code = frame.f_code
                own = letter in code.co_varnames or letter in code.co_cellvars
                value = frame.f_locals.get(letter) if own else None
            else:
                value = frame.f_globals.get(letter) if letter in site.above else None
            return value if type(value) is int else None

        def known(letter: str) -> int | None:
            value = local(letter)
            return scope.get(letter, loops) if value is None else value

        entries = item.entries
        if "..." in entries:
            at = entries.index("...")
            some = ("any",) * (len(shape) - len(entries) + 1)
            entries = entries[:at] + some + entries[at + 1 :]
        if len(entries) != len(shape):
            wrong(f"{len(shape)} axes, not {len(item.entries)}" if "..." not in item.entries else "too few axes")
        pairs = list(zip(entries, shape, strict=True))
        for entry, size in pairs:
            if type(entry) is int and entry != size:
                wrong(f"{size} stands where the comment has {entry}")
            elif type(entry) is str and entry != "any":
                own, before = local(entry), scope.get(entry, loops)
                if own is not None and own != size:
                    wrong(f"{entry} is {own} here")
                if own is None and before is not None and before != size:
                    wrong(f"{entry} is {before} since line {scope.bound[entry][2]}")
                if before != size:
                    scope.bound[entry] = (size, loops, site.line)
        for entry, size in pairs:
            if isinstance(entry, Expression):
                value = entry.value(known)
                if value is None and all(len(n) == 1 for n in entry.names):
                    scope.waiting.append((site, entry, size, loops))
                elif value is not None and value != size:
                    wrong(f"{entry.text} is {value} here")
        for waiting in list(scope.waiting):
            where, entry, size, around = waiting
            if around == loops[: len(around)] and (value := entry.value(lambda n: scope.get(n, loops))) is not None:
                scope.waiting.remove(waiting)
                if value != size:
                    wrong(f"then {entry.text} is {value}, and in line {where.line} it is {size}")
        C, H, D = (scope.get(letter, loops) for letter in "CHD")
        if None not in (C, H, D) and C != H * D:
            wrong(f"C = {C} is not H * D = {H} * {D}")

    # Weaving

    def weave(self, tree: ast.Module, source: str, place) -> ast.Module:
        """The tree of this source with its comparisons; the ledger knows them under `place`."""
        return _Weaver(self, tree, source, place).woven()


def _leaves(values) -> Iterator:
    """What is in lists of lists."""
    for value in values:
        if isinstance(value, list | tuple) and not hasattr(value, "numel"):
            yield from _leaves(value)
        else:
            yield value


def _kind(value) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}, which has no shape"


def _text(shape: tuple) -> str:
    return f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(map(str, shape))})"


# Weaving it into the code ---------------------------------------------------------------------------------------------


def comments(source: str) -> Iterator[tuple]:
    """(text, line, (line, byte) where what stands before it ends, its last token) of each comment."""
    lines, previous, before = source.split("\n"), None, None
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            end = None
            if before and before.end[0] == token.start[0]:
                last = previous if before.string == "," else before
                end = (last.end[0], len(lines[last.end[0] - 1][: last.end[1]].encode()))
            yield token.string, token.start[0], end, before and before.string
        elif token.string.strip():
            previous, before = before, token


class _Weaver(ast.NodeTransformer):
    def __init__(self, ledger: Ledger, tree: ast.Module, source: str, place):
        self.ledger, self.tree, self.place, self.top = ledger, tree, place, Scope()
        self.above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self.statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
        self.wraps: dict[ast.AST, list[int]] = {}  # expression -> its sites
        self.turns: set[int] = set()  # loops that have a comment in them
        self.around: dict[ast.AST, tuple[list, list, list]] = {}  # statement -> before, after, first in its body
        self.loops = {node: self._number_loop() for node in self.statements if isinstance(node, _LOOPS)}
        found = list(comments(source))
        for text, line, end, last in found:
            try:
                comment = parse(text)
                if comment and (problem := self._attach(comment, line, end, last)):
                    problem = f"the comment says {comment.text}, and {problem}"
            except NotUnderstood as error:
                comment, problem = Comment(text.lstrip("# "), ()), str(error)
            if comment and problem:
                at = next((s for s in tree.body if _begin(s) <= line <= s.end_lineno), None)
                at = at or next((s for s in tree.body if s.lineno > line), tree.body[-1] if tree.body else None)
                if at is not None:
                    site = self._site(None, line, comment, (), problem=problem)
                    self._beside(at)[0].append(self._see(site, line))

    def woven(self) -> ast.Module:
        functions = {self._function(node) for node in [*self.wraps, *self.around]}
        functions |= {node for node, (_, _, first) in self.around.items() if first and isinstance(node, _FUNCTIONS)}
        for loop in (loop for loop, number in self.loops.items() if number in self.turns):
            line = loop.lineno
            arguments = [_at(ast.Constant(self.loops[loop]), line), self._scope(loop, line)]
            self._beside(loop)[2].insert(0, _then(_call("turn", arguments, line), line))
        for function in functions - {None}:
            opened = ast.Assign(
                [_at(ast.Name(SCOPE, ast.Store()), function.lineno)], _call("open", [], function.lineno)
            )
            self._beside(function)[2].insert(0, _at(opened, function.lineno))
        return ast.fix_missing_locations(self.visit(self.tree))

    def visit(self, node):
        new = self.generic_visit(node)
        for number in self.wraps.get(node, ()):
            line = self.ledger.sites[number].line
            new = _call("hold", [_at(ast.Constant(number), line), new, self._scope(node, line)], line)
        if node in self.around:
            before, after, first = self.around[node]
            if first:
                documented = isinstance(node, _FUNCTIONS) and ast.get_docstring(node, clean=False) is not None
                node.body[documented:documented] = first
            return [*before, new, *after]
        return new

    # Where a comment belongs

    def _attach(self, comment: Comment, line: int, end, last) -> str | None:
        """Hold this comment where it stands; else the reason why that cannot be."""
        if end is None:
            return "it has a line of its own: put it at the end of the line that it is about"
        owner = self._owner(line)
        nothing = "nothing in its line has a value: put it where the value is made"
        if owner is None:
            return nothing
        if isinstance(owner, _FUNCTIONS):
            return self._attach_to_def(owner, comment, line, end, last)
        if hasattr(owner, "body"):
            if last != ":":
                return self._attach_inside(owner, comment, line, end)
            if comment.items[0].names:
                return self._named(owner, 2, comment, line)
            if isinstance(owner, ast.For | ast.AsyncFor):
                return self._after(owner, 2, owner.target, comment, line)
            names = [item.optional_vars for item in getattr(owner, "items", ()) if item.optional_vars]
            if not names:
                return nothing
            return self._after(owner, 2, names[0] if len(names) == 1 else _tuple(names), comment, line)
        if line < owner.end_lineno and last not in ("(", "[", "{"):
            return self._attach_inside(owner, comment, line, end)
        if comment.items[0].names:
            leaves = isinstance(owner, ast.Return | ast.Raise | ast.Break | ast.Continue)
            return self._named(owner, 0 if leaves else 1, comment, line)
        value = getattr(owner, "value", None)
        if not isinstance(owner, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr) or value is None:
            return nothing
        if isinstance(owner, ast.Expr):
            if isinstance(value, ast.Yield) and value.value is not None:
                value = value.value
            elif isinstance(value, ast.Call):
                called = value.func
                name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                at = _ARGUMENT.get(name, len(value.args))
                if at < len(value.args) and not isinstance(value.args[at], ast.Starred):
                    value = value.args[at]
        elif not isinstance(owner, ast.Return):
            target = owner.targets[0] if isinstance(owner, ast.Assign) else owner.target
            impure = any(isinstance(node, _IMPURE) for node in ast.walk(target))
            if isinstance(owner, ast.AugAssign) and impure:
                return "the target is a call: give it a name first"
            if isinstance(owner, ast.AugAssign) or (
                isinstance(target, ast.Tuple | ast.List | ast.Subscript) and not impure
            ):
                self._operands(value, comment, line)
                return self._after(owner, 1, target, comment, line)
        return self._wrap(value, comment, line)

    def _attach_inside(self, owner, comment: Comment, line: int, end) -> str | None:
        """To the largest expression that ends where the comment begins."""
        ends = [
            node
            for node in ast.walk(owner)
            if isinstance(node, ast.expr)
            and (node.end_lineno, node.end_col_offset) == end
            and not isinstance(node, ast.Starred)
            and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        ]
        if not ends:
            return "nothing that has a value ends in its line"
        return self._wrap(min(ends, key=lambda node: (node.lineno, node.col_offset)), comment, line)

    def _attach_to_def(self, owner, comment: Comment, line: int, end, last) -> str | None:
        a = owner.args
        parameters = [*a.posonlyargs, *a.args, *a.kwonlyargs]
        if last != ":":  # def f(\n  x,  # (T, C)
            defaults = [None] * (len(a.posonlyargs + a.args) - len(a.defaults)) + [*a.defaults, *a.kw_defaults]
            for parameter, default in zip(parameters, defaults, strict=True):
                at = default or parameter
                if (at.end_lineno, at.end_col_offset) == end and not comment.items[0].names:
                    return self._after(owner, 2, ast.Name(parameter.arg), comment, line)
            return "no parameter ends in its line"
        names = [p.arg for p in parameters if p.arg not in ("self", "cls")]
        wanted = comment.before if comment.before or not comment.items[0].names else comment.items
        if not comment.before:
            wanted = comment.items
        for item in wanted:
            for name in item.names:
                if name.split(".")[0] not in names:
                    return f"there is no parameter {name}"
        if wanted[0].names:
            self._named(owner, 2, Comment(comment.text, wanted, comment.each), line)
        elif len(names) != len(wanted) and not (comment.each and len(wanted) == 1 and names):
            return "the parameters are others: give their names, as in x (T, C)"
        else:
            loads = ast.Name(names[0]) if len(names) == 1 and not comment.each else _tuple(map(ast.Name, names))
            self._after(owner, 2, loads, Comment(comment.text, wanted, comment.each), line)
        if comment.before:
            returns = [s for s in self.statements if isinstance(s, ast.Return) and self._function(s) is owner]
            if not any(s.value for s in returns):
                return "nothing is returned"
            result = Comment(comment.text, comment.items)
            number = self._site(returns[0], line, result, result.items)
            for s in returns:
                if s.value is not None:
                    self.wraps.setdefault(s.value, []).append(number)
        return None

    # How it is held

    def _wrap(self, value, comment: Comment, line: int) -> None:
        self._operands(value, comment, line)
        items = [Item(item.text, item.entries) for item in comment.items]  # inside of a statement names are labels
        self.wraps.setdefault(value, []).append(self._site(value, line, comment, items))

    def _operands(self, value, comment: Comment, line: int) -> None:
        wanted, kind = comment.before, _OPERATORS.get(comment.operator)
        operands = []
        if isinstance(value, ast.Call) and kind is ast.MatMult and len(value.args) == 2:
            operands = value.args
        else:
            while isinstance(value, ast.BinOp) and kind and type(value.op) is kind and len(operands) < len(wanted) - 1:
                operands.insert(0, value.right)
                value = value.left
            operands.insert(0, value)
        if kind and len(operands) == len(wanted):
            for operand, item in zip(operands, wanted, strict=True):
                self.wraps.setdefault(operand, []).append(self._site(operand, line, comment, (item,)))

    def _after(self, owner, where: int, target, comment: Comment, line: int) -> None:
        """Hold what is in the target: 0 before the statement, 1 behind it, 2 first in its body."""
        if isinstance(target, ast.Tuple | ast.List):
            target = _tuple(e for e in target.elts if not (isinstance(e, ast.Name) and e.id.startswith("_")))
        number = self._site(owner, line, comment, comment.items, inner=where == 2)
        self.ledger.sites[number].each |= isinstance(target, ast.Tuple) and len(comment.items) == 1
        value = _loaded(target, line)
        self._beside(owner)[where].append(self._see(number, line, value, owner if where == 2 else self.above[owner]))

    def _named(self, owner, where: int, comment: Comment, line: int) -> None:
        self._after(owner, where, ast.Constant(None), comment, line)

    def _site(self, node, line: int, comment: Comment, items, inner: bool = False, problem: str = "") -> int:
        function = self._function(node, inner) if node else None
        loops, at = [], node
        while at is not None and at is not function:
            if at in self.loops and (at is not node or inner):
                loops.insert(0, self.loops[at])
            at = self.above.get(at)
        self.turns.update(loops)
        owner = node
        while owner is not None and not isinstance(owner, ast.stmt):
            owner = self.above.get(owner)
        names = self._set_above(owner) if owner is not None and function is None else frozenset()
        site = Site(
            self.place, line, comment.text, tuple(items), comment.each, self.top, tuple(loops),
            function is not None, names, problem,
        )  # fmt: skip
        self.ledger.sites.append(site)
        return len(self.ledger.sites) - 1

    def _set_above(self, owner: ast.stmt) -> frozenset:
        """The names that the cell's own level sets above this statement."""
        names = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.lineno < owner.lineno:
                hidden = (
                    *_FUNCTIONS,
                    ast.Lambda,
                    ast.ClassDef,
                    ast.ListComp,
                    ast.SetComp,
                    ast.DictComp,
                    ast.GeneratorExp,
                )
                at = self.above.get(node)
                while at is not None and not isinstance(at, hidden):
                    at = self.above.get(at)
                if at is None:
                    names.add(node.id)
        return frozenset(names)

    def _see(self, number: int, line: int, value=None, node=None) -> ast.stmt:
        constant = _at(ast.Constant(number), line)
        value = _at(ast.Constant(None), line) if value is None else value
        scope = self._scope(node, line, inner=True) if node is not None else _at(ast.Constant(None), line)
        return _then(_call("see", [constant, value, scope], line), line)

    def _scope(self, node, line: int, inner: bool = False):
        inside = self._function(node, inner or isinstance(node, _LOOPS)) is not None
        return _at(ast.Name(SCOPE, ast.Load()) if inside else ast.Constant(None), line)

    def _function(self, node, inner: bool = False):
        """The function around this node; with `inner`, the node itself where it is one."""
        at = node if inner else self.above.get(node)
        while at is not None and not isinstance(at, _FUNCTIONS):
            at = self.above.get(at)
        return at

    def _beside(self, statement) -> tuple[list, list, list]:
        return self.around.setdefault(statement, ([], [], []))

    def _number_loop(self) -> int:
        self.ledger.loops.append(self.top)
        return len(self.ledger.loops) - 1

    def _owner(self, line: int):
        """The innermost statement in whose line (of a compound one: in whose head) this is."""
        owners = [s for s in self.statements if _begin(s) <= line <= _head_end(s)]
        return max(owners, key=lambda s: (s.lineno, s.col_offset), default=None)


def _begin(statement) -> int:
    return min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])


def _head_end(statement) -> int:
    body = getattr(statement, "body", None) or getattr(statement, "cases", None)
    if not body:
        return statement.end_lineno
    first = body[0].pattern.lineno if isinstance(body[0], ast.match_case) else _begin(body[0])
    return first - 1


def _at(node, line: int):
    node.lineno = node.end_lineno = line
    node.col_offset = node.end_col_offset = 0
    return node


def _call(method: str, arguments: list, line: int):
    called = ast.Attribute(_at(ast.Name(LEDGER, ast.Load()), line), method, ast.Load())
    return _at(ast.Call(_at(called, line), arguments, []), line)


def _then(call, line: int):
    """A statement that calls; no expression, so that it is never the cell's last value."""
    return _at(ast.If(call, [_at(ast.Pass(), line)], []), line)


def _tuple(nodes):
    return ast.Tuple(list(nodes), ast.Load())


def _loaded(target, line: int):
    """The target of an assignment as an expression on this line."""
    new = ast.parse(ast.unparse(target), mode="eval").body
    for node in ast.walk(new):
        if hasattr(node, "lineno"):
            _at(node, line)
    return new


# In a kernel ----------------------------------------------------------------------------------------------------------


def install(shell) -> Ledger:
    """Hold the comments of all cells that this IPython shell runs after the one that calls this, numbered from 2 on."""
    ledger, source, number = Ledger(), "", 1
    setattr(builtins, LEDGER, ledger)

    def remember(info):
        nonlocal source, number
        source, number = getattr(info, "transformed_cell", None) or shell.transform_cell(info.raw_cell), number + 1

    class Transformer:
        def visit(self, tree):
            try:
                return ledger.weave(tree, source, number)
            except Exception as error:  # else IPython goes on without this transformer
                ledger.faults.append((number, 1, f"its shape comments cannot be held: {error!r}"))
                return ast.parse(source)

    shell.events.register("pre_run_cell", remember)
    shell.ast_transformers.append(Transformer())
    return ledger
