"""Text to numbers and back: one number for each character, or one for each frequent piece of a word.

A piece is found by byte-pair encoding (Gage 1994; for text Sennrich, Haddow and Birch 2016; on bytes Radford and others
2019, GPT-2): start with single bytes, and join the most frequent pair of neighbours again and again.

Left out: vocabularies chosen by probability instead of by counting (Unigram, WordPiece).
"""

import base64
import binascii
import codecs
import json
import os
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import pairwise
from operator import index
from pathlib import Path

import regex  # unlike `re`, it knows the classes of Unicode: \p{L} letters, \p{N} digits, \p{M} marks

UNKNOWN = "\ufffd"  # Unicode's own sign for "no such character"


class _Tokenizer:
    """What both kinds share: a file, equality, and the check of what is to be decoded."""

    @property
    def vocab_size(self) -> int:
        raise NotImplementedError

    def save(self, path):
        """Write the tokenizer to a JSON file, in one step: a reader finds the old file or the new one."""
        path = Path(path)
        aside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
        try:
            # Escapes keep the file readable under any encoding, and carry characters that UTF-8 cannot.
            aside.write_text(json.dumps(self.to_dict(), ensure_ascii=True) + "\n", encoding="utf-8")
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    @classmethod
    def load(cls, path):
        """The tokenizer that `save` wrote. Raises ValueError naming the file if it is missing or something else."""
        return _load(path, cls.from_dict)

    def _checked(self, ids) -> list[int]:
        """Token ids as a list, each within 0..V-1."""
        ids = ids.tolist() if hasattr(ids, "tolist") else ids
        try:
            ids = [index(i) for i in ids]  # a float, or a row inside a row, is no place in a list
        except TypeError:
            raise TypeError("token ids must be one row of whole numbers: for a batch (B, T) decode each row") from None
        for position, i in enumerate(ids):
            if not 0 <= i < self.vocab_size:  # a negative one would count from the end of the list
                raise ValueError(
                    f"token id {i} at position {position} is outside 0..{self.vocab_size - 1}: "
                    "model and tokenizer belong to different vocabularies"
                )
        return ids

    def __eq__(self, other):
        return type(other) is type(self) and self.to_dict() == other.to_dict()

    __hash__ = None  # it compares by value, and the value is a list


class CharTokenizer(_Tokenizer):
    """One token for each character; a token's number is its place in `symbols`.

    >>> tokenizer = CharTokenizer.train("hello")
    >>> tokenizer.symbols, tokenizer.encode("hole")
    (['e', 'h', 'l', 'o'], [1, 3, 2, 0])

    With `unknown`, one of the symbols, that one stands for every character that has no number of its own. Raises
    ValueError or TypeError if the symbols are not distinct single characters.
    """

    def __init__(self, symbols: Iterable[str], unknown: str | None = None):
        self.symbols = list(symbols)
        for symbol in self.symbols:
            if not isinstance(symbol, str):
                raise TypeError(f"a symbol must be a character, got {symbol!r}")
            if len(symbol) != 1:
                raise ValueError(f"a symbol must be one character, got {symbol!r}")
        self._ids = {symbol: i for i, symbol in enumerate(self.symbols)}
        if not self.symbols:
            raise ValueError("a vocabulary needs at least one symbol")
        if len(self._ids) < len(self.symbols):
            twice = next(symbol for symbol, count in Counter(self.symbols).items() if count > 1)
            raise ValueError(f"the symbols of a vocabulary must be distinct, {twice!r} comes twice")
        if unknown is not None and unknown not in self._ids:
            raise ValueError(f"the sign for unknown characters must be one of the symbols, got {unknown!r}")
        self.unknown = unknown

    @classmethod
    def train(cls, text: str, vocab_size: int | None = None) -> "CharTokenizer":
        """The vocabulary of a text: its distinct characters, in the order of their numbers in Unicode.

        If there are more than `vocab_size` of them, the most frequent stay (of equally frequent ones the first in
        Unicode), and one sign, U+FFFD, stands for all others; if there are fewer, the vocabulary is smaller. Give it
        the whole text: a character that only the validation part has needs a number too.
        """
        _must_be_text(text)
        if not text:
            raise ValueError("an empty text has no characters to make a vocabulary of")
        counts = Counter(text)
        if vocab_size is None:
            return cls(sorted(counts))
        if isinstance(vocab_size, bool) or not isinstance(vocab_size, int):
            raise TypeError(f"vocab_size must be a whole number, got {vocab_size!r}")
        if vocab_size < 1:
            raise ValueError(f"vocab_size must be at least 1, got {vocab_size}")
        if len(counts) <= vocab_size:
            return cls(sorted(counts))
        del counts[UNKNOWN]  # where the text itself has the sign, it means the same
        kept = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))[: vocab_size - 1]
        return cls([*sorted(kept), UNKNOWN], unknown=UNKNOWN)

    @property
    def vocab_size(self) -> int:
        """The number of symbols, V."""
        return len(self.symbols)

    def encode(self, text: str) -> list[int]:
        """The number of each character of a text.

        Raises ValueError naming the first character without a number, unless a sign stands for such characters.
        """
        _must_be_text(text)
        if self.unknown is not None:
            unknown = self._ids[self.unknown]
            return [self._ids.get(character, unknown) for character in text]
        try:
            return [self._ids[character] for character in text]
        except KeyError as missing:
            character = missing.args[0]
            raise ValueError(
                f"the character {character!r} (U+{ord(character):04X}) at position {text.index(character)} is not "
                f"among the {self.vocab_size} of the vocabulary: leave it out, or train on a text that has it"
            ) from None

    def decode(self, ids: Iterable[int]) -> str:
        """The text behind token ids: a list, an array or a tensor of shape (N,).

        Raises ValueError naming the first id outside 0..V-1, TypeError for what is not a row of whole numbers.
        """
        return "".join([self.symbols[i] for i in self._checked(ids)])

    def to_dict(self) -> dict:
        """A JSON object that `from_dict` makes an equal tokenizer of."""
        return {"type": "characters", "symbols": list(self.symbols), "unknown": self.unknown}

    @classmethod
    def from_dict(cls, about: dict) -> "CharTokenizer":
        """The tokenizer that `to_dict` described. Raises ValueError if it does not describe one."""
        if (
            not isinstance(about, dict)
            or about.get("type") != "characters"
            or not isinstance(about.get("symbols"), list)
        ):
            raise ValueError("this is no description of a character tokenizer")
        try:
            return cls(about["symbols"], about.get("unknown"))
        except TypeError as error:
            raise ValueError(str(error)) from None

    def __repr__(self):
        return f"CharTokenizer({self.vocab_size} symbols)"


# Byte-pair encoding ---------------------------------------------------------------------------------------------------

# A text is first cut into chunks, and no token crosses a cut: a blank sticks to the word behind it, letters, digits and
# signs do not mix. Each pattern gives the chunks that models of that vocabulary were trained on.
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SMOLLM2_PATTERN = (  # GPT-2's, after each digit has been set apart: it takes no blank along
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?=\p{N})|\s+(?!\S)|\s+"
)

REMEMBERED = 2**16  # chunks whose ids a tokenizer keeps


def _byte_order() -> list[int]:
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return visible + [byte for byte in range(256) if byte not in visible]


# GPT-2 numbers the bytes that are visible characters of Latin-1 first. Files of vocabularies write each byte as one
# character: those as themselves, the other 68 as U+0100 and on, so that a blank, for example, reads Ġ.
BYTES = _byte_order()
BYTE_TO_CHARACTER = {byte: chr(byte if i < 188 else 256 + i - 188) for i, byte in enumerate(BYTES)}
_CHARACTER_TO_BYTE = {character: byte for byte, character in BYTE_TO_CHARACTER.items()}


def to_characters(token: bytes) -> str:
    """A token as files of vocabularies write it, one visible character for each byte: b" the" is "Ġthe"."""
    return "".join([BYTE_TO_CHARACTER[byte] for byte in token])


def from_characters(token: str) -> bytes:
    """The bytes that `to_characters` wrote. Raises ValueError for a character that stands for no byte."""
    if not isinstance(token, str):
        raise ValueError(f"a token must be a string, got {token!r}")
    try:
        return bytes([_CHARACTER_TO_BYTE[character] for character in token])
    except KeyError as error:
        raise ValueError(f"the token {token!r} has {error.args[0]!r}, which stands for no byte") from None


def learn_merges(chunks: dict[bytes, int], count: int) -> list[tuple[int, int]]:
    """The first `count` merges of byte-pair encoding for chunks with their frequencies, or as many as there are.

    Bytes are numbered by their place in `BYTES`, the result of merge number m is token 256 + m. Each time the most
    frequent pair of neighbours is joined; among equally frequent ones that with the smaller numbers.
    """
    place = {byte: i for i, byte in enumerate(BYTES)}
    words = [([place[byte] for byte in chunk], times) for chunk, times in chunks.items()]
    counts, where = Counter(), defaultdict(set)  # of each pair: how often it comes, in which words
    for w, (ids, times) in enumerate(words):
        for pair in pairwise(ids):
            counts[pair] += times
            where[pair].add(w)
    heap = [(-n, pair) for pair, n in counts.items()]
    heapify(heap)
    merges = []
    while heap and len(merges) < count:
        n, best = heappop(heap)
        if -n > counts[best]:  # other merges have used some up since this was put down
            if counts[best]:
                heappush(heap, (-counts[best], best))
            continue
        new, born = 256 + len(merges), set()
        merges.append(best)
        for w in where.pop(best):
            ids, times = words[w]
            for pair in pairwise(ids):
                counts[pair] -= times
            ids[:] = _replaced(ids, best, new)
            for pair in pairwise(ids):
                counts[pair] += times
                if new in pair:
                    where[pair].add(w)
                    born.add(pair)
        for pair in born:  # no other count can have grown
            heappush(heap, (-counts[pair], pair))
    return merges


def _replaced(ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
    """The ids with each occurrence of a pair, from left to right, replaced by one new id."""
    out, i = [], 0
    while i < len(ids):
        if i + 1 < len(ids) and (ids[i], ids[i + 1]) == pair:
            out.append(new)
            i += 2
        else:
            out.append(ids[i])
            i += 1
    return out


def apply_merges(ids: list[int], merges: dict[tuple[int, int], tuple[int, int]]) -> list[int]:
    """The ids of a chunk's bytes after all merges: the earliest one that fits first, the leftmost place first.

    `merges` gives for a pair its rank and the id that replaces it. A heap holds the pairs that can be merged, and each
    place knows its neighbours, so that N bytes take N log N steps, however long the chunk.
    """
    end = len(ids)
    ids = [*ids, None]  # pairs with None are no merge, so the end needs no care
    left, right = list(range(-1, end)), list(range(1, end + 2))
    heap = [(*merges[pair], i) for i, pair in enumerate(pairwise(ids)) if pair in merges]
    heapify(heap)
    while heap:
        rank, new, i = heappop(heap)
        j = right[i]
        if merges.get((ids[i], ids[j])) != (rank, new):  # one of the two has been merged with its other neighbour
            continue
        ids[i], ids[j] = new, None
        right[i] = right[j]
        left[right[j]] = i
        for k in (left[i], i):
            if k >= 0 and (pair := (ids[k], ids[right[k]])) in merges:
                heappush(heap, (*merges[pair], k))
    return [i for i in ids if i is not None]


class BPETokenizer(_Tokenizer):
    """One token for each frequent piece of text: `vocab[i]` holds the bytes of token i.

    >>> tokenizer = BPETokenizer.train("low lower lowest", vocab_size=258)
    >>> tokenizer.tokens("slowly")
    [b's', b'low', b'l', b'y']

    `merges` are pairs of token ids, the earlier the stronger, `pattern` cuts a text into chunks, and `special` names
    tokens that no plain text gives. An empty entry of the vocabulary is a number without a token. Raises ValueError or
    TypeError if these do not fit each other.
    """

    def __init__(
        self,
        vocab: Iterable[bytes],
        merges: Iterable[tuple[int, int]],
        pattern: str = GPT2_PATTERN,
        special: dict[str, int] | None = None,
    ):
        self.vocab, self.special = _with_special(vocab, special or {})
        self.merges = [tuple(pair) for pair in merges]
        self.pattern = pattern
        try:
            self._finder = regex.compile(pattern)
        except regex.error as error:
            raise ValueError(f"the pattern {pattern!r} is no regular expression: {error}") from None
        if self._finder.groups:
            raise ValueError("the pattern has groups, whose text would be taken for the chunk: write (?:...)")
        reserved = set(self.special.values())
        plain = {i: token for i, token in enumerate(self.vocab) if token and i not in reserved}
        ids = {token: i for i, token in plain.items()}
        if len(ids) < len(plain):
            twice = next(token for token, n in Counter(plain.values()).items() if n > 1)
            raise ValueError(f"the tokens of a vocabulary must be distinct, {twice!r} comes twice")
        self._bytes = {token[0]: i for token, i in ids.items() if len(token) == 1}
        self._merges = {}
        made = set(self._bytes.values())
        for rank, pair in enumerate(self.merges):
            if not (len(pair) == 2 and made.issuperset(pair)):  # else the order of merging would not be that of rank
                raise ValueError(f"merge {rank}, {pair!r}, joins what is no byte, and no token of an earlier merge")
            joined = plain[pair[0]] + plain[pair[1]]
            if joined not in ids:
                raise ValueError(f"merge {rank} makes {joined!r}, which is not in the vocabulary")
            self._merges[pair] = (rank, ids[joined])
            made.add(ids[joined])
        self._cache = {}

    @classmethod
    def train(
        cls, text: str, vocab_size: int, pattern: str = GPT2_PATTERN, special: Iterable[str] = ()
    ) -> "BPETokenizer":
        """The vocabulary of a text: 256 bytes, then what merges make, then the special tokens, vocab_size in all.

        It is smaller if the chunks of the text run out of pairs.
        """
        _must_be_utf8(text)
        if not text:
            raise ValueError("an empty text has no pieces to make a vocabulary of")
        if isinstance(special, str):
            raise TypeError(f"special must be names of tokens, got one string: write [{special!r}]")
        special = list(special)
        if len(set(special)) < len(special):
            raise ValueError(f"special tokens must be distinct, got {special}")
        if isinstance(vocab_size, bool) or not isinstance(vocab_size, int):
            raise TypeError(f"vocab_size must be a whole number, got {vocab_size!r}")
        if vocab_size < 256 + len(special):
            raise ValueError(
                f"vocab_size must be at least {256 + len(special)}, one for each byte and special token, "
                f"got {vocab_size}"
            )
        vocab = [bytes([byte]) for byte in BYTES]
        chunks = Counter(cls(vocab, [], pattern)._chunks(text))
        merges = learn_merges({chunk.encode(): n for chunk, n in chunks.items()}, vocab_size - 256 - len(special))
        for a, b in merges:
            vocab.append(vocab[a] + vocab[b])
        return cls(vocab, merges, pattern, {name: len(vocab) + i for i, name in enumerate(special)})

    @classmethod
    def from_ranks(cls, ranks, pattern: str, special: dict[str, int] | None = None) -> "BPETokenizer":
        """The tokenizer of a `tiktoken` rank file, or of a dictionary from bytes to rank, which is also the token's id.

        Such a file tells no merges: a token's own is what is left of it after all those of lower rank.
        Raises ValueError naming the line, or the token, that does not fit.
        """
        ranks = ranks if isinstance(ranks, dict) else read_ranks(ranks)
        for token, rank in ranks.items():
            if not isinstance(token, bytes) or not token or isinstance(rank, bool) or not isinstance(rank, int):
                raise ValueError(f"ranks must be bytes with whole numbers, got {token!r}: {rank!r}")
            if rank < 0:
                raise ValueError(f"ranks must be 0, 1, 2 and so on, each once: {token!r} has {rank}")
        tokens = {rank: token for token, rank in ranks.items()}
        there = tokens.keys() | set((special or {}).values())
        missing = next((rank for rank in range(max(tokens, default=0)) if rank not in there), None)
        if missing is not None or len(tokens) < len(ranks) or not ranks:
            raise ValueError(f"ranks must be 0, 1, 2 and so on, each once: look at rank {missing or 0}")
        merges = {}
        for rank, token in sorted(tokens.items()):
            if len(token) > 1:
                try:
                    parts = apply_merges([ranks[token[i : i + 1]] for i in range(len(token))], merges)
                except KeyError as error:
                    raise ValueError(
                        f"the token {token!r} needs the byte {error.args[0]!r}, which has no rank"
                    ) from None
                if len(parts) != 2:
                    raise ValueError(f"the token {token!r}, rank {rank}, is no pair of tokens of lower rank")
                merges[tuple(parts)] = (rank, rank)
        vocab = [tokens.get(rank, b"") for rank in range(max(tokens) + 1)]
        return cls(vocab, merges, pattern, special)

    @classmethod
    def from_printable(
        cls, tokens: Iterable[str], merges: Iterable, pattern: str, special: dict[str, int] | None = None
    ) -> "BPETokenizer":
        """The tokenizer of a vocab.json (its tokens in order of id) and merges.txt, a tokenizer.json, or a GGUF file.

        They write bytes as `to_characters` does; a merge is "Ġ t" or ["Ġ", "t"].
        """
        reserved = set((special or {}).values())
        vocab = [b"" if i in reserved else from_characters(token) for i, token in enumerate(tokens)]
        ids = {token: i for i, token in enumerate(vocab) if token}
        pairs = []
        for rank, merge in enumerate(merges):
            try:
                a, b = merge.split(" ") if isinstance(merge, str) else merge
                pairs.append((ids[from_characters(a)], ids[from_characters(b)]))
            except (KeyError, ValueError, TypeError):
                raise ValueError(f"merge {rank}, {merge!r}, is no pair of tokens of the vocabulary") from None
        return cls(vocab, pairs, pattern, special)

    @property
    def vocab_size(self) -> int:
        """One more than the greatest id, V."""
        return len(self.vocab)

    def encode(self, text: str, allowed_special: Iterable[str] = ()) -> list[int]:
        """The token ids of a text.

        What looks like a special token is text like any other, unless `allowed_special` names it, or is "all"; of
        several that begin at the same place the longest counts. Raises ValueError for half a surrogate pair, which
        UTF-8 cannot write, and for a byte that the vocabulary lacks.
        """
        _must_be_utf8(text)
        allowed = self._allowed(allowed_special)
        if not allowed:
            return self._encode(text)
        ids, end = [], 0
        longest_first = sorted(allowed, key=len, reverse=True)
        for found in regex.finditer("|".join(map(regex.escape, longest_first)), text):
            ids += self._encode(text[end : found.start()])
            ids.append(self.special[found.group()])
            end = found.end()
        return ids + self._encode(text[end:])

    def _encode(self, text: str) -> list[int]:
        ids = []
        for chunk in self._chunks(text):
            known = self._cache.get(chunk)
            if known is None:
                known = self._encode_chunk(chunk)
                if len(self._cache) >= REMEMBERED:
                    self._cache.clear()
                if len(chunk) <= 64:  # words come again; what is longer would only fill the memory
                    self._cache[chunk] = known
            ids += known
        return ids

    def _encode_chunk(self, chunk: str) -> list[int]:
        try:
            return apply_merges([self._bytes[byte] for byte in chunk.encode()], self._merges)
        except KeyError as error:
            raise ValueError(
                f"{chunk[:40]!r} has the byte {error.args[0]:#04x}, which is no token of this vocabulary: leave it out"
            ) from None

    def _chunks(self, text: str) -> list[str]:
        chunks = self._finder.findall(text)
        if sum(map(len, chunks)) != len(text):
            raise ValueError(f"the pattern {self.pattern!r} passes over parts of the text: let it match everything")
        return chunks

    def _allowed(self, names) -> set[str]:
        if isinstance(names, str):
            if names != "all":
                raise ValueError(f'allowed_special must be "all" or a set of names, got {names!r}: write {{{names!r}}}')
            return set(self.special)
        names = set(names)  # once: it may be a generator
        unknown = sorted(names - self.special.keys(), key=repr)
        if unknown:
            raise ValueError(
                f"{unknown[0]!r} is no special token here: there are {', '.join(map(repr, self.special)) or 'none'}"
            )
        return names

    def tokens(self, text: str) -> list[bytes]:
        """The bytes of each token of a text."""
        return [self.vocab[i] for i in self.encode(text)]

    def show(self, i: int) -> str:
        """A token as a label: blanks and line ends made visible, and bytes that are no whole characters in hex."""
        (token,) = self._parts([i])
        try:
            text = token.decode()
        except UnicodeDecodeError:
            return f"⟨{token.hex(' ')}⟩"
        signs = {" ": "␣", "\n": "↵", "\t": "⇥"}
        return "".join([signs.get(c, c if c.isprintable() else f"⟨U+{ord(c):04X}⟩") for c in text])

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes behind token ids: a list, an array or a tensor of shape (N,). Errors as `decode`."""
        return b"".join(self._parts(ids))

    def decode(self, ids: Iterable[int]) -> str:
        """The text behind token ids: a list, an array or a tensor of shape (N,).

        Tokens may end inside a character: bytes that are no UTF-8 become U+FFFD. Raises ValueError naming the first id
        that is no token, TypeError for what is not a row of whole numbers.
        """
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def stream(self) -> "Stream":
        """A decoder that takes ids one by one, as a model gives them, and never shows half a character."""
        return Stream(self)

    def _parts(self, ids) -> list[bytes]:
        ids = self._checked(ids)
        parts = [self.vocab[i] for i in ids]
        if b"" in parts:
            position = parts.index(b"")
            raise ValueError(f"token id {ids[position]} at position {position} is a number without a token")
        return parts

    def to_dict(self) -> dict:
        """A JSON object that `from_dict` makes an equal tokenizer of."""
        reserved = set(self.special.values())
        return {
            "type": "bpe",
            "vocab": ["" if i in reserved else to_characters(token) for i, token in enumerate(self.vocab)],
            "merges": [list(pair) for pair in self.merges],
            "pattern": self.pattern,
            "special": dict(self.special),
        }

    @classmethod
    def from_dict(cls, about: dict) -> "BPETokenizer":
        """The tokenizer that `to_dict` described. Raises ValueError if it does not describe one."""
        kinds = {"vocab": list, "merges": list, "pattern": str, "special": dict}
        if (
            not isinstance(about, dict)
            or about.get("type") != "bpe"
            or not all(isinstance(about.get(name), kind) for name, kind in kinds.items())
        ):
            raise ValueError("this is no description of a byte-pair tokenizer")
        try:
            vocab = [from_characters(token) for token in about["vocab"]]
            return cls(vocab, about["merges"], about["pattern"], about["special"])
        except TypeError as error:
            raise ValueError(str(error)) from None

    def __repr__(self):
        return f"BPETokenizer({self.vocab_size} tokens, {len(self.merges)} merges)"


class Stream:
    """Text from token ids that come one by one: all that it gives, joined, is what `decode` gives for all ids.

    A character of several bytes comes when its last byte does. Signs made of several characters, such as a flag, come
    character by character.
    """

    def __init__(self, tokenizer: BPETokenizer):
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, i: int) -> str:
        """The characters that are complete with this token, "" if there are none. Errors as `decode`."""
        return self._decoder.decode(self._tokenizer.decode_bytes([i]))

    def finish(self) -> str:
        """U+FFFD for a character that never was completed, else ""; the stream can then begin anew."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def read_ranks(path) -> dict[bytes, int]:
    """A `tiktoken` file, on each line a token in base64 and its rank, as a dictionary.

    Raises ValueError naming the file, and the line that is something else.
    """
    ranks, seen = {}, set()
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise ValueError(f"cannot read the ranks {path}: {error.strerror}") from None
    for n, line in enumerate(lines, start=1):
        try:
            token, rank = line.split(b" ")
            token = base64.b64decode(token, validate=True)
            if not rank.isdigit() or len(rank) > 9 or not token:
                raise ValueError
        except (ValueError, binascii.Error):
            raise ValueError(
                f"{path}, line {n}: must be a token in base64, a blank, its rank: get the file again"
            ) from None
        if token in ranks or int(rank) in seen:
            raise ValueError(f"{path}, line {n}: this token or this rank has come before: get the file again")
        ranks[token] = int(rank)
        seen.add(int(rank))
    return ranks


def _with_special(vocab: Iterable[bytes], special: dict[str, int]) -> tuple[list[bytes], dict[str, int]]:
    """The vocabulary with its special tokens written in, made longer where they stand behind it."""
    vocab = list(vocab)
    for token in vocab:
        if not isinstance(token, bytes):
            raise TypeError(f"a token must be bytes, got {token!r}")
    special = dict(special)
    for name, i in special.items():
        if not isinstance(name, str) or isinstance(i, bool) or not isinstance(i, int):
            raise TypeError(f"special tokens must be names with their ids, got {name!r}: {i!r}")
        if not name or not 0 <= i < len(vocab) + 2**16:
            raise ValueError(f"the special token {name!r} needs a name and an id near the vocabulary's, got {i}")
        written = name.encode()
        vocab += [b""] * (i + 1 - len(vocab))
        if vocab[i] not in (b"", written):
            raise ValueError(f"the special token {name!r} has the id {i}, which is that of {vocab[i]!r}")
        vocab[i] = written
    if len(set(special.values())) < len(special):
        raise ValueError("two special tokens have the same id")
    if not any(vocab):
        raise ValueError("a vocabulary needs at least one token")
    return vocab, special


# Both kinds -----------------------------------------------------------------------------------------------------------


def from_dict(about: dict) -> CharTokenizer | BPETokenizer:
    """The tokenizer of either kind that `to_dict` described. Raises ValueError if it does not describe one."""
    kind = about.get("type") if isinstance(about, dict) else None
    if kind not in ("characters", "bpe"):
        raise ValueError(f'a tokenizer has the type "characters" or "bpe", got {kind!r}')
    return (CharTokenizer if kind == "characters" else BPETokenizer).from_dict(about)


def load(path) -> CharTokenizer | BPETokenizer:
    """The tokenizer of either kind that `save` wrote. Raises ValueError naming the file if it is none."""
    return _load(path, from_dict)


def _load(path, made_of):
    try:
        return made_of(json.loads(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"cannot read the tokenizer {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, not a tokenizer
        raise ValueError(f"{path} is no tokenizer that this package wrote: {error}; save it again") from None


def _must_be_text(text):
    if not isinstance(text, str):
        raise TypeError(f"text must be a string, got {type(text).__name__}: decode bytes first, as UTF-8")


def _must_be_utf8(text):
    _must_be_text(text)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the character U+{ord(text[error.start]):04X} at position {error.start} is half a surrogate pair, "
            "which UTF-8 cannot write: leave it out"
        ) from None
