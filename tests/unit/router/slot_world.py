"""The world of the scheduler's tests, with callers that reserve slots."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from router_service.core.callers import Window
from router_service.core.calls import Dispatch, Flow, LeasedSlot, Release, ReleasedSlot, Renew, Reserve
from router_service.core.commands import DeliverFailure, DeliverSlot, Flush, RouterCommand
from router_service.core.events import (
    CallDispatched,
    CallerLeft,
    SlotOperationRequested,
    SlotOperationsAnswered,
    SlotRequested,
)
from router_service.core.features.slot_operations import OutgoingOp
from router_service.core.rosters import ReplicaKey
from router_service.core.runs import Caller
from slotmesh.errors import Failure, Reason
from tests.support.requested import requested
from tests.unit.router.world import World
from tests.unit.router.world_callers import options


def key_of(name: str) -> ReplicaKey:
    """The one life of a replica."""
    return name, "life"


def slot(name: str, token: str = "token", ttl_s: float = 10.0) -> LeasedSlot:
    """A slot of the replica."""
    return LeasedSlot(
        token=token,
        backend="b",
        replica_id=name,
        replica_address="127.0.0.1:1",
        ongoing=1,
        ttl_s=ttl_s,
        expire_time_s=0.0,
    )


class SlotWorld(World):
    """Each operation is a caller of its own, as at the edge."""

    def __init__(self, *args: Any, **table: Any) -> None:
        self.ops: dict[str, list[OutgoingOp]] = defaultdict(list)
        """All operations that each replica got."""
        self.ends: dict[Caller, LeasedSlot | ReleasedSlot | Failure] = {}
        self.flow = Flow()
        super().__init__(*args, **table)

    def reserve(self, endpoint: str = "e", request_id: str = "", flow: Flow | None = None, **fields: Any) -> Caller:
        """Somebody wants a slot."""
        known = ("timeout_s", "shard_key", "affinity_key", "model_id", "prefix_blocks", "slo_s")
        routing = {name: fields.pop(name) for name in known if name in fields}
        if "excluded" in fields:
            fields["excluded"] = frozenset(fields["excluded"])
        caller = Caller(Window(1, 1), flow or self.flow)
        request = requested(request_id, fields.pop("attempt", 0))
        wanted = Reserve(request=request, **fields)
        self.step(SlotRequested(caller, endpoint, options(**routing), wanted))
        return caller

    def dispatch(self, name: str, token: str = "token", payload: bytes = b"0", **fields: Any) -> Caller:
        """Somebody calls into a slot."""
        caller = Caller(Window(1, 1))
        into = Dispatch(token=token)
        self.step(CallDispatched(caller, key_of(name), options(**fields), payload, into))
        return caller

    def renew(self, name: str, token: str = "token") -> Caller:
        """Somebody holds a slot for longer."""
        caller = Caller(Window(1, 1))
        self.step(SlotOperationRequested(caller, key_of(name), Renew(token=token)))
        return caller

    def release(self, name: str, token: str = "token") -> Caller:
        """Somebody gives a slot back."""
        caller = Caller(Window(1, 1))
        self.step(SlotOperationRequested(caller, key_of(name), Release(token=token)))
        return caller

    def leave(self, caller: Caller) -> None:
        """The caller does not wait any more."""
        self.step(CallerLeft(caller))

    def answer(self, name: str, answer: LeasedSlot | ReleasedSlot | Failure, op_id: int = 0, **capacity: Any) -> None:
        """The replica answers its newest operation, or the one that is named."""
        told = self.capacity(**capacity) if capacity else None
        answers = [(op_id or self.ops[name][-1].op_id, answer)]
        self.step(SlotOperationsAnswered(self.replicas[name], answers, told))

    def grant(self, name: str, token: str = "token", op_id: int = 0, ttl_s: float = 10.0, **capacity: Any) -> None:
        """The replica leases a slot."""
        self.answer(name, slot(name, token, ttl_s), op_id, **capacity)

    def deny(self, name: str, reason: Reason) -> None:
        """The replica answers its newest operation with a failure."""
        self.answer(name, Failure(reason=reason, message="no"))

    def got_ops(self, name: str) -> list[str]:
        """The kinds of operations that the replica got."""
        return [type(op).__name__.removeprefix("Outgoing") for op in self.ops[name]]

    def end(self, caller: Caller) -> LeasedSlot | ReleasedSlot | Failure | None:  # type: ignore[override]  # of calls, there
        """What the caller has heard."""
        return self.ends.get(caller)

    def reason(self, caller: Caller) -> Reason | None:
        """Why what the caller wanted has failed; None where it has not."""
        end = self.ends.get(caller)
        return end.reason if isinstance(end, Failure) else None

    def cut_ops(self, name: str, max_bytes: int = 10**9) -> list[OutgoingOp]:
        """The link writes one frame of operations."""
        ops = self.scheduler.cut_ops(self.replicas[name], max_bytes)
        self.ops[name] += ops
        return ops

    def do(self, commands: list[RouterCommand]) -> None:
        """Carries commands out."""
        for command in commands:
            match command:
                case DeliverSlot(caller=caller, answer=answer):
                    self._hear(caller, answer)
                case DeliverFailure(caller=caller, failure=failure) if caller is not self.caller:
                    self._hear(caller, failure)
                case Flush(replica):
                    while not self.lazy and replica.ops:
                        self.cut_ops(replica.replica_id)
                    super().do([command])
                case _:
                    super().do([command])

    def _hear(self, caller: Caller, end: LeasedSlot | ReleasedSlot | Failure) -> None:
        assert caller not in self.ends, f"{self.ends[caller]}, then {end}"
        self.ends[caller] = end
