"""The files of certificates and keys, their validated content, and the directories that `slotmesh certs` makes.

Such a directory has ca.crt, NAME.crt and NAME.key of each identity, and ca.crl if certificates were revoked.

Invariants: material is complete: the key belongs to the certificate, both are parsed, neither has expired. Private keys
appear in no message, log or repr.
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
    """Paths of PEM files. `cert` and `key` are None for a process without a certificate: a client with a token."""

    ca: Path
    """The certificates of the trusted authorities."""
    cert: Path | None = None
    """The certificate, followed by the intermediate ones."""
    key: Path | None = None
    crl: Path | None = None
    """The revocation lists of the authorities; the file is optional."""

    def stamps(self) -> tuple[FileStamp | None, ...]:
        """Changes whenever one of the files does. Raises OSError."""
        return (*(stamp(path) for path in (self.ca, self.cert, self.key) if path is not None), self._stamp_of_lists())

    def read(self, now: float | None = None, *, lists_of: TlsMaterial | None = None) -> TlsMaterial:
        """The validated content of the files. `now`: seconds since 1970; None: the present time.

        `lists_of`: material whose revocation lists are used in place of the file's.

        Raises:
            BadLists: the revocation lists cannot be used.
            UnmatchedPair: the key does not belong to the certificate.
            BadTls: a file is missing, unreadable, not valid now, or does not match the others.
        """
        now = time.time() if now is None else now
        ca = read_pem(self.ca, "certificates of authorities (--tls-ca)")
        authorities = _of(self.ca, lambda: read_certificates(ca))
        crl, trust = self._trust(ca) if lists_of is None else (lists_of.crl_pem, lists_of.trust.with_authorities(ca))
        usable = [each for each in authorities if each.time_problem(now) is None]
        if not usable:
            problem = authorities[0].time_problem(now)
            raise BadTls(f"{self.ca}: the certificate of the authority {problem}; without it no peer can be trusted")
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
        """The revocation lists, None if there is no file; and the authorities with these. Raises BadLists."""
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
    """The validated content of the files of one identity."""

    ca_pem: bytes = field(repr=False)
    crl_pem: bytes | None = field(default=None, repr=False)
    """The revocation lists; None if there is no file."""
    trust: TrustedAuthorities = field(compare=False, repr=False)
    """The authorities, with their revocations."""
    cert_pem: bytes | None = field(default=None, repr=False)
    key_pem: bytes | None = field(default=None, repr=False)
    leaf: Certificate | None = None
    """The parsed certificate; None if there is none."""
    trust_domain: str = ""
    """The trust domain of the certificate, or else of the authority; empty if neither has one."""
    ca_not_after: float
    """The earliest expiry of the valid authorities, seconds since 1970."""

    @property
    def uri(self) -> str:
        """The URI of the certificate's identity; empty if there is none."""
        return self.leaf.uris[0] if self.leaf is not None and self.leaf.uris else ""

    @property
    def not_after(self) -> float | None:
        """When the certificate expires, seconds since 1970."""
        return None if self.leaf is None else self.leaf.not_after

    def __repr__(self) -> str:
        return f"<TLS material of {self.uri or 'no identity'}>"


def read_pem(path: Path, what: str, guard: FileGuard = FileGuard.PUBLIC) -> bytes:
    """The PEM blocks of the file, without other text. `what` names the file in messages.

    Raises:
        BadTls: it is missing, unreadable, or its permissions are too wide.
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


CA_KEY_FILE: Final = "ca.key"
SOON: Final = 1 / 5
"""The share of a certificate's lifetime below which it should be renewed."""


@dataclass(frozen=True, slots=True)
class HeldCertificate:
    """One certificate file of a directory."""

    path: Path
    certificate: Certificate | None
    """The first one in the file; None if it is unreadable."""
    problem: str = ""
    """Why it is unreadable."""
    is_revoked: bool = False

    @property
    def name(self) -> str:
        """The name of the file, without `.crt`."""
        return self.path.name.removesuffix(".crt")

    @property
    def is_authority(self) -> bool:
        """Whether it is the certificate of the authority."""
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
    """All certificates of the directory, the authority first. `revoked`: from `revoked_in`.

    Raises:
        BadTls: the directory is missing or empty.
    """
    try:
        paths = sorted(each for each in directory.iterdir() if each.suffix == ".crt" and not each.name.startswith("."))
    except OSError as error:
        raise BadTls(f"{directory}: cannot be read: {error.strerror}; `slotmesh certs init` makes one") from None
    if not paths:
        raise BadTls(f"{directory}: has no certificates; `slotmesh certs init` makes some")
    return [held_in(each, revoked) for each in sorted(paths, key=lambda path: path.name != CA_FILE)]


def revoked_in(directory: Path) -> frozenset[ListEntry]:
    """The entries of the directory's revocation list; empty if there is no list.

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
    """The certificate in one file."""
    try:
        found = read_certificates(read_pem(path, "certificate"))[0]
        return HeldCertificate(path, found, is_revoked=(found.issuer, found.serial_number) in revoked)
    except BadTls as error:
        return HeldCertificate(path, None, str(error).removeprefix(f"{path}: "))
