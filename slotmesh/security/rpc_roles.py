"""Authorisation: which roles may call an rpc, what a caller may access, and the failures of refusals.

Purpose: the one place that reads the option `allowed` of the protos, and decides what callers may do beyond their role.
Invariants: denied by default: an rpc without a declared role is refused to all callers. A refusal names what the caller
lacks, and does not reveal what exists. The functions for the caller of the running rpc are called once an rpc or a
frame, never once a call, and write refusals to the audit log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from slotmesh.errors import Executed, Failure, Reason
from slotmesh.security.audit import AUDIT
from slotmesh.security.identity import Identity, Role, caller, current_rpc
from slotmesh.spec.rules import show
from slotmesh.v1 import roles_pb2

_PREFIX: Final = "ROLE_"
_INCLUDED_IN: Final = {Role.VIEWER: Role.OPERATOR, Role.INVOKER: Role.OPERATOR}
"""Roles that another role includes."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The roles that may call one rpc."""

    method: str
    """`PACKAGE.SERVICE/METHOD`."""
    roles: tuple[Role, ...]
    """As declared; a caller needs one of them."""
    is_open: bool = False
    """The rpc needs no authentication."""

    def allows(self, roles: frozenset[Role]) -> bool:
        """Whether one of these roles is sufficient."""
        return any(each in roles or _INCLUDED_IN.get(each) in roles for each in self.roles)

    @property
    def needs(self) -> str:
        """The requirement, as text for messages."""
        if not self.roles:
            return f"{self.method} names no role that may call it"
        return f"{self.method} needs the role {' or '.join(self.roles)}"


_HEALTH: Final = "grpc.health.v1.Health"
_INFERENCE: Final = "inference.GRPCInferenceService"
_OF_OTHERS: Final = {
    # Load balancers and orchestrators probe without a credential.
    (_HEALTH, "Check"): Rule(f"{_HEALTH}/Check", (), is_open=True),
    # gRPC clients choose servers by Watch. It shows no more than Check, but holds a stream.
    (_HEALTH, "Watch"): Rule(f"{_HEALTH}/Watch", tuple(Role)),
    (_HEALTH, "List"): Rule(f"{_HEALTH}/List", (Role.VIEWER,)),
    # Probes of the Open Inference Protocol show the same as Check.
    (_INFERENCE, "ServerLive"): Rule(f"{_INFERENCE}/ServerLive", (), is_open=True),
    (_INFERENCE, "ServerReady"): Rule(f"{_INFERENCE}/ServerReady", (), is_open=True),
}
_FOR_VIEWERS: Final = frozenset(
    {
        "grpc.channelz.v1.Channelz",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
)
"""Services of other projects' protos, which show the state and the services of a server."""


def rule_of(service: str, method: str) -> Rule:
    """The rule of an rpc of the service with this full name."""
    if (rule := _OF_OTHERS.get((service, method))) is not None:
        return rule
    name = f"{service}/{method}"
    if service in _FOR_VIEWERS:
        return Rule(name, (Role.VIEWER,))
    try:
        declared: ServiceDescriptor = descriptor_pool.Default().FindServiceByName(service)
        return Rule(name, declared_roles(declared.methods_by_name[method]))
    except KeyError:
        return Rule(name, ())


def declared_roles(method: MethodDescriptor) -> tuple[Role, ...]:
    """The roles that an rpc declares in its proto, in that order."""
    numbers = method.GetOptions().Extensions[roles_pb2.allowed]
    return tuple(Role(roles_pb2.Role.Name(each).removeprefix(_PREFIX).lower()) for each in numbers if each)


_MAX_SHOWN: Final = 100


def decide(identity: Identity | None, rule: Rule, now: float) -> Failure | None:
    """Why this caller may not call this rpc; None if it may. `now`: seconds since 1970."""
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
    """Whether the credential has expired. `now`: seconds since 1970."""
    return identity.expires_at is not None and identity.expires_at <= now


def unknown_caller(rule: Rule, why: str, executed: Executed = Executed.NO) -> Failure:
    """The failure of a caller that is not authenticated, or not any more."""
    return Failure(reason=Reason.UNAUTHENTICATED, message=why, executed=executed, metadata=_missing(rule))


def refused_endpoint(identity: Identity, endpoint: str) -> Failure | None:
    """Why this caller may not call this endpoint, whether or not it exists; None if it may."""
    if identity.may_call(endpoint):
        return None
    return Failure(
        reason=Reason.PERMISSION_DENIED,
        message=f"{identity.name} may not call the endpoint {show(endpoint)!r}",
        metadata={"role": Role.INVOKER.value, "endpoint": show(endpoint)},
    )


def unnamed_endpoint(identity: Identity) -> Failure | None:
    """Why this caller may not use a slot without naming its endpoint; None if it may."""
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
    """Why this caller may not serve as a replica of this backend; None if it may."""
    if identity.may_serve(backend):
        return None
    return Failure(
        reason=Reason.PERMISSION_DENIED,
        message=f"{identity.name} may not serve as a replica of the backend {show(backend)!r}",
        metadata={"role": Role.REPLICA.value, "backend": show(backend)},
    )


def refused_payloads(identity: Identity) -> Failure | None:
    """Why this caller may not see payloads of other callers; None if it may."""
    if Role.OPERATOR in identity.roles:
        return None
    return Failure(
        reason=Reason.PERMISSION_DENIED,
        message=f"payloads need the role {Role.OPERATOR}, which {identity.name} does not have",
        metadata={"role": Role.OPERATOR.value},
    )


def _missing(rule: Rule) -> dict[str, str]:
    return {"role": ", ".join(rule.roles)}


def endpoint_refusal(endpoint: str) -> Failure | None:
    """Why the caller may not call this endpoint; None if it may."""
    identity = caller()
    return None if identity.endpoints is None else _noted(refused_endpoint(identity, endpoint))


def service_refusal(service: str) -> Failure:
    """Why the caller, limited to some endpoints, may not call this service of a user's own proto."""
    failure = refused_service(caller(), service)
    AUDIT.denied(caller(), current_rpc(), failure)
    return failure


def slot_refusal(endpoint: str) -> Failure | None:
    """Why the caller may not call into a slot; None if it may. The endpoint is required only from limited callers.

    The replica compares it with the endpoint of the slot.
    """
    return endpoint_refusal(endpoint) if endpoint else _noted(unnamed_endpoint(caller()))


def callable_endpoints() -> frozenset[str] | None:
    """The endpoints that the caller may call, and whose slots it may use; None: all."""
    return caller().endpoints


def backend_refusal(backend: str) -> Failure | None:
    """Why the caller may not serve as a replica of this backend; None if it may."""
    return _noted(refused_backend(caller(), backend))


def payloads_refusal() -> Failure | None:
    """Why the caller may not see payloads of other callers; None if it may."""
    return _noted(refused_payloads(caller()))


def known_endpoints() -> frozenset[str] | None:
    """The endpoints whose existence the caller may see; None: all."""
    identity = caller()
    if identity.endpoints is None or Role.VIEWER in identity.roles or Role.OPERATOR in identity.roles:
        return None
    return identity.endpoints


def _noted(failure: Failure | None) -> Failure | None:
    if failure is not None:
        AUDIT.denied(caller(), current_rpc(), failure)
    return failure
