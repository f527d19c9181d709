"""What somebody's GPT computes: its weights are put into known designs, until one gives the same logits.

    logits = unembedding(norm(stream)),   stream = token + position, and each block adds attention and the MLP to it

With attention and the MLPs at zero only the ends are left, and are found first; then the MLPs are let in, then
attention. So a part that nobody knows does not hide the others, and what is found is confirmed by the whole.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from gptbook.modern import ModernConfig
from gptbook.verify.anatomy import Anatomy, Matrix, dissect
from gptbook.verify.subject import CannotLook, Subject

UNKNOWN = "equals none of the known forms, however its weights are read"
NO_ATTENTION, NO_MLP, REST = frozenset({"attention"}), frozenset({"mlp"}), frozenset({"rest"})
NEITHER, ALL = NO_ATTENTION | NO_MLP, frozenset()

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "none": lambda x: x,
    "squared relu": lambda x: F.relu(x).square(),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "quick gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "leaky relu": lambda x: F.leaky_relu(x, 0.01),
    "elu": F.elu,
    "mish": F.mish,
    "softplus": F.softplus,
    "normal density": lambda x: torch.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "normal distribution": lambda x: 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "absolute value": torch.abs,
    "sine": torch.sin,
}

EPSILONS = (1e-5, 1e-6, 1e-8, 1e-12, 1.1920929e-07, 0.0, 1e-4, 1e-3, 1e-2, 0.1)


def _centred(x):
    return x - x.mean(-1, keepdim=True)


NORMS = {  # how x (..., C) is divided, before the gain
    "layer": lambda x, eps: _centred(x) / (x.var(-1, keepdim=True, unbiased=False) + eps).sqrt(),
    "rms": lambda x, eps: x / (x.square().mean(-1, keepdim=True) + eps).sqrt(),
    "layer, unbiased, eps outside": lambda x, eps: _centred(x) / (x.std(-1, keepdim=True) + eps),
    "layer, unbiased": lambda x, eps: _centred(x) / (x.var(-1, keepdim=True) + eps).sqrt(),
    "layer, eps outside": lambda x, eps: _centred(x) / (x.std(-1, keepdim=True, unbiased=False) + eps),
    "rms, eps outside": lambda x, eps: x / (x.square().mean(-1, keepdim=True).sqrt() + eps),
    "divided by the variance": lambda x, eps: _centred(x) / (x.var(-1, keepdim=True, unbiased=False) + eps),
    "layer, gain after the bias": None,  # (x + bias) * gain: told apart in `_normed`
    "divided by the norm": lambda x, eps: x / (x.norm(dim=-1, keepdim=True) + eps),
    "not divided": lambda x, eps: _centred(x),
    "not centred": lambda x, eps: x / (x.var(-1, keepdim=True, unbiased=False) + eps).sqrt(),
    "none": lambda x, eps: x,
}

PLACES = {  # how a layer f and its norm n act on the stream x
    "pre": lambda x, n, f: x + f(n(x)),
    "post": lambda x, n, f: n(x + f(x)),
    "normalised": lambda x, n, f: (h := n(x)) + f(h),
    "no residual": lambda x, n, f: f(n(x)),
    "branch twice": lambda x, n, f: 2 * f(n(x)),
    "no norm": lambda x, n, f: x + f(x),
    "norm after": lambda x, n, f: x + n(f(x)),
    "subtracted": lambda x, n, f: x - f(n(x)),
    "stream twice": lambda x, n, f: 2 * x + f(n(x)),
    "halved": lambda x, n, f: (x + f(n(x))) / 2,
    "no residual, norm after": lambda x, n, f: n(f(x)),
}

SCALES = {  # what the scores are multiplied by, from D, C, H
    "root D": lambda D, C, H: D**-0.5,
    "none": lambda D, C, H: 1.0,
    "root C": lambda D, C, H: C**-0.5,
    "D": lambda D, C, H: 1 / D,
    "C": lambda D, C, H: 1 / C,
    "times root D": lambda D, C, H: D**0.5,
    "root H": lambda D, C, H: H**-0.5,
    "twice": lambda D, C, H: D**-0.25,
}


@dataclass(frozen=True)
class Design:
    """One way to compute logits from the weights of an anatomy; the defaults are GPT-2's."""

    token_scale: float = 1.0
    positions: str = "learned"  # or "none", "fixed" (a table that is not learned), "constant" (the same everywhere)
    position_times: int = 1
    position_in_blocks: bool = False
    embedding: tuple | None = None  # the norm, without a gain, of token and position together
    final: tuple = ("layer", 1e-5)
    norm: tuple = ("layer", 1e-5)
    norms_swapped: bool = False
    attention_place: str = "pre"
    mlp_place: str = "pre"
    parallel: str = ""  # "", "one norm", "two norms"
    activation: str = "gelu"
    mlp_reading: int = 0
    reading: int = 0
    n_head: int = 1
    scale: str | float = "root D"
    rotary: tuple | None = None  # ("pairs" or "halves", base)
    qk_norm: tuple | None = None  # the norm, without a gain, of each query and key
    slopes: bool = False  # a bias on the scores that falls with distance: ALiBi
    attention_first: bool = True


@dataclass
class Structure:
    """What was found: a design that explains the logits as far as `known` says, and why no further."""

    anatomy: Anatomy
    design: Design
    known: set[str]  # of "ends", "mlp", "attention", "whole"
    why: dict[str, str]  # for what is not known: the reason
    missing: tuple[str, ...] = ()  # layers round which the stream does not pass: "attention", "mlp"
    machine: "Machine" = None

    @property
    def reading(self) -> "Reading":
        """How the matrices of attention are read."""
        return self.machine.readings[self.design.reading]

    @property
    def gated(self) -> bool:
        """Whether the MLP has a gate."""
        readings = self.machine.mlp_readings
        return bool(readings) and readings[self.design.mlp_reading][1] is not None


# ---- a design at work


class Machine:
    """Computes logits (B, T, columns) by a `Design` from the weights of an anatomy, in float64."""

    def __init__(self, anatomy: Anatomy):
        self.a = anatomy
        self.readings = list(_readings(anatomy))
        self.mlp_readings = list(_mlp_readings(anatomy))
        self.L = len(anatomy.norms)
        self.columns = anatomy.logits().size(-1)
        self.fixed: torch.Tensor | None = None  # (T, C) positions that are not learned, as they were measured

    def __call__(self, d: Design, mute: frozenset = ALL) -> torch.Tensor:
        a = self.a
        T = a.idx.size(1)
        position = self._positions(d, T)
        x = d.token_scale * _double(a.tokens)[a.idx.cpu()]
        if position is not None:
            x = x + d.position_times * position
        if d.embedding:
            x = _normed(x, None, *d.embedding)
        for layer in range(self.L):
            if d.position_in_blocks and position is not None:
                x = x + position
            x = self._block(d, x, layer, mute)
        x = _normed(x, a.final, *d.final)
        logits = x @ _double(a.head)[: self.columns].T
        return logits if a.head_bias is None else logits + _double(a.head_bias)[: self.columns]

    def _positions(self, d: Design, T: int):
        if d.positions == "none":
            return None
        if d.positions == "learned":
            return _double(self.a.positions)[:T]
        return self.fixed

    def _block(self, d: Design, x, layer: int, mute: frozenset):
        norms = self.a.norms[layer]
        first, second = ([*norms, None, None] if len(norms) != 1 else norms * 2)[:2]
        if d.norms_swapped:
            first, second = second, first
        rest = "rest" in mute and layer > 0
        no_attention, no_mlp = rest or "attention" in mute, rest or "mlp" in mute
        attention = _nothing if no_attention else (lambda z: self._attention(d, z, layer))
        mlp = _nothing if no_mlp else (lambda z: self._mlp(d, z, layer))

        def n1(z):
            return _normed(z, first, *d.norm)

        def n2(z):
            return _normed(z, second, *d.norm)

        if d.parallel:
            return x + attention(n1(x)) + mlp((n1 if d.parallel == "one norm" else n2)(x))
        steps = [(d.attention_place, n1, attention), (d.mlp_place, n2, mlp)]
        for place, norm, layer_of in steps if d.attention_first else steps[::-1]:
            if layer_of is not _nothing or place not in ("pre", "no norm", "subtracted"):
                x = PLACES[place](x, norm, layer_of)
        return x

    def _mlp(self, d: Design, z, layer: int):
        fc, gate, out = self.mlp_readings[d.mlp_reading]
        inner = ACTIVATIONS[d.activation](_linear(z, fc(layer)))
        if gate is not None:
            inner = inner * _linear(z, gate(layer))
        return _linear(inner, out(layer))

    def _attention(self, d: Design, z, layer: int):
        reading = self.readings[d.reading]
        q, k, v, (W, b) = reading.parts(layer, d.n_head)
        q, k, v = (_linear(z, part) for part in (q, k, v))
        T, H = q.size(1), d.n_head
        D = q.size(-1) // H
        q, k, v = (reading.split(part, D) for part in (q, k, v))  # (B, H or G, T, D)
        if d.qk_norm:
            q, k = _normed(q, None, *d.qk_norm), _normed(k, None, *d.qk_norm)
        if d.rotary:
            q, k = rotated(q, *d.rotary), rotated(k, *d.rotary)
        G = k.size(1)
        if reading.tiled:
            k, v = (part.repeat(1, H // G, 1, 1) for part in (k, v))
        else:
            k, v = (part.repeat_interleave(H // G, dim=1) for part in (k, v))
        scale = SCALES[d.scale](D, self.a.width, H) if isinstance(d.scale, str) else d.scale
        scores = q @ k.mT * scale  # (B, H, T, T)
        if d.slopes:
            slope = 2.0 ** (-8 / H * torch.arange(1, H + 1, dtype=scores.dtype))[:, None, None]
            scores = scores - slope * (torch.arange(T)[:, None] - torch.arange(T))
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
        y = scores.masked_fill(future, -math.inf).softmax(-1) @ v  # (B, H, T, D)
        y = reading.merge(y)
        return y if W is None else _linear(y, (W, b))


def _nothing(z):
    return 0 * z


def _double(p: torch.Tensor) -> torch.Tensor:
    return p.detach().double().cpu()


def _linear(x, part):
    W, b = part
    y = x @ W.T
    return y if b is None else y + b


def _normed(x, norm, kind: str, eps: float):
    gain, bias = norm if norm is not None else (None, None)
    if kind == "none":
        return x
    if kind == "layer, gain after the bias":
        x = NORMS["layer"](x, eps)
        return (x + (0 if bias is None else _double(bias))) * (1 if gain is None else _double(gain))
    x = NORMS[kind](x, eps)
    x = x if gain is None else x * _double(gain)
    return x if bias is None else x + _double(bias)


def rotated(z, how: str, base: float):
    """z (..., T, D) with its pairs of channels, neighbours or a half apart, turned by position."""
    T, D = z.shape[-2:]
    angle = torch.arange(T, dtype=z.dtype)[:, None] * base ** (-torch.arange(0, D, 2, dtype=z.dtype) / D)
    a, b = (z[..., 0::2], z[..., 1::2]) if how == "pairs" else z.chunk(2, dim=-1)
    turned = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
    return torch.stack(turned, -1).flatten(-2) if how == "pairs" else torch.cat(turned, -1)


# ---- ways of reading matrices


@dataclass(frozen=True)
class Reading:
    """One way to read the matrices of attention: `take(layer, H)` gives q, k, v and the projection, each (W, b)."""

    take: object
    heads_last: bool = False  # channels are (D, H), not (H, D)
    query_width: int = 0
    key_width: int = 0
    heads: int = 0  # the number of heads, where each has matrices of its own
    tiled: bool = False  # head h of the queries reads head h % G of the keys, not h // (H / G)

    def parts(self, layer: int, H: int):
        """Query, key, value and projection, each (W, b); W of the projection is None if there is none."""
        return self.take(layer, H)

    def split(self, y, D: int):
        """(B, T, H·D) -> (B, H, T, D)."""
        if self.heads_last:
            return y.unflatten(-1, (D, -1)).permute(0, 3, 1, 2)
        return y.unflatten(-1, (-1, D)).transpose(1, 2)

    def merge(self, y):
        """(B, H, T, D) -> (B, T, H·D)."""
        return (y.permute(0, 2, 3, 1) if self.heads_last else y.transpose(1, 2)).flatten(2)


def _ways(matrix: Matrix, into: int | None = None, out: int | None = None) -> Iterator[tuple]:
    """The (weights, biases) of a matrix that maps `into` numbers to `out`: as it is, and turned where it may be."""
    for turned in (False, True):
        weights = tuple(_double(W.T if turned else W) for W in matrix.weights)
        if turned and matrix.sure:
            continue
        if (into is None or weights[0].size(1) == into) and (out is None or weights[0].size(0) == out):
            yield weights, tuple(None if b is None else _double(b) for b in matrix.biases)


def _at(way):
    weights, biases = way
    return lambda layer: (weights[layer], biases[layer])


def _mlp_readings(a: Anatomy) -> Iterator[tuple]:
    """(first layer, gate or None, second layer), each layer -> (W, b). What the activation acts on comes first."""
    C, mlp = a.width, a.mlp
    if len(mlp) == 2:
        for first, last in (mlp, mlp[::-1]):
            for one, two in itertools.product(_ways(first, into=C), _ways(last, out=C)):
                M, wide = two[0][0].size(1), one[0][0].size(0)
                if wide == M:
                    yield _at(one), None, _at(two)
                elif wide == 2 * M:
                    for order in (slice(None, M), slice(M, None)), (slice(M, None), slice(None, M)):
                        halves = [
                            tuple(tuple(None if t is None else t[part] for t in some) for some in one)
                            for part in order
                        ]  # fmt: skip
                        yield _at(halves[0]), _at(halves[1]), _at(two)
    if len(mlp) == 3:
        for gate, up, last in itertools.permutations(mlp):
            for one, two, three in itertools.product(_ways(gate, into=C), _ways(up, into=C), _ways(last, out=C)):
                if one[0][0].size(0) == two[0][0].size(0) == three[0][0].size(1):
                    yield _at(one), _at(two), _at(three)


def _readings(a: Anatomy) -> Iterator[Reading]:
    """Ways to read the matrices of attention, the commonest first."""
    C, score, carry = a.width, a.score, a.carry
    nothing = (None, None)
    if len(score) == 2 and len(carry) in (1, 2):
        for heads_last, (q, k), flow in itertools.product(
            (False, True), (score, score[::-1]), itertools.permutations(carry)
        ):
            ways = [_ways(q, into=C), _ways(k, into=C), _ways(flow[0], into=C)]
            ways += [_ways(flow[1], out=C)] if len(flow) == 2 else [[None]]
            for wq, wk, wv, wo in itertools.product(*map(list, ways)):
                if wk[0][0].size(0) != wv[0][0].size(0) or (wo and wo[0][0].size(1) != wq[0][0].size(0)):
                    continue
                taken = [_at(w) if w else (lambda layer: nothing) for w in (wq, wk, wv, wo)]
                heads = max(m.heads for m in (q, k, *flow))
                for tiled in (False, True) if wq[0][0].size(0) != wk[0][0].size(0) else (False,):
                    yield Reading(
                        lambda layer, H, taken=taken: tuple(part(layer) for part in taken),
                        heads_last, wq[0][0].size(0), wk[0][0].size(0), heads, tiled,
                    )  # fmt: skip
    if not score and len(carry) in (1, 2):
        yield from _packed(a)


def _packed(a: Anatomy) -> Iterator[Reading]:
    """Ways to read a matrix in which queries, keys and values lie together."""
    C = a.width
    for flow in itertools.permutations(a.carry):
        outs = list(_ways(flow[1], out=C)) if len(flow) == 2 else [None]
        for pack, out in itertools.product(_ways(flow[0], into=C), outs):
            wide = pack[0][0].size(0)
            width = out[0][0].size(1) if out else C
            if wide <= width or (wide - width) % 2:
                continue
            keys = (wide - width) // 2
            layouts = list(itertools.permutations("3HD")) if keys == width else ["apart", "tiled", "by group"]
            # Commonest first: the three apart, in the order q, k, v; then head by head; the other orders last.
            for order, layout in itertools.product(itertools.permutations(range(3)), layouts):
                take = _unpacked(pack, out, width, keys, order, layout)
                yield Reading(take, False, width, keys, tiled=layout == "tiled")


def _unpacked(pack, out, width: int, keys: int, order: tuple, layout):
    """Queries, keys and values of a packed matrix; `layout`: how its rows run over these three, the heads and D."""

    def take(layer, H):
        W, b = pack[0][layer], pack[1][layer]
        rows = torch.arange(W.size(0))
        if keys == width:
            sizes = {"3": 3, "H": H, "D": width // H}
            rows = rows.view([sizes[axis] for axis in layout]).permute([layout.index(axis) for axis in "3HD"])
            rows = rows.flatten(1).unbind()
        elif layout == "by group":  # (G, queries of the group + 2, D)
            D = width // H
            rows = rows.view(keys // D, -1, D)
            rows = rows[:, :-2].flatten(), rows[:, -2].flatten(), rows[:, -1].flatten()
            rows = [rows[i] for i in order]
        else:
            rows = rows.split([(width, keys, keys)[i] for i in order])
        rows = [rows[order.index(i)] for i in range(3)]
        parts = [(W[r], None if b is None else b[r]) for r in rows]
        return (*parts, (out[0][layer], out[1][layer]) if out else (None, None))

    return take


# ---- the search


def structure(subject: Subject) -> Structure:
    """What the subject computes. Raises CannotLook where its parts are not found."""
    if subject.structure is None:
        subject.structure = _search(subject, anatomy(subject))
    return subject.structure


def anatomy(subject: Subject) -> Anatomy:
    """The parts of the subject. Raises CannotLook where they are not found."""
    if subject.anatomy is None:
        try:
            subject.anatomy = dissect(subject)
        except CannotLook as reason:
            subject.anatomy = reason
    if isinstance(subject.anatomy, CannotLook):
        raise subject.anatomy
    return subject.anatomy


def expected_design(config) -> Design:
    """What a GPTConfig or a ModernConfig says, as far as a design holds it."""
    if isinstance(config, ModernConfig):
        names = {"swiglu": "silu", "geglu": "gelu", "relu2": "squared relu"}
        norm = (config.norm, config.norm_eps)
        return Design(
            positions="none" if config.positions == "rotary" else "learned",
            rotary=("pairs", float(config.rope_base)) if config.positions == "rotary" else None,
            norm=norm, final=norm, n_head=config.n_head, activation=names.get(config.activation, config.activation),
            embedding=norm if config.embedding_norm else None,
            qk_norm=("rms", config.norm_eps) if config.qk_norm else None,
        )  # fmt: skip
    return Design(n_head=getattr(config, "n_head", 1), activation=getattr(config, "activation", "gelu"))


class _Search:
    def __init__(self, subject: Subject, anatomy: Anatomy):
        self.a, self.subject = anatomy, subject
        self.machine = Machine(anatomy)
        self.tolerance = 1e-5 if anatomy.precise else 3e-5  # parts of a model may insist on float32

    def error(self, design: Design, mute: frozenset) -> float:
        """How far the design's logits are from the model's, relative to the size of these."""
        theirs = self.a.logits(mute)
        try:
            ours = self.machine(design, mute)
        except (RuntimeError, IndexError, ZeroDivisionError):  # a reading that does not fit this number of heads
            return math.inf
        if not torch.isfinite(ours).all():
            return math.inf
        return ((ours - theirs).abs().max() / (theirs.abs().max() + 1e-30)).item()

    def best(self, designs, mute: frozenset) -> Design | None:
        """The design that equals the model; of several that do, the first that is about as near as the nearest."""
        near, after = [], 0
        for design in designs:
            error = self.error(design, mute)
            if error < self.tolerance:
                near.append((error, design))
            # Nothing is nearer than rounding. In float32 that is much, and a brother, such as another eps, may still
            # come: one that is not so near by itself may take longer.
            after += bool(near)
            if error < 1e-11 or after == 600 or (after > 40 and min(e for e, _ in near) < 1e-7):
                break
        if not near:
            return None
        floor = 3 * min(error for error, _ in near) + 1e-12
        return next(design for error, design in near if error <= floor)


def _search(subject: Subject, a: Anatomy) -> Structure:
    s = _Search(subject, a)
    base = expected_design(subject.expect)
    base = replace(base, positions=base.positions if a.positions is not None or base.positions != "learned" else "none")
    found = Structure(a, base, set(), {}, machine=s.machine)
    missing = tuple(part for part in ("attention", "mlp") if _no_way_round(a, part))
    found.missing = missing
    if not missing:
        ends = s.best(_ends(a, s.machine, base), NEITHER)
        if ends is None:
            found.why = dict.fromkeys(
                ("ends", "mlp", "attention", "whole"),
                "with attention and the MLPs at zero, the logits equal none of the known ways from tokens to logits",
            )
            return found
        found.design, _ = ends, found.known.add("ends")
        one = ALL if a.shared else REST  # one block is enough, and quicker
        stages = [("mlp", NO_ATTENTION | one), ("attention", NO_MLP | one)]
    elif missing == ("attention",):
        stages = [("attention", NO_MLP), ("mlp", ALL)]
    elif missing == ("mlp",):
        stages = [("mlp", NO_ATTENTION), ("attention", ALL)]
    else:
        stages = [("both", ALL)]
    for part, mute in stages:
        if part != "both" and not getattr(a, "mlp" if part == "mlp" else "carry"):
            found.why[part] = "there is none"
            continue
        designs = {"mlp": _mlps, "attention": _attentions, "both": _boths}[part](a, s.machine, found.design, missing)
        best = s.best(designs, mute)
        if best is None and part == "attention":
            best = _fitted(s, found.design, missing, mute)
        if best is None:
            who = {"mlp": "what the MLPs compute", "attention": "what attention computes"}.get(part, "what it computes")
            found.why |= dict.fromkeys(("mlp", "attention") if part == "both" else (part,), f"{who} {UNKNOWN}")
            continue
        found.design = best
        found.known |= {"mlp", "attention"} if part == "both" else {part}
    if {"mlp", "attention"} <= found.known:
        whole = s.best(_wholes(a, found.design), ALL)
        if whole is not None:
            found.design = whole
            found.known.add("whole")
            found.known.add("ends")
    found.why.setdefault("whole", "the parts are known, but together they give other logits")
    return found


def _no_way_round(a: Anatomy, part: str) -> bool:
    """Whether tokens reach the logits through this layer only: with its weights at zero they do not."""
    if not a.muting[part]:
        return False
    other = a.subject.other(a.idx, seed=21)
    one, two = (a.logits(frozenset({part}), idx) for idx in (a.idx, other))
    return bool((one - two).abs().max() <= 1e-9 * (one.abs().max() + 1e-30))


def _kinds(norm: tuple) -> Iterator[tuple]:
    """Norms, by kind and eps: this one first, then GPT-2's, then the others."""
    yield norm
    for kind in NORMS:
        for eps in EPSILONS if kind != "none" else (0.0,):
            yield kind, eps


def _streams(a: Anatomy, machine: Machine, base: Design) -> list[Design]:
    """What the first block may be given: of the ways to put token and position together, those that are what it is."""
    tokens = _double(a.tokens)[a.idx.cpu()]  # (B, T, C)
    scales = (1.0, math.sqrt(a.width))
    learned = [("learned", times) for times in (1, 2)] if a.positions is not None else []
    ways = [
        replace(base, token_scale=scale, positions=positions, position_times=times)
        for scale, (positions, times) in itertools.product(scales, [*learned, ("none", 1)])
    ]
    if a.entering is None:
        return ways
    norms = [(kind, eps) for kind in ("rms", "layer") for eps in EPSILONS]
    ways = [replace(way, embedding=norm) for norm in (base.embedding, None, *norms) for way in ways]
    size = a.entering.abs().max()
    for start in range(1, min(a.positions.size(0) - a.idx.size(1), 64) if a.positions is not None else 0):
        table = _double(a.positions)[start : start + a.idx.size(1)]
        if (tokens + table - a.entering).abs().max() < 1e-5 * size:  # a table that is used from some place on
            a.positions = a.positions[start:]
            break

    def is_it(way):
        x = way.token_scale * tokens
        x = x if way.positions == "none" else x + way.position_times * _double(a.positions)[: a.idx.size(1)]
        x = _normed(x, None, *way.embedding) if way.embedding else x
        return (x - a.entering).abs().max() < 1e-5 * size

    found = list(itertools.islice((way for way in ways if is_it(way)), 2))  # norms that differ in eps alone are alike
    for scale in scales if not found else ():
        rest = a.entering - scale * tokens  # (B, T, C): what is not the token
        if (rest[0] - rest[1]).abs().max() < 1e-5 * size:
            machine.fixed = rest[0]
            constant = (rest[0] - rest[0, :1]).abs().max() < 1e-5 * size
            fixed = "constant" if constant else "fixed"
            found.append(replace(base, token_scale=scale, positions=fixed, embedding=None))
    return found


def _ends(a: Anatomy, machine: Machine, base: Design) -> Iterator[Design]:
    """Designs that differ in what is left when attention and MLPs are at zero."""
    places = [("pre", "pre"), ("post", "post"), ("pre", "post"), ("post", "pre")]
    streams = _streams(a, machine, base)
    if a.positions is not None and len(a.norms) > 1:  # once more in each block: in it, or before it, where it was seen
        times = {s: 0 if s.positions == "none" else s.position_times for s in streams if s.positions != "fixed"}
        streams += [
            replace(s, positions="learned", position_times=t, position_in_blocks=True)
            for s, most in times.items()
            for t in {most, max(most - 1, 0)}
        ]
    for stream, (attention, mlp), kind in itertools.product(streams, places, _kinds(base.final)):
        norm = kind if kind[0] != "none" else base.norm
        yield replace(stream, final=kind, norm=norm, attention_place=attention, mlp_place=mlp)


def _siblings(place: str, missing: bool) -> tuple[str, ...]:
    """The places that are one when the layer gives zero."""
    if missing:
        return "no residual", "branch twice", "no residual, norm after"
    if place in ("post", "normalised"):
        return "post", "normalised"
    return "pre", "no norm", "subtracted", "norm after"


def _mlps(a: Anatomy, machine: Machine, base: Design, missing) -> Iterator[Design]:
    names = [base.activation, *(name for name in ACTIVATIONS if name != base.activation)]
    kinds = list(_kinds(base.norm))
    first = [base.norm]
    for some in (first, kinds[1:]):
        for kind, place, reading, name, swapped in itertools.product(
            some, _siblings(base.mlp_place, "mlp" in missing), range(len(machine.mlp_readings)), names, (False, True)
        ):
            if some is not first and (swapped or reading or name not in names[:4]):
                continue
            yield replace(base, norm=kind, mlp_place=place, mlp_reading=reading, activation=name, norms_swapped=swapped)


def _head_counts(reading: Reading, likely: int) -> list[int]:
    """How many heads of queries the widths allow, the likely number first."""
    if reading.heads:
        return [reading.heads]
    width, keys = reading.query_width, reading.key_width
    counts = [H for H in range(1, width + 1) if width % H == 0 and keys % (width // H) == 0]
    counts = [H for H in counts if H % (keys // (width // H)) == 0]
    return sorted(counts, key=lambda H: (likely != H, H))


def _turns(a: Anatomy, base: Design) -> list[dict]:
    bases = [base.rotary[1]] if base.rotary else []  # first: what is expected
    bases += [b for b in (10000.0, 100000.0, 500000.0, 1000000.0, 1000.0, 100.0) if b not in bases]
    turns = [{"rotary": (how, b)} for b in bases for how in ("pairs", "halves")]
    still = [{"rotary": None}]
    if base.positions != "none" and base.rotary is None:  # the stream knows positions: turns would be a surprise
        return [*still, *turns]
    return [*turns[:2], *still, *turns[2:], {"rotary": None, "slopes": True}]


def _attentions(a: Anatomy, machine: Machine, base: Design, missing) -> Iterator[Design]:
    """Attention by scale, heads, turns and ways of reading: those that need few changes first."""
    turns, places = _turns(a, base), _siblings(base.attention_place, "attention" in missing)
    readings = list(enumerate(machine.readings))
    first = turns[: 1 if turns[0] == {"rotary": None} else 3]
    plain = [base.qk_norm]  # what is expected, None without expectations
    normed = [
        q for q in (None, ("rms", 1e-5), ("rms", 1e-6), ("rms", 1.1920929e-07), ("layer", 1e-5)) if q not in plain
    ]
    passes = (
        (readings[:2], first, ["root D"], places[:1], plain),
        (readings, first, ["root D"], places[:1], plain),
        (readings[:4], first, list(SCALES), places, plain),  # four: keys may be declared before queries
        (readings[:2], turns, ["root D"], places[:1], plain),
        (readings[:2], first, ["root D", "none"], places[:1], normed),
    )
    for some, turned, scales, where, qk_norms in passes:
        for index, reading in some:
            for H, turn, scale, place, qk_norm in itertools.product(
                _head_counts(reading, base.n_head), turned, scales, where, qk_norms
            ):
                if turn.get("rotary") and (reading.query_width // H) % 2:
                    continue
                design = replace(base, reading=index, n_head=H, scale=scale, attention_place=place, qk_norm=qk_norm)
                yield replace(design, **turn)


def _fitted(s: _Search, base: Design, missing, mute: frozenset) -> Design | None:
    """A design whose scores have some other scale, or whose turns another base, if there is one."""
    place = _siblings(base.attention_place, "attention" in missing)[0]
    for index, reading in list(enumerate(s.machine.readings))[:2]:
        for H, turn in itertools.product(_head_counts(reading, base.n_head)[:4], _turns(s.a, base)[:2]):
            if turn.get("rotary") and (reading.query_width // H) % 2:
                continue
            fixed = replace(base, reading=index, n_head=H, attention_place=place, **turn)
            tries = [(lambda power, fixed=fixed: replace(fixed, scale=10.0**power), -4.0, 3.0)]
            if turn.get("rotary"):
                how = turn["rotary"][0]
                tries += [(lambda power, fixed=fixed, how=how: replace(fixed, rotary=(how, 10.0**power)), 0.5, 7.0)]
            for made, low, high in tries:
                power = _lowest(lambda p, made=made: s.error(made(p), mute), low, high)
                if power is not None and s.error(made(power), mute) < s.tolerance:
                    return made(power)
    return None


def _lowest(error, low: float, high: float) -> float | None:
    """Where `error` is lowest between two numbers: by a grid, then by thirds; None where it is never small."""
    step = (high - low) / 40
    near = min((low + i * step for i in range(41)), key=error)
    if error(near) > 0.1:
        return None
    low, high = near - step, near + step
    for _ in range(60):
        third = (high - low) / 3
        low, high = (low, high - third) if error(low + third) < error(high - third) else (low + third, high)
    return (low + high) / 2


def _boths(a: Anatomy, machine: Machine, base: Design, missing) -> Iterator[Design]:
    """Everything at once, where neither layer can be left out: usual parts in unusual places."""
    places = ("no residual", "branch twice", "no residual, norm after")
    for reading, one, two in itertools.product(range(min(4, len(machine.readings))), places, places):
        for H in _head_counts(machine.readings[reading], base.n_head):
            for name in ("gelu", "gelu_tanh", "relu", "silu"):
                yield replace(
                    base, reading=reading, n_head=H, activation=name, attention_place=one, mlp_place=two
                )  # fmt: skip


def _wholes(a: Anatomy, base: Design) -> Iterator[Design]:
    """Arrangements that are one as long as either layer is left out."""
    yield base
    for parallel in ("two norms", "one norm"):
        yield replace(base, parallel=parallel)
    yield replace(base, attention_first=False)
