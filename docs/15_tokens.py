# %% [markdown]
r"""
# Tokens: byte-pair encoding

Joining the most frequent pair of neighbours, again and again, turns bytes into pieces of words, and the rules so learned cut any
text into tokens.

Until now a token was a character. That has two costs. A text of a million characters is a million tokens long, and each of them takes a
pass through the model. And a character that the vocabulary lacks cannot be read at all. Models that you have heard of use longer tokens, and
they read everything. This page builds their tokenizer, and then opens the real ones.

## Three merges by hand

Take one line, and cut it into characters. Which two neighbours stand side by side most often?
"""

# %%
from collections import Counter
from itertools import pairwise

from gptbook import display
from gptbook.claims import claim

line = "the thin thing then"
tokens = list(line)
pairs = Counter(pairwise(tokens))
for (a, b), count in pairs.most_common(4):
    print(f"{a!r} then {b!r}: {count} times")

# %% [markdown]
r"""
The pair of `t` and `h` comes {{ th_count }} times. So make one token of it, wherever it stands. The text becomes shorter, and the
vocabulary longer by one. Then count again, and go on.
"""


# %%
def merge(tokens, pair, new):
    """The tokens with every `pair` of neighbours, from left to right, replaced by `new`."""
    out, i = [], 0
    while i < len(tokens):
        if tuple(tokens[i : i + 2]) == pair:
            out.append(new)
            i += 2
        else:
            out.append(tokens[i])
            i += 1
    return out


claim("th_count", pairs["t", "h"], expected=4)
claim("line_before", len(tokens), expected=len(line))
print(f"{len(tokens):2d} tokens:", "|".join(tokens))
for _ in range(3):
    pairs = Counter(pairwise(tokens))
    best = max(pairs, key=pairs.get)  # of several, the one that came first
    tokens = merge(tokens, best, "".join(best))
    print(f"{len(tokens):2d} tokens:", "|".join(tokens))
claim("line_tokens", len(tokens), expected=10)
assert "".join(tokens) == line

# %% [markdown]
r"""
Three merges took {{ line_before }} tokens to {{ line_tokens }}. That is all of **byte-pair encoding**, BPE for short. Philip Gage published it in 1994, as a way to compress files. Sennrich and others brought it to language models
([Sennrich et al. 2016](https://arxiv.org/abs/1508.07909), "Neural Machine Translation of Rare Words with Subword Units").

Three questions are open. What are the first tokens, before any merge? Where may a merge not reach? And which pair wins when two
are equally frequent? The answers make the difference between this sketch and GPT-2's tokenizer.

## Begin with bytes

Start with the characters of a text, and a character that it lacks has no token. Unicode has more than a hundred thousand characters. But a
computer stores every one of them as one to four **bytes**, numbers from 0 to {{ largest_byte }}. The usual way to do so is called UTF-8. So begin with
the bytes, and there is nothing that cannot be read.
"""

# %%
claim("bytes_there_are", 2**8)
claim("largest_byte", 2**8 - 1)
display.table(
    [
        (sign, what, " ".join(f"{byte:02x}" for byte in sign.encode("utf-8")))
        for sign, what in {
            "e": "Latin, without accent",
            "é": "Latin, with accent",
            "ж": "Cyrillic",
            "日": "Japanese",
            "🙂": "emoji",
        }.items()
    ],
    header=("character", "what it is", "its bytes"),
)

# %% [markdown]
r"""
The bytes are written in base 16, as is usual: two signs each, from `00` to `ff`. A byte is not a character. The emoji is four bytes, and none of them means anything alone. That will matter when a model writes one token at a
time.

## Where a merge may not reach

Without a limit, `␣of␣the` would become one token (`␣` stands for a space), and so would `dog.` and `dog!` beside `dog`. The vocabulary would fill up with
accidents. So GPT-2 first cuts the text into **chunks**, and merges inside a chunk only. A pattern does the cutting.
"""

# %%
import regex

from gptbook.tokenizers import GPT2_PATTERN

print(GPT2_PATTERN)
print(regex.findall(GPT2_PATTERN, "It's 1999:  we don't  know!"))

# %% [markdown]
r"""
Read the pattern from left to right; the first part that fits wins. Endings such as `'s` and `'t` stand alone. A word takes
the *one* space before it along, so that a word in the middle of a sentence is one chunk. `\p{L}` is any letter of any script, `\p{N}` any digit of any script. Digits
and letters never mix. What is left are signs, and white space. Of several spaces, the last one belongs to the word that follows.

Every character lands in exactly one chunk, so joining the chunks gives the text back.

## Train

Now the real thing, on the beginning of our text. Tokens are numbers now: 0 to {{ largest_byte }} for the bytes, and from {{ bytes_there_are }} on for
the merges, in the order in which they were made. Equal chunks behave alike, so each is kept once, with its count.

Ties need a rule, or two programs learn two different vocabularies. Ours: of equally frequent pairs, the one with the smaller numbers
wins. For the numbers of the bytes, we take over GPT-2's order, in which the byte of `!` is 0. So our merges can be compared
with those of other programs, one by one.
"""

# %%
from gptbook import corpora, tokenizers

corpus = corpora.load("tinyshakespeare")
start = corpus.text[:20_000]
number = {byte: i for i, byte in enumerate(tokenizers.BYTES)}


def train_slowly(text, vocab_size):
    """The merges, as pairs of token numbers, in order."""
    chunks = Counter(regex.findall(GPT2_PATTERN, text))
    chunks = [
        ([number[byte] for byte in chunk.encode("utf-8")], count)
        for chunk, count in chunks.items()
    ]
    merges = []
    for new in range(256, vocab_size):
        counts = Counter()
        for ids, count in chunks:
            for pair in pairwise(ids):
                counts[pair] += count
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        chunks = [(merge(ids, best, new), count) for ids, count in chunks]
        merges.append(best)
    return merges


slow = train_slowly(start, 512)
print(len(slow), "merges learned, the first two join", slow[:2])

# %% [markdown]
r"""
Each merge counts all pairs of the text anew. Most of that work is wasted: a merge changes only the chunks that hold its pair. The package
keeps the counts, corrects those few, and finds the most frequent pair on a heap, a list that has its smallest entry always at hand. It learns the same merges.
"""

# %%
fast = tokenizers.BPETokenizer.train(start, vocab_size=512)
assert fast.merges == slow
display.source(tokenizers.learn_merges)

# %% [markdown]
r"""
So it can read the whole training text. We let it learn a vocabulary of `8192`, and look at smaller ones on the way: the first merges of many are those of a smaller
vocabulary. The tests of the book hold the merges against the `tokenizers` library, a program in another language, in order and to the last one, at sizes `512`, `1024`, `2048` and `8192`.
"""

# %%
from gptbook import data

train_text, validation_text = data.split(corpus.text)
whole = tokenizers.BPETokenizer.train(train_text, vocab_size=8192)
sizes, lengths = [256, 512, 1024, 2048, 8192], {}
for size in sizes:
    smaller = tokenizers.BPETokenizer(whole.vocab[:size], whole.merges[: size - 256])
    lengths[size] = len(smaller.encode(validation_text))
again = tokenizers.BPETokenizer.train(train_text, vocab_size=512)
assert again.merges == whole.merges[:256]
known = corpus.name == "tinyshakespeare"  # another text has other counts
bytes_a_token = {size: lengths[256] / n for size, n in lengths.items()}
claim(
    "bytes_a_token_512",
    bytes_a_token[512],
    (1.87, 1.89) if known else (1, None),
    kind="tolerance",
)
claim(
    "bytes_a_token_8192",
    bytes_a_token[8192],
    (3.17, 3.2) if known else (1, None),
    kind="tolerance",
)
ids = whole.encode(train_text)
claim("last_token_count", max(ids.count(i) for i in range(8182, 8192)))
unseen = set(range(8192)) - set(whole.encode(validation_text))
claim("never_in_validation", len(unseen) / 8192, kind="tolerance")
print("first:", *(whole.show(i) for i in range(256, 276)))
print("last: ", *(whole.show(i) for i in range(8182, 8192)))

# %% [markdown]
r"""
The first merges are common pieces of English. The last ones are words and pieces that the training text has {{ last_token_count }} times at most. They come in the order of the tie rule, for they are equally frequent. A
vocabulary of `512` is the beginning of one of `8192`: to train a larger one is to go on.

How much shorter does a text become that was not trained on?
"""

# %% tags=["hide-input"] alt="A curve that rises from one byte a token without merges to about three with the largest vocabulary. Its first step, the first doubling, is by far the steepest." caption="Bytes of validation text in one token, against the size of the vocabulary. The first doubling brings most."
fig, ax = display.figure(5.2, 2.6)
ax.plot(sizes, [bytes_a_token[size] for size in sizes], "o-", color=display.BLUE)
ax.set_xscale("log", base=2)
ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
ax.minorticks_off()
ax.set_xlabel("tokens in the vocabulary")
ax.set_ylabel("bytes a token")
ax.set_ylim(0)
gains = [bytes_a_token[b] / bytes_a_token[a] for a, b in pairwise(sizes)]
assert max(gains) == gains[0]

# %% [markdown]
r"""
With `512` tokens, one token covers {{ bytes_a_token_512:.1f}} bytes on average, with `8192` it covers {{ bytes_a_token_8192:.1f}}. The price is a larger
table of embeddings, with rows for tokens that are hardly ever seen: {{ never_in_validation:.0%}} of the `8192` do not come in the validation text at all.

## Encode

A new text is cut into chunks and into bytes. Then the merges are applied. In which order? One way is to play the training again: apply merge 1
wherever it fits, then merge 2, and so on. The other looks at the pairs that are there, and applies the one with the lowest number first, until none
is left. The second is much quicker, for a chunk has few pairs and the list has thousands of merges.

!!! theorem "Two ways to encode"

    To apply a merge is to replace its pair everywhere, from left to right. Applying all merges one after the other, in the order of training, gives the same
    tokens as applying, again and again, the earliest merge that fits somewhere.

    Tested by `test_replaying_the_merges`.

??? proof "Proof"

    Merge $n$ makes token $256 + n$. A pair in which this token stands can belong to a later merge only: when merge $n$ was learned, the token was new, so
    no earlier merge knows it. Hence applying merge $n$ never makes a place where an earlier merge fits, and none where merge $n$ itself fits again: its own pair has no new token in it, and what
    is left of the old ones has been passed.

    Take the second way. If the earliest merge that fits is $n$, then after it is applied, the earliest that fits comes later than $n$. So the second way
    applies its merges in the order of training as well, each wherever it fits, and passes over those that fit nowhere. The first way does the same, and those that fit nowhere change
    nothing. $\blacksquare$
"""


# %%
def replay(chunk, merges):
    ids = [number[byte] for byte in chunk.encode("utf-8")]
    for n, pair in enumerate(merges):
        ids = merge(ids, pair, 256 + n)
    return ids


for chunk in (" nevertheless", " brother", "Электрон", "🙂"):
    assert replay(chunk, whole.merges) == whole.encode(chunk)
    print(chunk, "|".join(whole.show(i) for i in whole.encode(chunk)))

# %% [markdown]
r"""
The Cyrillic word and the emoji are cut into single bytes, which the package shows in pointed brackets: Shakespeare did not teach us any of their pairs. They are long, but they are not lost.

**Decoding** joins the bytes of the tokens and reads them as UTF-8. Every text comes back, whatever it holds.
"""

# %%
for text in ("", "Zoë said: 日本語 🙂🏽‍🚀", "\r\n\t \x00", validation_text):
    assert whole.decode(whole.encode(text)) == text
print("all came back")

# %% [markdown]
r"""
The other direction is another matter. A model may write any row of tokens, and not every row of bytes is a text. Where it is not, `decode` puts the sign
� and goes on. While a model with our vocabulary writes an emoji, it is in that state for three tokens. A program that shows text as it is written has to wait for
the last byte. `stream` does so.
"""

# %%
stream = whole.stream()
ids = whole.encode("Aye 🙂!")
print("each alone:", "|".join(whole.decode([i]) for i in ids))
shown = [stream.push(i) for i in ids] + [stream.finish()]
print("streamed:  ", "|".join(shown))
assert "".join(shown) == "Aye 🙂!"

# %% [markdown]
r"""
## The real vocabularies

GPT-2's tokenizer is such a list of merges, learned on text from the web. Its {{ gpt2_vocabulary:,}} tokens are {{ bytes_there_are }} bytes, {{ gpt2_merges:,}} merges,
and one token that is no piece of text: `<|endoftext|>`, number {{ gpt2_end:,}}, the sign that one document ends and another begins. We load the list into our own class. Later models have other lists
and other patterns. The files came from: {{ vocabulary_source }}. Each is known by its fingerprint.
"""

# %%
from gptbook import assets, pretrained

names = {"gpt2": "GPT-2", "cl100k_base": "cl100k", "o200k_base": "o200k"}
real = {name: pretrained.vocabulary(name) for name in names}
claim("gpt2_vocabulary", real["gpt2"].vocab_size, expected=50_257)
claim("gpt2_merges", len(real["gpt2"].merges), expected=50_000)
claim("gpt2_end", real["gpt2"].special["<|endoftext|>"], expected=50_256)

sentence = (
    "The electron has a negative charge. Das Elektron ist negativ geladen. "
    "Электрон заряжен отрицательно. 12345678 strawberry"
)
counts = {name: len(tokenizer.encode(sentence)) for name, tokenizer in real.items()}
claim("sentence_gpt2", counts["gpt2"], expected=56)
claim("sentence_cl100k", counts["cl100k_base"], expected=38)
claim("sentence_o200k", counts["o200k_base"], expected=27)
sources = map(assets.source, ("r50k_base", "cl100k_base", "o200k_base"))
claim("vocabulary_source", ", ".join(dict.fromkeys(sources)))
for name, tokenizer in real.items():
    assert tokenizer.decode(tokenizer.encode(sentence)) == sentence
    print(
        f"{names[name]:7} {tokenizer.vocab_size:7,} tokens known, {counts[name]} here"
    )

# %% [markdown]
r"""
Are these the tokens that the models get? `tiktoken` is the library of OpenAI, who made these models. Give it the same list and pattern, and compare. The tests do so for all
three, on a million characters of many scripts.
"""

# %%
import tiktoken

theirs = tiktoken.Encoding(
    "gpt2",
    pat_str=GPT2_PATTERN,
    mergeable_ranks=tokenizers.read_ranks(assets.fetch("r50k_base")),
    special_tokens=real["gpt2"].special,
)
for text in (sentence, validation_text, "8 × 12345 = 🙂🏽\r\n\t日本語"):
    assert real["gpt2"].encode(text) == theirs.encode_ordinary(text)
print("the same ids")

# %% [markdown]
r"""
One sentence in three languages takes {{ sentence_gpt2 }} tokens in GPT-2's vocabulary, {{ sentence_cl100k }} in that of GPT-4 (`cl100k`), and
{{ sentence_o200k }} in that of GPT-4o (`o200k`). Here they are as coloured chips, each with its number. Put your own text in, and see how
it is cut.
"""

# %%
display.chips(sentence, real)

# %% [markdown]
r"""
Things to try, and why they matter:

* **Languages.** The English sentence takes about one token a word. The Russian one takes several a word in GPT-2's vocabulary, because
  its merges were learned on English text. Who writes Russian pays more for the same question, and fills the window sooner.
* **Digits.** GPT-2 cuts numbers wherever its merges fall, the later two after every third digit. A model that adds two numbers has to learn what each
  piece is worth at each place.
* **Spaces.** `␣strawberry` is one token and `strawberry`, without the space, is several. To the model they are unrelated numbers until training tells it
  otherwise. It does not see the letters of a token, so counting those of a word is hard for it.
* **Special tokens.** Type `<|endoftext|>`. It is cut like any other text. The special token is only ever put in by a program, or else a reader could end a
  document by typing.
"""

# %%
rows = []
for text in ("12345678", " strawberry", "strawberry", " Электрон", "🙂"):
    cut = [
        "|".join(tokenizer.show(i) for i in tokenizer.encode(text))
        for tokenizer in real.values()
    ]
    rows.append((text.replace(" ", "␣"), *cut))
for tokenizer in real.values():
    assert tokenizer.special["<|endoftext|>"] not in tokenizer.encode("<|endoftext|>")
    (end,) = tokenizer.encode("<|endoftext|>", allowed_special={"<|endoftext|>"})
    assert end == tokenizer.special["<|endoftext|>"]
assert len(real["o200k_base"].encode(" strawberry")) == 1
assert len(real["gpt2"].encode("strawberry")) == 3
display.table(rows, header=("text", *names.values()))

# %% [markdown]
r"""
## Does it make a better model?

Take the smaller model of [page 9](09_training.py), and train it again, on pieces from a vocabulary of {{ bpe_vocabulary:,}}. It learns from the same text. Is its
loss lower?

That question is a trap. The loss is in nats *a token*, and the new tokens are longer. To guess a whole syllable is harder than to guess a letter, and
there are fewer of them. What can be compared is the cost of the same text. So add up the loss over all tokens of the validation text, and divide by
its bytes. In bits, that is

$$ \text{bits per byte} = \frac{\text{nats per token}}{\ln 2} \cdot \frac{\text{tokens}}{\text{bytes}} . $$

And the training must be fair. Both models get the same amount of work, counted in multiplications and additions as on page 9, and not the same number of steps. The larger vocabulary
makes each step dearer, for the last layer has a row for every token.
"""

# %%
import math

from gptbook import recipes

models = {
    "characters": recipes.trained("lets-build"),
    "pieces": recipes.trained("lets-build-bpe"),
}
bits, work, read, size, columns = {}, {}, {}, {}, {}
for name, run in models.items():
    c, summary = run.model.config, run.summary
    recipe = recipes.TRAINING[
        "lets-build" if name == "characters" else "lets-build-bpe"
    ]
    tokens_read = summary["steps"] * recipe.batch_size * c.block_size
    work[name] = tokens_read * recipes.flops_per_token(c)
    length = len(run.tokenizer.encode(train_text))
    read[name] = tokens_read * len(train_text.encode("utf-8")) / length
    size[name] = sum(p.numel() for p in run.model.parameters())
    targets, their_bytes = summary["val_targets"], summary["val_bytes"]
    bits[name] = summary["val_loss"] / math.log(2) * targets / their_bytes
    columns[name] = {
        "tokens in the vocabulary": f"{c.vocab_size:,}",
        "parameters": f"{size[name]:,}",
        "work of training, 10¹² operations": f"{work[name] / 1e12:.2f}",
        "text read in training, MB": f"{read[name] / 1e6:.2f}",
        "nats a token": f"{summary['val_loss']:.3f}",
        "tokens of validation": f"{targets:,}",
        "bits per byte": f"{bits[name]:.3f}",
    }
display.table(
    [(row, *(columns[name][row] for name in models)) for row in columns["pieces"]],
    header=("", *models),
    caption="The same architecture, with the same work.",
    total=True,
)

# %% tags=["hide-input"]
pieces, letters = models["pieces"], models["characters"]
c = pieces.model.config
claim("bpe_vocabulary", c.vocab_size, expected=1024)
claim(
    "bpe_nats",
    pieces.summary["val_loss"],
    (3.7, 4.2) if known else None,
    kind="statistical",
)
claim(
    "char_nats",
    letters.summary["val_loss"],
    (1.85, 1.98) if known else None,
    kind="statistical",
)
claim("bpe_bits", bits["pieces"], (2.4, 2.65) if known else None, kind="statistical")
claim(
    "char_bits", bits["characters"], (2.65, 2.85) if known else None, kind="statistical"
)
gain = 1 - bits["pieces"] / bits["characters"]
claim("bpe_gain", gain, (0.05, 0.12) if known else None, kind="statistical")
claim("bpe_work", work["pieces"] / work["characters"], (0.995, 1.005), kind="tolerance")
claim(
    "bpe_text",
    read["pieces"] / read["characters"],
    (1.4, 1.9) if known else None,
    kind="tolerance",
)
claim("bpe_parameters", size["pieces"] / size["characters"], 1.7735, 0.001, "tolerance")
added = size["pieces"] - size["characters"]
tables = 2 * c.n_embd * (c.vocab_size - letters.model.config.vocab_size)
claim("bpe_added_tables", tables / added, (0.95, 1), kind="tolerance")
claim("bpe_window", c.block_size, expected=32)
reach = c.block_size * pieces.summary["val_bytes"] / pieces.summary["val_targets"]
claim("bpe_reach", reach, (65, 80) if known else None, kind="tolerance")
for run, name in ((pieces, "pieces"), (letters, "characters")):
    assert abs(bits[name] - run.summary["val_bits_per_byte"]) < 1e-9

# %% [markdown]
r"""
The loss a token is much higher, {{ bpe_nats:.2f}} against {{ char_nats:.2f}} nats. And yet the model of pieces is the better one: it needs {{ bpe_bits:.2f}} bits for a byte of the
text, and the model of characters {{ char_bits:.2f}}, for the same work. That is {{ bpe_gain:.0%}} less.

Three things may help it, and this run does not take them apart. For the same work it reads {{ bpe_text:.1f}} times as much text. Its window of {{ bpe_window }} tokens reaches back over {{ bpe_reach:.0f}} bytes, that of the other
over {{ bpe_window }}. And what is certain inside a piece costs nothing: it need not learn that `q` is followed by `u`. The price is a model with {{ bpe_parameters:.1f}} times as many parameters. Of what is added,
{{ bpe_added_tables:.0%}} stands in the two tables that have a row for every token. The comparison gives both the same work, not the same memory.

It writes, too. Every word is spelt right that is one token; the others are put together.
"""

# %%
import torch

from gptbook import kv_cache

run = models["pieces"]
generator = torch.Generator().manual_seed(15)
prompt = torch.tensor([run.tokenizer.encode("\n")])  # (B, T)
text = kv_cache.generate(run.model, prompt, 80, temperature=0.8, generator=generator)
display.sample(run.tokenizer.decode(text[0]).strip(), label="The model of pieces")

# %% [markdown]
r"""
## Your turn

The first exercise takes a token apart, the second is a small hunt, the third keeps you from comparing what cannot be compared.

### 1. What a token is made of

*About ten minutes.* Write `unfold(i, merges)`. It gets the number of a token, and the list of merges in the order of training: merge $n$ joins a pair of tokens and makes the token `256 + n`. Return the numbers of the bytes, all below
`256`, that token `i` is made of, as a list from left to right. A byte is made of itself.

??? tip "Hint"

    A token from `256` on is made of two others. Of what are those made?

Check yours with `exercises.check("unfold", unfold)`.
"""

# %% tags=["solution"]
from gptbook import exercises


def unfold(i, merges):
    if i < 256:
        return [i]
    left, right = merges[i - 256]
    return unfold(left, merges) + unfold(right, merges)


assert whole.vocab[8191] == bytes(
    tokenizers.BYTES[n] for n in unfold(8191, whole.merges)
)
exercises.check("unfold", unfold)

# %% [markdown]
r"""
### 2. A word kept whole

*About ten minutes.* Find words that GPT-2's vocabulary splits, and that `o200k` keeps as one token. To search for them, write `kept_whole(words, old, new)`. It gets a list of words and the `encode` of two tokenizers.
Return, in their order, the words that `old` cuts into several tokens and `new` keeps in one. Try each word as it stands inside a sentence, with one space before it. Then put words of your own language in.

??? tip "Hint"

    `len(encode(" " + word))` is the number of tokens. Good places to look are other languages, and things that nobody wrote about before GPT-2 was trained.

Check yours with `exercises.check("kept-whole", kept_whole)`.
"""


# %% tags=["solution"]
def kept_whole(words, old, new):
    return [w for w in words if len(old(" " + w)) > 1 and len(new(" " + w)) == 1]


words = ["house", "bicycle", "Haus", "Fahrrad", "geladen", "maison", "спасибо"]
found = kept_whole(words, real["gpt2"].encode, real["o200k_base"].encode)
assert "geladen" in found
print(found)
exercises.check("kept-whole", kept_whole)

# %% [markdown]
r"""
### 3. Bits per byte

*About ten minutes.* Write `bits_per_byte(nats_per_token, tokens, text)`. It gets the mean loss of a model on the tokens of a text, in nats, how many tokens these are, and the text. Return
what the text costs, in bits for each of its bytes.

??? tip "Hint"

    The formula stands above. A character may be more than one byte: `len(text.encode("utf-8"))`.

Check yours with `exercises.check("bits-per-byte", bits_per_byte)`.
"""

# %% tags=["solution"]
import math


def bits_per_byte(nats_per_token, tokens, text):
    return nats_per_token / math.log(2) * tokens / len(text.encode("utf-8"))


exercises.check("bits-per-byte", bits_per_byte)

# %% [markdown]
r"""
## What this page left out

Other ways to find pieces: WordPiece and Unigram, which SentencePiece offers. Tokenizers that clean the text first, and then cannot give it back. Random merges in training, so that a model sees a word cut in several ways. Models
that read bytes and do without all this, and pay with long texts. How large a vocabulary should be for a model of a given size. And the odd tokens that a vocabulary can hold, names that its merges have seen often and the model
never.

Next: [A real model, under the hood](16_pretrained.py), with the tokens and the weights that somebody else trained.
"""
