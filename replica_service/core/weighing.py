"""What calls of a batch method weigh, where its `batch_size_fn` says so.

Purpose: the batcher asks for the weight of a call once, where it first counts; what was decoded for that stays with the
run until the call is executed, so that no payload is decoded twice.
Invariant: a call that has a failure has no weight, and never reaches the handler.
Owner: the batcher; the shell makes the values, and takes the arguments out again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replica_service.core.calls import Run
    from slotmesh.errors import Failure


class Weighed:
    """One call, weighed."""

    __slots__ = ("arguments", "failure", "weight")

    def __init__(self, weight: float, arguments: Any = None, failure: Failure | None = None) -> None:
        self.weight = weight
        """Finite, not negative."""
        self.arguments = arguments
        """The shell's, opaque here."""
        self.failure = failure
        """Why it cannot be executed: its arguments are unsound, or nobody can say what it weighs."""


Weigh = Callable[["Run", int], Weighed]
"""Weighs the call of the run at an index. Raises nothing."""


def weighed(run: Run, index: int, weigh: Weigh) -> Weighed:
    """The call at the index, weighed now or before."""
    known = run.weighed
    if known is None:
        known = run.weighed = {}
    each = known.get(index)
    if each is None:
        each = known[index] = weigh(run, index)
    return each
