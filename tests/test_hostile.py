"""Odd inputs that once went through silently, or ended in something else than one line."""

import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from gptbook import gguf, lens, pretrained, widgets
from gptbook.modern import ModernConfig, ModernGPT
from gptbook.tokenizers import GPT2_PATTERN, BPETokenizer

SIZES = {"n_layer": 2, "n_head": 2, "n_embd": 8, "vocab_size": 11, "n_positions": 6}


@pytest.fixture
def folder(tmp_path):
    """A GPT-2 with weights of all zeros."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", **SIZES}))
    C, tensors = 8, {"wte.weight": (11, 8), "wpe.weight": (6, 8), "ln_f.weight": (8,), "ln_f.bias": (8,)}
    for i in range(2):
        for name, shape in {
            "ln_1.weight": (C,), "ln_1.bias": (C,), "ln_2.weight": (C,), "ln_2.bias": (C,),
            "attn.c_attn.weight": (C, 3 * C), "attn.c_attn.bias": (3 * C,), "attn.c_proj.weight": (C, C),
            "attn.c_proj.bias": (C,), "mlp.c_fc.weight": (C, 4 * C), "mlp.c_fc.bias": (4 * C,),
            "mlp.c_proj.weight": (4 * C, C), "mlp.c_proj.bias": (C,),
        }.items():  # fmt: skip
            tensors[f"h.{i}.{name}"] = shape
    save_file({name: torch.zeros(shape) for name, shape in tensors.items()}, tmp_path / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize("key", ["vocab_size", "n_positions", "n_layer", "n_embd"])
def test_a_size_that_the_file_has_not_is_said_before_a_model_is_made(folder, key):
    pretrained.load(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **SIZES, key: 10**12}))
    with pytest.raises(pretrained.PretrainedError, match=r"config\.json says"):
        pretrained.load(folder)


@pytest.mark.parametrize("wrong", [torch.tensor(float("nan")), torch.tensor(1e300, dtype=torch.float64)])
def test_weights_that_are_no_numbers_are_refused(folder, wrong):
    tensors = load_file(folder / "model.safetensors")
    tensors["ln_f.weight"] = wrong.expand(8).contiguous()
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(pretrained.PretrainedError, match=r"ln_f\.weight holds NaN or inf"):
        pretrained.load(folder)


def test_a_folder_is_told_by_its_name(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(pretrained.PretrainedError, match=folder.name):
        pretrained.load(".").encode("a")
    with pytest.raises(pretrained.PretrainedError, match="no folder ''"):
        pretrained.load("")


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("model", "dropout", 0.5), ("model", "end_of_word_suffix", "</w>"), ("model", "ignore_merges", True),
        ("model", "continuing_subword_prefix", "##"), ("pre_tokenizer", "use_regex", False),
        (None, "truncation", {"max_length": 5}),
        (None, "added_tokens", [{"id": 2, "content": "ab", "special": False}]),
    ],
)  # fmt: skip
def test_settings_that_change_what_a_text_becomes_are_refused(tmp_path, part, key, value):
    about = {
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [], "dropout": None, "end_of_word_suffix": ""},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "added_tokens": [{"id": 2, "content": "<x>", "special": True}],
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(about))
    assert pretrained._folder_tokenizer(tmp_path, 9).encode("ab") == [0, 1]
    (about if part is None else about[part])[key] = value
    path.write_text(json.dumps(about))
    assert isinstance(pretrained._folder_tokenizer(tmp_path, 9), pretrained.NoTokenizer)


def test_generators_are_read_once():
    tokenizer = BPETokenizer.train("low", 257, special=["<x>"])
    assert tokenizer.encode("<x>", (name for name in ["<x>"])) == [256]
    table = torch.randn(9, 4)
    assert lens.arithmetic(table, iter([1, 2]), iter([3])) == lens.arithmetic(table, [1, 2], [3])


def test_ranks_tokens_and_names_of_the_wrong_kind():
    for ranks in ({b"a": 0, b"b": -1}, {b"a": 0, b"": 1}, {b"a": "0"}, {"a": 0}):
        with pytest.raises(ValueError, match="ranks must be"):
            BPETokenizer.from_ranks(ranks, GPT2_PATTERN)
    with pytest.raises(TypeError, match="one string"):
        BPETokenizer.train("low", 300, special="abc")
    about = BPETokenizer.train("low", 256).to_dict()
    with pytest.raises(ValueError, match="must be a string"):
        BPETokenizer.from_dict({**about, "vocab": [["a", "b"], *about["vocab"]]})


@pytest.mark.parametrize("token", [1.5, -1, 9, "1", None])
def test_what_is_no_token_is_said(token):
    for ask in (lambda: lens.neighbours(torch.randn(9, 4), token), lambda: lens.ranks(torch.randn(2, 9), token)):
        with pytest.raises(ValueError, match="token must lie in"):
            ask()


def test_logits_of_nan_have_no_ranks():
    with pytest.raises(ValueError, match="NaN"):
        lens.ranks(torch.full((2, 5), torch.nan), 1)


@pytest.mark.parametrize("step", [struct.pack("<If", 6, 32.0), struct.pack("<Ii", 5, -32), struct.pack("<I?", 7, True)])
def test_an_alignment_that_is_no_whole_number_is_no_gguf(tmp_path, step):
    path = tmp_path / "x.gguf"
    key = b"general.alignment"
    path.write_bytes(struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, len(key)) + key + step)
    with pytest.raises(gguf.GgufError):
        gguf.read(path)


def test_no_rows_give_no_rows():
    config = ModernConfig(rope_base=10**30)
    assert ModernGPT(config)(torch.zeros(0, 4, dtype=torch.int64)).shape == (0, 4, 65)


def test_a_hyphen_in_a_word_stays_one():
    words = ["-foo", "a", "b", "c"]
    shown = widgets.arithmetic(words, -torch.eye(4), examples=[("a", "b", "c")])._picture()
    assert "<code>-foo</code>" in shown
