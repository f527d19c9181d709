# %% [markdown]
r"""
# Sampling

A model gives a row of scores, and a few lines turn the row into a token. Change these lines, and the same model writes dull text, wild text, or the same words forever.

[Page 9](09_training.py) trained a model and let it write. The writing was done by a function of the package that we have not opened yet. This page builds it from raw tensors: from logits to
probabilities, from probabilities to a token, and from tokens to a text. A probability is also called a **chance** here, because it is shorter.

## One row of logits

Take the model that page 9 trained, and give it the beginning of a sentence. It answers with a row of logits at every position. Only the last row counts now: it speaks about the token that
comes next. Softmax makes chances of it.
"""

# %%
import math
import re
from itertools import pairwise

import torch
import torch.nn.functional as F

from gptbook import data, display, recipes
from gptbook.claims import claim

trained = recipes.trained("step-5")
model, tokenizer, text = trained.model, trained.tokenizer, trained.corpus.text
V, T = model.config.vocab_size, model.config.block_size
known = trained.corpus.name == "tinyshakespeare"  # another text has other prompts


def within(low, high):
    """Bounds for a number of this text; nothing is known of another text's."""
    return (low, high) if known else None


def encode(string):
    return torch.tensor([tokenizer.encode(string)])  # (1, T)


def last_logits(string):
    with torch.no_grad():
        return model(encode(string))[0, -1]  # (V,): what may follow the string


prompt = claim("sampling_prompt", "What is th" if known else text[2000:2010])
logits = last_logits(prompt)  # (V,)
chances = F.softmax(logits, dim=-1)  # (V,): sums to 1
best, ids = chances.topk(15)  # (15,) each
claim("sampling_top_chance", best[0], kind="statistical")
claim("sampling_rest", 1 - best.double().sum(), kind="statistical")
print(f"after {prompt!r}: {tokenizer.decode(ids)!r}")

# %% tags=["hide-input"] alt="Fifteen bars, one for each of the likeliest next characters after the prompt, from the likeliest to the least likely of them. The first bar is by far the highest, six or so others can be seen, and the rest are close to zero." caption="The fifteen likeliest tokens after <code>{{ sampling_prompt }}</code>, as our model sees it."
fig, ax = display.figure(5.2, 2.5)
ax.bar(range(15), best.tolist(), color=display.BLUE)
ax.set_xticks(range(15), display.characters([tokenizer.decode([i]) for i in ids]))
ax.set_ylabel("chance")
for i, chance in enumerate(best.tolist()):
    ax.annotate(
        f"{100 * chance:.0f}", (i, chance), ha="center", va="bottom", fontsize=8
    )

# %% [markdown]
r"""
The numbers on the bars are per cent. The likeliest token has a chance of {{ sampling_top_chance:.0%}}. All that are not shown have {{ sampling_rest:.2%}} together.

A writer must choose one. Two ways come to mind. Take the likeliest each time: that is called **greedy**. Or draw, so that a token with a chance of one quarter comes in one draw of four: that is called **sampling**. What people use lies between the two.

## Temperature

Let three tokens have the logits $\ln 4$, $\ln 2$ and $0$. Their chances are as $4$ to $2$ to $1$. Now divide all logits by one number before the softmax. It is called the **temperature**, and we write it as $\tau$.
"""

# %%
three = torch.tensor([4.0, 2.0, 1.0]).log()  # (V,) with V = 3
for temperature in (0.5, 1.0, 2.0):
    shares = F.softmax(three / temperature, dim=-1)
    ratios = [f"{ratio:.3g}" for ratio in (shares / shares[-1]).tolist()]
    print(f"temperature {temperature}: chances as {' to '.join(ratios)}")

# %% [markdown]
r"""
At one half the ratios are squared. At two they are square roots. This is the general rule. Softmax makes $p_i$ proportional to $e^{z_i}$, so the ratio of two chances is $e^{z_i - z_j}$. At temperature $\tau$ it becomes

$$ \frac{e^{z_i / \tau}}{e^{z_j / \tau}} \;=\; e^{(z_i - z_j) / \tau} \;=\; \Bigl(\frac{p_i}{p_j}\Bigr)^{1 / \tau} . $$

So below $1$ the chances move further apart and the likeliest gains, above $1$ they move closer together, and the order of the tokens never changes. It holds for every pair of tokens of our model too:
"""

# %%
z = logits.double()  # (V,)
ratio = (z[:, None] - z[None, :]).exp()  # (V, V): p_i / p_j
for temperature in (0.5, 0.8, 1.5):
    p = F.softmax(z / temperature, dim=-1)  # (V,)
    torch.testing.assert_close(p[:, None] / p[None, :], ratio ** (1 / temperature))
print(f"{ratio.numel():,} ratios, three temperatures, all as the rule says")

# %% [markdown]
r"""
How open is the choice? The entropy of the chances says it in nats, as on [page 2](02_bigram.py). It is $0$ where one token is certain, and $\ln V$ where all are alike. It rises with the temperature, all the way.
"""


# %%
def entropy(p):  # p (V,)
    return -(p * p.clamp(min=1e-300).log()).sum().item()


taus = [0.02 * n for n in range(1, 201)]
curves = {}
for string in (prompt, "\n"):
    row = last_logits(string).double()  # (V,)
    curves[string] = [entropy(F.softmax(row / t, dim=-1)) for t in taus]
    steps = [b - a for a, b in pairwise(curves[string])]
    assert min(steps) > -1e-12  # it never falls
print(
    f"at temperature {taus[49]:.0f}: {[f'{c[49]:.2f}' for c in curves.values()]} nats"
)

# %% tags=["hide-input"] alt="Entropy of the next token against temperature, for two prompts. Both curves start at zero, rise steeply, and then flatten below a dotted line, the logarithm of the size of the vocabulary. The curve of the prompt after which the model is less sure lies above the other one." caption="The entropy rises with the temperature, from none towards that of the blind guess. Solid: after <code>{{ sampling_prompt }}</code>. Dashed: after a line end."
fig, ax = display.figure(5.2, 2.4)
ax.plot(taus, curves[prompt], color=display.BLUE)
ax.plot(taus, curves["\n"], "--", color=display.ORANGE)
ax.axhline(math.log(V), color=display.GREY, linestyle=":")
ax.annotate("ln V", (4, math.log(V)), ha="right", va="bottom", fontsize=8)
ax.set_xlabel("temperature")
ax.set_ylabel("entropy (nats)")
ax.set_ylim(0, 4.7)

# %% [markdown]
r"""
## Greedy is the limit

What happens as the temperature goes to $0$? Nothing can be divided by $0$. But the chances have a limit.

!!! theorem "Greedy is the limit of temperature"

    Let $m$ of the $V$ logits be the highest, with the value $M$. As $\tau$ falls to $0$, the chance of each of these $m$ tokens goes to $\frac{1}{m}$, and that of every other token goes to $0$. If $g$ is the
    distance from $M$ to the next lower logit, all others together have a chance of less than $V e^{-g / \tau}$.

    Tested by `test_greedy_is_the_limit_of_temperature`.

??? proof "Proof"

    Multiply numerator and denominator of the softmax by $e^{-M / \tau}$. That changes no chance, and makes $p_i$ proportional to $e^{(z_i - M) / \tau}$. For the $m$ highest this is $e^0 = 1$, at every
    temperature. For each of the other $V - m$ it is at most $e^{-g / \tau}$, which goes to $0$, because $g > 0$. So the denominator lies between $m$ and $m + (V - m)\, e^{-g / \tau}$, and goes to $m$. The chance of
    one of the highest is $1$ divided by it, and goes to $\frac{1}{m}$. The others together have at most $\frac{V - m}{m}\, e^{-g / \tau} < V e^{-g / \tau}$. If all logits are equal there are no others, and nothing is left to show. $\blacksquare$

Here it is for our row, and for three logits of which two tie.
"""

# %%
tie = torch.tensor([5.0, 5.0, 4.0])  # (V,) with V = 3
for temperature in (1.0, 0.3, 0.1, 0.03):
    ours = F.softmax(logits / temperature, dim=-1).max().item()
    tied = [f"{p:.3f}" for p in F.softmax(tie / temperature, dim=-1).tolist()]
    print(f"temperature {temperature:<4}  highest of ours {ours:.6f}  the tie {tied}")

# %% [markdown]
r"""
So temperature $0$ has a meaning: take the highest logit. It is a choice and not a division. A program that divides all the same gets no chances at all, and a very low temperature ends in the same way, because a quotient that is too large for a float becomes infinite.
"""

# %%
for temperature in (0.0, 1e-38):
    print(temperature, F.softmax(tie / temperature, dim=-1).tolist())

# %% [markdown]
r"""
The proof shows the way out for the second case. Subtract the highest logit *before* the division. Then the highest is $0$, and what overflows goes to $-\infty$, which softmax turns into $0$. A temperature so low that it would itself be rounded to $0$ is replaced by the smallest number that is not.

Temperature $0$ itself becomes a case of its own. Of tokens that tie it takes the one with the lowest id, so that greedy text is the same every time. Here the limit would share.
"""


# %%
def at_temperature(logits, temperature):  # logits (..., V)
    highest = logits.amax(dim=-1, keepdim=True)  # (..., 1)
    if temperature == 0:
        first = F.one_hot(logits.argmax(dim=-1), logits.size(-1)).bool()  # (..., V)
        return torch.where(first, 0.0, -math.inf)  # (..., V)
    return (logits - highest) / max(
        temperature, torch.finfo(logits.dtype).tiny
    )  # (..., V)


for temperature in (1.0, 1e-38, 0):
    print(temperature, F.softmax(at_temperature(tie, temperature), dim=-1).tolist())

# %% [markdown]
r"""
## Only the likeliest: top-k

At temperature $1$ every symbol can come, also one with a chance of one in ten thousand. There are many of those. One odd letter in the middle of a word is enough to bring the model into a place where it has never been. So cut off the tail.

**Top-k** keeps the $k$ likeliest tokens. It hides the others as page 3 hides the future: with $-\infty$ before the softmax. Of tokens that tie, the lower ids stay.
"""


# %%
def top_k(logits, k):  # logits (..., V)
    order = logits.argsort(
        dim=-1, descending=True, stable=True
    )  # (..., V): ids, ranked
    return logits.scatter(-1, order[..., k:], -math.inf)  # (..., V)


four = torch.tensor([1 / 8, 1 / 2, 1 / 8, 1 / 4]).log()  # (V,) with V = 4
for k in (1, 2, 3, 4, 100):
    print(
        f"k = {k:<3}", [f"{p:.3f}" for p in F.softmax(top_k(four, k), dim=-1).tolist()]
    )

# %% [markdown]
r"""
A $k$ above the number of tokens hides nothing. With $k = 3$, tokens 0 and 2 tie for the last place, and token 0 gets it. What is left is divided by its sum, and softmax does that by itself.

## As many as needed: top-p

How large should $k$ be? Sometimes one token is nearly certain, and sometimes twenty are possible. A fixed $k$ is too generous in one case and too strict in the other. **Top-p** looks at the chances. Rank the tokens, and go down the list until the chances add up to $p$. Keep those, the
fewest that hold $p$ together, and always one at least. They are called the **nucleus** (Holtzman et al., "The Curious Case of Neural Text Degeneration").

In other words: a token goes if those that are likelier hold $p$ already.
"""


# %%
def top_p(logits, p):  # logits (..., V)
    if p == 1:
        return (
            logits  # all of them; a sum that rounds to 1 too early would cut some off
        )
    ranked, order = logits.sort(dim=-1, descending=True, stable=True)  # (..., V) each
    up_to = F.softmax(ranked, dim=-1).cumsum(
        dim=-1
    )  # (..., V): a token's and all before
    before = F.pad(up_to[..., :-1], (1, 0))  # (..., V): the likelier ones alone
    hidden = before >= p
    hidden[..., 0] = False  # one at least
    return logits.scatter(-1, order, ranked.masked_fill(hidden, -math.inf))  # (..., V)


for p in (0, 0.5, 0.6, 0.75, 0.8, 1):
    print(
        f"p = {p:<4}", [f"{q:.3f}" for q in F.softmax(top_p(four, p), dim=-1).tolist()]
    )

# %% [markdown]
r"""
The likeliest has one half, so for a $p$ of one half it is enough alone. For a little more, two are needed. A $p$ of $0$ keeps one token, and a $p$ of $1$ keeps all. Where a sum is exactly $p$, rounding in the last digit can decide.

See how the nucleus breathes, after a dozen prompts:
"""

# %%
prompts = [
    "What is th",
    "O, what a q",
    "ROMEO",
    "My lord, I",
    "KING RICHARD II",
    "Good m",
    "To be, or not to b",
    "O Rome",
    "ROMEO:\n",
    "I am a ",
    "\n",
    "the ",
]
if not known:
    prompts = [prompt, *(text[i : i + 9] for i in range(0, 11000, 1000))]
rows = torch.stack([last_logits(string) for string in prompts])  # (12, V)
kept = (top_p(rows, 0.9) > -math.inf).sum(dim=-1)  # (12,)
claim("nucleus_fewest", kept.min(), expected=within(1, 10), kind="statistical")
claim("nucleus_most", kept.max(), expected=within(10, V), kind="statistical")
display.table(
    [
        (
            "".join(display.characters(string)),
            f"{entropy(F.softmax(row, dim=-1)):.2f}",
            n,
        )
        for string, row, n in zip(prompts, rows, kept.tolist(), strict=True)
    ],
    header=("after", "entropy, nats", "kept at p = 0.9"),
)

# %% [markdown]
r"""
Between {{ nucleus_fewest }} and {{ nucleus_most }} tokens hold nine tenths of the chances.

## The same thing in the package

The package does all three in one function of the logits: temperature first, then top-k, then top-p on what is left. In its shape comments $K$ is the number of tokens that can be left.
"""

# %%
from gptbook import sampling
from gptbook.sampling import generate, next_token, probabilities

display.source(probabilities)

# %%
display.source(sampling._ranked)

# %% [markdown]
r"""
It sorts once, and sets chances to $0$ where we set logits to $-\infty$. The result must be the same. Compare the two on random rows, some of them with many ties, at all mixtures of settings.
"""


# %%
def by_hand(logits, temperature=1.0, k=None, p=None):  # logits (..., V)
    scaled = at_temperature(logits, temperature)  # (..., V)
    scaled = scaled if k is None else top_k(scaled, k)  # (..., V)
    scaled = scaled if p is None else top_p(scaled, p)  # (..., V)
    return F.softmax(scaled, dim=-1)  # (..., V)


generator = torch.Generator().manual_seed(0)
random_rows = 2 * torch.randn(2000, V, generator=generator)  # (N, V)
random_rows[::2] = random_rows[::2].round()  # whole numbers tie often
mixtures = [
    (temperature, k, p)
    for temperature in (0, 0.5, 1.0, 2.0)
    for k in (None, 1, 5, V, 2 * V)
    for p in (None, 0, 0.3, 0.9, 1)
]
off = torch.stack(
    [
        (by_hand(random_rows, *m) - probabilities(random_rows, *m)).abs()
        for m in mixtures
    ]
)  # (100, N, V)
claim("sampling_off_package", off.max(), expected=0.0, tolerance=1e-5, kind="tolerance")
print(f"{len(mixtures)} mixtures, largest difference {off.max():.0e}")

# %% [markdown]
r"""
What does it say to settings and logits at the edge? A clear answer is either chances that make sense, or a sentence.
"""

# %%
edge = [
    ("k above V", [3.0, 1.0, 2.0], {"top_k": 100}),
    ("a tie at k", [1.0, 2.0, 2.0], {"top_k": 1}),
    ("p of 0", [3.0, 1.0, 2.0], {"top_p": 0}),
    ("p of 1", [0.0, -9.0, -18.0], {"top_p": 1}),
    ("a logit of -inf", [0.0, -math.inf, 0.0], {}),
    ("NaN", [3.0, math.nan, 2.0], {}),
    ("+inf", [3.0, math.inf, 2.0], {"temperature": 0}),
    ("k of 0", [3.0, 1.0, 2.0], {"top_k": 0}),
    ("p of 90", [3.0, 1.0, 2.0], {"top_p": 90}),
    ("temperature -1", [3.0, 1.0, 2.0], {"temperature": -1.0}),
]
answers = []
for name, row, settings in edge:
    try:
        answer = probabilities(torch.tensor(row), **settings).tolist()  # chances
        answer = ", ".join(f"{p:.2g}" for p in answer)
    except ValueError as error:
        answer = str(error)
    answers.append((name, answer))
display.table(answers, header=("case", "answer"))

# %% [markdown]
r"""
## Try it

These are the rows of logits from the table above. Choose a prompt, and move the controls. Your browser computes the chances.
"""

# %%
display.next_tokens(prompts, rows, tokenizer.symbols)

# %% [markdown]
r"""
## The draw

Lay the chances end to end, so that they fill the stretch from $0$ to $1$. Draw a random number from that stretch, with every place equally likely, and take the token on whose piece it falls. A piece of length $p$ is hit with the chance $p$.
"""


# %%
def draw(p, count, generator):  # p (V,)
    ends = p.cumsum(dim=-1)  # (V,): where each piece ends
    falls = torch.rand(count, generator=generator)  # (N,)
    return torch.searchsorted(ends, falls, right=True).clamp(max=len(p) - 1)  # (N,)


count = 50_000
p = probabilities(logits, temperature=0.8, top_p=0.95)  # (V,)
drawn = draw(p, count, torch.Generator().manual_seed(1))  # (N,)
by_package = next_token(
    logits.expand(count, -1), 0.8, None, torch.Generator().manual_seed(1), top_p=0.95
)  # (N,)

# %% [markdown]
r"""
Is it true? Count how often each token came, $n_i$ times among $N$ draws, and compare with the $N p_i$ that should come. A right sampler scatters a little. The number that statisticians look at is

$$ \chi^2 = \sum_i \frac{(n_i - N p_i)^2}{N p_i} . $$

For a right sampler it lies near the number of tokens that can come, less one, with a standard deviation of about the root of twice that. For comparison, a wrong sampler that people do write: it divides the *chances* by the temperature, after the softmax. That changes no ratio, so it does nothing.
"""


# %%
def chi_square(drawn, p):
    """How many standard deviations chi square lies above what a right sampler gives."""
    can_come = p > 0
    n = torch.bincount(drawn, minlength=V)  # (V,)
    if n[~can_come].any():
        return math.inf  # a token came that cannot
    wanted = len(drawn) * p[can_come]
    freedom = max(can_come.sum().item() - 1, 1)
    chi = ((n[can_come] - wanted) ** 2 / wanted).sum().item()
    return (chi - freedom) / math.sqrt(2 * freedom)


too_late = probabilities(logits, top_p=0.95) / 0.8
wrong = draw(too_late / too_late.sum(), count, torch.Generator().manual_seed(1))  # (N,)
for name, tokens in (("ours", drawn), ("package", by_package), ("too_late", wrong)):
    right = name != "too_late"
    away = claim(
        f"sampling_chi_{name}",
        min(chi_square(tokens, p), 1e6),
        expected=(-5, 5) if right else within(20, None),
        kind="statistical",
    )
    print(f"{name:9} {away:10.1f} standard deviations away")

# %% [markdown]
r"""
The draw is the only place where chance comes in, and its randomness comes from a **generator**. A generator is a rule that makes one number after the other from its state, and its first state is the seed. Same logits, same state of the generator, same text.
"""


# %%
def write(seed, length=60, **settings):
    random = torch.Generator().manual_seed(seed)
    out = generate(model, encode("\n"), length, generator=random, **settings)
    return tokenizer.decode(out[0].tolist())


assert write(1) == write(1)
assert write(1) != write(2)
assert write(1, temperature=0) == write(2, temperature=0)  # nothing is drawn
print("same seed, same text; another seed, another text; temperature 0 needs no seed")

# %% [markdown]
r"""
## From tokens to a text

To write a text, append the token and ask again. Here is the function that has written for us all along.
"""

# %%
display.source(generate)

# %% [markdown]
r"""
One thing in it deserves a look: `idx[:, -T:]`. Our model has learned positions for a window of {{ window_size }} tokens, and refuses more. When the text has grown longer than that, the model is given the last {{ window_size }}. Whatever stood before has no influence on what
comes next, not by a single bit.
"""

# %%
claim("window_size", T)
generator = torch.Generator().manual_seed(3)
recent = encode(text[500 : 500 + T])  # (1, T)
pasts = torch.randint(V, (5, 200), generator=generator)  # five different beginnings
texts = torch.cat((pasts, recent.expand(5, -1)), dim=1)  # (5, 200+T)

with torch.no_grad():
    try:
        model(texts)
    except ValueError as error:
        print(f"the model, given all of it, says:\n{error}")
    alone = F.softmax(model(recent)[:, -1], dim=-1)  # (1, V)
    for whole in texts:
        after = F.softmax(model(whole[None, -T:])[:, -1], dim=-1)  # (1, V)
        assert torch.equal(after, alone)
continued = generate(model, texts, 30, temperature=0)[:, -30:]  # (5, 30)
assert (continued == continued[0]).all()
print("five texts that agree in the last", T, "tokens go on alike")

# %% [markdown]
r"""
What is forgotten, then? Everything further back than {{ window_size }} characters: who is speaking, once the name has left the window, and what the sentence began with, if it is long. And how much does a token inside of the window matter? Replace it by a random one, and measure how much of the
chances moves to other tokens. That share is half the sum of the absolute differences.
"""

# %%
samples = torch.stack(
    [torch.tensor(tokenizer.encode(text[i : i + 80])) for i in range(0, 64000, 8000)]
)  # (8, 80)
with torch.no_grad():
    before = F.softmax(model(samples[:, -T:])[:, -1], dim=-1)  # (8, V)
    moved = []
    for back in range(1, 81):
        other = samples.clone()  # (8, 80)
        step = torch.randint(1, V, (8,), generator=generator)
        other[:, -back] = (other[:, -back] + step) % V
        after = F.softmax(model(other[:, -T:])[:, -1], dim=-1)  # (8, V)
        moved.append((after - before).abs().sum(dim=-1).mean().item() / 2)
claim("moved_by_last", moved[0], expected=within(0.2, 1.0), kind="statistical")
claim(
    "moved_at_edge",
    max(moved[T - 8 : T]),
    expected=within(1e-6, 0.2),
    kind="statistical",
)
claim("moved_outside", max(moved[T:]), expected=0.0)
print(
    f"last token {moved[0]:.2f}, {T} back {moved[T - 1]:.4f}, {T + 1} back {moved[T]}"
)

# %% tags=["hide-input"] alt="How much of the chances moves when one token is replaced, against how many places back it stands, on a logarithmic scale. The last token moves more than half, ten places back it is a few per cent, and the curve sinks slowly up to sixty-four places back. There it ends: beyond the edge of the window nothing moves." caption="What one token means for the next, by its distance. Beyond the window the curve is exactly zero, which this scale cannot show."
fig, ax = display.figure(5.2, 2.4)
ax.plot(range(1, T + 1), moved[:T], ".-", color=display.BLUE)
ax.axvline(T + 0.5, color=display.RED, linestyle="--")
ax.annotate("edge of the window ", (T + 0.5, 0.5), ha="right", va="center", fontsize=8)
ax.set_yscale("log")
ax.set_xlim(0, 81)
ax.set_xlabel("places back")
ax.set_ylabel("share that moves")

# %% [markdown]
r"""
Replacing the last token moves {{ moved_by_last:.0%}} of the chances. At the far edge it is {{ moved_at_edge:.1%}} at most. One token there hardly matters to it.

## Greedy text goes round in circles

Now let the model write {{ greedy_length }} tokens at temperature $0$. One would expect its best text.
"""

# %%
claim("greedy_length", 80)
first = write(0, 80, temperature=0)
words = re.findall(r"\w+", first.lower())
claim("greedy_words", len(words), kind="statistical")
claim("greedy_distinct", len(set(words)), kind="statistical")
display.sample(first, label="80 tokens at temperature 0")

# %% [markdown]
r"""
These are {{ greedy_words }} words, and only {{ greedy_distinct }} different ones. It says the same again and again. And it gets worse.

!!! theorem "Greedy text ends in a loop"

    Let each token be a function of the last $T$ tokens, as it is at temperature $0$. Then from some place on, the text repeats one piece forever. Once the window is full, at most $V^T$ more tokens are written until a window is met for the second time.

    Tested by `test_greedy_text_ends_in_a_loop`.

??? proof "Proof"

    Once the window is full, each window decides the next token, and with it the next window: drop the first token, append the new one. There are $V^T$ possible windows. So among $V^T + 1$ windows in a row, two are equal. After equal windows come equal windows, and so on. From the first of the
    two on, the same windows come in the same order again and again. The text is the sequence of their last tokens. $\blacksquare$

For our model $V^T$ has more than a hundred digits, and a loop would not have to come soon. It does. Write on until a window comes that was there before. Then there is no way out.
"""

# %%
idx, seen, period = encode("\n"), {}, 0
while not period and idx.size(1) < 3000:
    window = tuple(idx[0, -T:].tolist())
    period = idx.size(1) - seen.setdefault(window, idx.size(1))
    idx = generate(model, idx, 1, temperature=0)  # (1, n)
greedy = idx[0, 1:]  # (N,)
claim("greedy_met_again", len(greedy), expected=(T, 2998), kind="statistical")
claim("greedy_period", period, expected=(1, 2998), kind="statistical")

on = generate(model, idx, 3 * period, temperature=0)[0, -3 * period :]  # (3*period,)
assert (on.view(3, period) == on[:period]).all()
display.sample(tokenizer.decode(on.tolist()), label=f"three times {period} tokens")

# %% [markdown]
r"""
After {{ greedy_met_again }} tokens a window came for the second time. The loop has a period of {{ greedy_period }} tokens, and what is shown goes on forever.

Why does the likeliest token, again and again, give a text so unlike real ones? Look at the surprise of the model at its own tokens. We need the loop of `generate` with one line more.
"""


# %%
@torch.no_grad()
def write_and_judge(start, length, temperature=1.0, k=None, p=None, seed=7):
    """The texts (B, T + N), and the surprise at each new token (B, N), in nats at temperature 1."""
    random = torch.Generator().manual_seed(seed)
    idx, surprise = start, []
    for _ in range(length):
        logits = model(idx[:, -T:])[:, -1]  # (B, V)
        token = next_token(logits, temperature, k, random, p)[:, None]  # (B, 1)
        surprise.append(-F.log_softmax(logits, dim=-1).gather(1, token))
        idx = torch.cat((idx, token), dim=1)
    return idx, torch.cat(surprise, dim=1)


start = encode("\n")  # (1, 1)
greedy_text, greedy_surprise = write_and_judge(start, 160, temperature=0)
free_text, free_surprise = write_and_judge(start, 160)
random = torch.Generator().manual_seed(7)
assert torch.equal(free_text, generate(model, start, 160, generator=random))
claim("greedy_surprise", greedy_surprise.mean(), kind="statistical")
claim("free_surprise", free_surprise.mean(), kind="statistical")
gap = free_surprise.mean() - greedy_surprise.mean()
claim("greedy_below_free", gap, expected=within(0.3, None), kind="statistical")
print(f"sampled text surprises by {gap:.2f} nats more than greedy text")

# %% tags=["hide-input"] alt="Two panels of bars, one bar for the surprise at each of {{ judged_length }} tokens. In the upper panel, greedy text, no bar is higher than about two and a half nats. In the lower one, sampled text, most bars are as low, but every few tokens one stands out, up to five nats and more." caption="Surprise of the model at its own text, token by token. Above: greedy. Below: sampled at temperature 1."
claim("judged_length", 160)
fig, axes = display.figure(5.2, 3.0, rows=2, sharex=True, sharey=True)
for ax, surprise, colour, name in (
    (axes[0], greedy_surprise, display.RED, "greedy"),
    (axes[1], free_surprise, display.BLUE, "sampled"),
):
    ax.bar(range(160), surprise[0].tolist(), width=1.0, color=colour)
    ax.set_title(name, fontsize=10)
    ax.set_ylabel("nats")
axes[1].set_xlabel("token")

# %% [markdown]
r"""
The mean surprise of the greedy text is {{ greedy_surprise:.2f}} nats, that of the sampled text {{ free_surprise:.2f}}. Real text surprises this model by {{ step_5_val_loss:.2f}} nats at each token, as page 9 measured. It surprises all the time: whoever writes has something to say that could not be foreseen. A text without any surprise is as unlike real
text as a text of nothing but surprises.

That is why sampling helps. A text drawn at temperature $1$ surprises the model about as much as real text does, if the model is any good. And every unlikely letter that is drawn can lead out of the loop.

## Side by side

Here are six settings. For each, four texts of {{ side_length }} tokens: the mean surprise of the model at temperature $1$, the share of words that occur in the training text, and how many different words there are among equally many. The last row judges real text, from the validation part, in windows of {{ window_size }} tokens.
"""

# %% tags=["hide-input"]
claim("side_length", 120)
words_of = re.compile(r"[a-z']+")
train, validation = data.split(torch.tensor(tokenizer.encode(text)))
real_text = tokenizer.decode(validation)
vocabulary = set(words_of.findall(tokenizer.decode(train).lower()))
settings = {
    "temperature 0": {"temperature": 0},
    "temperature 0.5": {"temperature": 0.5},
    "temperature 1": {},
    "temperature 1.5": {"temperature": 1.5},
    "top-k 5": {"k": 5},
    "top-p 0.9": {"p": 0.9},
}


starts = torch.cat([encode(c) for c in "\nTIA"])  # (4, 1)
made = {name: write_and_judge(starts, 120, **s) for name, s in settings.items()}

lines = [i + 1 for i in range(len(real_text) - T - 1) if real_text[i] == "\n"]
own = torch.cat([encode(real_text[i : i + T]) for i in lines[:: len(lines) // 24]])
with torch.no_grad():
    judged = F.cross_entropy(
        model(own[:, :-1]).transpose(1, 2), own[:, 1:], reduction="none"
    )  # (N, n)
made["real text"] = own, judged

words = {}
for name, (texts, _) in made.items():
    written = [tokenizer.decode(row.tolist()).lower() for row in texts]
    words[name] = [
        w for t in written for w in words_of.findall(t)[:-1]
    ]  # the last is cut
fewest = min(map(len, words.values()))
mean = {name: surprise.mean().item() for name, (_, surprise) in made.items()}
cold, plain, hot = (mean[f"temperature {t}"] for t in (0.5, 1, 1.5))
claim("surprise_cold", cold, expected=within(None, plain), kind="statistical")
claim("surprise_hot", hot, expected=within(plain, None), kind="statistical")
claim("surprise_real", mean["real text"], kind="statistical")
known_words = {
    name: sum(w in vocabulary for w in said) / len(said) for name, said in words.items()
}
claim("known_cold", known_words["temperature 0.5"], kind="statistical")
claim(
    "known_hot",
    known_words["temperature 1.5"],
    expected=within(None, known_words["temperature 0.5"]),
    kind="statistical",
)
display.table(
    [
        (n, f"{mean[n]:.2f}", f"{known_words[n]:.0%}", len(set(words[n][:fewest])))
        for n in words
    ],
    header=("setting", "surprise, nats", "known words", "different words"),
    caption=f"Different words are counted among the first {fewest}.",
)

# %%
from IPython.display import display as show

for name in settings:
    texts, _ = made[name]
    show(display.sample(tokenizer.decode(texts[0].tolist()), label=name))

# %% [markdown]
r"""
Read down the table. At temperature one half {{ known_cold:.0%}} of the words exist, at one and a half only {{ known_hot:.0%}}. The surprise goes from {{ surprise_cold:.2f}} to {{ surprise_hot:.2f}} nats, and real text lies between, at {{ surprise_real:.2f}}. The lower the temperature, the fewer different words.
Top-k and top-p keep the tail from spoiling words, and leave the ratios of the likely tokens as they are. No setting is best. It depends on whether dull text or wrong text costs you more.

The numbers come from few words, and the last digits would change with another seed.

## Checks

The two definitions, put as questions. Does top-k keep exactly $k$? Does what top-p keeps hold $p$, and would one token less hold too little?
"""

# %%
whole = F.softmax(random_rows, dim=-1)  # (N, V)
for k in (1, 5, V):
    kept = probabilities(random_rows, top_k=k) > 0  # (N, V)
    assert (kept.sum(dim=-1) == k).all()
for p in (0.1, 0.5, 0.9):
    kept = probabilities(random_rows, top_p=p) > 0  # (N, V)
    held = (whole * kept).sum(dim=-1)  # (N,)
    least = whole.masked_fill(~kept, 2.0).amin(dim=-1)  # (N,)
    assert (held >= p - 1e-5).all()
    assert (held - least < p + 1e-5).all()
    assert (whole.masked_fill(kept, 0.0).amax(dim=-1) <= least).all()  # the likeliest
print("exactly k, and the fewest that hold p")

# %% [markdown]
r"""
## Your turn

### 1. The temperature for a wish

*About fifteen minutes.* Somebody wants the likeliest token to come with the chance $p$, one half for example. At which temperature? Write `temperature_for(logits, p)`. It gets a row of logits $(V,)$, in which one is the highest, and a $p$ above $\frac{1}{V}$ and below $1$. It returns the temperature as a number, right to a thousandth part of itself.

??? tip "Hint"

    The chance of the likeliest token falls as the temperature rises: every other token gains on it. So halve an interval, again and again. The answer may lie far from $1$, on either side.

Check yours with `exercises.check("temperature", temperature_for)`.
"""

# %% tags=["solution"]
from gptbook import exercises


def temperature_for(logits, p):
    z = logits.double() - logits.max()  # (V,)
    low, high = 1e-6, 1e6
    for _ in range(200):
        middle = math.sqrt(low * high)  # halve on the scale of factors
        if F.softmax(z / middle, dim=-1).max() > p:
            low = middle  # still too sure
        else:
            high = middle
    return middle


print(f"for one half: {temperature_for(logits, 0.5):.3f}")
exercises.check("temperature", temperature_for)

# %% [markdown]
r"""
### 2. The nucleus

*About ten minutes.* Write `nucleus(logits, p)` without looking above. It gets a row of logits $(V,)$ and a $p$ from 0 to 1, and returns the chances $(V,)$: those of the fewest of the likeliest tokens that hold at least $p$ together, divided by their sum, and zero for all others. One token is kept at least, for a $p$ of 0 too, and all are for a $p$ of 1. Of tokens with equal logits
the lower ids are kept.

??? tip "Hint"

    `sort(descending=True, stable=True)` ranks, and gives the ids as well. `cumsum` adds up. In the end every chance must go back to its own place.

Check yours with `exercises.check("top-p", nucleus)`.
"""


# %% tags=["solution"]
def nucleus(logits, p):
    chances = F.softmax(logits, dim=-1)  # (V,)
    ranked, ids = chances.sort(descending=True, stable=True)  # (V,) each
    count = 1
    while count < len(ranked) and (p == 1 or ranked[:count].sum() < p):
        count += 1
    kept = torch.zeros_like(chances)  # (V,)
    kept[ids[:count]] = ranked[:count] / ranked[:count].sum()
    return kept


exercises.check("top-p", nucleus)

# %% [markdown]
r"""
### 3. A greedy loop

*About fifteen minutes.* Let the model write {{ greedy_length }} tokens at temperature 0, from several beginnings, with `generate(model, encode(string), 80, temperature=0)`. Read them: the whole loop is too long to show in so few tokens, but pieces repeat. Then let code find what you saw, and try it on `400` tokens too. Write `period(tokens)`. It gets a list of token ids and returns the smallest $n$, $1$ or more, such that the last $n$ tokens are the same as the $n$ tokens right before them. It returns $0$ if there is
no such $n$.

??? tip "Hint"

    Compare two slices, for one $n$ after the other. Both must fit into the list.

Check yours with `exercises.check("greedy-loop", period)`.
"""


# %% tags=["solution"]
def period(tokens):
    for n in range(1, len(tokens) // 2 + 1):
        if tokens[-n:] == tokens[len(tokens) - 2 * n : len(tokens) - n]:
            return n
    return 0


for string in prompts[-3:]:
    out = generate(model, encode(string), 80, temperature=0)[0].tolist()
    # Not only at the end: cut the text off after each token, and keep the longest piece.
    n, end = max((period(out[:end]), end) for end in range(1, len(out) + 1))
    piece = tokenizer.decode(out[end - n : end])
    print(f"after {string!r}: {piece!r} twice in a row, period {n}")

exercises.check("greedy-loop", period)

# %% [markdown]
r"""
## What this page left out

Penalties for words that were said already. Beam search, which follows several beginnings at once and keeps the likeliest text. Thresholds that move with the highest chance. All of them are functions of the same row of logits.

And it left out the waste. For every new token, `generate` computes the whole window again, although nearly all of it was there a step before. The next page keeps it: [the KV cache](11_cache.py).
"""
