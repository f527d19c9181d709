"""How the checks read the tensors that a reader's function returns."""

import torch

from gptbook.exercises.answers import Wrong, shown


def as_tensor(value, what: str):
    """A tensor that the reader's code gave: any dtype, or nested lists of numbers; returned detached on the CPU."""
    try:
        if isinstance(value, str | bytes) or value is None or (callable(value) and not torch.is_tensor(value)):
            raise TypeError
        try:
            tensor = torch.as_tensor(value)
        except (TypeError, ValueError):
            tensor = torch.stack([torch.as_tensor(row) for row in value])  # a list of tensors
        if tensor.is_complex():
            raise TypeError
        return tensor.detach().cpu()
    except Exception:
        raise Wrong(f"{what} must be a tensor of numbers, got {shown(value)}") from None


def rough(dtype) -> float:
    """How much wider than usual an answer of this dtype may be off: a few of its last bits if it has 16, else 0."""
    return 8 * torch.finfo(dtype).eps if dtype in (torch.float16, torch.bfloat16) else 0.0


def close(mine, true, rtol=1e-5, atol=1e-5) -> bool:
    """Whether `mine` has the shape and the numbers of `true`, as far as its dtype allows; NaN agrees with NaN only."""
    more = rough(mine.dtype)
    return mine.shape == true.shape and torch.allclose(
        mine.double(), true.double(), rtol=max(rtol, more), atol=max(atol, more), equal_nan=True
    )


def kept(given, copies, what: str):
    """Refuse an answer that changed one of the tensors that it was given; `what` is the sentence."""
    for now, before in zip(given, copies, strict=True):
        if now.shape != before.shape or now.dtype != before.dtype or not torch.equal(now, before):
            raise Wrong(what)


def as_square(value, T: int, what: str):
    """A (T, T) matrix in float64, and how far its entries may be off in the precision that they came in."""
    matrix = as_tensor(value, what)
    if tuple(matrix.shape) != (T, T):
        raise Wrong(f"{what} must have the shape ({T}, {T}), got {tuple(matrix.shape)}")
    return matrix.double(), max(1e-5, rough(matrix.dtype))
