"""The client's outbox and window against one list a queue, under arbitrary calls, cancellations and answers."""

from __future__ import annotations

from itertools import cycle

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from slotmesh.client.calls.outbox import CallOutbox, LargeCalls
from slotmesh.client.calls.queues import NOTHING_HELD, CallQueue, TenantShares, TenantWindow
from slotmesh.client.calls.sent_parts import SentPart
from slotmesh.client.calls.waiting_runs import WaitingRunQueue
from slotmesh.client.stream.pending_calls import PendingCalls
from tests.support.examples import examples
from tests.unit.client.parts import Sink, make_call, make_spec

QUEUES = 3
METHODS = 2
TIMEOUTS_S = (None, 5.0)
"""Of the calls of each method."""


class OutboxMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.outbox = CallOutbox()
        self.pending = PendingCalls()
        queues: list[WaitingRunQueue] = [CallQueue() for _ in range(QUEUES)]
        self.specs = [
            [make_spec(f"m{method}", queue, timeout_s=TIMEOUTS_S[method], tenant=tenant) for method in range(METHODS)]
            for tenant, queue in zip(cycle(self.tenants), queues, strict=False)
        ]
        self.waiting: list[list[Sink]] = [[] for _ in range(QUEUES)]
        self.unanswered: dict[int, tuple[int, int]] = {}
        """Id -> queue, payload bytes."""
        self.large = 0
        """The id of the newest call that left with more bytes than the window."""
        self.window_calls, self.window_bytes = 4, 100
        self.idle_told = [0] * QUEUES
        self.now = 0.0
        self.sealed_at: dict[Sink, float] = {}
        """When somebody looked first at each call that waits."""

    tenants: tuple[str, ...] = ("",)
    """Those of the calls, by queue."""

    def large_unanswered(self) -> int:
        """Bytes of the call that does not count in the window."""
        return self.unanswered.get(self.large, (0, 0))[1]

    @rule(queue=st.integers(0, QUEUES - 1), method=st.integers(0, METHODS - 1), size=st.integers(0, 150))
    def call(self, queue: int, method: int, size: int) -> None:
        sink = make_call(self.outbox, self.specs[queue][method], b"x" * size)
        sink.name = (method, size)
        self.waiting[queue].append(sink)

    @rule(data=st.data(), queue=st.integers(0, QUEUES - 1))
    def cancel(self, data: st.DataObject, queue: int) -> None:
        if self.waiting[queue]:
            sink = data.draw(st.sampled_from(self.waiting[queue]))
            sink.cancelled = True

    @rule(seconds=st.sampled_from((0.1, 1.0, 3.0, 5.0)))
    def look_for_timeouts(self, seconds: float) -> None:
        self.now += seconds
        parts, behind = self.outbox.take_overdue(self.now)
        assert not behind, "nothing stops here"
        for queue, sinks in enumerate(self.waiting):
            late = [sink for sink in sinks if self.is_late(sink)]
            taken = [sink for part in parts if part.spec in self.specs[queue] for sink in part.sinks]
            assert [sink for sink in taken if not sink.cancelled] == [sink for sink in late if not sink.cancelled]
            assert set(taken) <= set(late), "before its time"
            self.waiting[queue] = [sink for sink in sinks if sink not in late]
        for part in parts:
            part.spec.queue.settled(part.count)
        self.outbox.seal(self.now)
        for sink in (sink for queue in self.waiting for sink in queue):
            self.sealed_at.setdefault(sink, self.now)

    def is_late(self, sink: Sink) -> bool:
        timeout_s = TIMEOUTS_S[sink.name[0]]
        return timeout_s is not None and sink in self.sealed_at and self.sealed_at[sink] + timeout_s <= self.now

    @rule(calls=st.integers(1, 8), nbytes=st.integers(1, 300))
    def change_the_window(self, calls: int, nbytes: int) -> None:
        self.window_calls, self.window_bytes = calls, nbytes

    @rule()
    def write_a_frame(self) -> None:
        calls = self.window_calls - self.pending.calls
        nbytes = self.window_bytes - self.pending.nbytes + self.large_unanswered()
        nothing_unanswered = not self.pending.calls
        large = LargeCalls(self.window_bytes, is_free=not self.large_unanswered())
        shares = TenantShares(self.pending.by_tenant(), calls, nbytes) if self.outbox.rota.has_tenants else None
        before = self.pending.by_tenant()
        parts = self.outbox.take(calls, nbytes, large, shares=shares)
        for part in parts:
            queue = next(index for index, specs in enumerate(self.specs) if part.spec in specs)
            wanted = [sink for sink in self.waiting[queue] if not sink.cancelled]
            assert part.sinks == wanted[: part.count], "a call overtook another one of its queue"
            if part.spec.options.timeout_s is not None:
                assert {part.made_at} == {self.sealed_at.get(sink) for sink in part.sinks}
            assert all(
                sink.name == (self.specs[queue].index(part.spec), len(p))
                for sink, p in zip(part.sinks, part.payloads, strict=True)
            )
            last = self.waiting[queue].index(part.sinks[-1])
            self.waiting[queue] = self.waiting[queue][last + 1 :]
            self.pending.add(part)
            if part.nbytes > large.over:
                self.large = part.first
            for offset, payload in enumerate(part.payloads):
                self.unanswered[part.first + offset] = (queue, len(payload))
        sent = sum(part.count for part in parts)
        assert sent <= max(calls, 0)
        self.check_tenants(before, parts)
        sizes = [part.nbytes for part in parts if part.nbytes <= self.window_bytes]
        assert len(sizes) >= len(parts) - large.is_free, "one large call, not two"
        assert sum(sizes) <= max(nbytes, 0)
        wanted_sizes = [sink.name[1] for queue in self.waiting for sink in queue if not sink.cancelled]
        if shares is not None:
            wanting = {
                self.tenants[at % len(self.tenants)]
                for at, queue in enumerate(self.waiting)
                if any(not sink.cancelled for sink in queue)
            }
            is_stuck = calls <= 0 or any(before.get(each, NOTHING_HELD).calls for each in wanting)
            assert parts or not wanting or is_stuck or (not nothing_unanswered and max(wanted_sizes) > nbytes)
        elif not parts and wanted_sizes:
            heads = [next((sink.name[1] for sink in queue if not sink.cancelled), -1) for queue in self.waiting]
            has_large = max(heads) > self.window_bytes
            others_turn = any(nbytes < size <= self.window_bytes for size in heads)
            assert calls <= 0 or not has_large or not large.is_free or others_turn, "a large call waits for no reason"
            assert calls <= 0 or any(size > nbytes for size in heads), "calls wait for no reason"

    def check_tenants(self, before: dict[str, TenantWindow], parts: list[SentPart]) -> None:
        """No tenant fills more than it leaves, but for one call of each."""
        held = self.pending.by_tenant()
        unanswered = dict.fromkeys(self.tenants, 0)
        for queue, _ in self.unanswered.values():
            unanswered[self.tenants[queue % len(self.tenants)]] += 1
        assert {tenant: window.calls for tenant, window in held.items() if window.calls} == {
            tenant: calls for tenant, calls in unanswered.items() if calls
        }
        left = self.window_calls - self.pending.calls
        for tenant in {part.spec.tenant for part in parts} if len(self.tenants) > 1 else ():
            had = before.get(tenant, NOTHING_HELD)
            assert held[tenant].calls <= max(left + len(self.tenants), 1) or not had.calls

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.unanswered)), unique=True)) if self.unanswered else []
        for part, _, _, count in self.pending.settle(ids):
            part.spec.queue.settled(count)
        for call_id in ids:
            del self.unanswered[call_id]

    @rule()
    def give_up(self) -> None:
        parts = list(self.outbox.drain())
        left = [[sink for sink in queue if not sink.cancelled] for queue in self.waiting]
        for queue, specs in enumerate(self.specs):
            assert [sink for part in parts if part.spec in specs for sink in part.sinks] == left[queue]
        for part in parts:
            part.spec.queue.settled(part.count)
        self.waiting = [[] for _ in range(QUEUES)]
        assert not self.outbox

    @rule()
    def everything_leaves_in_the_end(self) -> None:
        self.window_calls, self.window_bytes = 10**6, 10**9
        while self.outbox:
            self.write_a_frame()
        assert not any(sink for queue in self.waiting for sink in queue if not sink.cancelled)

    @invariant()
    def what_waits_is_counted(self) -> None:
        """Cancelled calls may be counted until they are dropped."""
        wanted = [sink.name[1] for queue in self.waiting for sink in queue if not sink.cancelled]
        every = [sink.name[1] for queue in self.waiting for sink in queue]
        calls, nbytes = self.held()
        assert len(wanted) <= calls <= len(every)
        assert sum(wanted) <= nbytes <= sum(every)
        self.outbox.drop_cancelled()
        assert self.held() == (len(wanted), sum(wanted))

    def held(self) -> tuple[int, int]:
        """Calls and bytes that are counted in all shares."""
        shares = self.outbox.shares._shares.values()
        return sum(each.calls for each in shares), sum(each.nbytes for each in shares)

    @invariant()
    def queues_are_idle_exactly_when_nothing_is_open(self) -> None:
        for queue, specs in enumerate(self.specs):
            unanswered = any(owner == queue for owner, _ in self.unanswered.values())
            wanted = any(not sink.cancelled for sink in self.waiting[queue])
            if unanswered or wanted:
                assert not specs[0].queue.idle
            elif not self.waiting[queue]:
                assert specs[0].queue.idle


class TenantsMachine(OutboxMachine):
    tenants = ("", "a", "b")


TestTenants = TenantsMachine.TestCase
TestTenants.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestOutbox = OutboxMachine.TestCase
TestOutbox.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
