"""The named configurations of the book: what each model looks like, and how it is trained."""

from gptbook.model import GPT, GPTConfig

PRESETS = {
    "step-5": GPTConfig(),
    "lets-build": GPTConfig(
        block_size=32, n_layer=3, n_embd=64, activation="relu", head_bias=True, scale_residual=False
    ),
    "under-the-hood": GPTConfig(block_size=128, qkv_bias=True),
    "gpt2": GPTConfig(
        vocab_size=50257, block_size=1024, n_layer=12, n_head=12, n_embd=768,
        activation="gelu_tanh", qkv_bias=True, tied=True, init="gpt2",
    ),
}  # fmt: skip


def build(config: GPTConfig) -> GPT:
    """A new model of the configuration's family, with fresh initial weights."""
    return GPT(config)
