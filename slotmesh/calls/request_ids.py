"""What identifies a call that its caller may repeat. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple


class CallIdentity(NamedTuple):
    """Of two calls of one identity, the second is a repetition."""

    request_id: str
    """Chosen by the caller, and made unique among callers. Empty: the call is not repeated."""
    digest: bytes
    """Hash of the rpc, its method and its arguments. Another call with the same id is refused."""


NOT_REPEATED: Final = CallIdentity("", b"")
