"""What the build does to prose, and asks of it.

`{{ name:format }}` is filled from claims.  A number that a cell could have computed must come in this way: a bare
number (with a decimal point, a thousands separator, or three digits and more) is an error outside code, maths, links
and the exceptions of `exceptions.toml`.  A theorem names its test, and the test the theorem.
"""

import ast
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

# Code, formulas and comments: nothing in them is filled or looked at.
_LITERAL = r"""
    (?P<fence> ^[ \t>]*(?P<mark>`{3,}|~{3,})[^\n]*\n (?:.*?\n)?? [ \t>]*(?P=mark)[`~]*[ \t]*$ )
  | <!-- .*? -->
  | (?P<code> (?P<ticks>(?<![`\\])`+(?!`)) (?:(?!\n[ \t]*\n).)+? (?<!`)(?P=ticks)(?!`) )
  | (?<!\\)\$\$ .+? \$\$
  | (?<![\\$])\$(?![\s$]) (?:\\.|(?!\n[ \t]*\n)[^\\$])+? (?<!\s)\$
  | \\\( .+? \\\)
  | \\\[ .+? \\\]
  | ^[ \t]*\\begin\{(?P<env>[a-z*]+)\} .+? \\end\{(?P=env)\}
"""
_FIELD = r"\{\{\s*(?P<name>[^{}:\s]*)\s*(?::(?P<format>[^{}]*))?\}\}"
# What else is no prose: claims, whole elements of code, tags, links with their text, addresses, attributes, labels.
_MARKUP = rf"""
    {_FIELD.replace("P<name>", ":").replace("P<format>", ":")}
  | <(?P<element>pre|code|svg|style|script|math)\b .*? </(?P=element)>
  | </?[a-zA-Z] [^<>]* >
  | !?\[ (?:[^\[\]]|\[[^\[\]]*\])* \] (?: \([^()\s]* (?:\s+"[^"]*")? \) | \[[^\[\]]*\] )
  | ^[ \t]*\[[^\[\]]+\]:[ \t]*\S+
  | <?\bhttps?://[^\s<>()]+>?
  | \{{:?[ ]*[\#.][^{{}}\n]*\}} | \{{[^{{}}\n]*=[^{{}}\n]*\}}
  | \[\^[^\]]+\]
  | &\#?\w+;
"""
_SKIP = re.DOTALL | re.MULTILINE | re.VERBOSE
_LITERALS = re.compile(_LITERAL, _SKIP)
_FIELDS_OR_LITERALS = re.compile(f"{_FIELD} | {_LITERAL}", _SKIP)
_NOT_PROSE = re.compile(f"{_LITERAL} | {_MARKUP}", _SKIP)
# Digits with what may stand between them; narrow, fixed and thin blanks separate thousands too.
_NUMBER = re.compile("\\d(?:[\\d.,'’_\u00a0\u2009\u202f]*\\d)?|(?<!\\d)\\.\\d+")
_BARE = re.compile("\\.\\d|\\d{3}|\\d[,'’_\u00a0\u2009\u202f]\\d{3}")


@dataclass
class Exceptions:
    """The few phrases with a number that no cell can compute: {phrase: reason}, and those met so far."""

    reasons: dict[str, str] = field(default_factory=dict)
    met: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, path: Path) -> "Exceptions":
        """From a file of `[[exception]]` tables with `text` and `reason`; none where there is no file."""
        if not path.is_file():
            return cls()
        listed = tomllib.loads(path.read_text(encoding="utf-8")).get("exception", [])
        for entry in listed:
            if not (entry.get("text", "").strip() and entry.get("reason", "").strip()):
                raise ValueError(f"{path.name}: every exception needs a text and a reason, got {entry}")
        return cls({entry["text"]: entry["reason"] for entry in listed})

    def without(self, text: str) -> str:
        """The text with each excepted phrase blanked."""
        for phrase in self.reasons:
            pattern = r"\s+".join(map(re.escape, phrase.split()))  # prose is wrapped anywhere
            text, count = re.subn(rf"(?<![\w.,]){pattern}(?!\w)", _blank, text)
            if count:
                self.met.add(phrase)
        return text

    def unused(self) -> list[str]:
        return [phrase for phrase in self.reasons if phrase not in self.met]


def _blank(match: re.Match) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def bare_numbers(text: str, exceptions: Exceptions) -> list[tuple[int, str]]:
    """Each bare number in a piece of Markdown: its place in the text, and the number."""
    prose = exceptions.without(_NOT_PROSE.sub(_blank, text))
    return [(match.start(), match[0]) for match in _NUMBER.finditer(prose) if _BARE.search(match[0])]


ABSENT = "–"  # in the place of a claim that a page did not record because it could not be run


def fill(text: str, claims: dict[str, object], *, escape: bool = True, absent: bool = False) -> tuple[str, list[str]]:
    """The text with every `{{ name:format }}` outside code and maths filled, and one line for each that cannot be.

    A text claim keeps its characters: with `escape`, nothing in it works as Markdown or HTML. With `absent`, a claim
    that nobody recorded is a dash and no problem.
    """
    problems = []

    def one(match: re.Match) -> str:
        if match["name"] is None:
            return match[0]
        name, spec = match["name"], (match["format"] or "").strip()
        if name not in claims and absent:
            return ABSENT
        if name not in claims:
            problems.append(f"no cell records the claim {name!r} that {match[0]} asks for")
            return match[0]
        try:
            shown = format(claims[name], spec)
        except ValueError as error:
            problems.append(f"{match[0]} cannot be filled with {claims[name]!r}: {error}")
            return match[0]
        return _literally(shown) if escape and isinstance(claims[name], str) else shown

    filled = _FIELDS_OR_LITERALS.sub(one, text)
    for match in re.finditer(r"\{\{[^\n]{0,40}", _LITERALS.sub(_blank, text)):
        if not re.match(_FIELD, text[match.start() :]):
            problems.append(f"{match[0].strip()!r} is no claim: write {{{{ name }}}} or {{{{ name:format }}}}")
    return filled, problems


def quoted(text: str) -> list[str]:
    """The names of the claims that a piece of Markdown quotes, in order."""
    return [match["name"] for match in _FIELDS_OR_LITERALS.finditer(text) if match["name"] is not None]


def _literally(text: str) -> str:
    """The text as HTML in which Markdown finds nothing to do."""
    return re.sub(r"[!-/:-@\[-`{-~\n]", lambda match: f"&#{ord(match[0])};", text)


def line_of(source: str, text: str, position: int) -> int:
    """The line of the page's file that holds this position of a piece of its prose, or 0."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : end if end >= 0 else len(text)].strip()
    return next((n for n, candidate in enumerate(source.splitlines(), 1) if line and line in candidate), 0)


# Theorems -------------------------------------------------------------------------------------------------------------

_THEOREM = re.compile(
    r"""^(?P<indent>[ \t]*)(?:!!!|\?\?\?\+?)[ \t]+theorem[ \t]+"(?P<name>[^"]+)"[^\n]*\n
    (?P<body>(?:(?P=indent)[ \t]+[^\n]*\n|[ \t]*\n)*)""",
    re.MULTILINE | re.VERBOSE,
)
_TESTED = re.compile(r"Tested by `(\w+)`")


def theorems_on_pages(pages: Iterable[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """(page, theorem, the test it names or "") for each theorem of the (page, Markdown) pairs."""
    found = []
    for page, text in pages:
        for match in _THEOREM.finditer(text + "\n"):
            tested = _TESTED.search(match["body"])
            found.append((page, match["name"], tested[1] if tested else ""))
    return found


def theorems_in_tests(path: Path) -> dict[str, str]:
    """Test function -> the theorem its mark names, read from the source, which is not imported."""
    if not path.is_file():
        return {}
    found = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for call in getattr(node, "decorator_list", []):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.theorem":
                found[node.name] = ast.literal_eval(call.args[0])
    return found


def unpaired(on_pages: list[tuple[str, str, str]], in_tests: dict[str, str], tests: str) -> list[str]:
    """One line for each theorem without its test, and each test without its theorem."""
    problems, stated = [], {}
    for page, name, test in on_pages:
        if name in stated:
            problems.append(f"{page}: the theorem {name!r} stands on {stated[name]} already")
        stated[name] = page
        if not test:
            problems.append(f"{page}: the theorem {name!r} does not say `Tested by` which test")
        elif test not in in_tests:
            problems.append(f"{page}: the theorem {name!r} names the test {test}, which {tests} does not mark")
        elif in_tests[test] != name:
            problems.append(f"{page}: the theorem {name!r} names {test}, which tests {in_tests[test]!r}")
    named = {test for _, _, test in on_pages}
    for test, name in in_tests.items():
        if test not in named:
            problems.append(f"{tests}: {test} tests the theorem {name!r}, and no theorem on a page names it")
    return problems


# What a page takes ----------------------------------------------------------------------------------------------------


def reading_minutes(prose: str, code_lines: int) -> int:
    """Minutes to read: 200 words a minute, a formula in a line as one word, one on its own as fifteen, and a line of
    code as eight.
    """
    displayed = len(re.findall(r"\$\$.+?\$\$", prose, re.DOTALL))
    text = re.sub(r"\$\$.+?\$\$", " ", prose, flags=re.DOTALL)
    text = re.sub(r"(?<!\\)\$[^$]+\$", " x ", text)
    words = len(re.findall(r"\w[\w'’-]*", re.sub(r"<[^>]+>|\]\([^)]*\)", " ", text)))
    return max(1, round((words + 15 * displayed + 8 * code_lines) / 200))


def after_opening(markdown: str, addition: str) -> str:
    """The page's Markdown with the addition after its title and the sentence below it."""
    opening = re.match(r"\s*#[ \t][^\n]*\n(?:\s*\n[\w*`\"“$][^\n]*(?:\n[^\n]*\S[^\n]*)*\n?)?", markdown + "\n")
    if not opening:
        return f"{addition}\n\n{markdown}"
    at = opening.end()
    return f"{markdown[:at].rstrip()}\n\n{addition}\n\n{markdown[at:].lstrip()}"
