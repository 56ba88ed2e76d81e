"""One Execute stream: in which order it reads and writes."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from replica_service.shell.links.router_stream import ExecuteRequest, Response, RouterStream
from slotmesh.handlers import deployment
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.v1 import call_pb2
from tests.support.wait import wait_until
from tests.unit.replica.hosting import hosting

pytestmark = pytest.mark.asyncio


@deployment
class Repeater:
    async def echo(self, payload: bytes) -> bytes:
        return payload


class NotedContext:
    """Notes what the stream asks of gRPC, in order; gives it one frame."""

    def __init__(self, request: ExecuteRequest) -> None:
        self.asked: list[str] = []
        self._requests = [request]
        self._end = asyncio.Event()

    async def read(self) -> Any:
        self.asked.append("read")
        if self._requests:
            return self._requests.pop()
        await self._end.wait()
        return grpc.aio.EOF

    async def write(self, frame: Response) -> None:
        self.asked.append(frame.WhichOneof("frame") or "")

    def end(self) -> None:
        self._end.set()


async def test_what_is_answered_at_once_is_written_before_the_next_frame_is_asked_for() -> None:
    unknown = replica_service_pb2.RunBatch(
        first_run_id=1, options=call_pb2.CallOptions(method="no such method"), payloads=[b"x"]
    )
    async with hosting(Repeater) as it:
        context = NotedContext(ExecuteRequest(runs=replica_service_pb2.RunFrame(batches=[unknown])))
        stream = RouterStream(it.engine, context, it.clock)  # type: ignore[arg-type]
        running = asyncio.create_task(stream.run())
        await wait_until(lambda: context.asked.count("read") == 2, what="the second frame is asked for")
        assert context.asked == ["opened", "heartbeat", "read", "results", "read"]
        context.end()
        await running
