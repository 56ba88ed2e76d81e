"""Large payloads through the router: announced, in chunks, between other frames, from clients to replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import grpc
import pytest
import pytest_asyncio

from router_service.core.features.uploads import MAX_UPLOAD_BYTES
from slotmesh.calls.fair_shares import SHARE
from slotmesh.streams.limits import CHUNK_BYTES, MAX_PAYLOAD_BYTES
from slotmesh.v1 import call_pb2, router_service_pb2
from tests.contract.replica.chunked_calls import LARGE, announced, chunks_of, upload
from tests.support.fakes.replica import FakeReplica
from tests.support.router_bench import Request, RouterBench, calls, next_frame, outcomes, router_bench
from tests.support.wait import wait_until


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        await bench.linked(bench.replicas[0])
        yield bench


def chunks_at(replica: FakeReplica) -> list[call_pb2.Chunk]:
    return [frame.chunk for frame in replica.frames if frame.WhichOneof("frame") == "chunk"]


@pytest.mark.asyncio
async def test_a_large_payload_reaches_the_replica_in_chunks(mesh: RouterBench) -> None:
    replica = mesh.replicas[0]
    replica.answer = lambda _: None
    call = await mesh.open()
    await call.write(announced(1, len(LARGE)))
    await upload(call, 1, LARGE)
    await wait_until(lambda: b"".join(chunk.data for chunk in chunks_at(replica)) == LARGE, what="the chunks arrive")
    (run,) = replica.runs
    assert (list(run.payloads), list(run.chunked_sizes)) == ([b""], [len(LARGE)])
    chunks = chunks_at(replica)
    assert {(chunk.call_id, chunk.total) for chunk in chunks} == {(run.first_run_id, len(LARGE))}
    assert [chunk.offset for chunk in chunks] == [*range(0, len(LARGE), CHUNK_BYTES)]


@pytest.mark.asyncio
async def test_an_inline_payload_that_is_large_goes_on_in_chunks(mesh: RouterBench) -> None:
    replica = mesh.replicas[0]
    replica.answer = lambda _: None
    call = await mesh.open()
    await call.write(calls(1, b"small", LARGE, b"after"))
    await wait_until(lambda: b"".join(chunk.data for chunk in chunks_at(replica)) == LARGE, what="the chunks arrive")
    (run,) = replica.runs
    assert (list(run.payloads), list(run.chunked_sizes)) == ([b"small", b"", b"after"], [0, len(LARGE), 0])


@pytest.mark.asyncio
@pytest.mark.parametrize("sizes", [(150_000,), (900_000, 0, 40_000), (0, 90_000, 90_000)])
async def test_large_payloads_that_fit_into_their_frame_go_both_ways(mesh: RouterBench, sizes: tuple[int, ...]) -> None:
    payloads = [LARGE[at : at + size] for at, size in enumerate(sizes)]
    call = await mesh.open()
    await call.write(calls(1, *payloads))
    done, failed = await outcomes(call, len(payloads))
    assert (done, failed) == (dict(enumerate(payloads, 1)), {})
    assert mesh.replicas[0].payloads == payloads


@pytest.mark.asyncio
async def test_others_pass_a_payload_that_is_under_way_and_those_of_its_key_do_not(mesh: RouterBench) -> None:
    replica = mesh.replicas[0]
    call = await mesh.open()
    await call.write(announced(1, 3, ordering_key="k"))
    await call.write(calls(2, b"same key", ordering_key="k"))
    await call.write(calls(3, b"other key", ordering_key="j"))
    await call.write(calls(4, b"no key"))
    done, _ = await outcomes(call, 2)
    assert done == {3: b"other key", 4: b"no key"}
    await upload(call, 1, b"big")
    done, _ = await outcomes(call, 2)
    assert done == {1: b"big", 2: b"same key"}
    assert replica.payloads[2:] == [b"big", b"same key"]


@pytest.mark.asyncio
async def test_small_frames_go_between_the_chunks_of_a_large_payload(mesh: RouterBench) -> None:
    replica = mesh.replicas[0]
    replica.answer = lambda _: None
    call, other = await mesh.open(), await mesh.open()
    large = LARGE * 12
    await call.write(announced(1, len(large)))
    await upload(call, 1, large)
    await wait_until(lambda: bool(chunks_at(replica)), what="the first chunk arrives")
    await other.write(calls(1, b"small"))
    await wait_until(lambda: sum(len(chunk.data) for chunk in chunks_at(replica)) == len(large), what="all arrives")
    kinds = [frame.WhichOneof("frame") for frame in replica.frames if frame.WhichOneof("frame") in ("chunk", "runs")]
    assert all(not (a == b == "runs") for a, b in pairwise(kinds))
    assert sorted(replica.payloads) == [b"", b"small"]


@pytest.mark.asyncio
async def test_a_payload_in_crumbs_fails_its_call_at_the_first(mesh: RouterBench) -> None:
    call = await mesh.open()
    await call.write(announced(1, len(LARGE)))
    await call.write(Request(chunk=call_pb2.Chunk(call_id=1, offset=0, total=len(LARGE), data=b"x")))
    _, failed = await outcomes(call, 1)
    assert (failed[1].reason, failed[1].executed) == ("BAD_REQUEST", call_pb2.EXECUTED_NO)
    assert failed[1].metadata["field"] == "chunk.data"
    assert "at least 16384" in failed[1].message


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("chunk", "field"),
    [
        (call_pb2.Chunk(call_id=1, offset=1, total=3, data=b"ab"), "offset"),
        (call_pb2.Chunk(call_id=1, offset=0, total=4, data=b"ab"), "total"),
        (call_pb2.Chunk(call_id=1, offset=0, total=3, data=b"abcd"), "data"),
        (call_pb2.Chunk(call_id=1, offset=0, total=3, data=b""), "data"),
    ],
)
async def test_a_chunk_that_breaks_the_rules_fails_its_call_and_no_other(
    mesh: RouterBench, chunk: call_pb2.Chunk, field: str
) -> None:
    call = await mesh.open()
    await call.write(announced(1, 3))
    await call.write(Request(chunk=chunk))
    _, failed = await outcomes(call, 1)
    assert (failed[1].reason, failed[1].metadata["field"]) == ("BAD_REQUEST", f"chunk.{field}")
    await upload(call, 1, b"abc")
    await call.write(calls(2, b"on"))
    done, _ = await outcomes(call, 1)
    assert done == {2: b"on"}


@pytest.mark.asyncio
async def test_what_is_announced_and_too_large_is_said_with_both_sizes(mesh: RouterBench) -> None:
    call = await mesh.open()
    await call.write(calls(1, b"x"))
    await outcomes(call, 1)
    await call.write(announced(2, MAX_PAYLOAD_BYTES + 1))
    _, failed = await outcomes(call, 1)
    assert failed[2].reason == "PAYLOAD_TOO_LARGE"
    facts = {name: fact for name, fact in failed[2].metadata.items() if name != "log_ref"}
    assert facts == {"actual": str(MAX_PAYLOAD_BYTES + 1), "limit": str(MAX_PAYLOAD_BYTES)}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "batch", [announced(1, 3, payloads=[b"here"]), announced(1, -1), announced(1, 3, payloads=[b"", b""])]
)
async def test_sizes_that_make_no_sense_reject_the_batch(mesh: RouterBench, batch: Request) -> None:
    call = await mesh.open()
    await call.write(batch)
    rejected = (await next_frame(call)).rejected
    assert (rejected.failure.reason, rejected.failure.metadata["field"]) == ("BAD_REQUEST", "chunked_sizes")


@pytest.mark.asyncio
async def test_the_largest_payload_reaches_the_replica(mesh: RouterBench) -> None:
    call = await mesh.open()
    await call.write(announced(1, MAX_PAYLOAD_BYTES))
    await upload(call, 1, bytes(MAX_PAYLOAD_BYTES))
    assert list((await outcomes(call, 1))[0]) == [1]
    await wait_until(
        lambda: sum(len(each.data) for each in chunks_at(mesh.replicas[0])) == MAX_PAYLOAD_BYTES, timeout=30.0
    )


@pytest.mark.asyncio
async def test_uploads_that_stop_leave_room_for_those_of_others(mesh: RouterBench) -> None:
    """One stream has a share of what there is, and who has nothing under way is always let in with a little."""
    stopped, others = await mesh.open(), await mesh.open()
    share = int(SHARE * MAX_UPLOAD_BYTES)
    window = 16 * 1024 * 1024
    for call_id, size in enumerate((share - window // 2, window // 2, 300_000), 1):
        await stopped.write(announced(call_id, size))
    _, failed = await outcomes(stopped, 1)
    assert {call_id: each.reason for call_id, each in failed.items()} == {3: "QUEUE_FULL"}
    assert {each.executed for each in failed.values()} == {call_pb2.EXECUTED_NO}
    await others.write(announced(1, len(LARGE)))
    await upload(others, 1, LARGE)
    assert list((await outcomes(others, 1))[0]) == [1]


@pytest.mark.asyncio
async def test_a_call_that_was_taken_back_wants_no_chunks(mesh: RouterBench) -> None:
    call = await mesh.open()
    await call.write(announced(1, len(LARGE)))
    await call.write(Request(chunk=chunks_of(1, LARGE)[0]))
    await call.write(Request(cancel=router_service_pb2.CancelCalls(calls=[call_pb2.IdRange(first=1, last=1)])))
    _, failed = await outcomes(call, 1)
    assert failed[1].reason == "CANCELLED"
    for chunk in chunks_of(1, LARGE)[1:]:
        await call.write(Request(chunk=chunk))
    await call.write(calls(2, b"on"))
    done, _ = await outcomes(call, 1)
    assert done == {2: b"on"}
    assert mesh.replicas[0].payloads == [b"on"]


@pytest.mark.asyncio
async def test_a_payload_that_is_missing_at_half_close_fails_its_call(mesh: RouterBench) -> None:
    call = await mesh.open()
    await call.write(announced(1, len(LARGE)))
    await call.write(Request(chunk=chunks_of(1, LARGE)[0]))
    await call.done_writing()
    _, failed = await outcomes(call, 1)
    assert (failed[1].reason, failed[1].executed) == ("BAD_REQUEST", call_pb2.EXECUTED_NO)
    assert f"{CHUNK_BYTES} of {len(LARGE)} bytes" in failed[1].message
    assert await call.code() is grpc.StatusCode.OK


@pytest.mark.asyncio
async def test_a_call_that_is_too_large_stops_those_behind_it(mesh: RouterBench) -> None:
    call = await mesh.open(session_id="a" * 32, epoch=1)
    await call.write(announced(1, MAX_PAYLOAD_BYTES + 1, ordering_key="k", stop_generation=1))
    await call.write(calls(2, b"b", ordering_key="k", stop_generation=1))
    _, failed = await outcomes(call, 2)
    assert [failed[each].reason for each in (1, 2)] == ["PAYLOAD_TOO_LARGE", "PREDECESSOR_FAILED"]


@pytest.mark.asyncio
async def test_a_router_that_stops_takes_the_rest_of_what_was_announced(mesh: RouterBench) -> None:
    call = await mesh.open()
    first, *rest = chunks_of(1, LARGE)
    await call.write(announced(1, len(LARGE)))
    await call.write(Request(chunk=first))
    stopping = asyncio.create_task(mesh.stop())
    assert (await next_frame(call)).WhichOneof("frame") == "go_away"
    for chunk in rest:
        await call.write(Request(chunk=chunk))
    await call.done_writing()
    done, failed = await outcomes(call, 1)
    assert (list(done), failed) == ([1], {})
    await stopping
