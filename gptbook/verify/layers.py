"""Checks of the two modules on the way to a GPT: several heads of attention, and the block.

Both are looked at from outside and inside, on copies with random weights: who moves whom, and whether the output is
what the module's own matrices give when they are multiplied as they should be, or in one of the ways that are known to
be wrong. Which matrix is the query's is guessed from names and shapes, and every guess is tried.
"""

import copy
import itertools
import math
import re
from collections.abc import Callable, Iterator

import torch
import torch.nn as nn
import torch.nn.functional as F

from gptbook.verify.calling import ask
from gptbook.verify.catalogue import Mistake, distance, same
from gptbook.verify.kinds import ATTENTION, LAYER_NORM, attend, layer_norm_as
from gptbook.verify.report import DIFFERS, FAILED, NOT_CHECKED, PASSED, Report, Result
from gptbook.verify.subject import CannotLook, one_line, untouched

ROUNDING = 2e-5  # of the size of the numbers: several products in float32 in a row
HEAD_NAMES = ("n_head", "num_heads", "n_heads", "num_attention_heads", "heads", "nhead", "H", "h")


class Piece:
    """A reader's module (B, T, C) -> (B, T, C): its copies, its width C, and a length T that it takes.

    Raises TypeError for what is no module.
    """

    def __init__(self, module):
        if not isinstance(module, nn.Module):
            kind = "the class itself: build it first" if isinstance(module, type) else f"a {type(module).__name__}"
            raise TypeError(f"module must be a torch.nn.Module, got {kind}")
        self.original, self.problem = module, ""
        parameter = next(module.parameters(), torch.zeros(0))
        self.device = parameter.device

    def copied(self) -> nn.Module:
        """A copy in evaluation mode and float32. Raises CannotLook where there can be none."""
        try:
            model = copy.deepcopy(self.original)
        except Exception as error:
            raise CannotLook(f"it cannot be copied: {one_line(error)}") from error
        if model is self.original:
            raise CannotLook("it cannot be copied: copy.deepcopy gives the same module back")
        return model.float().eval()

    def random(self, gain: float = 1.0, vectors: bool = True) -> nn.Module:
        """A copy with random weights, the same each time: fresh ones hide faults, and zeros hide everything."""
        model, generator = self.copied(), torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in model.parameters():
                noise = torch.randn(p.shape, generator=generator).to(p)
                if p.dim() >= 2:
                    p.copy_(gain / math.sqrt(min(p.shape[-2:])) * noise)
                elif vectors:
                    p.add_(0.3 * noise)
        return model

    def x(self, B: int = 2, T: int | None = None, seed: int = 0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(B, T or self.T, self.C, generator=generator).to(self.device)

    def call(self, model, x):
        """The output for x (B, T, C): the first tensor of its shape. Raises CannotLook with the reason if none comes."""

        def quietly(x):
            with torch.no_grad():
                return model(x)

        answer = ask(quietly, x)
        if answer.error:
            raise CannotLook(answer.error)
        self.changed = getattr(self, "changed", False) or answer.changed
        value = answer.value
        if isinstance(value, dict):
            value = tuple(value.values())
        if isinstance(value, tuple | list):
            tensors = [v for v in value if isinstance(v, torch.Tensor)]
            value = next((v for v in tensors if v.shape == x.shape), tensors[0] if tensors else None)
        if not isinstance(value, torch.Tensor):
            raise CannotLook(f"returns a {type(value).__name__}, not a tensor")
        if value.shape != x.shape:
            raise CannotLook(f"returns {tuple(value.shape)} for {tuple(x.shape)}")
        return value

    def measure(self):
        """Find C and T by trying. Raises CannotLook with what the likeliest width gave."""
        model, sizes = self.copied(), [s for p in self.original.parameters() for s in p.shape]
        widths = [s for s in sorted(set(sizes), key=lambda s: (-sizes.count(s), s)) if s > 1] or [8]
        reasons = []
        for C, T in itertools.product(widths[:8], (6, 5, 4, 3, 2, 1)):
            self.C, self.T = C, T
            try:
                self.call(model, self.x())
                return
            except CannotLook as reason:
                reasons.append((str(reason).startswith("returns"), str(reason)))
        raise CannotLook(max(reasons, key=lambda r: r[0])[1])


# ---- what is asked of both


def _shapes(piece: Piece) -> Result:
    model, expected = piece.copied(), "(B, T, C) for any B and T"
    for B, T in {(1, 1), (3, piece.T), (2, max(1, piece.T - 1))}:
        try:
            piece.call(model, piece.x(B, T))
        except CannotLook as reason:
            return _result(FAILED, f"B = {B}, T = {T}: {reason}", expected, "the shape depends on B or T")
    if piece.changed:
        return _result(FAILED, "the input was changed", expected, "it writes into its input: x += ... does that")
    return _result(PASSED, f"right, with C = {piece.C}", expected)


def _deterministic(piece: Piece) -> Result:
    model, x, answers = piece.random(), piece.x(), []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        answers.append(piece.call(model, x))
    expected = "0, bit for bit"
    for other, cause in (
        (answers[1], "it keeps something from one call to the next"),
        (answers[2], "dropout that is on in evaluation mode: a functional call that ignores eval()?"),
    ):
        if not same(answers[0], other, 0.0):
            return _result(FAILED, f"two calls differ by {distance(answers[0], other):.1e}", expected, cause)
    return _result(PASSED, "two calls differ by 0", expected)


def _finite(piece: Piece) -> Result:
    y, expected = piece.call(piece.random(), piece.x()), "no NaN, no infinity"
    if y.isfinite().all():
        return _result(PASSED, "all finite", expected)
    if not y[:, 0].isfinite().all() and y[:, 1:].isfinite().all():
        cause = "is a position's own token hidden too? Then the first has nothing to choose from"
    else:
        cause = "a softmax over the wrong axis or over nothing, or a division by zero"
    return _result(FAILED, f"{1 - y.isfinite().float().mean():.0%} of the output is not finite", expected, cause)


def _causal(piece: Piece) -> Result:
    """At small, ordinary and large weights, at every cut: what comes later moves nothing that came before."""
    worst, where = 0.0, ""
    for gain in (0.3, 1.0, 3.0):
        model, x = piece.random(gain), piece.x()
        y = piece.call(model, x)
        for cut in range(1, piece.T):
            other = torch.cat([x[:, :cut], 3 * piece.x(seed=cut + 1)[:, cut:]], 1)  # (B, T, C)
            apart = distance(y[:, :cut], piece.call(model, other)[:, :cut]) / max(1.0, y.abs().max().item())
            worst, where = max((worst, where), (apart, f" when position {cut} and later change"))
    expected = "earlier positions move by 0"
    if piece.T == 1:
        return _result(NOT_CHECKED, cause="it takes one position alone")
    if worst > 1e-6:
        cause = "what comes later moves what came before: a mask, a softmax, or a mean over the wrong axis"
        return _result(FAILED, f"earlier positions move by {worst:.1e}{where}", expected, cause)
    return _result(PASSED, f"earlier positions move by {worst:.0e}" if worst else expected, expected)


def _batch(piece: Piece) -> Result:
    model, x = piece.random(), piece.x(3)
    together = piece.call(model, x)
    apart = distance(together, torch.cat([piece.call(model, row[None]) for row in x])) / max(
        1.0, together.abs().max().item()
    )
    expected = "a row alone gives what it gives among others"
    if apart > ROUNDING:
        cause = "rows of a batch move each other: a softmax, a mean or a view over the wrong axis"
        return _result(FAILED, f"differs by {apart:.1e}", expected, cause)
    return _result(PASSED, f"differs by {apart:.0e}", expected)


def _reach(piece: Piece) -> Result:
    """Every earlier position moves the last."""
    model, x, dead = piece.random(), piece.x(), []
    y = piece.call(model, x)
    for t in range(piece.T):
        other = x.clone()
        other[:, t] = piece.x(seed=9)[:, t]
        if distance(y[:, -1], piece.call(model, other)[:, -1]) < 1e-7:
            dead.append(t)
    expected = "every position moves the last"
    if dead:
        cause = "the last position does not read all that came before"
        return _result(FAILED, f"{len(dead)} of {piece.T} do not", expected, cause)
    return _result(PASSED, f"all {piece.T} do", expected)


def _result(status: str, measured: str = "", expected: str = "", cause: str = "") -> Result:
    return Result("", status, measured, expected, cause)


def _asked(questions, page: str) -> Report:
    """The answers in order; after one that failed and is `vital`, the rest would mislead."""
    results, stopped = [], ""
    for name, question, vital in questions:
        try:
            result = _result(NOT_CHECKED, cause=stopped) if stopped else question()
        except CannotLook as reason:
            result = _result(NOT_CHECKED, cause=str(reason))
        except Exception as error:
            result = _result(NOT_CHECKED, cause=f"the check was stopped by {one_line(error)}")
        cause = result.cause
        if result.status in (FAILED, DIFFERS) and "(page" not in cause:
            cause = f"{cause} ({page})"
        results.append(Result(name, result.status, result.measured, result.expected, cause))
        if vital and result.status in (FAILED, NOT_CHECKED) and not stopped:
            stopped = f"it would mislead, because “{name}” " + (
                "failed" if result.status == FAILED else "could not be checked"
            )
    return Report(tuple(results))


def _measured(piece: Piece) -> Result:
    try:
        piece.measure()
    except CannotLook as reason:
        if "cannot be copied" in str(reason):
            raise
        return _result(FAILED, str(reason), "(B, T, C) -> (B, T, C)", "it takes no (B, T, C), or gives none back")
    return _shapes(piece)


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
WAYS = [  # (name, words, what `heads` is told): more of one kind than of another says nothing about how often they occur
    ("no-projection", "the output projection is missing: what the heads found is never mixed", {"out": "missing"}),
    ("split-by-view", "the width is split by view or reshape alone, without a transpose: a head gets a piece of the text, "
     "not of the width", {"split": "viewed"}),
    ("merged-by-view", "the heads are merged without the transpose: numbers of several positions are mixed", {"merge": "viewed"}),
    ("split-and-merged-by-view", "split and merge lack their transposes: each head sees a piece of the text alone",
     {"split": "viewed", "merge": "viewed"}),
    ("heads-averaged", "the heads are averaged, not laid side by side", {"merge": "averaged"}),
    ("first-head-only", "only the first head's answer is used", {"merge": "first"}),
    ("heads-as-positions", "the axes of heads and positions are exchanged: heads attend to heads", {"more": "heads-as-positions"}),
    ("adds-input", "the input is added to the answer: the residual belongs to the block", {"more": "adds-input"}),
    ("values-are-input", "the values are the input itself: the value projection is not used", {"more": "values-are-input"}),
    ("one-query", "all heads use the first head's queries", {"more": "one-query"}),
    *(
        (name, words, {part: name})
        for part, known in ATTENTION.items()
        for name, (words, _) in known.items()
        if name not in ("transposed-answer", "scaled-by-batch", "over-everything", "scaled-by-second-axis",
                        "queries-and-keys-exchanged")
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


HINTS = {"q": r"(^|[._])(w_?|to_?)?q(uer(y|ies))?([._]|$)", "k": r"(^|[._])(w_?|to_?)?k(eys?)?([._]|$)",
         "v": r"(^|[._])(w_?|to_?)?v(alues?)?([._]|$)", "o": r"(^|[._])(w_?|to_?|c_)?(o(ut(put)?)?|proj)([._]|$)"}  # fmt: skip


def _hint(role: str, name: str) -> bool:
    return bool(re.search(HINTS[role], name, re.IGNORECASE))


def layouts(model, C: int, n_head: int) -> Iterator[dict]:
    """The ways to read a module's parameters as those of `heads`, the likeliest first; `note` says what is odd in one."""
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


def judge_heads(x, y, ways_of: Callable, n_head: int, C: int) -> Result:
    """Whether heads give y from x (B, T, C) by some reading of the parameters, rightly or in a way known to be wrong."""
    expected = f"{n_head} heads by its own matrices, to {ROUNDING:.0e}"
    x, y = x.detach().double().cpu(), y.detach().double().cpu()
    ways = [{k: v.double().cpu() if isinstance(v, torch.Tensor) else v for k, v in w.items()} for w in ways_of(n_head)]
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
                return _result(FAILED, "one set of matrices for all heads", expected, _cause(SHARED))
            if w.get("o") is None:
                return _result(FAILED, "equal without an output projection", expected, _cause(WAYS[0][1]))
            return _result(PASSED, f"largest difference {apart:.0e}", expected)
    for w in ways[:200]:
        for _, words, how in WAYS:
            if equal(w, n_head, how):
                return _result(FAILED, "equal to a wrong version", expected, _cause(words))
        for H in [h for h in range(1, C + 1) if C % h == 0 and h != n_head]:
            if any(equal(w, H, how) for how in RIGHT):
                words = ONE_HEAD.format("one head" if H == 1 else f"{H} heads", n_head)
                return _result(FAILED, f"equal to {H} head{'s' * (H > 1)}", expected, _cause(words))
    for w in ways[:4]:
        scale = _scale(x, y, w, n_head)
        if scale:
            words = f"the scores are multiplied by {scale:.4g}, where 1/√D = {1 / math.sqrt(C // n_head):.4g} belongs"
            return _result(FAILED, f"equal with a factor of {scale:.4g}", expected, _cause(words))
        for (_, one, a), (_, two, b) in itertools.combinations(WAYS, 2):
            if not set(a) & set(b) and equal(w, n_head, a | b):
                return _result(FAILED, "equal to a wrong version", expected, _cause(f"two at once: {one}; and {two}"))
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

    The parameters are found by name and shape; `weights` can say instead which is which: {"q": name, "k": ..., "v": ...,
    "o": ...}, as (out, in), with "q_bias" and so on. The module is not changed. Raises TypeError or ValueError for
    arguments that make no sense.
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
            return judge_heads(x, y, lambda H: told or list(layouts(model, piece.C, H)), n_head, piece.C)
        except CannotLook as reason:
            if told is None:
                raise
            return _result(FAILED, str(reason), "the heads that `weights` tells of", "it equals no known mistake")

    def apart() -> Result:
        return _heads_apart(piece.copied(), piece.C, n_head)

    with untouched(module):
        return _asked(
            [
                ("shapes", lambda: _measured(piece), True),
                ("deterministic", lambda: _deterministic(piece), True),
                ("finite", lambda: _finite(piece), False),
                ("values", values, False),
                ("causal", lambda: _causal(piece), False),
                ("batch-independent", lambda: _batch(piece), False),
                ("reach", lambda: _reach(piece), False),
                ("heads", apart, False),
            ],
            "page 5",
        )


IDENTICAL = "all heads start with the same weights: copies of one another, which learn the same for ever"


def _heads_apart(model, C: int, n_head: int) -> Result:
    """No two heads start with the same weights; each matrix of the module is cut into the heads that it may hold."""
    expected = "heads that differ from the start"
    if n_head == 1:
        return _result(PASSED, "one head", expected)
    D, seen = C // n_head, False
    found = _matrices(model, C)
    for _, ways, _ in found:
        rows = ways[0]
        if rows.size(0) in (C, 3 * C) and rows.size(0) % n_head == 0:
            for part in rows.split(C):
                cut = part.reshape(n_head, D, C)
                seen = True
                if part.abs().max() > 0 and all(torch.equal(cut[0], other) for other in cut[1:]):
                    return _result(FAILED, "equal", expected, IDENTICAL)
    narrow = [ways[0] for _, ways, _ in found if ways[0].size(0) in (D, 3 * D)]
    for one, other in itertools.combinations(narrow, 2):
        seen = True
        if one.shape == other.shape and one.abs().max() > 0 and torch.equal(one, other):
            return _result(FAILED, "equal", expected, IDENTICAL)
    if not seen:
        raise CannotLook("no matrix of the module can be cut into heads")
    return _result(PASSED, "all differ", expected)


# ---- the block


class Seen:
    """What went in and out of the parts of a block in one call, as far as they are modules."""

    def __init__(self, piece: Piece, model: nn.Module, x):
        self.x, self.norms, self.parts, handles = x, [], [], []
        self.model, self.wide = model, []
        shape = x.shape

        def look(module):
            def hook(_, inputs, named, output):
                given = next((v for v in (*inputs, *named.values()) if isinstance(v, torch.Tensor)), None)
                output = (
                    next((v for v in output if isinstance(v, torch.Tensor)), None)
                    if isinstance(output, tuple | list)
                    else output
                )
                if given is None or not isinstance(output, torch.Tensor):
                    return
                entry = (module, given.detach().clone(), output.detach().clone())
                if is_norm(module, shape[-1]) and given.shape == output.shape == shape:
                    self.norms.append(entry)
                elif not any(is_norm(m, shape[-1]) for m in module.modules()):
                    (self.parts if shape == output.shape else self.wide).append(entry)

            return hook

        for module in model.modules():
            if module is not model:
                handles.append(module.register_forward_hook(look(module), with_kwargs=True))
        self.y = piece.call(model, x)
        for handle in handles:
            handle.remove()
        self.branches = []  # the different tensors (B, T, C) that parts gave, in order
        for _, _, output in self.parts:
            if not any(same(output, b, 1e-6) for b in self.branches):
                self.branches.append(output)

    def reads(self, tensor) -> bool:
        """Whether a part with matrices was given this tensor."""
        return any(same(given, tensor, ROUNDING) for _, given, _ in (*self.parts, *self.wide))

    def giver(self, tensor):
        """The outermost part that gave this tensor, and what it was given; (None, None) if there is none."""
        found = [(m, given) for m, given, output in self.parts if same(output, tensor, 1e-6)]
        return max(found, key=lambda f: len(list(f[0].modules())), default=(None, None))


def is_norm(module, C: int) -> bool:
    """Whether a module is a norm over the width C: it says so, or all that it has are vectors of that size."""
    own = list(module.parameters())
    if any(p.dim() != 1 or p.numel() != C for p in own) or any(True for _ in module.children()):
        return False
    named = "norm" in type(module).__name__.lower() or re.search(r"(^|_)ln", type(module).__name__.lower()) is not None
    return named or bool(own)


def _structures():
    """How a block can put its parts together: (name, words, verdict, number of norm calls, equations).

    The equations are of pairs that must be equal, given x, y, what the norms were given (i) and gave (o), and what
    attention (a) and MLP (m) gave. `None` as a second norm means that the same norm was called twice.
    """
    two = [
        ("right", "", PASSED, lambda x, y, i, o, a, m: [(i[0], x), (i[1], x + a), (y, x + a + m)]),
        (
            "parallel",
            "attention and MLP read the same stream, side by side",
            DIFFERS,
            lambda x, y, i, o, a, m: [(i[0], x), (i[1], x), (y, x + a + m)],
        ),
        (
            "post-norm",
            "post-norm: the stream itself is normalised after each addition, as in the paper of 2017",
            DIFFERS,
            lambda x, y, i, o, a, m: [(i[0], x + a), (i[1], o[0] + m), (y, o[1])],
        ),
        (
            "norm-after-branch",
            "each norm is applied to what a branch gives, not to what it reads",
            DIFFERS,
            lambda x, y, i, o, a, m: [(i[0], a), (i[1], m), (y, x + o[0] + o[1])],
        ),
        (
            "no-residual-attention",
            "the residual round attention is missing: x = attn(ln(x))",
            FAILED,
            lambda x, y, i, o, a, m: [(i[0], x), (i[1], a), (y, a + m)],
        ),
        (
            "no-residual-mlp",
            "the residual round the MLP is missing: x = mlp(ln(x))",
            FAILED,
            lambda x, y, i, o, a, m: [(i[0], x), (i[1], x + a), (y, m)],
        ),
        ("no-residual", "both residuals are missing", FAILED, lambda x, y, i, o, a, m: [(i[0], x), (i[1], a), (y, m)]),
        (
            "mlp-adds-to-input",
            "the MLP is added to the block's input, so that what attention found is lost",
            FAILED,
            lambda x, y, i, o, a, m: [(i[0], x), (i[1], x + a), (y, x + m)],
        ),
        (
            "mlp-reads-attention-alone",
            "the MLP reads attention's answer alone, not the stream that it was added to",
            FAILED,
            lambda x, y, i, o, a, m: [(i[0], x), (i[1], a), (y, x + a + m)],
        ),
        (
            "mlp-on-attention",
            "the MLP is added to the input and reads attention's answer alone",
            FAILED,
            lambda x, y, i, o, a, m: [(i[0], x), (i[1], a), (y, x + m)],
        ),
        (
            "residual-normalised-attention",
            "the residual round attention is taken from the normalised stream",
            FAILED,
            lambda x, y, i, o, a, m: [(i[0], x), (i[1], o[0] + a), (y, o[0] + a + m)],
        ),
        (
            "residual-normalised-mlp",
            "the residual round the MLP is taken from the normalised stream",
            FAILED,
            lambda x, y, i, o, a, m: [(i[0], x), (i[1], x + a), (y, o[1] + m)],
        ),
        (
            "stream-normalised",
            "the norms replace the stream itself, x = ln(x), and both residuals start from that",
            FAILED,
            lambda x, y, i, o, a, m: [(i[0], x), (i[1], o[0] + a), (y, o[1] + m)],
        ),
        (
            "attention-doubled",
            "attention's answer is added to itself, not to the stream",
            FAILED,
            lambda x, y, i, o, a, m: [(i[0], x), (i[1], a + a), (y, a + a + m)],
        ),
        (
            "mlp-doubled",
            "the MLP's answer is added to itself, not to the stream",
            FAILED,
            lambda x, y, i, o, a, m: [(i[0], x), (i[1], x + a), (y, m + m)],
        ),
        (
            "both-doubled",
            "both answers are added to themselves, not to the stream",
            FAILED,
            lambda x, y, i, o, a, m: [(i[0], x), (i[1], a + a), (y, m + m)],
        ),
        (
            "attention-subtracted",
            "attention's answer is subtracted from the stream",
            FAILED,
            lambda x, y, i, o, a, m: [(i[0], x), (i[1], x - a), (y, x - a + m)],
        ),
        (
            "mlp-subtracted",
            "the MLP's answer is subtracted from the stream",
            FAILED,
            lambda x, y, i, o, a, m: [(i[0], x), (i[1], x + a), (y, x + a - m)],
        ),
        (
            "stream-doubled",
            "the stream is added twice",
            FAILED,
            lambda x, y, i, o, a, m: [(i[0], x), (i[1], x + x + a), (y, x + x + a + m)],
        ),
        (
            "stream-doubled-mlp",
            "the stream is added twice, at the MLP",
            FAILED,
            lambda x, y, i, o, a, m: [(i[0], x), (i[1], x + a), (y, x + x + a + m)],
        ),
        (
            "stream-doubled-late",
            "the stream as it was is added once more behind the MLP",
            FAILED,
            lambda x, y, i, o, a, m: [(i[0], x), (i[1], x + a), (y, x + a + m + x + a)],
        ),
        (
            "attention-counted-twice",
            "attention's answer is added twice",
            FAILED,
            lambda x, y, i, o, a, m: [(i[0], x), (i[1], x + a), (y, x + a + a + m)],
        ),
        (
            "post-norm-no-residual",
            "both residuals are missing, and the norms come last",
            FAILED,
            lambda x, y, i, o, a, m: [(i[0], a), (i[1], m), (y, o[1])],
        ),
        (
            "attention-unused",
            "attention's answer is never added: the positions do not talk",
            FAILED,
            lambda x, y, i, o, a, m: [(i[1], x), (y, x + m)],
        ),
        ("mlp-unused", "the MLP's answer is never added", FAILED, lambda x, y, i, o, a, m: [(i[0], x), (y, x + a)]),
    ]
    one = [
        (
            "parallel-one-norm",
            "attention and MLP read the same normalised stream, side by side",
            DIFFERS,
            lambda x, y, i, o, a, m: [(i[0], x), (y, x + a + m)],
        ),
        (
            "mlp-without-norm",
            "the norm in front of the MLP is missing",
            FAILED,
            lambda x, y, i, o, a, m: [(i[0], x), (y, x + a + m)],
        ),
        (
            "attention-without-norm",
            "the norm in front of attention is missing",
            FAILED,
            lambda x, y, i, o, a, m: [(i[0], x + a), (y, x + a + m)],
        ),
        (
            "attention-missing",
            "there is no attention: the positions do not talk",
            FAILED,
            lambda x, y, i, o, a, m: [(i[0], x), (y, x + m)],
        ),
    ]
    none = [
        ("no-norms", "no norm at all", FAILED, lambda x, y, i, o, a, m: [(y, x + a + m)]),
        ("no-norms-no-residual", "neither norm nor residual", FAILED, lambda x, y, i, o, a, m: [(y, m)]),
    ]
    more = [
        (
            "output-normalised",
            "the block normalises its own output too",
            DIFFERS,
            lambda x, y, i, o, a, m: [(i[0], x), (i[1], x + a), (i[2], x + a + m), (y, o[2])],
        ),
    ]
    sandwich = [
        ("norms-round-branches", "norms in front of each branch and behind it", DIFFERS,
         lambda x, y, i, o, a, m: [(i[0], x), (i[1], a), (i[2], x + o[1]), (i[3], m), (y, x + o[1] + o[3])]),
    ]  # fmt: skip
    return {0: none, 1: one, 2: two, 3: more, 4: sandwich}


STRUCTURES = _structures()  # fmt: skip
NORM_SHARED = "one norm serves both branches: each needs its own"
ATTENTION_UNNORMALISED = "the norm in front of attention is called, but attention reads the stream as it is"
MLP_UNNORMALISED = "the norm in front of the MLP is called, but the MLP reads the stream as it is"
NO_ACTIVATION = "no activation between the two layers of the MLP: together they are one matrix"
DROPOUT = "dropout that is on in evaluation mode"


class Block:
    """What a check knows of a reader's block: how its parts go together, found once and asked for several times."""

    def __init__(self, piece: Piece):
        self.piece = piece
        self.seen = Seen(piece, piece.random(), piece.x())
        self.name, self.words, self.status, self.attention, self.mlp = self._find()

    def _find(self):
        s = self.seen
        i, o = [given for _, given, _ in s.norms], [output for _, _, output in s.norms]
        nothing = torch.zeros_like(s.x)
        known = STRUCTURES.get(len(i), [])
        for name, words, status, equations in known:
            for a, m in [
                *itertools.permutations(s.branches, 2),
                *((b, nothing) for b in s.branches),
                *((nothing, b) for b in s.branches),
            ]:
                lone = a is nothing or m is nothing
                if (
                    lone != (name in ("attention-unused", "mlp-unused", "attention-missing"))
                    or (name in ("attention-unused", "attention-missing") and m is nothing)
                    or (name == "mlp-unused" and a is nothing)
                ):
                    continue
                if not all(same(one, two, ROUNDING) for one, two in equations(s.x, s.y, i, o, a, m)):
                    continue
                if name == "parallel-one-norm" and s.reads(s.x + a):
                    continue
                if self._mixes(m) and not self._mixes(a) and not lone and name != "right":
                    continue
                return self._closer(name, words, status, i, o, a, m)
        raise CannotLook("how its parts go together could not be told from outside")

    def _closer(self, name, words, status, i, o, a, m):
        """Questions about a block that is put together rightly: two norms, whose outputs are read, in the right order."""
        s = self.seen
        if name == "right":
            if s.norms[0][0] is s.norms[1][0]:
                return "norm-shared", NORM_SHARED, FAILED, a, m
            if s.parts and not s.reads(o[0]) and s.reads(s.x):
                return "attention-unnormalised", ATTENTION_UNNORMALISED, FAILED, a, m
            if s.parts and not s.reads(o[1]) and s.reads(i[1]):
                return "mlp-unnormalised", MLP_UNNORMALISED, FAILED, a, m
            if self._mixes(m) and not self._mixes(a):
                return "mlp-first", "the MLP comes first, then attention", DIFFERS, m, a
        return name, words, status, a, m

    def _mixes(self, tensor) -> bool | None:
        """Whether the part that gave this tensor lets positions read each other."""
        module, given = self.seen.giver(tensor)
        if module is None or given.shape != self.seen.x.shape or given.size(1) < 2:
            return False
        other = given.clone()
        other[:, 0] = self.piece.x(seed=5)[:, 0]
        try:
            one, two = (self.piece.call(copy.deepcopy(module), z) for z in (given, other))
        except CannotLook:
            return False
        return distance(one[:, 1:], two[:, 1:]) > 1e-6


def _structure(block: Block) -> Result:
    expected = "x + attn(ln(x)), then x + mlp(ln(x))"
    if block.status == PASSED:
        return _result(PASSED, "pre-norm, two residuals", expected)
    return _result(block.status, "put together in another way", expected, f"{block.words} (page 6)")


def _residual(piece: Piece, block: Block | None) -> Result:
    """With every matrix at zero, a branch adds nothing, and a pre-norm block passes its input on."""
    model, x, expected = piece.random(), piece.x(), "the input itself, with every matrix at zero"
    zeroed = 0
    with torch.no_grad():
        for module in model.modules():
            own = dict(module.named_parameters(recurse=False))
            if any(p.dim() >= 2 for p in own.values()) and not is_norm(module, piece.C):
                for p in own.values():
                    p.zero_()
                    zeroed += 1
    if not zeroed:
        raise CannotLook("it has no matrices")
    y = piece.call(model, x)
    if same(y, x, 1e-6):
        return _result(PASSED, "the input itself", expected)
    if block is not None:
        status = DIFFERS if block.status == DIFFERS else FAILED
        return _result(status, "something else", expected, block.words or "the residual does not pass its input on")
    if y.abs().max() < 1e-6:
        return _result(FAILED, "zeros", expected, "a residual is missing: what a branch does not write is lost")
    for factor in (0.0, 2.0, 0.5):
        if same(y, factor * x, 1e-6):
            return _result(FAILED, f"{factor:g} times the input", expected, "the stream is added twice, or scaled")
    fresh = piece.random(vectors=False)  # norms as they start, with gain 1: behind a norm, rows are standard
    out = piece.call(fresh, x)
    if out.mean(-1).abs().max() < 1e-4 and (out.var(-1, unbiased=False) - 1).abs().max() < 1e-2:
        return _result(DIFFERS, "the normalised input", expected, "post-norm: the stream itself is normalised")
    return _result(FAILED, "the normalised input", expected, "the residual is taken from the normalised stream")


def _norms(block: Block) -> Result:
    """Each norm is a LayerNorm; an RMSNorm differs; everything else is compared with what is known to be wrong."""
    expected, s = "LayerNorm over the width", block.seen
    if not s.norms:
        raise CannotLook("no norm of it is a module")
    verdict = _result(PASSED, f"{len({id(n) for n, _, _ in s.norms})} norms, right", expected)
    for module, given, _ in s.norms:
        result = judge_norm(block.piece, module, given)
        if result.status == FAILED:
            return result
        if result.status != PASSED:
            verdict = result
    return verdict


def judge_norm(piece: Piece, module, given) -> Result:
    """One norm, on three sizes of input, by its own weight and bias."""
    expected = "LayerNorm over the width"
    own = [p.detach().double() for p in module.parameters()]
    C = given.size(-1)
    weight = own[0] if own else torch.ones(C, dtype=torch.float64)
    bias = own[1] if len(own) > 1 else torch.zeros(C, dtype=torch.float64)
    pairs = ((weight, bias), (bias, weight)) if len(own) > 1 else ((weight, bias),)
    cases = [given, 0.01 * given, 0.001 * given, torch.zeros_like(given) + 1.5]
    answers = [piece.call(module, case) for case in cases]

    def equal(wrong) -> bool:
        return any(
            all(
                same(wrong(case.double(), *pair), answer, ROUNDING) for case, answer in zip(cases, answers, strict=True)
            )
            for pair in pairs
        )

    if equal(lambda x, w, b: F.layer_norm(x, (C,), w, b, 1e-5)):
        return _result(PASSED, "right", expected)
    for eps in (1e-5, 1e-6, 1e-8, 1e-12):
        if eps < 1e-5 and equal(lambda x, w, b, eps=eps: F.layer_norm(x, (C,), w, b, eps)):
            return _result(DIFFERS, f"epsilon {eps:.0e}", expected, f"right but for epsilon: {eps:.0e}, not 1e-05")
        for gain in (0, 1):
            if equal(lambda x, w, b, e=eps, g=gain: x * ((x * x).mean(-1, keepdim=True) + e).rsqrt() * (w + g) + b):
                return _result(DIFFERS, "RMSNorm", expected, "an RMSNorm, which does not subtract the mean")
    for part, known in LAYER_NORM.items():
        for name, (words, _) in known.items():
            if equal(layer_norm_as(**{part: name})):
                return _result(
                    FAILED, "equal to a wrong version", expected, f"a norm equals this version: {words} (page 6)"
                )
    raise CannotLook("a norm is neither LayerNorm nor RMSNorm, and no mistake that is known here")


def _attention_inside(block: Block) -> Result:
    """What attention gave, from what it was given and the block's own matrices, for the number of heads that it names."""
    s, C = block.seen, block.piece.C
    module, given = s.giver(block.attention)
    if module is None or block.attention is None or not block.attention.abs().max() > 0:
        raise CannotLook("attention is no part of it that can be looked at")
    norm = [o for _, _, o in s.norms] + [s.x]
    given = given if given.shape == s.x.shape and s.parts and any(same(given, n, 1e-6) for n in norm) else norm[0]
    where = module if len(list(module.parameters())) > 2 else s.model
    named = [getattr(m, n) for m in s.model.modules() for n in HEAD_NAMES if isinstance(getattr(m, n, None), int)]
    counts = [h for h in dict.fromkeys(named) if h and C % h == 0]
    lists = [len(m) for m in s.model.modules() if isinstance(m, nn.ModuleList) and len(m) and C % len(m) == 0]
    counts = counts or lists or [h for h in range(1, C + 1) if C % h == 0]
    worst = None
    for H in counts:
        try:
            result = judge_heads(given, block.attention, lambda H: list(layouts(where, C, H)), H, C)
        except CannotLook as reason:
            worst = worst or reason
            continue
        if result.status == PASSED or len(counts) == 1:
            return result
        worst = result if not isinstance(worst, Result) else worst
    if isinstance(worst, Result):
        return worst
    raise worst


def _activation(block: Block) -> Result:
    """The MLP is no linear map: f(a) + f(b) is not f(a + b) + f(0)."""
    s, expected = block.seen, "an MLP that is no straight line"
    module, given = s.giver(block.mlp)
    if module is None or not block.mlp.abs().max() > 0:
        raise CannotLook("the MLP is no part of it that can be looked at")
    if given.shape == s.x.shape and sum(p.dim() >= 2 for p in module.parameters()) >= 2:
        a, b = block.piece.x(seed=6), block.piece.x(seed=7)
        f = [block.piece.call(module, z) for z in (a, b, a + b, torch.zeros_like(a))]
        straight = same(f[0] + f[1], f[2] + f[3], 1e-5)
    else:  # its two layers are parts of the block itself
        straight = any(same(output, given, 1e-6) for _, _, output in s.wide if _first(_) is not None)
    if straight:
        return _result(FAILED, "a straight line", expected, f"{NO_ACTIVATION} (page 6)")
    return _result(PASSED, "curved", expected)


def _first(module):
    return next(module.parameters(), None) if isinstance(module, nn.Module) else None


def check_block(block: nn.Module) -> Report:
    """Check a block of a GPT: block(x (B, T, C)) -> (B, T, C), pre-norm, with attention and an MLP; page 6.

    Post-norm, parallel branches and RMSNorm "differ". Parts that are modules are looked at from inside; what cannot be
    is "not checked". The block is not changed. Raises TypeError for what is no module.
    """
    piece, found = Piece(block), {}

    def inside() -> Block:
        if "block" not in found:
            try:
                found["block"] = Block(piece)
            except CannotLook as reason:
                found["block"] = reason
        if isinstance(found["block"], CannotLook):
            raise found["block"]
        return found["block"]

    def residual() -> Result:
        try:
            return _residual(piece, inside())
        except CannotLook:
            return _residual(piece, None)

    with untouched(block):
        return _asked(
            [
                ("shapes", lambda: _measured(piece), True),
                ("deterministic", lambda: _deterministic(piece), True),
                ("finite", lambda: _finite(piece), True),
                ("causal", lambda: _causal(piece), False),
                ("batch-independent", lambda: _batch(piece), False),
                ("reach", lambda: _reach(piece), False),
                ("structure", lambda: _structure(inside()), False),
                ("residual", residual, False),
                ("norms", lambda: _norms(inside()), False),
                ("attention", lambda: _attention_inside(inside()), False),
                ("activation", lambda: _activation(inside()), False),
            ],
            "page 6",
        )


# ---- the wrong versions


class WrongHeads(nn.Module):
    """Heads of attention that go wrong as `how` says; right where it says nothing."""

    def __init__(
        self, n_embd: int, n_head: int, real: int | None = None, shared: bool = False, equal: bool = False, **how
    ):
        super().__init__()
        self.n_head, self.how, self.shared = real or n_head, how, shared
        self.sets = n_head if shared else 1
        self.qkv = nn.Linear(n_embd, 3 * n_embd // self.sets)
        self.proj = nn.Linear(n_embd, n_embd)
        if how.get("out") == "missing":
            del self.proj
        if equal:
            with torch.no_grad():
                heads_of = self.qkv.weight.view(3, n_head, n_embd // n_head, n_embd)
                heads_of.copy_(heads_of[:, :1].expand_as(heads_of))

    def forward(self, x):
        qkv = zip("qkv", self.qkv.weight.chunk(3), self.qkv.bias.chunk(3), strict=True)
        w = {}
        for name, weight, bias in qkv:
            w |= {name: torch.cat([weight] * self.sets), f"{name}_bias": torch.cat([bias] * self.sets)}
        if hasattr(self, "proj"):
            w |= {"o": self.proj.weight, "o_bias": self.proj.bias}
        return heads(x, w, self.n_head, **self.how)


class WrongNorm(nn.Module):
    def __init__(self, n_embd: int, **how):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(n_embd)), nn.Parameter(torch.zeros(n_embd))
        self.how = how

    def forward(self, x):
        return layer_norm_as(**self.how)(x, self.weight, self.bias)


class WrongBlock(nn.Module):
    """A block put together in the way of this name, with attention, norm and MLP that can go wrong as well."""

    def __init__(self, n_embd, n_head, way="right", norm=None, activation="gelu", dropout=0.0, **how):
        super().__init__()
        self.way, self.dropout = way, dropout
        self.ln_1 = WrongNorm(n_embd, **(norm or {}))
        self.ln_2 = self.ln_1 if way == "norm-shared" else WrongNorm(n_embd, **(norm or {}))
        self.attn = WrongHeads(n_embd, n_head, **how)
        between = {"gelu": nn.GELU, "none": nn.Identity}[activation]()
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), between, nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        return F.dropout(WAYS_TO_BLOCK[self.way](x, self.attn, self.mlp, self.ln_1, self.ln_2), self.dropout)


def _unused(norm, x):
    norm(x)
    return x


WAYS_TO_BLOCK = {
    "right": lambda x, A, M, n, k: (h := x + A(n(x))) + M(k(h)),
    "norm-shared": lambda x, A, M, n, k: (h := x + A(n(x))) + M(n(h)),
    "attention-unnormalised": lambda x, A, M, n, k: (h := x + A(_unused(n, x))) + M(k(h)),
    "mlp-unnormalised": lambda x, A, M, n, k: (h := x + A(n(x))) + M(_unused(k, h)),
    "parallel": lambda x, A, M, n, k: x + A(n(x)) + M(k(x)),
    "post-norm": lambda x, A, M, n, k: k((h := n(x + A(x))) + M(h)),
    "norm-after-branch": lambda x, A, M, n, k: (h := x + n(A(x))) + k(M(h)),
    "no-residual-attention": lambda x, A, M, n, k: (h := A(n(x))) + M(k(h)),
    "no-residual-mlp": lambda x, A, M, n, k: M(k(x + A(n(x)))),
    "no-residual": lambda x, A, M, n, k: M(k(A(n(x)))),
    "mlp-adds-to-input": lambda x, A, M, n, k: x + M(k(x + A(n(x)))),
    "mlp-reads-attention-alone": lambda x, A, M, n, k: x + (a := A(n(x))) + M(k(a)),
    "mlp-on-attention": lambda x, A, M, n, k: x + M(k(A(n(x)))),
    "residual-normalised-attention": lambda x, A, M, n, k: (h := (s := n(x)) + A(s)) + M(k(h)),
    "residual-normalised-mlp": lambda x, A, M, n, k: (s := k(x + A(n(x)))) + M(s),
    "stream-normalised": lambda x, A, M, n, k: (s := k((r := n(x)) + A(r))) + M(s),
    "attention-doubled": lambda x, A, M, n, k: (h := (a := A(n(x))) + a) + M(k(h)),
    "mlp-doubled": lambda x, A, M, n, k: (m := M(k(x + A(n(x))))) + m,
    "both-doubled": lambda x, A, M, n, k: (m := M(k((a := A(n(x))) + a))) + m,
    "attention-subtracted": lambda x, A, M, n, k: (h := x - A(n(x))) + M(k(h)),
    "mlp-subtracted": lambda x, A, M, n, k: (h := x + A(n(x))) - M(k(h)),
    "stream-doubled": lambda x, A, M, n, k: (h := x + x + A(n(x))) + M(k(h)),
    "stream-doubled-mlp": lambda x, A, M, n, k: (h := x + A(n(x))) + x + M(k(h)),
    "stream-doubled-late": lambda x, A, M, n, k: (h := x + A(n(x))) + (h + M(k(h))),
    "attention-counted-twice": lambda x, A, M, n, k: (h := x + (a := A(n(x)))) + a + M(k(h)),
    "post-norm-no-residual": lambda x, A, M, n, k: k(M(n(A(x)))),
    "attention-unused": lambda x, A, M, n, k: (A(n(x)), x + M(k(x)))[1],
    "mlp-unused": lambda x, A, M, n, k: (h := x + A(n(x)), M(k(h)))[0],
    "parallel-one-norm": lambda x, A, M, n, k: x + A(s := n(x)) + M(s),
    "mlp-without-norm": lambda x, A, M, n, k: (h := x + A(n(x))) + M(h),
    "attention-without-norm": lambda x, A, M, n, k: (h := x + A(x)) + M(k(h)),
    "attention-missing": lambda x, A, M, n, k: x + M(k(x)),
    "no-norms": lambda x, A, M, n, k: (h := x + A(x)) + M(h),
    "no-norms-no-residual": lambda x, A, M, n, k: M(A(x)),
}
_WORDS = {name: words for known in STRUCTURES.values() for name, words, _, _ in known} | {
    "norm-shared": NORM_SHARED,
    "attention-unnormalised": ATTENTION_UNNORMALISED,
    "mlp-unnormalised": MLP_UNNORMALISED,
}
_DIFFERENT = ("parallel", "post-norm", "norm-after-branch", "parallel-one-norm")


def _making(cls, **how) -> Callable:
    return lambda n_embd, n_head: cls(n_embd, n_head, **how)


MISTAKES = (
    *(Mistake(f"multihead-{name}", "multihead", words, "page 5", _making(WrongHeads, **how)) for name, words, how in WAYS),
    Mistake("multihead-shared", "multihead", SHARED, "page 5", _making(WrongHeads, shared=True)),
    Mistake("multihead-identical", "multihead", IDENTICAL, "page 5", _making(WrongHeads, equal=True)),
    Mistake("multihead-one-head", "multihead", ONE_HEAD.format("one head", 3), "page 5", _making(WrongHeads, real=1)),
    *(
        Mistake(f"block-{way}", "block", _WORDS[way], "page 6", _making(WrongBlock, way=way))
        for way in WAYS_TO_BLOCK
        if way != "right" and way not in _DIFFERENT
    ),
    Mistake("block-no-activation", "block", NO_ACTIVATION, "page 6", _making(WrongBlock, activation="none")),
    Mistake("block-live-dropout", "block", DROPOUT, "page 6", _making(WrongBlock, dropout=0.3)),
    *(
        Mistake(f"block-norm-{name}", "block", words, "page 6", _making(WrongBlock, norm={part: name}))
        for part, known in LAYER_NORM.items()
        for name, (words, _) in known.items()
        if name in ("unbiased", "outside", "thousandth", "no-mean", "no-bias", "over-positions-and-channels", "weight-added")
    ),
    *(
        Mistake(f"block-heads-{name}", "block", words, "page 6", _making(WrongBlock, **how))
        for name, words, how in WAYS
        if name in ("no-projection", "merged-by-view", "unscaled", "scaled-by-width", "no-mask", "one-ahead", "over-queries")
    ),
)  # fmt: skip
DIFFERENCES = tuple(Mistake(f"block-{w}", "block", _WORDS[w], "page 6", _making(WrongBlock, way=w)) for w in _DIFFERENT)


def _with(check: Callable, *arguments) -> Callable:
    """Build the wrong version at a width of 12 with 3 heads, always with the same weights, and check it."""

    def ask_about(make) -> Report:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = make(12, 3)
        return check(module, *arguments)

    return ask_about


ASK = {"multihead": _with(check_multihead, 3), "block": _with(check_block)}
