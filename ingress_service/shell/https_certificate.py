"""The certificate that HTTPS shows, read again when its files change.

Invariants: what cannot be used never takes the place of what could: certificate and key are read into a context of
their own, which connections get only once both are in it. Files that could not be used are tried again with each look,
since what is wrong, a mode for example, may be mended without that they change; each problem is logged once.
Owner: the server of HTTP. `look` may be called by any one thread at a time.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from slotmesh.security.secret_files import FileStamp, stamp
from slotmesh.telemetry.log import get_logger

_log = get_logger(__name__)


class HttpsCertificate:
    """Files of a certificate and its key."""

    def __init__(self, cert: Path, key: Path) -> None:
        """Reads the files.

        Raises:
            OSError: they cannot be used; ssl.SSLError is one.
        """
        self._files = (cert, key)
        self._stamps: tuple[FileStamp, ...] = (stamp(cert), stamp(key))
        """Of those that are used."""
        self._newest = self._read()
        self._problem = ""
        self.ends_at = _end_of(cert)
        """Seconds since 1970; None where it is none that this understands, and TLS does."""
        self.context = _context()
        """For the listening socket: each connection that comes gets the newest certificate."""
        self.context.sni_callback = self._use_newest

    def look(self) -> None:
        """Reads the files where they are others than those that were used last. Waits for the disk."""
        try:
            stamps = tuple(stamp(path) for path in self._files)
            if stamps == self._stamps:
                self._problem = ""
                return
            self._newest = self._read()
        except OSError as error:
            if (problem := problem_of(*self._files, error)) != self._problem:
                self._problem = problem
                _log.warning("the certificate of HTTPS cannot be read; the one before stays", reason=problem)
            return
        # Stamps of before the reading: what has changed meanwhile is read again.
        self._stamps, self._problem = stamps, ""
        self.ends_at = _end_of(self._files[0])

    def _read(self) -> ssl.SSLContext:
        context = _context()
        context.load_cert_chain(*self._files)
        return context

    def _use_newest(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
        """Called in each handshake, whether the client names a server or not."""
        connection.context = self._newest


def problem_of(cert: Path, key: Path, error: OSError) -> str:
    """What is wrong with the files, with the flags that name them."""
    return f"--https-cert {cert}, --https-key {key}: {error}"


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _end_of(certificate: Path) -> float | None:
    """When the first one in the file expires; None where it is one that this does not understand, and TLS does."""
    from slotmesh.security.tls import BadTls  # noqa: PLC0415 - most of a second, for those who have certificates
    from slotmesh.security.tls.certificates import read_certificates  # noqa: PLC0415 - see above

    try:
        return read_certificates(certificate.read_bytes())[0].not_after
    except (BadTls, OSError):
        return None
