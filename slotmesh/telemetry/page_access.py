"""Who may see the metrics of a service: viewers, where it is asked who they are.

Invariants: a token goes before a certificate; whoever is not known, or is no viewer, learns nothing of the mesh.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from slotmesh.errors import Reason
from slotmesh.security.authorizer import TokenVerifier
from slotmesh.security.identity import Identity, Role, identity_of
from slotmesh.security.tokens.failures import BadToken

_NEEDED: Final = f"the role {Role.VIEWER} is needed"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to who may not see a page."""

    reason: Reason
    """UNAUTHENTICATED or PERMISSION_DENIED."""
    text: str
    who: Identity | None = None
    """Who was refused; None: nobody who is known."""


@dataclass(frozen=True, slots=True)
class PageAccess:
    """Decides by the peer's certificate or token."""

    trust_domain: str
    tokens: TokenVerifier | None = None
    """None: no token is accepted."""
    now: Callable[[], float] = field(default=time.time)
    """Seconds since 1970."""

    def refusal(
        self, uris: Sequence[str], ends_at: float, authorization: str, *, is_revoked: bool = False
    ) -> Refusal | None:
        """Why a page of viewers is not shown; None: it is.

        `uris`: of a certificate that was checked, which ends at `ends_at`, and was taken back where it `is_revoked`.
        """
        known: Identity | None
        if authorization:
            if (known := self._holder(authorization)) is None:
                return Refusal(Reason.UNAUTHENTICATED, f"{_NEEDED}, and this token is not known here\n")
        else:
            known = identity_of(uris[0], self.trust_domain) if len(uris) == 1 else None
            if known is None:
                return Refusal(Reason.UNAUTHENTICATED, f"{_NEEDED}: show a client certificate or a bearer token\n")
            if is_revoked:
                return Refusal(Reason.UNAUTHENTICATED, f"{_NEEDED}, and this certificate was revoked\n", known)
            if ends_at <= self.now():
                return Refusal(Reason.UNAUTHENTICATED, f"{_NEEDED}, and this certificate has expired\n", known)
        if Role.VIEWER not in known.roles:
            return Refusal(Reason.PERMISSION_DENIED, f"{_NEEDED}, and {known.name} does not have it\n", known)
        return None

    def _holder(self, authorization: str) -> Identity | None:
        scheme, _, token = authorization.partition(" ")
        if self.tokens is None or scheme.lower() != "bearer":
            return None
        try:
            return self.tokens.identify(token.strip())
        except BadToken:
            return None
