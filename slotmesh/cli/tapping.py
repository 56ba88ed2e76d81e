"""Live calls of all routers, one after another as they come.

Invariants: each router is tapped once at a time; one that goes away is tapped again when the controller lists it; what
waits to be printed is bounded, and a reader that is slow makes routers drop calls, which they say.
Owner: the command `tap` runs `TappedRouters`.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Final

import grpc

from slotmesh.cli.connection import Peer
from slotmesh.cli.outcome import CommandFailed
from slotmesh.errors import Reason, SlotmeshError
from slotmesh.spec.wire import seconds
from slotmesh.suggestions import did_you_mean
from slotmesh.v1 import call_pb2
from slotmesh.v1 import tap_service_pb2 as pb
from slotmesh.v1.router_service_pb2 import DescribeEndpointsRequest
from slotmesh.v1.router_service_pb2_grpc import RouterServiceStub
from slotmesh.v1.tap_service_pb2_grpc import TapServiceStub

LOOK_EVERY_S: Final = 2.0
"""How often the controller is asked which routers there are."""
_ASK_S: Final = 2.0
"""How long a router may take to say which methods there are."""
MAX_RESPONSES: Final = 16
"""That wait to be printed."""
_FINAL: Final = frozenset({Reason.BAD_REQUEST, Reason.ENDPOINT_NOT_FOUND, Reason.QUEUE_FULL})
"""Refusals that another router would repeat, or that somebody has to do something about."""

ListRouters = Callable[[], Awaitable[list[str]]]
"""Addresses of the routers that there are; none where that is not known now."""


@dataclass(frozen=True, slots=True)
class Tapped:
    """What one router says."""

    address: str
    response: pb.TapCallsResponse


class TappedRouters:
    """All taps."""

    def __init__(self, request: pb.TapCallsRequest, list_routers: ListRouters, tell: Callable[[str], None]) -> None:
        """`tell` is told what people should know."""
        self._request = request
        self._list_routers = list_routers
        self._tell = tell
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._has_opened = False
        self._came: asyncio.Queue[Tapped | BaseException] = asyncio.Queue(MAX_RESPONSES)

    async def responses(self) -> AsyncGenerator[Tapped, None]:
        """Without end. Raises what makes it useless to go on."""
        looking = asyncio.create_task(self._look())
        try:
            while True:
                came = await self._came.get()
                if isinstance(came, BaseException):
                    raise came
                yield came
        finally:
            tasks = [looking, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        try:
            while True:
                for address in await self._list_routers():
                    task = self._tasks.get(address)
                    if task is None or task.done():
                        self._tasks[address] = asyncio.create_task(self._tap(address))
                await asyncio.sleep(LOOK_EVERY_S)
        except Exception as error:  # noqa: BLE001 - whatever it is, the command ends with it
            await self._came.put(error)

    async def _tap(self, address: str) -> None:
        peer = Peer("router", address)
        try:
            async with peer.connect() as channel:
                stub: Any = TapServiceStub(channel)
                call = stub.TapCalls(self._request)
                with peer.telling():
                    # A refusal comes without them: then reading raises it.
                    await call.initial_metadata()
                    if call.done():
                        await call.read()
                    self._tell(f"tapping {self._request.endpoint} at {address}")
                    if not self._has_opened and (doubt := await _doubt_of(channel, self._request)):
                        self._tell(doubt)
                    self._has_opened = True
                    while (response := await call.read()) is not grpc.aio.EOF:
                        await self._came.put(Tapped(address, response))
            self._tell(f"the router at {address} has ended")
        except SlotmeshError as error:
            if error.reason in _FINAL:
                await self._came.put(error)
            else:
                self._tell(f"the tap at {address} ended: {error}")
        except CommandFailed as failure:
            if self._has_opened or len(self._tasks) > 1:
                self._tell(str(failure))
            else:
                await self._came.put(failure)


async def _doubt_of(channel: grpc.aio.Channel, request: pb.TapCallsRequest) -> str:
    """What is said where no replica that the router knows has the method; empty where all is well, or not known."""
    stub: Any = RouterServiceStub(channel)
    try:
        described = await stub.DescribeEndpoints(DescribeEndpointsRequest(endpoint=request.endpoint), timeout=_ASK_S)
    except grpc.RpcError:
        return ""
    methods = {method for endpoint in described.endpoints for method in endpoint.methods}
    if not request.method or not methods or request.method in methods:
        return ""
    closest = did_you_mean(request.method, methods) or f"; there is {', '.join(sorted(methods))}"
    return f"{request.endpoint} has no method {request.method} now{closest}"


def call_document(address: str, call: pb.TappedCall) -> dict[str, Any]:
    """A call as values of JSON. Times are milliseconds, and ISO 8601 in UTC."""
    return {
        "time": call.end_time.ToDatetime(tzinfo=UTC).isoformat(),
        "router": address,
        "method": call.method,
        "backend": call.backend,
        "replica": call.replica_id,
        "request_bytes": call.request_bytes,
        "response_bytes": call.response_bytes if call.HasField("response_bytes") else None,
        "queue_ms": round(seconds(call.queue_time) * 1e3, 3),
        "run_ms": round(seconds(call.run_time) * 1e3, 3) if call.HasField("run_time") else None,
        "outcome": "completed" if call.outcome == pb.TAPPED_OUTCOME_COMPLETED else "failed",
        "reason": call.reason or None,
        "executed": _executed(call.executed),
        "attempt": call.attempt,
        "ordered": call.ordered,
        **({"tenant": call.tenant} if call.tenant else {}),
        **_bytes("payload", call.payload if call.HasField("payload") else None),
        **_bytes("result", call.result if call.HasField("result") else None),
        **({"content_type": call.content_type} if call.content_type else {}),
    }


def _executed(executed: int) -> str:
    """One that a newer router knows is shown by its number."""
    known = executed in call_pb2.Executed.values()
    return call_pb2.Executed.Name(executed).removeprefix("EXECUTED_").lower() if known else str(executed)  # type: ignore[arg-type]


def _bytes(name: str, value: bytes | None) -> dict[str, str]:
    """Text where it is text, else base64."""
    if value is None:
        return {}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
