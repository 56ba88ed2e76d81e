"""Load in a closed loop and in an open one, and what is said of two results."""

from __future__ import annotations

import asyncio
import json
import math
import time
from pathlib import Path

import pytest

from slotmesh import QueueFull
from slotmesh.cli.commands.bench import (
    BenchRun,
    closed_loop,
    comparison_lines,
    open_loop,
    read_earlier,
    result_document,
    result_lines,
)
from slotmesh.cli.console import CommandFailed

SETTINGS = {"endpoint": "e", "method": "m", "in_flight": 2, "rate": None, "ordered": False}


@pytest.mark.asyncio
async def test_a_closed_loop_has_so_many_calls_under_way_and_no_more() -> None:
    under_way, most, callers = 0, 0, set()

    async def call(number: int) -> None:
        nonlocal under_way, most
        callers.add(number)
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.001)
        under_way -= 1

    run = BenchRun(0.0, 0.2)
    await closed_loop(run, call, 3)
    assert (most, callers, under_way) == (3, {0, 1, 2}, 0)
    assert run.tally.calls >= 3
    assert run.tally.well.min_s >= 0.001


@pytest.mark.asyncio
async def test_an_open_loop_counts_from_when_calls_were_due() -> None:
    stalls = [0.3]

    async def call(_: int) -> None:
        # The loop stands still, so that calls begin later than they were due.
        time.sleep(stalls.pop() if stalls else 0.0)  # noqa: ASYNC251 - on purpose

    run = BenchRun(0.0, 0.4)
    await open_loop(run, call, 100.0, 4)
    assert run.tally.calls + run.unstarted == 40
    # In a closed loop there would be one slow call; here all that were due meanwhile have waited.
    assert sum(count for bound, count in run.tally.well.buckets() if bound > 0.05) >= 20


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("warm_up_s", "duration_s", "rate"), [(0.1, 0.2, 500.0), (0.0, 0.1, 1000.0), (0.07, 0.3, 333.0)]
)
async def test_an_open_loop_makes_and_counts_as_many_as_its_rate_says(
    warm_up_s: float, duration_s: float, rate: float
) -> None:
    made = 0

    async def call(_: int) -> None:
        nonlocal made
        made += 1

    run = BenchRun(warm_up_s, duration_s)
    await open_loop(run, call, rate, 4)
    assert made == round((warm_up_s + duration_s) * rate)
    assert run.tally.calls == made - math.ceil(warm_up_s * rate)
    assert run.unstarted == 0


@pytest.mark.asyncio
async def test_failures_are_counted_and_the_warm_up_is_not() -> None:
    made = 0

    async def call(_: int) -> None:
        nonlocal made
        made += 1
        await asyncio.sleep(0.001)
        raise QueueFull("full")

    run = BenchRun(0.1, 0.1)
    await closed_loop(run, call, 1)
    assert set(run.tally.failed) == {"QUEUE_FULL"}
    assert 0 < run.tally.calls < made


def result(*times: float, failed: int = 0) -> BenchRun:
    run = BenchRun(0.0, 1.0)
    for time_s in times:
        run.tally.add(time_s)
    for _ in range(failed):
        run.tally.add(0.0, "QUEUE_FULL")
    return run


def test_a_result_is_json_and_has_its_histogram() -> None:
    document = result_document(result(0.001, 0.002, 0.002), SETTINGS)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert [count for _, count in document["histogram_ms"]] == [1, 2]
    assert result_document(result(), SETTINGS)["p99_ms"] is None
    lines = [*result_lines(result(*(at / 1000 for at in range(1, 500))))]
    assert 4 < len(lines) < 20


def test_two_results_are_compared() -> None:
    before, now = result_document(result(0.01), SETTINGS), result_document(result(0.02, failed=1), SETTINGS)
    lines = "\n".join(comparison_lines({**now, "in_flight": 4}, json.loads(json.dumps(before))))
    assert "in_flight differs: 2 before, 4 now" in lines
    assert "+100.0% worse" in lines
    assert "better" in lines
    assert "failed" in lines
    assert "worse" not in "\n".join(comparison_lines(before, before))


def test_what_is_no_result_is_refused_before_the_load_is_made(tmp_path: Path) -> None:
    file = tmp_path / "before.json"
    file.write_text(json.dumps(result_document(result(0.01), SETTINGS)), "utf-8")
    assert (read_earlier(file) or {})["calls"] == 1
    others: tuple[object, ...] = ({}, [], None, {"format": "x"})
    for other in others:
        file.write_text(json.dumps(other), "utf-8")
        with pytest.raises(CommandFailed, match="is no result of a bench"):
            read_earlier(file)
