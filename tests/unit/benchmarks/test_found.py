"""What the benchmarks of calls beside others make of what they measured."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

import slotmesh
from benchmarks import large, latency, sessions_cost, stalled, two_step
from benchmarks.findings import Finding
from benchmarks.hauler import Haul, haul
from benchmarks.one_caller import OneCaller
from benchmarks.sessions_cost import MeasuredCalls
from slotmesh.errors import Failure, Reason
from slotmesh.status import to_exception
from tests.support.wait import within


class FakeMethod:
    """Answers each call with the next of these."""

    def __init__(self, *answers: bytes | Exception) -> None:
        self._answers = iter(answers)

    async def __call__(self, _payload: bytes) -> bytes:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def as_method(self) -> slotmesh.Method[bytes]:
        return cast("slotmesh.Method[bytes]", self)


def by_name(found: list[Finding]) -> dict[str, Finding]:
    assert len({each.name for each in found}) == len(found)
    return {each.name: each for each in found}


def test_latencies_are_compared_within_a_round() -> None:
    found = by_name(latency.found([1.0, 2.0, 10.0], [1.4, 2.8, 30.0], [0.5, 1.0, 9.0]))
    assert found["latency_ratio"].value == pytest.approx(1.4)
    assert found["latency_ratio"].holds
    assert found["latency_stream"].value == 2.8
    assert found["latency_direct_ratio"].value == pytest.approx(0.5)
    assert found["latency_direct_ratio"].holds
    missed = by_name(latency.found([1.0], [1.6], [0.61]))
    assert not missed["latency_ratio"].holds
    assert not missed["latency_direct_ratio"].holds


def test_two_steps_are_compared_with_one_call_of_the_same_round() -> None:
    found = by_name(two_step.found([1.0, 2.0, 10.0], [2.1, 4.2, 30.0]))
    assert found["two_step_ratio"].value == pytest.approx(2.1)
    assert found["two_step_ratio"].holds
    assert not by_name(two_step.found([1.0], [2.3]))["two_step_ratio"].holds


def turn(calls: int, router_s: float, replica_s: float) -> MeasuredCalls:
    return MeasuredCalls(calls, {"router": router_s, "replica": replica_s})


def test_what_sessions_cost_is_a_share_of_the_time_of_a_call() -> None:
    plain, in_session = turn(100, 1.0, 1.0), turn(200, 2.08, 2.3)
    found = by_name(sessions_cost.findings_of("unkeyed", [(plain, in_session, in_session, plain)]))
    assert found["sessions_unkeyed_router"].value == pytest.approx(0.04)
    assert found["sessions_unkeyed_router"].holds
    assert found["sessions_unkeyed_replica"].value == pytest.approx(0.15)
    assert found["sessions_unkeyed_replica"].holds is False
    assert found["sessions_unkeyed_router_cpu"].value == pytest.approx(0.01)


def test_a_drift_of_the_machine_cancels_out() -> None:
    quads = [(turn(10, 1.0, 1.0), turn(10, 2.0, 2.0), turn(10, 3.0, 3.0), turn(10, 4.0, 4.0))]
    assert by_name(sessions_cost.findings_of("x", quads))["sessions_x_router"].value == pytest.approx(0.0)


def test_a_client_that_does_not_read_must_cost_little() -> None:
    outcome = stalled.StalledOutcome(
        quiet_s=[0.001] * 100,
        beside_s=[0.001] * 98 + [0.07] * 2,
        failures=0,
        growth_bytes={"router": 63_000_000, "replica": 65_000_000},
        reading_bytes={"router": 70_000_000, "replica": 1},
        wrong=1,
    )
    found = by_name(stalled.found(outcome, 60.0))
    held = {name: each.holds for name, each in found.items() if each.holds is not None}
    assert held == {
        "stalled_router": True,
        "stalled_replica": False,
        "stalled_wrong": False,
        "stalled_p99": False,
        "stalled_failures": True,
    }


def test_small_calls_beside_large_ones_are_compared_with_quiet_ones() -> None:
    hauls = [Haul(payloads=2, seconds=1.0), Haul(payloads=4, seconds=2.0)]
    found = by_name(large.found(1_000_000, [0.001], [0.002] * 99 + [0.009], hauls, 0))
    assert found["large_rate"].value == pytest.approx(2e6)
    assert found["large_p99"].value == pytest.approx(0.001)
    assert found["large_p99"].holds


@pytest.mark.asyncio
async def test_one_caller_goes_on_after_failures_and_counts_them_apart() -> None:
    failure = to_exception(Failure(reason=Reason.QUEUE_FULL, message="full"))
    one = OneCaller(FakeMethod(b"a", failure, b"b").as_method)
    times_s: list[float] = []
    for _ in range(3):
        await one.call(times_s)
    assert (len(times_s), one.failures) == (2, [failure])


@pytest.mark.asyncio
async def test_one_caller_stops_with_the_block() -> None:
    is_third = asyncio.Event()

    class Endless(FakeMethod):
        async def __call__(self, payload: bytes) -> bytes:
            await asyncio.sleep(0)
            if len(times_s) >= 2:
                is_third.set()
            return payload

    times_s: list[float] = []
    async with OneCaller(Endless().as_method).calling(times_s):
        await within(is_third.wait(), "the third call")
    count = len(times_s)
    await asyncio.sleep(0)
    assert len(times_s) == count


@pytest.mark.asyncio
async def test_a_payload_that_comes_back_changed_is_no_haul() -> None:
    assert (await haul(FakeMethod(b"xy", b"xy").as_method, b"xy", 2)).payloads == 2
    with pytest.raises(ValueError, match="did not come back"):
        await haul(FakeMethod(b"xy", b"x").as_method, b"xy", 2)
