"""Frames that have come and are too large to be counted and parsed at once.

Purpose: gRPC parses a frame where it takes it from the transport, and can wait for nothing there; so a large one is
handed to its reader as it came (`slotmesh.runtime.duplex.read_request`). Large requests of unary rpcs are dealt with
likewise (`slotmesh.runtime.unary_requests`).
Owner: the reader of the stream, or of the request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.step_queue import StepQueue
from slotmesh.status import to_exception
from slotmesh.wire.frame_bounds import Shape, too_much


class LargeFrame:
    """The bytes of a frame, neither counted nor parsed yet."""

    __slots__ = ("_executed", "_parse", "_raw", "_shape", "_turns")

    def __init__(
        self,
        raw: bytes,
        shape: Shape,
        parse: Callable[[bytes], Any],
        turns: StepQueue,
        executed: Executed = Executed.UNKNOWN,
    ) -> None:
        """`executed`: what is known of that where it is refused. Frames before one of a stream were taken."""
        self._executed = executed
        self._raw = raw
        self._shape = shape
        self._parse = parse
        self._turns = turns

    async def message(self) -> Any:
        """The frame, parsed, if it holds no more than one may.

        Raises:
            SlotmeshError: BAD_REQUEST; it holds too much, or is no message.
        """
        async with self._turns.parsing:
            found = await self._turns.take(too_much(self._raw, self._shape))
            if found is None:
                return self._parse(self._raw)
        self._raw = b""  # the error below refers to this, for as long as it is referred to itself
        failure = Failure(
            reason=Reason.BAD_REQUEST,
            message=f"{found.field}: {found.problem}",
            executed=self._executed,
            metadata={"field": found.field},
        )
        raise to_exception(failure)
