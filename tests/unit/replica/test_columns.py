"""Batches with a column of ordering keys become runs that share what they can."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from replica_service.convert.runs import MAX_NEIGHBOURS, runs_of
from replica_service.core.runs import ReplicaRun, RouterPeer
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.v1 import call_pb2
from tests.support.fakes.clock import FakeClock
from tests.unit.replica.hosting import hosting

NOW = 50.0


def column(keys: Sequence[str], first: int = 1, **fields: Any) -> replica_service_pb2.RunBatch:
    return replica_service_pb2.RunBatch(
        first_run_id=first,
        endpoint="e",
        options=call_pb2.CallOptions(method="echo", ordering_key="not this one"),
        payloads=[b"%d" % index for index in range(len(keys))],
        ordering_keys=keys,
        partitions=[len(key) for key in keys],
        owner_epochs=[7] * len(keys),
        **fields,
    )


def converted(batch: replica_service_pb2.RunBatch, link: RouterPeer | None = None) -> list[ReplicaRun]:
    runs, rejected, announced = runs_of(replica_service_pb2.RunFrame(batches=[batch]), link or RouterPeer(), NOW)
    assert not rejected
    assert not announced
    return runs


def test_calls_of_one_key_that_follow_each_other_are_one_run() -> None:
    link = RouterPeer()
    runs = converted(column(["a", "a", "bb", "", "a"], first=11), link)
    assert [(run.ordering_key, run.partition, run.owner_epoch, run.begin, run.end) for run in runs] == [
        ("a", 1, 7, 0, 2),
        ("bb", 2, 7, 2, 3),
        ("", 0, 7, 3, 4),
        ("a", 1, 7, 4, 5),
    ]
    assert {run.first for run in runs} == {11}
    assert [run.key for run in runs] == [11, 13, 14, 15]
    assert [run.open for run in runs] == [2, 1, 1, 1]
    assert all(run.payloads is runs[0].payloads and run.options is runs[0].options for run in runs)
    assert link.last_run_id == 15


def test_neighbours_share_a_record_up_to_a_bound() -> None:
    count = MAX_NEIGHBOURS + 3
    runs = converted(
        column([f"key-{index}" for index in range(count)], session_id="s", epoch=1, call_ids=range(1, 2 * count, 2))
    )
    records = list(dict.fromkeys(run.record for run in runs))
    assert [record.count for record in records if record] == [MAX_NEIGHBOURS, 3]
    assert [record.call_ids for record in records if record][1] == (129, 131, 133)
    for run in runs:
        assert run.record is not None
        assert run in run.record.runs
        assert run.payloads[run.lo] == b"%d" % (run.first + run.lo - 1)
    assert runs[-1].first == MAX_NEIGHBOURS + 1


def test_calls_that_are_sent_again_have_records_of_their_own() -> None:
    runs = converted(column(["a", "b", "c"], session_id="s", epoch=2, call_ids=[5], attempt=1))
    assert [(run.first, run.record and run.record.call_ids) for run in runs] == [
        (1, range(5, 6)),
        (2, range(6, 7)),
        (3, range(7, 8)),
    ]


def test_who_asks_for_outcomes_asks_for_all_at_once() -> None:
    batch = column(["a", "b", "c"], session_id="s", epoch=2, call_ids=[5], recover=True)
    (run,) = converted(batch)
    assert (run.begin, run.end) == (0, 3)


class Echo:
    def __init__(self) -> None:
        self.seen: list[bytes] = []

    async def echo(self, payload: bytes) -> bytes:
        self.seen.append(payload)
        return payload


@pytest.mark.asyncio
async def test_results_of_neighbours_leave_together() -> None:
    # On a clock that stands still no turn ends by time, however long this test waits for the processor.
    async with hosting(Echo, max_ongoing=8, clock=FakeClock()) as host:
        runs = converted(column([f"key-{index}" for index in range(MAX_NEIGHBOURS)]), host.link)
        host.engine.submit(runs)
        await host.answered(MAX_NEIGHBOURS)
        assert host.outbox.order == list(range(1, MAX_NEIGHBOURS + 1))
        assert len(host.outbox.deliveries) <= MAX_NEIGHBOURS // 8 + 1
        assert host.engine.scheduler.is_idle


class Waiting:
    """Some calls wait, some fail."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    async def echo(self, payload: bytes) -> bytes:
        self.seen.append(payload)
        if int(payload) % 5 == 1:
            await asyncio.sleep(0)
        if int(payload) % 7 == 3:
            raise ValueError("no")
        return payload


@pytest.mark.asyncio
async def test_neighbours_that_wait_or_fail_are_answered_once() -> None:
    async with hosting(Waiting, max_ongoing=8) as host:
        keys = [f"key-{index % 20}" for index in range(60)]
        host.engine.submit(converted(column(keys), host.link))
        await host.answered(60)
        failed = {index for index in range(60) if index % 7 == 3}
        assert {run_id - 1 for run_id in host.outbox.failures_of} == failed
        assert all(host.outbox.results_of[index + 1] == b"%d" % index for index in set(range(60)) - failed)
        for key in set(keys):
            mine = [b"%d" % index for index in range(60) if keys[index] == key]
            assert [payload for payload in host.handler.seen if payload in mine] == mine
        assert host.engine.scheduler.is_idle
