"""Answers to the exercises of page 18."""

import math

import numpy as np
import torch


def operations(L, C, T, V):
    return 6 * (12 * L * C**2 + V * C) + 12 * L * T * C


def operations_by_products(L, C, T, V):
    """Each product of a row of n numbers with a matrix (n, m) is 2 n m, and three of its kind come in training."""
    products = [(C, 3 * C), (C, T), (T, C), (C, C), (C, 4 * C), (4 * C, C)] * L + [(C, V)]
    return 3 * sum(2 * n * m for n, m in products)


def operations_as_tensor(L, C, T, V):
    return torch.tensor(float(operations(L, C, T, V)), dtype=torch.float64)


def attainable(operations, moved, peak, bandwidth):
    return min(peak, bandwidth * operations / moved)


def attainable_by_time(operations, moved, peak, bandwidth):
    return operations / max(operations / peak, moved / bandwidth)


def attainable_by_ridge(operations, moved, peak, bandwidth):
    ridge = peak / bandwidth
    return np.float64(peak if operations / moved > ridge else operations / moved * bandwidth)


def rounded(x):
    if x == 0:
        return x
    unit = 2.0 ** (math.floor(math.log2(abs(x))) - 7)
    return round(x / unit) * unit


def rounded_by_torch(x):
    return torch.tensor(x).bfloat16()


def rounded_by_bits(x):
    bits = int(np.float32(x).view(np.uint32))
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return np.uint32(bits).view(np.float32)


def cut(x):
    return np.uint32(int(np.float32(x).view(np.uint32)) & 0xFFFF0000).view(np.float32)


def floored(x):
    unit = 2.0 ** (math.floor(math.log2(abs(x))) - 7) if x else 1.0
    return math.floor(x / unit) * unit


def half_up(x):
    return np.uint32((int(np.float32(x).view(np.uint32)) + 0x8000) & 0xFFFF0000).view(np.float32)


def combine(gradients, counts):
    return sum(n * g for g, n in zip(gradients, counts, strict=True)) / sum(counts)


def combine_by_einsum(gradients, counts):
    weights = torch.tensor(counts, dtype=torch.float32) / sum(counts)
    return torch.einsum("n,n...->...", weights, torch.stack(gradients))


def combine_by_rows(gradients, counts):
    """As if each row had the mean of its share for a gradient."""
    rows = [g for g, n in zip(gradients, counts, strict=True) for _ in range(n)]
    return torch.stack(rows).mean(dim=0).numpy()


def combine_in_place(gradients, counts):
    for g, n in zip(gradients, counts, strict=True):
        g *= n
    return sum(gradients) / sum(counts)


RIGHT = {
    "training-operations": [operations, operations_by_products, operations_as_tensor],
    "roofline": [attainable, attainable_by_time, attainable_by_ridge],
    "round-to-bfloat16": [rounded, rounded_by_torch, rounded_by_bits],
    "share-a-batch": [combine, combine_by_einsum, combine_by_rows],
}

# Plausible wrong answers, each with words that its message must hold.
WRONG = {
    "training-operations": [
        (lambda L, C, T, V: operations(L, C, T, V) / 3, "only the way forward"),
        (lambda L, C, T, V: operations(L, C, T, V) * 2 / 3, "the way back is counted once"),
        (lambda L, C, T, V: operations(L, C, T, V) / 2, "multiply-adds are counted"),
        (lambda L, C, T, V: 6 * (12 * L * C**2 + V * C), "attention's own products are missing"),
        (lambda L, C, T, V: 6 * (12 * L * C**2 + V * C) + 6 * L * T * C, "one of attention's two products"),
        (lambda L, C, T, V: 6 * (12 * L * C**2 + V * C) + 4 * L * T * C, "forward only"),
        (lambda L, C, T, V: 6 * (12 * L * C**2 + V * C) + 12 * T * C, "attention is counted for one block"),
        (lambda L, C, T, V: 6 * (12 * C**2 + V * C) + 12 * L * T * C, "the matrices of one block"),
        (lambda L, C, T, V: 6 * (12 * L * C**2 + V * C) + 12 * L * T * T * C, "a whole window"),
        (lambda L, C, T, V: 6 * (12 * L * C**2 + V * C) + 6 * L * (T + 1) * C, "hidden scores"),
        (lambda L, C, T, V: 72 * L * C**2 + 12 * L * T * C, "the unembedding is missing"),
        (lambda L, C, T, V: operations(L, C, T, V) + 6 * (V + T) * C, "looking up a row"),
        (lambda L, C, T, V: 6 * (4 * L * C**2 + V * C) + 12 * L * T * C, "the MLP is missing"),
        (lambda L, C, T, V: 6 * (8 * L * C**2 + V * C) + 12 * L * T * C, "the matrices of attention are missing"),
        (lambda L, C, T, V: T * operations(L, C, T, V), "the answer is for one token"),
        (lambda L, C, T, V: operations(L, C, T, V) + 6 * (V + T + 10 * L + 2) * C, "all parameters are counted"),
        (lambda L, C, T, V: 6 * (12 * L * C**2 + (2 * V + T + 10 * L + 2) * C), "6 N with all parameters"),
        (lambda L, C, T, V: 6 * (12 * L * C**2 + 10 * L * C + V * C) + 12 * L * T * C, "biases and norms"),
        (lambda L, C, T, V: operations(L, C, T, V) + 60 * L * C + 12 * C, "biases and norms"),
        (lambda L, C, T, V: 6 * (12 * L * C**2 + V * C) + 24 * L * T * C, "are counted twice"),
        (lambda L, C, T, V: operations(L, C, T, V) + 1, "all products together take"),
        (lambda L, C, T, V: "many", "must be a number"),
        (lambda L, C: L * C, "must take (L, C, T, V)"),
    ],
    "roofline": [
        (lambda n, m, p, b: max(p, b * n / m), "the higher of the two"),
        (lambda n, m, p, b: p, "the peak is always reached"),
        (lambda n, m, p, b: b * n / m, "the memory is always the limit"),
        (lambda n, m, p, b: min(p, b * m / n), "upside down"),
        (lambda n, m, p, b: max(n / p, m / b), "you return seconds"),
        (lambda n, m, p, b: min(n / p, m / b), "the lower of two times"),
        (lambda n, m, p, b: min(p / b, n / m), "those of the corner"),
        (lambda n, m, p, b: n / (n / p + m / b), "added up"),
        (lambda n, m, p, b: n / m, "operations for each byte"),
        (lambda n, m, p, b: min(p, b), "bandwidth itself"),
        (lambda n, m, p, b: attainable(n, m, p, b) / p, "the share of the peak"),
        (lambda n, m, p, b: 0.5 * attainable(n, m, p, b), "the roof stands at"),
        (lambda n, m, p, b: n / 0, "ZeroDivisionError"),
    ],
    "round-to-bfloat16": [
        (cut, "cut off"),
        (half_up, "away from zero"),
        (lambda x: torch.tensor(x).half().item(), "the nearest number of bfloat16 is"),
        (lambda x: x, "nothing is rounded"),
        (lambda x: round(x * 128) / 128, "digits behind the point"),
        (lambda x: math.copysign(rounded(x), 1), "the sign is lost"),
        (lambda x: x if x == 0 else round(x / (u := 2.0 ** (math.floor(math.log2(abs(x))) - 6))) * u, "seven binary"),
        (lambda x: x if x == 0 else round(x / (u := 2.0 ** (math.floor(math.log2(abs(x))) - 8))) * u, "nine binary"),
        (
            lambda x: x if x == 0 else math.floor(x / (u := 2.0 ** (math.floor(math.log2(abs(x))) - 7))) * u,
            "round down",
        ),
        (lambda x: float(round(x)), "a whole number"),
        (lambda x: float(f"{x:.8g}"), "eight decimal digits"),
        (lambda x: x if x == 0 else round(x / (u := 2.0 ** (int(math.log2(abs(x))) - 7))) * u, "cut towards zero"),
        (lambda x: math.log2(x), "ValueError"),
        (lambda x: str(x), "must be a number"),
    ],
    "share-a-batch": [
        (lambda gs, ns: sum(gs) / len(gs), "the plain mean"),
        (lambda gs, ns: sum(gs), "added up"),
        (lambda gs, ns: sum(n * g for g, n in zip(gs, ns, strict=True)), "not divided by the number of all rows"),
        (lambda gs, ns: sum(n * g for g, n in zip(gs, ns, strict=True)) / len(ns), "by the number of shares"),
        (lambda gs, ns: sum(g / n for g, n in zip(gs, ns, strict=True)) / sum(1 / n for n in ns), "upside down"),
        (lambda gs, ns: sum(n * g for g, n in zip(gs, ns, strict=True)) / max(ns), "of the largest share"),
        (lambda gs, ns: sum(gs) / sum(ns), "weigh it with its rows first"),
        (lambda gs, ns: gs[0], "the first share"),
        (combine_in_place, "changes a gradient"),
        (lambda gs, ns: combine(gs, ns).sum(), "must have the shape"),
        (lambda gs, ns: combine(gs, ns) + 1e-3, "is off by up to"),
        (lambda gs, ns: combine(gs, ns[::-1]), "is off by up to"),
        (lambda gs, ns: None, "must be a tensor"),
    ],
}
