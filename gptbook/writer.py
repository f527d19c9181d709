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
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F

from gptbook import kv_cache
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
                    logits, began = self.read(idx)[None], True  # (1, V)
                idx = torch.cat((idx, next_token(logits, **settings)[:, None]), dim=1)  # (1, length)
        return idx.clone()

    def read(self, idx):
        """Begin a text with a prompt idx (1, T) in the window: the logits after its last token (V,)."""
        logits, cache = kv_cache.forward(self.model, idx)
        for mine, kept in zip(self._cache, (t for layer in cache.layers for t in layer), strict=True):
            mine[:, : idx.size(1)] = kept[0]
        self._hidden.fill_(-math.inf)[: idx.size(1)] = 0
        return logits[0, -1]

    def step(self, token, position: int):
        """Go on with a token (1,) at a position: the logits after it (V,)."""
        self._token.copy_(token)
        self._position.fill_(position)
        self._hidden[position] = 0
        return self._run(*self._inputs)

    def _lay_out(self):
        """Put all weights behind one another, and reserve the space that a full window needs."""
        model, config = self.model, self.model.config
        floats, words = _Shelf(), _Shelf()
        matrices = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        for name, tensor in model.named_parameters(remove_duplicate=False):  # a tied matrix has two names
            if self.precision == "int8" and name.removesuffix(".weight") in matrices:
                whole, scale = round_rows(tensor.detach())
                words.put(name, packed(whole))
                floats.put(f"{name} scale", scale)
            else:
                floats.put(name, tensor.detach())
        for name in ("cos", "sin"):
            if hasattr(model, name):
                floats.put(name, getattr(model, name))
        self._places = floats.places | words.places
        self._words = set(words.places)
        G, D = getattr(config, "kv_heads", config.n_head), config.n_embd // config.n_head
        self._cache = [torch.zeros(G, config.block_size, D) for _ in range(2 * config.n_layer)]  # (G, T, D) each
        self._hidden = torch.zeros(config.block_size)  # (T,), added to scores: -inf where nothing is written yet
        self._token, self._position = (torch.zeros(1, dtype=torch.long) for _ in range(2))
        # Words go as float32 and become int32 inside: compiled code loads eight of those at once, but not of these.
        self._inputs = (floats.all(), words.all().view(torch.float32), self._hidden, self._token, self._position)
        self._inputs += tuple(self._cache)
        for name, parameter in model.named_parameters():
            if name in floats.places:  # the copy lives on the shelf too, not a second time elsewhere
                parameter.data = self._get(name, self._inputs[0])

    def _get(self, name, shelf):
        start, shape = self._places[name]
        return shelf[start : start + math.prod(shape)].view(shape)

    def _step(self, floats, words, hidden, token, position, *cache):
        """The logits (V,) after one token (1,) at a position (1,); its keys and values go into the cache.

        A matrix times a vector is written as products and sums, which the compiler makes one loop of.
        """
        model, words = self.model, words.view(torch.int32)

        def get(name):
            return self._get(name, floats) if name in self._places else None

        def linear(name, x):
            weight = f"{name}.weight"
            if weight in self._words:
                parts = unpacked(self._get(weight, words))  # (out, in / PARTS) each
            else:
                matrix = get(weight)
                parts = matrix.view(len(matrix), 1 if len(x) % PARTS else PARTS, -1).unbind(1)
            x = F.pad(x, (0, -len(x) % len(parts))).view(len(parts), -1)  # (PARTS, in / PARTS)
            y = parts[0] * x[0]
            for i in range(1, len(parts)):
                y = y + parts[i] * x[i]
            y = y.sum(dim=-1)  # (out,)
            if weight in self._words:
                y = y * get(f"{weight} scale")
            return y if (bias := get(f"{name}.bias")) is None else y + bias

        def norm(name, module, x):
            if isinstance(module, nn.Identity):
                return x
            if isinstance(module, nn.RMSNorm):
                return F.rms_norm(x, x.shape, get(f"{name}.weight"), module.eps)
            return F.layer_norm(x, x.shape, get(f"{name}.weight"), get(f"{name}.bias"), module.eps)

        x = get("wte.weight")[token][0]  # (C,)
        if (wpe := get("wpe.weight")) is not None:
            x = x + wpe[position][0]  # (C,)
        x = norm("ln_e", getattr(model, "ln_e", nn.Identity()), x)
        turn = (get("cos")[position], get("sin")[position]) if hasattr(model, "cos") else None  # (1, D/2) each
        for i, block in enumerate(model.h):
            at, (k, v) = f"h.{i}", cache[2 * i : 2 * i + 2]
            q, k_new, v_new = self._heads(block, linear(f"{at}.attn.c_attn", norm(f"{at}.ln_1", block.ln_1, x)), turn)
            k.index_copy_(1, position, k_new[:, None])
            v.index_copy_(1, position, v_new[:, None])
            G, D = k.size(0), k.size(2)
            scores = (q.view(G, -1, 1, D) * k[:, None]).sum(dim=-1) / math.sqrt(D) + hidden  # (G, H/G, T)
            weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()  # divided by their sum below: D numbers, not T
            y = (weights[..., None] * v[:, None]).sum(dim=2) / weights.sum(dim=-1, keepdim=True)  # (G, H/G, D)
            x = x + linear(f"{at}.attn.c_proj", y.flatten())
            h, mlp = norm(f"{at}.ln_2", block.ln_2, x), block.mlp
            if getattr(mlp, "c_gate", None) is None:
                inside = mlp.activation(linear(f"{at}.mlp.c_fc", h))  # (4C,)
            else:
                inside = mlp.activation(linear(f"{at}.mlp.c_gate", h)) * linear(f"{at}.mlp.c_fc", h)
            x = x + linear(f"{at}.mlp.c_proj", inside)
        return linear("lm_head", norm("ln_f", model.ln_f, x))

    def _heads(self, block, qkv, turn):
        """Queries (H, D), keys and values (G, D) from the output of c_attn."""
        attn, config = block.attn, self.model.config
        D = config.n_embd // config.n_head
        H, G = config.n_head, getattr(config, "kv_heads", config.n_head)
        qk, v = qkv.view(-1, D).split((H + G, G))  # (H+G, D), (G, D)
        if getattr(attn, "eps", None) is not None:
            qk = F.rms_norm(qk, (D,), eps=attn.eps)
        q, k = (qk if turn is None else rotate(qk, *turn)).split((H, G))  # (H, D), (G, D)
        return q, k, v


class _Shelf:
    """Tensors behind one another in a single one, each beginning at a multiple of 64 bytes."""

    def __init__(self):
        self.parts, self.places, self.size = [], {}, 0

    def put(self, name, tensor):
        self.places[name] = (self.size, tensor.shape)
        self.parts.append(F.pad(tensor.flatten(), (0, -tensor.numel() % 16)))
        self.size += len(self.parts[-1])

    def all(self):
        return torch.cat(self.parts) if self.parts else torch.zeros(16, dtype=torch.int32)


def _compiled(function, inputs):
    """The function compiled for inputs of these shapes, and no note; or None, and one line on why not."""

    def step(*tensors):
        return function(*tensors)

    step.__code__ = step.__code__.replace()  # what was compiled is kept with the code, which all steps would share
    options = dict(OPTIONS)
    if hasattr(torch.compiler, "skip_all_guards_unsafe"):  # shapes and settings never change: no need to look
        options["guard_filter_fn"] = torch.compiler.skip_all_guards_unsafe
    try:
        fast = torch.compile(step, dynamic=False, fullgraph=True, options=options)
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fast(*inputs)
    except Exception as error:  # whatever the compiler's parts raise: it is a help, not a need
        why = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return None, f"not compiled, and slower for it ({why[:100]})"
    return fast, ""
