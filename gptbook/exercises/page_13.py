"""The checks of page 13, break it on purpose."""

import math
from contextlib import contextmanager

import torch
import torch.nn as nn
import torch.nn.functional as F

from gptbook.exercises.answers import Wrong, ask, explain, need_function, shown, whole_number
from gptbook.exercises.tensors import as_tensor
from gptbook.model import GPT, MLP, Block, CausalSelfAttention, GPTConfig
from gptbook.trainer import TrainConfig
from gptbook.verify import expected_parameters, leak_matrix

# --- models, and what their broken copies compute ---------------------------------------------------------------------


def _models() -> list[GPT]:
    """Some GPTs whose weights are random and large, so that nothing that they read goes unnoticed."""
    generator = torch.Generator().manual_seed(13)
    models = []
    for V, T, L, H, C, biased in ((11, 7, 3, 2, 8, False), (7, 5, 1, 1, 6, False), (13, 9, 2, 4, 12, True)):
        model = GPT(GPTConfig(V, T, L, H, C, qkv_bias=biased))
        with torch.no_grad():
            for p in model.parameters():
                noise = torch.randn(p.shape, generator=generator)
                p.copy_(1.5 * noise / math.sqrt(p.size(-1)) if p.dim() == 2 else p + 0.3 * noise)
            model.wpe.weight.copy_(torch.randn(model.wpe.weight.shape, generator=generator))
        models.append(model.eval())
    return models


def _rows(model, T) -> torch.Tensor:
    return torch.randint(model.config.vocab_size, (3, T), generator=torch.Generator().manual_seed(T))  # (B, T)


def _logits(model, idx, seen=None, loud=1.0, wte=None, wpe=None):
    """(B, T, V) logits of these weights, written anew: `seen(layer, L, T)` is the mask (T, T) of a layer, true for
    what may be read; `loud` multiplies the scores.
    """
    c, w = model.config, {name: p.detach().double() for name, p in model.named_parameters()}
    (B, T), L, H, C = idx.shape, c.n_layer, c.n_head, c.n_embd
    x = (w["wte.weight"] if wte is None else wte)[idx] + (w["wpe.weight"] if wpe is None else wpe)[:T]

    def norm(x, name):
        return F.layer_norm(x, (C,), w[f"{name}.weight"], w[f"{name}.bias"])

    for layer in range(L):
        h = f"h.{layer}"
        qkv = F.linear(norm(x, f"{h}.ln_1"), w[f"{h}.attn.c_attn.weight"], w.get(f"{h}.attn.c_attn.bias"))
        q, k, v = (part.view(B, T, H, C // H).transpose(1, 2) for part in qkv.chunk(3, dim=-1))  # (B, H, T, D)
        scores = loud * q @ k.transpose(-2, -1) / math.sqrt(C // H)  # (B, H, T, T)
        mask = torch.ones(T, T).tril() if seen is None else seen(layer, L, T)
        weights = scores.masked_fill(mask == 0, -math.inf).softmax(dim=-1)
        y = (weights @ v).transpose(1, 2).reshape(B, T, C)
        x = x + F.linear(y, w[f"{h}.attn.c_proj.weight"], w[f"{h}.attn.c_proj.bias"])
        hidden = F.gelu(F.linear(norm(x, f"{h}.ln_2"), w[f"{h}.mlp.c_fc.weight"], w[f"{h}.mlp.c_fc.bias"]))
        x = x + F.linear(hidden, w[f"{h}.mlp.c_proj.weight"], w[f"{h}.mlp.c_proj.bias"])
    return norm(x, "ln_f") @ w["lm_head.weight"].T


def _same(a, b) -> bool:
    """Whether two lists of logits agree, NaN with NaN."""
    return all(torch.allclose(x.double(), y.double(), rtol=1e-3, atol=1e-3, equal_nan=True) for x, y in zip(a, b))  # noqa: B905


def _lengths(model) -> tuple[int, ...]:
    return (model.config.block_size, 4, 2)


@contextmanager
def _classes_kept(what):
    """Give the classes of the package their methods back, and refuse an answer that changed them."""
    classes = (CausalSelfAttention, MLP, Block, GPT)
    before = [dict(vars(one)) for one in classes]
    try:
        yield
    finally:
        touched = []
        for one, methods in zip(classes, before, strict=True):
            for name, method in methods.items():
                if vars(one).get(name) is not method and name != "__annotations__":
                    setattr(one, name, method)
                    touched.append(f"{one.__name__}.{name}")
        if touched:
            raise Wrong(f"{what} changed {touched[0]} of the class itself, and with it every other model there is")


def _copied(function, what: str, model: GPT) -> nn.Module:
    """What the reader's function made of the model, once it is clear that it is a copy and the model is as it was."""
    before = {name: value.clone() for name, value in _state(model).items()}
    learns = {name: p.requires_grad for name, p in model.named_parameters()}
    idx = _rows(model, 4)
    with torch.no_grad():
        spoke = model(idx)
    made = ask(function, what, model)
    now = _state(model)
    changed = [name for name, value in before.items() if name not in now or not _equal(now[name], value)]
    if changed:
        end = ": return a copy instead" if made is None else ": work on a copy, copy.deepcopy makes one"
        returned = "returned nothing and " if made is None else ""
        raise Wrong(f"{what} {returned}changed {changed[0]} of the model that it was given{end}")
    if {name: p.requires_grad for name, p in model.named_parameters()} != learns:
        raise Wrong(f"{what} froze a parameter of the model that it was given: work on a copy, copy.deepcopy makes one")
    if not isinstance(made, nn.Module):
        raise Wrong(f"{what} must return a model, got {shown(made)}")
    with torch.no_grad():
        if not _equal(model(idx), spoke):
            raise Wrong(f"after {what} the model that it was given computes something else: work on a copy")
    if made is model:
        raise Wrong(f"{what} returned the very model that it was given: asked for is a copy")
    theirs = {p.data_ptr(): name for name, p in model.named_parameters()}
    shared = [theirs[p.data_ptr()] for p in made.parameters() if p.data_ptr() in theirs]
    if shared:
        raise Wrong(f"the copy shares {shared[0]} with the model that came in: training one would change the other")
    return made


def _state(model) -> dict:
    return {name: value.detach() for name, value in [*model.named_parameters(), *model.named_buffers()]}


def _equal(a, b) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


def _answers(made, what: str, model: GPT) -> list:
    """The copy's logits for rows of several lengths."""
    out = []
    for T in _lengths(model):
        with torch.no_grad():
            logits = ask(made, f"the model that {what} returned, for a row of {T} tokens,", _rows(model, T))
        logits = as_tensor(logits, f"the output of the model that {what} returned")
        wanted = (3, T, model.config.vocab_size)
        if tuple(logits.shape) != wanted:
            raise Wrong(f"the model that {what} returned must give logits {wanted}, got {tuple(logits.shape)}")
        out.append(logits)
    return out


def _about(model) -> str:
    c = model.config
    return f"a model of {c.n_layer} layer{'s' if c.n_layer > 1 else ''}"


# --- remove-mask ------------------------------------------------------------------------------------------------------


def _open(layer, L, T):
    return torch.ones(T, T)


def _masked(seen, loud=1.0):
    return lambda model: [_logits(model, _rows(model, T), seen, loud) for T in _lengths(model)]


MASK_MISTAKES = (
    ("nothing has changed: the copy still hides the future in every block", _masked(None)),
    ("only the first block was opened: each block has a mask of its own",
     _masked(lambda layer, L, T: torch.ones(T, T) if layer == 0 else torch.ones(T, T).tril())),
    ("only the last block was opened: each block has a mask of its own",
     _masked(lambda layer, L, T: torch.ones(T, T) if layer == L - 1 else torch.ones(T, T).tril())),
    ("the mask is inverted: a place now reads its future and neither itself nor its past, so the last one reads "
     "nothing and gives NaN", _masked(lambda layer, L, T: torch.ones(T, T).triu(1))),
    ("the mask is upside down: a place now reads itself and its future, and no longer its past",
     _masked(lambda layer, L, T: torch.ones(T, T).triu())),
    ("the mask is moved by one place, tril(1): each block sees one token ahead and hides the rest of the future",
     _masked(lambda layer, L, T: torch.ones(T, T).tril(1))),
    ("the mask is moved by one place the wrong way, tril(-1): a place no longer reads itself, and the first one gives "
     "NaN", _masked(lambda layer, L, T: torch.ones(T, T).tril(-1))),
    ("the mask now hides everything, so that no score is left and the weights are NaN: `past` is true for what may be "
     "read", _masked(lambda layer, L, T: torch.zeros(T, T))),
    ("each place reads itself alone: the mask was not opened but closed further",
     _masked(lambda layer, L, T: torch.eye(T))),
    ("the scores are zero: every place takes the plain mean of all, but queries and keys should still weigh them",
     _masked(_open, loud=0.0)),
    ("the scores are zero under the old mask: it still hides the future, and queries and keys no longer count",
     _masked(None, loud=0.0)),
)  # fmt: skip


def remove_mask(unmask) -> str:
    """unmask(model) -> a copy of a GPT in which every place reads every other, in every block."""
    need_function(unmask, "unmask(model)")
    models, got = _models(), []
    with _classes_kept("unmask(model)"):
        for model in models:
            what = f"unmask(model), for {_about(model)},"
            made = _copied(unmask, what, model)
            _same_weights(made, model)
            got.append(_answers(made, what, model))
    right = [_masked(_open)(model) for model in models]
    if all(_same(a, b) for a, b in zip(got, right, strict=True)):
        return f"every place reads every other in {len(models)} models, with the same weights as before"
    with torch.no_grad():
        if sentence := explain(got, [(model,) for model in models], MASK_MISTAKES, _same):
            raise Wrong(sentence)
        if all(_same([mine[0]], [true[0]]) for mine, true in zip(got, right, strict=True)):
            raise Wrong("right for rows as long as block_size, and wrong for shorter ones: they are read as well")
    wrong = [trio for trio in zip(models, got, right, strict=True) if not _same(*trio[1:])]
    raise Wrong(next(filter(None, (_still_hidden(unmask, *trio[:2]) for trio in wrong)), None) or _off(*wrong[0]))


def _same_weights(made, model):
    """Refuse a copy that has other weights; one of another build, with other names, is judged by its logits alone."""
    now = dict(made.named_parameters())
    for name, p in model.named_parameters():
        if name in now and not _equal(now[name].detach().to(p), p.detach()):
            raise Wrong(f"the copy has other weights, in {name}: the mask is no parameter, and all weights stay")
    counts = [sum(p.numel() for p in one.parameters()) for one in (made, model)]
    if counts[0] != counts[1]:
        raise Wrong(f"the copy has {counts[0]:,} parameters and the model {counts[1]:,}: the mask is no parameter")


def _still_hidden(unmask, model, got) -> str:
    where = f"in {_about(model)}"
    if not all(torch.isfinite(logits.double()).all() for logits in got):
        return f"{where} the copy's logits are NaN or infinite: is there a row in which no score is left?"
    try:
        moved = leak_matrix(unmask(model), _rows(model, model.config.block_size))
    except Exception:
        return ""
    blind = (moved == 0).nonzero().tolist()
    if not blind:
        return ""
    i, j = max(blind, key=lambda pair: abs(pair[1] - pair[0]))
    return f"{where} the leak matrix still has a zero: position {i} does not see token {j}"


def _off(model, got, right) -> str:
    off = max(float((a.double() - b).abs().max()) for a, b in zip(got, right, strict=True))
    return (
        f"in {_about(model)} every place sees every other, but the logits are off by {off:.2g}: something else changed "
        "as well"
    )


# --- remove-positions -------------------------------------------------------------------------------------------------


def _placed(wte=None, wpe=None, seen=None):
    """The logits with other tables, functions of the old ones."""

    def version(model):
        tokens, places = (table.weight.detach().double() for table in (model.wte, model.wpe))
        tables = {"wte": wte and wte(tokens), "wpe": wpe and wpe(places)}
        return [_logits(model, _rows(model, T), seen, **tables) for T in _lengths(model)]

    return version


def _but(row, value):
    """The table with one row set to a value, or, for a slice, some."""

    def edit(table):
        table = table.clone()
        table[row] = value
        return table

    return edit


def _one(row):
    return lambda table: torch.zeros_like(table) + row(table)


PLACE_MISTAKES = (
    ("the position vectors are still added: nothing has changed", _placed()),
    ("the token table was zeroed, wte, and the positions are still there: those are in wpe", _placed(torch.zeros_like)),
    ("both tables were zeroed: the tokens in wte must stay", _placed(torch.zeros_like, torch.zeros_like)),
    ("only row 0 of wpe was zeroed: every place has a row", _placed(wpe=_but(0, 0.0))),
    ("only the last row of wpe was zeroed: every place has a row", _placed(wpe=_but(-1, 0.0))),
    ("row 0 of wpe was left as it is: every place has a row", _placed(wpe=_but(slice(1, None), 0.0))),
    ("the last row of wpe was left as it is: every place has a row", _placed(wpe=_but(slice(-1), 0.0))),
    ("only column 0 of wpe was zeroed: a position vector has C numbers", _placed(wpe=_but((slice(None), 0), 0.0))),
    ("the copy is blind to places, but the vector of place 0 is added at every one: nothing should be added",
     _placed(wpe=_one(lambda table: table[0]))),
    ("the copy is blind to places, but the mean of all positions is added at every one: nothing should be added",
     _placed(wpe=_one(lambda table: table.mean(0)))),
    ("the rows of wpe were put in the opposite order: each place still has a vector of its own",
     _placed(wpe=lambda table: table.flip(0))),
    ("the rows of wpe were moved along: each place still has a vector of its own",
     _placed(wpe=lambda table: table.roll(1, 0))),
    ("the positions are subtracted now: each place still has a vector of its own",
     _placed(wpe=lambda table: -table)),
    ("the positions are gone, and so is the mask: the future must stay hidden",
     _placed(wpe=torch.zeros_like, seen=_open)),
    ("the mask is gone and the positions are not: those are in wpe", _placed(seen=_open)),
)  # fmt: skip


def remove_positions(without_positions) -> str:
    """without_positions(model) -> a copy of a GPT to whose stream no position vector is added, now and in training."""
    need_function(without_positions, "without_positions(model)")
    models, made, got = _models(), [], []
    with _classes_kept("without_positions(model)"):
        for model in models:
            what = f"without_positions(model), for {_about(model)},"
            made.append(_copied(without_positions, what, model))
            got.append(_answers(made[-1], what, model))
        right = [_placed(wpe=torch.zeros_like)(model) for model in models]
        if all(_same(a, b) for a, b in zip(got, right, strict=True)):
            for model, blind in zip(models, made, strict=True):
                _go_on_learning(blind, model)
            return f"no place leaves a mark in {len(models)} models, before training and after"
    with torch.no_grad():
        if sentence := explain(got, [(model,) for model in models], PLACE_MISTAKES, _same):
            raise Wrong(sentence)
    raise Wrong(_why_not_blind(models, made, got, right))


def _spread(model, T, V) -> float:
    """How far apart the logits of the places of a row lie that holds one token again and again; the mask is on."""
    with torch.no_grad():
        logits = model(torch.full((1, T), V - 1))[0].double()  # (T, V)
    return float((logits - logits[:1]).abs().max() / logits.abs().max())


def _added(blind, idx) -> float:
    """How much the first block reads beside the token vectors, where the copy has parts of the package's names."""
    read, hooks = [], []
    try:
        hooks = [
            blind.wte.register_forward_hook(lambda module, given, out: read.append(out)),
            blind.h[0].register_forward_pre_hook(lambda module, given: read.append(given[0])),
        ]
        with torch.no_grad():
            blind(idx)
        return float((read[1] - read[0]).abs().max())
    except Exception:
        return 0.0
    finally:
        for hook in hooks:
            hook.remove()


def _go_on_learning(blind, model):
    """Train the copy a few steps, and refuse it if it learns places, or if other parts of it do not learn."""
    c = model.config
    count = sum(p.numel() for p in blind.parameters() if p.requires_grad)
    least = sum(p.numel() for p in model.parameters()) - model.wpe.weight.numel()
    if count < least:
        frozen = next((name for name, p in blind.named_parameters() if not p.requires_grad and "wpe" not in name), "")
        raise Wrong(
            f"the copy is blind, but only {count:,} of its parameters still learn, and {least:,} should: "
            f"{frozen or 'more than the position table'} was frozen as well"
        )
    idx = _rows(model, c.block_size)
    if _added(blind, idx) > 1e-3:
        raise Wrong(
            "the logits are right, but the copy still adds the same numbers at every place, and only the norms hide "
            "it: nothing should be added"
        )
    blind.train()
    optimizer = torch.optim.AdamW([p for p in blind.parameters() if p.requires_grad], lr=0.05, weight_decay=0.0)
    for _ in range(3):
        logits = ask(blind, "the copy, in training mode,", idx)
        loss = F.cross_entropy(logits.flatten(0, 1), idx.roll(-1, dims=1).flatten())
        optimizer.zero_grad()
        ask(loss.backward, "a step of training the copy")
        optimizer.step()
    blind.eval()
    if _spread(blind, c.block_size, c.vocab_size) > 1e-3:
        raise Wrong(
            "the copy is blind now, but three steps of training teach it places again: the table of zeros is still "
            "learned, so freeze it with requires_grad_(False)"
        )
    if _added(blind, idx) > 1e-3:  # the same vector at every place escapes the row of one token
        raise Wrong("training makes the copy add the same vector at every place: what is added must stay nothing")


def _why_not_blind(models, made, got, right) -> str:
    for model, blind, mine, true in zip(models, made, got, right, strict=True):
        if _same(mine, true):
            continue
        where, c = f"in {_about(model)}", model.config
        if not all(torch.isfinite(logits.double()).all() for logits in mine):
            return f"{where} the copy's logits are NaN or infinite"
        apart = _spread(blind, c.block_size, c.vocab_size)
        if apart > 1e-3:
            return (
                f"{where} the copy still knows places: for a row of one token again and again, the logits of two "
                f"places differ by {apart:.2g} of their size"
            )
        off = max(float((a.double() - b).abs().max()) for a, b in zip(mine, true, strict=True))
        return (
            f"{where} the copy is blind to places, but its logits are off by {off:.2g} from those of the token "
            "vectors alone: is the same vector added everywhere, or did another weight change?"
        )
    return "the copy is not what it should be"


# --- depth-or-steps ---------------------------------------------------------------------------------------------------


def _measured_cost(c: GPTConfig) -> int:
    """Multiplications with their additions of a step, a row of the batch, forward: counted on the built model."""
    model = GPT(c)
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
    attention = sum(2 * c.block_size * block.attn.c_proj.in_features for block in model.h)
    return c.block_size * (weights + attention)


def _cost(blocks=12, ends=1, attention=2, rows=True, embeddings=0):
    """The cost by formula, with its parts open to mistakes."""

    def cost(c):
        V, T, L, C = c.vocab_size, c.block_size, c.n_layer, c.n_embd
        token = blocks * L * C * C + ends * V * C + attention * L * T * C + embeddings * (V + T) * C
        return token * (T if rows else 1)

    return cost


def _by(cost, whole=lambda a, b: a // b):
    return lambda old, steps, new: whole(steps * cost(old), cost(new))


STEP_MISTAKES = (
    ("the number of steps stays the same in yours: a costlier step leaves time for fewer",
     lambda old, steps, new: steps),
    ("it is the wrong way round: the more a step costs, the fewer there are",
     lambda old, steps, new: steps * _cost()(new) // _cost()(old)),
    ("it goes by the number of layers alone: width, context and unembedding cost as well", _by(lambda c: c.n_layer)),
    ("it goes by layers and width, L C², alone: unembedding and scores cost as well, and a step has T tokens a row",
     _by(lambda c: c.n_layer * c.n_embd**2)),
    ("it goes by the number of parameters: embeddings are looked up, and the scores have no parameters",
     _by(expected_parameters)),
    ("it goes by parameters times tokens: embeddings are looked up, and the scores have no parameters",
     _by(lambda c: expected_parameters(c) * c.block_size)),
    ("the unembedding is missing: V C multiplications a token", _by(_cost(ends=0))),
    ("the scores and weighted sums are missing: 2 T C multiplications a token in each layer", _by(_cost(attention=0))),
    ("the scores are there and the weighted sums are not, or only half of the square is: it is 2 T C a token, since "
     "the hidden half is computed as well", _by(_cost(attention=1))),
    ("the unembedding and the scores are missing: only the blocks' matrices were counted",
     _by(_cost(ends=0, attention=0))),
    ("this is the cost of a token: a step has T tokens in each row, and T may differ", _by(_cost(rows=False))),
    ("the embeddings were counted: a row of a table is looked up and not multiplied", _by(_cost(embeddings=1))),
    ("the token embedding was counted as well: a row of a table is looked up, not multiplied", _by(_cost(ends=2))),
    ("the MLPs are missing: 8 C² of the 12 C² are theirs", _by(_cost(blocks=4))),
    ("attention's matrices are missing: 4 C² of the 12 C² are theirs", _by(_cost(blocks=8))),
    ("the scores cost 2 T C a token: T² was taken for each token", _by(
        lambda c: c.block_size * (
            12 * c.n_layer * c.n_embd**2 + c.vocab_size * c.n_embd + 2 * c.n_layer * c.block_size**2 * c.n_embd
        ))),
    ("the scores' cost must grow with the layers as well: 2 T C in each", _by(
        lambda c: c.block_size * (
            12 * c.n_layer * c.n_embd**2 + c.vocab_size * c.n_embd + 2 * c.block_size * c.n_embd
        ))),
    ("the unembedding stands once behind all layers, and not in each",
     _by(lambda c: c.block_size * c.n_layer * (12 * c.n_embd**2 + (c.vocab_size + 2 * c.block_size) * c.n_embd))),
    ("it rounds up: the last step would cost more than is left", _by(_cost(), lambda a, b: -(-a // b))),
    ("it rounds to the nearest: half of a step is no step", _by(_cost(), lambda a, b: round(a / b))),
    ("it is one less than what fits: the whole quotient fits", _by(_cost(), lambda a, b: a // b - 1)),
    ("at least one step is taken, even where not one fits: zero is an answer too",
     _by(_cost(), lambda a, b: max(1, a // b))),
)  # fmt: skip


def depth_or_steps(afford) -> str:
    """afford(old, steps, new) -> how many whole steps of `new` cost at most as much as `steps` steps of `old`."""
    need_function(afford, "afford(old, steps, new)")
    page = GPTConfig(vocab_size=65, block_size=32, n_layer=4, n_head=4, n_embd=64)
    small = GPTConfig(vocab_size=211, block_size=24, n_layer=3, n_head=2, n_embd=20)
    cases = (
        (page, 5003, GPTConfig(vocab_size=65, block_size=32, n_layer=8, n_head=4, n_embd=64)),
        (page, 4001, GPTConfig(vocab_size=65, block_size=32, n_layer=2, n_head=4, n_embd=64)),
        (small, 90_001, GPTConfig(vocab_size=37, block_size=50, n_layer=2, n_head=2, n_embd=44)),
        (small, 777, small),
        (GPTConfig(vocab_size=5, block_size=64, n_layer=1, n_head=1, n_embd=4), 60_000, small),
        (small, 3, page),
    )
    got, right = [], []
    for old, steps, new in cases:
        what = f"afford(old, {steps}, new), from {_sizes(old)} to {_sizes(new)},"
        got.append(whole_number(ask(afford, what, old, steps, new), what[:-1], floats=True))
        right.append(steps * _measured_cost(old) // _measured_cost(new))
    if got == right:
        return f"right for {len(cases)} pairs of models, compared with the matrices of the built ones"
    if sentence := explain(got, cases, STEP_MISTAKES, lambda a, b: a == b):
        raise Wrong(sentence)
    i = next(i for i, (mine, true) in enumerate(zip(got, right, strict=True)) if mine != true)
    old, steps, new = cases[i]
    share = got[i] * _measured_cost(new) / (steps * _measured_cost(old))
    raise Wrong(
        f"afford(old, {steps}, new), from {_sizes(old)} to {_sizes(new)}, gives {got[i]:,} steps, which cost "
        f"{share:.4g} times what the old run did: the most that fit are {right[i]:,}"
    )


def _sizes(c: GPTConfig) -> str:
    return f"L={c.n_layer} C={c.n_embd} T={c.block_size} V={c.vocab_size}"


# --- larger-recipe ----------------------------------------------------------------------------------------------------

LARGER_MODEL = GPTConfig(vocab_size=65, block_size=256, n_layer=6, n_head=6, n_embd=384, dropout=0.2)
LARGER_TRAINING = {
    "batch_size": 64, "steps": 5000, "learning_rate": 1e-3, "min_learning_rate": 1e-4, "warmup_steps": 100,
    "schedule": "cosine", "clip": 1.0,
}  # fmt: skip

# (field, value) -> what somebody thought who wrote it; None stands for any other value.
FIELD_WORDS = {
    ("n_embd", 64): "that is the width of a head, and n_embd is the width of all six together",
    ("n_embd", 6 * 384): "the width is that of the whole stream, and not of each head",
    ("n_embd", 128): "that is the book's own model",
    ("dropout", 0.0): "without it the model learns the text by heart",
    ("dropout", 0.8): "it is the chance to be dropped, and not to be kept",
    ("block_size", 64): "that is the number of rows, or the book's own context",
    ("batch_size", 256): "that is the context, and belongs to block_size",
    ("batch_size", 12): "that is the default",
    ("schedule", "constant"): "the rate never falls",
    ("schedule", "linear"): "the rate falls along a line, and not along half a cosine",
    ("min_learning_rate", 0.0): "the rate falls to nothing",
    ("warmup_steps", 0): "the rate does not climb",
    ("clip", None): "gradients are not clipped",
    ("learning_rate", 1e-4): "that is where the rate ends",
    ("steps", 2000): "that is the default",
}


def larger_recipe(larger) -> str:
    """larger() -> (GPTConfig, TrainConfig) of the larger recipe."""
    if not callable(larger):
        got = "got nothing" if larger is None else f"not what it returns, got {shown(larger)}"
        raise Wrong(f"the answer is the function larger() itself, {got}")
    pair = ask(larger, "larger()")
    if isinstance(pair, GPTConfig | TrainConfig):
        raise Wrong(f"larger() must return both configurations, as a pair, got a {type(pair).__name__} alone")
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise Wrong(f"larger() must return a pair, a GPTConfig and a TrainConfig, got {shown(pair)}")
    shape, recipe = pair
    if isinstance(shape, TrainConfig) and isinstance(recipe, GPTConfig):
        raise Wrong("the pair is the wrong way round: the GPTConfig comes first, then the TrainConfig")
    for value, kind in ((shape, GPTConfig), (recipe, TrainConfig)):
        if not isinstance(value, kind):
            raise Wrong(
                f"larger() must return a GPTConfig and a TrainConfig, got {shown(value)} for the {kind.__name__}"
            )
    for config, wanted in ((shape, vars(LARGER_MODEL)), (recipe, LARGER_TRAINING)):
        for name, value in wanted.items():
            mine = getattr(config, name)
            if mine != value:
                why = FIELD_WORDS.get((name, mine))
                raise Wrong(
                    f"{name} is {mine!r} in your {type(config).__name__} and {value!r} in the recipe"
                    + (f": {why}" if why else "")
                )
    count = sum(p.numel() for p in GPT(shape).parameters())
    tokens = recipe.steps * recipe.batch_size * shape.block_size
    return f"a model of {count:,} parameters, trained on {tokens:,} targets"
