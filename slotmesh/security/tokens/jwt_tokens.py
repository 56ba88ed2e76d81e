"""JWTs of a trusted issuer, verified by PyJWT, and the issuer's public keys from a JWKS file.

Invariants: the algorithm must be one of the key's and allowed; the header of a token alone never selects it. Issuer,
audience, expiry and name are required; roles of members are never given; an invalid claim of endpoints refuses the
token. Any token gives an identity or BadToken. Unusable keys are skipped, as RFC 7517 requires (sets have keys for
other purposes); a set without a usable key, or with a private or shared key, is refused.
Imports `cryptography` through `jwt`: import it only if an issuer is configured.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from slotmesh.security.identity import Identity, Role
from slotmesh.security.tokens.rules import KINDS, MAX_LENGTH, BadToken, JwtRules, TokenProblem, kind_of, roles_of
from slotmesh.security.tokens.static_tokens import is_list_of_endpoints

MAX_KEYS: Final = 100
MAX_KID: Final = 256
"""The limit of a key id, in characters."""
_MIN_RSA_BITS: Final = 2048
_MAX_RSA_BITS: Final = 8192
_OF_CURVES: Final = {"P-256": ("ES256",), "P-384": ("ES384",), "P-521": ("ES512",), "Ed25519": ("EdDSA",)}
_OF_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_PRIVATE: Final = ("d", "p", "q", "k")


class BadKeySet(ValueError):
    """An unusable key set; the message has the reason."""


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """One public key."""

    algorithms: tuple[str, ...]
    """At least one."""
    public: Any = field(repr=False, compare=False)
    """A key object of `cryptography`."""
    members: str = field(repr=False)
    """The key's own members, normalised; used to compare keys."""

    def is_same_as(self, other: IssuerKey | None) -> bool:
        """Whether the other key verifies the same tokens, whatever its other members are."""
        return other is self or (
            other is not None and (other.algorithms, other.public) == (self.algorithms, self.public)
        )


def parse_keys(content: bytes, allowed: tuple[str, ...]) -> Mapping[str, IssuerKey]:
    """The keys of a JWKS that can be used with an allowed algorithm, by their id.

    Raises:
        BadKeySet: it is invalid, or has no usable key.
    """
    try:
        document = json.loads(content.decode())
    except (ValueError, RecursionError):
        raise BadKeySet('is not JSON; expected a JWKS, {"keys": [...]}') from None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise BadKeySet('is no JWKS: expected {"keys": [...]}')
    if len(entries) > MAX_KEYS:
        raise BadKeySet(f"has {len(entries):,} keys; at most {MAX_KEYS} are used")
    keys: dict[str, IssuerKey] = {}
    unusable: list[str] = []
    for index, entry in enumerate(entries):
        if any(name in entry for name in _PRIVATE):
            raise BadKeySet(
                f"keys[{index}]: is a private or shared key, and anyone who reads it can make tokens: "
                "export the public keys only"
            )
        try:
            kid, key = _key(entry, allowed)
        except BadKeySet as problem:
            unusable.append(f"keys[{index}] {problem}")
            continue
        if kid in keys:
            raise BadKeySet(f"keys[{index}]: kid: is that of an earlier key, too")
        keys[kid] = key
    if not keys:
        raise BadKeySet(f"has no key that could be used: {'; '.join(unusable[:5]) or 'it is empty'}")
    return keys


def _key(entry: dict[str, Any], allowed: tuple[str, ...]) -> tuple[str, IssuerKey]:
    kid = entry.get("kid")
    if not isinstance(kid, str) or not 0 < len(kid) <= MAX_KID:
        raise BadKeySet(f"has no kid of 1 to {MAX_KID} characters")
    operations = entry.get("key_ops", ["verify"])
    if entry.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        raise BadKeySet("is not for signatures")
    algorithms = tuple(each for each in _algorithms(entry) if each in allowed)
    if not algorithms:
        raise BadKeySet(f"is for none of the algorithms that are allowed ({', '.join(allowed)})")
    try:
        public = jwt.PyJWK(entry, algorithm=algorithms[0]).key
    except Exception:  # noqa: BLE001 - it is a key, or it is none, whatever the library makes of what it read
        raise BadKeySet("could not be read") from None
    if isinstance(public, RSAPublicKey) and not _MIN_RSA_BITS <= public.key_size <= _MAX_RSA_BITS:
        raise BadKeySet(f"has {public.key_size} bits; {_MIN_RSA_BITS} to {_MAX_RSA_BITS} are needed")
    return kid, IssuerKey(algorithms, public, json.dumps(entry, sort_keys=True))


def _algorithms(entry: dict[str, Any]) -> tuple[str, ...]:
    """The algorithms of a key of this type; one, if the key names it."""
    match entry.get("kty"):
        case "RSA":
            fitting: tuple[str, ...] = _OF_RSA
        case "EC" | "OKP":
            curve = entry.get("crv")
            fitting = _OF_CURVES.get(curve, ()) if isinstance(curve, str) else ()
        case _:
            fitting = ()
    return tuple(each for each in fitting if each == entry.get("alg", each))


_FORM: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", re.ASCII)
_SUBJECT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@:|+=-]{0,126}", re.ASCII)
"""Subjects of issuers. Without `/`, so that the kind of an identity always ends at the first one."""
_MAX_ROLES: Final = 1000
_LATEST: Final = 253_402_300_799.0
"""The end of the year 9999, in seconds since 1970."""
_PROBLEMS: Final = (
    (jwt.ExpiredSignatureError, TokenProblem.EXPIRED),
    (jwt.ImmatureSignatureError, TokenProblem.NOT_YET_VALID),
    ((jwt.InvalidIssuerError, jwt.InvalidAudienceError), TokenProblem.FOREIGN),
    ((jwt.InvalidSignatureError, jwt.InvalidAlgorithmError), TokenProblem.FORGED),
    (jwt.MissingRequiredClaimError, TokenProblem.CLAIMS),
)


def identify_jwt(token: str, keys: Mapping[str, IssuerKey], rules: JwtRules) -> tuple[Identity, str]:
    """The identity of the holder, and the id of the verifying key. `expires_at` of the identity includes the leeway.

    Raises:
        BadToken: the token is not accepted.
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
    except Exception as error:  # noqa: BLE001 - PyJWT parses untrusted input: any exception refuses the token
        problem = next((each for kind, each in _PROBLEMS if isinstance(error, kind)), TokenProblem.MALFORMED)
        # PyJWT's message may repeat parts of the token.
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
    """The kind of an identity, and its roles. Roles of members, and unknown ones, are ignored."""
    if not isinstance(claim, list) or len(claim) > _MAX_ROLES:
        raise BadToken(TokenProblem.CLAIMS, f"a JWT has no list of roles as its claim {name}")
    roles = frozenset(role for role in KINDS if role.value in claim)
    kind = kind_of(roles)
    if kind is None:
        raise BadToken(TokenProblem.CLAIMS, f"the claim {name} of a JWT has none of the roles that tokens can give")
    return kind, roles | roles_of(kind)
