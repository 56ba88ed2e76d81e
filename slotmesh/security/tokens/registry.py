"""How a file of tokens changes: created, revoked, forgotten. Pure.

Invariants: whoever was revoked stays in the file for a while, so that one can see who it was; to be forgotten changes
nothing for who shows such a token: it is refused all the same.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from slotmesh.security.identity import Identity
from slotmesh.security.tokens.document import MAX_TOKENS
from slotmesh.security.tokens.static_tokens import StaticToken, StaticTokens, digest_of

REMEMBERED_S: Final = 30 * 86_400
"""How long tokens that have expired or were revoked stay in the file."""


class NoSuchChange(ValueError):
    """The file of tokens cannot be changed so; the message says why."""


def state_of(token: StaticToken, now: float) -> str:
    """`valid`, `revoked` or `expired`."""
    if token.revoked_at is not None:
        return "revoked"
    expires_at = token.identity.expires_at
    return "expired" if expires_at is not None and now >= expires_at else "valid"


def with_created(tokens: StaticTokens, token: str, token_id: str, identity: Identity, now: float) -> StaticTokens:
    """And one more token.

    Raises:
        NoSuchChange: there is no room for it.
    """
    kept = _remembered(tokens, now)
    if len(kept) >= MAX_TOKENS:
        raise NoSuchChange(
            f"has {MAX_TOKENS:,} tokens already, which is the bound: use another file, or JWT of an issuer"
        )
    new = StaticToken(id=token_id, identity=identity, digest=digest_of(token), created_at=float(int(now)))
    return StaticTokens((*kept, new))


def with_revoked(tokens: StaticTokens, ids: Collection[str], now: float) -> StaticTokens:
    """The same tokens, these of them revoked; those that were so before stay as they are.

    Raises:
        NoSuchChange: one of them is not there.
    """
    known = {each.id for each in tokens.tokens}
    if missing := [each for each in ids if each not in known]:
        raise NoSuchChange(
            f"there is no token {missing[0]}, nothing was revoked; `slotmesh token list` shows those there are"
        )
    revoked = tuple(
        replace(each, revoked_at=float(int(now))) if each.id in ids and each.revoked_at is None else each
        for each in tokens.tokens
    )
    return StaticTokens(_remembered(StaticTokens(revoked), now))


def _remembered(tokens: StaticTokens, now: float) -> tuple[StaticToken, ...]:
    return tuple(each for each in tokens.tokens if now - _ended_at(each, now) <= REMEMBERED_S)


def _ended_at(token: StaticToken, now: float) -> float:
    """When a token stopped to be accepted; now, where it is."""
    ends = [at for at in (token.revoked_at, token.identity.expires_at) if at is not None]
    return min(now, *ends) if ends else now
