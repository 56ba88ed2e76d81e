"""Which JWT are accepted: issuer, audience, algorithms, claims. Pure, and without `jwt`: settings are checked by it.

Source: JSON Web Token Best Current Practices, https://www.rfc-editor.org/rfc/rfc8725.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
