"""The command `gptbook`: data, train, eval, sample, check.

Exit codes: 0 done; 1 when `check` found a mistake; 2 with one line on stderr when something is wrong; 130 when Ctrl-C
ended it, after `train` has written a checkpoint; 141, silently, when whoever reads the output has gone.
"""

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

DEFAULT_OUT = "runs/PRESET"


class UsageError(ValueError):
    """The command line asks for something that cannot be done."""


class Parser(argparse.ArgumentParser):
    """An argument parser that complains in one line."""

    def error(self, message):
        """End with one line and exit code 2."""
        self.exit(2, f"{self.prog}: {' '.join(message.split())} (see {self.prog} --help)\n")


def whole(least: int):
    """A parser of whole numbers of at least `least`."""

    def parse(text):
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or not least <= value < 2**63:
            raise argparse.ArgumentTypeError(f"needs a whole number of at least {least}, got {text!r}")
        return value

    return parse


def number(least: float, above: bool = False):
    """A parser of finite numbers of at least `least`, or `above` it."""

    def parse(text):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < least or (above and value == least):
            raise argparse.ArgumentTypeError(
                f"needs a number {'above' if above else 'of at least'} {least:g}, got {text!r}"
            )
        return value

    return parse


def share(text: str) -> float:
    """A parser of numbers from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"needs a number from 0 to 1, got {text!r}")
    return value


def named(text: str) -> str:
    """A parser of names: an empty one is most likely an unset variable of the shell, and means nothing."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: give a name, or leave the option out")
    return text


def place(text: str) -> Path:
    """A parser of folders, which `Path("")` would take for the current one."""
    return Path(named(text))


def parser() -> Parser:
    """The command line. No module of this package is imported for it, so that `--help` comes at once."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--debug", action="store_true", help="show where in the program an error comes from")
    description = "Train small GPTs, measure them, let them write, and check your own."
    top = Parser(prog="gptbook", description=description, parents=[common], allow_abbrev=False)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name, run, text):
        made = commands.add_parser(name, help=text, description=text, parents=[common], allow_abbrev=False)
        made.set_defaults(run=run)
        return made

    data = command("data", run_data, "list the texts to train on, or fetch one and describe it")
    data.add_argument("name", nargs="?", metavar="NAME", help="tinyshakespeare, python-docs, book, or a text file")

    train = command("train", run_train, "train a model and keep the run in a folder")
    presets = "step-5 (the default), shakespeare, lets-build, lets-build-bpe, under-the-hood, or larger (for a GPU)"
    train.add_argument("--preset", metavar="NAME", help=presets)
    train.add_argument(
        "--data", type=named, metavar="NAME_OR_FILE", help="a text's name or a UTF-8 file (default: the preset's)"
    )
    train.add_argument("--steps", type=whole(1), metavar="N", help="steps in all (default: the preset's)")
    train.add_argument(
        "--minutes", type=number(0, above=True), metavar="M", help="stop before so many minutes are over"
    )
    train.add_argument("--seed", type=whole(0), metavar="S", help="first weights and batches (default: 1337)")
    train.add_argument(
        "--device", type=named, metavar="D", help="cpu, cuda, mps (default: cuda where there is one, else cpu)"
    )
    train.add_argument("--out", type=place, metavar="DIR", help=f"folder of the run (default: {DEFAULT_OUT})")
    train.add_argument("--resume", action="store_true", help="go on with the run in DIR, to N steps if --steps says so")

    evaluate = command("eval", run_eval, "the loss of a trained model over a whole split, the same every time")
    evaluate.add_argument("folder", type=place, metavar="DIR", help="the folder of a run")
    evaluate.add_argument("--split", choices=("val", "train"), default="val", help="val (the default) or train")
    evaluate.add_argument("--json", action="store_true", help="print one JSON object")

    sample = command("sample", run_sample, "let a trained model go on with a text")
    sample.add_argument("folder", type=place, metavar="DIR", help="the folder of a run")
    sample.add_argument(
        "--prompt", metavar="TEXT", help="what to go on with (default: the first symbol, or a line end)"
    )
    sample.add_argument("--tokens", type=whole(1), default=300, metavar="N", help="how many to add (default: 300)")
    sample.add_argument(
        "--temperature", type=number(0), default=1.0, metavar="T", help="0 takes the likeliest each time (default: 1)"
    )
    sample.add_argument("--top-k", type=whole(1), metavar="K", help="choose among the K likeliest only")
    sample.add_argument(
        "--top-p", type=share, metavar="P", help="choose among the fewest likeliest that hold P of the chances together"
    )
    sample.add_argument("--seed", type=whole(0), default=1337, metavar="S", help="another seed, another text")
    sample.add_argument(
        "--no-cache", action="store_true", help="compute the past anew for each token: the same text, more slowly"
    )

    check = command("check", run_check, "check your own GPT, or parts of one, and name what is wrong")
    check.add_argument(
        "file",
        type=place,
        metavar="FILE.py",
        help="defines build_model(), GPT, attention, sample, ... (all names: page “Check your own GPT”)",
    )
    check.add_argument("--json", action="store_true", help="print one JSON object")
    check.add_argument(
        "--limit", type=number(0, above=True), metavar="S",
        help="the longest that importing FILE and each check may take (default: 30 and 300 seconds)",
    )  # fmt: skip
    return top


def run_data(args):
    """List the corpora, or fetch one and say what it is."""
    from gptbook import corpora

    if args.name is None:
        for name, about in corpora.KNOWN.items():
            found = corpora.find(name)
            here = f"{len(found.text):,} characters, {found.source}" if found else "not on this machine"
            print(f"{name:16} {about} ({here})")
        print(f"{'FILE':16} a text file of your own, in UTF-8")
        return
    corpus = corpora.load(args.name)
    _say_note(corpus)
    print(f"name        {corpus.name}")
    print(f"path        {corpus.path or '-'}")
    print(f"characters  {len(corpus.text):,}")
    print(f"symbols     {len(set(corpus.text)):,}")
    print(f"sha256      {corpus.sha256}")
    print(f"source      {corpus.source}")


def run_train(args):
    """Train, or go on training; where torchrun started several processes, together with the others."""
    from gptbook import parallel

    with parallel.joined():
        return _train(args)


def _train(args):
    started = time.monotonic()
    from dataclasses import replace

    import torch

    from gptbook import corpora, recipes, runs
    from gptbook.data import encoded, windows
    from gptbook.progress import Progress
    from gptbook.trainer import TrainConfig, train

    if args.preset is not None and args.preset not in recipes.TRAINING:
        known = ", ".join(recipes.TRAINING)
        why = "is not trained here" if args.preset in recipes.PRESETS else "is not known"
        raise UsageError(f"preset {args.preset!r} {why}: choose one of {known}")
    folder = args.out or Path(DEFAULT_OUT.replace("PRESET", args.preset or "step-5"))
    device = _device(args.device)

    done = 0
    if args.resume:
        if not folder.exists():
            raise UsageError(f"{folder}: there is no run to resume: train one without --resume first")
        run, tokenizer = _load_run(folder)
        there, done = run.config, run.step
        for name, asked, kept in (
            ("--preset", args.preset, there["preset"]),
            ("--data", args.data and _data_name(args.data), there["data"]),
            ("--seed", args.seed, there["training"]["seed"]),
        ):
            if asked is not None and asked != kept:
                raise UsageError(f"{folder}: its run has {name} {kept}, not {asked}: resume without {name}")
        preset, data = there["preset"], there["data"]
        if args.steps is not None and args.steps < done:
            raise UsageError(f"{folder}: its run has done {done} steps: ask for more than that with --steps")
        training = TrainConfig(**there["training"])
        training = replace(training, steps=args.steps or training.steps)
        if training.steps == done:
            _say(f"{folder}: all {done} steps are done; --steps N with a larger N goes on")
            return
        corpus = _same_corpus(there)
        model = run.model
    else:
        if runs.is_run(folder):
            raise UsageError(f"{folder}: holds a run already: go on with it by --resume, or choose another --out")
        preset = args.preset or "step-5"
        data = _data_name(args.data or recipes.CORPORA[preset])
        corpus = corpora.load(data)
        tokenizer = recipes.tokenizer_for(preset, corpus.text, own=True)
        training = recipes.TRAINING[preset]
        steps = args.steps or training.steps
        training = replace(
            training,
            steps=steps,
            warmup_steps=min(training.warmup_steps, steps // 10),
            snapshots=tuple(step for step in training.snapshots if step <= steps),
            seed=training.seed if args.seed is None else args.seed,
        )
        torch.manual_seed(training.seed)
        model = recipes.build(replace(recipes.PRESETS[preset], vocab_size=tokenizer.vocab_size))

    train_tokens, val_tokens = encoded(corpus.text, tokenizer)
    for part in (train_tokens, val_tokens):
        windows(part, model.config.block_size)  # complains about too short a text before anything is said or written
    _say_note(corpus)
    _say(
        f"{preset} on {corpus.name}, {len(corpus.text):,} characters, {tokenizer.vocab_size} symbols; "
        f"{sum(p.numel() for p in model.parameters()):,} parameters; {training.steps - done:,} steps on {device}, "
        f"threads: {torch.get_num_threads()}"
    )
    extra = recipes.run_about(preset, data, corpus, tokenizer)
    minutes = None if args.minutes is None else args.minutes - (time.monotonic() - started) / 60
    with Progress(training.steps, done) as progress:
        result = train(
            model,
            train_tokens,
            val_tokens,
            training,
            folder=folder,
            resume=args.resume,
            minutes=minutes,
            progress=progress,
            device=device,
            extra=extra,
        )
    row = result.history[-1]
    print(
        f"{folder}: {result.step:,} steps, train {row['train_loss']:.4f}, val {row['val_loss']:.4f} nats, "
        f"{result.seconds:.1f} s, {result.tokens_per_second:,.0f} tokens/s"
    )
    if result.used.words:
        _say(result.used.words)
    if result.step < training.steps:
        _say(f"{'stopped by Ctrl-C' if result.interrupted else 'time is up'}: --resume goes on from here")
    return 130 if result.interrupted else 0


def run_eval(args):
    """Measure a trained model."""
    from gptbook.data import encoded, judged, split
    from gptbook.trainer import evaluate

    run, tokenizer = _load_run(args.folder)
    corpus = _same_corpus(run.config)
    part = ("train", "val").index(args.split)
    text, tokens = split(corpus.text)[part], encoded(corpus.text, tokenizer)[part]
    found = evaluate(run.model, tokens, characters=len(judged(text, tokenizer, tokens)))
    if args.json:
        about = {"loss": found.loss, "bits_per_character": found.bits_per_character}
        print(json.dumps(about | {"tokens": found.tokens, "split": args.split}))
    else:
        print(
            f"{args.split}: {found.loss:.4f} nats a token, {found.bits_per_character:.4f} bits per character, "
            f"over all {found.tokens:,} targets"
        )


def run_sample(args):
    """Let a trained model write."""
    import torch

    from gptbook import kv_cache, sampling

    run, tokenizer = _load_run(args.folder)
    if args.prompt == "":
        raise UsageError("--prompt is empty: give at least one character, or leave the option out")
    first = getattr(tokenizer, "symbols", "\n")[0]  # a vocabulary of pieces begins with no text to speak of
    ids = tokenizer.encode(first if args.prompt is None else args.prompt)
    random = torch.Generator().manual_seed(args.seed)
    out = (sampling if args.no_cache else kv_cache).generate(
        run.model,
        torch.tensor([ids]),  # (1, T)
        args.tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        generator=random,
        top_p=args.top_p,
    )  # (1, T + N)
    print(tokenizer.decode(out[0].tolist()))


def run_check(args):
    """Check what a reader's file defines."""
    from gptbook import check

    limits = (args.limit, args.limit) if args.limit else (check.IMPORT_SECONDS, check.CHECK_SECONDS)
    found = check.check_file(args.file, *limits)
    print(found.to_json() if args.json else found)
    return 1 if found.failed else 0


def _load_run(folder):
    """The run in `folder` and its tokenizer."""
    from gptbook import runs, tokenizers

    run = runs.load_run(folder)
    missing = {"preset", "data", "corpus", "tokenizer"} - run.config.keys()
    if missing:
        raise UsageError(f"{folder}: its config.json lacks {', '.join(sorted(missing))}: use a run of `gptbook train`")
    return run, tokenizers.from_dict(run.config["tokenizer"])


def _data_name(name: str) -> str:
    """What config.json keeps of --data: a text's name, or a file's full path, which means the same everywhere."""
    from gptbook import corpora

    name = corpora.ALIASES.get(name, name)
    return name if name in corpora.KNOWN else str(Path(name).resolve())


def _same_corpus(config: dict):
    """The text that a run was trained on. Raises UsageError if another one is found now."""
    from gptbook import corpora

    kept, name = config["corpus"], config["data"]
    # A text that had to stand in for another one is asked for by its own name.
    corpus = corpora.load(kept["name"] if kept["name"] in corpora.KNOWN and name in corpora.KNOWN else name)
    if corpus.sha256 != kept["sha256"]:
        raise UsageError(
            f"{name}: this is not the text of the run any more (sha256 {corpus.sha256[:12]}, it was "
            f"{kept['sha256'][:12]}): put that text back, or train anew"
        )
    return corpus


def _device(name):
    """The device asked for, or the best one that is sure to work."""
    import torch

    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and "TORCHELASTIC_RUN_ID" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"  # each of several processes has a GPU of its own
    try:
        torch.zeros(1, device=name).item()  # "meta", which holds no numbers, fails here
        return torch.device(name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(f"--device {name}: cannot be used ({str(error).splitlines()[0][:80]}): try cpu") from error


def _say(line):
    print(line, file=sys.stderr, flush=True)


def _say_note(corpus):
    if corpus.note:
        _say(corpus.note)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # a model may write any character
    argv = sys.argv[1:] if argv is None else argv
    process = os.environ.get("RANK", "0") if "TORCHELASTIC_RUN_ID" in os.environ else "0"
    if process != "0" and "--debug" not in argv:  # of several that torchrun started, the first speaks for all
        sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    code = _run(argv, process)
    if code and process != "0":
        time.sleep(2)  # torchrun ends all of them as soon as one fails: let the first say why
    return code


def _run(argv: list[str], process: str) -> int:
    try:
        args = parser().parse_args(argv)
        code = args.run(args) or 0
        if sys.stdout is not None:
            sys.stdout.flush()  # here, so that a reader who has gone is noticed here
        return code
    except SystemExit as end:  # argparse, after --help or an error
        return end.code
    except BrokenPipeError:  # `gptbook sample DIR | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit would complain
        return 141
    except KeyboardInterrupt:
        _say("gptbook: stopped by Ctrl-C")
        return 130
    except Exception as error:
        if "--debug" in argv:
            raise
        words = " ".join(str(error).split())
        if not isinstance(error, ValueError | OSError):  # not foreseen: the kind of error may tell more than its words
            words = f"{type(error).__name__}: {words} (--debug shows where)"
            if process != "0":  # and it may have happened in this process alone
                sys.stderr = sys.__stderr__
                words = f"process {process}: {words}"
        _say(f"gptbook: {words}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
