"""The checks of page 12, looking inside our GPT."""

import torch

from gptbook.exercises.answers import Wrong, ask, explain, need_function, shown, whole_number
from gptbook.exercises.tensors import as_tensor


def _weights(H, T, seed):
    """Weights (H, T, T) of causal heads, each row its own mixture."""
    scores = 2 * torch.randn(H, T, T, generator=torch.Generator().manual_seed(seed))
    return scores.masked_fill(torch.ones(T, T).triu(1) == 1, float("-inf")).softmax(dim=-1)


def _diagonal(weights, offset):
    return weights.diagonal(offset=offset, dim1=-2, dim2=-1)


def _tops(weights, offset):
    """How often the largest weight of a row stands there."""
    rows = torch.arange(weights.size(-1))[-_diagonal(weights, offset).size(-1) :]
    return (weights[:, rows].argmax(dim=-1) == rows + offset).float().mean(dim=-1)


PREVIOUS_MISTAKES = (
    ("your function reads above the diagonal, where all weights are 0: rows are the tokens that look, so the token "
     "before t stands at [t, t - 1]", lambda w: _diagonal(w, 1).mean(-1)),
    ("your function reads the diagonal itself, how much each token looks at itself: the token before stands one "
     "column to the left", lambda w: _diagonal(w, 0).mean(-1)),
    ("your function looks two tokens back: one place left of the diagonal is one token",
     lambda w: _diagonal(w, -2).mean(-1)),
    ("your function divides by T: token 0 has no token before it, so the mean runs over T - 1 rows",
     lambda w: _diagonal(w, -1).sum(-1) / w.size(-1)),
    ("your function divides by all T times T entries: asked for is the mean over the T - 1 places on the line",
     lambda w: _diagonal(w, -1).sum(-1) / w.size(-1) ** 2),
    ("your function gives the sum over the tokens and not their mean, so that it grows with the text",
     lambda w: _diagonal(w, -1).sum(-1)),
    ("your function gives the largest of the weights, and one token is no habit: asked for is the mean over all",
     lambda w: _diagonal(w, -1).amax(-1)),
    ("your function asks the last token only: asked for is the mean over all tokens that have one before them",
     lambda w: w[:, -1, -2]),
    ("your function counts how often the token before has the largest weight: asked for is the mean of the weight",
     lambda w: _tops(w, -1)),
    ("your function reads column 0, how much everybody looks at the first token", lambda w: w[:, 1:, 0].mean(-1)),
)  # fmt: skip

INDUCTION_MISTAKES = (
    ("your function looks at t - period, the earlier copy of the token itself: asked for is what followed it, one "
     "place further right", lambda w, P: _diagonal(w, -P).mean(-1)),
    ("your function looks at t - period - 1, what stood before the earlier copy: what followed it stands at "
     "t - period + 1", lambda w, P: _diagonal(w, -P - 1).mean(-1)),
    ("your function looks at the token before, t - 1, wherever the copies are: an induction head looks a whole "
     "copy back", lambda w, P: _diagonal(w, -1)[:, P - 1 :].mean(-1)),
    ("your function takes one row too many: row period - 1 belongs to the first copy, and the diagonal begins there",
     lambda w, P: _diagonal(w, 1 - P).mean(-1)),
    ("your function divides by all rows, those of the first copy too: the mean runs over the rows of the second only",
     lambda w, P: _diagonal(w, 1 - P)[:, 1:].sum(-1) / w.size(-1)),
    ("your function leaves the last row out: the last token of the second copy counts too",
     lambda w, P: _diagonal(w, 1 - P)[:, 1:-1].mean(-1)),
    ("your function gives the sum over the rows and not their mean", lambda w, P: _diagonal(w, 1 - P)[:, 1:].sum(-1)),
    ("your function reads above the diagonal, where all weights are 0: rows are the tokens that look",
     lambda w, P: _diagonal(w, P - 1).mean(-1)),
    ("your function adds up the weight on all of the first copy: asked for is the weight on one token of it",
     lambda w, P: w[:, P:, :P].sum(-1).mean(-1)),
    ("your function takes the mean over all of the first copy, which says nothing about which token is looked at",
     lambda w, P: w[:, P:, :P].mean((-2, -1))),
    ("your function counts how often that token has the largest weight: asked for is the mean of the weight",
     lambda w, P: (w[:, P:].argmax(-1) == torch.arange(1, P + 1)).float().mean(-1)),
)  # fmt: skip


def previous_token_head(score) -> str:
    """score(weights (H, T, T)) -> (H,): the mean weight that tokens 1 to T - 1 give to the token before."""
    need_function(score, "score(weights)")
    cases = [(_weights(H, T, seed),) for seed, (H, T) in enumerate(((3, 7), (1, 5), (5, 12), (2, 9)))]
    small = [(_weights(2, 2, 9),)]  # only one token has one before it
    _compare(score, cases, small, lambda w: _diagonal(w, -1).mean(-1), PREVIOUS_MISTAKES)
    return "for every head the mean weight on the token before, over the tokens that have one"


def induction_head(score) -> str:
    """score(weights (H, 2 period, 2 period), period) -> (H,): the mean weight on what followed the earlier copy."""
    need_function(score, "score(weights, period)")
    cases = [(_weights(H, 2 * P, seed), P) for seed, (H, P) in enumerate(((3, 4), (1, 7), (5, 3), (2, 16)))]
    small = [(_weights(2, 4, 9), 2)]
    _compare(score, cases, small, lambda w, P: _diagonal(w, 1 - P)[:, 1:].mean(-1), INDUCTION_MISTAKES)
    return "for every head the mean weight on what followed the earlier copy, over the second copy"


def _compare(score, cases, small, right, mistakes):
    """Raise Wrong where the answer gives other numbers than `right` for some arguments (weights, ...)."""
    got = [_ask_scores(score, case) for case in cases]
    wanted = [right(*case).double() for case in cases]
    if not all(_same(*pair) for pair in zip(got, wanted, strict=True)):
        reason = explain(got, cases, mistakes, lambda mine, other: _same(mine, other.double()))
        if reason:
            raise Wrong(reason)
        i = next(i for i, pair in enumerate(zip(got, wanted, strict=True)) if not _same(*pair))
        raise Wrong(f"{_call(cases[i])} gives {_numbers(got[i])}, asked for is {_numbers(wanted[i])}")
    for case in small:
        mine, wish = _ask_scores(score, case), right(*case).double()
        if not _same(mine, wish):
            raise Wrong(
                f"longer texts are right, but {_call(case)} gives {_numbers(mine)}, asked for is {_numbers(wish)}"
            )


def _call(case) -> str:
    weights, *rest = case
    return f"score({', '.join([f'weights of shape {tuple(weights.shape)}', *map(str, rest)])})"


def _numbers(scores) -> str:
    numbers = ", ".join(f"{score:.3g}" for score in scores[:3].tolist())
    return f"{numbers} and so on" if len(scores) > 3 else numbers


def _ask_scores(score, case):
    weights, what = case[0], _call(case)
    given = weights.clone()
    got = as_tensor(ask(score, what, given, *case[1:]), what).double()
    if not torch.equal(given, weights):
        raise Wrong("your function changes the weights that it is given: work on a copy")
    H, T = weights.shape[:2]
    if got.shape == (H, 1):
        got = got[:, 0]
    if got.shape != (H,):
        why = ""
        if got.dim() == 0:
            why = ": one number for all heads, asked for is one for each"
        elif got.dim() == 1 and len(got) in (T, T - 1, T // 2, T // 2 + 1):
            why = ": a number for each token, so the mean went over the heads"
        elif got.dim() == 2 and len(got) == H:
            why = ": a number for each head and token, so the mean over the tokens is missing"
        raise Wrong(f"{what} must have the shape ({H},), got {tuple(got.shape)}{why}")
    if not torch.isfinite(got).all():
        raise Wrong(f"{what} holds NaN or infinity: is there a mean of nothing?")
    return got


def _same(a, b) -> bool:
    return a.shape == b.shape and bool(((a - b).abs() <= 5e-3 * b.abs() + 1e-5).all())


# Rows in which the answer is on top, and how many rows there are.
_PATTERNS = (((2, 4), 5), ((1,), 5), ((3, 4), 5), ((0, 2), 4), ((4,), 5), ((1, 2, 5), 7), ((0,), 1), ((2, 3, 4, 5), 6))


def _lens(tops, rows, seed, V=12):
    """Logits (rows, V) in which `answer` is on top in the rows `tops`, by more or less, and elsewhere in another place,
    with its highest logits where it is not on top.
    """
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, V, generator=random)
    answer = int(torch.randint(3, V, (), generator=random))
    for row in range(rows):
        other = logits[row, torch.arange(V) != answer].sort(descending=True).values
        if row in tops:
            logits[row, answer] = other[0] + 0.3 + 2 * (row % 3)
        else:
            place = (1, 3, V - 1, 2, 6)[(row + seed) % 5]  # how many others are above it
            below = other[place] if place < V - 1 else other[-1] - 1
            logits[row, answer] = (other[place - 1] + below) / 2
            logits[row] += 9 + row % 2
    return logits, answer


def _rank(logits, answer):
    return (logits > logits[:, answer, None]).sum(dim=-1)


def _first(hits):
    return next((i for i, hit in enumerate(hits) if hit), None)


def _from_then_on(logits, answer):
    hits = (_rank(logits, answer) == 0).tolist()
    return _first([all(hits[i:]) for i in range(len(hits))])


def _last(logits, answer):
    hits = (_rank(logits, answer) == 0).tolist()
    return next((i for i in reversed(range(len(hits))) if hits[i]), None)


def _next_number(logits, answer):
    first = _first(_rank(logits, answer) == 0)
    return None if first is None else first + 1


APPEARS_MISTAKES = (
    ("your function gives the last row with the answer on top, asked for is the first", _last),
    ("your function gives the row from which on the answer stays on top: asked for is where it is on top first, even "
     "if a later row loses it", _from_then_on),
    ("your function counts the rows from 1: the first row, without any layer, is number 0", _next_number),
    ("your function counts the rows with the answer on top, asked for is the number of the first",
     lambda z, a: int((_rank(z, a) == 0).sum())),
    ("your function gives the row where the answer has its highest logit: higher ones may stand beside it, so compare "
     "within a row", lambda z, a: int(z[:, a].argmax())),
    ("your function gives the row where the answer has its lowest logit: asked for is where no other token's logit "
     "is higher", lambda z, a: int(z[:, a].argmin())),
    ("your function gives the row where the answer is most probable, asked for is the first where it is on top",
     lambda z, a: int(z.softmax(-1)[:, a].argmax())),
    ("your function takes the lowest logit of a row for the top guess: softmax gives the highest one the most",
     lambda z, a: _first(z.argmin(-1) == a)),
    *((f"your function takes a place among the top {k} for enough: the answer must be the top guess",
       lambda z, a, k=k: _first(_rank(z, a) < k)) for k in (2, 3, 5, 10)),
    ("your function gives a token id, the last row's guess: asked for is the number of a row",
     lambda z, a: int(z[-1].argmax())),
)  # fmt: skip


def first_appears(first_layer) -> str:
    """first_layer(lens_logits (L+1, V), answer) -> the first row with the answer on top, or None."""
    need_function(first_layer, "first_layer(lens_logits, answer)")
    cases = [_lens(*pattern, seed) for seed, pattern in enumerate(_PATTERNS)]
    got = [_ask_layer(first_layer, case) for case in cases]
    if all(mine is None for mine in got):
        raise Wrong("your function finds no row at all: compare the top guess of each row with the answer, as numbers")
    for (tops, rows), mine in zip(_PATTERNS, got, strict=True):
        if mine != tops[0]:
            reason = explain(got, cases, APPEARS_MISTAKES, lambda mine, other: mine == other)
            on_top = "row" if len(tops) == 1 else "rows"
            listed = " and ".join(", ".join(map(str, tops)).rsplit(", ", 1))
            raise Wrong(
                reason or f"of {rows} rows, the answer is on top in {on_top} {listed}: your function says {mine}"
            )
    never = [_lens((), rows, seed) for seed, rows in enumerate((5, 1, 4))]
    said = [_ask_layer(first_layer, case) for case in never]
    if any(one is not None for one in said):
        raise Wrong(
            f"where no row has the answer on top, your function says {next(one for one in said if one is not None)}: "
            "asked for is None"
        )
    return "the first row with the answer on top, also where it is lost again, and None where there is none"


def _ask_layer(first_layer, case):
    logits, answer = case
    what = f"first_layer(lens_logits of shape {tuple(logits.shape)}, {answer})"
    given = logits.clone()
    got = ask(first_layer, what, given, answer)
    if not torch.equal(given, logits):
        raise Wrong("your function changes the logits that it is given: work on a copy")
    if got is None:
        return None
    if isinstance(got, bool):
        raise Wrong(f"{what} must be the number of a row or None, got {shown(got)}")
    return whole_number(got, f"{what}, unless it is None,")
