"""Answers to the exercises of page 11, right and wrong."""

import math

import torch
import torch.nn.functional as F

# --- cached-step ---


def step(q, k, v, cache):
    if cache is not None:
        k, v = torch.cat((cache[0], k)), torch.cat((cache[1], v))
    S = len(k) - len(q)
    hidden = torch.ones(len(q), len(k), dtype=torch.bool).triu(S + 1)
    scores = (q @ k.T / math.sqrt(q.size(1))).masked_fill(hidden, -math.inf)
    return scores.softmax(dim=-1) @ v, (k, v)


def step_by_rows(q, k, v, cache):
    """One new token at a time, so that no mask is needed."""
    keys, values = ([], []) if cache is None else map(list, cache)
    out = []
    for query, key, value in zip(q, k, v, strict=True):
        keys.append(key)
        values.append(value)
        weights = torch.softmax(torch.stack(keys) @ query / q.size(1) ** 0.5, dim=0)
        out.append(weights @ torch.stack(values))
    return torch.stack(out), (torch.stack(keys), torch.stack(values))


def step_by_pytorch(q, k, v, cache):
    """PyTorch's own attention, with a mask of the positions; the cache is one tensor."""
    q, new = q.double(), torch.stack((k, v)).double()
    kept = new if cache is None else torch.cat((torch.stack(tuple(cache)).double(), new), dim=1)
    place = torch.arange(kept.size(1))
    allowed = place <= place[-len(q) :, None]
    return F.scaled_dot_product_attention(q, *kept, attn_mask=allowed), kept


class Step(torch.nn.Module):
    def forward(self, q, k, v, cache):
        return [*step(q, k, v, cache)]


def attending(change=lambda scores, S: scores, scale=math.sqrt, axis=-1, hide=lambda S: S + 1, kept=None, glued=None):
    """A step in which one line is another one."""

    def wrong(q, k, v, cache):
        glue = glued or (lambda old, new: torch.cat((old, new)))
        K, V = (k, v) if cache is None else (glue(cache[0], k), glue(cache[1], v))
        keys, values = (
            (K, V) if glued is None or cache is None else (torch.cat((cache[0], k)), torch.cat((cache[1], v)))
        )
        S = len(keys) - len(q)
        scores = q @ keys.T / scale(q.size(1))
        scores = scores.masked_fill(torch.ones(scores.shape, dtype=torch.bool).triu(hide(S)), -math.inf)
        return scores.softmax(dim=axis) @ values, kept(K, V, k, v, cache) if kept else (K, V)

    return wrong


def step_without_past(q, k, v, cache):
    out, _ = step(q, k, v, None)
    return out, step(q, k, v, cache)[1]


def step_in_place(q, k, v, cache):
    out, kept = step(q, k, v, cache)
    if cache is not None:
        cache[0].resize_(kept[0].shape).copy_(kept[0])
        cache[1].resize_(kept[1].shape).copy_(kept[1])
        return out, cache
    return out, kept


def step_scaling_in_place(q, k, v, cache):
    q /= math.sqrt(q.size(1))
    return step(q * math.sqrt(q.size(1)), k, v, cache)


def step_seeing_only_itself_of_the_new(q, k, v, cache):
    _, (K, V) = step(q, k, v, cache)
    S, T = len(K) - len(q), len(q)
    hidden = torch.cat((torch.zeros(T, S), 1 - torch.eye(T)), dim=1).bool()
    scores = (q @ K.T / math.sqrt(q.size(1))).masked_fill(hidden, -math.inf)
    return scores.softmax(dim=-1) @ V, (K, V)


def step_swapped(q, k, v, cache):
    old = None if cache is None else (cache[1], cache[0])
    return step(q, v, k, old)[0], step(q, k, v, cache)[1]


# --- cached-work ---


def work(L, C, V, prompt, new):
    token, pair = 12 * L * C * C + V * C, 2 * L * C

    def one_pass(read, seen):
        return read * token + read * seen * pair

    without = sum(one_pass(m, m) for m in range(prompt, prompt + new))
    return without, one_pass(prompt, prompt) + sum(one_pass(1, m) for m in range(prompt + 1, prompt + new))


def work_in_closed_form(L, C, V, prompt, new):
    """Sums of whole numbers and of squares, without a loop; divisions make floats of them."""
    token, pair, last = 12 * L * C**2 + V * C, 2 * L * C, prompt + new - 1

    def triangle(n):
        return n * (n + 1) / 2

    def squares(n):
        return n * (n + 1) * (2 * n + 1) / 6

    without = token * (triangle(last) - triangle(prompt - 1)) + pair * (squares(last) - squares(prompt - 1))
    return without, token * last + pair * (prompt**2 + triangle(last) - triangle(prompt))


def work_by_the_package(L, C, V, prompt, new):
    from gptbook.kv_cache import multiply_adds
    from gptbook.model import GPTConfig

    config = GPTConfig(vocab_size=V, n_layer=L, n_head=1, n_embd=C)
    without = sum(multiply_adds(config, prompt + i) for i in range(new))
    cached = multiply_adds(config, prompt) + sum(multiply_adds(config, 1, prompt + i) for i in range(new - 1))
    return torch.tensor([without, cached])


def counting(token=lambda L, C, V: 12 * L * C * C + V * C, pair=lambda L, C: 2 * L * C, without=None, cached=None):
    """A count in which one thing is another: the passes are lists of (read, seen)."""

    def wrong(L, C, V, prompt, new):
        passes = [(m, m) for m in range(prompt, prompt + new)] if without is None else without(prompt, new)
        steps = [(prompt, prompt)] + [(1, m) for m in range(prompt + 1, prompt + new)]
        steps = steps if cached is None else cached(prompt, new)
        return tuple(
            sum(read * token(L, C, V) + read * seen * pair(L, C) for read, seen in way) for way in (passes, steps)
        )

    return wrong


def work_with_one_unembedding(L, C, V, prompt, new):
    without, cached = counting(token=lambda L, C, V: 12 * L * C * C)(L, C, V, prompt, new)
    return without + new * V * C, cached + new * V * C


def work_of_visible_pairs(L, C, V, prompt, new):
    token, pair = 12 * L * C * C + V * C, 2 * L * C
    without = sum(m * token + m * (m + 1) // 2 * pair for m in range(prompt, prompt + new))
    return without, sum(token + m * pair for m in range(1, prompt + new))


# --- rows-that-fit ---


def rows_that_fit(config, parameters, memory, size):
    left = memory - parameters * size
    each = 2 * config.n_layer * config.block_size * config.n_embd * size
    return max(left // each, 0)


def rows_by_trying(config, parameters, memory, size):
    D = config.n_embd // config.n_head
    row = config.n_layer * config.n_head * config.block_size * (D + D)
    rows = 0
    while (parameters + (rows + 1) * row) * size <= memory:
        rows += 1
    return rows


def rows_from_a_tensor(config, parameters, memory, size):
    each = torch.tensor([2, config.n_layer, config.block_size, config.n_embd]).prod()
    return (
        (memory // size - parameters).clamp(min=0) // each
        if torch.is_tensor(memory)
        else torch.tensor(max(memory // size - parameters, 0)) // each
    )


def fitting(kinds=2, width=lambda c: c.n_embd, layers=lambda c: c.n_layer, tokens=lambda c: c.block_size, left=None):
    def wrong(c, parameters, memory, size):
        room = memory - parameters * size if left is None else left(parameters, memory, size)
        return max(0, room // (kinds * layers(c) * tokens(c) * width(c) * size))

    return wrong


RIGHT = {
    "cached-step": [step, step_by_rows, step_by_pytorch, Step()],
    "cached-work": [work, work_in_closed_form, work_by_the_package],
    "rows-that-fit": [rows_that_fit, rows_by_trying, rows_from_a_tensor],
}

WRONG = {
    "cached-step": [
        (step_without_past, "the cache has no effect"),
        (attending(scale=lambda D: 1.0), "not divided by the root"),
        (attending(scale=lambda D: D), "divided by D, not by its root"),
        (attending(scale=lambda D: D**-0.5), "multiplied by the root"),
        (attending(hide=lambda S: 99), "there is no mask"),
        (attending(hide=lambda S: 1), "counts the new tokens from 0"),
        (attending(hide=lambda S: S + 2), "off by one: every token sees the next"),
        (attending(hide=lambda S: S), "every token sees itself at least"),
        (attending(axis=0), "wrong axis"),
        (step_seeing_only_itself_of_the_new, "not the new ones that came before them"),
        (step_swapped, "keys and values changed places"),
        (attending(kept=lambda K, V, k, v, cache: cache or (k, v)), "those of the new tokens must follow"),
        (attending(kept=lambda K, V, k, v, cache: (k, v)), "of the new tokens only"),
        (attending(kept=lambda K, V, k, v, cache: (V, K)), "values first"),
        (attending(kept=lambda K, V, k, v, cache: (K.T, V.T)), "are transposed"),
        (attending(kept=lambda K, V, k, v, cache: cache), "must be a pair (keys, values), got None"),
        (attending(kept=lambda K, V, k, v, cache: (K[-3:], V[-3:])), "must have the shape (4, 3)"),
        (attending(kept=lambda K, V, k, v, cache: (K, 2 * V)), "are not those that were given"),
        (attending(glued=lambda old, new: torch.cat((new, old))), "before old ones"),
        (attending(glued=lambda old, new: torch.cat((old, new), dim=1)), "side by side"),
        (step_in_place, "in place"),
        (step_scaling_in_place, "in place"),
        (lambda q, k, v, cache: step(q, k, v, cache)[0], "must return a pair"),
        (lambda q, k, v, cache: (step(q, k, v, cache)[0].T, step(q, k, v, cache)[1]), "one row for each new token"),
        (lambda q, k, v, cache: (step(q, k, v, cache)[0][-1:], step(q, k, v, cache)[1]), "one row for each new token"),
        (lambda q, k, v, cache: (1.1 * step(q, k, v, cache)[0], step(q, k, v, cache)[1]), "is off by"),
    ],
    "cached-work": [
        (lambda *case: work(*case)[::-1], "changed places"),
        (lambda L, C, V, p, n: work(L, C, V, p, n + 1), "one pass too many"),
        (lambda L, C, V, p, n: work(L, C, V, 1, n), "the prompt has no effect"),
        (counting(cached=lambda p, n: [(1, m) for m in range(p + 1, p + n)]), "with a cache: the pass that reads"),
        (counting(cached=lambda p, n: [(1, m) for m in range(1, p + n)]), "one token at a time"),
        (counting(cached=lambda p, n: [(p, p)] + [(1, 1)] * (n - 1)), "looks at that one only"),
        (counting(cached=lambda p, n: [(p, p)] + [(1, p)] * (n - 1)), "look at the prompt only"),
        (counting(cached=lambda p, n: [(p, p)] + [(1, p + i) for i in range(n - 1)]), "one token too few"),
        (lambda *case: (work(*case)[0],) * 2, "every pass reads the whole text"),
        (lambda *case: (work(*case)[1],) * 2, "without a cache: every pass reads one token"),
        (counting(without=lambda p, n: [(p + n - 1, p + n - 1)] * n), "as long as the last one"),
        (counting(without=lambda p, n: [(p + n - 1, p + n - 1)]), "only the last pass"),
        (counting(token=lambda L, C, V: 12 * L * C * C), "the unembedding is missing"),
        (work_with_one_unembedding, "once a pass"),
        (counting(pair=lambda L, C: 0), "scores and weighted sums are missing"),
        (counting(pair=lambda L, C: L * C), "a pair of tokens costs 2 C"),
        (counting(pair=lambda L, C: 2 * C), "the pairs of one block only"),
        (counting(token=lambda L, C, V: 12 * C * C + V * C), "the matrices of one block only"),
        (counting(token=lambda L, C, V: 8 * L * C * C + V * C), "matrices of attention are missing"),
        (counting(token=lambda L, C, V: 4 * L * C * C + V * C), "matrices of the MLP are missing"),
        (work_of_visible_pairs, "hidden scores are left out"),
        (lambda *case: tuple(2 * n for n in work(*case)), "counted apart"),
        (lambda *case: work(*case)[0], "must return a pair"),
        (lambda *case: (work(*case)[0], work(*case)[1] + 1000), "matrix products of all passes"),
    ],
    "rows-that-fit": [
        (fitting(kinds=1), "keys and values are both kept"),
        (fitting(kinds=3), "queries are counted as well"),
        (fitting(width=lambda c: c.n_embd * c.n_head), "multiplied by the number of heads"),
        (fitting(width=lambda c: c.n_embd // c.n_head), "only one head is counted"),
        (fitting(layers=lambda c: 1), "only one block is counted"),
        (fitting(tokens=lambda c: 1), "a cache of one token"),
        (fitting(left=lambda p, m, s: m), "the weights have no effect"),
        (lambda c, p, m, s: m // ((p + 2 * c.n_layer * c.block_size * c.n_embd) * s), "again for each row"),
        (lambda c, p, m, s: rows_that_fit(c, p, m, 1), "the size of a number has no effect"),
        (fitting(left=lambda p, m, s: m - p), "the weights are counted as one byte each"),
        (lambda c, p, m, s: max(0, (m - p * s) // (2 * c.n_layer * c.block_size * c.n_embd)),
         "the numbers of the cache are counted as one byte"),
        (lambda c, p, m, s: math.ceil((m - p * s) / (2 * c.n_layer * c.block_size * c.n_embd * s)), "round down"),
        (lambda c, p, m, s: (m - p * s) / (2 * c.n_layer * c.block_size * c.n_embd * s), "a part of a row is no row"),
        (lambda c, p, m, s: (m - p * s) // (2 * c.n_layer * c.block_size * c.n_embd * s), "below zero"),
        (lambda c, p, m, s: max(1, rows_that_fit(c, p, m, s)), "a row too many where nothing fits"),
        (lambda c, p, m, s: rows_that_fit(c, p, m, s) + 5, "rows fit where your function says"),
    ],
}  # fmt: skip
