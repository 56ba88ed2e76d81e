"""What the owner of a connection has to do, in this order. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ingress_service.core.connection.heads import RequestHead
from ingress_service.core.problems import Problem


class QueuedRequest:
    """A request of a connection: it waits for its turn, or is being answered."""

    __slots__ = ("ahead_bytes", "body", "head", "is_whole")

    def __init__(self, head: RequestHead) -> None:
        self.head = head
        self.body = bytearray()
        """What was read and not taken yet."""
        self.is_whole = not head.has_body
        """All of the body was read."""
        self.ahead_bytes = 0
        """What it takes of the room for what is sent ahead of answers."""


@dataclass(frozen=True, slots=True)
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
