"""The project around the code: what its files promise each other."""

import re
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
