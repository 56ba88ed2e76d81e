"""Explains failed connections whose cause is a certificate, a name, or a server without gRPC, with the way out. Pure.

Purpose: gRPC reports a failed handshake as UNAVAILABLE, in the words of its TLS library. A server that refuses a
certificate only closes the connection; the cause follows from what the client has presented.
Invariants: connections that break later, and unreachable servers, keep gRPC's own message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_NOT_CONNECTED: Final = "failed to connect to all addresses"
"""Prefix of the details of rpcs for which no connection could be made."""
_IN_HANDSHAKE: Final = "Handshake "
"""Prefix of errors of a connection that broke during the handshake. A refused client certificate is reported later."""
_CLOSED: Final = ("Socket closed", "Connection reset", "Broken pipe", "EOF", "FD Shutdown")
_REASONS: Final = (
    (
        ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"),
        (
            "the server at this address uses plain text, not TLS: start it with certificates, or leave yours out "
            "(--tls-dir and SLOTMESH_TLS_*; in Python connect(tls=...))"
        ),
    ),
    (
        ("has expired",),
        "the certificate of the server has expired: issue it again there (`slotmesh certs rotate`)",
    ),
    (
        ("not yet valid",),
        "the certificate of the server is not valid yet: compare the clocks of both machines",
    ),
    (
        ("CERTIFICATE_VERIFY_FAILED", "certificate signature failure", "CERT_SIGNATURE_FAILURE"),
        (
            "the certificate of the server is not signed by an authority trusted here: give the mesh's own "
            "(ca.crt of --tls-dir, or --tls-ca; in Python Tls(ca=...))"
        ),
    ),
)
"""Parts of the TLS library's messages, and the explanation. The first match counts."""
_OTHER_NAME: Final = "ostname Verification"
_UNRESOLVED: Final = ("errors resolving ", "DNS resolution failed")
"""Prefixes of the details of rpcs to a name without an address."""
_OTHER_PROTOCOL: Final = "Failed parsing HTTP/2"
_GIVE: Final = "(--tls-dir, or --tls-ca, --tls-cert and --tls-key; in Python connect(tls=slotmesh.Tls.from_dir(...)))"


@dataclass(frozen=True, slots=True)
class ConnectionProblem:
    """Why no connection was made, with the way out."""

    text: str
    is_certain: bool = True
    """Whether retries are useless until the client or the server is configured differently."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What the client presented, and which server it expected."""

    by_tls: bool
    server: str
    """`router`, `replica` or `controller`."""
    name: str = ""
    """The DNS name that the server's certificate should have; empty: that of the address."""
    identity: str = ""
    """The identity of the client's certificate; empty if it presented none."""


REQUIRES_TLS: Final = ConnectionProblem(
    f"the server does not use plain text, it requires TLS: give certificates {_GIVE}"
)
"""Of a server that closes connections in plain text, and answers the first message of TLS."""


def handshake_problem(details: str, attempt: Attempt) -> ConnectionProblem | None:
    """Why no connection was made, from the details of the failed rpc; None if neither certificates nor the protocol.

    A server that closes connections in plain text may require TLS, which the details do not show: it is uncertain.
    """
    if details.startswith(_UNRESOLVED):
        return ConnectionProblem("the name of the host does not resolve: correct it", is_certain=False)
    if not details.startswith(_NOT_CONNECTED):
        return None
    if _OTHER_PROTOCOL in details:
        return ConnectionProblem(
            f"what answers there does not use gRPC: name the port of a {attempt.server}, not one for HTTP or metrics"
        )
    if any(each in details for each in _CLOSED):
        return None if _IN_HANDSHAKE in details else _closed(attempt)
    if not attempt.by_tls:
        return None
    if _OTHER_NAME in details:
        expected = f"no {attempt.server} of this mesh ({attempt.name})" if attempt.name else "not this address"
        return ConnectionProblem(f"the certificate of the server names {expected}: check the address")
    reasons = (why for parts, why in _REASONS if any(part in details for part in parts))
    return next(map(ConnectionProblem, reasons), None)


def _closed(attempt: Attempt) -> ConnectionProblem:
    if not attempt.by_tls:
        return ConnectionProblem(
            "the server closed the connection before its first byte. Behind a published port it may still be starting: "
            f"try again; or it requires TLS: give certificates {_GIVE}",
            is_certain=False,
        )
    if not attempt.identity:
        return ConnectionProblem(
            "the server closed the connection immediately, as servers that require a certificate do, and none was "
            f"given: give one {_GIVE}; with a token, name its --token-port"
        )
    return ConnectionProblem(
        f"the server closed the connection when it received the certificate of {attempt.identity}: that is not "
        "signed by an authority that the server trusts, or has expired (`slotmesh certs show`)"
    )
