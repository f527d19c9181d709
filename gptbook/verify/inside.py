"""Questions about the inside of a model: residuals, norms, activation, attention, and layers that are one another's.

`structure` finds what the model computes. Here that is compared with `expect`, or without it with GPT-2: what is right
but unlike that "differs", what nobody would want has failed, and what was not found out is "not checked".
"""

import math

import torch
import torch.nn as nn

from gptbook.modern import GATES, ModernConfig
from gptbook.verify.checks import _check, _result
from gptbook.verify.report import DIFFERS, FAILED, PASSED, Result
from gptbook.verify.structure import Structure, anatomy, expected_design, structure
from gptbook.verify.subject import CannotLook, Subject

NEEDS = ("finite", "deterministic", "shapes", "causal", "batch-independent", "reach")

NORM_WORDS = {
    "layer": "LayerNorm",
    "rms": "RMSNorm",
    "layer, unbiased, eps outside": "LayerNorm that divides by (unbiased standard deviation + eps): eps belongs under "
    "the root, and the variance is a mean over all C",
    "layer, unbiased": "LayerNorm with the unbiased variance, a sum over C divided by C - 1: say unbiased=False",
    "layer, eps outside": "LayerNorm with eps outside of the root",
    "rms, eps outside": "RMSNorm with eps outside of the root",
    "divided by the variance": "a norm that divides by the variance: the root is forgotten",
    "layer, gain after the bias": "LayerNorm whose gain also multiplies the bias",
    "divided by the norm": "a norm that divides by the vector's length, not by the root of its mean square",
    "not divided": "a norm that takes the mean away and divides by nothing",
    "not centred": "a norm that divides by the standard deviation and keeps the mean",
    "none": "no norm",
}
NO_NORM = ("divided by the variance", "not divided")  # what nobody would want

PLACE_WORDS = {
    "pre": "x + {f}(norm(x))",
    "post": "norm(x + {f}(x)): post-norm, as in the paper of 2017",
    "normalised": "norm(x) + {f}(norm(x)): the residual is taken from the normalised stream",
    "no residual": "{f}(norm(x)): the residual round {it} is missing, x = x + {f}(norm(x))",
    "branch twice": "{f}(norm(x)) + {f}(norm(x)): the branch is added to itself, not to the stream x",
    "no norm": "x + {f}(x): {it} reads the stream without a norm",
    "norm after": "x + norm({f}(x)): the norm stands behind {it}, not in front of it",
    "no residual, norm after": "norm({f}(x)): the residual round {it} is missing",
    "subtracted": "x - {f}(norm(x)): {it} is taken away, not added",
    "stream twice": "2x + {f}(norm(x)): the stream is doubled by each layer",
    "halved": "(x + {f}(norm(x))) / 2: the sum is halved",
}
NO_WAY = ("no residual", "branch twice", "no residual, norm after")

ACTIVATION_WORDS = {
    "gelu": "GELU, exact (erf)",
    "gelu_tanh": "GELU, approximated by tanh",
    "relu": "ReLU",
    "silu": "SiLU",
    "none": "no activation",
    "normal density": "the density of the normal distribution: GELU is x times its distribution function",
    "normal distribution": "the distribution function of the normal distribution: GELU is x times that",
}

SCALE_WORDS = {
    "root D": "divided by the root of D",
    "none": "not scaled: q·k must be divided by the root of the head's width D",
    "root C": "divided by the root of the model's width C, not of the head's width D",
    "D": "divided by D, not by its root",
    "C": "divided by the model's width C, not by the root of the head's width D",
    "times root D": "multiplied by the root of D, not divided by it",
    "root H": "divided by the root of the number of heads, not of the head's width D",
    "twice": "divided by the fourth root of D: is only one of q and k scaled?",
}


def _unlike(subject: Subject, found: Structure, part: str, expected: str) -> Result:
    """The answer about a part that equals nothing known: with `expect` that is not what was expected."""
    why = found.why.get(part, "it was not found out")
    if subject.expect is None or not found.anatomy.precise or "there is none" in why:
        raise CannotLook(why)
    return _result(FAILED, "nothing known", expected, f"{why}; what `expect` describes is among them")


# ---- embeddings


@_check("embeddings", needs=NEEDS, page="page 7")
def embeddings(subject: Subject) -> Result:
    """The stream starts as the token's vector plus the position's, once, and ends in the unembedding that was meant."""
    found, expect = structure(subject), subject.expect
    wanted = expected_design(expect)
    expected = "token + learned position"
    if isinstance(expect, ModernConfig) and wanted.rotary:
        expected = "token alone, positions rotary"
    if wanted.embedding:
        expected = f"a norm of: {expected}"
    if expect is not None:
        expected += ", tied" if getattr(expect, "tied", False) else ", not tied"
    if "ends" not in found.known:
        return _unlike(subject, found, "ends", expected)
    d, a = found.design, found.anatomy
    scale = "" if d.token_scale == 1 else f"{d.token_scale:.3g} · "
    words = {"none": "", "fixed": " + a fixed table", "constant": " + the same vector everywhere"}
    position = words.get(d.positions, f" + {d.position_times if d.position_times > 1 else ''} learned position")
    measured = f"{scale}token{position.replace('+  ', '+ ')}, {'tied' if a.tied else 'not tied'}"
    status, causes = PASSED, []
    if d.embedding:
        measured = f"a norm of: {measured}"
        if expect is None:
            status = DIFFERS
            causes.append("the stream is normalised before the first block, which GPT-2 does not do")
    if d.token_scale != 1:
        status = DIFFERS
        causes.append("the embedding is multiplied by the root of C, as in the paper of 2017, not in GPT-2")
    if d.position_in_blocks:
        status = DIFFERS
        causes.append("the position is added again in every block, not once before the first")
    elif d.position_times == 2:
        status = DIFFERS
        causes.append("the position is added twice")
    if d.positions == "constant":
        return _result(FAILED, measured, expected, "every position gets the same vector: is the index always 0?")
    if d.positions == "none" and a.positions is not None:
        return _result(FAILED, measured, expected, "there is a position table, and it is never added to the stream")
    if d.positions == "fixed":
        status = DIFFERS
        causes.append("positions come from a table that is not learned, such as sines and cosines")
    if expect is not None:
        if bool(d.embedding) != bool(wanted.embedding):
            unwanted = "and should not be" if d.embedding else "and should be"
            causes.append(f"the stream is {'' if d.embedding else 'not '}normalised before the first block, {unwanted}")
        if d.positions == "none" and wanted.positions == "learned":
            causes.append("no position is added to the stream, where a learned one is expected")
        if d.positions == "learned" and wanted.rotary:
            causes.append("a learned position is added to the stream, where rotary ones are expected")
        if bool(getattr(expect, "tied", False)) != a.tied:
            does = "is the matrix of the token embedding (tied)" if a.tied else "is a matrix of its own: tie it, "
            does += "" if a.tied else "lm_head.weight = wte.weight"
            causes.append(f"the unembedding {does}")
        status = FAILED if causes else status
    return _result(status, measured, expected, "; ".join(causes))


# ---- norms


@_check("norms", needs=NEEDS, page="page 6")
def norms(subject: Subject) -> Result:
    """The norms are LayerNorms, or what `expect` says, and one stands in front of the unembedding."""
    found, expect = structure(subject), subject.expect
    wanted = expected_design(expect)
    kind, eps = wanted.norm
    expected = NORM_WORDS[kind] + (f", eps {eps:g}" if expect is not None else "") + ", one before the unembedding"
    if "ends" not in found.known:
        return _unlike(subject, found, "ends", expected)
    if not {"mlp", "attention"} & found.known:
        return _unlike(subject, found, "mlp", expected)
    d = found.design
    inner, final = d.norm, d.final
    post = d.mlp_place in ("post", "normalised")
    kinds = [inner[0]] if final == inner else [inner[0], final[0]]
    short = [NORM_WORDS[k].split(":")[0].split(" that")[0] for k in kinds]
    measured = ", at the end ".join(short) + f", eps {inner[1]:g}"
    bad, causes = False, []
    if final[0] == "none" and not post:
        causes.append("the final norm, between the last block and the unembedding, is missing")
    for about in kinds:
        if about not in (kind, "none"):
            causes.append(NORM_WORDS[about])
            bad |= about in NO_NORM
    for now in {inner, final}:
        strict = isinstance(expect, ModernConfig)
        if now[0] != "none" and now[0] == kind and (now[1] > 9.9 * eps or (strict and abs(now[1] - eps) > 0.01 * eps)):
            causes.append(f"eps is {now[1]:g}, not {eps:g}")
    causes = list(dict.fromkeys(causes))
    status = FAILED if bad else DIFFERS if causes else PASSED
    return _result(status, measured, expected, "; ".join(causes))


# ---- residual


@_check("residual", needs=NEEDS, page="page 6")
def residual(subject: Subject) -> Result:
    """Attention and the MLP each read a normalised copy of the stream, and add to the stream itself (pre-norm).

    Asked by setting the weights of a layer to zero: then it writes nothing, and the tokens must come through all the
    same.
    """
    found = structure(subject)
    d, expected = found.design, "x + attention(norm(x)), x + MLP(norm(x))"
    if found.missing and not {"mlp", "attention"} <= found.known:
        which = " and ".join({"mlp": "the MLP", "attention": "attention"}[part] for part in found.missing)
        measured = f"with {which} at zero, no token reaches the logits"
        return _result(FAILED, measured, expected, f"the residual round {which} is missing: x = x + f(norm(x))")
    if "ends" not in found.known:
        return _unlike(subject, found, "ends", expected)
    if not {"mlp", "attention"} <= found.known:
        return _unlike(subject, found, "mlp" if "mlp" not in found.known else "attention", expected)
    if "whole" not in found.known:
        return _unlike(subject, found, "whole", expected)
    if d.parallel:
        reads = "the same norm" if d.parallel == "one norm" else "norms of their own"
        cause = f"attention and the MLP stand side by side (parallel, with {reads}), not one after the other"
        return _result(DIFFERS, "x + attention(norm(x)) + MLP(norm(x))", expected, cause)
    places = [(d.attention_place, "attention", "attention"), (d.mlp_place, "MLP", "the MLP")]
    words = [PLACE_WORDS[place].format(f=f, it=it) for place, f, it in places]
    measured = ", ".join(w.split(":")[0] for w in words)
    causes = [w.partition(": ")[2] for w, (place, *_) in zip(words, places, strict=True) if place != "pre"]
    if not d.attention_first:
        causes.append("the MLP comes before attention")
    if any(place in NO_WAY for place, *_ in places):
        return _result(FAILED, measured, expected, "; ".join(causes))
    return _result(DIFFERS if causes else PASSED, measured, expected, "; ".join(dict.fromkeys(causes)))


# ---- activation


@_check("activation", needs=NEEDS, page="page 6")
def activation(subject: Subject) -> Result:
    """Between the two layers of the MLP stands a GELU, or the activation that `expect` says."""
    found, expect = structure(subject), subject.expect
    wanted = expected_design(expect)
    gate = isinstance(expect, ModernConfig) and expect.activation in GATES
    expected = _activation_words(wanted.activation, gate) if expect is not None else "GELU"
    if "mlp" not in found.known:
        if "ends" in found.known and _is_linear(found):
            return _result(FAILED, "no activation", expected, NO_ACTIVATION)
        return _unlike(subject, found, "mlp", expected)
    d = found.design
    gated = found.gated
    measured = _activation_words(d.activation, gated)
    if d.activation == "none" and not gated:
        return _result(FAILED, measured, expected, NO_ACTIVATION)
    if expect is not None and (d.activation != wanted.activation or gated != gate):
        return _result(FAILED, measured, expected, f"the MLP's activation is {measured}, not {expected}")
    if d.activation not in ("gelu", "gelu_tanh") or gated:
        if expect is None:
            return _result(DIFFERS, measured, expected, f"{measured}, where GPT-2 has GELU")
        return _result(PASSED, measured, expected)
    return _result(PASSED, measured, expected)


NO_ACTIVATION = "no activation between the two layers of the MLP: together they are one linear layer"


def _activation_words(name: str, gated: bool) -> str:
    if gated:
        return {"silu": "SwiGLU", "gelu": "GEGLU"}.get(name, f"a gate through {ACTIVATION_WORDS.get(name, name)}")
    return ACTIVATION_WORDS.get(name, name)


def _is_linear(found: Structure) -> bool:
    """Whether the MLP gives the same with all its weights negated: then nothing bends between its two layers.

    An odd activation, such as tanh or the sine, would pass for none; those are among the known ones, and found before.
    """
    a = found.anatomy
    if len(a.mlp) != 2 or not a.muting["mlp"]:
        return False
    before = a.logits(frozenset({"attention"}))
    kept = [p.detach().clone() for p in a.muting["mlp"]]
    out_biases = [p for p in a.muting["mlp"] if p.dim() == 1 and p.numel() == a.width]
    with torch.no_grad():
        try:
            for p in a.muting["mlp"]:
                if not any(p is other for other in out_biases):
                    p.neg_()
            after = a.logits(frozenset({"attention"}), a.idx)
        finally:
            for p, value in zip(a.muting["mlp"], kept, strict=True):
                p.copy_(value)
    moved = (a.logits(frozenset({"attention", "mlp"})) - before).abs().max()
    return bool((after - before).abs().max() < 1e-6 * moved)


# ---- attention


@_check("attention", needs=NEEDS, page="page 4 and page 5")
def attention(subject: Subject) -> Result:
    """Attention is softmax(q·k / root of D) over the past, in the number of heads that `expect` says."""
    found, expect = structure(subject), subject.expect
    wanted = expected_design(expect)
    expected = "scores divided by the root of D"
    if expect is not None and hasattr(expect, "n_head"):
        expected = f"{_heads(wanted.n_head)}, {expected}"
    if wanted.rotary:
        expected += f", rotary with base {wanted.rotary[1]:g}"
    if wanted.qk_norm:
        expected += ", queries and keys normalised"
    if "attention" not in found.known:
        return _unlike(subject, found, "attention", expected)
    d, a = found.design, found.anatomy
    C = a.width
    D = found.reading.query_width // d.n_head
    shared = found.reading.key_width // D
    scale = d.scale if isinstance(d.scale, str) else _nearest_scale(d.scale, D, C)
    words = SCALE_WORDS.get(scale, scale)
    measured = f"{_heads(d.n_head)} of {D}, scores {words.split(':')[0]}"
    status, causes = PASSED, []
    if scale != "root D":
        status = DIFFERS
        causes.append(f"the scores are {words}")
    if shared != d.n_head:
        measured += f", {shared} of keys and values"
    if d.rotary:
        base = f"{d.rotary[1]:.6g}"
        measured += f", rotary with base {base}"
        if expect is None:
            status = DIFFERS
            causes.append("positions turn queries and keys (rotary), where GPT-2 adds them to the stream")
    if d.qk_norm:
        measured += ", queries and keys normalised"
        if expect is None:
            status = DIFFERS
            causes.append("queries and keys are normalised, which GPT-2 does not do")
    if d.slopes:
        measured += ", a bias that falls with distance"
        status = DIFFERS
        causes.append("a bias on the scores falls with distance (ALiBi)")
    if len(a.carry) == 1:
        status = DIFFERS
        causes.append("the output projection after the heads is missing")
    if expect is not None:
        if hasattr(expect, "n_head") and d.n_head != wanted.n_head:
            causes.append(f"there are {d.n_head} heads, not {wanted.n_head}")
        elif hasattr(expect, "n_head") and shared != (wanted_keys := getattr(expect, "kv_heads", wanted.n_head)):
            causes.append(f"there are {shared} heads of keys and values, not {wanted_keys}")
        if bool(d.qk_norm) != bool(wanted.qk_norm):
            unwanted = "and should not be" if d.qk_norm else "and should be"
            causes.append(f"queries and keys are {'' if d.qk_norm else 'not '}normalised, {unwanted}")
        if wanted.rotary and not d.rotary:
            causes.append("queries and keys are not turned: rotary positions are expected")
        if d.rotary and not wanted.rotary:
            causes.append("queries and keys are turned (rotary), and should not be")
        if d.rotary and wanted.rotary and abs(d.rotary[1] / wanted.rotary[1] - 1) > 1e-3:
            causes.append(f"the base of the rotary turns is {d.rotary[1]:.6g}, not {wanted.rotary[1]:g}")
        status = FAILED if causes else status
    return _result(status, measured, expected, "; ".join(causes))


def _heads(count: int) -> str:
    return f"{count} head{'s' if count != 1 else ''}"


def _nearest_scale(factor: float, D: int, C: int) -> str:
    """A scale that no usual mistake gives, in words."""
    times = factor * math.sqrt(D)
    return f"multiplied by {factor:.4g}, which is {times:.4g} times what it should be, 1 / root of D"


# ---- layers


@_check("layers", needs=("finite", "shapes"))
def layers(subject: Subject) -> Result:
    """The blocks are different ones, and as many as expected."""
    a = anatomy(subject)
    L = len(a.norms)
    wanted = getattr(subject.expect, "n_layer", L)
    measured, expected = f"{L - a.shared} different of {L}", f"{wanted} different blocks"
    if a.shared:
        return _result(DIFFERS, measured, expected, "the same block object is used again: build a new one each time")
    if wanted != L:
        return _result(FAILED, measured, expected, f"there are {L} blocks, not {wanted}")
    if a.copies:
        # PyTorch's own encoder copies its layer, which is its design, and no configuration speaks of it.
        own = subject.expect is not None and any(isinstance(m, nn.TransformerEncoder) for m in a.model.modules())
        cause = f"all blocks start with the same weights ({a.copies[0]}): they are copies, so draw each block's anew"
        return _result(PASSED if own else DIFFERS, f"{L} blocks that start alike", expected, cause)
    return _result(PASSED, measured, expected)
