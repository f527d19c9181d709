"""The loss, the learning rate, the optimizer, what is measured, and the loop."""

import math
import signal
import threading
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from gptbook import trainer
from gptbook.checkpoint import weights
from gptbook.model import GPT, GPTConfig
from gptbook.modern import ModernConfig
from gptbook.recipes import PRESETS, build
from gptbook.trainer import (
    Diverged,
    TrainConfig,
    estimate_loss,
    evaluate,
    loss_fn,
    lr_at,
    make_optimizer,
    optimizer_groups,
    train,
    update,
)

MODEL = GPTConfig(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_embd=8, dropout=0.2)
TOKENS = torch.randint(11, (400,), generator=torch.Generator().manual_seed(0))
TRAIN, VAL = TOKENS[:300], TOKENS[300:]
CONFIG = TrainConfig(batch_size=4, steps=12, eval_every=5, warmup_steps=2, schedule="cosine", clip=1.0, snapshots=(3,))


def model_of(config=MODEL, seed=1):
    torch.manual_seed(seed)
    return GPT(config)


def same_weights(a, b):
    a, b = weights(a), weights(b)
    return a.keys() == b.keys() and all(torch.equal(t, b[name]) for name, t in a.items())


# The configuration


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("batch_size", 0, ValueError),
        ("batch_size", 1.5, TypeError),
        ("batch_size", True, TypeError),
        ("steps", 0, ValueError),
        ("steps", -3, ValueError),
        ("steps", "12", TypeError),
        ("eval_every", 0, ValueError),
        ("learning_rate", 0.0, ValueError),
        ("learning_rate", math.nan, ValueError),
        ("learning_rate", "1e-3", TypeError),
        ("learning_rate", math.inf, ValueError),
        ("min_learning_rate", 0.1, ValueError),
        ("warmup_steps", 2000, ValueError),
        ("warmup_steps", -1, ValueError),
        ("schedule", "step", ValueError),
        ("weight_decay", -0.1, ValueError),
        ("betas", (0.9,), ValueError),
        ("betas", (0.9, 1.0), ValueError),
        ("betas", 0.9, TypeError),
        ("clip", 0.0, ValueError),
        ("clip", -1.0, ValueError),
        ("random_batches", -1, ValueError),
        ("snapshots", (2001,), ValueError),
        ("snapshots", (-1,), ValueError),
        ("snapshots", 5, TypeError),
        ("seed", -1, ValueError),
        ("optimizer", "sgd", ValueError),
        ("matrix_learning_rate", 0.0, ValueError),
        ("matrix_learning_rate", "x", TypeError),
        ("precision", "float16", ValueError),
        ("compile", 1, TypeError),
    ],
)
def test_nonsense_is_refused_by_name(field, value, error):
    """If this fails, a typing mistake shows up hours later, or never."""
    with pytest.raises(error, match=field) as caught:
        TrainConfig(**{field: value})
    assert "\n" not in str(caught.value)
    TrainConfig()  # the rest makes sense


# The loss


def test_the_loss_is_the_mean_cross_entropy():
    """If this fails, the number that all pages quote is not the surprise at the next token in nats."""
    logits, targets = torch.randn(2, 3, 5), torch.tensor([[0, 4, 2], [1, 1, 3]])
    by_hand = -sum(logits[b, t].softmax(0)[targets[b, t]].log().item() for b in range(2) for t in range(3)) / 6
    assert loss_fn(logits, targets).item() == pytest.approx(by_hand, abs=1e-5)
    assert loss_fn(torch.zeros(2, 3, 5), targets).item() == pytest.approx(math.log(5), abs=1e-6)
    swapped = F.cross_entropy(logits.permute(1, 0, 2).flatten(0, 1), targets.flatten())  # a wrong reshape is seen
    assert swapped.item() != pytest.approx(by_hand, abs=1e-3)


# The learning rate


def test_the_learning_rate_at_its_corners():
    """If this fails, the first step does nothing, or the last never comes down."""
    config = TrainConfig(learning_rate=1.0, min_learning_rate=0.1, warmup_steps=4, steps=24, schedule="cosine")
    table = {step: lr_at(step, config) for step in (0, 1, 3, 4, 5, 23, 24, 1000)}
    assert [table[step] for step in (0, 1, 3, 4)] == pytest.approx([0.2, 0.4, 0.8, 1.0])
    assert table[4] == 1.0
    assert table[5] < 1.0
    assert table[23] == table[24] == table[1000] == 0.1
    middle = lr_at(4 + 9, config), lr_at(4 + 10, config)  # on both sides of the half of the 19 steps down
    assert sum(middle) / 2 == pytest.approx(0.55)
    rates = [lr_at(step, config) for step in range(24)]
    assert rates == sorted(rates[:4]) + sorted(rates[4:], reverse=True)


def test_the_other_schedules():
    """If this fails, "constant" changes or "linear" bends."""
    constant = TrainConfig(learning_rate=1e-3, steps=10)
    assert {lr_at(step, constant) for step in range(12)} == {1e-3}
    linear = replace(constant, schedule="linear", min_learning_rate=1e-4)
    falls = [lr_at(step, linear) - lr_at(step + 1, linear) for step in range(9)]
    assert falls == pytest.approx([1e-4] * 9)
    assert lr_at(9, linear) == 1e-4
    assert lr_at(0, replace(linear, steps=1)) == 1e-3  # a run of one step has a rate too


def test_the_loop_uses_the_learning_rate_of_its_step(monkeypatch):
    """If this fails, the schedule is printed and not used, or starts over when a run is resumed."""
    used = []
    monkeypatch.setattr(trainer, "update", lambda *a: used.append(a[4]) or update(*a))
    train(model_of(), TRAIN, VAL, CONFIG)
    assert used == [lr_at(step, CONFIG) for step in range(CONFIG.steps)]


# The optimizer


@pytest.mark.parametrize("name", PRESETS)
def test_every_parameter_is_optimized_once_and_only_matrices_decay(name):
    """If this fails, a part of the model never learns, or norms and biases are pulled to zero."""
    small = replace(PRESETS[name], vocab_size=50, block_size=8, n_layer=2, n_embd=8 * PRESETS[name].n_head)
    model = build(small)
    decays, rest = optimizer_groups(model, 0.1)
    assert (decays["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
    ids = [id(p) for group in (decays, rest) for p in group["params"]]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id(p) for p in model.parameters()}
    names = {id(p): n for n, p in model.named_parameters()}
    decaying = {names[id(p)] for p in decays["params"]}
    gate = ["mlp.c_gate"] if name == "smollm2" else []
    matrices = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", *gate, "mlp.c_proj")
    expected = {f"h.{i}.{matrix}.weight" for i in range(2) for matrix in matrices}
    mix = {"ngrams.mix.weight"} if name == "shakespeare" else set()
    assert decaying == expected | mix | (set() if small.tied else {"lm_head.weight"})


def test_a_frozen_parameter_is_left_out():
    """If this fails, decay changes what was to stay."""
    model = model_of()
    model.wpe.weight.requires_grad = False
    assert all(p is not model.wpe.weight for group in optimizer_groups(model, 0.1) for p in group["params"])


def test_the_optimizer_has_what_the_configuration_says():
    """If this fails, a setting is accepted and ignored."""
    optimizer = make_optimizer(model_of(), TrainConfig(learning_rate=3e-4, weight_decay=0.3, betas=(0.8, 0.95)))
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]
    assert all(group["betas"] == (0.8, 0.95) and group["lr"] == 3e-4 for group in optimizer.param_groups)


def bare_step(model, optimizer, x, y, learning_rate, clip):
    """The oracle: PyTorch's unfused AdamW, gradients scaled by hand."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    model.zero_grad()
    F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
    norm = math.sqrt(sum((p.grad**2).sum().item() for p in model.parameters()))
    if clip is not None and norm > clip:
        for p in model.parameters():
            p.grad *= clip / norm
    optimizer.step()
    return norm


@pytest.mark.parametrize("clip", [None, 0.05])
def test_a_step_is_the_step_of_the_oracle(clip):
    """If this fails, gradients pile up, or are clipped at the wrong moment, or the update is not AdamW's."""
    config = replace(MODEL, dropout=0.0)
    ours, theirs = model_of(config), model_of(config)
    optimizer = make_optimizer(ours, TrainConfig(weight_decay=0.1))
    oracle = torch.optim.AdamW(optimizer_groups(theirs, 0.1), fused=False, foreach=False)
    x, y = TRAIN[:32].view(4, 8), TRAIN[1:33].view(4, 8)
    for step in range(5):
        loss = update(ours, optimizer, x, y, 1e-2, clip)
        norm = bare_step(theirs, oracle, x, y, 1e-2, clip)
        assert norm > 0.05  # else clipping is not tested
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        if clip is not None:  # what the optimizer saw
            seen = math.sqrt(sum((p.grad**2).sum().item() for p in ours.parameters()))
            assert seen == pytest.approx(clip, rel=1e-3)
        assert not loss.requires_grad, step


def test_the_same_batch_twice_gives_the_same_gradient():
    """If this fails, the old gradient is still there when the new one comes."""
    model = model_of(replace(MODEL, dropout=0.0))
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    x, y = TRAIN[:32].view(4, 8), TRAIN[1:33].view(4, 8)
    update(model, still, x, y, 0.0)
    first = [p.grad.clone() for p in model.parameters()]
    update(model, still, x, y, 0.0)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), first, strict=True))
    assert any(g.abs().max() > 0 for g in first)


# What is measured


class Uneven(torch.nn.Module):
    """A model whose loss differs from window to window: the logit of the token itself is its value."""

    def __init__(self):
        super().__init__()
        self.config = GPTConfig(vocab_size=11, block_size=8, n_head=1, n_embd=1)
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, idx):
        return self.scale * idx[..., None] * torch.arange(11) / 10


@pytest.mark.parametrize("n", [9, 10, 16, 17, 18, 100])
@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_evaluation_counts_every_target_once(n, batch_size):
    """If this fails, the loss depends on how the text falls into windows: a short last one counts too much or not."""
    model, tokens = Uneven(), TOKENS[:n]
    each = F.cross_entropy(model(tokens[:-1]), tokens[1:], reduction="none")
    found = evaluate(model, tokens, batch_size)
    assert found.tokens == n - 1
    assert found.loss == pytest.approx(each.mean().item(), abs=1e-5)
    assert found.bits_per_character == pytest.approx(found.loss / math.log(2))
    pieces = evaluate(model, tokens, batch_size, characters=3 * n)
    assert (pieces.loss, pieces.tokens) == (found.loss, n - 1)
    assert pieces.bits_per_character == pytest.approx(each.sum().item() / math.log(2) / (3 * n))


def test_a_mean_of_means_would_be_seen():
    """The negative control of the test above: windows of unlike size, equally weighted, give another number."""
    model, tokens = Uneven(), TOKENS[:10]
    parts = [F.cross_entropy(model(tokens[a:b]), tokens[a + 1 : b + 1]) for a, b in ((0, 8), (8, 9))]
    assert sum(parts).item() / 2 != pytest.approx(evaluate(model, tokens).loss, abs=1e-3)


def test_evaluation_has_no_dropout_and_repeats():
    """If this fails, validation is noisy, or looks like a worse model."""
    model = model_of()  # dropout 0.2, in training mode
    assert not torch.equal(model(VAL[None, :8]), model(VAL[None, :8]))  # else this tests nothing
    assert evaluate(model, VAL) == evaluate(model, VAL)
    assert evaluate(model, VAL).loss == pytest.approx(evaluate(model.eval(), VAL).loss)


@pytest.mark.parametrize("measure", [evaluate, estimate_loss])
def test_measuring_leaves_no_trace(measure):
    """If this fails, looking at the loss changes the training: other batches, other dropout, or none."""
    model = model_of()
    model.h[0].eval()  # a part that the caller froze on purpose
    modes = [module.training for module in model.modules()]
    torch.manual_seed(5)
    before = torch.get_rng_state()
    measure(model, VAL)
    assert torch.equal(torch.get_rng_state(), before)
    assert [module.training for module in model.modules()] == modes
    assert all(p.grad is None for p in model.parameters())

    model.lm_head.register_forward_hook(lambda *_: torch.rand(1).item() / 0)
    with pytest.raises(ZeroDivisionError):
        measure(model, VAL)
    assert torch.equal(torch.get_rng_state(), before)
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()


def test_the_random_estimate_scatters_around_the_loss():
    """If this fails, the original's estimate is not of the same quantity."""
    model = model_of()
    whole = evaluate(model, TRAIN).loss
    estimates = [estimate_loss(model, TRAIN, 20, 16, seed) for seed in range(3)]
    assert len(set(estimates)) == 3
    assert estimates[0] == estimate_loss(model, TRAIN, 20, 16, 0)
    assert sum(estimates) / 3 == pytest.approx(whole, abs=0.03)


def test_a_part_too_short_is_one_line():
    """If this fails, a short text ends in a division by zero."""
    with pytest.raises(ValueError, match="block_size") as caught:
        evaluate(model_of(), VAL[:5])
    assert "\n" not in str(caught.value)


# The loop


def test_training_learns():
    """If this fails, nothing is learned: the tokens repeat with period 3, and the next one is certain."""
    tokens = torch.arange(600) % 3
    config = TrainConfig(batch_size=8, steps=60, learning_rate=1e-2, eval_every=20)
    result = train(model_of(replace(MODEL, dropout=0.0)), tokens[:500], tokens[500:], config)
    assert result.history[0]["val_loss"] > 2.0
    assert result.history[-1]["val_loss"] < 0.1
    assert result.history[-1]["val_loss"] == pytest.approx(result.history[-1]["train_loss"], abs=0.02)
    assert (result.step, result.interrupted) == (60, False)


def test_the_history_is_plain_and_complete():
    """If this fails, a curve lacks a point, or each point holds a graph in memory."""
    model = model_of()
    result = train(model, TRAIN, VAL, replace(CONFIG, random_batches=2))
    assert [row["step"] for row in result.history] == [0, 3, 5, 10, 12]
    names = {"step", "seconds", "learning_rate", "batch_loss", "train_loss", "val_loss"}
    for row in result.history:
        assert row.keys() == names | {"train_estimate", "val_estimate"}
        assert all(type(value) in (int, float) for name, value in row.items() if name != "batch_loss")
    assert result.history[0]["batch_loss"] is None
    assert result.history[-1]["val_loss"] == evaluate(model, VAL).loss
    assert result.history[-1]["train_loss"] == evaluate(model, TRAIN[: len(VAL)]).loss


def test_the_same_seed_gives_the_same_weights_and_another_does_not():
    """If this fails, no run can be repeated, or the seed is ignored."""
    runs = []
    for seed in (7, 7, 8):
        model = model_of()
        torch.rand(seed)  # whatever was drawn before must not matter
        train(model, TRAIN, VAL, replace(CONFIG, seed=seed))
        runs.append(model)
    assert same_weights(runs[0], runs[1])
    assert not same_weights(runs[0], runs[2])


def test_measuring_more_often_trains_the_same_model():
    """If this fails, the result depends on how often somebody looked."""
    rarely, often = model_of(), model_of()
    train(rarely, TRAIN, VAL, replace(CONFIG, eval_every=100, snapshots=()))
    train(often, TRAIN, VAL, replace(CONFIG, eval_every=1, random_batches=3))
    assert same_weights(rarely, often)


@pytest.mark.parametrize("folder", [False, True], ids=["memory", "folder"])
def test_a_loss_that_is_not_finite_stops_the_run(folder, tmp_path, monkeypatch):
    """If this fails, hours go into a model of NaNs, and it overwrites the last good one."""

    def poisoned(*given):
        loss = update(*given)
        poisoned.calls += 1
        return loss * math.nan if poisoned.calls == 8 else loss

    poisoned.calls = 0
    monkeypatch.setattr(trainer, "update", poisoned)
    folder = tmp_path / "run" if folder else None
    with pytest.raises(Diverged, match="step 7") as caught:  # the loss after 7 updates
        train(model_of(), TRAIN, VAL, CONFIG, folder=folder)
    assert "\n" not in str(caught.value)
    if folder:
        from gptbook.runs import load_run

        assert load_run(folder).step == 5  # the last one written before
        assert all(torch.isfinite(t).all() for t in weights(load_run(folder).model).values())


def test_weights_that_are_not_finite_are_never_written(tmp_path, monkeypatch):
    """If this fails, a step that breaks the weights right before a checkpoint is kept."""

    def breaking(model, *rest):
        loss = update(model, *rest)
        breaking.calls += 1
        if breaking.calls == 10:
            model.ln_f.bias.data.fill_(math.nan)
        return loss

    breaking.calls = 0
    monkeypatch.setattr(trainer, "update", breaking)
    with pytest.raises(Diverged, match="step 10"):
        train(model_of(), TRAIN, VAL, CONFIG, folder=tmp_path)
    from gptbook.runs import load_run

    assert load_run(tmp_path).step == 5


def test_ctrl_c_finishes_the_step():
    """If this fails, Ctrl-C tears a step apart, or ends the program of the caller."""

    def press(row):
        if row["step"] == 3 and "val_loss" in row:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    model = model_of()
    result = train(model, TRAIN, VAL, CONFIG, progress=press)
    assert (result.interrupted, result.step, result.history[-1]["step"]) == (True, 4, 4)
    assert signal.getsignal(signal.SIGINT) is before
    assert not train(model_of(), TRAIN, VAL, CONFIG).interrupted


def test_a_second_ctrl_c_interrupts_at_once():
    """If this fails, a hanging measurement cannot be left."""
    with trainer._ctrl_c_noted() as noted:
        signal.raise_signal(signal.SIGINT)
        assert noted.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_training_works_beside_the_main_thread():
    """If this fails, a program that trains in a thread dies, since only the main thread may handle signals."""
    found = []
    thread = threading.Thread(target=lambda: found.append(train(model_of(), TRAIN, VAL, CONFIG)))
    thread.start()
    thread.join(60)
    assert found[0].step == CONFIG.steps


def test_minutes_end_a_run_early(monkeypatch):
    """If this fails, a run does not stop in time, or keeps no time for its last measurement."""
    now = [0.0]
    monkeypatch.setattr(trainer.time, "monotonic", lambda: now[0])

    def slow_update(*args):
        now[0] += 1.0
        return update(*args)

    def slow_measure(*args):
        now[0] += 10.0
        return measure(*args)

    measure = trainer.measure
    monkeypatch.setattr(trainer, "update", slow_update)
    monkeypatch.setattr(trainer, "measure", slow_measure)
    result = train(model_of(), TRAIN, VAL, replace(CONFIG, steps=1000, eval_every=1000, snapshots=()), minutes=1)
    assert not result.interrupted
    assert result.step == 41  # 10 s to measure first, 40 steps, the one that passes the mark, 10 s to measure last
    assert result.seconds == 41.0  # measuring is not training
    assert now[0] <= 61.0
    assert result.history[-1]["step"] == 41


def test_seconds_and_speed_count_the_updates(monkeypatch):
    """If this fails, the speed that page 9 quotes includes the measuring."""
    now = [0.0]
    monkeypatch.setattr(trainer.time, "monotonic", lambda: now[0])

    def two_seconds(*args):
        now[0] += 2.0
        return update(*args)

    def long_measure(*args):
        now[0] += 100.0
        return measure(*args)

    measure = trainer.measure
    monkeypatch.setattr(trainer, "update", two_seconds)
    monkeypatch.setattr(trainer, "measure", long_measure)
    result = train(model_of(), TRAIN, VAL, CONFIG)
    assert result.seconds == 24.0
    assert result.tokens_per_second == 12 * 4 * 8 / 24.0
    assert [row["seconds"] for row in result.history] == [2.0 * row["step"] for row in result.history]


def test_the_progress_sees_every_measurement():
    """If this fails, the bar of the command line stands still."""
    rows = []
    train(model_of(), TRAIN, VAL, replace(CONFIG, steps=25, eval_every=100), progress=rows.append)
    assert [row["step"] for row in rows if "val_loss" not in row] == [3, 10, 20, 25]
    assert [row["step"] for row in rows if "val_loss" in row] == [0, 3, 25]
    assert all(row["steps"] == 25 for row in rows)


# Muon and the engine


@pytest.mark.parametrize("name", PRESETS)
def test_muon_has_the_matrices_of_the_blocks_and_adamw_the_rest(name):
    """If this fails, a part of the model never learns, or embeddings are turned like matrices."""
    small = replace(PRESETS[name], vocab_size=50, block_size=8, n_layer=2, n_embd=8 * PRESETS[name].n_head)
    model = build(small)
    optimizer = make_optimizer(model, TrainConfig(optimizer="muon", weight_decay=0.1))
    names = {id(p): n for n, p in model.named_parameters()}
    turned = {names[id(p)]: g for g in optimizer.optimizers[1].param_groups for p in g["params"]}
    rest = [names[id(p)] for g in optimizer.optimizers[0].param_groups for p in g["params"]]
    assert turned.keys() == {n for n in names.values() if n.startswith("h.") and n.endswith("weight") and "ln" not in n}
    assert sorted([*turned, *rest]) == sorted(names.values())
    for name, group in turned.items():
        weight = model.get_parameter(name)
        if "c_attn" in name:
            C, G = small.n_embd, getattr(small, "kv_heads", small.n_head) * small.n_embd // small.n_head
            assert group["rows"] == [C, G, G]
            assert sum(group["rows"]) == weight.size(0)
        else:
            assert group["rows"] is None


def test_both_optimizers_follow_the_schedule(monkeypatch):
    """If this fails, the matrices are trained at the rate of the embeddings, or at one that never falls."""
    model, config = model_of(replace(MODEL, dropout=0.0)), replace(CONFIG, optimizer="muon", matrix_learning_rate=0.05)
    optimizer = make_optimizer(model, config)
    update(model, optimizer, TRAIN[:8][None], TRAIN[1:9][None], config.learning_rate / 2)
    adamw, *muons = [group["lr"] for group in optimizer.param_groups]
    assert adamw == config.learning_rate / 2
    assert muons == pytest.approx([0.025] * len(muons))


def test_muon_learns_faster_than_nothing():
    model = model_of(replace(MODEL, dropout=0.0))
    text = torch.arange(300) % 11
    result = train(model, text, text[:100], replace(CONFIG, steps=60, learning_rate=1e-2, optimizer="muon"))
    assert result.history[-1]["val_loss"] < result.history[0]["val_loss"] / 2


def test_a_run_in_bfloat16_keeps_weights_and_last_losses_in_float32():
    model = model_of(replace(MODEL, dropout=0.0))
    fresh = evaluate(model, VAL, dtype=torch.bfloat16).loss
    assert fresh != evaluate(model, VAL).loss
    result = train(model, TRAIN, VAL, replace(CONFIG, precision="bfloat16"))
    assert (result.history[0]["step"], result.history[0]["val_loss"]) == (0, fresh)  # on the way, in bfloat16
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert result.used.dtype == torch.bfloat16
    assert result.history[-1]["val_loss"] == evaluate(model, VAL).loss
    low = evaluate(model, VAL, dtype=torch.bfloat16).loss
    assert low != evaluate(model, VAL).loss
    assert low == pytest.approx(evaluate(model, VAL).loss, abs=0.02)


def test_a_compiled_run_is_the_plain_run():
    """On a machine that cannot compile, the plain code serves, and this holds as well."""
    config = replace(CONFIG, compile=True)
    plain, compiled = (model_of(replace(MODEL, dropout=0.0)) for _ in range(2))
    train(plain, TRAIN, VAL, replace(config, compile=False))
    result = train(compiled, TRAIN, VAL, config)
    assert result.used.compiled or result.used.note
    for a, b in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_a_compiled_run_refuses_tokens_that_the_vocabulary_lacks():
    """Compiled code does not look: without this, a wrong tokenizer would read memory that is not the model's."""
    with pytest.raises(ValueError, match=r"outside 0\.\.10"):
        train(model_of(), TRAIN + 5, VAL, replace(CONFIG, compile=True))


def test_modern_models_train_with_muon():
    config = ModernConfig(vocab_size=11, block_size=8, n_layer=2, n_head=4, n_kv_head=2, n_embd=16)
    torch.manual_seed(0)
    result = train(build(config), TRAIN, VAL, replace(CONFIG, optimizer="muon"))
    assert math.isfinite(result.history[-1]["val_loss"])
