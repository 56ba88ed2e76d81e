"""All that one caller may have at a router, beside streams, which are every server's to count."""

from __future__ import annotations

from router_service.core.caller_shares import CallQuotas
from router_service.core.sessions.session_quota import SessionQuota
from slotmesh.security.quotas import Quota


class CallerQuotas:
    """The quotas of one router."""

    def __init__(self, calls: CallQuotas | None = None, sessions: SessionQuota | None = None) -> None:
        self.calls = calls or CallQuotas()
        self.sessions = sessions or SessionQuota()

    @property
    def all(self) -> tuple[Quota, ...]:
        """Each of them."""
        return self.calls.calls, self.calls.bytes, self.calls.keys, self.sessions.quota
