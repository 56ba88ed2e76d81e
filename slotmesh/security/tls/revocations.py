"""Lists of certificates that were taken back before they end (RFC 5280, section 5): what they name, and until when.

Invariants: nothing of a list goes unheeded: one that is changed, partly written, or says more than is understood here
is refused. A list counts for certificates of who has signed it alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from cryptography import x509

from slotmesh.security.tls.errors import BadTls

MOST_LISTS: Final = 16
"""In one file."""
_BLOCK: Final = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)
_BEGIN: Final = b"-----BEGIN "

Revoked: TypeAlias = tuple[bytes, int]
"""The name of who has issued a certificate, in DER form, and the certificate's serial number."""


@dataclass(frozen=True, slots=True)
class Revocations:
    """What the lists of one file say."""

    revoked: frozenset[Revoked] = frozenset()
    next_update: float | None = None
    """When the first of the lists should have been replaced by a newer one, seconds since 1970; None: never."""
    lists: int = 0
    """How many there are."""
    of_others: int = 0
    """Those of them whose authorities are not trusted here: they count for nothing."""

    def name(self, certificate: x509.Certificate) -> bool:
        """Whether one of them names this one."""
        return bool(self.revoked) and (certificate.issuer.public_bytes(), certificate.serial_number) in self.revoked


NOTHING_REVOKED: Final = Revocations()


def read_revocations(pem: bytes, authorities: Sequence[x509.Certificate]) -> Revocations:
    """What the lists in PEM form say, where these authorities are trusted; at least one list.

    Raises:
        BadTls: one cannot be understood, is not what its authority has signed, or is one of a kind that does not count
            alone.
    """
    blocks = _BLOCK.findall(pem)
    if not blocks or len(blocks) != pem.count(_BEGIN):
        raise BadTls("holds something else than whole lists of revoked certificates in PEM form")
    if len(blocks) > MOST_LISTS:
        raise BadTls(f"holds {len(blocks)} lists of revoked certificates; {MOST_LISTS} is the bound")
    revoked: set[Revoked] = set()
    ends: list[float] = []
    of_others = 0
    for block in blocks:
        found = _read(block)
        if not _is_signed_by_one(found, authorities):
            of_others += 1
            continue
        issuer = found.issuer.public_bytes()
        revoked.update((issuer, each.serial_number) for each in found)
        if found.next_update_utc is not None:
            ends.append(found.next_update_utc.timestamp())
    return Revocations(frozenset(revoked), min(ends, default=None), len(blocks), of_others)


def _read(block: bytes) -> x509.CertificateRevocationList:
    """Raises BadTls."""
    try:
        found = x509.load_pem_x509_crl(block)
        critical = [each.oid for each in found.extensions if each.critical]
        for entry in found:
            critical += [each.oid for each in entry.extensions if each.critical]
    except Exception:  # noqa: BLE001 - of a dozen kinds, which have nothing in common
        raise BadTls("holds a list of revoked certificates that cannot be understood") from None
    if critical:
        # Of deltas, and of lists that name certificates of others, among them.
        raise BadTls(
            f"holds a list of revoked certificates with the critical extension {critical[0].dotted_string}, which is "
            "not understood here: give whole lists, each of certificates of its own authority"
        )
    return found


def _is_signed_by_one(found: x509.CertificateRevocationList, authorities: Sequence[x509.Certificate]) -> bool:
    """False: it is the list of another authority.

    Raises:
        BadTls: it says that it is of one of these, and is not.
    """
    candidates = [each for each in authorities if each.subject == found.issuer and _may_be_of(found, each)]
    if any(_has_signed(each, found) for each in candidates):
        return True
    if candidates:
        raise BadTls("holds a list of revoked certificates that its authority has not signed: get it again")
    return False


def _may_be_of(found: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    """By the ids of their keys: another authority may have the same name, as the one before it."""
    try:
        signer = found.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
        own = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    except x509.ExtensionNotFound:
        return True
    return signer is None or signer == own


def _has_signed(authority: x509.Certificate, found: x509.CertificateRevocationList) -> bool:
    try:
        if not _may_sign(authority):
            return False
        return found.is_signature_valid(authority.public_key())  # type: ignore[arg-type]  # others raise TypeError
    except Exception:  # noqa: BLE001 - of several libraries' kinds: what cannot be checked was not signed
        return False


def _may_sign(authority: x509.Certificate) -> bool:
    try:
        return authority.extensions.get_extension_for_class(x509.KeyUsage).value.crl_sign
    except x509.ExtensionNotFound:
        return True
