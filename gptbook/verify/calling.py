"""How a check calls a reader's function: it may raise, hang, change what it is given, or draw random numbers."""

import copy
import ctypes
import threading
import warnings
from dataclasses import dataclass

import torch
import torch.nn as nn

from gptbook.verify.subject import one_line, untouched

LIMIT = 20.0  # seconds for one call; what checks ask takes a right function milliseconds


@dataclass(frozen=True)
class Answer:
    """What came of one call: `value`, or `error` in one line; `arguments` are the copies that were handed over.

    `changed` says that an argument is not what it was, `drew` that the global random numbers moved on, `late` that it
    was stopped: asking again would only cost the same time again.
    """

    value: object = None
    error: str = ""
    changed: bool = False
    drew: bool = False
    late: bool = False
    arguments: tuple = ()


class _Stopped(BaseException):
    """Raised inside of a call that took too long, so that a loop which nothing ends does not run on for ever."""


def ask(function, *arguments, seconds: float | None = None, **keywords) -> Answer:
    """Call `function` with copies of the arguments, for `seconds` at most, and put every random state back.

    Tensors that require a gradient are handed over as leaves that do: `Answer.arguments` has them, and their gradients.
    """
    seconds = LIMIT if seconds is None else seconds
    given = tuple(_fresh(argument) for argument in arguments)
    named = {name: _fresh(argument) for name, argument in keywords.items()}
    dtype, outcome = torch.get_default_dtype(), {}

    def work():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outcome["value"] = function(*given, **named)
        except BaseException as error:  # exit() and its like too: nothing of it may end the check
            outcome["error"] = one_line(error)

    with untouched(nn.Identity()):
        before = torch.get_rng_state()
        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        worker.join(seconds)
        late = worker.is_alive()
        if late:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident), ctypes.py_object(_Stopped))
            worker.join(1.0)
            outcome = {"error": f"no answer within {seconds:g} seconds"}
        drew = not torch.equal(before, torch.get_rng_state())
    torch.set_default_dtype(dtype)
    pairs = [*zip(given, arguments, strict=True), *((named[name], keywords[name]) for name in keywords)]
    changed = any(_differ(now, then) for now, then in pairs)
    return Answer(outcome.get("value"), outcome.get("error", ""), changed, drew, late, given)


def _fresh(argument):
    if isinstance(argument, torch.Tensor):
        return argument.detach().clone().requires_grad_(argument.requires_grad)
    return copy.copy(argument) if isinstance(argument, list | dict) else argument


def _differ(now, then) -> bool:
    if not isinstance(then, torch.Tensor):
        return isinstance(then, list | dict) and now != then
    if now.shape != then.shape or now.dtype != then.dtype:
        return True
    return not torch.equal(now.detach().nan_to_num(), then.detach().nan_to_num())
