"""Answers to the exercises of page 3."""

import math

import numpy as np
import torch


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


RIGHT = {
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
}

# Plausible wrong answers, each with words that its message must hold.
WRONG = {
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
}  # fmt: skip
