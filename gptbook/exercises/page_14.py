"""The checks of page 14, overfitting."""

import math
import random
import re
from itertools import pairwise

from gptbook.exercises.answers import Wrong, ask, explain, need_function, number, shown, whole_number

# The longest copied span ----------------------------------------------------------------------------------------------


def longest_span(longest_copied) -> str:
    """longest_copied(sample, text) -> (length, start) of the longest piece of sample that stands in text."""
    need_function(longest_copied, "longest_copied(sample, text)")
    got = []
    for sample, text in SPANS:
        what = f"longest_copied({_brief(sample)}, {_brief(text)})"
        got.append(_pair(ask(longest_copied, what, sample, text), what))
    lengths = [length for length, _ in got]
    if lengths != [_longest(*case)[0] for case in SPANS]:
        if sentence := explain(lengths, SPANS, SPAN_MISTAKES, lambda mine, wrong: mine == wrong):
            raise Wrong(sentence)
        sample, text, mine, right = next(
            (*case, mine, _longest(*case)[0])
            for case, mine in zip(SPANS, lengths, strict=True)
            if mine != _longest(*case)[0]
        )
        raise Wrong(f"longest_copied({_brief(sample)}, {_brief(text)}) gave the length {mine}, and {right} is right")
    copied = [(*case, *mine) for case, mine in zip(SPANS, got, strict=True) if mine[0]]
    for sentence, wrong in START_MISTAKES:
        if all(start == wrong(sample, text) for sample, text, _, start in copied):
            raise Wrong(sentence)
    for sample, text, length, start in copied:
        piece = sample[max(start, 0) : start + length]
        if len(piece) < length or piece not in text:
            raise Wrong(f"the lengths are right, but no copied piece of {_brief(sample)} begins at your start, {start}")
        if start != _longest(sample, text)[1]:
            raise Wrong(f"of several pieces of the same length the first is asked for: yours begins at {start}")
    if odd := [mine for mine in got if not mine[0] and mine[1]]:
        raise Wrong(f"where the two share no character, (0, 0) is asked for: you gave {odd[0]}")
    long = random.Random(5)
    text = "".join(long.choice("ab ") for _ in range(4000))
    sample = text[1000:1400] + "c" + text[2000:2300]
    what = "longest_copied, on a sample of 701 characters,"
    if _pair(ask(longest_copied, what, sample, text), what) != (400, 0):
        raise Wrong("a long sample gets another answer than short ones: is the search cut off at some length?")
    return f"right on {len(SPANS) + 1} pairs of texts, with spans from 0 to 400 characters"


def _brief(text) -> str:
    return repr(text) if len(text) <= 24 else f"{text[:20]!r}..."


def _pair(value, what):
    if isinstance(value, str):
        raise Wrong(f"{what} returned a text: asked for are its length and its start")
    if isinstance(value, int) or getattr(value, "shape", None) == ():
        raise Wrong(f"{what} returned one number: asked for are two, the length and the start")
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise Wrong(f"{what} must return two numbers, (length, start), got {shown(value)}")
    return whole_number(value[0], "the length"), whole_number(value[1], "the start")


def _longest(sample, text) -> tuple[int, int]:
    """The slow and plain way: every piece, the longest first."""
    for length in range(len(sample), 0, -1):
        for start in range(len(sample) - length + 1):
            if sample[start : start + length] in text:
                return length, start
    return 0, 0


def _subsequence(a, b) -> int:
    row = [0] * (len(b) + 1)
    for x in a:
        before = row
        row = [0]
        for j, y in enumerate(b):
            row.append(before[j] + 1 if x == y else max(before[j + 1], row[j]))
    return row[-1]


def _words(sample, text) -> int:
    """Copied words, counted in words."""
    mine, theirs = sample.split(), f" {' '.join(text.split())} "
    runs = ((i, j) for i in range(len(mine)) for j in range(i + 1, len(mine) + 1))
    return max((j - i for i, j in runs if f" {' '.join(mine[i:j])} " in theirs), default=0)


def _whole_words(sample, text) -> int:
    """Copied words, counted in characters."""
    mine, theirs = sample.split(), f" {' '.join(text.split())} "
    runs = (" ".join(mine[i:j]) for i in range(len(mine)) for j in range(i + 1, len(mine) + 1))
    return max((len(run) for run in runs if f" {run} " in theirs), default=0)


def _at_start(sample, text) -> int:
    return max((n for n in range(len(sample) + 1) if sample[:n] in text), default=0)


def _at_end(sample, text) -> int:
    return max((n for n in range(len(sample) + 1) if sample[len(sample) - n :] in text), default=0)


def _in_both(sample, text) -> int:
    """The longest piece that both have at the same place."""
    best = run = 0
    for a, b in zip(sample, text, strict=False):
        run = run + 1 if a == b else 0
        best = max(best, run)
    return best


def _first_occurrence(sample, text) -> int:
    """From each start, follows the text only from the first place where the character stands."""
    best = 0
    for i in range(len(sample)):
        at, n = text.find(sample[i]), 0
        while at >= 0 and i + n < len(sample) and at + n < len(text) and sample[i + n] == text[at + n]:
            n += 1
        best = max(best, n)
    return best


def _greedy(sample, text) -> int:
    """After a piece that ends, goes on behind it, and so misses pieces that begin inside."""
    best, i = 0, 0
    while i < len(sample):
        n = max(_at_start(sample[i:], text), 1)
        best = max(best, n if sample[i] in text else 0)
        i += n
    return best


def _first_piece(sample, text) -> int:
    """The first piece that is copied, however short."""
    starts = (i for i in range(len(sample)) if sample[i] in text)
    return next((_at_start(sample[i:], text) for i in starts), 0)


def _alike(sample, text) -> int:
    return len(set(sample) & set(text))


SPANS = (
    ("the mat on the cat", "a cat sat on the mat. the cat"),
    ("xx or not to be yy", "to be or not to bend"),
    ("a b c d e f", "f e d c b a"),
    ("ananas and bananas", "banana, ananasandbananas"),
    ("on the mat", "on the mat"),
    ("aab", "ab aaab"),
    ("zzz", "abc"),
    ("The Cat", "the cat"),
    ("", "abc"),
    ("abc", ""),
    ("abcabd", "ab abd abc"),
    ("xabcdey", "abcx bcdeq cdey"),
    ("a line\nand a line", "no line\nand another"),
)

SPAN_MISTAKES = (
    ("letters that stand in the text in this order, with others between them, were counted: a piece has no gaps",
     _subsequence),
    ("words were counted: the length is asked for in characters, and a piece may begin inside of a word", _words),
    ("only whole words were compared: a piece may begin and end inside of a word", _whole_words),
    ("only pieces at the start of the sample were tried: a copy may begin anywhere in it", _at_start),
    ("only pieces at the end of the sample were tried: a copy may end anywhere in it", _at_end),
    ("only pieces that stand at the same place in both texts were found: the text may hold them anywhere", _in_both),
    ("each character was followed from the first place where it stands in the text: a later place may match for longer",
     _first_occurrence),
    ("after a copied piece the search went on behind it: the longest one may begin inside of another", _greedy),
    ("the first piece that is copied was taken, however short: the longest of all is asked for", _first_piece),
    ("different characters that both texts have were counted: a piece is a run of them", _alike),
    ("every length is one short: the end of a slice does not belong to it", lambda s, t: max(0, _longest(s, t)[0] - 1)),
    ("lengths are one too many: the piece one longer is the first that is not in the text",
     lambda s, t: _longest(s, t)[0] + 1),
    ("capitals were made small: a copy is the same to the letter",
     lambda s, t: _longest(s.lower(), t.lower())[0]),
    ("blanks were left out: they are characters like all others",
     lambda s, t: _longest(re.sub(r"\s", "", s), re.sub(r"\s", "", t))[0]),
)  # fmt: skip

START_MISTAKES = (
    ("the lengths are right, but start is where the piece stands in text, not in sample",
     lambda s, t: t.find(s[(at := _longest(s, t))[1] : sum(at)])),
    ("the lengths are right, but start is where the piece ends: asked for is where it begins",
     lambda s, t: sum(_longest(s, t))),
    ("the lengths are right, but start is the last character of the piece: asked for is the first",
     lambda s, t: sum(_longest(s, t)) - 1),
)  # fmt: skip


# Where validation turns -----------------------------------------------------------------------------------------------


def where_it_turns(turning_step) -> str:
    """turning_step(history) -> the step with the lowest validation loss, the first of several."""
    need_function(turning_step, "turning_step(history)")
    got = []
    for history in HISTORIES:
        given = [dict(row) for row in history]
        value = ask(turning_step, f"turning_step(a history of {len(history)} measurements)", given)
        if given != history:
            raise Wrong("turning_step changed the history that it was given: only read it")
        got.append(number(value, "what turning_step returns"))
    if got != [_turn(history) for history in HISTORIES]:
        cases = [(history,) for history in HISTORIES]
        if sentence := explain(got, cases, TURN_MISTAKES, lambda mine, wrong: mine == wrong):
            raise Wrong(sentence)
        at = next(i for i, history in enumerate(HISTORIES) if got[i] != _turn(history))
        losses = ", ".join(f"{row['val_loss']:g} at step {row['step']}" for row in HISTORIES[at])
        raise Wrong(f"for the validation losses {losses} you return {got[at]:g}")
    return f"right on {len(HISTORIES)} histories, ties and a run that never turns included"


def _history(steps, train, validation):
    rows = zip(steps, train, validation, strict=True)
    return [{"step": s, "train_loss": t, "val_loss": v, "seconds": s / 10} for s, t, v in rows]


HISTORIES = [
    _history((0, 50, 100, 150, 200, 250), (4.5, 2.5, 2.0, 1.5, 1.0, 0.6), (4.6, 2.8, 2.5, 2.4, 2.6, 3.0)),
    # It rises once before it falls on; and the lowest loss comes twice.
    _history((0, 10, 30, 70, 150, 310), (4.0, 3.0, 2.0, 1.6, 1.2, 0.9), (4.1, 3.0, 3.2, 2.0, 2.0, 2.9)),
    # It never turns.
    _history((0, 100, 200, 300), (3.0, 2.0, 1.5, 1.4), (3.1, 2.2, 1.8, 1.7)),
    # It turns at once, and the training loss has its lowest point before the end.
    _history((0, 5, 10, 15), (3.0, 0.5, 0.4, 0.6), (3.2, 3.4, 3.9, 3.8)),
    _history((40,), (1.0,), (2.0,)),
]  # fmt: skip


def _turn(history):
    return min(history, key=lambda row: row["val_loss"])["step"]


def _first_rise(history):
    rows = range(1, len(history))
    at = next((i - 1 for i in rows if history[i]["val_loss"] > history[i - 1]["val_loss"]), len(history) - 1)
    return history[at]["step"]


TURN_MISTAKES = (
    ("you take the lowest training loss: that one falls on while the other rises",
     lambda h: min(h, key=lambda row: row["train_loss"])["step"]),
    ("you take the last measurement: the question is where the validation loss was lowest", lambda h: h[-1]["step"]),
    ("you take the step with the largest gap between the two losses: it grows on after the turn",
     lambda h: max(h, key=lambda row: row["val_loss"] - row["train_loss"])["step"]),
    ("you take the step with the smallest gap between the two losses: a model that knows nothing has a small one",
     lambda h: min(h, key=lambda row: row["val_loss"] - row["train_loss"])["step"]),
    ("you stop at the first rise of the validation loss: it may fall again, and lower", _first_rise),
    ("you take the first measurement that is above the one before: the turn is the lowest one",
     lambda h: next((b["step"] for a, b in pairwise(h) if b["val_loss"] > a["val_loss"]), h[-1]["step"])),
    ("of measurements that tie you take the last: the first is asked for",
     lambda h: min(reversed(h), key=lambda row: row["val_loss"])["step"]),
    ("you return the number of the measurement, not its step: they are not the same",
     lambda h: min(range(len(h)), key=lambda i: h[i]["val_loss"])),
    ("you return the lowest loss itself: its step is asked for", lambda h: min(row["val_loss"] for row in h)),
    ("you take the highest validation loss: the turn is at the lowest",
     lambda h: max(h, key=lambda row: row["val_loss"])["step"]),
    ("you take the measurement after the lowest one: the lowest itself is asked for",
     lambda h: h[min(len(h) - 1, min(range(len(h)), key=lambda i: h[i]["val_loss"]) + 1)]["step"]),
)  # fmt: skip


# Early stopping -------------------------------------------------------------------------------------------------------


def early_stopping(stop_at) -> str:
    """stop_at(losses, patience) -> the measurement at which to stop: so many in a row were no new lowest loss."""
    need_function(stop_at, "stop_at(losses, patience)")
    got = []
    for losses, patience in STOPS:
        given = list(losses)
        what = f"stop_at({given}, {patience})"
        value = ask(stop_at, what, given, patience)
        if given != losses:
            raise Wrong(f"{what} changed the losses that it was given: only read them")
        if value is None:
            raise Wrong(f"{what} returned None: where nothing stops the run, return the last measurement")
        got.append(number(value, what))
    if got != [_stop(*case) for case in STOPS]:
        if sentence := explain(got, STOPS, STOP_MISTAKES, lambda mine, wrong: mine == wrong):
            raise Wrong(sentence)
        at = next(i for i, case in enumerate(STOPS) if got[i] != _stop(*case))
        raise Wrong(f"stop_at({STOPS[at][0]}, {STOPS[at][1]}) gave {got[at]:g}, and {_stop(*STOPS[at])} is right")
    return f"right on {len(STOPS)} runs: those that stop, and those that go on to the end"


STOPS = [
    ([4.0, 3.0, 2.5, 2.6, 2.7, 2.8, 2.9], 2),
    ([4.0, 3.0, 2.5, 2.6, 2.7, 2.8, 2.9], 1),
    ([4.0, 3.0, 3.1, 2.9, 3.0, 2.8, 2.7], 2),  # it never stops: each rise is followed by a new lowest
    ([4.0, 2.0, 3.0, 2.5, 2.4, 2.3, 2.2, 2.1], 3),  # falling again, but not below the best
    ([3.0, 2.0, 2.0, 2.0, 2.0, 1.0], 2),  # the same again is no improvement
    ([3.0, 2.9, 2.8], 1),
    ([1.0, 2.0, 3.0], 5),
    ([2.0, 2.5, 1.9, 2.6, 2.7, 1.8, 3.0, 3.1, 3.2], 3),
    ([5.0], 1),
]  # fmt: skip


def _stop(losses, patience, better=lambda loss, best: loss < best, late=0):
    best, waited = math.inf, 0
    for i, loss in enumerate(losses):
        if better(loss, best):
            best, waited = loss, 0
        else:
            waited += 1
        if waited >= patience + late:
            return i
    return len(losses) - 1


def _rises(losses, patience):
    """Counts measurements above the one before them."""
    waited = 0
    for i in range(1, len(losses)):
        waited = waited + 1 if losses[i] >= losses[i - 1] else 0
        if waited >= patience:
            return i
    return len(losses) - 1


def _never_reset(losses, patience):
    best, waited = math.inf, 0
    for i, loss in enumerate(losses):
        if loss < best:
            best = loss
        else:
            waited += 1
        if waited >= patience:
            return i
    return len(losses) - 1


def _best_so_far(losses, patience):
    seen = losses[: _stop(losses, patience) + 1]
    return seen.index(min(seen))


STOP_MISTAKES = (
    ("you compare with the measurement before: compare with the lowest so far",
     _rises),
    ("the count is not set back when a new lowest loss comes: only measurements in a row count", _never_reset),
    ("a loss equal to the lowest counts as a new lowest for you: it brings nothing new",
     lambda ls, p: _stop(ls, p, better=lambda loss, best: loss <= best)),
    ("you stop one measurement too late: the last of the row is the one to stop at",
     lambda ls, p: _stop(ls, p, late=1)),
    ("you stop one measurement too early: the row is one short",
     lambda ls, p: max(0, _stop(ls, p) - 1) if _stop(ls, p) < len(ls) - 1 or p == 1 else _stop(ls, p)),
    ("you return the measurement to go back to: asked for is the one at which the run stops", _best_so_far),
    ("you look at all losses at once and return the lowest: a run that has stopped does not see the rest",
     lambda ls, p: ls.index(min(ls))),
    ("patience has no effect: you stop at the first measurement that is no new lowest", lambda ls, p: _stop(ls, 1)),
    ("you always go on to the end", lambda ls, p: len(ls) - 1),
    ("you return how many measurements were made: they are counted from 0", lambda ls, p: _stop(ls, p) + 1),
)  # fmt: skip
