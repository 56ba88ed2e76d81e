"""Whom the certificate of a connection names, and whether the authorities of now still vouch for it.

Invariants: the handshake has checked the certificate's chain; here it is read, and checked again by each set of
authorities that there is while it is in use, and by what they have taken back: a connection is no older than the trust
in who has made it. One that names two identities, or none, or one of another trust domain, is nobody's.
Owner: the server's authorizer, on its event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from slotmesh.security.identity import Identity, identity_of

if TYPE_CHECKING:
    from cryptography import x509

    from slotmesh.security.tls.trust import TrustedAuthorities

Trust: TypeAlias = "Callable[[], TrustedAuthorities | None]"
"""Gives the authorities of now, the same object while nothing changes. None: what a handshake has checked holds."""
KEPT: Final = 1024
"""Certificates that are remembered, of all that have connected: those that were shown last."""
_CHAIN: Final = "x509_pem_cert_chain"
"""What the peer has sent beside its own certificate: those between that and an authority."""


class PeerCertificate:
    """One that names somebody."""

    __slots__ = ("_chain", "_checked_by", "_problem", "_trust", "identity")

    def __init__(self, identity: Identity, chain: list[x509.Certificate], trust: Trust) -> None:
        self.identity = identity
        self._chain = chain
        self._trust = trust
        self._checked_by: TrustedAuthorities | None = None
        self._problem: str | None = None

    def problem(self) -> str | None:
        """Why it would not be accepted again, its end aside; None where it would."""
        # Once for each set of authorities: a signature takes a hundred times as long as the rest of an rpc's look.
        if (authorities := self._trust()) is not self._checked_by:
            why = None if authorities is None else authorities.problem(self._chain)
            self._problem = None if why is None else f"the certificate of {self.identity.name} {why}"
            self._checked_by = authorities
        return self._problem


class PeerCertificates:
    """Those that have connected to a server, read once each."""

    def __init__(self, trust_domain: str, trust: Trust = lambda: None) -> None:
        self._trust_domain = trust_domain
        self._trust = trust
        self._known: OrderedDict[bytes, PeerCertificate | None] = OrderedDict()

    def credential_of(self, context: Any) -> PeerCertificate | None:
        """Who is at the other end of this rpc's connection; None where no certificate says so."""
        # By the certificate, not by the address of the peer: others may connect from that a moment later.
        shown = context.auth_context()
        if not (own := shown.get("x509_pem_cert")):
            return None
        pem = own[0]
        between = shown.get(_CHAIN)
        key = pem if not between else pem + between[0]
        try:
            found = self._known[key]
            self._known.move_to_end(key)
        except KeyError:
            if len(self._known) >= KEPT:
                self._known.popitem(last=False)
            found = self._known[key] = self._read(pem, between[0] if between else b"")
        return found

    def _read(self, pem: bytes, sent: bytes) -> PeerCertificate | None:
        from cryptography import x509  # noqa: PLC0415 - most of a second, for those who have certificates

        try:
            certificate = x509.load_pem_x509_certificate(pem)
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            uris = names.get_values_for_type(x509.UniformResourceIdentifier)
            between = [each for each in x509.load_pem_x509_certificates(sent) if each != certificate] if sent else []
        except Exception:  # noqa: BLE001 - what cannot be read, for whatever reason, names nobody
            return None
        identity = identity_of(uris[0], self._trust_domain) if len(uris) == 1 else None
        if identity is None:
            return None
        expiring = replace(identity, expires_at=certificate.not_valid_after_utc.timestamp())
        return PeerCertificate(expiring, [certificate, *between], self._trust)
