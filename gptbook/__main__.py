"""`python -m gptbook` is the command `gptbook`: for torchrun, and where the command itself is not on the path."""

import sys

from gptbook.cli import main

if __name__ == "__main__":
    sys.exit(main())
