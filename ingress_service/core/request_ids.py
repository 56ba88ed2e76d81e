"""The id of a request that its client, or a proxy, has given it. Pure.

Invariant: one that is taken can stand in a header, a log line and a document as it is, and is short.
"""

from __future__ import annotations

import re
from typing import Final

HEADER: Final = b"x-request-id"
MAX_CHARS: Final = 128
_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=@~-]{1,%d}" % MAX_CHARS)


def given_id(said: bytes) -> str:
    """What X-Request-ID says; empty where it is no id, which is as if nothing had been said."""
    return said.decode("ascii") if _ID.fullmatch(said) else ""
