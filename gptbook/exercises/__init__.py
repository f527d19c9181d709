"""The self-checks of "Your turn": `check(name, answer)` tries an answer on new inputs and says what is wrong with it.

A page's checks are imported when one of them is asked for, so that page 1 needs no torch.
"""

import difflib
import html
import importlib
import os
from dataclasses import dataclass

from gptbook.exercises import codes
from gptbook.exercises.answers import Wrong, one_line, random_state_kept

__all__ = ["MIME", "Verdict", "check", "registry"]

MIME = "application/vnd.gptbook.verdict+json"

# Exercise -> the module of its page; the check there bears the exercise's name, with underscores.
registry = {
    "round-trip": "page_01",
    "shared-targets": "page_01",
    "unseen-character": "page_01",
    "bigram-loss": "page_02",
    "compressor-rate": "page_02",
    "trigram": "page_02",
    "decaying-average": "page_03",
    "leak-finder": "page_03",
    "double-weight": "page_03",
    "attention-head": "page_04",
    "score-scale": "page_04",
    "name-the-mistake": "page_04",
    "repack-heads": "page_05",
    "multi-head": "page_05",
    "ablate-head": "page_05",
    "layer-norm": "page_06",
    "gelu": "page_06",
    "block": "page_06",
    "merge-layers": "page_06",
    "add-positions": "page_07",
    "order-blind": "page_07",
    "previous-token": "page_07",
    "count-parameters": "page_08",
    "initial-loss": "page_08",
    "largest-width": "page_08",
    "learning-rate": "page_09",
    "clip": "page_09",
    "temperature": "page_10",
    "top-p": "page_10",
    "greedy-loop": "page_10",
    "cached-step": "page_11",
    "cached-work": "page_11",
    "rows-that-fit": "page_11",
    "previous-token-head": "page_12",
    "induction-head": "page_12",
    "first-appears": "page_12",
    "longest-span": "page_14",
    "where-it-turns": "page_14",
    "early-stopping": "page_14",
    "unfold": "page_15",
    "kept-whole": "page_15",
    "bits-per-byte": "page_15",
    "remove-mask": "page_13",
    "remove-positions": "page_13",
    "depth-or-steps": "page_13",
    "larger-recipe": "page_13",
    "answer-rank": "page_16",
    "word-arithmetic": "page_16",
    "name-the-heads": "page_16",
    "rms-norm": "page_17",
    "rotary": "page_17",
    "grouped-queries": "page_17",
    "grouped-cache": "page_17",
    "newton-schulz": "page_17",
    "training-operations": "page_18",
    "roofline": "page_18",
    "round-to-bfloat16": "page_18",
    "share-a-batch": "page_18",
    "mask-the-prompt": "page_19",
    "best-policy": "page_19",
    "dpo-loss": "page_19",
}


@dataclass(frozen=True, repr=False)
class Verdict:
    """What a check found: the exercise's name, whether the answer passed, and one sentence; true if it passed."""

    name: str
    passed: bool
    message: str

    def __bool__(self):
        return self.passed

    @property
    def code(self) -> str:
        """What ticks the exercise on the checklist of the home page; "" for an answer that did not pass."""
        return codes.code(self.name) if self.passed else ""

    @property
    def _told(self) -> str:
        """The code where somebody earned it; "" in the build, whose solutions would give it away."""
        return "" if os.environ.get("GPTBOOK_HIDE_CODES") else self.code

    def __str__(self):
        said = f"{'✓' if self.passed else '✗'} {self.name}: {self.message}"
        return f"{said.removesuffix('.')}. Your code: {self._told}" if self._told else said

    __repr__ = __str__

    def _repr_html_(self):
        outcome, sign = ("passed", "✓") if self.passed else ("failed", "✗")
        name, message = html.escape(self.name), html.escape(self.message)
        if self._told:
            message = f"{message.removesuffix('.')}. Your code: <code>{self._told}</code>"
        return (
            f'<p class="verdict {outcome}"><span class="verdict-sign">{sign}</span> '
            f'<span class="verdict-name">{name}</span>: {message}</p>'
        )

    def _repr_mimebundle_(self, include=None, exclude=None):
        """The verdict for people, and for the build, which asks every hidden solution for a passed one."""
        return {
            "text/plain": str(self),
            "text/html": self._repr_html_(),
            MIME: {"name": self.name, "passed": self.passed},
        }


def check(name, answer) -> Verdict:
    """Try an answer to the exercise `name` on inputs that its author has not seen.

    Never raises for what the answer does, and leaves the random state as it was. Raises ValueError for a name that no
    exercise has.
    """
    if not isinstance(name, str):
        raise ValueError(f"an exercise's name is a text and comes first, got {one_line(repr(name), 60)}")
    if name not in registry:
        near = difflib.get_close_matches(name.lower(), registry, n=3, cutoff=0.4)
        which = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(registry)}"
        raise ValueError(f"no exercise is called {name!r}: {which}")
    examine = getattr(importlib.import_module(f"gptbook.exercises.{registry[name]}"), name.replace("-", "_"))
    with random_state_kept():
        try:
            return Verdict(name, True, examine(answer))
        except Wrong as reason:
            return Verdict(name, False, str(reason))
        except (Exception, SystemExit) as error:  # an answer so odd that looking at it fails
            return Verdict(name, False, f"the check could not read the answer, which raises {type(error).__name__}")
