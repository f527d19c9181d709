"""What changed since GPT-2, as a second model beside `model.py`: the same names, the same shapes, the same stream.

Four things are exchanged, each by one field of the configuration: how a vector is normalised (RMSNorm), how a position
is told (rotary), how many heads share a key and a value (grouped queries), and what stands between the two layers of
the MLP (a gate). With none of them this is the GPT of page 8. With all of them it is a Llama, and SmolLM2 is one.
Five more, later than that, are off unless asked for: a square behind the ReLU, norms without a gain, a norm for queries
and keys, one for the embedding, and an embedding of the last few tokens together. So is dropout of whole channels, and
of what was looked up.

Shapes as in `model.py`, and G heads of keys and values, each read by H / G heads of queries; N tokens are looked up
together, at most.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

from gptbook import model as classic
from gptbook.model import GPT

ACTIVATIONS = classic.ACTIVATIONS | {"relu2": lambda x: F.relu(x).square()}  # So et al. 2021, "Primer"
NORMS, POSITIONS = ("rms", "layer"), ("rotary", "learned")
GATES = {"swiglu": F.silu, "geglu": F.gelu}  # activation -> what the gate goes through
LARGE = 2**17  # numbers in a matrix from which on sharing it out pays


@dataclass(frozen=True)
class ModernConfig:
    """The shape of a modern GPT; the defaults are a small Llama.

    `n_kv_head` heads of keys and values serve all `n_head` heads of queries (None: each has its own). `n_inner` is the
    width inside the MLP (None: four times n_embd, with a gate two thirds of that, so that its three matrices weigh as
    much as two). `activation` is "swiglu" or "geglu", with a gate, or one of ACTIVATIONS, without. `gain` gives each
    norm a factor a channel; `qk_norm` divides each query and key by its size, `embedding_norm` the embedding.
    The last 2 to `ngrams` tokens are looked up together in tables of `ngram_rows` rows and `ngram_width` columns each;
    `ngram_rows` is best a prime. `ngram_dropout` of the rows that were looked up are left out in training, each by
    itself, and `channel_dropout` of the channels of what attention and MLP add, at all positions of a text at once.
    Raises ValueError or TypeError naming the field that makes no sense.
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
    channel_dropout: float = 0.0
    gain: bool = True
    qk_norm: bool = False
    embedding_norm: bool = False
    ngrams: int = 1
    ngram_rows: int = 16381
    ngram_width: int = 64
    ngram_dropout: float = 0.0

    def __post_init__(self):
        for name in (
            "vocab_size", "block_size", "n_layer", "n_head", "n_kv_head", "n_embd", "n_inner", "ngrams", "ngram_rows",
            "ngram_width",
        ):  # fmt: skip
            value = getattr(self, name)
            if value is None and name in ("n_kv_head", "n_inner"):
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be a whole number, got {value!r}")
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name in ("bias", "tied", "gain", "qk_norm", "embedding_norm"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        bounds = {"norm_eps": (0, math.inf), "rope_base": (1, math.inf)}
        bounds |= dict.fromkeys(("dropout", "channel_dropout", "ngram_dropout"), (0, 1))
        for name, (least, below) in bounds.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"{name} must be a number, got {value!r}")
            if not least <= value < below:
                raise ValueError(f"{name} must be at least {least} and below {below}, got {value}")
        for name, known in (("norm", NORMS), ("positions", POSITIONS), ("activation", (*GATES, *ACTIVATIONS))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.ngrams > self.block_size:
            raise ValueError(f"ngrams must be at most block_size, got {self.ngrams} and {self.block_size}")
        if self.ngrams > 1 and math.gcd(self.ngram_rows, self.vocab_size + 1) > 1:  # early tokens would count less
            raise ValueError(
                f"ngram_rows must share no factor with vocab_size + 1, got {self.ngram_rows} and "
                f"{self.vocab_size + 1}: take a prime"
            )
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd must be a multiple of n_head, got {self.n_embd} and {self.n_head}")
        if self.n_head % self.kv_heads:
            raise ValueError(f"n_head must be a multiple of n_kv_head, got {self.n_head} and {self.n_kv_head}")
        if self.positions == "rotary" and self.head_size % 2:
            raise ValueError(f"rotary positions turn pairs: n_embd / n_head must be even, got {self.head_size}")

    @property
    def head_size(self) -> int:
        """D: the width of a head."""
        return self.n_embd // self.n_head

    @property
    def kv_heads(self) -> int:
        """G: how many heads of keys and values there are."""
        return self.n_head if self.n_kv_head is None else self.n_kv_head

    @property
    def inner(self) -> int:
        """The width inside the MLP."""
        if self.n_inner is not None:
            return self.n_inner
        return 8 * self.n_embd // 3 if self.activation in GATES else 4 * self.n_embd


def rotary(config: ModernConfig):
    """The turns of positions 0 to T - 1: cosines and sines (T, D/2), a column for each pair of a head's channels.

    Pair i turns by rope_base^(-2i/D) from each position to the next. Su et al. 2021, "RoFormer", section 3.2.
    """
    D = config.head_size
    speed = float(config.rope_base) ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)  # (pairs,)
    angle = torch.arange(config.block_size, dtype=torch.float64)[:, None] * speed  # (T, pairs)
    return angle.cos().float(), angle.sin().float()


def rotate(x, cos, sin):
    """x (..., T, D) with its channels 2i and 2i + 1, as a point in a plane, turned by angle i: cos, sin (T, D/2)."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)  # (..., T, pairs)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)  # (..., T, 2pairs)


class Linear(nn.Linear):
    """A linear layer, x (..., in) -> (..., out), that uses all threads where x is a single vector.

    Such a product takes as long as reading the matrix does, and PyTorch lets one thread read it. Here each thread has
    its share of the rows, as one product of a batch.
    """

    def forward(self, x):
        if x.numel() > self.in_features or self.weight.numel() < LARGE or x.device.type != "cpu":
            return super().forward(x)
        n = torch.get_num_threads()
        if n == 1 or self.out_features % n or not self.weight.is_contiguous():
            return super().forward(x)
        shares = self.weight.view(n, -1, self.in_features)  # nothing is copied
        y = torch.bmm(x.reshape(1, 1, -1).expand(n, 1, -1), shares.mT).view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias


class SharedDropout(nn.Dropout):
    """Dropout with one draw for all that lies along `dim`, which is kept or left out as a whole: x -> x's shape.

    To draw takes long on a processor, and here there is little to draw. Along positions: Gal and Ghahramani 2016, "A
    Theoretically Grounded Application of Dropout in Recurrent Neural Networks".
    """

    def __init__(self, p: float, dim: int):
        super().__init__(p)
        self.dim = dim

    def forward(self, x):
        if not self.training or self.p == 0:
            return x
        return x * super().forward(torch.ones_like(x.narrow(self.dim, 0, 1)))


class CausalSelfAttention(nn.Module):
    """H heads of queries over G heads of keys and values: x (B, T, C) -> (B, T, C); position t reads positions 0..t.

    Head h of the queries reads head h // (H / G) of the others: Ainslie et al. 2023, "GQA". With G = H and no turn it
    is the attention of page 5.
    """

    def __init__(self, config: ModernConfig):
        super().__init__()
        self.n_head, self.n_kv_head = config.n_head, config.kv_heads
        self.shared = self.n_head // self.n_kv_head  # how many heads of queries read the same keys and values
        self.eps = config.norm_eps if config.qk_norm else None
        width = (self.n_head + 2 * self.n_kv_head) * config.head_size
        self.c_attn = Linear(config.n_embd, width, bias=config.bias)
        self.c_proj = Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout = nn.Dropout(config.dropout)
        self.resid_dropout = nn.Dropout(config.dropout)

    def forward(self, x, turn=None):
        q, k, v = self.project(x, turn)
        weights = self.attn_dropout(self.weights(q, k))  # (B, H, T, T), rows sum to 1
        return self.resid_dropout(self.c_proj(self.read(weights, v)))  # (B, T, C)

    def project(self, x, turn=None):
        """Queries (B, H, T, D), keys and values (B, G, T, D) of x (B, T, C); a turn (cos, sin) is for the first two."""
        H, G = self.n_head, self.n_kv_head
        qkv = self.c_attn(x).unflatten(-1, (H + 2 * G, -1)).transpose(1, 2)  # (B, H+2G, T, D)
        qk, v = qkv.split((H + G, G), dim=1)
        if self.eps is not None:  # all queries and keys of one length: Henry et al. 2020
            qk = F.rms_norm(qk, qk.shape[-1:], eps=self.eps)
        q, k = (qk if turn is None else rotate(qk, *turn)).split((H, G), dim=1)
        return q, k, v

    def weights(self, q, k):
        """How much T queries (B, H, T, D) read S + T keys (B, G, S+T, D), the last T their own: (B, H, T, S+T)."""
        (B, H, T, D), S, shared = q.shape, k.size(-2) - q.size(-2), self.shared
        # All that reads the same keys is one matrix: no keys are copied for each of the heads.
        q = q.reshape(B, H // shared, shared * T, D) / math.sqrt(D)  # (B, G, shared*T, D)
        scores = (q @ k.transpose(-2, -1)).view(B, H, T, S + T)  # (B, H, T, S+T)
        if T > 1:  # a token alone has no future
            place = torch.arange(S + T, dtype=torch.int32, device=q.device)  # (S+T,)
            future = place > place[S:, None]  # (T, S+T)
            scores = scores.masked_fill(future, float("-inf"))  # (B, H, T, S+T)
        return F.softmax(scores, dim=-1)

    def read(self, weights, v):
        """What weights (B, H, T, S+T) make of values (B, G, S+T, D), the heads side by side: (B, T, C)."""
        (B, H, T, _), shared = weights.shape, self.shared
        y = weights.reshape(B, H // shared, shared * T, v.size(-2)) @ v  # (B, G, shared*T, D)
        return y.view(B, H, T, v.size(-1)).transpose(1, 2).flatten(2)  # (B, T, C)


class MLP(nn.Module):
    """Two linear layers, and a gate beside the first where the activation has one: x (B, T, C) -> (B, T, C).

    The gate says, number by number, how much of the first layer's output comes through. Shazeer 2020, "GLU Variants
    Improve Transformer".
    """

    def __init__(self, config: ModernConfig):
        super().__init__()
        self.c_fc = Linear(config.n_embd, config.inner, bias=config.bias)
        self.c_gate = Linear(config.n_embd, config.inner, bias=config.bias) if config.activation in GATES else None
        self.c_proj = Linear(config.inner, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)
        self.activation = (GATES | ACTIVATIONS)[config.activation]

    def forward(self, x):
        return self.dropout(self.c_proj(self.inside(x)))  # (B, T, C)

    def inside(self, x):
        """What stands between the layers: x (B, T, C) -> (B, T, inner)."""
        if self.c_gate is None:
            return self.activation(self.c_fc(x))  # (B, T, inner)
        return self.activation(self.c_gate(x)) * self.c_fc(x)  # (B, T, inner)


class Ngrams(nn.Module):
    """What the last 2 to N tokens together add to the stream, for each of tokens idx (B, T): (B, T, C).

    There are V^n rows of n tokens, more than a table can have. Each length has a table of R rows, and rows of tokens
    share one where the remainders of their numbers are the same. Pagnoni et al. 2024, "Byte Latent Transformer".
    """

    def __init__(self, config: ModernConfig):
        super().__init__()
        self.lengths, self.rows, self.nothing = config.ngrams - 1, config.ngram_rows, config.vocab_size
        self.table = nn.Embedding(self.lengths * self.rows, config.ngram_width)  # all tables, one below the other
        self.dropout = SharedDropout(config.ngram_dropout, dim=-1)
        self.mix = Linear(self.lengths * config.ngram_width, config.n_embd, bias=False)

    def forward(self, idx, before=None, whole: bool = False):
        found = self.table(self.places(idx, before))  # (B, T, lengths, width)
        return self.mix((found if whole else self.dropout(found)).flatten(2))  # (B, T, C)

    def places(self, idx, before=None):
        """The row of each length for each of tokens idx (B, T) that follow `before` (B, N-1): (B, T, N-1).

        A token V stands where nothing is known; that is everywhere before idx, if `before` is None. Raises ValueError
        if `before` has another shape.
        """
        N, T = self.lengths + 1, idx.size(1)
        before = idx.new_full((idx.size(0), N - 1), self.nothing) if before is None else before
        if before.shape != (idx.size(0), N - 1):
            raise ValueError(f"before must be the last {N - 1} tokens of {idx.size(0)} rows, got {tuple(before.shape)}")
        text = torch.cat((before, idx), dim=1).long()  # (B, N-1+T)
        number, places = text, []
        for i in range(N - 1):
            # Tokens as the digits of a number in base V + 1, and the remainder of that; a prime R mixes them best.
            number = (number[:, :-1] * (self.nothing + 1) + text[:, i + 1 :]) % self.rows
            places.append(number[:, -T:] + i * self.rows)  # (B, T)
        return torch.stack(places, dim=-1)


def norm(config: ModernConfig) -> nn.Module:
    """A norm over the C channels; RMSNorm divides by the root of the mean square, no more: Zhang and Sennrich 2019."""
    if config.norm == "rms":
        return nn.RMSNorm(config.n_embd, eps=config.norm_eps, elementwise_affine=config.gain)
    return nn.LayerNorm(config.n_embd, eps=config.norm_eps, elementwise_affine=config.gain, bias=config.bias)


class Block(nn.Module):
    """Attention, then the MLP; each reads a normalised copy of the stream and adds to it: x (B, T, C) -> (B, T, C)."""

    def __init__(self, config: ModernConfig):
        super().__init__()
        self.ln_1 = norm(config)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = norm(config)
        self.mlp = MLP(config)
        self.dropout = SharedDropout(config.channel_dropout, dim=1)

    def forward(self, x, turn=None):
        x = x + self.dropout(self.attn(self.ln_1(x), turn))  # (B, T, C)
        return x + self.dropout(self.mlp(self.ln_2(x)))  # (B, T, C)


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
            cos, sin = rotary(config)
            self.register_buffer("cos", cos, persistent=False)  # (T, pairs)
            self.register_buffer("sin", sin, persistent=False)  # (T, pairs)
        self.ngrams = Ngrams(config) if config.ngrams > 1 else None
        self.ln_e = norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = norm(config)
        self.lm_head = Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.wte.weight
        self._init_weights()

    def _init_weights(self):
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif name == "ngrams.mix.weight":  # so that all n-grams together begin as large as a token's embedding
                nn.init.normal_(parameter, std=parameter.size(1) ** -0.5)
            elif parameter.dim() == 2:
                # N(0, 0.02), and less for what is added to the stream, as in GPT-2.
                added = name.endswith("c_proj.weight")
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * self.config.n_layer) if added else 0.02)

    def forward(self, idx):
        self._check(idx)
        x, turn = self.embed(idx)
        x = self.dropout(x)  # (B, T, C)
        for block in self.h:
            x = block(x, turn)  # (B, T, C)
        return self.lm_head(self.ln_f(x))  # (B, T, V)

    def embed(self, idx, start: int = 0, before=None, whole: bool = False):
        """The stream (B, T, C) of tokens idx (B, T) at positions start, start + 1, ..., and how these are turned.

        A turn is a pair (cos, sin), (T, D/2) each; None where positions are learned, and in the stream already. The N-1
        tokens `before` (B, N-1) are for the n-grams, with V where nothing is known; None: nowhere. If `whole`, no row
        of theirs is left out, whatever the mode.
        """
        here = slice(start, start + idx.size(1))
        x = self.wte(idx)  # (B, T, C)
        if self.ngrams is not None:
            x = x + self.ngrams(idx, before, whole)  # (B, T, C)
        if self.config.positions == "learned":
            return self.ln_e(x + self.wpe.weight[here]), None
        return self.ln_e(x), (self.cos[here], self.sin[here])

    _check = GPT._check
