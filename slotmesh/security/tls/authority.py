"""A certificate authority in a directory, for development and for one machine: `slotmesh certs` issues with it.

Invariants: an authority is never overwritten; keys are never readable by others, not even briefly; a reader of a pair
during its replacement gets the old pair, or two files that do not match and are read again.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from slotmesh.security.identity import INGRESS, Role, name_of_another, server_names_of, uri_of
from slotmesh.security.secret_files import FileGuard
from slotmesh.security.tls.certificates import BadTls, Issued, IssuedRecord
from slotmesh.security.tls.files import read_pem

AUTHORITY_DAYS: Final = 3650
SHORTEST: Final = timedelta(hours=24)
LONGEST: Final = timedelta(days=366)
_BACKDATED: Final = timedelta(minutes=5)
"""Allowance for clock differences between machines."""
_DOMAIN: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_MAX_DOMAIN: Final = 180
"""Leaves room for server names, which are DNS names."""
_MAX_DNS_NAME: Final = 253
_LOOPBACK: Final = (IPv4Address("127.0.0.1"), IPv6Address("::1"))


@dataclass(frozen=True, slots=True)
class Authority:
    """Issues certificates of one trust domain."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    trust_domain: str
    issued: IssuedRecord
    """The record of issued certificates."""

    def issue(self, directory: Path, subject: Subject, lifetime: timedelta, now: datetime | None = None) -> Path:
        """Writes `NAME.key`, then `NAME.crt`, replacing existing files. Returns the path of the certificate.

        Raises:
            BadTls: they cannot be written, or the authority expires earlier.
        """
        now = datetime.now(UTC) if now is None else now
        if now + lifetime > self.certificate.not_valid_after_utc:
            ends = self.certificate.not_valid_after_utc
            raise BadTls(f"the authority ends on {ends:%Y-%m-%d}, before this certificate would: give fewer --days")
        key = ec.generate_private_key(ec.SECP256R1())
        leaf = _leaf(self, subject, key, now - _BACKDATED, now + lifetime)
        self.issued.add(Issued.of(leaf, subject.uri))  # first, so that every issued certificate can be revoked
        path = directory / f"{subject.stem}.crt"
        replace(directory / f"{subject.stem}.key", _pem(key), mode=0o600)
        replace(path, leaf.public_bytes(Encoding.PEM), mode=0o644)
        return path

    def own_certificate(self, path: Path) -> x509.Certificate:
        """The certificate in a file, if this authority has issued it to an identity.

        Raises:
            BadTls: it is not.
        """
        pem = read_pem(path, "certificate")
        with suppress(ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            found = x509.load_pem_x509_certificate(pem)
            found.verify_directly_issued_by(self.certificate)
            if found != self.certificate:
                return found
        raise BadTls(f"{path}: is no certificate that the authority of {self.trust_domain} has issued to an identity")


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a certificate."""

    uri: str
    dns_names: tuple[str, ...]
    """The names of a server of its role, and the requested ones."""

    @classmethod
    def of(cls, trust_domain: str, written: str, dns_names: tuple[str, ...] = ()) -> Subject:
        """`written` is `KIND` or `KIND/NAME`. Raises ValueError."""
        kind, _, name = written.partition("/")
        uri = uri_of(trust_domain, kind, name)
        for each in dns_names:
            if len(each) > _MAX_DNS_NAME or not _DOMAIN.fullmatch(each.removeprefix("*.")):
                raise ValueError(f"{each!r} is no DNS name in lower case, as router.example or *.router.example")
            if server := name_of_another(each, uri):
                raise ValueError(f"{each!r} would let {written} pass for {server}: leave this --dns out")
        return cls(uri, tuple(dict.fromkeys((*server_names_of(uri), *dns_names))))

    @property
    def is_server(self) -> bool:
        """Whether the certificate is for a server, by its role, whatever DNS names were requested."""
        return bool(server_names_of(self.uri))

    @property
    def names_loopback(self) -> bool:
        """Whether the certificate has the names of the loopback interface, for clients that verify the address.

        True for a controller, router or ingress. Replicas run users' code, which could impersonate one of these.
        """
        return self.stem in {Role.CONTROLLER, Role.ROUTER, INGRESS}

    @property
    def stem(self) -> str:
        """The stem of its files' names: `router`, `replica-digits`, `operator-alice`."""
        return self.uri.removeprefix("spiffe://").partition("/")[2].replace("/", "-")


def create_authority(certificate_path: Path, key_path: Path, trust_domain: str) -> Authority:
    """Creates an authority, and its directory.

    Raises:
        BadTls: it exists, the trust domain is invalid, or the files cannot be written.
    """
    if len(trust_domain) > _MAX_DOMAIN or not _DOMAIN.fullmatch(trust_domain):
        raise BadTls(f"{trust_domain!r} is no trust domain: write it as a domain in lower case, as slotmesh.local")
    for path in (certificate_path, key_path):
        if os.path.lexists(path):
            raise BadTls(
                f"{path}: there is an authority already, and it is never overwritten; `slotmesh certs issue` and"
                " `slotmesh certs rotate` issue with it, --dir makes another one"
            )
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"slotmesh authority of {trust_domain}"[:64])])
    certificate = (
        _builder(name, key.public_key(), now - _BACKDATED, now + timedelta(days=AUTHORITY_DAYS))
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"spiffe://{trust_domain}")]), False)
        .sign(key, hashes.SHA256())
    )
    for path in (certificate_path, key_path):
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise BadTls(f"{path.parent}: cannot be made: {error.strerror}") from None
    replace(key_path, _pem(key), mode=0o600, is_new=True)
    replace(certificate_path, certificate.public_bytes(Encoding.PEM), mode=0o644, is_new=True)
    return Authority(certificate, key, trust_domain, IssuedRecord.beside(key_path))


def load_authority(certificate_path: Path, key_path: Path) -> Authority:
    """Loads the authority from these files.

    Raises:
        BadTls: it is missing, or was not made by `create_authority`.
    """
    if not os.path.lexists(certificate_path):
        raise BadTls(f"{certificate_path}: there is no authority; `slotmesh certs init` makes one")
    pem = read_pem(certificate_path, "certificate of the authority")
    key_pem = read_pem(key_path, "key of the authority", FileGuard.SECRET)
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        key = load_pem_private_key(key_pem, password=None)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.ExtensionNotFound, x509.DuplicateExtension):
        raise BadTls(f"{certificate_path}, {key_path}: no authority that `slotmesh certs init` has made") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise BadTls(f"{key_path}: is not the key of the authority in {certificate_path}")
    with suppress(InvalidSignature, ValueError, TypeError):
        certificate.verify_directly_issued_by(certificate)
        return Authority(certificate, key, uri.removeprefix("spiffe://"), IssuedRecord.beside(key_path))
    raise BadTls(f"{certificate_path}: is not the certificate of an authority by itself")


def replace(path: Path, content: bytes, *, mode: int, is_new: bool = False) -> None:
    """Replaces a file atomically. `is_new`: the file must not exist.

    Raises:
        BadTls: it cannot be written, or it exists.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with suppress(FileNotFoundError):
            temporary.unlink()
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, mode)
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            if is_new:
                os.link(temporary, path)
            else:
                temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError:
        raise BadTls(f"{path}: is there already, and is never overwritten") from None
    except OSError as error:
        raise BadTls(f"{path}: cannot be written: {error.strerror}") from None


def _leaf(
    authority: Authority, subject: Subject, key: ec.EllipticCurvePrivateKey, begins: datetime, ends: datetime
) -> x509.Certificate:
    issuer = authority.certificate
    dns_names = dict.fromkeys((*subject.dns_names, *(["localhost"] if subject.names_loopback else ())))
    addresses = _LOOPBACK if subject.names_loopback else ()
    names: list[x509.GeneralName] = [
        x509.UniformResourceIdentifier(subject.uri),
        *map(x509.DNSName, dns_names),
        *(x509.IPAddress(each) for each in addresses),
    ]
    client, server = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
    return (
        _builder(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject.stem[:64])]), key.public_key(), begins, ends
        )
        .issuer_name(issuer.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([server, client] if subject.is_server else [client]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
        .sign(authority.key, hashes.SHA256())
    )


def _builder(
    name: x509.Name, public_key: ec.EllipticCurvePublicKey, begins: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
