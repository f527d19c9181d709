"""From logits to a token, and from a model to text."""

import math
from contextlib import contextmanager

import torch
import torch.nn.functional as F


def probabilities(logits, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None):
    """The chances from which the next token is drawn: logits (..., V) -> (..., V), each row sums to 1.

    They are softmax(logits / temperature), at temperature 0 all on the highest logit. `top_k` then keeps the k
    likeliest tokens, and all if there are no more. `top_p` keeps the fewest of the likeliest that hold p of the chances
    together, one at least (the nucleus: Holtzman et al. 2020). Of tokens that tie, the lower ids are kept. What is kept
    is divided by its sum, after each of the two. Logits may be -inf (chance 0). Raises ValueError naming what makes no
    sense.
    """
    _check(logits, temperature, top_k, top_p)
    ranked, ids = _ranked(logits, temperature, top_k, top_p)
    return torch.zeros(logits.shape, dtype=ranked.dtype, device=logits.device).scatter(-1, ids, ranked)  # (..., V)


def _ranked(logits, temperature, top_k, top_p):
    """The chances from the highest down, and the ids they belong to: both (..., K), K as many as can be kept."""
    scores, ids = logits.float().sort(dim=-1, descending=True, stable=True)  # (..., V); stable: ties keep their order
    kept = 1 if temperature == 0 else top_k  # temperature 0 is a choice of one, never a division
    scores, ids = scores[..., :kept], ids[..., :kept]  # (..., K)
    # The highest becomes 0 before the division: then no temperature, however low, gives inf or NaN.
    limits = torch.finfo(scores.dtype)
    scores = (scores - scores[..., :1]) / min(max(temperature, limits.tiny), limits.max)  # (..., K)
    chances = F.softmax(scores, dim=-1)  # (..., K), falling
    if top_p is not None and top_p < 1:  # a p of 1 keeps all; sums that round to 1 too early would end the row
        before = F.pad(chances.cumsum(dim=-1)[..., :-1], (1, 0))  # (..., K): what the likelier ones hold together
        outside = before >= top_p
        outside[..., 0] = False  # the likeliest stays, for a p of 0 too
        chances = chances.masked_fill(outside, 0.0)
        chances = chances / chances.sum(dim=-1, keepdim=True)
    return chances, ids


def next_token(
    logits,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
    top_p: float | None = None,
):
    """Draw one token for each row of logits (B, V) -> (B,) int64, with the chances that `probabilities` says.

    A pure function of the logits and of the generator's state. Temperature 0 draws nothing: it takes the highest
    logit, the lowest id of those that tie. Raises ValueError as `probabilities` does.
    """
    if logits.dim() != 2 or not logits.is_floating_point() or logits.size(-1) == 0:
        raise ValueError(f"logits must be numbers of shape (B, V), got {logits.dtype} of shape {tuple(logits.shape)}")
    _check(logits, temperature, top_k, top_p)
    if temperature == 0:
        return logits.float().argmax(dim=-1)  # (B,), in the precision of `probabilities`
    chances, ids = _ranked(logits, temperature, top_k, top_p)  # (B, K) each
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
    top_p: float | None = None,
):
    """Continue each row of idx (B, T) by N = max_new_tokens tokens -> (B, T + N); the rows begin with idx itself.

    The model sees the last block_size tokens at most, without dropout, and is afterwards in the mode it was in. Raises
    ValueError if there is no token to continue from, and as `next_token` does.
    """
    check_request(idx, max_new_tokens)
    V, T = model.config.vocab_size, model.config.block_size
    with evaluating(model), torch.inference_mode():
        for _ in range(max_new_tokens):
            logits = model(idx[:, -T:])[:, -1, :V]  # (B, V), after the last token
            token = next_token(logits, temperature, top_k, generator, top_p)  # (B,)
            idx = torch.cat((idx, token[:, None]), dim=1)  # (B, length): one token longer
    return idx.clone()  # outside, so that it is a tensor like any other


@contextmanager
def evaluating(model):
    """Evaluation mode and no gradients inside; afterwards every module is in the mode it was in, also on an error."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield model
    finally:
        for module, mode in modes:
            module.training = mode


def check_request(idx, max_new_tokens):
    """Raise ValueError if idx is not whole numbers (B, T) with T of 1 or more, or max_new_tokens no count."""
    if not isinstance(idx, torch.Tensor):
        raise ValueError(f"idx must be a tensor of tokens (B, T), got a {type(idx).__name__}: encode the text first")
    if idx.dim() != 2 or idx.is_floating_point():
        raise ValueError(f"idx must be whole numbers of shape (B, T), got {idx.dtype} of shape {tuple(idx.shape)}")
    if idx.size(1) == 0:
        raise ValueError("there is no token to continue from: start with at least one, a line end for example")
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens < 0:
        raise ValueError(f"max_new_tokens must be a whole number of at least 0, got {max_new_tokens!r}")


def _check(logits, temperature, top_k, top_p):
    if logits.dim() == 0 or not logits.is_floating_point() or logits.size(-1) == 0:
        raise ValueError(f"logits must be numbers of shape (..., V), got {logits.dtype} of shape {tuple(logits.shape)}")
    if isinstance(temperature, bool) or not isinstance(temperature, int | float):
        raise ValueError(f"temperature must be a number, got {temperature!r}")
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature must be finite and at least 0, got {temperature}")
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1):
        raise ValueError(f"top_k must be a whole number of at least 1, or None for all, got {top_k!r}")
    if top_p is not None and (isinstance(top_p, bool) or not isinstance(top_p, int | float) or not 0 <= top_p <= 1):
        raise ValueError(f"top_p must lie between 0 and 1, or be None for all, got {top_p!r}")
    highest = logits.float().amax(dim=-1)  # (B,); NaN where a row has one
    if not highest.isfinite().all():
        raise ValueError("the logits hold NaN or inf, or nothing but -inf: the model's weights or inputs are broken")
