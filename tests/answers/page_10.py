"""Answers to the exercises of page 10, sampling."""

import math

import numpy as np
import torch
import torch.nn.functional as F

# The temperature for a wish


def by_factors(logits, p, low=1e-6, high=1e6, turn=False, top=lambda q: q.max(), result=lambda t: t, rounds=200):
    """Halves on the scale of factors; the rest are parts that can be replaced by wrong ones."""
    z = logits.double() - logits.max()
    for _ in range(rounds):
        middle = math.sqrt(low * high)
        if (top(F.softmax(z / middle, dim=-1)) > p) != turn:
            low = middle
        else:
            high = middle
    return result(middle)


def by_inverse(logits, p):
    """Halves an interval of 1 / temperature, in NumPy."""
    z = logits.numpy().astype(float)
    z = z - z.max()
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 / np.exp(middle * z).sum() < p else (low, middle)
    return 1 / middle


def by_doubling(logits, p):
    """Finds an interval first; a tensor is returned."""

    def chance(t):
        return ((logits - logits.max()) / t).softmax(-1).max()

    low = high = torch.tensor(1.0)
    while chance(low) < p:
        low = low / 2
    while chance(high) > p:
        high = high * 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) > p else (low, middle)
    return middle


def by_newton(logits, p):
    """Newton's method on ln(sum of the others' weights), as a function of 1 / temperature."""
    z = (logits.max() - logits).double().tolist()
    goal = 1 / p - 1
    z.remove(0.0)
    b = 0.0
    for _ in range(500):
        s = sum(math.exp(-b * d) for d in z)
        slope = -sum(d * math.exp(-b * d) for d in z) / s
        b -= (math.log(s) - math.log(goal)) / slope
    return 1 / b


def in_place(logits, p):
    logits -= logits.max()
    return by_factors(logits, p)


def without_the_shift(logits, p):
    low, high = 1e-6, 1e6
    for _ in range(200):
        middle = math.sqrt(low * high)
        e = (logits / middle).exp()
        low, high = (middle, high) if e.max() / e.sum() > p else (low, middle)
    return middle if e.isfinite().all() else math.nan


# The nucleus


def nucleus(
    logits,
    p,
    chances=lambda z: F.softmax(z, dim=-1),
    descending=True,
    hidden=lambda ranked, p: ranked.cumsum(-1) - ranked >= p,
    least=1,
    finish=lambda kept: kept / kept.sum(),
    back=True,
):
    """Sorted and cut; its parts can be replaced by wrong ones."""
    ranked, ids = chances(logits).sort(descending=descending, stable=True)
    out = hidden(ranked, p) if p < 1 else torch.zeros_like(ranked, dtype=torch.bool)
    out[:least] = False
    kept = ranked.masked_fill(out, 0.0)
    return finish(torch.zeros_like(kept).scatter(-1, ids, kept) if back else kept)


def nucleus_by_loops(logits, p):
    z = logits.tolist()
    weights = [math.exp(value - max(z)) for value in z]
    left = sorted(range(len(z)), key=lambda i: (-z[i], i))
    kept, held = {}, 0.0
    while left and (not kept or held < p * sum(weights) or p == 1):
        i = left.pop(0)
        kept[i] = weights[i]
        held += weights[i]
    return [kept.get(i, 0.0) / held for i in range(len(z))]


def nucleus_by_hiding(logits, p):
    order = logits.argsort(descending=True, stable=True)
    before = F.pad(F.softmax(logits.double(), dim=-1)[order].cumsum(-1)[:-1], (1, 0))
    hide = before >= p if p < 1 else torch.zeros(len(logits), dtype=torch.bool)
    hide[0] = False
    masked = logits.double().clone()
    masked[order[hide]] = -math.inf
    return masked.softmax(-1)


def nucleus_by_numpy(logits, p):
    z = logits.numpy().astype(np.float64)
    chances = np.exp(z - z.max())
    chances /= chances.sum()
    order = np.argsort(-z, kind="stable")
    count = len(z) if p == 1 else min(int(np.searchsorted(np.cumsum(chances[order]), p)) + 1, len(z))
    out = np.zeros_like(chances)
    out[order[:count]] = chances[order[:count]]
    return out / out.sum()


def own_chance(logits, p, threshold):
    chances = F.softmax(logits, dim=-1)
    kept = chances.masked_fill(chances < threshold(chances, p), 0.0)
    kept[chances.argmax()] = chances.max()
    return kept / kept.sum()


def share_of_the_tokens(logits, p):
    count = max(1, math.ceil(p * len(logits)))
    return nucleus(logits, 0, hidden=lambda ranked, _: torch.arange(len(ranked)) >= count)


def higher_ids(logits, p):
    return nucleus(logits.flip(0), p).flip(0)


def tied_with_the_last(logits, p):
    least = logits[nucleus(logits, p) > 0].min()
    return logits.masked_fill(logits < least, -math.inf).softmax(-1)


def sums_of_logits(logits, p):
    ranked, ids = logits.sort(descending=True, stable=True)
    hidden = ranked.cumsum(-1) - ranked >= p
    hidden[0] = False
    return torch.empty_like(logits).scatter(-1, ids, ranked.masked_fill(hidden, -math.inf)).softmax(-1)


def nucleus_in_place(logits, p):
    result = nucleus(logits, p)
    logits.masked_fill_(result == 0, -math.inf)
    return result


# A greedy loop


def period(tokens, numbers=lambda length: range(1, length // 2 + 1), none=0):
    for n in numbers(len(tokens)):
        if tokens[-n:] == tokens[-2 * n : -n]:
            return n
    return none


def period_by_comparing(tokens):
    N = len(tokens)
    for n in range(1, N):
        if 2 * n <= N and all(tokens[N - 1 - i] == tokens[N - 1 - i - n] for i in range(n)):
            return n
    return 0


def period_by_numpy(tokens):
    a = np.array(tokens, dtype=int)
    for n in range(1, len(a) // 2 + 1):
        if (a[-n:] == a[-2 * n : len(a) - n]).all():
            return np.int64(n)
    return np.int64(0)


def period_by_tensor(tokens):
    t = torch.tensor(tokens, dtype=torch.long)
    found = [n for n in range(1, len(t) // 2 + 1) if torch.equal(t[-2 * n :][:n], t[-n:])]
    return torch.tensor(min(found, default=0))


def anywhere(tokens):
    for n in range(1, len(tokens) // 2 + 1):
        if any(tokens[i : i + n] == tokens[i + n : i + 2 * n] for i in range(len(tokens) - 2 * n + 1)):
            return n
    return 0


def last_token_before(tokens):
    for n in range(1, len(tokens)):
        if tokens[-1] == tokens[-1 - n]:
            return n
    return 0


def not_within(tokens):
    for n in range(1, len(tokens)):
        if all(a == b for a, b in zip(tokens[::-1][:n], tokens[::-1][n : 2 * n], strict=False)):
            return n
    return 0


def how_often(tokens):
    n, count = period(tokens), 1
    while n and (count + 1) * n <= len(tokens) and tokens[-n:] == tokens[len(tokens) - (count + 1) * n :][:n]:
        count += 1
    return count if n else 0


def thrice(tokens):
    for n in range(1, len(tokens) // 3 + 1):
        if tokens[-n:] == tokens[-2 * n : -n] == tokens[-3 * n : -2 * n]:
            return n
    return 0


def period_in_place(tokens):
    tokens.reverse()
    return next((n for n in range(1, len(tokens) // 2 + 1) if tokens[:n] == tokens[n : 2 * n]), 0)


def nucleus_without_the_case_of_1(logits, p):
    ranked, ids = F.softmax(logits, dim=-1).sort(descending=True, stable=True)
    keep = ranked.cumsum(0) - ranked < p
    keep[0] = True
    ranked = torch.where(keep, ranked, torch.zeros(()))
    return torch.zeros_like(logits).scatter(0, ids, ranked / ranked.sum())


RIGHT = {
    "temperature": [by_factors, by_inverse, by_doubling, by_newton],
    "top-p": [nucleus, nucleus_by_loops, nucleus_by_hiding, nucleus_by_numpy],
    "greedy-loop": [period, period_by_comparing, period_by_numpy, period_by_tensor],
}

# Plausible wrong answers, each with words that its message must hold.
WRONG = {
    "temperature": [
        (lambda z, p: by_factors(z, p, result=lambda t: 1 / t), "1 divided by the temperature"),
        (lambda z, p: by_factors(z, 0.5), "ignores p"),
        (lambda z, p: by_factors(z, p, turn=True), "temperature is needed"),
        (lambda z, p: by_factors(z, p, low=0.1, high=10), "must reach further"),
        (lambda z, p: by_factors(z, p, low=1e-3, high=1e3, rounds=10), "only near"),
        (lambda z, p: by_factors(z, p, top=lambda q: 1 - q.max(), turn=True), "all the others together"),
        (lambda z, p: (z.topk(2).values @ torch.tensor([1.0, -1.0])) / math.log(p / (1 - p)) if p != 0.5 else 1.0,
         "only the two highest"),
        (lambda z, p: z.softmax(-1).max().log() / math.log(p), "no longer sum to 1"),
        (lambda z, p: z.softmax(-1).max(), "asked for is a temperature"),
        (lambda z, p: p, "the chance itself: asked for is the temperature"),
        (lambda z, p: 1.0, "for every row and every p"),
        (lambda z, p: -by_factors(z, p), "above 0"),
        (lambda z, p: by_factors(z, p, result=math.log), "the logarithm"),
        (in_place, "in place"),
        (without_the_shift, "subtract the highest"),
        (lambda z, p: (z / p).softmax(-1), "must be a number"),
    ],
    "top-p": [
        (nucleus_without_the_case_of_1, "for a p of 1 tokens are missing"),
        (lambda z, p: nucleus(z, p, hidden=lambda r, p: r.cumsum(-1) > p), "reaches p is missing"),
        (lambda z, p: nucleus(z, p, hidden=lambda r, p: r.cumsum(-1) - r > p), "exactly p"),
        (lambda z, p: nucleus(z, p, descending=False), "descending=True"),
        (lambda z, p: own_chance(z, p, lambda q, p: p), "own chance is p or more"),
        (lambda z, p: own_chance(z, p, lambda q, p: 1 - p), "1 - p or more"),
        (lambda z, p: own_chance(z, p, lambda q, p: p * q.max()), "min-p"),
        (lambda z, p: nucleus(z, p, finish=lambda kept: kept), "not divided by its sum"),
        (lambda z, p: nucleus(z, p, hidden=lambda r, p: r.cumsum(-1) > p, least=0), "keeps nothing"),
        (lambda z, p: nucleus(z, p, back=False), "order of their rank"),
        (lambda z, p: nucleus(z, p, finish=lambda kept: kept.masked_fill(kept == 0, -math.inf).softmax(-1)),
         "a second time: divide"),
        (lambda z, p: nucleus(z, p, finish=lambda kept: kept.softmax(-1)), "e to 0 is 1"),
        (sums_of_logits, "add up the chances"),
        (share_of_the_tokens, "share of the number of tokens"),
        (lambda z, p: z.softmax(-1), "ignores p"),
        (lambda z, p: nucleus(z, 0), "only the likeliest token is kept"),
        (higher_ids, "stable=True"),
        (tied_with_the_last, "all tokens that tie"),
        (nucleus_in_place, "in place"),
        (lambda z, p: nucleus(z, p).log(), "returned logits"),
        (lambda z, p: nucleus(z, p)[:3], "a chance for each"),
        (lambda z, p: nucleus(z, p * 0.8), "keeps too few"),
    ],
    "greedy-loop": [
        (lambda t: period(t, numbers=lambda N: range(N // 2, 0, -1)), "the shortest"),
        (anywhere, "twice anywhere"),
        (lambda t: period(t[::-1]), "the beginning of the list"),
        (last_token_before, "not only the last"),
        (lambda t: next((n for n in range(1, len(t) // 2 + 1) if len(t) % n == 0 and t == t[:n] * (len(t) // n)), 0),
         "the whole list"),
        (thrice, "three times"),
        (not_within, "both have n tokens"),
        (how_often, "how often"),
        (lambda t: period(t, numbers=lambda N: range(1, N // 2)), "half of the list"),
        (lambda t: period(t, numbers=lambda N: range(2, N // 2 + 1)), "n = 1"),
        (lambda t: next((n for n in range(1, len(t) // 2 + 1) if t[-n:] == t[-2 * n : -n][::-1]), 0), "backwards"),
        (lambda t: 2 * period(t), "both pieces together"),
        (lambda t: period(t, none=None), "the answer is then 0"),
        (lambda t: period(t, none=-1), "got -1"),
        (lambda t: t[-period(t) :] if period(t) else [], "not the piece"),
        (period_in_place, "in place"),
        (lambda t: 3, "are not those before them"),
    ],
}  # fmt: skip
