"""The metrics of a process's certificates: when they expire, and whether newer ones could not be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.metrics import Meter

from slotmesh.telemetry import names
from slotmesh.telemetry.instruments import observe_counter, observe_gauge

if TYPE_CHECKING:
    # Most of a second at its first import, for those who have certificates.
    from slotmesh.security.tls import TlsSource


def observe_certificates(meter: Meter, tls: TlsSource) -> None:
    """Registers them."""
    observe_gauge(meter, names.TLS_CERTIFICATE_END, lambda: {(): tls.current().not_after or 0.0})
    observe_gauge(meter, names.TLS_AUTHORITY_END, lambda: {(): tls.current().ca_not_after})
    observe_gauge(meter, names.TLS_REVOKED, lambda: {(): len(tls.current().trust.revocations.revoked)})
    observe_gauge(meter, names.TLS_REVOCATIONS_END, lambda: {(): tls.current().trust.revocations.next_update or 0.0})
    observe_counter(meter, names.TLS_HANDSHAKES, lambda: {(): tls.handshakes})
    observe_counter(meter, names.TLS_RELOAD_FAILURES, lambda: {(): tls.failed_reloads})
