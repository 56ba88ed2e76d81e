"""Writing frames of a stream as bytes.

Purpose: gRPC keeps what a stream writes for as long as its peer does not read, as bytes and in its own buffers. A frame
that it gets as a message it keeps as a message, too: a third copy.
Owner: the servicer of the stream.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import grpc


class Frame(Protocol):
    """A message."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """Its bytes."""


def write_as_bytes(context: grpc.aio.ServicerContext[Any, Any]) -> Callable[[Frame], Awaitable[object]]:
    """Writes frames of the rpc; once it was called the frame is of no more use."""
    write = context.write

    def write_frame(frame: Frame) -> Awaitable[object]:
        return write(frame.SerializeToString())

    return write_frame
