"""Programs over gRPC that note down what they see, whatever carries their messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc_status import rpc_status

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


async def unary_cancelled_as_it_ends(side: Side) -> None:
    call = side.unary("echo")
    task = asyncio.ensure_future(outcome(call))
    call.add_done_callback(lambda _: task.cancel())
    side.seen.append(await task)


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
    unary_cancelled_as_it_ends,
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
