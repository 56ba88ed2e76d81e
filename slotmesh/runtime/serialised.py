"""Writing frames of a stream as bytes.

Purpose: gRPC keeps what a stream writes for as long as its peer does not read, as bytes and in its own buffers. A frame
that it gets as a message it keeps as a message, too: a third copy.
Owner: the servicer of the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import grpc

BehaviorT = TypeVar("BehaviorT", bound=Callable[..., Any])

_MARK = "writes_bytes"


class SerialisableFrame(Protocol):
    """A message."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """Its bytes."""


def writing_bytes(behavior: BehaviorT) -> BehaviorT:
    """Marks the handler of an rpc that writes all of its frames by `write_as_bytes`."""
    behavior.__dict__[_MARK] = True
    return behavior


def writes_bytes(behavior: object) -> bool:
    """Whether the handler has that mark."""
    return hasattr(behavior, _MARK)


def write_as_bytes(
    context: grpc.aio.ServicerContext[Any, Any],
) -> Callable[[SerialisableFrame], Coroutine[Any, Any, object]]:
    """Writes frames of the rpc; once it was called the frame is of no more use."""
    write = context.write

    def write_frame(frame: SerialisableFrame) -> Coroutine[Any, Any, object]:
        return write(frame.SerializeToString())

    return write_frame
