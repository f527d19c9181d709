"""Writing one text, fast: the step of `kv_cache` compiled into one loop after another, and weights in int8.

A step over one token computes little. In a small model most of its time goes into starting a hundred operations, so
all of them are compiled into one. In a large one it goes into reading every weight from memory, so each is stored in
one byte instead of four. The arithmetic stays in float32: bytes are what counts, and a weight in a register is wide
again within two instructions. (Products of whole numbers, as servers compute them, would also round what is multiplied
with the weights, and pay for rows of many tokens.)

What it leaves out: several rows at a time, other devices, and space that grows with the text; page 11.
"""

import copy
import math
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

from gptbook import engine, kv_cache
from gptbook.model import GPT
from gptbook.modern import ModernGPT, rotate
from gptbook.sampling import check_request, next_token

PRECISIONS = ("float32", "int8")
PARTS = 4  # bytes in a word; and sums of a row that do not wait for each other
OPTIONS = {
    # What every row of a matrix reads, a norm's or an activation's result, is computed once and kept. Left alone,
    # PyTorch's compiler saves the memory and computes it anew for each row.
    "realize_reads_threshold": 1,
    "realize_opcount_threshold": 8,
}


def round_rows(weight):
    """A matrix (out, in) as whole numbers from -127 to 127, int8, and a scale for each row (out,): weight / scale.

    Each row uses the whole range, so no weight moves by more than half of its row's scale.
    """
    scale = (weight.abs().amax(dim=1) / 127).clamp(min=torch.finfo(weight.dtype).tiny)  # (out,)
    return (weight / scale[:, None]).round().to(torch.int8), scale


def rounded(model):
    """A copy of a model whose matrices, all that vectors are multiplied with, hold what `round_rows` leaves of them."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                whole, scale = round_rows(module.weight)
                module.weight.copy_(whole * scale[:, None])
    return model


def packed(whole):
    """Whole numbers (out, in) int8, four of them in each int32: (out, in / 4), zeros where in has no four parts.

    Byte i of a word, counted from the lowest, is from the i-th quarter of its row.
    """
    parts = F.pad(whole, (0, -whole.size(1) % PARTS)).view(len(whole), PARTS, -1).int() & 255  # (out, PARTS, words)
    return sum(parts[:, i] << 8 * i for i in range(PARTS))


def unpacked(words):
    """The four parts of words (out, in / 4), each (out, in / 4) in float32: up until the sign is in place, and down."""
    return [((words << 8 * (PARTS - 1 - i)) >> 24).float() for i in range(PARTS)]


class Writer:
    """A GPT or a ModernGPT, made ready to write one text at a time: the same text as `kv_cache.generate`, faster.

    `precision` is that of the stored weights, "float32" or "int8"; then the text is that of `rounded(model)`. With
    `compile` the step over one token is compiled, in `seconds`. Where that cannot be, without a C++ compiler for
    example, `compiled` is False, `note` says why in one line, and the plain code writes. The weights are copied: a
    model that was trained further needs another Writer. Raises ValueError for another precision or kind of model.
    """

    def __init__(self, model, precision: str = "float32", compile: bool = True):
        if precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
        if type(model) not in (GPT, ModernGPT):
            raise ValueError(f"a Writer knows GPT and ModernGPT, got {type(model).__name__}: use kv_cache.generate")
        self.model = (rounded(model) if precision == "int8" else copy.deepcopy(model)).eval()
        self.precision, self.compiled, self.seconds, self.note = precision, False, 0.0, ""
        first = next(model.parameters())
        if compile and (first.dtype, first.device.type) != (torch.float32, "cpu"):
            self.note = f"not compiled: that is for float32 on the processor, not {first.dtype} on {first.device.type}"
        elif compile:
            start = time.perf_counter()
            self._lay_out()
            self._run, self.note = _compiled(self._step, self._inputs)
            self.compiled, self.seconds = not self.note, time.perf_counter() - start

    def generate(
        self,
        idx,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
        top_p: float | None = None,
    ):
        """What `kv_cache.generate` gives: idx (B, T) and N new tokens, (B, T + N). Several rows are written by it."""
        settings = {"temperature": temperature, "top_k": top_k, "generator": generator, "top_p": top_p}
        check_request(idx, max_new_tokens)
        if not self.compiled or len(idx) != 1:
            return kv_cache.generate(self.model, idx, max_new_tokens, **settings)
        T, began = self.model.config.block_size, False
        with torch.inference_mode():
            for _ in range(max_new_tokens):
                if idx.size(1) > T:
                    logits = self.model(idx[:, -T:])[:, -1]  # (1, V)
                elif began:
                    logits = self.step(idx[:, -1], idx.size(1) - 1)[None]  # (1, V)
                else:
                    logits = self.read(idx)[None]  # (1, V)
                    began = True
                idx = torch.cat((idx, next_token(logits, **settings)[:, None]), dim=1)  # (1, length)
        return idx.clone()

    def read(self, idx):
        """Begin a text with a prompt idx (1, T) in the window: the logits after its last token (V,)."""
        logits, cache = kv_cache.forward(self.model, idx)
        for mine, kept in zip(self._cache, (t for layer in cache.layers for t in layer), strict=True):
            mine[:, : idx.size(1)] = kept[0]
        self._hidden.fill_(-math.inf)[: idx.size(1)] = 0
        if cache.last is not None:
            self._tokens[1:] = cache.last[0]
        return logits[0, -1]

    def step(self, token, position: int):
        """Go on with a token (1,) at a position: the logits after it (V,)."""
        self._tokens[:-1] = self._tokens[1:].clone()
        self._tokens[-1:] = token
        self._position.fill_(position)
        self._hidden[position] = 0
        return self._run(*self._inputs)

    def _lay_out(self):
        """Put all weights behind one another, and reserve the space that a full window needs."""
        config = self.model.config
        self._shelf = _Shelf.of(self.model, self.precision == "int8")
        G, D = getattr(config, "kv_heads", config.n_head), config.n_embd // config.n_head
        self._cache = [torch.zeros(G, config.block_size, D) for _ in range(2 * config.n_layer)]  # (G, T, D) each
        self._hidden = torch.zeros(config.block_size)  # (T,), added to scores: -inf where nothing is written yet
        self._tokens = torch.zeros(getattr(config, "ngrams", 1), dtype=torch.long)  # (N,), the last the newest
        self._position = torch.zeros(1, dtype=torch.long)
        self._inputs = (*self._shelf.tensors, self._hidden, self._tokens, self._position, *self._cache)

    def _step(self, floats, words, hidden, tokens, position, *cache):
        """The logits (V,) after the last of tokens (N,) at a position (1,); its keys and values go into the cache."""
        model, shelf = self.model, _Shelf(self._shelf.places, self._shelf.packed, (floats, words))
        x = shelf.get("wte.weight")[tokens[-1:]][0]  # (C,)
        if (ngrams := getattr(model, "ngrams", None)) is not None:
            places = ngrams.places(tokens[None, -1:], tokens[None, :-1])[0, 0]  # (lengths,)
            x = x + shelf.linear("ngrams.mix", shelf.get("ngrams.table.weight")[places].flatten())  # (C,)
        if (wpe := shelf.get("wpe.weight")) is not None:
            x = x + wpe[position][0]  # (C,)
        if not isinstance(embedding_norm := getattr(model, "ln_e", nn.Identity()), nn.Identity):
            x = shelf.norm("ln_e", embedding_norm, x)  # (C,)
        turn = (shelf.get("cos")[position], shelf.get("sin")[position]) if hasattr(model, "cos") else None
        for i, block in enumerate(model.h):
            x = self._block(shelf, f"h.{i}", block, x, *cache[2 * i : 2 * i + 2], hidden, position, turn)  # (C,)
        return shelf.linear("lm_head", shelf.norm("ln_f", model.ln_f, x))

    def _block(self, shelf, name, block, x, k, v, hidden, position, turn):
        """One block, x (C,) -> (C,); the new key and value go into k and v, (G, T, D) each."""
        attn, mlp = block.attn, block.mlp
        G, D = k.size(0), k.size(2)
        qkv = shelf.linear(f"{name}.attn.c_attn", shelf.norm(f"{name}.ln_1", block.ln_1, x)).view(-1, D)  # (heads, D)
        qk, v_new = qkv.split((len(qkv) - G, G))
        if getattr(attn, "eps", None) is not None:
            qk = F.rms_norm(qk, (D,), eps=attn.eps)
        q, k_new = (qk if turn is None else rotate(qk, *turn)).split((len(qk) - G, G))
        k.index_copy_(1, position, k_new[:, None])
        v.index_copy_(1, position, v_new[:, None])
        scores = (q.view(G, -1, 1, D) * k[:, None]).sum(dim=-1) / math.sqrt(D) + hidden  # (G, shared, T)
        weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()  # their sum divides what they make, D numbers
        y = (weights[..., None] * v[:, None]).sum(dim=2) / weights.sum(dim=-1, keepdim=True)  # (G, shared, D)
        x = x + shelf.linear(f"{name}.attn.c_proj", y.flatten())  # (C,)
        h = shelf.norm(f"{name}.ln_2", block.ln_2, x)  # (C,)
        inside = shelf.linear(f"{name}.mlp.c_fc", h)  # (inner,)
        if getattr(mlp, "c_gate", None) is None:
            inside = mlp.activation(inside)
        else:
            inside = mlp.activation(shelf.linear(f"{name}.mlp.c_gate", h)) * inside
        return x + shelf.linear(f"{name}.mlp.c_proj", inside)


@dataclass(frozen=True, eq=False)
class _Shelf:
    """Parameters behind one another in one tensor, each from a multiple of 64 bytes on; words in one of their own."""

    places: dict  # name -> where it begins, and its shape
    packed: frozenset  # names of matrices in int8, their scales stand beside the other parameters
    tensors: tuple

    @classmethod
    def of(cls, model, whole: bool):
        """A shelf of a model's weights. With `whole`, its matrices are kept in int8; what is not moves to the shelf."""
        matrices = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        places, parts, sizes, packed_names, known = {}, ([], []), [0, 0], set(), {}

        def put(name, tensor, which=0):
            places[name] = sizes[which], tensor.shape
            parts[which].append(F.pad(tensor.flatten(), (0, -tensor.numel() % 16)))
            sizes[which] += len(parts[which][-1])

        for name, parameter in model.named_parameters(remove_duplicate=False):
            if whole and name in matrices:
                numbers, scale = round_rows(parameter.detach())
                put(name, packed(numbers), 1)
                put(f"{name} scale", scale)
                packed_names.add(name)
            elif parameter in known:  # a tied matrix has two names
                places[name] = places[known[parameter]]
            else:
                put(name, parameter.detach())
                known[parameter] = name
        for name in ("cos", "sin"):
            if hasattr(model, name):
                put(name, getattr(model, name))
        # Words go as float32 and become int32 inside: compiled code loads eight of those at once, but not of these.
        words = torch.cat(parts[1]) if whole else torch.zeros(16, dtype=torch.int32)
        made = cls(places, frozenset(packed_names), (torch.cat(parts[0]), words.view(torch.float32)))
        for parameter, name in known.items():
            parameter.data = made.get(name)
        return made

    def get(self, name):
        """A parameter by its name; None if there is none."""
        if name not in self.places:
            return None
        start, shape = self.places[name]
        tensor = self.tensors[1].view(torch.int32) if name in self.packed else self.tensors[0]
        return tensor[start : start + math.prod(shape)].view(shape)

    def linear(self, name, x):
        """The linear layer of that name: x (in,) -> (out,), as products and sums that compile into one loop."""
        weight, bias = self.get(f"{name}.weight"), self.get(f"{name}.bias")
        scale = self.get(f"{name}.weight scale")
        n = PARTS if scale is not None or len(x) % PARTS == 0 else 1
        parts = weight.view(len(weight), n, -1).unbind(1) if scale is None else unpacked(weight)  # (out, in/n) each
        x = F.pad(x, (0, -len(x) % n)).view(n, -1)  # (n, width)
        y = parts[0] * x[0]
        for i in range(1, n):
            y = y + parts[i] * x[i]
        y = y.sum(dim=-1) if scale is None else y.sum(dim=-1) * scale  # (out,)
        return y if bias is None else y + bias

    def norm(self, name, module, x):
        """The norm of that name, x (C,) -> (C,)."""
        weight = self.get(f"{name}.weight")
        if isinstance(module, nn.RMSNorm):
            return F.rms_norm(x, x.shape, weight, module.eps)
        return F.layer_norm(x, x.shape, weight, self.get(f"{name}.bias"), module.eps)


def _compiled(function, inputs):
    """The function compiled for inputs of these shapes, and no note; or None, and one line on why not."""

    def step(*tensors):
        return function(*tensors)

    options = dict(OPTIONS)
    if hasattr(torch.compiler, "skip_all_guards_unsafe"):  # shapes and settings never change: no need to look
        options["guard_filter_fn"] = torch.compiler.skip_all_guards_unsafe
    with torch.inference_mode():
        return engine.compiled(step, lambda fast: fast(*inputs), fullgraph=True, options=options)
