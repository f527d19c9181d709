# %% [markdown]
r"""
# Break it on purpose

A broken GPT need not have a bad loss. Of six that we break on purpose, one has by far the best loss of all and cannot write
a word, and two more look better than the right one.

A part of a machine is understood when you know what happens without it. So take the GPT of [page 8](08_gpt.py) and remove one
part at a time: the mask, the positions, the residual additions, the norms, the scale of the scores. A sixth change moves the
norms to another place. This is called **ablation**. Everything else stays as it was: the seed, the batches, the number of steps.

## Four tokens that look ahead

First the most famous fault, on the four tokens. At each place the model must say which token comes next. So the target of row $t$
is token $t + 1$. Suppose that the mask is missing, and that a head gives all its weight to the place after its own.
"""

# %%
import copy
import math
from dataclasses import replace

import torch
import torch.nn as nn
import torch.nn.functional as F

from gptbook import corpora, data, display, ladder, sampling, trainer, verify
from gptbook.claims import claim
from gptbook.model import GPT, Block, GPTConfig
from gptbook.tokenizers import CharTokenizer

x4 = torch.tensor([[1.0, 0.0], [3.0, 2.0], [2.0, 4.0], [6.0, 2.0]])  # (T, C)
ahead = torch.tensor([[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1]])  # (T, T)
ahead.float() @ x4  # (T, T) @ (T, C) -> (T, C)

# %% [markdown]
r"""
Rows 0 to 2 now hold $[3, 2]$, $[2, 4]$ and $[6, 2]$. Each is the very token that the row should predict. Nothing is left to guess:
read it off. Only row 3 gets nothing from this, because no token stands behind it. Remember that row.

## One model, one budget

Here is the right model, a small one, and how all seven are trained. The names are those of pages 8 and 9.
"""

# %%
config = GPTConfig(vocab_size=65, block_size=32, n_layer=4, n_head=4, n_embd=64)
training = trainer.TrainConfig(
    batch_size=12,
    steps=500,
    learning_rate=3e-3,
    warmup_steps=50,
    schedule="cosine",
    eval_every=50,
    seed=1,
)
V, T, L, H, C = 65, 32, 4, 4, 64
claim("broken_steps", training.steps)

corpus = corpora.load("tinyshakespeare")
tokenizer = CharTokenizer.train(corpus.text, vocab_size=V)
tokens = torch.tensor(tokenizer.encode(corpus.text))  # (N,)
train, validation = data.split(tokens)
held_out = validation[: 200 * T + 1]  # a stretch that is quick to measure
claim("broken_held_out", len(held_out) - 1)
rungs = ladder.ladder(tokens, tokenizer)
rung = {rung.name: rung.loss for rung in rungs}
known = corpus.name == "tinyshakespeare"


def within(low, high):
    """Bounds for a number of this text; nothing is known of another text's."""
    return (low, high) if known else None


def fresh(config=config):
    torch.manual_seed(training.seed)
    return GPT(config)


# %% [markdown]
r"""
## Six changes

Each change is a function. It gets a fresh GPT, breaks it, and hands it back. All seven models begin with the same weights.

**No mask.** The buffer `past` is true where a place may be read. Now every place may be read.
"""


# %%
def no_mask(model):
    for block in model.h:
        block.attn.past.fill_(True)
    return model


# %% [markdown]
r"""
**No positions.** The table holds zeros, and stays as it is.
"""


# %%
def no_positions(model):
    nn.init.zeros_(model.wpe.weight).requires_grad_(False)
    return model


# %% [markdown]
r"""
**No residual.** What a layer writes takes the place of the stream, where it was added before. This needs another `forward`, so it is a
subclass of the block.
"""


# %%
class NoResidual(Block):
    def forward(self, x):
        x = self.attn(self.ln_1(x))  # (B, T, C)
        return self.mlp(self.ln_2(x))  # (B, T, C)


def with_blocks(model, kind):
    for layer, block in enumerate(model.h):
        model.h[layer] = kind(model.config)
        model.h[layer].load_state_dict(block.state_dict())  # the same weights
    return model


def no_residual(model):
    return with_blocks(model, NoResidual)


# %% [markdown]
r"""
**No LayerNorm.** `nn.Identity` returns what it gets.
"""


# %%
def no_layernorm(model):
    for block in model.h:
        block.ln_1, block.ln_2 = nn.Identity(), nn.Identity()
    model.ln_f = nn.Identity()
    return model


# %% [markdown]
r"""
**No scale.** The code divides the scores by $\sqrt{D}$. A hook multiplies the queries by $\sqrt{D}$ before that, and nothing is left
of the division.
"""


# %%
def no_scale(model):
    def louder(layer, given, qkv):
        q, k, v = qkv.chunk(3, dim=-1)  # (B, T, C) each
        D = model.config.n_embd // model.config.n_head
        return torch.cat((q * math.sqrt(D), k, v), dim=-1)

    for block in model.h:
        block.attn.c_attn.register_forward_hook(louder)
    return model


# %% [markdown]
r"""
**Post-norm.** The norm stands on the stream, after the addition ([page 6](06_block.py)).
"""


# %%
class PostNorm(Block):
    def forward(self, x):
        x = self.ln_1(x + self.attn(x))  # (B, T, C)
        return self.ln_2(x + self.mlp(x))  # (B, T, C)


def post_norm(model):
    return with_blocks(model, PostNorm)


changes = {
    "right": lambda model: model,
    "no mask": no_mask,
    "no positions": no_positions,
    "no residual": no_residual,
    "no LayerNorm": no_layernorm,
    "no scale": no_scale,
    "post-norm": post_norm,
}
models = {name: change(fresh()) for name, change in changes.items()}

# %% [markdown]
r"""
Did each change do what it says, and nothing else? The weights are the same in all seven, bit for bit, apart from what is gone. And each
change leaves a mark that can be computed.
"""

# %%
start = fresh().state_dict()
for name, model in models.items():
    for key, weights in model.state_dict().items():
        gone = name == "no positions" and key == "wpe.weight"
        assert gone or torch.equal(weights, start[key])

learned = {
    name: sum(p.numel() for p in m.parameters() if p.requires_grad)
    for name, m in models.items()
}
for name in ("no mask", "no residual", "no scale", "post-norm"):
    assert learned[name] == learned["right"]
assert learned["right"] == verify.expected_parameters(config)
assert learned["right"] - learned["no positions"] == T * C
assert learned["right"] - learned["no LayerNorm"] == (4 * L + 2) * C

random = torch.Generator().manual_seed(0)
stream = torch.randn(2, T, C, generator=random)  # (B, T, C)


def silenced(block):
    """The block, with both layers writing nothing."""
    block = copy.deepcopy(block).requires_grad_(False)
    for layer in (block.attn, block.mlp):
        layer.c_proj.weight.zero_(), layer.c_proj.bias.zero_()
    return block


def attention_by_pytorch(attn, scale=None):
    """What PyTorch's own function makes of the stream, with these weights."""
    parts = F.linear(stream, attn.c_attn.weight).chunk(3, dim=-1)  # (B, T, C) each
    q, k, v = (part.view(2, T, H, C // H).transpose(1, 2) for part in parts)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    return attn.c_proj(y.transpose(1, 2).flatten(2))  # (B, T, C)


with torch.no_grad():
    assert all(block.attn.past.all() for block in models["no mask"].h)

    one = models["no positions"](torch.ones(1, T, dtype=torch.long))[0]  # (T, V)
    torch.testing.assert_close(one, one[:1].expand(T, V))  # no place is known

    assert not silenced(models["no residual"].h[0])(stream).any()  # no path is left

    attn = models["no scale"].h[0].attn
    torch.testing.assert_close(attn(stream), attention_by_pytorch(attn, scale=1.0))

    rows = models["post-norm"].h[0](stream)  # (B, T, C)
    torch.testing.assert_close(rows.mean(dim=-1), torch.zeros(2, T), rtol=0, atol=1e-5)
    variance = rows.var(dim=-1, unbiased=False)  # (B, T)
    torch.testing.assert_close(variance, torch.ones(2, T), rtol=0, atol=1e-3)
display.table(
    [(name, f"{count:,}") for name, count in learned.items()],
    header=("model", "parameters that learn"),
)

# %% [markdown]
r"""
## Seven runs

Now train them, with the loop of [page 9](09_training.py), on the same batches. Before you look: which of the six will end with the worst
loss, and which with the best?
"""

# %%
history = {}
for name, model in models.items():
    history[name] = trainer.train(model, train, held_out, training).history
    model.eval().requires_grad_(False)

last = {name: rows[-1] for name, rows in history.items()}
loss = {name: row["val_loss"] for name, row in last.items()}
gap = {name: value - loss["right"] for name, value in loss.items()}
display.table(
    [
        (
            name,
            f"{row['train_loss']:.2f}",
            f"{row['val_loss']:.2f}",
            f"{gap[name]:+.2f}",
        )
        for name, row in last.items()
    ],
    header=("model", "training", "validation", "against the right one"),
)

# %% tags=["hide-input"] alt="Two panels of loss over the steps of training, on the loss ladder. Above, all seven models: the one without a mask falls to nearly zero within a hundred or so steps, the one without residual additions stays on the unigram line, the other five fall together below the bigram line. Below, these five closer up: they lie within a few tenths of a nat of each other, lowest the one without LayerNorm, highest the one without positions." caption="Validation loss (thick) and training loss (thin), on the loss ladder. Above, all seven. Below, the five that lie together, closer up."
looks = {
    "right": (display.BLUE, "-"),
    "no mask": (display.RED, "--"),
    "no positions": (display.ORANGE, "-."),
    "no residual": (display.GREY, "--"),
    "no LayerNorm": (display.GREEN, "--"),
    "no scale": (display.RED, ":"),
    "post-norm": (display.PURPLE, "-."),
}
fig, axes = display.figure(5.2, 6.2, rows=2)
close = [name for name in models if name not in ("no mask", "no residual")]
for ax, names in zip(axes, (models, close), strict=True):
    for name in names:
        colour, style = looks[name]
        steps = [row["step"] for row in history[name]]
        for key, width in (("val_loss", 1.8), ("train_loss", 0.7)):
            label = name if key == "val_loss" else None
            losses = [row[key] for row in history[name]]
            ax.plot(
                steps,
                losses,
                color=colour,
                linestyle=style,
                linewidth=width,
                label=label,
            )
    ax.set_ylabel("loss (nats)")
display.rungs(axes[0], rungs)
axes[0].set_ylim(bottom=0)
axes[1].set_ylim(2.0, 2.7)
axes[1].set_xlim(left=100)
display.rungs(axes[1], [rung for rung in rungs if 2.0 < rung.loss < 2.7])
axes[1].set_xlabel("step")
fig.legend(
    *axes[0].get_legend_handles_labels(),
    ncols=3,
    loc="outside upper center",
    fontsize=8,
)

# %%
claim("broken_right", loss["right"], within(1.8, rung["bigram"]), kind="statistical")
claim("broken_no_mask", loss["no mask"], within(0.0, 0.5), kind="statistical")
claim("broken_no_residual", loss["no residual"], within(3.1, 3.5), kind="statistical")
claim(
    "broken_gap_no_positions", gap["no positions"], within(0.0, 0.3), kind="statistical"
)
claim("broken_gap_no_scale", abs(gap["no scale"]), within(0.0, 0.1), kind="statistical")
claim(
    "broken_gain_no_layernorm",
    -gap["no LayerNorm"],
    within(0.0, 0.3),
    kind="statistical",
)
claim("broken_gain_post_norm", -gap["post-norm"], within(0.0, 0.3), kind="statistical")
claim("broken_unigram", rung["unigram"], within(3.2, 3.5), kind="tolerance")
if known:
    assert loss["no mask"] < min(rung.values()) / 2

# %% [markdown]
r"""
Read the table from its two ends.

* **No mask** ends at {{ broken_no_mask:.2f}} nats, on text that it never saw. No table and no compressor comes near, and no
  model of this book will. A loss that is too good is a finding, and most often its name is a leak.
* **No residual** ends at {{ broken_no_residual:.2f}}. The rung of a model that knows only how often each symbol occurs is
  {{ broken_unigram:.2f}}. So it has learned that much, and no more.
* **No positions** costs {{ broken_gap_no_positions:.2f}} nats here. [Page 7](07_positions.py) says why it is not more.
* **No scale** changes the loss by {{ broken_gap_no_scale:.2f}}. Nobody would see that.
* **No LayerNorm** and **post-norm** do *better* than the right model, by {{ broken_gain_no_layernorm:.2f}} and
  {{ broken_gain_post_norm:.2f}}.

The last two are no slip. A small model, a short run: here is where such a fault hides best. One run with one seed is no ranking
either. Read a few hundredths of a nat as "no harm that we can see". What the faults cost shows further down.
"""

# %% [markdown]
r"""
## What they write

Loss is one thing, text another. Each model continues a line end, with the same seed.
"""

# %%
from IPython.display import display as show

line_end = torch.tensor([tokenizer.encode("\n")])  # (1, 1)


def write(model, start, length):
    generator = torch.Generator().manual_seed(7)
    written = sampling.generate(model, start, length, generator=generator)
    return tokenizer.decode(written[0, start.size(1) :])


for name, model in models.items():
    text = write(model, line_end, 150)
    if text.count("\n") > 75:  # or there would be nothing to see
        marks = "".join(display.characters(text))
        text = "\n".join(marks[i : i + 50] for i in range(0, 150, 50))
    show(display.sample(text, label=f"{name}: {loss[name]:.2f} nats"))

# %% [markdown]
r"""
The model with the best loss writes next to nothing but line ends, drawn as ↵ here. The one without residual additions draws
letters by their frequency. The other five are hard to tell apart by eye, and none of their samples says which part is missing.

## Who moves whom

The leak matrix of [page 8](08_gpt.py) looks inside without reading any code. Entry $D_{i,j}$ says how much the logits at position $i$
move when token $j$ changes. Here it is for all seven trained models, on the first {{ broken_leak_tokens }} tokens of the held-out text.
"""

# %%
short = held_out[None, :16]  # (1, 16)
claim("broken_leak_tokens", short.size(1))
leaks = {name: verify.leak_matrix(model, short) for name, model in models.items()}
for name, leak in leaks.items():
    future = leak.triu(1).max().item()
    if name == "no mask":
        claim(
            "broken_future_no_mask",
            future,
            expected=within(1.0, None),
            kind="statistical",
        )
    else:
        assert future == 0.0, name  # to the last bit
claim("broken_future_right", leaks["right"].triu(1).max(), expected=0.0)

# The cell of the place after, and of the own place: which moves the logits more?
after = leaks["no mask"].diagonal(1).mean()
own = leaks["no mask"].diagonal().mean()
claim(
    "broken_after_over_own", after / own, expected=within(2.0, None), kind="statistical"
)
past = leaks["no residual"].tril().max()
claim(
    "broken_past_no_residual",
    past / leaks["right"].tril().max(),
    expected=within(0.0, 0.01),
    kind="statistical",
)
print(f"right    largest entry above the diagonal {leaks['right'].triu(1).max():.1f}")
print(f"no mask  largest entry above the diagonal {leaks['no mask'].triu(1).max():.1f}")

# %% tags=["hide-input"] alt="Seven grids of sixteen by sixteen cells. In six of them everything above the diagonal is empty. In the one without a mask all cells are filled, and the line right above the diagonal is the darkest. The grid without residual additions is pale throughout its triangle. The other five look alike: dark along the diagonal and in the columns right beside it, paler further back." caption="The leak matrices, all on one logarithmic scale. Rows are the positions whose logits move, columns the tokens that change. An empty cell is exactly zero, and the palest are at most a ten thousandth of the darkest."
fig, axes = display.figure(5.2, 3.1, rows=2, columns=4)
lowest = max(leak.max() for leak in leaks.values()) / 10_000
for ax in axes.flat:
    ax.axis("off")
for ax, (name, leak) in zip(axes.flat, leaks.items(), strict=False):
    level = 1 + (leak / lowest).clamp(min=1).log10()  # from 1 to 5
    shown = torch.where(leak > 0, level, 0.0)  # zero stays zero
    ax.axis("on")
    display.heatmap(ax, shown, high=5)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_xlabel(name, fontsize=9)

# %% [markdown]
r"""
Six triangles, exactly empty above the diagonal. One square. In the square, the line right above the diagonal stands out: changing
the token one place ahead moves the logits {{ broken_after_over_own:.0f}} times as much as changing the token at the place
itself. So the heads have become what the head at the beginning of the page was. Nobody built that. Training found it, because it pays.

The triangle without residual additions is causal too, and nothing to speak of moves in it: about {{ broken_past_no_residual:.0e}}
times what moves in the right model. Its logits are the same whatever it reads.

## What a loss is worth that has seen the answer

Training asks all questions of a window at once. The model gets tokens 0 to $T - 1$, and at each place it predicts the next. That is
called **teacher forcing**: at every place it reads the true text, and not what it would have written. With the mask, that is the text
so far. Without, the answer is in it as well.

When the model writes, no answer stands anywhere. So ask each question again the way that writing asks it. Cut the window off after
token $t$, and read the last row.
"""

# %%
x, y = next(iter(data.windows(held_out, T, 200)))  # (200, T) each


def forced(model):
    return F.cross_entropy(model(x).transpose(1, 2), y, reduction="none").mean(dim=0)


def cut(model):
    ends = [model(x[:, : t + 1])[:, -1] for t in range(T)]  # (200, V) each
    return torch.stack([F.cross_entropy(ends[t], y[:, t]) for t in range(T)])


by_place = {
    name: (forced(models[name]), cut(models[name])) for name in ("right", "no mask")
}
same = (by_place["right"][0] - by_place["right"][1]).abs().max()
claim("broken_cut_right", same, expected=0.0, tolerance=1e-4, kind="tolerance")
peeking, honest = by_place["no mask"]
claim("broken_forced", peeking.mean(), expected=within(0.0, 0.5), kind="statistical")
claim(
    "broken_cut", honest.mean(), expected=within(math.log(V), None), kind="statistical"
)
claim("broken_forced_last", peeking[-1], expected=within(2.0, 3.3), kind="statistical")
claim("broken_uniform", math.log(V))
display.table(
    [
        (name, f"{whole.mean():.2f}", f"{whole[-1]:.2f}", f"{one.mean():.2f}")
        for name, (whole, one) in by_place.items()
    ],
    header=("model", "future in view", "its last place", "future absent"),
    caption="Loss in nats, the same questions asked in two ways.",
)

# %% tags=["hide-input"] alt="Loss over the place in the window. The right model has one curve, which begins a little higher and then runs level near two nats; with the window whole or cut it is the same. The model without a mask has two: with the whole window in view it lies at zero and leaps up at the very last place, to above the right model; with the window cut off it lies far above the line of the blind guess, and comes down only at the last place." caption="Loss by place. Solid: the whole window in view. Dashed: cut off after the place. For the right model the two are one curve."
fig, ax = display.figure(5.2, 2.9)
for name, colour in (("right", display.BLUE), ("no mask", display.RED)):
    whole, one = by_place[name]
    ax.plot(whole, color=colour, label=f"{name}, whole window")
    ax.plot(one, color=colour, linestyle="--", label=f"{name}, cut off")
ax.axhline(math.log(V), color=display.GREY, linewidth=1, linestyle=":")
ax.annotate(
    "blind guess",
    (T / 2, math.log(V)),
    xytext=(0, 3),
    textcoords="offset points",
    ha="center",
    fontsize=8,
)
ax.set_xlabel("place in the window")
ax.set_ylabel("loss (nats)")
ax.set_ylim(bottom=0)
fig.legend(ncols=2, loc="outside upper center", fontsize=8)

# %% [markdown]
r"""
For the right model the two ways give the same numbers. That is what causal means, and why training may ask all questions at once.

For the model without a mask, {{ broken_forced:.2f}} nats become {{ broken_cut:.1f}}. A blind guess costs {{ broken_uniform:.2f}}. So it is worse
than knowing nothing: it has learned to trust the next place, and now there is none. Its single honest place is the last one of a full
window, the row 3 of our four tokens. There it reaches {{ broken_forced_last:.2f}} nats, worse than a bigram table, since only one question in
{{ broken_window }} ever asked it to think.

This explains its sample. The start was one token. It began with a line end. After a window of nothing but line ends, of whatever length, it gives another one a chance of {{ broken_repeats:.0%}} at least. So it never leaves them. Give it a full window of real text instead, and it writes from its honest place:
"""

# %%
nothing = line_end.expand(1, T)  # (1, T)
again = [
    F.softmax(models["no mask"](nothing[:, :t])[0, -1], dim=-1)[line_end.item()].item()
    for t in range(1, T + 1)
]
claim("broken_repeats", min(again), expected=within(0.5, 1.0), kind="statistical")
print("chance of another line end:", [round(p, 2) for p in again[:: T // 8]])
claim("broken_window", T)
text = write(models["no mask"], held_out[None, :T], 100)
display.sample(text, label="no mask, after a full window of real text")

# %% [markdown]
r"""
That is letters in the company of letters, as [page 2](02_bigram.py) wrote them.

Note that the validation loss gave no warning. It is measured with the future in view as well, so it fell along. Held-out text protects
against learning by heart. It does not protect against a leak.

## Which check sees which

`verify.check_model` asks its questions of seven fresh models. Three more questions come from earlier pages, and look at a block from inside.

* Is the straight path free: if both layers write nothing, does the block return its input ([page 6](06_block.py))?
* Does attention read a normalised copy: is it the same for a stream ten times as large?
* Does attention compute what PyTorch's own function does from the same queries, keys and values ([page 4](04_head.py))?
"""


# %%
def path_is_free(block):
    return torch.equal(silenced(block)(stream), stream)


def reads_a_normalised_copy(block):
    read = []
    hook = block.attn.register_forward_pre_hook(
        lambda layer, given: read.append(*given)
    )
    block(stream), block(10 * stream)
    hook.remove()
    return torch.allclose(*read, rtol=0, atol=1e-3)


def attends_as_pytorch_does(block):
    wanted = attention_by_pytorch(block.attn)  # (B, T, C)
    return torch.allclose(block.attn(stream), wanted, rtol=0, atol=1e-5)


inside = {
    "straight path": path_is_free,
    "normalised copy": reads_a_normalised_copy,
    "PyTorch's attention": attends_as_pytorch_does,
}
seen = {}
for name, change in changes.items():
    model = change(fresh())
    report = verify.check_model(model, vocab_size=V, block_size=T, expect=config)
    with torch.no_grad():
        found = [words for words, ask in inside.items() if not ask(model.h[0])]
    seen[name] = (report.failed, found)
display.table(
    [
        (name, ", ".join(failed) or "–", ", ".join(found) or "–")
        for name, (failed, found) in seen.items()
    ],
    header=("model", "check_model", "a question to a block"),
    caption="What fails. A dash: everything passed.",
)

# %%
assert seen["right"] == ([], [])
assert "causal" in seen["no mask"][0]
assert "position-sensitive" in seen["no positions"][0]
assert "parameters" in seen["no LayerNorm"][0]
reads_weights = {"embeddings", "norms", "residual", "activation", "attention"}
assert all(failed for name, (failed, _) in seen.items() if name != "right")
slipped = [
    n for n, (failed, _) in seen.items() if failed and {*failed} <= reads_weights
]
claim("broken_slipped", ", ".join(slipped))
assert {"no scale", "post-norm"} <= set(slipped)
assert seen["no scale"][1] == ["PyTorch's attention"]
assert "straight path" in seen["post-norm"][1]

# %% [markdown]
r"""
All six are seen, but not all of them from outside. As a box with an input and an output, a model can be causal, know its places, have the
right number of parameters and learn, and still be wrong. The checks *norms*, *residual* and *attention* read the weights, and find out what the model does with
them. Without such checks these would slip through: {{ broken_slipped }}. The missing norms were noticed by a count as well, because
their parameters were gone.

## When it does hurt

Some faults cost next to nothing above. One reason is that the model is small.

*The scale.* [Page 4](04_head.py) divides by $\sqrt{D}$ because a dot product of $D$ independent products of size one has that standard
deviation. Here $D$ is only {{ broken_head_width }}, and PyTorch's initial weights make queries and keys smaller than one. How large are the
scores of a fresh model?
"""


# %%
def spread(model):
    attn, read = model.h[0].attn, []
    hook = attn.c_attn.register_forward_hook(lambda *all: read.append(all[-1]))
    model(x)
    hook.remove()
    q, k, _ = read[0].view(*x.shape, 3, H, C // H).permute(2, 0, 3, 1, 4)
    return (q @ k.transpose(-2, -1) / math.sqrt(C // H)).std().item()


claim("broken_head_width", C // H)
with torch.no_grad():
    scaled, unscaled = spread(fresh()), spread(no_scale(fresh()))
claim("broken_scores", scaled, expected=(0.1, 0.8), kind="statistical")
claim("broken_scores_unscaled", unscaled, expected=(0.4, 3.2), kind="statistical")
claim("broken_scores_ratio", unscaled / scaled, 4.0, tolerance=1e-4, kind="tolerance")
print(
    f"standard deviation of the scores: {scaled:.2f}, without the scale {unscaled:.2f}"
)

# %% [markdown]
r"""
Scores of {{ broken_scores_unscaled:.1f}} leave a softmax soft. The fault is there, and has nothing to spoil yet.

*The norms.* A LayerNorm keeps what a layer reads at one size, however far training has moved the weights. That matters when it moves them
fast. So give four of the models ten times the learning rate, and {{ broken_fast_steps }} steps.
"""


# %%
def brief(name, **shape):
    model = changes[name](fresh(replace(config, **shape)))
    try:
        return trainer.train(model, train, held_out, short_run).history[-1]["val_loss"]
    except trainer.Diverged:  # the loss is no number any more
        return math.inf


short_run = replace(
    training, steps=200, warmup_steps=20, learning_rate=3e-2, eval_every=200
)
claim("broken_fast_steps", short_run.steps)
fast = {
    name: brief(name) for name in ("right", "no LayerNorm", "no scale", "post-norm")
}
claim(
    "broken_fast_right", fast["right"], expected=within(None, 2.8), kind="statistical"
)
exploded = min(fast["no LayerNorm"], 100.0)
claim(
    "broken_fast_no_layernorm", exploded, within(math.log(V), None), kind="statistical"
)
cost = fast["no scale"] - fast["right"]
claim("broken_fast_no_scale", cost, expected=within(0.01, 0.5), kind="statistical")
cost = fast["post-norm"] - fast["right"]
claim("broken_fast_post_norm", cost, expected=within(0.2, None), kind="statistical")
display.table(
    [
        (name, f"{value:.2f}" if value < 100 else "over 100")
        for name, value in fast.items()
    ],
    header=("model", "validation loss at ten times the rate"),
)

# %% [markdown]
r"""
Now the order is another. The right model still learns. Without LayerNorm the loss is far above a blind guess: the model has blown up.
Post-norm ends {{ broken_fast_post_norm:.2f}} nats above the right model, about where letter frequencies alone would put it. Without the scale
it learns, and pays {{ broken_fast_no_scale:.2f}}. The norms, in the right place, make a rough training possible. The scale helps a little.

*The residual.* Its loss was ruined in four layers. How many does it take?
"""

# %%
short_run = replace(short_run, learning_rate=3e-3)
depths = {
    (name, n): brief(name, n_layer=n)
    for name, n in (("right", 1), ("no residual", 1), ("right", 2), ("no residual", 2))
}
for n, bounds in ((1, (0.0, 0.3)), (2, (0.3, None))):
    cost = depths["no residual", n] - depths["right", n]
    claim(f"broken_residual_{n}", cost, within(*bounds), kind="statistical")
display.table(
    [
        (n, f"{depths['right', n]:.2f}", f"{depths['no residual', n]:.2f}")
        for n in (1, 2)
    ],
    header=("layers", "right", "no residual"),
)


# %%
def alike(model):
    """The mean cosine of two different tokens of a window, behind the last block."""
    out = nn.Sequential(*model.h)(model.wte(x) + model.wpe.weight)  # (200, T, C)
    unit = F.normalize(out, dim=-1)  # (200, T, C)
    cosines = unit @ unit.transpose(1, 2)  # (200, T, T)
    return ((cosines.sum(dim=(1, 2)) - T) / (T * (T - 1))).mean().item()


with torch.no_grad():
    alike_right, alike_none = alike(fresh()), alike(no_residual(fresh()))
    alone = no_residual(fresh())
    for block in alone.h:
        block.attn.past.copy_(torch.eye(T, dtype=torch.bool))  # no averaging at all
    alike_alone = alike(alone)
claim("broken_alike_alone", alike_alone, expected=within(0.9, 1.0), kind="statistical")
claim("broken_alike_right", alike_right, expected=within(-0.2, 0.5), kind="statistical")
claim("broken_alike_none", alike_none, expected=within(0.95, 1.0), kind="statistical")
print(
    f"mean cosine between tokens: right {alike_right:.3f}, no residual {alike_none:.3f}"
)
print(f"no residual, and each token reads only itself: {alike_alone:.3f}")

# %% [markdown]
r"""
One layer without its additions loses {{ broken_residual_1:.2f}} nats. Two are lost altogether. Before any training, the mean cosine between two tokens behind the last block is
{{ broken_alike_none:.3f}}, so all tokens are nearly one and the same vector. In the right model it is {{ broken_alike_right:.2f}}.

Two things make the tokens alike. Attention averages them. And each layer adds the same biases to every token, while what told the tokens apart is no longer
carried along. The second is enough: if each token reads only itself, so that nothing is averaged, the cosine is still {{ broken_alike_alone:.2f}}.

So depth and rate decide what a fault costs. A small model in a calm run can do without a part. That does not say that the part is not
needed.

## Your turn

### 1. Take the mask away

*About ten minutes.* Write `unmask(model)`. It gets a GPT of this book and returns a *copy* in which every place reads every other, in every
block, for rows of any length up to `block_size`. The weights stay the same. The model that came in stays as it was, and shares no parameter
with the copy.

??? tip "Hint"

    `copy.deepcopy` copies a model with all its buffers. Which buffer says who may be read?

Check yours with `exercises.check("remove-mask", unmask)`.
"""

# %% tags=["solution"]
from gptbook import exercises


def unmask(model):
    model = copy.deepcopy(model)
    for block in model.h:
        block.attn.past.fill_(True)
    return model


exercises.check("remove-mask", unmask)

# %% [markdown]
r"""
### 2. Take the positions away

*About ten minutes.* Write `without_positions(model)`. It gets a GPT of this book and returns a copy to whose stream no position vector is
added: it begins with the token vectors alone. It must stay so when the copy is trained, and everything else must go on learning. The model
that came in stays as it was, and shares no parameter with the copy.

??? tip "Hint"

    A table of zeros adds nothing. What would an optimizer do to it?

Check yours with `exercises.check("remove-positions", without_positions)`.
"""


# %% tags=["solution"]
def without_positions(model):
    model = copy.deepcopy(model)
    nn.init.zeros_(model.wpe.weight).requires_grad_(False)
    return model


exercises.check("remove-positions", without_positions)

# %% [markdown]
r"""
### 3. Depth or steps

*About fifteen minutes.* With twice the layers, or with twice the steps: which is better? Only a comparison at equal cost is fair. Count the
cost of a step in multiplications with their additions, as [page 9](09_training.py) does. For each token of the batch: one for each weight of the
blocks' and the unembedding's matrices, and $2\,T\,C$ in each layer for the scores and the weighted sums. The way back costs the same
multiple for everybody. Biases, norms and embeddings count as nothing.

Write `afford(old, steps, new)`. `old` and `new` are `GPTConfig`s. A run of `old` took `steps` steps. It returns how many whole steps of
`new`, with the same batch size, cost at most as much. Then train both and compare.

??? tip "Hint"

    The blocks hold $12\,L\,C^2$ such weights, the unembedding $V C$. A step has as many tokens as the batch has rows times $T$, and the two
    configurations may differ in $T$. Stay with whole numbers: `//` rounds down.

Check yours with `exercises.check("depth-or-steps", afford)`.
"""


# %% tags=["solution"]
def step_cost(c):
    weights = 12 * c.n_layer * c.n_embd**2 + c.vocab_size * c.n_embd
    return c.block_size * (weights + 2 * c.n_layer * c.block_size * c.n_embd)


def afford(old, steps, new):
    return steps * step_cost(old) // step_cost(new)


show(exercises.check("depth-or-steps", afford))

compared = [(L, training.steps, loss["right"])]
for layers in (2, 8):
    other = replace(config, n_layer=layers)
    steps = afford(config, training.steps, other)
    run = replace(training, steps=steps, eval_every=steps)
    result = trainer.train(fresh(other), train, held_out, run)
    compared.append((layers, steps, result.history[-1]["val_loss"]))
compared.sort()
for layers, _, reached in compared:
    claim(
        f"broken_budget_{layers}",
        reached,
        expected=within(1.7, 2.7),
        kind="statistical",
    )
claim(
    "broken_shallow_wins",
    compared[-1][2] - compared[0][2],
    within(0.02, None),
    kind="statistical",
)
display.table(
    [(layers, steps, f"{reached:.2f}") for layers, steps, reached in compared],
    header=("layers", "steps", "validation loss"),
    caption="The same number of multiplications, spent in three ways.",
)

# %% [markdown]
r"""
At this budget, steps win: two layers reach {{ broken_budget_2:.2f}} nats, eight only {{ broken_budget_8:.2f}}. All three are far from finished. What a
larger budget would prefer, this does not say. The answer belongs to the budget, and not to depth.

### 4. The larger recipe

*About ten minutes, and a GPU if you want to run it.* Write `larger()`. It returns a pair, a `GPTConfig` and a `TrainConfig`, for a much larger
model on the same text:

* `6` layers of `6` heads, width `384`, context `256`, dropout `0.2`. Everything else as in the book's own model, with its `65` symbols.
* `5000` steps of `64` rows. The rate climbs to `1e-3` in `100` steps, and falls along a half cosine to `1e-4`. Gradients are clipped at `1`. The
  other settings are up to you.

**Dropout** is new. During training it sets each number that passes it to zero with the given chance, and makes the others larger to match. After
training it does nothing. It keeps a model from relying on any single number, which makes learning by heart harder.

??? tip "Hint"

    `GPTConfig` and `TrainConfig` have a field for each of these. Which of them are not at their default value?

Check yours with `exercises.check("larger-recipe", larger)`.
"""


# %% tags=["solution"]
def larger():
    shape = GPTConfig(
        vocab_size=65, block_size=256, n_layer=6, n_head=6, n_embd=384, dropout=0.2
    )
    recipe = trainer.TrainConfig(
        batch_size=64,
        steps=5000,
        learning_rate=1e-3,
        min_learning_rate=1e-4,
        warmup_steps=100,
        schedule="cosine",
        weight_decay=0.1,
        betas=(0.9, 0.99),
        clip=1.0,
    )
    return shape, recipe


exercises.check("larger-recipe", larger)

# %%
shape, recipe = larger()
parameters = verify.expected_parameters(shape)
claim("broken_larger_parameters", parameters, expected=10_788_864)
passes = recipe.steps * recipe.batch_size * shape.block_size / len(train)
claim("broken_larger_passes", passes, within(81.5, 81.7), kind="tolerance")
runs = recipe.steps * recipe.batch_size * step_cost(shape)
runs /= training.steps * training.batch_size * step_cost(config)
claim("broken_larger_runs", runs, expected=(23_227, 23_228), kind="tolerance")
print(f"{parameters:,} parameters, {passes:.0f} passes over the training text")
print(f"as many multiplications as {runs:,.0f} of the runs above")

# %% [markdown]
r"""
It has {{ broken_larger_parameters:,}} parameters and reads the text {{ broken_larger_passes:.0f}} times over. That is why it needs the dropout. It costs as
many multiplications as {{ broken_larger_runs:,.0f}} of the runs above, so the build does not run it. With a GPU, this is the whole program:

```python
import torch

from gptbook import corpora, data, sampling, trainer
from gptbook.model import GPT
from gptbook.tokenizers import CharTokenizer

corpus = corpora.load("tinyshakespeare")
tokenizer = CharTokenizer.train(corpus.text, vocab_size=65)
train, validation = data.split(torch.tensor(tokenizer.encode(corpus.text)))

shape, recipe = larger()
torch.manual_seed(recipe.seed)
model = GPT(shape)
result = trainer.train(model, train, validation, recipe, folder="larger", device="cuda")
print(result.history[-1]["val_loss"])
start = torch.tensor([tokenizer.encode("\n")], device="cuda")
print(tokenizer.decode(sampling.generate(model, start, 500)[0].tolist()))
```

[Page 18](18_scaling.py) plans this run, and has it under a name: `gptbook train --preset larger --device cuda` is the same.

What the build does run is its twin: the same lines with a small shape, few steps, and the processor in place of the GPU.
"""

# %%
shape, recipe = larger()
shape = replace(shape, block_size=32, n_layer=2, n_head=2, n_embd=48)
recipe = replace(recipe, steps=60, batch_size=16, warmup_steps=10, eval_every=60)
torch.manual_seed(recipe.seed)
twin = GPT(shape)
result = trainer.train(twin, train, held_out, recipe, device="cpu")
text = sampling.generate(twin, line_end, 60, generator=torch.Generator().manual_seed(7))
twin_loss = result.history[-1]["val_loss"]
claim("broken_twin_loss", twin_loss, expected=within(2.3, 3.6), kind="statistical")
assert result.step == 60
display.sample(tokenizer.decode(text[0, 1:]), label=f"The twin: {twin_loss:.2f} nats")

# %% [markdown]
r"""
## What this page left out

Faults in the training loop, such as targets that are not shifted, or a gradient that is never cleared. Two faults at once, which can hide each
other. And the question of how large a model would have to be before each part shows what it is for. A text can also be too small for its model.
[The next page](14_overfitting.py) trains a GPT on nothing but this book.
"""
