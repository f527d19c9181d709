"""Files that a training run leaves: whole, readable by others, and refused when they are not what they should be."""

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors
import torch

from gptbook import checkpoint
from gptbook.checkpoint import CheckpointError, load, load_weights, save, weights, write_aside
from gptbook.model import GPT, GPTConfig

SMALL = GPTConfig(vocab_size=7, block_size=4, n_layer=2, n_head=2, n_embd=8)
TIED = GPTConfig(vocab_size=7, block_size=4, n_layer=1, n_head=2, n_embd=8, tied=True)
IDX = torch.tensor([[1, 2, 3, 0]])  # (1, 4)


def other_weights(model):
    """Weights that no initialisation gives, so that a load that loads nothing is seen."""
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=3.0)
    return model


@pytest.mark.parametrize("config", [SMALL, TIED], ids=["untied", "tied"])
def test_a_round_trip_gives_the_same_logits(tmp_path, config):
    """If this fails, what is sampled from disk is not what was trained."""
    model = other_weights(GPT(config))
    save(tmp_path / "c", weights(model), {"step": 3})
    fresh = GPT(config)
    assert not torch.equal(fresh(IDX), model(IDX))
    tensors, about = load(tmp_path / "c")
    load_weights(fresh, tensors)
    assert torch.equal(fresh(IDX), model(IDX))
    assert about == {"step": 3}


def test_a_tied_weight_is_stored_once_and_stays_tied(tmp_path):
    """If this fails, loading unties the embeddings, and training goes on with more parameters than the model has."""
    model = GPT(TIED)
    assert "lm_head.weight" not in weights(model)
    save(tmp_path / "c", weights(model), {})
    fresh = GPT(TIED)
    load_weights(fresh, load(tmp_path / "c")[0])
    assert fresh.lm_head.weight is fresh.wte.weight
    assert fresh.to("cpu").lm_head.weight is fresh.wte.weight


class Wrapped(torch.nn.Module):
    """What torch.compile makes of the names, without compiling."""

    def __init__(self, model):
        super().__init__()
        self._orig_mod = model


def test_the_prefix_of_a_compiled_model_is_not_stored(tmp_path):
    """If this fails, a checkpoint of a compiled model fits no plain one."""
    model = other_weights(GPT(SMALL))
    compiled = Wrapped(model)
    assert all(name.startswith("_orig_mod.") for name in compiled.state_dict())  # else this tests nothing
    save(tmp_path / "c", weights(compiled), {})
    plain = GPT(SMALL)
    load_weights(plain, load(tmp_path / "c")[0])
    assert torch.equal(plain(IDX), model(IDX))
    load_weights(Wrapped(GPT(SMALL)), load(tmp_path / "c")[0])


def without(tensors, name):
    return {key: tensor for key, tensor in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: without(t, "ln_f.bias"), "ln_f.bias is missing"),
        (lambda t: t | {"extra": torch.zeros(1)}, "extra is not the model's"),
        (lambda t: t | {"ln_f.bias": torch.zeros(9)}, "ln_f.bias is"),
        (lambda t: t | {"ln_f.bias": t["ln_f.bias"].double()}, "ln_f.bias is"),
        (lambda t: {f"module.{name}": tensor for name, tensor in t.items()}, "and"),
    ],
    ids=["missing", "unexpected", "shape", "type", "renamed"],
)
def test_weights_of_another_model_change_nothing(change, named):
    """If this fails, a half-loaded model looks like a loaded one."""
    model, tensors = GPT(SMALL), {name: t.clone() for name, t in weights(other_weights(GPT(SMALL))).items()}
    before = {name: t.clone() for name, t in weights(model).items()}
    with pytest.raises(CheckpointError, match=named) as caught:
        load_weights(model, change(tensors), "here")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("here")
    assert all(torch.equal(t, before[name]) for name, t in weights(model).items())
    load_weights(model, tensors)  # and the unchanged ones fit
    assert all(torch.equal(t, tensors[name]) for name, t in weights(model).items())


def spoil(path, how):
    content = bytearray(path.read_bytes())
    if how == "short":
        content = content[:-100]
    elif how == "one bit":
        content[-5] ^= 1
    elif how == "text":
        content = b"To be, or not to be: that is the question."
    elif how == "empty":
        content = b""
    elif how == "pickle":
        content = b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01a\x94K\x01s."
    elif how == "huge header":
        content[:8] = (2**62).to_bytes(8, "little")
    elif how == "foreign":  # a safetensors file of somebody else
        content = safetensors.torch.save({"a": torch.zeros(3)})
    elif how == "foreign metadata":
        content = safetensors.torch.save({"a": torch.zeros(3)}, {"about": "not JSON", "sha256": "0"})
    path.write_bytes(content)


@pytest.mark.parametrize(
    "how", ["short", "one bit", "text", "empty", "pickle", "huge header", "foreign", "foreign metadata", "gone"]
)
def test_a_spoilt_file_is_one_clear_line(tmp_path, how):
    """If this fails, a damaged checkpoint ends in a traceback of a library, or worse: it loads."""
    path = tmp_path / "checkpoint.safetensors"
    save(path, weights(GPT(SMALL)), {"step": 1})
    assert load(path)[1] == {"step": 1}
    path.unlink() if how == "gone" else spoil(path, how)
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert ": " in str(caught.value)


def test_a_folder_in_place_of_a_file_is_one_clear_line(tmp_path):
    """If this fails, naming the folder itself ends in a traceback."""
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(tmp_path)


def test_any_library_reads_the_file(tmp_path):
    """If this fails, the weights can be had by this book only."""
    model = GPT(SMALL)
    save(tmp_path / "c.safetensors", weights(model), {"step": 1})
    with safetensors.safe_open(tmp_path / "c.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("wte.weight"), model.wte.weight)
        assert json.loads(file.metadata()["about"]) == {"step": 1}


def test_the_digest_sees_names_shapes_types_and_values():
    """If this fails, two different models count as one, and pages show stale outputs."""
    base = {"a": torch.arange(6.0), "b": torch.zeros(2)}
    same = {"b": torch.zeros(2), "a": torch.arange(6.0)}
    assert checkpoint.digest(base) == checkpoint.digest(same)
    others = [
        base | {"a": torch.arange(6.0) + 1e-6},
        base | {"a": torch.arange(6.0).view(2, 3)},
        base | {"b": torch.zeros(2, dtype=torch.int32)},
        {"a": base["a"], "c": base["b"]},
    ]
    assert len({checkpoint.digest(tensors) for tensors in [base, *others]}) == 5


def test_tensors_that_are_views_are_written_as_they_look(tmp_path):
    """If this fails, a transposed or sliced tensor comes back scrambled, or not at all."""
    tensors = {"t": torch.arange(6.0).view(2, 3).T, "s": torch.arange(6)[::2], "n": torch.tensor(2.0)}
    save(tmp_path / "c", tensors, {})
    assert all(torch.equal(t, tensors[name]) for name, t in load(tmp_path / "c")[0].items())


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    """If this fails, a full disk or a kill costs the last good checkpoint."""
    path = tmp_path / "c"
    write_aside(path, "old")
    monkeypatch.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write_aside(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    monkeypatch.undo()
    write_aside(path, "neu: ü")
    assert path.read_bytes() == "neu: ü".encode()


@pytest.mark.skipif(os.name == "nt", reason="file modes as Unix has them")
def test_the_file_has_the_mode_of_any_new_file(tmp_path):
    """If this fails, colleagues cannot read the checkpoint."""
    (tmp_path / "plain").write_text("", encoding="utf-8")
    write_aside(tmp_path / "aside", "")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "aside")}
    assert len(modes) == 1


def test_two_processes_writing_one_file_leave_one_whole_file(tmp_path):
    """If this fails, a temporary file of a fixed name is shared, and what is left is a mixture."""
    program = (
        "import sys; from gptbook.checkpoint import write_aside\n"
        "for _ in range(60): write_aside(sys.argv[1], sys.argv[2] * 200_000)"
    )
    path = tmp_path / "c"
    both = [subprocess.Popen([sys.executable, "-c", program, str(path), letter]) for letter in "ab"]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    assert path.read_text(encoding="utf-8") in ("a" * 200_000, "b" * 200_000)
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


PICKLES = re.compile(r"(?<!safetensors\.)torch\.(load|save)\(|import pickle|np\.load\(")


def test_nothing_is_pickled():
    """If this fails, opening a file from elsewhere can run a program."""
    for path in Path(checkpoint.__file__).parent.rglob("*.py"):
        assert not PICKLES.search(path.read_text(encoding="utf-8")), path
    for bad in ("x = torch.load(path)", "torch.save(model, path)", "import pickle"):
        assert PICKLES.search(bad)


def test_a_changed_header_is_seen(tmp_path):
    """If this fails, a flipped bit in the step number passes, and a run goes on from a step it never reached."""
    path = tmp_path / "x.safetensors"
    checkpoint.save(path, {"a": torch.zeros(3)}, {"step": 1})
    assert checkpoint.load(path)[1] == {"step": 1}
    content = path.read_bytes()
    changed = content.replace(b'step\\": 1', b'step\\": 3')
    assert changed != content
    path.write_bytes(changed)
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(path)
