# %% [markdown]
r"""
# Text into numbers

A text becomes a row of whole numbers, and every stretch of it becomes a set of small questions: what comes next?

A network computes with numbers, so letters must become numbers first. This page takes the plainest way: one number for
each character. Then it cuts the text into pieces that a model can learn from.

## A very small text

Start with something that fits in one line.
"""

# %%
small = "to be or not to be"
symbols = sorted(set(small))
print(symbols)

# %% [markdown]
r"""
`set` keeps each character once. `sorted` puts them into a fixed order, so that the same text gives the same numbers
tomorrow. The position in that list is the character's number. We call it a **token id**, and the list the
**vocabulary**. Its length is $V$.
"""

# %%
ids = {symbol: i for i, symbol in enumerate(symbols)}
numbers = [ids[character] for character in small]
print(numbers)
print("".join(symbols[i] for i in numbers))

# %% [markdown]
r"""
Turning the text into numbers is called **encoding**, and turning numbers into text **decoding**. The last line shows that
decoding undoes encoding: the text came back, and nothing was lost on the way.

## The real text

The book trains on a text of about a megabyte, small enough for a laptop. By default this is Tiny Shakespeare, a collection of
scenes from the plays. Andrej Karpathy put it together in 2015 for experiments with character models. It is looked for on your
machine first, then fetched, and its fingerprint is checked either way.
"""

# %%
from gptbook import corpora

corpus = corpora.load("tinyshakespeare")
text = corpus.text
print(corpus.name, "from:", corpus.source)
print("fingerprint (sha256):", corpus.sha256)

# %% [markdown]
r"""
A fingerprint of this kind changes completely when a single character changes. Equal fingerprints mean equal texts.

Numbers on these pages are recorded with `claim`. It gives a number a name, and stops the build if the number is not what is expected.
The prose then quotes it by name, so what you read is what the code computed.
"""

# %%
from gptbook.claims import claim

known = corpus.name == "tinyshakespeare"  # another text has other counts
claim("text_characters", len(text), expected=1_115_394 if known else None)
claim("text_symbols", len(set(text)), expected=65 if known else None)
print(f"{len(text):,} characters, {len(set(text))} different symbols")
print()
print(text[:250])

# %% [markdown]
r"""
So the text has {{ text_characters:,}} characters, and its vocabulary has $V =$ {{ text_symbols }} symbols. Here they
all are, in order.
"""

# %%
print("".join(sorted(set(text))))

# %% [markdown]
r"""
The first symbol does not show: it is the line end. The second is the space. Then come the signs, the capitals and the
small letters. Computers order them by the number that each has in Unicode.

How often does each occur? Far from equally. A model that knows only this picture already beats a blind guess, and
[page 2](02_bigram.py) puts a number on it.
"""

# %% tags=["hide-input"] alt="A bar chart of how often each of the most frequent symbols occurs in the text. The space is the most frequent by far, followed by the letter e and other common small letters." caption="The thirty most frequent symbols. ␣ is the space, ↵ the line end."
from collections import Counter

from gptbook import display

common = Counter(text).most_common(30)
fig, ax = display.figure(5.2, 2.4)
ax.bar(
    range(len(common)), [count / len(text) for _, count in common], color=display.BLUE
)
ax.set_xticks(range(len(common)), display.characters([symbol for symbol, _ in common]))
ax.tick_params(axis="x", length=0)
ax.set_yticks([0, 0.05, 0.10, 0.15])
ax.yaxis.set_major_formatter("{x:.0%}")
ax.set_ylabel("share of the text")

# %% [markdown]
r"""
## The tokenizer in the package

The package packs these lines into a class with two more duties: it can be saved beside a model, and it says clearly what
is wrong when it meets a character that it does not know.
"""

# %%
from gptbook.tokenizers import CharTokenizer

display.source(CharTokenizer.encode)

# %%
tokenizer = CharTokenizer.train(text)
symbols = sorted(set(text))
ids = {symbol: i for i, symbol in enumerate(symbols)}

by_hand = [ids[character] for character in text]
assert tokenizer.encode(text) == by_hand  # the same numbers, over the whole text
assert tokenizer.decode(by_hand) == text  # and back
print(tokenizer.encode("hii there"))

# %% [markdown]
r"""
!!! theorem "Decoding undoes encoding"

    Let a vocabulary be a list of distinct symbols. For every string $s$ over these symbols,
    $\operatorname{decode}(\operatorname{encode}(s)) = s$.

    Tested by `test_decoding_undoes_encoding`.

??? proof "Proof"

    The symbols are distinct, so each has exactly one position in the list, and the symbol at that position is the one we
    started from. Encoding and decoding treat each character on its own and keep the order. So every character returns
    to its place. $\blacksquare$

If encoding dropped what it does not know, the text would come back shorter, and nothing else would tell you. Distinct symbols
give the other direction too: encoding the decoded text returns the same ids. With a symbol twice in the list, one of its two
ids would never come back.

## Hold out the end

A model can learn a text by heart. To know whether it learned anything more, keep a part of the text that it never trains
on. We keep the last tenth for **validation**.
"""

# %%
import torch

from gptbook import data

tokens = torch.tensor(tokenizer.encode(text))  # (N,)
n = int(0.9 * len(tokens))
train, validation = tokens[:n], tokens[n:]

package_train, package_validation = data.split(tokens)
assert torch.equal(train, package_train)
assert torch.equal(validation, package_validation)
claim("train_tokens", len(train))
claim("validation_tokens", len(validation))
print(f"{len(train):,} tokens to train on, {len(validation):,} held out")

# %% [markdown]
r"""
Why the end, and not a random tenth? Pieces of text overlap. If validation pieces were drawn from all over the text, nearly
every character in them would also stand in some training piece, and the model would be examined on what it has seen. With
one cut there is a single border.

## What one example is

A model reads a **window** of $T$ tokens, its context. It does not answer once per window. It answers at every position:
given the tokens so far, what is next? So one window of $T$ tokens, with the one token that follows it, holds $T$
examples.
"""

# %%
T = 8
window = train[: T + 1]  # (T+1,)
x, y = window[:-1], window[1:]  # (T,) each: the questions and the answers
for t in range(T):
    seen = tokenizer.decode(x[: t + 1])
    print(f"after {seen!r:12} comes {tokenizer.decode(y[t : t + 1])!r}")

# %% [markdown]
r"""
This makes training cheap: a window of {{ example_window }} tokens costs one pass, and that pass is graded {{ example_window }}
times. It also means that the model must not look ahead. The answer to each question stands right there, one place further in
the input.

Side by side, the targets are the inputs moved by one.
"""

# %%
claim("example_window", T)
display.table(
    [
        ("input", *display.characters(tokenizer.decode(x))),
        ("target", *display.characters(tokenizer.decode(y))),
    ],
    header=("position", *range(T)),
)

# %% [markdown]
r"""
## A batch

We draw $B$ windows from random places and stack them, so that the machine works on all of them at once. Questions and answers
both have the shape $(B, T)$.
"""


# %%
def get_batch(tokens, block_size, batch_size, generator):
    starts = torch.randint(
        len(tokens) - block_size, (batch_size,), generator=generator
    )  # (B,)
    windows = torch.stack([tokens[s : s + block_size + 1] for s in starts])  # (B, T+1)
    return windows[:, :-1], windows[:, 1:]  # (B, T) each


xb, yb = get_batch(
    train, block_size=T, batch_size=4, generator=torch.Generator().manual_seed(0)
)
print(xb)
print(yb)

# %% [markdown]
r"""
How many starting places are there? A window needs $T + 1$ tokens, so the last start in a text of $N$ tokens is $N - T - 1$.
There are $N - T$ starts, and `randint(N - T)` draws each of them. Off by one here is a classic mistake. One too few, and
the last token is never a target. One too many, and once in a long while the last window comes out short.

The package takes all windows at once, without a loop. `unfold` shows the text as a table of overlapping windows, and does
not copy it.
"""

# %%
display.source(data.get_batch)

# %%
same_x, same_y = data.get_batch(train, T, 4, torch.Generator().manual_seed(0))
assert torch.equal(xb, same_x)
assert torch.equal(yb, same_y)

# %% [markdown]
r"""
## Checks

The first check is the definition of a target. The second uses the shortest text that has a window at all: it must give
that window and no other. The third asks that the two parts share nothing.
"""

# %%
xb, yb = data.get_batch(train, 64, 32, torch.Generator().manual_seed(1))  # (B, T) each
assert torch.equal(xb[:, 1:], yb[:, :-1]), "targets must be the inputs moved by one"

tiny = torch.arange(9)  # exactly T + 1 tokens
xs, ys = data.get_batch(tiny, 8, 100, torch.Generator().manual_seed(2))
assert (xs == tiny[:-1]).all()
assert (ys == tiny[1:]).all()

assert len(train) + len(validation) == len(tokens)
assert torch.equal(torch.cat([train, validation]), tokens)
print("three checks, all passed")

# %% [markdown]
r"""
## Your turn

Each exercise has a self-check. In a notebook, the last line of a cell shows its answer. In a script, print it:
`print(exercises.check("round-trip", make))`. When your answer passes, the check's answer ends with a code. On [the first page](index.md#your-checklist) some
of these codes tick an item of the checklist.

### 1. There and back

*About five minutes.* Write `make(text)`. It returns two functions, `encode` and `decode`, for the characters of that text.
The ids must be 0, 1, 2 and so on without gaps, and decoding must undo encoding for every string over those characters.

??? tip "Hint"

    Two dictionaries, one for each direction, both made from `sorted(set(text))`.

Check yours with `exercises.check("round-trip", make)`.
"""

# %% tags=["solution"]
from gptbook import exercises


def make(text):
    symbols = sorted(set(text))
    ids = {symbol: i for i, symbol in enumerate(symbols)}

    def encode(s):
        return [ids[character] for character in s]

    def decode(numbers):
        return "".join(symbols[i] for i in numbers)

    return encode, decode


exercises.check("round-trip", make)

# %% [markdown]
r"""
### 2. Why the end

*About ten minutes.* Measure the overlap that a random tenth would bring. Write `shared(train_starts, val_starts,
block_size)`. It gets two lists of window starts, and counts the positions of the text that are targets of some
validation window *and* of some training window.

??? tip "Hint"

    A window that starts at $s$ has its targets at $s + 1, \dots, s + T$. Collect positions in two sets.

Check yours with `exercises.check("shared-targets", shared)`.
"""


# %% tags=["solution"]
def shared(train_starts, val_starts, block_size):
    def targets(starts):
        return {s + k for s in starts for k in range(1, block_size + 1)}

    return len(targets(train_starts) & targets(val_starts))


# The point of it: hold out a random tenth of all windows, or the last tenth of the text.
starts = list(range(5000))
shuffled = torch.randperm(5000, generator=torch.Generator().manual_seed(3)).tolist()
at_random = shared(shuffled[500:], shuffled[:500], 64)
at_the_end = shared(starts[: 4500 - 64], starts[4500:], 64)
held_out = len({s + k for s in shuffled[:500] for k in range(1, 65)})
print(
    f"random tenth: {at_random:,} of {held_out:,} validation targets are training targets too"
)
print(f"last tenth:   {at_the_end:,}")
exercises.check("shared-targets", shared)

# %% [markdown]
r"""
### 3. A stranger

*About ten minutes.* A reader's prompt holds a character that the text lacks. `ids[character]` then raises a bare
`KeyError`, which helps nobody. Write `encode(text, ids)` that raises a `ValueError` instead, with a message that names the first
such character and its position, counted from 0.

??? tip "Hint"

    `enumerate` gives positions. Put the character into the message with `!r`, so that invisible ones show.

Check yours with `exercises.check("unseen-character", encode)`.
"""


# %% tags=["solution"]
def encode(text, ids):
    for position, character in enumerate(text):
        if character not in ids:
            raise ValueError(
                f"character {character!r} at position {position} is not in the vocabulary"
            )
    return [ids[character] for character in text]


exercises.check("unseen-character", encode)

# %% [markdown]
r"""
## What this page left out

Real models rarely use characters. They use pieces of words ([page 15](15_tokens.py)), so that common words cost one token. The text becomes shorter,
the vocabulary longer, and what follows stays the same. The next page makes the first model of this text, and a mark for all
that come after it: [the bigram baseline](02_bigram.py).
"""
