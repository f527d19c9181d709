"""Run the book's pages and remember their outputs.

A page is a script in jupytext's percent format.  Its outputs are used again while nothing that they depend on has
changed: the code cells and their tags, the modules of the package that the page imported, the texts and the trained
models that it loaded, and the versions of what shapes an output (`dependencies.py`).  Prose is none of these.
"""

import asyncio
import base64
import contextlib
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from dependencies import FIXED, ONE_THREAD, PROBE, World, environment, needs, versions, write_aside

FORMAT = 2  # of the entries
KEPT = 4  # entries a page: going back to the last branch runs nothing
CLAIM = "application/vnd.gptbook.claim+json"
VERDICT = "application/vnd.gptbook.verdict+json"
DATA = "application/vnd.gptbook.data+json"  # files of the page's own: name -> content in base64
STARTUP = Path(__file__).with_name("startup.py")
SHAPES = Path(__file__).with_name("shapes.py")
REPORT = "import json, sys\nprint(json.dumps(sys.modules['_shapes'].ledger.report()))"  # at the end of a page

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_FILE = re.compile(r"[a-z0-9][a-z0-9_-]*-([0-9a-f]{16})\.[a-z0-9]+")  # the name of such a file, its hash within
_FRAME = re.compile(r"Cell In\[(\d+)\], line (\d+)")


@dataclass
class Page:
    """A page with its outputs: `notebook` is what readers get, and the records for the build stand beside it."""

    path: Path
    notebook: nbformat.NotebookNode
    claims: list[dict] = field(default_factory=list)
    verdicts: dict[int, list[dict]] = field(default_factory=dict)  # index of the cell -> its verdicts
    files: dict[str, bytes] = field(default_factory=dict)  # for the page's scripts: name -> content
    notes: list[str] = field(default_factory=list)  # why another text serves than the one asked for
    texts: list[str] = field(default_factory=list)  # that it loaded, where it ran to its end
    seconds: float = 0.0  # that its code took, whenever it ran
    machine: str = ""  # on which it ran
    when: str = ""  # the day on which it ran, YYYY-MM-DD
    ran: bool = False  # in this build
    missing: list[str] = field(default_factory=list)  # assets for want of which it was not run
    problem: str = ""  # why it did not run to its end


class Runner:
    """Runs pages, at most `workers` at a time; a cell that takes more than `timeout` seconds counts as hanging.

    `assets` says which assets each page needs.
    """

    def __init__(
        self, root: Path, cache: Path, workers: int = 2, timeout: float = 900, say=lambda line: None,
        assets: dict[Path, list[str]] | None = None,
    ):  # fmt: skip
        self.root, self.cache, self.workers, self.timeout, self.say = root.resolve(), cache, workers, timeout, say
        self.assets = assets or {}
        self.fixed = [
            FORMAT, sys.version, platform.machine(), versions(), FIXED, ONE_THREAD, _startup(),
        ]  # fmt: skip

    def corpora(self, paths: list[Path]) -> set[str]:
        """The texts that these pages used when they last ran."""
        entries = (self._entry(path, _read(path, self.cache)) for path in paths)
        return {name for entry in entries if entry for name in entry["needs"]["corpora"]}

    def wanted(self, paths: list[Path], world: World) -> set[str]:
        """The assets that the pages need which have to be run."""
        return {
            name
            for path in paths
            if self.assets.get(path) and not self._remembered(path, _read(path, self.cache), world)[0]
            for name in self.assets[path]
        }

    def run(self, paths: list[Path], world: World, blocked: str = "", missing: Collection[str] = ()) -> list[Page]:
        """The pages with their outputs, remembered or made now.

        A page that fails comes back with its `problem` and the outputs up to there; the others are run to their end.
        Where `blocked` gives a reason, nothing is run, and the pages that would have to be have that problem. A page
        that needs one of the `missing` assets is not run either, and comes back without outputs.
        """
        return asyncio.run(self._run_all(paths, world, blocked, missing))

    async def _run_all(self, paths: list[Path], world: World, blocked: str, missing: Collection[str]) -> list[Page]:
        places = asyncio.Semaphore(self.workers)

        async def one(path: Path) -> Page:
            notebook = _read(path, self.cache)
            entry, files = self._remembered(path, notebook, world)
            if entry:
                return self._page(path, notebook, entry, files=files)
            if lacking := [name for name in self.assets.get(path, ()) if name in missing]:
                self.say(f"{self._name(path)} is shown without outputs: {', '.join(lacking)} cannot be had")
                return Page(path, notebook, missing=lacking)
            if blocked:
                return Page(path, notebook, problem=blocked)
            async with places:
                return await self._execute(path, notebook, world)

        # From the last page on: later ones take longer, and one that begins when the others are done runs alone.
        pages = await asyncio.gather(*map(one, reversed(paths)))
        return pages[::-1]

    def _key(self, notebook) -> str:
        code = [[cell.source, cell.metadata.get("tags", [])] for cell in _code_cells(notebook)]
        return hashlib.sha256(json.dumps([self.fixed, code]).encode()).hexdigest()

    def _entry_path(self, path: Path, notebook) -> Path:
        return self.cache / "outputs" / f"{path.stem}-{self._key(notebook)[:24]}.json"

    def _entry(self, path: Path, notebook) -> dict | None:
        try:
            return json.loads(self._entry_path(path, notebook).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def _remembered(self, path: Path, notebook, world: World) -> tuple[dict, dict[str, bytes]] | tuple[None, None]:
        """The page's entry and its files, if what it depends on is still the same, and none of the files is lost."""
        entry = self._entry(path, notebook)
        if not entry or not world.unchanged(entry["needs"]):
            return None, None
        folder, files = self._entry_path(path, notebook).with_suffix(""), {}
        for name in entry.get("files", ()):
            try:
                files[name] = (folder / name).read_bytes()
            except OSError:
                return None, None
            if not _is_of(name, files[name]):
                return None, None
        return entry, files

    def _remember(self, path: Path, notebook, entry: dict, files: dict[str, bytes]) -> None:
        target = self._entry_path(path, notebook)
        for name, content in files.items():
            write_aside(target.with_suffix("") / name, content)
        write_aside(target, json.dumps(entry | {"files": sorted(files)}))
        entries = [p for p in target.parent.glob(f"{path.stem}-*.json") if len(p.stem) == len(target.stem)]
        for old in sorted(entries, key=lambda p: p.stat().st_mtime, reverse=True)[KEPT:]:
            old.unlink(missing_ok=True)
            shutil.rmtree(old.with_suffix(""), ignore_errors=True)

    def _page(self, path: Path, notebook, entry: dict, **more) -> Page:
        about = {name: entry[name] for name in ("notes", "seconds", "machine", "when")}
        page = Page(path, notebook, **about, **more)
        page.texts = list(entry.get("needs", {}).get("corpora", ()))
        indices = [i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
        for i, (count, outputs) in zip(indices, entry["outputs"], strict=True):
            cell = notebook.cells[i]
            cell.execution_count = count
            cell.outputs = []
            for output in map(nbformat.from_dict, outputs):
                data = output.get("data", {})
                if claim := data.pop(CLAIM, None):
                    page.claims.append(dict(claim))
                if verdict := data.pop(VERDICT, None):
                    page.verdicts.setdefault(i, []).append(dict(verdict))
                if data or "data" not in output:
                    cell.outputs.append(output)
            if "alt" in cell.metadata:  # the value of a drawing's last line is no output of the page
                cell.outputs = [
                    o for o in cell.outputs if o.output_type != "execute_result" or "image/svg+xml" in o.data
                ]
        return page

    async def _execute(self, path: Path, notebook, world: World) -> Page:
        cells = [nbformat.v4.new_code_cell(c.source, metadata=c.metadata) for c in _code_cells(notebook)]
        startup, probe, shapes = map(nbformat.v4.new_code_cell, (_startup(), PROBE, REPORT))
        work = nbformat.v4.new_notebook(cells=[startup, *cells, probe, shapes])
        client = NotebookClient(
            work,
            kernel_name="python3",
            timeout=self.timeout,
            ipython_hist_file=":memory:",
            record_timing=False,  # readers download the notebook: the same in every build
        )
        start, problem, at = time.perf_counter(), "", 0
        with tempfile.TemporaryDirectory(prefix="gptbook-") as own:
            try:
                await self._start(client, Path(own), world)
                start = time.perf_counter()
                for at, cell in enumerate(work.cells):
                    await client.async_execute_cell(cell, at, execution_count=at)
            except (CellExecutionError, CellTimeoutError, DeadKernelError, RuntimeError) as error:
                problem = self._problem(path, notebook, cells, at - 1, error)
            finally:
                if client.km is not None and client.km.has_kernel:
                    await client.km.shutdown_kernel(now=True)
                if client.kc is not None:
                    client.kc.stop_channels()
        files = {}
        try:
            files = _take_files([output for cell in cells for output in cell.outputs])
        except ValueError as error:
            problem = problem or f"{self._name(path)}: {error}"
        entry = {
            "outputs": [[c.execution_count, _tidy(c.outputs)] for c in cells],
            "seconds": time.perf_counter() - start,
            "notes": [],
            "machine": "",
            "when": f"{datetime.now(UTC):%Y-%m-%d}",
        }
        if not problem:
            probed = json.loads(_said(probe))
            entry |= {"notes": probed["notes"], "machine": probed["machine"], "needs": needs(probed, world, self.root)}
            wrong = json.loads(_said(shapes))
            unknown = [name for name in probed["runs"] if name not in world.runs]
            unnamed = [name for name in probed["assets"] if name not in self.assets.get(path, ())]
            if unknown:
                problem = (
                    f"{self._name(path)} uses the trained model {unknown[0]!r}, which the build did not make: "
                    f"add it to extra.runs in mkdocs.yml"
                )
            elif unnamed:  # on this machine it was at hand
                problem = (
                    f"{self._name(path)} uses the asset {unnamed[0]!r}, which extra.needs in mkdocs.yml does not name "
                    f"for it: add it there"
                )
            elif wrong:  # where the page itself caught the error, or never came to the comment
                problem = "\n".join(
                    self._at_line(path, notebook, cells, _cell(cells, count), line, what) for count, line, what in wrong
                )
            else:
                self._remember(path, notebook, entry, files)
                self.say(f"ran {self._name(path)} in {entry['seconds']:.1f} s")
        return self._page(path, notebook, entry, files=files, ran=True, problem=problem)

    async def _start(self, client: NotebookClient, own: Path, world: World) -> None:
        manager = client.create_kernel_manager()
        # The interpreter that builds the site runs the pages, whatever kernels a machine has under that name.
        spec = manager.kernel_spec
        spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec.env = {}
        manager.connection_file = str(own / "kernel.json")
        if os.name == "posix":  # sockets of its own: no ports, and no warning about them
            manager.transport, manager.ip = "ipc", str(own / "k")
        env = environment(self.root, self.cache, world.texts) | ONE_THREAD
        # All texts were looked for before; and a reader's own settings of IPython are not the book's.
        env |= {"GPTBOOK_OFFLINE": "1", "IPYTHONDIR": str(own / "ipython")}
        env |= {"GPTBOOK_PUBLISH": "1"}  # what a page shows may bring files for the site
        env |= {"GPTBOOK_HIDE_CODES": "1"}  # who opens a solution has not earned the code of its check
        await client.async_start_new_kernel(cwd=str(self.root), env=env)
        await client.async_start_new_kernel_client()

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else path.name

    def _problem(self, path: Path, notebook, cells: list, at: int, error: Exception) -> str:
        """One line, and the line of the page below it: what happened, and where."""
        if not 0 <= at < len(cells):
            return f"{self._name(path)}: its kernel does not work: {_last_line(str(error))}"
        line, what = 1, ""
        if isinstance(error, CellTimeoutError):
            what = f"hangs: a cell took more than {self.timeout:g} seconds"
        elif isinstance(error, CellExecutionError):
            what = f"{error.ename}: {_ANSI.sub('', str(error.evalue)).strip()}"
            shown = [o for o in cells[at].outputs if o.output_type == "error"]
            trace = _ANSI.sub("", "\n".join(shown[-1].traceback)) if shown else ""
            frames = [(_cell(cells, int(count)), int(number)) for count, number in _FRAME.findall(trace)]
            if error.ename == "WrongShape":  # the comment may stand in a function of an earlier cell
                at, line = next((frame for frame in reversed(frames) if frame[0] is not None), (at, 1))
            else:
                line = next((number for cell, number in frames if cell == at), 1)
        else:
            what = "its kernel died (was it killed, or out of memory?)"
        return self._at_line(path, notebook, cells, at, line, what)

    def _at_line(self, path: Path, notebook, cells: list, at: int | None, line: int, what: str) -> str:
        if at is None:  # a cell that no cell of the page is: one that a cell ran
            return f"{self._name(path)}: {what}"
        source = cells[at].source
        lines = source.splitlines() or [""]
        line = min(line, len(lines))
        where = first_line(path.read_text(encoding="utf-8"), source, notebook, at)
        place = f"{self._name(path)}, line {where + line - 1}" if where else f"{self._name(path)}, code cell {at + 1}"
        return f"{place}: {what}\n    {lines[line - 1].strip()}"


def _startup() -> str:
    """What a page's kernel runs first; the text of shapes.py goes in, so that it is the one that the key has seen."""
    return f"{STARTUP.read_text(encoding='utf-8')}\n_hold_shapes({SHAPES.read_text(encoding='utf-8')!r})\n"


def _cell(cells: list, count: int) -> int | None:
    """The index of the cell that the kernel gave this number: it counts the start-up cell, and no empty ones."""
    counted = [None, None, *(i for i, cell in enumerate(cells) if cell.source.strip())]
    return counted[count] if count < len(counted) else None


def first_line(text: str, source: str, notebook, at: int) -> int:
    """The line of the page's file on which its code cell number `at` begins, or 0 where it cannot be found."""
    position = 0
    for cell in _code_cells(notebook)[: at + 1]:
        found = text.find(cell.source, position)
        if found < 0:
            return 0
        position = found + len(cell.source)
    return text.count("\n", 0, position - len(source)) + 1


def _read(path: Path, cache: Path):
    """The page as a notebook; a parse is kept beside the outputs, because it takes longer than all else of a page."""
    return nbformat.from_dict(
        json.loads(_parsed(path.read_text(encoding="utf-8"), cache / "parsed" / f"{path.stem}.json"))
    )


@functools.lru_cache(maxsize=64)  # a build asks three times for each page
def _parsed(text: str, kept: Path) -> str:
    def first(notebook: str) -> str:  # a line that says which text it is of, and that it is whole
        return hashlib.sha256(json.dumps([jupytext.__version__, text, notebook]).encode()).hexdigest()

    with contextlib.suppress(OSError, ValueError):
        line, _, notebook = kept.read_text(encoding="utf-8").partition("\n")
        if line == first(notebook):
            return notebook
    notebook = json.dumps(jupytext.reads(text, fmt="py:percent"))
    write_aside(kept, f"{first(notebook)}\n{notebook}")
    return notebook


def _code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _tidy(outputs: list) -> list:
    """Outputs without what differs from machine to machine: a traceback names its folders.

    The package says on stderr, in lines of its own, when it passes over a damaged file; the build has heard it before.
    """
    for output in outputs:
        if output.output_type == "stream" and output.name == "stderr":
            lines = output.text.splitlines(keepends=True)
            output.text = "".join(line for line in lines if not line.startswith("gptbook: "))
        if output.output_type == "error":
            output.evalue = _ANSI.sub("", output.evalue)
            output.traceback = [f"{output.ename}: {output.evalue}"]
        if output.output_type == "execute_result":
            output.execution_count = None
    return [output for output in outputs if output.output_type != "stream" or output.text]


def _take_files(outputs: list) -> dict[str, bytes]:
    """Take the files of a page out of its outputs, which readers download and the cache holds as text."""
    files = {}
    for output in outputs:
        for name, text in output.get("data", {}).pop(DATA, {}).items():
            content = base64.b64decode(text)
            if not _is_of(name, content):
                raise ValueError(f"the published file {name!r} is not named after its content: use display.Data")
            files[name] = content
    return files


def _is_of(name: str, content: bytes) -> bool:
    match = _FILE.fullmatch(name)
    return bool(match) and hashlib.sha256(content).hexdigest().startswith(match[1])


def _said(cell) -> str:
    """The last line that a cell printed; what it wrote to stderr may come before or after."""
    return _last_line("".join(output.text for output in cell.outputs if output.get("name") == "stdout"))


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no reason given")
