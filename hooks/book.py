"""The MkDocs hook: it runs the pages, checks what they say, and hands the parts to whom they belong.

MkDocs renders the prose, mkdocs-jupyter the code and its outputs (`render.py` takes them out of its page), and
formulas become MathML (`mathml.py`).  What is wrong with a page ends the build with the page's name; under
`mkdocs serve` it is shown, and the server lives on.
"""

import functools
import hashlib
import importlib
import json
import logging
import re
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import ClassVar
from urllib.parse import urljoin

import jinja2
import nbformat
from mkdocs.exceptions import PluginError
from mkdocs.plugins import CombinedEvent, event_priority
from mkdocs.structure.files import File

import converted
import dependencies
import execute
import ledger
import links
import mathml
import prose
import render
import runs

log = logging.getLogger("mkdocs.hooks.book")  # below "mkdocs", so that --strict counts its warnings

HERE = str(Path(__file__).parent)
MADE_BY = dependencies.made_by(__file__, "nbformat")
MODULES = (dependencies, execute, runs, prose, links, ledger, mathml, converted, render)  # none before what it imports
TESTS = "tests/test_theorems.py"
CODES_URI = "assets/codes.json"
DATA_URI = "assets/data/"  # files that pages made for their scripts
BENCHMARKS = "<!-- benchmarks -->"  # in prose: here the table of benchmarks/report.py goes
LEDGER = "ledger.md"  # the page that lists all claims
ANOTHER_TEXT = (
    "The numbers and figures are those of this text. Remarks about them were written for the missing one, and what "
    "holds for that one alone is not asserted."
)
DASHES = (
    f"A dash ({prose.ABSENT}) stands for each number of a page that was not run, because a file that it needs could "
    "not be had. That page says which."
)
EARLIER = (
    "This page computes with the book's own text, and that has changed since the computation. What its cells show "
    "belongs to the earlier text, until `mkdocs build` runs them again."
)


class Build:
    """What one build knows: its folders, the claims of all pages, and what is wrong so far."""

    def __init__(self, config):
        self.root = Path(config.config_file_path).parent.resolve()
        self.docs = Path(config.docs_dir).resolve().relative_to(self.root)
        self.cache = self.root / ".cache" / "gptbook"
        self.site_url = config.site_url or "/"
        self.extra = config.extra
        self.exceptions = prose.Exceptions.read(self.root / "hooks" / "exceptions.toml")
        self.claims: dict[str, object] = {}
        self.versions = dependencies.versions()
        self.listed: list[dict] = []  # the same, with all that claims.json says of them
        self.codes: dict[str, list[str]] = {}  # exercise -> the code that its passed check prints, and that code's mark
        self.notes: dict[str, list[str]] = {}  # claim -> what the reader must know of the data behind it
        self.problems: list[str] = []
        self.warned: list[str] = []  # what the outputs of pages are warned of, line by line
        self.assets: dict[str, dict] = {}  # what came of fetching the assets that pages need (dependencies.assets)
        self.absent = False  # a page was not run for want of an asset: its claims are missing everywhere
        self.broken = False  # a page did not run: what others miss of it is no news
        self.earlier = False  # the book's own text has changed, and an earlier state of it serves

        self.converter: converted.Converter  # set by on_nav

    def settle(self) -> None:
        """End the build if anything is wrong; a server says so and goes on."""
        problems, self.problems = list(dict.fromkeys(self.problems)), []
        if problems and not serving:
            raise PluginError("\n".join(problems))
        for problem in problems:
            log.error(problem)

    def name(self, file) -> str:
        """How messages call a page."""
        return (self.docs / file.src_uri).as_posix()


serving = False
_asked: set[str] = set()  # assets for which a server has turned to the network: once is enough
build: Build  # set for each build by on_files


def on_startup(command, dirty):
    global serving
    serving = command == "serve"


def on_config(config):
    if serving:
        _reload()
    return config


_times: dict[object, int] = {}  # module of the hook -> when its file was last changed


def _reload() -> None:
    """Take up edits of the hook's modules; of this file itself only a restart does."""
    if HERE not in sys.path:
        sys.path.append(HERE)  # MkDocs had it there only while it loaded this file
    stale = False
    for module in MODULES:
        time = Path(module.__file__).stat().st_mtime_ns
        stale = stale or _times.get(module, time) != time
        _times[module] = time
        if stale:
            importlib.reload(module)


# Running the pages ----------------------------------------------------------------------------------------------------


def on_files(files, config):
    global build
    build = Build(config)
    sources = [f for f in files if f.src_uri.endswith(".py") and f.is_documentation_page()]
    pages = _run([Path(f.abs_src_path) for f in sources], _needs(sources))
    for file, page in zip(sources, pages, strict=True):
        if page.problem:
            build.problems.append(page.problem)
        file.book_page, file.book_source = page, page.path.read_text(encoding="utf-8")
    log.info("%d of %d pages ran", sum(page.ran for page in pages), len(pages))
    build.broken = any(page.problem for page in pages)
    build.absent = any(page.missing for page in pages)
    if build.broken:
        build.settle()  # whatever else is wrong may follow from this

    build.codes = dependencies.codes(build.root, dependencies.environment(build.root, build.cache))
    build.listed = _collect_claims(sources)
    _check_solutions(sources)
    _check_codes(sources)
    _check_theorems(files)
    for file in sources:
        _write_notebook(file)
    files.append(File.generated(config, "claims.json", content=_claims_json(build.listed)))
    marks = {exercise: mark for exercise, (_, mark) in build.codes.items()}
    files.append(File.generated(config, CODES_URI, content=json.dumps(marks, indent=1) + "\n"))
    for name, content in {name: c for file in sources for name, c in file.book_page.files.items()}.items():
        files.append(File.generated(config, DATA_URI + name, content=content))
    return files


def _needs(sources) -> dict[Path, list[str]]:
    """The assets that each page needs, as `extra.needs` has them."""
    paths = {file.src_uri: Path(file.abs_src_path) for file in sources}
    needs = build.extra.get("needs") or {}
    build.problems += [
        f"mkdocs.yml: extra.needs names {page!r}, which is no page with code: delete it"
        for page in needs.keys() - paths
    ]
    return {paths[page]: list(names) for page, names in needs.items() if page in paths}


def _run(paths: list[Path], needs: dict[Path, list[str]]) -> list[execute.Page]:
    timeout = float(build.extra.get("cell_timeout", 900))
    runner = execute.Runner(build.root, build.cache, timeout=timeout, say=log.info, assets=needs)
    names = {*build.extra.get("corpora", ()), *runner.corpora(paths), *runs.corpora(build.cache)}
    world = dependencies.World(dependencies.sources(build.root))
    if serving:  # an edit of prose must not train a model
        world.texts = runs.kept_text(build.cache)
    world.corpora = _corpora(names, world.texts)
    if world.texts and _corpora({dependencies.OWN}, None) != {dependencies.OWN: world.corpora.get(dependencies.OWN)}:
        build.earlier = True
        log.info("the pages have changed since a model of their text was trained: it serves until `mkdocs build`")
    blocked = ""
    try:
        world.runs = runs.make(list(build.extra.get("runs", ())), build.root, build.cache, world, log.info)
    except runs.RunsFailed as error:
        build.problems.append(str(error))
        build.settle()
        blocked = str(error)
    world.texts = runs.kept_text(build.cache)  # what the model has read, whatever was typed while it was trained
    return runner.run(paths, world, blocked, _missing(runner.wanted(paths, world)))


def _missing(names: set[str]) -> set[str]:
    """Those assets that cannot be had; the others are fetched where they are not at hand."""
    env = dependencies.environment(build.root, build.cache)
    if serving and names <= _asked:  # an edit does not wait for the network
        env["GPTBOOK_OFFLINE"] = "1"
    build.assets = dependencies.assets(sorted(names), build.root, env)
    _asked.update(names)
    for name, asset in build.assets.items():
        if not asset["known"]:
            build.problems.append(f"mkdocs.yml: extra.needs: {asset['problem']}")
        else:
            log.info("asset %s: %s", name, asset["problem"] or f"from {asset['source']}")
    return {name for name, asset in build.assets.items() if asset["known"] and asset["problem"]}


def _corpora(names: set[str], texts: Path | None) -> dict[str, str | None]:
    return dependencies.corpora(sorted(names), build.root, dependencies.environment(build.root, build.cache, texts))


def _collect_claims(sources) -> list[dict]:
    listed, owner = [], {}
    for file in sources:
        page = Path(file.src_uri).with_suffix("").as_posix()
        for claim in file.book_page.claims:
            name = claim["name"]
            if owner.get(name, page) != page:
                build.problems.append(
                    f"{build.name(file)}: the claim {name!r} is recorded on {owner[name]} too: rename one"
                )
            elif name not in owner:
                listed.append({"page": page, **claim})
            owner.setdefault(name, page)
            build.claims[name] = claim["value"]
            build.notes[name] = file.book_page.notes
    return listed + _what_pages_take(sources)


def _what_pages_take(sources) -> list[dict]:
    """What the build measures about each page, as claims: `minutes_03` to read page 3, `seconds_03` that its code ran,
    and the sums `minutes_all` and `seconds_all`.
    """
    measured, total = {}, {"minutes": 0, "seconds": 0.0}
    for file in sources:
        page = Path(file.src_uri).with_suffix("").as_posix()
        number = re.match(r"\d+", Path(page).name)
        for unit, value in (("minutes", _minutes(file.book_page)), ("seconds", file.book_page.seconds)):
            total[unit] += value
            if number and not (unit == "seconds" and file.book_page.missing):
                measured[f"{unit}_{number[0]}"] = page, value
    measured |= {f"{unit}_all": ("index", value) for unit, value in total.items()}
    listed = []
    for name, (page, value) in measured.items():
        if name in build.claims:
            build.problems.append(f"the claim {name!r} is the build's own: rename the one that a page records")
        build.claims[name] = value
        kind = "exact" if isinstance(value, int) else "statistical"
        listed.append({"page": page, "name": name, "value": value, "expected": None, "tolerance": None, "kind": kind})
    return listed


def _claims_json(listed: list[dict]) -> str:
    versions = dict(build.versions)
    record = {"commit": _commit(), "python": versions.pop("python"), "versions": versions, "claims": listed}
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def _commit() -> str | None:
    """The commit of the checkout, with "-dirty" where files differ from it; None outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude", "*"]
    try:
        done = subprocess.run(command, cwd=build.root, capture_output=True, encoding="utf-8", check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _check_solutions(sources) -> None:
    for file in sources:
        page = file.book_page
        for i, cell in enumerate(page.notebook.cells):
            if "solution" not in cell.metadata.get("tags", []) or page.problem or page.missing:
                continue
            verdicts = page.verdicts.get(i, [])
            failed = [verdict["name"] for verdict in verdicts if not verdict["passed"]]
            if failed or not verdicts:
                what = f"fails its check {failed[0]!r}" if failed else "calls no check"
                build.problems.append(f"{build.name(file)}: the solution that begins {_short(cell.source)!r} {what}")


def _check_codes(sources) -> None:
    for file in sources:
        shown = json.dumps([cell.get("outputs", []) for cell in file.book_page.notebook.cells])
        for exercise, (code, _) in build.codes.items():
            if code in shown:
                build.problems.append(f"{build.name(file)}: an output gives away the code of the exercise {exercise!r}")


def _check_theorems(files) -> None:
    texts = []
    for file in files.documentation_pages():
        page = getattr(file, "book_page", None)
        if page:
            texts += [(build.name(file), c.source) for c in page.notebook.cells if c.cell_type == "markdown"]
        else:
            texts.append((build.name(file), file.content_string))
    in_tests = prose.theorems_in_tests(build.root / TESTS)
    build.problems += prose.unpaired(prose.theorems_on_pages(texts), in_tests, TESTS)


def _write_notebook(file) -> None:
    """The notebook that mkdocs-jupyter converts, and beside it the one that readers download."""
    cells = [cell.copy() for cell in file.book_page.notebook.cells]
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"  # the same in every build
        if cell.cell_type == "markdown":
            text, _ = prose.fill(cell.source, build.claims, escape=False, absent=build.absent)
            cell.source = re.sub(r"(?<=\]\()([\w./-]+)\.(?:py|md)(?=[#)])", _published, text)
    name, address = Path(file.src_uri).with_suffix(".ipynb"), urljoin(build.site_url, file.url)
    target, file.book_download = build.cache / "pages" / name, build.cache / "downloads" / name
    file.abs_src_path = str(target)

    mark, key = target.with_suffix(".json"), hashlib.sha256(json.dumps([MADE_BY, address, cells]).encode()).hexdigest()
    if dependencies.kept(mark, key).get("holds") == [_sha256(target), _sha256(file.book_download)]:
        return
    # Put together by hand: nbformat's own way checks each cell again, and takes longer than all else here.
    about = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    about["language_info"] = {"name": "python"}
    notebook = nbformat.from_dict({"nbformat": 4, "nbformat_minor": 5, "metadata": about, "cells": cells})
    dependencies.write_aside(target, nbformat.v4.writes(notebook))
    notebook.cells = list(_for_readers(notebook.cells, address))
    dependencies.write_aside(file.book_download, nbformat.v4.writes(notebook))
    dependencies.keep(mark, key, holds=[_sha256(target), _sha256(file.book_download)])


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _for_readers(cells: list, address: str):
    """The cells as readers work with them: boxes as Jupyter shows them, solutions folded, cells for answers."""
    yield nbformat.v4.new_markdown_cell(
        f"This notebook is [a page of the book]({address}). Its code needs the book's package: in a checkout, "
        f"`pip install -e '.[site]'`.",
        id="about",
    )
    for cell in cells:
        if cell.cell_type == "markdown":
            cell.source = _boxes(cell.source)
        elif "solution" in cell.metadata.get("tags", []):
            yield nbformat.v4.new_code_cell("# Your answer\n", id=f"answer-{cell.id}")
            folded = {"source_hidden": True, "outputs_hidden": True}
            # "collapsed" is for older notebooks, which fold outputs alone. The page's own metadata stay as they are.
            cell.metadata = nbformat.from_dict({**cell.metadata, "jupyter": folded, "collapsed": True})
        yield cell


_BOX = re.compile(r'^(!!!|\?\?\?)(\+?) (\w+)(?: "(.*)")? *\n((?: *\n)*(?: {4}.*(?:\n|\Z)(?: *\n)*)+)', re.MULTILINE)
_FORMULA = re.compile(r"\$\$.*?\$\$|\$(?:[^$\n]|\n(?!\s*\n))+\$", re.DOTALL)


def _boxes(text: str) -> str:
    """Markdown of the site's boxes in Markdown that Jupyter knows: quotations, and details to open."""

    def box(match: re.Match) -> str:
        mark, opened, kind, title, body = match.groups()
        body = _boxes(textwrap.dedent(body).strip())
        title = kind.capitalize() if title is None else title
        if mark == "???":
            return f"<details{' open' * bool(opened)}><summary>{title}</summary>\n\n{body}\n\n</details>\n\n"
        # Jupyter takes formulas out before it reads quotations: the marks of one must not stand in a formula.
        body = _FORMULA.sub(lambda formula: " ".join(formula[0].split()), body)
        title = f"Theorem: {title}" if kind == "theorem" else title
        return "\n".join(f"> {line}".rstrip() for line in [f"**{title}**", "", *body.splitlines()]) + "\n\n"

    return _BOX.sub(box, text).strip("\n")


def _published(match: re.Match) -> str:
    """The public address of another page of the book."""
    return urljoin(build.site_url, f"{match[1]}/".removesuffix("index/"))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."


# Prose ----------------------------------------------------------------------------------------------------------------


def on_page_markdown(markdown, page, config, files):
    """The page's prose, checked and filled, with a mark where each code cell goes."""
    ran = getattr(page.file, "book_page", None)
    if ran is None:
        text = _prose(markdown, build.name(page.file), Path(page.file.abs_src_path).read_text(encoding="utf-8"))
        notes = dict.fromkeys(note for name in prose.quoted(markdown) for note in build.notes.get(name, ()))
        boxes = [_notes(notes)] if notes else []
        if build.absent and not build.claims.keys() >= set(prose.quoted(markdown)):
            boxes.append(f'!!! note "Numbers are missing"\n\n    {DASHES}')
        return prose.after_opening(text, "\n\n".join(boxes)) if boxes else text
    parts = []
    for i, cell in enumerate(ran.notebook.cells):
        if cell.cell_type == "markdown":
            parts.append(_prose(cell.source, build.name(page.file), page.file.book_source))
        elif cell.cell_type == "code":
            parts.append(f'<div data-cell="{i}"></div>')
            for name in ("alt", "caption"):
                if name in cell.metadata:
                    cell.metadata[name] = _words(cell.metadata[name], page.file, escape=name == "caption")
    text = "\n\n".join([*parts, _foot(page, files)])
    if BENCHMARKS in text:
        text = text.replace(BENCHMARKS, _benchmarks())
    return prose.after_opening(text, _what_it_takes(ran))


def _benchmarks() -> str:
    """The figures that the benchmarks left, those of the README."""
    report = runpy.run_path(str(build.root / "benchmarks" / "report.py"))
    return report["page"](report["results"]())


def _foot(page, files) -> str:
    """The line at the foot of a page that says what was checked on it, where the book has a page that lists it all."""
    ran, listing = page.file.book_page, files.get_file_from_path(LEDGER)
    if not ran.claims or listing is None:
        return ""
    return ledger.foot(ran.claims, build.versions, ran.machine, ran.when, listing.url_relative_to(page.file))


def _prose(text: str, name: str, source: str, escape: bool = True) -> str:
    def where(position: int) -> str:
        line = prose.line_of(source, text, position)
        return f"{name}, line {line}" if line else name

    for position, number in prose.bare_numbers(text, build.exceptions):
        build.problems.append(
            f"{where(position)}: the bare number {number}: record it as a claim and write {{{{ name }}}}, "
            f"or give a reason in hooks/exceptions.toml"
        )
    filled, problems = prose.fill(text, build.claims, escape=escape, absent=build.absent)
    build.problems += [f"{name}: {problem}" for problem in problems if not build.broken]
    return filled


def _words(words, file, escape: bool):
    if isinstance(words, list):
        return [_words(text, file, escape) for text in words]
    return _prose(words, build.name(file), file.book_source, escape)


def _what_it_takes(ran: execute.Page) -> str:
    """A line under the title: minutes to read, seconds to run; and what the reader must know of the page's data."""
    minutes = _minutes(ran)
    seconds = "less than a second" if ran.seconds < 0.95 else _count(round(ran.seconds), "second")
    how = "did not run" if ran.missing else f"ran in {seconds}"
    parts = [f"{_count(minutes, 'minute')} to read. The code {how} when this page was built.\n{{ .book-takes }}"]
    if ran.missing:
        parts.append(_without([build.assets[name] for name in ran.missing]))
    if ran.notes:
        parts.append(_notes(ran.notes))
    if build.earlier and dependencies.OWN in ran.texts:
        parts.append(f'!!! note "An earlier text"\n\n    {EARLIER}')
    if ran.problem:
        block = "\n".join(f"    {line}" for line in ran.problem.splitlines())
        parts.append(f'!!! failure "This page does not run"\n\n    ```text\n{block}\n    ```')
    return "\n\n".join(parts)


def _without(assets: list[dict]) -> str:
    """The box of a page that was not run for want of these assets."""
    titles = _listed([asset["title"] for asset in assets])
    files = _listed([f"`FOLDER/assets/{asset['filename']}`" for asset in assets])
    it, which = ("them", "which are") if len(assets) > 1 else ("it", "which is")
    return (
        f'!!! warning "This page was not run"\n\n    It needs {titles}, {which} not on the machine that built this '
        f"site and could not be fetched. So the code stands here without its outputs, and a dash ({prose.ABSENT}) "
        f"stands for each number that it computes. To supply {it} by hand, put {files} on that machine, set "
        f"`GPTBOOK_DATA=FOLDER`, and build again."
    )


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _minutes(ran: execute.Page) -> int:
    """Minutes to read the page: its prose, and the code that is not folded away."""
    cells = ran.notebook.cells
    text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    folded = {"hide-input", "solution"}
    shown = [c for c in cells if c.cell_type == "code" and not folded & set(c.metadata.get("tags", []))]
    lines = sum(bool(line.strip()) for cell in shown for line in cell.source.splitlines())
    return prose.reading_minutes(text, lines)


def _notes(notes) -> str:
    return "\n\n".join(f'!!! note "Another text"\n\n    {note} {ANOTHER_TEXT}' for note in notes)


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number:,} {unit}s"


# Rendering ------------------------------------------------------------------------------------------------------------


def on_nav(nav, config, files):
    """All files are known, and no page is read yet."""
    build.converter = converted.Converter(build.cache / "prose", config, files)
    return nav


def on_pre_page(page, config, files):
    """Let mkdocs-jupyter render the code and the outputs, and MkDocs the prose with its links, contents and anchors."""
    ran = getattr(page.file, "book_page", None)
    if ran is None:
        page.render = functools.partial(build.converter.render, page)
        return page
    convert = page.render  # set by mkdocs-jupyter
    page.nb_url = Path(page.nb_url).name  # beside the page, wherever the site is served

    def warn(text):
        build.warned.append(text)
        if not (ran.problem or ran.missing):  # of a page that did not run to its end, much is missing
            log.warning("%s: %s", build.name(page.file), text)

    def rendered(config, files):
        kept = render.Kept(build.cache / "cells" / Path(page.file.src_uri).with_suffix(".json"), ran.notebook)
        if (cells := kept.cells()) is None:
            warned = len(build.warned)
            convert(config, files)
            cells = render.code_cells(page.content, ran.notebook, warn)
            if len(build.warned) == warned:  # a warning must come again in the next build
                kept.keep(cells)
        page.file.abs_src_path = str(page.file.book_download)  # mkdocs-jupyter publishes this file with the page
        build.converter.render(page, config, files)
        page.content = re.sub(r'<div data-cell="(\d+)"></div>', lambda match: cells[int(match[1])], page.content)

    page.render = rendered
    return page


def on_page_content(html, page, config, files):
    if page.file.src_uri == LEDGER:
        pages = {Path(f.src_uri).with_suffix("").as_posix(): f for f in files.documentation_pages()}
        titles = {
            name: (str(int(number[0])) if (number := re.match(r"\d+", name)) else name, f.url_relative_to(page.file))
            for name, f in pages.items()
        }
        html = html.replace(ledger.MARK, ledger.tables(build.listed, titles))
    for exercise in re.findall(r'\bdata-exercise="([^"]*)"', html):
        if exercise not in build.codes and not build.broken:
            build.problems.append(f"{build.name(page.file)}: no exercise is called {exercise!r}")
    try:
        return mathml.convert(html)
    except mathml.FormulaError as error:
        build.problems.append(f"{build.name(page.file)}: {error}")
        return html


@event_priority(100)
def _before_the_search(context, page, config, nav):
    index = getattr(config.plugins.get("material/search"), "search_index", None)  # there is none where it is off
    page.search = index and converted.Search(build.cache / "search", page, index.entries)
    if page.search:
        page.search.begin()


@event_priority(-100)
def _after_the_search(context, page, config, nav):
    if page.search:
        page.search.end()


on_page_context = CombinedEvent(_before_the_search, _after_the_search)


class _Templates(jinja2.BytecodeCache):
    """The theme's templates in Python's own code, for as long as a server runs: MkDocs forgets them with each build."""

    kept: ClassVar[dict] = {}

    def load_bytecode(self, bucket):
        checksum, code = self.kept.get(bucket.key, (None, None))
        if checksum == bucket.checksum:
            bucket.code = code

    def dump_bytecode(self, bucket):
        self.kept[bucket.key] = bucket.checksum, bucket.code


def on_env(env, config, files):
    """All pages are read: end here if anything is wrong with them; else add the font that their formulas need."""
    env.bytecode_cache = _Templates()
    for phrase in build.exceptions.unused():
        build.problems.append(f"hooks/exceptions.toml: no page needs the exception {phrase!r}: delete it")
    build.settle()
    pages = [file.page for file in files.documentation_pages() if file.page is not None]
    characters = set().union(*(mathml.characters(page.content or "") for page in pages))
    if characters:
        files.append(File.generated(config, mathml.FONT_URI, content=mathml.font_bytes(characters, build.cache)))
        files.append(File.generated(config, mathml.LICENCE_URI, content=mathml.licence_text()))
    return env


def on_post_build(config):
    for problem in links.check(Path(config.site_dir), build.site_url, build.cache / "links.json"):
        log.warning(problem)
