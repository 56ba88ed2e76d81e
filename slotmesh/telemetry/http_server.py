"""The HTTP server of a service's pages: a thread per request, with TLS if there are certificates.

Invariants: the number of threads is bounded, and so is the time of one connection: a slow or silent peer holds a thread
and a timer for seconds only. The deadline covers all reads and writes together, so that single bytes do not extend it.
Without a free descriptor it tries again once a moment, and takes no processor time from the event loop.
Handshakes run in the connection's thread, and do not delay others. Each connection has its own TLS context, without
session tickets, so that each handshake verifies the peer's certificate; it uses the validated bytes, not the present
files.
Owner: the HTTP server; connections have their own threads.
"""

from __future__ import annotations

import errno
import os
import socket
import socketserver
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import WSGIApplication, WSGIEnvironment

from slotmesh.runtime.exits import CannotStart
from slotmesh.telemetry.security_metrics import FailedHandshakes

if TYPE_CHECKING:
    # Takes most of a second to import; only for processes with certificates.
    from slotmesh.security.tls import TlsMaterial, TlsSource


class ServerContext:
    """Makes TLS contexts for servers that accept, but do not require, client certificates."""

    def __init__(self, tls: TlsSource) -> None:
        """Raises CannotStart."""
        self._tls = tls
        try:
            _made(tls.current())
        except (OSError, ValueError) as error:
            raise CannotStart(f"{tls.files.cert}: cannot be used for the Prometheus endpoint: {error}") from None

    def is_revoked(self, certificate: bytes) -> bool:
        """Whether this DER certificate is revoked, or cannot be parsed. Blocks."""
        from cryptography import x509  # noqa: PLC0415 - most of a second, for those who have certificates

        try:
            return self._tls.look().trust.revocations.names(x509.load_der_x509_certificate(certificate))
        except Exception:  # noqa: BLE001 - of a dozen kinds
            return True

    def newest(self) -> ssl.SSLContext:
        """A context for one connection, with the present certificates. May read files. Raises OSError, ValueError."""
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
    """The path of a private temporary file with these bytes, for `ssl`, which takes only paths."""
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


class Deadline:
    """Shuts a connection down when its time is over; a thread that waits for its peer gets an error then."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        """Raises OSError."""
        # A duplicate descriptor: TLS detaches the connection's own, whose number may be reused after it is closed.
        self._connection = connection.dup()
        self._timer: threading.Timer | None = None
        self.move(seconds)

    def move(self, seconds: float) -> None:
        """Sets the deadline to this time from now."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def close(self) -> None:
        """The connection has no deadline any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._connection.close()

    def _end(self) -> None:
        with suppress(OSError):  # already disconnected
            self._connection.shutdown(socket.SHUT_RDWR)


PEER_URIS: Final = "slotmesh.peer_uris"
"""Key in a request's environment: the URIs of the peer's verified certificate; empty without one."""
PEER_IS_REVOKED: Final = "slotmesh.peer_is_revoked"
"""Key in a request's environment: whether that certificate is revoked."""
PEER_ENDS_AT: Final = "slotmesh.peer_ends_at"
"""Key in a request's environment: when that certificate expires, seconds since 1970; absent without one."""
MAX_REQUESTS: Final = 32
"""The limit of concurrent requests; further connections are closed."""
REQUEST_S: Final = 10.0
"""The limit for the handshake and the request together, in seconds."""
ANSWER_S: Final = 30.0
"""The limit for the response, in seconds. A page waits for the event loop with a shorter limit."""
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of `accept` that leave the connection in the queue, and so the listener readable."""
EXHAUSTED_PAUSE_S: Final = 0.25
"""How long after one of them it is tried again."""


def make_server(host: str, port: int, pages: WSGIApplication, tls: TlsSource | None = None) -> HttpServer:
    """A listening server. Raises OSError; CannotStart if the certificates cannot be used."""
    kind = _Ipv6HttpServer if ":" in host else HttpServer
    context = None if tls is None else ServerContext(tls)
    server = kind((host, port), _QuietHandler)
    server.context = context
    server.set_app(pages)
    return server


class HttpServer(socketserver.ThreadingMixIn, WSGIServer):
    """Serves the pages."""

    daemon_threads = True
    request_queue_size = 128
    context: ServerContext | None = None

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        super().__init__(address, handler)
        self.failed_handshakes = FailedHandshakes("metrics")
        self._room = threading.BoundedSemaphore(MAX_REQUESTS)

    def server_bind(self) -> None:
        # The inherited method resolves the host's full name, which can take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                time.sleep(EXHAUSTED_PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(ANSWER_S)
        with closing(Deadline(request, REQUEST_S)) as deadline:
            if self.context is None:
                _QuietHandler(request, client_address, self, deadline)
                return
            try:
                if not request.recv(1, socket.MSG_PEEK):
                    return  # closed without sending a byte
                secured = self.context.newest().wrap_socket(request, server_side=True)
            except OSError as error:
                # No TLS, or a refused certificate: the TLS library has informed the peer.
                self.failed_handshakes.failed(client_address[0], client_address[1], error)
                return
            with secured:
                _QuietHandler(secured, client_address, self, deadline)
                with suppress(OSError):
                    secured.unwrap()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores disconnected peers. Pages log their own errors."""


class _Ipv6HttpServer(HttpServer):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    timeout = ANSWER_S

    def __init__(self, request: Any, client_address: Any, server: HttpServer, deadline: Deadline) -> None:
        self._deadline = deadline
        self._context = server.context
        super().__init__(request, client_address, server)

    def get_environ(self) -> WSGIEnvironment:
        """Called after the request was read."""
        self._deadline.move(ANSWER_S)
        environ = super().get_environ()
        secured, context = self.connection, self._context
        shown: Any = secured.getpeercert() if isinstance(secured, ssl.SSLSocket) else None
        if shown:
            der = secured.getpeercert(binary_form=True)
            environ[PEER_IS_REVOKED] = context is None or der is None or context.is_revoked(der)
            names = shown.get("subjectAltName", ())
            environ[PEER_URIS] = tuple(value for kind, value in names if kind == "URI")
            environ[PEER_ENDS_AT] = float(ssl.cert_time_to_seconds(shown["notAfter"]))
        return environ

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - inherited
        """Requests are not logged."""
