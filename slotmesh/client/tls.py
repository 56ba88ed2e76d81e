"""How a client authenticates: certificates from files, tokens, and the authorities whose servers it trusts.

Invariants: unusable files and tokens are refused by `connect`, before anything is sent; no private key and no token is
in any repr. `cryptography` is imported only if there are files to read: that takes most of a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import grpc

from slotmesh.runtime.channels import PLAIN_TEXT, ChannelTls, Dialer, Token, TokenSource
from slotmesh.security.tls_paths import CA_FILE, certificate_in

_Path = str | PathLike[str]


@dataclass(frozen=True, slots=True, init=False)
class Tls:
    """The TLS files of a client: `slotmesh.connect(ADDRESS, tls=slotmesh.Tls(...))`.

    Files are PEM, and read again when they change: later connections use the new certificate.
    """

    ca: Path | None
    """The certificates of the trusted authorities; None: those of the operating system."""
    cert: Path | None
    """The certificate of this client; None if it has a token."""
    key: Path | None
    """Its private key, which other users of the machine cannot read."""

    def __init__(self, ca: _Path | None = None, cert: _Path | None = None, key: _Path | None = None) -> None:
        """Without `ca`, servers need a certificate for their address by an authority that the system trusts.

        Raises:
            ValueError: a certificate without key, or the reverse; or without `ca`.
        """
        if (cert is None) != (key is None):
            raise ValueError("Tls: cert and key go together: a certificate and its private key")
        if cert is not None and ca is None:
            raise ValueError("Tls: ca is required with cert: the certificates of the authorities that are trusted")
        for name, path in (("ca", ca), ("cert", cert), ("key", key)):
            object.__setattr__(self, name, None if path is None else Path(path))

    @classmethod
    def from_dir(cls, directory: _Path, name: str | None = None) -> Tls:
        """The files of a directory made by `slotmesh certs`: ca.crt, and NAME.crt and NAME.key.

        Args:
            directory: where the files are.
            name: the certificate to use, as `client-alice`; None: none, for a client that has a token.

        Raises:
            ValueError: one of the files is missing.
        """
        path = Path(directory)
        if not (path / CA_FILE).exists():
            raise ValueError(f"Tls: {path / CA_FILE} is missing; `slotmesh certs init --dir {path}` makes it")
        if name is None:
            return cls(path / CA_FILE)
        return cls(path / CA_FILE, *certificate_in(path, [name]))


class SystemTls:
    """Trusts the authorities that the system trusts, and has no certificate. Servers are checked by their addresses."""

    version = 1
    trust_domain = ""
    identity = ""

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """The credentials of connections."""
        return grpc.ssl_channel_credentials()


def dialer_of(tls: Tls | None, token: Token | None) -> Dialer:
    """Opens the connections of a client.

    Raises:
        TypeError: an argument of another type.
        ValueError: the files or the token are unusable, or there is a token without TLS.
    """
    if tls is None and token is None:
        return PLAIN_TEXT
    if tls is not None and not isinstance(tls, Tls):
        raise TypeError(f"tls must be a slotmesh.Tls, got {type(tls).__name__}")
    if token is not None and not isinstance(token, str) and not callable(token):
        raise TypeError(f"token must be a str, or a function that gives one, got {type(token).__name__}")
    if tls is None:
        raise ValueError("token needs TLS: without it, the token is readable on the network; give tls=slotmesh.Tls()")
    return Dialer(_source_of(tls), None if token is None else TokenSource(token))


def _source_of(tls: Tls) -> ChannelTls:
    if tls.ca is None:
        return SystemTls()
    from slotmesh.security.tls import BadTls, TlsFiles, TlsSource  # noqa: PLC0415 - see the head of the module

    try:
        return TlsSource(TlsFiles(tls.ca, tls.cert, tls.key))
    except BadTls as error:
        raise ValueError(f"tls: {error}") from None
