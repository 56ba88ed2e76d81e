"""The forms of arguments and results: Content-Type, Accept, streams of values, compressed bodies. Pure.

Invariants: a result is in the form of the arguments, or in the one that Accept asks for and that arguments can be
turned into: JSON and msgpack. A form that cannot be produced is refused before anything is called.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec

from ingress_service.core.problems import Problem, refusal

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
OCTETS: Final = "application/octet-stream"
_ALIASES: Final = {
    b"application/json": JSON,
    b"application/msgpack": MSGPACK,
    b"application/x-msgpack": MSGPACK,
    b"application/vnd.msgpack": MSGPACK,
    b"application/octet-stream": OCTETS,
}
_MOST_RANGES: Final = 32
_CHARSETS: Final = frozenset({b"utf-8", b"utf8", b"us-ascii"})


class Framing(Enum):
    """How values of a handler that yields travel."""

    WHOLE = "one result"
    EVENTS = "text/event-stream"
    LINES = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class Forms:
    """Of a request, and of its answer."""

    arguments: str
    """Form of the body."""
    call: str
    """Form of the call's payload, and so of its result."""
    framing: Framing
    or_octets: bool = False
    """The body is bytes, and Accept prefers no other form to bytes; `call` is the form if the result is none."""

    @property
    def is_upload(self) -> bool:
        """Whether the body is bytes, which the call has as one of its arguments."""
        return self.arguments == OCTETS != self.call


_PLAIN: Final = {name: Forms(name, name, Framing.WHOLE) for name in (JSON, MSGPACK, OCTETS)}
_WILD: Final = frozenset({b"*/*", b"application/*"})
_OPEN: Final = Forms(OCTETS, JSON, Framing.WHOLE, or_octets=True)
_FRAMED: Final = {
    b"text/event-stream": Framing.EVENTS,
    b"application/x-ndjson": Framing.LINES,
    b"application/ndjson": Framing.LINES,
}


def forms_of(content_type: bytes, accept: bytes) -> Forms:
    """`content_type` and `accept` as the headers have them; empty where there is none. Raises RequestRefusal."""
    name = _ALIASES.get(content_type.partition(b";")[0].strip().lower()) if content_type else JSON
    if name is None:
        came = content_type[:80].decode("ascii", "replace")
        raise refusal(415, f"Content-Type is {came}, and must be one of {JSON} (curl --json), {MSGPACK}, {OCTETS}")
    if name == JSON and b";" in content_type:
        _check_charset(content_type)
    if not accept or accept == b"*/*":
        return _OPEN if name == OCTETS else _PLAIN[name]
    return _negotiated(name, accept)


def check_untyped(body: bytes) -> None:
    """Whether a body without a Content-Type can be JSON. Raises RequestRefusal for bytes, which need one."""
    if (start := body[:64].lstrip()) and start[:1] not in b"[{":
        text = f"without a Content-Type the body must be {JSON}, an array or an object, and this is neither"
        raise refusal(415, f"{text}: send bytes as Content-Type: {OCTETS}")


def _check_charset(content_type: bytes) -> None:
    """JSON is UTF-8 (RFC 8259). Raises RequestRefusal for any other charset that is named."""
    for each in content_type.lower().split(b";")[1:]:
        name, _, value = each.partition(b"=")
        if name.strip() == b"charset" and value.strip().strip(b'"') not in _CHARSETS:
            raise refusal(415, f"the charset of {JSON} must be utf-8")


def _negotiated(name: str, accept: bytes) -> Forms:
    """Of a body in the form `name`: the best form of its call, which for bytes is the one beside octet-stream."""
    ranges, refused = _by_preference(accept)
    of_octets = _quality_of_octets(ranges) if name == OCTETS and OCTETS not in refused else 0.0
    for quality, media in ranges:
        or_octets = quality <= of_octets
        if (framing := _FRAMED.get(media)) is not None:
            return Forms(name, JSON, framing, or_octets)
        for form in (name, JSON, MSGPACK) if media in _WILD else (_ALIASES.get(media, OCTETS),):
            if form != OCTETS and form not in refused:
                return Forms(name, form, Framing.WHOLE, or_octets)
    if of_octets:
        return _PLAIN[OCTETS]
    also = f"; {OCTETS}" if name == OCTETS else ""
    text = (
        f"Accept names nothing that this request can be answered in, which is {JSON}, {MSGPACK}; values one by one as"
        f" text/event-stream, application/x-ndjson{also}"
    )
    raise refusal(406, text)


def _quality_of_octets(ranges: Sequence[tuple[float, bytes]]) -> float:
    """Of a result of bytes, by the range that names it, or else a wildcard; 0: it is not accepted."""
    named = [quality for quality, media in ranges if _ALIASES.get(media) == OCTETS]
    return max(named or [quality for quality, media in ranges if media in _WILD], default=0.0)


def _by_preference(accept: bytes) -> tuple[list[tuple[float, bytes]], frozenset[str]]:
    """The media ranges with their qualities, best first, and the forms with q=0, which no wildcard stands for."""
    ranges: list[tuple[float, int, bytes]] = []
    refused: set[str] = set()
    for at, part in enumerate(accept.lower().split(b",", _MOST_RANGES)[:_MOST_RANGES]):
        media, *parameters = (it.strip() for it in part.split(b";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith(b"q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        if media and 0 < quality <= 1:
            ranges.append((-quality, at, media))
        elif (form := _ALIASES.get(media)) is not None:
            refused.add(form)
    accepted = {_ALIASES.get(media) for _, _, media in ranges}
    return [(-quality, media) for quality, _, media in sorted(ranges)], frozenset(refused - accepted)


KEEP_ALIVE: Final = b": \n\n"
"""A comment, which clients pass over."""


@dataclass(frozen=True, slots=True)
class ValueFrames:
    """How one kind of stream of a handler that yields is written: Server-Sent Events, or lines of JSON.

    A value is one event, or one line. JSON that is written here has no line breaks, and line breaks in a handler's own
    JSON do not break the framing. The end of a stream states whether it ended well, or why it failed.
    """

    content_type: bytes
    value: Callable[[bytes], bytes]
    failure: Callable[[Problem], bytes]
    end: bytes
    keep_alive: bytes
    """What is sent while nothing comes; empty: nothing."""


def _one_line(value: bytes) -> bytes:
    if b"\n" not in value and b"\r" not in value:
        return value
    return msgspec.json.format(value, indent=-1)


def _event(value: bytes) -> bytes:
    return b"data: %b\n\n" % _one_line(value)


def _line(value: bytes) -> bytes:
    return b"%b\n" % _one_line(value)


def _failed_event(problem: Problem) -> bytes:
    return b"event: error\ndata: %b\n\n" % problem.body()


def _failed_line(problem: Problem) -> bytes:
    return b'{"slotmesh_problem":%b}\n' % problem.body()


FRAMES: Final = {
    Framing.EVENTS: ValueFrames(b"text/event-stream", _event, _failed_event, b"event: end\ndata: \n\n", KEEP_ALIVE),
    Framing.LINES: ValueFrames(b"application/x-ndjson", _line, _failed_line, b"", b""),
}


PIECE_BYTES: Final = 256 * 1024
"""Of one step, what it gives: less than a millisecond."""
STEP_BYTES: Final = 16 * 1024
"""Of one step, what it reads: blocks without a byte in them take 150 ns a byte."""
LEVEL: Final = 1
_MOST_CODINGS: Final = 16


class Coding(Enum):
    """As `Content-Encoding` names it, and the window's size as `zlib` wants it."""

    GZIP = b"gzip", 31
    DEFLATE = b"deflate", 15

    @property
    def header(self) -> bytes:
        """Its name."""
        return self.value[0]

    @property
    def window(self) -> int:
        """For `zlib`."""
        return self.value[1]


_OF_NAME: Final = {**{each.header: each for each in Coding}, b"x-gzip": Coding.GZIP}
_NAMES: Final = ", ".join(each.header.decode() for each in Coding)


def coding_of_request(header: bytes) -> Coding | None:
    """The coding in `Content-Encoding`; None: nothing was compressed. Raises RequestRefusal."""
    name = header.strip().lower()
    if not name or name == b"identity":
        return None
    if (found := _OF_NAME.get(name)) is None:
        raise refusal(415, f"Content-Encoding must be one of {_NAMES}", accept_encoding=_NAMES)
    return found


def coding_of_answer(header: bytes) -> Coding | None:
    """The first that `Accept-Encoding` names and that there is; None: the answer goes as it is."""
    for part in header.lower().split(b",", _MOST_CODINGS)[:_MOST_CODINGS]:
        name, _, quality = part.partition(b";")
        found = _OF_NAME.get(name.strip())
        if found is not None and quality.strip().replace(b" ", b"").rstrip(b"0.") != b"q=":
            return found
    return None


class Inflater:
    """Takes one body apart."""

    def __init__(self, coding: Coding, body: bytes) -> None:
        self._zlib = zlib.decompressobj(coding.window)
        self._body = memoryview(body)
        self._at = 0
        """How much of the body was given to `zlib`, which may keep the end of it as its unconsumed tail."""
        self._name = coding.header.decode()

    @property
    def is_done(self) -> bool:
        """Whether all was read."""
        return self._zlib.eof

    @property
    def read_bytes(self) -> int:
        """How much of the body was read up to now."""
        return self._at - len(self._zlib.unconsumed_tail)

    def next(self) -> bytes:
        """The next piece, of `PIECE_BYTES` at most; empty where what was read had no bytes. Raises RequestRefusal."""
        unpacker = self._zlib
        step: bytes | memoryview = unpacker.unconsumed_tail
        if not step:
            step = self._body[self._at : self._at + STEP_BYTES]
            self._at += len(step)
        try:
            piece = unpacker.decompress(step, PIECE_BYTES)
        except zlib.error:
            raise refusal(400, f"the body is no {self._name}") from None
        if unpacker.eof:
            if unpacker.unused_data or self._at < len(self._body):
                raise refusal(400, f"something is left behind the end of the {self._name}")
        elif not piece and not unpacker.unconsumed_tail and self._at == len(self._body):
            raise refusal(400, f"the {self._name} of the body was cut off")
        return piece


def deflated(coding: Coding, body: bytes) -> bytes:
    """The body, compressed."""
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, coding.window)
    return packer.compress(body) + packer.flush()
