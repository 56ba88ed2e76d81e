"""Failed handshakes: how often a peer is logged, and what an exception means."""

from __future__ import annotations

import logging

import pytest

from slotmesh.telemetry.security_metrics import MAX_PEERS, FailedHandshakes, HandshakeProblem, problem_of


class Reasoned(OSError):
    def __init__(self, reason: str) -> None:
        super().__init__(1, f"[SSL: {reason}] words (_ssl.c:1)")
        self.reason = reason


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (Reasoned("HTTP_REQUEST"), HandshakeProblem.PLAIN),
        (Reasoned("WRONG_VERSION_NUMBER"), HandshakeProblem.PLAIN),
        (Reasoned("TLSV1_ALERT_UNKNOWN_CA"), HandshakeProblem.REFUSED),
        (Reasoned("TLSV1_ALERT_DECRYPT_ERROR"), HandshakeProblem.REFUSED),
        (Reasoned("SSLV3_ALERT_CERTIFICATE_UNKNOWN"), HandshakeProblem.REFUSED),
        (Reasoned("CERTIFICATE_VERIFY_FAILED"), HandshakeProblem.CERTIFICATE),
        (Reasoned("NO_SHARED_CIPHER"), HandshakeProblem.VERSION),
        (Reasoned("TLSV1_ALERT_PROTOCOL_VERSION"), HandshakeProblem.VERSION),
        (Reasoned("UNEXPECTED_EOF_WHILE_READING"), HandshakeProblem.LEFT),
        (ConnectionResetError(104, "Connection reset by peer"), HandshakeProblem.LEFT),
        (ConnectionAbortedError("SSL handshake is taking longer than 5 seconds"), HandshakeProblem.TIME),
        (TimeoutError(), HandshakeProblem.TIME),
        (Reasoned("SOMETHING_NEW"), HandshakeProblem.OTHER),
        (OSError(5, "Input/output error"), HandshakeProblem.OTHER),
    ],
)
def test_what_an_exception_means(error: OSError, problem: HandshakeProblem) -> None:
    assert problem_of(error) is problem


def test_a_peer_is_logged_at_first_and_then_ever_less_often(caplog: pytest.LogCaptureFixture) -> None:
    clock = [0.0]
    failures = FailedHandshakes("https", lambda: clock[0])
    for second in range(600):
        clock[0] = float(second)
        failures.failed("10.0.0.1", 4_000 + second, Reasoned("HTTP_REQUEST"))
    failures.failed("10.0.0.2", 1, Reasoned("HTTP_REQUEST"))
    assert failures.counts == {HandshakeProblem.PLAIN: 601}
    lines = [str(record.__dict__) for record in caplog.records if "handshake failed" in record.getMessage()]
    assert sum("10.0.0.1:" in line for line in lines) == 9, "at 0, 2, 6, 14, 30, 62, 126, 254 and 510 s"
    assert sum("10.0.0.2:1" in line for line in lines) == 1
    assert any("times_before" in line for line in lines)


def test_many_addresses_are_few_entries_and_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailedHandshakes("https", lambda: 0.0)
    with caplog.at_level(logging.WARNING):
        for number in range(5 * MAX_PEERS):
            failures.failed(f"2001:db8::{number:x}", 1, Reasoned("HTTP_REQUEST"))
    assert failures.counts[HandshakeProblem.PLAIN] == 5 * MAX_PEERS
    assert len(failures._peers) == MAX_PEERS + 1
    lines = [record for record in caplog.records if "handshake failed" in record.getMessage()]
    assert len(lines) == MAX_PEERS + 1
    assert "[2001:db8::0]:1" in str(lines[0].__dict__)
