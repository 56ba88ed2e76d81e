"""The router's scheduler with slots, against naive replicas, under arbitrary interleavings.

The model knows every caller that waits, and what each replica holds: calls, reservations, slots and what is done in
them. It knows nothing of queues. Calls and reservations of two flows compete for two backends; replicas grant, refuse,
drain, break, restart and go; callers leave at any time, and ask again under the same request id.
"""

from __future__ import annotations

from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router_service.core.calls import (
    Dispatch,
    LeasedSlot,
    OperationAnswer,
    Release,
    ReleasedSlot,
    Renew,
    Reserve,
    RouterCallOptions,
)
from router_service.core.events import (
    CallDispatched,
    CallerLeft,
    CallsSubmitted,
    CapacityReported,
    DrainAnnounced,
    RouterTimePassed,
    RunsCompleted,
    RunsRefused,
    SlotAbandoned,
    SlotOperationRequested,
    SlotOperationsAnswered,
)
from slotmesh.errors import Executed, Failure, Reason
from tests.properties.router_slots_invariants import ALWAYS, nothing_is_left
from tests.properties.router_slots_model import RouterSlotsModel
from tests.properties.router_slots_operations import (
    CHOSEN,
    IDS,
    MAX_ONGOING,
    POLICIES,
    REASONS,
    Leased,
    Operation,
)
from tests.support.erratic_balancer import ALL_BALANCERS
from tests.support.examples import examples


class SlotMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32), balancer=st.sampled_from(ALL_BALANCERS), tells=st.booleans())
    def start(self, seed: int, balancer: str, *, tells: bool) -> None:
        self.model = RouterSlotsModel(seed, balancer, tells=tells)
        for work in (Reserve(), Reserve(replica_id="r0"), Reserve(excluded=frozenset({"r1"}))):
            for who in (0, 1):
                self.model.ask(who, work)
        for _ in range(2):
            self.model.ask(0, Reserve(), request_id="A", timeout_s=20.0)

    # -- callers ---------------------------------------------------------------------------------------------------

    @rule(
        who=st.integers(0, 1),
        count=st.integers(1, 4),
        timeout_s=st.sampled_from((inf, 5.0)),
        chosen=st.sampled_from(("", *CHOSEN)),
    )
    def call(self, who: int, count: int, timeout_s: float, chosen: str) -> None:
        for _ in range(count):
            caller = self.model.caller(who)
            self.model.operations[caller] = Operation(caller, None, self.model.now + timeout_s)
            batch = (
                RouterCallOptions(timeout_s=timeout_s, wire=b"w", **CHOSEN[chosen]),
                range(1, 2),
                [b"%d" % id(caller)],
            )
            self.model.step(CallsSubmitted(caller, "e", [batch]))

    @rule(
        who=st.integers(0, 1),
        timeout_s=st.sampled_from((inf, inf, 20.0, 3.0, 0.0)),
        wanted=st.sampled_from(("", "", "", *IDS)),
        excluded=st.sets(st.sampled_from(IDS), max_size=3),
        constrained=st.booleans(),
        request_id=st.sampled_from(("", "", "", "A", "B")),
        ttl_s=st.sampled_from((4.0, 10.0)),
        count=st.integers(1, 2),
        shard=st.sampled_from(("", *CHOSEN)),
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
            self.model.ask(who, work, timeout_s, "" if constrained else request_id, shard)

    @precondition(lambda self: self.model.slots_known())
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
        token = data.draw(st.sampled_from(self.model.slots_known()))
        key = self.model.slots[token].replica.key
        if breaks and (found := self.model.held.get(key)) is not None and found.linked:
            self.model.cut_off(found)
        if kind is not Renew:
            for request_id, (_, known, _, _) in list(self.model.leases.items()):
                if known == token:
                    del self.model.leases[request_id]
        caller = self.model.caller(0)
        work = kind(token=token)
        operation = self.model.operations[caller] = Operation(caller, work, self.model.now + timeout_s, key=key)
        if isinstance(work, Dispatch):
            options = RouterCallOptions(timeout_s=timeout_s, idempotent=data.draw(st.booleans()))
            self.model.step(CallDispatched(caller, key, options, b"payload", work))
        else:
            operation.deadline = inf
            self.model.step(SlotOperationRequested(caller, key, work))
        held = self.model.held.get(key)
        if self.model.scheduler.topology.is_departed(key):
            gone = operation.outcome
            assert isinstance(gone, ReleasedSlot) if kind is Release else isinstance(gone, Failure)
        elif held is None or key not in self.model.listed:
            assert operation.outcome is None, "a newer table may name it"
        elif held.linked and not self.model.lazy:
            assert operation.arrivals == 1, "it waits, though its replica is there"
        if asks_again:
            for each in list(self.model.operations.values()):
                is_its = isinstance(each.outcome, LeasedSlot) and each.outcome.token == token
                if is_its and each.request_id and isinstance(each.work, Reserve):
                    self.model.ask(0, each.work, 20.0, each.request_id, each.shard)
                    return

    @precondition(lambda self: self.model.alive())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        operation = data.draw(st.sampled_from(self.model.alive()))
        operation.has_left = True
        self.model.step(CallerLeft(operation.caller))
        assert not operation.caller.runs
        assert operation.caller.request_id == ""

    @precondition(lambda self: self.model.slots_known())
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        """Somebody was told of a slot who had just left."""
        token = data.draw(st.sampled_from(self.model.slots_known()))
        for request_id, (_, known, _, _) in list(self.model.leases.items()):
            if known == token:
                del self.model.leases[request_id]
        self.model.step(SlotAbandoned(self.model.slots[token].replica.key, token))

    @precondition(lambda self: self.model.reserving())
    @rule(data=st.data(), ttl_s=st.sampled_from((4.0, 10.0)))
    def grant(self, data: st.DataObject, ttl_s: float) -> None:
        held = data.draw(st.sampled_from(self.model.reserving()))
        ids = data.draw(st.lists(st.sampled_from(list(held.waiting)), min_size=1, unique=True))
        answers = []
        granted: dict[str, Operation | None] = {}
        callers = {op_id: held.replica.inflight[op_id] for op_id in ids}
        is_open = {op_id: bool(sent.open_parts()) for op_id, sent in callers.items()}
        for op_id in ids:
            operation = held.waiting.pop(op_id)
            self.model.tokens += 1
            token = f"t{self.model.tokens}"
            self.model.slots[token] = Leased(held.replica, self.model.now + ttl_s)
            granted[token] = operation
            slot = LeasedSlot(
                token=token,
                backend=held.replica.backend.name,
                replica_id=held.replica.replica_id,
                replica_address="",
                ongoing=1,
                ttl_s=ttl_s,
                expire_time_s=0.0,
            )
            answers.append((op_id, slot))
        self.model.do_quietly(
            self.model.scheduler.step(
                SlotOperationsAnswered(held.replica, answers, self.model.told(held)), self.model.now
            )
        )
        releases = [sent.run.slot for sent in held.replica.ops]
        releasing = {work.token for work in releases if isinstance(work, Release)}
        for op_id, (token, operation) in zip(ids, granted.items(), strict=True):
            assert (token in releasing) is not is_open[op_id], "kept, though nobody waits, or released too early"
            if operation is not None and not operation.has_left and is_open[op_id]:
                assert isinstance(operation.outcome, LeasedSlot)
                assert operation.outcome.token == token
        if not self.model.lazy:
            self.model.cut_all()

    @precondition(lambda self: self.model.reserving())
    @rule(data=st.data(), reason=st.sampled_from(REASONS), as_runs=st.booleans(), is_full=st.booleans())
    def refuse(self, data: st.DataObject, reason: Reason, *, as_runs: bool, is_full: bool) -> None:
        held = data.draw(st.sampled_from(self.model.reserving()))
        ids = sorted(data.draw(st.sets(st.sampled_from(list(held.waiting)), min_size=1)))
        for op_id in ids:
            held.waiting.pop(op_id)
        failure = Failure(reason=reason, message="no")
        capacity = self.model.capacity(held)._replace(others=MAX_ONGOING) if is_full else self.model.capacity(held)
        if as_runs:
            self.model.step(RunsRefused(held.replica, ids, failure, capacity))
        else:
            answers = [(op_id, failure) for op_id in ids]
            self.model.step(SlotOperationsAnswered(held.replica, answers, capacity))

    @precondition(lambda self: self.model.reserving())
    @rule(data=st.data(), reason=st.sampled_from((Reason.CANCELLED, Reason.NO_SLOT, Reason.HANDLER_ERROR)))
    def deny(self, data: st.DataObject, reason: Reason) -> None:
        """A replica answers a reservation with a failure: it was taken back, or its time is up, as it thinks."""
        held = data.draw(st.sampled_from(self.model.reserving()))
        op_id = data.draw(st.sampled_from(list(held.waiting)))
        if reason is Reason.CANCELLED and held.replica.inflight[op_id].open_parts():
            return
        held.waiting.pop(op_id)
        failure = Failure(reason=reason, message="no")
        self.model.step(SlotOperationsAnswered(held.replica, [(op_id, failure)]))

    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        linked = [held for held in self.model.held.values() if held.linked]
        if linked:
            held = data.draw(st.sampled_from(linked))
            self.model.step(CapacityReported(held.replica, self.model.capacity(held)))

    @precondition(lambda self: self.model.busy())
    @rule(data=st.data(), count=st.integers(1, 4), fails=st.booleans())
    def work(self, data: st.DataObject, count: int, *, fails: bool) -> None:
        """The replica answers some of what it has."""
        held = data.draw(st.sampled_from(self.model.busy()))
        for _ in range(count):
            if held.replica.key not in self.model.held:
                return
            if held.asked:
                self.model.answer(held, next(iter(held.asked)))
            elif held.calls or held.dispatched:
                ids = sorted((*held.calls, *held.dispatched))
                run_id = data.draw(st.sampled_from(ids))
                held.calls.pop(run_id, None)
                if run_id in held.dispatched:
                    self.model.slots[held.dispatched.pop(run_id)[1]].state = "over"
                capacity = self.model.capacity(held)
                if fails:
                    failure = Failure(reason=Reason.HANDLER_ERROR, message="no", executed=Executed.YES)
                    self.model.step(RunsCompleted(held.replica, [], [([run_id], failure)], capacity))
                else:
                    result = [run_id], [b"result"], ""
                    self.model.step(RunsCompleted(held.replica, [result], [], capacity))

    @rule(data=st.data(), run_id=st.integers(1, 40))
    def repeat_an_answer(self, data: st.DataObject, run_id: int) -> None:
        """A replica that answers what it has answered changes nothing."""
        linked = [held for held in self.model.held.values() if held.linked]
        if linked:
            held = data.draw(st.sampled_from(linked))
            if run_id not in held.replica.inflight:
                answers: list[OperationAnswer] = [
                    (run_id, ReleasedSlot()),
                    (run_id, Failure(reason=Reason.SLOT_USED, message="no")),
                ]
                self.model.step(SlotOperationsAnswered(held.replica, answers))

    @precondition(lambda self: self.model.unlinked())
    @rule(data=st.data())
    def link(self, data: st.DataObject) -> None:
        self.model.link_up(data.draw(st.sampled_from(self.model.unlinked())))

    @rule(data=st.data())
    def break_link(self, data: st.DataObject) -> None:
        linked = [held for held in self.model.held.values() if held.linked]
        if linked:
            self.model.cut_off(data.draw(st.sampled_from(linked)))

    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        linked = [held for held in self.model.held.values() if held.linked]
        if linked:
            self.model.step(DrainAnnounced(data.draw(st.sampled_from(linked)).replica))

    @rule(replica_id=st.sampled_from(IDS), backend=st.sampled_from(("b1", "b2")), at_once=st.booleans())
    def restart(self, replica_id: str, backend: str, *, at_once: bool) -> None:
        """Another life of the replica begins, in place of the one before."""
        self.model.lives += 1
        self.model.listed = {key: name for key, name in self.model.listed.items() if key[0] != replica_id}
        key = replica_id, f"life{self.model.lives}"
        self.model.listed[key] = backend
        self.model.table()
        if at_once and not self.model.held[key].linked:
            self.model.link_up(self.model.held[key])

    @rule(kind=st.sampled_from((Dispatch, Renew, Release)), replica_id=st.sampled_from(IDS))
    def use_slot_of_a_stranger(self, kind: type[Dispatch | Renew | Release], replica_id: str) -> None:
        """A replica of which no table has told yet has given a slot, by way of another router."""
        key, work, caller = (replica_id, "unheard of"), kind(token="another router's"), self.model.caller(0)
        self.model.operations[caller] = Operation(caller, work, inf, key=key)
        if isinstance(work, Dispatch):
            self.model.step(CallDispatched(caller, key, RouterCallOptions(), b"payload", work))
        else:
            self.model.step(SlotOperationRequested(caller, key, work))
        assert self.model.operations[caller].outcome is None, "a newer table may name it"

    @rule(data=st.data())
    def unlist(self, data: st.DataObject) -> None:
        if self.model.listed:
            del self.model.listed[data.draw(st.sampled_from(list(self.model.listed)))]
            self.model.table()

    @rule(policy=st.sampled_from(POLICIES), exists=st.sampled_from((True, True, True, False)))
    def set_traffic(self, policy: dict[str, float] | None, *, exists: bool) -> None:
        self.model.policy, self.model.exists = policy, exists
        self.model.table()

    @rule()
    def be_lazy(self) -> None:
        if self.model.lazy:
            self.model.cut_all()
        self.model.lazy = not self.model.lazy

    @rule(seconds=st.sampled_from((0.5, 1.0, 3.0, 11.0)))
    def advance(self, seconds: float) -> None:
        self.model.now += seconds
        for leased in self.model.slots.values():
            if leased.state == "reserved" and leased.until <= self.model.now:
                leased.state = "over"
        self.model.step(RouterTimePassed())
        assert all(each.deadline > self.model.now for each in self.model.alive()), (
            "a deadline passed without an outcome"
        )

    @invariant()
    def what_always_holds(self) -> None:
        for holds in ALWAYS:
            holds(self.model)

    def teardown(self) -> None:
        if hasattr(self, "model"):
            nothing_is_left(self.model)


TestSlots = SlotMachine.TestCase
TestSlots.settings = settings(max_examples=examples(250), stateful_step_count=50, deadline=None)
