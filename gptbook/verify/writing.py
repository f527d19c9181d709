"""Checks of what writes text: a sampler, the loop that generates, and a cache; pages 10 and 11.

A sampler's draws are counted at known logits, and the counts held against the chances that the book defines; a loop is
given a model whose next token anybody can compute; a cache must give the logits that the model gives without one.
"""

import math
import random
import sys
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

from gptbook.model import GPT, GPTConfig
from gptbook.verify.calling import ask
from gptbook.verify.catalogue import Mistake
from gptbook.verify.report import DIFFERS, FAILED, NOT_CHECKED, PASSED, Report, Result
from gptbook.verify.signature import Signature
from gptbook.verify.subject import CannotLook, Subject, one_line, untouched

ALARM = 1e-12  # the chance at most that a right sampler's draws fail one comparison
EACH = 800  # draws at each row of logits
REFUSALS = ("ValueError", "NotImplementedError", "AssertionError")  # errors that somebody meant


def seeded(seed: int):
    """Start every random state from `seed`: whichever a reader's code draws from."""
    random.seed(seed)
    torch.manual_seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)


def blocked(names, by: str) -> list[Result]:
    """What is left unasked, because an answer would mislead."""
    return [Result(name, NOT_CHECKED, cause=f"it would mislead, because “{by}” failed") for name in names]


# ---- samplers: the right chances, and wrong ones


def _warm(z, temperature):
    """softmax(z / temperature) of z (B, V), at temperature 0 all on the highest."""
    if temperature == 0:
        return F.one_hot(z.argmax(-1), z.size(-1)).to(z.dtype)
    return F.softmax(z / temperature, dim=-1)


def _normal(p):
    return p / p.sum(-1, keepdim=True)


def _top_k(p, k):
    """Chances p (B, V) of the k likeliest alone; of those that tie the lower ids."""
    if k is None:
        return p
    rank = p.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    return _normal(p * (rank < k))


def _top_p(p, share, more=0):
    """Chances p (B, V) of the fewest likeliest that hold `share` together, and of `more` than that."""
    if share is None or share >= 1:
        return p
    ordered, ids = p.sort(dim=-1, descending=True, stable=True)
    kept = (ordered.cumsum(-1) - ordered < share).sum(-1, keepdim=True) + more
    return _normal(p * (ids.argsort(dim=-1) < kept.clamp(min=1)))


def _chances(z, temperature=1.0, top_k=None, top_p=None):
    """The chances that page 10 defines, of logits z (B, V) in float64."""
    return _top_p(_top_k(_warm(z, temperature), top_k), top_p)


# Where people decide otherwise, and are not wrong.
CONVENTIONS = (
    (
        lambda z, t, k, p: _normal(_top_k(_warm(z, t), k) * (_top_p(_warm(z, t), p) > 0)),
        "the nucleus is taken of all chances, not of those that top_k leaves; the book takes it after top_k",
    ),
    (
        lambda z, t, k, p: _normal(_warm(z, t) * (_top_p(_top_k(_warm(z, 1), k), p) > 0)),
        "the nucleus is taken before the temperature; the book takes it after",
    ),
    (
        lambda z, t, k, p: _top_k(_top_p(_warm(z, t), p), k),
        "top_p is applied before top_k; the book applies top_k first",
    ),
)


class Drawing:
    """A sampler with these chances: a known wrong version, whose long-run frequencies are known too."""

    def __init__(self, chances):
        self.chances = chances

    def __call__(self, logits, temperature=1.0, top_k=None, top_p=None):
        chances = self.chances(logits.double(), temperature, top_k, top_p)  # (B, V)
        return torch.multinomial(chances, 1).squeeze(-1)  # (B,)


def _drawn(name, words, chances):
    return Mistake(name, "sample", words, "page 10", Drawing(chances))


def _ranked(p):
    """Chances from the highest down, as if a place in that order were a token."""
    return p.sort(dim=-1, descending=True).values


def _cut_by_batch(z, k):
    """Hide what lies below the k-th highest of the first row, in every row."""
    threshold = z[0].topk(min(k, z.size(-1))).values[-1]
    return z.masked_fill((z < threshold) & (z < z.amax(-1, keepdim=True)), -math.inf)


def _zeroed(z, k):
    return z if k is None else z * (_top_k(F.softmax(z, -1), k) > 0)


_SAMPLERS = (
    _drawn("top-p-not-with-top-k", "top_p has no effect where top_k is given: an elif where both are meant",
           lambda z, t, k, p: _chances(z, t, k, None if k is not None else p)),
    _drawn("top-k-not-with-top-p", "top_k has no effect where top_p is given: an elif where both are meant",
           lambda z, t, k, p: _chances(z, t, None if p is not None else k, p)),
    _drawn("always-the-highest", "the highest logit is always taken: nothing is drawn",
           lambda z, t, k, p: _warm(z, 0)),
    _drawn("logits-ignored", "every token is equally likely: the logits have no effect; is the softmax taken over the "
           "rows, dim 0?", lambda z, t, k, p: torch.ones_like(z) / z.size(-1)),
    _drawn("softmax-over-rows", "the softmax is taken over the rows, dim 0, not over the vocabulary, dim -1",
           lambda z, t, k, p: _top_p(_top_k(_normal(F.softmax(z / (t or 1), dim=0)), k), p)),
    _drawn("first-row-for-all", "every row is drawn with the chances of the first row",
           lambda z, t, k, p: _chances(z, t, k, p)[:1].expand_as(z)),
    _drawn("softmax-twice", "the softmax is taken twice: chances stand where logits are expected",
           lambda z, t, k, p: _top_p(_top_k(F.softmax(_warm(z, t), -1), k), p)),
    _drawn("sign-turned", "the logits have the wrong sign: the least likely token comes most often",
           lambda z, t, k, p: _chances(-z, t, k, p)),
    _drawn("sigmoid", "each logit goes through a sigmoid, where a softmax over all of them is expected",
           lambda z, t, k, p: _top_p(_top_k(_normal((z / (t or 1)).sigmoid()), k), p)),
    _drawn("logits-as-chances", "the logits themselves, not their exponentials, are taken as chances",
           lambda z, t, k, p: _top_p(_top_k(_normal((z / (t or 1)).clamp(min=1e-9)), k), p)),
    _drawn("temperature-ignored", "the temperature has no effect: it is not used, or it divides the chances after the "
           "softmax, where normalising cancels it", lambda z, t, k, p: _chances(z, float(t > 0), k, p)),
    _drawn("temperature-multiplied", "the logits are multiplied by the temperature, not divided",
           lambda z, t, k, p: _chances(z, 1 / t if t else 0, k, p)),
    _drawn("temperature-twice", "the logits are divided by the temperature twice",
           lambda z, t, k, p: _chances(z, t * t, k, p)),
    _drawn("temperature-rooted", "the logits are divided by the root of the temperature",
           lambda z, t, k, p: _chances(z, math.sqrt(t), k, p)),
    _drawn("temperature-below-one-only", "a temperature above 1 is cut down to 1",
           lambda z, t, k, p: _chances(z, min(t, 1), k, p)),
    _drawn("temperature-before-softmax-twice", "the temperature divides chances, which then go through another softmax",
           lambda z, t, k, p: _top_p(_top_k(_warm(F.softmax(z, -1), t), k), p)),
    _drawn("top-k-ignored", "top_k has no effect", lambda z, t, k, p: _chances(z, t, None, p)),
    _drawn("top-k-one-more", "one token too many is kept: the threshold lies one place too low, topk(k + 1)",
           lambda z, t, k, p: _chances(z, t, None if k is None else k + 1, p)),
    _drawn("top-k-one-fewer", "one token too few is kept: the k-th itself is hidden, by <= where < is meant",
           lambda z, t, k, p: _chances(z, t, None if k is None else max(k - 1, 1), p)),
    _drawn("top-k-lowest", "the k least likely tokens are kept, not the likeliest",
           lambda z, t, k, p: _top_p(_warm(z, t) if k is None else _normal(_warm(z, t) * (_top_k(_warm(-z, 1), k) > 0)),
                                     p)),
    _drawn("top-k-place", "the place among the top k is returned, not the token that stands there",
           lambda z, t, k, p: _chances(z, t, None, p) if k is None else _ranked(_chances(z, t, k, p))),
    _drawn("top-k-uniform", "the top k are drawn with equal chances: their logits are lost",
           lambda z, t, k, p: _chances(z, t, None, p) if k is None else _normal((_chances(z, t, k, p) > 0).double())),
    _drawn("top-k-zeroed", "hidden tokens get the logit 0, not -inf: exp(0) is 1, so they are still drawn",
           lambda z, t, k, p: _top_p(_warm(_zeroed(z, k), t), p)),
    _drawn("top-k-by-first-row", "the threshold of the first row is used for every row",
           lambda z, t, k, p: _top_p(_warm(z if k is None else _cut_by_batch(z, k), t), p)),
    _drawn("top-k-ids-of-first-row", "the top k tokens of the first row are kept in every row",
           lambda z, t, k, p: _chances(z, t, None, p) if k is None
           else _top_p(_normal(_warm(z, t) * (_top_k(_warm(z[:1], 1), k) > 0)), p)),
    _drawn("top-p-ignored", "top_p has no effect", lambda z, t, k, p: _chances(z, t, k, None)),
    _drawn("top-p-drops-the-last", "the token with which the sum reaches p is dropped: the nucleus holds less than p",
           lambda z, t, k, p: _top_p(_top_k(_warm(z, t), k), p, more=-1)),
    _drawn("top-p-one-more", "one token too many is kept: the nucleus was complete without it",
           lambda z, t, k, p: _top_p(_top_k(_warm(z, t), k), p, more=1)),
    _drawn("top-p-each", "each token's own chance is held against p, not the sum of the likelier ones",
           lambda z, t, k, p: _by_own_chance(_top_k(_warm(z, t), k), p)),
    _drawn("top-p-rest", "the nucleus is hidden and the rest is kept: 1 - p where p is meant",
           lambda z, t, k, p: _rest(_top_k(_warm(z, t), k), p)),
    _drawn("top-p-from-below", "the sum runs from the least likely token up: sort descending",
           lambda z, t, k, p: _from_below(_top_k(_warm(z, t), k), p)),
    _drawn("top-p-place", "the place in the sorted order is returned, or hidden, not the token that stands there",
           lambda z, t, k, p: _top_k(_warm(z, t), k) if p is None or p >= 1 else _ranked(_chances(z, t, k, p))),
    _drawn("top-p-not-scattered", "what is hidden in the sorted order is hidden at the same places of the vocabulary: "
           "scatter the mask back", lambda z, t, k, p: _unscattered(_top_k(_warm(z, t), k), p)),
    _drawn("top-p-uniform", "the nucleus is drawn with equal chances: its logits are lost",
           lambda z, t, k, p: _top_k(_warm(z, t), k) if p is None or p >= 1
           else _normal((_chances(z, t, k, p) > 0).double())),
)  # fmt: skip


_KNOWN = {mistake.name: mistake for mistake in _SAMPLERS}


def _by_own_chance(p, share):
    if share is None or share >= 1:
        return p
    return _normal(p * ((p >= share) | (p == p.amax(-1, keepdim=True))))


def _rest(p, share):
    if share is None or share >= 1:
        return p
    kept = p * (_top_p(p, share) == 0)
    return _normal(torch.where(kept.sum(-1, keepdim=True) > 0, kept, p))


def _from_below(p, share):
    if share is None or share >= 1:
        return p
    ordered, ids = p.sort(dim=-1, stable=True)
    return _normal(p * ((ordered.cumsum(-1) - ordered < share).gather(-1, ids.argsort(-1))))


def _unscattered(p, share):
    if share is None or share >= 1:
        return p
    kept = (_top_p(p, share) > 0).sum(-1, keepdim=True)
    places = torch.arange(p.size(-1)) < kept
    return _normal(torch.where(places, p, torch.zeros_like(p)) + 1e-300)


def _seeds_inside(logits, temperature=1.0, top_k=None, top_p=None):
    torch.manual_seed(1337)
    return Drawing(_chances)(logits, temperature, top_k, top_p)


def _one_draw_for_all(logits, temperature=1.0, top_k=None, top_p=None):
    edges = _chances(logits.double(), temperature, top_k, top_p).cumsum(-1)  # (B, V)
    return (edges < torch.rand(())).sum(-1).clamp(max=logits.size(-1) - 1)


def _divides_by_zero(logits, temperature=1.0, top_k=None, top_p=None):
    return Drawing(_chances)(logits / temperature, 1.0, top_k, top_p)


def _zero_is_none(logits, temperature=1.0, top_k=None, top_p=None):
    return Drawing(_chances)(logits, temperature or 1.0, top_k, top_p)


def _exp_overflows(logits, temperature=1.0, top_k=None, top_p=None):
    if temperature == 0:
        return logits.argmax(-1)
    chances = torch.exp(logits / temperature)
    return torch.multinomial(_top_p(_top_k(_normal(chances), top_k), top_p), 1)


def _k_beyond(logits, temperature=1.0, top_k=None, top_p=None):
    if top_k is not None:
        torch.topk(logits, top_k)
    return Drawing(_chances)(logits, temperature, top_k, top_p)


def _in_place(logits, temperature=1.0, top_k=None, top_p=None):
    logits /= temperature or 1.0
    return Drawing(_chances)(logits, float(temperature > 0), top_k, top_p)


def _squeezed(logits, temperature=1.0, top_k=None, top_p=None):
    return Drawing(_chances)(logits, temperature, top_k, top_p).squeeze()


_SEEDS = Mistake("sampler-seeds-itself", "sample", "the seed is set inside of the function, so every call draws the "
                 "same: set it once, outside", "page 10", _seeds_inside)  # fmt: skip
_ONE_DRAW = Mistake("one-draw-for-all-rows", "sample", "one random number serves all rows: rows with equal logits "
                    "always get the same token", "page 10", _one_draw_for_all)  # fmt: skip
_DIVIDES = Mistake("temperature-0-divides", "sample", "the logits are divided by the temperature 0: take the highest "
                   "logit there, without a division", "page 10", _divides_by_zero)  # fmt: skip
_ZERO_NONE = Mistake("temperature-0-draws", "sample", "temperature 0 counts as none given, so a token is drawn: ask "
                     "`is None`, not for its truth", "page 10", _zero_is_none)  # fmt: skip
_OVERFLOW = Mistake("exp-overflows", "sample", "exp of a large logit is infinite, of a very negative one 0: subtract "
                    "the row's highest logit first", "page 10", _exp_overflows)  # fmt: skip
_K_BEYOND = Mistake("top-k-beyond-the-vocabulary", "sample", "torch.topk refuses a k above the vocabulary: use "
                    "min(k, V)", "page 10", _k_beyond)  # fmt: skip
_IN_PLACE = Mistake("logits-changed-in-place", "sample", "the caller's logits are changed: divide or hide in a new "
                    "tensor", "page 10", _in_place)  # fmt: skip
_SQUEEZED = Mistake("rows-squeezed", "sample", "squeeze() takes away the axis of rows too where there is one row: "
                    "squeeze(-1)", "page 10", _squeezed)  # fmt: skip


# ---- samplers: the check

V = 8
ROWS = torch.tensor(
    [
        [0.2, -1.1, 1.9, 0.9, -0.4, 1.3, -2.0, -0.1],
        [3.3, 2.1, 3.9, 4.4, 2.6, 1.2, 3.0, 1.7],
        [-1.0, 2.2, -0.3, 0.4, 1.6, -1.7, 0.7, 1.1],
    ]
)  # logits whose chances no two tokens share, and of which no sum comes near to a p that is asked
CASES = {
    "frequencies": [(1.0, None, None)],
    "temperature": [(0.5, None, None), (2.0, None, None)],
    "top-k": [(1.0, 1, None), (1.0, 3, None), (1.0, V, None), (0.5, 3, None), (2.0, 4, None)],
    "top-p": [(1.0, None, 0.7), (1.0, None, 0.4), (1.0, None, 0.9), (1.0, None, 0.1), (1.0, None, 1.0)],
    "together": [(2.0, None, 0.7), (0.5, None, 0.6), (1.5, 6, 0.5), (1.5, 3, 0.85)],
}
SAMPLER_CHECKS = (
    "shape", "input-kept", "fresh-draws", "frequencies", "temperature", "temperature-0", "large-logits", "top-k",
    "top-k-large", "ties", "top-p", "together",
)  # fmt: skip


class _Sampling:
    """A reader's sampler, and what it was seen to draw."""

    def __init__(self, sample):
        self.sample, self.named = sample, []
        self.signature = Signature(
            sample, ("logits", "temperature", "top_k", "top_p"), {"temperature": 1.0, "top_k": None, "top_p": None}
        )

    def ask(self, logits, temperature=1.0, top_k=None, top_p=None, seed=0):
        """The answer to one call; only what is asked for is handed over. Raises CannotLook where it cannot be asked."""
        asked = {"temperature": temperature if temperature != 1 else None, "top_k": top_k, "top_p": top_p}
        asked = {name: value for name, value in asked.items() if value is not None}
        first, named = self.signature.arguments(logits=logits, **asked)

        def call(*arguments, **keywords):
            seeded(seed)
            return self.sample(*arguments, **keywords)

        return ask(call, *first, **named)

    def draws(self, logits, temperature=1.0, top_k=None, top_p=None, seed=0):
        """The tokens (B,) of one call. Raises _Bad, which says in words why there are none."""
        answer = self.ask(logits, temperature, top_k, top_p, seed)
        if answer.error:
            raise _Bad(f"raises {answer.error}", answer.error)
        return _tokens(answer.value, logits.size(0), logits.size(1))


class _Bad(Exception):
    """Something other than tokens came back: what, and the error if it was one."""

    def __init__(self, what: str, error: str = ""):
        super().__init__(what)
        self.error = error


def _tokens(value, B: int, V: int) -> torch.Tensor:
    """What a sampler returned as tokens (B,); the first of several things."""
    if isinstance(value, tuple) and value:
        value = value[0]
    try:
        value = torch.as_tensor(value).detach().cpu()
    except Exception:
        raise _Bad(f"returns a {type(value).__name__}") from None
    if tuple(value.shape) not in ((B,), (B, 1)):
        raise _Bad(f"returns shape {tuple(value.shape)} for {B} row{'s' * (B > 1)}")
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise _Bad(f"returns {value.dtype}, where ids are whole numbers".replace("torch.", ""))
    value = value.reshape(B).long()
    if B and not 0 <= value.min() <= value.max() < V:
        raise _Bad(f"returns token {int(value.min()) if value.min() < 0 else int(value.max())} of 0..{V - 1}")
    return value


def check_sampler(sample) -> Report:
    """Whether sample(logits (B, V), temperature=1.0, top_k=None, top_p=None) -> (B,) or (B, 1) draws a token a row.

    The draws at known logits are counted: a right sampler fails one of the comparisons with a chance below 1e-11
    (Agrawal 2020, for the entropy of counts). What the function does not take, top_p perhaps, is not checked.
    """
    subject = _Sampling(sample)
    first = _sampler_shape(subject)
    results = [first]
    if first.status != PASSED:
        return Report((*results, *blocked(SAMPLER_CHECKS[1:], "shape")))
    asked = {
        "input-kept": _input_kept, "fresh-draws": _fresh_draws, "temperature-0": _temperature_0,
        "large-logits": _large_logits, "top-k-large": _top_k_large, "ties": _ties,
    }  # fmt: skip
    for name in SAMPLER_CHECKS[1:]:
        if name == "frequencies" and results[-1].status == FAILED:  # the same draws each time: counts say nothing
            return Report((*results, *blocked(SAMPLER_CHECKS[len(results) :], results[-1].name)))
        try:
            results.append(asked[name](subject) if name in asked else _frequencies(subject, name))
        except CannotLook as reason:
            results.append(Result(name, NOT_CHECKED, cause=str(reason)))
        except _Bad as bad:
            results.append(Result(name, FAILED, str(bad), "a token for each row", _raised(bad)))
        except Exception as error:  # an answer that nobody foresaw is no pass
            results.append(Result(name, NOT_CHECKED, cause=f"the check was stopped by {one_line(error)}"))
    return Report(tuple(results))


def _raised(bad: _Bad) -> str:
    return "the function stops with an error of its own" if bad.error else "that is no token of the vocabulary"


def _sampler_shape(subject) -> Result:
    expected = "(B,) or (B, 1) whole numbers of 0..V-1"
    generator = torch.Generator().manual_seed(0)
    for B in (5, 1):
        logits = torch.randn(B, 11, generator=generator)
        logits[0, -1] = logits[-1, 0] = 50.0  # the last token must come, and the first: ids count from 0
        try:
            subject.draws(logits, seed=B)
        except CannotLook as reason:
            return Result("shape", NOT_CHECKED, cause=str(reason))
        except _Bad as bad:
            cause = _raised(bad)
            if B == 1 and "shape ()" in str(bad):
                cause = _SQUEEZED.cause
            elif "shape" in str(bad):
                cause = "one token a row, from the last axis of the logits (page 10)"
            return Result("shape", FAILED, str(bad), expected, cause)
    return Result("shape", PASSED, "one token a row", expected)


def _input_kept(subject) -> Result:
    for asked in ({}, {"temperature": 0.7}, {"top_k": 2}, {"top_p": 0.5}):
        if all(subject.signature.takes(name) for name in asked) and subject.ask(ROWS, **asked).changed:
            how = f" with {next(iter(asked))}" if asked else ""
            return Result("input-kept", FAILED, f"the logits are others after the call{how}", "as they were",
                          _IN_PLACE.cause)  # fmt: skip
    return Result("input-kept", PASSED, "the logits are as they were", "as they were")


def _fresh_draws(subject) -> Result:
    level = torch.zeros(64, V)  # all alike: two honest calls agree with a chance of 8 to the power of -64
    once, again = subject.draws(level, seed=1), subject.draws(level, seed=2)
    expected = "calls differ"
    if not torch.equal(once, again):
        return Result("fresh-draws", PASSED, "calls differ", expected)
    peaked = torch.unique(once).numel() == 1
    cause = _KNOWN["always-the-highest"].cause if peaked else _SEEDS.cause
    return Result("fresh-draws", FAILED, "two calls draw the same 64 tokens", expected, cause)


def _counted(subject, case, offset=0.0, seed=0):
    """How often each token was drawn at each of the rows, (3, V), in one call."""
    rows = (ROWS + offset).repeat(EACH, 1)
    drawn = subject.draws(rows, *case, seed=seed).view(EACH, len(ROWS))
    return torch.stack([torch.bincount(column, minlength=V) for column in drawn.T])


def unlikely(counts, chances) -> bool:
    """Whether a right sampler gives such counts (V,) with a chance below ALARM; chances (V,) sum to 1.

    The entropy of counts against chances, G, exceeds g with a chance of at most exp(-g) (e g / (K - 1))^(K - 1), K the
    number of chances above 0 (Agrawal 2020): for any number of draws, with nothing approximated.
    """
    counts, chances = counts.double(), chances.double()
    possible, seen = chances > 1e-12, counts > 0
    if (seen & ~possible).any():
        return True
    n, K = counts.sum(), int(possible.sum())
    g = (counts[seen] * (counts[seen] / (n * chances[seen])).log()).sum().item()
    if K == 1 or g <= K - 1:
        return False
    return -g + (K - 1) * (1 + math.log(g / (K - 1))) < math.log(ALARM)


def _fits(counts, chances, case, offset=0.0) -> bool:
    """Whether the counts (3, V) of a case can come of these chances."""
    rows = (ROWS + offset).double().repeat(2, 1)  # some versions read the rows together
    try:
        expected = chances(rows, *case)[: len(ROWS)]
    except Exception:  # a version that does not work here
        return False
    return not any(unlikely(c, e) for c, e in zip(counts, expected, strict=True))


def _nearest(seen, named=()) -> Mistake | None:
    """The known wrong version whose chances give the counts of all cases most easily, if any can give them at all.

    Of those that give them equally well, one of the `named` before any other.
    """
    fitting = {}
    for mistake in (*named, *_SAMPLERS):
        chances = mistake.wrong.chances
        if all(_fits(counts, chances, case) for case, counts in seen.items()):
            expected = {case: chances(ROWS.double().repeat(2, 1), *case)[: len(ROWS)] for case in seen}
            fitting[mistake] = sum(torch.xlogy(seen[case], expected[case]).sum().item() for case in seen)
    return max(fitting, key=fitting.get, default=None)  # of equals the first


def _in_words(case) -> str:
    temperature, top_k, top_p = case
    words = [f"T = {temperature:g}"] if temperature != 1 or (top_k is None and top_p is None) else []
    words += [f"k = {top_k}"] if top_k is not None else []
    return ", ".join(words + ([f"p = {top_p:g}"] if top_p is not None else []))


def _frequencies(subject, name) -> Result:
    """The draws of a group of cases, held against the right chances, then against conventions, then mistakes."""
    seen = {}
    for seed, case in enumerate(CASES[name]):
        try:
            seen[case] = _counted(subject, case, seed=seed)
        except _Bad as bad:
            return Result(name, FAILED, f"{bad} ({_in_words(case)})", "a token for each row", _raised(bad))
        except CannotLook:
            if name != "together":
                raise
    if not seen:
        raise CannotLook("the function does not take two of temperature, top_k and top_p")
    bad = [case for case, counts in seen.items() if not _fits(counts, _chances, case)]
    if not bad:
        words = "; ".join(_in_words(case) for case in seen)
        return Result(name, PASSED, f"as expected within sampling noise ({words})", "the chances of page 10")
    for chances, remark in CONVENTIONS if name == "together" else ():
        if all(_fits(counts, chances, case) for case, counts in seen.items()):
            return Result(name, DIFFERS, "another order of the steps", "temperature, top_k, then top_p", remark)
    measured, expected, fallback = _worst(seen[bad[0]], bad[0])
    if mistake := _nearest(seen, subject.named):
        subject.named.append(mistake)
        return Result(name, FAILED, measured, expected, f"the draws are those of this version: {mistake.cause}")
    if all((counts > 0).sum(-1).eq(1).all() for counts in seen.values()):
        return Result(name, FAILED, measured, expected, _ONE_DRAW.cause)
    return Result(name, FAILED, measured, expected, f"{fallback} (page 10)")


def _worst(counts, case):
    """The token that is farthest from its chance: measured, expected, and what can be said without a known version."""
    right, often = _chances(ROWS.double(), *case), counts / counts.sum(-1, keepdim=True)
    row, token = divmod(int((often - right).abs().argmax()), V)
    outside = (counts > 0) & (right == 0)
    if outside.any():
        row, token = divmod(int((often * outside).argmax()), V)
    rate, chance = often[row, token].item(), right[row, token].item()
    measured = f"token {token} drawn in {rate:.1%} of {int(counts[row].sum())} draws ({_in_words(case)})"
    if outside.any():
        kept, meant = int((counts[row] > 0).sum()), int((right[row] > 0).sum())
        return measured, "never", f"{kept} tokens are drawn, {meant} are allowed"
    missing = int(((counts[row] == 0) & (right[row] > 0.02)).sum())
    words = f"{missing} tokens never come that should" if missing else "the chances are not softmax(logits / T)"
    return measured, f"{chance:.1%}", words


def _temperature_0(subject) -> Result:
    name, expected = "temperature-0", "the highest logit, always"
    logits = torch.randn(200, 11, generator=torch.Generator().manual_seed(3))
    try:
        drawn = subject.draws(logits, temperature=0.0, seed=5)
    except _Bad as bad:
        if bad.error.startswith(REFUSALS):
            return Result(name, DIFFERS, str(bad), expected, "temperature 0 is refused; the book takes the highest")
        return Result(name, FAILED, str(bad), expected, _DIVIDES.cause)
    right = (drawn == logits.argmax(-1)).float().mean().item()
    if right == 1:
        return Result(name, PASSED, "the highest logit, always", expected)
    measured = f"the highest logit in {right:.0%} of 200 rows"
    counts = _counted(subject, (0.0, None, None))
    if _fits(counts, lambda z, t, k, p: _warm(z, 1), (0.0, None, None)):
        return Result(name, FAILED, measured, expected, _ZERO_NONE.cause)
    known = _nearest({(0.0, None, None): counts}) or _DIVIDES
    return Result(name, FAILED, measured, expected, known.cause)


def _large_logits(subject) -> Result:
    name, expected = "large-logits", "the same chances when all logits move by 300"
    for offset in (300.0, -300.0):
        try:
            counts = _counted(subject, (1.0, None, None), offset)
        except _Bad as bad:
            return Result(name, FAILED, f"{bad} (logits moved by {offset:+g})", expected, _OVERFLOW.cause)
        if not _fits(counts, _chances, (1.0, None, None), offset):
            if not _fits(_counted(subject, (1.0, None, None)), _chances, (1.0, None, None)):
                raise CannotLook("it would mislead, because “frequencies” failed")
            measured, _, _ = _worst(counts, (1.0, None, None))
            return Result(name, FAILED, f"{measured}, logits moved by {offset:+g}", expected, _OVERFLOW.cause)
    return Result(name, PASSED, "the same chances", expected)


def _top_k_large(subject) -> Result:
    name, expected = "top-k-large", "all tokens, where k is more than there are"
    for k in (V + 1, 10 * V):
        case = (1.0, k, None)
        try:
            counts = _counted(subject, case)
        except _Bad as bad:
            if bad.error.startswith(REFUSALS):
                return Result(name, DIFFERS, str(bad), expected, "a k above V is refused; the book then keeps all")
            return Result(name, FAILED, f"{bad} (k = {k}, V = {V})", expected, _K_BEYOND.cause)
        if not _fits(counts, _chances, case):
            if not _fits(_counted(subject, (1.0, None, None)), _chances, (1.0, None, None)):
                raise CannotLook("it would mislead, because “frequencies” failed")
            measured, _, words = _worst(counts, case)
            return Result(name, FAILED, measured, expected, f"{words}, although k = {k} hides nothing (page 10)")
    return Result(name, PASSED, "all tokens", expected)


def _ties(subject) -> Result:
    """Where tokens tie for the last place, either k or all that tie may stay; nothing below, and the first always."""
    name, expected = "ties", "the first, and one or all of those that tie for the second place"
    rows = torch.tensor([[1.0, 2.0, 1.0, 0.0, 1.0, -1.0]]).repeat(EACH, 1)
    counts = torch.bincount(subject.draws(rows, top_k=2, seed=8), minlength=6)
    first, tied, below = counts[1], counts[[0, 2, 4]].sum(), counts[[3, 5]].sum()
    measured = f"{int((counts > 0).sum())} tokens drawn for k = 2"
    if below:
        return Result(name, FAILED, measured, expected, "tokens below the threshold are drawn; see “top-k” (page 10)")
    for kept in range(1, 1 + int((counts[[0, 2, 4]] > 0).sum())):
        share = math.e / (math.e + kept)
        if tied and not unlikely(torch.stack((first, tied)), torch.tensor([share, 1 - share])):
            remark = "" if kept == 1 else "all that tie for the last place stay; the book keeps the lower ids"
            return Result(name, PASSED, measured, expected, remark)
    if not first or not tied:
        return Result(name, FAILED, measured, expected, "tokens that tie are hidden together (page 10)")
    if not _fits(_counted(subject, (1.0, None, None)), _chances, (1.0, None, None)):
        raise CannotLook("it would mislead, because “frequencies” failed")
    return Result(name, FAILED, f"the first in {first / EACH:.1%}", expected, "see “top-k” (page 10)")


# ---- generate: a model that anybody can compute, and wrong loops


class Fake(nn.Module):
    """A model whose next token follows from the tokens it is shown, and which notes what it was shown.

    After the tokens t_0..t_i the next one is 1 + sum of (j + 1)(t_j + 1), modulo V: it depends on every token and on
    where each stands. `style` says what a call returns: "logits" (B, T, V), "tuple" (logits, None), or "object".
    """

    def __init__(self, vocab_size: int, block_size: int, style: str = "logits"):
        super().__init__()
        self.config = SimpleNamespace(
            vocab_size=vocab_size, block_size=block_size, n_positions=block_size, n_ctx=block_size,
            context_length=block_size, max_position_embeddings=block_size,
        )  # fmt: skip
        self.vocab_size, self.style, self.seen = vocab_size, style, []
        self.block_size = self.context_length = self.context_size = self.max_seq_len = block_size
        self.wpe = self.pos_emb = self.position_embedding_table = nn.Embedding(block_size, 1)

    def forward(self, idx, targets=None, **others):
        self.seen.append((idx.detach().clone(), self.training, torch.is_grad_enabled()))
        logits = 60.0 * F.one_hot(following(idx, self.vocab_size), self.vocab_size)  # (B, T, V)
        logits = logits + 0.0 * self.wpe.weight.sum()
        if self.style == "object":
            return SimpleNamespace(logits=logits, loss=None)
        return (logits, None) if self.style == "tuple" else logits


def following(idx, V: int):
    """The token that `Fake` puts after each of idx (B, T) -> (B, T)."""
    place = torch.arange(1, idx.size(1) + 1, device=idx.device)
    return (1 + (place * (idx + 1)).cumsum(1)) % V


def _loop(crop=lambda idx, T: idx[:, -T:], pick=lambda logits: logits[:, -1], join=None, count=lambda n, t: n,
          end=lambda out, t: out, before=lambda model: None, after=lambda model: None):  # fmt: skip
    """A loop that generates, with one of its steps replaced."""
    join = join or (lambda idx, token: torch.cat((idx, token), dim=1))

    def generate(model, idx, max_new_tokens):
        before(model)
        start = idx.size(1)
        with torch.no_grad():
            for _ in range(count(max_new_tokens, start)):
                logits = model(crop(idx, model.config.block_size))
                logits = getattr(logits, "logits", logits)
                logits = logits[0] if isinstance(logits, tuple) else logits
                idx = join(idx, pick(logits).argmax(-1, keepdim=True))
        after(model)
        return end(idx, start)

    return generate


def _forgets_the_past(model, idx, max_new_tokens):
    first, new = idx, []
    for _ in range(max_new_tokens):
        logits = model(first[:, -model.config.block_size :])
        logits = getattr(logits, "logits", logits)
        logits = logits[0] if isinstance(logits, tuple) else logits
        new.append(logits[:, -1].argmax(-1, keepdim=True))
    return torch.cat((first, *new), dim=1)


def _window_alone(model, idx, max_new_tokens):
    for _ in range(max_new_tokens):
        idx = idx[:, -model.config.block_size :]
        logits = model(idx)
        logits = getattr(logits, "logits", logits)
        logits = logits[0] if isinstance(logits, tuple) else logits
        idx = torch.cat((idx, logits[:, -1].argmax(-1, keepdim=True)), dim=1)
    return idx


def _written_over(model, idx, max_new_tokens):
    out = _loop()(model, idx, max_new_tokens)
    idx.copy_(out[:, -idx.size(1) :])
    return out


def _wrote(name, words, wrong):
    return Mistake(name, "generate", words, "page 10", wrong)


_LOOPS = (
    _wrote("generate-not-cropped", "the context is not cut to the last block_size tokens",
           _loop(crop=lambda idx, T: idx)),
    _wrote("generate-cropped-in-front", "the first block_size tokens are kept, idx[:, :T], where the last are needed, "
           "idx[:, -T:]", _loop(crop=lambda idx, T: idx[:, :T])),
    _wrote("generate-cropped-one-short", "the context is cut one token too short: the model can read block_size",
           _loop(crop=lambda idx, T: idx[:, -(T - 1) :] if idx.size(1) >= T else idx)),
    _wrote("generate-cropped-one-long", "the context is cut one token too long: block_size + 1",
           _loop(crop=lambda idx, T: idx[:, -(T + 1) :])),
    _wrote("generate-last-token-only", "the model is shown the last token alone, not the text before it",
           _loop(crop=lambda idx, T: idx[:, -1:])),
    _wrote("generate-prompt-only", "the model is shown the prompt again at every step: new tokens are never fed back",
           _forgets_the_past),
    _wrote("generate-first-position", "the token is taken after the first position, logits[:, 0], not after the last",
           _loop(pick=lambda logits: logits[:, 0])),
    _wrote("generate-position-before", "the token is taken after the last position but one, logits[:, -2]",
           _loop(pick=lambda logits: logits[:, -2] if logits.size(1) > 1 else logits[:, -1])),
    _wrote("generate-all-positions", "a token is taken after every position, and all of them are appended",
           _loop(pick=lambda logits: logits, join=lambda idx, token: torch.cat((idx, token.flatten(1)), dim=1))),
    _wrote("generate-first-row", "every row gets the token of the first row",
           _loop(pick=lambda logits: logits[:1, -1].expand(logits.size(0), -1))),
    _wrote("generate-rows-averaged", "one token is chosen for all rows together",
           _loop(pick=lambda logits: logits[:, -1].mean(0, keepdim=True).expand(logits.size(0), -1))),
    _wrote("generate-in-front", "the new token is put in front of the text, not behind it",
           _loop(join=lambda idx, token: torch.cat((token, idx), dim=1))),
    _wrote("generate-without-prompt", "the new tokens are returned without the prompt",
           _loop(end=lambda out, start: out[:, start:])),
    _wrote("generate-window-alone", "the text itself is cut to the window: what has left it is missing from the result",
           _window_alone),
    _wrote("generate-one-fewer", "one token too few is appended", _loop(count=lambda n, t: max(n - 1, 0))),
    _wrote("generate-one-more", "one token too many is appended", _loop(count=lambda n, t: n + 1)),
    _wrote("generate-at-least-one", "a token is appended where none is asked for: test before the first step",
           _loop(count=lambda n, t: max(n, 1))),
    _wrote("generate-prompt-counted", "the prompt is counted among the max_new_tokens",
           _loop(count=lambda n, t: max(n - t, 0))),
    _wrote("generate-last-dropped", "the last token of the result is cut off",
           _loop(end=lambda out, start: out[:, :-1])),
    _wrote("generate-least-likely", "the lowest logit is taken, not a likely one",
           _loop(pick=lambda logits: -logits[:, -1])),
)  # fmt: skip
_EVAL_LEFT = _wrote("generate-leaves-eval", "the model is left in evaluation mode, so training goes on without "
                    "dropout: "
                    "put back the mode it was in", _loop(before=lambda model: model.eval()))  # fmt: skip
_TRAIN_LEFT = _wrote("generate-leaves-train", "the model is left in training mode, whatever mode it was in",
                     _loop(before=lambda model: model.eval(), after=lambda model: model.train()))  # fmt: skip
_OVERWRITES = _wrote("generate-writes-over-prompt", "the prompt is changed in place: join into a new tensor",
                     _written_over)  # fmt: skip
GENERATE_CHECKS = ("result", "tokens", "long-prompt", "rows", "no-tokens", "prompt-kept", "mode", "gradients")


def check_generate(generate, vocab_size: int = 65, block_size: int = 64) -> Report:
    """Whether generate(model, idx (B, T), max_new_tokens) -> (B, T + max_new_tokens) continues each row of idx.

    It is given a model of these sizes whose next token is known, and which notes what it was shown.
    """
    with untouched(nn.Identity()):
        return _Generating(generate, vocab_size, block_size).report()


class _Generating:
    """A reader's loop, and how it is called."""

    def __init__(self, generate, V: int, T: int):
        self.generate, self.V, self.T, self.style, self.real = generate, V, T, "logits", False
        sizes = {"vocab_size": V, "temperature": 1.0, "top_k": None, "top_p": None}
        sizes |= dict.fromkeys(("block_size", "context_size", "context_length", "max_seq_len"), T)
        self.signature = Signature(generate, ("model", "idx", "max_new_tokens"), sizes)

    def prompt(self, B: int, length: int, seed: int = 0):
        return torch.randint(self.V, (B, length), generator=torch.Generator().manual_seed(seed))

    def model(self):
        """A new model to generate with, in evaluation mode."""
        if not self.real:
            return Fake(self.V, self.T, self.style).eval()
        torch.manual_seed(0)
        model = GPT(GPTConfig(vocab_size=self.V, block_size=self.T, n_layer=1, n_head=2, n_embd=16)).eval()
        with torch.no_grad():
            model.lm_head.weight.mul_(1e5)  # one logit towers over the others, so that no draw is open
        return model

    def call(self, idx, count: int, model=None, generate=None):
        """The answer of one call, and the model that it was given."""
        model = model or self.model()
        if generate is not None:
            return ask(generate, model, idx, count), model
        first, named = self.signature.arguments(model=model, idx=idx, max_new_tokens=count)

        def call(*arguments, **keywords):
            seeded(0)
            return self.generate(*arguments, **keywords)

        return ask(call, *first, **named), model

    def right(self, idx, count: int):
        """What a right loop returns."""
        model, T = self.model(), self.T
        for _ in range(count):
            seen = idx[:, -T:]
            with torch.no_grad():
                after = following(seen, self.V)[:, -1] if not self.real else model(seen)[:, -1].argmax(-1)
            idx = torch.cat((idx, after[:, None]), dim=1)
        return idx

    def report(self) -> Report:
        try:
            first = self.first()
        except CannotLook as reason:
            return Report([Result(name, NOT_CHECKED, cause=str(reason)) for name in GENERATE_CHECKS])
        if first.status != PASSED:
            return Report((first, *blocked(GENERATE_CHECKS[1:], "result")))
        asked = (self.tokens, self.long_prompt, self.rows, self.no_tokens, self.prompt_kept, self.mode, self.gradients)
        return Report((first, *(question() for question in asked)))

    def first(self) -> Result:
        """Find out what the loop takes a model to return; then whether it returns whole numbers with two axes."""
        expected, idx, errors = "(B, T + max_new_tokens) whole numbers", self.prompt(3, 4), []
        for self.style, self.real in (("logits", False), ("tuple", False), ("object", False), ("logits", True)):
            answer, _ = self.call(idx, 2)
            if not answer.error:
                break
            errors.append(answer.error)
        else:
            self.style, self.real = "logits", False
            if errors[0].startswith("AttributeError"):
                raise CannotLook(f"it needs more of a model than a call gives: {errors[0]}")
            return Result("result", FAILED, f"raises {errors[0]}", expected, "it stops at a prompt (3, 4) (page 10)")
        try:
            value = _ids(answer.value)
        except _Bad as bad:
            return Result("result", FAILED, str(bad), expected, "join the prompt and what was drawn (page 10)")
        if value.size(0) != 3:
            measured = f"shape {tuple(value.shape)} for a prompt (3, 4) and 2 new tokens"
            return Result("result", FAILED, measured, expected, "a row of the result for each of idx (page 10)")
        return Result("result", PASSED, f"shape {tuple(value.shape)} for a prompt (3, 4) and 2 new tokens", expected)

    def compared(self, name, questions, expected) -> Result:
        """Ask all the questions (idx, count), and name the known wrong version that answers them alike."""
        answers, wrong = [], None
        for idx, count in questions:
            answer, model = self.call(idx, count)
            answers.append(self.read(answer))
            if wrong is None and not _equal(answers[-1], self.right(idx, count)):
                wrong = (idx, count, answers[-1], answer, model)
        if wrong is None:
            return Result(name, PASSED, "every token is the model's", expected)
        idx, count, value, answer, model = wrong
        asked = f"a prompt of {idx.size(1)} and {count} new tokens"
        if value is None:
            measured = f"{f'raises {answer.error}' if answer.error else 'no ids come back'} for {asked}"
        elif value.size(1) != idx.size(1) + count:
            measured = f"{value.size(1)} tokens for {asked}"
        else:
            where = int((value != self.right(idx, count)).any(0).nonzero()[0])
            measured = f"another token from place {where} on, for {asked}"
        for mistake in _LOOPS if not self.real else ():
            known = [self.read(self.call(idx, count, generate=mistake.wrong)[0]) for idx, count in questions]
            if all(_equal(a, k) for a, k in zip(answers, known, strict=True)):
                return Result(name, FAILED, measured, expected, f"the result is that of this version: {mistake.cause}")
        return Result(name, FAILED, measured, expected, f"{self.shown(model, idx)} (page 10)")

    def read(self, answer):
        if answer.error:
            return None
        try:
            return _ids(answer.value)
        except _Bad:
            return None

    def shown(self, model, idx) -> str:
        """What the model was shown, in words, where no known version explains the result."""
        if self.real or not getattr(model, "seen", None):
            return "the tokens are not those that the model gives"
        lengths = [seen[0].size(1) for seen in model.seen]
        if max(lengths) > self.T:
            return f"the model was shown {max(lengths)} tokens, it reads {self.T}"
        first = model.seen[0][0]
        if not torch.equal(first, idx[:, -self.T :]):
            return f"the model was first shown {lengths[0]} tokens, which are not the prompt's last {self.T} at most"
        return f"the model was shown the right prompt, then rows of {', '.join(map(str, lengths[1:4]))} tokens"

    def tokens(self) -> Result:
        """Short prompts: each new token follows from all before it."""
        questions = [(self.prompt(1, length, length), 5) for length in (1, 2, 5) if length + 5 <= self.T]
        questions = questions or [(self.prompt(1, 1), self.T - 1)]
        return self.compared("tokens", questions, "the prompt, then the token after the last position, again and again")

    def long_prompt(self) -> Result:
        """Prompts as long as the window and longer, and texts that grow past it."""
        lengths = [self.T, self.T + 3, 2 * self.T + 1, max(1, self.T - 2)]
        questions = [(self.prompt(1, length, length), 5) for length in lengths]
        result = self.compared("long-prompt", questions, f"the last {self.T} tokens are shown, no more and no fewer")
        if result.status != PASSED or self.real:
            return result
        other = _Generating(self.generate, self.V, self.T + 5)
        other.style = self.style
        again = other.compared("", [(other.prompt(1, self.T + 9), 3)], "")
        if again.status == FAILED:
            remark = f"the length {self.T} is fixed in the function: a model of another block_size is not served"
            return Result("long-prompt", DIFFERS, again.measured, result.expected, remark)
        return result

    def rows(self) -> Result:
        """Several rows: each is continued as if it were alone."""
        return self.compared(
            "rows", [(self.prompt(3, 4, 7), 4), (self.prompt(2, 3, 8), 3)], "each row as if it were alone"
        )

    def no_tokens(self) -> Result:
        """max_new_tokens 0 appends nothing."""
        return self.compared(
            "no-tokens", [(self.prompt(2, 3), 0), (self.prompt(2, 3), 2)], "the prompt itself for max_new_tokens = 0"
        )

    def prompt_kept(self) -> Result:
        idx = self.prompt(2, 4)
        answer, _ = self.call(idx, 3)
        if answer.changed:
            return Result("prompt-kept", FAILED, "idx is another after the call", "as it was", _OVERWRITES.cause)
        return Result("prompt-kept", PASSED, "idx is as it was", "as it was")

    def mode(self) -> Result:
        """The model is afterwards in the mode it was in, and had no dropout on the way."""
        expected, shown, part = "the mode it was in", False, False
        for training in (False, True):
            model = self.model().train(training)
            model.wpe.train(not training)  # a part that is in another mode than the whole
            self.call(self.prompt(2, 4), 3, model)
            if model.training != training:
                left = "training" if model.training else "evaluation"
                mistake = _TRAIN_LEFT if model.training else _EVAL_LEFT
                return Result("mode", FAILED, f"in {left} mode afterwards", expected, mistake.cause)
            part = part or model.wpe.training == training
            shown = shown or any(seen[1] for seen in getattr(model, "seen", ()))
        if part:
            remark = "train() and eval() set every part: one that was in another mode is in that no more"
            return Result("mode", DIFFERS, "a part has another mode than before", expected, remark)
        if shown:
            remark = "it generates in the mode that the model is in: call model.eval() first, or dropout stays on"
            return Result("mode", DIFFERS, "as before; generated in training mode", expected, remark)
        return Result("mode", PASSED, "as before", expected)

    def gradients(self) -> Result:
        """Nothing is recorded for gradients that nobody asks for."""
        _, model = self.call(self.prompt(2, 4), 3)
        if self.real:
            return Result("gradients", NOT_CHECKED, cause="it uses parts of the model that this check does not watch")
        if any(seen[2] for seen in model.seen):
            remark = "without torch.no_grad() every step is recorded, which takes time and memory, for nothing"
            return Result("gradients", DIFFERS, "recorded", "not recorded", remark)
        return Result("gradients", PASSED, "not recorded", "not recorded")


def _ids(value) -> torch.Tensor:
    """What a loop returned as ids (B, N); the first of several things."""
    if isinstance(value, tuple) and value and not isinstance(value[0], int):
        value = value[0]
    try:
        value = torch.as_tensor(value).detach().cpu()
    except Exception:
        raise _Bad(f"returns a {type(value).__name__}") from None
    if value.dim() != 2:
        raise _Bad(f"returns shape {tuple(value.shape)}")
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise _Bad(f"returns {value.dtype}, where ids are whole numbers".replace("torch.", ""))
    return value.long()


def _equal(a, b) -> bool:
    return (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))


# ---- caches: wrong steps of the book's own model


def _wrong_step(position=lambda S, T, most: torch.arange(S, S + T), hidden=None, keep=None, rows=False, grow=True,
                joined=True, newest=True):  # fmt: skip
    """What makes, of a GPT of the book, a step with one part replaced.

    `position` says which positions T tokens after S get; `hidden(S, T)` (T, S + T) which keys their queries do not see.
    """

    def make(model):
        def step(idx, cache=None):
            S, T = 0 if cache is None else cache[0][0].size(-2), idx.size(1)
            x = model.wte(idx) + model.wpe(position(S, T, model.config.block_size))
            kept = []
            for i, block in enumerate(model.h):
                attn, u = block.attn, block.ln_1(x)
                B, _, C = u.shape
                q, k, v = attn.c_attn(u).view(B, T, 3, attn.n_head, C // attn.n_head).permute(2, 0, 3, 1, 4)
                new = (k[:1].expand_as(k), v[:1].expand_as(v)) if rows else (k, v)
                if S and joined:
                    k, v = (torch.cat((old, now), dim=-2) for old, now in zip(cache[i], (k, v), strict=True))
                    new = tuple(torch.cat((old, now), dim=-2) for old, now in zip(cache[i], new, strict=True))
                kept.append(cache[i] if S and not grow else new)
                if S and not newest:
                    k, v = k[:, :, :-1], v[:, :, :-1]
                scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
                mask = torch.ones(T, k.size(-2), dtype=torch.bool).triu(1 + k.size(-2) - T)
                if hidden is not None:
                    mask = hidden(S, T)[:, : k.size(-2)]
                y = F.softmax(scores.masked_fill(mask, -math.inf), dim=-1) @ v
                x = x + attn.c_proj(y.transpose(1, 2).reshape(B, T, C))
                x = x + block.mlp(block.ln_2(x))
            return model.lm_head(model.ln_f(x)), tuple(kept)

        return step

    return make


def _causal(S, T):
    return torch.ones(T, S + T, dtype=torch.bool).triu(1 + S)


def _nothing(S, T):
    return torch.zeros(T, S + T, dtype=torch.bool)


def _never_forgets(model):
    """Keeps the past on itself, and a new text does not clear it."""
    step, state = _wrong_step(position=lambda S, T, most: torch.arange(S, S + T).clamp(max=most - 1))(model), []

    def wrong(idx, cache=None):
        kept = state[-1] if state and state[-1][0][0].size(0) == idx.size(0) else None
        logits, kept = step(idx, kept)
        state.append(kept)
        return logits, kept

    return wrong


def _one_for_all(model):
    """Keeps the past on itself: texts that take turns get each other's."""
    step, state = _wrong_step()(model), {}

    def wrong(idx, cache=None):
        logits, state["kept"] = step(idx, None if cache is None else state["kept"])
        return logits, True

    return wrong


def _cached(name, words, make):
    return Mistake(name, "step", words, "page 11", make)


_STEPS = (
    _cached("cache-ignored", "the cache is not read: each piece is treated as a text of its own",
            lambda model: lambda idx, cache=None: (model(idx), cache)),
    _cached("cache-positions-restart", "positions start at 0 again with each piece: they go on where the cache ends",
            _wrong_step(position=lambda S, T, most: torch.arange(T))),
    _cached("cache-positions-one-ahead", "positions are one too high after the first piece",
            _wrong_step(position=lambda S, T, most: torch.arange(S, S + T).add(int(S > 0)).clamp(max=most - 1))),
    _cached("cache-positions-one-behind", "positions are one too low after the first piece",
            _wrong_step(position=lambda S, T, most: torch.arange(S, S + T) - int(S > 0))),
    _cached("cache-position-shared", "all tokens of a piece get the position of its first",
            _wrong_step(position=lambda S, T, most: torch.full((T,), S))),
    _cached("cache-prompt-unmasked", "the first piece has no mask: its tokens see what comes after them",
            _wrong_step(hidden=lambda S, T: _causal(S, T) if S else _nothing(S, T))),
    _cached("cache-piece-unmasked", "a later piece has no mask: its tokens see those that come after them in the piece",
            _wrong_step(hidden=lambda S, T: _nothing(S, T) if S else _causal(S, T))),
    _cached("cache-unmasked", "no piece has a mask: tokens see what comes after them in their piece",
            _wrong_step(hidden=_nothing)),
    _cached("cache-mask-top-left", "the mask starts in the upper left corner: the first query of a piece sees the "
            "first "
            "key alone, where it should see all that is kept",
            _wrong_step(hidden=lambda S, T: torch.ones(T, S + T, dtype=torch.bool).triu(1))),
    _cached("cache-replaced", "the new keys replace the kept ones: join both",
            _wrong_step(joined=False)),
    _cached("cache-newest-dropped", "the newest key is dropped: a token does not see itself",
            _wrong_step(newest=False)),
    _cached("cache-not-grown", "the cache that comes back is the one that went in: what is new is not kept",
            _wrong_step(grow=False)),
    _cached("cache-first-row", "the keys of the first row are kept for every row", _wrong_step(rows=True)),
    _cached("cache-not-cleared", "a new text finds what the last one left: cache None must start from nothing",
            _never_forgets),
    _cached("cache-one-for-all", "the past is kept in one place for all texts: it belongs into the cache that goes in "
            "and comes out", _one_for_all),
    _cached("cache-position-clamped", "past the window every token gets the last position",
            _wrong_step(position=lambda S, T, most: torch.arange(S, S + T).clamp(max=most - 1))),
    _cached("cache-position-wraps", "past the window positions start at 0 again, while the kept keys stay",
            _wrong_step(position=lambda S, T, most: torch.arange(S, S + T) % most)),
)  # fmt: skip
_KNOWN_STEPS = {mistake.name: mistake for mistake in _STEPS}
CACHE_CHECKS = (
    "result", "second-text", "whole-prompt", "one-by-one", "prompt-then-one-by-one", "pieces", "rows", "taking-turns",
    "branching", "past-the-window",
)  # fmt: skip
CACHE_ROUNDING = {torch.float64: 1e-8, torch.float32: 2e-5}  # of the largest logit; of what is narrower, 3e-2


def check_cache(model: nn.Module, step, vocab_size: int | None = None, block_size: int | None = None) -> Report:
    """Whether step(idx (B, T), cache) -> (logits (B, T, V), cache), fed piece by piece, gives the logits of `model`.

    `step` belongs to this model, and `cache` is None at the start of a text. The sizes are those of the model's own
    configuration, else 65 and 64. Compared with the model's weights as they are, within rounding, in evaluation mode.
    Raises TypeError or ValueError for a model or sizes that make no sense.
    """
    config = getattr(model, "config", None)
    sizes = (vocab_size, getattr(config, "vocab_size", None), 65), (block_size, getattr(config, "block_size", None), 64)
    V, T = (next(size for size in given if isinstance(size, int)) for given in sizes)
    subject = Subject(model, V, T)
    with untouched(subject.original):
        subject.original.eval()
        try:
            return _Stepping(subject, step).report()
        except CannotLook as reason:
            return Report([Result(name, NOT_CHECKED, cause=str(reason)) for name in CACHE_CHECKS])
        except Exception as error:  # of the model, not of the step
            why = f"the check was stopped by {one_line(error)}"
            return Report([Result(name, NOT_CHECKED, cause=why) for name in CACHE_CHECKS])


class _Stepping:
    """A reader's step, the model that it belongs to, and texts to feed it with."""

    def __init__(self, subject: Subject, step):
        subject.probe()
        self.subject, self.step, self.model = subject, step, subject.fresh()
        self.T = min(subject.T, 12)
        if self.T < 3:
            raise CannotLook(f"a context of {subject.T} tokens is too short for a cache")
        self.texts = subject.tokens(3, self.T, seed=21)  # (3, T)
        self.last_only = False
        logits = subject.look(self.model, self.texts)
        self.tolerance = CACHE_ROUNDING.get(logits.dtype, 3e-2) * max(logits.abs().max().item(), 1e-30)
        changed = self.texts.clone()
        changed[:, :-1] = subject.other(self.texts)[:, :-1]
        moved = (subject.look(self.model, changed) - logits)[:, -1].abs().max().item()
        if not moved > 30 * self.tolerance:
            raise CannotLook(
                f"with these weights the past hardly moves the last logits ({moved:.0e}): a wrong cache would not "
                "show, so try a model whose attention writes something, a trained one for example"
            )

    # The pieces, as lengths, of a text of T tokens.
    def patterns(self):
        T = self.T
        prompt, later = T // 2, T - T // 2
        return {
            "whole-prompt": [T],
            "one-by-one": [1] * T,
            "prompt-then-one-by-one": [prompt] + [1] * later,
            "pieces": [T // 3, T // 3, T - 2 * (T // 3)] if T >= 6 else [1, T - 1],
        }

    def feed(self, texts, pieces, step=None, cache=None):
        """The logits of all pieces, fed one after another: (B, T, V), or (B, pieces, V) where each has its last only.

        Raises _Bad for a step that stops or returns something else.
        """
        step = step or self.step

        def run():
            with torch.no_grad():
                kept, out, start = cache, [], 0
                for length in pieces:
                    returned = step(texts[:, start : start + length].clone(), kept)
                    if not isinstance(returned, tuple | list) or len(returned) < 2:
                        raise _Bad(f"returns a {type(returned).__name__}, not logits and a cache")
                    kept = returned[1]
                    out.append((length, returned[0]))
                    start += length
                return out, kept

        answer = ask(run)
        if answer.error:
            raise _Bad(answer.error.removeprefix("_Bad: ") if "_Bad" in answer.error else f"raises {answer.error}")
        out, kept = answer.value
        return [self.read(logits, len(texts), length) for length, logits in out], kept

    def read(self, logits, B: int, length: int):
        logits = getattr(logits, "logits", logits)
        if not isinstance(logits, torch.Tensor) or not logits.is_floating_point():
            raise _Bad(f"returns a {type(logits).__name__} for the logits")
        if logits.dim() == 2 and logits.size(0) == B:
            logits = logits[:, None]
        if (
            logits.dim() != 3
            or logits.size(0) != B
            or logits.size(1) not in (1, length)
            or logits.size(2) < self.subject.V
        ):
            raise _Bad(f"returns logits of shape {tuple(logits.shape)} for a piece ({B}, {length})")
        self.last_only = self.last_only or logits.size(1) < length
        return logits

    def apart(self, texts, pieces, outputs) -> float:
        """How far the logits lie from those of the model without a cache, at most; infinity for NaN."""
        right, start, most = self.subject.look(self.model, texts), 0, 0.0
        for length, logits in zip(pieces, outputs, strict=True):
            rows = right[:, start : start + length][:, -logits.size(1) :]
            difference = (logits[..., : rows.size(-1)].to(rows) - rows[..., : logits.size(-1)]).abs()
            most = max(most, difference.nan_to_num(math.inf, math.inf).max().item())
            start += length
        return most

    def report(self) -> Report:
        """All questions, in an order in which a failure explains those after it."""
        expected = "logits (B, T, V) and a cache"
        try:
            once, _ = self.feed(self.texts[:1], [2, 1])
        except _Bad as bad:
            first = Result("result", FAILED, str(bad), expected, "step(idx, None) starts a text (page 11)")
            return Report((first, *blocked(CACHE_CHECKS[1:], "result")))
        results = [Result("result", PASSED, "logits and a cache", expected), self.second_text(once)]
        if results[-1].status == FAILED:
            return Report((*results, *blocked(CACHE_CHECKS[2:], "second-text")))
        for name, pieces in self.patterns().items():
            results.append(self.compared(name, self.texts[:1], pieces))
        patterns_fail = any(result.status == FAILED for result in results)
        results.append(self.rows(patterns_fail))
        asked = {
            "taking-turns": self.taking_turns,
            "branching": self.branching,
            "past-the-window": self.past_the_window,
        }
        if patterns_fail:
            results += blocked(asked, next(r.name for r in results if r.status == FAILED))
        else:
            results += [self.answered(name, question) for name, question in asked.items()]
        return Report(self.named(results))

    def answered(self, name, question) -> Result:
        try:
            return question()
        except _Bad as bad:
            return Result(name, FAILED, str(bad), "logits and a cache", "")

    def compared(self, name, texts, pieces) -> Result:
        expected = f"0, within {self.tolerance:.0e}"
        try:
            outputs, _ = self.feed(texts, pieces)
        except _Bad as bad:
            return Result(name, FAILED, str(bad), expected, "")
        apart = self.apart(texts, pieces, outputs)
        measured = f"logits differ by {apart:.1e} ({' + '.join(map(str, pieces[:4]))}{' + …' * (len(pieces) > 4)})"
        remark = "only each piece's last logits come back: the others were not compared" if self.last_only else ""
        return Result(name, PASSED if apart <= self.tolerance else FAILED, measured, expected, remark)

    def rows(self, patterns_fail) -> Result:
        if patterns_fail:
            return blocked(("rows",), "one row")[0]
        T = self.T
        return self.compared("rows", self.texts, [T // 2, 1, T - T // 2 - 1])

    def second_text(self, once) -> Result:
        """The same text again, after another one that was left in the middle: nothing of either is found."""
        expected, cause = "the same logits as the first time", _KNOWN_STEPS["cache-not-cleared"].cause
        try:
            self.feed(self.texts[1:2], [self.T // 2])
            again, _ = self.feed(self.texts[:1], [2, 1])
        except _Bad as bad:
            return Result("second-text", FAILED, str(bad), expected, cause)
        if all(_near(a, b, self.tolerance) for a, b in zip(once, again, strict=True)):
            return Result("second-text", PASSED, "the same", expected)
        return Result("second-text", FAILED, "others", expected, cause)

    def taking_turns(self) -> Result:
        """Two texts, fed by turns, each with its own cache."""
        half, (a, b) = self.T // 2, (self.texts[:1], self.texts[1:2])
        (first, kept_a), (second, kept_b) = self.feed(a, [half]), self.feed(b, [half])
        rest = [1] * (self.T - half)
        more_a, _ = self.feed(a[:, half:], rest, cache=kept_a)
        more_b, _ = self.feed(b[:, half:], rest, cache=kept_b)
        apart = max(self.apart(a, [half, *rest], first + more_a), self.apart(b, [half, *rest], second + more_b))
        status = PASSED if apart <= self.tolerance else FAILED
        return Result("taking-turns", status, f"logits differ by {apart:.1e}", f"0, within {self.tolerance:.0e}")

    def branching(self) -> Result:
        """Two continuations of one cache: the first must not change what the second starts from."""
        half, expected = self.T // 2, "two continuations of one cache do not meet"
        first, kept = self.feed(self.texts[:1], [half])
        other = torch.cat((self.texts[:1, :half], self.texts[1:2, half:]), dim=1)
        rest = [1] * (self.T - half)
        try:
            self.feed(self.texts[:1, half:], rest, cache=kept)
            more, _ = self.feed(other[:, half:], rest, cache=kept)
            apart = self.apart(other, [half, *rest], first + more)
        except _Bad as bad:
            apart, why = math.inf, str(bad)
        else:
            why = f"the second differs by {apart:.1e}"
        if apart <= self.tolerance:
            return Result("branching", PASSED, "they do not", expected)
        remark = "the cache is changed in place: one text at a time is right, going back to an earlier cache is not"
        return Result("branching", DIFFERS, why, expected, remark)

    def past_the_window(self) -> Result:
        """One token more than the model reads."""
        name, T = "past-the-window", self.subject.T
        expected = "an error, or the logits of the last block_size tokens"
        if T > 2048:
            raise _Bad("the window is too long to be filled here")
        text = self.subject.tokens(1, T + 1, seed=22)
        try:
            _, kept = self.feed(text, [T])
        except _Bad as bad:
            return Result(name, FAILED, f"{bad}, with {T} tokens", expected, "a full window still fits (page 11)")
        try:
            outputs, _ = self.feed(text[:, T:], [1], cache=kept)
        except _Bad as bad:
            return Result(name, PASSED, f"it stops: {bad}", expected)
        again = self.subject.look(self.model, text[:, 1:])[:, -1]
        apart = (outputs[0][:, -1, : again.size(-1)] - again).abs().nan_to_num(math.inf, math.inf).max().item()
        if apart <= self.tolerance:
            return Result(name, PASSED, "the logits of the last block_size tokens", expected)
        measured = f"logits differ by {apart:.1e} from those of the last {T} tokens"
        try:
            longer = self.subject.look(self.model, text)[:, -1]
            apart = (outputs[0][:, -1, : longer.size(-1)] - longer).abs().max().item()
            if apart <= self.tolerance:
                return Result(name, PASSED, "the logits of the whole text, which the model reads too", expected)
        except Exception:  # the model itself stops there, as most do
            pass
        tables = [p for p in self.subject.original.parameters() if p.dim() >= 2 and T in p.shape[:-1]]
        if not tables:
            remark = "a window that slides without learned positions is a design of its own, and unlike the model"
            return Result(name, DIFFERS, measured, expected, remark)
        return Result(name, FAILED, measured, expected, "")

    # ---- causes

    def named(self, results) -> list[Result]:
        """The results, with the likely cause of those that failed."""
        failed = [result.name for result in results if result.status == FAILED]
        if not failed:
            return results
        cause = self.known(results) or self.guessed(results)
        return [
            Result(r.name, r.status, r.measured, r.expected, r.cause or cause) if r.status == FAILED else r
            for r in results
        ]

    def known(self, results) -> str:
        """The known wrong version of the book's model that gives the same logits everywhere, or nothing."""
        if type(self.subject.original) is not GPT:
            return ""
        mine = self.trace(self.step)
        for mistake in _STEPS:
            theirs = self.trace(mistake.wrong(self.subject.original))
            if all(_near(a, b, self.tolerance) for a, b in zip(mine, theirs, strict=True)):
                return f"the logits are those of this version: {mistake.cause}"
        return ""

    def trace(self, step) -> list:
        """What a step gives for all patterns, texts by turns, and a token past the window; None where it stops."""
        found, T = [], self.subject.T
        long = self.subject.tokens(1, T + 1, seed=22)
        questions = [(self.texts[:1], pieces) for pieces in self.patterns().values()]
        questions += [
            (self.texts, [self.T // 2, 1, self.T - self.T // 2 - 1]),
            (self.texts[:2], [2, 1]),
            (long, [T, 1]),
        ]
        for texts, pieces in questions:
            try:
                found.append(torch.cat([o[:, -1] for o in self.feed(texts, pieces, step)[0]]))
            except _Bad:
                found.append(None)
        try:
            (_, kept), (_, other) = self.feed(self.texts[:1], [3], step), self.feed(self.texts[1:2], [3], step)
            for cache in (kept, other):
                found.append(self.feed(self.texts[:1, 3:], [1], step, cache)[0][0][:, -1])
        except _Bad:
            found += [None] * (len(questions) + 2 - len(found))
        return found

    def guessed(self, results) -> str:
        """The likely cause by who moves whom, and by which feeding fails."""
        status = {result.name: result.status for result in results}
        words = {name: mistake.cause for name, mistake in _KNOWN_STEPS.items()}
        if status["rows"] == FAILED:
            return words["cache-first-row"]
        if status["taking-turns"] == FAILED:
            return words["cache-one-for-all"]
        if status["past-the-window"] == FAILED:
            return (
                "the kept keys have positions that are theirs no more: start again from the last tokens, or stop "
                "(page 11)"
            )
        try:
            if self.moves([4], 3, 1):
                return words["cache-prompt-unmasked" if not self.moves([1, 3], 3, 2) else "cache-unmasked"]
            if self.moves([1, 3], 3, 2):
                return words["cache-piece-unmasked"]
            seen = [self.moves([1] * 4, j, 3) for j in range(3)]
            if not any(seen):
                return words["cache-ignored"]
            if seen == [True, False, False]:
                return words["cache-mask-top-left"]
            if not all(seen):
                return "not all that was fed is kept: join the new keys behind the old (page 11)"
        except _Bad:
            return "the step stops (page 11)"
        return (
            "every token is seen, and none too early: do positions go on where the cache ends, is the newest key "
            "among the keys, is the past joined in front? (page 11)"
        )

    def moves(self, pieces, j: int, i: int) -> bool:
        """Whether another token at place j changes the logits at place i of a text so fed."""
        text = self.texts[:1, : sum(pieces)]
        changed = text.clone()
        changed[:, j] = (changed[:, j] + 1) % self.subject.V
        pair = [torch.cat(self.feed(t, pieces)[0], dim=1) for t in (text, changed)]
        if self.last_only:
            return False
        return (pair[0][:, i] - pair[1][:, i]).abs().max().item() > self.tolerance


def _near(a, b, tolerance) -> bool:
    if a is None or b is None:
        return a is None and b is None
    return a.shape == b.shape and (a.double() - b.double()).abs().nan_to_num(math.inf, math.inf).max() <= tolerance


# ---- what the catalogue needs


def _asked_with(make) -> Report:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=11, block_size=14, n_layer=2, n_head=2, n_embd=12))
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.normal_(0, 1 / math.sqrt(p.size(-1)))
    return check_cache(model, make(model))


MISTAKES = (
    *_SAMPLERS, _SEEDS, _ONE_DRAW, _DIVIDES, _ZERO_NONE, _OVERFLOW, _K_BEYOND, _IN_PLACE, _SQUEEZED,
    *_LOOPS, _EVAL_LEFT, _TRAIN_LEFT, _OVERWRITES, *_STEPS,
)  # fmt: skip
ASK = {"sample": check_sampler, "generate": check_generate, "step": _asked_with}
