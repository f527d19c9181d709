"""What changed since GPT-2, as a second model beside `model.py`: the same names, the same shapes, the same stream.

Four things are exchanged, each by one field of the configuration: how a vector is normalised (RMSNorm), how a position
is told (rotary), how many heads share a key and a value (grouped queries), and what stands between the two layers of
the MLP (a gate). With none of them this is the GPT of page 8. With all of them it is a Llama, and SmolLM2 is one.

Shapes as in `model.py`, and G key-value heads, each read by H / G heads.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

from gptbook.model import ACTIVATIONS, GPT

NORMS, POSITIONS = ("rms", "layer"), ("rotary", "learned")
GATES = {"swiglu": F.silu, "geglu": F.gelu}  # activation -> what the gate goes through


@dataclass(frozen=True)
class ModernConfig:
    """The shape of a modern GPT; the defaults are a small Llama.

    `n_kv_head` heads of keys and values serve all `n_head` heads of queries (None: each has its own). `n_inner` is the
    width inside the MLP (None: four times n_embd, with a gate two thirds of that, so that its three matrices weigh as
    much as two). `activation` is "swiglu" or "geglu", with a gate, or one of `model.ACTIVATIONS`, without. Raises
    ValueError or TypeError naming the field that makes no sense.
    """

    vocab_size: int = 65
    block_size: int = 64
    n_layer: int = 4
    n_head: int = 4
    n_kv_head: int | None = None
    n_embd: int = 128
    n_inner: int | None = None
    norm: str = "rms"
    norm_eps: float = 1e-5
    positions: str = "rotary"
    rope_base: float = 10000.0
    activation: str = "swiglu"
    bias: bool = False
    tied: bool = True
    dropout: float = 0.0

    def __post_init__(self):
        for name in ("vocab_size", "block_size", "n_layer", "n_head", "n_kv_head", "n_embd", "n_inner"):
            value = getattr(self, name)
            if value is None and name in ("n_kv_head", "n_inner"):
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be a whole number, got {value!r}")
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name in ("bias", "tied"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        for name in ("norm_eps", "rope_base", "dropout"):
            if isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), int | float):
                raise TypeError(f"{name} must be a number, got {getattr(self, name)!r}")
        for name, known in (("norm", NORMS), ("positions", POSITIONS), ("activation", (*GATES, *ACTIVATIONS))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd must be a multiple of n_head, got {self.n_embd} and {self.n_head}")
        if self.n_head % self.kv_heads:
            raise ValueError(f"n_head must be a multiple of n_kv_head, got {self.n_head} and {self.n_kv_head}")
        if self.positions == "rotary" and self.n_embd // self.n_head % 2:
            raise ValueError(
                f"rotary positions turn pairs: n_embd / n_head must be even, got {self.n_embd // self.n_head}"
            )
        if not 0 < self.norm_eps < math.inf or not 1 < self.rope_base < math.inf:
            raise ValueError(
                f"norm_eps must be above 0 and rope_base above 1, got {self.norm_eps} and {self.rope_base}"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")

    @property
    def kv_heads(self) -> int:
        """G: how many heads of keys and values there are."""
        return self.n_head if self.n_kv_head is None else self.n_kv_head

    @property
    def inner(self) -> int:
        """The width inside the MLP."""
        if self.n_inner is not None:
            return self.n_inner
        return max(1, 8 * self.n_embd // 3) if self.activation in GATES else 4 * self.n_embd


def rotary(config: ModernConfig):
    """The angles by which queries and keys are turned: cosines and sines, (T, D/2) each.

    Pair i of a head turns by rope_base^(-2i/D) for every position. Su et al. 2021, "RoFormer", section 3.2.
    """
    D = config.n_embd // config.n_head
    speed = config.rope_base ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)  # (D/2,)
    angle = torch.arange(config.block_size, dtype=torch.float64)[:, None] * speed  # (T, D/2)
    return angle.cos().float(), angle.sin().float()


def rotate(x, cos, sin):
    """Turn neighbouring pairs of x (B, H, T, D) by their angles (T, D/2): x[2i], x[2i + 1] are a point in a plane."""
    a, b = x[..., 0::2], x[..., 1::2]  # (B, H, T, D/2)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)  # (B, H, T, D)


class CausalSelfAttention(nn.Module):
    """H heads of queries over G heads of keys and values: x (B, T, C) -> (B, T, C); position t reads 0..t.

    Ainslie et al. 2023, "GQA"; with G = H it is the attention of page 5, with rotary positions the scores know how far
    back a key stands.
    """

    def __init__(self, config: ModernConfig):
        super().__init__()
        self.n_head, self.n_kv_head = config.n_head, config.kv_heads
        D = config.n_embd // config.n_head
        self.c_attn = nn.Linear(config.n_embd, (self.n_head + 2 * self.n_kv_head) * D, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout = nn.Dropout(config.dropout)
        self.resid_dropout = nn.Dropout(config.dropout)

    def forward(self, x, turn=None):
        q, k, v = self.project(x, turn)
        return self.read(q, k, v)  # (B, T, C)

    def project(self, x, turn=None):
        """Queries (B, H, T, D), keys and values (B, G, T, D) of x (B, T, C), turned by (cosines, sines) if given."""
        B, T, _ = x.shape
        H, G = self.n_head, self.n_kv_head
        qkv = self.c_attn(x).view(B, T, H + 2 * G, -1).transpose(1, 2)  # (B, H+2G, T, D)
        q, k, v = qkv.split((H, G, G), dim=1)
        return (q, k, v) if turn is None else (rotate(q, *turn), rotate(k, *turn), v)

    def read(self, q, k, v):
        """What T queries (B, H, T, D) find in S + T keys and values (B, G, S+T, D), the last T their own: (B, T, C)."""
        B, H, T, D = q.shape
        S = k.size(2) - T
        k, v = (kept.repeat_interleave(H // self.n_kv_head, dim=1) for kept in (k, v))  # (B, H, S+T, D)
        scores = q @ k.transpose(-2, -1) / math.sqrt(D)  # (B, H, T, S+T)
        future = torch.ones(T, S + T, dtype=torch.bool, device=q.device).triu(S + 1)  # (T, S+T)
        weights = self.attn_dropout(F.softmax(scores.masked_fill(future, float("-inf")), dim=-1))  # (B, H, T, S+T)
        y = (weights @ v).transpose(1, 2).reshape(B, T, H * D)  # (B, T, C)
        return self.resid_dropout(self.c_proj(y))  # (B, T, C)


class MLP(nn.Module):
    """Two linear layers, and beside the first one a gate where the activation has one: x (B, T, C) -> (B, T, C).

    The gate says, number by number, how much of the other layer's output comes through. Shazeer 2020, "GLU Variants
    Improve Transformer".
    """

    def __init__(self, config: ModernConfig):
        super().__init__()
        self.gated = config.activation in GATES
        self.c_fc = nn.Linear(config.n_embd, config.inner, bias=config.bias)
        if self.gated:
            self.c_gate = nn.Linear(config.n_embd, config.inner, bias=config.bias)
        self.c_proj = nn.Linear(config.inner, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)
        self.activation = (GATES | ACTIVATIONS)[config.activation]

    def forward(self, x):
        inner = self.c_fc(x)  # (B, T, inner)
        inner = self.activation(self.c_gate(x)) * inner if self.gated else self.activation(inner)  # (B, T, inner)
        return self.dropout(self.c_proj(inner))  # (B, T, C)


def norm(config: ModernConfig) -> nn.Module:
    """A norm over the C channels: RMSNorm (Zhang and Sennrich 2019) divides by the root of the mean square, no more."""
    if config.norm == "rms":
        return nn.RMSNorm(config.n_embd, eps=config.norm_eps)
    return nn.LayerNorm(config.n_embd, eps=config.norm_eps, bias=config.bias)


class Block(nn.Module):
    """Attention, then the MLP; each reads a normalised copy of the stream and adds to it: x (B, T, C) -> (B, T, C)."""

    def __init__(self, config: ModernConfig):
        super().__init__()
        self.ln_1 = norm(config)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = norm(config)
        self.mlp = MLP(config)

    def forward(self, x, turn=None):
        x = x + self.attn(self.ln_1(x), turn)  # (B, T, C)
        return x + self.mlp(self.ln_2(x))  # (B, T, C)


class ModernGPT(nn.Module):
    """A decoder-only transformer of today: idx (B, T) whole numbers below V -> logits (B, T, V), always.

    Raises ValueError if a row is longer than block_size, or holds a token that the vocabulary lacks.
    """

    def __init__(self, config: ModernConfig):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        if config.positions == "learned":
            self.wpe = nn.Embedding(config.block_size, config.n_embd)
        else:
            for name, table in zip(("cos", "sin"), rotary(config), strict=True):
                self.register_buffer(name, table, persistent=False)  # (T, D/2)
        self.dropout = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = norm(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.wte.weight
        self._init_weights()

    def _init_weights(self):
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for block in self.h:
            for projection in (block.attn.c_proj, block.mlp.c_proj):
                nn.init.normal_(projection.weight, std=0.02 / math.sqrt(2 * self.config.n_layer))

    def forward(self, idx):
        self._check(idx)
        x, turn = self.embed(idx)
        for block in self.h:
            x = block(x, turn)  # (B, T, C)
        return self.lm_head(self.ln_f(x))  # (B, T, V)

    def embed(self, idx, start: int = 0):
        """The stream (B, T, C) of tokens idx (B, T) at positions start, start + 1, ..., and the turns of these.

        The turns are a pair of (T, D/2), or None where positions are learned, and in the stream already.
        """
        here = slice(start, start + idx.size(1))
        if self.config.positions == "learned":
            return self.dropout(self.wte(idx) + self.wpe.weight[here]), None
        return self.dropout(self.wte(idx)), (self.cos[here], self.sin[here])

    _check = GPT._check
