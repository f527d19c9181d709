"""What holds for every test: no network, one thread, the same examples each time, and a model too small to wait for."""

import os

# Before torch is first imported: threads that fight over few cores make tests slow.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The tests of fetching take this away again, and turn to a server of their own on this machine.
os.environ["GPTBOOK_OFFLINE"] = "1"

import pytest
from hypothesis import settings
from outside import asset

settings.register_profile("book", deadline=None, derandomize=True, database=None)
settings.load_profile("book")


@pytest.fixture
def tiny_config():
    """A GPT with 4,080 parameters, two of everything that should not be confused with one of it."""
    from gptbook.model import GPTConfig

    return GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=12)


@pytest.fixture(scope="session")
def smollm2_file():
    """The weights of SmolLM2, fetched if need be."""
    return asset("smollm2")
