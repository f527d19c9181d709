# %% [markdown]
r"""
# Positions

Without a mask, attention treats its tokens as a heap, and a table of learned vectors, one for each place, tells it their
order.

A head compares tokens and averages them. Nothing in that says which token stood where. This page shows how blind that makes
it, how much the causal mask gives away after all, and what the GPT adds so that it need not guess.

## Four tokens in another order

Take the four tokens, and the scores of [page 4](04_head.py): the query is $\ln 2$ times half of channel 1, the key is half of
channel 1. Each is a single number, so the scale $\sqrt{D}$ is 1. The values are the whole tokens here. And there is no mask, so
every token looks at all four.
"""

# %%
import copy
import math

import torch
import torch.nn.functional as F

from gptbook import display
from gptbook.claims import claim

x = torch.tensor([[1.0, 0.0], [3.0, 2.0], [2.0, 4.0], [6.0, 2.0]])  # (T, C)


def weights_of(x):
    q = math.log(2) / 2 * x[:, 1:]  # (T, 1)
    k = x[:, 1:] / 2  # (T, 1)
    return F.softmax(q @ k.T, dim=1)  # (T, T)


def attend(x):
    return weights_of(x) @ x  # (T, T) @ (T, C) -> (T, C)


attend(x)

# %% [markdown]
r"""
Row 0 can be checked by hand. Its query is 0, so all its scores are 0, its weights are equal, and the output is the plain mean
$[3, 2]$. Now swap the first two tokens.
"""

# %%
order = [1, 0, 2, 3]
print(x[order])
print(attend(x[order]))
difference = (attend(x[order]) - attend(x)[order]).abs().max()
claim("order_swap", difference, expected=0.0, tolerance=1e-6, kind="tolerance")
print(f"largest difference {difference:.1e}")

# %% [markdown]
r"""
The outputs are the same four rows. The first two have changed places, as their tokens did. The last line compares them with
the old outputs, reordered. Nothing else happened: token 2 cannot tell whether $[1, 0]$ stood first or second.
"""

# %% tags=["hide-input"] alt="Two four by four grids of attention weights side by side. The right one is the left one with its first two rows exchanged and its first two columns exchanged. The same sixteen numbers stand in both." caption="The weights before and after the swap. The first two rows have changed places, and so have the first two columns. No number is new."
fig, axes = display.figure(5.2, 2.9, columns=2)
for ax, tokens, title in zip(
    axes, ([0, 1, 2, 3], order), ("as it was", "swapped"), strict=True
):
    names = [f"token {t}" for t in tokens]
    display.heatmap(ax, weights_of(x[tokens]), names, tokens, numbers=True)
    ax.set_xlabel(title)
axes[1].set_yticklabels(order)

# %% [markdown]
r"""
## Every order

A new order in which each token comes exactly once is called a **permutation**. As a matrix $P$ of shape $(T, T)$, each row
holds a single 1, in the column of the token that moves there. Then $P X$ are the tokens $X$ in their new order.
"""

# %%
P = torch.eye(4)[order]  # (T, T)
print(P)
assert torch.equal(P @ x, x[order])

# %% [markdown]
r"""
A function $f$ is **permutation equivariant** when $f(P X) = P f(X)$. In words: reorder what goes in, and what comes out is
reordered in the same way, and in no other.

!!! theorem "Attention without a mask is permutation equivariant"

    Let $f$ be a layer of attention without a mask, with any number of heads, or any stack of blocks made of such layers,
    LayerNorms, MLPs and residual additions. Then for every $X$ of shape $(T, C)$ and every permutation matrix $P$, in exact
    arithmetic,

    $$ f(P X) = P f(X) . $$

    Tested by `test_attention_without_a_mask_is_permutation_equivariant`.

??? proof "Proof"

    *Rows alone.* A linear layer, a LayerNorm and an MLP treat each row by itself. So reordering before or after them is the
    same.

    *One head.* By this, queries, keys and values of $PX$ are $PQ$, $PK$ and $PV$. The scores are
    $(PQ)(PK)^{\mathsf T} = P\,(QK^{\mathsf T}) P^{\mathsf T}$, since transposing a product turns its order round: the old scores with rows and
    columns reordered. The scale changes nothing in this. Softmax looks at one row at a time. A row holds its old numbers in
    another order, so it has the same sum below the fraction, and each number keeps its weight. With $W$ for the weights of
    $X$, the weights of $PX$ are $P W P^{\mathsf T}$.

    Each row and each column of $P$ holds a single 1, so $P^{\mathsf T} P$ is the identity. The output of the head is

    $$ (P W P^{\mathsf T})(P V) = P W (P^{\mathsf T} P) V = P\,(W V) . $$

    *Many heads.* Putting heads side by side does not touch the order of rows, and the projection treats rows alone.

    *Blocks.* If $f$ is equivariant, so is $X + f(X)$, because $PX + P f(X) = P\,(X + f(X))$. If $f$ and $g$ are, so is one after
    the other: $g(f(PX)) = g(P f(X)) = P\, g(f(X))$. A stack of blocks is made by these two steps. $\blacksquare$

Test it on the package's own blocks. Their mask is the buffer `past`, which is true where a place may be read. Filled with true
everywhere, it hides nothing. The function below makes all models of this page: with the mask or without it, with position
vectors or without. What those are comes further down.
"""

# %%
from gptbook.model import GPT, GPTConfig


def make(masked=True, positions=True, **shape):
    torch.manual_seed(0)
    model = GPT(GPTConfig(**shape))
    if not masked:
        for block in model.h:
            block.attn.past.fill_(True)
    if not positions:  # a table of zeros that stays one
        torch.nn.init.zeros_(model.wpe.weight).requires_grad_(False)
    return model


# PyTorch's own start, not the smaller one of page 8: what the layers write then shows.
small = {"n_head": 2, "n_embd": 16, "scale_residual": False}
random = torch.Generator().manual_seed(1)
X = torch.randn(1, 8, 16, dtype=torch.float64, generator=random)  # (B, T, C)
orders = [torch.randperm(8, generator=random) for _ in range(20)]
worst = {}
for masked in (False, True):
    gpt = make(masked, n_layer=4, **small).double().requires_grad_(False)
    f = torch.nn.Sequential(*gpt.h)
    worst[masked] = max((f(X[:, o]) - f(X)[:, o]).abs().max() for o in orders)
claim("order_blocks", worst[False], expected=0.0, tolerance=1e-12, kind="tolerance")
claim("order_blocks_masked", worst[True], expected=(1e-2, None), kind="tolerance")
print(f"four blocks without a mask: {worst[False]:.1e}")
print(f"four blocks with the mask:  {worst[True]:.1e}")

# %% [markdown]
r"""
The second line is the control. A test that cannot fail says nothing, and with the mask it fails.

## Two sentences, one heap

Here is what this means for text. Two sentences with the same characters, and with the same character at the end. A GPT predicts
the next token from its last row. Let an untrained one without a mask read both. How far apart are its two predictions?
"""

# %%
from gptbook.tokenizers import CharTokenizer

first, second = "the dog saw the man.", "the man saw the dog."
letters = CharTokenizer.train(first)
pair = torch.tensor([letters.encode(first), letters.encode(second)])  # (2, T)
small |= {"vocab_size": letters.vocab_size, "block_size": len(first)}


def apart(**how):
    gpt = make(**how, **small).double().requires_grad_(False)
    last = gpt(pair)[:, -1]  # (2, V)
    return (last[0] - last[1]).abs().max().item()


blind = apart(masked=False, positions=False, n_layer=2)
sighted = apart(masked=False, positions=True, n_layer=2)
claim("order_heap", blind, expected=0.0, tolerance=1e-12, kind="tolerance")
claim("order_no_heap", sighted, expected=(1e-4, None), kind="tolerance")
print(f"without positions {blind:.0e}")
print(f"with positions    {sighted:.0e}")

# %% [markdown]
r"""
Without positions, who saw whom is lost. No training can repair it: by the theorem, the last row is the same whatever the weights
are.

## What the mask gives away

The causal mask treats places differently. Row $t$ sees $t + 1$ tokens, so row 0 sees one and row 3 sees four. Is that enough
to know the order? Ask the running mean of [page 3](03_averaging.py), before and after the swap.
"""

# %%
W = torch.ones(4, 4).tril()
W = W / W.sum(dim=1, keepdim=True)  # (T, T)
order = [1, 0, 2, 3]
print(W @ x)
print(W @ x[order])
assert torch.equal((W @ x)[3], torch.tensor([3.0, 2.0]))
assert torch.equal((W @ x[order])[3], (W @ x)[3])

# %% [markdown]
r"""
The last row stays $[3, 2]$. It sees everything, so for it the mask hides nothing, and it is as blind as before. Row 0 changed:
it sees another token now. The order of the past leaves no trace in the last row, but it does leave one in the rows before it.

A second layer can read that trace. Take the running mean of the running means.
"""

# %%
print(W @ (W @ x))
print(W @ (W @ x[order]))
twice, twice_swapped = (W @ (W @ x))[3], (W @ (W @ x[order]))[3]  # (C,) each
torch.testing.assert_close(twice, torch.tensor([2.0, 1.25]))
torch.testing.assert_close(twice_swapped, torch.tensor([2.5, 1.75]))

# %% [markdown]
r"""
Now the last row is $[2, 1.25]$ for one order and $[2.5, 1.75]$ for the other. You can check both: average the four rows of the
first layer. In two layers an early token is counted more often than a late one, because more rows have seen it.

The same with a GPT that has the mask and no positions. It reads the two sentences again, and its last row sees all of each.
"""

# %%
one = apart(positions=False, n_layer=1)
two = apart(positions=False, n_layer=2)
claim("order_one_block", one, expected=0.0, tolerance=1e-12, kind="tolerance")
claim("order_two_blocks", two, expected=(1e-4, None), kind="tolerance")
print(f"one block  {one:.0e}")
print(f"two blocks {two:.0e}")

# %% [markdown]
r"""
One block with the mask is blind to the order of the past, up to rounding. Two are not.

## Counting places

Could a masked model work out the number of its place? It depends on the tokens. If all are alike, every average of them is the
same vector, and no row differs from another. That holds for a whole GPT without positions, however many layers it has. Here is
one that reads a single letter again and again.
"""

# %%
gpt = make(positions=False, n_layer=4, **small).double().requires_grad_(False)
rows = gpt(torch.zeros(1, 20, dtype=torch.long))[0]  # (T, V)
difference = (rows - rows[0]).abs().max()
claim("order_monotone", difference, expected=0.0, tolerance=1e-12, kind="tolerance")
print(f"largest difference between rows {difference:.1e}")

# %% [markdown]
r"""
Now put a mark on the first token: a start sign that occurs nowhere else. Let a head weigh all tokens alike, and let its value be
1 for the start sign and 0 for everything else. Such a head is the running mean of these values.
"""

# %%
mark = torch.tensor([[1.0], [0.0], [0.0], [0.0]])  # (T, 1)
W @ mark  # (T, 1)

# %% [markdown]
r"""
Row $t$ holds $\frac{1}{t+1}$. One head has written the number of each place into the stream, and an MLP can turn it into
whatever the next layers need. [Haviv et al. 2022](https://aclanthology.org/2022.findings-emnlp.99/) trained language models with the
causal mask and without any positions, found them nearly as good, and could read the places off their inner layers.
[Kazemnejad et al. 2023](https://arxiv.org/abs/2305.19466) prove, with such a start sign, that one layer can recover the place.

Our training windows begin anywhere in the text, so their first token is no special one. What the mask gives away is real, but a
model has to spend layers on it.

## A vector for every place

The GPT does it plainly. Beside the table of token vectors stands a second table, `wpe`, with one row of $C$ numbers for each
place. It is called the **position embedding**. The stream begins with the sum of the two: the row of the token plus the row of
the place.

By hand, with our $x$ as the token table. The text is tokens 1, 2, 1, 3, so token 1 comes twice.
"""

# %%
wte = x  # (V, C): a row for each of four tokens
wpe = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])  # (T, C)
idx = torch.tensor([1, 2, 1, 3])  # (T,)
print(wte[idx])
print(wte[idx] + wpe)
assert torch.equal((wte[idx] + wpe)[[0, 2]], torch.tensor([[3.0, 2.0], [4.0, 3.0]]))

# %% [markdown]
r"""
Rows 0 and 2 were the same vector $[3, 2]$. Now one is $[3, 2]$ and the other $[4, 3]$. A head can tell them apart, and the
equivariance is gone. Swap the first two of our tokens, leave the places where they are, and the outputs are new numbers.
"""

# %%
print(attend(x + wpe)[order])
print(attend(x[order] + wpe))
assert (attend(x[order] + wpe) - attend(x + wpe)[order]).abs().max() > 0.1

# %% [markdown]
r"""
Is anything lost by adding, where two vectors could also be put side by side? With two channels, yes: another token at another
place may give the same sum. With many channels there is room for both. And a dot product of two sums has four parts. Let a token
$a$ at place $p$ look at a token $b$ at place $r$, and leave the learned matrices aside. Then the score is

$$ (a + p) \cdot (b + r) = a b + a r + p b + p r . $$

The first part asks which token looks at which. The last asks only about places: "look one back" needs nothing else. Exercise 3
builds it.

## The same thing in the package

Two lines of the forward pass do it: one counts the places, the next adds the rows.
"""

# %%
display.source(GPT.forward)

# %% [markdown]
r"""
To be sure, catch what the first block receives, and compare it with the sum computed here. This is a GPT with the sizes of the
book's own small model.
"""

# %%
model = make(vocab_size=65, block_size=64).requires_grad_(False)
T = 64
idx = torch.randint(65, (4, T))  # (B, T)
caught = []
hook = model.h[0].register_forward_pre_hook(lambda block, given: caught.append(*given))
model(idx)
hook.remove()

stream = model.wte.weight[idx] + model.wpe.weight[:T]  # (B, T, C)
assert torch.equal(caught[0], stream)
model.wte.weight.shape, model.wpe.weight.shape

# %% [markdown]
r"""
Equal to the last bit. The same $T$ position vectors are added to each row of the batch.

A table has an end. There is no row for place 64, so this model cannot read a text of 65 tokens. It says so.
"""

# %% tags=["raises-exception"]
model(torch.zeros(1, 65, dtype=torch.long))

# %% [markdown]
r"""
That is the price of the plain way. Each row is learned on its own: what the model finds out about place 5 tells it nothing
about place 6. Other ways compute the place instead: [sines and cosines](https://arxiv.org/abs/1706.03762) that are added, or
[rotations](https://arxiv.org/abs/2104.09864) of queries and keys. The second belongs to newer models, and to [page 17](17_today.py).

## A task where order is everything

How much do positions matter to a model that learns? Begin with an invented task, in which nothing else matters. A row is
random tokens out of {{ order_symbols }}. At each place, name the token that stood three places back.
"""

# %%
from gptbook import trainer

V, T, back = 8, 16, 3
claim("order_symbols", V)


def task(rows, seed):
    random = torch.Generator().manual_seed(seed)
    return torch.randint(V, (rows, T), generator=random)  # (B, T)


task(1, seed=0)


# %%
def answers_of(model, idx):
    return model(idx)[:, back:], idx[:, :-back]  # logits, targets


def loss_of(model, idx):
    logits, targets = answers_of(model, idx)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def learn(positions, n_layer):
    shape = {"vocab_size": V, "block_size": T, "n_head": 1, "n_embd": 32}
    model = make(positions=positions, n_layer=n_layer, **shape)
    optimizer = trainer.make_optimizer(model, trainer.TrainConfig(learning_rate=3e-3))
    for step in range(400):
        loss = loss_of(model, task(32, seed=step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.requires_grad_(False)


learned = {
    "with": learn(True, n_layer=1),
    "without": learn(False, n_layer=1),
    "without_two": learn(False, n_layer=2),
}

# %% [markdown]
r"""
Before you look: what is the best that one layer without positions can do? It is blind to the order of the earlier tokens. It
sees a heap of $t$ earlier tokens, and the right answer is one of them, each as likely as any other. So the best guess gives each
symbol its share of the heap. That costs a loss which we can compute, and below which no such model gets, but for luck.
"""

# %%
test = task(2000, seed=10_000)  # (B, T)
seen = F.one_hot(test, V).cumsum(dim=1) - F.one_hot(test, V)  # (B, T, V)
share = seen[:, back:] / seen[:, back:].sum(dim=-1, keepdim=True)  # (B, 13, V)
targets = test[:, :-back, None]  # (B, 13, 1)
floor = -share.gather(-1, targets).log().mean()

claim("order_floor", floor, expected=(1.4, 1.65), kind="statistical")
best = share.amax(dim=-1).mean()
bounds = {
    "with": (None, 0.05),
    "without": (floor - 0.02, floor + 0.3),
    "without_two": (0.5, floor),
}
lines = []
for name, m in learned.items():
    logits, y = answers_of(m, test)
    right = (logits.argmax(dim=-1) == y).float().mean()
    loss = claim(
        f"order_task_loss_{name}", loss_of(m, test), bounds[name], kind="statistical"
    )
    claim(f"order_task_right_{name}", right, kind="statistical")
    lines.append((name.split("_")[0], len(m.h), f"{loss:.3f}", f"{right:.0%}"))
lines.append(("a guess from the heap", "–", f"{floor:.3f}", f"{best:.0%}"))
lines.append(("a blind guess, ln V", "–", f"{math.log(V):.3f}", f"{1 / V:.0%}"))
display.table(lines, header=("positions", "layers", "loss (nats)", "right answers"))

# %% [markdown]
r"""
With positions, {{ order_task_right_with:.0%}} of the answers are right. Without, one layer stops at {{ order_task_loss_without:.2f}}
nats, a little above the {{ order_floor:.2f}} that the heap allows. A second layer gets below that floor, to
{{ order_task_loss_without_two:.2f}}, with what the mask gives away. It is still right only {{ order_task_right_without_two:.0%}} of
the time.

What did the first model learn? Its single head shows it.
"""

# %% tags=["hide-input"] alt="A sixteen by sixteen grid of attention weights of the model with positions. From row 3 on, each row is dark in one cell, the one three columns left of the diagonal, so that the dark cells form a straight line parallel to the diagonal. The first three rows have no token three back: they look at themselves or are spread out." caption="The weights of the head that learned to look three back, on one row of the test. From row 3 on, nearly all weight of row $t$ lies on column $t - 3$."
caught = []
dropout = learned["with"].h[0].attn.attn_dropout  # the weights pass through it
hook = dropout.register_forward_hook(lambda module, given, out: caught.append(out))
learned["with"](test[:200])
hook.remove()
head = caught[0][:, 0]  # (200, T, T)
claim(
    "order_three_back",
    head.diagonal(-back, dim1=1, dim2=2).mean(),
    expected=(0.8, 1.0),
    kind="statistical",
)
fig, ax = display.figure(3.6, 3.4)
display.heatmap(ax, head[0], high=1.0)
ax.set_ylabel("row t: who looks")
ax.set_xlabel("column s: who is looked at")
ax.xaxis.set_label_position("top")
ax.tick_params(labelsize=8)

# %% [markdown]
r"""
On average {{ order_three_back:.0%}} of the weight lies three back. Nobody told it how: it made position vectors and a head that
fit together.

## What happens to samples without positions

Real text is kinder than that task. Many guesses about the next letter need no more than the last letter and the heap before it.
So take two small GPTs with two layers and train both on Shakespeare, from the same seed and on the same batches. One keeps a
position table of zeros. What do you expect of the loss, and of the text?
"""

# %%
from gptbook import data, recipes, sampling

# Page 9 trains this model. Where it is not kept yet, this line takes minutes, once.
trained = recipes.trained("step-5", show=True)
tokenizer = trained.tokenizer
tokens = torch.tensor(tokenizer.encode(trained.corpus.text))  # (N,)
train, validation = data.split(tokens)


def within(low, high):
    """Bounds for a number of this text; nothing is known of another text's."""
    return (low, high) if trained.corpus.name == "tinyshakespeare" else None


shape = {"vocab_size": 65, "block_size": 16, "n_layer": 2, "n_head": 4, "n_embd": 64}
losses, texts = {}, {}
for positions in (True, False):
    m = make(positions=positions, **shape)
    optimizer = trainer.make_optimizer(m, trainer.TrainConfig())
    random = torch.Generator().manual_seed(1)
    for _ in range(400):
        xs, ys = data.get_batch(train, 16, 32, random)  # (B, T) each
        trainer.update(m, optimizer, xs, ys, learning_rate=3e-3)
    losses[positions] = trainer.evaluate(m, validation).loss
    start = torch.tensor([tokenizer.encode("\n")]).repeat(8, 1)  # (8, 1)
    written = sampling.generate(m, start, 250, generator=random)  # (8, 251)
    texts[positions] = [tokenizer.decode(row[1:]) for row in written]

gap = losses[False] - losses[True]
claim("order_text_with", losses[True], expected=within(2.0, 2.4), kind="statistical")
claim("order_text_gap", gap, expected=within(0.05, 0.3), kind="statistical")
print(f"with positions:    validation loss {losses[True]:.3f} nats")
print(f"without positions: validation loss {losses[False]:.3f} nats")

# %%
display.sample(texts[True][0], label="With positions")

# %%
display.sample(texts[False][0], label="Without positions")

# %% [markdown]
r"""
The gap is {{ order_text_gap:.2f}} nats. That is far from the ruin of the invented task, and it has two reasons: the mask, and a text
in which the nearest past says most. But look at the words. Without positions, many are letters that could belong
together, in an order that they never have. Count it: how many of the words in eight such
samples occur in Shakespeare at all? A word is what stands between two blanks.
"""

# %%
known = set(trained.corpus.text.lower().split())
real = {}
for positions in (True, False):
    words = " ".join(texts[positions]).lower().split()
    real[positions] = sum(word in known for word in words) / len(words)
claim(
    "order_words_gap",
    real[True] - real[False],
    expected=within(0.05, 1),
    kind="statistical",
)
print(f"with positions:    {real[True]:.0%} of the words occur in Shakespeare")
print(f"without positions: {real[False]:.0%}")

# %% [markdown]
r"""
## What the trained model learned

Page 9 trains the book's small model. Its {{ order_places }} position vectors can be compared in pairs. The **cosine** of two vectors
is their dot product divided by both lengths: 1 for the same direction, 0 for a right angle, negative for opposite ones. The
training kept a copy from before the first step, so we can also see what training added.
"""

# %%
trained.model.requires_grad_(False)
after = trained.model.wpe.weight  # (64, 128)
before = next(m for step, m in trained.snapshots() if step == 0).wpe.weight.detach()
claim("order_places", len(after))


def cosines(vectors):
    unit = F.normalize(vectors, dim=1)  # (64, 128)
    return unit @ unit.T  # (64, 64)


def mean_at(matrix, low, high):
    """The mean over all pairs of places whose distance is low to high."""
    return torch.cat([matrix.diagonal(d) for d in range(low, high + 1)]).mean()


learned_cosines, added_cosines = cosines(after), cosines(after - before)
kept = F.cosine_similarity(before, after, dim=1).mean()
near, far = mean_at(added_cosines, 1, 8), mean_at(added_cosines, 48, 63)
claim("order_kept", kept, expected=within(0.95, 1.0), kind="statistical")
claim("order_added_near", near, expected=within(0.03, None), kind="statistical")
claim("order_added_far", far, expected=within(None, -0.1), kind="statistical")
print(f"a vector and its own start, mean cosine     {kept:.3f}")
print(f"what training added, places at most 8 apart {near:+.2f}")
print(f"what training added, 48 or more apart       {far:+.2f}")

# %% tags=["hide-input"] alt="Two grids of cosines between the 64 position vectors. Left, of the vectors themselves: a strong diagonal on an even ground near zero. Right, of what training added to them: two blocks along the diagonal, the earlier and the later half of the window, in which the cosines are mostly positive, and mostly negative ones between the two." caption="Cosines between places, blue above zero and red below. Left, the vectors of the trained model: nearly all pairs stand at right angles. Right, what training added to them: near places mostly moved in like directions, far ones in opposite ones."
fig, axes = display.figure(5.2, 2.9, columns=2)
for ax, matrix, title in zip(
    axes,
    (learned_cosines, added_cosines),
    ("the vectors", "what training added"),
    strict=True,
):
    display.heatmap(ax, matrix, low=-0.5, high=0.5)
    ax.set_xticks([0, 16, 32, 48, 63])
    ax.set_yticks([0, 16, 32, 48, 63])
    ax.set_xlabel(title)
bar = fig.colorbar(axes[1].images[0], ax=axes, shrink=0.7, ticks=[-0.5, 0, 0.5])
bar.outline.set_visible(False)

# %% [markdown]
r"""
The left picture is a surprise: there is next to no pattern in it. The vectors began as random ones. In so many channels random
vectors stand nearly at right angles, so they were {{ order_places }} clear labels before any training. Training turned them only a little:
the cosine of a vector with its own start is still {{ order_kept:.3f}}. The rest of the model learned to read the labels that it was
given. What little was added does have a shape: on average, places near each other were moved alike, with a mean cosine of
{{ order_added_near:.2f}}, and far ones apart, with {{ order_added_far:.2f}}.

Does the model use them? Give the places each other's vectors, and measure the loss at each place of the window. Or
set all to zero.
"""

# %%
windows = list(data.windows(validation[:19_201], 64, 64))  # all of them full


def loss_by_place(model):
    total = [
        F.cross_entropy(model(a).transpose(1, 2), b, reduction="none")
        for a, b in windows
    ]
    return torch.cat(total).mean(dim=0)  # (T,)


shuffled, zeroed = copy.deepcopy(trained.model), copy.deepcopy(trained.model)
order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
shuffled.wpe.weight.copy_(after[order])
zeroed.wpe.weight.zero_()
by_place = {
    "as trained": loss_by_place(trained.model),
    "shuffled": loss_by_place(shuffled),
    "zero": loss_by_place(zeroed),
}
mean = {name: there.mean() for name, there in by_place.items()}
claim(
    "order_trained", mean["as trained"], expected=within(1.5, 2.0), kind="statistical"
)
for name in ("shuffled", "zero"):
    claim(f"order_{name}", mean[name], expected=within(2.5, None), kind="statistical")
claim("order_place_first", by_place["as trained"][0], kind="statistical")
claim("order_place_late", by_place["as trained"][-32:].mean(), kind="statistical")
for name in by_place:
    print(f"{name:10}  mean loss {mean[name]:.2f} nats")

# %% tags=["hide-input"] alt="Three curves of loss over the place in the window. As trained, the loss falls steeply over the first few places and then stays low and level. With zero position vectors it falls for a few places and then climbs. With shuffled ones it jumps up within a few places and stays high." caption="Loss by place, on a part of the validation text. The trained model gains from more context. With zero positions the loss falls for a few places and then climbs. With shuffled ones it jumps up at once and stays there."
fig, ax = display.figure(5.2, 2.7)
styles = ((display.BLUE, "-"), (display.RED, "--"), (display.ORANGE, ":"))
for (name, losses_there), (colour, style) in zip(by_place.items(), styles, strict=True):
    ax.plot(losses_there, color=colour, linestyle=style, label=name)
ax.set_xlabel("place in the window")
ax.set_ylabel("loss (nats)")
ax.set_ylim(bottom=0)
ax.legend(title="position vectors", fontsize=8, title_fontsize=8)

# %% [markdown]
r"""
It does. The mean loss goes from {{ order_trained:.2f}} to {{ order_shuffled:.2f}} with shuffled vectors and to {{ order_zero:.2f}}
with none. The lowest curve says one more thing. At place 0 the model has a single token to go by, and pays {{ order_place_first:.2f}}
nats. In the second half of the window it pays {{ order_place_late:.2f}}. A loss is an average over easy and hard places.

A caution: this measures what a model loses that was *trained with* positions. The model trained without them, above, did
much better than this one with zeros.

## Checks

Rerun these when you change a function. The first asks that the head without a mask follows any order. The second, that with
positions it does not. The third, that the order of the past does not reach the last row of a masked average.
"""

# %%
running = torch.ones(6, 6).tril() / torch.arange(1, 7)[:, None]  # (T, T)
fresh = torch.randn(6, 2, generator=torch.Generator().manual_seed(7))  # (T, C)
places = torch.randn(6, 2, generator=torch.Generator().manual_seed(8))  # (T, C)
for order in ([1, 0, 2, 3, 4, 5], [4, 3, 2, 1, 0, 5], [2, 4, 1, 0, 3, 5]):
    torch.testing.assert_close(attend(fresh[order]), attend(fresh)[order])
    moved = (attend(fresh[order] + places) - attend(fresh + places)[order]).abs().max()
    assert moved > 0.01
    torch.testing.assert_close((running @ fresh[order])[5], (running @ fresh)[5])
print("three orders, three checks, all passed")

# %% [markdown]
r"""
## Your turn

### 1. Add the places

*About five minutes.* Write `with_positions(idx, wte, wpe)`. It gets tokens `idx` of shape $(B, T)$, the token table `wte` of
shape $(V, C)$, and a position table `wpe` which may have more rows than $T$. It returns the stream of shape $(B, T, C)$: for each
token its row of `wte` plus the row of `wpe` for its place, counted from 0 in each row of the batch. It leaves the tables as
they are.

??? tip "Hint"

    `wte[idx]` looks up a whole batch at once. For the places you need the first $T$ rows of `wpe`. PyTorch adds a $(T, C)$ to
    each row of a $(B, T, C)$ by itself.

Check yours with `exercises.check("add-positions", with_positions)`.
"""

# %% tags=["solution"]
from gptbook import exercises


def with_positions(idx, wte, wpe):
    return wte[idx] + wpe[: idx.size(1)]  # (B, T, C)


exercises.check("add-positions", with_positions)

# %% [markdown]
r"""
### 2. Is it blind?

*About fifteen minutes.* Write `order_blind(attention)`. It gets a function from $(B, T, C)$ to $(B, T, C)$, for any number of
tokens, and returns `True` if the function is permutation equivariant and `False` if not. It must catch a function that treats
only a single place differently. And it must not accuse a blind function because of rounding, which may also differ from call to
call. For inputs of size about 1, differences above a hundredth are real.

??? tip "Hint"

    Compute `attention(x[:, order])`, and compare it with the output of `attention(x)` in the same order. One order is too
    few: try several random ones, of six tokens or more. Compare with `torch.allclose` and a tolerance.

Check yours with `exercises.check("order-blind", order_blind)`.
"""


# %% tags=["solution"]
def order_blind(attention):
    random = torch.Generator().manual_seed(1)
    x = torch.randn(2, 8, 3, generator=random)  # (B, T, C)
    before = attention(x)
    for _ in range(10):
        order = torch.randperm(8, generator=random)
        if not torch.allclose(attention(x[:, order]), before[:, order], atol=1e-4):
            return False
    return True


exercises.check("order-blind", order_blind)

# %% [markdown]
r"""
### 3. Look one back

*About fifteen minutes.* Let the vector of place $t$ be **one-hot**: $T$ numbers, a 1 in column $t$, zeros elsewhere. All
together they are the identity matrix, so the queries of all places are $W_q$ itself and the keys are $W_k$. Write
`previous(T)`, which returns two matrices `Wq` and `Wk` of shape $(T, T)$, such that

$$ \operatorname{softmax}\bigl(\operatorname{mask}(W_q W_k^{\mathsf T} / \sqrt{T})\bigr), $$

with the causal mask, gives every place from 1 on a weight of at least $0.99$ for the place before it. All entries must be
finite. It must work for any $T$ from 2 to 64. (Other widths $D$ than $T$ are welcome too: then the scores are divided by
$\sqrt{D}$.)

??? tip "Hint"

    Score $(t, s)$ is row $t$ of `Wq` times row $s$ of `Wk`. Let `Wk` be the identity. Then `Wq` holds the scores, up to the
    division: where in row $t$ must the large number stand? `torch.eye(T).roll(-1, dims=1)` is a start. How large? $e$ to the
    difference of two scores is the ratio of their weights.

Check yours with `exercises.check("previous-token", previous)`.
"""


# %% tags=["solution"]
def previous(T):
    Wk = torch.eye(T)  # (T, T)
    Wq = 20 * math.sqrt(T) * torch.eye(T).roll(-1, dims=1)  # (T, T): row t asks for t-1
    return Wq, Wk


exercises.check("previous-token", previous)

# %% [markdown]
r"""
## What this page left out

How positions are computed rather than learned, and what a model does with texts longer than its table. Also the reasons
why training hardly moved the vectors, which lie in how they were drawn. All parts are now on the table:
[the next page](08_gpt.py) assembles the GPT.
"""
