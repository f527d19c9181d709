"""Text to numbers and back, one number for each character.

Left out: numbers for whole pieces of words, which make a text shorter and the vocabulary larger.
"""

import json
import os
import secrets
from collections import Counter
from collections.abc import Iterable
from operator import index
from pathlib import Path

UNKNOWN = "\ufffd"  # Unicode's own sign for "no such character"


class CharTokenizer:
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
        return "".join([self.symbols[i] for i in ids])

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
    def load(cls, path) -> "CharTokenizer":
        """The tokenizer that `save` wrote. Raises ValueError naming the file if it is missing or something else."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise ValueError(f"cannot read the tokenizer {path}: {error.strerror}") from None
        except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, not a tokenizer
            raise ValueError(f"{path} is no tokenizer that this package wrote: {error}; save it again") from None

    def __eq__(self, other):
        return isinstance(other, CharTokenizer) and self.to_dict() == other.to_dict()

    __hash__ = None  # it compares by value, and the value is a list

    def __repr__(self):
        return f"CharTokenizer({self.vocab_size} symbols)"


def _must_be_text(text):
    if not isinstance(text, str):
        raise TypeError(f"text must be a string, got {type(text).__name__}: decode bytes first, as UTF-8")
