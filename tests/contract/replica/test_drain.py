"""What becomes of calls that still run when the grace of a replica is over: cancelled, answered, and each one once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from slotmesh.errors import Executed
from slotmesh.runtime.channels import open_channel
from slotmesh.v1 import call_pb2
from tests.contract.draining_handlers import Handler
from tests.support.execute_stream import ExecuteStream
from tests.support.replicas import RunningReplica, running_replica
from tests.support.slot_doors import DirectDoor, Failed
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

HANDLER = "tests.contract.draining_handlers:Handler"
UNKNOWN = "EXECUTED_UNKNOWN"


@pytest_asyncio.fixture
async def replica() -> AsyncIterator[RunningReplica]:
    async with running_replica(HANDLER, graceful_timeout="50ms") as running:
        yield running
        handler_of(running).thread_gate.set()


def handler_of(replica: RunningReplica) -> Handler:
    handler = replica.handler
    assert isinstance(handler, Handler)
    return handler


def told(stream: ExecuteStream, run_id: int) -> tuple[str, str]:
    failure = stream.failures[run_id]
    return failure.reason, call_pb2.Executed.Name(failure.executed)


async def stopped(replica: RunningReplica, stream: ExecuteStream) -> int:
    """Has the replica stop, with a router that does what it is asked for; returns the exit status."""
    stopping = asyncio.ensure_future(replica.stop())
    await wait_until(lambda: stream.is_dismissed, what="it asks for the half-close")
    await stream.call.done_writing()
    await wait_until(lambda: stream.ended, what="the stream ends, whatever still runs")
    assert stream.error is None
    return await stopping


async def began(replica: RunningReplica, *payloads: bytes) -> None:
    await wait_until(lambda: set(handler_of(replica).began) >= set(payloads), what=f"{payloads} have begun")


CUT_OFF = ("DRAINING", UNKNOWN)


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("hang", {}),
        ("hang", {"key": "k"}),
        ("hang", {"session_id": "s" * 16, "call_ids": [1]}),
        ("count", {"streaming": True}),
        ("count", {"content_type": "application/msgpack"}),
        ("count_in_thread", {"streaming": True}),
        ("pairs", {}),
        ("pairs", {"key": "k"}),
    ],
)
async def test_what_still_runs_is_cancelled_and_answered(
    replica: RunningReplica, method: str, fields: dict[str, object]
) -> None:
    handler = handler_of(replica)
    payload = b"\x91\xc4\x01x" if "content_type" in fields else b"x"
    async with replica.router() as stream:
        await stream.send(stream.run([payload], method=method, **fields))  # type: ignore[arg-type]
        await began(replica, b"x")
        assert await stopped(replica, stream) == 0
        assert handler.cancelled == [b"x"]
        assert told(stream, 1) == CUT_OFF
        assert stream.answered == 1
        assert stream.error is None


async def test_a_lane_ends_with_the_call_that_runs(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"a", b"b", b"c"], method="hang", key="k"))
        await began(replica, b"a")
        assert await stopped(replica, stream) == 0
        assert handler_of(replica).began == [b"a"]
        assert told(stream, 1) == CUT_OFF
        assert {run_id: failure.reason for run_id, failure in stream.refused.items()} == {2: "DRAINING", 3: "DRAINING"}
        assert stream.answered == 3


async def test_a_handler_that_ends_its_work_all_the_same_is_heard(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"a"], method="insist"))
        await began(replica, b"a")
        assert await stopped(replica, stream) == 0
        assert handler_of(replica).cancelled == [b"a"]
        assert stream.results == {1: b"a"}


@pytest.mark.parametrize("method", ["hang_in_thread", "ignore"])
async def test_what_cannot_be_cancelled_is_lost_and_everybody_else_is_heard(
    replica: RunningReplica, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replica_service.app.ROUTER_GRACE_S", 30.0)  # routers that half-close need no grace
    async with replica.router() as stream:
        await stream.send(stream.run([b"lost"], method=method), stream.run([b"cancelled"], method="hang"))
        await began(replica, b"lost", b"cancelled")
        assert await stopped(replica, stream) == 1
        assert told(stream, 2) == CUT_OFF
        assert stream.answered == 1, "the end of the stream says that the other one may have been executed"


async def test_calls_that_are_on_their_way_at_the_end_are_handed_back(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"lost"], method="hang_in_thread"))
        await began(replica, b"lost")
        stopping = asyncio.ensure_future(replica.stop())
        await wait_until(lambda: stream.is_dismissed)
        await stream.send(stream.run([b"late"], method="hang"))
        await stream.call.done_writing()
        await wait_until(lambda: stream.ended)
        assert [failure.reason for failure in stream.refused.values()] == ["DRAINING"]
        assert await stopping == 1


@pytest.mark.parametrize(("method", "status"), [("hang", 0), ("hang_in_thread", 1)])
async def test_callers_who_speak_to_the_replica_itself_hear_that_it_ends(
    replica: RunningReplica, method: str, status: int
) -> None:
    async with open_channel(replica.address) as channel:
        door = DirectDoor(channel)
        slot = await door.reserve()
        calling = asyncio.ensure_future(door.dispatch(slot.token, b"x", method=method))
        await began(replica, b"x")
        assert await replica.stop() == status
        with pytest.raises(Failed, match="still ran when its grace was over") as caught:
            await calling
        assert caught.value.told == ("REPLICA_LOST", Executed.UNKNOWN)


async def test_a_drain_hands_back_what_the_event_loop_has_not_come_to() -> None:
    async with running_replica(HANDLER, graceful_timeout="5s") as replica, replica.router() as stream:
        payloads = [b"%d" % number for number in range(10)]
        await stream.send(stream.run(payloads, method="block"))
        await began(replica, b"0")
        assert await stopped(replica, stream) == 0
        executed = handler_of(replica).began
        assert len(executed) < len(payloads)
        assert sorted(stream.results.values()) == sorted(executed)
        assert len(stream.refused) == len(payloads) - len(executed)
