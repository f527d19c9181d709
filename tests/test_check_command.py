"""`gptbook check FILE.py`: what it finds in a reader's file, and that the file cannot break it.

Few tests start the process that a check runs in, for that takes seconds; the others ask its parts.
"""

import json
import re
import sys
import textwrap

import pytest
import torch

from gptbook import check, verify
from gptbook.cli import main
from gptbook.model import GPT, GPTConfig
from gptbook.verify import Report, Result

RIGHT = """
    import torch
    from gptbook.model import GPT, GPTConfig
    VOCAB_SIZE, BLOCK_SIZE = 11, 8
    def build_model():
        return GPT(GPTConfig(VOCAB_SIZE, BLOCK_SIZE, 1, 2, 16))
"""


def written(tmp_path, text, name="mine.py"):
    path = tmp_path / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def names_of(text):
    names = {"torch": torch, "GPT": None}
    del names["GPT"]
    exec(textwrap.dedent(text), names)
    return names


def reader(text=""):
    return check.Reader(names_of(text))


@pytest.fixture
def stand_in(monkeypatch):
    """Put a check that notes what it was given, and passes, in the place of `verify.NAME`."""
    calls = []

    def put(name):
        def noted(*given):
            calls.append(given)
            return Report((Result("value", "passed"),))

        monkeypatch.setattr(verify, name, noted, raising=False)
        return calls

    return put


def refused(capsys, path, *more):
    assert main(["check", str(path), *more]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert "Traceback" not in err
    return err


# ---- the whole way


def test_a_right_file_gives_0_and_says_what_was_not_checked(tmp_path, capsys):
    """If this fails, a right model is refused, or its prints mix with the report."""
    path = written(tmp_path, RIGHT + "    print('noise ' * 100_000)\n")
    assert main(["check", str(path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "noise" not in out
    assert "✓ passed       causal" in out
    assert "not defined, so not checked: average, attention" in out
    assert out.splitlines()[-1].startswith("nothing failed: ")


def test_a_wrong_file_gives_1_and_one_json_object(tmp_path, capsys):
    """If this fails, a program that reads the report cannot, or a function that hangs takes the others' results along.

    The first function never returns, and the second ends Python: both are named, and the model is checked all the same.
    """
    text = RIGHT + "    def average(x):\n        while True: pass\n"
    text += "    import os\n    def gelu(x): os._exit(7)\n    def layer_norm(x, weight, bias): raise SystemExit\n"
    path = written(tmp_path, text)
    assert main(["check", str(path), "--json", "--limit", "8"]) == 1
    out, err = capsys.readouterr()
    content = json.loads(out)
    assert err == ""
    assert content["passed"] is False
    found = {(r["about"], r["name"]): r for r in content["results"]}
    assert "no answer within 8 seconds" in found["average", "answer"]["measured"]
    assert "exit code 7" in found["gelu", "answer"]["measured"]
    assert {name.split(":")[0] for name in content["failed"]} == {"average", "gelu", "layer_norm"}
    assert found["model", "causal"]["status"] == "passed"
    assert "attention" in content["not_defined"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise ValueError('no data\\nhere')", "importing it raises ValueError: no data here (line 1)"),
        ("import time\nwhile True: time.sleep(1)", "importing it takes more than 2 seconds"),
    ],
    ids=["raises", "hangs"],
)
def test_a_file_that_cannot_be_imported_gets_one_line(tmp_path, capsys, text, words):
    assert words in refused(capsys, written(tmp_path, text), "--limit", "2")


@pytest.mark.parametrize(
    ("name", "words"), [("absent.py", "no file"), (".", "a folder"), ("notebook.ipynb", "save its code")]
)
def test_what_is_no_python_file_gets_one_line(tmp_path, capsys, name, words):
    (tmp_path / "notebook.ipynb").write_text("{}")
    assert words in refused(capsys, tmp_path / name)


# ---- what the process that imports does


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import sys; sys.exit(0)", "calls sys.exit"),
        ("def f(:", "not valid Python: invalid syntax (bad.py, line 1)"),
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found' (line 1)"),
        ("x = 1\nraise KeyboardInterrupt", "raises KeyboardInterrupt (line 2)"),
        ("def f(): f()\nf()", "RecursionError"),
    ],
)
def test_an_import_that_fails_is_said_in_one_line(tmp_path, monkeypatch, text, words):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    with pytest.raises(check.CannotCheck) as caught:
        check.imported(written(tmp_path, text, "bad.py"))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    sys.modules.pop("bad", None)


def test_a_file_may_be_called_like_one_of_pythons_own(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    import random

    names = check.imported(written(tmp_path, "import json\nmine = 1\n", "random.py"))
    assert names["mine"] == 1
    assert sys.modules["random"] is random
    sys.modules.pop("random_to_check", None)


def test_the_process_tells_what_it_finds(tmp_path, monkeypatch, stand_in):
    """What `main` writes is what the parent reads: each check is announced before it is made."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    stand_in("check_gelu"), stand_in("check_loss")
    told = tmp_path / "told"
    path = written(tmp_path, "def gelu(x): return x\ndef loss_fn(z, y): return 0\nsample = None\n")
    check.main([str(path), str(told), "loss_fn"])
    events = [json.loads(line) for line in told.read_text().splitlines()]
    assert [event["event"] for event in events] == ["import", "found", "check", "report", "check", "report", "end"]
    assert "gelu" not in events[1]["absent"]
    assert "model" in events[1]["absent"]
    assert events[3]["results"][0]["status"] == "passed"
    assert "not defined" in events[5]["results"][0]["cause"]
    sys.modules.pop("mine", None)


def test_sizes_come_from_the_file():
    assert (reader().V, reader().T) == (65, 64)
    mine = reader("VOCAB_SIZE, BLOCK_SIZE = 7, 5")
    assert (mine.V, mine.T) == (7, 5)
    assert mine.tokens().max() == 6
    assert reader("block_size, vocab_size = 12, None").T == 12
    expecting = check.Reader({"EXPECT": GPTConfig(9, 4)})
    assert (expecting.V, expecting.T) == (9, 4)
    for bad in ("VOCAB_SIZE = 1", "BLOCK_SIZE = 'long'", "VOCAB_SIZE = True"):
        with pytest.raises(check.CannotCheck, match="must be a whole number"):
            reader(bad)


def test_a_class_that_takes_no_configuration_is_called_with_nothing():
    text = """
        import torch
        vocab_size = 7
        class GPT(torch.nn.Module):
            def __init__(self): super().__init__(); self.table = torch.nn.Embedding(vocab_size, vocab_size)
    """
    assert reader(text).model().table.weight.shape == (7, 7)
    with pytest.raises(check.Absent, match="define build_model"):
        reader(text.replace("vocab_size)", "none)")).model()


def test_a_loop_that_knows_the_length_from_its_file_is_right():
    """If this fails, `idx[:, -BLOCK_SIZE:]` is called wrong wherever BLOCK_SIZE is not ours."""
    text = """
        import torch
        {size} = 12
        @torch.no_grad()
        def generate(model, idx, count):
            for _ in range(count):
                chances = model(idx[:, -{cut}:])[:, -1].softmax(-1)
                idx = torch.cat([idx, torch.multinomial(chances, 1)], dim=1)
            return idx
    """
    for size in ("BLOCK_SIZE", "block_size"):
        report = check.asked(reader(text.format(size=size, cut=size)), "generate")
        assert report.failed == [], str(report)
        assert "is fixed in the function" in report["long-prompt"].cause
    assert check.asked(reader(text.format(size="BLOCK_SIZE", cut=9)), "generate").failed == ["long-prompt"]


@pytest.mark.parametrize("about", list(check.SUBJECTS))
def test_a_name_that_is_no_function_fails_in_words(about):
    """If this fails, `sample = 3` ends the check with a traceback."""
    result = check.asked(check.Reader(dict.fromkeys(check.SUBJECTS[about][0], 3)), about).results[0]
    assert result.status == "failed", str(result)
    assert "is a int, and must be a function" in result.cause


@pytest.mark.parametrize("about", [about for about in check.SUBJECTS if about not in ("model", "Block", "lr_at")])
def test_a_check_that_is_not_there_is_not_passed(about, monkeypatch):
    """If this fails, a name that no check exists for counts as checked."""
    for name in [name for name in vars(verify) if name.startswith("check_")]:
        monkeypatch.delattr(verify, name)
    text = "def build_model(): return torch.nn.Linear(2, 2)\n"
    text += "".join(f"def {name}({'tokens' if name == 'get_batch' else 'x=0'}): return 1\n" for name in check.NAMES[2:])
    result = check.asked(reader(text), about).results[0]
    assert result.status == "not checked"
    assert "this edition of gptbook has no verify.check_" in result.cause


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [("ValueError('x')", "not checked", "ValueError: x"), ("SystemExit", "failed", "calls sys.exit")],
)
def test_a_check_that_is_stopped_says_so(monkeypatch, error, status, words):
    monkeypatch.setattr(verify, "check_gelu", lambda gelu: gelu(0), raising=False)
    result = check.asked(reader(f"def gelu(x): raise {error}"), "gelu").results[0]
    assert result.status == status
    assert words in f"{result.measured} {result.cause}"


# ---- the model and the block


def built(text, name="model"):
    mine = reader(text)
    return mine.model() if name == "model" else check._block(mine)


def test_a_model_is_built_once():
    mine = reader("def build_model(): return torch.nn.Linear(2, 2)")
    assert mine.model() is mine.model()


@pytest.mark.parametrize(
    "text",
    [
        "class GPT(torch.nn.Module):\n    def __init__(self, config):\n"
        "        super().__init__(); self.V = config.vocab_size",
        "class GPTConfig:\n    def __init__(self, vocab_size, block_size): self.V = vocab_size\n"
        "class GPT(torch.nn.Module):\n    def __init__(self, config): super().__init__(); self.V = config.V",
    ],
    ids=["of the book's configuration", "of its own configuration"],
)
def test_a_class_is_built_from_a_configuration(text):
    assert built("VOCAB_SIZE = 7\n" + text).V == 7


@pytest.mark.parametrize(
    ("text", "failed", "words"),
    [
        ("def build_model(): return 3", True, "must return a torch.nn.Module, got a int"),
        ("def build_model(): 1 / 0", True, "ZeroDivisionError"),
        ("class GPT:\n    def __init__(self, a, b): pass", False, "define build_model()"),
        ("", False, "neither build_model"),
    ],
)
def test_a_model_that_cannot_be_built_is_said(text, failed, words):
    with pytest.raises(check.Absent, match=re.escape(words)) as caught:
        built(text)
    assert caught.value.failed is failed


@pytest.mark.parametrize(
    "signature", ["config", "n_embd, n_head", "n_embd, n_head, dropout, block_size", "d_model, num_heads"]
)
def test_a_block_is_built_from_what_it_asks_for(signature):
    text = f"class Block(torch.nn.Module):\n    def __init__(self, {signature}): super().__init__()"
    text += "; self.C = config.n_embd" if signature == "config" else ""
    assert isinstance(built(text, "block"), torch.nn.Module)


def test_a_block_that_asks_for_something_else_is_not_checked():
    text = "class Block(torch.nn.Module):\n    def __init__(self, n_embd, flavour): super().__init__()"
    result = check.asked(reader(text), "Block").results[0]
    assert result.status == "not checked"
    assert "flavour" in result.cause


# ---- functions that need something beside themselves


@pytest.mark.parametrize(
    ("text", "given"),
    [
        (
            "def get_batch(tokens, block_size, batch_size): return tokens[:block_size]",
            ("tokens", "block_size", "batch_size"),
        ),
        ("def get_batch(data, T, B): return data[:T]", ("data",)),
        ("def get_batch(stream): return stream[:64]", ()),
    ],
)
def test_batches_are_drawn_from_the_packages_tokens(text, given, stand_in):
    """What the check gives by itself is left to it; the other names are filled in."""
    calls = stand_in("check_batches")
    mine = reader(text)
    assert check.asked(mine, "get_batch").passed
    (get_batch, tokens, block_size) = calls[0]
    values = {"tokens": tokens, "data": tokens, "block_size": 64, "batch_size": 8}
    assert torch.equal(get_batch(**{name: values[name] for name in given}), tokens[:64])
    assert torch.equal(tokens, mine.tokens())
    assert block_size == 64


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("ids = torch.arange(99)\ndef get_batch(): return ids[:64]", ()),
        (
            "train_data, val_data = torch.arange(99), torch.arange(30)\n"
            "def get_batch(split):\n    data = train_data if split == 'train' else val_data\n    return data[:64]",
            ("train",),
        ),
        ("numbers = list(range(99))\ndef get_batch(): return torch.tensor(numbers[:64])", ()),
    ],
)
def test_batches_without_tokens_are_drawn_from_those_that_are_read(text, given, stand_in):
    calls = stand_in("check_batches")
    assert check.asked(reader(text), "get_batch").not_checked == []
    get_batch, tokens, _ = calls[0]
    assert torch.equal(get_batch(*given), tokens[:64])
    assert len(tokens) == 99


@pytest.mark.parametrize("text", ["def get_batch(): return 1", "def get_batch(tokens, mood): return 1"])
def test_batches_of_unknown_tokens_are_not_checked(text, stand_in):
    stand_in("check_batches")
    assert check.asked(reader(text), "get_batch").not_checked == ["call"]


def test_sizes_reach_the_checks_that_need_them(stand_in):
    """If this fails, a loop that crops to the reader's own block_size is told that it should crop to another."""
    calls = stand_in("check_generate")
    mine = reader("VOCAB_SIZE, BLOCK_SIZE = 7, 5\ndef generate(model, idx, n): return idx")
    assert check.asked(mine, "generate").passed
    assert calls[0][1:] == (7, 5)


def test_a_tokenizer_is_asked_about_what_it_knows(stand_in):
    """If this fails, a vocabulary of a few letters is called broken because the package's text has more."""
    calls = stand_in("check_tokenizer")
    text = (
        "V = 'abc '\ndef encode(s): return [V.index(c) for c in s]\ndef decode(ids): return ''.join(V[i] for i in ids)"
    )
    assert check.asked(reader(text), "encode, decode").passed
    assert set(calls[0][2]) == set("abc ")
    assert check.asked(
        reader("def encode(s): return list(s.encode())\ndef decode(i): return ''"), "encode, decode"
    ).passed
    assert calls[1][2] == check.TEXT
    check.asked(reader("def encode(s): 1 / 0\ndef decode(i): return ''"), "encode, decode")
    assert calls[2][2] == check.TEXT  # it knows nothing: the check says so


def test_the_packages_text_has_the_symbols_of_the_books_corpus():
    shakespeare = "\n !$&',-.3:;?" + "".join(map(chr, [*range(65, 91), *range(97, 123)]))
    assert not set(shakespeare) - set(check.TEXT), sorted(set(shakespeare) - set(check.TEXT))


def test_a_cache_is_checked_against_the_readers_model(stand_in):
    calls = stand_in("check_cache")
    text = "def build_model(): return torch.nn.Linear(2, 2)\ndef step(model, chunk, cache): return model, cache"
    mine = reader(text)
    check.asked(mine, "step")
    model, step, V, T = calls[0]
    assert (V, T) == (65, 64)
    assert step(1, 2) == (model, 2) == (mine.model(), 2)
    assert check.asked(reader("def step(chunk, cache): return 1, 2"), "step").not_checked == ["call"]


def test_evaluation_borrows_the_books_model_where_it_can(stand_in):
    calls = stand_in("check_evaluate")
    assert check.asked(reader("def estimate_loss(model): return 1"), "estimate_loss").passed
    assert isinstance(calls[0][1], GPT)
    assert check.asked(reader("def estimate_loss(): return 1"), "estimate_loss").not_checked == ["call"]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("def lr_at(step, warmup, total): return warmup + total", (100, 1000)),
        ("def lr_at(step, warmup=5, total=50): return warmup + total", (5, 50)),
        ("warmup_iters, max_iters = 7, 70\ndef lr_at(it): return it", (7, 70)),
        ("WARMUP = 3\ndef lr_at(it, total=30): return it", (3, 30)),
        ("def lr_at(it): return (it + 1) / 10 if it < 10 else max(0.1, 1 - (it - 9) / 100)", (9, 99)),
    ],
)
def test_the_length_of_a_schedule_is_found(text, numbers, stand_in):
    calls = stand_in("check_schedule")
    report = check.asked(reader(text), "lr_at")
    assert report.failed == []
    assert calls[0][1:] == numbers
    calls[0][0](1)
    assert ("read off" in str(report)) == (numbers == (9, 99))


def test_a_schedule_of_unknown_length_is_not_checked(stand_in):
    stand_in("check_schedule")
    result = check.asked(reader("def lr_at(step): return 1.0"), "lr_at").results[0]
    assert result.status == "not checked"
    assert "WARMUP" in result.cause


# ---- the report


def test_an_outcome_reads_well():
    reports = {
        "attention": Report((Result("scale", "failed", "1", "2", "by the width; page 4"), Result("mask", "passed"))),
        "gelu": Report((Result("value", "passed"),)),
    }
    found = check.Outcome("mine.py", reports, ("model",))
    assert found.failed == ["attention: scale"]
    lines = str(found).splitlines()
    assert lines[0] == "attention"
    assert "by the width; page 4" in str(found)
    assert "not defined, so not checked: model" in lines
    assert lines[-1] == "something failed: 2 passed, 1 failed (attention: scale)"
    content = json.loads(found.to_json())
    assert content["failed"] == ["attention: scale"]
    assert content["results"][0]["about"] == "attention"
