"""Whom the certificate of a connection names.

Invariants: the handshake has checked the certificate's chain; here it is read. One that names two identities, or none,
or one of another trust domain, is nobody's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from slotmesh.security.identity import Identity, identity_of

_KEPT: Final = 1024
"""Certificates that are remembered, of all that have connected."""


class PeerCertificates:
    """Those that have connected to a server, read once each."""

    def __init__(self, trust_domain: str) -> None:
        self._trust_domain = trust_domain
        self._identities: dict[bytes, Identity | None] = {}

    def identity_of(self, context: Any) -> Identity | None:
        """Who is at the other end of this rpc's connection; None where no certificate says so."""
        # By the certificate, not by the address of the peer: others may connect from that a moment later.
        pem = context.auth_context().get("x509_pem_cert")
        if not pem:
            return None
        try:
            return self._identities[pem[0]]
        except KeyError:
            if len(self._identities) >= _KEPT:
                self._identities.clear()
            identity = self._identities[pem[0]] = _read(pem[0], self._trust_domain)
            return identity


def _read(pem: bytes, trust_domain: str) -> Identity | None:
    from cryptography import x509  # noqa: PLC0415 - most of a second, for those who have certificates

    try:
        certificate = x509.load_pem_x509_certificate(pem)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except Exception:  # noqa: BLE001 - what cannot be read, for whatever reason, names nobody
        return None
    identity = identity_of(uris[0], trust_domain) if len(uris) == 1 else None
    return None if identity is None else replace(identity, expires_at=certificate.not_valid_after_utc.timestamp())
