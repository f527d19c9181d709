"""Answers to the exercises of page 7, positions."""

import math

import numpy as np
import torch
import torch.nn.functional as F


def added(idx, wte, wpe):
    return wte[idx] + wpe[: idx.size(1)]


def added_by_embedding(idx, wte, wpe):
    return F.embedding(idx, wte) + F.embedding(torch.arange(idx.shape[1]), wpe)


def added_by_loops(idx, wte, wpe):
    return [[(wte[token] + wpe[t]).tolist() for t, token in enumerate(row)] for row in idx]


def added_by_products(idx, wte, wpe):
    T = idx.size(1)
    one_hot = F.one_hot(idx, len(wte)).double()  # (B, T, V)
    places = torch.eye(T, len(wpe)).double()  # (T, block_size)
    return (one_hot @ wte.double() + places @ wpe.double()).numpy()


def added_in_place(idx, wte, wpe):
    wpe += 1
    return wte[idx] + wpe[: idx.size(1)] - 1


def added_with_a_fixed_length(idx, wte, wpe):
    return wte[idx] + wpe[:5]


def shuffles(x):
    generator = torch.Generator().manual_seed(11)
    return [torch.randperm(x.size(1), generator=generator) for _ in range(8)]


def finder(
    orders=shuffles,
    start=lambda: torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(2)),
    right=lambda before, order: before[:, order],
    same=lambda a, b: torch.allclose(a, b, atol=1e-4),
    move=lambda x, order: x[:, order],
    answer=lambda blind: blind,
):
    """A right finder whose parts can be replaced by wrong ones."""

    def order_blind(attention):
        x = start()
        before = attention(x)
        return answer(all(same(attention(move(x, order)), right(before, order)) for order in orders(x)))

    return order_blind


def blind_by_neighbour_swaps(attention):
    x = torch.rand(3, 6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    before = attention(x)
    for t in range(5):
        order = list(range(6))
        order[t], order[t + 1] = order[t + 1], order[t]
        if (attention(x[:, order]) - before[:, order]).abs().max() > 1e-6:
            return np.bool_(False)
    return np.bool_(True)


def blind_by_matrices(attention):
    worst = torch.tensor(0.0)
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(1, 5, 3, generator=generator)
        P = torch.eye(5)[torch.randperm(5, generator=generator)]  # (T, T)
        worst = torch.maximum(worst, (attention(P @ x) - P @ attention(x)).abs().max())
    return worst < 1e-4


def blind_by_fresh_inputs(attention, tolerance=1e-4, start=20, T=6):
    generator = torch.Generator().manual_seed(start)
    for _ in range(10):
        x, order = torch.randn(2, T, 3, generator=generator), torch.randperm(T, generator=generator)
        if (attention(x[:, order]) - attention(x)[:, order]).abs().max() > tolerance:
            return False
    return True


def blind_in_one_batch(attention):
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(7, 3, generator=generator)
    orders = torch.stack([torch.arange(7), *(torch.randperm(7, generator=generator) for _ in range(9))])
    out = attention(x[orders])  # (B, T, C), a row for each order
    return torch.allclose(out, out[0][orders], atol=1e-4)


def blind_and_the_same_twice(attention):
    x = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(8))
    return torch.equal(attention(x), attention(x)) and finder()(attention)


def swap(i, j):
    def orders(x):
        order = list(range(x.size(1)))
        order[i], order[j] = order[j], order[i]
        return [order]

    return orders


def moved_in_place(x, order):
    x[:] = x[:, order].clone()
    return x


def one_hot_keys(T, size=100.0):
    Wq = size * torch.eye(T).roll(-1, dims=1)  # the query of place t asks for place t - 1
    return Wq, torch.eye(T)


def one_hot_keys_shifted(T):
    Wk = np.zeros((T, T))
    for t in range(1, T):
        Wk[t - 1, t] = 30 * math.sqrt(T)
    return [np.eye(T).tolist(), Wk]


def on_a_circle(T):
    """Two numbers a place suffice: the query points to where the key of the place before it lies."""
    angle = math.pi * torch.arange(T).double() / T
    keys = torch.stack([angle.cos(), angle.sin()], dim=1)  # (T, 2)
    back = angle - math.pi / T
    return 1e5 * torch.stack([back.cos(), back.sin()], dim=1), keys


RIGHT = {
    "add-positions": [added, added_by_embedding, added_by_loops, added_by_products,
                      lambda *given: added(*given).half(), lambda *given: added(*given).bfloat16()],
    "order-blind": [
        finder(), blind_by_neighbour_swaps, blind_by_matrices, blind_by_fresh_inputs, blind_in_one_batch,
        finder(start=lambda: torch.randn(2, 7, 4, dtype=torch.float64)),
        finder(same=lambda a, b: torch.allclose(a, b, rtol=0, atol=9e-3)),
    ],
    "previous-token": [one_hot_keys, one_hot_keys_shifted, on_a_circle, lambda T: torch.stack(one_hot_keys(T)).half(),
                       lambda T: np.stack([part.numpy() for part in one_hot_keys(T)]),
                       lambda T: torch.stack(one_hot_keys(T)).bfloat16()],
}  # fmt: skip

WRONG = {
    "add-positions": [
        (lambda idx, wte, wpe: wte[idx], "positions are missing"),
        (lambda idx, wte, wpe: wpe[: idx.size(1)].repeat(idx.size(0), 1, 1), "tokens are missing"),
        (lambda idx, wte, wpe: wte[idx] + wpe[idx], "the rows of the tokens"),
        (lambda idx, wte, wpe: wpe[idx] + wte[: idx.size(1)], "tables are swapped"),
        (lambda idx, wte, wpe: wte[idx] + wpe[torch.arange(1, idx.size(1) + 1)], "count from 1"),
        (lambda idx, wte, wpe: wte[idx] * wpe[: idx.size(1)], "were multiplied"),
        (lambda idx, wte, wpe: torch.cat([wte[idx], wpe[: idx.size(1)].expand(len(idx), -1, -1)], -1), "side by side"),
        (lambda idx, wte, wpe: torch.cat([wte[idx], wpe[: idx.size(1)].expand(len(idx), -1, -1)], 1), "of their own"),
        (lambda idx, wte, wpe: wte[idx] + wpe[: idx.size(1)].flip(0), "run backwards"),
        (lambda idx, wte, wpe: wte[idx] + wpe[len(wpe) - idx.size(1) :], "last rows of wpe"),
        (lambda idx, wte, wpe: wte[idx] + wpe[torch.arange(len(idx))][:, None], "down the batch"),
        (lambda idx, wte, wpe: wte[idx] + wpe[0], "row 0 of wpe"),
        (lambda idx, wte, wpe: wte[idx] + wpe[idx.size(1) - 1], "the last token's position"),
        (lambda idx, wte, wpe: wte[idx] + wpe[idx.size(1)], "whose number is T"),
        (lambda idx, wte, wpe: (wte[idx] + wpe[: idx.size(1)]) / 2, "the mean of the two"),
        (lambda idx, wte, wpe: wte[idx] - wpe[: idx.size(1)], "were subtracted"),
        (lambda idx, wte, wpe: wte[idx] + wpe, "raised RuntimeError"),
        (lambda idx, wte, wpe: added(idx, wte, wpe) + 0.1, "must be wte[idx["),
        (added_in_place, "changes wpe in place"),
        (added_with_a_fixed_length, "raised RuntimeError"),
        (lambda idx, wte, wpe: added(idx, wte, wpe)[0], "must have the shape"),
        (lambda idx, wte, wpe: None, "is a return missing"),
    ],
    "order-blind": [
        (finder(orders=lambda x: [list(range(x.size(1)))]), "says True to every attention, blind or not: none of"),
        (lambda attention: True, "never called attention"),
        (lambda attention: bool(attention(torch.randn(2, 4, 3)).isfinite().all()), "one call shows nothing"),
        (finder(start=lambda: torch.ones(2, 6, 3)), "are alike"),
        (finder(start=lambda: torch.randn(2, 2, 3)), "fewer than three tokens"),
        (finder(right=lambda before, order: before), "row by row"),
        (finder(right=lambda before, order: before[:, order.argsort()]), "opposite order"),
        (finder(orders=swap(0, 1)), "the only new order that you tried is [1, 0, 2, 3, 4, 5, 6]"),
        (finder(orders=swap(1, 2)), "the only new order that you tried is [0, 2, 1, 3, 4, 5, 6]"),
        (finder(orders=lambda x: [torch.arange(x.size(1)).flip(0)]), "tried is [6, 5, 4, 3, 2, 1, 0]"),
        (finder(orders=lambda x: [(torch.arange(x.size(1)) + k) % x.size(1) for k in (1, 2, 3)]), "cyclic shifts"),
        (finder(same=torch.equal), "exact equality asks too much"),
        (finder(same=lambda a, b: torch.allclose(a, b, atol=0.5)), "show a difference of 0.02, and your"),
        (lambda attention: blind_by_fresh_inputs(attention, tolerance=0.05), "show a difference of 0.02, and your"),
        (finder(same=lambda a, b: torch.allclose(a, b, atol=100)), "blind or not: your inputs show a difference of"),
        (finder(orders=lambda x: [[3, 0, 5, 1, 4, 2]], start=lambda: torch.randn(2, 6, 3)),
         "marks the last place but one only: the only new order that you tried is [3, 0, 5, 1, 4, 2]"),
        (finder(orders=lambda x: [[2, 3, 1, 5, 0, 4]], start=lambda: torch.randn(2, 6, 3)),
         "always moves the tokens into the order [2, 3, 1, 5, 0, 4]: the only new order that you tried"),
        (finder(orders=lambda x: [[2, 3, 1, 5, 0, 4], [1, 5, 3, 4, 2, 0]], start=lambda: torch.randn(2, 6, 3)),
         "the 2 new orders that you tried show nothing, try others"),
        (blind_and_the_same_twice, "differs from call to call: it is blind to the order up to rounding, and exact"),
        (finder(same=lambda a, b: torch.allclose(a.sum(1), b.sum(1), atol=1e-4)), "sums over all tokens"),
        (finder(answer=lambda blind: not blind), "the wrong way round"),
        (finder(answer=lambda blind: "yes" if blind else "no"), "must return True or False"),
        (finder(move=moved_in_place), "in place"),
        (lambda attention: finder()(lambda x: attention(x[0])), "takes a tensor of shape (B, T, C)"),
    ],
    "previous-token": [
        (lambda T: (100 * torch.eye(T), torch.eye(T)), "likes itself best"),
        (lambda T: one_hot_keys(T)[::-1], "matches the key of place t + 1"),
        (lambda T: (100 * torch.eye(T).roll(1, dims=1), torch.eye(T)), "matches the key of place t + 1"),
        (lambda T: one_hot_keys(T, size=10.0), "enough without the division"),
        (lambda T: one_hot_keys(T, size=1.0), "too weakly"),
        (lambda T: one_hot_keys(T, size=-100.0), "the sign is wrong"),
        (lambda T: (torch.zeros(T, T), torch.eye(T)), "running mean"),
        (lambda T: one_hot_keys(T, size=math.inf), "are NaN"),
        (lambda T: (torch.eye(T).roll(-1, dims=1)[:-1], torch.eye(T)), "must have"),
        (lambda T: (torch.ones(T, 3), torch.eye(T)), "equally wide"),
        (lambda T: torch.eye(T).roll(-1, dims=1), "must return two matrices"),
        (lambda T: (100 * torch.eye(T).roll(-2, dims=1), torch.eye(T)), "likes place"),
        (lambda T: one_hot_keys(8), "must have 2 rows"),
    ],
}  # fmt: skip
