"""A stream whose peer ends it while messages are written: the end has the peer's reason, over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from slotmesh.grpc_internals import is_off
from slotmesh.grpc_internals.call_writer import writer_of
from slotmesh.v1 import direct_service_pb2, direct_service_pb2_grpc

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(is_off(), reason="SLOTMESH_PLAIN_GRPC is set: what this file tests is turned off"),
]

FRAME = direct_service_pb2.AttachRequest(open=direct_service_pb2.OpenAttach(version="1" * 100))
STREAMS = 100
"""So many that some end while a message is being written: about every third does."""


class Ending(direct_service_pb2_grpc.DirectServiceServicer):
    """Ends each stream as it is told to."""

    def __init__(self) -> None:
        self.code: grpc.StatusCode | None = grpc.StatusCode.FAILED_PRECONDITION
        """None: it does not."""

    async def Attach(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        if self.code is None:
            await asyncio.Event().wait()
        elif self.code is not grpc.StatusCode.OK:
            await context.abort(self.code, "not here, but there")
        return
        yield


@pytest.fixture
def service() -> Ending:
    return Ending()


@pytest_asyncio.fixture
async def stub(service: Ending) -> AsyncIterator[Any]:
    server = grpc.aio.server()
    direct_service_pb2_grpc.add_DirectServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield direct_service_pb2_grpc.DirectServiceStub(channel)
    await server.stop(None)


async def end_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """Writes until that fails; how the stream has ended, as writer and reader see it."""
    write, reading = writer_of(call), asyncio.ensure_future(call.read())
    told: grpc.aio.AioRpcError | None = None
    try:
        while True:
            await write(FRAME)
            await asyncio.sleep(0)
    except asyncio.InvalidStateError:
        pass
    except grpc.aio.AioRpcError as error:
        told = error
    status = await call.code(), await call.details()
    if status[0] is grpc.StatusCode.OK:
        assert await reading is grpc.aio.EOF
    else:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reading
        assert (caught.value.code(), caught.value.details()) == status
    assert told is None or (told.code(), told.details()) == status
    return status


async def test_a_refusal_is_read_as_it_was_said(stub: Any) -> None:
    for _ in range(STREAMS):
        async with asyncio.timeout(30):
            assert await end_of(stub.Attach()) == (grpc.StatusCode.FAILED_PRECONDITION, "not here, but there")


async def test_a_stream_that_ended_in_order_has_ended_so(stub: Any, service: Ending) -> None:
    service.code = grpc.StatusCode.OK
    for _ in range(STREAMS):
        async with asyncio.timeout(30):
            assert (await end_of(stub.Attach()))[0] is grpc.StatusCode.OK


async def test_a_write_that_is_given_up_ends_the_stream(stub: Any, service: Ending) -> None:
    service.code = None
    call = stub.Attach()
    write = writer_of(call)
    await write(FRAME)
    writing = asyncio.ensure_future(write(FRAME))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    assert writing.cancelled()
    async with asyncio.timeout(30):
        assert await call.code() is grpc.StatusCode.CANCELLED


async def test_a_write_beside_another_one_is_refused_and_waits_for_nothing(stub: Any, service: Ending) -> None:
    service.code = None
    call = stub.Attach()
    write, large = writer_of(call), direct_service_pb2.AttachRequest()
    large.open.version = "1" * 3_000_000
    async with asyncio.timeout(60):
        under_way = asyncio.ensure_future(write(large))
        while (await asyncio.wait({under_way}, timeout=0.5))[0]:  # until buffers are full
            under_way = asyncio.ensure_future(write(large))
        with pytest.raises(grpc.aio.InternalError):
            await write(large)
        call.cancel()
        await asyncio.gather(under_way, return_exceptions=True)
