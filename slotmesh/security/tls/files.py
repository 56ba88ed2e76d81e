"""Where certificates and keys are, and what they hold once they were read and checked.

Invariants: material is whole: the key belongs to the certificate, and both could be parsed. Keys that others on the
machine can read are refused.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from slotmesh.security.identity import trust_domain_of


class BadTls(Exception):
    """Files of certificates that cannot be used; the message names the file and the way out."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files. `cert` and `key` are None for who shows no certificate: a client with a token."""

    ca: Path
    """Certificates of the authorities that are trusted."""
    cert: Path | None = None
    """The certificate, and those between it and the authority."""
    key: Path | None = None

    def stamps(self) -> tuple[tuple[int, int, int], ...]:
        """Changes whenever a file does. Raises OSError."""
        return tuple(_stamp(path) for path in (self.ca, self.cert, self.key) if path is not None)

    def read(self) -> TlsMaterial:
        """What the files hold now.

        Raises:
            BadTls: one is missing, cannot be read, or does not go with the others.
        """
        ca = _read(self.ca, "certificates of authorities (--tls-ca)")
        authorities = _certificates(ca, self.ca)
        if self.cert is None or self.key is None:
            return TlsMaterial(ca_pem=ca, trust_domain=_domain(authorities), ca_not_after=_earliest(authorities))
        cert = _read(self.cert, "certificate (--tls-cert)")
        key = _read(self.key, "key (--tls-key)", is_secret=True)
        leaf = _certificates(cert, self.cert)[0]
        _check_pair(leaf, key, self.cert, self.key)
        uri = _uri(leaf)
        return TlsMaterial(
            ca_pem=ca,
            cert_pem=cert,
            key_pem=key,
            uri=uri,
            trust_domain=trust_domain_of(uri) or _domain(authorities),
            not_after=leaf.not_valid_after_utc.timestamp(),
            ca_not_after=_earliest(authorities),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsMaterial:
    """What a connection is made with."""

    ca_pem: bytes
    cert_pem: bytes | None = None
    key_pem: bytes | None = None
    uri: str = ""
    """The identity that the certificate names; empty where there is none."""
    trust_domain: str = ""
    """That of the certificate, else that of the authority; empty where neither names one."""
    not_after: float | None = None
    """When the certificate ends, seconds since 1970."""
    ca_not_after: float | None = None
    """When the first of the authorities ends, seconds since 1970."""

    def __repr__(self) -> str:
        return f"<TLS material of {self.uri or 'nobody'}>"


def _stamp(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path, what: str, *, is_secret: bool = False) -> bytes:
    try:
        if is_secret and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise BadTls(f"{path}: others can read this {what}; `chmod 600 {path}`")
        return path.read_bytes()
    except OSError as error:
        raise BadTls(f"{path}: the {what} cannot be read: {error.strerror}") from None


def _certificates(pem: bytes, path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise BadTls(f"{path}: holds no certificate in PEM form") from None


def _check_pair(leaf: x509.Certificate, key: bytes, cert_path: Path, key_path: Path) -> None:
    try:
        public = load_pem_private_key(key, password=None).public_key()
    except (ValueError, TypeError):
        raise BadTls(f"{key_path}: holds no private key in PEM form without a password") from None
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if public.public_bytes(*form) != leaf.public_key().public_bytes(*form):
        raise BadTls(f"{key_path}: is not the key of the certificate in {cert_path}")


def _uris(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [uri for uri in names.get_values_for_type(x509.UniformResourceIdentifier) if uri.startswith("spiffe://")]


def _uri(certificate: x509.Certificate) -> str:
    uris = _uris(certificate)
    return uris[0] if len(uris) == 1 else ""


def _domain(authorities: list[x509.Certificate]) -> str:
    domains = {trust_domain_of(uri) for each in authorities for uri in _uris(each)}
    domains.discard(None)
    return domains.pop() or "" if len(domains) == 1 else ""


def _earliest(certificates: list[x509.Certificate]) -> float:
    return min(each.not_valid_after_utc.timestamp() for each in certificates)
