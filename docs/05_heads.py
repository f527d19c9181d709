# %% [markdown]
r"""
# Many heads

Several heads let one token take different things from different places, they need no more parameters and no more multiplications than one, and a single packed
matrix product computes them all.

A head makes one row of weights for each token. [Page 4](04_head.py) built it. This page puts several of them side by side,
first as a plain list, then packed, the way real models do it. The packing takes two lines. It is also where a
home-made GPT goes wrong without a word. So we look at these lines closely, down to the order of the numbers in memory.

## Two heads by hand

Here are the four tokens again, with the function `attention` of page 4, unchanged. It asks for the last two axes only. The
comments write `...` for any axes in front: a batch may stand there, or nothing.

New is `head`, which makes the queries, keys and values first. Page 4 wrote their matrices as $(C, D)$. PyTorch's linear layers
store a matrix as (out, in), which is $(D, C)$, and multiply by the transposed one. From here on we do the same.
"""

# %%
import math

import torch
import torch.nn.functional as F

x = torch.tensor([[1.0, 0.0], [3.0, 2.0], [2.0, 4.0], [6.0, 2.0]])  # (T, C)


def attention(q, k, v):
    T, D = q.shape[-2:]
    future = ~torch.ones(T, T, dtype=torch.bool).tril()  # (T, T)
    scores = q @ k.transpose(-2, -1) / math.sqrt(D)  # (..., T, T)
    weights = F.softmax(scores.masked_fill(future, -math.inf), dim=-1)  # (..., T, T)
    return weights @ v  # (..., T, D)


def head(x, w_q, w_k, w_v):
    return attention(x @ w_q.T, x @ w_k.T, x @ w_v.T)  # (..., T, D)


# %% [markdown]
r"""
Head 0 is the one of page 4. Its query and its key are made from channel 1, and its value is channel 0. With $D = 1$, each of
its matrices is one row of two numbers.

Head 1 is new. Its query and key weights are zero, so all scores are zero, and it takes the plain mean of the past. Its value
is channel 1.
"""

# %%
head_0 = (
    torch.tensor([[0.0, math.log(2) / 2]]),  # query: ln 2 times half of channel 1
    torch.tensor([[0.0, 1 / 2]]),  # key: half of channel 1
    torch.tensor([[1.0, 0.0]]),  # value: channel 0
)
head_1 = (torch.zeros(1, 2), torch.zeros(1, 2), torch.tensor([[0.0, 1.0]]))

y_0, y_1 = head(x, *head_0), head(x, *head_1)  # (T, D) each
side_by_side = torch.cat([y_0, y_1], dim=-1)  # (T, C)
by_pencil = torch.tensor([[1, 0], [7 / 3, 1], [15 / 7, 2], [3, 2]])  # (T, C)
torch.testing.assert_close(side_by_side, by_pencil)
side_by_side

# %% [markdown]
r"""
The first column is the result of page 4: 1, then $\frac{7}{3}$, $\frac{15}{7}$ and 3. The second column is the running mean of
0, 2, 4, 2. To put results side by side like this is to **concatenate** them. Two heads of width 1 give two channels, as many
as came in.

The two heads weigh the same tokens differently. Compare their last rows.
"""

# %% tags=["hide-input"] alt="Two four by four grids of weights, both empty above the diagonal. In the last row, head 0 gives token 0 a ninth, token 1 two ninths, token 2 four ninths and token 3 two ninths. Head 1 gives a quarter to each of the four." caption="The weights of the two heads. Each head has a row of its own for every token."
from gptbook import display

fig, axes = display.figure(5.2, 2.7, columns=2)
for h, (w_q, w_k, _) in enumerate((head_0, head_1)):
    # Where only token s has the value 1, the outputs are column s of the weights.
    q, k = x @ w_q.T, x @ w_k.T  # (T, D) each
    single = torch.eye(4)[:, :, None]  # (T, T, D)
    weights = torch.cat([attention(q, k, v) for v in single], dim=-1)  # (T, T)
    display.heatmap(axes[h], weights, numbers=True, title=f"head {h}", high=1.0)
axes[0].set_ylabel("row t: who looks")

# %% [markdown]
r"""
## Why one head is not enough

A head has one row of weights for a token, and all its channels share that row. Suppose that the last token wants two things:
channel 0 of token 3, which is 6, and channel 1 of token 2, which is 4. Can one head with both channels give it $[6, 4]$?

Let the values be the tokens themselves. The largest number in channel 0 is the 6 of token 3. A mean reaches 6 only with all
its weight on token 3. But then channel 1 is the 2 of token 3, and not 4. So no row of weights gives $[6, 4]$.

Two heads of width 1 can do it. Each has a row of weights of its own.
"""

# %%
row_0 = torch.tensor([0.0, 0.0, 0.0, 1.0])  # (T,), head 0 looks at token 3
row_1 = torch.tensor([0.0, 0.0, 1.0, 0.0])  # (T,), head 1 looks at token 2
wish = torch.stack([row_0 @ x[:, 0], row_1 @ x[:, 1]])  # (C,)
assert wish.tolist() == [6.0, 4.0]
wish

# %% tags=["hide-input"] alt="The four tokens as points in a plane whose axes are channel 0 and channel 1. A shaded triangle spans tokens 0, 2 and 3, and token 1 lies inside it. A dashed rectangle encloses the triangle. The wish, at six and four, is the upper right corner of the rectangle and lies outside of the triangle." caption="What the last token can receive. One head: any point of the shaded triangle. Two heads, one for each channel: any point of the dashed rectangle."
fig, ax = display.figure(4.6, 3.2)
ax.fill([1, 6, 2], [0, 2, 4], color=display.BLUE, alpha=0.25, linewidth=0)
ax.plot([1, 6, 6, 1, 1], [0, 0, 4, 4, 0], "--", color=display.GREY, linewidth=1.2)
ax.plot(x[:, 0], x[:, 1], "o", color=display.BLUE)
ax.plot(6, 4, "*", color=display.RED, markersize=13, clip_on=False)
for t, (right, up) in enumerate([(0.15, 0.15), (0.15, -0.3), (-0.15, 0.2), (0.15, 0)]):
    ax.text(x[t, 0] + right, x[t, 1] + up, f"token {t}", fontsize=9)
ax.text(5.8, 3.65, "the wish", fontsize=9, ha="right")
ax.text(2.2, 2.85, "one head", fontsize=9)
ax.text(4.3, 0.3, "two heads", fontsize=9)
ax.set_xlim(0.5, 7.2)
ax.set_ylim(-0.4, 4.5)
ax.set_xlabel("channel 0")
ax.set_ylabel("channel 1")
ax.grid(False)

# %% [markdown]
r"""
With weights that are never negative and sum to one, a head reaches the points between the tokens, and no others. A learned
value matrix can turn and stretch the triangle. It does so for all tokens and all channels alike: token $s$ still arrives as
its weight times one and the same matrix times $x_s$. One head decides *how much* it takes from a token. To take *different
things* from different tokens, it needs a companion.

## A list of heads

Now the general case. We take $B = 4$ rows of $T = 8$ tokens with $C = 32$ channels, and $H = 4$ heads. The channels are shared
out among the heads: each head gets the width $D = \frac{C}{H} = 8$. So four heads side by side give $C$ channels again.

A list is all we need. After the heads comes one more matrix, the **projection**. It has the shape $(C, C)$, with a bias, and
mixes what the heads found.
"""

# %%
torch.manual_seed(0)
B, T, C, H = 4, 8, 32, 4
D = C // H
X = torch.randn(B, T, C)  # (B, T, C)

heads = [  # for each head its w_q, w_k and w_v
    tuple(torch.randn(D, C) / math.sqrt(C) for _ in range(3)) for _ in range(H)
]
w_proj = torch.randn(C, C) / math.sqrt(C)  # (C, C)
b_proj = 0.1 * torch.randn(C)  # (C,)


def by_list(x, heads, w_proj, b_proj):
    outputs = [head(x, *weights) for weights in heads]  # (B, T, D) each
    y = torch.cat(outputs, dim=-1)  # (B, T, C)
    return y @ w_proj.T + b_proj  # (B, T, C)


listed = by_list(X, heads, w_proj, b_proj)  # (B, T, C)
listed.shape

# %% [markdown]
r"""
This is right, and easy to believe: every head is the head of page 4. It is the version to compare the packed one with.

## What the projection is for

Without the projection, head $h$ can write to its own $D$ channels and to no others. Test it. Give head 2 other values, and
see which of the {{ heads_channels }} channels of the output move.
"""

# %%
from gptbook.claims import claim

others = list(heads)
others[2] = (*heads[2][:2], torch.randn(D, C))  # head 2 with another w_v

nothing = torch.eye(C), torch.zeros(C)  # a projection that changes nothing
for name, projection in (("without", nothing), ("with", (w_proj, b_proj))):
    before = by_list(X, heads, *projection)  # (B, T, C)
    after = by_list(X, others, *projection)  # (B, T, C)
    moved = (before != after).any(dim=0).any(dim=0).nonzero().flatten().tolist()
    claim(f"heads_moved_{name}_projection", len(moved))
    print(f"{name} projection, {len(moved)} channels move: {moved[0]} to {moved[-1]}")

claim("heads_channels", C)
assert moved == list(range(C))

# %% [markdown]
r"""
Without it {{ heads_moved_without_projection }} channels move, with it all {{ heads_moved_with_projection }}. The projection lets each
head write anywhere. There is a second way to see it, and it is the one to remember. Cut the projection into one slice for each
head. Then "concatenate, then project" is a sum with one term for each head.

!!! theorem "Heads add up"

    Let $y_0, \dots, y_{H-1}$ be the outputs of the heads, of shape $(T, D)$ each, and $W$ a matrix with $HD$ rows. Cut $W$ into
    slices of $D$ rows, $W_0$ to $W_{H-1}$ from top to bottom. Then

    $$ \big[\, y_0 \;|\; y_1 \;|\; \cdots \;|\; y_{H-1} \,\big]\; W \;=\; \sum_{h=0}^{H-1} y_h\, W_h . $$

    Tested by `test_heads_add_up`.

??? proof "Proof"

    Call the concatenated matrix $Y$. An entry of the left side is $\sum_i Y_{t,i}\, W_{i,c}$, with $i$ from 0 to $HD - 1$.
    Every such $i$ is $hD + d$ for exactly one head $h$ and one $d$ from 0 to $D - 1$. By concatenation,
    $Y_{t,\,hD+d} = (y_h)_{t,d}$. By the cut, $W_{hD+d,\,c} = (W_h)_{d,c}$. So the sum is

    $$ \sum_{h} \sum_{d} (y_h)_{t,d}\, (W_h)_{d,c} \;=\; \sum_{h} (y_h W_h)_{t,c} . \;\blacksquare $$

PyTorch stores a linear layer's matrix transposed, as (out, in). So the *rows* of $W$ are the *columns* of `w_proj`, and the
slice of head $h$ is `w_proj[:, h * D : (h + 1) * D]`.
"""

# %%
summed = b_proj  # (C,)
for h, weights in enumerate(heads):
    w_slice = w_proj[:, h * D : (h + 1) * D]  # (C, D)
    summed = summed + head(X, *weights) @ w_slice.T  # (B, T, C)

difference = (summed - listed).abs().max()
claim("heads_add_up", difference, expected=0.0, tolerance=1e-5, kind="tolerance")
print(f"largest difference {difference:.1e}")

# %% [markdown]
r"""
Two things follow. The order of the heads means nothing: a sum has no order, as long as each head keeps its slice. And one
head can be switched off without touching the others: leave out its term. Exercise 3 does that.

## The price

Four heads sound four times as expensive as one. They are not, because each is a quarter as wide. The matrices of a head have
$3 D C$ numbers. All $H$ heads together have $3 H D C = 3 C^2$. The projection adds $C^2 + C$. That makes $4C^2 + C$, and $H$ has
cancelled.

The multiplications cancel in the same way. For a row of $T$ tokens, the products with the matrices take $4 T C^2$. Scores take
$T^2 D$ for each head, and mixing the values as much again: $2 T^2 C$ for all heads. PyTorch can count for us.
"""

# %%
from torch.utils.flop_counter import FlopCounterMode

from gptbook import PRESETS
from gptbook.model import CausalSelfAttention, GPTConfig

rows = []
for n_head in (1, 2, 4, 8, 16, 32):
    config = GPTConfig(block_size=T, n_head=n_head, n_embd=C)
    layer = CausalSelfAttention(config)
    parameters = sum(p.numel() for p in layer.parameters())
    with FlopCounterMode(display=False) as counter:
        layer(X[:1])
    products = counter.get_total_flops() // 2  # it counts a product and a sum as two
    assert parameters == 4 * C**2 + C
    assert products == 4 * T * C**2 + 2 * T**2 * C
    row = (n_head, C // n_head, parameters, products, n_head * T**2)
    rows.append([f"{number:,}" for number in row])
widths = [preset.n_embd // preset.n_head for preset in PRESETS.values()]
claim("heads_narrowest", min(widths))
claim("heads_widest", max(widths))
claim("heads_parameters", parameters, expected=4_128)
claim("heads_products", products, expected=36_864)
display.table(rows, header=("H", "D", "parameters", "multiplications", "weights"))

# %% [markdown]
r"""
{{ heads_parameters:,}} parameters and {{ heads_products:,}} multiplications, whatever the number of heads. The last column is the
part that does grow: each head has its own $T^2$ weights, so softmax has more to do and memory more to hold. And a narrow head has
less room for what it asks. With $D = 1$ a question is a single number. So there is a balance. The models of this book take
$D$ from {{ heads_narrowest }} to {{ heads_widest }}.

## One packed product

A list of heads means many small matrix products, one after the other. A machine prefers one large product. So stack all the
matrices: first those that make the queries of all heads, then those of the keys, then those of the values. Inside each third,
head follows after head. The result has $3C$ rows, and the package calls it `c_attn`.
"""

# %%
w_attn = torch.cat([w for part in zip(*heads, strict=True) for w in part])  # (3C, C)
w_attn.shape


# %% tags=["hide-input"]
def rows_of(part, h):
    first = part * C + h * D
    assert torch.equal(w_attn[first : first + D], heads[h][part])
    return f"{first} to {first + D - 1}"


display.table(
    [
        (name, *(rows_of(part, h) for h in range(H)))
        for part, name in enumerate(("queries", "keys", "values"))
    ],
    header=("rows of c_attn", *(f"head {h}" for h in range(H))),
)

# %% [markdown]
r"""
One product `x @ w_attn.T` now gives $3C$ numbers for each token, in the order of these rows. Then two steps sort them.

1. `view` cuts the last axis: $3C$ numbers become $3 \times H \times D$. It reads them in the order in which they lie, so the
   first cut separates queries, keys and values, and the second the heads.
2. `permute` puts the axes in another order. The 3 comes first, so that `q, k, v =` can take it apart. The head moves in front
   of the token, where a matrix product treats it like one more axis of the batch.
"""


# %%
def by_pack(x, w_attn, w_proj, b_proj, H):
    B, T, C = x.shape
    qkv = (x @ w_attn.T).view(B, T, 3, H, C // H)  # (B, T, 3, H, D)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, H, T, D) each
    y = attention(q, k, v)  # (B, H, T, D)
    y = y.transpose(1, 2).reshape(B, T, C)  # (B, T, C)
    return y @ w_proj.T + b_proj  # (B, T, C)


packed = by_pack(X, w_attn, w_proj, b_proj, H)  # (B, T, C)
difference = (packed - listed).abs().max()
claim("heads_list_pack", difference, expected=0.0, tolerance=1e-5, kind="tolerance")
print(f"list against pack: largest difference {difference:.1e}")

# %% [markdown]
r"""
All heads run at once, and no line mentions a single one. The list had a loop. Here the loop has become an axis.

## Why `view` alone will not do

The line with `permute` looks like ceremony. Four tokens' numbers should become two heads' numbers, and `view` can make that
shape in one step. What goes wrong if we let it?

A tensor is one long row of numbers in memory, and a note on how to read it. The note is the shape and the **strides**. A stride
says how far to jump in memory for one step along an axis. Here is the row of our four tokens.
"""

# %%
print("memory ", x.flatten().tolist())
print("shape  ", tuple(x.shape))
print("strides", x.stride())

# %% [markdown]
r"""
One step to the next token jumps 2 numbers, one step to the next channel jumps 1. So the number of token $t$ in channel $c$ lies at
place $2t + c$. We want heads first: $H = 2$ heads, $T = 4$ tokens, $D = 1$. There are two ways to that shape.
"""

# %%
right = x.view(4, 2, 1).transpose(0, 1)  # (H, T, D)
wrong = x.view(2, 4, 1)  # (H, T, D)
for name, y in (("view, then transpose", right), ("view alone", wrong)):
    print(name)
    print(f"  head 0     {y[0].flatten().tolist()}")
    print(f"  head 1     {y[1].flatten().tolist()}")
    print(f"  shape      {tuple(y.shape)}, strides {y.stride()}")
    print(f"  contiguous {y.is_contiguous()}")
    print(f"  same place in memory {y.data_ptr() == x.data_ptr()}")

# %% tags=["hide-input"] alt="Three rows of eight cells. In memory the numbers are 1 0, 3 2, 2 4, 6 2: two neighbouring cells for each of the tokens 0 to 3. After view and transpose, head 0 holds 1 3 2 6 and head 1 holds 0 2 4 2, one cell from each token in both. After view alone, head 0 holds 1 0 3 2, which are tokens 0 and 1 only, and head 1 holds 2 4 6 2, tokens 2 and 3 only." caption="Eight numbers, and two ways to read them as two heads of four tokens. Below each number stands its token, and a colour is a token. The right way gives each head one number of every token. The wrong way gives each head both numbers of half the tokens."
from matplotlib.patches import Rectangle

colours = (display.BLUE, display.ORANGE, display.GREEN, display.PURPLE)
place = torch.arange(8).view(4, 2)  # (T, C): where each number of x lies
right, wrong = (
    place.view(4, 2, 1).transpose(0, 1),
    place.view(2, 4, 1),
)  # (H, T, D) each
strips = [(4.4, 0.0, "", place)]  # height of the row, left end, label, places in memory
for height, places in ((2.2, right), (0.0, wrong)):
    strips += [(height, 4.6 * h, f"head {h}", places[h]) for h in range(2)]

fig, ax = display.figure(5.2, 3.9)
for height, left, label, places in strips:
    ax.text(left, height + 0.92, label, fontsize=9)
    for i, p in enumerate(places.flatten().tolist()):
        corner, colour = (left + i, height), colours[p // 2]
        ax.add_patch(Rectangle(corner, 0.95, 0.8, color=colour, alpha=0.4, linewidth=0))
        number, centre = f"{x.flatten()[p]:.0f}", left + i + 0.475
        ax.text(centre, height + 0.4, number, ha="center", va="center", fontsize=11)
        ax.text(centre, height - 0.3, f"t{p // 2}", ha="center", fontsize=9)
ax.text(0, 5.35, "in memory")
ax.text(0, 3.6, "view(T, H, D).transpose(0, 1)", family="monospace")
ax.text(0, 1.4, "view(H, T, D)", family="monospace")
ax.set_xlim(0, 8.6)
ax.set_ylim(-0.4, 5.8)
ax.set_axis_off()

# %% [markdown]
r"""
Nothing moved in memory, in either case. Both begin at the same place, and only the note differs. `view(4, 2, 1)` has the strides
$(2, 1, 1)$, and `transpose` swaps the first two: one step to the next head now jumps 1, one step to the next token jumps 2. That is
what we want. The price is that the tensor is no longer **contiguous**: reading it in its own order jumps about in memory.

`view` alone keeps the reading order, and cuts the row in two. One step to the next head jumps 4. So head 0 gets the numbers of tokens
0 and 1, head 1 those of tokens 2 and 3. What they call four tokens are the halves of two. The shape is right, and nothing complains.

## Right shape, wrong tokens

What does that do to a layer? There are two places for the mistake: on the way in, where heads are split, and on the way back, where
they are merged. That makes four layers, one of them right. To keep each version short, we multiply with the three thirds of `c_attn`
one by one.
"""

# %%
split = {
    "view, transpose": lambda z: z.view(1, T, H, D).transpose(1, 2),
    "view alone": lambda z: z.view(1, H, T, D),
}
merge = {
    "transpose, reshape": lambda y: y.transpose(1, 2).reshape(1, T, C),
    "reshape alone": lambda y: y.reshape(1, T, C),
}


def layer_with(x, split, merge):  # x (1, T, C)
    q, k, v = (split(x @ w.T) for w in w_attn.split(C))  # (1, H, T, D) each
    return merge(attention(q, k, v)) @ w_proj.T + b_proj  # (1, T, C)


def leaks(split, merge, x):  # x (1, T, C)
    before = layer_with(x, split, merge)  # (1, T, C)
    moved = torch.zeros(T, T, dtype=torch.bool)
    for j in range(T):
        other = x.clone()
        other[:, j] += 1.0
        after = layer_with(other, split, merge)  # (1, T, C)
        moved[:, j] = (after != before).any(dim=-1)[0]  # (T,)
    return moved  # (T, T)


reads = {}
for way_in in split:
    for way_back in merge:
        moved = leaks(split[way_in], merge[way_back], X[:1])  # (T, T)
        reads[way_in, way_back] = moved
        seen = moved[0].nonzero().flatten().tolist()
        print(f"output 0 reads {seen!s:13} in: {way_in}, back: {way_back}")

# %% [markdown]
r"""
All four run, and all four return the shape $(1, T, C)$. Output 0 may read token 0 only. In two of them it reads the future. Here
are their leak matrices, as on page 4: a cell is filled where output $i$ moves when token $j$ changes.
"""

# %% tags=["hide-input"] alt="Four grids of eight by eight cells. View and transpose in, transpose and reshape back: the lower triangle is filled, and nothing else. View alone in with the right way back: cells above the diagonal are filled, row 0 reads tokens 0, 2, 4 and 6. The right way in with reshape alone back: row 0 reads tokens 0 to 3. Both wrong: four small triangles of two by two along the diagonal, and the rest is empty." caption="Which output (row) reads which token (column). Above left: right. Above right and below left: the future leaks in. Below right: two mistakes hide each other from a test for leaks, and the layer has lost its past."
fig, axes = display.figure(4.6, 5.4, columns=2, rows=2)
for ax, ((way_in, way_back), moved) in zip(
    axes.T.flatten(), reads.items(), strict=True
):
    display.heatmap(ax, moved, title=f"in: {way_in}\nback: {way_back}", high=1.4)
    ax.set_xlabel("token j")
    ax.set_ylabel("output i")

# %%
causal = torch.ones(T, T, dtype=torch.bool).tril()  # (T, T)
right, back_wrong, in_wrong, both_wrong = reads.values()
assert torch.equal(right, causal)
assert in_wrong[0].nonzero().flatten().tolist() == [0, 2, 4, 6]
assert back_wrong[0].nonzero().flatten().tolist() == [0, 1, 2, 3]
assert not (both_wrong & ~causal).any()
group = claim("heads_group", int(both_wrong[-1].sum()), expected=T // H)
print(f"both wrong: the last output reads {group} of {T} tokens, and no future")

# %% [markdown]
r"""
Look at the layer with both mistakes. It reads no future, so a test for leaks passes it. But it has cut the text into groups of
$\frac{T}{H}$ tokens, and the last output reads {{ heads_group }} of the 8. A layer like this trains without complaint, and has lost
most of its past. That is why a leak matrix has two sides to look at: what must be empty, and what must be full.

And with $H = 1$, all four layers are the same one. A test with a single head sees none of this.

## The way back

What `attention` returns has the shape $(B, H, T, D)$. The heads must go back into the last axis, token by token. First swap
the axes, which gives $(B, T, H, D)$. Then glue the last two together. Can `view` do that?
"""

# %% tags=["raises-exception"]
y = torch.randn(B, H, T, D)  # (B, H, T, D)
y.transpose(1, 2).view(B, T, C)

# %% [markdown]
r"""
It refuses, and it is right. `view` only writes a new note, and here no note says what we want. The $D$ numbers of a head are
neighbours in memory. The next head of the same token lies $T D$ numbers further on. No single stride walks through all $C$ numbers
of a token.
"""

# %%
swapped = y.transpose(1, 2)  # (B, T, H, D)
merged = swapped.reshape(B, T, C)  # (B, T, C)
print("swapped: strides", swapped.stride(), "contiguous", swapped.is_contiguous())
print("merged:  strides", merged.stride(), "contiguous", merged.is_contiguous())
print("same place in memory:", merged.data_ptr() == y.data_ptr())
assert torch.equal(merged, torch.cat([y[:, h] for h in range(H)], dim=-1))

# %% [markdown]
r"""
`reshape` is `view` where a view is possible. Otherwise it copies the numbers into the order in which they are read, as it did here. That
is its use in this place, and its danger: it never refuses. Without the `transpose`, `y.reshape(B, T, C)` gives a result too. You
have seen which one. The assertion in the cell says what a merge must be: the heads, concatenated.

## The same thing in the package

You have now met every line of the attention layer of our GPT, apart from `self.past`, which is the lower triangle of page 3, made once and kept with the layer, and two calls for dropout.
That sets numbers to zero at random during training, and is off in this book's small models.
"""

# %%
display.source(CausalSelfAttention.forward)

# %% [markdown]
r"""
Copy the weights of our list into such a layer. If rows and columns are ordered as we said, the results agree.
"""

# %%
layer = CausalSelfAttention(GPTConfig(block_size=T, n_head=H, n_embd=C))
with torch.no_grad():
    layer.c_attn.weight.copy_(w_attn)
    layer.c_proj.weight.copy_(w_proj)
    layer.c_proj.bias.copy_(b_proj)
    difference = (layer(X) - listed).abs().max()
claim("heads_package", difference, expected=0.0, tolerance=1e-5, kind="tolerance")
print(f"list against package: largest difference {difference:.1e}")

# %% [markdown]
r"""
Now the other way: a fresh layer of the package, with weights that we have not seen, taken apart into a list of heads. The
same cut that sorts the $3C$ numbers of a token also sorts the $3C$ rows of the matrix.
"""


# %%
def heads_of(layer):
    C = layer.c_attn.in_features
    w = layer.c_attn.weight.view(3, layer.n_head, -1, C)  # (3, H, D, C)
    return [tuple(w[:, h]) for h in range(layer.n_head)]  # (D, C) each


fresh = CausalSelfAttention(GPTConfig(block_size=T, n_head=H, n_embd=C))
with torch.no_grad():
    taken = by_list(X, heads_of(fresh), fresh.c_proj.weight, fresh.c_proj.bias)
    difference = (fresh(X) - taken).abs().max()
claim("heads_back", difference, expected=0.0, tolerance=1e-5, kind="tolerance")
print(f"package against list: largest difference {difference:.1e}")

# %% [markdown]
r"""
So far our own code agrees with our own code. PyTorch has a layer for this too, written by other people. It stores queries, keys and
values in the same order. It also has biases for them, which our layer does not use. Set those to zero, copy the rest, and hand it
the mask.
"""

# %%
theirs = torch.nn.MultiheadAttention(C, H, batch_first=True)
with torch.no_grad():
    theirs.in_proj_weight.copy_(w_attn)
    theirs.in_proj_bias.zero_()
    theirs.out_proj.weight.copy_(w_proj)
    theirs.out_proj.bias.copy_(b_proj)
    oracle, _ = theirs(X, X, X, attn_mask=~causal, need_weights=False)  # (B, T, C)
difference = (oracle - listed).abs().max()
claim("heads_torch", difference, expected=0.0, tolerance=1e-5, kind="tolerance")
print(f"list against PyTorch's layer: largest difference {difference:.1e}")

# %% [markdown]
r"""
## Checks

For several shapes, with one head, one token or heads of width 1 among them: list, pack and package agree. The order of the heads means
nothing. No output before the last token moves by a single bit when that token changes. And rows of a batch stay apart.
"""

# %%
for B_, T_, C_, H_ in ((2, 6, 12, 3), (1, 1, 8, 2), (3, 5, 4, 4), (2, 7, 6, 1)):
    layer = CausalSelfAttention(GPTConfig(block_size=T_, n_head=H_, n_embd=C_))
    layer.requires_grad_(False)
    taken, w_out, b_out = heads_of(layer), layer.c_proj.weight, layer.c_proj.bias
    rows = torch.randn(B_, T_, C_, generator=torch.Generator().manual_seed(1))
    out = layer(rows)
    torch.testing.assert_close(by_list(rows, taken, w_out, b_out), out)
    torch.testing.assert_close(
        by_pack(rows, layer.c_attn.weight, w_out, b_out, H_), out
    )

    slices = w_out.split(C_ // H_, dim=1)  # a slice of columns for each head
    backwards = by_list(rows, taken[::-1], torch.cat(slices[::-1], dim=1), b_out)
    torch.testing.assert_close(backwards, out)

    spoiled = rows.clone()
    spoiled[:, -1] += 100.0
    assert torch.equal(layer(spoiled)[:, :-1], out[:, :-1]), "the future leaks"
    torch.testing.assert_close(layer(rows[:1]), out[:1])
print("four shapes, five checks, all passed")

# %% [markdown]
r"""
## Your turn

### 1. Another order of rows

*About ten minutes.* Not everybody packs as we do. Some models order the rows of the packed matrix head after head: the
queries of head 0, the keys of head 0, the values of head 0, then the same three of head 1, and so on. To run their weights in our layer,
the rows must be sorted anew. Write `repack(w, n_head)`. It gets such a matrix of shape $(3C, C)$ and returns one of the same shape
in the order of our `c_attn`: all queries, all keys, all values, and inside each third head after head. The matrix it was given stays as
it is.

??? tip "Hint"

    Name the axes first. Which three numbers say where a row stands, and in which order do they count in the matrix you get? In
    which order must they count in the matrix you return? Cut, swap, glue: the three steps of this page, on rows.

Check yours with `exercises.check("repack-heads", repack)`.
"""

# %% tags=["solution"]
from gptbook import exercises


def repack(w, n_head):
    C = w.size(1)
    cut = w.view(n_head, 3, C // n_head, C)  # (H, 3, D, C)
    return cut.transpose(0, 1).reshape(3 * C, C)  # (3C, C)


exercises.check("repack-heads", repack)

# %% [markdown]
r"""
### 2. The whole layer

*About fifteen minutes.* Do not look at the code above, and write it anew: `multi_head(x, w_attn, w_proj, n_head)`. It gets $x$ of shape
$(B, T, C)$, the packed matrix of shape $(3C, C)$ in the order of this page, and the projection of shape $(C, C)$, both stored as (out, in). There are
no biases. It returns $(B, T, C)$: causal, scaled by $\frac{1}{\sqrt{D}}$, with `n_head` heads. It may call `attention`, or not. It leaves its inputs as they are.

??? tip "Hint"

    Write the shape at the end of every line before you write the line: $(B, T, 3C)$, $(B, T, 3, H, D)$, three times
    $(B, H, T, D)$, $(B, H, T, T)$, $(B, H, T, D)$, $(B, T, H, D)$, $(B, T, C)$ twice.

Check yours with `exercises.check("multi-head", multi_head)`.
"""


# %% tags=["solution"]
def multi_head(x, w_attn, w_proj, n_head):
    B, T, C = x.shape
    D = C // n_head
    q, k, v = (x @ w_attn.T).view(B, T, 3, n_head, D).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-2, -1) / math.sqrt(D)  # (B, H, T, T)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)  # (T, T)
    weights = F.softmax(scores.masked_fill(future, -math.inf), dim=-1)
    y = (weights @ v).transpose(1, 2).reshape(B, T, C)  # (B, T, C)
    return y @ w_proj.T  # (B, T, C)


exercises.check("multi-head", multi_head)

# %% [markdown]
r"""
### 3. Switch off a head

*About ten minutes.* What does a head do in a trained model? One way to find out is to switch it off and see what gets worse. Write
`ablate(layer, head)`. It gets a `CausalSelfAttention` and the number of a head, and returns a copy of the layer in which this head
adds nothing. The other heads and the bias stay, and so does the layer that you were given.

??? tip "Hint"

    Heads add up. Which numbers of `c_proj.weight` are the slice of this head, rows or columns? `copy.deepcopy` copies a layer with its
    weights, `copy.copy` does not copy the weights.

Check yours with `exercises.check("ablate-head", ablate)`.
"""

# %% tags=["solution"]
import copy


def ablate(layer, head):
    layer = copy.deepcopy(layer)
    D = layer.c_proj.in_features // layer.n_head
    with torch.no_grad():
        layer.c_proj.weight[:, head * D : (head + 1) * D] = 0.0
    return layer


exercises.check("ablate-head", ablate)

# %% [markdown]
r"""
## What this page left out

What heads learn to look for is for a later page, when there is a trained model to look into. And attention
only moves numbers between tokens: once its weights are known, everything here is a weighted sum. The part that works on each token alone, and what
holds the parts together, is [the block](06_block.py).
"""
