"""What one call of a batch method weighs, where its `batch_size_fn` says so.

Purpose: the batcher asks for the weight of a call once, where it first counts; what was decoded for that stays with the
run until the call is executed, so that no payload is decoded twice.
Invariant: a call that has a failure has no weight, and never reaches the handler.
Owner: the batcher; the shell makes the values, and takes the arguments out again.
"""

from __future__ import annotations

from typing import Any

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
        """Why the call cannot be executed: its arguments are unsound, or its weight cannot be computed."""
