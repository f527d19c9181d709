"""Checks of batches, tokenizers, optimizers, schedules, evaluations: wrong ones are caught, right but odd ones pass.

That every mistake of the catalogue is caught is in test_catalogue.py; here are others of these kinds, and look-alikes.
"""

import math
import random

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gptbook import data, tokenizers, trainer, verify
from gptbook.model import GPT, GPTConfig
from gptbook.verify import learning

SEEDS = settings(max_examples=20)


def small(**changes):
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "block_size": 6, "n_layer": 1, "n_head": 2, "n_embd": 12}
    return GPT(GPTConfig(**(sizes | changes)))


# ---- batches


class InOrder:
    """Batches one after another, views of the text, begun again where no whole batch is left."""

    def __init__(self, tokens, B, T):
        self.tokens, self.B, self.T, self.at = tokens, B, T, 0

    def __call__(self):
        B, T = self.B, self.T
        part = self.tokens[self.at : self.at + B * T + 1]
        self.at = self.at + B * T if self.at + 2 * B * T + 1 <= len(self.tokens) else 0
        return part[:-1].view(B, T), part[1:].view(B, T)


class Shuffled:
    """Windows without overlap, in a new order in each epoch, as a DataLoader gives them."""

    def __init__(self, tokens, B, T):
        self.tokens, self.B, self.T, self.left = tokens, B, T, []

    def __call__(self):
        if len(self.left) < self.B:
            self.left = torch.randperm((len(self.tokens) - 1) // self.T).mul(self.T).tolist()
        starts, self.left = self.left[: self.B], self.left[self.B :]
        pair = torch.stack([self.tokens[s : s + self.T + 1] for s in starts])
        return pair[:, :-1].clone(), pair[:, 1:].clone()


def of_numpy(tokens, B, T):
    text = tokens.numpy().astype(np.uint16)

    def get_batch():
        starts = np.random.randint(0, len(text) - T, B)
        pick = starts[:, None] + np.arange(T + 1)
        rows = text[pick].astype(np.int64)
        return rows[:, :-1], rows[:, 1:]

    return get_batch


def of_python(tokens, B, T):
    def get_batch():
        starts = [random.randrange(len(tokens) - T) for _ in range(B)]
        x = torch.stack([tokens[s : s + T] for s in starts]).int()
        return x, torch.stack([tokens[s + 1 : s + T + 1] for s in starts]), starts

    return get_batch


@SEEDS
@given(N=st.integers(100, 300), T=st.integers(2, 16), B=st.integers(2, 12), which=st.integers(0, 4))
def test_right_batches_pass(N, T, B, which):
    tokens = torch.randperm(N)
    makers = (InOrder, Shuffled, of_numpy, of_python, lambda t, b, w: lambda: data.get_batch(t, w, b))
    B = min(B, (N - 1) // T)
    report = verify.check_batches(makers[which](tokens, B, T), tokens, T)
    assert report.passed, report
    assert {"shape", "dtype", "windows", "targets"} <= {r.name for r in report.results if r.passed}


def test_a_function_that_asks_for_the_text_is_given_one():
    for tokens in (torch.zeros(200, dtype=torch.int64), np.zeros(200, dtype=np.uint16), [0] * 200):
        report = verify.check_batches(data.get_batch, tokens, 8)
        assert report.not_checked == ["splits"], report


def test_splits_that_meet_pass_and_that_overlap_fail():
    tokens = torch.arange(400)

    def get_batch(split):
        part = tokens[:360] if split == "train" else tokens[360:]
        return data.get_batch(part, 8, 16)

    def overlapping(split):
        part = tokens if split == "train" else tokens[360:]
        return data.get_batch(part, 8, 16)

    report = verify.check_batches(get_batch, tokens, 8)
    assert report.passed
    assert report["splits"].passed
    assert report["range"].passed
    assert verify.check_batches(overlapping, tokens, 8).failed == ["splits"]


@pytest.mark.parametrize("low", [0, 1])
def test_the_reach_of_batches_is_seen_in_long_texts_too(low):
    tokens = torch.arange(20_000)
    half = tokens[10_000 * low :]
    report = verify.check_batches(lambda: data.get_batch(half[: len(half) - 10_000 * (1 - low)], 8, 32), tokens, 8)
    assert "range" in report.failed


def raising(*_):
    raise RuntimeError("no such file")


@pytest.mark.parametrize(
    ("get_batch", "check"),
    [
        (raising, "shape"),
        (lambda: None, "shape"),
        (lambda: (torch.arange(8), torch.arange(1, 9)), "shape"),
        (lambda: (torch.arange(8)[None].float(), torch.arange(1, 9)[None].float()), "dtype"),
        (lambda: (torch.arange(8).flip(0)[None], torch.arange(1, 9).flip(0)[None]), "windows"),
        (lambda: (torch.arange(200, 208)[None], torch.arange(201, 209)[None]), "windows"),
        (lambda: (torch.arange(8)[None], torch.arange(8).add(3)[None]), "targets"),
        (lambda: (torch.arange(8).expand(4, 8), torch.arange(1, 9).expand(4, 8)), "fresh"),
    ],
)
def test_other_wrong_batches_fail(get_batch, check):
    report = verify.check_batches(get_batch, torch.arange(100), 8)
    assert check in report.failed, report
    assert report[check].cause
    assert report[check].measured


def test_views_differ_and_the_text_is_as_it_was():
    tokens = torch.arange(300)
    report = verify.check_batches(InOrder(tokens, 4, 8), tokens, 8)
    assert report["memory"].status == "differs"
    assert torch.equal(tokens, torch.arange(300))


def test_senseless_arguments_of_batches_are_refused():
    with pytest.raises(ValueError, match="no window"):
        verify.check_batches(lambda: None, torch.arange(5), 5)


# ---- tokenizers


@SEEDS
@given(text=st.text(st.characters(codec="utf-8"), min_size=1, max_size=60), which=st.integers(0, 4))
def test_right_tokenizers_pass(text, which):
    symbols = sorted(set(text))
    numbers = {symbol: i for i, symbol in enumerate(symbols, 1)}
    pad = {0: "", **{i: symbol for symbol, i in numbers.items()}}
    char = tokenizers.CharTokenizer.train(text)
    bpe = tokenizers.BPETokenizer.train(text, 260)
    encode, decode = [
        (char.encode, char.decode),
        (bpe.encode, bpe.decode),
        (lambda t: list(t.encode()), lambda ids: bytes(ids).decode("utf-8", "replace")),
        (lambda t: torch.tensor([numbers[c] for c in t], dtype=torch.int64), lambda ids: "".join(pad[i] for i in ids)),
        (lambda t: np.array([ord(c) for c in t], dtype=np.int64), lambda ids: "".join(map(chr, ids))),
    ][which]
    report = verify.check_tokenizer(encode, decode, text)
    assert report.passed, report
    assert report["round-trip"].passed


def test_the_order_of_a_set_is_seen_within_one_run():
    """If this fails, a vocabulary that is another one in the next run of Python passes."""
    text = "The quick brown fox jumps over the lazy dog, again and again.\n"
    for order, status in ((list, "failed"), (sorted, "passed"), (lambda s: sorted(s, reverse=True), "passed")):
        symbols = order(set(text))
        report = verify.check_tokenizer(
            lambda t, s=symbols: [s.index(c) for c in t], lambda ids, s=symbols: "".join(s[i] for i in ids), text
        )
        assert report["stable"].status == status, report
    first = list(dict.fromkeys(text))
    report = verify.check_tokenizer(lambda t: [first.index(c) for c in t], lambda i: "".join(first[j] for j in i), text)
    assert report["stable"].passed


READERS_FILE = """
words = {order}(set("to be or not to be that is the question whether nobler in mind".split()))
def encode(text): return [words.index(w) for w in text.split(" ")]
def decode(ids): return " ".join(words[i] for i in ids)
"""


@pytest.mark.parametrize(("order", "status"), [("list", "failed"), ("sorted", "passed")])
def test_a_vocabulary_of_words_is_made_again_in_another_run(tmp_path, order, status):
    path = tmp_path / "mine.py"
    path.write_text(READERS_FILE.format(order=order), encoding="utf-8")
    names = {"__file__": str(path), "__name__": "mine"}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    report = verify.check_tokenizer(names["encode"], names["decode"], "to be or not to be that is the question")
    assert report["stable"].status == status, report
    assert report["round-trip"].passed


def test_what_is_lost_on_purpose_differs():
    text = "a rare Q in a text with a few frequent letters " * 3
    few = tokenizers.CharTokenizer.train(text, 6)
    report = verify.check_tokenizer(few.encode, few.decode, text)
    assert report.passed, report
    assert report["round-trip"].status == "differs"


@pytest.mark.parametrize(
    ("encode", "decode", "check"),
    [
        (lambda t: 1 / 0, lambda ids: "", "ids"),
        (lambda t: None, lambda ids: "", "ids"),
        (lambda t: [float(ord(c)) for c in t], lambda ids: "".join(chr(int(i)) for i in ids), "ids"),
        (lambda t: [ord(c) for c in t], lambda ids: 1 / 0, "round-trip"),
        (lambda t: [ord(c) for c in t], lambda ids: [chr(i) for i in ids], "round-trip"),
        (lambda t: [ord(c) for c in t], lambda ids: "".join(map(chr, ids)).title(), "round-trip"),
        (lambda t: [ord(c) for c in sorted(t)], lambda ids: "".join(map(chr, ids)), "round-trip"),
        (lambda t: [ord(c) + random.randrange(2) for c in t], lambda ids: "".join(map(chr, ids)), "round-trip"),
    ],
)
def test_other_wrong_tokenizers_fail(encode, decode, check):
    report = verify.check_tokenizer(encode, decode, "Some text, not long.\nTwo lines.")
    assert check in report.failed, report
    assert report[check].cause


def test_ids_beyond_a_given_vocabulary_fail():
    encode, decode = (lambda t: [ord(c) for c in t]), (lambda ids: "".join(map(chr, ids)))
    assert verify.check_tokenizer(encode, decode, "abc", vocab_size=128).passed
    assert verify.check_tokenizer(encode, decode, "abc", vocab_size=99).failed == ["range"]


# ---- optimizers


def groups(model, decay_embeddings=False):
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    decays = [p for p in model.parameters() if p.dim() > 1 and (decay_embeddings or id(p) not in embeddings)]
    rest = [p for p in model.parameters() if all(p is not other for other in decays)]
    return [{"params": decays, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("make", "differs"),
    [
        (lambda m: trainer.make_optimizer(m, trainer.TrainConfig()), False),
        (lambda m: torch.optim.AdamW(groups(m), lr=1e-3), False),
        (lambda m: torch.optim.AdamW(groups(m, decay_embeddings=True), lr=1e-3), True),
        (lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), False),
        (lambda m: torch.optim.Adam(m.parameters()), False),
        (lambda m: [torch.optim.SGD(groups(m)[0]["params"], lr=0.1),
                    torch.optim.Adam(groups(m)[1]["params"])], False),
        (lambda m: torch.optim.AdamW([{"params": [p], "weight_decay": 0.1 * (p.dim() > 1)} for p in m.parameters()]),
         True),
    ],
)  # fmt: skip
def test_right_optimizers_pass(make, differs, tied):
    model = small(tied=tied)
    report = verify.check_optimizer(model, make(model))
    assert report.passed, report
    assert report["parameters"].passed
    assert report["no-strangers"].passed
    assert report["weight-decay"].status == ("differs" if differs else "passed")


def test_frozen_parameters_may_be_in_a_group_or_not():
    model = small()
    model.wte.weight.requires_grad_(False)
    inside = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0)
    outside = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0)
    for optimizer in (inside, outside):
        assert verify.check_optimizer(model, optimizer)["parameters"].passed
    assert "frozen" in verify.check_optimizer(model, inside)["parameters"].cause
    model.wte.weight.requires_grad_(True)
    assert verify.check_optimizer(model, outside).failed == ["parameters"]


@pytest.mark.parametrize(
    "name", ["wte.weight", "h.0.attn.c_proj.bias", "h.0.ln_1.weight", "ln_f.bias", "lm_head.weight"]
)
def test_each_missing_parameter_is_named(name):
    model = small()
    optimizer = torch.optim.AdamW([p for n, p in model.named_parameters() if n != name], lr=1e-3, weight_decay=0)
    report = verify.check_optimizer(model, optimizer)
    assert report.failed == ["parameters"]
    assert name in report["parameters"].cause


def test_what_an_optimizer_keeps_must_fit():
    model = small()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.zeros(1, 3, dtype=torch.int64)).sum().backward()
    optimizer.step()
    assert verify.check_optimizer(model, optimizer)["state"].passed
    before = [p.clone() for p in model.parameters()]
    optimizer.state[model.ln_f.weight]["exp_avg"] = torch.zeros(3)
    assert verify.check_optimizer(model, optimizer).failed == ["state"]
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_thing_that_is_no_optimizer_is_refused():
    with pytest.raises(TypeError, match="param_groups"):
        verify.check_optimizer(small(), "adam")
    with pytest.raises(TypeError, match="Module"):
        verify.check_optimizer("model", torch.optim.SGD(small().parameters(), lr=1))


# ---- schedules


def of_nanogpt(i, w, n, high, low):
    if i < w:
        return high * (i + 1) / (w + 1)
    return low if i > n else low + 0.5 * (1 + math.cos(math.pi * (i - w) / (n - w))) * (high - low)


def early_peak(i, w, n, high, low):
    return high * (i + 1) / w if i < w else of_nanogpt(i, w, n, high, low)


def plateau(i, w, n, high, low):
    return torch.tensor(max(low, high * min((i + 1) / (w + 1), 1.0, (n - i) / (n / 4))))


def inverse_root(i, w, n, high, low):
    return high * min((i + 1) / (w + 1), ((w + 1) / (i + 1)) ** 0.5)


def constant(i, w, n, high, low):
    return high * min((i + 1) / (w + 1), 1.0)


def table(i, w, n, high, low):
    return [of_nanogpt(step, w, n, high, low) for step in range(n)][i]


@SEEDS
@given(
    w=st.integers(1, 40), more=st.integers(12, 400), high=st.floats(1e-5, 1.0), share=st.floats(0, 0.5),
    curve=st.sampled_from([of_nanogpt, early_peak, plateau, inverse_root, constant, table]),
)  # fmt: skip
def test_right_schedules_pass(w, more, high, share, curve):
    n = w + more
    report = verify.check_schedule(lambda step: curve(step, w, n, high, share * high), w, n)
    assert report.passed, report


@SEEDS
@given(w=st.integers(0, 30), more=st.integers(1, 200), schedule=st.sampled_from(trainer.SCHEDULES), low=st.booleans())
def test_our_own_schedules_pass(w, more, schedule, low):
    config = trainer.TrainConfig(steps=w + more, warmup_steps=w, schedule=schedule, min_learning_rate=1e-4 * low)
    report = verify.check_schedule(lambda step: trainer.lr_at(step, config), w, w + more)
    assert report.passed, report


@settings(max_examples=6)
@given(w=st.integers(2, 40), more=st.integers(20, 120), high=st.floats(1e-5, 1.0), low=st.floats(0, 0.2))
def test_wrong_schedules_of_every_size_fail(w, more, high, low):
    """If this fails, a fault shows at the sizes of the catalogue only."""
    for mistake in learning._SCHEDULES:
        wrong = mistake.wrong
        report = verify.check_schedule(
            lambda step, wrong=wrong: wrong(step, w, w + more, high, low * high), w, w + more
        )
        if mistake.name not in ("schedule-remembers", "schedule-late", "schedule-warm-up-too-long"):
            assert not report.passed, (mistake.name, report)


@pytest.mark.parametrize(
    ("lr_at", "check"),
    [
        (lambda step: None, "numbers"),
        (lambda step: "fast", "numbers"),
        (lambda step: 1 / (step - 3), "numbers"),
        (lambda step: float("nan"), "numbers"),
        (lambda step: -1e-3, "numbers"),
        (lambda step: random.random(), "pure"),
        (lambda step: 1e-3 * (step + 1), "peak"),
        (lambda step: 1e-3 if step % 7 else 2e-3, "warm-up"),
    ],
)
def test_other_wrong_schedules_fail(lr_at, check):
    report = verify.check_schedule(lr_at, 10, 60)
    assert check in report.failed, report


def test_a_schedule_is_told_what_it_asks_for():
    report = verify.check_schedule(lambda it, warmup, total: of_nanogpt(it, warmup, total, 1e-3, 1e-4), 10, 60)
    assert report.passed
    assert not report.not_checked
    report = verify.check_schedule(lambda step, moon: 1.0, 10, 60)
    assert "moon" in report.results[0].cause
    assert len(report.not_checked) == len(report.results)


def test_senseless_arguments_of_schedules_are_refused():
    with pytest.raises(ValueError, match="below total"):
        verify.check_schedule(lambda step: 1.0, 10, 10)
    with pytest.raises(TypeError, match="whole number"):
        verify.check_schedule(lambda step: 1.0, 1.5, 10)


# ---- evaluation


@SEEDS
@given(
    N=st.integers(20, 90), B=st.integers(1, 9), training=st.booleans(), of_model=st.booleans(), which=st.integers(0, 3)
)
def test_right_evaluations_pass(N, B, training, of_model, which):
    model = small(dropout=0.3).train(training)
    tokens = torch.randint(11, (N,), generator=torch.Generator().manual_seed(N))

    def both(model):
        return {"train": trainer.evaluate(model, tokens, B), "val": trainer.evaluate(model, tokens[: N // 2], B).loss}

    def in_bits(model):
        return trainer.evaluate(model, tokens, B).loss / math.log(2)

    functions = (
        lambda model: trainer.evaluate(model, tokens, B),
        lambda model: torch.tensor(trainer.estimate_loss(model, tokens, 4, B)),
        both,
        in_bits,
    )
    chosen = functions[which]
    state = torch.get_rng_state()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    report = verify.check_evaluate(chosen if of_model else lambda: chosen(model), model)
    assert report.passed, report
    assert report["mean"].status == "passed" or which == 3 or "one batch" in report["mean"].cause, report
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training == training
    assert not model._forward_hooks
    assert "forward" not in vars(model)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


def of_lecture(model, tokens):
    @torch.no_grad()
    def estimate_loss():
        out = {}
        model.eval()
        for split in ("train", "val"):
            losses = torch.zeros(4)
            for k in range(4):
                x, y = data.get_batch(tokens, 6, 3)
                losses[k] = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            out[split] = losses.mean()
        model.train()
        return out

    return estimate_loss


def test_the_well_known_estimate_leaves_traces():
    """It draws from the numbers of training, and always ends in training mode, or in the other one on an error."""
    model = small()
    report = verify.check_evaluate(of_lecture(model, torch.randint(11, (80,))), model)
    assert report.failed == ["mode-restored", "mode-restored-on-error", "random-state", "repeatable"]
    assert report["mean"].passed


@pytest.mark.parametrize(
    ("wrong", "check"),
    [
        (lambda model: None, "number"),
        (lambda model: "3.2", "number"),
        (lambda model: 1 / 0, "number"),
        (lambda model: model(torch.zeros(1, 2, dtype=torch.int64)).mean() * math.nan, "number"),
        (lambda model: model(torch.zeros(1, 2, dtype=torch.int64)).sum().backward() or 1.0, "training-untouched"),
        (lambda model: model(torch.zeros(1, 2, dtype=torch.int64)).mean() + random.random(), "repeatable"),
    ],
)
def test_other_wrong_evaluations_fail(wrong, check):
    model = small()
    grads = [p.grad for p in model.parameters()]
    report = verify.check_evaluate(wrong, model)
    assert check in report.failed, report
    assert [p.grad for p in model.parameters()] == grads


def test_an_evaluation_of_another_model_is_not_checked():
    model, other = small(), small()
    report = verify.check_evaluate(lambda: trainer.evaluate(other, torch.arange(50) % 11), model)
    assert report.passed
    assert len(report.not_checked) == len(report.results) - 1
