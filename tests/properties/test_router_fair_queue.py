"""The queue that is fair between flows, and in each between tenants, against lists that are searched each time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router_service.core.limits.tenant_limits import TenantAccount, TenantFigures
from router_service.core.queueing.backend_queues import FEW_CALLS, TURN_CALLS, FairQueue
from router_service.core.runs import RouterRun
from tests.support.examples import examples
from tests.unit.router.parts import caller, run

SLOS = st.sampled_from([None, None, 0.0, 0.2, 3.0])
COUNTS = st.sampled_from([1, 2, FEW_CALLS, FEW_CALLS + 1, 40, 200])
MOST = 2 * TURN_CALLS + 2 * FEW_CALLS
"""Calls of each other tenant of a flow that may leave while one waits: those of its turn, and of one before that."""


class FairQueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = FairQueue()
        self.callers = [caller() for _ in range(3)]
        self.tenants: list[TenantAccount | None] = [None]
        self.tenants += [TenantAccount("e", "", name, TenantFigures()) for name in "abc"]
        self.waiting: list[RouterRun] = []
        self.passed: dict[tuple[object, object], dict[object, int]] = {}
        """Of each tenant of each flow that waits: what others of its flow have sent since it waits, or was served."""
        self.seq = 0

    @rule(who=st.integers(0, 2), tenant=st.integers(0, 3), slo_s=SLOS, count=COUNTS)
    def submit(self, who: int, tenant: int, slo_s: float | None, count: int) -> None:
        self.seq += 1
        new = run(self.seq, count, by=self.callers[who], arrived=self.seq / 10, slo_s=slo_s)
        new.tenant = self.tenants[tenant]
        self.queue.append(new)
        self.waiting.append(new)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def send_and_hand_back(self, data: st.DataObject) -> None:
        """Some calls of the head leave, and some of those come back."""
        head = self.queue.head()
        if head is None:
            return
        turn = self.queue.turn(head)
        assert 0 < turn <= head.waiting
        count = data.draw(st.integers(1, turn))
        self.serve(head, count)
        back = data.draw(st.integers(0, count))
        if back:
            part = head.slice(head.cursor - back, head.cursor)
            self.queue.put_back(part)
            self.waiting.append(part)

    @precondition(lambda self: self.waiting)
    @rule(turns=st.integers(2, 6))
    def send_several_and_hand_all_back(self, turns: int) -> None:
        """A replica refuses what it got: calls of several flows and tenants come back together."""
        parts: list[RouterRun] = []
        for _ in range(turns):
            if (head := self.queue.head()) is not None:
                begin, count = head.cursor, self.queue.turn(head)
                self.serve(head, count)
                parts.append(head.slice(begin, begin + count))
        self.queue.put_back(*sorted(parts, key=lambda each: each.age))
        self.waiting += parts

    @precondition(lambda self: self.waiting and not self.queue.is_braked)
    @rule(calls=st.integers(1, 300))
    def send_many(self, calls: int) -> None:
        while calls > 0 and (head := self.queue.head()) is not None:
            count = min(calls, self.queue.turn(head))
            self.serve(head, count)
            calls -= count

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def overtake(self, data: st.DataObject) -> None:
        """Calls behind the head leave before it: of its flow and tenant only, and before none that is due earlier."""
        head = self.queue.head()
        if head is None:
            return
        behind = list(self.queue.behind(head))
        assert behind == self.expected_behind(head)
        before = self.queue.overtakers(head)
        if behind:
            chosen = data.draw(st.sampled_from(behind))
            count = data.draw(st.integers(1, self.queue.turn(chosen)))
            chosen.cursor += count
            self.queue.overtook(head, chosen, count)
            self.serve(chosen, 0, count)
            if self.queue.head() is head:
                assert self.queue.overtakers(head) == before + count

    def expected_behind(self, head: RouterRun) -> list[RouterRun]:
        """All runs that may overtake: there are fewer than a queue looks ahead."""
        alike = [each for each in self.waiting if each.waiting and each.caller is head.caller]
        alike = [each for each in alike if each.tenant is head.tenant and each is not head]
        stated = [(each.due, each.seq) for each in alike if each.options.slo_s is not None]
        if head.options.slo_s is not None:
            return []
        may = [each for each in alike if each.options.slo_s is None]
        return sorted(
            (each for each in may if not stated or (each.due, each.seq) <= min(stated)), key=lambda each: each.age
        )

    def serve(self, head: RouterRun, count: int, overtook: int = 0) -> None:
        head.cursor += count
        count += overtook
        self.queue.served(count)
        mine = head.caller.flow, head.tenant
        self.passed.pop(mine, None)
        for each in {(other.caller.flow, other.tenant) for other in self.waiting if other.waiting}:
            if each[0] is mine[0] and each != mine:
                passed = self.passed.setdefault(each, {})
                passed[mine[1]] = passed.get(mine[1], 0) + count

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.waiting))
        gone.cursor = len(gone.payloads)

    @rule(is_braked=st.booleans())
    def brake(self, is_braked: bool) -> None:
        self.queue.brake(is_on=is_braked)

    @rule()
    def move_to_another_queue(self) -> None:
        drained = self.queue.drain()
        assert drained == sorted((each for each in self.waiting if each.waiting), key=lambda each: each.age)
        is_braked, self.queue = self.queue.is_braked, FairQueue()
        self.queue.brake(is_on=is_braked)
        for each in drained:
            self.queue.append(each)
        self.passed.clear()

    @invariant()
    def the_head_is_due_first_of_its_flow_and_tenant(self) -> None:
        self.waiting = [each for each in self.waiting if each.waiting]
        known = {(each.caller.flow, each.tenant) for each in self.waiting}
        self.passed = {each: passed for each, passed in self.passed.items() if each in known}
        head = self.queue.head()
        if not self.queue.is_braked:
            assert (head is not None) is bool(self.waiting)
        if head is None:
            return
        rivals = [each for each in self.waiting if each.caller is head.caller and each.tenant is head.tenant]
        assert head is min(rivals, key=lambda each: (each.due, *each.age))

    @invariant()
    def no_tenant_waits_for_more_than_the_turns_of_the_others(self) -> None:
        for (_, tenant), passed in self.passed.items():
            for other, calls in passed.items():
                assert calls <= MOST, f"{tenant} waits while {other} has sent {calls}"

    def teardown(self) -> None:
        """All that waits leaves, each once."""
        self.queue.brake(is_on=False)
        left = sum(each.waiting for each in self.waiting)
        sent = 0
        while (head := self.queue.head()) is not None:
            count = self.queue.turn(head)
            sent += count
            self.serve(head, count)
        assert sent == left


TestFairQueue = FairQueueMachine.TestCase
TestFairQueue.settings = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)
