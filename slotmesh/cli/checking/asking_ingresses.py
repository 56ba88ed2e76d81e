"""Asks ingresses who they are, by HTTP as their clients do: the controller knows of none, so they are named.

Invariants: an ingress that does not answer in time is an answer, too. What answers has `ANSWER_WITHIN_S` for all that
is asked of it, however it spreads its bytes, and a bounded number of them. Its certificate has to be one that HTTP
clients of this machine take, or of the mesh's authority, for the name by which it is asked. A token is sent by TLS
only.
Owner: `gathering.py`.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any, Final

from slotmesh.cli.checking.http_exchange import HttpExchange
from slotmesh.cli.checking.seen import AnnouncedAddress, IngressFacts, IngressUrl, ServerAnswer, Validity
from slotmesh.cli.credentials import credentials
from slotmesh.client.tls import Tls
from slotmesh.security.secret_files import authorities_in
from slotmesh.security.token_source import TokenSource
from slotmesh.units import parse_host_port

ANSWER_WITHIN_S: Final = 3.0
_MAX_BYTES: Final = 16 * 1024 * 1024
_NO_INGRESS: Final = "what answers there is no ingress"


async def ask_ingresses(urls: Sequence[IngressUrl]) -> tuple[ServerAnswer, ...]:
    """An answer for each, in this order."""
    return tuple(await asyncio.gather(*[asyncio.to_thread(_ask, each) for each in urls]))


def _ask(url: IngressUrl) -> ServerAnswer:
    tls = credentials().tls
    by_tls = url.by_tls if url.by_tls is not None else tls is not None
    announced = AnnouncedAddress(subject=f"ingress {url.address}", kind="ingress", address=url.address)
    host, port = parse_host_port(url.address)
    try:
        with HttpExchange(host, port, _context(tls) if by_tls else None, ANSWER_WITHIN_S) as exchange:
            certificate = _validity(exchange.shown_certificate())
            ready, page = exchange.get("/-/readyz", {}, _MAX_BYTES)
            if ready not in (200, 503):
                return ServerAnswer(announced=announced, problem=_NO_INGRESS)
            why = page[:1_024].decode("utf-8", "replace").partition("\n")[0]
            status, page = exchange.get("/-/routes", _authorization() if by_tls else {}, _MAX_BYTES)
    except (OSError, HTTPException, UnicodeError) as error:  # SSLError and TimeoutError are OSErrors
        return ServerAnswer(announced=announced, problem=_words(error))
    document = _document(page)
    told = document if status == 200 and isinstance(document, dict) else {}
    follows = told.get("follows_controller")
    return ServerAnswer(
        announced=announced,
        version=str(told.get("version", "")),
        certificate=certificate,
        ingress=IngressFacts(
            by_tls=by_tls,
            not_ready="" if ready == 200 else why,
            tells_routes=status == 200,
            follows_controller=follows if isinstance(follows, bool) else None,
            routes_held=told.get("routes_held") is True,
        ),
    )


def _context(tls: Tls | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if tls is not None and tls.ca is not None:
        context.load_verify_locations(cadata=authorities_in(tls.ca))
    return context


def _document(page: bytes) -> Any:
    """None where it is none."""
    try:
        return json.loads(page)
    except (ValueError, RecursionError):
        return None


def _authorization() -> dict[str, str]:
    token = credentials().token
    return {} if token is None else {"authorization": TokenSource(token).authorization()}


def _validity(shown: dict[str, Any]) -> Validity | None:
    begin, end = shown.get("notBefore"), shown.get("notAfter")
    if not isinstance(begin, str) or not isinstance(end, str):
        return None
    return Validity(ssl.cert_time_to_seconds(begin), ssl.cert_time_to_seconds(end))


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return "it does not speak TLS, or not with this command"
    if isinstance(error, TimeoutError):
        return f"no answer within {ANSWER_WITHIN_S:g} s"
    if isinstance(error, UnicodeError):
        return "that is no name of a host"
    if isinstance(error, HTTPException):
        return _NO_INGRESS
    return getattr(error, "strerror", None) or str(error)
