"""The named configurations are those of the book; models made from them are kept, and made anew when they must be."""

import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import gptbook
from gptbook import corpora, exercises, recipes, runs, tokenizers, trainer
from gptbook.checkpoint import weights
from gptbook.model import GPTConfig
from gptbook.modern import ModernConfig
from gptbook.recipes import PRESETS, TRAINING, source_closure, trained
from gptbook.tokenizers import BPETokenizer, CharTokenizer
from gptbook.trainer import TrainConfig, estimate_loss, evaluate, loss_fn

TEXT = "".join(chr(97 + (i * i + i // 7) % 13) for i in range(900))
TINY = GPTConfig(vocab_size=65, block_size=8, n_layer=1, n_head=2, n_embd=8)
TINY_TRAINING = TrainConfig(batch_size=2, steps=6, eval_every=3, random_batches=2, snapshots=(0, 2))


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A recipe that takes a moment, its text, and a folder for its runs."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT, encoding="utf-8")
    monkeypatch.setenv("GPTBOOK_RUNS", str(tmp_path / "runs"))
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    monkeypatch.setitem(TRAINING, "tiny", TINY_TRAINING)
    monkeypatch.setitem(recipes.CORPORA, "tiny", str(text))
    monkeypatch.setattr(recipes, "peak_gflops", lambda **_: 1.5)  # it takes a second
    return tmp_path


@pytest.fixture
def trainings(monkeypatch):
    """The trainings that really happened."""
    found = []
    train = trainer.train
    monkeypatch.setattr(recipes, "train", lambda *a, **k: found.append(1) or train(*a, **k))
    return found


def folders(tmp_path):
    return sorted(path.name for path in (tmp_path / "runs").iterdir())


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("step-5", 816_640),
        ("lets-build", 159_937),
        ("larger", 10_788_864),
        ("gpt2", 124_439_808),
        ("smollm2", 134_515_008),
    ],
)
def test_the_presets_have_the_parameters_that_the_book_names(name, count):
    """If this fails, the book describes another model than it builds."""
    with torch.device("meta"):
        model = recipes.build(PRESETS[name])
    assert sum(p.numel() for p in model.parameters()) == count
    assert gptbook.PRESETS is PRESETS
    assert gptbook.build is recipes.build


def test_the_trainings_are_those_that_the_book_names():
    """If this fails, "reproduced" on page 9 is not true."""
    assert TRAINING["step-5"].learning_rate == 1e-3
    build = TRAINING["lets-build"]
    assert (build.learning_rate, build.batch_size, build.steps, build.random_batches) == (1e-3, 16, 3000, 50)
    assert (build.schedule, build.warmup_steps, build.clip, build.weight_decay) == ("constant", 0, None, 0.01)
    hood = TRAINING["under-the-hood"]
    assert (hood.learning_rate, hood.batch_size, hood.steps) == (2e-3, 32, 1000)
    pieces = TRAINING["lets-build-bpe"]
    assert replace(pieces, steps=build.steps) == build
    assert replace(PRESETS["lets-build-bpe"], vocab_size=65) == PRESETS["lets-build"]
    work = {
        name: recipes.flops_per_token(PRESETS[name]) * TRAINING[name].steps for name in ("lets-build", "lets-build-bpe")
    }
    assert work["lets-build-bpe"] == pytest.approx(work["lets-build"], rel=1 / pieces.steps)  # to a step
    assert TRAINING.keys() == recipes.CORPORA.keys()
    assert TRAINING.keys() < PRESETS.keys()


def test_the_work_of_training_is_counted_right():
    """If this fails, the share of the machine's peak on page 9 is wrong. The oracle counts what PyTorch runs."""
    modern = ModernConfig(vocab_size=13, block_size=8, n_layer=2, n_head=4, n_kv_head=2, n_embd=16, n_inner=20)
    ungated = replace(modern, activation="gelu", n_kv_head=None, positions="learned", tied=False, norm="layer")
    books = replace(PRESETS["step-5"], n_layer=2), replace(PRESETS["lets-build"], n_layer=1)
    for config in (TINY, *books, modern, ungated):
        model, idx = recipes.build(config), torch.zeros(3, config.block_size, dtype=torch.int64)
        with FlopCounterMode(display=False) as counter:
            loss_fn(model(idx), idx).backward()
        assert counter.get_total_flops() == recipes.flops_per_token(config) * idx.numel()


def test_the_peak_is_a_rate_and_draws_nothing():
    """If this fails, measuring the machine changes the weights that training starts from."""
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert recipes.peak_gflops(size=64, bursts=3) > 0
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_is_made_once_and_then_kept(tiny, trainings):
    """If this fails, each page of the book trains its model again, or gets another one."""
    first, second = trained("tiny"), trained("tiny")
    assert len(trainings) == 1
    one, two = weights(first.model), weights(second.model)
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())
    assert first.summary == second.summary
    assert first.history == second.history
    assert not first.model.training
    assert folders(tiny) == [first.folder.name]
    assert first.folder.name.startswith("tiny-")


def test_what_a_trained_model_tells(tiny, capsys):
    """If this fails, page 9 quotes a loss that the model does not have, or shows lines that another build would not."""
    made = trained("tiny")
    assert capsys.readouterr() == ("", "")
    tokens = torch.tensor(made.tokenizer.encode(TEXT))
    train_tokens, val_tokens = tokens[:810], tokens[810:]
    assert made.summary["val_loss"] == pytest.approx(evaluate(made.model, val_tokens).loss, abs=1e-6)
    as_much = evaluate(made.model, train_tokens[: len(val_tokens)])
    assert made.summary["train_loss"] == pytest.approx(as_much.loss, abs=1e-6)
    assert made.summary["val_estimate"] == pytest.approx(estimate_loss(made.model, val_tokens, 2, 2), abs=1e-6)
    assert made.summary["steps"] == made.history[-1]["step"] == 6
    assert made.summary["tokens_per_second"] == pytest.approx(6 * 2 * 8 / made.summary["seconds"])
    assert made.summary["peak_gflops"] == 1.5
    assert made.summary["threads"] == torch.get_num_threads()
    assert made.summary["processor"]
    assert made.corpus.text == TEXT
    snapshots = dict(made.snapshots())
    assert list(snapshots) == [0, 2]
    losses = {row["step"]: row["val_loss"] for row in made.history}
    for step, model in snapshots.items():
        assert evaluate(model, val_tokens).loss == pytest.approx(losses[step], abs=1e-6)
    assert losses[0] != losses[2]


def test_the_vocabulary(tiny, monkeypatch):
    """If this fails, the parameter counts of page 8 hold on one text only, or page 14 loses characters."""
    many = "".join(chr(0x100 + i) for i in range(200)) + TEXT
    (tiny / "text.txt").write_text(many, encoding="utf-8")
    assert trained("tiny").model.config.vocab_size == 65
    monkeypatch.setattr(recipes, "OWN_VOCABULARY", ("tiny",))
    assert trained("tiny").model.config.vocab_size == 213


def test_a_recipe_of_pieces(tiny, monkeypatch):
    """If this fails, "BPE against characters" on page 15 compares unlike things."""
    text = "naïve owls allow all owls to howl; " * 40 + "and now: ÄÖÜ, unheard of! " * 5
    (tiny / "text.txt").write_text(text, encoding="utf-8")
    monkeypatch.setattr(recipes, "PIECES", ("tiny",))
    monkeypatch.setitem(PRESETS, "tiny", replace(TINY, vocab_size=270))
    made = trained("tiny")
    cut = int(0.9 * len(text))
    assert made.tokenizer == BPETokenizer.train(text[:cut], 270) != BPETokenizer.train(text, 270)
    assert made.model.config.vocab_size == made.tokenizer.vocab_size == 270
    assert tokenizers.from_dict(runs.read_config(made.folder)["tokenizer"]) == made.tokenizer
    again = trained("tiny")
    assert (again.folder, again.tokenizer) == (made.folder, made.tokenizer)

    ids = torch.tensor(made.tokenizer.encode(text[cut:]))
    assert made.summary["val_targets"] == len(ids) - 1
    assert made.summary["val_bytes"] == len(made.tokenizer.decode_bytes(ids[1:]))
    nats = evaluate(made.model, ids).loss * (len(ids) - 1)
    bits = nats / math.log(2) / len(made.tokenizer.decode_bytes(ids[1:]))
    assert made.summary["val_bits_per_byte"] == pytest.approx(bits)
    assert bits != pytest.approx(made.summary["val_loss"] / math.log(2), rel=0.1)


def test_bits_per_byte_of_characters(tiny):
    """If this fails, what the pieces are compared with is measured wrongly; letters of two bytes are in the text."""
    text = "naïve owls allow all owls to howl; " * 40
    (tiny / "text.txt").write_text(text, encoding="utf-8")
    summary, cut = trained("tiny").summary, int(0.9 * len(text))
    assert summary["val_targets"] == len(text) - cut - 1
    assert summary["val_bytes"] == len(text[cut + 1 :].encode()) > summary["val_targets"]
    bits = summary["val_loss"] / math.log(2) * summary["val_targets"] / summary["val_bytes"]
    assert summary["val_bits_per_byte"] == pytest.approx(bits)


def test_all_that_a_model_depends_on_makes_a_new_one(tiny, trainings, monkeypatch):
    """If this fails, the book shows results of a model that its code would no longer make."""
    seen = {trained("tiny").folder}
    changes = [
        lambda m: m.setitem(PRESETS, "tiny", replace(TINY, n_embd=16)),
        lambda m: m.setitem(TRAINING, "tiny", replace(TINY_TRAINING, learning_rate=2e-3)),
        lambda m: (tiny / "text.txt").write_text(TEXT + "!", encoding="utf-8"),
        lambda m: m.setattr(recipes, "source_closure", lambda *_: {"gptbook.model": "other"}),
        lambda m: m.setattr(CharTokenizer, "encode", lambda self, text: [0] * len(text)),
        lambda m: m.setattr(torch, "__version__", "9.9.9"),
        lambda m: m.setattr(recipes.platform, "python_version_tuple", lambda: ("3", "99", "0")),
    ]
    for change in changes:
        with monkeypatch.context() as patch:
            change(patch)
            seen.add(trained("tiny").folder)
        (tiny / "text.txt").write_text(TEXT, encoding="utf-8")
    assert len(seen) == len(trainings) == 1 + len(changes)
    trained("tiny")
    assert len(trainings) == 1 + len(changes)  # and back again, nothing is made


def test_an_edit_of_the_modern_model_remakes_modern_models_alone(tiny, trainings, monkeypatch):
    """If this fails, an edit of `modern` trains GPTs anew that it has no part in, or leaves a modern one stale."""
    modern = ModernConfig(block_size=8, n_layer=1, n_head=2, n_embd=8)

    def remade(config):
        """Whether an edit of `modern` makes another model of this configuration."""
        with monkeypatch.context() as patch:
            patch.setitem(PRESETS, "tiny", config)
            first = trained("tiny")
            closure = source_closure
            patch.setattr(recipes, "source_closure", lambda *names: closure(*names) | {"gptbook.modern": "edited"})
            return trained("tiny").folder != first.folder

    assert remade(modern)
    assert not remade(TINY)
    assert len(trainings) == 3


def test_the_source_that_counts_is_the_source_that_is_imported():
    """If this fails, an edit to the trainer leaves stale results. The oracle is what Python really imports."""
    names = ("gptbook.trainer", "gptbook.tokenizers", "gptbook.corpora")
    program = f"import sys, {', '.join(names)}; print(*[name for name in sys.modules if name.startswith('gptbook.')])"
    imported = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert sorted(source_closure(*names)) == sorted(imported)
    assert "gptbook.model" in imported
    assert "gptbook.recipes" not in imported  # its values count, not its words
    assert "gptbook.verify" not in imported


def test_every_way_to_import_is_followed(tmp_path):
    """If this fails, a module hidden behind some spelling of import does not count."""
    root = tmp_path / "gptbook"
    (root / "sub").mkdir(parents=True)
    files = {
        "__init__.py": "",
        "a.py": "import os\nfrom gptbook import b\nimport gptbook.c\n\ndef late():\n    from gptbook.d import x as y\n",
        "b.py": "from .sub import e",
        "c.py": "from . import f\nimport gptbook.a",
        "d.py": "'from gptbook import never'",
        "sub/__init__.py": "from .e import x",
        "sub/e.py": "from ..g import x",
        "f.py": "",
        "g.py": "",
        "never.py": "",
    }
    for name, source in files.items():
        (root / name).write_text(source, encoding="utf-8")
    found = source_closure("gptbook.a", root=root)
    assert list(found) == [f"gptbook.{name}" for name in ("a", "b", "c", "d", "f", "g", "sub", "sub.e")]
    (root / "sub" / "e.py").write_text("from ..g import x  # edited", encoding="utf-8")
    again = source_closure("gptbook.a", root=root)
    assert {name for name in found if found[name] != again[name]} == {"gptbook.sub.e"}


def test_a_model_of_the_book_keeps_the_text_that_it_read(tiny, trainings, monkeypatch):
    """If this fails, `mkdocs serve` trains for minutes after each edit of prose, or shows a model of another text."""
    monkeypatch.setattr(recipes, "OWN_VOCABULARY", ("tiny",))
    monkeypatch.setitem(recipes.CORPORA, "tiny", "book")
    monkeypatch.delenv("GPTBOOK_DATA", raising=False)
    pages = tiny / "checkout" / "docs"
    pages.mkdir(parents=True)
    (tiny / "checkout" / "pyproject.toml").touch()
    monkeypatch.setattr(corpora, "__file__", str(tiny / "checkout" / "gptbook" / "corpora.py"))
    (pages / "index.md").write_text("# Home\n\n" + TEXT, encoding="utf-8")
    first = trained("tiny")
    (pages / "index.md").write_text("# Home\n\nEdited. Ä.\n\n" + TEXT, encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setenv("GPTBOOK_DATA", str(first.folder))
        again = trained("tiny")
    assert (again.folder, again.corpus.text) == (first.folder, first.corpus.text)
    assert len(trainings) == 1
    other = trained("tiny")  # the negative control: without the folder the edited text counts
    assert len(trainings) == 2
    assert (other.folder / "book" / "input.txt").read_text(encoding="utf-8") == other.corpus.text != first.corpus.text


def test_other_texts_are_not_kept_with_their_models(tiny):
    """If this fails, each kept model takes a megabyte more, of a text that never changes."""
    assert not (trained("tiny").folder / "book").exists()


def test_a_run_that_another_process_finished_first_is_used(tiny, monkeypatch):
    """If this fails, two builds at a time end in an error, or in two models of one name."""
    made = trained("tiny")
    kept = made.folder.rename(tiny / "kept")
    train = trainer.train

    def meanwhile(*args, **kwargs):
        result = train(*args, **kwargs)
        shutil.copytree(kept, made.folder)
        (made.folder / "mark").write_text("of the other one", encoding="utf-8")
        return result

    monkeypatch.setattr(recipes, "train", meanwhile)
    assert (trained("tiny").folder / "mark").exists()
    assert folders(tiny) == [made.folder.name]


def test_two_processes_at_a_time(tiny):
    """If this fails, two builds at a time spoil each other's files."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_recipes as t\n"
        "t.PRESETS['tiny'], t.TRAINING['tiny'], t.recipes.CORPORA['tiny'] = t.TINY, t.TINY_TRAINING, sys.argv[2]\n"
        "t.recipes.peak_gflops = lambda **_: 1.5; t.trained('tiny'); print(t.recipes.loaded_runs['tiny'])"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent), str(tiny / "text.txt")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1]
    assert len(folders(tiny)) == 1


def test_an_interrupted_training_leaves_nothing(tiny, trainings, monkeypatch):
    """If this fails, half a training passes for a whole one."""
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "measure", lambda *a: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            trained("tiny")
    assert folders(tiny) == []

    interrupted = trainer.TrainResult([], 1.0, 1.0, 3, interrupted=True)
    with monkeypatch.context() as patch:
        patch.setattr(recipes, "train", lambda *a, **k: interrupted)
        with pytest.raises(KeyboardInterrupt):
            trained("tiny")
    assert folders(tiny) == []
    assert trained("tiny").summary["steps"] == 6


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "summary.json", "config.json"])
def test_a_damaged_kept_model_is_one_line(tiny, name):
    """If this fails, a damaged cache ends in a traceback that does not say where it is."""
    made = trained("tiny")
    (made.folder / name).write_bytes((made.folder / name).read_bytes()[:-100])
    with pytest.raises(ValueError, match="delete this folder") as caught:
        trained("tiny")
    assert made.folder.name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_was_loaded_is_on_record(tiny, monkeypatch):
    """If this fails, the build cannot know that a page depends on a model."""
    monkeypatch.setattr(recipes, "loaded_runs", {})
    made = trained("tiny")
    (recorded,) = recipes.loaded_runs.values()
    key, sha256 = recorded.split()
    assert made.folder.name == f"tiny-{key[:16]}"
    assert recipes.loaded_folders["tiny"] == made.folder
    assert len(sha256) == 64
    monkeypatch.setitem(TRAINING, "tiny", replace(TINY_TRAINING, seed=2))
    trained("tiny")
    assert recipes.loaded_runs["tiny"].split()[1] != sha256
    assert corpora.loaded[str(tiny / "text.txt")] == made.corpus.sha256


def test_an_unknown_recipe_is_one_line(capsys):
    """If this fails, a mistyped name ends in a traceback."""
    with pytest.raises(ValueError, match="step-5"):
        trained("step-6")
    assert recipes.main(["step-6"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_larger_recipe_is_that_of_the_exercise():
    """If this fails, pages 13 and 18 mean two recipes."""
    assert exercises.check("larger-recipe", lambda: (PRESETS["larger"], TRAINING["larger"]))
    wrong = replace(TRAINING["larger"], steps=500)
    assert not exercises.check("larger-recipe", lambda: (PRESETS["larger"], wrong))


def test_what_is_for_a_gpu_is_not_made_with_the_others(monkeypatch, capsys):
    """If this fails, `python -m gptbook.recipes` takes days."""
    asked = []
    made = recipes.Trained(None, None, None, [], {"val_loss": 1.5, "steps": 1}, None)
    monkeypatch.setattr(recipes, "trained", lambda name, show: asked.append(name) or made)
    assert recipes.main([]) == recipes.main(["larger"]) == 0
    assert sorted(asked) == sorted(TRAINING)
    assert asked[-1] == "larger"


def test_making_models_from_the_command_line(tiny, capsys):
    """If this fails, the build's own step for training does nothing."""
    assert recipes.main(["tiny"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("tiny: val ")
    assert "step 6 of 6" in err  # plain lines, as this is no terminal
    assert recipes.main(["tiny"]) == 0
    assert capsys.readouterr().err == ""
    assert json.loads((trained("tiny").folder / "summary.json").read_text(encoding="utf-8"))["steps"] == 6
