"""Which certificates the authorities of now vouch for: asked of peers that connected while there may have been others.

Purpose: a handshake checks a certificate once, by the authorities of its moment, and asks nobody what they have taken
back; a connection outlives both.
Invariants: what cannot be checked is not vouched for. As in handshakes, a certificate that stands among the authorities
is vouched for by that, and one between an authority and a leaf counts where the peer has sent it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from cryptography import x509

from slotmesh.security.tls.revocations import NOTHING_REVOKED, Revocations

MOST_BETWEEN: Final = 4
"""Certificates between an authority and a leaf."""


class TrustedAuthorities:
    """Those of one file, and what they have taken back."""

    def __init__(self, authorities: Sequence[x509.Certificate], revocations: Revocations = NOTHING_REVOKED) -> None:
        self.authorities = [each for each in authorities if not revocations.names(each)]
        self.revocations = revocations

    def with_authorities(self, pem: bytes) -> TrustedAuthorities:
        """Others, in PEM form, of whom the same is taken back. Raises ValueError."""
        return TrustedAuthorities(x509.load_pem_x509_certificates(pem), self.revocations)

    def problem(self, chain: Sequence[x509.Certificate]) -> str | None:
        """Why they do not stand for the first of the chain, a predicate; None where they do."""
        try:
            if any(map(self.revocations.names, chain)):
                return "was revoked"
            is_trusted = self.vouch_for(chain)
        except Exception:  # noqa: BLE001 - the peer has chosen what is in the chain: some names cannot be read
            return "cannot be checked: a name in what was sent with it cannot be read"
        return None if is_trusted else "is not signed by an authority that is trusted here now"

    def vouch_for(self, chain: Sequence[x509.Certificate], now: datetime | None = None) -> bool:
        """Whether one of them has issued the first of the chain, directly or by way of the others in it."""
        now = datetime.now(UTC) if now is None else now
        return bool(chain) and self._reach(chain[0], chain[1:], 0, now)

    def _reach(self, subject: x509.Certificate, between: Sequence[x509.Certificate], depth: int, now: datetime) -> bool:
        """`depth`: how many certificates stand between this one and the leaf, itself counted."""
        if any(_is_valid(each, now) and each == subject for each in self.authorities):
            return True
        if any(_has_issued(each, subject, depth, now) for each in self.authorities):
            return True
        return depth < MOST_BETWEEN and any(
            _has_issued(each, subject, depth, now)
            and self._reach(each, [it for it in between if it is not each], depth + 1, now)
            for each in between[:MOST_BETWEEN]
        )


def _has_issued(issuer: x509.Certificate, subject: x509.Certificate, below: int, now: datetime) -> bool:
    """`below`: how many certificates of authorities follow the issuer's on the way to the leaf."""
    try:
        if issuer.subject != subject.issuer or not _is_valid(issuer, now):
            return False
        if not _may_issue(issuer, below):
            return False
        subject.verify_directly_issued_by(issuer)
    except Exception:  # noqa: BLE001 - of several libraries' kinds: what cannot be checked is not vouched for
        return False
    return True


def _may_issue(issuer: x509.Certificate, below: int) -> bool:
    try:
        basic = issuer.extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        # Certificates of the first version say nothing of what they are for.
        return issuer.version is x509.Version.v1
    if not basic.ca or (basic.path_length is not None and basic.path_length < below):
        return False
    try:
        return issuer.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    except x509.ExtensionNotFound:
        return True


def _is_valid(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc
