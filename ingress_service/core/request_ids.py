"""The id of a request that its client, or a proxy, has given it. Pure."""

from __future__ import annotations

from typing import Final

from slotmesh.wire.request_ids import REQUEST_ID, is_request_id

HEADER: Final = REQUEST_ID.encode()


def given_id(said: bytes) -> str:
    """What X-Request-ID says; empty where it is no id, which is as if nothing had been said."""
    text = said.decode("latin-1")
    return text if is_request_id(text) else ""
