"""The checks of page 11, the KV cache."""

import math

import torch

from gptbook.exercises.answers import Wrong, ask, explain, need_function, number, shown, whole_number
from gptbook.exercises.tensors import as_tensor
from gptbook.model import GPTConfig


def _random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _same(a, b) -> bool:
    return a.shape == b.shape and bool(((a.double() - b.double()).abs() <= 1e-5).all())  # NaN is never the same


# --- cached-step ------------------------------------------------------------------------------------------------------


def _by_loops(q, k, v, cache):
    """The output of one head, token by token and number by number: the oracle."""
    S = 0 if cache is None else cache[0].size(0)
    if cache is not None:
        k, v = torch.cat((cache[0], k)), torch.cat((cache[1], v))
    D, out = q.size(1), torch.zeros_like(q)
    for t in range(q.size(0)):
        seen = range(S + t + 1)
        powers = [math.exp(sum(float(q[t, d] * k[s, d]) for d in range(D)) / math.sqrt(D)) for s in seen]
        for s, power in zip(seen, powers, strict=True):
            out[t] += power / sum(powers) * v[s]
    return out


def _attend(mask=lambda T, S: torch.ones(T, S + T).tril(S), scale=math.sqrt, axis=-1, past=True, swap=False):
    """A step with places where a wrong version puts something else."""

    def step(q, k, v, cache):
        if cache is not None and past:
            k, v = torch.cat((cache[0], k)), torch.cat((cache[1], v))
        if swap:
            k, v = v, k
        T, S = q.size(0), k.size(0) - q.size(0)
        scores = (q @ k.T / scale(q.size(1))).masked_fill(mask(T, S) == 0, -math.inf)  # (T, S+T)
        return torch.softmax(scores, dim=axis) @ v  # (T, D)

    return step


STEP_MISTAKES = (
    ("the cache has no effect on the output: new tokens look at the kept ones too", _attend(past=False)),
    ("the scores are not divided by the root of D", _attend(scale=lambda D: 1.0)),
    ("the scores are divided by D, not by its root", _attend(scale=lambda D: D)),
    ("the scores are multiplied by the root of D: it divides them", _attend(scale=lambda D: 1 / math.sqrt(D))),
    ("there is no mask, and when several tokens come at once, the earlier of them see the later ones",
     _attend(mask=lambda T, S: torch.ones(T, S + T))),
    ("the mask counts the new tokens from 0: row t of q is token S + t of the text, and sees the S kept ones as well",
     _attend(mask=lambda T, S: torch.ones(T, S + T).tril())),
    ("the mask is off by one: every token sees the next one",
     _attend(mask=lambda T, S: torch.ones(T, S + T).tril(S + 1))),
    ("the mask is upside down: it hides the past and shows the future",
     _attend(mask=lambda T, S: torch.ones(T, S + T).triu(S))),
    ("new tokens see the kept ones and themselves, but not the new ones that came before them",
     _attend(mask=lambda T, S: torch.cat((torch.ones(T, S), torch.eye(T)), dim=1))),
    ("the softmax goes over the wrong axis: over the tokens looked at, the last one", _attend(axis=0)),
    ("keys and values changed places: scores are made with keys, and the average is of values", _attend(swap=True)),
)  # fmt: skip


def cached_step(step) -> str:
    """step(q, k, v, cache) -> the output (T, D) of one head, and the pair (keys, values) of all S + T tokens."""
    need_function(step, "step(q, k, v, cache)")
    cases = [
        _step_inputs(*sizes) for sizes in ((0, 1, 2), (2, 2, 3), (0, 4, 3), (3, 1, 2), (4, 3, 4), (1, 2, 1), (6, 5, 8))
    ]
    got = [_stepped(step, *case) for case in cases]
    right = [_by_loops(*case) for case in cases]
    if all(_same(a, b) for a, b in zip(got, right, strict=True)):
        return f"the same as one token at a time without a cache, for {len(cases)} shapes"
    if sentence := explain(got, cases, STEP_MISTAKES, _same):
        raise Wrong(sentence)
    (q, _, _, cache), mine, true = next(t for t in zip(cases, got, right, strict=True) if not _same(*t[1:]))
    if torch.isnan(mine).any():
        raise Wrong(f"{_words(q, cache)} the output holds NaN: every token sees itself at least")
    t = int(((mine.double() - true).abs().amax(dim=1) > 1e-5).nonzero()[0])
    late = "" if t == 0 else f", and the {t} before it are right"
    raise Wrong(
        f"{_words(q, cache)} row {t} of the output is off by {float((mine.double() - true).abs().max()):.2g}{late}"
    )


def _step_inputs(S, T, D):
    """q, k, v (T, D) and a cache of S other tokens or None; scores large enough for the scale to show."""
    q, k, v, *kept = (_random(n, D, seed=7 * i + n) for i, n in enumerate((T, T, T, S, S)))
    return 1.5 * q, k, v, tuple(kept) if S else None


def _words(q, cache):
    kept = "cache None" if cache is None else f"a cache of {cache[0].size(0)}"
    return f"for {q.size(0)} new token{'s' if q.size(0) > 1 else ''} of size {q.size(1)} and {kept},"


def _stepped(step, q, k, v, cache):
    """The reader's output, once the cache that came with it is right and nothing given was changed."""
    words = _words(q, cache)
    given = [tensor.clone().float() for tensor in (q, k, v, *(cache or ()))]
    before = [tensor.clone() for tensor in given]
    kept = tuple(given[3:]) if cache else None
    result = ask(step, f"step(q, k, v, cache), {words[:-1]},", *given[:3], kept)
    if not all(torch.equal(a, b) for a, b in zip(given, before, strict=True)):
        raise Wrong(f"{words} step changed what it was given in place: build new tensors, somebody else holds these")
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise Wrong(f"{words} step must return a pair, the output and the new cache, got {shown(result)}")
    out, new = result
    two_in_one = torch.is_tensor(new) and new.dim() == 3
    if not (isinstance(new, tuple | list) or two_in_one) or len(new) != 2:
        raise Wrong(f"{words} the new cache must be a pair (keys, values), got {shown(new)}")
    _check_kept(q, k, v, cache, new, words)
    out = as_tensor(out, f"{words} the output")
    if tuple(out.shape) != tuple(q.shape):
        raise Wrong(
            f"{words} the output must have the shape {tuple(q.shape)}, one row for each new token, got "
            f"{tuple(out.shape)}"
        )
    return out


def _check_kept(q, k, v, cache, new, words):
    keys, values = (as_tensor(new[i], f"{words} the new cache's {name}") for i, name in enumerate(("keys", "values")))
    right = (k, v) if cache is None else (torch.cat((cache[0], k)), torch.cat((cache[1], v)))
    if _same(keys, right[0]) and _same(values, right[1]):
        return
    if _same(keys, right[1]) and _same(values, right[0]):
        raise Wrong(f"{words} the new cache holds the values first: keys, then values")
    wrong = keys if not _same(keys, right[0]) else values
    name, i = ("keys", 0) if wrong is keys else ("values", 1)
    old, added = (None, None) if cache is None else (cache[i], (k, v)[i])
    if cache is not None and _same(wrong, old):
        raise Wrong(f"{words} the new cache holds the {name} of the old one: those of the new tokens must follow them")
    if cache is not None and _same(wrong, added):
        raise Wrong(f"{words} the new cache holds the {name} of the new tokens only: the old ones come before them")
    if cache is not None and _same(wrong, torch.cat((added, old))):
        raise Wrong(f"{words} the new cache has new {name} before old ones: they stand in the order of the text")
    if cache is not None and old.shape == added.shape and _same(wrong, torch.cat((old, added), dim=1)):
        raise Wrong(f"{words} the {name} were put side by side: tokens are rows, so glue along axis 0")
    if _same(wrong, right[i].T):
        raise Wrong(f"{words} the new cache's {name} are transposed: tokens are rows, as in k and v")
    if wrong.shape != right[i].shape:
        raise Wrong(
            f"{words} the new cache's {name} must have the shape {tuple(right[i].shape)}, got {tuple(wrong.shape)}"
        )
    raise Wrong(f"{words} the new cache's {name} are not those that were given, old ones first, then new ones")


# --- cached-work ------------------------------------------------------------------------------------------------------


def _products(L, C, V, read, seen, visible=False):
    """Multiply-adds of a pass that reads `read` tokens and looks at `seen`: matrix product by matrix product."""
    total = 0
    for _ in range(L):
        total += read * C * 3 * C  # queries, keys, values
        total += read * seen * C  # scores
        total += read * seen * C  # weighted sums
        total += read * C * C  # projection
        total += read * C * 4 * C + read * 4 * C * C  # MLP
    return total + read * C * V  # unembedding


def _passes(way, prompt, new):
    """(tokens read, tokens seen) of each pass: `way` is 0 without a cache and 1 with."""
    if way == 0:
        return [(m, m) for m in range(prompt, prompt + new)]
    return [(prompt, prompt), *((1, m) for m in range(prompt + 1, prompt + new))]


def _right(way, L, C, V, prompt, new):
    return sum(_products(L, C, V, *sizes) for sizes in _passes(way, prompt, new))


def _counted(matrices=lambda L, C, V: 12 * L * C**2 + V * C, pair=lambda L, C: 2 * L * C, passes=_passes, once=None):
    """A count by the formula, with places where a wrong version puts something else."""

    def work(way, L, C, V, prompt, new):
        total = 0
        for read, seen in passes(way, prompt, new):
            total += read * matrices(L, C, V) + read * seen * pair(L, C)
            total += once(L, C, V) if once else 0
        return total

    return work


def _visible(way, L, C, V, prompt, new):
    hidden = sum(read * (read - 1) // 2 for read, _ in _passes(way, prompt, new))
    return _right(way, L, C, V, prompt, new) - 2 * L * C * hidden


WORK_MISTAKES = (
    ("one pass too many is counted: no pass reads the last token that is written",
     lambda way, L, C, V, prompt, new: _right(way, L, C, V, prompt, new + 1)),
    ("the pass that reads the prompt is missing: it writes the first new token",
     _counted(passes=lambda way, p, n: _passes(way, p, n)[1:])),
    ("the prompt has no effect: the first pass reads all of it, in both ways",
     lambda way, L, C, V, prompt, new: _right(way, L, C, V, 1, new)),
    ("the prompt is read one token at a time: one pass reads all of it, and computes its hidden scores as well",
     _counted(passes=lambda way, p, n: [(1, m) for m in range(1, p + n)])),
    ("every pass reads one token, and looks at that one only: each of its scores is with a kept key, so with all",
     _counted(passes=lambda way, p, n: [(p, p), *((1, 1) for _ in range(n - 1))])),
    ("the cached steps look at the prompt only: they also look at what was written since, and at themselves",
     _counted(passes=lambda way, p, n: [(p, p), *((1, p) for _ in range(n - 1))])),
    ("a cached step looks at one token too few: the new token sees itself too",
     _counted(passes=lambda way, p, n: [(p, p), *((1, m - 1) for m in range(p + 1, p + n))])),
    ("every pass reads one token: without a cache, a pass reads the whole text so far",
     lambda way, *case: _right(1, *case)),
    ("every pass reads the whole text: with a cache, a pass after the first reads one token",
     lambda way, *case: _right(0, *case)),
    ("every pass is as long as the last one: the text grows by one token with each",
     _counted(passes=lambda way, p, n: [(p + n - 1, p + n - 1)] * n)),
    ("only the last pass is counted: add up all of them", _counted(passes=lambda way, p, n: _passes(way, p, n)[-1:])),
    ("the unembedding is missing: V C for each token that a pass reads",
     _counted(matrices=lambda L, C, V: 12 * L * C**2)),
    ("the unembedding is counted once a pass: the model makes logits for every token that it reads",
     _counted(matrices=lambda L, C, V: 12 * L * C**2, once=lambda L, C, V: V * C)),
    ("the scores and weighted sums are missing: 2 C for each pair of tokens, in each block",
     _counted(pair=lambda L, C: 0)),
    ("a pair of tokens costs 2 C: C for its score, and C for its part in the weighted sum",
     _counted(pair=lambda L, C: L * C)),
    ("the pairs of one block only are counted: there are L", _counted(pair=lambda L, C: 2 * C)),
    ("the matrices of one block only are counted: there are L",
     _counted(matrices=lambda L, C, V: 12 * C**2 + V * C)),
    ("the matrices of attention are missing: 4 C² in each block, beside the 8 C² of the MLP",
     _counted(matrices=lambda L, C, V: 8 * L * C**2 + V * C)),
    ("the matrices of the MLP are missing: 8 C² in each block, beside the 4 C² of attention",
     _counted(matrices=lambda L, C, V: 4 * L * C**2 + V * C)),
    ("hidden scores are left out: the code computes them before it hides them, so they count", _visible),
    ("multiplications and additions are counted apart: a multiply-add is both, and counts once",
     lambda way, *case: 2 * _right(way, *case)),
)  # fmt: skip


def cached_work(work) -> str:
    """work(L, C, V, prompt, new) -> multiply-adds of one row without a cache, and with one."""
    need_function(work, "work(L, C, V, prompt, new)")
    cases = [(2, 8, 5, 3, 4), (3, 6, 7, 1, 5), (1, 4, 9, 5, 2), (4, 128, 65, 10, 55), (2, 10, 3, 4, 1), (1, 2, 3, 1, 1)]
    got = []
    for case in cases:
        what = f"work{case}"
        result = ask(work, what, *case)
        result = result.tolist() if hasattr(result, "tolist") else result
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise Wrong(f"{what} must return a pair, without and with a cache, got {shown(result)}")
        got.append([number(value, f"each number of {what}") for value in result])
    right = [[_right(way, *case) for way in (0, 1)] for case in cases]
    equal = [[_close(a, b) for a, b in zip(mine, true, strict=True)] for mine, true in zip(got, right, strict=True)]
    if all(map(all, equal)):
        return f"every multiply-add counted, in {len(cases)} cases"
    if all(_close(mine[0], true[1]) and _close(mine[1], true[0]) for mine, true in zip(got, right, strict=True)):
        raise Wrong("the two numbers changed places: without a cache first, then with one")
    for way, words in ((0, "without a cache"), (1, "with a cache")):
        if not all(e[way] for e in equal):
            known = [(text, lambda *case, f=f, way=way: f(way, *case)) for text, f in WORK_MISTAKES]
            if sentence := explain([mine[way] for mine in got], cases, known, _close):
                raise Wrong(f"{words}: {sentence}")
    i = next(i for i, e in enumerate(equal) if not all(e))
    way = equal[i].index(False)
    raise Wrong(
        f"{('without', 'with')[way]} a cache, work{cases[i]} is {got[i][way]:,.10g}, and the matrix products of all "
        f"passes together take {right[i][way]:,}"
    )


def _close(a, b) -> bool:
    return abs(a - b) <= 1e-6 * abs(b)


# --- rows-that-fit ----------------------------------------------------------------------------------------------------


def _rows(
    config, parameters, memory, size, *, kinds=2, width=None, layers=None, tokens=None, weights=1, cache=1, up=False
):
    """How many rows fit, with places where a wrong version puts something else."""
    width = config.n_embd if width is None else width(config)
    layers = config.n_layer if layers is None else layers
    tokens = config.block_size if tokens is None else tokens
    left = memory - weights * parameters * size
    each = kinds * layers * tokens * width * size * cache
    return max(0, -(-left // each) if up else left // each)


def _wrong(**changes):
    return lambda *case: _rows(*case, **changes)


ROWS_MISTAKES = (
    ("keys and values are both kept: that is twice as much as one of them", _wrong(kinds=1)),
    ("queries are counted as well: no later token asks for them, and they are not kept", _wrong(kinds=3)),
    ("a token's key and value were multiplied by the number of heads: all heads together hold C numbers of each",
     _wrong(width=lambda c: c.n_embd * c.n_head)),
    ("only one head is counted: all heads together hold C numbers for keys, and C for values",
     _wrong(width=lambda c: c.n_embd // c.n_head)),
    ("only one block is counted: each has a cache of its own", _wrong(layers=1)),
    ("a cache of one token is counted: a full one holds block_size of them", _wrong(tokens=1)),
    ("the weights have no effect: they lie in the same memory", _wrong(weights=0)),
    ("the weights were counted again for each row: all rows share them",
     lambda c, p, m, s: m // ((p + 2 * c.n_layer * c.block_size * c.n_embd) * s)),
    ("the size of a number has no effect: memory is in bytes", lambda c, p, m, s: _rows(c, p, m, 1)),
    ("the weights are counted as one byte each: they take size bytes as well",
     lambda c, p, m, s: max(0, (m - p) // (2 * c.n_layer * c.block_size * c.n_embd * s))),
    ("the numbers of the cache are counted as one byte each: they take size bytes as well",
     lambda c, p, m, s: max(0, (m - p * s) // (2 * c.n_layer * c.block_size * c.n_embd))),
    ("size is read as bits: it is in bytes", lambda c, p, m, s: _rows(c, p, m, s / 8)),
    ("the last row does not fit whole: round down", _wrong(up=True)),
    ("the last row does not fit whole: round down, and below zero there are no rows",
     lambda c, p, m, s: math.ceil((m - p * s) / (2 * c.n_layer * c.block_size * c.n_embd * s))),
    ("there is a row too many where nothing fits: if the weights alone are too large, the answer is 0",
     lambda c, p, m, s: max(1, _rows(c, p, m, s))),
    ("the answer is below zero where the weights alone are too large: then no row fits, which is 0",
     lambda c, p, m, s: (m - p * s) // (2 * c.n_layer * c.block_size * c.n_embd * s)),
)  # fmt: skip


def rows_that_fit(rows) -> str:
    """rows_that_fit(config, parameters, memory, size) -> how many full caches have room beside the weights."""
    need_function(rows, "rows_that_fit(config, parameters, memory, size)")
    small = GPTConfig(vocab_size=11, block_size=8, n_layer=3, n_head=2, n_embd=12)
    wide = GPTConfig(vocab_size=50257, block_size=1024, n_layer=12, n_head=12, n_embd=768)
    cases = [
        (small, 5_000, 50_000, 4), (small, 5_000, 50_000, 2), (GPTConfig(), 816_640, 10_000_000, 4),
        (wide, 124_439_808, 2**30, 2), (wide, 124_439_808, 8 * 2**30, 4), (small, 5_000, 20_000, 4),
        (small, 5_000, 20_000 + 3 * 2304, 4), (small, 5_000, 15_000, 4),
    ]  # fmt: skip
    got = []
    for config, *rest in cases:
        what = f"rows_that_fit(config, {', '.join(map(str, rest))})"
        result = ask(rows, what, config, *rest)
        if isinstance(result, float) and not result.is_integer():
            raise Wrong(f"{what} must be a whole number of rows, got {shown(result)}: a part of a row is no row")
        got.append(int(result) if isinstance(result, float) else whole_number(result, what))
    right = [_rows(*case) for case in cases]
    if got == right:
        return f"right for {len(cases)} machines"
    if sentence := explain(got, cases, ROWS_MISTAKES, lambda a, b: a == b):
        raise Wrong(sentence)
    (config, *rest), mine, true = next(t for t in zip(cases, got, right, strict=True) if t[1] != t[2])
    raise Wrong(
        f"{true} rows fit where your function says {mine}: L = {config.n_layer}, T = {config.block_size}, C = "
        f"{config.n_embd}, {rest[0]:,} parameters, {rest[1]:,} bytes, and {rest[2]} for each number"
    )
