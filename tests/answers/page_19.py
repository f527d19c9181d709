"""Answers to the exercises of page 19."""

import math

import torch
import torch.nn.functional as F


def masked(prompt, answer):
    row = prompt + answer
    return row[:-1], [-100] * (len(prompt) - 1) + answer


def masked_in_a_loop(prompt, answer):
    inputs, targets = [], []
    row = prompt + answer
    for i in range(len(row) - 1):
        inputs.append(row[i])
        targets.append(row[i + 1] if i + 1 >= len(prompt) else -100)
    return [inputs, targets]


def masked_tensors(prompt, answer):
    row = torch.tensor(prompt + answer)
    targets = row[1:].clone()
    targets[: len(prompt) - 1] = -100
    return row[:-1], targets


def changes(prompt, answer):
    prompt += answer
    return prompt[:-1], prompt[1:]


def one_token_late(prompt, answer):
    return masked(prompt, answer) if len(prompt) > 1 else (answer[:-1], answer[1:])


def by_hand(q, r, b):
    raw = [p * math.exp((x - max(r.tolist())) / b) for p, x in zip(q.tolist(), r.tolist(), strict=True)]
    return [one / sum(raw) for one in raw]


def naive(q, r, b):
    raw = q * torch.exp(r / b)
    return raw / raw.sum()


def dpo(c, r, qc, qr, b):
    return -F.logsigmoid(b * ((c - qc) - (r - qr))).mean()


def dpo_softplus(c, r, qc, qr, b):
    return F.softplus(-b * (c - r - qc + qr)).sum() / len(c)


def dpo_in_a_loop(c, r, qc, qr, b):
    total = 0.0
    for pair in zip(c.tolist(), r.tolist(), qc.tolist(), qr.tolist(), strict=True):
        d = b * ((pair[0] - pair[2]) - (pair[1] - pair[3]))
        total += math.log1p(math.exp(-abs(d))) + max(0.0, -d)
    return total / len(c)


def in_place(c, r, qc, qr, b):
    c -= qc
    return dpo(c, r, torch.zeros_like(qc), qr, b)


RIGHT = {
    "mask-the-prompt": [masked, masked_in_a_loop, masked_tensors],
    "best-policy": [
        lambda q, r, b: torch.softmax(q.log() + r / b, dim=-1),
        by_hand,
        lambda q, r, b: (q.double().log() + r.double() / b).log_softmax(0).exp(),
    ],
    "dpo-loss": [dpo, dpo_softplus, dpo_in_a_loop],
}

# Plausible wrong answers, each with words that its message must hold.
WRONG = {
    "mask-the-prompt": [
        (lambda p, a: ((p + a)[:-1], ([-100] * len(p) + a)[:-1]), "not shifted"),
        (lambda p, a: (p + a, [-100] * len(p) + a), "both are one shorter"),
        (lambda p, a: ((p + a)[:-1], (p + a)[1:]), "count everywhere"),
        (lambda p, a: ((p + a)[:-1], [-100] * len(p) + a[1:]), "one too long"),
        (lambda p, a: ((p + a)[:-1], [-100] * (len(p) - 2) + p[-1:] + a), "one too short"),
        (lambda p, a: ((p + a)[:-1], p[1:] + [-100] * len(a)), "the other way round"),
        (lambda p, a: (([-100] * len(p) + a)[:-1], [-100] * (len(p) - 1) + a), "must read the prompt, and only"),
        (lambda p, a: (a[:-1], a[1:]), "to know what was asked"),
        (lambda p, a: ((p + a)[:-1], [-100] * (len(p) - 1) + a[:-1] + [-100]), "the end-of-answer sign"),
        (lambda p, a: ((p + a)[:-1], [0] * (len(p) - 1) + a), "at 0"),
        (lambda p, a: ((p + a)[:-1], [-1] * (len(p) - 1) + a), "at -1"),
        (lambda p, a: ([-100] * (len(p) - 1) + a, (p + a)[:-1]), "exchanged"),
        (one_token_late, "masked([4], [5, 6]) gives the inputs [5], asked for is [4, 5]"),
        (changes, "make new ones"),
        (lambda p, a: (p + a)[:-1], "must return two lists"),
        (lambda p, a: ([0.5], [1]), "must be a whole number"),
        (lambda p, a: (7, a), "must be a list"),
    ],
    "best-policy": [
        (lambda q, r, b: F.softmax(q.log() - r / b, -1), "against the reward"),
        (lambda q, r, b: F.softmax(q.log() + r * b, -1), "so beta divides"),
        (lambda q, r, b: F.softmax(q.log() + r, -1), "leaves beta out"),
        (lambda q, r, b: F.softmax(r / b, -1), "forgets the reference"),
        (lambda q, r, b: F.softmax(q + r / b, -1), "stand their logarithms"),
        (lambda q, r, b: F.softmax((q.log() + r) / b, -1), "only the reward is divided"),
        (lambda q, r, b: q * (r / b).exp(), "sum to 1"),
        (lambda q, r, b: F.log_softmax(q.log() + r / b, -1), "returns the logarithms"),
        (lambda q, r, b: q, "is the reference itself"),
        (lambda q, r, b: q * r / b / (q * r / b).sum(), "into an exponent"),
        (lambda q, r, b: F.one_hot(r.argmax(), len(r)), "the limit where beta is 0"),
        (naive, "an exponential overflows"),
        (lambda q, r, b: F.softmax(q.log() + r / b, -1)[:1], "must have the shape"),
        (lambda q, r, b: F.softmax(q.log() + r / b, -1).sqrt(), "asked for is"),
        (lambda q, r, b: q.mul_(2) / 2, "work on copies"),
    ],
    "dpo-loss": [
        (lambda c, r, qc, qr, b: dpo(r, c, qr, qc, b), "prefers the rejected"),
        (lambda c, r, qc, qr, b: -F.logsigmoid(b * (c - r)).mean(), "forgets the reference"),
        (lambda c, r, qc, qr, b: dpo(c, r, -qc, -qr, b), "adds the reference"),
        (lambda c, r, qc, qr, b: -F.logsigmoid(b * (c - qc - r - qr)).mean(), "both references off"),
        (lambda c, r, qc, qr, b: dpo(c, r, qc, qr, 1), "leaves beta out"),
        (lambda c, r, qc, qr, b: dpo(c, r, qc, qr, 1 / b), "divides by beta"),
        (lambda c, r, qc, qr, b: b * dpo(c, r, qc, qr, 1), "outside of the sigmoid"),
        (lambda c, r, qc, qr, b: -dpo(c, r, qc, qr, b), "wrong sign"),
        (lambda c, r, qc, qr, b: len(c) * dpo(c, r, qc, qr, b), "the sum over the pairs"),
        (lambda c, r, qc, qr, b: -torch.sigmoid(b * ((c - qc) - (r - qr))).mean(), "lacks the logarithm"),
        (lambda c, r, qc, qr, b: -(b * ((c - qc) - (r - qr))).mean(), "lacks the sigmoid"),
        (lambda c, r, qc, qr, b: -F.logsigmoid((b * ((c - qc) - (r - qr))).mean()), "before the sigmoid"),
        (
            lambda c, r, qc, qr, b: dpo(*((t / q).log() for t, q in ((c, qc), (r, qr))), 0 * qc, 0 * qr, b),
            "for chances",
        ),
        (lambda c, r, qc, qr, b: -torch.sigmoid(b * ((c - qc) - (r - qr))).log().mean(), "its logarithm is lost"),
        (lambda c, r, qc, qr, b: -F.logsigmoid(b * ((c - qc) - (r - qr))), "a loss for each pair"),
        (lambda c, r, qc, qr, b: dpo(c, r, qc, qr, b) * 1.5, "asked for is"),
        (in_place, "work on copies"),
        (lambda c, r, qc, qr, b: None, "must be a number"),
    ],
}
