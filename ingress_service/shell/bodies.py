"""Reading the bodies of requests, within bounds of one and of all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from ingress_service.core.content_coding import Coding, Inflater
from ingress_service.core.problems import refusal
from ingress_service.core.requests import RequestHeaders
from slotmesh.errors import Reason

Receive = Callable[[], Awaitable[dict[str, Any]]]
BUSY_RETRY_S: Final = 1.0


class ClientLeft(Exception):
    """The client closed the connection before its request was whole."""


class HeldBodies:
    """The bytes of all requests that are being read or called."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self.held = 0

    async def read(self, receive: Receive, headers: RequestHeaders) -> bytes:
        """The whole body, which is held until `release` of its length. Raises RequestRefusal, ClientLeft."""
        if headers.body_bytes > self._most_of_one:
            raise self._too_large()
        parts: list[bytes] = []
        size = 0
        try:
            while True:
                event = await receive()
                if event["type"] != "http.request":
                    raise ClientLeft
                if part := event["body"]:
                    size += len(part)
                    self.held += len(part)
                    parts.append(part)
                    self._check(size)
                if not event["more_body"]:
                    return parts[0] if len(parts) == 1 else b"".join(parts)
        except BaseException:
            self.held -= size
            raise

    async def inflated(self, body: bytes, coding: Coding) -> bytes:
        """What a body has that was compressed; held in place of it. Raises RequestRefusal."""
        inflater, parts, size = Inflater(coding, body), [], 0
        try:
            while not inflater.is_done:
                part = inflater.next()
                size += len(part)
                self.held += len(part)
                parts.append(part)
                self._check(size)
                await asyncio.sleep(0)
        except BaseException:
            self.held -= size
            raise
        self.held -= len(body)
        return b"".join(parts)

    def release(self, size: int) -> None:
        self.held -= size

    def _check(self, size: int) -> None:
        """Of a body that has so many bytes up to now, which are held."""
        if size > self._most_of_one:
            raise self._too_large()
        if self.held > self._most:
            text = "the ingress holds too many bytes of requests"
            raise refusal(503, text, Reason.QUOTA_EXCEEDED, retry_delay_s=BUSY_RETRY_S, connection="close")

    def _too_large(self) -> Exception:
        text = f"the body has more than {self._most_of_one:,} bytes (--max-body-size)"
        return refusal(413, text, Reason.PAYLOAD_TOO_LARGE, connection="close")
