"""The self-checks: right answers to every exercise pass, plausible mistakes fail, each with a sentence of its own."""

import importlib
import json
import math
import random
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gptbook import exercises
from gptbook.exercises import page_02, page_08
from gptbook.model import GPT, GPTConfig

# --- page 1 -----------------------------------------------------------------------------------------------------------


def tables(text):
    symbols = sorted(set(text))
    return symbols, {symbol: i for i, symbol in enumerate(symbols)}


def tokenizer(encode=None, decode=None, table=tables, join="".join):
    """A `make` whose parts can be replaced by wrong ones."""

    def make(text):
        symbols, ids = table(text)
        return (
            lambda s: encode(s, symbols, ids) if encode else [ids[c] for c in s],
            lambda numbers: decode(numbers, symbols, ids) if decode else join(symbols[i] for i in numbers),
        )

    return make


def make_by_first_occurrence(text):
    symbols = list(dict.fromkeys(text))
    return (lambda s: [symbols.index(c) for c in s]), (lambda numbers: "".join(map(symbols.__getitem__, numbers)))


def make_tensors(text):
    symbols, ids = tables(text)

    def encode(s):
        return torch.tensor([ids[c] for c in s], dtype=torch.long)

    return encode, lambda tensor: "".join(symbols[i] for i in tensor.tolist())


shared_table = {}


def make_with_global_table(text):
    shared_table.clear()
    shared_table.update(tables(text)[1])
    back = {i: c for c, i in shared_table.items()}
    return (lambda s: [shared_table[c] for c in s]), (lambda numbers: "".join(back[i] for i in numbers))


def make_that_remembers(text):
    ids, last = tables(text)[1], [""]

    def encode(s):
        last[0] = s
        return [ids[c] for c in s]

    return encode, lambda numbers: last[0]


def table_of_normalised(text):
    symbols, ids = tables(unicodedata.normalize("NFC", text))
    return symbols, ids


def targets(starts, T, first=1, last=1):
    return [p for s in starts for p in range(s + first, s + T + last)]


def shared_with_tensors(train_starts, val_starts, block_size):
    def positions(starts):
        return (torch.tensor(starts, dtype=torch.long)[:, None] + torch.arange(1, block_size + 1)).unique()

    return torch.isin(positions(val_starts), positions(train_starts)).sum()


def shared_with_marks(train_starts, val_starts, block_size):
    marks = [0] * (max([*train_starts, *val_starts]) + block_size + 1)
    for bit, starts in ((1, train_starts), (2, val_starts)):
        for s in starts:
            for k in range(block_size):
                marks[s + 1 + k] |= bit
    return marks.count(3)


def encode_right(text, ids):
    for position, character in enumerate(text):
        if character not in ids:
            raise ValueError(f"character {character!r} at position {position} is not in the vocabulary")
    return [ids[character] for character in text]


def encode_with_try(text, ids):
    out = []
    for c in text:
        try:
            out.append(ids[c])
        except KeyError:
            raise ValueError(f"no id for {c} (index {len(out)}), {len(ids)} symbols are known") from None
    return out


def encode_with_tensor(text, ids):
    unknown = [(i, c) for i, c in enumerate(text) if c not in ids]
    if unknown:
        raise ValueError("unknown: " + ", ".join(f"{c!a} at {i}" for i, c in unknown))
    return torch.tensor([ids[c] for c in text], dtype=torch.long)


def encode_message(message, which=lambda unknown: unknown[0], test=lambda c, ids: c not in ids):
    def encode(text, ids):
        unknown = [(i, c) for i, c in enumerate(text) if test(c, ids)]
        if unknown:
            i, c = which(unknown)
            raise ValueError(message.format(i=i, next=i + 1, c=c, text=text))
        return [ids[c] for c in text]

    return encode


def encode_growing(text, ids):
    return [ids.setdefault(c, len(ids)) for c in text]


def encode_lazily(text, ids):
    for i, c in enumerate(text):
        if c not in ids:
            raise ValueError(f"{c!r} at {i}")
        yield ids[c]


def encode_and_print(text, ids):
    try:
        return encode_right(text, ids)
    except ValueError as error:
        print(error)


def encode_with_index(text, ids):
    known = list(ids)
    return [ids[known[known.index(c)]] for c in text]


# --- page 3 -----------------------------------------------------------------------------------------------------------


def age_of(T):
    t = torch.arange(T)
    return t[:, None] - t[None, :]


def decaying(T, gamma, dtype=torch.float32):
    kept = (gamma ** age_of(T).clamp(min=0).double()).tril()
    return (kept / kept.sum(1, keepdim=True)).to(dtype)


def decaying_lists(T, gamma):
    rows = []
    for t in range(T):
        row = [gamma ** (t - s) if s <= t else 0.0 for s in range(T)]
        rows.append([w / sum(row) for w in row])
    return rows


def decaying_softmax(T, gamma):
    scores = (age_of(T) * math.log(gamma)).masked_fill(age_of(T) < 0, -math.inf)
    return torch.softmax(scores, dim=1)


def powers(T, gamma):
    return (gamma ** age_of(T).clamp(min=0).double()).tril()


def strictly_past(T, gamma):
    kept = powers(T, gamma).tril(-1)
    return kept / kept.sum(1, keepdim=True).clamp(min=1e-9)


def overflowing(T, gamma):
    kept = gamma ** age_of(T).float() * torch.ones(T, T).tril()
    return kept / kept.sum(1, keepdim=True)


def growing(T, gamma):
    kept = (gamma ** torch.arange(T).double()).expand(T, T).tril()
    return kept / kept.sum(1, keepdim=True)


def unmasked(T, gamma):
    kept = gamma ** age_of(T).abs().double()
    return kept / kept.sum(1, keepdim=True)


def leak_finder(
    start=lambda: torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(2)),
    cuts=lambda T: range(1, T),
    look=lambda y, cut: y[:, :cut],
    same=lambda a, b: torch.allclose(a, b, atol=1e-4),
    change=lambda x, cut: x[:, cut:].add_(torch.randn(x[:, cut:].shape, generator=torch.Generator().manual_seed(cut))),
    copy=torch.clone,
    answer=lambda leak: leak,
):
    """A right finder whose parts can be replaced by wrong ones."""

    def leaks(average):
        x = start()
        before = average(x)
        for cut in cuts(x.size(1)):
            changed = copy(x)
            change(changed, cut)
            if not same(look(average(changed), cut), look(before, cut)):
                return answer(True)
        return answer(False)

    return leaks


def leaks_by_gradient(average):
    x = torch.randn(3, 6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()
    for t in range(x.size(1) - 1):
        (gradient,) = torch.autograd.grad(average(x)[:, t].square().sum(), x)
        if gradient[:, t + 1 :].abs().max() > 1e-9:
            return True
    return False


def leaks_one_position_at_a_time(average):
    x = torch.rand(2, 9, 1, generator=torch.Generator().manual_seed(4))
    for s in range(1, 9):
        other = x.clone()
        other[:, s] -= 50.0
        if (average(other) - average(x))[:, :s].abs().max() > 1e-3:
            return True
    return np.bool_(False)


def leaks_with_one_tensor(average):
    for cut in range(1, 6):
        x = torch.randn(2, 6, 1, generator=torch.Generator().manual_seed(cut))
        before = average(x)
        x[:, cut:] += torch.randn(2, 6 - cut, 1, generator=torch.Generator().manual_seed(9 + cut))
        if not torch.allclose(average(x)[:, :cut], before[:, :cut], atol=1e-5):
            return True
    return False


def one_value(size):
    def change(x, cut):
        x[:, cut:] = size

    return change


LOG_2 = math.log(2)


def scores(T, diagonal=LOG_2, hidden=-math.inf):
    matrix = torch.zeros(T, T)
    matrix.fill_diagonal_(diagonal)
    return matrix.masked_fill(torch.ones(T, T).triu(1) == 1, hidden)


def scores_of_weights(T):
    weights = torch.ones(T, T).tril() + torch.eye(T)
    return (weights / weights.sum(1, keepdim=True)).log()


def scores_multiplied(T):
    return torch.full((T, T), -math.inf) * torch.ones(T, T).triu(1)


# --- pages 8 and 9 ----------------------------------------------------------------------------------------------------


def count(V, T, L, C):
    return (2 * V + T + 2) * C + L * (12 * C**2 + 10 * C)


def count_by_building(vocab_size, block_size, n_layer, n_embd):
    config = GPTConfig(vocab_size=vocab_size, block_size=block_size, n_layer=n_layer, n_head=1, n_embd=n_embd)
    return sum(p.numel() for p in GPT(config).parameters())


def count_by_parts(vocab_size, block_size, n_layer, n_embd):
    C = n_embd
    attention = 3 * C * C + C * C + C
    mlp = C * 4 * C + 4 * C + 4 * C * C + C
    norms = 2 * 2 * C
    return np.int64(vocab_size * C + block_size * C + n_layer * (attention + mlp + norms) + 2 * C + C * vocab_size)


def plus(extra):
    return lambda V, T, L, C: count(V, T, L, C) + extra(V, T, L, C)


def initial(V, C, std):
    return math.log(V) + C * std**2 / 2


def initial_sampled(vocab_size, n_embd, std):
    rows = torch.randn(300, vocab_size) * std * math.sqrt(n_embd)
    return F.cross_entropy(rows, torch.randint(vocab_size, (300,))) if std == 0 else rows.logsumexp(1).mean()


def cosine(step, warmup=100, last=999, low=1e-4, peak=1e-3):
    if step < warmup:
        return peak * (step + 1) / warmup
    return low + (peak - low) * (1 + math.cos(math.pi * (step - warmup) / (last - warmup))) / 2


def after_warmup(decay):
    return lambda step: 1e-3 * (step + 1) / 100 if step < 100 else decay(step)


def encode_returning(text, ids):
    return [ids[c] for c in text] if all(c in ids for c in text) else ValueError(text)


def total_norm(gradients):
    return torch.sqrt(sum(g.square().sum() for g in gradients))


def clip(gradients, max_norm):
    norm = total_norm(gradients)
    return [g * (max_norm / norm) for g in gradients] if norm > max_norm else list(gradients)


def clip_flat(gradients, max_norm):
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    return tuple(g * torch.clamp(max_norm / (norm + 1e-6), max=1.0) for g in gradients)


def clip_by_pytorch(gradients, max_norm):
    parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in gradients]
    for parameter, g in zip(parameters, gradients, strict=True):
        parameter.grad = g.clone()
    torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    return [parameter.grad for parameter in parameters]


def clip_in_place(gradients, max_norm):
    for g in gradients:
        g.mul_(torch.clamp(max_norm / total_norm(gradients), max=1.0))
    return gradients


RIGHT = {
    "round-trip": [tokenizer(), make_by_first_occurrence, make_tensors],
    "shared-targets": [
        lambda a, b, T: len(set(targets(a, T)) & set(targets(b, T))),
        shared_with_tensors,
        shared_with_marks,
    ],
    "unseen-character": [encode_right, encode_with_try, encode_with_tensor],
    "decaying-average": [
        decaying,
        decaying_lists,
        decaying_softmax,
        lambda T, gamma: decaying(T, gamma, torch.float16),
        lambda T, gamma: decaying(T, gamma).numpy(),
    ],
    "leak-finder": [leak_finder(), leaks_by_gradient, leaks_one_position_at_a_time],
    "double-weight": [
        scores,
        scores_of_weights,
        scores(6).double(),
        scores(4).tolist(),
        lambda T: (scores(T) - 3.0).bfloat16(),
    ],
    "count-parameters": [count, count_by_building, count_by_parts],
    "initial-loss": [
        initial,
        initial_sampled,
        lambda V, C, s: torch.tensor(math.log(V) + C * s * s / 2 - math.expm1(C * s * s) / (2 * V)),
    ],
    "largest-width": [196, np.int64(196), torch.tensor(196)],
    "learning-rate": [
        cosine,
        lambda step: torch.tensor(cosine(step), dtype=torch.float32),
        after_warmup(lambda s: 1e-4 + 9e-4 * math.cos(math.pi * (s - 99) / 900 / 2) ** 2),  # counts from step 99
    ],
    "clip": [clip, clip_flat, clip_by_pytorch],
}


def swapped(make):
    return lambda text: make(text)[::-1]


# Plausible wrong answers, each with words that its message must hold.
WRONG = {
    "round-trip": [
        (swapped(tokenizer()), "wrong order"),
        (tokenizer(encode=lambda s, _, ids: [ids[c] + 1 for c in s],
                   decode=lambda n, sy, _: "".join(sy[i - 1] for i in n)),
         "run from 1"),
        (lambda text: ((lambda s: [ord(c) for c in s]), (lambda n: "".join(map(chr, n)))), "Unicode's numbers"),
        (tokenizer(join=list), "must give a text, got"),
        (tokenizer(join=" ".join), "puts spaces between"),
        (tokenizer(decode=lambda n, sy, _: "".join(sy[i] for i in n).strip()), "lost spaces or line ends"),
        (tokenizer(decode=lambda n, sy, _: "".join(sy[i] for i in n).lower()), "lost upper and lower case"),
        (tokenizer(encode=lambda s, _, ids: [ids[c.lower()] for c in s], table=lambda t: tables(t.lower())),
         "upper and lower case are different"),
        (tokenizer(table=table_of_normalised,
                   encode=lambda s, _, ids: [ids[c] for c in unicodedata.normalize("NFC", s)]),
         "each gets exactly one"),
        (make_with_global_table, "tables of its own"),
        (make_that_remembers, "differ from position 0"),
        (lambda text: tokenizer()(text)[0], "must return two functions"),
        (tokenizer(encode=lambda s, _, ids: [float(ids[c]) for c in s]), "must be a whole number"),
        (tokenizer(encode=lambda s, _, ids: [ids[c] for c in s] if s else None), "None"),
        (tokenizer(encode=lambda s, _, ids: [s[0]] and [ids[c] for c in s]), "IndexError"),
    ],
    "shared-targets": [
        (lambda a, b, T: len(set(targets(a, T, first=0)) & set(targets(b, T, first=0))), "one position too many"),
        (lambda a, b, T: len(set(targets(a, T, last=0)) & set(targets(b, T, last=0))), "one target too few"),
        (lambda a, b, T: len(set(targets(a, T, 0, 0)) & set(targets(b, T))), "with the training inputs"),
        (lambda a, b, T: sum(p in set(targets(a, T)) for p in targets(b, T)), "once for every validation window"),
        (lambda a, b, T: sum(targets(a, T).count(p) for p in targets(b, T)), "once for every pair"),
        (lambda a, b, T: len(set(a) & set(b)), "only equal starts"),
        (lambda a, b, T: len(set(targets(a, T)) | set(targets(b, T))), "only those that both kinds have"),
        (lambda a, b, T: len([s for s in b if set(targets([s], T)) & set(targets(a, T))]), "windows were counted"),
        (lambda a, b, T: min(len(set(targets(a, T)) & set(targets(b, T))), 2), "it is 3, not 2"),
        (lambda a, b, T: set(targets(a, T)) & set(targets(b, T)), "return how many"),
        (lambda a, b: 0, "must take (train_starts, val_starts, block_size), yours takes (a, b)"),
        (lambda a, b, T: len(set(targets(a, T)) & set(targets(b, T))) / 1, "must be a whole number"),
    ],
    "unseen-character": [
        (lambda text, ids: [ids[c] for c in text], "raised KeyError"),
        (lambda text, ids: [ids[c] for c in text if c in ids], "dropped the unknown character"),
        (lambda text, ids: [ids.get(c, 0) for c in text], "gave the unknown character some id"),
        (encode_returning, "returned the ValueError"),
        (encode_growing, "a new id"),
        (encode_message("{c!r} at {i}", which=lambda unknown: unknown[-1]), "the first of them, not the last"),
        (encode_message("{c!r} at {next}"), "counted from 1"),
        (encode_message("unknown character {c!r}"), "but not its position"),
        (encode_with_index, "but not its position"),
        (encode_message("unknown character at {i}"), "does not say which character"),
        (encode_message("unknown character in {text!r} at {i}"), "does not say which character"),
        (encode_message("{c!r} at {i}", test=lambda c, ids: not ids.get(c)), "an id may be 0"),
        (encode_lazily, "generator"),
        (encode_and_print, "returned None"),
        (lambda text, ids: encode_right(text, {c: i for i, c in enumerate(ids)} if text else ids), "from the table"),
    ],
    "decaying-average": [
        (powers, "is not normalised"),
        (lambda T, g: powers(T, g) / powers(T, g).sum(0), "the columns sum to 1"),
        (growing, "wrong direction"),
        (unmasked, "in its future"),
        (strictly_past, "no token weighs itself"),
        (overflowing, "too big for a float"),
        (lambda T, g: decaying(T, g).T, "transposed"),
        (lambda T, g: decaying(T, 1.0), "gamma has no effect"),
        (lambda T, g: torch.softmax(powers(T, g).masked_fill(age_of(T) < 0, -math.inf), 1),
         "times as much as the one after"),
        (lambda T, g: decaying(T, g)[0], "must have the shape (5, 5), got (5,)"),
        (lambda T, g: print(end=""), "None (is a return missing?)"),
    ],
    "leak-finder": [
        (leak_finder(same=torch.equal), "exact equality"),
        (leak_finder(answer=lambda leak: not leak), "wrong way round"),
        (lambda average: False, "says False to every average, right or wrong: your function never called"),
        (leak_finder(start=lambda: torch.ones(2, 8, 3), change=lambda x, cut: None), "constant"),
        (leak_finder(cuts=lambda T: [T - 1]), "at one step in the middle only"),
        (leak_finder(cuts=lambda T: [1]), "one before it only"),
        (leak_finder(look=lambda y, cut: y[:, :1]), "one before it only"),
        (leak_finder(look=lambda y, cut: y[:, cut - 1], change=lambda x, cut: x[:, cut].add_(1.0)), "position 0 only"),
        (leak_finder(same=lambda a, b: torch.allclose(a, b, atol=0.2)), "a faint leak"),
        (leak_finder(change=one_value(math.nan), same=lambda a, b: not torch.isnan(a).any()), "NaN"),
        (leak_finder(copy=lambda x: x), "accuses the loop over positions: your function changes an input in place"),
        (leaks_with_one_tensor, "misses the last token given to every position, as a view of the input: your function"),
        (leak_finder(look=lambda y, cut: y), "says True to every average"),
        (leak_finder(change=lambda x, cut: x[:1, cut:].add_(1.0), look=lambda y, cut: y[:1, :cut]), "another row"),
        (leak_finder(start=lambda: torch.arange(4.0).view(1, 2, 2)), "fewer than three"),
        (leak_finder(answer=lambda leak: None), "must return True or False"),
        (leak_finder(start=lambda: torch.randn(8, 2)), "average takes a tensor of shape (B, T, C)"),
    ],
    "double-weight": [
        (lambda T: scores(T, diagonal=2.0), "e to the power 2 is not 2"),
        (lambda T: scores(T, diagonal=math.log2(2)), "exponents of e, and 1"),
        (lambda T: scores(T, diagonal=math.log10(2)), "base 10"),
        (lambda T: scores(T, diagonal=0.0), "still the plain mean"),
        (lambda T: scores(T, diagonal=-math.log(2)), "the past that got the double weight"),
        (lambda T: scores(T).T, "hides the past and shows the future"),
        (lambda T: scores(T, hidden=0.0), "stands 0, not minus infinity"),
        (lambda T: scores(T, hidden=-1e9), "only minus infinity"),
        (lambda T: scores(T, hidden=math.inf), "plus infinity"),
        (scores_multiplied, "holds NaN"),
        (lambda T: scores_of_weights(T).exp(), "the weights themselves"),
        (lambda T: scores(T, diagonal=-math.inf), "hides the present too"),
        (lambda T: scores(T) + torch.diag(torch.tensor([math.log(max(t, 1)) for t in range(T)])),
         "all earlier tokens together"),
        (scores(2), "three tokens or more"),
        (scores(4)[:3], "must have the shape (3, 3)"),
        ("log 2", "must be a tensor"),
    ],
    "count-parameters": [
        (plus(lambda V, T, L, C: 3 * L * C), "query, key and value"),
        (plus(lambda V, T, L, C: -2 * C), "final LayerNorm"),
        (plus(lambda V, T, L, C: -(2 * L + 1) * C), "a bias beside its gain"),
        (plus(lambda V, T, L, C: -T * C), "position embeddings"),
        (plus(lambda V, T, L, C: V), "unembedding has no bias"),
        (plus(lambda V, T, L, C: -V * C), "not tied"),
        (plus(lambda V, T, L, C: -5 * L * C), "MLP's two layers have biases"),
        (plus(lambda V, T, L, C: -L * C), "output projection of the attention has a bias"),
        (lambda V, T, L, C: count(V, T, 1, C), "only one block"),
        (plus(lambda V, T, L, C: 3 * L * C - 2 * C), "two things"),
        (plus(lambda V, T, L, C: 17), "part by part"),
        (lambda V, T, L, C: 816_640, "for the page's own model only"),
        (lambda V, T, L, C: 800_000, "the same for every shape"),
        (lambda V, T, L, C: count(V, T, L, C) / 1, "must be a whole number"),
    ],
    "initial-loss": [
        (lambda V, C, s: math.log(V), "ln V alone"),
        (lambda V, C, s: math.log(V) + 1 / 6, "uniform numbers"),
        (lambda V, C, s: math.log(V) + C * s**2 / 6, "the 1/3"),
        (lambda V, C, s: math.log(V) + C * s**2, "twice too much"),
        (lambda V, C, s: math.log(V) + s**2 / 2, "does not grow with n_embd"),
        (lambda V, C, s: math.log(V) + C * s / 2, "where the variance belongs"),
        (lambda V, C, s: math.log(V) - C * s**2 / 2, "wrong sign"),
        (lambda V, C, s: math.log2(V) + C * s**2 / 2, "ln V is in bits"),
        (lambda V, C, s: (math.log(V) + C * s**2 / 2) / math.log(2), "this is in bits"),
        (lambda V, C, s: C * s**2 / 2, "ln V is missing"),
        (lambda V, C, s: math.nan, "is nan"),
        (lambda V, C, s: 4.2, "measure"),
        (lambda V, C, s: str(math.log(V)), "must be a number"),
    ],
    "largest-width": [
        (200, "3,200 too many"),
        (192, "a wider one fits too"),
        (199, "cannot be shared equally by 4 heads"),
        (196.0, "must be a whole number"),
        (lambda: 196, "the width itself"),
        (0, "lies between"),
        (10**9, "1,000,000,000 is far off"),
        (None, "got nothing"),
        ("196", "'196' (str)"),
    ],
    "learning-rate": [
        (lambda s: cosine(s - 1) if s <= 100 else cosine(s), "the first step changes nothing"),
        (after_warmup(lambda s: 1e-4 + 9e-4 * (1 + math.cos(math.pi * s / 999)) / 2), "jumps from"),
        (after_warmup(lambda s: 1e-4 + 9e-4 * (1 + math.cos(math.pi * (s - 100) / 900)) / 2),
         "never reaches the minimum"),
        (after_warmup(lambda s: 1e-4 + 9e-4 * (1 + math.cos(math.pi * (s - 100) / 600)) / 2), "rises again"),
        (after_warmup(lambda s: 1e-3 - 9e-4 * (s - 100) / 899), "straight line: half a wave"),
        (after_warmup(lambda s: 1e-3 * (1 + math.cos(math.pi * (s - 100) / 899)) / 2), "towards 0"),
        (after_warmup(lambda s: max(1e-4, 1e-3 * (1 + math.cos(math.pi * (s - 100) / 899)) / 2)), "be cut off"),
        (after_warmup(lambda s: 1e-3 * 0.1 ** ((s - 100) / 899)), "same factor"),
        (after_warmup(lambda s: 1e-3), "it must fall"),
        (lambda s: 1e-4 + 9e-4 * (1 + math.cos(math.pi * s / 999)) / 2, "there is no warm-up"),
        (lambda s: 1e-5 + 9.9e-4 * s / 100 if s < 100 else cosine(s), "not the right one"),
        (lambda s: 1e-3 * ((s + 1) / 100) ** 2 if s < 100 else cosine(s), "not a straight line"),
        (lambda s: cosine(s) / 1e-3, "share of the peak"),
        (lambda s: 1e-3, "at every step"),
        (after_warmup(lambda s: 1e-4 + 9e-4 * ((1 + math.cos(math.pi * (s - 100) / 899)) / 2) ** 2), "halfway down"),
        (after_warmup(lambda s: 1e-4 + 9e-4 * math.cos(math.pi / 2 * (s - 100) / 899)), "halfway down"),
        (after_warmup(lambda s: 1e-4 + 9e-4 * (1 + math.cos((s - 100) / 899)) / 2), "half a turn"),
        (lambda s: [cosine(s)], "must be a number"),
    ],
    "clip": [
        (lambda gs, m: [clip([g], m)[0] for g in gs], "each tensor was clipped alone"),
        (lambda gs, m: [g.clamp(-m, m) for g in gs], "every number was cut off"),
        (lambda gs, m: [g * m / total_norm(gs) for g in gs], "small gradients were scaled up"),
        (lambda gs, m: [g / total_norm(gs) for g in gs], "whatever max_norm says"),
        (lambda gs, m: clip(gs, m / 2) if total_norm(gs) > m else gs, "came back with the norm"),
        (lambda gs, m: [g / total_norm(gs) if total_norm(gs) > m else g for g in gs], "max_norm is missing"),
        (lambda gs, m: [g * m / total_norm(gs) ** 2 if total_norm(gs) ** 2 > m else g for g in gs], "square root"),
        (lambda gs, m: [g * min(1.0, m / sum(h.norm().item() for h in gs)) for g in gs], "the norms of the tensors"),
        (lambda gs, m: [g * min(1.0, m / max(h.abs().max().item() for h in gs)) for g in gs], "the largest number"),
        (lambda gs, m: gs, "nothing was clipped"),
        (clip_in_place, "changed the gradients that it was given"),
        (lambda gs, m: [g / total_norm(gs) * min(m, total_norm(gs)) for g in gs], "all zero"),
        (lambda gs, m: (g for g in clip(gs, m)), "a generator"),
        (lambda gs, m: torch.cat([g.flatten() for g in clip(gs, m)]), "must return a list of tensors"),
        (lambda gs, m: [g.flatten() for g in clip(gs, m)], "changed a shape"),
    ],
}  # fmt: skip


for path in sorted((Path(__file__).parent / "answers").glob("page_*.py")):
    page = importlib.import_module(f"answers.{path.stem}")
    RIGHT |= page.RIGHT
    WRONG |= page.WRONG


def cases(table):
    return [
        pytest.param(name, entry, id=f"{name}-{i}")
        for name, entries in table.items()
        for i, entry in enumerate(entries)
    ]


@pytest.mark.parametrize(("name", "answer"), cases(RIGHT))
def test_right_answers_pass(name, answer):
    """A failure would tell a reader who is right that they are wrong."""
    verdict = exercises.check(name, answer)
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize(("name", "entry"), cases(WRONG))
def test_wrong_answers_fail_with_the_reason(name, entry):
    """A failure would pass a plausible mistake, or give it the reason of another one."""
    answer, words = entry
    verdict = exercises.check(name, answer)
    assert not verdict.passed
    assert words in verdict.message
    assert "could not read" not in verdict.message


@pytest.mark.parametrize("name", exercises.registry)
def test_every_exercise_is_tried_and_its_mistakes_are_told_apart(name):
    """A failure would leave a check untested, or give two different mistakes the same sentence."""
    assert len(RIGHT[name]) >= 3
    expected = {words for _, words in WRONG[name] if words}
    messages = {exercises.check(name, answer).message for answer, _ in WRONG[name]}
    assert len(messages) >= len(expected) >= 5


class Odd:
    """An object that refuses everything."""

    def __getattribute__(self, name):
        raise RuntimeError(f"no {name}\nhere")

    def __repr__(self):
        raise RuntimeError("no repr")


def recursive(*arguments):
    return recursive(*arguments)


def leaves(*arguments):
    sys.exit("bye")


def fails(*arguments):
    raise RuntimeError("first line\nsecond line " + "long " * 100)


class MuteError(Exception):
    def __str__(self):
        raise self


def mute(*arguments):
    raise MuteError


def not_written(*arguments):
    raise NotImplementedError


def generator(*arguments):
    yield 1


ODD = [None, True, 3.5, "text", b"bytes", [], {}, object(), Odd(), Odd, int, len, torch.zeros(2, 3), recursive,
       leaves, fails, not_written, generator, lambda: 1, lambda *a: None, lambda *a: a, lambda *a: Odd(),
       lambda *a: math.nan, lambda *a: torch.full((5, 5), math.nan), lambda *a: fails,
       lambda *a: (fails, fails), lambda *a: 1j, mute,
       lambda *a: {"a": 1}, lambda *a: torch.zeros(0), lambda *a: [[1], [2, 3]], torch.nn.Linear(2, 2)]  # fmt: skip


@pytest.mark.parametrize("name", exercises.registry)
def test_no_answer_makes_a_check_raise(name):
    """A failure would show a reader a traceback in place of a sentence."""
    for answer in ODD:
        verdict = exercises.check(name, answer)
        assert not verdict
        assert verdict.message
        assert "\n" not in verdict.message
        assert "Traceback" not in verdict.message
        assert len(verdict.message) < 420


def test_an_error_is_told_with_its_line():
    """A failure would leave a reader alone with an exception from an unknown place."""
    message = exercises.check("round-trip", fails).message
    assert "raised RuntimeError: first line second line" in message
    assert "at the line `raise RuntimeError" in message
    assert "at the line `raise RuntimeError" in exercises.check("unseen-character", fails).message
    assert "not written yet" in exercises.check("clip", not_written).message


def test_interrupting_a_check_interrupts_it():
    """A failure would keep Ctrl-C from ending an answer that never returns."""

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exercises.check("clip", interrupted)


@pytest.mark.parametrize("name", exercises.registry)
def test_random_state_is_kept(name):
    """A failure would change a page's numbers by checking an exercise on it."""

    def spendthrift(*arguments):
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        torch.rand(3)

    for answer in (spendthrift, RIGHT[name][0], RIGHT[name][1]):
        before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
        exercises.check(name, answer)
        assert random.getstate() == before[0]
        assert np.random.get_state()[1].tolist() == before[1]
        assert torch.equal(torch.get_rng_state(), before[2])


@pytest.mark.parametrize(
    ("name", "near"),
    [("roundtrip", "round-trip"), ("leak finder", "leak-finder"), ("Clip", "clip"), ("?", "bigram-loss")],
)
def test_unknown_name_lists_close_ones(name, near):
    """A failure would leave a reader who mistyped a name without the right one."""
    with pytest.raises(ValueError, match=f"no exercise is called .*{near}"):
        exercises.check(name, clip)


def test_name_comes_first():
    """A failure would answer swapped arguments with something unrelated."""
    with pytest.raises(ValueError, match="comes first"):
        exercises.check(clip, "clip")


def test_verdict_shows_itself():
    """A failure would break how a verdict looks on a page, or what the build reads from it."""
    good, bad = exercises.check("largest-width", 196), exercises.check("largest-width", "<b>")
    assert good
    assert not bad
    assert str(good) == repr(good) == f"✓ largest-width: {good.message}. Your code: {good.code}"
    assert str(bad).startswith("✗ largest-width: ")
    assert 'class="verdict passed"' in good._repr_html_()
    assert 'class="verdict failed"' in bad._repr_html_()
    assert "<b>" not in bad._repr_html_()
    assert "style=" not in good._repr_html_()
    bundle = json.loads(json.dumps(bad._repr_mimebundle_()))
    assert bundle["application/vnd.gptbook.verdict+json"] == {"name": "largest-width", "passed": False}
    assert bundle["text/plain"] == str(bad)
    assert bundle["text/html"] == bad._repr_html_()


def test_verdict_in_a_notebook():
    """A failure would lose the verdict between a cell and the build."""
    formatter = pytest.importorskip(
        "IPython.core.formatters", reason="IPython comes with the extra 'site'"
    ).DisplayFormatter()
    data, _ = formatter.format(exercises.check("largest-width", 196))
    assert data[exercises.MIME] == {"name": "largest-width", "passed": True}
    assert {"text/plain", "text/html"} <= set(data)


def test_page_1_needs_no_torch():
    """A failure would make page 1 load torch for its exercises."""
    program = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "from gptbook import exercises\n"
        "v = exercises.check('unseen-character', lambda text, ids: [ids[c] for c in text])\n"
        "print(v.passed, v.message)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("False encode(")
    assert "KeyError" in done.stdout


def test_measured_loss_agrees_with_a_model():
    """A failure would mean that the oracle of "initial-loss" does not measure what a GPT does before training."""
    losses = []
    for seed in range(12):
        torch.manual_seed(seed)
        model = GPT(GPTConfig(vocab_size=300, block_size=16, n_layer=1, n_head=2, n_embd=64))
        torch.nn.init.normal_(model.lm_head.weight, std=0.1)
        idx = torch.randint(300, (16, 17))  # (B, T+1)
        with torch.no_grad():
            logits = model(idx[:, :-1])  # (B, T, V)
        losses.append(F.cross_entropy(logits.flatten(0, 1), idx[:, 1:].flatten()).item())
    assert sum(losses) / len(losses) == pytest.approx(page_08._measured(300, 64, 0.1), abs=0.03)


def test_the_trainer_has_the_schedule_that_the_exercise_asks_for():
    """A failure would mean that page 9 teaches another schedule than the package trains with."""
    from gptbook.trainer import TrainConfig, lr_at

    rates = {"learning_rate": 1e-3, "min_learning_rate": 1e-4}
    for schedule, passes in (("cosine", True), ("linear", False), ("constant", False)):
        config = TrainConfig(steps=1000, warmup_steps=100, schedule=schedule, **rates)
        assert exercises.check("learning-rate", lambda step, config=config: lr_at(step, config)).passed is passes


def test_known_mistakes_are_mistakes():
    """A failure would mean that a catalogue holds a right answer, or one that its cases cannot tell from it."""
    sizes = [(65, 64, 4, 128), (101, 37, 3, 44)]
    assert all(extra(*size) != 0 for _, extra in page_08.COUNT_MISTAKES for size in sizes)
    cases = [(65, 128, 0.05), (500, 200, 0.03)]
    for words, wrong in page_08.LOSS_MISTAKES:
        assert any(abs(wrong(*case) - page_08._measured(*case)) > 0.05 for case in cases), words
    chains = [page_02._chain(5, 200, 60, 0)]
    assert all(
        not page_02._close(wrong(*chains[0]), page_02._bigram(*chains[0])) for _, wrong in page_02.BIGRAM_MISTAKES
    )


def test_a_mask_after_the_softmax_that_divides_again_is_right_and_told_where_it_breaks():
    """A failure would refuse an answer that is equal, or keep its weakness from the reader."""
    from answers import page_04

    assert "NaN" in exercises.check("attention-head", page_04.head_late_again).message
    assert "NaN" not in exercises.check("attention-head", page_04.head).message


def test_messages_do_not_name_the_workings():
    """A failure would show a reader names of the checks' own code."""
    for name, entries in WRONG.items():
        for answer, _ in entries:
            assert not re.search(
                r"\b_\w+|page_\d\d|lambda \w+:", exercises.check(name, answer).message.split(", at the line")[0]
            )
