"""The certificates of a directory, as `slotmesh certs` makes it: ca.crt, and NAME.crt and NAME.key of each identity.

Beside them is ca.crl, where the authority has taken some back.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.x509 import load_pem_x509_certificates

from slotmesh.security.tls.certificates import Certificate, read_certificates
from slotmesh.security.tls.errors import BadTls
from slotmesh.security.tls.files import read_pem
from slotmesh.security.tls.revocations import ListEntry, read_revocations
from slotmesh.security.tls_paths import CA_FILE, CRL_FILE

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
