"""A family of small GPTs for the tests of `verify`: a right one, broken ones, and right ones that look unusual.

`Toy()` is right, written apart from gptbook.model. `Toy(fault)` has one mistake that people make, `Toy(odd=...)` one
design that is right but unlike GPT-2. Shapes: B rows, T tokens, C width, H heads, D = C / H, V symbols.
"""

import copy
import math
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

from gptbook.model import GPTConfig

V, T, C, H, L = 31, 12, 32, 4, 2
CONFIG = GPTConfig(vocab_size=V, block_size=T, n_layer=L, n_head=H, n_embd=C)


class Norm(nn.Module):
    """LayerNorm, or what people write instead of it."""

    def __init__(self, fault="", odd=""):
        super().__init__()
        self.fault, self.odd = fault, odd
        self.weight = nn.Parameter(torch.ones(C))
        if odd != "rms norm":
            self.bias = nn.Parameter(torch.zeros(C))

    def forward(self, x):
        if self.odd == "rms norm":
            return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * self.weight
        if self.fault == "norm over positions":
            return F.layer_norm(x, x.shape[1:]) * self.weight + self.bias
        if self.fault == "norm over the batch":
            centred = x - x.mean(0, keepdim=True)
            return centred / (centred.square().mean(0, keepdim=True) + 1e-5).sqrt() * self.weight + self.bias
        return F.layer_norm(x, (C,), self.weight, self.bias)


class Attention(nn.Module):
    def __init__(self, fault="", odd=""):
        super().__init__()
        self.fault, self.odd = fault, odd
        self.query, self.value = nn.Linear(C, C, bias=False), nn.Linear(C, C, bias=False)
        self.key = nn.Linear(C, C, bias=odd == "key bias")
        if fault != "no output projection":
            self.proj = nn.Linear(C, C)
        if fault == "unused parameter":
            self.spare = nn.Linear(C, C)

    def forward(self, x):
        B, T, _ = x.shape
        fault, odd = self.fault, self.odd
        q, k, v = (part(x).view(B, T, H, C // H).transpose(1, 2) for part in (self.query, self.key, self.value))
        if odd == "rotary":
            q, k = rotate(q), rotate(k)
        if fault == "rotary over heads":
            q, k = (rotate(z.transpose(1, 2)).transpose(1, 2) for z in (q, k))
        scores = q @ k.mT / math.sqrt(C // H)  # (B, H, T, T)
        keep = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
        if fault == "mask one ahead":
            keep = torch.ones(T, T, dtype=torch.bool).tril(1)
        if fault in ("own token hidden", "own token hidden, finite"):
            keep = torch.ones(T, T, dtype=torch.bool).tril(-1)
        if fault == "mask inverted":
            keep = torch.ones(T, T, dtype=torch.bool).triu()
        if odd == "window":
            keep = keep & torch.ones(T, T, dtype=torch.bool).triu(-2)
        if odd == "linear bias":
            scores = scores - (torch.arange(T)[:, None] - torch.arange(T)).abs()
        if fault == "no mask" or (fault == "no mask in training" and self.training):
            weights = scores.softmax(-1)
        elif fault == "scores multiplied":
            weights = (scores * keep).softmax(-1)
        elif fault == "mask added":
            weights = (scores + keep.float()).softmax(-1)
        elif fault == "weak fill":
            weights = scores.masked_fill(~keep, -18.0).softmax(-1)
        elif fault == "own token hidden, finite":
            weights = scores.masked_fill(~keep, -1e9).softmax(-1)
        elif fault == "mask after softmax":
            weights = scores.softmax(-1) * keep
        elif odd == "mask after softmax, divided again":
            weights = scores.softmax(-1) * keep
            weights = weights / weights.sum(-1, keepdim=True)
        elif fault == "softmax over queries":
            weights = scores.masked_fill(~keep, -math.inf).softmax(-2)
        elif fault == "softmax over the batch":
            weights = (scores.softmax(0) * keep) / T
        else:
            weights = scores.masked_fill(~keep, -math.inf).softmax(-1)
        if fault == "dropout always on":
            weights = F.dropout(weights, 0.2)
        y = weights @ v  # (B, H, T, D)
        y = y.reshape(B, T, C) if fault == "heads merged askew" else y.transpose(1, 2).reshape(B, T, C)
        return y if fault == "no output projection" else self.proj(y)


def rotate(z):
    """Rotary positions over the last but one axis of z (..., T, D)."""
    half = z.size(-1) // 2
    angle = torch.arange(z.size(-2))[:, None] * 100.0 ** (-torch.arange(half) / half)  # (T, D / 2)
    a, b = z[..., :half], z[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class Block(nn.Module):
    def __init__(self, fault="", odd=""):
        super().__init__()
        self.odd = odd
        self.norm_1, self.norm_2 = Norm(fault, odd), Norm(fault, odd)
        self.attention = Attention(fault, odd)
        self.up, self.down = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)
        if odd in ("zero projections", "zero projections and head"):
            for linear in (self.attention.proj, self.down):
                nn.init.zeros_(linear.weight)
                nn.init.zeros_(linear.bias)

    def mlp(self, x):
        return self.down(F.relu(self.up(x)).square() if self.odd == "squared relu" else F.gelu(self.up(x)))

    def forward(self, x):
        if self.odd == "post-norm":
            x = self.norm_1(x + self.attention(x))
            return self.norm_2(x + self.mlp(x))
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Toy(nn.Module):
    """idx (B, T) -> logits (B, T, V), right unless `fault` says otherwise, and unusual if `odd` says so."""

    def __init__(self, fault="", odd=""):
        super().__init__()
        self.fault, self.odd = fault, odd
        self.tokens = nn.Embedding(V, C)
        nn.init.normal_(self.tokens.weight, std=1.0 if fault == "tied, drawn wide" else 0.02)
        if odd == "sinusoidal":
            waves = torch.arange(T)[:, None] / 100.0 ** (torch.arange(C // 2) / (C // 2))
            self.register_buffer("waves", torch.cat([waves.sin(), waves.cos()], -1))
        elif fault not in ("no position table", "rotary over heads") and odd not in ("rotary", "linear bias"):
            self.positions = nn.Embedding(T, C)
            nn.init.normal_(self.positions.weight, std=0.02)
            if odd == "zero positions":
                nn.init.zeros_(self.positions.weight)
        blocks = [Block(fault, odd) for _ in range(L)]
        if fault == "same block twice":
            blocks = [blocks[0]] * L
        self.blocks = blocks if fault == "blocks in a list" else nn.ModuleList(blocks)
        if fault != "no final norm":
            self.norm = Norm(fault, odd)
        self.head = nn.Linear(C, 64 if odd == "padded head" else V, bias=False)
        nn.init.normal_(self.head.weight, std=0.02)
        if odd == "tied" or fault == "tied, drawn wide":
            self.head.weight = self.tokens.weight
        if fault == "tied by copying":
            self.head.weight = nn.Parameter(self.tokens.weight.clone())
        if odd == "zero projections and head":
            nn.init.zeros_(self.head.weight)
        if fault == "gains drawn around 0":
            for p in self.parameters():
                nn.init.normal_(p, std=3.0)
        if fault == "dropout never applied":
            self.dropout = nn.Dropout(0.1)
        if odd == "dropout":
            self.dropout = nn.Dropout(0.1)

    def stream(self, idx):
        B, T = idx.shape
        x = self.tokens(idx)
        if self.odd == "sinusoidal":
            x = x + self.waves[:T]
        elif self.fault == "positions not added":
            pass
        elif self.fault == "positions all 0":
            x = x + self.positions(torch.zeros(T, dtype=torch.long))
        elif self.fault == "positions in pairs":
            x = x + self.positions(torch.arange(T) // 2)
        elif self.fault == "positions by row":
            x = x + self.positions(torch.arange(B))[:, None]
        elif hasattr(self, "positions"):
            x = x + self.positions(torch.arange(T))
        if self.odd == "dropout":
            x = self.dropout(x)
        for block in self.blocks:
            x = block(x.detach() if self.fault == "stream detached" else x)
        return x if self.fault == "no final norm" else self.norm(x)

    def forward(self, idx):
        if self.fault == "only a full context" and idx.size(1) != T:
            raise RuntimeError(f"The size of tensor a ({idx.size(1)}) must match the size of tensor b ({T})")
        z = self.head(self.stream(idx))
        if self.fault == "probabilities":
            return z.softmax(-1)
        if self.fault == "transposed":
            return z.transpose(1, 2)
        if self.fault == "narrow head":
            return z[..., :-1]
        if self.fault == "divides by zero":
            return z / (z.sum(-1, keepdim=True) * 0)
        if self.fault == "no gradient":
            return z.detach()
        if self.fault == "keeps state":
            self.calls = getattr(self, "calls", 0) + 1
            return z * self.calls
        return z


class WithLoss(nn.Module):
    """A model in the manner of many scripts: logits, or (logits, loss) when targets are given."""

    def __init__(self, fault="", odd="", toy=None):
        super().__init__()
        self.toy, self.fault, self.odd = toy or Toy(), fault, odd

    def forward(self, idx, targets=None):
        z = self.toy(idx)
        if targets is None:
            return (z[:, -1:] if self.odd == "last position only" else z), None
        loss = self.loss(z, idx, targets)
        if self.fault == "targets leak":
            z = z + F.one_hot(targets, V)
        if self.odd == "flattened":
            return z.flatten(0, 1), loss
        if self.odd == "loss first":
            return loss, z
        if self.odd == "object":
            return SimpleNamespace(logits=z, loss=loss)
        if self.odd == "dictionary":
            return {"loss": loss, "logits": z}
        return z, loss

    def loss(self, z, idx, targets):
        B, T, V = z.shape
        if self.fault == "targets not shifted":
            targets = idx
        if self.fault == "shifted twice":
            z, targets = z[:, :-1], targets[:, 1:]
        if self.fault == "viewed":
            return F.cross_entropy(z.reshape(B, V, T), targets)
        if self.fault == "softmax in front":
            z = z.softmax(-1)
        reduction = "sum" if self.fault == "summed" else "mean"
        return F.cross_entropy(z.flatten(0, 1), targets.flatten(), reduction=reduction)


class NeedsTargets(nn.Module):
    """Forward in the manner of a first draft: targets have no default value."""

    def __init__(self, strict=False):
        super().__init__()
        self.toy, self.strict = Toy(), strict

    def forward(self, idx, targets):
        z = self.toy(idx)
        if targets is None and not self.strict:
            return z, None
        return z, F.cross_entropy(z.flatten(0, 1), targets.flatten())


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
