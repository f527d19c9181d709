"""`gptbook check FILE.py`: the checks of `verify` on what a reader's own file defines.

The file is imported, and its functions are called, in a process of their own: what they print goes nowhere, and one
that never ends is ended. What the process finds it writes into a file, line by line, so that nothing found is lost.
"""

import importlib.util
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from gptbook.verify.report import FAILED, NOT_CHECKED, Report, Result
from gptbook.verify.subject import one_line

IMPORT_SECONDS, CHECK_SECONDS = 30.0, 300.0  # the longest that importing FILE and one check may take

TEXT = """Three mice set out to read a wall of books, and asked each other: "How?" One took a page, one a word, and
one, the youngest, a single letter. 'A letter & the next,' she said; is that not all of it? A quick fox jumps over lazy
dogs; why, they pay $3 a jump! - So Zoe, Cy and Pat went on (by night) until J. K. Quill, who keeps the books, found
them. WHAT DID YOU LEARN? THAT EVERY GUESS ABOUT THE NEXT LETTER IS MADE OF ALL LETTERS BEFORE IT; AND BY XYZ, NO MORE.
"""


class CannotCheck(ValueError):
    """FILE cannot be checked at all; the message, one line, says why."""


@dataclass(frozen=True)
class Outcome:
    """What was found in a file: a report for each thing that could be asked about, and the names that it lacks."""

    file: str
    reports: dict[str, Report]
    absent: tuple[str, ...]

    @property
    def failed(self) -> list[str]:
        """What failed, as "attention: scale"."""
        return [f"{about}: {name}" for about, report in self.reports.items() for name in report.failed]

    @property
    def summary(self) -> str:
        """One sentence about everything that was checked."""
        return Report(tuple(result for report in self.reports.values() for result in report.results)).summary

    def __str__(self):
        blocks = []
        for about, report in self.reports.items():
            *lines, _, _ = str(report).splitlines()  # the last is this report's own summary
            blocks += [about, *(f"  {line}" for line in lines), ""]
        if self.absent:
            blocks += [f"not defined, so not checked: {', '.join(self.absent)}"]
        return "\n".join([*blocks, self.summary + (f" ({'; '.join(self.failed)})" if self.failed else "")])

    def to_json(self) -> str:
        """One JSON object: file, passed, failed, not_defined, and the results, each with what it is `about`."""
        results = [
            {"about": about, **asdict(result)} for about, report in self.reports.items() for result in report.results
        ]
        content = {"file": self.file, "passed": not self.failed, "failed": self.failed}
        return json.dumps({**content, "not_defined": self.absent, "results": results}, ensure_ascii=False, indent=1)


def check_file(path, import_seconds: float = IMPORT_SECONDS, check_seconds: float = CHECK_SECONDS) -> Outcome:
    """Check what the file at `path` defines, by the names in SUBJECTS.

    Raises CannotCheck if there is no such file, if it cannot be imported in `import_seconds`, or if there is nothing in
    it to check. A check that takes more than `check_seconds` has failed.
    """
    path = Path(path)
    if not path.is_file():
        raise CannotCheck(f"{path}: there is {'a folder' if path.is_dir() else 'no file'} of this name")
    if path.suffix == ".ipynb":
        raise CannotCheck(f"{path}: is a notebook: save its code as a .py file, and check that")
    reports: dict[str, Report] = {}
    absent, skip = (), []
    while True:  # once for each check that ends or stops the process, and once more
        stopped = None
        for event in _events(path, skip, import_seconds, check_seconds):
            if event["event"] == "cannot":
                raise CannotCheck(f"{path}: {event['why']}")
            if event["event"] == "found":
                absent = tuple(event["absent"])
            if event["event"] == "report":
                reports[event["about"]] = Report(tuple(Result(**result) for result in event["results"]))
                skip.append(event["about"])
            if event["event"] == "stopped":
                stopped = event
        if stopped is None:
            break
        if stopped["about"] is None:
            raise CannotCheck(f"{path}: {stopped['why']}")
        result = Result("answer", FAILED, stopped["why"], "an answer", "is there a loop that never ends, or an exit?")
        reports[stopped["about"]] = Report((result,))
        skip.append(stopped["about"])
    reports = {about: reports[about] for about in SUBJECTS if about in reports}
    if not reports:
        raise CannotCheck(f"{path}: defines none of {', '.join(NAMES)}")
    if all(result.status == NOT_CHECKED for report in reports.values() for result in report.results):
        about, report = next(iter(reports.items()))
        raise CannotCheck(f"{path}: nothing in it can be checked: {about}: {report.results[0].cause}")
    return Outcome(str(path), reports, absent)


def _events(path: Path, skip: list[str], import_seconds: float, check_seconds: float) -> Iterator[dict]:
    """What a process that imports and checks the file tells, and at last, if it did not end well, that it stopped."""
    root = str(Path(__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        told = Path(folder) / "events"
        told.touch()
        # -P: a random.py or json.py that lies beside the reader's file must not be taken for Python's own.
        command = [sys.executable, "-P", "-m", "gptbook.check", str(path.resolve()), str(told), *skip]
        null = subprocess.DEVNULL
        child = subprocess.Popen(
            command, stdin=null, stdout=null, stderr=null, env=env, start_new_session=os.name == "posix"
        )
        try:
            about, phase, since, limit, done = None, "start", time.monotonic(), 600.0, 0
            while True:
                over = child.poll() is not None  # asked before reading: what it tells last must not be missed
                *lines, _ = told.read_text(encoding="utf-8").split("\n")
                for event in map(json.loads, lines[done:]):
                    phase, about, since = event["event"], event.get("about"), time.monotonic()
                    limit = import_seconds if phase == "import" else check_seconds
                    if phase == "report":
                        about = None
                    yield event
                    if phase in ("cannot", "end"):
                        return
                done = len(lines)
                if over:
                    code = child.returncode
                    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
                    doing = "while importing it" if phase == "import" else "in this check"
                    yield {"event": "stopped", "about": about, "why": f"Python itself was ended {how}, {doing}"}
                    return
                if time.monotonic() - since > limit:
                    why = f"no answer within {limit:g} seconds"
                    if phase == "import":
                        why = f"importing it takes more than {limit:g} seconds: put what trains or waits under "
                        why += 'if __name__ == "__main__"'
                    yield {"event": "stopped", "about": about, "why": why}
                    return
                time.sleep(0.05)
        finally:
            _end(child)


def _end(child: subprocess.Popen):
    """End the process, and what it may have started."""
    with suppress(OSError):
        if os.name == "posix":
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    child.wait()


# ---- in the process that imports the file


class Absent(Exception):
    """Something cannot be asked about; the message says what is missing. `failed`: it is there, and does not work."""

    def __init__(self, why: str, failed: bool = False):
        super().__init__(why)
        self.failed = failed


class Reader:
    """The names of a reader's file, and what the checks need beside them."""

    def __init__(self, names: dict):
        self.names = names
        self.expect = names.get("EXPECT")
        self.V = self._size("VOCAB_SIZE", 65, 2)
        self.T = self._size("BLOCK_SIZE", 64, 1)
        self._model = None

    def _size(self, name: str, default: int, least: int) -> int:
        small = self.names.get(name.lower())  # as many people write it; what else has that name says nothing
        if type(small) is int and small >= least:
            default = small
        value = self.names.get(name, getattr(self.expect, name.lower(), default))
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise CannotCheck(f"{name} must be a whole number of at least {least}, got {value!r}")
        return value

    def function(self, name: str) -> Callable:
        """What the file calls `name`. Raises Absent for what cannot be called."""
        value = self.names.get(name)
        if value is None:
            raise Absent(f"{name} is not defined")
        if not callable(value):
            raise Absent(f"{name} is a {type(value).__name__}, and must be a function", failed=True)
        return value

    def model(self):
        """The reader's model, built once. Raises Absent if there is none, or it cannot be built."""
        if self._model is None:
            try:
                self._model = self._build()
            except Absent as problem:
                self._model = problem
        if isinstance(self._model, Absent):
            raise self._model
        return self._model

    def _build(self):
        import torch

        torch.manual_seed(1337)
        if "build_model" in self.names:
            try:
                model = self.function("build_model")()
            except Absent:
                raise
            except Exception as error:
                raise Absent(f"build_model() raises {one_line(error)}", failed=True) from error
            if not isinstance(model, torch.nn.Module):
                kind = type(model).__name__
                raise Absent(f"build_model() must return a torch.nn.Module, got a {kind}", failed=True)
            return model
        if "GPT" not in self.names:
            raise Absent("there is neither build_model() nor a class GPT")
        return self._from_config("GPT", "define build_model()")

    def _from_config(self, name: str, cure: str):
        """An object of the reader's class `name`, made of the book's GPTConfig or of one of the reader's own."""
        import torch

        made = self.function(name)
        if isinstance(made, torch.nn.Module):
            return made
        problems = []
        for config in self._configs():
            try:
                found = made(config())
                if isinstance(found, torch.nn.Module) or callable(found):
                    return found
                problems.append(f"it gives a {type(found).__name__}")
            except Exception as error:
                problems.append(one_line(error))
        if name == "GPT" and _required(made) == []:
            with suppress(Exception):
                found = made()  # its sizes are globals of the file
                if isinstance(found, torch.nn.Module):
                    return found
        raise Absent(f"{name}(GPTConfig(...)) cannot be built ({problems[0]}): {cure}")

    def _configs(self):
        from gptbook.model import GPTConfig

        sizes = {"vocab_size": self.V, "block_size": self.T}
        if self.expect is not None:
            yield lambda: self.expect
        yield lambda: GPTConfig(**sizes)
        own = self.names.get("GPTConfig")
        if own is not None and own is not GPTConfig:
            yield lambda: own(**sizes)

    def tokens(self):
        """The package's own tokens (N,), ids below the reader's vocabulary, in which no window comes twice."""
        import torch

        return torch.randint(self.V, (max(1000, 10 * self.T),), generator=torch.Generator().manual_seed(0))


def _required(function: Callable) -> list[str] | None:
    """The names of the parameters that a call must give; None where Python cannot tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in parameters if p.default is p.empty and p.kind in kinds]


def _filled(function: Callable, name: str, meanings: dict, leave=()) -> Callable:
    """`function` with what it needs filled in by the names of its parameters, except those in `leave`.

    Raises Absent for a parameter of an unknown name.
    """
    filled = {}
    for parameter in _required(function) or []:
        if parameter in leave:
            continue
        key = next((key for key in meanings if parameter.lower() in key.split()), None)
        if key is None:
            raise Absent(f"{name} needs {parameter}, and the check does not know what that is")
        filled[parameter] = meanings[key]
    return partial(function, **filled) if filled else function


def _check(name: str) -> Callable:
    from gptbook import verify

    check = getattr(verify, name, None)
    if check is None:
        raise Absent(f"this edition of gptbook has no verify.{name}")
    return check


def ask_model(reader: Reader) -> Report:
    """The reader's whole model."""
    model = reader.model()
    return _check("check_model")(model, reader.V, reader.T, reader.expect)


def ask_one(name: str, check: str) -> Callable[[Reader], Report]:
    """A function that needs nothing beside itself."""

    def ask(reader: Reader) -> Report:
        function = reader.function(name)
        return _check(check)(function)

    return ask


def ask_block(reader: Reader) -> Report:
    """One block, built as the model's would be."""
    block = _block(reader)
    return _check("check_block")(block)


def _block(reader: Reader):
    from gptbook.model import GPTConfig

    made = reader.function("Block")
    try:
        return reader._from_config("Block", "let it take one")
    except Absent:
        shape = GPTConfig()
        meanings = {
            "n_embd c d_model dim embed_dim hidden_size width n_embed emb_dim": shape.n_embd,
            "n_head h heads num_heads n_heads": shape.n_head,
            "block_size t context_length max_len seq_len": reader.T,
            "dropout p": 0.0,
        }
        if not isinstance(made, type):
            raise
        return _filled(made, "Block", meanings)()


def ask_batches(reader: Reader) -> Report:
    """`get_batch`, on the package's tokens where it takes any, else on those that it reads."""
    import torch

    function, tokens = reader.function("get_batch"), reader.tokens()
    names = {name.lower() for name in inspect.signature(function).parameters}
    if not names & {"tokens", "data", "ids", "source", "text", "stream"}:
        tokens = _tokens_read_by(function)
        if tokens is None:
            raise Absent("get_batch takes no tokens, and which ones it reads is not clear: let it take them")
        tokens = torch.as_tensor(tokens).long()
    meanings = {
        "source stream": tokens,
        "t seq_len context length ctx": reader.T,
        "b rows n": 8,
        "rng g random": torch.Generator().manual_seed(0),
    }
    by_check = ("tokens", "data", "text", "ids", "block_size", "context_length", "batch_size", "split", "generator")
    function = _filled(function, "get_batch", meanings, (*by_check, "device"))
    return _check("check_batches")(function, tokens, reader.T)


def _tokens_read_by(function: Callable):
    """The tokens (N,) among the globals that a function reads; of several, those for training."""
    code, names = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    found = {}
    for name in code.co_names if code else ():
        value = names.get(name)
        shape = getattr(value, "shape", None)
        row = shape is not None and len(shape) == 1 and shape[0] > 1 and "int" in str(value.dtype)
        if row or (isinstance(value, list) and len(value) > 1 and all(isinstance(v, int) for v in value)):
            found[name] = value
    if len(found) > 1:
        found = {name: value for name, value in found.items() if "train" in name.lower()}
    return next(iter(found.values())) if len(found) == 1 else None


def ask_cache(reader: Reader) -> Report:
    """`step`, against the model of the same file."""
    step, model = reader.function("step"), reader.model()
    required = _required(step)
    if required and len(required) == 3 and "model" in required[0].lower():
        step = partial(step, model)
    return _check("check_cache")(model, step, reader.V, reader.T)


def ask_generate(reader: Reader) -> Report:
    """`generate`, with models of the check's own, of the reader's sizes."""
    function = reader.function("generate")
    return _check("check_generate")(function, reader.V, reader.T)


def ask_tokenizer(reader: Reader) -> Report:
    """`encode` and `decode`, on the part of the package's text that they know."""
    encode, decode = reader.function("encode"), reader.function("decode")
    known = []
    for symbol in sorted(set(TEXT)):
        with suppress(Exception):
            encode(symbol)
            known.append(symbol)
    text = "".join(c for c in TEXT if c in known) if len(known) > 1 else TEXT
    return _check("check_tokenizer")(encode, decode, text, reader.names.get("VOCAB_SIZE"))


def ask_evaluate(reader: Reader) -> Report:
    """`estimate_loss`, on the model of the same file, or on the book's where it takes one and the file has none."""
    from gptbook.model import GPT, GPTConfig

    function = reader.function("estimate_loss")
    try:
        model = reader.model()
    except Absent:
        if not _required(function):
            raise
        model = GPT(GPTConfig(reader.V, reader.T, 2, 2, 32))
    return _check("check_evaluate")(function, model)


WARMUP = ("warmup", "warmup_steps", "warmup_iters", "n_warmup", "warm_up")
TOTAL = ("total", "total_steps", "max_steps", "max_iters", "lr_decay_iters", "steps", "n_steps", "num_steps")


def ask_schedule(reader: Reader) -> Report:
    """`lr_at`, with the warm-up and the length that it takes or reads, else with those that its values show."""
    lr_at, numbers, note = reader.function("lr_at"), {}, ""
    try:
        parameters = inspect.signature(lr_at).parameters
    except (TypeError, ValueError):
        parameters = {}
    filled = {}
    for kind, words, default in (("warmup", WARMUP, 100), ("total", TOTAL, 1000)):
        parameter = next((p for name, p in list(parameters.items())[1:] if name.lower() in words), None)
        if parameter is not None:
            filled[parameter.name] = numbers[kind] = (
                default if parameter.default is parameter.empty else (parameter.default)
            )
            continue
        value = next((v for name, v in reader.names.items() if name.lower() in words and isinstance(v, int)), None)
        if value is not None:
            numbers[kind] = value
    schedule = partial(lr_at, **filled) if filled else lr_at
    if len(numbers) < 2:
        numbers = _numbers_of(schedule) | numbers
        if len(numbers) < 2:
            raise Absent("how long lr_at warms up and runs is not clear: WARMUP = ... and TOTAL = ... say it")
        note = f"warm-up {numbers['warmup']} and length {numbers['total']} are read off its values"
    report = _check("check_schedule")(schedule, numbers["warmup"], numbers["total"])
    if note:
        report = Report((*report.results, Result("length", NOT_CHECKED, cause=note + "; WARMUP and TOTAL say them")))
    return report


def _numbers_of(lr_at: Callable) -> dict[str, int]:
    """The step of the first peak, and the step after which nothing changes any more, of a schedule."""
    values = [float(lr_at(step)) for step in range(20_001)]
    peak, end = values.index(max(values)), len(values) - 1
    while end > 0 and values[end - 1] == values[-1]:
        end -= 1
    return {"warmup": peak, "total": end} if peak < end < len(values) - 1 else {}


SUBJECTS: dict[str, tuple[tuple[str, ...], Callable[[Reader], Report]]] = {  # about -> the names it needs, how to ask
    "model": (("build_model", "GPT"), ask_model),
    "average": (("average",), ask_one("average", "check_averaging")),
    "attention": (("attention",), ask_one("attention", "check_attention")),
    "layer_norm": (("layer_norm",), ask_one("layer_norm", "check_layer_norm")),
    "gelu": (("gelu",), ask_one("gelu", "check_gelu")),
    "Block": (("Block",), ask_block),
    "get_batch": (("get_batch",), ask_batches),
    "loss_fn": (("loss_fn",), ask_one("loss_fn", "check_loss")),
    "sample": (("sample",), ask_one("sample", "check_sampler")),
    "generate": (("generate",), ask_generate),
    "step": (("step",), ask_cache),
    "encode, decode": (("encode", "decode"), ask_tokenizer),
    "estimate_loss": (("estimate_loss",), ask_evaluate),
    "lr_at": (("lr_at",), ask_schedule),
}
NAMES = tuple(name for names, _ in SUBJECTS.values() for name in names)


def asked(reader: Reader, about: str) -> Report:
    """The report about one thing, whatever the reader's code does when it is called."""
    try:
        return SUBJECTS[about][1](reader)
    except Absent as problem:
        status = FAILED if problem.failed else NOT_CHECKED
        return Report((Result("call", status, cause=str(problem)),))
    except SystemExit:
        return Report((Result("call", FAILED, "calls sys.exit", "an answer", "a function returns, it does not exit"),))
    except Exception as error:
        return Report((Result("call", NOT_CHECKED, cause=f"the check was stopped by {one_line(error)}"),))


def imported(path: Path) -> dict:
    """The names that the file at `path` defines. Raises CannotCheck with one line if importing it fails."""
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_to_check"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise CannotCheck("is no Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path)]
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        where = f"{Path(error.filename or '').name}, line {error.lineno}"
        raise CannotCheck(f"is not valid Python: {error.msg} ({where})") from None
    except SystemExit:
        raise CannotCheck('importing it calls sys.exit: put that under if __name__ == "__main__"') from None
    except BaseException as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f" (line {lines[-1]})" if lines else ""
        raise CannotCheck(f"importing it raises {one_line(error)}{where}") from None
    return vars(module)


def main(argv: list[str]):
    """Import the file, and write into another one what was found: path, where to write, what to leave out."""
    path, told, *skip = argv

    def tell(event: str, **more):
        # Opened anew each time: the reader's code may close what is open.
        with Path(told).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **more}) + "\n")

    import torch  # noqa: F401  before the file's own folder is searched for modules

    from gptbook import verify  # noqa: F401

    tell("import")
    try:
        names = imported(Path(path))
        reader = Reader(names)
    except CannotCheck as problem:
        tell("cannot", why=str(problem))
        return
    here = [about for about, (wanted, _) in SUBJECTS.items() if any(name in names for name in wanted)]
    tell("found", absent=[about for about in SUBJECTS if about not in here])
    for about in here:
        if about in skip:
            continue
        tell("check", about=about)
        report = asked(reader, about)
        tell("report", about=about, results=[asdict(result) for result in report.results])
    tell("end")


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # threads that the file started must not keep this process
