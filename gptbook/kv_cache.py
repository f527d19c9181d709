"""The same forward pass, a piece at a time: keys and values of the past are kept and not computed again.

A cache is a value. It goes in, and a longer one comes out; nothing is stored on the model, and no cache is changed.
What it leaves out: space reserved in advance (each step copies the past once), windows that slide, and hooks (it runs
the layers inside a block, so those on the block itself do not fire); page 11. For a `ModernGPT` too.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from gptbook.modern import GATES, ModernConfig, ModernGPT
from gptbook.sampling import check_request, evaluating, next_token


@dataclass(frozen=True, eq=False)  # tensors have no equality that is one truth value
class Cache:
    """Keys and values of T tokens, a pair for each block: (B, H, T, D) each, or (B, G, T, D) of a ModernGPT.

    `last` are the tokens that n-grams of the next ones need, (B, N-1); None for a model without n-grams.
    """

    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    last: torch.Tensor | None = None

    def __len__(self):
        """T: how many tokens the cache holds."""
        return self.layers[0][0].size(-2)

    @property
    def bytes(self) -> int:
        """The memory that the kept numbers take: 2 L B T C of them, or 2 L B T G D."""
        return sum(tensor.numel() * tensor.element_size() for layer in self.layers for tensor in layer)


def forward(model, idx, cache: Cache | None = None):
    """The logits of tokens idx (B, T) that follow the S tokens of `cache`, and the cache of all S + T of them.

    idx (B, T), cache of S tokens or None -> logits (B, T, V), equal to the last T rows of the model's own forward pass
    over S + T tokens, and a new Cache. Without dropout, whatever the model's mode. Raises ValueError if S + T is more
    than block_size: learned positions end there, and every kept key has its position in it; and for a cache of another
    model's shape or of another number of rows.
    """
    model._check(idx)
    _check(cache, model.config, idx.size(0))
    S, T = 0 if cache is None else len(cache), idx.size(1)
    if model.config.block_size < S + T:
        raise ValueError(
            f"the cache holds {S} tokens and {T} more come, the model reads {model.config.block_size}: "
            f"start again, without a cache, from the last tokens of the text"
        )
    if isinstance(model, ModernGPT):
        return _modern_forward(model, idx, cache)
    position = torch.arange(S, S + T, device=idx.device)  # (T,)
    x = model.wte(idx) + model.wpe(position)  # (B, T, C)
    layers = []
    for i, block in enumerate(model.h):
        kept = None if cache is None else cache.layers[i]
        written, layer = attention(block.attn, block.ln_1(x), kept)
        layers.append(layer)
        x = x + written  # (B, T, C)
        x = x + block.mlp.c_proj(block.mlp.activation(block.mlp.c_fc(block.ln_2(x))))  # (B, T, C)
    logits = model.lm_head(model.ln_f(x))  # (B, T, V)
    return logits, Cache(tuple(layers))


def attention(attn, x, kept=None):
    """Attention of new tokens x (B, T, C) to S kept ones and to themselves -> (B, T, C), and all S + T (keys, values).

    `kept` is a pair (keys, values), (B, H, S, D) each, or None.
    """
    B, T, C = x.shape
    q, k, v = attn.c_attn(x).view(B, T, 3, attn.n_head, C // attn.n_head).permute(2, 0, 3, 1, 4)  # (B, H, T, D) each
    S = 0 if kept is None else kept[0].size(-2)
    if S:
        k, v = (torch.cat((old, new), dim=-2) for old, new in zip(kept, (k, v), strict=True))  # (B, H, S+T, D) each
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # (B, H, T, S+T)
    scores = scores.masked_fill(~attn.past[S : S + T, : S + T], float("-inf"))  # row t is token S + t of the text
    y = (F.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(B, T, C)  # (B, T, C)
    if not S:  # views of a tensor that holds the queries as well: a copy lets go of those
        k, v = (tensor.clone(memory_format=torch.contiguous_format) for tensor in (k, v))
    return attn.c_proj(y), (k, v)


def _modern_forward(model, idx, cache):
    """`forward` of a ModernGPT: G heads are kept for H that ask, and keys are kept as they were turned."""
    last = None if cache is None else cache.last
    x, turn = model.embed(idx, 0 if cache is None else len(cache), last, whole=True)
    layers = []
    for i, block in enumerate(model.h):
        q, k, v = block.attn.project(block.ln_1(x), turn)
        old_k, old_v = (k[:, :, :0], v[:, :, :0]) if cache is None else cache.layers[i]  # (B, G, S, D) each
        k, v = torch.cat((old_k, k), dim=-2), torch.cat((old_v, v), dim=-2)  # (B, G, S+T, D) each
        layers.append((k, v))
        x = x + block.attn.c_proj(block.attn.read(block.attn.weights(q, k), v))  # (B, T, C)
        x = x + block.mlp.c_proj(block.mlp.inside(block.ln_2(x)))  # (B, T, C)
    if model.ngrams is not None:
        if last is None:
            last = idx.new_full((idx.size(0), model.ngrams.lengths), model.ngrams.nothing)  # (B, lengths)
        last = torch.cat((last, idx), dim=1)[:, -model.ngrams.lengths :]  # (B, lengths)
    return model.lm_head(model.ln_f(x)), Cache(tuple(layers), last)


def _check(cache, config, rows):
    if cache is None:
        return
    S = len(cache) if cache.layers else 0
    heads = config.kv_heads if isinstance(config, ModernConfig) else config.n_head
    L, shape = config.n_layer, (rows, heads, S, config.n_embd // config.n_head)
    held = {tuple(tensor.shape) for layer in cache.layers for tensor in layer}
    tokens = getattr(config, "ngrams", 1) - 1
    if (None if cache.last is None else tuple(cache.last.shape)) != ((rows, tokens) if tokens else None):
        raise ValueError("the cache is of a model with other n-grams: it goes with the model that it was made from")
    if len(cache.layers) != L or held != {shape}:
        raise ValueError(
            f"the cache holds {len(cache.layers)} layers of shape {', '.join(map(str, sorted(held)))}, model and idx "
            f"need {L} of {shape}: a cache goes with the model and the rows that it was made from"
        )


def generate(
    model,
    idx,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
    top_p: float | None = None,
):
    """As `sampling.generate`, with the past kept: the same tokens from the same seed, but for logits that nearly tie.

    While the text fits the window, each step computes one token. Once it is full, every token moves to another position
    with each step, nothing that was kept is right any more, and each step computes the whole window, as without a
    cache.
    """
    check_request(idx, max_new_tokens)
    V, T = model.config.vocab_size, model.config.block_size
    with evaluating(model), torch.inference_mode():
        cache = None
        for _ in range(max_new_tokens):
            if idx.size(1) > T:
                logits = model(idx[:, -T:])  # (B, T, V)
            else:
                new = idx if cache is None else idx[:, -1:]  # the prompt first, then one token at a time
                logits, cache = forward(model, new, cache)
            token = next_token(logits[:, -1, :V], temperature, top_k, generator, top_p)  # (B,)
            idx = torch.cat((idx, token[:, None]), dim=1)  # (B, length): one token longer
    return idx.clone()  # outside, so that it is a tensor like any other


def multiply_adds(config, tokens: int, kept: int = 0) -> int:
    """How many multiplications, each with its addition, the matrix products of `forward` take for one row of text.

    `tokens` new ones after `kept` old ones, counted as the code computes them, hidden scores too: 12 L C^2 + V C for
    each new token, and 2 C for each pair of a new token with one of all in each of the L blocks. The matrices of a
    block of a ModernConfig are 2 C^2 + 2 C G D + 2 C inner, and C inner more with a gate; its n-grams take their width
    times C for each length.
    """
    C, L, V = config.n_embd, config.n_layer, config.vocab_size
    block, first = 12 * C**2, 0
    if isinstance(config, ModernConfig):
        mlp = (3 if config.activation in GATES else 2) * C * config.inner
        block = 2 * C**2 + 2 * C * config.kv_heads * config.head_size + mlp
        first = (config.ngrams - 1) * config.ngram_width * C
    return tokens * (first + L * block + V * C) + 2 * L * C * tokens * (kept + tokens)
