"""Values of a handler that yields, as Server-Sent Events and as lines of JSON. Pure.

Invariants: a value is one event, or one line; what JSON writes has no line breaks, and where a handler's own JSON has
some they do not break the framing; a stream that ended well says so, and one that failed says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from ingress_service.core.media import Framing
from ingress_service.core.problems import Problem

KEEP_ALIVE: Final = b": \n\n"
"""A comment, which clients pass over."""


@dataclass(frozen=True, slots=True)
class ValueFrames:
    """How one kind of stream is written."""

    content_type: bytes
    value: Callable[[bytes], bytes]
    failure: Callable[[Problem], bytes]
    end: bytes
    keep_alive: bytes
    """What is sent while nothing comes; empty: nothing."""


def _one_line(value: bytes) -> bytes:
    if b"\n" not in value and b"\r" not in value:
        return value
    return msgspec.json.format(value, indent=-1)


def _event(value: bytes) -> bytes:
    return b"data: %b\n\n" % _one_line(value)


def _line(value: bytes) -> bytes:
    return b"%b\n" % _one_line(value)


def _failed_event(problem: Problem) -> bytes:
    return b"event: error\ndata: %b\n\n" % problem.body()


def _failed_line(problem: Problem) -> bytes:
    return b'{"slotmesh_problem":%b}\n' % problem.body()


FRAMES: Final = {
    Framing.EVENTS: ValueFrames(b"text/event-stream", _event, _failed_event, b"event: end\ndata: \n\n", KEEP_ALIVE),
    Framing.LINES: ValueFrames(b"application/x-ndjson", _line, _failed_line, b"", b""),
}
