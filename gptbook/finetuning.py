"""From a model that continues text to one that answers: a loss on answers alone, and preferences; page 19.

What it leaves out: chats of several turns, several examples packed into a row, and a reward that a model gives.
"""

import torch
import torch.nn.functional as F

from gptbook import kv_cache
from gptbook.data import get_batch
from gptbook.instructions import END, Example, chat
from gptbook.trainer import TrainConfig, clip_gradients, lr_at, make_optimizer, update

IGNORE = -100  # what F.cross_entropy leaves out by default, so that the trainer's own loss serves


def encode(tokenizer, example: Example) -> tuple[list[int], list[int]]:
    """Token ids of an example in two pieces: up to where A begins to speak, and the answer with its END."""
    return tokenizer.encode(chat(example.request)), tokenizer.encode(example.answer + END)


def batch(pieces, masked: bool = True):
    """Pairs (prompt, answer) of token ids as a batch: inputs x (B, T) and targets y (B, T), int64.

    Rows are filled up to the longest. A target is IGNORE where the row is filling, and, with
    `masked`, where it is a token of the prompt. Raises ValueError if there is no row, or a piece of
    one is empty.
    """
    if not pieces or not all(prompt and answer for prompt, answer in pieces):
        raise ValueError("a batch needs a row, and in each a prompt and an answer, not empty")
    T = max(len(prompt) + len(answer) for prompt, answer in pieces) - 1
    x = torch.zeros(len(pieces), T, dtype=torch.long)  # (B, T)
    y = torch.full((len(pieces), T), IGNORE)  # (B, T)
    for i, (prompt, answer) in enumerate(pieces):
        row = torch.tensor([*prompt, *answer])
        first = len(prompt) - 1 if masked else 0  # the prompt's last token asks for the answer
        x[i, : len(row) - 1] = row[:-1]
        y[i, first : len(row) - 1] = row[first + 1 :]
    return x, y


def finetune(
    model,
    pieces,
    config: TrainConfig,
    *,
    masked: bool = True,
    replay=None,
    every: int = 4,
    look=None,
) -> list[float]:
    """Train `model` in place on random batches of pairs (prompt, answer): each step's loss, in nats.

    With `replay`, the tokens (N,) of a text, one step in `every` reads windows of that text instead,
    a third as many rows. `look(step)` is called after each step, counted from 1. The model is
    afterwards in evaluation mode.
    """
    window, old_rows = model.config.block_size, max(1, config.batch_size // 3)
    optimizer = make_optimizer(model.train(), config)
    random = torch.Generator().manual_seed(config.seed)
    losses = []
    for step in range(config.steps):
        if replay is not None and (step + 1) % every == 0:
            x, y = get_batch(replay, window, old_rows, random)  # (B, T) each
        else:
            chosen = torch.randint(len(pieces), (config.batch_size,), generator=random)  # (B,)
            x, y = batch([pieces[i] for i in chosen.tolist()], masked)  # (B, T) each
        losses.append(update(model, optimizer, x, y, lr_at(step, config), config.clip))
        if look is not None:
            look(step + 1)
    model.eval()
    return torch.stack(losses).tolist()


def answers(model, tokenizer, prompts: list[str], max_new_tokens: int = 12) -> list[str]:
    """What the model writes after each of the prompts, greedily, up to its END or to so many tokens."""
    (end,) = tokenizer.encode(END)
    found = {}
    for length in {len(prompt) for prompt in prompts}:  # rows of a batch have one length
        alike = [prompt for prompt in prompts if len(prompt) == length]
        idx = torch.tensor([tokenizer.encode(prompt) for prompt in alike])  # (B, T)
        out = kv_cache.generate(model, idx, max_new_tokens, temperature=0)[:, length:].tolist()
        for prompt, row in zip(alike, out, strict=True):
            found[prompt] = tokenizer.decode(row[: row.index(end)] if end in row else row)
    return [found[prompt] for prompt in prompts]


def log_probability(model, x, y):
    """The logarithm of the chance of all targets of a row that are not IGNORE: x and y (B, T) -> (B,)."""
    logits = model(x)  # (B, T, V)
    loss = F.cross_entropy(logits.transpose(1, 2), y, ignore_index=IGNORE, reduction="none")  # (B, T)
    return -loss.sum(dim=-1)  # (B,)


def dpo_loss(chosen, rejected, reference_chosen, reference_rejected, beta: float):
    """The loss of direct preference optimisation, a mean over pairs (Rafailov et al. 2023, eq. 7).

    Four times logarithms of chances (B,): of the preferred answers and of the others, as the model
    gives them, then as the reference does. `beta` is the price of a nat of distance from it.
    """
    margin = (chosen - reference_chosen) - (rejected - reference_rejected)  # (B,)
    return -F.logsigmoid(beta * margin).mean()


def prefer(model, reference, pairs, config: TrainConfig, beta: float, look=None) -> list[float]:
    """Train `model` in place on pairs (better, worse), each as of `encode`: each step's DPO loss.

    `reference` is a copy of the model as it was before, and stays so. `look(step)` is called after
    each step, counted from 1. The model is afterwards in evaluation mode.
    """
    N = len(pairs)
    better, worse = zip(*pairs, strict=True)
    x, y = batch([*better, *worse])  # (2N, T) each
    with torch.no_grad():
        before = log_probability(reference, x, y)  # (2N,)
    optimizer = make_optimizer(model.train(), config)
    random = torch.Generator().manual_seed(config.seed)
    losses = []
    for step in range(config.steps):
        chosen = torch.randint(N, (config.batch_size,), generator=random)  # (B,)
        rows = torch.cat((chosen, chosen + N))  # (2B,): the better ones, then the worse
        now = log_probability(model, x[rows], y[rows])  # (2B,)
        loss = dpo_loss(*now.chunk(2), *before[rows].chunk(2), beta)
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step, config) * group.get("factor", 1.0)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if config.clip is not None:
            clip_gradients(model, config.clip)
        optimizer.step()
        losses.append(loss.detach())
        if look is not None:
            look(step + 1)
    model.eval()
    return torch.stack(losses).tolist()


def best_policy(reference, reward, beta: float):
    """The chances with the most reward, less beta times their KL from `reference`: (N,) -> (N,)."""
    return F.softmax(reference.log() + reward / beta, dim=-1)  # (N,)
