"""Answers to the exercises of page 9."""

import math

import torch


def cosine(step, warmup=100, last=999, low=1e-4, peak=1e-3):
    if step < warmup:
        return peak * (step + 1) / warmup
    return low + (peak - low) * (1 + math.cos(math.pi * (step - warmup) / (last - warmup))) / 2


def after_warmup(decay):
    return lambda step: 1e-3 * (step + 1) / 100 if step < 100 else decay(step)


def total_norm(gradients):
    return torch.sqrt(sum(g.square().sum() for g in gradients))


def clip(gradients, max_norm):
    norm = total_norm(gradients)
    return [g * (max_norm / norm) for g in gradients] if norm > max_norm else list(gradients)


def clip_flat(gradients, max_norm):
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    return tuple(g * torch.clamp(max_norm / (norm + 1e-6), max=1.0) for g in gradients)


def clip_by_pytorch(gradients, max_norm):
    parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in gradients]
    for parameter, g in zip(parameters, gradients, strict=True):
        parameter.grad = g.clone()
    torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    return [parameter.grad for parameter in parameters]


def clip_in_place(gradients, max_norm):
    for g in gradients:
        g.mul_(torch.clamp(max_norm / total_norm(gradients), max=1.0))
    return gradients


RIGHT = {
    "learning-rate": [
        cosine,
        lambda step: torch.tensor(cosine(step), dtype=torch.float32),
        after_warmup(lambda s: 1e-4 + 9e-4 * math.cos(math.pi * (s - 99) / 900 / 2) ** 2),  # counts from step 99
    ],
    "clip": [clip, clip_flat, clip_by_pytorch],
}

# Plausible wrong answers, each with words that its message must hold.
WRONG = {
    "learning-rate": [
        (lambda s: cosine(s - 1) if s <= 100 else cosine(s), "the first step changes nothing"),
        (after_warmup(lambda s: 1e-4 + 9e-4 * (1 + math.cos(math.pi * s / 999)) / 2), "jumps from"),
        (after_warmup(lambda s: 1e-4 + 9e-4 * (1 + math.cos(math.pi * (s - 100) / 900)) / 2),
         "never reaches the minimum"),
        (after_warmup(lambda s: 1e-4 + 9e-4 * (1 + math.cos(math.pi * (s - 100) / 600)) / 2), "rises again"),
        (after_warmup(lambda s: 1e-3 - 9e-4 * (s - 100) / 899), "straight line: half a wave"),
        (after_warmup(lambda s: 1e-3 * (1 + math.cos(math.pi * (s - 100) / 899)) / 2), "towards 0"),
        (after_warmup(lambda s: max(1e-4, 1e-3 * (1 + math.cos(math.pi * (s - 100) / 899)) / 2)), "be cut off"),
        (after_warmup(lambda s: 1e-3 * 0.1 ** ((s - 100) / 899)), "same factor"),
        (after_warmup(lambda s: 1e-3), "it must fall"),
        (lambda s: 1e-4 + 9e-4 * (1 + math.cos(math.pi * s / 999)) / 2, "there is no warm-up"),
        (lambda s: 1e-5 + 9.9e-4 * s / 100 if s < 100 else cosine(s), "not the right one"),
        (lambda s: 1e-3 * ((s + 1) / 100) ** 2 if s < 100 else cosine(s), "not a straight line"),
        (lambda s: cosine(s) / 1e-3, "share of the peak"),
        (lambda s: 1e-3, "at every step"),
        (after_warmup(lambda s: 1e-4 + 9e-4 * ((1 + math.cos(math.pi * (s - 100) / 899)) / 2) ** 2), "halfway down"),
        (after_warmup(lambda s: 1e-4 + 9e-4 * math.cos(math.pi / 2 * (s - 100) / 899)), "halfway down"),
        (after_warmup(lambda s: 1e-4 + 9e-4 * (1 + math.cos((s - 100) / 899)) / 2), "half a turn"),
        (lambda s: [cosine(s)], "must be a number"),
    ],
    "clip": [
        (lambda gs, m: [clip([g], m)[0] for g in gs], "each tensor was clipped alone"),
        (lambda gs, m: [g.clamp(-m, m) for g in gs], "every number was cut off"),
        (lambda gs, m: [g * m / total_norm(gs) for g in gs], "small gradients were scaled up"),
        (lambda gs, m: [g / total_norm(gs) for g in gs], "whatever max_norm says"),
        (lambda gs, m: clip(gs, m / 2) if total_norm(gs) > m else gs, "came back with the norm"),
        (lambda gs, m: [g / total_norm(gs) if total_norm(gs) > m else g for g in gs], "max_norm is missing"),
        (lambda gs, m: [g * m / total_norm(gs) ** 2 if total_norm(gs) ** 2 > m else g for g in gs], "square root"),
        (lambda gs, m: [g * min(1.0, m / sum(h.norm().item() for h in gs)) for g in gs], "the norms of the tensors"),
        (lambda gs, m: [g * min(1.0, m / max(h.abs().max().item() for h in gs)) for g in gs], "the largest number"),
        (lambda gs, m: gs, "nothing was clipped"),
        (clip_in_place, "changed the gradients that it was given"),
        (lambda gs, m: [g / total_norm(gs) * min(m, total_norm(gs)) for g in gs], "all zero"),
        (lambda gs, m: (g for g in clip(gs, m)), "a generator"),
        (lambda gs, m: torch.cat([g.flatten() for g in clip(gs, m)]), "must return a list of tensors"),
        (lambda gs, m: [g.flatten() for g in clip(gs, m)], "changed a shape"),
    ],
}  # fmt: skip
