"""The port and the options of every server of the mesh."""

from __future__ import annotations

import asyncio

import pytest

from slotmesh.config import SettingsError
from slotmesh.runtime.channels import open_channel
from slotmesh.runtime.exits import CannotStart
from slotmesh.server.server import GrpcServer
from slotmesh.streams.limits import MAX_INLINE_BYTES
from slotmesh.v1 import router_service_pb2
from tests.contract.server.served_router import Setting, StatusCode, call, failure, serving


@pytest.mark.asyncio
async def test_a_taken_port_is_refused_with_a_way_out(setting: Setting) -> None:
    second = GrpcServer("second", port=setting[0].port)
    with pytest.raises(CannotStart, match=rf"second cannot listen on 127\.0\.0\.1:{setting[0].port}: .*--port"):
        await second.start()
    await second.stop()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "mesh.example"])
def test_off_loopback_needs_to_be_allowed(host: str) -> None:
    with pytest.raises(SettingsError, match="--insecure"):
        GrpcServer("open", host=host)
    GrpcServer("open", host=host, insecure=True)


@pytest.mark.asyncio
async def test_off_loopback_serves_when_allowed() -> None:
    async with serving(host="0.0.0.0", insecure=True) as (server, _, _):
        assert server.address == f"0.0.0.0:{server.port}"
        async with open_channel(f"127.0.0.1:{server.port}") as channel:
            assert (await call(channel)).payload == b"x"


@pytest.mark.asyncio
async def test_messages_may_be_larger_than_grpcs_default(setting: Setting) -> None:
    payload = bytes(MAX_INLINE_BYTES)  # 4 MiB, as their default is for the whole message
    assert (await call(setting[2], payload)).payload == payload


@pytest.mark.asyncio
async def test_a_burst_of_unary_calls_is_answered_in_full(setting: Setting) -> None:
    burst = (call(setting[2], timeout_s=45.0) for _ in range(3_000))  # all are answered, however slow the machine is
    answers = await asyncio.gather(*burst, return_exceptions=True)
    assert {type(each) for each in answers} == {router_service_pb2.CallResponse}


@pytest.mark.asyncio
async def test_a_stopped_server_serves_nothing_and_stops_twice(setting: Setting) -> None:
    server, _, channel = setting
    address = server.address
    await server.stop()
    await server.stop()
    code, _ = await failure(call(channel))
    assert code is StatusCode.UNAVAILABLE
    assert server.address == address, "what still runs may ask for it"


def test_a_server_that_has_not_started_has_no_address() -> None:
    with pytest.raises(RuntimeError, match="has not started"):
        _ = GrpcServer("new").address


def test_a_channel_needs_an_address() -> None:
    with pytest.raises(ValueError, match="expected HOST:PORT, got 'localhost'"):
        open_channel("localhost")
