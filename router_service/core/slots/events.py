"""Events about slots: what callers want with them, and what replicas answer.

Owner: the scheduler, of which this is a part: `now` is monotonic seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from router_service.core import failures
from router_service.core.calls import NO_OPTIONS
from router_service.core.runs import Run
from router_service.core.slots.frames import cut_ops
from router_service.core.slots.operations import ONE_CALL, SlotOperations
from router_service.core.slots.requests import Wish

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from router_service.core.callers import Caller
    from router_service.core.calls import CallOptions
    from router_service.core.commands import Command
    from router_service.core.conclusions import Conclusions
    from router_service.core.counters import Counters
    from router_service.core.outcomes import Outcomes
    from router_service.core.queueing.expiry import Expiry
    from router_service.core.replicas.capacity import Capacity
    from router_service.core.replicas.replica import Replica
    from router_service.core.replicas.sender import Sender
    from router_service.core.routing.intake import Intake
    from router_service.core.routing.rosters import ReplicaKey
    from router_service.core.slots.frames import OutgoingOp
    from router_service.core.slots.slot import Dispatch, Release, Renew, Reserve, SlotAnswer, SlotWork
    from slotmesh.wire.chunks import Payload


class SlotEvents:
    """Each returns what is to be done."""

    def __init__(
        self,
        numbers: Iterator[int],
        *,
        counters: Counters,
        outcomes: Outcomes,
        sender: Sender,
        intake: Intake,
        operations: SlotOperations,
        expiry: Expiry,
        conclusions: Conclusions,
    ) -> None:
        """`numbers` are the ages of runs."""
        self._numbers = numbers
        self._counters = counters
        self._outcomes = outcomes
        self._sender = sender
        self._intake = intake
        self._operations = operations
        self._expiry = expiry
        self._conclusions = conclusions

    # -- callers ---------------------------------------------------------------------------------------------------

    def reserve(
        self, caller: Caller, endpoint: str, options: CallOptions, wanted: Reserve, now: float, request_id: str = ""
    ) -> list[Command]:
        """A reservation; it ends with a DeliverSlot or a DeliverFailure.

        Who repeats a request id has the same slot, or waits with whoever was first, until all of them have left.
        """
        owner: Caller | None = caller
        if request_id:
            wish = Wish.of(endpoint, options, wanted)
            owner = self._operations.find(caller, request_id, wish, options.timeout_s, now)
        if owner is not None:
            run = self._run(owner, endpoint, options, b"", wanted, now)
            if run.deadline <= now:
                self._outcomes.fail_waiting(run, failures.no_slot(run, now))
            else:
                self._intake.route(run, now)
        return self._conclusions.commands(now)

    def dispatch(
        self, caller: Caller, key: ReplicaKey, options: CallOptions, payload: Payload, into: Dispatch, now: float
    ) -> list[Command]:
        """A call in a slot that this replica has given. Never sent twice."""
        self._counters.calls[self._counters.label(into.endpoint),] += 1
        run = self._run(caller, into.endpoint, options, payload, into, now)
        if run.deadline <= now:
            self._outcomes.fail_waiting(run, failures.deadline_in_queue(run))
        else:
            self._operations.bind(run, key, now)
        return self._conclusions.commands(now)

    def operate(self, caller: Caller, key: ReplicaKey, op: Renew | Release, now: float) -> list[Command]:
        """A slot of this replica is to be held for longer, or given back."""
        self._operations.bind(self._run(caller, "", NO_OPTIONS, b"", op, now), key, now)
        return self._conclusions.commands(now)

    def give_back(self, key: ReplicaKey, token: str, now: float) -> list[Command]:
        """A slot was granted, and nobody will use it: it is released, and nobody hears of that."""
        self._operations.give_back(key, token, now)
        return self._conclusions.commands(now)

    # -- replicas --------------------------------------------------------------------------------------------------

    def cut_ops(self, replica: Replica, max_bytes: int) -> list[OutgoingOp]:
        """What the next frame of slot operations carries; it goes ahead of runs. Call `expire` before."""
        return cut_ops(replica, max_bytes)

    def answered(
        self, replica: Replica, answers: Iterable[SlotAnswer], capacity: Capacity | None, now: float
    ) -> list[Command]:
        """The replica has answered slot operations; `capacity` is its load after them, where it tells."""
        self._operations.answered(replica, answers, capacity, now)
        self._conclusions.withdrawn(self._expiry.end_overdue(now), now)
        self._sender.pump(replica, now)
        return self._conclusions.commands(now)

    def _run(
        self, caller: Caller, endpoint: str, options: CallOptions, payload: Payload, work: SlotWork, now: float
    ) -> Run:
        run = Run(next(self._numbers), caller, endpoint, options, ONE_CALL, [payload], now, slot=work)
        caller.runs[run] = None
        return run
