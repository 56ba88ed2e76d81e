"""Commands: what the scheduler has decided. The engine carries them out in order; they have no behaviour.

The three `Start…` commands are the work of an executor too, which keeps its place in them and gives them back by the
events `CallsEnded`, `TurnEnded`, `BatchEnded`, or `WorkReturned` where it was not started. `StartTurn` is in
`calls.py`, beside the lane that has it.
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
        """The executor moves it: the first call that has not started."""
        self.hi = hi


class BatchQueue(Protocol):
    """The queue that a batch was cut from, as far as it must be known to give the batch back."""

    method: str

    def ended(self, batch: StartBatch) -> None:
        """The batch runs no more."""


class StartBatch:
    """Invoke the batch method with these calls."""

    __slots__ = ("batcher", "began", "count", "lanes", "parts", "runner", "started_at")

    def __init__(self, batcher: BatchQueue, parts: Sequence[Part], lanes: Sequence[ReplicaLane], count: int) -> None:
        self.batcher = batcher
        self.parts = parts
        """In order. Parts of one run ascend."""
        self.lanes = lanes
        """The lanes whose calls are among them."""
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
    """Answer calls with a failure."""

    run: ReplicaRun
    lo: int
    hi: int
    failure: Failure


@dataclass(slots=True, eq=False)
class Grant:
    """Answer a reservation with the slot that it has become."""

    run: ReplicaRun
    slot: ReservedSlot
    ongoing: int
    """Running calls and reservations, this one included."""


@dataclass(slots=True, eq=False)
class AnswerRenewal:
    """Answer a caller that has asked to renew a lease."""

    link: RouterPeer
    op_id: int
    """Id of the operation on the link."""
    answer: ReservedSlot | Failure
    """The slot with its new lease; or why there is none."""


@dataclass(slots=True, eq=False)
class AnswerAttach:
    """Answer a client who handed a slot over to its direct stream."""

    link: RouterPeer
    number: int
    """What the stream calls the slot."""
    failure: Failure | None
    """Why the stream does not hold it; None where it does."""


@dataclass(slots=True, eq=False)
class TellDetached:
    """A direct stream holds a slot no longer."""

    link: RouterPeer
    number: int
    """What the stream has called it."""
    failure: Failure | None
    """Why; None where it was given back."""


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
    """At which it is, or was, held."""
    is_gain: bool
    """`on_keys_gained`; else `on_keys_lost`."""


WorkCommand = StartCalls | StartTurn | StartBatch
"""What executors take."""
ReplicaCommand = (
    WorkCommand | Refuse | Fail | Grant | AnswerRenewal | AnswerAttach | TellDetached | TellCapacity | TellKeys
)
