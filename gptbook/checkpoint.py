"""What is written to disk and read back: tensors and JSON, never a pickle.

A checkpoint is one safetensors file: named tensors, and in its header a JSON object that says what they are. It is
written beside its place and renamed into it, so a reader finds the old file or the new one, never half of one.
"""

import hashlib
import json
import os
import secrets
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError


class CheckpointError(ValueError):
    """A file on disk is not the checkpoint that it should be."""


def write_aside(path, content: str | bytes):
    """Write `content` (text as UTF-8) to `path` in one step: whoever reads meanwhile sees the old file or the new one.

    The file gets the mode that any new file gets. Raises OSError, and then leaves the old file as it was.
    """
    path = Path(path)
    # Two processes may write the same file: each has a name of its own, in the same folder, so that a rename will do.
    aside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with aside.open("xb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def digest(tensors: dict[str, torch.Tensor]) -> str:
    """The sha256 of names, types, shapes and bytes of the tensors, whatever their order."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        tensor = tensor.detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        total.update(tensor.view(-1).view(torch.uint8).numpy())
    return total.hexdigest()


def _whole(about: str, tensors: dict[str, torch.Tensor]) -> str:
    """The sha256 of a checkpoint: of what is said about the tensors too, the step for example."""
    return hashlib.sha256(f"{digest(tensors)} {about}".encode()).hexdigest()


def save(path, tensors: dict[str, torch.Tensor], about: dict):
    """Write tensors, and a JSON object about them, as one safetensors file."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(about, allow_nan=False)
    header = {"about": text, "sha256": _whole(text, tensors)}
    write_aside(path, safetensors.torch.save(tensors, header))


def load(path) -> tuple[dict[str, torch.Tensor], dict]:
    """The tensors and the JSON object that `save` wrote.

    Raises CheckpointError when there is no such file, or when it is cut short, damaged, or something else.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}): name the folder of a run") from None
    try:
        tensors = safetensors.torch.load(content)
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])["__metadata__"]
        about, expected = json.loads(header["about"]), header["sha256"]
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(
            f"{path}: not a checkpoint of this book, or cut short ({len(content):,} bytes): use another, or train anew"
        ) from None
    if _whole(header["about"], tensors) != expected:
        raise CheckpointError(f"{path}: damaged (its sha256 is not the one it was written with): train anew")
    return tensors, about


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights of `model` by name, each tensor once: of two tied names the first one keeps it.

    The prefix that torch.compile puts before the names is left out, so that a plain model can load them.
    """
    found, seen = {}, set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name.replace("_orig_mod.", "")] = tensor.detach()
    return found


def load_weights(model: torch.nn.Module, tensors: dict[str, torch.Tensor], path="checkpoint"):
    """Copy `tensors` into the weights of `model`, in place, so that tied weights stay tied.

    Raises CheckpointError, before it changes anything, unless names, shapes and types are exactly the model's.
    """
    own = weights(model)
    wrong = [f"{name} is missing" for name in own if name not in tensors]
    wrong += [f"{name} is not the model's" for name in tensors if name not in own]
    for name in own.keys() & tensors.keys():
        mine, theirs = own[name], tensors[name]
        if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
            wrong.append(
                f"{name} is {theirs.dtype} {tuple(theirs.shape)}, the model's {mine.dtype} {tuple(mine.shape)}"
            )
    if wrong:
        more = f", and {len(wrong) - 1} more like it" if len(wrong) > 1 else ""
        raise CheckpointError(
            f"{path}: of another model ({sorted(wrong)[0]}{more}): build the model it was written from"
        )
    for name, tensor in own.items():
        tensor.copy_(tensors[name])
