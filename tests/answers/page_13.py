"""Answers to the exercises of page 13, break it on purpose."""

import copy
import math
from dataclasses import replace

import torch
import torch.nn as nn
import torch.nn.functional as F

from gptbook.model import GPT, Block, CausalSelfAttention, GPTConfig
from gptbook.recipes import flops_per_token
from gptbook.trainer import TrainConfig
from gptbook.verify import expected_parameters

# --- remove-mask ---


def filled(value):
    """Give every mask of a copy the value of `value(past)`."""

    def unmask(model):
        model = copy.deepcopy(model)
        for block in model.h:
            block.attn.past.copy_(value(block.attn.past))
        return model

    return unmask


unmask = filled(lambda past: torch.ones_like(past))


def unmask_by_building(model):
    new = GPT(model.config)
    new.load_state_dict(model.state_dict())
    for block in new.h:
        block.attn.register_buffer("past", torch.ones_like(block.attn.past), persistent=False)
    return new


class Open(CausalSelfAttention):
    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (part.view(B, T, self.n_head, -1).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=-1))
        return self.c_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, C))


def unmask_by_subclass(model):
    model = copy.deepcopy(model)
    for block in model.h:
        attn = Open(model.config)
        attn.load_state_dict(block.attn.state_dict())
        block.attn = attn
    return model


def unmask_by_or(model):
    model = copy.deepcopy(model).eval()
    for module in model.modules():
        if hasattr(module, "past"):
            module.past = module.past | module.past.T
    return model.double()


def only_block(number):
    def unmask(model):
        model = copy.deepcopy(model)
        model.h[number].attn.past.fill_(True)
        return model

    return unmask


def unmask_in_place(model):
    for block in model.h:
        block.attn.past.fill_(True)
    return model


def unmask_without_return(model):
    unmask_in_place(model)


def unmask_shallow(model):
    return unmask_in_place(copy.copy(model))


def unmask_sharing(model):
    """A new model of the old parameters."""
    new = unmask(model)
    for name, p in model.named_parameters():
        owner = new.get_submodule(name.rpartition(".")[0])
        setattr(owner, name.rpartition(".")[2], p)
    return new


def unmask_without_scores(model, opened=True):
    model = unmask(model) if opened else copy.deepcopy(model)
    for block in model.h:
        C = model.config.n_embd
        rows = torch.ones(3 * C)
        rows[:C] = 0
        block.attn.c_attn.register_forward_hook(lambda module, given, out, rows=rows: out * rows)
    return model


def unmask_with_new_weights(model):
    torch.manual_seed(0)
    new = GPT(model.config)
    return unmask_in_place(new)


def unmask_the_class(model):
    model = copy.deepcopy(model)
    CausalSelfAttention.forward = Open.forward
    return model


class Narrow(nn.Module):
    """Opens full rows only."""

    def __init__(self, model):
        super().__init__()
        self.closed, self.opened = copy.deepcopy(model), None
        self.past = torch.ones_like(model.h[0].attn.past)

    def forward(self, idx):
        full = idx.size(1) == self.closed.config.block_size
        return (unmask(self.closed) if full else self.closed)(idx)


def unmask_and_loud(model):
    model = unmask(model)
    for block in model.h:
        block.attn.c_proj.register_forward_hook(lambda module, given, out: 2 * out)
    return model


def unmask_a_window(model):
    return filled(lambda past: torch.ones_like(past).tril(3))(model)


# --- remove-positions ---


def table(edit, freeze=True):
    """A copy whose position table is `edit(old table)`."""

    def without_positions(model):
        model = copy.deepcopy(model)
        with torch.no_grad():
            model.wpe.weight.copy_(edit(model.wpe.weight.clone()))
        if freeze:
            model.wpe.weight.requires_grad_(False)
        return model

    return without_positions


without_positions = table(torch.zeros_like)


class Nothing(nn.Module):
    def forward(self, position):
        return 0.0


def positions_by_module(model):
    model = copy.deepcopy(model)
    model.wpe = Nothing()
    return model


def positions_by_hook(model):
    model = copy.deepcopy(model)
    model.wpe.register_forward_hook(lambda module, given, out: torch.zeros_like(out))
    model.wpe.weight.requires_grad_(False)
    return model


class Placeless(GPT):
    def forward(self, idx):
        x = self.wte(idx)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def positions_by_subclass(model):
    new = Placeless(model.config)
    new.load_state_dict(model.state_dict())
    return new


def rows_zero(rows):
    def edit(weight):
        weight[rows] = 0
        return weight

    return table(edit)


def tokens_zero(model):
    model = copy.deepcopy(model)
    model.wte.weight.data.zero_()
    return model


def both_zero(model):
    model = without_positions(model)
    model.wte.weight.data.zero_()
    return model


def positions_in_place(model):
    model.wpe.weight.data.zero_()
    return model


def positions_frozen_in_place(model):
    model.wpe.weight.requires_grad_(False)
    return without_positions(model)


def all_frozen(model):
    return without_positions(model).requires_grad_(False)


def positions_and_mask(model):
    return unmask(without_positions(model))


def positions_and_noise(model):
    model = without_positions(model)
    model.ln_f.bias.data += 1
    return model


def positions_small(model):
    return table(lambda weight: 0.1 * weight)(model)


class Biased(nn.Module):
    """The same vector at every place, which starts at zero and learns."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, position):
        return self.weight


def positions_one_vector(model):
    model = copy.deepcopy(model)
    model.wpe = Biased(model.config.n_embd)
    return model


# --- depth-or-steps ---


def cost(c):
    V, T, L, C = c.vocab_size, c.block_size, c.n_layer, c.n_embd
    return T * (12 * L * C**2 + V * C + 2 * L * T * C)


def afford(old, steps, new):
    return steps * cost(old) // cost(new)


def afford_by_flops(old, steps, new):
    return steps * old.block_size * flops_per_token(old) // (new.block_size * flops_per_token(new))


def afford_by_loop(old, steps, new):
    budget, count = steps * cost(old), 0
    count = budget // cost(new) - 2
    while (count + 1) * cost(new) <= budget:
        count += 1
    return torch.tensor(max(count, 0))


def afford_by_modules(old, steps, new):
    def price(c):
        model = GPT(c)
        linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
        return c.block_size * (
            sum(m.in_features * m.out_features for m in linear) + c.n_layer * 2 * c.block_size * c.n_embd
        )

    return divmod(steps * price(old), price(new))[0]


def by(price, whole=lambda a, b: a // b):
    return lambda old, steps, new: whole(steps * price(old), price(new))


def parts(blocks=12, ends=1, attention=2):
    def price(c):
        V, T, L, C = c.vocab_size, c.block_size, c.n_layer, c.n_embd
        return T * (blocks * L * C**2 + ends * V * C + attention * L * T * C)

    return price


# --- larger-recipe ---

SHAPE = GPTConfig(block_size=256, n_layer=6, n_head=6, n_embd=384, dropout=0.2)
RECIPE = TrainConfig(
    batch_size=64, steps=5000, learning_rate=1e-3, min_learning_rate=1e-4, warmup_steps=100, schedule="cosine", clip=1.0
)


def larger():
    return SHAPE, RECIPE


def larger_as_list(device="cuda"):
    return [GPTConfig(**vars(SHAPE)), replace(RECIPE, weight_decay=0.1, betas=(0.9, 0.99), seed=1, eval_every=500)]


def larger_from_json():
    shape = {"vocab_size": 65, "block_size": 256, "n_layer": 6, "n_head": 6, "n_embd": 384, "dropout": 0.2}
    recipe = {"batch_size": 64, "steps": 5000, "learning_rate": 0.001, "min_learning_rate": 0.0001}
    return GPTConfig(**shape), TrainConfig(**recipe, warmup_steps=100, schedule="cosine", clip=1)


def changed(shape=None, **recipe):
    return lambda: (replace(SHAPE, **(shape or {})), replace(RECIPE, **recipe))


RIGHT = {
    "remove-mask": [unmask, unmask_by_building, unmask_by_subclass, unmask_by_or],
    "remove-positions": [without_positions, positions_by_module, positions_by_hook, positions_by_subclass],
    "depth-or-steps": [afford, afford_by_flops, afford_by_loop, afford_by_modules],
    "larger-recipe": [larger, larger_as_list, larger_from_json],
}

WRONG = {
    "remove-mask": [
        (copy.deepcopy, "nothing has changed"),
        (only_block(0), "only the first block was opened"),
        (only_block(-1), "only the last block was opened"),
        (filled(lambda past: ~past), "the mask is inverted"),
        (filled(lambda past: past.T.clone()), "upside down"),
        (filled(lambda past: torch.ones_like(past).tril(1)), "tril(1)"),
        (filled(lambda past: torch.ones_like(past).tril(-1)), "tril(-1)"),
        (filled(torch.zeros_like), "hides everything"),
        (filled(lambda past: torch.eye(len(past))), "reads itself alone"),
        (unmask_without_scores, "the scores are zero: every place"),
        (lambda model: unmask_without_scores(model, opened=False), "under the old mask"),
        (unmask_in_place, "changed h.0.attn.past of the model that it was given"),
        (unmask_without_return, "returned nothing and changed"),
        (unmask_shallow, "changed h.0.attn.past of the model that it was given"),
        (unmask_sharing, "shares wte.weight"),
        (unmask_with_new_weights, "other weights, in wte.weight"),
        (unmask_the_class, "CausalSelfAttention.forward of the class itself"),
        (Narrow, "rows as long as block_size"),
        (unmask_and_loud, "something else changed as well"),
        (unmask_a_window, "the leak matrix still has a zero"),
        (lambda model: model, "the very model"),
        (lambda model: unmask(model).state_dict(), "must return a model"),
        (lambda model: Block(model.config), "parameters"),
        (lambda: None, "must take (model)"),
        (lambda model: None, "is a return missing"),
    ],
    "remove-positions": [
        (copy.deepcopy, "nothing has changed"),
        (tokens_zero, "the token table was zeroed"),
        (both_zero, "both tables were zeroed"),
        (rows_zero(0), "only row 0"),
        (rows_zero(-1), "only the last row"),
        (rows_zero(slice(1, None)), "row 0 of wpe was left"),
        (rows_zero(slice(-1)), "the last row of wpe was left"),
        (rows_zero((slice(None), 0)), "only column 0"),
        (table(lambda weight: weight[:1].expand_as(weight)), "the vector of place 0"),
        (table(lambda weight: weight.mean(0).expand_as(weight)), "the mean of all positions"),
        (table(torch.ones_like), "only the norms hide"),
        (table(lambda weight: weight.flip(0)), "opposite order"),
        (table(lambda weight: weight.roll(1, 0)), "moved along"),
        (table(lambda weight: -weight), "are subtracted now"),
        (positions_and_mask, "and so is the mask"),
        (unmask, "the mask is gone and the positions are not"),
        (table(torch.zeros_like, freeze=False), "requires_grad_(False)"),
        (positions_one_vector, "same vector"),
        (all_frozen, "was frozen as well"),
        (positions_in_place, "changed wpe.weight of the model that it was given"),
        (positions_frozen_in_place, "froze a parameter of the model"),
        (positions_small, "still knows places"),
        (positions_and_noise, "did another weight change"),
        (lambda model: without_positions(model).wte, "must give logits"),
        (lambda model: None, "is a return missing"),
    ],
    "depth-or-steps": [
        (lambda old, steps, new: steps, "stays the same in yours"),
        (lambda old, steps, new: steps * cost(new) // cost(old), "the wrong way round"),
        (by(lambda c: c.n_layer), "number of layers alone"),
        (by(lambda c: c.n_layer * c.n_embd**2), "layers and width"),
        (by(expected_parameters), "by the number of parameters"),
        (by(lambda c: expected_parameters(c) * c.block_size), "parameters times tokens"),
        (by(parts(ends=0)), "the unembedding is missing"),
        (by(parts(attention=0)), "weighted sums are missing"),
        (by(parts(attention=1)), "only half of the square"),
        (by(parts(ends=0, attention=0)), "only the blocks' matrices"),
        (by(lambda c: cost(c) // c.block_size), "this is the cost of a token"),
        (by(flops_per_token), "this is the cost of a token"),
        (by(parts(blocks=4)), "the MLPs are missing"),
        (by(parts(blocks=8)), "attention's matrices are missing"),
        (by(cost, lambda a, b: math.ceil(a / b)), "it rounds up"),
        (by(cost, lambda a, b: round(a / b)), "to the nearest"),
        (by(cost, lambda a, b: max(1, a // b)), "at least one step"),
        (by(parts(ends=3)), "the most that fit are"),
        (by(cost, lambda a, b: a / b), "must be a whole number"),
        (lambda old, steps: steps // 2, "must take (old, steps, new)"),
    ],
    "larger-recipe": [
        (changed({"n_embd": 64 * 6 * 6}), "the width is that of the whole stream"),
        (changed({"n_embd": 66}), "n_embd is 66 in your GPTConfig and 384"),
        (changed({"dropout": 0.0}), "by heart"),
        (changed({"dropout": 0.8}), "to be dropped"),
        (changed({"block_size": 64}, batch_size=256), "the book's own context"),
        (changed(batch_size=256), "belongs to block_size"),
        (changed(schedule="constant"), "never falls"),
        (changed(schedule="linear"), "along a line"),
        (changed(min_learning_rate=0.0), "to nothing"),
        (changed(warmup_steps=0), "does not climb"),
        (changed(clip=None), "not clipped"),
        (changed(steps=500), "steps is 500 in your TrainConfig and 5000"),
        (changed({"qkv_bias": True}), "qkv_bias is True"),
        (lambda: (RECIPE, SHAPE), "the wrong way round"),
        (lambda: SHAPE, "a GPTConfig alone"),
        (lambda: (vars(SHAPE), RECIPE), "for the GPTConfig"),
        ((SHAPE, RECIPE), "the function larger() itself"),
        (lambda: None, "must return a pair"),
    ],
}
