"""The GPT of this book, read from top to bottom.

Shapes, here and everywhere: B rows in a batch, T tokens in a row, C width of the stream, H heads,
D = C / H width of a head, V symbols in the vocabulary. Loss, sampling and training live elsewhere:
a model maps tokens to logits and does nothing else.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

ACTIVATIONS = {"gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu}
INITS = ("torch", "gpt2")


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT; the defaults are the book's own small model, with 816,640 parameters.

    `init` is "torch" (PyTorch's own initial values) or "gpt2" (N(0, 0.02), biases zero). `scale_residual` draws the
    two output projections of every block from N(0, 0.02 / sqrt(2 L)), as GPT-2 does. Raises ValueError or TypeError
    naming the field that makes no sense.
    """

    vocab_size: int = 65
    block_size: int = 64
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 128
    dropout: float = 0.0
    activation: str = "gelu"
    qkv_bias: bool = False
    head_bias: bool = False
    tied: bool = False
    init: str = "torch"
    scale_residual: bool = True

    def __post_init__(self):
        for name in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be a whole number, got {value!r}")
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name in ("qkv_bias", "head_bias", "tied", "scale_residual"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd must be a multiple of n_head, got {self.n_embd} and {self.n_head}")
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, int | float):
            raise TypeError(f"dropout must be a number, got {self.dropout!r}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")
        for name, known in (("activation", tuple(ACTIVATIONS)), ("init", INITS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")


class CausalSelfAttention(nn.Module):
    """H heads of masked, scaled dot-product attention, packed into two matrix products.

    x (B, T, C) -> (B, T, C); position t reads positions 0..t. Vaswani et al. 2017, section 3.2; pages 4 and 5.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.qkv_bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.attn_dropout = nn.Dropout(config.dropout)
        self.resid_dropout = nn.Dropout(config.dropout)
        past = torch.ones(config.block_size, config.block_size, dtype=torch.bool).tril()
        self.register_buffer("past", past, persistent=False)  # (T, T)

    def forward(self, x):
        B, T, C = x.shape
        qkv = self.c_attn(x).view(B, T, 3, self.n_head, C // self.n_head)  # (B, T, 3, H, D)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, H, T, D)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # (B, H, T, T)
        scores = scores.masked_fill(~self.past[:T, :T], float("-inf"))  # (B, H, T, T)
        weights = self.attn_dropout(F.softmax(scores, dim=-1))  # (B, H, T, T), rows sum to 1
        y = (weights @ v).transpose(1, 2).reshape(B, T, C)  # (B, T, C)
        return self.resid_dropout(self.c_proj(y))  # (B, T, C)


class MLP(nn.Module):
    """Two linear layers with an activation between, four times as wide inside: x (B, T, C) -> (B, T, C); page 6."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x):
        x = self.activation(self.c_fc(x))  # (B, T, 4C)
        return self.dropout(self.c_proj(x))  # (B, T, C)


class Block(nn.Module):
    """Attention, then the MLP; each reads a normalised copy of the stream and adds to it: x (B, T, C) -> (B, T, C).

    This is pre-norm, as in GPT-2 (Radford et al. 2019, section 2.3); page 6.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = MLP(config)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))  # (B, T, C)
        return x + self.mlp(self.ln_2(x))  # (B, T, C)


class GPT(nn.Module):
    """A decoder-only transformer: idx (B, T) whole numbers below V -> logits (B, T, V), always; page 8.

    Raises ValueError if a row is longer than block_size, or holds a token that the vocabulary lacks.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=config.head_bias)
        if config.tied:
            self.lm_head.weight = self.wte.weight
        self._init_weights()

    def _init_weights(self):
        if self.config.init == "gpt2":
            for module in self.modules():
                if isinstance(module, nn.Linear | nn.Embedding):
                    nn.init.normal_(module.weight, std=0.02)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)
        if self.config.scale_residual:
            for block in self.h:
                for projection in (block.attn.c_proj, block.mlp.c_proj):
                    nn.init.normal_(projection.weight, std=0.02 / math.sqrt(2 * self.config.n_layer))

    def forward(self, idx):
        self._check(idx)
        position = torch.arange(idx.size(1), device=idx.device)  # (T,)
        x = self.dropout(self.wte(idx) + self.wpe(position))  # (B, T, C)
        for block in self.h:
            x = block(x)  # (B, T, C)
        return self.lm_head(self.ln_f(x))  # (B, T, V)

    def _check(self, idx):
        V, T = self.config.vocab_size, self.config.block_size
        if idx.dim() != 2 or idx.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"idx must be whole numbers of shape (B, T), got {idx.dtype} of shape {tuple(idx.shape)}")
        if not 0 < idx.size(1) <= T:
            raise ValueError(f"idx has {idx.size(1)} tokens a row, the model reads 1 to {T}: crop it to block_size")
        if torch.compiler.is_compiling():
            return  # compiled code cannot stop to look at numbers: whoever compiles has looked
        if idx.device.type == "cpu" and idx.numel() and (idx.min() < 0 or idx.max() >= V):
            raise ValueError(f"idx holds tokens outside 0..{V - 1}: the tokenizer and vocab_size disagree")
