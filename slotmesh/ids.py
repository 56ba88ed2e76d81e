"""Random identities: unique, and impossible to guess."""

from __future__ import annotations

import secrets
from typing import Final

STREAM_ID_BYTES: Final = 8
"""Of a stream from a router to a replica."""


def new_id(size: int = 16) -> str:
    """`size` random bytes as hexadecimal digits; 16, the default, is the size of incarnations and sessions."""
    return secrets.token_hex(size)
