# %% [markdown]
r"""
# From here to ChatGPT

Pretraining makes a model that continues, a short training on requests makes one that answers, and pairs of a better and a worse answer move it towards what people prefer.

[Page 9](09_training.py) trained a model on plays. This page trains it twice more, in small, and measures what each training brings and what it breaks. First come requests with their answers. That is called **supervised
fine-tuning**. Then come pairs of answers, of which one is preferred.

## What pretraining is not

Ask the model of page 9 for something. It has {{ sft_parameters:,}} parameters, has read one text, and never met a request.
"""

# %%
import copy
import math

import torch
import torch.nn.functional as F

from gptbook import data, display, finetuning, instructions, recipes, trainer
from gptbook.claims import claim
from gptbook.finetuning import answers
from gptbook.instructions import END, chat
from gptbook.model import GPT

run = recipes.trained("step-5")
pretrained, tokenizer = run.model, run.tokenizer
known = run.corpus.name == "tinyshakespeare"  # another text gives other numbers
train, validation = data.split(torch.tensor(tokenizer.encode(run.corpus.text)))
claim("sft_parameters", sum(p.numel() for p in pretrained.parameters()), 816_640)

request = "Please say the word moon.\n"
display.sample(request + answers(pretrained, tokenizer, [request], 60)[0])

# %% [markdown]
r"""
The first line is ours, the rest is the model's. It continues, as it was trained to. After a line in a play comes more of the play. Much larger models are no different at this stage. They have read more, so what they continue with may happen
to be an answer.

## A chat is a play

A model reads one row of tokens, so a chat must be written down as one. The form must say who speaks, and where an answer ends. It is called a **chat template**. Ours looks like a play, because that is what our model knows: Q
asks, A answers. A dollar closes each answer. It is the **end-of-answer sign**.
"""

# %%
print(chat("echo moon", "moon", "roar fish"))

# %% tags=["hide-input"]
claim("sft_dollars", run.corpus.text.count(END), 1 if known else None)
assert len(tokenizer.encode(END)) == 1

# %% [markdown]
r"""
To get an answer, write the chat up to where A begins, let the model go on, and stop at the sign. Without it nothing says that the answer is over, and the model writes on until it is cut off. The sign must be one that no answer needs. In the whole text of page 9, the
count of it is {{ sft_dollars }}. Larger models have [special tokens](15_tokens.py) for this, which no typed text can produce.

For a second question, the whole chat so far goes in again, as above, as long as it fits into the window. That is all the memory that there is.

## The instruction set

We wrote the examples ourselves. A model this small knows no facts, so no task asks for any. There are four tasks on words of four letters, and one with names.
"""

# %%
words, held_words = instructions.split(instructions.WORDS)
names, held_names = instructions.split(instructions.NAMES)
examples = instructions.training_set()
held = instructions.word_examples(held_words)

# %% tags=["hide-input"]
claim("sft_examples", len(examples))
claim("sft_held", len(held))
claim("sft_held_words", len(held_words))
shown = [e for e in examples if e.request.endswith(("fish", "Anna"))]
assert {e.task for e in shown} == {*instructions.TASKS, "meet"}
display.table([(e.task, e.request, e.answer) for e in shown], ("task", "Q", "A"))

# %% [markdown]
r"""
One word in six is held out from all tasks. We test on the {{ sft_held }} requests with those {{ sft_held_words }} words, at temperature 0. An answer counts if it is right to the letter. Who learns the
{{ sft_examples }} examples by heart, and nothing else, gets next to none of them. "Meet" has two answers, a kind one and a rude one. We shall need them later.

## The loss counts answers only

The model reads request and answer in one row. But it is to learn to *answer*, and not to write requests. So the targets that belong to the request are left out of the loss: the prompt is **masked**. A target of $-100$ means: do
not count. PyTorch's cross entropy leaves that number out by itself. Here is a request of three tokens with an answer of two, and a shorter one.
"""

# %%
x, y = finetuning.batch([([11, 12, 13], [21, 22]), ([11, 12], [21])])  # (B, T) each

# %% tags=["hide-input"]
display.table(
    [
        (f"{name} of row {i}", *rows[i].tolist())
        for i in range(2)
        for name, rows in (("x", x), ("y", y))
    ],
    ("token", 0, 1, 2, 3),
)

# %% [markdown]
r"""
Targets are inputs shifted by one, as always. So the *last* token of the request has a target that counts: the first token of the answer. The shorter row is filled up at its end, where no target counts and any input will do: it stands after all that counts, and the model
looks at no later token.
"""

# %%
display.source(finetuning.batch)

# %% [markdown]
r"""
Does the mask do what it says? Compute the loss in a loop, over the targets that count. Then look at its gradient with respect to the logits. Where a target does not count, it must be zero, to the last bit. Elsewhere it is the
softmax, less one at the target, divided by how many targets count. And other filling must change nothing.
"""

# %%
pieces = [finetuning.encode(tokenizer, example) for example in examples]
some = pieces[:7] + pieces[-1:]
x, y = finetuning.batch(some)  # (B, T) each
with torch.no_grad():
    logits = pretrained(x)  # (B, T, V)
logits.requires_grad_()
loss = trainer.loss_fn(logits, y)
loss.backward()

counts = y != -100  # (B, T)
chances = F.softmax(logits.detach(), dim=-1)  # (B, T, V)
surprise = [-chances[b, t, y[b, t]].log() for b, t in counts.nonzero().tolist()]
claim("sft_loss_off", loss - sum(surprise) / len(surprise), 0.0, 1e-5, "tolerance")
assert (logits.grad[~counts] == 0).all()
slope = chances[counts] - F.one_hot(y[counts], tokenizer.vocab_size)
torch.testing.assert_close(logits.grad[counts], slope / len(surprise))

length = torch.tensor([[len(prompt) + len(answer) - 1] for prompt, answer in some])
other = torch.where(torch.arange(x.size(1)) < length, x, 5)  # (B, T): other filling
with torch.no_grad():
    assert trainer.loss_fn(pretrained(other), y) == loss
print(f"loss {loss:.4f}, a mean over {len(surprise)} of {y.numel()} targets")

# %% [markdown]
r"""
## Fine-tuning

The rest is the loop of page 9, with its loss, its optimizer and its update. The learning rate climbs to a higher peak than there, because there are few steps. The kept model stays as it is: we train a copy.
"""

# %%
display.source(finetuning.finetune)

# %%
settings = trainer.TrainConfig(
    batch_size=16,
    steps=240,
    learning_rate=4e-3,
    warmup_steps=40,
    schedule="linear",
    weight_decay=0.1,
    betas=(0.9, 0.99),
    clip=1.0,
    seed=0,
)
tuned = copy.deepcopy(pretrained)
losses = finetuning.finetune(tuned, pieces, settings)


def right(model, examples, before=()):
    """For each task, the share of its examples that the model answers to the letter."""
    prompts = [chat(*before, example.request) for example in examples]
    hits = {}
    for e, got in zip(examples, answers(model, tokenizer, prompts), strict=True):
        hits.setdefault(e.task, []).append(got == e.answer)
    return {task: sum(each) / len(each) for task, each in hits.items()}


def mean(shares):
    return sum(shares.values()) / len(shares)


before, after = right(pretrained, held), right(tuned, held)

# %% tags=["hide-input"]
claim("sft_steps", settings.steps)
claim("sft_before", mean(before), (0, 0.1), kind="statistical")
claim("sft_after", mean(after), (0.6, 1) if known else None, kind="statistical")
display.table(
    [(task, f"{before[task]:.0%}", f"{after[task]:.0%}") for task in before],
    header=("task", "before", "after"),
    caption="Requests with held-out words, answered right.",
)

# %% tags=["hide-input"]
asked = [chat(e.request) for e in held[4::21]]
display.table(
    [
        (e.request, "".join(display.characters(was[:12])), now)
        for e, was, now in zip(
            held[4::21],
            answers(pretrained, tokenizer, asked),
            answers(tuned, tokenizer, asked),
            strict=True,
        )
    ],
    header=("request", "before", "after"),
    caption="Some of the answers. Before, no end-of-answer sign comes, and twelve tokens are shown.",
)

# %% [markdown]
r"""
From {{ sft_before:.0%}} to {{ sft_after:.0%}}, in {{ sft_steps }} steps, on words that no example held. (Before, nothing could count, for no answer ended.) The model learned to *answer*. But what has it learned of the tasks? Ask in other ways than the examples did.
"""

# %% tags=["hide-input"]
longer = ["apple", "bread", "chair", "glass", "grape", "lemon", "river", "stone"]
shorter = ["arm", "cat", "dog", "ice", "owl", "pig", "sea", "tea"]
turn = ("echo fish", "fish")  # what was said before
ways = {
    "words of the examples": right(tuned, instructions.word_examples(words[::5])),
    "held-out words": after,
    "words of five letters": right(tuned, instructions.word_examples(longer)),
    "words of three letters": right(tuned, instructions.word_examples(shorter)),
    "held-out words, as second question": right(tuned, held, turn),
}
claim("sft_longer", mean(ways["words of five letters"]), (0, 0.3), kind="statistical")
claim("sft_second", mean(right(tuned, held, turn)), (0, 0.3), kind="statistical")
display.table(
    [(way, *(f"{share:.0%}" for share in each.values())) for way, each in ways.items()],
    header=("asked about", *after),
)

# %% [markdown]
r"""
So it learned less than the first table seemed to say. With one letter more it gets {{ sft_longer:.0%}} right, and as a second question in the same chat {{ sft_second:.0%}}. That looks like rules about *places* in the window, where every request of the examples stood, and not about words. Held-out
words alone would never have shown this. A test must be held out in the way that matters. For second questions, we expect, the examples must be chats that have them.

## Controls, and what was forgotten

What did the mask bring, and what did pretraining? Train twice more with the same steps: once with all targets counted, and once from fresh random weights.
"""

# %%
unmasked = copy.deepcopy(pretrained)
torch.manual_seed(0)
fresh = GPT(pretrained.config)
fresh_losses = finetuning.finetune(fresh, pieces, settings)
unmasked_losses = finetuning.finetune(unmasked, pieces, settings, masked=False)

# %% tags=["hide-input"] alt="The loss over the steps of fine-tuning, for two models. Both curves start above three and fall. The one of the fresh model is first to fall towards zero, that of the pretrained model follows some fifty steps later." caption="The loss on the examples, each point a mean over ten steps."
fig, ax = display.figure(5.2, 2.4)
for name, each, colour in (
    ("pretrained", losses, display.BLUE),
    ("fresh", fresh_losses, display.ORANGE),
):
    tens = torch.tensor(each).view(-1, 10).mean(dim=1)
    ax.plot(range(10, len(each) + 1, 10), tens, color=colour, label=name)
ax.set_xlabel("step")
ax.set_ylabel("loss (nats)")
ax.legend()

# %% [markdown]
r"""
There is a third question. What happened to all that the model knew? We measure the loss on a part of the validation text, before and after. Forgetting by learning something else is called **catastrophic forgetting**. The usual remedy is to mix
what was learned before into the new training. So here is a third run: the same steps, and after every three of them one on windows of the old text.
"""

# %%
mixed = copy.deepcopy(pretrained)
more = trainer.TrainConfig(**{**vars(settings), "steps": settings.steps * 4 // 3})
finetuning.finetune(mixed, pieces, more, replay=train, every=4)

part = validation[:12_000]
models = {
    "pretrained": pretrained,
    "fine-tuned": tuned,
    "without the mask": unmasked,
    "without pretraining": fresh,
    "old text mixed in": mixed,
}
shares = {name: right(model, held) for name, model in models.items()}
old = {name: trainer.evaluate(model, part).loss for name, model in models.items()}

# %% tags=["hide-input"]
display.table(
    [
        (name, *(f"{s:.0%}" for s in shares[name].values()), f"{old[name]:.2f}")
        for name in models
    ],
    header=("model", *after, "loss"),
    caption="Held-out words answered right, and the loss on the old text in nats.",
)

# %% tags=["hide-input"]
answer_tokens = sum(len(answer) for _, answer in pieces)
all_tokens = sum(len(prompt) + len(answer) - 1 for prompt, answer in pieces)
claim("sft_answer_share", answer_tokens / all_tokens)
claim("sft_part", len(part))
for name, key in (
    ("without the mask", "unmasked"),
    ("without pretraining", "fresh"),
    ("old text mixed in", "mixed"),
):
    claim(f"sft_{key}", mean(shares[name]), kind="statistical")
claim("sft_old_before", old["pretrained"], kind="statistical")
claim("sft_old_after", old["fine-tuned"], kind="statistical")
claim("sft_old_mixed", old["old text mixed in"], kind="statistical")
lost = old["old text mixed in"] - old["pretrained"]
claim("sft_old_lost", lost, kind="statistical")
claim("sft_blind", math.log(tokenizer.vocab_size), kind="tolerance")
if known:
    assert mean(shares["without the mask"]) < mean(after) - 0.05
    assert mean(shares["without pretraining"]) > mean(after) - 0.3
    assert mean(shares["old text mixed in"]) > 0.5
    assert old["fine-tuned"] > math.log(tokenizer.vocab_size)
    assert old["fine-tuned"] > old["without the mask"]
    assert old["old text mixed in"] < old["pretrained"] + 1.5

# %% [markdown]
r"""
**The mask.** Without it, {{ sft_unmasked:.0%}} are right, and not {{ sft_after:.0%}}. Only {{ sft_answer_share:.0%}} of the tokens belong to answers. The rest goes to the form of the request, which is soon learned, and to the word that is asked about, which nobody can foretell. With more steps the gap may
close. Without the mask the model forgets less, too: look at the last column.

**Forgetting.** The loss on the first {{ sft_part:,}} tokens of the validation text was {{ sft_old_before:.2f}} nats. After fine-tuning it is {{ sft_old_after:.2f}}. That is worse than a blind guess, which costs {{ sft_blind:.2f}}. The model no longer continues plays. With the old
text mixed in it is {{ sft_old_mixed:.2f}}, with {{ sft_mixed:.0%}} of the requests right. Most of the damage is gone, and not all: {{ sft_old_lost:.2f}} nats are still missing. It costs a third more steps.

**Pretraining.** The fresh model gets {{ sft_fresh:.0%}}. On these tasks, in this run, pretraining bought nothing. That is no accident. To copy letters one need not know English.

## What pretraining bought

Take a task that needs English. "Tell me" is to be answered with a sentence. We wrote {{ tell_lines }} of them, hold out {{ tell_held }}, and measure the loss on those. Both models get {{ tell_steps }} steps.
"""

# %%
told, held_lines = instructions.split(instructions.LINES)


def tell(lines):
    made = [instructions.Example("tell", "tell me", line) for line in lines]
    return [finetuning.encode(tokenizer, example) for example in made]


hx, hy = finetuning.batch(tell(held_lines))  # (B, T) each
short = trainer.TrainConfig(batch_size=8, steps=30, learning_rate=1e-3, seed=0)
torch.manual_seed(0)
tellers = {"pretrained": copy.deepcopy(pretrained), "fresh": GPT(pretrained.config)}
on_held = {name: [] for name in tellers}
for name, model in tellers.items():

    def look(step, model=model, name=name):
        if step in (1, 10, 20, 30):
            with torch.no_grad():
                on_held[name].append(trainer.loss_fn(model(hx), hy).item())

    finetuning.finetune(model, tell(told), short, look=look)

# %% tags=["hide-input"]
display.table(
    [(name, *(f"{loss:.2f}" for loss in each)) for name, each in on_held.items()],
    header=("model", "1 step", "10 steps", "20 steps", "30 steps"),
    caption="Loss on the held-out sentences, in nats a token.",
)

# %% tags=["hide-input"]
from IPython.display import display as show

from gptbook import sampling

best = {name: min(each) for name, each in on_held.items()}
claim("tell_lines", len(told) + len(held_lines))
claim("tell_held", len(held_lines))
claim("tell_steps", short.steps)
claim("tell_end", on_held["pretrained"][-1], kind="statistical")
claim("tell_pretrained", best["pretrained"], kind="statistical")
claim("tell_fresh", best["fresh"], kind="statistical")
if known:
    assert best["pretrained"] < best["fresh"] - 0.3
    assert on_held["pretrained"][-1] > best["pretrained"]
start = torch.tensor([tokenizer.encode(chat("tell me"))] * 4)  # (B, T)
for name, model in tellers.items():
    generator = torch.Generator().manual_seed(1)
    out = sampling.generate(model, start, 44, 0.8, generator=generator)  # (B, length)
    said = [tokenizer.decode(row[start.size(1) :]).split(END)[0] for row in out]
    show(display.sample("\n".join(said), label=f"Four answers of the {name} model"))

# %% [markdown]
r"""
At the best of the four looks, the pretrained model has {{ tell_pretrained:.2f}} nats and the fresh one {{ tell_fresh:.2f}}. A handful of sentences cannot teach a language. They can tell a model that has one when to use it. So it is in large models too, Zhou and others argue: what they know comes from pretraining, and fine-tuning brings
it out in the form of answers ([Zhou et al. 2023](https://arxiv.org/abs/2305.11206)). The pretrained model turns soon. At the last look, from which the samples are, it has {{ tell_end:.2f}} nats: it learns its few sentences by heart.

## Preferences

For most requests nobody can write down *the* right answer. But people can say which of two is better. What can be learned from that?

Take five answers to "meet Anna". A reference model gives each a chance. Each has a worth for the one who asked, its **reward**. Nobody sees the rewards, but they decide what people choose. The usual assumption is that $a$ is preferred to $b$ with the chance

$$ P(a \succ b) = \sigma(r_a - r_b), \qquad \sigma(u) = \frac{1}{1 + e^{-u}} . $$

This is the model of Bradley and Terry. It has the shape of a softmax over two. Only differences of rewards matter: add one number to all of them, and every chance stays. ($\sigma$ is the logistic function here, and not a standard deviation.)

First, **a reward model**. Let people compare the three answers that the reference often gives. Describe an answer by how many times it says "hail" and how many times "fool". Then fit a weight for each, so that the chances above fit the choices. We let so many people choose that the shares are the chances themselves. (LBFGS is an optimizer for small problems without noise. It also uses how the slope has changed.)
"""

# %%
replies = ["Fool!", "Hm.", "Hail!", "Hail, hail!", "Hail, hail, hail!"]
reference = torch.tensor([0.40, 0.25, 0.30, 0.04, 0.01]).double()  # (N,)
reward = torch.tensor([-1.0, 0.0, 2.0, 1.0, -2.0]).double()  # (N,): nobody sees it
features = torch.tensor(
    [[reply.lower().count(w) for w in ("hail", "fool")] for reply in replies]
).double()  # (N, 2)

weight = torch.zeros(2, dtype=torch.double, requires_grad=True)
fit = torch.optim.LBFGS([weight], max_iter=100)
compared = torch.combinations(torch.arange(3))  # (3, 2): which pairs are seen
chosen = torch.sigmoid(reward[compared[:, 0]] - reward[compared[:, 1]])  # (3,)


def cost():
    guess = features @ weight  # (N,)
    z = guess[compared[:, 0]] - guess[compared[:, 1]]  # (3,)
    loss = F.binary_cross_entropy_with_logits(z, chosen)
    fit.zero_grad()
    loss.backward()
    return loss


fit.step(cost)
learned = (features @ weight).detach()  # (N,)
assert torch.allclose(learned[:3] - learned[1], reward[:3], atol=1e-3)

# %% tags=["hide-input"]
display.table(
    [
        (reply, *(f"{number:.2f}" for number in numbers))
        for reply, *numbers in zip(replies, reference, reward, learned, strict=True)
    ],
    header=("answer", "reference", "reward", "learned reward"),
)

# %% [markdown]
r"""
On the answers that were compared, the learned reward has the right differences. On the two others it was never asked, and is far off: each "hail" counts as much again. A reward model can be trusted only near the answers that it was fitted to. Keep it in mind.

## As good as possible, and not too far

Now change the model so that it earns more. Only reward counts? Then the best policy always gives the one answer with the highest reward. (A **policy** is what gives each answer its chance.) That throws away all else that the reference knows, and trusts the reward
too far. So the distance from the reference gets a price. The usual distance is the **Kullback-Leibler divergence**, $\operatorname{KL}(\pi \,\|\, \rho) = \sum_a \pi_a \ln \frac{\pi_a}{\rho_a}$: how many nats the reference $\rho$ is surprised more by what the policy $\pi$ says than $\pi$ itself.

Let $\beta$ be the price of one nat of distance. What should be high is the mean reward, less the price: $\sum_a \pi_a r_a - \beta \operatorname{KL}(\pi \,\|\, \rho)$.

!!! theorem "The best policy near a reference"

    Let $\rho_a > 0$ be the chances of finitely many answers, $r_a$ their rewards, and $\beta > 0$. Put $\pi^*_a = \frac{1}{Z}\, \rho_a\, e^{r_a / \beta}$, with $Z$ such that they sum to 1. Then for every policy $\pi$

    $$ \sum_a \pi_a r_a - \beta \operatorname{KL}(\pi \,\|\, \rho) \;=\; \beta \ln Z - \beta \operatorname{KL}(\pi \,\|\, \pi^*) . $$

    So $\pi^*$ is the best policy, and the only one.

    Tested by `test_best_policy_near_a_reference`.

??? proof "Proof"

    From the definition, $r_a = \beta \ln \frac{\pi^*_a}{\rho_a} + \beta \ln Z$. Put this into the left side. The $\pi_a$ sum to 1, so it is $\beta \ln Z + \beta \sum_a \pi_a \bigl( \ln \frac{\pi^*_a}{\rho_a} - \ln \frac{\pi_a}{\rho_a} \bigr)$. The references cancel, and
    the sum is $-\operatorname{KL}(\pi \,\|\, \pi^*)$. A divergence is never negative, and zero only for equal policies: that is what [page 2](02_bigram.py) says of counting, where no other table costs less than the shares themselves. $\blacksquare$

The package has the best policy in a line. Does climbing uphill from the reference end there too?
"""

# %%
display.source(finetuning.best_policy)

# %%
z = reference.log().requires_grad_()  # (N,)
climb = torch.optim.LBFGS([z], max_iter=200, line_search_fn="strong_wolfe")


def regret():
    log_pi = F.log_softmax(z, dim=-1)  # (N,)
    gained = (log_pi.exp() * (reward - (log_pi - reference.log()))).sum()  # beta is 1
    climb.zero_grad()
    (-gained).backward()
    return -gained


climb.step(regret)
formula = finetuning.best_policy(reference, reward, beta=1.0)  # (N,)
gap = (F.softmax(z, dim=-1) - formula).abs().max()
claim("policy_gap", gap, 0.0, 1e-4, "tolerance")
print([f"{chance:.3f}" for chance in formula.tolist()])

# %% [markdown]
r"""
It does, up to {{ policy_gap:.0e}} in the chances.


## What goes wrong

What does $\beta$ do? A large one keeps the policy at the reference. As it falls to 0, all goes to the highest reward. That is fine with the true reward, which nobody has. Take the *learned* one, and measure what the policy earns by both.
"""

# %%
prices = torch.logspace(
    1.5, -1, 101, dtype=torch.double
)  # (101,), from cautious to bold
policies = torch.stack([finetuning.best_policy(reference, learned, b) for b in prices])
by_model, by_truth = policies @ learned, policies @ reward  # (101,) each

# %% tags=["hide-input"]
at = by_truth.argmax()
claim("reward_start", reference @ reward, kind="tolerance")
claim("reward_best", by_truth[at], (0.5, 2), kind="tolerance")
claim("reward_end", by_truth[-1], -2.0, 0.05, "tolerance")
claim("reward_beta", prices[at], (0.5, 10), kind="tolerance")
assert (by_model.diff() > -1e-9).all()

# %% tags=["hide-input"] alt="Reward against beta, from cautious on the left to bold on the right. The learned reward rises all the way to six. The true reward rises with it at first, reaches a peak below one, then falls far below where it began." caption="What the best policy for the learned reward earns, by the learned reward and by the true one. To the right, the policy may go further from the reference."
fig, ax = display.figure(5.2, 2.6)
ax.plot(prices, by_model, "--", color=display.ORANGE, label="learned reward")
ax.plot(prices, by_truth, color=display.BLUE, label="true reward")
ax.axhline(0, color=display.GREY, linewidth=1)
ax.set_xscale("log")
ax.invert_xaxis()
ax.set_xlabel("β")
ax.set_ylabel("mean reward")
ax.legend()

# %% [markdown]
r"""
The learned reward rises all the way. The true one rises from {{ reward_start:.2f}} to {{ reward_best:.2f}} at a $\beta$ of {{ reward_beta:.1f}}, and falls to {{ reward_end:.1f}}. In the end the policy says "Hail, hail, hail!" and nothing else. This is **over-optimisation**: a measure that is
pushed too far stops measuring ([Gao et al. 2022](https://arxiv.org/abs/2210.10760)).

## Preferences without a reward model

The proof holds a surprise. Turn its first line round: a policy *is* a reward. If $\pi$ is the best one, then $r_a - r_b = \beta \ln \frac{\pi_a}{\rho_a} - \beta \ln \frac{\pi_b}{\rho_b}$, and the unknown $Z$ cancels. So put this
difference into the Bradley-Terry model, and train the policy on the choices at once. The loss of a pair in which $a$ was preferred is

$$ -\ln \sigma \Bigl( \beta \ln \frac{\pi_a}{\rho_a} - \beta \ln \frac{\pi_b}{\rho_b} \Bigr) . $$

This is **direct preference optimisation**, DPO ([Rafailov et al. 2023](https://arxiv.org/abs/2305.18290)).

!!! theorem "Preferences lead to the best policy"

    Let people compare every two answers, and choose as Bradley and Terry say. Then the mean loss of DPO over their choices is lowest for the policy $\pi^*$ of the last theorem, and for no other.

    Tested by `test_preferences_lead_to_the_best_policy`.

??? proof "Proof"

    Write $d$ for the difference in the bracket, for one pair. Its mean loss is $-p \ln \sigma(d) - (1 - p) \ln \sigma(-d)$ with $p = \sigma(r_a - r_b)$, a cross entropy. It is lowest where $\sigma(d) = p$, so where $d = r_a - r_b$, and nowhere else. The policy
    $\pi^*$ has this $d$ for all pairs at once, so no sum of losses is lower. If another policy has it too, then $\beta \ln \frac{\pi_a}{\rho_a} - r_a$ is the same number for all answers, so $\pi_a$ is proportional to $\rho_a e^{r_a / \beta}$, and that is $\pi^*$. $\blacksquare$

In the package, $\ln \pi_a$ is the sum over the tokens of an answer.
"""

# %%
display.source(finetuning.dpo_loss)

# %% [markdown]
r"""
Go down this loss from the reference, over all pairs of the five answers, with the choices that the true rewards give.
"""

# %% tags=["hide-input"]
a, b = torch.combinations(torch.arange(5)).unbind(dim=1)  # (10,) each: all pairs
p = torch.sigmoid(reward[a] - reward[b])  # (10,)
z = reference.log().requires_grad_()  # (N,)
climb = torch.optim.LBFGS([z], max_iter=500, line_search_fn="strong_wolfe")


def pair_loss():
    gained = F.log_softmax(z, dim=-1) - reference.log()  # (N,)
    d = gained[a] - gained[b]  # (10,): beta is 1
    loss = -(p * F.logsigmoid(d) + (1 - p) * F.logsigmoid(-d)).mean()
    climb.zero_grad()
    loss.backward()
    return loss


climb.step(pair_loss)
gap = (F.softmax(z, dim=-1) - formula).abs().max()
claim("dpo_policy_gap", gap, 0.0, 1e-4, "tolerance")
now, ref = F.log_softmax(z.detach(), dim=-1), reference.log()  # (N,) each
package = finetuning.dpo_loss(now[a], now[b], ref[a], ref[b], beta=1.0)
torch.testing.assert_close(
    package, -F.logsigmoid(now[a] - now[b] - (ref[a] - ref[b])).mean()
)
print([f"{chance:.3f}" for chance in F.softmax(z, dim=-1).tolist()])

# %% [markdown]
r"""
No reward was fitted, and the same five chances came out, up to {{ dpo_policy_gap:.0e}}.

## Our model learns manners

Now the real thing, in small. The model with the old text mixed in gives the kind and the rude greeting about half the chance each, to every name, as its examples did. Let "Hail!" be preferred to "Fool!" for every name of the examples. How likely are the two for names that were held out? And does the model still do its tasks?
"""

# %%
display.source(finetuning.prefer)


# %%
def greetings(names, answer):
    made = instructions.meetings(names, answer)
    return [finetuning.encode(tokenizer, example) for example in made]


kind, rude = instructions.KIND, instructions.RUDE
pairs = list(zip(greetings(names, kind), greetings(names, rude), strict=True))
tests = [finetuning.batch(greetings(held_names, answer)) for answer in (kind, rude)]
polite = copy.deepcopy(mixed)
track = []


def measure(step):
    if step % 10 == 0:
        with torch.no_grad():
            both = [
                finetuning.log_probability(polite, *t).exp().mean().item()
                for t in tests
            ]
        met = [chat(f"meet {name}") for name in held_names]
        said = answers(polite, tokenizer, met)
        usual = max(said, key=said.count)
        track.append((step, *both, mean(right(polite, held)), usual))


measure(0)
gentle = trainer.TrainConfig(
    batch_size=8, steps=60, learning_rate=1e-4, weight_decay=0.0, clip=1.0, seed=0
)
pair_losses = finetuning.prefer(polite, mixed, pairs, gentle, beta=0.1, look=measure)

# %% tags=["hide-input"]
display.table(
    [(n, f"{k:.3f}", f"{r:.3f}", f"{t:.0%}", said) for n, k, r, t, said in track],
    header=("step", kind, rude, "tasks right", "most said"),
    caption="Chances of the two answers to held-out names, the tasks, and what most of these names hear at temperature 0.",
)

# %% tags=["hide-input"]
claim("dpo_kind_before", track[0][1], kind="statistical")
claim("dpo_rude_before", track[0][2], kind="statistical")
claim("dpo_kind_soon", track[1][1], kind="statistical")
claim("dpo_rude_soon", track[1][2], kind="statistical")
claim("dpo_rude_end", track[-1][2], kind="statistical")
claim("dpo_kind_low", min(row[1] for row in track[1:]), kind="statistical")
claim("dpo_tasks_before", track[0][3], kind="statistical")
claim("dpo_tasks_end", track[-1][3], kind="statistical")
claim("dpo_step_soon", track[1][0])
claim("dpo_step_end", track[-1][0])
claim("dpo_loss_first", pair_losses[0], kind="statistical")
claim("dpo_loss_last", pair_losses[-1], kind="statistical")
if known:
    assert 0.15 < track[0][1] < 0.85
    assert 0.15 < track[0][2] < 0.85
    assert track[1][1] > track[0][1]
    assert track[-1][2] < 0.01
    assert track[-1][3] <= track[0][3]
    assert pair_losses[-1] < pair_losses[0]

# %% [markdown]
r"""
After {{ dpo_step_soon }} steps, the chance of the kind answer has gone from {{ dpo_kind_before:.2f}} to {{ dpo_kind_soon:.2f}}, that of the rude one from {{ dpo_rude_before:.2f}} to {{ dpo_rude_soon:.2f}}. The names were never compared, so manners carry over. Here one should stop.

Look at what comes later. After {{ dpo_step_end }} steps the rude answer has a chance of {{ dpo_rude_end:.0e}}. But the *kind* one does not go on rising: after its peak it is down to {{ dpo_kind_low:.2f}} at its lowest. And the tasks go from {{ dpo_tasks_before:.0%}} to {{ dpo_tasks_end:.0%}}. The loss of the pairs fell all the same, from {{ dpo_loss_first:.2f}} to {{ dpo_loss_last:.3f}}. How can it fall when the preferred answer becomes less likely? It sees the difference of the two only. If the
rude one falls faster, all is well for it. What both lose goes to answers that nobody compared. And "always preferred" has no finite reward: in the theorem, $p = 1$ asks for an infinite difference, whatever $\beta$ is. So the loss pushes on for ever. Known remedies: stop early, keep a term for the loss of page 9,
and have people compare what the model says *now*.

## Your turn

### 1. Mask the prompt

*About ten minutes.* Write `masked(prompt, answer)`. It gets two lists of token ids, neither of them empty. The answer already ends with its sign. Return two lists of one length: the inputs, and the targets, with $-100$ where a target is not to count.

??? tip "Hint"

    Put both in one row first. Inputs are the row without its last token, and targets the row without its first. How many of the targets belong to the prompt?

Check yours with `exercises.check("mask-the-prompt", masked)`.
"""

# %% tags=["solution"]
from gptbook import exercises


def masked(prompt, answer):
    row = prompt + answer
    return row[:-1], [-100] * (len(prompt) - 1) + answer


exercises.check("mask-the-prompt", masked)

# %% [markdown]
r"""
### 2. The best policy

*About ten minutes.* Write `policy(reference, reward, beta)`. It gets the chances of the answers and their rewards, both of shape $(N,)$, and $\beta$. It returns the chances of the best policy. Rewards may be large, and $\beta$ small.

??? tip "Hint"

    $\rho_a e^{r_a / \beta}$ overflows. Which row of logits has a softmax that is proportional to it?

Check yours with `exercises.check("best-policy", policy)`. Then try the learned reward of this page: at which $\beta$ do more than half of the answers hold three hails?
"""


# %% tags=["solution"]
def policy(reference, reward, beta):
    return torch.softmax(torch.log(reference) + reward / beta, dim=-1)


bold = next(b for b in prices if policy(reference, learned, b)[-1] > 0.5)
print(f"below about {bold:.2f}")
exercises.check("best-policy", policy)

# %% [markdown]
r"""
### 3. The loss of DPO

*About ten minutes.* Write `dpo(chosen, rejected, ref_chosen, ref_rejected, beta)`. The first four have the shape $(B,)$ and hold the *logarithms* of chances. Return one number: the mean loss over the pairs. Answers are long, so differences of hundreds of nats must do no harm.

??? tip "Hint"

    `F.logsigmoid` stays finite where the logarithm of a sigmoid does not.

Check yours with `exercises.check("dpo-loss", dpo)`.
"""


# %% tags=["solution"]
def dpo(chosen, rejected, ref_chosen, ref_rejected, beta):
    difference = (chosen - ref_chosen) - (rejected - ref_rejected)
    return -F.logsigmoid(beta * difference).mean()


exercises.check("dpo-loss", dpo)

# %% [markdown]
r"""
## What this page left out

*RLHF.* The first assistants of this kind were trained with a reward model and reinforcement learning: the model answers, the reward model judges, and an algorithm named PPO changes the policy, with the price on distance of this page. DPO spares the reward model and the judging, and for that learns only from answers that were collected beforehand.

*Safety.* What should an assistant refuse, and who decides? What happens when people try to make it say what it should not? *Tools.* An assistant that can calculate or search writes a request, reads what came back, and writes on. It is one more speaker in the play. *Reasoning.* Rewards that a program can check, such as a right result, train models to think in writing first.

*Scale.* All of this is done with models many thousand times larger. The losses for examples and for pairs are those of this page, that of PPO is not.

Where to read on:

* Ouyang et al., [Training language models to follow instructions with human feedback](https://arxiv.org/abs/2203.02155): fine-tuning, reward model, PPO.
* Christiano et al., [Deep reinforcement learning from human preferences](https://arxiv.org/abs/1706.03741), and Ziegler et al., [Fine-tuning language models from human preferences](https://arxiv.org/abs/1909.08593): where it began.
* Rafailov et al., [Direct preference optimization](https://arxiv.org/abs/2305.18290): the loss of this page.
* Bai et al., [Constitutional AI](https://arxiv.org/abs/2212.08073): preferences from a written list of principles.
* Schulman et al., [Proximal policy optimization algorithms](https://arxiv.org/abs/1707.06347), and Sutton and Barto, [Reinforcement Learning: An Introduction](http://incompleteideas.net/book/the-book-2nd.html), for the theory behind.
* Kaplan et al., [Scaling laws for neural language models](https://arxiv.org/abs/2001.08361), and Hoffmann et al., [Training compute-optimal large language models](https://arxiv.org/abs/2203.15556), for the size of things.

The path of this book ends here. It began with characters that became numbers. [Home](index.md) has the checklist.
"""
