"""What goes into the scheduler and what comes out: events of a replica, and the commands that follow.

Events are the only input, by `ReplicaScheduler.step(event, now)`: runs sent and cancelled by routers, work ended by
executors, time, changed settings. Commands are its decisions: the engine carries them out in order. Both are data
without behaviour; the commands that start calls are in `work.py`.
Invariants: each class of event is in `ReplicaEvent` and has one handler in the table in `scheduler.py`. The scheduler
neither keeps nor changes a list or mapping of an event.
Owner: streams, executors and timers make events; the engine passes them to the scheduler.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from replica_service.core.call_metadata import ReservedSlot
from replica_service.core.runs import ReplicaRun, RouterPeer, StartTurn
from replica_service.core.work import Part, StartBatch, StartCalls, WorkCommand
from slotmesh.calls.request_ids import ReservationIdentity
from slotmesh.errors import Failure


@dataclass(slots=True, eq=False)
class RunsReceived:
    """A router has sent runs: calls, or reservations of slots."""

    runs: Sequence[ReplicaRun]
    """In the order of sending."""


@dataclass(slots=True, eq=False)
class RunsCancelled:
    """A router has cancelled calls: those that have not started never do."""

    link: RouterPeer
    ranges: Iterable[tuple[int, int]]
    """Run ids of the link, both ends included."""


@dataclass(slots=True, eq=False)
class PayloadReceived:
    """The payload of a run that waits for it is complete. No effect if the run has its outcome."""

    run: ReplicaRun
    payload: bytes


@dataclass(slots=True, eq=False)
class PayloadFailed:
    """The payload of a run that waits for it is invalid or was not sent. No effect if the run has its outcome."""

    run: ReplicaRun
    failure: Failure
    """The failure of the call."""


@dataclass(slots=True, eq=False)
class StampEchoed:
    """A router has echoed a stamp of this replica: until `FRESH_S` after the stamp, runs of the link may start."""

    link: RouterPeer
    stamp_s: float
    """Monotonic seconds of this replica's clock."""


@dataclass(slots=True, eq=False)
class SessionsMoved:
    """Sessions have moved to another router: unstarted calls of these runs are handed back."""

    runs: Sequence[ReplicaRun]
    """Runs sent by the previous routers of the sessions."""


@dataclass(slots=True, eq=False)
class LinkClosed:
    """A router's stream has ended: its unstarted calls never start, and outcomes cannot be written."""

    link: RouterPeer


# -- slots ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class DispatchReceived:
    """A caller has sent a call for a slot. If the call gets the slot, `run.slot` is set."""

    run: ReplicaRun
    """One call without ordering key."""
    secret: bytes = field(repr=False)
    """The slot's secret."""


@dataclass(slots=True, eq=False)
class RenewalReceived:
    """A caller has requested to renew a lease. The result is `ReportRenewal`."""

    link: RouterPeer
    op_id: int
    """Id of the operation on this link."""
    secret: bytes = field(repr=False)
    lease_s: float
    """Seconds from now; may shorten the lease."""


@dataclass(slots=True, eq=False)
class ReleaseReceived:
    """A caller has released a slot. No effect if the slot is not reserved any more."""

    secret: bytes = field(repr=False)
    reservation: ReservationIdentity | None = None
    """If set: no effect if a newer attempt has found the slot."""


@dataclass(slots=True, eq=False)
class LookUpReceived:
    """A router looks for the slot of a repeated reservation. The result is `ReportRenewal`."""

    link: RouterPeer
    op_id: int
    """Id of the operation on this link."""
    reservation: ReservationIdentity


# -- direct streams ------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class AttachReceived:
    """A client attaches a leased slot to its direct stream. The result is `ReportAttach`."""

    link: RouterPeer
    number: int
    """The stream's number for the slot; at least 1."""
    secret: bytes = field(repr=False)
    endpoint: str
    """The endpoint that the client states; empty: the slot's."""
    lease_s: float
    """Length of the lease from now, from each renewal, and from the end of each call."""


@dataclass(slots=True, eq=False)
class SlotCallReceived:
    """A client has sent a call for a slot that its stream holds. If the call gets the slot, `run.slot` is set."""

    run: ReplicaRun
    """One call without ordering key."""
    number: int
    """The stream's number for the slot."""


@dataclass(slots=True, eq=False)
class StreamRenewed:
    """A client has renewed its direct stream: the leases of all slots that the stream holds restart."""

    link: RouterPeer


@dataclass(slots=True, eq=False)
class DetachReceived:
    """A client detaches a slot from its stream. A call that runs in it continues."""

    link: RouterPeer
    number: int


# -- executors -----------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class CallsEnded:
    """Calls of a StartCalls have ended, successful or failed."""

    run: ReplicaRun
    count: int
    waited: bool = False
    """Whether the calls waited, so that other calls could run meanwhile."""


@dataclass(slots=True, eq=False)
class TurnEnded:
    """A turn has ended: its calls before `reached` have ended, successful or failed; the others have not started."""

    turn: StartTurn
    reached: int
    """An index of the turn's run."""


@dataclass(slots=True, eq=False)
class TurnsEnded:
    """All calls of these turns, which were executed in sequence, have ended, successful or failed."""

    turns: Sequence[StartTurn]
    """At least one, in the order of execution; of one method."""


@dataclass(slots=True, eq=False)
class BatchEnded:
    """All calls of a batch have ended, successful or failed."""

    batch: StartBatch


@dataclass(slots=True, eq=False)
class WorkReturned:
    """None of the calls of this work has started: links were not fresh, or the work was recalled.

    Cancelled ones never do; the others wait again.
    """

    work: StartCalls | StartBatch
    cancelled: Sequence[Part] = ()
    """Parts that are cancelled with this event. Others may have been cancelled while an executor had the work."""


# -- the replica ---------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class ReplicaTimePassed:
    """The time that `next_deadline` returned has come."""


@dataclass(slots=True, eq=False)
class BatchSettingsChanged:
    """A handler has changed settings of its batch methods, which batchers read: a batch may be due."""


@dataclass(slots=True, eq=False)
class LimitsChanged:
    """The replica's limits have changed. Running calls continue; no call starts while too many permits are in use."""

    max_ongoing: int
    """Permits."""
    prefetch: int
    """Unkeyed calls that may wait for one."""


PartitionEpochs: TypeAlias = Mapping[str, Mapping[int, int]]
"""Owner epochs by endpoint, then by partition."""


@dataclass(slots=True, eq=False)
class PartitionsRevoked:
    """Partitions move away: their calls that were sent at these owner epochs, or older ones, never start."""

    epochs: PartitionEpochs


@dataclass(slots=True, eq=False)
class EpochFenced:
    """All partitions move away: calls that were sent at this owner epoch, or an older one, never start."""

    epoch: int


@dataclass(slots=True, eq=False)
class KeysGained:
    """The handler's `on_keys_gained` has ended for these partitions: their calls may start."""

    endpoint: str
    partitions: Collection[int]


@dataclass(slots=True, eq=False)
class KeysLost:
    """The handler's `on_keys_lost` has ended for these partitions: they are empty."""

    endpoint: str
    partitions: Collection[int]


@dataclass(slots=True, eq=False)
class DrainBegan:
    """The replica begins to drain: it accepts no new calls and hands back unstarted ones. Slots stay valid."""


@dataclass(slots=True, eq=False)
class GraceEnded:
    """The grace of the drain is over: slots are not valid any more, and unstarted calls in slots are handed back."""


Ended = CallsEnded | TurnEnded | TurnsEnded | BatchEnded | WorkReturned
"""Events that executors post."""
SlotEvent = DispatchReceived | RenewalReceived | ReleaseReceived | LookUpReceived
StreamEvent = AttachReceived | SlotCallReceived | StreamRenewed | DetachReceived
KeyEvent = PartitionsRevoked | KeysGained | KeysLost | EpochFenced
ArrivalEvent = RunsReceived | RunsCancelled | PayloadReceived | PayloadFailed | StampEchoed | SessionsMoved | LinkClosed
OtherEvent = ReplicaTimePassed | BatchSettingsChanged | LimitsChanged | DrainBegan | GraceEnded
ReplicaEvent = ArrivalEvent | SlotEvent | StreamEvent | KeyEvent | Ended | OtherEvent


# -- commands ------------------------------------------------------------------------------------------------------


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
class ReportRenewal:
    """Report the result of a renewal, or of a look-up, to its caller."""

    link: RouterPeer
    op_id: int
    answer: ReservedSlot | Failure
    """The slot with its new lease, or the failure."""


@dataclass(slots=True, eq=False)
class ReportAttach:
    """Report to a client whether its direct stream holds the slot that it attached."""

    link: RouterPeer
    number: int
    """The stream's number for the slot."""
    failure: Failure | None
    """Why the stream does not hold it; None if it does."""


@dataclass(slots=True, eq=False)
class ReportDetached:
    """Report to a client that its direct stream no longer holds a slot."""

    link: RouterPeer
    number: int
    """The stream's number for the slot."""
    failure: Failure | None
    """The reason; None if the client detached it."""


@dataclass(slots=True, eq=False)
class ReportCapacity:
    """Notify a router, whose last report stated no room, that there is room now."""

    link: RouterPeer


@dataclass(slots=True, eq=False)
class CallKeyHook:
    """Call the handler's hook for a partition, then post `KeysGained` or `KeysLost`."""

    endpoint: str
    partition: int
    epoch: int
    """The owner epoch."""
    is_gain: bool
    """True: `on_keys_gained`; False: `on_keys_lost`."""


@dataclass(slots=True, eq=False)
class ReportDefect:
    """Log and count an event that cannot happen: nothing has changed."""

    what: str


Report = ReportRenewal | ReportAttach | ReportDetached | ReportCapacity | CallKeyHook | ReportDefect
ReplicaCommand = WorkCommand | Refuse | Fail | Grant | Report
Commands: TypeAlias = list[ReplicaCommand]
"""The commands of one step so far, in order. A part of the step appends its own, and reads none."""
