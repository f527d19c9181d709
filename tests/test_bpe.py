"""Byte-pair encoding: the merges of `tokenizers`, the ids of `tiktoken`, and every text and every row of ids back."""

import base64
import hashlib
import importlib
import json
import random
import unicodedata
from collections import Counter
from itertools import pairwise

import pytest
import regex
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from outside import asset

from gptbook import corpora, tokenizers
from gptbook.tokenizers import (
    BYTES,
    CL100K_PATTERN,
    GPT2_PATTERN,
    O200K_PATTERN,
    SMOLLM2_PATTERN,
    BPETokenizer,
    CharTokenizer,
    from_characters,
    learn_merges,
    read_ranks,
    to_characters,
)

SENTENCE = (
    "The electron has a negative charge. Das Elektron ist negativ geladen. "
    "Электрон заряжен отрицательно. 12345678 strawberry"
)
PATTERNS = {"r50k_base": GPT2_PATTERN, "cl100k_base": CL100K_PATTERN, "o200k_base": O200K_PATTERN}
SPECIAL = {
    "r50k_base": {"<|endoftext|>": 50256},
    "cl100k_base": {
        "<|endoftext|>": 100257,
        "<|fim_prefix|>": 100258,
        "<|fim_middle|>": 100259,
        "<|fim_suffix|>": 100260,
        "<|endofprompt|>": 100276,
    },
    "o200k_base": {"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
}
repeats = st.text("ab c'1é🙂\n", max_size=60)  # many ties, many overlaps, several bytes to a character
ROW = "a row of owls, a low row of low owls: wow! 🙂🙃 ÄÖÜ äöü naïve 1234 12 don't\n\n\tend "
OWL = BPETokenizer.train(ROW * 3, 320, special=["<|end|>", "<|end|>of"])


def one_line(error) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


# What it is held against ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ours():
    """Our tokenizer of an encoding's name, made once."""
    made = {}

    def give(name):
        if name not in made:
            made[name] = BPETokenizer.from_ranks(asset(name), PATTERNS[name], SPECIAL[name])
        return made[name]

    return give


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """tiktoken's encoding of a name; it finds its files, by the address they have, in a folder made for it."""
    tiktoken = pytest.importorskip("tiktoken", reason="tiktoken, of the extra `pretrained`, is not installed")
    folder = tmp_path_factory.mktemp("tiktoken")
    before = "https://openaipublic.blob.core.windows.net/"

    def put(address, content):
        (folder / hashlib.sha1((before + address).encode()).hexdigest()).write_bytes(content)

    def give(name):
        if name == "gpt2":
            vocab_bpe, encoder_json = gpt2_files(read_ranks(asset("r50k_base")))
            put("gpt-2/encodings/main/vocab.bpe", vocab_bpe)
            put("gpt-2/encodings/main/encoder.json", encoder_json)
        else:
            put(f"encodings/{name}.tiktoken", asset(name).read_bytes())
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
            return tiktoken.get_encoding(name)

    return give


def gpt2_files(ranks) -> tuple[bytes, bytes]:
    """vocab.bpe and encoder.json of GPT-2 as OpenAI published them, from the ranks that hold the same."""
    tokenizer = BPETokenizer.from_ranks(ranks, GPT2_PATTERN, SPECIAL["r50k_base"])
    lines = [" ".join(to_characters(tokenizer.vocab[i]) for i in pair) for pair in tokenizer.merges]
    numbers = {to_characters(token): rank for token, rank in ranks.items()} | SPECIAL["r50k_base"]
    return "\n".join(["#version: 0.2", *lines, ""]).encode(), json.dumps(numbers).encode()


def reference_trainer(texts, vocab_size):
    """`tokenizers` trained on texts: the library's tokenizer, and its merges as pairs of bytes."""
    library = importlib.import_module("tokenizers")
    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    merges = json.loads(made.to_str())["model"]["merges"]
    return made, [tuple(map(from_characters, pair)) for pair in merges]


def merges_of(tokenizer):
    return [(tokenizer.vocab[a], tokenizer.vocab[b]) for a, b in tokenizer.merges]


def naive_merges(text, count, best=lambda counts: min(counts, key=lambda pair: (-counts[pair], pair))):
    """The merges by counting everything anew for each."""
    words = [[BYTES.index(byte) for byte in chunk.encode()] for chunk in regex.findall(GPT2_PATTERN, text)]
    merges = []
    while len(merges) < count:
        counts = Counter(pair for word in words for pair in pairwise(word))
        if not counts:
            break
        pair = best(counts)
        words = [replayed(word, pair, 256 + len(merges)) for word in words]
        merges.append(pair)
    return merges


def replayed(word, pair, new):
    """One merge, everywhere in a word."""
    out = []
    for i in word:
        if out and (out[-1], i) == pair:
            out[-1] = new
        else:
            out.append(i)
    return out


def by_rank(tokenizer, text):
    """Ids by going through all merges in order, over each chunk."""
    single = {token[0]: i for i, token in enumerate(tokenizer.vocab) if len(token) == 1}
    place = {token: i for i, token in enumerate(tokenizer.vocab)}
    ids = []
    for chunk in regex.findall(tokenizer.pattern, text):
        word = [single[byte] for byte in chunk.encode()]
        for a, b in tokenizer.merges:
            word = replayed(word, (a, b), place[tokenizer.vocab[a] + tokenizer.vocab[b]])
        ids += word
    return ids


def from_the_left(tokenizer, text):
    """Not BPE: the longest token of the vocabulary that fits, again and again."""
    place = {token: i for i, token in enumerate(tokenizer.vocab)}
    ids = []
    for chunk in regex.findall(tokenizer.pattern, text):
        left = chunk.encode()
        while left:
            n = next(n for n in range(len(left), 0, -1) if left[:n] in place)
            ids.append(place[left[:n]])
            left = left[n:]
    return ids


def leftmost_first(tokenizer, text):
    """Not BPE either: of the pairs that can be merged always the first in the chunk."""
    place = {token: i for i, token in enumerate(tokenizer.vocab)}
    ids = []
    for chunk in regex.findall(tokenizer.pattern, text):
        word = [bytes([byte]) for byte in chunk.encode()]
        while pair := next((p for p in pairwise(word) if (place[p[0]], place[p[1]]) in set(tokenizer.merges)), None):
            k = list(pairwise(word)).index(pair)
            word[k : k + 2] = [pair[0] + pair[1]]
        ids += [place[token] for token in word]
    return ids


SCRIPTS = {
    "latin": [(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F), (0x1E00, 0x1EFF)],
    "greek": [(0x370, 0x3FF), (0x1F00, 0x1FFF)],
    "cyrillic": [(0x400, 0x52F)],
    "armenian": [(0x531, 0x58A)],
    "hebrew": [(0x591, 0x5F4)],
    "arabic": [(0x600, 0x6FF), (0xFB50, 0xFDFF)],
    "devanagari": [(0x900, 0x97F)],
    "bengali": [(0x980, 0x9FE)],
    "tamil": [(0xB82, 0xBFA)],
    "thai": [(0xE01, 0xE5B)],
    "tibetan": [(0xF00, 0xFDA)],
    "georgian": [(0x10A0, 0x10FF), (0x1C90, 0x1CBF)],
    "hangul": [(0x1100, 0x11FF), (0xAC00, 0xD7A3)],
    "ethiopic": [(0x1200, 0x139F)],
    "cherokee": [(0x13A0, 0x13FD), (0xAB70, 0xABBF)],
    "khmer": [(0x1780, 0x17F9)],
    "kana": [(0x3041, 0x30FF)],
    "han": [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF)],
    "gothic and cuneiform": [(0x10330, 0x1034A), (0x12000, 0x12399)],
    "title case": [(0x1C4, 0x1CC), (0x1F1, 0x1F3), (0x1F88, 0x1F8F)],
    "digits": [(0x30, 0x39), (0x660, 0x669), (0x966, 0x96F), (0xFF10, 0xFF19), (0x2150, 0x2189), (0x1D7CE, 0x1D7FF)],
    "marks": [(0x300, 0x36F), (0x20D0, 0x20F0), (0xFE00, 0xFE0F)],
    "signs": [(0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x2010, 0x205E), (0x2190, 0x23FF), (0x20A0, 0x20BF)],
    "controls": [(0, 0x1F), (0x7F, 0x9F), (0x200B, 0x200F), (0x2060, 0x2064), (0xFFF9, 0xFFFD)],
    "private and none": [(0xE000, 0xE100), (0xFFFE, 0xFFFF), (0x10FFF0, 0x10FFFF)],
}
BLANKS = [" "] * 12 + ["\n", "\n\n", "  ", "   ", "\t", "\r\n", "\r", "\v", "\f", "\x1c", "\x85", " \n ", "\n  \n"]
BLANKS += ["\u00a0", "\u2003", "\u2028", "\u2029", "\u3000", "\u200b", "\ufeff", "", "", "'", "-", ", ", ". "]
WHOLE = ["👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "👍🏽", "1️⃣", "e\u0301", "ﷺ", "ſ", "K", "İ", "don't", "I'LL", "we'Re", "'ſ", "x'S"]
WHOLE += ["if (x[i] != 0) { return -1; }", "def f(x):\n    return x**2\n", "https://a.b/c?d=e&f=%20#g", "3.14159e-10"]
WHOLE += [
    "<|endoftext|>",
    "<|endofprompt|>",
    "`\\n`",
    "////",
    "/*\n*/",
    "....\r\n",
    "12345678901",
    "aaaaaaaaaaaaaaaaaaaa",
]


def mixed(characters, seed=0):
    """Words of all scripts, each with what comes between words: the same text for the same seed."""
    dice = random.Random(seed)
    known = {
        name: [chr(c) for first, last in ranges for c in range(first, last + 1) if unicodedata.category(chr(c)) != "Cn"]
        for name, ranges in SCRIPTS.items()
    }
    known["private and none"] = [chr(c) for a, b in SCRIPTS["private and none"] for c in range(a, b + 1)]
    alphabets = list(known.values())
    parts, length = [], 0
    while length < characters:
        kind = dice.random()
        if kind < 0.06:
            word = dice.choice(WHOLE)
        elif kind < 0.1:  # all scripts in one word
            word = "".join(dice.choice(dice.choice(alphabets)) for _ in range(dice.randint(1, 12)))
        else:
            word = "".join(dice.choices(dice.choice(alphabets), k=dice.randint(1, 9)))
        parts += [word, dice.choice(BLANKS)]
        length += len(parts[-2]) + len(parts[-1])
    return "".join(parts)[:characters]


# Training -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab_size", [512, 1024, 2048, 8192])
def test_merges_are_those_of_tokenizers(vocab_size):
    """If this fails, page 15 teaches another algorithm than the one in use."""
    text = corpora.load("tinyshakespeare").text
    library, merges = reference_trainer([text], vocab_size)
    tokenizer = BPETokenizer.train(text, vocab_size)
    assert merges_of(tokenizer) == merges
    assert len(merges) == vocab_size - 256
    assert tokenizer.encode(text) == library.encode(text).ids
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(repeats, st.integers(0, 40))
def test_merges_of_any_text_are_those_of_tokenizers_and_of_counting_anew(text, count):
    """If this fails, counts that are kept up to date drift away from the truth."""
    _, merges = reference_trainer([text], 256 + count)
    ours = learn_merges({c.encode(): n for c, n in Counter(regex.findall(GPT2_PATTERN, text)).items()}, count)
    assert ours == naive_merges(text, count)
    vocab = [bytes([byte]) for byte in BYTES]
    for (a, b), expected in zip(ours, merges, strict=True):
        assert (vocab[a], vocab[b]) == expected
        vocab.append(vocab[a] + vocab[b])


def test_another_rule_for_ties_is_caught():
    """If this fails, the texts above have no ties, and any rule would pass."""
    text = corpora.load("tinyshakespeare").text[:20_000]
    first_seen = naive_merges(text, 40, best=lambda counts: max(counts, key=counts.get))
    larger = naive_merges(text, 40, best=lambda counts: max(counts, key=lambda pair: (counts[pair], pair)))
    right = naive_merges(text, 40)
    assert merges_of(BPETokenizer.train(text, 296)) == reference_trainer([text], 296)[1]
    assert BPETokenizer.train(text, 296).merges == right
    assert right not in (first_seen, larger)


def test_the_vocabulary_of_a_short_text_is_smaller():
    """If this fails, training runs out of pairs and fails, or invents tokens."""
    tokenizer = BPETokenizer.train("aaaa", 1000)
    assert tokenizer.vocab[256:] == [b"aa", b"aaaa"]
    assert tokenizer.vocab_size == 258
    assert BPETokenizer.train("abc", 256).merges == []
    with_special = BPETokenizer.train("aaaa", 258, special=["<|end|>"])
    assert with_special.vocab[256:] == [b"aa", b"<|end|>"]
    assert with_special.special == {"<|end|>": 257}


@pytest.mark.parametrize(
    ("text", "size", "special", "words"),
    [
        ("", 300, (), "empty"),
        ("ab", 255, (), "at least 256"),
        ("ab", 257, ("x", "y"), "at least 258"),
        ("ab", 300.0, (), "whole number"),
        ("ab", True, (), "whole number"),
        (b"ab", 300, (), "must be a string"),
        ("a\ud800", 300, (), "position 1"),
        ("ab", 300, ("",), "needs a name"),
        ("ab", 300, ("x", "x"), "same id|distinct|twice"),
    ],
)
def test_train_refuses_nonsense(text, size, special, words):
    """If this fails, a vocabulary of nothing comes into being and the model fails later, elsewhere."""
    with pytest.raises((ValueError, TypeError), match=words) as error:
        BPETokenizer.train(text, size, special=special)
    one_line(error)


# Encoding -------------------------------------------------------------------------------------------------------------


@given(repeats, st.text())
def test_encoding_is_by_rank(text, other):
    """If this fails, the same text gives other ids than the vocabulary was made for."""
    tokenizer = BPETokenizer.train(text + "ab", 280)
    for string in (text, other, text * 3):
        assert tokenizer.encode(string) == by_rank(tokenizer, string)
        assert tokenizer.decode(tokenizer.encode(string)) == string
        assert b"".join(tokenizer.tokens(string)) == string.encode()


@pytest.mark.parametrize("wrong", [from_the_left, leftmost_first])
def test_going_from_left_to_right_is_caught(wrong):
    """If this fails, the tests of encoding cannot tell BPE from a shorter way to a round trip."""
    tokenizer = BPETokenizer([b"a", b"b", b"c", b"bc", b"ab"], [(1, 2), (0, 1)])
    assert (tokenizer.tokens("abc"), wrong(tokenizer, "abc")) == ([b"a", b"bc"], [4, 2])
    text = corpora.load("tinyshakespeare").text[:4_000]
    larger = BPETokenizer.train(text, 400)
    assert larger.encode(text) == by_rank(larger, text) == reference_trainer([text], 400)[0].encode(text).ids
    assert wrong(larger, text) != larger.encode(text)
    assert larger.decode(wrong(larger, text)) == text


@pytest.mark.parametrize(("name", "count"), [("r50k_base", 56), ("cl100k_base", 38), ("o200k_base", 27)])
def test_the_reference_sentence(ours, theirs, name, count):
    """If this fails, the chips of page 15 show other tokens than the models get."""
    ids = ours(name).encode(SENTENCE)
    assert len(ids) == count
    assert ids == theirs(name).encode(SENTENCE)
    assert ours(name).decode(ids) == SENTENCE
    assert ours(name).vocab_size == theirs(name).n_vocab


@pytest.mark.parametrize("name", ["gpt2", "r50k_base", "cl100k_base", "o200k_base"])
def test_a_million_characters_of_mixed_scripts(ours, theirs, name):
    """If this fails, "equal to tiktoken" on page 15 is not true."""
    from pydoc_data.topics import topics

    mine, reference = ours("r50k_base" if name == "gpt2" else name), theirs(name)
    texts = [
        mixed(1_000_000 if name == "gpt2" else 250_000, seed=len(name)),
        corpora.load("tinyshakespeare").text,
        "\n".join(topics.values()),
    ]
    for text in texts:
        ids = mine.encode(text)
        assert ids == reference.encode(text, disallowed_special=())
        assert mine.decode(ids) == text


@pytest.mark.parametrize("name", PATTERNS)
@settings(max_examples=300)
@given(text=st.text(st.characters(max_codepoint=0x3000, categories=["L", "M", "N", "P", "S", "Z", "Cc"])))
def test_any_text_of_assigned_characters(ours, theirs, name, text):
    """If this fails, some short text is encoded otherwise than by tiktoken."""
    text = text.replace("\u0295", "")  # see the next test
    assert ours(name).encode(text) == theirs(name).encode(text, disallowed_special=())


@pytest.mark.parametrize("name", PATTERNS)
def test_only_characters_that_one_side_does_not_know_differ(ours, theirs, name):
    """If this fails, the two engines disagree on more than the version of Unicode that they were made for."""
    tiktoken = importlib.import_module("tiktoken")
    single = {bytes([byte]): byte for byte in range(256)}
    unknown = tiktoken.Encoding("unassigned", pat_str=r"\p{Cn}", mergeable_ranks=single, special_tokens={})
    ours_unknown, reference, mine = regex.compile(r"\p{Cn}"), theirs(name), ours(name)
    differ = []
    for start in range(0, 0x110000, 64):
        # Of the large uniform blocks (Han, Hangul, private use) one piece in thirty will do.
        large = 0x3400 <= start < 0xA000 or 0xAC00 <= start < 0xD7A0 or 0xE000 <= start < 0xF900 or start >= 0x20000
        if 0xD800 <= start < 0xE000 or (large and start // 64 % 30):
            continue
        # Where a letter, a digit and a sign behave each in its own way: 's stands alone behind a letter only.
        strings = [f"{chr(c)}'s {chr(c)}12345" for c in range(start, start + 64)]
        if mine.encode("".join(strings)) != reference.encode("".join(strings)):
            differ += [s[0] for s in strings if mine.encode(s) != reference.encode(s)]
    assert differ  # else nothing is compared
    known = [c for c in differ if not unknown.encode_ordinary(c) and not ours_unknown.match(c)]
    assert known in ([], ["\u0295"])  # it became a letter without case in Unicode 17


@pytest.mark.parametrize("name", PATTERNS)
def test_a_very_long_chunk(ours, theirs, name):
    """If this fails, a text without blanks takes minutes, or comes out otherwise."""
    dice = random.Random(1)
    letters = "".join(dice.choice("abcdefghij") for _ in range(60_000))
    for text in ("a" * 100_000, letters, " " * 50_000 + "x", "\n" * 30_000, "=" * 50_000, "漢" * 20_000):
        assert ours(name).encode(text) == theirs(name).encode(text)


def test_what_is_remembered_is_bounded(monkeypatch):
    """If this fails, encoding a large text fills the memory."""
    tokenizer = BPETokenizer.train(ROW, 300)
    monkeypatch.setattr(tokenizers, "REMEMBERED", 10)
    text = "x" * 5000 + "".join(f" w{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(504))
    assert tokenizer.encode(text) == by_rank(tokenizer, text)
    assert 0 < len(tokenizer._cache) <= 10
    assert max(map(len, tokenizer._cache)) < 100


@pytest.mark.parametrize(
    ("text", "words"),
    [("ab\ud83d", r"U\+D83D at position 2"), ("\udc00", r"U\+DC00 at position 0"), (b"ab", "must be a string")],
)
def test_what_is_no_text_is_refused(text, words):
    """If this fails, half a character becomes another one, silently: what `tiktoken` does."""
    with pytest.raises((ValueError, TypeError), match=words) as error:
        OWL.encode(text)
    one_line(error)


def test_a_byte_without_a_token_is_named():
    """If this fails, a vocabulary that lacks bytes, as SmolLM2's does, drops characters or raises KeyError."""
    tokenizer = BPETokenizer([b"a", b"b", b"ab"], [(0, 1)])
    assert tokenizer.encode("abba") == [2, 1, 0]
    with pytest.raises(ValueError, match=r"'abc' has the byte 0x63") as error:
        tokenizer.encode("abc")
    one_line(error)


def test_a_pattern_that_passes_over_text_is_refused():
    """If this fails, characters get lost without a word."""
    with pytest.raises(ValueError, match="passes over"):
        BPETokenizer(OWL.vocab[:256], [], r"\p{L}+").encode("ab cd")
    assert BPETokenizer(OWL.vocab[:256], [], r"\p{L}+").encode("abcd")


# Special tokens -------------------------------------------------------------------------------------------------------


def test_special_tokens_come_only_where_they_are_allowed():
    """If this fails, whoever writes a prompt can end the document that the model believes it reads."""
    end, of = OWL.special["<|end|>"], OWL.special["<|end|>of"]
    text = "row<|end|> owl<|end|>of<|end|"
    plain = OWL.encode(text)
    assert not {end, of} & set(plain)
    assert OWL.decode(plain) == text
    row, owl, rest = OWL.encode("row"), OWL.encode(" owl"), OWL.encode("<|end|")
    assert OWL.encode(text, allowed_special="all") == [*row, end, *owl, of, *rest]
    assert OWL.encode(text, allowed_special={"<|end|>"}) == [*row, end, *owl, end, *OWL.encode("of<|end|")]
    assert OWL.encode(text, allowed_special=["<|end|>of"])[-len(rest) - 1] == of
    for allowed in ((), {"<|end|>"}, "all"):
        assert OWL.decode(OWL.encode(text, allowed_special=allowed)) == text
    assert OWL.encode("<|end|>" * 2, allowed_special="all") == [end, end]


@pytest.mark.parametrize("name", PATTERNS)
def test_special_tokens_are_those_of_tiktoken(ours, theirs, name):
    """If this fails, text with special tokens reaches a model in another form than it was trained on."""
    for text in (
        "a <|endoftext|> b",
        "  <|endoftext|>\n\n<|endofprompt|>  <|fim_prefix|>x <|endo",
        "<|endoftext|>" * 3,
    ):
        for allowed in ("all", {"<|endoftext|>"}):
            mine = ours(name).encode(text, allowed_special=allowed)
            assert mine == theirs(name).encode(text, allowed_special=allowed, disallowed_special=())
            assert ours(name).decode(mine) == text
    assert ours(name).special == theirs(name)._special_tokens


@pytest.mark.parametrize("wrong", ["<|end|>", {"<|none|>"}, ["<|end|>", "x"]])
def test_special_tokens_that_do_not_exist_are_named(wrong):
    """If this fails, a misspelt special token is text, silently."""
    with pytest.raises(ValueError, match="special") as error:
        OWL.encode("x", allowed_special=wrong)
    one_line(error)


# Decoding -------------------------------------------------------------------------------------------------------------


rows = st.lists(st.integers(0, OWL.vocab_size - 1), max_size=30)


@given(rows)
def test_every_row_of_ids_gives_its_bytes(ids):
    """If this fails, what a model draws cannot be shown."""
    assert OWL.decode_bytes(ids) == b"".join([OWL.vocab[i] for i in ids])
    assert OWL.decode(ids) == OWL.decode_bytes(ids).decode("utf-8", errors="replace")
    assert OWL.decode(torch.tensor(ids, dtype=torch.long)) == OWL.decode(ids)


@given(st.binary(max_size=30))
def test_every_row_of_bytes_has_ids(wild):
    """If this fails, some byte has no token."""
    place = {byte: i for i, byte in enumerate(BYTES)}
    assert OWL.decode_bytes([place[byte] for byte in wild]) == wild


@pytest.mark.parametrize("wrong", [-1, OWL.vocab_size, 10**20])
def test_decode_refuses_what_is_no_token(wrong):
    """If this fails, id -1 reads as the last token, and a model with too many tokens is not noticed."""
    for method in (OWL.decode, OWL.decode_bytes):
        with pytest.raises(ValueError, match=rf"outside 0\.\.{OWL.vocab_size - 1}") as error:
            method([0, wrong])
        assert f"{wrong} at position 1" in one_line(error)
    with pytest.raises(ValueError, match="outside"):
        OWL.stream().push(wrong)


def test_a_number_without_a_token_is_no_token(ours):
    """If this fails, numbers that an encoding leaves out read as nothing."""
    with pytest.raises(ValueError, match="100256 at position 1 is a number without a token") as error:
        ours("cl100k_base").decode([0, 100256])
    one_line(error)


@pytest.mark.parametrize("wrong", [torch.zeros(2, 3, dtype=torch.long), torch.zeros(2), [0.0], ["0"], 3])
def test_decode_refuses_what_is_no_row(wrong):
    """If this fails, a whole batch or a row of floats is decoded to something."""
    with pytest.raises(TypeError, match="one row of whole numbers") as error:
        OWL.decode(wrong)
    one_line(error)


@given(rows | st.lists(st.sampled_from([i for i, token in enumerate(OWL.vocab) if token[0] >= 0x80]), max_size=30))
def test_a_stream_gives_what_decode_gives(ids):
    """If this fails, text that is written as it comes differs from the text as a whole."""
    stream = OWL.stream()
    for _ in range(2):  # after `finish` it can be used again
        assert "".join([*map(stream.push, ids), stream.finish()]) == OWL.decode(ids)


@given(st.text("aé漢🙂\U0010fffd", max_size=12))
def test_a_stream_gives_each_character_as_soon_as_it_is_whole(text):
    """If this fails, half an emoji shows, or the last word of a text stays hidden."""
    stream, ids, given_so_far = OWL.stream(), OWL.encode(text), ""
    for k, i in enumerate(ids):
        given_so_far += stream.push(i)
        so_far = OWL.decode_bytes(ids[: k + 1])
        whole = max(n for n in range(len(text) + 1) if so_far.startswith(text[:n].encode()))
        assert given_so_far == text[:whole]
    assert stream.finish() == ""


def test_decoding_one_id_at_a_time_is_caught():
    """If this fails, the tests of the stream have no character that is cut."""
    ids = OWL.encode("🦉")
    assert len(ids) > 1
    assert "".join([OWL.decode([i]) for i in ids]) == "\ufffd" * len(ids) != OWL.decode(ids)
    stream = OWL.stream()
    assert [stream.push(i) for i in ids] == [""] * (len(ids) - 1) + ["🦉"]
    assert stream.push(ids[0]) == ""
    assert stream.finish() == "\ufffd"


def test_labels():
    """If this fails, tables of tokens show blanks that nobody sees, or half characters."""
    tokenizer = BPETokenizer([b" the", b"\n\n", b"\xf0\x9f", b"a\tb", b"\x00", b"\xe2\x80\x8b", "é".encode()], [])
    assert [tokenizer.show(i) for i in range(7)] == ["␣the", "↵↵", "⟨f0 9f⟩", "a⇥b", "⟨U+0000⟩", "⟨U+200B⟩", "é"]
    with pytest.raises(ValueError, match="outside"):
        tokenizer.show(-1)


# Vocabularies from elsewhere ------------------------------------------------------------------------------------------


def test_bytes_as_visible_characters():
    """If this fails, vocabularies of a hub are read wrongly. The oracles: `tokenizers`, and OpenAI's description."""
    library = importlib.import_module("tokenizers").pre_tokenizers.ByteLevel
    everything = bytes(range(256))
    assert sorted(to_characters(everything)) == sorted(library.alphabet())
    for byte in range(0x21, 0x7F):
        assert to_characters(bytes([byte])) == chr(byte)
    text = "".join(map(chr, [*range(0x80), *range(0xA0, 0x800, 7)]))
    pieces = library(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    assert to_characters(text.encode()) == "".join(piece for piece, _ in pieces)
    assert from_characters(to_characters(everything)) == everything
    assert to_characters(b" the\n") == "ĠtheĊ"
    with pytest.raises(ValueError, match="stands for no byte"):
        from_characters("a b")


def test_gpt2_files_come_out_byte_for_byte():
    """If this fails, merges are not those that the ranks come from. The oracle is the sum that tiktoken asks for."""
    vocab_bpe, encoder_json = gpt2_files(read_ranks(asset("r50k_base")))
    expected = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
    assert hashlib.sha256(vocab_bpe).hexdigest() == expected
    expected = "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
    assert hashlib.sha256(encoder_json).hexdigest() == expected


def test_the_files_of_a_hub_give_the_same_tokenizer(ours):
    """If this fails, `pretrained` reads GPT-2's vocab.json and merges.txt wrongly."""
    mine = ours("r50k_base")
    vocab_bpe, encoder_json = gpt2_files(read_ranks(asset("r50k_base")))
    numbers = json.loads(encoder_json)
    merges = vocab_bpe.decode().splitlines()[1:]
    tokens = sorted(numbers, key=numbers.get)
    assert BPETokenizer.from_printable(tokens, merges, GPT2_PATTERN, {"<|endoftext|>": 50256}) == mine
    pairs = [merge.split() for merge in merges]
    assert BPETokenizer.from_printable(tokens, pairs, GPT2_PATTERN, {"<|endoftext|>": 50256}) == mine


def test_ids_need_not_be_in_the_order_of_merges():
    """If this fails, a vocabulary with its special tokens first, such as SmolLM2's, is encoded by id, not by rank."""
    tokens = ["<|end|>", "abc", "ab", "bc", "c", "b", "a", "Ġ"]
    tokenizer = BPETokenizer.from_printable(tokens, ["b c", "a b", "a bc"], GPT2_PATTERN, {"<|end|>": 0})
    assert tokenizer.encode("abc ab") == [1, 7, 2]
    assert tokenizer.encode("abab") == [2, 2]
    assert tokenizer.decode([0, 1]) == "<|end|>abc"
    other = BPETokenizer.from_printable(tokens, ["a b", "b c", "a bc"], GPT2_PATTERN, {"<|end|>": 0})
    assert other.encode("abc") == [2, 4]


@pytest.mark.parametrize(
    ("tokens", "merges", "words"),
    [
        (["a", "b"], ["a b"], "makes b'ab', which is not in the vocabulary"),
        (["a", "b", "ab"], ["a c"], "merge 0, 'a c'"),
        (["a", "b", "ab"], ["a b c"], "merge 0"),
        (["a", "b", "ab"], ["ab a", "a b"], "merge 0"),
        (["a", "b", "ab"], [7], "merge 0, 7"),
        (["a", "a"], [], "comes twice"),
        (["a b"], [], "stands for no byte"),
        ([], [], "at least one token"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_refused(tokens, merges, words):
    """If this fails, a damaged vocabulary gives ids that are silently wrong."""
    with pytest.raises(ValueError, match=words) as error:
        BPETokenizer.from_printable(tokens, merges, GPT2_PATTERN)
    one_line(error)


@pytest.mark.parametrize(
    ("special", "words"),
    [
        ({"<|x|>": 0}, "which is that of b'a'"),
        ({"<|x|>": -1}, "near the vocabulary"),
        ({"<|x|>": 10**15}, "near the vocabulary"),
        ({"": 3}, "needs a name"),
        ({"<|x|>": 3, "<|y|>": 3}, "which is that of"),
        ({"<|x|>": "3"}, "names with their ids"),
        ({7: 3}, "names with their ids"),
    ],
)
def test_special_tokens_that_do_not_fit_are_refused(special, words):
    """If this fails, a special token takes the place of another one, or the memory of the machine."""
    with pytest.raises((ValueError, TypeError), match=words) as error:
        BPETokenizer([b"a", b"b"], [], special=special)
    one_line(error)


@pytest.mark.parametrize("pattern", ["(", r"(\p{L}+)|.", "[a"])
def test_a_pattern_that_is_none_is_refused(pattern):
    """If this fails, the error comes from another library, or chunks are what a group holds."""
    with pytest.raises(ValueError, match="pattern") as error:
        BPETokenizer([b"a"], [], pattern)
    one_line(error)


@settings(max_examples=300)
@given(st.text("a1٣½ 'sl\n\té!", max_size=12))
def test_smollm2_sets_each_digit_apart(text):
    """If this fails, numbers reach SmolLM2 in other pieces than it learned. The oracle chains what its file names."""
    library = importlib.import_module("tokenizers").pre_tokenizers
    steps = [library.Digits(individual_digits=True), library.ByteLevel(add_prefix_space=False)]
    expected = [piece for piece, _ in library.Sequence(steps).pre_tokenize_str(text)]
    assert [to_characters(chunk.encode()) for chunk in regex.findall(SMOLLM2_PATTERN, text)] == expected


def test_the_plain_pattern_would_not_do_for_smollm2():
    """If this fails, the test above has no text in which the two patterns differ."""
    for text in ("in 1984", "a  1", "12"):
        assert regex.findall(SMOLLM2_PATTERN, text) != regex.findall(GPT2_PATTERN, text)


# Files of ranks -------------------------------------------------------------------------------------------------------


def lines_of(tokens):
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


def test_ranks_tell_the_merges(tmp_path):
    """If this fails, a vocabulary from a rank file is another one than that which was written."""
    path = tmp_path / "owl.tiktoken"
    path.write_bytes(lines_of(OWL.vocab[:-2]))
    again = BPETokenizer.from_ranks(path, GPT2_PATTERN, OWL.special)
    assert again == OWL
    assert again == BPETokenizer.from_ranks(read_ranks(path), GPT2_PATTERN, OWL.special)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"YQ== 0\n<html>\n", "line 2"),
        (b"YQ== 0\nY 1\n", "line 2"),
        (b"YQ== 0\nYg== -1\n", "line 2"),
        (b"YQ== 0\nYg== one\n", "line 2"),
        (b"YQ== 0\nYg== 1 2\n", "line 2"),
        (b"YQ== 0\n 1\n", "line 2"),
        (b"YQ== 0\nYQ== 1\n", "line 2.*before"),
        (b"YQ== 0\nYg== 0\n", "line 2.*before"),
        (b"YQ== 0\nYg== 99999999999999999999\n", "line 2"),
        (b"YQ== 0\n\xff\xfe 1\n", "line 2"),
        (b"YQ== 0\nYg== 2\n", "rank 1"),
        (b"", "rank 0"),
        (b"YQ== 0\nYWI= 1\n", r"b'ab' needs the byte b'b'"),
        (b"YQ== 0\nYg== 1\nYWFh 2\n", r"b'aaa', rank 2, is no pair"),
    ],
)
def test_a_file_that_holds_no_ranks_is_refused(tmp_path, content, words):
    """If this fails, a page that came in place of the file, or half of it, becomes a vocabulary."""
    path = tmp_path / "ranks.tiktoken"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words) as error:
        BPETokenizer.from_ranks(path, GPT2_PATTERN)
    one_line(error)


def test_a_missing_file_of_ranks_is_named(tmp_path):
    """If this fails, the reader does not learn which file is missing."""
    with pytest.raises(ValueError, match=r"nothing\.tiktoken: No such file"):
        read_ranks(tmp_path / "nothing.tiktoken")


# Kept in a file -------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(text=repeats, special=st.lists(st.text(st.characters(codec="utf-8"), min_size=1), max_size=2, unique=True))
def test_saved_and_loaded_is_the_same(tmp_path_factory, text, special):
    """If this fails, a saved model reads and writes other tokens than it was trained on."""
    path = tmp_path_factory.getbasetemp() / "bpe.json"
    tokenizer = BPETokenizer.train(text + "ab", 280, special=special)
    tokenizer.save(path)
    for again in (BPETokenizer.load(path), tokenizers.load(path), tokenizers.from_dict(tokenizer.to_dict())):
        assert again == tokenizer
        assert again.encode(text, "all") == tokenizer.encode(text, "all")
    assert path.read_bytes().isascii()


def test_both_kinds_are_told_apart(tmp_path):
    """If this fails, a run is read with the wrong kind of tokenizer."""
    characters = CharTokenizer.train("abc")
    characters.save(tmp_path / "characters.json")
    assert tokenizers.load(tmp_path / "characters.json") == characters
    assert tokenizers.from_dict(OWL.to_dict()) == OWL != characters
    with pytest.raises(ValueError, match="tokenizer"):
        CharTokenizer.from_dict(OWL.to_dict())
    with pytest.raises(ValueError, match="tokenizer"):
        BPETokenizer.from_dict(characters.to_dict())


def test_different_tokenizers_are_not_equal():
    """If this fails, equality in the tests above means nothing."""
    vocab = [b"a", b"b", b"c", b"ab", b"bc"]
    one = BPETokenizer(vocab, [(0, 1), (1, 2)])
    assert one == BPETokenizer(vocab, [(0, 1), (1, 2)])
    assert one != BPETokenizer(vocab, [(1, 2), (0, 1)])
    assert one != BPETokenizer(vocab, [(0, 1), (1, 2)], CL100K_PATTERN)
    assert one != BPETokenizer(vocab, [(0, 1), (1, 2)], special={"<|end|>": 5})


@pytest.mark.parametrize(
    "change",
    [
        {"type": "characters"},
        {"type": None},
        {"vocab": None},
        {"vocab": ["a", 1]},
        {"vocab": ["a b"]},
        {"vocab": []},
        {"merges": [[0, 1, 2]]},
        {"merges": [[0, "1"]]},
        {"merges": [0]},
        {"merges": [[0, [1]]]},
        {"merges": {"0": 1}},
        {"merges": [[0, 10**9]]},
        {"merges": [[-1, 0]]},
        {"merges": [[0, 1]] * 2 + [[True, 0]]},
        {"pattern": "("},
        {"pattern": 1},
        {"special": {"x": "y"}},
        {"special": {"x": 10**12}},
        {"special": ["x"]},
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, change):
    """If this fails, a damaged file gives a tokenizer that is silently wrong, or a traceback without a file name."""
    about = {"type": "bpe", "vocab": ["a", "b", "ab"], "merges": [[0, 1]], "pattern": GPT2_PATTERN, "special": {}}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(about), encoding="utf-8")
    assert tokenizers.load(path).encode("abb") == [2, 1]
    path.write_text(json.dumps(about | change), encoding="utf-8")
    with pytest.raises(ValueError, match="tokenizer") as error:
        tokenizers.load(path)
    assert str(path) in one_line(error)
