"""Bounds of the ingress, each at its edge: exactly as much as the bound passes, one more does not.

The bounds are written here as numbers: a constant that moves fails its line.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from ingress_service.core.counters import ConnectionCut, Counters
from ingress_service.core.http1.heads import ConnectionLimits, MalformedRequest
from ingress_service.core.http1.machine import ConnectionMachine
from ingress_service.core.http1.request_reader import HttpReader, RequestEnd
from ingress_service.core.peers import ConnectionBound, PeerAddresses, RequestBound, networks_of
from ingress_service.core.problems import RequestRefusal
from ingress_service.core.requests import RequestHeaders
from ingress_service.shell.bodies import HeldBodies

HEAD: Final = b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
MOST: Final = 300
"""Of headers, in these tests."""


def pieces(data: bytes) -> Iterator[list[bytes]]:
    """The whole, its halves, and its bytes."""
    yield [data]
    yield [data[: len(data) // 2], data[len(data) // 2 :]]
    yield [bytes([it]) for it in data]


def is_read(data: bytes) -> bool:
    """Whether the request is understood, however its bytes arrive; each way has to come to the same."""
    verdicts = [_is_read(parts) for parts in pieces(data)]
    assert len({*verdicts}) == 1, verdicts
    return verdicts[0]


def _is_read(parts: list[bytes]) -> bool:
    reader = HttpReader(MOST)
    try:
        for part in parts:
            reader.feed(part)
            while (found := reader.next()) is not None:
                if found is RequestEnd.READ:
                    return True
    except MalformedRequest:
        return False
    raise AssertionError("the request has no end")


def _head(size: int) -> bool:
    """Without the empty line behind it."""
    start = b"GET /a HTTP/1.1\r\nHost: h\r\nX: "
    return is_read(start + b"v" * (size - len(start)) + b"\r\n\r\n")


def _one_trailer(size: int) -> bool:
    """With its line end, which counts."""
    return is_read(HEAD + b"1\r\nx\r\n0\r\nA: " + b"v" * (size - 5) + b"\r\n\r\n")


def _several_trailers(size: int) -> bool:
    third = b"A: " + b"v" * 95 + b"\r\n"
    return is_read(HEAD + b"1\r\nx\r\n0\r\n" + 2 * third + b"A: " + b"v" * (size - 205) + b"\r\n\r\n")


def _line_of_a_chunk(size: int) -> bool:
    """With its extensions and its line end."""
    return is_read(HEAD + b"1;" + b"e" * (size - 4) + b"\r\nx\r\n0\r\n\r\n")


def _connections_of_one_address(count: int) -> bool:
    bound = ConnectionBound(100, PeerAddresses())
    for other in range(1, 4):
        assert bound.take(f"192.0.2.{other}")
    return [bound.take("198.51.100.1") for _ in range(count)] == [True] * count


def _connections_in_all(count: int) -> bool:
    """Of many addresses, none of which has more than a few."""
    bound = ConnectionBound(100, PeerAddresses())
    return [bound.take(f"192.0.2.{number}") for number in range(count)] == [True] * count


_LIMITS: Final = ConnectionLimits(
    header_bytes=500, header_s=1.0, body_s=1.0, send_s=1.0, keep_alive_s=1.0, ahead_requests=3, ahead_bytes=1_000
)


def _ahead(*requests: bytes) -> bool:
    """Whether what comes behind a request that is being answered may wait, however its bytes arrive."""
    verdicts = []
    for parts in pieces(b"".join(requests)):
        counters = Counters()
        machine = ConnectionMachine(_LIMITS, counters, 0.0)
        machine.receive(_get(50), 0.0)
        for part in parts:
            machine.receive(part, 0.0)
        verdicts.append(not counters.cuts[ConnectionCut.AHEAD])
    assert len({*verdicts}) == 1, verdicts
    return verdicts[0]


def _get(size: int, *, more: bytes = b"") -> bytes:
    """A head of so many bytes, as they are counted: without the empty line behind it."""
    start = b"GET /a HTTP/1.1\r\nHost: h\r\n" + more + b"X: "
    return start + b"v" * (size - len(start) - 2) + b"\r\n\r\n"


def _heads_ahead(size: int) -> bool:
    """Three requests, of which the last one is as large as it takes."""
    return _ahead(_get(300), _get(300), _get(size - 600))


def _bodies_ahead(size: int) -> bool:
    """The second of three has a body that makes the difference."""
    body = b"b" * (size - 500)
    return _ahead(_get(200), _get(200, more=b"Content-Length: %d\r\n" % len(body)) + body, _get(100))


def _chunks_ahead(size: int) -> bool:
    body = b"b" * (size - 500)
    chunked = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (100, body[:100], len(body) - 100, body[100:])
    return _ahead(_get(200), _get(200, more=b"Transfer-Encoding: chunked\r\n") + chunked, _get(100))


def _requests_ahead(count: int) -> bool:
    return _ahead(*[_get(50)] * count)


def _bytes_behind_a_handshake(size: int) -> bool:
    """Together with the requests that wait before it."""
    more = b"Upgrade: websocket\r\nConnection: upgrade\r\n"
    return _ahead(_get(400), _get(100, more=more), b"w" * (size - 400))


def _requests_in_all(count: int) -> bool:
    bound, held = RequestBound(100), []
    try:
        for number in range(count):
            held.append(bound.taken(number))
            held[-1].__enter__()
    except RequestRefusal:
        return False
    return True


def _hops(count: int) -> bool:
    """Whether the client before so many proxies is found."""
    peers = PeerAddresses(networks_of("10.0.0.0/8"))
    said = b", ".join([b"198.51.100.7", *[b"10.0.0.2"] * (count - 1)])
    return peers.of("10.0.0.1", said) == "198.51.100.7"


BOUNDS: dict[str, tuple[Callable[[int], bool], int]] = {
    "bytes of a head": (_head, MOST),
    "bytes of one trailer": (_one_trailer, MOST),
    "bytes of several trailers": (_several_trailers, MOST),
    "bytes of a chunk's line": (_line_of_a_chunk, 256),
    "connections of one address": (_connections_of_one_address, 75),
    "connections in all": (_connections_in_all, 100),
    "bytes of heads ahead of answers": (_heads_ahead, 1_000),
    "bytes of bodies ahead of answers": (_bodies_ahead, 1_000),
    "bytes of chunks ahead of answers": (_chunks_ahead, 1_000),
    "requests ahead of answers": (_requests_ahead, 3),
    "bytes behind a handshake": (_bytes_behind_a_handshake, 1_000),
    "requests in all": (_requests_in_all, 100),
    "addresses that proxies have said": (_hops, 32),
}


@pytest.mark.parametrize(("admits", "most"), BOUNDS.values(), ids=BOUNDS)
def test_exactly_the_bound_passes_and_one_more_does_not(admits: Callable[[int], bool], most: int) -> None:
    assert admits(most - 1)
    assert admits(most)
    assert not admits(most + 1)


# -- bodies ----------------------------------------------------------------------------------------------------------


def in_events(*parts: bytes) -> Callable[[], Any]:
    """A body that arrives in these parts."""
    events = [{"type": "http.request", "body": part, "more_body": at < len(parts) - 1} for at, part in enumerate(parts)]

    async def receive() -> dict[str, Any]:
        return events.pop(0)

    return receive


FORMS: dict[str, Callable[[bytes], tuple[tuple[bytes, ...], RequestHeaders]]] = {
    "its length is said": lambda body: ((body,), RequestHeaders([(b"content-length", b"%d" % len(body))])),
    "in chunks": lambda body: ((body[:40], body[40:70], body[70:]), RequestHeaders([])),
    "a byte at a time": lambda body: (tuple(bytes([it]) for it in body), RequestHeaders([])),
    "compressed": lambda body: ((gzip.compress(body),), RequestHeaders([(b"content-encoding", b"gzip")])),
}


@pytest.mark.parametrize("size", [99, 100, 101, 150])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_body_of_exactly_the_limit_passes_in_each_form_and_all_is_given_back(form: Any, size: int) -> None:
    async def read() -> bytes:
        with bodies.of("who") as held:
            parts, head = form(b"x" * size)
            body = await held.read(in_events(*parts), head)
            assert bodies.held == len(body)
            return bytes(body)

    bodies = HeldBodies(10_000, 100)
    if size <= 100:
        assert asyncio.run(read()) == b"x" * size
    else:
        with pytest.raises(RequestRefusal) as refused:
            asyncio.run(read())
        assert refused.value.problem.status == 413
    assert bodies.held == 0
    assert not bodies.bound.held
