"""Byte-pair encoding in Python beside the `tokenizers` library and `tiktoken`: training, loading, encoding.

    python benchmarks/bpe.py [REPEATS] [--save]

Each pair is timed in turn, in one process, so that both meet the same machine; each figure is the median. The last
column is how many times theirs ours takes. Training must stay below three times.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # as the library is by default


def side_by_side(ours: Callable, theirs: Callable, repeats: int) -> tuple[float, float]:
    """The median seconds of both, called in turn; the first call of each is not counted."""
    seconds = ([], [])
    for turn in range(repeats + 1):
        for call, times in zip((ours, theirs), seconds, strict=True):
            start = time.perf_counter()
            call()
            if turn:
                times.append(time.perf_counter() - start)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def line(name: str, ours: float, theirs: float):
    """One row of the table."""
    print(f"{name:34} {ours:8.3f} s {theirs:8.3f} s {ours / theirs:7.2f}", flush=True)


def main(repeats: int = 5, save: bool = False):
    """Print the table, and keep a part of it for `report.py`."""
    kept = []
    import tiktoken
    import tokenizers as library

    from gptbook import corpora, pretrained
    from gptbook.tokenizers import BPETokenizer

    text = corpora.load("tinyshakespeare").text
    print(f"{len(text):,} characters, {os.cpu_count()} processors, medians of {repeats}\n")
    print(f"{'':34} {'ours':>10} {'theirs':>10} {'ratio':>7}")

    def train_theirs(vocab_size):
        made = library.Tokenizer(library.models.BPE())
        made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = library.pre_tokenizers.ByteLevel.alphabet()
        trainer = library.trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
        made.train_from_iterator([text], trainer)

    for size in (512, 1024, 2048, 8192):
        ours, theirs = side_by_side(lambda n=size: BPETokenizer.train(text, n), lambda n=size: train_theirs(n), repeats)
        line(f"train, vocabulary of {size:,}", ours, theirs)
        what = f"byte-pair encoding: learn {size:,} tokens"
        kept.append((what, "tokenizers", f"{ours:.2f} s", f"{theirs:.2f} s", theirs / ours, "at least 0.33"))

    long = "".join(chr(97 + i * i % 7 * i % 26) for i in range(100_000))  # one chunk
    for name in ("gpt2", "cl100k_base", "o200k_base"):
        mine = pretrained.vocabulary(name)
        ranks = {token: i for i, token in enumerate(mine.vocab) if token and i not in mine.special.values()}

        def load_theirs(mine=mine, ranks=ranks):
            return tiktoken.Encoding("theirs", pat_str=mine.pattern, mergeable_ranks=ranks, special_tokens=mine.special)

        reference = load_theirs()
        ours = side_by_side(lambda m=mine, r=ranks: BPETokenizer.from_ranks(r, m.pattern, m.special), load_theirs, 1)
        line(f"{name}: load", *ours)

        def forget_and_encode(text, mine=mine):
            mine._cache.clear()
            return mine.encode(text)

        for what, string in ((f"{len(text):,} characters", text), ("one chunk of 100,000 letters", long)):
            ours, theirs = side_by_side(
                lambda s=string: forget_and_encode(s), lambda s=string, r=reference: r.encode_ordinary(s), repeats
            )
            line(f"{name}: {what}", ours, theirs)
    if save:
        import report

        report.save("bpe", [report.row(*row) for row in kept])


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:] if word != "--save"), save="--save" in sys.argv)
