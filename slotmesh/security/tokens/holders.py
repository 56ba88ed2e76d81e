"""Whom a token may name: callers of the mesh, never its members. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from slotmesh.security.identity import Role, identity_of

KINDS: Final = {Role.INVOKER: "client", Role.VIEWER: "viewer", Role.OPERATOR: "operator"}
"""Roles that tokens can give, with the kind of identity that has the role: `client/NAME` is an invoker."""


def is_holder_name(name: str) -> bool:
    """Whether a token can be for somebody of this name."""
    return identity_of(f"spiffe://mesh/client/{name}", "mesh") is not None


def roles_of(kind: str) -> frozenset[Role]:
    """The roles of an identity of a kind: `operator` has all of them, as with a certificate. None for other kinds."""
    identity = identity_of(f"spiffe://mesh/{kind}/name", "mesh") if kind in KINDS.values() else None
    return frozenset() if identity is None else identity.roles


def kind_of(roles: Iterable[Role]) -> str | None:
    """The kind of identity of who has these roles: that of the strongest one. None where there is none of a caller."""
    held = set(roles)
    return next((KINDS[role] for role in (Role.OPERATOR, Role.INVOKER, Role.VIEWER) if role in held), None)
