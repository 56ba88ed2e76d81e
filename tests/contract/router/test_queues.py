"""The router's queues over real gRPC: their order, what travels together, and the failure of a full queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from slotmesh.convert.batches import ids_from_wire
from slotmesh.v1 import mesh_pb2, router_service_pb2
from tests.support.fakes.replica import FakeReplica, echo, hold
from tests.support.router_bench import Request, RouterBench, batch, calls, next_frame, outcomes, router_bench, taken
from tests.support.wait import wait_until


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        yield bench


async def holding(mesh: RouterBench, slots: int, **table: Any) -> FakeReplica:
    """The only replica, with so many slots, none of which is answered."""
    replica = mesh.replicas[0]
    await mesh.with_slots(slots, replica, **table)
    replica.answer = hold
    return replica


@pytest.mark.asyncio
async def test_the_call_that_is_due_first_runs_first(mesh: RouterBench) -> None:
    replica = await holding(mesh, slots=1)
    call = await mesh.open()
    await call.write(calls(1, b"runs"))
    await wait_until(lambda: replica.payloads)
    past = Timestamp(seconds=1)
    batches = [
        batch(2, b"none"),
        batch(3, b"in 5 s", relative_slo=Duration(seconds=5)),
        batch(4, b"in 0.1 s", relative_slo=Duration(nanos=100_000_000)),
        batch(5, b"in the past", absolute_slo=past),
        batch(6, b"none either"),
    ]
    await call.write(Request(calls=router_service_pb2.CallFrame(batches=batches)))
    await taken(call)
    replica.answer = echo
    await replica.answer_held()
    assert len((await outcomes(call, 6))[0]) == 6
    assert replica.payloads == [b"runs", b"in the past", b"in 0.1 s", b"none", b"none either", b"in 5 s"]


@pytest.mark.asyncio
async def test_calls_of_one_key_stay_in_order_whatever_their_slo(mesh: RouterBench) -> None:
    await mesh.linked()
    call = await mesh.open()
    for number, seconds in enumerate([9, 5, 1], 1):
        await call.write(calls(number, b"%d" % number, ordering_key="k", relative_slo=Duration(seconds=seconds)))
    await taken(call)
    await mesh.linked(mesh.replicas[0])
    await outcomes(call, 3)
    assert mesh.replicas[0].payloads == [b"1", b"2", b"3"]


@pytest.mark.asyncio
async def test_what_is_queued_when_slots_free_is_one_frame_grouped_by_method(mesh: RouterBench) -> None:
    replica = await holding(mesh, slots=32, max_wire_batch_size=6)
    streams = [await mesh.open() for _ in range(2)]
    await streams[0].write(calls(1, *[b"runs"] * 32))
    await wait_until(lambda: len(replica.payloads) == 32)
    before = len(replica.frames)
    for index, stream in enumerate(streams):
        for number in range(8):
            at = 100 + number
            await stream.write(calls(at, b"%d %d" % (index, number), method="ab"[number % 2]))
    await taken(*streams)
    replica.answer = echo
    await replica.answer_held()
    for stream, count in zip(streams, (40, 8), strict=True):
        assert len((await outcomes(stream, count))[0]) == count
    (frame,) = replica.frames[before:]
    assert [(each.options.method, len(each.payloads)) for each in frame.runs.batches] == [
        ("a", 6),
        ("a", 2),
        ("b", 6),
        ("b", 2),
    ]
    ids = [each.first_run_id for each in frame.runs.batches]
    assert ids == [33, 39, 41, 47], "consecutive, in the order of the frame"
    for index in range(2):
        mine = [payload for payload in replica.payloads[32:] if payload.startswith(b"%d " % index)]
        for method in range(2):
            numbers = [int(payload.split()[1]) for payload in mine if int(payload.split()[1]) % 2 == method]
            assert numbers == sorted(numbers)


@pytest.mark.asyncio
@pytest.mark.parametrize("balancer", ["least_loaded", "power_of_two", "round_robin"])
async def test_a_flood_on_one_stream_does_not_hold_up_single_calls_of_another(mesh: RouterBench, balancer: str) -> None:
    replica = await holding(mesh, slots=8, balancer=balancer)
    flood, single = await mesh.open(), await mesh.open()
    await flood.write(calls(1, *[b"flood"] * 8000))
    await wait_until(lambda: len(replica.payloads) == 8)
    for number in range(1, 4):
        await single.write(calls(number, b"single"))
        await taken(single)
        already = len(replica.payloads)
        while replica.payloads.count(b"single") < number:
            expected = len(replica.payloads) + 8
            await replica.answer_held()
            await wait_until(partial(_has, replica, expected))
        assert len(replica.payloads) - already <= 64 + 2 * 8, "a turn of the flood, and what fits beside it"
        expected = len(replica.payloads) + 8
        await replica.answer_held()
        assert (await outcomes(single, 1))[0] == {number: b"single"}
        await wait_until(partial(_has, replica, expected))


def _has(replica: FakeReplica, payloads: int) -> bool:
    return len(replica.payloads) >= payloads


@pytest.mark.asyncio
async def test_a_run_that_finds_the_queue_full_is_one_failure(mesh: RouterBench) -> None:
    await mesh.linked(max_queued_calls=10)
    call = await mesh.open()
    await call.write(calls(1, *[b"x"] * 5000))
    frame = (await next_frame(call)).results
    (errors,) = frame.errors
    assert list(ids_from_wire(errors.calls)) == list(range(11, 5001))
    assert errors.failure.reason == "QUEUE_FULL"
    assert errors.failure.HasField("retry_delay")
    assert errors.failure.metadata["backend"] == "b"


@pytest.mark.asyncio
async def test_a_burst_that_fits_the_free_slots_is_not_refused(mesh: RouterBench) -> None:
    replica = mesh.replicas[0]
    await mesh.with_slots(4, replica, max_queued_calls=1)
    replica.answer = hold
    streams = [await mesh.open() for _ in range(4)]
    for stream in streams:
        await stream.write(calls(1, b"x"))
    await wait_until(lambda: len(replica.payloads) == 4, what="all of them run")


@pytest.mark.asyncio
async def test_a_full_queue_still_takes_a_call_of_who_has_nothing_waiting(mesh: RouterBench) -> None:
    await mesh.linked(max_queued_calls=100)
    flood, quiet = await mesh.open(), await mesh.open()
    await flood.write(calls(1, *[b"x"] * 200))
    assert len((await outcomes(flood, 100))[1]) == 100
    await quiet.write(calls(1, b"quiet"))
    await taken(quiet)
    await mesh.linked(mesh.replicas[0])
    assert (await outcomes(quiet, 1))[0] == {1: b"quiet"}


@pytest.mark.asyncio
async def test_who_is_refused_hears_the_time_in_which_the_queue_drains(mesh: RouterBench) -> None:
    await mesh.linked(max_queued_calls=50, max_queue_time=Duration(seconds=7))
    call = await mesh.open()
    await call.write(calls(1, *[b"x"] * 50))
    await taken(call)
    delays = []
    for number in range(51, 61):
        await call.write(calls(number, b"x"))
        _, failed = await outcomes(call, 1)
        delay = failed[number].retry_delay
        delays.append(delay.seconds + delay.nanos / 1e9)
    assert len(set(delays)) > 5, "jittered"
    assert all(0 < delay <= 7 * 1.2 for delay in delays)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("scope", "order"),
    [
        (mesh_pb2.SLO_SCOPE_UNSPECIFIED, [b"runs", b"1", b"2", b"urgent"]),
        (mesh_pb2.SLO_SCOPE_BACKEND, [b"runs", b"urgent", b"1", b"2"]),
    ],
)
async def test_slos_order_among_clients_where_the_backend_says_so(
    mesh: RouterBench, scope: mesh_pb2.SloScope, order: list[bytes]
) -> None:
    replica = await holding(mesh, slots=1, slo_scope=scope)
    mine, theirs = await mesh.open(), await mesh.open()
    await mine.write(calls(1, b"runs"))
    await wait_until(lambda: replica.payloads)
    await mine.write(Request(calls=router_service_pb2.CallFrame(batches=[batch(2, b"1"), batch(3, b"2")])))
    await taken(mine)
    await theirs.write(calls(1, b"urgent", relative_slo=Duration(nanos=10_000_000)))
    await taken(theirs)
    replica.answer = echo
    await replica.answer_held()
    assert len((await outcomes(mine, 3))[0]) == 3
    assert len((await outcomes(theirs, 1))[0]) == 1
    assert replica.payloads == order
