"""gRPC in memory, and the real one: the same programs see the same over both."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.rpc import status_pb2
from grpc_status import rpc_status

from simulation.mesh.environment import Surroundings, dispose, simulated
from simulation.mesh.loop import NodeLoop, node_loop
from simulation.mesh.network import Network
from simulation.mesh.timeline import Timeline
from tests.unit.simulation.mesh.rpc_programs import LARGE, PROGRAMS, Program, Seen, Side


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
