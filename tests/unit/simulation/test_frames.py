"""Frames on virtual time: they meet, wherever they begin, and more replicas do not break them up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapreplace
from math import ceil
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_service.core.lifecycle import sender
from router_service.core.limits.capacity import MethodTime
from router_service.core.replicas.backends import RoutedBackend
from router_service.core.replicas.replica import RoutedReplica
from simulation.frames.mesh import FrameFigures, FrameMesh
from simulation.frames.report import configurations, simulate, table
from simulation.frames.settings import FramesSettings
from slotmesh.balancers import ANY_CALLS
from slotmesh.streams.pacing import Pace, Pacing
from tests.support.examples import examples

pytestmark = [pytest.mark.slow, pytest.mark.long]

ECHO = FramesSettings(service_s=2e-6, calls=10_000, warm_up=5_000)


def run(**changes: object) -> FrameFigures:
    return FrameMesh(replace(ECHO, **changes)).run()  # type: ignore[arg-type]  # fields of Settings


def smallest(figures: FrameFigures) -> float:
    return min(figures.up_to_router, figures.out_to_replica, figures.back_to_router, figures.down_to_client)


def pieces(total: int, size: int) -> Sequence[int]:
    return (size,) * (total // size)


def test_the_same_seed_gives_the_same_figures() -> None:
    assert run() == run()


@pytest.mark.parametrize("cores", [0, 2], ids=["a core each", "two cores"])
@pytest.mark.parametrize("in_flight", [64, 512])
@pytest.mark.parametrize("replicas", [1, 2, 8])
def test_wherever_it_begins_it_ends_in_the_same_frames(replicas: int, in_flight: int, cores: int) -> None:
    ended = [
        run(replicas=replicas, in_flight=in_flight, cores=cores, first_frames=pieces(in_flight, size))
        for size in (1, 2, 8, in_flight // 4, in_flight)
    ]
    assert min(map(smallest, ended)) >= in_flight / 4
    rates = [figures.calls_per_s for figures in ended]
    assert min(rates) >= 0.85 * max(rates)


@settings(max_examples=examples(30), deadline=None)
@given(data=st.data(), replicas=st.sampled_from((1, 2, 4, 8)), cores=st.sampled_from((0, 2)))
def test_it_does_so_from_any_frames(data: st.DataObject, replicas: int, cores: int) -> None:
    sizes: list[int] = []
    while (left := 256 - sum(sizes)) > 0:
        sizes.append(data.draw(st.integers(1, left)))
    whole = run(replicas=replicas, in_flight=256, cores=cores, first_frames=(256,))
    cut = run(replicas=replicas, in_flight=256, cores=cores, first_frames=sizes)
    assert smallest(cut) >= 64
    assert cut.calls_per_s >= 0.85 * whole.calls_per_s


@pytest.mark.parametrize("in_flight", [64, 512, 4096])
def test_more_replicas_are_not_slower(in_flight: int) -> None:
    begin = pieces(in_flight, 1)
    calls = {"calls": 30_000, "warm_up": 15_000}
    one = run(replicas=1, in_flight=in_flight, first_frames=begin, **calls)
    for replicas, least in ((2, 0.9), (4, 0.8), (8, 0.7)):
        more = run(replicas=replicas, in_flight=in_flight, first_frames=begin, **calls)
        assert more.calls_per_s >= least * one.calls_per_s
        assert more.router_s <= 1.5 * max(one.router_s, 1.0 / 64 * 8 * ECHO.costs.message_s)


def test_two_routers_and_eight_clients_keep_their_frames_whole() -> None:
    many = {"clients": 8, "in_flight": 64, "first_frames": pieces(64, 1), "warm_up": 20_000}
    one = run(replicas=1, routers=2, **many)
    eight = run(replicas=8, routers=2, **many)
    assert min(eight.up_to_router, eight.down_to_client) >= 16
    assert eight.calls_per_s >= 0.7 * one.calls_per_s


def test_an_even_share_for_each_replica_breaks_frames_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would happen without the rule, so that the tests above mean something."""

    def evenly(calls: int, replicas: int, _time: MethodTime | None) -> int:
        return max(1, ceil(calls / replicas))

    def pick(self: RoutedBackend[RoutedReplica], _method: str) -> RoutedReplica | None:
        return self.balancer.pick(ANY_CALLS, ())

    def never(_self: Pacing, _calls: int, _unanswered: int, _now: float, _pace: Pace) -> float:
        return 0.0

    begin = pieces(512, 1)
    whole = run(replicas=8, first_frames=begin)
    monkeypatch.setattr(sender, "slice_calls", evenly)
    monkeypatch.setattr(RoutedBackend, "pick", pick)
    monkeypatch.setattr(Pacing, "wait_s", never)
    broken = run(replicas=8, first_frames=begin)
    assert broken.calls_per_s < 0.5 * whole.calls_per_s
    assert broken.out_to_replica < whole.out_to_replica / 4


def central_queue_s(rate: float, servers: int, service_s: float, occupied_s: float, calls: int) -> float:
    """Mean time from making a call to its end, where one queue serves all; a call keeps a server for its way, too."""
    draws = Random("central queue")
    free_at = [0.0] * servers
    now = total_s = 0.0
    for _ in range(calls):
        now += draws.expovariate(rate)
        service = draws.expovariate(1.0 / service_s)
        started_at = max(now, free_at[0])
        heapreplace(free_at, started_at + service + occupied_s)
        total_s += started_at + service - now
    return total_s / calls


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_calls_of_ten_milliseconds_are_as_soon_done_as_by_a_central_queue(load: float) -> None:
    """Eight replicas with a slot each; the way there and back is that of a call alone."""
    slow = FramesSettings(replicas=8, slots=1, service_s=0.01, cores=0, calls=20_000, warm_up=2_000)
    alone = FrameMesh(replace(slow, in_flight=1)).run()
    way_s = alone.latency_mean_s - slow.service_s
    rate = load * slow.replicas / slow.service_s
    mesh = FrameMesh(replace(slow, rate=rate)).run()
    central_s = central_queue_s(rate, slow.replicas, slow.service_s, way_s, 100_000)
    assert mesh.latency_mean_s <= 1.03 * (central_s + way_s)


def test_the_report_has_all_services_side_by_side() -> None:
    told: list[str] = []
    outcomes = simulate(50, told.append)
    lines = table(outcomes).splitlines()
    assert len(lines) == 1 + len(list(configurations(50)))
    assert lines[1].split()[:4] == ["5", "µs", "1", "8"]
    assert told[-1] == ""
