"""How the calls of a backend ended, as controllers judge it: each end counts once, and for what it is."""

from __future__ import annotations

import grpc
import pytest

from router_service.core.counters import CallEndCounts, CallEndTotals
from router_service.core.events import CallerLeft
from router_service.shell.reports import endpoint_loads_of, loads_of
from slotmesh.errors import Failure, Reason
from slotmesh.histogram import CALL_TIMES
from slotmesh.spec.model import Prospect
from tests.unit.router.world import World


def ends_of(world: World, backend: str = "b") -> CallEndTotals:
    return world.scheduler.counters.backends[backend].ended.sum()


def figures(ends: CallEndTotals) -> tuple[int, int, int, int]:
    return sum(ends.times.counts), ends.failed, ends.unanswered, ends.refused


def test_each_end_counts_once_and_for_what_it_is() -> None:
    world = World({"b": ["r"]}, slots=8)
    world.submit(range(8), timeout_s=10.0)
    world.now = 0.004
    world.complete("r", 0, 1, 2)
    world.fail("r", 3)
    world.fail("r", 4, reason=Reason.BAD_ARGUMENTS)
    world.cancel((5, 5))
    world.at(10.0)
    ends = ends_of(world)
    assert figures(ends) == (3, 1, 2, 1)
    assert ends.total == 7
    assert ends.times.counts[CALL_TIMES.index(0.005)] == 3


@pytest.mark.parametrize(("is_overdue", "expected"), [(False, (0, 0, 0, 0)), (True, (0, 0, 3, 0))])
def test_callers_whose_rpc_has_run_out_of_time_were_not_answered(
    is_overdue: bool, expected: tuple[int, int, int, int]
) -> None:
    world = World({"b": ["r"]}, slots=2)
    world.submit(range(3))
    world.do(world.scheduler.step(CallerLeft(world.caller, is_overdue), world.now))
    assert figures(ends_of(world)) == expected
    assert len(world.cancelled["r"]) == 2


def test_a_call_of_which_the_link_broke_has_failed() -> None:
    world = World({"b": ["r"]}, slots=4)
    world.submit(range(3))
    world.lose("r")
    assert figures(ends_of(world)) == (0, 3, 0, 0)


def test_time_in_the_queue_is_part_of_the_time() -> None:
    world = World({"b": ["r"]}, slots=1)
    world.submit([1, 2])
    world.now = 0.4
    world.complete("r", 1)
    world.now = 0.6
    world.complete("r", 2)
    counts = ends_of(world).times.counts
    assert [bound for bound, count in zip(CALL_TIMES, counts, strict=False) if count] == [0.5, 0.7]


def test_what_no_replica_took_in_time_is_unanswered_there() -> None:
    world = World({"b": ["r"]}, slots=1)
    world.submit([1], timeout_s=5.0)
    world.submit([2, 3], timeout_s=5.0)
    world.at(5.0)
    assert figures(ends_of(world)) == (0, 0, 3, 0)


FAULT, NO_ANSWER, REFUSAL, NOTHING = (0, 5, 0, 0), (0, 0, 5, 0), (0, 0, 0, 5), (0, 0, 0, 0)
JUDGED = {
    **dict.fromkeys(["HANDLER_ERROR", "BATCH_SIZE_MISMATCH", "METHOD_NOT_FOUND", "NOT_IMPLEMENTED"], FAULT),
    **dict.fromkeys(["INTERNAL", "REPLICA_LOST", "QUEUE_FULL", "BACKEND_UNAVAILABLE"], FAULT),
    **dict.fromkeys(["DEADLINE_RUNNING", "DEADLINE_IN_QUEUE", "QUEUE_TIMEOUT"], NO_ANSWER),
    **dict.fromkeys(["BAD_ARGUMENTS", "BAD_REQUEST", "PAYLOAD_TOO_LARGE"], REFUSAL),
}
"""By hand: what a controller judges a new version by. All others say nothing of it."""
CALLERS_FAULT = {
    "INVALID_ARGUMENT": True,
    "NOT_FOUND": True,
    "ALREADY_EXISTS": True,
    "PERMISSION_DENIED": True,
    "FAILED_PRECONDITION": True,
    "OUT_OF_RANGE": True,
    "UNAUTHENTICATED": True,
    "CANCELLED": False,
    "UNKNOWN": False,
    "DEADLINE_EXCEEDED": False,
    "RESOURCE_EXHAUSTED": False,
    "ABORTED": False,
    "UNIMPLEMENTED": False,
    "INTERNAL": False,
    "UNAVAILABLE": False,
    "DATA_LOSS": False,
}
"""By hand: the statuses by which a handler blames its caller."""


@pytest.mark.parametrize("reason", Reason, ids=lambda it: it.value)
def test_who_is_to_blame(reason: Reason) -> None:
    counts = CallEndCounts({"e"})
    counts.count(Failure(reason=reason, message=""), 5, "e")
    ends = counts.sum()
    assert figures(ends) == JUDGED.get(reason.value, NOTHING)
    assert ends.total == sum(figures(ends))


def test_each_status_of_grpc_is_judged() -> None:
    assert CALLERS_FAULT.keys() == {it.name for it in grpc.StatusCode} - {"OK"}


@pytest.mark.parametrize(("status", "blames_caller"), CALLERS_FAULT.items())
def test_a_handler_may_blame_its_caller(status: str, blames_caller: bool) -> None:
    counts = CallEndCounts({"e"})
    code = grpc.StatusCode[status].value[0]
    counts.count(Failure(reason=Reason.HANDLER_ERROR, message="", code=code), 5, "e")
    assert figures(counts.sum()) == (REFUSAL if blames_caller else FAULT)
    counts.count(Failure(reason=Reason.INTERNAL, message="", code=code), 1, "e")
    assert counts.sum().failed == (1 if blames_caller else 6), "only a handler may"


def test_where_nothing_can_serve_each_backend_with_a_weight_has_failed_it() -> None:
    world = World({"b": []}, prospects={"b": Prospect.FAILING})
    world.submit([1, 2])
    assert figures(ends_of(world)) == (0, 2, 0, 0)


def test_a_shadow_has_ended_no_call() -> None:
    world = World({"b": ["r"], "shadow": ["s"]}, slots=4, shadows={"shadow": 1.0})
    world.submit([1, 2])
    world.complete("s", 1)
    world.fail("s", 2)
    world.complete("r", 1, 2)
    assert figures(ends_of(world, "shadow")) == (0, 0, 0, 0)
    assert figures(ends_of(world)) == (2, 0, 0, 0)


def test_reports_have_the_figures() -> None:
    world = World({"b": ["r"]}, slots=4)
    world.submit([1, 2])
    world.complete("r", 1)
    (load,) = loads_of(world.scheduler.topology, world.scheduler.counters, world.now)
    assert figures(load.ended) == figures(ends_of(world))
    assert load.ended.total == 1


def test_the_report_has_each_endpoint_and_where_its_calls_ended() -> None:
    world = World({"b": ["r"]}, slots=8, endpoints=["e", "f"])
    world.submit(range(4))
    world.complete("r", 0, 1)
    world.fail("r", 2)
    used, unused = endpoint_loads_of(
        world.scheduler.topology, world.scheduler.counters, world.scheduler.tenants, world.now
    )
    assert (used.endpoint, used.accepted, used.failed, used.waiting) == ("e", 4, 1, 0)
    assert {backend: figures(ends) for backend, ends in used.ends.items()} == {"b": (2, 1, 0, 0)}
    assert (unused.endpoint, unused.accepted, unused.failed, unused.ends) == ("f", 0, 0, {})


def test_what_waits_for_a_policy_waits_at_its_endpoint() -> None:
    world = World({"b": ["r"]}, weights=None)
    world.submit(range(3))
    (load,) = endpoint_loads_of(world.scheduler.topology, world.scheduler.counters, world.scheduler.tenants, world.now)
    assert (load.accepted, load.waiting) == (3, 3)


def test_endpoints_that_no_table_has_named_are_counted_under_one_name() -> None:
    counts = CallEndCounts({"e"})
    for name in ("made-up", "another", "e"):
        counts.count(Failure(reason=Reason.HANDLER_ERROR, message=""), 1, name)
    assert {name: totals.failed for name, totals in counts.by_endpoint.items()} == {"": 2, "e": 1}
