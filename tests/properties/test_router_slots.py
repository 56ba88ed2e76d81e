"""The router's scheduler with slots, against naive replicas, under arbitrary interleavings.

The model knows every caller that waits, and what each replica holds: calls, reservations, slots and what is done in
them. It knows nothing of queues. Calls and reservations of two flows compete for two backends; replicas grant, refuse,
drain, break, restart and go; callers leave at any time, and ask again under the same request id.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router_service.core.callers import Caller, Window
from router_service.core.calls import CallOptions
from router_service.core.commands import (
    CancelRun,
    CloseLink,
    Command,
    DeliverDone,
    DeliverFailure,
    DeliverResults,
    DeliverSlot,
    Flush,
    OpenLink,
)
from router_service.core.flows import Flow
from router_service.core.queueing.reservations import constraint_of
from router_service.core.replicas.capacity import Capacity
from router_service.core.replicas.replica import Replica
from router_service.core.routing import routing_hooks
from router_service.core.routing.balancers import Candidate
from router_service.core.routing.rosters import ReplicaKey, Roster, RosterVersion
from router_service.core.routing.table import BackendRoute, BalancerName, EndpointRoute, ReplicaRoute, RoutingTable
from router_service.core.runs import CallerBook
from router_service.core.scheduler import Scheduler
from router_service.core.slots.frames import OutgoingDispatch, OutgoingRelease, OutgoingRenew, OutgoingReserve
from router_service.core.slots.slot import Dispatch, Release, Released, Renew, Reserve, Slot, SlotAnswer
from slotmesh.chunks import joined
from slotmesh.errors import Executed, Failure, Reason

MAX_ONGOING = 2
MAX_QUEUED = 12
QUEUE_TIME_S = 30.0
LINK_WAIT_S = 2.0
IDS = ("r0", "r1", "r2", "r3")
POLICIES: tuple[dict[str, float] | None, ...] = ({"b1": 1.0}, {"b1": 0.5, "b2": 0.5}, None)
REASONS = (Reason.QUEUE_FULL, Reason.DRAINING)
BOUND_REASONS = (
    *(Reason.REPLICA_GONE, Reason.REPLICA_LOST, Reason.DEADLINE_IN_QUEUE, Reason.DEADLINE_RUNNING),
    *(Reason.SLOT_UNKNOWN, Reason.HANDLER_ERROR),
    *(Reason.STALE_TABLE, Reason.BACKEND_UNAVAILABLE),
)
NOT_SENT = (Reason.REPLICA_GONE, Reason.STALE_TABLE, Reason.BACKEND_UNAVAILABLE, Reason.DEADLINE_IN_QUEUE)


@dataclass(eq=False)
class Operation:
    """What one caller wants: of a slot, or a call."""

    caller: Caller
    work: Reserve | Dispatch | Renew | Release | None
    deadline: float = inf
    request_id: str = ""
    shard: str = ""
    arrivals: int = 0
    """How often a replica got it."""
    outcome: object = None
    has_left: bool = False
    key: ReplicaKey | None = None
    """Of the replica whose slot it is about."""


@dataclass
class Leased:
    """A slot, as its replica knows it."""

    replica: Replica
    until: float
    state: str = "reserved"


@dataclass
class Held:
    """What one replica holds."""

    replica: Replica
    linked: bool = False
    calls: dict[int, Operation] = field(default_factory=dict)
    waiting: dict[int, Operation | None] = field(default_factory=dict)
    """Reservations by op id; None where nobody is known to wait: several do, or none."""
    asked: dict[int, tuple[Operation | None, OutgoingDispatch | OutgoingRenew | OutgoingRelease]] = field(
        default_factory=dict
    )
    """What is to be done with its slots."""
    dispatched: dict[int, tuple[Operation, str]] = field(default_factory=dict)

    @property
    def owes(self) -> bool:
        return bool(self.calls or self.waiting or self.asked or self.dispatched)

    def taken(self, slots: dict[str, Leased]) -> int:
        return sum(slot.replica is self.replica and slot.state != "over" for slot in slots.values())


class Listener:
    """A policy that wants to hear what became of what was placed."""

    def __init__(self) -> None:
        self.balance: Counter[Candidate] = Counter()

    def routed(self, replica: Candidate, count: int) -> None:
        assert count > 0
        self.balance[replica] += count

    def completed(self, replica: Candidate, count: int, latency_s: float) -> None:
        assert count > 0
        assert latency_s >= 0
        self.balance[replica] -= count

    def abandoned(self, replica: Candidate, count: int) -> None:
        assert count > 0
        self.balance[replica] -= count


class SlotMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32), balancer=st.sampled_from(BalancerName), tells=st.booleans())
    def start(self, seed: int, balancer: BalancerName, *, tells: bool) -> None:
        self.scheduler = Scheduler(random.Random(seed).random)
        self.balancer = balancer
        self.tells = tells
        """Replicas say what their load is with each grant; else in a frame of its own, later or never."""
        self.now = 0.0
        self.revision = 0
        self.lives = 1
        self.tokens = 0
        self.flows = [Flow(), Flow()]
        self.listener = Listener()
        self.operations: dict[CallerBook, Operation] = {}
        self.held: dict[ReplicaKey, Held] = {}
        self.slots: dict[str, Leased] = {}
        self.leases: dict[str, tuple[tuple[Reserve, str], str, float, Replica]] = {}
        """What each request id stands for: the wish, the token, until when, and where."""
        self.own: dict[Replica, int] = {}
        self.departed: set[ReplicaKey] = set()
        """Those that a table has named, and a later one has not."""
        self.to_flush: dict[Replica, None] = {}
        self.lazy = False
        self.policy = POLICIES[0]
        self.exists = True
        self.listed: dict[ReplicaKey, str] = {("r0", "life1"): "b1", ("r1", "life1"): "b1", ("r2", "life1"): "b2"}
        self.table()
        for held in list(self.held.values()):
            self.link_up(held)
        for work in (Reserve(), Reserve(replica_id="r0"), Reserve(excluded=frozenset({"r1"}))):
            for who in (0, 1):
                self.ask(who, work)
        for _ in range(2):
            self.ask(0, Reserve(), request_id="A", timeout_s=20.0)

    # -- the world -------------------------------------------------------------------------------------------------

    def table(self) -> None:
        self.revision += 1
        backends = {
            name: BackendRoute(
                name=name,
                replicas=[
                    ReplicaRoute(key=key, address="", max_ongoing=MAX_ONGOING)
                    for key, backend in self.listed.items()
                    if backend == name
                ],
                max_queued_calls=MAX_QUEUED,
                max_queue_time_s=QUEUE_TIME_S,
                balancer=self.balancer,
            )
            for name in ("b1", "b2")
        }
        endpoints = {"e": EndpointRoute(name="e", weights=self.policy)} if self.exists else {}
        table = RoutingTable(
            generation="g",
            revision=self.revision,
            endpoints=endpoints,
            backends=backends,
            roster=Roster(RosterVersion("g", self.revision)),
        )
        for request_id, (_, _, _, replica) in list(self.leases.items()):
            if replica.key not in self.listed:
                del self.leases[request_id]
        self.departed |= self.scheduler.topology.replicas.keys() - self.listed.keys()
        commands = self.scheduler.apply(table, self.now)
        for backend in self.scheduler.topology.backends.values():
            backend.hooks = self.listener
        self.do(commands)

    def do(self, commands: list[Command]) -> None:
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

    def settle(self, caller: CallerBook, outcome: object) -> None:
        operation = self.operations.get(caller)
        if operation is None or operation.has_left:
            assert operation is None or isinstance(outcome, Failure), "a slot for somebody who has left"
            if operation is not None and isinstance(operation.work, Reserve) and isinstance(outcome, Failure):
                assert outcome.executed is Executed.NO, "a reservation runs nothing"
            return
        assert operation.outcome is None, f"two outcomes: {operation.outcome} and {outcome}"
        operation.outcome = outcome
        work = operation.work
        if isinstance(outcome, Slot) and isinstance(work, Reserve):
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
            self.judge(operation, outcome)

    def judge(self, operation: Operation, failure: Failure) -> None:
        reason, executed = failure.reason, failure.executed
        match operation.work:
            case Reserve(replica_id=replica_id):
                assert executed is Executed.NO, "a reservation runs nothing"
                if reason is Reason.REPLICA_GONE:
                    assert replica_id
                    weights = self.policy or {}
                    assert not any(
                        key[0] == replica_id and backend in weights for key, backend in self.listed.items()
                    ), "the wanted replica is there"
                else:
                    assert reason in (
                        Reason.NO_SLOT,
                        Reason.QUEUE_FULL,
                        Reason.BAD_REQUEST,
                        Reason.ENDPOINT_NOT_FOUND,
                        Reason.HANDLER_ERROR,
                    )
            case Dispatch() | Renew():
                assert reason in BOUND_REASONS
                assert reason is not Reason.REPLICA_GONE or operation.key in self.departed, "it may live"
                if reason in NOT_SENT:
                    assert executed is Executed.NO
                    assert not operation.arrivals, "it was sent"
                if reason in (Reason.REPLICA_LOST, Reason.DEADLINE_RUNNING):
                    assert executed is Executed.UNKNOWN
                    assert operation.arrivals
            case Release():
                assert reason in (Reason.REPLICA_LOST, Reason.STALE_TABLE, Reason.BACKEND_UNAVAILABLE)
                assert bool(operation.arrivals) == (reason is Reason.REPLICA_LOST)
            case None:
                pass

    def cut_all(self) -> None:
        while self.to_flush:
            self.cut_one(next(iter(self.to_flush)))

    def cut_one(self, replica: Replica) -> None:
        self.to_flush.pop(replica, None)
        held = self.held[replica.key]
        assert held.linked
        self.do_quietly(self.scheduler.expire(self.now))
        for op in self.scheduler.slots.cut_ops(replica, 10):
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

    def do_quietly(self, commands: list[Command]) -> None:
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

    def caller(self, who: int) -> Caller:
        return Caller(Window(calls=10**6, bytes=10**9), self.flows[who])

    # -- callers ---------------------------------------------------------------------------------------------------

    @rule(who=st.integers(0, 1), count=st.integers(1, 4), timeout_s=st.sampled_from((inf, 5.0)))
    def call(self, who: int, count: int, timeout_s: float) -> None:
        for _ in range(count):
            caller = self.caller(who)
            self.operations[caller] = Operation(caller, None, self.now + timeout_s)
            batch = CallOptions(timeout_s=timeout_s, wire=b"w"), range(1, 2), [b"%d" % id(caller)]
            self.do(self.scheduler.submit(caller, "e", [batch], self.now))

    @rule(
        who=st.integers(0, 1),
        timeout_s=st.sampled_from((inf, inf, 20.0, 3.0, 0.0)),
        wanted=st.sampled_from(("", "", "", *IDS)),
        excluded=st.sets(st.sampled_from(IDS), max_size=3),
        constrained=st.booleans(),
        request_id=st.sampled_from(("", "", "", "A", "B")),
        ttl_s=st.sampled_from((4.0, 10.0)),
        count=st.integers(1, 2),
        shard=st.sampled_from(("", "s1")),
    )
    def reserve(
        self,
        *,
        who: int,
        timeout_s: float,
        wanted: str,
        excluded: set[str],
        constrained: bool,
        request_id: str,
        ttl_s: float,
        count: int,
        shard: str,
    ) -> None:
        work = Reserve(ttl_s=ttl_s)
        if constrained:
            work = Reserve(ttl_s=ttl_s, replica_id=wanted, excluded=frozenset(excluded - {wanted}))
        for _ in range(count):
            self.ask(who, work, timeout_s, "" if constrained else request_id, shard)

    def ask(self, who: int, work: Reserve, timeout_s: float = inf, request_id: str = "", shard: str = "") -> None:
        caller = self.caller(who)
        operation = Operation(caller, work, self.now + timeout_s, request_id, shard)
        self.operations[caller] = operation
        options = CallOptions(timeout_s=timeout_s, shard_key=shard, wire=b"w")
        known = self.leases.get(request_id)
        if known is not None and not known[3].listed:
            known = None  # granted by a replica that the table has meanwhile left out
        pending = [
            each
            for each in self.operations.values()
            if each is not operation and each.request_id == request_id and each.outcome is None and not each.has_left
        ]
        self.do(self.scheduler.slots.reserve(caller, "e", options, work, self.now, request_id))
        if request_id and known is not None and known[2] > self.now:
            if known[0] == (work, shard):
                assert isinstance(operation.outcome, Slot)
                assert operation.outcome.token == known[1]
            else:
                assert isinstance(operation.outcome, Failure)
                assert operation.outcome.reason is Reason.BAD_REQUEST
        elif request_id and not pending:
            assert not isinstance(operation.outcome, Slot), "a slot that is over"
        elif request_id and (pending[0].work, pending[0].shard) != (work, shard):
            assert isinstance(operation.outcome, Failure)
            assert operation.outcome.reason is Reason.BAD_REQUEST

    def slots_known(self) -> list[str]:
        """Tokens of which a caller was told: those of slots that are not over, and a few others."""
        told = [each.outcome.token for each in self.operations.values() if isinstance(each.outcome, Slot)]
        over = [token for token in told if self.slots[token].state == "over"]
        return list(dict.fromkeys([token for token in told if token not in over] + over[-2:]))

    @precondition(lambda self: self.slots_known())
    @rule(
        data=st.data(),
        kind=st.sampled_from((Dispatch, Dispatch, Renew, Release)),
        timeout_s=st.sampled_from((inf, 1.0)),
        breaks=st.sampled_from((False, False, False, True)),
        asks_again=st.booleans(),
    )
    def use_slot(
        self,
        data: st.DataObject,
        kind: type[Dispatch | Renew | Release],
        timeout_s: float,
        *,
        breaks: bool,
        asks_again: bool,
    ) -> None:
        token = data.draw(st.sampled_from(self.slots_known()))
        key = self.slots[token].replica.key
        if breaks and (found := self.held.get(key)) is not None and found.linked:
            self.cut_off(found)
        if kind is not Renew:
            for request_id, (_, known, _, _) in list(self.leases.items()):
                if known == token:
                    del self.leases[request_id]
        caller = self.caller(0)
        work = kind(token=token)
        operation = self.operations[caller] = Operation(caller, work, self.now + timeout_s, key=key)
        if isinstance(work, Dispatch):
            options = CallOptions(timeout_s=timeout_s, idempotent=data.draw(st.booleans()))
            self.do(self.scheduler.slots.dispatch(caller, key, options, b"payload", work, self.now))
        else:
            operation.deadline = inf
            self.do(self.scheduler.slots.operate(caller, key, work, self.now))
        held = self.held.get(key)
        if self.scheduler.topology.is_departed(key):
            gone = operation.outcome
            assert isinstance(gone, Released) if kind is Release else isinstance(gone, Failure)
        elif held is None or key not in self.listed:
            assert operation.outcome is None, "a newer table may name it"
        elif held.linked and not self.lazy:
            assert operation.arrivals == 1, "it waits, though its replica is there"
        if asks_again:
            for each in list(self.operations.values()):
                is_its = isinstance(each.outcome, Slot) and each.outcome.token == token
                if is_its and each.request_id and isinstance(each.work, Reserve):
                    self.ask(0, each.work, 20.0, each.request_id, each.shard)
                    return

    def alive(self) -> list[Operation]:
        return [each for each in self.operations.values() if each.outcome is None and not each.has_left]

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        operation = data.draw(st.sampled_from(self.alive()))
        operation.has_left = True
        self.do(self.scheduler.cancel(operation.caller, self.now))
        assert not operation.caller.runs
        assert not operation.caller.request_id

    @precondition(lambda self: self.slots_known())
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        """Somebody was told of a slot who had just left."""
        token = data.draw(st.sampled_from(self.slots_known()))
        for request_id, (_, known, _, _) in list(self.leases.items()):
            if known == token:
                del self.leases[request_id]
        self.do(self.scheduler.slots.give_back(self.slots[token].replica.key, token, self.now))

    # -- replicas --------------------------------------------------------------------------------------------------

    def capacity(self, held: Held) -> Capacity:
        return Capacity(max_ongoing=MAX_ONGOING, others=held.taken(self.slots))

    def told(self, held: Held) -> Capacity | None:
        return self.capacity(held) if self.tells else None

    def reserving(self) -> list[Held]:
        return [held for held in self.held.values() if held.waiting]

    @precondition(lambda self: self.reserving())
    @rule(data=st.data(), ttl_s=st.sampled_from((4.0, 10.0)))
    def grant(self, data: st.DataObject, ttl_s: float) -> None:
        held = data.draw(st.sampled_from(self.reserving()))
        ids = data.draw(st.lists(st.sampled_from(list(held.waiting)), min_size=1, unique=True))
        answers = []
        granted: dict[str, Operation | None] = {}
        callers = {op_id: held.replica.inflight[op_id] for op_id in ids}
        is_open = {op_id: bool(sent.open_parts()) for op_id, sent in callers.items()}
        for op_id in ids:
            operation = held.waiting.pop(op_id)
            self.tokens += 1
            token = f"t{self.tokens}"
            self.slots[token] = Leased(held.replica, self.now + ttl_s)
            granted[token] = operation
            slot = Slot(
                token=token,
                backend=held.replica.backend.name,
                replica_id=held.replica.replica_id,
                replica_address="",
                ongoing=1,
                ttl_s=ttl_s,
                expire_time_s=0.0,
            )
            answers.append((op_id, slot))
        self.do_quietly(self.scheduler.slots.answered(held.replica, answers, self.told(held), self.now))
        releases = [sent.run.slot for sent in held.replica.ops]
        releasing = {work.token for work in releases if isinstance(work, Release)}
        for op_id, (token, operation) in zip(ids, granted.items(), strict=True):
            assert (token in releasing) is not is_open[op_id], "kept, though nobody waits, or released too early"
            if operation is not None and not operation.has_left and is_open[op_id]:
                assert isinstance(operation.outcome, Slot)
                assert operation.outcome.token == token
        if not self.lazy:
            self.cut_all()

    @precondition(lambda self: self.reserving())
    @rule(data=st.data(), reason=st.sampled_from(REASONS), as_runs=st.booleans(), is_full=st.booleans())
    def refuse(self, data: st.DataObject, reason: Reason, *, as_runs: bool, is_full: bool) -> None:
        held = data.draw(st.sampled_from(self.reserving()))
        ids = sorted(data.draw(st.sets(st.sampled_from(list(held.waiting)), min_size=1)))
        for op_id in ids:
            held.waiting.pop(op_id)
        failure = Failure(reason=reason, message="no")
        capacity = self.capacity(held)._replace(others=MAX_ONGOING) if is_full else self.capacity(held)
        if as_runs:
            self.do(self.scheduler.refused(held.replica, ids, failure, capacity, self.now))
        else:
            answers = [(op_id, failure) for op_id in ids]
            self.do(self.scheduler.slots.answered(held.replica, answers, capacity, self.now))

    @precondition(lambda self: self.reserving())
    @rule(data=st.data(), reason=st.sampled_from((Reason.CANCELLED, Reason.NO_SLOT, Reason.HANDLER_ERROR)))
    def deny(self, data: st.DataObject, reason: Reason) -> None:
        """A replica answers a reservation with a failure: it was taken back, or its time is up, as it thinks."""
        held = data.draw(st.sampled_from(self.reserving()))
        op_id = data.draw(st.sampled_from(list(held.waiting)))
        if reason is Reason.CANCELLED and held.replica.inflight[op_id].open_parts():
            return
        held.waiting.pop(op_id)
        failure = Failure(reason=reason, message="no")
        self.do(self.scheduler.slots.answered(held.replica, [(op_id, failure)], None, self.now))

    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        linked = [held for held in self.held.values() if held.linked]
        if linked:
            held = data.draw(st.sampled_from(linked))
            self.do(self.scheduler.capacity_changed(held.replica, self.capacity(held), self.now))

    def busy(self) -> list[Held]:
        return [held for held in self.held.values() if held.calls or held.asked or held.dispatched]

    @precondition(lambda self: self.busy())
    @rule(data=st.data(), count=st.integers(1, 4), fails=st.booleans())
    def work(self, data: st.DataObject, count: int, *, fails: bool) -> None:
        """The replica answers some of what it has."""
        held = data.draw(st.sampled_from(self.busy()))
        for _ in range(count):
            if held.replica.key not in self.held:
                return
            if held.asked:
                self.answer(held, next(iter(held.asked)))
            elif held.calls or held.dispatched:
                ids = sorted((*held.calls, *held.dispatched))
                run_id = data.draw(st.sampled_from(ids))
                held.calls.pop(run_id, None)
                if run_id in held.dispatched:
                    self.slots[held.dispatched.pop(run_id)[1]].state = "over"
                capacity = self.capacity(held)
                if fails:
                    failure = Failure(reason=Reason.HANDLER_ERROR, message="no", executed=Executed.YES)
                    self.do(self.scheduler.completed(held.replica, [], [([run_id], failure)], capacity, self.now))
                else:
                    result = [run_id], [b"result"], ""
                    self.do(self.scheduler.completed(held.replica, [result], [], capacity, self.now))

    def answer(self, held: Held, op_id: int) -> None:
        operation, op = held.asked.pop(op_id)
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
                    self.do(self.scheduler.completed(held.replica, [], [([op_id], unknown)], None, self.now))
            case OutgoingRenew():
                if not is_here:
                    self.do(self.scheduler.slots.answered(held.replica, [(op_id, unknown)], None, self.now))
                    return
                leased.until = self.now + op.ttl_s
                slot = Slot(
                    token=op.token,
                    backend="",
                    replica_id=held.replica.replica_id,
                    replica_address="",
                    ongoing=1,
                    ttl_s=op.ttl_s,
                    expire_time_s=0.0,
                )
                for request_id, (wish, token, _, replica) in list(self.leases.items()):
                    if token == op.token:
                        self.leases[request_id] = wish, token, leased.until, replica
                self.do(self.scheduler.slots.answered(held.replica, [(op_id, slot)], None, self.now))
            case OutgoingRelease():
                if is_here:
                    leased.state = "over"
                released = Released(ongoing=0, max_ongoing=MAX_ONGOING)
                told = self.capacity(held)
                self.do(self.scheduler.slots.answered(held.replica, [(op_id, released)], told, self.now))

    @rule(data=st.data(), run_id=st.integers(1, 40))
    def repeat_an_answer(self, data: st.DataObject, run_id: int) -> None:
        """A replica that answers what it has answered changes nothing."""
        linked = [held for held in self.held.values() if held.linked]
        if linked:
            held = data.draw(st.sampled_from(linked))
            if run_id not in held.replica.inflight:
                answers: list[SlotAnswer] = [
                    (run_id, Released()),
                    (run_id, Failure(reason=Reason.SLOT_USED, message="no")),
                ]
                self.do(self.scheduler.slots.answered(held.replica, answers, None, self.now))

    # -- links, tables, time -----------------------------------------------------------------------------------------

    def unlinked(self) -> list[Held]:
        return [held for held in self.held.values() if not held.linked and held.replica.key in self.listed]

    def link_up(self, held: Held) -> None:
        held.linked = True
        self.do(self.scheduler.link_up(held.replica, self.capacity(held), self.now))

    @precondition(lambda self: self.unlinked())
    @rule(data=st.data())
    def link(self, data: st.DataObject) -> None:
        self.link_up(data.draw(st.sampled_from(self.unlinked())))

    @rule(data=st.data())
    def break_link(self, data: st.DataObject) -> None:
        linked = [held for held in self.held.values() if held.linked]
        if linked:
            self.cut_off(data.draw(st.sampled_from(linked)))

    def cut_off(self, held: Held) -> None:
        held.linked = False
        for _, token in held.dispatched.values():
            self.slots[token].state = "over"
        for each in (held.calls, held.waiting, held.asked, held.dispatched):
            each.clear()
        self.to_flush.pop(held.replica, None)
        self.do(self.scheduler.link_down(held.replica, "cut", self.now))
        assert not held.replica.outbox
        assert not held.replica.ops

    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        linked = [held for held in self.held.values() if held.linked]
        if linked:
            self.do(self.scheduler.draining(data.draw(st.sampled_from(linked)).replica, self.now))

    @rule(replica_id=st.sampled_from(IDS), backend=st.sampled_from(("b1", "b2")), at_once=st.booleans())
    def restart(self, replica_id: str, backend: str, *, at_once: bool) -> None:
        """Another life of the replica begins, in place of the one before."""
        self.lives += 1
        self.listed = {key: name for key, name in self.listed.items() if key[0] != replica_id}
        key = replica_id, f"life{self.lives}"
        self.listed[key] = backend
        self.table()
        if at_once and not self.held[key].linked:
            self.link_up(self.held[key])

    @rule(kind=st.sampled_from((Dispatch, Renew, Release)), replica_id=st.sampled_from(IDS))
    def use_slot_of_a_stranger(self, kind: type[Dispatch | Renew | Release], replica_id: str) -> None:
        """A replica of which no table has told yet has given a slot, by way of another router."""
        key, work, caller = (replica_id, "unheard of"), kind(token="another router's"), self.caller(0)
        self.operations[caller] = Operation(caller, work, inf, key=key)
        if isinstance(work, Dispatch):
            self.do(self.scheduler.slots.dispatch(caller, key, CallOptions(), b"payload", work, self.now))
        else:
            self.do(self.scheduler.slots.operate(caller, key, work, self.now))
        assert self.operations[caller].outcome is None, "a newer table may name it"

    @rule(data=st.data())
    def unlist(self, data: st.DataObject) -> None:
        if self.listed:
            del self.listed[data.draw(st.sampled_from(list(self.listed)))]
            self.table()

    @rule(policy=st.sampled_from(POLICIES), exists=st.sampled_from((True, True, True, False)))
    def set_traffic(self, policy: dict[str, float] | None, *, exists: bool) -> None:
        self.policy, self.exists = policy, exists
        self.table()

    @rule()
    def be_lazy(self) -> None:
        if self.lazy:
            self.cut_all()
        self.lazy = not self.lazy

    @rule(seconds=st.sampled_from((0.5, 1.0, 3.0, 11.0)))
    def advance(self, seconds: float) -> None:
        self.now += seconds
        for leased in self.slots.values():
            if leased.state == "reserved" and leased.until <= self.now:
                leased.state = "over"
        self.do(self.scheduler.expire(self.now))
        assert all(each.deadline > self.now for each in self.alive()), "a deadline passed without an outcome"

    # -- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for held in self.held.values():
            replica = held.replica
            unsent = [*replica.ops, *replica.outbox]
            roomy = sum(sent.count for sent in unsent if sent.takes_room)
            assert replica.own == len(held.calls) + len(held.waiting) + roomy
            assert replica.bound == len(held.asked) + len(held.dispatched) + sum(not s.takes_room for s in unsent)
            assert not unsent or not held.linked or replica in self.to_flush, "to be sent, and nobody was told"
            if not held.linked:
                assert not any(sent.takes_room for sent in unsent)
        topology = self.scheduler.topology
        accounts = [each.account for each in topology.backends.values()]
        accounts += [each.account for each in topology.endpoints.values()]
        callers: set[CallerBook] = {*self.operations, *self.scheduler._slot_operations.requests.pending}
        waiting = [run for caller in callers for run in caller.runs if run.waiting]
        waiting = [run for run in waiting if run.slot is None or run.reserves]
        assert all(run.account in accounts for run in waiting)
        for account in accounts:
            assert account.calls == sum(run.waiting for run in waiting if run.account is account)

    @invariant()
    def nobody_waits_for_who_never_comes(self) -> None:
        if not hasattr(self, "scheduler") or not self.exists or self.policy is None:
            return
        there = {key[0] for key, backend in self.listed.items() if backend in self.policy}
        for operation in self.alive():
            if isinstance(operation.work, Reserve) and (wanted := operation.work.replica_id):
                assert wanted in there or not any(run.waiting for run in operation.caller.runs)

    @invariant()
    def balancers_hear_in_pairs(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        expected: Counter[Replica] = Counter()
        for held in self.held.values():
            replica = held.replica
            dispatching = [*replica.ops, *replica.inflight.values()]
            at_work = sum(routing_hooks.is_counted(sent) for sent in dispatching if not sent.takes_room)
            expected[replica] += replica.own + at_work
        for replica, _ in self.scheduler._slot_operations.routed._slots.values():
            expected[replica] += 1
        assert +self.listener.balance == +expected
        assert min(self.listener.balance.values(), default=0) >= 0

    @invariant()
    def nothing_idles(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for backend in self.scheduler.topology.backends.values():
            roomy = [replica for replica in backend.replicas.values() if replica.free > 0]
            if backend.queue.head() is not None:
                assert not roomy
            for run in backend.constrained:
                constraint = constraint_of(run)
                assert constraint is not None
                assert not any(constraint.admits(each.replica_id) for each in roomy)

    def teardown(self) -> None:
        """In the end, everybody has one outcome, and nothing is kept."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(3):
            self.now += QUEUE_TIME_S + 1
            self.do(self.scheduler.expire(self.now))
            for held in list(self.held.values()):
                if held.linked:
                    self.cut_off(held)
        self.now += QUEUE_TIME_S + LINK_WAIT_S + 1
        self.do(self.scheduler.expire(self.now))
        assert not self.alive(), "somebody waits for ever"
        assert not any(caller.runs for caller in self.operations)
        requests = self.scheduler._slot_operations.requests
        assert not requests.pending
        assert not len(requests)
        assert not len(self.scheduler._slot_operations.routed)
        assert self.scheduler.next_deadline() is None
        assert not +self.listener.balance


TestSlots = SlotMachine.TestCase
TestSlots.settings = settings(max_examples=250, stateful_step_count=50, deadline=None)
