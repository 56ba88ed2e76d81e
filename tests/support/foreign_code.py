"""Foreign code that raises, of every kind, wherever slotmesh calls it or reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn


class EndOfTheWorld(BaseException):
    """What no `except Exception` catches."""


class Unreadable(Exception):
    """What raises again when it is described."""

    def __str__(self) -> str:
        raise LookupError("in __str__")

    __repr__ = __str__


def _raise(error: type[BaseException], text: str = "by foreign code") -> Callable[[], NoReturn]:
    def act() -> NoReturn:
        raise error(text)

    return act


KINDS: Final[dict[str, Callable[[], NoReturn]]] = {
    "StopIteration": _raise(StopIteration),
    "StopAsyncIteration": _raise(StopAsyncIteration),
    "SystemExit": _raise(SystemExit),
    "CancelledError": _raise(asyncio.CancelledError),
    "KeyboardInterrupt": _raise(KeyboardInterrupt),
    "GeneratorExit": _raise(GeneratorExit),
    "LookupError": _raise(LookupError),
    "MemoryError": _raise(MemoryError),
    "EndOfTheWorld": _raise(EndOfTheWorld),
    "Unreadable": _raise(Unreadable),
    # Not by recursion: finalizers that run at that depth would fail, too.
    "RecursionError": _raise(RecursionError, "maximum recursion depth exceeded"),
}
"""What foreign code does, by the name of what it raises."""


def raised_by(kind: str) -> BaseException:
    """The exception itself."""
    try:
        KINDS[kind]()
    except BaseException as error:  # noqa: BLE001 - it is what was asked for
        return error.with_traceback(None)


class Sealed:
    """A result that raises when it is read to be sent."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    @property
    def tolist(self) -> Any:
        return KINDS[self._kind]()


@dataclass
class Trap:
    """An argument that raises when it is made, or says what the handler does with it."""

    kind: str = ""
    at: str = ""

    def __post_init__(self) -> None:
        if self.at == "decode":
            KINDS[self.kind]()

    def act(self) -> Any:
        """What the handler does for this call, in the place of a result."""
        if self.at == "run":
            KINDS[self.kind]()
        if self.at == "entry":
            return raised_by(self.kind)
        return Sealed(self.kind) if self.at == "encode" else self.kind or "well"


@dataclass
class Picky:
    """What a result becomes at the caller: raises for a kind of exception, and takes everything else."""

    kind: str

    def __post_init__(self) -> None:
        if self.kind in KINDS:
            KINDS[self.kind]()
