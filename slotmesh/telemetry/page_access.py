"""Who may see the metrics of a service: viewers, where it is asked who they are.

Invariants: a token goes before a certificate; whoever is not known, or is no viewer, learns nothing of the mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slotmesh.security.authorizer import TokenVerifier
from slotmesh.security.identity import Identity, Role, identity_of
from slotmesh.security.tokens.failures import BadToken

_UNKNOWN: Final = "401 Unauthorized"
_FORBIDDEN: Final = "403 Forbidden"
_NEEDED: Final = f"the role {Role.VIEWER} is needed"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to who may not see a page."""

    status: str
    text: str


@dataclass(frozen=True, slots=True)
class PageAccess:
    """Decides by the peer's certificate or token."""

    trust_domain: str
    tokens: TokenVerifier | None = None
    """None: no token is accepted."""

    def refusal(self, uris: Sequence[str], authorization: str) -> Refusal | None:
        """Why a page of viewers is not shown; None: it is. `uris`: of a certificate that was checked."""
        known: Identity | None
        if authorization:
            if (known := self._holder(authorization)) is None:
                return Refusal(_UNKNOWN, f"{_NEEDED}, and this token is not known here\n")
        else:
            known = identity_of(uris[0], self.trust_domain) if len(uris) == 1 else None
            if known is None:
                return Refusal(_UNKNOWN, f"{_NEEDED}: show a client certificate or a bearer token\n")
        if Role.VIEWER not in known.roles:
            return Refusal(_FORBIDDEN, f"{_NEEDED}, and {known.name} does not have it\n")
        return None

    def _holder(self, authorization: str) -> Identity | None:
        scheme, _, token = authorization.partition(" ")
        if self.tokens is None or scheme.lower() != "bearer":
            return None
        try:
            return self.tokens.identify(token.strip())
        except BadToken:
            return None
