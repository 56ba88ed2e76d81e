"""What happens to the calls of a replica: routers send and take back, executors finish, time passes, settings change.

Purpose: the one way into the scheduler, by `ReplicaScheduler.step(event, now)`. Events are data, without behaviour.
Invariants: each class is in `ReplicaEvent` and has one handler, which the table in `scheduler.py` names. No list
or mapping that an event carries is kept, or changed.
Owner: streams, executors and timers make events; the engine brings them to the scheduler.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from replica_service.core.calls.commands import Part, StartBatch, StartCalls
from replica_service.core.calls.runs import ReplicaRun, RouterPeer, StartTurn
from slotmesh.errors import Failure

# -- routers -------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class RunsCame:
    """A router has sent runs: calls, or reservations of slots."""

    runs: Sequence[ReplicaRun]
    """In the order in which they were sent."""


@dataclass(slots=True, eq=False)
class RunsCancelled:
    """A router takes calls back: those that have not started never do."""

    link: RouterPeer
    ranges: Iterable[tuple[int, int]]
    """Run ids of the link, both ends included."""


@dataclass(slots=True, eq=False)
class PayloadCame:
    """The payload of a run that came without it is complete. A run that was answered meanwhile stays as it is."""

    run: ReplicaRun
    payload: bytes


@dataclass(slots=True, eq=False)
class PayloadFailed:
    """The payload of a run that came without it will not come. A run that was answered meanwhile stays as it is."""

    run: ReplicaRun
    failure: Failure
    """The answer to the call."""


@dataclass(slots=True, eq=False)
class StampEchoed:
    """A router has echoed a stamp of this replica: until `FRESH_S` after it, runs of the link start."""

    link: RouterPeer
    stamp_s: float
    """Monotonic seconds of this replica's clock."""


@dataclass(slots=True, eq=False)
class SessionsMoved:
    """Sessions went on at another router: what of these runs has not started is handed back."""

    runs: Sequence[ReplicaRun]
    """Runs that the router has sent from which the sessions went."""


@dataclass(slots=True, eq=False)
class LinkClosed:
    """A router's stream has ended: its calls that have not started never will, and answers cannot be written."""

    link: RouterPeer


# -- slots ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class DispatchCame:
    """A caller has sent a call for a slot. `run.slot` is set afterwards if the call has it."""

    run: ReplicaRun
    """One call without ordering key."""
    secret: bytes
    """That of the slot."""


@dataclass(slots=True, eq=False)
class RenewalCame:
    """A caller has asked to renew a lease. Answered by `AnswerRenewal`."""

    link: RouterPeer
    op_id: int
    """Id of the operation on this link."""
    secret: bytes
    lease_s: float
    """Seconds from now; shorter ones than what is left shorten the lease."""


@dataclass(slots=True, eq=False)
class ReleaseCame:
    """A caller gives a slot back. Without effect where the slot is not reserved any more."""

    secret: bytes


# -- direct streams ------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class AttachCame:
    """A client hands a leased slot over to its direct stream. Answered by `AnswerAttach`."""

    link: RouterPeer
    number: int
    """What the stream calls the slot; at least 1."""
    secret: bytes
    endpoint: str
    """The endpoint that the client means; empty where it does not say."""
    lease_s: float
    """What the lease lasts, from now, from each renewal, and from the end of each call."""


@dataclass(slots=True, eq=False)
class SlotCallCame:
    """A client has sent a call for a slot that its stream holds. If the call gets the slot, `run.slot` is set."""

    run: ReplicaRun
    """One call without ordering key."""
    number: int
    """What the stream calls the slot."""


@dataclass(slots=True, eq=False)
class StreamRenewed:
    """A client lives: the leases of all slots that its stream holds start anew."""

    link: RouterPeer


@dataclass(slots=True, eq=False)
class DetachCame:
    """A client detaches a slot from its stream. A call that runs in it continues."""

    link: RouterPeer
    number: int


# -- executors -----------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class CallsEnded:
    """Calls of a StartCalls have ended, well or not."""

    run: ReplicaRun
    count: int
    waited: bool = False
    """Other calls could run while these did."""


@dataclass(slots=True, eq=False)
class TurnEnded:
    """A turn is over: its calls before `reached` have ended, well or not; the others have not started."""

    turn: StartTurn
    reached: int
    """An index of the turn's run."""


@dataclass(slots=True, eq=False)
class TurnsEnded:
    """All calls of these turns, which were executed one after another, have ended, well or not."""

    turns: Sequence[StartTurn]
    """At least one, in the order of execution; of one method."""


@dataclass(slots=True, eq=False)
class BatchEnded:
    """All calls of a batch have ended, well or not."""

    batch: StartBatch


@dataclass(slots=True, eq=False)
class WorkReturned:
    """None of the calls of this work has started: links were not fresh, or the work was recalled.

    Those that were taken back never do; the others wait again.
    """

    work: StartCalls | StartBatch
    cancelled: Sequence[Part] = ()
    """Parts of it that were taken back just now. More may have been while an executor had the work."""


# -- the replica ---------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class ReplicaTimePassed:
    """The moment has come that `next_deadline` named."""


@dataclass(slots=True, eq=False)
class BatchSettingsChanged:
    """A handler has changed settings of its batch methods, which batchers read: what waits may be due."""


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
    """Partitions move away: calls of them that were sent at these owner epochs, or older ones, never start."""

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
    """The handler's `on_keys_lost` has ended for these partitions: nothing of them is here any more."""

    endpoint: str
    partitions: Collection[int]


@dataclass(slots=True, eq=False)
class DrainBegan:
    """The replica is to end: it takes nothing new and hands back what has not started. Slots are honoured."""


@dataclass(slots=True, eq=False)
class GraceEnded:
    """The replica ends: slots are honoured no longer; a call in one is handed back, if it has not started."""


Ended = CallsEnded | TurnEnded | TurnsEnded | BatchEnded | WorkReturned
"""Events that executors post."""
ReplicaEvent = (
    RunsCame
    | RunsCancelled
    | PayloadCame
    | PayloadFailed
    | StampEchoed
    | SessionsMoved
    | LinkClosed
    | DispatchCame
    | RenewalCame
    | ReleaseCame
    | AttachCame
    | SlotCallCame
    | StreamRenewed
    | DetachCame
    | Ended
    | ReplicaTimePassed
    | BatchSettingsChanged
    | LimitsChanged
    | PartitionsRevoked
    | KeysGained
    | KeysLost
    | EpochFenced
    | DrainBegan
    | GraceEnded
)
