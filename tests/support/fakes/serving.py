"""The life of a fake server: a port that stays the same, a start, and an end without a word."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import grpc

from slotmesh.runtime.channels import server_options


class FakeServer:
    """A servicer that serves itself, for as long as the block lasts. It may be stopped and started again."""

    register: Callable[[Any, Any], None]
    """The generated `add_XServicer_to_server`, as a static method."""

    host = "127.0.0.1"
    """Set before the start: an address of loopback."""

    def __init__(self, port: int = 0) -> None:
        """`port` 0 takes a free one."""
        self._port = port
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self._port}"

    async def start(self) -> None:
        self._server = grpc.aio.server(options=server_options())
        self.register(self, self._server)
        self._port = self._server.add_insecure_port(self.address)
        await self._server.start()

    async def stop(self) -> None:
        """Goes away at once, as if killed: streams break with what the transport says."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
