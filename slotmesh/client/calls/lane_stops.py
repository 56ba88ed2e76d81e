"""Lanes that stop at a failure: which generation of a lane has failed, as far as the client knows.

Purpose: the mesh enforces the stop, and the client does for calls that were not sent, and for calls that a new
connection would send again, to a router that does not know of the failure.
Invariants: generations of a lane go up. A generation that is new is above all that ever failed in the session, so that
a lane object that was dropped for a while begins anew. Calls before the failed one are not touched. Pure.
Owner: the endpoint's `CallStream`; a `LaneStop` belongs to its lane's queue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import WeakSet

from slotmesh.errors import Executed, Failure, Reason
from slotmesh.wire.limits import MAX_STOP_GENERATIONS

GAVE_UP: Final = Failure(reason=Reason.CANCELLED, message="taken back by its caller before it was sent")


class StoppingQueue(Protocol):
    """What the calls of a lane wait in."""

    stop: LaneStop[Any] | None


QueueT = TypeVar("QueueT", bound=StoppingQueue)


class StopGenerations(Generic[QueueT]):
    """The generations of one session."""

    __slots__ = ("newest_failed", "on_failure")

    def __init__(self, on_failure: Callable[[QueueT, int], None]) -> None:
        """`on_failure`: a call of this lane and generation that was sent has failed."""
        self.newest_failed = 0
        """Of all lanes."""
        self.on_failure = on_failure

    def stop_of(self, queue: QueueT, ordering_key: str) -> LaneStop[QueueT]:
        """The state of a lane: its own, or a new one."""
        if queue.stop is None:
            queue.stop = LaneStop(self, ordering_key)
        return queue.stop


class LaneStop(Generic[QueueT]):
    """Whether calls of one ordering key that stop at failures go on."""

    __slots__ = (
        *("_failed_ids", "_failure", "_generations", "_ordering_key"),
        *("failed", "generation", "methods"),
    )

    def __init__(self, generations: StopGenerations[QueueT], ordering_key: str) -> None:
        self._generations = generations
        self._ordering_key = ordering_key
        self.generation = generations.newest_failed + 1
        """Of calls that are made now."""
        self.failed = 0
        """The newest generation that has failed."""
        self._failed_ids: dict[int, int] = {}
        """By generation, the first call of it that failed and was sent, as far as it is known: of the newest ones."""
        self._failure: Failure = GAVE_UP
        self.methods: WeakSet[Any] = WeakSet()
        """Those that make calls of this lane, and follow when the next generation begins."""

    def reset(self) -> None:
        """Begins the next generation."""
        self.generation = max(self.generation, self._generations.newest_failed) + 1
        for method in list(self.methods):
            method.renew()

    def fail(self, queue: QueueT, generation: int, call_id: int, failure: Failure) -> None:
        """A call of the lane has failed; `queue` is the lane's.

        `call_id`: 0 where it was never sent. Then nothing that was sent comes after it.
        """
        if generation > self.failed:
            self.failed, self._failure = generation, failure
            self._generations.newest_failed = max(self._generations.newest_failed, generation)
        elif generation == self.failed and (
            failure.executed is Executed.UNKNOWN and failure.reason is not Reason.PREDECESSOR_FAILED
        ):
            self._failure = failure
        if call_id:
            self._note(queue, generation, call_id)

    def _note(self, queue: QueueT, generation: int, call_id: int) -> None:
        before = self._failed_ids.get(generation)
        self._failed_ids[generation] = call_id if before is None else min(before, call_id)
        if before is None:
            if len(self._failed_ids) > MAX_STOP_GENERATIONS:
                del self._failed_ids[min(self._failed_ids)]  # its later calls are sent again
            self._generations.on_failure(queue, generation)

    def is_after_failure(self, generation: int, call_id: int) -> bool:
        """Whether a call that was sent comes after one that failed."""
        return any(generation <= failed and call_id > failed_id for failed, failed_id in self._failed_ids.items())

    def refusal(self, *, was_sent: bool = False) -> Failure:
        """The failure of calls after the failed one.

        Those that were sent may have run: before the one that failed was known to have, or with it in one batch.
        """
        refusal = Failure(
            reason=Reason.PREDECESSOR_FAILED,
            message=f"a call before it of the lane {self._ordering_key!r} failed "
            f"({self._failure.reason.value}: {self._failure.message}); lane.reset() lets the lane go on",
        )
        return replace(refusal, executed=Executed.UNKNOWN) if was_sent else refusal
