"""What is sent for one request: a whole answer, or the parts of one; once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ingress_service.core.counters import NO_ROUTE
from ingress_service.core.problems import Problem
from ingress_service.core.request_ids import HEADER
from ingress_service.core.response_heads import PLAIN, ResponseHead
from ingress_service.shell.failed_requests import FailedRequests
from ingress_service.shell.request_spans import RequestTrace
from slotmesh.oip.json_answers import JSON_TYPE
from slotmesh.wire.http_heads import BODILESS

Send = Callable[[dict[str, Any]], Awaitable[None]]
Respond = Callable[[int, list[tuple[bytes, bytes]], bytes], bool]


class RequestAnswer:
    """Of one request."""

    __slots__ = (
        "_failures",
        "_respond",
        "_send",
        "facts",
        "failure",
        "has_left",
        "is_inference",
        "label",
        "lines",
        "request_id",
        "status",
        "trace",
    )

    def __init__(self, send: Send, failures: FailedRequests, request_id: str, respond: Respond | None = None) -> None:
        """`respond`: of the server, writes a whole answer at once, where it can."""
        self.request_id = request_id
        """In each answer."""
        self._send = send
        self._failures = failures
        self._respond = respond
        self.label = NO_ROUTE
        self.is_inference = False
        """Problems are told in the form of the Open Inference Protocol."""
        self.status = 0
        """0: nothing was sent."""
        self.lines: list[tuple[bytes, bytes]] = []
        """In each answer."""
        self.trace: RequestTrace | None = None
        """None where the request has none."""
        self.failure: Problem | None = None
        """How the request has failed, whether that was answered or not."""
        self.facts = b""
        """What the handler is told of the request."""
        self.has_left = False
        """The client did not wait for the end of the answer."""

    async def whole(self, status: int, lines: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.status = status
        if status not in BODILESS:
            lines.append((b"content-length", b"%d" % len(body)))
        lines.append((HEADER, self.request_id.encode()))
        if self.lines:
            lines += self.lines
        if self._respond is not None and self._respond(status, lines, body):
            return
        await self._send({"type": "http.response.start", "status": status, "headers": lines})
        await self._send({"type": "http.response.body", "body": body})

    def failed(self, problem: Problem) -> Problem:
        """The request fails so. Returns what is told of it, with where the log has it."""
        trace_id = self.trace.trace_id if self.trace is not None else ""
        self.failure = self._failures.noted(problem, self.label, trace_id, self.request_id)
        return self.failure

    async def problem(self, problem: Problem) -> None:
        """The request fails so, and is answered so."""
        await self.tell(self.failed(problem))

    async def tell(self, problem: Problem) -> None:
        """Sends it; nothing, where an answer has begun."""
        if self.status:
            return
        if self.is_inference:
            await self.whole(problem.status, problem.header_lines(JSON_TYPE.encode()), problem.error())
        else:
            await self.whole(problem.status, problem.header_lines(), problem.body())

    async def begin(self, content_type: bytes, head: ResponseHead = PLAIN) -> None:
        """`head`: what the handler has set."""
        self.status = head.status
        lines = [(b"content-type", content_type), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
        lines += [*head.beside_framing(), (HEADER, self.request_id.encode())]
        await self._send({"type": "http.response.start", "status": self.status, "headers": lines + self.lines})

    async def part(self, body: bytes, *, is_last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})
