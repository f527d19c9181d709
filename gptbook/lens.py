"""Looking inside a GPT while it runs: attention, the stream, what each layer would say, and heads switched off.

Everything here watches from outside, by hooks that are taken off again, also when the forward pass raises. The model is
left as it was: its weights, its mode and its random state. Page 12, and for a `ModernGPT` page 16.
"""

import operator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
import torch.nn as nn

from gptbook.sampling import evaluating


@contextmanager
def _hooks(*pairs):
    """Hooks on modules, as pairs (register, hook), as long as the block lasts."""
    with ExitStack() as stack:
        for register, hook in pairs:
            stack.callback(register(hook).remove)
        yield


def attention(model, idx):
    """The weights of every head: idx (B, T) -> (L, B, H, T, T), where [l, b, h, t, s] is how much t reads s."""
    found = []
    # The weights pass through the dropout of attention, which is off here: its input is what we want.
    hooks = [
        (block.attn.attn_dropout.register_forward_pre_hook, lambda _, given: found.append(given[0].detach().clone()))
        for block in model.h
    ]
    with evaluating(model), _hooks(*hooks):
        model(idx)
    return torch.stack(found)


def stream(model, idx):
    """The residual stream: idx (B, T) -> (2L+1, B, T, C), after embeddings, and after each attention and MLP."""
    found = []

    def look(_, given):
        found.append(given[0].detach().clone())  # a copy, which nothing later can change

    # What a norm reads is the stream at that place.
    norms = [norm for block in model.h for norm in (block.ln_1, block.ln_2)]
    with evaluating(model), _hooks(*((norm.register_forward_pre_hook, look) for norm in (*norms, model.ln_f))):
        model(idx)
    return torch.stack(found)


def logit_lens(model, idx):
    """What each layer would say: idx (B, T) -> (L+1, B, T, V), row l the logits if the model ended after l blocks.

    The stream after l blocks, through the final norm and the unembedding; the last row is, bit for bit, what the model
    says itself. nostalgebraist 2020, "interpreting GPT: the logit lens".
    """
    with evaluating(model):
        # One by one, in the shape that the model has them: another shape may round otherwise.
        return torch.stack([model.lm_head(model.ln_f(x)) for x in stream(model, idx)[::2]])


def ranks(logits, token: int):
    """How high one token stands in each row of logits (L+1, V): a list of (rank, probability), the highest has rank 1.

    With the rows that `logit_lens` gives for one place in a text: from which layer on the model would say it. Tokens
    that tie share the better rank. Raises ValueError for another shape, or a token that the logits have not.
    """
    if logits.dim() != 2:
        raise ValueError(f"logits must be of shape (L+1, V), those of one place, got {tuple(logits.shape)}")
    _check_token(token, logits.size(1))
    if logits.isnan().any():
        raise ValueError("the logits hold NaN: the model's weights or inputs are broken")
    above = (logits > logits[:, token, None]).sum(dim=1)  # (rows,)
    chances = logits.float().softmax(dim=1)[:, token]  # (rows,)
    return [(n + 1, chance) for n, chance in zip(above.tolist(), chances.tolist(), strict=True)]


@dataclass(frozen=True, eq=False)  # tensors have no equality that is one truth value
class Attribution:
    """A number at the last token of B rows, `total` (B,), and what each part of the model adds to it.

    `heads` (B, L, H), `mlps` (B, L), `embedding` (B,) of token and position, and `biases` (B,), those of attention's
    projections and of the final norm. Together they are the total.
    """

    total: torch.Tensor
    heads: torch.Tensor
    mlps: torch.Tensor
    embedding: torch.Tensor
    biases: torch.Tensor


def attribution(model, idx, direction):
    """How much each head and each MLP writes along `direction` at the last token: idx (B, T) -> Attribution.

    `direction` (C,) is a row of the unembedding, or a difference of two: how far the logit of one token lies above that
    of another. The last stream is a sum of all that was written, and the final norm divides it by one number a row,
    which is taken as it is: so the total is a sum too. A part counts for what it writes itself, not for what later ones
    make of that. Raises ValueError for a direction of another width.
    """
    C, H, ln = model.config.n_embd, model.config.n_head, model.ln_f
    if direction.shape != (C,):
        raise ValueError(f"direction must be of shape ({C},), the width of the stream, got {tuple(direction.shape)}")
    seen = {}

    def keep(name):
        def hook(_, given, output=None):
            seen.setdefault(name, []).append((given[0] if output is None else output)[:, -1].clone())

        return hook

    hooks = [(ln.register_forward_pre_hook, keep("end")), (model.h[0].ln_1.register_forward_pre_hook, keep("start"))]
    for block in model.h:
        hooks += [(block.attn.c_proj.register_forward_pre_hook, keep("heads"))]
        hooks += [(block.mlp.register_forward_hook, keep("mlps"))]
    with evaluating(model):
        with _hooks(*hooks):
            model(idx)
        start, end = seen["start"][0], seen["end"][0]  # (B, C) each
        along = direction if ln.weight is None else direction * ln.weight  # (C,)
        size = end.square().mean(-1) + ln.eps  # (B,)
        if isinstance(ln, nn.LayerNorm):  # takes the mean away first
            along, size = along - along.mean(), end.var(-1, correction=0) + ln.eps
        along = along / size.sqrt()[:, None]  # (B, C)
        biases = torch.zeros_like(size)  # (B,)
        heads = []
        for proj, given in zip((block.attn.c_proj for block in model.h), seen["heads"], strict=True):
            heads.append((given * (along @ proj.weight)).unflatten(1, (H, -1)).sum(-1))  # (B, H)
            if proj.bias is not None:
                biases = biases + along @ proj.bias  # (B,)
        if getattr(ln, "bias", None) is not None:
            biases = biases + direction @ ln.bias  # (B,)
        mlps = [(along * out).sum(-1) for out in seen["mlps"]]  # (B,) each
        embedding = (along * start).sum(-1)  # (B,)
        return Attribution(ln(end) @ direction, torch.stack(heads, 1), torch.stack(mlps, 1), embedding, biases)


@contextmanager
def ablated(model, heads):
    """The model with some heads switched off, given as pairs (layer, head), for as long as the `with` block lasts.

    A head that is off adds nothing to the stream: its slice of what the projection reads is zero. Blocks may be nested.
    Raises ValueError for a head that the model has not.
    """
    try:
        off = [(operator.index(layer), operator.index(head)) for layer, head in heads]
    except (TypeError, ValueError):
        raise ValueError(f"heads are pairs of whole numbers (layer, head), such as [(0, 3)], got {heads!r}") from None
    L, H = len(model.h), model.h[0].attn.n_head
    for layer, head in off:
        if not (0 <= layer < L and 0 <= head < H):
            raise ValueError(f"there is no head {head} in layer {layer}: layers are 0 to {L - 1}, heads 0 to {H - 1}")

    def without(numbers):
        def hook(_, given):
            y = given[0].unflatten(-1, (H, -1)).clone()  # (B, T, H, D)
            y[..., numbers, :] = 0
            return y.flatten(-2)  # (B, T, C)

        return hook

    hooks = [
        (model.h[layer].attn.c_proj.register_forward_pre_hook, without([h for other, h in off if other == layer]))
        for layer in sorted({layer for layer, _ in off})
    ]
    with _hooks(*hooks):
        yield model


@dataclass(frozen=True)
class HeadScore:
    """How much a head behaves in one way: its layer, its number, and a share of its attention between 0 and 1."""

    layer: int
    head: int
    score: float


def _ranked(scores):
    """Scores (L, H) as a list from the highest down."""
    L, H = scores.shape
    found = [HeadScore(layer, head, scores[layer, head].item()) for layer in range(L) for head in range(H)]
    return sorted(found, key=lambda score: -score.score)


def previous_token_scores(model, idx):
    """How much of its attention each head gives to the token before: idx (B, T) -> list of HeadScore, highest first.

    The mean over tokens 1 to T - 1 of the weight that token t gives to token t - 1. A head that looks at all of its
    past alike gets the mean of 1 / (t + 1).
    """
    weights = attention(model, idx)  # (L, B, H, T, T)
    if weights.size(-1) < 2:
        raise ValueError("idx has one token a row: without two, none has a token before it")
    return _ranked(weights.diagonal(offset=-1, dim1=-2, dim2=-1).mean(dim=(1, 3)))


def induction_scores(model, idx):
    """How much each head looks at what followed the same token before: idx (B, T) -> HeadScores, highest first.

    idx is repeated once, to 2T tokens a row. Token t of the second copy stood at t - T as well; an induction head looks
    at t - T + 1, what came next there (Olsson et al. 2022). Give random tokens, so that nothing else is worth looking
    at. A head that looks at all of its past alike gets the mean of 1 / (t + 1) over the second copy. Raises ValueError
    if 2T is more than block_size, or if T is 1, where what came next is the token itself.
    """
    if idx.size(-1) < 2:
        raise ValueError("idx has fewer than two tokens a row: what followed the first one would be its own copy")
    return _ranked(_repeated(model, idx, back=idx.size(-1) - 1))


def duplicate_token_scores(model, idx):
    """How much each head looks at the same token before: idx (B, T) -> HeadScores, highest first.

    As `induction_scores`, but at t - T, where the token itself stood.
    """
    return _ranked(_repeated(model, idx, back=idx.size(-1)))


def _repeated(model, idx, back):
    """(L, H): the mean weight that token t of a second copy of idx (B, T) gives to token t - back."""
    T = idx.size(-1)
    if model.config.block_size < 2 * T:
        raise ValueError(
            f"idx has {T} tokens a row and is repeated, the model reads {model.config.block_size}: "
            f"give rows of at most half of that"
        )
    weights = attention(model, torch.cat((idx, idx), dim=-1))  # (L, B, H, 2T, 2T)
    looked = weights.diagonal(offset=-back, dim1=-2, dim2=-1)[..., -T:]  # (L, B, H, T): rows T to 2T - 1
    return looked.mean(dim=(1, 3))


def neighbours(table, token: int, count: int = 5):
    """The rows of `table` (V, C) that point most nearly the same way as row `token`: a list of (id, cosine).

    The nearest first, `token` itself left out. `table` is an embedding, an unembedding, or a difference of two. Raises
    ValueError for a token that the table has not.
    """
    return arithmetic(table, plus=[token], count=count)


def arithmetic(table, plus, minus=(), count: int = 8, keep_inputs: bool = False, centred: bool = False):
    """The rows of `table` (V, C) that point most nearly the way of a sum of rows less others: a list of (id, cosine).

    king - man + woman is plus=[king, woman], minus=[man] (Mikolov et al. 2013). The rows that went in are left out,
    unless `keep_inputs`: often one of them is the nearest. `centred` takes the mean row away from all first, so that
    what all tokens share makes none alike. Raises ValueError for a token that the table has not.
    """
    table = table.detach()
    plus, minus = list(plus), list(minus)
    tokens = plus + minus
    if not tokens:
        raise ValueError("no token to add or to take away: give ids, such as plus=[king, woman], minus=[man]")
    for token in tokens:
        _check_token(token, len(table))
    if centred:
        table = table - table.mean(dim=0)  # (V, C)
    target = table[plus].sum(dim=0) - table[minus].sum(dim=0)  # (C,)
    cosines = (table @ target) / (table.norm(dim=1) * target.norm()).clamp_min(1e-30)  # (V,)
    if not keep_inputs:
        cosines[tokens] = -torch.inf
    left = len(table) - (0 if keep_inputs else len(set(tokens)))
    values, ids = cosines.topk(max(0, min(count, left)))
    return list(zip(ids.tolist(), values.tolist(), strict=True))


def _check_token(token, V):
    try:
        known = 0 <= operator.index(token) < V
    except TypeError:
        known = False
    if not known:
        raise ValueError(f"token must lie in 0..{V - 1}, got {token!r}")
