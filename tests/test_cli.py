"""The command line: what it prints and where, and that every mistake is one line and exit code 2."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gptbook import cli, recipes, runs, tokenizers
from gptbook.cli import main
from gptbook.modern import ModernConfig
from gptbook.progress import Progress
from gptbook.trainer import TrainConfig, evaluate

SENTENCE = "the owl and the pussy-cat went to sea in a beautiful pea-green boat\n"
TEXT = SENTENCE * 40


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A text file of the reader's own."""
    path = tmp_path_factory.mktemp("text") / "owl.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory, text):
    """A run of a few steps. Tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("run") / "done"
    assert main(["train", "--preset", "lets-build", "--data", str(text), "--steps", "12", "--out", str(folder)]) == 0
    return folder


def copied(folder, to):
    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def refused(capsys, *args):
    """The one line that a mistaken command line gives."""
    capsys.readouterr()
    assert main([str(arg) for arg in args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert err.startswith("gptbook")
    assert "Traceback" not in err
    return err


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# The main way


def test_train_says_what_it_does(tmp_path, text, capsys):
    """If this fails, somebody who waits sees nothing, or a program that reads stdout sees progress."""
    args = ["train", "--preset", "lets-build", "--data", str(text), "--steps", "3", "--out", str(tmp_path / "run")]
    assert main(args) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert "3 steps" in out
    assert str(tmp_path / "run") in out
    assert f"lets-build on owl, {len(TEXT):,} characters, {len(set(TEXT))} symbols" in err
    assert "step 3 of 3" in err
    assert "\r" not in err  # a bar is for terminals
    config = runs.read_config(tmp_path / "run")
    assert config["model"]["vocab_size"] == len(set(TEXT))
    assert config["training"]["steps"] == 3
    assert sorted(path.name for path in (tmp_path / "run").iterdir())[-2:] == ["config.json", "metrics.jsonl"]


def test_a_modern_model_is_trained_measured_and_sampled(tmp_path, text, capsys, monkeypatch):
    """If this fails, the commands know one family of models alone."""
    small = ModernConfig(block_size=16, n_layer=1, n_head=4, n_kv_head=2, n_embd=16)
    monkeypatch.setitem(recipes.PRESETS, "small", small)
    monkeypatch.setitem(recipes.TRAINING, "small", TrainConfig(batch_size=4, steps=4, eval_every=2))
    monkeypatch.setitem(recipes.CORPORA, "small", str(text))
    folder = tmp_path / "run"
    assert main(["train", "--preset", "small", "--out", str(folder)]) == 0
    assert main(["train", "--out", str(folder), "--resume", "--steps", "6"]) == 0
    assert runs.load_run(folder).model.config == replace(small, vocab_size=len(set(TEXT)))
    assert main(["eval", str(folder), "--json"]) == 0
    capsys.readouterr()
    written = []
    for more in ([], ["--no-cache"]):
        assert main(["sample", str(folder), "--tokens", "40", *more]) == 0
        written.append(capsys.readouterr().out)
    assert written[0] == written[1]
    assert len(written[0]) == 42  # the first symbol, what was asked for, a line end


def test_eval_measures_the_whole_split(finished, capsys):
    """If this fails, the number is not that of the model, or not repeatable."""
    assert main(["eval", str(finished), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"loss", "bits_per_character", "tokens", "split"}
    n = int(0.9 * len(TEXT))
    assert (found["tokens"], found["split"]) == (len(TEXT) - n - 1, "val")
    symbols = sorted(set(TEXT))
    val_tokens = torch.tensor([symbols.index(c) for c in TEXT[n:]])
    assert found["loss"] == evaluate(runs.load_run(finished).model, val_tokens).loss
    assert main(["eval", str(finished), "--json", "--split", "train"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == n - 1
    assert main(["eval", str(finished)]) == 0
    out = capsys.readouterr().out
    assert f"{found['loss']:.4f} nats" in out
    assert f"{found['bits_per_character']:.4f} bits" in out


def test_a_run_on_pieces_of_words(tmp_path, text, capsys):
    """If this fails, a model of BPE tokens can be trained and not be used, or its bits are those of something else."""
    folder = tmp_path / "run"
    base = ["train", "--preset", "lets-build-bpe", "--data", str(text), "--out", str(folder)]
    assert main([*base, "--steps", "3"]) == 0
    assert main([*base, "--steps", "5", "--resume"]) == 0
    run = runs.load_run(folder)
    cut = int(0.9 * len(TEXT))
    tokenizer = tokenizers.from_dict(run.config["tokenizer"])
    assert tokenizer == tokenizers.BPETokenizer.train(TEXT[:cut], 1024)
    assert run.model.config.vocab_size == tokenizer.vocab_size > 256
    capsys.readouterr()
    for split, part in (("train", TEXT[:cut]), ("val", TEXT[cut:])):
        assert main(["eval", str(folder), "--json", "--split", split]) == 0
        found = json.loads(capsys.readouterr().out)
        ids = torch.tensor(tokenizer.encode(part))
        assert found["tokens"] == len(ids) - 1
        assert found["loss"] == evaluate(run.model, ids).loss
        nats, characters = found["loss"] * (len(ids) - 1), len(tokenizer.decode(ids[1:]))
        assert found["bits_per_character"] == pytest.approx(nats / math.log(2) / characters)
        assert characters > 1.5 * len(ids)  # else a token would be as good as a character
    for options in ((), ("--no-cache",), ("--prompt", "the owl 🦉")):
        assert main(["sample", str(folder), "--tokens", "20", *options]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert out.startswith(options[1] if options[1:] else "\n")
    assert out.encode()  # what is no UTF-8 has become U+FFFD


def test_sample_prints_text_and_nothing_else(finished, capsys):
    """If this fails, what is piped on is not the text."""
    args = ["sample", str(finished), "--prompt", "the ", "--tokens", "40"]
    assert main(args) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("the ")
    assert len(out) == 4 + 40 + 1
    assert set(out) <= set(TEXT)
    assert main(args) == 0
    assert capsys.readouterr().out == out
    assert main([*args, "--seed", "2"]) == 0
    assert capsys.readouterr().out != out


def test_the_sampling_options_are_used(finished, capsys):
    """If this fails, an option is accepted and ignored."""

    def say(*options):
        assert main(["sample", str(finished), "--tokens", "60", *options]) == 0
        return capsys.readouterr().out

    greedy = say("--temperature", "0")
    assert greedy == say("--temperature", "0", "--seed", "5") == say("--top-k", "1", "--seed", "7")
    assert greedy != say("--temperature", "3")
    assert say("--temperature", "3") != say("--temperature", "0.5")
    assert greedy == say("--top-p", "0", "--seed", "7")
    assert say() == say("--top-p", "1")
    assert say() != say("--top-p", "0.5")
    assert say("--top-p", "0.5") != say("--top-p", "0.5", "--top-k", "1")


def test_the_text_is_the_same_with_and_without_the_cache(finished, capsys, monkeypatch):
    """If this fails, --no-cache changes what is written, or does nothing; past the window too."""
    from gptbook import kv_cache

    calls, forward = [], kv_cache.forward
    monkeypatch.setattr(kv_cache, "forward", lambda *args: calls.append(args) or forward(*args))

    def say(*options):
        calls.clear()
        assert main(["sample", str(finished), "--prompt", "the owl", "--tokens", "60", *options]) == 0
        return capsys.readouterr().out

    for options in ((), ("--temperature", "0"), ("--top-p", "0.8", "--top-k", "9", "--seed", "3")):
        cached = say(*options)
        assert len(calls) == 32 - 7 + 1  # the prompt of 7 tokens, then one by one until the window of 32 is full
        assert cached == say(*options, "--no-cache")
        assert calls == []


def test_the_texts(text, capsys, monkeypatch):
    """If this fails, a reader cannot see which text there is and whether it is the right one."""
    monkeypatch.setenv("GPTBOOK_OFFLINE", "1")
    assert main(["data"]) == 0
    out = capsys.readouterr().out
    assert {"tinyshakespeare", "python-docs", "book"} <= {line.split()[0] for line in out.splitlines()}
    assert main(["data", str(text)]) == 0
    out = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert out["characters"] == f"{len(TEXT):,}"
    assert out["symbols"] == str(len(set(TEXT)))
    assert out["path"] == str(text)
    assert len(out["sha256"]) == 64
    assert main(["data", "python-docs"]) == 0


@pytest.mark.parametrize("command", [[], ["data"], ["train"], ["eval"], ["sample"]])
def test_help(command, capsys):
    """If this fails, --help is no help."""
    assert main([*command, "--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("usage: gptbook")
    if command == ["train"]:
        assert all(name in "".join(out.split()) for name in recipes.TRAINING)  # lines may end at a hyphen


def test_help_does_not_wait_for_torch():
    """If this fails, a look at the options takes seconds."""
    program = "import sys; from gptbook.cli import main; main(['--help']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


# Going on


def test_stopped_in_time_and_resumed(tmp_path, text, capsys):
    """If this fails, --minutes or --resume loses work."""
    folder = tmp_path / "run"
    base = ["train", "--out", str(folder)]
    assert main([*base, "--preset", "lets-build", "--data", str(text), "--steps", "9", "--minutes", "1e-9"]) == 0
    assert "time is up" in capsys.readouterr().err
    assert main(["eval", str(folder)]) == 0
    done = runs.load_run(folder).step
    assert done < 9
    assert main([*base, "--resume"]) == 0  # preset, text, seed and steps are those of the run
    assert runs.load_run(folder).step == 9
    assert main([*base, "--resume", "--steps", "11", "--preset", "lets-build", "--data", str(text)]) == 0
    assert runs.load_run(folder).step == 11
    capsys.readouterr()
    before = contents(folder)
    assert main([*base, "--resume"]) == 0
    assert "all 11 steps are done" in capsys.readouterr().err
    assert contents(folder) == before


def test_a_resumed_command_line_run_is_as_if_never_stopped(tmp_path, text, finished):
    """If this fails, the command line loses a part of the state that the trainer keeps."""
    folder = tmp_path / "run"
    base = ["train", "--out", str(folder), "--preset", "lets-build", "--data", str(text)]
    assert main([*base, "--steps", "5"]) == 0
    assert main([*base, "--steps", "12", "--resume"]) == 0
    one, two = (runs.load_run(f).model.state_dict() for f in (folder, finished))
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())


@pytest.mark.skipif(os.name == "nt", reason="signals as Unix has them")
def test_ctrl_c_leaves_a_usable_checkpoint(tmp_path, text, capsys):
    """If this fails, Ctrl-C costs the run, or ends in a traceback."""
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "gptbook.cli", "train", "--preset", "lets-build", "--data", str(text)]
    process = subprocess.Popen(
        [*command, "--steps", "100000", "--out", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        while not (folder / "checkpoint.safetensors").exists():
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "stopped by Ctrl-C: --resume goes on from here" in err
    assert "Traceback" not in err
    step = runs.load_run(folder).step
    assert 0 < step < 100_000
    assert f"{step:,} steps" in out
    assert main(["sample", str(folder), "--tokens", "5"]) == 0
    assert main(["train", "--out", str(folder), "--resume", "--minutes", "1e-9"]) == 0


@pytest.mark.skipif(os.name == "nt", reason="pipes as Unix has them")
def test_a_reader_who_has_gone_is_no_error(finished):
    """If this fails, `gptbook sample DIR | head` ends in a traceback."""
    command = [sys.executable, "-m", "gptbook.cli", "sample", str(finished), "--tokens", "5"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=60) == 141
    assert err == ""


@pytest.mark.skipif(os.name == "nt", reason="terminals as Unix has them")
@pytest.mark.parametrize("size", [(24, 80), (0, 0)], ids=["known", "unknown"])
def test_a_terminal_gets_a_bar(size):
    """If this fails, there is no bar where one is wanted; the plain lines above are the other half."""
    import pty
    import termios

    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, size)
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal, Progress(8, stream=terminal) as progress:
        progress({"step": 4, "steps": 8, "batch_loss": 2.0})
        progress({"step": 8, "steps": 8, "batch_loss": 1.0, "train_loss": 1.5, "val_loss": 1.75})
    shown = b""
    with suppress(OSError):  # how Linux says that the other side is closed and nothing is left
        while piece := os.read(ours, 100_000):  # a terminal hands out what it has in pieces
            shown += piece
    os.close(ours)
    shown = shown.decode("utf-8")
    assert "\r" in shown
    assert "8/8" in shown or "100%" in shown
    assert "step 8 of 8: train 1.500, val 1.750" in shown


# Mistakes


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ([], "COMMAND"),
        (["fly"], "fly"),
        (["train", "--fly"], "--fly"),
        (["train", "--step", "3"], "--step"),  # no guessing of options
        (["train", "--steps", "0"], "--steps"),
        (["train", "--steps", "-5"], "--steps"),
        (["train", "--steps", "many"], "many"),
        (["train", "--steps", "1.5"], "1.5"),
        (["train", "--steps", "9" * 30], "--steps"),
        (["train", "--minutes", "0"], "--minutes"),
        (["train", "--minutes", "nan"], "--minutes"),
        (["train", "--seed", "-1"], "--seed"),
        (["train", "--preset", "step-6"], "step-6"),
        (["train", "--preset", "gpt2"], "'gpt2' is not trained here: choose one of step-5"),
        (["train", "--preset", "smollm2"], "'smollm2' is not trained here: choose one of step-5"),
        (["train", "--device", "toaster"], "toaster"),
        (["train", "--device", "meta"], "meta"),
        (["train", "--device", ""], "--device"),
        (["train", "--out", ""], "--out"),  # an unset variable of the shell
        (["train", "--data", " "], "--data"),
        (["eval", ""], "DIR"),
        (["sample", ""], "DIR"),
        (["train", "--data", "no-such-file.txt"], "no-such-file.txt"),
        (["eval"], "DIR"),
        (["eval", "no-such-folder"], "no-such-folder"),
        (["eval", "no-such-folder", "--split", "test"], "test"),
        (["sample", "no-such-folder"], "no-such-folder"),
        (["sample", "x", "--temperature", "-1"], "--temperature"),
        (["sample", "x", "--temperature", "warm"], "warm"),
        (["sample", "x", "--temperature", "inf"], "--temperature"),
        (["sample", "x", "--top-k", "0"], "--top-k"),
        (["sample", "x", "--tokens", "0"], "--tokens"),
        (["sample", "x", "--top-p", "1.01"], "--top-p"),
        (["sample", "x", "--top-p", "-0.1"], "--top-p"),
        (["sample", "x", "--top-p", "nan"], "--top-p"),
        (["sample", "x", "--top-p", "most"], "most"),
        (["sample", "x", "--no-cache=yes"], "--no-cache"),
        (["sample", "x", "--cache"], "--cache"),
        (["data", "no-such-file.txt"], "no-such-file.txt"),
    ],
)
def test_a_mistake_is_one_line(args, named, capsys, tmp_path, monkeypatch):
    """If this fails, a typing mistake gives a page of usage, or a traceback, or starts something."""
    monkeypatch.chdir(tmp_path)
    assert named in refused(capsys, *args)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"abc\xff\xfe", b"short"], ids=["empty", "not UTF-8", "too short"])
def test_a_useless_text_is_one_line_and_leaves_no_run(content, tmp_path, capsys):
    """If this fails, a text that cannot be used ends in a traceback, or blocks the folder."""
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    refused(capsys, "train", "--data", path, "--out", tmp_path / "run")
    assert not runs.is_run(tmp_path / "run")


def test_a_run_is_not_overwritten(finished, text, tmp_path, capsys):
    """If this fails, a second `train` costs the first."""
    folder = copied(finished, tmp_path / "run")
    before = contents(folder)
    err = refused(capsys, "train", "--data", text, "--out", folder)
    assert "--resume" in err
    assert "--out" in err
    assert contents(folder) == before


def test_resuming_what_is_not_there_or_is_another_run(finished, text, tmp_path, capsys):
    """If this fails, --resume starts over, or goes on as another run."""
    assert "no run to resume" in refused(capsys, "train", "--resume", "--out", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    (tmp_path / "empty").mkdir()
    assert "holds no run" in refused(capsys, "train", "--resume", "--out", tmp_path / "empty")
    folder = copied(finished, tmp_path / "run")
    before = contents(folder)
    for option, value in (
        ("--preset", "step-5"),
        ("--data", "python-docs"),
        ("--seed", 4),
        ("--steps", 11),
        ("--steps", 1),
    ):
        assert option in refused(capsys, "train", "--resume", "--out", folder, option, value)
    assert contents(folder) == before


def test_a_prompt_that_cannot_be_read(finished, capsys):
    """If this fails, an unknown character or an empty prompt ends in a traceback."""
    assert "é" in refused(capsys, "sample", finished, "--prompt", "café")
    assert "empty" in refused(capsys, "sample", finished, "--prompt", "")


@pytest.mark.parametrize("command", ["eval", "sample"])
def test_a_damaged_run_is_one_line(command, finished, tmp_path, capsys):
    """If this fails, a file cut short ends in the traceback of a library."""
    folder = copied(finished, tmp_path / "run")
    whole = (folder / "checkpoint.safetensors").read_bytes()
    for content in (whole[:-100], b"", b"hello"):
        (folder / "checkpoint.safetensors").write_bytes(content)
        assert "checkpoint.safetensors" in refused(capsys, command, folder)
    (folder / "checkpoint.safetensors").write_bytes(whole)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["tokenizer"]["symbols"].reverse()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert "does not belong" in refused(capsys, command, folder)


def test_another_text_under_the_same_name_is_seen(tmp_path, capsys):
    """If this fails, `eval` measures another text and calls it the validation loss."""
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    folder = tmp_path / "run"
    assert main(["train", "--preset", "lets-build", "--data", str(path), "--steps", "1", "--out", str(folder)]) == 0
    path.write_text(TEXT.upper(), encoding="utf-8")
    assert "sha256" in refused(capsys, "eval", folder)
    path.unlink()
    assert "text.txt" in refused(capsys, "eval", folder)
    assert main(["sample", str(folder), "--tokens", "5"]) == 0  # needs no text


def test_debug_shows_where(tmp_path):
    """If this fails, nobody can find out what an unforeseen error comes from."""
    with pytest.raises(ValueError, match="holds no run"):
        main(["eval", str(tmp_path), "--debug"])
    with pytest.raises(ValueError, match="holds no run"):
        main(["--debug", "eval", str(tmp_path)])


def test_an_unforeseen_error_is_one_line_too(capsys, monkeypatch):
    """If this fails, a fault of this program buries the reader in a traceback."""
    monkeypatch.setattr(cli, "run_data", lambda args: {}["missing\nkey"])
    assert "KeyError" in refused(capsys, "data")
    monkeypatch.setattr(cli, "run_data", lambda args: (_ for _ in ()).throw(KeyboardInterrupt))
    assert main(["data"]) == 130
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_command_is_installed():
    """If this fails, `pip install -e .` gives no command `gptbook`."""
    from importlib.metadata import entry_points

    (entry,) = entry_points(group="console_scripts", name="gptbook")
    assert entry.load() is main
    assert Path(cli.__file__).name == "cli.py"
