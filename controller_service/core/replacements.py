"""Which replica was started in place of which: how often that has happened, and how the one before it has ended.

Invariants: a launched replica that ended unasked leaves one place, which the next one takes that is started with the
same template; the oldest first. One that was told to end leaves none. Places are bounded.
Owner: pure values and functions, for `observed` and `transitions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

EXITS_KEPT: Final = 256
"""Of all backends, the newest ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreplacedExit:
    """A launched replica has ended unasked, and none was started in its place."""

    backend: str
    template: str
    """What it was started with."""
    restarts: int
    how: str
    last_output: str = ""
    """The last lines that it has written."""


UnreplacedExits = tuple[UnreplacedExit, ...]
"""Oldest first."""


def with_exit(exits: UnreplacedExits, exit_: UnreplacedExit) -> UnreplacedExits:
    """One more has ended."""
    return (*exits, exit_)[-EXITS_KEPT:]


def take_place(exits: UnreplacedExits, backend: str, template: str) -> tuple[UnreplacedExits, UnreplacedExit | None]:
    """One was started: what is left, and in whose place it is; None where nobody's was free."""
    for at, each in enumerate(exits):
        if (each.backend, each.template) == (backend, template):
            return (*exits[:at], *exits[at + 1 :]), each
    return exits, None
