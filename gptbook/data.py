"""From one long row of tokens to what a model is trained and measured on."""

import torch


def split(tokens, fraction: float = 0.9):
    """Cut tokens (N,) once: the first `fraction` of them, int(fraction * N), to train on, the rest held out.

    The two share no token, so no target either. Raises ValueError if one of them would be empty.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction < 1:
        raise ValueError(f"fraction must lie between 0 and 1, got {fraction!r}")
    n = int(fraction * len(tokens))
    if not 0 < n < len(tokens):
        raise ValueError(f"{len(tokens)} tokens are too few to hold some out: use a longer text")
    return tokens[:n], tokens[n:]


def encoded(text: str, tokenizer):
    """The two parts of a text as tokens, train (N,) and validation (M,), each encoded by itself.

    The text is cut, not the row of tokens: so the parts are the same text whatever a token is.
    """
    return tuple(torch.tensor(tokenizer.encode(part), dtype=torch.int64) for part in split(text))


def judged(text: str, tokenizer, tokens) -> str:
    """What the targets among the tokens (N,) of a text stand for: the text without its first token."""
    return text[len(tokenizer.decode(tokens[:1])) :]


def development_split(train):
    """Cut the training part (N,) once more, its last tenth off, to make choices on; validation stays unseen."""
    return split(train, 0.9)


def get_batch(tokens, block_size: int, batch_size: int, generator: torch.Generator | None = None):  # tokens (N,)
    """Random windows of tokens (N,), and the same windows one token further: x (B, T) and y (B, T), both int64.

    Every start 0..N-T-1 is as likely as any other. Raises ValueError if N is below T + 1.
    """
    tokens = _long_enough(tokens, block_size)
    windows = tokens.unfold(0, block_size, 1)  # (N-T+1, T), a view: nothing is copied yet
    starts = torch.randint(len(tokens) - block_size, (batch_size,), generator=generator)  # (B,)
    x, y = windows[starts], windows[starts + 1]  # (B, T) each, and each a copy of its own
    return x.long(), y.long()


def windows(tokens, block_size: int, batch_size: int = 64):
    """All windows of tokens (N,) one after another, to measure a loss: x (B, T) and y (B, T) at a time, both int64.

    Each of the N-1 targets comes exactly once. B is at most `batch_size`; what is left at the end comes last, alone,
    and shorter. Raises ValueError if N is below T + 1.
    """
    tokens = _long_enough(tokens, block_size)
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
    return _windows(tokens, block_size, batch_size)


def _windows(tokens, T, B):  # apart from `windows`, so that its errors come at the call and not at the first batch
    whole = (len(tokens) - 1) // T * T  # targets in windows of full length
    xs, ys = tokens[:whole].view(-1, T), tokens[1 : whole + 1].view(-1, T)
    for start in range(0, len(xs), B):
        yield _copy(xs[start : start + B]), _copy(ys[start : start + B])
    if whole < len(tokens) - 1:
        yield _copy(tokens[whole:-1].view(1, -1)), _copy(tokens[whole + 1 :].view(1, -1))


def _copy(window):  # so that nobody who writes into a batch writes into the text
    return window.to(torch.int64, copy=True)


def _long_enough(tokens, block_size):
    tokens = torch.as_tensor(tokens)
    if tokens.dim() != 1 or tokens.is_floating_point():
        raise ValueError(f"tokens must be one row of whole numbers, got {tokens.dtype} of shape {tuple(tokens.shape)}")
    if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
        raise ValueError(f"block_size must be a whole number of at least 1, got {block_size!r}")
    if len(tokens) < block_size + 1:
        raise ValueError(
            f"this part of the text has {len(tokens)} tokens, a window of block_size {block_size} and its targets need "
            f"{block_size + 1}: use a longer text or a smaller block_size"
        )
    return tokens.contiguous()
