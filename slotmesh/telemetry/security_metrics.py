"""Metrics of certificates and bearer tokens, and failed TLS handshakes, counted by cause and logged by peer.

Purpose: shows an operator which client cannot connect, and why.
Invariants: each address is logged first immediately, then with increasing intervals; the number of tracked addresses is
bounded, further ones share an entry; labels have closed sets of values. A connection closed without a byte, such as a
load balancer's probe, counts as no handshake.
Owner: the server with these handshakes; it may call from any thread.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from enum import StrEnum
from time import monotonic
from typing import TYPE_CHECKING, Final

from opentelemetry.metrics import Meter

from slotmesh.logs import get_logger
from slotmesh.runtime.backoff import WarningBackoff
from slotmesh.security.tokens import TokenProblem, Tokens
from slotmesh.telemetry import names
from slotmesh.telemetry.instruments import observe_counter, observe_gauge

if TYPE_CHECKING:
    from slotmesh.security.tls import TlsSource


def observe_tokens(meter: Meter, tokens: Tokens) -> None:
    """Registers metrics of refused tokens and failed reloads of their files."""
    observe_counter(
        meter, names.TOKEN_REFUSALS, lambda: {(each.value,): tokens.refusals[each] for each in TokenProblem}
    )
    observe_counter(meter, names.TOKEN_RELOAD_FAILURES, lambda: {(): tokens.failed_reloads})


def observe_certificates(meter: Meter, tls: TlsSource) -> None:
    """Registers metrics of the process's certificates: their expiry, and failed reloads."""
    observe_gauge(meter, names.TLS_CERTIFICATE_END, lambda: {(): tls.current().not_after or 0.0})
    observe_gauge(meter, names.TLS_AUTHORITY_END, lambda: {(): tls.current().ca_not_after})
    observe_gauge(meter, names.TLS_REVOKED, lambda: {(): len(tls.current().trust.revocations.revoked)})
    observe_gauge(meter, names.TLS_REVOCATIONS_END, lambda: {(): tls.current().trust.revocations.next_update or 0.0})
    observe_counter(meter, names.TLS_HANDSHAKES, lambda: {(): tls.handshakes})
    observe_counter(meter, names.TLS_RELOAD_FAILURES, lambda: {(): tls.failed_reloads})


MAX_PEERS: Final = 256
"""The limit of tracked addresses."""
LONGEST_REST_S: Final = 600.0
"""The interval at which a peer that keeps failing is logged."""
_OTHERS: Final = ""
_MAX_REASON_CHARS: Final = 200

_log = get_logger(__name__)


class HandshakeProblem(StrEnum):
    """The cause of a failed handshake."""

    PLAIN = "plain text"
    REFUSED = "certificate of the server refused"
    CERTIFICATE = "certificate of the peer"
    VERSION = "no common version or cipher"
    LEFT = "peer left"
    TIME = "too slow"
    OTHER = "other"


_REASONS: Final = (
    (HandshakeProblem.PLAIN, ("HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL")),
    (
        HandshakeProblem.REFUSED,
        (
            "ALERT_UNKNOWN_CA",
            "ALERT_DECRYPT_ERROR",
            "ALERT_BAD_CERTIFICATE",
            "ALERT_CERTIFICATE",
            "ALERT_UNSUPPORTED_C",
        ),
    ),
    (HandshakeProblem.CERTIFICATE, ("CERTIFICATE_VERIFY_FAILED", "PEER_DID_NOT_RETURN", "BAD_SIGNATURE")),
    (HandshakeProblem.VERSION, ("UNSUPPORTED_PROTOCOL", "NO_SHARED_CIPHER", "PROTOCOL_VERSION", "VERSION_TOO")),
    (HandshakeProblem.LEFT, ("UNEXPECTED_EOF",)),
)
"""Parts of OpenSSL's names of reasons."""


class FailedHandshakes:
    """The failed handshakes of one server."""

    def __init__(self, server: str, now: Callable[[], float] = monotonic) -> None:
        """`server`: its name in logs."""
        self.counts = Counter[HandshakeProblem]()
        self._server = server
        self._now = now
        self._lock = threading.Lock()
        self._peers: OrderedDict[str, WarningBackoff] = OrderedDict()
        """By address, the latest failure last."""

    def failed(self, host: str, port: int, error: BaseException) -> None:
        """Counts a failed handshake of this peer."""
        problem = problem_of(error)
        with self._lock:
            self.counts[problem] += 1
            left_out = self._backoff_of(host).take(self._now())
        if left_out is not None:
            _log.warning(
                "a TLS handshake failed",
                server=self._server,
                peer=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
                problem=problem.value,
                why=_words_of(error),
                **({"times_before": left_out} if left_out else {}),
            )

    def _backoff_of(self, host: str) -> WarningBackoff:
        known = self._peers.get(host)
        if known is None:
            if len(self._peers) >= MAX_PEERS:
                host = _OTHERS
            known = self._peers.setdefault(host, WarningBackoff(max_s=LONGEST_REST_S))
        return known


def problem_of(error: BaseException) -> HandshakeProblem:
    """The cause, from an exception of a handshake."""
    if isinstance(error, TimeoutError) or "taking longer than" in str(error):
        return HandshakeProblem.TIME
    name = str(getattr(error, "reason", None) or "")
    for problem, parts in _REASONS:
        if any(part in name for part in parts):
            return problem
    return HandshakeProblem.LEFT if isinstance(error, ConnectionError | EOFError) else HandshakeProblem.OTHER


def _words_of(error: BaseException) -> str:
    """One line: OpenSSL's name of the error, or the system's message."""
    reason = getattr(error, "reason", None)
    text = str(reason).replace("_", " ").lower() if reason else str(error)
    return " ".join(text.split())[:_MAX_REASON_CHARS] or type(error).__name__
