"""The trainer's step beside that of nanoGPT, side by side in one process: tokens a second.

    python benchmarks/training.py CHECKOUT [ROUNDS] [--save]

CHECKOUT is a folder with a clone of nanoGPT, whose model and optimizer are used as they are, in a loop that does what
its train.py does on a processor: batches from a file by memmap, float32, clipping, its own optimizer. Its small
configuration is that of the others too: 4 layers, 4 heads, width 128, context 64, 12 rows; only the book's own recipe
has its own, and the batches that it trains on. All take turns, a few steps each, so that they meet the same machine;
figures are medians, ratios those of tokens a second. Compilation is not counted.

The operations of a step are 6 for each token and each weight of a matrix product, and those of attention's scores and
values; what Muon needs is not among them. Beside them stands the rate of the products of a forward pass alone, in the
same precision, at the shapes of the model's layers and for as many tokens at once.
"""

import os
import statistics
import sys
import tempfile
import time
from collections import Counter
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
RECIPES = {"the book's recipe": "muon", "the book's recipe, AdamW alone": "adamw"}
GOALS = {  # whether the processor multiplies bfloat16 -> name -> the ratio to reach
    True: {"GPT, bfloat16, compiled": "at least 2.5", "modern, bfloat16, compiled": "at least 2.8"},
    False: {"GPT, float32, compiled": "at least 1.1"},
}
SHARE = "at least 0.50"  # of the rate of the products, for the recipe in bfloat16
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


def ready(config, settings, tokens):
    """A fresh model, its optimizer, and the engine that was made for its batches."""
    torch.manual_seed(settings.seed)
    model = recipes.build(config)
    example = data.get_batch(tokens, config.block_size, settings.batch_size)  # (B, T) each
    made = engine.make(model, trainer.loss_fn, settings.precision, settings.compile, example)
    return model, trainer.make_optimizer(model, settings), made


def ours(config, settings, tokens):
    """A function that does so many steps of the trainer's, and the seconds that compilation took."""
    model, optimizer, made = ready(config, settings, tokens)
    if made.note:
        print(made.note, file=sys.stderr)

    def run(steps):
        for _ in range(steps):
            x, y = data.get_batch(tokens, config.block_size, settings.batch_size)
            loss = trainer.update(model, optimizer, x, y, settings.learning_rate, settings.clip, made.loss)
        return loss.item()

    return run, made.seconds


def products_rate(config, tokens: int, dtype: torch.dtype) -> float:
    """GFLOP/s of the products of the model's linear layers alone, each at its shape and by its share."""
    layers = (m for m in recipes.build(config).modules() if isinstance(m, torch.nn.Linear))
    work = seconds = 0.0
    for (inputs, outputs), times in Counter((m.in_features, m.out_features) for m in layers).items():
        x, w = torch.randn(tokens, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
        F.linear(x, w)
        took = []
        for _ in range(7):
            start = time.perf_counter()
            for _ in range(20):
                F.linear(x, w)
            took.append((time.perf_counter() - start) / 20)
        work += times * 2 * tokens * inputs * outputs
        seconds += times * statistics.median(took)
    return work / seconds / 1e9


def ways(low: bool) -> dict:
    """Name -> what is trained and how; the first is nanoGPT's, which brings its own."""

    def made(config, precision="float32", compile=True, optimizer="adamw"):
        return config, replace(SETTINGS, precision=precision, compile=compile, optimizer=optimizer)

    found = {
        "nanoGPT": made(CLASSIC, compile=False),
        "GPT, float32": made(CLASSIC, compile=False),
        "GPT, float32, compiled": made(CLASSIC),
        "modern, float32, compiled": made(MODERN),
        "modern, Muon, float32, compiled": made(MODERN, optimizer="muon"),
    }
    if low:
        found |= {
            "GPT, bfloat16": made(CLASSIC, "bfloat16", compile=False),
            "GPT, bfloat16, compiled": made(CLASSIC, "bfloat16"),
            "modern, bfloat16, compiled": made(MODERN, "bfloat16"),
            "modern, Muon, bfloat16, compiled": made(MODERN, "bfloat16", optimizer="muon"),
        }
    model, settings = recipes.PRESETS["shakespeare"], recipes.TRAINING["shakespeare"]
    return found | {name: (model, replace(settings, optimizer=optimizer)) for name, optimizer in RECIPES.items()}


def main(checkout: str, rounds: int = 15, save: bool = False):
    """Print the table, and keep it for `report.py`."""
    text = corpora.load("tinyshakespeare").text
    tokens, _ = data.split(torch.tensor(CharTokenizer.train(text, 65).encode(text)))
    low = machine.multiplies_bfloat16()
    found = ways(low)
    engine.keep_memory()
    with tempfile.TemporaryDirectory() as folder:
        runs, compilations = {}, {}
        for name, (config, settings) in found.items():
            if name == "nanoGPT":
                runs[name], compilations[name] = theirs(Path(checkout).resolve(), tokens, Path(folder))
            else:
                runs[name], compilations[name] = ours(config, settings, tokens)
            runs[name](3)  # the first steps are not counted
        took = {name: [] for name in runs}
        for _ in range(rounds):
            for name, run in runs.items():
                start = time.perf_counter()
                run(STEPS)
                took[name].append((time.perf_counter() - start) / STEPS)
    print(f"{machine.processor()}, {os.cpu_count()} processors, {torch.get_num_threads()} threads, ", end="")
    print(f"bfloat16: {'yes' if low else 'no'}, load {os.getloadavg()[0]:.1f}, medians of {rounds} turns\n")
    print(f"{'':34} {'ms a step':>10} {'spread':>16} {'tokens/s':>9} {'ratio':>6} {'compiled in':>12} ", end="")
    print(f"{'GFLOP/s':>8} {'products':>9} {'share':>6}")
    base, rows, rates = ROWS * T / statistics.median(took["nanoGPT"]), [], {}
    for name, (config, settings) in found.items():
        tokens_a_step, dtype = settings.batch_size * config.block_size, engine.dtype_of(settings.precision)
        speed = tokens_a_step / statistics.median(took[name])
        least, most = (1e3 * statistics.quantiles(took[name], n=10)[i] for i in (0, -1))
        key = config, tokens_a_step, dtype
        rates[key] = rates.get(key) or products_rate(*key)
        done = speed * recipes.flops_per_token(config) / 1e9
        print(
            f"{name:34} {1e3 * statistics.median(took[name]):10.2f} {f'{least:.1f} to {most:.1f}':>16} {speed:9,.0f} "
            f"{speed / base:6.2f} {compilations[name]:10.1f} s {done:8.0f} {rates[key]:9.0f} "
            f"{done / rates[key]:6.2f}"
        )
        if name != "nanoGPT":
            goal, what = GOALS[low].get(name, ""), f"training: {name}"
            figures = f"{speed:,.0f} tokens/s", f"{base:,.0f} tokens/s", speed / base
            rows.append(report.row(what, "nanoGPT", *figures, goal))
        if name in RECIPES:
            figures = f"{done:,.0f} GFLOP/s", f"{rates[key]:,.0f} GFLOP/s", done / rates[key]
            rows.append(report.row(what, "its products alone", *figures, SHARE if low else ""))
    if save:
        report.save("training", rows, milliseconds=took)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--save"]
    if not words or not (Path(words[0]) / "model.py").is_file():
        sys.exit("benchmarks/training.py: name the folder of a clone of nanoGPT")
    main(words[0], *map(int, words[1:]), save="--save" in sys.argv)
