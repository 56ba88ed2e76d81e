"""A large answer is written in pieces, between which the event loop does other work."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fuzz.http_requests import request
from tests.support.http_bytes import ListTransport, RecordedConnection

pytestmark = pytest.mark.asyncio

BODY = bytes(range(256)) * (5 * 128 * 1024 // 256) + b"end"


def without_chunks(sent: bytes) -> bytes:
    body = b""
    while True:
        size, _, rest = sent.partition(b"\r\n")
        if not (count := int(size, 16)):
            assert rest == b"\r\n"
            return body
        body, sent = body + rest[:count], rest[count + 2 :]


@pytest.mark.parametrize("has_length", [True, False], ids=["length", "chunks"])
async def test_a_large_body_leaves_in_pieces(has_length: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, turns = list[int](), list[int]()
    write = ListTransport.write

    def counted(transport: ListTransport, data: Any) -> None:
        sizes.append(len(data))
        turns.append(turn)
        write(transport, data)

    monkeypatch.setattr(ListTransport, "write", counted)
    turn = 0

    async def tick() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    connection = RecordedConnection()

    async def large(scope: Any, _receive: Any, send: Any) -> None:
        lines = [(b"content-length", b"%d" % len(BODY))] if has_length else []
        assert not scope["respond"](200, [*lines], BODY), "it is too large for one write"
        await send({"type": "http.response.start", "status": 200, "headers": lines})
        await send({"type": "http.response.body", "body": BODY})

    connection.shared.app = large
    ticking = asyncio.create_task(tick())
    await connection.feed(request("GET /a HTTP/1.1"))
    await connection.settle()
    ticking.cancel()
    head, _, sent = bytes(connection.transport.written).partition(b"\r\n\r\n")
    assert (b"content-length" in head) == has_length
    assert (sent if has_length else without_chunks(sent)) == BODY
    assert max(sizes) <= 128 * 1024 + 64
    assert len(set(turns)) >= len(BODY) // (128 * 1024), "others have their turns between two pieces"
    await connection.end()


async def test_a_client_that_leaves_amid_a_large_answer_ends_it() -> None:
    connection = RecordedConnection()
    ended = asyncio.Event()

    async def large(_scope: Any, _receive: Any, send: Any) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            connection.protocol.client_left()
            await send({"type": "http.response.body", "body": BODY})
        finally:
            ended.set()

    connection.shared.app = large
    await connection.feed(request("GET /a HTTP/1.1"))
    await asyncio.wait_for(ended.wait(), 5)
    assert len(connection.transport.written) < 2 * 128 * 1024
    await connection.end()
