"""Who executed a call: every response says it, and streams do to those who want to know it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import slotmesh
import slotmesh.testing
from slotmesh.convert.batches import ids_of_results
from slotmesh.runtime.channels import open_channel
from slotmesh.streams.features import CHUNKS, EXECUTORS
from slotmesh.streams.limits import MAX_FRAME_BYTES
from slotmesh.testing import Backend
from slotmesh.v1 import (
    call_pb2,
    router_service_pb2,
    router_service_pb2_grpc,
    slot_service_pb2,
    slot_service_pb2_grpc,
)
from tests.support.fakes.replica import echo, hold, results
from tests.support.router_bench import Call, RouterBench, calls, next_frame, router_bench
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


class Words:
    """Says what it is asked to, or word by word."""

    async def echo(self, text: bytes) -> bytes:
        return text

    async def each(self, text: bytes) -> AsyncIterator[bytes]:
        for word in text.split():
            yield word


@pytest_asyncio.fixture
async def words() -> AsyncIterator[slotmesh.testing.RunningMesh]:
    async with slotmesh.testing.mesh({"words-v1": Backend(Words)}, traffic={"words": {"words-v1": 1.0}}) as mesh:
        yield mesh


def request(method: str, text: bytes) -> router_service_pb2.CallStreamingRequest:
    return router_service_pb2.CallStreamingRequest(
        endpoint="words", options=call_pb2.CallOptions(method=method), payload=text
    )


async def test_unary_rpcs_say_it(words: slotmesh.testing.RunningMesh) -> None:
    (replica_id,) = words.replica_ids("words-v1")
    async with open_channel(words.router_addresses[0]) as channel:
        stub = router_service_pb2_grpc.RouterServiceStub(channel)
        options = call_pb2.CallOptions(method="echo")
        said = await stub.Call(router_service_pb2.CallRequest(endpoint="words", options=options, payload=b"x"))
        assert (said.backend, said.replica_id) == ("words-v1", replica_id)
        call = router_service_pb2.CallRequest(endpoint="words", options=options)
        call.arguments.list_value.values.add(string_value="eA==")
        in_json = await stub.Call(call)
        assert (in_json.backend, in_json.replica_id) == ("words-v1", replica_id)


@pytest.mark.parametrize("method", ["each", "echo"])
async def test_of_several_values_the_first_one_says_it(words: slotmesh.testing.RunningMesh, method: str) -> None:
    (replica_id,) = words.replica_ids("words-v1")
    async with open_channel(words.router_addresses[0]) as channel:
        stub = router_service_pb2_grpc.RouterServiceStub(channel)
        values = [value async for value in stub.CallStreaming(request(method, b"a b c"))]
        assert len(values) == (3 if method == "each" else 1)
        said = [(value.backend, value.replica_id) for value in values]
        assert said == [("words-v1", replica_id), *[("", "")] * (len(values) - 1)]


@pytest.mark.parametrize("at_replica", [False, True])
async def test_calls_in_slots_say_it(words: slotmesh.testing.RunningMesh, at_replica: bool) -> None:
    (replica_id,) = words.replica_ids("words-v1")
    async with open_channel(words.router_addresses[0]) as channel:
        router = slot_service_pb2_grpc.SlotServiceStub(channel)
        slots = [
            (await router.ReserveSlot(slot_service_pb2.ReserveSlotRequest(endpoint="words"))).slot for _ in range(2)
        ]
        async with open_channel(slots[0].replica_address) as direct:
            stub = slot_service_pb2_grpc.SlotServiceStub(direct if at_replica else channel)
            options = call_pb2.CallOptions(method="echo")
            said = await stub.Dispatch(
                slot_service_pb2.DispatchRequest(token=slots[0].token, options=options, payload=b"x")
            )
            assert (said.payload, said.backend, said.replica_id) == (b"x", "words-v1", replica_id)
            streaming = slot_service_pb2.DispatchStreamingRequest(
                token=slots[1].token, options=call_pb2.CallOptions(method="each"), payload=b"a b"
            )
            values = [value async for value in stub.DispatchStreaming(streaming)]
            assert [(value.payload, value.replica_id) for value in values] == [(b"a", replica_id), (b"b", "")]


# -- streams ----------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        yield bench


async def batches_of(call: Call, count: int) -> list[call_pb2.ResultBatch]:
    """Batches of results, until so many calls have theirs."""
    batches: list[call_pb2.ResultBatch] = []
    while sum(len(ids_of_results(batch)) for batch in batches) < count:
        batches += (await next_frame(call)).results.batches
    return batches


def executors_of(batch: call_pb2.ResultBatch) -> dict[int, tuple[str, str]]:
    """Backend and replica of each call."""
    found: dict[int, tuple[str, str]] = {}
    for start, backend, replica_id in zip(batch.executor_starts, batch.backends, batch.replica_ids, strict=True):
        found.update(dict.fromkeys(ids_of_results(batch)[start:], (backend, replica_id)))
    return found


async def test_a_stream_says_it_to_who_asks(bench: RouterBench) -> None:
    for replica in bench.replicas:
        replica.answer = hold
    call = await bench.open(features=[EXECUTORS])
    await call.write(calls(1, *[b"%d" % number for number in range(1, 101)]))
    await wait_until(lambda: sum(len(run.payloads) for each in bench.replicas for run in each.runs) == 100)
    for replica in bench.replicas:
        for run in replica.runs:
            await replica.say(echo(run))
    found: dict[int, tuple[str, str]] = {}
    for batch in await batches_of(call, 100):
        found |= executors_of(batch)
    expected = {
        int(payload): ("b", f"r{at}")
        for at, replica in enumerate(bench.replicas)
        for run in replica.runs
        for payload in run.payloads
    }
    assert found == expected
    assert {replica_id for _, replica_id in found.values()} == {"r0", "r1"}


async def test_nobody_else_pays_for_it(bench: RouterBench) -> None:
    call = await bench.open()
    await call.write(calls(1, b"a", b"b"))
    for batch in await batches_of(call, 2):
        assert not [*batch.executor_starts, *batch.backends, *batch.replica_ids]


async def test_large_results_say_it(bench: RouterBench) -> None:
    await bench.linked(bench.replicas[0])
    bench.replicas[0].answer = lambda run: results(run, [b"x" * (MAX_FRAME_BYTES + 1)])
    call = await bench.open(features=[EXECUTORS, CHUNKS])
    await call.write(calls(1, b"x"))
    (batch,) = await batches_of(call, 1)
    assert list(batch.chunked_sizes) == [MAX_FRAME_BYTES + 1]
    assert executors_of(batch) == {1: ("b", "r0")}
