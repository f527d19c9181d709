"""Answers to the exercises of page 5, right and wrong."""

import copy
import math

import torch
import torch.nn.functional as F

from gptbook.model import CausalSelfAttention, GPTConfig

# --- repack-heads ---


def repack(w, n_head):
    C = w.size(1)
    return w.view(n_head, 3, C // n_head, C).transpose(0, 1).reshape(3 * C, C)


def repack_by_loops(w, n_head):
    D = w.size(1) // n_head
    rows = []
    for part in range(3):
        for h in range(n_head):
            for d in range(D):
                rows.append(w[h * 3 * D + part * D + d])
    return torch.stack(rows)


def repack_by_chunks(w, n_head):
    heads = [piece.chunk(3) for piece in w.chunk(n_head)]
    return torch.cat([head[part] for part in range(3) for head in heads])


def repack_rows(w, n_head):
    return [list(row) for row in repack_by_loops(w.double(), n_head).tolist()]


def reordered(shape, axes):
    """Cut the rows into `shape(H, D)`, put the axes into another order, and glue."""

    def repack(w, n_head):
        C = w.size(1)
        return w.view(*shape(n_head, C // n_head), C).permute(*axes, 3).reshape(3 * C, C)

    return repack


def repack_in_place(w, n_head):
    w.copy_(repack(w, n_head).clone())
    return w


def repack_third_shuffled(w, n_head):
    q, k, v = repack(w, n_head).chunk(3)
    return torch.cat([q, k, v.flip(0)])


# --- multi-head ---


def multi_head(x, w_attn, w_proj, n_head):
    B, T, C = x.shape
    q, k, v = (x @ w_attn.T).view(B, T, 3, n_head, C // n_head).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-2, -1) / math.sqrt(C // n_head)
    scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C) @ w_proj.T


def multi_head_by_einsum(x, w_attn, w_proj, n_head):
    T, C = x.shape[1:]
    D = C // n_head
    w_q, w_k, w_v = w_attn.view(3, n_head, D, C)
    q, k, v = (torch.einsum("btc,hdc->bhtd", x, w) for w in (w_q, w_k, w_v))
    scores = torch.einsum("bhtd,bhsd->bhts", q, k) * D**-0.5
    weights = F.softmax(scores + torch.full((T, T), -math.inf).triu(1), dim=-1)
    return torch.einsum("bhts,bhsd,chd->btc", weights, v, w_proj.view(C, n_head, D))


def multi_head_by_list(x, w_attn, w_proj, n_head):
    w_q, w_k, w_v = w_attn.chunk(3)
    heads = []
    for q, k, v in zip(w_q.chunk(n_head), w_k.chunk(n_head), w_v.chunk(n_head), strict=True):
        heads.append(F.scaled_dot_product_attention(x @ q.T, x @ k.T, x @ v.T, is_causal=True))
    return F.linear(torch.cat(heads, dim=-1), w_proj)


def multi_head_by_package(x, w_attn, w_proj, n_head):
    layer = CausalSelfAttention(GPTConfig(block_size=x.size(1), n_head=n_head, n_embd=x.size(2)))
    with torch.no_grad():
        layer.c_attn.weight.copy_(w_attn)
        layer.c_proj.weight.copy_(w_proj)
        layer.c_proj.bias.zero_()
    return layer(x)


def multi_head_in_double(x, w_attn, w_proj, n_head):
    return multi_head(x.double(), w_attn.double(), w_proj.double(), n_head)


def wrong(
    scale=lambda C, D: math.sqrt(D), triangle=0, cut=None, thirds=(0, 1, 2), split=None, weigh=None, merge=None,
    project=lambda y, w: y @ w.T,
):  # fmt: skip
    """A layer in which one line is another one."""

    def layer(x, w_attn, w_proj, n_head):
        B, T, C = x.shape
        D = C // n_head
        qkv = x @ w_attn.T
        if cut is not None:
            parts = cut(qkv, n_head, D)
        else:
            parts = [
                split(z, n_head) if split else z.reshape(B, T, n_head, D).transpose(1, 2) for z in qkv.chunk(3, dim=-1)
            ]
        q, k, v = (parts[i] for i in thirds)
        scores = q @ k.transpose(-2, -1) / scale(C, D)
        if weigh is None:
            hidden = torch.ones(T, T, dtype=torch.bool).triu(triangle + 1)
            weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        else:
            weights = weigh(scores, torch.ones(T, T).tril())
        y = weights @ v
        y = merge(y) if merge else y.transpose(1, 2).reshape(B, T, C)
        return project(y, w_proj)

    return layer


def cut_alone(z, H):
    return z.contiguous().view(z.size(0), H, z.size(1), -1)


def glue_alone(y):
    return y.contiguous().view(y.size(0), y.size(2), -1)


def in_place(x, w_attn, w_proj, n_head):
    out = multi_head(x, w_attn, w_proj, n_head)
    x.mul_(2)
    return out


def merged_with_view(x, w_attn, w_proj, n_head):
    B, T, C = x.shape
    q, k, v = (x @ w_attn.T).view(B, T, 3, n_head, C // n_head).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True).contiguous()
    return y.transpose(1, 2).view(B, T, C) @ w_proj.T


def no_swap_at_all(x, w_attn, w_proj, n_head):
    B, T, C = x.shape
    q, k, v = (x @ w_attn.T).view(B, T, 3, n_head, -1).unbind(2)
    return ((q @ k.transpose(-2, -1) / math.sqrt(C // n_head)).softmax(-1) @ v).reshape(B, T, C) @ w_proj.T


def added_not_concatenated(x, w_attn, w_proj, n_head):
    B, T = x.shape[:2]
    y = wrong(project=lambda y, w: y)(x, w_attn, w_proj, n_head).view(B, T, n_head, -1).sum(2)
    return y.repeat(1, 1, n_head) @ w_proj.T


# --- ablate-head ---


def ablate(layer, head):
    layer = copy.deepcopy(layer)
    D = layer.c_proj.in_features // layer.n_head
    with torch.no_grad():
        layer.c_proj.weight[:, head * D : (head + 1) * D] = 0
    return layer


def ablate_with_data(layer, head):
    layer = copy.deepcopy(layer)
    C = layer.c_proj.weight.shape[1]
    layer.c_proj.weight.data.view(C, layer.n_head, -1)[:, head].zero_()
    return layer


def ablate_the_values(layer, head):
    layer = copy.deepcopy(layer)
    C = layer.c_attn.in_features
    D = C // layer.n_head
    rows = slice(2 * C + head * D, 2 * C + (head + 1) * D)
    with torch.no_grad():
        layer.c_attn.weight[rows] = 0
        if layer.c_attn.bias is not None:
            layer.c_attn.bias[rows] = 0
    return layer


def ablate_with_a_hook(layer, head):
    layer = copy.deepcopy(layer)
    D = layer.c_proj.in_features // layer.n_head

    def silence(module, inputs):
        y = inputs[0].clone()
        y[..., head * D : (head + 1) * D] = 0
        return (y,)

    layer.c_proj.register_forward_pre_hook(silence)
    return layer


def edited(edit):
    def ablate(layer, head):
        layer = copy.deepcopy(layer)
        with torch.no_grad():
            edit(layer, head, layer.c_proj.in_features // layer.n_head)
        return layer

    return ablate


def zero(place):
    """Zero `layer.c_proj.weight[place(head, D, n_head)]`."""

    def edit(layer, head, D):
        layer.c_proj.weight[place(head, D, layer.n_head)] = 0

    return edited(edit)


def zero_rows(part):
    def edit(layer, head, D):
        first = part * layer.c_proj.in_features + head * D
        layer.c_attn.weight[first : first + D] = 0

    return edited(edit)


def silenced_by_a_hook_on_the_given_layer(layer, head):
    other = copy.deepcopy(layer)
    D = layer.c_proj.in_features // layer.n_head
    for one in (layer, other):
        one.c_proj.register_forward_pre_hook(lambda module, inputs: (inputs[0].index_fill(
            -1, torch.arange(head * D, (head + 1) * D), 0.0),))  # fmt: skip
    return other


class Wrapped(torch.nn.Module):
    """An own layer, which borrows a weight from the given one, or spoils it when it is called."""

    def __init__(self, layer, head, borrow=False, spoil=False):
        super().__init__()
        self.inner = ablate(layer, head)
        if borrow:
            self.inner.c_attn.weight = layer.c_attn.weight
        self.spoiled = [layer] if spoil else []  # a list hides it from the parameters

    def forward(self, x):
        for layer in self.spoiled:
            layer.c_proj.weight.data.zero_()
        return self.inner(x)


def ablate_without_an_attribute(layer, head):
    other = ablate(layer, head)
    del layer.n_head
    return other


def bias_too(layer, head):
    layer = ablate(layer, head)
    layer.c_proj.bias.data.zero_()
    return layer


def only_this(layer, head):
    layer = copy.deepcopy(layer)
    D = layer.c_proj.in_features // layer.n_head
    kept = torch.zeros_like(layer.c_proj.weight)
    kept[:, head * D : (head + 1) * D] = layer.c_proj.weight.detach()[:, head * D : (head + 1) * D]
    layer.c_proj.weight.data = kept
    return layer


def ablate_in_place(layer, head):
    D = layer.c_proj.in_features // layer.n_head
    layer.c_proj.weight.data[:, head * D : (head + 1) * D] = 0
    return layer


def ablate_shallow_copy(layer, head):
    return ablate_in_place(copy.copy(layer), head)


def ablate_without_return(layer, head):
    ablate_in_place(layer, head)


def ablate_first_head(layer, head):
    return ablate(ablate(layer, head), 0)


def ablate_without_no_grad(layer, head):
    layer = copy.deepcopy(layer)
    D = layer.c_proj.in_features // layer.n_head
    layer.c_proj.weight[:, head * D : (head + 1) * D] = 0
    return layer


RIGHT = {
    "repack-heads": [
        repack, repack_by_loops, repack_by_chunks, repack_rows,
        lambda w, n_head: repack(w.half(), n_head), lambda w, n_head: repack(w.bfloat16(), n_head),
    ],
    "multi-head": [
        multi_head, multi_head_by_einsum, multi_head_by_list, multi_head_by_package, multi_head_in_double,
        lambda x, w_attn, w_proj, n_head: multi_head(x, w_attn, w_proj, n_head).detach().numpy(),
        lambda *given: multi_head(*(tensor.half() for tensor in given[:3]), given[3]),
        lambda *given: multi_head(*(tensor.bfloat16() for tensor in given[:3]), given[3]),
    ],
    "ablate-head": [
        ablate, ablate_with_data, ablate_the_values, ablate_with_a_hook, zero_rows(2), Wrapped,
        lambda layer, head: ablate(layer, head).double(), lambda layer, head: ablate(layer, head).bfloat16(),
    ],
}  # fmt: skip

WRONG = {
    "repack-heads": [
        (lambda w, n_head: w, "moves nothing"),
        (lambda w, n_head: w.view(3, n_head, -1, w.size(1)).reshape(w.shape), "moves nothing"),
        (reordered(lambda H, D: (3, H, D), (1, 0, 2)), "this is the way back"),
        (reordered(lambda H, D: (H, 3, D), (0, 2, 1)), "the wrong two axes were swapped"),
        (reordered(lambda H, D: (H, 3, D), (2, 1, 0)), "came out in reverse"),
        (reordered(lambda H, D: (H, 3, D), (1, 2, 0)), "interleaved row by row"),
        (reordered(lambda H, D: (H, D, 3), (2, 0, 1)), "took turns"),
        (reordered(lambda H, D: (D, 3, H), (1, 0, 2)), "there are n_head heads of D rows"),
        (lambda w, n_head: torch.cat([repack(w, n_head).chunk(3)[i] for i in (1, 0, 2)]), "queries and keys changed"),
        (lambda w, n_head: torch.cat([repack(w, n_head).chunk(3)[i] for i in (2, 0, 1)]), "values first"),
        (lambda w, n_head: repack(w.view(n_head, -1, w.size(1)).flip(0).reshape(w.shape), n_head), "last to first"),
        (lambda w, n_head: repack(w, n_head).chunk(3)[0].repeat(3, 1), "every third holds the queries"),
        (repack_third_shuffled, "value row 0 of head 0: yours is row"),
        (lambda w, n_head: 2 * repack(w, n_head), "query row 0 of head 0: yours is none of its rows"),
        (lambda w, n_head: w.view(n_head, 3, -1, w.size(1)).transpose(0, 1), "glue the axes together"),
        (lambda w, n_head: w.view(n_head, 3, -1, w.size(1)).transpose(0, 1).view(w.shape), "raised RuntimeError: view"),
        (lambda w, n_head: repack(w, n_head)[: w.size(1)], "must have the shape"),
        (repack_in_place, "changed what it was given in place"),
        (lambda w: w, "must take (w, n_head)"),
        (None, "got nothing"),
        (lambda w, n_head: None, "is a return missing?"),
    ],
    "multi-head": [
        (wrong(scale=lambda C, D: math.sqrt(C)), "divided by the root of C"),
        (wrong(scale=lambda C, D: 1), "not scaled"),
        (wrong(scale=lambda C, D: D), "divided by D, not by its root"),
        (wrong(scale=lambda C, D: 1 / math.sqrt(D)), "multiplied by the root of D"),
        (wrong(scale=lambda C, D: math.sqrt(C / D)), "the root of the number of heads"),
        (wrong(triangle=10_000), "there is no mask"),
        (wrong(triangle=1), "the mask is off by one"),
        (wrong(triangle=-1), "holds NaN"),
        (wrong(weigh=lambda s, tril: s.masked_fill(tril.tril(-1) == 0, -math.inf).softmax(-1).nan_to_num()),
         "hides each token from itself"),
        *((wrong(weigh=lambda s, tril, low=low: s.masked_fill(tril == 0, low).softmax(-1)),
           "the future keeps a little weight: use minus infinity") for low in (-10.0, -15.0, -30.0, -1000.0)),
        *((wrong(weigh=lambda s, tril, low=low: (s + low * (1 - tril)).softmax(-1)),
           "the future keeps a little weight: use minus infinity") for low in (-10.0, -15.0, -30.0, -1000.0)),
        (wrong(weigh=lambda s, tril: s.masked_fill(tril == 0, -3.0).softmax(-1)), "the mask lets the future through"),
        (lambda x, *rest: x + multi_head(x, *rest), "the input was added: that is for page 6"),
        (wrong(weigh=lambda s, tril: s.masked_fill(tril.T == 0, -math.inf).softmax(-1)), "upside down"),
        (wrong(weigh=lambda s, tril: s.softmax(-1) * tril), "came after the softmax"),
        (wrong(weigh=lambda s, tril: (s * tril).softmax(-1)), "a score like any other"),
        (wrong(weigh=lambda s, tril: s.masked_fill(tril == 0, -math.inf).softmax(-2)), "over the wrong axis"),
        (wrong(weigh=lambda s, tril: s.softmax(1) * tril), "over the heads"),
        (lambda x, w_attn, w_proj, n_head: multi_head(x, w_attn, w_proj, 1), "n_head has no effect"),
        (wrong(split=cut_alone), "calls the pieces tokens"),
        (wrong(cut=lambda z, H, D: z.view(z.size(0), 3, H, z.size(1), D).unbind(1)), "The whole packed product"),
        (wrong(split=cut_alone, merge=glue_alone), "hides it from a test for leaks"),
        (wrong(cut=lambda z, H, D: z.view(z.size(0), 3, H, z.size(1), D).unbind(1), merge=glue_alone),
         "the cut of the packed product, have the same mistake"),
        (wrong(merge=glue_alone), "transpose(1, 2) first, then reshape"),
        (no_swap_at_all, "looks at its own heads"),
        (wrong(cut=lambda z, H, D: z.view(*z.shape[:2], 3, D, H).permute(2, 0, 4, 1, 3)), "view(B, T, 3, D, H)"),
        (wrong(merge=lambda y: y.permute(0, 2, 3, 1).flatten(2)), "interleaved when they are merged"),
        (wrong(cut=lambda z, H, D: z.view(*z.shape[:2], H, 3, D).permute(3, 0, 2, 1, 4)), "view(B, T, H, 3, D)"),
        (wrong(cut=lambda z, H, D: z.view(*z.shape[:2], H, D, 3).permute(4, 0, 2, 1, 3)), "read row by row"),
        (wrong(thirds=(1, 0, 2)), "queries and keys changed places"),
        (wrong(thirds=(0, 2, 1)), "keys and values changed places"),
        (wrong(thirds=(2, 1, 0)), "queries and values changed places"),
        (wrong(thirds=(2, 0, 1)), "read as keys, values, queries"),
        (wrong(thirds=(1, 2, 0)), "read as values, queries, keys"),
        (wrong(project=lambda y, w: y), "the projection is missing"),
        (wrong(project=lambda y, w: y @ w), "the projection is not transposed"),
        (wrong(project=lambda y, w: y @ w.T + 1), "even token 0 is wrong"),
        (wrong(scale=lambda C, D: 3.0), "token 0 is right, and token 1 is the first that is not"),
        (added_not_concatenated, "right with one head, and wrong"),
        (merged_with_view, "raised RuntimeError: view size is not compatible"),
        (in_place, "changed what it was given in place"),
        (lambda x, w_attn, w_proj, n_head: multi_head(x, w_attn, w_proj, n_head)[0], "must have the shape"),
        (lambda x, w_attn, w_proj: x, "must take (x, w_attn, w_proj, n_head)"),
        (lambda x, w_attn, w_proj, n_head: x @ w_attn, "raised RuntimeError: mat1 and mat2"),
    ],
    "ablate-head": [
        (lambda layer, head: copy.deepcopy(layer), "nothing was switched off"),
        (lambda layer, head: layer, "returned the very layer that it was given"),
        (silenced_by_a_hook_on_the_given_layer, "left something on the layer that it was given"),
        (ablate_without_an_attribute, "the layer that it was given raised AttributeError"),
        (lambda layer, head: Wrapped(layer, head, borrow=True), "shares inner.c_attn.weight with the one"),
        (lambda layer, head: Wrapped(layer, head, spoil=True), "changes c_proj.weight of the one that it"),
        (lambda layer, head: (lambda x: ablate(layer, head)(x)), "a changed copy of the one that it was given, got a"),
        (lambda layer, head: ablate(layer, head).forward, "a changed copy of the one that it was given, got a"),
        (lambda layer, head: torch.nn.Flatten(1), "must have the shape"),
        (zero(lambda h, D, H: slice(h * D, (h + 1) * D)), "rows of c_proj.weight are 0"),
        (zero(lambda h, D, H: (slice(None), h)), "a head has D of them, from head * D on"),
        (zero(lambda h, D, H: (slice(None), h * D)), "the first of the head's"),
        (zero(lambda h, D, H: (slice(None), slice(h, None, H))), "as if the heads were interleaved"),
        (zero(lambda h, D, H: (slice(None), slice(h, h + D))), "from head to head + D"),
        (zero(lambda h, D, H: (slice(None), slice((h + 1) * D, (h + 2) * D))), "the next head was switched off"),
        (zero(lambda h, D, H: (slice(None), slice(max(0, h - 1) * D, h * D))), "the head before was switched off"),
        (only_this, "the other way round"),
        (zero(lambda h, D, H: slice(None)), "all columns of c_proj.weight are zero"),
        (bias_too, "it belongs to no head"),
        (zero_rows(0), "so it is not off"),
        (zero_rows(1), "so it is not off"),
        (ablate_in_place, "and the layer returned is that same one: copy.deepcopy"),
        (ablate_shallow_copy, "that it was given: copy.deepcopy"),
        (ablate_without_return, "returned nothing and changed the layer"),
        (ablate_first_head, "the sum of the other heads and the bias"),
        (ablate_without_no_grad, "in-place operation"),
        (lambda layer, head: layer.c_proj.weight.clone(), "must return a layer"),
        (lambda layer, head: None, "is a return missing?"),
        (lambda layer: layer, "must take (layer, head)"),
    ],
}  # fmt: skip
