"""The build step that makes the trained models which pages share, before any page runs.

One process with all cores makes them, `python -m gptbook.recipes` in all but name.  A stamp says what it depended on;
while none of that has changed the step is passed over, and PyTorch is not even imported.

One model learns the text of the pages themselves, which every edit of prose changes.  A build trains it anew; a server
keeps to the text that it was last trained on (`kept_text`), so that an edit shows within seconds.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from dependencies import OWN, PACKAGE, PROBE, World, environment, needs, versions, write_aside

FORMAT = 1
KEPT = 3  # models a recipe: going back to the last branch trains nothing

_MAKE = f"""
import json, sys
from {PACKAGE} import recipes

names = json.loads(sys.argv[1])
if code := recipes.main(names):
    sys.exit(code)
print(json.dumps({{name: recipes.loaded_folders[name].name for name in names}}))  # loading again may find another text
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
    # Threads that spin only briefly while they wait for each other: with GNU's default, two of them collapse as soon as
    # they share a core. This costs a tenth where the machine is idle, and is several times faster where it is not.
    env = {"GOMP_SPINCOUNT": "500"} | environment(root, cache, world.texts) | {"GPTBOOK_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _MAKE, json.dumps(names)],
        cwd=root, env=env, stdout=subprocess.PIPE, encoding="utf-8", check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    if done.returncode:
        raise RunsFailed(
            f"the trained models {', '.join(names)} could not be made (exit code {done.returncode}): the lines above "
            f"say why; `python -m {PACKAGE}.recipes {' '.join(names)}` does the same step"
        )
    for line in lines[:-2]:
        say(line)
    probed = json.loads(lines[-1])
    used = needs(probed, world, root)
    marks = used.pop("runs")
    stamp = {"fixed": fixed, "folders": json.loads(lines[-2]), "marks": marks, "needs": used | {"runs": {}}}
    write_aside(stamp_path(cache), json.dumps(stamp, indent=1))
    for name in names:  # what was trained from source that is gone
        kept = sorted((cache / "runs").glob(f"{name}-*"), key=lambda p: p.stat().st_mtime, reverse=True)
        for folder in kept[KEPT:]:
            if folder.name not in stamp["folders"].values():
                shutil.rmtree(folder, ignore_errors=True)
    return marks
