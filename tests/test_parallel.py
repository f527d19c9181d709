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
    torch.set_num_threads(1)
    torch.manual_seed(7 + parallel.rank())  # the first one's weights are to hold for all
    model, seen, after = GPT(config), [], settings.pop("interrupt", None)

    def progress(row):
        seen.append((row["step"], row.get("batch_loss")))
        if after and row["step"] == after[1] and parallel.rank() == after[0]:
            os.kill(os.getpid(), signal.SIGINT)

    trainer.LOOK_EVERY = 1
    try:
        result = train(model, TRAIN, VAL, training, progress=progress, **settings)
    except ValueError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result.history]
    gradients = {name: p.grad for name, p in model.named_parameters()}
    found = {"seen": seen, "weights": checkpoint.weights(model), "gradients": gradients, "rows": rows}
    return found | {"step": result.step, "drawn": torch.rand(8)}


def _process(rank, size, folder, jobs):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    kept = dict(vars(parallel))
    results = []
    for args, settings in jobs:
        results.append(job(*args, **settings))
        vars(parallel).update(kept)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def together(folder, *jobs, size=2):
    """The results of each job in each process."""
    folder.mkdir(exist_ok=True)
    mp.spawn(_process, (size, str(folder), jobs), nprocs=size)
    return list(zip(*(torch.load(folder / f"{rank}.pt") for rank in range(size)), strict=True))


def apart(a, b):
    """The largest difference between two lists of losses."""
    assert [step for step, _ in a] == [step for step, _ in b]
    return max(abs(x - y) for (_, x), (_, y) in zip(a, b, strict=True) if x is not None)


def same_weights(a, b):
    return a["weights"].keys() == b["weights"].keys() and all(
        torch.equal(tensor, b["weights"][name]) for name, tensor in a["weights"].items()
    )


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """What two processes made of 50 steps of 4/4/128, and of a few of a smaller model in each way to share."""
    jobs = [((MODEL, FIFTY), {})] + [((SMALL, BARE, wrong), {}) for wrong in WRONG]
    fifty, *small = together(tmp_path_factory.mktemp("pairs"), *jobs)
    return fifty, dict(zip(WRONG, small, strict=True))


def test_two_processes_have_the_losses_of_one(pairs):
    """If this fails, training by two is another training."""
    (first, second), _ = pairs
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
    assert {wrong: agree(alone, *results) for wrong, results in pairs[1].items()} == {
        wrong: not wrong for wrong in WRONG
    }
    assert apart(alone["seen"], pairs[1]["summed"][0]["seen"]) < 1e-3


def test_a_run_of_two_is_resumed_and_left_together(tmp_path):
    """If this fails, one process waits for the other for ever, or a resumed run takes another way."""
    folder = tmp_path / "run"
    uneven, wild = replace(FEW, batch_size=5), replace(FEW, learning_rate=1e30, clip=None, schedule="constant")
    results = together(
        tmp_path / "jobs",
        ((SMALL, FEW), {}),
        ((SMALL, replace(FEW, steps=7)), {"folder": folder}),
        ((SMALL, FEW), {"folder": folder}),
        ((SMALL, replace(FEW, steps=7)), {"folder": folder, "resume": True}),
        ((SMALL, uneven), {}),
        ((SMALL, wild), {}),
        ((SMALL, replace(FEW, steps=10_000)), {"minutes": 1e-9}),
        ((SMALL, replace(FEW, steps=10_000)), {"interrupt": (1, 4), "folder": tmp_path / "left"}),
    )
    whole, _, taken, _, shared, diverged, late, left = results
    assert same_weights(*whole)
    assert not torch.equal(whole[0]["drawn"], whole[1]["drawn"])  # else their masks of dropout would be the same
    for result in taken:
        assert result["error"] == f"RunError: {folder}: holds a run already: resume it, or choose another folder"
    for result in shared:
        assert "batch_size 5 cannot be shared by 2 processes" in result["error"]
        assert "\n" not in result["error"]
    for result in diverged:
        assert result["error"].startswith(Diverged.__name__)
        assert "the loss is" in result["error"]
    for result in late:
        assert result["step"] == 0
    assert left[0]["step"] == left[1]["step"] in (4, 5)  # only the second was interrupted
    assert same_weights(*left)
    assert runs.load_run(tmp_path / "left").step == left[0]["step"]
    lines = (folder / runs.METRICS).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 3, 5, 7]  # one process writes
    assert not list(folder.glob(".*"))


def test_a_run_of_two_goes_on_as_if_it_had_not_stopped(tmp_path):
    """If this fails, averages or batches are lost on the way, for the process that keeps nothing."""
    whole = replace(FEW, schedule="constant", warmup_steps=0, snapshots=())
    half, folder = replace(whole, steps=5), tmp_path / "run"
    unbroken, _, resumed = together(
        tmp_path / "jobs",
        ((SMALL, whole), {}),
        ((SMALL, half), {"folder": folder}),
        ((SMALL, whole), {"folder": folder, "resume": True}),
    )
    assert same_weights(unbroken[0], resumed[0])
    assert same_weights(*resumed)


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


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "owl.txt"
    path.write_text("the owl and the pussy-cat went to sea in a beautiful pea-green boat\n" * 40, encoding="utf-8")
    return path


def test_torchrun_trains_speaks_once_and_is_refused_in_one_line(tmp_path, text):
    """If this fails, every line comes twice, or the folder holds what two processes wrote into each other."""
    folder = tmp_path / "run"
    args = ("train", "--preset", "lets-build", "--data", text, "--out", folder)
    with torchrun(*args, "--steps", 12) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert len(out.splitlines()) == 1
    assert out.startswith(f"{folder}: 12 steps")
    assert err.count("step 12 of 12") == err.count("parameters; 12 steps on cpu") == 1
    assert runs.load_run(folder).step == 12
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with torchrun(*args, "--steps", 12) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert [line for line in err.splitlines() if line.startswith("gptbook")] == [
        f"gptbook: {folder}: holds a run already: go on with it by --resume, or choose another --out",
        *[line for line in err.splitlines() if line == "gptbook FAILED"],  # torchrun's own words
    ]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_ctrl_c_ends_all_and_keeps_the_run(tmp_path, text):
    """If this fails, hours of training are lost, or processes stay behind."""
    folder = tmp_path / "run"
    with torchrun("train", "--preset", "lets-build", "--data", text, "--steps", 10**6, "--out", folder) as process:
        for _ in range(600):
            if (folder / runs.CHECKPOINT).exists():
                break
            time.sleep(0.1)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert runs.load_run(folder).step > 0
