"""Check of a block: how its parts go together, and whether each is what it should be.

The parts are those that are modules. In one call it is written down what went in and out of each; the equations that
a pre-norm block fulfils, and those of the known other ways, are then tried on these tensors.
"""

import copy
import itertools
import re

import torch
import torch.nn as nn
import torch.nn.functional as F

from gptbook.verify.catalogue import Mistake, distance, same
from gptbook.verify.heads import WAYS, WrongHeads, judge_heads, layouts
from gptbook.verify.kinds import LAYER_NORM, layer_norm_as
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
from gptbook.verify.report import DIFFERS, FAILED, PASSED, Report, Result
from gptbook.verify.subject import CannotLook, untouched

# ---- the block

HEAD_NAMES = ("n_head", "num_heads", "n_heads", "num_attention_heads", "heads", "nhead", "H", "h")


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
    return bool(own) or re.search(r"norm|(^|_)ln", type(module).__name__.lower()) is not None


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
        self.seen = Seen(piece, piece.randomised(), piece.x())
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
        """What else can be wrong in a block that is put together rightly: two norms, which are read, in order."""
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
        return outcome(PASSED, "pre-norm, two residuals", expected)
    return outcome(block.status, "put together in another way", expected, f"{block.words} (page 6)")


def _residual(piece: Piece, block: Block | None) -> Result:
    """With every matrix at zero, a branch adds nothing, and a pre-norm block passes its input on."""
    model, x, expected = piece.randomised(), piece.x(), "the input itself, with every matrix at zero"
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
        return outcome(PASSED, "the input itself", expected)
    if block is not None:
        status = DIFFERS if block.status == DIFFERS else FAILED
        return outcome(status, "something else", expected, block.words or "the residual does not pass its input on")
    if y.abs().max() < 1e-6:
        return outcome(FAILED, "zeros", expected, "a residual is missing: what a branch does not write is lost")
    for factor in (0.0, 2.0, 0.5):
        if same(y, factor * x, 1e-6):
            return outcome(FAILED, f"{factor:g} times the input", expected, "the stream is added twice, or scaled")
    fresh = piece.randomised(vectors=False)  # norms as they start, with gain 1: behind a norm, rows are standard
    out = piece.call(fresh, x)
    if out.mean(-1).abs().max() < 1e-4 and (out.var(-1, unbiased=False) - 1).abs().max() < 1e-2:
        return outcome(DIFFERS, "the normalised input", expected, "post-norm: the stream itself is normalised")
    return outcome(FAILED, "the normalised input", expected, "the residual is taken from the normalised stream")


def _norms(block: Block) -> Result:
    """Each norm is a LayerNorm; an RMSNorm differs; everything else is compared with what is known to be wrong."""
    expected, s = "LayerNorm over the width", block.seen
    if not s.norms:
        raise CannotLook("no norm of it is a module")
    verdict = outcome(PASSED, f"{len({id(n) for n, _, _ in s.norms})} norms, right", expected)
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
        return outcome(PASSED, "right", expected)
    for eps in (1e-5, 1e-6, 1e-8, 1e-12):
        if eps < 1e-5 and equal(lambda x, w, b, eps=eps: F.layer_norm(x, (C,), w, b, eps)):
            return outcome(DIFFERS, f"epsilon {eps:.0e}", expected, f"right but for epsilon: {eps:.0e}, not 1e-05")
        for gain in (0, 1):
            if equal(lambda x, w, b, e=eps, g=gain: x * ((x * x).mean(-1, keepdim=True) + e).rsqrt() * (w + g) + b):
                return outcome(DIFFERS, "RMSNorm", expected, "an RMSNorm, which does not subtract the mean")
    for part, known in LAYER_NORM.items():
        for name, (words, _) in known.items():
            if equal(layer_norm_as(**{part: name})):
                return outcome(
                    FAILED, "equal to a wrong version", expected, f"a norm equals this version: {words} (page 6)"
                )
    raise CannotLook("a norm is neither LayerNorm nor RMSNorm, and no mistake that is known here")


def _attention_inside(block: Block) -> Result:
    """What attention gave, from what it was given and the block's own matrices, by the heads that it names."""
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
            result = judge_heads(given, block.attention, list(layouts(where, C, H)), H, len(counts) == 1)
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
        straight = any(same(output, given, 1e-6) for part, _, output in s.wide if any(True for _ in part.parameters()))
    if straight:
        return outcome(FAILED, "a straight line", expected, f"{NO_ACTIVATION} (page 6)")
    return outcome(PASSED, "curved", expected)


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
        return answers_to(
            [
                ("shapes", lambda: takes_shapes(piece), True),
                ("deterministic", lambda: deterministic(piece), True),
                ("finite", lambda: finite(piece), True),
                ("causal", lambda: causal(piece), False),
                ("batch-independent", lambda: batch_independent(piece), False),
                ("reach", lambda: reaches_back(piece), False),
                ("gradient", lambda: has_gradient(piece), False),
                ("structure", lambda: _structure(inside()), False),
                ("residual", residual, False),
                ("norms", lambda: _norms(inside()), False),
                ("attention", lambda: _attention_inside(inside()), False),
                ("activation", lambda: _activation(inside()), False),
            ],
            "page 6",
        )


# ---- the wrong versions


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
        self.ln_2 = (
            self.ln_1
            if way in ("norm-shared", "parallel-one-norm", "mlp-without-norm")
            else WrongNorm(n_embd, **(norm or {}))
        )
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


NORM_FAULTS = ["unbiased", "outside", "thousandth", "no-mean", "no-bias", "over-positions-and-channels", "weight-added"]
HEAD_FAULTS = ["no-projection", "merged-by-view", "unscaled", "scaled-by-width", "no-mask", "one-ahead", "over-queries"]
MISTAKES = (
    *(
        Mistake(f"block-{way}", "block", _WORDS[way], "page 6", making(WrongBlock, way=way))
        for way in WAYS_TO_BLOCK
        if way != "right" and way not in _DIFFERENT
    ),
    Mistake("block-no-activation", "block", NO_ACTIVATION, "page 6", making(WrongBlock, activation="none")),
    Mistake("block-unused-projection", "block", UNUSED, "page 6", making(WrongBlock, unused=True, out="missing")),
    Mistake("block-live-dropout", "block", DROPOUT, "page 6", making(WrongBlock, dropout=0.3)),
    *(
        Mistake(f"block-norm-{name}", "block", words, "page 6", making(WrongBlock, norm={part: name}))
        for part, known in LAYER_NORM.items()
        for name, (words, _) in known.items()
        if name in NORM_FAULTS
    ),
    *(
        Mistake(f"block-heads-{name}", "block", words, "page 6", making(WrongBlock, **how))
        for name, words, how in WAYS
        if name in HEAD_FAULTS
    ),
)  # fmt: skip
DIFFERENCES = tuple(Mistake(f"block-{w}", "block", _WORDS[w], "page 6", making(WrongBlock, way=w)) for w in _DIFFERENT)


ASK = {"block": built(check_block)}
