"""Leased slots: passes the operations of routers and direct callers to the scheduler, and the results back.

Purpose: converts operations to events, and the engine's grants, refusals and failures of reservations to results.
Counts the results of reservations.
Invariants: every operation has exactly one result on its link; calls in slots have outcomes like all calls.
Owner: the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container
from dataclasses import replace
from enum import StrEnum

from replica_service.convert.slots import Granted, Issuer, SlotReleased, slot_ops_of
from replica_service.core.call_metadata import ReservedSlot
from replica_service.core.events import DispatchReceived, Fail, Grant, ReleaseReceived, ReplicaEvent, ReportRenewal
from replica_service.core.failures import SLOT_UNKNOWN
from replica_service.core.runs import ReplicaRun, RouterPeer
from replica_service.core.scheduler import ReplicaScheduler
from replica_service.shell.repetitions import Repetitions
from slotmesh.errors import Failure, Reason
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.security.audit import AUDIT
from slotmesh.security.identity import Identity, current_rpc


class ReservationEnd(StrEnum):
    """How a reservation ends here. The values are those of the metric."""

    GRANTED = "granted"
    REFUSED = "refused"
    """Handed back: no room, or the replica drains."""
    CANCELLED = "cancelled"
    """Cancelled while it waited: its caller has left or its time is over, or its link has ended."""
    TIMED_OUT = "timed_out"
    """Its time was over when its turn came."""


class Slots:
    """The operations, for one replica."""

    def __init__(
        self,
        scheduler: ReplicaScheduler,
        issuer: Issuer,
        now: Callable[[], float],
        post: Callable[[ReplicaEvent], None],
        repetitions: Repetitions,
        fail: Callable[[ReplicaRun, Failure], None],
    ) -> None:
        """`fail` answers a call that fails as it is."""
        self.issuer = replace(issuer, is_of_another=self._is_of_another)
        self.reservations: Counter[ReservationEnd] = Counter()
        self._scheduler = scheduler
        self._now = now
        self._post = post
        self._repetitions = repetitions
        self._fail = fail

    def _is_of_another(self, secret: bytes, identity: str, endpoints: Container[str] | None) -> bool:
        if not self._scheduler.slots.is_of_another(secret, identity, endpoints):
            return False
        who = Identity(name=identity, roles=frozenset())
        why = "the slot is another identity's, or of an endpoint that it may not call"
        AUDIT.denied(who, current_rpc() or "none", SLOT_UNKNOWN, why=why)
        return True

    # -- in --------------------------------------------------------------------------------------------------------

    def handle(self, frame: replica_service_pb2.SlotOps, link: RouterPeer) -> None:
        """A router's operations.

        Raises:
            DuplicateCallId: their ids do not strictly increase.
        """
        outbox = link.outbox
        for op_id, op in slot_ops_of(frame, link, self.issuer, self._now()):
            match op:
                case Failure():
                    outbox.slot_answer(op_id, op)
                case Fail():
                    self._fail(op.run, op.failure)
                case DispatchReceived():
                    self.dispatch(op)
                case ReleaseReceived():
                    outbox.slot_answer(op_id, self.release(op))
                case _:
                    self._post(op)

    def dispatch(self, event: DispatchReceived) -> None:
        """Runs a call in a slot, unless it is a repetition."""
        if event.run.request is None or self._repetitions.begins(event.run):
            self._post(event)

    def release(self, event: ReleaseReceived) -> SlotReleased:
        """Gives a slot back, if it is still reserved."""
        self._post(event)
        return SlotReleased(self._scheduler.in_use, self._scheduler.max_ongoing)

    # -- commands, as the engine carries them out ------------------------------------------------------------------

    def granted(self, command: Grant) -> None:
        """A reservation has become a slot."""
        self.reservations[ReservationEnd.GRANTED] += 1
        command.run.link.outbox.slot_answer(command.run.first, Granted(command.slot, command.ongoing))

    def renewed(self, command: ReportRenewal) -> None:
        """A lease was prolonged or shortened, or is over; or a slot was looked for."""
        answer = command.answer
        granted = Granted(answer, self._scheduler.in_use) if isinstance(answer, ReservedSlot) else answer
        command.link.outbox.slot_answer(command.op_id, granted)

    def refused(self) -> None:
        """A reservation was handed back."""
        self.reservations[ReservationEnd.REFUSED] += 1

    def failed(self, command: Fail) -> None:
        """A reservation will not become a slot."""
        is_late = command.failure.reason is Reason.DEADLINE_IN_QUEUE
        self.reservations[ReservationEnd.TIMED_OUT if is_late else ReservationEnd.CANCELLED] += 1
        command.run.link.outbox.slot_answer(command.run.first, command.failure)
