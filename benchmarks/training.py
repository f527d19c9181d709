"""The trainer's step beside that of nanoGPT, side by side in one process: tokens a second.

    python benchmarks/training.py CHECKOUT [ROUNDS] [--save]

CHECKOUT is a folder with a clone of nanoGPT, whose model and optimizer are used as they are, in a loop that does what
its train.py does on a processor: batches from a file by memmap, float32, clipping, its own optimizer. All have its
small configuration: 4 layers, 4 heads, width 128, context 64, 12 rows. They take turns, a few steps each, so that all
meet the same machine; figures are medians, ratios those of the medians. Compilation is not counted.
"""

import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import report
import torch
import torch.nn.functional as F

from gptbook import corpora, data, engine, machine, recipes, trainer
from gptbook.model import GPTConfig
from gptbook.modern import ModernConfig
from gptbook.tokenizers import CharTokenizer

STEPS, ROWS, T = 6, 12, 64  # steps of a turn, rows of a batch, tokens of a row
CLASSIC = GPTConfig(block_size=T)
MODERN = ModernConfig(
    block_size=T, activation="relu2", gain=False, qk_norm=True, embedding_norm=True, tied=False,
)  # fmt: skip
GOALS = {  # whether the processor multiplies bfloat16 -> name -> the ratio to reach
    True: {"GPT, bfloat16, compiled": "at least 2.5", "modern, bfloat16, compiled": "at least 2.8"},
    False: {"GPT, float32, compiled": "at least 1.1"},
}
SETTINGS = trainer.TrainConfig(batch_size=ROWS, weight_decay=0.1, betas=(0.9, 0.99), clip=1.0)


def nanogpt(checkout: Path, tokens, folder: Path, warmup: int = 0, steps: int = 0):
    """nanoGPT's small model, and a function that does step number i of its loop; with its schedule, if `steps`."""
    sys.path.insert(0, str(checkout))
    from model import GPT, GPTConfig  # nanoGPT's

    torch.manual_seed(1337)
    shape = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": T, "vocab_size": 65}
    model = GPT(GPTConfig(**shape, dropout=0.0, bias=False))
    optimizer = model.configure_optimizers(1e-1, 1e-3, (0.9, 0.99), "cpu")
    path = folder / "train.bin"
    tokens.numpy().astype(np.uint16).tofile(path)

    def batch():
        text = np.memmap(path, dtype=np.uint16, mode="r")
        starts = torch.randint(len(text) - T, (ROWS,))
        x = torch.stack([torch.from_numpy(text[i : i + T].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(text[i + 1 : i + 1 + T].astype(np.int64)) for i in starts])
        return x, y

    def step(i: int):
        if steps:
            for group in optimizer.param_groups:
                group["lr"] = trainer.lr_at(i, schedule)
        x, y = batch()
        _, loss = model(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    rates = {"learning_rate": 1e-3, "min_learning_rate": 1e-4, "warmup_steps": warmup, "schedule": "cosine"}
    schedule = trainer.TrainConfig(steps=steps or warmup + 1, **rates)
    return model, step


def theirs(checkout: Path, tokens, folder: Path):
    """A function that does so many steps of nanoGPT's loop."""
    _, step = nanogpt(checkout, tokens, folder)

    def run(steps):
        for i in range(steps):
            loss = step(i)
        return loss.item()

    return run, 0.0


def ours(config, tokens, precision="float32", compile=False, optimizer="adamw"):
    """A function that does so many steps of the trainer's, and the seconds that compilation took."""
    torch.manual_seed(1337)
    model = recipes.build(config)
    settings = replace(SETTINGS, precision=precision, compile=compile, optimizer=optimizer)
    stepper = trainer.make_optimizer(model, settings)
    example = data.get_batch(tokens, T, ROWS)
    made = engine.make(model, trainer.loss_fn, precision, compile, example)
    if made.note:
        print(made.note, file=sys.stderr)

    def run(steps):
        for _ in range(steps):
            x, y = data.get_batch(tokens, T, ROWS)
            loss = trainer.update(model, stepper, x, y, 1e-3, 1.0, made.loss)
        return loss.item()

    return run, made.seconds


def bfloat16_rate() -> float:
    """GFLOP/s of products of matrices in the engine's own precision, at the shapes of the model, by their share."""
    dtype = engine.dtype_of("auto")
    C, V = CLASSIC.n_embd, CLASSIC.vocab_size
    work = seconds = 0.0
    for inputs, outputs, times in ((C, 3 * C, 4), (C, C, 4), (C, 4 * C, 4), (4 * C, C, 4), (C, V, 1)):
        x, w = torch.randn(ROWS * T, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
        F.linear(x, w)
        took = []
        for _ in range(7):
            start = time.perf_counter()
            for _ in range(20):
                F.linear(x, w)
            took.append((time.perf_counter() - start) / 20)
        work += times * 2 * ROWS * T * inputs * outputs
        seconds += times * statistics.median(took)
    return work / seconds / 1e9


def main(checkout: str, rounds: int = 15, save: bool = False):
    """Print the table, and keep it for `report.py`."""
    text = corpora.load("tinyshakespeare").text
    tokens, _ = data.split(torch.tensor(CharTokenizer.train(text, 65).encode(text)))
    low = machine.multiplies_bfloat16()
    engine.keep_memory()
    with tempfile.TemporaryDirectory() as folder:
        makers = {
            "nanoGPT": lambda: theirs(Path(checkout).resolve(), tokens, Path(folder)),
            "GPT, float32": lambda: ours(CLASSIC, tokens),
            "GPT, float32, compiled": lambda: ours(CLASSIC, tokens, compile=True),
            "modern, float32, compiled": lambda: ours(MODERN, tokens, compile=True),
            "modern, Muon, float32, compiled": lambda: ours(MODERN, tokens, compile=True, optimizer="muon"),
        }
        if low:
            makers |= {
                "GPT, bfloat16": lambda: ours(CLASSIC, tokens, "bfloat16"),
                "GPT, bfloat16, compiled": lambda: ours(CLASSIC, tokens, "bfloat16", True),
                "modern, bfloat16, compiled": lambda: ours(MODERN, tokens, "bfloat16", True),
                "modern, Muon, bfloat16, compiled": lambda: ours(MODERN, tokens, "bfloat16", True, "muon"),
            }
        runs, compilations = {}, {}
        for name, make in makers.items():
            runs[name], compilations[name] = make()
            runs[name](3)  # the first steps are not counted
        took = {name: [] for name in runs}
        for _ in range(rounds):
            for name, run in runs.items():
                start = time.perf_counter()
                run(STEPS)
                took[name].append((time.perf_counter() - start) / STEPS)
    rate, flops = bfloat16_rate(), recipes.flops_per_token(CLASSIC)
    print(f"{machine.processor()}, {os.cpu_count()} processors, {torch.get_num_threads()} threads, ", end="")
    print(f"bfloat16: {'yes' if low else 'no'}, load {os.getloadavg()[0]:.1f}, medians of {rounds} turns")
    print(f"products of matrices at these shapes: {rate:.0f} GFLOP/s\n")
    print(f"{'':38} {'ms a step':>10} {'spread':>14} {'tokens/s':>9} {'GFLOP/s':>8} {'ratio':>6} {'compiled in':>12}")
    base, rows = statistics.median(took["nanoGPT"]), []
    for name, times in took.items():
        middle = statistics.median(times)
        speed = ROWS * T / middle
        least, most = (1e3 * statistics.quantiles(times, n=10)[i] for i in (0, -1))
        print(
            f"{name:38} {1e3 * middle:10.2f} {f'{least:.1f} to {most:.1f}':>14} {speed:9,.0f} "
            f"{speed * flops / 1e9:8.0f} {base / middle:6.2f} {compilations[name]:10.1f} s"
        )
        if name != "nanoGPT":
            goal = GOALS[low].get(name, "")
            theirs_ = f"{ROWS * T / base:,.0f} tokens/s"
            rows.append(
                report.row(f"training: {name}", "nanoGPT", f"{speed:,.0f} tokens/s", theirs_, base / middle, goal)
            )
    if save:
        report.save("training", rows, products_gflops=rate, milliseconds=took)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--save"]
    if not words or not (Path(words[0]) / "model.py").is_file():
        sys.exit("benchmarks/training.py: name the folder of a clone of nanoGPT")
    main(words[0], *map(int, words[1:]), save="--save" in sys.argv)
