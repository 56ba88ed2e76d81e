"""TLS of the HTTP pages: a context for each connection, of the newest certificates that were checked.

Invariants: nothing of one connection goes on in another: there are no tickets, and a context that ends with its
connection has no cache of sessions, so that each handshake sees the peer's certificate and checks it. What is used are
the bytes that were checked, not what the files hold by now.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from slotmesh.runtime.exits import CannotStart

if TYPE_CHECKING:
    # Most of a second at its first import, for those who have certificates.
    from slotmesh.security.tls import TlsMaterial, TlsSource


class ServerContext:
    """TLS for servers. Peers may show a certificate of their own."""

    def __init__(self, tls: TlsSource) -> None:
        """Raises CannotStart."""
        self._tls = tls
        try:
            _made(tls.current())
        except (OSError, ValueError) as error:
            raise CannotStart(f"{tls.files.cert}: cannot be used for the Prometheus endpoint: {error}") from None

    def is_revoked(self, certificate: bytes) -> bool:
        """Whether this certificate, in DER form, was taken back; so is one that cannot be read. Not for event loops."""
        from cryptography import x509  # noqa: PLC0415 - most of a second, for those who have certificates

        try:
            return self._tls.look().trust.revocations.names(x509.load_der_x509_certificate(certificate))
        except Exception:  # noqa: BLE001 - of a dozen kinds
            return True

    def newest(self) -> ssl.SSLContext:
        """For one connection, from now. Not for event loops: it may read files. Raises OSError, ValueError."""
        return _made(self._tls.look())


def _made(material: TlsMaterial) -> ssl.SSLContext:
    """Raises OSError, ValueError."""
    if material.cert_pem is None or material.key_pem is None:
        raise ValueError("a server needs a certificate and its key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=material.ca_pem.decode("ascii", "replace"))
    with _path_of(material.cert_pem + b"\n" + material.key_pem) as path:
        context.load_cert_chain(path, password="")
    return context


@contextmanager
def _path_of(content: bytes) -> Iterator[str]:
    """A path at which these bytes are, for this user alone, as long as the block lasts: `ssl` takes no bytes."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
    else:
        with tempfile.NamedTemporaryFile() as file:  # of mode 600
            file.write(content)
            file.flush()
            yield file.name
