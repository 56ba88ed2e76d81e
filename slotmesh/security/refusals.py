"""How somebody is refused who is not known, or may not: the decisions of authorisation, and their failures.

Invariants: a refusal names what the caller lacks, and says nothing of what exists. Pure.
"""

from __future__ import annotations

from typing import Final

from slotmesh.errors import Executed, Failure, Reason
from slotmesh.security.identity import Identity, Role
from slotmesh.security.rules import Rule
from slotmesh.spec.rules import show

_MAX_SHOWN: Final = 100


def decide(identity: Identity | None, rule: Rule, now: float) -> Failure | None:
    """Why this caller may not call this rpc; None where it may. `now`: seconds since 1970."""
    if identity is None:
        return unknown_caller(rule, f"{rule.needs}: show a client certificate, or a token as `authorization: Bearer`")
    if has_expired(identity, now):
        return unknown_caller(rule, f"{rule.needs}: the credential of {identity.name} has expired")
    if not rule.allows(identity.roles):
        return Failure(
            reason=Reason.PERMISSION_DENIED,
            message=f"{rule.needs}, which {identity.name} does not have",
            metadata=_missing(rule),
        )
    return None


def has_expired(identity: Identity, now: float) -> bool:
    """Whether the credential has ended. `now`: seconds since 1970."""
    return identity.expires_at is not None and identity.expires_at <= now


def unknown_caller(rule: Rule, why: str, executed: Executed = Executed.NO) -> Failure:
    """The failure of somebody who is not known, or no longer."""
    return Failure(reason=Reason.UNAUTHENTICATED, message=why, executed=executed, metadata=_missing(rule))


def refused_endpoint(identity: Identity, endpoint: str) -> Failure | None:
    """Why this caller may not call this endpoint, whether or not it exists; None where it may."""
    if identity.may_call(endpoint):
        return None
    return Failure(
        reason=Reason.PERMISSION_DENIED,
        message=f"{identity.name} may not call the endpoint {show(endpoint)!r}",
        metadata={"role": Role.INVOKER.value, "endpoint": show(endpoint)},
    )


def unnamed_endpoint(identity: Identity) -> Failure | None:
    """Why this caller may not use a slot without naming its endpoint; None where it may."""
    if identity.endpoints is None:
        return None
    return Failure(
        reason=Reason.PERMISSION_DENIED,
        message=f"{identity.name} may call some endpoints only: name the endpoint of the slot",
        metadata={"role": Role.INVOKER.value},
    )


def refused_service(identity: Identity, service: str) -> Failure:
    """Why this caller may not call a service of a user's own proto, whether or not any endpoint has it."""
    return Failure(
        reason=Reason.PERMISSION_DENIED,
        message=f"{identity.name} may call no endpoint with the service {service[:_MAX_SHOWN]!r}",
        metadata={"role": Role.INVOKER.value, "service": service[:_MAX_SHOWN]},
    )


def refused_backend(identity: Identity, backend: str) -> Failure | None:
    """Why this caller may not be a replica of this backend; None where it may."""
    if identity.may_serve(backend):
        return None
    return Failure(
        reason=Reason.PERMISSION_DENIED,
        message=f"{identity.name} may not serve as a replica of the backend {show(backend)!r}",
        metadata={"role": Role.REPLICA.value, "backend": show(backend)},
    )


def refused_payloads(identity: Identity) -> Failure | None:
    """Why this caller may not see payloads of others' calls; None where it may."""
    if Role.OPERATOR in identity.roles:
        return None
    return Failure(
        reason=Reason.PERMISSION_DENIED,
        message=f"payloads need the role {Role.OPERATOR}, which {identity.name} does not have",
        metadata={"role": Role.OPERATOR.value},
    )


def _missing(rule: Rule) -> dict[str, str]:
    return {"role": ", ".join(rule.roles)}
