"""The questions that a right GPT answers and a wrong one does not, asked of any model that maps tokens to logits.

They are asked in an order: a NaN, or dropout that is still on, would make later answers meaningless, so those are then
"not checked". Each question is a function of its own here, and `check_model` asks them all, always on a copy.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn as nn
import torch.nn.functional as F

from gptbook.verify.anatomy import without_ngrams
from gptbook.verify.parameters import expected_parameters, explain_difference
from gptbook.verify.report import DIFFERS, FAILED, NOT_CHECKED, PASSED, Report, Result
from gptbook.verify.subject import CannotLook, Subject, one_line, untouched

ROUNDING = 1e-5  # of the size of the logits, in float32: below this a difference can be rounding
MOST_CUTS = 64  # longer contexts are tried at every cut of this length, and at some cuts of their own
SMALL = 10_000_000  # parameters; larger models get shorter rows and smaller batches, to stay within minutes


@dataclass(frozen=True)
class Check:
    """A question: its name in reports, how it is asked, which answers must not be bad for it to mean anything, and the
    page that explains it.
    """

    name: str
    ask: Callable[[Subject], Result]
    needs: tuple[str, ...]
    page: str


CHECKS: dict[str, Check] = {}
ORDER = (  # in which they are asked; those about a model's inside are in `inside`
    "finite", "deterministic", "dropout", "shapes", "loss", "causal", "batch-independent", "position-sensitive",
    "reach", "embeddings", "norms", "residual", "activation", "attention", "layers", "parameters", "initial-loss",
    "gradients", "memorise",
)  # fmt: skip


def _check(name: str, needs: tuple[str, ...] = (), page: str = "page 8"):
    """Enter `ask(subject)` among the checks, and make of it the public function that takes a model."""

    def enter(ask):
        CHECKS[name] = Check(name, ask, needs, page)

        def public(model, vocab_size: int = 65, block_size: int = 64, expect=None) -> Result:
            subject = Subject(model, vocab_size, block_size, expect)
            with untouched(subject.original):
                return _judged(subject, _answer(subject, name, {}))

        public.__name__ = public.__qualname__ = ask.__name__
        public.__doc__ = ask.__doc__
        return public

    return enter


def check_model(model: nn.Module, vocab_size: int = 65, block_size: int = 64, expect=None) -> Report:
    """Ask `model` every question, and change nothing about it.

    The model maps idx (B, T), whole numbers below `vocab_size`, at most `block_size` in a row, to logits (B, T, V); to
    (logits, loss) when given targets; or to an object with .logits. `expect`, a configuration, says what it should be
    like: its sizes count, the number of parameters is compared, and what merely "differs" from it then fails.
    Raises TypeError or ValueError for arguments that make no sense.
    """
    return ask_all(Subject(model, vocab_size, block_size, expect), [name for name in ORDER if name in CHECKS])


def ask_all(subject: Subject, names) -> Report:
    """The answers to the questions of these names, and to no others."""
    answers: dict[str, Result] = {}
    with untouched(subject.original):
        for name in names:
            _answer(subject, name, answers)
    return Report(tuple(_judged(subject, answers[name]) for name in names))


def _answer(subject: Subject, name: str, answers: dict[str, Result]) -> Result:
    """The result of one check, and of those that it needs, each asked once."""
    if name not in answers:
        bad = [n for n in CHECKS[name].needs if _answer(subject, n, answers).status in (FAILED, NOT_CHECKED)]
        if bad:
            what = "failed" if answers[bad[0]].status == FAILED else "could not be checked"
            answers[name] = Result(name, NOT_CHECKED, cause=f"it would mislead, because “{bad[0]}” {what}")
        else:
            answers[name] = _asked(subject, CHECKS[name])
    return answers[name]


def _asked(subject: Subject, check: Check) -> Result:
    try:
        return replace(check.ask(subject), name=check.name)
    except CannotLook as reason:
        return Result(check.name, NOT_CHECKED, cause=str(reason))
    except Exception as error:  # a reader's model may raise anything: an answer that nobody got is no pass
        return Result(check.name, NOT_CHECKED, cause=f"the check was stopped by {one_line(error)}")


def _judged(subject: Subject, result: Result) -> Result:
    """The result as the report gives it: what differs from `expect` has failed; what is wrong names its page."""
    if result.status == DIFFERS and subject.expect is not None:
        result = replace(result, status=FAILED)
    if result.status in (FAILED, DIFFERS):
        result = replace(result, cause=f"{result.cause} ({CHECKS[result.name].page})")
    return result


def _result(status: str, measured: str = "", expected: str = "", cause: str = "") -> Result:
    return Result("", status, measured, expected, cause)


# ---- finite


@_check("finite")
def finite(subject: Subject) -> Result:
    """No logit is NaN or infinite, with the weights as they are and with random ones."""
    expected = "no NaN, no infinity"
    for weights, model in (("initial", subject.fresh()), ("random", subject.random())):
        for T in sorted({1, subject.T}):
            idx = subject.tokens(2, T)
            try:
                logits = subject.raw(model, idx)
            except Exception as error:
                raise CannotLook(f"the model raises {one_line(error)}") from error
            if logits is None:
                raise CannotLook("the model returns no logits")
            bad = ~torch.isfinite(logits)
            if bad.any():
                measured = f"{bad.float().mean():.0%} of the logits are not finite ({weights} weights)"
                return _result(FAILED, measured, expected, _where_it_starts(subject, model, idx))
    return _result(PASSED, "all logits finite", expected)


def _where_it_starts(subject: Subject, model: nn.Module, idx: torch.Tensor) -> str:
    """In words, the first part of a copy whose output is not finite although its inputs are."""
    model, first = copy.deepcopy(model), []

    def look(name):
        def hook(module, inputs, output):
            tensors = [t for t in inputs if isinstance(t, torch.Tensor) and t.is_floating_point()]
            if first or not isinstance(output, torch.Tensor) or not all(torch.isfinite(t).all() for t in tensors):
                return
            bad = ~torch.isfinite(output)
            if bad.any():
                first.append((name, bad.flatten(2).any(-1).any(0) if output.dim() >= 3 else None))

        return hook

    for name, module in model.named_modules():
        if name:
            module.register_forward_hook(look(name))
    subject.raw(model, idx)
    if not first:
        return "the cause lies outside of every named part"
    name, rows = first[0]
    words = f"it starts in `{name}`"
    if rows is not None and rows.numel() == idx.size(1) and rows[0] and not rows[1:].any():
        return words + ", at position 0: is its own token hidden as well? Then the softmax has nothing to choose from"
    return words + ": a softmax over the wrong axis or over nothing, a division by zero, or numbers too large"


# ---- deterministic


@_check("deterministic", needs=("finite",))
def deterministic(subject: Subject) -> Result:
    """In evaluation mode, the same tokens give the same logits, bit for bit."""
    expected = "0, bit for bit"
    idx = subject.tokens(2, subject.T)

    for model in (subject.fresh(), subject.random()):
        once, again = _run(subject, model, idx, 0), _run(subject, model, idx, 1)
        if once.shape != again.shape or not torch.equal(once, again):
            cause = "something draws random numbers in evaluation mode: dropout that ignores eval()?"
            if not torch.equal(_run(subject, model, idx, 0), _run(subject, model, idx, 0)):
                cause = "the model keeps something from one call to the next"
            moved = (once - again).abs().max() if once.shape == again.shape else math.inf
            return _result(FAILED, f"two calls differ by {moved:.1e}", expected, cause)
    return _result(PASSED, "two calls differ by 0", expected)


def _run(subject: Subject, model: nn.Module, idx: torch.Tensor, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return subject.raw(model, idx)


def _declared(config, otherwise: float) -> float:
    """The highest rate of dropout that the configuration asks for, or `otherwise` if it knows no such thing."""
    names = ["dropout", "channel_dropout"] + ["ngram_dropout"] * (getattr(config, "ngrams", 1) > 1)
    return max((getattr(config, name) for name in names if hasattr(config, name)), default=otherwise)


@_check("dropout", needs=("finite", "deterministic"))
def dropout(subject: Subject) -> Result:
    """Dropout that the model declares is at work in training mode; of several kinds, at least one."""
    model, idx = copy.deepcopy(subject.random()).train(), subject.tokens(2, subject.T)
    declared = max((m.p for m in model.modules() if isinstance(m, nn.Dropout)), default=0.0)
    if subject.expect is not None:
        declared = _declared(subject.expect, declared)
    for module in model.modules():
        if isinstance(module, nn.Dropout) and module.p > 0:
            module.p = 0.5  # what would seldom leave out anything, or nearly always all, is told by few calls
    first = _run(subject, model, idx, 0)
    # Where there is little to leave out, a call may leave out nothing of it.
    seeds = range(1, 20 if declared else 2)
    agree = all(torch.equal(first, _run(subject, model, idx, seed)) for seed in seeds)
    measured = f"two calls {'agree' if agree else 'differ'} in training mode"
    if declared and agree:
        return _result(
            FAILED, measured, f"they differ, by dropout {declared:g}", "dropout is declared but never applied"
        )
    if not agree and not declared and subject.expect is not None:
        return _result(
            FAILED, measured, "they agree, without dropout", "something draws random numbers in training mode"
        )
    return _result(PASSED, measured, f"dropout {declared:g}" if declared else "no dropout declared")


# ---- shapes


@_check("shapes")
def shapes(subject: Subject) -> Result:
    """Tokens (B, T) give logits (B, T, V), for one row and several, one token, some, and a full context."""
    V, T = subject.V, subject.T
    expected = f"(B, T, {V}) for T = 1 to {T}"
    model = subject.fresh()
    subject.need_own_weights(model)
    try:
        subject.probe()
    except CannotLook as problem:
        return _result(FAILED, str(problem), expected, _shape_cause(str(problem)))
    for B, length in sorted({(1, 1), (2, 1), (1, T), (2, (T + 1) // 2), (3, T)}):
        idx = subject.tokens(B, length)
        try:
            logits = subject.look(model, idx)  # (B, length, V)
        except Exception as error:
            problem = f"B = {B}, T = {length}: {one_line(error)}"
            return _result(FAILED, problem, expected, _shape_cause(problem))
        if tuple(logits.shape[:2]) != (B, length) or logits.size(2) < V:
            measured = f"{tuple(logits.shape)} for B = {B}, T = {length}"
            return _result(FAILED, measured, expected, "the shape depends on B or T in another way than it should")
    width, status, remarks = logits.size(2), PASSED, []
    if subject.via_targets:
        try:
            with torch.no_grad():
                subject.call(model, idx)
        except Exception as error:
            cause = "forward must work without targets, or nothing can be generated"
            return _result(FAILED, f"without targets: {one_line(error)}", expected, cause)
        remarks.append("without targets only the last position is returned, which is enough to generate")
    if subject.flat:
        status = DIFFERS
        remarks.append("the logits come flattened, (B·T, V): a caller must undo it")
    if width > V:
        status = DIFFERS
        remarks.append(f"the vocabulary is padded from {V} to {width}: never sample the ids above {V - 1}")
    return _result(status, f"(B, T, {width}) at every size tried", expected, "; ".join(remarks))


def _shape_cause(problem: str) -> str:
    if "only the last" in problem:
        return "return the logits of every position, or accept targets and return them then"
    if "exchanged" in problem:
        return "a transpose too many: cross_entropy wants its copy transposed, the caller does not"
    if "vocabulary" in problem:
        return "the unembedding's width must be vocab_size"
    if "size" in problem or "shape" in problem:
        return "is the mask or the position table cut to the length T of the input, not always block_size?"
    return "the model cannot be called with tokens of this size"


# ---- loss


@_check("loss", needs=("finite", "deterministic", "shapes"), page="page 1 and page 2")
def loss(subject: Subject) -> Result:
    """A model that returns a loss returns the mean cross-entropy of its logits and the caller's targets."""
    model, idx = subject.random(), subject.tokens(3, subject.T)
    logits = subject.look(model, idx)  # (B, T, V)
    sums = logits.sum(-1)
    if logits.min() >= 0 and torch.allclose(sums, torch.ones_like(sums), atol=1e-3):
        return _result(
            FAILED, "each row of logits is positive and sums to 1", "logits of any size",
            "these are probabilities: leave out the softmax, cross_entropy takes it itself",
        )  # fmt: skip
    targets = subject.tokens(3, subject.T, seed=7)
    returned, convention, with_targets = _own_loss(subject, model, idx, targets)
    if returned is None:
        raise CannotLook("the model returns no loss; it is computed outside, from the logits")
    expected = f"{_cross_entropy(logits, targets):.4f}, from the logits"
    measured = f"{returned:.4f}"
    if with_targets is not None:
        size = logits.abs().max() + 1
        reference = logits if with_targets.shape == logits.shape else logits.flatten(0, 1)
        if with_targets.shape == reference.shape and (with_targets - reference).abs().max() > 1e-4 * size:
            return _result(
                FAILED, "logits change when targets are given", "the same logits",
                "the targets reach the logits, or the two ways through forward differ (a mask in one of them only?)",
            )  # fmt: skip
    if convention == "":
        return _result(PASSED, measured, expected)
    if convention == "shifted" and subject.target_name == "labels":
        return _result(  # no configuration speaks of it
            DIFFERS if subject.expect is None else PASSED, measured, expected,
            "it shifts its labels itself: give it the tokens, not the shifted targets of this book",
        )  # fmt: skip
    return _result(FAILED, measured, expected, _LOSS_CAUSES.get(convention, "no known mistake gives this number"))


_LOSS_CAUSES = {
    "shifted": "it shifts targets that are shifted already: each position then predicts two tokens ahead",
    "copied": "it compares with the tokens of the input, not with the targets",
    "viewed": "logits (B, T, V) are reshaped to (B, V, T), which mixes positions; transpose, or flatten both",
    "exchanged": "the targets are flattened in another order than the logits",
    "softmaxed": "a softmax stands in front of cross_entropy, which takes one itself",
    "summed": "it is a sum over tokens, not a mean: the step size then depends on B and T",
    "summed over positions": "it is summed over positions and averaged over rows only",
    "bits": "it is in bits (logarithm to base 2), not in nats",
    "last": "only the last position counts, so most of every batch teaches nothing",
}


def _cross_entropy(logits, targets) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def _own_loss(subject: Subject, model: nn.Module, idx: torch.Tensor, targets: torch.Tensor):
    """The loss that a copy returns (None if it returns none), by which convention ("" is right), and its logits."""
    if subject.target_name is None:
        return None, "", None
    with torch.no_grad():
        logits = subject.logits(model, idx)
        try:
            given, own = subject.call(model, idx, targets)
        except Exception as error:
            raise CannotLook(f"called with {subject.target_name}, the model raises {one_line(error)}") from error
        if own is None:
            return None, "", given
        own = own.float().mean().item()
        B, T, V = logits.shape
        right = _cross_entropy(logits, targets).item()
        known = {
            "": right,
            "copied": _cross_entropy(logits, idx).item(),
            "viewed": F.cross_entropy(logits.float().reshape(B, V, T), targets).item(),
            "exchanged": _cross_entropy(logits, targets.T.reshape(B, T)).item(),
            "softmaxed": _cross_entropy(logits.softmax(-1), targets).item(),
            "summed": right * B * T,
            "summed over positions": right * T,
            "bits": right / math.log(2),
            "last": _cross_entropy(logits[:, -1:], targets[:, -1:]).item(),
        }
        if T > 1:
            known["shifted"] = _cross_entropy(logits[:, :-1], targets[:, 1:]).item()
        tolerance = 1e-4 if logits.dtype in (torch.float32, torch.float64) else 1e-2
        near = (name for name, value in known.items() if abs(own - value) <= tolerance * (1 + abs(value)))
        return own, next(near, "unknown"), given


# ---- causal


@_check("causal", needs=("finite", "deterministic", "shapes"), page="page 4 and page 5")
def causal(subject: Subject) -> Result:
    """No logit moves when a later token changes: not one bit, at every cut, whatever the weights.

    Tried with the weights as they are, with random ones (fresh weights can hide a leak), with random ones three and ten
    times as large (which find a mask that is only very negative), and in training mode.
    """
    if subject.T < 2:
        raise CannotLook("a context of one token has no future")
    T = min(subject.T, MOST_CUTS if _is_small(subject.original) else MOST_CUTS // 4)
    idx = subject.tokens(2, T, seed=3)
    expected = "0, bit for bit"
    settings = {
        "initial weights": subject.fresh(),
        "random weights": subject.random(),
        "large weights": subject.random(3.0),
        "huge weights": subject.random(10.0),
        "training mode": copy.deepcopy(subject.random()).train(),
    }
    found, skipped, rounding = {}, [], 0.0
    for setting, model in settings.items():
        moves = _moves(subject, model, idx, range(1, T))
        if moves is None:
            skipped.append(setting)
            continue
        moved, size = moves
        future = moved.triu(1)
        if _is_leak(subject, model, idx, future, size):
            found[setting] = (moved, size)
        elif future.max() > 0:
            rounding = max(rounding, (future.max() / size).item())
    if subject.T > T and not found:
        idx = subject.tokens(1, subject.T, seed=4)
        cuts = sorted({1, subject.T // 4, subject.T // 2, 3 * subject.T // 4, subject.T - 1})
        moves = _moves(subject, subject.random(), idx, cuts)
        if moves and _is_leak(subject, subject.random(), idx, moves[0].triu(1), moves[1]):
            found[f"T = {subject.T}"] = moves
    if found:
        setting = next(iter(found))
        moved, size = found[setting]
        words = _who_sees_whom(moved, ROUNDING * size, setting)
        return _result(FAILED, f"{moved.triu(1).max():.1e} ({setting})", expected, words)
    if "random weights" in skipped:
        raise CannotLook("with random weights the logits are not finite, or two calls differ")
    remarks = []
    if rounding:
        remarks.append(
            f"the future moves logits by {rounding:.0e} of their size: rounding, not a leak. Masking with −inf before "
            "the softmax gives exactly 0; masking after it and dividing again is the same in exact arithmetic only"
            + (", and breaks at extreme weights, where it divides 0 by 0" if "huge weights" in skipped else "")
        )
    if skipped:
        remarks.append(f"not looked at: {', '.join(skipped)} (not finite, or two calls differ)")
    tried = len(settings) - len(skipped)
    measured = f"{'rounding' if rounding else '0'} at {T - 1} cuts, {tried} settings"
    return _result(PASSED, measured, expected, "; ".join(remarks))


def _moves(subject: Subject, model: nn.Module, idx: torch.Tensor, cuts):
    """(T, T) how far logit i moves when token j changes, for j in `cuts`, and the size of the logits; None if unclear.

    Tokens change in every row of the batch at once, so that rows that disturb each other do not look like a leak.
    """

    def run(tokens):
        torch.manual_seed(0)  # in training mode: the same dropout each time
        return subject.look(model, tokens)

    base = run(idx)
    if not torch.isfinite(base).all() or not torch.equal(base, run(idx)):
        return None
    other = subject.other(idx)
    T = idx.size(1)
    moved = torch.zeros(T, T, dtype=torch.float64)
    for j in cuts:
        changed = idx.clone()
        changed[:, j] = other[:, j]
        moved[:, j] = (run(changed) - base).abs().amax(dim=(0, 2)).double().nan_to_num(nan=math.inf).cpu()
    return moved, max(base.abs().max().item(), 1e-30)


def _is_leak(subject: Subject, model: nn.Module, idx: torch.Tensor, future: torch.Tensor, size: float) -> bool:
    """Whether the future moves logits by more than rounding: in float64 rounding nearly vanishes, a leak does not."""
    worst = future.max().item()
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    if worst <= ROUNDING * size * torch.finfo(dtype).eps / torch.finfo(torch.float32).eps:
        return False
    try:
        j = int(future.amax(dim=0).argmax())
        moves = _moves(subject, copy.deepcopy(model).double(), idx, [j])
        return moves is None or moves[0].triu(1).max().item() > 1e-3 * worst
    except Exception:  # the model insists on its own type: then the size alone decides
        return True


_HIDDEN = ": position 0 is hidden from itself and averages the future; the mask must keep the diagonal"


def _who_sees_whom(moved: torch.Tensor, floor: float, setting: str) -> str:
    """In words, from (T, T) movements: which position sees which later token, and what mistake does that."""
    T = moved.size(0)
    future, past = moved.triu(1), moved.tril(-1)
    i, j = divmod(int(future.argmax()), T)
    words = f"position {i} sees token {j}"
    if setting == "training mode":
        return words + " in training mode only: a second way through forward without a mask, or a norm over positions"
    if setting.startswith("T = "):
        return words + " in a full context only: is the mask made for shorter rows?"
    if setting in ("large weights", "huge weights"):
        return words + " once scores are large: mask with −inf; a merely negative number can be outweighed"
    seen = future > floor  # (T, T)
    if seen[0].any() and not seen[1:].any():
        return words + _HIDDEN
    if not (past > floor).any():
        return words + ", and no position sees the past: the mask is upside down"
    ahead = max(b - a for a, b in seen.nonzero().tolist())
    if ahead < T - 1:
        words += f", and nothing sees further than {ahead} ahead"
        return words + ": the mask is off by one, tril(1) for tril(0); each layer then looks one further"
    typical = past[past > floor].median()
    by_row = future[:-1].sum(dim=1) / torch.arange(T - 1, 0, -1)
    if by_row.argmax() <= 1 and by_row[0] > 0.5 * typical and by_row[0] > 4 * by_row[T // 2 :].mean():
        return words + _HIDDEN + ". From there it spreads to the others"
    little = future[seen].median() < 0.24 * typical
    whole = "every position sees the whole future" if seen.sum() == T * (T - 1) // 2 else "many see the future"
    if little:
        return f"{words}; {whole}, a little: mask after the softmax, softmax over queries, or a norm over positions"
    return f"{words}; {whole}: no mask, one that misses the scores, or heads merged without swapping the axes back"


# ---- batch-independent


@_check("batch-independent", needs=("finite", "deterministic", "shapes"))
def batch_independent(subject: Subject) -> Result:
    """A row gives the same logits alone as among other rows; to rounding, since the matrix products differ in shape."""
    model, idx = subject.random(), subject.tokens(4, subject.T, seed=5)
    together = subject.look(model, idx)
    alone = torch.cat([subject.look(model, row[None]) for row in idx])
    size = max(together.abs().max().item(), 1e-30)
    tolerance = 10 * ROUNDING * max(1.0, torch.finfo(together.dtype).eps / torch.finfo(torch.float32).eps)
    difference = (together - alone).abs().max().item()
    measured, expected = f"rows alone and together differ by {difference / size:.1g}", f"below {tolerance:.0e}"
    if difference <= tolerance * size:
        return _result(PASSED, measured, expected)
    order = torch.tensor([2, 0, 3, 1], device=idx.device)
    if (subject.look(model, idx[order]) - together[order]).abs().max() > tolerance * size:
        cause = "which row it is matters: positions, or a mask, are indexed by the row instead of the position"
    else:
        cause = "rows read each other: a softmax or a norm over the batch axis, or axes that were not swapped back"
    return _result(FAILED, measured, expected, cause)


# ---- position-sensitive


@_check("position-sensitive", needs=("finite", "deterministic", "shapes", "batch-independent"), page="page 7")
def position_sensitive(subject: Subject) -> Result:
    """A row of one token again and again gives other logits at every position: only positions can tell these apart."""
    if subject.T < 2:
        raise CannotLook("a context of one token has one position")
    model, T = without_ngrams(subject.random()), min(subject.T, 256)  # n-grams know where a text begins
    gaps, size = torch.full((T, T), math.inf), 0.0
    for token in {1, subject.V - 1}:
        logits = subject.look(model, torch.full((1, T), token, device=subject.device))[0].float()  # (T, V)
        size = max(size, logits.abs().max().item())
        gaps = torch.minimum(gaps, torch.cdist(logits, logits, p=math.inf).cpu())
    gaps = gaps + torch.diag(torch.full((T,), math.inf))
    nearest = gaps.min().item()
    rotary = getattr(subject.expect, "positions", "learned") == "rotary"
    measured = f"the closest two positions differ by {nearest:.1g}"
    expected = "positions agree" if rotary else "all positions differ"
    floor = 10 * ROUNDING * size
    if nearest > floor:
        if rotary:
            return _result(DIFFERS, measured, expected, "positions act on the stream, and are to be rotary")
        return _result(PASSED, measured, expected)
    if gaps[~torch.eye(T, dtype=torch.bool)].max() > floor:
        i, j = divmod(int(gaps.argmin()), T)
        return _result(FAILED, measured, expected, f"positions {i} and {j} get the same vector")
    inside = _order_acts_inside(subject, model)
    if inside is None:
        raise CannotLook("all positions of a constant row agree, and whether attention knows the order is unclear")
    if inside and rotary:
        return _result(PASSED, measured, expected, "positions act inside attention only, as rotary ones do")
    if inside:
        remark = "positions act inside attention only (rotary, or a bias on the scores), not on the stream as in GPT-2"
        return _result(DIFFERS, measured, expected, remark)
    return _result(
        FAILED, measured, expected,
        "positions are never added, or all the same (indexed by row, always 0); a model without positions on purpose "
        "fails here by design",
    )  # fmt: skip


def _order_acts_inside(subject: Subject, model: nn.Module) -> bool | None:
    """Whether attention weighs by distance, for a model that cannot tell the positions of a constant row apart.

    On such a row all values are equal. Without any positions every layer then averages evenly: what reaches logit t
    from token s, to first order, is a polynomial of the averaging matrix A, A[t, s] = 1 / (t + 1), and commutes with
    it. Weights that depend on distance do not. None if the token embedding is not found.
    """
    T = min(subject.T, 12)
    if T < 3:
        return None
    idx = torch.full((1, T), 1, device=subject.device)
    model, leaves = copy.deepcopy(model), []

    def hook(module, inputs, output):
        if not leaves and inputs and inputs[0].shape == idx.shape and torch.equal(inputs[0], idx):
            leaves.append(output.detach().requires_grad_())
            return leaves[0]

    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.register_forward_hook(hook)
    logits = subject.logits(model, idx)[0]  # (T, V)
    if not leaves:
        return None
    generator = torch.Generator().manual_seed(0)
    out = torch.randn(logits.size(-1), generator=generator).to(logits)
    into = torch.randn(leaves[0].size(-1), generator=generator).to(logits)
    rows = [torch.autograd.grad(row @ out, leaves[0], retain_graph=True)[0][0] @ into for row in logits]
    J = torch.stack(rows).double().cpu()  # (T, T)
    A = torch.ones(T, T, dtype=torch.float64)
    if J.triu(1).abs().max() <= 1e-6 * J.abs().max():  # else the mask is missing, and each row averages over all
        A = A.tril()
    A = A / A.sum(dim=1, keepdim=True)
    return bool((J @ A - A @ J).norm() > 1e-3 * (J.norm() * A.norm() + 1e-30))


# ---- reach


@_check("reach", needs=("finite", "deterministic", "shapes", "batch-independent"), page="page 4 and page 5")
def reach(subject: Subject) -> Result:
    """Each token of the context can move the last logits."""
    if subject.T < 2:
        raise CannotLook("a context of one token has no past")
    model, unreached, lengths = subject.random(), {}, {}
    most = MOST_CUTS if _is_small(model) else MOST_CUTS // 4
    for T in sorted({min(subject.T, most), subject.T}):
        positions = range(T) if most >= T else sorted({0, 1, T // 4, T // 2, 3 * T // 4, T - 2, T - 1})
        unreached[T] = [j for j in positions if not _reaches(subject, model, T, j)]
        lengths[T] = len(positions)
    T, dead = next(((T, dead) for T, dead in unreached.items() if dead), (subject.T, []))
    measured = f"{lengths[T] - len(dead)} of {lengths[T]} tokens move the last logits (T = {T})"
    expected = "all of them"
    if not dead:
        return _result(PASSED, measured, expected)
    if lengths[T] == T and len(dead) == T - 1 and T - 1 not in dead:
        cause = "the last position sees only itself: is the mask upside down, or attention without effect?"
        return _result(FAILED, measured, expected, cause)
    if dead == [j for j in range(T) if j <= dead[-1]] and lengths[T] == T and dead[-1] < T - 2:
        return _result(DIFFERS, measured, expected, f"it looks back {T - 1 - dead[-1]} tokens: a sliding window")
    shown = ", ".join(map(str, dead[:5])) + (", …" if len(dead) > 5 else "")
    return _result(FAILED, measured, expected, f"nothing comes from token {shown}: hidden by the mask, or cut away?")


def _reaches(subject: Subject, model: nn.Module, T: int, j: int) -> bool:
    for seed in (0, 1):
        idx = subject.tokens(1, T, seed)
        changed = idx.clone()
        changed[:, j] = subject.other(idx, seed + 10)[:, j]
        before, after = subject.look(model, idx)[:, -1], subject.look(model, changed)[:, -1]
        if (before - after).abs().max() > 1e-6 * before.abs().max():
            return True
    return False


# ---- parameters


@_check("parameters")
def parameter_count(subject: Subject) -> Result:
    """The number of parameters is what the formula gives for `expect`; a tied matrix counts once, masks not at all."""
    seen, parts = set(), {}
    for name, p in subject.original.named_parameters():
        where = (p.data_ptr(), tuple(p.shape), p.stride()) if p.numel() else id(p)
        if where not in seen:
            seen.add(where)
            part = name.split(".")[0]
            parts[part] = parts.get(part, 0) + p.numel()
    counted = sum(parts.values())
    measured = f"{counted:,}"
    breakdown = " + ".join(f"{part} {count:,}" for part, count in parts.items())
    hidden = _hidden_parameters(subject.original)
    expected = ""
    if subject.expect is not None:
        try:
            expected = f"{expected_parameters(subject.expect):,}"
        except AttributeError as error:
            raise CannotLook(f"there is no formula for a {type(subject.expect).__name__}: {error}") from error
    if hidden:
        cause = f"`{hidden}` is not registered, so it is neither trained nor saved: nn.ModuleList or nn.ParameterList"
        return _result(FAILED, measured, expected or "every part registered", cause)
    if subject.expect is None:
        raise CannotLook(f"there is nothing to compare {measured} with: give expect= (counted: {breakdown})")
    difference = counted - expected_parameters(subject.expect)
    if difference == 0:
        return _result(PASSED, measured, expected, f"{breakdown}; a tied matrix counts once")
    reasons = explain_difference(subject.expect, difference)
    cause = f"{difference:+,}: " + ("; or ".join(reasons) or "no single known mistake explains it") + f"; {breakdown}"
    return _result(FAILED, measured, expected, cause)


def _hidden_parameters(model: nn.Module) -> str:
    """The name of a list or dictionary that holds trainable parameters which the model does not know; "" if none."""
    known = {id(p) for p in model.parameters()}

    def unknown(value) -> bool:
        inner = value.parameters() if isinstance(value, nn.Module) else [value]
        return any(isinstance(p, nn.Parameter) and p.requires_grad and id(p) not in known for p in inner)

    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute in ("_modules", "_parameters", "_buffers"):
                continue
            values = list(value.values()) if isinstance(value, dict) else value
            if isinstance(values, list | tuple) and any(map(unknown, values)):
                return f"{name}.{attribute}" if name else attribute
    return ""


# ---- initial-loss


@_check("initial-loss", needs=("finite", "shapes"))
def initial_loss(subject: Subject) -> Result:
    """A fresh model is about as good as a blind guess: its loss on random targets lies near ln V, or slightly above."""
    model = subject.fresh()
    B = max(1, (2048 if _is_small(model) else 512) // subject.T)
    idx = subject.tokens(B, subject.T, seed=6)
    targets = subject.tokens(B, subject.T, seed=8)  # drawn apart from the inputs: nobody can know them
    few = zip(idx.split(4), targets.split(4), strict=True)  # at a time: a large vocabulary makes large logits
    logits = torch.cat([subject.look(model, x, y) for x, y in few]).float()  # (B, T, V)
    measured_loss = _cross_entropy(logits, targets).item()
    blind = math.log(logits.size(-1))
    low, high = blind - 0.175, blind + 0.325  # 4.0 to 4.5 for V = 65
    measured, expected = f"{measured_loss:.2f}", f"{low:.2f} to {high:.2f} (ln {logits.size(-1)} = {blind:.2f})"
    if _is_trained(model):
        raise CannotLook(f"the weights are no longer initial: its norms have learned (the loss is {measured})")
    if low <= measured_loss <= high:
        return _result(PASSED, measured, expected)
    if measured_loss < low:
        return _result(
            FAILED, measured, expected,
            "too low: these targets cannot be guessed, so something tells the model; do targets reach the logits?",
        )  # fmt: skip
    spread = logits.var(dim=-1).mean().sqrt().item()
    cause = f"too high: the logits spread by {spread:.1f}, where a fresh model has 0.6 or less. "
    cause += _loud_matrices(model)
    return _result(DIFFERS if measured_loss < blind + 1 else FAILED, measured, expected, cause)


def _loud_matrices(model: nn.Module) -> str:
    uses: dict[int, list[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        if p.dim() == 2:
            uses.setdefault(p.data_ptr(), []).append(name)
    tied = [
        (names, p)
        for names in uses.values()
        if len(names) > 1 and (p := model.get_parameter(names[0])).float().std() > 0.2
    ]
    if tied:
        names, p = tied[0]
        return f"{' and '.join(names)} are one matrix, drawn with std {p.float().std():.2f}: tied, it needs about 0.02"
    return "Is the unembedding, or the stream before it, drawn too large, or the final norm missing?"


def _is_trained(model: nn.Module) -> bool:
    """Whether norms have left their initial values: their gains start all equal, and stay positive while they learn."""
    for module in model.modules():
        own = dict(module.named_parameters(recurse=False))
        if any(p.dim() != 1 for p in own.values()):
            continue
        for name, p in own.items():
            is_gain = p.numel() > 1 and name in ("weight", "gain", "gamma", "scale", "g")
            if is_gain and p.max() != p.min() and (p > 0).float().mean() > 0.9:
                return True
    return False


def _is_small(model: nn.Module) -> bool:
    return sum(p.numel() for p in model.parameters()) < SMALL


# ---- gradients


@_check("gradients", needs=("finite", "shapes"))
def gradients(subject: Subject) -> Result:
    """Every trainable parameter gets a gradient that is not all zero, within the first few steps."""
    model = subject.fresh().train()
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise CannotLook("every parameter is frozen")
    torch.manual_seed(0)
    idx, targets = _batch(subject, model)
    optimizer = torch.optim.AdamW(trainable.values(), lr=1e-3)
    given, moved, expected = set(), set(), "every parameter gets one"
    # Several steps: what stands behind a projection that starts at zero gets a gradient only after that has moved.
    for _ in range(5):
        optimizer.zero_grad(set_to_none=True)
        try:
            value = _cross_entropy(subject.logits(model, idx), targets)
            if not value.requires_grad:
                cause = "the logits are cut off from the parameters: a detach(), .data, or no_grad in forward"
                return _result(FAILED, "no gradient at all", expected, cause)
            value.backward()
        except RuntimeError as error:
            return _result(FAILED, "backward fails", expected, one_line(error))
        for name, p in trainable.items():
            if p.grad is not None:
                given.add(name)
                if not torch.isfinite(p.grad).all():
                    return _result(
                        FAILED, f"the gradient of {name} is not finite", expected, "a division by zero, or 0·∞"
                    )
                if p.grad.count_nonzero():
                    moved.add(name)
        optimizer.step()
    absent = [name for name in trainable if name not in given]
    silent = [name for name in trainable if name in given - moved]
    # Softmax ignores what is added to all scores, so a bias of the keys has no effect; its matrix shows it is in use.
    excused = [name for name in silent if trainable[name].dim() == 1 and _siblings(name, moved, trainable)]
    silent = [name for name in silent if name not in excused]
    measured = f"{len(trainable) - len(absent) - len(silent)} of {len(trainable)} tensors get one"
    if absent or silent:
        words = []
        if absent:
            words.append(f"never used in forward, or detached: {_some(absent)}")
        if silent:
            words.append(f"used, but without effect on the loss: {_some(silent)}")
        return _result(FAILED, measured, expected, "; ".join(words))
    remark = f"{_some(excused)}: exactly zero, as for a key bias, which softmax ignores" if excused else ""
    frozen = sum(1 for _ in model.parameters()) - len(trainable)
    if frozen:
        remark = "; ".join(filter(None, [remark, f"{frozen} frozen left out"]))
    return _result(PASSED, measured, expected, remark)


def _siblings(name: str, moved: set[str], trainable: dict) -> bool:
    """Whether a matrix of the module that holds parameter `name` gets a gradient."""
    module = name.rpartition(".")[0]
    return any(other.rpartition(".")[0] == module and trainable[other].dim() >= 2 for other in moved)


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _batch(subject: Subject, model: nn.Module):
    """One small batch of random tokens and random targets, (4, 32) or less each."""
    B, T = (4, min(subject.T, 32)) if _is_small(model) else (2, min(subject.T, 16))
    return subject.tokens(B, T, seed=9), subject.tokens(B, T, seed=10)


# ---- memorise


@_check("memorise", needs=("finite", "shapes"), page="page 1 and page 8")
def memorise(subject: Subject) -> Result:
    """Fifty steps on one batch halve the loss, and the answers are right by the caller's targets.

    A pass says that gradients arrive and that the loss is about these targets, and no more: a model without a mask or
    without positions passes too. The model's own loss is used where it returns one.
    """
    if not any(p.requires_grad for p in subject.original.parameters()):
        raise CannotLook("every parameter is frozen")
    idx, targets = _batch(subject, subject.original)
    returned, convention, _ = _own_loss(subject, subject.random(), idx, targets)
    use_own = returned is not None and not (convention == "shifted" and subject.target_name == "labels")
    expected = "the loss at most half, half the answers right"
    best = None
    for rate in (1e-3, 3e-3):
        first, last, accuracy = _memorise(subject, idx, targets, rate, use_own)
        if best is None or (accuracy, -last) > (best[2], -best[1]):
            best = first, last, accuracy
        if last <= first / 2 and accuracy >= 0.5:
            break
    first, last, accuracy = best
    measured = f"{first:.2f} → {last:.2f}, {accuracy:.0%} right"
    if last <= first / 2 and accuracy >= 0.5:
        remark = "gradients arrive; this says nothing about the mask, positions or what the layers compute"
        return _result(PASSED, measured, expected, remark)
    if not math.isfinite(last):
        cause = "training blows up: the loss is not finite"
    elif use_own and convention in _LOSS_CAUSES:
        cause = "the model trains by a loss of its own: " + _LOSS_CAUSES[convention]
    elif accuracy >= 0.5:
        cause = "the answers are right but the loss stays up: a softmax in front of cross_entropy?"
    elif first > 2 * math.log(subject.V):
        cause = "the initial values are far too large to be undone in so few steps"
    elif last <= first / 2:
        cause = "the loss falls, but the answers are not your targets"
    else:
        cause = "the model does not learn: does the gradient reach every part, are the initial values sane?"
    return _result(FAILED, measured, expected, cause)


def _memorise(subject: Subject, idx, targets, rate: float, use_own: bool, steps: int = 50):
    model = subject.fresh().train()
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate)
    losses = []
    for _ in range(steps):
        if use_own:
            value = subject.call(model, idx, targets)[1].float().mean()
        else:
            value = _cross_entropy(subject.logits(model, idx), targets)
        if not value.requires_grad:
            raise CannotLook("the loss is cut off from the parameters, so nothing can train")
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()
        losses.append(value.detach())
    right = subject.look(model.eval(), idx).argmax(dim=-1) == targets
    return losses[0].item(), losses[-1].item(), right.float().mean().item()
