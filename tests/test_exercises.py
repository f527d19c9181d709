"""The self-checks: right answers to every exercise pass, plausible mistakes fail, each with a sentence of its own."""

import importlib
import json
import math
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gptbook import exercises
from gptbook.exercises import page_02, page_08, page_12
from gptbook.model import GPT, GPTConfig

RIGHT, WRONG = {}, {}  # answers/page_01.py and its neighbours hold them
for path in sorted((Path(__file__).parent / "answers").glob("page_*.py")):
    page = importlib.import_module(f"answers.{path.stem}")
    RIGHT |= page.RIGHT
    WRONG |= page.WRONG


def cases(table):
    return [
        pytest.param(name, entry, id=f"{name}-{i}")
        for name, entries in table.items()
        for i, entry in enumerate(entries)
    ]


@pytest.mark.parametrize(("name", "answer"), cases(RIGHT))
def test_right_answers_pass(name, answer):
    """A failure would tell a reader who is right that they are wrong."""
    verdict = exercises.check(name, answer)
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize(("name", "entry"), cases(WRONG))
def test_wrong_answers_fail_with_the_reason(name, entry):
    """A failure would pass a plausible mistake, or give it the reason of another one."""
    answer, words = entry
    verdict = exercises.check(name, answer)
    assert not verdict.passed
    assert words in verdict.message
    assert "could not read" not in verdict.message


@pytest.mark.parametrize("name", exercises.registry)
def test_every_exercise_is_tried_and_its_mistakes_are_told_apart(name):
    """A failure would leave a check untested, or give two different mistakes the same sentence."""
    assert len(RIGHT[name]) >= 3
    expected = {words for _, words in WRONG[name] if words}
    messages = {exercises.check(name, answer).message for answer, _ in WRONG[name]}
    assert len(messages) >= len(expected) >= 5


class Odd:
    """An object that refuses everything."""

    def __getattribute__(self, name):
        raise RuntimeError(f"no {name}\nhere")

    def __repr__(self):
        raise RuntimeError("no repr")


def recursive(*arguments):
    return recursive(*arguments)


def leaves(*arguments):
    sys.exit("bye")


def fails(*arguments):
    raise RuntimeError("first line\nsecond line " + "long " * 100)


class MuteError(Exception):
    def __str__(self):
        raise self


def mute(*arguments):
    raise MuteError


def not_written(*arguments):
    raise NotImplementedError


def generator(*arguments):
    yield 1


ODD = [None, True, 3.5, "text", b"bytes", [], {}, object(), Odd(), Odd, int, len, torch.zeros(2, 3), recursive,
       leaves, fails, not_written, generator, lambda: 1, lambda *a: None, lambda *a: a, lambda *a: Odd(),
       lambda *a: math.nan, lambda *a: torch.full((5, 5), math.nan), lambda *a: fails,
       lambda *a: (fails, fails), lambda *a: 1j, mute,
       lambda *a: {"a": 1}, lambda *a: torch.zeros(0), lambda *a: [[1], [2, 3]], torch.nn.Linear(2, 2)]  # fmt: skip


@pytest.mark.parametrize("name", exercises.registry)
def test_no_answer_makes_a_check_raise(name):
    """A failure would show a reader a traceback in place of a sentence."""
    for answer in ODD:
        verdict = exercises.check(name, answer)
        assert not verdict
        assert verdict.message
        assert "\n" not in verdict.message
        assert "Traceback" not in verdict.message
        assert len(verdict.message) < 420


def test_an_error_is_told_with_its_line():
    """A failure would leave a reader alone with an exception from an unknown place."""
    message = exercises.check("round-trip", fails).message
    assert "raised RuntimeError: first line second line" in message
    assert "at the line `raise RuntimeError" in message
    assert "at the line `raise RuntimeError" in exercises.check("unseen-character", fails).message
    assert "not written yet" in exercises.check("clip", not_written).message


def test_interrupting_a_check_interrupts_it():
    """A failure would keep Ctrl-C from ending an answer that never returns."""

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exercises.check("clip", interrupted)


@pytest.mark.parametrize("name", exercises.registry)
def test_random_state_is_kept(name):
    """A failure would change a page's numbers by checking an exercise on it."""

    def spendthrift(*arguments):
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        torch.rand(3)

    for answer in (spendthrift, RIGHT[name][0], RIGHT[name][1]):
        before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
        exercises.check(name, answer)
        assert random.getstate() == before[0]
        assert np.random.get_state()[1].tolist() == before[1]
        assert torch.equal(torch.get_rng_state(), before[2])


@pytest.mark.parametrize(
    ("name", "near"),
    [("roundtrip", "round-trip"), ("leak finder", "leak-finder"), ("Clip", "clip"), ("?", "bigram-loss")],
)
def test_unknown_name_lists_close_ones(name, near):
    """A failure would leave a reader who mistyped a name without the right one."""
    with pytest.raises(ValueError, match=f"no exercise is called .*{near}"):
        exercises.check(name, sorted)


def test_name_comes_first():
    """A failure would answer swapped arguments with something unrelated."""
    with pytest.raises(ValueError, match="comes first"):
        exercises.check(sorted, "clip")


def test_verdict_shows_itself():
    """A failure would break how a verdict looks on a page, or what the build reads from it."""
    good, bad = exercises.check("largest-width", 196), exercises.check("largest-width", "<b>")
    assert good
    assert not bad
    assert str(good) == repr(good) == f"✓ largest-width: {good.message}. Your code: {good.code}"
    assert str(bad).startswith("✗ largest-width: ")
    assert 'class="verdict passed"' in good._repr_html_()
    assert 'class="verdict failed"' in bad._repr_html_()
    assert "<b>" not in bad._repr_html_()
    assert "style=" not in good._repr_html_()
    bundle = json.loads(json.dumps(bad._repr_mimebundle_()))
    assert bundle["application/vnd.gptbook.verdict+json"] == {"name": "largest-width", "passed": False}
    assert bundle["text/plain"] == str(bad)
    assert bundle["text/html"] == bad._repr_html_()


def test_verdict_in_a_notebook():
    """A failure would lose the verdict between a cell and the build."""
    formatter = pytest.importorskip(
        "IPython.core.formatters", reason="IPython comes with the extra 'site'"
    ).DisplayFormatter()
    data, _ = formatter.format(exercises.check("largest-width", 196))
    assert data[exercises.MIME] == {"name": "largest-width", "passed": True}
    assert {"text/plain", "text/html"} <= set(data)


def test_page_1_needs_no_torch():
    """A failure would make page 1 load torch for its exercises."""
    program = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "from gptbook import exercises\n"
        "v = exercises.check('unseen-character', lambda text, ids: [ids[c] for c in text])\n"
        "print(v.passed, v.message)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("False encode(")
    assert "KeyError" in done.stdout


def test_measured_loss_agrees_with_a_model():
    """A failure would mean that the oracle of "initial-loss" does not measure what a GPT does before training."""
    losses = []
    for seed in range(12):
        torch.manual_seed(seed)
        model = GPT(GPTConfig(vocab_size=300, block_size=16, n_layer=1, n_head=2, n_embd=64))
        torch.nn.init.normal_(model.lm_head.weight, std=0.1)
        idx = torch.randint(300, (16, 17))  # (B, T+1)
        with torch.no_grad():
            logits = model(idx[:, :-1])  # (B, T, V)
        losses.append(F.cross_entropy(logits.flatten(0, 1), idx[:, 1:].flatten()).item())
    assert sum(losses) / len(losses) == pytest.approx(page_08._measured(300, 64, 0.1), abs=0.03)


def test_the_trainer_has_the_schedule_that_the_exercise_asks_for():
    """A failure would mean that page 9 teaches another schedule than the package trains with."""
    from gptbook.trainer import TrainConfig, lr_at

    rates = {"learning_rate": 1e-3, "min_learning_rate": 1e-4}
    for schedule, passes in (("cosine", True), ("linear", False), ("constant", False)):
        config = TrainConfig(steps=1000, warmup_steps=100, schedule=schedule, **rates)
        assert exercises.check("learning-rate", lambda step, config=config: lr_at(step, config)).passed is passes


def test_known_mistakes_are_mistakes():
    """A failure would mean that a catalogue holds a right answer, or one that its cases cannot tell from it."""
    sizes = [(65, 64, 4, 128), (101, 37, 3, 44)]
    assert all(extra(*size) != 0 for _, extra in page_08.COUNT_MISTAKES for size in sizes)
    cases = [(65, 128, 0.05), (500, 200, 0.03)]
    for words, wrong in page_08.LOSS_MISTAKES:
        assert any(abs(wrong(*case) - page_08._measured(*case)) > 0.05 for case in cases), words
    chains = [page_02._chain(5, 200, 60, 0)]
    assert all(
        not page_02._close(wrong(*chains[0]), page_02._bigram(*chains[0])) for _, wrong in page_02.BIGRAM_MISTAKES
    )


def test_a_mask_after_the_softmax_that_divides_again_is_right_and_told_where_it_breaks():
    """A failure would refuse an answer that is equal, or keep its weakness from the reader."""
    from answers import page_04

    assert "NaN" in exercises.check("attention-head", page_04.head_late_again).message
    assert "NaN" not in exercises.check("attention-head", page_04.head).message


def test_powers_without_the_largest_score_taken_off_are_right_and_told_where_they_overflow():
    """A failure would refuse an answer that is equal, or give it the remark that belongs to another one."""
    from answers import page_04

    for answer in (page_04.head_math_exp, page_04.head_loops):
        assert "overflows" in exercises.check("attention-head", answer).message
    for answer in (page_04.head_late_again, page_04.head):
        assert "overflows" not in exercises.check("attention-head", answer).message


def test_messages_do_not_name_the_workings():
    """A failure would show a reader names of the checks' own code."""
    for name, entries in WRONG.items():
        for answer, _ in entries:
            assert not re.search(
                r"\b_\w+|page_\d\d|lambda \w+:", exercises.check(name, answer).message.split(", at the line")[0]
            )


def test_known_mistakes_about_heads_are_mistakes_and_differ():
    """A failure would mean that a catalogue holds a right answer, or that its inputs cannot tell two mistakes apart."""
    weights = [(page_12._weights(H, 2 * P, P), P) for H, P in ((3, 4), (5, 3))]
    lenses = [page_12._lens(*pattern, seed) for seed, pattern in enumerate(page_12._PATTERNS)]
    for catalogue, cases, right in (
        (page_12.PREVIOUS_MISTAKES, [(w,) for w, _ in weights], lambda w: w.diagonal(-1, 1, 2).mean(1)),
        (page_12.INDUCTION_MISTAKES, weights, lambda w, P: w.diagonal(1 - P, 1, 2)[:, 1:].mean(1)),
        (page_12.APPEARS_MISTAKES, lenses, lambda z, a: (z.argmax(1) == a).tolist().index(True)),
    ):
        results = [[torch.as_tensor(-1 if (r := f(*c)) is None else r) for c in cases]
                   for f in (right, *(wrong for _, wrong in catalogue))]  # fmt: skip
        for i, a in enumerate(results):
            for b in results[:i]:
                assert not all(x.shape == y.shape and torch.allclose(x, y, 5e-3) for x, y in zip(a, b, strict=True))
