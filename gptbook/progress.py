"""How training shows that it goes on: a bar on a terminal, plain lines elsewhere, all on stderr."""

import os
import sys

from tqdm import tqdm


class Progress:
    """What `train(progress=...)` calls: each row moves the bar, and each measurement leaves a line."""

    def __init__(self, steps: int, start: int = 0, stream=None):
        self.stream = stream or sys.stderr
        self.bar = None
        if self.stream.isatty():
            # A terminal that does not say how large it is says 0, and tqdm would then draw nothing.
            width = {"dynamic_ncols": True} if _columns(self.stream) else {"ncols": 80, "nrows": 24}
            self.bar = tqdm(total=steps, initial=start, unit="step", file=self.stream, **width)

    def __call__(self, row: dict):
        """Show one row of training."""
        if self.bar is not None:
            self.bar.update(row["step"] - self.bar.n)
            if row.get("batch_loss") is not None:
                self.bar.set_postfix_str(f"loss {row['batch_loss']:.3f}")
        if "val_loss" in row:
            losses = f"train {row['train_loss']:.3f}, val {row['val_loss']:.3f}"
            self.say(f"step {row['step']:,} of {row['steps']:,}: {losses}")

    def say(self, line: str):
        """A line above the bar, or just a line."""
        if self.bar is not None:
            self.bar.write(line, file=self.stream)
        else:
            print(line, file=self.stream, flush=True)

    def close(self):
        """Leave the terminal as the next line expects it."""
        if self.bar is not None:
            self.bar.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _columns(stream) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 0
