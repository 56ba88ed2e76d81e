"""The rpcs of a service that runs, called with bytes and without a socket.

Purpose: what a peer sends reaches the real guards, servicers and cores, thousands of times a second.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import grpc

from slotmesh.server.guards import GuardedRegistration, Handler

OF_DEFECTS: Final = "internal error; see the log"
"""What the guards tell a client of an error that nobody has foreseen."""
LOOKS: Final = 200
"""Turns of the loop that an rpc has before it is cancelled: calls that wait are none of ours."""


class Aborted(grpc.aio.AbortError):
    """The rpc has ended with a status."""


class Peer:
    """Stands in for gRPC's context: a client that sends frames, takes all answers, and then sends no more."""

    def __init__(self, frames: Sequence[bytes], parse: Any, metadata: Sequence[tuple[str, str | bytes]] = ()) -> None:
        self._frames = deque(frames)
        self._parse = parse
        self._metadata = tuple(metadata)
        self.status: Any = 0
        self.details = ""
        self._is_done = False
        self.answers = 0

    async def read(self) -> Any:
        await asyncio.sleep(0)
        if not self._frames:
            return grpc.aio.EOF
        return self._parse(self._frames.popleft())

    async def write(self, _message: Any) -> None:
        await asyncio.sleep(0)
        self.answers += 1

    async def send_initial_metadata(self, _metadata: Any) -> None:
        await asyncio.sleep(0)

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        self.status, self.details, self._is_done = code, details, True
        raise Aborted(details)

    async def abort_with_status(self, status: Any) -> None:
        await self.abort(status.code, status.details)

    def set_code(self, code: Any) -> None:
        self.status = code

    def set_details(self, details: str) -> None:
        self.details = details

    def set_trailing_metadata(self, _metadata: Any) -> None: ...

    def set_compression(self, _compression: Any) -> None: ...

    def disable_next_message_compression(self) -> None: ...

    def invocation_metadata(self) -> Any:
        return self._metadata

    def trailing_metadata(self) -> Any:
        return ()

    def code(self) -> Any:
        return self.status

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def peer_identities(self) -> None:
        return None

    def peer_identity_key(self) -> None:
        return None

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        return {}

    def time_remaining(self) -> float | None:
        return 5.0

    def cancelled(self) -> bool:
        return False

    def done(self) -> bool:
        return self._is_done

    def add_done_callback(self, _callback: Any) -> None: ...


@contextmanager
def recorded_handlers() -> Iterator[dict[str, Handler]]:
    """The guarded handlers of all servers that start inside of the block, by `SERVICE/METHOD`."""
    handlers: dict[str, Handler] = {}
    register = GuardedRegistration.add_registered_method_handlers

    def recording(self: GuardedRegistration, service: str, added: Mapping[str, Handler]) -> None:
        server = self._server
        with patch.object(self, "_server", _Recorder(server, service, handlers)):
            register(self, service, added)

    with patch.object(GuardedRegistration, "add_registered_method_handlers", recording):
        yield handlers


class _Recorder:
    def __init__(self, server: Any, service: str, handlers: dict[str, Handler]) -> None:
        self._server, self._service, self._handlers = server, service, handlers

    def add_generic_rpc_handlers(self, added: Sequence[Any]) -> None:
        self._server.add_generic_rpc_handlers(added)
        for generic in added:
            for method, handler in generic._method_handlers.items():
                self._handlers[method.removeprefix("/")] = handler

    def add_registered_method_handlers(self, service: str, added: Mapping[str, Handler]) -> None:
        """They are among the generic ones, too."""
        self._server.add_registered_method_handlers(service, added)


async def send(handler: Any, frames: Sequence[bytes], metadata: Sequence[tuple[str, str | bytes]] = ()) -> Peer:
    """Calls the rpc with these frames, the first alone where it takes one message. A defect is raised.

    An rpc that waits for what does not come is cancelled, as by a client that leaves.
    """
    peer = Peer(frames, handler.request_deserializer or bytes, metadata)
    behavior = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    request: Any = peer if handler.request_streaming else (frames[0] if frames else b"")
    rpc = asyncio.ensure_future(_drained(behavior(request, peer)))
    for _ in range(LOOKS):
        if rpc.done():
            break
        await asyncio.sleep(0)
    rpc.cancel()
    for each in await asyncio.gather(rpc, return_exceptions=True):
        if isinstance(each, BaseException) and not isinstance(each, Aborted | asyncio.CancelledError):
            raise each
    if OF_DEFECTS in peer.details:
        raise AssertionError(f"the rpc has met a defect: {peer.details}")
    return peer


async def _drained(answer: Any) -> None:
    if hasattr(answer, "__aiter__"):
        async for _ in answer:
            pass
    else:
        await answer
