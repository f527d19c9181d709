"""Which weight of somebody's GPT is what: found by names' order, by shapes, and by what happens without it.

A matrix that moves nothing when there is one token belongs to the scores; one without which the past cannot be seen
carries values; the others are the MLP's. What cannot be told apart so is left open, as several ways of reading.
"""

import copy
import itertools
import re
from dataclasses import dataclass, field

import torch
import torch.nn as nn

from gptbook.modern import Ngrams
from gptbook.verify.subject import CannotLook, Subject

MOST_COLUMNS = 256  # of the logits: more would cost time, and tell nothing else
MOST_PARAMETERS = 50_000_000  # several copies in float64 are made of them
COLUMN = re.compile(r"\D*\d+$")  # a part of a name that counts something: "0", "block1"


@dataclass(frozen=True)
class Matrix:
    """A matrix of every block: its name within the block, its weights (out, in) and its bias or None, one a block.

    `sure` says that in and out are not mixed up; `heads` counts matrices of single heads that were put together.
    """

    name: str
    weights: tuple[torch.Tensor, ...]
    biases: tuple[torch.Tensor | None, ...]
    sure: bool
    heads: int = 0

    @property
    def shape(self):
        """(out, in)."""
        return tuple(self.weights[0].shape)


@dataclass
class Anatomy:
    """The parts of a model, and a copy of it, in float64 where it can be, whose parts can be taken out and put back.

    A norm is a pair (gain, bias or None). Matrices of the blocks come in three kinds, each in the order of their names.
    """

    subject: Subject
    model: nn.Module
    idx: torch.Tensor
    tokens: torch.Tensor = None  # (V', C)
    positions: torch.Tensor | None = None  # (T', C)
    head: torch.Tensor = None  # (V', C)
    head_bias: torch.Tensor | None = None
    tied: bool = False
    final: tuple | None = None
    norms: list = field(default_factory=list)  # a list of norms for each block
    score: list[Matrix] = field(default_factory=list)
    carry: list[Matrix] = field(default_factory=list)
    mlp: list[Matrix] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)  # matrices without which nothing changes
    shared: int = 0  # how many blocks are other blocks again
    copies: list[str] = field(default_factory=list)  # matrices with which several blocks start alike
    entering: torch.Tensor | None = None  # (B, T, C), float64: the stream as the first block gets it
    muting: dict[str, list[torch.Tensor]] = field(
        default_factory=dict
    )  # "attention", "mlp", "rest" (of the blocks) -> what to zero
    answers: dict = field(default_factory=dict)

    @property
    def precise(self) -> bool:
        """Whether the copy computes in float64, so that a difference which is small is no rounding."""
        return self.subject.look(self.model, self.idx).dtype == torch.float64

    @property
    def width(self) -> int:
        """C."""
        return self.tokens.size(1)

    def logits(self, mute: frozenset = frozenset(), idx: torch.Tensor | None = None) -> torch.Tensor:
        """The copy's logits (B, T, columns), float64, with attention or the MLPs of all blocks at zero."""
        if idx is None and mute in self.answers:
            return self.answers[mute]
        zero = [tensor for part in mute for tensor in self.muting[part]]
        found = without(self.subject, self.model, zero, self.idx if idx is None else idx)
        if idx is None:
            self.answers[mute] = found
        return found


def without(subject: Subject, model: nn.Module, zero: list[torch.Tensor], idx: torch.Tensor) -> torch.Tensor:
    """Logits (B, T, columns), float64, with these parameters of `model` at zero, which are then put back."""
    kept = [tensor.detach().clone() for tensor in zero]
    with torch.no_grad():
        try:
            for tensor in zero:
                tensor.zero_()
            return subject.look(model, idx)[..., :MOST_COLUMNS].double().cpu()
        finally:
            for tensor, value in zip(zero, kept, strict=True):
                tensor.copy_(value)


def dissect(subject: Subject) -> Anatomy:
    """The anatomy of the subject with random weights. Raises CannotLook, with what is in the way."""
    if subject.T < 3:
        raise CannotLook(f"a context of {subject.T} is too short to look inside")
    count = sum(p.numel() for p in subject.original.parameters())
    if count > MOST_PARAMETERS:
        raise CannotLook(f"{count:,} parameters are too many to look inside: check a small model of the same code")
    idx = subject.tokens(2, min(subject.T, 6), seed=20)
    found = Anatomy(subject, without_ngrams(_precise(subject, idx)), idx)
    silent = {id(p) for module in found.model.modules() if isinstance(module, Ngrams) for p in module.parameters()}
    named = {n: p for n, p in found.model.named_parameters(remove_duplicate=False) if id(p) not in silent}
    modules = found.model.named_modules(remove_duplicate=False)
    kinds = {f"{path}.{name}" if path else name: module for path, module in modules for name in module._parameters}
    blocks = _blocks(named)
    inside = {name for block in blocks for name in block.values()}
    outside = {name: p for name, p in named.items() if name not in inside}
    _find_embeddings(found, outside, kinds)
    _find_blocks(found, blocks, named, kinds)
    _find_stream(found, blocks[0])
    return found


def without_ngrams(model: nn.Module) -> nn.Module:
    """The model, or a copy of it in which the n-grams of `modern.py` add nothing to the stream."""
    if not any(isinstance(module, Ngrams) for module in model.modules()):
        return model
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, Ngrams):
            module.mix.weight.data.zero_()
    return model


def _find_stream(found: Anatomy, block: dict[str, str]):
    """What the first block is given, where the block is a module."""
    name, inside = next((full, n) for n, full in block.items())
    path, seen = name[: -len(inside) - 1], []
    module = dict(found.model.named_modules(remove_duplicate=False)).get(path)
    if module is None:
        return
    hook = module.register_forward_pre_hook(lambda module, inputs: seen.extend(inputs[:1]))
    try:
        found.subject.look(found.model, found.idx)
    finally:
        hook.remove()
    if seen and isinstance(seen[0], torch.Tensor) and seen[0].shape == (*found.idx.shape, found.width):
        found.entering = seen[0].detach().double().cpu()


def _precise(subject: Subject, idx: torch.Tensor) -> nn.Module:
    """A copy with random weights that may be changed: in float64, unless the model insists on its own type."""
    model = copy.deepcopy(subject.random())
    try:
        precise = copy.deepcopy(model).double()
        if torch.isfinite(subject.look(precise, idx)).all():
            return precise
    except Exception:  # a type of its own, somewhere in forward
        return model
    return model


# ---- outside of the blocks


def _find_embeddings(found: Anatomy, outside: dict, kinds: dict):
    """Token and position embedding, the final norm and the unembedding, among what lies outside of the blocks."""
    subject, model, idx = found.subject, found.model, found.idx
    fed: dict[int, torch.Tensor] = {}

    def note(module, inputs, output):
        if inputs and isinstance(inputs[0], torch.Tensor):
            fed[id(module.weight)] = inputs[0]

    hooks = [m.register_forward_hook(note) for m in model.modules() if isinstance(m, nn.Embedding)]
    try:
        subject.look(model, idx)
    finally:
        for hook in hooks:
            hook.remove()
    V, T = subject.V, subject.T
    flat = {name: p.view(p.shape[-2:]) for name, p in outside.items() if p.dim() > 1 and p.shape[:-2].numel() == 1}
    tables = {name: p for name, p in flat.items() if id(p) in fed or id(outside[name]) in fed}
    wte = [n for n in tables if (f := fed[id(outside[n])]).shape == idx.shape and torch.equal(f, idx)]
    if not wte:  # a bare parameter, indexed
        wte = [n for n, p in flat.items() if p.size(0) >= V and "Linear" not in type(kinds[n]).__name__][:1]
    if not wte:
        raise CannotLook("the token embedding is not found")
    found.tokens = flat[wte[0]]
    C, ours = found.width, {id(outside[wte[0]])}
    # The unembedding: another name of the same matrix, if it is tied; else a matrix of its width that is no table.
    tied = [n for n in flat if n != wte[0] and same_storage(outside[n], outside[wte[0]])]
    heads = [
        n for n, p in flat.items()
        if n != wte[0] and n not in tables and C in p.shape and _width(p, C) >= V
    ]  # fmt: skip
    heads = [n for n in heads if isinstance(kinds[n], nn.Linear)] or [n for n in heads if _width(flat[n], C) == V]
    found.tied = bool(tied) or not heads
    head = (tied or heads or wte)[0]
    found.head = flat[head] if flat[head].size(1) == C else flat[head].T
    found.head_bias = outside.get(_bias_of(head)) if head != wte[0] else None
    ours |= {id(outside[head]), id(found.head_bias)}
    rest = {n: p for n, p in flat.items() if id(outside[n]) not in ours and not any(
        same_storage(outside[n], outside[other]) for other in (wte[0], head))}  # fmt: skip
    places = [n for n, p in rest.items() if p.size(1) == C and p.size(0) >= min(T, 7)]
    if len(places) > 1 or len(rest) > len(places):
        raise CannotLook(f"what {next(n for n in rest if n not in places[:1])} does is not known")
    if places:
        found.positions = rest[places[0]]
    vectors = {n: p for n, p in outside.items() if p.dim() == 1 and id(p) not in ours and p.numel() != 0}
    norms = _norms(vectors, C)
    if len(norms) > 1:
        raise CannotLook(f"there are {len(norms)} norms outside of the blocks")
    found.final = norms[0] if norms else None


def _width(table: torch.Tensor, C: int) -> int:
    return table.size(0) if table.size(1) == C else table.size(1)


def same_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two parameters are one piece of memory."""
    return a is b or (a.data_ptr() == b.data_ptr() and a.shape == b.shape)


def _bias_of(name: str) -> str:
    before, _, last = name.rpartition(".")
    last = last.replace("weight", "bias") if "weight" in last else f"{last}_has_none"
    return f"{before}.{last}" if before else last


def _norms(vectors: dict[str, torch.Tensor], C: int) -> list[tuple]:
    """Pairs of gain and bias among vectors by name, in the order of the names' modules."""
    modules: dict[str, list[tuple[str, torch.Tensor]]] = {}
    for name, p in vectors.items():
        if p.numel() != C:
            raise CannotLook(f"what {name}, of {p.numel()} numbers, does is not known")
        modules.setdefault(name.rpartition(".")[0], []).append((name, p))
    found = []
    for parts in modules.values():
        if len(parts) > 2:
            raise CannotLook(f"which norm {parts[0][0]} belongs to is not known")
        first, second = (*(p for _, p in parts), None)[:2]
        if second is not None and re.search(r"bias|beta|shift|b$", parts[0][0].rpartition(".")[2]):
            first, second = second, first
        found.append((first, second))
    return found


# ---- the blocks


def _blocks(named: dict[str, torch.Tensor]) -> list[dict[str, str]]:
    """For each block, in order: name within it -> name in the model."""
    groups: dict[tuple, dict[str, dict[str, str]]] = {}
    for name in named:
        parts = name.split(".")
        counts = [i for i, part in enumerate(parts[:-1]) if COLUMN.fullmatch(part)][:1] or [None]
        if counts[0] is not None:
            stem = (*parts[: counts[0]], re.sub(r"\d+$", "", parts[counts[0]]))
            member = groups.setdefault(stem, {}).setdefault(parts[counts[0]], {})
            member[".".join(parts[counts[0] + 1 :])] = name
    classes = []
    for members in groups.values():
        alike: dict[tuple, list[dict]] = {}
        for member in members.values():
            alike.setdefault(tuple((n, named[full].shape) for n, full in member.items()), []).append(member)
        classes += alike.values()
    if not any(map(_is_block(named), classes)):  # one block, or several by names that count nothing
        for depth in (2, 1):
            single: dict[tuple, dict[str, str]] = {}
            for name in named:
                parts = name.split(".")
                if len(parts) > depth:
                    single.setdefault(tuple(parts[:depth]), {})[".".join(parts[depth:])] = name
            classes += [[member] for member in single.values() if len(member) < len(named)]
    classes = [members for members in classes if _is_block(named)(members)]
    if not classes:
        raise CannotLook("no blocks are found: parts by number, each with attention and an MLP, in an nn.ModuleList")
    return max(classes, key=len)


def _is_block(named):
    def judge(members: list[dict[str, str]]) -> bool:
        matrices = [named[full] for full in members[0].values() if named[full].dim() > 1]
        return len(matrices) >= 3 and len({p.shape for p in matrices}) > 1

    return judge


def _find_blocks(found: Anatomy, blocks: list[dict[str, str]], named: dict, kinds: dict):
    """The matrices and norms of all blocks, each matrix by what is gone without it."""
    C, first = found.width, blocks[0]
    found.shared = sum(
        any(same_storage(named[mine[n]], named[other[n]]) for n in mine if named[mine[n]].dim() > 1)
        for mine, other in itertools.pairwise(blocks)
    )
    initial = dict(found.subject.original.named_parameters(remove_duplicate=False))
    if not found.shared:
        found.copies = [
            n for n in first if named[first[n]].dim() > 1 and len(blocks) > 1
            and all(torch.equal(initial[first[n]], initial[block[n]]) for block in blocks[1:])
            and initial[first[n]].min() != initial[first[n]].max()
        ]  # fmt: skip
    matrices, biases = _matrices(blocks, named, kinds, C)
    for block in blocks:
        rest = {n: named[full] for n, full in block.items() if named[full].dim() == 1 and n not in biases}
        found.norms.append(_norms(rest, C))
    if len(found.norms[0]) > 2 or (len(found.norms[0]) == 1 and len(matrices) > 2):
        raise CannotLook(f"a block has {len(found.norms[0])} norms with weights of width {C}, where two are known")
    raw = {m.name: [named[b[n]] for b in blocks for n in first if _same_part(n, m.name)] for m in matrices}
    one, past, own = found.idx[:, :1], found.idx.clone(), found.idx.clone()
    past[:, -2] = found.subject.other(found.idx)[:, -2]
    own[:, -1] = found.subject.other(found.idx)[:, -1]
    turned = {(m.shape[1], m.shape[0]) for m in matrices if m.shape[0] != m.shape[1]}

    def moves(a, b):
        return bool((a - b).abs().max() > 1e-9 * (a.abs().max() + 1e-30) * (1 if a.dtype == torch.float64 else 1e3))

    look = lambda zero, idx: without(found.subject, found.model, zero, idx)  # noqa: E731
    alone = look([], one)
    for matrix in matrices:
        zero = raw[matrix.name]
        if not moves(look(zero, one), alone):
            if moves(look(zero, found.idx), look([], found.idx)):
                found.score.append(matrix)
            else:
                found.idle.append(matrix.name)
        elif not moves(look(zero, found.idx)[:, -1], look(zero, past)[:, -1]):
            # Where no residual leads round the MLP nothing comes through without it: then the shapes must tell.
            nothing = not moves(look(zero, found.idx)[:, -1], look(zero, own)[:, -1])
            (found.mlp if nothing and matrix.shape in turned else found.carry).append(matrix)
        else:
            found.mlp.append(matrix)
    for part, group in (("attention", [*found.score, *found.carry]), ("mlp", found.mlp)):
        names = {n for m in group for n in first if _same_part(n, m.name)}
        names |= {_bias_of(n) for n in names} & set(first)
        found.muting[part] = [named[block[n]] for block in blocks for n in names]
        found.muting["rest"] = found.muting.get("rest", []) + [named[block[n]] for block in blocks[1:] for n in names]


def _same_part(name: str, pattern: str) -> bool:
    """Whether `name` is one of the matrices of single heads that were put together as `pattern`, or is `pattern`."""
    return name == pattern or re.sub(r"\d+", "#", name) == pattern


def _matrices(blocks: list[dict[str, str]], named: dict, kinds: dict, C: int) -> tuple[list[Matrix], set[str]]:
    """The matrices of a block, those of single heads put together, and the names of their biases."""
    first = blocks[0]
    names = [n for n in first if named[first[n]].dim() > 1]
    together: dict[str, list[str]] = {}
    for name in names:
        together.setdefault(re.sub(r"\d+", "#", name), []).append(name)
    found, biases = [], set()
    for pattern, members in together.items():
        shapes = {tuple(named[first[n]].shape) for n in members}
        size = min(next(iter(shapes)))
        per_head = len(members) > 1 and len(shapes) == 1 and len(members) * size == C and C in next(iter(shapes))
        for group, name in [(members, pattern)] if per_head else [([n], n) for n in members]:
            weights, vectors, sure = [], [], True
            for block in blocks:
                made = [_oriented(named[block[n]], kinds[block[n]], C, len(group) > 1) for n in group]
                sure = all(s for _, s in made)
                axis = 0 if made[0][0].size(1) == C else 1
                weights.append(torch.cat([w for w, _ in made], dim=axis).detach())
                own = [named.get(block.get(_bias_of(n), "")) for n in group]
                vectors.append(torch.cat([b.flatten() for b in own]).detach() if own[0] is not None else None)
            biases |= {_bias_of(n) for n in group} & set(first)
            found.append(Matrix(name, tuple(weights), tuple(vectors), sure, len(group) if len(group) > 1 else 0))
    return found, biases


def _oriented(p: torch.Tensor, module: nn.Module, C: int, one_head: bool) -> tuple[torch.Tensor, bool]:
    """A weight as (out, in), and whether that is sure."""
    if p.dim() == 3:  # one matrix for each head
        H, a, b = p.shape
        if b == C and a != C:  # (H, D, C): in or out of the heads, the widths tell which
            return p.reshape(H * a, C), False
        if a == C:  # (H, C, D)
            return p.transpose(1, 2).reshape(H * b, C), False
        if H == C:  # (C, H, D)
            return p.reshape(C, a * b).T, False
    if p.dim() != 2:
        raise CannotLook(f"a weight of {p.dim()} axes is not known")
    if type(module).__name__ == "Conv1D":
        return p.T, True
    if isinstance(module, nn.Linear | nn.MultiheadAttention):
        return p, True
    return p, False
