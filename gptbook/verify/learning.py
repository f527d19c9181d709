"""Checks of what surrounds a model in training: tokenizer, batches, optimizer, schedule, evaluation; pages 1 and 9."""

import math
import os
import random
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

from gptbook.model import GPT, GPTConfig
from gptbook.verify.calling import ask
from gptbook.verify.catalogue import Mistake
from gptbook.verify.report import DIFFERS, FAILED, NOT_CHECKED, PASSED, Report, Result
from gptbook.verify.signature import Signature
from gptbook.verify.subject import CannotLook, one_line, untouched
from gptbook.verify.writing import blocked, seeded, unlikely


def known(name: str) -> str:
    """The cause that the report gives for this mistake of the catalogue."""
    return next(mistake.cause for mistake in MISTAKES if mistake.name == name)


def missed(names, why: str) -> Report:
    """A report in which nothing could be looked at."""
    return Report([Result(name, NOT_CHECKED, cause=why) for name in names])


# ---- batches

BATCH_CHECKS = ("shape", "dtype", "windows", "targets", "fresh", "rows", "range", "evenness", "splits", "memory")
MOST_WINDOWS = 60_000  # windows drawn at most to see how far they reach
SURE = 21.0  # ln 1e9: so many draws per start, and one that is never drawn is unlikely at 1e-9


def check_batches(get_batch, tokens, block_size: int) -> Report:
    """Whether get_batch() -> x, y, (B, T) each, gives windows of `tokens` (N,), and the same one token further.

    A function that asks for tokens, block_size, batch_size or split is given them. Raises ValueError for tokens that
    hold no window of block_size with its targets.
    """
    given, tokens = tokens, torch.as_tensor(tokens).flatten().long().cpu()
    if len(tokens) < block_size + 1:
        raise ValueError(f"{len(tokens)} tokens hold no window of block_size {block_size} with its targets")
    try:
        batches = _Batches(get_batch, given, tokens, block_size)
        first = batches.shape()
    except CannotLook as reason:
        return missed(BATCH_CHECKS, str(reason))
    results = [first]
    for name in BATCH_CHECKS[1:]:
        stop = next((r.name for r in results if r.status == FAILED and r.name in ("shape", "windows")), None)
        if stop:
            results += blocked([name], stop)
            continue
        try:
            results.append(getattr(batches, name)())
        except CannotLook as reason:
            results.append(Result(name, NOT_CHECKED, cause=str(reason)))
        except Exception as error:  # an answer that nobody foresaw is no pass
            results.append(Result(name, NOT_CHECKED, cause=f"the check was stopped by {one_line(error)}"))
    return Report(results)


class _Batches:
    """A reader's get_batch, and where in the text its windows were found."""

    def __init__(self, get_batch, given, tokens, T: int):
        self.get_batch, self.T = get_batch, T
        texts = ("tokens", "data", "text", "ids")
        spare = dict.fromkeys(texts, given)
        spare |= {"block_size": T, "context_length": T, "batch_size": 16, "split": "train", "generator": None}
        spare["device"] = "cpu"
        self.signature = Signature(get_batch, ("",), spare)
        self.signature.own.pop("", None)
        taken = {p.name for p in self.signature.parameters or ()}
        self.split = "split" in taken
        if taken & {*texts}:  # a text in which no window comes twice tells more, and a short one is soon seen through
            tokens = torch.arange(max(2, min(len(tokens), 3 * T + 40)))
            own = tokens if isinstance(given, torch.Tensor) else tokens.numpy() if hasattr(given, "dtype") else None
            spare |= dict.fromkeys(texts, tokens.tolist() if own is None else own)
        self.tokens, self.N = tokens, len(tokens)
        self.given = {name: spare[name] for name in (*texts, "block_size", "batch_size") if name in taken}
        self.places: dict[tuple, list[int]] = {}
        for start, window in enumerate(tokens.unfold(0, T, 1).tolist()):
            self.places.setdefault(tuple(window), []).append(start)

    def draw(self, count: int = 1, seed: int = 0, **told):
        """So many batches as they come. Raises CannotLook for a function that asks for what nobody can give."""
        given = self.given | told
        first, named = self.signature.arguments()
        named |= {p.name: given[p.name] for p in self.signature.parameters or () if p.name in given}
        positional = [p.name for p in self.signature.parameters or () if p.kind is p.POSITIONAL_ONLY]
        first += [named.pop(name) for name in positional if name in named]

        def run():
            seeded(seed)
            return [self.get_batch(*first, **named) for _ in range(count)]

        return ask(run)

    def shape(self) -> Result:
        expected = f"x and y, (B, {self.T}) each"
        answer = self.draw()
        if answer.error:
            return Result("shape", FAILED, f"raises {answer.error}", expected, _batch_error(answer.error))
        value = answer.value[0]
        if not isinstance(value, tuple | list) or len(value) < 2:
            return Result("shape", FAILED, f"returns a {type(value).__name__}", expected, "return x, y (page 1)")
        try:
            self.x, self.y = (torch.as_tensor(part) for part in value[:2])
        except Exception as error:
            return Result("shape", FAILED, one_line(error), expected, "x and y are tensors (page 1)")
        shapes = tuple(self.x.shape), tuple(self.y.shape)
        measured = f"x {shapes[0]}, y {shapes[1]}"
        if self.x.dim() == 2 and shapes[0] == shapes[1] and shapes[0][1] == self.T and shapes[0][0]:
            return Result("shape", PASSED, measured, expected)
        if self.x.dim() == 2 and shapes[0] == shapes[1] and shapes[0][0] == self.T:
            cause = known("batch-transposed")
        elif self.x.dim() == 2 and shapes[0] == shapes[1] and shapes[0][1] == self.T - 1:
            cause = known("batch-one-short")
        elif self.x.dim() == 2 and self.y.numel() == shapes[0][0]:
            cause = known("batch-last-target-only")
        else:
            cause = "every row is a window of block_size tokens, and its targets as many (page 1)"
        return Result("shape", FAILED, measured, expected, cause)

    def dtype(self) -> Result:
        names = f"x {self.x.dtype}, y {self.y.dtype}".replace("torch.", "")
        expected = "int64, as embedding and cross_entropy want them"
        if self.y.dtype != torch.int64 or self.x.dtype not in (torch.int32, torch.int64):
            return Result("dtype", FAILED, names, expected, known("batch-dtype"))
        return Result("dtype", PASSED, names, expected)

    def windows(self) -> Result:
        """Every row of x is a window of the text."""
        expected, lost = "every row of x is a window of the tokens", []
        seen = 0
        for x, _ in self.several():
            lost += [row for row in x.tolist() if tuple(row) not in self.places]
            seen += len(x)
        if not lost:
            return Result("windows", PASSED, f"{seen} of {seen} are", expected)
        measured = f"{seen - len(lost)} of {seen} are"
        double = torch.cat((self.tokens, self.tokens)).unfold(0, self.T, 1).tolist()
        around = {tuple(window) for window in double}
        columns = {tuple(column) for x, _ in self.several() for column in x.T.tolist()}
        if all(tuple(row) in around for row in lost):
            cause = known("batch-wraps")
        elif all(tuple(row[::-1]) in self.places for row in lost):
            cause = "the windows run backwards (page 1)"
        elif self.x.size(0) == self.T and columns <= set(self.places):
            cause = known("batch-transposed")
        elif not {token for row in lost for token in row} <= set(self.tokens.tolist()):
            cause = "tokens come that this text does not have: does it draw from another text? (page 1)"
        else:
            cause = known("batch-scattered")
        return Result("windows", FAILED, measured, expected, cause)

    def several(self, count: int = 8):
        """Some batches as tensors; none where the function stops."""
        answer = self.draw(count, seed=2)
        return [tuple(torch.as_tensor(part).long() for part in value[:2]) for value in answer.value or ()]

    def targets(self) -> Result:
        """Row by row, y is what follows the tokens of x."""
        expected, bad = "y[:, t] is the token after x[:, t]", []
        rows = [(x, y) for xs, ys in self.several() for x, y in zip(xs.tolist(), ys.tolist(), strict=True)]
        for x, y in rows:
            ahead = {tuple(self.tokens[s + 1 : s + 1 + self.T].tolist()) for s in self.places[tuple(x)]}
            if tuple(y) not in ahead:
                bad.append((x, y))
        if not bad:
            return Result("targets", PASSED, f"in {len(rows)} of {len(rows)} rows", expected)
        measured = f"in {len(rows) - len(bad)} of {len(rows)} rows"

        def shifted(by):
            return all(
                any(self.tokens[max(s + by, 0) : max(s + by, 0) + self.T].tolist() == y for s in self.places[tuple(x)])
                for x, y in bad
            )

        if all(x == y for x, y in bad):
            cause = known("batch-unshifted")
        elif shifted(2):
            cause = known("batch-two-ahead")
        elif shifted(-1):
            cause = known("batch-one-behind")
        elif all(x[1:] == y[:-1] for x, y in bad):
            cause = known("batch-last-target-wrong")
        elif all(tuple(y) in self.places for _, y in bad):
            cause = known("batch-apart")
        else:
            cause = "the targets are not the next tokens (page 1)"
        return Result("targets", FAILED, measured, expected, cause)

    def fresh(self) -> Result:
        """Batches differ from call to call."""
        expected = "batches differ"
        if self.N - self.T < 8:
            raise CannotLook(f"a text of {self.N} tokens has {self.N - self.T} windows: batches may well be the same")
        batches = [self.draw(3, seed=seed).value or () for seed in (3, 4)]
        batches = [torch.as_tensor(value[0]).clone() for some in batches for value in some]
        if all(torch.equal(batches[0], other) for other in batches[1:]):
            first = [self.places.get(tuple(row), [-1])[0] for row in batches[0].tolist()]
            if 2 * self.x.numel() >= self.N and len({b - a for a, b in pairwise(first)}) <= 1 < len(set(first)):
                raise CannotLook("the batches come in order, and the text holds one of them only")
            return Result("fresh", FAILED, f"{len(batches)} calls give the same batch", expected, known("batch-same"))
        return Result("fresh", PASSED, "they do", expected)

    def rows(self) -> Result:
        """The rows of a batch are different windows."""
        expected = "different windows"
        B = self.x.size(0)
        if B < 2 or self.N - self.T < 8:
            raise CannotLook("a batch of one row, or a text of few windows, has nothing to compare")
        if all((x == x[:1]).all() for x, _ in self.several()):
            return Result("rows", FAILED, f"all {B} rows of a batch are alike", expected, known("batch-rows-alike"))
        return Result("rows", PASSED, "they are", expected)

    def seen_starts(self):
        """The places of many windows in the order in which they came; those at several places are left out."""
        if not hasattr(self, "found"):
            B, S = self.x.size(0), self.N - self.T
            wanted = min(MOST_WINDOWS, int(SURE * S) + 1 if S * SURE <= MOST_WINDOWS else 6000)
            answer = self.draw(max(12, math.ceil(wanted / B)), seed=6)
            if answer.error:
                self.found = answer.error
            else:
                places = [self.places.get(tuple(row), []) for value in answer.value
                          for row in torch.as_tensor(value[0]).tolist()]  # fmt: skip
                self.found = [place[0] for place in places if len(place) == 1]
                self.beyond = sum(not place for place in places)
        return self.found

    def range(self) -> Result:
        """The first window and the last one that has all its targets are drawn too."""
        S, starts = self.N - self.T, self.seen_starts()
        expected = f"starts 0 to {S - 1}"
        if isinstance(starts, str):
            return Result("range", FAILED, f"raises {starts}, now and then", expected, known("batch-start-beyond"))
        if self.beyond:
            return Result("range", FAILED, f"{self.beyond} rows are no windows of the text", expected,
                          known("batch-wraps"))  # fmt: skip
        if not starts:
            raise CannotLook("the windows of this text cannot be told apart: try it with a text that does not repeat")
        if self.split:
            return self.range_of_parts(starts)
        low, high, stride = min(starts), max(starts), _stride(starts)
        measured = f"starts {low} to {high} in {len(starts)} windows"
        if stride > 1 or _in_order(starts):
            return self.in_order(starts, measured, expected, stride)
        once = [start for place in self.places.values() if len(place) == 1 for start in place if start < S]
        # How near to the ends so many draws come, but for one chance in 1e9.
        reach = 0 if len(starts) >= SURE * S else math.ceil(SURE / len(starts) * S)
        if low - min(once) > reach:
            return Result("range", FAILED, measured, expected, known("batch-first-missed"))
        if max(once) - high > reach:
            return Result("range", FAILED, measured, expected, known("batch-last-missed"))
        return Result("range", PASSED, measured, expected if not reach else f"{expected}, within {reach} of the ends")

    def range_of_parts(self, starts) -> Result:
        """Where a function draws from two parts: training begins with the text, and validation ends with it."""
        answer, S = self.draw(1 + len(starts) // self.x.size(0), seed=9, split="val"), self.N - self.T
        rows = [tuple(row) for value in answer.value or () for row in torch.as_tensor(value[0]).tolist()]
        ends = [place[0] for place in (self.places.get(row, []) for row in rows) if len(place) == 1]
        if not ends:
            raise CannotLook("the windows of the validation part are not in these tokens, or cannot be told apart")
        measured, expected = f"starts {min(starts)} to {max(ends)}", f"starts 0 to {S - 1}, the two parts together"
        reach = 0 if min(len(starts), len(ends)) >= SURE * S else math.ceil(SURE / min(len(starts), len(ends)) * S)
        if min(starts) > reach:
            return Result("range", FAILED, measured, expected, known("batch-first-missed"))
        if S - 1 - max(ends) > reach:
            return Result("range", FAILED, measured, expected, known("batch-last-missed"))
        return Result("range", PASSED, measured, expected)

    def in_order(self, starts, measured, expected, stride) -> Result:
        """Windows that come one after another, or shuffled without overlap: are the ends of the text among them?"""
        turned = any(b <= a for a, b in pairwise(starts))
        if not turned:
            raise CannotLook(f"the windows come in order, and {len(starts)} of them did not reach the end of the text")
        low, high, S = min(starts), max(starts), self.N - self.T
        if low > stride:
            return Result("range", FAILED, measured, expected, known("batch-first-missed"))
        if S - 1 - high < stride:
            return Result("range", PASSED, f"{measured}, {stride} apart", f"windows {stride} apart, to the end")
        if S - 1 - high < stride * (self.x.size(0) + 1):
            remark = "the last windows do not fill a batch and are left out"
            return Result(
                "range", DIFFERS, f"{measured}, {stride} apart", f"windows {stride} apart, to the end", remark
            )
        return Result("range", FAILED, measured, expected, known("batch-last-missed"))

    def evenness(self) -> Result:
        """Every start is as likely as any other."""
        starts = self.seen_starts()
        if isinstance(starts, str) or not starts:
            raise CannotLook("there are no starts to count")
        S, expected = self.N - self.T, "every start as often as any other"
        if self.split:
            raise CannotLook("it draws from two parts, whose border is not known here")
        if _in_order(starts) or len(self.places) < S:
            raise CannotLook("the windows come in order, or repeat: their starts cannot be counted")
        groups = min(8, S)
        counts = torch.bincount(torch.tensor(starts) * groups // S, minlength=groups)
        stride = _stride(starts)
        possible = torch.arange(S) if stride == 1 else torch.tensor(sorted(set(starts)))
        sizes = torch.bincount(possible * groups // S, minlength=groups).double()
        measured = f"the text in {groups} parts: {int(counts.min())} to {int(counts.max())} windows"
        if unlikely(counts, sizes / sizes.sum()):
            return Result("evenness", FAILED, measured, expected, known("batch-uneven"))
        return Result("evenness", PASSED, measured, expected)

    def splits(self) -> Result:
        """Windows of the two parts share no token, so no target either."""
        if not self.split:
            raise CannotLook("get_batch takes no split: hold the two parts of your text apart yourself")
        spans, expected = {}, "no token in both"
        for name in ("train", "val"):
            answer = self.draw(200, seed=7, split=name)
            if answer.error:
                raise CannotLook(f"get_batch(split={name!r}) raises {answer.error}")
            rows = [tuple(row) for value in answer.value for row in torch.as_tensor(value[0]).tolist()]
            places = [self.places.get(row, []) for row in rows]
            spans[name] = {s + t for place in places if len(place) == 1 for s in place for t in range(self.T + 1)}
        if not all(spans.values()):
            raise CannotLook("the windows of one part are not in these tokens, or cannot be told apart in them")
        both = spans["train"] & spans["val"]
        if both:
            share = len(both) / len(spans["val"])
            return Result("splits", FAILED, f"{share:.0%} of the validation tokens are trained on", expected,
                          known("batch-splits-overlap"))  # fmt: skip
        return Result("splits", PASSED, "none", expected)

    def memory(self) -> Result:
        """Who writes into a batch writes into nothing else."""
        answer, expected = self.draw(1, seed=8), "x, y and the text are apart"
        if answer.error:
            raise CannotLook(f"get_batch raises {answer.error}")
        value = answer.value[0]
        if not all(isinstance(part, torch.Tensor) for part in value[:2]):
            raise CannotLook("x and y are no tensors")
        x, y = value[:2]
        before = y.clone()
        kept = x.clone()
        try:
            x.add_(1)
        except RuntimeError:  # an expanded tensor, or one of inference mode
            return Result("memory", DIFFERS, "x cannot be written into", expected, "several of its places are one")
        shared = not torch.equal(y, before)
        again = self.draw(1, seed=8).value
        other = again is None or not torch.equal(torch.as_tensor(again[0][0]), kept)
        x.copy_(kept)
        if other and torch.equal(torch.as_tensor(self.draw(1, seed=8).value[0][0]), kept):
            remark = "x is a view of the text: whoever changes a batch in place changes the text"
            return Result("memory", DIFFERS, "writing into x changes later batches", expected, remark)
        if shared:
            remark = "x and y are views of one tensor: right, until somebody changes one of them in place"
            return Result("memory", DIFFERS, "writing into x changes y", expected, remark)
        return Result("memory", PASSED, "they are", expected)


def _batch_error(error: str) -> str:
    if "stack" in error or "size" in error or "index" in error:
        return known("batch-start-beyond")
    return "get_batch stops with an error of its own (page 1)"


def _stride(starts) -> int:
    """The largest step of which all distances between starts are multiples."""
    return math.gcd(*(start - starts[0] for start in starts)) or 1


def _in_order(starts) -> bool:
    """Whether nearly all steps from one window to the next are the same."""
    steps = Counter(b - a for a, b in pairwise(starts))
    (step, often), *_ = steps.most_common(1) or [(0, 0)]
    return step != 0 and often > 0.8 * (len(starts) - 1)


def _batch_version(low=0, high=0, shift=1, start=None, x=lambda w, T: w[:, :T], y=None, rows=16, make=None):
    """A get_batch with one part replaced: windows w (B, T + shift) from starts low..N - T - 1 + high."""

    def get_batch(tokens, block_size, batch_size=rows):
        T, N = block_size, len(tokens)
        starts = start(N, T, batch_size) if start else torch.randint(low, N - T + high, (batch_size,))
        w = torch.stack([tokens[s : s + T + max(shift, 1)] for s in starts.tolist()])
        a, b = x(w, T), (w[:, shift : shift + T] if y is None else y(w, T))
        return (a, b) if make is None else make(a, b)

    return get_batch


def _wraps(tokens, block_size, batch_size=16):
    at = torch.randint(len(tokens), (batch_size, 1)) + torch.arange(block_size + 1)
    w = tokens[at % len(tokens)]
    return w[:, :-1], w[:, 1:]


def _scattered(tokens, block_size, batch_size=16):
    at = torch.randint(len(tokens) - 1, (batch_size, block_size))
    return tokens[at], tokens[at + 1]


def _seeded_batch(tokens, block_size, batch_size=16):
    torch.manual_seed(1337)
    return _batch_version()(tokens, block_size, batch_size)


def _apart(tokens, block_size, batch_size=16):
    x, _ = _batch_version()(tokens, block_size, batch_size)
    return x, _batch_version()(tokens, block_size, batch_size)[1]


def _overlapping(tokens, block_size, split="train"):
    n = int(0.9 * len(tokens))
    part = tokens[:n] if split == "train" else tokens[n - 2 * block_size :]
    return _batch_version()(part, block_size)


def _behind(tokens, block_size, batch_size=16):
    starts = torch.randint(1, len(tokens) - block_size, (batch_size,)).tolist()
    x = torch.stack([tokens[s : s + block_size] for s in starts])
    return x, torch.stack([tokens[s - 1 : s - 1 + block_size] for s in starts])


def _batch(name, words, wrong):
    return Mistake(name, "get_batch", words, "page 1", wrong)


_BATCHES = (
    _batch("batch-unshifted", "the targets are the inputs themselves: y must be x one token further",
           _batch_version(y=lambda w, T: w[:, :T])),
    _batch("batch-two-ahead", "the targets lie two tokens ahead: shifted once here and once more",
           _batch_version(high=-1, shift=2)),
    _batch("batch-one-behind", "the targets lie one token behind: y must be x one token further, not one before",
           _behind),
    _batch("batch-last-target-wrong", "the last target of each row is not the next token of the text: cut T + 1 "
           "tokens, "
           "do not roll or pad x", _batch_version(y=lambda w, T: w[:, :T].roll(-1, dims=1))),
    _batch("batch-apart", "x and y are windows from different places: draw the starts once, and use them for both",
           _apart),
    _batch("batch-scattered", "the tokens of a row are no neighbours: draw where a window starts, not each token",
           _scattered),
    _batch("batch-last-missed", "the last windows are never drawn: the highest start is N - T - 1, so "
           "randint(N - T)", _batch_version(high=-1)),
    _batch("batch-first-missed", "the first windows are never drawn: starts begin at 0", _batch_version(low=1)),
    _batch("batch-start-beyond", "some starts lie too near to the end, where the targets are cut off: the highest is "
           "N - T - 1", _batch_version(high=1)),
    _batch("batch-wraps", "windows run over the end of the text and go on at its beginning", _wraps),
    _batch("batch-same", "every call gives the same batch: a seed is set inside, or the starts are drawn once",
           _seeded_batch),
    _batch("batch-rows-alike", "one start is drawn for all rows: draw one for each",
           _batch_version(start=lambda N, T, B: torch.randint(N - T, (1,)).expand(B))),
    _batch("batch-uneven", "some parts of the text are drawn far more often than others",
           _batch_version(start=lambda N, T, B: (torch.rand(B).square() * (N - T)).long())),
    _batch("batch-dtype", "cross_entropy takes targets in int64 alone, an embedding int32 or int64: .long()",
           _batch_version(make=lambda a, b: (a.to(torch.int16), b.to(torch.int16)))),
    _batch("batch-transposed", "rows and positions are exchanged: stack the windows along dim 0",
           _batch_version(rows=5, make=lambda a, b: (a.T, b.T))),
    _batch("batch-one-short", "rows are one token too short: windows of block_size tokens were cut, not block_size + 1",
           _batch_version(x=lambda w, T: w[:, : T - 1], y=lambda w, T: w[:, 1:T])),
    _batch("batch-last-target-only", "there is one target a row, where each position has its own",
           _batch_version(y=lambda w, T: w[:, T])),
    _batch("batch-splits-overlap", "training and validation share part of the text: cut it once, and draw from the "
           "parts",
           _overlapping),
)  # fmt: skip


# ---- tokenizers

TOKENIZER_CHECKS = ("ids", "round-trip", "symbols", "range", "repeatable", "stable", "strangers", "empty")
STRANGERS = "☃Ж🙂\u0e01"  # a snowman and others: some are strange to any small text


def check_tokenizer(encode, decode, text: str, vocab_size: int | None = None) -> Report:
    """Whether encode(text) gives token ids and decode(ids) the same text again, also in another run of Python.

    Ids must lie below `vocab_size`, where it is given. Raises TypeError or ValueError for a text that is none.
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be a str, got a {type(text).__name__}")
    if not text:
        raise ValueError("an empty text tells nothing about a tokenizer")
    return _Tokenizer(encode, decode, text[:200_000], vocab_size).report()


class _Odd(Exception):
    """What came back is not what was asked for; in words."""


class _Tokenizer:
    """A reader's two functions, and what they made of a text."""

    def __init__(self, encode, decode, text, V):
        self.encode, self.decode, self.text, self.V = encode, decode, text, V

    def ids_of(self, text) -> list[int]:
        answer = ask(self.encode, text)
        if answer.error:
            raise _Odd(f"encode raises {answer.error}")
        ids = answer.value
        try:
            ids = ids.ids if hasattr(ids, "ids") else ids  # as Hugging Face's tokenizers return them
            ids = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        except TypeError:
            raise _Odd(f"encode returns a {type(ids).__name__}") from None
        for i in ids:
            if isinstance(i, bool) or not isinstance(i, int):
                raise _Odd(f"encode returns {type(i).__name__}, {str(i)[:20]!r}, among its ids")
        return ids

    def text_of(self, ids) -> str:
        answer = ask(self.decode, list(ids))
        if answer.error:
            raise _Odd(f"decode raises {answer.error}")
        if not isinstance(answer.value, str):
            raise _Odd(f"decode returns a {type(answer.value).__name__}")
        return answer.value

    def report(self) -> Report:
        try:
            self.ids = self.ids_of(self.text)
        except _Odd as odd:
            cause = known("tokenizer-no-numbers")
            if "raises" in str(odd):
                lookup = any(f"raises {kind}" in str(odd) for kind in ("KeyError", "ValueError", "IndexError"))
                cause = known("tokenizer-of-a-part") if lookup else "encode stops at the text (page 1)"
            first = Result("ids", FAILED, str(odd), "a list of whole numbers", cause)
            return Report((first, *blocked(TOKENIZER_CHECKS[1:], "ids")))
        self.letters = sorted(set(self.text))
        self.is_char = len(self.ids) == len(self.text)
        kind = "one for each character" if self.is_char else f"for {len(self.text)} characters"
        results = [Result("ids", PASSED, f"{len(self.ids)} ids, {kind}", "a list of whole numbers")]
        for name in TOKENIZER_CHECKS[1:]:
            try:
                results.append(getattr(self, name.replace("-", "_"))())
            except _Odd as odd:
                results.append(Result(name, FAILED, str(odd), "text to ids and back", "it stops there (page 1)"))
            except CannotLook as reason:
                results.append(Result(name, NOT_CHECKED, cause=str(reason)))
            except Exception as error:  # an answer that nobody foresaw is no pass
                results.append(Result(name, NOT_CHECKED, cause=f"the check was stopped by {one_line(error)}"))
        return Report(results)

    def round_trip(self) -> Result:
        """decode(encode(text)) is the text."""
        expected = "the same text"
        try:
            back = self.text_of(self.ids)
        except _Odd as odd:
            if "returns" in str(odd):
                return Result("round-trip", FAILED, str(odd), expected, known("tokenizer-no-text"))
            return Result("round-trip", FAILED, str(odd), expected, self.lost(None))
        if back == self.text:
            return Result("round-trip", PASSED, f"the same {len(back)} characters", expected)
        where = next((i for i, (a, b) in enumerate(zip(back, self.text, strict=False)) if a != b),
                     min(len(back), len(self.text)))  # fmt: skip
        if self.is_char and len(back) == len(self.text) and "\ufffd" not in self.text:
            lost = {b for a, b in zip(self.text, back, strict=True) if a != b}
            if lost == {"\ufffd"}:
                share = back.count("\ufffd")
                remark = "rare characters have no number of their own, and come back as the sign for unknown ones"
                return Result("round-trip", DIFFERS, f"{share} characters come back as \ufffd", expected, remark)
        measured = f"{self.text[where : where + 12]!r} came back as {back[where : where + 12]!r}, at character {where}"
        return Result("round-trip", FAILED, measured, expected, self.lost(back))

    def lost(self, back) -> str:
        """What happened to the text on its way, in words."""
        if back is None:
            return known("tokenizer-decodes-one-off") if self.is_char else "ids come that decode does not know (page 1)"
        text, candidates = self.text, (
            (lambda t: t.lower(), "tokenizer-lowers"),
            (lambda t: t.upper(), "tokenizer-lowers"),
            (lambda t: t.strip(), "tokenizer-strips"),
            (lambda t: " ".join(t.split()), "tokenizer-strips"),
            (lambda t: "".join(t.split()), "tokenizer-strips"),
            (lambda t: t.replace("\n", ""), "tokenizer-drops-line-ends"),
            (lambda t: t.replace("\n", " "), "tokenizer-drops-line-ends"),
            (lambda t: t.replace("\r\n", "\n"), "tokenizer-drops-line-ends"),
            (lambda t: t.encode("ascii", "ignore").decode(), "tokenizer-ascii"),
            (lambda t: t.encode("ascii", "replace").decode(), "tokenizer-ascii"),
            (lambda t: t[::-1], "tokenizer-reverses"),
        )  # fmt: skip
        for change, name in candidates:
            if change(text) == back:
                return known(name)
        if back.replace(" ", "") == text.replace(" ", "") and len(back) > len(text):
            return known("tokenizer-joins-with-spaces")
        if "\ufffd" in back and "\ufffd" not in text:
            return known("tokenizer-bytes-one-by-one")
        if self.is_char and len(back) == len(text):
            pairs = set(zip(text, back, strict=True))
            turned = dict(pairs)
            if len(set(self.ids)) < len(self.letters):
                return known("tokenizer-wraps" if max(self.ids) == 255 else "tokenizer-shares-ids")
            if len(pairs) == len(turned):
                return known("tokenizer-decodes-one-off")
        return "encode and decode do not undo each other (page 1)"

    def symbols(self) -> Result:
        """Every character of the text comes back by itself, too."""
        expected, lost = "each character by itself", {}
        for letter in self.letters[:2000]:
            try:
                back = self.text_of(self.ids_of(letter))
            except _Odd as odd:
                back = str(odd)
            if back != letter and back != "\ufffd":  # that sign says itself that something is lost
                lost[letter] = back
        if not lost:
            return Result("symbols", PASSED, f"all {len(self.letters)} come back", expected)
        letter, back = next(iter(lost.items()))
        measured = f"{len(lost)} of {len(self.letters)} do not: {letter!r} becomes {back[:60]!r}"
        cause = self.lost(self.text_of(self.ids)) if self.text_of(self.ids) != self.text else known("tokenizer-anew")
        if not self.is_char and self.text_of(self.ids) == self.text:
            return Result("symbols", DIFFERS, measured, expected, "the whole text comes back; this only by itself not")
        return Result("symbols", FAILED, measured, expected, cause)

    def range(self) -> Result:
        """Ids are 0..V-1, so that they are rows of an embedding."""
        low, high, distinct = min(self.ids), max(self.ids), len(set(self.ids))
        V = self.V or len(self.letters)
        measured, expected = f"ids {low} to {high}, {distinct} different", "0 to V - 1"
        if low < 0:
            return Result("range", FAILED, measured, expected, known("tokenizer-negative"))
        if self.V is not None:
            if high >= self.V:
                return Result("range", FAILED, measured, f"0 to {self.V - 1}", known("tokenizer-from-one"))
            return Result("range", PASSED, measured, f"0 to {self.V - 1}")
        if not self.is_char:
            return Result("range", PASSED, measured, expected, "whether they lie below V depends on the model's table")
        if low == 1 and high == distinct == V and ask(self.decode, [0]).error:
            return Result("range", FAILED, measured, expected, known("tokenizer-from-one"))
        if high >= 4 * V + 300:
            remark = f"an embedding needs {high + 1} rows for {V} characters"
            return Result("range", DIFFERS, measured, expected, remark)
        remark = "" if high < V else f"more ids than the {V} characters of this text, as with special tokens"
        return Result("range", PASSED, measured, expected, remark)

    def repeatable(self) -> Result:
        """The same text gives the same ids, whatever was encoded in between."""
        expected = "the same ids again"
        few = self.text[:1000]
        first = self.ids_of(few)
        for symbol in self.letters[:3]:
            self.ids_of(symbol)
        if self.ids_of(few) != first:
            return Result("repeatable", FAILED, "other ids the second time", expected, known("tokenizer-anew"))
        if self.is_char:
            number = dict(zip(self.text, self.ids, strict=True))
            for symbol in self.letters:
                alone = self.ids_of(symbol)
                if alone != [number[symbol]]:
                    measured = f"{symbol!r} is {number[symbol]} within the text and {str(alone)[:30]} by itself"
                    return Result("repeatable", FAILED, measured, expected, known("tokenizer-anew"))
        return Result("repeatable", PASSED, "the same", expected)

    def stable(self) -> Result:
        """The numbers are the same in every run of Python: the order of a set of strings is not."""
        expected = "the same ids in every run of Python"
        if not self.is_char:
            return self.stable_elsewhere(expected)
        number = dict(zip(self.text, self.ids, strict=True))
        order = sorted(number, key=number.get)
        counts = Counter(self.text)
        sure = {
            "their place in Unicode": sorted(number),
            "their place in Unicode, from the end": sorted(number, reverse=True),
            "the order in which they first come": list(dict.fromkeys(self.text)),
            "their frequency": [symbol for symbol, _ in counts.most_common()],
            "their frequency, then Unicode": sorted(number, key=lambda s: (-counts[s], s)),
        }
        of_sets = [list(set(self.text)), list(frozenset(self.text)), list(set(self.letters))]
        if order in of_sets and len(order) > 1:
            how = next((how for how, known_order in sure.items() if order == known_order), None)
            if how is None or len(order) < 8:
                if how is None:
                    return Result("stable", FAILED, "numbered in the order of a set", expected, known("tokenizer-set"))
                return self.stable_elsewhere(expected)
        if all(i == ord(symbol) for symbol, i in number.items()):
            return Result("stable", PASSED, "numbered by ord()", expected)
        size = max(self.ids) + 1
        if len(number) > 4 and all(hash(s) % m == i for m in (size, len(number)) for s, i in number.items()):
            return Result("stable", FAILED, "numbered by hash()", expected, known("tokenizer-set"))
        for how, known_order in sure.items():
            if order == known_order and len(order) > 4:
                return Result("stable", PASSED, f"numbered by {how}", expected)
        return self.stable_elsewhere(expected)

    def stable_elsewhere(self, expected) -> Result:
        """Run the reader's file twice, with other hashes, and compare."""
        if all(i == b for i, b in zip(self.ids, self.text.encode(), strict=False)) and len(self.ids) == len(
            self.text.encode()
        ):
            return Result("stable", PASSED, "the ids are the bytes of UTF-8", expected)
        place = _place(self.encode)
        if place is None:
            raise CannotLook(
                "from these ids it cannot be told, and the function is in no file that could be run again: build the "
                "vocabulary from sorted(set(text)), never from the set itself"
            )
        outputs = []
        for seed in ("1", "2"):
            run = [sys.executable, "-c", _RUN, str(place[0]), place[1], self.text[:2000]]
            try:
                done = subprocess.run(
                    run, capture_output=True, encoding="utf-8", timeout=60, cwd=Path(place[0]).parent, check=True,
                    env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
                )  # fmt: skip
            except (subprocess.SubprocessError, OSError) as error:
                raise CannotLook(f"its file could not be run again: {one_line(error)}") from None
            outputs.append(done.stdout.strip().rpartition("\n")[2])
        if outputs[0] != outputs[1]:
            return Result("stable", FAILED, "two runs of Python give other ids", expected, known("tokenizer-set"))
        return Result("stable", PASSED, "two runs of Python give the same ids", expected)

    def strangers(self) -> Result:
        """A character that the text does not have is refused, or stands out."""
        expected = "an error that names it, an id of its own, or its bytes"
        stranger = next((s for s in STRANGERS if s not in self.text), None)
        if stranger is None:
            raise CannotLook("this text has every character that would be tried")
        try:
            ids = self.ids_of(self.letters[0] + stranger)
        except _Odd as odd:
            if "raises" in str(odd):
                return Result("strangers", PASSED, str(odd), expected)
            return Result("strangers", FAILED, str(odd), expected, known("tokenizer-drops-strangers"))
        rest = ids[len(self.ids_of(self.letters[0])) :]
        if not rest:
            return Result("strangers", FAILED, f"{stranger!r} gives no id", expected,
                          known("tokenizer-drops-strangers"))  # fmt: skip
        back = self.text_of(rest)
        if back != "?" and back in self.letters:
            return Result("strangers", FAILED, f"{stranger!r} becomes {back!r}", expected,
                          known("tokenizer-takes-strangers"))  # fmt: skip
        if not back:
            return Result("strangers", DIFFERS, f"{stranger!r} gets an id and comes back as nothing", expected, "")
        return Result("strangers", PASSED, f"{stranger!r} comes back as {back!r}", expected)

    def empty(self) -> Result:
        """An empty text has no ids, and no ids are an empty text."""
        expected = "[] and ''"
        try:
            ids, text = self.ids_of(""), self.text_of([])
        except _Odd as odd:
            return Result("empty", DIFFERS, str(odd), expected, "an empty prompt cannot be encoded")
        if ids or text:
            return Result("empty", DIFFERS, f"{ids[:5]} and {text[:20]!r}", expected, "as with a token for the start")
        return Result("empty", PASSED, "[] and ''", expected)


_RUN = (
    "import runpy, sys\n"
    "path, name, text = sys.argv[1:]\n"
    "ids = runpy.run_path(path)[name](text)\n"
    "ids = getattr(ids, 'ids', ids)\n"
    "print()\nprint(ids.tolist() if hasattr(ids, 'tolist') else list(ids))\n"
)


def _place(function) -> tuple[str, str] | None:
    """The file of a function of a module, and its name there."""
    code, names = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    path = getattr(code, "co_filename", "")
    if not path.endswith(".py") or not Path(path).is_file() or names.get("__file__") != path:
        return None
    name = next((name for name, value in names.items() if value is function), None)
    return None if name is None else (str(Path(path).resolve()), name)


def _table(text, order=sorted, start=0):
    symbols = order(set(text))
    return {symbol: i for i, symbol in enumerate(symbols, start)}, dict(enumerate(symbols, start))


def _coding(prepare=lambda t: t, order=sorted, start=0, put=lambda i: i, find=None, get=lambda i: i, joint=""):
    """What makes, of a text, a pair encode, decode with one part replaced."""

    def make(text):
        numbers, symbols = _table(prepare(text), order, start)
        look = find or (lambda table, symbol: table[symbol])

        def encode(text):
            ids = (look(numbers, symbol) for symbol in prepare(text))
            return [put(i) for i in ids if i is not None]

        return encode, lambda ids: joint.join(symbols[get(i)] for i in ids)

    return make


def _anew(text):
    _, symbols = _table(text)
    return lambda t: [_table(t)[0][c] for c in t], lambda ids: "".join(symbols[i] for i in ids)


def _bytes_apart(text):
    return lambda t: list(t.encode()), lambda ids: "".join(bytes([i]).decode("utf-8", "replace") for i in ids)


def _reversing(text):
    numbers, symbols = _table(text)
    return lambda t: [numbers[c] for c in t], lambda ids: "".join(symbols[i] for i in reversed(ids))


def _listing(text):
    encode, _ = _coding()(text)
    _, symbols = _table(text)
    return encode, lambda ids: [symbols[i] for i in ids]


def _token(name, words, make):
    return Mistake(name, "tokenizer", words, "page 1", make)


_TOKENIZERS = (
    _token("tokenizer-set", "the numbers follow the order of a set, or hash(), which every run of Python orders anew: "
           "sorted(set(text))", _coding(order=list)),
    _token("tokenizer-of-a-part", "a character of the text has no number: the vocabulary was made from a part of it",
           lambda text: _coding()(text[: text.index(text[-1])])),
    _token("tokenizer-no-numbers", "ids must be a list of whole numbers, rows of an embedding",
           _coding(put=str, get=int)),
    _token("tokenizer-no-text", "decode must join the pieces to one str", _listing),
    _token("tokenizer-lowers", "capital and small letters become the same", _coding(prepare=str.lower)),
    _token("tokenizer-strips", "spaces or line ends are cut off or pressed together",
           _coding(prepare=lambda t: " ".join(t.split()))),
    _token("tokenizer-drops-line-ends", "line ends are lost or become something else",
           _coding(prepare=lambda t: t.replace("\n", ""))),
    _token("tokenizer-ascii", "characters outside of ASCII are lost",
           _coding(prepare=lambda t: t.encode("ascii", "ignore").decode())),
    _token("tokenizer-reverses", "the text comes back from its end to its beginning", _reversing),
    _token("tokenizer-joins-with-spaces", "the pieces are joined with spaces, where nothing belongs between them",
           _coding(joint=" ")),
    _token("tokenizer-bytes-one-by-one", "bytes are decoded one by one: a character of several bytes is lost, so join "
           "them first", _bytes_apart),
    _token("tokenizer-shares-ids", "two characters have the same number",
           _coding(put=lambda i: max(i, 2))),
    _token("tokenizer-decodes-one-off", "decode counts otherwise than encode: its table begins one further",
           _coding(get=lambda i: i - 1 if i else 1)),
    _token("tokenizer-from-one", "the highest id is V: an embedding of V rows ends at V - 1, so count from 0",
           _coding(start=1)),
    _token("tokenizer-negative", "an id below 0 counts from the end of the table in Python, and is no row of an "
           "embedding",
           _coding(start=-1)),
    _token("tokenizer-anew", "the numbers depend on what is encoded: make the vocabulary once, outside of encode",
           _anew),
    _token("tokenizer-drops-strangers", "a character without a number is dropped in silence: raise an error that "
           "names it",
           _coding(find=lambda table, symbol: table.get(symbol))),
    _token("tokenizer-takes-strangers", "a character without a number becomes another character in silence: raise an "
           "error that names it", _coding(find=lambda table, symbol: table.get(symbol, 0))),
    _token("tokenizer-wraps", "ids above 255 wrap in uint8: store them wider",
           lambda text: _coding(put=lambda i: i % 256)(text)),
)  # fmt: skip


# ---- optimizers

OPTIMIZER_CHECKS = ("parameters", "no-strangers", "once", "weight-decay", "learning-rate", "state")


def check_optimizer(model: nn.Module, optimizer) -> Report:
    """Whether an optimizer, or several in a list, moves every trainable parameter of `model`, each once.

    What decays is looked at, too: biases and gains should not, and the book lets embeddings alone as well. Nothing is
    called, and no step is taken. Raises TypeError for a model or an optimizer that is none.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got a {type(model).__name__}")
    optimizers = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
    groups = [group for one in optimizers for group in getattr(one, "param_groups", ())]
    if not groups:
        raise TypeError(f"optimizer must have param_groups, as torch.optim's have, got a {type(optimizer).__name__}")
    return _Optimizer(model, optimizers, groups).report()


class _Optimizer:
    """The parameters of a model by name, and in which groups they are."""

    def __init__(self, model, optimizers, groups):
        self.optimizers, self.groups = optimizers, groups
        self.names = {id(p): name for name, p in model.named_parameters()}
        self.own = {id(p): p for p in model.parameters()}
        self.held = Counter(id(p) for group in groups for p in group["params"])
        self.tensors = {id(p): p for group in groups for p in group["params"]}
        self.group_of = {id(p): group for group in groups for p in group["params"]}
        owners = [(m, p) for m in model.modules() for p in m.parameters(recurse=False)]
        self.embeddings = {id(p) for m, p in owners if isinstance(m, nn.Embedding)}
        self.embeddings |= {i for i, name in self.names.items() if "emb" in name.lower() or "wpe" in name.lower()
                            if self.own[i].dim() > 1}  # fmt: skip
        self.small = {i for i, p in self.own.items() if p.dim() < 2}
        self.trainable = {i for i, p in self.own.items() if p.requires_grad}
        self.missing = [i for i in self.trainable if i not in self.held]
        self.strange = [i for i in self.held if i not in self.own]

    def report(self) -> Report:
        names = [getattr(self, name.replace("-", "_")) for name in OPTIMIZER_CHECKS]
        results = []
        for name, question in zip(OPTIMIZER_CHECKS, names, strict=True):
            try:
                results.append(question())
            except CannotLook as reason:
                results.append(Result(name, NOT_CHECKED, cause=str(reason)))
            except Exception as error:  # an answer that nobody foresaw is no pass
                results.append(Result(name, NOT_CHECKED, cause=f"the check was stopped by {one_line(error)}"))
        return Report(results)

    def some(self, ids) -> str:
        names = [self.names[i] for i in self.names if i in set(ids)]
        return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")

    def no_strangers(self) -> Result:
        """No tensor of the optimizer is one that the model does not have."""
        expected = "parameters of this model alone"
        if not self.strange:
            return Result("no-strangers", PASSED, f"all {len(self.held)} are the model's", expected)
        measured = f"{len(self.strange)} of {len(self.held)} tensors are not the model's"
        return Result("no-strangers", FAILED, measured, expected, self.why_strange())

    def why_strange(self) -> str:
        if len(self.strange) == len(self.held):
            return known("optimizer-other-model")
        return known("optimizer-stale")

    def parameters(self) -> Result:
        """Every trainable parameter is in a group."""
        expected = "every trainable parameter is in a group"
        measured = f"{len(self.trainable) - len(self.missing)} of {len(self.trainable)} are"
        if not self.trainable:
            raise CannotLook("every parameter of the model is frozen")
        if not self.missing:
            frozen = [i for i in self.held if i in self.own and i not in self.trainable]
            remark = f"frozen, and in a group without effect: {self.some(frozen)}" if frozen else ""
            return Result("parameters", PASSED, measured, expected, remark)
        missing, small = set(self.missing), self.small & self.trainable
        if self.strange:
            cause = self.why_strange()
        elif missing == small:
            cause = known("optimizer-no-second-group")
        elif missing <= self.embeddings:
            cause = known("optimizer-no-embeddings")
        elif len(self.held) <= 2:
            cause = known("optimizer-head-only")
        else:
            cause = known("optimizer-part-missing")
        return Result("parameters", FAILED, measured, expected, f"{cause}: {self.some(self.missing)}")

    def once(self) -> Result:
        """No parameter is held twice: it would be moved twice a step."""
        expected, twice = "each parameter once", [i for i, count in self.held.items() if count > 1]
        if twice:
            shown = self.some(twice) or f"{len(twice)} tensors"
            return Result("once", FAILED, f"{len(twice)} are held more than once: {shown}", expected,
                          known("optimizer-twice"))  # fmt: skip
        return Result("once", PASSED, "each once", expected)

    def weight_decay(self) -> Result:
        """Matrices may decay; biases and gains do not."""
        expected = "matrices decay, biases and gains do not"
        ours = {i for i in self.held if i in self.own}
        decays = {i for i in ours if self.group_of[i].get("weight_decay", 0)}
        if not ours:
            raise CannotLook("it holds no parameter of this model")
        if not decays:
            return Result("weight-decay", PASSED, "nothing decays", expected)
        matrices = ours - self.small - self.embeddings
        values = sorted({self.group_of[i]["weight_decay"] for i in decays})
        measured = f"{len(decays)} of {len(ours)} tensors decay, by {', '.join(f'{v:g}' for v in values)}"
        if decays & self.small:
            if matrices and not decays & matrices:
                cause = known("optimizer-decay-exchanged")
            elif decays == ours:
                cause = known("optimizer-decays-all")
            else:
                cause = f"{known('optimizer-decays-small')}: {self.some(decays & self.small)}"
            return Result("weight-decay", FAILED, measured, expected, cause)
        if decays & self.embeddings:
            remark = "embeddings decay as well, as in GPT-2's descendants; the book lets them alone: "
            return Result("weight-decay", DIFFERS, measured, expected, remark + self.some(decays & self.embeddings))
        if matrices - decays:
            remark = f"not all matrices decay: {self.some(matrices - decays)} do not"
            return Result("weight-decay", DIFFERS, measured, expected, remark)
        return Result("weight-decay", PASSED, measured, expected)

    def learning_rate(self) -> Result:
        """Every group has a learning rate above 0."""
        rates = [float(group["lr"]) for group in self.groups if "lr" in group and len(group["params"])]
        if not rates:
            raise CannotLook("its groups have no lr")
        measured, expected = f"{min(rates):g} to {max(rates):g}", "finite, above 0"
        if not all(math.isfinite(rate) and rate >= 0 for rate in rates):
            return Result("learning-rate", FAILED, measured, expected, "no step can be taken with that (page 9)")
        if min(rates) == 0:
            remark = "a group stands still at 0, unless a schedule sets it before each step"
            return Result("learning-rate", DIFFERS, measured, expected, remark)
        return Result("learning-rate", PASSED, measured, expected)

    def state(self) -> Result:
        """What it keeps of past gradients lies where the parameters lie, in their shape."""
        expected, seen = "of the parameter's shape, on its device", 0
        for one in self.optimizers:
            for p, kept in getattr(one, "state", {}).items():
                if not isinstance(p, torch.Tensor) or id(p) not in self.own or not isinstance(kept, dict):
                    continue
                for name, value in kept.items():
                    if isinstance(value, torch.Tensor) and value.dim() and name in ("exp_avg", "exp_avg_sq"):
                        seen += 1
                        if value.shape != p.shape or value.device != p.device:
                            measured = f"{name} of {self.names[id(p)]}: {tuple(value.shape)} on {value.device}"
                            return Result("state", FAILED, measured, expected, known("optimizer-stale"))
        if not seen:
            raise CannotLook("it has taken no step yet, so it keeps nothing")
        return Result("state", PASSED, f"{seen} tensors do", expected)


def _adamw(choose):
    """What makes an optimizer for a model from the groups that `choose` gives."""
    return lambda model: torch.optim.AdamW(choose(model), lr=1e-3)


def _grouped(model, decays, rest=lambda p: True, decay=0.1):
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    first = [p for n, p in named if decays(n, p)]
    second = [p for n, p in named if not decays(n, p) and rest(p)]
    groups = [{"params": first, "weight_decay": decay}, {"params": second, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _stale(model):
    optimizer = _adamw(lambda m: _grouped(m, lambda n, p: False))(model)
    name, old = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)][-1]
    parent = model.get_submodule(name.rpartition(".")[0])
    new = nn.Linear(old.in_features, old.out_features, bias=old.bias is not None)
    setattr(parent, name.rpartition(".")[2], new)
    return optimizer


def _copied(model):
    return torch.optim.AdamW([p.detach().clone().requires_grad_() for p in model.parameters()], lr=1e-3)


def _twice(model):
    first = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    last = list(model.parameters())[-1]
    return [first, torch.optim.AdamW([last], lr=1e-3, weight_decay=0.0)]


def _is_embedding(name, p):
    return "wte" in name or "wpe" in name or "emb" in name


def _groups(name, words, make):
    return Mistake(name, "optimizer", words, "page 9", make)


_OPTIMIZERS = (
    _groups("optimizer-head-only", "the last layer alone is trained: give it model.parameters()",
            lambda model: torch.optim.AdamW(list(model.parameters())[-1:], lr=1e-3, weight_decay=0.0)),
    _groups("optimizer-no-second-group", "biases and gains are in no group: those that do not decay need one of their "
            "own", _adamw(lambda m: _grouped(m, lambda n, p: p.dim() > 1, rest=lambda p: False))),
    _groups("optimizer-no-embeddings", "the embeddings are in no group",
            _adamw(lambda m: [{"params": [p for n, p in m.named_parameters() if not _is_embedding(n, p)],
                               "weight_decay": 0.0}])),
    _groups("optimizer-part-missing", "parameters that never reach the optimizer stay as they were drawn",
            _adamw(lambda m: [{"params": [p for n, p in m.named_parameters() if ".0." not in n],
                               "weight_decay": 0.0}])),
    _groups("optimizer-other-model", "it holds another model's parameters: made for a copy, or before the model was "
            "built anew", _copied),
    _groups("optimizer-stale", "it was made before a part of the model was replaced, tied or moved: make it last",
            _stale),
    _groups("optimizer-twice", "a parameter that is held twice is moved twice in each step", _twice),
    _groups("optimizer-decays-all", "everything decays, biases and gains too: AdamW lets all decay that it is given, "
            "by "
            "0.01 if it is not told otherwise", _adamw(lambda m: m.parameters())),
    _groups("optimizer-decays-small", "biases or gains decay: they need a group with weight_decay 0",
            _adamw(lambda m: _grouped(m, lambda n, p: p.dim() > 1 or n.endswith("bias")))),
    _groups("optimizer-decay-exchanged", "the groups are exchanged: biases and gains decay, matrices do not",
            _adamw(lambda m: _grouped(m, lambda n, p: p.dim() < 2))),
)  # fmt: skip


# ---- schedules

SCHEDULE_CHECKS = ("numbers", "pure", "warm-up", "peak", "decay", "end", "after-the-end")


def check_schedule(lr_at, warmup: int, total: int) -> Report:
    """Whether lr_at(step), step counted from 0, rises for `warmup` steps and then falls, or stays, up to `total`.

    A function that asks for warmup and total is given them. Raises ValueError unless 0 <= warmup < total.
    """
    for name, value in (("warmup", warmup), ("total", total)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be a whole number, got {value!r}")
    if not 0 <= warmup < total:
        raise ValueError(f"warmup must be at least 0 and below total, got {warmup} and {total}")
    try:
        return _Schedule(lr_at, warmup, total).report()
    except CannotLook as reason:
        return missed(SCHEDULE_CHECKS, str(reason))
    except Exception as error:  # an answer that nobody foresaw is no pass
        return missed(SCHEDULE_CHECKS, f"the check was stopped by {one_line(error)}")


class _Schedule:
    """A reader's schedule, and the learning rates that it gave."""

    def __init__(self, lr_at, warmup: int, total: int):
        self.lr_at, self.w, self.n = lr_at, warmup, total
        spare = dict.fromkeys(("warmup", "warmup_steps", "warmup_iters"), warmup)
        spare |= dict.fromkeys(("total", "total_steps", "max_steps", "steps", "max_iters", "lr_decay_iters"), total)
        spare |= {"max_lr": 1e-3, "learning_rate": 1e-3, "lr": 1e-3, "min_lr": 1e-4, "min_learning_rate": 1e-4}
        self.signature = Signature(lr_at, ("step",), spare)

    def rates(self, steps) -> list:
        """The learning rates at these steps; an error in words where it stops."""
        calls = [self.signature.arguments(step=step) for step in steps]

        def run():
            out = []
            for first, named in calls:
                try:
                    out.append(self.lr_at(*first, **named))
                except Exception as error:
                    out.append(one_line(error))
            return out

        answer = ask(run)
        if answer.error:
            return [answer.error] * len(calls)
        return [_float(value) for value in answer.value]

    def report(self) -> Report:
        n = self.n
        self.r = self.rates(range(n))
        expected = f"a number above 0 for each step 0 to {n - 1}"
        odd = next((i for i, rate in enumerate(self.r) if not isinstance(rate, float)), None)
        if odd is not None:
            measured = f"step {odd}: {self.r[odd]}"
            first = Result("numbers", FAILED, measured, expected, "lr_at returns one float a step (page 9)")
            return Report((first, *blocked(SCHEDULE_CHECKS[1:], "numbers")))
        self.high = max(self.r)
        self.top = self.r.index(self.high)
        self.beyond = self.rates([n, n + 1, n + 7, 2 * n])
        bad = next((i for i, rate in enumerate(self.r) if not math.isfinite(rate) or rate < 0), None)
        if bad is not None or self.high <= 0:
            first = Result("numbers", FAILED, f"step {bad or 0}: {self.r[bad or 0]:g}", expected, self.cause())
            return Report((first, *blocked(SCHEDULE_CHECKS[1:], "numbers")))
        results = [Result("numbers", PASSED, f"{min(self.r):g} to {self.high:g}", expected)]
        results += [self.pure(), self.warm_up(), self.peak(), self.decay(), self.end(), self.after_the_end()]
        return Report(results)

    def close(self, a, b) -> bool:
        return abs(a - b) <= 1e-6 * self.high

    def cause(self, fallback: str = "no known mistake explains it") -> str:
        """The known wrong version with the same curve."""
        mistake = self.same_curve(m for m in _SCHEDULES if m.name not in _AFTER_THE_RUN)
        if mistake:
            return f"the curve is that of this version: {mistake.cause}"
        return fallback if fallback.endswith(")") else f"{fallback} (page 9)"

    def same_curve(self, mistakes) -> Mistake | None:
        """The first of the known wrong versions that gives these rates, with the same peak and whatever lowest rate."""
        high, finite = max(self.r), all(map(math.isfinite, self.r))
        if not finite or high <= 0:
            return None
        for mistake in mistakes:
            try:
                flat, steep = (
                    [mistake.wrong(i, self.w, self.n, high, low) for i in range(self.n)] for low in (high, 0)
                )
            except (ValueError, ZeroDivisionError, OverflowError):
                continue
            # Curves are linear in the lowest rate, so the step where it matters most tells what it was.
            at = max(range(self.n), key=lambda i: abs(flat[i] - steep[i]))
            share = (self.r[at] - steep[at]) / (flat[at] - steep[at]) if flat[at] != steep[at] else 0.0
            if not -1e-6 <= share < 0.999:  # with 1 every curve is flat
                continue
            curve = [share * a + (1 - share) * b for a, b in zip(flat, steep, strict=True)]
            if all(abs(a - b) <= 1e-6 * high for a, b in zip(self.r, curve, strict=True)):
                return mistake
        return None

    def pure(self) -> Result:
        """The same step gives the same number, in whatever order it is asked."""
        steps = sorted({0, self.w, self.n // 2, self.n - 1}, reverse=True)
        again, expected = self.rates(steps), "the same number for the same step"
        for step, rate in zip(steps, again, strict=True):
            if not isinstance(rate, float) or not self.close(rate, self.r[step]):
                return Result("pure", FAILED, f"step {step}: {self.r[step]:g}, then {rate}", expected,
                              known("schedule-remembers"))  # fmt: skip
        return Result("pure", PASSED, "the same", expected)

    def warm_up(self) -> Result:
        """From above zero the rate rises with every step of the warm-up."""
        r, w = self.r, self.w
        if not w:
            return Result("warm-up", NOT_CHECKED, cause="there is none: a warm-up of 0 steps was asked for")
        rising = r[: w + 1] if self.top >= w else r[:w]
        measured = f"{r[0]:g} at step 0, {r[w - 1]:g} at step {w - 1}, {r[w]:g} at step {w}"
        expected = f"above 0, then rising to the peak at step {w - 1} or {w}"
        if r[0] == 0:
            cause = self.cause(known("schedule-starts-at-zero"))
            return Result("warm-up", FAILED, measured, expected, cause)
        falls = any(b < a * (1 - 1e-9) for a, b in pairwise(rising))
        # A floor under the first steps is no fault, but most of the way must rise.
        if w > 1 and (
            falls
            or self.close(r[0], self.high)
            or len({round(rate / self.high, 9) for rate in rising}) <= len(rising) / 3
        ):
            flat = self.close(r[0], self.high)
            fallback = known("schedule-no-warm-up") if flat else "it does not rise with every step of the warm-up"
            return Result("warm-up", FAILED, measured, expected, self.cause(fallback))
        steps = [b - a for a, b in pairwise(rising)]
        if steps and max(steps) > 1.5 * min(steps) and not self.close(max(steps), min(steps)):
            return Result("warm-up", PASSED, measured, expected, "it rises, though not in equal parts")
        return Result("warm-up", PASSED, measured, expected)

    def peak(self) -> Result:
        """The highest rate is reached where the warm-up ends, and the fall begins without a jump."""
        r, w = self.r, self.w
        expected = f"the highest rate at step {w}" + (f" or {w - 1}" if w else "")
        measured = f"{self.high:g} at step {self.top}"
        if not any(self.close(r[i], self.high) for i in (max(w - 1, 0), w)):
            return Result(
                "peak", FAILED, measured, expected, self.cause("the warm-up ends elsewhere, or is passed over")
            )
        if w and self.n - w > 4:
            fall, after = r[w - 1] - r[w], max(r[w] - r[w + 1], r[w + 1] - r[w + 2], 0)
            known_jump = w > 1 and self.same_curve(m for m in _SCHEDULES if m.name == "schedule-decay-from-step-0")
            if known_jump or (fall > 3 * after + 1e-6 * self.high and not self.close(r[w], self.high)):
                cause = self.cause("the rate jumps where the warm-up ends")
                return Result("peak", FAILED, f"{measured}, then {r[w]:g}", "no jump after it", cause)
        return Result("peak", PASSED, measured, expected)

    def decay(self) -> Result:
        """After the peak the rate never rises."""
        start = max(self.top, self.w)
        rises = [i for i in range(start, self.n - 1) if self.r[i + 1] > self.r[i] * (1 + 1e-9)]
        expected = "never rising after the peak"
        if rises and self.top <= self.w + 1:
            return Result("decay", FAILED, f"it rises again at step {rises[0] + 1}", expected,
                          self.cause(known("schedule-restarts")))  # fmt: skip
        if rises or self.top > self.w + 1:
            return Result("decay", FAILED, f"it rises to step {self.top}", expected,
                          self.cause("it rises after the warm-up, too"))  # fmt: skip
        flat = self.close(self.r[-1], self.high)
        return Result("decay", PASSED, "constant" if flat else f"down to {self.r[-1]:g}", expected)

    def end(self) -> Result:
        """The last step has the lowest rate: there is no jump, and no step, left after it."""
        last, expected = self.r[-1], f"the lowest rate at step {self.n - 1}, or one step of the curve above it"
        after = self.beyond[0]
        measured = f"{last:g} at step {self.n - 1}"
        if not isinstance(after, float) or self.n - self.w < 4:
            return Result("end", PASSED, measured, expected)
        if self.same_curve(m for m in _SCHEDULES if m.name == "schedule-no-pi"):
            return Result("end", FAILED, measured, expected, self.cause())
        measured += f", {after:g} at step {self.n}"
        usual = max(self.r[-3] - self.r[-2], self.r[-2] - last, (self.high - last) / max(1, self.n - self.w))
        if last - after > 2.5 * usual + 1e-6 * self.high:
            return Result("end", FAILED, measured, expected, self.cause(known("schedule-never-low")))
        later = self.beyond[1:]
        comes_to_rest = all(isinstance(rate, float) for rate in later) and self.close(later[1], later[2])
        if comes_to_rest and after - later[0] > 1e-6 * self.high:  # one that falls for ever is another matter
            cause = self.cause(known("schedule-late"))
            return Result("end", FAILED, f"{measured}, {later[0]:g} at step {self.n + 1}", expected, cause)
        return Result("end", PASSED, measured, expected)

    def after_the_end(self) -> Result:
        """A run that goes on keeps the lowest rate."""
        expected, last = "the last rate, or an error", self.r[-1]
        if not all(isinstance(rate, float) for rate in self.beyond):
            stops = next(b for b in self.beyond if not isinstance(b, float))
            return Result("after-the-end", PASSED, f"it stops: {stops}", expected)
        measured = ", ".join(f"{rate:g} at step {step}" for rate, step in zip(
            self.beyond, (self.n, self.n + 1, self.n + 7, 2 * self.n), strict=True))  # fmt: skip
        if min(self.beyond) < 0:
            return Result("after-the-end", FAILED, measured, expected, known("schedule-goes-on"))
        if max(self.beyond) > last * (1 + 1e-6) + 1e-9 * self.high:
            return Result("after-the-end", FAILED, measured, expected, known("schedule-rises-after"))
        if max(self.beyond[1:]) - min(self.beyond[1:]) > 1e-6 * self.high:
            return Result("after-the-end", DIFFERS, measured, expected, "the curve goes on falling")
        return Result("after-the-end", PASSED, measured, expected)


def _float(value):
    """A learning rate as a float; in words what else it is."""
    if isinstance(value, str):
        return value
    if value is None:
        return "None"
    try:
        if isinstance(value, bool):
            raise TypeError
        return float(value)
    except Exception:
        return f"a {type(value).__name__}"


def _curve(rise=lambda i, w: (i + 1) / (w + 1), way=lambda i, w, n: (i - w) / max(1, n - 1 - w), clamp=True,
           shape=lambda x: (1 + math.cos(math.pi * x)) / 2, ends=None):  # fmt: skip
    """A schedule with one part replaced: lr_at(step, warmup, total, high, low)."""

    def lr_at(step, warmup, total, high=1e-3, low=1e-4):
        if step < (warmup if ends is None else ends(warmup, total)):
            return high * rise(step, warmup)
        x = way(step, warmup, total)
        return low + (high - low) * shape(min(x, 1.0) if clamp else x)

    return lr_at


_AFTER_THE_RUN = ("schedule-rises-after", "schedule-goes-on", "schedule-remembers")
_CALLS = Counter()


def _remembers(step, warmup, total, high=1e-3, low=1e-4):
    _CALLS["step"] = 0 if step == 0 else _CALLS["step"] + 1
    return _curve()(_CALLS["step"], warmup, total, high, low)


def _planned(name, words, wrong):
    return Mistake(name, "lr_at", words, "page 9", wrong)


_SCHEDULES = (
    _planned("schedule-starts-at-zero", "the first step has the learning rate 0 and moves nothing: count from 1, "
             "(step + 1)", _curve(rise=lambda i, w: i / max(w, 1))),
    _planned("schedule-no-warm-up", "there is no warm-up: the first step has the highest rate",
             _curve(rise=lambda i, w: 1.0)),
    _planned("schedule-whole-division", "the warm-up divides whole numbers, //, so it is 0 until its end",
             _curve(rise=lambda i, w: (i + 1) // (w + 1))),
    _planned("schedule-warm-up-upside-down", "the warm-up falls where it should rise",
             _curve(rise=lambda i, w: 1 - i / (w + 1))),
    _planned("schedule-warm-up-too-long", "the warm-up takes twice as long as asked",
             _curve(rise=lambda i, w: (i + 1) / (2 * w + 1), ends=lambda w, n: min(2 * w, n - 1),
                    way=lambda i, w, n: (i - min(2 * w, n - 1)) / max(1, n - 1 - min(2 * w, n - 1)))),
    _planned("schedule-decay-from-step-0", "the decay is counted from step 0, not from the end of the warm-up: the "
             "rate "
             "jumps there", _curve(rise=lambda i, w: (i + 1) / w, way=lambda i, w, n: i / (n - 1))),
    _planned("schedule-no-pi", "the cosine lacks its pi: it never comes down",
             _curve(shape=lambda x: (1 + math.cos(x)) / 2)),
    _planned("schedule-cosine-not-halved", "the cosine runs from 1 to -1: (1 + cos) / 2 is meant",
             _curve(shape=lambda x: math.cos(math.pi * x))),
    _planned("schedule-two-pi", "the cosine runs a whole turn, 2 pi, and comes back up",
             _curve(shape=lambda x: (1 + math.cos(2 * math.pi * x)) / 2)),
    _planned("schedule-upside-down", "the decay is upside down: it rises to the highest rate at the end",
             _curve(shape=lambda x: (1 - math.cos(math.pi * x)) / 2)),
    _planned("schedule-restarts", "the rate starts again from the top within the run",
             _curve(way=lambda i, w, n: (2 * (i - w) / max(1, n - w)) % 1.0)),
    _planned("schedule-never-low", "the lowest rate is never reached: the curve ends far above it, then jumps",
             lambda step, warmup, total, high=1e-3, low=1e-4:
             low if step >= total
             else _curve(way=lambda i, w, n: (i - w) / (2 * (n - w)))(step, warmup, total, high, low)),
    _planned("schedule-late", "the lowest rate is reached after the last step: total counts steps, the last is total "
             "- 1",
             _curve(way=lambda i, w, n: (i - w) / (n + 1 - w), shape=lambda x: 1 - x)),
    _planned("schedule-rises-after", "after the last step the cosine comes up again: hold it at 1",
             _curve(clamp=False)),
    _planned("schedule-goes-on", "after the last step the rate goes on falling, below 0 in the end: hold it at the "
             "lowest",
             _curve(clamp=False, shape=lambda x: 1 - x)),
    _planned("schedule-remembers", "the rate depends on how often it was asked, not on the step alone", _remembers),
)  # fmt: skip


# ---- evaluation

EVALUATE_CHECKS = (
    "number", "dropout-off", "gradients-off", "mode-restored", "mode-restored-on-error", "random-state", "repeatable",
    "mean", "training-untouched",
)  # fmt: skip


def check_evaluate(estimate_loss, model: nn.Module) -> Report:
    """Whether estimate_loss(), or estimate_loss(model), measures `model` and leaves everything as it was.

    What `model` returns is watched, and once replaced by logits whose loss is known, to see how losses are averaged. It
    may return a number, several in a tuple or dictionary, or an object. Raises TypeError for a model that is none.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got a {type(model).__name__}")
    with untouched(model):
        try:
            return _Evaluation(estimate_loss, model).report()
        except CannotLook as reason:
            return missed(EVALUATE_CHECKS, str(reason))
        except Exception as error:  # an answer that nobody foresaw is no pass
            return missed(EVALUATE_CHECKS, f"the check was stopped by {one_line(error)}")


class _Halt(Exception):
    """Raised in the middle of an evaluation, to see what is left behind."""


class _Evaluation:
    """A reader's estimate_loss, and what happened to the model in it."""

    def __init__(self, estimate_loss, model):
        self.function, self.model, self.width = estimate_loss, model, 0
        config = getattr(model, "config", None)
        generator = torch.Generator().manual_seed(0)
        V, T = getattr(config, "vocab_size", 65), getattr(config, "block_size", 8)
        tokens = torch.randint(V, (10 * T + 1 + max(1, T // 2),), generator=generator)  # the last window is short
        spare = dict.fromkeys(("tokens", "data", "val_data", "ids"), tokens) | {"block_size": T, "batch_size": 4}
        self.signature = Signature(estimate_loss, ("model",), spare)
        if self.signature.parameters == []:
            self.signature.own.pop("model", None)

    def call(self, hook=None, training=True, seed=0, quick=False, apart=None):
        """One call with the model in this mode, watched by `hook`: the answer, and whether random numbers moved.

        With `quick`, a model that returns logits alone computes none, where their values are not asked for.
        """
        self.model.train(training)
        if apart is not None:
            apart.train(not training)
        quick = quick and self.width and "forward" not in vars(self.model)
        if quick:
            self.model.forward = lambda idx, *rest, **named: torch.zeros(1, device=idx.device).expand(
                *idx.shape, self.width
            )
        told = {"model": self.model} if "model" in self.signature.own else {}
        first, named = self.signature.arguments(**told)
        handle = self.model.register_forward_hook(hook) if hook else None

        def run():
            seeded(seed)
            before = _random_states()
            value = self.function(*first, **named)
            return value, before == _random_states()

        try:
            return ask(run, seconds=120)
        finally:
            if handle:
                handle.remove()
            if quick:
                del self.model.forward

    def report(self) -> Report:
        seen = []

        def look(module, inputs, output):
            seen.append((module.training, torch.is_grad_enabled()))
            tokens = len(inputs) == 1 and isinstance(inputs[0], torch.Tensor) and not inputs[0].is_floating_point()
            if tokens and isinstance(output, torch.Tensor) and output.shape[:-1] == inputs[0].shape:
                self.width = output.size(-1)

        self.model.train()
        before = self.everything()
        answer = self.call(look)
        expected = "a number, or several"
        if answer.error:
            first = Result("number", FAILED, f"raises {answer.error}", expected, "it stops (page 9)")
            return Report((first, *blocked(EVALUATE_CHECKS[1:], "number")))
        value, random_kept = answer.value
        self.value = _numbers(value)
        if not self.value:
            first = Result("number", FAILED, f"returns a {type(value).__name__}", expected, "return the loss (page 9)")
            return Report((first, *blocked(EVALUATE_CHECKS[1:], "number")))
        measured = ", ".join(f"{number:.4f}" for number in self.value[:4])
        finite = all(math.isfinite(number) for number in self.value)
        results = [Result("number", PASSED if finite else FAILED, measured, expected,
                          "" if finite else "the loss is not finite (page 9)")]  # fmt: skip
        after = self.everything()
        if not seen:
            why = "it does not call this model: is it about another one?"
            results += [Result(name, NOT_CHECKED, cause=why) for name in EVALUATE_CHECKS[1:]]
            return Report(results)
        results.append(_judge("dropout-off", not any(training for training, _ in seen),
                              "in training mode" if any(t for t, _ in seen) else "in evaluation mode",
                              "evaluation mode", known("evaluate-in-training-mode")))  # fmt: skip
        results.append(_judge("gradients-off", not any(grad for _, grad in seen),
                              "recorded" if any(g for _, g in seen) else "not recorded", "not recorded",
                              known("evaluate-with-gradients")))  # fmt: skip
        results += [self.asked("mode-restored"), self.asked("mode-restored-on-error")]
        results.append(_judge("random-state", random_kept, "as before" if random_kept else "moved on", "as before",
                              known("evaluate-moves-random")))  # fmt: skip
        results += [self.asked("repeatable"), self.asked("mean")]
        changed = next((name for name in before if not torch.equal(before[name], after[name])), None)
        results.append(_judge("training-untouched", changed is None, f"{changed} changed" if changed else "as before",
                              "weights, buffers and gradients as before", known("evaluate-trains")))  # fmt: skip
        return Report(results)

    def asked(self, name) -> Result:
        try:
            return getattr(self, name.replace("-", "_"))()
        except CannotLook as reason:
            return Result(name, NOT_CHECKED, cause=str(reason))

    def everything(self) -> dict:
        """Copies of weights, buffers and gradients, NaN as 0."""
        tensors = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        found = {name: t.detach().nan_to_num().clone() for name, t in tensors.items()}
        for name, p in self.model.named_parameters():
            found[f"the gradient of {name}"] = torch.zeros(0) if p.grad is None else p.grad.nan_to_num().clone()
            found[f"requires_grad of {name}"] = torch.tensor(p.requires_grad)
        return found

    def mode_restored(self) -> Result:
        expected = "the mode it was in"
        for training in (True, False):
            self.call(training=training, quick=True)
            if self.model.training != training:
                name = "evaluate-leaves-eval" if training else "evaluate-leaves-train"
                left = "training" if self.model.training else "evaluation"
                return Result("mode-restored", FAILED, f"in {left} mode afterwards", expected, known(name))
        parts = [m for m in self.model.modules() if m is not self.model]
        if parts:
            hook = self.mixed(parts)
            if hook:
                remark = "train() and eval() set every part: one that was in another mode is in that no more"
                return Result("mode-restored", DIFFERS, "a part has another mode than before", expected, remark)
        return Result("mode-restored", PASSED, "as before", expected)

    def mixed(self, parts) -> bool:
        """Whether a part in evaluation mode, in a model that trains, is in another mode afterwards."""
        self.call(quick=True, apart=parts[-1])
        return parts[-1].training

    def mode_restored_on_error(self) -> Result:
        expected, calls = "the mode it was in, after an error too", []

        def fail(module, inputs, output):
            calls.append(module.training)
            raise _Halt("a check stops the evaluation here")

        answer = self.call(fail, training=True, quick=True)
        if not calls:
            raise CannotLook("the model was not called")
        if not self.model.training:
            return Result("mode-restored-on-error", FAILED, "in evaluation mode after an error", expected,
                          known("evaluate-no-finally"))  # fmt: skip
        remark = "" if answer.error else "it goes on although the model raised"
        return Result("mode-restored-on-error", PASSED, "as before", expected, remark)

    def repeatable(self) -> Result:
        """Two calls, each from another random state, give the same numbers."""
        expected = "the same numbers"
        once, again = (self.call(seed=seed) for seed in (1, 2))
        a, b = (_numbers(answer.value[0]) if not answer.error else [] for answer in (once, again))
        if len(a) == len(b) and all(x == y or abs(x - y) <= 1e-5 * max(1, abs(x)) for x, y in zip(a, b, strict=True)):
            return Result("repeatable", PASSED, "the same", expected)
        apart = max((abs(x - y) for x, y in zip(a, b, strict=False)), default=math.inf)
        return Result("repeatable", FAILED, f"two calls differ by {apart:.1e}", expected, known("evaluate-noisy"))

    def mean(self) -> Result:
        """How the losses of batches become one number, seen by batches whose losses are known.

        Logits that are all alike have the loss ln(width) whatever the targets, so each call of the model is answered
        with another width.
        """
        expected, batches = "each token counts alike", []

        def known_loss(module, inputs, output):
            idx = next((t for t in inputs if isinstance(t, torch.Tensor) and not t.is_floating_point()), None)
            logits = output if isinstance(output, torch.Tensor) else None
            if idx is None or logits is None or logits.dim() != 3:
                raise _Halt("the model returns more than logits (B, T, V)")
            width = logits.size(-1) * (2 + len(batches) * 3 % 7 + len(batches))
            batches.append((math.log(width), idx.numel()))
            return torch.zeros(*logits.shape[:-1], width, device=logits.device)

        answer = self.call(known_loss, quick=True)
        if answer.error or not batches:
            raise CannotLook(f"how it averages cannot be seen here: {answer.error or 'the model was not called'}")
        numbers = _numbers(answer.value[0])
        if len(batches) == 1:
            raise CannotLook("it looks at one batch only, so there is nothing to average")
        sizes = {size for _, size in batches}
        measured = f"{len(batches)} batches of {min(sizes)} to {max(sizes)} tokens" if len(sizes) > 1 else (
            f"{len(batches)} batches of {min(sizes)} tokens")  # fmt: skip
        for how, name in ((_weighted, ""), (_plain, "evaluate-plain-mean"), (_summed, "evaluate-sum"),
                          (_last, "evaluate-last-batch"), (_one_too_many, "evaluate-divisor")):  # fmt: skip
            if _explained(numbers, batches, how):
                if not name:
                    return Result("mean", PASSED, measured, expected)
                return Result("mean", FAILED, measured, expected, known(name))
        raise CannotLook("what it returns is no mean of the losses that it was given: another unit, perhaps")


def _judge(name, right, measured, expected, cause) -> Result:
    return Result(name, PASSED if right else FAILED, measured, expected, "" if right else cause)


def _random_states():
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy else ()
    return (random.getstate(), torch.get_rng_state().tolist(), [str(part) for part in state[2:]],
            state[1].tolist() if numpy else None)  # fmt: skip


def _numbers(value) -> list[float]:
    """The numbers in what an evaluation returned: itself, or those in a tuple, a dictionary or an object's `loss`."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return []
    if isinstance(value, dict):
        return [number for part in value.values() for number in _numbers(part)]
    if isinstance(value, tuple | list):
        return [number for part in value for number in _numbers(part)]
    if hasattr(value, "loss"):
        return _numbers(value.loss)
    try:
        return [float(value.detach() if isinstance(value, torch.Tensor) else value)]
    except Exception:
        return []


def _weighted(batches):
    return sum(loss * size for loss, size in batches) / sum(size for _, size in batches)


def _plain(batches):
    return sum(loss for loss, _ in batches) / len(batches)


def _summed(batches):
    return sum(loss for loss, _ in batches)


def _last(batches):
    return batches[-1][0]


def _one_too_many(batches):
    return sum(loss for loss, _ in batches) / (len(batches) + 1)


def _explained(numbers, batches, how) -> bool:
    """Whether the numbers are `how` of runs of batches that follow one another and leave none out."""
    if not numbers:
        return not batches
    if len(numbers) == 1:
        return bool(batches) and math.isclose(numbers[0], how(batches), rel_tol=1e-4)
    for cut in range(1, len(batches)):
        if math.isclose(numbers[0], how(batches[:cut]), rel_tol=1e-4) and _explained(numbers[1:], batches[cut:], how):
            return True
    return False


def _evaluator(on=lambda m: m.eval(), off=True, guard=True, grad=False, seed=True, gather=_weighted, back=None,
               extra=lambda m, loss: None):  # fmt: skip
    """What makes, of a GPT, an estimate_loss with one part replaced."""

    def make(model):
        V, T = model.config.vocab_size, model.config.block_size
        text = torch.randint(V, (10 * T + 1 + T // 2,), generator=torch.Generator().manual_seed(3))

        def batches():
            generator = torch.Generator().manual_seed(0) if seed else None
            for rows in (4, 4, 2):
                starts = torch.randint(len(text) - T, (rows,), generator=generator).tolist()
                yield (torch.stack([text[s : s + T] for s in starts]),
                       torch.stack([text[s + 1 : s + 1 + T] for s in starts]))  # fmt: skip

        def estimate_loss(model):
            modes = [(module, module.training) for module in model.modules()]

            def restore():
                if back is not None:
                    back(model)
                elif off:
                    for module, mode in modes:
                        module.training = mode

            def run():
                losses = []
                for x, y in batches():
                    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
                    extra(model, loss)
                    losses.append((loss.item(), y.numel()))
                return gather(losses)

            on(model)
            with torch.set_grad_enabled(grad):
                if not guard:
                    value = run()
                    restore()
                    return value
                try:
                    return run()
                finally:
                    restore()

        return estimate_loss

    return make


def _train_a_step(model, loss):
    with torch.enable_grad():
        for p in model.parameters():
            p.data.mul_(0.999)


def _evaluates(name, words, make):
    return Mistake(name, "estimate_loss", words, "page 9", make)


_EVALUATIONS = (
    _evaluates("evaluate-in-training-mode", "dropout is on while the loss is measured: model.eval() is missing",
               _evaluator(on=lambda m: None)),
    _evaluates("evaluate-with-gradients", "every step is recorded for gradients that nobody asks for: "
               "torch.no_grad() is "
               "missing", _evaluator(grad=True)),
    _evaluates("evaluate-leaves-eval", "the model stays in evaluation mode, so training goes on without dropout",
               _evaluator(off=False)),
    _evaluates("evaluate-leaves-train", "the model is left in training mode, whatever mode it was in: remember the "
               "mode",
               _evaluator(back=lambda m: m.train())),
    _evaluates("evaluate-no-finally", "an error on the way leaves the model in evaluation mode: put the mode back in a "
               "`finally`", _evaluator(guard=False)),
    _evaluates("evaluate-moves-random", "measuring draws from the random numbers of training, so a run depends on how "
               "often it is measured: draw from a generator of its own", _evaluator(seed=False)),
    _evaluates("evaluate-noisy", "every call measures other batches: begin each time from the same seed, or measure "
               "all",
               _evaluator(seed=False)),
    _evaluates("evaluate-plain-mean", "the mean of batch means: a smaller batch counts too much, so weight by its "
               "tokens",
               _evaluator(gather=_plain)),
    _evaluates("evaluate-sum", "losses are added up and not divided by their number", _evaluator(gather=_summed)),
    _evaluates("evaluate-last-batch", "the loss of the last batch alone is returned", _evaluator(gather=_last)),
    _evaluates("evaluate-divisor", "the sum is divided by one batch too many", _evaluator(gather=_one_too_many)),
    _evaluates("evaluate-trains", "measuring changes the model: no step and no backward belongs here",
               _evaluator(extra=_train_a_step)),
)  # fmt: skip


# ---- what the catalogue needs

TEXT = (
    "First  Citizen:\nHear me speak. Ça va, naïve café?\n\nAll:\nSpeak, speak — 3 times!\n"
    + "".join(map(chr, range(0x4E00, 0x4E00 + 260)))
    + "~"
)


def _small(**changes) -> GPT:
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "block_size": 6, "n_layer": 2, "n_head": 2, "n_embd": 12}
    return GPT(GPTConfig(**(sizes | changes)))


def _ask_batches(wrong) -> Report:
    return check_batches(wrong, torch.arange(60), 5)


def _ask_optimizer(make) -> Report:
    model = _small()
    return check_optimizer(model, make(model))


def _ask_evaluate(make) -> Report:
    model = _small(dropout=0.1)
    return check_evaluate(make(model), model)


MISTAKES = (*_BATCHES, *_TOKENIZERS, *_OPTIMIZERS, *_SCHEDULES, *_EVALUATIONS)
ASK = {
    "get_batch": _ask_batches,
    "tokenizer": lambda make: check_tokenizer(*make(TEXT), TEXT),
    "optimizer": _ask_optimizer,
    "lr_at": lambda wrong: check_schedule(wrong, 10, 60),
    "estimate_loss": _ask_evaluate,
}
