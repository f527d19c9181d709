"""The checks of page 8, assembling and verifying the GPT."""

import functools
import itertools
import math

import torch

from gptbook.exercises.answers import Wrong, ask, explain, need_function, number, shown, whole_number
from gptbook.model import GPT, GPTConfig

# What a mistake adds to the count, for V symbols, T positions, L layers and width C.
COUNT_MISTAKES = (
    ("query, key and value have no bias here", lambda V, T, L, C: 3 * L * C),
    ("the final LayerNorm is missing", lambda V, T, L, C: -2 * C),
    ("a LayerNorm has a bias beside its gain", lambda V, T, L, C: -(2 * L + 1) * C),
    ("every LayerNorm is missing", lambda V, T, L, C: -(4 * L + 2) * C),
    ("the two LayerNorms of the blocks are missing", lambda V, T, L, C: -4 * L * C),
    ("a block has two LayerNorms, each with a gain and a bias", lambda V, T, L, C: -2 * L * C),
    ("the position embeddings are missing", lambda V, T, L, C: -T * C),
    ("the token embeddings or the unembedding are missing: they are two matrices, not tied", lambda V, T, L, C: -V * C),
    ("the unembedding has no bias here", lambda V, T, L, C: V),
    ("the MLP's two layers have biases", lambda V, T, L, C: -5 * L * C),
    ("the MLP's first layer has a bias, as wide as its output", lambda V, T, L, C: -4 * L * C),
    ("the MLP's biases have different lengths, each that of its layer's output", lambda V, T, L, C: -3 * L * C),
    ("the output projection of the attention has a bias", lambda V, T, L, C: -L * C),
    ("the output projection of the attention is missing", lambda V, T, L, C: -L * (C * C + C)),
    ("every bias of the linear layers is missing", lambda V, T, L, C: -6 * L * C),
    ("the causal mask is not a parameter", lambda V, T, L, C: T * T),
    ("the causal masks are not parameters", lambda V, T, L, C: L * T * T),
    ("only one block was counted", lambda V, T, L, C: -(L - 1) * (12 * C * C + 10 * C)),
    ("the MLP is four times as wide inside", lambda V, T, L, C: -L * (6 * C * C + 3 * C)),
    ("only the large matrices of the blocks, 12 L C², were counted",
     lambda V, T, L, C: -((2 * V + T + 2) * C + 10 * L * C)),
    ("only the blocks were counted, not what stands before and after them", lambda V, T, L, C: -(2 * V + T + 2) * C),
)  # fmt: skip


@functools.cache
def _counted(V, T, L, C, heads=1) -> int:
    """Brute force: build the model and count."""
    model = GPT(GPTConfig(vocab_size=V, block_size=T, n_layer=L, n_head=heads, n_embd=C))
    return sum(parameter.numel() for parameter in model.parameters())


def count_parameters(count) -> str:
    """count(vocab_size, block_size, n_layer, n_embd) -> parameters of the page's GPT."""
    need_function(count, "count(vocab_size, block_size, n_layer, n_embd)")
    cases = ((65, 64, 4, 128), (101, 37, 3, 44), (1009, 16, 2, 8), (11, 131, 7, 20))
    right = [_counted(*case) for case in cases]
    got = [whole_number(ask(count, f"count{case}", *case), f"count{case}", floats=True) for case in cases]
    if got == right:
        return f"right for {len(cases)} shapes, compared with the built models' own parameters"
    if got[0] == right[0]:
        case, mine = next((c, g) for c, g, r in zip(cases, got, right, strict=True) if g != r)
        raise Wrong(
            f"right for the page's own model only, count{case} gives {mine:,}: does a number stand for an argument?"
        )
    if len(set(got)) == 1:
        raise Wrong("your count is the same for every shape: it must depend on the arguments")
    off = [mine - true for mine, true in zip(got, right, strict=True)]
    single = [words for words, extra in COUNT_MISTAKES if off == [extra(*case) for case in cases]]
    if single:
        raise Wrong(f"off by {off[0]:+,} for the page's own model: {single[0]}")
    double = [
        f"{one}; and {two}"
        for (one, a), (two, b) in itertools.combinations_with_replacement(COUNT_MISTAKES, 2)
        if off == [a(*case) + b(*case) for case in cases]
    ]
    if len(double) == 1:
        raise Wrong(f"off by {off[0]:+,} for the page's own model, in two things: {double[0]}")
    raise Wrong(f"off by {off[0]:+,} for the page's own model: compare part by part with the page's table")


@functools.cache
def _measured(V, C, std) -> float:
    """Brute force: the mean loss over many random unembeddings, each with one normalised input of its own."""
    generator = torch.Generator().manual_seed(8)
    losses = []
    for _ in range(4_000_000 // (V * C)):
        x = torch.nn.functional.layer_norm(torch.randn(C, generator=generator), (C,))  # (C,)
        logits = std * torch.randn(V, C, generator=generator) @ x  # (V,)
        losses.append((logits.logsumexp(0) - logits.mean()).item())  # mean over all targets alike
    return sum(losses) / len(losses)


LOSS_MISTAKES = (
    ("this is ln V alone: the logits are not all equal, and their spread costs something", lambda V, C, s: math.log(V)),
    ("the spread enters twice too much: look at the exponent in the mean of e to a normal number",
     lambda V, C, s: math.log(V) + C * s * s),
    ("the logits' variance does not grow with n_embd: a logit is a sum over all channels",
     lambda V, C, s: math.log(V) + s * s / 2),
    ("the standard deviation stands where the variance belongs", lambda V, C, s: math.log(V) + C * s / 2),
    ("the logits' standard deviation stands where their variance belongs",
     lambda V, C, s: math.log(V) + math.sqrt(C) * s / 2),
    ("the spread has the wrong sign: confident nonsense costs more than a uniform guess",
     lambda V, C, s: math.log(V) - C * s * s / 2),
    ("this is the answer for PyTorch's uniform numbers: here the entries of the unembedding have variance std squared",
     lambda V, C, s: math.log(V) + 1 / 6),
    ("the 1/3 belongs to uniform numbers: here the entries of the unembedding have variance std squared",
     lambda V, C, s: math.log(V) + C * s * s / 6),
    ("this is in bits: the loss is in nats", lambda V, C, s: (math.log(V) + C * s * s / 2) / math.log(2)),
    ("ln V is in bits, and the loss in nats", lambda V, C, s: math.log2(V) + C * s * s / 2),
    ("ln V is missing: what does a uniform guess cost?", lambda V, C, s: C * s * s / 2),
    ("the vocabulary's size stands where n_embd belongs", lambda V, C, s: math.log(V) + V * s * s / 2),
    ("the sizes are the wrong way round: the vocabulary is guessed from", lambda V, C, s: math.log(C) + V * s * s / 2),
    ("this is the perplexity, e to the loss", lambda V, C, s: V * math.exp(C * s * s / 2)),
)  # fmt: skip


def initial_loss(loss) -> str:
    """loss(vocab_size, n_embd, std) -> expected loss in nats before training, unembedding N(0, std)."""
    need_function(loss, "loss(vocab_size, n_embd, std)")
    cases = ((65, 128, 0.05), (3000, 64, 0.08), (500, 200, 0.03), (65, 128, 0.0))
    got = [number(ask(loss, f"loss{case}", *case), f"loss{case}") for case in cases]
    for case, mine in zip(cases, got, strict=True):
        if not abs(mine - _measured(*case)) <= 0.02:  # so that NaN does not pass
            break
    else:
        return f"within 0.02 nats of the loss measured on random models, for {len(cases)} sizes"
    if sentence := explain(got, cases, LOSS_MISTAKES, lambda a, b: abs(a - b) < 0.002):
        raise Wrong(sentence)
    raise Wrong(f"loss{case} is {mine:.3f}, and random models of this size measure {_measured(*case):.3f}")


def largest_width(width) -> str:
    """The greatest n_embd of a GPT with 2 layers, 4 heads, V = 65, T = 64 within a million parameters."""
    limit, heads = 1_000_000, 4
    if callable(width) or width is None:
        raise Wrong(
            f"the answer is the width itself, a whole number, got {'nothing' if width is None else shown(width)}"
        )
    width = whole_number(width, "the width", floats=True)
    if not 1 <= width <= 1000:  # beyond, building it to count would take long
        raise Wrong(f"a width of {width:,} is far off: it lies between 1 and 1,000")
    count = _counted(65, 64, 2, width)
    has = f"n_embd = {width} gives {count:,} parameters"
    if width % heads:
        raise Wrong(f"{has}, but {width} channels cannot be shared equally by {heads} heads")
    if count > limit:
        raise Wrong(f"{has}, {count - limit:,} too many")
    if _counted(65, 64, 2, width + heads, heads) <= limit:
        raise Wrong(f"{has}: that fits, and a wider one fits too")
    return f"{has}, and the next width that {heads} heads can share is too wide"
