"""What a connection that could not be made says of certificates, in words with the way out. Pure.

Purpose: gRPC tells a failed handshake as UNAVAILABLE, in the words of its TLS library. A server that refuses a
certificate only closes the connection; what that means follows from what was shown to it.
Invariants: connections that break later, and servers that are not there, are told as gRPC tells them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_NOT_CONNECTED: Final = "failed to connect to all addresses"
"""How gRPC begins the details of rpcs for which no connection could be made."""
_IN_HANDSHAKE: Final = "Handshake "
"""Begins what is said of a connection that broke in the handshake. A server that refuses our certificate goes on."""
_CLOSED: Final = ("Socket closed", "Connection reset", "Broken pipe", "EOF", "FD Shutdown")
_REASONS: Final = (
    (
        ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"),
        (
            "the server there talks plain text, not TLS: start it with certificates, or leave yours out (--tls-dir and "
            "SLOTMESH_TLS_*; in Python connect(tls=...))"
        ),
    ),
    (
        ("has expired",),
        "the certificate of the server there has expired: issue it again there (`slotmesh certs rotate`)",
    ),
    (
        ("not yet valid",),
        "the certificate of the server there is not valid yet: compare the clocks of both machines",
    ),
    (
        ("CERTIFICATE_VERIFY_FAILED", "certificate signature failure", "CERT_SIGNATURE_FAILURE"),
        (
            "the certificate of the server there is not signed by an authority trusted here: give the mesh's own "
            "(ca.crt of --tls-dir, or --tls-ca; in Python Tls(ca=...))"
        ),
    ),
)
"""Parts of what the TLS library says, and what it means. The first that fits counts."""
_OTHER_NAME: Final = "ostname Verification"
_GIVE: Final = "(--tls-dir, or --tls-ca, --tls-cert and --tls-key; in Python connect(tls=slotmesh.Tls.from_dir(...)))"


@dataclass(frozen=True, slots=True)
class Attempt:
    """What was shown to the server, and what it should have been."""

    by_tls: bool
    server: str
    """`router`, `replica` or `controller`."""
    name: str = ""
    """The DNS name that its certificate should have; empty: that of its address."""
    identity: str = ""
    """What our own certificate names; empty where none was shown."""


def handshake_problem(details: str, attempt: Attempt) -> str | None:
    """Why no connection was made, from the details of the rpc that failed; None where it is not for certificates."""
    if not details.startswith(_NOT_CONNECTED):
        return None
    if any(each in details for each in _CLOSED):
        return None if _IN_HANDSHAKE in details else _closed(attempt)
    if not attempt.by_tls:
        return None
    if _OTHER_NAME in details:
        expected = f"no {attempt.server} of this mesh ({attempt.name})" if attempt.name else "not this address"
        return f"the certificate of the server there names {expected}: see whether the address is the right one"
    return next((why for parts, why in _REASONS if any(part in details for part in parts)), None)


def _closed(attempt: Attempt) -> str:
    if not attempt.by_tls:
        return (
            "the server there closed the connection before it had said anything, as those do that ask for TLS: give "
            f"certificates {_GIVE}"
        )
    if not attempt.identity:
        return (
            "the server there closed the connection at once, as those do that ask for a certificate, and none was "
            f"given: give one {_GIVE}; with a token, name its --token-port"
        )
    return (
        f"the server there closed the connection when it saw the certificate of {attempt.identity}: that is not "
        "signed by an authority that the server trusts, or has expired (`slotmesh certs show`)"
    )
