"""A run in a folder: it can be stopped, killed and resumed, and files that do not belong together are seen."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from gptbook import checkpoint, runs, trainer
from gptbook.checkpoint import CheckpointError, weights
from gptbook.model import GPT, GPTConfig
from gptbook.modern import ModernConfig, ModernGPT
from gptbook.recipes import build
from gptbook.runs import RunError, load_run
from gptbook.trainer import TrainConfig, evaluate, train, update

MODEL = GPTConfig(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_embd=8, dropout=0.2)
MODERN = ModernConfig(
    vocab_size=11, block_size=8, n_layer=1, n_head=2, n_kv_head=1, n_embd=8, dropout=0.2, rope_base=1e5
)  # fmt: skip
TOKENS = torch.randint(11, (400,), generator=torch.Generator().manual_seed(0))
TRAIN, VAL = TOKENS[:300], TOKENS[300:]
CONFIG = TrainConfig(batch_size=4, steps=12, eval_every=5, warmup_steps=2, schedule="cosine", clip=1.0, snapshots=(3,))
EXTRA = {"tokenizer": {"symbols": ["ä", "b"]}, "corpus": {"name": "none", "sha256": "0" * 64}}


def run(folder, config=CONFIG, model=MODEL, seed=1, **rest):
    torch.manual_seed(seed)
    model = build(model)
    return model, train(model, TRAIN, VAL, config, folder=folder, extra=EXTRA, **rest)


def same_weights(a, b):
    a, b = weights(a), weights(b)
    return a.keys() == b.keys() and all(torch.equal(t, b[name]) for name, t in a.items())


def stop_after(step):
    """A `progress` that presses Ctrl-C once so many steps are done."""

    def press(row):
        if row["step"] >= step and "val_loss" in row and not pressed:
            pressed.append(True)
            signal.raise_signal(signal.SIGINT)

    pressed = []
    return press


def without_time(history):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in history]


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_a_run_leaves_behind(tmp_path):
    """If this fails, eval and sample find nothing, or something else than was trained."""
    model, result = run(tmp_path / "a" / "run")
    folder = tmp_path / "a" / "run"
    names = ["checkpoint-000003.safetensors", "checkpoint.safetensors", "config.json", "metrics.jsonl"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert lines(folder) == result.history
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert GPTConfig(**config["model"]) == MODEL
    assert TrainConfig(**config["training"]) == CONFIG
    assert config["tokenizer"] == EXTRA["tokenizer"]
    assert config["versions"]["torch"] == torch.__version__

    back = load_run(folder)
    assert (back.step, back.history) == (12, result.history)
    assert same_weights(back.model, model)
    assert evaluate(back.model, VAL).loss == result.history[-1]["val_loss"]
    early = load_run(folder, step=3)
    assert (early.step, [row["step"] for row in early.history]) == (3, [0, 3])
    assert evaluate(early.model, VAL).loss == result.history[1]["val_loss"]


@pytest.mark.parametrize("stop", [0, 3, 5])
def test_stopped_and_resumed_is_as_if_never_stopped(tmp_path, stop):
    """If this fails, moments, dropout, batches or the learning rate start over when a run is resumed."""
    straight, whole = run(tmp_path / "straight")
    _, first = run(tmp_path / "stopped", progress=stop_after(stop))
    assert first.interrupted
    assert first.step == stop + 1  # the step under way is finished
    torch.rand(3)  # whatever happened in between
    resumed, second = run(tmp_path / "stopped", seed=99, resume=True)
    assert same_weights(straight, resumed)
    assert (second.step, second.interrupted) == (12, False)
    common = {row["step"] for row in whole.history}
    ours = [{**row, "batch_loss": 0} for row in without_time(second.history) if row["step"] in common]
    assert ours == [{**row, "batch_loss": 0} for row in without_time(whole.history)]
    assert lines(tmp_path / "stopped") == second.history


def test_muons_memory_is_kept_too(tmp_path):
    """If this fails, a run with two optimizers forgets the averages of one of them when it is resumed."""
    config = replace(CONFIG, optimizer="muon")
    straight, _ = run(tmp_path / "straight", config=config)
    run(tmp_path / "stopped", config=config, progress=stop_after(5))
    resumed, _ = run(tmp_path / "stopped", config=config, seed=99, resume=True)
    assert same_weights(straight, resumed)
    saved, _ = checkpoint.load(tmp_path / "straight" / "checkpoint.safetensors")
    assert {name.split("/")[-1] for name in saved if name.startswith("optimizer/")} > {"momentum", "exp_avg"}


def test_a_modern_model_is_kept_like_a_gpt(tmp_path):
    """If this fails, a run of a modern model is read back as another model, or cannot be resumed."""
    straight, whole = run(tmp_path / "straight", model=MODERN)
    run(tmp_path / "stopped", model=MODERN, progress=stop_after(5))
    resumed, _ = run(tmp_path / "stopped", model=MODERN, seed=99, resume=True)
    assert same_weights(straight, resumed)
    back = load_run(tmp_path / "straight")
    assert isinstance(back.model, ModernGPT)
    assert back.model.config == MODERN
    assert back.config["family"] == "modern"
    assert same_weights(back.model, straight)
    assert not any("cos" in name for name in weights(back.model))  # what follows from the configuration is in no file
    assert evaluate(back.model, VAL).loss == whole.history[-1]["val_loss"]
    assert isinstance(load_run(tmp_path / "straight", step=3).model, ModernGPT)
    run(tmp_path / "gpt")
    assert load_run(tmp_path / "gpt").config["family"] == "gpt"
    with pytest.raises(RunError, match="the run there has family 'gpt' and not 'modern'"):
        run(tmp_path / "gpt", model=MODERN, resume=True)


def test_a_run_from_before_a_field_goes_on(tmp_path):
    """If this fails, a run that was kept before there was dropout of channels cannot be resumed."""
    run(tmp_path / "old", model=MODERN)

    def before(config):
        del config["model"]["channel_dropout"], config["model"]["ngram_dropout"]

    edit(tmp_path / "old", before)
    assert load_run(tmp_path / "old").model.config == MODERN
    with pytest.raises(RunError, match=r"has model\.n_embd 8 and not 16"):  # and not a field that it does not have
        run(tmp_path / "old", replace(CONFIG, steps=14), replace(MODERN, n_embd=16), resume=True)
    assert run(tmp_path / "old", replace(CONFIG, steps=14), MODERN, resume=True)[1].step == 14
    with pytest.raises(RunError, match=r"has model\.channel_dropout 0\.0 and not 0\.1"):
        run(tmp_path / "old", replace(CONFIG, steps=14), replace(MODERN, channel_dropout=0.1), resume=True)


def test_a_run_that_does_not_say_its_family_is_a_gpts(tmp_path):
    """If this fails, runs from before there were two families cannot be read, or not be resumed."""
    straight, _ = run(tmp_path / "straight")
    run(tmp_path / "old", progress=stop_after(5))
    edit(tmp_path / "old", lambda config: config.pop("family"))
    load_run(tmp_path / "old")
    resumed, _ = run(tmp_path / "old", resume=True)
    assert same_weights(straight, resumed)


@pytest.mark.parametrize("part", ["exp_avg", "exp_avg_sq", "/step", "random/torch", "random/batches", "ln_f.bias"])
def test_resuming_with_a_part_of_the_state_lost_would_be_seen(tmp_path, part):
    """The negative control of the test above: each part of what is stored matters, and is read back."""
    straight, _ = run(tmp_path / "straight")
    run(tmp_path / "stopped", progress=stop_after(5))
    path = tmp_path / "stopped" / "checkpoint.safetensors"
    tensors, header = checkpoint.load(path)
    lost = [name for name in tensors if name.endswith(part)]
    assert lost
    for name in lost:
        fresh = torch.Generator().manual_seed(CONFIG.seed).get_state()
        tensors[name] = fresh if name.startswith("random/") else torch.zeros_like(tensors[name])
    checkpoint.save(path, tensors, header)
    resumed, _ = run(tmp_path / "stopped", resume=True)
    assert not same_weights(straight, resumed)


def test_a_killed_run_resumes_from_its_last_checkpoint(tmp_path, monkeypatch):
    """If this fails, a crash between measurement and checkpoint leaves a history with a step twice."""
    straight, whole = run(tmp_path / "straight")

    class Killed(BaseException):
        pass

    def dying(model, *rest):
        dying.calls += 1
        if dying.calls == 9:
            raise Killed
        return update(model, *rest)

    dying.calls = 0
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "update", dying)
        with pytest.raises(Killed):
            run(tmp_path / "killed")
    with (tmp_path / "killed" / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": 10, "val_loss": 9.9}) + '\n{"step": 1')  # measured, and cut short while writing
    resumed, second = run(tmp_path / "killed", resume=True)
    assert same_weights(straight, resumed)
    assert without_time(second.history) == without_time(whole.history)
    assert lines(tmp_path / "killed") == second.history


def test_a_finished_run_can_be_made_longer(tmp_path):
    """If this fails, `--resume --steps` with more steps does not go on from where the run ended."""
    constant = replace(CONFIG, schedule="constant", eval_every=4)
    straight, _ = run(tmp_path / "straight", replace(constant, steps=20))
    run(tmp_path / "grown", constant)
    grown, result = run(tmp_path / "grown", replace(constant, steps=20), resume=True)
    assert same_weights(straight, grown)
    assert result.step == 20
    assert load_run(tmp_path / "grown").config["training"]["steps"] == 20
    with pytest.raises(RunError, match="has done 20 steps"):
        run(tmp_path / "grown", constant, resume=True)


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    """If this fails, resuming once too often trains on, or measures twice."""
    model, first = run(tmp_path)
    again, second = run(tmp_path, resume=True)
    assert same_weights(model, again)
    assert second.history == first.history
    assert lines(tmp_path) == first.history


def test_a_run_is_never_overwritten(tmp_path):
    """If this fails, a forgotten --resume costs a night of training."""
    run(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(RunError, match="holds a run already") as caught:
        run(tmp_path)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before
    (tmp_path / "checkpoint.safetensors").unlink()  # even what is left of one
    with pytest.raises(RunError, match="holds a run already"):
        run(tmp_path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"config": replace(CONFIG, batch_size=5)}, "training.batch_size 4 and not 5"),
        ({"config": replace(CONFIG, learning_rate=2e-3)}, "training.learning_rate 0.001 and not 0.002"),
        ({"config": replace(CONFIG, seed=2)}, "training.seed 1337 and not 2"),
        ({"model": replace(MODEL, n_embd=16)}, "model.n_embd 8 and not 16"),
    ],
)
def test_resuming_with_other_settings_changes_nothing(tmp_path, change, named):
    """If this fails, a run goes on as another one, and nobody can say what it was."""
    run(tmp_path, progress=stop_after(5))
    before = contents(tmp_path)
    with pytest.raises(RunError, match=named) as caught:
        run(tmp_path, resume=True, **change)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before
    run(tmp_path, resume=True)  # its own settings serve


def test_resuming_nothing_is_one_line(tmp_path):
    """If this fails, a mistyped folder starts a new run instead of the old one, or leaves files."""
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(RunError, match="holds no run") as caught:
            run(folder, resume=True)
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_cannot_start_leaves_no_run(tmp_path):
    """If this fails, the second try is refused because the first one failed."""
    torch.manual_seed(1)
    with pytest.raises(ValueError, match="block_size"):
        train(GPT(MODEL), TRAIN, VAL[:4], CONFIG, folder=tmp_path)
    assert not runs.is_run(tmp_path)
    run(tmp_path)


def test_a_file_in_the_way_is_one_line(tmp_path):
    """If this fails, naming a file as the folder ends in a traceback."""
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RunError, match="a file is in the way"):
            run(folder)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


def test_files_of_two_runs_are_seen_not_to_belong_together(tmp_path):
    """If this fails, a checkpoint is read with another run's vocabulary, and the text is gibberish."""
    run(tmp_path / "a")
    run(tmp_path / "b", replace(CONFIG, seed=2))
    for name in ("checkpoint.safetensors", "checkpoint-000003.safetensors"):
        (tmp_path / "a" / name).write_bytes((tmp_path / "b" / name).read_bytes())
    for step in (None, 3):
        with pytest.raises(RunError, match="does not belong") as caught:
            load_run(tmp_path / "a", step)
        assert "\n" not in str(caught.value)
    load_run(tmp_path / "b")


def edit(folder, change):
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    change(config)
    path.write_text(json.dumps(config), encoding="utf-8")


def test_an_edited_vocabulary_is_seen(tmp_path):
    """If this fails, a vocabulary that does not fit the weights goes unnoticed."""
    run(tmp_path)
    edit(tmp_path, lambda config: config["tokenizer"].update(symbols=["b", "ä"]))
    with pytest.raises(RunError, match="does not belong"):
        load_run(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config["model"].update(n_embd=7),
        lambda config: config["model"].update(colour="red"),
        lambda config: config.update(family="modern"),
        lambda config: config.update(family="llama"),
        lambda config: config.update(family=["gpt"]),
        lambda config: config.pop("model"),
        lambda config: config.pop("training"),
        lambda config: config.update(model=[1]),
        lambda config: config["training"].update(steps="many"),
    ],
)
def test_a_config_that_makes_no_sense_is_one_line(tmp_path, change):
    """If this fails, a damaged config.json ends in a traceback."""
    run(tmp_path)
    edit(tmp_path, change)
    with pytest.raises(RunError, match="does not describe a run") as caught:
        load_run(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[]", b"{", b"null"])
def test_a_config_that_is_no_json_object_is_one_line(tmp_path, content):
    """If this fails, a damaged config.json ends in a traceback."""
    run(tmp_path)
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(RunError, match="does not describe a run"):
        load_run(tmp_path)


def test_a_missing_checkpoint_or_snapshot_is_one_line(tmp_path):
    """If this fails, asking for weights that were not kept ends in a traceback."""
    run(tmp_path)
    with pytest.raises(CheckpointError, match="checkpoint-000004"):
        load_run(tmp_path, step=4)
    (tmp_path / "checkpoint.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors"):
        load_run(tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL as Unix has it")
def test_a_kill_at_any_moment_leaves_a_usable_run(tmp_path):
    """If this fails, a run that the system killed has to start over."""
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from test_runs import CONFIG, replace, run\n"
        "run(Path(sys.argv[1]), replace(CONFIG, steps=100_000, eval_every=1))"
    )
    here = os.path.dirname(__file__)  # noqa: PTH120
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "run"), here])
    try:
        while not (tmp_path / "run" / "metrics.jsonl").exists() or len(lines_or_none(tmp_path / "run")) < 20:
            assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    longer = replace(CONFIG, steps=100_000, eval_every=1)
    back = load_run(tmp_path / "run")
    assert back.step >= 18
    _, result = run(tmp_path / "run", longer, resume=True, progress=stop_after(back.step + 1))
    assert [row["step"] for row in result.history] == list(range(result.step + 1))


def lines_or_none(folder):
    return (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("line", [b"[]", b"3", b"null", b"{}", b'{"step": "a"}', b"[" * 100_000, b"\xff\x00", b"cut"])
def test_a_line_that_is_no_measurement_costs_no_other(tmp_path, line):
    """If this fails, one damaged line of metrics.jsonl ends in a traceback, or takes the good lines with it."""
    run(tmp_path / "run")
    metrics = tmp_path / "run" / runs.METRICS
    history, good = load_run(tmp_path / "run").history, metrics.read_bytes()
    assert len(history) > 2
    metrics.write_bytes(line + b"\n" + good + good)  # and each step twice, as two trainers in one folder leave it
    assert load_run(tmp_path / "run").history == history


def test_a_folder_in_place_of_the_measurements_is_one_line(tmp_path):
    """If this fails, the error does not say what to do."""
    run(tmp_path / "run")
    (tmp_path / "run" / runs.METRICS).unlink()
    (tmp_path / "run" / runs.METRICS).mkdir()
    with pytest.raises(RunError, match=r"cannot be read .*: put back"):
        load_run(tmp_path / "run")


def test_weights_alone_cannot_be_gone_on_from(tmp_path):
    """If this fails, a snapshot put in the place of the checkpoint ends in a traceback."""
    run(tmp_path / "run")
    (tmp_path / "run" / runs.snapshot_name(3)).replace(tmp_path / "run" / runs.CHECKPOINT)
    with pytest.raises(RunError, match="weights alone"):
        run(tmp_path / "run", resume=True)


def test_a_config_nested_without_end_is_one_line(tmp_path):
    """If this fails, a damaged config.json ends in a traceback."""
    (tmp_path / runs.CONFIG).write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(RunError, match="does not describe a run"):
        load_run(tmp_path)


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path, monkeypatch):
    """If this fails, a full disk ends in an error number, or takes the last good checkpoint with it."""
    write, free = checkpoint.write_aside, [4]

    def write_aside(path, content):
        free[0] -= 1
        if free[0] < 0:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(checkpoint, "write_aside", write_aside)
    with pytest.raises(RunError, match=r"run: step \d+ could not be kept \(No space left on device\): make room"):
        run(tmp_path / "run")
    kept = load_run(tmp_path / "run")
    assert kept.step > 0


def test_two_trainers_that_start_together_do_not_mix(tmp_path):
    """If this fails, two runs write into one folder, and neither can be used."""
    config = runs.open_run(tmp_path / "run", MODEL, CONFIG.__dict__, EXTRA).config
    first = runs.Keeper(tmp_path / "run", config)
    second = runs.Keeper(tmp_path / "run", config)
    model = GPT(MODEL)
    optimizer = trainer.make_optimizer(model, CONFIG)
    row = {"step": 0, "seconds": 0.0, "train_loss": 1.0, "val_loss": 1.0}
    first.keep(row, model, optimizer, torch.Generator())
    before = contents(tmp_path / "run")
    with pytest.raises(RunError, match="another run has begun here"):
        second.keep(row, model, optimizer, torch.Generator())
    assert contents(tmp_path / "run") == before
