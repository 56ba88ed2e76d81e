"""What every server of the mesh does, whatever it serves: health, reflection, guards, an honest port."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import descriptor_pb2
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from slotmesh.config import SettingsError
from slotmesh.errors import Executed, Failure, QueueFull, Reason
from slotmesh.runtime import health
from slotmesh.runtime.channels import open_channel
from slotmesh.runtime.exits import CannotStart
from slotmesh.runtime.server import GrpcServer
from slotmesh.status import abort, from_rpc_error, to_exception
from slotmesh.v1 import router_service_pb2, router_service_pb2_grpc
from tests.support.wait import wait_until

SERVICE = "slotmesh.v1.RouterService"
STREAM = f"/{SERVICE}/StreamCalls"
FULL = Failure(reason=Reason.QUEUE_FULL, message="no room", retry_delay_s=0.25, metadata={"backend": "b"})
Context = grpc.aio.ServicerContext[Any, Any]
StatusCode = grpc.StatusCode


class Router(router_service_pb2_grpc.RouterServiceServicer):
    """A servicer whose rpcs do what a test sets."""

    def __init__(self) -> None:
        self.unary: Callable[[Any, Context], Awaitable[Any]] = self._echo
        self.stream: Callable[[Context], Awaitable[None]] = self._answer_all
        self.streams_ended = 0

    async def Call(self, request: Any, context: Context) -> Any:
        return await self.unary(request, context)

    async def CallJson(self, request: Any, context: Context) -> Any:
        raise AssertionError("not part of these tests")

    async def CallStreaming(self, request: Any, context: Context) -> AsyncIterator[Any]:
        yield router_service_pb2.CallStreamingResponse(payload=request.payload)
        await self.unary(request, context)

    async def StreamCalls(self, request_iterator: Any, context: Context) -> None:  # type: ignore[override]  # reader and writer
        try:
            await self.stream(context)
        finally:
            self.streams_ended += 1

    async def _echo(self, request: Any, context: Context) -> Any:
        return router_service_pb2.CallResponse(payload=request.payload)

    async def _answer_all(self, context: Context) -> None:
        while await context.read() is not grpc.aio.EOF:
            await context.write(router_service_pb2.StreamCallsResponse())


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[GrpcServer, Router, grpc.aio.Channel]]:
    server, router = GrpcServer("router-under-test", **options), Router()
    server.add(router_service_pb2_grpc.add_RouterServiceServicer_to_server, router)
    await server.start()
    try:
        async with open_channel(server.address) as channel:
            yield server, router, channel
    finally:
        await server.stop()


@pytest_asyncio.fixture
async def setting() -> AsyncIterator[tuple[GrpcServer, Router, grpc.aio.Channel]]:
    async with serving() as parts:
        yield parts


Setting = tuple[GrpcServer, Router, grpc.aio.Channel]


async def call(channel: grpc.aio.Channel, payload: bytes = b"x", timeout_s: float = 5.0) -> Any:
    stub = router_service_pb2_grpc.RouterServiceStub(channel)
    return await stub.Call(router_service_pb2.CallRequest(payload=payload), timeout=timeout_s)


async def failure(rpc: Awaitable[Any]) -> tuple[grpc.StatusCode, Failure]:
    """The status and the details that a client sees."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rpc
    return caught.value.code(), from_rpc_error(caught.value)


# -- health ------------------------------------------------------------------------------------------------------


def check(channel: grpc.aio.Channel, service: str = "") -> Any:
    rpc = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        health_pb2.HealthCheckRequest.SerializeToString,
        health_pb2.HealthCheckResponse.FromString,
    )
    return rpc(health_pb2.HealthCheckRequest(service=service), timeout=5)


def watch(channel: grpc.aio.Channel, service: str = "") -> Any:
    rpc = channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        health_pb2.HealthCheckRequest.SerializeToString,
        health_pb2.HealthCheckResponse.FromString,
    )
    return rpc(health_pb2.HealthCheckRequest(service=service), timeout=5)


@pytest.mark.asyncio
async def test_health_says_not_serving_until_told_otherwise(setting: Setting) -> None:
    server, _, channel = setting
    assert (await check(channel)).status == health_pb2.HealthCheckResponse.NOT_SERVING
    server.set_serving()
    assert (await check(channel)).status == health_pb2.HealthCheckResponse.SERVING
    assert (await check(channel, SERVICE)).status == health_pb2.HealthCheckResponse.SERVING
    server.set_serving(False)
    assert (await check(channel, SERVICE)).status == health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.asyncio
async def test_health_of_an_unknown_service_is_not_found(setting: Setting) -> None:
    code, said = await failure(check(setting[2], "no.such.Service"))
    assert code is StatusCode.NOT_FOUND
    assert "no.such.Service" in said.message


@pytest.mark.asyncio
async def test_watch_tells_each_change_and_ends_with_the_server(setting: Setting) -> None:
    server, _, channel = setting
    mine, unknown = watch(channel, SERVICE), watch(channel, "no.such.Service")
    assert (await mine.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert (await unknown.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    server.set_serving()
    assert (await mine.read()).status == health_pb2.HealthCheckResponse.SERVING
    # A watcher does not keep a server from stopping: far less than the grace passes.
    async with asyncio.timeout(5):
        await server.stop(grace_s=60)
    assert (await mine.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert await mine.read() is grpc.aio.EOF
    assert await unknown.read() is grpc.aio.EOF
    assert await mine.code() is StatusCode.OK


@pytest.mark.asyncio
async def test_list_has_all_services(setting: Setting) -> None:
    server, _, channel = setting
    server.set_serving()
    response = health.ListResponse
    rpc: Any = channel.unary_unary("/grpc.health.v1.Health/List", None, response.FromString)
    statuses = {service: each.status for service, each in (await rpc(b"", timeout=5)).statuses.items()}
    serving_now = health_pb2.HealthCheckResponse.SERVING
    assert statuses == {"": serving_now, SERVICE: serving_now, health.SERVICE: serving_now}


# -- reflection --------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_lists_and_describes(setting: Setting, version: str) -> None:
    rpc = setting[2].stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    asked = rpc(timeout=5)

    async def ask(**question: Any) -> Any:
        await asked.write(reflection_pb2.ServerReflectionRequest(**question))
        return await asked.read()

    listed = {each.name for each in (await ask(list_services="")).list_services_response.service}
    assert listed == {
        SERVICE,
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }

    def methods(answer: Any, service: str) -> set[str]:
        for raw in answer.file_descriptor_response.file_descriptor_proto:
            for each in descriptor_pb2.FileDescriptorProto.FromString(raw).service:
                if each.name == service:
                    return {method.name for method in each.method}
        return set()

    assert "StreamCalls" in methods(await ask(file_containing_symbol=SERVICE), "RouterService")
    assert methods(await ask(file_containing_symbol="grpc.health.v1.Health"), "Health") == {"Check", "Watch", "List"}
    # Details of errors can be shown.
    info = await ask(file_containing_symbol=error_details_pb2.ErrorInfo.DESCRIPTOR.full_name)
    assert info.file_descriptor_response.file_descriptor_proto
    unknown = await ask(file_containing_symbol="no.such.Symbol")
    assert unknown.error_response.error_code == StatusCode.NOT_FOUND.value[0]
    await asked.done_writing()
    assert await asked.read() is grpc.aio.EOF


# -- guards ------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
async def test_malformed_protobuf_is_the_senders_mistake(setting: Setting, kind: str) -> None:
    method = "Call" if kind == "unary_unary" else "CallStreaming"
    rpc = getattr(setting[2], kind)(f"/{SERVICE}/{method}", None, None)(b"\xff\xff\xff", timeout=5)
    code, said = await failure(rpc if kind == "unary_unary" else rpc.read())
    assert code is StatusCode.INVALID_ARGUMENT
    assert said.reason is Reason.BAD_REQUEST
    assert said.executed is Executed.NO
    assert said.message == f"not a valid slotmesh.v1.{method}Request: malformed protobuf"


@pytest.mark.asyncio
async def test_malformed_protobuf_ends_a_stream_after_what_came_before(setting: Setting) -> None:
    stream: Any = setting[2].stream_stream(STREAM, None, None)(timeout=5)
    await stream.write(b"")
    assert await stream.read() == b""
    await stream.write(b"\xff\xff\xff")
    code, said = await failure(stream.read())
    assert code is StatusCode.INVALID_ARGUMENT
    assert said.message == "not a valid slotmesh.v1.StreamCallsRequest: malformed protobuf"


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
                replies: Any = stub.CallStreaming(router_service_pb2.CallStreamingRequest(payload=b"1"), timeout=5)
                assert (await replies.read()).payload == b"1"
                code, said = await failure(replies.read())
            case "stream" | "misuse of gRPC":
                code, said = await failure(setting[2].stream_stream(STREAM, None, None)(timeout=5).read())
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
            await entered.wait()
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
    await entered.wait()
    with caplog.at_level(logging.ERROR):
        await server.stop(grace_s=0.01)
    await wait_until(lambda: router.streams_ended, what="the stream ends with the server")
    assert (await failure(rpc.read()))[0] in {StatusCode.UNAVAILABLE, StatusCode.CANCELLED}
    assert not caplog.records


# -- the port, the options ---------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_taken_port_is_refused_with_a_way_out(setting: Setting) -> None:
    second = GrpcServer("second", port=setting[0].port)
    with pytest.raises(CannotStart, match=rf"second cannot listen on 127\.0\.0\.1:{setting[0].port}: .*--port"):
        await second.start()
    await second.stop()


@pytest.mark.asyncio
async def test_a_port_is_shared_on_purpose_only() -> None:
    async with serving(so_reuseport=True) as (first, _, _):
        async with serving(so_reuseport=True, port=first.port) as (second, _, channel):
            assert second.address == first.address
            assert (await call(channel)).payload == b"x"


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
    payload = bytes(5 * 1024 * 1024)
    assert (await call(setting[2], payload)).payload == payload


@pytest.mark.asyncio
async def test_a_burst_of_unary_calls_is_answered_in_full(setting: Setting) -> None:
    burst = (call(setting[2], timeout_s=45.0) for _ in range(3_000))  # all are answered, however slow the machine is
    answers = await asyncio.gather(*burst, return_exceptions=True)
    assert {type(each) for each in answers} == {router_service_pb2.CallResponse}


@pytest.mark.asyncio
async def test_a_stopped_server_serves_nothing_and_stops_twice(setting: Setting) -> None:
    server, _, channel = setting
    await server.stop()
    await server.stop()
    code, _ = await failure(call(channel))
    assert code is StatusCode.UNAVAILABLE
    with pytest.raises(RuntimeError, match="has not started"):
        _ = server.address


def test_a_channel_needs_an_address() -> None:
    with pytest.raises(ValueError, match="expected HOST:PORT, got 'localhost'"):
        open_channel("localhost")
