"""Headers that mean something to inferences only. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ingress_service.core.content_coding import Coding, coding_of_answer
from ingress_service.core.problems import refusal
from slotmesh.oip.json_requests import LENGTH_HEADER

_LENGTH: Final = LENGTH_HEADER.lower().encode()
_MOST_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class InferenceHeaders:
    """Of one request."""

    json_size: int | None = None
    """Bytes of JSON that the body begins with; None: all of it is JSON."""
    wanted: Coding | None = None
    """How the answer may be."""


def inference_headers(lines: Iterable[tuple[bytes, bytes]]) -> InferenceHeaders:
    """Names are in lower case. Raises RequestRefusal."""
    length: bytes | None = None
    accept = b""
    for name, value in lines:
        if name == _LENGTH:
            if length is not None and length != value:
                raise refusal(400, f"{LENGTH_HEADER}: is given twice")
            length = value
        elif name == b"accept-encoding":
            accept = b"%b, %b" % (accept, value) if accept else value
    if length is not None and not (length.isdigit() and len(length) <= _MOST_DIGITS):
        raise refusal(400, f"{LENGTH_HEADER}: must be a number of bytes")
    return InferenceHeaders(None if length is None else int(length), coding_of_answer(accept))
