"""Clients with gRPC's default options: refusals reach them as they are, whatever is in their texts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from slotmesh.errors import Executed, Failure, Reason
from slotmesh.server.server import GrpcServer
from slotmesh.status import abort, abort_own_rpc, from_rpc_error
from slotmesh.v1 import tap_service_pb2 as pb
from slotmesh.v1 import tap_service_pb2_grpc

pytestmark = pytest.mark.asyncio
TIMES = 60
"""One in five was rejected by the transport."""
TEXTS = {"plain": "x" * 50_000, "percent": "%" * 50_000, "accents": "é" * 50_000, "lines": "\n" * 50_000}
SOFT_LIMIT = (("grpc.max_metadata_size", 8 * 1024), ("grpc.absolute_max_metadata_size", 8 * 1024))
"""Of a client that rejects always what a default one rejects at random."""


class Refusing(tap_service_pb2_grpc.TapServiceServicer):
    """Refuses, with the text that the endpoint's name stands for."""

    async def ListCalls(self, request: pb.ListCallsRequest, context: Any) -> pb.ListCallsResponse:
        await abort(context, _failure(request.endpoint))

    async def TapCalls(  # type: ignore[override]  # it writes to the context instead of yielding
        self, request: pb.TapCallsRequest, context: Any
    ) -> None:
        trailers = (("mine", "y" * 3_000), ("mine-bin", b"\xff" * 600))
        await abort_own_rpc(context, _failure(request.endpoint), trailers)


def _failure(text: str) -> Failure:
    long = TEXTS[text]
    return Failure(
        reason=Reason.HANDLER_ERROR,
        message=long,
        executed=Executed.YES,
        metadata={"field": "endpoint", "method": long, "tenant": long, "log_ref": "0123456789abcdef"},
    )


@pytest_asyncio.fixture
async def server() -> AsyncIterator[str]:
    served = GrpcServer("refusing")
    served.add(tap_service_pb2_grpc.add_TapServiceServicer_to_server, Refusing())
    await served.start()
    try:
        yield served.address
    finally:
        await served.stop()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("rpc", ["unary", "stream"])
@pytest.mark.parametrize("options", [(), SOFT_LIMIT], ids=["default", "strict"])
async def test_a_long_refusal_arrives_as_it_is(server: str, text: str, rpc: str, options: Any) -> None:
    async with grpc.aio.insecure_channel(server, options=options) as channel:
        stub: Any = tap_service_pb2_grpc.TapServiceStub(channel)

        async def refused() -> Failure:
            if rpc == "unary":
                answer = stub.ListCalls(pb.ListCallsRequest(endpoint=text), timeout=30)
            else:
                answer = stub.TapCalls(pb.TapCallsRequest(endpoint=text), timeout=30).read()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await answer
            return from_rpc_error(caught.value)

        failures = await asyncio.gather(*(refused() for _ in range(TIMES if not options else 2)))
    assert {(each.reason, each.executed, each.metadata["log_ref"]) for each in failures} == {
        (Reason.HANDLER_ERROR, Executed.YES, "0123456789abcdef")
    }
    assert all(len(each.message) > 100 for each in failures)
