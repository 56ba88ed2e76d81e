"""Which certificates authorities vouch for: those that a handshake would accept by them, and no others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from slotmesh.security.tls.revocations import MOST_BETWEEN, TrustedAuthorities

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


class Issuing:
    """A certificate, with which others are issued."""

    def __init__(
        self, name: str, by: Issuing | None = None, *, key: Any = None, ends: datetime = NOW + DAY, **says: Any
    ) -> None:
        """`says`: `ca`, `path_length`, and `signs` of the key's usage; without `ca` nothing of the kind is in it."""
        self.key = key or ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = by or self
        builder = (
            x509.CertificateBuilder()
            .subject_name(self.name)
            .issuer_name(issuer.name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(NOW, ends) - DAY)
            .not_valid_after(ends)
        )
        if "ca" in says:
            constraints = x509.BasicConstraints(ca=says["ca"], path_length=says.get("path_length"))
            builder = builder.add_extension(constraints, critical=True)
        if "signs" in says:
            usage = dict.fromkeys(
                ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
                False,
            )
            rest = {"crl_sign": False, "encipher_only": False, "decipher_only": False}
            builder = builder.add_extension(x509.KeyUsage(**usage, key_cert_sign=says["signs"], **rest), critical=True)
        algorithm = None if isinstance(issuer.key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
        self.certificate = builder.sign(issuer.key, algorithm)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)


def vouched(chain: list[Issuing], *authorities: Issuing, now: datetime = NOW) -> bool:
    trusted = TrustedAuthorities([each.certificate for each in authorities])
    return trusted.vouch_for([each.certificate for each in chain], now)


@pytest.mark.parametrize(
    "key",
    [lambda: None, ed25519.Ed25519PrivateKey.generate, lambda: rsa.generate_private_key(65537, 2048)],
    ids=["ec", "ed25519", "rsa"],
)
def test_what_an_authority_has_issued(key: Any) -> None:
    root, other = Issuing("root", key=key(), ca=True, signs=True), Issuing("root", ca=True, signs=True)
    leaf = Issuing("leaf", root, ca=False)
    assert vouched([leaf], root)
    assert vouched([leaf], other, root), "both, while the mesh goes to another"
    assert not vouched([leaf], other), "of the same name"


def test_by_way_of_others_that_the_peer_has_sent() -> None:
    root = Issuing("root", ca=True)
    middle = Issuing("middle", root, ca=True)
    leaf = Issuing("leaf", middle, ca=False)
    assert vouched([leaf, middle], root)
    assert vouched([leaf], middle), "an authority need not be a root"
    assert not vouched([leaf], root)
    assert not vouched([leaf, middle], Issuing("root", ca=True))


def test_who_is_no_authority_vouches_for_nobody() -> None:
    root = Issuing("root", ca=True, path_length=0)
    kinds: tuple[dict[str, Any], ...] = ({"ca": False}, {}, {"ca": True, "signs": False})
    for says in kinds:
        middle = Issuing("middle", Issuing("other", ca=True), **says)
        assert not vouched([Issuing("leaf", middle, ca=False)], middle), says
    too_deep = Issuing("middle", root, ca=True)
    assert not vouched([Issuing("leaf", too_deep, ca=False), too_deep], root)
    assert vouched([Issuing("leaf", root, ca=False)], root)


def test_authorities_end() -> None:
    root = Issuing("root", ca=True, ends=NOW + DAY / 2)
    leaf = Issuing("leaf", root, ca=False)
    assert vouched([leaf], root)
    assert not vouched([leaf], root, now=NOW + DAY / 2)


def test_a_certificate_that_stands_there_itself() -> None:
    leaf = Issuing("leaf", Issuing("root", ca=True), ca=False)
    assert vouched([leaf], leaf)
    assert not vouched([], leaf)


def test_ways_are_bounded() -> None:
    chain = [Issuing("a0", ca=True)]
    for depth in range(MOST_BETWEEN + 1):
        chain.append(Issuing(f"a{depth + 1}", chain[-1], ca=True))
    root, *between = chain
    leaf = Issuing("leaf", between[-1], ca=False)
    assert not vouched([leaf, *reversed(between)], root)
    assert vouched([leaf, *reversed(between)], between[0])
    rings = [Issuing("ring", ca=True) for _ in range(50)]
    assert not vouched([Issuing("leaf", rings[0], ca=False), *rings], root)
