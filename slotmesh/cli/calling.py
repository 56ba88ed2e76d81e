"""Calls by unary rpcs, one after another: results and values are written as they come."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, Final

import typer

from slotmesh.cli.connection import Peer
from slotmesh.cli.latencies import CallTally
from slotmesh.cli.saying import say
from slotmesh.client.calls.options import ViewOptions
from slotmesh.errors import SlotmeshError
from slotmesh.v1 import router_service_pb2 as pb
from slotmesh.v1 import router_service_pb2_grpc

_SLACK_S: Final = 1.0
"""How much later than the router's deadline the transport's is, so that the router's answer can arrive."""


class UnaryCaller:
    """Makes one call, again and again."""

    def __init__(self, peer: Peer, channel: Any, endpoint: str, method: str, view: ViewOptions, payload: bytes) -> None:
        self._peer = peer
        self._stub: Any = router_service_pb2_grpc.RouterServiceStub(channel)
        self._endpoint = endpoint
        self._options = view.to_wire(method)
        self._payload = payload
        self._timeout_s = None if view.timeout_s is None else view.timeout_s + _SLACK_S

    async def result(self) -> bytes:
        """The result. Raises SlotmeshError."""
        request = pb.CallRequest(endpoint=self._endpoint, options=self._options, payload=self._payload)
        with self._peer.telling():
            response = await self._stub.Call(request, timeout=self._timeout_s)
        payload: bytes = response.payload
        return payload

    async def values(self) -> AsyncIterator[bytes]:
        """Each value that the handler yields, as it comes. Raises SlotmeshError."""
        request = pb.CallStreamingRequest(endpoint=self._endpoint, options=self._options, payload=self._payload)
        call = self._stub.CallStreaming(request, timeout=self._timeout_s)
        try:
            with self._peer.telling():
                async for response in call:
                    yield response.payload
        finally:
            call.cancel()


async def call_again_and_again(caller: UnaryCaller, times: int, *, streams: bool) -> CallTally:
    """One call after another; failures go to stderr. With more than one call, so does a summary, whatever ends them.

    A single call raises its failure.
    """
    tally, began = CallTally(), time.monotonic()
    try:
        for _ in range(times):
            call_began, reason = time.monotonic(), ""
            try:
                await _write_one(caller, streams=streams)
            except SlotmeshError as failure:
                if times == 1:
                    raise
                reason = failure.reason.value
                say(failure, err=True)
            tally.add(time.monotonic() - call_began, reason)
    finally:
        if times > 1:
            for line in tally.lines(time.monotonic() - began):
                typer.echo(line, err=True)
    return tally


async def _write_one(caller: UnaryCaller, *, streams: bool) -> None:
    if not streams:
        typer.echo(await caller.result())
        return
    async for value in caller.values():
        typer.echo(value)
