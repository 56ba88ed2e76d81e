"""Identities: who a certificate or a token says somebody is, and which roles that gives.

Purpose: the one place that reads names of the form `spiffe://TRUST_DOMAIN/ROLE/...`, and that says under which DNS name
a server of a role is known. Pure.
Invariants: what is not understood is nobody: no role follows from a name that is almost one.
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
"""Backends whose name is a label of DNS by itself. None of them begins with the `x` of the others."""


class Role(StrEnum):
    """What somebody may be. Each rpc declares in its proto which roles may call it."""

    VIEWER = "viewer"
    """Sees what runs: status, metrics, events."""
    INVOKER = "invoker"
    """Calls endpoints."""
    OPERATOR = "operator"
    """Changes what runs."""
    ROUTER = "router"
    REPLICA = "replica"
    CONTROLLER = "controller"


SERVERS: Final = (Role.CONTROLLER, Role.ROUTER, Role.REPLICA)
"""Roles of members of the mesh, each with servers of its own."""

INGRESS: Final = "ingress"
"""Kind of an ingress: to the mesh a caller, and to who scrapes it a server, which others know by a name of its own."""
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
"""Kinds that have a name; of the rest only replicas may have one, that of their backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Somebody whose certificate or token was checked."""

    name: str
    """As logs and quotas name it: `client/alice`, `replica/digits-v1`, `router`."""
    roles: frozenset[Role]
    endpoints: frozenset[str] | None = None
    """Endpoints that an invoker may call; None: all."""
    backend: str | None = None
    """Of a replica: the backend that it may serve; None: any."""
    expires_at: float | None = None
    """When the credential ends, seconds since 1970; None: not by itself."""

    def may_call(self, endpoint: str) -> bool:
        """Whether calls of this endpoint are allowed, given the role for calls at all."""
        return self.endpoints is None or endpoint in self.endpoints

    def may_serve(self, backend: str) -> bool:
        """Whether this is a replica of that backend."""
        return Role.REPLICA in self.roles and self.backend in (None, backend)


def is_member(name: str) -> bool:
    """Whether the identity of this name is that of a router, a replica or a controller."""
    return name.partition("/")[0] in SERVERS


ANYBODY: Final = Identity(name="anybody", roles=frozenset(Role))
"""Who calls a server without TLS, which asks nobody who they are."""


def identity_of(uri: str, trust_domain: str) -> Identity | None:
    """Whom a certificate's URI names; None where it names nobody of this trust domain."""
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
        ValueError: there is no such identity, and why.
    """
    uri = f"spiffe://{trust_domain}/{kind}/{name}" if name else f"spiffe://{trust_domain}/{kind}"
    if kind not in _ROLES_OF:
        raise ValueError(f"{kind!r} is no kind of identity; there are {', '.join(_ROLES_OF)}")
    if identity_of(uri, trust_domain) is None:
        expected = "needs a name" if kind in _NAMED and not name else "has a name or trust domain that cannot be used"
        raise ValueError(f"{uri} {expected}: letters, digits, _ . and -, 63 at most; trust domains in lower case")
    return uri


def trust_domain_of(uri: str) -> str | None:
    """The trust domain of a URI of an identity or of an authority; None where it is neither."""
    found = re.fullmatch(r"spiffe://([a-z0-9._-]{1,255})(?:/.*)?", uri)
    return None if found is None else found.group(1)


def server_name(trust_domain: str, role: Role, backend: str = "") -> str:
    """The DNS name that certificates of a server of this role have, wherever it listens.

    Those who connect check this name, not the address: replicas come and go at addresses that nobody knows before.
    `replica` with a backend: the name of replicas of that backend, which a certificate for any backend matches by its
    wildcard. Backends whose names are no labels of DNS get a label of their hash.
    """
    if not backend:
        return f"{role}.{trust_domain}"
    label = backend if _LABEL.fullmatch(backend) else f"x{sha256(backend.encode()).hexdigest()[:40]}"
    return f"{label}.{role}.{trust_domain}"


def name_of_another(dns_name: str, uri: str) -> str | None:
    """A server that others would take who has this DNS name for, and who has this URI is not; None: no such server.

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
    """The DNS names that a certificate with this URI needs so that others connect to it; none for who is no server."""
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


# What somebody is known by: a token or a certificate that was checked, as far as it has to be looked at again.


class Credential(Protocol):
    """A token or a certificate that was accepted. It has no secret."""

    @property
    def identity(self) -> Identity:
        """Who has shown it, and until when."""

    def problem(self) -> str | None:
        """Why it would not be accepted again, its end aside; None where it would. The words are for its holder.

        Asked once a second for each stream, on the event loop: nothing is verified anew that was verified before, but
        for what has changed since.
        """


# Who calls: the identity behind the rpc that the running task serves, and which rpc that is.
#
# Invariants: both are set once per rpc, before its handler runs; tasks that a handler starts inherit them. Where nobody
# is asked who they are, the caller is `ANYBODY`.

CALLER: Final[ContextVar[Identity]] = ContextVar("slotmesh_caller", default=ANYBODY)

RPC: Final[ContextVar[str]] = ContextVar("slotmesh_rpc", default="")


def current_rpc() -> str:
    """The full name of the rpc that is being served here; empty where nobody is asked who they are."""
    return RPC.get()


def caller() -> Identity:
    """Who makes the rpc that is being served here."""
    return CALLER.get()


def caller_name() -> str:
    """The name of that identity; empty where nobody is asked who they are."""
    who = CALLER.get()
    return "" if who is ANYBODY else who.name


def of_caller(chosen_id: str) -> str:
    """An id that a caller has chosen, told from the same id of other callers. 32 hexadecimal digits, or as it was."""
    name = caller_name()
    if not chosen_id or not name:
        return chosen_id
    return blake2b(f"{name}\0{chosen_id}".encode(), digest_size=16).hexdigest()


def quota_name() -> str:
    """Under which name the caller's quotas are kept; empty where it has none, as members of the mesh have."""
    name = caller_name()
    return "" if is_member(name) else name
