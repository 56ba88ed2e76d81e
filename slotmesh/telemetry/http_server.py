"""The HTTP server of a service's pages: a thread a request; by TLS where there are certificates.

Invariants: a peer that says nothing holds one thread, and for seconds only; a handshake is made in that thread, so that
others are answered meanwhile; certificates are the newest that could be read.
"""

from __future__ import annotations

import socket
import socketserver
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import WSGIApplication, WSGIEnvironment

from slotmesh.runtime.exits import CannotStart

if TYPE_CHECKING:
    # Most of a second at its first import, for those who have certificates.
    from slotmesh.security.tls import TlsMaterial, TlsSource

PEER_URIS: Final = "slotmesh.peer_uris"
"""Of a request: the URIs that the certificate of the peer names, which was checked; none without one."""
_SILENCE_S: Final = 10.0
"""How long a peer may let a read or write wait."""


def make_server(host: str, port: int, pages: WSGIApplication, tls: TlsSource | None = None) -> WSGIServer:
    """A server that listens. Raises OSError; CannotStart where the certificates cannot be used."""
    kind = _Ipv6HttpServer if ":" in host else _HttpServer
    context = None if tls is None else ServerContext(tls)
    server = kind((host, port), _QuietHandler)
    server.context = context
    server.set_app(pages)
    return server


class ServerContext:
    """TLS for servers, with the newest certificates. Peers may show one of their own."""

    def __init__(self, tls: TlsSource) -> None:
        """Raises CannotStart."""
        self._tls = tls
        self._material = tls.current()
        try:
            self._context = self._made(self._material)
        except (OSError, ValueError) as error:
            raise CannotStart(f"{tls.files.cert}: cannot be used for the Prometheus endpoint: {error}") from None

    def newest(self) -> ssl.SSLContext:
        """That of now. Not for event loops: it may read files."""
        material = self._tls.look()
        if material is not self._material:
            # Where files are being replaced again, the context stays that of before, until the next request.
            with suppress(OSError, ValueError):
                self._context = self._made(material)
                self._material = material
        return self._context

    def _made(self, material: TlsMaterial) -> ssl.SSLContext:
        """Raises OSError, ValueError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=material.ca_pem.decode("ascii", "replace"))
        files = self._tls.files
        if files.cert is None or files.key is None:
            raise ValueError("a server needs a certificate and its key")
        context.load_cert_chain(files.cert, files.key, password="")
        return context


class _HttpServer(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128
    context: ServerContext | None = None

    def server_bind(self) -> None:
        # The inherited way asks the name service for the host's full name, which can take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(_SILENCE_S)
        if self.context is None:
            super().finish_request(request, client_address)
            return
        try:
            secured = self.context.newest().wrap_socket(request, server_side=True)
        except OSError:
            return  # no TLS, or a certificate that is not accepted: the peer is told by its TLS library
        with secured:
            super().finish_request(secured, client_address)
            with suppress(OSError):
                secured.unwrap()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that leaves is nothing to talk about; what a page raises its own code logs."""


class _Ipv6HttpServer(_HttpServer):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    timeout = _SILENCE_S

    def get_environ(self) -> WSGIEnvironment:
        environ = super().get_environ()
        shown = self.connection.getpeercert() if isinstance(self.connection, ssl.SSLSocket) else None
        names: Any = (shown or {}).get("subjectAltName", ())
        environ[PEER_URIS] = tuple(value for kind, value in names if kind == "URI")
        return environ

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - inherited
        """A scrape is nothing to talk about."""
