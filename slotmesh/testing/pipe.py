"""A stream between two parties of one process, with the faces that gRPC gives to a client's and a server's end.

Invariants: frames come in the order in which they were put; after the end of a direction its reader gets EOF, for ever.
Owner: the stand-in for a router, on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import grpc


class Pipe:
    """Frames in one direction."""

    def __init__(self) -> None:
        self._frames: deque[Any] = deque()
        self._has_ended = False
        self._has_come = asyncio.Event()

    def put(self, frame: Any) -> None:
        """Adds the next frame; dropped after the end."""
        if not self._has_ended:
            self._frames.append(frame)
            self._has_come.set()

    def end(self) -> None:
        """No frame comes any more."""
        self._has_ended = True
        self._has_come.set()

    async def get(self) -> Any:
        """The next frame, or EOF. Of one reader."""
        while not self._frames:
            if self._has_ended:
                return grpc.aio.EOF
            self._has_come.clear()
            await self._has_come.wait()
        return self._frames.popleft()
