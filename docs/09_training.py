# %% [markdown]
r"""
# Training

Two small GPTs, trained from nothing on an ordinary processor, end far below what any table of letter pairs can reach.

The model of [page 8](08_gpt.py) knows nothing. Training shows it windows of text, measures how surprised it is by each next
symbol, and nudges every parameter a little in the direction that would have surprised it less. This page builds that loop,
explains each of its parts, and reads the results with care.

## The number to beat

A loss means little without something to compare it with. [Page 2](02_bigram.py) built the loss ladder: what can be had without any network, on the
text that will be held out. Here it is again.
"""

# %%
import math

import torch
import torch.nn.functional as F

from gptbook import corpora, data, display, ladder
from gptbook.claims import claim
from gptbook.tokenizers import CharTokenizer

corpus = corpora.load("tinyshakespeare")
tokenizer = CharTokenizer.train(corpus.text, vocab_size=65)
V = tokenizer.vocab_size
tokens = torch.tensor(tokenizer.encode(corpus.text))  # (N,)
train, validation = data.split(tokens)

rungs = ladder.ladder(tokens, tokenizer)
bigram = next(rung.loss for rung in rungs if rung.name == "bigram")
display.table(
    [(rung.name, rung.knows, f"{rung.loss:.3f}") for rung in rungs],
    header=("rung", "knows", "validation loss, nats"),
)

# %% [markdown]
r"""
The bigram table is the rung to beat. It sees one symbol back. Could a better table of pairs do better? Make one from the
validation text itself, which is cheating. No table of pairs can have a lower loss there: counting gives the best table.
"""

# %%
own = torch.bincount(validation[:-1] * V + validation[1:], minlength=V * V).view(V, V)
own_table = own / own.sum(dim=1, keepdim=True).clamp(min=1)  # (V, V)
best_pairs = -own_table.log()[validation[:-1], validation[1:]].mean().item()
claim("loss_best_pairs", best_pairs, expected=(None, bigram), kind="tolerance")
print(f"bigram counted on the training text    {bigram:.3f}")
print(f"bigram counted on the validation text  {best_pairs:.3f}")

# %% [markdown]
r"""
So {{ loss_best_pairs:.2f}} nats is a wall for every table of pairs, however much text it was made from. What a GPT gains below that
comes from looking further back.

## The loop, bare

Take a very small GPT, so that a few steps run in a moment. This is all there is to training:
"""

# %%
from gptbook.model import GPT, GPTConfig

config = GPTConfig(vocab_size=V, block_size=16, n_layer=1, n_head=2, n_embd=32)
torch.manual_seed(0)
model = GPT(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(0)

losses = []
for _ in range(100):
    x, y = data.get_batch(train, 16, 32, generator)  # (B, T) each
    logits = model(x)  # (B, T, V)
    loss = F.cross_entropy(
        logits.flatten(0, 1), y.flatten()
    )  # mean over B * T questions
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")

# %% [markdown]
r"""
1. Draw a batch.
2. Run the model, and measure the loss.
3. Forget the old gradients. PyTorch adds to them otherwise.
4. Work out the new ones.
5. Let the optimizer change the parameters.

The order of the last three matters, and a wrong order still runs. People add a few things to these five lines. Here they are, with
their reasons.

## AdamW

Plain gradient descent moves each parameter by its gradient times a step size. But gradients differ in scale from layer to
layer by orders of magnitude, and one step size does not fit all. **Adam** keeps two running averages for each parameter: of its gradient,
and of its square. It divides the first by the root of the second. So the size of a step hardly depends on the size of the
gradient.

At the very first step the two averages hold one gradient $g$, and the step is $\frac{g}{\sqrt{g^2}} = \pm 1$ times the learning
rate. See it happen, with two gradients a thousand times apart:
"""

# %%
w = torch.nn.Parameter(torch.tensor([1.0, 1.0]))
adam = torch.optim.AdamW([w], lr=0.01, weight_decay=0.0)
w.grad = torch.tensor([5.0, 0.005])
adam.step()
moves = (1.0 - w).tolist()
claim("adam_step_large", moves[0], expected=0.01, tolerance=1e-6, kind="tolerance")
claim("adam_step_small", moves[1], expected=0.01, tolerance=1e-6, kind="tolerance")
print("moves:", moves)

# %% [markdown]
r"""
The W in AdamW is **weight decay**: at each step, every decayed parameter also shrinks by a tiny fraction. It keeps weights from growing
without need. It is applied to the matrices of the linear layers. Biases, norms and embeddings are left alone: pulling the gain of a norm
towards zero would only fight the model.
"""

# %%
from gptbook import trainer

display.source(trainer.optimizer_groups)

# %% [markdown]
r"""
## Warm-up and decay

How large should a step be? Not the same at all times.

* At the start, Adam's averages rest on a handful of gradients, and the weights are random. A large step in such a
  direction is a step into the dark. So the rate climbs from nearly nothing over the first steps: **warm-up**.
* In the middle, large steps travel far.
* At the end, large steps jitter around the goal. So the rate falls along a half cosine: **decay**.
"""

# %%
from gptbook.recipes import PRESETS, TRAINING

recipe = TRAINING["step-5"]
rates = [trainer.lr_at(step, recipe) for step in range(recipe.steps)]
claim("lr_peak", max(rates), expected=1e-3)
claim("lr_steps", recipe.steps)
claim("lr_warmup", recipe.warmup_steps)
display.source(trainer.lr_at)

# %% tags=["hide-input"] alt="The learning rate over the steps of training. It climbs in a straight line during warm-up, then falls along half a cosine wave to a small value at the end." caption="The learning rate of the larger recipe."
fig, ax = display.figure(5.2, 2.3)
ax.plot(rates, color=display.BLUE)
ax.set_xlabel("step")
ax.set_ylabel("learning rate")
ax.set_ylim(bottom=0)

# %% [markdown]
r"""
## Clipping

Now and then a batch is odd, and its gradient is huge. Adam's memory of it would spoil the next steps. **Clipping** looks at all
gradients together as one long vector. If it is longer than a limit, all are scaled down by the same factor. The direction
stays, and only the length changes.
"""

# %%
model.zero_grad()
F.cross_entropy(
    model(x).flatten(0, 1) * 30, y.flatten()
).backward()  # a loss made violent on purpose
before = [p.grad.clone() for p in model.parameters()]
torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
after = [p.grad for p in model.parameters()]

length = math.sqrt(sum((g**2).sum().item() for g in before))
clipped = math.sqrt(sum((g**2).sum().item() for g in after))
cosine = sum((a * b).sum().item() for a, b in zip(before, after, strict=True)) / (
    length * clipped
)
claim("clipped_length", clipped, expected=1.0, tolerance=1e-3, kind="tolerance")
claim("clipped_direction", cosine, expected=1.0, tolerance=1e-5, kind="tolerance")
print(
    f"length {length:.1f} -> {clipped:.3f}, cosine of the angle between the two {cosine:.6f}"
)

# %% [markdown]
r"""
## The same thing in the package

The package makes one update like this:
"""

# %%
display.source(trainer.update)

# %% [markdown]
r"""
The line about `parallel` is for several processes that share a batch, on [page 18](18_scaling.py). Alone it does nothing.

Round it stands a loop that does what a long run needs: it measures, writes checkpoints, and can be stopped and resumed. Is it
still the loop from above? Run both for twenty steps from the same start, on the same batches, with warm-up, decay, clipping and
weight decay. All parameters must agree.
"""

# %%
settings = trainer.TrainConfig(
    steps=20,
    batch_size=8,
    learning_rate=1e-3,
    warmup_steps=5,
    schedule="cosine",
    clip=1.0,
    seed=5,
)

torch.manual_seed(1)
package_model = GPT(config)
trainer.train(package_model, train, validation[:500], settings)

torch.manual_seed(1)
bare_model = GPT(config)
optimizer = torch.optim.AdamW(
    trainer.optimizer_groups(bare_model, settings.weight_decay), betas=settings.betas
)
generator = torch.Generator().manual_seed(settings.seed)
for step in range(settings.steps):
    for group in optimizer.param_groups:
        group["lr"] = trainer.lr_at(step, settings)
    x, y = data.get_batch(
        train, config.block_size, settings.batch_size, generator
    )  # (B, T) each
    optimizer.zero_grad()
    F.cross_entropy(bare_model(x).flatten(0, 1), y.flatten()).backward()
    torch.nn.utils.clip_grad_norm_(bare_model.parameters(), settings.clip)
    optimizer.step()

gap = max(
    (a - b).abs().max().item()
    for a, b in zip(bare_model.parameters(), package_model.parameters(), strict=True)
)
claim("loop_difference", gap, expected=0.0, tolerance=1e-5, kind="tolerance")
print(f"largest difference between two parameters {gap:.1e}")

# %% [markdown]
r"""
## How to read a loss

Two habits make a loss worth reading.

**On text that was held out.** The training loss says how well the model fits what it has seen. The validation loss says what
it has learned about the language.

**On all of it.** Many programs estimate the loss from a few random batches. That is quick, and it scatters. Ours goes through the whole
validation split in windows that do not overlap, so that every target counts once, and the same model gets the same number every time. The first
tokens of each window see little context, so the number is a little higher than with a full one. For the training loss, as many characters from the start of the training split
are enough.
"""

# %%
exact = trainer.evaluate(package_model, validation)
again = trainer.evaluate(package_model, validation)
assert exact == again  # bit for bit
claim("evaluated_targets", exact.tokens, expected=len(validation) - 1)

generator = torch.Generator().manual_seed(0)
estimates = []
with torch.no_grad():
    for _ in range(20):
        batches = [
            data.get_batch(validation, config.block_size, 16, generator)
            for _ in range(5)
        ]
        each = [
            F.cross_entropy(package_model(a).flatten(0, 1), b.flatten()).item()
            for a, b in batches
        ]
        estimates.append(sum(each) / len(each))
claim("estimate_spread", max(estimates) - min(estimates), kind="statistical")
print(f"whole split          {exact.loss:.4f}")
print(f"twenty estimates     {min(estimates):.4f} to {max(estimates):.4f}")

# %% [markdown]
r"""
The estimates lie up to {{ estimate_spread:.3f}} apart. Two models that differ by less cannot be told apart by such numbers.

## Two runs

Now for real. The build of this book trained two models to the end before it ran this page, each on {{ machine_threads }}, and others beside them. The first is
close to a small model of Andrej Karpathy's lecture "Let's build GPT": three layers, a ReLU as activation, a constant rate, no clipping. The
second is the model of page 8.
"""

# %%
from gptbook import recipes

small = recipes.trained("lets-build")
large = recipes.trained("step-5")
display.table(
    [
        (name, c.n_layer, c.n_head, c.n_embd, c.block_size, t.batch_size, t.schedule)
        for name in ("lets-build", "step-5")
        for c, t in [(PRESETS[name], TRAINING[name])]
    ],
    header=("recipe", "L", "H", "C", "T", "B", "learning rate"),
)

# %% [markdown]
r"""
Here is how they end.
"""

# %% tags=["hide-input"]
runs = {"lets-build": small, "step-5": large}
claim("margin_wanted", 0.3)
threads = large.summary["threads"]
claim("machine_threads", "one thread" if threads == 1 else f"{threads} threads")
rows = []
for name, run in runs.items():
    s = run.summary
    key = name.replace("-", "_")
    claim(key + "_parameters", sum(p.numel() for p in run.model.parameters()))
    claim(key + "_train_loss", s["train_loss"], kind="statistical")
    claim(key + "_val_loss", s["val_loss"], kind="statistical")
    claim(
        key + "_margin",
        bigram - s["val_loss"],
        expected=(0.3, None) if corpus.name == "tinyshakespeare" else None,
        kind="statistical",
    )
    claim(key + "_seconds", s["seconds"], kind="statistical")
    rows.append(
        (
            name,
            f"{sum(p.numel() for p in run.model.parameters()):,}",
            f"{s['steps']:,}",
            f"{s['train_loss']:.3f}",
            f"{s['val_loss']:.3f}",
            f"{s['val_loss'] / math.log(2):.3f}",
        )
    )
display.table(
    rows,
    header=(
        "recipe",
        "parameters",
        "steps",
        "training",
        "validation",
        "bits per character",
    ),
    caption="Both models at the end of training. The losses are in nats: over the whole of the validation split, and over as many characters from the start of the training split.",
)

# %% [markdown]
r"""
The small model ends {{ lets_build_margin:.2f}} nats below the bigram table, the larger one {{ step_5_margin:.2f}}. Both pass the mark
that we set before the run, a margin of {{ margin_wanted }}. Both also lie below the tables of page 2 that add one to every count. The two last rungs, {{ loss_mixed:.2f}} for mixed runs and {{ loss_compressor:.2f}} for the
compressor, stay ahead of both. This text is small, and a good table knows it nearly by heart. To pass them, this GPT needs more training than the minutes that
we spend here, or other parts: [page 17](17_today.py).

The lecture estimates its losses from random batches. Here is such an estimate, from fifty of them, beside the exact number.
"""

# %%
estimate = claim(
    "lets_build_val_estimate", small.summary["val_estimate"], kind="statistical"
)
claim(
    "lets_build_estimate_off",
    abs(estimate - small.summary["val_loss"]),
    expected=(0.0, 0.1),
    kind="statistical",
)
print(f"fifty random batches   {estimate:.4f}")
print(f"the whole split        {small.summary['val_loss']:.4f}")

# %% tags=["hide-input"] alt="Learning curves of both models: validation loss over training steps, with horizontal lines for the rungs of the loss ladder. Both curves cross the bigram line early and the trigram line later, and keep falling; the larger model ends lower, a little above the lines of the mixed table and of the compressor. Dashed curves of the loss on training text lie below them, and the gap widens." caption="Solid: validation loss over the whole split, on the loss ladder. Dashed: loss on as much training text."
fig, ax = display.figure(5.2, 3.2)
for (name, run), colour in zip(
    runs.items(), (display.ORANGE, display.BLUE), strict=True
):
    steps = [entry["step"] for entry in run.history]
    ax.plot(
        steps, [entry["val_loss"] for entry in run.history], color=colour, label=name
    )
    ax.plot(
        steps,
        [entry["train_loss"] for entry in run.history],
        color=colour,
        linestyle="--",
        linewidth=1,
    )
display.rungs(ax, rungs)
ax.set_xlabel("step")
ax.set_ylabel("loss (nats)")
ax.legend()

# %% [markdown]
r"""
The dashed line of each model lies a little below the solid one, and the gap grows. Part of what a model learns belongs to the
training text alone. When that part grows at the cost of the rest, the validation loss turns up, and the model is **overfitting**. These two have not come so far.

## What it cost

A weight of a matrix costs six operations for each token: a multiplication and an addition on the way forward, and twice as many on the
way back. The blocks hold $12 L C^2$ such weights, and the unembedding $V C$. Attention adds the scores and the weighted sums, $12\, L\, T\, C$
a token in all. Multiply by the tokens per second, and compare with what this machine does in one large matrix product. That was
measured before each run, in numbers of the same kind, and the better of the two counts. The kind stands in the table. Some processors have instructions for bfloat16, numbers of 16 bits in place of 32, and multiply them in less time. The recipes leave it to the processor. [Page 18](18_scaling.py) says why 16 bits are enough for the products, while weights and optimizer stay in 32.
"""

# %%
peaks = {}
for run in runs.values():
    kind = run.summary["precision"]
    peaks[kind] = max(run.summary["peak_gflops"], peaks.get(kind, 0))
claim("machine_peak", peaks[large.summary["precision"]], kind="statistical")
rows = []
for name, run in runs.items():
    c, s = run.model.config, run.summary
    matrices = 12 * c.n_layer * c.n_embd**2 + c.vocab_size * c.n_embd
    operations = 6 * matrices + 12 * c.n_layer * c.block_size * c.n_embd  # a token
    assert operations == recipes.flops_per_token(c)
    rate = operations * s["tokens_per_second"] / 1e9
    share = claim(
        name.replace("-", "_") + "_share_of_peak",
        rate / peaks[s["precision"]],
        kind="statistical",
    )
    numbers = (s["seconds"], s["tokens_per_second"], rate)
    shown = (f"{number:,.0f}" for number in numbers)
    rows.append((name, s["precision"], *shown, f"{share:.0%}"))
display.table(
    rows,
    header=("recipe", "numbers", "seconds", "tokens/s", "GFLOP/s", "share of peak"),
    caption=f"Threads: {large.summary['threads']}, of: {large.summary['processor']}. Seconds of training, evaluation apart.",
)

# %% [markdown]
r"""
A GFLOP/s is a billion operations a second. The peak for the larger model was {{ machine_peak:.0f}}. Looking up an embedding is no multiplication, so
embeddings do not count. The rest of the time goes into everything around the products: softmax, norms, the optimizer, memory. Other
work on the machine at the time lowers the share as well.

## Faster, rung by rung

The same model can be trained by code that is slow or by code that is fast. None of the changes below alters what is computed, but for rounding. So they can be
tried one after the other, and each has to show what it brings.

Begin with the code that one would write first. The heads of [page 5](05_heads.py) run one after the other, each with small matrices of its own. Here they are, cut out of a packed attention.
"""

# %%
from torch import nn

from gptbook import engine, machine
from gptbook.model import GPT


class OneByOne(nn.Module):
    """The heads of a packed attention, one after the other."""

    def __init__(self, packed):
        super().__init__()
        parts = packed.c_attn.weight.detach().chunk(3 * packed.n_head)  # each (D, C)
        self.heads = nn.ModuleList()
        for h in range(packed.n_head):
            head = nn.ModuleList()
            for part in parts[h :: packed.n_head]:  # its query, key and value
                linear = nn.Linear(part.size(1), part.size(0), bias=False)
                linear.weight.data.copy_(part)
                head.append(linear)
            self.heads.append(head)
        self.c_proj, self.past = packed.c_proj, packed.past

    def forward(self, x):
        T, outputs = x.size(1), []
        for query, key, value in self.heads:
            q, k, v = query(x), key(x), value(x)  # each (B, T, D)
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # (B, T, T)
            scores = scores.masked_fill(~self.past[:T, :T], float("-inf"))  # (B, T, T)
            outputs.append(F.softmax(scores, dim=-1) @ v)  # (B, T, D)
        return self.c_proj(torch.cat(outputs, dim=-1))  # (B, T, C)


# %% [markdown]
r"""
Next come the batches. The first idea is a list of slices, stacked. And the optimizer may walk over the parameters in a loop, or do the whole update in one fused operation.

The last rungs are in `gptbook/engine.py`. It can ask the C library to keep the memory of large tensors, which otherwise goes back to the system after every step. It can have the model's code **compiled**: PyTorch writes C++ for it, in which
many small operations share one loop. And it can multiply matrices in **bfloat16**, numbers with half the bits, if the processor has instructions for them. [Page 18](18_scaling.py) opens each of these.
"""

# %%
shape, settings = PRESETS["step-5"], TRAINING["step-5"]


def slices(tokens):
    B, T = settings.batch_size, shape.block_size
    starts = torch.randint(len(tokens) - T, (B,))
    x = torch.stack([tokens[i : i + T] for i in starts])  # (B, T)
    return x, torch.stack([tokens[i + 1 : i + T + 1] for i in starts])  # (B, T) each


def indexed(tokens):
    return data.get_batch(tokens, shape.block_size, settings.batch_size)


class Rung:
    """One way to do a step of the same training."""

    def __init__(self, heads, batch, fused, precision="float32", compiled=False):
        torch.manual_seed(1)
        self.model, self.batch = GPT(shape), batch  # the same weights each time
        if heads == "one by one":
            for block in self.model.h:
                block.attn = OneByOne(block.attn)
        groups = trainer.optimizer_groups(self.model, settings.weight_decay)
        how = {"fused": True} if fused else {"foreach": False, "fused": False}
        self.optimizer = torch.optim.AdamW(groups, betas=settings.betas, **how)
        self.engine = engine.make(
            self.model, trainer.loss_fn, precision, compiled, indexed(train)
        )

    def steps(self, number):
        for _ in range(number):
            x, y = self.batch(train)  # (B, T) each
            trainer.update(
                self.model, self.optimizer, x, y, 1e-4, 1.0, self.engine.loss
            )


ways = {
    "the plain loop": ("one by one", slices, False),
    "heads packed": ("packed", slices, False),
    "batch by one index": ("packed", indexed, False),
    "optimizer fused": ("packed", indexed, True),
    "memory kept": ("packed", indexed, True),
    "compiled": ("packed", indexed, True, "float32", True),
}
if machine.multiplies_bfloat16():
    ways["in bfloat16"] = ("packed", indexed, True, "bfloat16", True)
ways = {name: Rung(*way) for name, way in ways.items()}
print(ways["compiled"].engine.words or "all is plain")

# %% [markdown]
r"""
Before speed comes equality. All of them get the same batch, with the same weights. They must find the same loss and the same gradient. Lower precision and other orders of adding leave a difference, and the
bound says how large it may be.
"""

# %%
x, y = data.get_batch(
    train, shape.block_size, 12, torch.Generator().manual_seed(0)
)  # (B, T) each
found = {}
for name, way in ways.items():
    loss = way.engine.loss(x, y)
    (slope,) = torch.autograd.grad(loss, [way.model.wte.weight])  # (V, C)
    found[name] = loss.item(), slope
first_loss, first_slope = found["the plain loop"]
for name, (loss, slope) in found.items():
    off = ((slope - first_slope).norm() / first_slope.norm()).item()
    low = name == "in bfloat16"
    assert abs(loss - first_loss) < (0.02 if low else 1e-5), (name, loss, first_loss)
    assert off < (0.05 if low else 1e-4), (name, off)
    print(f"{name:20} loss {loss:.6f}   gradient off by {off:.0e}")

# %% [markdown]
r"""
Now the clock. They take turns, a few steps each, so that they meet the same machine, and the middle one of their times counts. This page runs on one thread. The setting for memory is one for the whole process. So the rungs above it take turns first, and then the others: between the two groups the machine may have changed a little.
"""

# %%
import statistics
import time


def race(names, rounds=9, number=3):
    """Tokens a second of each, in turns."""
    for name in names:
        ways[name].steps(2)  # the first ones are not counted
    times = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            begin = time.perf_counter()
            ways[name].steps(number)
            times[name].append((time.perf_counter() - begin) / number)
    tokens = settings.batch_size * shape.block_size
    return {name: tokens / statistics.median(t) for name, t in times.items()}


rungs_of_speed = list(ways)
speeds = race(rungs_of_speed[:4])
engine.keep_memory()
speeds |= race(rungs_of_speed[4:])
slowest, fastest = speeds[rungs_of_speed[0]], speeds[rungs_of_speed[-1]]
for name, speed in speeds.items():
    print(f"{name:20} {speed:8,.0f} tokens/s {speed / slowest:6.2f} times")
claim("speed_gain", fastest / slowest, kind="statistical")
claim("speed_packed", speeds["heads packed"] / slowest, kind="statistical")
low = machine.multiplies_bfloat16()
print(f"\nThis processor {'has' if low else 'has no'} instructions for bfloat16.")

# %% tags=["hide-input"] alt="A bar for each rung, from the plain loop at the top to the last rung of the engine at the bottom: the tokens that it trains on in a second." caption="Tokens a second on one thread, the same model and the same batches. Compilation is not counted."
fig, ax = display.figure(5.2, 0.42 * len(ways) + 0.7)
bars = ax.barh(
    rungs_of_speed[::-1],
    [speeds[name] for name in rungs_of_speed[::-1]],
    color=display.BLUE,
    height=0.6,
)
ax.bar_label(bars, [f"{speeds[name]:,.0f}" for name in rungs_of_speed[::-1]], padding=4)
ax.set_xlim(0, 1.2 * max(speeds.values()))
ax.set_xlabel("tokens a second")
ax.grid(axis="y", visible=False)

# %% [markdown]
r"""
All rungs together reach {{ speed_gain:.2f}} times the speed of the plain loop on the machine that built this page. Packing the heads alone reaches {{ speed_packed:.2f}} times that speed. What limits the rest? Nearly all the work is in products of
matrices, and no order of Python statements makes a processor multiply faster. Where it has instructions for bfloat16, products take a fraction of the time. Then everything else begins to count, and compiling pays. Where it has none, they
take as long as before, and less is left to gain. The last line above the picture says which of the two this machine is.

## What a loss looks like

A number is hard to feel. Read what models at different losses write, with the same seed and the same start. [Page 2](02_bigram.py) showed the
writing of the tables. Here is the larger model at several moments of its training.
"""

# %%
from IPython.display import display as show

from gptbook.sampling import generate

start = torch.tensor([tokenizer.encode("\n")])  # (1, 1)


def write(model, length):
    out = generate(
        model, start, max_new_tokens=length, generator=torch.Generator().manual_seed(7)
    )  # (1, 1 + length)
    return tokenizer.decode(out[0, 1:])


for step, model in large.snapshots():
    loss = trainer.evaluate(model, validation).loss
    show(
        display.sample(
            write(model, 200), label=f"After {step:,} steps: {loss:.2f} nats"
        )
    )

# %%
final = write(large.model, 400)
claim("home_sample", final)
display.sample(final, label=f"At the end: {large.summary['val_loss']:.2f} nats")

# %% [markdown]
r"""
Letter frequencies come first. Then come syllables, and already the layout of a play: a name, a colon, a new line. Real words come after
that. Sense does not come. For that, the model is small, its text is short, and its tokens are single letters.

## Your turn

### 1. The schedule

*About ten minutes.* Write `lr_at(step)` for a run of `1000` steps: a linear warm-up over the first `100` to a peak of `1e-3`, in
equal parts and already above zero at step 0. Then a half cosine down to `1e-4`, reached at the last step. Whether the peak comes with the
last step of the warm-up or right after it is up to you.

??? tip "Hint"

    The last step is number `999`, since the first is 0. Map the steps after warm-up to a share between 0 and 1 first, and put that into the cosine.

Check yours with `exercises.check("learning-rate", lr_at)`.
"""

# %% tags=["solution"]
from gptbook import exercises


def lr_at(step, peak=1e-3, low=1e-4, warmup=100, steps=1000):
    if step < warmup:
        return peak * (step + 1) / warmup
    share = (step - warmup) / (steps - 1 - warmup)
    return low + (peak - low) * (1 + math.cos(math.pi * share)) / 2


exercises.check("learning-rate", lr_at)

# %% [markdown]
r"""
### 2. Clip

*About ten minutes.* Write `clip(gradients, max_norm)`. It gets a list of tensors, and returns new ones, scaled together so that their
common length is at most `max_norm`.

??? tip "Hint"

    The common length is the root of the sum of all squares in all tensors. If it is within the limit, change nothing.

Check yours with `exercises.check("clip", clip)`.
"""


# %% tags=["solution"]
def clip(gradients, max_norm):
    length = math.sqrt(sum((g**2).sum().item() for g in gradients))
    factor = min(1.0, max_norm / length) if length > 0 else 1.0
    return [g * factor for g in gradients]


exercises.check("clip", clip)

# %% [markdown]
r"""
## What this page left out

Dropout. What each choice of the recipe is worth: the warm-up, the decay, the clipping. And the question what else one could do with
the same minutes: [page 17](17_today.py) changes the model and the optimizer.
"""
