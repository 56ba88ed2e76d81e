"""Tokens of an issuer: JWT, checked by PyJWT.

Invariants: the algorithm is one of the key's and of those that are allowed; issuer, audience, end and name are
required; roles of members of the mesh are never given; a claim of endpoints that is not understood limits to nothing
less than a refusal. Whatever arrives, the answer is an identity or BadToken.
Imports `cryptography`, by way of `jwt`: only where tokens of an issuer are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import jwt

from slotmesh.security.identity import Identity, Role
from slotmesh.security.tokens.document import is_list_of_endpoints
from slotmesh.security.tokens.failures import BadToken, TokenProblem
from slotmesh.security.tokens.holders import KINDS, kind_of, roles_of
from slotmesh.security.tokens.jwt_rules import MAX_LENGTH, JwtRules
from slotmesh.security.tokens.key_set import IssuerKey

_FORM: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", re.ASCII)
_SUBJECT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@:|+=-]{0,126}", re.ASCII)
"""Names as issuers give them. There is no / in it, so that the kind of an identity is what comes before the first."""
_MAX_ROLES: Final = 1000
_LATEST: Final = 253_402_300_799.0
"""The end of the year 9999, seconds since 1970."""
_PROBLEMS: Final = (
    (jwt.ExpiredSignatureError, TokenProblem.EXPIRED),
    (jwt.ImmatureSignatureError, TokenProblem.NOT_YET_VALID),
    ((jwt.InvalidIssuerError, jwt.InvalidAudienceError), TokenProblem.FOREIGN),
    ((jwt.InvalidSignatureError, jwt.InvalidAlgorithmError), TokenProblem.FORGED),
    (jwt.MissingRequiredClaimError, TokenProblem.CLAIMS),
)


def identify_jwt(token: str, keys: Mapping[str, IssuerKey], rules: JwtRules) -> tuple[Identity, str]:
    """Who holds the token, and the id of the key that verified it. `expires_at` of the identity has the leeway in it.

    Raises:
        BadToken: nobody who is known.
    """
    if len(token) > MAX_LENGTH or not _FORM.fullmatch(token):
        raise BadToken(TokenProblem.MALFORMED, f"not of the form of a JWT of at most {MAX_LENGTH} characters")
    try:
        kid, key = _key_of(jwt.get_unverified_header(token), keys)
        claims = jwt.decode(
            token,
            key.public,
            algorithms=list(key.algorithms),
            audience=rules.audience,
            issuer=rules.issuer,
            leeway=rules.leeway_s,
            options={"require": ["exp", "iss", "aud", "sub"]},
        )
        return _identity(claims, rules), kid
    except BadToken:
        raise
    except Exception as error:  # noqa: BLE001 - the library read what somebody sent: whatever it raises, it is no token
        problem = next((each for kind, each in _PROBLEMS if isinstance(error, kind)), TokenProblem.MALFORMED)
        # Its words may repeat what was sent.
        raise BadToken(problem, f"a JWT was refused: {type(error).__name__}") from None


def _key_of(header: Mapping[str, Any], keys: Mapping[str, IssuerKey]) -> tuple[str, IssuerKey]:
    if "crit" in header:
        raise BadToken(TokenProblem.MALFORMED, "a JWT has critical headers, of which none is understood")
    kid = header.get("kid")
    key = keys.get(kid) if isinstance(kid, str) else None
    if key is None or not isinstance(kid, str):
        raise BadToken(TokenProblem.UNKNOWN, "a JWT names no key (kid) of the file of keys")
    if header.get("alg") not in key.algorithms:
        raise BadToken(TokenProblem.FORGED, "a JWT is signed by an algorithm that its key is not for")
    return kid, key


def _identity(claims: Mapping[str, Any], rules: JwtRules) -> Identity:
    if claims["iss"] != rules.issuer:
        raise BadToken(TokenProblem.FOREIGN, "a JWT is of another issuer")
    subject = claims["sub"]
    if not isinstance(subject, str) or not _SUBJECT.fullmatch(subject):
        raise BadToken(
            TokenProblem.CLAIMS, "the subject of a JWT is no name: letters, digits and _.@:|+=-, 127 at most"
        )
    kind, roles = _roles(claims.get(rules.roles_claim), rules.roles_claim)
    endpoints = None
    if rules.endpoints_claim in claims:
        if not is_list_of_endpoints(claims[rules.endpoints_claim]):
            raise BadToken(TokenProblem.CLAIMS, f"the claim {rules.endpoints_claim} of a JWT is no list of endpoints")
        endpoints = frozenset(claims[rules.endpoints_claim])
    ends = claims["exp"]
    if isinstance(ends, bool) or not isinstance(ends, int | float):
        raise BadToken(TokenProblem.CLAIMS, "the claim exp of a JWT is no number")
    expires_at = min(ends, _LATEST) + rules.leeway_s
    return Identity(name=f"{kind}/{subject}", roles=roles, endpoints=endpoints, expires_at=expires_at)


def _roles(claim: object, name: str) -> tuple[str, frozenset[Role]]:
    """The kind of an identity, and its roles. Members' roles, and names of what else the issuer knows, give nothing."""
    if not isinstance(claim, list) or len(claim) > _MAX_ROLES:
        raise BadToken(TokenProblem.CLAIMS, f"a JWT has no list of roles as its claim {name}")
    roles = frozenset(role for role in KINDS if role.value in claim)
    kind = kind_of(roles)
    if kind is None:
        raise BadToken(TokenProblem.CLAIMS, f"the claim {name} of a JWT has none of the roles that tokens can give")
    return kind, roles | roles_of(kind)
