"""What one connection may take. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Of one connection."""

    header_bytes: int
    header_s: float
    body_s: float
    send_s: float
    keep_alive_s: float
    ahead_requests: int
    """Requests that may wait behind the one that is being answered."""
    ahead_bytes: int
    """Their heads and bodies together; for a WebSocket, its messages."""
