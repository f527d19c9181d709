"""The checks of page 16, a real pretrained model: on small random tensors, so that no model is needed."""

import torch
import torch.nn.functional as F

from gptbook.exercises.answers import Wrong, ask, explain, listed, need_function, shown, whole_number
from gptbook.exercises.tensors import as_tensor

# The rank of the answer -----------------------------------------------------------------------------------------------


def _mine(z, token):
    return z[..., token : token + 1]


def _rank(z, token):
    return 1 + (z > _mine(z, token)).sum(dim=-1)


def _order(z, token, descending=True):
    """Its place in the sorted row, from 0."""
    return (z.argsort(dim=-1, descending=descending, stable=True) == token).int().argmax(dim=-1)


RANK_MISTAKES = (
    ("your function counts from 0: where no other logit is higher, the rank is 1", lambda z, a: _rank(z, a) - 1),
    ("your function counts from the bottom: rank 1 is the highest logit", lambda z, a: 1 + (z < _mine(z, a)).sum(-1)),
    ("your function counts from the bottom, and from 0: rank 1 is the highest logit",
     lambda z, a: (z < _mine(z, a)).sum(-1)),
    ("your function takes the id for a place in the order, and gives the id of the token that stands there: find the "
     "place of the id instead", lambda z, a: z.argsort(-1, descending=True)[..., a]),
    ("your function compares with at least as high: the token is not above itself, and those that tie do not push it "
     "back", lambda z, a: 1 + (z >= _mine(z, a)).sum(-1)),
    ("your function lets tokens that tie push it back: only higher logits count",
     lambda z, a: (z >= _mine(z, a)).sum(-1)),
    ("your function says whether the token is on top, 1 or 0: asked for is its place",
     lambda z, a: (z.argmax(-1) == a).int()),
    ("your function gives the id of the token on top: asked for is the place of the given one",
     lambda z, a: z.argmax(-1)),
    ("your function lets tokens that tie push it back, and counts from 0: only higher logits count, and 1 is the top",
     lambda z, a: (z >= _mine(z, a)).sum(-1) - 1),
    ("your function gives the place in a sorted row, in which tokens that tie stand before it: count higher logits",
     lambda z, a: 1 + _order(z, a)),
    ("your function gives the place in a sorted row from 0: the top has rank 1", lambda z, a: _order(z, a)),
    ("your function sorts from the lowest up: rank 1 is the highest logit", lambda z, a: 1 + _order(z, a, False)),
)  # fmt: skip


def answer_rank(rank_of) -> str:
    """rank_of(logits (..., V), token) -> (...): 1 plus how many logits of the row are higher than the token's."""
    need_function(rank_of, "rank_of(logits, token)")
    cases = []
    for seed, (shape, token) in enumerate((((4, 9), 3), ((2, 3, 12), 11), ((6,), 0), ((1, 1, 5), 2), ((40, 7), 5))):
        generator = torch.Generator().manual_seed(seed)
        cases.append((2 * torch.randn(shape, generator=generator), token))
    got = [_ask_ranks(rank_of, case) for case in cases]
    _settle(got, cases, RANK_MISTAKES, "")
    ties = [(z.round(), token) for z, token in cases]
    got = [_ask_ranks(rank_of, case) for case in ties]
    _settle(got, ties, RANK_MISTAKES, "ranks without ties are right, but with ties ")
    return "1 plus how many logits are higher, in every row of every shape"


def _settle(got, cases, mistakes, where):
    if all(torch.equal(mine, _rank(*case)) for mine, case in zip(got, cases, strict=True)):
        return
    if reason := explain(got, cases, mistakes, lambda mine, other: torch.equal(mine, other.long())):
        raise Wrong(reason)
    for mine, (z, token) in zip(got, cases, strict=True):
        wanted = _rank(z, token)
        if not torch.equal(mine, wanted):
            at = (mine != wanted).flatten().int().argmax().item()
            row = ", ".join(f"{value:.2f}" for value in z.flatten(0, -2)[at].tolist()) if z.dim() > 1 else ", ".join(
                f"{value:.2f}" for value in z.tolist()
            )  # fmt: skip
            raise Wrong(
                f"{where}token {token} of the logits {row} has rank {wanted.flatten()[at]}, your function says "
                f"{mine.flatten()[at]}"
            )


def _ask_ranks(rank_of, case):
    z, token = case
    what = f"rank_of(logits of shape {tuple(z.shape)}, {token})"
    given = z.clone()
    try:
        got = as_tensor(ask(rank_of, what, given, token), what)
    except Wrong as wrong:
        if "must match the size" in str(wrong):
            raise Wrong(f"{wrong}. Keep the axis of the one logit, so that it is compared with its own row") from None
        raise
    if not torch.equal(given, z):
        raise Wrong("your function changes the logits that it is given: work on a copy")
    if got.shape != z.shape[:-1]:
        why = ""
        if got.shape == (*z.shape[:-1], 1):
            why = ": the axis of the vocabulary is still there, with one entry"
        elif got.shape == z.shape:
            why = ": a number for each token, asked for is that of one token"
        elif got.shape == z.shape[1:]:
            why = ": the first axis is gone, asked for is a sum over the last"
        elif got.dim() == 0:
            why = ": one number for all rows, asked for is one for each"
        raise Wrong(f"{what} must have the shape {tuple(z.shape[:-1])}, got {tuple(got.shape)}{why}")
    if got.dtype == torch.bool:
        raise Wrong(f"{what} must hold ranks, got True and False: count them")
    if not torch.equal(got.double(), got.double().round()):
        raise Wrong(f"{what} must hold whole numbers, got {got.flatten()[0]:.3g} among them: a rank is a count")
    if got.is_floating_point():
        raise Wrong(f"{what} must hold whole numbers, got {got.dtype}: a sum of True and False gives them")
    return got.long()


# Arithmetic with words ------------------------------------------------------------------------------------------------


def _cosines(table, wanted):
    return F.cosine_similarity(table, wanted[None], dim=-1)


def _nearest(cosines, inputs, count, instead=-torch.inf):
    cosines = cosines.clone()
    cosines[list(inputs)] = instead
    return cosines.topk(count).indices.tolist()


def _right(table, a, b, c, count):
    return _nearest(_cosines(table, table[a] - table[b] + table[c]), (a, b, c), count)


def _one_word(order):
    def wrong(table, a, b, c, count):
        x, y, z = order(a, b, c)
        return _nearest(_cosines(table, table[x] - table[y] + table[z]), (a, b, c), count)

    return wrong


WORD_MISTAKES = (
    ("your function gives the inputs too: they stay near by themselves, so leave all three out",
     lambda t, a, b, c, n: _cosines(t, t[a] - t[b] + t[c]).topk(n).indices.tolist()),
    ("your function leaves only row a out: b and c must not win either",
     lambda t, a, b, c, n: _nearest(_cosines(t, t[a] - t[b] + t[c]), (a,), n)),
    ("your function adds row b and takes row c off: asked for is a minus b plus c",
     _one_word(lambda a, b, c: (a, c, b))),
    ("your function takes a off and adds b: asked for is a minus b plus c", _one_word(lambda a, b, c: (b, a, c))),
    ("your function computes a plus b plus c: b is taken off",
     lambda t, a, b, c, n: _nearest(_cosines(t, t[a] + t[b] + t[c]), (a, b, c), n)),
    ("your function computes a minus b and forgets c",
     lambda t, a, b, c, n: _nearest(_cosines(t, t[a] - t[b]), (a, b, c), n)),
    ("your function compares by the dot product, which prefers long rows: divide by the lengths",
     lambda t, a, b, c, n: _nearest(t @ (t[a] - t[b] + t[c]), (a, b, c), n)),
    ("your function takes the nearest by distance: asked for is the highest cosine",
     lambda t, a, b, c, n: _nearest(-torch.cdist(t, (t[a] - t[b] + t[c])[None])[:, 0], (a, b, c), n)),
    ("your function gives the farthest: the highest cosine is the nearest",
     lambda t, a, b, c, n: _nearest(-_cosines(t, t[a] - t[b] + t[c]), (a, b, c), n)),
    ("your function divides the rows by their lengths before it adds them: add the rows as they are",
     lambda t, a, b, c, n: _nearest(_cosines(t, F.normalize(t, dim=-1)[a] - F.normalize(t, dim=-1)[b]
                                             + F.normalize(t, dim=-1)[c]), (a, b, c), n)),
    ("your function takes the mean of all rows off first: the page does so too, but asked for are the rows as "
     "they are", lambda t, a, b, c, n: _right(t - t.mean(dim=0), a, b, c, n)),
    ("your function gives the three inputs a cosine of 0, which is more than that of a row that points away: give them "
     "less than any cosine can be, minus infinity",
     lambda t, a, b, c, n: _nearest(_cosines(t, t[a] - t[b] + t[c]), (a, b, c), n, 0.0)),
    ("your function gives the right ids in the wrong order: the nearest first",
     lambda t, a, b, c, n: _right(t, a, b, c, n)[::-1]),
)  # fmt: skip


def word_arithmetic(nearest) -> str:
    """nearest(table (V, C), a, b, c, count) -> ids: the highest cosines with row a - b + c, inputs left out."""
    need_function(nearest, "nearest(table, a, b, c, count)")
    cases = []
    for seed, (V, C, inputs, count) in enumerate(
        (
            (30, 6, (4, 17, 9), 5),
            (50, 3, (0, 1, 2), 4),
            (12, 8, (11, 3, 7), 3),
            (40, 5, (8, 20, 33), 6),
            (9, 4, (2, 5, 0), 6),
        )
    ):
        generator = torch.Generator().manual_seed(seed)
        table = torch.randn(V, C, generator=generator) * (0.3 + 3 * torch.rand(V, 1, generator=generator))
        cases.append((table, *inputs, count))
    got = [_ask_words(nearest, case) for case in cases]
    if all(mine == _right(*case) for mine, case in zip(got, cases, strict=True)):
        return "the nearest by cosine, the nearest first, without the three inputs"
    if reason := explain(got, cases, WORD_MISTAKES, lambda mine, other: mine == other):
        raise Wrong(reason)
    case, mine = next((case, mine) for case, mine in zip(cases, got, strict=True) if mine != _right(*case))
    if found := [i for i in mine if i in case[1:4]]:
        raise Wrong(f"your function gives id {found[0]}, which is one of its inputs {case[1:4]}: leave all three out")
    raise Wrong(f"{_words_call(case)} gives {mine}, asked for is {_right(*case)}")


def _words_call(case) -> str:
    table, *rest = case
    return f"nearest(table of shape {tuple(table.shape)}, {', '.join(map(str, rest))})"


def _ask_words(nearest, case):
    table, *rest = case
    what, given = _words_call(case), table.clone()
    got = ask(nearest, what, given, *rest)
    if not torch.equal(given, table):
        raise Wrong("your function changes the table that it is given: work on a copy")
    if torch.is_tensor(got) and got.is_floating_point() and got.shape == table.shape[:1]:
        raise Wrong(f"{what} must be ids, got a number for each of {len(table)} rows: the cosines? Sort them")
    ids = [whole_number(i, f"each id of {what}") for i in listed(got, what)]
    if len(ids) != rest[-1]:
        a, b, c, count = rest
        few = _cosines(table, table[a] - table[b] + table[c]).topk(count).indices.tolist()
        why = ""
        if ids == [i for i in few if i not in (a, b, c)]:
            why = ": the inputs are among the nearest, so leave them out first, and then take as many as asked for"
        raise Wrong(f"{what} must give {count} ids, got {len(ids)}{why}")
    return ids


# Which head is which --------------------------------------------------------------------------------------------------

KINDS = ("previous", "same", "induction", "first")


def _means(weights, rows, half, mean=True):
    """(4, H): how much the tokens of `rows` give to each of the four places."""
    at = (rows - 1, rows - half, rows - half + 1, torch.zeros_like(rows))
    looked = torch.stack([weights[:, rows, place] for place in at])  # (4, H, rows)
    return looked.mean(dim=-1) if mean else looked


def _named(best):
    return [KINDS[i] for i in best.tolist()]


def _kinds(weights):
    half = weights.size(-1) // 2
    return _named(_means(weights, torch.arange(half, 2 * half), half).argmax(dim=0))


def _kinds_swapped(swap):
    return lambda w: [swap.get(name, name) for name in _kinds(w)]


def _transposed(w):
    return _kinds(w.transpose(-1, -2))


def _all_rows(w):
    half = w.size(-1) // 2
    rows = torch.arange(1, 2 * half)
    total = torch.zeros(4, len(w))
    for i, place in enumerate((rows - 1, rows - half, rows - half + 1, torch.zeros_like(rows))):
        there = place >= 0
        total[i] = w[:, rows[there], place[there]].sum(-1) / len(rows)
    return _named(total.argmax(dim=0))


def _last_row(w):
    half = w.size(-1) // 2
    return _named(_means(w, torch.tensor([2 * half - 1]), half).argmax(dim=0))


def _largest(w):
    half = w.size(-1) // 2
    return _named(_means(w, torch.arange(half, 2 * half), half, mean=False).amax(dim=-1).argmax(dim=0))


def _off_by_one(w):
    half = w.size(-1) // 2
    rows = torch.arange(half, 2 * half)
    at = (rows - 1, rows - half, rows - half - 1, torch.zeros_like(rows))
    return _named(torch.stack([w[:, rows, place.clamp(min=0)].mean(dim=-1) for place in at]).argmax(dim=0))


def _votes(w):
    half = w.size(-1) // 2
    looked = _means(w, torch.arange(half, 2 * half), half, mean=False)  # (4, H, rows)
    return _named(F.one_hot(looked.argmax(dim=0), 4).sum(dim=1).argmax(dim=-1))


def _itself(w):
    half = w.size(-1) // 2
    rows = torch.arange(half, 2 * half)
    at = (rows, rows - half, rows - half + 1, torch.zeros_like(rows))
    return _named(torch.stack([w[:, rows, place].mean(dim=-1) for place in at]).argmax(dim=0))


def _without_first(w):
    half = w.size(-1) // 2
    return _named(_means(w, torch.arange(half + 1, 2 * half), half).argmax(dim=0))


def _without_last(w):
    half = w.size(-1) // 2
    return _named(_means(w, torch.arange(half, 2 * half - 1), half).argmax(dim=0))


KIND_MISTAKES = (
    ("your function calls the same token induction and induction the same: the induction head looks at what "
     "*followed*, one place further right", _kinds_swapped({"same": "induction", "induction": "same"})),
    ("your function averages over all rows: in the first half there is nothing to copy, so the mean runs over the "
     "second", _all_rows),
    ("your function asks the last row only: a score is a mean over the second half", _last_row),
    ("your function compares the largest weights: one row is no habit, take the mean", _largest),
    ("your function looks for induction one place left of the same token, and what followed it stands to the right",
     _off_by_one),
    ("your function reads the weights with rows and columns exchanged: row t is the token that looks", _transposed),
    ("your function counts the rows in which a place gets the most of the four: asked for is the mean of the weights",
     _votes),
    ("your function takes the row itself for the token before it: that stands one place further left",
     _itself),
    ("your function leaves out the first row of the second half: the mean runs over all of them", _without_first),
    ("your function leaves out the last row of the second half: the mean runs over all of them", _without_last),
    ("your function never says first: token 0 is one of the four places",
     lambda w: _named(_means(w, torch.arange(w.size(-1) // 2, w.size(-1)), w.size(-1) // 2)[:3].argmax(dim=0))),
    *((f"your function says {kind} for every head", lambda w, kind=kind: [kind] * len(w)) for kind in KINDS),
)  # fmt: skip


def _heads(kinds, half, seed):
    """Causal weights (H, 2 half, 2 half): noise, and in the second half more at the place of each head's kind."""
    H, T = len(kinds), 2 * half
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(H, T, T, generator=generator)
    for h, kind in enumerate(kinds):
        for t in range(half, T):
            place = {"previous": t - 1, "same": t - half, "induction": t - half + 1, "first": 0}[kind]
            scores[h, t, place] += 2.0 + 1.5 * torch.rand((), generator=generator).item()
        # What must not decide: two rows that look elsewhere, and a habit of the first half.
        for more, t, size in ((1, T - 1, 7.0), (2, T - 3, 9.0)):
            other = KINDS[(KINDS.index(kind) + more + seed % 2) % 4]
            place = {"previous": t - 1, "same": t - half, "induction": t - half + 1, "first": 0}[other]
            scores[h, t, place] += size
        rows = torch.arange(1, half)
        scores[h, rows, rows - 1 if kind != "previous" else 0] += 6.0
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(dim=-1)


def _decided_by(row, half):
    """Weights of heads whose kind shows in the mean over all of the second half, and not in that without this row."""
    T = 2 * half
    heads = []
    for kind, other in (("previous", "induction"), ("induction", "previous")):
        weights = torch.ones(T, T).tril()
        weights /= weights.sum(dim=-1, keepdim=True)
        for t in range(half, T):
            place = {"previous": t - 1, "induction": t - half + 1}
            much, more = (0.85, 0.0) if t == row else (0.4, 0.45)
            weights[t] *= 1 - much - more
            weights[t, place[kind]] += much
            weights[t, place[other]] += more
        heads.append(weights)
    return torch.stack(heads)


def name_the_heads(kinds) -> str:
    """kinds(weights (H, T, T)) -> H names: the place that gets most of each head's weight over the second half."""
    need_function(kinds, "kinds(weights)")
    orders = (
        (("induction", "first", "previous", "same", "induction"), 8),
        (("same", "same", "first"), 12),
        (("previous", "induction", "first", "induction", "same", "previous", "first"), 10),
        (("first",), 9),
        (("induction", "previous"), 14),
    )
    cases = [(_heads(order, half, seed),) for seed, (order, half) in enumerate(orders)]
    cases += [(_decided_by(row, 6),) for row in (6, 11)]
    got = [_ask_kinds(kinds, case[0]) for case in cases]
    wanted = [_kinds(case[0]) for case in cases]
    if got == wanted:
        return "for every head the place that gets most of its weight in the second copy"
    if reason := explain(got, cases, KIND_MISTAKES, lambda mine, other: mine == other):
        raise Wrong(reason)
    for mine, wish, (weights,) in zip(got, wanted, cases, strict=True):
        for h, (a, b) in enumerate(zip(mine, wish, strict=True)):
            if a != b:
                half = weights.size(-1) // 2
                means = _means(weights, torch.arange(half, 2 * half), half)[:, h].tolist()
                given = ", ".join(f"{name} {mean:.2f}" for name, mean in zip(KINDS, means, strict=True))
                raise Wrong(f"a head has the means {given}: asked for is {b}, your function says {a}")
    raise Wrong("the names are not those of the places that get the most weight")


def _ask_kinds(kinds, weights):
    what, given = f"kinds(weights of shape {tuple(weights.shape)})", weights.clone()
    got = listed(ask(kinds, what, given), what)
    if not torch.equal(given, weights):
        raise Wrong("your function changes the weights that it is given: work on a copy")
    if len(got) != len(weights):
        raise Wrong(f"{what} must give {len(weights)} names, one for each head, got {len(got)}")
    for name in got:
        if name not in KINDS:
            raise Wrong(f"{what} must give names out of {', '.join(KINDS)}, got {shown(name)}")
    return got
