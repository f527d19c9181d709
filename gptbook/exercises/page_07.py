"""The checks of page 7, positions."""

import math

import torch

from gptbook.exercises.answers import Wrong, ask, explain, need_function, shown
from gptbook.exercises.tensors import as_tensor, close, kept

# with_positions: known mistakes, as functions of idx (B, T), wte (V, C) and wpe (block_size, C).
ADDED_MISTAKES = (
    ("the positions are missing: these are the token embeddings alone", lambda idx, wte, wpe: wte[idx]),
    ("the tokens are missing: these are the position embeddings alone",
     lambda idx, wte, wpe: wpe[: idx.size(1)].expand(*idx.shape, -1)),
    ("the position table was asked for the rows of the tokens: its rows belong to places 0, 1, 2, ..., whatever "
     "stands there", lambda idx, wte, wpe: wte[idx] + wpe[idx]),
    ("the tables are swapped: wte has a row for each token, wpe one for each place",
     lambda idx, wte, wpe: wpe[idx] + wte[: idx.size(1)]),
    ("the positions count from 1: the first token of a row stands at place 0",
     lambda idx, wte, wpe: wte[idx] + wpe[1 : idx.size(1) + 1]),
    ("the positions were multiplied: the two vectors are added", lambda idx, wte, wpe: wte[idx] * wpe[: idx.size(1)]),
    ("the positions run backwards: the first token of a row stands at place 0",
     lambda idx, wte, wpe: wte[idx] + wpe[: idx.size(1)].flip(0)),
    ("the last rows of wpe were taken: a row of T tokens uses the first T",
     lambda idx, wte, wpe: wte[idx] + wpe[-idx.size(1) :]),
    ("the positions run down the batch: the place is a token's number within its row, the second axis of idx",
     lambda idx, wte, wpe: wte[idx] + wpe[: idx.size(0), None]),
    ("every place got row 0 of wpe: each place has a row of its own", lambda idx, wte, wpe: wte[idx] + wpe[0]),
    ("every place got the last token's position: each place has a row of its own",
     lambda idx, wte, wpe: wte[idx] + wpe[idx.size(1) - 1]),
    ("every place got the row of wpe whose number is T: each place has a row of its own",
     lambda idx, wte, wpe: wte[idx] + wpe[idx.size(1)]),
    ("every place got the sum of all positions: each place has a row of its own",
     lambda idx, wte, wpe: wte[idx] + wpe[: idx.size(1)].sum(0)),
    ("the positions were subtracted: the two vectors are added", lambda idx, wte, wpe: wte[idx] - wpe[: idx.size(1)]),
    ("this is the mean of the two vectors: asked for is their sum",
     lambda idx, wte, wpe: (wte[idx] + wpe[: idx.size(1)]) / 2),
)  # fmt: skip


def add_positions(with_positions) -> str:
    """with_positions(idx, wte, wpe) -> (B, T, C): the row of wte for each token plus the row of wpe for its place."""
    need_function(with_positions, "with_positions(idx, wte, wpe)")
    generator = torch.Generator().manual_seed(7)
    # B, T, block_size, V, C: first one in which no two numbers agree, B < T, so that every mistake runs.
    for B, T, block_size, V, C in (
        (3, 5, 8, 7, 4),
        (4, 4, 6, 5, 3),
        (2, 6, 6, 9, 1),
        (1, 1, 1, 2, 2),
        (5, 2, 9, 65, 8),
    ):
        idx = torch.randint(V, (B, T), generator=generator)
        wte, wpe = (torch.randn(rows, C, generator=generator) for rows in (V, block_size))
        what = f"with_positions, for idx {(B, T)}, wte {(V, C)} and wpe {(block_size, C)},"
        given = [tensor.clone() for tensor in (idx, wte, wpe)]
        got = as_tensor(ask(with_positions, what, *given), f"the result of {what}")
        for name, now, before in zip(("idx", "wte", "wpe"), given, (idx, wte, wpe), strict=True):
            kept([now], [before], f"your function changes {name} in place: the tables must stay as they are")
        if tuple(got.shape) != (B, T, C):
            raise Wrong(_why_not_shaped(tuple(got.shape), B, T, C, what))
        right = torch.stack([torch.stack([wte[idx[b, t]] + wpe[t] for t in range(T)]) for b in range(B)])
        if not _same(got, right):
            found = None
            if block_size > T and max(B, V) <= block_size and T <= V:
                found = explain([got], [(idx, wte, wpe)], ADDED_MISTAKES, _same)
            raise Wrong(f"{what} is not right: {found or _where_not_added(got, right)}")
    return "each token's row plus its place's row, for five shapes of batch, up to a full window"


def _same(a, b) -> bool:
    return close(a, b, rtol=0.0, atol=1e-4)


def _why_not_shaped(shape, B, T, C, what) -> str:
    if shape == (B, T, 2 * C):
        return (
            f"{what} has the shape {shape}: the two vectors were put side by side, asked for is their sum {(B, T, C)}"
        )
    if shape == (B, 2 * T, C):
        return (
            f"{what} has the shape {shape}: the positions came as tokens of their own, asked for is a sum {(B, T, C)}"
        )
    return f"{what} must have the shape {(B, T, C)}, got {shape}"


def _where_not_added(got, right) -> str:
    if not torch.isfinite(got.double()).all():
        return "it holds NaN or infinity"
    off = (got.double() - right.double()).abs().amax(-1)  # (B, T)
    b, t = divmod(int(off.argmax()), off.size(1))
    return f"look at row {b}, place {t}, which must be wte[idx[{b}, {t}]] + wpe[{t}]"


class _Probe:
    """A function of tokens that remembers how it was asked, so that a message can say what went wrong."""

    def __init__(self, attention):
        self.attention, self.asked, self.answers = attention, [], []

    def __call__(self, x):
        if not torch.is_tensor(x) or x.dim() != 3:
            raise TypeError(f"attention takes a tensor of shape (B, T, C), got {shown(x)}")
        x = x if x.is_floating_point() else x.float()
        self.asked.append((x.detach(), x.detach().clone()))
        answer = self.attention(x)
        self.answers.append(answer.detach().clone())
        return answer

    def habit(self) -> str:
        """What in the way of asking explains a wrong answer; empty where nothing does."""
        if not self.asked:
            return ": your function never called attention"
        inputs = [then for _, then in self.asked]
        if any(not torch.isfinite(x).all() for x in inputs):
            return ": your inputs hold NaN or infinity"
        if any(x.shape != then.shape or not torch.equal(x, then) for x, then in self.asked):
            return ": your function changes an input in place after attention has seen it, so work on copies"
        if len(inputs) == 1:
            return ": one call shows nothing, compare two whose tokens stand in another order"
        if max(x.size(1) for x in inputs) < 3:
            return ": your inputs have fewer than three tokens"
        if all(bool((x == x[:, :1]).all()) for x in inputs):
            return ": all tokens of your inputs are alike, and a new order of them is the old one"
        if not self.moves():
            return ": none of your inputs is another one with its tokens in a new order"
        return ""

    def passed_over(self) -> str:
        """Why a function that is not blind may have been missed, from what its outputs showed."""
        moves = self.moves()
        worst = max((difference for _, difference in moves), default=0.0)
        if worst > 0.01:
            return (
                f": your inputs show a difference of {worst:.2g}, and your tolerance lets it pass: differences above "
                "0.01 are real"
            )
        orders = {order for order, _ in moves}
        if len(orders) == 1:
            return f": the only new order that you tried is {list(*orders)}"
        return f": the {len(orders)} new orders that you tried show nothing, try others" if orders else ""

    def moves(self) -> list:
        """Every new order in which the tokens of a row came again, and how far its outputs were from moving along.

        A row is one of a batch; it is compared with the first one, in whatever call, that has the same tokens.
        """
        firsts, found = {}, []
        for (_, x), answer in zip(self.asked, self.answers, strict=True):
            for row, out in zip(x, answer, strict=True):
                tokens = [tuple(token) for token in row.tolist()]
                place = {token: t for t, token in enumerate(tokens)}
                if len(place) < len(tokens):
                    continue  # two tokens are alike, so the order is not to be told
                before, first_out = firsts.setdefault(frozenset(place), (place, out))
                order = tuple(before[token] for token in tokens)
                if order != tuple(range(len(order))):
                    found.append((order, float((out - first_out[list(order)]).abs().max())))
        return found


def _attend(x, mask=None, scale=1.0):
    """One head of attention whose queries, keys and values are the tokens themselves; `mask` is a function of T."""
    scores = scale * x @ x.transpose(1, 2) / math.sqrt(x.size(2))  # (B, T, T)
    if mask is not None:
        scores = scores.masked_fill(~mask(x.size(1)), -math.inf)
    return scores.softmax(-1) @ x


def _causal(T):
    return torch.ones(T, T, dtype=torch.bool).tril()


def _last_row_only(T):
    mask = torch.ones(T, T, dtype=torch.bool)
    mask[0, 1:] = False
    return mask


def _at(place, size=1.0):
    """Attention without a mask, but something is added to the output at one place, a function of T."""

    def attention(x):
        out = _attend(x).clone()
        out[:, min(place(x.size(1)), x.size(1) - 1)] += size
        return out

    return attention


def _block(x):
    x = x + _attend(torch.nn.functional.layer_norm(x, x.shape[-1:]))
    return x + torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, x.shape[-1:]))


def _neighbours(x):
    """Each token plus the two beside it: the same from both ends."""
    zero = torch.zeros_like(x[:, :1])
    return x + torch.cat((zero, x[:, :-1]), 1) + torch.cat((x[:, 1:], zero), 1)


def _positions(x):
    T = torch.arange(x.size(1), dtype=x.dtype)[:, None]
    return _attend(x + torch.sin(T + torch.arange(x.size(2), dtype=x.dtype)))


def _marked_mean(x):
    T = torch.arange(x.size(1), dtype=x.dtype)[:, None]
    return x.mean(1, keepdim=True) + torch.cos(T)


class _Rounding:
    """Attention without a mask, its last bit different from call to call, as sums taken in another order are."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return _attend(x) * (1 + self.calls % 2 * torch.finfo(x.dtype).eps)


def _blind():
    return (
        ("attention without a mask", _attend),
        ("the function that returns its input", lambda x: x),
        ("the mean over all tokens, given to each of them", lambda x: x.mean(1, keepdim=True).expand_as(x)),
        ("a whole block without a mask, with its LayerNorms and an activation", _block),
        ("an MLP that works on each token alone", lambda x: torch.tanh(3 * x) - x.flip(2)),
        ("attention without a mask whose rounding differs from call to call", _Rounding()),
    )


def _sighted():
    return (
        ("attention with the causal mask", lambda x: _attend(x, _causal)),
        ("attention without a mask on tokens with positions", _positions),
        ("the function that moves every token one place on", lambda x: x.roll(1, 1)),
        ("the sum of each token and its two neighbours, which is the same read backwards", _neighbours),
        ("attention in which the first token alone is masked", lambda x: _attend(x, _last_row_only)),
        ("a function that marks place 0 only", _at(lambda T: 0)),
        ("a function that marks the last place only", _at(lambda T: T - 1)),
        ("a function that marks one place in the middle only", _at(lambda T: T // 2)),
        ("a function that marks the last place but one only", _at(lambda T: T - 2)),
        ("a function that leaves its mark, a faint one, at place 1 only", _at(lambda T: 1, size=0.02)),
        ("the mean of all tokens, with a mark for each place on it", _marked_mean),
        ("the last token, given to every place", lambda x: x[:, -1:].expand_as(x)),
    )


def _finder(orders, right=lambda before, order: before[:, order], same=lambda a, b: bool((a - b).abs().max() < 1e-4)):
    """A finder that tries `orders` (a function of T) on eight tokens; `right` is what it expects to see."""

    def order_blind(attention):
        x = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(1))
        before = attention(x.clone())
        return all(same(attention(x[:, order].clone()), right(before, order)) for order in orders(8))

    return order_blind


def _shuffles(T):
    generator = torch.Generator().manual_seed(3)
    return [torch.randperm(T, generator=generator) for _ in range(10)]


# Finders that fail, by the answers that they give to all the functions of the check.
FINDER_MISTAKES = (
    ("it compares the two outputs row by row: the output must move along with the tokens, not stay where it was",
     _finder(_shuffles, right=lambda before, order: before)),
    ("it puts the first output into the opposite order: reorder it exactly as you did the tokens",
     _finder(_shuffles, right=lambda before, order: before[:, order.argsort()])),
    ("it tries cyclic shifts only, and those are few of all the orders",
     _finder(lambda T: [(torch.arange(T) + k) % T for k in range(1, T)])),
    ("it compares sums over all tokens, which forget where each row stands",
     _finder(_shuffles, same=lambda a, b: bool((a.sum(1) - b.sum(1)).abs().max() < 1e-4))),
)  # fmt: skip


def order_blind(order_blind) -> str:
    """order_blind(attention) -> whether attention (B, T, C) -> (B, T, C) commutes with every order of the tokens."""
    need_function(order_blind, "order_blind(attention)")
    findings = []
    for truth, functions in ((True, _blind()), (False, _sighted())):
        for words, attention in functions:
            probe = _Probe(attention)
            said = ask(order_blind, f"order_blind(attention), with {words} as attention,", probe)
            findings.append((_yes_or_no(said), truth, words, probe))
    got = [finding[0] for finding in findings]
    if got == [finding[1] for finding in findings]:
        blind = sum(got)
        _refuse_one_order(order_blind, findings[0][3])
        return f"{blind} blind functions recognised, and {len(got) - blind} that know a place caught"
    if len(set(got)) == 1:
        probe = next(probe for _, truth, _, probe in findings if truth is not got[0])
        why = probe.habit() or (probe.passed_over() if got[0] else "")
        raise Wrong(f"your function says {got[0]} to every attention, blind or not{why}")
    if all(said != truth for said, truth, _, _ in findings):
        raise Wrong("your function says True and False the wrong way round: True means that it is blind to the order")
    cases = [(attention,) for functions in (_blind(), _sighted()) for _, attention in functions]
    known = explain(got, cases, FINDER_MISTAKES, lambda a, b: a is b)
    # Right functions that are accused come first: they stand first in the list.
    said, truth, words, probe = next(finding for finding in findings if finding[0] is not finding[1])
    if known:
        raise Wrong(f"your function {'accuses' if truth else 'misses'} {words}: {known}")
    if truth:
        exact = got[1] and not findings[1][3].habit()  # the function that returns its input has nothing to round
        why = ": it is blind to the order up to rounding, and exact equality asks too much" if exact else ""
        raise Wrong(f"your function accuses {words}{why or probe.habit() or ', which knows no places'}")
    raise Wrong(f"your function misses {words}{probe.habit() or probe.passed_over()}")


def _refuse_one_order(order_blind, probe):
    """Refuse a finder that misses the function which itself moves the tokens into the first order that was tried."""
    if not (moves := probe.moves()):
        return
    order = list(moves[0][0])
    moved = _Probe(lambda x: x[:, order] if x.size(1) == len(order) else x)
    if _yes_or_no(ask(order_blind, "order_blind(attention), with another function as attention,", moved)):
        raise Wrong(
            f"your function misses the one that always moves the tokens into the order {order}{moved.passed_over()}"
        )


def _yes_or_no(said) -> bool:
    if isinstance(said, bool):
        return said
    if getattr(said, "shape", None) == () and str(said.dtype).endswith("bool"):
        return bool(said)
    raise Wrong(f"order_blind(attention) must return True or False, got {shown(said)}")


def previous_token(previous) -> str:
    """previous(T) -> Wq, Wk, both (T, D): with one-hot positions every place after the first attends to the last one.

    The head's weights are softmax over each row of the causal scores (P Wq)(P Wk)ᵀ / sqrt(D), and P is the identity.
    """
    need_function(previous, "previous(T)")
    for T in (8, 2, 3, 16, 64):
        q, k = _two_matrices(ask(previous, f"previous({T})", T), T)
        scores = q @ k.T / math.sqrt(q.size(1))  # (T, T)
        weights = _softmax(scores)
        if not torch.isfinite(weights).all():
            raise Wrong(f"the weights of previous({T}) are NaN: no score may be infinite or NaN, large is enough")
        wanted = weights.diagonal(-1)
        if (wanted < 0.99).any():
            raise Wrong(_why_not_previous(q, k, scores, weights, T))
    return "for T from 2 to 64 every place puts at least 0.99 of its weight on the one before it"


def _softmax(scores):
    return scores.masked_fill(~_causal(len(scores)), -math.inf).softmax(1)


def _two_matrices(value, T):
    what = f"previous({T})"
    try:
        pair = list(value) if isinstance(value, tuple | list) or hasattr(value, "shape") else None
    except Exception:
        pair = None
    if pair is None or len(pair) != 2:
        raise Wrong(f"{what} must return two matrices, Wq and Wk, got {shown(value)}")
    q, k = (as_tensor(part, f"{name} of {what}") for name, part in zip(("Wq", "Wk"), pair, strict=True))
    for name, matrix in (("Wq", q), ("Wk", k)):
        if matrix.dim() != 2 or len(matrix) != T or matrix.size(1) == 0:
            raise Wrong(f"{name} of {what} must have {T} rows, one for each place, got the shape {tuple(matrix.shape)}")
    if q.size(1) != k.size(1):
        raise Wrong(f"Wq and Wk of {what} must be equally wide, got {q.size(1)} and {k.size(1)} columns")
    return q.double(), k.double()


def _why_not_previous(q, k, scores, weights, T) -> str:
    what = f"in previous({T})"
    t = 1 + int((weights.diagonal(-1)).argmin())
    got = float(weights[t, t - 1])
    places = torch.arange(T)
    if T > 2 and (scores.amax(1) - scores.amin(1) <= 1e-6).all():
        return f"{what} the scores of every row are all equal: this is the running mean of page 3"
    best = scores.argmax(1)  # what each place likes most before the mask: tells the direction
    if T > 2 and torch.equal(best, places):
        return f"{what} place {t} likes itself best: the query of place t must match the key of place t - 1"
    if T > 2 and torch.equal(best[:-1], places[1:]):
        return (
            f"{what} the query of place t matches the key of place t + 1, which the mask hides: shift the other way, "
            "or swap Wq and Wk"
        )
    if T > 2 and (_softmax(-scores).diagonal(-1) >= 0.99).all():
        return f"{what} the sign is wrong: the place before has the lowest score and must have the highest"
    if T > 2 and (_softmax(scores.T).diagonal(-1) >= 0.99).all():
        return f"{what} the scores are transposed: rows are the places that look"
    liked = scores.masked_fill(~_causal(T), -math.inf).argmax(1)
    if torch.equal(liked[1:], places[:-1]):
        forgot = _softmax(scores * math.sqrt(q.size(1))).diagonal(-1)
        if (forgot >= 0.99).all():
            return (
                f"{what} place {t} puts {got:.2f} on the one before: enough without the division by the root of D, "
                "too little with it"
            )
        return (
            f"{what} place {t} looks at the right place but too weakly, with {got:.2f}: larger scores make it sharper"
        )
    return f"{what} place {t} puts {got:.2f} on the place before it and likes place {int(liked[t])} best"
