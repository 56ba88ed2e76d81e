"""The queue in which SLOs order among all callers, against a list that is searched each time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router_service.core.queueing.backend_queues import FEW_CALLS, DueQueue
from router_service.core.runs import RouterRun
from tests.support.examples import examples
from tests.unit.router.parts import caller, run

SLOS = st.sampled_from([None, 0.0, 0.2, 1.0, 3.0])
COUNTS = st.sampled_from([1, 2, FEW_CALLS, FEW_CALLS + 1, 30])


class DueQueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = DueQueue()
        self.waiting: list[tuple[RouterRun, bool]] = []
        """Runs, and whether each came with few calls."""
        self.callers = [caller() for _ in range(3)]
        self.seq = 0

    @rule(who=st.integers(0, 2), slo_s=SLOS, count=COUNTS)
    def submit(self, who: int, slo_s: float | None, count: int) -> None:
        self.seq += 1
        new = run(self.seq, count, by=self.callers[who], arrived=self.seq / 10, slo_s=slo_s)
        self.queue.append(new)
        self.waiting.append((new, count <= FEW_CALLS))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def send_and_hand_back(self, data: st.DataObject) -> None:
        """Some calls of the head leave, and some of those come back."""
        head = self.queue.head()
        if head is None:
            return
        count = data.draw(st.integers(1, self.queue.turn(head)))
        begin = head.cursor
        head.cursor += count
        self.queue.served(count)
        back = data.draw(st.integers(0, count))
        if back:
            part = head.slice(begin + count - back, begin + count)
            self.queue.put_back(part)
            self.waiting.append((part, back <= FEW_CALLS))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        gone, _ = data.draw(st.sampled_from(self.waiting))
        gone.cursor = len(gone.payloads)

    @rule(is_braked=st.booleans())
    def brake(self, is_braked: bool) -> None:
        self.queue.brake(is_on=is_braked)

    @rule()
    def move_to_another_queue(self) -> None:
        drained = self.queue.drain()
        assert drained == sorted((each for each, _ in self.waiting if each.waiting), key=lambda each: each.age)
        is_braked, self.queue = self.queue.is_braked, DueQueue()
        self.queue.brake(is_on=is_braked)
        for each in drained:
            self.queue.append(each)
        self.waiting = [(each, each.waiting <= FEW_CALLS) for each in drained]

    @invariant()
    def the_head_is_due_first(self) -> None:
        self.waiting = [each for each in self.waiting if each[0].waiting]
        may_leave = [each for each, has_few in self.waiting if has_few or not self.queue.is_braked]
        head = self.queue.head()
        assert bool(self.queue) is bool(may_leave)
        if head is None:
            assert not may_leave
            return
        assert any(head is each for each in may_leave)
        # Slices of one run are due alike.
        assert (head.due, head.seq) == min((each.due, each.seq) for each in may_leave)


DueQueueMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=30, deadline=None)
TestDueQueue = DueQueueMachine.TestCase
