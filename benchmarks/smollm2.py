"""SmolLM2 in our class beside the same file in transformers: loading, and writing with a cache.

    python benchmarks/smollm2.py [REPEATS] [--save]

Loading is timed in processes of their own, from after the imports to a model ready to use, and as a whole with them.
Writing is timed in turn, in one process, 64 tokens each, so that both meet the same machine. Figures are medians. A
load must stay below 6 seconds, and writing must be at least 1.3 times as fast as theirs.
"""

import os
import statistics
import subprocess
import sys
import time

TOKENS = 64
PROMPT = "Once upon a time"
LOADS = {
    "ours": ("from gptbook import pretrained", "pretrained.load('smollm2')"),
    "theirs": (
        "from gptbook import assets; import torch, transformers as t; p = assets.fetch('smollm2');"
        "about = dict(pretrained_model_name_or_path=p.parent, gguf_file=p.name);"
        "t.AutoModelForCausalLM, t.AutoTokenizer",  # they are imported when first named
        "t.AutoModelForCausalLM.from_pretrained(**about, dtype=torch.float32),t.AutoTokenizer.from_pretrained(**about)",
    ),
}


def load_seconds(imports: str, load: str) -> tuple[float, float]:
    """Seconds for a load alone, and with the start of Python and the imports."""
    program = f"{imports}\nimport time\nstart = time.perf_counter()\n{load}\nprint(time.perf_counter() - start)"
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1]), time.perf_counter() - start


def main(repeats: int = 3, save: bool = False):
    """Print the table, and keep it for `report.py`."""
    loads = {}
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}, medians of {repeats}\n", flush=True)
    for name, (imports, load) in LOADS.items():
        alone, whole = zip(*(load_seconds(imports, load) for _ in range(repeats)), strict=True)
        loads[name] = statistics.median(alone)
        print(
            f"load, {name:8} {statistics.median(alone):6.1f} s, with imports {statistics.median(whole):6.1f} s",
            flush=True,
        )

    import torch
    import transformers

    from gptbook import assets, kv_cache, pretrained

    path = assets.fetch("smollm2")
    loaded = pretrained.load("smollm2")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    idx = torch.tensor([loaded.encode(PROMPT)])  # (B, T)
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "attention_mask": torch.ones_like(idx)}

    def write_ours(tokens=TOKENS):
        return kv_cache.generate(loaded.model, idx, tokens, temperature=0)

    def write_theirs(tokens=TOKENS):
        return theirs.eval().generate(idx, max_new_tokens=tokens, **settings)

    if not torch.equal(write_ours(8), write_theirs(8)):  # the first call of each is not counted
        raise SystemExit("they do not write the same text")
    speeds = {write_ours: [], write_theirs: []}
    for _ in range(repeats):
        for write, found in speeds.items():
            start = time.perf_counter()
            write()
            found.append(TOKENS / (time.perf_counter() - start))
    ours, other = (statistics.median(found) for found in speeds.values())
    print(f"write, ours {ours:.1f} tokens/s, theirs {other:.1f} tokens/s, ratio {ours / other:.2f}")
    if save:
        import report

        ratio = loads["theirs"] / loads["ours"]
        what = "SmolLM2, 135 M parameters"
        report.save(
            "smollm2",
            [
                report.row(
                    f"{what}: load", "transformers", *(f"{loads[who]:.1f} s" for who in ("ours", "theirs")), ratio,
                    "at most 6 s",
                ),
                report.row(
                    f"{what}: write, cached", "transformers", f"{ours:.1f} tokens/s", f"{other:.1f} tokens/s",
                    ours / other, "at least 1.3",
                ),
            ],
        )  # fmt: skip


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:] if word != "--save"), save="--save" in sys.argv)
