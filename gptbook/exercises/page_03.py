"""The checks of page 3, the averaging trick."""

import math

import torch

from gptbook.exercises.answers import Wrong, ask, need_function, shown
from gptbook.exercises.tensors import as_square, as_tensor


def decaying_average(weights) -> str:
    """weights(T, gamma) -> (T, T): row t weighs token s <= t in proportion to gamma ** (t - s)."""
    need_function(weights, "weights(T, gamma)")
    for T, gamma in ((5, 0.5), (7, 0.8), (4, 1.0), (1, 0.3), (2, 0.25), (64, 0.1)):
        what = f"weights({T}, {gamma})"
        got, tolerance = as_square(ask(weights, what, T, gamma), T, what)
        right = torch.zeros(T, T, dtype=torch.float64)
        for t in range(T):
            total = sum(gamma ** (t - k) for k in range(t + 1))
            for s in range(t + 1):
                right[t, s] = gamma ** (t - s) / total
        if not _close(got, right, tolerance):
            raise Wrong(_why_not_decaying(got, right, T, gamma, tolerance, what))
    return "every row sums to 1, fades by gamma with each step back, and sees nothing of the future"


def _close(a, b, tolerance) -> bool:
    return bool(torch.isfinite(a).all()) and bool(((a - b).abs() <= tolerance).all())


def _why_not_decaying(got, right, T, gamma, tolerance, what) -> str:
    if not torch.isfinite(got).all():
        if T == 64:
            return f"{what} holds NaN or infinity: gamma to a large negative power is too big for a float, even times 0"
        return f"{what} holds NaN or infinity: does some row divide by zero?"
    if T > 1 and _close(got.T, right, tolerance):
        return f"{what} is the transposed matrix: rows are the tokens that look, columns the ones looked at"
    future = got.triu(1).abs()
    if future.max() > tolerance:
        t, s = divmod(int(future.argmax()), T)
        return f"in {what} row {t} gives the weight {got[t, s]:.4g} to token {s}, which is in its future"
    if T > 1 and (got.diagonal()[1:].abs() <= tolerance).all():
        return f"in {what} no token weighs itself: the present, s = t, belongs to the sum"
    sums = got.sum(dim=1)
    if (sums - 1).abs().max() > T * tolerance:
        if (got.sum(dim=0) - 1).abs().max() <= T * tolerance:
            return f"in {what} the columns sum to 1, not the rows: normalise along the other axis"
        if _close(got / got.diagonal()[:, None], right / right.diagonal()[:, None], 10 * tolerance):
            t = int((sums - 1).abs().argmax())
            return f"{what} fades rightly but is not normalised: row {t} sums to {sums[t]:.4g}, not to 1"
        t = int((sums - 1).abs().argmax())
        return f"in {what} row {t} sums to {sums[t]:.4g}: every row must sum to 1"
    t = T - 1
    ratio = float(got[t, t - 1] / got[t, t])
    if gamma < 1 and abs(ratio - 1) < 1e-3:
        return f"{what} weighs all of the past alike: gamma has no effect"
    if gamma < 1 and ratio > 1:
        return f"{what} fades in the wrong direction: older tokens must weigh less than newer ones"
    return f"in the last row of {what} a token weighs {ratio:.4g} times as much as the one after it, not {gamma} times"


class _Probe:
    """An averaging function that remembers how it was asked, so that a message can say what went wrong."""

    def __init__(self, average):
        self.average, self.asked = average, []

    def __call__(self, x):
        if not torch.is_tensor(x) or x.dim() != 3:
            raise TypeError(f"average takes a tensor of shape (B, T, C), got {shown(x)}")
        x = x if x.is_floating_point() else x.float()
        self.asked.append((x.detach(), x.detach().clone()))
        return self.average(x)

    def habit(self) -> str:
        """What in the way of asking explains a wrong answer; empty where nothing does."""
        if not self.asked:
            return ": your function never called average"
        if max(x.size(1) for x, _ in self.asked) < 3:
            return ": your inputs have fewer than three positions"
        if any(not torch.isfinite(then).all() for _, then in self.asked):
            return ": your inputs hold NaN or infinity, and those times a weight of 0 are NaN"
        if len(self.asked) == 1 and not any(x.requires_grad for x, _ in self.asked):
            return ": one call shows nothing, compare two whose inputs differ"
        if isinstance(self.average, _Rounding):
            return ": it reads no future, and exact equality asks too much"
        if any(not torch.equal(x, then) for x, then in self.asked):
            return ": your function changes an input in place after average has seen it, so work on copies"
        if all(bool((then == then.flatten()[0]).all()) for _, then in self.asked):
            return ": your inputs are constant, and any average of equal numbers is that number"
        return ""


def _mix(x, weights):
    return weights.to(x.dtype) @ x  # (T, T) @ (B, T, C) -> (B, T, C)


def _causal(T):
    kept = torch.ones(T, T, dtype=torch.float64).tril()
    return kept / kept.sum(dim=1, keepdim=True)


def _peek(t, s):
    """Causal averages, but position t of T weighs position s of T too; both are functions of T."""

    def average(x):
        T = x.size(1)
        kept = torch.ones(T, T, dtype=torch.float64).tril()
        kept[max(t(T), 0), s(T)] = 1
        return _mix(x, kept / kept.sum(dim=1, keepdim=True))

    return average


def _masked_with(fill):
    def average(x):
        T = x.size(1)
        scores = torch.zeros(T, T, dtype=torch.float64).masked_fill(torch.ones(T, T).tril() == 0, fill)
        return _mix(x, torch.softmax(scores, dim=1))

    return average


def _decaying(x):
    t = torch.arange(x.size(1))
    kept = (0.7 ** (t[:, None] - t[None, :]).clamp(min=0).double()).tril()
    return _mix(x, kept / kept.sum(dim=1, keepdim=True))


def _off_by_one(x):
    kept = torch.ones(x.size(1), x.size(1), dtype=torch.float64).tril(1)
    return _mix(x, kept / kept.sum(dim=1, keepdim=True))


class _Rounding:
    """A causal mean whose last bit differs from call to call, as sums taken in another order do."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return _mix(x, _causal(x.size(1))) * (1 + self.calls % 2 * torch.finfo(x.dtype).eps)


def _two_ahead(x):
    T = x.size(1)
    kept = torch.ones(T, T, dtype=torch.float64).tril() + torch.ones(T, T, dtype=torch.float64).triu(2).tril(2)
    return _mix(x, kept / kept.sum(dim=1, keepdim=True))


def _honest():
    return (
        ("the loop over positions", lambda x: torch.stack([x[:, : t + 1].mean(1) for t in range(x.size(1))], dim=1)),
        ("the lower-triangular matrix product", lambda x: _mix(x, _causal(x.size(1)))),
        ("the masked softmax", _masked_with(-math.inf)),
        ("the function that returns its input", lambda x: x),
        ("an average with fading weights", _decaying),
        ("a causal mean whose rounding differs from call to call", _Rounding()),
    )


def _leaky():
    def everything(x):
        return x.mean(dim=1, keepdim=True).expand_as(x)

    return (
        ("a mask that is off by one diagonal", _off_by_one),
        ("the mean of the whole sequence", everything),
        ("the mean of the whole batch, over rows and positions", lambda x: x.mean((0, 1), keepdim=True).expand_as(x)),
        (
            "a row that reads the future of another row of the batch",
            lambda x: _mix(x, _causal(x.size(1))) + everything(x).roll(1, 0),
        ),
        ("a leak into position 0 only", _peek(lambda T: 0, lambda T: T - 1)),
        ("a leak from the last position into the one before it only", _peek(lambda T: T - 2, lambda T: T - 1)),
        ("a leak two steps ahead that passes over the next token", _two_ahead),
        ("a leak at one step in the middle only", _peek(lambda T: (T - 1) // 2, lambda T: min((T + 1) // 2, T - 1))),
        ("a faint leak, a mask filled with -5 in place of minus infinity", _masked_with(-5.0)),
        ("the last token given to every position, as a view of the input", lambda x: x[:, -1:].expand_as(x)),
    )


def leak_finder(leaks) -> str:
    """leaks(average) -> whether any output of average (B, T, C) -> (B, T, C) depends on a later input."""
    need_function(leaks, "leaks(average)")
    findings = []
    for truth, functions in ((False, _honest()), (True, _leaky())):
        for words, average in functions:
            probe = _Probe(average)
            said = ask(leaks, f"leaks(average), with {words} as average,", probe)
            findings.append((_yes_or_no(said), truth, words, probe))
    said = {finding[0] for finding in findings}
    if len(said) == 1:
        raise Wrong(f"your function says {said.pop()} to every average, right or wrong{findings[0][3].habit()}")
    if all(said != truth for said, truth, _, _ in findings):
        raise Wrong("your function says True and False the wrong way round: True means that it leaks")
    for said, truth, words, probe in findings:
        if said and not truth:
            raise Wrong(f"your function accuses {words}{probe.habit() or ', which never reads the future'}")
    for said, truth, words, probe in findings:
        if truth and not said:
            raise Wrong(f"your function misses {words}{probe.habit()}")
    right = sum(not truth for _, truth, _, _ in findings)
    return f"{len(findings) - right} leaks found, and none of {right} right averages accused"


def _yes_or_no(said) -> bool:
    if isinstance(said, bool):
        return said
    if getattr(said, "shape", None) == () and str(said.dtype).endswith("bool"):
        return bool(said)
    raise Wrong(f"leaks(average) must return True or False, got {shown(said)}")


def double_weight(scores) -> str:
    """scores, or scores(T) -> (T, T): softmax over rows weighs the present twice as much as each earlier token."""
    if not callable(scores) or torch.is_tensor(scores):
        tensor = as_tensor(scores, "the answer, unless it is the function scores(T),")
        T = tensor.size(0) if tensor.dim() else 0
        if T < 3:
            raise Wrong(
                f"the scores must be for three tokens or more to be judged, got the shape {tuple(tensor.shape)}"
            )
        _check_scores(scores, T, f"the scores, a matrix that must be ({T}, {T}),")
    else:
        need_function(scores, "scores(T)")
        for T in (4, 1, 2, 9):
            _check_scores(ask(scores, f"scores({T})", T), T, f"scores({T})")
    return "after the softmax every token weighs itself twice as much as each token before it"


def _check_scores(value, T, what):
    got, tolerance = as_square(value, T, what)
    if torch.isnan(got).any():
        raise Wrong(f"{what} holds NaN: infinity times 0 is NaN, so set the masked entries, do not multiply them")
    if (got == math.inf).any():
        raise Wrong(f"{what} holds plus infinity: what is hidden needs the sign that makes e to it 0")
    above = torch.ones(T, T, dtype=torch.bool).triu(1)
    past = torch.ones(T, T, dtype=torch.bool).tril(-1)
    hidden = got == -math.inf
    if T > 1 and torch.equal(hidden, past):
        raise Wrong(f"{what} hides the past and shows the future: row t is the token that looks")
    if (got.sum(1) - 1).abs().max() <= T * tolerance and (got >= 0).all() and T > 1:
        raise Wrong(f"{what} holds the weights themselves: asked for are the scores that the softmax turns into them")
    if not hidden[above].all():
        worst = float(got[above].max())
        if worst <= -5:
            raise Wrong(f"{what} hides the future with {worst:g}: only minus infinity makes the weight exactly 0")
        raise Wrong(f"{what} does not hide the future: above the diagonal stands {worst:g}, not minus infinity")
    if hidden.diagonal().any():
        raise Wrong(f"{what} hides the present too: the diagonal must be seen, or row 0 has nothing to look at")
    if hidden[past].any():
        raise Wrong(f"{what} hides a part of the past")
    for t in range(1, T):
        earlier = got[t, :t]
        if earlier.max() - earlier.min() > tolerance * (1 + float(earlier.abs().max())):
            raise Wrong(f"in row {t} of {what} the earlier tokens have different scores, so unequal weights")
        gain = float(got[t, t] - earlier.mean())
        if abs(gain - math.log(2)) > tolerance * (1 + float(got[t, : t + 1].abs().max())):
            raise Wrong(_why_not_double(gain, got, t, what, tolerance))


def _why_not_double(gain, got, t, what, tolerance) -> str:
    times = f"in row {t} of {what} the present weighs {math.exp(min(gain, 700)):.4g} times an earlier token"
    T = got.size(0)
    if T > 2 and all(abs(float(got[u, u] - got[u, 0]) - math.log(2 * u)) <= 10 * tolerance for u in range(1, T)):
        return "the present weighs twice as much as all earlier tokens together: asked for is twice as much as each"
    if abs(gain) <= tolerance:
        return f"{times}: this is still the plain mean"
    if abs(gain - 2) <= 10 * tolerance:
        return f"{times}, since e to the power 2 is not 2: scores are exponents"
    if abs(gain - 1) <= 10 * tolerance:
        return f"{times}: scores are exponents of e, and 1 is the exponent of 2 that gives 2"
    if abs(gain + math.log(2)) <= 10 * tolerance:
        return f"{times}: it is the past that got the double weight"
    if abs(gain - math.log10(2)) <= 10 * tolerance:
        return f"{times}: the logarithm has the base 10, and the softmax the base e"
    return f"{times}, not 2 times"
