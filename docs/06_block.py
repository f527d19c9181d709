# %% [markdown]
r"""
# The block

A block writes into the stream twice, first attention, then a small network for each token; each reads a normalised copy, so
that a straight path runs from the first layer to the last.

Attention moves information between tokens. By itself it can do little with what it has moved: its output is an average. This
page adds what is missing. A second kind of layer works on each token alone. An addition round every layer lets us stack many of
them. And a norm in front of each keeps its input at the same size. The three together are the **block**, and a GPT is a pile of
blocks.

## An MLP for each token

An **MLP** (multi-layer perceptron) is two linear layers with a bend between them. The first makes a token's $C$ channels into
$4C$ numbers. The bend, called **activation**, changes each of these on its own. The second linear layer leads back to $C$.

The simplest bend is **ReLU**: negative numbers become zero, all others stay.

Take our four tokens again, and this first layer. It has $4C = 8$ rows. Each row is a small question to a token with the
channels $a$ and $b$.
"""

# %%
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

x = torch.tensor([[1.0, 0.0], [3.0, 2.0], [2.0, 4.0], [6.0, 2.0]])  # (T, C)

up = torch.tensor(
    [
        [1.0, 0.0],  # how far is a above zero?
        [-1.0, 0.0],  # how far below?
        [0.0, 1.0],  # the same for b
        [0.0, -1.0],
        [1.0, -1.0],  # how far is a ahead of b?
        [-1.0, 1.0],  # how far is b ahead of a?
        [1.0, 1.0],  # and their sum
        [-1.0, -1.0],
    ]
)  # (4C, C)
hidden = F.relu(x @ up.T)  # (T, 4C)
hidden

# %% [markdown]
r"""
Look at the columns 4 and 5. Token 2 is the only one whose second channel is ahead, and the only one with anything but zero in column 5.
ReLU has made a decision: a row of the first layer is *on* for some tokens and *off* for others.

The second layer mixes these eight answers into two numbers.
"""

# %%
down = 0.5 * torch.tensor(
    [
        [-2.0, 2.0, 0.0, 0.0, 1.0, 1.0, 1.0, -1.0],
        [0.0, 0.0, -2.0, 2.0, -1.0, -1.0, 1.0, -1.0],
    ]
)  # (C, 4C)
written = hidden @ down.T  # (T, C)
print(written)
print(x + written)

# %% [markdown]
r"""
This MLP writes nothing for three tokens, and $(2, -2)$ for token 2. *Added* to the tokens, that puts the larger channel
first. So the MLP sorts. It says what has to change, and the addition changes it. Keep this picture: a layer that writes a
correction.

You can check token 2 by hand. Its eight answers are $2, 0, 4, 0, 0, 2, 6, 0$. The first row of the second layer makes
$\frac{1}{2}(-4 + 2 + 6) = 2$ of them, the second $\frac{1}{2}(-8 - 2 + 6) = -2$.

## Without the bend

Is the bend needed? Take it away. Two linear layers in a row are $W_2 (W_1 x)$, and that is $(W_2 W_1)\, x$: one linear layer
with another matrix. With biases it is the same: $W_2 (W_1 x + b_1) + b_2 = (W_2 W_1)\, x + (W_2 b_1 + b_2)$.
"""

# %%
merged = down @ up  # (C, 4C) @ (4C, C) -> (C, C)
straight = x @ up.T @ down.T  # (T, C): the same MLP without its bend
assert torch.equal(straight, x @ merged.T)
print(merged)
print(x + straight)

# %% [markdown]
r"""
Without the bend the MLP swaps the two channels of *every* token, in order or not. It cannot do otherwise: one matrix treats
all tokens alike. With the bend it swaps where needed. The width of $4C$ would be wasted too. Eight rows, or eight thousand,
collapse into one two by two matrix.

So the width inside is the number of decisions that the MLP can make about a token. Why four times? It is the choice of the
first transformer ([Vaswani et al. 2017, section 3.3](https://arxiv.org/abs/1706.03762)), and many models since have kept it.
Only the count of parameters at the end of this page depends on it.

## Two bends

ReLU has a corner at zero, and is flat to the left of it. Where it is flat, it passes no gradient on. **GELU** rounds the
corner ([Hendrycks and Gimpel 2016](https://arxiv.org/abs/1606.08415)). It is $x \cdot \Phi(x)$, where $\Phi(x)$ is the
probability that a number from the standard normal distribution lies below $x$. A large number is kept nearly whole, since
$\Phi$ is close to one. A very negative one is nearly erased.
"""


# %%
def gelu(x):
    return x * torch.special.ndtr(x)  # ndtr is the function Φ


grid = torch.linspace(-4, 4, 801, dtype=torch.float64)
assert torch.allclose(gelu(grid), F.gelu(grid), rtol=0, atol=1e-12)

from gptbook.claims import claim

lowest = gelu(grid).min()
where = grid[gelu(grid).argmin()]
claim("gelu_lowest", lowest, expected=-0.170, tolerance=0.001, kind="tolerance")
claim("gelu_lowest_at", where, expected=-0.75, tolerance=0.02, kind="tolerance")
print(f"lowest point of GELU: {lowest:.3f} at x = {where:.2f}")

# %% tags=["hide-input"] alt="Two curves between minus four and four. ReLU is zero to the left of zero and rises in a straight line to the right. GELU follows it on both sides, but between minus three and zero it dips a little below zero, and it turns upward in a smooth bend." caption="The two bends of this book. GELU dips to {{ gelu_lowest:.2f}} near {{ gelu_lowest_at:.2f}} before it rises."
from gptbook import display

fig, ax = display.figure(5.0, 2.7)
ax.axhline(0, color=display.GREY, linewidth=0.8)
ax.plot(grid, gelu(grid), color=display.BLUE, label="GELU")
ax.plot(grid, F.relu(grid), color=display.ORANGE, linestyle="--", label="ReLU")
ax.set_xlabel("x")
ax.set_ylabel("after the bend")
ax.legend()

# %% [markdown]
r"""
Both are in use. Of the two models that page 9 trains, the larger bends with GELU, the smaller with ReLU.
"""

# %%
from gptbook import PRESETS

assert PRESETS["step-5"].activation == "gelu"
assert PRESETS["lets-build"].activation == "relu"

# %% [markdown]
r"""
## Each token alone

An MLP sees one token at a time. The same two matrices are applied to every row. So changing token 2 cannot move the result
for any other token, in either direction. And a token that comes alone gets the same result as in company.
"""


# %%
def mlp(x):
    return F.relu(x @ up.T) @ down.T  # (..., C)


changed = x.clone()
changed[2] = torch.tensor([-5.0, 7.0])
same = (mlp(changed) == mlp(x)).all(dim=1)  # (T,): did the row stay as it was?
assert same.tolist() == [True, True, False, True]
for t in range(4):
    assert torch.equal(mlp(x[t : t + 1]), mlp(x)[t : t + 1])
print("rows that stayed:", same.tolist())

# %% [markdown]
r"""
This divides the work. Attention is the only place where tokens meet. The MLP is the place where a token thinks about what it
has got. A block does one after the other.

## The stream: layers that add

How do we put many layers in a row? The first idea is to let each replace its input: $x \to f(x)$. The better idea is to let
each *add* to it: $x \to x + f(x)$. What runs through the model is then the **residual stream**. A layer reads it, and writes
by addition. Networks that add in this way are called residual since [He et al. 2016](https://arxiv.org/abs/1512.03385).

Try it on the four tokens. As attention, take the running mean of [page 3](03_averaging.py). As MLP, take the one above.
"""


# %%
def running_mean(x):
    T = x.size(-2)
    weights = torch.ones(T, T).tril()  # (T, T)
    return weights / weights.sum(dim=1, keepdim=True) @ x  # (T, T) @ (T, C) -> (T, C)


first = running_mean(x)  # (T, C): what attention writes
second = mlp(x + first)  # (T, C): what the MLP writes, having read both
stream = x + first + second  # (T, C)

rows = zip(x.tolist(), first.tolist(), second.tolist(), stream.tolist(), strict=True)
display.table(rows, header=("token", "+ attention", "+ MLP", "= stream"))

# %% [markdown]
r"""
The stream at the end is a sum, and its first term is the token itself. Nothing has been overwritten. A later layer can still
read the token, or what the first layer wrote, or both. And if a layer has nothing to say, it writes zero, as the MLP does for
three of the tokens. A layer that replaces its input would have to learn to copy it.

## What adding does to the gradient

Training sends a gradient backwards through all of this. How does an addition treat it? The **Jacobian** of a function is the
table of its slopes: entry $(i, j)$ says how fast output $i$ grows with input $j$. Here are the Jacobians of the sorting MLP
and of the stream around it, at token 2 and at token 3.
"""

# %%
from torch.autograd.functional import jacobian

identity = torch.eye(2)
for t in (2, 3):
    through_mlp = jacobian(mlp, x[t])  # (C, C)
    through_stream = jacobian(lambda u: u + mlp(u), x[t])  # (C, C)
    assert torch.equal(through_stream, identity + through_mlp)
    print(f"token {t}: f {through_mlp.tolist()}")
    print(f"     x + f {through_stream.tolist()}")

# %% [markdown]
r"""
At token 3 the MLP writes nothing, and its Jacobian is zero. A gradient that came through the MLP alone would end here.
Through the stream it arrives whole, because the Jacobian of $x + f(x)$ is $I + J$, where $J$ is the Jacobian of $f$ and $I$
comes from the $x$.

Put three such layers in a row. Jacobians multiply, so we get $(I + J_3)(I + J_2)(I + J_1)$. Multiply it out:

$$ I + J_1 + J_2 + J_3 + J_2 J_1 + J_3 J_1 + J_3 J_2 + J_3 J_2 J_1 . $$

These are eight terms. Each is a **path**: at every layer it goes either through the layer or past it. One path goes past them
all. Check the sum on three random layers.
"""

# %%
C = 4
generator = torch.Generator().manual_seed(0)
matrices = torch.randn(3, C, C, dtype=torch.float64, generator=generator)
layers = [lambda u, W=W: torch.tanh(u @ W.T) for W in matrices]
start = torch.randn(C, dtype=torch.float64, generator=generator)


def through(u):
    for f in layers:
        u = u + f(u)
    return u  # (C,)


u, J = start, []
for f in layers:
    J.append(jacobian(f, u))  # (C, C): at the place where the stream is
    u = u + f(u)

terms = [torch.eye(C), *J, J[1] @ J[0], J[2] @ J[0], J[2] @ J[1], J[2] @ J[1] @ J[0]]
difference = (sum(terms) - jacobian(through, start)).abs().max()
claim("stream_paths", len(terms), expected=2**3)
claim("stream_paths_off", difference, expected=0.0, tolerance=1e-9, kind="tolerance")
print(f"{len(terms)} paths, their sum and the Jacobian differ by {difference:.0e}")

# %% [markdown]
r"""
!!! theorem "The straight path"

    Let $x_n = x_{n-1} + f_n(x_{n-1})$ for $n = 1, \dots, N$, with differentiable $f_n$, and let $J_n$ be the Jacobian of
    $f_n$ at $x_{n-1}$. Then

    $$ \frac{\partial x_N}{\partial x_0} \;=\; (I + J_N) \cdots (I + J_1) \;=\; \sum_{S} \; \prod_{n \in S} J_n , $$

    where $S$ runs over all $2^N$ subsets of $\{1, \dots, N\}$, and later layers stand to the left. The empty subset gives $I$.

    For a loss that reads $x_N$, let $g_n$ be its gradient with respect to $x_n$. Then

    $$ g_0 \;=\; g_N + \sum_{n=1}^{N} J_n^{\mathsf T} g_n . $$

    Tested by `test_straight_path`.

??? proof "Proof"

    The Jacobian of $x + f_n(x)$ is $I + J_n$. The chain rule multiplies them, the last one on the left. To multiply out the
    product, take from each factor either $I$ or $J_n$. Each way to choose is a subset $S$: the layers whose $J_n$ was taken.
    The factors keep their order.

    For the gradients, the chain rule says $g_{n-1} = (I + J_n)^{\mathsf T} g_n$. So $g_{n-1} - g_n = J_n^{\mathsf T} g_n$.
    Add this up from $n = 1$ to $N$. On the left, all but $g_0 - g_N$ cancels. $\blacksquare$

The second formula is worth reading aloud. The gradient that reaches the input is the gradient at the end, unchanged, plus one
contribution from each layer. The layers do not stand between the loss and the input. They add to what passes.

It is no guarantee. The contributions could cancel what passes, if some $J_n$ were close to $-I$. Let us see what they do in a
deep stack.

## Measured: twelve blocks deep

Take twelve blocks, with the weights that PyTorch gives them. Nothing is trained. Each holds two **sublayers**, an attention
layer and an MLP, so there are {{ stream_sublayers }} in a row. At the end we put a random gradient, and send it back. How
long is it, sublayer by sublayer? Once each of them adds to the stream, and once it replaces it. (Each sublayer comes with a
norm, which we leave aside for now.)
"""

# %%
from gptbook.model import Block, GPTConfig

DEPTH, C = 12, 64


def fresh_sublayers():
    """Pairs (norm, layer): two of them from each of twelve blocks."""
    torch.manual_seed(0)
    pairs = []
    for _ in range(DEPTH):
        block = Block(GPTConfig(block_size=16, n_head=4, n_embd=C)).double()
        pairs += [(block.ln_1, block.attn), (block.ln_2, block.mlp)]
    return pairs


def gradients(steps):
    """The streams x_0 to x_N, and the gradient at each of them."""
    generator = torch.Generator().manual_seed(0)
    x, last = torch.randn(2, 8, 16, C, generator=generator, dtype=torch.float64)
    streams = [x.requires_grad_()]  # (B, T, C) each
    for step in steps:
        streams.append(step(streams[-1]))
    return streams, torch.autograd.grad(streams[-1], streams, grad_outputs=last)


def adding(f):
    return lambda x: x + f(x)


layers = [f for _, f in fresh_sublayers()]
claim("stream_sublayers", len(layers), expected=24)
streams, found = gradients(map(adding, layers))
with_addition = [g.norm().item() for g in found]
grown = (streams[-1].norm() / streams[0].norm()).item()
claim("stream_grown", grown, expected=(1.0, 10.0), kind="tolerance")
without = [g.norm().item() for g in gradients(layers)[1]]
kept, lost = with_addition[0] / with_addition[-1], without[0] / without[-1]
claim("stream_gradient_adding", kept, expected=(0.5, 5.0), kind="tolerance")
claim("stream_gradient_replacing", lost, expected=(None, 1e-12), kind="tolerance")
print(f"x + f(x)   first / last gradient {kept:.1f}, the stream grew {grown:.1f} times")
print(f"f(x)       first / last gradient {lost:.0e}")

# %% tags=["hide-input"] alt="Length of the gradient over the sublayers, from the first to the last, on a logarithmic axis. With the addition the curve is nearly flat. Without it the curve falls from right to left in a nearly straight slope, by about fifteen powers of ten." caption="The gradient on its way back, from right to left. With the addition it keeps its length. Without it, each layer takes its share, and nearly nothing arrives."
fig, ax = display.figure(5.2, 2.9)
ax.plot(with_addition, color=display.BLUE, label="x + f(x)")
ax.plot(without, color=display.RED, linestyle="--", label="f(x)")
ax.set_yscale("log")
ax.set_xlabel("sublayers passed")
ax.set_ylabel("length of the gradient")
ax.legend(loc="center right")

# %% [markdown]
r"""
Without the addition, a share of {{ stream_gradient_replacing:.0e}} reaches the first layer. Whatever the loss says, the first
blocks do not hear it. With the addition, the gradient at the first layer is {{ stream_gradient_adding:.1f}} times as long as
at the last.

The stream has grown as well, {{ stream_grown:.1f}} times, because every layer adds to it. That calls for the third part of the block.

## A normalised copy

A layer in the middle does not know how large the stream will be when it arrives. So it reads a **normalised copy**.
**LayerNorm** ([Ba et al. 2016](https://arxiv.org/abs/1607.06450)) takes the $C$ numbers of one token, subtracts their mean,
and divides by their standard deviation. The stream itself stays as it is.

Here are the four tokens, in two steps.
"""

# %%
centred = x - x.mean(dim=1, keepdim=True)  # (T, C): each row sums to 0
deviation = centred.square().mean(dim=1, keepdim=True).sqrt()  # (T, 1)
normed = centred / deviation  # (T, C)
steps = [rows.tolist() for rows in (x, centred, deviation, normed)]
display.table(
    zip(*steps, strict=True), header=("token", "centred", "deviation", "LayerNorm")
)

# %% [markdown]
r"""
Only two answers exist. With two channels, $a > b$ gives $(1, -1)$ and $a < b$ gives $(-1, 1)$. For $a = b$ there is nothing to divide by, and we come to that. All that is left of a token is
which channel is ahead. Nobody would use LayerNorm on two channels, but it shows what the norm does: it forgets two things
about a row, its mean and its size.

With three channels there is a picture. Take $(3, 0, 0)$. Its mean is 1, so the centred row is $(2, -1, -1)$. The mean of the
squares is $\frac{4 + 1 + 1}{3} = 2$. LayerNorm gives $(2, -1, -1) / \sqrt{2}$, whose squared length is $\frac{6}{2} = 3$.
Every row that is not constant ends at that squared length. And it ends in the plane of rows that sum to zero. A sphere cut by a plane is a
circle.
"""

# %% tags=["hide-input"] alt="A circle of radius square root of three, seen in the plane of rows that sum to zero. Forty grey dots lie inside and outside it. A thin line leads from each dot straight towards or away from the centre to a blue dot on the circle. Three larger dots, a third of a turn apart, are the images of the rows with a single nonzero channel." caption="Forty rows of three channels, seen in the plane of rows that sum to zero. Grey: after the mean is taken away. Blue: after LayerNorm. The three large dots are the images of rows with one channel ahead of two equal ones."
rows = torch.randn(40, 3, generator=torch.Generator().manual_seed(4))
rows = torch.cat([rows, 3 * torch.eye(3)])
basis = torch.tensor(
    [[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]]
)  # both orthogonal to (1, 1, 1)
basis = basis / basis.norm(dim=1, keepdim=True)
before, after = rows @ basis.T, F.layer_norm(rows, (3,)) @ basis.T
fig, ax = display.figure(4.6, 4.2)
turn = torch.linspace(0, 2 * math.pi, 200)
radius = math.sqrt(3)
ax.plot(radius * turn.cos(), radius * turn.sin(), color=display.GREY, linewidth=1)
for p, q in zip(before[:40].tolist(), after[:40].tolist(), strict=True):
    ax.plot(*zip(p, q, strict=True), color=display.GREY, linewidth=0.6)
ax.scatter(*before[:40].T, s=14, color=display.GREY, zorder=2)
ax.scatter(*after[:40].T, s=20, color=display.BLUE, zorder=3)
ax.scatter(*after[40:].T, s=70, color=display.ORANGE, zorder=4)
names = ("(3, 0, 0)", "(0, 3, 0)", "(0, 0, 3)")
for (px, py), name in zip((1.28 * after[40:]).tolist(), names, strict=True):
    ax.text(px, py, name, ha="center", va="center", fontsize=9, color="black")
ax.plot(0, 0, "+", color=display.GREY, markersize=9)
ax.set_aspect("equal")
ax.axis("off")

# %% [markdown]
r"""
Each row moves along a ray from the centre until it meets the circle. Its direction within the plane survives, and nothing else.

In general, subtracting the mean projects a row onto the hyperplane orthogonal to the vector of ones. Dividing by the standard
deviation gives it a fixed length. Since $\frac{1}{C}\sum_i y_i^2 = 1$, that length is $\sqrt{C}$.

!!! theorem "LayerNorm lands on a sphere"

    Without $\varepsilon$, gain and bias, LayerNorm maps every row $u \in \mathbb{R}^C$ that is not constant to a point $y$ with

    $$ \sum_i y_i = 0 \qquad\text{and}\qquad \lVert y \rVert = \sqrt{C} . $$

    Scale and shift do not matter: for $a > 0$,

    $$ \operatorname{LN}(a u + b \mathbf{1}) = \operatorname{LN}(u) . $$

    Its image is the whole sphere of radius $\sqrt{C}$ inside that hyperplane, a sphere of dimension $C - 2$.

    Tested by `test_layer_norm_lands_on_a_sphere`.

??? proof "Proof"

    Write $m$ for the mean of $u$, and $c = u - m\mathbf{1}$. Then $\sum_i c_i = 0$, and the variance is
    $\frac{1}{C}\lVert c \rVert^2$. It is not zero, because $u$ is not constant. So
    $y = \sqrt{C}\, \frac{c}{\lVert c \rVert}$, which has sum zero and length $\sqrt{C}$.

    Replacing $u$ by $a u + b\mathbf{1}$ replaces $c$ by $a c$, and $a$ cancels in $\frac{c}{\lVert c \rVert}$.

    Conversely, a point $y$ with sum zero and length $\sqrt{C}$ has mean 0 and variance 1, so LayerNorm maps it to itself. The
    hyperplane has dimension $C - 1$, and a sphere in it has one dimension less. $\blacksquare$

A circle has dimension 1, which is $3 - 2$. For two channels the theorem promises a sphere of dimension 0. That is two points,
the two answers above.

Now measure it at a real width: a thousand random rows of $128$ channels, whose standard deviations lie well above zero.
"""

# %%
width = 128
generator = torch.Generator().manual_seed(0)
scales = 3.1 + 3.1 * torch.rand(1000, 1, generator=generator)
u = scales * torch.randn(1000, width, generator=generator) + 1.0  # (1000, 128)
deviation = u.std(dim=1, unbiased=False)  # (1000,)
keep = (deviation > 2.5) & (deviation < 7.5)
assert keep.all(), "a row lies outside the range that the bounds below were made for"

normed = F.layer_norm(u, (width,))  # (1000, 128)
off_sphere = (normed.norm(dim=1) - math.sqrt(width)).abs().max()
off_plane = (normed.sum(dim=1) / math.sqrt(width)).abs().max()
off_scale = (F.layer_norm(3.7 * u, (width,)) - normed).abs().max()
claim("norm_off_sphere", off_sphere, expected=0.0, tolerance=1e-3, kind="tolerance")
claim("norm_off_plane", off_plane, expected=0.0, tolerance=1e-3, kind="tolerance")
claim("norm_off_scale", off_scale, expected=0.0, tolerance=1e-4, kind="tolerance")
print(f"distance from the sphere      {off_sphere:.1e}")
print(f"distance from the hyperplane  {off_plane:.1e}")
print(f"LN(3.7 u) against LN(u)       {off_scale:.1e}")

# %% [markdown]
r"""
### The fine print: epsilon

A constant row has the standard deviation zero. So that nothing is divided by zero, real LayerNorm divides by
$\sqrt{\text{variance} + \varepsilon}$ with $\varepsilon = 10^{-5}$. For a row with tiny variance, $\varepsilon$ is not small
beside it. Such a row falls short of the sphere. Shrink the same rows by a thousand, and the check that just passed must fail.
"""

# %%
tiny = F.layer_norm(1e-3 * u, (width,))  # (1000, 128)
reach = tiny.norm(dim=1) / math.sqrt(width)  # (1000,): as a share of the radius
try:
    off = (tiny.norm(dim=1) - math.sqrt(width)).abs().max()
    assert off < 1e-3, "rows fall short of the sphere"
except AssertionError as error:
    print("failed, as it must:", error)
else:
    raise RuntimeError("the check passed on tiny rows: it cannot fail")
claim("tiny_lengths_below", bool((reach < 1 - 1e-3).all()), expected=True)
claim("tiny_shortest", reach.min(), expected=(0.0, 0.95), kind="tolerance")
print(f"lengths between {reach.min():.0%} and {reach.max():.0%} of the radius")

# %% tags=["hide-input"] alt="A curve of the length of LayerNorm's output, as a share of the sphere's radius, over the standard deviation of its input on a logarithmic axis. It rises from near zero for tiny deviations to one for deviations above about a tenth." caption="How far LayerNorm reaches, by the standard deviation of its input. The two bands are the rows of the two experiments."
fig, ax = display.figure(5.2, 2.7)
s = torch.logspace(-4, 1, 200)
ax.plot(s, s / (s**2 + 1e-5).sqrt(), color=display.BLUE)
for rows, colour, name in (
    (deviation, display.GREEN, "u"),
    (1e-3 * deviation, display.RED, "u / 1000"),
):
    ax.axvspan(rows.min().item(), rows.max().item(), color=colour, alpha=0.25)
    ax.text(rows.median().item(), 0.05, name, ha="center", fontsize=9)
ax.set_xscale("log")
ax.set_xlabel("standard deviation of the row")
ax.set_ylabel("length / √C")

# %% [markdown]
r"""
### Which variance

There are two variances in the books. One divides the sum of squares by $C$. The other, called unbiased, divides by $C - 1$, and
is meant for guessing the variance of many numbers from a few. LayerNorm guesses nothing: the $C$ numbers are all there are. It
divides by $C$. But `x.var()` and `x.std()` of PyTorch divide by $C - 1$ unless told otherwise. It is a common mistake
in a LayerNorm written by hand.
"""

# %%
row = torch.tensor([[6.0, 2.0]])  # (1, 2): our last token
for unbiased in (False, True):
    variance = row.var(dim=1, unbiased=unbiased, keepdim=True)
    by_hand = (row - row.mean()) / (variance + 1e-5).sqrt()  # (1, 2)
    agrees = torch.allclose(by_hand, F.layer_norm(row, (2,)), atol=1e-6)
    assert agrees == (not unbiased)
    shown = ", ".join(f"{value:.4f}" for value in by_hand[0])
    print(f"divided by {2 - unbiased}: [{shown}], as PyTorch: {agrees}")

short = 1 - math.sqrt((width - 1) / width)
claim("ln_unbiased_short", short, expected=0.0039, tolerance=1e-4, kind="tolerance")
print(f"at width {width}, unbiased rows are {short:.1%} too short")

# %% [markdown]
r"""
At the real width the mistake is a matter of {{ ln_unbiased_short:.1%}}. Nobody will see that in a sample of text. A
comparison with the right function shows it.

### Gain and bias

Last, LayerNorm multiplies each channel by a learned **gain** and adds a learned **bias**. They start at one and zero. So the
network can make some channels of the copy louder than others, and leave the sphere if that helps. Put together:
"""


# %%
def layer_norm(x, gain, bias, eps=1e-5):
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)  # divided by C
    return centred / torch.sqrt(variance + eps) * gain + bias


torch.manual_seed(0)
norm = nn.LayerNorm(width)
with torch.no_grad():
    norm.weight.normal_()
    norm.bias.normal_()
    difference = (layer_norm(u, norm.weight, norm.bias) - norm(u)).abs().max()
claim("ln_by_hand", difference, expected=0.0, tolerance=1e-5, kind="tolerance")
print(f"largest difference {difference:.1e}")

# %% [markdown]
r"""
Many newer models leave the mean in place and only divide by the root of the mean square ([RMSNorm, Zhang and Sennrich
2019](https://arxiv.org/abs/1910.07467)).

## Where the norm goes

There are two places for it.

* **Pre-norm**, $x + f(\operatorname{LN}(x))$: the norm stands on the way into a layer.
* **Post-norm**, $\operatorname{LN}(x + f(x))$: the norm stands on the stream itself, after the addition.

The first transformer was post-norm ([Vaswani et al. 2017, section 3.1](https://arxiv.org/abs/1706.03762)). GPT-2 moved the
norm to the input of each layer, and put one more at the very end ([Radford et al. 2019, section
2.3](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf)). This book does
as GPT-2.

What is the difference for the straight path? In pre-norm, nothing stands on it. In post-norm, it runs through every norm. So we
need the Jacobian of LayerNorm, without $\varepsilon$, gain and bias. Call the centred row $c$. Centring has the Jacobian
$I - \frac{1}{C}\mathbf{1}\mathbf{1}^{\mathsf T}$. Scaling $c$ to the length $\sqrt{C}$ has
$\frac{\sqrt{C}}{\lVert c \rVert} \bigl(I - \frac{c c^{\mathsf T}}{\lVert c \rVert^2}\bigr)$. Now $\frac{\sqrt{C}}{\lVert c \rVert}$ is one over the standard
deviation $\sigma$, and $\frac{c c^{\mathsf T}}{\lVert c \rVert^2}$ is $\frac{1}{C}\, y y^{\mathsf T}$ for the image $y$. Multiply the two. Since $y$ sums to zero, the mixed term vanishes, and what is left is

$$ \frac{1}{\sigma} \Bigl( I - \tfrac{1}{C} \mathbf{1}\mathbf{1}^{\mathsf T} - \tfrac{1}{C}\, y y^{\mathsf T} \Bigr) . $$

It divides by $\sigma$, and it erases two directions: the ones vector, and $y$ itself. The geometry says why. A step along
either of them changes the mean or the size, and LayerNorm forgets both.
"""

# %%
row = u[0, :8].double()  # (8,)
y = F.layer_norm(row, (8,), eps=0.0)
sigma = row.std(unbiased=False)
formula = (torch.eye(8) - torch.ones(8, 8) / 8 - torch.outer(y, y) / 8) / sigma
measured = jacobian(lambda row: F.layer_norm(row, (8,), eps=0.0), row)  # (8, 8)
assert torch.allclose(measured, formula, rtol=0, atol=1e-12)
rank = claim("ln_jacobian_rank", torch.linalg.matrix_rank(measured), expected=6)
print(f"rank of the Jacobian, for 8 channels: {rank}")

# %% [markdown]
r"""
Now suppose that the stream has variance 1 and a layer adds something unrelated of variance $s^2$. Then $\sigma = \sqrt{1 +
s^2}$, and each post-norm shortens the straight path by that factor. After $N$ sublayers, $N$ such factors have multiplied.

How large is $s$? It depends on the initial weights. PyTorch's initial weights make each layer write little. The first transformers used
larger ones, named after Xavier Glorot ([Glorot and Bengio 2010](https://proceedings.mlr.press/v9/glorot10a.html)), with which a square linear layer hands on the variance that it receives. We measure with both. To see the straight path alone, we cut all
the others: `detach` lets a value through and stops its gradient.
"""


# %%
def pre(norm, f):
    return lambda x: x + f(norm(x))


def post(norm, f):
    return lambda x: norm(x + f(x))


def replacing(norm, f):
    return lambda x: f(norm(x))


def cut(f):
    return lambda x: f(x).detach()


def straight_path(place, pairs):
    _, found = gradients([place(norm, cut(f)) for norm, f in pairs])
    return [(g.norm() / found[-1].norm()).item() for g in found]


pytorch, xavier = fresh_sublayers(), fresh_sublayers()
for _, layer in xavier:
    for parameter in layer.parameters():
        if parameter.dim() == 2:
            nn.init.xavier_normal_(parameter)

path_pre = straight_path(pre, xavier)
path_post = straight_path(post, pytorch)
path_post_xavier = straight_path(post, xavier)
for pairs in (pytorch, xavier):  # in pre-norm it arrives to the last bit
    _, found = gradients([pre(norm, cut(f)) for norm, f in pairs])
    assert torch.equal(found[0], found[-1])
arrived, arrived_xavier = path_post[0], path_post_xavier[0]
claim("straight_post", arrived, expected=(0.4, 0.9), kind="tolerance")
claim("straight_post_xavier", arrived_xavier, expected=(0.0, 0.2), kind="tolerance")
print(f"pre-norm   {path_pre[0]:.3f} with either kind of weights")
print(f"post-norm  {arrived:.3f} with PyTorch's weights")
print(f"post-norm  {arrived_xavier:.3f} with Xavier's")

# %% tags=["hide-input"] alt="Share of the gradient that arrives by the straight path alone, over the sublayers, on a logarithmic axis. The pre-norm line is flat at one. The post-norm line with PyTorch's weights falls gently from right to left to about two thirds. The post-norm line with Xavier's weights falls much faster, to below a tenth." caption="What arrives by the straight path alone, again from right to left. In pre-norm, all of it. In post-norm every norm takes its share: little with small weights, most of it with larger ones."
fig, ax = display.figure(5.2, 2.9)
ax.plot(path_pre, color=display.BLUE, label="pre-norm")
ax.plot(path_post, color=display.GREEN, linestyle="-.", label="post-norm, PyTorch")
ax.plot(path_post_xavier, color=display.RED, linestyle="--", label="post-norm, Xavier")
ax.set_yscale("log")
ax.set_xlabel("sublayers passed")
ax.set_ylabel("share by the straight path")
ax.legend()

# %% [markdown]
r"""
In pre-norm the gradient on the straight path is the same to the last bit, whatever the weights. In post-norm it depends on
them: {{ straight_post:.0%}} arrive with small weights, {{ straight_post_xavier:.1%}} with larger ones.

Does that mean that the whole gradient dies in post-norm? No. Below are all the paths together, beside a stack with norms and
without additions. The first column is the length of the gradient, first over last. The last column asks about the forward
pass: how much alike the tokens of a text have become at the end, as the mean cosine between two of them. The random tokens at
the start are unrelated, with a cosine near zero.
"""


# %% tags=["hide-input"]
def alike(x):
    unit = F.normalize(x, dim=-1)  # (B, T, C)
    T = x.size(1)
    cosines = unit @ unit.transpose(1, 2)  # (B, T, T)
    return ((cosines.sum(dim=(1, 2)) - T) / (T * (T - 1))).mean().item()


table = []
stacks = (("pre-norm", pre), ("post-norm", post), ("no addition", replacing))
for weights, pairs in (("PyTorch", pytorch), ("Xavier", xavier)):
    for name, place in stacks:
        streams, found = gradients([place(norm, f) for norm, f in pairs])
        ratio = (found[0].norm() / found[-1].norm()).item()
        path = 0.0 if place is replacing else straight_path(place, pairs)[0]
        likeness = alike(streams[-1].detach())
        table.append((name, weights, f"{ratio:.2f}", f"{path:.2f}", f"{likeness:.2f}"))
        key = f"{name}_{weights}".replace("-", "_").replace(" ", "_").lower()
        claim(f"gradient_{key}", ratio, expected=(0.01, 10.0), kind="tolerance")
        bounds = (0.99, 1.0) if place is replacing else (0.0, 0.99)
        claim(f"alike_{key}", likeness, expected=bounds, kind="tolerance")
display.table(table, header=("stack", "weights", "gradient", "straight path", "alike"))

# %% [markdown]
r"""
Two things in this table go against the story so far. First, the norms alone also keep a gradient from vanishing: the stack without
additions has {{ gradient_no_addition_pytorch:.2f}} in the first column. But read its last column. After {{ stream_sublayers }}
sublayers all tokens of a text have become the same vector. Attention averages, and nothing is left to tell the tokens apart
([Dong et al. 2021](https://arxiv.org/abs/2103.03404) prove it for attention alone). The gradient arrives, and finds nothing
to work with. The straight path carries the tokens themselves forward as well as the gradient back.

Second, post-norm keeps the length of its gradient, with either kind of weights. But with Xavier's its tokens have become rather alike, {{ alike_post_norm_xavier:.2f}}. Its known trouble is the start of training. [Xiong et al. 2020](https://arxiv.org/abs/2002.04745) find large gradients near its output before training, and explain with them why it
needs a **warm-up**: a first stretch of small steps. Pre-norm, they report, can do without. We have not measured that. Page 9
trains pre-norm, and warms up briefly all the same.

Pre-norm has a price too. The stream grows, since nothing ever scales it back, and the last layer hands over whatever it has
become. That is why GPT-2 has one more norm at the very end. You will meet it on page 8.

## The whole block

Now write the block, from its raw weights. Attention comes from the package, as a function: page 5 took it apart.
"""


# %%
def block_by_hand(x, attention, w):
    copy = layer_norm(x, w["ln_1.weight"], w["ln_1.bias"])  # (B, T, C)
    x = x + attention(copy)  # (B, T, C)
    copy = layer_norm(x, w["ln_2.weight"], w["ln_2.bias"])  # (B, T, C)
    hidden = gelu(copy @ w["mlp.c_fc.weight"].T + w["mlp.c_fc.bias"])  # (B, T, 4C)
    return x + hidden @ w["mlp.c_proj.weight"].T + w["mlp.c_proj.bias"]  # (B, T, C)


# %% [markdown]
r"""
And here is the package's. The MLP first, then the block.
"""

# %%
from gptbook.model import MLP

display.source(MLP.forward)

# %%
display.source(Block.forward)

# %% [markdown]
r"""
Compare it with the formula: `x + self.attn(self.ln_1(x))` is $x + f(\operatorname{LN}(x))$. This is pre-norm, twice.
(`dropout` is off in this book's small models.) Give both the same weights, also in the gains and biases, which would
otherwise still be one and zero.
"""

# %%
torch.manual_seed(0)
block = Block(GPTConfig(block_size=16, n_head=4, n_embd=C))
stream = 3 * torch.randn(2, 16, C)  # (B, T, C)
with torch.no_grad():
    for parameter in block.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape))
    by_hand = block_by_hand(stream, block.attn, block.state_dict())  # (B, T, C)
    by_package = block(stream)  # (B, T, C)

difference = (by_hand - by_package).abs().max()
claim("block_by_hand", difference, expected=0.0, tolerance=1e-4, kind="tolerance")
print(f"largest difference {difference:.1e}")

# %% [markdown]
r"""
The four tokens go through a block as well. The norms see to it that attention and MLP read nothing but $1$ and $-1$. Follow
token 2, which is $(2, 4)$. Attention reads $(1, -1), (1, -1), (-1, 1)$ and writes their mean, $(\frac{1}{3}, -\frac{1}{3})$.
The MLP then reads $(-1, 1)$, finds it out of order, and writes $(2, -2)$.
"""

# %%
ones, zeros = torch.ones(2), torch.zeros(2)
after_attention = x + running_mean(layer_norm(x, ones, zeros))  # (T, C)
after_mlp = after_attention + mlp(layer_norm(after_attention, ones, zeros))  # (T, C)
expected = torch.tensor([[2, -1], [4, 1], [13 / 3, 5 / 3], [6.5, 1.5]])  # (T, C)
assert torch.allclose(after_mlp, expected, rtol=0, atol=1e-3)
print(after_attention)
print(after_mlp)

# %% [markdown]
r"""
How many numbers does a block learn? With $C$ channels it is $12 C^2 + 10 C$: the matrices of attention have $4 C^2$ entries,
those of the MLP $8 C^2$, and the rest are biases and norms. At width $128$ that is {{ block_parameters:,}}, of which {{
block_mlp_share:.0%}} are the MLP's.
"""

# %%
wide = Block(GPTConfig(n_embd=width))
count = sum(p.numel() for p in wide.parameters())
in_mlp = sum(p.numel() for p in wide.mlp.parameters())
claim("block_parameters", count, expected=12 * width**2 + 10 * width)
share = in_mlp / count
claim("block_mlp_share", share, expected=2 / 3, tolerance=0.01, kind="tolerance")
print(f"{count:,} = 12 C² + 10 C")

# %% [markdown]
r"""
## Checks

Three questions to a block, yours too. Is the future hidden: does a change from token 9 on leave every earlier row bitwise as it was? Is the straight path free: if both layers write nothing, does the block return its input? And does it read a *normalised*
copy: if the stream is ten times as large, does attention still write the same?
"""

# %%
changed = stream.clone()
changed[:, 9:] += 1.0
silent = Block(GPTConfig(block_size=16, n_head=4, n_embd=C))
with torch.no_grad():
    assert torch.equal(block(changed)[:, :9], by_package[:, :9]), "the future leaks"
    for layer in (silent.attn, silent.mlp):
        layer.c_proj.weight.zero_()
        layer.c_proj.bias.zero_()
    assert torch.equal(silent(stream), stream), "the path is not free"
    quiet, loud = (block.attn(block.ln_1(s)) for s in (stream, 10 * stream))
    torch.testing.assert_close(loud, quiet, rtol=0, atol=1e-3)
print("three questions, all answered well")

# %% [markdown]
r"""
## Your turn

### 1. LayerNorm

*About ten minutes.* Write `layer_norm(x, weight, bias)` without `F.layer_norm`, and without looking up. (The check cannot see how you did it.) `x` has two or more axes, and
each row along the *last* axis is normalised on its own. `weight` is the gain, `bias` the bias, one number for each channel. Use
$\varepsilon = 10^{-5}$, inside the root, and the variance that divides by $C$. A constant row must give the bias, and not `nan`.

??? tip "Hint"

    Keep the axis when you take a mean: `keepdim=True`. If you use `x.var`, tell it which variance you want.

Check yours with `exercises.check("layer-norm", layer_norm)`.
"""

# %% tags=["solution"]
from gptbook import exercises


def layer_norm(x, weight, bias):
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = x.var(dim=-1, unbiased=False, keepdim=True)
    return centred / torch.sqrt(variance + 1e-5) * weight + bias


exercises.check("layer-norm", layer_norm)

# %% [markdown]
r"""
### 2. The round bend

*About ten minutes.* Write `gelu(x)` for a tensor of any shape, without `F.gelu` and without `ndtr`. (The check cannot see how you did it.) It must be the exact
$x \cdot \Phi(x)$, to the last few digits. PyTorch has `torch.erf`, the error function

$$ \operatorname{erf}(z) = \frac{2}{\sqrt{\pi}} \int_0^z e^{-t^2}\, dt . $$

??? tip "Hint"

    $\Phi(x)$ is $\frac{1}{2}$ plus the area between 0 and $x$ under $\frac{1}{\sqrt{2\pi}}\, e^{-s^2/2}$. Which
    $t$ makes $s^2/2$ into $t^2$?

Check yours with `exercises.check("gelu", gelu)`.
"""


# %% tags=["solution"]
def gelu(x):
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


exercises.check("gelu", gelu)

# %% [markdown]
r"""
### 3. The block from memory

*About five minutes.* Scroll up no more. Write `block(x, attention, mlp, norm_1, norm_2)`: the pre-norm block of this book, from four
functions of a tensor $(B, T, C)$. `norm_1` belongs to attention, `norm_2` to the MLP. Do not change `x` in place: somebody else may
hold it.

??? tip "Hint"

    Two additions. What does each layer read, and what is it added to?

Check yours with `exercises.check("block", block)`.
"""


# %% tags=["solution"]
def block(x, attention, mlp, norm_1, norm_2):
    x = x + attention(norm_1(x))  # (B, T, C)
    return x + mlp(norm_2(x))  # (B, T, C)


exercises.check("block", block)

# %% [markdown]
r"""
### 4. One layer is enough

*About ten minutes.* An MLP has lost its bend: it computes $W_2 (W_1 x + b_1) + b_2$. Write `merge(W_1, b_1, W_2, b_2)`. It returns a
pair `(W, b)`, so that the single layer $W x + b$ does the same to every $x$. The matrices come as in `nn.Linear`: a layer from $m$
to $n$ channels has a weight of shape $(n, m)$ and a bias of shape $(n,)$.

??? tip "Hint"

    Multiply out. What multiplies $x$, and what is left when $x$ is zero?

Check yours with `exercises.check("merge-layers", merge)`.
"""


# %% tags=["solution"]
def merge(W_1, b_1, W_2, b_2):
    return W_2 @ W_1, W_2 @ b_1 + b_2


exercises.check("merge-layers", merge)

# %% [markdown]
r"""
## What this page left out

Dropout, which sets numbers to zero at random during training. How the weights of a deep stack should start: page 8 says what
GPT-2 does. And one thing that has gone unnoticed all along. Nothing in a block knows *where* a token stands: neither
attention, nor the MLP, nor the norms. That is the subject of [the next page](07_positions.py).
"""
