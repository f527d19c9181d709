"""Check of several heads of attention: is the output what the module's own matrices give, multiplied as they should be?

If not, they are multiplied in the ways that are known to be wrong. Which matrix is the queries' is guessed from names
and shapes, and every guess is tried.
"""

import itertools
import math
import re
from collections.abc import Iterator

import torch
import torch.nn as nn
import torch.nn.functional as F

from gptbook.verify.catalogue import Mistake, distance, same
from gptbook.verify.kinds import ATTENTION, attend
from gptbook.verify.layers import (
    ROUNDING,
    UNUSED,
    Piece,
    answers_to,
    batch_independent,
    built,
    causal,
    deterministic,
    finite,
    has_gradient,
    making,
    outcome,
    reaches_back,
    takes_shapes,
)
from gptbook.verify.report import FAILED, PASSED, Report, Result
from gptbook.verify.subject import CannotLook, untouched

# ---- heads: what they should give, from the module's own matrices


def heads(
    x, w: dict, n_head: int, split: str = "", merge: str = "", out: str = "", more: str = "", **parts
) -> torch.Tensor:
    """Several heads of attention, by the matrices `w` (q, k, v, o and their biases): x (B, T, C) -> (B, T, C).

    `split`, `merge`, `out` and `more` name ways to do these wrong, `parts` those of the attention itself.
    """
    B, T, C = x.shape
    D = C // n_head
    q, k, v = (F.linear(x, w[name], w.get(f"{name}_bias")) for name in "qkv")  # each (B, T, C)
    if more == "values-are-input":
        v = x
    if split == "viewed":
        q, k, v = (z.reshape(B, n_head, T, D) for z in (q, k, v))
    elif split == "interleaved":
        q, k, v = (z.view(B, T, D, n_head).permute(0, 3, 1, 2) for z in (q, k, v))
    else:
        q, k, v = (z.view(B, T, n_head, D).transpose(1, 2) for z in (q, k, v))  # each (B, H, T, D)
    if more == "one-query":
        q = q[:, :1].expand_as(q)
    if more == "heads-as-positions":
        y = attend(**parts)(*(z.transpose(1, 2) for z in (q, k, v))).transpose(1, 2)
    else:
        y = attend(**parts)(q, k, v)  # (B, H, T, D)
    if merge == "viewed":
        y = y.reshape(B, T, C)
    elif merge == "interleaved":
        y = y.permute(0, 2, 3, 1).reshape(B, T, C)
    elif merge == "averaged":
        y = y.mean(1).repeat(1, 1, n_head)
    elif merge == "first":
        y = y[:, :1].expand_as(y).transpose(1, 2).reshape(B, T, C)
    else:
        y = y.transpose(1, 2).reshape(B, T, C)
    if w.get("o") is not None and out != "missing":
        y = F.linear(y, w["o"], w.get("o_bias"))
    return y + x if more == "adds-input" else y


RIGHT = [{}, {"split": "interleaved", "merge": "interleaved"}, {"split": "interleaved"}, {"merge": "interleaved"}]
WAYS = [  # (name, words, what `heads` is told)
    ("no-projection", "the output projection is missing: what the heads found is never mixed", {"out": "missing"}),
    ("split-by-view", "the width is split by view alone, without a transpose: a head gets a piece of the text",
     {"split": "viewed"}),
    ("merged-by-view", "the heads are merged without the transpose: numbers of several positions are mixed",
     {"merge": "viewed"}),
    ("split-and-merged-by-view", "split and merge lack their transposes: each head sees a piece of the text alone",
     {"split": "viewed", "merge": "viewed"}),
    ("heads-averaged", "the heads are averaged, not laid side by side", {"merge": "averaged"}),
    ("first-head-only", "only the first head's answer is used", {"merge": "first"}),
    ("heads-as-positions", "the axes of heads and positions are exchanged: heads attend to heads",
     {"more": "heads-as-positions"}),
    ("adds-input", "the input is added to the answer: the residual belongs to the block", {"more": "adds-input"}),
    ("values-are-input", "the values are the input itself: the value projection is not used",
     {"more": "values-are-input"}),
    ("one-query", "all heads use the first head's queries", {"more": "one-query"}),
    *(
        (name, words, {part: name})
        for part, known in ATTENTION.items()
        for name, (words, _) in known.items()
        if name not in ("transposed-answer", "scaled-by-batch", "over-everything", "scaled-by-second-axis",
                        "weights", "queries-and-keys-exchanged")
    ),
]  # fmt: skip
SHARED = "all heads share one set of weights, so that each finds the same"
ONE_HEAD = "it computes with {} where {} were asked for: the width is not split as it should be"


def _biases(model) -> dict:
    return {name: p for name, p in model.named_parameters() if p.dim() == 1}


def _matrices(model, C: int) -> list[tuple[str, list, torch.Tensor | None]]:
    """Name, the ways (out, in) to read it, and bias, of every matrix that has C inputs or outputs."""
    linear = {f"{n}.weight".lstrip(".") for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    vectors, found = _biases(model), []
    for name, p in model.named_parameters():
        p = p.detach()
        if p.dim() == 3 and p.size(-1) == 1:  # a convolution of one position
            p = p[..., 0]
        if p.dim() != 2 or C not in p.shape:
            continue
        certain = name in linear or name.endswith("in_proj_weight")
        ways = [p] if certain else [p.T, p] if p.size(0) == p.size(1) else [p if p.size(1) == C else p.T]
        twin = next((vectors[n] for n in _bias_names(name) if n in vectors), None)
        found.append((name, ways, None if twin is None else twin.detach()))
    return found


def _bias_names(name: str) -> list[str]:
    head, _, leaf = name.rpartition(".")
    leaves = [
        leaf.replace("weight", "bias"),
        re.sub(r"^[Ww]", "b", leaf),
        re.sub(r"^[Ww]", "bias", leaf),
        f"{leaf}_bias",
    ]
    return [f"{head}.{other}".lstrip(".") for other in leaves if other != leaf]


_WORD = r"(^|[._])(w_?|to_?|c_)?({})([._]|$)"
HINTS = {"q": "q(uer(y|ies))?", "k": "k(eys?)?", "v": "v(alues?)?", "o": "o(ut(put)?)?|proj"}


def _hint(role: str, name: str) -> bool:
    return bool(re.search(_WORD.format(HINTS[role]), name, re.IGNORECASE))


def layouts(model, C: int, n_head: int) -> Iterator[dict]:
    """The ways to read a module's parameters as those of `heads`, the likeliest first."""
    D, found = C // n_head, _matrices(model, C)
    squares = [m for m in found if tuple(m[1][0].shape) == (C, C)]
    packed = [m for m in found if tuple(m[1][0].shape) == (3 * C, C)]
    pairs = [m for m in found if tuple(m[1][0].shape) == (2 * C, C)]
    narrow = [m for m in found if tuple(m[1][0].shape) == (D, C) and n_head > 1]
    triples = [m for m in found if tuple(m[1][0].shape) == (3 * D, C) and n_head > 1]
    stacked = [
        p.detach() for p in model.parameters() if p.dim() == 3 and p.size(0) == n_head and {*p.shape[1:]} <= {C, D}
    ]
    outs = _outputs(squares, [m for m in found if tuple(m[1][0].shape) == (C, D) and n_head > 1])

    for _, ways, bias in packed:
        for out in outs:
            for order in itertools.permutations(range(3)):
                for shape, axis in (((3, n_head, D), 0), ((n_head, 3, D), 1), ((n_head, D, 3), 2), ((3, D, n_head), 0)):
                    yield {**_cut(ways[0], bias, shape, axis, order, C), **out}
    for one, two in itertools.product(pairs, squares):
        for out in [o for o in outs if o.get("name") != two[0]]:
            for flip in (0, 1):
                key, value = two[1][0], one[1][0].view(2, C, C)
                biases = (None, None) if one[2] is None else one[2].view(2, C)
                yield {"q": key, "q_bias": two[2], "k": value[flip], "v": value[1 - flip], "k_bias": biases[flip],
                       "v_bias": biases[1 - flip], **out}  # fmt: skip
    if 3 <= len(squares) <= 5:
        roles = "qkvo" if len(squares) > 3 else "qkv"
        orders = sorted(
            itertools.permutations(squares, len(roles)),
            key=lambda order: -sum(_hint(r, m[0]) for r, m in zip(roles, order, strict=True)),
        )
        for order in orders:
            for turned in itertools.product(*(m[1] for m in order)) if all(len(m[1]) == 2 for m in order) else [None]:
                chosen = turned or [m[1][0] for m in order]
                w = dict(zip(roles, chosen, strict=True))
                yield w | {f"{r}_bias": m[2] for r, m in zip(roles, order, strict=True)}
                if turned is not None and turned[0] is not order[0][1][0]:
                    break  # all one way or all the other: nobody mixes them
    yield from _by_head(narrow, 3, n_head, C, outs)
    for count in {1, n_head}:
        for few in itertools.combinations(triples, count):
            others = [o for o in outs if o.get("name") not in [m[0] for m in few]]
            yield from _by_head(few, 1, n_head, C, others)
    if len(stacked) >= 3:
        outs_stacked = [*outs]
        if len(stacked) == 4:
            outs_stacked = [
                {"o": stacked[3].reshape(C, C).T if stacked[3].size(1) == D else stacked[3].mT.reshape(C, C).T},
                *outs,
            ]
        flat = [(s.mT if s.size(1) == C else s).reshape(C, C) for s in stacked[:3]]
        for order in itertools.permutations(range(3)):
            for out in outs_stacked:
                yield {name: flat[i] for name, i in zip("qkv", order, strict=True)} | out


def _outputs(squares, tall) -> list[dict]:
    """Output projections to try: squares, narrow ones side by side, none."""
    found = [{"o": way, "o_bias": bias, "name": name} for name, ways, bias in squares for way in ways]
    if tall:
        bias = [b for _, _, b in tall if b is not None]
        found.append({"o": torch.cat([ways[0] for _, ways, _ in tall], 1), "o_bias": sum(bias) if bias else None})
    return [*found, {"o": None}]


def _cut(matrix, bias, shape, axis, order, C: int) -> dict:
    """Queries, keys and values out of a packed matrix (3C, C), laid out as `shape` says, in this order."""
    parts = matrix.reshape(*shape, C).unbind(axis)
    w = {name: parts[i].reshape(C, C) for name, i in zip("qkv", order, strict=True)}
    if bias is not None:
        cut = bias.reshape(shape).unbind(axis)
        w |= {f"{name}_bias": cut[i].reshape(C) for name, i in zip("qkv", order, strict=True)}
    return w


def _by_head(few, width: int, n_head: int, C: int, outs) -> Iterator[dict]:
    """Matrices of single heads, side by side: by head or by kind; a single set serves all heads, which is `shared`."""
    sets = len(few) / width  # a set is the matrices of one head: three, or one that holds all three
    if sets not in (1, n_head):
        return
    weights, biases = [m[1][0] for m in few], [m[2] for m in few]
    if width == 1:  # one matrix (3D, C) for a head
        weights = [part for w in weights for part in w.chunk(3)]
        biases = [part for b in biases for part in (b.chunk(3) if b is not None else (None,) * 3)]
    groups = [range(i, 3 * int(sets), 3) for i in range(3)]  # by head: q0 k0 v0 q1 k1 v1 ...
    kinds = [range(i * int(sets), (i + 1) * int(sets)) for i in range(3)]  # by kind: q0 q1 ... k0 k1 ...
    times = n_head if sets == 1 else 1
    for grouping in (groups, kinds) if sets > 1 else (groups,):
        for order in itertools.permutations(range(3)):
            w = {"shared": times > 1}
            for name, i in zip("qkv", order, strict=True):
                w[name] = torch.cat([weights[j] for j in grouping[i]] * times)
                if all(biases[j] is not None for j in grouping[i]):
                    w[f"{name}_bias"] = torch.cat([biases[j] for j in grouping[i]] * times)
            for out in outs:
                yield w | out


def _told(model, weights: dict) -> dict:
    """A layout from what the caller says: q, k, v, o (and q_bias, ...) by the names of parameters, as (out, in)."""
    known = dict(model.named_parameters())
    for role, name in weights.items():
        if role not in ("q", "k", "v", "o", "q_bias", "k_bias", "v_bias", "o_bias"):
            raise ValueError(f"weights knows q, k, v, o and their q_bias, k_bias, v_bias, o_bias, got {role!r}")
        if name not in known:
            raise ValueError(f"no parameter {name!r} in this module: it has {', '.join(known)}")
    return {role: known[name].detach() for role, name in weights.items()}


def judge_heads(x, y, ways: list[dict], n_head: int, sure: bool = True) -> Result:
    """Whether heads give y from x (B, T, C) by some reading of the parameters, rightly or in a way known to be wrong.

    `sure` says that the number of heads is known: then another number is a mistake.
    """
    C = x.size(-1)
    expected = f"{n_head} heads by its own matrices, to {ROUNDING:.0e}"
    x, y = x.detach().double().cpu(), y.detach().double().cpu()
    ways = [{k: v.double().cpu() if isinstance(v, torch.Tensor) else v for k, v in w.items()} for w in ways]
    if not ways:
        raise CannotLook("its matrices are not those of queries, keys and values in any way that is known here")

    def equal(w, H, how) -> bool:
        try:
            return same(heads(x, w, H, **how), y, ROUNDING)
        except (RuntimeError, IndexError, ValueError):
            return False

    for w, how in itertools.product(ways, RIGHT):
        if equal(w, n_head, how):
            apart = distance(heads(x, w, n_head, **how), y)
            if w.get("shared"):
                return outcome(FAILED, "one set of matrices for all heads", expected, _cause(SHARED))
            if w.get("o") is None:
                return outcome(FAILED, "equal without an output projection", expected, _cause(WAYS[0][1]))
            return outcome(PASSED, f"largest difference {apart:.0e}", expected)
    for w in ways[: 24 if sure else 2]:  # without a number of heads, each of several is tried: the likeliest readings
        for _, words, how in WAYS:
            if equal(w, n_head, how):
                return outcome(FAILED, "equal to a wrong version", expected, _cause(words))
        for H in [h for h in range(1, C + 1) if C % h == 0 and h != n_head and sure]:
            if any(equal(w, H, how) for how in RIGHT):
                words = ONE_HEAD.format("one head" if H == 1 else f"{H} heads", n_head)
                return outcome(FAILED, f"equal to {H} head{'s' * (H > 1)}", expected, _cause(words))
    for w in ways[:1] if sure else []:  # the likeliest reading alone: there are many pairs
        scale = _scale(x, y, w, n_head)
        if scale:
            words = f"the scores are multiplied by {scale:.4g}, where 1/√D = {1 / math.sqrt(C // n_head):.4g} belongs"
            return outcome(FAILED, f"equal with a factor of {scale:.4g}", expected, _cause(words))
        for (_, one, a), (_, two, b) in itertools.combinations(WAYS, 2):
            if not set(a) & set(b) and equal(w, n_head, a | b):
                return outcome(FAILED, "equal to a wrong version", expected, _cause(f"two at once: {one}; and {two}"))
    raise CannotLook(
        "its output equals neither the right heads nor any known mistake: something else is computed as well"
    )


def _cause(words: str) -> str:
    return f"your output equals this version: {words} (page 5)"


def _scale(x, y, w, n_head: int) -> float:
    """The factor of the scores with which all is right, or 0: found by narrowing down the best of many."""
    D = x.size(-1) // n_head

    def off(log: float) -> float:
        scaled = w | {"q": w["q"] * math.exp(log) * math.sqrt(D)}
        if w.get("q_bias") is not None:
            scaled["q_bias"] = w["q_bias"] * math.exp(log) * math.sqrt(D)
        return (heads(x, scaled, n_head) - y).abs().max().item()

    logs = torch.linspace(math.log(1e-3), math.log(30), 60).tolist()
    best, step = min(logs, key=off), logs[1] - logs[0]
    while step > 1e-8:
        best = min((best - step, best, best + step), key=off)
        step *= 0.6
    return math.exp(best) if off(best) <= 1e-4 * max(1.0, y.abs().max().item()) else 0.0


def check_multihead(module: nn.Module, n_head: int, weights: dict[str, str] | None = None) -> Report:
    """Check several heads of causal attention with their output projection: module(x (B, T, C)) -> (B, T, C); page 5.

    The parameters are found by name and shape; `weights` can say instead which is which: {"q": name, "k": ...,
    "v": ..., "o": ...}, as (out, in), with "q_bias" and so on. The module is not changed. Raises TypeError or
    ValueError for arguments that make no sense.
    """
    piece = Piece(module)
    if isinstance(n_head, bool) or not isinstance(n_head, int):
        raise TypeError(f"n_head must be a whole number, got {n_head!r}")
    if n_head < 1:
        raise ValueError(f"n_head must be at least 1, got {n_head}")
    if weights is not None:
        _told(module, weights)

    def values() -> Result:
        if piece.C % n_head:
            raise CannotLook(f"the width {piece.C} is not a multiple of n_head = {n_head}")
        model, x = piece.random(1.5), piece.x()
        told = None if weights is None else [_told(model, weights)]
        y = piece.call(model, x)
        try:
            return judge_heads(x, y, told or list(layouts(model, piece.C, n_head)), n_head)
        except CannotLook as reason:
            if told is None:
                raise
            return outcome(FAILED, str(reason), "the heads that `weights` tells of", "it equals no known mistake")

    def apart() -> Result:
        return _heads_apart(piece.copied(), piece.C, n_head)

    with untouched(module):
        return answers_to(
            [
                ("shapes", lambda: takes_shapes(piece), True),
                ("deterministic", lambda: deterministic(piece), True),
                ("finite", lambda: finite(piece), False),
                ("values", values, False),
                ("causal", lambda: causal(piece), False),
                ("batch-independent", lambda: batch_independent(piece), False),
                ("reach", lambda: reaches_back(piece), False),
                ("gradient", lambda: has_gradient(piece), False),
                ("heads", apart, False),
            ],
            "page 5",
        )


IDENTICAL = "all heads start with the same weights: copies of one another, which learn the same for ever"


def _heads_apart(model, C: int, n_head: int) -> Result:
    """No two heads start with the same weights; each matrix of the module is cut into the heads that it may hold."""
    expected = "heads that differ from the start"
    if n_head == 1:
        return outcome(PASSED, "one head", expected)
    D, seen = C // n_head, False
    found = _matrices(model, C)
    for _, ways, _ in found:
        rows = ways[0]
        if rows.size(0) in (C, 3 * C) and rows.size(1) == C:
            for part in rows.split(C):
                cut = part.reshape(n_head, D, C)
                seen = True
                if part.abs().max() > 0 and all(torch.equal(cut[0], other) for other in cut[1:]):
                    return outcome(FAILED, "equal", expected, IDENTICAL)
    narrow = [ways[0] for _, ways, _ in found if ways[0].size(0) in (D, 3 * D) and ways[0].size(1) == C]
    for one, other in itertools.combinations(narrow, 2):
        seen = True
        if one.shape == other.shape and one.abs().max() > 0 and torch.equal(one, other):
            return outcome(FAILED, "equal", expected, IDENTICAL)
    if not seen:
        raise CannotLook("no matrix of the module can be cut into heads")
    return outcome(PASSED, "all differ", expected)


# ---- the wrong versions


class WrongHeads(nn.Module):
    """Heads of attention that go wrong as `how` says; right where it says nothing."""

    def __init__(self, n_embd, n_head, real=None, shared=False, equal=False, unused=False, detached=False, **how):
        super().__init__()
        self.n_head, self.how, self.shared = real or n_head, how, shared
        self.sets = n_head if shared else 1
        self.qkv = nn.Linear(n_embd, 3 * n_embd // self.sets)
        self.proj = nn.Linear(n_embd, n_embd)
        self.used = how.get("out") != "missing"
        if not self.used and not unused:
            del self.proj
        self.detached = detached
        if equal:
            with torch.no_grad():
                heads_of = self.qkv.weight.view(3, n_head, n_embd // n_head, n_embd)
                heads_of.copy_(heads_of[:, :1].expand_as(heads_of))

    def forward(self, x):
        qkv = zip("qkv", self.qkv.weight.chunk(3), self.qkv.bias.chunk(3), strict=True)
        w = {}
        for name, weight, bias in qkv:
            w |= {name: torch.cat([weight] * self.sets), f"{name}_bias": torch.cat([bias] * self.sets)}
        if self.used:
            w |= {"o": self.proj.weight, "o_bias": self.proj.bias}
        return heads(x.detach() if self.detached else x, w, self.n_head, **self.how)


MISTAKES = (
    *(
        Mistake(f"multihead-{name}", "multihead", words, "page 5", making(WrongHeads, **how))
        for name, words, how in WAYS
    ),
    Mistake("multihead-shared", "multihead", SHARED, "page 5", making(WrongHeads, shared=True)),
    Mistake("multihead-identical", "multihead", IDENTICAL, "page 5", making(WrongHeads, equal=True)),
    Mistake("multihead-unused", "multihead", UNUSED, "page 5", making(WrongHeads, unused=True, out="missing")),
    Mistake("multihead-detached", "multihead", "the input is detached", "page 5", making(WrongHeads, detached=True)),
    Mistake("multihead-one-head", "multihead", ONE_HEAD.format("one head", 3), "page 5", making(WrongHeads, real=1)),
)  # fmt: skip
ASK = {"multihead": built(check_multihead, 3)}
