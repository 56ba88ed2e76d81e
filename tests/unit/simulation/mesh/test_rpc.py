"""gRPC in memory, and the real one: the same programs see the same over both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.rpc import status_pb2
from grpc_status import rpc_status

from simulation.mesh.environment import Surroundings, dispose, simulated
from simulation.mesh.loop import NodeLoop, node_loop
from simulation.mesh.network import Network
from simulation.mesh.timeline import Timeline

Seen = list[Any]
Program = Callable[["Side"], Awaitable[None]]

REFUSED = "127.0.0.1:1"
LARGE = b"x" * 200_000


class Side:
    """What a program has: a channel, the server, and where it writes down what it sees."""

    def __init__(self, channel: grpc.aio.Channel, server: grpc.aio.Server, seen: Seen, handled: Seen) -> None:
        self.channel = channel
        self.server = server
        self.seen = seen
        self.handled = handled
        """What handlers saw."""

    def unary(self, name: str, **arguments: Any) -> Any:
        channel: Any = self.channel
        return channel.unary_unary(f"/test/{name}")(b"hello", **arguments)

    def stream(self, name: str, **arguments: Any) -> Any:
        return self.channel.stream_stream(f"/test/{name}")(**arguments)


class Handlers:
    """The server's side of all programs."""

    def __init__(self, handled: Seen) -> None:
        self._handled = handled

    async def echo(self, request: bytes, _context: Any) -> bytes:
        return request

    async def abort(self, _request: bytes, context: Any) -> bytes:
        await context.abort_with_status(rpc_status.to_status(status_pb2.Status(code=5, message="no such thing")))
        raise AssertionError

    async def fail(self, _request: bytes, _context: Any) -> bytes:
        raise ValueError("oh")

    async def leave(self, _request: bytes, _context: Any) -> bytes:
        raise asyncio.CancelledError

    async def sleep(self, _request: bytes, context: Any) -> bytes:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            self._handled.append(("cancelled", context.done()))
            raise
        return b""

    async def echo_all(self, _requests: Any, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            await context.write(request)
        self._handled.append("half-closed")

    async def two_then_abort(self, _requests: Any, context: Any) -> None:
        await context.read()
        await context.write(b"1")
        await context.write(b"2")
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "enough")

    async def two_then_end(self, _requests: Any, context: Any) -> None:
        await context.read()
        await context.write(b"1")
        await context.write(b"2")

    async def listen(self, _requests: Any, context: Any) -> None:
        try:
            while (request := await context.read()) is not grpc.aio.EOF:
                self._handled.append(request)
                await context.write(b"heard")
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            self._handled.append("cancelled")
            raise

    async def flood(self, _requests: Any, context: Any) -> None:
        await context.read()
        for number in range(100):
            await context.write(LARGE)
            self._handled.append(number)

    def generic(self) -> Any:
        unary: dict[str, Any] = {name: grpc.unary_unary_rpc_method_handler(getattr(self, name)) for name in _UNARY}
        streams: dict[str, Any] = {
            name: grpc.stream_stream_rpc_method_handler(getattr(self, name)) for name in _STREAMS
        }
        return grpc.method_handlers_generic_handler("test", {**unary, **streams})


_UNARY = ("echo", "abort", "fail", "leave", "sleep")
_STREAMS = ("echo_all", "two_then_abort", "two_then_end", "listen", "flood")


async def outcome(work: Awaitable[Any]) -> Any:
    """What came of it, as a value that can be compared."""
    try:
        return await work
    except grpc.aio.AioRpcError as error:
        return "rpc error", error.code()
    except asyncio.CancelledError:
        return "cancelled"
    except (asyncio.InvalidStateError, grpc.aio.UsageError, grpc.aio.InternalError) as error:
        return type(error).__name__


async def reads(call: Any, count: int) -> list[Any]:
    return [await outcome(call.read()) for _ in range(count)]


# -- the programs --------------------------------------------------------------------------------------------------


async def unary(side: Side) -> None:
    side.seen.append(await outcome(side.unary("echo")))
    side.seen.append(await outcome(side.unary("fail")))
    side.seen.append(await outcome(side.unary("missing")))


async def unary_abort(side: Side) -> None:
    try:
        await side.unary("abort")
    except grpc.aio.AioRpcError as error:
        status = rpc_status.from_call(error)  # type: ignore[arg-type]  # an aio error quacks as a call
        side.seen.append((error.code(), error.details(), status is not None and status.message))


async def unary_that_cancels_itself(side: Side) -> None:
    side.seen.append(await outcome(side.unary("leave", timeout=1.0)))


async def unary_deadline(side: Side) -> None:
    side.seen.append(await outcome(side.unary("sleep", timeout=0.2)))
    await until(lambda: bool(side.handled))


async def unary_cancelled(side: Side) -> None:
    call = side.unary("sleep")
    await asyncio.sleep(0.2)
    side.seen.append(call.cancel())
    side.seen.append(await outcome(call))
    side.seen.append((call.cancelled(), call.done(), await call.code()))
    await until(lambda: bool(side.handled))


async def echo(side: Side) -> None:
    call = side.stream("echo_all")
    for payload in (b"a", b"", LARGE):
        await call.write(payload)
        side.seen.append(await call.read())
    await call.done_writing()
    side.seen.append(await outcome(call.read()) is grpc.aio.EOF)
    side.seen.append((call.done(), await call.code()))
    side.seen.append(await outcome(call.read()) is grpc.aio.EOF)
    side.seen.append(await outcome(call.write(b"more")))


async def abort_after_messages(side: Side) -> None:
    call = side.stream("two_then_abort")
    await call.write(b"go")
    await asyncio.sleep(0.2)  # all has arrived before it is read
    side.seen += await reads(call, 4)


async def end_after_messages(side: Side) -> None:
    call = side.stream("two_then_end")
    await call.write(b"go")
    await asyncio.sleep(0.2)
    side.seen += [it if it is not grpc.aio.EOF else "EOF" for it in await reads(call, 4)]


async def cancel_stream(side: Side) -> None:
    call = side.stream("listen")
    await call.write(b"hello")
    side.seen.append(await call.read())
    reading = asyncio.ensure_future(outcome(call.read()))
    await asyncio.sleep(0.05)
    side.seen.append(call.cancel())
    side.seen.append((call.done(), call.cancelled()))
    side.seen.append(await reading)
    side.seen.append(await outcome(call.read()))
    side.seen.append(await outcome(call.write(b"x")))
    await until(lambda: "cancelled" in side.handled)


async def half_close_and_wait(side: Side) -> None:
    call = side.stream("listen")
    await call.write(b"hello")
    side.seen.append(await call.read())
    await call.done_writing()
    await asyncio.sleep(0.1)
    side.seen.append(call.done())
    side.seen.append(await outcome(call.write(b"x")))
    call.cancel()
    await until(lambda: "cancelled" in side.handled)


async def server_stops(side: Side) -> None:
    call = side.stream("listen")
    await call.write(b"hello")
    side.seen.append(await call.read())
    await side.server.stop(0.1)
    ended = await outcome(call.read())
    side.seen.append(ended)
    side.seen.append(side.handled)
    side.seen.append(await outcome(side.unary("echo")))


async def server_stops_in_grace(side: Side) -> None:
    call = side.stream("echo_all")
    await call.write(b"hello")
    side.seen.append(await call.read())
    stopping = asyncio.ensure_future(side.server.stop(5.0))
    await asyncio.sleep(0.1)
    await call.write(b"more")
    side.seen.append(await call.read())
    side.seen.append(stopping.done())
    await call.done_writing()
    side.seen.append(await outcome(call.read()) is grpc.aio.EOF)
    await stopping


async def refused(side: Side) -> None:
    channel: Any
    async with grpc.aio.insecure_channel(REFUSED) as channel:
        call: Any = channel.stream_stream("/test/listen")()
        side.seen.append(await outcome(call.wait_for_connection()))
        side.seen.append(await outcome(call.read()))
        side.seen.append(await outcome(call.write(b"x")))
        side.seen.append(await outcome(channel.unary_unary("/test/echo")(b"x")))
        side.seen.append(channel.get_state())
        patient: Any = channel.stream_stream("/test/listen")(wait_for_ready=True)
        waiting = asyncio.ensure_future(outcome(patient.wait_for_connection()))
        await asyncio.sleep(0.3)
        side.seen.append(waiting.done())
        patient.cancel()
        await asyncio.sleep(0.1)
        side.seen.append(waiting.done())  # nobody tells who waits that it was cancelled
        waiting.cancel()


async def connects(side: Side) -> None:
    side.seen.append(side.channel.get_state())
    state = side.channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        await side.channel.wait_for_state_change(state)
        state = side.channel.get_state(try_to_connect=True)
    call = side.stream("listen")
    await call.wait_for_connection()
    side.seen.append(call.done())
    await call.write(b"hello")
    side.seen.append(await call.read())
    await side.channel.close()
    await until(lambda: "cancelled" in side.handled)
    side.seen.append(side.channel.get_state())
    side.seen.append(await outcome(call.read()))


async def flood(side: Side) -> None:
    """Whoever does not read holds up who writes; then all of it comes."""
    call = side.stream("flood")
    await call.write(b"go")
    await asyncio.sleep(0.5)
    side.seen.append(4 <= len(side.handled) < 60)
    side.seen.append([len(await call.read()) for _ in range(100)] == [len(LARGE)] * 100)
    side.seen.append(await outcome(call.read()) is grpc.aio.EOF)
    side.handled.clear()


PROGRAMS: list[Program] = [
    unary,
    unary_abort,
    unary_that_cancels_itself,
    unary_deadline,
    unary_cancelled,
    echo,
    abort_after_messages,
    end_after_messages,
    cancel_stream,
    half_close_and_wait,
    server_stops,
    server_stops_in_grace,
    refused,
    connects,
    flood,
]


# -- the two transports --------------------------------------------------------------------------------------------


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0.01)


async def serve(handled: Seen, address: str) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Handlers(handled).generic(),))
    port = server.add_insecure_port(address)
    await server.start()
    return server, port


async def over_sockets(program: Program) -> tuple[Seen, Seen]:
    seen: Seen = []
    handled: Seen = []
    server, port = await serve(handled, "127.0.0.1:0")
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await program(Side(channel, server, seen, handled))
    finally:
        await server.stop(None)
    return seen, handled


def in_memory(program: Program) -> tuple[Seen, Seen]:
    seen: Seen = []
    handled: Seen = []
    errors: list[Any] = []
    timeline = Timeline(7)
    network = Network(timeline)
    near = node_loop(timeline, "near", timeline.chance("near"))
    far = node_loop(timeline, "far", timeline.chance("far"), zero=55.0)
    servers: list[grpc.aio.Server] = []

    async def main() -> None:
        async with grpc.aio.insecure_channel("127.0.0.2:7000") as channel:
            await program(Side(channel, _Far(far, servers[0]), seen, handled))  # type: ignore[arg-type]

    async def begin() -> None:
        server, _ = await serve(handled, "127.0.0.2:7000")
        servers.append(server)

    with simulated(Surroundings(network)):
        far.deliver(lambda: far.create_task(begin()))
        timeline.run(until=0.1)
        tasks: list[asyncio.Task[Any]] = []
        near.deliver(lambda: tasks.append(near.create_task(main())))
        timeline.run(until=60.0)
        try:
            assert tasks[0].done()
            tasks[0].result()
        finally:
            dispose([near, far])
    assert not errors
    return seen, handled


class _Far:
    """The server, stopped in its own process."""

    def __init__(self, loop: NodeLoop, server: grpc.aio.Server) -> None:
        self._loop = loop
        self._server = server

    async def stop(self, grace: float | None) -> None:
        here = asyncio.get_running_loop()
        stopped = here.create_future()

        async def stop() -> None:
            await self._server.stop(grace)
            here.call_soon_threadsafe(stopped.set_result, None)

        self._loop.deliver(lambda: self._loop.create_task(stop()))
        await stopped


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.filterwarnings("ignore")
def test_both_transports_show_the_same(program: Program) -> None:
    expected = asyncio.run(over_sockets(program))

    assert in_memory(program) == expected
    assert expected[0]
