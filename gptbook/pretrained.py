"""Weights that others trained, in the classes of this book: GPT-2 in `model.GPT`, SmolLM2 in `modern.ModernGPT`.

GPT-2 comes from the Hugging Face hub through the hub's own client, SmolLM2 from the one file that `assets` fetches.
Tensors are read from safetensors or GGUF, one at a time into a model that draws no initial values; nothing is
unpickled, and no tensor is missing, left over, or of another shape.
"""

import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from gptbook import assets, checkpoint
from gptbook.modern import ModernConfig
from gptbook.recipes import PRESETS, build

NAMES = ("gpt2", "smollm2")


class PretrainedError(ValueError):
    """A pretrained model cannot be had, or is not one that this book's classes can hold."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """A pretrained model in evaluation mode, with its tokenizer; `source` says in a few words where it came from."""

    model: torch.nn.Module = field(repr=False)
    tokenizer: object
    name: str
    source: str

    def encode(self, text: str) -> list[int]:
        """The token ids of a text; special tokens are never made from plain text."""
        return self.tokenizer.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text behind token ids: a list, an array or a tensor of shape (N,)."""
        return self.tokenizer.decode(ids)


def load(name="smollm2") -> Loaded:
    """A pretrained model by its name."""
    if name == "smollm2":
        return _smollm2()
    raise PretrainedError(f"there is no pretrained model {name!r}")


# Filling a model ------------------------------------------------------------------------------------------------------


class _NoDraws(TorchFunctionMode):
    """Leaves out the drawing of initial values: the memory is not even touched until the weights come."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return function(*args, **kwargs)


def _filled(config, tensors: Iterable[tuple[str, torch.Tensor]], place: str):
    """A model of `config` with these weights, fp32, in evaluation mode; each of its tensors comes exactly once.

    Tensors come one by one, so that there is never a second copy of them all.
    """
    with _NoDraws():
        model = build(config)
    own = checkpoint.weights(model)  # of two tied names the first
    for name, tensor in tensors:
        mine = own.pop(name, None)
        if mine is None:
            raise PretrainedError(f"{place}: {name} is not a tensor of this model, or comes twice")
        if mine.shape != tensor.shape:
            raise PretrainedError(f"{place}: {name} is {tuple(tensor.shape)}, the model's {tuple(mine.shape)}")
        mine.copy_(tensor)
    if own:
        more = f", and {len(own) - 1} more like it" if len(own) > 1 else ""
        raise PretrainedError(f"{place}: {min(own)} is missing{more}")
    return model.eval().requires_grad_(True)


# SmolLM2 from GGUF ----------------------------------------------------------------------------------------------------

GGUF_NUMBERS = dict(zip(range(13), ("B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d"), strict=True))
GGUF_STRING, GGUF_ARRAY = 8, 9
BLOCKS = {  # what a block of 32 numbers is stored as; the key is the type's number in the file
    3: ("Q4_1", np.dtype([("scale", "<f2"), ("least", "<f2"), ("codes", "u1", 16)])),
    8: ("Q8_0", np.dtype([("scale", "<f2"), ("codes", "i1", 32)])),
}
PLAIN = {0: ("F32", np.dtype("<f4")), 1: ("F16", np.dtype("<f2"))}


@dataclass(frozen=True)
class Gguf:
    """What a GGUF file says: `fields` by their keys, and of each tensor by its name (type, shape, first byte)."""

    path: Path
    fields: dict
    tensors: dict[str, tuple[int, tuple[int, ...], int]]


def read_gguf(path) -> Gguf:
    """The head of a GGUF file, version 2 or 3 and little-endian; tensors stay on disk.

    Raises PretrainedError naming the file if it is another kind of file, or cut short. The format: ggml, docs/gguf.md.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            magic, version, n_tensors, n_fields = struct.unpack("<4sIQQ", file.read(24))
            if magic != b"GGUF" or version not in (2, 3):
                raise ValueError
            fields = {}
            for _ in range(n_fields):
                key = _gguf_value(file, GGUF_STRING)
                fields[key] = _gguf_value(file, *struct.unpack("<I", file.read(4)))
            listed = []
            for _ in range(n_tensors):
                name = _gguf_value(file, GGUF_STRING)
                (n_dims,) = struct.unpack("<I", file.read(4))
                *shape, kind, start = struct.unpack(f"<{n_dims}QIQ", file.read(8 * n_dims + 12))
                listed.append((name, kind, tuple(reversed(shape)), start))
            step = fields.get("general.alignment", 32)
            base = -(-file.tell() // step) * step
    except OSError as error:
        raise PretrainedError(f"{path.name}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, struct.error, MemoryError, OverflowError):
        raise PretrainedError(f"{path.name}: not a GGUF file of version 2 or 3, or cut short") from None
    return Gguf(path, fields, {name: (kind, shape, base + start) for name, kind, shape, start in listed})


def _gguf_value(file, kind):
    if kind == GGUF_STRING:
        (length,) = struct.unpack("<Q", file.read(8))
        return file.read(length).decode("utf-8")
    if kind == GGUF_ARRAY:
        inner, length = struct.unpack("<IQ", file.read(12))
        return [_gguf_value(file, inner) for _ in range(length)]
    number = struct.Struct("<" + GGUF_NUMBERS[kind])
    return number.unpack(file.read(number.size))[0]


def gguf_tensor(file: Gguf, name: str) -> torch.Tensor:
    """One tensor of a GGUF file in fp32. A block of 32 numbers shares a scale, and in Q4_1 a least value too."""
    if name not in file.tensors:
        raise PretrainedError(f"{file.path.name}: {name} is missing")
    kind, shape, start = file.tensors[name]
    label, dtype = (PLAIN | BLOCKS).get(kind, (None, None))
    if dtype is None:
        known = ", ".join(label for label, _ in (PLAIN | BLOCKS).values())
        raise PretrainedError(f"{file.path.name}: {name} is stored as type {kind}, this reads {known}")
    count = math.prod(shape) // (1 if kind in PLAIN else 32)
    try:
        stored = np.fromfile(file.path, dtype, count, offset=start)
    except OSError as error:
        raise PretrainedError(f"{file.path.name}: {name} cannot be read ({error.strerror})") from None
    if len(stored) < count:
        raise PretrainedError(f"{file.path.name}: {name} is cut short")
    if kind in PLAIN:
        return torch.from_numpy(stored.astype(np.float32, copy=False)).view(shape)
    codes, scale = stored["codes"], stored["scale"].astype(np.float32)[:, None]
    if label == "Q8_0":
        return torch.from_numpy(codes * scale).view(shape)
    # Two codes a byte: the low halves are the first sixteen numbers, the high halves the others.
    codes = np.concatenate((codes & 15, codes >> 4), axis=1)
    return torch.from_numpy(codes * scale + stored["least"].astype(np.float32)[:, None]).view(shape)


GGUF_NAMES = {
    "attn_norm": "ln_1", "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2", "ffn_gate": "mlp.c_gate", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
}  # fmt: skip


def _llama_weights(file: Gguf, n_layer: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Our names and the tensors of a Llama in GGUF, whose queries and keys turn in neighbouring pairs, as ours do."""
    yield "wte.weight", gguf_tensor(file, "token_embd.weight")
    yield "ln_f.weight", gguf_tensor(file, "output_norm.weight")
    for i in range(n_layer):
        parts = [gguf_tensor(file, f"blk.{i}.attn_{part}.weight") for part in "qkv"]
        yield f"h.{i}.attn.c_attn.weight", torch.cat(parts)
        for theirs, ours in GGUF_NAMES.items():
            yield f"h.{i}.{ours}.weight", gguf_tensor(file, f"blk.{i}.{theirs}.weight")


def _from_gguf(path, config: ModernConfig, name: str, source: str) -> Loaded:
    file = read_gguf(path)
    model = _filled(config, _llama_weights(file, config.n_layer), file.path.name)
    return Loaded(model, _gguf_tokenizer(file), name, source)


def _smollm2() -> Loaded:
    path = assets.fetch("smollm2")
    return _from_gguf(path, PRESETS["smollm2"], "smollm2", assets.source("smollm2"))


# Singles out each digit, then cuts as GPT-2 does; so spaces before a digit are cut as at the end of a text.
SMOLLM_PATTERN = (
    r"'(?:[sdmt]|ll|ve|re)|\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"  # fmt: skip
)


def byte_of_sign() -> dict[str, int]:
    """GPT-2's signs for bytes: printable ones of Latin-1 stand for themselves, the others for U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _gguf_tokenizer(file: Gguf):
    from gptbook.tokenizers import BPETokenizer

    fields, signs = file.fields, byte_of_sign()
    names = fields["tokenizer.ggml.tokens"]
    ids = {name: i for i, name in enumerate(names)}
    control = [kind == 3 for kind in fields["tokenizer.ggml.token_type"]]
    vocab = [n.encode() if c else bytes(signs[s] for s in n) for n, c in zip(names, control, strict=True)]
    merges = [tuple(ids[part] for part in pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]]
    special = {name: i for name, i in ids.items() if control[i]}
    return BPETokenizer(vocab, merges, SMOLLM_PATTERN, special)
