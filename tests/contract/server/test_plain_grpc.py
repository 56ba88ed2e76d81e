"""With SLOTMESH_PLAIN_GRPC=1 a process uses grpc.aio as it is published, and calls have the same results."""

from __future__ import annotations

import asyncio
import socket
from typing import Any
from unittest.mock import patch

import grpc
import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from slotmesh.grpc_internals import VARIABLE, is_off
from slotmesh.grpc_internals.aborts import released
from slotmesh.grpc_internals.call_writer import writer_of
from slotmesh.grpc_internals.completion_wakes import keep_wakes_few
from slotmesh.v1 import router_service_pb2, router_service_pb2_grpc
from tests.contract.server.served_router import OLDER, call, serving


@pytest.fixture
def is_plain(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setenv(VARIABLE, "1" if request.param else "0")
    return bool(request.param)


BOTH_WAYS = pytest.mark.parametrize("is_plain", [True, False], ids=["plain", "patched"], indirect=True)


@BOTH_WAYS
@pytest.mark.asyncio
async def test_a_server_is_one_of_grpc_or_ours_and_answers(is_plain: bool) -> None:
    async with serving() as (server, _, channel):
        core = getattr(server._server, "_server", None)
        assert (type(core) is cygrpc.AioServer) is (is_plain or OLDER)
        answers = await asyncio.gather(*(call(channel, str(i).encode()) for i in range(200)))
        assert [answer.payload for answer in answers] == [str(i).encode() for i in range(200)]


@BOTH_WAYS
@pytest.mark.asyncio
async def test_a_stream_is_written_to_by_the_call_itself_or_by_ours(is_plain: bool) -> None:
    async with serving() as (_, _, channel):
        stream = router_service_pb2_grpc.RouterServiceStub(channel).StreamCalls()
        write = writer_of(stream)
        with patch.object(stream, "write", wraps=stream.write) as own:
            for _ in range(3):
                await write(router_service_pb2.StreamCallsRequest())
                assert await stream.read() == router_service_pb2.StreamCallsResponse()
        assert own.await_count == (3 if is_plain else 0)
        stream.cancel()


@BOTH_WAYS
def test_a_handler_is_left_as_it_is_or_wrapped(is_plain: bool) -> None:
    async def behavior(_request: object, _context: object) -> None: ...

    handler: Any = grpc.unary_unary_rpc_method_handler(behavior)
    assert (released(handler) is handler) is is_plain


@BOTH_WAYS
def test_the_sockets_of_grpc_are_left_as_they_are_or_replaced(is_plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cygrpc, "socket", socket)
    keep_wakes_few()
    assert (cygrpc.socket is socket) is is_plain


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False), (None, False)])
def test_the_switch_is_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, value: str | None, expected: bool
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    assert is_off() is expected


@pytest.mark.parametrize("value", ["2", "yes", "true", " 1"])
def test_another_value_is_refused_with_the_variable_and_what_it_may_be(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(ValueError, match=f"{VARIABLE} must be 0 or 1, is '{value}'"):
        is_off()
