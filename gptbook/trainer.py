"""Training: the configuration, the loss, the learning rate, the optimizer, what is measured, and the loop.

What a run leaves on disk is in `runs`, what makes a step fast in `engine`, and the second optimizer in `muon`.
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

from gptbook import engine, parallel, runs
from gptbook.data import get_batch, windows
from gptbook.model import GPT
from gptbook.muon import Muon, Together

SCHEDULES = ("constant", "linear", "cosine")
OPTIMIZERS = ("adamw", "muon")
LOOK_EVERY = 10  # steps between two looks at the loss: reading a number makes an accelerator wait


class Diverged(ValueError):
    """The loss is no longer a finite number."""


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained. `learning_rate` is the highest, reached after `warmup_steps`; `schedule` says how it
    falls from there to `min_learning_rate`, which the last step has. `clip` bounds the norm of the whole gradient.

    With the optimizer "muon", AdamW keeps what is no matrix of a block, and the matrices have a rate of their own, with
    the same schedule. The tables of n-grams, where a model has them, decay at a rate of their own, `table_decay`.
    `precision` and `compile` are for `engine.make`.
    Losses are measured every `eval_every` steps, on the way in the precision of the products and at the end in float32,
    and weights kept after each of the steps in `snapshots`.
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
    optimizer: str = "adamw"
    matrix_learning_rate: float = 0.015
    table_decay: float = 0.0
    precision: str = "float32"
    compile: bool = False

    def __post_init__(self):
        for name, least in {"batch_size": 1, "steps": 1, "eval_every": 1}.items():
            _whole(name, getattr(self, name), least)
        for name in ("warmup_steps", "random_batches", "seed"):
            _whole(name, getattr(self, name), 0)
        for name in ("learning_rate", "min_learning_rate", "weight_decay", "matrix_learning_rate", "table_decay"):
            _number(name, getattr(self, name))
        for name in ("learning_rate", "matrix_learning_rate"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        for name, known in (("optimizer", OPTIMIZERS), ("precision", engine.PRECISIONS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if not isinstance(self.compile, bool):
            raise TypeError(f"compile must be True or False, got {self.compile!r}")
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


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer | Together:
    """AdamW (Loshchilov and Hutter 2019), or Muon with it, over the parameters where they are: move the model first.

    A group's learning rate is that of the schedule times its "factor", 1 where it has none.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    settings = {"lr": config.learning_rate, "betas": config.betas}
    settings["fused"] = all(p.device.type in ("cpu", "cuda") for p in parameters)
    tables = [p for name, p in model.named_parameters() if name == "ngrams.table.weight" and p.requires_grad]
    rare = [{"params": tables, "weight_decay": config.table_decay}] if tables else []
    if config.optimizer == "adamw":
        first, rest = optimizer_groups(model, config.weight_decay)
        rest["params"] = [p for p in rest["params"] if all(p is not table for table in tables)]
        return torch.optim.AdamW([first, rest, *rare], **settings)
    groups = matrix_groups(model)
    elsewhere = {id(p) for group in [*groups, *rare] for p in group["params"]}
    rest = [{"params": [p for p in parameters if id(p) not in elsewhere], "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(rest + rare, **settings)
    muon = Muon(
        groups,
        lr=config.matrix_learning_rate,
        weight_decay=config.weight_decay,
        dtype=engine.dtype_of(config.precision, parameters[0].device),
    )
    for group in muon.param_groups:
        group["factor"] = config.matrix_learning_rate / config.learning_rate
    return Together(adamw, muon)


def matrix_groups(model: nn.Module) -> list[dict]:
    """The matrices inside the blocks, for Muon: those of queries, keys and values lie in one parameter, as "rows"."""
    plain, packed = [], {}
    for name, module in model.h.named_modules():
        if not isinstance(module, nn.Linear) or not module.weight.requires_grad:
            continue
        if name.endswith("c_attn"):
            C = model.config.n_embd
            rows = (C, (module.out_features - C) // 2, (module.out_features - C) // 2)
            packed.setdefault(rows, []).append(module.weight)
        else:
            plain.append(module.weight)
    return [{"params": plain}] + [{"params": weights, "rows": list(rows)} for rows, weights in packed.items()]


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


def evaluate(
    model: GPT, tokens, batch_size: int = 64, characters: int | None = None, dtype: torch.dtype = torch.float32
) -> Evaluation:
    """The loss over the whole of `tokens` (N,): each of its N - 1 targets once, in windows that do not overlap.

    The same call gives the same number, and the number does not depend on how the windows share batches, but for
    rounding. `characters` says how many the targets stand for, where a token is not one character; products of matrices
    are computed in `dtype`. Raises ValueError if there is nothing to predict.
    """
    total, count = 0.0, 0
    with _looking(model) as device, engine.lowered(dtype, device):
        for x, y in windows(tokens, model.config.block_size, batch_size):  # each (B, T)
            x, y = x.to(device), y.to(device)
            # The last window may be short: means must be weighted, or it would count too much.
            total += loss_fn(model(x).float(), y).item() * y.numel()
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


def update(model: GPT, optimizer, x, y, learning_rate: float, clip: float | None = None, loss_of=None):
    """One step of training, on inputs x (B, T) and targets y (B, T): the loss before it, a tensor without its graph.

    `loss_of(x, y)` is how an engine computes the loss; plainly if it is None.
    """
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get("factor", 1.0)
    loss = loss_fn(model(x), y) if loss_of is None else loss_of(x, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    parallel.average_gradients(model)
    if clip is not None:
        clip_gradients(model, clip)
    optimizer.step()
    return loss.detach()


def clip_gradients(model: nn.Module, clip: float):
    """Shorten the gradient of all parameters together to the norm `clip`, where it is longer: Pascanu et al. 2013."""
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    # To multiply by one takes as long as by any number, but to ask would make an accelerator wait.
    if norm.device.type != "cpu" or not norm < clip:
        nn.utils.clip_grads_with_norm_(model.parameters(), clip, norm)


@dataclass
class TrainResult:
    """What a training run measured: `history` is one plain dictionary a measurement, with its "step".

    `seconds` and `tokens_per_second` count the updates and not the measurements, nor what compilation took, which
    the engine `used` knows; `step` the updates behind the model; `interrupted` says that Ctrl-C ended the run.
    """

    history: list[dict] = field(repr=False)
    seconds: float
    tokens_per_second: float
    step: int
    interrupted: bool = False
    used: engine.Engine | None = field(default=None, repr=False)


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
        run = parallel.from_first(runs.open_run, folder, model.config, asdict(config), extra, resume)
        if resume:
            step, seconds, history = run.restore(model, optimizer, random)
    parallel.begin(model, config.batch_size)

    used = _engine(model, train_tokens, config)
    losses, batch_losses = [], []  # since the last look, since the last measurement
    slowest = 0.0  # measurement so far, in seconds: the time to keep for the last one
    with _ctrl_c_noted() as ctrl_c:
        clock = time.monotonic()
        while True:
            stops = ctrl_c.is_set() or time.monotonic() + slowest > deadline
            ends = step >= config.steps or parallel.any_of(stops)
            measures = ends or step % config.eval_every == 0 or step in config.snapshots

            if losses and (measures or step % LOOK_EVERY == 0):
                for k, number in enumerate(parallel.mean(torch.stack(losses)).tolist()):
                    batch_losses.append(_finite(number, step - len(losses) + k))
                losses = []
                progress({"step": step, "steps": config.steps, "batch_loss": batch_losses[-1]})

            if measures:
                seconds += time.monotonic() - clock
                clock = time.monotonic()
                if not history or history[-1]["step"] < step:
                    row = {"step": step, "seconds": round(seconds, 3), "learning_rate": lr_at(step, config)}
                    row["batch_loss"] = sum(batch_losses) / len(batch_losses) if batch_losses else None
                    dtype = torch.float32 if ends else used.dtype
                    row |= parallel.from_first(measure, model, train_tokens, val_tokens, config, step, dtype)
                    history.append(row)
                    if run is not None:
                        parallel.from_first(run.keep, row, model, optimizer, random)
                    progress(row | {"steps": config.steps})
                    batch_losses = []
                slowest = max(slowest, time.monotonic() - clock)
                clock = time.monotonic()
            if ends:
                break

            x, y = get_batch(train_tokens, block_size, config.batch_size, random)  # each (B, T)
            x, y = parallel.share(x).to(device), parallel.share(y).to(device)
            losses.append(update(model, optimizer, x, y, lr_at(step, config), config.clip, used.loss))
            step += 1

    speed = step * tokens_a_step / seconds if seconds else 0.0
    interrupted = ctrl_c.is_set() and step < config.steps
    return TrainResult(history, seconds, speed, step, interrupted, used)


def _engine(model, tokens, config: TrainConfig) -> engine.Engine:
    """The engine that the configuration asks for, made for batches of its shape."""
    device, V = next(model.parameters()).device, model.config.vocab_size
    if device.type == "cpu":
        engine.keep_memory()
    if config.compile and len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < V:
        raise ValueError(f"the text holds tokens outside 0..{V - 1}: the tokenizer and vocab_size disagree")
    rows = config.batch_size // parallel.size()
    x = torch.zeros(rows, model.config.block_size, dtype=torch.int64, device=device)  # (B, T)
    return engine.make(model, loss_fn, config.precision, config.compile, (x, x))


def measure(
    model: GPT, train_tokens, val_tokens, config: TrainConfig, step: int, dtype: torch.dtype = torch.float32
) -> dict[str, float]:
    """The losses of a measurement: of the whole validation part, and of as long a beginning of the training part.

    Products of matrices are computed in `dtype`. With `random_batches`, the estimates from random batches too, in
    float32. Raises Diverged when one is not finite.
    """
    row = {
        "train_loss": evaluate(model, train_tokens[: len(val_tokens)], dtype=dtype).loss,
        "val_loss": evaluate(model, val_tokens, dtype=dtype).loss,
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
