"""Reading the bodies of requests, within bounds of one and of all.

Invariants: what is held of a body is counted as it comes, under its requester, and given back when the request ends,
however that is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from ingress_service.core.media import Coding, Inflater, coding_of_request
from ingress_service.core.peers import BUSY_RETRY_S, Requester
from ingress_service.core.problems import refusal
from ingress_service.core.requests import RequestHeaders
from slotmesh.calls.fair_shares import FairBound, Over
from slotmesh.errors import Reason

Receive = Callable[[], Awaitable[dict[str, Any]]]
FLOOR_BYTES: Final = 1024 * 1024
"""A requester with no more than that finds the reserve."""


class ClientLeft(Exception):
    """The client closed the connection before its request was whole."""


class HeldBody:
    """The body of one request, as far as it is here."""

    __slots__ = ("_bodies", "_size", "who")

    def __init__(self, bodies: HeldBodies, who: Requester) -> None:
        self._bodies = bodies
        self._size = 0
        self.who = who

    async def read(self, receive: Receive, headers: RequestHeaders) -> bytes:
        """The whole body, without its Content-Encoding. Raises RequestRefusal, ClientLeft."""
        coding = coding_of_request(headers.content_encoding) if headers.content_encoding else None
        if headers.body_bytes > self._bodies.most_of_one:
            raise self._too_large()
        parts: list[bytes] = []
        while True:
            event = await receive()
            if event["type"] != "http.request":
                raise ClientLeft
            if part := event["body"]:
                self._take(len(part), self._size)
                parts.append(part)
            if not event["more_body"]:
                body = parts[0] if len(parts) == 1 else b"".join(parts)
                return await self._inflated(body, coding) if coding is not None else body

    async def _inflated(self, body: bytes, coding: Coding) -> bytes:
        """What a body has that was compressed; held in place of it. Raises RequestRefusal."""
        inflater, parts, size = Inflater(coding, body), [], 0
        while not inflater.is_done:
            part = inflater.next()
            self._take(len(part), size)
            size += len(part)
            parts.append(part)
            await asyncio.sleep(0)
        self._bodies.bound.give(self.who, len(body))
        self._size -= len(body)
        return b"".join(parts)

    def hold(self, nbytes: int) -> None:
        """It came as a whole. Raises RequestRefusal."""
        self._take(nbytes, self._size)

    def hold_beside(self, nbytes: int) -> None:
        """What is made of it, while both are held. Raises RequestRefusal."""
        self._count(nbytes)

    def become(self, nbytes: int) -> None:
        """What was made of it is held in its place. Raises RequestRefusal."""
        if nbytes > self._size:
            self._count(nbytes - self._size)
        else:
            self._bodies.bound.give(self.who, self._size - nbytes)
            self._size = nbytes

    def close(self) -> None:
        """It is held no longer."""
        self._bodies.bound.give(self.who, self._size)
        self._size = 0

    def _take(self, more: int, size: int) -> None:
        """Counts `more` bytes of a body that has `size` bytes up to now. Raises RequestRefusal."""
        if size + more > self._bodies.most_of_one:
            raise self._too_large()
        self._count(more)

    def _count(self, more: int) -> None:
        bound = self._bodies.bound
        if (over := bound.over(self.who, more, self._size)) is not None:
            whose = " of this caller or address" if over is Over.SHARE else ""
            text = f"the ingress holds too many bytes of requests{whose} (--max-held-size)"
            raise refusal(503, text, Reason.QUOTA_EXCEEDED, retry_delay_s=BUSY_RETRY_S, connection="close")
        bound.take(self.who, more)
        self._size += more

    def _too_large(self) -> Exception:
        text = f"the body has more than {self._bodies.most_of_one:,} bytes (--max-body-size)"
        return refusal(413, text, Reason.PAYLOAD_TOO_LARGE, connection="close")


class HeldBodies:
    """The bytes of all requests that are being read or called."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self.most_of_one = most_of_one
        self.bound: FairBound[Requester] = FairBound.within(most, min(FLOOR_BYTES, most))

    @property
    def held(self) -> int:
        return self.bound.total

    @contextmanager
    def of(self, who: Requester) -> Iterator[HeldBody]:
        """A request's body, which is held for as long as the block lasts. `who` has made it."""
        body = HeldBody(self, who)
        try:
            yield body
        finally:
            body.close()
