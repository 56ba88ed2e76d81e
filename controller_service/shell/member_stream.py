"""One membership stream: frames out, frames in, and an end that either side may choose.

Invariants: one write in flight; neither half outlives the other; when the controller ends it, the member reads why.
Owner: the task that awaits `run`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import grpc

from slotmesh.errors import Failure, SlotmeshError
from slotmesh.runtime.duplex import read_request, run_stream
from slotmesh.runtime.guards import failure_of
from slotmesh.runtime.open_streams import stream_of
from slotmesh.runtime.pump import StreamPump
from slotmesh.status import to_exception

InT = TypeVar("InT")
OutT = TypeVar("OutT")


class MemberStream(Generic[InT, OutT]):
    """A pump beside a reader."""

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any], next_frame: Callable[[], OutT | None]) -> None:
        self._context = context
        self._pump = StreamPump(context.write, next_frame)
        self._ended: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
        self.end_reason = ""
        """Why it has ended, for a person; empty before that, and if the member has closed it."""

    def wake(self) -> None:
        """There is something to send."""
        self._pump.wake()

    def end(self, failure: Failure) -> None:
        """Ends the stream with a failure, unless it has ended."""
        if not self._ended.done():
            self._ended.set_result(failure)

    async def run(self, on_frame: Callable[[InT], None]) -> None:
        """Until the member half-closes. Errors of `on_frame`, and the failure of `end`, are raised."""
        try:
            await run_stream(self._pump, self._converse(on_frame))
        except BaseException as error:
            self.end_reason = self._reason_of(error)
            raise

    def _reason_of(self, error: BaseException) -> str:
        stream = stream_of(self._context)
        if stream is not None and stream.failure is not None:
            return f"the controller ended its stream: {stream.failure.message}"
        if isinstance(error, SlotmeshError):
            return f"the controller ended its stream: {failure_of(error).message}"
        return "its connection broke"

    async def _converse(self, on_frame: Callable[[InT], None]) -> None:
        reading = asyncio.ensure_future(self._read_all(on_frame))
        try:
            await asyncio.wait((reading, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if self._ended.done():
                raise to_exception(self._ended.result())
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read_all(self, on_frame: Callable[[InT], None]) -> None:
        while (frame := await read_request(self._context)) is not None:
            on_frame(frame)
