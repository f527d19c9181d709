"""Several processes that train one model: the same losses and weights as one, on a network that is this machine.

The oracle is one process with the whole batch. Wrong ways to share it are the negative controls.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from gptbook import checkpoint, parallel, runs, trainer
from gptbook.model import GPT, GPTConfig
from gptbook.trainer import Diverged, TrainConfig, train

MODEL = GPTConfig()  # 4 layers, 4 heads, width 128, context 64
TOKENS = torch.randint(65, (6000,), generator=torch.Generator().manual_seed(0)).sort().values.roll(137)
TOKENS = torch.stack([TOKENS, TOKENS.flip(0)], dim=1).flatten()  # there is something to learn, and rows differ
TRAIN, VAL = TOKENS[:11_600], TOKENS[11_600:]
FIFTY = TrainConfig(batch_size=4, steps=50, learning_rate=1e-3, clip=1.0, eval_every=25)
SMALL = replace(MODEL, n_layer=1, n_head=2, n_embd=16, block_size=16)
BARE = TrainConfig(batch_size=4, steps=6, learning_rate=1e-3)  # gradients stay as they are
FEW = TrainConfig(batch_size=4, steps=12, eval_every=5, warmup_steps=2, clip=1.0, snapshots=(3,), schedule="cosine")


def summed(model):
    """Wrong: the sum of the gradients in place of their mean."""
    for p in model.parameters():
        dist.all_reduce(p.grad)


def own(model):
    """Wrong: each process goes its own way."""


def head(batch):
    """Wrong: all take the same rows."""
    return batch[: len(batch) // parallel.size()]


WRONG = {
    "": {},
    "summed": {"average_gradients": summed},
    "own": {"average_gradients": own},
    "rows": {"share": head},
    "weights": {"begin": lambda model, batch_size: None},
    "loss": {"mean": lambda numbers: numbers},
}


def job(config, training, wrong="", **settings):
    """What one process trains: the losses it saw, its weights, or the error in its words."""
    vars(parallel).update(WRONG[wrong])
    torch.manual_seed(7 + parallel.rank())  # the first one's weights are to hold for all
    model, seen, after = GPT(config), [], settings.pop("interrupt", None)

    def progress(row):
        seen.append((row["step"], row.get("batch_loss")))
        if after and row["step"] == after[1] and parallel.rank() == after[0]:
            os.kill(os.getpid(), signal.SIGINT)

    usual, trainer.LOOK_EVERY = trainer.LOOK_EVERY, 1
    try:
        result = train(model, TRAIN, VAL, training, progress=progress, **settings)
    except ValueError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        trainer.LOOK_EVERY = usual
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result.history]
    gradients = {name: p.grad for name, p in model.named_parameters()}
    found = {"seen": seen, "weights": checkpoint.weights(model), "gradients": gradients, "rows": rows}
    return found | {"step": result.step, "drawn": torch.rand(8)}


def _process(rank, size, folder, jobs):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    kept = dict(vars(parallel))
    results = []
    for args, settings in jobs:
        results.append(job(*args, **settings))
        vars(parallel).update(kept)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def apart(a, b):
    """The largest difference between two lists of losses."""
    assert [step for step, _ in a] == [step for step, _ in b]
    return max(abs(x - y) for (_, x), (_, y) in zip(a, b, strict=True) if x is not None)


def same_weights(a, b):
    return a["weights"].keys() == b["weights"].keys() and all(
        torch.equal(tensor, b["weights"][name]) for name, tensor in a["weights"].items()
    )


LONG = replace(FEW, schedule="constant", warmup_steps=0, snapshots=())
JOBS = {
    "fifty": ((MODEL, FIFTY), {}),
    **{f"share {wrong}": ((SMALL, BARE, wrong), {}) for wrong in WRONG},
    "whole": ((SMALL, LONG), {}),
    "half": ((SMALL, replace(LONG, steps=5)), {"folder": "run"}),
    "taken": ((SMALL, LONG), {"folder": "run"}),
    "resumed": ((SMALL, LONG), {"folder": "run", "resume": True}),
    "uneven": ((SMALL, replace(FEW, batch_size=5)), {}),
    "diverged": ((SMALL, replace(FEW, learning_rate=1e30, clip=None, schedule="constant")), {}),
    "late": ((SMALL, replace(FEW, steps=10_000)), {"minutes": 1e-9}),
    "left": ((SMALL, replace(FEW, steps=10_000)), {"interrupt": (1, 4), "folder": "left"}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("together")


@pytest.fixture(scope="module")
def pairs(folder):
    """What each of two processes made of each job."""
    jobs = [
        (args, settings | ({"folder": folder / settings["folder"]} if "folder" in settings else {}))
        for args, settings in JOBS.values()
    ]
    mp.spawn(_process, (2, str(folder), jobs), nprocs=2)
    first, second = (torch.load(folder / f"{rank}.pt") for rank in range(2))
    return dict(zip(JOBS, zip(first, second, strict=True), strict=True))


def test_two_processes_have_the_losses_of_one(pairs):
    """If this fails, training by two is another training."""
    first, second = pairs["fifty"]
    alone = job(MODEL, FIFTY)
    assert len(alone["seen"]) > 50
    assert alone["seen"][1][1] - alone["seen"][-1][1] > 0.5  # it learns, so a difference would grow
    assert apart(alone["seen"], first["seen"]) <= 1e-6
    assert first["rows"][-1]["val_loss"] == pytest.approx(alone["rows"][-1]["val_loss"], abs=1e-5)
    assert first["rows"] == second["rows"]  # the one that measures tells the other
    assert first["seen"] == second["seen"]
    assert same_weights(first, second)


def agree(alone, first, second):
    """Do losses, weights and last gradients say that two shared the work of one?"""
    gradients = all(
        torch.allclose(gradient, first["gradients"][name], rtol=1e-4, atol=1e-7)
        for name, gradient in alone["gradients"].items()
    )
    return gradients and apart(alone["seen"], first["seen"]) <= 1e-6 and same_weights(first, second)


def test_wrong_ways_to_share_are_caught(pairs):
    """If this fails, the test above passes whatever the processes tell each other.

    A sum in place of the mean shows in the gradients alone: AdamW divides by their size, and clipping does too.
    """
    alone = job(SMALL, BARE)
    assert {wrong: agree(alone, *pairs[f"share {wrong}"]) for wrong in WRONG} == {wrong: not wrong for wrong in WRONG}
    assert apart(alone["seen"], pairs["share summed"][0]["seen"]) < 1e-3


def test_a_run_of_two_goes_on_as_if_it_had_not_stopped(pairs, folder):
    """If this fails, averages or batches are lost on the way, or two processes write into each other's files."""
    assert same_weights(*pairs["whole"])
    assert same_weights(pairs["whole"][0], pairs["resumed"][0])
    assert same_weights(*pairs["resumed"])
    first, second = (result["drawn"] for result in pairs["whole"])
    assert not torch.equal(first, second)  # else their masks of dropout would be the same
    lines = (folder / "run" / runs.METRICS).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 5, 10, 12]
    assert not list((folder / "run").glob(".*"))


def test_all_are_refused_and_all_leave(pairs, folder):
    """If this fails, one process waits for the other for ever."""
    for taken, uneven, diverged, late in zip(*(pairs[n] for n in ("taken", "uneven", "diverged", "late")), strict=True):
        where = f"{folder / 'run'}: holds a run already"
        assert taken["error"] == f"RunError: {where}: resume it, or choose another folder"
        assert "batch_size 5 cannot be shared by 2 processes" in uneven["error"]
        assert "\n" not in uneven["error"]
        assert diverged["error"].startswith(f"{Diverged.__name__}: step")
        assert late["step"] == 0
    left = pairs["left"]
    assert left[0]["step"] == left[1]["step"] in (4, 5)  # only the second was interrupted
    assert same_weights(*left)
    assert runs.load_run(folder / "left").step == left[0]["step"]


def test_alone_nothing_is_done():
    """If this fails, a plain run pays for what it does not use."""
    model, numbers = GPT(SMALL), torch.arange(3.0)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    before = torch.get_rng_state()
    parallel.begin(model, 5)
    parallel.average_gradients(model)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in model.parameters())
    assert parallel.share(numbers).data_ptr() == numbers.data_ptr()
    assert parallel.mean(numbers) is numbers
    assert (parallel.size(), parallel.rank(), parallel.is_first(), parallel.any_of(False)) == (1, 0, True, False)
    assert parallel.from_first(math.sqrt, 4.0) == 2.0
    with parallel.joined():
        assert not dist.is_initialized()


# The command


def torchrun(*args, **settings):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    return subprocess.Popen(
        [*command, "-m", "gptbook", *map(str, args)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", start_new_session=True, **settings,
    )  # fmt: skip


def test_torchrun_speaks_once_stops_at_ctrl_c_and_is_refused_in_one_line(tmp_path):
    """If this fails, every line comes twice, hours of training are lost, or processes stay behind."""
    text, folder = tmp_path / "owl.txt", tmp_path / "run"
    text.write_text("the owl and the pussy-cat went to sea in a beautiful pea-green boat\n" * 40, encoding="utf-8")
    args = ("train", "--preset", "lets-build", "--data", text, "--steps", 10**6, "--out", folder)
    with torchrun(*args) as process:
        deadline = time.monotonic() + 120
        while not (folder / runs.CHECKPOINT).exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    step = runs.load_run(folder).step
    assert step > 0, err
    assert [line for line in out.splitlines() if line.startswith(f"{folder}: {step:,} steps")] == out.splitlines() != []
    assert err.count("parameters; 1,000,000 steps on cpu") == err.count("stopped by Ctrl-C") == 1
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with torchrun(*args) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert out == ""
    assert [line for line in err.splitlines() if line.startswith("gptbook") and line != "gptbook FAILED"] == [
        f"gptbook: {folder}: holds a run already: go on with it by --resume, or choose another --out"
    ]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
