"""How far training comes in a given time: the book's recipe beside nanoGPT's.

    python benchmarks/time_to_loss.py CHECKOUT [--budgets seventh same 180 600] [--seeds 3] [--save]

CHECKOUT is a folder with a clone of nanoGPT. Its small recipe runs first, with its own model and optimizer: 4 layers, 4
heads, width 128, context 64, 12 rows, 2,000 steps. Its time is the measure: "seventh" of it, the "same", or seconds.
For each budget the book's recipe is fitted to it: as many steps as the machine does in that time, the rate falling to
zero with the clock. Times are those of updates alone; compilation and evaluation stand beside them. The loss is the
mean over all of the validation split, once, at the end. With --development it is that of a last tenth of the training
part, on which the recipes were chosen, and validation is not touched.
"""

import argparse
import statistics
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import report
import torch
import training as step_benchmark  # beside this file: nanoGPT's loop, and what is made ready for a step

from gptbook import corpora, data, engine, machine, recipes, trainer
from gptbook.tokenizers import CharTokenizer

MODEL, TRAINING = recipes.PRESETS["shakespeare"], recipes.TRAINING["shakespeare"]
THEIR_STEPS = 2000
GOALS = {"seventh": "theirs", "same": 1.49, "180": 1.4697, "600": 1.43}
SEEDED = ("same", "180")  # the goals that are judged by several seeds
PARTS = 10_000  # of the time that is given, for the schedule


def recipe(seconds: float, tokens_a_second: float):
    """The model and the training for so much time at such a speed, without the number of steps.

    Chosen on the development split.
    """
    tokens = seconds * tokens_a_second  # about: the speed is that of the last entry
    for most, model, settings in FITTED:
        if tokens < most:
            return replace(MODEL, **model), replace(TRAINING, **settings)
    raise AssertionError("the last entry has no end")


# tokens that the time allows -> what differs from the recipe "shakespeare"
FITTED = [
    # Many small steps beat few large ones, the more so early; and what is read once need not be forgotten.
    (600_000, {"block_size": 64, "ngram_dropout": 0.0}, {"batch_size": 8, "table_decay": 1.0}),
    (8_000_000, {}, {}),
    # What is read eight times and more is learned by heart, if nothing keeps the model from it.
    (float("inf"), {"channel_dropout": 0.07}, {}),
]


def theirs(checkout: Path, train_tokens, judged) -> dict:
    """nanoGPT's recipe: its training time, and its loss over the whole of `judged`."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        model, step = step_benchmark.nanogpt(checkout, train_tokens, Path(folder), warmup=100, steps=THEIR_STEPS)
        start = time.perf_counter()
        for i in range(THEIR_STEPS):
            step(i)
        seconds = time.perf_counter() - start

    class Logits(torch.nn.Module):
        """Its forward gives all logits only if it gets targets."""

        def __init__(self):
            super().__init__()
            self.model, self.config = model, model.config

        def forward(self, idx):
            return self.model(idx, idx)[0]  # (B, T, V)

    return {"seconds": seconds, "loss": trainer.evaluate(Logits(), judged).loss, "steps": THEIR_STEPS}


def speed(tokens) -> float:
    """Tokens a second of a few steps of the book's recipe, after compilation."""
    model, optimizer, made = step_benchmark.ready(MODEL, TRAINING, tokens)
    T, B = MODEL.block_size, TRAINING.batch_size
    times = []
    for _ in range(43):
        start = time.perf_counter()
        x, y = data.get_batch(tokens, T, B)  # (B, T) each
        trainer.update(model, optimizer, x, y, 1e-4, TRAINING.clip, made.loss)
        times.append(time.perf_counter() - start)
    return B * T / statistics.mean(times[3:])


def ours(seconds: float, tokens_a_second: float, seed: int, train_tokens, judged) -> dict:
    """The book's recipe in so many seconds of training: the rate follows the clock, and is 0 when they are over."""
    config, settings = recipe(seconds, tokens_a_second)
    settings = replace(settings, steps=PARTS, warmup_steps=PARTS // 20, seed=seed)
    T, B = config.block_size, settings.batch_size
    model, optimizer, made = step_benchmark.ready(config, settings, train_tokens)
    random = torch.Generator().manual_seed(seed)
    steps, spent, longest, start = 0, 0.0, 0.0, time.perf_counter()
    while spent + longest <= seconds:
        x, y = data.get_batch(train_tokens, T, B, random)  # (B, T) each
        now = trainer.lr_at(int(PARTS * spent / seconds), settings)
        trainer.update(model, optimizer, x, y, now, settings.clip, made.loss)
        before, spent, steps = spent, time.perf_counter() - start, steps + 1
        longest = max(longest, spent - before)
    begin = time.perf_counter()
    loss = trainer.evaluate(model, judged).loss
    return {
        "loss": loss, "seconds": spent, "steps": steps, "seed": seed, "tokens_per_second": steps * B * T / spent,
        "compilation": made.seconds, "evaluation": time.perf_counter() - begin,
        "precision": str(made.dtype).removeprefix("torch."), "note": made.note,
        "parameters": sum(p.numel() for p in model.parameters()), "model": asdict(config),
    }  # fmt: skip


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--budgets", nargs="+", default=["seventh", "same", "180", "600"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--development", action="store_true")
    parser.add_argument("--save", action="store_true")
    chosen = parser.parse_args()
    if not (chosen.checkout / "model.py").is_file():
        sys.exit("benchmarks/time_to_loss.py: name the folder of a clone of nanoGPT")
    text = corpora.load("tinyshakespeare").text
    train_tokens, judged = data.split(torch.tensor(CharTokenizer.train(text, 65).encode(text)))
    if chosen.development:
        train_tokens, judged = data.split(train_tokens)
    engine.keep_memory()
    measure = theirs(chosen.checkout.resolve(), train_tokens, judged)
    tokens_a_second = speed(train_tokens)
    low = "yes" if machine.multiplies_bfloat16() else "no"
    print(f"{machine.processor()}, {torch.get_num_threads()} threads, bfloat16: {low}")
    print(f"judged on {len(judged) - 1:,} targets of {'development' if chosen.development else 'validation'}\n")
    print(f"nanoGPT: {measure['seconds']:.1f} s of training, {measure['steps']:,} steps, loss {measure['loss']:.4f}\n")
    print(f"{'budget':>10} {'goal':>7} {'seed':>5} {'loss':>7} {'train s':>8} {'steps':>6} {'tokens/s':>9} ", end="")
    print(f"{'compile s':>9} {'judge s':>8}")
    rows = []
    for budget in chosen.budgets:
        seconds = {"seventh": measure["seconds"] / 7, "same": measure["seconds"]}.get(budget) or float(budget)
        goal = measure["loss"] if GOALS.get(budget) == "theirs" else GOALS.get(budget, float("nan"))
        for seed in range(1337, 1337 + (chosen.seeds if budget in SEEDED else 1)):
            row = ours(seconds, tokens_a_second, seed, train_tokens, judged)
            rows.append({"budget": seconds, "name": budget, "goal": goal, **row})
            print(
                f"{seconds:9.1f}s {goal:7.4f} {seed:5} {row['loss']:7.4f} {row['seconds']:8.1f} {row['steps']:6,} "
                f"{row['tokens_per_second']:9,.0f} {row['compilation']:9.1f} {row['evaluation']:8.1f}",
                flush=True,
            )
            if chosen.save:  # what is known so far: the rest takes long
                report.save("time to loss", list(table(rows, measure)), nanoGPT=measure, runs=rows)


def table(runs: list[dict], measure: dict):
    """The lines for `report.py`: for each budget the loss, with its spread over seeds, beside the goal."""
    for budget in dict.fromkeys(run["name"] for run in runs):
        group = [run for run in runs if run["name"] == budget]
        losses = sorted(run["loss"] for run in group)
        ours = f"{statistics.mean(losses):.4f}"
        if len(losses) > 1:
            ours += f" ({losses[0]:.4f} to {losses[-1]:.4f}, {len(losses)} seeds)"
        what = f"loss after {max(run['seconds'] for run in group):.0f} s of training"
        beside = f"{measure['loss']:.4f} at {measure['seconds']:.0f} s"
        yield report.row(what, "nanoGPT", ours, beside, None, f"at most {group[0]['goal']:.4f}")


if __name__ == "__main__":
    main()
