"""Exceptions without their texts, for logs: what a handler raises for a call may quote what the call has sent.

Purpose: `int("secret")` and `{}["secret"]` have it in their text, and so has whatever says what it did not like.
Invariants: a stand-in has the type's name, the frames, causes, contexts and members of a group; no text, no note, no
argument, and nothing of a SyntaxError's line. The exception itself stays as it is.
"""

from __future__ import annotations

from typing import Final

MAX_EXCEPTIONS: Final = 100
"""Of one chain, and of its groups; those beyond are left out."""


def without_text(error: BaseException) -> BaseException:
    """A stand-in that can be logged in place of an exception."""
    return _StandIns().of(error)


class _StandIns:
    """Of one chain of exceptions, which may have circles."""

    def __init__(self) -> None:
        self._met: set[int] = set()
        self._made: dict[int, BaseException] = {}

    def of(self, error: BaseException) -> BaseException:
        self._met.add(id(error))
        made = self._made[id(error)] = _like(type(error), self._members(error))
        made.__traceback__ = error.__traceback__
        made.__cause__, made.__context__ = self._linked(error.__cause__), self._linked(error.__context__)
        made.__suppress_context__ = error.__suppress_context__  # a cause sets it
        return made

    def _members(self, error: BaseException) -> list[BaseException]:
        if not isinstance(error, BaseExceptionGroup):
            return []
        return [made for each in error.exceptions if (made := self._linked(each)) is not None]

    def _linked(self, error: BaseException | None) -> BaseException | None:
        if error is None or id(error) in self._met or len(self._met) >= MAX_EXCEPTIONS:
            return None if error is None else self._made.get(id(error))
        return self.of(error)


def _like(kind: type[BaseException], members: list[BaseException]) -> BaseException:
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    if members:
        group: type[BaseExceptionGroup[BaseException]] = type(kind.__name__, (BaseExceptionGroup,), named)
        return group("", members)
    plain: type[BaseException] = type(kind.__name__, (BaseException,), named)
    return plain()
