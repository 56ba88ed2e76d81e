"""In which form arguments come and results go: Content-Type and Accept. Pure.

Invariants: a result is in the form of the arguments, or in the one that Accept asks for and that arguments can be
turned into: JSON and msgpack. What cannot be had is refused before anything is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from ingress_service.core.problems import refusal

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


_PLAIN: Final = {name: Forms(name, name, Framing.WHOLE) for name in (JSON, MSGPACK, OCTETS)}
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
        return _PLAIN[name]
    return _negotiated(name, accept)


def _check_charset(content_type: bytes) -> None:
    """JSON is UTF-8 (RFC 8259). Raises RequestRefusal for any other charset that is named."""
    for each in content_type.lower().split(b";")[1:]:
        name, _, value = each.partition(b"=")
        if name.strip() == b"charset" and value.strip().strip(b'"') not in _CHARSETS:
            raise refusal(415, f"the charset of {JSON} must be utf-8")


def _negotiated(name: str, accept: bytes) -> Forms:
    for media in _by_preference(accept):
        if (framing := _FRAMED.get(media)) is not None:
            if name == OCTETS:
                raise refusal(406, f"values as {framing.value} are JSON: send the arguments as {JSON}")
            return Forms(name, JSON, framing)
        if media in {b"*/*", b"application/*"} or _ALIASES.get(media) == name:
            return _PLAIN[name]
        if (other := _ALIASES.get(media)) is not None and OCTETS not in {name, other}:
            return Forms(name, other, Framing.WHOLE)
    forms = (
        name if name == OCTETS else f"{JSON}, {MSGPACK}; values one by one as text/event-stream, application/x-ndjson"
    )
    raise refusal(406, f"Accept names nothing that this request can be answered in, which is {forms}")


def _by_preference(accept: bytes) -> list[bytes]:
    """The media ranges, best first; those with q=0 left out."""
    ranges: list[tuple[float, int, bytes]] = []
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
    return [media for _, _, media in sorted(ranges)]
