"""What pages show of a model: who moves whom, and the stream after every stage."""

import copy
from dataclasses import dataclass

import torch
import torch.nn as nn

from gptbook.model import GPT
from gptbook.modern import ModernGPT
from gptbook.verify.subject import CannotLook, Subject, untouched


def leak_matrix(model: nn.Module, idx: torch.Tensor, vocab_size: int | None = None) -> torch.Tensor:
    """(T, T) D[i, j]: how far the logits at position i move, at most, when token j of idx (B, T) becomes another one.

    In evaluation mode, on a copy. `vocab_size` bounds the other token; without it the model's own configuration does,
    or the width of the logits. Raises ValueError for an idx of another shape.
    """
    if idx.dim() != 2 or idx.is_floating_point() or not idx.numel():
        raise ValueError(f"idx must be whole numbers of shape (B, T), got {idx.dtype} of shape {tuple(idx.shape)}")
    subject = Subject(model, max(2, int(idx.max()) + 1), idx.size(1))
    with untouched(subject.original):
        try:
            subject.probe()
            copied = subject.fresh()
        except CannotLook as problem:
            raise ValueError(f"leak_matrix cannot use this model: {problem}") from None
        base = subject.look(copied, idx)  # (B, T, V)
        V = vocab_size or getattr(getattr(model, "config", None), "vocab_size", None) or base.size(-1)
        rows = torch.zeros(idx.size(1), idx.size(1), device=idx.device)
        for j in range(idx.size(1)):
            changed = idx.clone()
            changed[:, j] = (changed[:, j] + 1) % V
            rows[:, j] = (subject.look(copied, changed) - base).abs().amax(dim=(0, 2))
    return rows


@dataclass(frozen=True)
class Stage:
    """The stream after one stage of the forward pass: its name, its shape, the root of its mean square."""

    name: str
    shape: tuple[int, ...]
    rms: float


def shape_table(model: GPT | ModernGPT, idx: torch.Tensor) -> list[Stage]:
    """What a GPT of this book makes of idx (B, T), stage by stage, from the tokens' vectors to the logits.

    In evaluation mode, observed through hooks on a copy. Raises TypeError for another kind of model.
    """
    if not isinstance(model, GPT | ModernGPT):
        raise TypeError(f"shape_table knows the parts of GPT and ModernGPT only, got a {type(model).__name__}")
    stages: list[Stage] = []

    def note(name, tensor):
        stages.append(Stage(name, tuple(tensor.shape), tensor.float().square().mean().sqrt().item()))

    with untouched(model), torch.no_grad():
        copied = copy.deepcopy(model).eval()
        copied.dropout.register_forward_hook(lambda module, inputs, output: note("embeddings", output))
        for layer, block in enumerate(copied.h, 1):
            # The stream between the two additions of a block is what its second norm reads.
            block.ln_2.register_forward_pre_hook(lambda module, inputs, n=layer: note(f"attention {n}", inputs[0]))
            block.register_forward_hook(lambda module, inputs, output, n=layer: note(f"MLP {n}", output))
        copied.ln_f.register_forward_hook(lambda module, inputs, output: note("final norm", output))
        note("logits", copied(idx))
    return stages
