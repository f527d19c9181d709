# %% [markdown]
r"""
# Overfitting: a GPT that read only this book

A model that reads a short text many times goes on getting better at it. From some step on it gets no better at pages that it has not read.

So far the models of this book were small beside their text. This page turns that round. A model of the same size
reads a text that is much shorter: the pages of this book, as far as the model gets. The build measures where it turns, and whether what the model writes is copied.

## By heart

Here is a text of [page 2](02_bigram.py) once more, and the same words in another order. Count runs of $n$ symbols in the first
text, and turn the counts into shares. How surprised is this table by each of the two?
"""

# %%
import math
from collections import Counter

learned, other = "to be or not to be", "not to be or to be"


def surprise(text, n):
    """The mean surprise at a text, by shares of the runs of n symbols that were learned."""
    starts = range(len(learned) - n + 1)
    runs = Counter(learned[i : i + n] for i in starts)
    contexts = Counter(learned[i : i + n - 1] for i in starts)
    asked = [text[i : i + n] for i in range(len(text) - n + 1)]
    if any(run not in runs for run in asked):
        return math.inf  # a probability of zero
    return sum(-math.log(runs[run] / contexts[run[:-1]]) for run in asked) / len(asked)


for n in (1, 2, 3):
    print(
        f"n = {n}: learned {surprise(learned, n):.3f}, other {surprise(other, n):.3f}"
    )

# %% [markdown]
r"""
With one symbol or two the texts cost the same: they have the same letters, and their pairs differ in one, which has the same share in both. With three, nothing in the learned text
comes as a surprise. Give this table the first two letters, and it recites the whole text. But it calls the other text
impossible, although that has the same words.
"""

# %%
from gptbook.claims import claim

assert math.isclose(surprise(learned, 1), surprise(other, 1))
assert math.isclose(surprise(learned, 2), surprise(other, 2))
claim("own_by_heart", surprise(learned, 3), expected=0.0)
assert surprise(other, 3) == math.inf

# %% [markdown]
r"""
The table has learned the text by heart. That is **memorisation**. A model **overfits** when what it memorises makes
it worse at text that it has not seen. A table with a row for every context does this at once. A GPT does it slowly, and one can watch.

## The book as a text

The text is the prose of the pages, one after the other, up to {{ own_characters:,}} characters. That takes it into the page “{{ own_end_page }}”. Code and results are left out. Where a sentence quotes a
result, the text has the name of the result in double braces. So nothing that the model does can change what it reads.
"""

# %%
import torch

from gptbook import copying, data, display, ladder, recipes

own = recipes.trained("under-the-hood")
large = recipes.trained("step-5")  # page 9's model, which read Shakespeare

for line in own.corpus.text.splitlines()[:6]:
    print(line[:72])


# %%
def facts(run):
    """Characters to train on, symbols, parameters, and how often training went through the text."""
    training = recipes.TRAINING["under-the-hood" if run is own else "step-5"]
    characters = len(data.split(run.corpus.text)[0])
    seen = training.steps * training.batch_size * run.model.config.block_size
    parameters = sum(p.numel() for p in run.model.parameters())
    return characters, run.tokenizer.vocab_size, parameters, seen / characters


# %% tags=["hide-input"]
for name, run in (("own", own), ("shakespeare", large)):
    characters, symbols, parameters, passes = facts(run)
    claim(f"{name}_characters_train", characters)
    claim(f"{name}_passes", passes)
    claim(f"{name}_per_character", parameters / characters)
claim("own_parameters", facts(own)[2])
claim("own_symbols", facts(own)[1])
display.table(
    [
        (name, f"{c:,}", v, f"{p:,}", f"{p / c:.1f}", f"{times:.1f}")
        for name, run in (("this book", own), ("Shakespeare", large))
        for c, v, p, times in [facts(run)]
    ],
    header=("text", "characters", "symbols", "parameters", "per character", "passes"),
    caption="What there is to learn from, in the training part, and what learns it. A pass is as many tokens as the part has.",
)

# %% [markdown]
r"""
Page 9's model has fewer parameters than its text has characters, and it read each character about {{ shakespeare_passes:.1f}} times. The
model of this page has {{ own_per_character:.1f}} parameters for every character, and reads each about {{ own_passes:.0f}} times. It has room
for the text, and time to learn it.

The recipe: $L = 4$, $H = 4$, $C = 128$, a window of $T = 128$, $B = 32$, AdamW with a constant rate of `2e-3`, and `1000` steps. As
before, the last tenth of the text is held out. As on page 9, the processor decides in which numbers products are computed. When losses are measured
on the way, products are computed in the same kind of numbers; at the end, in 32 bits.

## How unlike the tenths are

The last tenth of Shakespeare is more Shakespeare. The last tenth of what the model may read of this book begins on the page “{{ own_held_out_page }}”. It speaks of other things than the pages before, with other words. Then a loss there may be higher for two reasons, and memorising is only one of them. How large is the other?

No network is needed to see it. Cut each text into ten equal parts. Count a trigram table on nine of them, and judge it on the
tenth.
"""


# %%
text, tokenizer = own.corpus.text, own.tokenizer
train_text, held_out = data.split(text)
claim("own_held_out_page", copying.place(text, len(train_text)).page)
claim("own_end_page", copying.place(text, len(text) - 1).page)
claim("own_characters", len(text))


def by_tenth(run):
    """The loss of a trigram table on each tenth of a text, counted on the other nine."""
    V = run.tokenizer.vocab_size
    parts = torch.tensor(run.tokenizer.encode(run.corpus.text)).tensor_split(10)
    rest = [torch.cat(parts[:i] + parts[i + 1 :]) for i in range(10)]
    return [
        ladder.ngram_loss(seen, part, V, 3)
        for seen, part in zip(rest, parts, strict=True)
    ]


tenths = {"this book": by_tenth(own), "Shakespeare": by_tenth(large)}
claim("own_last_tenth", tenths["this book"][-1])
claim("own_first_tenth", tenths["this book"][0])

claim(
    "shakespeare_tenths",
    max(tenths["Shakespeare"]) - min(tenths["Shakespeare"]),
    expected=(0, 0.15) if large.corpus.name == "tinyshakespeare" else None,
)
for name, losses in tenths.items():
    print(f"{name:11}", [f"{loss:.2f}" for loss in losses])

# %% tags=["hide-input"] alt="Two rows of ten bars, the loss of a trigram table on each tenth of a text. For Shakespeare all ten bars are about equally high. For this book they differ more." caption="Loss of a trigram table on each tenth, counted on the other nine. The last tenth is the validation part."
fig, axes = display.figure(5.2, 2.5, columns=2, sharey=True)
for ax, (name, losses) in zip(axes, tenths.items(), strict=True):
    ax.bar(range(1, 10), losses[:9], color=display.BLUE)
    ax.bar([10], losses[9:], color=display.ORANGE, hatch="//")
    ax.set_xticks(range(1, 11))
    ax.set_xlabel("tenth")
    ax.set_title(name, fontsize=10)
axes[0].set_ylabel("loss (nats)")

# %% [markdown]
r"""
Shakespeare's tenths differ by {{ shakespeare_tenths:.2f}} nats at most. The training loss below is measured on the first tenth of this book, as many characters as are held out. That tenth costs a table that has not seen it {{ own_first_tenth:.2f}} nats, the last one {{ own_last_tenth:.2f}}. As far as a table of three symbols can tell, the difference between these two is how much of the distance between the curves below belongs to the words of the page, and not to memory.

## One run, two losses
"""

# %%
history = own.history
turn = min(history, key=lambda row: row["val_loss"])  # the first, of several
last = history[-1]

# %% tags=["hide-input"]
claim("own_turn_step", turn["step"], kind="statistical")
claim("own_turn_loss", turn["val_loss"], kind="statistical")
claim("own_steps", last["step"])
claim("own_last_train", last["train_loss"], kind="statistical")
claim("own_last_val", last["val_loss"], kind="statistical")
rise = last["val_loss"] - turn["val_loss"]
claim("own_rise", rise, expected=(0.02, None), kind="statistical")
fall = turn["train_loss"] - last["train_loss"]
claim("own_fall", fall, kind="statistical")
claim("own_every", recipes.TRAINING["under-the-hood"].eval_every)
gap = last["val_loss"] - last["train_loss"]
claim("own_gap", gap, expected=(0.5, None), kind="statistical")
display.table(
    [
        (row["step"], f"{row['train_loss']:.3f}", f"{row['val_loss']:.3f}")
        for row in history
        if row["step"] in (0, 50, 200, 500, 1000, turn["step"])
    ],
    header=("step", "training loss", "validation loss"),
    caption="Training loss over the first tenth of the text, validation loss over the last.",
)

# %% tags=["hide-input"] alt="Two learning curves over {{ own_steps }} steps, with horizontal lines for the rungs of the loss ladder. Both fall at first. The curve of the training loss falls on to the end, far below all rungs. The curve of the validation loss has its lowest point where a vertical line stands, and rises from there." caption="The losses of one run, on the loss ladder of this text. The vertical line stands where the validation loss is lowest."
rungs = ladder.ladder(torch.tensor(tokenizer.encode(text)), tokenizer)
steps = [row["step"] for row in history]
fig, ax = display.figure(5.2, 3.2)
ax.plot(
    steps,
    [row["val_loss"] for row in history],
    color=display.BLUE,
    label="validation",
)
ax.plot(
    steps,
    [row["train_loss"] for row in history],
    color=display.ORANGE,
    linestyle="--",
    label="training",
)
ax.axvline(turn["step"], color=display.RED, linestyle="-.", linewidth=1)
display.rungs(ax, rungs)
ax.set_ylim(bottom=0)
ax.set_xlabel("step")
ax.set_ylabel("loss (nats)")
ax.legend()

# %% [markdown]
r"""
The validation loss is lowest at step {{ own_turn_step }}, with {{ own_turn_loss:.2f}}. There it turns. From there to the end the training loss falls by another
{{ own_fall:.2f}} nats, to {{ own_last_train:.2f}}, and the validation loss ends {{ own_rise:.2f}} higher than it was. On balance, what the model learned after the turn was no use on the other pages, or it did harm.

The red line is only as sure as the measurements. They come every {{ own_every }} steps, and with a constant rate the loss of neighbouring ones jumps up and down a little. Where exactly the lowest of them
lies is partly luck. That one curve falls on while the other does not is no luck.

## What it writes

Weights were kept at several steps. Let each of these models write sixteen short texts from a line end, each as long as the window
allows, with the [cache](11_cache.py). Here is the first of the sixteen.
"""

# %%
from IPython.display import display as show

from gptbook import kv_cache

ROWS, LENGTH = 16, 127


def write(model, tokenizer, start="\n"):
    """Sixteen texts of 127 characters that a model wrote."""
    idx = torch.tensor(tokenizer.encode(start)).repeat(ROWS, 1)  # (ROWS, 1)
    generator = torch.Generator().manual_seed(3)
    out = kv_cache.generate(model, idx, LENGTH, generator=generator)
    return [tokenizer.decode(row) for row in out[:, 1:]]


models = {**dict(own.snapshots()), last["step"]: own.model}
written = {step: write(model, tokenizer) for step, model in models.items()}
losses = {row["step"]: row for row in history}
for step in (0, 50, 200, 500, last["step"]):
    label = (
        f"After {step:,} steps: {losses[step]['train_loss']:.2f} nats on its own text"
    )
    show(display.sample(written[step][0], label=label))

# %% [markdown]
r"""
Late texts look like this book. Is that style, or are they copies? Eyes are bad at telling. A meter is better.

## A meter of copying

Take a text that the model wrote. Find the longest piece of it that stands in the training text, to the letter. Its length is the
**longest copied span**. You will write the function yourself below. Here is the package's, on something small.
"""

# %%
sample, source = "the mat on the cat", "a cat sat on the mat"
length, start = copying.longest_copied(sample, source)
print(length, repr(sample[start : start + length]))

# %% [markdown]
r"""
A meter needs a zero and a top. For the top, make a model that surely copies: a small GPT that reads one paragraph and nothing else.
"""

# %%
import re

import torch.nn.functional as F

from gptbook.model import GPT, GPTConfig
from gptbook.tokenizers import CharTokenizer

words_only = re.compile(r"[A-Z][\w ,.:'?\n-]+")
plain = [p for p in train_text.split("\n\n") if words_only.fullmatch(p)]
paragraph = min((p for p in plain if len(p) > 2 * LENGTH), key=len)
letters = CharTokenizer.train(paragraph)
row = torch.tensor(letters.encode(paragraph))  # (N,)

torch.manual_seed(0)
parrot = GPT(GPTConfig(letters.vocab_size, block_size=64, n_layer=1, n_embd=64))
optimizer = torch.optim.AdamW(parrot.parameters(), lr=3e-3)
generator = torch.Generator().manual_seed(0)
for _ in range(400):
    x, y = data.get_batch(row, 64, 8, generator)  # (B, T) each
    loss = F.cross_entropy(parrot(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{len(paragraph)} characters, last loss {loss.item():.3f}")

by_heart = write(parrot, letters, start=paragraph[0])
display.sample(by_heart[0], label="By a model that read one paragraph")

# %% [markdown]
r"""
For the zero, ask what a *fresh* text shares with the training part. A long span alone proves nothing. Every writer of English repeats phrases, and this book repeats
its own. Two texts are fresh here: the held-out part, and each page that was trained on, if only the others are searched. Cut them into pieces of the same length.
"""


# %%
def spans(texts, known):
    """The longest copied span of each text."""
    return [copying.longest_copied(each, known)[0] for each in texts]


def starts(length):
    """Where sixteen pieces begin that are spread evenly over so many characters."""
    return [i * (length - LENGTH) // (ROWS - 1) for i in range(ROWS)]


def pieces(fresh):
    return [fresh[at : at + LENGTH] for at in starts(len(fresh))]


def among_themselves(text, around=5_000):
    """What pieces of a text share with the rest of it, their own neighbourhood left out."""
    return [
        copying.longest_copied(
            text[at : at + LENGTH],
            text[: max(0, at - around)] + "\0" + text[at + around :],
        )[0]
        for at in starts(len(text))
    ]


copied = {step: spans(texts, train_text) for step, texts in written.items()}
controls = {
    "this book, held out": spans(pieces(held_out), train_text),
    "this book, page against page": among_themselves(train_text),
    "one paragraph, by heart": spans(by_heart, paragraph),
}
shakespeare, scenes = data.split(large.corpus.text)
others = {
    "page 9's model": spans(write(large.model, large.tokenizer), shakespeare),
    "Shakespeare, held out": spans(pieces(scenes), shakespeare),
}
mean = {key: sum(each) / ROWS for key, each in {**copied, **controls, **others}.items()}

# %% tags=["hide-input"]
fresh_mean = claim("own_fresh_span", mean["this book, held out"])
page_mean = claim("own_page_span", mean["this book, page against page"])
claim("own_span_first", mean[0], kind="statistical")
claim(
    "own_span_turn_of",
    best_step := max(s for s in models if s <= turn["step"]),
    kind="statistical",
)
claim("own_span_turn", mean[best_step], kind="statistical")
final_mean = claim(
    "own_span_last",
    mean[last["step"]],
    expected=(mean[0], 2 * max(fresh_mean, page_mean)),
    kind="statistical",
)
claim("own_span_longest", max(copied[last["step"]]), kind="statistical")
claim("own_span_pieces", LENGTH)
claim(
    "own_parrot_span",
    mean["one paragraph, by heart"],
    expected=(2 * final_mean, None),
    kind="statistical",
)
claim("shakespeare_fresh_span", mean["Shakespeare, held out"])
claim("step_5_span", mean["page 9's model"], kind="statistical")
display.table(
    [
        (
            f"after {key:,} steps" if key in copied else key,
            f"{mean[key]:.1f}",
            max(each),
        )
        for key, each in {**copied, **controls, **others}.items()
    ],
    header=("sixteen texts", "mean span", "longest"),
    caption="Characters in the longest copied span. The last two rows are compared with Shakespeare's training part.",
)

# %% tags=["hide-input"] alt="The mean longest copied span over the steps of training: a line that rises on the whole. Horizontal lines mark the held-out part, the pages of the book against one another, and, far above all of them, the model that read one paragraph." caption="The mean of the longest copied spans in what each snapshot writes, and what it must be compared with. The vertical line stands where the validation loss is lowest."
fig, ax = display.figure(5.2, 2.8)
ax.plot(
    list(copied), [mean[s] for s in copied], "o-", color=display.BLUE, label="written"
)
for name, colour, style in (
    ("one paragraph, by heart", display.PURPLE, "-"),
    ("this book, held out", display.GREEN, "--"),
    ("this book, page against page", display.ORANGE, ":"),
):
    ax.axhline(mean[name], color=colour, linestyle=style, label=name)
ax.axvline(turn["step"], color=display.RED, linestyle="-.", linewidth=1)
ax.set_yscale("log")
ax.set_yticks([3, 10, 30, 100], [3, 10, 30, 100])
ax.minorticks_off()
ax.set_xlabel("step")
ax.set_ylabel("characters")
ax.legend(fontsize=8)

# %% [markdown]
r"""
On the whole the spans grow: {{ own_span_first:.0f}} characters before training, {{ own_span_turn:.0f}} after {{ own_span_turn_of }} steps, {{ own_span_last:.0f}} at the end. A
model that knows its paragraph by heart comes to {{ own_parrot_span:.0f}} of the {{ own_span_pieces }}. The zero of the meter lies at {{ own_page_span:.0f}}, what the pages share with one another,
or at {{ own_fresh_span:.0f}}, what the held-out part shares with them. Which of the two is fairer depends on what the held-out page speaks of.

Read these together. The validation loss had turned, and still the copies are about as long as those that a page of this book holds anyway. **This model overfits
before it recites.** What it learned after the turn is something smaller than sentences. The meter does not say what.

Page 9's model comes to {{ step_5_span:.0f}}, where fresh Shakespeare has {{ shakespeare_fresh_span:.0f}}. A longer text has more to match by chance, so compare each
model with the fresh part of its own text, and not the two with each other.

These are the longest copies in the sixteen texts. Each is marked, and leads to where it stands in the book.
"""

# %%
final = written[last["step"]]
for sample in sorted(
    final, key=lambda each: -copying.longest_copied(each, train_text)[0]
)[:3]:
    length, _ = copying.longest_copied(sample, train_text)
    show(copying.passage(sample, train_text, label=f"{length} characters"))

# %% [markdown]
r"""
## Reciting

When it draws its letters, one unlikely draw leaves every track. So take chance away: give it the first 40 characters of a paragraph that it has read, and let
it continue at temperature 0. How far does it get before its first wrong character? The control is paragraphs of the held-out part.
"""

# %%
PROMPT = 40


def paragraphs(part, count=12):
    """Paragraphs of plain words, spread evenly over a part of the text."""
    found = [p for p in part.split("\n\n") if len(p) > LENGTH and p[0].isalpha()]
    return [found[i * len(found) // count] for i in range(count)] if found else []


def recite(model, wanted):
    """How many characters the model gets right after the start of each paragraph, and what it writes."""
    starts = torch.tensor([tokenizer.encode(p[:PROMPT]) for p in wanted])  # (N, PROMPT)
    out = kv_cache.generate(model, starts, LENGTH - PROMPT, temperature=0)
    said = [tokenizer.decode(row[PROMPT:]) for row in out]
    right = []
    for paragraph, words in zip(wanted, said, strict=True):
        pairs = zip(paragraph[PROMPT:LENGTH], words, strict=True)
        right.append(next((i for i, (a, b) in enumerate(pairs) if a != b), len(words)))
    return right, said


known, unknown = paragraphs(train_text), paragraphs(held_out, 6)
best = min(models, key=lambda step: losses[step]["val_loss"])
right, said = recite(own.model, known)
rows = [
    ("read, at the end", right),
    (f"read, after {best} steps", recite(models[best], known)[0]),
    ("held out, at the end", recite(own.model, unknown)[0]),
]

# %% tags=["hide-input"]
claim(
    "own_recited",
    sum(right) / len(right),
    expected=(None, 30.0),
    kind="statistical",
)
claim("own_recited_most", max(right), kind="statistical")
claim("own_recited_best", sum(rows[1][1]) / len(known), kind="statistical")
claim("own_recited_fresh", sum(rows[2][1]) / len(unknown), kind="statistical")
claim("own_recited_room", LENGTH - PROMPT)
display.table(
    [(name, len(r), f"{sum(r) / len(r):.1f}", max(r)) for name, r in rows],
    header=("paragraphs", "how many", "mean", "most"),
    caption="Characters recited before the first wrong one.",
)

# %%
longest = max(range(len(known)), key=lambda i: right[i])
words, so_far = said[longest], right[longest]
copying.Passage(
    before=known[longest][:PROMPT],
    span=words[:so_far],
    after=words[so_far:],
    where=copying.place(text, text.index(known[longest])),
    label=f"{so_far} characters recited",
)

# %% [markdown]
r"""
Of {{ own_recited_room }} characters, the model recites {{ own_recited:.1f}} on average from what it read, and {{ own_recited_fresh:.1f}} from
paragraphs that it did not. After {{ own_best_step }} steps it was {{ own_recited_best:.1f}}. At the temperature that leaves it no choice, it still loses the track within a word or two. The rows are too few to tell them apart. A model that
has read one paragraph does not:
"""

# %%
out = kv_cache.generate(parrot, row[None, :PROMPT], LENGTH - PROMPT, temperature=0)
said = letters.decode(out[0, PROMPT:])
right = next(
    (
        i
        for i, pair in enumerate(zip(said, paragraph[PROMPT:], strict=False))
        if len(set(pair)) > 1
    ),
    len(said),
)
claim("own_parrot_recited", right, expected=(2 * PROMPT, None), kind="statistical")
print(f"{right} of {len(said)} characters")

# %% [markdown]
r"""
Learning and reciting are no two stages of a run. Both go on all the time, and how far either gets depends on how often each piece of text is read.

## Stopping in time

The simplest cure is to keep the weights from the moment when validation was lowest: **early stopping**. Of the weights that this run kept, the
ones after step {{ own_best_step }} have the lowest validation loss.
"""

# %%
from gptbook.trainer import evaluate

val_tokens = torch.tensor(tokenizer.encode(held_out))  # (N,)
kept = evaluate(models[best], val_tokens).loss
assert abs(kept - losses[best]["val_loss"]) < 1e-2  # on the way, perhaps in 16 bits
claim("own_best_step", best, kind="statistical")
claim("own_best_loss", kept, kind="statistical")
print(f"kept after step {best}: {kept:.3f} nats, at the end {last['val_loss']:.3f}")

# %% [markdown]
r"""
That costs nothing but disk, and the run could have ended there. It has a price that is easy to overlook. Whoever stops by the validation loss has chosen
by it, so that loss is now a little too good to be true. A fair number for the chosen model needs a third part of the text, one that decided nothing.

## More text

Early stopping makes the best of a short text. More text removes the cause. Compare the gaps between the two losses at the end.
"""

# %%
step_5_gap = large.summary["val_loss"] - large.summary["train_loss"]
bounds = (None, gap) if large.corpus.name == "tinyshakespeare" else None
claim("step_5_gap", step_5_gap, expected=bounds, kind="statistical")
display.table(
    [
        (name, f"{t:.3f}", f"{v:.3f}", f"{v - t:.3f}")
        for name, t, v in (
            ("this book, at the turn", turn["train_loss"], turn["val_loss"]),
            ("this book, at the end", last["train_loss"], last["val_loss"]),
            ("Shakespeare", large.summary["train_loss"], large.summary["val_loss"]),
        )
    ],
    header=("text", "training", "validation", "gap"),
    caption="Losses in nats: over the whole of the validation part, and over as many characters from the start of the training part.",
)

# %% [markdown]
r"""
On Shakespeare the gap is {{ step_5_gap:.2f}} nats, after {{ step_5_val_loss:.2f}} on validation. Here it is {{ own_gap:.2f}}. The models have nearly the same size. What differs is the text, longer there, and how often it was read. With
{{ shakespeare_passes:.1f}} passes there is little time to learn anything by heart. Do not read more into the two rows than that: window, batch and rate
differ as well.

## Your turn

### 1. The longest span

*About fifteen minutes.* Write `longest_copied(sample, text)`. It gets two strings, and returns two numbers: the length in characters of the longest piece of
`sample` that stands in `text` without a gap, and where in `sample` this piece begins, counted from 0. Of several pieces of the same length take the first. If the two share no
character, return `(0, 0)`. A sample of a few hundred characters should take no more than some seconds.

??? tip "Hint"

    `piece in text` searches for you. Go through the starts. A piece that is not longer than the best so far is not worth a search.

Check yours with `exercises.check("longest-span", longest_copied)`.
"""

# %% tags=["solution"]
from gptbook import exercises


def longest_copied(sample, text):
    length, start = 0, 0
    for i in range(len(sample)):
        while (
            i + length < len(sample) and sample[i : i + length + 1] in text
        ):  # one longer than the best
            length, start = length + 1, i
    return length, start


for each in final[:4]:
    theirs = copying.longest_copied(each, train_text)
    assert longest_copied(each, train_text) == theirs
exercises.check("longest-span", longest_copied)

# %% [markdown]
r"""
### 2. Where it turns

*About five minutes.* Write `turning_step(history)`. It gets a list of measurements in the order of their steps, each a dictionary with `step`, `train_loss` and `val_loss`. It returns
the step at which the validation loss is lowest. If several tie, it is the first of them.

??? tip "Hint"

    `min` takes a `key`, and of several that tie it returns the first.

Check yours with `exercises.check("where-it-turns", turning_step)`.
"""


# %% tags=["solution"]
def turning_step(history):
    return min(history, key=lambda row: row["val_loss"])["step"]


assert turning_step(history) == turn["step"]
exercises.check("where-it-turns", turning_step)

# %% [markdown]
r"""
### 3. Stopping with patience

*About ten minutes.* A validation loss may rise once and fall again, so nobody stops at the first rise. Write `stop_at(losses, patience)`. It gets the validation losses in
order, and a whole number of at least 1. A measurement *brings something* if it is lower than all before it, as the first one is. Stop at the measurement that completes a row of
`patience` in which none brought anything. Return its place in the list, counted from 0. If that never happens, return the place of the last measurement.

??? tip "Hint"

    Carry two things along: the lowest loss so far, and how many measurements ago that was.

Check yours with `exercises.check("early-stopping", stop_at)`.
"""


# %% tags=["solution"]
def stop_at(losses, patience):
    best, waited = math.inf, 0
    for i, loss in enumerate(losses):
        waited = 0 if loss < best else waited + 1
        best = min(best, loss)
        if waited == patience:
            return i
    return len(losses) - 1


exercises.check("early-stopping", stop_at)

# %% [markdown]
r"""
## What this page left out

Other cures: dropout, stronger weight decay, a smaller model. Copies with a letter changed, which the meter does not see. Models so large that the validation loss turns down once more.
And whether a model may recite what it read, which is a question for people and not for a meter.

Next: [Tokens](15_tokens.py). Until here a token was a letter. Now it becomes a piece of a word.

Where to read on:

* In this book: [Home](index.md) has the checklist, and [Notation](notation.md) every symbol and word. Return to [Training](09_training.py) with an eye on both losses,
  to [Sampling](10_sampling.py) for what temperature does to copies, and to [Looking inside our GPT](12_lens.py) for the heads that do the copying.
* On memorisation in large models: Carlini et al., "Extracting Training Data from Large Language Models".
* On the second descent of the validation loss: Belkin et al., "Reconciling modern machine-learning practice and the classical bias-variance trade-off".
* On dropout: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting".
"""
