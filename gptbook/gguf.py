"""Reading GGUF, the file in which llama.cpp keeps a model: what it says about itself, and its tensors in fp32.

A head, then all tensors one after another; numbers in blocks of 32 that share a scale. The reader of the package that
defines the format takes seconds for a vocabulary of fifty thousand words. This one knows as much of the format as one
file of weights needs: two kinds of blocks, and plain numbers. The format: ggml, docs/gguf.md.
"""

import math
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
STORED = {  # the number of a type in the file -> its name, how many numbers a block holds, and what it is made of
    0: ("F32", 1, np.dtype("<f4")),
    1: ("F16", 1, np.dtype("<f2")),
    3: ("Q4_1", 32, np.dtype([("scale", "<f2"), ("least", "<f2"), ("codes", "u1", 16)])),
    8: ("Q8_0", 32, np.dtype([("scale", "<f2"), ("codes", "i1", 32)])),
}


class GgufError(ValueError):
    """A file is no GGUF, is cut short, or stores numbers in a way that is not read here."""


@dataclass(frozen=True)
class Gguf:
    """The head of a file: `fields` by their keys, and each tensor's (type, shape, first byte) by its name."""

    path: Path
    fields: dict = field(repr=False)
    tensors: dict[str, tuple[int, tuple[int, ...], int]] = field(repr=False)

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, in fp32. Raises GgufError naming it if it is missing, cut short, or of a type not read here."""
        if name not in self.tensors:
            raise GgufError(f"{self.path.name}: {name} is missing")
        kind, shape, start = self.tensors[name]
        if kind not in STORED:
            known = ", ".join(label for label, _, _ in STORED.values())
            raise GgufError(f"{self.path.name}: {name} is stored as type {kind}, and this reads {known}")
        label, size, block = STORED[kind]
        count, rest = divmod(math.prod(shape), size)
        if rest or start + count * block.itemsize > self.path.stat().st_size:
            raise GgufError(f"{self.path.name}: {name} is cut short")
        stored = np.fromfile(self.path, block, count, offset=start)
        return torch.from_numpy(_plain(stored, label).astype(np.float32, copy=False)).view(shape)


def _plain(stored, label):
    """The numbers of blocks: code times scale, and in Q4_1 plus the least number of the block."""
    if label in ("F32", "F16"):
        return stored
    scale, codes = stored["scale"].astype(np.float32)[:, None], stored["codes"]
    if label == "Q8_0":
        return codes * scale
    # Two codes a byte: the low halves are a block's first sixteen numbers, the high halves the others.
    codes = np.concatenate((codes & 15, codes >> 4), axis=1)
    return codes * scale + stored["least"].astype(np.float32)[:, None]


def read(path) -> Gguf:
    """The head of a GGUF file, version 2 or 3 and little-endian; the tensors stay on disk.

    Raises GgufError naming the file if it cannot be read, is another kind of file, or is cut short.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            magic, version, n_tensors, n_fields = struct.unpack("<4sIQQ", file.read(24))
            if magic != b"GGUF" or version not in (2, 3):
                raise ValueError
            fields = {}
            for _ in range(n_fields):
                key = _value(file, STRING)
                fields[key] = _value(file, *struct.unpack("<I", file.read(4)))
            tensors = {}
            for _ in range(n_tensors):
                name = _value(file, STRING)
                (n_dims,) = struct.unpack("<I", file.read(4))
                *shape, kind, start = struct.unpack(f"<{n_dims}QIQ", file.read(8 * n_dims + 12))
                tensors[name] = (kind, tuple(reversed(shape)), start)
            step = fields.get("general.alignment", 32)
            if type(step) is not int or step < 1:
                raise ValueError
            first = -(-file.tell() // step) * step
    except OSError as error:
        raise GgufError(f"{path.name}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, ArithmeticError, MemoryError, RecursionError, struct.error):
        raise GgufError(f"{path.name}: not a GGUF file of version 2 or 3, or cut short") from None
    return Gguf(path, fields, {name: (kind, shape, first + start) for name, (kind, shape, start) in tensors.items()})


def _value(file, kind):
    if kind == STRING:
        (length,) = struct.unpack("<Q", file.read(8))
        return file.read(length).decode("utf-8")
    if kind == ARRAY:
        inner, length = struct.unpack("<IQ", file.read(12))
        return [_value(file, inner) for _ in range(length)]
    number = struct.Struct("<" + NUMBERS[kind])
    return number.unpack(file.read(number.size))[0]
