# %% [markdown]
r"""
# The KV cache

Keys and values of the past never change, so a GPT that keeps them writes the same text with a small part of the work.

To write one token, the model of [page 10](10_sampling.py) reads the whole text. It makes logits at every position, and all but the last are
thrown away. For the next token it reads the same text again, one token longer. What of all that is new? This page looks, and
then keeps the rest.

## A fifth token

Take the four tokens and the head of [page 4](04_head.py). Its query is $\ln 2$ times half of the second channel, its key is half of
the second channel, and its value is the first. Now a fifth token comes: $(14, 2)$. So its query is $\ln 2$, its key is 1, and its
value is 14.
"""

# %%
import math

import torch
import torch.nn.functional as F

x4 = torch.tensor([[1.0, 0.0], [3.0, 2.0], [2.0, 4.0], [6.0, 2.0]])  # (4, C)
x5 = torch.cat((x4, torch.tensor([[14.0, 2.0]])))  # (5, C)

w_q = torch.tensor([[0.0], [0.5 * math.log(2)]])  # (C, D)
w_k = torch.tensor([[0.0], [0.5]])  # (C, D)
w_v = torch.tensor([[1.0], [0.0]])  # (C, D)


def head(x):
    q, k, v = x @ w_q, x @ w_k, x @ w_v  # (T, D) each
    T = x.size(0)
    future = ~torch.ones(T, T, dtype=torch.bool).tril()  # (T, T)
    scores = q @ k.T / math.sqrt(q.size(1))  # (T, T)
    weights = F.softmax(scores.masked_fill(future, -math.inf), dim=-1)  # (T, T)
    return weights, weights @ v


weights_4, out_4 = head(x4)
weights_5, out_5 = head(x5)
print(weights_5)
print("before", out_4.flatten().tolist())
print("now   ", out_5.flatten().tolist())

# %% [markdown]
r"""
The scores of the last row are $0, 1, 2, 1, 1$ times $\ln 2$. Its weights are $1, 2, 4, 2, 2$, divided by 11. The output is
$\frac{1 \cdot 1 + 2 \cdot 3 + 4 \cdot 2 + 2 \cdot 6 + 2 \cdot 14}{11} = 5$.

And the other rows? They are what they were. The fifth token came after them, and the mask hides it from them.
"""

# %%
assert torch.equal(weights_5[:4, :4], weights_4)
assert torch.equal(out_5[:4], out_4)
torch.testing.assert_close(
    weights_5[4], torch.tensor([1, 2, 4, 2, 2]) / 11, rtol=0, atol=1e-6
)
torch.testing.assert_close(out_5[4], torch.tensor([5.0]), rtol=0, atol=1e-5)

print("the first four rows are the same, bit by bit")

# %% tags=["hide-input"] alt="A grid of five by five scores. The four by four cells at the upper left are pale and marked old or hidden, in two triangles. The upper four cells of the last column are empty and marked hidden. The five cells of the last row are dark and marked new." caption="The scores of five tokens. The fifth token adds a row and a column, nine cells. The mask hides the column, all but its last cell. Five are left."
from matplotlib.patches import Rectangle

from gptbook import display

T = 5
fig, ax = display.figure(3.4, 3.2)
for t in range(T):
    for s in range(T):
        kind = "hidden" if s > t else "new" if t == T - 1 else "old"
        strength = {"hidden": 0.0, "old": 0.18, "new": 0.9}[kind]
        ax.add_patch(
            Rectangle(
                (s - 0.46, t - 0.46),
                0.92,
                0.92,
                color=display.BLUE,
                lw=0,
                alpha=strength,
            )
        )
        ax.text(
            s,
            t,
            kind,
            ha="center",
            va="center",
            fontsize=8,
            color="white"
            if kind == "new"
            else display.GREY
            if kind == "hidden"
            else "black",
        )
ax.set_xlim(-0.5, T - 0.5)
ax.set_ylim(T - 0.5, -0.5)
ax.set_aspect("equal")
ax.set_xticks(range(T))
ax.set_yticks(range(T))
ax.xaxis.tick_top()
ax.tick_params(length=0)
ax.grid(False)
ax.set_ylabel("row t: who looks")
for side in ax.spines.values():
    side.set_visible(False)

# %% [markdown]
r"""
## One row is enough

So the fifth token needs one row of scores. For that row it takes the query of the new token, all keys, and all values. Four of the
five keys and values have been computed before. Keep them, and compute the fifth.
"""


# %%
def next_row(x, cache):
    """The output for one new token x (1, C), and the cache with its key and value."""
    q, k, v = x @ w_q, x @ w_k, x @ w_v  # (1, D) each
    if cache is not None:
        k = torch.cat((cache[0], k))  # (n, D)
        v = torch.cat((cache[1], v))  # (n, D)
    weights = F.softmax(q @ k.T / math.sqrt(q.size(1)), dim=-1)  # (1, n)
    return weights @ v, (k, v)


cache, rows = None, []
for t in range(5):
    row, cache = next_row(x5[t : t + 1], cache)
    rows.append(row)
torch.testing.assert_close(torch.cat(rows), out_5, rtol=0, atol=1e-6)
print("one at a time ", torch.cat(rows).flatten().tolist())
print("kept keys     ", cache[0].flatten().tolist())
print("kept values   ", cache[1].flatten().tolist())

# %% [markdown]
r"""
This is a **KV cache**: the keys (K) and values (V) of the past, kept. Three things are worth a look.

* There is no mask. A single new token has no future that could be hidden.
* Queries are not kept. A token asks once, with its own row. Nobody needs its query again.
* Nothing is overwritten. `next_row` takes a cache and returns a longer one. The old one is still good, so one beginning can be
  continued in two ways.

When several new tokens come at once, the mask is back. Among themselves, the earlier must not see the later. With $S$ tokens kept, row
$t$ of the new ones is token $S + t$ of the text. It sees the columns 0 to $S + t$. To read the first piece of a text in one go, before anything is kept, is called **prefill**.

## Through the whole model

That was one head. In a GPT, the keys of the second block are made from a stream that the first block has already written to. Do they
stay as they are, too? They do, and the reason is again that nothing flows back from later tokens.

!!! theorem "The cache changes nothing"

    In exact arithmetic and without dropout, let a causal GPT of this book read $S$ tokens and keep the keys and values of every block. Let it then read $T$ more tokens with that
    cache, where $S + T$ is at most its window. Then the logits of these $T$ tokens are the last $T$ rows of what the model computes from all $S + T$ tokens at once. The
    keys and values kept at the end are those of all $S + T$ tokens.

    Tested by `test_cache_changes_nothing`.

??? proof "Proof"

    Compare three passes: the *first* one over $S$ tokens, the *second* one over $T$ tokens with the cache, and the *full* one over $S + T$.
    We show by induction over the blocks: the streams of the first pass are rows $0$ to $S - 1$ of those of the full pass, and the streams of the second pass
    are its rows $S$ to $S + T - 1$.

    *Before the first block.* A row of the stream is the sum of the embeddings of its token and of its position. Row $t$ of the second pass gets position
    $S + t$. So every row is made from the same two vectors as in the full pass.

    *Through a block.* LayerNorm and the three matrices of attention treat each row alone. So queries, keys and values are the same in all passes, row by row. Those
    that the first pass kept are rows $0$ to $S - 1$ of the full pass, and with the new ones behind them they are all $S + T$ rows. In the full pass,
    row $t$ of attention is an average over rows $0$ to $t$, with weights from its query and their keys. In the first pass, row $t < S$ has all of these
    before it. In the second, row $t$ stands for row $S + t$, and has the kept rows and the new ones up to its own. So the same numbers go into the same average. Projection, additions, second
    norm and MLP treat each row alone again. Hence the claim holds after the block.

    *After the last block.* The final norm and the unembedding treat each row alone. $\blacksquare$

The proof leans on the mask. Without it, a new token would change the old rows of the first block's output, and with them all keys of the second.

## The same thing in the package

First attention. `kept` is what one block kept of the past.
"""

# %%
from gptbook import kv_cache

display.source(kv_cache.attention)

# %% [markdown]
r"""
Compare it with `CausalSelfAttention.forward` of [page 8](08_gpt.py). The two new lines are the one that glues the past on, and the mask: rows $S$ to
$S + T - 1$ of the triangle. Then the whole model.
"""

# %%
display.source(kv_cache.forward)

# %% [markdown]
r"""
The cache is a value. It goes in, and a new one comes out. Nothing is stored on the model, so a second text cannot meet the remains of
the first. The lines about `ModernGPT` are for the model of [page 16](16_pretrained.py), which tells positions in another way. Here they do nothing.

Is it equal to the model's own forward pass? We take the trained model of [page 9](09_training.py), three different rows of validation text as
long as its window, and feed them in several ways. All logits at all positions are compared.
"""

# %%
from gptbook import data, recipes
from gptbook.claims import claim
from gptbook.sampling import evaluating

run = recipes.trained("step-5")
model, tokenizer = run.model, run.tokenizer
T = model.config.block_size
tokens = torch.tensor(tokenizer.encode(run.corpus.text))  # (N,)
_, validation = data.split(tokens)
text = validation[: 3 * T].view(3, T)  # (B, T)


def within(low, high):
    """Bounds for a number of this text; nothing is known of another text's."""
    return (low, high) if run.corpus.name == "tinyshakespeare" else None


with evaluating(model):
    own = model(text)  # (B, T, V)


def off(forward, idx, pieces):
    """How far any logit is from the model's own, when idx is read in pieces of these lengths."""
    cache, logits = None, []
    with evaluating(model):
        for piece in idx.split(pieces, dim=1):
            out, cache = forward(model, piece, cache)
            logits.append(out)
    return (torch.cat(logits, dim=1) - own[: len(idx)]).abs().max().item()


patterns = {
    "all at once": [T],
    "one by one": [1] * T,
    "a prompt of 40, then one by one": [40] + [1] * (T - 40),
    "a prefix of 10, then chunks of 9": [10] + [9] * 6,
}
assert all(sum(pieces) == T for pieces in patterns.values())
farthest = {name: off(kv_cache.forward, text, p) for name, p in patterns.items()}
for split in range(1, T):  # every way to cut the text in two
    name = "cut in two, anywhere"
    found = off(kv_cache.forward, text, [split, T - split])
    farthest[name] = max(found, farthest.get(name, 0.0))
claim(
    "cache_off_forward",
    max(farthest.values()),
    expected=0.0,
    tolerance=1e-4,
    kind="tolerance",
)
display.table(
    [(name, f"{found:.0e}") for name, found in farthest.items()],
    header=("fed", "largest difference of a logit"),
)

# %% [markdown]
r"""
Equal, up to rounding: sums that are taken in another order end in other last digits.

Would these comparisons notice a broken cache? Here are three: one that counts positions from 0 in every
call, one that mixes up the rows of a batch, and one without a mask among the new tokens.
"""

# %%
import copy

from gptbook.kv_cache import Cache


def forgets_positions(model, idx, cache=None):
    shifted = copy.deepcopy(model)
    kept = 0 if cache is None else len(cache)
    shifted.wpe.weight.data = model.wpe.weight.roll(kept, 0)  # row `kept` is position 0
    return kv_cache.forward(shifted, idx, cache)


def mixes_rows(model, idx, cache=None):
    logits, cache = kv_cache.forward(model, idx, cache)
    mixed = tuple((k.roll(1, 0), v.roll(1, 0)) for k, v in cache.layers)
    return logits, Cache(mixed)


def sees_the_next(model, idx, cache=None):
    unmasked = copy.deepcopy(model)
    for block in unmasked.h:
        block.attn.past.fill_(True)
    return kv_cache.forward(unmasked, idx, cache)


broken = {"positions from 0": forgets_positions, "rows mixed": mixes_rows}
broken["no mask"] = sees_the_next
ways = {
    "one by one": (text, [1] * T),
    "in chunks": (text, [10] + [9] * 6),
    "one row, one by one": (text[:1], [1] * T),
}
seen = {
    (fault, way): off(forward, idx, pieces) > 1e-2
    for fault, forward in broken.items()
    for way, (idx, pieces) in ways.items()
}
assert not seen["no mask", "one by one"]
assert not seen["rows mixed", "one row, one by one"]
claim("cache_faults_seen", sum(seen[f, "in chunks"] for f in broken), expected=3)
display.table(
    [
        (fault, *("seen" if seen[fault, way] else "missed" for way in ways))
        for fault in broken
    ],
    header=("fault", *ways),
)

# %% [markdown]
r"""
Each is seen by some way to feed the text, and only the chunks of several rows see all {{ cache_faults_seen }}. One token at a time has no future, so it cannot miss its mask. One row cannot
be mixed with another.

## Writing with it

Generation is the loop of page 10, in which the past is kept.
"""

# %%
display.source(kv_cache.generate)

# %%
from gptbook import sampling

start = torch.tensor([tokenizer.encode("ROMEO:")])  # (B, T)


def write(generate, model, start, n):
    return generate(model, start, n, generator=torch.Generator().manual_seed(11))


without = write(sampling.generate, model, start, 200)  # (1, length)
cached = write(kv_cache.generate, model, start, 200)  # (1, length)
assert torch.equal(without, cached)
claim("cache_tokens_equal", without.size(1) - start.size(1), expected=200)
display.sample(tokenizer.decode(cached[0]), label="Written with a cache, or without")

# %% [markdown]
r"""
All {{ cache_tokens_equal }} tokens are the same.

## The work, counted

How much is saved? Count the multiplications in matrix products. Each has its addition beside it, so the unit is called a
**multiply-add**. [Page 9](09_training.py) did the same for training.

For each token that a pass reads, the blocks spend $12 C^2$ each, and the unembedding spends $V C$. For each *pair* of a token that is read with a token
that it may look at, each block spends $2C$: $C$ for the score, and $C$ in the weighted sum. Hidden scores are computed as well, and
then hidden, so they count. Write

$$ a = 12 L C^2 + V C , \qquad b = 2 L C . $$

A pass over $m$ tokens takes $a\,m + b\,m^2$. With a cache, it reads one token that looks at $m$, and takes $a + b\,m$. To write $n$ tokens
after a single one, there are $n$ passes, with $m = 1, 2, \dots, n$. Add up:

$$ \text{without: } \ a\, \frac{n (n+1)}{2} + b\, \frac{n (n+1) (2n+1)}{6} $$

$$ \text{with: } \ a\, n + b\, \frac{n (n+1)}{2} $$

So the cache makes the matrices linear where they were quadratic. Attention becomes quadratic where it was cubic.
"""

# %%
display.source(kv_cache.multiply_adds)

# %% [markdown]
r"""
For our model a block has $12 C^2$ weights in its matrices. The branch counts those of the model of page 16.

Is this count right? PyTorch can count too. It watches which products are really computed, and counts multiplications and additions apart, so
we halve its number.
"""

# %%
from torch.utils.flop_counter import FlopCounterMode


def count(forward, *arguments):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        result = forward(*arguments)
    return counter.get_total_flops() // 2, result


row = text[:1]  # (1, T)
whole, _ = count(model, row)
first, (_, cache) = count(kv_cache.forward, model, row[:, :40])
last, _ = count(kv_cache.forward, model, row[:, 40:41], cache)
assert whole == kv_cache.multiply_adds(model.config, T)
assert first == kv_cache.multiply_adds(model.config, 40)
assert last == kv_cache.multiply_adds(model.config, 1, kept=40)
print(f"a window of {T} tokens {whole:>12,}")
print(f"one token after 40   {last:>12,}")

# %% [markdown]
r"""
Now an experiment: write {{ cache_experiment }} tokens, with and without a cache. Our model's window of {{ cache_window }} tokens is too short for it, as we shall see. So we take a fresh GPT of the
same width with a longer window. It has not been trained, and writes nonsense. For work and time the values of the weights do not matter.
"""

# %%
from dataclasses import replace

from gptbook.model import GPT

claim("cache_window", T)
claim("cache_experiment", 200)
config = replace(model.config, block_size=512)
torch.manual_seed(0)
fresh = GPT(config)

lengths = (25, 50, 100, 200, 400)
L, C, V = config.n_layer, config.n_embd, config.vocab_size
a, b = 12 * L * C**2 + V * C, 2 * L * C
work = {}
for n in lengths:
    passes = range(1, n + 1)
    work[n] = (
        sum(kv_cache.multiply_adds(config, m) for m in passes),
        sum(kv_cache.multiply_adds(config, 1, kept=m - 1) for m in passes),
    )
    assert work[n] == (
        a * n * (n + 1) // 2 + b * n * (n + 1) * (2 * n + 1) // 6,
        a * n + b * n * (n + 1) // 2,
    )
work_ratios = [work[n][0] / work[n][1] for n in lengths]
assert work_ratios == sorted(work_ratios)
claim("cache_rows_without", 200 * 201 // 2, expected=20_100)
ratio = work[200][0] / work[200][1]
claim("cache_work_ratio", ratio, expected=(104, 105), kind="tolerance")
print(f"200 tokens, without: {work[200][0]:>14,}")
print(f"200 tokens, with:    {work[200][1]:>14,}")

# %% [markdown]
r"""
Without a cache, the model reads {{ cache_rows_without:,}} tokens to write {{ cache_experiment }}. With one, it reads {{ cache_experiment }}. In multiply-adds that is {{ cache_work_ratio:.0f}} times
less, and the factor grows with the length.

## The work, measured

Multiply-adds are not seconds. Here is the same experiment with a clock, on one thread.
"""

# %%
import time


def seconds(generate, n):
    begin = time.perf_counter()
    write(generate, fresh, torch.zeros(1, 1, dtype=torch.long), n)
    return time.perf_counter() - begin


seconds(sampling.generate, 10), seconds(kv_cache.generate, 10)  # wakes everything up
times = {}
for n in lengths:
    times[n] = seconds(sampling.generate, n), seconds(kv_cache.generate, n)

# %% tags=["hide-input"]
table = []
for n, (slow, fast) in times.items():
    claim(f"cache_speedup_{n}", slow / fast, kind="statistical")
    less = (f"{slow / fast:.1f}", f"{work[n][0] / work[n][1]:.0f}")
    table.append((n, f"{n / slow:.0f}", f"{n / fast:.0f}", *less))
claim("cache_shortest", lengths[0])
claim("cache_longest", lengths[-1])
claim("cache_rate_without", 200 / times[200][0], kind="statistical")
claim("cache_rate_with", 200 / times[200][1], kind="statistical")
display.table(
    table,
    header=("tokens", "without", "with", "time", "work"),
    caption="Tokens a second without a cache and with one, then how many times less time "
    f"it takes, and how many times less work. One thread of: {recipes.processor()}.",
)

# %% tags=["hide-input"] alt="Two panels over the number of tokens written, from {{ cache_shortest }} to {{ cache_longest }}. Left, seconds: without a cache a curve that bends upwards, with a cache one that stays near the bottom. Right, on a logarithmic axis, how many times less: counted work climbs in a straight line to about two hundred, measured time climbs too, well below it." caption="Left: what the clock says. Right: how many times less work the cache has, and how many times less time it takes."
fig, axes = display.figure(5.2, 2.7, columns=2)
for i, (label, colour, style) in enumerate(
    (("without", display.RED, "s--"), ("with a cache", display.BLUE, "o-"))
):
    axes[0].plot(
        lengths, [times[n][i] for n in lengths], style, color=colour, label=label
    )
axes[0].set_title("seconds", fontsize=10)
measured = [times[n][0] / times[n][1] for n in lengths]
axes[1].plot(lengths, work_ratios, "^:", color=display.GREY, label="work, counted")
axes[1].plot(lengths, measured, "o-", color=display.BLUE, label="time, measured")
axes[1].set_xscale("log", base=2)
axes[1].set_yscale("log")
axes[1].set_xticks(lengths, lengths)
axes[1].set_yticks((1, 10, 100), (1, 10, 100))
axes[1].minorticks_off()
axes[1].set_title("how many times less", fontsize=10)
for ax in axes:
    ax.set_xlabel("tokens written")
    ax.legend(fontsize=9)

# %% [markdown]
r"""
For {{ cache_experiment }} tokens, this machine wrote {{ cache_rate_without:.0f}} tokens a second without a cache, and {{ cache_rate_with:.0f}} with one. That is
{{ cache_speedup_200:.1f}} times as fast. At {{ cache_shortest }} tokens the factor was {{ cache_speedup_25:.1f}}, at {{ cache_longest }} it was {{ cache_speedup_400:.1f}}. Other runs give other numbers.

Why is the factor so far below that of the work? A pass over one token computes little, but it still has to start every one of its many small operations, and in a large model to read every weight from memory. A pass over the whole text does that once for all of them. So a multiply-add costs more in a short pass. What the cache removes is the growth: with it, each token costs hardly more than the one before.

## Past the window

A cache of this kind ends where the window ends. Once the text is longer, the model reads its last $T$ tokens, and with each new token
the window moves on by one. Then every token stands one place further to the front than before. It gets another position embedding, so
another stream, and other keys. Compare what was kept with what should be there now:
"""

# %%
line = validation[: T + 1][None]  # (1, n)
with torch.no_grad():
    _, kept = kv_cache.forward(model, line[:, :T])
    _, fresh_cache = kv_cache.forward(model, line[:, 1:])

differences = []
for (k, _), (wanted, _) in zip(kept.layers, fresh_cache.layers, strict=True):
    stale, wanted = k[:, :, 1:], wanted[:, :, :-1]  # the same tokens, one place apart
    differences.append(((stale - wanted).norm() / wanted.norm()).item())
claim(
    "cache_stale_least",
    min(differences),
    expected=within(0.05, None),
    kind="statistical",
)
for i, difference in enumerate(differences):
    print(f"block {i}: the keys are off by {difference:.0%} of their size")

# %% [markdown]
r"""
Not a single block could use its keys again. In the first block, the positions alone are to blame. The later ones have also listened to the token that
has left the window. So `generate` throws the cache away, and from there on each step costs a whole window. And `forward`
refuses to go on:
"""

# %%
try:
    kv_cache.forward(model, line[:, T:], kept)
except ValueError as error:
    print(error)

# %% [markdown]
r"""

It is tempting to go on all the same: drop the oldest entry, and put the new token at the last position. Nothing crashes, and soon many tokens claim to be the last one. We let it read validation text for
another window, and measure the loss against the honest way. As a third way, when the window is full, we start again from its last half, and keep a cache from there.
"""

# %%
rows = validation[: 8 * 2 * T].view(8, 2 * T)  # (B, n)


def drop_oldest(cache):
    return Cache(tuple((k[:, :, 1:], v[:, :, 1:]) for k, v in cache.layers))


def surprise(logits, t):
    return F.cross_entropy(logits[:, -1], rows[:, t + 1]).item()


losses = {"whole window": [], "start again": [], "drop the oldest": []}
with torch.no_grad():
    _, full = kv_cache.forward(model, rows[:, :T])
    sliding = again = full
    for t in range(T, 2 * T - 1):
        token = rows[:, t : t + 1]  # (B, 1)
        losses["whole window"].append(surprise(model(rows[:, t + 1 - T : t + 1]), t))

        logits, sliding = kv_cache.forward(model, token, drop_oldest(sliding))
        losses["drop the oldest"].append(surprise(logits, t))

        if len(again) == T:
            logits, again = kv_cache.forward(model, rows[:, t + 1 - T // 2 : t + 1])
        else:
            logits, again = kv_cache.forward(model, token, again)
        losses["start again"].append(surprise(logits, t))

mean = {name: sum(values) / len(values) for name, values in losses.items()}
gap = mean["drop the oldest"] - mean["whole window"]
claim("cache_past_right", mean["whole window"], kind="statistical")
claim("cache_past_again", mean["start again"], kind="statistical")
claim("cache_past_wrong", mean["drop the oldest"], kind="statistical")
claim("cache_past_gap", gap, expected=within(0.3, None), kind="statistical")
claim("cache_past_tokens", len(losses["whole window"]) * len(rows))
display.table(
    [(name, f"{value:.2f}") for name, value in mean.items()],
    header=("when the window is full", "loss, nats"),
)

# %% [markdown]
r"""
Over {{ cache_past_tokens }} tokens, dropping the oldest costs {{ cache_past_gap:.1f}} nats a token. The model that had
{{ cache_past_right:.2f}} goes to {{ cache_past_wrong:.2f}}, where the table of pairs of [page 2](02_bigram.py) has {{ loss_bigram:.2f}}. It still writes, and only a comparison
shows that it is broken. Starting again from half a window, at {{ cache_past_again:.2f}}, hardly differs here from the whole one, and reads half a window again only once in every {{ cache_half }} tokens and one more.

That is also why the experiment needed a long window. For {{ cache_experiment }} tokens from our own model, most of them past the window, the work is:
"""

# %%
claim("cache_half", T // 2)
ours = model.config
slow = sum(kv_cache.multiply_adds(ours, min(m, T)) for m in range(1, 201))
steps = sum(kv_cache.multiply_adds(ours, 1, kept=m) for m in range(T))
fast = steps + (200 - T) * kv_cache.multiply_adds(ours, T)
claim("cache_work_ratio_short", slow / fast, expected=(1.2, 1.3), kind="tolerance")
print(f"without {slow:,}\nwith    {fast:,}\nratio   {slow / fast:.2f}")

# %% [markdown]
r"""
A factor of {{ cache_work_ratio_short:.2f}}, and no more. For the first block, learned positions alone are to blame. Schemes that put only the *distance* between two tokens into a score, such as rotary positions ([Su et al. 2021](https://arxiv.org/abs/2104.09864)), keep its keys right: when the window moves, no distance changes. The keys of later blocks still remember tokens that have left. They are no longer what a fresh window gives, but every distance is one that the model knows.

## The memory

A cache holds a key and a value for each token in each block, $C$ numbers each. That is $2 L T C$ numbers for a row, and $B$ times that for a
batch. How much is it beside the weights? For GPT-2 we need no weights to know. PyTorch has a device called `meta`, on which tensors have shapes and
no numbers.
"""

# %%
table = []
for name, key in (("step-5", "ours"), ("gpt2", "gpt2")):
    with torch.device("meta"):
        shapes_only = GPT(recipes.PRESETS[name])
        size = shapes_only.config.block_size
        _, cache = kv_cache.forward(shapes_only, torch.zeros(1, size, dtype=torch.long))
    c = shapes_only.config
    numbers = 2 * c.n_layer * c.block_size * c.n_embd
    claim(f"cache_bytes_{key}", cache.bytes, expected=4 * numbers)
    in_weights = 4 * sum(p.numel() for p in shapes_only.parameters())
    claim(f"cache_rows_as_weights_{key}", in_weights / cache.bytes)
    mega = [f"{number / 1e6:,.2f}" for number in (cache.bytes, in_weights)]
    table.append((name, *mega, f"{in_weights / cache.bytes:.1f}"))
display.table(
    table,
    header=("model", "cache, MB", "weights, MB", "ratio"),
    caption="The cache of one row, filled to the end of the window. Four bytes a number.",
)

# %% [markdown]
r"""
A row of our own model takes {{ cache_bytes_ours:,}} bytes. For GPT-2 small, {{ cache_rows_as_weights_gpt2:.1f}} rows of text take as much memory as all its weights. A server with many readers spends its memory on
caches. So a good part of [what has changed since GPT-2](17_today.py) makes keys and values smaller.

## Where the time of a token goes

With a cache, a token costs little work and still takes its time. There are two suspects. One is the number of operations: each of them, however
small, has to be started from Python. The other is memory: a weight is used once for each token, so all of them have to be read. Count the first,
and measure the second: how fast does this thread read? We look at one step of two models, the fresh one from above and one that is three times as wide.
"""

# %%
from torch.utils._python_dispatch import TorchDispatchMode


class Started(TorchDispatchMode):
    """Counts the operations that are started inside."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def median_seconds(function, times=9):
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        function()
        taken.append(time.perf_counter() - begin)
    return sorted(taken)[times // 2]


large = torch.ones(2**24)
per_byte = median_seconds(large.sum) / large.nbytes

torch.manual_seed(0)
wide = GPT(replace(config, n_layer=6, n_head=6, n_embd=3 * C))
one = torch.zeros(1, 1, dtype=torch.long)
table, shares = [], []
for name, gpt in (("fresh", fresh), ("wide", wide)):
    with torch.inference_mode():
        _, hundred = kv_cache.forward(gpt, torch.zeros(1, 100, dtype=torch.long))
        with Started() as started:
            kv_cache.forward(gpt, one, hundred)
        taken = median_seconds(lambda g=gpt, c=hundred: kv_cache.forward(g, one, c))
    weights = 4 * sum(p.numel() for p in gpt.parameters())
    reading = weights * per_byte
    shares.append(reading / taken)
    claim(f"cache_share_{name}", 100 * reading / taken, kind="statistical")
    claim(f"cache_started_{name}", started.count)
    cells = (f"{weights / 1e6:.1f}", f"{1e3 * reading:.2f}", f"{1e3 * taken:.2f}")
    table.append((name, started.count, *cells))
display.table(
    table,
    header=("model", "operations", "weights, MB", "to read them, ms", "a step, ms"),
    caption=f"One step after 100 tokens. One thread of: {recipes.processor()}.",
)

# %% [markdown]
r"""
If they came from memory each time, reading the weights would take {{ cache_share_fresh:.0f}} % of a step of the small model. And many of them do not: they stay in the processor's own, faster memory. So the
time goes into starting {{ cache_started_fresh }} operations. In the wide one, reading takes {{ cache_share_wide:.0f}} % at this speed, and no such memory is sure to hold that much. So there are two cures, one for each: fewer operations, and
fewer bytes.

**Fewer operations.** PyTorch can *compile* a step: it reads the Python code once, and turns all its operations into a few loops of C++, which are then
started as one. For that, nothing may change its shape. So the space for keys and values is reserved in advance, for a full window, and a token's own are written into
their place. What is not written yet is hidden, by $-\infty$ added to its scores.

**Fewer bytes.** Take the row $0.5, -1, 0.25$ of a matrix. Divide by the largest, times $127$, and round: $64, -127, 32$. Keep these whole numbers and one number for
the row, its *scale* $1/127$. A whole number from $-127$ to $127$ fits into one byte, and a weight of four bytes became one.
"""

# %%
from gptbook import writer

display.source(writer.round_rows)

# %%
whole, scale = writer.round_rows(torch.tensor([[0.5, -1.0, 0.25]]))
assert whole.tolist() == [[64, -127, 32]]
back = whole * scale[:, None]
print(back)

# %% [markdown]
r"""
!!! theorem "Half a scale"

    A row of weights $w_i$ with the largest size $m > 0$ is stored as whole numbers $z_i$, the nearest to $w_i / s$, with $s = m / 127$. Then $|z_i| \le 127$, and
    $|s z_i - w_i| \le s / 2$.

    Tested by `test_half_a_scale`.

??? proof "Proof"

    $|w_i / s| \le m / s = 127$, and the nearest whole number to something of at most $127$ is at most that. Nor is the nearest whole number farther than a half: $|z_i - w_i / s| \le 1/2$. Multiply by
    $s$. $\blacksquare$

Does the model notice? `rounded` gives a copy whose matrices hold what rounding leaves of them. We compare its loss with that of the trained model, over the
first {{ cache_int8_tokens:,}} targets of the validation text, and ask how often both hold the same next token likeliest, given the same text. As a control, the same with whole numbers from $-3$ to $3$.
"""

# %%
lines = validation[: 64 * (T + 1)].view(64, T + 1)  # (B, n)
claim("cache_int8_tokens", 64 * T)


def coarse(gpt, most):
    """A copy with whole numbers from -most to most in its matrices."""
    gpt = copy.deepcopy(gpt)
    for module in gpt.modules():
        if isinstance(module, torch.nn.Linear):
            w = module.weight.data
            s = w.abs().amax(dim=1, keepdim=True) / most
            module.weight.data = (w / s).round() * s
    return gpt


def judge(gpt):
    with evaluating(gpt):
        logits = gpt(lines[:, :-1])  # (B, T, V)
    loss = F.cross_entropy(logits.flatten(0, 1), lines[:, 1:].flatten()).item()
    return loss, logits.argmax(-1)


in_bytes = writer.rounded(model)
expected = coarse(model, 127).lm_head.weight
torch.testing.assert_close(in_bytes.lm_head.weight, expected, rtol=1e-5, atol=1e-7)
loss, choices = judge(model)
table = []
for name, gpt in (("int8", in_bytes), ("three", coarse(model, 3))):
    new_loss, new = judge(gpt)
    same = (new == choices).double().mean().item()
    bounds = {"int8": (-0.01, 0.01), "three": within(0.02, None)}[name]
    claim(f"cache_{name}_costs", new_loss - loss, expected=bounds, kind="statistical")
    bounds = {"int8": (0.97, 1.0), "three": within(None, 0.95)}[name]
    claim(f"cache_{name}_same", same, expected=bounds, kind="statistical")
    table.append((name, f"{new_loss - loss:+.4f}", f"{same:.1%}"))
display.table(table, header=("weights", "loss, nats more", "same next token"))

# %% [markdown]
r"""
In bytes, the loss moves by less than a hundredth of a nat. With seven values for a weight it does not get away so lightly.

Both cures are in `writer`. A `Writer` writes the same text as `kv_cache.generate`, or, with int8, the same as the rounded model does. Here is what
it writes beside the cache of this page. So that the compiler is done soon, the model has two blocks.
"""

# %%
torch.manual_seed(0)
short = GPT(replace(config, n_layer=2))
quick = writer.Writer(short)
slow, fast = (
    median_seconds(lambda g=g: g(one, 200, temperature=0), 5)
    for g in (lambda *a, **k: kv_cache.generate(short, *a, **k), quick.generate)
)
assert torch.equal(
    quick.generate(one, 200, temperature=0),
    kv_cache.generate(short, one, 200, temperature=0),
)
claim("cache_writer_ratio", slow / fast, kind="statistical")
print(quick.note or f"compiled in {quick.seconds:.0f} s")
print(f"kv_cache {200 / slow:6.0f} tokens a second")
print(f"Writer   {200 / fast:6.0f} tokens a second")
print(f"that is  {slow / fast:6.1f} times as fast, on: {recipes.processor()}")

# %% [markdown]
r"""
This run was {{ cache_writer_ratio:.1f}} times as fast. Where there is no C++ compiler, the `Writer` says so in one line and writes as the cache does. What bytes gain is seen in
larger models: `benchmarks/writing.py` measures both cures beside another library, for two sizes.

## Your turn

### 1. The cached step

*About fifteen minutes.* Write `step(q, k, v, cache)` for one head and one text. `q`, `k` and `v` are those of $T$ new tokens, $(T, D)$ each. `cache` is
`None`, or a pair (keys, values) of $S$ earlier tokens, $(S, D)$ each. Return a pair: the output of the head for the new tokens, $(T, D)$, and the new cache, a pair of $(S + T, D)$ each, the old tokens first. Scale by
the root of $D$. Mind the mask when $T$ is more than one. Change nothing that you are given.

??? tip "Hint"

    Which columns may row 0 of the new tokens see, if three tokens are kept? `tril` takes the number of a diagonal.

Check yours with `exercises.check("cached-step", step)`.
"""

# %% tags=["solution"]
from gptbook import exercises


def step(q, k, v, cache):
    if cache is not None:
        k = torch.cat((cache[0], k))  # (n, D)
        v = torch.cat((cache[1], v))  # (n, D)
    T, S = len(q), len(k) - len(q)
    seen = torch.ones(T, S + T, dtype=torch.bool).tril(S)  # (T, S+T)
    scores = q @ k.T / math.sqrt(q.size(1))  # (T, S+T)
    weights = F.softmax(scores.masked_fill(~seen, -math.inf), dim=-1)  # (T, S+T)
    return weights @ v, (k, v)


exercises.check("cached-step", step)

# %% [markdown]
r"""
### 2. Work with a prompt

*About fifteen minutes.* Now the text begins with a prompt. Write `work(L, C, V, prompt, new)`: how many multiply-adds it takes to write `new`
tokens after `prompt` ones, for one row, in a window that is long enough. Return a pair: without a cache, and with one. The first pass
reads the whole prompt in both ways, and writes the first new token. No pass reads the last new token. Count as on this page: hidden scores
too, and the unembedding for every token that is read. `prompt` and `new` are at least 1.

??? tip "Hint"

    There are as many passes as new tokens. For each, how many tokens does it read, and how many does each of these look at? A loop will do.

Check yours with `exercises.check("cached-work", work)`.
"""


# %% tags=["solution"]
def work(L, C, V, prompt, new):
    def one_pass(read, seen):
        return read * (12 * L * C**2 + V * C) + read * seen * 2 * L * C

    without = sum(one_pass(m, m) for m in range(prompt, prompt + new))
    steps = sum(one_pass(1, m) for m in range(prompt + 1, prompt + new))
    return without, one_pass(prompt, prompt) + steps


exercises.check("cached-work", work)

# %% [markdown]
r"""
### 3. How many readers

*About ten minutes.* A machine has `memory` bytes. In them lie the weights of a model, `parameters` numbers, and a cache for each row of text that it
serves, large enough for a full window. Nothing else counts. Every number takes `size` bytes. Write `rows_that_fit(config, parameters, memory, size)`, where
`config` is a `GPTConfig`. It returns a whole number, and 0 if not even the weights fit.

??? tip "Hint"

    What is left when the weights are in? How many times does a full cache go into that?

Check yours with `exercises.check("rows-that-fit", rows_that_fit)`.
"""


# %% tags=["solution"]
def rows_that_fit(config, parameters, memory, size):
    left = memory - parameters * size
    cache = 2 * config.n_layer * config.block_size * config.n_embd * size
    return max(0, left // cache)


exercises.check("rows-that-fit", rows_that_fit)

# %% [markdown]
r"""
## What this page left out

`kv_cache` copies the whole past in every step, to glue one token on, and a `Writer` reserves a full window for one text. Programs that serve many readers reserve the space in advance, in small pages, and hand these out as
texts grow ([Kwon et al. 2023](https://arxiv.org/abs/2309.06180)). And all heads keep keys and values of their own, where newer models let several heads share one pair of keys and values.

We have seen what a model computes, and what of it can be kept. [The next page](12_lens.py) looks at what all these numbers mean.
"""
