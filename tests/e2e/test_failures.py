"""Each way in which a call fails, through the whole mesh: the reason, and whether it ran, for that call only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import pytest
import pytest_asyncio

import slotmesh
from slotmesh.codec import JSON, OCTET_STREAM
from slotmesh.errors import Executed
from slotmesh.runtime.channels import open_channel
from slotmesh.streams.limits import MAX_PAYLOAD_BYTES
from slotmesh.transport.duplex import read_frame
from slotmesh.v1 import (
    call_pb2,
    controller_service_pb2,
    controller_service_pb2_grpc,
    router_service_pb2,
    router_service_pb2_grpc,
)
from tests.support.mesh import MeshRun, started_mesh

LOOP: Final = "module"


@pytest_asyncio.fixture(scope="module", loop_scope=LOOP)
async def mesh() -> AsyncIterator[MeshRun]:
    async with started_mesh("tests.e2e.handlers:Gallery") as each:
        yield each


async def failure(call: Any) -> slotmesh.SlotmeshError:
    with pytest.raises(slotmesh.SlotmeshError) as caught:
        await call
    return caught.value


@pytest.mark.asyncio(loop_scope=LOOP)
async def test_failures_are_typed_and_leave_the_others_alone(mesh: MeshRun) -> None:
    async with slotmesh.connect(mesh.router_address) as client:
        gallery = client.endpoint("Gallery")
        fine = [gallery.double(number) for number in range(50)]
        unknown_method = gallery.method("nothing")(1)
        wrong_type = gallery.double("two")
        wrong_count = gallery.double(1, 2)
        raised = gallery.fail("no luck")
        too_large_result = gallery.grow(MAX_PAYLOAD_BYTES)
        too_short = [gallery.short(number) for number in range(4)]
        assert await asyncio.gather(*fine) == [2 * number for number in range(50)]

        error = await failure(unknown_method)
        assert isinstance(error, slotmesh.MethodNotFound)
        assert (error.executed, error.endpoint, error.method) == (Executed.NO, "Gallery", "nothing")
        assert "double" in str(error), "says what there is"

        error = await failure(wrong_type)
        assert isinstance(error, slotmesh.BadArguments)
        assert error.executed is Executed.NO
        assert "args[0]" in str(error)
        assert isinstance(await failure(wrong_count), slotmesh.BadArguments)

        error = await failure(raised)
        assert repr(error) == "HandlerError('UNKNOWN/HANDLER_ERROR: ValueError: no luck')"
        assert error.executed is Executed.YES
        assert error.replica_id
        assert error.call_id

        error = await failure(too_large_result)
        assert isinstance(error, slotmesh.PayloadTooLarge)
        assert error.executed is Executed.YES

        for call in too_short:
            error = await failure(call)
            assert isinstance(error, slotmesh.BatchSizeMismatch)
            assert error.executed is Executed.YES

        error = await failure(client.endpoint("Nowhere").double(1))
        assert isinstance(error, slotmesh.EndpointNotFound)
        assert error.executed is Executed.NO

        raw = gallery.options(content_type=OCTET_STREAM)
        error = await failure(raw.echo(bytes(MAX_PAYLOAD_BYTES + 1)))
        assert isinstance(error, slotmesh.PayloadTooLarge)
        assert await raw.echo(bytes(MAX_PAYLOAD_BYTES)) == bytes(MAX_PAYLOAD_BYTES)
        assert await gallery.double(21) == 42


@pytest.mark.asyncio(loop_scope=LOOP)
async def test_async_def_and_batch_methods_answer(mesh: MeshRun) -> None:
    async with slotmesh.connect(mesh.router_address) as client:
        gallery = client.endpoint("Gallery")
        assert await gallery.squares.map(range(100)) == [number * number for number in range(100)]
        sizes = await gallery.batch_sizes.map(range(64))
        assert max(sizes) == 8, "waiting calls merge into whole batches"
        started = asyncio.get_running_loop().time()
        await asyncio.gather(*[gallery.block(0.2) for _ in range(8)])
        assert asyncio.get_running_loop().time() - started < 1.0, "threads run at the same time"
        async with gallery.ordered("batch") as lane:
            assert await lane.squares.map(range(100)) == [number * number for number in range(100)]


@pytest.mark.asyncio(loop_scope=LOOP)
async def test_malformed_payloads_and_ids_on_a_bare_stream(mesh: MeshRun) -> None:
    async with open_channel(mesh.router_address) as channel:
        call: Any = router_service_pb2_grpc.RouterServiceStub(channel).StreamCalls()
        request = router_service_pb2.StreamCallsRequest
        options = call_pb2.CallOptions(method="double", content_type=JSON)
        await call.write(request(open=router_service_pb2.OpenStream(endpoint="Gallery", default_options=options)))
        opened: Any = await read_frame(call)
        assert opened.WhichOneof("frame") == "opened"

        async def send(first: int, *payloads: bytes) -> Any:
            batch = router_service_pb2.CallBatch(first_call_id=first, payloads=payloads)
            await call.write(request(calls=router_service_pb2.CallFrame(batches=[batch])))
            frame = await read_frame(call)
            assert frame is not None
            return frame

        malformed = (await send(1, b"[1")).results.errors[0].failure
        assert (malformed.reason, malformed.executed) == ("BAD_ARGUMENTS", Executed.NO.value)
        assert malformed.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert (await send(1, b"[1]")).rejected.failure.reason == "DUPLICATE_CALL_ID"
        assert list((await send(2, b"[4]")).results.batches[0].payloads) == [b"8"]
        call.cancel()


@pytest.mark.asyncio(loop_scope=LOOP)
async def test_deadlines_through_the_whole_mesh(mesh: MeshRun) -> None:
    async with slotmesh.connect(mesh.router_address) as client:
        gallery = client.endpoint("Gallery")
        hurried = gallery.options(timeout=1.0)
        error = await failure(hurried.wait(5.0))
        assert isinstance(error, slotmesh.DeadlineRunning)
        assert error.executed is Executed.UNKNOWN
        assert await gallery.wait(0.0) == 0.0


@pytest.mark.asyncio
async def test_a_full_queue_refuses_what_does_not_fit_and_says_when_to_come_back() -> None:
    async with (
        started_mesh("tests.e2e.handlers:doze") as mesh,
        slotmesh.connect(mesh.router_address) as client,
        open_channel(mesh.controller_address) as channel,
    ):
        controller: Any = controller_service_pb2_grpc.ControllerServiceStub(channel)
        backend = (await controller.GetBackend(controller_service_pb2.GetBackendRequest(name="doze"))).backend
        backend.max_queued_calls = 10
        revision = (await mesh.members()).table_revision
        await controller.ApplyBackend(controller_service_pb2.ApplyBackendRequest(backend=backend))
        await mesh.wait_for_table(newer_than=revision)
        doze = client.endpoint("doze")
        outcomes = await asyncio.gather(*[doze(0.02) for _ in range(50)], return_exceptions=True)
        refused = [each for each in outcomes if isinstance(each, slotmesh.QueueFull)]
        assert outcomes.count(0.02) == 11, "one runs, ten wait"
        assert len(refused) == 39
        assert all(each.executed is Executed.NO and each.retry_delay_s for each in refused)
        assert await doze(0.0) == 0.0
