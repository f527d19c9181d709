"""How long a build of the book takes: cold, with everything as it was, and after an edit; and the memory it needs.

    python benchmarks/building.py [--site FOLDER] [--save]

A fresh clone of this checkout's last commit is built with `mkdocs build --strict`: cold, which trains all models and
runs all pages; then again, three times. Then `mkdocs serve` runs, and the time is taken from an edit of a page's prose,
and of its code, until the server hands out the new page. Memory is that of all processes together, looked at twice a
second; what they share counts several times, so it is a bound from above. A training of the book's first model,
`gptbook train`, is looked at in the same way.

With --site the built site is left in FOLDER, and the clone's cache beside it.
"""

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import psutil
import report

ROOT = Path(__file__).parents[1]
PAGE = "docs/03_averaging.py"  # edited in its prose, and in its code
EDITS = [  # what stands there, what is put in its place, and what the page then shows
    ("## Four tokens by hand\n", "## Four tokens by hand\n\nAn edit of the prose.\n", "An edit of the prose."),
    ("T, C = x.shape\nfor t in", "T, C = x.shape\nprint('edited', 6 * 7)\nfor t in", "edited 42"),
]
PORT = 8765


class Memory(threading.Thread):
    """The most that a process and those below it held at once, in MiB."""

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self.process, self.most, self.done = psutil.Process(pid), 0.0, threading.Event()
        self.start()

    def run(self):
        while not self.done.wait(0.5):
            held = 0
            with contextlib.suppress(psutil.Error):
                for one in [self.process, *self.process.children(recursive=True)]:
                    with contextlib.suppress(psutil.Error):
                        held += one.memory_info().rss
            self.most = max(self.most, held / 2**20)


def timed(command: list[str], book: Path) -> tuple[float, float]:
    """Seconds and MiB of a command in the clone; it must succeed."""
    start = time.perf_counter()
    with subprocess.Popen(command, cwd=book, env=environment(book), stdout=subprocess.DEVNULL) as process:
        memory = Memory(process.pid)
        code = process.wait()
        memory.done.set()
    if code:
        sys.exit(f"benchmarks/building.py: {' '.join(command)} ended with exit code {code}: the lines above say why")
    return time.perf_counter() - start, memory.most


def environment(book: Path) -> dict[str, str]:
    """The clone's own package comes first, whatever is installed."""
    return os.environ | {"PYTHONPATH": str(book), "NO_MKDOCS_2_WARNING": "1"}


def served(book: Path) -> tuple[float, float]:
    """Seconds from an edit, of prose and of code, to the page that shows it, under `mkdocs serve`."""
    command = [sys.executable, "-m", "mkdocs", "serve", "--dev-addr", f"127.0.0.1:{PORT}"]
    out = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    whole = (book / PAGE).read_text(encoding="utf-8")
    process = subprocess.Popen(command, cwd=book, env=environment(book), start_new_session=True, **out)
    try:
        address = ""
        while not address:  # the first build, and then the site lies below the path that it is published under
            with contextlib.suppress(OSError):
                address = urllib.request.urlopen(f"http://127.0.0.1:{PORT}/").geturl() + f"{Path(PAGE).stem}/"
            if process.poll() is not None:
                sys.exit(f"benchmarks/building.py: the server ended with exit code {process.returncode}")
            time.sleep(0.5)
        took = []
        for old, new, seen in EDITS:
            text = (book / PAGE).read_text(encoding="utf-8")
            assert text.count(old) == 1
            time.sleep(3)  # for the server to settle
            start = time.perf_counter()
            (book / PAGE).write_text(text.replace(old, new), encoding="utf-8")
            while seen not in urllib.request.urlopen(address).read().decode():
                if time.perf_counter() - start > 300:
                    sys.exit(f"benchmarks/building.py: the server never showed {seen!r}")
                time.sleep(0.05)
            took.append(time.perf_counter() - start)
        return tuple(took)
    finally:
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
            os.killpg(process.pid, signal.SIGTERM)  # a shell may have it ignore Ctrl-C
        process.wait()
        (book / PAGE).write_text(whole, encoding="utf-8")


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--site", type=Path)
    parser.add_argument("--save", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        book = Path(folder) / "book"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(book)], check=True)
        build = [sys.executable, "-m", "mkdocs", "build", "--strict"]  # quiet, it would pass over warnings
        train = [sys.executable, "-m", "gptbook", "train", "--steps", "200", "--out", str(book / "runs" / "one")]
        figures = {}
        _, training = timed(train, book)
        figures["memory of training 0.8 M parameters"] = f"{training:,.0f} MiB", "1,024 MiB"
        cold, most = timed(build, book)
        print(f"cold: {cold:.0f} s, {most:,.0f} MiB", flush=True)
        figures["a cold build, all models trained"] = f"{cold / 60:.1f} min", "12 min"
        figures["memory of a cold build"] = f"{most:,.0f} MiB", "3,072 MiB"
        if chosen.site:
            shutil.copytree(book / "site", chosen.site, dirs_exist_ok=True)
            shutil.copytree(book / ".cache", chosen.site.parent / ".cache", dirs_exist_ok=True)
        warm = statistics.median(timed(build, book)[0] for _ in range(3))
        figures["a build with nothing changed"] = f"{warm:.1f} s", "5 s"
        prose, code = served(book)
        figures["an edit of prose, until it is served"] = f"{prose:.1f} s", "3 s"
        figures["an edit of a page's code, until it is served"] = f"{code:.1f} s", ""
    for what, (ours, goal) in figures.items():
        print(f"{what:46} {ours:>12}  {'at most ' + goal if goal else ''}")
    if chosen.save:
        rows = [
            report.row(what, "", ours, "", None, goal and f"at most {goal}") for what, (ours, goal) in figures.items()
        ]
        report.save("building", rows)


if __name__ == "__main__":
    main()
