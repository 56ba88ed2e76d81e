"""What clients send to an HTTP server: valid, invalid, in a row, upgraded; and how many requests of it are run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple


class HttpBytes(NamedTuple):
    """All that one client sends on a connection."""

    name: str
    data: bytes
    runs: int
    """Requests that run."""
    status: int = 200
    """Of the last answer: of the error, where there is one. 101: a WebSocket; 0: no answer."""


def request(line: str, *headers: str, body: bytes = b"", host: str = "x") -> bytes:
    """A request. `host`: of its header; empty: without one."""
    lines = [line, *([f"Host: {host}"] if host else []), *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def chunked(*chunks: bytes, trailers: str = "") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(it), it) for it in chunks) + b"0\r\n" + trailers.encode() + b"\r\n"


GET: Final = request("GET /kinds/add?a=1 HTTP/1.1")
POST: Final = request("POST /kinds/add HTTP/1.1", "Content-Length: 3", body=b"[1]")
CHUNKED: Final = request("POST /kinds/add HTTP/1.1", "Transfer-Encoding: chunked", body=chunked(b"[", b"1]"))
CLOSING: Final = request("POST /kinds/add HTTP/1.1", "Connection: close", "Content-Length: 3", body=b"[1]")
KEY: Final = ("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13")
HANDSHAKE: Final = request("GET /kinds/add HTTP/1.1", "Connection: Upgrade", "Upgrade: websocket", *KEY)
FRAME: Final = b"\x81\x83\x01\x02\x03\x04\x5a\x33\x5e"
"""The text message `[1]`, masked."""
SMUGGLED: Final = request("POST /smuggled HTTP/1.1", "Content-Length: 0")


def _valid() -> Iterator[HttpBytes]:
    for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY", "get", "M-SEARCH"):
        yield HttpBytes(f"{method} without a body", request(f"{method} /a/b HTTP/1.1"), 1)
        if method != "HEAD":
            data = request(f"{method} /a/b HTTP/1.1", "Content-Length: 4", body=b"body")
            yield HttpBytes(f"{method} with a body", data, 1)
            data = request(f"{method} /a/b HTTP/1.1", "Transfer-Encoding: chunked", body=chunked(b"bo", b"dy"))
            yield HttpBytes(f"{method} with chunks", data, 1)
    for target in ("/", "/a%2Fb?q=%20", "/?a=1&b=2", "//double//slash", "/a;b=c", "/a?b?c", "/%ff"):
        yield HttpBytes(f"target {target}", request(f"GET {target} HTTP/1.1"), 1)
    for target in ("http://x/a?b=1", "HTTP://X/a", "http://x", "https://x?a=1"):
        yield HttpBytes(f"absolute target {target}", request(f"GET {target} HTTP/1.1"), 1)
    yield HttpBytes("options of all", request("OPTIONS * HTTP/1.1"), 1)
    for value in ("", "a b", "a\tb", "\x80\xff", "  padded \t", "a: b", 'a,b;c="d"'):
        yield HttpBytes(f"value {value!r}", request("GET / HTTP/1.1", f"X-A:{value}"), 1)
    yield HttpBytes("header twice", request("GET / HTTP/1.1", "X-A: 1", "X-A: 2"), 1)
    for host in ("localhost:8080", "[::1]:80", "a.example", ""):
        data = request("GET / HTTP/1.1", *([] if host else ["Host:"]), host=host)
        yield HttpBytes(f"host {host}", data, 1)
    yield HttpBytes("HTTP/1.0", request("GET / HTTP/1.0", host=""), 1)
    yield HttpBytes("HTTP/1.0 with host and body", request("POST / HTTP/1.0", "Content-Length: 2", body=b"{}"), 1)
    yield HttpBytes("HTTP/1.0 keep-alive", request("GET / HTTP/1.0", "Connection: keep-alive"), 1)
    for connection in ("keep-alive", "close", "Close, x", "x, CLOSE"):
        yield HttpBytes(f"connection {connection}", request("GET / HTTP/1.1", f"Connection: {connection}"), 1)
    for length in ("0", "00", "003"):
        body = b"abc" if "3" in length else b""
        yield HttpBytes(f"length {length}", request("POST / HTTP/1.1", f"Content-Length: {length}", body=body), 1)
    data = request("POST / HTTP/1.1", "Expect: 100-continue", "Content-Length: 3", body=b"abc")
    yield HttpBytes("expects 100", data, 1)
    yield HttpBytes("expects something else", data.replace(b"100-continue", b"miracles"), 1)
    te = "Transfer-Encoding: chunked"
    for name, body in {
        "no chunk": chunked(),
        "extensions": b'3;a=b;c="d e"\r\nabc\r\n0;x\r\n\r\n',
        "hex": b"A\r\n0123456789\r\n0a\r\n0123456789\r\n000\r\n\r\n",
        "lines in the data": chunked(b"\r\n0\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"),
        "many chunks": chunked(*[b"x"] * 20),
        "trailers": chunked(b"abc", trailers="X-Slotmesh-Ordering-Key: k\r\nAuthorization: Bearer t\r\n"),
    }.items():
        yield HttpBytes(f"chunks: {name}", request("POST /c HTTP/1.1", te, body=body), 1)
    yield HttpBytes("chunks: in capitals", request("POST /c HTTP/1.1", "TRANSFER-ENCODING: CHUNKED", body=chunked()), 1)


def _upgraded() -> Iterator[HttpBytes]:
    for upgrade in ("h2c", "h2c, websocket", "TLS/1.0", "websocket"):
        for body in (b"", b"[1]", SMUGGLED):
            for connection in ("Upgrade", "Upgrade, HTTP2-Settings"):
                more = (f"Upgrade: {upgrade}", f"Connection: {connection}", "HTTP2-Settings: AAMAAABk")
                data = request("POST / HTTP/1.1", *more, f"Content-Length: {len(body)}", body=body)
                yield HttpBytes(f"POST upgrades to {upgrade} with {len(body)} bytes, {connection}", data + GET, 2)
        data = request("POST / HTTP/1.1", f"Upgrade: {upgrade}", "Connection: upgrade", "Transfer-Encoding: chunked")
        yield HttpBytes(f"chunks upgrade to {upgrade}", data + chunked(SMUGGLED) + GET, 2)
        if upgrade != "websocket":
            data = request("GET / HTTP/1.1", f"Upgrade: {upgrade}", "Connection: Upgrade")
            yield HttpBytes(f"GET upgrades to {upgrade}", data + POST, 2)
    yield HttpBytes("PRI of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0, 505)
    yield HttpBytes("a WebSocket", HANDSHAKE, 1, 101)
    yield HttpBytes("a WebSocket with a message", HANDSHAKE + FRAME, 1, 101)
    yield HttpBytes("a WebSocket behind requests", GET + POST + HANDSHAKE + FRAME, 3, 101)
    yield HttpBytes("requests behind a handshake are none", HANDSHAKE + GET + POST, 1, 101)
    yield HttpBytes("a handshake without a key", HANDSHAKE.replace(KEY[0].encode(), b"X: y") + GET, 0, 400)
    yield HttpBytes("a handshake of another version", HANDSHAKE.replace(b"Version: 13", b"Version: 7") + GET, 0, 400)
    yield HttpBytes("a handshake without Connection", HANDSHAKE.replace(b"Connection: Upgrade", b"X: y") + GET, 2)
    yield HttpBytes("a handshake of HTTP/1.0", HANDSHAKE.replace(b"HTTP/1.1", b"HTTP/1.0") + GET, 1)
    with_body = HANDSHAKE[:-2] + b"Content-Length: 3\r\n\r\n[1]"
    yield HttpBytes("a handshake with a body", with_body + GET, 2)
    for method in ("POST", "PUT", "OPTIONS"):
        data = HANDSHAKE.replace(b"GET", method.encode(), 1)
        yield HttpBytes(f"a handshake by {method}", data + GET, 2)


def _in_a_row() -> Iterator[HttpBytes]:
    kinds = {"get": GET, "post": POST, "chunks": CHUNKED}
    for first, one in kinds.items():
        for second, two in kinds.items():
            yield HttpBytes(f"{first}, {second}", one + two, 2)
            yield HttpBytes(f"{first}, {second}, garbage", one + two + b"\x00garbage\r\n\r\n", 2, 400)
            yield HttpBytes(f"{first}, {second}, closing, get", one + two + CLOSING + GET, 3)
    yield HttpBytes("ten", GET * 10, 10)
    yield HttpBytes("unfinished behind", POST + GET[:-2], 1)
    yield HttpBytes("unfinished body behind", GET + POST[:-1], 1)
    yield HttpBytes("closing, garbage", CLOSING + b"\x00\x01", 1)
    yield HttpBytes("HTTP/1.0, get", request("GET / HTTP/1.0") + GET, 1)
    yield HttpBytes("an empty line between", POST + b"\r\n" + GET, 2)
    yield HttpBytes("an empty line in front", b"\r\n" + POST, 1)
    yield HttpBytes("an empty line behind chunks", CHUNKED + b"\r\n" + GET, 2)
    yield HttpBytes("two empty lines between", POST + b"\r\n\r\n" + GET, 1, 400)
    yield HttpBytes("CR alone between", POST + b"\r" + GET, 1, 400)
    expects = request("POST / HTTP/1.1", "Expect: 100-continue", "Content-Length: 3", body=b"abc")
    yield HttpBytes("expects 100 behind", GET + expects + GET, 3)


def _malformed_heads() -> Iterator[HttpBytes]:
    heads = {
        "empty": b"\r\n\r\n",
        "a space first": b" GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        "no version": b"GET /\r\n\r\n",
        "two spaces": b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
        "tabs": b"GET\t/\tHTTP/1.1\r\nHost: x\r\n\r\n",
        "a space in the target": b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
        "a fragment": b"GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n",
        "no path": b"GET a HTTP/1.1\r\nHost: x\r\n\r\n",
        "star": b"GET * HTTP/1.1\r\nHost: x\r\n\r\n",
        "another scheme": b"GET ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
        "another host": b"GET http://y/ HTTP/1.1\r\nHost: x\r\n\r\n",
        "a user in the target": b"GET http://u@x/ HTTP/1.1\r\nHost: x\r\n\r\n",
        "not of ASCII": b"GET /\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n",
        "lower case version": b"GET / http/1.1\r\nHost: x\r\n\r\n",
        "short version": b"GET / HTTP/1\r\nHost: x\r\n\r\n",
        "space behind the version": b"GET / HTTP/1.1 \r\nHost: x\r\n\r\n",
        "a bad method": b"G(T / HTTP/1.1\r\nHost: x\r\n\r\n",
        "LF alone": b"GET / HTTP/1.1\nHost: x\n\n",
        "LF in the end": b"GET / HTTP/1.1\r\nHost: x\r\n\n",
        "LF in a line": b"GET / HTTP/1.1\r\nHost: x\nX-A: b\r\n\r\n",
        "CR alone": b"GET / HTTP/1.1\r\nHost: x\rX-A: b\r\n\r\n",
        "CR CR LF": b"GET / HTTP/1.1\r\r\nHost: x\r\n\r\n",
        "folded": b"GET / HTTP/1.1\r\nHost: x\r\nX-A: b\r\n c\r\n\r\n",
        "folded first": b"GET / HTTP/1.1\r\n Host: x\r\n\r\n",
        "no colon": b"GET / HTTP/1.1\r\nHost: x\r\nnothing\r\n\r\n",
        "no name": b"GET / HTTP/1.1\r\nHost: x\r\n: b\r\n\r\n",
        "space before the colon": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length : 3\r\n\r\nabc",
        "space in a name": b"GET / HTTP/1.1\r\nHost: x\r\nX A: b\r\n\r\n",
        "NUL in a value": b"GET / HTTP/1.1\r\nHost: x\r\nX-A: b\x00c\r\n\r\n",
        "DEL in a value": b"GET / HTTP/1.1\r\nHost: x\r\nX-A: b\x7fc\r\n\r\n",
        "no host": b"GET / HTTP/1.1\r\nX-A: b\r\n\r\n",
        "two hosts": b"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
        "two hosts of HTTP/1.0": b"GET / HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n",
        "a path in the host": b"GET / HTTP/1.1\r\nHost: x/y\r\n\r\n",
        "a space in the host": b"GET / HTTP/1.1\r\nHost: x y\r\n\r\n",
    }
    for name, data in heads.items():
        yield HttpBytes(f"head: {name}", data + GET, 0, 400)


def _malformed_framing() -> Iterator[HttpBytes]:
    for version in ("HTTP/0.9", "HTTP/1.2", "HTTP/2.0", "HTTP/3.0"):
        yield HttpBytes(version, request(f"GET / {version}") + GET, 0, 505)
    yield HttpBytes("CONNECT", request("CONNECT x:80 HTTP/1.1") + GET, 0, 501)
    for length in ("3, 3", "3,4", "+3", "-3", "3 3", "0x3", "", "3.0", "1" * 19, "\xb2"):
        data = request("POST / HTTP/1.1", f"Content-Length: {length}", body=b"abc")
        yield HttpBytes(f"length {length!r}", data + GET, 0, 400)
    for second in ("3", "4"):
        data = request("POST / HTTP/1.1", "Content-Length: 3", f"Content-Length: {second}", body=b"abc")
        yield HttpBytes(f"lengths 3 and {second}", data + GET, 0, 400)
    te = "Transfer-Encoding: chunked"
    for length in ("0", "3", str(len(chunked(b"abc")))):
        for order in (1, -1):
            data = request("POST / HTTP/1.1", *[te, f"Content-Length: {length}"][::order], body=chunked(b"abc"))
            yield HttpBytes(f"chunks and length {length}, {order}", data + SMUGGLED, 0, 400)
    for coding in ("gzip", "identity", "gzip, chunked", "chunked, chunked", "xchunked", "chunked;a", "\x0bchunked", ""):
        data = request("POST / HTTP/1.1", f"Transfer-Encoding: {coding}", body=chunked(b"abc"))
        yield HttpBytes(f"transfer coding {coding!r}", data + GET, 0, 400 if "\x0b" in coding else 501)
    yield HttpBytes("chunked twice", request("POST / HTTP/1.1", te, te, body=chunked(b"abc")) + GET, 0, 501)
    yield HttpBytes("chunks of HTTP/1.0", request("POST / HTTP/1.0", te, body=chunked(b"abc")) + GET, 0, 400)
    yield HttpBytes("headers too large", request("GET / HTTP/1.1", "X-A: " + "a" * 9_000) + GET, 0, 431)


def _malformed_chunks() -> Iterator[HttpBytes]:
    te = "Transfer-Encoding: chunked"
    for name, body in {
        "LF alone": b"3\nabc\n0\n\n",
        "LF behind the size": b"3\nabc\r\n0\r\n\r\n",
        "LF in an extension": b"3;a\nb\r\nabc\r\n0\r\n\r\n",
        "CR in an extension": b"3;a\rb\r\nabc\r\n0\r\n\r\n",
        "longer than its size": b"2\r\nabc\r\n0\r\n\r\n",
        "shorter than its size": b"5\r\nabc\r\n0\r\n\r\n",
        "no CR behind the data": b"3\r\nabc\n0\r\n\r\n",
        "a sign": b"+3\r\nabc\r\n0\r\n\r\n",
        "0x": b"0x3\r\nabc\r\n0\r\n\r\n",
        "no size": b"\r\nabc\r\n0\r\n\r\n",
        "space before": b" 3\r\nabc\r\n0\r\n\r\n",
        "space behind": b"3 \r\nabc\r\n0\r\n\r\n",
        "a number without end": b"0" * 40 + b"3\r\nabc\r\n0\r\n\r\n",
        "an extension without end": b"3;" + b"a" * 300 + b"\r\nabc\r\n0\r\n\r\n",
        "a trailer that is none": b"0\r\nnothing\r\n\r\n",
        "a folded trailer": b"0\r\nX-A: b\r\n c\r\n\r\n",
        "LF in the trailers": b"0\r\nX-A: b\n\r\n",
    }.items():
        yield HttpBytes(f"chunks: {name}", request("POST / HTTP/1.1", te, body=body) + GET, 0, 400)


HTTP_BYTES: Final = (
    *_valid(),
    *_upgraded(),
    *_in_a_row(),
    *_malformed_heads(),
    *_malformed_framing(),
    *_malformed_chunks(),
)
