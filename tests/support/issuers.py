"""An issuer of JWT for tests: keys of its own, the JWKS file that servers have, and tokens with any claims."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from jwt.algorithms import ECAlgorithm, OKPAlgorithm

from slotmesh.security.tokens.rules import JwtRules

ISSUER: Final = "https://issuer.test"
AUDIENCE: Final = "slotmesh"
RULES: Final = JwtRules(issuer=ISSUER, audience=AUDIENCE)


class Issuer:
    """Signs by ES256 with the key `one`, unless asked for another; `two` is an Ed25519 key."""

    def __init__(self, directory: Path) -> None:
        """Writes `directory/jwks.json`."""
        self.jwks = directory / "jwks.json"
        self.keys: dict[str, Any] = {
            "one": ec.generate_private_key(ec.SECP256R1()),
            "two": ed25519.Ed25519PrivateKey.generate(),
        }
        self.publish("one", "two")

    def publish(self, *kids: str) -> None:
        """These keys are in the file from now on, and no others."""
        self.write({"keys": [self.public(kid) for kid in kids]})

    def write(self, document: object) -> None:
        fresh = self.jwks.with_suffix(".new")
        fresh.write_text(json.dumps(document))
        fresh.chmod(0o644)
        fresh.replace(self.jwks)

    def public(self, kid: str) -> dict[str, Any]:
        key = self.keys[kid].public_key()
        algorithm = ECAlgorithm if isinstance(key, ec.EllipticCurvePublicKey) else OKPAlgorithm
        return {**algorithm.to_jwk(key, as_dict=True), "kid": kid, "use": "sig"}

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Those of a client `alice`, for a minute. A change to None leaves the claim out."""
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "alice",
            "exp": int(time.time()) + 60,
            "slotmesh_roles": ["invoker"],
            **changes,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, kid: str = "one", algorithm: str = "ES256", headers: Any = None, **changes: Any) -> str:
        return jwt.encode(
            self.claims(**changes), self.keys[kid], algorithm=algorithm, headers={"kid": kid, **(headers or {})}
        )
