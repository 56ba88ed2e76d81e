"""A direct stream to a replica, as a client of any language writes it: frame by frame."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf import duration_pb2

from slotmesh.runtime.channels import open_channel
from slotmesh.v1 import call_pb2, direct_service_pb2, direct_service_pb2_grpc
from tests.support.wait import wait_until
from tests.support.wire_options import wire_options

Request = direct_service_pb2.AttachRequest
Response = direct_service_pb2.AttachResponse


class DirectStream:
    """Remembers all that the replica says."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        stub: Any = direct_service_pb2_grpc.DirectServiceStub(channel)
        self._call = stub.Attach()
        self.frames: list[Response] = []
        self.error: grpc.aio.AioRpcError | None = None
        self.reader = asyncio.create_task(self._read())

    @property
    def ended(self) -> bool:
        return self.reader.done()

    async def send(self, **frame: Any) -> None:
        await self._call.write(Request(**frame))

    async def open(self, replica_id: str = "") -> None:
        await self.send(open=direct_service_pb2.OpenAttach(replica_id=replica_id, features=["of-tomorrow"]))

    async def attach(self, slot_id: int, token: str, ttl_s: float | None = None, endpoint: str = "") -> str:
        """Returns the reason of the failure, or nothing."""
        wire = direct_service_pb2.AttachSlot(slot_id=slot_id, token=token, endpoint=endpoint)
        if ttl_s is not None:
            wire.ttl.CopyFrom(duration(ttl_s))
        known = len(self.frames)
        await self.send(attach=wire)
        found = await self.next("attached", known)
        assert found.attached.slot_id == slot_id
        return found.attached.failure.reason

    async def call(
        self, slot_id: int, call_id: int, payload: bytes = b"x", *, method: str = "echo", **options: Any
    ) -> None:
        wire = wire_options(method=method, **options)
        await self.send(
            call=direct_service_pb2.SlotCall(slot_id=slot_id, call_id=call_id, options=wire, payload=payload)
        )

    async def outcome(self, call_id: int) -> bytes | call_pb2.Failure:
        """The result of a call, or its failure: one of them, once."""

        def found() -> list[bytes | call_pb2.Failure]:
            results = [each.result.payload for each in self.frames if each.result.call_id == call_id]
            return results + [each.failed.failure for each in self.frames if each.failed.call_id == call_id]

        await wait_until(lambda: found() or self.ended, what=f"outcome of {call_id}")
        (outcome,) = found()
        return outcome

    async def next(self, kind: str, known: int = 0) -> Response:
        """The next frame of that kind behind so many."""

        def found() -> Response | None:
            return next((each for each in self.frames[known:] if each.WhichOneof("frame") == kind), None)

        await wait_until(lambda: found() or self.ended, what=kind)
        response = found()
        assert response is not None, self.error
        return response

    async def half_close(self) -> None:
        await self._call.done_writing()

    def cancel(self) -> None:
        self._call.cancel()

    async def _read(self) -> None:
        try:
            while (response := await self._call.read()) is not grpc.aio.EOF:
                self.frames.append(response)
        except grpc.aio.AioRpcError as error:
            self.error = error
        except asyncio.CancelledError:
            pass


@asynccontextmanager
async def direct_stream(address: str, *, opens: bool = True) -> AsyncIterator[DirectStream]:
    async with open_channel(address) as channel:
        stream = DirectStream(channel)
        if opens:
            await stream.open()
        yield stream
        stream.cancel()
        await stream.reader


def duration(seconds: float) -> duration_pb2.Duration:
    wire = duration_pb2.Duration()
    wire.FromNanoseconds(round(seconds * 1e9))
    return wire
