"""How rpcs end at every server of the mesh: what clients, handlers and servers do wrong, and what is logged of it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from slotmesh.errors import Executed, Failure, QueueFull, Reason
from slotmesh.runtime.channels import open_channel
from slotmesh.status import abort, to_exception
from slotmesh.v1 import router_service_pb2, router_service_pb2_grpc
from tests.contract.server.served_router import SERVICE, STREAM, Context, Setting, StatusCode, call, failure
from tests.support.wait import wait_until, within

FULL = Failure(reason=Reason.QUEUE_FULL, message="no room", retry_delay_s=0.25, metadata={"backend": "b"})


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
async def test_malformed_protobuf_is_the_senders_mistake(setting: Setting, kind: str) -> None:
    method = "Call" if kind == "unary_unary" else "CallStreaming"
    rpc = getattr(setting[2], kind)(f"/{SERVICE}/{method}", None, None)(b"\xff\xff\xff", timeout=30)
    code, said = await failure(rpc if kind == "unary_unary" else rpc.read())
    assert code is StatusCode.INVALID_ARGUMENT
    assert said.reason is Reason.BAD_REQUEST
    assert said.executed is Executed.NO
    assert said.message == (
        f"not a valid slotmesh.v1.{method}Request: malformed protobuf, or nested deeper than protobuf parsers accept: "
        "100 messages in one another, of which a JSON array is two and an object three"
    )


@pytest.mark.asyncio
async def test_malformed_protobuf_ends_a_stream_after_what_came_before(setting: Setting) -> None:
    stream: Any = setting[2].stream_stream(STREAM, None, None)(timeout=30)
    await stream.write(b"")
    assert await stream.read() == b""
    await stream.write(b"\xff\xff\xff")
    code, said = await failure(stream.read())
    assert code is StatusCode.INVALID_ARGUMENT
    assert said.message.startswith("not a valid slotmesh.v1.StreamCallsRequest: malformed protobuf, or nested deeper")


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["raised", "aborted", "raised in a task group", "aborted in a task group"])
async def test_our_failures_reach_the_client_in_full(setting: Setting, how: str) -> None:
    async def end(context: Context) -> None:
        if how.startswith("aborted"):
            await abort(context, FULL)
        raise to_exception(FULL)

    async def unary(_request: Any, context: Context) -> None:
        if not how.endswith("group"):
            await end(context)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(end(context))

    setting[1].unary = unary
    code, said = await failure(call(setting[2]))
    assert code is StatusCode.RESOURCE_EXHAUSTED
    assert (said.reason, said.message, said.executed) == (FULL.reason, FULL.message, FULL.executed)
    assert (said.retry_delay_s, said.metadata) == (FULL.retry_delay_s, FULL.metadata)


@pytest.mark.asyncio
async def test_an_exception_of_ours_without_a_status_gets_that_of_its_reason(setting: Setting) -> None:
    async def unary(_request: Any, _context: Context) -> None:
        raise QueueFull("no room")

    setting[1].unary = unary
    code, said = await failure(call(setting[2]))
    assert (code, said.reason, said.message) == (StatusCode.RESOURCE_EXHAUSTED, Reason.QUEUE_FULL, "no room")


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["unary", "generator", "stream", "wrong response", "misuse of gRPC"])
async def test_unexpected_errors_are_logged_and_not_told(
    setting: Setting, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def unary(_request: Any, _context: Context) -> Any:
        if kind == "wrong response":
            return "secret"
        raise ValueError("secret")

    async def stream(context: Context) -> None:
        if kind == "misuse of gRPC":
            await context.send_initial_metadata(())
            await context.send_initial_metadata(())
        raise ValueError("secret")

    setting[1].unary, setting[1].stream = unary, stream
    with caplog.at_level(logging.ERROR):
        match kind:
            case "generator":
                stub = router_service_pb2_grpc.RouterServiceStub(setting[2])
                replies: Any = stub.CallStreaming(router_service_pb2.CallStreamingRequest(payload=b"1"), timeout=30)
                assert (await replies.read()).payload == b"1"
                code, said = await failure(replies.read())
            case "stream" | "misuse of gRPC":
                code, said = await failure(setting[2].stream_stream(STREAM, None, None)(timeout=30).read())
            case _:
                code, said = await failure(call(setting[2]))
    assert code is StatusCode.INTERNAL
    assert said.message == "internal error; see the log of router-under-test"
    assert said.executed is Executed.UNKNOWN
    (record,) = caplog.records
    assert record.getMessage().startswith("rpc failed")
    assert SERVICE in record.getMessage()
    assert record.exc_info is not None
    if kind in {"unary", "generator", "stream"}:
        assert str(record.exc_info[1]) == "secret"


@pytest.mark.asyncio
async def test_an_error_after_the_end_is_logged_and_changes_nothing(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    async def unary(_request: Any, context: Context) -> None:
        try:
            await abort(context, FULL)
        finally:
            raise ValueError("in clean-up")

    setting[1].unary = unary
    with caplog.at_level(logging.WARNING):
        assert (await failure(call(setting[2])))[1].reason is Reason.QUEUE_FULL
        await wait_until(lambda: caplog.records)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "in clean-up"


@pytest.mark.asyncio
@pytest.mark.parametrize("state", ["waiting", "reading", "writing", "writing once more"])
async def test_a_client_that_leaves_is_not_an_error(
    setting: Setting, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    server, router, _ = setting
    entered, cancelled = asyncio.Event(), 0

    async def stream(context: Context) -> None:
        nonlocal cancelled
        entered.set()
        try:
            while state == "writing":
                await context.write(router_service_pb2.StreamCallsResponse())
            if state == "reading":
                # Half of the group reads, as the streams of the mesh do.
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(context.read())
                    tasks.create_task(asyncio.Event().wait())
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled += 1
            if state == "writing once more":
                while True:
                    await context.write(router_service_pb2.StreamCallsResponse())
            raise

    router.stream = stream
    with caplog.at_level(logging.DEBUG):
        async with open_channel(server.address) as leaving:
            rpc: Any = leaving.stream_stream(STREAM, None, None)()
            await rpc.write(b"")
            await within(entered.wait(), "a handler that was entered")
        await wait_until(lambda: router.streams_ended, what="the stream ends with its client")
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
    if state == "waiting":
        assert cancelled


@pytest.mark.asyncio
async def test_a_server_that_stops_cancels_what_outlasts_the_grace(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    server, router, channel = setting
    entered = asyncio.Event()

    async def stream(context: Context) -> None:
        entered.set()
        await asyncio.Event().wait()

    router.stream = stream
    rpc: Any = channel.stream_stream(STREAM, None, None)()
    await rpc.write(b"")
    await within(entered.wait(), "a handler that was entered")
    with caplog.at_level(logging.ERROR):
        await server.stop(grace_s=0.01)
    await wait_until(lambda: router.streams_ended, what="the stream ends with the server")
    assert (await failure(rpc.read()))[0] in {StatusCode.UNAVAILABLE, StatusCode.CANCELLED}
    assert not caplog.records
