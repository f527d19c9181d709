"""Training: the configuration, the loss, the learning rate, the optimizer, what is measured, and the loop.

Plain float32 and PyTorch's own AdamW. What a run leaves on disk is in `runs`.
"""

import math
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F

from gptbook import runs
from gptbook.data import get_batch, windows
from gptbook.model import GPT

SCHEDULES = ("constant", "linear", "cosine")
LOOK_EVERY = 10  # steps between two looks at the loss: reading a number makes an accelerator wait


class Diverged(ValueError):
    """The loss is no longer a finite number."""


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained. `learning_rate` is the highest, reached after `warmup_steps`; `schedule` says how it
    falls from there to `min_learning_rate`, which the last step has. `clip` bounds the norm of the whole gradient.

    Losses are measured every `eval_every` steps, and weights kept after each of the steps in `snapshots`.
    `random_batches` above 0 adds the estimate from so many random batches. Raises ValueError or TypeError naming the
    field that makes no sense.
    """

    batch_size: int = 12
    steps: int = 2000
    learning_rate: float = 1e-3
    min_learning_rate: float = 0.0
    warmup_steps: int = 0
    schedule: str = "constant"
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float | None = None
    eval_every: int = 250
    random_batches: int = 0
    snapshots: tuple[int, ...] = ()
    seed: int = 1337

    def __post_init__(self):
        for name, least in {"batch_size": 1, "steps": 1, "eval_every": 1}.items():
            _whole(name, getattr(self, name), least)
        for name in ("warmup_steps", "random_batches", "seed"):
            _whole(name, getattr(self, name), 0)
        for name in ("learning_rate", "min_learning_rate", "weight_decay"):
            _number(name, getattr(self, name))
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate must be above 0, got {self.learning_rate}")
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(
                f"min_learning_rate must be at most learning_rate, {self.learning_rate}, got {self.min_learning_rate}"
            )
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps must be fewer than steps, got {self.warmup_steps} and {self.steps}")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {self.schedule!r}")
        for name in ("betas", "snapshots"):  # JSON gives lists
            if not isinstance(getattr(self, name), tuple | list):
                raise TypeError(f"{name} must be a tuple, got {getattr(self, name)!r}")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if len(self.betas) != 2:
            raise ValueError(f"betas must be two numbers, got {self.betas!r}")
        for beta in self.betas:
            _number("betas", beta)
            if beta >= 1:
                raise ValueError(f"betas must be below 1, got {self.betas!r}")
        if self.clip is not None:
            _number("clip", self.clip)
            if self.clip == 0:
                raise ValueError("clip must be above 0, or None: 0 would take the whole gradient away")
        for step in self.snapshots:
            _whole("snapshots", step, 0)
            if step > self.steps:
                raise ValueError(f"snapshots must lie within the {self.steps} steps, got {step}")


def _whole(name, value, least):
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _number(name, value):
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be finite and at least 0, got {value}")


def loss_fn(logits, targets):
    """The mean cross entropy, in nats a token, of logits (B, T, V) against targets (B, T)."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def lr_at(step: int, config: TrainConfig) -> float:
    """The learning rate of update number `step`, counted from 0.

    It rises in equal parts, from above 0, to its highest at `warmup_steps`, and falls to its lowest at the last step,
    `steps - 1`, where it stays.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / (config.warmup_steps + 1)
    way = min(1.0, (step - config.warmup_steps) / max(1, config.steps - 1 - config.warmup_steps))
    part = {"constant": 1.0, "linear": 1 - way, "cosine": (1 + math.cos(math.pi * way)) / 2}[config.schedule]
    return part * config.learning_rate + (1 - part) * config.min_learning_rate


def optimizer_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """The trainable parameters, each once, in two groups: those that decay and those that do not.

    The matrices of the linear layers decay. Biases, gains and embeddings do not, nor does an unembedding that is tied
    to the embedding.
    """
    linear = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    embedding = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    trainable = [p for p in model.parameters() if p.requires_grad]  # tied weights come once
    decays = [p for p in trainable if id(p) in linear - embedding]
    rest = [p for p in trainable if id(p) not in linear - embedding]
    return [{"params": decays, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019) over the model's parameters where they now are: move the model first."""
    groups = optimizer_groups(model, config.weight_decay)
    fused = all(p.device.type in ("cpu", "cuda") for group in groups for p in group["params"])
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=fused)


@dataclass(frozen=True)
class Evaluation:
    """The loss in nats a token, over how many tokens, and what that is in bits per character."""

    loss: float
    tokens: int
    bits_per_character: float


@contextmanager
def _looking(model):
    """No gradient, no dropout; every module's mode and the random state are afterwards what they were before."""
    modes = [(module, module.training) for module in model.modules()]
    device = next(model.parameters()).device
    with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        model.eval()
        try:
            yield device
        finally:
            for module, mode in modes:
                module.training = mode


def evaluate(model: GPT, tokens, batch_size: int = 64, characters: int | None = None) -> Evaluation:
    """The loss over the whole of `tokens` (N,): each of its N - 1 targets once, in windows that do not overlap.

    The same call gives the same number, and the number does not depend on how the windows share batches, but for
    rounding. `characters` says how many the targets stand for, where a token is not one character.
    Raises ValueError if there is nothing to predict.
    """
    total, count = 0.0, 0
    with _looking(model) as device:
        for x, y in windows(tokens, model.config.block_size, batch_size):  # each (B, T)
            x, y = x.to(device), y.to(device)
            # The last window may be short: means must be weighted, or it would count too much.
            total += loss_fn(model(x), y).item() * y.numel()
            count += y.numel()
    return Evaluation(total / count, count, total / (characters or count) / math.log(2))


def estimate_loss(model: GPT, tokens, batches: int = 50, batch_size: int = 16, seed: int = 1337) -> float:
    """The mean loss of so many random batches: quick, and a little different with every seed."""
    random = torch.Generator().manual_seed(seed)
    with _looking(model) as device:
        losses = []
        for _ in range(batches):
            x, y = get_batch(tokens, model.config.block_size, batch_size, random)  # each (B, T)
            losses.append(loss_fn(model(x.to(device)), y.to(device)))
        return torch.stack(losses).mean().item()


def update(model: GPT, optimizer, x, y, learning_rate: float, clip: float | None = None):
    """One step of training, on inputs x (B, T) and targets y (B, T): the loss before it, a tensor without its graph."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    loss = loss_fn(model(x), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return loss.detach()


@dataclass
class TrainResult:
    """What a training run measured: `history` is one plain dictionary a measurement, with its "step".

    `seconds` and `tokens_per_second` count the updates and not the measurements, `step` the updates behind the model;
    `interrupted` says that Ctrl-C ended the run.
    """

    history: list[dict] = field(repr=False)
    seconds: float
    tokens_per_second: float
    step: int
    interrupted: bool = False


def train(
    model: GPT,
    train_tokens,
    val_tokens,
    config: TrainConfig,
    *,
    folder=None,
    resume=False,
    minutes=None,
    progress=None,
    device="cpu",
    extra=None,
) -> TrainResult:
    """Train `model` in place on train_tokens (N,), measuring its loss on val_tokens (M,) as well.

    With `folder`, the run is kept there, along with what `extra` (a JSON object) says about it; with `resume` it goes
    on from there, on the CPU to the last bit as if it had never stopped, and `config.steps` may be more than before.
    It ends after `config.steps` steps, before `minutes` of wall-clock time are over, or at Ctrl-C once the step under
    way is done, and each time leaves a usable checkpoint. `progress(row)` is called with each measurement, and with
    the recent loss every few steps.

    Raises Diverged when the loss is no longer finite (the last checkpoint stays), runs.RunError when the folder
    holds a run already, or, with `resume`, none or another one.
    """
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    progress = progress or (lambda row: None)
    block_size, tokens_a_step = model.config.block_size, config.batch_size * model.config.block_size

    model.to(device).train()
    optimizer = make_optimizer(model, config)  # after the move: it must hold the parameters that will be used
    torch.manual_seed(config.seed)  # dropout draws from this
    random = torch.Generator().manual_seed(config.seed)  # batches draw from this
    run, step, seconds, history = None, 0, 0.0, []
    if folder is not None:
        run = runs.open_run(folder, model.config, asdict(config), extra, resume)
        if resume:
            step, seconds, history = run.restore(model, optimizer, random)

    losses, batch_losses = [], []  # since the last look, since the last measurement
    slowest = 0.0  # measurement so far, in seconds: the time to keep for the last one
    with _ctrl_c_noted() as ctrl_c:
        clock = time.monotonic()
        while True:
            ends = step >= config.steps or ctrl_c.is_set() or time.monotonic() + slowest > deadline
            measures = ends or step % config.eval_every == 0 or step in config.snapshots

            if losses and (measures or step % LOOK_EVERY == 0):
                for k, number in enumerate(torch.stack(losses).tolist()):
                    batch_losses.append(_finite(number, step - len(losses) + k))
                losses = []
                progress({"step": step, "steps": config.steps, "batch_loss": batch_losses[-1]})

            if measures:
                seconds += time.monotonic() - clock
                clock = time.monotonic()
                if not history or history[-1]["step"] < step:
                    row = {"step": step, "seconds": round(seconds, 3), "learning_rate": lr_at(step, config)}
                    row["batch_loss"] = sum(batch_losses) / len(batch_losses) if batch_losses else None
                    row |= measure(model, train_tokens, val_tokens, config, step)
                    history.append(row)
                    if run is not None:
                        run.keep(row, model, optimizer, random)
                    progress(row | {"steps": config.steps})
                    batch_losses = []
                slowest = max(slowest, time.monotonic() - clock)
                clock = time.monotonic()
            if ends:
                break

            x, y = get_batch(train_tokens, block_size, config.batch_size, random)  # each (B, T)
            losses.append(update(model, optimizer, x.to(device), y.to(device), lr_at(step, config), config.clip))
            step += 1

    speed = step * tokens_a_step / seconds if seconds else 0.0
    return TrainResult(history, seconds, speed, step, interrupted=ctrl_c.is_set() and step < config.steps)


def measure(model: GPT, train_tokens, val_tokens, config: TrainConfig, step: int) -> dict[str, float]:
    """The losses of a measurement: of the whole validation part, and of as long a beginning of the training part.

    With `random_batches`, the estimates from random batches too. Raises Diverged when one is not finite.
    """
    row = {
        "train_loss": evaluate(model, train_tokens[: len(val_tokens)]).loss,
        "val_loss": evaluate(model, val_tokens).loss,
    }
    if config.random_batches:
        for name, tokens in (("train_estimate", train_tokens), ("val_estimate", val_tokens)):
            row[name] = estimate_loss(model, tokens, config.random_batches, config.batch_size, config.seed + step)
    return {name: _finite(loss, step) for name, loss in row.items()}


def _finite(loss: float, step: int) -> float:
    if not math.isfinite(loss):
        raise Diverged(f"step {step}: the loss is {loss}: lower the learning rate, or clip; the last checkpoint stays")
    return loss


@contextmanager
def _ctrl_c_noted():
    """Turn Ctrl-C into a note, so that the step under way can finish; a second Ctrl-C interrupts at once."""
    noted = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield noted
        return

    def note(*_):
        if noted.is_set():
            raise KeyboardInterrupt
        noted.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.default_int_handler)
