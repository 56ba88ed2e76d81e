"""The states of one connection, as two tables: what is read of the client, and what is answered. Pure.

Each event of a side is a row; an event that a state does not list cannot happen there, and is a defect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from slotmesh.calls.state_table import StateName


class ReadState(StateName):
    """Of the bytes that arrive."""

    IDLE = "Idle"
    """No byte of a next request has arrived."""
    HEAD = "Head"
    """A part of a head has arrived."""
    BODY = "Body"
    """A head was read, and not the end of its body."""
    SOCKET = "Socket"
    """A WebSocket handshake was read: what follows belongs to the WebSocket, and waits until it is opened."""
    DEAF = "Deaf"
    """What arrives is dropped: nothing after an error, or after the last request, is a request."""
    ENDED = "Ended"
    """The client has closed the connection, or its side of it."""


class ReadEvent(StateName):
    """What happens to the bytes that arrive."""

    BYTES = "first byte"
    HEAD = "head complete"
    REQUEST = "request complete"
    LAST = "last request complete"
    HANDSHAKE = "WebSocket handshake"
    REFUSED = "malformed, too large, too slow"
    UNWANTED = "last answer begun"
    ENDED = "client left"


class AnswerState(StateName):
    """Of the answers."""

    IDLE = "Waiting"
    """No request is being answered."""
    RUNNING = "Running"
    """A request was given to the application, and nothing of its answer was written."""
    SENDING = "Sending"
    """A part of its answer was written."""
    SOCKET = "WebSocket"
    """The connection belongs to the WebSocket."""
    LINGERING = "Lingering"
    """The last answer was written, and the server's side is closed: the client may still read it."""
    CLOSED = "Closed"
    """Nothing is written any more."""


class AnswerEvent(StateName):
    """What happens to the answers."""

    STARTED = "next request"
    BEGUN = "answer begun"
    ANSWERED = "answer complete"
    OPENED = "handshake in turn"
    REFUSED = "error in turn, or in its own body"
    LAST = "last answer, client may still send"
    CLOSED = "last answer, or idle too long"
    BROKEN = "error after a part of the answer"
    OVER = "client closed, or lingered long enough"
    LEFT = "client left"


_R, _E = ReadState, ReadEvent
READ_STEPS: Final[Mapping[tuple[ReadState, ReadEvent], ReadState]] = {
    (_R.IDLE, _E.BYTES): _R.HEAD,
    (_R.HEAD, _E.HEAD): _R.BODY,
    (_R.HEAD, _E.HANDSHAKE): _R.SOCKET,
    (_R.BODY, _E.REQUEST): _R.IDLE,
    (_R.BODY, _E.LAST): _R.DEAF,
    (_R.IDLE, _E.REFUSED): _R.DEAF,
    (_R.HEAD, _E.REFUSED): _R.DEAF,
    (_R.BODY, _E.REFUSED): _R.DEAF,
    (_R.SOCKET, _E.REFUSED): _R.DEAF,
    **{(state, _E.UNWANTED): _R.DEAF for state in (_R.IDLE, _R.HEAD, _R.BODY, _R.SOCKET, _R.DEAF)},
    **{(state, _E.ENDED): _R.ENDED for state in _R},
}
_A, _W = AnswerState, AnswerEvent
ANSWER_STEPS: Final[Mapping[tuple[AnswerState, AnswerEvent], AnswerState]] = {
    (_A.IDLE, _W.STARTED): _A.RUNNING,
    (_A.RUNNING, _W.BEGUN): _A.SENDING,
    (_A.RUNNING, _W.ANSWERED): _A.IDLE,
    (_A.SENDING, _W.ANSWERED): _A.IDLE,
    (_A.IDLE, _W.OPENED): _A.SOCKET,
    (_A.IDLE, _W.REFUSED): _A.LINGERING,
    (_A.RUNNING, _W.REFUSED): _A.LINGERING,
    (_A.IDLE, _W.LAST): _A.LINGERING,
    (_A.IDLE, _W.CLOSED): _A.CLOSED,
    (_A.SENDING, _W.BROKEN): _A.CLOSED,
    (_A.LINGERING, _W.OVER): _A.CLOSED,
    **{(state, _W.LEFT): _A.CLOSED for state in _A},
}
