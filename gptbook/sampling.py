"""From logits to a token, and from a model to text."""

import math

import torch
import torch.nn.functional as F


def next_token(logits, temperature: float = 1.0, top_k: int | None = None, generator: torch.Generator | None = None):
    """Draw one token for each row of logits (B, V) -> (B,) int64.

    The chances are softmax(logits / temperature), over the `top_k` highest logits if that is given: exactly so many,
    the lower ids of those that tie, and all if there are no more. Temperature 0 takes the highest logit, the lowest id
    of those that tie. Logits may be -inf (never drawn). Raises ValueError naming what makes no sense.
    """
    _check(logits, temperature, top_k)
    if temperature == 0:
        return logits.argmax(dim=-1)  # (B,)
    scores, ids = logits.float().sort(dim=-1, descending=True, stable=True)  # (B, V); stable: ties keep their order
    scores, ids = scores[:, :top_k], ids[:, :top_k]  # (B, K)
    # The highest becomes 0 before the division: then no temperature, however low, gives inf or NaN.
    scores = (scores - scores[:, :1]) / max(temperature, torch.finfo(scores.dtype).tiny)  # (B, K)
    chances = F.softmax(scores, dim=-1)  # (B, K)
    if generator is not None:
        chances = chances.to(generator.device)
    drawn = torch.multinomial(chances, 1, generator=generator).to(ids.device)  # (B, 1), places in the order
    return ids.gather(-1, drawn).squeeze(-1)  # (B,)


def generate(
    model,
    idx,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
):
    """Continue each row of idx (B, T) by N = max_new_tokens tokens -> (B, T + N); the rows begin with idx itself.

    The model sees the last block_size tokens at most, without dropout, and is afterwards in the mode it was in. Raises
    ValueError if there is no token to continue from, and as `next_token` does.
    """
    if idx.dim() != 2 or idx.is_floating_point():
        raise ValueError(f"idx must be whole numbers of shape (B, T), got {idx.dtype} of shape {tuple(idx.shape)}")
    if idx.size(1) == 0:
        raise ValueError("there is no token to continue from: start with at least one, a line end for example")
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens < 0:
        raise ValueError(f"max_new_tokens must be a whole number of at least 0, got {max_new_tokens!r}")
    V, T = model.config.vocab_size, model.config.block_size
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            for _ in range(max_new_tokens):
                logits = model(idx[:, -T:])[:, -1, :V]  # (B, V), after the last token
                token = next_token(logits, temperature, top_k, generator)  # (B,)
                idx = torch.cat((idx, token[:, None]), dim=1)  # (B, one more)
    finally:
        for module, mode in modes:
            module.training = mode
    return idx


def _check(logits, temperature, top_k):
    if logits.dim() != 2 or not logits.is_floating_point() or logits.size(-1) == 0:
        raise ValueError(f"logits must be numbers of shape (B, V), got {logits.dtype} of shape {tuple(logits.shape)}")
    if isinstance(temperature, bool) or not isinstance(temperature, int | float):
        raise ValueError(f"temperature must be a number, got {temperature!r}")
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"temperature must be finite and at least 0, got {temperature}")
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1):
        raise ValueError(f"top_k must be a whole number of at least 1, or None for all, got {top_k!r}")
    highest = logits.float().amax(dim=-1)  # (B,); NaN where a row has one
    if not highest.isfinite().all():
        raise ValueError("the logits hold NaN or inf, or nothing but -inf: the model's weights or inputs are broken")
