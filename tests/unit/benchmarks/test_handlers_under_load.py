"""What the benchmarks of handlers make of what they measured, and the handlers themselves."""

from __future__ import annotations

import itertools
import struct
from array import array
from statistics import fmean

import pytest

from benchmarks import batching, slow_calls
from benchmarks.arrivals import Arrivals
from benchmarks.batch_queue import FinishedBatch, Station
from benchmarks.findings import Finding
from benchmarks.priced_handler import STATION, Priced, stamps
from slotmesh.errors import Failure, Reason
from slotmesh.status import to_exception
from tests.support.fakes.clock import FakeClock

TEN = Station(most_calls=2, batch_s=10.0, call_s=0.0)


def by_name(found: list[Finding]) -> dict[str, Finding]:
    assert len({each.name for each in found}) == len(found)
    return {each.name: each for each in found}


def test_batches_cost_what_they_should_in_the_mean() -> None:
    clock = FakeClock()
    oversleep_s = itertools.cycle([0.0001, 0.0005])
    handler = Priced(clock.now, lambda seconds: clock.advance(seconds + next(oversleep_s)))
    excess_s = []
    for _ in range(200):
        for calls in (1, 32):
            results = handler.serve([b""] * calls)
            assert len(results) == calls
            assert len(set(results)) == 1
            began_s, ended_s = stamps(results[0])
            excess_s.append(ended_s - began_s - STATION.takes_s(calls))
    assert excess_s[0] == pytest.approx(0.0001)
    assert fmean(excess_s[-20:]) == pytest.approx(0.0, abs=1e-6)
    assert max(map(abs, excess_s)) < 0.0006


@pytest.mark.asyncio
async def test_a_call_that_waits_for_no_batch_says_when_it_was_there() -> None:
    began_s, ended_s = stamps(await Priced().arrive(b""))
    assert began_s == ended_s > 0


def arrivals(*calls: tuple[float, float, float, float]) -> Arrivals:
    """Each made, begun, ended, settled."""
    made = Arrivals()
    made.made_s = array("d", [call[0] for call in calls])
    made.results = [struct.pack("<dd", call[1], call[2]) for call in calls]
    made.settled_s = array("d", [call[3] for call in calls])
    return made


def test_a_round_is_compared_with_simulations_of_the_same_arrivals() -> None:
    # Two batches: the second one finds two calls waiting, and begins one second late.
    there = arrivals((0, 1, 11, 12), (5, 12, 22, 24), (6, 12, 22, 24))
    scouts = arrivals((0, 2, 2, 3), (1, 2, 2, 3), (2, 3, 3, 3))
    played = batching.compared(there, scouts, Station(most_calls=2, batch_s=5.0, call_s=2.5), wait_s=1.0)
    assert played.mesh_s == [1, 7, 6]
    assert played.caller_s == [2, 9, 8]
    assert played.batches == [FinishedBatch(1, 1.0), FinishedBatch(2, 12.0)]
    assert played.gap_s == 1.0
    assert played.way_s == 1.0
    assert played.service_s == pytest.approx((10 / 7.5 + 1) / 2)
    assert played.ideal_s == [0, 2.5, 1.5]
    assert played.timer_s == [1, 3.5, 2.5]


def test_a_gap_in_which_nothing_waited_is_none() -> None:
    there = arrivals((0, 0, 10, 10), (30, 31, 41, 41))
    assert batching.compared(there, there, TEN).gap_s == 0.0


def test_a_round_with_a_failure_is_none() -> None:
    failure = to_exception(Failure(reason=Reason.QUEUE_FULL, message="full"))
    there = arrivals((0, 0, 10, 10))
    there.failures.append(failure)
    with pytest.raises(type(failure), match="full"):
        batching.compared(there, Arrivals(), TEN)


def played(mesh_s: float, way_s: float, ideal_s: float) -> batching.BatchingRound:
    return batching.BatchingRound(
        mesh_s=[mesh_s] * 100,
        way_s=way_s,
        caller_s=[2 * mesh_s] * 100,
        ideal_s=[ideal_s] * 100,
        timer_s=[1.0] * 50 + [3.0] * 50,
        batches=[FinishedBatch(30, 0.0), FinishedBatch(20, 1.0)],
        service_s=1.0,
        gap_s=0.0002,
    )


def test_the_bound_is_on_the_wait_less_the_way() -> None:
    found = by_name(batching.found([played(0.024, 0.002, 0.02), played(0.5, 0.002, 0.02), played(0.023, 0.002, 0.02)]))
    assert found["batching_ratio"].value == pytest.approx(1.1)
    assert found["batching_ratio"].holds
    assert found["batching_whole_ratio"].value == pytest.approx(1.2)
    assert found["batching_caller_ratio"].value == pytest.approx(2.4)
    assert found["batching_timer_growth"].value == pytest.approx(3.0)
    assert found["batching_calls"].value == 25
    assert found["batching_growth"].holds
    assert by_name(batching.found([played(0.027, 0.002, 0.02)]))["batching_ratio"].holds is False


def test_a_queue_that_grows_shows_in_its_halves() -> None:
    assert batching.growth([float(at) for at in range(1, 1001)]) == pytest.approx(3.0, rel=0.01)
    assert batching.growth([1.0, 2.0, 3.0, 1.0, 2.0, 3.0]) == 1.0


def slow(latency_s: float, nbytes: int) -> slow_calls.SlowCallsRound:
    return slow_calls.SlowCallsRound(
        latencies_s=[1.0] * 98 + [latency_s] * 2,
        failures=0,
        growth_bytes={"client": 1, "router": 2, "replica": nbytes},
        cpu_s={"client": 0.1, "router": 0.2, "replica": 0.3},
    )


def test_memory_is_that_of_the_first_round_and_time_that_of_the_others() -> None:
    found = by_name(slow_calls.found(slow(9.0, 50_000_000), [slow(1.04, 1), slow(1.06, 1), slow(1.03, 1)]))
    assert found["slow_p99"].value == pytest.approx(0.04)
    assert found["slow_p99"].holds
    assert found["slow_p50"].value == 0.0
    assert found["slow_replica_bytes"].value == 5_000
    assert found["slow_replica_bytes"].holds
    assert found["slow_replica_cpu"].value == pytest.approx(30e-6)
