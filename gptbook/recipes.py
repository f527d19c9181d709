"""The named configurations of the book: what each model looks like, how it is trained, and the models so made."""

import ast
import contextlib
import hashlib
import json
import math
import os
import platform
import secrets
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import platformdirs
import torch

from gptbook import checkpoint, corpora, engine, kv_cache, runs
from gptbook.data import encoded, judged, split
from gptbook.machine import processor
from gptbook.model import GPT, GPTConfig
from gptbook.modern import ModernConfig, ModernGPT
from gptbook.progress import Progress
from gptbook.tokenizers import BPETokenizer, CharTokenizer
from gptbook.trainer import TrainConfig, estimate_loss, train

PRESETS = {
    "step-5": GPTConfig(),
    "lets-build": GPTConfig(
        block_size=32, n_layer=3, n_embd=64, activation="relu", head_bias=True, scale_residual=False
    ),
    "lets-build-bpe": GPTConfig(
        vocab_size=1024, block_size=32, n_layer=3, n_embd=64, activation="relu", head_bias=True, scale_residual=False
    ),
    "under-the-hood": GPTConfig(block_size=128, qkv_bias=True),
    "larger": GPTConfig(block_size=256, n_layer=6, n_head=6, n_embd=384, dropout=0.2),
    "gpt2": GPTConfig(
        vocab_size=50257, block_size=1024, n_layer=12, n_head=12, n_embd=768,
        activation="gelu_tanh", qkv_bias=True, tied=True, init="gpt2",
    ),
    "shakespeare": ModernConfig(
        block_size=256, activation="relu2", gain=False, qk_norm=True, embedding_norm=True, tied=False, ngrams=5,
        ngram_dropout=0.1,
    ),
    "smollm2": ModernConfig(
        vocab_size=49152, block_size=8192, n_layer=30, n_head=9, n_kv_head=3, n_embd=576, n_inner=1536,
        rope_base=100000.0,
    ),
}  # fmt: skip

TRAINING = {
    "step-5": TrainConfig(
        batch_size=12, steps=3300, learning_rate=1e-3, min_learning_rate=1e-4, warmup_steps=100, schedule="cosine",
        weight_decay=0.1, betas=(0.9, 0.99), clip=1.0, eval_every=300, snapshots=(0, 50, 300, 900), precision="auto",
    ),
    "lets-build": TrainConfig(
        batch_size=16, steps=3000, learning_rate=1e-3, eval_every=300, random_batches=50, precision="auto",
        snapshots=(0, 50, 300, 900),
    ),
    "lets-build-bpe": TrainConfig(  # as much work as lets-build: its tokens cost more each, for the larger unembedding
        batch_size=16, steps=2183, learning_rate=1e-3, eval_every=300, random_batches=50, precision="auto",
        snapshots=(0, 50, 300, 900),
    ),
    "under-the-hood": TrainConfig(
        batch_size=32, steps=1000, learning_rate=2e-3, eval_every=100, precision="auto",
        snapshots=(0, 50, 100, 200, 300, 400, 500, 700),
    ),
    "shakespeare": TrainConfig(
        batch_size=8, steps=1500, learning_rate=5e-3, warmup_steps=100, schedule="linear", weight_decay=0.1,
        betas=(0.9, 0.95), clip=1.0, eval_every=500, optimizer="muon", table_decay=10.0, precision="auto", compile=True,
    ),
    "larger": TrainConfig(
        batch_size=64, steps=5000, learning_rate=1e-3, min_learning_rate=1e-4, warmup_steps=100, schedule="cosine",
        weight_decay=0.1, betas=(0.9, 0.99), clip=1.0, eval_every=250, precision="auto", compile=True,
    ),
}  # fmt: skip

CORPORA = {
    "step-5": "tinyshakespeare",
    "lets-build": "tinyshakespeare",
    "lets-build-bpe": "tinyshakespeare",
    "under-the-hood": "book",
    "shakespeare": "tinyshakespeare",
    "larger": "tinyshakespeare",
}
FOR_A_GPU = ("larger",)  # no page loads it: a processor would need days
OWN_VOCABULARY = ("under-the-hood",)  # the others keep V = 65 on every text
PIECES = ("lets-build-bpe",)  # tokens are pieces of words; for the others, characters


def build(config: GPTConfig | ModernConfig) -> GPT | ModernGPT:
    """A new model of the configuration's family, with fresh initial weights."""
    return ModernGPT(config) if isinstance(config, ModernConfig) else GPT(config)


@dataclass
class Trained:
    """A recipe's model, trained to the end. `history` is one dictionary a measurement; `summary` holds the losses at
    the end (nats a token: over all of the validation part, and over as long a beginning of the training part), that of
    validation in bits per byte too, the time, the speed, the machine.
    """

    model: GPT | ModernGPT
    tokenizer: CharTokenizer | BPETokenizer
    corpus: corpora.Corpus
    history: list[dict] = field(repr=False)
    summary: dict
    folder: Path = field(repr=False)

    def snapshots(self) -> Iterator[tuple[int, GPT | ModernGPT]]:
        """Some step numbers from the way, in order, each with the model as it was after so many steps."""
        for step in json.loads((self.folder / runs.CONFIG).read_text(encoding="utf-8"))["training"]["snapshots"]:
            yield step, runs.load_run(self.folder, step).model.eval()


loaded_runs: dict[str, str] = {}  # name -> key and sha256 of the weights of each recipe that `trained` gave
loaded_folders: dict[str, Path] = {}  # name -> the folder of that run


def tokenizer_for(name: str, text: str, own: bool = False) -> CharTokenizer | BPETokenizer:
    """The tokenizer of the recipe `name` for a text: pieces learned on its training part, or its characters.

    As many tokens as the recipe's model has, or, of characters and if `own`, as many as the text has.
    """
    vocab_size = PRESETS[name].vocab_size
    if name in PIECES:
        return BPETokenizer.train(split(text)[0], vocab_size)
    return CharTokenizer.train(text, None if own or name in OWN_VOCABULARY else vocab_size)


def trained(name: str, show: bool | None = None) -> Trained:
    """The model of the recipe `name`, trained on its text: kept from the last time, or trained now.

    A kept model serves as long as everything it depends on is the same: the source that training runs, both
    configurations, the text and its tokens, the versions of Python and PyTorch; not the processor, whose instructions
    may have decided the precision. Models are kept in the folder that
    GPTBOOK_RUNS names, else in the user's cache. A training shows how it goes on on a terminal, elsewhere only if
    `show` says so. Raises ValueError for an unknown recipe.

    The text of the book changes with each edit of a page, so a model of it keeps the text that it read, as
    book/input.txt: with its folder in GPTBOOK_DATA, that text is the book, and the model serves.
    """
    if name not in TRAINING:
        raise ValueError(f"recipe {name!r}: there is none of this name: choose one of {', '.join(TRAINING)}")
    corpus = corpora.load(CORPORA[name])
    tokenizer = tokenizer_for(name, corpus.text)
    tokens = encoded(corpus.text, tokenizer)
    config = replace(PRESETS[name], vocab_size=tokenizer.vocab_size)
    key = _key(config, TRAINING[name], corpus, tokenizer, tokens)
    folder = _runs_folder() / f"{name}-{key[:16]}"
    if not folder.exists():
        _make(folder, name, config, tokenizer, corpus, tokens, sys.stderr.isatty() if show is None else show)
    try:
        run = runs.load_run(folder)
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise runs.RunError(f"{folder}: the kept model cannot be read ({error}): delete this folder") from error
    loaded_folders[name] = folder
    loaded_runs[name] = f"{key} {checkpoint.digest(checkpoint.weights(run.model))}"
    return Trained(run.model.eval(), tokenizer, corpus, run.history, summary, folder)


def _runs_folder() -> Path:
    named = os.environ.get("GPTBOOK_RUNS")
    return Path(named) if named else Path(platformdirs.user_cache_dir("gptbook", appauthor=False)) / "runs"


def _key(config: GPTConfig | ModernConfig, training: TrainConfig, corpus: corpora.Corpus, tokenizer, tokens) -> str:
    """The sha256 of all that a trained model depends on: of the tokenizer what it is and gives, not its source."""
    source = source_closure("gptbook.trainer", "gptbook.corpora")
    if isinstance(config, GPTConfig):
        source.pop("gptbook.modern", None)  # which runs can hold, and this one does not
    parts = {
        "source": source,
        "model": asdict(config),
        "training": asdict(training),
        "text": corpus.sha256,
        "tokenizer": tokenizer.to_dict(),
        "tokens": [hashlib.sha256(part.numpy().tobytes()).hexdigest() for part in tokens],
        "torch": str(torch.__version__),
        "python": platform.python_version_tuple()[:2],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def source_closure(*modules: str, root: Path | None = None) -> dict[str, str]:
    """The sha256 of each module of this package that `modules` import, themselves included, however far away.

    Found by reading the source, not by importing it. `root` is the folder of the package.
    """
    root = root or Path(__file__).parent
    found, todo = {}, list(modules)
    while todo:
        module = todo.pop()
        path = _source_of(module, root)
        if module in found or path is None:
            continue
        source = path.read_bytes()
        found[module] = hashlib.sha256(source).hexdigest()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                todo += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
                    above = package[: len(package) - node.level + 1]
                    base = ".".join([*above, base] if base else above)
                todo += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return dict(sorted(found.items()))


def _source_of(module: str, root: Path) -> Path | None:
    package, *rest = module.split(".")
    if package != root.name or not rest:  # of the package itself only the map, which nothing computes with
        return None
    path = root.joinpath(*rest)
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def run_about(preset: str, data: str, corpus: corpora.Corpus, tokenizer: CharTokenizer | BPETokenizer) -> dict:
    """What the config.json of a run says beside model and training: recipe, text, vocabulary."""
    text = {"name": corpus.name, "sha256": corpus.sha256}
    return {"preset": preset, "data": data, "corpus": text, "tokenizer": tokenizer.to_dict()}


def _make(folder: Path, name: str, config, tokenizer, corpus: corpora.Corpus, tokens, show: bool):
    """Train beside `folder` and rename into it, so that a folder of this name always holds a finished run."""
    training = TRAINING[name]
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = folder.with_name(f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        torch.manual_seed(training.seed)
        model = build(config)
        train_tokens, val_tokens = tokens
        peak = peak_gflops(dtype=engine.dtype_of(training.precision))
        extra = run_about(name, CORPORA[name], corpus, tokenizer)
        with Progress(training.steps) if show else contextlib.nullcontext() as progress:
            result = train(model, train_tokens, val_tokens, training, folder=aside, progress=progress, extra=extra)
        if result.interrupted:
            raise KeyboardInterrupt
        val_loss = result.history[-1]["val_loss"]
        val_bytes = len(judged(split(corpus.text)[1], tokenizer, val_tokens).encode(errors="surrogatepass"))
        summary = {
            "steps": result.step,
            "seconds": result.seconds,
            "tokens_per_second": result.tokens_per_second,
            "train_loss": result.history[-1]["train_loss"],
            "val_loss": val_loss,
            "val_targets": len(val_tokens) - 1,
            "val_bytes": val_bytes,  # that the targets stand for
            "val_bits_per_byte": val_loss * (len(val_tokens) - 1) / val_bytes / math.log(2),
            "gflops": result.tokens_per_second * flops_per_token(config) / 1e9,
            "peak_gflops": peak,
            "precision": str(result.used.dtype).removeprefix("torch."),
            "compile_seconds": result.used.seconds,
            "threads": torch.get_num_threads(),
            "processor": processor(),
        }
        if training.random_batches:
            for which, tokens in (("train_estimate", train_tokens), ("val_estimate", val_tokens)):
                summary[which] = estimate_loss(model, tokens, training.random_batches, training.batch_size)
        checkpoint.write_aside(aside / "summary.json", json.dumps(summary, indent=1) + "\n")
        if corpus.name == "book":
            (aside / "book").mkdir()
            (aside / "book" / "input.txt").write_text(corpus.text, encoding="utf-8", newline="\n")
        try:
            aside.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was quicker: its run serves as well
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def flops_per_token(config: GPTConfig | ModernConfig) -> int:
    """Multiplications and additions that training spends on a token: forward 2 for each weight of a matrix product
    and for each score and each weighted value, backward twice as many.
    """
    forward = 2 * kv_cache.multiply_adds(config, config.block_size)  # of a whole row
    return 3 * forward // config.block_size


def peak_gflops(size: int = 1024, bursts: int = 7, dtype: torch.dtype = torch.float32) -> float:
    """What this machine reaches in `dtype` on a matrix product that fits it well: the median of a few bursts."""
    a, b = torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
    a @ b  # the first one also wakes the threads
    rates = []
    for _ in range(bursts):
        start = time.perf_counter()
        for _ in range(4):
            a @ b
        rates.append(4 * 2 * size**3 / (time.perf_counter() - start) / 1e9)
    return statistics.median(rates)


def main(names: list[str]) -> int:
    """Make the models of the recipes named, or of all that pages share, unless they are kept already."""
    try:
        for name in names or (name for name in TRAINING if name not in FOR_A_GPU):
            made = trained(name, show=True)
            print(f"{name}: val {made.summary['val_loss']:.3f} after {made.summary['steps']:,} steps")
    except (ValueError, OSError) as error:
        print(f"recipes: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("recipes: stopped by Ctrl-C: nothing was kept of the run under way", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
