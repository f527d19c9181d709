"""Looking inside: what is shown is what the model computes, and the model is afterwards what it was before."""

import math
from contextlib import ExitStack

import pytest
import torch
import torch.nn.functional as F

from gptbook import lens
from gptbook.model import GPT, GPTConfig
from gptbook.modern import ModernConfig
from gptbook.recipes import build
from gptbook.sampling import evaluating


def model(seed=0, kind=GPTConfig, **fields):
    """A small GPT with weights of every size, so that no head is nearly uniform."""
    torch.manual_seed(seed)
    fields = {"vocab_size": 11, "block_size": 8, "n_layer": 3, "n_head": 2, "n_embd": 12} | fields
    made = build(kind(**fields)).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith("bias") or "ln_" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                torch.nn.init.normal_(parameter, std=0.6)
    return made


MODERN = {
    "modern": {"n_head": 6, "n_kv_head": 2},
    "one key for all": {"n_head": 3, "n_kv_head": 1, "tied": False},
    "layer norms, biases, no gate": {"norm": "layer", "bias": True, "activation": "gelu"},
    "learned positions": {"positions": "learned", "dropout": 0.5},
    "as the recipe shakespeare": {
        "gain": False, "activation": "relu2", "qk_norm": True, "embedding_norm": True, "tied": False,
        "ngrams": 3, "ngram_rows": 53, "ngram_dropout": 0.5, "channel_dropout": 0.5,
    },
}  # fmt: skip


def modern_model(name="modern"):
    return model(kind=ModernConfig, **MODERN[name])


def text(B=2, T=8, V=11, seed=1):
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(seed))


def clean(made, idx):
    with evaluating(made):
        return made(idx)


MODELS = {
    "plain": {},
    "double": {},
    "tied, with biases": {"tied": True, "qkv_bias": True, "head_bias": True, "activation": "relu"},
    "dropout": {"dropout": 0.5},
    "one head": {"n_head": 1},
    "one layer": {"n_layer": 1},
}


@pytest.fixture(params=MODELS)
def made(request):
    one = model(**MODELS[request.param])
    return one.double() if request.param == "double" else one


def by_hand(made, idx):
    """The weights (L, B, H, T, T) and the stream (2L+1, B, T, C) from the parameters, head by head and row by row."""
    C, H = made.config.n_embd, made.config.n_head
    D, T = C // H, idx.size(1)
    weights, streams = [], [made.wte.weight[idx] + made.wpe.weight[:T]]

    def norm(ln, x):
        x = x - x.mean(-1, keepdim=True)
        return x / (x.square().mean(-1, keepdim=True) + ln.eps).sqrt() * ln.weight + ln.bias

    for block in made.h:
        x = norm(block.ln_1, streams[-1])
        packed = block.attn.c_attn.weight
        bias = block.attn.c_attn.bias if block.attn.c_attn.bias is not None else torch.zeros(3 * C).to(x.dtype)
        rows, heads = [], []
        for h in range(H):
            parts = [slice(part * C + h * D, part * C + (h + 1) * D) for part in range(3)]
            q, k, v = (x @ packed[part].T + bias[part] for part in parts)
            matrix = x.new_zeros(len(idx), T, T)
            for t in range(T):
                scores = torch.stack([(q[:, t] * k[:, s]).sum(-1) / math.sqrt(D) for s in range(t + 1)], dim=1)
                matrix[:, t, : t + 1] = scores.exp() / scores.exp().sum(1, keepdim=True)
            rows.append(matrix)
            heads.append(matrix @ v)
        weights.append(torch.stack(rows, dim=1))
        streams.append(streams[-1] + torch.cat(heads, -1) @ block.attn.c_proj.weight.T + block.attn.c_proj.bias)
        streams.append(streams[-1] + block.mlp(norm(block.ln_2, streams[-1])))
    return torch.stack(weights), torch.stack(streams)


@pytest.mark.parametrize("T", [1, 2, 5, 8])
def test_attention_and_stream_are_those_computed_by_hand(made, T):
    """If this fails, pages show weights or vectors that the model does not compute."""
    idx = text(3, T)
    with torch.no_grad():
        weights, stream = by_hand(made, idx)
    torch.testing.assert_close(lens.attention(made, idx), weights, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lens.stream(made, idx), stream, rtol=1e-4, atol=1e-4)
    if T > 2 and made.config.n_head > 1:  # the control: heads in another order are not the same
        assert (lens.attention(made, idx) - weights.flip(2)).abs().max() > 1e-2


def test_rows_sum_to_one_and_the_future_is_exactly_zero(made):
    """If this fails, what is shown is not what multiplies the values: before the softmax, or after dropout."""
    made.train()
    weights = lens.attention(made, text())
    assert weights.shape == (made.config.n_layer, 2, made.config.n_head, 8, 8)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
    assert (weights.triu(1) == 0).all()
    assert (weights.tril() >= 0).all()


@pytest.mark.parametrize("cut", [1, 4, 7])
def test_the_path_that_shows_attention_is_causal(made, cut):
    """If this fails, the weights or the stream of a token depend on what comes after it."""
    idx, other = text(), text()
    other[:, cut:] = (other[:, cut:] + 1) % 11
    for look in (lens.attention, lens.stream, lens.logit_lens):
        before, after = look(made, idx), look(made, other)
        rows = -2  # attention (..., T, T), stream (..., T, C), lens (..., T, V)
        assert torch.equal(before.narrow(rows, 0, cut), after.narrow(rows, 0, cut))
        assert not torch.equal(before.narrow(rows, cut, 8 - cut), after.narrow(rows, cut, 8 - cut))


def test_a_leak_is_seen_in_the_weights():
    """If this fails, the test above passes for any model: the control is one whose mask is off by one diagonal."""
    leaky, idx, other = model(), text(), text()
    for block in leaky.h:
        block.attn.past.copy_(torch.ones(8, 8).tril(1) == 1)
    other[:, 4:] = (other[:, 4:] + 1) % 11
    assert not torch.equal(lens.attention(leaky, idx)[..., :4, :], lens.attention(leaky, other)[..., :4, :])
    assert lens.attention(leaky, idx).triu(1).max() > 0


def test_looking_does_not_change_the_logits(made, monkeypatch):
    """If this fails, a hook changes what flows through it: the forward pass is caught while the hooks are on."""
    idx, caught = text(), []
    forward = GPT.forward

    def recording(self, idx):
        caught.append(forward(self, idx))
        return caught[-1]

    wanted = clean(made, idx)
    monkeypatch.setattr(GPT, "forward", recording)
    for look in (lens.attention, lens.stream, lens.logit_lens):
        caught.clear()
        look(made, idx)
        assert torch.equal(caught[0], wanted)
    with lens.ablated(made, [(0, 0)]):  # the control: this one is meant to change them
        assert not torch.equal(clean(made, idx), wanted)


def test_what_was_shown_is_a_copy():
    """If this fails, writing into a result writes into the model or into a later result."""
    made, idx = model(), text()
    first = lens.stream(made, idx)
    kept = first.clone()
    lens.stream(made, idx).zero_()
    lens.attention(made, idx).zero_()
    assert torch.equal(first, kept)
    assert torch.equal(lens.stream(made, idx), kept)


def test_the_stream_runs_from_the_embeddings_to_the_logits(made):
    """If this fails, the stream is taken at another place, or after a norm."""
    idx = text()
    stream = lens.stream(made, idx)
    assert stream.shape == (2 * made.config.n_layer + 1, 2, 8, 12)
    assert torch.equal(stream[0], made.wte.weight[idx] + made.wpe.weight[:8])
    with torch.no_grad():
        assert torch.equal(made.lm_head(made.ln_f(stream[-1])), clean(made, idx))
        for i, block in enumerate(made.h):
            attended = stream[2 * i] + made.h[i].attn.eval()(block.ln_1(stream[2 * i]))
            torch.testing.assert_close(stream[2 * i + 1], attended)


def lens_holds(says, made, idx):
    """What a logit lens must be: L+1 rows, the last what the model says, row l what a model of l blocks says."""
    L = made.config.n_layer
    if says.shape != (L + 1, *idx.shape, made.config.vocab_size) or not torch.equal(says[-1], clean(made, idx)):
        return False
    blocks = made.h
    for count in range(L + 1):
        made.h = torch.nn.ModuleList(list(blocks)[:count])
        same = torch.equal(says[count], clean(made, idx))
        made.h = blocks
        if not same:
            return False
    return True


@pytest.mark.parametrize("T", [1, 8])
@pytest.mark.parametrize("training", [False, True])
def test_the_logit_lens_is_the_model_cut_short(made, T, training):
    """If this fails, a row of the lens is not what the model would say if it ended there."""
    made.train(training)
    assert lens_holds(lens.logit_lens(made, text(3, T)), made, text(3, T))


def without_norm(made, idx):
    with torch.no_grad():
        return torch.stack([made.lm_head(x) for x in lens.stream(made, idx)[::2]])


def one_layer_late(made, idx):
    return lens.logit_lens(made, idx).roll(1, 0)


def after_attention(made, idx):
    with torch.no_grad():
        stream = lens.stream(made, idx)
        return torch.stack([made.lm_head(made.ln_f(x)) for x in (*stream[1::2], stream[-1])])


def norm_of_the_first_block(made, idx):
    with torch.no_grad():
        return torch.stack([made.lm_head(made.h[0].ln_1(x)) for x in lens.stream(made, idx)[::2]])


@pytest.mark.parametrize("wrong", [without_norm, one_layer_late, after_attention, norm_of_the_first_block])
def test_a_wrong_lens_is_seen(wrong):
    """If this fails, the test of the lens would pass one that forgets the norm, or reads the wrong place."""
    made, idx = model(), text()
    assert not lens_holds(wrong(made, idx), made, idx)


def with_columns_zeroed(made, heads):
    """A copy of the model whose projections do not read the slices of these heads."""
    other = build(made.config).to(made.wte.weight.dtype)
    other.load_state_dict(made.state_dict())
    D = made.config.n_embd // made.config.n_head
    with torch.no_grad():
        for layer, head in heads:
            other.h[layer].attn.c_proj.weight[:, head * D : (head + 1) * D] = 0
    return other.eval()


@pytest.mark.parametrize("heads", [[(0, 0)], [(2, 1)], [(1, 0), (1, 1)], [(0, 1), (2, 0), (2, 0)], []])
def test_ablated_is_the_model_with_those_columns_zeroed(heads):
    """If this fails, switching a head off leaves some of it, or takes more than it."""
    made, idx = model(), text()
    wanted = clean(with_columns_zeroed(made, heads), idx)
    with lens.ablated(made, heads) as off:
        assert off is made
        torch.testing.assert_close(clean(made, idx), wanted)
    others = [[(0, 1)], [(2, 0)], [(1, 1)]]
    assert all((clean(with_columns_zeroed(made, other), idx) - wanted).abs().max() > 1e-2 for other in others)


def test_ablated_in_training_mode_and_with_gradients():
    """If this fails, a head cannot be switched off while a model trains, or its gradient still flows."""
    made, idx = model(dropout=0.0).train(), text()
    with lens.ablated(made, [(1, 0)]):
        made(idx).sum().backward()
        assert made.training
    gradient = made.h[1].attn.c_proj.weight.grad
    assert (gradient[:, :6] == 0).all()
    assert (gradient[:, 6:] != 0).any()


def test_nested_blocks_add_up_and_come_off_one_by_one():
    """If this fails, the inner block takes the outer one's hooks away, or leaves its own."""
    made, idx = model(), text()
    one, two = (clean(with_columns_zeroed(made, heads), idx) for heads in ([(0, 0)], [(0, 0), (0, 1)]))
    with lens.ablated(made, [(0, 0)]):
        with lens.ablated(made, [(0, 1)]):
            torch.testing.assert_close(clean(made, idx), two)
            torch.testing.assert_close(lens.logit_lens(made, idx)[-1], two)
        torch.testing.assert_close(clean(made, idx), one)
        assert count_hooks(made) == 1
    assert count_hooks(made) == 0
    # Looking sees the model as it is inside the block.
    whole = lens.stream(made, idx)
    with lens.ablated(made, [(0, 0)]):
        assert not torch.equal(lens.stream(made, idx), whole)


def count_hooks(made):
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) + len(m._backward_hooks) for m in made.modules())


LOOKS = {
    "attention": lens.attention,
    "stream": lens.stream,
    "logit_lens": lens.logit_lens,
    "previous_token_scores": lens.previous_token_scores,
    "induction_scores": lambda made, idx: lens.induction_scores(made, idx[:, :4]),
    "attribution": lambda made, idx: lens.attribution(made, idx, made.lm_head.weight[1]).total,
    "ablated": lambda made, idx: run_ablated(made, idx),
}


def run_ablated(made, idx):
    with lens.ablated(made, [(0, 0), (1, 1)]):
        return clean(made, idx)


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_as_it_was(look, training):
    """If this fails, looking changes a weight, a mode, a gradient, a hook or the random state."""
    made = model(dropout=0.4).train(training)
    made.h[1].eval()  # a part in another mode than the whole
    made.wpe.weight.requires_grad_(False)
    modes = [m.training for m in made.modules()]
    flags = [p.requires_grad for p in made.parameters()]
    weights = {name: value.clone() for name, value in made.state_dict().items()}
    state = torch.get_rng_state()
    result = look(made, text())
    assert [m.training for m in made.modules()] == modes
    assert [p.requires_grad for p in made.parameters()] == flags
    assert all(p.grad is None for p in made.parameters())
    assert all(torch.equal(weights[name], value) for name, value in made.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
    assert count_hooks(made) == 0
    assert not (torch.is_tensor(result) and result.requires_grad)


class BrokenError(Exception):
    """What a test throws."""


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_hooks_come_off_when_the_forward_raises(look):
    """If this fails, one error leaves a model that goes on recording, or with heads switched off."""
    made = model(dropout=0.4).train()

    def fail(*_):
        raise BrokenError

    handle = made.h[-1].mlp.register_forward_pre_hook(fail)  # after the first hooks have been called
    with pytest.raises(BrokenError):
        look(made, text())
    assert count_hooks(made) == 1  # the one of this test
    assert made.training
    handle.remove()
    assert torch.isfinite(clean(made, text())).all()


def test_hooks_come_off_when_one_cannot_be_put_on():
    """If this fails, the hooks before the one that failed stay."""
    made = model()

    def refuse(hook):
        raise BrokenError

    made.h[1].attn.c_proj.register_forward_pre_hook = refuse
    with pytest.raises(BrokenError), lens.ablated(made, [(0, 0), (1, 0)]):
        pass
    assert count_hooks(made) == 0


def test_an_error_inside_the_block_takes_the_hooks_off():
    """If this fails, an interrupted experiment leaves a model without some heads."""
    made = model()
    with pytest.raises(BrokenError), lens.ablated(made, [(0, 0)]), lens.ablated(made, [(1, 1)]):
        raise BrokenError
    assert count_hooks(made) == 0


# Heads that are known because their weights are set by hand.


def join(matrix, rows, columns, size=1.0):
    matrix[rows, columns] = size * torch.eye(columns.stop - columns.start)


def built(V=8, copies=2, back=1, after=True):
    """Two layers of one head: the first looks exactly `back` tokens back, the second for its token's earlier copy, or
    with `after` for what came after it.
    """
    window = copies * V
    C = 3 * V + window
    token, before, answer, place = slice(0, V), slice(V, 2 * V), slice(2 * V, 3 * V), slice(3 * V, C)
    made = GPT(GPTConfig(vocab_size=V, block_size=window, n_layer=2, n_head=1, n_embd=C)).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.fill_(1.0 if "ln_" in name and "weight" in name else 0.0)
        join(made.wte.weight, slice(None), token)
        join(made.wpe.weight, slice(None), place)
        match = before if after else token
        for block, key, query, to in ((made.h[0], place, place, before), (made.h[1], match, token, answer)):
            w_q, w_k, w_v = block.attn.c_attn.weight.split(C)
            join(w_q, key, query, 9.0)
            join(w_k, key, key)
            join(w_v, token, token)
            join(block.attn.c_proj.weight, to, token, 0.2)
        w_k = made.h[0].attn.c_attn.weight[C : 2 * C]
        w_k.copy_(w_k.roll(back, 0))
        join(made.lm_head.weight, slice(None), answer, 5.0)
    return made


def permutations(B=6, V=8):
    generator = torch.Generator().manual_seed(0)
    return torch.stack([torch.randperm(V, generator=generator) for _ in range(B)])


def score_of(scores, layer, head=0):
    return next(s.score for s in scores if (s.layer, s.head) == (layer, head))


def test_a_head_that_looks_one_back_scores_one():
    """If this fails, the previous-token score reads another diagonal; the controls look elsewhere."""
    idx = permutations()
    ranked = lens.previous_token_scores(built(), idx)
    assert (ranked[0].layer, ranked[0].head) == (0, 0)
    assert ranked[0].score == pytest.approx(1, abs=1e-6)
    assert score_of(lens.previous_token_scores(built(back=2), idx), 0) < 0.2
    assert score_of(lens.previous_token_scores(built(back=0), idx), 0) == pytest.approx(0, abs=1e-6)


def test_an_induction_pair_scores_high():
    """If this fails, the induction score reads another diagonal; the control looks at the copy, not at what followed.

    Token 0 of the first copy has nobody before it and is taken for its own, so one row of eight is split in two.
    """
    idx = permutations()
    ranked = lens.induction_scores(built(), idx)
    assert (ranked[0].layer, ranked[0].head) == (1, 0)
    assert ranked[0].score == pytest.approx(1 - 1 / 16, abs=1e-3)
    assert score_of(ranked, 0) == pytest.approx(0, abs=1e-6)
    assert score_of(lens.induction_scores(built(after=False), idx), 1) < 1e-3
    copies = lens.duplicate_token_scores(built(after=False), idx)  # half of it: the other half is the token itself
    assert score_of(copies, 1) == pytest.approx(0.5, abs=1e-3)
    assert score_of(lens.duplicate_token_scores(built(), idx), 1) < 1 / 16 + 1e-3


def test_scores_are_the_means_that_their_docstrings_name(made):
    """If this fails, a score runs over other rows than it says: a loop over single weights is the oracle."""
    B, T, half = 3, 8, 4
    idx, short = text(B, T), text(B, half)
    weights, repeated = lens.attention(made, idx), lens.attention(made, torch.cat((short, short), 1))
    for layer in range(made.config.n_layer):
        for head in range(made.config.n_head):
            w, r = weights[layer, :, head], repeated[layer, :, head]
            previous = [w[b, t, t - 1].item() for b in range(B) for t in range(1, T)]
            induction = [r[b, t, t - half + 1].item() for b in range(B) for t in range(half, 2 * half)]
            one_off = [r[b, t, t - half].item() for b in range(B) for t in range(half, 2 * half)]
            got = score_of(lens.previous_token_scores(made, idx), layer, head)
            assert got == pytest.approx(sum(previous) / len(previous), abs=1e-5)
            got = score_of(lens.induction_scores(made, short), layer, head)
            assert got == pytest.approx(sum(induction) / len(induction), abs=1e-5)
            assert got != pytest.approx(sum(one_off) / len(one_off), abs=1e-5)
            got = score_of(lens.duplicate_token_scores(made, short), layer, head)
            assert got == pytest.approx(sum(one_off) / len(one_off), abs=1e-5)


def test_scores_are_ranked_and_complete(made):
    """If this fails, a head is missing from a ranking, or it is not one."""
    looks = (lens.induction_scores, lens.duplicate_token_scores)
    for scores in (lens.previous_token_scores(made, text()), *(look(made, text(2, 4)) for look in looks)):
        everyone = {(layer, head) for layer in range(made.config.n_layer) for head in range(made.config.n_head)}
        assert {(s.layer, s.head) for s in scores} == everyone
        assert len(scores) == len(everyone)
        assert [s.score for s in scores] == sorted((s.score for s in scores), reverse=True)
        assert all(0 <= s.score <= 1 and isinstance(s.score, float) for s in scores)


def test_neighbours_are_ranked_by_cosine():
    """If this fails, a page calls tokens alike that are not: lengths count, or a token is its own neighbour."""
    table = torch.tensor([[1.0, 0.0], [5.0, 5.0], [0.0, 0.1], [-2.0, 0.0], [0.9, 0.1]])
    found = lens.neighbours(table, 0, 3)
    assert [i for i, _ in found] == [4, 1, 2]
    assert [c for _, c in found] == pytest.approx([0.9 / math.sqrt(0.82), math.sqrt(0.5), 0.0], abs=1e-6)
    assert [i for i, _ in lens.neighbours(table, 3, 99)] == [2, 1, 4, 0]
    by_dot_product = [i for i in (table @ table[0]).argsort(descending=True).tolist() if i != 0]
    assert by_dot_product[0] == 1  # the control: without dividing by the lengths, another order
    weight = model().wte.weight
    assert all(isinstance(i, int) and isinstance(c, float) for i, c in lens.neighbours(weight, 2))
    assert weight.requires_grad
    cosines = F.cosine_similarity(weight, weight[2:3])
    assert dict(lens.neighbours(weight, 2, 10)) == pytest.approx({i: cosines[i].item() for i in range(11) if i != 2})


def test_arithmetic_on_points_in_a_plane():
    """If this fails, a − b + c is another point, or what is nearest to it is not."""
    # Two traits, a man's or a woman's, common or royal, and what all words share.
    words = {
        "man": (1, 0, 3),
        "woman": (-1, 0, 3),
        "king": (1, 2, 3),
        "queen": (-1, 2, 3),
        "he": (1, 0.1, 3),
        "zero": (0, 0, 0),
    }
    names, table = list(words), torch.tensor([*words.values()], dtype=torch.float32)

    def found(plus, minus=(), **settings):
        ids = [[names.index(word) for word in side.split()] for side in (plus, minus or "")]
        return [(names[i], cosine) for i, cosine in lens.arithmetic(table, *ids, **settings)]

    assert found("king woman", "man")[0] == ("queen", pytest.approx(1))
    assert {word for word, _ in found("king woman", "man")} == {"queen", "he", "zero"}
    assert len(found("king woman", "man", keep_inputs=True, count=99)) == 6
    assert found("king woman", "man", keep_inputs=True)[1][0] == "king"
    assert [word for word, _ in found("king woman", "man", count=1)] == ["queen"]
    assert dict(found("man"))["zero"] == 0  # no direction, and no NaN
    centred = table - table.mean(0)
    expected = F.cosine_similarity(centred, centred[2] - centred[0] + centred[1])
    got = dict(found("king woman", "man", keep_inputs=True, centred=True))
    assert got == pytest.approx({name: expected[i].item() for i, name in enumerate(names)}, abs=1e-6)
    raw = dict(found("man", count=9))
    assert raw["woman"] > 0.5  # what all share makes opposites alike, and centred they are not
    assert dict(found("man", centred=True))["woman"] < raw["woman"] - 0.3
    assert table.equal(torch.tensor([*words.values()]))
    assert lens.neighbours(table, 0) == lens.arithmetic(table, [0], count=5)


def test_ranks_are_counted():
    """If this fails, a page says that a model would say a token first, or eighth, and it would not."""
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0], [5.0, 1.0, 5.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    assert [rank for rank, _ in lens.ranks(logits, 1)] == [3, 3, 1]  # those that tie share the better one
    assert [rank for rank, _ in lens.ranks(logits, 2)] == [2, 1, 1]
    chances = [math.exp(1) / sum(map(math.exp, row)) for row in logits.tolist()]
    assert [chance for _, chance in lens.ranks(logits, 1)] == pytest.approx(chances)
    made, idx = model(), text()
    says = lens.logit_lens(made, idx)[:, 0, -1]
    for token in range(11):
        order = [row.argsort(descending=True).tolist().index(token) + 1 for row in says]
        assert [rank for rank, _ in lens.ranks(says, token)] == order
    assert sum(lens.ranks(says, token)[-1][1] for token in range(11)) == pytest.approx(1)


# What each part writes, and the modern model --------------------------------------------------------------------------

EVERY = {**{name: lambda name=name: model(**MODELS[name]) for name in MODELS if name != "double"}} | {
    name: lambda name=name: modern_model(name) for name in MODERN
}


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_what_is_attributed_is_what_was_written(make):
    """If this fails, a page says that a head wrote a word, and another one did, or nobody.

    The oracle is the stream with and without a head, and the final norm with the number it divided by.
    """
    made, idx = make().double(), text(3, 8)
    weight = made.lm_head.weight.detach()
    direction = weight[3] - weight[5]
    found = lens.attribution(made, idx, direction)
    L, H = made.config.n_layer, made.config.n_head
    assert (found.heads.shape, found.mlps.shape) == ((3, L, H), (3, L))

    logits = clean(made, idx)[:, -1]
    if getattr(made.lm_head, "bias", None) is not None:
        logits = logits - made.lm_head.bias.detach()
    torch.testing.assert_close(found.total, logits[:, 3] - logits[:, 5])
    parts = found.heads.sum((1, 2)) + found.mlps.sum(1) + found.embedding
    torch.testing.assert_close(parts + found.biases, found.total)
    assert ((found.biases != 0).all()) == (made.ln_f.__class__ is torch.nn.LayerNorm)

    stream = lens.stream(made, idx)[:, :, -1]  # (2L+1, B, C)
    centred = made.ln_f.__class__ is torch.nn.LayerNorm
    mean = stream[-1].mean(-1, keepdim=True) if centred else 0.0
    size = ((stream[-1] - mean).square().mean(-1, keepdim=True) + made.ln_f.eps).sqrt()

    def normed(written):
        written = written - written.mean(-1, keepdim=True) if centred else written
        return (written / size * (1.0 if made.ln_f.weight is None else made.ln_f.weight.detach())) @ direction

    torch.testing.assert_close(found.embedding, normed(stream[0]))
    for layer in range(L):
        torch.testing.assert_close(found.mlps[:, layer], normed(stream[2 * layer + 2] - stream[2 * layer + 1]))
        for head in range(H):
            with lens.ablated(made, [(layer, head)]):
                without = lens.stream(made, idx)[2 * layer + 1, :, -1]
            torch.testing.assert_close(found.heads[:, layer, head], normed(stream[2 * layer + 1] - without))
    if H > 1:  # the control: in another order the heads have the same sum
        assert (found.heads - found.heads.flip(2)).abs().max() > 1e-2
    assert not any(tensor.requires_grad for tensor in vars(found).values())


def test_attribution_sees_the_model_as_it_is_inside_a_block():
    """If this fails, a head that is switched off still counts as if it wrote."""
    made, idx = modern_model(), text()
    with lens.ablated(made, [(1, 2)]):
        found = lens.attribution(made, idx, made.lm_head.weight[0])
    assert (found.heads[:, 1, 2] == 0).all()
    assert (found.heads[:, 1, 1] != 0).all()
    assert count_hooks(made) == 0


def modern_by_hand(made, idx):
    """The weights (L, B, H, T, T) and the stream (2L+1, B, T, C) of a Llama, head by head, turns as complex numbers."""
    config = made.config
    H, G, D = config.n_head, config.kv_heads, config.head_size
    T = idx.size(1)
    speed = config.rope_base ** (-torch.arange(D // 2, dtype=torch.float64) * 2 / D)
    turn = torch.exp(1j * torch.arange(T, dtype=torch.float64)[:, None] * speed)

    def norm(ln, x):
        return x / (x.square().mean(-1, keepdim=True) + config.norm_eps).sqrt() * ln.weight

    def turned(x):
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2)

    weights, streams = [], [made.wte.weight[idx]]
    for block in made.h:
        x, packed = norm(block.ln_1, streams[-1]), block.attn.c_attn.weight
        rows, heads = [], []
        for h in range(H):
            g = h // (H // G)
            q, k, v = (x @ packed[start * D : (start + 1) * D].T for start in (h, H + g, H + G + g))
            scores = (turned(q) @ turned(k).mT / math.sqrt(D)).masked_fill(torch.ones(T, T).triu(1) == 1, -math.inf)
            rows.append(scores.softmax(-1))
            heads.append(rows[-1] @ v)
        weights.append(torch.stack(rows, dim=1))
        streams.append(streams[-1] + torch.cat(heads, -1) @ block.attn.c_proj.weight.T)
        x, mlp = norm(block.ln_2, streams[-1]), block.mlp
        gate, up = x @ mlp.c_gate.weight.T, x @ mlp.c_fc.weight.T
        streams.append(streams[-1] + (gate * gate.sigmoid() * up) @ mlp.c_proj.weight.T)
    return torch.stack(weights), torch.stack(streams)


@pytest.mark.parametrize("name", ["modern", "one key for all"])
@pytest.mark.parametrize("T", [1, 5, 8])
def test_attention_and_stream_of_a_modern_model_are_those_computed_by_hand(name, T):
    """If this fails, pages show weights or vectors that a modern model does not compute."""
    made, idx = modern_model(name).double(), text(3, T)
    with torch.no_grad():
        weights, stream = modern_by_hand(made, idx)
    torch.testing.assert_close(lens.attention(made, idx), weights, rtol=1e-5, atol=1e-6)  # turns are float32
    torch.testing.assert_close(lens.stream(made, idx), stream, rtol=1e-5, atol=1e-5)
    if T > 2:
        assert (lens.attention(made, idx) - weights.flip(2)).abs().max() > 1e-2


@pytest.mark.parametrize("name", MODERN)
def test_a_modern_model_is_looked_into_like_a_gpt(name):
    """If this fails, what page 12 shows of a GPT is something else for a modern model."""
    made, idx = modern_model(name), text()
    assert lens_holds(lens.logit_lens(made, idx), made, idx)
    weights = lens.attention(made, idx)
    assert weights.shape == (3, 2, made.config.n_head, 8, 8)
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert (weights.triu(1) == 0).all()
    for heads in ([(0, 0)], [(2, 1), (1, 0)]):
        with lens.ablated(made, heads):
            torch.testing.assert_close(clean(made, idx), clean(with_columns_zeroed(made, heads), idx))
        assert (clean(made, idx) - clean(with_columns_zeroed(made, heads), idx)).abs().max() > 1e-2
    made.train()
    for look in LOOKS.values():
        look(made, idx)
        assert made.training
        assert count_hooks(made) == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: lens.attention(model(), text(1, 9)), "crop it to block_size"),
        (lambda: lens.attention(model(), text()[0]), r"of shape \(B, T\)"),
        (lambda: lens.stream(model(), torch.zeros(1, 0, dtype=torch.long)), "0 tokens a row"),
        (lambda: lens.logit_lens(model(), text(V=99)), "outside 0..10"),
        (lambda: lens.previous_token_scores(model(), text(2, 1)), "one token a row"),
        (lambda: lens.previous_token_scores(model(), text()[0]), r"of shape \(B, T\)"),
        (lambda: lens.induction_scores(model(), text(2, 1)), "fewer than two tokens"),
        (lambda: lens.induction_scores(model(), text(2, 5)), "reads 8: give rows of at most half"),
        (lambda: lens.induction_scores(model(), text()[0, :4]), r"of shape \(B, T\)"),
        (lambda: lens.duplicate_token_scores(model(), text(2, 5)), "reads 8: give rows of at most half"),
        (lambda: lens.attribution(model(), text(), torch.ones(11)), r"must be of shape \(12,\), .* got \(11,\)"),
        (lambda: lens.attribution(model(), text()[0], torch.ones(12)), r"of shape \(B, T\)"),
        (lambda: lens.ranks(torch.ones(2, 3, 4), 0), r"of shape \(L\+1, V\)"),
        (lambda: lens.ranks(torch.ones(3, 4), 4), r"token must lie in 0\.\.3, got 4"),
        (lambda: lens.arithmetic(torch.ones(3, 2), [0], [3]), r"token must lie in 0\.\.2, got 3"),
        (lambda: lens.arithmetic(torch.ones(3, 2), [-1]), "got -1"),
        (lambda: lens.arithmetic(torch.ones(3, 2), []), "no token"),
        (lambda: enter(lens.ablated(model(), [(3, 0)])), "no head 0 in layer 3: layers are 0 to 2"),
        (lambda: enter(lens.ablated(model(), [(0, -1)])), "no head -1"),
        (lambda: enter(lens.ablated(model(), [(0, 2)])), "heads 0 to 1"),
        (lambda: enter(lens.ablated(model(), (0, 1))), r"pairs of whole numbers .*got \(0, 1\)"),
        (lambda: enter(lens.ablated(model(), [(0, 1.0)])), "pairs of whole numbers"),
        (lambda: enter(lens.ablated(model(), [(0, 1, 2)])), "pairs of whole numbers"),
        (lambda: lens.neighbours(torch.ones(3, 2), 3), r"token must lie in 0\.\.2, got 3"),
        (lambda: lens.neighbours(torch.ones(3, 2), -1), "got -1"),
    ],
)
def test_errors_say_in_one_line_what_is_wrong(call, words):
    """If this fails, a mistake ends in a traceback from the depths, or in a wrong result."""
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert "\n" not in str(error.value)


def enter(context):
    with ExitStack() as stack:
        stack.enter_context(context)
