"""Writing beside GPT-2 of transformers, side by side in one process: tokens a second, one text at a time, with a cache.

    python benchmarks/writing.py [ROUNDS] [--save]

Two sizes, context 256: 0.8 M parameters (4 layers, 4 heads, width 128; 240 tokens after 16), and 10.6 M (6, 6, 384;
120 after 100). GPT2LMHeadModel holds the same weights, so all must write the same greedy text; with int8 the text may
fork, and agreement is stated: the share of tokens that are the same, and of next tokens given the same text. Weights
are random, a hard case. All take turns; figures are medians, ratios those of the medians. Compilation is not counted.
The threads are PyTorch's own (OMP_NUM_THREADS). Wanted: 3.5 times theirs at 0.8 M, 1.3 at 10.6 M, with int8 3.
"""

import argparse
import os
import statistics
import time

import report
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from gptbook import kv_cache, machine
from gptbook.model import GPT, GPTConfig
from gptbook.writer import Writer, rounded

GOALS = {
    ("0.8 M", "Writer, float32"): "at least 3.5",
    ("10.6 M", "Writer, float32"): "at least 1.3",
    ("10.6 M", "Writer, int8"): "at least 3",
}
SIZES = {  # shape, tokens of the prompt, tokens to write
    "0.8 M": (GPTConfig(block_size=256, qkv_bias=True), 16, 240),
    "10.6 M": (GPTConfig(block_size=256, n_layer=6, n_head=6, n_embd=384, qkv_bias=True), 100, 120),
}


def theirs(model):
    """GPT2LMHeadModel with the weights of one of our models."""
    config = model.config
    other = GPT2LMHeadModel(GPT2Config(
        vocab_size=config.vocab_size, n_positions=config.block_size, n_embd=config.n_embd, n_layer=config.n_layer,
        n_head=config.n_head, activation_function="gelu", tie_word_embeddings=False, bos_token_id=0, eos_token_id=None,
    )).eval()  # fmt: skip
    ours = model.state_dict()
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            weight = ours[name.removeprefix("transformer.")]
            parameter.copy_(weight.T if name.startswith("transformer.h.") and weight.dim() == 2 else weight)
    other.generation_config.pad_token_id = 0
    return other


def ways(model):
    """name -> (a function of a prompt and a count that writes greedily, the seconds that it took to make it)."""
    other = theirs(model)

    def by_transformers(idx, tokens):
        with torch.inference_mode():
            return other.generate(
                idx, attention_mask=torch.ones_like(idx), max_new_tokens=tokens, do_sample=False, use_cache=True
            )

    found = {
        "transformers": (by_transformers, 0.0),
        "kv_cache": (lambda idx, tokens: kv_cache.generate(model, idx, tokens, temperature=0), 0.0),
    }
    for precision in ("float32", "int8"):
        made = Writer(model, precision)
        if made.note:
            print(made.note)
        found[f"Writer, {precision}"] = (lambda i, n, made=made: made.generate(i, n, temperature=0), made.seconds)
    return found


def same_next(model, other, text) -> float:
    """At how many places of a text (1, T) two models hold the same next token likeliest."""
    with torch.inference_mode():
        return (model(text).argmax(-1) == other(text).argmax(-1)).double().mean().item()


def measure(size: str, rounds: int) -> list[dict]:
    """The rows of one size."""
    config, prompt, tokens = SIZES[size]
    torch.manual_seed(1337)
    model = GPT(config).eval()
    idx = torch.randint(config.vocab_size, (1, prompt))  # (1, T)
    found = ways(model)
    texts = {name: write(idx, tokens)[0, prompt:] for name, (write, _) in found.items()}  # also the first call of each
    took = {name: [] for name in found}
    for _ in range(rounds):
        for name, (write, _) in found.items():
            start = time.perf_counter()
            write(idx, tokens)
            took[name].append(time.perf_counter() - start)
    base, reference = statistics.median(took["transformers"]), texts["transformers"]
    longest = torch.cat((idx, texts["kv_cache"][None]), dim=1)[:, : config.block_size]  # (1, T)
    rows = []
    for name, (_, seconds) in found.items():
        speeds = sorted(tokens / t for t in took[name])
        other = rounded(model) if "int8" in name else model
        rows.append({
            "size": size, "way": name, "tokens_per_second": tokens / statistics.median(took[name]),
            "lowest": speeds[0], "highest": speeds[-1], "ratio": base / statistics.median(took[name]),
            "same_text": (texts[name] == reference).double().mean().item(),
            "same_next": same_next(model, other, longest), "compiled_in": seconds,
        })  # fmt: skip
    return rows


def main():
    """Print the table."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("rounds", nargs="?", type=int, default=9)
    arguments.add_argument("--save", action="store_true", help="keep the figures for report.py")
    arguments.add_argument("--size", choices=SIZES, help="one size alone")
    args = arguments.parse_args()
    threads = torch.get_num_threads()
    rows = [row for size in SIZES if args.size in (None, size) for row in measure(size, args.rounds)]
    print(f"{machine.processor()}, {os.cpu_count()} processors, {threads} threads, ", end="")
    print(f"load {os.getloadavg()[0]:.1f}, medians of {args.rounds} turns\n")
    print(
        f"{'':26} {'tokens/s':>9} {'spread':>14} {'ratio':>6} {'same text':>10} {'same next':>10} {'compiled in':>12}"
    )
    for row in rows:
        spread = f"{row['lowest']:,.0f} to {row['highest']:,.0f}"
        print(
            f"{row['size']:7} {row['way']:18} {row['tokens_per_second']:9,.0f} {spread:>14} {row['ratio']:6.2f} "
            f"{row['same_text']:10.3f} {row['same_next']:10.3f} {row['compiled_in']:10.1f} s"
        )
    if args.save:
        report.save("writing", list(table(rows)), ways=rows)


def table(rows):
    """The lines for `report.py`, with the share of next tokens that are the same."""
    for row in rows:
        size, way = row["size"], row["way"]
        if way == "transformers":
            theirs = f"{row['tokens_per_second']:,.0f} tokens/s"
        elif way != "kv_cache":
            ours = f"{row['tokens_per_second']:,.0f} tokens/s"
            what = f"writing: {size}, {way.removeprefix('Writer, ')}, {row['same_next']:.1%} same"
            yield report.row(what, "transformers", ours, theirs, row["ratio"], GOALS.get((size, way), ""))


if __name__ == "__main__":
    main()
