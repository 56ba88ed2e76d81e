"""What the scripted routers have seen of one client, on all of its streams, while it plays one case."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from google.protobuf import text_format

from slotmesh.conformance.rosters import AcknowledgedRosters
from slotmesh.v1 import call_pb2

PADDING: Final = "."
"""What follows the name of a call in its payload, to make it larger."""

MAX_FRAMES: Final = 200
"""Frames that a report shows, the newest of a case."""
MAX_SHOWN_BYTES: Final = 1_000
"""Of larger frames a report has the size only."""


def shortened(text: str) -> str:
    """The text, or its beginning and its size."""
    return text if len(text) <= MAX_SHOWN_BYTES else f"{text[:200]} … ({len(text)} characters)"


def name_of(payload: bytes) -> str:
    """The call's name: its payload, without padding."""
    return payload.decode("utf-8", errors="replace").partition(PADDING)[0]


class Breach(NamedTuple):
    """A rule that holds in each case was not kept."""

    rule: str
    """Its id in docs/protocol.md."""
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


class MadeCall(NamedTuple):
    """A call of the application."""

    place: int
    """In the order in which calls were made."""
    key: str
    options: call_pb2.CallOptions | None
    """The options that it asked for; None: any."""


@dataclass(slots=True)
class SentCall:
    """A call as it arrived."""

    name: str
    call_id: int
    payload: bytes
    options: call_pb2.CallOptions
    resend: bool


@dataclass(slots=True)
class ClientRecord:
    """What the streams of one client have in common."""

    breaches: list[Breach] = field(default_factory=list)
    session_id: str = ""
    epoch: int = 0
    sent: dict[str, SentCall] = field(default_factory=dict)
    """Every call that has arrived, by name; the newest sending of it."""
    unanswered: dict[str, SentCall] = field(default_factory=dict)
    """Those that have no outcome, or whose outcome the client may not have read."""
    delivered: set[str] = field(default_factory=set)
    """Calls whose outcome was written to a stream."""
    made: dict[str, MadeCall] = field(default_factory=dict)
    """By name."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Payload bytes of each call that the application made."""
    rosters: AcknowledgedRosters = field(default_factory=AcknowledgedRosters)
    frames: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_FRAMES))
    """Frames and events, a line each, oldest first."""
    began: float = field(default_factory=time.monotonic)

    def make(self, name: str, key: str, size: int = 0, options: call_pb2.CallOptions | None = None) -> None:
        """The application makes a call."""
        self.made[name] = MadeCall(len(self.made), key, options)
        self.sizes[name] = max(size, len(name.encode()))

    def announced_name(self, call_id: int, size: int, *, resend: bool) -> str:
        """The call whose payload arrives in chunks: the oldest of that size that was not sent."""
        for name, made_size in self.sizes.items():
            before = self.sent.get(name)
            is_it = before is not None and before.call_id == call_id if resend else before is None
            if made_size == size and is_it:
                return name
        return f"one of {size} bytes"

    def breach(self, rule: str, what: str) -> None:
        """Notes a breach, once."""
        if (found := Breach(rule, what)) not in self.breaches:
            self.breaches.append(found)

    def show(self, way: str, frame: Any) -> None:
        """Notes a frame, or an event in words."""
        if isinstance(frame, str):
            text = frame
        elif (size := frame.ByteSize()) > MAX_SHOWN_BYTES:
            text = f"{frame.WhichOneof('frame')} of {size} bytes"
        else:
            text = text_format.MessageToString(frame, as_one_line=True) or "an unknown frame"
        self.frames.append(f"{time.monotonic() - self.began:7.3f} s  {way}  {text}")
