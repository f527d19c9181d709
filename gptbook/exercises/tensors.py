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


def as_square(value, T: int, what: str):
    """A (T, T) matrix in float64, and how far its entries may be off in the precision that they came in."""
    matrix = as_tensor(value, what)
    if tuple(matrix.shape) != (T, T):
        raise Wrong(f"{what} must have the shape ({T}, {T}), got {tuple(matrix.shape)}")
    tolerance = 8 * torch.finfo(matrix.dtype).eps if matrix.dtype in (torch.float16, torch.bfloat16) else 1e-5
    return matrix.double(), tolerance
