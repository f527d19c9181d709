"""What the outputs of a page depend on besides its own code, and how that is found and compared.

A page (or the step that trains the shared models) runs in a process of its own.  At its end PROBE runs there and says
which modules of the package it imported, which texts it loaded, and which trained models: like the file of
dependencies that a compiler writes.  `World` is the same three things as they are now.

It also says which assets it used, the files from outside.  Their bytes need no mark of their own: the package holds
the sha256 of each in a module that the process imported.  They only have to be there when a page runs.
"""

import hashlib
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

PACKAGE = "gptbook"
OWN = "book"  # the text that is made of the pages: every edit of prose is another text

# Packages whose version can be seen in an output.
PACKAGES = (
    "torch", "numpy", "safetensors", "matplotlib", "matplotlib-inline", "ipykernel", "ipython", "pygments", "nbclient",
)  # fmt: skip

# One thread a kernel: two pages run side by side without fighting, and print the same numbers everywhere.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

# What a program's output could depend on is set, and what a machine's own settings add is left out.
FIXED = {
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",  # a file that appears in the package would set off `mkdocs serve`
    "PYTHONNOUSERSITE": "1",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "COLUMNS": "80",
}

PROBE = f"""
def _probe():
    import json, sys

    modules = {{n: m for n, m in list(sys.modules.items()) if n.partition(".")[0] == "{PACKAGE}"}}
    corpora, recipes = modules.get("{PACKAGE}.corpora"), modules.get("{PACKAGE}.recipes")
    assets = modules.get("{PACKAGE}.assets")
    texts, notes = dict(getattr(corpora, "loaded", {{}})), []
    for name in texts:
        try:
            notes.append(corpora.load(name).note)
        except ValueError:
            pass  # a file that is gone again
    try:
        from {PACKAGE}.machine import processor
    except ImportError:
        processor = str
    print(json.dumps({{
        "machine": processor(),
        "sources": sorted(f for m in modules.values() if (f := getattr(m, "__file__", None))),
        "corpora": texts,
        "runs": dict(getattr(recipes, "loaded_runs", {{}})),
        "assets": dict(getattr(assets, "loaded", {{}})),
        "notes": sorted(set(filter(None, notes))),
    }}))


_probe()
"""

_LOAD_CORPORA = f"""
import json, sys
from {PACKAGE} import corpora

found = {{}}
for name in json.loads(sys.argv[1]):
    try:
        found[name] = corpora.load(name).sha256
    except ValueError:
        found[name] = None
print(json.dumps(found))
"""

_FETCH_ASSETS = f"""
import json, sys
from {PACKAGE} import assets

found = {{}}
for name in json.loads(sys.argv[1]):
    known = assets.KNOWN.get(name)
    found[name] = {{"known": known is not None, "source": "", "problem": ""}}
    if known:
        found[name] |= {{"title": known.title, "filename": known.filename}}
    try:
        assets.fetch(name)
        found[name]["source"] = assets.source(name)
    except assets.AssetError as error:
        found[name]["problem"] = str(error)
print(json.dumps(found))
"""

_CODES = f"""
import json

from {PACKAGE} import exercises
from {PACKAGE}.exercises import codes

print(json.dumps({{name: [codes.code(name), codes.mark(codes.code(name))] for name in exercises.registry}}))
"""


@dataclass
class World:
    """Name -> sha256 (or another mark) of everything that outputs may depend on, as it is now.

    `texts` is a folder whose texts stand in for those of the same name, or None (`runs.kept_text`).
    """

    sources: dict[str, str]  # path below the root -> sha256, for each file of the package
    corpora: dict[str, str | None] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)
    texts: Path | None = None

    def unchanged(self, needs: dict) -> bool:
        """Whether each thing that `needs` names is still what it was."""
        return all(
            getattr(self, kind).get(name) == mark
            for kind in ("sources", "corpora", "runs")
            for name, mark in needs[kind].items()
        )


def environment(root: Path, cache: Path, texts: Path | None = None) -> dict[str, str]:
    """The environment of every process that runs the book's code, threads aside; `texts` is as in World."""
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, **FIXED, "PYTHONPATH": path, "GPTBOOK_RUNS": str(cache / "runs")}
    if texts is not None:
        env["GPTBOOK_DATA"] = os.pathsep.join(filter(None, [str(texts), os.environ.get("GPTBOOK_DATA")]))
    return env


def versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Package -> version, Python included, of what can be seen in an output."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def sources(root: Path) -> dict[str, str]:
    """Path below the root -> sha256, for each file of the package's source."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((root / PACKAGE).rglob("*.py"))
    }


def corpora(names: list[str], root: Path, env: dict[str, str]) -> dict[str, str | None]:
    """The sha256 of each text as it is now, None for one that cannot be loaded; a text that is missing is fetched.

    A process of its own looks, so that an edit of the package needs no restart of `mkdocs serve`.
    """
    if not names:
        return {}
    command = [sys.executable, "-c", _LOAD_CORPORA, json.dumps(sorted(names))]
    done = subprocess.run(command, cwd=root, env=env, stdout=subprocess.PIPE, encoding="utf-8", check=False)
    if done.returncode:  # the package does not even import: the pages that use it will say so
        return {}
    return json.loads(done.stdout.splitlines()[-1])


def assets(names: list[str], root: Path, env: dict[str, str]) -> dict[str, dict]:
    """Name -> what came of fetching it: `known` (whether there is such an asset), `source`, and `problem` in a line, ""
    where it is at hand; `title` and `filename` of a known one.
    """
    if not names:
        return {}
    command = [sys.executable, "-c", _FETCH_ASSETS, json.dumps(sorted(names))]
    done = subprocess.run(command, cwd=root, env=env, stdout=subprocess.PIPE, encoding="utf-8", check=False)
    if done.returncode:  # as above
        return {}
    return json.loads(done.stdout.splitlines()[-1])


def codes(root: Path, env: dict[str, str]) -> dict[str, list[str]]:
    """Exercise -> the code that its passed check prints, and the mark by which the site knows that code."""
    command = [sys.executable, "-c", _CODES]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:  # as above; and a page that names an exercise will say that there is none
        return {}
    return json.loads(done.stdout.splitlines()[-1])


def needs(probed: dict, world: World, root: Path) -> dict:
    """What a finished process said it used, in the form that `World.unchanged` compares.

    The marks of the sources are those from before it ran: an edit in the meantime is not missed.
    """
    used = [Path(f).resolve().relative_to(root).as_posix() for f in probed["sources"] if Path(f).is_relative_to(root)]
    return {
        "sources": {path: world.sources.get(path, "new") for path in used},
        "corpora": probed["corpora"],
        "runs": probed["runs"],
        "assets": probed["assets"],
    }


def write_aside(path: Path, content: str | bytes) -> None:
    """Write the whole file or nothing, also where two builds write it at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        aside.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def made_by(module: str, *packages: str) -> list:
    """What stands for a module's file and the packages it uses: to be asked for when the module is loaded.

    So it is of the code that runs, whatever is typed meanwhile.
    """
    return [hashlib.sha256(Path(module).read_bytes()).hexdigest(), versions(packages)]


def kept(path: Path, key: str) -> dict:
    """What `keep` left there under this key; nothing where there is none yet, or where it is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and content.pop("key", None) == key else {}


def keep(path: Path, key: str, **content) -> None:
    """Leave for another build what was made from all that `key` is a hash of."""
    write_aside(path, json.dumps({"key": key, **content}))
