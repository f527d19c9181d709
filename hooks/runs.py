"""The build step that makes the trained models which pages share, before any page runs.

Each is made by a process of one thread, `python -m gptbook.recipes NAME` in all but name, and as many work beside each
other as there are cores: two models of this size with a thread each are done sooner than one after the other with two
threads, and a core that is shared does not slow both down many times.  A stamp says what they depended on; while none
of that has changed the step is passed over, and PyTorch is not even imported.

One model learns the text of the pages themselves, which every edit of prose changes.  A build trains it anew; a server
keeps to the text that it was last trained on (`kept_text`), so that an edit shows within seconds.
"""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dependencies import ONE_THREAD, OWN, PACKAGE, PROBE, World, environment, needs, versions, write_aside

FORMAT = 2
KEPT = 3  # models a recipe: going back to the last branch trains nothing

_MAKE = f"""
import json, sys
from {PACKAGE} import recipes

name = sys.argv[1]
if code := recipes.main([name]):
    sys.exit(code)
print(json.dumps(recipes.loaded_folders[name].name))  # loading again may find another text
{PROBE}
"""


class RunsFailed(Exception):
    """The shared models could not be made; the message is one line."""


def stamp_path(cache: Path) -> Path:
    return cache / "runs" / "stamp.json"


def read_stamp(cache: Path) -> dict | None:
    """What the last step of this build's folder left: its inputs, and name -> mark of each model."""
    try:
        return json.loads(stamp_path(cache).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def corpora(cache: Path) -> set[str]:
    """The texts that the models were trained on when they were last made."""
    stamp = read_stamp(cache)
    return set(stamp["needs"]["corpora"]) if stamp else set()


def kept_text(cache: Path) -> Path | None:
    """The folder in which the last model of the pages' own text keeps that text; None if there is no such model."""
    stamp = read_stamp(cache)
    folders = [cache / "runs" / folder for folder in stamp["folders"].values()] if stamp else []
    return next((folder for folder in folders if (folder / OWN / "input.txt").is_file()), None)


def make(names: list[str], root: Path, cache: Path, world: World, say=lambda line: None) -> dict[str, str]:
    """Name -> mark (configuration and weights) of each trained model of `names`, made now where something changed.

    Raises RunsFailed.
    """
    if not names:
        return {}
    fixed = [FORMAT, names, versions()]
    stamp = read_stamp(cache)
    if (
        stamp
        and stamp["fixed"] == fixed
        and all((cache / "runs" / folder).is_dir() for folder in stamp["folders"].values())
        and world.unchanged(stamp["needs"])
    ):
        return stamp["marks"]
    say(f"the trained models that pages share: {', '.join(names)} (minutes, where they are not kept from before)")
    env = environment(root, cache, world.texts) | ONE_THREAD | {"GPTBOOK_OFFLINE": "1"}
    with ThreadPoolExecutor(cores()) as pool:  # in the order of `names`: those that take longest should come first
        try:
            made = dict(zip(names, pool.map(lambda name: _train(name, root, env, say), names), strict=True))
        except BaseException:  # Ctrl-C, which ends those at work too: the others must not begin
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if failed := [name for name in names if made[name] is None]:
        raise RunsFailed(
            f"the trained models {', '.join(failed)} could not be made: the lines above say why; "
            f"`python -m {PACKAGE}.recipes {' '.join(failed)}` does the same step"
        )
    found = {"sources": {}, "corpora": {}, "assets": {}, "runs": {}}
    stamp = {"fixed": fixed, "folders": {}, "marks": {}, "needs": found}
    for name, (folder, probed) in made.items():
        used = needs(probed, world, root)
        stamp["folders"][name] = folder
        stamp["marks"] |= used.pop("runs")
        for kind, marks in used.items():
            found[kind] |= marks
    write_aside(stamp_path(cache), json.dumps(stamp, indent=1))
    for name in names:  # what was trained from source that is gone
        kept = sorted((cache / "runs").glob(f"{name}-*"), key=lambda p: p.stat().st_mtime, reverse=True)
        for folder in kept[KEPT:]:
            if folder.name not in stamp["folders"].values():
                shutil.rmtree(folder, ignore_errors=True)
    return stamp["marks"]


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _train(name: str, root: Path, env: dict[str, str], say) -> tuple[str, dict] | None:
    """The folder of the model and what its process used, as PROBE says it; None where it could not be made.

    What the process says on the way is passed on line by line, with the name before it: others are at work too.
    """
    command = [sys.executable, "-c", _MAKE, name]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8", "errors": "replace"}
    with subprocess.Popen(command, cwd=root, env=env, **pipes) as process:
        for line in process.stderr:
            print(f"{name}: {line.rstrip()}", file=sys.stderr, flush=True)
        lines = process.stdout.read().splitlines()
    if process.returncode:
        say(f"{name}: exit code {process.returncode}")
        return None
    for line in lines[:-2]:
        say(line)
    return json.loads(lines[-2]), json.loads(lines[-1])
