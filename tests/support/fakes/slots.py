"""The slots of a scripted replica: a table without leases, which a test tells what to say.

Invariants: every operation that arrived is remembered, in order, answered or not; each token is honoured once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf import duration_pb2

from slotmesh.calls.slot_tokens import SECRET_BYTES, format_token
from slotmesh.convert.batches import ids_to_wire
from slotmesh.errors import Failure, Reason
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.status import to_wire
from slotmesh.v1 import call_pb2, slot_service_pb2

Response = replica_service_pb2.ExecuteResponse
SlotOp = replica_service_pb2.SlotOp
Slot = slot_service_pb2.Slot
Reserve = Callable[[SlotOp], Response | None]
"""Answers a reservation, or holds it."""


@dataclass
class ScriptedSlot:
    """One slot that was granted."""

    wire: Slot
    endpoint: str
    state: str = "reserved"
    """reserved, dispatched, done or released."""
    run_id: int = 0
    """Of the call that was dispatched into it."""


class ScriptedSlots:
    """Grants each reservation, unless a test replaces `reserve`."""

    def __init__(self) -> None:
        self.replica_id = ""
        self.incarnation = ""
        self.address = ""
        self.reserve: Reserve = self.granted
        self.ops: list[SlotOp] = []
        """Every operation that arrived, in order."""
        self.held: list[SlotOp] = []
        """Reservations that got no answer when they came."""
        self.slots: dict[str, ScriptedSlot] = {}
        """Every slot that was granted, by token."""

    @property
    def held_permits(self) -> int:
        """Slots that are reserved, or in which a call runs."""
        return sum(slot.state in {"reserved", "dispatched"} for slot in self.slots.values())

    def ended(self, run_id: int) -> None:
        """A call has ended, perhaps one that ran in a slot."""
        for slot in self.slots.values():
            if slot.state == "dispatched" and slot.run_id == run_id:
                slot.state = "done"

    def opened(self, replica_id: str, incarnation: str, address: str) -> None:
        """A router has said whom it means."""
        self.replica_id, self.incarnation, self.address = replica_id, incarnation, address

    @property
    def kinds(self) -> list[str]:
        """What each operation was: reserve, renew, release or dispatch."""
        return [op.WhichOneof("op") or "" for op in self.ops]

    @property
    def reserved(self) -> int:
        """Slots that are reserved now."""
        return sum(slot.state == "reserved" for slot in self.slots.values())

    def handle(self, op: SlotOp) -> Response | replica_service_pb2.RunBatch | None:
        """What to answer, or the run that a dispatch has become. None where the operation is held."""
        self.ops.append(op)
        match op.WhichOneof("op"):
            case "reserve":
                if (response := self.reserve(op)) is None:
                    self.held.append(op)
                return response
            case "renew":
                return self._renew(op)
            case "release":
                slot = self.slots.get(op.release.token)
                if slot is not None and slot.state == "reserved":
                    slot.state = "released"
                released = slot_service_pb2.ReleaseSlotResponse(ongoing=self.reserved, max_ongoing=8)
                return _result(replica_service_pb2.SlotResult(op_id=op.op_id, released=released))
            case _:
                return self._dispatch(op)

    def granted(self, op: SlotOp) -> Response:
        """A new slot."""
        token = format_token(self.replica_id, self.incarnation, secrets.token_bytes(SECRET_BYTES))
        slot = ScriptedSlot(
            Slot(
                token=token,
                backend="b",
                replica_id=self.replica_id,
                replica_address=self.address,
                ongoing=self.reserved + 1,
                ttl=op.reserve.ttl if op.reserve.HasField("ttl") else duration_pb2.Duration(seconds=10),
            ),
            op.reserve.endpoint,
        )
        slot.wire.expire_time.GetCurrentTime()
        slot.wire.expire_time.seconds += slot.wire.ttl.seconds
        self.slots[token] = slot
        return _result(replica_service_pb2.SlotResult(op_id=op.op_id, slot=slot.wire))

    def _renew(self, op: SlotOp) -> Response:
        slot = self.slots.get(op.renew.token)
        if slot is None or slot.state != "reserved":
            return failed(op, Reason.SLOT_UNKNOWN if slot is None else Reason.SLOT_USED)
        slot.wire.ttl.CopyFrom(op.renew.ttl)
        return _result(replica_service_pb2.SlotResult(op_id=op.op_id, slot=slot.wire))

    def _dispatch(self, op: SlotOp) -> Response | replica_service_pb2.RunBatch:
        dispatch = op.dispatch
        slot = self.slots.get(dispatch.token)
        if slot is None:
            return not_honoured(op, Reason.SLOT_UNKNOWN, "no slot has this token")
        if dispatch.endpoint not in ("", slot.endpoint):
            told = f"the slot is one of endpoint {slot.endpoint!r}, not of {dispatch.endpoint!r}"
            return not_honoured(op, Reason.SLOT_UNKNOWN, told)
        if slot.state != "reserved":
            return not_honoured(op, Reason.SLOT_USED, "a call was dispatched into the slot")
        slot.state, slot.run_id = "dispatched", op.op_id
        return replica_service_pb2.RunBatch(
            first_run_id=op.op_id, options=dispatch.options, payloads=[dispatch.payload], endpoint=slot.endpoint
        )


def refused(op: SlotOp, reason: Reason = Reason.QUEUE_FULL) -> Response:
    """The replica does not take the reservation: it goes elsewhere."""
    return Response(
        refused=replica_service_pb2.RunsRefused(
            runs=[call_pb2.IdRange(first=op.op_id, last=op.op_id)],
            failure=to_wire(Failure(reason=reason, message="not here")),
        ),
        capacity=replica_service_pb2.Capacity(max_ongoing=8, others=8),
    )


def failed(op: SlotOp, reason: Reason, message: str = "no") -> Response:
    """The operation failed."""
    failure = to_wire(Failure(reason=reason, message=message))
    return _result(replica_service_pb2.SlotResult(op_id=op.op_id, failure=failure))


def not_honoured(op: SlotOp, reason: Reason, message: str) -> Response:
    """A dispatch whose token is not honoured fails as a call does."""
    failure = to_wire(Failure(reason=reason, message=message))
    errors = call_pb2.CallErrors(calls=ids_to_wire([op.op_id]), failure=failure)
    return Response(results=call_pb2.ResultFrame(errors=[errors]))


def held(_op: SlotOp) -> None:
    """No answer."""


def _result(result: replica_service_pb2.SlotResult) -> Response:
    return Response(slots=replica_service_pb2.SlotResults(results=[result]))
