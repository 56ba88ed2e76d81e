"""The HTTP pages of a service: metrics, liveness, readiness.

  /metrics   for Prometheus; with TLS only for viewers, authenticated by certificate or bearer token
  /healthz   200 while the event loop runs, else 503: the process should be restarted if this persists
  /readyz    200 while grpc.health.v1 reports SERVING, else 503: the server is starting, stopping, or unable to work;
             /readyz?standbyok also 200 while a controller stands by, for probes of both controllers of a pair

Invariants: a page responds while the event loop is blocked; the pages show nothing else of the process. A token has
precedence over a certificate; other clients than viewers learn nothing of the mesh. Refusals are in the audit log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from slotmesh.errors import Failure, Reason
from slotmesh.security.audit import AUDIT
from slotmesh.security.authentication import TokenVerifier
from slotmesh.security.identity import Identity, Role, identity_of
from slotmesh.security.tokens.rules import BadToken
from slotmesh.telemetry.http_server import PEER_ENDS_AT, PEER_IS_REVOKED, PEER_URIS
from slotmesh.telemetry.instruments import on_this_loop

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


_NEEDED: Final = f"the role {Role.VIEWER} is needed"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The response to a client that may not see a page."""

    reason: Reason
    """UNAUTHENTICATED or PERMISSION_DENIED."""
    text: str
    who: Identity | None = None
    """The refused identity; None: not authenticated."""


@dataclass(frozen=True, slots=True)
class PageAccess:
    """Decides by the peer's certificate or token who may see the metrics."""

    trust_domain: str
    tokens: TokenVerifier | None = None
    """None: no token is accepted."""
    now: Callable[[], float] = field(default=time.time)
    """Seconds since 1970."""

    def refusal(
        self, uris: Sequence[str], ends_at: float, authorization: str, *, is_revoked: bool = False
    ) -> Refusal | None:
        """Why the client may not see a page for viewers; None if it may.

        `uris`: of a verified certificate, which expires at `ends_at`, and may have been revoked (`is_revoked`).
        """
        known: Identity | None
        if authorization:
            if (known := self._holder(authorization)) is None:
                return Refusal(Reason.UNAUTHENTICATED, f"{_NEEDED}, and this token is not known here\n")
        else:
            known = identity_of(uris[0], self.trust_domain) if len(uris) == 1 else None
            if known is None:
                return Refusal(Reason.UNAUTHENTICATED, f"{_NEEDED}: show a client certificate or a bearer token\n")
            if is_revoked:
                return Refusal(Reason.UNAUTHENTICATED, f"{_NEEDED}, and this certificate was revoked\n", known)
            if ends_at <= self.now():
                return Refusal(Reason.UNAUTHENTICATED, f"{_NEEDED}, and this certificate has expired\n", known)
        if Role.VIEWER not in known.roles:
            return Refusal(Reason.PERMISSION_DENIED, f"{_NEEDED}, and {known.name} does not have it\n", known)
        return None

    def _holder(self, authorization: str) -> Identity | None:
        scheme, _, token = authorization.partition(" ")
        if self.tokens is None or scheme.lower() != "bearer":
            return None
        try:
            return self.tokens.identify(token.strip())
        except BadToken:
            return None


_OK: Final = "200 OK"
_UNAVAILABLE: Final = "503 Service Unavailable"
_NOT_SERVING: Final = "not serving"
_REFUSED: Final = {Reason.UNAUTHENTICATED: "401 Unauthorized", Reason.PERMISSION_DENIED: "403 Forbidden"}
_INDEX: Final = "/metrics\n/healthz\n/readyz\n"


class Pages:
    """A WSGI application, called in threads of its server."""

    def __init__(self, metrics: WSGIApplication, access: PageAccess | None = None) -> None:
        """`metrics` serves `/metrics`, to clients that `access` admits; None: to all."""
        self._metrics = metrics
        self._access = access
        self._look: Callable[[], bool | None] | None = None
        self._why_not: Callable[[bool], str] = lambda _: _NOT_SERVING
        self._stands_by: Callable[[], bool] = lambda: False

    def look_at(
        self,
        is_serving: Callable[[], bool],
        why_not: Callable[[bool], str] = lambda _: _NOT_SERVING,
        stands_by: Callable[[], bool] = lambda: False,
    ) -> None:
        """Sets the source of readiness: `is_serving`, called on the present event loop.

        `why_not` returns a line with the reason. Its argument: whether the client may see the mesh. `stands_by`: it
        would serve, but another process does. Both are called in a thread of the server.
        """
        self._why_not, self._stands_by = why_not, stands_by
        ask = on_this_loop(lambda: {(): is_serving()})
        self._look = lambda: ask().get(())

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        match environ.get("PATH_INFO", ""):
            case "/metrics":
                if (refusal := self._refusal(environ)) is None:
                    return self._metrics(environ, start_response)
                _log_refusal(refusal, environ)
                status, text = _REFUSED[refusal.reason], refusal.text
            case "/healthz":
                status, text = self._health()
            case "/readyz":
                status, text = self._readiness(environ)
            case "" | "/":
                status, text = _OK, _INDEX
            case _:
                status, text = "404 Not Found", f"there are these pages:\n{_INDEX}"
        body = text.encode()
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
        if status.startswith("401"):
            headers.append(("WWW-Authenticate", "Bearer"))
        start_response(status, headers)
        return [body]

    def _refusal(self, environ: WSGIEnvironment) -> Refusal | None:
        if self._access is None:
            return None
        return self._access.refusal(
            environ.get(PEER_URIS, ()),
            environ.get(PEER_ENDS_AT, 0.0),
            environ.get("HTTP_AUTHORIZATION", ""),
            is_revoked=environ.get(PEER_IS_REVOKED, False),
        )

    def _health(self) -> tuple[str, str]:
        if self._look is not None and self._look() is None:
            return _UNAVAILABLE, "the event loop does not answer\n"
        return _OK, "ok\n"

    def _readiness(self, environ: WSGIEnvironment) -> tuple[str, str]:
        match self._look and self._look():
            case True:
                return _OK, "serving\n"
            case False:
                is_good = "standbyok" in environ.get("QUERY_STRING", "").split("&") and self._stands_by()
                return _OK if is_good else _UNAVAILABLE, f"{self._why_not(self._refusal(environ) is None)}\n"
            case _:
                return _UNAVAILABLE, "starting\n" if self._look is None else "the event loop does not answer\n"


def _log_refusal(refusal: Refusal, environ: WSGIEnvironment) -> None:
    failure = Failure(reason=refusal.reason, message=refusal.text)
    AUDIT.denied(refusal.who, "/metrics", failure, str(environ.get("REMOTE_ADDR", "")))
