"""Muon: an optimizer for the matrices of the blocks, which turns every step into one that acts on all directions alike.

The gradient of a matrix, averaged over time, is mostly a few directions, and a step along it hardly moves in the rest.
Muon replaces its singular values by ones, or nearly: Jordan et al. 2024, "Muon". The rest, embeddings and norms, stays
with AdamW.
"""

import torch

STEPS = 5  # of the iteration below; what was above 0.0052 lies between 0.68 and 1.14 after them
A, B, C = 3.4445, -4.7750, 2.0315  # of Jordan's polynomial: steep at 0, and within a band around 1 from then on


@torch.no_grad()
def orthogonalised(G, dtype: torch.dtype = torch.float32):
    """G (..., m, n) with its singular values moved near 1 and its singular vectors kept, computed in `dtype`.

    Newton and Schulz's iteration: a polynomial in G that needs products of matrices alone. Bernstein and Newhouse 2024.
    Raises ValueError for what is no matrix of real numbers.
    """
    if G.dim() < 2 or not G.is_floating_point():
        raise ValueError(f"orthogonalised needs (..., m, n) real numbers, got {G.dtype} of shape {tuple(G.shape)}")
    X = G.to(dtype).reshape(G.shape[:-2].numel(), *G.shape[-2:])  # one stack of matrices
    if tall := X.size(-2) > X.size(-1):
        X = X.mT
    X = X / (X.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).to(dtype)  # no singular value is above 1
    for _ in range(STEPS):
        gram = X @ X.mT
        factor = torch.baddbmm(gram, gram, gram, beta=B, alpha=C)  # B gram + C gram gram, in one pass
        X = torch.baddbmm(X, factor, X, beta=A)  # A X + factor X
    return (X.mT if tall else X).reshape(G.shape).to(G.dtype)


class Muon(torch.optim.Optimizer):
    """Steps of one size in all directions, for matrices only.

    `rows` of a group says how many rows each of the matrices has that lie in one parameter on top of each other, as
    those of queries, keys and values do; None where it is one. Matrices of one shape are handled together, in `dtype`.
    """

    def __init__(self, params, lr: float, momentum: float = 0.95, weight_decay: float = 0.0, dtype=torch.float32):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "rows": None})
        self.dtype = dtype

    @torch.no_grad()
    def step(self):
        """Move every parameter that has a gradient."""
        stacks = {}  # shape, wide side last -> the matrices of that shape, as (parameter's part, update, learning rate)
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            for p in parameters:
                if "momentum" not in self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
            averages = [self.state[p]["momentum"] for p in parameters]
            gradients = [p.grad for p in parameters]
            torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])
            updates = torch._foreach_lerp(gradients, averages, group["momentum"])  # Nesterov: a look ahead
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            for parameter, update in zip(parameters, updates, strict=True):
                rows = group["rows"] or [parameter.size(0)]
                for part, turned in zip(parameter.split(rows), update.split(rows), strict=True):
                    # A matrix that makes many numbers of few may take larger steps: Bernstein 2025.
                    rate = group["lr"] * max(1.0, part.size(0) / part.size(1)) ** 0.5
                    if part.size(0) > part.size(1):
                        part, turned = part.mT, turned.mT
                    stacks.setdefault(part.shape, []).append((part, turned, rate))
        for items in stacks.values():
            parts, turned, rates = zip(*items, strict=True)
            for part, update, rate in zip(parts, orthogonalised(torch.stack(turned), self.dtype), rates, strict=True):
                part.sub_(update, alpha=rate)


class Together:
    """Several optimizers for one model, used as if they were one."""

    def __init__(self, *optimizers: torch.optim.Optimizer):
        self.optimizers = optimizers
        self.state = optimizers[0].state
        for optimizer in optimizers[1:]:
            optimizer.state = self.state  # each parameter belongs to one of them, so they can share it

    @property
    def param_groups(self) -> list[dict]:
        """The groups of all."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def zero_grad(self, set_to_none: bool = True):
        """Forget all gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)

    def step(self):
        """One step of each."""
        for optimizer in self.optimizers:
            optimizer.step()
