"""Identities and roles, from the names in certificates and tokens, and the identity of the running rpc's caller.

Purpose: the one parser of names of the form `spiffe://TRUST_DOMAIN/ROLE/...`, and the DNS name by which servers of a
role are known.
Invariants: a name that is not fully valid has no identity and no role. `CALLER` and `RPC` are set once per rpc, before
its handler runs; tasks that the handler starts inherit them. Without authentication the caller is `ANYBODY`.
Source: SPIFFE ID, https://github.com/spiffe/spiffe/blob/main/standards/SPIFFE-ID.md.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b, sha256
from typing import Final, Protocol

_URI: Final = re.compile(r"spiffe://([a-z0-9._-]{1,255})/([a-z]+)(?:/([A-Za-z0-9][A-Za-z0-9_.-]{0,62}))?")
_LABEL: Final = re.compile(r"[a-wyz0-9][a-z0-9-]{0,61}[a-z0-9]|[a-wyz0-9]")
"""Backends whose name is a DNS label. None begins with `x`, which marks the labels of all other names."""


class Role(StrEnum):
    """A role of an identity. Each rpc declares in its proto which roles may call it."""

    VIEWER = "viewer"
    """Reads status, metrics and events."""
    INVOKER = "invoker"
    """Calls endpoints."""
    OPERATOR = "operator"
    """Changes the specification."""
    ROUTER = "router"
    REPLICA = "replica"
    CONTROLLER = "controller"


SERVERS: Final = (Role.CONTROLLER, Role.ROUTER, Role.REPLICA)
"""Roles of members of the mesh, each of which has servers."""

INGRESS: Final = "ingress"
"""The kind of an ingress: an invoker in the mesh, and a server to clients of its HTTPS ports."""
_ROLES_OF: Final = {
    "controller": frozenset({Role.CONTROLLER}),
    "router": frozenset({Role.ROUTER}),
    "replica": frozenset({Role.REPLICA}),
    INGRESS: frozenset({Role.INVOKER}),
    "client": frozenset({Role.INVOKER}),
    "viewer": frozenset({Role.VIEWER}),
    "operator": frozenset({Role.OPERATOR, Role.VIEWER, Role.INVOKER}),
}
_NAMED: Final = frozenset({"client", "viewer", "operator"})
"""Kinds that have a name. Of the others only replicas may have one, the name of their backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The holder of a valid certificate or token."""

    name: str
    """The name in logs and quotas: `client/alice`, `replica/digits-v1`, `router`."""
    roles: frozenset[Role]
    endpoints: frozenset[str] | None = None
    """Endpoints that an invoker may call; None: all."""
    backend: str | None = None
    """For a replica: the backend that it may serve; None: any."""
    expires_at: float | None = None
    """When the credential expires, seconds since 1970; None: never."""

    def may_call(self, endpoint: str) -> bool:
        """Whether the identity may call this endpoint, if it is an invoker."""
        return self.endpoints is None or endpoint in self.endpoints

    def may_serve(self, backend: str) -> bool:
        """Whether the identity may serve as a replica of this backend."""
        return Role.REPLICA in self.roles and self.backend in (None, backend)


def is_member(name: str) -> bool:
    """Whether this name is that of a router, a replica or a controller."""
    return name.partition("/")[0] in SERVERS


ANYBODY: Final = Identity(name="anybody", roles=frozenset(Role))
"""The caller of a server without TLS, which does not authenticate."""


def identity_of(uri: str, trust_domain: str) -> Identity | None:
    """The identity of a certificate's URI; None if it is not one of this trust domain."""
    if (found := _URI.fullmatch(uri)) is None:
        return None
    domain, kind, name = found.groups()
    roles = _ROLES_OF.get(kind)
    if domain != trust_domain or roles is None:
        return None
    if (kind in _NAMED) != (name is not None) and not (kind == "replica" and name is not None):
        return None
    return Identity(name=f"{kind}/{name}" if name else kind, roles=roles, backend=name if kind == "replica" else None)


def uri_of(trust_domain: str, kind: str, name: str = "") -> str:
    """The URI of an identity: `kind` is `controller`, `router`, `replica`, `ingress`, `client`, `viewer` or `operator`.

    Raises:
        ValueError: the identity is invalid; the message has the reason.
    """
    uri = f"spiffe://{trust_domain}/{kind}/{name}" if name else f"spiffe://{trust_domain}/{kind}"
    if kind not in _ROLES_OF:
        raise ValueError(f"{kind!r} is no kind of identity; there are {', '.join(_ROLES_OF)}")
    if identity_of(uri, trust_domain) is None:
        expected = "needs a name" if kind in _NAMED and not name else "has a name or trust domain that cannot be used"
        raise ValueError(f"{uri} {expected}: letters, digits, _ . and -, 63 at most; trust domains in lower case")
    return uri


def trust_domain_of(uri: str) -> str | None:
    """The trust domain of the URI of an identity or an authority; None for another URI."""
    found = re.fullmatch(r"spiffe://([a-z0-9._-]{1,255})(?:/.*)?", uri)
    return None if found is None else found.group(1)


def server_name(trust_domain: str, role: Role, backend: str = "") -> str:
    """The DNS name in the certificates of servers of this role, independent of their address.

    Clients verify this name instead of the address, as replicas start at addresses that are not known before.
    `replica` with a backend: the name of replicas of that backend, which a certificate for any backend matches by its
    wildcard. Backends whose names are not DNS labels get a label derived from a hash.
    """
    if not backend:
        return f"{role}.{trust_domain}"
    label = backend if _LABEL.fullmatch(backend) else f"x{sha256(backend.encode()).hexdigest()[:40]}"
    return f"{label}.{role}.{trust_domain}"


def name_of_another(dns_name: str, uri: str) -> str | None:
    """The server that a certificate with this DNS name, but another URI, could impersonate; None if there is none.

    `dns_name` may begin with `*.`.
    """
    trust_domain, own = trust_domain_of(uri) or "", server_names_of(uri)
    if dns_name in own:
        return None
    label, _, parent = dns_name.partition(".")
    of_replicas = server_name(trust_domain, Role.REPLICA)
    if parent == of_replicas and f"*.{of_replicas}" not in own:
        return f"a replica ({dns_name})"
    for kind in (*SERVERS, INGRESS):
        name = f"{kind}.{trust_domain}"
        if name not in own and (dns_name == name or (label == "*" and parent == trust_domain)):
            return f"{'an' if kind == INGRESS else 'a'} {kind} ({name})"
    return None


def server_names_of(uri: str) -> tuple[str, ...]:
    """The DNS names that a certificate with this URI needs; none if the identity has no server."""
    trust_domain = trust_domain_of(uri) or ""
    identity = identity_of(uri, trust_domain)
    if identity is None:
        return ()
    if identity.name == INGRESS:
        return (f"{INGRESS}.{trust_domain}",)
    for role in SERVERS:
        if role in identity.roles:
            of_role = server_name(trust_domain, role)
            if role is not Role.REPLICA:
                return (of_role,)
            backend = server_name(trust_domain, role, identity.backend) if identity.backend else f"*.{of_role}"
            return (of_role, backend)
    return ()


class Credential(Protocol):
    """An accepted token or certificate, without secrets."""

    @property
    def identity(self) -> Identity:
        """The identity, with the time at which the credential expires."""

    def problem(self) -> str | None:
        """Why the credential is not accepted any more, except for its expiry; None if it is. Shown to its holder.

        Called once a second for each stream, on the event loop: verifies again only after the keys or authorities have
        changed.
        """


CALLER: Final[ContextVar[Identity]] = ContextVar("slotmesh_caller", default=ANYBODY)

RPC: Final[ContextVar[str]] = ContextVar("slotmesh_rpc", default="")


def current_rpc() -> str:
    """The full name of the rpc that the running task serves; empty without authentication."""
    return RPC.get()


def caller() -> Identity:
    """The identity that makes the rpc which the running task serves."""
    return CALLER.get()


def caller_name() -> str:
    """The name of the caller; empty without authentication."""
    identity = CALLER.get()
    return "" if identity is ANYBODY else identity.name


def of_caller(chosen_id: str) -> str:
    """An id chosen by a caller, made unique among callers: 32 hexadecimal digits. Unchanged without authentication."""
    name = caller_name()
    if not chosen_id or not name:
        return chosen_id
    return blake2b(f"{name}\0{chosen_id}".encode(), digest_size=16).hexdigest()


def quota_name() -> str:
    """The name by which the caller's quotas are counted; empty if it has none, as members of the mesh."""
    name = caller_name()
    return "" if is_member(name) else name
