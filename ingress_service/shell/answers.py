"""What is sent for one request: a whole answer, or the parts of one; once.

Streams of values: a call that fails before its first value is answered as any other failure; later the stream itself
reports it, and lines of JSON are cut off, so that no client takes them for whole. The handler continues only as the
client reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from ingress_service.core.counters import NO_ROUTE, Counters
from ingress_service.core.media import FRAMES, Framing, ValueFrames
from ingress_service.core.problems import PLAIN, Problem, ResponseHead, problem_of
from ingress_service.core.requests import HEADER
from ingress_service.shell.calls import head_of
from ingress_service.shell.request_log import FailedRequests
from ingress_service.shell.request_spans import RequestTrace
from slotmesh.calls.result_envelopes import BODILESS
from slotmesh.client.calls.values import ValueStream
from slotmesh.errors import SlotmeshError
from slotmesh.oip.http import JSON_TYPE

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
        """`respond`: of the server, writes a whole answer in one piece, where it can."""
        self.request_id = request_id
        """In each answer."""
        self._send = send
        self._failures = failures
        self._respond = respond
        self.label = NO_ROUTE
        self.is_inference = False
        """Problems are sent in the form of the Open Inference Protocol."""
        self.status = 0
        """0: nothing was sent."""
        self.lines: list[tuple[bytes, bytes]] = []
        """In each answer."""
        self.trace: RequestTrace | None = None
        """None if the request has none."""
        self.failure: Problem | None = None
        """How the request has failed, whether that was answered or not."""
        self.facts = b""
        """The facts of the request that the handler gets."""
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
        """Records that the request fails. Returns the problem to send, with the id under which the log has it."""
        trace_id = self.trace.trace_id if self.trace is not None else ""
        self.failure = self._failures.noted(problem, self.label, trace_id, self.request_id)
        return self.failure

    async def problem(self, problem: Problem) -> None:
        """Records the failure of the request, and answers with it."""
        await self.send_problem(self.failed(problem))

    async def send_problem(self, problem: Problem) -> None:
        """Sends it, unless an answer has begun."""
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


KEEP_ALIVE_S: Final = 15.0
MAX_PART_BYTES: Final = 64 * 1024
"""Values that are there already travel together, up to this number of bytes."""


class CutShort(Exception):
    """The stream of values failed after some of them: the connection ends without the end of the answer."""


async def send_values(values: ValueStream[bytes], framing: Framing, answer: RequestAnswer, counters: Counters) -> None:
    """Raises SlotmeshError where the call failed before its first value."""
    frames = FRAMES[framing]
    async with values:
        pending: asyncio.Future[bytes] | None = None
        try:
            while True:
                pending = asyncio.ensure_future(anext(values))
                await _wait(pending, frames, answer)
                try:
                    first = pending.result()
                except StopAsyncIteration:
                    break
                if not answer.status:
                    first, head = head_of(first)
                    await answer.begin(frames.content_type, head)
                counters.values[answer.label] += 1
                parts = [frames.value(first)]
                size = len(first)
                while values.has_next and size < MAX_PART_BYTES:
                    value = await anext(values)
                    counters.values[answer.label] += 1
                    parts.append(frames.value(value))
                    size += len(value)
                await answer.part(b"".join(parts))
        except SlotmeshError as error:
            if not answer.status:
                raise
            await answer.part(frames.failure(answer.failed(problem_of(error))), is_last=framing is Framing.EVENTS)
            if framing is not Framing.EVENTS:
                raise CutShort from error
            return
        finally:
            if pending is not None and not pending.done():
                pending.cancel()
    if not answer.status:
        await answer.begin(frames.content_type)
    await answer.part(frames.end, is_last=True)


async def _wait(pending: asyncio.Future[bytes], frames: ValueFrames, answer: RequestAnswer) -> None:
    """Until the next value is there, or the end; comments are sent meanwhile, where the framing has some."""
    while not pending.done():
        done, _ = await asyncio.wait([pending], timeout=KEEP_ALIVE_S if frames.keep_alive else None)
        if not done:
            if not answer.status:
                await answer.begin(frames.content_type)
            await answer.part(frames.keep_alive)
