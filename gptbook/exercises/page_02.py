"""The checks of page 2, the bigram baseline."""

import math
from itertools import pairwise

import torch

from gptbook.exercises.answers import Wrong, apart, ask, first_off, need_function, number, settled
from gptbook.exercises.tensors import kept


def bigram_loss(loss) -> str:
    """loss(train, validation, vocab_size) -> mean -ln p of each next token, from add-one counts of pairs."""
    need_function(loss, "loss(train, validation, vocab_size)")
    cases = [_chain(V, n, m, seed) for seed, (V, n, m) in enumerate([(5, 200, 60), (11, 300, 80), (7, 40, 90)])]
    got, same = _losses(loss, "loss", cases)
    right = [_bigram(*case) for case in cases]
    if not all(map(math.isfinite, got)):
        raise Wrong("the loss is infinite or NaN: a pair that the training part lacks must not get the probability 0")
    if settled(got, right, cases, BIGRAM_MISTAKES, same):
        return f"right for {len(cases)} texts, with pairs and symbols that the training part lacks"
    raise Wrong(_off(cases, got, right, same))


def _losses(answer, name, cases):
    """What the reader's function gives in each case, and how to compare it in the precision that it came in."""
    got, tolerance = [], 1e-4
    for train, validation, *rest in cases:
        what = f"{name}(train, validation, {', '.join(map(str, rest))}), for {len(train)} and {len(validation)} tokens,"
        given = train.clone(), validation.clone()
        value = ask(answer, what, *given, *rest)
        got.append(number(value, what))
        kept(given, (train, validation), f"{what} changed its tokens in place: work on copies")
        name_of_dtype = str(getattr(value, "dtype", ""))  # NumPy's "float16", or PyTorch's "torch.bfloat16"
        tolerance = max(tolerance, 0.03 if "bfloat16" in name_of_dtype else 4e-3 * ("float16" in name_of_dtype))
    return got, lambda a, b: _close(a, b, tolerance)


def _off(cases, got, right, same) -> str:
    (train, validation, V, *k), mine, true = first_off(cases, got, right, same)
    judged = f", {len(validation)} to judge and k = {k[0]} it is" if k else f" and {len(validation)} to judge it is"
    true, mine = apart(true, mine)
    return f"for {len(train)} tokens of {V} symbols{judged} {true}, not {mine}"


def _close(a, b, tolerance=1e-4) -> bool:
    return abs(a - b) <= tolerance * max(1.0, abs(b))


def _chain(V, n, m, seed):
    """Two texts from one lopsided chain; symbol V-1 never occurs in the first."""
    generator = torch.Generator().manual_seed(90 + seed)
    rows = torch.rand(V, V, generator=generator) ** 4  # (V, V)
    tokens = [0]
    for i in range(n + m):
        row = rows[tokens[-1]].clone()
        if i < n:
            row[V - 1] = 0
        tokens.append(int(torch.multinomial(row, 1, generator=generator)))
    tokens[n + 3] = V - 1
    return torch.tensor(tokens[:n]), torch.tensor(tokens[n:]), V


def _pairs(tokens, V, start, most=math.inf):
    """Counts of pairs that begin with `start`; none counts more than `most` times."""
    counts = [[start] * V for _ in range(V)]
    for a, b in zip(tokens[:-1].tolist(), tokens[1:].tolist(), strict=True):
        counts[a][b] = min(counts[a][b] + 1, start + most)
    return counts


def _bigram(train, validation, V, start=1.0, chance=None, judged=None, most=math.inf) -> float:
    """Brute force, pair by pair; `chance(counts, a, b)` is the probability that b follows a."""
    chance = chance or (lambda counts, a, b: counts[a][b] / sum(counts[a]))
    counts, judged = _pairs(train, V, start, most), (validation if judged is None else judged).tolist()
    costs = [-math.log(chance(counts, a, b)) for a, b in pairwise(judged)]
    return sum(costs) / len(costs)


def _softmaxed(train, validation, V) -> float:
    counts = torch.tensor(_pairs(train, V, 1.0))  # (V, V)
    table = counts / counts.sum(dim=1, keepdim=True)
    return torch.nn.functional.cross_entropy(table[validation[:-1]], validation[1:]).item()


def _unigram(train, validation, V):
    counts = [1 + int((train == symbol).sum()) for symbol in range(V)]
    return sum(-math.log(counts[b] / sum(counts)) for b in validation[1:].tolist()) / (len(validation) - 1)


ONCE = "a {0} that repeats was counted once: `counts[{1}] += 1` with tensors of indices adds once, so use bincount"
SIXTY_FIVE = "the vocabulary has 65 symbols in your code, whatever you are given: use vocab_size"

BIGRAM_MISTAKES = (
    ("cross_entropy got probabilities and took their softmax once more: give it logarithms, which are logits",
     lambda *c: _softmaxed(*c)),
    ("this is in bits: take the natural logarithm", lambda *c: _bigram(*c) / math.log(2)),
    ("the columns were normalised: given the token before, the chances of the next must sum to 1, so rows",
     lambda *c: _bigram(*c, chance=lambda n, a, b: n[a][b] / sum(row[b] for row in n))),
    ("the pair's index is turned round: a row belongs to the token before, a column to the next",
     lambda *c: _bigram(*c, chance=lambda n, a, b: n[b][a] / sum(n[b]))),
    ("the whole table was normalised: the chance of a pair is not the chance of the next token",
     lambda *c: _bigram(*c, chance=lambda n, a, b: n[a][b] / sum(map(sum, n)))),
    ("the validation part was counted, so the model is judged on what it was made from",
     lambda a, b, V: _bigram(b, b, V)),
    ("the two parts are the wrong way round: count in the training part, judge on the validation part",
     lambda a, b, V: _bigram(b, a, V)),
    ("the training part was judged: the loss is asked for on the validation part", lambda a, b, V: _bigram(a, a, V)),
    ("both parts were counted: the validation part must stay unseen",
     lambda a, b, V: _bigram(torch.cat([a, b]), b, V)),
    ("this is the perplexity, e to the loss", lambda *c: math.exp(_bigram(*c))),
    ("this is the sum over all targets: the mean is asked for",
     lambda a, b, V: _bigram(a, b, V) * (len(b) - 1)),
    ("this divides by the number of tokens: there is one target less than tokens",
     lambda a, b, V: _bigram(a, b, V) * (len(b) - 1) / len(b)),
    ("the sign is wrong: a loss is the mean of minus the logarithm", lambda *c: -_bigram(*c)),
    ("this is a probability, not a loss: average the logarithms",
     lambda a, b, V: sum(math.exp(-_bigram(a, b, V, judged=b[i:i + 2])) for i in range(len(b) - 1)) / (len(b) - 1)),
    ("the logarithm was taken of the mean probability: average the logarithms", lambda a, b, V: -math.log(
        sum(math.exp(-_bigram(a, b, V, judged=b[i:i + 2])) for i in range(len(b) - 1)) / (len(b) - 1))),
    *(("the pairs start with another count than one: one is added for every pair, seen or not",
       lambda *c, start=start: _bigram(*c, start=start)) for start in (2, 0.5, 0.1, 0.01, 1e-3, 1e-6, 1e-8, 1e-10)),
    ("the row sums leave out what was added to the counts, so the chances do not sum to 1",
     lambda a, b, V: _bigram(a, b, V, chance=lambda n, i, j: n[i][j] / max(sum(n[i]) - V, 1))),
    (ONCE.format("pair", "a, b"), lambda *c: _bigram(*c, most=1)),
    (SIXTY_FIVE, lambda a, b, V: _bigram(a, b, V, chance=lambda n, i, j: n[i][j] / (sum(n[i]) + 65 - V))),
    ("only the single tokens were counted: the chance must depend on the token before", _unigram),
    ("the chances are all equal: the counts have no effect", lambda a, b, V: math.log(V)),
)  # fmt: skip


def compressor_rate(rate) -> str:
    """rate(size, characters): the loss in nats of each character of a text that a compressor wrote in `size` bytes."""
    need_function(rate, "rate(size, characters)")
    cases = [(1000, 4000), (33_433, 111_540), (7, 3), (1, 1)]
    got = [number(ask(rate, f"rate({size}, {n})", size, n), f"rate({size}, {n})") for size, n in cases]
    right = [8 * size * math.log(2) / n for size, n in cases]
    if settled(got, right, cases, RATE_MISTAKES, _close):
        return "bytes to bits to nats, and shared among the characters"
    (size, n), mine, true = first_off(cases, got, right, _close)
    true, mine = apart(true, mine)
    raise Wrong(f"{size} bytes for {n} characters are {true} nats for each, not {mine}")


RATE_MISTAKES = (
    ("this is in bits: a bit is ln 2 nats", lambda size, n: 8 * size / n),
    ("this is upside down: characters for each nat", lambda size, n: n / (8 * size * math.log(2))),
    ("a bit is ln 2 nats, so multiply by ln 2 and do not divide by it", lambda size, n: 8 * size / math.log(2) / n),
    ("a byte has eight bits: the eight is missing", lambda size, n: size * math.log(2) / n),
    ("these are bytes for each character: a byte has eight bits, and a bit ln 2 nats", lambda size, n: size / n),
    ("that is the whole text's: share it among the characters", lambda size, n: 8 * size * math.log(2)),
    ("this is the perplexity, e to the loss", lambda size, n: math.exp(min(8 * size * math.log(2) / n, 700))),
    ("the logarithm is the one to base 10: nats need the natural one", lambda size, n: 8 * size * math.log10(2) / n),
)  # fmt: skip


def trigram(answer) -> str:
    """trigram(train, validation, vocab_size, k): mean -ln p of a table of triples mixed with k times the bigram's."""
    need_function(answer, "trigram(train, validation, vocab_size, k)")
    chains = [_chain(V, n, m, seed) for seed, (V, n, m) in enumerate([(5, 200, 60), (9, 300, 80), (6, 60, 90)])]
    cases = [(*chain, k) for chain, k in zip(chains, (2, 0.5, 20), strict=True)]
    got, same = _losses(answer, "trigram", cases)
    right = [_trigram(*case) for case in cases]
    if not all(map(math.isfinite, got)):
        every_pair = torch.tensor([i for a in range(4) for b in range(a, 4) for i in (a, b)] * 2 + [3, 1, 2, 0])
        probe = (every_pair, cases[0][1] % 4, 4, 2)  # no pair is missing from it, some triples are
        if same(_losses(answer, "trigram", [probe])[0][0], _trigram(*probe, start=0.0)):
            raise Wrong("the loss is infinite or NaN: one must be added to every count of the bigram, seen or not")
        raise Wrong("the loss is infinite or NaN: where a context was never seen, 0 + k p over 0 + k is the bigram's p")
    if settled(got, right, cases, TRIGRAM_MISTAKES, same):
        return f"right for {len(cases)} texts, with contexts that the training part lacks"
    raise Wrong(_off(cases, got, right, same))


def _trigram(train, validation, V, k, chance=None, judged=None, start=1.0, most=math.inf, pairs_most=math.inf) -> float:
    """Brute force, triple by triple; `chance(n3, n2, short, a, b, c)` is the probability that c follows a, b."""
    chance = chance or (lambda n3, n2, short, a, b, c: (n3(a, b, c) + k * short(b, c)) / (n2(a, b) + k))
    text = train.tolist()
    triples, contexts = {}, {}
    for a, b, c in zip(text, text[1:], text[2:], strict=False):
        if triples.get((a, b, c), 0) < most:
            triples[a, b, c] = triples.get((a, b, c), 0) + 1
            contexts[a, b] = contexts.get((a, b), 0) + 1
    counts = _pairs(train, V, start, pairs_most)
    judged = (validation if judged is None else judged).tolist()
    costs = [
        -math.log(
            chance(
                lambda *t: triples.get(t, 0), lambda *t: contexts.get(t, 0),
                lambda b, c: counts[b][c] / sum(counts[b]), a, b, c,
            )
        )
        for a, b, c in zip(judged, judged[1:], judged[2:], strict=False)
    ]  # fmt: skip
    return sum(costs) / len(costs)


def _mixed(chance):
    """A wrong version with another idea of the chance; it gets k first."""
    return lambda train, validation, V, k: _trigram(
        train, validation, V, k, lambda *parts: max(chance(k, V, *parts), 1e-300)
    )


def _with_65(train, V, short, b, c):
    """The bigram's chance of c after b if the table had 65 columns."""
    row = V + int((train[:-1] == b).sum())
    return short(b, c) * row / (row + 65 - V)


def _last_pair_counted(train, validation, V, k):
    a, b = train[-2:].tolist()
    return _trigram(train, validation, V, k, lambda n3, n2, short, *t: (
        (n3(*t) + k * short(*t[1:])) / (n2(*t[:2]) + (t[:2] == (a, b)) + k)))  # fmt: skip


def _mixed_with_unigram(train, validation, V, k, start):
    alone = [start + int((train == symbol).sum()) for symbol in range(V)]
    return _trigram(train, validation, V, k, lambda n3, n2, short, a, b, c: max(
        (n3(a, b, c) + k * alone[c] / sum(alone)) / (n2(a, b) + k), 1e-300))  # fmt: skip


TRIGRAM_MISTAKES = (
    ("this is in bits: take the natural logarithm", lambda *c: _trigram(*c) / math.log(2)),
    ("this is the bigram alone: the triples have no effect", _mixed(lambda k, V, n3, n2, short, a, b, c: short(b, c))),
    ("one was added to every triple: add k times what the bigram says",
     _mixed(lambda k, V, n3, n2, short, a, b, c: (n3(a, b, c) + 1) / (n2(a, b) + V))),
    ("k was added to every triple alike: multiply it by what the bigram says",
     _mixed(lambda k, V, n3, n2, short, a, b, c: (n3(a, b, c) + k) / (n2(a, b) + k * V))),
    ("the bigram was looked up under the first symbol of the context: the last one, b, is the neighbour of c",
     _mixed(lambda k, V, n3, n2, short, a, b, c: (n3(a, b, c) + k * short(a, c)) / (n2(a, b) + k))),
    ("the context's two symbols are swapped: row a, b counts what followed a and then b",
     _mixed(lambda k, V, n3, n2, short, a, b, c: (n3(b, a, c) + k * short(b, c)) / (n2(b, a) + k))),
    ("the two symbols of the context are swapped, and so the bigram's row is that of a: the last one, b, precedes c",
     _mixed(lambda k, V, n3, n2, short, a, b, c: (n3(b, a, c) + k * short(a, c)) / (n2(b, a) + k))),
    ("the bigram's index is turned round: p(c | b) has its row for b and its column for c",
     _mixed(lambda k, V, n3, n2, short, a, b, c: (n3(a, b, c) + k * short(c, b)) / (n2(a, b) + k))),
    ("n_ab also counts the pair at the very end of train, which nothing follows: n_ab is the sum of n_abc over all c",
     _last_pair_counted),
    ("the single tokens stand where the bigram belongs: p(c | b) depends on b",
     lambda *c: _mixed_with_unigram(*c, start=1)),
    ("the single tokens stand where the bigram belongs: p(c | b) depends on b",
     lambda *c: _mixed_with_unigram(*c, start=0)),
    (ONCE.format("triple", "a, b, c"), lambda *c: _trigram(*c, most=1)),
    (ONCE.format("pair", "a, b"), lambda *c: _trigram(*c, pairs_most=1)),
    (ONCE.format("triple, and a pair,", "a, b, c"), lambda *c: _trigram(*c, most=1, pairs_most=1)),
    (SIXTY_FIVE, lambda a, b, V, k: _trigram(a, b, V, k, lambda n3, n2, short, *t: (
        (n3(*t) + k * _with_65(a, V, short, *t[1:])) / (n2(*t[:2]) + k)))),
    ("k is missing below the fraction: the chances of a row must sum to 1",
     _mixed(lambda k, V, n3, n2, short, a, b, c: (n3(a, b, c) + k * short(b, c)) / max(n2(a, b), 1))),
    ("below the fraction stands k times the vocabulary: the bigram's row sums to 1, so k is enough",
     _mixed(lambda k, V, n3, n2, short, a, b, c: (n3(a, b, c) + k * short(b, c)) / (n2(a, b) + k * V))),
    ("k has no effect: it stands for 1", _mixed(
        lambda k, V, n3, n2, short, a, b, c: (n3(a, b, c) + short(b, c)) / (n2(a, b) + 1))),
    ("the training part was judged: the loss is asked for on the validation part",
     lambda a, b, V, k: _trigram(a, b, V, k, judged=a)),
    ("the validation part was counted, so the model is judged on what it was made from",
     lambda a, b, V, k: _trigram(b, b, V, k)),
    ("both parts were counted: the validation part must stay unseen",
     lambda a, b, V, k: _trigram(torch.cat([a, b]), b, V, k)),
    ("the two parts are the wrong way round: count in the training part, judge on the validation part",
     lambda a, b, V, k: _trigram(b, a, V, k)),
    ("this is the sum over all targets: the mean is asked for",
     lambda a, b, V, k: _trigram(a, b, V, k) * (len(b) - 2)),
    ("this divides by the number of tokens: there are two targets less than tokens",
     lambda a, b, V, k: _trigram(a, b, V, k) * (len(b) - 2) / len(b)),
    ("the sign is wrong: a loss is the mean of minus the logarithm", lambda *c: -_trigram(*c)),
    ("this is the perplexity, e to the loss", lambda *c: math.exp(_trigram(*c))),
)  # fmt: skip
