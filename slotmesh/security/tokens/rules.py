"""Which JWT are accepted: issuer, audience, algorithms, claims. Pure, and without `jwt`: settings are checked by it.

Source: JSON Web Token Best Current Practices, https://www.rfc-editor.org/rfc/rfc8725.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from slotmesh.security.identity import Role, identity_of

# Tokens that are not accepted, and why: for the log and the metrics, never for who has shown one.

REFUSAL: Final = "the bearer token is not accepted"
"""All that a caller learns: whoever guesses tokens, or has found one, gets no help."""


class TokenProblem(StrEnum):
    """What is wrong with a token, as metrics have it."""

    MALFORMED = "malformed"
    """It has the form of no token that is accepted here."""
    UNKNOWN = "unknown"
    """No such static token, or it is signed with no key that is known."""
    REVOKED = "revoked"
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    FORGED = "forged"
    """Its signature, or the algorithm of it, is wrong."""
    FOREIGN = "foreign"
    """Of another issuer, or for another audience."""
    CLAIMS = "claims"
    """It is genuine, and says nothing that could be used: no name, no role of a caller."""


class BadToken(Exception):
    """A token that is not accepted. The message is the same for all; `reason` is for the log.

    Neither has any part of a secret: at most a token's id, which is in the file in plain text.
    """

    def __init__(self, problem: TokenProblem, reason: str) -> None:
        super().__init__(REFUSAL)
        self.problem = problem
        self.reason = reason


# Whom a token may name: callers of the mesh, never its members. Pure.

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


ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Those that can be allowed. With each of them who checks a signature cannot make one."""
DEFAULT_ALGORITHMS: Final = ("RS256", "PS256", "ES256", "EdDSA")
MAX_LEEWAY_S: Final = 300
MAX_LENGTH: Final = 8192
"""Of a token. All metadata of an rpc has to fit into 16 KiB or less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtRules:
    """What a token has to be."""

    issuer: str
    """The claim `iss`, letter by letter."""
    audience: str
    """One of the claim `aud`."""
    algorithms: tuple[str, ...] = DEFAULT_ALGORITHMS
    roles_claim: str = "slotmesh_roles"
    """A list with some of viewer, invoker and operator; what else it has gives nothing."""
    endpoints_claim: str = "slotmesh_endpoints"
    """A list with the endpoints that an invoker is limited to; where it is not there, to none."""
    leeway_s: float = 30.0
    """By how much the clocks of the issuer and of this machine may differ."""

    def __post_init__(self) -> None:
        if problem := algorithms_problem(self.algorithms):
            raise ValueError(problem)
        if not self.issuer or not self.audience or not 0 <= self.leeway_s <= MAX_LEEWAY_S:
            raise ValueError(f"issuer and audience are needed, and a leeway of 0 to {MAX_LEEWAY_S} seconds")


def algorithms_problem(algorithms: tuple[str, ...]) -> str | None:
    """Why these algorithms cannot be allowed; None where they can."""
    for each in algorithms:
        if each.lower() == "none":
            return "none means that tokens are not signed: anybody could make one"
        if each.upper().startswith("HS"):
            return f"{each} signs with the secret that it is checked with, and the file of keys has public ones"
        if each not in ALGORITHMS:
            return f"{each!r:.40} is not one of {', '.join(ALGORITHMS)}"
    return None if algorithms else f"at least one is needed, of {', '.join(ALGORITHMS)}"
