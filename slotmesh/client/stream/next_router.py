"""Another router, while the one in use leaves.

Purpose: a router that leaves answers what it has; meanwhile a connection to one of the others is made, over which the
session goes on.
Invariants: one search at a time. What was reached is taken once, or cancelled by `discard`.
Owner: the endpoint's `Connection`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import grpc

from slotmesh.client.stream.outgoing_frames import StreamCall
from slotmesh.client.stream.router_search import FIRST_ATTEMPT_S
from slotmesh.runtime.backoff import Backoff


class NextRouter:
    """Looked for from `seek` to `stop`."""

    def __init__(self, endpoint: str, others: Callable[[], Sequence[str]], call: Callable[[str], StreamCall]) -> None:
        """`others`: the routers that may be used instead. `call` makes a stream to one, not opened yet."""
        self._endpoint = endpoint
        self._others = others
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._seeking: asyncio.Task[None] | None = None
        self._reached: tuple[str, StreamCall] | None = None
        self._found: asyncio.Future[None]

    def awaited(self) -> asyncio.Future[None]:
        """A link is used from now on. Done when another router than its was reached."""
        self._found = self._loop.create_future()
        return self._found

    def seek(self) -> None:
        """The router in use leaves."""
        self._seeking = self._loop.create_task(self._seek(), name=f"slotmesh-client-move-{self._endpoint}")

    async def stop(self) -> None:
        """The link has ended. What was reached stays."""
        if self._seeking is not None:
            self._seeking.cancel()
            await asyncio.gather(self._seeking, return_exceptions=True)
            self._seeking = None

    def take(self) -> tuple[str, StreamCall] | None:
        """What was reached: the router, and the stream to it, not opened yet."""
        reached, self._reached = self._reached, None
        return reached

    def discard(self) -> None:
        """Nothing is to be sent any more."""
        if (reached := self.take()) is not None:
            reached[1].cancel()

    async def _seek(self) -> None:
        backoff = Backoff()
        while True:
            for address in self._others():
                try:
                    call = self._call(address)
                except grpc.RpcError:  # there is no token to be had
                    continue
                try:
                    async with asyncio.timeout(FIRST_ATTEMPT_S):
                        await call.wait_for_connection()
                except (grpc.RpcError, TimeoutError):
                    call.cancel()
                except BaseException:
                    call.cancel()
                    raise
                else:
                    self._reached = address, call
                    if not self._found.done():
                        self._found.set_result(None)
                    return
            await asyncio.sleep(backoff.next_delay_s())
