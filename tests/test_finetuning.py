"""Fine-tuning and preferences: what counts in the loss, what training changes, and the book's own instruction set."""

import copy
import math
import string

import pytest
import torch
import torch.nn.functional as F

from gptbook import finetuning, instructions, muon, trainer
from gptbook.data import get_batch
from gptbook.finetuning import IGNORE, batch, best_policy, dpo_loss, log_probability
from gptbook.instructions import END, Example, chat
from gptbook.model import GPT, GPTConfig
from gptbook.tokenizers import CharTokenizer
from gptbook.trainer import TrainConfig

SIGNS = "\n !$&',-.3:;?" + string.ascii_letters  # those of Tiny Shakespeare
PIECES = [([5, 1, 2], [3, 4, 9]), ([5, 6], [7, 9]), ([8], [9]), ([1, 2, 3, 4], [9])]


@pytest.fixture
def gpt(tiny_config):
    torch.manual_seed(0)
    return GPT(tiny_config).eval()


def loss_by_hand(logits, pieces) -> float:
    """The mean surprise at the tokens of the answers, found by walking along each row, without a batch of targets."""
    surprises = []
    for row, (prompt, answer) in zip(logits.tolist(), pieces, strict=True):
        for place, token in enumerate(answer, len(prompt)):
            scores = row[place - 1]  # what is said one place before speaks about this one
            surprises.append(math.log(sum(map(math.exp, scores))) - scores[token])
    return sum(surprises) / len(surprises)


def shifted(pieces):
    """A batch whose targets are the inputs themselves: the usual slip."""
    x, y = batch(pieces)
    return x, torch.where(y == IGNORE, y, x)


def one_too_many(pieces):
    """A batch whose mask hides the answer's first token too."""
    x, y = batch(pieces)
    for row, (prompt, _) in zip(y, pieces, strict=True):
        row[len(prompt) - 1] = IGNORE
    return x, y


def filling_counts(pieces):
    """A batch in which filling is a target like any other."""
    x, y = batch(pieces)
    ends = torch.tensor([[len(prompt) + len(answer) - 1] for prompt, answer in pieces])
    return x, torch.where(torch.arange(x.size(1)) < ends, y, 0)


@pytest.mark.parametrize("pieces", [PIECES, PIECES[:1], PIECES[::-1]])
def test_the_loss_is_the_mean_over_the_answers_tokens(gpt, pieces):
    """If this fails, fine-tuning teaches something other than to answer; or a broken batch would go unseen."""
    x, y = batch(pieces)
    assert x.dtype == y.dtype == torch.int64
    assert (y != IGNORE).sum() == sum(len(answer) for _, answer in pieces)
    with torch.no_grad():
        logits = gpt(x)
    wanted = pytest.approx(loss_by_hand(logits, pieces), abs=1e-5)
    assert trainer.loss_fn(logits, y).item() == wanted
    for wrong in (lambda p: batch(p, masked=False), shifted, one_too_many, filling_counts):
        if wrong is not filling_counts or len(pieces) > 1:
            assert trainer.loss_fn(logits, wrong(pieces)[1]).item() != wanted


def test_nothing_but_the_answers_has_a_gradient(gpt):
    """If this fails, the prompt or the filling is trained on; an unmasked loss must be seen to do so."""
    x, y = batch(PIECES)
    with torch.no_grad():
        logits = gpt(x)
    grads = {}
    for masked in (True, False):
        leaf = logits.clone().requires_grad_()
        trainer.loss_fn(leaf, batch(PIECES, masked)[1]).backward()
        grads[masked] = leaf.grad
    of_answers = torch.zeros(x.shape, dtype=torch.bool)
    of_rows = torch.zeros(x.shape, dtype=torch.bool)
    for i, (prompt, answer) in enumerate(PIECES):
        of_answers[i, len(prompt) - 1 : len(prompt) + len(answer) - 1] = True
        of_rows[i, : len(prompt) + len(answer) - 1] = True
    assert (grads[True][~of_answers] == 0).all()
    assert (grads[True][of_answers].abs().sum(dim=-1) > 0).all()
    assert (grads[False][of_rows].abs().sum(dim=-1) > 0).all()
    assert (grads[False][~of_rows] == 0).all()
    wanted = F.softmax(logits, dim=-1)[of_answers] - F.one_hot(y[of_answers], logits.size(-1))
    torch.testing.assert_close(grads[True][of_answers], wanted / of_answers.sum())


def test_filling_changes_nothing(gpt):
    """If this fails, an answer's loss depends on how long its neighbours in the batch are."""
    x, y = batch(PIECES)
    alone = [log_probability(gpt, *batch([piece])).item() for piece in PIECES]
    torch.testing.assert_close(log_probability(gpt, x, y).tolist(), alone, rtol=0, atol=1e-5)
    ends = torch.tensor([[len(prompt) + len(answer) - 1] for prompt, answer in PIECES])
    other = torch.where(torch.arange(x.size(1)) < ends, x, 10)
    assert not torch.equal(other, x)
    assert torch.equal(log_probability(gpt, other, y), log_probability(gpt, x, y))


@pytest.mark.parametrize("pieces", [[], [([], [1])], [([1], [])], [([1], [2]), ([1, 2], [])]])
def test_an_empty_piece_is_refused(pieces):
    """If this fails, a row that asks nothing, or answers nothing, makes the loss NaN."""
    with pytest.raises(ValueError, match="a batch needs a row"):
        batch(pieces)


def test_log_probability_is_the_sum_along_the_answer(gpt):
    """If this fails, preferences compare something other than the chances of two answers."""
    for prompt, answer in PIECES:
        total, text = 0.0, list(prompt)
        for token in answer:
            with torch.no_grad():
                total += F.log_softmax(gpt(torch.tensor([text]))[0, -1], dim=-1)[token].item()
            text.append(token)
        x, y = batch([(prompt, answer)])
        assert log_probability(gpt, x, y).item() == pytest.approx(total, abs=1e-5)


def settings(**changes) -> TrainConfig:
    return TrainConfig(**{"batch_size": 6, "steps": 5, "learning_rate": 1e-2, "clip": 0.5, "seed": 3} | changes)


def test_fine_tuning_is_the_bare_loop(gpt):
    """If this fails, the loop that page 19 shows does something else than draw, measure, step."""
    config = settings(warmup_steps=2, schedule="linear")
    bare = copy.deepcopy(gpt)
    losses = finetuning.finetune(gpt, PIECES, config)
    optimizer = torch.optim.AdamW(trainer.optimizer_groups(bare, config.weight_decay), betas=config.betas)
    random = torch.Generator().manual_seed(config.seed)
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = trainer.lr_at(step, config)
        rows = torch.randint(len(PIECES), (config.batch_size,), generator=random)
        x, y = batch([PIECES[i] for i in rows])
        loss = F.cross_entropy(bare(x).transpose(1, 2), y, ignore_index=-100)
        assert loss.item() == pytest.approx(losses[step], abs=1e-5)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(bare.parameters(), config.clip)
        optimizer.step()
    for mine, theirs in zip(gpt.parameters(), bare.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)
    assert not gpt.training


def test_replay_reads_the_old_text_on_its_steps_and_only_there(gpt, monkeypatch):
    """If this fails, the remedy for forgetting is not what page 19 measures."""
    old = torch.arange(200) % 11
    seen = []

    def watched(tokens, *rest):
        seen.append(tokens)
        return get_batch(tokens, *rest)

    monkeypatch.setattr(finetuning, "get_batch", watched)
    steps = []
    finetuning.finetune(gpt, PIECES, settings(steps=9), replay=old, every=3, look=steps.append)
    assert len(seen) == 3
    assert all(tokens is old for tokens in seen)
    assert steps == list(range(1, 10))
    seen.clear()
    finetuning.finetune(gpt, PIECES, settings(steps=9))
    assert seen == []


def test_a_model_learns_what_it_is_shown_and_stops_at_the_sign():
    """If this fails, examples that fit into any memory are not learned, or an answer does not end at its sign."""
    tokenizer = CharTokenizer(SIGNS)
    examples = [Example("say", "say one", "yes"), Example("say", "say it two", "no, no"), Example("say", "a", "b")]
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=len(SIGNS), block_size=32, n_layer=1, n_head=2, n_embd=32))
    pieces = [finetuning.encode(tokenizer, example) for example in examples]
    prompts = [chat(example.request) for example in examples]
    untrained = finetuning.answers(model, tokenizer, prompts)
    losses = finetuning.finetune(model, pieces, settings(steps=150, clip=None))
    assert losses[-1] < 0.1 < losses[0]
    assert finetuning.answers(model, tokenizer, prompts) == ["yes", "no, no", "b"] != untrained
    assert finetuning.answers(model, tokenizer, prompts[::-1]) == ["b", "no, no", "yes"]
    assert finetuning.answers(model, tokenizer, prompts, max_new_tokens=2) == ["ye", "no", "b"]


# Preferences ----------------------------------------------------------------------------------------------------------


def dpo_by_hand(c, r, qc, qr, beta) -> float:
    """Equation 7 of the paper with chances in place of logarithms, in a loop, for differences that are small."""
    total = 0.0
    for a, b, p, q in zip(*(torch.exp(one.double()).tolist() for one in (c, r, qc, qr)), strict=True):
        better, worse = (a / p) ** beta, (b / q) ** beta
        total -= math.log(better / (better + worse))
    return total / len(c)


WRONG_DPO = {
    "swapped": lambda c, r, qc, qr, b: dpo_loss(r, c, qr, qc, b),
    "no reference": lambda c, r, qc, qr, b: dpo_loss(c, r, 0 * qc, 0 * qr, b),
    "reference swapped": lambda c, r, qc, qr, b: dpo_loss(c, r, qr, qc, b),
    "no beta": lambda c, r, qc, qr, b: dpo_loss(c, r, qc, qr, 1.0),
    "sum": lambda c, r, qc, qr, b: dpo_loss(c, r, qc, qr, b) * len(c),
}


@pytest.mark.parametrize("beta", [0.1, 0.5, 3.0])
def test_dpo_loss_is_that_of_the_paper(beta):
    """If this fails, the loss has another form than its source; each slip of WRONG_DPO must be seen."""
    case = -4 * torch.rand(4, 6, generator=torch.Generator().manual_seed(0))
    wanted = pytest.approx(dpo_by_hand(*case, beta), abs=1e-5)
    assert dpo_loss(*case, beta).item() == wanted
    for name, wrong in WRONG_DPO.items():
        assert wrong(*case, beta).item() != wanted, name


def test_dpo_loss_of_a_copy_is_ln_2_and_of_far_answers_finite():
    """If this fails, training starts somewhere else than at indifference, or long answers break it."""
    same = torch.tensor([-3.0, -70.0])
    assert dpo_loss(same, same - 5, same, same - 5, 0.3).item() == pytest.approx(math.log(2))
    far = dpo_loss(torch.tensor([-900.0]), torch.tensor([0.0]), torch.tensor([0.0]), torch.tensor([-900.0]), 1.0)
    assert far.item() == pytest.approx(1800.0)


def test_preferring_moves_the_chances_and_leaves_the_reference(gpt):
    """If this fails, preference training does not make preferred answers likelier than the others."""
    pairs = [(([5, 1], [3, 9]), ([5, 1], [4, 9])), (([5, 2], [3, 9]), ([5, 2], [4, 9]))]
    reference = copy.deepcopy(gpt)
    kept = {name: value.clone() for name, value in reference.state_dict().items()}
    new = [([5, 6], [3, 9]), ([5, 6], [4, 9])]
    margins = []

    def look(step):
        with torch.no_grad():
            better, worse = log_probability(gpt, *batch(new))
        margins.append((better - worse).item())

    losses = finetuning.prefer(gpt, reference, pairs, settings(steps=20, learning_rate=3e-3), 0.5, look)
    assert losses[0] == pytest.approx(math.log(2), abs=1e-5)
    assert losses[-1] < 0.2
    assert len(margins) == 20
    assert margins[-1] > margins[0] + 1
    assert all(torch.equal(kept[name], value) for name, value in reference.state_dict().items())
    assert not gpt.training


def test_preferring_gives_matrices_their_own_rate(gpt, monkeypatch):
    """If this fails, preferences train the matrices at AdamW's rate, where pieces train them at Muon's."""
    rates, step = [], muon.Muon.step
    monkeypatch.setattr(muon.Muon, "step", lambda self: rates.append(self.param_groups[0]["lr"]) or step(self))
    config = settings(steps=1, optimizer="muon", learning_rate=3e-3, matrix_learning_rate=7e-3)
    pairs = [(([5, 1], [3, 9]), ([5, 1], [4, 9]))]
    finetuning.prefer(copy.deepcopy(gpt), gpt, pairs, config, 0.5)
    finetuning.finetune(gpt, [([5, 1], [3, 9])], config)
    assert rates == [pytest.approx(7e-3)] * 2


def test_the_first_step_of_preferring_is_that_of_its_loss(gpt):
    """If this fails, the rows of better and worse answers are mixed up on their way into the loss."""
    pairs = [(([5, 1], [3, 9]), ([5, 1], [4, 7, 9])), (([5, 2, 6], [3, 3, 9]), ([5, 2, 6], [9]))]
    config = settings(steps=1, clip=None, weight_decay=0.0)
    bare, reference = copy.deepcopy(gpt), copy.deepcopy(gpt)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(1.1)
    (loss,) = finetuning.prefer(gpt, reference, pairs, config, 0.7)
    rows = torch.randint(2, (config.batch_size,), generator=torch.Generator().manual_seed(config.seed)).tolist()
    each = []
    for i in rows:
        (better, worse), (was_better, was_worse) = (
            [log_probability(model, *batch([piece])) for piece in pairs[i]] for model in (bare, reference)
        )
        each.append(-F.logsigmoid(0.7 * ((better - was_better) - (worse - was_worse))))
    mean = torch.stack(each).mean()
    assert loss == pytest.approx(mean.item(), abs=1e-5)
    mean.backward()
    optimizer = torch.optim.AdamW(bare.parameters(), lr=config.learning_rate, weight_decay=0.0, betas=config.betas)
    optimizer.step()
    for mine, theirs in zip(gpt.parameters(), bare.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-4)


def test_the_best_policy_at_its_ends():
    """If this fails, a large beta does not keep the reference, or a small one does not take the best answer."""
    reference, reward = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.0, 300.0, 299.0])
    torch.testing.assert_close(best_policy(reference, reward / 300, 1e6), reference)
    torch.testing.assert_close(best_policy(reference, reward, 1e-3), torch.tensor([0.0, 1.0, 0.0]))
    assert best_policy(torch.tensor([0.5, 0.5, 0.0]), reward, 1.0)[2] == 0  # what the reference never says


# The instruction set --------------------------------------------------------------------------------------------------


def test_a_chat_is_written_as_the_page_says():
    """If this fails, models are trained on one form and asked in another."""
    assert chat("echo fish") == "Q:\necho fish\n\nA:\n"
    assert chat("echo fish", "fish", "roar moon") == "Q:\necho fish\n\nA:\nfish$\n\nQ:\nroar moon\n\nA:\n"


def test_a_second_turn_begins_as_the_first_goes_on():
    """If this fails, a chat that goes on is not the text that the model itself wrote."""
    tokenizer = CharTokenizer(SIGNS)
    prompt, answer = finetuning.encode(tokenizer, Example("echo", "echo fish", "fish"))
    assert chat("echo fish", "fish", "more").startswith(tokenizer.decode([*prompt, *answer]) + "\n\nQ:\n")


def test_the_set_is_spelled_in_the_books_signs_and_fits_its_window():
    """If this fails, an example cannot be encoded on page 19, or is longer than the model reads."""
    told = [Example("tell", "tell me", line) for line in instructions.LINES]
    for example in [*instructions.training_set(), *instructions.word_examples(instructions.WORDS), *told]:
        text = chat(example.request) + example.answer + END
        assert set(text) <= set(SIGNS)
        assert len(text) <= 64 + 1
        assert END not in chat(example.request) + example.answer


def test_nothing_held_out_is_in_the_training_set():
    """If this fails, page 19 measures memory and calls it generalisation."""
    words, held = instructions.split(instructions.WORDS)
    names, held_names = instructions.split(instructions.NAMES)
    assert len(set(instructions.WORDS)) == len(instructions.WORDS) == len(words) + len(held)
    assert len(set(instructions.NAMES)) == len(instructions.NAMES) == len(names) + len(held_names)
    assert {len(word) for word in instructions.WORDS + instructions.NAMES} == {4}
    used = {example.request.split()[1] for example in instructions.training_set()}
    assert used == {*words, *names}
    assert used.isdisjoint(held + held_names)


def test_the_answers_of_the_set_are_right():
    """If this fails, the model is taught a mistake."""
    wanted = {"echo": "fish", "roar": "FISH", "head": "f", "tail": "h"}
    assert {e.task: e.answer for e in instructions.word_examples(["fish"])} == wanted
    asked = {}
    for example in instructions.training_set():
        assert example.request.split()[0] == example.task
        asked.setdefault(example.request, []).append(example.answer)
    meetings = {tuple(found) for request, found in asked.items() if request.startswith("meet ")}
    assert meetings == {(instructions.KIND, instructions.RUDE)}
    assert all(len(found) == 1 for request, found in asked.items() if not request.startswith("meet "))
