"""Requests of unary rpcs that are too large, or hold too much: refused before anything looks into them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.protobuf import struct_pb2

from slotmesh.errors import Executed, Reason
from slotmesh.server.unary_requests import OPEN_BYTES, PAYLOAD_BYTES, PLAIN_BYTES
from slotmesh.streams.limits import DEFAULT_LIMITS, MAX_ELEMENTS, MAX_OPTIONS_BYTES
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc
from tests.contract.server.served_router import SERVICE, Setting, StatusCode, call, failure, serving
from tests.contract.server.test_health import check

NO_MESSAGE = b"\xff"
"""What begins like this can be no message: who parses it says so."""


def send(channel: grpc.aio.Channel, rpc: str, raw: bytes) -> Any:
    multicallable: Any = channel.unary_unary(f"/{rpc}", None, None)
    return multicallable(raw, timeout=10)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("rpc", "most", "reason"),
    [
        ("grpc.health.v1.Health/Check", OPEN_BYTES, Reason.BAD_REQUEST),
        ("grpc.health.v1.Health/List", PLAIN_BYTES, Reason.BAD_REQUEST),
        (f"{SERVICE}/DescribeEndpoints", PLAIN_BYTES, Reason.BAD_REQUEST),
        (f"{SERVICE}/Call", PAYLOAD_BYTES, Reason.PAYLOAD_TOO_LARGE),
        (f"{SERVICE}/CallStreaming", PAYLOAD_BYTES, Reason.PAYLOAD_TOO_LARGE),
        (f"{SERVICE}/Broadcast", PAYLOAD_BYTES, Reason.PAYLOAD_TOO_LARGE),
    ],
)
async def test_more_bytes_than_the_rpc_needs_are_not_parsed(
    setting: Setting, rpc: str, most: int, reason: Reason
) -> None:
    code, said = await failure(send(setting[2], rpc, NO_MESSAGE * (most + 1)))
    assert (code, said.reason, said.executed) == (StatusCode.INVALID_ARGUMENT, reason, Executed.NO)
    assert said.message == f"the request has {most + 1} bytes; at most {most} bytes are allowed here"
    assert (said.metadata["actual"], said.metadata["limit"]) == (str(most + 1), str(most))
    code, said = await failure(send(setting[2], rpc, NO_MESSAGE * 100))
    assert (code, "malformed" in said.message) == (StatusCode.INVALID_ARGUMENT, True)


def json_of(value: struct_pb2.Value) -> router_service_pb2.CallRequest:
    return router_service_pb2.CallRequest(endpoint="e", arguments=value)


def listed(values: list[struct_pb2.Value]) -> struct_pb2.Value:
    return struct_pb2.Value(list_value=struct_pb2.ListValue(values=values))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (json_of(listed([struct_pb2.Value(null_value=struct_pb2.NULL_VALUE)] * (MAX_ELEMENTS + 1))), "arguments"),
        (json_of(listed([listed([struct_pb2.Value()] * 1_000)] * 50)), "arguments"),
    ],
)
async def test_json_arguments_are_counted_at_any_depth(setting: Setting, request_: Any, field: str) -> None:
    code, said = await failure(send(setting[2], f"{SERVICE}/Call", request_.SerializeToString()))
    assert (code, said.reason, said.executed) == (StatusCode.INVALID_ARGUMENT, Reason.BAD_REQUEST, Executed.NO)
    assert said.metadata["field"] == f"{field}.list_value.values"
    assert f"one request has at most {MAX_ELEMENTS} elements in all; `payload` takes JSON text" in said.message


@pytest.mark.asyncio
async def test_options_of_a_unary_call_have_a_bound_of_their_own(setting: Setting) -> None:
    options = call_pb2.CallOptions(metadata={f"key-{number}": "" for number in range(20_000)})
    request = router_service_pb2.CallRequest(endpoint="e", options=options)
    stub = router_service_pb2_grpc.RouterServiceStub(setting[2])
    code, said = await failure(stub.Call(request, timeout=10))
    assert (code, said.reason, said.executed) == (StatusCode.INVALID_ARGUMENT, Reason.BAD_REQUEST, Executed.NO)
    size = len(options.SerializeToString())
    assert said.message == f"options: at most {MAX_OPTIONS_BYTES} bytes in all, got {size}"


@pytest.mark.asyncio
async def test_the_name_of_an_unknown_service_is_repeated_in_part(setting: Setting) -> None:
    code, said = await failure(check(setting[2], "\x01" * 4_000))
    assert code is StatusCode.NOT_FOUND
    assert len(said.message) < 200


@pytest.mark.asyncio
async def test_what_is_larger_than_the_server_takes_is_not_read() -> None:
    async with serving(limits=replace(DEFAULT_LIMITS, max_request_bytes=1024 * 1024)) as (_, _, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, bytes(1024 * 1024))
        assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
        assert (await call(channel, b"x")).payload == b"x"
