"""The rules of accepted tokens, and the reasons of refusals. Pure, and without `jwt`, as settings are checked with it.

Tokens name callers of the mesh, never its members. Reasons of refusals are for logs and metrics, never for the caller.
Source: JSON Web Token Best Current Practices, https://www.rfc-editor.org/rfc/rfc8725.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from slotmesh.security.identity import Role, identity_of

REFUSAL: Final = "the bearer token is not accepted"
"""The only message for callers, so that it does not help to guess tokens."""


class TokenProblem(StrEnum):
    """The reason of a refusal. The values are those of the metric."""

    MALFORMED = "malformed"
    """The form of no accepted kind of token."""
    UNKNOWN = "unknown"
    """No such static token, or the signing key is unknown."""
    REVOKED = "revoked"
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    FORGED = "forged"
    """The signature or its algorithm is invalid."""
    FOREIGN = "foreign"
    """Issued by another issuer, or for another audience."""
    CLAIMS = "claims"
    """Genuine, but without a usable name or a role of a caller."""


class BadToken(Exception):
    """A token that is not accepted. The message is the same for all; `reason` is for logs.

    Neither contains a secret: at most a token's id, which the file has in plain text.
    """

    def __init__(self, problem: TokenProblem, reason: str) -> None:
        super().__init__(REFUSAL)
        self.problem = problem
        self.reason = reason


KINDS: Final = {Role.INVOKER: "client", Role.VIEWER: "viewer", Role.OPERATOR: "operator"}
"""The roles that tokens can give, and the kind of identity with each role: `client/NAME` is an invoker."""


def is_holder_name(name: str) -> bool:
    """Whether a token can be issued for this name."""
    return identity_of(f"spiffe://mesh/client/{name}", "mesh") is not None


def roles_of(kind: str) -> frozenset[Role]:
    """The roles of a kind of identity: `operator` has all of them, as with a certificate. Empty for other kinds."""
    identity = identity_of(f"spiffe://mesh/{kind}/name", "mesh") if kind in KINDS.values() else None
    return frozenset() if identity is None else identity.roles


def kind_of(roles: Iterable[Role]) -> str | None:
    """The kind of identity with the strongest of these roles. None if there is no role of a caller."""
    held = set(roles)
    return next((KINDS[role] for role in (Role.OPERATOR, Role.INVOKER, Role.VIEWER) if role in held), None)


ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""The supported algorithms. All are asymmetric: the verifier cannot sign."""
DEFAULT_ALGORITHMS: Final = ("RS256", "PS256", "ES256", "EdDSA")
MAX_LEEWAY_S: Final = 300
MAX_LENGTH: Final = 8192
"""The limit of a token's length. All metadata of an rpc must fit into 16 KiB or less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtRules:
    """The requirements of a JWT."""

    issuer: str
    """The exact value of the claim `iss`."""
    audience: str
    """One of the values of the claim `aud`."""
    algorithms: tuple[str, ...] = DEFAULT_ALGORITHMS
    roles_claim: str = "slotmesh_roles"
    """A list with some of viewer, invoker and operator; other values are ignored."""
    endpoints_claim: str = "slotmesh_endpoints"
    """A list of endpoints to which an invoker is limited; without the claim there is no limit."""
    leeway_s: float = 30.0
    """The allowed difference of the clocks of the issuer and this machine."""

    def __post_init__(self) -> None:
        if problem := algorithms_problem(self.algorithms):
            raise ValueError(problem)
        if not self.issuer or not self.audience or not 0 <= self.leeway_s <= MAX_LEEWAY_S:
            raise ValueError(f"issuer and audience are needed, and a leeway of 0 to {MAX_LEEWAY_S} seconds")


def algorithms_problem(algorithms: tuple[str, ...]) -> str | None:
    """Why these algorithms cannot be used; None if they can."""
    for each in algorithms:
        if each.lower() == "none":
            return "none means that tokens are not signed: any client could make one"
        if each.upper().startswith("HS"):
            return f"{each} signs with the secret that it is checked with, and the file of keys has public ones"
        if each not in ALGORITHMS:
            return f"{each!r:.40} is not one of {', '.join(ALGORITHMS)}"
    return None if algorithms else f"at least one is needed, of {', '.join(ALGORITHMS)}"
