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


# ---- right ones, as other people write them


class Head(nn.Module):
    """One head of its own, as in many lectures; with `summed` it has an output matrix of its own as well."""

    def __init__(self, summed=False):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(C, C // H, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.ones(T, T).tril())
        if summed:
            self.out = nn.Linear(C // H, C, bias=False)

    def forward(self, x):
        T = x.size(1)
        scores = self.query(x) @ self.key(x).transpose(-2, -1) * (C // H) ** -0.5
        y = scores.masked_fill(self.tril[:T, :T] == 0, float("-inf")).softmax(-1) @ self.value(x)
        return self.out(y) if hasattr(self, "out") else y


class ManyHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(Head() for _ in range(H))
        self.proj = nn.Linear(C, C)

    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.heads], dim=-1))


class SummedHeads(nn.Module):
    """Each head has an output matrix, and the outputs are added: the same as to join the heads and project."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(Head(summed=True) for _ in range(H))
        self.bias = nn.Parameter(torch.zeros(C))

    def forward(self, x):
        return sum(head(x) for head in self.heads) + self.bias


class FromTorch(nn.Module):
    """nn.MultiheadAttention with a mask in which True hides."""

    def __init__(self):
        super().__init__()
        self.mha = nn.MultiheadAttention(C, H, batch_first=True)

    def forward(self, x):
        hidden = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        return self.mha(x, x, x, attn_mask=hidden, need_weights=False)[0]


class Packed(nn.Module):
    """One matrix for queries, keys and values, in one of the orders that people use, through PyTorch's own function."""

    def __init__(self, order="3HD", bias=False):
        super().__init__()
        self.order = order
        self.qkv, self.proj = nn.Linear(C, 3 * C, bias=bias), nn.Linear(C, C)

    def forward(self, x):
        B, T, _ = x.shape
        sizes = {"3": 3, "H": H, "D": C // H}
        parts = self.qkv(x).view(B, T, *(sizes[axis] for axis in self.order))
        q, k, v = parts.permute(2 + self.order.index("3"), 0, 2 + self.order.index("H"), 1, 2 + self.order.index("D"))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


class Einsum(nn.Module):
    """Bare parameters, one matrix for each head, and einsum."""

    def __init__(self):
        super().__init__()
        self.w_q, self.w_k, self.w_v = (nn.Parameter(torch.randn(H, C, C // H) / C**0.5) for _ in range(3))
        self.w_o = nn.Parameter(torch.randn(H, C // H, C) / C**0.5)

    def forward(self, x):
        q, k, v = (torch.einsum("btc,hcd->bhtd", x, w) for w in (self.w_q, self.w_k, self.w_v))
        scores = torch.einsum("bhtd,bhsd->bhts", q, k) / (C // H) ** 0.5
        future = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        return torch.einsum("bhts,bhsd,hdc->btc", scores.masked_fill(future, -torch.inf).softmax(-1), v, self.w_o)


class OtherBlock(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.sa, self.ln1, self.ln2 = attention, nn.LayerNorm(C), nn.LayerNorm(C)
        self.ffwd = nn.Sequential(nn.Linear(C, 4 * C), nn.GELU(), nn.Linear(4 * C, C), nn.Dropout(0.0))

    def forward(self, x):
        x = x + self.sa(self.ln1(x))
        return x + self.ffwd(self.ln2(x))


class Other(nn.Module):
    """A GPT in the manner of lectures, with one of the attentions above, its blocks in an nn.Sequential."""

    def __init__(self, attention=ManyHeads):
        super().__init__()
        self.token_embedding_table = nn.Embedding(V, C)
        self.position_embedding_table = nn.Embedding(T, C)
        self.blocks = nn.Sequential(*[OtherBlock(attention()) for _ in range(L)])
        self.ln_f, self.lm_head = nn.LayerNorm(C), nn.Linear(C, V, bias=False)

    def forward(self, idx, targets=None):
        position = self.position_embedding_table(torch.arange(idx.size(1)))
        logits = self.lm_head(self.ln_f(self.blocks(self.token_embedding_table(idx) + position)))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, V), targets.view(-1))


class Bare(nn.Module):
    """Nothing but parameters and functions: positions (1, T, C), matrices that stand on the right of the product."""

    def __init__(self):
        super().__init__()

        def matrix(*shape):
            return nn.Parameter(torch.randn(shape) * 0.1)

        self.wte, self.wpe, self.head = matrix(V, C), matrix(1, T, C), matrix(C, V)
        self.layers = nn.ModuleList()
        for _ in range(L):
            layer = nn.Module()
            layer.wqkv, layer.wo, layer.w1, layer.w2 = (
                matrix(C, 3 * C),
                matrix(C, C),
                matrix(C, 4 * C),
                matrix(4 * C, C),
            )
            layer.g1, layer.g2 = nn.LayerNorm(C), nn.LayerNorm(C)
            self.layers.append(layer)
        self.norm = nn.LayerNorm(C)

    def forward(self, idx):
        B, T = idx.shape
        x = self.wte[idx] + self.wpe[:, :T]
        for layer in self.layers:
            q, k, v = (z.view(B, T, H, -1).transpose(1, 2) for z in (layer.g1(x) @ layer.wqkv).chunk(3, dim=-1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + y.transpose(1, 2).flatten(2) @ layer.wo
            x = x + F.gelu(layer.g2(x) @ layer.w1) @ layer.w2
        return self.norm(x) @ self.head


class OneBlock(nn.Module):
    """A single block, under a name that counts nothing."""

    def __init__(self):
        super().__init__()
        self.wte, self.wpe, self.block = nn.Embedding(V, C), nn.Embedding(T, C), OtherBlock(Packed())
        self.ln_f, self.lm_head = nn.LayerNorm(C), nn.Linear(C, V, bias=False)

    def forward(self, idx):
        return self.lm_head(self.ln_f(self.block(self.wte(idx) + self.wpe(torch.arange(idx.size(1))))))


class Reinitialised(Toy):
    """Blocks that are copies, drawn anew afterwards."""

    def __init__(self):
        super().__init__("blocks that are copies")
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)


def hugging_face(kind="gpt2"):
    """A small model of another library, with random weights."""
    import transformers as hf

    sizes = {"vocab_size": V, "bos_token_id": 0, "eos_token_id": 0}
    if kind == "gpt2":
        return hf.GPT2LMHeadModel(hf.GPT2Config(n_positions=T, n_embd=C, n_layer=L, n_head=H, **sizes))
    shape = {"hidden_size": C, "num_hidden_layers": L, "num_attention_heads": H, "max_position_embeddings": T}
    if kind == "llama":
        config = hf.LlamaConfig(num_key_value_heads=2, intermediate_size=48, **shape, **sizes)
        return hf.LlamaForCausalLM(config)
    return hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(intermediate_size=4 * C, **shape, **sizes))
