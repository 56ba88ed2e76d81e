"""Commands: the decisions of the scheduler. The engine carries them out in order; they have no behaviour.

The three `Start…` commands are also an executor's work: it keeps its position in them, and ends them by the events
`CallsEnded`, `TurnEnded`, `BatchEnded`, or `WorkReturned` if they have not started. `StartTurn` is in `runs.py`, beside
the lane that has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from replica_service.core.calls.call_metadata import ReservedSlot
from replica_service.core.calls.runs import ReplicaLane, ReplicaRun, RouterPeer, StartTurn
from slotmesh.errors import Failure

Part: TypeAlias = tuple[ReplicaRun, int, int]
"""The calls from `lo` up to `hi` of a run."""


class StartCalls:
    """Start the calls from `lo` up to `hi` of the run concurrently, in any order: each holds a permit."""

    __slots__ = ("hi", "lo", "run")

    def __init__(self, run: ReplicaRun, lo: int, hi: int) -> None:
        self.run = run
        self.lo = lo
        """The first call that has not started; advanced by the executor."""
        self.hi = hi


class BatchQueue(Protocol):
    """The queue that a batch was cut from, and that is notified of its end."""

    method: str

    def ended(self, batch: StartBatch) -> None:
        """Removes the batch from the running ones."""


class StartBatch:
    """Invoke the batch method with these calls."""

    __slots__ = ("batcher", "began", "count", "lanes", "parts", "runner", "started_at")

    def __init__(self, batcher: BatchQueue, parts: Sequence[Part], lanes: Sequence[ReplicaLane], count: int) -> None:
        self.batcher = batcher
        self.parts = parts
        """In order. Parts of one run ascend."""
        self.lanes = lanes
        """The lanes that calls of the batch belong to."""
        self.count = count
        """Calls in all parts."""
        self.started_at = 0.0
        """When it was cut; monotonic seconds."""
        self.began: float | None = None
        """When an executor handed it to the method; monotonic seconds."""
        self.runner: Any = None
        """State of the executor that executes it; opaque here."""


@dataclass(slots=True, eq=False)
class Refuse:
    """Hand calls back to the router, unexecuted: it sends them to another replica, or again."""

    run: ReplicaRun
    lo: int
    hi: int
    failure: Failure


@dataclass(slots=True, eq=False)
class Fail:
    """End calls with a failure."""

    run: ReplicaRun
    lo: int
    hi: int
    failure: Failure


@dataclass(slots=True, eq=False)
class Grant:
    """End a reservation with its slot."""

    run: ReplicaRun
    slot: ReservedSlot
    ongoing: int
    """Running calls and reservations, this one included."""


@dataclass(slots=True, eq=False)
class AnswerRenewal:
    """Report the result of a renewal to its caller."""

    link: RouterPeer
    op_id: int
    """Id of the operation on the link."""
    answer: ReservedSlot | Failure
    """The slot with its new lease, or the failure."""


@dataclass(slots=True, eq=False)
class AnswerAttach:
    """Report to a client whether its direct stream holds the slot that it attached."""

    link: RouterPeer
    number: int
    """The stream's number for the slot."""
    failure: Failure | None
    """Why the stream does not hold it; None if it does."""


@dataclass(slots=True, eq=False)
class TellDetached:
    """Report to a client that its direct stream no longer holds a slot."""

    link: RouterPeer
    number: int
    """The stream's number for the slot."""
    failure: Failure | None
    """The reason; None if the client detached it."""


@dataclass(slots=True, eq=False)
class TellCapacity:
    """Notify a router, whose last report stated no room, that there is room now."""

    link: RouterPeer


@dataclass(slots=True, eq=False)
class TellKeys:
    """Call the handler's hook for a partition, then post `KeysGained` or `KeysLost`."""

    endpoint: str
    partition: int
    epoch: int
    """The owner epoch."""
    is_gain: bool
    """True: `on_keys_gained`; False: `on_keys_lost`."""


WorkCommand = StartCalls | StartTurn | StartBatch
"""The work of executors."""
ReplicaCommand = (
    WorkCommand | Refuse | Fail | Grant | AnswerRenewal | AnswerAttach | TellDetached | TellCapacity | TellKeys
)
