"""Large payloads through the router: announced, in chunks, between other frames, in both directions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import grpc
import pytest
import pytest_asyncio

from router_service.core.uploads.uploads import MAX_UPLOAD_BYTES, SHARE
from slotmesh.v1 import call_pb2, replica_service_pb2, router_service_pb2
from slotmesh.wire.limits import CHUNK_BYTES, MAX_PAYLOAD_BYTES
from tests.support.fakes.replica import FakeReplica
from tests.support.router_bench import Call, Request, Response, RouterBench, calls, next_frame, outcomes, router_bench
from tests.support.wait import wait_until

LARGE = bytes(range(256)) * (CHUNK_BYTES * 4 // 256) + b"the end"
"""Five chunks, the last one short."""


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        await bench.linked(bench.replicas[0])
        yield bench


def announced(first: int, *sizes: int, payloads: Sequence[bytes] | None = None, **options: object) -> Request:
    batch = router_service_pb2.CallBatch(
        first_call_id=first,
        payloads=payloads or [b""] * len(sizes),
        chunked_sizes=sizes,
        options=call_pb2.CallOptions(**options),  # type: ignore[arg-type]
    )
    return Request(calls=router_service_pb2.CallFrame(batches=[batch]))


def chunks_of(call_id: int, payload: bytes) -> list[call_pb2.Chunk]:
    return [
        call_pb2.Chunk(call_id=call_id, offset=at, total=len(payload), data=payload[at : at + CHUNK_BYTES])
        for at in range(0, len(payload), CHUNK_BYTES)
    ]


async def upload(call: Call, call_id: int, payload: bytes) -> None:
    for chunk in chunks_of(call_id, payload):
        await call.write(Request(chunk=chunk))


def chunks_at(replica: FakeReplica) -> list[call_pb2.Chunk]:
    return [frame.chunk for frame in replica.frames if frame.WhichOneof("frame") == "chunk"]


async def assemble(call: Call, ids: int) -> dict[int, bytes]:
    """Results of so many calls, whether they came in chunks or not."""
    parts: dict[int, bytes] = {}
    results: dict[int, bytes] = {}
    while len(results) < ids:
        frame = await next_frame(call)
        if frame.WhichOneof("frame") == "chunk":
            chunk = frame.chunk
            assert chunk.offset == len(parts.setdefault(chunk.call_id, b""))
            parts[chunk.call_id] += chunk.data
            continue
        for batch in frame.results.batches:
            sizes = batch.chunked_sizes or [0] * len(batch.call_ids)
            for call_id, payload, size in zip(batch.call_ids, batch.payloads, sizes, strict=True):
                results[call_id] = parts.pop(call_id) if size else payload
                assert not size or len(results[call_id]) == size
    assert not parts
    return results


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
    assert failed[2].metadata == {"actual": str(MAX_PAYLOAD_BYTES + 1), "limit": str(MAX_PAYLOAD_BYTES)}


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
    await wait_until(lambda: sum(len(each.data) for each in chunks_at(mesh.replicas[0])) == MAX_PAYLOAD_BYTES)


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


# -- results -----------------------------------------------------------------------------------------------------------


def large_results(batch: replica_service_pb2.RunBatch) -> list[replica_service_pb2.ExecuteResponse]:
    """Each call's result is large."""
    ids = range(batch.first_run_id, batch.first_run_id + len(batch.payloads))
    frames = [replica_service_pb2.ExecuteResponse(chunk=chunk) for each in ids for chunk in chunks_of(each, LARGE)]
    sizes = [len(LARGE)] * len(ids)
    result = call_pb2.ResultBatch(call_ids=ids, payloads=[b""] * len(ids), chunked_sizes=sizes)
    frames.append(replica_service_pb2.ExecuteResponse(results=call_pb2.ResultFrame(batches=[result])))
    return frames


async def answer_large(mesh: RouterBench, call: Call, *payloads: bytes) -> None:
    replica = mesh.replicas[0]
    runs: list[replica_service_pb2.RunBatch] = []
    replica.answer = runs.append
    await call.write(calls(1, *payloads))
    await wait_until(lambda: bool(runs), what="the run arrives")
    for frame in large_results(runs[0]):
        await replica.say(frame)


@pytest.mark.asyncio
async def test_large_results_come_in_chunks_to_who_takes_them(mesh: RouterBench) -> None:
    call = await mesh.open(features=["chunks"])
    await answer_large(mesh, call, b"a", b"b")
    assert await assemble(call, 2) == {1: LARGE, 2: LARGE}


@pytest.mark.asyncio
async def test_large_results_come_in_one_piece_to_who_does_not(mesh: RouterBench) -> None:
    call = await mesh.open()
    await answer_large(mesh, call, b"a")
    done, _ = await outcomes(call, 1)
    assert done == {1: LARGE}


@pytest.mark.asyncio
async def test_a_large_result_that_comes_inline_goes_on_in_chunks(mesh: RouterBench) -> None:
    call = await mesh.open(features=["chunks"])
    await call.write(calls(1, b"small"))
    await outcomes(call, 1)

    def inline(batch: replica_service_pb2.RunBatch) -> replica_service_pb2.ExecuteResponse:
        result = call_pb2.ResultBatch(call_ids=[batch.first_run_id], payloads=[LARGE])
        return replica_service_pb2.ExecuteResponse(results=call_pb2.ResultFrame(batches=[result]))

    mesh.replicas[0].answer = inline
    await call.write(calls(2, b"now"))
    assert await assemble(call, 1) == {2: LARGE}


@pytest.mark.asyncio
async def test_a_result_that_is_too_large_for_one_piece_says_so(mesh: RouterBench) -> None:
    call = await mesh.open()
    replica = mesh.replicas[0]
    runs: list[replica_service_pb2.RunBatch] = []
    replica.answer = runs.append
    await call.write(calls(1, b"a"))
    await wait_until(lambda: bool(runs), what="the run arrives")
    large = LARGE * 5
    for chunk in chunks_of(runs[0].first_run_id, large):
        await replica.say(replica_service_pb2.ExecuteResponse(chunk=chunk))
    result = call_pb2.ResultBatch(call_ids=[runs[0].first_run_id], payloads=[b""], chunked_sizes=[len(large)])
    await replica.say(replica_service_pb2.ExecuteResponse(results=call_pb2.ResultFrame(batches=[result])))
    _, failed = await outcomes(call, 1)
    assert (failed[1].reason, failed[1].executed) == ("PAYLOAD_TOO_LARGE", call_pb2.EXECUTED_YES)
    assert failed[1].metadata["actual"] == str(len(large))


@pytest.mark.asyncio
async def test_small_results_pass_a_large_one(mesh: RouterBench) -> None:
    call = await mesh.open(features=["chunks"])
    replica = mesh.replicas[0]
    runs: list[replica_service_pb2.RunBatch] = []
    replica.answer = runs.append
    await call.write(calls(1, b"a", b"b"))
    await wait_until(lambda: bool(runs), what="the run arrives")
    first = runs[0].first_run_id
    large = LARGE * 40
    for chunk in chunks_of(first, large):
        await replica.say(replica_service_pb2.ExecuteResponse(chunk=chunk))
    results = [
        call_pb2.ResultBatch(call_ids=[first], payloads=[b""], chunked_sizes=[len(large)]),
        call_pb2.ResultBatch(call_ids=[first + 1], payloads=[b"small"]),
    ]
    await replica.say(replica_service_pb2.ExecuteResponse(results=call_pb2.ResultFrame(batches=results)))
    frames: list[Response] = [await next_frame(call) for _ in range(3)]
    assert 2 in [call_id for frame in frames for batch in frame.results.batches for call_id in batch.call_ids]


@pytest.mark.asyncio
async def test_a_result_whose_chunks_never_came_ends_the_link_and_no_caller_waits(mesh: RouterBench) -> None:
    call = await mesh.open()
    replica = mesh.replicas[0]

    def lie(batch: replica_service_pb2.RunBatch) -> replica_service_pb2.ExecuteResponse:
        result = call_pb2.ResultBatch(call_ids=[batch.first_run_id], payloads=[b""], chunked_sizes=[9])
        return replica_service_pb2.ExecuteResponse(results=call_pb2.ResultFrame(batches=[result]))

    replica.answer = lie
    await call.write(calls(1, b"a"))
    _, failed = await outcomes(call, 1)
    assert (failed[1].reason, failed[1].executed) == ("REPLICA_LOST", call_pb2.EXECUTED_UNKNOWN)
    assert "chunked_sizes" in failed[1].message


@pytest.mark.asyncio
@pytest.mark.parametrize(("fields", "needs"), [({}, "an ordering key"), ({"ordering_key": "k"}, "a session")])
async def test_what_stops_after_a_failure_needs_a_key_and_a_session(
    mesh: RouterBench, fields: dict[str, str], needs: str
) -> None:
    call = await mesh.open()
    await call.write(calls(1, b"a", stop_generation=1, **fields))
    _, failed = await outcomes(call, 1)
    assert (failed[1].reason, failed[1].metadata["field"]) == ("BAD_REQUEST", "options.stop_generation")
    assert needs in failed[1].message


@pytest.mark.asyncio
async def test_a_large_value_and_the_failure_behind_it_may_come_in_one_frame(mesh: RouterBench) -> None:
    call = await mesh.open(features=["chunks"])
    replica = mesh.replicas[0]
    runs: list[replica_service_pb2.RunBatch] = []
    replica.answer = runs.append
    await call.write(calls(1, b"a", streaming=True))
    await wait_until(lambda: bool(runs), what="the run arrives")
    run_id = runs[0].first_run_id
    for chunk in chunks_of(run_id, LARGE):
        await replica.say(replica_service_pb2.ExecuteResponse(chunk=chunk))
    value = call_pb2.ResultBatch(call_ids=[run_id], payloads=[b""], chunked_sizes=[len(LARGE)], partial=True)
    failure = call_pb2.Failure(code=2, reason="HANDLER_ERROR", message="no", executed=call_pb2.EXECUTED_YES)
    frame = call_pb2.ResultFrame(batches=[value], errors=[call_pb2.CallErrors(call_ids=[run_id], failure=failure)])
    await replica.say(replica_service_pb2.ExecuteResponse(results=frame))
    assert await assemble(call, 1) == {1: LARGE}


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
