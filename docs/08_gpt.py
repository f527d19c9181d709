# %% [markdown]
r"""
# Assembling and verifying the GPT

The whole model is a hundred lines, every one of its {{ parameters:,}} parameters is accounted for, and a handful of checks
tell a right model from one that merely runs.

A GPT that is wrong rarely crashes. Its loss falls, it writes text, and it is a little worse than it should be, for reasons
that nobody sees. So this page does two things. It puts the parts together. Then it asks the result questions that a wrong
model answers wrongly.

## What goes in, what comes out

A GPT maps token ids of shape $(B, T)$ to logits of shape $(B, T, V)$: at every position, one score for each symbol that
could come next. In between runs the residual stream of shape $(B, T, C)$. Every layer reads it and adds something to it.

Here is the configuration of this book's own small model.
"""

# %%
import math

import torch
import torch.nn.functional as F

from gptbook import corpora, data, display, verify
from gptbook.claims import claim
from gptbook.model import GPT, Block, CausalSelfAttention, GPTConfig
from gptbook.tokenizers import CharTokenizer

config = GPTConfig(vocab_size=65, block_size=64, n_layer=4, n_head=4, n_embd=128)
V, T, L, H, C = (
    config.vocab_size,
    config.block_size,
    config.n_layer,
    config.n_head,
    config.n_embd,
)

torch.manual_seed(1337)
model = GPT(config)

# %% [markdown]
r"""
The text and its split, as on [page 1](01_text.py), with $V =$ {{ vocab_size }} symbols.
"""

# %%
corpus = corpora.load("tinyshakespeare")
tokenizer = CharTokenizer.train(corpus.text, vocab_size=V)
tokens = torch.tensor(tokenizer.encode(corpus.text))  # (N,)
train, validation = data.split(tokens)
claim("vocab_size", V)

x, y = data.get_batch(train, T, 32, torch.Generator().manual_seed(0))  # (B, T) each
x.shape, y.shape

# %% [markdown]
r"""
## The parts

The forward pass of the GPT reads like a table of contents.
"""

# %%
display.source(GPT.forward)

# %% [markdown]
r"""
1. Look up a vector for each token (`wte`) and one for each position (`wpe`), and add them: [page 7](07_positions.py).
2. Send the stream through $L$ blocks: [page 6](06_block.py).
3. Normalise it once more (`ln_f`), and multiply by the **unembedding** (`lm_head`), a matrix that gives every symbol a score.

A block is two additions. Attention moves information between positions, and the MLP works on each position alone. Both read a normalised copy
of the stream.
"""

# %%
display.source(Block.forward)

# %% [markdown]
r"""
Attention is several [heads](04_head.py) [side by side](05_heads.py), packed into one matrix product. `self.past` is the lower triangle of [page 3](03_averaging.py), made once and kept with the layer.
"""

# %%
display.source(CausalSelfAttention.forward)

# %% [markdown]
r"""
## Four tokens, all the way

Before the real size, a model that fits on paper. The vocabulary has four symbols, the stream two channels. The token embeddings are the four tokens that we have carried since [page 3](03_averaging.py). There is one block with two
heads of width 1. Half of its weights are zero. The first layer of the MLP keeps its random start, and has no effect, because the second is zero. The others are chosen so that you can check every number by hand. The text
that it reads is its four symbols in order: 0, 1, 2, 3.

* Both heads have zero queries and keys, so both take the running mean. Each takes the mean of its own channel, and the projection passes the result on.
* The MLP adds nothing.
* The unembedding gives symbol 0 the first channel, symbol 1 the second, symbol 2 their sum, and symbol 3 twice the first.
"""

# %%
x4 = torch.tensor([[1.0, 0.0], [3.0, 2.0], [2.0, 4.0], [6.0, 2.0]])  # (V, C)
paper = GPT(GPTConfig(vocab_size=4, block_size=4, n_layer=1, n_head=2, n_embd=2))
with torch.no_grad():
    paper.wte.weight.copy_(x4)
    paper.wpe.weight.zero_()
    attn, mlp = paper.h[0].attn, paper.h[0].mlp
    attn.c_attn.weight.zero_()
    attn.c_attn.weight[4:6] = torch.eye(2)  # queries, keys, and here the values
    attn.c_proj.weight.copy_(torch.eye(2))
    attn.c_proj.bias.zero_()
    mlp.c_proj.weight.zero_()
    mlp.c_proj.bias.zero_()
    paper.lm_head.weight.copy_(torch.tensor([[1, 0], [0, 1], [1, 1], [2, 0]]))
    text4 = torch.arange(4)[None]  # (B, T)
    normed = paper.h[0].ln_1(paper.wte(text4))  # (B, T, C)
    means = paper.h[0].attn(normed)  # (B, T, C)
    logits = paper(text4)  # (B, T, V)

for name, rows in (
    ("after the norm", normed),
    ("running means", means),
    ("logits", logits),
):
    print(name)
    for row in rows[0]:
        print("  ", [round(number, 2) for number in row.tolist()])

# %% [markdown]
r"""
Follow the last token, $(6, 2)$. The norm makes $(1, -1)$ of it, as of every row whose first number is the larger. The heads average the four normed rows: $(\frac{1}{2}, -\frac{1}{2})$. The stream is now
$(6.5, 1.5)$. The last norm makes $(1, -1)$ of that again, and the unembedding gives the logits 1, −1, 0, 2. So symbol 3 is the most likely to come next.

How sure is the model of that? Softmax over 1, −1, 0, 2 says: it gives symbol 3 a probability of {{ paper_chance:.0%}}. The model has {{ paper_parameters }} parameters, and the formula below will say so too.
"""

# %%
up, down = [1.0, -1.0, 0.0, 2.0], [-1.0, 1.0, 0.0, -2.0]
by_pencil = torch.tensor([up, up, down, up])  # (T, V)
torch.testing.assert_close(logits[0], by_pencil, rtol=0, atol=1e-4)
chance = F.softmax(logits[0, -1], dim=0)  # (V,)
claim("paper_chance", chance[3], expected=0.6439, tolerance=1e-3, kind="tolerance")
paper_parameters = claim(
    "paper_parameters", sum(p.numel() for p in paper.parameters()), expected=96
)
print([round(p, 3) for p in chance.tolist()], f"from {paper_parameters} parameters")

# %% [markdown]
r"""
## The same thing, by hand

To be sure that we understand every line, compute the logits again, from the raw weights, with nothing but matrix products,
a softmax and a few sums. The heads run one after the other here. The package packs them into one product.
"""


# %%
def layer_norm(x, gain, bias):
    mean = x.mean(dim=-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(
        dim=-1, keepdim=True
    )  # divided by C, not by C - 1
    return (x - mean) / torch.sqrt(variance + 1e-5) * gain + bias  # (..., C)


def gelu(x):
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def attention(w, x):  # x (T, C), one row of text
    T, C = x.shape
    D = C // H
    future = ~torch.ones(T, T, dtype=torch.bool).tril()  # (T, T)
    heads = []
    for h in range(H):
        rows = slice(h * D, (h + 1) * D)
        q, k, v = (
            x @ part[rows].T for part in w["c_attn.weight"].split(C)
        )  # (T, D) each
        scores = (q @ k.T / math.sqrt(D)).masked_fill(future, -math.inf)  # (T, T)
        heads.append(F.softmax(scores, dim=-1) @ v)  # (T, D)
    return torch.cat(heads, dim=-1) @ w["c_proj.weight"].T + w["c_proj.bias"]  # (T, C)


def mlp(w, x):
    hidden = gelu(x @ w["c_fc.weight"].T + w["c_fc.bias"])  # (T, 4C)
    return hidden @ w["c_proj.weight"].T + w["c_proj.bias"]  # (T, C)


def part(weights, prefix):
    return {
        name[len(prefix) :]: value
        for name, value in weights.items()
        if name.startswith(prefix)
    }


def gpt_by_hand(weights, idx):  # idx (T,), one row of text
    stream = weights["wte.weight"][idx] + weights["wpe.weight"][: len(idx)]  # (T, C)
    for layer in range(L):
        w = part(weights, f"h.{layer}.")
        normed = layer_norm(stream, w["ln_1.weight"], w["ln_1.bias"])  # (T, C)
        stream = stream + attention(part(w, "attn."), normed)  # (T, C)
        normed = layer_norm(stream, w["ln_2.weight"], w["ln_2.bias"])  # (T, C)
        stream = stream + mlp(part(w, "mlp."), normed)  # (T, C)
    stream = layer_norm(stream, weights["ln_f.weight"], weights["ln_f.bias"])  # (T, C)
    return stream @ weights["lm_head.weight"].T  # (T, V)


with torch.no_grad():
    by_hand = torch.stack(
        [gpt_by_hand(model.state_dict(), row) for row in x[:4]]
    )  # (4, T, V)
    logits = model(x[:4])  # (4, T, V)

difference = (by_hand - logits).abs().max()
claim("by_hand_difference", difference, expected=0.0, tolerance=1e-5, kind="tolerance")
print(f"largest difference {difference:.1e}")

# %% [markdown]
r"""
The two agree to {{ by_hand_difference:.0e}}, which is rounding: the same sums in another order. What you have just read *is* the model.

## The shape at every stage

Here is the stream after every stage of a forward pass. The last column is its typical size, the root of its mean square.
"""

# %%
stages = verify.shape_table(model, x)
display.table(
    [
        (stage.name, " × ".join(map(str, stage.shape)), f"{stage.rms:.2f}")
        for stage in stages
    ],
    header=("after", "shape", "size"),
)

# %% [markdown]
r"""
The shape never changes on the way. The size hardly grows, because what the blocks add is small at first: we come to that. The
final norm brings it to one.

## Every parameter accounted for

How many numbers does the model learn? Count them by part. A linear layer from $a$ to $b$ has $ab$ weights, and $b$ more if
it has a bias. A LayerNorm over $C$ channels has $2C$.

* **Embeddings**: $V C$ for the tokens and $T C$ for the positions.
* **Attention**, in each block: $3 C^2$ for queries, keys and values, without bias. The output projection has $C^2 + C$.
* **MLP**, in each block: $4 C^2 + 4 C$ up, $4 C^2 + C$ down.
* **LayerNorms**, in each block: two, so $4 C$.
* **The end**: $2 C$ for the last norm, and $V C$ for the unembedding, without bias.
"""

# %%
embeddings = V * C + T * C
attentions = L * (3 * C**2 + C**2 + C)
mlps = L * (4 * C**2 + 4 * C + 4 * C**2 + C)
norms = L * 4 * C
end = 2 * C + V * C
total = embeddings + attentions + mlps + norms + end

counted = sum(p.numel() for p in model.parameters())
assert total == counted == verify.expected_parameters(config)
claim("parameters", counted, expected=816_640)
claim("parameters_embeddings", embeddings, expected=16_512)
claim("parameters_attention", attentions, expected=262_656)
claim("parameters_mlp", mlps, expected=526_848)
claim("parameters_norms", norms, expected=2_048)
claim("parameters_end", end, expected=8_576)

parts = [
    ("embeddings", "VC + TC", embeddings),
    ("attention", "L (4C² + C)", attentions),
    ("MLPs", "L (8C² + 5C)", mlps),
    ("LayerNorms of the blocks", "L · 4C", norms),
    ("final norm and unembedding", "2C + VC", end),
    ("all", "", total),
]
display.table(
    [
        (name, formula, f"{count:,}", f"{count / total:.1%}")
        for name, formula, count in parts
    ],
    header=("part", "formula", "parameters", "share"),
    total=True,
)

# %% tags=["hide-input"] alt="One horizontal bar divided by the share of each part of the model. The MLPs take nearly two thirds, attention nearly one third, and embeddings, norms and unembedding share a thin rest." caption="Where the parameters are. The MLPs hold about twice as many as attention."
fig, ax = display.figure(5.2, 1.4)
left = 0.0
colours = (display.ORANGE, display.BLUE, display.GREEN, display.GREY, display.PURPLE)
for (name, _, count), colour in zip(parts[:-1], colours, strict=True):
    ax.barh(0, count / total, left=left, color=colour, label=name)
    left += count / total
ax.set_xlim(0, 1)
ax.set_yticks([])
ax.xaxis.set_major_formatter("{x:.0%}")
ax.grid(False)
ax.spines["left"].set_visible(False)
fig.legend(ncols=3, loc="outside upper center", fontsize=8)

# %% [markdown]
r"""
People often say that a transformer has $12 L C^2$ parameters. Where does that come from, and what does it leave out?
Attention has $4 C^2$ weights a block and the MLP $8 C^2$. That is twelve. The rest of a block is biases and norms.
"""

# %%
rule = claim("rule_of_thumb", 12 * L * C**2, expected=786_432)
blocks = claim(
    "parameters_blocks", sum(p.numel() for p in model.h.parameters()), expected=791_552
)
claim("parameters_rest", blocks - rule, expected=5_120)
claim("rule_gap", (blocks - rule) / rule)
assert blocks - rule == 10 * L * C
claim(
    "mlp_over_attention",
    mlps / attentions,
    expected=2.0,
    tolerance=0.01,
    kind="tolerance",
)
print(f"12 L C²    {rule:,}")
print(f"blocks     {blocks:,}")
print(f"the rest   {blocks - rule:,} = 10 L C: biases and LayerNorms")

# %% [markdown]
r"""
The blocks hold {{ parameters_blocks:,}} parameters, the rule says {{ rule_of_thumb:,}}, and the {{ parameters_rest:,}} between them are
biases and LayerNorms. For the blocks alone it is off by $10 L C$, a share of about $\frac{10}{12 C}$. That is {{ rule_gap:.1%}} here, and less in wider
models. It also leaves out the embeddings, which are small here and large in models with real vocabularies.

!!! theorem "The parameter formula"

    A GPT as above, with vocabulary $V$, context $T$, $L$ blocks and width $C$, has

    $$ (2V + T + 2)\, C \;+\; L\, (12 C^2 + 10 C) $$

    parameters, whatever the number of heads.

    Tested by `test_parameter_formula`.

??? proof "Proof"

    Add up the list above. Each block has $4C^2 + C$ in attention, $8C^2 + 5C$ in the MLP and $4C$ in its norms, together
    $12 C^2 + 10 C$. Outside the blocks stand $VC + TC$ for the embeddings, $2C$ for the last norm and $VC$ for the
    unembedding, together $(2V + T + 2)\, C$. Heads only divide the $C$ columns of the attention matrices among themselves,
    and do not change their number. $\blacksquare$

The same code makes the other models of this book. `step-5` is the model above. `lets-build` is the small one that page 9 trains.
`under-the-hood` learns the text of this book, on [page 14](14_overfitting.py), and `gpt2` is the smallest GPT-2. The last three differ from the formula, and we can say by
how much.

* `lets-build` has a bias in its unembedding: $V$ more.
* `under-the-hood` and `gpt2` have biases for queries, keys and values: $3C$ more in each block.
* `gpt2` uses its token embedding as unembedding, one matrix for both. It counts once: $VC$ less.
"""

# %%
from gptbook import PRESETS

published = {"step-5": 816_640, "lets-build": 159_937, "gpt2": 124_439_808}
rows = []
for name in ("step-5", "lets-build", "under-the-hood", "gpt2"):
    c = PRESETS[name]
    formula = (2 * c.vocab_size + c.block_size + 2) * c.n_embd
    formula += c.n_layer * (12 * c.n_embd**2 + 10 * c.n_embd)
    more = c.vocab_size * c.head_bias + 3 * c.n_embd * c.n_layer * c.qkv_bias
    more -= c.vocab_size * c.n_embd * c.tied
    count = verify.expected_parameters(c)
    assert count == formula + more
    claim("parameters_" + name.replace("-", "_"), count, published.get(name))
    rows.append((name, f"{formula:,}", f"{more:+,}", f"{count:,}"))
display.table(rows, header=("model", "formula", "difference", "parameters"))

# %% [markdown]
r"""
So `under-the-hood`, with its biased queries, keys and values, has $4C^2 + 4C$ parameters in the attention of a block, and
$8C^2 + 5C$ in the MLP. Count that from the model itself:
"""

# %%
hood = GPT(PRESETS["under-the-hood"])
width = PRESETS["under-the-hood"].n_embd
attention_size = sum(p.numel() for p in hood.h[0].attn.parameters())
mlp_size = sum(p.numel() for p in hood.h[0].mlp.parameters())
claim("hood_attention", attention_size, expected=4 * width**2 + 4 * width)
claim("hood_mlp", mlp_size, expected=8 * width**2 + 5 * width)
print(f"attention {attention_size:,} = 4C² + 4C, MLP {mlp_size:,} = 8C² + 5C")

# %% [markdown]
r"""
## How the weights start

Most layers start as PyTorch makes them. Two in each block do not: the output projections of attention and of the MLP, the
ones that write to the stream. Their weights come from a normal distribution with standard deviation

$$ \sigma = \frac{0.02}{\sqrt{2L}} . $$

There are $2L$ such writers. If each adds independent noise of variance $s^2$, the stream's variance grows by $2L s^2$ in
all. Dividing each writer's $\sigma$ by $\sqrt{2L}$ makes that sum independent of depth. GPT-2 introduced this rule, and we
check that it holds here.
"""

# %%
wanted = 0.02 / math.sqrt(2 * L)
for layer, block in enumerate(model.h):
    for name, projection in (
        ("attention", block.attn.c_proj),
        ("mlp", block.mlp.c_proj),
    ):
        measured = projection.weight.std().item()
        assert abs(measured / wanted - 1) < 0.03, (layer, name, measured)
claim("residual_std", wanted)
print(f"all {2 * L} writers: standard deviation within 3 % of {wanted:.5f}")

# %% [markdown]
r"""
## Check 1: no peeking

Token 20 of 32 changes. Every logit before position 20 must stay as it was. Not nearly: **bitwise**. A hidden position has
weight zero, and zero times anything is zero. So there is no rounding to forgive.
"""

# %%
model.eval()
idx = x[:1, :32]  # (1, 32)
changed = idx.clone()
changed[0, 20] = (changed[0, 20] + 1) % V
with torch.no_grad():
    before, after = model(idx), model(changed)  # (1, 32, V) each

same = (before == after).all(dim=-1)[0]  # (32,): True where not a single bit moved
assert same[:20].all()
assert not same[20:].any()
claim("causal_positions", int(same[:20].sum()), expected=20)
print("unchanged positions:", same.nonzero().flatten().tolist())

# %% [markdown]
r"""
One change is one test. The **leak matrix** does them all: entry $D_{i,j}$ says how much the logits at position $i$ move when
token $j$ changes. A causal model has a triangle. Beside it stands the same model with its mask taken away.
"""

# %%
import copy

unmasked = copy.deepcopy(model)
for block in unmasked.h:
    block.attn.past.fill_(True)  # every position may now read every other

short = x[:1, :16]
leak = verify.leak_matrix(model, short)  # (16, 16)
leak_unmasked = verify.leak_matrix(unmasked, short)  # (16, 16)
future = claim("leak_future", leak.triu(1).max(), expected=0.0)
future_unmasked = claim(
    "leak_future_unmasked",
    leak_unmasked.triu(1).max(),
    expected=(1e-4, None),
    kind="statistical",
)
print(
    f"largest entry above the diagonal: {future} with the mask, {future_unmasked:.4f} without"
)

# %% tags=["hide-input"] alt="Two grids of sixteen by sixteen cells. The left one, of the right model, is empty above its diagonal. The right one, of the model without a mask, is filled on both sides of it." caption="The leak matrix, on a logarithmic scale; the empty cells above the diagonal are exactly zero. Left: the model as it is. Right: without its mask, the future shows."
fig, axes = display.figure(5.2, 3.0, columns=2)
floor = min(leak[leak > 0].min(), leak_unmasked[leak_unmasked > 0].min())
for ax, matrix, title in (
    (axes[0], leak, "causal"),
    (axes[1], leak_unmasked, "without mask"),
):
    shown = torch.where(
        matrix > 0, 2 + (matrix / floor).log10(), 0.0
    )  # zero stays zero
    display.heatmap(ax, shown, title=title)
    ax.set_xticks(range(0, 16, 3), range(0, 16, 3))
    ax.set_yticks(range(0, 16, 3), range(0, 16, 3))
    ax.set_ylabel("logits at position i move ...")
    ax.set_xlabel("... when token j changes")

# %% [markdown]
r"""
With the mask, the largest entry above the diagonal is exactly zero. Without it, the future shows.

!!! theorem "The GPT is causal"

    For any weights, the logits at position $t$ depend on the tokens at positions $0, \dots, t$ only.

    Tested by `test_gpt_is_causal`.

??? proof "Proof"

    By induction over the stages. After the embeddings, row $t$ of the stream depends on token $t$ and on the number $t$.
    So the claim holds there.

    Suppose that it holds before a block. LayerNorm and the MLP treat every row on its own, so they keep it. In attention,
    query $t$ depends on rows up to $t$ by assumption. The mask sets the scores of all $s > t$ to $-\infty$, so their weights
    are zero. The output of row $t$ is a weighted sum of values $s \le t$, with weights made from the scores of $s \le t$
    alone. All of these depend on tokens up to $t$. Adding the result to row $t$ keeps the claim.

    The last norm and the unembedding treat every row on its own again. $\blacksquare$

## Check 2: the first loss

Before training, the model knows nothing. A blind guess over $V$ symbols costs $\ln V$ nats. Our model should start there, or
slightly above.
"""


# %%
def loss_of(model, x, y):
    with torch.no_grad():
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item()


claim("uniform_loss", math.log(V))
initial_loss = claim(
    "initial_loss", loss_of(model, x, y), expected=(4.0, 4.5), kind="statistical"
)
print(f"ln V          {math.log(V):.4f}")
print(f"initial loss  {initial_loss:.4f}")

# %% [markdown]
r"""
Why slightly above? A confident wrong guess costs more than a blind one, and a fresh model is a little confident about
nothing. We can say how much.

The last LayerNorm hands over a vector of squared length $C$. PyTorch fills the unembedding with uniform numbers between
$-\frac{1}{\sqrt{C}}$ and $\frac{1}{\sqrt{C}}$, which have variance $\frac{1}{3C}$. A logit is the product of the two, so its
variance is $C \cdot \frac{1}{3C} = \frac{1}{3}$.

What does that cost? The loss is $\ln \sum_i e^{z_i}$ minus the logit of the right symbol. That logit is zero on average, since the
model knows nothing. For normal $z$ with variance $\sigma^2$, the mean of $e^z$ is $e^{\sigma^2 / 2}$. So $\ln \sum_i e^{z_i}$ is about
$\ln V + \frac{\sigma^2}{2}$, and with $\sigma^2 = \frac{1}{3}$ the loss is about

$$ \ln V + \tfrac{1}{6} . $$

The width cancels. Test it on ten fresh models. Each of them scatters a little round that value.
"""

# %%
excess, variances = [], []
for seed in range(10):
    torch.manual_seed(seed)
    fresh = GPT(config)
    with torch.no_grad():
        fresh_logits = fresh(x)  # (B, T, V)
    variances.append(fresh_logits.var().item())
    excess.append(loss_of(fresh, x, y) - math.log(V))

claim(
    "logit_variance",
    sum(variances) / 10,
    expected=1 / 3,
    tolerance=0.05,
    kind="statistical",
)
claim(
    "loss_excess", sum(excess) / 10, expected=1 / 6, tolerance=0.05, kind="statistical"
)
print(f"variance of the logits   {sum(variances) / 10:.3f}   predicted {1 / 3:.3f}")
print(f"loss above ln V          {sum(excess) / 10:.3f}   predicted {1 / 6:.3f}")

# %% [markdown]
r"""
What this check sees is the *scale* of things: embeddings or an unembedding that start far too large. It does not see a missing
mask or missing positions.

## Check 3: memorise one batch

Give the model the same batch fifty times. If the loss does not at least halve, the gradient does not reach something, or
the **optimizer** is wrong, the rule that changes the parameters. Page 9 explains the one used here.
"""


# %%
def memorise(model, x, y, steps=50, lr=1e-3):
    model = copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    accuracy = (model(x).argmax(dim=-1) == y).float().mean().item()
    return losses, accuracy


xs, ys = x[:4, :32], y[:4, :32]  # (4, 32) each: one small batch
losses, accuracy = memorise(model, xs, ys)
claim(
    "memorise_ratio", losses[-1] / losses[0], expected=(None, 0.5), kind="statistical"
)
claim("memorise_accuracy", accuracy, kind="statistical")
print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}, right answers {accuracy:.0%}")

# %% [markdown]
r"""
It passes: only {{ memorise_ratio:.1%}} of the loss is left. Now the uncomfortable part. Let three broken models take the same
test. The first has no mask. The second has no positions. In the third, each MLP has lost its activation.
"""

# %%
no_positions = copy.deepcopy(model)
no_positions.wpe.weight.data.zero_()
no_positions.wpe.weight.requires_grad_(False)
no_activation = copy.deepcopy(model)
for block in no_activation.h:
    block.mlp.activation = lambda x: x

broken = {
    "right": model,
    "no mask": unmasked,
    "no positions": no_positions,
    "no activation": no_activation,
}
results = {name: memorise(m, xs, ys) for name, m in broken.items()}
for name, (losses, _) in results.items():
    claim(
        "memorise_" + name.replace(" ", "_"),
        losses[-1] / losses[0],
        expected=(None, 0.5),
        kind="statistical",
    )
display.table(
    [
        (name, f"{losses[0]:.2f}", f"{losses[-1]:.2f}", f"{accuracy:.0%}")
        for name, (losses, accuracy) in results.items()
    ],
    header=("model", "loss at first", "after 50 steps", "right answers"),
)

# %% tags=["hide-input"] alt="Four curves of loss over fifty steps of memorising one batch. All fall from above four nats to nearly zero. The model without positions is slower in the middle, the others stay close together." caption="Memorising one batch. All four models pass. One curve is slower, but nothing says that it is a broken one."
fig, ax = display.figure(5.2, 2.7)
styles = zip(
    results.items(),
    (display.BLUE, display.RED, display.ORANGE, display.GREEN),
    ("-", "--", "-.", ":"),
    strict=True,
)
for (name, (losses, _)), colour, style in styles:
    ax.plot(losses, color=colour, linestyle=style, label=name)
ax.set_xlabel("step")
ax.set_ylabel("loss (nats)")
ax.set_ylim(bottom=0)
ax.legend()

# %% [markdown]
r"""
All four pass. A batch can be learned by heart in many ways, and a model that peeks at the answers has an easy time. So read
this check for what it says: *gradients arrive and the optimizer moves*. It says nothing about the mask, about positions, or
about what the MLP computes. Other checks ask about these, and they come next.

## All checks in one call

`verify.check_model` takes any PyTorch model that maps token ids to logits, yours too. It works on a copy. It asks the easy
questions first, because a model with a `nan` in it, or with dropout left on, would make the later answers meaningless.
"""

# %%
report = verify.check_model(model, vocab_size=V, block_size=T, expect=config)
assert report.passed, str(report)
claim("checks_passed", sum(result.status == "passed" for result in report.results))
report

# %% [markdown]
r"""
*Passed* means that these questions were answered well, and no more. What is a check worth that passes everything? So it is given broken
models next. [Check your own GPT](check.py) shows all that the package has, and how to check yours.

## Bug hunt

Here are nine suspects. Each is a small GPT with one mistake that people make.
"""

# %%
import inspect
import random

from gptbook.verify import broken as broken_models

SUSPECTS = {
    "mask-one-ahead": "each position also reads the next token",
    "scaled-by-the-width": "scores are divided by the root of C, not of D",
    "norm-over-the-batch": "LayerNorm takes its mean over the rows of the batch",
    "positions-not-added": "the position table exists, and is never added",
    "no-activation": "nothing stands between the two layers of the MLP",
    "post-norm": "the norms stand after the additions, on the stream itself",
    "blocks-in-a-list": "the blocks are kept in a Python list",
    "last-block-skipped": "the last block is there, and never called",
    "head-drawn-wide": "the unembedding starts fifty times too large",
}
makers = {m.name: m.wrong for m in broken_models.MISTAKES if m.name in SUSPECTS}
hunted = random.Random(8).sample(list(SUSPECTS), len(SUSPECTS))
suspects = {}
for number, name in enumerate(hunted, 1):
    claim(f"hunt_{number}", f"{SUSPECTS[name]} ({name})")
    torch.manual_seed(number)
    suspects[name] = verify.check_model(
        makers[name](),
        broken_models.V,
        broken_models.T,
        expect=broken_models.CONFIG,
    )
    assert not suspects[name].passed, name
display.table(list(SUSPECTS.items()), header=("suspect", "what it does"))

# %% [markdown]
r"""
And here is what failed, without the names. Which number is which suspect? Write down your nine guesses before you read on.
"""

# %% tags=["hide-input"]
display.table(
    [
        (number, ", ".join(suspects[name].failed))
        for number, name in enumerate(hunted, 1)
    ],
    header=("number", "failed"),
)


# %% [markdown]
r"""
Stuck? In a notebook, pick a number, and look at the lines of the package that break that model. Here is number 1.
"""


# %% tags=["hide-input"]
def look(number):
    fault = [*makers[hunted[number - 1]].args, "post-norm"][0]
    lines = inspect.getsource(broken_models).split("MISTAKES = (")[0].splitlines()
    for i, line in enumerate(lines):
        if f'"{fault}"' in line:
            print(line.strip())
            indent = len(line) - len(line.lstrip())
            for below in lines[i + 1 :] if line.endswith(":") else ():
                if len(below) - len(below.lstrip()) <= indent:
                    break
                print("    " + below.strip())


# %%
look(1)

# %% [markdown]
r"""
??? success "Who is who"

    1. {{ hunt_1 }}
    2. {{ hunt_2 }}
    3. {{ hunt_3 }}
    4. {{ hunt_4 }}
    5. {{ hunt_5 }}
    6. {{ hunt_6 }}
    7. {{ hunt_7 }}
    8. {{ hunt_8 }}
    9. {{ hunt_9 }}

Now by name. Which check sees which?
"""

# %% tags=["hide-input"]
asked = [r.name for r in report.results]
asked = [name for name in asked if any(name in r.failed for r in suspects.values())]
asked += [name for name in ("memorise",) if name not in asked]
seen_by = {name: sum(name in r.failed for r in suspects.values()) for name in asked}
assert max(seen_by.values()) == 2
display.matrix(
    rows=[name.replace("-", " ") for name in SUSPECTS],
    columns=asked,
    cells=[[suspects[name][check].status for check in asked] for name in SUSPECTS],
    caption="Suspects against checks. ✗ failed, · passed, – not checked.",
)

# %% [markdown]
r"""
No check sees more than two of them. That is why there are so many.

Some crosses need a word. PyTorch does not look into a Python list. The blocks in it are called, but nobody counts their parameters, and no
optimizer gets them. And a block that is never called gets no gradient.

Look at the last column. It is check 3: fifty steps on one batch.
"""

# %%
memorised = {name: found["memorise"] for name, found in suspects.items()}
passing = [name for name, result in memorised.items() if result.passed]
claim("hunt_models", len(suspects), expected=9)
claim("hunt_memorised", len(passing), expected=(7, 9), kind="statistical")
assert {"mask-one-ahead", "positions-not-added", "no-activation"} <= set(passing)
display.table(
    [(name, memorised[name].status, memorised[name].measured) for name in SUSPECTS],
    header=("suspect", "memorise", "loss, right answers"),
)

# %% [markdown]
r"""
{{ hunt_memorised }} of {{ hunt_models }} broken models learn the batch by heart. A model may look ahead, forget the order of its tokens, or leave out
a layer: a few dozen answers find room in what is left. So a loss that falls is no sign that a model is right.

## Before training

What does an untrained GPT write? Three hundred characters, with a fixed seed, one at a time: read the last $T$ tokens, turn
the last logits into probabilities, draw one symbol, append it.
"""

# %%
from gptbook.sampling import generate

start = torch.tensor([tokenizer.encode("\n")])  # (1, 1)
written = generate(
    model, start, max_new_tokens=300, generator=torch.Generator().manual_seed(1337)
)  # (1, 301)
text = tokenizer.decode(written[0, 1:])
claim("before_sample_length", len(text), expected=300)
display.sample(text, label="Before training")

# %% [markdown]
r"""
Gibberish, as it should be. Keep it in mind for [the next page](09_training.py), where the same model trains.

## Your turn

### 1. Count before you build

*About ten minutes.* Write `count(vocab_size, block_size, n_layer, n_embd)` for the model of this page, without looking at the
formula.

??? tip "Hint"

    Go through the list of parts. Which linear layers have a bias? How many LayerNorms are there in all?

Check yours with `exercises.check("count-parameters", count)`.
"""

# %% tags=["solution"]
from gptbook import exercises


def count(vocab_size, block_size, n_layer, n_embd):
    embeddings = (vocab_size + block_size) * n_embd
    attention = 3 * n_embd**2 + n_embd * (n_embd + 1)
    mlp = 4 * n_embd * (n_embd + 1) + n_embd * (4 * n_embd + 1)
    norms = 2 * 2 * n_embd
    return (
        embeddings
        + n_layer * (attention + mlp + norms)
        + 2 * n_embd
        + vocab_size * n_embd
    )


exercises.check("count-parameters", count)

# %% [markdown]
r"""
### 2. Predict the first loss

*About ten minutes.* GPT-2 draws its unembedding from a normal distribution with standard deviation `std`. Write
`loss(vocab_size, n_embd, std)`: the loss that a fresh model should show, in nats, for small `std`.

??? tip "Hint"

    Follow the argument of check 2, with another variance for the entries of the unembedding.

Check yours with `exercises.check("initial-loss", loss)`.
"""


# %% tags=["solution"]
def loss(vocab_size, n_embd, std):
    return math.log(vocab_size) + n_embd * std**2 / 2


exercises.check("initial-loss", loss)

# %% [markdown]
r"""
### 3. As wide as it goes

*About ten minutes.* You may spend a million parameters, on two layers with four heads. How wide can the model be, with the
vocabulary and the context of this page? The width must be a multiple of the number of heads.

??? tip "Hint"

    Try widths in steps of four, and ask `verify.expected_parameters`. Or solve the quadratic.

Check yours with `exercises.check("largest-width", n_embd)`.
"""

# %% tags=["solution"]
n_embd = max(
    width
    for width in range(4, 1000, 4)
    if verify.expected_parameters(GPTConfig(n_layer=2, n_head=4, n_embd=width))
    <= 1_000_000
)
print(n_embd)
exercises.check("largest-width", n_embd)

# %% [markdown]
r"""
## What this page left out

Dropout, which is off in all of this, and the reasons for four layers and not six. Also how the checks look *inside* a model whose code
they have never seen, and [what they are blind to](check.py).
Next, the model learns: [training](09_training.py).
"""
