"""Weights of others in our classes: the same logits as transformers, or one line that says why not."""

import copy
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import gguf
import huggingface_hub
import pytest
import regex
import safetensors.torch
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import ByteLevelBPETokenizer

from gptbook import PRESETS, assets, build, checkpoint, corpora, hub, kv_cache, modern, pretrained
from gptbook.modern import ModernConfig, rotary
from gptbook.pretrained import PretrainedError
from gptbook.tokenizers import BPETokenizer

SMALL = {"vocab_size": 61, "n_positions": 24, "n_embd": 24, "n_layer": 2, "n_head": 3}
AWKWARD = [
    "", " ", "  \n\n\t ", "It's 12345  3.14, isn't it?  ", "a  1 b\n 2", "x\u00a0 7\u2028y", "Ⅻ ½ ٣٤ 三",
    "Электрон заряжен отрицательно.", "日本語 🙂👍🏽 e\u0301", "<|endoftext|> <|im_start|>user", "we'Ll DON'T 'tis",
    "def f(x):\n    return x ** 2  # ok\r\n",
]  # fmt: skip


def randomised(config):
    """transformers' GPT-2 with every parameter random, biases and norms too: one left out or swapped would show."""
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def save(model, folder, style="hub"):
    """The model's folder as the library saves it, as state_dict() names tensors, or as the hub has them."""
    folder.mkdir(exist_ok=True, parents=True)
    if style == "library":
        model.save_pretrained(folder)
        return folder
    model.config.save_pretrained(folder)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if style == "hub":
        tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        if model.config.tie_word_embeddings:
            del tensors["lm_head.weight"]
        T = model.config.n_positions
        for i in range(model.config.n_layer):
            tensors[f"h.{i}.attn.bias"] = torch.ones(T, T).tril().view(1, 1, T, T)
            tensors[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def difference(loaded, reference, T=20):
    """The greatest difference of logits on two rows of random tokens, in standard deviations of the logits."""
    idx = torch.randint(reference.config.vocab_size, (2, T), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, found = reference(idx).logits, loaded.model(idx)
    return ((found - expected).abs().max() / expected.std()).item()


@pytest.fixture
def small(tmp_path):
    """A folder with a small random GPT-2, as the hub has it, and the model of the library."""
    reference = randomised(transformers.GPT2Config(**SMALL))
    return save(reference, tmp_path / "small"), reference


def edit(folder, **changes):
    about = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(about))


def rewrite(folder, change):
    """Change the dictionary of tensors of a folder."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    change(tensors)
    tensors = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    safetensors.torch.save_file(tensors, folder / "model.safetensors")


# A folder -------------------------------------------------------------------------------------------------------------


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    heads=st.integers(1, 4),
    width=st.integers(1, 6),
    layers=st.integers(1, 3),
    vocab=st.integers(2, 70),
    tied=st.booleans(),
    activation=st.sampled_from(["gelu_new", "gelu", "relu", "gelu_pytorch_tanh", "gelu_fast"]),
    style=st.sampled_from(["hub", "state_dict", "library"]),
)
def test_logits_are_those_of_transformers(tmp_path, heads, width, layers, vocab, tied, activation, style):
    config = transformers.GPT2Config(
        vocab_size=vocab, n_positions=21, n_embd=heads * width * 2, n_layer=layers, n_head=heads,
        activation_function=activation, tie_word_embeddings=tied, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    reference = randomised(config)
    shutil.rmtree(tmp_path / "model", ignore_errors=True)
    loaded = pretrained.load(save(reference, tmp_path / "model", style))
    assert difference(loaded, reference) < 1e-5
    assert (loaded.model.lm_head.weight is loaded.model.wte.weight) == tied
    assert not loaded.model.training
    assert all(p.dtype == torch.float32 and p.requires_grad for p in loaded.model.parameters())
    assert (loaded.name, loaded.source) == ("model", "folder")


def test_a_loaded_model_can_be_trained_saved_and_copied_like_any_other(small, tmp_path):
    """Its weights lie in memory in another order than a new model's, which nobody should have to know."""
    model = pretrained.load(small[0]).model
    idx = torch.randint(SMALL["vocab_size"], (2, 9), generator=torch.Generator().manual_seed(1))
    before = model(idx)
    checkpoint.save(tmp_path / "a", checkpoint.weights(model), {})
    copied, fresh = copy.deepcopy(model), build(model.config)
    checkpoint.load_weights(fresh.requires_grad_(False), checkpoint.load(tmp_path / "a")[0])
    for other in (copied, fresh.requires_grad_(True)):
        assert torch.allclose(other(idx), before, atol=1e-5)
    after = []
    for other in (model, copied, fresh):
        optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2)
        for _ in range(2):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(other(idx[:, :-1]).flatten(0, 1), idx[:, 1:].flatten()).backward()
            optimizer.step()
        after.append(other(idx))
        assert other.lm_head.weight is other.wte.weight
    assert (after[0] - before).abs().max() > 0.01
    assert torch.allclose(after[1], after[0], atol=1e-4)
    assert torch.allclose(after[2], after[0], atol=1e-4)


def test_half_precision_is_read_into_fp32(small):
    folder, reference = small
    rewrite(folder, lambda tensors: tensors.update({k: v.to(torch.bfloat16) for k, v in tensors.items()}))
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    assert difference(pretrained.load(folder), reference) < 1e-5


SWAPS = {
    "a square weight not transposed": lambda t: t.update({"h.0.attn.c_proj.weight": t["h.0.attn.c_proj.weight"].T}),
    "two norms swapped": lambda t: t.update(
        {"h.0.ln_1.weight": t["h.0.ln_2.weight"], "h.0.ln_2.weight": t["h.0.ln_1.weight"]}
    ),
    "queries and keys swapped": lambda t: t.update(
        {"h.1.attn.c_attn.weight": t["h.1.attn.c_attn.weight"].view(24, 3, 24)[:, [1, 0, 2]].reshape(24, 72)}
    ),
    "a bias left at zero": lambda t: t["h.1.mlp.c_proj.bias"].zero_(),
}


@pytest.mark.parametrize("name", SWAPS)
def test_a_mistake_in_loading_would_show(small, name):
    """If this fails, the comparison above passes a model with the mistake."""
    folder, reference = small
    rewrite(folder, SWAPS[name])
    assert difference(pretrained.load(folder), reference) > 1e-2


def test_tied_weights_may_be_stored_under_either_name_but_must_be_equal(small):
    folder, reference = small
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors.pop("wte.weight")}))
    assert difference(pretrained.load(folder), reference) < 1e-5
    rewrite(folder, lambda tensors: tensors.update({"wte.weight": tensors["lm_head.weight"] + 1}))
    with pytest.raises(PretrainedError, match=r"lm_head\.weight differs from wte\.weight"):
        pretrained.load(folder)


CONFIGS = {
    "another family": ({"model_type": "llama"}, "model_type 'llama', this loads 'gpt2'"),
    "another epsilon": ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon is 1e-06"),
    "no scale": ({"scale_attn_weights": False}, "scale_attn_weights is False"),
    "a scale for each layer": ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
    "cross attention": ({"add_cross_attention": True}, "add_cross_attention is True"),
    "another width inside": ({"n_inner": 7}, "n_inner is 7"),
    "another activation": ({"activation_function": "silu"}, "activation_function is 'silu'"),
    "an activation of no kind": ({"activation_function": ["gelu"]}, "activation_function is"),
    "a size that is no number": ({"n_layer": "2"}, "n_layer must be a whole number"),
    "no heads": ({"n_head": 0}, "n_head must be at least 1"),
    "tied perhaps": ({"tie_word_embeddings": None}, "tied must be True or False"),
    "more layers than weights": ({"n_layer": 3}, "has 2 layers, and config.json says n_layer 3"),
    "fewer layers than weights": ({"n_layer": 1}, "has 2 layers, and config.json says n_layer 1"),
    "another width": ({"n_embd": 48}, r"wte\.weight is \(\d+, 24\), and config"),
    "an untied head that is not there": ({"tie_word_embeddings": False}, r"lm_head\.weight is missing$"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_another_configuration_is_named_in_one_line(small, name):
    folder, _ = small
    changes, message = CONFIGS[name]
    edit(folder, **changes)
    with pytest.raises(PretrainedError, match=message) as caught:
        pretrained.load(folder)
    assert "\n" not in str(caught.value)


def cut(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def only(folder, name):
    (folder / "model.safetensors").rename(folder / name)


FOLDERS = {
    "a pickle": (lambda f: only(f, "pytorch_model.bin"), "pickle, which can run any code"),
    "several files": (lambda f: only(f, "model.safetensors.index.json"), "split into several files: save them as one"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"holds no model\.safetensors: put the weights there"),
    "no configuration": (lambda f: (f / "config.json").unlink(), r"config\.json cannot be read \(No such file"),
    "no JSON": (lambda f: (f / "config.json").write_text("<html>"), r"config\.json is no JSON"),
    "JSON of another kind": (lambda f: (f / "config.json").write_text("[]"), "model_type None"),
    "cut short": (cut, "damaged, cut short, or no safetensors"),
    "a web page": (lambda f: (f / "model.safetensors").write_text("<html>" * 99), "no safetensors"),
    "whole numbers": (
        lambda f: rewrite(f, lambda t: t.update({"ln_f.bias": t["ln_f.bias"].long()})),
        r"ln_f\.bias holds torch\.int64",
    ),
    "one name twice": (
        lambda f: rewrite(f, lambda t: t.update({"transformer.ln_f.bias": t["ln_f.bias"]})),
        "comes twice, with the prefix and without",
    ),
    "a stranger": (
        lambda f: rewrite(f, lambda t: t.update({"score.weight": torch.ones(2)})),
        r"score\.weight is no tensor of such a model",
    ),
    "a missing tensor": (
        lambda f: rewrite(f, lambda t: t.pop("h.1.ln_2.bias")),
        r"model\.safetensors: h\.1\.ln_2\.bias is missing$",
    ),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_another_folder_is_named_in_one_line(small, name):
    folder, _ = small
    change, message = FOLDERS[name]
    change(folder)
    with pytest.raises(PretrainedError, match=message) as caught:
        pretrained.load(str(folder))
    assert "\n" not in str(caught.value)


def test_a_name_that_is_none_is_one_line(tmp_path):
    with pytest.raises(PretrainedError, match="no folder 'gpt3': the names are gpt2, smollm2"):
        pretrained.load("gpt3")


# Tokenizers -----------------------------------------------------------------------------------------------------------


def trained(folder, size=380):
    """A small byte-level vocabulary of the library, whose special token comes last, as GPT-2's does."""
    library = ByteLevelBPETokenizer()
    library.train_from_iterator(AWKWARD * 3 + [(Path(__file__)).read_text()], vocab_size=size, show_progress=False)
    library.add_special_tokens(["<|endoftext|>"])
    library.save_model(str(folder))
    ids = json.loads((folder / "vocab.json").read_text()) | {"<|endoftext|>": library.get_vocab_size() - 1}
    (folder / "vocab.json").write_text(json.dumps(ids))
    return library


@pytest.mark.parametrize("kind", ["two files", "one file", "one file, merges in words"])
def test_a_folders_tokenizer_gives_the_librarys_ids(tmp_path, kind):
    library = trained(tmp_path)
    folder = save(randomised(transformers.GPT2Config(**SMALL | {"vocab_size": library.get_vocab_size()})), tmp_path)
    if kind != "two files":
        library.save(str(folder / "tokenizer.json"))
        for name in ("vocab.json", "merges.txt"):
            (folder / name).unlink()
    if kind == "one file, merges in words":
        about = json.loads((folder / "tokenizer.json").read_text())
        about["model"]["merges"] = [" ".join(pair) for pair in about["model"]["merges"]]
        (folder / "tokenizer.json").write_text(json.dumps(about))
    loaded = pretrained.load(folder)
    assert loaded.tokenizer.vocab_size == library.get_vocab_size()
    for text in AWKWARD:
        ids = loaded.encode(text)
        if "<|" not in text:  # the library takes it for the special token, and we never do
            assert ids == library.encode(text).ids, text
        assert loaded.decode(ids) == text
        assert loaded.decode(torch.tensor(ids, dtype=torch.int64)) == text
    end = library.get_vocab_size() - 1
    assert loaded.tokenizer.encode("<|endoftext|>", allowed_special="all") == [end]
    assert end not in loaded.encode("<|endoftext|>")


def spoil(folder, **changes):
    about = json.loads((folder / "tokenizer.json").read_text())
    about.update(changes)
    (folder / "tokenizer.json").write_text(json.dumps(about))


UNUSABLE = {
    "none": (
        lambda f: (f / "tokenizer.json").unlink(),
        r"holds no vocab\.json with merges\.txt, and no tokenizer\.json",
    ),
    "no JSON": (lambda f: (f / "tokenizer.json").write_text("{"), "is none of GPT-2's kind"),
    "other words": (lambda f: spoil(f, pre_tokenizer={"type": "Whitespace"}), "not byte-level BPE"),
    "another text": (lambda f: spoil(f, normalizer={"type": "Lowercase"}), "not byte-level BPE"),
    "a blank in front": (
        lambda f: spoil(f, pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True}),
        "not byte-level BPE",
    ),
    "too large": (lambda f: None, r"tokenizer\.json has \d+ tokens, the model 61"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_without_a_tokenizer_the_model_works_and_text_is_one_line(small, name):
    folder, reference = small
    library = trained(folder)
    library.save(str(folder / "tokenizer.json"))
    for file in ("vocab.json", "merges.txt"):
        (folder / file).unlink()
    change, message = UNUSABLE[name]
    change(folder)
    loaded = pretrained.load(folder)
    assert difference(loaded, reference) < 1e-5
    for use in (lambda: loaded.encode("text"), lambda: loaded.decode([1])):
        with pytest.raises(PretrainedError, match=message) as caught:
            use()
        assert "\n" not in str(caught.value)


def test_vocabularies_by_name(monkeypatch):
    monkeypatch.setattr(assets, "fetch", lambda name: Path(name))
    monkeypatch.setattr(BPETokenizer, "from_ranks", lambda path, pattern, special: (path.name, pattern, special))
    for name, asset in {"gpt2": "r50k_base", "r50k_base": "r50k_base", "cl100k_base": "cl100k_base"}.items():
        assert pretrained.vocabulary(name)[0] == asset
    with pytest.raises(PretrainedError, match="no vocabulary 'p50k': the names are gpt2, cl100k_base, o200k_base"):
        pretrained.vocabulary("p50k")
    monkeypatch.undo()
    monkeypatch.setattr(assets, "find", lambda name: None)
    with pytest.raises(PretrainedError, match="not on this machine, and GPTBOOK_OFFLINE is set"):
        pretrained.vocabulary("gpt2")


@pytest.mark.parametrize("name", pretrained.ENCODINGS)
def test_special_tokens_and_patterns_are_those_of_tiktoken(monkeypatch, name):
    from tiktoken_ext import openai_public

    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *args, **kwargs: {})
    asset, pattern, special = pretrained.ENCODINGS[name]
    about = getattr(openai_public, asset)()
    assert about["special_tokens"] == special
    text = " ".join(AWKWARD)
    assert regex.findall(about["pat_str"], text) == regex.findall(pattern, text)


# A Llama in GGUF ------------------------------------------------------------------------------------------------------

LLAMA = ModernConfig(
    vocab_size=300, block_size=64, n_layer=2, n_head=6, n_kv_head=2, n_embd=48, n_inner=80, rope_base=5000.0
)


@pytest.fixture(scope="module")
def llama():
    """transformers' Llama of that configuration, every parameter random."""
    torch.manual_seed(0)
    c = LLAMA
    config = transformers.LlamaConfig(
        vocab_size=c.vocab_size, hidden_size=c.n_embd, intermediate_size=c.inner, num_hidden_layers=c.n_layer,
        num_attention_heads=c.n_head, num_key_value_heads=c.kv_heads, max_position_embeddings=c.block_size,
        rms_norm_eps=c.norm_eps, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_base},
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def pairs(weight, heads):
    """Rows of a query or key weight as GGUF has them: i and i + D/2, which the library turns together, side by side."""
    rows, width = weight.shape
    return weight.view(heads, 2, rows // heads // 2, width).transpose(1, 2).reshape(rows, width)


def write_llama(path, model, neighbours=True, fields=(), drop=(), extra=()):
    c = LLAMA
    writer = gguf.GGUFWriter(path, "llama")
    about = {
        "llama.block_count": c.n_layer, "llama.context_length": c.block_size, "llama.embedding_length": c.n_embd,
        "llama.feed_forward_length": c.inner, "llama.attention.head_count": c.n_head,
        "llama.attention.head_count_kv": c.kv_heads, "llama.rope.freq_base": c.rope_base,
        "llama.rope.dimension_count": 8, "llama.attention.layer_norm_rms_epsilon": c.norm_eps,
        "llama.vocab_size": c.vocab_size, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
    }  # fmt: skip
    for key, value in (about | dict(fields)).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        if value != "":
            add(key, value)
    from gptbook.tokenizers import BYTE_TO_CHARACTER

    words = ["<|endoftext|>", *BYTE_TO_CHARACTER.values(), "th", "the", *(f"<|{i}|>" for i in range(41))]
    writer.add_token_list(words)
    writer.add_token_types([3] + [1] * 258 + [3] * 41)
    writer.add_token_merges(["t h", "th e"])
    tensors = {"token_embd": model.model.embed_tokens.weight, "output_norm": model.model.norm.weight}
    for i, layer in enumerate(model.model.layers):
        a, m, b = layer.self_attn, layer.mlp, f"blk.{i}."
        q, k = a.q_proj.weight, a.k_proj.weight
        tensors |= {
            b + "attn_q": pairs(q, c.n_head) if neighbours else q,
            b + "attn_k": pairs(k, c.kv_heads) if neighbours else k,
            b + "attn_v": a.v_proj.weight, b + "attn_output": a.o_proj.weight, b + "ffn_gate": m.gate_proj.weight,
            b + "ffn_up": m.up_proj.weight, b + "ffn_down": m.down_proj.weight,
            b + "attn_norm": layer.input_layernorm.weight, b + "ffn_norm": layer.post_attention_layernorm.weight,
        }  # fmt: skip
    for name, tensor in (tensors | dict(extra)).items():
        if name not in drop:
            writer.add_tensor(f"{name}.weight", tensor.detach().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_llama_from_gguf_has_the_logits_of_transformers(tmp_path, llama):
    loaded = pretrained._from_gguf(write_llama(tmp_path / "a.gguf", llama), LLAMA, "a", "test")
    assert difference(loaded, llama, T=60) < 1e-5
    assert loaded.model.lm_head.weight is loaded.model.wte.weight
    assert torch.equal(loaded.model.cos, rotary(LLAMA)[0])  # the buffers are not among what is left undrawn
    assert loaded.encode("the<|endoftext|>")[0] == 258
    assert loaded.tokenizer.encode("<|endoftext|>", allowed_special="all") == [0]


def test_a_llama_whose_pairs_are_halves_would_show(tmp_path, llama):
    """If this fails, the comparison above passes weights that turn the wrong numbers together."""
    path = write_llama(tmp_path / "a.gguf", llama, neighbours=False)
    assert difference(pretrained._from_gguf(path, LLAMA, "a", "test"), llama, T=60) > 1e-2


OTHER = {
    "layers": ({"fields": {"llama.block_count": 3}}, r"llama\.block_count is 3, the preset's 2"),
    "base": ({"fields": {"llama.rope.freq_base": 10000.0}}, r"freq_base is 10000\.0, the preset's 5000\.0"),
    "missing": ({"fields": {"llama.vocab_size": ""}}, r"llama\.vocab_size is None, the preset's 300"),
    "scaling": ({"fields": {"llama.rope.scaling.type": "yarn"}}, r"llama\.rope\.scaling\.type changes the turns"),
    "no tensor": ({"drop": ["blk.1.ffn_up"]}, r"a\.gguf: blk\.1\.ffn_up\.weight is missing"),
    "one more": ({"extra": {"output": torch.ones(300, 48)}}, r"a\.gguf: output\.weight is no tensor of such a model"),
    "a shape": ({"extra": {"output_norm": torch.ones(47)}}, r"ln_f\.weight is \(47,\), the model's \(48,\)"),
}


@pytest.mark.parametrize("name", OTHER)
def test_another_gguf_is_named_in_one_line(tmp_path, llama, name):
    changes, message = OTHER[name]
    with pytest.raises(PretrainedError, match=message) as caught:
        pretrained._from_gguf(write_llama(tmp_path / "a.gguf", llama, **changes), LLAMA, "a", "test")
    assert "\n" not in str(caught.value)


# The hub --------------------------------------------------------------------------------------------------------------

COMMIT = "ab" * 20


class StandIn(ThreadingHTTPServer):
    """A hub on this machine with one repository, which can be told to misbehave.

    `mode` is "ok", a status, "hang", "page" (HTML for everything), "short" (half of the weights), "cut" (the connection
    ends in the middle of them), "lie" (other bytes than the sha256 says) or "stop" (half of them, and then no more).
    """

    daemon_threads = True

    def __init__(self, folder):
        self.folder, self.mode, self.asked = folder, "ok", []
        self.released = threading.Event()
        super().__init__(("127.0.0.1", 0), Answer)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        mode, server = self.server.mode, self.server
        server.asked.append((self.command, self.path))
        if mode == "hang":
            server.released.wait(30)
            return
        if mode == "page":
            return self.give(b"<!doctype html><html>Please log in</html>", {"Content-Type": "text/html"})
        if isinstance(mode, int):
            return self.give(b"", {}, mode)
        prefix, _, rest = self.path.partition("/resolve/")
        path = server.folder / rest.partition("/")[2]
        if prefix != f"/{hub.REPO}" or not path.is_file():
            return self.give(b"", {"X-Error-Code": "EntryNotFound"}, 404)
        content = path.read_bytes()
        tag = sha256(content).hexdigest()
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{tag if path.suffix == ".safetensors" else tag[:40]}"'}
        if path.suffix == ".safetensors" and self.command == "GET" and mode != "ok":
            if mode == "short":
                content = content[: len(content) // 2]
            if mode == "lie":
                content = content[:-4] + b"abcd"
            if mode in ("cut", "stop"):
                return self.give(content, headers, half=True)
        self.give(content, headers)

    def give(self, content, headers, status=200, half=False):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if half else content)
            self.wfile.flush()
        if half:
            if self.server.mode == "stop":
                self.server.released.wait(30)
            self.close_connection = True


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A hub that has a small random GPT-2 with a tokenizer, and an empty cache."""
    folder = tmp_path / "served"
    folder.mkdir()
    size = trained(folder).get_vocab_size()
    server = StandIn(folder)
    server.reference = randomised(transformers.GPT2Config(**SMALL | {"vocab_size": size}))
    save(server.reference, folder)
    constants = huggingface_hub.constants
    monkeypatch.delenv("GPTBOOK_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", server.address)  # the client has read it already, so:
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.address + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    monkeypatch.setattr(huggingface_hub.file_download.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(hub, "_given_up", {})
    monkeypatch.setattr(assets, "_said", set())
    monkeypatch.setattr(assets, "fetch", nothing)
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()


def nothing(name):
    raise assets.AssetError(f"{name} is not here")


def test_gpt2_from_a_hub_then_from_its_cache(stand_in, monkeypatch):
    assert pretrained.available() == "gpt2"
    loaded = pretrained.load("gpt2")
    assert difference(loaded, stand_in.reference) < 1e-5
    assert (loaded.name, loaded.source) == ("gpt2", "the hub")
    assert loaded.decode(loaded.encode("the text")) == "the text"
    assert loaded.model.config.n_embd == SMALL["n_embd"]
    stand_in.mode = 500
    asked = len(stand_in.asked)
    for setting in (None, "GPTBOOK_OFFLINE"):
        if setting:
            monkeypatch.setenv(setting, "1")
        again = pretrained.load()
        assert (again.name, again.source) == ("gpt2", "the hub's cache")
        assert difference(again, stand_in.reference) < 1e-5
    assert len(stand_in.asked) == asked


FAILURES = {
    500: "cannot be had from the hub",
    404: "cannot be had from the hub",
    "hang": r"cannot be had from the hub \(no answer within 0\.5 seconds\)",
    "page": r"cannot be had from the hub \(what answers there is no hub\)",
    "short": r"could not be fetched from the hub \(Consistency check failed",
    "cut": r"could not be fetched from the hub \(",
    "stop": r"could not be fetched from the hub \(",
    "lie": r"model\.safetensors of openai-community/gpt2 has the wrong sha256: delete ",
}


@pytest.mark.parametrize("mode", FAILURES)
def test_a_hub_that_fails_is_one_line_and_waited_for_once(stand_in, monkeypatch, mode, capsys):
    stand_in.mode = mode
    if mode == "hang":
        monkeypatch.setattr(hub, "PROBE_SECONDS", 0.5)
    with pytest.raises(PretrainedError, match=FAILURES[mode]) as caught:
        pretrained.load("gpt2")
    assert "\n" not in str(caught.value)
    until = time.monotonic() + 20
    while not stand_in.asked and time.monotonic() < until:  # the thread that is left behind may ask late
        time.sleep(0.05)
    asked = len(stand_in.asked)
    with pytest.raises(PretrainedError, match=FAILURES[mode] if mode == "lie" else "from the hub"):
        pretrained.load("gpt2")
    assert len(stand_in.asked) == asked
    with pytest.raises(PretrainedError, match=r"from the hub|wrong sha256.*smollm2 is not here"):
        pretrained.load()
    monkeypatch.setattr(assets, "fetch", lambda name: Path(name))
    monkeypatch.setattr(pretrained, "_from_gguf", lambda path, config, name, source: name)
    assert pretrained.load() == "smollm2"  # the next one serves
    assert "passed over gpt2: " in capsys.readouterr().err


def test_a_hub_that_lied_can_be_asked_again_once_its_copy_is_deleted(stand_in, tmp_path):
    stand_in.mode = "lie"
    with pytest.raises(PretrainedError, match="wrong sha256") as caught:
        pretrained.load("gpt2")
    folder = Path(str(caught.value).partition("delete ")[2].partition(" and ")[0])
    assert folder.is_relative_to(tmp_path / "cache")
    shutil.rmtree(folder)
    stand_in.mode = "ok"
    assert difference(pretrained.load("gpt2"), stand_in.reference) < 1e-5


def test_the_public_hubs_files_are_known_by_their_hash(stand_in, tmp_path, monkeypatch):
    """A copy under the pinned revision must be the pinned one, wherever it came from."""
    snapshot = tmp_path / "cache" / "models--gpt2" / "snapshots" / hub.REVISION
    shutil.copytree(stand_in.folder, snapshot)
    with pytest.raises(PretrainedError, match=r"config\.json of openai-community/gpt2 has the wrong sha256"):
        pretrained.load("gpt2")
    for name in hub.SHA256:
        monkeypatch.setitem(hub.SHA256, name, sha256((snapshot / name).read_bytes()).hexdigest())
    loaded = pretrained.load("gpt2")
    assert loaded.source == "the hub's cache"
    assert difference(loaded, stand_in.reference) < 1e-5
    assert not stand_in.asked


def test_offline_the_setting_is_named(stand_in, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PretrainedError, match="not in the hub's cache, and HF_HUB_OFFLINE is set: unset it"):
        pretrained.load("gpt2")
    monkeypatch.setenv("GPTBOOK_OFFLINE", "1")
    with pytest.raises(PretrainedError, match="GPTBOOK_OFFLINE is set"):
        pretrained.load("gpt2")
    with pytest.raises(PretrainedError, match=r"GPTBOOK_OFFLINE is set.*; smollm2 is not here"):
        pretrained.available()
    assert not stand_in.asked


def test_without_the_hubs_client_the_cure_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"huggingface_hub, which is missing: pip install -e '\.\[pretrained\]'"):
        pretrained.load("gpt2")
    monkeypatch.setattr(assets, "fetch", lambda name: Path(name))
    assert pretrained.available() == "smollm2"


def test_gpt2_through_the_ordinary_client_in_a_process_of_its_own(stand_in, tmp_path):
    """If this fails, what the tests above change inside the client hides that its settings are not honoured."""
    program = (
        "from gptbook import pretrained; import torch; l = pretrained.load('gpt2');"
        "print(l.name, '|', l.source, '|', l.model(torch.tensor([[1, 2, 3]]))[0, -1, 0].item())"
    )
    dropped = ("GPTBOOK_OFFLINE", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HUGGINGFACE_HUB_CACHE")
    env = {name: value for name, value in os.environ.items() if name not in dropped}
    env |= {"HF_ENDPOINT": stand_in.address, "HF_HOME": str(tmp_path / "home")}
    said = []
    for offline in ({}, {"HF_HUB_OFFLINE": "1"}):
        done = subprocess.run([sys.executable, "-c", program], env=env | offline, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.strip().split(" | "))
    (name, source, logit), (again, cache, same) = said
    assert (name, source, again, cache) == ("gpt2", "the hub", "gpt2", "the hub's cache")
    assert logit == same
    assert (tmp_path / "home" / "hub").is_dir()


# SmolLM2 itself -------------------------------------------------------------------------------------------------------

PASSAGE = """Twelve heads read the same line, and each of them reads it in its own way. One looks at the word before. \
One looks for the last time that this word came up, and at what followed it. A third attends to nothing in particular,
and rests on the first token, as most heads do most of the time. In 2019 nobody had told them to. def f(x): return x + 1
What they do was found by training on text alone: 1,000,000 small steps, each of which made the next word a little less
of a surprise. The café on the corner sells 12 kinds of tea; "Which one is best?" asked Alice. It's hard to say.

Then the second half of the room began to speak. A model has no notion of true and false, said the librarian, who had
read more than anyone; it has a notion of what is likely to be written. Tell it that water boils at 100 degrees and it
will go on about kettles. Tell it that water boils at 7 degrees, and it will go on about kettles all the same! Somebody
laughed. "So it is like my uncle," said the boy at the window, "who knows the end of every sentence but not what it is
about." Nobody answered, for the rain had stopped; and on the far side of the river a bell, three times as old as the
town, was counting the hour: one, two, three, four...
"""


@pytest.fixture(scope="module")
def smollm2(smollm2_file):
    """The model in our class."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assets, "fetch", lambda name: smollm2_file)
        return pretrained.load("smollm2")


@pytest.fixture(scope="module")
def reference(smollm2_file):
    """The model and the tokenizer of transformers, from the same file."""
    about = {"pretrained_model_name_or_path": smollm2_file.parent, "gguf_file": smollm2_file.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(**about, dtype=torch.float32).eval()
    return model, transformers.AutoTokenizer.from_pretrained(**about)


def test_smollm2_is_the_preset(smollm2):
    assert smollm2.model.config == PRESETS["smollm2"]
    assert sum(p.numel() for p in smollm2.model.parameters()) == 134_515_008
    assert smollm2.model.lm_head.weight is smollm2.model.wte.weight
    assert smollm2.tokenizer.vocab_size == 49152
    assert len(smollm2.tokenizer.special) == 17
    assert smollm2.source


@pytest.mark.parametrize("text", ["The capital of France is", PASSAGE])
def test_smollm2_has_the_logits_of_transformers(smollm2, reference, text):
    idx = torch.tensor([smollm2.encode(text)])
    assert idx.size(1) == 5 or idx.size(1) > 300
    with torch.no_grad():
        found, expected = smollm2.model(idx), reference[0](idx).logits
    assert (found - expected).abs().max() < 1e-4
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


def test_smollm2_with_halves_turned_would_show(smollm2, reference, monkeypatch):
    """If this fails, the comparison above passes a model that turns the wrong numbers together."""

    def halves(x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)

    idx = torch.tensor([smollm2.encode(PASSAGE)])
    with torch.no_grad():
        expected = reference[0](idx).logits
        monkeypatch.setattr(modern, "rotate", halves)
        assert (smollm2.model(idx) - expected).abs().max() > 5


def test_smollm2_writes_the_text_that_transformers_writes(smollm2, reference):
    idx = torch.tensor([smollm2.encode("Once upon a time")])
    ours = kv_cache.generate(smollm2.model, idx, 64, temperature=0)
    theirs = reference[0].generate(
        idx, attention_mask=torch.ones_like(idx), max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert ours.size(1) == theirs.size(1) == idx.size(1) + 64
    assert smollm2.decode(ours[0]) == reference[1].decode(theirs[0], skip_special_tokens=False)


@pytest.fixture(scope="module")
def library(smollm2_file):
    """A tokenizer of the library, put together from what the file says."""
    import tokenizers

    fields = pretrained.gguf.read(smollm2_file).fields
    words, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]]
    made = tokenizers.Tokenizer(tokenizers.models.BPE({word: i for i, word in enumerate(words)}, merges))
    pre = tokenizers.pre_tokenizers
    made.pre_tokenizer = pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)])
    made.add_special_tokens([word for word, kind in zip(words, kinds, strict=True) if kind == 3])
    return made


def test_smollm2s_ids_are_those_of_both_libraries(smollm2, library, reference):
    for text in (corpora.load("tinyshakespeare").text, *AWKWARD, PASSAGE):
        ids = smollm2.tokenizer.encode(text, allowed_special="all")
        assert ids == library.encode(text).ids, text[:50]
        # transformers does not set digits apart, which shows where several blanks stand before one.
        if text == PASSAGE or not any(character.isnumeric() for character in text):
            assert ids == reference[1].encode(text), text[:50]
        assert smollm2.decode(ids) == text


@given(st.text(st.sampled_from(" \t\n12٣½aZéßяж三🙂.,'\"s-\u00a0\u2028")))
def test_smollm2s_ids_of_any_mixture_are_those_of_the_library(smollm2, library, text):
    assert smollm2.encode(text) == library.encode(text).ids


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="only Linux tells the peak of one program alone")
def test_smollm2_takes_no_more_memory_than_a_page_may(smollm2_file):
    """Loaded and used in a process of its own, torch included: two copies at once would show."""
    program = (
        "import torch; from pathlib import Path; from gptbook import pretrained;"
        "loaded = pretrained.load('smollm2');"
        "torch.no_grad()(loaded.model)(torch.tensor([loaded.encode('word ' * 64)]));"
        "print(next(l for l in Path('/proc/self/status').read_text().splitlines() if l.startswith('VmHWM')).split()[1])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1.25 * 2**20  # KiB
