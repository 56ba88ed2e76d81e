"""CancelCalls over real gRPC: each call that is taken back is answered at once, and says whether it may have run."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from slotmesh.errors import Executed
from slotmesh.v1 import call_pb2, router_service_pb2
from tests.support.fakes.replica import FakeReplica, echo, hold
from tests.support.router_bench import Request, RouterBench, calls, outcomes, router_bench, taken
from tests.support.wait import wait_until


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        yield bench


def cancel(*ranges: tuple[int, int]) -> Request:
    ids = [call_pb2.IdRange(first=first, last=last) for first, last in ranges]
    return Request(cancel=router_service_pb2.CancelCalls(calls=ids))


def told(replica: FakeReplica) -> list[int]:
    """Run ids that the replica was told to cancel."""
    frames = [frame.cancel for frame in replica.frames if frame.WhichOneof("frame") == "cancel"]
    return [run_id for frame in frames for each in frame.runs for run_id in range(each.first, each.last + 1)]


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["", "k"])
async def test_what_waits_is_removed_and_never_runs(mesh: RouterBench, key: str) -> None:
    await mesh.linked()
    call = await mesh.open()
    await call.write(calls(1, b"1", b"2", b"3", b"4", b"5", ordering_key=key))
    await call.write(cancel((2, 3), (5, 5)))
    done, failed = await outcomes(call, 3)
    assert not done
    assert set(failed) == {2, 3, 5}
    assert {(failure.reason, failure.executed) for failure in failed.values()} == {("CANCELLED", Executed.NO.value)}
    await mesh.linked(mesh.replicas[0])
    assert (await outcomes(call, 2))[0] == {1: b"1", 4: b"4"}
    assert mesh.replicas[0].payloads == [b"1", b"4"]
    assert not told(mesh.replicas[0])


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["", "k"])
async def test_what_runs_is_cancelled_at_its_replica(mesh: RouterBench, key: str) -> None:
    await mesh.linked(mesh.replicas[0])
    replica = mesh.replicas[0]
    replica.answer = hold
    other = await mesh.open()
    await other.write(calls(1, b"other", method="of another caller"))
    await wait_until(lambda: replica.runs)
    call = await mesh.open()
    await call.write(calls(1, b"1", b"2", b"3", b"4", ordering_key=key))
    await wait_until(lambda: len(replica.payloads) == 5)
    await call.write(cancel((2, 3)))
    _, failed = await outcomes(call, 2)
    assert {id_: (failure.reason, failure.executed) for id_, failure in failed.items()} == {
        2: ("CANCELLED", Executed.UNKNOWN.value),
        3: ("CANCELLED", Executed.UNKNOWN.value),
    }
    await wait_until(lambda: told(replica), what="the replica is told")
    run_id_of = {run.payloads[at]: run.first_run_id + at for run in replica.runs for at in range(len(run.payloads))}
    assert told(replica) == [run_id_of[b"2"], run_id_of[b"3"]]
    await replica.answer_held()
    assert (await outcomes(call, 2))[0] == {1: b"1", 4: b"4"}
    assert (await outcomes(other, 1))[0] == {1: b"other"}


@pytest.mark.asyncio
async def test_ids_that_are_unknown_or_answered_are_ignored(mesh: RouterBench) -> None:
    call = await mesh.open()
    await call.write(calls(5, b"5"))
    assert (await outcomes(call, 1))[0] == {5: b"5"}
    await call.write(cancel((5, 5), (1, 4), (6, 2**62), (-3, 0), (9, 7)))
    await call.write(cancel())
    await call.write(calls(6, b"6"))
    assert (await outcomes(call, 1))[0] == {6: b"6"}
    assert not any(told(replica) for replica in mesh.replicas)


@pytest.mark.asyncio
async def test_the_same_ids_of_another_stream_are_left_alone(mesh: RouterBench) -> None:
    await mesh.linked()
    mine, other = await mesh.open(), await mesh.open()
    await other.write(calls(1, b"other"))
    await mine.write(calls(1, b"mine"))
    await taken(mine, other)
    await mine.write(cancel((1, 1)))
    assert (await outcomes(mine, 1))[1][1].reason == "CANCELLED"
    await mesh.linked(mesh.replicas[0])
    assert (await outcomes(other, 1))[0] == {1: b"other"}


@pytest.mark.asyncio
async def test_what_was_taken_back_leaves_the_window_and_the_slot(mesh: RouterBench) -> None:
    replica = mesh.replicas[0]
    await mesh.with_slots(4, replica)
    replica.answer = hold
    call = await mesh.open()
    await call.write(calls(1, *[b"x"] * 8192))
    await wait_until(lambda: len(replica.payloads) == 4)
    await call.write(cancel((1, 8192)))
    _, failed = await outcomes(call, 8192)
    assert {failure.reason for failure in failed.values()} == {"CANCELLED"}
    await call.write(calls(8193, b"next"))
    replica.answer = echo
    await replica.answer_held()
    assert (await outcomes(call, 1))[0] == {8193: b"next"}
