"""Models for the tests of `verify` beside those of `gptbook.verify.broken`: look-alikes, and difficult ones."""

import copy
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

from gptbook.verify.broken import CONFIG, C, H, L, NeedsTargets, T, Toy, V, WithLoss  # noqa: F401


class ShiftsItself(nn.Module):
    """A model that is given the tokens as labels, and shifts them itself."""

    def __init__(self):
        super().__init__()
        self.toy = Toy()

    def forward(self, input_ids, labels=None):
        z = self.toy(input_ids)
        loss = None if labels is None else F.cross_entropy(z[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return SimpleNamespace(logits=z, loss=loss)


class FromLayers(nn.Module):
    """Made of PyTorch's own layers, encoder layers with a causal mask, norm first; no final norm."""

    def __init__(self, masked=True, dropout=0.0):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(V, C), nn.Embedding(T, C)
        layer = nn.TransformerEncoderLayer(C, H, 4 * C, dropout, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, L, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(C), nn.Linear(C, V)
        self.masked = masked

    def forward(self, idx):
        T = idx.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(T) if self.masked else None
        x = self.tokens(idx) + self.positions(torch.arange(T))
        return self.head(self.norm(self.layers(x, mask=mask, is_causal=self.masked)))


class Bigram(nn.Module):
    """A table of logits by the current token alone: causal, but blind to positions and to the past."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(V, V)

    def forward(self, idx):
        return self.table(idx)


class Hidden(nn.Module):
    """Calls a model that a copy still shares, because it lies in a closure."""

    def __init__(self):
        super().__init__()
        toy = Toy()
        self.scale = nn.Parameter(torch.ones(()))
        self.shared = toy
        self.call = lambda idx: toy(idx)

    def forward(self, idx):
        return self.call(idx) * self.scale


class CannotCopy(Toy):
    def __deepcopy__(self, memo):
        raise NotImplementedError("this model holds a file")


class CopiesToItself(Toy):
    def __deepcopy__(self, memo):
        return self


def frozen_without_positions():
    """A model whose position table is zero and does not learn, as good as none."""
    model = Toy()
    nn.init.zeros_(model.positions.weight)
    model.positions.weight.requires_grad_(False)
    return model


def trained(steps=30):
    """A right model after some training on one batch."""
    model = Toy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    idx = torch.randint(V, (8, T + 1), generator=torch.Generator().manual_seed(0))
    for _ in range(steps):
        loss = F.cross_entropy(model(idx[:, :-1]).flatten(0, 1), idx[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return copy.deepcopy(model)
