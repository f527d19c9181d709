"""The checks of page 5, many heads."""

import copy
import math

import torch

from gptbook.exercises.answers import Wrong, ask, first_off, need_function, settled, shown
from gptbook.exercises.page_04 import WEAK, WEAK_MASK, extreme
from gptbook.exercises.tensors import as_tensor, close, kept
from gptbook.model import CausalSelfAttention, GPTConfig


def _random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _same(a, b) -> bool:
    return close(a, b, rtol=0.0, atol=1e-5)


def _shaped(value, shape, what):
    tensor = as_tensor(value, what)
    if tuple(tensor.shape) != tuple(shape):
        raise Wrong(f"{what} must have the shape {tuple(shape)}, got {tuple(tensor.shape)}")
    return tensor


# --- repack-heads -----------------------------------------------------------------------------------------------------


def _rows(order):
    """A repacking that takes row order(part, h, d, H, D) of the given matrix for each head's d-th query, key, value."""

    def repack(w, H):
        D = w.size(1) // H
        return torch.stack([w[order(i, h, d, H, D)] for i in range(3) for h in range(H) for d in range(D)])

    return repack


_repacked = _rows(lambda i, h, d, H, D: h * 3 * D + i * D + d)

REPACK_MISTAKES = (
    ("the rows came back in the order in which they were given: view alone moves nothing, two axes must swap",
     lambda w, H: w),
    ("this is the way back, from our order to head after head: the rows that you get count heads first, then queries, "
     "keys and values",
     lambda w, H: w.view(3, H, -1, w.size(1)).transpose(0, 1).reshape(w.shape)),
    ("the wrong two axes were swapped: heads and thirds change places, and the D rows inside stay together",
     lambda w, H: w.view(H, 3, -1, w.size(1)).transpose(1, 2).reshape(w.shape)),
    ("the axes came out in reverse: only heads and thirds change places, and the D rows inside stay last",
     lambda w, H: w.view(H, 3, -1, w.size(1)).permute(2, 1, 0, 3).reshape(w.shape)),
    ("the thirds are right, but inside each the heads are interleaved row by row: all D rows of head 0 come first",
     lambda w, H: w.view(H, 3, -1, w.size(1)).permute(1, 2, 0, 3).reshape(w.shape)),
    ("the given rows were read as if query, key and value took turns by row: inside a head all D queries come first",
     lambda w, H: w.view(H, -1, 3, w.size(1)).permute(2, 0, 1, 3).reshape(w.shape)),
    ("the rows are cut as if there were D heads of n_head rows each: there are n_head heads of D rows",
     lambda w, H: w.view(w.size(1) // H, 3, H, w.size(1)).transpose(0, 1).reshape(w.shape)),
    ("queries and keys changed places: queries first, then keys, then values",
     _rows(lambda i, h, d, H, D: h * 3 * D + (1, 0, 2)[i] * D + d)),
    ("the thirds come out values first: queries, then keys, then values",
     _rows(lambda i, h, d, H, D: h * 3 * D + (2, 0, 1)[i] * D + d)),
    ("the heads came out last to first: inside each third, head 0 comes first",
     _rows(lambda i, h, d, H, D: (H - 1 - h) * 3 * D + i * D + d)),
    ("every third holds the queries: a head's rows are its queries, then its keys, then its values",
     _rows(lambda i, h, d, H, D: h * 3 * D + d)),
)  # fmt: skip


def repack_heads(repack) -> str:
    """repack(w, n_head): rows (3C, C) packed head after head -> thirds first, heads inside each third."""
    need_function(repack, "repack(w, n_head)")
    cases = [(_random(3 * C, C, seed=C), H) for C, H in ((12, 3), (20, 2), (8, 4), (12, 4), (6, 6), (5, 1))]
    got = []
    for w, H in cases:
        what = f"repack(w, {H}), for w of shape {tuple(w.shape)},"
        given = w.clone().float()
        before = given.clone()
        result = ask(repack, what, given, H)
        kept([given], [before], f"{what} changed what it was given in place: work on copies")
        got.append(_repack_shape(result, w, H, what))
    right = [_repacked(*case) for case in cases]
    if settled(got, right, cases, REPACK_MISTAKES, _same):
        return f"every row in its place, for {len(cases)} shapes"
    (w, H), mine, _ = first_off(cases, got, right, _same)
    raise Wrong(_first_wrong_row(mine, w, H))


def _repack_shape(result, w, H, what):
    tensor = as_tensor(result, what)
    if tensor.shape != w.shape and tensor.numel() == w.numel():
        raise Wrong(
            f"{what} must have the shape {tuple(w.shape)}, got {tuple(tensor.shape)}: glue the axes together again"
        )
    return _shaped(tensor, w.shape, what)


def _first_wrong_row(mine, w, H) -> str:
    C = w.size(1)
    D = C // H
    for i, name in enumerate(("query", "key", "value")):
        for h in range(H):
            for d in range(D):
                row, wanted = i * C + h * D + d, h * 3 * D + i * D + d
                if not _same(mine[row], w[wanted]):
                    found = [r for r in range(3 * C) if _same(mine[row], w[r])]
                    is_now = f"is row {found[0]}" if found else "is none of its rows"
                    return (
                        f"for C = {C} and {H} heads, row {row} of the result must be row {wanted} of what was given, "
                        f"{name} row {d} of head {h}: yours {is_now}"
                    )
    return "some rows are not where they belong"


# --- multi-head -------------------------------------------------------------------------------------------------------


def _attention(
    x, w_attn, w_proj, H, *, scale=None, mask=None, cut=None, take=(0, 1, 2), split=None, merge=None, project=None,
    weigh=None,
):  # fmt: skip
    """The packed layer, with places where a wrong version puts something else."""
    B, T, C = x.shape
    D = C // H
    allowed = torch.ones(T, T, dtype=torch.bool).tril() if mask is None else mask(T)
    qkv = x @ w_attn.T  # (B, T, 3C)
    if cut is not None:
        parts = cut(qkv, H, D)
    else:
        split = split or (lambda z: z.reshape(B, T, H, D).transpose(1, 2))
        thirds = qkv.split(C, dim=-1)
        parts = [split(thirds[i]) for i in take]
    q, k, v = parts  # (B, H, T, D) each
    scores = q @ k.transpose(-2, -1) / (math.sqrt(D) if scale is None else scale(C, D))  # (B, H, T, T)
    y = (weigh or _softmax)(scores, allowed) @ v  # (B, H, T, D)
    y = y.transpose(1, 2).reshape(B, T, C) if merge is None else merge(y)
    return y @ w_proj.T if project is None else project(y, w_proj)


def _softmax(scores, allowed):
    return torch.softmax(scores.masked_fill(~allowed, -math.inf), dim=-1)


def _heads_one_by_one(x, w_attn, w_proj, H):
    """What is asked for, another way: each head alone, by a function of PyTorch, and the sum of what they write."""
    C = x.size(2)
    D = C // H
    out = torch.zeros_like(x)  # (B, T, C)
    for first in range(0, C, D):
        q, k, v = (x @ w_attn[i * C + first : i * C + first + D].T for i in range(3))  # (B, T, D) each
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, T, D)
        out += y @ w_proj[:, first : first + D].T
    return out


def _wrong(**changes):
    return lambda *case: _attention(*case, **changes)


def _alone(z, H):
    """(B, T, C) cut into heads with one view: the memory order stays."""
    return z.reshape(z.size(0), H, z.size(1), z.size(2) // H)


def _view_alone(x, w_attn, w_proj, H, **changes):
    return _attention(x, w_attn, w_proj, H, split=lambda z: _alone(z, H), **changes)


def _packed_view_alone(x, w_attn, w_proj, H, **changes):
    def cut(qkv, H, D):
        return qkv.reshape(qkv.size(0), 3, H, qkv.size(1), D).unbind(1)

    return _attention(x, w_attn, w_proj, H, cut=cut, **changes)


def _single(x, w_attn, w_proj, H):
    return _attention(x, w_attn, w_proj, 1)


def _no_swap(y):
    """(B, H, T, D) -> (B, T, C) with one view: the transpose on the way back is missing."""
    return y.reshape(y.size(0), y.size(2), -1)


def _tokens_swapped(x, w_attn, w_proj, H):
    """(B, T, H, D) without the swap: each token attends among its own heads."""
    B, T, C = x.shape
    q, k, v = (z.reshape(B, T, H, -1) for z in (x @ w_attn.T).split(C, dim=-1))  # (B, T, H, D) each
    scores = q @ k.transpose(-2, -1) / math.sqrt(C // H)  # (B, T, H, H)
    return (torch.softmax(scores, dim=-1) @ v).reshape(B, T, C) @ w_proj.T


_VIEW = (
    "view alone cuts tokens into pieces and calls the pieces tokens: view(B, T, H, D) first, then swap tokens and heads"
)

MULTI_HEAD_MISTAKES = (
    ("the scores are divided by the root of C: the width of a query is D = C / n_head",
     _wrong(scale=lambda C, D: math.sqrt(C))),
    ("the scores are not scaled: divide them by the root of D", _wrong(scale=lambda C, D: 1.0)),
    ("the scores are divided by D, not by its root", _wrong(scale=lambda C, D: D)),
    ("the scores are multiplied by the root of D: it divides them", _wrong(scale=lambda C, D: 1 / math.sqrt(D))),
    ("the scores are divided by the root of the number of heads: by the root of D, the width of one",
     _wrong(scale=lambda C, D: math.sqrt(C // D))),
    ("there is no mask: every token sees the future", _wrong(mask=lambda T: torch.ones(T, T, dtype=torch.bool))),
    ("the mask is off by one: every token sees the next one",
     _wrong(mask=lambda T: torch.ones(T, T, dtype=torch.bool).tril(1))),
    ("the mask is upside down: it hides the past and shows the future",
     _wrong(mask=lambda T: torch.ones(T, T, dtype=torch.bool).triu())),
    ("the mask came after the softmax, so the rows no longer sum to one",
     _wrong(weigh=lambda s, a: torch.softmax(s, dim=-1) * a)),
    ("the future has the score 0, which is a score like any other: hide it with minus infinity",
     _wrong(weigh=lambda s, a: torch.softmax(s.masked_fill(~a, 0.0), dim=-1))),
    ("the mask hides each token from itself: it may look at itself and at all before it",
     _wrong(mask=lambda T: torch.ones(T, T, dtype=torch.bool).tril(-1),
            weigh=lambda s, a: _softmax(s, a).nan_to_num())),
    *((WEAK_MASK, _wrong(weigh=lambda s, a, low=low: torch.softmax(s.masked_fill(~a, low), dim=-1))) for low in WEAK),
    *((WEAK_MASK, _wrong(weigh=lambda s, a, low=low: torch.softmax(s + low * ~a, dim=-1))) for low in WEAK),
    ("the input was added: that is for page 6", lambda *case: case[0] + _attention(*case)),
    ("the softmax goes over the wrong axis: over the tokens looked at, the last one",
     _wrong(weigh=lambda s, a: torch.softmax(s.masked_fill(~a, -math.inf), dim=-2))),
    ("the softmax goes over the heads: over the tokens looked at, the last axis",
     _wrong(weigh=lambda s, a: torch.softmax(s, dim=1) * a)),
    ("this is attention with one head: n_head has no effect", _single),
    (_VIEW, _view_alone),
    (_VIEW + ". The whole packed product was cut so, queries, keys and values with it", _packed_view_alone),
    (_VIEW + ". The way back has the same mistake, which hides it from a test for leaks",
     lambda x, a, p, H: _view_alone(x, a, p, H, merge=_no_swap)),
    (_VIEW + ". The way back, and the cut of the packed product, have the same mistake",
     lambda x, a, p, H: _packed_view_alone(x, a, p, H, merge=_no_swap)),
    ("the heads are merged without swapping tokens and heads back: transpose(1, 2) first, then reshape",
     _wrong(merge=_no_swap)),
    ("tokens and heads are not swapped before the scores: each token looks at its own heads, not at other tokens",
     _tokens_swapped),
    ("the heads are interleaved, view(B, T, 3, D, H): the rows of a head lie together, so H is cut before D",
     lambda x, a, p, H: _attention(
         x, a, p, H, cut=lambda z, H, D: z.reshape(*z.shape[:2], 3, D, H).permute(2, 0, 4, 1, 3))),
    ("the heads are interleaved when they are merged: head after head, D channels each",
     _wrong(merge=lambda y: y.permute(0, 2, 3, 1).reshape(y.size(0), y.size(2), -1))),
    ("the packed matrix was read head after head, view(B, T, H, 3, D): here the thirds come first, then the heads",
     lambda x, a, p, H: _attention(
         x, a, p, H, cut=lambda z, H, D: z.reshape(*z.shape[:2], H, 3, D).permute(3, 0, 2, 1, 4))),
    ("the packed matrix was read row by row, view(B, T, H, D, 3): the thirds come first, then the heads",
     lambda x, a, p, H: _attention(
         x, a, p, H, cut=lambda z, H, D: z.reshape(*z.shape[:2], H, D, 3).permute(4, 0, 2, 1, 3))),
    ("queries and keys changed places: the first third makes queries, the second keys", _wrong(take=(1, 0, 2))),
    ("keys and values changed places: the second third makes keys, the last one values", _wrong(take=(0, 2, 1))),
    ("queries and values changed places: the first third makes queries, the last one values", _wrong(take=(2, 1, 0))),
    ("the thirds are read as keys, values, queries: they are queries, keys, values", _wrong(take=(2, 0, 1))),
    ("the thirds are read as values, queries, keys: they are queries, keys, values", _wrong(take=(1, 2, 0))),
    ("the projection is missing: the concatenated heads go through w_proj at the end", _wrong(project=lambda y, w: y)),
    ("the projection is not transposed: w_proj is stored as (out, in), so multiply by w_proj.T",
     _wrong(project=lambda y, w: y @ w)),
)  # fmt: skip


def multi_head(multi_head) -> str:
    """multi_head(x, w_attn, w_proj, n_head) -> (B, T, C): causal, scaled attention with packed weights, no biases."""
    need_function(multi_head, "multi_head(x, w_attn, w_proj, n_head)")
    cases = [
        _layer_inputs(*sizes) for sizes in ((2, 6, 12, 3), (1, 8, 20, 2), (3, 6, 8, 4), (2, 5, 6, 1), (1, 1, 4, 2))
    ]
    got = []
    for case in cases:
        (B, T, C), H = case[0].shape, case[3]
        what = f"multi_head(x, w_attn, w_proj, {H}), for x of shape {(B, T, C)},"
        given = [tensor.clone().float() for tensor in case[:3]]
        before = [tensor.clone() for tensor in given]
        result = ask(multi_head, what, *given, H)
        kept(given, before, f"{what} changed what it was given in place: work on copies")
        result = _shaped(result, (B, T, C), what)
        if torch.isnan(result).any():
            raise Wrong(f"{what} holds NaN: does the mask leave every token something to look at, itself at least?")
        got.append(result)
    right = [_heads_one_by_one(*case) for case in cases]
    if settled(got, right, cases, MULTI_HEAD_MISTAKES, _same):
        _refuse_a_weak_mask(multi_head)
        return f"the same as the heads one by one, for {len(cases)} shapes"
    _refuse_a_leak(multi_head, cases[1], got[1])
    raise Wrong(_where_it_differs(cases, got, right))


def _refuse_a_weak_mask(multi_head):
    """Refuse a finite mask, which scores in the thousands outdo; what else breaks there is let pass."""
    x, *matrices = extreme(-60.0, 0.0)
    case = x, torch.cat([matrix.T for matrix in matrices]), torch.eye(4), 1
    try:
        value = multi_head(*(part.clone() for part in case[:3]), 1)
    except ArithmeticError:
        return
    value = as_tensor(value, "the result of multi_head")
    if torch.isfinite(value).all() and not _same(value, _heads_one_by_one(*case)):
        raise Wrong(f"right for scores of an ordinary size, but not for scores in the thousands: {WEAK_MASK}")


def _refuse_a_leak(multi_head, case, before):
    x, w_attn, w_proj = (tensor.clone().float() for tensor in case[:3])
    for t in range(1, x.size(1)):
        later = x.clone()
        later[:, t:] += 1.0
        after = as_tensor(ask(multi_head, "multi_head", later, w_attn, w_proj, case[3]), "the result of multi_head")
        if after.shape == before.shape and not _same(after[:, :t], before[:, :t]):
            raise Wrong(
                f"the mask lets the future through: of {x.size(1)} tokens, those from token {t} on were changed, and "
                "an output before it moved"
            )


def _layer_inputs(B, T, C, H):
    """x (B, T, C), w_attn (3C, C), w_proj (C, C) and the number of heads; scores large enough for the scale to show."""
    return (
        _random(B, T, C, seed=T),
        1.5 * _random(3 * C, C, seed=C) / math.sqrt(C),
        _random(C, C, seed=H) / math.sqrt(C),
        H,
    )


def _where_it_differs(cases, got, right) -> str:
    case, mine, true = next(t for t in zip(cases, got, right, strict=True) if not _same(*t[1:]))
    (B, T, C), H = case[0].shape, case[3]
    shape = f"for x of shape {(B, T, C)} and {H} head{'s' if H > 1 else ''}"
    if any(c[3] > 1 and not _same(g, r) for c, g, r in zip(cases, got, right, strict=True)) and _same(got[3], right[3]):
        return f"right with one head, and wrong {shape}: look at how heads are cut apart and put together"
    close = (mine.double() - true).abs().amax(dim=2).amax(dim=0) <= 1e-5  # (T,)
    if close[0]:
        first = int((~close).nonzero()[0])
        return (
            f"{shape}, token 0 is right, and token {first} is the first that is not: look at scores, mask and softmax"
        )
    return f"{shape}, even token 0 is wrong, which sees only itself: look at values, merging and projection"


# --- ablate-head ------------------------------------------------------------------------------------------------------


def _layer(C, H, T, seed):
    layer = CausalSelfAttention(GPTConfig(block_size=T, n_head=H, n_embd=C)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / math.sqrt(C))
    return layer


def _changed(edit):
    """An ablation that edits a copy: edit(layer, head, D)."""

    def ablate(layer, head):
        layer = copy.deepcopy(layer)
        with torch.no_grad():
            edit(layer, head, layer.c_proj.in_features // layer.n_head)
        return layer

    return ablate


def _without_head(layer, x, head):
    """The heads one by one, without this one: (B, T, C)."""
    B, T, C = x.shape
    D = C // layer.n_head
    with torch.no_grad():
        q, k, v = layer.c_attn(x).double().split(C, dim=-1)  # (B, T, C) each
        out = layer.c_proj.bias.double().expand(B, T, C).clone()
        for h in range(layer.n_head):
            rows = slice(h * D, (h + 1) * D)
            scores = q[..., rows] @ k[..., rows].transpose(1, 2) / math.sqrt(D)  # (B, T, T)
            y = _softmax(scores, torch.ones(T, T, dtype=torch.bool).tril()) @ v[..., rows]  # (B, T, D)
            if h != head:
                out += y @ layer.c_proj.weight[:, rows].double().T
    return out


def _zero(places):
    """Zero part of c_proj.weight: `places(head, D, C, H)` gives the index."""

    def edit(layer, head, D):
        layer.c_proj.weight[places(head, D, layer.c_proj.in_features, layer.n_head)] = 0.0

    return edit


def _zero_rows(part):
    """Zero the rows of c_attn that make one head's queries, keys or values."""

    def edit(layer, head, D):
        first = part * layer.c_proj.in_features + head * D
        layer.c_attn.weight[first : first + D] = 0.0

    return edit


def _columns_and_bias(layer, head, D):
    layer.c_proj.weight[:, head * D : (head + 1) * D] = 0.0
    layer.c_proj.bias.zero_()


def _only_this(layer, head, D):
    kept = layer.c_proj.weight[:, head * D : (head + 1) * D].clone()
    layer.c_proj.weight.zero_()
    layer.c_proj.weight[:, head * D : (head + 1) * D] = kept


ABLATE_MISTAKES = (
    ("the layer still gives what it gave: nothing was switched off", lambda layer, head, D: None),
    ("rows of c_proj.weight are 0: a row makes one channel of the output from all heads, a head's slice is D columns",
     _zero(lambda h, D, C, H: slice(h * D, (h + 1) * D))),
    ("one column of c_proj.weight is zero: a head has D of them, from head * D on",
     _zero(lambda h, D, C, H: (slice(None), h))),
    ("one column of c_proj.weight is zero, the first of the head's: a head has D of them",
     _zero(lambda h, D, C, H: (slice(None), h * D))),
    ("every n_head-th column is zero, as if the heads were interleaved: the D columns of a head lie together",
     _zero(lambda h, D, C, H: (slice(None), slice(h, None, H)))),
    ("the columns from head to head + D are zero: the slice of a head begins at head * D",
     _zero(lambda h, D, C, H: (slice(None), slice(h, h + D)))),
    ("the next head was switched off: heads are counted from 0",
     _zero(lambda h, D, C, H: (slice(None), slice((h + 1) * D, (h + 2) * D)))),
    ("the head before was switched off: heads are counted from 0",
     _zero(lambda h, D, C, H: (slice(None), slice((h - 1) * D, h * D) if h else slice(0, 0)))),
    ("this head is left, and the others are off: the other way round", _only_this),
    ("the other heads were kept out too: all columns of c_proj.weight are zero", _zero(lambda h, D, C, H: slice(None))),
    ("the bias of the projection is gone as well: it belongs to no head, and stays", _columns_and_bias),
    ("the head's queries or keys are zero: a head whose scores are all zero takes the plain mean of its values, so it "
     "is not off", _zero_rows(0)),
)  # fmt: skip


def ablate_head(ablate) -> str:
    """ablate(layer, head) -> a copy of a CausalSelfAttention in which this head adds nothing."""
    need_function(ablate, "ablate(layer, head)")
    cases = [
        (_layer(C, H, T, seed), head, _random(2, T, C, seed=seed).float())
        for seed, (C, H, T, head) in enumerate(
            [(12, 3, 5, 1), (20, 5, 4, 0), (16, 4, 6, 3), (12, 4, 5, 2), (8, 4, 3, 1)]
        )
    ]
    got = [_ablated(ablate, *case) for case in cases]
    right = [_without_head(layer, x, head) for layer, head, x in cases]
    known = [
        (words, lambda layer, head, x, edit=edit: _changed(edit)(layer, head)(x)) for words, edit in ABLATE_MISTAKES
    ]
    with torch.no_grad():
        if settled(got, right, cases, known, _same):
            return f"gone, and the rest as it was, in {len(cases)} layers"
    (layer, head, x), mine, true = first_off(cases, got, right, _same)
    off = float((mine.double() - true).abs().max())
    raise Wrong(
        f"with head {head} of {layer.n_head} switched off, the output of a layer of width {x.size(2)} is off by "
        f"{off:.2g} from the sum of the other heads and the bias"
    )


def _ablated(ablate, layer, head, x):
    """The output (B, T, C) of the reader's layer, once it is clear that it is a new one and the old one still works."""
    what = f"ablate(layer, {head}), for a layer of width {x.size(2)} with {layer.n_head} heads,"
    given = copy.deepcopy(layer)
    with torch.no_grad():
        before = given(x)
    result = ask(ablate, what, given, head)
    changed = _changed_weight(given, layer)
    if result is None and changed:
        raise Wrong(f"{what} returned nothing and changed the layer that it was given: return a copy instead")
    if changed:
        hint = ", and the layer returned is that same one" if result is given else ""
        raise Wrong(
            f"{what} changed {changed} of the layer that it was given{hint}: copy.deepcopy makes a copy with "
            "weights of its own"
        )
    if result is given:
        raise Wrong(f"{what} returned the very layer that it was given: return a copy")
    if not isinstance(result, torch.nn.Module):
        raise Wrong(f"{what} must return a layer, a changed copy of the one that it was given, got {shown(result)}")
    places = {parameter.data_ptr() for parameter in given.parameters()}
    for name, parameter in result.named_parameters():
        if parameter.data_ptr() in places:
            raise Wrong(
                f"{what} returned a layer that shares {name} with the one that it was given: copy.deepcopy makes a "
                "copy with weights of its own"
            )
    dtype = next((parameter.dtype for parameter in result.parameters()), x.dtype)
    with torch.no_grad():
        named = f"the layer that {what[:-1]} returned"
        out = ask(result, f"{named}, called with x of shape {tuple(x.shape)},", x.clone().to(dtype))
        after = ask(given, f"after {what} the layer that it was given", x)
    if changed := _changed_weight(given, layer):
        raise Wrong(f"{named}, when it is called, changes {changed} of the one that it was made from")
    if not (torch.is_tensor(after) and torch.equal(after, before)):
        raise Wrong(f"{what} left something on the layer that it was given, which gives other outputs now: a hook?")
    return _shaped(out, x.shape, f"the output of {named}")


def _changed_weight(given, layer) -> str:
    """The name of a tensor of `given` that is not as in `layer`; empty if there is none."""
    state = given.state_dict()
    return next((name for name, value in layer.state_dict().items() if not _equal(state.get(name), value)), "")


def _equal(a, b) -> bool:
    return a is not None and a.dtype == b.dtype and torch.equal(a, b)
