"""The checks of page 18, scaling up."""

import math

import torch

from gptbook.exercises.answers import Wrong, apart, ask, first_off, need_function, number, settled
from gptbook.exercises.tensors import as_tensor, close, kept


def _near(a, b) -> bool:
    return math.isfinite(a) and abs(a - b) <= 1e-6 * abs(b)


# --- training-operations ----------------------------------------------------------------------------------------------


def _operations(L, C, T, V, *, each=6, block=12, blocks=None, head=1, pair=12, layers=None, tables=0):
    """Operations of training on one token, with places where a wrong version puts something else."""
    matrices = block * (L if blocks is None else blocks) * C**2 + head * V * C + tables * (V * C + T * C)
    return each * matrices + pair * (L if layers is None else layers) * T * C


def _other(**changes):
    return lambda *case: _operations(*case, **changes)


OPERATIONS_MISTAKES = (
    ("only the way forward is counted: the way back takes twice as much again, so three times in all",
     _other(each=2, pair=4)),
    ("the way back is counted once: it takes two products for each one forward, by the weights and by the inputs",
     _other(each=4, pair=8)),
    ("only the way back is counted: forward comes on top", _other(each=4, pair=12)),
    ("multiply-adds are counted: a multiplication and an addition are two operations", _other(each=3, pair=6)),
    ("attention's own products are missing: scores and weighted sums, for each of the T tokens of the window",
     _other(pair=0)),
    ("one of attention's two products is missing: scores, and weighted sums", _other(pair=6)),
    ("attention's own products are counted forward only: they have a way back too", _other(pair=4)),
    ("attention is counted for one block: each of the L has its own", _other(layers=1)),
    ("the matrices of one block are counted: there are L", _other(blocks=1)),
    ("attention is counted for a whole window: the answer is for one token, which looks at T",
     lambda L, C, T, V: _operations(L, C, T, V, pair=12 * T)),
    ("hidden scores are left out: the code computes them before it hides them, so a token pays for all T",
     lambda L, C, T, V: _operations(L, C, T, V, pair=0) + 6 * L * (T + 1) * C),
    ("the unembedding is missing: V C weights", _other(head=0)),
    ("the tables of the embedding are counted: looking up a row multiplies nothing", _other(tables=1)),
    ("all parameters are counted, tables, biases and norms too: only weights of products count",
     lambda L, C, T, V: _operations(L, C, T, V, tables=1) + 6 * (10 * L * C + 2 * C)),
    ("that is 6 N with all parameters: tables, biases and norms are in no product, and attention has some without any",
     lambda L, C, T, V: _operations(L, C, T, V, tables=1, pair=0) + 6 * (10 * L * C + 2 * C)),
    ("biases and norms are counted: only weights of products count",
     lambda L, C, T, V: _operations(L, C, T, V) + 6 * 10 * L * C),
    ("biases and norms are counted: only weights of products count",
     lambda L, C, T, V: _operations(L, C, T, V) + 6 * (10 * L * C + 2 * C)),
    ("attention's two products are counted twice: each takes 2 T C operations forward", _other(pair=24)),
    ("the MLP is missing: 8 C² in each block, beside the 4 C² of attention", _other(block=4)),
    ("the matrices of attention are missing: 4 C² in each block, beside the 8 C² of the MLP", _other(block=8)),
    ("the projection of attention is missing: C² in each block", _other(block=11)),
    ("queries, keys and values are counted as one matrix: they are three", _other(block=10)),
    ("a whole window is counted: the answer is for one token", lambda L, C, T, V: T * _operations(L, C, T, V)),
)  # fmt: skip


def training_operations(operations) -> str:
    """operations(L, C, T, V) -> multiplications and additions that training spends on one token."""
    need_function(operations, "operations(L, C, T, V)")
    cases = [(2, 8, 5, 7), (3, 6, 4, 11), (4, 128, 64, 65), (6, 384, 256, 65), (1, 10, 32, 3)]
    got = [number(ask(operations, f"operations{c}", *c), f"operations{c}") for c in cases]
    right = [_operations(*case) for case in cases]
    if settled(got, right, cases, OPERATIONS_MISTAKES, _near):
        return f"every multiplication and every addition, in {len(cases)} cases"
    case, mine, true = first_off(cases, got, right, _near)
    raise Wrong(f"operations{case} is {mine:,.10g}, and all products together take {true:,}")


# --- roofline ---------------------------------------------------------------------------------------------------------


def _roof(operations, moved, peak, bandwidth):
    return min(peak, bandwidth * operations / moved)


ROOF_MISTAKES = (
    ("you take the higher of the two limits: work can go no faster than the lower one allows",
     lambda n, m, p, b: max(p, b * n / m)),
    ("the peak is always reached: where there are few operations for each byte, the memory is the limit",
     lambda n, m, p, b: p),
    ("the memory is always the limit: no product goes faster than the peak", lambda n, m, p, b: b * n / m),
    ("the ratio is upside down: operations for each byte moved, times the bytes that come in a second",
     lambda n, m, p, b: min(p, b * m / n)),
    ("you return seconds: the operations by them are the rate", lambda n, m, p, b: max(n / p, m / b)),
    ("computing and moving are added up: they go on at the same time, and the slower of the two counts",
     lambda n, m, p, b: n / (n / p + m / b)),
    ("you return the lower of two times, in seconds: asked for is a rate, and the longer time decides",
     lambda n, m, p, b: min(n / p, m / b)),
    ("you return operations for each byte, at most those of the corner: times the bandwidth, it is the rate",
     lambda n, m, p, b: min(p / b, n / m)),
    ("you return operations for each byte: times the bandwidth, that is one of the two limits",
     lambda n, m, p, b: n / m),
    ("the bandwidth has no effect: it times the operations for each byte is one of the two limits",
     lambda n, m, p, b: min(p, n / m)),
    ("you compare with the bandwidth itself: it is in bytes, and the peak in operations",
     lambda n, m, p, b: min(p, b)),
    ("the operations have no effect", lambda n, m, p, b: min(p, b / m)),
    ("you return the share of the peak: times the peak, it is the rate", lambda n, m, p, b: _roof(n, m, p, b) / p),
)  # fmt: skip


def roofline(attainable) -> str:
    """attainable(operations, moved, peak, bandwidth) -> operations a second that memory and processor allow."""
    need_function(attainable, "attainable(operations, moved, peak, bandwidth)")
    cases = [
        (2e6, 1e6, 1e11, 2e10), (2e9, 1e6, 1e11, 2e10), (1e5, 4e5, 1e11, 2e10), (3e6, 1e6, 5e10, 1e10),
        (7e6, 1e6, 5e10, 1e10), (1e12, 3e9, 3e14, 1.5e12), (3.0, 4.0, 5.0, 2.0),
    ]  # fmt: skip
    got = []
    for case in cases:
        what = f"attainable({', '.join(f'{n:g}' for n in case)})"
        got.append(number(ask(attainable, what, *case), what))
    right = [_roof(*case) for case in cases]
    if settled(got, right, cases, ROOF_MISTAKES, _near):
        return f"on the roof in {len(cases)} cases, under both of its halves"
    case, mine, true = first_off(cases, got, right, _near)
    told = apart(mine, true)
    raise Wrong(f"attainable({', '.join(f'{n:g}' for n in case)}) is {told[0]}, and the roof stands at {told[1]}")


# --- round-to-bfloat16 ------------------------------------------------------------------------------------------------


def _rounded(x, digits=8, way=round):
    """x to so many binary digits; `way` makes a whole number of a number between two."""
    if x == 0:
        return 0.0
    _, exponent = math.frexp(x)
    unit = 2.0 ** (exponent - digits)
    return float(way(x / unit)) * unit


def _away(n):
    return math.copysign(math.floor(abs(n) + 0.5), n)


def _half_down(n):
    return math.copysign(math.ceil(abs(n) - 0.5), n)


def _cut_exponent(x):
    if x == 0:
        return 0.0
    unit = 2.0 ** (int(math.log2(abs(x))) - 7)
    return round(x / unit) * unit


ROUND_MISTAKES = (
    ("the last bits are cut off, and not rounded: take the nearer of the two neighbours",
     lambda x: _rounded(x, way=math.trunc)),
    ("you always round down: take the nearer of the two neighbours", lambda x: _rounded(x, way=math.floor)),
    ("you always round up: take the nearer of the two neighbours", lambda x: _rounded(x, way=math.ceil)),
    ("a number in the middle goes away from zero: it goes to the neighbour whose last bit is 0",
     lambda x: _rounded(x, way=_away)),
    ("a number in the middle goes towards zero: it goes to the neighbour whose last bit is 0",
     lambda x: _rounded(x, way=_half_down)),
    ("a number in the middle goes up: it goes to the neighbour whose last bit is 0",
     lambda x: _rounded(x, way=lambda n: math.floor(n + 0.5))),
    ("seven binary digits are kept: the seven bits behind the point come after a leading one, so eight",
     lambda x: _rounded(x, 7)),
    ("nine binary digits are kept: there are eight, and the leading one is among them", lambda x: _rounded(x, 9)),
    ("eleven binary digits are kept: that is the other type with 16 bits, float16", lambda x: _rounded(x, 11)),
    ("eight decimal digits are kept: they are binary ones", lambda x: float(f"{x:.8g}")),
    ("the power of two is wrong for numbers below 1: the logarithm was cut towards zero, and must be rounded down",
     _cut_exponent),
    ("nothing is rounded: the number came back as it was", lambda x: x),
    ("digits behind the point are counted, whatever the size of the number: count from its first binary digit",
     lambda x: round(x * 128) / 128),
    ("you round to a whole number: count eight binary digits from the first that is not 0", lambda x: float(round(x))),
    ("the sign is lost", lambda x: abs(_rounded(x))),
)  # fmt: skip


def round_to_bfloat16(rounded) -> str:
    """rounded(x) -> the number nearest to x that bfloat16 has, of two equally near ones the even one."""
    need_function(rounded, "rounded(x)")
    cases = [
        1.0, -3.0, 1 + 1 / 128, 1 + 1 / 256, 1 + 3 / 256, 1 + 1 / 512, 1 + 3 / 512, -(1 + 5 / 256), -(1 + 3 / 256),
        257.0, 259.0, 1000.0, 0.1, -0.3, 1.9999, 3.14159, 1e-20, 123456.0, 6.02e23, 0.0,
    ]  # fmt: skip
    cases = [(torch.tensor(x, dtype=torch.float32).item(),) for x in cases]
    got = [number(ask(rounded, f"rounded({x:.9g})", x), f"rounded({x:.9g})") for (x,) in cases]
    right = [_rounded(x) for (x,) in cases]

    def same(a, b):
        return a == b

    if settled(got, right, cases, ROUND_MISTAKES, same):
        return f"the nearest of bfloat16's numbers for {len(cases)} numbers, in the middle the even one"
    (x,), mine, true = first_off(cases, got, right, same)
    raise Wrong(f"rounded({x:.9g}) is {mine:.9g}, and the nearest number of bfloat16 is {true:.9g}")


# --- share-a-batch ----------------------------------------------------------------------------------------------------


def _combined(gradients, counts):
    return sum(n * g.double() for g, n in zip(gradients, counts, strict=True)) / sum(counts)


COMBINED_MISTAKES = (
    ("the plain mean is taken: a share with more rows counts for more", lambda gs, ns: sum(gs) / len(gs)),
    ("the gradients are added up: each is a mean already, and so must the answer be", lambda gs, ns: sum(gs)),
    ("the weighted gradients are not divided by the number of all rows",
     lambda gs, ns: sum(n * g for g, n in zip(gs, ns, strict=True))),
    ("the weighted gradients are divided by the number of shares: divide by that of all rows",
     lambda gs, ns: sum(n * g for g, n in zip(gs, ns, strict=True)) / len(ns)),
    ("the weights are upside down: a share with more rows counts for more, not for less",
     lambda gs, ns: sum(g / n for g, n in zip(gs, ns, strict=True)) / sum(1 / n for n in ns)),
    ("the weighted gradients are divided by the rows of the largest share: divide by the number of all rows",
     lambda gs, ns: sum(n * g for g, n in zip(gs, ns, strict=True)) / max(ns)),
    ("each gradient is divided by its rows: it is a mean over them already",
     lambda gs, ns: sum(g / n for g, n in zip(gs, ns, strict=True))),
    ("the sum is divided by the number of all rows: each gradient is a mean, so weigh it with its rows first",
     lambda gs, ns: sum(gs) / sum(ns)),
    ("the gradient of the first share is returned: all of them count", lambda gs, ns: gs[0]),
    ("the gradient of the largest share is returned: all of them count",
     lambda gs, ns: gs[max(range(len(ns)), key=lambda i: ns[i])]),
    ("the sum is scaled to length 1: nothing asks for that", lambda gs, ns: sum(gs) / sum(gs).norm()),
)  # fmt: skip


def share_a_batch(combine) -> str:
    """combine(gradients, counts) -> the mean gradient over all rows, from those of shares with so many rows each."""
    need_function(combine, "combine(gradients, counts)")
    random = torch.Generator().manual_seed(18)
    cases = [
        ([torch.randn(*shape, generator=random) for _ in counts], counts)
        for shape, counts in (((3,), [1, 3]), ((2, 4), [5, 2]), ((2, 2, 2), [4, 1, 2]), ((5,), [3, 3]), ((1,), [7]))
    ]
    got, right = [], []
    for gradients, counts in cases:
        what = f"combine({len(gradients)} gradients, {counts})"
        given, rows = [g.clone() for g in gradients], list(counts)
        result = ask(combine, what, given, rows)
        kept(given, gradients, f"{what} changes a gradient that it was given: make a new tensor")
        if rows != counts:
            raise Wrong(f"{what} changes the list of counts: only read it")
        result = as_tensor(result, what)
        if result.shape != gradients[0].shape:
            raise Wrong(
                f"{what} must have the shape of one gradient, {tuple(gradients[0].shape)}, got {tuple(result.shape)}"
            )
        got.append(result)
        right.append(_combined(gradients, counts))
    if settled(got, right, cases, COMBINED_MISTAKES, close):
        return f"the gradient of the whole batch, from equal and unequal shares, in {len(cases)} cases"
    (_, counts), mine, true = first_off(cases, got, right, close)
    off = (mine.double() - true).abs().max().item()
    raise Wrong(f"for shares of {counts} rows, your gradient is off by up to {off:.2g}")
