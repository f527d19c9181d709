"""Answers to the exercises of page 14."""

import itertools

import numpy as np
import torch


def spans_by_search(sample, text):
    best, start = 0, 0
    for i in range(len(sample)):
        while i + best < len(sample) and sample[i : i + best + 1] in text:
            best, start = best + 1, i
    return best, start


def spans_by_table(sample, text):
    """Lengths of common endings, row by row."""
    best, end = 0, 0
    row = [0] * (len(text) + 1)
    for i, character in enumerate(sample):
        row = [0] + [row[j] + 1 if character == other else 0 for j, other in enumerate(text)]
        if max(row) > best:
            best, end = max(row), i + 1
    return [best, end - best]


def spans_by_halving(sample, text):
    """If a piece of some length is copied, so are shorter ones: halve the range of lengths."""
    low, high, start = 0, min(len(sample), len(text)), 0
    while low < high:
        middle = (low + high + 1) // 2
        pieces = {text[j : j + middle] for j in range(len(text) - middle + 1)}
        found = next((i for i in range(len(sample) - middle + 1) if sample[i : i + middle] in pieces), None)
        if found is None:
            high = middle - 1
        else:
            low, start = middle, found
    return np.int64(low), start


def spans_last(sample, text):
    best, start = 0, 0
    for i in range(len(sample)):
        while i + best < len(sample) and sample[i : i + best + 1] in text:
            best, start = best + 1, i
        if best and sample[i : i + best] in text and i + best <= len(sample):
            start = i
    return best, start


def spans_by_words(sample, text):
    mine, best = sample.split(), (0, 0)
    for i in range(len(mine)):
        for j in range(i + 1, len(mine) + 1):
            if f" {' '.join(mine[i:j])} " in f" {' '.join(text.split())} " and j - i > best[0]:
                best = (j - i, i)
    return best


def spans_by_subsequence(sample, text):
    table = [[0] * (len(text) + 1)]
    for a in sample:
        table.append([0])
        for j, b in enumerate(text):
            table[-1].append(table[-2][j] + 1 if a == b else max(table[-2][j + 1], table[-1][j]))
    return table[-1][-1], 0


def prefix(sample, text):
    return max(n for n in range(len(sample) + 1) if sample[:n] in text), 0


def first_place_only(sample, text):
    best, start = 0, 0
    for i, character in enumerate(sample):
        j, n = text.find(character), 0
        while j >= 0 and i + n < len(sample) and j + n < len(text) and sample[i + n] == text[j + n]:
            n += 1
        if n > best:
            best, start = n, i
    return best, start


def aligned(sample, text):
    runs = [
        (len(list(run)), same) for same, run in itertools.groupby(a == b for a, b in zip(sample, text, strict=False))
    ]
    return max((n for n, same in runs if same), default=0), 0


def jumping(sample, text):
    best, start, i = 0, 0, 0
    while i < len(sample):
        n = prefix(sample[i:], text)[0]
        if n > best:
            best, start = n, i
        i += max(n, 1)
    return best, start


def off(by):
    def answer(sample, text):
        length, start = spans_by_search(sample, text)
        return max(0, length + by), start

    return answer


def turning(history):
    return min(history, key=lambda row: row["val_loss"])["step"]


def turning_by_loop(history):
    best, step = float("inf"), None
    for row in history:
        if row["val_loss"] < best:
            best, step = row["val_loss"], row["step"]
    return step


def turning_by_torch(history):
    losses = torch.tensor([row["val_loss"] for row in history])
    return torch.tensor([row["step"] for row in history])[losses.argmin()]


def turning_by_sorting(history):
    return sorted((row["val_loss"], row["step"]) for row in history)[0][1]


def first_rise(history):
    for a, b in itertools.pairwise(history):
        if b["val_loss"] > a["val_loss"]:
            return a["step"]
    return history[-1]["step"]


def sorting_in_place(history):
    history.sort(key=lambda row: row["val_loss"])
    return history[0]["step"]


def stop(losses, patience):
    best, waited = float("inf"), 0
    for i, loss in enumerate(losses):
        waited = 0 if loss < best else waited + 1
        best = min(best, loss)
        if waited == patience:
            return i
    return len(losses) - 1


def stop_by_slices(losses, patience):
    for i in range(patience, len(losses)):
        if min(losses[i - patience + 1 : i + 1]) >= min(losses[: i - patience + 1]):
            return i
    return len(losses) - 1


def stop_by_last_record(losses, patience):
    record = 0
    for i in range(len(losses)):
        if losses[i] < losses[record]:
            record = i
        if i - record >= patience:
            return np.int64(i)
    return torch.tensor(len(losses) - 1)


def stop_against_before(losses, patience):
    waited = 0
    for i in range(1, len(losses)):
        waited = waited + 1 if losses[i] >= losses[i - 1] else 0
        if waited == patience:
            return i
    return len(losses) - 1


def stop_never_reset(losses, patience):
    best, waited = losses[0], 0
    for i, loss in enumerate(losses[1:], 1):
        if loss < best:
            best = loss
        else:
            waited += 1
        if waited == patience:
            return i
    return len(losses) - 1


def stop_with_ties(losses, patience):
    best, waited = float("inf"), 0
    for i, loss in enumerate(losses):
        waited = 0 if loss <= best else waited + 1
        best = min(best, loss)
        if waited == patience:
            return i
    return len(losses) - 1


def stop_late(losses, patience):
    best, waited = float("inf"), 0
    for i, loss in enumerate(losses):
        waited = 0 if loss < best else waited + 1
        best = min(best, loss)
        if waited > patience:
            return i
    return len(losses) - 1


def stop_without_end(losses, patience):
    at = stop(losses, patience)
    return at if at < len(losses) - 1 else None


def stop_in_place(losses, patience):
    at = stop(losses, patience)
    losses.append(0.0)
    return at


RIGHT = {
    "longest-span": [spans_by_search, spans_by_table, spans_by_halving],
    "where-it-turns": [turning, turning_by_loop, turning_by_torch, turning_by_sorting],
    "early-stopping": [stop, stop_by_slices, stop_by_last_record],
}

# Plausible wrong answers, each with words that its message must hold.
WRONG = {
    "longest-span": [
        (lambda s, t: spans_by_search(s, t) if spans_by_search(s, t)[0] else (0, -1), "(0, 0) is asked for"),
        (spans_by_subsequence, "a piece has no gaps"),
        (spans_by_words, "words were counted"),
        (prefix, "at the start of the sample"),
        (first_place_only, "from the first place where it stands"),
        (aligned, "at the same place in both texts"),
        (jumping, "begin inside of another"),
        (off(-1), "one short"),
        (off(1), "one too many"),
        (lambda s, t: spans_by_search(s.lower(), t.lower()), "capitals"),
        (lambda s, t: spans_by_search(s, t)[0], "returned one number"),
        (lambda s, t: s[slice(spans_by_search(s, t)[1], sum(spans_by_search(s, t)))], "returned a text"),
        (spans_last, "the first is asked for"),
        (lambda s, t: (spans_by_search(s, t)[0], t.find(s[spans_by_search(s, t)[1] :][: spans_by_search(s, t)[0]])),
         "not in sample"),
        (lambda s, t: (spans_by_search(s, t)[0], sum(spans_by_search(s, t))), "where the piece ends"),
        (lambda s, t: (spans_by_search(s, t)[0], -1), "begins at your start"),
        (lambda s, t: spans_by_search(s[:100], t), "cut off at some length"),
        (lambda s, t: (len(set(s) & set(t)), 0), "different characters"),
        (lambda s, t: (len(s), 0), "is right"),
    ],
    "where-it-turns": [
        (lambda h: min(h, key=lambda row: row["train_loss"])["step"], "the lowest training loss"),
        (lambda h: h[-1]["step"], "the last measurement"),
        (lambda h: max(h, key=lambda row: row["val_loss"] - row["train_loss"])["step"], "the largest gap"),
        (first_rise, "at the first rise"),
        (lambda h: min(h[::-1], key=lambda row: row["val_loss"])["step"], "you take the last"),
        (lambda h: min(enumerate(h), key=lambda row: row[1]["val_loss"])[0], "number of the measurement"),
        (lambda h: min(row["val_loss"] for row in h), "the lowest loss itself"),
        (sorting_in_place, "only read it"),
        (lambda h: max(h, key=lambda row: row["val_loss"])["step"], "the highest validation loss"),
        (lambda h: 150, "you return 150"),
        (lambda h: min(h, key=lambda row: row["val_loss"]), "must be a number"),
        (lambda h: min(h, key=lambda row: row["validation"])["step"], "KeyError"),
    ],
    "early-stopping": [
        (stop_against_before, "with the measurement before"),
        (stop_never_reset, "not set back"),
        (stop_with_ties, "equal to the lowest"),
        (stop_late, "too late"),
        (lambda ls, p: ls.index(min(ls[: stop(ls, p) + 1])), "to go back to"),
        (lambda ls, p: ls.index(min(ls)), "does not see the rest"),
        (lambda ls, p: stop(ls, 1), "patience has no effect"),
        (lambda ls, p: len(ls) - 1, "always go on to the end"),
        (lambda ls, p: stop(ls, p) + 1, "counted from 0"),
        (stop_without_end, "returned None"),
        (stop_in_place, "only read them"),
        (lambda ls, p: ls[stop(ls, p)], "is right"),
    ],
}  # fmt: skip
