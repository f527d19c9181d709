# %% [markdown]
r"""
# One head of self-attention

Each token asks a question, every earlier token offers an answer, and softmax turns how well they match into the weights of an
average.

On [page 3](03_averaging.py) the weights of the average were fixed: all of the past counted alike. At its end we changed a score by hand, and the weights
followed. Here the scores come from the tokens themselves, through numbers that can be learned. That is **attention**. It is called *self*-attention
because the tokens that ask and the tokens that answer are those of the same text.

## Four tokens by hand

Take the four tokens of page 3 again. Each makes three numbers out of its two channels:

* a **query**: what is it looking for?
* a **key**: what does it have to offer?
* a **value**: what does it say when somebody listens?
"""

# %%
import math

import torch
import torch.nn.functional as F

x = torch.tensor([[1.0, 0.0], [3.0, 2.0], [2.0, 4.0], [6.0, 2.0]])  # (T, C)
T, C = x.shape

w_q = torch.tensor([[0.0], [0.5 * math.log(2)]])  # (C, D)
w_k = torch.tensor([[0.0], [0.5]])  # (C, D)
w_v = torch.tensor([[1.0], [0.0]])  # (C, D)

q, k, v = x @ w_q, x @ w_k, x @ w_v  # (T, D) each
print("keys   ", k.flatten().tolist())
print("values ", v.flatten().tolist())
print("queries", [f"{n:g} ln 2" for n in (q / math.log(2)).flatten().tolist()])

# %% [markdown]
r"""
The three matrices were chosen so that you can follow with a pencil. Here $D$ is the size of a query, and it is 1. The key of a token is half of its second channel. The query is that
number times $\ln 2$. The value is the first channel.

The **score** of token $t$ for token $s$ is the query of $t$ times the key of $s$.
"""

# %%
scores = q @ k.T  # (T, D) @ (D, T) -> (T, T)
scores / math.log(2)  # in units of ln 2

# %% [markdown]
r"""
Now the last steps of page 3: forbid the future, and let softmax divide. Softmax raises $e$ to the score. A score of $n \ln 2$ becomes $e^{n \ln 2} = 2^n$. So before they are divided by
their sum, the weights are powers of two. The last token has the scores 0, 1, 2, 1, which give 1, 2, 4, 2, whose sum is 9.
"""

# %%
future = ~torch.ones(T, T, dtype=torch.bool).tril()  # (T, T): True above the diagonal
weights = F.softmax(scores.masked_fill(future, float("-inf")), dim=-1)  # (T, T)
out = weights @ v  # (T, T) @ (T, D) -> (T, D)

by_pencil = torch.tensor(
    [
        [1, 0, 0, 0],
        [1 / 3, 2 / 3, 0, 0],
        [1 / 21, 4 / 21, 16 / 21, 0],
        [1 / 9, 2 / 9, 4 / 9, 2 / 9],
    ]
)  # (T, T)
torch.testing.assert_close(weights, by_pencil)
torch.testing.assert_close(out.flatten(), torch.tensor([1, 7 / 3, 15 / 7, 3]))
print(weights)
print("output", out.flatten().tolist())

# %% tags=["hide-input"] alt="Two grids of four by four weights below the diagonal. On the left every row is spread evenly over the past. On the right the third row puts most of its weight on itself, and the last row puts four ninths on the third token." caption="Left: the running mean of page 3. Right: attention. Row $t$ still uses columns 0 to $t$ only, but how much of each depends on the tokens."
from gptbook import display

mean = torch.ones(T, T).tril() / torch.arange(1, T + 1)[:, None]  # (T, T)
fig, axes = display.figure(5.2, 2.7, columns=2)
for ax, matrix, title in ((axes[0], mean, "mean"), (axes[1], weights, "attention")):
    display.heatmap(ax, matrix, numbers=True, title=title, high=1.0)
axes[0].set_ylabel("row t: who looks")

# %% [markdown]
r"""
Check the last row: $\frac{1 \cdot 1 + 2 \cdot 3 + 4 \cdot 2 + 2 \cdot 6}{9} = 3$. The token with the large second channel, number 2, draws the most attention. Nobody told the weights to do so. They were computed from the
tokens, and other tokens would get other weights.

In a trained model the three matrices are learned, like the table of [page 2](02_bigram.py). Training finds out which questions are worth asking.

## The general case

Now with the sizes of a real, if small, layer: rows of $T = 8$ tokens, each a vector of $C = 32$ numbers, and queries, keys and values of $D = 16$. With more than one number in a query, the score is a dot product: multiply number by number, and add up. It is large when the two vectors
point the same way.
"""

# %%
torch.manual_seed(0)
B, T, C, D = 4, 8, 32, 16
x = torch.randn(B, T, C)  # (B, T, C)
w_q, w_k, w_v = torch.randn(3, C, D) / math.sqrt(C)  # (C, D) each

q = x @ w_q  # (B, T, D)
k = x @ w_k  # (B, T, D)
v = x @ w_v  # (B, T, D)
scores = q @ k.transpose(-2, -1)  # (B, T, T)
scores = scores / math.sqrt(D)  # (B, T, T)
future = ~torch.ones(T, T, dtype=torch.bool).tril()  # (T, T)
scores = scores.masked_fill(future, float("-inf"))  # (B, T, T)
weights = F.softmax(scores, dim=-1)  # (B, T, T): rows sum to 1
out = weights @ v  # (B, T, D)

assert q.shape == k.shape == v.shape == out.shape == (B, T, D)
assert weights.shape == (B, T, T)
for name, tensor in (("x", x), ("q, k, v", q), ("weights", weights), ("out", out)):
    print(f"{name:8} {tuple(tensor.shape)}")

# %% [markdown]
r"""
Nine lines, and each has its shape at the end. One of them is new: the scores are divided by $\sqrt{D}$. The next section says why.

The weights of the first row of text show what page 3 could not have: rows that are *not* uniform.
"""

# %%
last = weights[0, -1]  # (T,)
assert last.max() > 2 * last.min(), "these weights are as good as uniform"
print("the last row of weights:", [round(w, 2) for w in last.tolist()])
print(f"a plain mean would give  {1 / T} to each")

# %% [markdown]
r"""
## Why divide by the root of D

Suppose that the numbers in $q$ and $k$ are independent, with mean 0 and variance 1. Before training this is nearly so: the matrices above were divided by $\sqrt{C}$ to that end. Training may change it. How large is their dot product? Each of the $D$ products has mean 0 and variance 1. Variances of independent numbers add. So the dot
product has variance $D$, and its typical size is $\sqrt{D}$.

!!! theorem "The variance of a dot product"

    Let the entries of $q$ and $k$ in $\mathbb{R}^D$ be independent, with mean 0 and variance 1. Then $q \cdot k$ has mean 0 and variance $D$, and
    $\frac{q \cdot k}{\sqrt{D}}$ has variance 1.

    Tested by `test_variance_of_a_dot_product`.

??? proof "Proof"

    Write $\mathbb{E}$ for the mean over chance. For one product, independence gives $\mathbb{E}[q_i k_i] = \mathbb{E}[q_i]\, \mathbb{E}[k_i] = 0$ and
    $\mathbb{E}[q_i^2 k_i^2] = \mathbb{E}[q_i^2]\, \mathbb{E}[k_i^2] = 1$, so its variance is 1. Means add, so $q \cdot k$ has mean 0.

    Variances add for numbers that are unrelated on average. Two different products have $\mathbb{E}[q_i k_i q_j k_j] = \mathbb{E}[q_i]\, \mathbb{E}[k_i]\, \mathbb{E}[q_j]\, \mathbb{E}[k_j] = 0$. Hence the variance of the
    sum is the sum of the $D$ variances, which is $D$. Dividing by $\sqrt{D}$ divides the variance by $D$. $\blacksquare$

Measure it.
"""

# %%
from gptbook.claims import claim

generator = torch.Generator().manual_seed(0)
rows = []
for width in (4, 16, 64, 256):
    a, b = torch.randn(2, 20_000, width, generator=generator)  # (N, D) each
    dots = (a * b).sum(dim=1)  # (N,)
    raw, scaled = dots.var().item(), (dots / math.sqrt(width)).var().item()
    claim(
        f"dot_variance_{width}",
        raw / width,
        expected=1.0,
        tolerance=0.06,
        kind="tolerance",
    )
    rows.append((width, f"{raw:.1f}", f"{scaled:.3f}"))
display.table(rows, header=("D", "variance of q · k", "after dividing by √D"))

# %% [markdown]
r"""
Why does the size matter? Softmax turns any scores into weights. But it does not treat large ones kindly. Multiply all scores by a growing number, and the largest takes everything.
"""

# %%
some = torch.tensor([0.3, -0.8, 1.1, 0.1])  # (T,)
for factor in (1, 2, 4, 8, 16):
    print(
        f"scores x {factor:<2}",
        [f"{w:.3f}" for w in F.softmax(factor * some, dim=0).tolist()],
    )

# %% [markdown]
r"""
A head whose weights are all on one token has two troubles. It averages nothing. And it can hardly learn: its weights do not change when a score changes a little, so its gradient is nearly zero. We can watch both. Draw random queries and keys of growing
width, with and without the scale. Measure the largest weight of each row, and how much the weights react to the scores.
"""


# %%
def spread(width, scale, tokens=64):
    """The largest weight of a row and the sum of its slopes, on average over rows."""
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 100, tokens, width, generator=generator)  # (B, T, D) each
    w = F.softmax(q @ k.transpose(-2, -1) * scale, dim=-1)  # (B, T, T)
    # A weight's slope by its own score is w (1 - w): zero where w is 0 or 1.
    return w.max(dim=-1).values.mean().item(), (w * (1 - w)).sum(dim=-1).mean().item()


widths = (1, 4, 16, 64, 256)
plain = [spread(width, 1.0) for width in widths]
scaled = [spread(width, 1 / math.sqrt(width)) for width in widths]
claim("unscaled_largest", plain[-1][0], expected=(0.8, 1.0), kind="tolerance")
claim("scaled_largest", scaled[-1][0], expected=(0.0, 0.3), kind="tolerance")
claim("unscaled_slope", plain[-1][1], expected=(0.0, 0.3), kind="tolerance")
claim("scaled_slope", scaled[-1][1], expected=(0.8, 1.0), kind="tolerance")
claim("spread_width", widths[-1])
print("largest weight, no scale:", [round(m[0], 2) for m in plain])
print("largest weight, scaled:  ", [round(m[0], 2) for m in scaled])
print("sum of slopes, no scale: ", [round(m[1], 2) for m in plain])
print("sum of slopes, scaled:   ", [round(m[1], 2) for m in scaled])

# %% tags=["hide-input"] alt="Two panels over the width of the head, from 1 to {{ spread_width }}. Without the scale the largest weight of a row climbs from about a tenth towards one, and the sum of the slopes of a row falls towards zero. With the scale both stay level." caption="Rows of 64 tokens, random queries and keys. Left: the largest weight of a row. Right: how much the weights still react to the scores, as the sum of the slopes of a row."
fig, axes = display.figure(5.2, 2.6, columns=2)
for ax, column, label in (
    (axes[0], 0, "largest weight"),
    (axes[1], 1, "sum of a row's slopes"),
):
    ax.plot(
        widths,
        [m[column] for m in plain],
        "s--",
        color=display.RED,
        label="without scale",
    )
    ax.plot(
        widths,
        [m[column] for m in scaled],
        "o-",
        color=display.BLUE,
        label="divided by √D",
    )
    ax.set_xscale("log", base=2)
    ax.set_xticks(widths, widths)
    ax.set_ylim(0, 1.05)
    ax.set_xlabel("D")
    ax.set_title(label, fontsize=10)
axes[0].legend(fontsize=8)

# %% [markdown]
r"""
At a width of {{ spread_width }} and without the scale, the largest of the 64 weights holds {{ unscaled_largest:.0%}} of the sum, and the slopes of a row add up to {{ unscaled_slope:.2f}}. With the scale these are {{ scaled_largest:.0%}} and
{{ scaled_slope:.2f}}, and hardly depend on the width. The formula with $\sqrt{D}$ is from Vaswani et al., "Attention Is All You Need", under "Scaled Dot-Product Attention".

The root is that of $D$, the width of the *head*. It is not the width $C$ of the token. Dividing by $\sqrt{C}$ runs as well. Where $C$ is larger than $D$, it makes all rows too flat. Shapes are right and the future stays hidden, so only a comparison shows it.

## The same, from PyTorch

PyTorch has this computation as one function. Other people wrote it, so it is a good witness.
"""


# %%
def attention(q, k, v):  # q (B, T, D)
    T, D = q.shape[-2:]
    future = ~torch.ones(T, T, dtype=torch.bool).tril()  # (T, T)
    scores = q @ k.transpose(-2, -1) / math.sqrt(D)  # (B, T, T)
    weights = F.softmax(scores.masked_fill(future, float("-inf")), dim=-1)  # (B, T, T)
    return weights @ v  # (B, T, D)


witness = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, T, D)
torch.testing.assert_close(attention(q, k, v), out, rtol=0, atol=0)
difference = (attention(q, k, v) - witness).abs().max()
claim(
    "attention_off_pytorch", difference, expected=0.0, tolerance=1e-5, kind="tolerance"
)

too_flat = F.scaled_dot_product_attention(
    q, k, v, is_causal=True, scale=1 / math.sqrt(C)
)
wrong = (out - too_flat).abs().max()
claim("attention_wrong_scale", wrong, expected=(1e-2, None), kind="tolerance")
print(f"ours against PyTorch's    {difference:.0e}")
print(f"divided by √C by mistake  {wrong:.2f}")

# %% [markdown]
r"""
## The same thing in the package

The attention layer of our GPT runs several heads at once, which is the subject of the next page. With one head, it must be what we have built, apart from a last matrix product, `c_proj`, that we can set to change nothing. One head of the
package is as wide as the token, so $D = C$ here.
"""

# %%
from gptbook.model import CausalSelfAttention, GPTConfig

display.source(CausalSelfAttention.forward)

# %%
torch.manual_seed(1)
layer = CausalSelfAttention(GPTConfig(block_size=T, n_head=1, n_embd=C))
with torch.no_grad():
    layer.c_proj.weight.copy_(torch.eye(C))
    layer.c_proj.bias.zero_()
    q, k, v = (x @ w.T for w in layer.c_attn.weight.split(C))  # (B, T, C) each
    difference = (attention(q, k, v) - layer(x)).abs().max()
claim("attention_off_layer", difference, expected=0.0, tolerance=1e-5, kind="tolerance")
print(f"largest difference {difference:.0e}")

# %% [markdown]
r"""
The package keeps the three matrices stacked in one, `c_attn`, and a linear layer multiplies by the transposed matrix. That is all the difference.

## No look into the future

A head must not see what comes later. A model that does is called leaky, and one that does not is called **causal**. The way to find out needs no knowledge of the code. Change one token, and see which outputs move.
"""


# %%
def head(x):  # x (B, T, C)
    return attention(x @ w_q, x @ w_k, x @ w_v)  # (B, T, D)


t = 5
changed = x.clone()
changed[:, t] += torch.randn(C, generator=torch.Generator().manual_seed(2))
before, after = head(x), head(changed)  # (B, T, D) each

same = (before == after).all(dim=-1)[0]  # (T,): True where not a single bit moved
claim("head_changed_token", t)
assert same[:t].all()
assert not same[t:].any()
kept = same.nonzero().flatten().tolist()
print(f"token {t} changed; outputs that stayed the same: {kept}")

# %% [markdown]
r"""
All outputs before token {{ head_changed_token }} are the same to the last bit. We ask for that and not for "nearly". A forbidden token has the weight zero, exactly, and zero times anything finite is zero. If a single bit moves, something else got through.

## The leak matrix

One change tests one token. Change each in turn, and write down how much each output moves. The **leak matrix** $D_{i,j}$ holds the largest change among the numbers of output $i$ when token $j$ gets one random push. ($D$ stands for difference here, and not for the width of
a head.)
"""


# %%
def leak(function, x, size=1.0):
    """D[i, j]: how much output i of function moves when token j of x (1, T, C) changes."""
    T = x.size(1)
    before = function(x)  # (1, T, D)
    moved = torch.zeros(T, T)
    for j in range(T):
        other = x.clone()
        other[:, j] += size * torch.randn(
            x.size(-1), generator=torch.Generator().manual_seed(j)
        )
        moved[:, j] = (function(other) - before).abs().amax(dim=(0, 2))  # (T,)
    return moved


def unmasked(x):  # x (B, T, C)
    q, k, v = x @ w_q, x @ w_k, x @ w_v  # (B, T, D) each
    return F.softmax(q @ k.transpose(-2, -1) / math.sqrt(D), dim=-1) @ v  # (B, T, D)


def masked_late(x):  # x (B, T, C)
    q, k, v = x @ w_q, x @ w_k, x @ w_v  # (B, T, D) each
    weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(D), dim=-1)  # (B, T, T)
    return weights.tril() @ v  # (B, T, D)


matrices = {
    "causal": leak(head, x[:1]),
    "no mask": leak(unmasked, x[:1]),
    "mask after softmax": leak(masked_late, x[:1]),
}
for name, matrix in matrices.items():
    above = matrix.triu(1).max().item()
    claim(
        "head_leak_" + name.replace(" ", "_"),
        above,
        expected=0.0 if name == "causal" else (1e-3, None),
        kind="exact" if name == "causal" else "tolerance",
    )
    print(f"{name:18} largest entry above the diagonal: {above:.3g}")

# %% tags=["hide-input"] alt="Three grids of eight by eight cells. The first is empty above the diagonal. The second is filled everywhere. The third, with the mask after the softmax, is also filled above the diagonal, more faintly than below." caption="Leak matrices of three heads: how much output $i$ moves when token $j$ changes. Above the diagonal lies the future."
fig, axes = display.figure(5.2, 2.4, columns=3)
for ax, (name, matrix) in zip(axes, matrices.items(), strict=True):
    display.heatmap(ax, matrix.sqrt(), title=name)
    ax.set_xticks(range(0, 8, 2), range(0, 8, 2))
    ax.set_yticks(range(0, 8, 2), range(0, 8, 2))
    ax.set_xlabel("token j")
axes[0].set_ylabel("output i")

# %% [markdown]
r"""
The third head is an instructive mistake. Its mask is there, and the weights above the diagonal are zero. But it comes *after* the softmax. By then the future has taken its share of every row's sum, so each weight of the past knows something about what comes later. The rows do not even sum to one any more.
Masking before the softmax removes the future from the sum as well.

The package has this as `verify.leak_matrix`. It takes any model that maps token ids to logits, and changes the tokens themselves. The loop at its end is the one above. What comes before it guards against models that it cannot use. Here it is on a whole GPT.
"""

# %%
from gptbook import verify
from gptbook.model import GPT

display.source(verify.leak_matrix)

# %%
torch.manual_seed(0)
model = GPT(GPTConfig(block_size=8, n_layer=2, n_head=2, n_embd=32)).eval()
idx = torch.randint(65, (1, 8), generator=torch.Generator().manual_seed(3))  # (1, T)
whole = verify.leak_matrix(model, idx)  # (T, T)
claim("head_leak_gpt", whole.triu(1).max(), expected=0.0)
assert (whole.tril() > 0).sum() == 8 * 9 / 2, "some past token has no effect at all"
print("above the diagonal:", whole.triu(1).max().item())

# %% [markdown]
r"""
## Checks

Three questions to put to any attention function, with other sizes than above. Is it equal to the witness? Are rows of a batch kept apart? Is the first output the first value, since token 0 has nobody else to look at?
"""

# %%
generator = torch.Generator().manual_seed(4)
for width in (1, 3, 64):
    q, k, v = torch.randn(3, 2, 16, width, generator=generator)  # (B, T, D) each
    ours = attention(q, k, v)  # (B, T, D)
    witness = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, T, D)
    torch.testing.assert_close(ours, witness, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        ours[1:], attention(q[1:], k[1:], v[1:]), rtol=0, atol=1e-6
    )
    torch.testing.assert_close(ours[:, 0], v[:, 0], rtol=0, atol=0)
print("three widths, three checks, all passed")

# %% [markdown]
r"""
## Your turn

### 1. A head of your own

*About fifteen minutes.* Write `head(x, w_q, w_k, w_v)`. It gets `x` of shape $(B, T, C)$ and three matrices of shape $(C, D)$, and returns one causal, scaled head's output, of shape $(B, T, D)$. Do not call PyTorch's attention function. (The check cannot see how you did it.)

??? tip "Hint"

    Nine lines, with a shape at the end of each. Take $T$ and $D$ from the tensors. `transpose(-2, -1)` leaves the batch alone.

Check yours with `exercises.check("attention-head", head)`.
"""

# %% tags=["solution"]
from gptbook import exercises


def head(x, w_q, w_k, w_v):
    q, k, v = x @ w_q, x @ w_k, x @ w_v  # (B, T, D) each
    T, D = q.shape[-2:]
    scores = q @ k.transpose(-2, -1) / math.sqrt(D)  # (B, T, T)
    future = ~torch.ones(T, T, dtype=torch.bool).tril()  # (T, T)
    weights = F.softmax(scores.masked_fill(future, -math.inf), dim=-1)  # (B, T, T)
    return weights @ v  # (B, T, D)


exercises.check("attention-head", head)

# %% [markdown]
r"""
### 2. Which scale?

*About five minutes.* A query and a key have $D$ entries each, all independent, with mean 0. Those of the query have standard deviation `a` (the root of the variance), those of the key `b`. By what must you divide the dot product so that it has variance 1? Write `divisor(D, a, b)`.

??? tip "Hint"

    What is the variance of one product $q_i k_i$ now? Follow the proof.

Check yours with `exercises.check("score-scale", divisor)`.
"""


# %% tags=["solution"]
def divisor(D, a, b):
    return math.sqrt(D) * a * b


exercises.check("score-scale", divisor)

# %% [markdown]
r"""
### 3. Name the mistake

*About twenty minutes.* Three mistakes are common, and all of them run: dividing by the root of a wrong width, softmax over the wrong axis, and the mask after the softmax. Write `diagnose(attention)`. It gets a function `attention(q, k, v)` that takes three
tensors of shape $(B, T, D)$ and returns one. It answers with one of four words:

* `"right"`: causal and scaled, as on this page;
* `"scale"`: it divides by something else than $\sqrt{D}$;
* `"axis"`: the mask is right, but the softmax runs over the columns: over those who look, instead of those who are looked at;
* `"mask"`: the softmax came first, and then the weights of the future were set to zero.

??? tip "Hint"

    Write the four versions yourself, all but the scale. Compare outputs on random inputs. What is none of the others has another scale, and you need not know which.

Check yours with `exercises.check("name-the-mistake", diagnose)`.
"""


# %% tags=["solution"]
def diagnose(attention):
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 6, 5, generator=generator)  # (B, T, D) each
    scores = q @ k.transpose(-2, -1) / math.sqrt(5)  # (B, T, T)
    future = ~torch.ones(6, 6, dtype=torch.bool).tril()  # (T, T)
    hidden = scores.masked_fill(future, -math.inf)  # (B, T, T)
    versions = {
        "right": F.softmax(hidden, dim=-1),
        "axis": F.softmax(hidden, dim=-2),
        "mask": F.softmax(scores, dim=-1).tril(),
    }
    got = attention(q, k, v)  # (B, T, D)
    for word, weights in versions.items():
        if torch.allclose(got, weights @ v, atol=1e-5):
            return word
    return "scale"


exercises.check("name-the-mistake", diagnose)

# %% [markdown]
r"""
## What this page left out

One head makes one set of weights for each token, so it can follow one thread at a time. The next page runs several side by side: [many heads](05_heads.py). And nothing here knows in which order the tokens of the past stood. That has to wait
for [positions](07_positions.py).
"""
