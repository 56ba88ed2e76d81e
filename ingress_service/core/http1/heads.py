"""The head of an HTTP/1.1 request, by one strict grammar, and the limits of a connection. Pure.

Invariants: a head that two servers could understand differently is refused: line ends other than CRLF, folded lines, a
space before a colon, Content-Length that is repeated or stands beside Transfer-Encoding, any Transfer-Encoding but
`chunked`, no Host or several. What is accepted here, h11 accepts with the same meaning. Source: RFC 9110 and 9112.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ingress_service.core.counters import ConnectionCut


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Of one connection."""

    header_bytes: int
    header_s: float
    body_s: float
    send_s: float
    keep_alive_s: float
    ahead_requests: int
    """Requests that may wait behind the one that is being answered."""
    ahead_bytes: int
    """Their heads and bodies together; for a WebSocket, its messages."""


HeaderList = list[tuple[bytes, bytes]]
_KNOWN_BYTES: Final = 1024
"""Heads up to this size are remembered, a few hundred of them."""

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_LINE: Final = re.compile(rb"(%b) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])" % _TOKEN)
_HEADERS: Final = re.compile(rb"(?:%b:[\t\x20-\x7e\x80-\xff]*\r\n)*" % _TOKEN)
_TARGET: Final = re.compile(rb"(?:https?://([^/?#]*))?(/[^?#]*)?(?:\?([^#]*))?", re.IGNORECASE)
_HOST: Final = re.compile(rb"[A-Za-z0-9\-._~%!$&'()*+,;=:\[\]]*")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_FRAMING: Final = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection", b"upgrade", b"expect"})
"""Headers that decide where the request ends, and what follows it."""


class MalformedRequest(Exception):
    """The bytes are not a request that this server reads. Nothing after them is understood."""

    def __init__(self, detail: str, status: int = 400, cut: ConnectionCut = ConnectionCut.NONSENSE) -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = status
        self.cut = cut
        self.headers: HeaderList = []
        """Those of the request, if they could be read."""


class RequestHead:
    """Of one request. It is shared by requests with the same head, and never changed."""

    __slots__ = (
        "body_bytes",
        "expects_continue",
        "has_body",
        "headers",
        "is_chunked",
        "is_handshake",
        "keeps_alive",
        "method",
        "path",
        "query",
        "size",
        "version",
    )

    def __init__(self, method: str, path: bytes, query: bytes, version: str, headers: HeaderList) -> None:
        self.method = method
        self.path = path
        """Percent-encoded, without the query."""
        self.query = query
        self.version = version
        """`1.0` or `1.1`."""
        self.headers = headers
        """In order, names in lower case. Trailers are never among them."""
        self.is_chunked = False
        self.body_bytes = 0
        """By Content-Length."""
        self.keeps_alive = version == "1.1"
        """Whether another request may follow on the connection."""
        self.expects_continue = False
        self.is_handshake = False
        """A WebSocket handshake: what follows is not HTTP, unless the handshake is refused, which ends the connection.
        Any other Upgrade is ignored."""
        self.has_body = False
        self.size = 0
        """Bytes."""


def parse_head(raw: bytes) -> RequestHead:
    """`raw`: from the request line to the CRLF of the last header. Raises MalformedRequest."""
    line, _, block = raw.partition(b"\r\n")
    found = _LINE.fullmatch(line)
    if found is None:
        raise MalformedRequest("the request line is not METHOD TARGET HTTP/1.1")
    method, target, major, minor = found.groups()
    if major != b"1" or minor not in b"01":
        raise MalformedRequest("the version of HTTP is not 1.0 or 1.1", 505)
    if _HEADERS.fullmatch(block) is None:
        raise MalformedRequest(_problem_of(block))
    headers: HeaderList = []
    framing: HeaderList = []
    for each in block.split(b"\r\n"):
        if each:
            name, _, value = each.partition(b":")
            header = (name.lower(), value.strip(b" \t"))
            headers.append(header)
            if header[0] in _FRAMING:
                framing.append(header)
    version = "1.1" if minor == b"1" else "1.0"
    hosts = [value for name, value in framing if name == b"host"]
    try:
        authority, path, query = _split_target(method, target)
        head = RequestHead(method.decode("ascii"), path, query, version, headers)
        head.size = len(raw)
        _check_host(hosts, authority, version)
        _read_framing(head, framing)
    except MalformedRequest as error:
        error.headers = headers
        raise
    return head


@lru_cache(maxsize=256)
def _parsed(raw: bytes) -> RequestHead:
    return parse_head(raw)


def known_head(raw: bytes) -> RequestHead:
    """As `parse_head`; small ones are remembered, as most clients send the same head with each request."""
    return _parsed(raw) if len(raw) <= _KNOWN_BYTES else parse_head(raw)


def _problem_of(block: bytes) -> str:
    """Why these header lines are refused."""
    if block.replace(b"\r\n", b"").count(b"\n") or b"\r" in block.replace(b"\r\n", b""):
        return "a header line ends with CR or LF alone: lines end with CRLF"
    for line in block.split(b"\r\n"):
        if line[:1] in {b" ", b"\t"}:
            return "a header is folded over several lines"
        name, colon, _ = line.partition(b":")
        if line and (not colon or re.fullmatch(_TOKEN, name) is None):
            return "a header line is not NAME: VALUE, or has a space before its colon"
    return "the value of a header contains control characters"


def _split_target(method: bytes, target: bytes) -> tuple[bytes | None, bytes, bytes]:
    """Authority (None: the target names none), path and query."""
    if target[:1] == b"/" and b"#" not in target:
        path, _, query = target.partition(b"?")
        return None, path, query
    if method == b"CONNECT":
        raise MalformedRequest("CONNECT is not supported: this server is not a proxy", 501)
    if target == b"*" and method == b"OPTIONS":
        return None, target, b""
    found = _TARGET.fullmatch(target)
    if found is None or found[1] is None:
        raise MalformedRequest("the target of the request is not a path, or an http URL without fragment")
    return found[1], found[2] or b"/", found[3] or b""


def _check_host(hosts: list[bytes], authority: bytes | None, version: str) -> None:
    if len(hosts) != 1 and (hosts or version == "1.1"):
        raise MalformedRequest("a request has one Host header")
    if hosts and _HOST.fullmatch(hosts[0]) is None:
        raise MalformedRequest("the Host header is not HOST or HOST:PORT")
    if authority is not None and (not hosts or authority.lower() != hosts[0].lower()):
        raise MalformedRequest("the target of the request and the Host header name different hosts")


def _read_framing(head: RequestHead, framing: HeaderList) -> None:
    """Where the request ends, and what may follow it."""
    length: bytes | None = None
    upgrades: list[bytes] = []
    tokens: set[bytes] = set()
    for name, value in framing:
        if name == b"content-length":
            if length is not None:
                raise MalformedRequest("Content-Length is given twice")
            if _LENGTH.fullmatch(value) is None:
                raise MalformedRequest("Content-Length is not one number of bytes")
            length = value
        elif name == b"transfer-encoding":
            if head.is_chunked or value.lower() != b"chunked":
                raise MalformedRequest("Transfer-Encoding is something other than chunked", 501)
            head.is_chunked = True
        elif name == b"connection":
            tokens.update(each.strip().lower() for each in value.split(b","))
        elif name == b"upgrade":
            upgrades.append(value.lower())
        elif name == b"expect" and value.lower() == b"100-continue":
            head.expects_continue = head.version == "1.1"
    if head.is_chunked and (length is not None or head.version == "1.0"):
        raise MalformedRequest("Transfer-Encoding stands beside Content-Length, or in a request of HTTP/1.0")
    head.body_bytes = int(length or 0)
    head.has_body = head.is_chunked or head.body_bytes > 0
    if b"close" in tokens:
        head.keeps_alive = False
    head.is_handshake = (
        upgrades == [b"websocket"]
        and b"upgrade" in tokens
        and head.method == "GET"
        and head.version == "1.1"
        and not head.has_body
    )
