"""Lanes that stop after a failure, over real gRPC: what does not start, and when it goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.streams.limits import MAX_INLINE_BYTES
from tests.support.execute_stream import ExecuteStream
from tests.support.replicas import RunningReplica, running_replica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

HANDLERS = "tests.contract.stopping_handlers"
NO, UNKNOWN, YES = 1, 2, 3
SESSION = "570" * 10 + "00"
STOPPED = ("PREDECESSOR_FAILED", NO)


@pytest_asyncio.fixture
async def replica() -> AsyncIterator[RunningReplica]:
    async with running_replica(f"{HANDLERS}:Handler", graceful_timeout="200ms") as running:
        yield running


class Lane:
    """Sends calls of a session on one stream."""

    def __init__(self, stream: ExecuteStream, *, epoch: int = 1, next_id: int = 1) -> None:
        self.stream = stream
        self.epoch = epoch
        self.next_id = next_id

    def calls(self, *payloads: bytes, stop: int = 1, key: str = "k", **fields: Any) -> replica_service_pb2.RunBatch:
        first, self.next_id = self.next_id, self.next_id + len(payloads)
        given = {"method": "work", "session_id": SESSION, "session_epoch": self.epoch, "call_ids": [first], **fields}
        return self.stream.run(payloads, stop=stop, key=key, **given)


def failures(stream: ExecuteStream, ids: Sequence[int]) -> list[tuple[str, int]]:
    return [(stream.failures[run_id].reason, stream.failures[run_id].executed) for run_id in ids]


@pytest.mark.parametrize("method", ["work", "work_in_thread", "work_waiting"])
@pytest.mark.parametrize("is_one_run", [True, False])
async def test_what_comes_after_a_failure_does_not_run(replica: RunningReplica, method: str, is_one_run: bool) -> None:
    async with replica.router() as stream:
        lane = Lane(stream)
        payloads = [b"1", b"bad", b"3", b"4"]
        runs = [payloads] if is_one_run else [[payload] for payload in payloads]
        await stream.send(*(lane.calls(*run, method=method) for run in runs))
        await stream.wait_answers(4)
        assert stream.results == {1: b"1"}
        assert failures(stream, (2, 3, 4)) == [("HANDLER_ERROR", YES), STOPPED, STOPPED]
        await stream.send(lane.calls(b"5", method=method), lane.calls(b"6", stop=2, method=method))
        await stream.wait_answers(6)
        assert failures(stream, (5,)) == [STOPPED]
        assert stream.results == {1: b"1", 6: b"6"}
        assert replica.handler.seen == [b"1", b"bad", b"6"]


async def test_other_keys_other_endpoints_and_calls_that_go_on_are_not_stopped(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        lane = Lane(stream)
        await stream.send(
            lane.calls(b"bad"),
            lane.calls(b"key", key="other"),
            lane.calls(b"endpoint", endpoint="other"),
            lane.calls(b"goes on", stop=0),
            lane.calls(b"bad", stop=0, key="third"),
            lane.calls(b"after", stop=1, key="third"),
            stream.run([b"basic"], method="work", key="k", stop=1),
        )
        await stream.wait_answers(7)
        assert set(stream.failures) == {1, 5}


async def test_a_generation_that_is_over_stays_stopped(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        lane = Lane(stream)
        await stream.send(lane.calls(b"bad"), lane.calls(b"bad", stop=2), lane.calls(b"3", stop=1))
        await stream.send(lane.calls(b"4", stop=2), lane.calls(b"5", stop=3))
        await stream.wait_answers(5)
        assert failures(stream, (3, 4)) == [STOPPED, STOPPED]
        assert stream.results == {5: b"5"}


async def test_a_result_that_cannot_be_sent_is_a_failure(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        lane = Lane(stream)
        await stream.send(
            lane.calls(b"1", b"2", method="unsendable"),
            lane.calls(b"1", b"2", method="huge_in_thread", key="thread", max_result_bytes=MAX_INLINE_BYTES),
        )
        await stream.wait_answers(4)
        assert failures(stream, (1, 2, 3, 4)) == [("HANDLER_ERROR", YES), STOPPED, ("PAYLOAD_TOO_LARGE", YES), STOPPED]
        assert replica.handler.seen == [b"1", b"1"]


@pytest.mark.parametrize("method", ["wait", "wait_in_thread"])
async def test_a_call_that_is_taken_back_stops_those_behind_it_and_none_before(
    replica: RunningReplica, method: str
) -> None:
    async with replica.router() as stream:
        lane = Lane(stream)
        await stream.send(lane.calls(b"1", b"2", b"3", b"4", method=method), lane.calls(b"5"))
        await wait_until(lambda: replica.handler.seen == [b"1"])
        (running,) = replica.engine.scheduler._state.lanes.all()
        await stream.cancel((3, 3))
        await wait_until(lambda: running.turn and running.turn.run.withdrawn)
        replica.handler.open_all()
        await stream.wait_answers(5)
        assert stream.results == {1: b"1", 2: b"2"}
        assert failures(stream, (3, 4, 5)) == [("CANCELLED", NO), STOPPED, STOPPED]


async def test_a_router_that_asks_is_told_at_once_that_nothing_starts_behind_a_call_that_goes_on(
    replica: RunningReplica,
) -> None:
    async with replica.router() as stream:
        lane = Lane(stream)
        await stream.send(lane.calls(b"1", b"2", method="wait_in_thread"), lane.calls(b"3", method="wait_in_thread"))
        await wait_until(lambda: replica.handler.seen == [b"1"])
        await stream.cancel((1, 1), tell_stopped=True)
        await wait_until(lambda: stream.stopped)
        assert stream.stopped == [(1, 1)]
        replica.handler.open_all()
        await stream.wait_answers(3)
        assert stream.results == {1: b"1"}
        assert failures(stream, (2, 3)) == [STOPPED, STOPPED]


@pytest.mark.parametrize("method", ["work", "work_in_thread", "work_together"])
async def test_a_result_that_its_caller_does_not_take_stops_the_lane_where_it_was_made(
    replica: RunningReplica, method: str
) -> None:
    async with replica.router() as stream:
        lane = Lane(stream)
        await stream.send(lane.calls(b"small", b"much too large", max_result_bytes=10, method=method))
        await stream.send(lane.calls(b"3", method=method))
        await stream.wait_answers(3)
        assert stream.results == {1: b"small"}
        assert failures(stream, (2, 3)) == [("PAYLOAD_TOO_LARGE", YES), STOPPED]


async def test_a_call_that_is_cancelled_while_it_runs_stops_those_behind_it(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        lane = Lane(stream)
        await stream.send(lane.calls(b"1", b"2", method="wait"))
        await wait_until(lambda: replica.handler.seen == [b"1"])
        await stream.cancel((1, 1))
        await stream.wait_answers(2)
        assert failures(stream, (1, 2)) == [("CANCELLED", UNKNOWN), STOPPED]


async def test_a_deadline_that_passes_stops_the_lane(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        lane = Lane(stream)
        await stream.send(lane.calls(b"1", b"2", method="wait", time_left_s=0.05), lane.calls(b"3"))
        await wait_until(lambda: replica.handler.seen == [b"1"])
        (running,) = replica.engine.scheduler._state.lanes.all()
        deadline = running.runs[0].deadline
        await wait_until(lambda: replica.app._clock.now() > deadline)
        replica.handler.open_all()
        await stream.wait_answers(3)
        assert failures(stream, (2, 3)) == [("DEADLINE_IN_QUEUE", NO), STOPPED]


async def test_calls_that_nobody_waits_for_stop_too(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        lane = Lane(stream)
        await stream.send(lane.calls(b"bad", b"2", no_reply=True), lane.calls(b"3"))
        await stream.wait_answers(3)
        assert stream.done == {1, 2}
        assert failures(stream, (3,)) == [STOPPED]
        assert replica.handler.seen == [b"bad"]


async def test_batches_stop_at_their_ends(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        lane = Lane(stream)
        await stream.send(lane.calls(b"1", b"bad", b"3", method="work_together"))
        await stream.wait_answers(3)
        assert [reason for reason, _ in failures(stream, (1, 2, 3))] == ["HANDLER_ERROR"] * 2 + ["PREDECESSOR_FAILED"]
        await stream.send(
            lane.calls(b"4", b"5", method="work_together"), lane.calls(b"6", stop=2, method="work_together")
        )
        await stream.wait_answers(6)
        assert failures(stream, (4, 5)) == [STOPPED, STOPPED]
        assert stream.results == {6: b"6"}
        assert replica.handler.seen == [b"1", b"bad", b"6"]


async def test_a_batch_leaves_out_what_a_call_that_was_taken_back_stops(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        lane = Lane(stream)
        await stream.send(lane.calls(b"1", b"2", b"3", method="work_gathered"))
        await stream.cancel((2, 2))
        await stream.wait_answers(3)
        assert failures(stream, (2, 3)) == [("CANCELLED", NO), STOPPED]
        assert replica.handler.seen == [b"1"]


async def test_columns_of_keys_stop_key_by_key(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        lane = Lane(stream)
        keys = ["a", "b", "a", "b", "c"]
        await stream.send(
            lane.calls(
                *(b"bad", b"2", b"3", b"4", b"5"),
                key="",
                ordering_keys=keys,
                partitions=[0] * 5,
                owner_epochs=[1] * 5,
            )
        )
        await stream.wait_answers(5)
        assert stream.results == {2: b"2", 4: b"4", 5: b"5"}
        assert failures(stream, (3,)) == [STOPPED]


async def test_a_session_that_moves_is_still_stopped_and_nothing_is_kept_of_what_did_not_run(
    replica: RunningReplica,
) -> None:
    async with replica.router() as first:
        lane = Lane(first)
        await first.send(lane.calls(b"bad", b"2", b"3"))
        await first.wait_answers(3)
        async with replica.router("router-2") as second:
            answer = await second.reconcile(SESSION, 2, (1, 9))
            assert [(each.first, each.last) for each in answer.kept[0].calls] == [(1, 1)]
            again = Lane(second, epoch=2, next_id=2)
            await second.send(again.calls(b"2", b"3", attempt=1), again.calls(b"4"))
            await second.wait_answers(3)
            assert failures(second, (1, 2, 3)) == [STOPPED] * 3


async def test_what_a_lost_router_leaves_behind_has_not_failed(replica: RunningReplica) -> None:
    async with replica.router() as first:
        await first.send(Lane(first).calls(b"1", b"2", b"3", method="wait"))
        await wait_until(lambda: replica.handler.seen == [b"1"])
    await wait_until(lambda: not replica.engine._links)
    replica.handler.open_all()
    async with replica.router("router-2") as second:
        await second.send(Lane(second, epoch=2, next_id=2).calls(b"2", b"3", attempt=1))
        await second.wait_answers(2)
        assert second.results == {1: b"2", 2: b"3"}


async def test_a_failure_that_nobody_was_there_for_stops_what_is_sent_again(replica: RunningReplica) -> None:
    async with replica.router() as first:
        await first.send(Lane(first).calls(b"bad", b"2", method="wait"))
        await wait_until(lambda: replica.handler.seen == [b"bad"])
    await wait_until(lambda: not replica.engine._links)
    replica.handler.open_all()
    await wait_until(lambda: replica.engine.scheduler.is_idle)
    async with replica.router("router-2") as second:
        await second.send(Lane(second, epoch=2, next_id=2).calls(b"2", attempt=1))
        await second.wait_answers(1)
        assert failures(second, (1,)) == [STOPPED]
