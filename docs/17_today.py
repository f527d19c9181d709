# %% [markdown]
r"""
# From GPT-2 to today

Almost every part of a GPT has been exchanged since GPT-2. You will make each exchange yourself, measure which of them pays at our size, and end with the real weights of a newer model in a class that you can read.

The GPT of [page 8](08_gpt.py) is GPT-2, made small. Models of today still embed, attend, think at each place alone, add, repeat and read off. What has changed are the parts. Each change is a few lines, and each is one field of a configuration in `gptbook/modern.py`. Then the optimizer changes too.

## Where we start

The package has a second model beside that of page 8, `ModernGPT`. With all fields at GPT-2's choices it is the first one. We copy the weights and compare.
"""

# %%
import math
import statistics
import time
from collections import Counter
from dataclasses import fields, replace

import torch
import torch.nn as nn
import torch.nn.functional as F

from gptbook import corpora, data, display, kv_cache, modern, recipes, trainer, verify
from gptbook.claims import claim
from gptbook.model import GPT, GPTConfig
from gptbook.modern import ModernConfig, ModernGPT

shape = {"vocab_size": 65, "block_size": 32, "n_layer": 2, "n_head": 2, "n_embd": 48}
gpt2 = ModernConfig(
    **shape, norm="layer", positions="learned", activation="gelu", bias=True, tied=True
)
torch.manual_seed(0)
ours, classic = ModernGPT(gpt2), GPT(GPTConfig(**shape, qkv_bias=True, tied=True))
for name, parameter in ours.named_parameters():
    if name.endswith("bias"):  # they start at zero, where they would prove nothing
        nn.init.normal_(parameter, std=0.1)
classic.load_state_dict(ours.state_dict())

idx = torch.randint(65, (3, 32))  # (B, T)
with torch.no_grad():
    torch.testing.assert_close(ours(idx), classic(idx), rtol=1e-4, atol=1e-4)


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


claim("today_start", parameters(ours), expected=verify.expected_parameters(gpt2))
print(f"{parameters(ours):,} parameters, and the same logits")

# %% [markdown]
r"""
This small model has {{ today_start:,}} parameters. It is the one that we change below, one field at a time. Unlike in our models of pages 8 and 9, queries, keys and values have biases too, and one table serves for reading tokens and for scoring them. Both are as in GPT-2.

## A norm without a mean

LayerNorm takes the mean off, and then divides by the standard deviation. RMSNorm only divides, by the root of the mean square. Take the vector $(1, 7, 1, 7)$. The mean of its squares is $(1 + 49 + 1 + 49)/4 = 25$, so it is divided by 5.
"""


# %%
def rms_norm(x, eps=1e-5):
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt()


x = torch.tensor([1.0, 7.0, 1.0, 7.0])  # (C,)
print("RMSNorm             ", [round(v, 3) for v in rms_norm(x).tolist()])
print("LayerNorm           ", [round(v, 3) for v in F.layer_norm(x, (4,)).tolist()])
centred = x - x.mean()  # (C,)
print("RMSNorm of the rest ", [round(v, 3) for v in rms_norm(centred).tolist()])
torch.testing.assert_close(rms_norm(x) * 5, x, rtol=1e-5, atol=0)
torch.testing.assert_close(rms_norm(x), F.rms_norm(x, (4,), eps=1e-5))

# %% [markdown]
r"""
The last two lines are equal, and not by accident.

!!! theorem "LayerNorm is RMSNorm of the centred vector"

    Take any vector $x$ of $C$ numbers with mean $\mu$, and the same $\varepsilon$ in both norms. Then LayerNorm of $x$, without gain and bias, is RMSNorm of $x - \mu$. If the mean is zero, the two norms agree.

    Tested by `test_layer_norm_is_rms_norm_of_the_centred_vector`.

??? proof "Proof"

    LayerNorm is $(x - \mu) / \sqrt{\sigma^2 + \varepsilon}$, where $\sigma^2$ is the mean of the squares of $x - \mu$. That is RMSNorm's formula with $x - \mu$ in the place of $x$. $\blacksquare$

So RMSNorm ([Zhang and Sennrich 2019](https://arxiv.org/abs/1910.07467)) leaves out one projection, and nothing else. Before, a norm also had a bias and a **gain**, a factor for each channel. The bias goes with all the other biases, below. The gain can go as well: what follows a norm is a matrix, and the matrix can hold the gain.
"""

# %%
generator = torch.Generator().manual_seed(1)
x = torch.randn(5, 48, generator=generator)  # (T, C)
gain = torch.rand(48, generator=generator) + 0.5  # (C,)
W = torch.randn(96, 48, generator=generator)  # (2C, C)
with_gain = (rms_norm(x) * gain) @ W.T  # (T, 2C)
folded = rms_norm(x) @ (W * gain).T  # (T, 2C)
torch.testing.assert_close(folded, with_gain, rtol=1e-4, atol=1e-4)
display.source(modern.norm)

# %%
own = modern.norm(replace(gpt2, norm="rms"))
with torch.no_grad():
    own.weight.copy_(gain)
    torch.testing.assert_close(own(x), rms_norm(x) * gain)
    plain = modern.norm(replace(gpt2, norm="rms", gain=False))
    torch.testing.assert_close(plain(x), rms_norm(x))
print(parameters(own), "parameters with a gain,", parameters(plain), "without")

# %% [markdown]
r"""
## No biases

A bias is a row that is added after a matrix. Look at those of queries, keys and values. A score is $q \cdot k$. A bias $b$ on all keys adds $q \cdot b$ to every score in the row of that query, the same number for each. By a theorem of [page 3](03_averaging.py), softmax ignores a shift. So the biases of the keys do nothing at all. Those of the values are added to every value, so they are added to every average of values, and the projection's own bias can do the same.
"""

# %%
attention = ours.h[0].attn
C = 48
x = torch.randn(1, 10, C, generator=generator)  # (B, T, C)
with torch.no_grad():
    before = attention(x)  # (B, T, C)
    key_bias, value_bias = (
        attention.c_attn.bias[C : 2 * C],
        attention.c_attn.bias[2 * C :],
    )
    key_bias.zero_()
    torch.testing.assert_close(attention(x), before, rtol=1e-4, atol=1e-5)
    attention.c_proj.bias += attention.c_proj.weight @ value_bias
    value_bias.zero_()
    torch.testing.assert_close(attention(x), before, rtol=1e-4, atol=1e-5)
    attention.c_attn.bias[:C] += 1.0  # the control: a bias of the queries counts
    assert (attention(x) - before).abs().max() > 1e-3
biases = sum(p.numel() for name, p in ours.named_parameters() if name.endswith("bias"))
claim(
    "today_biases",
    biases,
    expected=parameters(ours) - parameters(ModernGPT(replace(gpt2, bias=False))),
)
claim("today_biases_share", biases / parameters(ours), kind="tolerance")
print(f"{biases:,} numbers in biases")

# %% [markdown]
r"""
Two of the three kinds are wasted, then. And all biases together are few beside the matrices: here {{ today_biases:,}} numbers, {{ today_biases_share:.1%}} of the parameters, and in a wide model far less. Most newer models have none.

## Positions that turn

GPT-2 adds a vector to the stream that says "I am at place seven". For attention that is an odd thing to know. What matters is how far apart two tokens stand. Rotary positions ([Su et al. 2021](https://arxiv.org/abs/2104.09864), "RoFormer") put exactly this into the scores. Queries and keys are turned, by an angle that grows with their place.

Take heads of two channels, a plane, and a turn of 90 degrees from each place to the next. The query is $(1, 0)$ and the key is $(3, 4)$.
"""


# %%
def turn(x, place, angle):
    """A point x (2,) of the plane, turned by `place` times the angle."""
    c, s = math.cos(place * angle), math.sin(place * angle)
    return torch.stack((x[0] * c - x[1] * s, x[0] * s + x[1] * c))


q, k = torch.tensor([1.0, 0.0]), torch.tensor([3.0, 4.0])  # (D,) each
scores = {
    (m, n): (turn(q, m, math.pi / 2) @ turn(k, n, math.pi / 2)).item()
    for m, n in ((2, 2), (9, 9), (3, 2), (8, 7), (5, 3), (9, 7))
}
display.table(
    [(m, n, m - n, f"{score:.0f}") for (m, n), score in scores.items()],
    header=("query at", "key at", "distance", "score"),
)

# %%
for (m, n), score in scores.items():
    assert abs(score - (3, 4, -3)[m - n]) < 1e-5

# %% [markdown]
r"""
Equal distances have equal scores, wherever the two stand.

!!! theorem "A turned score depends on the distance alone"

    Let $R_t$ turn the pairs of channels $2i$ and $2i + 1$ of a vector by the angle $t\,\theta_i$, with any speeds $\theta_i$. Then for all $q$ and $k$ and all places $m$ and $n$,

    $$ (R_m\, q) \cdot (R_n\, k) = q \cdot (R_{n - m}\, k) . $$

    Besides, $R_t$ keeps the length of every vector.

    Tested by `test_turned_score_depends_on_the_distance_alone`.

??? proof "Proof"

    Look at one pair of channels; a dot product is the sum over the pairs. A turn keeps lengths and the angle between two vectors, so it keeps their dot product. Turn both $R_m q$ and $R_n k$ by $-m\theta_i$. Then the first is $q$. The second has been turned by $n\theta_i - m\theta_i$, which is $R_{n - m} k$. The lengths of the pairs are kept, so that of the whole vector is. $\blacksquare$

One speed is not enough. At 90 degrees, places 0 and 4 look the same. So the pairs turn at different speeds, from one radian a place down to almost nothing: $\theta_i = b^{-2i/D}$ for pair $i$, with a base $b$ of ten thousand. Fast pairs tell neighbours apart, slow ones tell near from far.
"""


# %%
def rotated(x, base):
    """Every row of x (..., T, D) turned as its place asks, pair by pair."""
    T, D = x.shape[-2:]
    out = x.clone()
    for t in range(T):
        for i in range(D // 2):
            pair = x[..., t, 2 * i : 2 * i + 2].unbind(-1)  # two of (...)
            angle = t * base ** (-2 * i / D)
            c, s = math.cos(angle), math.sin(angle)
            out[..., t, 2 * i] = pair[0] * c - pair[1] * s
            out[..., t, 2 * i + 1] = pair[0] * s + pair[1] * c
    return out


display.source(modern.rotary)

# %%
display.source(modern.rotate)

# %%
turning = replace(gpt2, positions="rotary")
x = torch.randn(3, 2, 32, 24, generator=generator)  # (B, H, T, D)
turned = modern.rotate(x, *modern.rotary(turning))
torch.testing.assert_close(turned, rotated(x, 10000.0), rtol=1e-4, atol=1e-5)
assert not torch.allclose(turned, rotated(x, 9000.0), atol=1e-2)  # the control
torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
print("equal, and every length is kept")

# %% tags=["hide-input"] alt="Three waves over the distance between two tokens, from 0 to 31. The first pair of channels swings five times, the fourth makes less than one swing, the ninth is almost a straight line at one." caption="What a pair of channels adds to a score, for a query and a key that point the same way, by their distance. Twelve such pairs make up a head here."
fig, ax = display.figure(5.2, 2.4)
cos, _ = modern.rotary(turning)
for pair, colour, style in (
    (0, display.RED, "-"),
    (3, display.BLUE, "--"),
    (8, display.GREY, ":"),
):
    ax.plot(cos[:, pair], style, color=colour, label=f"pair {pair}")
ax.set_xlabel("distance in tokens")
ax.set_ylabel("part of the score")
ax.legend(fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))

# %% [markdown]
r"""
Nothing here is learned, so the table of positions goes. And nothing is added to the stream: only queries and keys are turned, in every block anew. [Page 11](11_cache.py) found that a cache goes stale when a window of learned positions moves. Turned keys of the first block stay right, because no distance changes.

## Fewer keys than queries

A cache holds a key and a value for each token in each head. **Grouped queries** ([Ainslie et al. 2023](https://arxiv.org/abs/2305.13245), "GQA") let several heads of queries read the same keys and values. Write $H$ for the heads of queries and $G$ for those of keys and values. Head $h$ reads group $h$ divided by $H/G$, rounded down. So each key is repeated for $H/G$ heads in a row, and all else is the attention of page 5.
"""

# %%
H, G, D, T = 6, 2, 8, 10
q = torch.randn(1, H, T, D, generator=generator)  # (B, H, T, D)
k, v = torch.randn(2, 1, G, T, D, generator=generator)  # (B, G, T, D) each


def shared_attention(q, k, v):
    repeats = q.size(1) // k.size(1)
    k, v = (
        part.repeat_interleave(repeats, dim=1) for part in (k, v)
    )  # (B, H, T, D) each
    scores = q @ k.mT / math.sqrt(q.size(-1))  # (B, H, T, T)
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)  # (T, T)
    return F.softmax(scores.masked_fill(future, -math.inf), dim=-1) @ v  # (B, H, T, D)


grouped = modern.CausalSelfAttention(
    ModernConfig(n_head=H, n_kv_head=G, n_embd=H * D, block_size=T)
)
package = grouped.read(grouped.weights(q, k), v)  # (B, T, H*D)
torch.testing.assert_close(
    package, shared_attention(q, k, v).transpose(1, 2).flatten(2)
)
wrong = shared_attention(q, k.flip(1), v.flip(1)).transpose(1, 2).flatten(2)
assert not torch.allclose(package, wrong, atol=1e-2)  # the control: the other group
display.source(modern.CausalSelfAttention.weights)

# %% [markdown]
r"""
The package copies no keys. It lays the queries that share a key on top of each other instead. The gain is memory. We count the bytes of a full cache by building one.
"""

# %%
rows = []
for groups in (6, 3, 2, 1):
    config = ModernConfig(n_head=6, n_kv_head=groups, n_embd=48, n_layer=2)
    model = ModernGPT(config)
    with torch.no_grad():
        _, cache = kv_cache.forward(model, idx[:1])
    numbers = 2 * 2 * 32 * groups * 8  # keys and values, L, T, G, D
    assert cache.bytes == 4 * numbers
    rows.append((groups, f"{cache.bytes:,}", f"{parameters(model):,}"))
display.table(
    rows,
    header=("groups", "cache, bytes", "parameters"),
    caption="Six heads of queries, and fewer and fewer of keys and values.",
)

# %% [markdown]
r"""
## A gate in the MLP

The MLP of page 6 is two matrices with a curve between them. A **gate** is a third matrix beside the first. What goes through the curve says, number by number, how much of the first matrix's output comes through. With the curve $\operatorname{silu}(u) = u\,\sigma(u)$, where $\sigma(u) = 1/(1 + e^{-u})$, this is **SwiGLU** ([Shazeer 2020](https://arxiv.org/abs/2002.05202), "GLU variants"):

$$ \operatorname{MLP}(x) = W_{\text{out}} \bigl( \operatorname{silu}(W_{\text{gate}}\, x) \odot W_{\text{in}}\, x \bigr) . $$

The sign $\odot$ multiplies number by number. Three matrices weigh more than two, so the inner width is cut. Two matrices of width $4C$ hold $8C^2$ numbers. Three of width $w$ hold $3 w C$. They are equal for $w = \frac{8}{3} C$, two thirds of $4C$.
"""

# %%
gated = modern.MLP(replace(gpt2, activation="swiglu", bias=False))
plain = modern.MLP(replace(gpt2, bias=False))
assert gated.c_fc.out_features == 8 * 48 // 3
claim("today_inner", gated.c_fc.out_features, expected=128)
claim("today_mlp", parameters(gated), expected=parameters(plain))
x = torch.randn(5, 48, generator=generator)  # (T, C)
with torch.no_grad():
    u = x @ gated.c_gate.weight.T  # (T, inner)
    by_hand = (u / (1 + (-u).exp()) * (x @ gated.c_fc.weight.T)) @ gated.c_proj.weight.T
    torch.testing.assert_close(gated(x), by_hand, rtol=1e-4, atol=1e-6)
display.source(modern.MLP)

# %% [markdown]
r"""
At our width of 48 both have exactly {{ today_mlp:,}} numbers in matrices, with {{ today_inner}} inner channels for the gate.

There is a cheaper way. **Squared ReLU** ([So et al. 2021](https://arxiv.org/abs/2109.08668), "Primer") needs no third matrix: $\max(0, u)^2$. From $-1$, $\frac12$ and $2$ it makes 0, $\frac14$ and 4. It is a gate as well, one in which both matrices are the same: $\max(0, u) \cdot u$.
"""

# %%
u = torch.tensor([-1.0, 0.5, 2.0])
relu2 = modern.ACTIVATIONS["relu2"]
assert relu2(u).tolist() == [0.0, 0.25, 4.0]
assert torch.equal(relu2(u), F.relu(u) * u)
squared = modern.MLP(replace(gpt2, activation="relu2", bias=False))
assert parameters(squared) == parameters(plain)
with torch.no_grad():
    by_hand = (x @ squared.c_fc.weight.T).clamp(
        min=0
    ).square() @ squared.c_proj.weight.T
    torch.testing.assert_close(squared(x), by_hand, rtol=1e-4, atol=1e-6)
print(relu2(u).tolist())

# %% [markdown]
r"""
## Queries and keys of one length

Nothing keeps the scores of attention small. If queries and keys grow in training, the softmax gives all its weight to one place, and hardly any gradient flows. **QK norm** ([Henry et al. 2020](https://arxiv.org/abs/2010.04245); in large models [Dehghani et al. 2023](https://arxiv.org/abs/2302.05442)) divides each query and each key by its size, before they are turned.

!!! theorem "QK norm bounds the scores"

    Let queries and keys of $D$ channels go through RMSNorm without gain, and be turned or not. Then every score lies between $-\sqrt{D}$ and $\sqrt{D}$, and no weight in a row of $T$ of them is above

    $$ \frac{1}{1 + (T - 1)\, e^{-2\sqrt{D}}} . $$

    Tested by `test_qk_norm_bounds_the_scores`.

??? proof "Proof"

    After RMSNorm the mean of the squares is at most 1, so the length is at most $\sqrt{D}$. A turn keeps it. A dot product is at most the product of the lengths, here $D$, and a score divides it by $\sqrt{D}$. The weight of a score $s$ is $e^s$ divided by the sum over the row. Divide both by $e^s$. What is left is $1$ over $1$ plus the $T - 1$ numbers $e^{s' - s}$ of the other scores $s'$. Two scores differ by at most $2\sqrt{D}$, so each of these numbers is at least $e^{-2\sqrt{D}}$. $\blacksquare$
"""

# %%
normed = modern.CausalSelfAttention(replace(turning, qk_norm=True))
x = 100 * torch.randn(1, 32, 48, generator=generator)  # (B, T, C), far too large
H, D = 2, 24
with torch.no_grad():
    nn.init.normal_(normed.c_attn.weight, std=1.0)
    q, k, v = normed.project(x, modern.rotary(turning))
    parts = (
        normed.c_attn(x).view(1, 32, 3, H, D).permute(2, 0, 3, 1, 4)
    )  # (3, B, H, T, D)
    for package, part in ((q, parts[0]), (k, parts[1])):
        expected = rotated(rms_norm(part), 10000.0)  # (B, H, T, D)
        torch.testing.assert_close(package, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(v, parts[2])  # values keep their size
    largest = (q @ k.mT / math.sqrt(D)).abs().max()
    without = (parts[0] @ parts[1].mT / math.sqrt(D)).abs().max()
claim("today_score_bound", math.sqrt(D), kind="tolerance")
claim("today_score", largest, expected=(1, math.sqrt(D) + 1e-3), kind="tolerance")
print(f"largest score {largest:.2f}, without the norm {without:,.0f}")

# %%
display.source(modern.CausalSelfAttention.project)

# %% [markdown]
r"""
The bound is {{ today_score_bound:.2f}} here, and the largest score is {{ today_score:.2f}}, for inputs that are far too large on purpose.

## The two ends

At the bottom, embeddings start tiny: numbers of size $0.02$. Every block normalises what it reads, so what it adds has the same size whatever the size of the stream is. Beside a tiny stream it weighs much. An **embedding norm** brings the stream to size 1 before the first block.

At the top, GPT-2 uses the embedding table again to score tokens. It is **tied**. One row must then say both what a token means when it is read, and what the stream looks like when that token should come next. With a small vocabulary a second table costs little.
"""

# %%
sizes = {}
for norm in (False, True):
    torch.manual_seed(0)
    model = ModernGPT(replace(gpt2, embedding_norm=norm))
    x, turns = model.embed(idx)
    added = model.h[0].attn(model.h[0].ln_1(x), turns)  # (B, T, C)
    sizes[norm] = [part.square().mean().sqrt().item() for part in (x, added)]
    stream, addition = sizes[norm]
    print(
        f"embedding norm {norm!s:5}: stream {stream:.3f}, first addition {addition:.3f}"
    )
assert sizes[False][0] < 0.05
assert abs(sizes[True][0] - 1) < 0.05
claim(
    "today_weighs",
    addition_share := sizes[False][1] / sizes[False][0],
    (0.05, 0.5),
    kind="statistical",
)
claim(
    "today_weighs_less",
    sizes[True][1] / sizes[True][0],
    (0, addition_share / 10),
    kind="statistical",
)
untied = parameters(ModernGPT(replace(gpt2, tied=False))) - parameters(ours)
claim("today_untied", untied, expected=65 * 48)

# %% [markdown]
r"""
Without the norm, the very first addition is {{ today_weighs:.0%}} of the stream's size, and with it {{ today_weighs_less:.1%}}. So the first addition changes the token's vector little.

The second table has {{ today_untied:,}} numbers here. In a small model with a large vocabulary it would be a large share of all the rest. So such models keep it tied.

## Several tokens at a time

After `t` often comes `h`, and after `th` often `e`. A model learns such habits through attention, and that takes it time. A table can say them at once. So each position gets, besides the row of its token, a row for the last two tokens together, one for the last three, and so on. Such a run of $n$ tokens is an **n-gram**; a trigram of [page 2](02_bigram.py) is one with $n = 3$. [Pagnoni et al. 2024](https://arxiv.org/abs/2412.09871) do this with bytes, [Huang et al. 2025](https://arxiv.org/abs/2501.16975) with pieces of words.

A row for every run of four characters would be {{ today_grams_possible:,}} rows, and most of these runs never occur. So each length has a table of only $R$ rows, and a rule says which of them to take, a **hash**. Ours reads the tokens as the digits of a number in base $V + 1$. The row is the remainder when that number is divided by $R$. With ten symbols and base ten the tokens 4, 7 and 2 are the number $472$, and with $R = 11$ their row is 10. Different runs can share a row. Then the row learns mostly from the frequent one.

Not every $R$ will do. With base ten and $R = 100$ the row of $472$ is $72$, as it is for $372$: the first token is lost. So $R$ must share no factor with the base, and a prime is a safe choice. The digit $V$ stands for "unknown", for the places before the first token that the model is given. With a [cache](11_cache.py) these are known, and handed over as `before`.

A token at position $t$ looks at tokens $t - n + 1$ to $t$, and at none that comes later. The rows of all lengths are put side by side, and one matrix makes $C$ numbers of them, which are added to the embedding.
"""

# %%
from gptbook.tokenizers import CharTokenizer

corpus = corpora.load("tinyshakespeare")
known = corpus.name == "tinyshakespeare"
tokenizer = CharTokenizer.train(corpus.text, vocab_size=65)
training_part, _ = data.encoded(corpus.text, tokenizer)  # validation stays unseen


def within(low, high):
    """Bounds for a number of this text; nothing is known of another text's."""
    return (low, high) if known else None


V, R = 65, modern.ModernConfig().ngram_rows


def place(tokens, rows):
    """The row of a run of tokens in its table."""
    number = 0
    for token in tokens:
        number = number * (V + 1) + token
    return number % rows


grams = replace(gpt2, ngrams=4)
model = ModernGPT(grams)
word = tokenizer.encode("the")
by_hand = [place(word[-2:], R), place(word, R), place([V, *word], R)]
looked_up = model.ngrams.places(torch.tensor([word]))[0, -1]  # (lengths,)
assert looked_up.tolist() == [row + i * R for i, row in enumerate(by_hand)]
for n, row in zip((2, 3, 4), by_hand, strict=True):
    print(f"the last {n} tokens, at the end of 'the': row {row:,} of {R:,}")

seen = [set(map(tuple, training_part.unfold(0, n, 1).tolist())) for n in (2, 3, 4)]
alone = []
for runs in seen:
    times = Counter(place(run, R) for run in runs)
    alone.append(sum(times[place(run, R)] == 1 for run in runs) / len(runs))
for n, runs, share in zip((2, 3, 4), seen, alone, strict=True):
    print(
        f"{n} tokens: {len(runs):,} different runs, {share:.0%} have a row of their own"
    )
claim("today_grams_possible", V**4)
claim("today_grams_rows", R)
claim("today_grams_pairs", alone[0], expected=1.0)
claim("today_grams_seen", len(seen[-1]), within(10_000, None))
claim("today_grams_alone", alone[-1], within(0, 0.5))
more = parameters(model) - parameters(ours)
claim("today_grams_more", more, expected=3 * (R * 64 + 64 * 48))
display.source(modern.Ngrams)

# %% [markdown]
r"""
Every pair of characters has a row of its own, since $(V + 1)^2$ is below $R$. Of the {{ today_grams_seen:,}} runs of four characters in the training text only {{ today_grams_alone:.0%}} do.

What does it cost? To read, hardly any time: a row is looked up, and nothing is multiplied with the rest of the table. In training, though, the optimizer goes over all rows at every step, and that takes time. And it costs memory. The three tables and their matrix have {{ today_grams_more:,}} numbers, far more than all the blocks of this small model. And a row that is met twice in a text can learn those two places by heart. So the tables **decay**, with a rate of their own (`table_decay`): at each step every row shrinks by a small share of itself. What the text does not confirm again fades.

There is a second cure, **dropout**. In its ordinary form it sets each number to zero with a given chance, while the model is trained, and divides the rest by the chance to stay, so that the mean is the same. Nothing can rely on any one number then. When the model writes or is measured, nothing is left out. Here it takes whole rows: `ngram_dropout` is the chance that a row is left out, decided anew each time it is looked up. The same row can stay at one place and be missing at another. (`channel_dropout` takes whole channels from what attention and the MLP of a block add to the stream. It draws them anew for each text and each addition, but for all positions of the text at once. Nothing on this page uses it; the longest run in the table of [page 18](18_scaling.py) does.)

In the code above, `self.dropout` does it. The cache of [page 11](11_cache.py) asks for `whole`, so it leaves nothing out, not even in training mode. To see it, we catch what goes into the matrix, with a hook as on [page 12](12_lens.py).
"""

# %%
dropping = ModernGPT(replace(grams, ngram_dropout=0.25)).ngrams
given = []
dropping.mix.register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]))
texts = training_part[: 64 * 32].view(64, 32)  # (B, T)
for training in (True, False):
    dropping.train(training)(texts)
live, later = (rows.unflatten(-1, (3, -1)) for rows in given)  # (B, T, 3, width) each
gone = (live == 0).all(dim=-1)  # (B, T, 3)
torch.testing.assert_close(live[~gone], later[~gone] / 0.75)
claim("today_rows_gone", gone.float().mean().item(), (0.2, 0.3), kind="statistical")
claim("today_rows_gone_later", (later == 0).all(dim=-1).sum().item(), expected=0)
display.source(modern.SharedDropout)

# %% [markdown]
r"""
In training mode {{ today_rows_gone:.0%}} of the rows were left out, and those that stayed were divided by the chance to stay. Outside of it {{ today_rows_gone_later }} rows were.
"""

# %% [markdown]
r"""
## One budget for all

Which of these changes pay? We train small models on Shakespeare and look at their loss. Choices must not be made on validation text, or it is no longer unseen. So this part of the page uses the **development split**: the last tenth of the training text is held out, and the models read the rest.
"""

# %%
fit, development = data.development_split(training_part)
development = development[: 800 * 32 + 1]

adamw = trainer.TrainConfig(
    batch_size=16,
    steps=200,
    learning_rate=1e-2,
    warmup_steps=20,
    schedule="linear",
    weight_decay=0.1,
    betas=(0.9, 0.95),
    clip=1.0,
    table_decay=1.0,
)


def run(config, training, seed):
    """A model, its loss on the development text, and the milliseconds of each step."""
    torch.manual_seed(seed)
    model, batches = ModernGPT(config), torch.Generator().manual_seed(seed)
    optimizer = trainer.make_optimizer(model, training)
    took = []
    for step in range(training.steps):
        begin = time.perf_counter()
        x, y = data.get_batch(fit, config.block_size, training.batch_size, batches)
        rate = trainer.lr_at(step, training)
        trainer.update(model, optimizer, x, y, rate, training.clip)
        took.append(1000 * (time.perf_counter() - begin))
    return model, trainer.evaluate(model, development).loss, took


few_rows = {"ngrams": 3, "ngram_rows": 4421, "ngram_width": 16}
everything = replace(
    gpt2,
    norm="rms",
    gain=False,
    bias=False,
    positions="rotary",
    activation="relu2",
    qk_norm=True,
    embedding_norm=True,
    tied=False,
)
claim("today_steps", adamw.steps)
claim("today_tokens", adamw.steps * adamw.batch_size * 32)
claim("today_judged", len(development) - 1)
claim("today_few_rows", few_rows["ngram_rows"])
claim("today_few_width", few_rows["ngram_width"])


def in_words(threads):
    return "one thread" if threads == 1 else f"{threads} threads"


claim("today_race_threads", in_words(torch.get_num_threads()))
print(f"{len(fit):,} characters to train on, and {len(development):,} to judge by")

# %% [markdown]
r"""
Every run below has {{ today_steps}} steps, the same {{ today_tokens:,}} tokens for the same seed, and {{ today_race_threads }}. Its loss is taken over {{ today_judged:,}} characters of the development split. That is short. It says which change helps *early*, and not what a model of a real size gains in the end.

## An optimizer for matrices

Before we compare parts, we look at the step itself. Here is a model with all changes but groups, gate and n-grams, trained by AdamW, and the gradient $G$ of one of its matrices, averaged over some batches. (From here on, $G$ is a gradient and no number of groups.) How is it spread over directions? The **singular value decomposition** answers this. It writes a matrix as a sum $\sum_i s_i\, u_i v_i^\top$, where all $u_i$ and $v_i$ have length 1. The directions $v_i$ are at right angles to each other. They go to the directions $u_i$, at right angles too, and are stretched by the **singular values** $s_i$.
"""

# %%
first, *_ = results_adamw = run(everything, adamw, seed=1)
weight = first.h[0].mlp.c_fc.weight  # (inner, C)
batches = torch.Generator().manual_seed(7)
gradient = torch.zeros_like(weight)  # (inner, C)
for _ in range(20):
    x, y = data.get_batch(fit, 32, 16, batches)
    loss = trainer.loss_fn(first(x), y)
    gradient += torch.autograd.grad(loss, weight)[0] / 20
values = torch.linalg.svdvals(gradient)  # (C,)
top = values[:5].square().sum() / values.square().sum()
claim("today_few", top, within(0.4, None), kind="statistical")
claim("today_flat", 5 / len(values), kind="tolerance")
claim("today_directions", len(values))
assert values[0] / values[-1] > 100
claim("today_ratio", values[0] / values[23], within(3, None), kind="statistical")
print("the first ten, the largest as 1:", (values / values[0])[:10].round(decimals=2))

# %% [markdown]
r"""
The squares of all entries of $G$ have the same sum as the squares of all $s_i$. The five largest of the {{ today_directions }} directions hold {{ today_few:.0%}} of that sum. If all were alike, it would be {{ today_flat:.0%}}. The largest singular value is {{ today_ratio:.0f}} times the middle one. A step along this gradient moves the matrix far in a few directions, and hardly in the others.

What would be a better step? That depends on how we measure its size. A matrix acts on vectors. So measure a step $O$ by the most that it can stretch a vector: its largest singular value, the **spectral norm**. Among all steps of size 1, take the one along which the loss falls fastest. For small steps, a step against $O$ lowers the loss by nearly $\langle G, O\rangle$, the sum of the products of their entries.

Take $G = \begin{pmatrix} 2 & 1 \\ 1 & 2 \end{pmatrix}$. It stretches $(1, 1)$ by 3 and $(1, -1)$ by 1. Scaled down to size 1, $G/3$, it gives $\langle G, G/3\rangle = 10/3$. The identity has size 1 too, and gives $\langle G, I\rangle = 4$. It is the better step, and no other is better still.

!!! theorem "The steepest step under the spectral norm"

    Let $G = \sum_i s_i\, u_i v_i^\top$ be a singular value decomposition. Among all $O$ that stretch no vector by more than 1, $\langle G, O\rangle$ is largest for $O = \sum_i u_i v_i^\top = U V^\top$, where the $u_i$ are the columns of $U$ and the $v_i$ those of $V$. There it is $\sum_i s_i$.

    Tested by `test_steepest_step_under_the_spectral_norm`.

??? proof "Proof"

    For a single pair, $\langle u v^\top, O\rangle = \sum_{j,k} u_j\, v_k\, O_{jk} = u^\top O\, v$. So $\langle G, O\rangle = \sum_i s_i\, u_i^\top O\, v_i$. The vectors $u_i$ and $v_i$ have length 1, and $O v_i$ has at most length 1. So $u_i^\top O v_i \le 1$ for each $i$, and the sum is at most $\sum_i s_i$. For $O = U V^\top$ each of these numbers is 1. And this $O$ stretches nothing: it takes the $v_i$, at right angles, to the $u_i$, at right angles and equally long. What is at right angles to all $v_i$ goes to 0. $\blacksquare$

So keep the directions and set all singular values to 1 ([Bernstein and Newhouse 2024](https://arxiv.org/abs/2409.20325)).
"""


# %%
def all_alike(G):
    """G with its singular values replaced by ones."""
    U, _, Vh = torch.linalg.svd(G, full_matrices=False)
    return U @ Vh


G = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
torch.testing.assert_close(all_alike(G), torch.eye(2))
assert abs((G * G / 3).sum() - 10 / 3) < 1e-5
assert abs((G * all_alike(G)).sum() - 4) < 1e-5
print(all_alike(G))

# %% [markdown]
r"""
A decomposition at every step would be slow. There is a way with products of matrices alone. Write $X = U S V^\top$, with the singular values on the diagonal of $S$. Then the product $X X^\top X$ is $U S^3 V^\top$: the directions stay, and each singular value is cubed. So take an **odd polynomial** in $X$:

$$ a X + b\, X X^\top X + c\, (X X^\top)^2 X . $$

It equals $U \,(a S + b S^3 + c S^5)\, V^\top$, so it acts on the singular values one by one.

Choose $a$, $b$ and $c$ so that small values grow fast and values near 1 stay in a band around it, and repeat. This is the **Newton-Schulz** iteration. The three numbers are those of [Jordan et al. 2024](https://kellerjordan.github.io/posts/muon/), who called the optimizer **Muon**.

The code handles several matrices of one shape together. `torch.baddbmm(M, P, Q, beta=r, alpha=s)` is $r M + s P Q$ for each of them, in one pass.
"""

# %%
from gptbook import muon

print(f"a = {muon.A}, b = {muon.B}, c = {muon.C}, {muon.STEPS} times")
display.source(muon.orthogonalised)


# %%
def polynomial(s, times=muon.STEPS):
    for _ in range(times):
        s = muon.A * s + muon.B * s**3 + muon.C * s**5
    return s


def by_svd(G):
    """What the iteration must give, by the decomposition that it avoids."""
    U, S, Vh = torch.linalg.svd(G, full_matrices=False)
    return (U * polynomial(S / S.norm())) @ Vh


turned = muon.orthogonalised(gradient.double(), torch.float64)  # (inner, C)
torch.testing.assert_close(turned, by_svd(gradient.double()), rtol=0, atol=1e-4)
s = torch.linspace(0, 1, 100_001, dtype=torch.float64)
end = polynomial(s)
band = torch.linspace(0.68, 1.21, 100_001, dtype=torch.float64)
assert 0.68 < polynomial(band, 1).min() < polynomial(band, 1).max() < 1.14
assert polynomial(s, 1).max() < 1.21  # so what is above 0.68 once is in the band
start = s[(polynomial(s, 4) < 0.68).nonzero().max() + 1].item()
lifted = end[s >= start]
claim("today_lifted_from", start, (0.004, 0.006), kind="tolerance")
claim("today_lowest", lifted.min(), (0.68, 0.7), kind="tolerance")
claim("today_highest", lifted.max(), (1.1, 1.14), kind="tolerance")
claim("today_highest_of_all", end.max(), (1.1, 1.21), kind="tolerance")
shares = values.double() / values.double().norm()  # (C,)
kept = shares >= start  # (C,)
claim("today_kept", kept.sum(), within(5, 48))
assert 0.68 < polynomial(shares[kept]).min() < polynomial(shares[kept]).max() < 1.14
print(f"{int(kept.sum())} of {len(kept)} values of the gradient are large enough")

# %% tags=["hide-input"] alt="Left: the polynomial applied five times, over singular values from 0 to 1. It shoots up from zero and then wobbles in a narrow band around one. Once applied, it is a curve that rises more gently and falls again. Right: singular values in order, on a logarithmic axis. Those of the gradient fall by more than a hundredfold. Those of Muon's step lie in the band where the gradient's were large enough, and may lie below it, or a little above, elsewhere." caption="Left: the polynomial once and five times; the band is grey. Right: the 48 singular values of the gradient, the largest set to 1, and those of the step that Muon makes of it."
fig, axes = display.figure(5.2, 2.6, columns=2)
axes[0].axhspan(0.68, 1.14, color=display.GREY, alpha=0.25, lw=0)
few = torch.linspace(0, 1, 400) ** 2  # dense where the curve is steep
axes[0].plot(few, polynomial(few, 1), "--", color=display.RED, label="once")
axes[0].plot(few, polynomial(few), color=display.BLUE, label="five times")
axes[0].set_xlabel("singular value before")
axes[0].set_title("after", fontsize=10)
axes[0].legend(fontsize=9, loc="lower right")
axes[1].plot(values / values[0], "s", ms=3, color=display.RED, label="gradient")
axes[1].plot(
    torch.linalg.svdvals(turned), "o", ms=3, color=display.BLUE, label="Muon's step"
)
axes[1].set_yscale("log")
axes[1].set_xlabel("direction")
axes[1].set_title("singular value", fontsize=10)
axes[1].legend(fontsize=9, loc="lower left")

# %% [markdown]
r"""
Five times are enough. First divide the matrix by the root of the sum of its squares, so that no singular value is above 1. Each that is above {{ today_lifted_from:.4f}} then ends between {{ today_lowest:.2f}} and {{ today_highest:.2f}}. Four rounds bring it between $0.68$ and $1.21$, and the fifth takes this range into the narrower one. It is not exactly 1. It need not be, and the steepness at zero is worth more. Of the {{ today_directions }} values of our gradient, {{ today_kept}} are large enough. What is smaller may end anywhere between zero and {{ today_highest_of_all:.2f}}.

The rest of Muon is short. **Momentum**: the step is made from an average of the gradients, $M \leftarrow 0.95\,M + 0.05\,G$. **Nesterov**: it looks ahead, by mixing the new gradient in once more. **Decay**: the weights shrink a little each step, as in AdamW. And a **rate factor**: a matrix with more rows than columns makes many numbers of few. If $O$ only keeps lengths, an input of $n$ numbers of size 1 gives $m$ numbers of size $\sqrt{n/m}$. The factor $\sqrt{m/n}$ makes up for it ([Bernstein 2025](https://jeremybernste.in/writing/deriving-muon)): for the first matrix of our MLP the size would be {{ today_tall:.2f}}, and the factor is 2. A matrix with no more rows than columns has the factor 1. Queries, keys and values lie in one matrix, and Muon takes them as three.
"""

# %%
display.source(muon.Muon.step)

# %%
narrow = torch.randn(1000, 48, generator=generator)  # vectors of 48 numbers of size 1
tall = all_alike(torch.randn(192, 48, generator=generator))  # (4C, C)
size = (narrow @ tall.T).square().mean().sqrt()
claim("today_tall", size, (0.48, 0.52), kind="statistical")
assert abs(2 * size - 1) < 0.04  # times the root of 192 / 48


def by_hand(weight, gradients, rate, momentum=0.95, decay=0.1):
    average = torch.zeros_like(weight)
    for G in gradients:
        average = momentum * average + (1 - momentum) * G
        ahead = momentum * average + (1 - momentum) * G
        m, n = weight.shape
        weight = weight * (1 - rate * decay)
        weight = weight - rate * max(1, m / n) ** 0.5 * by_svd(ahead)
    return weight


for m, n in ((12, 5), (5, 12), (7, 7)):
    begin, *gradients = torch.randn(4, m, n, dtype=torch.float64, generator=generator)
    parameter = nn.Parameter(begin.clone())
    optimizer = muon.Muon([parameter], lr=0.02, weight_decay=0.1, dtype=torch.float64)
    for G in gradients:
        parameter.grad = G
        optimizer.step()
    expected = by_hand(begin, gradients, 0.02)
    torch.testing.assert_close(parameter.data, expected, rtol=0, atol=1e-5)
    plain_sum = begin - 0.02 * sum(by_svd(G) for G in gradients)
    assert not torch.allclose(parameter.data, plain_sum, atol=1e-3)  # the control
print("three steps of the package are three steps by hand")

# %% [markdown]
r"""
All that is no matrix of a block stays with AdamW: embeddings, the tables of n-grams and the matrix after them, the unembedding, gains and biases. A table's rows are met one at a time; it is not a matrix that acts on vectors. That the two matrices at the ends stay with AdamW too is a habit of the field, which this page does not test. The matrices of the blocks have a rate of their own (`matrix_learning_rate`), with the same schedule.

Now both optimizers, at the same budget, each with three rates. The rate of AdamW for what is no matrix is the same in all runs of Muon.
"""

# %%
with_muon = replace(adamw, optimizer="muon", matrix_learning_rate=0.03)
rates = {"AdamW": (1e-2, 2e-2, 4e-2), "Muon": (0.015, 0.03, 0.06)}
raced, speeds = {}, {"AdamW": [], "Muon": []}
for name, tried in rates.items():
    for rate in tried:
        if name == "AdamW":
            training = replace(adamw, learning_rate=rate)
        else:
            training = replace(with_muon, matrix_learning_rate=rate)
        same = training == adamw  # that run has been made
        made = results_adamw if same else run(everything, training, seed=1)
        raced[name, rate] = made[1]
        speeds[name] += made[2]
        if training == with_muon:
            results_muon = made
best = {name: min(raced[name, rate] for rate in tried) for name, tried in rates.items()}
claim("today_best_adamw", best["AdamW"], kind="statistical")
claim("today_best_muon", best["Muon"], kind="statistical")
claim(
    "today_muon_gain",
    best["AdamW"] - best["Muon"],
    within(0.03, None),
    kind="statistical",
)
display.table(
    [
        (
            name,
            rate,
            f"{raced[name, rate]:.3f}",
            f"{statistics.median(speeds[name]):.1f}",
        )
        for name, tried in rates.items()
        for rate in tried
    ],
    header=("optimizer", "rate", "loss", "ms a step"),
    caption=f"All changes but groups, gate and n-grams, one seed. Loss on the development split, in nats. One thread of: {recipes.processor()}.",
)

# %% [markdown]
r"""
With the best of its three rates AdamW reaches {{ today_best_adamw:.2f}}, Muon {{ today_best_muon:.2f}}. The difference is {{ today_muon_gain:.2f}} nats at the same number of steps. A step of Muon has more to compute, and the last column says what that takes. Below, all use Muon at the middle rate.

## Each change alone, and all together

Now the parts. Every model is trained with Muon, with two seeds. The n-grams among them are pairs and triples, in tables of {{ today_few_rows:,}} rows with {{ today_few_width }} numbers each. "All" is everything but groups and gate. Two runs that differ in nothing but the seed do not end at the same loss. How far they lie apart is the **spread**: we take a standard deviation, from the pairs of all models. A difference of that size between two models says nothing. (The mean of two runs varies less than a run does, and the difference of two such means as much as a run.)
"""

# %%
changes = {
    "GPT-2's choices": {},
    "RMSNorm, no gain": {"norm": "rms", "gain": False},
    "no biases": {"bias": False},
    "rotary positions": {"positions": "rotary"},
    "one group of keys": {"n_kv_head": 1},
    "SwiGLU": {"activation": "swiglu"},
    "squared ReLU": {"activation": "relu2"},
    "QK norm": {"qk_norm": True},
    "embedding norm": {"embedding_norm": True},
    "untied head": {"tied": False},
    "n-grams": few_rows,
}
losses, milliseconds, counts = {}, {}, {}
models = {name: replace(gpt2, **change) for name, change in changes.items()}
models["all but groups, gate, n-grams"] = everything
models["all but groups and gate"] = replace(everything, **few_rows)
for name, config in models.items():
    made = [
        results_muon
        if (config, seed) == (everything, 1)
        else run(config, with_muon, seed)
        for seed in (1, 2)
    ]
    losses[name] = [loss for _, loss, _ in made]
    milliseconds[name] = statistics.median(t for _, _, took in made for t in took)
    counts[name] = parameters(made[0][0])
    assert counts[name] == verify.expected_parameters(config)

base, *_, together = losses
# The standard deviation of a run, from the pairs of all models.
spread = math.sqrt(statistics.mean((a - b) ** 2 / 2 for a, b in losses.values()))
gains = {
    name: statistics.mean(losses[base]) - statistics.mean(pair)
    for name, pair in losses.items()
}


def verdict(name):
    if name == base:
        return ""
    if abs(gains[name]) < 3 * spread:
        return "noise"
    return "better" if gains[name] > 0 else "worse"


display.table(
    [
        (
            name,
            f"{counts[name]:,}",
            *(f"{loss:.3f}" for loss in losses[name]),
            verdict(name),
            f"{milliseconds[name]:.1f}",
        )
        for name in losses
    ],
    header=("model", "parameters", "seed 1", "seed 2", "verdict", "ms a step"),
    caption="Loss on the development split, in nats. Noise: the means differ by less than three "
    f"standard deviations of a run. One thread of: {recipes.processor()}.",
)

# %% tags=["hide-input"]
claim("today_spread", spread, kind="statistical")
claim(
    "today_rotary_gain",
    gains["rotary positions"],
    within(0.05, None),
    kind="statistical",
)
claim("today_all_gain", gains[together], within(0.05, None), kind="statistical")
if known:
    assert min(gains["rotary positions"], gains["n-grams"]) > 3 * spread
    assert gains[together] > 3 * spread
within_noise = [name for name in changes if verdict(name) == "noise"]
beyond = [name for name in changes if verdict(name) in ("better", "worse")]
claim("today_noise_count", len(within_noise))
named = ", ".join(f"{name} ({verdict(name)})" for name in beyond)
claim("today_beyond", f"Beyond it lie: {named}." if named else "None lies beyond it.")
claim("today_grams_gain", gains["n-grams"], within(0.1, None), kind="statistical")
claim(
    "today_gains_alone",
    gains["n-grams"] + gains["rotary positions"],
    within(gains[together], None),
    kind="statistical",
)
assert len(within_noise) + len(beyond) == len(changes) - 1  # all but the first

# %% tags=["hide-input"] alt="A row of two dots for each model, over the loss. The dots of rotary positions, of n-grams and of all changes together lie clearly to the left of the two grey lines of GPT-2's choices. The dots of most others lie near these lines." caption="Two seeds a model. The grey lines are the two runs with GPT-2's choices. Left is better."
fig, ax = display.figure(5.2, 3.4)
for loss in losses[base]:
    ax.axvline(loss, color=display.GREY, lw=1, ls=":")
for row, (name, pair) in enumerate(losses.items()):
    colour = display.GREY if verdict(name) in ("", "noise") else display.BLUE
    ax.plot(pair, [row, row], "o-", ms=5, lw=1, color=colour)
ax.set_yticks(range(len(losses)), list(losses))
ax.invert_yaxis()
ax.grid(True, axis="x")
ax.grid(False, axis="y")
ax.set_xlabel("loss on the development split, nats")

# %% [markdown]
r"""
A run has a standard deviation of {{ today_spread:.3f}} nats from its seed alone. {{ today_noise_count}} of the changes cannot be told from it. {{ today_beyond}} Rotary positions gain {{ today_rotary_gain:.2f}} nats, n-grams {{ today_grams_gain:.2f}}, and all together {{ today_all_gain:.2f}}. Gains do not add up: these two alone would make {{ today_gains_alone:.2f}}. What a table says already, attention need not find out again.

A gate and a square often do better in large models than in such a run. One reason may be how such an MLP starts. Fresh weights have the size $0.02$ that GPT-2 chose for a width of $768$.
"""

# %%
inputs = torch.randn(4096, 48, generator=generator)  # (N, C), as a norm gives them
inside = {}
for activation in ("gelu", "swiglu", "relu2"):
    torch.manual_seed(0)
    mlp = ModernGPT(replace(gpt2, activation=activation)).h[0].mlp
    with torch.no_grad():
        inside[activation] = mlp.inside(inputs).square().mean().sqrt().item()
    print(f"{activation:6} inner numbers of size {inside[activation]:.4f}")
small = [inside["gelu"] / inside[activation] for activation in ("swiglu", "relu2")]
claim("today_small_gate", small[0], (4, 12), kind="statistical")
claim("today_small_square", small[1], (2, 6), kind="statistical")
assert inside["gelu"] > 0.05

# %% [markdown]
r"""
At a width of 48 the first layer makes small numbers of them, and a product of two small numbers is smaller still. The gate begins with numbers {{ today_small_gate:.0f}} times smaller than GELU's, the square with {{ today_small_square:.0f}} times smaller ones. Such an MLP has some way to go first, and {{ today_steps}} steps end early. Whether that is the reason, this page does not test.

So are these parts bad, and those within the noise good for nothing? This experiment cannot say so. It is short, the model is tiny, and nothing ever diverges. Grouped queries are made to save memory, and that they cost so little is the point. QK norm is for large rates and large models, where scores blow up. For a gate, Shazeer measured a few hundredths of a nat, in models thousands of times as large. N-grams say at once what attention would learn first, so a short run flatters them: in longer ones, made for the recipe below, they gained less, and without decay next to nothing. The last column is a price of its own. PyTorch has one fast operation for LayerNorm or GELU, and several small ones for turns and squares, and the optimizer has the tables to go over. But the models ran one after the other, so the column also holds what else the machine did: small differences in it say little. [The book's fast recipe](#the-books-fast-recipe) has the small operations compiled into few.
"""

# %% [markdown]
r"""
## The book's fast recipe

All changes but groups and gate, with Muon, make the recipe `shakespeare`. It was chosen on the development split. It looks up runs of up to {{ today_fast_ngrams }} characters in tables of {{ today_fast_rows:,}} rows, which decay by {{ today_fast_decay:.0%}} a step while the rate is highest, so that a row which nothing confirms loses half in {{ today_fast_half }} steps, and it leaves out {{ today_fast_left_out:.0%}} of what it looked up. Now it is trained on the whole training part. Its loss on the validation text is measured on the way, and nothing is chosen by it. Beside it stands the recipe of page 9, with the classic model and AdamW.
"""

# %%
fast, classic_run = recipes.trained("shakespeare"), recipes.trained("step-5")
fast_config = fast.model.config
for settings in (fast_config, recipes.TRAINING["shakespeare"]):
    print(f"{type(settings).__name__}, where it is not the default:")
    for part in fields(settings):
        if (value := getattr(settings, part.name)) != part.default:
            print(f"    {part.name} = {value!r}")

# %% tags=["hide-input"]
display.table(
    [
        (
            name,
            f"{parameters(made.model):,}",
            f"{made.summary['steps']:,}",
            f"{made.summary['steps'] * batch * made.model.config.block_size:,}",
            f"{made.summary['val_loss']:.3f}",
            f"{made.summary['seconds']:.0f}",
            f"{made.summary['tokens_per_second']:,.0f}",
        )
        for name, made, batch in (
            ("step-5", classic_run, recipes.TRAINING["step-5"].batch_size),
            ("shakespeare", fast, recipes.TRAINING["shakespeare"].batch_size),
        )
    ],
    header=(
        "recipe",
        "parameters",
        "steps",
        "tokens",
        "validation",
        "seconds",
        "tokens a second",
    ),
    caption="Loss over the whole validation split, in nats a character. "
    f"Threads: {fast.summary['threads']}, of: {fast.summary['processor']}.",
)

# %% tags=["hide-input"]
summary = fast.summary
claim("today_fast_loss", summary["val_loss"], within(None, 1.60), kind="statistical")
claim(
    "today_fast_gain",
    classic_run.summary["val_loss"] - summary["val_loss"],
    within(0.1, None),
    kind="statistical",
)
tables = fast.model.ngrams
claim(
    "today_fast_tables",
    parameters(tables) / (parameters(fast.model) - parameters(tables)),
    kind="statistical",
)
claim("today_fast_reads", tables.lengths)
claim("today_fast_ngrams", fast.model.config.ngrams)
claim("today_fast_rows", fast.model.config.ngram_rows)
fastest = recipes.TRAINING["shakespeare"]
fading = fastest.learning_rate * fastest.table_decay
claim("today_fast_decay", fading)
claim("today_fast_half", math.ceil(math.log(0.5) / math.log(1 - fading)))
claim("today_fast_left_out", fast.model.config.ngram_dropout)
claim("today_fast_window", fast.model.config.block_size)
blocks = parameters(fast.model.h) / parameters(classic_run.model.h)
claim("today_fast_blocks", blocks, (0.9, 1.1), kind="tolerance")
claim("today_fast_bits", summary["val_bits_per_byte"], kind="statistical")
claim("today_fast_seconds", summary["seconds"], kind="statistical")
claim("today_fast_threads", in_words(summary["threads"]))
claim("today_fast_rate", summary["gflops"], kind="statistical")
claim("today_fast_peak", summary["peak_gflops"], kind="statistical")
compiled = summary["compile_seconds"] > 0
claim(
    "today_fast_precision",
    "This processor has instructions for bfloat16, numbers of 16 bits, so the products of matrices were computed in "
    "them, Muon's too, while the weights and the averages of the optimizers stayed in 32."
    if summary["precision"] == "bfloat16"
    else "This processor has no instructions for bfloat16, numbers of 16 bits, so the products of matrices were computed "
    "in 32 bits like everything else.",
)
claim(
    "today_fast_compiled",
    f"PyTorch compiled the model in {summary['compile_seconds']:.0f} seconds, which are not part of the time above."
    if compiled
    else "PyTorch could not compile the model here, so it ran as it is written.",
)
assert summary["precision"] in ("bfloat16", "float32")

# %% [markdown]
r"""
On text that nobody chose anything by, the fast recipe has a loss of {{ today_fast_loss:.2f}} nats, which is {{ today_fast_gain:.2f}} below that of `step-5`. Its blocks have {{ today_fast_blocks:.2f}} times as many parameters. Its tables of n-grams have {{ today_fast_tables:.0f}} times as many as the rest of the model, and a token reads {{ today_fast_reads}} rows of them. The training took {{ today_fast_seconds:.0f}} seconds on {{ today_fast_threads}}. That is fast in what it reaches, and not in tokens a second. It also had more time and more text than `step-5`, and a longer window. The fair comparison, in the same time, is in the table of [page 18](18_scaling.py).

What did the machine have to do with it? Both recipes let the processor decide in which numbers they multiply. {{ today_fast_precision}} {{ today_fast_compiled}} By the count of [page 9](09_training.py), the training reached {{ today_fast_rate:.0f}} billion operations a second. A plain product of two large matrices in the same precision reaches {{ today_fast_peak:.0f}} on the same machine. (The count leaves out Muon's own products.)

And it writes:
"""

# %%
start = torch.tensor([tokenizer.encode("ROMEO:")])  # (B, T)
written = kv_cache.generate(
    fast.model, start, 300, 0.8, generator=torch.Generator().manual_seed(5)
)
display.sample(
    fast.tokenizer.decode(written[0].tolist()), label="Written by the fast recipe"
)

# %% [markdown]
r"""
## The real weights in the same class

`ModernGPT` is not only ours. [SmolLM2 (Allal et al. 2025)](https://arxiv.org/abs/2502.02737) is a configuration of it: RMSNorm with gains, rotary positions, grouped queries, SwiGLU, no biases, a tied table. Its makers trained it on two trillion tokens. [Page 16](16_pretrained.py) looks inside it. Here it is beside ours.
"""

# %%
from gptbook import pretrained

loaded = pretrained.load("smollm2")
real = loaded.model.config
assert type(loaded.model) is type(fast.model) is ModernGPT
V, C, L, H, G, inner = (
    real.vocab_size,
    real.n_embd,
    real.n_layer,
    real.n_head,
    real.kv_heads,
    real.inner,
)
keys_and_values = 2 * C * G * (C // H)
attention_part = 2 * C * C + keys_and_values  # queries and projection too
by_formula = V * C + L * (attention_part + 3 * C * inner + 2 * C) + C
claim("today_real", parameters(loaded.model), expected=134_515_008)
assert by_formula == parameters(loaded.model) == verify.expected_parameters(real)
names = (
    "vocab_size", "block_size", "n_layer", "n_head", "kv_heads", "n_embd", "inner", "norm", "gain", "positions",
    "rope_base", "activation", "bias", "qk_norm", "embedding_norm", "tied", "ngrams", "ngram_rows", "ngram_width",
)  # fmt: skip


def cell(value):
    return f"{value:,}" if type(value) is int else str(value)


display.table(
    [
        *(
            (name, *(cell(getattr(c, name)) for c in (fast_config, real)))
            for name in names
        ),
        ("parameters", f"{parameters(fast.model):,}", f"{parameters(loaded.model):,}"),
    ],
    header=("", "ours", "SmolLM2"),
    total=True,
)

# %%
claim("today_real_source", loaded.source)
claim("today_times", parameters(loaded.model) / parameters(fast.model))
beginning = "The ship left the harbour at dawn, and"
ids = torch.tensor([loaded.encode(beginning)])  # (B, T)
ours_ids = torch.tensor([fast.tokenizer.encode(beginning)])  # (B, N)
theirs = kv_cache.generate(loaded.model, ids, 16, 0)[0].tolist()
mine = kv_cache.generate(fast.model, ours_ids, 90, 0)[0].tolist()
display.sample(
    f"SmolLM2: {loaded.decode(theirs).strip()}\n\nours: {fast.tokenizer.decode(mine)}",
    label="The same beginning, continued with the likeliest tokens",
)

# %% [markdown]
r"""
Theirs has {{ today_real:,}} parameters, {{ today_times:.0f}} times as many as ours. Its weights came from: {{ today_real_source}}.

How well does each predict a text that neither has read? The tokens differ, so the losses a token cannot be compared. Bits per byte can, as on [page 15](15_tokens.py). Here are some lines that were written for this page.
"""

# %%
text = (
    "My neighbour keeps three hens and a very old goat. Every morning the goat opens the gate, walks down the lane, "
    "and waits for the bus. Nobody knows where she wants to go. The driver stops, says good morning, and shuts the "
    "door again. Then she walks home, and eats the roses.\n"
)


def bits_per_byte(model, tokenizer, text):
    ids = torch.tensor(tokenizer.encode(text))  # (N,)
    width, nats = min(model.config.block_size, len(ids) - 1), 0.0
    with torch.no_grad():
        for x, y in data.windows(ids, width):  # each (B, T)
            nats += trainer.loss_fn(model(x), y).item() * y.numel()
    judged = data.judged(text, tokenizer, ids)
    return nats / math.log(2) / len(judged.encode())


bits = {
    "ours, of Shakespeare alone": bits_per_byte(fast.model, fast.tokenizer, text),
    "SmolLM2": bits_per_byte(loaded.model, loaded.tokenizer, text),
}
mine, theirs = bits.values()
claim("today_bits_ours", mine, within(1.5, 4.5), kind="statistical")
claim("today_bits_real", theirs, (0.5, 1.6), kind="statistical")
assert theirs < mine - 0.5 or not known
display.table(
    [(name, f"{value:.2f}") for name, value in bits.items()],
    header=("model", "bits per byte"),
)

# %% [markdown]
r"""
The same class, and {{ today_bits_real:.2f}} bits against {{ today_bits_ours:.2f}}. On its own kind of text ours needs {{ today_fast_bits:.2f}}. The parts differ in what the table above shows, ours reads at most {{ today_fast_window }} characters back, and the real model is far larger and has read far more. We did not measure these apart.
"""

# %% [markdown]
r"""
## Your turn

### 1. RMSNorm

*About five minutes.* Write `rms_norm(x, gain, eps)`. `x` has shape $(\dots, C)$ and `gain` has shape $(C)$. Divide each vector by the root of the mean of its squares, with `eps` added to the mean, inside the root. Then multiply by the gain.

??? tip "Hint"

    Nothing is taken off. Keep the axis of the mean, so that it is divided row by row.

Check yours with `exercises.check("rms-norm", rms_norm)`.
"""

# %% tags=["solution"]
from gptbook import exercises


def rms_norm(x, gain, eps):
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * gain


exercises.check("rms-norm", rms_norm)

# %% [markdown]
r"""
### 2. Rotary positions

*About fifteen minutes.* Write `rotate(x, base, start)`. `x` holds the queries or keys of $T$ tokens, $(T, D)$, at the places `start`, `start + 1` and so on: with a cache, the first new token does not stand at 0. Turn the channels $2i$ and $2i + 1$ of the token at place $t$ by the angle $t \cdot b^{-2i/D}$, where $b$ is the base. Return a new tensor $(T, D)$.

??? tip "Hint"

    `x[:, 0::2]` and `x[:, 1::2]` are the two halves of all pairs. A table of angles has a row for each place and a column for each pair.

Check yours with `exercises.check("rotary", rotate)`.
"""


# %% tags=["solution"]
def rotate(x, base, start):
    T, D = x.shape
    places = torch.arange(start, start + T)[:, None]  # (T, 1)
    angles = places * base ** (-torch.arange(0, D, 2) / D)  # (T, pairs)
    a, b = x[:, 0::2], x[:, 1::2]  # (T, pairs) each
    first = a * angles.cos() - b * angles.sin()  # (T, pairs)
    second = a * angles.sin() + b * angles.cos()  # (T, pairs)
    return torch.stack((first, second), dim=-1).flatten(1)


exercises.check("rotary", rotate)

# %% [markdown]
r"""
### 3. Grouped queries

*About fifteen minutes.* Write `grouped(q, k, v)`. `q` has shape $(H, T, D)$, and `k` and `v` have $(G, T, D)$, where $G$ divides $H$. Heads 0 to $H/G - 1$ read group 0, the next ones group 1, and so on. Return the causal, scaled attention of all heads, $(H, T, D)$.

??? tip "Hint"

    `repeat_interleave` makes $H$ heads of $G$. `repeat` puts them in another order.

Check yours with `exercises.check("grouped-queries", grouped)`.
"""


# %% tags=["solution"]
def grouped(q, k, v):
    k, v = (part.repeat_interleave(len(q) // len(part), dim=0) for part in (k, v))
    scores = q @ k.mT / math.sqrt(q.size(-1))  # (H, T, T)
    future = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)  # (T, T)
    return F.softmax(scores.masked_fill(future, -math.inf), dim=-1) @ v


exercises.check("grouped-queries", grouped)

# %% [markdown]
r"""
### 4. What a cache takes

*About ten minutes.* Write `cache_bytes(config, tokens, size)`: how many bytes the cache of one row of `tokens` tokens takes in a model with this `ModernConfig`, when each number takes `size` bytes. `config.kv_heads` is $G$, and `config.head_size` is $D$.

??? tip "Hint"

    Each token leaves a key and a value in each group of each layer.

Check yours with `exercises.check("grouped-cache", cache_bytes)`. Then compare SmolLM2 with a model of its size in which every head has keys of its own.
"""


# %% tags=["solution"]
def cache_bytes(config, tokens, size):
    return 2 * config.n_layer * tokens * config.kv_heads * config.head_size * size


own_keys = replace(real, n_kv_head=None)
print(cache_bytes(own_keys, 1024, 2) / cache_bytes(real, 1024, 2))
exercises.check("grouped-cache", cache_bytes)

# %% [markdown]
r"""
### 5. A step with all directions alike

*About fifteen minutes.* Write `alike(G, steps, a, b, c)`. It gets a matrix $(m, n)$. Divide it by the root of the sum of its squares. Then put it `steps` times through $X \mapsto a X + b\, X X^\top X + c\, (X X^\top)^2 X$. Return $(m, n)$. Leave `G` as it was.

??? tip "Hint"

    Compute $X X^\top$ once in each round.

Check yours with `exercises.check("newton-schulz", alike)`. Then look at the singular values of what it makes of a random matrix, with the three numbers of the page, `muon.A`, `muon.B` and `muon.C`.
"""


# %% tags=["solution"]
def alike(G, steps, a, b, c):
    X = G / G.square().sum().sqrt()
    for _ in range(steps):
        gram = X @ X.mT
        X = a * X + b * gram @ X + c * gram @ gram @ X
    return X


made = alike(torch.randn(6, 9, generator=generator), 5, muon.A, muon.B, muon.C)
print([round(s, 2) for s in torch.linalg.svdvals(made).tolist()])
exercises.check("newton-schulz", alike)

# %% [markdown]
r"""
## Recap

* RMSNorm is LayerNorm without the mean. Its gain can live in the next matrix, and most biases do nothing that is missed.
* Rotary positions put distances into scores. Grouped queries make the cache smaller. A gate costs a third matrix, so the MLP gets narrower.
* QK norm bounds every score. The ends of the model get a norm and a table of their own.
* Muon makes a step that is alike in all directions, by a polynomial in the gradient.
* Tables of n-grams say at once what attention would have to learn. They cost memory. Decay and dropout work against learning a text by heart.
* In a short run at our size, n-grams, positions and the optimizer bring the most. A difference counts only beside the spread of seeds.

## What this page left out

Keys and values can be made smaller still, by keeping a short vector from which they are computed: multi-head latent attention ([DeepSeek-AI 2024](https://arxiv.org/abs/2405.04434)). In a mixture of experts each token uses a few MLPs out of many ([Shazeer et al. 2017](https://arxiv.org/abs/1701.06538)). Sliding windows let most layers see the near past alone ([Jiang et al. 2023](https://arxiv.org/abs/2310.06825)). To read texts longer than those of training, the speeds of the turns are changed ([Peng et al. 2023](https://arxiv.org/abs/2309.00071)). Attention in pieces that fit the fast memory changes nothing that is computed, and much of the time ([Dao et al. 2022](https://arxiv.org/abs/2205.14135)). Of the comparison: one size, one rate for all parts, two seeds, a few seconds a run.

We have changed the model and its optimizer. What if both get larger? [The next page](18_scaling.py) counts before it runs.
"""
