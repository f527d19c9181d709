"""The checks of page 10, sampling."""

import math

import torch

from gptbook.exercises.answers import Wrong, ask, explain, need_function, number, shown, whole_number
from gptbook.exercises.tensors import as_tensor

# The temperature for a wish -------------------------------------------------------------------------------------------


def _top_chance(row, temperature) -> float:
    """The chance of the highest logit of a list, in plain Python."""
    highest = max(row)
    return 1 / math.fsum(math.exp(max((z - highest) / temperature, -700)) for z in row)


def _temperature(row, p) -> float | None:
    """The temperature at which the highest logit has the chance p; None where there is none."""
    if not 1 / len(row) < p < 1:
        return None
    low, high = 1e-9, 1e9
    for _ in range(300):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _top_chance(row, middle) > p else (low, middle)
    return middle


def _of_two(row, p) -> float | None:
    first, second, *_ = sorted(row, reverse=True)
    return (first - second) / math.log(p / (1 - p)) if p > 0.5 else None


def _without_a_sum(row, p) -> float:
    return math.log(_top_chance(row, 1.0)) / math.log(p)


TEMPERATURE_MISTAKES = (
    ("this is 1 divided by the temperature: logits are divided by it, not multiplied",
     lambda z, p: 1 / _temperature(z, p)),
    ("your function ignores p: this is the temperature for one half", lambda z, p: _temperature(z, 0.5)),
    ("at this temperature all the others together have the chance p", lambda z, p: _temperature(z, 1 - p)),
    ("only the two highest logits were looked at: every token has a share in the sum", _of_two),
    ("the chance itself was raised to a power: after that the chances no longer sum to 1", _without_a_sum),
    ("this is the chance of the likeliest token at temperature 1: asked for is a temperature",
     lambda z, p: _top_chance(z, 1.0)),
    ("this is the chance itself: asked for is the temperature", lambda z, p: p),
    ("this is the logarithm of the temperature", lambda z, p: math.log(_temperature(z, p))),
)  # fmt: skip


def temperature(temperature_for) -> str:
    """temperature_for(logits, p): the temperature at which the highest of the logits (V,) has the chance p."""
    need_function(temperature_for, "temperature_for(logits, p)")
    generator = torch.Generator().manual_seed(10)
    book = (2 * torch.randn(65, generator=generator)).tolist()
    # Ordinary ones first; then some whose temperature is far from 1.
    cases = [
        ([math.log(4), math.log(2), 0.0], 0.8), (book, 0.5), (book, 0.9), ([1.0, 0.5, 3.0, -2.0], 0.4),
        ([1000.0, 990.0, 980.0], 0.5), ([0.0, 40.0], 0.51), ([0.01, 0.0], 0.99),
    ]  # fmt: skip
    got = []
    for row, p in cases:
        what = f"temperature_for({len(row)} logits, {p})"
        logits = torch.tensor(row)
        value = number(ask(temperature_for, what, logits, p), what)
        if not torch.equal(logits, torch.tensor(row)):
            raise Wrong("your function changes the logits in place: they must stay as they are")
        got.append(value)
    right = [_temperature(*case) for case in cases]
    fits = [_near(a, b) for a, b in zip(got, right, strict=True)]
    if all(fits):
        return f"right for {len(cases)} rows, at temperatures from {min(right):.2g} to {max(right):.3g}"
    if sentence := explain(got, cases, TEMPERATURE_MISTAKES, lambda a, b: b is None or _near(a, b)):
        raise Wrong(sentence)
    if len(set(got)) == 1:
        raise Wrong(f"your function returns {got[0]:g} for every row and every p")
    i = fits.index(False)
    (row, p), mine, true = cases[i], got[i], right[i]
    where = f"for {len(row)} logits and p = {p} you return {mine:.6g}"
    if math.isnan(mine):
        raise Wrong(f"{where}: subtract the highest logit before e to it gets too large")
    if not mine > 0:
        raise Wrong(f"{where}: a temperature is above 0")
    if all(fits[:4]):
        raise Wrong(f"{where}, and it is {true:.4g}: the search must reach further, or finer, than yours")
    if abs(mine / true - 1) < 0.05:
        raise Wrong(
            f"{where}, which is only near: the likeliest token then has the chance {_top_chance(row, mine):.5f}"
        )
    chance = "nearly 0" if mine < 1e-6 else f"{_top_chance(row, mine):.3f}"
    way = "lower" if mine > true else "higher"
    if mine < 1e-6:
        raise Wrong(f"{where}: so low a temperature leaves the likeliest token alone, asked for is a {way} one")
    raise Wrong(f"{where}: the likeliest token then has the chance {chance}, and a {way} temperature is needed")


def _near(a, b) -> bool:
    return math.isfinite(a) and math.isfinite(b) and abs(a - b) <= 1e-3 * abs(b)


# The nucleus ----------------------------------------------------------------------------------------------------------


def _softmax(row) -> list[float]:
    weights = [math.exp(z - max(row)) for z in row]
    return [w / math.fsum(weights) for w in weights]


def _shares(row, kept) -> list[float]:
    """The chances of the places `kept`, divided by their sum; 0 elsewhere."""
    chances = _softmax(row)
    total = math.fsum(chances[i] for i in kept)
    return [chances[i] / total if i in kept else 0.0 for i in range(len(row))]


def _ranking(row) -> list[int]:
    return sorted(range(len(row)), key=lambda i: -row[i])  # equal ones keep their order


def _upside_down(row) -> list[int]:
    return sorted(range(len(row)), key=lambda i: row[i])


def _while(row, order, goes_on) -> list[int]:
    """The first places of an order, as long as goes_on(what is held before, what is held with it)."""
    chances, kept, held = _softmax(row), [], 0.0
    for i in order:
        if not goes_on(held, held + chances[i]):
            break
        kept.append(i)
        held += chances[i]
    return kept


def _nucleus(row, p) -> list[float]:
    order = _ranking(row)
    kept = list(order) if p == 1 else _while(row, order, lambda before, _: before < p)
    return _shares(row, kept or order[:1])


def _with(order=_ranking, goes_on=lambda p: lambda before, _: before < p, finish=_shares):
    """The nucleus with one part replaced by a wrong one."""

    def wrong(row, p):
        ranked = order(row)
        return finish(row, _while(row, ranked, goes_on(p)) or ranked[:1])

    return wrong


def _over(row, kept_if) -> list[float]:
    chances = _softmax(row)
    kept = [i for i, chance in enumerate(chances) if kept_if(chance, max(chances))]
    return _shares(row, kept or _ranking(row)[:1])


def _in_ranked_order(row, kept):
    return sorted(_shares(row, kept), reverse=True)


def _softmax_again(row, kept):
    chances = _softmax(row)
    weights = [math.exp(chances[i]) if i in kept else 0.0 for i in range(len(row))]
    return [w / math.fsum(weights) for w in weights]


def _softmax_over_zeros(row, kept):
    chances = _softmax(row)
    return _softmax([chances[i] if i in kept else 0.0 for i in range(len(row))])


def _sums_of_logits(row, p):
    kept, held = [], 0.0
    for i in _ranking(row):
        if kept and held >= p:
            break
        kept.append(i)
        held += row[i]
    return _shares(row, kept)


def _ties_with_the_last(row, p):
    least = min(row[i] for i, share in enumerate(_nucleus(row, p)) if share)
    return _shares(row, [i for i, z in enumerate(row) if z >= least])


NUCLEUS_MISTAKES = (
    ("the token with which the sum reaches p is missing: without it what is kept holds less than p",
     _with(goes_on=lambda p: lambda _, held: held <= p)),
    ("one token too many is kept where the chances add up to exactly p: that is at least p already",
     _with(goes_on=lambda p: lambda before, _: before <= p)),
    ("the least likely tokens were kept: sort with descending=True", _with(order=_upside_down)),
    ("every token is kept whose own chance is p or more: asked for is what the likeliest hold together",
     lambda row, p: _over(row, lambda chance, _: chance >= p)),
    ("every token is kept whose own chance is 1 - p or more: asked for is what the likeliest hold together",
     lambda row, p: _over(row, lambda chance, _: chance >= 1 - p)),
    ("every token is kept whose chance is at least p times the highest: that is another rule, called min-p",
     lambda row, p: _over(row, lambda chance, highest: chance >= p * highest)),
    ("the logits were added up: add up the chances, after the softmax", _sums_of_logits),
    ("what is kept was not divided by its sum, so the chances sum to less than 1",
     _with(finish=lambda row, kept: [c if i in kept else 0.0 for i, c in enumerate(_softmax(row))])),
    ("the chances stand in the order of their rank: each must go back to the place of its token",
     _with(finish=_in_ranked_order)),
    ("the chances that are kept went through softmax a second time: divide them by their sum",
     _with(finish=_softmax_again)),
    ("chances of 0 went through softmax a second time, and e to 0 is 1: hide logits with -inf, or divide by the sum",
     _with(finish=_softmax_over_zeros)),
    ("p was taken as a share of the number of tokens: it is a sum of chances",
     lambda row, p: _shares(row, _ranking(row)[: max(1, math.ceil(p * len(row)))])),
    ("your function ignores p: these are the chances of all tokens", lambda row, p: _softmax(row)),
    ("only the likeliest token is kept, whatever p is", lambda row, p: _shares(row, _ranking(row)[:1])),
    ("all tokens that tie with the last one are kept: of equal logits only as many as needed, the lower ids first",
     _ties_with_the_last),
)  # fmt: skip


def top_p(nucleus) -> str:
    """nucleus(logits, p) -> (V,): the chances of the fewest likeliest tokens that hold p, divided by their sum."""
    need_function(nucleus, "nucleus(logits, p)")
    generator = torch.Generator().manual_seed(4)
    some = (1.5 * torch.randn(9, generator=generator)).tolist()
    book = (2 * torch.randn(65, generator=generator)).tolist()
    cases = [
        (some, 0.7), (book, 0.9), (book, 0.35), (some, 0.05), ([1.0, 3.0, 1.0, 3.0, 1.0], 0.85),
        ([0.5, 2.0, -1.0], 0), ([0.5, 2.0, -1.0], 1), ([0.0, -9.0, -18.0], 1),
        ([0.0] * 4, 0.5), ([0.0] * 8, 0.75), ([0.0] * 64, 0.25), ([-1.0, -2.0], 0.9), ([3.0], 0.4),
    ]  # fmt: skip
    got = []
    for row, p in cases:
        what = f"nucleus({len(row)} logits, {p})"
        logits = torch.tensor(row)
        tensor = as_tensor(ask(nucleus, what, logits, p), what)
        if not torch.equal(logits, torch.tensor(row)):
            raise Wrong("your function changes the logits in place: they must stay as they are")
        if tuple(tensor.shape) != (len(row),):
            raise Wrong(
                f"{what} must have a chance for each of the {len(row)} tokens, got the shape {tuple(tensor.shape)}"
            )
        got.append(tensor.double().tolist())
    right = [_nucleus(*case) for case in cases]
    fits = [_alike(a, b) for a, b in zip(got, right, strict=True)]
    if all(fits):
        if any(0 in row for row, (_, p) in zip(got, cases, strict=True) if p == 1):
            raise Wrong("for a p of 1 tokens are missing: their sum rounds to 1 too early, so 1 is a case of its own")
        return f"right for {len(cases)} rows, at borders and ties too, from p = 0 to p = 1"
    if sentence := explain(got, cases, NUCLEUS_MISTAKES, _alike):
        raise Wrong(sentence)
    i = next((i for i, row in enumerate(got) if not all(map(math.isfinite, row)) or sum(row) == 0), fits.index(False))
    (row, p), mine, true = cases[i], got[i], right[i]
    raise Wrong(_why_not_nucleus(row, p, mine, true, f"nucleus({len(row)} logits, {p})"))


def _why_not_nucleus(row, p, mine, true, what) -> str:
    if sum(1 for q in mine if q == -math.inf) and not any(map(math.isnan, mine)):
        return f"{what} returned logits, with -inf for what is hidden: asked for are chances"
    if not all(map(math.isfinite, mine)) or sum(mine) == 0:
        return f"{what} keeps nothing: one token stays, also where its chance alone is more than p"
    if min(mine) < 0:
        return f"{what} holds a chance below 0, {min(mine):.4g}"
    mine_kept, kept = ([i for i, q in enumerate(chances) if q > 0] for chances in (mine, true))
    if mine_kept != kept:
        if len(mine_kept) == len(kept):
            if _alike(sorted(mine), sorted(true)):
                return f"of tokens with equal logits {what} keeps others than the lower ids: sort with stable=True"
            return f"{what} keeps the tokens {_few(mine_kept)}, and the likeliest are {_few(kept)}"
        held = math.fsum(_softmax(row)[i] for i in mine_kept)
        way = "many" if len(mine_kept) > len(kept) else "few"
        return f"{what} keeps too {way}: {len(mine_kept)}, which hold {held:.4g} together, and {len(kept)} are right"
    return f"{what} keeps the right tokens, but their chances are not in the right ratio, or do not sum to 1"


def _few(ids) -> str:
    return str(ids[:6])[:-1] + (", ...]" if len(ids) > 6 else "]")


def _alike(a, b) -> bool:
    return len(a) == len(b) and all(math.isfinite(x) and abs(x - y) <= 1e-5 for x, y in zip(a, b, strict=True))


# A greedy loop --------------------------------------------------------------------------------------------------------


def _twice(tokens, n, end=None) -> bool:
    end = len(tokens) if end is None else end
    return 2 * n <= end and all(tokens[end - i] == tokens[end - i - n] for i in range(1, n + 1))


def _period(tokens) -> int:
    return next((n for n in range(1, len(tokens) + 1) if _twice(tokens, n)), 0)


def _first(candidates) -> int:
    return next(iter(candidates), 0)


def _overlapping(tokens):
    N = len(tokens)
    return _first(n for n in range(1, N) if all(tokens[-i] == tokens[-i - n] for i in range(1, min(n, N - n) + 1)))


def _repeats(tokens):
    n, count = _period(tokens), 1
    while n and count * n + n <= len(tokens) and tokens[len(tokens) - (count + 1) * n :][:n] == tokens[-n:]:
        count += 1
    return count if n else 0


def _mirrored(tokens):
    N = len(tokens)
    return _first(n for n in range(1, N // 2 + 1) if tokens[N - n :] == tokens[N - 2 * n : N - n][::-1])


PERIOD_MISTAKES = (
    ("the longest piece that comes twice at the end was taken: asked for is the shortest",
     lambda t: max((n for n in range(1, len(t) + 1) if _twice(t, n)), default=0)),
    ("a piece that comes twice anywhere was counted: asked for is the end of the list",
     lambda t: _first(n for n in range(1, len(t) + 1) for end in range(2 * n, len(t) + 1) if _twice(t, n, end))),
    ("the beginning of the list was looked at: asked for is its end",
     lambda t: _first(n for n in range(1, len(t) // 2 + 1) if t[:n] == t[n : 2 * n])),
    ("this is how far back the last token stood before: all n tokens must agree, not only the last",
     lambda t: _first(n for n in range(1, len(t)) if t[-1] == t[-1 - n])),
    ("the whole list had to be one piece again and again: only its end has to be",
     lambda t: _first(n for n in range(1, len(t) // 2 + 1) if len(t) % n == 0 and t == t[:n] * (len(t) // n))),
    ("the piece had to come three times: twice is enough",
     lambda t: _first(n for n in range(1, len(t) // 3 + 1) if _twice(t, n) and _twice(t, n, len(t) - n))),
    ("two pieces that overlap, or stick out of the list, were compared: both have n tokens, one right after the other",
     _overlapping),
    ("this is how often the piece comes, not how long it is", _repeats),
    ("the second piece was compared backwards", _mirrored),
    ("the search ends too early: n may be half of the list",
     lambda t: _first(n for n in range(1, (len(t) + 1) // 2) if _twice(t, n) and 2 * n < len(t))),
    ("n = 1 was left out: one token that comes twice is a loop too",
     lambda t: _first(n for n in range(2, len(t) // 2 + 1) if _twice(t, n))),
    ("this is the length of both pieces together: asked for is that of one", lambda t: 2 * _period(t)),
    ("this is one too few: n counts the tokens of a piece", lambda t: max(_period(t) - 1, 0)),
)  # fmt: skip


def greedy_loop(period) -> str:
    """period(tokens): the smallest n such that the last n tokens equal the n before them; 0 where there is none."""
    need_function(period, "period(tokens)")
    generator = torch.Generator().manual_seed(6)
    long = torch.randperm(60, generator=generator).tolist()  # no token twice
    cases = [
        [4, 7, 9, 4, 7, 9], [1, 2, 1, 2, 1, 2, 1, 2], [3, 1, 5, 5], [6, 6, 6, 6, 6], [2, 8, 8, 2, 8, 8],
        [0, 3, 0, 3, 9], [1, 2, 3, 4, 5], [1, 2, 3, 2], [5, 1, 2, 3, 5, 1], [9, 9, 1, 2, 3, 1, 2, 3], [1, 2, 2, 1],
        [3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1], [7, 7], [7, 8], [7], [],
        long[:11] + long[11:60] + long[11:60], long[:5] + 4 * long[20:32],
    ]  # fmt: skip
    got = []
    for tokens in cases:
        what = f"period({tokens})" if len(tokens) < 13 else f"period(a list of {len(tokens)} tokens)"
        given = list(tokens)
        value = ask(period, what, given)
        if given != tokens:
            raise Wrong("your function changes the list in place: work on slices, or on a copy")
        if _period(tokens) == 0 and (value is None or value is False or (isinstance(value, int) and value < 0)):
            raise Wrong(f"{what} has no such n, and the answer is then 0, got {shown(value)}")
        if isinstance(value, list | tuple):
            raise Wrong(f"{what} returned {shown(value)}: asked for is how long the piece is, not the piece")
        got.append(whole_number(value, what))
    right = [_period(tokens) for tokens in cases]
    if got == right:
        return f"right for {len(cases)} lists, from no token at all to a loop of {max(right)}"
    if sentence := explain(got, [(tokens,) for tokens in cases], PERIOD_MISTAKES, lambda a, b: a == b):
        raise Wrong(sentence)
    tokens, mine, true = next((c, a, b) for c, a, b in zip(cases, got, right, strict=True) if a != b)
    what = f"period({tokens})" if len(tokens) < 13 else f"period(a list of {len(tokens)} tokens)"
    why = f"the last {mine} tokens are not those before them" if mine and not _twice(tokens, mine) else f"it is {true}"
    raise Wrong(f"{what} returned {mine}: {why}")
