"""What the owner of a connection has to do, in this order, and the answers to clients that pass a bound. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingress_service.core.counters import ConnectionCut
from ingress_service.core.http1.heads import ConnectionLimits, RequestHead
from ingress_service.core.problems import Problem
from slotmesh.errors import Reason


class QueuedRequest:
    """A request of a connection: it waits for its turn, or is being answered."""

    __slots__ = ("_parts", "ahead_bytes", "body_bytes", "head", "is_whole")

    def __init__(self, head: RequestHead, body: bytes = b"") -> None:
        """`body`: all of it, or nothing yet."""
        self.head = head
        self._parts = [body] if body else []
        self.body_bytes = len(body)
        """What was read and not taken yet."""
        self.is_whole = self.body_bytes == head.body_bytes and not head.is_chunked
        """All of the body was read."""
        self.ahead_bytes = 0
        """Its share of the bytes that may be sent ahead of responses."""

    def add(self, part: bytes) -> None:
        """More of the body has arrived."""
        self._parts.append(part)
        self.body_bytes += len(part)

    def take_body(self) -> bytes:
        """What there is of it."""
        parts, self._parts, self.body_bytes = self._parts, [], 0
        return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass(slots=True)
class StartRequest:
    """Give it to the application."""

    request: QueuedRequest


@dataclass(frozen=True, slots=True)
class WakeRequest:
    """More of its body has arrived, or all of it."""

    request: QueuedRequest


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """The request that is being answered is cancelled: nothing is written for it any more."""


@dataclass(frozen=True, slots=True)
class AnswerProblem:
    """Write this answer, which closes the connection."""

    problem: Problem
    headers: Sequence[tuple[bytes, bytes]] = ()
    """Of the request that it answers, names in lower case; empty if they could not be read."""


@dataclass(frozen=True, slots=True)
class OpenSocket:
    """Give the connection to a WebSocket."""

    head: RequestHead
    rest: bytes
    """What the client has sent behind the handshake."""


@dataclass(frozen=True, slots=True)
class Linger:
    """Close the server's side only: the client may lose the answer if a socket with unread bytes is closed.

    Source: RFC 9112, section 9.6.
    """


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """When all that was written is sent."""


Command = StartRequest | WakeRequest | CancelRequest | AnswerProblem | OpenSocket | Linger | CloseConnection


def bad_request(detail: str, status: int = 400) -> Problem:
    return Problem(status=status, reason=Reason.BAD_REQUEST.value, detail=detail)


def too_many_connections() -> Problem:
    text = "too many connections (--max-connections)"
    return Problem(status=503, reason=Reason.QUOTA_EXCEEDED.value, detail=text, retry_delay_s=1.0)


def too_slow(what: ConnectionCut) -> Problem:
    part = "headers" if what is ConnectionCut.HEADER_TIME else "body"
    return bad_request(f"the {part} did not arrive in time (--{part.removesuffix('s')}-timeout)", 408)


def too_much_ahead(limits: ConnectionLimits) -> Problem:
    most = f"{limits.ahead_requests} requests, or {limits.ahead_bytes:,} bytes"
    flags = "--max-pipelined-requests, --max-ahead-size"
    return bad_request(f"more than {most}, were sent ahead of their answers ({flags})")
