"""Certificates that are read again while the process runs, and gRPC's credentials made of them.

Purpose: servers ask for the newest certificate with each handshake, and channels with each that is opened; connections
that exist go on with theirs.
Invariants: files that cannot be used never take the place of ones that could: a half written pair is read again later.
Owner: the process's app. Any thread may ask: gRPC's handshakes do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import grpc

from slotmesh.security.tls.files import BadTls, TlsFiles, TlsMaterial
from slotmesh.telemetry.log import get_logger

LOOK_S: Final = 1.0
"""How often files are looked at, at most, seconds."""

_log = get_logger(__name__)


class TlsSource:
    """The files of one identity."""

    def __init__(self, files: TlsFiles, *, now: Callable[[], float] = time.monotonic) -> None:
        """Reads the files.

        Raises:
            BadTls: they cannot be used.
        """
        self.files = files
        self._now = now
        self._lock = threading.Lock()
        self._stamps = _stamps(files)
        self._material = files.read()
        self._looked_at = now()
        self._version = 1

    @property
    def version(self) -> int:
        """Counts the certificates that were read: a channel of an older one cannot connect again for ever."""
        self.current()
        return self._version

    def current(self) -> TlsMaterial:
        """The newest material that can be used. Looks at the files at most once a second."""
        with self._lock:
            if self._now() - self._looked_at >= LOOK_S:
                self._looked_at = self._now()
                self._look()
            return self._material

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Of connections from here to others."""
        material = self.current()
        return grpc.ssl_channel_credentials(material.ca_pem, material.key_pem, material.cert_pem)

    def server_credentials(self, *, asks_for_certificate: bool) -> grpc.ServerCredentials:
        """Of a port that others connect to. `asks_for_certificate`: those without one cannot connect.

        Raises:
            BadTls: there is no certificate.
        """
        return grpc.dynamic_ssl_server_credentials(
            self._server_configuration(), self._server_configuration, asks_for_certificate
        )

    def _server_configuration(self) -> grpc.ServerCertificateConfiguration:
        material = self.current()
        if material.cert_pem is None or material.key_pem is None:
            raise BadTls("a server needs a certificate and its key: --tls-cert and --tls-key")
        return grpc.ssl_server_certificate_configuration([(material.key_pem, material.cert_pem)], material.ca_pem)

    def _look(self) -> None:
        stamps = _stamps(self.files)
        if stamps == self._stamps:
            return
        try:
            material = self.files.read()
        except BadTls as error:
            # Perhaps half of a pair that is being replaced: its stamps are not kept, so that it is read again.
            _log.warning("certificates cannot be read again; those before them stay", why=str(error))
            return
        self._stamps = stamps
        if material != self._material:
            self._material = material
            self._version += 1
            _log.info("certificates were read again", identity=material.uri, version=self._version)


def _stamps(files: TlsFiles) -> tuple[tuple[int, int, int], ...] | None:
    try:
        return files.stamps()
    except OSError:
        return None
