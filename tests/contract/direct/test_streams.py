"""Direct streams to a replica, frame by frame: slots handed over, calls in them, and how all of it ends."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from replica_service.core.slot_table import SlotTable
from replica_service.shell.links import attach_stream
from replica_service.shell.links.attach_stream import FRAME_BYTES
from slotmesh.errors import Executed
from slotmesh.names import MAX_ENDPOINT_CHARS
from slotmesh.runtime.channels import open_channel
from slotmesh.status import from_rpc_error, from_wire
from slotmesh.streams.limits import MAX_INLINE_BYTES
from slotmesh.transport.prompt_writer import PromptWriter
from slotmesh.v1 import call_pb2, direct_service_pb2, direct_service_pb2_grpc
from tests.contract.replica.slots.slot_replica import all_free, handler_of, table_of, told_by
from tests.support.attach_stream import DirectStream, direct_stream, duration
from tests.support.fakes.clock import FakeClock
from tests.support.replicas import RunningReplica
from tests.support.slot_doors import DirectDoor
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

UNKNOWN, NO, YES = Executed.UNKNOWN, Executed.NO, Executed.YES


def told(outcome: bytes | call_pb2.Failure) -> tuple[str, Executed]:
    assert isinstance(outcome, call_pb2.Failure), outcome
    failure = from_wire(outcome)
    return failure.reason.value, failure.executed


async def held(stream: DirectStream, door: DirectDoor, slot_id: int = 1, ttl_s: float | None = None) -> str:
    """A slot that the stream holds; returns its token."""
    slot = await door.reserve()
    assert not await stream.attach(slot_id, slot.token, ttl_s)
    return slot.token


async def refusal(stream: DirectStream) -> tuple[str, str]:
    await stream.reader
    assert stream.error is not None
    failure = from_rpc_error(stream.error)
    return failure.reason.value, failure.metadata.get("field", "")


def counts(table: SlotTable) -> tuple[int, int, int, int, int]:
    return table.reserved, table.busy, table.dispatched, table.released, table.expired


# -- slots and calls ---------------------------------------------------------------------------------------------------


async def test_call_after_call_runs_in_one_slot(
    replica: RunningReplica, stream: DirectStream, door: DirectDoor
) -> None:
    await held(stream, door)
    opened = (await stream.next("opened")).opened
    assert opened.replica_id == "r-1"
    for call_id, method in enumerate(("echo", "thread", "echo"), 1):
        await stream.call(1, call_id, b"%d" % call_id, method=method)
        assert await stream.outcome(call_id) == b"%d" % call_id
    assert replica.engine.scheduler.in_use == 1, "the permit is the slot's"
    assert counts(table_of(replica)) == (1, 0, 0, 0, 0)
    await stream.send(detach=direct_service_pb2.DetachSlot(slot_id=1))
    assert not (await stream.next("detached")).detached.HasField("failure")
    await all_free(replica)
    assert counts(table_of(replica)) == (0, 0, 0, 1, 0)


async def test_failures_of_calls_are_no_failures_of_slots(
    replica: RunningReplica, stream: DirectStream, door: DirectDoor
) -> None:
    await held(stream, door)
    await stream.call(1, 1, b"no", method="fail")
    assert told(await stream.outcome(1)) == ("HANDLER_ERROR", YES)
    await stream.call(1, 2, method="nothing")
    assert told(await stream.outcome(2)) == ("METHOD_NOT_FOUND", NO)
    await stream.call(1, 3, timeout=duration(0))
    assert told(await stream.outcome(3)) == ("DEADLINE_IN_QUEUE", NO)
    await stream.call(1, 4, bytes(MAX_INLINE_BYTES + 1))
    assert told(await stream.outcome(4)) == ("PAYLOAD_TOO_LARGE", NO)
    refused: list[dict[str, Any]] = [{"ordering_key": "k"}, {"streaming": True}, {"no_reply": True}]
    for call_id, options in enumerate(refused, 5):
        await stream.call(1, call_id, **options)
        assert told(await stream.outcome(call_id)) == ("BAD_REQUEST", NO)
    await stream.call(2, 8)
    assert told(await stream.outcome(8)) == ("SLOT_UNKNOWN", NO)
    await stream.call(1, 9, b"well")
    assert await stream.outcome(9) == b"well"


async def test_a_name_that_no_endpoint_has_attaches_no_slot(stream: DirectStream) -> None:
    attach = direct_service_pb2.AttachSlot(slot_id=1, token="t", endpoint="e" * (MAX_ENDPOINT_CHARS + 1))
    await stream.send(attach=attach)
    failure = (await stream.next("attached")).attached.failure
    assert (failure.reason, failure.metadata["field"]) == ("BAD_REQUEST", "endpoint")
    assert len(failure.message) < 100


async def test_a_slot_runs_one_call_at_a_time(replica: RunningReplica, stream: DirectStream, door: DirectDoor) -> None:
    await held(stream, door)
    await stream.call(1, 1, b"a", method="wait")
    await stream.call(1, 2, b"b")
    assert told(await stream.outcome(2)) == ("BAD_REQUEST", NO)
    assert replica.engine.scheduler.in_use == 1
    assert not replica.engine.scheduler.is_quiet
    handler_of(replica).gate.set()
    assert await stream.outcome(1) == b"a"
    await stream.call(1, 3, b"c")
    assert await stream.outcome(3) == b"c"


async def test_a_token_of_a_held_slot_is_of_no_use_elsewhere(
    replica: RunningReplica, stream: DirectStream, door: DirectDoor
) -> None:
    token = await held(stream, door)
    assert await told_by(door.dispatch(token)) == ("SLOT_USED", NO)
    assert await told_by(door.renew(token)) == ("SLOT_USED", NO)
    await door.release(token)
    assert await stream.attach(2, token) == "SLOT_USED"
    await stream.call(1, 1)
    assert await stream.outcome(1) == b"x", "it is the stream's, whoever gives it back"


async def test_slots_that_cannot_be_handed_over(stream: DirectStream, door: DirectDoor, clock: FakeClock) -> None:
    assert await stream.attach(1, "nonsense") == "SLOT_UNKNOWN"
    slot = await door.reserve(ttl_s=1)
    assert await stream.attach(0, slot.token) == "BAD_REQUEST"
    assert await stream.attach(1, slot.token, 301) == "BAD_REQUEST"
    assert await stream.attach(1, slot.token, endpoint="other") == "SLOT_UNKNOWN"
    clock.advance(1.0)
    assert await stream.attach(1, slot.token) == "SLOT_EXPIRED"
    await held(stream, door)
    other = await door.reserve()
    assert await stream.attach(1, other.token) == "BAD_REQUEST", "the number is taken"


# -- leases ------------------------------------------------------------------------------------------------------------


async def test_a_lease_starts_anew_with_renewals_and_the_ends_of_calls(
    replica: RunningReplica, stream: DirectStream, door: DirectDoor, clock: FakeClock
) -> None:
    await held(stream, door, ttl_s=10)
    clock.advance(6)
    await stream.send(renew=direct_service_pb2.RenewAttached())
    await stream.next("renewed")
    clock.advance(6)
    await stream.call(1, 1)
    await stream.outcome(1)
    clock.advance(9.5)
    await stream.call(1, 2, method="wait")
    await wait_until(lambda: handler_of(replica).started)
    clock.advance(60)
    handler_of(replica).gate.set()
    assert await stream.outcome(2) == b"x", "while a call runs no lease ends"
    clock.advance(10)
    await stream.call(1, 3)
    assert told(await stream.outcome(3)) == ("SLOT_EXPIRED", NO)
    ended = (await stream.next("detached")).detached
    assert (ended.slot_id, ended.failure.reason) == (1, "SLOT_EXPIRED")
    await all_free(replica)
    assert counts(table_of(replica)) == (0, 0, 0, 0, 1)


# -- ends --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancelled", "half-closed"])
async def test_slots_go_back_with_their_stream(replica: RunningReplica, door: DirectDoor, how: str) -> None:
    async with direct_stream(replica.address) as stream:
        await held(stream, door)
        await held(stream, door, 2)
        assert table_of(replica).reserved == 2
        if how == "half-closed":
            await stream.half_close()
            await stream.reader
            assert stream.error is None
        else:
            stream.cancel()
        await all_free(replica)
    assert counts(table_of(replica)) == (0, 0, 0, 2, 0)


async def test_a_call_is_cancelled_with_its_stream_and_its_slot_is_free_then(
    replica: RunningReplica, stream: DirectStream, door: DirectDoor
) -> None:
    await held(stream, door)
    await stream.call(1, 1, method="wait")
    await wait_until(lambda: handler_of(replica).started)
    stream.cancel()
    await all_free(replica)
    assert counts(table_of(replica)) == (0, 0, 1, 0, 0)


async def test_half_close_waits_for_answers(replica: RunningReplica, stream: DirectStream, door: DirectDoor) -> None:
    await held(stream, door)
    await stream.call(1, 1, method="wait")
    await wait_until(lambda: handler_of(replica).started)
    await stream.half_close()
    handler_of(replica).gate.set()
    await stream.reader
    assert (await stream.outcome(1), stream.error) == (b"x", None)
    await all_free(replica)


async def test_a_call_is_taken_back(replica: RunningReplica, stream: DirectStream, door: DirectDoor) -> None:
    await held(stream, door)
    await stream.call(1, 1, method="wait")
    await wait_until(lambda: handler_of(replica).started)
    await stream.send(cancel=direct_service_pb2.CancelSlotCall(call_id=1))
    assert told(await stream.outcome(1)) == ("CANCELLED", UNKNOWN)
    await stream.send(cancel=direct_service_pb2.CancelSlotCall(call_id=1))
    await stream.call(1, 2, b"next")
    assert await stream.outcome(2) == b"next", "the slot is still the stream's"


async def test_a_slot_that_is_given_back_while_a_call_runs_is_free_when_that_ends(
    replica: RunningReplica, stream: DirectStream, door: DirectDoor
) -> None:
    await held(stream, door)
    await stream.call(1, 1, method="wait")
    await wait_until(lambda: handler_of(replica).started)
    await stream.send(detach=direct_service_pb2.DetachSlot(slot_id=1))
    await stream.next("detached")
    assert replica.engine.scheduler.in_use == 1
    handler_of(replica).gate.set()
    assert await stream.outcome(1) == b"x"
    await all_free(replica)


async def test_a_replica_that_drains_says_so_and_honours_slots_until_they_go_back(
    replica: RunningReplica, stream: DirectStream, door: DirectDoor, clock: FakeClock
) -> None:
    await held(stream, door, ttl_s=2)
    await stream.call(1, 1, method="wait")
    await wait_until(lambda: handler_of(replica).started)
    stopping = asyncio.create_task(replica.stop())
    await stream.next("go_away")
    handler_of(replica).gate.set()
    assert await stream.outcome(1) == b"x"
    await stream.call(1, 2, b"late")
    assert await stream.outcome(2) == b"late"
    await stream.send(detach=direct_service_pb2.DetachSlot(slot_id=1))
    assert await stopping == 0
    await stream.reader
    assert stream.error is None, "the replica ends the stream when all is answered"


async def test_a_lease_is_not_prolonged_by_a_replica_that_drains(
    replica: RunningReplica, stream: DirectStream, door: DirectDoor, clock: FakeClock
) -> None:
    await held(stream, door, ttl_s=2)
    stopping = asyncio.create_task(replica.stop())
    await stream.next("go_away")
    clock.advance(1.5)
    await stream.send(renew=direct_service_pb2.RenewAttached())
    await stream.next("renewed")
    clock.advance(0.5)
    await stream.send(renew=direct_service_pb2.RenewAttached())
    assert (await stream.next("detached")).detached.failure.reason == "SLOT_EXPIRED"
    assert await stopping == 0


# -- a broken contract -------------------------------------------------------------------------------------------------


async def test_what_ends_a_stream(replica: RunningReplica) -> None:
    async with direct_stream(replica.address, opens=False) as stream:
        await stream.send(renew=direct_service_pb2.RenewAttached())
        assert await refusal(stream) == ("BAD_REQUEST", "open")
    async with direct_stream(replica.address, opens=False) as stream:
        await stream.open("r-2")
        assert await refusal(stream) == ("REPLICA_GONE", "")
    async with direct_stream(replica.address) as stream:
        await stream.open()
        assert await refusal(stream) == ("BAD_REQUEST", "open")
    async with direct_stream(replica.address) as stream:
        await stream.send()
        assert await refusal(stream) == ("NOT_IMPLEMENTED", "")
    async with direct_stream(replica.address) as stream:
        await stream.call(1, 5)
        await stream.call(1, 5)
        assert await refusal(stream) == ("DUPLICATE_CALL_ID", "call.call_id")
    await all_free(replica)


# -- clients that do not read ------------------------------------------------------------------------------------------


class SeenWriter(PromptWriter[Any]):
    """Says when the stream stopped reading."""

    made: ClassVar[list[SeenWriter]] = []

    def __init__(self, write: Any) -> None:
        super().__init__(write)
        self.backlogs: list[int] = []
        """What waited each time that the stream stopped reading."""
        self.made.append(self)

    async def room(self, backlog: int) -> None:
        self.backlogs.append(self.backlog)
        await super().room(backlog)


async def test_a_client_that_does_not_read_is_not_read_from_while_so_many_bytes_wait(
    replica: RunningReplica, door: DirectDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 1024 * 1024
    monkeypatch.setattr(SeenWriter, "made", [])
    monkeypatch.setattr(attach_stream, "PromptWriter", SeenWriter)
    slot = await door.reserve()
    async with open_channel(replica.address) as channel:
        stub: Any = direct_service_pb2_grpc.DirectServiceStub(channel)
        stream = stub.Attach()
        await stream.write(attach_stream.AttachRequest(open=direct_service_pb2.OpenAttach()))
        await stream.write(
            attach_stream.AttachRequest(attach=direct_service_pb2.AttachSlot(slot_id=1, token=slot.token))
        )
        await wait_until(lambda: SeenWriter.made, what="the stream at the replica")
        (writer,) = SeenWriter.made
        sent: list[asyncio.Task[Any]] = []
        while not writer.backlogs:
            assert len(sent) < 64, "it is read from, whatever waits"
            sent.append(asyncio.create_task(_call(stream, len(sent) + 1, bytes(size))))
            await wait_until(lambda: sent[-1].done() or writer.backlogs, what="a call that leaves, or is not read")
        bound = attach_stream.MAX_BACKLOG_BYTES
        assert bound < writer.backlogs[0] <= bound + 2 * (size + FRAME_BYTES)
        answered = 0
        while answered < len(sent):  # whatever became of it: the slot may have been busy
            response = await asyncio.wait_for(stream.read(), 10)
            answered = response.result.call_id or response.failed.call_id
        await asyncio.gather(*sent)
        stream.cancel()
    await all_free(replica)


async def _call(stream: Any, call_id: int, payload: bytes) -> None:
    options = call_pb2.CallOptions(method="echo", content_type="application/octet-stream")
    slot_call = direct_service_pb2.SlotCall(slot_id=1, call_id=call_id, options=options, payload=payload)
    await stream.write(attach_stream.AttachRequest(call=slot_call))
