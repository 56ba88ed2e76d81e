"""The input and findings of a check: the controller's view of a mesh, and each server's response. Pure values."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from slotmesh.cli.controller_view import Snapshot
from slotmesh.security.identity import Role
from slotmesh.spec.model import Prospect
from slotmesh.spec.routes import Route
from slotmesh.v1.info_service_pb2 import GetServerInfoResponse


class Severity(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """It works, but may stop working soon, or does not work for every client."""
    ERROR = "error"
    """Something does not work."""


class Section(StrEnum):
    """What is looked at, in the order in which it is shown."""

    CONTROLLER = "controller"
    REACHABILITY = "reachability"
    HTTP = "http"
    CERTIFICATES = "certificates"
    SECURITY = "security"
    VERSIONS = "versions"
    CLOCKS = "clocks"
    DESCRIPTORS = "open descriptors"
    EXPORTS = "traces and metrics"
    ROUTERS = "routers"
    BACKENDS = "backends"
    ENDPOINTS = "endpoints"
    HOST = "without the host"


@dataclass(frozen=True, slots=True)
class MeshFinding:
    """One thing that was looked at."""

    section: Section
    severity: Severity
    subject: str
    """As `router/r-1`, which other commands take; empty for the mesh."""
    text: str
    fix: str = ""
    """The advice; empty if there is no problem."""


def ok(section: Section, text: str) -> MeshFinding:
    return MeshFinding(section, Severity.OK, "", text)


_CREDENTIALS: Final = ("certificate", "credential", "token")


def credential_fix(why: str) -> str:
    """The advice if a member is refused for its certificate or token, by the reason; empty for other reasons."""
    if not any(word in why for word in _CREDENTIALS):
        return ""
    return "give it a certificate or token that is valid (`slotmesh certs show`, `slotmesh certs rotate`)"


_ROLES: Final = {"router": Role.ROUTER, "replica": Role.REPLICA}


@dataclass(frozen=True, slots=True)
class Validity:
    """The validity of a certificate, in seconds since 1970."""

    begins_at: float
    ends_at: float

    @classmethod
    def shown(cls, certificate: Mapping[str, Any]) -> Validity | None:
        """That of a certificate as `ssl` shows it; None if it shows none."""
        begin, end = certificate.get("notBefore"), certificate.get("notAfter")
        if not isinstance(begin, str) or not isinstance(end, str):
            return None
        return cls(ssl.cert_time_to_seconds(begin), ssl.cert_time_to_seconds(end))


@dataclass(frozen=True, slots=True)
class IngressUrl:
    """The address of an ingress to check."""

    address: str
    by_tls: bool | None = None
    """None: as the command connects to the mesh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressFacts:
    """The facts that an ingress reports."""

    by_tls: bool
    not_ready: str = ""
    """The reason why it is not ready; empty if it is."""
    tells_routes: bool = True
    """False: it requires a token for that."""
    follows_controller: bool | None = None
    """Whether it receives changes from a controller; None: not reported."""
    routes_held: bool = False
    """It keeps its routes, as the controller's state file is an older copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedAddress:
    """An address that a member announces to others."""

    subject: str
    """As `router/r-1`."""
    kind: str
    """`controller`, `standby`, `router`, `replica`, `metrics` of one of them, or `ingress`."""
    address: str
    server_id: str = ""
    """Of the server that should answer."""
    backend: str = ""
    """Of a replica."""
    is_listed: bool = True
    """A member has announced it; False: only the command was given it."""

    @property
    def role(self) -> Role:
        """Of the server that should answer."""
        return _ROLES.get(self.kind, Role.CONTROLLER)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    """The response of the server at an address, or the failure to get one."""

    announced: AnnouncedAddress
    problem: str = ""
    """The reason for the lack of a response; empty if there is one."""
    info: GetServerInfoResponse = field(default_factory=GetServerInfoResponse)
    """What the server states of itself; of ingresses the version; empty if there is no response."""
    ahead_s: float | None = None
    """The lead of its clock over this machine's clock; negative: it lags. None: not reported."""
    uncertain_s: float = 0.0
    """The error bound of `ahead_s`: half the response time."""
    certificate: Validity | None = None
    """The validity of the presented certificate; None: none presented, or it is not valid."""
    certificate_uris: tuple[str, ...] = ()
    """The names in that certificate."""
    ingress: IngressFacts | None = None
    """Of ingresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTls:
    """The TLS files with which the command itself connects."""

    by_tls: bool = False
    name: str = ""
    """The identity in the certificate; empty if there is no certificate."""
    certificate: Validity | None = None
    authority: Validity | None = None


@dataclass(frozen=True, slots=True)
class LostMember:
    """A router or replica that stopped reporting and has not returned."""

    subject: str
    """As `router/r-1`."""
    at: float | None
    """Seconds since 1970; None if no event of it is kept."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenMesh:
    """All input of a check."""

    now: float
    """Seconds since 1970, by this machine's clock."""
    own_version: str
    snapshot: Snapshot
    answers: tuple[ServerAnswer, ...]
    routes: tuple[Route, ...] = ()
    """HTTP routes."""
    own_tls: OwnTls = field(default_factory=OwnTls)
    lost_members: tuple[LostMember, ...] = ()
    """Routers of the last hour, and replicas that are suspect now."""
    silent_routers: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Seconds since the newest report, for routers with overdue reports."""
    prospects: Mapping[str, Prospect] = field(default_factory=lambda: MappingProxyType({}))
    """Whether replicas of a backend without a ready one are expected, by backend."""
    lagging_routers: frozenset[str] = frozenset()
    """Ids of routers that have lacked the newest table for a while."""
    unlinked: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Ready replicas that a router has had no link to for a while, by its id."""
    failing_calls: Mapping[str, tuple[float, float]] = field(default_factory=lambda: MappingProxyType({}))
    """Failures and calls a second, of the last seconds, by endpoint."""
