"""Static tokens: their form, and what is kept of each. Pure, but for the chance that makes a new one.

A token is `smt_ID_SECRET`: a prefix by which scanners for secrets recognise it (`smt_[a-z0-9]{10}_[A-Za-z0-9]{43}`), an
id that may be shown, and 256 bits of chance. Only the SHA-256 of the whole token is kept: with that much chance in
what is hashed, nothing is gained by a slow hash.
"""

from __future__ import annotations

import hmac
import re
import secrets
import string
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Final

from slotmesh.security.identity import Identity
from slotmesh.security.tokens.failures import BadToken, TokenProblem

PREFIX: Final = "smt_"
FORM: Final = re.compile(r"smt_([a-z0-9]{10})_[A-Za-z0-9]{43}", re.ASCII)
ID_FORM: Final = re.compile(r"[a-z0-9]{10}", re.ASCII)
_ID_LETTERS: Final = string.ascii_lowercase + string.digits
_SECRET_LETTERS: Final = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticToken:
    """What is kept of a token."""

    id: str
    identity: Identity
    """Who holds it, and until when."""
    digest: bytes = field(repr=False)
    """SHA-256 of the token."""
    created_at: float
    """Seconds since 1970, as all times here."""
    revoked_at: float | None = None


def new_secret() -> tuple[str, str]:
    """A new token, and its id."""
    token_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(10))
    return f"{PREFIX}{token_id}_{''.join(secrets.choice(_SECRET_LETTERS) for _ in range(43))}", token_id


def digest_of(token: str) -> bytes:
    """What is kept of a token in place of it."""
    return sha256(token.encode()).digest()


@dataclass(frozen=True)
class StaticTokens:
    """Those of one file."""

    tokens: tuple[StaticToken, ...] = ()

    @cached_property
    def _by_digest(self) -> dict[bytes, StaticToken]:
        return {each.digest: each for each in self.tokens}

    def find(self, token: str, now: float) -> StaticToken:
        """What is kept of the token, which is accepted. `now`: seconds since 1970.

        Raises:
            BadToken: nobody.
        """
        if not FORM.fullmatch(token):
            raise BadToken(TokenProblem.MALFORMED, "not of the form of a static token")
        digest = digest_of(token)
        # Found by its hash, of which who guesses tokens cannot choose a part: the time of the look-up says nothing.
        found = self._by_digest.get(digest)
        if found is None or not hmac.compare_digest(found.digest, digest):
            raise BadToken(TokenProblem.UNKNOWN, "no such static token")
        if found.revoked_at is not None:
            raise BadToken(TokenProblem.REVOKED, f"the token {found.id} of {found.identity.name} is revoked")
        if found.identity.expires_at is not None and now >= found.identity.expires_at:
            raise BadToken(TokenProblem.EXPIRED, f"the token {found.id} of {found.identity.name} has expired")
        return found

    def has(self, accepted: StaticToken) -> bool:
        """Whether a token that was accepted still gives what it gave, its end aside."""
        found = self._by_digest.get(accepted.digest)
        return found is accepted or (
            found is not None and found.revoked_at is None and found.identity == accepted.identity
        )
