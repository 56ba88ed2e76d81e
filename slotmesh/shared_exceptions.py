"""Exceptions that several calls raise: a module's own, one that a future keeps, one that the constructor has caught.

Purpose: Python keeps on an exception where it was raised, once more each time, and what was being handled: frames, with
all arguments of the calls. What one call leaves there would be kept for as long as the exception, and be logged as
another call's.
Invariant: once a call's failure is known, nothing of the call is on what it has raised, nor on its causes, its contexts
and the members of its groups. Text, arguments and notes are the user's, and stay.
Pure.
"""

from __future__ import annotations

from typing import Any, Final

MAX_EXCEPTIONS: Final = 1_000
"""Of one chain and its groups; those beyond keep what they have."""

# As they are of all exceptions: a class of the user's may forbid to set attributes, as frozen dataclasses do.
_cause: Final[Any] = BaseException.__dict__["__cause__"]
_context: Final[Any] = BaseException.__dict__["__context__"]
_suppress_context: Final[Any] = BaseException.__dict__["__suppress_context__"]
_traceback: Final[Any] = BaseException.__dict__["__traceback__"]
_members: Final[Any] = BaseExceptionGroup.__dict__["exceptions"]


def forget_call(error: BaseException) -> None:
    """Takes tracebacks, causes and contexts off the exception, and off all that these lead to."""
    met = {id(error)}
    pending = [error]
    while pending:
        each = pending.pop()
        linked = [_cause.__get__(each), _context.__get__(each)]
        if issubclass(type(each), BaseExceptionGroup):  # the object itself is not asked, as it is foreign
            linked += _members.__get__(each)
        _traceback.__set__(each, None)
        _cause.__set__(each, None)
        _context.__set__(each, None)
        _suppress_context.__set__(each, False)
        for other in linked:
            if other is not None and id(other) not in met and len(met) < MAX_EXCEPTIONS:
                met.add(id(other))
                pending.append(other)
