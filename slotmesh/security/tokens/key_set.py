"""The public keys of an issuer, of a JWKS file.

Invariants: a key is used for the algorithms that are its own and are allowed, and for no other: that a token names an
algorithm decides nothing. Keys that cannot be used are passed over, as RFC 7517 asks for (sets have keys for other
purposes); a set in which none is left, or which has a private or shared key, is refused.
Imports `cryptography`, by way of `jwt`: only where tokens of an issuer are accepted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

MAX_KEYS: Final = 100
MAX_KID: Final = 256
"""Characters of a key's id."""
_MIN_RSA_BITS: Final = 2048
_MAX_RSA_BITS: Final = 8192
_OF_CURVES: Final = {"P-256": ("ES256",), "P-384": ("ES384",), "P-521": ("ES512",), "Ed25519": ("EdDSA",)}
_OF_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_PRIVATE: Final = ("d", "p", "q", "k")


class BadKeySet(ValueError):
    """No set of keys that could be used; the message says why."""


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """One public key."""

    algorithms: tuple[str, ...]
    """Not empty."""
    public: Any = field(repr=False, compare=False)
    """Of `cryptography`."""
    members: str = field(repr=False)
    """The key as it was given: what two are compared by."""

    def is_same_as(self, other: IssuerKey | None) -> bool:
        """Whether the other verifies what this one does, whatever else is said of it."""
        return other is self or (
            other is not None and (other.algorithms, other.public) == (self.algorithms, self.public)
        )


def parse_keys(content: bytes, allowed: tuple[str, ...]) -> Mapping[str, IssuerKey]:
    """The keys of a JWKS by their id, for some of the algorithms that are allowed.

    Raises:
        BadKeySet: it is none, or has no key that could be used.
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
                f"keys[{index}]: is a private or shared key, and whoever reads it can make tokens: "
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
    """Those that a key of this type is for; one, where the key names it."""
    match entry.get("kty"):
        case "RSA":
            fitting: tuple[str, ...] = _OF_RSA
        case "EC" | "OKP":
            curve = entry.get("crv")
            fitting = _OF_CURVES.get(curve, ()) if isinstance(curve, str) else ()
        case _:
            fitting = ()
    return tuple(each for each in fitting if each == entry.get("alg", each))
