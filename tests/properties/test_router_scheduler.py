"""The router's scheduler against a naive model, under arbitrary interleavings.

The model remembers every call that was submitted and every slice that a replica holds; it knows nothing of queues.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router_service.core.callers import Caller, Window
from router_service.core.calls import CallOptions, Sent
from router_service.core.commands import (
    CancelRun,
    CloseLink,
    Command,
    DeliverFailure,
    DeliverResults,
    OpenLink,
    SendRun,
)
from router_service.core.replicas import Capacity, Replica
from router_service.core.scheduler import Scheduler
from router_service.core.table import BackendRoute, EndpointRoute, ReplicaKey, ReplicaRoute, RoutingTable
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.partitions import PARTITIONS, partition_of

MAX_ONGOING = 4
KEYED_WINDOW = 6
MAX_QUEUED = 24
QUEUE_TIME_S = 30.0
KEYS = ("red", "green", "blue")
FULL = Failure(reason=Reason.QUEUE_FULL, message="full")
ROOM = Capacity(max_ongoing=MAX_ONGOING, keyed_window=KEYED_WINDOW)
STALE = Failure(reason=Reason.STALE_TABLE, message="not the owner")


@dataclass
class Held:
    """What one replica holds: run id -> (call id, key, epoch)."""

    replica: Replica
    linked: bool = False
    runs: dict[int, tuple[int, str, int]] = field(default_factory=dict)
    fences: dict[int, int] = field(default_factory=dict)
    """Partition -> it refuses keyed runs at this epoch and below."""

    def unkeyed(self) -> int:
        return sum(1 for _, key, _ in self.runs.values() if not key)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(chance=st.floats(0, 0.999))
    def start(self, chance: float) -> None:
        self.scheduler = Scheduler(lambda: chance)
        self.now = 0.0
        self.revision = 0
        self.next_id = 1
        self.lives = 0
        self.caller = Caller(Window(calls=10**6, bytes=10**9))
        self.pending: dict[int, tuple[str, float]] = {}
        """Calls without outcome: key and deadline."""
        self.outcomes: dict[int, str] = {}
        self.last_sent: dict[str, int] = defaultdict(int)
        self.held: dict[ReplicaKey, Held] = {}
        self.listed: list[ReplicaKey] = []
        self.owners: dict[int, tuple[ReplicaKey | None, int]] = {partition_of(key): (None, 0) for key in KEYS}
        self.exists = True
        self.listed += [("r-a", "life"), ("r-b", "life")]
        self.owners = dict.fromkeys(self.owners, (self.listed[0], 1))
        self.table()
        for key in self.listed:
            self.held[key].linked = True
            self.do(self.scheduler.link_up(self.held[key].replica, ROOM))

    # -- the world -------------------------------------------------------------------------------------------------

    def table(self) -> None:
        """Pushes the table that follows from the model."""
        self.revision += 1
        owners: list[tuple[ReplicaKey | None, int]] = [(None, 0)] * PARTITIONS
        for number, owner in self.owners.items():
            owners[number] = owner
        route = EndpointRoute(name="e", weights={"b": 1.0}, owners=owners)
        backend = BackendRoute(
            name="b",
            replicas=[ReplicaRoute(key=key, address="", max_ongoing=MAX_ONGOING) for key in self.listed],
            max_queued_calls=MAX_QUEUED,
            max_queue_time_s=QUEUE_TIME_S,
        )
        self.do(
            self.scheduler.apply(
                RoutingTable(
                    generation="g",
                    revision=self.revision,
                    endpoints={"e": route} if self.exists else {},
                    backends={"b": backend},
                )
            )
        )

    def do(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case OpenLink(replica):
                    self.held[replica.key] = Held(replica)
                case CloseLink(replica):
                    assert not self.held[replica.key].runs, "disconnected from a replica that owes answers"
                    del self.held[replica.key]
                case SendRun(sent):
                    self.sent(sent)
                case CancelRun(sent):
                    assert sent.abandoned
                case DeliverResults(ids=ids, payloads=payloads):
                    assert [b"result %d" % call_id for call_id in ids] == list(payloads), "a reply at another call"
                    self.settle(ids, "result")
                case DeliverFailure(ids=ids, failure=failure):
                    self.settle(ids, failure.reason.value)

    def sent(self, sent: Sent) -> None:
        held = self.held[sent.replica.key]
        assert held.linked, "sent to a replica that is not linked"
        run = sent.run
        key = run.options.ordering_key
        for offset in range(sent.count):
            call_id = run.ids[sent.lo + offset]
            assert call_id in self.pending, "sent a call that has its outcome"
            assert run.payloads[sent.lo + offset] == b"%d" % call_id
            assert self.now < self.pending[call_id][1], "sent after its deadline"
            if key:
                assert call_id > self.last_sent[key], "a call overtook another one of its key"
                self.last_sent[key] = call_id
                others = [run for other in self.held.values() if other is not held for run in other.runs.values()]
                assert all(k != key for _, k, _ in others), "sent to a new owner before the old one answered"
                assert (sent.replica.key, sent.owner_epoch) == self.owners[partition_of(key)]
                fence = held.fences.get(partition_of(key), -1)
                assert sent.owner_epoch > fence, "sent again at an epoch that was refused"
            assert sent.first + offset not in held.runs
            held.runs[sent.first + offset] = (call_id, key, sent.owner_epoch)
        assert held.unkeyed() <= MAX_ONGOING
        assert len(held.runs) - held.unkeyed() <= KEYED_WINDOW

    def settle(self, ids: object, outcome: str) -> None:
        for call_id in ids:  # type: ignore[attr-defined]  # a sequence of ids
            assert call_id not in self.outcomes, f"two outcomes: {self.outcomes[call_id]} and {outcome}"
            del self.pending[call_id]
            self.outcomes[call_id] = outcome

    # -- events ----------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 7), key=st.sampled_from(("", *KEYS)), timeout_s=st.sampled_from((inf, inf, 5.0, 0.0)))
    def submit(self, count: int, key: str, timeout_s: float) -> None:
        options = CallOptions(ordering_key=key, partition=partition_of(key) if key else -1, timeout_s=timeout_s)
        ids = range(self.next_id, self.next_id + count)
        self.next_id += count
        self.pending.update(dict.fromkeys(ids, (key, self.now + timeout_s)))
        self.do(self.scheduler.submit(self.caller, "e", [(options, ids, [b"%d" % i for i in ids])], self.now))

    @rule()
    def join(self) -> None:
        if len(self.listed) < 3:
            self.lives += 1
            self.listed.append((f"r{self.lives}", "life"))
            self.table()

    @rule(data=st.data())
    def link(self, data: st.DataObject) -> None:
        waiting = [held for held in self.held.values() if not held.linked and held.replica.key in self.listed]
        if waiting:
            held = data.draw(st.sampled_from(waiting))
            held.linked = True
            self.do(self.scheduler.link_up(held.replica, ROOM))

    @rule(data=st.data(), unsent=st.integers(0, 2))
    def break_link(self, data: st.DataObject, unsent: int) -> None:
        linked = [held for held in self.held.values() if held.linked]
        if not linked:
            return
        held = data.draw(st.sampled_from(linked))
        held.linked = False
        newest = list(held.replica.inflight.values())[len(held.replica.inflight) - unsent :] if unsent else []
        whole = [sent for sent in newest if sent.remaining == sent.count]
        for sent in whole:
            if key := sent.run.options.ordering_key:
                self.last_sent[key] = min(self.last_sent[key], sent.run.ids[sent.lo] - 1)
        held.runs.clear()
        self.do(self.scheduler.link_down(held.replica, "cut", whole))

    @rule(data=st.data(), fail=st.booleans(), report=st.booleans())
    def complete(self, data: st.DataObject, fail: bool, report: bool) -> None:
        holding = [held for held in self.held.values() if held.runs]
        if not holding:
            return
        held = data.draw(st.sampled_from(holding))
        chosen = data.draw(st.sets(st.sampled_from(sorted(held.runs)), min_size=1))
        keys = {key for _, key, _ in held.runs.values() if key}
        firsts = {key: min(run_id for run_id, (_, k, _) in held.runs.items() if k == key) for key in keys}
        ids = sorted(r for r in chosen if not held.runs[r][1] or firsts[held.runs[r][1]] == r)
        if not ids:
            return
        ids = data.draw(st.permutations(ids))
        calls = [held.runs.pop(run_id)[0] for run_id in ids]
        capacity = ROOM if report else None
        if fail:
            failure = Failure(reason=Reason.HANDLER_ERROR, message="ValueError: no", executed=Executed.YES)
            self.do(self.scheduler.completed(held.replica, [], [(ids, failure)], capacity))
        else:
            results = [b"result %d" % call_id for call_id in calls]
            self.do(self.scheduler.completed(held.replica, [(ids, results, "")], [], capacity))

    @rule(data=st.data())
    def repeat_an_answer(self, data: st.DataObject) -> None:
        """A replica that answers what it has answered, or never got, changes nothing."""
        linked = [held for held in self.held.values() if held.linked]
        if linked:
            held = data.draw(st.sampled_from(linked))
            run_id = data.draw(st.integers(1, 60))
            if run_id not in held.runs:
                self.do(self.scheduler.completed(held.replica, [([run_id], [b"ghost"], "")]))

    @rule(data=st.data(), others=st.integers(0, MAX_ONGOING))
    def refuse_unkeyed(self, data: st.DataObject, others: int) -> None:
        for held in self.held.values():
            ids = sorted(run_id for run_id, (_, key, _) in held.runs.items() if not key)
            if ids and held.linked:
                chosen = sorted(data.draw(st.sets(st.sampled_from(ids), min_size=1)))
                for run_id in chosen:
                    del held.runs[run_id]
                # full: what it still holds fills it
                capacity = Capacity(max_ongoing=MAX_ONGOING, keyed_window=KEYED_WINDOW, others=MAX_ONGOING)
                self.do(self.scheduler.refused(held.replica, chosen, FULL, capacity))
                capacity = Capacity(max_ongoing=MAX_ONGOING, keyed_window=KEYED_WINDOW, others=others)
                if held.replica.key in self.held:
                    self.do(self.scheduler.capacity_changed(held.replica, capacity))
                    self.do(self.scheduler.capacity_changed(held.replica, ROOM))
                return

    @rule(data=st.data())
    def refuse_keyed(self, data: st.DataObject) -> None:
        """The owner refuses a key from some call on, and keeps refusing at that epoch; then the partition moves."""
        for held in self.held.values():
            keys = sorted({key for _, key, _ in held.runs.values() if key})
            if not keys or not held.linked:
                continue
            key = data.draw(st.sampled_from(keys))
            number = partition_of(key)
            ids = sorted(run_id for run_id, (_, k, _) in held.runs.items() if k and partition_of(k) == number)
            kept = data.draw(st.integers(0, len(ids) - 1))
            back = ids[kept:]
            held.fences[number] = max(held.runs[run_id][2] for run_id in back)
            for run_id in back:
                call_id, k, _ = held.runs.pop(run_id)
                self.last_sent[k] = min(self.last_sent[k], call_id - 1)
            self.do(self.scheduler.refused(held.replica, back, STALE, ROOM))
            return

    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def move_partition(self, data: st.DataObject, key: str) -> None:
        number = partition_of(key)
        owner = data.draw(st.sampled_from([None, *self.listed]))
        self.owners[number] = (owner, self.owners[number][1] + 1)
        self.table()

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.listed:
            key = data.draw(st.sampled_from(self.listed))
            self.listed.remove(key)
            for number, (owner, epoch) in self.owners.items():
                if owner == key:
                    self.owners[number] = (self.listed[0] if self.listed else None, epoch + 1)
            self.table()

    @rule()
    def remove_or_create_endpoint(self) -> None:
        self.exists = not self.exists
        self.table()
        if not self.exists:
            for number, (owner, epoch) in self.owners.items():
                self.owners[number] = (owner, epoch + 1)  # epochs of one name never come twice

    @rule()
    def old_table(self) -> None:
        before = self.scheduler.topology.table
        self.do(self.scheduler.apply(RoutingTable(generation="g", revision=self.revision - 1)))
        assert self.scheduler.topology.table is before

    @rule(seconds=st.floats(0.1, 20.0))
    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.do(self.scheduler.expire(self.now))
        assert all(deadline > self.now for _, deadline in self.pending.values()), "a deadline passed without an outcome"

    @precondition(lambda self: self.pending)
    @rule()
    def caller_leaves(self) -> None:
        self.do(self.scheduler.cancel(self.caller))
        assert not self.pending
        assert not self.caller.runs

    # -- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        assert sum(run.unanswered for run in self.caller.runs) == len(self.pending)
        assert set(self.outcomes).isdisjoint(self.pending)
        for held in self.held.values():
            assert held.replica.own == held.unkeyed()
            assert held.replica.keyed == len(held.runs) - held.unkeyed()
        topology = self.scheduler.topology
        accounts = [each.account for each in topology.backends.values()]
        accounts += [each.account for each in topology.endpoints.values()]
        charged = [run for run in self.caller.runs if run.account is not None and run.waiting]
        for account in accounts:
            assert account.calls == sum(run.waiting for run in charged if run.account is account)
            assert account.size == sum(
                len(payload) for run in charged if run.account is account for payload in run.payloads[run.cursor :]
            )
        assert all(run.account in accounts for run in charged)

    @invariant()
    def nothing_idles(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for backend in self.scheduler.topology.backends.values():
            if backend.queue.head() is not None:
                assert all(replica.free <= 0 for replica in backend.replicas.values())
        for endpoint in self.scheduler.topology.endpoints.values():
            for partition in endpoint.partitions.values():
                if partition.queue.head() is not None and partition.sendable:
                    assert partition.owner is not None
                    assert partition.owner.keyed_room <= 0

    def teardown(self) -> None:
        """In the end, every call has its one outcome."""
        if not hasattr(self, "scheduler"):
            return
        self.now += QUEUE_TIME_S + 1
        self.do(self.scheduler.expire(self.now))
        for held in list(self.held.values()):
            if held.linked:
                held.linked = False
                held.runs.clear()
                self.do(self.scheduler.link_down(held.replica, "the end", ()))
        self.now += QUEUE_TIME_S + 1
        self.do(self.scheduler.expire(self.now))
        assert not self.pending
        assert len(self.outcomes) == self.next_id - 1
        assert not self.caller.runs


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
