"""Answers to the exercises of page 12."""

import math

import torch


def line(weights, offset):
    return weights.diagonal(offset=offset, dim1=-2, dim2=-1)


def previous_in_a_loop(weights):
    H, T, _ = weights.shape
    return [sum(weights[h, t, t - 1].item() for t in range(1, T)) / (T - 1) for h in range(H)]


def previous_by_a_matrix(weights):
    T = weights.size(-1)
    shifted = torch.eye(T, dtype=torch.float64).roll(-1, 1)  # ones at [t, t - 1], and at [0, T - 1]
    shifted[0, -1] = 0
    return torch.einsum("hts,ts->h", weights.double(), shifted) / (T - 1)


class Previous(torch.nn.Module):
    def forward(self, weights):
        return weights[:, 1:, :-1].diagonal(dim1=1, dim2=2).mean(dim=1, keepdim=True)


def tops(weights):
    rows = torch.arange(1, weights.size(-1))
    return (weights[:, 1:].argmax(-1) == rows - 1).float().mean(-1)


def in_place(weights):
    weights[:, 0] = 0
    return line(weights, -1).mean(-1)


def induction_in_a_loop(weights, period):
    rows = range(period, 2 * period)
    return [sum(float(head[t, t - period + 1]) for t in rows) / period for head in weights]


def induction_by_indices(weights, period):
    rows = torch.arange(period, 2 * period)
    return weights.numpy()[:, rows, rows - period + 1].mean(axis=-1)


def first_by_argmax(z, answer):
    hits = (z.argmax(dim=-1) == answer).int()
    return hits.argmax() if hits.any() else None


def first_with_lists(z, answer):
    for row, logits in enumerate(z.tolist()):
        if max(logits) == logits[answer]:
            return row


def first_by_index(z, answer):
    guesses = z.softmax(-1).max(-1).indices.tolist()
    return guesses.index(answer) if answer in guesses else None


def first_of(hits):
    found = [row for row, hit in enumerate(hits) if hit]
    return found[0] if found else None


def stays(z, answer):
    hits = (z.argmax(-1) == answer).tolist()
    return first_of([all(hits[row:]) for row in range(len(hits))])


def last(z, answer):
    found = [row for row, guess in enumerate(z.argmax(-1).tolist()) if guess == answer]
    return found[-1] if found else None


def counted_from_one(z, answer):
    found = first_by_argmax(z, answer)
    return None if found is None else int(found) + 1


RIGHT = {
    "previous-token-head": [
        lambda w: line(w, -1).mean(dim=-1),
        previous_in_a_loop,
        previous_by_a_matrix,
        Previous(),
        lambda w: line(w, -1).mean(-1).bfloat16(),
    ],
    "induction-head": [
        lambda w, period: line(w, 1 - period)[:, 1:].mean(-1),
        induction_in_a_loop,
        induction_by_indices,
        lambda w, period: torch.stack([w[:, t, t - period + 1] for t in range(period, w.size(1))], 1).mean(1),
    ],
    "first-appears": [
        first_by_argmax,
        first_with_lists,
        first_by_index,
        lambda z, answer: first_of((z.argsort(-1, descending=True)[:, 0] == answer).tolist()),
    ],
}

# Plausible wrong answers, each with words that its message must hold.
WRONG = {
    "previous-token-head": [
        (lambda w: line(w, 1).mean(-1), "above the diagonal"),
        (lambda w: line(w, 0).mean(-1), "the diagonal itself"),
        (lambda w: line(w, -2).mean(-1), "two tokens back"),
        (lambda w: line(w, -1).sum(-1) / w.size(-1), "divides by T:"),
        (lambda w: torch.stack([w[:, t, t - 1] for t in range(w.size(-1))]).mean(0), "divides by T:"),
        (lambda w: line(w, -1).sum(-1) / w.size(-1) ** 2, "T times T"),
        (lambda w: line(w, -1).sum(-1), "the sum over the tokens"),
        (lambda w: line(w, -1).amax(-1), "one token is no habit"),
        (lambda w: w[:, -1, -2], "the last token only"),
        (tops, "the largest weight"),
        (lambda w: w[:, 1:, 0].mean(-1), "column 0"),
        (lambda w: line(w, -1).mean(), "one number for all heads"),
        (lambda w: line(w, -1).mean(0), "the mean went over the heads"),
        (lambda w: line(w, -1), "the mean over the tokens is missing"),
        (lambda w: line(w, -1)[:, 1:].mean(-1), "asked for is"),
        (in_place, "work on a copy"),
        (lambda w: line(w, -99).mean(-1), "NaN"),
        (lambda w: None, "is a return missing?"),
    ],
    "induction-head": [
        (lambda w, P: line(w, -P).mean(-1), "the earlier copy of the token itself"),
        (lambda w, P: line(w, -P - 1).mean(-1), "what stood before the earlier copy"),
        (lambda w, P: line(w, -1)[:, P - 1 :].mean(-1), "a whole copy back"),
        (lambda w, P: line(w, 1 - P).mean(-1), "one row too many"),
        (lambda w, P: line(w, 1 - P)[:, 1:].sum(-1) / (2 * P), "divides by all rows"),
        (lambda w, P: line(w, 1 - P)[:, 1:-1].mean(-1), "leaves the last row out"),
        (lambda w, P: line(w, 1 - P)[:, 1:].sum(-1), "the sum over the rows"),
        (lambda w, P: line(w, P - 1).mean(-1), "above the diagonal"),
        (lambda w, P: w[:, P:, :P].sum(-1).mean(-1), "all of the first copy: asked for is the weight"),
        (lambda w, P: w[:, P:, :P].mean((-2, -1)), "says nothing about which"),
        (lambda w, P: (w[:, P:].argmax(-1) == torch.arange(1, P + 1)).float().mean(-1), "the largest weight"),
        (lambda w, P: line(w, 1 - P)[:, 1:].mean(0), "the mean went over the heads"),
        (lambda w, P: line(w, 1 - P)[:, 1:].mean(-1).half() * 0.75, "asked for is"),
        (lambda w, P: w[:, P:, P + 99], "raised IndexError"),
    ],
    "first-appears": [
        (last, "the last row with the answer on top"),
        (stays, "stays on top"),
        (counted_from_one, "counts the rows from 1"),
        (lambda z, a: int((z.argmax(-1) == a).sum()), "counts the rows with the answer on top"),
        (lambda z, a: z[:, a].argmax(), "its highest logit"),
        (lambda z, a: z[:, a].argmin(), "its lowest logit"),
        (lambda z, a: z.softmax(-1)[:, a].argmax(), "most probable"),
        (lambda z, a: first_of((z.argmin(-1) == a).tolist()), "takes the lowest logit"),
        (lambda z, a: first_of([a in row for row in z.topk(5).indices.tolist()]), "among the top 5"),
        (lambda z, a: first_of([a in row for row in z.topk(2).indices.tolist()]), "among the top 2"),
        (lambda z, a: z[-1].argmax(), "a token id"),
        (lambda z, a: int((z.argmax(-1) == a).int().argmax()), "asked for is None"),
        (lambda z, a: -1 if first_by_argmax(z, a) is None else first_by_argmax(z, a), "says -1: asked for is None"),
        (lambda z, a: None, "finds no row at all"),
        (lambda z, a: bool((z.argmax(-1) == a).any()), "the number of a row or None"),
        (lambda z, a: z.argmax(-1) == a, "must be a whole number"),
        (lambda z, a: z.sub_(z.amax(-1, keepdim=True)).eq(0)[:, a].int().argmax(), "work on a copy"),
        (lambda z, a: math.inf, "must be a whole number"),
    ],
}  # fmt: skip
