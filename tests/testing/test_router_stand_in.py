"""What stands between the client and the replica of a hosted handler does for a session what a router does."""

from __future__ import annotations

import pytest

from slotmesh.calls.payload_block import block_of
from slotmesh.convert.batches import ids_from_wire, list_of, write
from slotmesh.status import from_wire
from slotmesh.testing.router_stand_in import RouterStandIn
from slotmesh.v1 import call_pb2, router_service_pb2

pytestmark = pytest.mark.asyncio

Request = router_service_pb2.StreamCallsRequest


async def opened() -> RouterStandIn:
    """A stream of a session, whose first frames were read."""
    router = RouterStandIn("r", "replica", "incarnation")
    router.sent(Request(open=router_service_pb2.OpenStream(endpoint="e", session_id="ab" * 16, epoch=1)))
    assert (await router.up.get()).WhichOneof("frame") == "opened"
    assert (await router.down.get()).WhichOneof("frame") == "open"
    return router


def calls(first: int, *payloads: bytes) -> Request:
    batch = router_service_pb2.CallBatch(first_call_id=first)
    write(batch, block_of(payloads), as_block=True)
    return Request(calls=router_service_pb2.CallFrame(batches=[batch]))


async def test_a_heartbeat_is_returned_so_that_a_long_call_is_not_given_up() -> None:
    router = await opened()
    router.sent(Request(heartbeat=call_pb2.Heartbeat(stamp=7)))
    assert (await router.up.get()).heartbeat.echoed_stamp == 7


async def test_payloads_in_a_block_reach_the_replica() -> None:
    router = await opened()
    router.sent(calls(1, b"a", b"bc"))
    (run,) = (await router.down.get()).runs.batches
    assert (run.first_run_id, list_of(run)) == (1, [b"a", b"bc"])


async def test_calls_of_a_replica_that_has_ended_fail_and_are_not_sent_again() -> None:
    router = await opened()
    router.sent(calls(1, b"a", b"b"))
    router.ended()
    (errors,) = (await router.up.get()).results.errors
    assert list(ids_from_wire(errors.calls)) == [1, 2]
    assert from_wire(errors.failure).reason.value == "REPLICA_LOST"
