"""What makes a step of training fast and changes nothing of what it computes but the rounding.

Products of matrices in bfloat16, where the processor has instructions for it, while weights and optimizer stay in
float32; the code of the model compiled into a few large loops; memory that is kept instead of being given back after
each step.
"""

import contextlib
import ctypes
import time
import warnings
from dataclasses import dataclass, field

import torch

from gptbook.machine import multiplies_bfloat16

PRECISIONS = ("float32", "bfloat16", "auto")


@dataclass
class Engine:
    """How losses are computed: `loss(x, y)` of inputs and targets (B, T) is a scalar that knows its gradients.

    `dtype` is that of the products of matrices, `compiled` whether PyTorch compiled the code, `seconds` what that took,
    and `note` one line on why it did not where it should have.
    """

    loss: object = field(repr=False)
    dtype: torch.dtype = torch.float32
    compiled: bool = False
    seconds: float = 0.0
    note: str = ""

    @property
    def words(self) -> str:
        """What is not plain about it, in a few words; nothing where all is."""
        words = [] if self.dtype == torch.float32 else [f"products in {str(self.dtype).removeprefix('torch.')}"]
        if self.compiled:
            words.append(f"compiled in {self.seconds:.1f} s, which do not count")
        return "; ".join([*words, self.note] if self.note else words)


def dtype_of(precision: str, device="cpu") -> torch.dtype:
    """The type of numbers for `precision`; "auto" is bfloat16 where the device multiplies it in hardware."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if precision == "auto":
        device = torch.device(device).type
        fast = {"cpu": multiplies_bfloat16, "cuda": torch.cuda.is_bf16_supported}.get(device, lambda: False)()
        precision = "bfloat16" if fast else "float32"
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


def lowered(dtype: torch.dtype, device="cpu"):
    """Inside, products of matrices are computed in `dtype`, and the rest in what PyTorch's autocast takes for it."""
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(torch.device(device).type, dtype=dtype)


def make(model, loss_fn, precision: str = "float32", compile: bool = False, example=None) -> Engine:
    """The Engine of a model that lies on its device already, for the losses that `loss_fn(logits, targets)` gives.

    With `compile` it is compiled for batches of the shape of `example`, a pair (x, y), and tried on it, forwards and
    backwards; where that fails, a machine without a compiler for example, the plain code serves and `note` says why.
    """
    device = next(model.parameters()).device
    dtype = dtype_of(precision, device)

    def loss(x, y):
        with lowered(dtype, device):
            logits = model(x)  # (B, T, V)
        return loss_fn(logits.float(), y)

    if not compile:
        return Engine(loss, dtype)
    start = time.perf_counter()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        fast, note = compiled(loss, lambda fast: fast(*example).backward())
    for parameter in model.parameters():
        parameter.grad = None
    return Engine(loss, dtype, note=note) if note else Engine(fast, dtype, True, time.perf_counter() - start)


def compiled(function, attempt, **options):
    """A function compiled by PyTorch, for the shapes of the first call, which `attempt(fast)` makes; and no note.

    Or None, where that fails, and one line on why. `options` are those of torch.compile. The function must be the
    caller's own: its code is exchanged.
    """
    # PyTorch keeps what it compiled with a function's code, which all functions made at one place would share.
    function.__code__ = function.__code__.replace()
    try:
        fast = torch.compile(function, dynamic=False, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            attempt(fast)
    except Exception as error:  # whatever the compiler's parts raise: it is a help, not a need
        torch.compiler.reset()
        why = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return None, f"not compiled, and slower for it ({why[:100]})"
    return fast, ""


def keep_memory():
    """Ask the C library to keep memory that Python gives back: large tensors come and go with every step.

    That is a setting of GNU's library, for the whole process; elsewhere nothing is done.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for name, value in ((-4, 0), (-1, 2**31 - 1), (-2, 2**26)):  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD
            mallopt(name, value)
