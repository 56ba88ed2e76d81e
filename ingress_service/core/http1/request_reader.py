"""Cuts the bytes of a connection into heads and bodies. Pure.

Invariants: `feed` is followed by `next` until that returns None; what was read does not depend on how the bytes were
split; at most a head, or a line of a chunked body, is held here. After MalformedRequest nothing is read any more.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from ingress_service.core.counters import ConnectionCut
from ingress_service.core.http1.heads import MalformedRequest, RequestHead, known_head

_CR: Final = ord("\r")
_CRLF: Final = b"\r\n"
_END: Final = b"\r\n\r\n"
_ANY_END: Final = re.compile(rb"\n\r?\n")
"""The end of a head, by the most permissive reading: a head that ends so, and not by `_END`, is refused."""
_STARTS_METHOD: Final = frozenset(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_TRAILER: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n")
_MAX_CHUNK_LINE: Final = 256
"""Bytes of the size of a chunk and its extensions, which are ignored."""


class RequestEnd(Enum):
    """The end of a request: its head and body were read."""

    READ = "read"


class _Part(Enum):
    """What of a chunked body comes next."""

    SIZE = "size"
    DATA = "data"
    DATA_END = "end of data"
    TRAILERS = "trailers"


class HttpReader:
    """The requests of one connection, one after another."""

    __slots__ = ("_at", "_bytes", "_head", "_left", "_max_header_bytes", "_part", "_seen", "_skips", "_trailer_bytes")

    def __init__(self, max_header_bytes: int) -> None:
        self._max_header_bytes = max_header_bytes
        self._bytes = b""
        self._at = 0
        """Up to where `_bytes` were read."""
        self._seen = 0
        """Up to where `_bytes` are known not to contain the end of a head."""
        self._head: RequestHead | None = None
        """Of the request whose body is being read."""
        self._left = 0
        """Bytes of the body, or of the chunk, that are still to come."""
        self._part = _Part.SIZE
        self._skips = True
        """An empty line before the next request is ignored. Source: RFC 9112, section 2.2."""
        self._trailer_bytes = 0

    @property
    def is_between(self) -> bool:
        """Whether no byte of a next request was read."""
        left = len(self._bytes) - self._at
        return self._head is None and (
            left <= 0 or (self._skips and left <= len(_CRLF) and _CRLF.startswith(self._bytes[self._at :]))
        )

    def feed(self, data: bytes) -> None:
        if self._at:
            self._seen = max(0, self._seen - self._at)
            self._bytes, self._at = self._bytes[self._at :], 0
        self._bytes = self._bytes + data if self._bytes else data

    def take_whole(self, data: bytes) -> tuple[RequestHead, bytes] | None:
        """Head and body of the one request that `data` is, as most are; None: it is something else, and has to be fed.

        Only between two requests.
        """
        if self._at < len(self._bytes):
            return None
        end = data.find(_END)
        if not 0 <= end <= self._max_header_bytes:
            return None
        try:
            head = known_head(data[: end + 2])
        except MalformedRequest:
            return None
        if head.is_chunked or head.is_handshake or len(data) != end + 4 + head.body_bytes:
            return None
        return head, data[end + 4 :]

    def take_rest(self) -> bytes:
        """The bytes that were not read: they are not HTTP."""
        rest, self._bytes, self._at = self._bytes[self._at :], b"", 0
        return rest

    def next(self) -> RequestHead | bytes | RequestEnd | None:
        """A head, a part of its body, or its end; None: more bytes are needed. Raises MalformedRequest."""
        head = self._head
        if head is None:
            return self._read_head()
        if head.is_chunked:
            return self._read_chunks()
        if not self._left:
            self._head = None
            return RequestEnd.READ
        return self._read_data() or None

    def _read_head(self) -> RequestHead | None:
        data, at = self._bytes, self._at
        if at >= len(data):
            return None
        if self._skips and data[at] == _CR:
            if len(data) - at < len(_CRLF):
                return None
            if data.startswith(_CRLF, at):
                self._skips = False
                self._at = at = at + len(_CRLF)
                if at >= len(data):
                    return None
        if data[at] not in _STARTS_METHOD:
            raise MalformedRequest("this is not a request of HTTP/1.1")
        end = data.find(_END, max(at, self._seen - 3))
        if end < 0:
            if _ANY_END.search(data, max(at, self._seen - 2)):
                raise MalformedRequest("a header line ends with LF alone: lines end with CRLF")
            self._seen = len(data)
        # Without its end, up to three bytes of that may be here already.
        if (end if end >= 0 else len(data) - len(_END) + 1) - at > self._max_header_bytes:
            raise MalformedRequest("request line and headers are too large", 431, ConnectionCut.HEADERS)
        if end < 0:
            return None
        head = self._head = known_head(data[at : end + 2])
        self._skips = True
        self._at = self._seen = end + 4
        self._left = head.body_bytes
        self._part = _Part.SIZE
        return head

    def _read_data(self) -> bytes:
        """What there is of the body, or of the chunk."""
        at = self._at
        data = self._bytes[at : at + self._left]
        self._at = at + len(data)
        self._left -= len(data)
        return data

    def _read_chunks(self) -> bytes | RequestEnd | None:
        """Data of the chunks that there are, together; the end of the request only after all data."""
        parts: list[bytes] = []
        while True:
            if self._part is _Part.SIZE:
                self._read_whole_chunks(parts)
            if self._part is _Part.DATA:
                if not (data := self._read_data()):
                    break
                parts.append(data)
                if self._left:
                    break
                self._part = _Part.DATA_END
            if self._part is _Part.TRAILERS and parts:
                break
            if (line := self._line()) is None:
                break
            if self._part is _Part.DATA_END:
                if line != b"\r\n":
                    raise MalformedRequest("a chunk of the body is longer than its size")
                self._part = _Part.SIZE
            elif self._part is _Part.SIZE:
                self._begin_chunk(line)
            elif line == b"\r\n":
                self._head = None
                return RequestEnd.READ
            else:
                self._pass_over(line)
        return b"".join(parts) or None

    def _read_whole_chunks(self, parts: list[bytes]) -> None:
        """Those that are there from size to end: a client may send very many small ones."""
        data, at, match = self._bytes, self._at, _CHUNK.match
        while (found := match(data, at)) is not None:
            begin = found.end()
            end = begin + int(found[1], 16)
            if end == begin or begin - at > _MAX_CHUNK_LINE or data[end : end + 2] != b"\r\n":
                break
            parts.append(data[begin:end])
            at = end + 2
        self._at = at

    def _line(self) -> bytes | None:
        """The next line of a chunked body; None: it has not arrived. Raises MalformedRequest."""
        at = self._at
        most = _MAX_CHUNK_LINE if self._part is _Part.SIZE else self._max_header_bytes
        end = self._bytes.find(b"\n", at, at + most) + 1
        if not end:
            if len(self._bytes) - at >= most:
                raise MalformedRequest("a line of the chunked body is too long")
            return None
        self._at = end
        return self._bytes[at:end]

    def _begin_chunk(self, line: bytes) -> None:
        found = _CHUNK.fullmatch(line)
        if found is None:
            raise MalformedRequest("a chunk of the body does not begin with its size")
        self._left = int(found[1], 16)
        self._trailer_bytes = 0
        self._part = _Part.DATA if self._left else _Part.TRAILERS

    def _pass_over(self, trailer: bytes) -> None:
        """Trailers are checked and dropped: a header that decides about the call came before the body."""
        self._trailer_bytes += len(trailer)
        if self._trailer_bytes > self._max_header_bytes:
            raise MalformedRequest("the trailers are too large", 431, ConnectionCut.HEADERS)
        if _TRAILER.fullmatch(trailer) is None:
            raise MalformedRequest("a trailer is not NAME: VALUE")
