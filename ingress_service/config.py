"""The settings of an ingress process."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Final, Self

from ingress_service.core.peers import ForwardedHeader, networks_of
from slotmesh.config import Duration, ServerTargets, ServiceSettings, Size
from slotmesh.config.declaring import Field, model_validator
from slotmesh.config.listening import SET_UP, Reach, reach_of
from slotmesh.config.security import TlsSettings
from slotmesh.streams.limits import MAX_PAYLOAD_BYTES
from slotmesh.units import parse_names

_HEADER_NAME: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_NOT_HANDED: Final = frozenset({"authorization", "proxy-authorization", "connection", "transfer-encoding", "upgrade"})


def _check_origins(text: str) -> None:
    for origin in parse_names(text):
        if origin != "*" and (not origin.startswith(("http://", "https://")) or origin.count("/") != 2):
            raise ValueError(f"{origin!r} is no origin: write https://HOST or https://HOST:PORT")


def _check_networks(text: str) -> None:
    try:
        networks_of(text)
    except ValueError as error:
        raise ValueError(f"{error}: write addresses or networks, as 10.0.0.0/8, with commas between them") from None


def _check_headers(text: str) -> None:
    for name in parse_names(text.lower()):
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a header's name")
        if name in _NOT_HANDED:
            raise ValueError(f"{name} is not for handlers: leave it out")


class IngressSettings(ServiceSettings, TlsSettings):
    """The ingress: HTTP in front of the mesh."""

    port: int = Field(8080, ge=0, le=65_535, description="Port to listen on; 0 takes a free one.")
    metrics_port: int = Field(
        9467, ge=-1, le=65_535, description="Port of the Prometheus endpoint; 0: a free one, -1: none."
    )
    routers: ServerTargets = Field(
        "127.0.0.1:7071",
        description="Where routers are: several HOST:PORT, of which the first that answers is used; or "
        "dns:///NAME:PORT, over whose addresses calls are spread.",
    )
    controller: ServerTargets = Field(
        "127.0.0.1:7070",
        description="Where the controller is, which sends the routes: several HOST:PORT, or dns:///NAME:PORT; the one "
        "that leads is used.",
    )
    default_routes: bool = Field(
        True, description="Whether POST /ENDPOINT/METHOD calls each method of each endpoint, without a route."
    )
    https_cert: Path | None = Field(
        None, description="PEM file with the certificate that HTTP clients are shown, for the names that they use."
    )
    https_key: Path | None = Field(None, description="PEM file with its key.")
    anonymous: bool = Field(
        False,
        description="With certificates of the mesh: whether requests without a bearer token are called as the ingress "
        "itself, by its own certificate. They are refused otherwise.",
    )
    max_callers: int = Field(
        256, ge=1, le=10_000, description="Bearer tokens whose connections to routers are held at the same time."
    )
    max_body_size: Size = Field(
        MAX_PAYLOAD_BYTES, ge=1, le=MAX_PAYLOAD_BYTES, description="Largest body of a request, and WebSocket message."
    )
    max_held_size: Size = Field(
        256 * 1024 * 1024,
        ge=1,
        description="Bodies of all requests that are being read or called, and what they are converted to; more is "
        "refused.",
    )
    max_header_size: Size = Field(
        32 * 1024, ge=1024, le=1024 * 1024, description="Request line and headers of a request."
    )
    max_pipelined_requests: int = Field(
        64, ge=0, le=10_000, description="Requests that may wait on a connection behind the one that is answered."
    )
    max_ahead_size: Size = Field(
        64 * 1024,
        ge=1024,
        description="What a client may send ahead of its answers: requests that wait, messages of a WebSocket.",
    )
    max_connections: int = Field(10_000, ge=1, description="Connections that are held; more are closed with a 503.")
    max_requests: int = Field(10_000, ge=1, description="Requests in flight; more are refused with a 503.")
    http_trusted_proxies: str = Field(
        "",
        max_length=8_192,
        check=_check_networks,
        description="Addresses and networks of reverse proxies, with commas between them, that state in a header the "
        "origin of a request. Empty: none; all requests of a proxy then share what one address may have.",
    )
    http_forwarded_header: ForwardedHeader = Field(
        ForwardedHeader.X_FORWARDED_FOR,
        description="The header that these proxies set, x-forwarded-for or forwarded; the other one is not read.",
    )
    handler_headers: str = Field(
        "accept,accept-language,content-type,origin,referer,user-agent",
        max_length=8_192,
        check=_check_headers,
        description="Names of request headers that handlers get (slotmesh.context().http.headers), with commas between "
        "them; never authorization, nor what is of the connection.",
    )
    header_timeout: Duration = Field(
        timedelta(seconds=10),
        ge=timedelta(milliseconds=100),
        description="Time a request has for its headers, and before the first one of a connection its TLS handshake.",
    )
    body_timeout: Duration = Field(
        timedelta(seconds=60),
        ge=timedelta(milliseconds=100),
        description="Time a request's body has after its headers.",
    )
    send_timeout: Duration = Field(
        timedelta(seconds=60),
        ge=timedelta(milliseconds=100),
        description="How long a client may read nothing of what is sent to it.",
    )
    keep_alive: Duration = Field(
        timedelta(seconds=75), ge=timedelta(0), description="How long a connection may be idle between requests."
    )
    graceful_timeout: Duration = Field(
        timedelta(seconds=10), ge=timedelta(0), description="What requests in flight get to end when the ingress stops."
    )
    cors_origins: str = Field(
        "",
        max_length=8_192,
        check=_check_origins,
        description="Origins whose pages may call, with commas between them; * for all. Empty: none.",
    )

    @property
    def tls_names(self) -> tuple[str, ...]:
        return ("ingress", "client-ingress")

    @model_validator
    def _shows_a_certificate(self) -> Self:
        if (self.https_cert is None) is not (self.https_key is None):
            raise ValueError("--https-cert and --https-key go together")
        is_local = reach_of(self.host) in (Reach.LOOPBACK, Reach.UNIX_SOCKET)
        if not is_local and self.https_cert is None and not self.insecure:
            raise ValueError(
                f"{self.host} can be reached from other machines, and HTTP would be in plain text: give --https-cert "
                f"and --https-key, or allow it with --insecure (SLOTMESH_INSECURE=true). For the mesh itself {SET_UP}"
            )
        return self
