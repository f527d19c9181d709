# %% [markdown]
r"""
# A real pretrained model, under the hood

Weights that others trained run in the classes of this book, and what they have learned can be found by measuring, taken out and missed.

This page ran on **{{ hood_model }}**, with {{ hood_parameters:,}} parameters. Its weights came from: {{ hood_source }}.{{ hood_sha }}

[Page 12](12_lens.py) opened our own small GPT, and found heads that look one letter back, and no induction head. Now we take a model that has read far more than we can train on. The page
works on either of two: GPT-2 small ([Radford et al. 2019](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf)) where its
weights can be had, else [SmolLM2-135M (Allal et al. 2025)](https://arxiv.org/abs/2502.02737). So it names no head in advance. It finds each by its score.

## Our classes, somebody else's weights
"""

# %%
import torch
import torch.nn.functional as F

from gptbook import assets, display, kv_cache, lens, pretrained, widgets
from gptbook.claims import claim

loaded = pretrained.load()
model, tokenizer, config = loaded.model, loaded.tokenizer, loaded.model.config
encode, decode, show = loaded.encode, loaded.decode, tokenizer.show
L, H, V, C = config.n_layer, config.n_head, config.vocab_size, config.n_embd
print(type(model).__name__, f"{L} layers of {H} heads")

# %% tags=["hide-input"]
from gptbook.model import GPT
from gptbook.recipes import PRESETS

smollm2 = loaded.name == "smollm2"  # bounds below were measured on this one
claim("hood_model", "SmolLM2-135M-Instruct" if smollm2 else "GPT-2 small")
claim("hood_source", loaded.source)
claim(
    "hood_sha",
    f" The sha256 of their file begins with {assets.KNOWN[loaded.name].sha256[:12]}."
    if loaded.name in assets.KNOWN
    else "",
)
claim("hood_layers", L)
claim("hood_all_heads", L * H)
claim("hood_vocabulary", V)


def known(*bounds):
    """Bounds (low, high) for a claim, where they were measured on the model that runs."""
    return bounds if smollm2 else None


def whether(name, holds, sentence, otherwise):
    """A sentence that is said where the measurement bears it out, and another where it does not."""
    assert holds or not smollm2, name
    claim(name, sentence if holds else otherwise)


def differences(model):
    config = model.config
    asked = (
        ("layers", "n_layer", 0),
        ("heads of queries", "n_head", 0),
        ("heads of keys, values", "kv_heads", config.n_head),
        ("width of the stream", "n_embd", 0),
        ("width in the MLP", "inner", 4 * config.n_embd),
        ("window", "block_size", 0),
        ("vocabulary", "vocab_size", 0),
        ("positions", "positions", "learned"),
        ("norm", "norm", "layer"),
        ("activation", "activation", ""),
        ("tied", "tied", True),
    )
    values = [(name, getattr(config, field, other)) for name, field, other in asked]
    named = model.named_parameters()
    biases = sum(p.numel() for name, p in named if name.endswith("bias"))
    return [
        (name, f"{value:,}" if type(value) is int else str(value))
        for name, value in [*values, ("numbers in biases", biases)]
    ]


claim(
    "hood_kinds",
    "Four kinds of part came after GPT-2. Positions are rotary: queries and keys are turned by an angle that grows with "
    "their place. The norm, an RMS norm, divides by a length and subtracts no mean. Several heads of queries share one of keys "
    "and values, which is called grouped queries. And the MLP has a gate, which says of each inner number how much "
    "passes. Besides, the tables of the embedding and the unembedding are tied, that is one, and there are no biases."
    if smollm2
    else "The parts are those of page 8, but the activation is an approximation of GELU, the tables of the embedding and "
    "the unembedding are tied, that is one, and queries, keys and values have biases too.",
)
claim(
    "hood_formula",
    "A layer has queries and the projection, C times C each, keys and values for the fewer heads, three matrices in the "
    "MLP, and two norms."
    if smollm2
    else "A layer has 12 C² + 13 C: the 12 C² + 10 C of page 8, and 3 C for the biases of queries, keys and values. The "
    "matrix that is tied counts once.",
)
display.table(
    [
        (name, mine, theirs)
        for (name, mine), (_, theirs) in zip(
            differences(GPT(PRESETS["step-5"])), differences(model), strict=True
        )
    ],
    header=("", "ours", "this"),
    caption="The configuration of our model of page 12, and of this one.",
)

# %% [markdown]
r"""
Most rows are sizes. {{ hood_kinds }} Nothing else is new: embed, attend, think at each place alone, add, repeat, read off.

Is it the whole model? Count its parameters by a formula, and then add up what is there. {{ hood_formula }}
"""

# %%
D, G, width = C // H, getattr(config, "kv_heads", H), getattr(config, "inner", 4 * C)
by_formula = {
    "smollm2": V * C + L * (2 * C * C + 2 * C * G * D + 3 * C * width + 2 * C) + C,
    "gpt2": V * C + config.block_size * C + L * (12 * C * C + 13 * C) + 2 * C,
}[loaded.name]
total = sum(parameter.numel() for parameter in model.parameters())
claim("hood_parameters", total, 134_515_008 if smollm2 else 124_439_808)
claim("hood_tied_share", V * C / total, kind="tolerance")
# the bound that tests/test_pretrained.py holds them to
claim("hood_agree", "a ten-thousandth" if smollm2 else "a hundred-thousandth")
assert total == by_formula
print(f"{total:,}")

# %% [markdown]
r"""
The table of the vocabulary alone is {{ hood_tied_share:.0%}} of all parameters. It serves twice, to read tokens and to score them.

Does our class compute what the model's makers meant? The tests hold its logits against those of `transformers`, the library that most people use, on the same weights. They agree to within {{ hood_agree }}.

## Tokens

This model reads pieces of words, as [page 15](15_tokens.py) makes them. It has {{ hood_vocabulary:,}} of them. A common word is one token, with the space before it. A rare
one falls into pieces.
"""

# %%
sentence = (
    "The capital of France is Paris, and strawberry jam is untranslatable in 2025."
)
assert decode(encode(sentence)) == sentence
display.chips(sentence, {loaded.name: tokenizer}, live=False)

# %% [markdown]
r"""
## The next token

A row of logits, as on [page 10](10_sampling.py), but {{ hood_vocabulary:,}} wide. Choose a beginning, and move the temperature.
"""


# %%
def logits_after(text):
    with torch.no_grad():
        return model(torch.tensor([encode(text)]))[0, -1]  # (V,)


prompts = [
    "The capital of France is",
    "The opposite of hot is",
    "The electron has a negative",
    "Two plus two is equal to",
    "Once upon a time",
    "She looked at him and",
    "Thank you very",
    "My favourite colour is",
    "The cat sat on the",
    "Water boils at",
    "Monday, Tuesday, Wednesday,",
    "def add(a, b):\n    return a",
]
rows = [logits_after(prompt) for prompt in prompts]
widgets.next_tokens(prompts, rows, show, top=12)

# %% [markdown]
r"""
After the first beginning, the likeliest token has a chance of {{ hood_top_chance:.0%}}. The entropy says how open the choice is, in nats.
"""

# %%
paris = rows[0]  # (V,)
taus = (0.2, 0.5, 1.0, 1.5, 2.0)
entropies, tops = [], []
for tau in taus:
    logp = F.log_softmax(paris.double() / tau, dim=-1)  # (V,)
    entropies.append(-(logp.exp() * logp).sum().item())
    tops.append(logp.max().exp().item())
likeliest = show(paris.argmax().item())
display.table(
    [
        (tau, f"{p:.3f}", f"{e:.2f}")
        for tau, p, e in zip(taus, tops, entropies, strict=True)
    ],
    header=("temperature", f"chance of {likeliest}", "entropy, nats"),
)

# %% tags=["hide-input"]
claim("hood_top_chance", tops[2], known(0.75, 0.79), kind="statistical")
claim("hood_entropy", entropies[2], known(1.4, 1.6), kind="statistical")
claim("hood_entropy_hot", entropies[-1], known(8.4, 8.9), kind="statistical")
claim("hood_blind", torch.tensor(V).log(), kind="tolerance")
assert entropies == sorted(entropies)
assert tops == sorted(tops, reverse=True)

# %% [markdown]
r"""
At temperature 1 it is {{ hood_entropy:.2f}} nats, and at 2 it is {{ hood_entropy_hot:.1f}}, not far from the {{ hood_blind:.1f}} of a blind guess. With so many tokens the tail weighs much: each is unlikely, and
together they win. The same beginning at three temperatures:
"""


# %%
def write(text, count, temperature=0.0, seed=1):
    generator = torch.Generator().manual_seed(seed)
    idx = torch.tensor([encode(text)])  # (B, T)
    out = kv_cache.generate(model, idx, count, temperature, generator=generator)
    return decode(out[0].tolist())


hill = "The castle on the hill"
display.sample(
    "\n\n".join(f"τ = {tau}: {write(hill, 20, tau)}" for tau in (0.3, 1.0, 1.6))
)

# %% [markdown]
r"""
And two beginnings that ask for a fact, continued greedily:
"""

# %%
charged = "The electron has a negative charge, which is why"
facts = [write("The capital of France is", 7), write(charged, 12)]
display.sample("\n\n".join(facts))

# %% tags=["hide-input"]
facts_are = "Hold both against what you know."
if smollm2:
    assert " Paris" in facts[0]
    assert "positron" in facts[1]
    start, piece = facts[1].split("positron")[0], "posit"
    wrong = F.softmax(logits_after(start), dim=-1)[encode(piece)[0]]
    facts_are = (
        "The first begins right. The second is wrong: a positron is the electron's opposite, with a positive charge. "
        f"The model gave its first piece, “{show(encode(piece)[0])}”, a chance of {wrong:.2f}."
    )
chat = (
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
    "<|im_start|>assistant\n"
)
if "<|im_start|>" in tokenizer.special:
    dialogue = tokenizer.encode(chat, allowed_special="all")
    idx = torch.tensor([dialogue])  # (B, T)
    said = kv_cache.generate(model, idx, 8, 0)[0, len(dialogue) :].tolist()
    said = decode(said).split("<|im_end|>")[0]
    assert "Paris" in said
    chat_is = (
        "This one was trained further, to answer. Its vocabulary has tokens that mark who speaks, which no plain text gives. With "
        f"the question “What is the capital of France?” between them, it writes: “{said}”"
    )
else:
    chat_is = "This one was trained no further, and has no marks for who speaks."
for name, words in (("hood_facts", facts_are), ("hood_chat", chat_is)):
    claim(name, words)

# %% [markdown]
r"""
{{ hood_facts }} A model is trained to write what is likely, and what is true is only often likely.

{{ hood_chat }} How a model comes to answer is the matter of [page 19](19_chatgpt.py).

## Where the heads look

Here are all {{ hood_all_heads }} heads on four texts. A name such as <code>{{ hood_induction_head }}</code> says the layer and the head, both counted from 0. The head shown first is no accident: a score finds it, below.
The token shown first is <code>{{ hood_seen_token }}</code>, the second time: the head looks at <code>{{ hood_seen_at }}</code>, which followed <code>{{ hood_seen_token }}</code> the first time. The dark cells in the first column are weight that goes to token 0. We come to them.
"""

# %%
texts = [
    "Mr and Mrs Quibberly keep bees. The children visit Mr and Mrs Quibberly",
    "The capital of France is Paris. The capital of Italy is Rome.",
    "When Anna and John went to the shop, John gave a book to Anna.",
    "one two three four one two three four",
]
read = [torch.tensor([encode(text)]) for text in texts]
noise = torch.randint(V, (2, 60), generator=torch.Generator().manual_seed(0))  # (B, T)
twice = torch.cat((noise, noise), dim=1)  # (B, 2T)
T = noise.size(1)
weights = lens.attention(model, twice)  # (L, B, H, 2T, 2T)


def along(weights, back):
    """How much the second copy's tokens look `back` places before, on average."""
    rows = torch.arange(T, 2 * T)
    return weights[..., rows, rows - back].mean(dim=(1, 3))  # (L, H)


scores = {
    "previous token": along(weights, 1),
    "induction": along(weights, T - 1),
    "same token": along(weights, T),
    "first token": weights[..., T:, 0].mean(dim=(1, 3)),  # (L, H)
}


def ranked(name, n=None):
    order = scores[name].flatten().argsort(descending=True)[:n]
    return [divmod(i, H) for i in order.tolist()]


(induction, *_), (previous, *_) = ranked("induction"), ranked("previous token")
widgets.attention_view(
    [[show(i) for i in row[0].tolist()] for row in read],
    [lens.attention(model, row)[:, 0] for row in read],
    start=induction,
    token=read[0].size(1) - 2,
    known={name: ranked(name)[0] for name in scores},
)

# %% [markdown]
r"""
The scores are those of page 12, all over the same text: {{ hood_noise:.0f}} tokens drawn blindly, and then the same again. In the second copy a head can look at the token before, at the same token in the
first copy, at what *followed* it there, or always at token 0. An indifferent head would give {{ hood_indifferent:.3f}} to each, by the theorem of page 12.
"""

# %%
for name, score in (
    ("induction", lens.induction_scores),
    ("same token", lens.duplicate_token_scores),
):
    for s in score(model, noise):  # the package measures the same
        assert abs(s.score - scores[name][s.layer, s.head]) < 1e-4


def name_of(place):
    return "{}.{}".format(*place)


# %% tags=["hide-input"]
display.table(
    [
        (
            name,
            name_of(ranked(name)[0]),
            f"{scores[name].max():.0%}",
            ", ".join(name_of(at) for at in ranked(name, 4)[1:]),
        )
        for name in scores
    ],
    header=("looks at", "best head", "score", "the next three"),
    caption="The four best heads of each kind, by layer and number, and the score of the best.",
)

# %% tags=["hide-input"]
indifferent = sum(1 / n for n in range(T + 1, 2 * T + 1)) / T
claim("hood_noise", T)
claim("hood_indifferent", indifferent, (0, 0.69315 / T), None, "tolerance")
claim("hood_sink", scores["first token"].median(), known(0.3, 0.6), kind="statistical")
before_last = read[0].size(1) - 2
looked = lens.attention(model, read[0])[induction[0], 0, induction[1]]  # (T, T)
claim("hood_seen_token", show(read[0][0, before_last].item()))
claim("hood_seen_at", show(read[0][0, looked[before_last].argmax()].item()))
followed = looked[before_last].argmax() - 1
assert not smollm2 or read[0][0, followed] == read[0][0, before_last]
claim("hood_induction_layer", induction[0])
claim("hood_previous_layer", previous[0])
places = [1 + ranked("induction").index((5, 5)), 1 + ranked("previous token").index((4, 11))] if not smollm2 else []  # fmt: skip
claim(
    "hood_two_known",
    "This page ran another model, so there is nothing to compare."
    if smollm2
    else f"Here they have rank {places[0]} and rank {places[1]} of {L * H}.",
)
assert not smollm2 or scores["same token"].max() > 0.7
for key, kind, low in (
    ("previous", "previous token", 0.85),
    ("induction", "induction", 0.85),
    ("first", "first token", 0.95),
):
    claim(f"hood_{key}_head", name_of(ranked(kind)[0]))
    claim(
        f"hood_{key}_score",
        scores[kind].max(),
        known(low, 1.001),
        kind="statistical",
    )

# %% [markdown]
r"""
Head <code>{{ hood_induction_head }}</code> is an induction head: {{ hood_induction_score:.0%}} of its weight goes to what followed the same token before. Head <code>{{ hood_previous_head }}</code> looks one token back, with {{ hood_previous_score:.0%}}. Our own model had the
second kind and not the first.

In GPT-2 two heads are well known: `5.5` for induction, and `4.11` for the previous token. {{ hood_two_known }}

And the last row, the first token? Half of all heads give token 0 more than {{ hood_sink:.0%}} of their weight, head <code>{{ hood_first_head }}</code> as much as {{ hood_first_score:.0%}}. The weights of a row must sum to 1, also where a head finds nothing that it looks for. Then it rests on
a token that means nothing to it. This is called an **attention sink** ([Xiao et al. 2023](https://arxiv.org/abs/2309.17453)).

## Taken out and missed

A map does not show what is used. So switch heads off, as on page 12, and let the model read the two copies. As a control, take ten other heads, three times, from those that are not
among the twenty best of either score. And read a few English sentences too, in which nothing comes twice.
"""

# %%
best_heads = {*ranked("induction", 20), *ranked("previous token", 20)}
others = [divmod(i, H) for i in range(L * H) if divmod(i, H) not in best_heads]
generator = torch.Generator().manual_seed(0)


def ten_others():
    order = torch.randperm(len(others), generator=generator)[:10]
    return [others[i] for i in order.tolist()]


english = (
    "The old bridge was closed in spring, because the river had carried away a "
    "pillar. Since then the bus takes the long way round, and people on both banks "
    "meet only at the market. A ferry would help, but nobody wants to pay for one."
)
sentences = torch.tensor([encode(english)])


def copying(heads):
    """Loss on the two copies, right guesses in the second, and loss on English."""
    with torch.no_grad(), lens.ablated(model, heads):
        logits = model(twice[:, :-1])  # (B, N, V)
        spoken = model(sentences[:, :-1])[0]
    y = twice[:, 1:]  # (B, N)
    loss = F.cross_entropy(logits.transpose(1, 2), y, reduction="none")  # (B, N)
    right = (logits.argmax(dim=-1) == y).float()  # (B, N)
    plain = F.cross_entropy(spoken, sentences[0, 1:])
    return loss[:, : T - 1].mean(), loss[:, T:].mean(), right[:, T:].mean(), plain


tries = {
    "nothing": [[]],
    "best induction": [ranked("induction", 1)],
    "5 best induction": [ranked("induction", 5)],
    "best previous": [ranked("previous token", 1)],
    "10 others": [ten_others() for _ in range(3)],
}
missed = {
    name: torch.tensor([copying(heads) for heads in sets]).mean(dim=0)  # (4,)
    for name, sets in tries.items()
}

# %% tags=["hide-input"]
display.table(
    [
        (name, f"{first:.2f}", f"{second:.2f}", f"{right:.0%}", f"{plain:.2f}")
        for name, (first, second, right, plain) in missed.items()
    ],
    header=("off", "1st", "2nd", "right", "English"),
    caption="Heads switched off; the loss in nats on the first copy and on the second; how many tokens of the second are guessed right; the loss on English.",
)

# %% tags=["hide-input"]
none, one, five, back, ten = (values[1] for values in missed.values())
first_copy = missed["nothing"][0]
claim("hood_first_copy", first_copy, known(12.6, 15.5), kind="statistical")
claim("hood_second_copy", none, known(2.4, 3.0), kind="statistical")
claim("hood_second_right", missed["nothing"][2], known(0.57, 0.7), kind="statistical")
claim("hood_without_one", one, known(4.6, 5.7), kind="statistical")
claim("hood_without_five", five, known(10.5, 12.9), kind="statistical")
claim("hood_without_previous", back, known(8.5, 10.5), kind="statistical")
claim("hood_without_ten", ten, known(2.4, 3.0), kind="statistical")
english_five, english_ten = (
    (missed[name][3] - missed["nothing"][3]).item()
    for name in ("5 best induction", "10 others")
)
claim("hood_english_five", english_five, known(-0.05, 0.08), kind="statistical")
claim("hood_english_ten", english_ten, known(0, 0.4), kind="statistical")
whether(
    "hood_copies",
    none < first_copy - 1,
    "the model copies.",
    "this model hardly copies.",
)
whether(
    "hood_surer",
    first_copy > torch.tensor(V).log(),
    "The first copy costs more than the blind guess of before. The model expects English, so it is surer than a blind guess, "
    "and wrong. There nothing can be lost.",
    "In the first copy nothing can be foreseen, so nothing can be lost.",
)
whether(
    "hood_specific",
    none < one < five and five > ten + 1 and abs(english_five) < 0.1 * (five - none),
    "So copying needs these heads, and sentences in which nothing is copied hardly miss them.",
    "So here these heads are not needed for copying alone.",
)
whether(
    "hood_as_much",
    back - none > 0.5 * (five - none),
    "matters nearly as much as the five",
    "matters less than the five",
)

# %% [markdown]
r"""
With all heads, the second copy costs {{ hood_second_copy:.1f}} nats a token instead of {{ hood_first_copy:.1f}}, and {{ hood_second_right:.0%}} of its tokens are guessed right: {{ hood_copies }} Without its best induction head it costs {{ hood_without_one:.1f}}, and without five of {{ hood_all_heads }} it costs {{ hood_without_five:.1f}}.
Without ten others it costs {{ hood_without_ten:.1f}}.

{{ hood_surer }} The English sentences are the better control. There the five make a difference of {{ hood_english_five:.2f}}, and the ten others one of {{ hood_english_ten:.2f}}. {{ hood_specific }}

One previous-token head, in layer {{ hood_previous_layer }}, {{ hood_as_much }}: without it {{ hood_without_previous:.1f}}. That is the circuit that page 12 built by hand. A head below tells each token what stood before it, and the induction head, in
layer {{ hood_induction_layer }}, searches for that.

Does it matter outside of noise? Here is an invented name that comes twice. How probable is each piece of it, the first time and the second?
"""

# %%
mrs = read[0]  # (B, T)
pieces_of_name = len(encode(" Quibberly"))
span = range(mrs.size(1) - pieces_of_name, mrs.size(1))  # the second time
gap = (mrs[0, : span[0]] == mrs[0, span[0]]).nonzero().max().item() - span[0]


def chances(heads=(), shift=0):
    with torch.no_grad(), lens.ablated(model, heads):
        p = F.softmax(model(mrs)[0], dim=-1)  # (T, V)
    return [p[t + shift - 1, mrs[0, t]].item() for t in span]


first_time, second_time = chances(shift=gap), chances()
without = chances(ranked("induction", 5))
control = chances(ten_others())

# %% tags=["hide-input"]
display.table(
    [
        (show(mrs[0, t].item()), *(f"{p:.3f}" for p in ps))
        for t, *ps in zip(span, first_time, second_time, without, control, strict=True)
    ],
    header=("piece", "1st time", "2nd", "5 off", "10 off"),
    caption="The chance of each piece of the name: the first time, the second, and the second without 5 induction heads and without 10 others.",
)

# %% tags=["hide-input"]
assert all(mrs[0, t] == mrs[0, t + gap] for t in span)
claim("hood_name_last", second_time[-1], known(0.9, 1), kind="statistical")
claim("hood_name_without", without[-1], known(0.005, 0.03), kind="statistical")
claim("hood_name_first", first_time[-1], known(0.05, 0.08), kind="statistical")
whether(
    "hood_name",
    all(p < q for p, q in zip(without, second_time, strict=True))
    and without[-1] < first_time[-1],
    "That is less than the first time, when nobody could know the name",
    "The first time, when nobody could know the name, it has another",
)

# %% [markdown]
r"""
The last piece goes from {{ hood_name_last:.3f}} to {{ hood_name_without:.3f}} without the five. {{ hood_name }}: {{ hood_name_first:.3f}}.

## What each layer would say

The [logit lens](notation.md#logit-lens) reads the stream after each layer, as if the model ended there. On page 12 we looked at the top guess. Here that is dull: at the last token, from layer 1 to three quarters of the way up, {{ hood_dull:.0%}} of the top guesses hold no letter at all, or are
the word "the". So follow the *answer* instead: its **rank** among all tokens, where 1 is the top, and its chance.
"""

# %%
questions = {
    "The capital of France is": " Paris",
    "The opposite of hot is": " cold",
    "The electron has a negative": " charge",
    "When John and Mary went to the shop, John gave a book to": " Mary",
    "Two plus two is equal to": " four",
}


def lens_last(text):
    stream = lens.stream(model, torch.tensor([encode(text)]))
    x = stream[::2, 0, -1]  # (n, C), n = L + 1
    with torch.no_grad():
        return model.lm_head(model.ln_f(x))  # (n, V)


after = {text: lens_last(text) for text in questions}
answers = {text: encode(word) for text, word in questions.items()}
ranks = {t: 1 + (z > z[:, answers[t]]).sum(dim=-1) for t, z in after.items()}
chance = {t: z.softmax(dim=-1)[:, answers[t][0]] for t, z in after.items()}
torch.testing.assert_close(after[prompts[0]][-1], paris, rtol=1e-4, atol=1e-3)
for t, z in after.items():  # the package counts the same
    assert [rank for rank, _ in lens.ranks(z, answers[t][0])] == ranks[t].tolist()

layers = sorted({0, L // 2, 3 * L // 4, L - 4, L - 2, L})
display.table(
    [
        (word.strip(), *(f"{ranks[t][n]:,}" for n in layers), f"{chance[t][-1]:.2f}")
        for t, word in questions.items()
    ],
    header=("answer", *map(str, layers), "chance"),
    caption="The rank of the answer after so many layers, and its chance at the end.",
)

# %% tags=["hide-input"] alt="Rank of the answer against the number of layers read, on a logarithmic scale, a curve for each of five questions. Five falling curves: high in the lower layers, and near rank 1 at the end." caption="The rank of the answer, layer by layer, on a logarithmic scale. Rank 1 is at the bottom."
fig, ax = display.figure(5.2, 3.0)
colours = (display.BLUE, display.ORANGE, display.GREEN, display.PURPLE, display.RED)
for (text, ranking), colour, style in zip(
    ranks.items(), colours, ("-", "--", "-.", ":", (0, (6, 1, 1, 1))), strict=True
):
    label = questions[text].strip()
    ax.plot(range(L + 1), ranking, linestyle=style, color=colour, label=label)
ax.set_yscale("log")
ax.set_xlabel("layers read")
ax.set_ylabel("rank of the answer")
fig.legend(fontsize=8, loc="outside right upper")

# %% tags=["hide-input"]
early = [
    decode([i])
    for z in after.values()
    for i in z[1 : 3 * L // 4].argmax(dim=-1).tolist()
]
dull = sum(
    word.strip() == "the" or not any(letter.isalpha() for letter in word)
    for word in early
)
claim("hood_dull", dull / len(early), known(0.88, 1), kind="statistical")
three = torch.stack([ranking[3 * L // 4] for ranking in ranks.values()])  # (5,)
claim("hood_rank_late", three.float().median(), known(760, 930), kind="statistical")
claim("hood_three_quarters", 3 * L // 4)
firsts = [(r <= 10).int().argmax().item() for r in ranks.values() if r.min() <= 10]
whether(
    "hood_among_ten",
    len(firsts) == len(ranks) and min(firsts) >= 20,
    f"The answers come among the first ten after {min(firsts)} to {max(firsts)} layers.",
    f"After {min(firsts)} to {max(firsts)} layers {len(firsts)} of the answers come among the first ten.",
)
final = torch.stack([ranking[-1] for ranking in ranks.values()])  # (5,)
assert not smollm2 or (three.min() > 100 and final.max() == 1)

# %% [markdown]
r"""
After {{ hood_three_quarters }} of {{ hood_layers }} layers the median rank is still {{ hood_rank_late:,.0f}}. {{ hood_among_ten }} Remember what page 12 said: what
the lens does not show may be there all the same. The grid has every token's guesses:
"""

# %%
grid = list(questions)[:3]
widgets.lens_grid(
    [[show(i) for i in encode(text)] for text in grid],
    (lens.logit_lens(model, torch.tensor([encode(text)]))[:, 0] for text in grid),
    [answers[text] for text in grid],
    show,
)

# %% [markdown]
r"""
## The head that fetches the country

Which part of the model knows that it is Paris? The stream is a sum, so the answer's logit can be divided among those who wrote it.

!!! theorem "The logits are a sum over the parts"

    Let the stream after the last layer be $x = p_1 + \dots + p_n$, where $p_i$ is what one part wrote: the embedding, a head, a bias, or an MLP. Let the final norm be $\gamma \odot x / r$ with $r = \sqrt{\frac1C \lVert x \rVert^2 + \varepsilon}$, and $w_a$ the row of the unembedding for token $a$. Then for any two tokens $a$ and $b$

    $$ z_a - z_b = \sum_i \frac{1}{r} \; p_i \cdot \bigl( \gamma \odot (w_a - w_b) \bigr) . $$

    With LayerNorm the same holds after the mean of each $p_i$ is taken off, with $r$ that of the centred stream, and one more term, $\beta \cdot (w_a - w_b)$. Tested by `test_logits_are_a_sum`.

??? proof "Proof"

    $z_a = w_a \cdot (\gamma \odot x / r)$. Moving $\gamma$ to the other side of the dot product gives $\frac1r\, x \cdot (\gamma \odot w_a)$, and the same for $b$. Subtract. With $r$ held, the result is linear in $x$, so it is the sum over the $p_i$. Taking off the mean is linear too, and so the mean of a sum is the sum of the
    means. $\blacksquare$

The number $r$ depends on all parts. So this divides a result, and does not say what would happen without a part. It is cheap, though: one pass for all heads. Take six capitals, and compare each with the mean of the other five.
"""

# %%
capitals = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Japan": "Tokyo",
    "England": "London",
    "Russia": "Moscow",
}


def questions_about(countries):
    idx = torch.tensor([encode(f"The capital of {name} is") for name in countries])
    word = torch.tensor([encode(f" {name}")[0] for name in countries.values()])  # (B,)
    return idx, word


asked, answer = questions_about(capitals)
six = model.lm_head.weight[answer].detach()  # (B, C)
towards = six - (six.sum(dim=0) - six) / 5  # (B, C): the answer, less the other five
gamma = model.ln_f.weight.detach()  # (C,)
layer_norm = isinstance(model.ln_f, torch.nn.LayerNorm)
stream = lens.stream(model, asked)[:, :, -1]  # (N, B, C), N = 2L + 1


def less_mean(x):
    return x - x.mean(dim=-1, keepdim=True) if layer_norm else x


r = (less_mean(stream[-1]).pow(2).mean(dim=-1) + model.ln_f.eps).sqrt()  # (B,)


def share_of(part):  # part (..., B, C)
    return (less_mean(part) * gamma * towards).sum(dim=-1) / r  # (..., B)


with torch.no_grad():
    z = model(asked)[:, -1, answer]  # (B, B): a row for each question
difference = z.diagonal() - (z.sum(dim=1) - z.diagonal()) / 5  # (B,)
if layer_norm:
    difference = difference - towards @ model.ln_f.bias.detach()
parts = torch.cat((stream[:1], stream.diff(dim=0)))  # (N, B, C): layer by layer
torch.testing.assert_close(share_of(parts).sum(dim=0), difference, rtol=1e-3, atol=1e-3)
print("the sum ", [f"{share:.2f}" for share in share_of(parts).sum(dim=0).tolist()])
print("measured", [f"{logit:.2f}" for logit in difference.tolist()])

# %% [markdown]
r"""
The sum is right. `lens.attribution` goes on from here, and divides what attention wrote among its heads. From [page 5](05_heads.py) we know that the projection gets the outputs of all heads side by side, $(z_1, \dots, z_H)$, and that its matrix is cut into $H$ slices $W_h$ in the same way. So head $h$ writes $W_h z_h$, and its share along a direction $d$ is $z_h \cdot (W_h^\top d)$. Here is the step by hand for one question and one layer, against the package:
"""

# %%
shares = [lens.attribution(model, asked[[i]], towards[i]) for i in range(6)]
proj, inputs = model.h[-1].attn.c_proj, []
hook = proj.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
with torch.no_grad():
    model(asked[:1])
hook.remove()
direction = less_mean(gamma * towards[0]) / r[0]  # (C,)
each = inputs[0][0, -1] * (direction @ proj.weight.detach())  # (C,)
each = each.view(H, -1).sum(dim=-1)  # (H,)
torch.testing.assert_close(each, shares[0].heads[0, -1], rtol=1e-3, atol=1e-3)
share = torch.cat([one.heads for one in shares]).mean(dim=0)  # (L, H)
mlps = torch.cat([one.mlps for one in shares])  # (B, L)
torch.testing.assert_close(mlps, share_of(parts)[2::2].T, rtol=1e-3, atol=1e-3)
candidates = [divmod(i, H) for i in share.flatten().topk(5).indices.tolist()]
print(f"heads {share.sum():.2f}, MLPs {mlps.sum(dim=1).mean():.2f}")

# %% [markdown]
r"""
The five with the highest shares are candidates. Now switch them off, one at a time. For comparison, do the same with eight that are drawn blindly.
"""


# %%
def chance_of(idx, word, heads=()):
    with torch.no_grad(), lens.ablated(model, heads):
        p = F.softmax(model(idx)[:, -1], dim=-1)  # (B, V)
    return p.gather(1, word[:, None])[:, 0]  # (B,)


chance_whole = chance_of(asked, answer)  # (B,)
alone = {place: chance_of(asked, answer, [place]) for place in candidates}
fetcher = min(candidates, key=lambda place: alone[place].mean())
drawn = torch.randperm(L * H, generator=torch.Generator().manual_seed(1))[:8].tolist()
blind = [chance_of(asked, answer, [divmod(i, H)]) for i in drawn]  # each (B,)

# %% tags=["hide-input"]
display.table(
    [("none", "", *(f"{p:.2f}" for p in chance_whole))]
    + [
        (name_of(place), f"{share[place]:.2f}", *(f"{p:.2f}" for p in ps))
        for place, ps in alone.items()
    ]
    + [("8 drawn", "", *(f"{p:.2f}" for p in torch.stack(blind).mean(dim=0)))],
    header=("off", "share", *capitals),
    caption="The chance of each capital without one head, or without one of 8 that were drawn (their mean). The share is what the head adds to the logit, the mean of six.",
)

# %% tags=["hide-input"]
look = lens.attention(model, asked)[fetcher[0], :, fetcher[1], -1]  # (B, T)
country = look[:, -2]  # (B,): the country stands before "is"
claim("hood_fetcher", name_of(fetcher))
claim("hood_fetch_share", share[fetcher], known(2.2, 2.8), kind="statistical")
claim("hood_fetch_before", chance_whole.mean(), known(0.55, 0.66), kind="statistical")
claim(
    "hood_fetch_without", alone[fetcher].mean(), known(0.12, 0.19), kind="statistical"
)
blindly = torch.stack(blind).mean()
claim("hood_fetch_blindly", blindly, known(0.55, 0.66), kind="statistical")
claim("hood_fetch_look", country.min(), known(0.8, 0.98), kind="statistical")
claim("hood_france_before", chance_whole[0], known(0.75, 0.79), kind="statistical")
claim("hood_france_without", alone[fetcher][0], known(0.1, 0.2), kind="statistical")
spared = next(place for place in candidates if place != fetcher)
claim("hood_spared", name_of(spared))
claim("hood_spared_share", share[spared], known(1.4, 1.8), kind="statistical")
claim("hood_spared_france", alone[spared][0], known(0.68, 0.8), kind="statistical")
whether(
    "hood_stands_out",
    fetcher == candidates[0]
    and alone[fetcher].mean() < chance_whole.mean() / 2
    and blindly > 0.9 * chance_whole.mean(),
    "stands out",
    "is missed most, though not much",
)
whether(
    "hood_looks_there",
    country.min() > 0.5,
    "So it takes from the country's place what the layers below have put there.",
    "So the country is not where it looks in all six.",
)

# %% [markdown]
r"""
One head of {{ hood_all_heads }} {{ hood_stands_out }}: <code>{{ hood_fetcher }}</code>, with a share of {{ hood_fetch_share:.1f}}. Without it, the chance of Paris goes from {{ hood_france_before:.2f}} to {{ hood_france_without:.2f}}, and the mean of the six from {{ hood_fetch_before:.2f}} to {{ hood_fetch_without:.2f}}. Without a head drawn blindly it is {{ hood_fetch_blindly:.2f}}. And where does it look, from the last token? In all six, at
least {{ hood_fetch_look:.0%}} of its weight goes to the country. {{ hood_looks_there }}

A high share alone is no proof. Head <code>{{ hood_spared }}</code> has the next highest, {{ hood_spared_share:.1f}}, and without it Paris has {{ hood_spared_france:.2f}}.

We chose it by these six. So the fair test is on others.
"""

# %%
more = {
    "Spain": "Madrid",
    "China": "Beijing",
    "Greece": "Athens",
    "Egypt": "Cairo",
    "Poland": "Warsaw",
    "Cuba": "Havana",
}
asked_more, answer_more = questions_about(more)
fresh = chance_of(asked_more, answer_more)  # (B,)
fresh_without = chance_of(asked_more, answer_more, [fetcher])  # (B,)
display.table(
    [
        (name, f"{p:.3f}", f"{q:.3f}")
        for name, p, q in zip(more, fresh, fresh_without, strict=True)
    ],
    header=("country", "all heads", f"without {name_of(fetcher)}"),
)

# %% tags=["hide-input"]
claim("hood_fresh", fresh.mean(), known(0.29, 0.37), kind="statistical")
claim("hood_fresh_without", fresh_without.mean(), known(0.07, 0.12), kind="statistical")
claim("hood_fresh_falls", int((fresh_without < fresh).sum()), known(5, 5))
whether(
    "hood_fresh_most",
    fresh_without.mean() < fresh.mean() / 2,
    "Most of what leads to the capital goes through this head, and the rest some other way.",
    "So on others this head is not what leads to the capital.",
)

# %% [markdown]
r"""
It falls in {{ hood_fresh_falls }} of 6, and goes from {{ hood_fresh:.2f}} to {{ hood_fresh_without:.2f}} on average. {{ hood_fresh_most }}

## King − man + woman

The embedding has a vector for each token. Do differences mean something? A famous question ([Mikolov et al. 2013](https://arxiv.org/abs/1301.3781)): take the vector of "king", take "man" off, add "woman", and look for the nearest by cosine.

First ask what arithmetic gives that knows nothing.

!!! theorem "The inputs stay near"

    Let $a$, $b$, $c$ be vectors, and let $a$ be at least as much like $c$ as like $b$: $a \cdot c \ge a \cdot b$. Then the cosine of $a - b + c$ with $a$ is at least

    $$ \frac{1}{\sqrt{1 + \lVert c - b \rVert^2 / \lVert a \rVert^2}}\,, $$

    and exactly that if $a \cdot c = a \cdot b$. Three vectors of one length at right angles give $1 / \sqrt 3$, for $c$ as well. Tested by `test_inputs_stay_near`.

??? proof "Proof"

    Write $d = c - b$ and $s = a \cdot d \ge 0$. The cosine is $(\lVert a \rVert^2 + s) \big/ \bigl( \lVert a \rVert \sqrt{\lVert a \rVert^2 + 2s + \lVert d \rVert^2} \bigr)$. Its derivative in $s$ has the sign of $\lVert a \rVert^2 + 2s + \lVert d \rVert^2 - (\lVert a \rVert^2 + s) = s + \lVert d \rVert^2 \ge 0$. So it is least at $s = 0$, where it is the claim. At right angles $s = 0$ and $\lVert d \rVert^2 = 2 \lVert a \rVert^2$. For $c$: if $c \cdot a \ge c \cdot b$, the same holds with $c$ in the place of $a$ and $d = a - b$. $\blacksquare$

Our vectors do not stand at right angles, since all lean to one side: two random rows have a cosine of {{ hood_pair:.2f}}. Take the mean of all rows off, and it is {{ hood_pair_centred:.2f}}, as with random vectors in many dimensions. Then about $1 / \sqrt 3$, that is {{ hood_third:.2f}}, comes for free to an input, and to no other token. So
the first answer is often an *input*. For this reason, lists of such results leave the inputs out, and do not always say so. Here are four ways: the inputs kept or left out, the vectors raw or centred.
"""

# %%
table = model.wte.weight.detach()  # (V, C)


def near(words, centred=True, inputs=False, count=4):
    a, b, c = (encode(word)[0] for word in words)
    closest = lens.arithmetic(table, [a, c], [b], count, inputs, centred)
    return [(show(i), cosine) for i, cosine in closest]


def listed(closest):
    return ", ".join(f"{token} {cosine:.2f}" for token, cosine in closest)


king = (" king", " man", " woman")
display.table(
    [
        (vectors, kept, listed(near(king, vectors == "centred", kept == "kept")))
        for vectors in ("raw", "centred")
        for kept in ("kept", "left out")
    ],
    header=("vectors", "inputs", "nearest to king − man + woman"),
)

# %% tags=["hide-input"]
generator = torch.Generator().manual_seed(0)
pairs = torch.randint(V, (2, 4000), generator=generator)
left, right = table[pairs[0]], table[pairs[1]]  # (N, C) each
mean = table.mean(dim=0)  # (C,)
cosine_raw = F.cosine_similarity(left, right).mean()
cosine_centred = F.cosine_similarity(left - mean, right - mean).mean()
claim("hood_third", 3**-0.5, 0.57735, 1e-5, "tolerance")
claim("hood_pair", cosine_raw, known(0.4, 0.48), kind="statistical")
claim("hood_pair_centred", cosine_centred, known(-0.02, 0.02), kind="statistical")
winners = [
    near(king, centred, inputs)[0][0]
    for inputs in (False, True)
    for centred in (False, True)
]
claim(
    "hood_queen",
    "With the inputs left out, “queen” is first, both times. With the inputs kept it is first among the raw vectors, and second, by a hair, among the "
    "centred ones: there the nearest to king − man + woman is “king”."
    if smollm2
    else "Compare the rows: with the inputs kept, does “king” come first?",
)
assert not smollm2 or winners == ["␣queen", "␣queen", "␣queen", "␣king"]

# %% [markdown]
r"""
{{ hood_queen }}

One example proves nothing. Here are more, centred, with the rank of the expected word when the inputs are left out.
"""

# %%
sums = {
    (" actor", " man", " woman"): " actress",
    (" brother", " man", " woman"): " sister",
    (" walking", " walk", " swim"): " swimming",
    (" went", " go", " see"): " saw",
    (" better", " good", " bad"): " worse",
    (" Paris", " France", " Germany"): " Berlin",
    (" Paris", " France", " Italy"): " Rome",
    ("king", "man", "woman"): "queen",
}
sums = {k: w for k, w in sums.items() if all(len(encode(x)) == 1 for x in k)}
results, hits, kept_hits, no_token = [], 0, 0, []
for sum_of, expected in sums.items():
    wish = encode(expected)
    order = [token for token, _ in near(sum_of, count=V)]
    kept = near(sum_of, inputs=True)[0][0]
    place = 1 + order.index(show(wish[0])) if len(wish) == 1 else None
    hits, kept_hits = hits + (place == 1), kept_hits + (kept == show(wish[0]))
    a, b, c = (show(encode(word)[0]) for word in sum_of)
    goal = "|".join(show(i) for i in wish)
    no_token += [goal] if place is None else []
    results.append((f"{a} − {b} + {c}", kept, order[0], goal, f"{place or '–'}"))
display.table(results, header=("centred", "kept", "left out", "expected", "rank"))

# %% tags=["hide-input"]
claim("hood_sums", len(sums) - len(no_token))
claim("hood_sums_right", hits, known(5, 5))
claim("hood_sums_first", kept_hits, known(1, 1))
claim(
    "hood_no_token",
    f"The expected word of the last row, {no_token[0]}, is no single token, so no vector could be right there. It has the "
    "words without the space before them, and those tokens stand inside of other words too, and mean something else."
    if no_token
    else "The last row, if it is there, has the words without the space before them.",
)
assert not smollm2 or (hits > kept_hits and len(no_token) == 1)

# %% [markdown]
r"""
With the inputs left out, {{ hood_sums_right }} of {{ hood_sums }} are right; with the inputs kept, {{ hood_sums_first }}. The forms of a word are no hard test, since they stand near each other anyway. {{ hood_no_token }} Try your own, among common words that are one token:
"""

# %% tags=["hide-input"]
COMMON = """
man woman boy girl king queen prince princess father mother son daughter brother sister
uncle aunt husband wife child baby friend doctor nurse teacher student actor actress
writer artist singer farmer soldier lawyer judge president minister leader person people
family group team army church school college hospital hotel office bank house home room
door window wall floor roof table chair bed kitchen garden street road bridge city town
village country state world earth sun moon star sky cloud rain snow wind storm fire
water ice air river lake sea ocean island mountain hill valley forest tree leaf flower
grass fruit apple orange banana bread cheese meat fish egg milk butter sugar salt rice
soup coffee tea wine beer dog cat horse cow pig sheep chicken bird mouse lion tiger bear
wolf fox rabbit snake frog bee spider head face eye ear nose mouth tooth hair neck arm
hand finger leg foot heart brain blood skin bone body mind soul voice word letter book
page paper story poem song music film picture paint pen car bus train plane ship boat
bicycle wheel engine machine computer phone screen camera clock game ball play sport
race prize money price market shop store company business work job law court police
prison crime war peace gun sword battle enemy danger fear hope love hate joy anger pain
death life birth age time year month week day night morning evening hour minute second
today tomorrow spring summer autumn winter Monday Tuesday Wednesday Thursday Friday
Saturday Sunday January February March April June July August September October November
December north south east west left right up down one two three four five six seven
eight nine ten hundred thousand million first last next red blue green yellow black
white brown pink gold silver iron stone wood glass big bigger biggest small smaller
smallest large larger largest long longer longest short shorter high higher highest low
lower good better best bad worse worst old older oldest young younger new hot cold warm
cool fast slow strong weak rich poor happy sad hard soft heavy light dark bright clean
dirty dry wet full empty open closed easy difficult cheap expensive early late near far
true false go goes went gone going come comes came coming see sees saw seen seeing take
takes took taken taking give gives gave given giving make makes made making know knows
knew known think thinks thought say says said tell told ask asked answer walk walks
walked walking run runs ran running swim swimming swam fly flying flew eat eating ate
drink drinking drank sleep sleeping write writes wrote written writing read reading
speak speaking spoke sing singing sang buy bought sell sold build built break broke
broken cats dogs horses cars houses trees books hands eyes cities countries kings queens
women men children France Paris Germany Berlin Italy Rome Spain Madrid England London
Russia Moscow China Beijing Japan Tokyo India Egypt Cairo Greece Athens Poland Warsaw
French German Italian Spanish English Russian Chinese Japanese Indian Greek Europe
Africa Asia America Canada Mexico Brazil Australia science physics chemistry biology
history mathematics number line circle square energy force electron proton atom gas
metal oil theory proof strawberry pineapple grandmother grandfather goalkeeper
playwright
"""
common = COMMON.split()
pieces = {word: encode(f" {word}") for word in common}
single = [word for word in common if len(pieces[word]) == 1]
claim("hood_words", len(single), (400, None))
examples = [
    ("king", "man", "woman"),
    ("Paris", "France", "Germany"),
    ("Paris", "France", "Italy"),
    ("swimming", "swim", "walk"),
    ("bigger", "big", "small"),
    ("better", "good", "bad"),
]
widgets.arithmetic(
    single,
    table[[pieces[word][0] for word in single]],
    examples=[e for e in examples if all(word in single for word in e)],
    split={
        word: [show(i) for i in several]
        for word, several in pieces.items()
        if len(several) > 1
    },
    mean=table.mean(dim=0),
)

# %% [markdown]
r"""
The list has {{ hood_words }} words. So it is kinder than the table above: the token that would have come first may not be in it.

## What the cache saves

[Page 11](11_cache.py) counted what a KV cache saves. Here is the time that it saves. The same {{ hood_timed }} tokens, greedily, with it and without:
"""

# %%
import time

from gptbook import machine, sampling

idx = read[0]  # (B, T)
speed, written = {}, {}
for name, generate in (
    ("with the cache", kv_cache.generate),
    ("without", sampling.generate),
):
    start = time.perf_counter()
    written[name] = generate(model, idx, 20, temperature=0)  # (B, N)
    speed[name] = 20 / (time.perf_counter() - start)
    print(f"{name:<15} {speed[name]:5.1f} tokens per second")
assert torch.equal(*written.values())

# %% tags=["hide-input"]
claim("hood_timed", 20)
claim("hood_machine", machine.processor())
for key, name in (("with_cache", "with the cache"), ("without_cache", "without")):
    claim(f"hood_{key}", speed[name], kind="statistical")

# %% [markdown]
r"""
The same tokens, {{ hood_with_cache:.0f}} a second with the cache and {{ hood_without_cache:.0f}} without, on one thread of a processor called {{ hood_machine }}. Without it, each step computes all tokens again, so the gap grows with the text.

## Checks

Is the model as it was, after all these hooks?
"""

# %%
assert torch.equal(paris, logits_after(prompts[0]))
assert not any(module._forward_pre_hooks for module in model.modules())
assert not model.training
with torch.no_grad():
    assert torch.equal(lens.logit_lens(model, asked[:1])[-1], model(asked[:1]))
print("no hook is left, and the last row of the lens is the model itself")

# %% [markdown]
r"""
## Your turn

### 1. The rank of the answer

*About ten minutes.* Write `rank_of(logits, token)`. It gets logits of any shape $(\dots, V)$ and the id of a token. It returns the ranks of that token, of shape $(\dots)$, as whole numbers: 1 where no other token has a higher logit, 2 where one has, and so on. Tokens that tie with it do not push it back.

??? tip "Hint"

    Count the logits that are higher. A slice that keeps its axis can be compared with all of them at once.

Check yours with `exercises.check("answer-rank", rank_of)`. Then use it: after how many layers does the lens first have " Paris" among the first ten?
"""

# %% tags=["solution"]
from gptbook import exercises


def rank_of(logits, token):
    mine = logits[..., token : token + 1]  # (..., 1)
    return 1 + (logits > mine).sum(dim=-1)


among_ten = rank_of(after[prompts[0]], answers[prompts[0]][0]) <= 10  # (n,)
print(among_ten.int().argmax().item())
exercises.check("answer-rank", rank_of)

# %% [markdown]
r"""
### 2. Arithmetic with words

*About fifteen minutes.* Write `nearest(table, a, b, c, count)`. `table` has a row for each token, $(V, C)$, and the others are whole numbers. It returns a list of `count` ids: those whose rows have the highest cosine with row $a$ minus row $b$ plus row $c$, the nearest first. Take the rows as they are, and no mean off. The three inputs must not be among them.

??? tip "Hint"

    Divide each row by its length, and one product gives all cosines. Make the three that must not win as low as can be before you sort.

Check yours with `exercises.check("word-arithmetic", nearest)`.
"""


# %% tags=["solution"]
def nearest(table, a, b, c, count):
    wanted = table[a] - table[b] + table[c]  # (C,)
    cosines = F.cosine_similarity(table, wanted[None], dim=-1)  # (V,)
    cosines[[a, b, c]] = -torch.inf
    return cosines.topk(count).indices.tolist()


inputs = [encode(word)[0] for word in king]
print([show(i) for i in nearest(table, *inputs, 3)])
exercises.check("word-arithmetic", nearest)

# %% [markdown]
r"""
### 3. Which head is which?

*About fifteen minutes.* Write `kinds(weights)`. It gets the weights of some heads, $(H, T, T)$, over a text of random tokens that stands there twice, so $T$ is even. It returns a list of $H$ names. Each is the place that gets the most of the head's weight on average over the second half: `"previous"` (the token before), `"same"` (the same token in the first half), `"induction"` (what followed that one), or `"first"` (token 0).

??? tip "Hint"

    Four scores for each head, each a mean over the rows of the second half. In row $t$, where do the four places stand?

Check yours with `exercises.check("name-the-heads", kinds)`. Then try it on the heads of one layer of this model.
"""


# %% tags=["solution"]
def kinds(weights):
    half = weights.size(-1) // 2
    rows = torch.arange(half, 2 * half)
    places = {
        "previous": rows - 1,
        "same": rows - half,
        "induction": rows - half + 1,
        "first": torch.zeros_like(rows),
    }
    means = torch.stack([weights[:, rows, at].mean(dim=-1) for at in places.values()])
    return [list(places)[best] for best in means.argmax(dim=0).tolist()]


print(kinds(weights[induction[0], 0]))
exercises.check("name-the-heads", kinds)

# %% [markdown]
r"""
## What this page left out

How the tokens of the vocabulary came to be: that is [page 15](15_tokens.py). What the MLPs know, where most parameters lie. Heads that work against the answer: some shares in the sum are negative. Ablation by the mean instead of zero. And neighbouring heads that take over when one is missing, which we saw on page 12.

Four of its kinds of part are newer than GPT-2. [The next page](17_today.py) makes each of them, and measures what it brings.
"""
