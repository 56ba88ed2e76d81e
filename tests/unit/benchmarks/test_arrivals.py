"""Calls that arrive on their own time."""

from __future__ import annotations

import asyncio
import itertools
import time
from statistics import fmean, pstdev

import pytest

from benchmarks.arrivals import Arrivals, evenly, poisson


def test_a_poisson_process_has_its_rate_and_no_memory() -> None:
    times = poisson(1000.0, 20.0, seed=3)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert times == sorted(times)
    assert times[-1] < 20.0
    assert len(times) == pytest.approx(20_000, rel=0.03)
    assert pstdev(gaps) == pytest.approx(fmean(gaps), rel=0.05)


def test_a_seed_gives_the_same_arrivals_and_another_one_others() -> None:
    assert poisson(100.0, 1.0, seed=1) == poisson(100.0, 1.0, seed=1)
    assert poisson(100.0, 1.0, seed=1) != poisson(100.0, 1.0, seed=2)


def test_even_arrivals_are_equally_far_apart() -> None:
    assert evenly(4, 2.0) == [0.0, 0.5, 1.0, 1.5]


@pytest.mark.asyncio
async def test_calls_are_made_whether_or_not_earlier_ones_have_ended() -> None:
    arrivals = Arrivals()
    futures: list[asyncio.Future[bytes]] = []

    def call() -> asyncio.Future[bytes]:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        futures.append(future)
        if len(futures) == 3:  # the first two end after the last one was made
            futures[2].set_result(b"c")
            futures[0].set_result(b"a")
            futures[1].set_exception(ValueError("no"))
        return future

    began_s = time.monotonic()
    await arrivals.make(call, [0.0, 0.01, 0.02])
    assert arrivals.results == [b"a", b"", b"c"]
    assert [str(failure) for failure in arrivals.failures] == ["no"]
    assert [made_s >= began_s + at for made_s, at in zip(arrivals.made_s, [0.0, 0.01, 0.02], strict=True)] == [True] * 3
    assert min(arrivals.latencies_s) >= 0
    assert arrivals.latencies_s[0] >= 0.02 - 1e-9


@pytest.mark.asyncio
async def test_no_calls_are_over_at_once() -> None:
    arrivals = Arrivals()
    await arrivals.make(asyncio.get_running_loop().create_future, [])
    assert arrivals.latencies_s == []
