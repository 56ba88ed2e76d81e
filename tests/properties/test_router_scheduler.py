"""The router's scheduler against a naive model, under arbitrary interleavings.

The model remembers every call that was submitted and every call that a replica holds; it knows nothing of queues. Two
callers call one endpoint with two backends and a shadow; replicas come, drain, refuse, break and go; frames are cut at
once or late, whole or in parts.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import compress
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router_service.core.callers import Caller, Window
from router_service.core.calls import CallOptions
from router_service.core.commands import (
    AskReconcile,
    CancelRun,
    CloseLink,
    Command,
    DeliverDone,
    DeliverFailure,
    DeliverResults,
    DeliverSlot,
    DeliverValues,
    Flush,
    NameRoster,
    OpenLink,
    TakeValues,
)
from router_service.core.replicas.capacity import Capacity
from router_service.core.replicas.frames import OutgoingBatch
from router_service.core.replicas.replica import Replica
from router_service.core.replicas.slicing import MethodTime
from router_service.core.routing.rosters import ReplicaKey, Roster, RosterVersion
from router_service.core.routing.table import BackendRoute, BalancerName, EndpointRoute, ReplicaRoute, RoutingTable
from router_service.core.runs import CallerBook
from router_service.core.scheduler import Scheduler
from slotmesh.chunks import joined
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.partitions import PARTITIONS, partition_of

MAX_ONGOING = 4
KEYED_WINDOW = 6
MAX_QUEUED = 24
MAX_BATCH_SIZE = 3
QUEUE_TIME_S = 30.0
KEYS = ("red", "green", "blue")
POLICIES: tuple[dict[str, float] | None, ...] = ({"b1": 1.0}, {"b1": 0.5, "b2": 0.5}, {"b2": 1.0}, None)
DARK = "dark"
"""The backend that gets copies only, so that the model knows them."""
FULL = Failure(reason=Reason.QUEUE_FULL, message="full")
ROOM = Capacity(max_ongoing=MAX_ONGOING, keyed_window=KEYED_WINDOW)
STALE = Failure(reason=Reason.STALE_TABLE, message="not the owner")


@dataclass
class Call:
    """A call without outcome."""

    key: str
    deadline: float
    idempotent: bool


@dataclass
class Held:
    """What one replica holds: run id -> (call id, key, epoch)."""

    replica: Replica
    linked: bool = False
    runs: dict[int, tuple[int, str, int]] = field(default_factory=dict)
    yielded: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Run id -> values of it so far."""
    fences: dict[int, int] = field(default_factory=dict)
    """Partition -> it refuses keyed runs at this epoch and below."""

    @property
    def is_dark(self) -> bool:
        return self.replica.backend.name == DARK

    def running(self) -> list[int]:
        """Runs that may have started: of each key only the first."""
        keys = [key for _, key, _ in self.runs.values()]
        started = [not key or key not in keys[:at] for at, key in enumerate(keys)]
        return list(compress(self.runs, started))

    def unkeyed(self) -> int:
        return sum(1 for _, key, _ in self.runs.values() if not key)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32), balancer=st.sampled_from(BalancerName))
    def start(self, seed: int, balancer: BalancerName) -> None:
        self.scheduler = Scheduler(random.Random(seed).random)
        self.balancer = balancer
        self.now = 0.0
        self.revision = 0
        self.next_id = 1
        self.lives = 0
        self.callers = [Caller(Window(calls=10**6, bytes=10**9)) for _ in range(2)]
        self.caller_of: dict[int, int] = {}
        self.pending: dict[int, Call] = {}
        self.outcomes: dict[int, str] = {}
        self.streaming: set[int] = set()
        self.values: dict[int, int] = defaultdict(int)
        """Values that each call's caller has."""
        self.taken: dict[tuple[Replica, int], int] = defaultdict(int)
        """Values that nobody reads, of each run of each replica."""
        self.last_sent: dict[str, int] = defaultdict(int)
        self.held: dict[ReplicaKey, Held] = {}
        self.listed: dict[ReplicaKey, str] = {("r-a", "life"): "b1", ("r-b", "life"): "b2", ("r-d", "life"): DARK}
        self.to_flush: dict[Replica, None] = {}
        self.lazy = False
        """Frames are cut by the rule `cut` only."""
        self.policy = POLICIES[1]
        self.shadows = {DARK: 0.5}
        first = ("r-a", "life")
        self.owners: dict[int, tuple[ReplicaKey | None, int]] = {partition_of(key): (first, 1) for key in KEYS}
        self.exists = True
        self.table()
        for key in self.listed:
            self.held[key].linked = True
            self.do(self.scheduler.link_up(self.held[key].replica, ROOM, self.now))
        for streaming in (False, True):
            work = [(2, ""), (3, "red"), (1, "green")]
            self.submit(
                who=0,
                sizes=work,
                shard="",
                timeout_s=inf,
                slo_s=None,
                idempotent=True,
                streaming=streaming,
                missing=False,
            )

    # -- the world -------------------------------------------------------------------------------------------------

    def table(self) -> None:
        """Pushes the table that follows from the model."""
        self.revision += 1
        owners: list[tuple[ReplicaKey | None, int]] = [(None, 0)] * PARTITIONS
        for number, owner in self.owners.items():
            owners[number] = owner
        route = EndpointRoute(name="e", weights=self.policy, shadows=self.shadows, owners=owners)
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
                max_batch_size=MAX_BATCH_SIZE,
            )
            for name in ("b1", "b2", DARK)
        }
        endpoints = {"e": route} if self.exists else {}
        table = RoutingTable(
            generation="g",
            revision=self.revision,
            endpoints=endpoints,
            backends=backends,
            roster=Roster(RosterVersion("g", self.revision)),
        )
        self.do(self.scheduler.apply(table, self.now))

    def do(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case NameRoster():
                    raise AssertionError("there are no sessions here")
                case OpenLink(replica):
                    self.held[replica.key] = Held(replica)
                case CloseLink(replica):
                    assert not self.held[replica.key].runs, "disconnected from a replica that owes answers"
                    del self.held[replica.key]
                    self.to_flush.pop(replica, None)
                case Flush(replica):
                    self.to_flush[replica] = None
                case CancelRun(sent, lo, count):
                    assert not any(lo <= at < lo + count for at, _ in sent.open_parts())
                case DeliverResults(ids=ids, payloads=payloads):
                    assert [b"result %d" % call_id for call_id in ids] == list(payloads), "a reply at another call"
                    self.settle(command.caller, ids, "result")
                case DeliverFailure(ids=ids, failure=failure):
                    self.settle(command.caller, ids, failure.reason.value)
                case DeliverValues(ids=ids, payloads=payloads, run_ids=run_ids):
                    assert len(ids) == len(payloads) == len(run_ids)
                    for call_id, payload in zip(ids, payloads, strict=True):
                        assert call_id in self.pending, "a value of a call that has ended"
                        assert call_id in self.streaming
                        assert self.callers[self.caller_of[call_id]] is command.caller, "a value at another caller"
                        assert payload == b"value %d of %d" % (self.values[call_id], call_id), "lost, or come twice"
                        self.values[call_id] += 1
                case TakeValues(replica, run_id, count):
                    self.taken[replica, run_id] += count
                case DeliverDone(ids=ids):
                    assert self.streaming.issuperset(ids), "no result of a call that wants one"
                    self.settle(command.caller, ids, "done")
                case AskReconcile() | DeliverSlot():
                    raise AssertionError("nobody has a session, or wants a slot")
        if not self.lazy:
            self.cut_all()

    def cut_all(self) -> None:
        while self.to_flush:
            self.cut_one(next(iter(self.to_flush)), 100)

    def cut_one(self, replica: Replica, max_calls: int) -> None:
        self.to_flush.pop(replica, None)
        refused: list[int] = []
        for batch in self.scheduler.cut_frame(replica, max_calls, 10**6):
            refused += self.sent(self.held[replica.key], batch)
        if replica.outbox:
            self.to_flush[replica] = None
        if refused:
            self.do(self.scheduler.refused(replica, refused, STALE, ROOM, self.now))

    def sent(self, held: Held, batch: OutgoingBatch) -> list[int]:
        """Takes a batch; returns the run ids that the replica does not take."""
        assert held.linked, "sent to a replica that is not linked"
        assert 0 < len(batch.payloads) <= MAX_BATCH_SIZE
        refused: list[int] = []
        for at, payload in enumerate(batch.payloads):
            run_id = batch.first_run_id + at
            assert run_id not in held.runs
            call_id = int(joined(payload))
            key, partition, owner_epoch = batch.lane(at)
            if held.is_dark:
                assert (key, partition) == ("", -1), "a copy that travels with a key"
                held.runs[run_id] = (call_id, "", 0)
                continue
            call = self.pending[call_id]
            assert key == call.key, "a call travels under another key"
            assert self.now < call.deadline, "sent after its deadline"
            if key:
                assert call_id > self.last_sent[key], "a call overtook another one of its key"
                others = [run for other in self.held.values() if other is not held for run in other.runs.values()]
                assert all(k != key for _, k, _ in others), "sent to a new owner before the old one answered"
                owner, epoch = self.owners[partition]
                assert owner_epoch <= epoch
                assert owner_epoch < epoch or held.replica.key == owner
                if owner_epoch <= held.fences.get(partition, -1):
                    refused.append(run_id)
                    continue
                self.last_sent[key] = call_id
            held.runs[run_id] = (call_id, key, owner_epoch)
        assert held.unkeyed() <= MAX_ONGOING
        assert len(held.runs) - held.unkeyed() + len(refused) <= KEYED_WINDOW
        return refused

    def settle(self, caller: CallerBook, ids: object, outcome: str) -> None:
        for call_id in ids:  # type: ignore[attr-defined]  # a sequence of ids
            assert call_id not in self.outcomes, f"two outcomes: {self.outcomes[call_id]} and {outcome}"
            assert self.callers[self.caller_of[call_id]] is caller, "an outcome at another caller"
            del self.pending[call_id]
            self.outcomes[call_id] = outcome

    def come_again(self, runs: list[tuple[int, str, int]]) -> None:
        """Calls that a replica had may be sent again."""
        for call_id, key, _ in runs:
            if key:
                self.last_sent[key] = min(self.last_sent[key], call_id - 1)

    # -- events ----------------------------------------------------------------------------------------------------

    @rule(
        who=st.integers(0, 1),
        sizes=st.lists(st.tuples(st.integers(1, 7), st.sampled_from(("", "", *KEYS))), min_size=1, max_size=3),
        shard=st.sampled_from(("", "", "s1", "s2")),
        timeout_s=st.sampled_from((inf, inf, 5.0, 0.0)),
        slo_s=st.sampled_from((None, None, 0.1, 3.0)),
        idempotent=st.booleans(),
        streaming=st.booleans(),
        missing=st.booleans(),
    )
    def submit(
        self,
        *,
        who: int,
        sizes: list[tuple[int, str]],
        shard: str,
        timeout_s: float,
        slo_s: float | None,
        idempotent: bool,
        streaming: bool,
        missing: bool,
    ) -> None:
        if not self.exists and not missing:
            self.exists = True
            self.table()
        batches = []
        for count, key in sizes:
            options = CallOptions(
                ordering_key=key,
                partition=partition_of(key) if key else -1,
                shard_key="" if key else shard,
                timeout_s=timeout_s,
                slo_s=slo_s,
                idempotent=idempotent,
                streaming=streaming,
                wire=repr((timeout_s, idempotent, streaming)).encode(),
            )
            ids = range(self.next_id, self.next_id + count)
            self.next_id += count
            if streaming:
                self.streaming.update(ids)
            for call_id in ids:
                self.pending[call_id] = Call(key, self.now + timeout_s, idempotent)
                self.caller_of[call_id] = who
            batches.append((options, ids, [b"%d" % i for i in ids]))
        self.do(self.scheduler.submit(self.callers[who], "e", batches, self.now))

    @rule()
    def be_lazy(self) -> None:
        self.lazy = not self.lazy
        if not self.lazy:
            self.cut_all()

    @rule(
        data=st.data(),
        service_s=st.sampled_from((0.0, 1e-5, 0.0004, 0.1)),
        batch_size=st.sampled_from((0, 0, 3)),
    )
    def tell_times(self, data: st.DataObject, service_s: float, batch_size: int) -> None:
        if self.held:
            held = data.draw(st.sampled_from(list(self.held.values())))
            self.scheduler.times_told(held.replica, {"": MethodTime(service_s, batch_size)})

    @precondition(lambda self: self.to_flush)
    @rule(data=st.data(), max_calls=st.integers(1, 5))
    def cut(self, data: st.DataObject, max_calls: int) -> None:
        replica = data.draw(st.sampled_from(sorted(self.to_flush, key=lambda each: each.key)))
        self.cut_one(replica, max_calls)

    @precondition(lambda self: len(self.listed) < 5)
    @rule(backend=st.sampled_from(("b1", "b2", DARK)), at_once=st.booleans())
    def join(self, backend: str, at_once: bool) -> None:
        self.lives += 1
        self.listed[f"r{self.lives}", "life"] = backend
        self.table()
        if at_once:
            self.link_up(self.held[f"r{self.lives}", "life"])

    @precondition(lambda self: self.unlinked())
    @rule(data=st.data())
    def link(self, data: st.DataObject) -> None:
        self.link_up(data.draw(st.sampled_from(self.unlinked())))

    def unlinked(self) -> list[Held]:
        return [held for held in self.held.values() if not held.linked and held.replica.key in self.listed]

    def link_up(self, held: Held) -> None:
        held.linked = True
        self.do(self.scheduler.link_up(held.replica, ROOM, self.now))

    @rule(data=st.data())
    def break_link(self, data: st.DataObject) -> None:
        linked = [held for held in self.held.values() if held.linked]
        if linked:
            self.cut_off(data.draw(st.sampled_from(linked)))

    def cut_off(self, held: Held) -> None:
        held.linked = False
        read = {call_id for call_id, _, _ in held.runs.values() if self.values[call_id] and not held.is_dark}
        self.come_again(list(held.runs.values()))
        held.runs.clear()
        held.yielded.clear()
        self.to_flush.pop(held.replica, None)
        self.do(self.scheduler.link_down(held.replica, "cut", self.now))
        assert not held.replica.outbox
        assert self.pending.keys().isdisjoint(read), "executed again, though its caller has values"

    @precondition(lambda self: self.busy())
    @rule(data=st.data(), fail=st.booleans(), report=st.booleans())
    def complete(self, data: st.DataObject, fail: bool, report: bool) -> None:
        held = data.draw(st.sampled_from(self.busy()))
        chosen = data.draw(st.sets(st.sampled_from(held.running()), min_size=1))
        ids = data.draw(st.permutations(sorted(chosen)))
        calls = [held.runs.pop(run_id)[0] for run_id in ids]
        capacity = ROOM if report else None
        if fail:
            failure = Failure(reason=Reason.HANDLER_ERROR, message="ValueError: no", executed=Executed.YES)
            self.do(self.scheduler.completed(held.replica, [], [(ids, failure)], capacity, self.now))
        else:
            ended = dict(zip(ids, calls, strict=True))
            done = [run_id for run_id, call_id in ended.items() if call_id in self.streaming]
            ids = [run_id for run_id in ids if run_id not in done]
            results = [(ids, [b"result %d" % ended[run_id] for run_id in ids], "")] if ids else []
            self.do(self.scheduler.completed(held.replica, results, [], capacity, self.now, done))

    def busy(self) -> list[Held]:
        return [held for held in self.held.values() if held.runs]

    @precondition(lambda self: self.busy())
    @rule(data=st.data(), ends=st.booleans())
    def give_values(self, data: st.DataObject, ends: bool) -> None:
        """Handlers yield, in turns; the first of them may end in the same frame."""
        held = data.draw(st.sampled_from(self.busy()))
        ids = data.draw(st.lists(st.sampled_from(held.running()), min_size=1, max_size=6))
        call_of = {run_id: held.runs[run_id][0] for run_id in ids}
        is_read = {
            run_id: not held.is_dark and call_id in self.streaming and call_id in self.pending
            for run_id, call_id in call_of.items()
        }
        before = {run_id: (self.values[call_of[run_id]], self.taken[held.replica, run_id]) for run_id in ids}
        payloads = []
        for run_id in ids:
            payloads.append(b"value %d of %d" % (held.yielded[run_id], call_of[run_id]))
            held.yielded[run_id] += 1
        done = ids[:1] if ends and call_of[ids[0]] in self.streaming else []
        for run_id in done:
            del held.runs[run_id]
        self.do(self.scheduler.completed(held.replica, [], [], None, self.now, done, [(ids, payloads, "")]))
        for run_id, call_id in call_of.items():
            values, taken = before[run_id]
            count = ids.count(run_id)
            assert self.values[call_id] - values == (count if is_read[run_id] else 0)
            is_unwanted = held.is_dark or call_id not in self.streaming
            assert self.taken[held.replica, run_id] - taken == (count if is_unwanted else 0)

    @rule(data=st.data())
    def repeat_an_answer(self, data: st.DataObject) -> None:
        """A replica that answers what it has answered, or never got, changes nothing."""
        linked = [held for held in self.held.values() if held.linked]
        if linked:
            held = data.draw(st.sampled_from(linked))
            run_id = data.draw(st.integers(1, 60))
            if run_id not in held.runs:
                self.do(self.scheduler.completed(held.replica, [([run_id], [b"ghost"], "")], [], None, self.now))

    @precondition(lambda self: self.busy())
    @rule(data=st.data(), others=st.integers(0, MAX_ONGOING))
    def refuse_unkeyed(self, data: st.DataObject, others: int) -> None:
        held = data.draw(st.sampled_from(self.busy()))
        ids = sorted(run_id for run_id, (_, key, _) in held.runs.items() if not key and run_id not in held.yielded)
        if not ids:
            return
        chosen = sorted(data.draw(st.sets(st.sampled_from(ids), min_size=1)))
        for run_id in chosen:
            del held.runs[run_id]
        # full: what it still holds fills it
        for taken in (MAX_ONGOING, others, 0):
            capacity = Capacity(max_ongoing=MAX_ONGOING, keyed_window=KEYED_WINDOW, others=taken)
            if taken == MAX_ONGOING:
                self.do(self.scheduler.refused(held.replica, chosen, FULL, capacity, self.now))
            elif held.replica.key in self.held:
                self.do(self.scheduler.capacity_changed(held.replica, capacity, self.now))

    @precondition(lambda self: self.busy())
    @rule(data=st.data())
    def refuse_keyed(self, data: st.DataObject) -> None:
        """The owner refuses a key from some call on, and keeps refusing at that epoch."""
        held = data.draw(st.sampled_from(self.busy()))
        keys = sorted({key for _, key, _ in held.runs.values() if key})
        if not keys:
            return
        number = partition_of(data.draw(st.sampled_from(keys)))
        ids = sorted(run_id for run_id, (_, k, _) in held.runs.items() if k and partition_of(k) == number)
        started = sum(run_id in held.yielded for run_id in ids)
        if started == len(ids):
            return
        kept = data.draw(st.integers(started, len(ids) - 1))
        back = ids[kept:]
        held.fences[number] = max(held.runs[run_id][2] for run_id in back)
        self.come_again([held.runs.pop(run_id) for run_id in back])
        self.do(self.scheduler.refused(held.replica, back, STALE, ROOM, self.now))

    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        linked = [held for held in self.held.values() if held.linked]
        if linked:
            self.do(self.scheduler.draining(data.draw(st.sampled_from(linked)).replica, self.now))

    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def move_partition(self, data: st.DataObject, key: str) -> None:
        number = partition_of(key)
        owners = [key for key, backend in self.listed.items() if backend != DARK]
        owner = data.draw(st.sampled_from([None, *owners]))
        self.owners[number] = (owner, self.owners[number][1] + 1)
        self.table()

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.listed:
            key = data.draw(st.sampled_from(list(self.listed)))
            del self.listed[key]
            rest = [each for each, backend in self.listed.items() if backend != DARK]
            for number, (owner, epoch) in self.owners.items():
                if owner == key:
                    self.owners[number] = (rest[0] if rest else None, epoch + 1)
            self.table()

    @rule(policy=st.sampled_from(POLICIES), share=st.sampled_from((0.0, 0.3, 1.0)))
    def set_traffic(self, policy: dict[str, float] | None, share: float) -> None:
        self.policy, self.shadows = policy, {DARK: share}
        self.table()

    @rule(balancer=st.sampled_from(BalancerName))
    def set_balancer(self, balancer: BalancerName) -> None:
        self.balancer = balancer
        self.table()

    @rule()
    def remove_or_create_endpoint(self) -> None:
        self.exists = not self.exists
        self.table()
        if not self.exists:
            waiting = [run for caller in self.callers for run in caller.runs if run.waiting]
            assert not waiting, "calls of an endpoint that is gone wait"
            for number, (owner, epoch) in self.owners.items():
                self.owners[number] = (owner, epoch + 1)  # epochs of one name never come twice

    @rule()
    def old_table(self) -> None:
        before = self.scheduler.topology.table
        self.do(self.scheduler.apply(RoutingTable(generation="g", revision=self.revision - 1), self.now))
        assert self.scheduler.topology.table is before

    @rule(seconds=st.floats(0.1, 20.0))
    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.do(self.scheduler.expire(self.now))
        assert all(call.deadline > self.now for call in self.pending.values()), "a deadline passed without an outcome"

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def cancel_calls(self, data: st.DataObject) -> None:
        ids = data.draw(st.sets(st.sampled_from(sorted(self.pending)), min_size=1))
        who = self.caller_of[min(ids)]
        low, high = min(ids), max(ids)
        ranges = data.draw(st.sampled_from(([(i, i) for i in ids], [(low, high)], [(high, high), (0, low)])))
        self.do(self.scheduler.cancel_calls(self.callers[who], ranges, self.now))
        for call_id in self.pending:
            taken_back = any(first <= call_id <= last for first, last in ranges)
            assert not taken_back or self.caller_of[call_id] != who

    @precondition(lambda self: self.pending)
    @rule(who=st.integers(0, 1))
    def caller_leaves(self, who: int) -> None:
        self.do(self.scheduler.cancel(self.callers[who], self.now))
        assert not any(self.caller_of[call_id] == who for call_id in self.pending)
        assert not self.callers[who].runs

    # -- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        runs = [run for caller in self.callers for run in caller.runs]
        assert sum(run.unanswered for run in runs) == len(self.pending)
        assert set(self.outcomes).isdisjoint(self.pending)
        for held in self.held.values():
            unsent = [(sent.count, sent.run.partition) for sent in held.replica.outbox]
            assert held.replica.own == held.unkeyed() + sum(count for count, key in unsent if key is None)
            keyed = len(held.runs) - held.unkeyed()
            assert held.replica.keyed == keyed + sum(count for count, key in unsent if key is not None)
            assert not unsent or held.replica in self.to_flush, "something is to be sent, and nobody was told"
        topology = self.scheduler.topology
        accounts = [each.account for each in topology.backends.values()]
        accounts += [each.account for each in topology.endpoints.values()]
        charged = [run for run in runs if run.account is not None and run.waiting]
        assert {run for run in runs if run.waiting} == set(charged)
        for account in accounts:
            mine = [run for run in charged if run.account is account]
            assert account.calls == sum(run.waiting for run in mine)
            assert account.size == sum(len(payload) for run in mine for payload in run.payloads[run.cursor :])
            for caller in self.callers:
                waiting = sum(run.waiting for run in mine if run.caller is caller)
                assert account.waiting_of(caller.flow) == waiting
        assert all(run.account in accounts for run in charged)
        for backend in topology.backends.values():
            taking = [each for each in backend.replicas.values() if each.linked and not each.draining]
            assert backend.candidates == len(taking)

    @invariant()
    def nothing_idles(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for backend in self.scheduler.topology.backends.values():
            if backend.queue.head() is not None:
                assert all(replica.free <= 0 for replica in backend.replicas.values())
        for partition in self.scheduler.topology.partitions():
            if partition.queue.head() is not None and partition.sendable:
                assert partition.owner is not None
                assert partition.owner.keyed_room <= 0

    def teardown(self) -> None:
        """In the end, every call has its one outcome, and nothing is kept."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(3):  # what is lost and idempotent is sent again, and lost again
            self.now += QUEUE_TIME_S + 1
            self.do(self.scheduler.expire(self.now))
            for held in list(self.held.values()):
                if held.linked:
                    self.cut_off(held)
        self.now += QUEUE_TIME_S + 1
        self.do(self.scheduler.expire(self.now))
        assert not self.pending
        assert len(self.outcomes) == self.next_id - 1
        assert not any(caller.runs for caller in self.callers)
        assert not self.scheduler.shadows_under_way
        assert self.scheduler.next_deadline() is None


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=250, stateful_step_count=50, deadline=None)
