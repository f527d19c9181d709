"""How many numbers a GPT learns, by formula: counted from the configuration alone, without building the model.

The convention: every trainable number counts once. A tied unembedding is the token embedding, so it counts there and
not again; positions, biases and norms count; masks do not, for they are not learned.
"""

import html
from dataclasses import dataclass, replace

from gptbook.modern import GATES, ModernConfig


@dataclass(frozen=True)
class Part:
    """One part of the model: its name, its formula in V T L C, its number of parameters, its share of the whole.

    In the formulas of a ModernConfig G heads of keys and values are D wide, and M is the width in the MLP; tables of
    R rows and W columns are for 2 to N tokens together.
    """

    name: str
    formula: str
    count: int
    share: float


@dataclass(frozen=True)
class ParameterTable:
    """The five parts of a model; iterating gives them in the order of the forward pass."""

    rows: tuple[Part, ...]

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(row.count for row in self.rows)

    def __iter__(self):
        return iter(self.rows)

    def _cells(self):
        body = [(row.name, row.formula, f"{row.count:,}", f"{row.share:.1%}") for row in self.rows]
        return [("part", "formula", "parameters", "share"), *body, ("all", "", f"{self.total:,}", f"{1:.1%}")]

    def __str__(self):
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join(
            f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}".rstrip() for a, b, c, d in cells
        )

    __repr__ = __str__

    def _repr_html_(self):
        def line(row, tag, kind=""):
            kinds = ("", "", ' class="num"', ' class="num"')
            inner = "".join(f"<{tag}{k}>{html.escape(cell)}</{tag}>" for k, cell in zip(kinds, row, strict=True))
            return f"<tr{kind}>{inner}</tr>"

        head, *body, last = self._cells()
        rows = [*(line(row, "td") for row in body), line(last, "td", ' class="total"')]
        return f'<table class="book-table"><thead>{line(head, "th")}</thead><tbody>{"".join(rows)}</tbody></table>'


def parameter_table(config) -> ParameterTable:
    """The parts of the model that `config`, a GPTConfig or a ModernConfig, describes; derived on page 8.

    A linear layer from a to b has a·b weights and, with bias, b more; a LayerNorm over C channels has 2C, an RMSNorm C.
    """
    counts = _modern_parts(config) if isinstance(config, ModernConfig) else _gpt_parts(config)
    total = sum(count for _, _, count in counts)
    return ParameterTable(tuple(Part(name, formula, count, count / total) for name, formula, count in counts))


def _gpt_parts(config) -> list[tuple[str, str, int]]:
    V, T, L, C = config.vocab_size, config.block_size, config.n_layer, config.n_embd
    qkv, head = config.qkv_bias, config.head_bias
    return [
        ("embeddings", "VC + TC", V * C + T * C),
        ("attention", "L (4C² + 4C)" if qkv else "L (4C² + C)", L * (4 * C * C + (4 * C if qkv else C))),
        ("MLPs", "L (8C² + 5C)", L * (8 * C * C + 5 * C)),
        ("LayerNorms of the blocks", "L · 4C", L * 4 * C),
        (
            "final norm (unembedding tied)" if config.tied else "final norm and unembedding",
            " + ".join(["2C"] + ["VC"] * (not config.tied) + ["V"] * head),
            2 * C + (0 if config.tied else V * C) + (V if head else 0),
        ),
    ]


def _modern_parts(config) -> list[tuple[str, str, int]]:
    V, T, L, C = config.vocab_size, config.block_size, config.n_layer, config.n_embd
    G, D, M = config.kv_heads, config.head_size, config.inner
    bias, gated, learned = config.bias, config.activation in GATES, config.positions == "learned"
    each = (2 if config.norm == "layer" and bias else 1) if config.gain else 0  # numbers of a norm for each channel
    attention = 2 * C * C + 2 * C * G * D + (2 * C + 2 * G * D if bias else 0)
    mlp = (3 if gated else 2) * C * M + ((2 if gated else 1) * M + C if bias else 0)
    first = each * C if config.embedding_norm else 0
    lengths, rows, width = config.ngrams - 1, config.ngram_rows, config.ngram_width
    norms = {0: "", 1: "C", 2: "2C"}[each]
    return [
        (
            "embeddings",
            " + ".join(["VC"] + ["TC"] * learned + ["(N - 1) (RW + WC)"] * bool(lengths) + [norms] * bool(first)),
            V * C + (T * C if learned else 0) + lengths * (rows * width + width * C) + first,
        ),
        ("attention", "L (2C² + 2CGD + 2C + 2GD)" if bias else "L (2C² + 2CGD)", L * attention),
        (
            "MLPs",
            f"L ({'3CM' if gated else '2CM'}{(' + 2M + C' if gated else ' + M + C') if bias else ''})",
            L * mlp,
        ),
        ("norms of the blocks", {0: "0", 1: "L · 2C", 2: "L · 4C"}[each], L * 2 * each * C),
        (
            "final norm (unembedding tied)" if config.tied else "final norm and unembedding",
            " + ".join([norms] * bool(each) + ["VC"] * (not config.tied)) or "0",
            each * C + (0 if config.tied else V * C),
        ),
    ]


def expected_parameters(config) -> int:
    """The number of parameters of the model that a GPTConfig or a ModernConfig describes; a tied matrix counts once."""
    return parameter_table(config).total


def explain_difference(config, difference: int) -> list[str]:
    """Likely reasons for a model that has `difference` more parameters than `expected_parameters(config)`.

    Each reason alone explains the difference to the integer; two of them can coincide in small models.
    """
    reasons = _modern_reasons(config) if isinstance(config, ModernConfig) else _gpt_reasons(config)
    return [reason for amount, reason in reasons if amount == difference]


def _gpt_reasons(config) -> list[tuple[int, str]]:
    V, T, L, C = config.vocab_size, config.block_size, config.n_layer, config.n_embd
    attention = 4 * C * C + (4 * C if config.qkv_bias else C)
    block = attention + 8 * C * C + 5 * C + 4 * C
    reasons = [
        *_about_blocks(L, block),
        (-T * C, "there is no learned position embedding"),
        (-2 * C, "the final LayerNorm is missing"),
        (-L * 4 * C - 2 * C, "there are no LayerNorms, or theirs have no parameters"),
        (-L * 2 * C - C, "the norms have no bias (bias=False, or RMSNorm)"),
        (-L * 4 * C, "the LayerNorms of the blocks are missing"),
        (-L * (C * C + C), "the output projection of attention is missing"),
        (-L * C, "one bias of width C a block is missing, such as the output projection's"),
        (L * (C * C + C), "one linear layer C → C a block too many"),
        (-L * 5 * C, "the two linear layers of the MLPs have no bias"),
        (-L * 6 * C, "the linear layers of the blocks have no bias"),
        (-L * C * C, "one C × C matrix a block is missing: is something shared, such as keys and values?"),
    ]
    if config.tied:
        reasons += [(V * C, "the unembedding is a matrix of its own (a copy): tie it, lm_head.weight = wte.weight")]
    else:
        reasons += [(-V * C, "the unembedding shares the matrix of the token embedding (tied)")]
    if config.qkv_bias:
        reasons += [(-3 * L * C, "queries, keys and values have no bias")]
    else:
        reasons += [(3 * L * C, "queries, keys and values have a bias")]
    if config.head_bias:
        reasons += [(-V, "the unembedding has no bias")]
    else:
        reasons += [(V, "the unembedding has a bias")]
    for multiple in (64, 128):
        extra = -V % multiple
        matrices = extra * C * (1 if config.tied else 2) + (extra if config.head_bias else 0)
        reasons += [(matrices, f"the vocabulary is padded to {V + extra}, a multiple of {multiple}")] * bool(extra)
    return reasons


def _about_blocks(L: int, block: int) -> list[tuple[int, str]]:
    reasons = [(-L * block, "the blocks are not counted at all: do they lie in a plain Python list? Use nn.ModuleList")]
    if L > 1:
        reasons += [
            (-(L - 1) * block, "all layers are the same block object: build a new one for each layer"),
            (-block, "one block is missing, or one block object is used twice"),
            (block, "one block too many"),
        ]
    return reasons


def _modern_reasons(config) -> list[tuple[int, str]]:
    L, T, C, M = config.n_layer, config.block_size, config.n_embd, config.inner
    gated, learned = config.activation in GATES, config.positions == "learned"
    count = expected_parameters(config)

    def otherwise(**fields):
        """How many more parameters the same model has with these fields."""
        return expected_parameters(replace(config, **{"n_inner": M, **fields})) - count

    reasons = [
        *_about_blocks(L, otherwise(n_layer=L + 1)),
        (-T * C if learned else T * C, f"there is {'no' if learned else 'a'} learned position embedding"),
        (otherwise(n_kv_head=config.n_head), "every head has keys and values of its own, none are shared"),
        (otherwise(n_kv_head=1), "all heads share one head of keys and values"),
        (otherwise(activation="gelu" if gated else "swiglu"), f"the MLPs have {'no' if gated else 'a'} gate"),
        (otherwise(n_inner=4 * C), f"the MLPs are {4 * C} wide inside, not {M}"),
        (otherwise(tied=not config.tied), f"the unembedding is {'not ' if config.tied else ''}tied"),
        (otherwise(bias=not config.bias), f"the linear layers have {'no' if config.bias else 'a'} bias"),
    ]
    if config.norm == "rms":
        reasons += [((2 * L + 1) * C, "the norms have a bias: LayerNorm in place of RMSNorm?")]
    return [(amount, reason) for amount, reason in reasons if amount]
