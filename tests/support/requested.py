"""What identifies a repeated reservation, for tests of cores."""

from __future__ import annotations

from slotmesh.calls.request_ids import ReservationIdentity


def requested(request_id: str, attempt: int = 0, resend: int = 0, digest: bytes = b"") -> ReservationIdentity | None:
    """The identity of a caller without a name; None without an id."""
    return ReservationIdentity(request_id, digest, "", attempt, resend) if request_id else None
