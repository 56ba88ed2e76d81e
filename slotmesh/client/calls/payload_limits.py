"""How large a payload may be, and the failure of a larger one."""

from __future__ import annotations

from typing import Final

from slotmesh.errors import Executed, Failure, Reason
from slotmesh.wire.limits import MAX_INLINE_BYTES, MAX_PAYLOAD_BYTES

MAX_UNARY_BYTES: Final = MAX_INLINE_BYTES
"""Of a call by a unary rpc, which has no chunks."""

MAX_BYTES_UNTIL_KNOWN: Final = MAX_PAYLOAD_BYTES
"""The limit until the router has stated its own."""


def limit_of(stated: int, *, cuts: bool) -> int:
    """The largest payload for a router with this stated limit. `cuts`: it takes chunks."""
    limit = stated or MAX_INLINE_BYTES
    return limit if cuts else min(limit, MAX_INLINE_BYTES)


def too_large(actual: int, limit: int, *, was_sent: bool = False) -> Failure:
    """The failure of a call with a payload of `actual` bytes. `was_sent`: to another router."""
    return Failure(
        reason=Reason.PAYLOAD_TOO_LARGE,
        message=f"the payload has {actual} bytes, encoded, and the limit is {limit} bytes: send less in one call",
        executed=Executed.UNKNOWN if was_sent else Executed.NO,
        metadata={"limit": str(limit), "actual": str(actual)},
    )
