"""The project around the code: what its files promise each other."""

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pins() -> dict[str, str]:
    found = {}
    for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines():
        line = line.partition("#")[0].strip()
        if line and line != "-e .":
            name, version = line.split("==")
            found[canonicalize_name(name)] = version
    return found


def wanted() -> list[Requirement]:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    return [Requirement(line) for group in groups for line in group]


@pytest.mark.parametrize("requirement", wanted(), ids=lambda requirement: requirement.name)
def test_every_dependency_is_pinned_within_its_bounds(requirement):
    """If this fails, the book is built with a version that readers may not install, or with whatever is newest."""
    version = pins()[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version), f"{requirement} does not allow {version}"


def test_every_direct_dependency_says_who_needs_it():
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    for requirement in wanted():
        line = next(line for line in lines if canonicalize_name(line.partition("==")[0]) == requirement.name)
        assert len(line.partition("# ")[2].split()) >= 2, line


def test_the_readme_names_every_module_and_nothing_else():
    """If this fails, a newcomer reads a map of another house."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = text[text.index("## What is where") :]
    listed = set(re.findall(r"^  (\w+(?:\.py|/))", tree[tree.index("gptbook/  ") : tree.index("hooks/  ")], re.M))
    there = {p.name for p in (ROOT / "gptbook").glob("*.py")} - {"__init__.py"}
    there |= {f"{p.parent.name}/" for p in (ROOT / "gptbook").glob("*/__init__.py")}
    assert listed == there


def test_the_figures_of_the_readme_are_those_that_the_benchmarks_left():
    """If this fails, somebody typed a figure, or forgot `python benchmarks/report.py`."""
    report = runpy.run_path(str(ROOT / "benchmarks" / "report.py"))
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = text.partition(report["BEGIN"])[2].partition(report["END"])[0]
    assert shown.strip() == report["markdown"](report["results"]()).strip()


def test_a_table_of_benchmarks_names_the_machine_of_each_figure():
    """If this fails, figures of two machines stand side by side as if they could be compared."""
    report = runpy.run_path(str(ROOT / "benchmarks" / "report.py"))
    row = report["row"]("a thing", "a peer", "2 s", "3 s", 1.5, "at least 1.1")
    about = {"date": "2026-01-02", "machine": "A", "bfloat16": False, "threads": 2, "rows": [row]}
    text = report["markdown"]([about, about | {"machine": "B", "bfloat16": True}])
    first, second = text.split("Measured on ")[1:]
    assert "A, without instructions for bfloat16, 2 threads" in first
    assert "B, with instructions for bfloat16" in second
    assert "| a thing | a peer | 2 s | 3 s | 1.50 | ≥\N{NO-BREAK SPACE}1.1 |" in second


def test_actions_are_pinned_by_commit_and_rights_are_few():
    """If this fails, somebody who takes over a tag of an action can publish in our name."""
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        text = workflow.read_text(encoding="utf-8")
        used = re.findall(r"uses: (\S+)(.*)", text)
        assert used
        for action, comment in used:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action), action
            assert re.search(r"# v\d", comment), f"{action}: say which version that is"
        assert re.search(r"^permissions:\n  contents: read\n\n", text, re.M)
        assert "pull_request_target" not in text


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("gptbook", ["torch", "numpy", "matplotlib"]),
        ("gptbook.tokenizers", ["torch", "numpy"]),
        ("gptbook.assets", ["torch", "numpy", "pooch", "requests"]),
        ("gptbook.corpora", ["torch", "numpy", "pooch"]),
        ("gptbook.claims", ["torch", "IPython"]),
        ("gptbook.display", ["torch", "matplotlib"]),
        ("gptbook.widgets", ["torch", "matplotlib"]),
        ("gptbook.exercises", ["torch"]),
        ("gptbook.trainer", ["matplotlib", "gptbook.recipes", "gptbook.cli"]),
        ("gptbook.recipes", ["matplotlib", "gptbook.cli"]),
    ],
)
def test_importing_a_module_pulls_only_what_it_needs(module, absent):
    """If this fails, `import gptbook` takes seconds, or the modules import each other in a circle."""
    code = f"import sys, {module}; print([name for name in {absent} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
