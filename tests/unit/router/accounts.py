"""A world that checks the books: what each caller got back, and that nothing is left of calls that have ended."""

from __future__ import annotations

from collections import Counter
from typing import Any

from router_service.core.callers import Window
from router_service.core.commands import DeliverDone, DeliverFailure, DeliverResults, RouterCommand
from router_service.core.runs import Caller
from tests.unit.router.world import World

IDS = range(101, 107)
"""Six calls of three bytes each."""
REPLICAS = ("r1", "r2", "r3")
SHADOWS = ("x1", "y1")


class AccountedWorld(World):
    """Three replicas of `b`, three of `c`, and two shadows, `x` and `y`; `r1` owns all keys."""

    def __init__(self, *, copies: bool = False, **table: Any) -> None:
        self.returned: dict[Caller, tuple[int, int]] = {}
        """Calls and bytes that each caller's window got back."""
        super().__init__(
            {"b": REPLICAS, "c": ["c1", "c2", "c3"], "x": ["x1"], "y": ["y1"]},
            owner=("r1", 1),
            shadows={"x": 1.0, "y": 1.0} if copies else {},
            slots=16,
            **table,
        )

    def do(self, commands: list[RouterCommand]) -> None:
        """Carries commands out, and notes what windows get back."""
        for command in commands:
            if isinstance(command, DeliverResults | DeliverDone | DeliverFailure):
                calls, size = self.returned.get(command.caller, (0, 0))
                self.returned[command.caller] = calls + len(command.ids), size + command.size
        super().do(commands)

    def each(self, act: Any, *names: str) -> None:
        """What the named replicas hold is dealt with; those that hold nothing are left out."""
        for name in names:
            if self.held[name]:
                act(name)

    @property
    def figures(self) -> tuple[int, int, int, int]:
        """How calls of backend `b` have ended: well, failed, unanswered, refused."""
        ends = self.scheduler.counters.backends["b"].ended.sum()
        return sum(ends.times.counts), ends.failed, ends.unanswered, ends.refused

    @property
    def reasons_counted(self) -> dict[str, int]:
        """Failures by reason, as metrics have them."""
        counted: Counter[str] = Counter()
        for (_, _, reason), calls in self.scheduler.counters.failures.items():
            counted[str(reason)] += calls
        return dict(counted)

    @property
    def copies(self) -> dict[str, int]:
        """Copies of both shadows, by what became of them."""
        counted: Counter[str] = Counter()
        for (_, outcome), calls in self.scheduler.counters.shadows.items():
            counted[outcome] += calls
        return {outcome: calls for outcome, calls in counted.items() if calls}

    @property
    def executed(self) -> int:
        """Calls whose times are in the histograms of their methods."""
        return sum(sum(each.total_time.counts) for each in self.scheduler.counters.times.by_method.values())


def known_caller() -> Caller:
    """A caller without a session."""
    return Caller(Window(calls=10**9, bytes=10**12))


def nothing_is_left(world: AccountedWorld, *callers: Caller) -> None:
    """No run, charge, permit, deadline or tenant's count is left of anything."""
    for each in callers:
        assert not each.runs
    topology = world.scheduler.topology
    for account in [
        *(it.account for it in topology.backends.values()),
        *(it.account for it in topology.endpoints.values()),
    ]:
        assert (account.calls, account.size) == (0, 0), account.name
        assert not account._by_flow
        assert not account._by_tenant
    for name, replica in world.replicas.items():
        books = (replica.own, replica.keyed, replica.bound, replica.work_ns)
        assert books == (0, 0, 0, 0), (name, books)
        assert not replica.inflight
        assert not replica.outbox
        assert not replica.ops
    assert [it.unanswered for it in world.scheduler.tenants.busiest(100, world.now)] in ([], [0])
    assert not world.scheduler.shadows_under_way
    assert world.scheduler.next_deadline() is None
    assert not world.scheduler._parts.uploads.held.lines
