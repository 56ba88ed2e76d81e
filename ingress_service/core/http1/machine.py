"""One connection of HTTP/1.1: which request is run when, what is answered, and when it ends. Pure.

Purpose: bytes, times and answers are events; the methods return what is to be done.
Invariants: requests are started one after another, in the order of their bytes, and answered in that order; one is
started only while its client is there and everything in front of it is answered. An error behind requests is answered
after them: a request that was started, and whose body is complete, is never answered by an error of what follows it.
What is held of requests behind the running one is bounded; the bytes are read all the same, so that the end of the
connection is seen.
Owner: the connection's protocol, which is its only writer.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

from ingress_service.core.counters import ConnectionCut, Counters
from ingress_service.core.http1.commands import (
    AnswerProblem,
    CancelRequest,
    CloseConnection,
    Command,
    Linger,
    OpenSocket,
    QueuedRequest,
    StartRequest,
    WakeRequest,
    bad_request,
    too_many_connections,
    too_much_ahead,
    too_slow,
)
from ingress_service.core.http1.heads import ConnectionLimits, MalformedRequest, RequestHead
from ingress_service.core.http1.request_reader import HttpReader, RequestEnd
from ingress_service.core.http1.states import ANSWER_STEPS, READ_STEPS, AnswerEvent, AnswerState, ReadEvent, ReadState

LINGER_S: Final = 2.0
"""How long a client that still sends may read its last answer."""
_DROPS: Final = frozenset({ReadState.DEAF, ReadState.ENDED})


class ConnectionMachine:
    """Made for each connection."""

    def __init__(self, limits: ConnectionLimits, counters: Counters, now: float) -> None:
        self.read_state = ReadState.IDLE
        self.answer_state = AnswerState.IDLE
        self.current: QueuedRequest | None = None
        """The request that is being answered."""
        self._limits = limits
        self._counters = counters
        self._reader = HttpReader(limits.header_bytes)
        self._waiting: deque[QueuedRequest] = deque()
        self._arriving: QueuedRequest | None = None
        """The request whose body is being read: the current one, or the last of those that wait."""
        self._ahead_bytes = 0
        """Held of the requests that wait, and for the WebSocket."""
        self._handshake: RequestHead | None = None
        self._held = bytearray()
        """What the client has sent behind its handshake."""
        self._problem: AnswerProblem | None = None
        """The error that is answered after all requests that were read."""
        self._is_ending = False
        """No answer follows the current one."""
        self._is_stopping = False
        self._still_sends = False
        """The client may be sending more than was read."""
        self._due = now + limits.header_s
        """When what is awaited of the client has to be there."""
        self._awaits: ConnectionCut | None = ConnectionCut.HEADER_TIME
        """None: the next request, which need not arrive."""

    # -- the client --------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> list[Command]:
        """Bytes have arrived."""
        is_idle = self.read_state is ReadState.IDLE and self.answer_state is AnswerState.IDLE
        if is_idle and (found := self._reader.take_whole(data)) is not None:
            return self._start_whole(*found)
        commands: list[Command] = []
        if self.read_state is ReadState.SOCKET:
            self._hold(data, now, commands)
        elif self.read_state in _DROPS:
            self._still_sends = True
        else:
            self._reader.feed(data)
            try:
                self._read_all(now, commands)
            except MalformedRequest as error:
                answer = AnswerProblem(bad_request(error.detail, error.status), error.headers)
                self._refuse(error.cut, answer, now, commands)
        return commands

    def end_of_input(self) -> list[Command]:
        """The client has closed the connection, or its side of it: it takes back what it has asked for."""
        self._read(ReadEvent.ENDED)
        self._answer(AnswerEvent.LEFT)
        self._drop_waiting()
        had_current, self.current = self.current is not None, None
        return [CancelRequest(), CloseConnection()] if had_current else [CloseConnection()]

    @property
    def reads_by_length(self) -> bool:
        """What arrives next is not looked at byte by byte: it is a body of known length, or dropped."""
        if self._arriving is None:
            return self.read_state in _DROPS
        return not self._arriving.head.is_chunked

    # -- time --------------------------------------------------------------------------------------------------------

    def refuse_connection(self) -> list[Command]:
        """There are too many connections. This one does not linger, or there would be more for that time."""
        self._counters.cuts[ConnectionCut.CONNECTIONS] += 1
        self._read(ReadEvent.REFUSED)
        self._answer(AnswerEvent.CLOSED)
        return [AnswerProblem(too_many_connections()), CloseConnection()]

    def overdue(self, now: float) -> list[Command]:
        """Looks whether the client has kept its times."""
        commands: list[Command] = []
        if now <= self._due:
            return commands
        self._due = inf
        if self.answer_state is AnswerState.LINGERING:
            self._answer(AnswerEvent.OVER)
            commands.append(CloseConnection())
        elif self._awaits is None:
            self._end(now, commands)
        else:
            self._refuse(self._awaits, AnswerProblem(too_slow(self._awaits)), now, commands)
        return commands

    def stop(self, now: float) -> list[Command]:
        """The server stops: the answer to the request that runs is the last one."""
        self._is_stopping = True
        commands: list[Command] = []
        if self.answer_state is AnswerState.IDLE:
            self._end(now, commands)
        return commands

    # -- answers -----------------------------------------------------------------------------------------------------

    @property
    def keeps_alive(self) -> bool:
        """Whether another answer may follow that to the current request. Asked when that begins."""
        request = self.current
        return request is not None and request.is_whole and request.head.keeps_alive and not self._is_stopping

    def begin_answer(self, *, is_last: bool) -> None:
        """The head of the answer to the current request is written. `is_last`: it closes the connection."""
        if is_last:
            self._accept_no_more()
        self._answer(AnswerEvent.BEGUN)

    def end_answer(self, now: float) -> list[Command]:
        """All of the answer is written."""
        self._answer(AnswerEvent.ANSWERED)
        self.current = None
        commands: list[Command] = []
        self._advance(now, commands)
        return commands

    def answer_whole(self, now: float, *, is_last: bool) -> list[Command]:
        """All of the answer to the current request is written, in one piece."""
        if is_last:
            self._accept_no_more()
        return self.end_answer(now)

    def break_off(self) -> list[Command]:
        """The application ends after a part of its answer: the client must not take that for whole."""
        self._accept_no_more()
        self._answer(AnswerEvent.BROKEN)
        self.current = None
        return [CloseConnection()]

    def _start_whole(self, head: RequestHead, body: bytes) -> list[Command]:
        """The steps of first byte, head, end and start, in one: most requests are a packet."""
        self._due = inf
        self.read_state = ReadState.IDLE if head.keeps_alive else ReadState.DEAF
        self._answer(AnswerEvent.STARTED)
        request = self.current = QueuedRequest(head, body)
        return [StartRequest(request)]

    # -- what is read ------------------------------------------------------------------------------------------------

    def _read_all(self, now: float, commands: list[Command]) -> None:
        reader = self._reader
        while True:
            if self.read_state is ReadState.IDLE and not reader.is_between:
                self._read(ReadEvent.BYTES)
                self._awaits, self._due = ConnectionCut.HEADER_TIME, now + self._limits.header_s
            found = reader.next()
            if found is None:
                return
            if isinstance(found, RequestHead):
                self._read_head(found, now, commands)
            elif found is RequestEnd.READ:
                self._read_end(now, commands)
            elif isinstance(found, bytes):
                self._read_body(found, now, commands)
            if self.read_state is ReadState.SOCKET:
                self._hold(reader.take_rest(), now, commands)
                return
            if self.read_state is ReadState.DEAF:
                self._still_sends = self._still_sends or not reader.is_between
                reader.take_rest()
                return

    def _read_head(self, head: RequestHead, now: float, commands: list[Command]) -> None:
        if head.is_handshake:
            self._read(ReadEvent.HANDSHAKE)
            self._handshake, self._due = head, inf
            return
        self._read(ReadEvent.HEAD)
        self._awaits, self._due = ConnectionCut.BODY_TIME, now + self._limits.body_s
        request = self._arriving = QueuedRequest(head)
        self._waiting.append(request)
        if self.answer_state is not AnswerState.IDLE:
            self._keep_ahead(request, head.size, now, commands)
        elif head.has_body:
            self._advance(now, commands)

    def _read_body(self, part: bytes, now: float, commands: list[Command]) -> None:
        if (request := self._arriving) is None:
            return
        request.add(part)
        if request is self.current:
            commands.append(WakeRequest(request))
        else:
            self._keep_ahead(request, len(part), now, commands)

    def _read_end(self, now: float, commands: list[Command]) -> None:
        if (request := self._arriving) is None:
            return
        self._read(ReadEvent.REQUEST if request.head.keeps_alive else ReadEvent.LAST)
        self._arriving, self._due = None, inf
        request.is_whole = True
        if request is self.current:
            commands.append(WakeRequest(request))
        elif self.answer_state is AnswerState.IDLE:
            self._advance(now, commands)

    def _keep_ahead(self, request: QueuedRequest, size: int, now: float, commands: list[Command]) -> None:
        """Counts `size` more bytes that are held of a request that waits."""
        request.ahead_bytes += size
        self._ahead_bytes += size
        if self._ahead_bytes > self._limits.ahead_bytes or len(self._waiting) > self._limits.ahead_requests:
            self._refuse_ahead(now, commands)

    def _hold(self, data: bytes, now: float, commands: list[Command]) -> None:
        """Bytes behind a handshake."""
        self._held += data
        if self.answer_state is AnswerState.IDLE:
            self._advance(now, commands)
        elif len(self._held) + self._ahead_bytes > self._limits.ahead_bytes:
            self._refuse_ahead(now, commands)

    def _refuse_ahead(self, now: float, commands: list[Command]) -> None:
        self._refuse(ConnectionCut.AHEAD, AnswerProblem(too_much_ahead(self._limits)), now, commands)

    def _refuse(self, why: ConnectionCut, answer: AnswerProblem, now: float, commands: list[Command]) -> None:
        """Nothing more is understood. The error is the answer to the request that it is in, when that has its turn."""
        self._counters.cuts[why] += 1
        self._read(ReadEvent.REFUSED)
        broken, self._arriving = self._arriving, None
        self._handshake, self._due, self._still_sends = None, inf, True
        self._held.clear()
        self._reader.take_rest()
        self._problem = answer if broken is None else AnswerProblem(answer.problem, broken.head.headers)
        if broken is not None and broken is self.current:
            # Started, but not called: a call is made of a whole body only.
            commands.append(CancelRequest())
            self.current = None
            self._answer_problem(self._problem, now, commands)
            return
        if broken is not None:
            self._waiting.pop()
        if self.answer_state is AnswerState.IDLE:
            self._advance(now, commands)

    # -- what follows ------------------------------------------------------------------------------------------------

    def _advance(self, now: float, commands: list[Command]) -> None:
        """Nothing is being answered: the next one has its turn."""
        if self._is_ending:
            self._end(now, commands)
        elif self._waiting:
            request = self.current = self._waiting.popleft()
            self._ahead_bytes -= request.ahead_bytes
            self._answer(AnswerEvent.STARTED)
            commands.append(StartRequest(request))
        elif self._problem is not None:
            self._answer_problem(self._problem, now, commands)
        elif self._handshake is not None:
            self._answer(AnswerEvent.OPENED)
            commands.append(OpenSocket(self._handshake, bytes(self._held)))
        elif self.read_state is ReadState.DEAF:
            self._end(now, commands)
        elif self.read_state is ReadState.IDLE:
            self._awaits, self._due = None, now + self._limits.keep_alive_s

    def _answer_problem(self, problem: AnswerProblem, now: float, commands: list[Command]) -> None:
        self._answer(AnswerEvent.REFUSED)
        self._due = now + LINGER_S
        commands += (problem, Linger())

    def _end(self, now: float, commands: list[Command]) -> None:
        """The last answer is written, or there is none."""
        self._read(ReadEvent.UNWANTED)
        if self._still_sends:
            self._answer(AnswerEvent.LAST)
            self._due = now + LINGER_S
            commands.append(Linger())
        else:
            self._answer(AnswerEvent.CLOSED)
            commands.append(CloseConnection())

    def _accept_no_more(self) -> None:
        """The answer that begins is the last one: what is behind its request is not run."""
        request = self.current
        self._still_sends = (
            self._still_sends
            or (request is not None and not request.is_whole)
            or bool(self._waiting)
            or self._problem is not None
            or self.read_state in {ReadState.HEAD, ReadState.SOCKET}
        )
        self._is_ending = True
        self._due = inf
        self._read(ReadEvent.UNWANTED)
        self._drop_waiting()

    def _drop_waiting(self) -> None:
        self._waiting.clear()
        self._arriving = self._handshake = self._problem = None
        self._held.clear()
        self._reader.take_rest()
        self._ahead_bytes = 0

    def _read(self, event: ReadEvent) -> None:
        self.read_state = READ_STEPS[self.read_state, event]

    def _answer(self, event: AnswerEvent) -> None:
        self.answer_state = ANSWER_STEPS[self.answer_state, event]
