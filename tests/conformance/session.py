"""What the streams of one client have in common, as the router sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from slotmesh.v1 import call_pb2
from tests.conformance.rosters import Known

PADDING = "."
"""What follows the name of a call in its payload, to make it larger."""


def name_of(payload: bytes) -> str:
    """The call's name: its payload, without padding."""
    return payload.decode("utf-8", errors="replace").partition(PADDING)[0]


@dataclass(slots=True)
class SentCall:
    """A call as it arrived."""

    name: str
    call_id: int
    payload: bytes
    options: call_pb2.CallOptions
    resend: bool


@dataclass(slots=True)
class Session:
    """What the streams of one client have in common."""

    breaches: list[str] = field(default_factory=list)
    session_id: str = ""
    epoch: int = 0
    sent: dict[str, SentCall] = field(default_factory=dict)
    """Every call that ever arrived, by name; the newest sending of it."""
    unanswered: dict[str, SentCall] = field(default_factory=dict)
    """Those the router has told no outcome, as far as the client knows for sure."""
    delivered: set[str] = field(default_factory=set)
    """Calls whose outcome was written to a stream."""
    made: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Place in which the application made each call, and its ordering key."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Payload bytes of each call that the application made."""
    rosters: Known = field(default_factory=Known)

    def make(self, name: str, key: str, size: int = 0) -> None:
        """The application makes a call."""
        self.made[name] = (len(self.made), key)
        self.sizes[name] = max(size, len(name.encode()))

    def announced_name(self, call_id: int, size: int, *, resend: bool) -> str:
        """Which call it is whose payload comes in chunks: the oldest of that size that was not sent."""
        for name, made_size in self.sizes.items():
            before = self.sent.get(name)
            is_it = before is not None and before.call_id == call_id if resend else before is None
            if made_size == size and is_it:
                return name
        return f"one of {size} bytes"

    def breach(self, what: str) -> None:
        if what not in self.breaches:
            self.breaches.append(what)
