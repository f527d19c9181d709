# %% [markdown]
r"""
# The averaging trick

A loop, a matrix product and a softmax compute the same running mean, and the third form is the one that can learn.

A model that predicts the next token must look back, further than the tables of [page 2](02_bigram.py) could. Attention does it, and the next page builds
it. This page builds its skeleton: every
position becomes the mean of itself and of all positions before it. The mean treats all of the past alike, so it is a
poor summary. But once it is written the right way, one small change turns it into attention.

## Four tokens by hand

Take four tokens. Each is described by two numbers, its two channels. We write the shape as $(T, C)$: $T$ tokens, $C$
channels.
"""

# %%
import torch
import torch.nn.functional as F

x = torch.tensor([[1.0, 0.0], [3.0, 2.0], [2.0, 4.0], [6.0, 2.0]])  # (T, C)
x

# %% [markdown]
r"""
The first token has no past, so its mean is itself. The second is the mean of rows 0 and 1. The last is the mean of all
four rows. You can check each line in your head.
"""

# %%
T, C = x.shape
for t in range(T):
    past = x[: t + 1]  # (t+1, C): the token itself and what came before it
    print(f"row {t}: mean of {past.tolist()} = {past.mean(dim=0).tolist()}")

# %% [markdown]
r"""
Notice what the slice `x[: t + 1]` leaves out: everything after token $t$. Looking ahead would be cheating. During
training the next token is the answer, and a model that sees the answer learns to copy it.

## First way: a loop

Real batches have a third axis. $B$ rows of text are processed side by side, and no row may see another. So the shape is
$(B, T, C)$, and the honest way to average takes two loops.
"""


# %%
def average_loop(x):
    B, T, C = x.shape
    out = torch.empty_like(x)  # (B, T, C)
    for b in range(B):
        for t in range(T):
            out[b, t] = x[b, : t + 1].mean(dim=0)  # (C,)
    return out


torch.manual_seed(0)
X = torch.randn(4, 8, 2)  # (B, T, C)
by_loop = average_loop(X)
by_loop[0]

# %% [markdown]
r"""
This is right, and slow: Python visits every position one at a time. It is the version to believe when the others
disagree.

## Second way: a triangular matrix

A mean is a weighted sum. The weights of row $t$ are $\frac{1}{t+1}$ for the first $t+1$ tokens and zero for the rest.
Put the weights of all rows into one matrix, and the running mean of the whole text is one matrix product.

Start from ones. Cut off the part above the diagonal, which is the future. Then divide each row by its sum.
"""

# %%
weights = torch.ones(T, T).tril()  # (T, T): 1 where column s is not after row t
weights = weights / weights.sum(dim=1, keepdim=True)  # (T, T): rows sum to 1
weights

# %% [markdown]
r"""
Read it by rows. Row $t$ says where token $t$ takes its information from. Column $s$ says who listens to token $s$.
"""

# %% tags=["hide-input"] alt="A four by four grid of weights. Row 0 is a single cell holding all the weight. Each further row spreads the weight evenly over one more column. Above the diagonal the grid is empty." caption="The weights of the running mean. Row $t$ uses columns 0 to $t$, and nothing to the right of them."
from gptbook import display

fig, ax = display.figure(3.4, 3.2)
display.heatmap(ax, weights, numbers=True)
ax.set_ylabel("row t: who looks")
ax.set_xlabel("column s: who is looked at")
ax.xaxis.set_label_position("top")

# %% [markdown]
r"""
Multiply by $x$, and the four rows computed by hand come back.
"""

# %%
weights @ x  # (T, T) @ (T, C) -> (T, C)

# %% [markdown]
r"""
For a batch, the same $(T, T)$ matrix serves every row of text. PyTorch repeats it along the batch axis by itself.
"""


# %%
def average_matmul(x):
    T = x.size(1)
    weights = torch.ones(T, T).tril()  # (T, T)
    weights = weights / weights.sum(dim=1, keepdim=True)  # (T, T)
    return weights @ x  # (T, T) @ (B, T, C) -> (B, T, C)


by_matmul = average_matmul(X)

# %% [markdown]
r"""
## Third way: a masked softmax

[Page 2](02_bigram.py) used softmax to make probabilities of logits. Here it makes weights: from any row of numbers it makes positive
ones that sum to one.

$$ \operatorname{softmax}(a)_s = \frac{e^{a_s}}{\sum_{r} e^{a_r}} $$

Equal numbers give equal weights. And since $e^{-\infty} = 0$, an entry of $-\infty$ gives a weight of exactly zero, not
of nearly zero. So start from scores of zero, forbid the future with $-\infty$, and let softmax divide.
"""

# %%
scores = torch.zeros(T, T)  # (T, T): every token is equally interesting
future = ~torch.ones(T, T, dtype=torch.bool).tril()  # (T, T): True above the diagonal
scores = scores.masked_fill(future, float("-inf"))
print(scores)
print(F.softmax(scores, dim=1))  # (T, T): rows sum to 1


# %%
def average_softmax(x):
    T = x.size(1)
    future = ~torch.ones(T, T, dtype=torch.bool).tril()  # (T, T)
    scores = torch.zeros(T, T).masked_fill(future, float("-inf"))  # (T, T)
    return F.softmax(scores, dim=1) @ x  # (B, T, C)


by_softmax = average_softmax(X)

# %% [markdown]
r"""
## The three agree

Computers round. The three ways add the same numbers in different orders, so the last digits may differ. Here is the
largest difference between any two of them, over all {{ averaged_numbers }} numbers of the batch.
"""

# %%
from gptbook.claims import claim

claim("averaged_numbers", X.numel())
for name, a, b in [
    ("averages_loop_matmul", by_loop, by_matmul),
    ("averages_loop_softmax", by_loop, by_softmax),
    ("averages_matmul_softmax", by_matmul, by_softmax),
]:
    difference = claim(
        name, (a - b).abs().max().item(), expected=0.0, tolerance=1e-6, kind="tolerance"
    )
    print(f"{name:26} {difference:.1e}")

# %% [markdown]
r"""
That is agreement up to rounding. Testing on random numbers is good evidence. A proof is better, and it is short.

!!! theorem "The three averages are equal"

    For every $x$ of shape $(T, C)$ and every row $t$, in exact arithmetic,

    $$ \frac{1}{t+1} \sum_{s \le t} x_s \;=\; (W x)_t \;=\; (\operatorname{softmax}(S)\, x)_t $$

    where $W_{t,s} = \frac{1}{t+1}$ and $S_{t,s} = 0$ for $s \le t$, and $W_{t,s} = 0$ and $S_{t,s} = -\infty$ for $s > t$.

    Tested by `test_three_averages_are_equal`.

??? proof "Proof"

    The first equality is the definition of a matrix product. Row $t$ of $W x$ is $\sum_s W_{t,s}\, x_s$. The terms with
    $s > t$ vanish, and the other $t + 1$ terms have the factor $\frac{1}{t+1}$.

    For the second, take row $t$ of the softmax. The sum below the fraction is

    $$ \sum_{r} e^{S_{t,r}} = \sum_{r \le t} e^{0} + \sum_{r > t} e^{-\infty} = t + 1 . $$

    So the weight of column $s$ is $\frac{e^0}{t+1} = \frac{1}{t+1}$ for $s \le t$, and $\frac{0}{t+1} = 0$ for $s > t$.
    That is $W$. The sum is never zero, because $s = t$ is always allowed. $\blacksquare$

The last sentence of the proof matters in practice. If a mask hid the token itself as well, row 0 would have nothing left.
Softmax would divide zero by zero.
"""

# %%
F.softmax(torch.full((1, 3), float("-inf")), dim=1)

# %% [markdown]
r"""
`nan` means "not a number". One of these spreads through the rest of a network within a layer or two.

## Why the third way is the door

The first two ways have the mean built in. In the third, the mean is an accident of the scores: they all happen to be
zero. Change a score, and the weights follow. They stay positive, they still sum to one, and the future stays at exactly
zero.

Give the last token some interest in token 1 and a dislike of token 0:
"""

# %%
scores = torch.zeros(T, T)
scores[3] = torch.tensor([-2.0, 2.0, 0.0, 0.0])
scores = scores.masked_fill(future, float("-inf"))
mixed = F.softmax(scores, dim=1)  # (T, T)
print(mixed)
print(mixed @ x)

# %% [markdown]
r"""
Only the last row changed, and it now leans towards token 1. Two questions remain. Where do the scores come from? And how
are they learned? In attention, each token asks a question and each token offers an answer to such questions. The score is how
well the two match. So the scores become a function of the text itself, and the [next page](04_head.py) builds that.

Softmax has one more property that you will meet again. Add the same number to a whole row of scores, and nothing changes. Only *differences* between scores count.

!!! theorem "Softmax ignores a shift"

    For every row of scores $a$ and every number $c$,

    $$ \operatorname{softmax}(a + c) = \operatorname{softmax}(a) . $$

    Tested by `test_softmax_ignores_a_shift`.

??? proof "Proof"

    $e^{a_s + c} = e^c\, e^{a_s}$, so the factor $e^c$ stands in every term, above and below the fraction. It cancels. $\blacksquare$

Programs use this to stay within the range of their numbers. They subtract the largest score of each row first, so that no exponential overflows.
"""

# %%
shifted = F.softmax(scores + 5.0, dim=1)
difference = claim(
    "softmax_shift",
    (shifted - mixed).abs().max(),
    expected=0.0,
    tolerance=1e-6,
    kind="tolerance",
)
print(f"largest difference {difference:.1e}")

# %% [markdown]
r"""
## The same thing in the package

The package has no running mean: nobody needs one. What it has is the last step of this page, with learned scores. Look for
the three lines of the third way in the attention layer of our GPT.
"""

# %%
from gptbook.model import CausalSelfAttention, GPTConfig

display.source(CausalSelfAttention.forward)

# %% [markdown]
r"""
There they are: `masked_fill` with $-\infty$, `softmax` over the last axis, and a matrix product with the values. If that
is so, then a layer whose scores are all zero must return our running mean. Make one. Set the query and key weights to
zero, and let the values and the output pass unchanged.
"""

# %%
layer = CausalSelfAttention(GPTConfig(block_size=8, n_head=1, n_embd=2))
with torch.no_grad():
    layer.c_attn.weight.zero_()
    layer.c_attn.weight[4:6] = torch.eye(
        2
    )  # rows 0-1 make queries, 2-3 keys, 4-5 values
    layer.c_proj.weight.copy_(torch.eye(2))
    layer.c_proj.bias.zero_()
    by_layer = layer(X)  # (B, T, C)

difference = (by_layer - by_loop).abs().max()
claim("averages_loop_layer", difference, expected=0.0, tolerance=1e-6, kind="tolerance")
print(f"largest difference {difference:.1e}")

# %% [markdown]
r"""
With its scores at zero, and the values passed through unchanged, the attention layer of the book is the averaging trick.

## Checks

These lines ask about three things that often go wrong. Rerun them whenever you change a function. The first asks for agreement
on another batch. The second replaces the last token by a huge number, and asks that no earlier mean moves by a single bit.
The third asks that rows of a batch stay apart.
"""

# %%
fresh = torch.randn(3, 16, 5, generator=torch.Generator().manual_seed(1))  # (B, T, C)
spoiled = fresh.clone()
spoiled[:, -1] = 1e6
for average in (average_loop, average_matmul, average_softmax):
    torch.testing.assert_close(average(fresh), average_loop(fresh), rtol=0, atol=1e-6)
    assert torch.equal(average(spoiled)[:, :-1], average(fresh)[:, :-1]), (
        "the future leaks into the past"
    )
    torch.testing.assert_close(
        average(fresh)[1:2], average(fresh[1:2]), rtol=0, atol=1e-6
    )
print("three ways, three checks, all passed")

# %% [markdown]
r"""
## Your turn

Each exercise ends with a call of `check`. It tries your answer on inputs that you have not seen, and says in a sentence what
is wrong with it.

### 1. Let old tokens fade

*About ten minutes.* A plain mean remembers the first token as well as the latest. Write `weights(T, gamma)`. It returns a
$(T, T)$ matrix in which row $t$ weighs token $s \le t$ in proportion to $\gamma^{\,t-s}$, with rows that sum to one and
nothing in the future. For $\gamma = 1$ it must be the plain mean.

??? tip "Hint"

    Make a column of row numbers and a row of column numbers. Their difference is the matrix of all $t - s$. Raise `gamma`
    to it, cut off the future with `tril`, divide by the row sums, in this order. Multiplying by a mask will not do: for old
    tokens of the future the power is infinite, and infinity times zero is `nan`.

Check yours with `exercises.check("decaying-average", weights)`.
"""

# %% tags=["solution"]
from gptbook import exercises


def weights(T, gamma):
    t = torch.arange(T)
    age = (t[:, None] - t[None, :]).clamp(min=0)  # (T, T): t - s, and 0 in the future
    kept = (gamma ** age.float()).tril()  # (T, T)
    return kept / kept.sum(dim=1, keepdim=True)


exercises.check("decaying-average", weights)

# %% [markdown]
r"""
### 2. Find the leak

*About fifteen minutes.* The most common mistake in a home-made GPT is a mask that is off by one diagonal:
`torch.ones(T, T).tril(1)` lets every token see the next one. Training then looks wonderful. Write `leaks(average)`. It
gets a function from $(B, T, C)$ to $(B, T, C)$, and says whether any output depends on a later input. It must catch every
leak, also one that happens at a single position, and must not accuse a right function. A right function may differ in its last
digits from call to call.

??? tip "Hint"

    Change one thing, and see what moves. Change only inputs after a cut, by a lot. Then compare all outputs up to the
    cut. Try every cut. The three functions of this page must all come out clean.

Check yours with `exercises.check("leak-finder", leaks)`.
"""


# %% tags=["solution"]
def leaks(average):
    x = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(2))  # (B, T, C)
    before = average(x.clone())
    for cut in range(1, x.size(1)):
        changed = x.clone()
        changed[:, cut:] += 100 * torch.randn(
            x[:, cut:].shape, generator=torch.Generator().manual_seed(cut)
        )
        after = average(changed)
        if not torch.allclose(after[:, :cut], before[:, :cut], atol=1e-4):
            return True
    return False


exercises.check("leak-finder", leaks)

# %% [markdown]
r"""
### 3. Twice the weight

*About five minutes.* Which scores make every token count itself twice as much as each token before it? Write `scores(T)`,
a $(T, T)$ matrix with $-\infty$ above the diagonal, whose softmax over rows does that.

??? tip "Hint"

    Weights are proportional to $e^{\text{score}}$. If the past has score 0, what must the diagonal hold so that $e$ to it
    is 2?

Check yours with `exercises.check("double-weight", scores)`.
"""


# %% tags=["solution"]
def scores(T):
    diagonal = torch.eye(T) * torch.log(torch.tensor(2.0))  # (T, T)
    return diagonal.masked_fill(
        ~torch.ones(T, T, dtype=torch.bool).tril(), float("-inf")
    )


exercises.check("double-weight", scores)

# %% [markdown]
r"""
## What this page left out

The weights here are the same for every text, and the tokens' order within the past does not matter to them. Scores made from the tokens
change the first: that is [one head of self-attention](04_head.py). [Positions](07_positions.py) change the second.
"""
