"""Revokes certificates: adds them to the list that an authority signs.

Invariants: a revocation is permanent, also with concurrent commands, and if the list is lost: the record of issued
certificates has it too. The file is replaced atomically, and lists of other authorities in it are kept.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from msgspec import structs

from slotmesh.security.secret_files import MAX_BYTES
from slotmesh.security.tls.authority import Authority, replace
from slotmesh.security.tls.certificates import BadTls, Issued
from slotmesh.security.tls.files import read_pem
from slotmesh.security.tls.revocations import blocks_of, read_revocations


@dataclass(frozen=True, slots=True)
class Revoking:
    """The result of a revocation."""

    added: frozenset[int]
    """Serial numbers of the newly revoked certificates."""
    total: int
    """The number of certificates of this authority on the list."""


def revoke(authority: Authority, path: Path, entries: Sequence[Issued], now: datetime | None = None) -> Revoking:
    """Writes the list in `path` again, with these certificates added.

    The list is valid until the authority expires, and need not be renewed before.

    Raises:
        BadTls: the file cannot be read or written, or would exceed the size that services read.
    """
    now = datetime.now(UTC) if now is None else now
    ends = authority.certificate.not_valid_after_utc
    if now >= ends:
        raise BadTls(f"the authority has ended on {ends:%Y-%m-%d}, and with it all that it has issued")
    with _alone(path.parent):
        own, others = _lists_in(path, authority)
        known = {entry.serial_number: entry for each in own for entry in each}
        for each in authority.issued.revoked(now):
            known.setdefault(each.serial_number, _entry_of(each, each.revoked or now))
        added = {each.serial_number: each for each in entries if each.serial_number not in known}
        authority.issued.add(*(structs.replace(each, revoked=now) for each in added.values()))
        known |= {serial: _entry_of(each, now) for serial, each in added.items()}
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(authority.certificate.subject)
            .last_update(max([now, *(each.last_update_utc for each in own)]))
            .next_update(ends)
            .add_extension(x509.CRLNumber(max([int(now.timestamp()), *(_number_of(it) + 1 for it in own)])), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False
            )
        )
        for entry in known.values():
            builder = builder.add_revoked_certificate(entry)
        pem = builder.sign(authority.key, hashes.SHA256()).public_bytes(Encoding.PEM)
        content = b"\n".join([pem, *others])
        if len(content) > MAX_BYTES:
            raise BadTls(
                f"{path}: would have {len(content)} bytes, and services read {MAX_BYTES}: change the authority"
            )
        replace(path, content, mode=0o644)
    return Revoking(frozenset(added), len(known))


def _entry_of(each: Issued, when: datetime) -> x509.RevokedCertificate:
    return x509.RevokedCertificateBuilder().serial_number(each.serial_number).revocation_date(when).build()


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Holds the directory's lock against concurrent commands. Raises BadTls."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise BadTls(f"{directory}: cannot be opened: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _lists_in(path: Path, authority: Authority) -> tuple[list[x509.CertificateRevocationList], list[bytes]]:
    """The lists of this authority, and those of others, in PEM form. Raises BadTls."""
    own: list[x509.CertificateRevocationList] = []
    others: list[bytes] = []
    if not path.exists():
        return own, others
    try:
        for block in blocks_of(read_pem(path, "list of revoked certificates")):
            if read_revocations(block, [authority.certificate]).unsigned:
                others.append(block)
            else:
                own.append(x509.load_pem_x509_crl(block))
    except BadTls as error:
        text = str(error).removeprefix(f"{path}: ")
        raise BadTls(f"{path}: {text}; move it away, and it is made again of {authority.issued.path}") from None
    return own, others


def _number_of(found: x509.CertificateRevocationList) -> int:
    try:
        return found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except x509.ExtensionNotFound:
        return 0
