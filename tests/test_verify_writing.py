"""Checks of samplers, of loops that generate, of caches: wrong ones are caught and named, right ones pass, all unusual.

That every mistake of the catalogue is caught is in test_catalogue.py; here are others of these kinds, and look-alikes.
"""

import math
import time

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gptbook import kv_cache, sampling, verify
from gptbook.model import GPT, GPTConfig
from gptbook.modern import ModernConfig, ModernGPT
from gptbook.verify import writing

SEEDS = settings(max_examples=20)


def failing(report) -> dict[str, str]:
    return {result.name: result.cause for result in report.results if result.status == "failed"}


def status(report, name: str) -> str:
    return report[name].status


# ---- the oracle of the sampler's check


@given(
    # Sixteenths: two logits that float32 cannot tell apart are equal to one of the two, and not to the other.
    z=st.lists(st.integers(-64, 64).map(lambda n: n / 16), min_size=2, max_size=9, unique=True),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([None, 1, 2, 5]),
    top_p=st.sampled_from([None, 0.0, 0.37, 0.8, 1.0]),
)
def test_the_expected_chances_are_those_of_page_10(z, temperature, top_k, top_p):
    """If this fails, the check and the book disagree about what a sampler should do."""
    z = torch.tensor([z], dtype=torch.float64)
    theirs = sampling.probabilities(z, temperature, top_k, top_p).double()
    ours = writing._chances(z, temperature, top_k, top_p)
    ordered = torch.softmax(z / (temperature or 1), -1).sort(descending=True).values.cumsum(-1)
    if top_p is None or (ordered - top_p).abs().min() > 1e-5:  # else rounding decides who belongs to the nucleus
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_the_bound_on_counts_is_one():
    """If this fails, a right sampler is called wrong now and then, or a wrong one passes."""
    generator = torch.Generator().manual_seed(0)
    p = torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0])
    for _ in range(300):
        counts = torch.bincount(torch.multinomial(p, 400, replacement=True, generator=generator), minlength=5)
        assert not writing.unlikely(counts, p)
    assert writing.unlikely(torch.tensor([200, 120, 60, 19, 1]), p), "a token that can never come came"
    assert writing.unlikely(torch.tensor([120, 200, 60, 20, 0]), p)
    assert not writing.unlikely(torch.tensor([400, 0]), torch.tensor([1.0, 0.0]))


def test_no_nucleus_of_the_check_hangs_on_rounding():
    """If this fails, float32 and float64 may keep different tokens, and a right sampler fails."""
    for case in (case for cases in writing.CASES.values() for case in cases if case[2] not in (None, 1.0)):
        temperature, top_k, top_p = case
        p = writing._top_k(writing._warm(writing.ROWS.double(), temperature), top_k)
        sums = p.sort(descending=True).values.cumsum(-1)
        assert (sums - top_p).abs().min() > 2e-3, case


# ---- samplers that are right


def by_hiding(logits, temperature=1.0, top_k=None, top_p=None):
    """As in many libraries: hide with -inf in the order of the vocabulary; ties stay; (B, 1)."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    logits = logits / temperature
    if top_k is not None:
        k = min(top_k, logits.size(-1))
        logits = logits.masked_fill(logits < logits.topk(k).values[:, -1:], -math.inf)
    if top_p is not None and top_p < 1:
        ordered, ids = logits.sort(descending=False)
        out = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
        out[:, -1] = False
        logits = logits.masked_fill(out.scatter(1, ids, out), -math.inf)
    return torch.multinomial(F.softmax(logits, dim=-1), 1)


def of_lecture(logits, temperature=1.0, top_k=None):
    """Without top_p, and temperature 0 refused."""
    if temperature <= 0:
        raise ValueError("temperature must be above 0")
    return by_hiding(logits, temperature, top_k)


def by_gumbel(logits, temp=1.0, k=None, p=None):
    """Other names, no softmax in the draw, a list comes back."""
    z = writing._chances(logits.double(), temp, k, p).log()
    return (z - (-torch.rand_like(z).clamp(min=1e-300).log()).log()).argmax(-1).tolist()


def log_then_divide(logits, *, temperature=1.0, top_k=None, top_p=None):
    """log_softmax(z) / T is softmax(z / T) in other clothes."""
    return by_hiding(F.log_softmax(logits, dim=-1), temperature, top_k, top_p).squeeze(-1).int(), "more"


@pytest.mark.parametrize("sample", [by_hiding, of_lecture, by_gumbel, log_then_divide])
def test_right_samplers_pass(sample):
    report = verify.check_sampler(sample)
    assert report.passed, report
    assert status(report, "frequencies") == "passed"
    assert status(report, "top-p") == ("not checked" if sample is of_lecture else "passed")


def test_our_own_sampler_passes():
    def sample(logits, temperature=1.0, top_k=None, top_p=None):
        return sampling.next_token(logits, temperature, top_k, None, top_p)

    assert all(result.passed for result in verify.check_sampler(sample).results)


@SEEDS
@given(seed=st.integers(0, 2**31))
def test_a_sampler_with_a_generator_of_its_own_passes_from_every_seed(seed):
    """If this fails, the sampling noise of an honest sampler is taken for a fault."""
    rng = np.random.default_rng(seed)

    def sample(logits, temperature=1.0, top_k=None, top_p=None):
        edges = writing._chances(logits.double(), temperature, top_k, top_p).cumsum(-1).numpy()
        return (edges < rng.random((len(edges), 1)) * edges[:, -1:]).sum(-1)

    assert verify.check_sampler(sample).passed


@pytest.mark.parametrize(
    ("chances", "words"), [(chances, words[:30]) for chances, words in writing.CONVENTIONS], ids=range(3)
)
def test_another_order_of_the_steps_only_differs(chances, words):
    def order(z, t, k, p):
        return writing._warm(z, t) if k is None and p is None else chances(z, t, k, p)

    report = verify.check_sampler(writing.Drawing(order))
    assert report.passed, report
    assert status(report, "together") in ("differs", "passed")
    assert status(report, "together") == "passed" or words in report["together"].cause


# ---- samplers that are wrong in other ways than the catalogue's


def only_sometimes(logits, temperature=1.0, top_k=None, top_p=None):
    kept = top_k + 1 if top_k and torch.rand(()) < 0.5 else top_k
    return by_hiding(logits, temperature, kept, top_p)


def normal_noise(logits, temperature=1.0, top_k=None, top_p=None):
    hidden = writing._chances(logits.double(), temperature, top_k, top_p).log()
    return (hidden + torch.randn_like(hidden) * (temperature > 0)).argmax(-1)


def half_precision_ids(logits, temperature=1.0, top_k=None, top_p=None):
    return by_hiding(logits, temperature, top_k, top_p).half()


def beyond(logits, temperature=1.0, top_k=None, top_p=None):
    return by_hiding(logits, temperature, top_k, top_p) + 1


def not_written(logits, temperature=1.0, top_k=None, top_p=None):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("sample", "check"),
    [
        (only_sometimes, "top-k"),
        (normal_noise, "frequencies"),
        (half_precision_ids, "shape"),
        (beyond, "shape"),
        (not_written, "shape"),
        (lambda logits, temperature=1.0: None, "shape"),
        (lambda logits, temperature=1.0: logits, "shape"),
        (lambda logits, temperature=1.0: by_hiding(logits[:1]).expand(len(logits), 1), "frequencies"),
    ],
)
def test_other_wrong_samplers_fail(sample, check):
    report = verify.check_sampler(sample)
    assert check in report.failed, report
    assert report[check].measured
    assert report[check].cause


def test_what_a_sampler_does_not_take_is_not_checked():
    report = verify.check_sampler(lambda logits: torch.multinomial(logits.softmax(-1), 1))
    assert report.passed
    assert {"temperature", "temperature-0", "top-k", "top-p", "together"} <= set(report.not_checked)


def test_a_sampler_that_hangs_gets_a_result(monkeypatch):
    monkeypatch.setattr("gptbook.verify.calling.LIMIT", 0.2)

    def hangs(logits, temperature=1.0):
        while True:
            time.sleep(0.01)

    assert verify.check_sampler(hangs).failed == ["shape"]


def test_random_numbers_are_where_they_were():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    verify.check_sampler(by_hiding)
    verify.check_generate(sampling.generate, 11, 8)
    assert torch.equal(torch.get_rng_state(), state)


# ---- generate


@torch.no_grad()
def with_loss(model, idx, max_new_tokens, temperature=1.0, do_sample=False, top_k=None):
    """Takes (logits, loss), draws, and crops only where it must."""
    for _ in range(max_new_tokens):
        seen = idx if idx.size(1) <= model.config.block_size else idx[:, -model.config.block_size :]
        logits, _ = model(seen)
        token = by_hiding(logits[:, -1, :], temperature, top_k)
        idx = torch.cat((idx, token), dim=1)
    return idx


def in_advance(model, idx, max_new_tokens, context_size):
    """Asks for the size, and fills a tensor made in advance."""
    B, T = idx.shape
    out = torch.empty(B, T + max_new_tokens, dtype=idx.dtype)
    out[:, :T] = idx
    with torch.inference_mode():
        for t in range(T, T + max_new_tokens):
            out[:, t] = model(out[:, max(0, t - context_size) : t])[:, -1].argmax(-1)
    return out


def of_objects(model, tokens, n):
    for _ in range(n):
        with torch.no_grad():
            logits = model(tokens[:, -model.block_size :]).logits
        tokens = torch.cat((tokens, logits[:, -1].argmax(-1)[:, None]), dim=1)
    return tokens, "more"


@SEEDS
@given(V=st.integers(5, 80), T=st.integers(2, 40), which=st.integers(0, 4))
def test_right_loops_pass(V, T, which):
    generate = [sampling.generate, kv_cache.generate, with_loss, in_advance, of_objects][which]
    report = verify.check_generate(generate, V, T)
    assert report.passed, report
    assert {"result", "tokens", "long-prompt", "rows", "no-tokens", "prompt-kept"} <= {
        result.name for result in report.results if result.passed
    }


def test_a_size_fixed_in_the_function_differs():
    def fixed(model, idx, max_new_tokens):
        for _ in range(max_new_tokens):
            idx = torch.cat((idx, model(idx[:, -64:])[:, -1].argmax(-1, keepdim=True)), dim=1)
        return idx

    assert status(verify.check_generate(fixed), "long-prompt") == "differs"
    assert "long-prompt" in verify.check_generate(fixed, 65, 32).failed
    assert status(verify.check_generate(fixed), "gradients") == "differs"


@pytest.mark.parametrize(
    ("wrong", "check", "words"),
    [
        (writing._loop(crop=lambda idx, T: idx[:, -T // 2 :]), "long-prompt", "which are not the prompt's last"),
        (writing._loop(pick=lambda logits: logits[:, logits.size(1) // 2]), "tokens", "right prompt"),
        (writing._loop(join=lambda idx, token: torch.cat((idx, token, token), dim=1)), "tokens", "page 10"),
        (writing._loop(join=lambda idx, token: torch.cat((idx, token.flip(0)), dim=1)), "rows", "page 10"),
        (lambda model, idx, max_new_tokens: idx.float(), "result", "page 10"),
        (lambda model, idx, max_new_tokens: None, "result", "page 10"),
        (lambda model, idx, max_new_tokens: 1 / 0, "result", "page 10"),
    ],
)
def test_other_wrong_loops_fail(wrong, check, words):
    report = verify.check_generate(wrong)
    assert check in report.failed, report
    assert words in report[check].cause


def test_a_loop_that_needs_more_than_a_model_is_not_checked():
    report = verify.check_generate(lambda model, idx, max_new_tokens: model.secret(idx))
    assert report.passed
    assert len(report.not_checked) == len(report.results)


# ---- caches


def loud(model, seed=0):
    """The model with random weights that are large enough for attention to matter."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.normal_(0, 1 / math.sqrt(p.size(-1)))
    return model


def gpt(seed=0, T=14, **changes):
    return loud(GPT(GPTConfig(vocab_size=11, block_size=T, n_layer=2, n_head=2, n_embd=12, **changes)), seed)


@SEEDS
@given(seed=st.integers(0, 10**6), T=st.integers(4, 30), which=st.integers(0, 4), double=st.booleans())
def test_right_caches_pass(seed, T, which, double):
    sizes = {"vocab_size": 11, "block_size": T, "n_layer": 2, "n_head": 2, "n_embd": 12}
    model = loud(ModernGPT(ModernConfig(**sizes)) if which == 1 else gpt(T=T, dropout=0.2), seed)
    model = model.double() if double else model

    def ours(idx, cache):
        return kv_cache.forward(model, idx, cache)

    def last_only(idx, cache):
        logits, cache = kv_cache.forward(model, idx, cache)
        return logits[:, -1], cache

    def recomputing(idx, cache):
        cache = idx if cache is None else torch.cat((cache, idx), dim=1)
        return model(cache[:, -T:])[:, -idx.size(1) :], cache

    def in_place(idx, cache):
        cache = [] if cache is None else cache
        cache.append(idx)
        return model(torch.cat(cache, dim=1)[:, -T:])[:, -idx.size(1) :], cache

    step = [ours, ours, last_only, recomputing, in_place][which]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.train()
    report = verify.check_cache(model, step)
    assert report.passed, report
    assert status(report, "branching") == ("differs" if step is in_place else "passed")
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


class Stranger(nn.Module):
    """A model that is not the book's: one layer, one head, positions in a table, whose step can be broken."""

    def __init__(self, T=10, C=16, V=9):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, C), nn.Embedding(T, C)
        self.q, self.k, self.v, self.out = (nn.Linear(C, C) for _ in range(4))
        self.head = nn.Linear(C, V)
        self.held = None

    def forward(self, idx):
        return self.step(idx, None)[0]

    def step(self, idx, cache, fault=""):
        S, T = 0 if cache is None else cache[0].size(1), idx.size(1)
        at = torch.arange(S, S + T)
        if fault == "positions restart":
            at = at - S
        if fault == "clamped":
            at = at.clamp(max=self.pos.num_embeddings - 1)
        x = self.tok(idx) + self.pos(at)
        k, v = self.k(x), self.v(x)
        if fault == "first row":
            k, v = k[:1].expand_as(k), v[:1].expand_as(v)
        if S and fault != "ignored":
            k, v = torch.cat((cache[0], k), dim=1), torch.cat((cache[1], v), dim=1)
        mask = torch.ones(T, k.size(1), dtype=torch.bool).triu(1 + k.size(1) - T)
        if fault == "top left":
            mask = torch.ones(T, k.size(1), dtype=torch.bool).triu(1)
        if (fault == "prompt" and not S) or (fault == "piece" and S):
            mask = torch.zeros_like(mask)
        scores = self.q(x) @ k.mT / 4
        x = x + self.out(scores.masked_fill(mask, -math.inf).softmax(-1) @ v)
        return self.head(x), (k, v)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("", ""),
        ("positions restart", "do positions go on"),
        ("first row", "the first row are kept"),
        ("ignored", "a text of its own"),
        ("top left", "upper left corner"),
        ("prompt", "the first piece has no mask"),
        ("piece", "a later piece has no mask"),
        ("clamped", "positions that are theirs no more"),
    ],
)
def test_faults_in_the_cache_of_a_strange_model_are_told_apart(fault, words):
    """If this fails, only the book's own model gets an answer."""
    model = loud(Stranger())
    report = verify.check_cache(model, lambda idx, cache: model.step(idx, cache, fault), 9, 10)
    assert report.passed == (not fault), report
    assert all(words in cause for cause in failing(report).values()), report


def test_a_step_that_stops_or_returns_something_else_fails():
    model = gpt()
    for step in (lambda idx, cache: 1 / 0, lambda idx, cache: model(idx), lambda idx, cache: (idx, None)):
        assert verify.check_cache(model, step).failed == ["result"]


def test_a_model_without_attention_to_the_past_is_not_checked():
    """If this fails, weights that hide every fault of a cache let it pass."""
    model = gpt()
    with torch.no_grad():
        for block in model.h:
            block.attn.c_proj.weight.zero_()
    report = verify.check_cache(model, lambda idx, cache: (model(idx), cache))
    assert report.passed
    assert len(report.not_checked) == len(report.results)
    assert "the past hardly moves" in report.results[0].cause
