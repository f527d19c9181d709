"""gptbook: what the pages of the book import, and what a reader may import too.

| page | module |
|---|---|
| 1, text into numbers | `corpora`, `tokenizers`, `data` |
| 2, the bigram baseline | `ladder` |
| 3 to 7, from the averaging trick to positions | `model`, `verify` |
| 8, assembling and verifying the GPT | `model`, `verify`, `sampling` |
| 9, training | `recipes`, `trainer`, `runs`, `checkpoint` |
| 10, sampling | `sampling` |
| 11, the KV cache | `kv_cache`, `writer` |
| 12, looking inside our GPT | `lens` |
| 14, overfitting | `copying`, `recipes` |
| 15, byte-pair encoding | `tokenizers`, `pretrained`, `recipes` |
| 16, a real pretrained model | `pretrained`, `modern`, `lens`, `kv_cache`, `widgets` |
| 17, from GPT-2 to today | `modern`, `muon`, `recipes`, `pretrained` |
| 18, scaling up | `engine`, `parallel`, `recipes`, `machine` |
| 19, from here to ChatGPT | `instructions`, `finetuning` |
| all | `claims`, `display`, `exercises` |

Importing `gptbook` loads none of them.
"""

__version__ = "0.1.0"
__all__ = ["PRESETS", "build"]


def __getattr__(name: str):
    """Resolve `PRESETS` and `build` on first use, so that `import gptbook` stays cheap."""
    if name in __all__:
        from gptbook import recipes

        return getattr(recipes, name)
    raise AttributeError(f"module 'gptbook' has no attribute {name!r}")
