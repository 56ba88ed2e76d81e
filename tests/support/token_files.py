"""Files of static tokens for tests."""

from __future__ import annotations

import time
from pathlib import Path

from slotmesh.security.identity import Identity
from slotmesh.security.tokens.rules import BadToken, roles_of
from slotmesh.security.tokens.static_tokens import new_secret
from slotmesh.security.tokens.token_file import change_tokens, with_created, with_revoked
from slotmesh.security.tokens.verifier import Tokens


def created(path: Path, name: str = "client/alice", *, endpoints: set[str] | None = None, for_s: float = 60.0) -> str:
    """A new token in the file, which is made where there is none."""
    secret, token_id = new_secret()
    now = time.time()
    identity = Identity(
        name=name,
        roles=roles_of(name.partition("/")[0]),
        endpoints=None if endpoints is None else frozenset(endpoints),
        expires_at=float(int(now + for_s)),
    )
    change_tokens(path, lambda tokens: with_created(tokens, secret, token_id, identity, now), create=True)
    return secret


def revoked(path: Path, token: str) -> None:
    change_tokens(path, lambda tokens: with_revoked(tokens, [token.split("_")[1]], time.time()))


def accepts(tokens: Tokens, token: str) -> bool:
    """Whether somebody holds the token."""
    try:
        tokens.identify(token)
    except BadToken:
        return False
    return True
