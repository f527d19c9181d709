"""The figures of all benchmarks in one table, for the README and for page 18, where the build puts it.

    python benchmarks/report.py

Each benchmark leaves its figures in `benchmarks/results/`, if it is given `--save`. This command puts them into the
README, between its two marks.
"""

import json
import os
import time
from pathlib import Path

HERE = Path(__file__).parent
RESULTS, README = HERE / "results", HERE.parent / "README.md"
BEGIN, END = "<!-- benchmarks/report.py writes from here -->", "<!-- to here -->"
HEADER = ("what", "peer", "ours", "theirs", "ratio", "goal")


def row(what: str, peer: str, ours: str, theirs: str, ratio: float | None = None, goal: str = "") -> dict:
    """A line of the table; what is better is said by `goal`, "at least 2.5" times or "at most 1.49"."""
    return {"what": what, "peer": peer, "ours": ours, "theirs": theirs, "ratio": ratio, "goal": goal}


def save(name: str, rows: list[dict], **more):
    """Keep the figures of a benchmark, with the machine that they are of: apart where it multiplies bfloat16."""
    import torch

    from gptbook import checkpoint, machine

    about = {
        "name": name, "date": time.strftime("%Y-%m-%d"), "machine": machine.processor(),
        "processors": os.cpu_count(), "threads": torch.get_num_threads(), "load": round(os.getloadavg()[0], 1),
        "bfloat16": machine.multiplies_bfloat16(), "torch": torch.__version__, "rows": rows,
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(about | more, indent=1, default=str) + "\n"
    kind = "-bfloat16" if about["bfloat16"] else ""
    checkpoint.write_aside(RESULTS / f"{name.replace(' ', '-')}{kind}.json", text)


def results() -> list[dict]:
    """What the benchmarks left, in the order of their names."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]


def cells(line: dict) -> list[str]:
    """A line's cells, as text."""
    ratio = "" if line["ratio"] is None else f"{line['ratio']:.2f}"
    goal = line["goal"].replace("at least", "≥").replace("at most", "≤").replace(" ", "\N{NO-BREAK SPACE}")
    return [line["what"], line["peer"], line["ours"], line["theirs"], ratio, goal]


def tables(found: list[dict]):
    """A table for each machine: what is said of it, and the lines as cells."""
    machines = {}
    for result in found:
        low = "with" if result["bfloat16"] else "without"
        key = f"{result['machine']}, {low} instructions for bfloat16, {result['threads']} threads"
        machines.setdefault(key, []).append(result)
    for key, group in machines.items():
        dates = " and ".join(sorted({result["date"] for result in group}))
        yield f"Measured on {dates}: {key}.", [cells(line) for result in group for line in result["rows"]]


def markdown(found: list[dict]) -> str:
    """The tables in Markdown, for the README."""
    parts = []
    for caption, lines in tables(found):
        parts.append(f"{caption}\n\n| " + " | ".join(HEADER) + " |\n|" + "---|" * len(HEADER))
        parts += ["| " + " | ".join(line) + " |" for line in lines]
        parts.append("")
    return "\n".join(parts)


def page(found: list[dict]) -> str:
    """The tables in HTML, as the book shows its tables."""
    from gptbook import display

    shown = (display.table(lines, HEADER, caption)._repr_html_() for caption, lines in tables(found))
    return "\n\n".join(
        f'<div class="output html benchmarks" tabindex="0" data-search-exclude>{table}</div>' for table in shown
    )


def main():
    """Write the table into the README."""
    from gptbook import checkpoint

    text = README.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise SystemExit(f"README.md: it lacks the marks {BEGIN} and {END}")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    checkpoint.write_aside(README, f"{before}{BEGIN}\n\n{markdown(results())}\n{END}{after}")


if __name__ == "__main__":
    main()
