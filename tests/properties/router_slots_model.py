"""A naive model of a router with slots: every caller that waits, every call, reservation and slot of each replica."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf

from router_service.core.callers import Window
from router_service.core.calls import Flow, LeasedSlot, LookUpSlot, ReleasedSlot, Reserve, RouterCallOptions
from router_service.core.commands import (
    CancelRun,
    CloseLink,
    DeliverDone,
    DeliverFailure,
    DeliverResults,
    DeliverSlot,
    Flush,
    OpenLink,
    ReportLoad,
    ReportRunDefect,
    RouterCommand,
)
from router_service.core.events import (
    LinkLost,
    LinkOpened,
    RouterEvent,
    RouterTimePassed,
    RunsCompleted,
    SlotOperationsAnswered,
    SlotRequested,
    TableReceived,
)
from router_service.core.features.slot_operations import (
    OutgoingDispatch,
    OutgoingLookUp,
    OutgoingRelease,
    OutgoingRenew,
    OutgoingReserve,
)
from router_service.core.limits.capacity import ReportedCapacity
from router_service.core.queueing.run_queues import constraint_of
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.rosters import ReplicaKey, RosterVersion, TableRoster
from router_service.core.routing_table import BackendRoute, EndpointRoute, ReplicaRoute, RoutingTable
from router_service.core.run_states import RUN_LIFE
from router_service.core.runs import Caller
from router_service.core.scheduler import RouterScheduler
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.spec import model
from slotmesh.streams.chunks import joined
from tests.properties.router_slots_operations import (
    CHOSEN,
    MAX_ONGOING,
    MAX_QUEUED,
    POLICIES,
    QUEUE_TIME_S,
    Held,
    Leased,
    Listener,
    Operation,
    judge,
)
from tests.support.erratic_balancer import erratic
from tests.support.requested import requested


def leased_slot(replica: RoutedReplica, token: str, ttl_s: float) -> LeasedSlot:
    """What the replica says of a slot."""
    return LeasedSlot(
        token=token,
        backend="",
        replica_id=replica.replica_id,
        replica_address="",
        ongoing=1,
        ttl_s=ttl_s,
        expire_time_s=0.0,
    )


class RouterSlotsModel:
    """Who waits for what, what each replica holds, and the scheduler between them."""

    def __init__(self, seed: int, balancer: str, *, tells: bool) -> None:
        plug_ins = erratic(seed, lambda: self.now, lambda: self.scheduler.topology)
        self.scheduler = RouterScheduler(random.Random(seed).random, plug_ins=plug_ins)
        self.balancer = balancer
        self.tells = tells
        """Replicas say what their load is with each grant; else in a frame of its own, later or never."""
        self.now = 0.0
        self.revision = 0
        self.lives = 1
        self.tokens = 0
        self.flows = [Flow(), Flow()]
        self.listener = Listener()
        self.operations: dict[Caller, Operation] = {}
        self.held: dict[ReplicaKey, Held] = {}
        self.slots: dict[str, Leased] = {}
        self.leases: dict[str, tuple[tuple[Reserve, str], str, float, RoutedReplica]] = {}
        """What each request id stands for: the wish, the token, until when, and where."""
        self.own: dict[RoutedReplica, int] = {}
        self.departed: set[ReplicaKey] = set()
        """Those that a table has named, and a later one has not."""
        self.to_flush: dict[RoutedReplica, None] = {}
        self.lazy = False
        self.policy = POLICIES[0]
        self.exists = True
        self.listed: dict[ReplicaKey, str] = {("r0", "life1"): "b1", ("r1", "life1"): "b1", ("r2", "life1"): "b2"}
        self.table()
        for held in list(self.held.values()):
            self.link_up(held)

    # -- the world -------------------------------------------------------------------------------------------------

    def table(self) -> None:
        self.revision += 1
        backends = {
            name: BackendRoute(
                settings=model.Backend(
                    name=name, max_queued_calls=MAX_QUEUED, max_queue_time_s=QUEUE_TIME_S, balancer=self.balancer
                ),
                replicas=[
                    ReplicaRoute(key=key, address="", max_ongoing=MAX_ONGOING)
                    for key, backend in self.listed.items()
                    if backend == name
                ],
            )
            for name in ("b1", "b2")
        }
        endpoints = {"e": EndpointRoute(name="e", weights=self.policy)} if self.exists else {}
        table = RoutingTable(
            generation="g",
            revision=self.revision,
            endpoints=endpoints,
            backends=backends,
            roster=TableRoster(RosterVersion("g", self.revision)),
        )
        for request_id, (_, _, _, replica) in list(self.leases.items()):
            if replica.key not in self.listed:
                del self.leases[request_id]
        self.departed |= self.scheduler.topology.replicas.keys() - self.listed.keys()
        commands = self.scheduler.step(TableReceived(table), self.now)
        for backend in self.scheduler.topology.backends.values():
            backend.hooks = self.listener
        self.do(commands)

    def step(self, event: RouterEvent) -> None:
        """Something happens, now; commands are carried out."""
        self.do(self.scheduler.step(event, self.now))

    def do(self, commands: list[RouterCommand]) -> None:
        for command in commands:
            match command:
                case OpenLink(replica):
                    self.held[replica.key] = Held(replica)
                case CloseLink(replica):
                    held = self.held.pop(replica.key)
                    assert not held.owes, "disconnected from a replica that owes answers"
                    self.to_flush.pop(replica, None)
                case Flush(replica):
                    assert self.held[replica.key].linked
                    self.to_flush[replica] = None
                case CancelRun(sent, lo, count):
                    assert not any(lo <= at < lo + count for at, _ in sent.open_parts())
                case DeliverSlot(caller=caller, answer=answer):
                    self.settle(caller, answer)
                case DeliverResults(caller=caller) | DeliverDone(caller=caller):
                    self.settle(caller, "result")
                case DeliverFailure(caller=caller, failure=failure):
                    self.settle(caller, failure)
                case ReportRunDefect(state, event):
                    raise AssertionError(RUN_LIFE.impossible(state, event))
                case ReportLoad():
                    pass  # what it says is read, and decides nothing here
                case _:
                    raise AssertionError(f"nobody wants {command}")
        self.room_is_kept()
        if not self.lazy:
            self.cut_all()

    def room_is_kept(self) -> None:
        """Nothing but what is done in slots is placed where there is no room."""
        for held in self.held.values():
            replica = held.replica
            if replica.own > self.own.get(replica, 0):
                assert replica.own <= replica.limit
            self.own[replica] = replica.own

    def settle(self, caller: Caller, outcome: object) -> None:
        operation = self.operations.get(caller)
        if operation is None or operation.has_left:
            assert operation is None or isinstance(outcome, Failure), "a slot for somebody who has left"
            if operation is not None and isinstance(operation.work, Reserve) and isinstance(outcome, Failure):
                assert outcome.executed is Executed.NO, "a reservation runs nothing"
            return
        assert operation.outcome is None, f"two outcomes: {operation.outcome} and {outcome}"
        operation.outcome = outcome
        work = operation.work
        if isinstance(outcome, LeasedSlot) and isinstance(work, Reserve):
            assert work.admits(outcome.replica_id), "a slot of a replica that will not do"
            is_repeated = operation.request_id in self.leases
            assert self.now < operation.deadline or is_repeated, "granted after its deadline"
            if operation.request_id:
                known = self.leases.get(operation.request_id)
                if known is not None and known[2] > self.now:
                    assert known[:2] == ((work, operation.shard), outcome.token), "two slots under one request id"
                    assert abs(known[2] - self.now - outcome.ttl_s) < 1e-6
                else:
                    replica = self.slots[outcome.token].replica
                    wish = work, operation.shard
                    self.leases[operation.request_id] = wish, outcome.token, self.now + outcome.ttl_s, replica
        if isinstance(outcome, Failure):
            judge(operation, outcome, weights=self.policy or {}, listed=self.listed, departed=self.departed)

    def cut_all(self) -> None:
        while self.to_flush:
            self.cut_one(next(iter(self.to_flush)))

    def cut_one(self, replica: RoutedReplica) -> None:
        self.to_flush.pop(replica, None)
        held = self.held[replica.key]
        assert held.linked
        self.do_quietly(self.scheduler.step(RouterTimePassed(), self.now))
        for op in self.scheduler.cut_ops(replica, 10):
            match op:
                case OutgoingReserve():
                    self.arrive(held, op)
                case bound:
                    asking = self.operations.get(replica.inflight[bound.op_id].run.caller)
                    if asking is not None:
                        asking.arrivals += 1
                        assert asking.arrivals == 1, "sent twice"
                    held.asked[bound.op_id] = asking, bound
        for batch in self.scheduler.cut_frame(replica, 100, 10**6):
            for at, payload in enumerate(batch.payloads):
                caller = next(c for c in self.operations if id(c) == int(joined(payload)))
                held.calls[batch.first_run_id + at] = self.operations[caller]
        taken = held.taken(self.slots)
        assert len(held.calls) + len(held.waiting) + taken <= MAX_ONGOING, "more than it has permits"
        if replica.outbox or replica.ops:
            self.to_flush[replica] = None

    def do_quietly(self, commands: list[RouterCommand]) -> None:
        lazy, self.lazy = self.lazy, True
        self.do(commands)
        self.lazy = lazy

    def arrive(self, held: Held, op: OutgoingReserve) -> None:
        sent = held.replica.inflight[op.op_id]
        constraint = constraint_of(sent.run)
        assert constraint is None or constraint.admits(held.replica.replica_id), "at a replica that will not do"
        assert op.deadline > self.now
        assert op.deadline < inf, "a reservation that may wait for ever"
        operation = self.operations.get(sent.run.caller)
        if not self.lazy and constraint is not None:
            older = [run for run in held.replica.backend.constrained if run.seq < sent.run.seq]
            wants = [each for each in map(constraint_of, older) if each is not None]
            assert not any(each.admits(held.replica.replica_id) for each in wants), "before its turn"
        if operation is not None:
            assert not operation.has_left
            assert operation.outcome is None
            assert all(operation not in each.waiting.values() for each in self.held.values()), "at two replicas"
        held.waiting[op.op_id] = operation
        if op.request is not None:
            held.requests[op.op_id] = op.request
            newest = held.looked_up.get(op.request.request_id, (0, 0))
            assert op.request.order >= newest, "an older attempt after a look-up"

    def caller(self, who: int) -> Caller:
        return Caller(Window(calls=10**6, bytes=10**9), self.flows[who])

    def ask(self, who: int, work: Reserve, timeout_s: float = inf, request_id: str = "", shard: str = "") -> None:
        caller = self.caller(who)
        operation = Operation(caller, work, self.now + timeout_s, request_id, shard)
        self.operations[caller] = operation
        options = RouterCallOptions(timeout_s=timeout_s, wire=b"w", **CHOSEN[shard])
        known = self.leases.get(request_id)
        if known is not None and not known[3].listed:
            known = None  # granted by a replica that the table has meanwhile left out
        pending = [
            each
            for each in self.operations.values()
            if each is not operation and each.request_id == request_id and each.outcome is None and not each.has_left
        ]
        self.step(SlotRequested(caller, "e", options, replace(work, request=requested(request_id))))
        if request_id and known is not None and known[2] > self.now:
            if known[0] == (work, shard):
                assert isinstance(operation.outcome, LeasedSlot)
                assert operation.outcome.token == known[1]
            else:
                assert isinstance(operation.outcome, Failure)
                assert operation.outcome.reason is Reason.BAD_REQUEST
        elif request_id and not pending:
            assert not isinstance(operation.outcome, LeasedSlot), "a slot that is over"
        elif request_id and (pending[0].work, pending[0].shard) != (work, shard):
            assert isinstance(operation.outcome, Failure)
            assert operation.outcome.reason is Reason.BAD_REQUEST

    def slots_known(self) -> list[str]:
        """Tokens of which a caller was told: those of slots that are not over, and a few others."""
        told = [each.outcome.token for each in self.operations.values() if isinstance(each.outcome, LeasedSlot)]
        over = [token for token in told if self.slots[token].state == "over"]
        return list(dict.fromkeys([token for token in told if token not in over] + over[-2:]))

    def alive(self) -> list[Operation]:
        return [each for each in self.operations.values() if each.outcome is None and not each.has_left]

    # -- replicas --------------------------------------------------------------------------------------------------

    def capacity(self, held: Held) -> ReportedCapacity:
        return ReportedCapacity(max_ongoing=MAX_ONGOING, others=held.taken(self.slots))

    def told(self, held: Held) -> ReportedCapacity | None:
        return self.capacity(held) if self.tells else None

    def reserving(self) -> list[Held]:
        return [held for held in self.held.values() if held.waiting]

    def busy(self) -> list[Held]:
        return [held for held in self.held.values() if held.calls or held.asked or held.dispatched]

    def answer(self, held: Held, op_id: int) -> None:
        operation, op = held.asked.pop(op_id)
        if isinstance(op, OutgoingLookUp):
            self.look_up(held, op)
            return
        leased = self.slots[op.token]
        is_here = leased.replica is held.replica and leased.state == "reserved"
        unknown = Failure(reason=Reason.SLOT_UNKNOWN, message="no")
        match op:
            case OutgoingDispatch():
                assert operation is not None
                if is_here:
                    leased.state = "dispatched"
                    held.dispatched[op_id] = operation, op.token
                else:
                    self.step(RunsCompleted(held.replica, [], [([op_id], unknown)], None))
            case OutgoingRenew():
                if not is_here:
                    self.step(SlotOperationsAnswered(held.replica, [(op_id, unknown)]))
                    return
                leased.until = self.now + op.ttl_s
                slot = leased_slot(held.replica, op.token, op.ttl_s)
                for request_id, (wish, token, _, replica) in list(self.leases.items()):
                    if token == op.token:
                        self.leases[request_id] = wish, token, leased.until, replica
                self.step(SlotOperationsAnswered(held.replica, [(op_id, slot)]))
            case OutgoingRelease():
                if is_here:
                    leased.state = "over"
                released = ReleasedSlot(ongoing=0, max_ongoing=MAX_ONGOING)
                told = self.capacity(held)
                self.step(SlotOperationsAnswered(held.replica, [(op_id, released)], told))

    def look_up(self, held: Held, op: OutgoingLookUp) -> None:
        """The replica answers whether it holds the slot of a reservation."""
        request_id = op.request.request_id
        held.looked_up[request_id] = op.request.order
        token = held.requested.get(request_id, "")
        leased = self.slots.get(token)
        if leased is None or leased.state != "reserved":
            unknown = Failure(reason=Reason.SLOT_UNKNOWN, message="no")
            self.step(SlotOperationsAnswered(held.replica, [(op.op_id, unknown)]))
            return
        found = leased_slot(held.replica, token, leased.until - self.now)
        self.step(SlotOperationsAnswered(held.replica, [(op.op_id, found)]))

    # -- links, tables, time -----------------------------------------------------------------------------------------

    def unlinked(self) -> list[Held]:
        return [held for held in self.held.values() if not held.linked and held.replica.key in self.listed]

    def link_up(self, held: Held) -> None:
        held.linked = True
        self.step(LinkOpened(held.replica, self.capacity(held)))

    def cut_off(self, held: Held) -> None:
        held.linked = False
        for _, token in held.dispatched.values():
            self.slots[token].state = "over"
        for op_id, request in held.requests.items():
            if op_id in held.waiting and op_id % 2:  # granted, but the answer is lost
                self.tokens += 1
                token = f"lost-{self.tokens}"
                self.slots[token] = Leased(held.replica, self.now + 4.0)
                held.requested[request.request_id] = token
        held.requests.clear()
        for each in (held.calls, held.waiting, held.asked, held.dispatched):
            each.clear()
        self.to_flush.pop(held.replica, None)
        self.step(LinkLost(held.replica, "cut"))
        assert not held.replica.outbox
        assert all(isinstance(sent.run.slot, LookUpSlot) for sent in held.replica.ops)
