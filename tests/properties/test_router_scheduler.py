"""The router's scheduler against a naive model, under arbitrary interleavings.

The model remembers every call that was submitted and every call that a replica holds; it knows nothing of queues. Three
callers, on behalf of tenants and without, call two endpoints with three backends and two shadows; replicas come, drain,
refuse, break and go; frames are cut at once or late, whole or in parts.
"""

from __future__ import annotations

from math import inf
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router_service.core.events import (
    CallerLeft,
    CallsCancelled,
    CapacityReported,
    DrainAnnounced,
    HandlerStateReported,
    RouterTimePassed,
    RunsCompleted,
    RunsRefused,
    ServiceTimesReported,
    TableReceived,
)
from router_service.core.features.broadcasts import BroadcastClosed, BroadcastOutcomesTaken
from router_service.core.limits.capacity import MethodTime, ReportedCapacity
from router_service.core.routing_table import RoutingTable
from slotmesh.calls.handler_figures import Evicted
from slotmesh.calls.key_hash import partition_of
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.spec.model import Affinity, Prospect
from tests.properties.router_invariants import ALWAYS, nothing_is_left
from tests.properties.router_model import RouterModel
from tests.properties.router_model_parts import (
    BACKENDS,
    CALLERS,
    DARK,
    FULL,
    KEYED_WINDOW,
    KEYS,
    KEYS_OF,
    MAX_ONGOING,
    POLICIES,
    PREFERENCES,
    ROOM,
    STALE,
    TENANTS,
)
from tests.support.erratic_balancer import ALL_BALANCERS
from tests.support.examples import examples


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32), balancer=st.sampled_from(ALL_BALANCERS), has_shadow=st.booleans())
    def start(self, seed: int, balancer: str, has_shadow: bool) -> None:
        self.model = RouterModel(seed, balancer)
        if not has_shadow:
            self.set_traffic(POLICIES[1], 0.0)
        for who, kind in enumerate(("plain", "streaming", "silent")):
            self.submit(
                who=who,
                endpoint="ef"[who % 2],
                sizes=[(2, 0), (3, 1), (1, 2)],
                tenant=TENANTS[who],
                shard="",
                prefers={},
                timeout_s=inf,
                slo_s=None,
                idempotent=True,
                kind=kind,
                missing=False,
            )

    # -- events ----------------------------------------------------------------------------------------------------

    @rule(
        who=st.integers(0, CALLERS - 1),
        endpoint=st.sampled_from(("e", "e", "f")),
        sizes=st.lists(st.tuples(st.integers(1, 7), st.sampled_from((0, 0, 1, 2, 3))), min_size=1, max_size=3),
        tenant=st.sampled_from(TENANTS),
        shard=st.sampled_from(("", "", "s1", "s2")),
        prefers=st.sampled_from(PREFERENCES),
        timeout_s=st.sampled_from((inf, inf, 5.0, 0.0)),
        slo_s=st.sampled_from((None, None, 0.1, 3.0)),
        idempotent=st.booleans(),
        kind=st.sampled_from(("plain", "plain", "streaming", "silent")),
        missing=st.booleans(),
    )
    def submit(
        self,
        *,
        who: int,
        endpoint: str,
        sizes: list[tuple[int, int]],
        tenant: str,
        shard: str,
        prefers: dict[str, Any],
        timeout_s: float,
        slo_s: float | None,
        idempotent: bool,
        kind: str,
        missing: bool,
    ) -> None:
        """`sizes`: calls of each batch, and which key of the endpoint they have; 0: none."""
        if not self.model.exists and not missing:
            self.model.exists = True
            self.model.table()
        said: dict[str, Any] = {"tenant": tenant, "timeout_s": timeout_s, "slo_s": slo_s, "idempotent": idempotent}
        said |= {"shard_key": shard, "model_id": "", **prefers}
        self.model.submit(who, endpoint, sizes, kind, **said)

    @precondition(lambda self: self.model.exists)
    @rule(
        who=st.integers(0, CALLERS - 1),
        endpoint=st.sampled_from(("e", "f")),
        numbers=st.lists(st.integers(0, 2), min_size=1, max_size=8),
        timeout_s=st.sampled_from((inf, inf, 5.0, 0.0)),
        tenant=st.sampled_from(TENANTS),
        idempotent=st.booleans(),
    )
    def submit_many_keys(
        self, who: int, endpoint: str, numbers: list[int], timeout_s: float, tenant: str, *, idempotent: bool
    ) -> None:
        keys = [KEYS_OF[endpoint][number] for number in numbers]
        self.model.submit_many_keys(who, endpoint, keys, timeout_s, tenant, idempotent=idempotent)

    @precondition(lambda self: len(self.model.targets) < 4)
    @rule(
        endpoint=st.sampled_from(("e", "f")),
        backend=st.sampled_from(("", "", "b1", "dark")),
        timeout_s=st.sampled_from((20.0, 5.0, 0.0)),
        tenant=st.sampled_from(TENANTS),
    )
    def broadcast(self, endpoint: str, backend: str, timeout_s: float, tenant: str) -> None:
        self.model.broadcast(endpoint, backend, timeout_s, tenant)

    @precondition(lambda self: self.model.targets)
    @rule(data=st.data(), leaves=st.booleans())
    def end_broadcast(self, data: st.DataObject, leaves: bool) -> None:
        """Its client takes all outcomes, or leaves."""
        caller = data.draw(st.sampled_from(list(self.model.targets)))
        ids = range(1, len(self.model.targets[caller]) + 1)
        if not leaves:
            number = self.model.callers.index(caller)
            ended = [at for at in ids if self.model.pinned_id(number, at) in self.model.outcomes]
            self.model.step(BroadcastOutcomesTaken(caller, ended))
            return
        self.model.step(CallerLeft(caller))
        self.model.step(BroadcastClosed(caller))
        assert not caller.runs

    @rule()
    def be_lazy(self) -> None:
        self.model.lazy = not self.model.lazy
        if not self.model.lazy:
            self.model.cut_all()

    @rule(
        data=st.data(),
        service_s=st.sampled_from((0.0, 1e-5, 0.0004, 0.1)),
        batch_size=st.sampled_from((0, 0, 3)),
    )
    def tell_times(self, data: st.DataObject, service_s: float, batch_size: int) -> None:
        if self.model.held:
            held = data.draw(st.sampled_from(list(self.model.held.values())))
            self.model.step(ServiceTimesReported(held.replica, {"": MethodTime(service_s, batch_size)}))

    @rule(
        data=st.data(),
        models=st.none() | st.frozensets(st.sampled_from(("m1", "m2", "m3"))),
        most=st.integers(0, 2),
        blocks=st.lists(st.integers(1, 5), max_size=3),
        is_all=st.booleans(),
    )
    def report_state(
        self, data: st.DataObject, models: frozenset[str] | None, most: int, blocks: list[int], *, is_all: bool
    ) -> None:
        linked = [held for held in self.model.held.values() if held.linked]
        if linked:
            replica = data.draw(st.sampled_from(linked)).replica
            evicted = Evicted(tuple(blocks), is_all)
            self.model.step(HandlerStateReported(replica, {"load": float(most)}, models, evicted, most))

    @precondition(lambda self: self.model.to_flush)
    @rule(data=st.data(), max_calls=st.integers(1, 5))
    def cut(self, data: st.DataObject, max_calls: int) -> None:
        replica = data.draw(st.sampled_from(sorted(self.model.to_flush, key=lambda each: each.key)))
        self.model.cut_one(replica, max_calls)

    @precondition(lambda self: len(self.model.listed) < 9)
    @rule(backend=st.sampled_from((*BACKENDS, *DARK)), at_once=st.booleans())
    def join(self, backend: str, at_once: bool) -> None:
        self.model.lives += 1
        self.model.listed[f"r{self.model.lives}", "life"] = backend
        self.model.table()
        if at_once:
            self.model.link_up(self.model.held[f"r{self.model.lives}", "life"])

    @precondition(lambda self: self.model.unlinked())
    @rule(data=st.data())
    def link(self, data: st.DataObject) -> None:
        self.model.link_up(data.draw(st.sampled_from(self.model.unlinked())))

    @rule(data=st.data())
    def break_link(self, data: st.DataObject) -> None:
        linked = [held for held in self.model.held.values() if held.linked]
        if linked:
            self.model.cut_off(data.draw(st.sampled_from(linked)))

    @precondition(lambda self: self.model.busy())
    @rule(data=st.data(), fail=st.booleans(), report=st.booleans())
    def complete(self, data: st.DataObject, fail: bool, report: bool) -> None:
        held = data.draw(st.sampled_from(self.model.busy()))
        chosen = data.draw(st.sets(st.sampled_from(held.running()), min_size=1))
        ids = data.draw(st.permutations(sorted(chosen)))
        calls = [held.runs.pop(run_id)[0] for run_id in ids]
        capacity = ROOM if report else None
        if fail:
            failure = Failure(reason=Reason.HANDLER_ERROR, message="ValueError: no", executed=Executed.YES)
            self.model.step(RunsCompleted(held.replica, [], [(ids, failure)], capacity))
        else:
            ended = dict(zip(ids, calls, strict=True))
            without = self.model.streaming | self.model.silent
            done = [run_id for run_id, call_id in ended.items() if call_id in without]
            ids = [run_id for run_id in ids if run_id not in done]
            results = [(ids, self.model.payloads("result %d", [ended[each] for each in ids]), "")] if ids else []
            self.model.step(RunsCompleted(held.replica, results, [], capacity, done))

    @precondition(lambda self: self.model.busy())
    @rule(data=st.data(), ends=st.booleans())
    def give_values(self, data: st.DataObject, ends: bool) -> None:
        """Handlers yield, in turns; the first of them may end in the same frame."""
        held = data.draw(st.sampled_from(self.model.busy()))
        ids = data.draw(st.lists(st.sampled_from(held.running()), min_size=1, max_size=6))
        call_of = {run_id: held.runs[run_id][0] for run_id in ids}
        is_read = {
            run_id: not held.is_dark and call_id in self.model.streaming and call_id in self.model.pending
            for run_id, call_id in call_of.items()
        }
        before = {
            run_id: (self.model.values[call_of[run_id]], self.model.taken[held.replica, run_id]) for run_id in ids
        }
        payloads = []
        for run_id in ids:
            payloads.append(b"value %d of %d" % (held.yielded[run_id], call_of[run_id]))
            held.yielded[run_id] += 1
        done = ids[:1] if ends and call_of[ids[0]] in self.model.streaming else []
        for run_id in done:
            del held.runs[run_id]
        self.model.step(RunsCompleted(held.replica, [], [], None, done, [(ids, payloads, "")]))
        for run_id, call_id in call_of.items():
            values, taken = before[run_id]
            count = ids.count(run_id)
            assert self.model.values[call_id] - values == (count if is_read[run_id] else 0)
            is_unwanted = held.is_dark or call_id not in self.model.streaming
            assert self.model.taken[held.replica, run_id] - taken == (count if is_unwanted else 0)

    @rule(data=st.data())
    def repeat_an_answer(self, data: st.DataObject) -> None:
        """A replica that answers what it has answered, or never got, changes nothing."""
        linked = [held for held in self.model.held.values() if held.linked]
        if linked:
            held = data.draw(st.sampled_from(linked))
            run_id = data.draw(st.integers(1, 60))
            if run_id not in held.runs:
                self.model.step(RunsCompleted(held.replica, [([run_id], [b"ghost"], "")], [], None))

    @precondition(lambda self: self.model.busy())
    @rule(data=st.data(), others=st.integers(0, MAX_ONGOING))
    def refuse_unkeyed(self, data: st.DataObject, others: int) -> None:
        held = data.draw(st.sampled_from(self.model.busy()))
        ids = sorted(run_id for run_id, (_, key, _) in held.runs.items() if not key and run_id not in held.yielded)
        if not ids:
            return
        chosen = sorted(data.draw(st.sets(st.sampled_from(ids), min_size=1)))
        for run_id in chosen:
            self.model.executing.discard(held.runs.pop(run_id)[0])
        # full: what it still holds fills it
        for taken in (MAX_ONGOING, others, 0):
            capacity = ReportedCapacity(max_ongoing=MAX_ONGOING, keyed_window=KEYED_WINDOW, others=taken)
            if taken == MAX_ONGOING:
                self.model.step(RunsRefused(held.replica, chosen, FULL, capacity))
            elif held.replica.key in self.model.held:
                self.model.step(CapacityReported(held.replica, capacity))

    @precondition(lambda self: self.model.busy())
    @rule(data=st.data())
    def refuse_keyed(self, data: st.DataObject) -> None:
        """The owner refuses a key from some call on, and keeps refusing at that epoch."""
        held = data.draw(st.sampled_from(self.model.busy()))
        keys = sorted({key for _, key, _ in held.runs.values() if key})
        if not keys:
            return
        number = partition_of(data.draw(st.sampled_from(keys)))
        ids = sorted(run_id for run_id, (_, k, _) in held.runs.items() if k and partition_of(k) == number)
        started = sum(run_id in held.yielded for run_id in ids)
        if started == len(ids):
            return
        back = ids[data.draw(st.integers(started, len(ids) - 1)) :]
        held.fences[number] = max(held.runs[run_id][2] for run_id in back)
        self.model.come_again([held.runs.pop(run_id) for run_id in back])
        self.model.step(RunsRefused(held.replica, back, STALE, ROOM))

    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        linked = [held for held in self.model.held.values() if held.linked]
        if linked:
            self.model.step(DrainAnnounced(data.draw(st.sampled_from(linked)).replica))

    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def move_partition(self, data: st.DataObject, key: str) -> None:
        number = partition_of(key)
        owners = [key for key, backend in self.model.listed.items() if backend not in DARK]
        owner = data.draw(st.sampled_from([None, *owners]))
        self.model.owners[number] = (owner, self.model.owners[number][1] + 1)
        self.model.table()

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.model.listed:
            key = data.draw(st.sampled_from(list(self.model.listed)))
            del self.model.listed[key]
            rest = [each for each, backend in self.model.listed.items() if backend not in DARK]
            for number, (owner, epoch) in self.model.owners.items():
                if owner == key:
                    self.model.owners[number] = (rest[0] if rest else None, epoch + 1)
            self.model.table()

    @rule(policy=st.sampled_from(POLICIES), share=st.sampled_from((0.0, 0.3, 1.0)))
    def set_traffic(self, policy: dict[str, float] | None, share: float) -> None:
        self.model.policy, self.model.shadows = policy, {DARK[0]: share, DARK[1]: share / 2}
        self.model.table()

    @rule(data=st.data(), name=st.sampled_from(BACKENDS), says=st.sampled_from(Prospect))
    def set_backend(self, data: st.DataObject, name: str, says: Prospect) -> None:
        self.model.suspects = {key for key in self.model.listed if data.draw(st.booleans())}
        self.model.balancer, self.model.prospects[name] = data.draw(st.sampled_from(ALL_BALANCERS)), says
        self.model.affinity = data.draw(st.sampled_from(Affinity))
        self.model.table()

    @rule()
    def remove_or_create_endpoint(self) -> None:
        self.model.exists = not self.model.exists
        self.model.table()
        if not self.model.exists:
            runs = [run for caller in self.model.callers[:CALLERS] for run in caller.runs if run.waiting]
            waiting = [run for run in runs if run.endpoint == "e"]
            assert not waiting, "calls of an endpoint that is gone wait"
            for number, (owner, epoch) in self.model.owners.items():
                self.model.owners[number] = (owner, epoch + 1)  # epochs of one name never come twice

    @rule()
    def old_table(self) -> None:
        before = self.model.scheduler.topology.table
        self.model.step(TableReceived(RoutingTable(generation="g", revision=self.model.revision - 1)))
        assert self.model.scheduler.topology.table is before

    @rule(seconds=st.floats(0.1, 20.0))
    def advance(self, seconds: float) -> None:
        self.model.now += seconds
        self.model.step(RouterTimePassed())
        is_late = any(call.deadline <= self.model.now for call in self.model.pending.values())
        assert not is_late, "a deadline passed without an outcome"

    @precondition(lambda self: any(each > 0 for each in self.model.pending))
    @rule(data=st.data())
    def cancel_calls(self, data: st.DataObject) -> None:
        own = sorted(each for each in self.model.pending if each > 0)
        ids = data.draw(st.sets(st.sampled_from(own), min_size=1))
        who = self.model.caller_of[min(ids)]
        low, high = min(ids), max(ids)
        ranges = data.draw(st.sampled_from(([(i, i) for i in ids], [(low, high)], [(high, high), (0, low)])))
        self.model.step(CallsCancelled(self.model.callers[who], ranges))
        for call_id in self.model.pending:
            taken_back = any(first <= call_id <= last for first, last in ranges)
            assert not taken_back or self.model.caller_of[call_id] != who

    @precondition(lambda self: self.model.pending)
    @rule(who=st.integers(0, CALLERS - 1))
    def caller_leaves(self, who: int) -> None:
        self.model.step(CallerLeft(self.model.callers[who]))
        assert not any(self.model.caller_of[call_id] == who for call_id in self.model.pending)
        assert not self.model.callers[who].runs

    @invariant()
    def what_always_holds(self) -> None:
        for holds in ALWAYS:
            holds(self.model)

    def teardown(self) -> None:
        if hasattr(self, "model"):
            nothing_is_left(self.model)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=examples(250), stateful_step_count=50, deadline=None)
