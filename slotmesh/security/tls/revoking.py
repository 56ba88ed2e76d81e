"""Taking certificates back: the list that an authority signs, with what it has taken back before.

Invariants: what was taken back stays so; a list is replaced in one step, by a newer one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from slotmesh.security.tls.authority import Authority, replace
from slotmesh.security.tls.errors import BadTls
from slotmesh.security.tls.files import read_pem
from slotmesh.security.tls.revocations import read_revocations


def revoke(authority: Authority, path: Path, serial_numbers: Sequence[int], now: datetime | None = None) -> int:
    """Writes the list in `path` again, with these certificates in it; returns how many it names that it did not before.

    It holds until the authority ends: nothing has to write it again meanwhile.

    Raises:
        BadTls: the list that is there is not one of this authority, or cannot be read or written.
    """
    now = datetime.now(UTC) if now is None else now
    ends = authority.certificate.not_valid_after_utc
    if now >= ends:
        raise BadTls(f"the authority has ended on {ends:%Y-%m-%d}, and with it all that it has issued")
    before = _list_in(path, authority)
    known = {} if before is None else {each.serial_number: each for each in before}
    added = [each for each in dict.fromkeys(serial_numbers) if each not in known]
    number = 1 if before is None else _number_of(before) + 1
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(now)
        .next_update(ends)
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    for entry in known.values():
        builder = builder.add_revoked_certificate(entry)
    for serial in added:
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        builder = builder.add_revoked_certificate(entry)
    signed = builder.sign(authority.key, hashes.SHA256())
    replace(path, signed.public_bytes(Encoding.PEM), mode=0o644)
    return len(added)


def _list_in(path: Path, authority: Authority) -> x509.CertificateRevocationList | None:
    """None where there is none. Raises BadTls."""
    if not path.exists():
        return None
    pem = read_pem(path, "list of revoked certificates")
    try:
        found = read_revocations(pem, [authority.certificate])
    except BadTls as error:
        raise BadTls(f"{path}: {error}") from None
    if found.of_others or found.lists > 1:
        raise BadTls(f"{path}: is not the list of this authority alone; move it away")
    return x509.load_pem_x509_crl(pem)


def _number_of(found: x509.CertificateRevocationList) -> int:
    try:
        return found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except x509.ExtensionNotFound:
        return 0
