"""Certificates for tests: an authority of their own, which issues any identity in milliseconds.

Its directory is one that `--tls-dir` reads. Keys are of elliptic curves, files have mode 600.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from slotmesh.security.identity import server_names_of, uri_of
from slotmesh.security.tls import TlsFiles, TlsSource

TRUST_DOMAIN: Final = "mesh.test"
_AGE: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class _Pair:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


class Authority:
    """Signs certificates, and keeps them and its own in a directory."""

    def __init__(self, directory: Path, trust_domain: str = TRUST_DOMAIN, *, not_after: datetime | None = None) -> None:
        """Writes `directory/ca.crt`. Another authority of the same trust domain is a stranger to this one's servers."""
        self.directory = directory
        self.trust_domain = trust_domain
        directory.mkdir(parents=True, exist_ok=True)
        self.ca = directory / "ca.crt"
        self.crl = directory / "ca.crl"
        self.revoked: list[x509.RevokedCertificate] = []
        """What is in its list."""
        self._pair = _authority(trust_domain, not_after or datetime.now(UTC) + timedelta(days=1))
        self._sends = b""
        _write(self.ca, self._pair.certificate.public_bytes(Encoding.PEM))

    def stand_below(self, root: Authority) -> None:
        """From now on who has a certificate of this one sends this one's as well, which the root has issued."""
        own = _authority(self.trust_domain, self._pair.certificate.not_valid_after_utc, "middle", root._pair)
        self._pair, self._sends = own, own.certificate.public_bytes(Encoding.PEM)

    def issue(
        self,
        kind: str,
        name: str = "",
        *,
        trust_domain: str = "",
        not_after: datetime | None = None,
        dns: Sequence[str] = (),
        uri: str | None = None,
        stem: str = "",
    ) -> TlsFiles:
        """Writes `KIND.crt` and `KIND.key`, or `KIND-NAME.crt` and `.key`; what was there is replaced.

        `dns`: names, addresses and further URIs, beside those of the role. `uri`: any, or with "" none, in place of
        the identity's. `stem`: another name of the files.
        """
        uri = uri_of(trust_domain or self.trust_domain, kind, name) if uri is None else uri
        pair = self._leaf(uri, [*server_names_of(uri), *dns], not_after or datetime.now(UTC) + timedelta(hours=1))
        stem = stem or (f"{kind}-{name}" if name else kind)
        cert, key = self.directory / f"{stem}.crt", self.directory / f"{stem}.key"
        # The key first: who reads between the two finds a pair that does not match, and reads again.
        _write(key, pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        _write(cert, pair.certificate.public_bytes(Encoding.PEM) + self._sends)
        return TlsFiles(self.ca, cert, key, self.crl)

    def revoke(self, *paths: Path | None) -> bytes:
        """Takes the certificates of these files back; writes `directory/ca.crl`, and returns what is in it."""
        for path in paths:
            assert path is not None
            serial = x509.load_pem_x509_certificate(path.read_bytes()).serial_number
            revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(datetime.now(UTC))
            self.revoked.append(revoked.build())
        pem = self.signed_list(*self.revoked)
        _write(self.crl, pem)
        return pem

    def signed_list(
        self,
        *revoked: x509.RevokedCertificate,
        extension: tuple[x509.ExtensionType, bool] | None = None,
        issuer: x509.Name | None = None,
        age: timedelta = timedelta(0),
    ) -> bytes:
        """A list in PEM form. `extension`: one that it has, and whether it is critical. `issuer`: as it writes that."""
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(issuer or self._pair.certificate.subject)
        builder = builder.last_update(now - age).next_update(now + _AGE)
        if extension is not None:
            builder = builder.add_extension(extension[0], critical=extension[1])
        for each in revoked:
            builder = builder.add_revoked_certificate(each)
        return builder.sign(self._pair.key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def source(self, kind: str, name: str = "", *, not_after: datetime | None = None) -> TlsSource:
        """Issues a certificate, and reads it as a process does."""
        return TlsSource(self.issue(kind, name, not_after=not_after))

    def whole_mesh(self) -> Path:
        """Issues what a mesh with any backends needs, and an operator; returns the directory."""
        for kind, name in (("controller", ""), ("router", ""), ("replica", ""), ("operator", "ops")):
            self.issue(kind, name)
        return self.directory

    def _leaf(self, uri: str, names: Sequence[str], not_after: datetime) -> _Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder("leaf", self._pair.certificate.subject, key, not_after)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = builder.add_extension(usages, critical=False)
        if alternatives := [*([x509.UniformResourceIdentifier(uri)] if uri else []), *map(_alternative, names)]:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        return _Pair(builder.sign(self._pair.key, hashes.SHA256()), key)


def _authority(trust_domain: str, not_after: datetime, name: str = "authority", issuer: _Pair | None = None) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    uri = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"spiffe://{trust_domain}")])
    builder = _builder(name, _name(name) if issuer is None else issuer.certificate.subject, key, not_after)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(uri, critical=False)
    return _Pair(builder.sign(key if issuer is None else issuer.key, hashes.SHA256()), key)


def _builder(
    subject: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, not_after: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(datetime.now(UTC), not_after) - _AGE)
        .not_valid_after(not_after)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"test {text}")])


def _alternative(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(path: Path, content: bytes) -> None:
    """Replaces the file at once, as who rotates certificates does."""
    fresh = path.with_name(path.name + ".new")
    fresh.touch(mode=0o600)
    fresh.write_bytes(content)
    fresh.replace(path)
