"""Certificate revocation lists (RFC 5280, section 5), and validation of peers against the present authorities.

Purpose: a handshake validates a certificate once, by the authorities of that moment, and without revocations. A
connection outlives both, so that its certificate is validated again here.
Invariants: an entry is never ignored: a list that is modified, truncated, or has unsupported critical extensions is
refused. A list applies only to certificates of its signer. What cannot be validated is not trusted. As in handshakes, a
certificate among the authorities is trusted directly, and intermediate certificates are those that the peer sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeAlias

from cryptography import x509

from slotmesh.security.tls.certificates import BadTls

MOST_LISTS: Final = 16
"""The limit of lists in one file."""
_BLOCK: Final = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)
_DASHES: Final = b"-----"

ListEntry: TypeAlias = tuple[bytes, int]
"""The issuer's name in DER form, and the serial number of the certificate."""


@dataclass(frozen=True, slots=True)
class Revocations:
    """The content of all lists in one file."""

    revoked: frozenset[ListEntry] = frozenset()
    next_update: float | None = None
    """The earliest time at which a newer list is due, seconds since 1970; None: never."""
    made_at: Mapping[bytes, float] = field(default_factory=dict)
    """When the newest list of each authority was made, seconds since 1970, by the authority's name in DER form."""
    unsigned: int = 0
    """The number of lists that no trusted authority has signed; they are ignored."""

    def names(self, certificate: x509.Certificate) -> bool:
        """Whether this certificate is revoked. Raises any error of a certificate whose issuer cannot be parsed."""
        return bool(self.revoked) and (certificate.issuer.public_bytes(), certificate.serial_number) in self.revoked

    def go_back_behind(self, before: Revocations, authorities: Sequence[x509.Certificate]) -> bool:
        """Whether one of these authorities has an older list here than in `before`, or none any more."""
        trusted = {each.subject.public_bytes() for each in authorities}
        return any(
            self.made_at.get(issuer, 0.0) < made_at for issuer, made_at in before.made_at.items() if issuer in trusted
        )


NOTHING_REVOKED: Final = Revocations()


def read_revocations(pem: bytes, authorities: Sequence[x509.Certificate]) -> Revocations:
    """The content of lists in PEM form, at least one, for these trusted authorities.

    Raises:
        BadTls: a list cannot be parsed, has an invalid signature of its authority, or is of an unsupported kind.
    """
    revoked: set[ListEntry] = set()
    ends: list[float] = []
    made_at: dict[bytes, float] = {}
    unsigned = 0
    for block in blocks_of(pem):
        found = _read(block)
        if (signer := _signer_of(found, authorities)) is None:
            unsigned += 1
            continue
        # The issuer's name as its certificates have it: a list may encode the same name differently.
        issuer = signer.subject.public_bytes()
        revoked.update((issuer, each) for each in found.serial_numbers)
        made_at[issuer] = max(found.made_at, made_at.get(issuer, 0.0))
        if found.next_update is not None:
            ends.append(found.next_update)
    return Revocations(frozenset(revoked), min(ends, default=None), made_at, unsigned)


def blocks_of(pem: bytes) -> list[bytes]:
    """Each list in PEM form; at least one. Other text between them, which openssl writes, is skipped.

    Raises:
        BadTls: there is none, there are too many, or the file has another PEM block.
    """
    blocks = _BLOCK.findall(pem)
    if not blocks or _DASHES in _BLOCK.sub(b"", pem):
        raise BadTls("holds something else than whole lists of revoked certificates in PEM form")
    if len(blocks) > MOST_LISTS:
        raise BadTls(f"holds {len(blocks)} lists of revoked certificates; {MOST_LISTS} is the bound")
    return blocks


@dataclass(frozen=True, slots=True)
class _List:
    """One list, parsed completely, so that errors occur only here."""

    crl: x509.CertificateRevocationList
    issuer: x509.Name
    key_id: bytes | None
    """The id of the signing key, if the list has it."""
    serial_numbers: frozenset[int]
    made_at: float
    next_update: float | None


def _read(block: bytes) -> _List:
    """Raises BadTls."""
    try:
        crl = x509.load_pem_x509_crl(block)
        critical = [each.oid for each in crl.extensions if each.critical]
        for entry in crl:
            critical += [each.oid for each in entry.extensions if each.critical]
        ends = crl.next_update_utc
        found = _List(
            crl,
            crl.issuer,
            _key_id_of(crl),
            frozenset(each.serial_number for each in crl),
            crl.last_update_utc.timestamp(),
            None if ends is None else ends.timestamp(),
        )
    except Exception:  # noqa: BLE001 - of a dozen kinds, which have nothing in common
        raise BadTls("holds a list of revoked certificates that cannot be understood") from None
    if critical:
        # For example of delta lists, and of indirect lists, which have certificates of other issuers.
        raise BadTls(
            f"holds a list of revoked certificates with the critical extension {critical[0].dotted_string}, which is "
            "not understood here: give whole lists, each of certificates of its own authority"
        )
    return found


def _key_id_of(crl: x509.CertificateRevocationList) -> bytes | None:
    try:
        return crl.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    except x509.ExtensionNotFound:
        return None


def _signer_of(found: _List, authorities: Sequence[x509.Certificate]) -> x509.Certificate | None:
    """The authority that signed the list; None: it is not one of these.

    Raises:
        BadTls: the list names one of these, which has not signed it.
    """
    candidates = [each for each in authorities if _may_be_of(found, each)]
    for each in candidates:
        if _has_signed(each, found):
            return each
    if candidates:
        raise BadTls("holds a list of revoked certificates that its authority has not signed: get it again")
    return None


def _may_be_of(found: _List, authority: x509.Certificate) -> bool:
    """Compares names and key ids: another authority, such as a predecessor, may have the same name."""
    try:
        if authority.subject != found.issuer:
            return False
        own = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    except x509.ExtensionNotFound:
        return True
    except Exception:  # noqa: BLE001 - of several libraries' kinds: what cannot be read is another's
        return False
    return found.key_id is None or found.key_id == own


def _has_signed(authority: x509.Certificate, found: _List) -> bool:
    try:
        if not _may_sign(authority):
            return False
        return found.crl.is_signature_valid(authority.public_key())  # type: ignore[arg-type]  # others raise TypeError
    except Exception:  # noqa: BLE001 - of several libraries' kinds: what cannot be checked was not signed
        return False


def _may_sign(authority: x509.Certificate) -> bool:
    try:
        return authority.extensions.get_extension_for_class(x509.KeyUsage).value.crl_sign
    except x509.ExtensionNotFound:
        return True


MOST_BETWEEN: Final = 4
"""The limit of intermediate certificates."""


class TrustedAuthorities:
    """The authorities of one file, with their revocations."""

    def __init__(self, authorities: Sequence[x509.Certificate], revocations: Revocations = NOTHING_REVOKED) -> None:
        self.authorities = [each for each in authorities if not revocations.names(each)]
        self.revocations = revocations

    def with_authorities(self, pem: bytes) -> TrustedAuthorities:
        """The authorities in PEM form, with the same revocations. Raises ValueError."""
        return TrustedAuthorities(x509.load_pem_x509_certificates(pem), self.revocations)

    def problem(self, chain: Sequence[x509.Certificate]) -> str | None:
        """Why the first certificate of the chain is not trusted, as a predicate; None if it is."""
        try:
            if any(map(self.revocations.names, chain)):
                return "was revoked"
            is_trusted = self.vouch_for(chain)
        except Exception:  # noqa: BLE001 - the peer has chosen what is in the chain: some names cannot be read
            return "cannot be checked: a name in what was sent with it cannot be read"
        return None if is_trusted else "is not signed by an authority that is trusted here now"

    def vouch_for(self, chain: Sequence[x509.Certificate], now: datetime | None = None) -> bool:
        """Whether an authority has issued the first certificate, directly or through the others of the chain."""
        now = datetime.now(UTC) if now is None else now
        return bool(chain) and self._reach(chain[0], chain[1:], 0, now)

    def _reach(self, subject: x509.Certificate, between: Sequence[x509.Certificate], depth: int, now: datetime) -> bool:
        """`depth`: the number of certificates from the leaf to this one, including this one."""
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
    """`below`: the number of intermediate certificates between the issuer and the leaf."""
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
        # X.509 version 1 certificates have no extensions that state their purpose.
        return issuer.version is x509.Version.v1
    if not basic.ca or (basic.path_length is not None and basic.path_length < below):
        return False
    try:
        return issuer.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    except x509.ExtensionNotFound:
        return True


def _is_valid(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc
