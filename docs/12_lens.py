# %% [markdown]
r"""
# Looking inside our GPT

Attention maps show where each head looks and the logit lens shows what each layer would say, but only switching a head off
shows what the model needs it for.

The GPT of [page 9](09_training.py) predicts well, and nobody told it how. This page opens it. We look at the weights of all its
heads, and score the heads by what they do. We let every layer speak. We ask which letters the model holds for alike. Then we
switch parts off, and compare what they seemed to do with what is missed.

## Scores for four tokens

A head of [page 4](04_head.py) is a square of weights: row $t$ says how much token $t$ looks at each token up to itself. Here is the
one of the four tokens, with the running mean of [page 3](03_averaging.py) beside it.

Does a head look at the token *before*? That weight stands one place left of the diagonal. So average those entries, over the rows
that have a token before them. This number is the **previous-token score**. It lies between 0 and 1.
"""

# %%
import torch
import torch.nn.functional as F

from gptbook import display, lens
from gptbook.claims import claim

by_pencil = torch.tensor(
    [
        [1, 0, 0, 0],
        [1 / 3, 2 / 3, 0, 0],
        [1 / 21, 4 / 21, 16 / 21, 0],
        [1 / 9, 2 / 9, 4 / 9, 2 / 9],
    ]
)  # (T, T)
mean = torch.ones(4, 4).tril() / torch.arange(1, 5)[:, None]  # (T, T)


def previous_token_score(weights):
    return weights.diagonal(offset=-1, dim1=-2, dim2=-1).mean(dim=-1)


head_score, mean_score = previous_token_score(torch.stack((by_pencil, mean))).tolist()
claim("score_by_pencil", head_score, (1 / 3 + 4 / 21 + 4 / 9) / 3, 1e-6, "tolerance")
claim("score_of_mean", mean_score, (1 / 2 + 1 / 3 + 1 / 4) / 3, 1e-6, "tolerance")
print(f"the head of page 4    {head_score:.3f}")
print(f"the running mean      {mean_score:.3f}")

# %% [markdown]
r"""
The head of page 4 scores {{ score_by_pencil:.3f}}. That is less than the {{ score_of_mean:.3f}} of a mean that looks at everything alike.
So it is no previous-token head: it searches for a large second channel, wherever that stands. A score means little without
knowing what a head gets that does not care. That can be computed.

!!! theorem "What an indifferent head scores"

    Let row $t$ of a head give the same weight to each of the tokens 0 to $t$. On rows of $T$ tokens its previous-token score is

    $$ \frac{1}{T - 1} \left( \frac12 + \frac13 + \dots + \frac1T \right) . $$

    On rows of $2T$ tokens, let a score be the mean of one weight from each of the rows $T$ to $2T - 1$, whichever one. It is

    $$ \frac{1}{T} \left( \frac{1}{T+1} + \frac{1}{T+2} + \dots + \frac{1}{2T} \right) < \frac{\ln 2}{T} . $$

    Tested by `test_indifferent_head`.

??? proof "Proof"

    Row $t$ spreads a sum of 1 over $t + 1$ tokens, so each of its weights is $\frac{1}{t+1}$. The first score is the mean of these over the
    rows 1 to $T - 1$, the second over the rows $T$ to $2T - 1$.

    For the bound: $\frac{1}{n}$ is less than the area under $\frac{1}{u}$ from $n - 1$ to $n$. Add up for $n$ from $T + 1$ to $2T$. The whole area is
    $\ln 2T - \ln T = \ln 2$. $\blacksquare$

We shall need the second score soon. First, the model.

## A hook

The weights are computed in the middle of the forward pass and thrown away. How do we get at them without changing the model? PyTorch
lets us hang a function on any module: a **hook**. It is called whenever the module is, and sees what goes in.
"""

# %%
from gptbook import data, recipes

run = recipes.trained("step-5")
model, tokenizer = run.model, run.tokenizer
L, H = model.config.n_layer, model.config.n_head
tokens = torch.tensor(tokenizer.encode(run.corpus.text))  # (N,)
train, validation = data.split(tokens)

text, held_out = (
    "GREMIO:\nGood morrow, neighbour Baptista.",
    tokenizer.decode(validation),
)
known = run.corpus.name == "tinyshakespeare"
if not known:
    text = held_out[2000:2040]  # of another text, another piece
assert text in held_out  # the model never saw it


def within(low, high):
    """Bounds for a number of this text; nothing is known of another text's."""
    return (low, high) if known else None


idx = torch.tensor([tokenizer.encode(text)])  # (B, T)

seen = []
handle = model.h[0].attn.attn_dropout.register_forward_pre_hook(
    lambda module, given: seen.append(given[0])
)
with torch.no_grad():
    logits = model(idx)  # (B, T, V)
handle.remove()
print(tuple(seen[0].shape), "weights of the first layer's heads")

# %% [markdown]
r"""
The layer `attn_dropout` gets the weights and, when the model does not train, hands them on unchanged. So what goes into it is what we
want. The last line takes the hook off again. The package does this for all layers, and takes its hooks off even when the model raises an
error on the way.
"""

# %%
display.source(lens.attention)

# %%
weights = lens.attention(model, idx)  # (L, B, H, T, T)
assert torch.equal(weights[0], seen[0])
future = torch.ones(len(text), len(text), dtype=torch.bool).triu(1)  # (T, T)
assert (weights[..., future] == 0).all()
torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))
print(tuple(weights.shape))

# %% [markdown]
r"""
Looking must not change what is looked at. And the path that shows the weights must not look ahead either. Change a token in the
middle: all rows above it must keep their weights, to the last bit.
"""

# %%
t = 20
changed = idx.clone()
changed[0, t] = (changed[0, t] + 1) % tokenizer.vocab_size
other = lens.attention(model, changed)  # (L, B, H, T, T)
assert torch.equal(other[..., :t, :], weights[..., :t, :])
assert not torch.equal(other[..., t:, :], weights[..., t:, :])
with torch.no_grad():
    assert torch.equal(model(idx), logits)
assert not any(module._forward_pre_hooks for module in model.modules())
print(f"token {t} changed, rows 0 to {t - 1} of all heads kept every bit")

# %% [markdown]
r"""
## All heads

Here are the {{ lens_heads }} heads at work on a line that the model never saw.
"""

# %%
claim("lens_heads", L * H, expected=16)
display.sample(text)

# %% tags=["hide-input"] alt="Sixteen small squares in a grid, a row of them for each layer. In the first layer some heads show one sharp line beside the diagonal, others a softer one. In the middle layers most of the weight lies near the diagonal, in patches. In the last layer it is spread wider, with columns that many tokens look at." caption="The weights of all heads for this line. Within a square, rows are the tokens that look, from top to bottom, and columns those looked at. The stronger the blue, the more."
fig, axes = display.figure(5.2, 5.6, columns=H, rows=L)
for layer in range(L):
    for head in range(H):
        ax = axes[layer, head]
        display.heatmap(ax, weights[layer, 0, head].sqrt(), high=1.0)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.set_title(f"{layer}.{head}", fontsize=9, pad=2)

# %% [markdown]
r"""
We name a head by its layer and its number, both counted from 0: `0.3` is the last head of the first layer. The shades show the root of each weight, or the small ones
would be invisible.

Pictures invite stories. So we put numbers beside what we believe to see, and over many more lines than one: {{ lens_rows }} windows of the
validation text. For each head, how far back does it look on average? How much of its weight goes to the token before, and how much to the
one before that? And does it prefer line ends, or punctuation? There, 1 means as much as an indifferent head gives to them.
"""

# %%
B, T = 64, model.config.block_size
claim("lens_rows", B)
x = validation[: B * T].view(B, T)  # (B, T)
y = validation[1 : B * T + 1].view(B, T)  # (B, T)
w = lens.attention(model, x)  # (L, B, H, T, T)

position = torch.arange(T)
back = (position[:, None] - position).clamp(min=0)  # (T, T): how far back
alike = torch.ones(T, T).tril() / (position + 1)[:, None]  # (T, T)
marks = {
    "line ends": torch.tensor(tokenizer.encode("\n")),
    "punctuation": torch.tensor(tokenizer.encode(".,:;!?'-")),
}


def looks(w):
    """Five numbers about each head, of weights w (..., B, H, T, T)."""
    w = w[..., 1:, :]  # (..., B, H, T-1, T): token 0 has no choice
    found = {"distance": (w * back[1:]).sum(dim=-1).mean(dim=(-3, -1))}
    for steps, name in ((1, "1 back"), (2, "2 back")):
        there = back[1:] == steps  # (T-1, T)
        found[name] = (w * there).sum(dim=(-2, -1)).mean(dim=-2) / there.sum()
    for name, ids in marks.items():
        there = torch.isin(x, ids)[:, None, None, :]  # (B, 1, 1, T)
        found[name] = (w * there).sum(dim=(-4, -2, -1)) / (alike[1:] * there).sum()
    return found


found = looks(w)
indifferent = looks(alike.expand(1, B, 1, T, T))


def row(name, found, at):
    d, one, two, ends, marks = (number[at].item() for number in found.values())
    return (name, f"{d:.1f}", f"{one:.2f}", f"{two:.2f}", f"{ends:.1f}", f"{marks:.1f}")


leaders = {name: divmod(n.argmax().item(), H) for name, n in found.items()}
display.table(
    [
        row(f"{layer}.{head}", found, (layer, head))
        for layer, head in sorted(set(leaders.values()))
    ]
    + [row("indifferent", indifferent, (0, 0))],
    header=("head", "distance", *list(found)[1:]),
    caption="The heads that lead in some column.",
)

# %% tags=["hide-input"]
for name, at in leaders.items():
    key = "looks_" + name.replace(" ", "_")
    claim(key, found[name][at], kind="statistical")
    claim(key + "_head", "{}.{}".format(*at))
by_layer = found["distance"].mean(dim=1)  # (L,)
claim("looks_far", by_layer[-1], (by_layer.min(), None), None, "statistical")
claim("looks_near", by_layer.min(), kind="statistical")
claim("looks_near_layer", by_layer.argmin())
claim("looks_alike", indifferent["distance"], kind="tolerance")
if known:
    assert found["1 back"].max() > 0.7
    assert found["line ends"].max() > 1.5
    assert found["punctuation"].max() > 1.3

# %% [markdown]
r"""
Head {{ looks_1_back_head }} looks one token back, with {{ looks_1_back:.0%}} of its weight. Head {{ looks_2_back_head }} looks two back more than any other, with
{{ looks_2_back:.0%}}. Head {{ looks_punctuation_head }} gives punctuation {{ looks_punctuation:.1f}} times its fair share. Head {{ looks_line_ends_head }} gives line ends {{ looks_line_ends:.1f}}
times theirs. And the heads of the last layer look {{ looks_far:.1f}} tokens back on average, those of layer {{ looks_near_layer }} only {{ looks_near:.1f}}. An
indifferent head would look {{ looks_alike:.0f}} back.

## The ranking

Now all heads by their previous-token score. The package has it as a function.
"""

# %%
display.source(lens.previous_token_scores)

# %%
ranking = lens.previous_token_scores(model, x)
previous = torch.zeros(L, H)
for s in ranking:
    previous[s.layer, s.head] = s.score
torch.testing.assert_close(previous, previous_token_score(w).mean(dim=1))
baseline = previous_token_score(alike).item()
above = sum(s.score > baseline for s in ranking)
claim("previous_best", ranking[0].score, within(0.7, 1), None, "statistical")
claim(
    "previous_alike", baseline, sum(1 / n for n in range(2, 65)) / 63, 1e-6, "tolerance"
)
claim("previous_best_head", f"{ranking[0].layer}.{ranking[0].head}")
claim("previous_above", above, kind="statistical")
claim("previous_second", ranking[1].score, within(0.4, 1), None, "statistical")
claim("previous_second_head", f"{ranking[1].layer}.{ranking[1].head}")
display.table(
    [
        (i + 1, f"{s.layer}.{s.head}", f"{s.score:.3f}", f"{s.score / baseline:.1f}")
        for i, s in enumerate(ranking)
    ],
    header=("rank", "head", "previous-token score", "times indifferent"),
)

# %% [markdown]
r"""
An indifferent head would get {{ previous_alike:.3f}} in this window. Of {{ lens_heads }} heads, {{ previous_above }} get more: in this text, near tokens
matter most. But few do little else. The best is {{ previous_best_head }}, with {{ previous_best:.2f}}, and the next {{ previous_second_head }}, with {{ previous_second:.2f}}.
"""

# %% tags=["hide-input"] alt="The weights of the best previous-token head for the beginning of the line, a square of letters against letters. Each letter puts nearly all its weight on the letter directly before it, so that the strong cells form a line one place left of the diagonal." caption="Head {{ previous_best_head }} on the beginning of the line. Each letter of the left column looks at the one before it."
shown = 20
best = weights[ranking[0].layer, 0, ranking[0].head, :shown, :shown]  # (T, T)
letters = display.characters(text[:shown])
fig, ax = display.figure(4.4, 4.4)
display.heatmap(ax, best, rows=letters, columns=letters, high=1.0)
ax.set_ylabel("who looks")

# %% [markdown]
r"""
Why would a model want such heads? A token starts with its own letter alone. From that, one can do as well as a table of pairs. For more, a
place must know the letter before its own. A previous-token head brings it.

## Is there an induction head?

There is a second kind of head that other models are known for. Suppose that the text said "Baptista" some lines ago, and now it says
"Bapt". A good guess is to look for the last "Bapt", and to say what came then. A head that does this looks at the token *after* an earlier copy of the
current one. It is called an **induction head** ([Olsson et al. 2022](https://arxiv.org/abs/2209.11895), "In-context Learning and Induction Heads").

To find one, give the model tokens that make no sense, and then the same again. In the second copy, nothing helps but the first. Token $t$ of
the second copy stood at $t - T$ before, where $T$ is the length of a copy. What came next stood at $t - T + 1$. The weight there, averaged over the second copy, is the
**induction score**. Our window of 64 holds two copies of 32.
"""

# %%
generator = torch.Generator().manual_seed(0)
noise = torch.randint(tokenizer.vocab_size, (64, 32), generator=generator)  # (B, T)
induction = lens.induction_scores(model, noise)
chance = sum(1 / n for n in range(33, 65)) / 32
claim("induction_best_head", f"{induction[0].layer}.{induction[0].head}")
claim("induction_alike", chance, (0, 0.69315 / 32), None, "tolerance")
claim("induction_best", induction[0].score, within(0, chance), None, "statistical")
print(f"best of 16 heads   {induction[0].score:.3f}")
print(f"indifferent head   {chance:.3f}")

# %% [markdown]
r"""
The best of our heads, {{ induction_best_head }}, scores {{ induction_best:.3f}}. An indifferent head gets {{ induction_alike:.3f}}. So there is no induction head
in this model. Not one head beats indifference.

If that is right, the second copy must be as hard to predict as the first. And it must be as hard as when something *else* came
before it. Measure it, on noise and on true text.
"""


# %%
def loss_after(model, first, second):
    """The mean loss on all but the first token of `second` (B, T), read after `first` (B, T)."""
    n = first.size(1)
    rows = torch.cat((first, second), dim=1)  # (B, 2n)
    with torch.no_grad():
        logits = model(rows[:, :-1])[:, n:]  # (B, n-1, V)
    return F.cross_entropy(logits.flatten(0, 1), second[:, 1:].flatten()).item()


def loss_alone(model, first):
    with torch.no_grad():
        logits = model(first[:, :-1])  # (B, n, V)
    return F.cross_entropy(logits.flatten(0, 1), first[:, 1:].flatten()).item()


lines = validation[: 64 * 32].view(64, 32)  # (B, T)
losses = {}
for name, copies in (("noise", noise), ("text", lines)):
    losses[name] = (
        loss_alone(model, copies),
        loss_after(model, copies, copies),
        loss_after(model, copies.roll(9, 0), copies),
    )
change = {name: same - other for name, (_, same, other) in losses.items()}
claim("copy_change_noise", change["noise"], within(-0.1, 0.1), None, "statistical")
claim("copy_change_text", change["text"], within(-0.2, 0.2), None, "statistical")
claim("copy_loss_noise", losses["noise"][1], within(4.3, None), None, "statistical")
display.table(
    [(name, *(f"{loss:.2f}" for loss in three)) for name, three in losses.items()],
    header=("", "first copy", "second copy", "second, after others"),
    caption="Loss in nats. The last column has the same tokens in the same places, after a first half that they do not repeat.",
)

# %% [markdown]
r"""
Compare the last two columns. Having seen the same tokens before changes the loss by {{ copy_change_noise:+.3f}} nats on noise and by {{ copy_change_text:+.3f}} on text. The
model does not copy. (Its loss on noise, {{ copy_loss_noise:.1f}}, is far above the $\ln 65$ of a blind guess. It is sure of its English, and
noise proves it wrong again and again.)

## Could the measurement find one?

A ruler that only ever shows zero is suspicious. So we build a model that must have an induction head. Its weights are set by
hand. It has two layers of one head, and both MLPs write nothing. The stream has four parts: the token, the token before, the answer, and the position.

* In layer 0 each position looks at the one before it, and copies its token into the part "token before".
* In layer 1 each token looks for places whose "token before" is itself, and copies what stands there into "answer".

So an induction head rests on a previous-token head below it.
"""

# %%
from gptbook.model import GPT, GPTConfig

V, WINDOW = 32, 64
C = 3 * V + WINDOW
TOKEN, BEFORE, ANSWER = (slice(part * V, part * V + V) for part in range(3))
PLACE = slice(3 * V, C)
built = GPT(GPTConfig(vocab_size=V, block_size=WINDOW, n_layer=2, n_head=1, n_embd=C))


def join(matrix, to, part, size=1.0):
    matrix[to, part] = size * torch.eye(part.stop - part.start)


with torch.no_grad():
    for name, parameter in built.named_parameters():
        parameter.fill_(1.0 if "ln_" in name and "weight" in name else 0.0)
    join(built.wte.weight, slice(0, V), TOKEN)
    join(built.wpe.weight, slice(0, WINDOW), PLACE)
    for block, query, key, to in (
        (built.h[0], PLACE, PLACE, BEFORE),
        (built.h[1], TOKEN, BEFORE, ANSWER),
    ):
        w_q, w_k, w_v = block.attn.c_attn.weight.split(C)  # (C, C) each
        join(w_q, key, query, 5.0)  # a query is laid where the keys will be
        join(w_k, key, key)
        join(w_v, TOKEN, TOKEN)
        join(block.attn.c_proj.weight, to, TOKEN, 0.1)  # undo the norm
    first_keys = built.h[0].attn.c_attn.weight[C : 2 * C]  # (C, C)
    first_keys.copy_(first_keys.roll(1, 0))  # the key of place s is s + 1
    join(built.lm_head.weight, slice(0, V), ANSWER, 3.0)

generator = torch.Generator().manual_seed(0)
orders = torch.stack(
    [torch.randperm(V, generator=generator) for _ in range(64)]
)  # (B, T)
made = lens.induction_scores(built, orders)
below = lens.previous_token_scores(built, orders)
claim("built_induction", made[0].score, (0.9, 1), None, "tolerance")
claim("built_previous", below[0].score, (0.9, 1.001), None, "tolerance")
assert (made[0].layer, below[0].layer) == (1, 0)
repeated = loss_after(built, orders, orders)
claim("built_second", repeated, (0, 0.5), None, "tolerance")
claim("built_first", loss_alone(built, orders), (3, None), None, "tolerance")
print(f"layer 0  previous-token score {below[0].score:.3f}")
print(f"layer 1  induction score      {made[0].score:.3f}")
print(
    f"loss on the first copy {loss_alone(built, orders):.2f}, on the second {repeated:.2f}"
)

# %% [markdown]
r"""
The score finds it, with {{ built_induction:.2f}}, and the loss falls from {{ built_first:.2f}} to {{ built_second:.2f}}. So two layers of this very class can do it, and the
measurement sees it. Ours has the head that comes first, {{ previous_best_head }}, and has not built the second on it.
Why not, we can only guess. It has read {{ lens_read:.1f}} million letters in windows of 64. Words come back within
such a window, but the letters just before already say most of what comes next.

When did the scores arise? Training kept a few models on the way.
"""

# %%
claim("lens_read", recipes.TRAINING["step-5"].steps * 12 * 64 / 1e6, kind="tolerance")
steps, curves, best_induction = [], [], []
for step, young in [*run.snapshots(), (run.summary["steps"], model)]:
    steps.append(step)
    scores = {(s.layer, s.head): s.score for s in lens.previous_token_scores(young, x)}
    curves.append([scores[s.layer, s.head] for s in ranking[:2]])
    best_induction.append(lens.induction_scores(young, noise)[0].score)
claim("lens_step", steps[2])
claim("lens_step_later", steps[3])
claim("previous_start", curves[0][0], baseline, 0.03, "statistical")
claim("previous_early", curves[2][0], kind="statistical")
claim("previous_second_early", curves[2][1], kind="statistical")
claim("previous_second_later", curves[3][1], kind="statistical")
print("steps  ", steps)
print("best   ", [round(pair[0], 2) for pair in curves])
print("second ", [round(pair[1], 2) for pair in curves])

# %% tags=["hide-input"] alt="Scores over the steps of training. The previous-token score of one head climbs early and ends near one. That of a second head ends lower. The best induction score of any head stays near zero throughout." caption="How the scores arise. Points are the snapshots of page 9."
fig, ax = display.figure(5.2, 2.8)
for i, style, colour in ((0, "o-", display.BLUE), (1, "s--", display.GREEN)):
    label = f"{ranking[i].layer}.{ranking[i].head}, previous token"
    ax.plot(steps, [pair[i] for pair in curves], style, color=colour, label=label)
ax.plot(steps, best_induction, "^:", color=display.RED, label="any, induction")
ax.axhline(baseline, color=display.GREY, linewidth=1, linestyle="-.")
ax.text(steps[-1], baseline + 0.02, "indifferent", ha="right", fontsize=8)
ax.set_xlabel("step")
ax.set_ylabel("score")
ax.set_ylim(0, 1)
ax.legend(fontsize=8, loc="center right")

# %% [markdown]
r"""
At the start, head {{ previous_best_head }} scores {{ previous_start:.2f}}, as good as indifferent. After {{ lens_step }} steps it has {{ previous_early:.2f}}. Head
{{ previous_second_head }} stands at {{ previous_second_early:.2f}} then, and at {{ previous_second_later:.2f}} after {{ lens_step_later }}. In the end, two heads do much the same. Keep that in
mind for the last section.

## Let every layer speak

The answer is read off the stream at the very end: final norm, then unembedding. But the stream is one space. Every layer adds to the same
$C$ numbers, as [page 6](06_block.py) showed. Then nothing keeps us from reading it *earlier*, with the same norm and the same unembedding. This is the **logit
lens** ([nostalgebraist 2020](https://www.lesswrong.com/posts/AcKRB8wDpdaN6v6ru/interpreting-gpt-the-logit-lens)).
"""

# %%
display.source(lens.logit_lens)

# %%
says = lens.logit_lens(model, idx)  # (n, B, T, V), n = L + 1
assert torch.equal(says[-1], logits)  # the last row is what the model says
stream = lens.stream(model, idx)  # (N, B, T, C), N = 2L + 1
with torch.no_grad():
    entered = model.wte(idx) + model.wpe(torch.arange(len(text)))  # (B, T, C)
    bare = model.lm_head(stream[-1])  # (B, T, V): the final norm forgotten
assert torch.equal(stream[0], entered)
claim("lens_bare", (bare - logits).abs().max(), within(1, None), None, "statistical")
print(
    f"{tuple(says.shape)}, and without the norm off by {(bare - logits).abs().max():.1f}"
)

# %% tags=["hide-input"] alt="A grid of letters. Each column is a place in the line, each of the five rows the number of layers read. In the top row nearly all guesses are wrong. Row by row more cells are framed, and in the last row about half of the guesses are the letter that came." caption="The top guess after each number of layers, in a stronger blue where it is more probable. Above: the letter read. Below: the letter that came. A frame marks a right guess."
from matplotlib.patches import Rectangle

part = slice(7, 23)  # from the end of the first line on
chances = F.softmax(says[:, 0, part], dim=-1)  # (n, T, V)
top, guess = chances.max(dim=-1)  # (n, T) each
came = idx[0, 8:24]  # (T,)
fig, ax = display.figure(5.2, 2.6)
display.heatmap(ax, top, columns=display.characters(text[part]), high=1.0)
ax.set_ylabel("layers read")
ax.tick_params(labelsize=11)
for layer in range(L + 1):
    for at, letter in enumerate(
        display.characters(tokenizer.decode(guess[layer].tolist()))
    ):
        ink = "white" if top[layer, at] > 0.5 else "black"
        ax.text(at, layer, letter, ha="center", va="center", color=ink, fontsize=11)
        if guess[layer, at] == came[at]:
            frame = Rectangle((at - 0.46, layer - 0.46), 0.92, 0.92, fill=False)
            frame.set(edgecolor=display.ORANGE, linewidth=1.4)
            ax.add_patch(frame)
for at, letter in enumerate(display.characters(text[8:24])):
    ax.text(at, L + 1, letter, ha="center", va="center", fontsize=11)
ax.set_ylim(L + 1.4, -0.5)

# %% [markdown]
r"""
Row 0 is the token and its position, before any layer. Each row below has one layer more. Watch the words arrive.

Over many windows: how good is each layer's guess? Here are the loss, the share of right guesses, the mean probability of the right token, and its
mean rank, where 1 is the top.
"""

# %%
early = lens.logit_lens(model, x)  # (n, B, T, V)
right = early.gather(-1, y.expand(L + 1, B, T)[..., None])  # (n, B, T, 1)
rank = 1 + (early > right).sum(dim=-1)  # (n, B, T)
chance_of_right = early.softmax(dim=-1).gather(-1, y.expand(L + 1, B, T)[..., None])
layer_loss = -chance_of_right.log().mean(dim=(1, 2, 3))  # (n,)
hits = (rank == 1).float().mean(dim=(1, 2))  # (n,)
for layer in range(L + 1):
    claim(f"lens_loss_{layer}", layer_loss[layer], kind="statistical")
    claim(f"lens_hits_{layer}", hits[layer], kind="statistical")
if known:
    assert (layer_loss.diff() < 0).all(), "some layer makes the lens worse"
display.table(
    [
        (
            layer,
            f"{layer_loss[layer]:.2f}",
            f"{hits[layer]:.0%}",
            f"{chance_of_right[layer].mean():.0%}",
            f"{rank[layer].float().mean():.1f}",
        )
        for layer in range(L + 1)
    ],
    header=("layers", "loss", "right", "probability", "rank"),
)

# %% tags=["hide-input"] alt="The loss of the lens over the number of layers read, with the rungs of the loss ladder. It falls with every layer: above the unigram rung without any layer, between unigram and bigram after one, and below the trigram rung at the end." caption="The loss of the lens after each layer, on the loss ladder."
from gptbook import ladder

fig, ax = display.figure(5.2, 2.9)
ax.plot(range(L + 1), layer_loss, "o-", color=display.BLUE)
rungs = ladder.ladder(tokens, tokenizer)
loss_of = {rung.name: rung.loss for rung in rungs}
if known:
    assert layer_loss[0] > loss_of["unigram"] > layer_loss[1] > loss_of["bigram"]
    assert layer_loss[-1] < loss_of["trigram"]
display.rungs(ax, rungs)
ax.set_xticks(range(L + 1))
ax.set_xlabel("layers read")
ax.set_ylabel("loss (nats)")

# %% [markdown]
r"""
Every layer helps. Without any, the lens reaches {{ lens_loss_0:.2f}} nats, worse than knowing how often each letter occurs. The bare embedding was
not trained to be read here. At the end it is {{ lens_loss_4:.2f}}.

Take the guesses that are right at the end. After which layer was the answer on top for the *first* time?
"""

# %%
final = rank[-1] == 1  # (B, T)
first = (rank == 1).int().argmax(dim=0)[final]  # argmax gives the first of equals
shares = torch.bincount(first, minlength=L + 1) / len(first)  # (n,)
lost = ((rank[:-1] == 1).any(dim=0) & ~final).float().mean()
claim("lens_first_last", shares[-1], kind="statistical")
claim("lens_first_zero", shares[0], kind="statistical")
claim("lens_lost", lost, kind="statistical")
for layer, share in enumerate(shares.tolist()):
    print(f"{layer} layers read   {share:.0%}")

# %% [markdown]
r"""
There is no place where "the answer is computed". {{ lens_first_zero:.0%}} of these answers are there before any layer, and
{{ lens_first_last:.0%}} appear only with the last. The way is not straight either: for {{ lens_lost:.0%}} of all tokens, some earlier layer has the answer on
top, and the end does not.

Be careful with early rows. The unembedding was trained for the last one only. What an early layer knows may be written in a form that the lens cannot read.
What the lens shows is there. What it does not show may be there too.

## Which letters are alike?

The model has a vector for each token in two places: its row in the embedding, which says how the token is read, and its row in the unembedding, which says
when it is the answer. Two rows are alike if they point the same way. The measure is the **cosine** of their angle: the dot
product, divided by both lengths. 1 is the same direction, 0 a right angle.
"""

# %%
start = dict(run.snapshots())[0]  # before the first step
tables = {
    "embedding": model.wte.weight.detach(),
    "its change": (model.wte.weight - start.wte.weight).detach(),
    "unembedding": model.lm_head.weight.detach(),
}


def near(name, letter):
    found = lens.neighbours(tables[name], tokenizer.encode(letter)[0], 4)
    return " ".join(display.characters(tokenizer.decode([i for i, _ in found])))


display.table(
    [(letter, *(near(name, letter) for name in tables)) for letter in "aetTz."],
    header=("token", *tables),
    caption="The four nearest tokens of some, nearest first.",
)

# %% [markdown]
r"""
The unembedding makes sense at a glance: vowels beside vowels, the full stop beside other marks. The embedding does not.
A number says why.
"""

# %%
kept = F.cosine_similarity(model.wte.weight, start.wte.weight).mean()
moved = tables["its change"].norm(dim=1).mean()
claim("wte_kept", kept, within(0.9, 1), None, "statistical")
claim("wte_length", start.wte.weight.norm(dim=1).mean(), (128**0.5), 0.5, "statistical")
claim("wte_moved", moved, kind="statistical")
print(f"cosine of a row with its random start {kept:.3f}")

# %% [markdown]
r"""
Each row began as {{ wte_width }} random numbers, a vector of length {{ wte_length:.1f}}. Training moved it by {{ wte_moved:.1f}} on average. So a row still points where
chance put it, with a cosine of {{ wte_kept:.3f}}, and its neighbours are mostly luck. What training has *added* is the change. That is
the middle column.

Seeing order in a few rows is easy. Is it more than chance? Two questions with a number each. Is a capital nearer to its own small letter than
to others? Are the five vowels nearer to each other than any five letters? For an answer, shuffle: pair the capitals with random small letters, draw five
random letters, {{ letters_shuffles:,}} times, and count how often chance does as well.
"""

# %%
import string

claim("wte_width", model.config.n_embd)
claim("letters_shuffles", 1000)
small = torch.tensor(tokenizer.encode(string.ascii_lowercase))
capital = torch.tensor(tokenizer.encode(string.ascii_uppercase))
vowels = torch.tensor([string.ascii_lowercase.index(vowel) for vowel in "aeiou"])
generator = torch.Generator().manual_seed(0)
shuffles = [torch.randperm(26, generator=generator) for _ in range(1000)]


def among(cosines, five):
    """The mean cosine of all pairs of five letters, each with another."""
    return (cosines[five][:, five].sum() - 5).item() / 20


rows, verdict = [], {}
for name, table in tables.items():
    unit = F.normalize(table, dim=-1)  # (V, C)
    pairs = unit[capital] @ unit[small].T  # (26, 26)
    inner = unit[small] @ unit[small].T  # (26, 26)
    ranks = 1 + (pairs > pairs.diagonal()[:, None]).sum(dim=1)  # (26,)
    by_chance = [pairs[range(26), order].mean().item() for order in shuffles]
    fives = [among(inner, order[:5]) for order in shuffles]
    own, ours = pairs.diagonal().mean().item(), among(inner, vowels)
    as_good = sum(c >= own for c in by_chance), sum(c >= ours for c in fives)
    verdict[name] = own, ours, *as_good, ranks.float().mean().item()
    rows.append(
        (
            name,
            f"{own:.2f}",
            as_good[0],
            f"{verdict[name][4]:.1f}",
            f"{ours:.2f}",
            as_good[1],
        )
    )
claim("letters_own", verdict["its change"][0], kind="statistical")
claim(
    "letters_own_rank", verdict["its change"][4], within(1, 13.5), None, "statistical"
)
claim("letters_vowels", verdict["unembedding"][1], kind="statistical")
claim(
    "letters_vowels_chance",
    verdict["unembedding"][3],
    within(0, 50),
    None,
    "statistical",
)
display.table(
    rows,
    header=("table", "own", "chance", "rank", "vowels", "chance"),
    caption="Mean cosines of capitals with their own small letters and of vowels, each with how many of 1000 shuffles do as well. The rank is that of the own letter among 26; by chance 13.5.",
)

# %% [markdown]
r"""
So yes, in places. Even in the embedding itself, capitals pass the test: the change, small as it is, shows through the noise. In the change alone, a capital and its small letter
have a mean cosine of {{ letters_own:.2f}}, and the own letter has rank {{ letters_own_rank:.1f}} of 26 on average. That is above chance, and far from first. In the
unembedding, vowels stand together, with a mean cosine of {{ letters_vowels:.2f}}: {{ letters_vowels_chance }} of the {{ letters_shuffles:,}} random fives do as
well. The model was told nothing about vowels. But where one may come next, often another may too.

## Switching heads off

A map shows that a head *looks* somewhere. It does not show that the model *uses* what it sees. To learn that, switch the head off and
see what it costs. This is called **ablation**. From [page 5](05_heads.py) we know that a layer is the sum of its heads, each through its own slice of
the projection. Without its term, the head is gone, and nothing else is touched.
"""

# %%
display.source(lens.ablated)


# %%
def loss_without(*heads):
    with torch.no_grad(), lens.ablated(model, heads):
        logits = model(x)  # (B, T, V)
    return F.cross_entropy(logits.flatten(0, 1), y.flatten()).item()


whole = loss_without()
assert abs(whole - layer_loss[-1].item()) < 1e-5
rise = torch.tensor(
    [[loss_without((layer, head)) - whole for head in range(H)] for layer in range(L)]
)  # (L, H)

# %% tags=["hide-input"] alt="Two grids of four layers by four heads. On the left the previous-token scores: two heads of layer 0 have a strong colour, the rest are paler. On the right the rise of the loss: one head of layer 0 has by far the strongest colour, and nearly all others are pale." caption="Left: what a head seems to do, its previous-token score. Right: what is missed without it, the rise of the loss in nats."
fig, axes = display.figure(5.2, 2.9, columns=2)
for ax, matrix, title in (
    (axes[0], previous, "previous-token score"),
    (axes[1], rise, "rise of the loss"),
):
    display.heatmap(ax, matrix, numbers=True, title=title)
    ax.set_xlabel("head")
axes[0].set_ylabel("layer")

# %%
order = rise.flatten().argsort(descending=True)
names = [f"{i // H}.{i % H}" for i in order.tolist()]
both = torch.stack((previous.flatten(), rise.flatten()))  # (2, 16)
without_best = both[:, torch.arange(L * H) != order[0]]  # (2, 15)
claim("ablation_first", names[0])
claim("ablation_second", names[1])
claim("ablation_most", rise.max(), within(0.1, None), None, "statistical")
claim("ablation_next", rise.flatten()[order[1]], kind="statistical")
claim("ablation_correlation", torch.corrcoef(both)[0, 1], (-1, 1), None, "statistical")
rest = torch.corrcoef(without_best)[0, 1]
claim("ablation_correlation_rest", rest, (-1, 1), None, "statistical")
by_score = [f"{s.layer}.{s.head}" for s in ranking]
claim("ablation_first_rank", 1 + by_score.index(names[0]))
claim("ablation_second_rank", 1 + by_score.index(names[1]))
stand_in = rise[ranking[1].layer, ranking[1].head]
claim("ablation_stand_in", stand_in, within(0, rise.max() / 2), None, "statistical")
print(
    f"correlation of score and rise {torch.corrcoef(both)[0, 1]:.2f}, without {names[0]} {rest:.2f}"
)

# %% [markdown]
r"""
The most needed head is {{ ablation_first }}: without it the loss rises by {{ ablation_most:.2f}} nats. Its previous-token score has rank {{ ablation_first_rank }}.
The second in need is {{ ablation_second }}, and costs {{ ablation_next:.2f}}. Its score has rank {{ ablation_second_rank }}. Over all heads, score and rise have a correlation of
{{ ablation_correlation:.2f}}, and of {{ ablation_correlation_rest:.2f}} if the most needed one is left aside. (A correlation of 1 means points on a rising straight line, 0 means no such
trend.) So the score says something about the need, and far from all.

And then there is {{ previous_second_head }}, second by score. It looks one token back as {{ previous_best_head }} does, and can be missed for {{ ablation_stand_in:.2f}} nats. Is it idle? Switch off
*both*.
"""

# %%
top_two = [(s.layer, s.head) for s in ranking[:2]]
needed = [divmod(i, H) for i in order.tolist()]
rows = []
for a, b in (top_two, needed[:2], needed[1:3], needed[-2:]):
    together, added = loss_without(a, b) - whole, (rise[a] + rise[b]).item()
    numbers = (rise[a].item(), rise[b].item(), added, together)
    rows.append(("{}.{} and {}.{}".format(*a, *b), *(f"{n:.2f}" for n in numbers)))
    if [a, b] == top_two:
        claim("ablation_added", added, kind="statistical")
        claim(
            "ablation_together",
            together,
            within(added + 0.1, None),
            None,
            "statistical",
        )
        claim("ablation_then", together - rise[a], kind="statistical")
display.table(
    rows,
    header=("heads", "first", "second", "sum", "both"),
    caption="The rise of the loss, in nats, with the first off, with the second off, and with both.",
)

# %% [markdown]
r"""
The first row is the answer. Both off cost {{ ablation_together:.2f}} nats, and the two alone add up to {{ ablation_added:.2f}}. With {{ previous_best_head }} there,
{{ previous_second_head }} can be missed for {{ ablation_stand_in:.2f}} nats. Once {{ previous_best_head }} is gone, missing it costs {{ ablation_then:.2f}} more. It stands in for the other. So a
small rise does not mean that a head does nothing. It may mean that another does the same. In other pairs, the sum comes closer.

This is the difference between correlation and cause. The map of {{ previous_second_head }} said: it looks at the token before. Its ablation said: it hardly
matters. Only switching off both showed it.

## Checks

Does all this leave the model as it was? And does it work on another model, in training mode, with dropout?
"""

# %%
torch.manual_seed(0)
other = GPT(
    GPTConfig(vocab_size=9, block_size=8, n_layer=3, n_head=2, n_embd=8, dropout=0.5)
)
before = {name: value.clone() for name, value in other.state_dict().items()}
state = torch.get_rng_state()
some = torch.randint(9, (2, 8), generator=torch.Generator().manual_seed(1))  # (B, T)

assert lens.attention(other, some).shape == (3, 2, 2, 8, 8)
other.eval()
with torch.no_grad():
    clean = other(some)  # (B, T, V)
other.train()
assert torch.equal(lens.logit_lens(other, some)[-1], clean)
try:
    with lens.ablated(other, [(0, 1)]):
        lens.attention(other, torch.zeros(1, 99, dtype=torch.long))
except ValueError as error:
    print("refused:", error)
assert not any(module._forward_pre_hooks for module in other.modules())
assert other.training
assert torch.equal(state, torch.get_rng_state())
assert all(
    torch.equal(before[name], value) for name, value in other.state_dict().items()
)

# %% [markdown]
r"""
## Your turn

### 1. The previous-token head

*About ten minutes.* Write `score(weights)`. It gets the weights of one layer for one text, of shape $(H, T, T)$: row $t$ is the token that
looks. It returns $H$ numbers: for each head the *mean* weight that a token gives to the one before it, over all tokens that have one.

??? tip "Hint"

    `diagonal` of a tensor takes an offset and two axes. Which sign means below? Try it on a small matrix with numbers that you know.

Check yours with `exercises.check("previous-token-head", score)`.
"""

# %% tags=["solution"]
from gptbook import exercises


def score(weights):
    T = weights.size(-1)
    looked = [weights[:, t, t - 1] for t in range(1, T)]  # (H,) each
    return torch.stack(looked).mean(dim=0)


exercises.check("previous-token-head", score)

# %% [markdown]
r"""
### 2. The induction head

*About fifteen minutes.* Write `score(weights, period)`. The text holds two copies of `period` tokens each. `weights` has the shape
$(H, T, T)$ with $T$ twice `period`. Return $H$ numbers: for each head the mean weight, over all tokens $t$ of the *second* copy, that token $t$ gives to token `t - period + 1`, the one which *followed* it the first time. For the last token that is the first one of the second copy.

??? tip "Hint"

    Token $t$ of the second copy stood at `t - period`. What followed it stands one place further right. How many rows does the mean run over?

Check yours with `exercises.check("induction-head", score)`.
"""


# %% tags=["solution"]
def score(weights, period):
    rows = torch.arange(period, 2 * period)
    return weights[:, rows, rows - period + 1].mean(dim=-1)


exercises.check("induction-head", score)

# %% [markdown]
r"""
### 3. Where the answer first appears

*About ten minutes.* Write `first_layer(lens_logits, answer)`. It gets what the lens says about one token, of shape $(L+1, V)$, and the id of
the right answer. It returns the number of the first row in which the answer has the highest logit, counted from 0. Whether a
later row loses it again does not matter. If there is no such row, it returns `None`.

??? tip "Hint"

    `argmax` over the vocabulary gives each row's guess. Then look for the first row that guesses right.

Check yours with `exercises.check("first-appears", first_layer)`. Then use it: after how many layers does the lens first have the last letter of "neighbour" in our line, having read all before it?
"""


# %% tags=["solution"]
def first_layer(lens_logits, answer):
    for row, logits in enumerate(lens_logits):
        if logits.argmax() == answer:
            return row
    return None


at = text.index("neighbour") + 7  # its last letter but one
print(first_layer(says[:, 0, at], idx[0, at + 1]))
exercises.check("first-appears", first_layer)

# %% [markdown]
r"""
## What this page left out

The MLPs hold most of the parameters, and we have not looked into one. A head that is off could also be replaced by its mean output over many
texts, which disturbs the layers above less than a zero. And one seed gave one model: another would number its heads otherwise, and might
share the work in another way.

We have switched off parts of a finished model. The next page leaves parts out from the start, and trains again: [break it on purpose](13_broken.py).
"""
