"""Foreign code: functions, classes and objects of users, wherever slotmesh calls or reads them. Pure.

Purpose: the one guard for all these places. Each of them catches `BaseException` around the foreign call, and uses this
module to describe and count the outcome.
Invariants: foreign code may raise anything, even while it is only described: SystemExit, KeyboardInterrupt,
StopIteration, GeneratorExit, or a CancelledError although nothing was cancelled. That is the outcome of the one call it
was raised in. `text_of`, `described`, `shown` and `type_name` raise nothing and return plain strings; `each` returns a
result for each value or raises, as StopIteration would end a `list(map(…))` without a trace. Once a call's failure is
known, `forget_call` removes everything of the call from the exception.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

ValueT = TypeVar("ValueT")
ResultT = TypeVar("ResultT")

NO_TEXT: Final = "(no text)"
"""In place of a text that could not be made."""


class StoppedEarly(Exception):
    """Foreign code raised StopIteration, which means the end of an iteration to the code that called it."""


def each(function: Callable[[ValueT], ResultT], values: Sequence[ValueT]) -> list[ResultT]:
    """`function` of each of the values, at the speed of `map`. `values` is a list, tuple or block of ours.

    Raises:
        StoppedEarly: `function` raised StopIteration.
        BaseException: any other error of `function`.
    """
    results = list(map(function, values))
    if len(results) != len(values):
        raise StoppedEarly(f"StopIteration was raised for value {len(results) + 1} of {len(values)}")
    return results


def text_of(error: BaseException) -> str:
    """The text of an exception of any class."""
    try:
        return str.__str__(str(error))
    except BaseException:  # noqa: BLE001 - the class's own method may raise anything
        return NO_TEXT


def type_name(value: object) -> str:
    """The name of the value's class."""
    try:
        return str.__str__(type(value).__name__)
    except BaseException:  # noqa: BLE001 - a metaclass may raise anything
        return "object"


def described(error: BaseException) -> str:
    """An exception in a message: its class, and its text if it has one."""
    text = text_of(error)
    return f"{type_name(error)}: {text}" if text else type_name(error)


def shown(value: object, most: int) -> str:
    """What the value's `repr` returns, at most that many characters of it."""
    try:
        return str.__str__(repr(value))[:most]
    except BaseException:  # noqa: BLE001 - the value's own method may raise anything
        return f"a value of type {type_name(value)}"


def is_exception(value: Any) -> bool:
    """Whether this is an exception by its class. Does not use `isinstance`, which would call the object's own code."""
    return issubclass(type(value), BaseException)


MAX_EXCEPTIONS: Final = 1_000
"""Of one chain and its groups; further ones keep what they have."""

# The descriptors of the base class: a class of the user's may forbid setting attributes, as frozen dataclasses do.
_cause: Final[Any] = BaseException.__dict__["__cause__"]
_context: Final[Any] = BaseException.__dict__["__context__"]
_suppress_context: Final[Any] = BaseException.__dict__["__suppress_context__"]
_traceback: Final[Any] = BaseException.__dict__["__traceback__"]
_members: Final[Any] = BaseExceptionGroup.__dict__["exceptions"]


def forget_call(error: BaseException) -> None:
    """Removes tracebacks, causes and contexts from the exception, and from all that these lead to.

    Several calls may raise one exception: a module's own, one that a future keeps, one that the constructor has caught.
    Python adds to it each time where it was raised, and the exception being handled: frames, with all arguments of the
    calls. These would be kept for as long as the exception, and be logged with another call. Text, arguments and notes
    are the user's, and stay.
    """
    met = {id(error)}
    pending = [error]
    while pending:
        each = pending.pop()
        linked = [_cause.__get__(each), _context.__get__(each)]
        if issubclass(type(each), BaseExceptionGroup):  # not `isinstance`, which would call foreign code
            linked += _members.__get__(each)
        _traceback.__set__(each, None)
        _cause.__set__(each, None)
        _context.__set__(each, None)
        _suppress_context.__set__(each, False)
        for other in linked:
            if other is not None and id(other) not in met and len(met) < MAX_EXCEPTIONS:
                met.add(id(other))
                pending.append(other)
