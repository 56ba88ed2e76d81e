"""Parsed certificates: identities, validity and usages; and the record of what an authority has issued and revoked.

Invariants: any bytes give a certificate or `BadTls`; a certificate has at most one identity. The record has a line per
event, is only appended to by whole lines, and contains no secrets: it makes it possible to revoke all certificates of
an identity, lost ones included, and to rebuild a lost revocation list.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from slotmesh.security.identity import trust_domain_of


class BadTls(Exception):
    """Unusable certificate files; the message has the file and the way out, and nothing of a key."""


class BadLists(BadTls):
    """Unusable revocation lists."""


class UnmatchedPair(BadTls):
    """The key does not belong to the certificate: one of the two may have been replaced, and the other may follow."""


ExtensionT = TypeVar("ExtensionT", bound=x509.ExtensionType)

_USAGES: Final = {
    ExtendedKeyUsageOID.SERVER_AUTH: "server",
    ExtendedKeyUsageOID.CLIENT_AUTH: "client",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The parsed fields of one certificate."""

    uris: tuple[str, ...]
    """Names of the form `spiffe://...`."""
    dns_names: tuple[str, ...]
    not_before: float
    """Seconds since 1970, like `not_after`."""
    not_after: float
    usages: frozenset[str] | None
    """`server` and `client`, if the extended key usage allows them; None: any usage."""
    public_key: bytes
    """In DER form."""
    issuer: bytes
    """The name of the issuer, in DER form."""
    serial_number: int

    @property
    def trust_domain(self) -> str:
        """The trust domain of its only URI; empty if it has none, or several."""
        return (trust_domain_of(self.uris[0]) or "") if len(self.uris) == 1 else ""

    def time_problem(self, now: float) -> str | None:
        """Why it is not valid at `now`, seconds since 1970; None if it is."""
        if now >= self.not_after:
            return "has expired"
        if now < self.not_before:
            return "is not valid yet: look at the clock of this machine, and at that of the one that issued it"
        return None


def read_certificates(pem: bytes) -> list[Certificate]:
    """The certificates in PEM form, in order; at least one.

    Raises:
        BadTls: there is none, or one cannot be parsed.
    """
    try:
        found = x509.load_pem_x509_certificates(pem)
    except Exception:  # noqa: BLE001 - of a dozen kinds, which have nothing in common
        raise BadTls("holds no certificate in PEM form") from None
    try:
        return [_certificate(each) for each in found]
    except Exception:  # noqa: BLE001 - as above
        raise BadTls("holds a certificate that cannot be understood: issue it again") from None


def public_key_of(key_pem: bytes) -> bytes:
    """The public half of a private key, in DER form.

    Raises:
        BadTls: it is not a PEM key, or has a password.
    """
    try:
        return _der(load_pem_private_key(key_pem, password=None).public_key())
    except Exception:  # noqa: BLE001 - as above
        raise BadTls("holds no private key in PEM form, without a password") from None


def matches(name: str, dns_names: tuple[str, ...]) -> bool:
    """Whether a server with this name may use a certificate with these DNS names (RFC 6125, 6.4.3)."""
    _, _, parent = name.partition(".")
    return name in dns_names or f"*.{parent}" in dns_names


def _certificate(found: x509.Certificate) -> Certificate:
    names, usages = _extension(found, x509.SubjectAlternativeName), _extension(found, x509.ExtendedKeyUsage)
    uris = names.get_values_for_type(x509.UniformResourceIdentifier) if names else []
    return Certificate(
        uris=tuple(uri for uri in uris if uri.startswith("spiffe://")),
        dns_names=tuple(names.get_values_for_type(x509.DNSName)) if names else (),
        not_before=found.not_valid_before_utc.timestamp(),
        not_after=found.not_valid_after_utc.timestamp(),
        usages=None if usages is None else frozenset(_USAGES[each] for each in usages if each in _USAGES),
        public_key=_der(found.public_key()),
        issuer=found.issuer.public_bytes(),
        serial_number=found.serial_number,
    )


def _extension(found: x509.Certificate, kind: type[ExtensionT]) -> ExtensionT | None:
    try:
        return found.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _der(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


SUFFIX: Final = ".issued"
"""Suffix of the record's file, in place of the `.key` of the authority's key."""


class Issued(msgspec.Struct, frozen=True, kw_only=True):
    """One line: an issued certificate, or its revocation."""

    identity: str
    """Its URI."""
    serial: str
    """In hexadecimal: JSON integers are too small."""
    until: Annotated[datetime, msgspec.Meta(tz=True)]
    revoked: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    """The time of revocation, in a line after that of the issue."""

    @classmethod
    def of(cls, certificate: x509.Certificate, identity: str = "") -> Issued:
        """The line of a new certificate."""
        serial, until = f"{certificate.serial_number:x}", certificate.not_valid_after_utc
        return cls(identity=identity, serial=serial, until=until)

    @property
    def serial_number(self) -> int:
        return int(self.serial, 16)


@dataclass(frozen=True, slots=True)
class IssuedRecord:
    """The file with the record of one authority."""

    path: Path

    @classmethod
    def beside(cls, key_path: Path) -> IssuedRecord:
        """The record of the authority with this key."""
        return cls(key_path.with_name(key_path.name.removesuffix(".key") + SUFFIX))

    @property
    def is_there(self) -> bool:
        """False if all certificates were issued by a version without the record."""
        return self.path.exists()

    def add(self, *entries: Issued) -> None:
        """Raises BadTls."""
        if not entries:
            return
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                # Keeps a line that an interrupted write has left apart from the next one.
                file.write(b"".join(b"\n" + msgspec.json.encode(each) + b"\n" for each in entries))
                file.flush()
                os.fsync(descriptor)
        except OSError as error:
            raise BadTls(f"{self.path}: cannot be written: {error.strerror}") from None

    def of(self, identity: str, now: datetime | None = None) -> list[Issued]:
        """The valid certificates of this identity, newest last.

        Raises:
            BadTls: the file cannot be read.
        """
        now = datetime.now(UTC) if now is None else now
        found = (each for each in self._entries() if each.identity == identity and each.until > now)
        return [each for each in found if each.revoked is None]

    def revoked(self, now: datetime) -> list[Issued]:
        """The revoked certificates that have not expired. Raises BadTls."""
        return [each for each in self._entries() if each.revoked is not None and each.until > now]

    def _entries(self) -> Iterator[Issued]:
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            raise BadTls(f"{self.path}: cannot be read: {error.strerror}") from None
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                entry = msgspec.json.decode(line, type=Issued)
                if entry.serial_number <= 0:
                    raise ValueError
            except (msgspec.MsgspecError, ValueError):
                raise BadTls(
                    f"{self.path}: line {number} is no record of a certificate: mend it, or take it out"
                ) from None
            yield entry
