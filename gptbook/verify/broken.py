"""Models broken on purpose: a small GPT with one mistake that people make, and the catalogue of these mistakes.

`Toy()` is right, and written apart from `gptbook.model`. `Toy(fault)` has one mistake, `Toy(odd=...)` one design that
is right but unlike GPT-2. `WithLoss` wraps a model that is given targets, as many scripts do.
"""

import copy
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

from gptbook.model import GPTConfig
from gptbook.modern import ModernConfig, ModernGPT
from gptbook.verify.catalogue import Mistake
from gptbook.verify.checks import ORDER, ask_all, check_model
from gptbook.verify.report import Report
from gptbook.verify.subject import Subject

V, T, C, H, L = 31, 12, 32, 4, 2
CONFIG = GPTConfig(vocab_size=V, block_size=T, n_layer=L, n_head=H, n_embd=C)


class Norm(nn.Module):
    """LayerNorm, or what people write instead of it: x (B, T, C) -> (B, T, C)."""

    def __init__(self, fault="", odd=""):
        super().__init__()
        self.kind = fault or odd
        self.weight = nn.Parameter(torch.ones(C))
        if odd != "rms norm":
            self.bias = nn.Parameter(torch.zeros(C))

    def forward(self, x):
        if self.kind == "rms norm":
            return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * self.weight
        if self.kind == "norm over positions":
            return F.layer_norm(x, x.shape[1:]) * self.weight + self.bias
        if self.kind == "norm over the batch":
            centred = x - x.mean(0, keepdim=True)
            return centred / (centred.square().mean(0, keepdim=True) + 1e-5).sqrt() * self.weight + self.bias
        centred = x - x.mean(-1, keepdim=True)
        if self.kind == "unbiased norm":
            return centred / (x.std(-1, keepdim=True) + 1e-5) * self.weight + self.bias
        if self.kind == "norm without the root":
            return centred / (x.var(-1, keepdim=True, unbiased=False) + 1e-5) * self.weight + self.bias
        if self.kind == "norm without a division":
            return centred * self.weight + self.bias
        return F.layer_norm(x, (C,), self.weight, self.bias, 1e-3 if self.kind == "wide eps" else 1e-5)


class Attention(nn.Module):
    """Attention in four matrices, or what people write instead of it: x (B, T, C) -> (B, T, C)."""

    def __init__(self, fault="", odd=""):
        super().__init__()
        self.fault, self.odd = fault, odd
        self.heads = {"one head": 1, "eight heads": 8}.get(fault, H)
        self.query, self.value = nn.Linear(C, C, bias=False), nn.Linear(C, C, bias=False)
        self.key = nn.Linear(C, C, bias=odd == "key bias")
        if fault != "no output projection":
            self.proj = nn.Linear(C, C)
        if fault == "unused parameter":
            self.spare = nn.Linear(C, C)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = (part(x).view(B, T, self.heads, -1).transpose(1, 2) for part in (self.query, self.key, self.value))
        if self.fault == "queries for keys":
            k = q
        if self.odd == "rotary" or self.fault == "rotary and learned":
            q, k = rotate(q), rotate(k)
        if self.fault == "rotary over heads":
            q, k = (rotate(z.transpose(1, 2)).transpose(1, 2) for z in (q, k))
        y = self.weights(self.scores(q, k)) @ v  # (B, H, T, D)
        y = y.reshape(B, T, C) if self.fault == "heads merged askew" else y.transpose(1, 2).reshape(B, T, C)
        return y if self.fault in ("no output projection", "projection not called") else self.proj(y)

    def scores(self, q, k):
        """(B, H, T, D) twice -> (B, H, T, T)."""
        D = q.size(-1)
        divisors = {"no scale": 1.0, "scaled by the width": math.sqrt(C), "scaled by D": D, "scaled up": D**-0.5}
        scores = q @ k.mT / divisors.get(self.fault, 7.3 if self.fault == "scaled oddly" else math.sqrt(D))
        if self.odd == "linear bias":
            T = q.size(-2)
            scores = scores - (torch.arange(T)[:, None] - torch.arange(T)).abs()
        return scores

    def weights(self, scores):
        """(B, H, T, T) -> (B, H, T, T), masked and through the softmax."""
        T, fault = scores.size(-1), self.fault
        keep = torch.ones(T, T, dtype=torch.bool).tril()  # (T, T)
        if fault == "mask one ahead":
            keep = torch.ones(T, T, dtype=torch.bool).tril(1)
        if fault in ("own token hidden", "own token hidden, finite"):
            keep = torch.ones(T, T, dtype=torch.bool).tril(-1)
        if fault == "mask inverted":
            keep = torch.ones(T, T, dtype=torch.bool).triu()
        if self.odd == "window":
            keep = keep & torch.ones(T, T, dtype=torch.bool).triu(-2)
        if fault == "no mask" or (fault == "no mask in training" and self.training):
            weights = scores.softmax(-1)
        elif fault == "scores multiplied":
            weights = (scores * keep).softmax(-1)
        elif fault == "mask added":
            weights = (scores + keep.float()).softmax(-1)
        elif fault == "filled with nearly nothing":
            weights = scores.masked_fill(~keep, 1e-9).softmax(-1)
        elif fault == "weak fill":
            weights = scores.masked_fill(~keep, -18.0).softmax(-1)
        elif fault == "own token hidden, finite":
            weights = scores.masked_fill(~keep, -1e9).softmax(-1)
        elif fault == "mask after softmax":
            weights = scores.softmax(-1) * keep
        elif self.odd == "mask after softmax, divided again":
            weights = scores.softmax(-1) * keep
            weights = weights / weights.sum(-1, keepdim=True)
        elif fault == "softmax over queries":
            weights = scores.masked_fill(~keep, -math.inf).softmax(-2)
        elif fault == "softmax over heads":
            weights = scores.masked_fill(~keep, -math.inf).softmax(1)
        elif fault == "softmax over the batch":
            weights = (scores.softmax(0) * keep) / T
        else:
            weights = scores.masked_fill(~keep, -math.inf).softmax(-1)
        return F.dropout(weights, 0.2) if fault == "dropout always on" else weights


def rotate(z):
    """Rotary positions over the last but one axis of z (..., T, D)."""
    half = z.size(-1) // 2
    angle = torch.arange(z.size(-2))[:, None] * 100.0 ** (-torch.arange(half) / half)  # (T, pairs)
    a, b = z[..., :half], z[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


ACTIVATIONS = {
    "no activation": lambda x: x,
    "relu": F.relu,
    "tanh gelu": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "squared relu": lambda x: F.relu(x).square(),
}


class Block(nn.Module):
    """Attention and an MLP, each with a norm and round it a residual, or not: x (B, T, C) -> (B, T, C)."""

    def __init__(self, fault="", odd=""):
        super().__init__()
        self.kind = fault or odd
        self.norm_1, self.norm_2 = Norm(fault, odd), Norm(fault, odd)
        self.attention = Attention(fault, odd)
        self.up, self.down = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)
        self.activation = ACTIVATIONS.get(self.kind, F.gelu)
        if odd in ("zero projections", "zero projections and head"):
            for linear in (self.attention.proj, self.down):
                nn.init.zeros_(linear.weight)
                nn.init.zeros_(linear.bias)

    def mlp(self, x):
        """(B, T, C) -> (B, T, C)."""
        return self.down(self.activation(self.up(x)))

    def forward(self, x):
        kind, n1, n2 = self.kind, self.norm_1, self.norm_2
        if kind == "post-norm":
            x = n1(x + self.attention(x))
            return n2(x + self.mlp(x))
        if kind == "parallel":
            return x + self.attention(n1(x)) + self.mlp(n2(x))
        if kind == "residual of the norm":
            x = n1(x)
            x = n2(x + self.attention(x))
            return x + self.mlp(x)
        read = (lambda z: z) if kind == "attention reads the stream" else n1
        branch = self.attention(read(x))
        x = branch if kind in ("no residual", "no residual round attention") else x + branch
        if kind == "branch added to itself":
            x = branch + branch
        branch = self.mlp(n2(x))
        return branch if kind in ("no residual", "no residual round the MLP") else x + branch


NO_TABLE = ("no position table", "rotary over heads")


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
        elif fault not in NO_TABLE and odd not in ("rotary", "linear bias"):
            self.positions = nn.Embedding(T, C)
            nn.init.normal_(self.positions.weight, std=0.02)
            if odd == "zero positions":
                nn.init.zeros_(self.positions.weight)
        blocks = [Block(fault, odd) for _ in range(L + (fault == "one block too many"))]
        if fault == "same block twice":
            blocks = [blocks[0]] * L
        if fault == "blocks that are copies":
            blocks = [copy.deepcopy(blocks[0]) for _ in range(L)]
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
        if fault == "head drawn wide":
            nn.init.normal_(self.head.weight, std=1.0)
        if fault == "dropout never applied" or odd == "dropout":
            self.dropout = nn.Dropout(0.1)

    def start(self, idx):
        """The stream (B, T, C) before the first block."""
        B, T = idx.shape
        x = self.tokens(idx) * (math.sqrt(C) if self.fault == "embedding times root C" else 1)
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
            x = x + self.positions(torch.arange(T)) * (2 if self.fault == "positions twice" else 1)
        return self.dropout(x) if self.odd == "dropout" else x

    def stream(self, idx):
        """The stream (B, T, C) before the unembedding."""
        x = self.start(idx)
        for block in self.blocks if self.fault != "last block skipped" else self.blocks[:-1]:
            if self.fault == "positions in every block":
                x = x + self.positions(torch.arange(idx.size(1)))
            x = block(x.detach() if self.fault == "stream detached" else x)
        return x if self.fault == "no final norm" else self.norm(x)

    def forward(self, idx):
        if self.fault == "only a full context" and idx.size(1) != T:
            raise RuntimeError(f"The size of tensor a ({idx.size(1)}) must match the size of tensor b ({T})")
        z = self.head(self.stream(idx))  # (B, T, V)
        if self.fault == "probabilities":
            return z.softmax(-1)
        if self.fault == "transposed":
            return z.transpose(1, 2)
        if self.fault == "narrow head":
            return z[..., :-1]
        if self.fault == "last position only":
            return z[:, -1:]
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
        """The loss of logits z (B, T, V), by the convention that `fault` says."""
        B, T, V = z.shape
        if self.fault == "targets not shifted":
            targets = idx
        if self.fault == "shifted twice":
            z, targets = z[:, :-1], targets[:, 1:]
        if self.fault == "last position counts":
            z, targets = z[:, -1:], targets[:, -1:]
        if self.fault == "viewed":
            return F.cross_entropy(z.reshape(B, V, T), targets)
        if self.fault == "targets in another order":
            return F.cross_entropy(z.flatten(0, 1), targets.T.flatten())
        if self.fault == "softmax in front":
            z = z.softmax(-1)
        reduction = "sum" if self.fault == "summed" else "mean"
        loss = F.cross_entropy(z.flatten(0, 1), targets.flatten(), reduction=reduction)
        return loss / math.log(2) if self.fault == "in bits" else loss


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


def meant(model: nn.Module, config) -> nn.Module:
    """`model`, which was to be as `config` says."""
    model.meant = config
    return model


LLAMA = ModernConfig(vocab_size=V, block_size=T, n_layer=L, n_head=H, n_embd=C)
TIED = replace(CONFIG, tied=True)


def _llama(**fields) -> nn.Module:
    return meant(ModernGPT(replace(LLAMA, **fields)), LLAMA)


def _toy(fault: str, page: str, words: str, name: str = "") -> Mistake:
    return Mistake(name or fault.lower().replace(",", "").replace(" ", "-"), "model", words, page, partial(Toy, fault))


def _loss(fault: str, words: str) -> Mistake:
    name = fault.lower().replace(" ", "-")
    return Mistake(f"loss-{name}", "model", words, "page 2", partial(WithLoss, fault))


MISTAKES = (
    # numbers, randomness, shapes
    _toy("own token hidden", "page 8", "at position 0: is its own token hidden as well"),
    _toy("softmax over heads", "page 8", "a softmax over the wrong axis"),
    _toy("divides by zero", "page 8", "the cause lies outside of every named part"),
    _toy("dropout always on", "page 8", "dropout that ignores eval()"),
    Mistake(
        "dropout-never-applied", "model", "dropout is declared but never applied", "page 8",
        lambda: meant(Toy("dropout never applied"), replace(CONFIG, dropout=0.1)),
    ),
    _toy("keeps state", "page 8", "keeps something from one call to the next"),
    _toy("transposed", "page 8", "a transpose too many"),
    _toy("narrow head", "page 8", "the unembedding's width must be vocab_size"),
    _toy("only a full context", "page 8", "cut to the length T of the input"),
    _toy("last position only", "page 8", "return the logits of every position"),
    Mistake("needs-targets", "model", "forward must work without targets", "page 8", partial(NeedsTargets, True)),
    # the loss
    _toy("probabilities", "page 2", "these are probabilities: leave out the softmax"),
    _loss("targets not shifted", "it compares with the tokens of the input"),
    _loss("shifted twice", "it shifts targets that are shifted already"),
    _loss("viewed", "logits (B, T, V) are reshaped to (B, V, T)"),
    _loss("targets in another order", "the targets are flattened in another order"),
    _loss("softmax in front", "a softmax stands in front of cross_entropy"),
    _loss("summed", "it is a sum over tokens, not a mean"),
    _loss("in bits", "it is in bits"),
    _loss("last position counts", "only the last position counts"),
    _loss("targets leak", "the targets reach the logits"),
    # the mask
    _toy("no mask", "page 4", "no mask, one that misses the scores"),
    _toy("mask one ahead", "page 4", "the mask is off by one"),
    _toy("mask inverted", "page 4", "the mask is upside down"),
    _toy("own token hidden, finite", "page 4", "position 0 is hidden from itself"),
    _toy("scores multiplied", "page 4", "one that misses the scores"),
    _toy("mask added", "page 4", "one that misses the scores"),
    _toy("filled with nearly nothing", "page 4", "one that misses the scores"),
    _toy("mask after softmax", "page 4", "mask after the softmax"),
    _toy("softmax over queries", "page 4", "softmax over queries"),
    _toy("weak fill", "page 4", "a merely negative number can be outweighed"),
    _toy("no mask in training", "page 4", "in training mode only"),
    _toy("heads merged askew", "page 4", "heads merged without swapping the axes back"),
    _toy("norm over positions", "page 4", "a norm over positions"),
    # rows and positions
    _toy("norm over the batch", "page 8", "a norm over the batch axis"),
    _toy("softmax over the batch", "page 8", "a softmax or a norm over the batch axis"),
    _toy("positions by row", "page 8", "indexed by the row instead of the position"),
    _toy("positions not added", "page 7", "positions are never added"),
    _toy("no position table", "page 7", "positions are never added"),
    _toy("positions all 0", "page 7", "or all the same (indexed by row, always 0)"),
    _toy("positions in pairs", "page 7", "positions 0 and 1 get the same vector"),
    _toy("rotary over heads", "page 7", "positions are never added"),
    _toy("positions twice", "page 7", "the position is added twice"),
    _toy("positions in every block", "page 7", "the position is added again in every block"),
    _toy("embedding times root C", "page 7", "the embedding is multiplied by the root of C"),
    _toy("rotary and learned", "page 7", "queries and keys are turned (rotary), and should not be"),
    # attention
    _toy("no scale", "page 4", "q·k must be divided by the root of the head's width D"),
    _toy("scaled by the width", "page 4", "divided by the root of the model's width C, not of the head's width D"),
    _toy("scaled by D", "page 4", "divided by D, not by its root"),
    _toy("scaled up", "page 4", "multiplied by the root of D, not divided by it"),
    _toy("scaled oddly", "page 4", "times what it should be, 1 / root of D"),
    _toy("one head", "page 5", "there are 1 heads, not 4"),
    _toy("eight heads", "page 5", "there are 8 heads, not 4"),
    _toy("no output projection", "page 5", "the output projection after the heads is missing"),
    _toy("projection not called", "page 5", "never used in forward, or detached"),
    _toy("queries for keys", "page 4", "never used in forward, or detached"),
    # norms, residuals, the MLP
    _toy("unbiased norm", "page 6", "divides by (unbiased standard deviation + eps)"),
    _toy("norm without the root", "page 6", "divides by the variance: the root is forgotten"),
    _toy("norm without a division", "page 6", "takes the mean away and divides by nothing"),
    _toy("wide eps", "page 6", "eps is 0.001, not 1e-05"),
    _toy("no final norm", "page 6", "the final norm, between the last block and the unembedding, is missing"),
    Mistake("rms-norm", "model", "RMSNorm", "page 6", partial(Toy, odd="rms norm")),
    Mistake("post-norm", "model", "post-norm, as in the paper of 2017", "page 6", partial(Toy, odd="post-norm")),
    _toy("residual of the norm", "page 6", "the residual is taken from the normalised stream"),
    _toy("no residual round attention", "page 6", "the residual round attention is missing"),
    _toy("no residual round the MLP", "page 6", "the residual round the MLP is missing"),
    _toy("no residual", "page 6", "the residual round attention is missing"),
    _toy("branch added to itself", "page 6", "the branch is added to itself"),
    _toy("attention reads the stream", "page 6", "attention reads the stream without a norm"),
    _toy("parallel", "page 6", "attention and the MLP stand side by side"),
    _toy("no activation", "page 6", "no activation between the two layers of the MLP"),
    _toy("relu", "page 6", "the MLP's activation is ReLU, not GELU, exact (erf)"),
    _toy("tanh gelu", "page 6", "the MLP's activation is GELU, approximated by tanh"),
    _toy("silu", "page 6", "the MLP's activation is SiLU"),
    # layers, weights, gradients
    _toy("same block twice", "page 8", "the same block object"),
    _toy("blocks that are copies", "page 8", "all blocks start with the same weights"),
    _toy("blocks in a list", "page 8", "is not registered, so it is neither trained nor saved"),
    _toy("one block too many", "page 8", "there are 3 blocks, not 2"),
    _toy("last block skipped", "page 8", "never used in forward, or detached: blocks.1"),
    _toy("unused parameter", "page 8", "never used in forward, or detached: blocks.0.attention.spare"),
    _toy("stream detached", "page 8", "never used in forward, or detached: tokens.weight"),
    _toy("no gradient", "page 8", "the logits are cut off from the parameters"),
    _toy("tied, drawn wide", "page 8", "are one matrix, drawn with std"),
    _toy("head drawn wide", "page 8", "Is the unembedding, or the stream before it, drawn too large"),
    _toy("gains drawn around 0", "page 8", "Is the unembedding, or the stream before it, drawn too large"),
    Mistake(
        "tied-by-copying", "model", "is a matrix of its own: tie it", "page 8",
        lambda: meant(Toy("tied by copying"), TIED),
    ),
    # against a modern configuration
    Mistake("rotary-base", "model", "the base of the rotary turns is", "page 7", lambda: _llama(rope_base=500.0)),
    Mistake("not-turned", "model", "where rotary ones are expected", "page 7", lambda: _llama(positions="learned")),
    Mistake(
        "no-gate", "model", "the MLP's activation is GELU, exact (erf), not SwiGLU", "page 6",
        lambda: _llama(activation="gelu"),
    ),
    Mistake("layer-norm-for-rms", "model", "LayerNorm", "page 6", lambda: _llama(norm="layer")),
    Mistake("shared-keys", "model", "heads of keys and values, not", "page 5", lambda: _llama(n_kv_head=2)),
)  # fmt: skip


def ask(wrong) -> Report:
    """The report on the model that `wrong` makes, against what it was meant to be."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = wrong()
    subject = Subject(model, V, T, getattr(model, "meant", CONFIG))
    # Memorising takes longest, and says least: it is asked where no other question was answered badly.
    found = ask_all(subject, [name for name in ORDER if name != "memorise"])
    return found if found.failed else check_model(model, V, T, subject.expect)


ASK = {"model": ask}
