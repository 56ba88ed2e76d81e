"""Where certificates and keys are, and what they hold once they were read and checked.

Invariants: material is whole: the key belongs to the certificate, both could be parsed, neither has expired. Private
keys are in no message, log or repr.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from cryptography.x509 import load_pem_x509_certificates

from slotmesh.security.secret_files import FileGuard, FileStamp, UnusableFile, pem_blocks, read_guarded, stamp
from slotmesh.security.tls.certificates import (
    BadLists,
    BadTls,
    Certificate,
    UnmatchedPair,
    public_key_of,
    read_certificates,
)
from slotmesh.security.tls.revocations import ListEntry, TrustedAuthorities, read_revocations
from slotmesh.security.tls_paths import CA_FILE, CRL_FILE

ROTATE: Final = "`slotmesh certs rotate` issues it again"

ReadT = TypeVar("ReadT")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files. `cert` and `key` are None for who shows no certificate: a client with a token."""

    ca: Path
    """Certificates of the authorities that are trusted."""
    cert: Path | None = None
    """The certificate, and those between it and the authority."""
    key: Path | None = None
    crl: Path | None = None
    """Lists of certificates that the authorities have taken back; there need not be such a file."""

    def stamps(self) -> tuple[FileStamp | None, ...]:
        """Changes whenever a file does. Raises OSError."""
        return (*(stamp(path) for path in (self.ca, self.cert, self.key) if path is not None), self._stamp_of_lists())

    def read(self, now: float | None = None, *, lists_of: TlsMaterial | None = None) -> TlsMaterial:
        """What the files hold. `now` is the time in seconds since 1970; the clock's where it is None.

        `lists_of`: what it holds to be revoked counts, and not what the file says.

        Raises:
            BadLists: the lists of revoked certificates cannot be used.
            UnmatchedPair: the key is not that of the certificate.
            BadTls: a file is missing, cannot be read, is not valid now, or does not go with the others.
        """
        now = time.time() if now is None else now
        ca = read_pem(self.ca, "certificates of authorities (--tls-ca)")
        authorities = _of(self.ca, lambda: read_certificates(ca))
        crl, trust = self._trust(ca) if lists_of is None else (lists_of.crl_pem, lists_of.trust.with_authorities(ca))
        usable = [each for each in authorities if each.time_problem(now) is None]
        if not usable:
            problem = authorities[0].time_problem(now)
            raise BadTls(f"{self.ca}: the certificate of the authority {problem}; without it nobody can be trusted")
        domains = {domain for each in usable if (domain := each.trust_domain)}
        of_authorities = domains.pop() if len(domains) == 1 else ""
        ca_not_after = min(each.not_after for each in usable)
        if self.cert is None and self.key is None:
            return TlsMaterial(
                ca_pem=ca, crl_pem=crl, trust=trust, trust_domain=of_authorities, ca_not_after=ca_not_after
            )
        if self.cert is None or self.key is None:
            given, missing = ("key", "--tls-cert") if self.cert is None else ("certificate", "--tls-key")
            raise BadTls(f"{self.cert or self.key}: the {given} is of no use alone; give {missing} as well")
        cert = read_pem(self.cert, "certificate (--tls-cert)")
        key = read_pem(self.key, "key (--tls-key)", FileGuard.SECRET)
        leaf = _of(self.cert, lambda: read_certificates(cert))[0]
        if _of(self.key, lambda: public_key_of(key)) != leaf.public_key:
            raise UnmatchedPair(f"{self.key}: is not the key of the certificate in {self.cert}")
        if problem := leaf.time_problem(now):
            raise BadTls(f"{self.cert}: the certificate {problem}; {ROTATE}")
        if len(leaf.uris) > 1:
            raise BadTls(f"{self.cert}: names {len(leaf.uris)} identities, {', '.join(leaf.uris)}; it may name one")
        return TlsMaterial(
            ca_pem=ca,
            crl_pem=crl,
            trust=trust,
            cert_pem=cert,
            key_pem=key,
            leaf=leaf,
            trust_domain=leaf.trust_domain or of_authorities,
            ca_not_after=ca_not_after,
        )

    def _trust(self, ca_pem: bytes) -> tuple[bytes | None, TrustedAuthorities]:
        """The lists of revoked certificates, None where there is no such file; and whom they leave. Raises BadLists."""
        authorities = load_pem_x509_certificates(ca_pem)
        if self.crl is None or not os.path.lexists(self.crl):
            return None, TrustedAuthorities(authorities)
        try:
            crl_pem = read_pem(self.crl, "list of revoked certificates (--tls-crl)")
        except BadTls as error:
            raise BadLists(str(error)) from None
        try:
            return crl_pem, TrustedAuthorities(authorities, read_revocations(crl_pem, authorities))
        except BadTls as error:
            raise BadLists(f"{self.crl}: {error}") from None

    def _stamp_of_lists(self) -> FileStamp | None:
        if self.crl is None or not os.path.lexists(self.crl):
            return None
        return stamp(self.crl)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsMaterial:
    """What a connection is made with."""

    ca_pem: bytes = field(repr=False)
    crl_pem: bytes | None = field(default=None, repr=False)
    """Lists of revoked certificates; None where there are none."""
    trust: TrustedAuthorities = field(compare=False, repr=False)
    """Whom these stand for."""
    cert_pem: bytes | None = field(default=None, repr=False)
    key_pem: bytes | None = field(default=None, repr=False)
    leaf: Certificate | None = None
    """What the certificate says; None where there is none."""
    trust_domain: str = ""
    """That of the certificate, else that of the authority; empty where neither names one."""
    ca_not_after: float
    """When the first of the authorities ends that have not ended, seconds since 1970."""

    @property
    def uri(self) -> str:
        """The identity that the certificate names; empty where there is none."""
        return self.leaf.uris[0] if self.leaf is not None and self.leaf.uris else ""

    @property
    def not_after(self) -> float | None:
        """When the certificate ends, seconds since 1970."""
        return None if self.leaf is None else self.leaf.not_after

    def __repr__(self) -> str:
        return f"<TLS material of {self.uri or 'nobody'}>"


def read_pem(path: Path, what: str, guard: FileGuard = FileGuard.PUBLIC) -> bytes:
    """The PEM blocks of the file, without what stands around them. `what` is what messages call it.

    Raises:
        BadTls: there is none, it cannot be read, or others can do too much with it.
    """
    try:
        return pem_blocks(read_guarded(path, what, guard))
    except FileNotFoundError:
        raise BadTls(f"{path}: the {what} cannot be read: there is no such file") from None
    except UnusableFile as error:
        raise BadTls(str(error)) from None


def _of(path: Path, read: Callable[[], ReadT]) -> ReadT:
    try:
        return read()
    except BadTls as error:
        raise BadTls(f"{path}: {error}") from None


# The certificates of a directory, as `slotmesh certs` makes it: ca.crt, and NAME.crt and NAME.key of each identity.
#
# Beside them is ca.crl, where the authority has taken some back.

CA_KEY_FILE: Final = "ca.key"
SOON: Final = 1 / 5
"""Of a certificate's lifetime: with less than this left, it is time to issue it again."""


@dataclass(frozen=True, slots=True)
class HeldCertificate:
    """One file of a directory."""

    path: Path
    certificate: Certificate | None
    """The first one in the file; None where it cannot be read."""
    problem: str = ""
    """Why it cannot be read."""
    is_revoked: bool = False

    @property
    def name(self) -> str:
        """Of the file, without `.crt`."""
        return self.path.name.removesuffix(".crt")

    @property
    def is_authority(self) -> bool:
        """Whether it is that of the authority."""
        return self.path.name == CA_FILE

    def state(self, now: float) -> str:
        """`ok`, `ends-soon`, `expired`, `revoked`, `not-valid-yet` or `unreadable` at `now`, seconds since 1970."""
        if (held := self.certificate) is None:
            return "unreadable"
        if self.is_revoked:
            return "revoked"
        if now >= held.not_after:
            return "expired"
        if now < held.not_before:
            return "not-valid-yet"
        return "ends-soon" if held.not_after - now < SOON * (held.not_after - held.not_before) else "ok"


def certificates_in(directory: Path, revoked: frozenset[ListEntry] = frozenset()) -> list[HeldCertificate]:
    """All of them, the authority first. `revoked`: as `revoked_in` says.

    Raises:
        BadTls: there is no such directory, or nothing in it.
    """
    try:
        paths = sorted(each for each in directory.iterdir() if each.suffix == ".crt" and not each.name.startswith("."))
    except OSError as error:
        raise BadTls(f"{directory}: cannot be read: {error.strerror}; `slotmesh certs init` makes one") from None
    if not paths:
        raise BadTls(f"{directory}: has no certificates; `slotmesh certs init` makes some")
    return [held_in(each, revoked) for each in sorted(paths, key=lambda path: path.name != CA_FILE)]


def revoked_in(directory: Path) -> frozenset[ListEntry]:
    """What its list has taken back; nothing where there is none.

    Raises:
        BadTls: the list cannot be used.
    """
    if not (path := directory / CRL_FILE).exists():
        return frozenset()
    ca_pem, crl_pem = read_pem(directory / CA_FILE, "certificates of authorities"), read_pem(path, "list of revoked")
    try:
        return read_revocations(crl_pem, load_pem_x509_certificates(ca_pem)).revoked
    except (BadTls, ValueError) as error:
        raise BadTls(f"{path}: {error}") from None


def held_in(path: Path, revoked: frozenset[ListEntry] = frozenset()) -> HeldCertificate:
    """What is in one file."""
    try:
        found = read_certificates(read_pem(path, "certificate"))[0]
        return HeldCertificate(path, found, is_revoked=(found.issuer, found.serial_number) in revoked)
    except BadTls as error:
        return HeldCertificate(path, None, str(error).removeprefix(f"{path}: "))
