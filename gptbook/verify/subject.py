"""How a check gets hold of somebody's model: copies it, calls it whatever it returns, and changes nothing about it.

Every check works on copies that a `Subject` hands out, within `untouched`, which puts back every random state, and all
that a copy may share with the reader's model after all.
"""

import copy
import inspect
import math
import random
import sys
from contextlib import contextmanager

import torch
import torch.nn as nn

TARGET_NAMES = ("targets", "labels", "target", "y", "next_tokens", "target_ids", "tgt")


class CannotLook(Exception):
    """A check cannot be made; the message is the reason that the report gives."""


def one_line(error: BaseException, limit: int = 160) -> str:
    """An exception as one line: its type and the first `limit` characters of what it says."""
    text = " ".join(str(error).split())
    text = text if len(text) <= limit else text[: limit - 1].rstrip() + "…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def untouched(model: nn.Module):
    """Put everything of `model` and every random state back as it was, also when the block raises.

    Checks work on a copy, but a copy can share weights with its original, through a closure for example.
    """
    modes = [(module, module.training) for module in model.modules()]
    tensors = [*model.parameters(), *model.buffers()]
    kept = [(t, t.detach().clone(), t.requires_grad, t.grad, _clone(t.grad)) for t in tensors]
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy else None
    python_state, torch_state = random.getstate(), torch.get_rng_state()
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        random.setstate(python_state)
        torch.set_rng_state(torch_state)
        if numpy:
            numpy.random.set_state(numpy_state)
        if cuda_states is not None:
            torch.cuda.set_rng_state_all(cuda_states)
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for tensor, value, requires_grad, grad, grad_value in kept:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)
                if tensor.requires_grad != requires_grad:
                    tensor.requires_grad_(requires_grad)
                tensor.grad = grad
                if grad is not None and not torch.equal(grad, grad_value):
                    grad.copy_(grad_value)


def _clone(grad):
    return None if grad is None else grad.detach().clone()


def copied(module: nn.Module, name: str = "it") -> nn.Module:
    """A copy of somebody's module. Raises CannotLook, with its `name`, where there can be none."""
    try:
        model = copy.deepcopy(module)
    except Exception as error:
        raise CannotLook(f"{name} cannot be copied: {one_line(error)}") from error
    if model is module:
        raise CannotLook(f"{name} cannot be copied: copy.deepcopy gives the same one back")
    return model


def parts(output):
    """Logits and loss in whatever a model returned: a tensor, a tuple, a dictionary, an object; None where it has none.

    Of several tensors, the first that is not a single number is the logits, the first that is one is the loss.
    """
    if isinstance(output, torch.Tensor):
        output = (output,)
    elif isinstance(output, dict):
        output = (output.get("logits"), output.get("loss"))
    elif not isinstance(output, tuple | list) or hasattr(output, "logits"):
        output = (getattr(output, "logits", None), getattr(output, "loss", None))
    tensors = [t for t in output if isinstance(t, torch.Tensor) and t.is_floating_point()]
    logits = next((t for t in tensors if t.dim() >= 2), None)
    loss = next((t for t in tensors if t.dim() == 0), None)
    if loss is None:  # a loss that is not averaged: one number a token, or (1,)
        loss = next((t for t in tensors if t is not logits and t.dim() <= 2), None)
    return logits, loss


class Subject:
    """A reader's model and what was learned about calling it.

    `vocab_size` (V) and `block_size` (T) bound the token ids and lengths that it is given; `expect`, a configuration or
    None, says what it should be like. Raises TypeError or ValueError for arguments that make no sense.
    """

    def __init__(self, model, vocab_size: int = 65, block_size: int = 64, expect=None):
        if not isinstance(model, nn.Module):
            kind = "the class itself: build it first" if isinstance(model, type) else f"a {type(model).__name__}"
            raise TypeError(f"model must be a torch.nn.Module, got {kind}")
        if expect is not None:
            needed = ("vocab_size", "block_size", "n_layer", "n_embd")
            missing = [name for name in needed if not hasattr(expect, name)]
            if missing:
                raise TypeError(
                    f"expect must be a GPTConfig or a ModernConfig, got a {type(expect).__name__} without {missing[0]}"
                )
            if vocab_size == 65:  # the default: a configuration knows better
                vocab_size = expect.vocab_size
            if block_size == 64:
                block_size = expect.block_size
            for name, given in (("vocab_size", vocab_size), ("block_size", block_size)):
                if given != getattr(expect, name):
                    raise ValueError(f"{name} is {given}, but expect says {getattr(expect, name)}: give one of the two")
        for name, value, least in (("vocab_size", vocab_size, 2), ("block_size", block_size, 1)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be a whole number, got {value!r}")
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if isinstance(tensor, nn.parameter.UninitializedTensorMixin):
                raise ValueError(f"{name} has no shape yet (nn.Lazy...): call the model once, then check it")
            if tensor.device.type == "meta":
                raise ValueError(
                    f"{name} lies on the device 'meta', which holds no numbers: build the model on the CPU"
                )
        self.original = getattr(model, "_orig_mod", model)  # what torch.compile wraps
        self.V, self.T, self.expect = vocab_size, block_size, expect
        tensor = next(iter([*self.original.parameters(), *self.original.buffers()]), torch.zeros(0))
        self.device = tensor.device
        self.target_name = self._find_target_name()
        self.via_targets = self.flat = False  # how full logits come; `probe` finds out
        self._random = {}
        self.anatomy = self.structure = None  # its parts and what they compute, once that was looked for

    # ---- copies

    def fresh(self) -> nn.Module:
        """A copy in evaluation mode, with the weights as they are. Raises CannotLook if it cannot be copied."""
        model = copied(self.original, "the model")
        for parameter in model.parameters():
            parameter.grad = None
        return model.eval()

    def need_own_weights(self, model: nn.Module):
        """Raise CannotLook if `model`, a copy, computes with the original's weights, through a closure for example."""
        theirs = [p for p in self.original.parameters() if p.requires_grad]
        targets = self.tokens(1, 1) if self.target_name else None
        try:
            logits, _ = self.call(model, self.tokens(1, 1), targets)
            used = torch.autograd.grad(logits.sum(), theirs, allow_unused=True) if theirs else ()
        except Exception:  # whatever is wrong here, the check of shapes says it
            return
        if any(gradient is not None for gradient in used):
            raise CannotLook("the model cannot be copied: a copy still computes with the weights of the original")

    def random(self, gain: float = 1.0) -> nn.Module:
        """A copy in evaluation mode whose weights are random, the same each time; do not change it.

        Fresh weights hide faults: projections that start near zero write next to nothing. Matrices become
        N(0, gain² / fan-in); gains and biases move by 0.2. Frozen parameters stay, unless all are frozen.
        """
        if gain not in self._random:
            model = self.fresh()
            generator = torch.Generator().manual_seed(0)
            parameters = [p for p in model.parameters() if p.requires_grad] or list(model.parameters())
            with torch.no_grad():
                for p in parameters:
                    if not p.is_floating_point():
                        continue
                    noise = torch.randn(p.shape, generator=generator).to(p)
                    if p.dim() < 2:
                        p.add_(0.2 * noise)
                    else:
                        fan_in = p.size(-1) if p.dim() == 2 else p.size(-2)
                        p.copy_(gain / math.sqrt(fan_in) * noise)
            self._random[gain] = model
        return self._random[gain].eval()

    # ---- tokens

    def tokens(self, B: int, T: int, seed: int = 0) -> torch.Tensor:
        """Random token ids (B, T), the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(self.V, (B, T), generator=generator).to(self.device)

    def other(self, tokens: torch.Tensor, seed: int = 1) -> torch.Tensor:
        """For each token another one, drawn at random."""
        generator = torch.Generator().manual_seed(seed)
        step = torch.randint(1, self.V, tokens.shape, generator=generator).to(self.device)
        return (tokens + step) % self.V

    # ---- calling

    def _find_target_name(self) -> str | None:
        try:
            names = list(inspect.signature(self.original.forward).parameters)
        except (TypeError, ValueError):
            return None
        return next((name for name in names[1:] if name in TARGET_NAMES), None)

    def call(self, model: nn.Module, idx: torch.Tensor, targets: torch.Tensor | None = None):
        """Logits and loss as the model gives them, either may be None; targets by the name its forward has for them."""
        if targets is None:
            try:
                return parts(model(idx))
            except TypeError:
                if self.target_name is None:
                    raise
                return parts(model(idx, **{self.target_name: None}))  # targets without a default value
        return parts(model(idx, **{self.target_name: targets}))

    def raw(self, model: nn.Module, idx: torch.Tensor) -> torch.Tensor | None:
        """The logits as they come, of whatever shape; with targets where the model does not work without."""
        with torch.no_grad():
            try:
                return self.call(model, idx)[0]
            except Exception:
                if self.target_name is None:
                    raise
                return self.call(model, idx, idx)[0]

    def probe(self):
        """Find out how to get logits for every position. Raises CannotLook where there is no way."""
        B, T = (2, 3) if self.T >= 3 else (2, self.T)
        model, idx = self.fresh(), self.tokens(B, T)
        with torch.no_grad():
            try:
                logits, _ = self.call(model, idx)
                problem = self._judge(logits, B, T)
            except Exception as error:
                problem = one_line(error)
            if problem and self.target_name:
                try:
                    logits, _ = self.call(model, idx, idx)
                    if self._judge(logits, B, T) is None:
                        self.via_targets, problem = True, None
                except Exception as error:
                    problem = problem or one_line(error)
        if problem:
            raise CannotLook(problem)
        self.flat = logits.dim() == 2

    def _judge(self, logits, B: int, T: int) -> str | None:
        """What is wrong with the shape of logits for idx (B, T); None if every position has its V or more."""
        if logits is None:
            return "the model returns no logits"
        shape = tuple(logits.shape)
        if logits.dim() == 3 and shape[:2] == (B, T) and shape[2] >= self.V:
            return None
        if logits.dim() == 2 and shape[0] == B * T and shape[1] >= self.V:
            return None
        if shape in ((B, 1, shape[-1]), (B, shape[-1])) and T > 1 and shape[-1] >= self.V:
            return "only the last position's logits are returned"
        if logits.dim() == 3 and shape[0] == B and shape[2] == T and shape[1] >= self.V:
            return "the logits are (B, V, T): the last two axes are exchanged"
        if logits.dim() == 3 and shape[:2] == (T, B):
            return "the logits are (T, B, V): rows and positions are exchanged"
        if logits.dim() == 3 and shape[:2] == (B, T):
            return f"the logits have {shape[2]} columns, the vocabulary {self.V}"
        return f"the logits have shape {shape}"

    def logits(self, model: nn.Module, idx: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Logits (B, T, V) of every position, the way that `probe` found; V is more than vocab_size if it is padded.

        `targets` are handed over if the model takes any.
        """
        if self.target_name is None:
            targets = None
        elif targets is None and self.via_targets:
            targets = idx
        logits, _ = self.call(model, idx, targets)
        return logits.view(*idx.shape, -1) if logits.dim() == 2 else logits

    def look(self, model: nn.Module, idx: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """`logits` without a gradient."""
        with torch.no_grad():
            return self.logits(model, idx, targets).detach()
