"""The input and findings of a check: the controller's view of a mesh, and each server's response. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from slotmesh.cli.snapshot import Snapshot
from slotmesh.security.identity import Role
from slotmesh.spec.routes import Route


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
    ROUTERS = "routers"
    BACKENDS = "backends"
    ENDPOINTS = "endpoints"


@dataclass(frozen=True, slots=True)
class MeshFinding:
    """One thing that was looked at."""

    section: Section
    severity: Severity
    subject: str
    """As `router/r-1`, which other commands take; empty for the mesh."""
    text: str
    fix: str = ""
    """What to do; empty where all is well."""


def ok(section: Section, text: str) -> MeshFinding:
    return MeshFinding(section, Severity.OK, "", text)


_ROLES: Final = {"router": Role.ROUTER, "replica": Role.REPLICA}


@dataclass(frozen=True, slots=True)
class Validity:
    """Of a certificate, seconds since 1970."""

    begins_at: float
    ends_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFacts:
    """What a server goes by as it asks for certificates. Times are seconds since 1970."""

    revoked: int = 0
    """Certificates that its lists name."""
    lists_made_at: Mapping[str, float | None] = field(default_factory=lambda: MappingProxyType({}))
    """The newest list of each authority that it trusts, by its id; None where it has none of it."""
    lists_end_at: float | None = None
    """When the first one should have been replaced; None: never."""
    keeps_older_files: bool = False
    """Its files have changed and cannot be used."""


@dataclass(frozen=True, slots=True)
class IngressUrl:
    """Where an ingress is asked."""

    address: str
    by_tls: bool | None = None
    """None: as the command connects to the mesh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressFacts:
    """The facts that an ingress reports."""

    by_tls: bool
    not_ready: str = ""
    """Why it is not; empty where it is."""
    tells_routes: bool = True
    """False: it wants a token first."""
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

    @property
    def role(self) -> Role:
        """Of the server that should answer."""
        return _ROLES.get(self.kind, Role.CONTROLLER)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    """What answered at an address."""

    announced: AnnouncedAddress
    problem: str = ""
    """Why nothing did; empty where something has."""
    server_id: str = ""
    version: str = ""
    leads: bool | None = None
    """Of controllers."""
    leader_address: str = ""
    store_problem: str = ""
    """Of a controller that leads: why its state cannot be written; empty if it can."""
    ahead_s: float | None = None
    """How far its clock is before that of this machine; negative: behind. None: it does not say."""
    uncertain_s: float = 0.0
    """By how much `ahead_s` may be wrong: half the time that the answer took."""
    open_descriptors: int = 0
    max_descriptors: int = 0
    """0: not known."""
    certificate: Validity | None = None
    """Of the one that it shows; None: it shows none, or none that is valid."""
    certificate_uris: tuple[str, ...] = ()
    """Whom that one names."""
    tls: TlsFacts | None = None
    """None in plain text, and where it does not say."""
    ingress: IngressFacts | None = None
    """Of ingresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTls:
    """What the command itself connects with."""

    by_tls: bool = False
    name: str = ""
    """The identity that the certificate names; empty where there is none."""
    certificate: Validity | None = None
    authority: Validity | None = None


@dataclass(frozen=True, slots=True)
class LostMember:
    """A router or replica that has fallen silent, and was not seen since."""

    subject: str
    """As `router/r-1`."""
    at: float | None
    """Seconds since 1970; None if no event of it is kept."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenMesh:
    """All that was seen."""

    now: float
    """Seconds since 1970, by this machine's clock."""
    own_version: str
    snapshot: Snapshot
    answers: tuple[ServerAnswer, ...]
    routes: tuple[Route, ...] = ()
    """Paths of HTTP, and what they lead to."""
    own_tls: OwnTls = field(default_factory=OwnTls)
    lost_members: tuple[LostMember, ...] = ()
    """Routers of the last hour, and replicas that are suspect now."""
    silent_routers: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Seconds since the newest report, of those that have sent none for long."""
    lagging_routers: frozenset[str] = frozenset()
    """Ids of those whose table is not the newest, and was not a while before."""
    unlinked: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Ready replicas that a router has had no link to for a while, by its id."""
