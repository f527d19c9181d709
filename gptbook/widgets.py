"""What a reader can turn on a page, and is too large to stand in it: a real model's chances, attention, layers, words.

Each function takes what a model gave (lists, arrays or tensors) and returns something to show. By itself, in a
notebook, without scripts and in print, it shows one picture. The site publishes a file beside it, and the element of
the same name (docs/assets/*.js) loads that and draws the rest. The file is of the safetensors format; what is no tensor
stands in its metadata, as JSON under "about".
"""

import html
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from safetensors.numpy import save

from gptbook.display import Data, bundle, readable, share, share_bars

EXACT = 100  # logits of each prompt that are published as they are
COOLEST = 0.05  # the lowest temperature above 0 that the chances are made for
WIDTH = 0.06 * COOLEST  # of a group of other logits: see `grouped`


class _Shown:
    """Something with a first picture, and a file for the script that draws the others."""

    tag: str

    def _about(self) -> dict: ...

    def _tensors(self) -> dict[str, np.ndarray]: ...

    def _picture(self) -> str: ...

    def data(self) -> Data:
        """The file that the site publishes."""
        tensors = {name: np.ascontiguousarray(tensor) for name, tensor in self._tensors().items()}
        return Data(self.tag, save(tensors, {"about": json.dumps(self._about())}), "safetensors")

    def __repr__(self):
        return str(self)

    def _html(self, file: Data) -> str:
        return f'<{self.tag} data-file="{file.name}">{self._picture()}</{self.tag}>'

    def _repr_html_(self):
        return self._html(self.data())

    def _repr_mimebundle_(self, include=None, exclude=None):
        return bundle(self, self.data())


def _array(values) -> np.ndarray:
    """Numbers as float32, whatever holds them: a tensor may want gradients, or be of a type that NumPy has not."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().float()
    return np.asarray(values, dtype=np.float32)


def _finite(values, what: str) -> np.ndarray:
    values = _array(values)
    if not np.isfinite(values).all():
        raise ValueError(f"the {what} hold NaN or inf: the model's weights or inputs are broken")
    return values


# Next tokens ----------------------------------------------------------------------------------------------------------


def grouped(logits) -> tuple[np.ndarray, np.ndarray]:
    """Logits (N,), falling from the highest on, as groups of near ones: (means, counts), without the first `EXACT`.

    A group is at most `WIDTH` times max(1, d) wide, d being how far below the highest logit it begins. At temperature
    t, n logits of mean m spread over w have a sum of exp(logit / t) between n exp(m / t) and exp((w / t)² / 8) times
    that (Jensen's inequality, Hoeffding's lemma): for t from `COOLEST` up, less than 0.05 % more. Groups far below are
    wider, but matter only where t is high enough for them.
    """
    logits = np.asarray(logits, dtype=np.float64)
    means, counts, start = [], [], EXACT
    while start < len(logits):
        width = WIDTH * max(1.0, logits[0] - logits[start])
        end = int(np.searchsorted(-logits, width - logits[start], side="right"))
        means.append(logits[start:end].mean())
        counts.append(end - start)
        start = end
    return np.array(means, dtype=np.float32), np.array(counts, dtype=np.int32)


@dataclass(frozen=True, repr=False)
class NextTokens(_Shown):
    """Bars of the likeliest next tokens of a large vocabulary, after some prompts."""

    prompts: tuple[str, ...]
    vocab_size: int
    symbols: tuple[tuple[str, ...], ...]  # of the likeliest tokens after each prompt
    logits: tuple[np.ndarray, ...] = field(compare=False)  # of the same
    others: tuple[tuple[np.ndarray, np.ndarray], ...] = field(compare=False)  # `grouped`
    chances: tuple[float, ...]  # of the bars after the first prompt, at temperature 1
    tag = "next-tokens"

    def _about(self):
        top = len(self.chances)
        return {"prompts": self.prompts, "V": self.vocab_size, "symbols": self.symbols, "top": top}

    def _tensors(self):
        found = {f"logits.{i}": logits for i, logits in enumerate(self.logits)}
        for i, (means, counts) in enumerate(self.others):
            found |= {f"means.{i}": means, f"counts.{i}": counts}
        return found

    def bars(self) -> list[tuple[str, float]]:
        """(symbol, chance) of the likeliest tokens after the first prompt, of equal ones the lower id first."""
        return list(zip(self.symbols[0], self.chances, strict=False))

    def __str__(self):
        width = max(len(symbol) for symbol, _ in self.bars())
        bars = (f"{symbol:<{width}}  {p:6.1%}  {'█' * round(40 * p)}".rstrip() for symbol, p in self.bars())
        return "\n".join([f"after {self.prompts[0]!r}:", *bars])

    def _picture(self):
        return share_bars(self.prompts[0], self.bars())


def next_tokens(prompts, logits, symbol, top: int = 15) -> NextTokens:
    """Bars of the `top` likeliest tokens after each prompt, from its row of logits (V,); `symbol(id)` names a token.

    `display.next_tokens` is the same for a vocabulary that fits on a page. Here the `EXACT` highest logits are
    published as they are, the others as groups (`grouped`). Raises ValueError where rows do not fit or are not finite.
    """
    rows = [_finite(row, "logits") for row in logits]
    if not rows or len(rows) != len(prompts) or any(row.shape != rows[0].shape or row.ndim != 1 for row in rows):
        raise ValueError("needs a row of logits (V,) for each prompt, all of one length, and one prompt at least")
    orders = [np.argsort(-row, kind="stable") for row in rows]
    falling = [row[order] for row, order in zip(rows, orders, strict=True)]
    weights = np.exp((falling[0] - falling[0][0]).astype(np.float64))
    return NextTokens(
        prompts=tuple(map(readable, prompts)),
        vocab_size=len(rows[0]),
        symbols=tuple(tuple(readable(symbol(int(i))) for i in order[:EXACT]) for order in orders),
        logits=tuple(row[:EXACT] for row in falling),
        others=tuple(map(grouped, falling)),
        chances=tuple((weights / weights.sum())[: min(top, EXACT)].tolist()),
    )


# Attention ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class AttentionView(_Shown):
    """Where each head of each layer looks, on several texts."""

    texts: tuple[tuple[str, ...], ...]  # the tokens of each
    weights: tuple[np.ndarray, ...] = field(compare=False)  # (L, H, T(T + 1) / 2) of bytes: the rows up to the diagonal
    start: tuple[int, int]  # layer and head
    known: tuple[tuple[str, int, int], ...]  # name, layer, head
    token: int  # of the first text, whose look is told first
    tag = "attention-view"

    def row(self, text: int, layer: int, head: int, t: int) -> np.ndarray:
        """How much token t of a text looks at the tokens 0 to t, as published."""
        begin = t * (t + 1) // 2
        return self.weights[text][layer, head, begin : begin + t + 1] / 255

    def _about(self):
        return {"texts": self.texts, "start": self.start, "known": self.known, "token": self.token}

    def _tensors(self):
        return {f"weights.{i}": weights for i, weights in enumerate(self.weights)}

    def __str__(self):
        tokens, (layer, head) = self.texts[0], self.start
        lines = [f"layer {layer}, head {head}: the token, and what it looks at most"]
        width = max(map(len, tokens))
        for t, token in enumerate(tokens):
            row = self.row(0, layer, head, t)
            best = int(row.argmax())
            lines.append(f"{token:<{width}}  {tokens[best]:<{width}}  {row[best]:4.0%}")
        return "\n".join(lines)

    def _picture(self):
        tokens, (layer, head) = self.texts[0], self.start
        name = next((f", {name}" for name, *place in self.known if place == [layer, head]), "")
        row = self.row(0, layer, head, self.token)
        about = (
            f"Layer {layer}, head {head}{name}. Each row is a token. The stronger the shade of a cell, the more the "
            f"token looks at that of the column: {tokens[self.token]}, in the row in bold, looks at "
            f"{tokens[int(row.argmax())]} {row.max():.0%}."
        )
        cells = []
        for t, token in enumerate(tokens):
            kind = "row now" if t == self.token else "row"
            cells.append(f'<span class="{kind}">{html.escape(token)}</span>')
            for p in self.row(0, layer, head, t):
                cells.append(f'<i style="--p:{p:.3g}"></i>' if p else "<i></i>")
        heads = "".join(f'<span class="column">{html.escape(token)}</span>' for token in tokens)
        return (
            f'<p class="about">{html.escape(about)}</p><div class="map" role="img" style="--n: {len(tokens)}" '
            f'aria-label="{html.escape(about)}"><span></span>{heads}{"".join(cells)}</div>'
        )


def attention_view(texts, weights, start=(0, 0), known=(), token: int | None = None) -> AttentionView:
    """Attention of a model on several texts, its layer and head to choose.

    `texts` holds the tokens of each text as words to read, `weights` for each the weights (L, H, T, T), as
    `lens.attention(model, idx)[:, 0]` gives them. `start` is the layer and head to begin with, and `known` names heads:
    {"induction": (18, 6)}. `token` is the place in the first text whose look is told first, the last if not given.
    Weights are published as bytes, each less than 0.002 off. Raises ValueError where tokens and weights do not fit, or
    a head looks ahead.
    """
    texts = tuple(tuple(map(readable, tokens)) for tokens in texts)
    packed = []
    for tokens, given in zip(texts, map(_array, weights), strict=True):
        T = len(tokens)
        if given.ndim != 4 or given.shape[2:] != (T, T) or (packed and given.shape[:2] != packed[0].shape[:2]):
            raise ValueError(f"{T} tokens need weights (L, H, {T}, {T}), the same L and H for each text: {given.shape}")
        down, across = np.tril_indices(T)
        if not ((given >= 0) & (given <= 1.001)).all() or np.triu(given, 1).any():
            raise ValueError("attention weights lie between 0 and 1, and those of later tokens are 0: these are others")
        packed.append(np.rint(255 * given[:, :, down, across].clip(0, 1)).astype(np.uint8))
    if not packed:
        raise ValueError("needs one text at least")
    L, H = packed[0].shape[:2]
    known = tuple((name, int(layer), int(head)) for name, (layer, head) in dict(known).items())
    for layer, head in (start, *((layer, head) for _, layer, head in known)):
        if not (0 <= layer < L and 0 <= head < H):
            raise ValueError(f"there is no head {head} in layer {layer}: layers are 0 to {L - 1}, heads 0 to {H - 1}")
    T = len(texts[0])
    token = T - 1 if token is None else int(token)
    if not 0 <= token < T:
        raise ValueError(f"there is no token {token} in the first text: tokens are 0 to {T - 1}")
    return AttentionView(texts, tuple(packed), (int(start[0]), int(start[1])), known, token)


# The logit lens -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class LensGrid(_Shown):
    """What each layer would say after each token of several texts, and what it makes of some answers."""

    texts: tuple[tuple[str, ...], ...]
    answers: tuple[tuple[str, ...], ...]  # to each text, the first one shown first
    symbols: tuple[str, ...]  # of the tokens that the layers say
    said: tuple[np.ndarray, ...] = field(compare=False)  # (L + 1, T, top): numbers of symbols
    chances: tuple[np.ndarray, ...] = field(compare=False)  # of the same
    ranks: tuple[np.ndarray, ...] = field(compare=False)  # (L + 1, answers): after the last token, from 1
    answered: tuple[np.ndarray, ...] = field(compare=False)  # its chance there
    tag = "lens-grid"

    def _about(self):
        return {"texts": self.texts, "answers": self.answers, "symbols": self.symbols}

    def _tensors(self):
        parts = {"said": self.said, "chances": self.chances, "ranks": self.ranks, "answered": self.answered}
        return {f"{name}.{i}": tensor for name, tensors in parts.items() for i, tensor in enumerate(tensors)}

    def rows(self) -> list[tuple]:
        """Of the first text, for each layer: number, rank and chance of the answer, (symbol, chance) at each token."""
        cells = zip(self.said[0][..., 0].tolist(), self.chances[0][..., 0].tolist(), strict=True)
        best = [[(self.symbols[i], p) for i, p in zip(*row, strict=True)] for row in cells]
        ranks, answered = self.ranks[0][:, 0].tolist(), self.answered[0][:, 0].tolist()
        return [(layer, *row) for layer, row in enumerate(zip(ranks, answered, best, strict=True))]

    def __str__(self):
        lines = [f"what each layer says after {self.texts[0][-1]!r}, and where {self.answers[0][0]!r} stands"]
        for layer, rank, p, row in self.rows():
            lines.append(f"{layer:>5}  {row[-1][0]:<14}  {row[-1][1]:6.1%}  rank {rank:>6,}  {p:6.1%}")
        return "\n".join(lines)

    def _picture(self):
        answer = html.escape(self.answers[0][0])
        heads = "".join(f'<th scope="col">{html.escape(token)}</th>' for token in self.texts[0])
        body = []
        for layer, rank, p, row in self.rows():
            cells = "".join(f'<td class="says" style="--p:{q:.3g}">{html.escape(s)}</td>' for s, q in row)
            body.append(
                f'<tr><th scope="row">{layer}</th><td class="num">{rank:,}</td>'
                f'<td class="num">{html.escape(share(p))}</td>{cells}</tr>'
            )
        return (
            '<p class="about">Each row is a layer, and each cell the token that the model would say there if it ended '
            "after that layer: the stronger the shade, the surer. Row 0 is the embedding.</p>"
            f'<table class="layers" style="--n: {len(self.texts[0])}"><thead><tr><th scope="col">layer</th>'
            f'<th scope="col" class="num">rank of {answer}</th><th scope="col" class="num">its chance</th>{heads}</tr>'
            f"</thead><tbody>{''.join(body)}</tbody></table>"
        )


def lens_grid(texts, logits: Iterable, answers, symbol, top: int = 5) -> LensGrid:
    """The logit lens on several texts: what each layer says after each token.

    `texts` holds the tokens of each text as words to read. `logits` gives for each the logits (L+1, T, V), as
    `lens.logit_lens(model, idx)[:, 0]`; let it be a generator, since one is large. `answers` holds for each text the
    ids whose rank and chance after the last token are followed, `symbol(id)` names a token, and `top` tokens are kept
    for each cell. Raises ValueError where these do not fit.
    """
    texts = tuple(tuple(map(readable, tokens)) for tokens in texts)
    answers = [[int(i) for i in ids] for ids in answers]
    if not texts or len(answers) != len(texts) or not all(answers):
        raise ValueError("needs one text at least, and an answer to each")
    found, numbers = [], {}  # id -> number of its symbol in the file
    for tokens, ids, given in zip(texts, answers, logits, strict=True):
        given = _finite(given, "logits")
        if given.ndim != 3 or given.shape[1] != len(tokens) or (found and len(given) != len(found[0][0])):
            raise ValueError(f"{len(tokens)} tokens need logits (L+1, {len(tokens)}, V), got {given.shape}")
        said, chances, ranks, answered = [], [], [], []
        for layer in given:  # one by one: all of them as float64 would be large
            order = np.argsort(-layer, axis=-1, kind="stable")[:, :top]
            weights = np.exp((layer - layer.max(axis=-1, keepdims=True)).astype(np.float64))
            p = weights / weights.sum(axis=-1, keepdims=True)
            said.append([[numbers.setdefault(i, len(numbers)) for i in row] for row in order.tolist()])
            chances.append(np.take_along_axis(p, order, axis=-1))
            ranks.append([1 + int((layer[-1] > layer[-1, i]).sum()) for i in ids])
            answered.append(p[-1, ids])
        kinds = (np.int32, np.float32, np.int32, np.float32)
        parts = zip((said, chances, ranks, answered), kinds, strict=True)
        found.append([np.array(part, dtype=kind) for part, kind in parts])
    said, chances, ranks, answered = zip(*found, strict=True)
    return LensGrid(
        texts,
        tuple(tuple(readable(symbol(i)) for i in ids) for ids in answers),
        tuple(readable(symbol(i)) for i in numbers),
        said,
        chances,
        ranks,
        answered,
    )


# Arithmetic with words ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class WordArithmetic(_Shown):
    """The words nearest to a - b + c, among the words of a list."""

    words: tuple[str, ...]
    rows: np.ndarray = field(compare=False)  # (N, C) of signed bytes
    scales: np.ndarray = field(compare=False)  # (N,): what a row of bytes is multiplied by
    mean: np.ndarray = field(compare=False)  # (C,)
    examples: tuple[tuple[str, str, str], ...]
    split: dict[str, tuple[str, ...]] = field(compare=False)
    tag = "word-arithmetic"

    def _about(self):
        return {"words": self.words, "examples": self.examples, "split": self.split}

    def _tensors(self):
        return {"rows": self.rows, "scales": self.scales, "mean": self.mean}

    def vectors(self) -> np.ndarray:
        """The embeddings (N, C) as published."""
        return self.rows * self.scales[:, None]

    def nearest(self, a: str, b: str, c: str, count: int = 8, inputs: bool = False, centred: bool = False):
        """The words with the highest cosine to a - b + c: [(word, cosine), ...]; `inputs` leaves a, b and c in.

        `centred` takes the mean of all embeddings from each of them first.
        """
        vectors = self.vectors() - (self.mean if centred else 0)
        places = [self.words.index(word) for word in (a, b, c)]
        wanted = vectors[places[0]] - vectors[places[1]] + vectors[places[2]]
        cosines = vectors @ wanted / (np.linalg.norm(vectors, axis=1) * np.linalg.norm(wanted))
        order = [i for i in np.argsort(-cosines, kind="stable").tolist() if inputs or i not in places]
        return [(self.words[i], float(cosines[i])) for i in order[:count]]

    def __str__(self):
        a, b, c = self.examples[0]
        found = [f"{word:<14} {cosine:.2f}" for word, cosine in self.nearest(a, b, c, centred=True)]
        return "\n".join([f"{a} - {b} + {c}, the mean taken off, the inputs left out:", *found])

    def _picture(self):
        a, b, c = map(html.escape, self.examples[0])
        items = "".join(
            f'<li style="--p: {max(cosine, 0):.4f}"><code>{html.escape(word)}</code><span class="bar"></span>'
            f'<span class="share">{f"{cosine:.2f}".replace("-", "−")}</span></li>'
            for word, cosine in self.nearest(*self.examples[0], centred=True)
        )
        return (
            f'<p class="about">The words nearest to {a} − {b} + {c} among {len(self.words):,}, by cosine, '
            f'the mean taken off first and the three left out.</p><ol role="list">{items}</ol>'
        )


def arithmetic(words, vectors, examples=(("king", "man", "woman"),), split=None, mean=None) -> WordArithmetic:
    """The words nearest to a - b + c by cosine, the three words to choose from a list.

    `words` are words that are one token each, `vectors` (N, C) their embeddings, `mean` (C,) the mean to take off
    unless the reader says not to (of all tokens, say; else of these words). `examples` are triples to offer, the first
    one shown first. `split` says of words that readers may try and that are not one token which pieces they are:
    {"strawberry": [" str", "aw", "berry"]}. Embeddings are published as bytes with a scale for each row, which moves a
    cosine by a few thousandths. Raises ValueError where these do not fit.
    """
    words, vectors = tuple(word.strip() for word in words), _finite(vectors, "embeddings")
    if len(set(words)) != len(words) or not all(words) or vectors.ndim != 2 or len(vectors) != len(words):
        raise ValueError(f"needs a row of embeddings for each of {len(words)} words, each word once: {vectors.shape}")
    examples = tuple(tuple(example) for example in examples)
    if not examples or any(len(example) != 3 for example in examples):
        raise ValueError("needs one example at least, and three words in each")
    if missing := [word for example in examples for word in example if word not in words]:
        raise ValueError(f"the example {missing[0]!r} is not in the list of words")
    scales = np.abs(vectors).max(axis=1) / 127
    if not scales.all():
        raise ValueError(f"the embedding of {words[int(scales.argmin())]!r} is all zeros: it points nowhere")
    rows = np.rint(vectors / scales[:, None]).astype(np.int8)
    mean = vectors.mean(axis=0) if mean is None else _finite(mean, "means")
    split = {word: tuple(map(readable, pieces)) for word, pieces in (split or {}).items()}
    return WordArithmetic(words, rows, scales, mean, examples, split)
