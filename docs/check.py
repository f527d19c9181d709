# %% [markdown]
r"""
# Check your own GPT

`gptbook check FILE.py` tries what your file defines, says which questions it answers badly, and names the likely mistake. It knows
{{ check_known }} mistakes by name.

This page is for looking things up. It says what the command looks for, what each check sees, and what it is blind to. What you read
here about the checks was found by running them on mistakes.

## Three mistakes in one file

Here is a small file of the kind that people write on the way to a GPT. Four functions, three of them wrong.
"""

# %%
FILE = """
import torch
import torch.nn.functional as F


def attention(q, k, v):
    T, D = q.shape[-2:]
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    scores = q @ k.transpose(-2, -1) / D
    return scores.masked_fill(future, float("-inf")).softmax(dim=-1) @ v


def layer_norm(x, weight, bias):
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-5) * weight + bias


def gelu(x):
    return F.gelu(x)


def get_batch(tokens, block_size, batch_size):
    start = torch.randint(len(tokens) - block_size, (batch_size,))
    x = torch.stack([tokens[i : i + block_size] for i in start])
    y = torch.stack([tokens[i : i + block_size] for i in start])
    return x, y
"""

# %% [markdown]
r"""
Write it to a folder, and give it to the command. On a terminal, that is `gptbook check mine.py`.
"""

# %%
import contextlib
import io
import tempfile
from pathlib import Path

from gptbook import check, cli

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "mine.py"
    path.write_text(FILE, encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()) as screen:
        code = cli.main(["check", str(path)])
print(screen.getvalue())

# %%
import math

import torch

from gptbook import display, verify
from gptbook.claims import claim
from gptbook.verify import broken, catalogue
from gptbook.verify.broken import Toy
from gptbook.verify.checks import CHECKS, ORDER

report = screen.getvalue()
told = " ".join(report.split())
for words in (
    "divided by D, where the root of D belongs",
    "divided by C − 1, not by C",
    "the targets are the inputs themselves",
):
    assert words in told, words
claim("check_exit_code", code, expected=1)
known = catalogue.all_mistakes()
claim("check_known", len(known))

# %% [markdown]
r"""
Each of the three is named, with the page that explains it. The right function passes. The command ends with the exit code
{{ check_exit_code }}, because something failed. It is 0 when nothing failed, and 2, with one line that says why, when the file cannot be
checked at all. `--json` prints the same for a program.

Your file is imported in a process of its own. What it prints goes nowhere, and what never ends is ended. So put the training under
`if __name__ == "__main__"`. Nothing in your model is changed: the checks work on a copy.

## The names it looks for

Define any of these. The rest is listed as not defined, and that is no mistake.
"""

# %%
ASKS = {
    "model": verify.check_model,
    "average": verify.check_averaging,
    "attention": verify.check_attention,
    "layer_norm": verify.check_layer_norm,
    "gelu": verify.check_gelu,
    "Block": verify.check_block,
    "get_batch": verify.check_batches,
    "loss_fn": verify.check_loss,
    "sample": verify.check_sampler,
    "generate": verify.check_generate,
    "step": verify.check_cache,
    "encode, decode": verify.check_tokenizer,
    "estimate_loss": verify.check_evaluate,
    "lr_at": verify.check_schedule,
}
assert ASKS.keys() == check.SUBJECTS.keys()


def first_sentence(thing):
    """The first line of what a function says about itself."""
    return thing.__doc__.strip().splitlines()[0].replace("`", "")


rows = [
    (
        " or ".join(names) if about == "model" else ", ".join(names),
        ASKS[about].__name__,
        first_sentence(ASKS[about]),
    )
    for about, (names, _) in check.SUBJECTS.items()
]
display.table(rows, header=("you define", "verify.", "what it asks"))

# %% [markdown]
r"""
The functions in the middle column are the same checks for your own notebook: `verify.check_attention(attention)`. Two more have no name in
a file: `verify.check_multihead(module, n_head)` for several heads, and `verify.check_optimizer(model, optimizer)`.

`build_model()` returns your model. Without it, a class `GPT` is tried. It gets the book's `GPTConfig`, so its width and its layers are the
book's, and not yours. If it takes no configuration, it is called with nothing. Two numbers in the file say its sizes, `VOCAB_SIZE` and `BLOCK_SIZE`, in capital or in small letters. Without them,
the vocabulary is taken to be {{ check_vocab }}, and the context {{ check_context }}. Tokens and text for the checks are the package's own,
except where your `get_batch` takes no tokens and reads its own.

## Reading a report

A result has one of four states.

* **✓ passed**: the question was answered well. It says no more than the question.
* **✗ failed**: wrong. Below stands what it most likely is.
* **≠ differs**: it works, and GPT-2 does it in another way. That may be what you meant.
* **– not checked**: the check could not look, or its answer would mislead. This is never a pass. The reason stands beside it.

The checks cannot know what you meant, unless you say it. That is what `expect=` is for: a `GPTConfig` with the sizes and the design that
your model should have. In a file, it is a name, `EXPECT = GPTConfig(...)`. What differs from it then fails, and parameters are counted
against it. Here is a model with RMSNorm, asked without and with it.
"""

# %%
claim("check_vocab", check.Reader({}).V, expected=65)
claim("check_context", check.Reader({}).T, expected=64)
torch.manual_seed(0)
V, T = broken.V, broken.T
unusual = Toy(odd="rms norm")
without = verify.norms(unusual, V, T)
with_expect = verify.norms(unusual, V, T, expect=broken.CONFIG)
assert (without.status, with_expect.status) == ("differs", "failed")
print(without)
print(with_expect)

# %% [markdown]
r"""
And here is a model whose logits are NaN. Whether they look ahead, nobody can say.
"""

# %%
result = verify.causal(Toy("divides by zero"), V, T)
assert result.status == "not checked"
result

# %% [markdown]
r"""
## The questions to a model

`verify.check_model` asks these, in this order, and each of them is a function of its own. A question that needs the answer of another is
not asked when that failed.

To see what each check is worth, give it wrong models. The package keeps {{ check_models }} of them, small GPTs with one mistake each. All of
them are asked all questions but the last, with `expect=`, and the results are counted.
"""

# %%
models = [mistake for mistake in known if mistake.about == "model"]
questions = [name for name in ORDER if name != "memorise"]
found = {mistake.name: broken.ask(mistake.wrong) for mistake in models}
status = {
    name: {result.name: result.status for result in report.results}
    for name, report in found.items()
}
caught = sum(bool(report.failed) for report in found.values())
named = sum(catalogue.is_named(mistake, found[mistake.name]) for mistake in models)
claim("check_models", len(models))
claim("check_models_caught", caught, expected=len(models))
claim("check_models_named", named, expected=len(models))
alone = sum(len(report.failed) == 1 for report in found.values())
claim("check_models_by_one", alone, expected=(40, None), kind="tolerance")
print(f"{caught} of {len(models)} caught, {named} named, {alone} by one check alone")

# %% [markdown]
r"""
All are caught, and all are named. {{ check_models_by_one }} of them fail one single check: the others let them pass, or were not asked any more.

In the table, *sees* counts the wrong models that a check fails. The last column names one that it lets pass. That one is wrong, and this
check is blind to it.
"""

# %%
BLIND = {
    "finite": "no-mask",
    "deterministic": "softmax-over-the-batch",
    "dropout": "no-mask",
    "shapes": "heads-merged-askew",
    "causal": "no-scale",
    "batch-independent": "positions-not-added",
    "position-sensitive": "positions-in-every-block",
    "reach": "mask-one-ahead",
    "embeddings": "no-final-norm",
    "norms": "post-norm",
    "residual": "no-activation",
    "activation": "no-residual",
    "attention": "relu",
    "layers": "last-block-skipped",
    "parameters": "no-activation",
    "initial-loss": "no-mask",
    "gradients": "no-mask",
}
rows = []
for name in BLIND:
    assert status[BLIND[name]][name] == "passed", name
    sees = sum(line[name] == "failed" for line in status.values())
    assert sees, name
    asks = first_sentence(CHECKS[name].ask)
    rows.append((name, asks, sees, BLIND[name].replace("-", " ")))

# Models that return no loss cannot be asked about it, and memorising takes long.
assert verify.loss(broken.WithLoss(toy=Toy("no mask")), V, T).passed
sees = sum(line["loss"] == "failed" for line in status.values())
asks = first_sentence(CHECKS["loss"].ask)
rows.insert(questions.index("loss"), ("loss", asks, sees, "no mask"))
for wrong in (Toy("no mask"), Toy("positions not added"), Toy(odd="post-norm")):
    assert verify.memorise(wrong, V, T).passed
rows.append(("memorise", first_sentence(CHECKS["memorise"].ask), "", "no mask"))
display.table(rows, header=("check", "what it asks", "sees", "lets pass"))

# %% [markdown]
r"""
The last check trains the model for 50 steps on one batch. It takes longest and says least, so it is left out of the count. Three of the wrong models were
given to it alone, and it lets them pass: one without a mask, one without positions, and one with its norms behind the additions. [Page 8](08_gpt.py#bug-hunt) shows more of them.

## Which check sees which mistake

Every wrong model of the package, against every check. The order is that of the questions: what stands early is asked first, and where it
fails, much of what follows is not checked.
"""

# %%
display.matrix(
    rows=[mistake.name.replace("-", " ") for mistake in models],
    columns=questions,
    cells=[[status[m.name][name] for name in questions] for m in models],
    caption="Wrong models against checks. ✗ failed, · passed, – not checked.",
)

# %% [markdown]
r"""
Most rows have one cross. Few checks can stand in for another, and a pass is worth as much as the questions that were asked.

## The functions

A function is checked in another way: its answers are compared with those of a right one, on inputs drawn at random. If they differ, they are
compared with those of every known wrong version. The one that agrees everywhere is most likely what you wrote. That is how a report
can say *divided by D, where the root of D belongs*.
If none agrees, it says what is known: that the rows do not sum to one, for instance, or only the two numbers.

Here the wrong versions go through the checks, kind by kind. Where a check takes long, only some of them are tried, evenly spread. The
package's tests try all.
"""

# %%
SLOW, MOST = ("multihead", "block", "sample", "generate", "step", "tokenizer"), 4
rows, tried_all = [], 0
for about in dict.fromkeys(m.about for m in known if m.about != "model"):
    kind = [mistake for mistake in known if mistake.about == about]
    tried = kind[:: math.ceil(len(kind) / MOST)] if about in SLOW else kind
    reports = [(mistake, catalogue.caught(mistake)) for mistake in tried]
    caught = sum(bool(report.failed) for _, report in reports)
    named = sum(catalogue.is_named(*pair) for pair in reports)
    claim(f"check_caught_{about}", caught, expected=len(tried))
    claim(f"check_named_{about}", named, expected=len(tried))
    tried_all += len(tried)
    example = tried[len(tried) // 2]
    rows.append((about, len(kind), len(tried), caught, named, example.cause))
claim("check_functions", len(known) - len(models))
claim("check_functions_tried", tried_all)
header = ("function", "known", "tried", "caught", "named", "for example")
display.table(rows, header=header)

# %% [markdown]
r"""
{{ check_functions }} wrong versions of functions are known, and all of the {{ check_functions_tried }} that were tried here are caught and named.

## What no check of a whole model can show

Take a right model and leave out the division by $\sqrt{D}$. Then divide the query matrix by $\sqrt{D}$ instead. The scores are the same, and so is everything
after them. One model has the scale, the other has other weights.
"""

# %%
torch.manual_seed(0)
right = Toy()
twin = Toy("no scale")
twin.load_state_dict(right.state_dict())
D = broken.C // broken.H
with torch.no_grad():
    for block in twin.blocks:
        block.attention.query.weight /= math.sqrt(D)
    idx = torch.randint(V, (4, T))  # (B, T)
    difference = (twin(idx) - right(idx)).abs().max().item()
claim("check_twin", difference, expected=(None, 1e-5), kind="tolerance")
print(f"largest difference of the logits: {difference:.0e}")

# %% [markdown]
r"""
The logits agree to {{ check_twin:.0e}}, which is rounding. So no question about tokens and logits can tell the two apart, for *these* weights. Training starts both
from the same random weights, and then the scale matters.

The checks from *embeddings* to *attention* go one step further. They read the weights, look for the known design that gives the model's own logits with them, and say what it
is. For a missing scale they say "differs", because the model works. With `expect=` it fails. And the function alone, given queries and keys, must divide: there it fails at once.
"""

# %%
asked = verify.attention(twin, V, T)
expected = verify.attention(twin, V, T, expect=broken.CONFIG)


def attention(q, k, v):
    """Causal attention that forgets the scale."""
    T = q.size(-2)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)  # (T, T)
    scores = (q @ k.mT).masked_fill(future, -math.inf)  # (..., T, T)
    return scores.softmax(dim=-1) @ v


alone = verify.check_attention(attention)["values"]
statuses = (asked.status, expected.status, alone.status)
assert statuses == ("differs", "failed", "failed")
display.table(
    [
        ("the model", asked.status, asked.cause),
        ("the model, with expect=", expected.status, expected.cause),
        ("the function", alone.status, alone.cause),
    ],
    header=("asked", "status", "the likely mistake"),
)

# %% [markdown]
r"""
A design that the checks do not know cannot be read like that. Add a term of its own to the scores, and what attention does is "not checked",
whether it is right or wrong.
"""

# %%
own = Toy(odd="linear bias")
result = verify.attention(own, V, T)
assert result.status == "not checked"
result

# %% [markdown]
r"""
So check the pieces as you write them, and the whole at the end. What was not checked is for you to check.

## What this page left out

Your training loop. A check of the optimizer and of the schedule cannot see that `zero_grad` is missing, or that the model is trained on the
validation text. Two mistakes at once, of which one hides the other: mend what is named, and run the command again. And whether your model is any
*good*. For that, [train it](09_training.py), and hold its loss against the ladder of [page 2](02_bigram.py).
"""
