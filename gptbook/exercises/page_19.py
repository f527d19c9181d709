"""The checks of page 19, from here to ChatGPT."""

import math

import torch
import torch.nn.functional as F

from gptbook.exercises.answers import Wrong, apart, ask, explain, listed, need_function, number, shown, whole_number
from gptbook.exercises.tensors import as_tensor, kept

IGNORE = -100


def _targets(prompt, answer, shift=0):
    """Targets of the row, of which the first len(prompt) - 1 + shift do not count."""
    row = (prompt + answer)[1:]
    hidden = max(0, len(prompt) - 1 + shift)
    return [IGNORE] * hidden + row[hidden:]


MASK_MISTAKES = (
    ("your targets are not shifted: at each place stands the input itself, and the target is the token after it",
     lambda p, a: ((p + a)[:-1], ([IGNORE] * len(p) + a)[:-1])),
    ("your lists keep the whole row: after the last token there is nothing to predict, so both are one shorter",
     lambda p, a: (p + a, [IGNORE] * len(p) + a)),
    ("your targets count everywhere: those that are tokens of the prompt must be -100",
     lambda p, a: ((p + a)[:-1], (p + a)[1:])),
    ("your mask is one too long: the prompt's last token is followed by the answer's first, and that target counts",
     lambda p, a: ((p + a)[:-1], _targets(p, a, 1))),
    ("your mask is one too short: the prompt's last token is itself a target that does not count",
     lambda p, a: ((p + a)[:-1], _targets(p, a, -1))),
    ("your mask hides the answer and leaves the prompt: it must be the other way round",
     lambda p, a: ((p + a)[:-1], p[1:] + [IGNORE] * len(a))),
    ("your inputs are masked: the model must read the prompt, and only its targets do not count",
     lambda p, a: (([IGNORE] * len(p) + a)[:-1], _targets(p, a))),
    ("your inputs leave out the prompt: the model must read it, to know what was asked",
     lambda p, a: (a[:-1], a[1:])),
    ("your targets leave out the answer's last token, the end-of-answer sign: the model must learn to write it",
     lambda p, a: ((p + a)[:-1], [*_targets(p, a)[:-1], IGNORE])),
    ("your targets do not count at 0: the number that cross entropy leaves out is -100",
     lambda p, a: ((p + a)[:-1], [0] * (len(p) - 1) + a)),
    ("your targets do not count at -1: the number that cross entropy leaves out is -100",
     lambda p, a: ((p + a)[:-1], [-1] * (len(p) - 1) + a)),
    ("your two lists are exchanged: the inputs come first, then the targets",
     lambda p, a: (_targets(p, a), (p + a)[:-1])),
)  # fmt: skip


def mask_the_prompt(masked) -> str:
    """masked(prompt, answer) -> the inputs and the targets, two lists of len(prompt) + len(answer) - 1 ids."""
    need_function(masked, "masked(prompt, answer)")
    cases = [([11, 12, 13], [21, 22]), ([31, 32, 33, 34, 35], [41, 42, 43]), ([5, 6], [7, 8, 9, 1])]
    edges = [([11, 12, 13], [21]), ([4], [5, 6]), ([7], [8])]
    got = [_ask_rows(masked, *case) for case in cases]
    if reason := explain(got, cases, MASK_MISTAKES, lambda mine, other: mine == other):
        raise Wrong(reason)
    for (prompt, answer), mine in zip(cases + edges, got + [_ask_rows(masked, *case) for case in edges], strict=True):
        for name, mine_is, wanted in zip(
            ("inputs", "targets"), mine, ((prompt + answer)[:-1], _targets(prompt, answer)), strict=True
        ):
            if mine_is != wanted:
                raise Wrong(f"masked({prompt}, {answer}) gives the {name} {mine_is}, asked for is {wanted}")
    return "the whole row as inputs, and of the targets those of the answer, from its first token to its sign"


def _ask_rows(masked, prompt, answer):
    what = f"masked({prompt}, {answer})"
    given = list(prompt), list(answer)
    got = ask(masked, what, *given)
    if given != (prompt, answer):
        raise Wrong("your function changes the lists that it is given: make new ones")
    if not isinstance(got, tuple | list) or len(got) != 2:
        raise Wrong(f"{what} must return two lists, the inputs and the targets, got {shown(got)}")
    return tuple(
        [whole_number(i, f"an entry of the {name}") for i in listed(row, f"the {name} of {what}")]
        for name, row in zip(("inputs", "targets"), got, strict=True)
    )


def _policy(reference, reward, beta):
    return F.softmax(reference.double().log() + reward.double() / beta, dim=-1)


def _share(raw):
    return raw / raw.sum()


POLICY_MISTAKES = (
    ("your policy goes against the reward: what earns more must gain",
     lambda q, r, b: F.softmax(q.log() - r / b, dim=-1)),
    ("your policy multiplies the reward by beta: a large beta keeps it near the reference, so beta divides",
     lambda q, r, b: F.softmax(q.log() + r * b, dim=-1)),
    ("your policy leaves beta out", lambda q, r, b: F.softmax(q.log() + r, dim=-1)),
    ("your policy forgets the reference: that is the softmax of the rewards alone",
     lambda q, r, b: F.softmax(r / b, dim=-1)),
    ("your policy adds the reference's chances themselves: in a softmax stand their logarithms",
     lambda q, r, b: F.softmax(q + r / b, dim=-1)),
    ("your policy divides the reference's logarithm by beta too: only the reward is divided",
     lambda q, r, b: F.softmax((q.log() + r) / b, dim=-1)),
    ("your chances do not sum to 1: divide by their sum, which the theorem calls Z",
     lambda q, r, b: q * (r / b).exp()),
    ("your function returns the logarithms of the chances: asked for are the chances",
     lambda q, r, b: F.log_softmax(q.log() + r / b, dim=-1)),
    ("your policy is the reference itself: the reward has no say", lambda q, r, b: q),
    ("your policy weighs by the reward itself: it belongs into an exponent",
     lambda q, r, b: _share(q * (r / b))),
    ("your policy gives all to one answer: that is the limit where beta is 0",
     lambda q, r, b: F.one_hot(r.argmax(), len(r)).double()),
)  # fmt: skip


def best_policy(policy) -> str:
    """policy(reference (N,), reward (N,), beta) -> (N,): the chances of the best policy near the reference."""
    need_function(policy, "policy(reference, reward, beta)")
    random = torch.Generator().manual_seed(0)
    cases = [
        (_share(torch.rand(n, generator=random) + 0.05), 2 * torch.randn(n, generator=random) + 0.3, beta)
        for n, beta in ((5, 0.7), (3, 2.0), (8, 1.3))
    ]
    got = [_ask_policy(policy, case) for case in cases]
    wanted = [_policy(*case) for case in cases]
    if not all(_same(*pair) for pair in zip(got, wanted, strict=True)):
        double = [(q.double(), r.double(), b) for q, r, b in cases]
        if reason := explain(got, double, POLICY_MISTAKES, _same):
            raise Wrong(reason)
        mine, wish = next(pair for pair in zip(got, wanted, strict=True) if not _same(*pair))
        raise Wrong(f"{_policy_call(cases[0])} gives {_row(mine)}, asked for is {_row(wish)}")
    hard = [(torch.tensor([0.5, 0.3, 0.2]), torch.tensor([300.0, 301.0, -250.0]), 0.5)]
    for case in hard:
        mine = _ask_policy(policy, case)
        if not _same(mine, _policy(*case)):
            raise Wrong(
                f"small rewards are right, but rewards of {case[1].tolist()} with beta {case[2]} give {_row(mine)}, "
                f"asked for is {_row(_policy(*case))}: an exponential overflows, and a softmax does not"
            )
    return "the reference, tilted by the reward, for large rewards and a small beta too"


def _policy_call(case):
    return f"policy(reference and reward of shape ({len(case[0])},), {case[2]})"


def _ask_policy(policy, case):
    reference, reward, beta = case
    what = _policy_call(case)
    given = reference.clone(), reward.clone()
    got = as_tensor(ask(policy, what, *given, beta), what).double()
    kept(given, (reference, reward), "your function changes the tensors that it is given: work on copies")
    if got.shape != reference.shape:
        raise Wrong(f"{what} must have the shape {tuple(reference.shape)}, got {tuple(got.shape)}")
    return got


def _row(chances):
    return ", ".join(f"{chance:.3g}" for chance in chances.tolist())


def _same(a, b) -> bool:
    return a.shape == b.shape and bool(torch.allclose(a.double(), b.double(), rtol=5e-3, atol=1e-4, equal_nan=True))


def _dpo(c, r, qc, qr, beta):
    return -F.logsigmoid(beta * ((c - qc) - (r - qr))).mean()


DPO_MISTAKES = (
    ("your loss prefers the rejected answers: chosen comes first, rejected is taken off",
     lambda c, r, qc, qr, b: _dpo(r, c, qr, qc, b)),
    ("your loss forgets the reference: what counts is how much each answer gained against it",
     lambda c, r, qc, qr, b: -F.logsigmoid(b * (c - r)).mean()),
    ("your loss adds the reference where it must be taken off",
     lambda c, r, qc, qr, b: -F.logsigmoid(b * ((c + qc) - (r + qr))).mean()),
    ("your loss takes both references off: that of the rejected answers comes back, as the second bracket is taken off",
     lambda c, r, qc, qr, b: -F.logsigmoid(b * (c - qc - r - qr)).mean()),
    ("your loss leaves beta out", lambda c, r, qc, qr, b: _dpo(c, r, qc, qr, 1.0)),
    ("your loss divides by beta: it multiplies the difference", lambda c, r, qc, qr, b: _dpo(c, r, qc, qr, 1 / b)),
    ("your loss has beta outside of the sigmoid: it belongs inside",
     lambda c, r, qc, qr, b: b * _dpo(c, r, qc, qr, 1.0)),
    ("your loss has the wrong sign: a better policy must have a lower one",
     lambda c, r, qc, qr, b: -_dpo(c, r, qc, qr, b)),
    ("your loss is the sum over the pairs: asked for is the mean",
     lambda c, r, qc, qr, b: len(c) * _dpo(c, r, qc, qr, b)),
    ("your loss lacks the logarithm: it is the mean of the sigmoid, with a minus",
     lambda c, r, qc, qr, b: -torch.sigmoid(b * ((c - qc) - (r - qr))).mean()),
    ("your loss lacks the sigmoid: it is the difference itself, with a minus, and has no lowest value",
     lambda c, r, qc, qr, b: -(b * ((c - qc) - (r - qr))).mean()),
    ("your loss takes the mean before the sigmoid: each pair has a loss of its own, and then comes the mean",
     lambda c, r, qc, qr, b: -F.logsigmoid((b * ((c - qc) - (r - qr))).mean())),
    ("your loss takes the arguments for chances: they are logarithms already",
     lambda c, r, qc, qr, b: -F.logsigmoid(b * ((c / qc).log() - (r / qr).log())).mean()),
)  # fmt: skip


def dpo_loss(dpo) -> str:
    """dpo(chosen, rejected, ref_chosen, ref_rejected (B,) each, beta) -> the mean loss."""
    need_function(dpo, "dpo(chosen, rejected, ref_chosen, ref_rejected, beta)")
    cases = [_pairs(B, beta, seed) for seed, (B, beta) in enumerate(((4, 0.3), (7, 2.0), (3, 0.7)))]
    got = [_ask_loss(dpo, case) for case in cases]
    wanted = [_dpo(*case).item() for case in cases]
    if not all(map(_near, got, wanted)):
        if reason := explain(got, cases, DPO_MISTAKES, lambda mine, other: _near(mine, other.item())):
            raise Wrong(reason)
        mine, wish = next(pair for pair in zip(got, wanted, strict=True) if not _near(*pair))
        raise Wrong("for {} pairs with beta {} your loss is {}, asked for is {}".format(
            len(cases[0][0]), cases[0][4], *apart(mine, wish)
        ))  # fmt: skip
    far = (torch.tensor([-700.0, -3.0]), torch.tensor([-20.0, -4.0]), torch.tensor([-20.0, -3.5]),
           torch.tensor([-500.0, -3.5]), 1.0)  # fmt: skip
    mine, wish = _ask_loss(dpo, far), _dpo(*far).item()
    if not _near(mine, wish):
        raise Wrong(
            f"small differences are right, but one of {-700 + 20 - (-20 + 500)} nats gives {mine:.4g}, asked for is "
            f"{wish:.4g}: the sigmoid is 0 there, and its logarithm is lost"
        )
    return "the mean loss of the pairs, for differences of hundreds of nats too"


def _pairs(B, beta, seed):
    random = torch.Generator().manual_seed(seed)
    return (*(-4 * torch.rand(4, B, generator=random) - 1), beta)


def _ask_loss(dpo, case):
    what = f"dpo(four tensors of shape ({len(case[0])},), {case[4]})"
    given = [one.clone() for one in case[:4]]
    got = ask(dpo, what, *given, case[4])
    kept(given, case[:4], "your function changes the tensors that it is given: work on copies")
    if len(getattr(got, "shape", ())) and got.shape == case[0].shape:
        raise Wrong(f"{what} gives a loss for each pair: asked for is their mean, one number")
    return number(got.detach() if hasattr(got, "detach") else got, what)


def _near(mine, wish) -> bool:
    return math.isfinite(mine) and abs(mine - wish) <= 1e-3 + 2e-3 * abs(wish)
