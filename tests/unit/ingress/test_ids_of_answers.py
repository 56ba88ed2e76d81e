"""Each answer of the ingress has X-Request-ID, and each problem its line in the log, whatever part of it answers."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tests.fuzz.http_requests import CHUNKED, GET, POST, chunked, request
from tests.support.http_bytes import LIMITS, RecordedConnection

pytestmark = pytest.mark.asyncio

GIVEN = "given-by-the-client"
NAMED = f"X-Request-ID: {GIVEN}"


def post(*headers: str, body: bytes) -> bytes:
    return request("POST /a HTTP/1.1", NAMED, *headers, body=body)


CHUNKS = "Transfer-Encoding: chunked"
BEHIND_A_HEAD = {
    "chunk without size": post(CHUNKS, body=b"xyz\r\n"),
    "chunk longer than its size": post(CHUNKS, body=b"1\r\nab\r\n"),
    "chunk line too long": post(CHUNKS, body=b"1;" + b"x" * 300),
    "trailer is no header": post(CHUNKS, body=chunked(b"a", trailers="no colon\r\n")),
    "trailers too large": post(CHUNKS, body=chunked(b"a", trailers=f"x: {'y' * 8_000}\r\n" * 2)),
    "unsupported coding": post("Transfer-Encoding: gzip, chunked", body=b""),
    "coding beside length": post(CHUNKS, "Content-Length: 1", body=b""),
    "length twice": post("Content-Length: 1", "Content-Length: 1", body=b""),
    "host twice": post("Host: y", body=b""),
    "CONNECT": request("CONNECT x:1 HTTP/1.1", NAMED),
    "fragment": request("GET /a#b HTTP/1.1", NAMED),
}
UNREADABLE = {
    "no request": b"\x16\x03\x01",
    "request line": b"GET / HTTP/1.1 x\r\n\r\n",
    "version": request("GET / HTTP/2.0", NAMED),
    "line ends": b"GET / HTTP/1.1\nHost: x\n\n",
    "too large": request("GET / HTTP/1.1", f"X-A: {'y' * 9_000}"),
    "control character": request("GET / HTTP/1.1", NAMED, "X-A: \x00"),
    "two empty lines": b"\r\n\r\n" + GET,
}


def last_answer(connection: RecordedConnection) -> tuple[dict[str, str], Any]:
    """Headers, and the document."""
    head, _, body = bytes(connection.transport.written).rpartition(b"\r\n\r\n")
    lines = head.rpartition(b"HTTP/1.1 ")[2].decode().split("\r\n")[1:]
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert int(headers["content-length"]) == len(body)
    return headers, json.loads(body)


def check_ids(connection: RecordedConnection, caplog: pytest.LogCaptureFixture, request_id: str = "") -> None:
    headers, document = last_answer(connection)
    assert headers["x-request-id"] == document["request_id"]
    assert document["request_id"] == request_id or (not request_id and document["request_id"])
    told = [str(record.msg) for record in caplog.records]
    assert any(document["log_ref"] in each and document["request_id"] in each for each in told), told


@pytest.mark.parametrize("in_front", [b"", POST, CHUNKED], ids=["alone", "behind a call", "behind chunks"])
@pytest.mark.parametrize("data", BEHIND_A_HEAD.values(), ids=BEHIND_A_HEAD.keys())
@pytest.mark.parametrize("is_split", [False, True], ids=["at once", "byte by byte"])
async def test_what_is_refused_behind_a_readable_head_has_the_id_of_its_request(
    data: bytes, in_front: bytes, is_split: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    connection = RecordedConnection()
    whole = in_front + data
    await connection.feed(*([whole[at : at + 1] for at in range(len(whole))] if is_split else [whole]))
    check_ids(connection, caplog, GIVEN)
    await connection.end()


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_what_cannot_be_read_has_a_new_id(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    connection = RecordedConnection()
    await connection.feed(data)
    check_ids(connection, caplog)
    await connection.end()


async def test_what_is_late_or_comes_to_a_full_server_has_ids(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    connection = RecordedConnection()
    await connection.feed(post("Content-Length: 5", body=b"ab"))
    connection.protocol.overdue(connection.protocol.loop.time() + LIMITS.body_s + 1)
    check_ids(connection, caplog, GIVEN)
    await connection.end()
    connection = RecordedConnection()
    connection.protocol._run(connection.protocol._machine.refuse_connection())
    check_ids(connection, caplog)
    await connection.end()


async def test_a_defect_of_the_application_is_a_problem_with_ids(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    connection = RecordedConnection()

    async def broken(*_: Any) -> None:
        raise ZeroDivisionError

    connection.shared.app = broken
    await connection.feed(request("GET /a HTTP/1.1", NAMED))
    check_ids(connection, caplog, GIVEN)
    headers, document = last_answer(connection)
    assert (headers["content-type"], document["status"]) == ("application/problem+json", 500)
    await connection.end()


async def test_one_empty_line_before_a_request_is_ignored() -> None:
    for parts in (
        [b"\r\n" + GET],
        [POST + b"\r\n" + GET],
        [POST, b"\r\n", GET],
        [POST, b"\r", b"\n", GET],
        [POST, b"\r", b"\n" + GET],
        [CHUNKED, b"\r\n" + GET],
        [POST + b"\r\n", GET],
    ):
        connection = RecordedConnection()
        await connection.feed(*parts)
        assert [status for status, _ in connection.answers] == [200] * (1 + (parts[0][:1] != b"\r")), parts
        now = connection.protocol.loop.time()
        connection.protocol.overdue(now + LIMITS.header_s - 1)
        assert not connection.transport.is_closing()
        await connection.end()


async def test_an_empty_line_alone_does_not_begin_a_request() -> None:
    connection = RecordedConnection()
    await connection.feed(POST, b"\r\n")
    written = len(connection.transport.written)
    connection.protocol.overdue(connection.protocol.loop.time() + LIMITS.keep_alive_s + 1)
    assert len(connection.transport.written) == written, "an idle connection ends without an answer"
    await connection.end()
