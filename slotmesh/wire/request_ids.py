"""Ids that clients and proxies give their requests: X-Request-ID of HTTP, `x-request-id` of gRPC's metadata. Pure.

Invariant: one that is taken can stand in a header, a log line and a document as it is, and is short.
"""

from __future__ import annotations

import re
from typing import Final

REQUEST_ID: Final = "x-request-id"
MAX_CHARS: Final = 128
_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@~-]+")


def is_request_id(said: str) -> bool:
    """Whether it is an id."""
    return len(said) <= MAX_CHARS and _ID.fullmatch(said) is not None
