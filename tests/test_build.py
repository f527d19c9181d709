"""The build on a small book of its own: what runs again after which change, and what ends a strict build.

The fixture book has a package `gptbook` of a few lines, so that its model can be edited.  Nearly every test starts from
one finished build, outputs remembered and all, changes one thing, and builds again.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

pytest.importorskip("mkdocs_jupyter", reason="the book's build needs: pip install -e '.[site]'")

import mkdocs.commands.build
from bs4 import BeautifulSoup
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

import book as book_hook
import converted
import execute
from gptbook.exercises import codes

ROOT = Path(__file__).parents[1]

CONFIG = f"""
site_name: fixture
site_url: https://example.org/fixture/
theme: {{name: null, custom_dir: theme}}
plugins:
  - mkdocs-jupyter:
      include: ["[0-9][0-9]_*.py", "[0-9][0-9]_*.ipynb"]
      execute: false
      cache: false
      include_source: true
      ignore_h1_titles: true
hooks: [{ROOT / "hooks" / "book.py"}]
watch: [gptbook]
markdown_extensions:
  - admonition
  - attr_list
  - pymdownx.details
  - pymdownx.superfences
  - pymdownx.arithmatex: {{generic: true}}
extra: {{runs: [tiny], cell_timeout: 60}}
validation:
  nav: {{omitted_files: warn}}
  links: {{not_found: warn, anchors: warn, absolute_links: warn, unrecognized_links: warn}}
"""

THEME = """<!doctype html><html lang="en"><head><title>{{ page.title }}</title></head>
<body>{{ page.content }}{% if page.nb_url %}<a href="{{ page.nb_url }}">notebook</a>{% endif %}</body></html>
"""

MODEL = "WIDTH = 3\n\n\ndef size():\n    return WIDTH\n"

# Leaves a mark on disk each time it trains, outside of what the build remembers.
RECIPES = """
import os
from pathlib import Path
from types import SimpleNamespace

from gptbook import corpora, model

loaded_runs, loaded_folders = {}, {}


def trained(name):
    if name == "own":
        return own()
    folder = Path(os.environ["GPTBOOK_RUNS"]) / f"{name}-{model.WIDTH}"
    if not folder.is_dir():
        folder.mkdir(parents=True)
        with open("trainings.txt", "a") as file:
            file.write(name + "\\n")
    loaded_runs[name], loaded_folders[name] = f"{name} {model.WIDTH}", folder
    return SimpleNamespace(folder=folder, width=model.WIDTH)


def own():
    # A model of the pages' own text, which it keeps.
    text = corpora.load("book")
    folder = Path(os.environ["GPTBOOK_RUNS"]) / f"own-{text.sha256[:8]}"
    if not folder.is_dir():
        (folder / "book").mkdir(parents=True)
        (folder / "book" / "input.txt").write_text(text.text, encoding="utf-8")
        with open("trainings.txt", "a") as file:
            file.write("own\\n")
    loaded_runs["own"], loaded_folders["own"] = f"own {text.sha256}", folder
    return SimpleNamespace(folder=folder, letters=len(text.text))


def main(names):
    for name in names:
        trained(name)
    return 0
"""

EXERCISES = """
import os

from bs4 import BeautifulSoup

from gptbook.exercises import codes

registry = {"sum": "page_02"}


class Verdict:
    def __init__(self, passed):
        self.passed = passed
        self.told = "" if os.environ.get("GPTBOOK_HIDE_CODES") else codes.code("sum")

    def _repr_mimebundle_(self, include=None, exclude=None):
        record = {"name": "sum", "passed": self.passed}
        return {"text/plain": f"passed: {self.passed} {self.told}", "application/vnd.gptbook.verdict+json": record}


def check(name, answer):
    return Verdict(answer(2, 3) == 5)
"""

INDEX = """# Home

See [the model](01_model.py#numbers) and [all claims](claims.json). The model has {{ width }} rows, and the
share is {{ share:.1%}}. In code `3.14` and {{ big:,}}, in math $x = 1.5$, in a link [on 2015](02_plain.py): all fine.
The sign said {{ quoted }}, in 1999.
Reading takes {{ minutes_02 }} and {{ minutes_all }} minutes, running {{ seconds_all:.3f}} seconds.

* Add. <span data-exercise="sum"></span>
"""

MODEL_PAGE = '''# %% [markdown]
r"""
# The model

One sentence says it all.

## Numbers

The width is {{ width }}, see [home](index.md). It holds that $a_{{b}} = \\frac{1}{2}$.

!!! theorem "Twice two is four"

    $2 + 2 = 4$.

    Tested by `test_twice_two`.

??? proof

    By *counting*:

    $$ 2 + 2
    = 4 $$

Done.
"""

# %%
from gptbook import model
from gptbook.claims import claim

claim("width", model.size())
claim("share", 0.25)
claim("big", 12345, expected=12345)
claim("quoted", "*no* <b>way</b> & `so` $on$")
print("width", model.size())

# %% alt="A square of {{ width }} rows." caption="A *square* of {{ width }} rows."
from IPython.display import SVG, display

display(SVG('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>'))
model.WIDTH

# %% tags=["raises-exception"]
raise ValueError("on purpose")
'''

PLAIN_PAGE = '''# %% [markdown]
r"""
# Plain

No model here. Do it yourself.
"""

# %% tags=["solution"]
from gptbook import exercises


def add(a, b):
    return a + b


exercises.check("sum", add)
'''

DATA_PAGE = '''# %% [markdown]
r"""
# Data

The text is read, and the model of the build too.
"""

# %%
from gptbook import corpora, recipes

print(corpora.load("text.txt").text, recipes.trained("tiny").width)
corpora.load("tinyshakespeare").name

# %%
from gptbook.claims import claim

claim("letters", 3)
'''

OWN_PAGE = '''# %% [markdown]
r"""
# Own

This page reads the book. It has {{ own_letters }} letters.
"""

# %%
from gptbook import recipes
from gptbook.claims import claim

claim("own_letters", recipes.trained("own").letters)
'''

ASSET_PAGE = '''# %% [markdown]
r"""
# From outside

This page reads a table. It has {{ table_rows }} rows, of {{ width }}, in {{ seconds_05:.1f}} seconds.
"""

# %%
from gptbook import assets
from gptbook.claims import claim

claim("table_rows", len(assets.fetch("table").read_text().splitlines()))
print("the rows", assets.source("table"))

# %% alt="A square of {{ table_rows }} rows." caption="A *square* of {{ table_rows }} rows."
from IPython.display import SVG, display

display(SVG('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>'))

# %% tags=["solution"]
from gptbook import exercises

exercises.check("sum", lambda a, b: a + b)
'''
TABLE = b"one\ntwo\n"

REPORT_PAGE = """# Report

The text has {{ letters }} letters.
"""

THEOREMS = """import pytest


@pytest.mark.theorem("Twice two is four")
def test_twice_two():
    assert 2 + 2 == 4
"""


@dataclass
class Built:
    """A finished build: whether it passed, what it said, and which pages it ran."""

    passed: bool
    log: str
    root: Path

    @property
    def ran(self) -> list[str]:
        return sorted(re.findall(r"^ran docs/(\S+) in", self.log, re.MULTILINE))

    def html(self, page: str) -> str:
        return (self.root / "site" / page / "index.html").read_text(encoding="utf-8")


class _Lines(logging.Handler):
    def __init__(self):
        super().__init__(logging.INFO)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def build(root: Path, strict: bool = True, command: str = "build", level: int = logging.INFO) -> Built:
    """What `mkdocs build --strict` does, in this process, or each build of `mkdocs serve`."""
    logger, lines = logging.getLogger("mkdocs"), _Lines()
    before = logger.level
    logger.addHandler(lines)
    logger.setLevel(level)
    try:
        config = load_config(str(root / "mkdocs.yml"), strict=strict)
        config.plugins.on_startup(command=command, dirty=False)
        mkdocs.commands.build.build(config)
        passed = True
    except Abort as error:
        lines.lines.append(str(error))
        passed = False
    finally:
        logger.removeHandler(lines)
        logger.setLevel(before)
    return Built(passed, "\n".join(lines.lines), root)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The fixture book after its first build."""
    root = tmp_path_factory.mktemp("book")
    files = {
        "mkdocs.yml": CONFIG,
        "theme/main.html": THEME,
        "gptbook/__init__.py": "",
        "gptbook/model.py": MODEL,
        "gptbook/recipes.py": RECIPES,
        "gptbook/exercises/__init__.py": EXERCISES,
        "docs/index.md": INDEX,
        "docs/01_model.py": MODEL_PAGE,
        "docs/02_plain.py": PLAIN_PAGE,
        "docs/03_data.py": DATA_PAGE,
        "docs/04_report.md": REPORT_PAGE,
        "tests/test_theorems.py": THEOREMS,
        "text.txt": "four",
        "hooks/exceptions.toml": '[[exception]]\ntext = "in 1999"\nreason = "a year"\n',
    }
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    for module in ("assets.py", "claims.py", "corpora.py", "exercises/codes.py"):
        shutil.copy(ROOT / "gptbook" / module, root / "gptbook" / module)
    with pytest.MonkeyPatch.context() as patch:
        _alone(patch, root)
        return build(root)


def _alone(patch, root):
    """No network, no texts of this machine, and no modules of the repository in the book's own processes."""
    patch.setenv("GPTBOOK_OFFLINE", "1")
    patch.setenv("XDG_CACHE_HOME", str(root / "nothing"))
    patch.delenv("GPTBOOK_DATA", raising=False)
    patch.setenv("NO_MKDOCS_2_WARNING", "1")


@pytest.fixture
def book(first, tmp_path, monkeypatch):
    """A copy of the built book to change: edit(file, old, new) edits it."""
    root = tmp_path / "book"
    shutil.copytree(first.root, root)
    _alone(monkeypatch, root)
    return root


def edit(root: Path, name: str, old: str, new: str) -> None:
    path = root / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


# A right book ---------------------------------------------------------------------------------------------------------


def test_first_build_runs_every_page(first):
    """If this fails, the fixture book itself is wrong, and no other test here says anything."""
    assert first.passed, first.log
    assert first.ran == ["01_model.py", "02_plain.py", "03_data.py"]
    assert (first.root / "trainings.txt").read_text() == "tiny\n"


def test_claims_fill_prose_captions_and_alternative_texts(first):
    """If this fails, readers see braces, or a text claim works as Markdown or HTML."""
    home, page = first.html(""), first.html("01_model")
    assert "has 3 rows" in home
    assert "share is 25.0%" in home
    assert "12,345" in home
    assert re.sub(r"&#(\d+);", lambda m: chr(int(m[1])), home).count("said *no* <b>way</b> & `so` $on$, in") == 1
    assert "<b>way" not in home
    assert 'aria-label="A square of 3 rows."' in page
    assert "<em>square</em> of 3 rows" in page
    assert "<math" in page
    assert "{{" not in re.sub(r"<math.*?</math>", "", home + page, flags=re.DOTALL)


def test_outputs_and_solutions_stand_on_the_page(first):
    """If this fails, outputs are lost on the way from the kernel to the page."""
    page = first.html("01_model")
    assert "width 3" in page
    assert "on purpose" in page
    assert ">3<" not in page, "the value of a drawing's last line is no output"
    assert '<details class="solution">' in first.html("02_plain")
    assert re.search(r"minutes? to read\. The code ran in .* when this page was built", page)


def test_what_pages_take_can_be_quoted(first):
    """If this fails, the list of pages cannot say how long each takes, or says something else than the page does."""
    claims = {c["name"]: c for c in json.loads((first.root / "site" / "claims.json").read_text())["claims"]}
    minutes = claims["minutes_02"]
    assert minutes["page"] == "02_plain"
    assert minutes["kind"] == "exact"
    assert f"{minutes['value']} minute" in first.html("02_plain")
    pages = ("01", "02", "03")
    total = sum(claims[f"minutes_{page}"]["value"] for page in pages)
    assert claims["minutes_all"]["value"] == total
    assert claims["seconds_all"]["value"] == pytest.approx(sum(claims[f"seconds_{page}"]["value"] for page in pages))
    assert claims["seconds_03"]["kind"] == "statistical"
    seconds = f"{claims['seconds_all']['value']:.3f}"
    assert f"takes {minutes['value']} and {total} minutes, running {seconds} seconds" in first.html("")


def test_marks_of_codes_are_published_and_codes_are_not(first):
    """If this fails, the checklist knows no code, or a solution gives the code of its check to everybody."""
    marks = json.loads((first.root / "site" / "assets" / "codes.json").read_text(encoding="utf-8"))
    assert marks == {"sum": codes.mark(codes.code("sum"))}
    published = [path for path in (first.root / "site").rglob("*") if path.is_file()]
    assert not [path for path in published if codes.code("sum").encode() in path.read_bytes()]
    assert "passed: True" in first.html("02_plain")


def test_substitute_text_is_announced(first):
    """If this fails, a page shows numbers of another text without saying so; and a page without it must not say it."""
    assert "Another text" in first.html("03_data")
    assert "Another text" not in first.html("01_model")
    assert "Another text" in first.html("04_report")  # it quotes a number of the page above
    assert "Another text" not in first.html("")


def test_claims_are_listed(first):
    """If this fails, claims.json no longer says what the contract names."""
    record = json.loads((first.root / "site" / "claims.json").read_text(encoding="utf-8"))
    assert {"commit", "python", "versions", "claims"} <= record.keys()
    assert record["versions"]["torch"]
    big = next(claim for claim in record["claims"] if claim["name"] == "big")
    assert big == {
        "page": "01_model", "name": "big", "value": 12345, "expected": 12345, "tolerance": None, "kind": "exact",
    }  # fmt: skip


def test_ledger_lists_every_claim_and_pages_say_what_was_checked(book):
    """If this fails, the page that lists all claims leaves some out, or a page's foot speaks of another page's."""
    claims = json.loads((book / "site" / "claims.json").read_text(encoding="utf-8"))["claims"]
    assert "book-ledger" not in (book / "site" / "01_model" / "index.html").read_text(encoding="utf-8")
    (book / "docs" / "ledger.md").write_text("# Ledger\n\nAll.\n\n<div data-ledger></div>\n", encoding="utf-8")
    built = build(book)
    assert built.passed, built.log
    assert "0 of 3 pages ran" in built.log
    listing = BeautifulSoup((book / "site" / "ledger" / "index.html").read_text(encoding="utf-8"), "html.parser")
    assert sorted(code.text for code in listing.find_all("code")) == sorted(claim["name"] for claim in claims)
    page = BeautifulSoup((book / "site" / "01_model" / "index.html").read_text(encoding="utf-8"), "html.parser")
    own = [claim for claim in claims if claim["page"] == "01_model"]
    checked = sum(claim["expected"] is not None for claim in own)
    assert page.find(class_="book-ledger").text.startswith(f"{checked} number")


def test_notebook_for_download(first):
    """If this fails, the download lost its outputs, kept the build's private records, or names the build's folders."""
    text = (first.root / "site" / "01_model" / "01_model.ipynb").read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert "width 3" in text
    assert "vnd.gptbook" not in text + (first.root / "site" / "02_plain" / "02_plain.ipynb").read_text(encoding="utf-8")
    assert str(first.root) not in text
    assert "The width is 3, see [home](https://example.org/fixture/)" in text


def test_notebook_for_download_is_one_to_work_in(first):
    """If this fails, a reader of the notebook sees bare markup, or the solution before the exercise."""
    text = (first.root / "site" / "01_model" / "01_model.ipynb").read_text(encoding="utf-8")
    about, prose, *_ = nbformat.reads(text, as_version=4).cells
    assert "https://example.org/fixture/01_model/" in about.source
    assert "pip install -e '.[site]'" in about.source
    assert "> **Theorem: Twice two is four**\n>\n> $2 + 2 = 4$.\n>\n> Tested by" in prose.source
    assert "<details><summary>Proof</summary>\n\nBy *counting*:\n\n$$ 2 + 2\n= 4 $$\n\n</details>\n\nDo" in prose.source
    assert "!!!" not in text
    assert "???" not in text
    text = (first.root / "site" / "02_plain" / "02_plain.ipynb").read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert [cell.id for cell in notebook.cells] == ["about", "cell-0", "answer-cell-1", "cell-1"]
    answer, solution = notebook.cells[2:]
    assert (answer.cell_type, answer.source.strip(), answer.outputs) == ("code", "# Your answer", [])
    assert solution.metadata.jupyter == {"source_hidden": True, "outputs_hidden": True}
    assert solution.metadata.collapsed
    assert solution.metadata.tags == ["solution"]
    assert "passed: True" in text


def test_the_page_is_made_without_what_the_notebook_adds(first):
    """If this fails, the site shows the notebook's extra cells, or its folded boxes in place of its own."""
    pages = first.html("01_model") + first.html("02_plain")
    assert "Your answer" not in pages
    assert "pip install" not in pages
    assert '<div class="admonition theorem">' in pages
    assert '<details class="proof">' in pages
    converted = first.root / ".cache" / "gptbook" / "pages" / "02_plain.ipynb"
    cells = nbformat.read(converted, as_version=4).cells
    assert [cell.id for cell in cells] == ["cell-0", "cell-1"]
    assert cells[1].metadata == {"tags": ["solution"]}


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        ('a\n\n!!! note "A *b*"\n\n    c\n\n    * d\n    * e\n\nf', "a\n\n> **A *b***\n>\n> c\n>\n> * d\n> * e\n\nf"),
        ("!!! note\n    c", "> **Note**\n>\n> c"),
        ('??? tip "Hint"\n\n    c\n\n        d\n', "<details><summary>Hint</summary>\n\nc\n\n    d\n\n</details>"),
        ("???+ tip\n    c\n\n", "<details open><summary>Tip</summary>\n\nc\n\n</details>"),
        (
            '!!! note "A"\n\n    ??? tip "B"\n\n        c\n\n    d',
            "> **A**\n>\n> <details><summary>B</summary>\n>\n> c\n>\n> </details>\n>\n> d",
        ),
        ('!!! note "A"\n\n    $$\n    a\n    $$\n    and $b\n    c$', "> **A**\n>\n> $$ a $$\n> and $b c$"),
        # the controls
        ("really!!! note\n\n    c", "really!!! note\n\n    c"),
        ("    !!! note\n\n        c", "    !!! note\n\n        c"),
        ('!!! note "A"\n\nno body', '!!! note "A"\n\nno body'),
        ("$a\nb$ and\n\n    code", "$a\nb$ and\n\n    code"),
    ],
)
def test_boxes_become_what_jupyter_shows(text, boxed):
    """If this fails, a box of this form stands in the notebook as markup, or swallows the text behind it."""
    assert book_hook._boxes(text) == boxed


# What runs again ------------------------------------------------------------------------------------------------------


def test_warm_build_runs_nothing(book):
    """If this fails, something in the key changes from build to build."""
    again = build(book)
    assert again.passed
    assert again.ran == []
    assert (book / "trainings.txt").read_text() == "tiny\n"


def test_a_warm_build_makes_the_same_site(book):
    """If this fails, what is published depends on what was kept from before: titles of the contents, for example."""
    pages = ["index.md", "01_model.py", "02_plain.py", "03_data.py", "04_report.md"]
    nav = "".join(f'  - "Title {n}": {page}\n' for n, page in enumerate(pages))
    edit(book, "mkdocs.yml", "hooks: [", f"nav:\n{nav}hooks: [")
    for folder in ("cells", "prose", "parsed"):
        shutil.rmtree(book / ".cache/gptbook" / folder)
    sites = []
    for _ in range(2):
        assert build(book).passed
        files = [path for path in (book / "site").rglob("*") if path.is_file()]
        sites.append({path.relative_to(book): path.read_bytes() for path in files})
    assert sites[0] == sites[1]
    assert b"<title>Title 1</title>" in sites[0][Path("site/01_model/index.html")]
    plugins = load_config(str(ROOT / "mkdocs.yml")).plugins  # and the book's own configuration has that setting too
    assert plugins["mkdocs-jupyter"].config["ignore_h1_titles"]


def test_the_search_finds_the_same_after_a_warm_build(book):
    """If this fails, the search misses pages that have not changed, or the build no longer knows the theme's search."""
    pytest.importorskip("material", reason="the site's theme is not installed")
    assert "material/search" in load_config(str(ROOT / "mkdocs.yml")).plugins
    edit(book, "mkdocs.yml", "theme: {name: null, custom_dir: theme}", "theme: {name: material, font: false}")
    edit(book, "mkdocs.yml", "plugins:\n", "plugins:\n  - search\n")
    found = []
    for _ in range(2):
        assert (again := build(book)).passed, again.log
        found.append(json.loads((book / "site/search/search_index.json").read_text(encoding="utf-8"))["docs"])
    assert found[0] == found[1]
    assert any(entry["location"].startswith("01_model/") for entry in found[0])
    kept = book / ".cache/gptbook/search/01_model.json"
    about = json.loads(kept.read_text(encoding="utf-8"))
    kept.write_text(json.dumps(about | {"entries": [{"location": "kept", "title": "", "text": ""}]}), encoding="utf-8")
    assert build(book).passed
    assert "kept" in [e["location"] for e in json.loads((book / "site/search/search_index.json").read_text())["docs"]]
    edit(book, "mkdocs.yml", "  - search\n", "  - search: {enabled: false}\n")
    assert build(book).passed


def test_an_unchanged_page_is_not_converted_again(book):
    """If this fails, a warm build pays for the conversion of every page, or shows what a page was before an edit."""
    kept = book / ".cache/gptbook/cells/01_model.json"
    about = json.loads(kept.read_text(encoding="utf-8"))
    about["cells"] = {i: f"<b>kept cell {i}</b>" for i in about["cells"]}
    kept.write_text(json.dumps(about), encoding="utf-8")
    assert "<b>kept cell" in build(book).html("01_model")
    edit(book, "docs/01_model.py", "A *square* of", "A *small square* of")
    again = build(book).html("01_model")
    assert "<b>kept cell" not in again
    assert "<em>small square</em>" in again
    kept.write_text("{", encoding="utf-8")
    assert build(book).html("01_model") == again


def test_the_prose_of_an_unchanged_page_is_not_converted_again(book):
    """If this fails, each build pays for the Markdown of every page, or shows what a page was before an edit."""
    kept = book / ".cache/gptbook/prose/02_plain.json"
    about = json.loads(kept.read_text(encoding="utf-8"))
    whole = build(book).html("02_plain")
    kept.write_text(json.dumps(about | {"content": about["content"] + "<b>kept prose</b>"}), encoding="utf-8")
    assert "<b>kept prose</b>" in build(book).html("02_plain")
    edit(book, "docs/index.md", "# Home", "# Home\n\nMore.")
    assert "<b>kept prose</b>" in build(book).html("02_plain"), "another page's edit converts this one again"
    (book / "docs/05_new.md").write_text("# New\n", encoding="utf-8")
    assert "<b>kept prose</b>" not in build(book, strict=False).html("02_plain"), "its links may lead elsewhere now"
    (book / "docs/05_new.md").unlink()
    for damage in ("{", "[]", "{}"):
        kept.write_text(damage, encoding="utf-8")
        assert build(book).html("02_plain") == whole
    edit(book, "docs/02_plain.py", "# %%", "# %% [markdown]\n# A [broken](01_model.py#nowhere) link.\n\n# %%")
    for _ in range(2):  # what is said of a page is said in every build
        again = build(book)
        assert not again.passed
        assert "#nowhere" in again.log


def test_the_search_reads_an_unchanged_page_once(tmp_path, monkeypatch):
    """If this fails, each build reads all pages again for the search, or the search finds what a page said before."""
    search = pytest.importorskip("material.plugins.search.plugin", reason="the site's theme is not installed")
    read = []
    monkeypatch.setattr(search, "Parser", lambda parser=search.Parser: read.append(1) or parser())

    def searched(content, title="A page"):
        index = search.SearchIndex()
        index.entries.append({"location": "another page"})
        page = SimpleNamespace(
            file=SimpleNamespace(src_uri="01_a.py"), url="01_a/", toc=[], title=title, content=content, meta={"x": 1}
        )
        kept = converted.Search(tmp_path, page, index.entries)
        kept.begin()
        index.add_entry_from_context(page)
        kept.end()
        assert (page.content, page.meta) == (content, {"x": 1})
        return index.entries[1:], len(read)

    words = (
        '<p>Some <span class="n">words</span>.</p><svg><text>drawn</text></svg><h2 id="more">More</h2><p>Others.</p>'
    )
    entries = [
        {"location": "01_a/", "title": "A page", "text": "<p>Some words.</p>"},
        {"location": "01_a/#more", "title": "More", "text": "<p>Others.</p>"},
    ]
    assert searched(words) == (entries, 1)
    assert searched(words) == (entries, 1)
    edited = [entries[0], entries[1] | {"text": "<p>Many.</p>"}]
    assert searched(words.replace("Others", "Many")) == (edited, 2)
    assert searched(words.replace("Others", "Many"), "Its new name")[0][0]["title"] == "Its new name"
    assert searched(words) == (entries, 4)
    for path in tmp_path.iterdir():
        path.write_text("{", encoding="utf-8")
    assert searched(words) == (entries, 5)
    assert searched(words) == (entries, 5)


def test_a_notebook_is_written_again_where_it_is_lost_or_other(book):
    """If this fails, readers download what a page was before an edit, or a page's notebook is missing."""
    kept = book / ".cache/gptbook/downloads/01_model.ipynb"
    before = kept.stat().st_mtime_ns, kept.read_bytes()
    assert build(book).passed
    assert (kept.stat().st_mtime_ns, kept.read_bytes()) == before
    for path in (kept, book / ".cache/gptbook/pages/01_model.ipynb"):
        whole = path.read_bytes()
        for damage in (path.unlink, lambda path=path: path.write_text("{}", encoding="utf-8")):
            damage()
            assert build(book).passed
            assert path.read_bytes() == whole
    edit(book, "mkdocs.yml", "https://example.org/fixture/", "https://example.org/other/")
    assert build(book).passed
    assert b"https://example.org/other/01_model/" in kept.read_bytes()
    edit(book, "docs/01_model.py", "One sentence says it all.", "Another sentence.")
    assert build(book).passed
    assert b"Another sentence." in kept.read_bytes()


def test_what_a_quiet_build_did_not_say_is_said_by_the_next(book):
    """If this fails, `mkdocs build -q` hides a broken link for good: what it made of the page is used again."""
    edit(book, "docs/index.md", "# Home", "# Home\n\nA link to [nothing](nothing.md).")
    assert build(book, level=logging.ERROR).passed  # MkDocs itself: quiet means without warnings, strict or not
    again = build(book)
    assert not again.passed
    assert "contains a link 'nothing.md'" in again.log  # in MkDocs's words; the book's own check reads the site anew


def test_prose_edit_runs_nothing(book):
    """If this fails, writing is slow: prose, captions and alternative texts decide no output."""
    edit(book, "docs/01_model.py", "One sentence says it all.", "Another sentence.")
    edit(book, "docs/01_model.py", "A *square* of", "A *small square* of")
    edit(book, "docs/01_model.py", 'alt="A square', 'alt="A black square')
    edit(book, "docs/index.md", "# Home", "# Start")
    again = build(book)
    assert again.passed, again.log
    assert again.ran == []
    assert "Another sentence." in again.html("01_model")
    assert "<em>small square</em>" in again.html("01_model")


def test_model_edit_runs_exactly_the_pages_that_use_it(book):
    """If this fails, stale outputs are published, or pages run without need."""
    edit(book, "gptbook/model.py", "WIDTH = 3", "WIDTH = 4")
    again = build(book)
    assert again.passed, again.log
    assert again.ran == ["01_model.py", "03_data.py"]  # 03 through the trained model
    assert "width 4" in again.html("01_model")
    assert "four 4" in again.html("03_data")
    assert "has 4 rows" in again.html(""), "a page that did not run quotes the new claim"
    assert (book / "trainings.txt").read_text() == "tiny\ntiny\n"


def test_code_edit_and_data_edit_run_their_pages(book):
    """If this fails, a page's own code or a text that it reads is not among what its outputs depend on."""
    edit(book, "docs/02_plain.py", "return a + b", "return b + a")
    (book / "text.txt").write_text("five", encoding="utf-8")
    again = build(book)
    assert again.passed, again.log
    assert again.ran == ["02_plain.py", "03_data.py"]
    assert "five 3" in again.html("03_data")


def test_unused_module_runs_nothing(book):
    """If this fails, every edit of the package runs the whole book."""
    (book / "gptbook" / "extra.py").write_text("UNUSED = 1\n", encoding="utf-8")
    assert build(book).ran == []


def test_lost_model_is_made_again(book):
    """If this fails, deleting a kept model leaves the build without it."""
    shutil.rmtree(book / ".cache" / "gptbook" / "runs" / "tiny-3")
    assert build(book).ran == []
    assert (book / "trainings.txt").read_text() == "tiny\ntiny\n"


# A page that reads the book itself ------------------------------------------------------------------------------------


DATA_WIDGET = """

# %%
from gptbook import display

file = display.Data("numbers", bytes(range(256)) * 4)


class Shown:
    def __str__(self):
        return "numbers"

    def _repr_html_(self):
        return f'<p data-file="{file.name}">numbers</p>'

    def _repr_mimebundle_(self, include=None, exclude=None):
        return display.bundle(self, file)


Shown()
"""
NUMBERS = bytes(range(256)) * 4


@pytest.fixture
def published(book):
    """The book with a page that publishes a file for its scripts, built."""
    page = book / "docs" / "02_plain.py"
    page.write_text(page.read_text(encoding="utf-8") + DATA_WIDGET, encoding="utf-8")
    shutil.copy(ROOT / "gptbook" / "display.py", book / "gptbook")
    built = build(book)
    assert built.passed, built.log
    return built


def file_of(built: Built) -> Path:
    """The published file that the page names."""
    name = BeautifulSoup(built.html("02_plain"), "html.parser").select_one("[data-file]")["data-file"]
    return built.root / "site" / "assets" / "data" / name


def test_a_file_of_a_page_is_published_and_kept(published):
    """If this fails, what a page computes in the browser has no numbers, at once or at the next build."""
    assert file_of(published).read_bytes() == NUMBERS
    shutil.rmtree(published.root / "site")
    again = build(published.root)
    assert again.ran == []
    assert file_of(again).read_bytes() == NUMBERS
    assert build(published.root, command="serve").ran == []
    assert len(list((published.root / ".cache" / "gptbook" / "outputs").rglob("numbers-*.bin"))) == 1


def test_a_file_of_a_page_is_in_no_notebook_and_in_no_text(published):
    """If this fails, readers download megabytes that no notebook can use, or the page carries them itself."""
    for path in ((published.root / "site").rglob("*.ipynb"), (published.root / ".cache").rglob("*.json")):
        assert all("vnd.gptbook.data" not in file.read_text(encoding="utf-8") for file in path)
    (notebook,) = (published.root / "site" / "02_plain").glob("*.ipynb")
    cell = nbformat.read(notebook, 4).cells[-1]
    assert list(cell.outputs[0].data) == ["text/html", "text/plain"]
    assert file_of(published).name in cell.outputs[0].data["text/html"]


@pytest.mark.parametrize("damage", ["lost", "changed"])
def test_a_page_whose_file_is_lost_or_damaged_runs_again(published, damage):
    """If this fails, a site is published whose scripts find nothing, or something else."""
    (kept,) = (published.root / ".cache" / "gptbook" / "outputs").rglob("numbers-*.bin")
    if damage == "lost":
        kept.unlink()
    else:
        kept.write_bytes(NUMBERS[:-1])
    again = build(published.root)
    assert again.ran == ["02_plain.py"]
    assert file_of(again).read_bytes() == NUMBERS


def test_files_go_with_the_outputs_that_they_belong_to(published):
    """If this fails, the folder of remembered outputs grows with every edit."""
    for number in range(execute.KEPT + 1):
        edit(published.root, "docs/02_plain.py", "return a + b", f"return a + b + 0 * {number}")
        assert build(published.root).passed
    assert len(list((published.root / ".cache" / "gptbook" / "outputs").rglob("numbers-*.bin"))) == execute.KEPT


def test_a_file_that_is_not_named_after_its_content_ends_the_build(published):
    """If this fails, a changed file hides behind the name of the old one, which browsers keep."""
    wrong = 'display.bundle(self, file) | {display.DATA: {"../x.html": "AAAA"}}'
    edit(published.root, "docs/02_plain.py", "display.bundle(self, file)", wrong)
    again = build(published.root)
    assert not again.passed
    assert "02_plain.py: the published file '../x.html' is not named after its content" in again.log


@pytest.fixture
def own(book):
    """The book with a page whose model learns the text of all pages, built."""
    (book / "pyproject.toml").write_text("", encoding="utf-8")  # without it, docs may be anybody's
    (book / "docs" / "05_own.py").write_text(OWN_PAGE, encoding="utf-8")
    edit(book, "mkdocs.yml", "runs: [tiny]", "runs: [tiny, own]")
    built = build(book)
    assert built.passed, built.log
    assert built.ran == ["05_own.py"]
    assert trainings(book) == 1
    return book


def trainings(book) -> int:
    """How often the model of the book's own text was trained."""
    return (book / "trainings.txt").read_text().split().count("own")


def letters(built: Built) -> int:
    """The letters that the page of the book's own text says the book has."""
    return int(re.search(r"It has (\d+) letters", built.html("05_own"))[1])


def add_prose(book, words="Ten more letters, or some.") -> None:
    edit(book, "docs/02_plain.py", "Do it yourself.", f"Do it yourself. {words}")


def test_the_text_of_the_book_depends_on_no_result(own):
    """If this fails, what the model of the book's text says goes into that text, and every build trains."""
    again = build(own)
    assert again.ran == []
    assert trainings(own) == 1
    assert letters(again) > 100  # filled in, and the text has the braces


def test_a_build_trains_the_model_of_the_changed_text(own):
    """If this fails, a build publishes what a model of an earlier text wrote."""
    before = letters(build(own))
    add_prose(own, "Five!")
    built = build(own)
    assert built.passed, built.log
    assert built.ran == ["05_own.py"]
    assert trainings(own) == 2
    assert letters(built) == before + len(" Five!")
    assert "An earlier text" not in built.html("05_own")


def test_a_server_keeps_to_the_text_that_the_model_read(own):
    """If this fails, an edit of prose takes minutes to show, or stale results stand there without a word."""
    before = build(own, command="serve")
    assert "An earlier text" not in before.html("05_own")  # the negative control: nothing has changed
    assert "it serves until" not in before.log
    add_prose(own)
    served = build(own, command="serve")
    assert served.passed, served.log
    assert served.ran == []
    assert trainings(own) == 1
    assert "Ten more letters" in served.html("02_plain")
    assert letters(served) == letters(before)
    assert "An earlier text" in served.html("05_own")
    assert "An earlier text" not in served.html("02_plain")
    assert served.log.count("the pages have changed since") == 1


def test_a_page_edited_on_a_server_reads_the_text_that_the_model_read(own):
    """If this fails, an edit of the page's code trains a model in the page, for minutes, or mixes two texts."""
    before = letters(build(own))
    add_prose(own)
    edit(own, "docs/05_own.py", "from gptbook import recipes", "from gptbook import recipes  # edited")
    served = build(own, command="serve")
    assert served.passed, served.log
    assert served.ran == ["05_own.py"]
    assert trainings(own) == 1
    assert letters(served) == before
    assert "An earlier text" in served.html("05_own")
    built = build(own)  # and what was made on the server is not taken for more than it is
    assert built.ran == ["05_own.py"]
    assert trainings(own) == 2
    assert letters(built) > before


def test_a_server_without_a_model_trains_one(own):
    """If this fails, the first `mkdocs serve` in a fresh checkout shows no model, or one of nothing."""
    shutil.rmtree(own / ".cache" / "gptbook" / "runs")
    add_prose(own)
    served = build(own, command="serve")
    assert served.passed, served.log
    assert trainings(own) == 2
    assert served.ran == ["05_own.py"]
    assert "An earlier text" not in served.html("05_own")


def test_prose_typed_while_a_model_is_trained_waits_for_the_next_build(own):
    """If this fails, a page reads another text than its model, and trains one of its own."""
    edit(
        own, "gptbook/recipes.py", 'file.write("own\\n")',
        'file.write("own\\n")\n        page = Path("docs/01_model.py")\n'
        '        page.write_text(page.read_text().replace("One sentence", "A sentence"))',
    )  # fmt: skip
    add_prose(own)
    built = build(own)
    assert built.passed, built.log
    assert trainings(own) == 2  # the page trained none
    assert letters(built) == letters(build(own)) + len("One") - len("A")
    assert trainings(own) == 3


# A page that needs something from outside -----------------------------------------------------------------------------


@pytest.fixture
def outside(book):
    """The book with a page that needs an asset which cannot be had, and a home page that quotes it; not built."""
    address = "http://127.0.0.1:9/table"
    known = f"""
KNOWN = {{
    "table": Asset(
        title="the table", url={address!r}, sha256={hashlib.sha256(TABLE).hexdigest()!r}, size={len(TABLE)},
        filename="table.txt", package="absent==1", member="table.txt",
    )
}}
"""
    with (book / "gptbook" / "assets.py").open("a", encoding="utf-8") as file:
        file.write(known)
    (book / "docs" / "05_asset.py").write_text(ASSET_PAGE, encoding="utf-8")
    edit(
        book,
        "docs/index.md",
        "* Add.",
        "The table: {{ table_rows }} rows, {{ minutes_05 }} min, {{ share:.0%}}.\n\n* Add.",
    )
    edit(book, "mkdocs.yml", "extra: {", "extra: {needs: {05_asset.py: [table]}, ")
    return book


def supply(book, monkeypatch):
    path = book / "by-hand" / "assets" / "table.txt"
    path.parent.mkdir(parents=True)
    path.write_bytes(TABLE)
    monkeypatch.setenv("GPTBOOK_DATA", str(book / "by-hand"))


def text_of(built: Built, page: str) -> str:
    return " ".join(BeautifulSoup(built.html(page), "html.parser").get_text().split())


def test_a_page_without_its_asset_is_shown_without_outputs(outside):
    """If this fails, the book cannot be built where one file cannot be had, or shows a page with holes and no word."""
    built = build(outside)
    assert built.passed, built.log
    assert built.ran == ["03_data.py"]  # it alone imports what was edited
    page = text_of(built, "05_asset")
    assert "This page was not run" in page
    assert "It needs the table, which is not on the machine" in page
    assert "put FOLDER/assets/table.txt on that machine, set GPTBOOK_DATA=FOLDER" in page
    assert "The code did not run when this page was built." in page
    assert "It has – rows, of 3, in – seconds." in page
    assert "exercises.check" in page
    soup = BeautifulSoup(built.html("05_asset"), "html.parser")
    assert not soup.select(".output, figure")
    assert len(soup.select(".cell")) == 3
    notebook = nbformat.read(outside / "site" / "05_asset" / "05_asset.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    assert "It has – rows, of 3" in notebook.cells[1].source
    assert re.search(r"The table: – rows, [1-9]\d* min, 25%\.", text_of(built, ""))
    assert "Numbers are missing" in built.html("")
    assert "Numbers are missing" not in built.html("04_report")
    assert "not run" not in built.html("01_model") + built.html("03_data")
    claims = json.loads((outside / "site" / "claims.json").read_text(encoding="utf-8"))["claims"]
    assert {c["name"] for c in claims if c["page"] == "05_asset"} == {"minutes_05"}
    lines = [line for line in built.log.splitlines() if "table" in line]
    assert len(lines) == 2
    assert lines[0].startswith("asset table: the table: not on this machine, and GPTBOOK_OFFLINE is set")
    assert lines[1] == "docs/05_asset.py is shown without outputs: table cannot be had"


def test_a_page_runs_once_its_asset_can_be_had(outside, monkeypatch):
    """If this fails, a page that was once shown without outputs stays so. Control: with the asset, no dash is there."""
    assert "05_asset.py" not in build(outside).ran
    supply(outside, monkeypatch)
    built = build(outside)
    assert built.passed, built.log
    assert built.ran == ["05_asset.py"]
    assert "asset table: from GPTBOOK_DATA" in built.log
    page = text_of(built, "05_asset")
    assert "It has 2 rows, of 3, in 0." in page
    assert "the rows GPTBOOK_DATA" in page
    assert "–" not in page + text_of(built, "")
    assert "not run" not in page
    assert "Numbers are missing" not in built.html("")
    assert 'aria-label="A square of 2 rows."' in built.html("05_asset")
    monkeypatch.delenv("GPTBOOK_DATA")
    again = build(outside)  # what was computed is as right as before
    assert again.passed, again.log
    assert again.ran == []
    assert "asset table" not in again.log
    assert text_of(again, "05_asset") == page


def test_another_asset_runs_its_page_again(outside, monkeypatch):
    """If this fails, a page shows what it computed from other bytes than the package asks for."""
    supply(outside, monkeypatch)
    assert "05_asset.py" in build(outside).ran
    more = b"one\ntwo\nthree\n"
    edit(outside, "gptbook/assets.py", hashlib.sha256(TABLE).hexdigest(), hashlib.sha256(more).hexdigest())
    built = build(outside)
    assert built.passed, built.log
    assert "It has – rows" in text_of(built, "05_asset")
    (outside / "by-hand" / "assets" / "table.txt").write_bytes(more)
    built = build(outside)
    assert built.ran == ["05_asset.py"]
    assert "It has 3 rows" in text_of(built, "05_asset")


def test_an_asset_that_the_configuration_does_not_name_ends_the_build(outside, monkeypatch):
    """If this fails, a build passes on the machine that has the file and fails on the next."""
    supply(outside, monkeypatch)
    edit(outside, "mkdocs.yml", "05_asset.py: [table]", "02_plain.py: [table]")
    built = build(outside, strict=False)
    assert not built.passed
    assert "docs/05_asset.py uses the asset 'table', which extra.needs in mkdocs.yml does not name for it" in built.log


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        (
            "{05_asset.py: [table, tabel]}",
            "mkdocs.yml: extra.needs: there is no asset named 'tabel': the names are table",
        ),
        ("{05_asset.py: [table], 06_gone.py: [table]}", "mkdocs.yml: extra.needs names '06_gone.py', which is no page"),
    ],
)
def test_a_slip_in_the_names_of_assets_ends_the_build(outside, needs, message):
    """If this fails, a page is shown without outputs for ever because of a slip of the pen."""
    edit(outside, "mkdocs.yml", "{05_asset.py: [table]}", needs)
    built = build(outside, strict=False)
    assert not built.passed
    assert message in built.log


def test_a_slip_in_a_page_that_is_not_run_ends_the_build(outside):
    """If this fails, prose that nobody could run is not looked at either."""
    edit(outside, "docs/05_asset.py", "reads a table", "reads 3.5 tables")
    built = build(outside, strict=False)
    assert not built.passed
    assert "docs/05_asset.py, line 5: the bare number 3.5" in built.log


def test_a_server_asks_the_network_once(outside, monkeypatch):
    """If this fails, each edit under `mkdocs serve` waits for a network that is not there."""
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    asked.append(connection)
                    connection.close()

        threading.Thread(target=answer, daemon=True).start()
        edit(outside, "gptbook/assets.py", "127.0.0.1:9/", f"127.0.0.1:{port}/")
        for file in ("gptbook/assets.py", "docs/05_asset.py"):  # a name that no other server of this process asked for
            edit(outside, file, '"table"', '"sheet"')
        edit(outside, "mkdocs.yml", "[table]", "[sheet]")
        monkeypatch.delenv("GPTBOOK_OFFLINE")
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # for the text that another page looks for
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
        served = [build(outside, command="serve") for _ in range(2)]
        assert all(page.passed for page in served), served[1].log
        assert len(asked) == 1
        assert (
            "could not be fetched from 127.0.0.1 (ConnectionError), nor out of the package absent==1" in served[0].log
        )
        assert "shown without outputs" in served[1].log
        build(outside)
        assert len(asked) == 2  # the control


# What ends a strict build ---------------------------------------------------------------------------------------------


def test_cells_that_fail_die_or_hang_end_the_build(book):
    """If this fails, a page with a broken cell is published, or the message does not lead to the line."""
    edit(book, "mkdocs.yml", "cell_timeout: 60", "cell_timeout: 5")
    edit(book, "docs/01_model.py", 'print("width", model.size())', "a = 1\nassert a == 2, 'no'")
    edit(book, "docs/02_plain.py", "return a + b", "return a + b\n\n\nimport os; os._exit(1)")
    edit(book, "docs/03_data.py", "from gptbook import", "while True: pass\nfrom gptbook import")
    built = build(book, strict=False)
    assert not built.passed
    line = 1 + (book / "docs" / "01_model.py").read_text().splitlines().index("assert a == 2, 'no'")
    assert f"docs/01_model.py, line {line}: AssertionError: no\n    assert a == 2, 'no'" in built.log
    assert re.search(r"docs/02_plain\.py, line \d+: its kernel died", built.log)
    assert re.search(r"docs/03_data\.py, line 9: hangs: a cell took more than 5 seconds", built.log)
    assert "Traceback" not in built.log
    assert not (book / "site" / "01_model").exists()


def test_failed_claim_unsolved_solution_and_unknown_model_end_the_build(book):
    """If this fails, a page may say what its own cells deny."""
    edit(book, "docs/01_model.py", "expected=12345", "expected=12346")
    edit(book, "docs/03_data.py", '.trained("tiny")', '.trained("other")')
    built = build(book, strict=False)
    assert not built.passed
    assert re.search(r"docs/01_model\.py, line \d+: ClaimFailed: claim 'big': got 12345, expected 12346", built.log)
    assert "docs/03_data.py uses the trained model 'other'" in built.log


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("return a + b", "return a - b", "02_plain.py: the solution that begins"),
        ('exercises.check("sum", add)', "add(1, 1)", "calls no check"),
    ],
)
def test_unsolved_solution_ends_the_build(book, old, new, message):
    """If this fails, the book may publish a solution that its own check rejects, or never saw."""
    edit(book, "docs/02_plain.py", old, new)
    built = build(book, strict=False)
    assert not built.passed
    assert message in built.log


def test_a_code_in_an_output_ends_the_build(book):
    """If this fails, a page may give away what a reader should earn."""
    edit(book, "docs/02_plain.py", "def add", 'print("it is sum-" + exercises.codes.code("sum")[-4:])\n\n\ndef add')
    built = build(book, strict=False)
    assert not built.passed
    assert "docs/02_plain.py: an output gives away the code of the exercise 'sum'" in built.log


def test_a_claim_with_a_name_of_the_build_ends_the_build(book):
    """If this fails, the list of pages may quote a page's number as its reading time."""
    edit(book, "docs/02_plain.py", "def add", 'from gptbook.claims import claim\n\nclaim("minutes_01", 1)\n\n\ndef add')
    built = build(book, strict=False)
    assert not built.passed
    assert "the claim 'minutes_01' is the build's own" in built.log


def test_claim_on_two_pages_ends_the_build(book):
    """If this fails, prose may quote the other page's number."""
    edit(book, "docs/02_plain.py", "def add", 'from gptbook.claims import claim\n\nclaim("big", 1)\n\n\ndef add')
    built = build(book, strict=False)
    assert not built.passed
    assert "docs/02_plain.py: the claim 'big' is recorded on 01_model too" in built.log


def test_wrong_shape_comments_end_the_build(book):
    """If this fails, a page may say of a tensor what is not so, or say it where nobody ever looks."""
    array = "import types\n\n\ndef array(*shape):\n    made = types.SimpleNamespace(shape=shape)\n    return made"
    array += "  # (T, C)\n\n\n"
    edit(book, "docs/01_model.py", 'claim("big"', f'{array}a = array(2, 3)  # (2, 4)\nclaim("big"')
    edit(book, "docs/02_plain.py", "# %% tags", f"# %%\n{array}\n# %%\n\n# %%\narray(\n    1, 2, 3\n)\n\n# %% tags")
    caught = "try:\n    b = array(2, 3)  # (T, T)\nexcept Exception:\n    pass"
    silent = "def unused(x):\n    return x  # (T, C)\n\n\n"
    edit(book, "docs/03_data.py", 'claim("letters", 3)', f'claim("letters", 3)\n{array}{silent}{caught}')
    built = build(book, strict=False)
    assert not built.passed

    def at(page, line):
        return f"docs/{page}, line {1 + (book / 'docs' / page).read_text().splitlines().index(line)}: "

    say = "the comment says"
    wrong = "a = array(2, 3)  # (2, 4)"
    assert f"{at('01_model.py', wrong)}WrongShape: {say} (2, 4), and this is (2, 3): 3 stands where" in built.log
    wrong = "    return made  # (T, C)"  # in a function of an earlier cell: the line of the comment, not of the call
    assert f"{at('02_plain.py', wrong)}WrongShape: {say} (T, C), and this is (1, 2, 3): 3 axes, not 2" in built.log
    wrong = "    b = array(2, 3)  # (T, T)"
    assert f"{at('03_data.py', wrong)}{say} (T, T), and this is (2, 3): T is 2 since line" in built.log
    wrong = "    return x  # (T, C)"
    assert f"{at('03_data.py', wrong)}{say} (T, C), and its line never ran\n    return x  # (T, C)" in built.log
    assert not list((book / ".cache" / "gptbook" / "outputs").glob("03_data-*.json"))[1:], "a wrong page is remembered"


def test_a_fault_in_no_cell_of_the_page_is_told_all_the_same(tmp_path):
    """If this fails, a cell that runs cells of its own ends the build with a traceback of the build itself."""
    told = execute.Runner(tmp_path, tmp_path)._at_line(tmp_path / "docs" / "01_a.py", None, [], None, 3, "it is wrong")
    assert told == "docs/01_a.py: it is wrong"


# What is wrong: (file, old, new, what the build says). None of these needs a page to run.
HOME, PAGE = "docs/index.md", "docs/01_model.py"
FAULTS = {
    "unknown claim": (HOME, "{{ width }}", "{{ height }}", f"{HOME}: no cell records the claim 'height'"),
    "unknown claim on a page": (PAGE, "is {{ width }}", "is {{ height }}", f"{PAGE}: no cell records the claim"),
    "unknown claim in a caption": (PAGE, "* of {{ width }}", "* of {{ height }}", f"{PAGE}: no cell records the claim"),
    "claim that does not format": (HOME, "{{ width }}", "{{ quoted:.1f }}", f"{HOME}: {{{{ quoted:.1f }}}} cannot"),
    "malformed claim": (HOME, "{{ width }}", "{{ wi dth }}", f"{HOME}: '{{{{ wi dth }}}}"),
    "bare decimal": (PAGE, "One sentence", "3.5 sentences", f"{PAGE}, line 5: the bare number 3.5"),
    "bare number in an alternative text": (PAGE, 'alt="A square', 'alt="A 128 square', "the bare number 128"),
    "bare thousands": (HOME, "# Home\n", "# Home\n\nOf 1,024.\n", f"{HOME}, line 3: the bare number 1,024"),
    "stale exception": (HOME, "in 1999", "long ago", "no page needs the exception 'in 1999'"),
    "unknown exercise": (HOME, '"sum"', '"product"', f"{HOME}: no exercise is called 'product'"),
    "no alternative text": (PAGE, 'alt="A square of {{ width }} rows." ', "", f"{PAGE}: the cell that begins"),
    "broken link": (PAGE, "(index.md)", "(nowhere.md)", "'01_model.py' contains a link 'nowhere.md'"),
    "broken link in raw HTML": (HOME, "See ", '<a href="nowhere/">x</a> ', "index.html: nowhere/ leads nowhere"),
    "broken anchor": (HOME, "#numbers", "#letters", "'index.md' contains a link '01_model.py#letters'"),
    "broken anchor on a page": (PAGE, "(index.md)", "(#nowhere)", "'01_model.py' contains a link '#nowhere'"),
    "another host": ("theme/main.html", "<head>", '<head><script src="//example.com/x.js"></script>', "another host"),
    "theorem without its test": ("tests/test_theorems.py", "@pytest", "# @pytest", f"{PAGE}: the theorem"),
    "theorem that names no test": (PAGE, "    Tested by `test_twice_two`.\n", "", f"{PAGE}: the theorem"),
    "test without its theorem": (PAGE, "!!! theorem", "!!! note", "tests/test_theorems.py: test_twice_two tests"),
    "test of another theorem": ("tests/test_theorems.py", "is four", "is five", "which tests 'Twice two is five'"),
    "formula that does not render": (PAGE, r"\frac{1}{2}", r"\frac{1}{2", f"{PAGE}: formula"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_ends_a_strict_build(book, fault):
    """If this fails, the build publishes this fault."""
    name, old, new, message = FAULTS[fault]
    edit(book, name, old, new)
    built = build(book)
    assert not built.passed
    assert message in built.log
    assert built.ran == []


# Serving --------------------------------------------------------------------------------------------------------------


def test_server_shows_an_error_and_recovers(book):
    """If this fails, a slip of the pen ends `mkdocs serve`, or an edit does not reach the browser."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    page = f"http://127.0.0.1:{port}/fixture/01_model/"
    command = [sys.executable, "-m", "mkdocs", "serve", "--dev-addr", f"127.0.0.1:{port}"]
    with (book / "serve.log").open("w") as log:
        server = subprocess.Popen(command, cwd=book, stdout=log, stderr=log)
    try:
        _wait_for(page, "width 3")
        edit(book, "docs/01_model.py", "print(", "1 / 0\nprint(")
        _wait_for(page, "This page does not run")
        edit(book, "docs/01_model.py", "1 / 0\n", "")
        _wait_for(page, "width 3", but_not="This page does not run")
        edit(book, "gptbook/model.py", "WIDTH = 3", "WIDTH = 5")
        _wait_for(page, "width 5")
    finally:
        server.terminate()
        server.wait()


def _wait_for(address: str, text: str, but_not: str = "\0", seconds: float = 90) -> None:
    end, page = time.monotonic() + seconds, ""
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(address, timeout=seconds) as response:
                page = response.read().decode()
        except OSError:
            pass  # it is starting
        if text in page and but_not not in page:
            return
        time.sleep(0.2)
    pytest.fail(f"{text!r} did not come within {seconds:g} seconds")
