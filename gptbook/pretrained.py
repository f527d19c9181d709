"""Weights that others trained, in the classes of this book: GPT-2 in `model.GPT`, SmolLM2 in `modern.ModernGPT`.

GPT-2 comes from the Hugging Face hub through the hub's own client, or from a folder; SmolLM2 is the one file that
`assets` fetches. Tensors are read from safetensors or GGUF, one at a time, into a model that draws no initial values.
Nothing is unpickled, and no tensor may be missing, left over, or of another shape.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import safetensors
import torch
from torch.overrides import TorchFunctionMode

from gptbook import assets, checkpoint, gguf, hub
from gptbook.model import GPTConfig
from gptbook.modern import ModernConfig
from gptbook.recipes import PRESETS, build
from gptbook.tokenizers import CL100K_PATTERN, GPT2_PATTERN, O200K_PATTERN, SMOLLM2_PATTERN, BPETokenizer

NAMES = ("gpt2", "smollm2")


class PretrainedError(ValueError):
    """A pretrained model cannot be had, or is none that the classes of this book can hold."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """A pretrained model in evaluation mode, with its tokenizer; `source` says in a few words where it came from."""

    model: torch.nn.Module = field(repr=False)
    tokenizer: "BPETokenizer | NoTokenizer"
    name: str
    source: str

    def encode(self, text: str) -> list[int]:
        """The token ids of a text; special tokens are never made from plain text."""
        return self.tokenizer.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text behind token ids: a list, an array or a tensor of shape (N,)."""
        return self.tokenizer.decode(ids)


@dataclass(frozen=True)
class NoTokenizer:
    """Stands where a model came without a tokenizer, and says why when it is asked to be one."""

    why: str

    def encode(self, text):
        raise PretrainedError(self.why)

    decode = encode


def load(name=None) -> Loaded:
    """A pretrained model: "gpt2", "smollm2", or a folder with the config.json and model.safetensors of a GPT-2.

    Without a name it is the first of the two that can be had. Raises PretrainedError, in one line, where it cannot be
    had or is another kind of model; ImportError where a package is missing.
    """
    if name is None:
        return _first(load)
    if name == "gpt2":
        try:
            folder, source = hub.folder()
        except hub.HubError as error:
            raise PretrainedError(str(error)) from None
        return _from_folder(folder, "gpt2", source)
    if name == "smollm2":
        path = _fetched("smollm2")
        return _from_gguf(path, PRESETS["smollm2"], "smollm2", assets.source("smollm2"))
    folder = Path(name).resolve()  # of "." too the name is to be told
    if not str(name) or not folder.is_dir():
        raise PretrainedError(
            f"there is no pretrained model and no folder {str(name)!r}: the names are {', '.join(NAMES)}, "
            f"a folder holds config.json and model.safetensors"
        )
    return _from_folder(folder, folder.name, "folder")


def available() -> str:
    """The name of the first of `NAMES` that can be had here. Raises PretrainedError, with each one's reason, if none.

    A model of the hub counts if it is on this machine or the hub answers for it; a download may still fail later.
    """

    def at_hand(name):
        if name == "smollm2":
            _fetched(name)
        elif hub.cached() is None:
            hub.ask()
        return name

    return _first(at_hand)


def _first(get):
    wrong = []
    for name in NAMES:
        try:
            return get(name)
        except (PretrainedError, hub.HubError, ImportError) as error:
            wrong.append(str(error))
            assets.say(f"passed over {name}: {error}")
    raise PretrainedError("; ".join(wrong))


ENCODINGS = {
    "gpt2": ("r50k_base", GPT2_PATTERN, {"<|endoftext|>": 50256}),
    "cl100k_base": ("cl100k_base", CL100K_PATTERN, {
        "<|endoftext|>": 100257, "<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260,
        "<|endofprompt|>": 100276,
    }),
    "o200k_base": ("o200k_base", O200K_PATTERN, {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}),
}  # fmt: skip


def vocabulary(name: str) -> BPETokenizer:
    """The tokenizer of OpenAI's models: "gpt2" (also "r50k_base"), "cl100k_base" (GPT-4) or "o200k_base" (GPT-4o).

    Raises PretrainedError if there is none of this name, or its file cannot be had.
    """
    wanted = {"r50k_base": "gpt2"}.get(name, name)
    if wanted not in ENCODINGS:
        raise PretrainedError(f"there is no vocabulary {name!r}: the names are {', '.join(ENCODINGS)}")
    asset, pattern, special = ENCODINGS[wanted]
    return BPETokenizer.from_ranks(_fetched(asset), pattern, special)


def _fetched(name) -> Path:
    try:
        return assets.fetch(name)
    except assets.AssetError as error:
        raise PretrainedError(str(error)) from None


# Filling a model ------------------------------------------------------------------------------------------------------


class _NoDraws(TorchFunctionMode):
    """Leaves out the drawing of initial values: it takes seconds, and all of them are overwritten."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return function(*args, **kwargs)


def _filled(config, tensors: Iterable[tuple[str, torch.Tensor]], place: str):
    """A model of `config` with these weights, fp32, in evaluation mode; each of its tensors comes exactly once.

    They come one by one, so that there is never a second copy of all.
    """
    with _NoDraws():
        model = build(config)
    own = checkpoint.weights(model)  # of two tied names only the first
    for name, tensor in tensors:
        mine = own.pop(name, None)
        if mine is None:
            raise PretrainedError(f"{place}: {name} is no tensor of such a model, or comes twice")
        if mine.shape != tensor.shape:
            raise PretrainedError(f"{place}: {name} is {tuple(tensor.shape)}, the model's {tuple(mine.shape)}")
        if not tensor.is_floating_point():
            raise PretrainedError(f"{place}: {name} holds {tensor.dtype}, weights are floating-point numbers")
        mine.copy_(tensor)
        if not all(end.isfinite() for end in mine.aminmax()):  # NaN is both; no copy is made
            raise PretrainedError(f"{place}: {name} holds NaN or inf, or numbers too large for fp32: get it again")
    if own:
        more = f", and {len(own) - 1} more like it" if len(own) > 1 else ""
        raise PretrainedError(f"{place}: {min(own)} is missing{more}")
    return model.eval()


# SmolLM2 from GGUF ----------------------------------------------------------------------------------------------------

LLAMA_NAMES = {
    "attn_norm": "ln_1", "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2", "ffn_gate": "mlp.c_gate", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
}  # fmt: skip


def _from_gguf(path, config: ModernConfig, name: str, source: str) -> Loaded:
    try:
        file = gguf.read(path)
        _check_fields(file, config)
        model = _filled(config, _llama_weights(file, config), file.path.name)
    except gguf.GgufError as error:
        raise PretrainedError(str(error)) from None
    return Loaded(model, _gguf_tokenizer(file), name, source)


def _check_fields(file, config):
    """That the file says of itself what the configuration says."""
    expected = {
        "general.architecture": "llama",
        "llama.block_count": config.n_layer,
        "llama.context_length": config.block_size,
        "llama.embedding_length": config.n_embd,
        "llama.feed_forward_length": config.inner,
        "llama.attention.head_count": config.n_head,
        "llama.attention.head_count_kv": config.kv_heads,
        "llama.rope.freq_base": config.rope_base,
        "llama.rope.dimension_count": config.n_embd // config.n_head,
        "llama.attention.layer_norm_rms_epsilon": config.norm_eps,
        "llama.vocab_size": config.vocab_size,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
    }
    for key, value in expected.items():
        found = file.fields.get(key)
        same = found == value
        if isinstance(value, float) and isinstance(found, float):  # the file has them in fp32
            same = math.isclose(found, value, rel_tol=1e-6)
        if not same:
            raise PretrainedError(f"{file.path.name}: {key} is {found!r}, the preset's {value!r}")
    scaled = [key for key in file.fields if key.startswith("llama.rope.scal")]
    if scaled:
        raise PretrainedError(f"{file.path.name}: {scaled[0]} changes the turns of positions, and is not read here")


def _llama_weights(file, config) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors under our names. In GGUF queries and keys turn in neighbouring pairs, and so do ours."""
    used = {"token_embd.weight", "output_norm.weight"}
    yield "wte.weight", file.tensor("token_embd.weight")
    yield "ln_f.weight", file.tensor("output_norm.weight")
    for i in range(config.n_layer):
        parts = [f"blk.{i}.attn_{part}.weight" for part in "qkv"]
        yield f"h.{i}.attn.c_attn.weight", torch.cat([file.tensor(part) for part in parts])
        for theirs, ours in LLAMA_NAMES.items():
            yield f"h.{i}.{ours}.weight", file.tensor(f"blk.{i}.{theirs}.weight")
        used.update(parts, (f"blk.{i}.{theirs}.weight" for theirs in LLAMA_NAMES))
    if unused := file.tensors.keys() - used:
        raise PretrainedError(f"{file.path.name}: {min(unused)} is no tensor of such a model")


def _gguf_tokenizer(file) -> BPETokenizer:
    try:
        names, kinds, merges = (file.fields[f"tokenizer.ggml.{part}"] for part in ("tokens", "token_type", "merges"))
        control = {name: i for i, (name, kind) in enumerate(zip(names, kinds, strict=True)) if kind == 3}
        return BPETokenizer.from_printable(names, merges, SMOLLM2_PATTERN, control)
    except (KeyError, ValueError, TypeError) as error:
        raise PretrainedError(f"{file.path.name}: its tokenizer cannot be read: {error}") from None


# GPT-2 from a folder --------------------------------------------------------------------------------------------------


def _folder_tokenizer(folder: Path, vocab_size: int) -> BPETokenizer | NoTokenizer:
    """The tokenizer of vocab.json and merges.txt, else of tokenizer.json, else something that says what is missing."""
    try:
        if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            where, tokenizer = "vocab.json", _of_two_files(folder)
        elif (folder / "tokenizer.json").is_file():
            where, tokenizer = "tokenizer.json", _of_one_file(folder)
        else:
            return NoTokenizer(f"{folder.name} holds no vocab.json with merges.txt, and no tokenizer.json: add them")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return NoTokenizer(f"{folder.name}: its tokenizer is none of GPT-2's kind ({type(error).__name__}: {error})")
    if tokenizer.vocab_size > vocab_size:
        return NoTokenizer(f"{folder.name}: {where} has {tokenizer.vocab_size} tokens, the model {vocab_size}")
    return tokenizer


def _of_two_files(folder):
    ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    merges = [line for line in lines[lines[0].startswith("#version") :] if line]
    return _numbered(ids, merges, {"<|endoftext|>"} & ids.keys())


def _of_one_file(folder):
    about = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    model, cut = about["model"], about["pre_tokenizer"]
    if model["type"] != "BPE" or cut["type"] != "ByteLevel" or cut["add_prefix_space"] or about.get("normalizer"):
        raise ValueError("not byte-level BPE")
    changed = [key for key in TOKENIZER_FIXED if model.get(key)] + ["use_regex"] * (not cut.get("use_regex", True))
    changed += ["truncation"] * bool(about.get("truncation"))
    if changed:
        raise ValueError(f"{changed[0]} changes what a text becomes, and is not read here")
    plain = [token["content"] for token in about["added_tokens"] if not token.get("special", True)]
    if plain:
        raise ValueError(f"the added token {plain[0]!r} is cut out of plain text, which is not done here")
    special = {token["content"]: token["id"] for token in about["added_tokens"]}
    return _numbered(model["vocab"] | special, model["merges"], special)


# Settings of a tokenizer.json under which the merges alone do not tell what a text becomes.
TOKENIZER_FIXED = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges")


def _numbered(ids, merges, special):
    names = sorted(ids, key=ids.get)
    if [ids[name] for name in names] != list(range(len(names))):
        raise ValueError("its numbers are not 0, 1, 2 and so on")
    return BPETokenizer.from_printable(names, merges, GPT2_PATTERN, {name: ids[name] for name in special})


GPT2_ACTIVATIONS = {
    "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu",
}  # fmt: skip
GPT2_FIXED = {  # what our class has built in
    "layer_norm_epsilon": 1e-5, "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}  # fmt: skip
TRANSPOSED = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")
MASKS = re.compile(r"^h\.\d+\.attn\.(bias|masked_bias)$")


def _from_folder(folder: Path, name: str, source: str) -> Loaded:
    config = _gpt2_config(folder)
    path = folder / "model.safetensors"
    if not path.is_file():
        raise PretrainedError(f"{folder.name} holds no model.safetensors: {_instead(folder)}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            _check_sizes(file, config, path.name)
            model = _filled(config, _gpt2_weights(file, config, path.name), path.name)
    except (safetensors.SafetensorError, OSError) as error:
        raise PretrainedError(f"{path.name}: damaged, cut short, or no safetensors ({error}): get it again") from None
    return Loaded(model, _folder_tokenizer(folder, config.vocab_size), name, source)


def _instead(folder):
    """What to do about a folder without model.safetensors."""
    if (folder / "model.safetensors.index.json").is_file():
        return "its weights are split into several files: save them as one"
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")):
        return "its weights are a pickle, which can run any code when it is read: save them as safetensors"
    return "put the weights there"


def _gpt2_config(folder) -> GPTConfig:
    try:
        about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise PretrainedError(f"{folder.name}: config.json cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise PretrainedError(f"{folder.name}: config.json is no JSON: get it again") from None
    kind = about.get("model_type") if isinstance(about, dict) else None
    if kind != "gpt2":
        raise PretrainedError(f"{folder.name}: config.json has model_type {kind!r}, this loads 'gpt2'")
    for key, value in GPT2_FIXED.items():
        if about.get(key, value) != value:
            raise PretrainedError(f"{folder.name}: {key} is {about[key]!r}, the book's GPT has {value!r}")
    activation = str(about.get("activation_function", "gelu_new"))
    if activation not in GPT2_ACTIVATIONS:
        known = ", ".join(GPT2_ACTIVATIONS)
        raise PretrainedError(f"{folder.name}: activation_function is {activation!r}, this knows {known}")
    sizes = {"block_size": "n_positions", **{key: key for key in ("vocab_size", "n_layer", "n_head", "n_embd")}}
    given = {ours: about[theirs] for ours, theirs in sizes.items() if theirs in about}
    try:
        config = replace(
            PRESETS["gpt2"],
            **given,
            activation=GPT2_ACTIVATIONS[activation],
            tied=about.get("tie_word_embeddings", True),
        )
    except (ValueError, TypeError) as error:
        raise PretrainedError(f"{folder.name}: config.json makes no sense: {error}") from None
    if about.get("n_inner") not in (None, 4 * config.n_embd):
        raise PretrainedError(f"{folder.name}: n_inner is {about['n_inner']!r}, the book's GPT has 4 n_embd")
    return config


def _check_sizes(file, config, place):
    """That the file has room for what config.json says, before a model of that size is made: a wrong number there may
    ask for more memory than there is.
    """
    found = {key.removeprefix("transformer."): key for key in file.keys()}  # noqa: SIM118 - the file is no dictionary
    layers = len({name.split(".")[1] for name in found if re.match(r"h\.\d+\.", name)})
    if layers != config.n_layer:
        raise PretrainedError(
            f"{place}: has {layers} layers, and config.json says n_layer {config.n_layer}: get both again"
        )
    tables = {"wte.weight": (config.vocab_size, config.n_embd), "wpe.weight": (config.block_size, config.n_embd)}
    for name, expected in tables.items():
        shape = tuple(file.get_slice(found[name]).get_shape()) if name in found else expected
        if shape != expected:
            raise PretrainedError(f"{place}: {name} is {shape}, and config.json says {expected}: get both again")


def _gpt2_weights(file, config, place) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors under our names: without the prefix, without masks, linear layers the other way round.

    GPT-2 keeps the weights of its linear layers as (in, out), ours are (out, in), as torch has them.
    """
    keys = {}
    for key in file.keys():  # noqa: SIM118 - the file is no dictionary
        if keys.setdefault(key.removeprefix("transformer."), key) != key:
            raise PretrainedError(f"{place}: {key} comes twice, with the prefix and without")
    head = keys.pop("lm_head.weight", None)
    if not config.tied and head is not None:
        yield "lm_head.weight", file.get_tensor(head)
    elif head is not None:
        embedding = keys.setdefault("wte.weight", head)
        if not torch.equal(file.get_tensor(head), file.get_tensor(embedding)):
            raise PretrainedError(
                f"{place}: lm_head.weight differs from wte.weight, and config.json says they are tied"
            )
    for name, key in keys.items():
        if not MASKS.search(name):
            tensor = file.get_tensor(key)
            yield name, tensor.T if TRANSPOSED.search(name) and tensor.dim() == 2 else tensor
