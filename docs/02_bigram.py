# %% [markdown]
r"""
# The bigram baseline

A table of which symbol follows which, counted in a fraction of a second, sets the mark that every network of this book has to
beat.

A model of language answers one question over and over: what comes next? This page gives the cheapest answers there are. Along
the way it settles how an answer is graded, and it trains the book's first model, a table that learns to be what we could
have counted.

## Next symbols by hand

Here is the small text of [page 1](01_text.py) again. List what follows each symbol in it.
"""

# %%
from collections import Counter, defaultdict
from itertools import pairwise

small = "to be or not to be"
followers = defaultdict(Counter)
for first, second in pairwise(small):
    followers[first][second] += 1

for first, counts in followers.items():
    print(f"after {first!r}: {dict(counts)}")

# %% [markdown]
r"""
The letter `o` stands there four times. A space follows it twice, and `r` and `t` once each. So a fair guess for what follows
an `o` gives the space a **probability** of one half, and the two letters a quarter each. Two neighbouring symbols are called a **bigram**,
and a model that looks at one symbol to guess the next is a bigram model.

## Grading a guess

The next symbol comes. How good was the guess? If the model gave that symbol the probability $p$, its **surprise** is
$-\ln p$.
"""

# %%
import math

for p in (1.0, 0.5, 0.25, 0.01):
    print(f"probability {p:<5} surprise {math.log(1 / p):.3f}")

# %% [markdown]
r"""
A sure and right guess costs nothing. Each halving of the probability costs the same amount more, $\ln 2$. A symbol that was called
impossible would cost infinitely much.

Why a logarithm? Because probabilities of one symbol after another multiply, and logarithms add. The surprise at a whole text is the sum
of the surprises at its symbols. The mean over all symbols is the **loss**, and it is also called cross entropy. With the natural logarithm, its unit is the **nat**. With the logarithm to
base 2 it would be the bit, and one nat is $\frac{1}{\ln 2}$ bits.

A model that wavers between three equally likely symbols pays $\ln 3$. So $e$ to the
loss says among how many symbols a model wavers, in that sense. It is called the **perplexity**.

## The blind guess

Now the real text, split as on page 1. Everything is counted on the training part. Everything is judged on the validation part.
"""

# %%
import torch
import torch.nn.functional as F

from gptbook import corpora, data, display
from gptbook.claims import claim
from gptbook.tokenizers import CharTokenizer

corpus = corpora.load("tinyshakespeare")
# On a text with more than 65 symbols, the rarest share one sign.
tokenizer = CharTokenizer.train(corpus.text, vocab_size=65)
V = tokenizer.vocab_size
tokens = torch.tensor(tokenizer.encode(corpus.text))  # (N,)
train, validation = data.split(tokens)
known = corpus.name == "tinyshakespeare"  # another text has other losses

# %% [markdown]
r"""
A model that knows nothing gives each of the $V$ symbols the probability $\frac{1}{V}$. Whatever comes, its surprise is $\ln V$.
"""

# %%
uniform = claim("loss_uniform", math.log(V))
claim("uniform_rounded", round(uniform, 4), expected=4.1744)
print(f"uniform: {uniform:.4f} nats")

# %% [markdown]
r"""
Remember this number. A network whose first loss is far above {{ loss_uniform:.2f}} starts out with strong opinions about nothing, and
something in it is wrong.

## One symbol alone

Symbols are not equally frequent. Count them, and turn counts into shares. We add one to every count, so that a symbol which the
training part lacks is rare and not impossible.
"""

# %%
singles = torch.bincount(train, minlength=V) + 1.0  # (V,)
unigram_table = singles / singles.sum()  # (V,): sums to 1
unigram = -unigram_table.log()[validation].mean().item()
claim("loss_unigram", unigram, expected=(3.2, 3.4) if known else None, kind="tolerance")
print(f"unigram: {unigram:.4f} nats")

# %% [markdown]
r"""
That is {{ unigram_gain:.2f}} nats less than blind guessing, from {{ vocab_size }} numbers. Could other numbers do better, with nothing but single symbols? On the text that was
counted, none can.

!!! theorem "Counting gives the best table"

    Let symbol $i$ occur $n_i$ times among $N$. Among all probabilities $p$, the mean surprise
    $-\frac{1}{N} \sum_i n_i \ln p_i$ is smallest for the shares $q_i = \frac{n_i}{N}$, and for no other $p$.

    Tested by `test_counting_gives_the_best_table`.

??? proof "Proof"

    For every $z > 0$ we have $\ln z \le z - 1$, with equality only at $z = 1$: the logarithm is curved downwards, and
    $z - 1$ is its tangent there. Take the sum over the symbols that occur, with $z = \frac{p_i}{q_i}$ for each:

    $$ \sum_i q_i \ln \frac{p_i}{q_i} \;\le\; \sum_i q_i \Bigl(\frac{p_i}{q_i} - 1\Bigr) \;=\; \sum_i p_i - \sum_i q_i \;\le\; 1 - 1 = 0 . $$

    So $-\sum_i q_i \ln p_i \ge -\sum_i q_i \ln q_i$. If some $p_i$ is zero where $q_i$ is not, the left side is infinite, and
    the claim holds as well. Equality needs $\frac{p_i}{q_i} = 1$ for every symbol that occurs. These $p_i$ already sum to
    one, so all others are zero, and $p = q$. $\blacksquare$

The smallest value, $-\sum_i q_i \ln q_i$, is the **entropy** of the shares. Adding one to each count moves us a little away from it.
"""

# %%
claim("unigram_gain", uniform - unigram)
counts = torch.bincount(train, minlength=V).double()  # (V,)
shares = counts[counts > 0] / counts.sum()
entropy = -(shares * shares.log()).sum()
on_train = -(counts / counts.sum() * unigram_table.double().log()).sum()
assert on_train >= entropy
claim(
    "unigram_above_entropy",
    on_train - entropy,
    expected=(0.0, 1e-4),
    kind="tolerance",
)
print(f"entropy of the training part      {entropy:.4f}")
print(f"our table, above it on that part  {on_train - entropy:.7f}")

# %% [markdown]
r"""
## Two symbols: counted

For the bigram model, count pairs. Row $i$ of the table belongs to the symbol that was seen, column $j$ to the one that follows. Divide each row
by its sum, and it holds the probabilities of what follows symbol $i$.
"""

# %%
pairs = torch.bincount(train[:-1] * V + train[1:], minlength=V * V).view(V, V)  # (V, V)
bigram_table = (pairs + 1.0) / (pairs + 1.0).sum(dim=1, keepdim=True)  # (V, V)
bigram = -bigram_table.log()[validation[:-1], validation[1:]].mean().item()
claim("loss_bigram", bigram, expected=(2.4, 2.6) if known else None, kind="tolerance")
claim("bigram_perplexity", math.exp(bigram))
print(f"bigram: {bigram:.4f} nats")

# %% tags=["hide-input"] alt="A square grid with one row and one column for each of twenty frequent symbols. Each row has a few darker cells and many that are nearly empty. The darkest cell is a space after a comma." caption="What follows what. Each row belongs to a symbol, each column to the next one, for the twenty most frequent symbols. ␣ is the space, ↵ the line end."
common = singles.argsort(descending=True)[:20].tolist()
fig, ax = display.figure(4.6, 4.4)
names = display.characters(tokenizer.decode(common))
display.heatmap(ax, bigram_table[common][:, common], names, names)
ax.set_ylabel("seen")
ax.set_xlabel("next")
ax.xaxis.set_label_position("top")

# %% [markdown]
r"""
The bigram table pays {{ loss_bigram:.3f}} nats a symbol. Its perplexity is {{ bigram_perplexity:.1f}}: it wavers as if between {{ bigram_perplexity:.0f}} equal choices, where the blind guess
wavers between {{ vocab_size }}. This is the number to beat.

Why add one? Most of the possible pairs never occur in the training part. If one of them turns up in the validation part, a table of bare
shares calls it impossible, and a single such pair makes the mean infinite.
"""

# %%
bare = pairs / pairs.sum(dim=1, keepdim=True)  # (V, V)
unseen = claim("pairs_unseen", (pairs == 0).double().mean(), kind="tolerance")
met = (pairs[validation[:-1], validation[1:]] == 0).sum()
claim("unseen_met", met, expected=(1, None), kind="tolerance")
print(f"pairs that the training part lacks: {unseen:.0%}")
print(f"of these, met in the validation part: {met} times")
print(
    "loss of bare shares:", -bare.log()[validation[:-1], validation[1:]].mean().item()
)

# %% [markdown]
r"""
## Two symbols: learned

A network does not count. It starts with some numbers, looks at its loss, and changes each number a little in the direction that lowers
the loss. Build the bigram model in this way too. It holds a table of $V \times V$ free numbers. Row $i$ gives every symbol a score for coming after symbol $i$.
Such a score is called a **logit**. Logits may be any numbers. **Softmax** makes probabilities of a row $a$ of them:

$$ \operatorname{softmax}(a)_j = \frac{e^{a_j}}{\sum_{r} e^{a_r}} $$

The sum below the fraction runs over all entries of the row. So the results are positive and sum to one. A higher logit means a higher probability.
"""

# %%
print(F.softmax(torch.tensor([0.0, 0.0, 0.0]), dim=0))
print(F.softmax(torch.tensor([2.0, 0.0, -1.0]), dim=0))

# %% [markdown]
r"""
With all logits at zero, every symbol is equally likely, so this model begins as the blind guess. Its loss on a batch is one call. `F.cross_entropy` takes
logits and right answers, and returns the mean surprise.
"""

# %%
table = torch.zeros(V, V, requires_grad=True)  # (V, V)
x, y = data.get_batch(train, 64, 32, torch.Generator().manual_seed(0))  # (B, T) each
logits = table[x]  # (B, T, V)
loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
claim("bigram_first_loss", loss, expected=uniform, tolerance=1e-4, kind="tolerance")
print(f"first loss {loss.item():.4f}, ln V {uniform:.4f}")

# %% [markdown]
r"""
In which direction should a logit move? `backward` computes how fast the loss changes with every number of the table. This
collection of slopes is the **gradient**.

For one row of logits $a$ we can find it by hand. Let $q_j$ be the shares of what follows in the text. The loss of the row is

$$ -\sum_j q_j \ln \frac{e^{a_j}}{\sum_r e^{a_r}} \;=\; \ln \sum_r e^{a_r} \;-\; \sum_j q_j a_j , $$

because the $q_j$ sum to one. Its slope with respect to $a_j$ is $\frac{e^{a_j}}{\sum_r e^{a_r}} - q_j$. In words: *the probability that the model gives, minus the share that
the text has*. In the loss of a batch, each row counts by how often its symbol occurs. Compare with what PyTorch finds, at a table of random logits.
"""

# %%
somewhere = torch.randn(V, V, generator=torch.Generator().manual_seed(2))  # (V, V)
somewhere.requires_grad_(True)
F.cross_entropy(somewhere[x].flatten(0, 1), y.flatten()).backward()

seen = (
    torch.bincount((x * V + y).flatten(), minlength=V * V).view(V, V).float()
)  # (V, V)
given = F.softmax(somewhere.detach(), dim=1)  # (V, V)
by_formula = (given * seen.sum(dim=1, keepdim=True) - seen) / seen.sum()  # (V, V)
difference = (somewhere.grad - by_formula).abs().max()
claim("bigram_gradient_off", difference, expected=0, tolerance=1e-7, kind="tolerance")
print(
    f"largest slope {by_formula.abs().max():.4f}, largest difference {difference:.0e}"
)

# %% [markdown]
r"""
So a symbol that is given too much goes down, and one that is given too little goes up. Nothing moves any more when the model gives exactly what the text has. Learning and
counting have the same goal.

**Gradient descent** repeats one step: compute the loss on a random batch, compute the gradient, and subtract a multiple of it. The factor is the **learning rate**. The
slopes of this table are tiny, so the rate may be as large as 50. The last third of the steps uses 10, to settle.
"""

# %%
generator = torch.Generator().manual_seed(1)
steps, losses = 3000, []
for step in range(steps):
    x, y = data.get_batch(train, 64, 64, generator)  # (B, T) each
    loss = F.cross_entropy(table[x].flatten(0, 1), y.flatten())
    table.grad = None
    loss.backward()
    with torch.no_grad():
        table -= (50.0 if step < 2000 else 10.0) * table.grad
    losses.append(loss.item())


def validation_loss(table):  # table (V, V), probabilities
    return -table.log()[validation[:-1], validation[1:]].mean().item()


learned = validation_loss(F.softmax(table.detach(), dim=1))
claim("bigram_steps", steps)
claim("loss_bigram_learned", learned, kind="statistical")
claim(
    "bigram_learned_off", learned - bigram, expected=(-0.01, 0.05), kind="statistical"
)
print(f"learned from {steps:,} batches  {learned:.4f}")
print(f"counted                     {bigram:.4f}")

# %% tags=["hide-input"] alt="The loss of the learned table over three thousand steps of training. It starts at the uniform rung, falls steeply past the unigram rung, then flattens out and scatters closely round the bigram rung." caption="The first learning curve of the book: the loss on each random training batch. The dotted lines are the validation losses of the tables that were counted."
from gptbook.ladder import Rung

fig, ax = display.figure(5.2, 2.8)
ax.plot(losses, color=display.BLUE, linewidth=0.8)
display.rungs(
    ax,
    [
        Rung("uniform", "", uniform),
        Rung("unigram", "", unigram),
        Rung("bigram", "", bigram),
    ],
)
ax.set_xlabel("step")
ax.set_ylabel("loss (nats)")

# %% [markdown]
r"""
The learned table ends within {{ bigram_learned_off:.3f}} nats of the counted one. What is left has two causes: every step saw only a random batch, and rare symbols had few turns.

Take both away. Let every step see all pairs at once, and give every row the same say. Then a step is the formula from above. The shares are those of the table with one added: with bare shares, the logits of
pairs that never occur would fall for ever. The learned table becomes the counted one.
"""

# %%
exact = torch.zeros(V, V)  # (V, V): logits
for _ in range(20_000):
    exact -= 2.0 * (F.softmax(exact, dim=1) - bigram_table)

whole = F.softmax(exact, dim=1)  # (V, V)
off = (whole - bigram_table).abs().max()
loss_off = abs(validation_loss(whole) - bigram)
claim("bigram_tables_off", off, expected=0.0, tolerance=1e-4, kind="tolerance")
claim("bigram_losses_off", loss_off, expected=0.0, tolerance=1e-3, kind="tolerance")
print(f"largest difference between two probabilities {off:.0e}")
print(f"difference between the two losses            {loss_off:.0e}")

# %% [markdown]
r"""
Counted or learned, it is the same model. That is good news for what comes. Nobody can count what a larger network should contain. But it can be learned in the same way.

## Three symbols, and the end of counting

Look back two symbols, and there are $V^2$ rows. Such a model is called a **trigram** model.
"""

# %%
N = len(train)
rows = train[:-2] * V + train[1:-1]  # (N-2,): the two symbols before, as one number
triples = torch.bincount(rows * V + train[2:], minlength=V**3).view(V * V, V) + 1.0
trigram_table = triples / triples.sum(dim=1, keepdim=True)
asked = validation[:-2] * V + validation[1:-1]
trigram = -trigram_table[asked, validation[2:]].log().mean().item()
claim("loss_trigram", trigram, expected=(2.0, 2.1) if known else None, kind="tolerance")
print(f"trigram: {trigram:.4f} nats")

# %% [markdown]
r"""
Better again. Why not go on, with three symbols, four, five? The package has a function for any number $n$. It counts only what occurs, because a
table for every case would soon not fit into memory.
"""

# %%
from gptbook import ladder

for n, by_hand in enumerate((unigram, bigram, trigram), start=1):
    assert abs(ladder.ngram_loss(train, validation, V, n) - by_hand) < 1e-4

lengths = range(1, 8)
plain = [ladder.ngram_loss(train, validation, V, n) for n in lengths]
best = min(plain)
claim("ngram_best", best)
claim("ngram_best_length", plain.index(best) + 1, expected=4 if known else None)
claim("ngram_longest", plain[-1], expected=(best + 0.3, None), kind="tolerance")
claim("ngram_longest_length", len(plain))
print([round(loss, 3) for loss in plain])

# %% [markdown]
r"""
With runs of {{ ngram_best_length }} symbols the loss is lowest, at {{ ngram_best:.3f}}. With {{ ngram_longest_length }} it is {{ ngram_longest:.2f}}. What went wrong? A context that was seen three times has three real counts in its row, and {{ vocab_size }} ones that we added.
So the row says nearly nothing, and with long runs most rows are of that kind.

It is wiser to add what the *shorter* context says. Let a row of the table for runs of $n$ be mixed with $k$ times the row for runs of $n - 1$, and that row with the one before it, and so on down. Exercise 3 does this for three symbols. The function `mixed_loss` does it for any $n$. How
large should $k$ be? Choose it on the development split, which is the last tenth of the training part, and not on the validation part.
"""

# %%
counted_on, chosen_on = data.development_split(train)
tried = {k: ladder.mixed_loss(counted_on, chosen_on, V, 6, k) for k in (3, 10, 30, 100)}
k = min(tried, key=tried.get)
print("development loss for k =", {k: round(loss, 3) for k, loss in tried.items()})
if known:
    assert (6, k) == (ladder.MIXED_LENGTH, ladder.MIXED_WEIGHT)  # what the package uses

mixed = [ladder.mixed_loss(train, validation, V, n, k) for n in lengths]
claim("loss_mixed", mixed[5], expected=(1.5, 1.7) if known else None, kind="tolerance")
print([round(loss, 3) for loss in mixed])

# %% tags=["hide-input"] alt="Two curves of validation loss over the number of symbols in a run, from one to seven. They fall together as far as three. From there the table with one added to every count turns upwards, far above where it was with two. The mixed table keeps falling and is flat from six on." caption="Validation loss of tables of runs of $n$ symbols. The last symbol of a run is guessed from those before it."
fig, ax = display.figure(5.2, 2.6)
ax.plot(lengths, plain, "s--", color=display.RED, label="one added to every count")
ax.plot(lengths, mixed, "o-", color=display.BLUE, label="mixed with shorter runs")
ax.set_xticks(list(lengths))
ax.set_xlabel("symbols in a run")
ax.set_ylabel("loss (nats)")
ax.legend()

# %% [markdown]
r"""
Counted with care, runs of six symbols reach {{ loss_mixed:.2f}} nats. Keep that in mind: on a text as small as this one, a good table is hard to beat. The table itself is large, though. It has a row for every context that it ever met.
"""

# %%
rows = []
for n in (1, 3, 6):
    place = V ** torch.arange(n)  # (n,)
    before, after = (
        (part.unfold(0, n, 1) * place).sum(1) for part in (train, validation)
    )
    share = 1 - torch.isin(after, before).double().mean().item()
    rows.append((n, f"{len(before.unique()):,}", f"{share:.1%}"))
display.table(
    rows, header=("symbols before", "rows", "validation contexts without one")
)

# %% [markdown]
r"""
And it has a blind spot that no care can mend. To a table, two contexts that differ in one letter are strangers. What it learns about one says nothing about the
other. A network describes contexts by numbers, and similar contexts by similar numbers. What it learns in one place, it can use in another. How to build such a
description from all of the past is the subject of the pages up to 8.

## What a compressor knows

One more opponent, from another corner. A program that compresses text has to predict it as well. Shannon showed in 1948 that a symbol of probability $p$ can be written in
$-\log_2 p$ bits and no fewer, on average. So every loss is a file size, and every file size is a loss.

Take bzip2, which comes with Python. It sorts the text in blocks of nearly a megabyte, and what stands in another block helps it nothing. So compress the end of the training part, as much as shares a block with the validation part. Then compress the
two together. What the second file is longer by, the validation part has cost.
"""

# %%
import bz2

judged = tokenizer.decode(validation).encode()
read = tokenizer.decode(train).encode()[-(ladder.BLOCK - len(judged)) :]
before, after = len(bz2.compress(read)), len(bz2.compress(read + judged))
compressor = 8 * (after - before) * math.log(2) / len(validation)
claim(
    "loss_compressor",
    compressor,
    expected=(1.4, 1.7) if known else None,
    kind="tolerance",
)
print(
    f"{after - before:,} bytes for {len(validation):,} symbols: {compressor:.4f} nats"
)

# %% [markdown]
r"""
That is a strong opponent, and it has an advantage. It uses the validation part on itself: a name that turns up there for the first time is cheaper the second time. Our models learn from the training part and are then judged
as they are. Still, a number is a number, and we keep it on the list.

## The loss ladder

All rungs together. The package computes them for any text, and they must be those of this page.
"""

# %%
rungs = ladder.ladder(tokens, tokenizer)
here = (uniform, unigram, bigram, trigram, mixed[5], compressor)
for rung, loss in zip(rungs, here, strict=True):
    assert abs(rung.loss - loss) < 1e-4, rung.name
display.table(
    [
        (
            r.name,
            r.knows,
            f"{r.loss:.3f}",
            f"{r.loss / math.log(2):.3f}",
            f"{math.exp(r.loss):.1f}",
        )
        for r in rungs
    ],
    header=("rung", "knows", "nats", "bits", "perplexity"),
    caption="Validation loss for each symbol, without any network.",
)

# %% [markdown]
r"""
From here on, every learning curve of the book is drawn on this ladder. To look ahead: on [page 9](09_training.py) a small GPT reaches {{ lets_build_val_loss:.2f}}, below the trigram table, and a larger one
{{ step_5_val_loss:.2f}}. The last two rungs stay below both. A GPT needs more training than that to pass them.

## What the rungs write

A table of probabilities can also write. Look up the row of the last symbol, draw the next symbol by its probabilities, and go on from there.
"""


# %%
def write(row_of, length=160, seed=7):
    """row_of(written) -> (V,) probabilities of the next symbol."""
    generator = torch.Generator().manual_seed(seed)
    written = tokenizer.encode("\n\n")
    for _ in range(length):
        written.append(
            torch.multinomial(row_of(written), 1, generator=generator).item()
        )
    return tokenizer.decode(written[2:])


from IPython.display import display as show

writers = {
    "uniform": (uniform, lambda w: torch.ones(V) / V),
    "unigram": (unigram, lambda w: unigram_table),
    "bigram": (bigram, lambda w: bigram_table[w[-1]]),
    "trigram": (trigram, lambda w: trigram_table[w[-2] * V + w[-1]]),
}
for name, (loss, row_of) in writers.items():
    show(display.sample(write(row_of), label=f"{name}: {loss:.2f} nats"))

# %% [markdown]
r"""
The unigram has the right letters in no order. The bigram has pairs that can be spoken. The trigram has short words. None of them can hold a thought for longer than its window.

## Checks

Each row of a table must be a set of probabilities. And row by row, the theorem holds for pairs too. Count each pair once more than it occurs, so that no logarithm is infinite. Then our table holds the exact shares, and its loss on these counts must be the lowest. Move it a little, in a hundred random
directions, and the loss must rise each time.
"""

# %%
for each in (bigram_table, trigram_table):
    torch.testing.assert_close(each.sum(dim=1), torch.ones(len(each)))
    assert (each > 0).all()

exact_shares = (pairs + 1.0).double() / (pairs + 1.0).double().sum(dim=1, keepdim=True)
weight = (pairs + 1.0).double() / (pairs + 1.0).sum()
lowest = -(weight * exact_shares.log()).sum()
noise = torch.Generator().manual_seed(3)
for _ in range(100):
    moved = exact_shares.log() + 0.1 * torch.randn(V, V, generator=noise)  # (V, V)
    assert -(weight * F.log_softmax(moved, dim=1)).sum() > lowest
print("rows sum to one, and no neighbour of the counted table is better")

# %% [markdown]
r"""
## Your turn

### 1. The bigram's loss

*About fifteen minutes.* Write `loss(train, validation, vocab_size)`, for two tensors of token ids. Count the pairs of neighbours in `train`, add one to every count, make rows of
probabilities, and return the mean surprise of each next token in `validation`, in nats.

??? tip "Hint"

    A pair of tokens can be made one number, `first * V + second`. Then `torch.bincount` counts.

Check yours with `exercises.check("bigram-loss", loss)`.
"""


# %% tags=["solution"]
from gptbook import exercises


def loss(train, validation, vocab_size):
    counts = torch.ones(vocab_size, vocab_size)  # (V, V)
    for first, second in zip(train[:-1].tolist(), train[1:].tolist(), strict=True):
        counts[first, second] += 1
    table = counts / counts.sum(dim=1, keepdim=True)  # (V, V)
    return -table[validation[:-1], validation[1:]].log().mean().item()


exercises.check("bigram-loss", loss)

# %% [markdown]
r"""
### 2. A file size is a loss

*About five minutes.* A compressor writes a text of `characters` characters into `size` bytes. Write `rate(size, characters)`: its loss in nats for each character.

??? tip "Hint"

    A byte has eight bits. A bit is $\ln 2$ nats.

Check yours with `exercises.check("compressor-rate", rate)`.
"""


# %% tags=["solution"]
def rate(size, characters):
    return 8 * size * math.log(2) / characters


exercises.check("compressor-rate", rate)

# %% [markdown]
r"""
### 3. A better trigram

*About twenty minutes.* Mix the trigram table with the bigram table, as the text above says. Write `trigram(train, validation, vocab_size, k)` with

$$ p(c \mid a, b) = \frac{n_{abc} + k\, p(c \mid b)}{n_{ab} + k} $$

Here $k$ is any number above zero, $n_{abc}$ counts how often $c$ followed the pair $a, b$ in `train`, $n_{ab}$ is the sum of that over all $c$, and $p(c \mid b)$ is the bigram table with one added to every count, as on this page. Return the mean surprise of each
token of `validation` that has two tokens before it, in nats.

??? tip "Hint"

    With rows numbered `a * V + b`, the bigram row that belongs to row `r` is `r % V`. So `bigram.repeat(V, 1)` lines up.

Check yours with `exercises.check("trigram", trigram)`.
"""


# %% tags=["solution"]
def trigram(train, validation, vocab_size, k):  # train (N,)
    V = vocab_size
    pairs = torch.bincount(train[:-1] * V + train[1:], minlength=V * V).view(V, V) + 1.0
    bigram = pairs / pairs.sum(dim=1, keepdim=True)  # (V, V)
    rows = train[:-2] * V + train[1:-1]  # (N-2,)
    triples = torch.bincount(rows * V + train[2:], minlength=V**3).view(V * V, V)
    table = (triples + k * bigram.repeat(V, 1)) / (triples.sum(dim=1, keepdim=True) + k)
    asked = validation[:-2] * V + validation[1:-1]
    return -table[asked, validation[2:]].log().mean().item()


print(f"with k = 30, on the validation part: {trigram(train, validation, V, 30):.3f}")
exercises.check("trigram", trigram)

# %% [markdown]
r"""
## What this page left out

Smarter ways to mix short and long contexts: a whole literature, with compressors that reach lower still. All of them look at exact runs of symbols. The next page looks at the whole past at once, in the plainest way: [the averaging
trick](03_averaging.py).
"""
