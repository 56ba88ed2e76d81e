"""Which roles may call an rpc: the one place that reads the option `allowed` of the protos. Pure.

Invariants: denied by default: an rpc that names no role is refused to everybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from slotmesh.security.identity import Role
from slotmesh.v1 import roles_pb2

_PREFIX: Final = "ROLE_"
_INCLUDED_IN: Final = {Role.VIEWER: Role.OPERATOR, Role.INVOKER: Role.OPERATOR}
"""Who may do what others may, too."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may call one rpc."""

    method: str
    """`PACKAGE.SERVICE/METHOD`."""
    roles: tuple[Role, ...]
    """As declared: of these one is needed."""
    is_open: bool = False
    """Nobody is asked who they are."""

    def allows(self, roles: frozenset[Role]) -> bool:
        """Whether one of these roles will do."""
        return any(each in roles or _INCLUDED_IN.get(each) in roles for each in self.roles)

    @property
    def needs(self) -> str:
        """What it asks for, for a person."""
        if not self.roles:
            return f"{self.method} names no role that may call it"
        return f"{self.method} needs the role {' or '.join(self.roles)}"


_HEALTH: Final = "grpc.health.v1.Health"
_INFERENCE: Final = "inference.GRPCInferenceService"
_OF_OTHERS: Final = {
    # Load balancers and orchestrators probe without a credential.
    (_HEALTH, "Check"): Rule(f"{_HEALTH}/Check", (), is_open=True),
    # What clients of gRPC choose servers by. It shows no more than Check does, but holds a stream.
    (_HEALTH, "Watch"): Rule(f"{_HEALTH}/Watch", tuple(Role)),
    (_HEALTH, "List"): Rule(f"{_HEALTH}/List", (Role.VIEWER,)),
    # The Open Inference Protocol's own probes: they show what Check does.
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
"""Services whose protos are not ours, and which show what a server is and has."""


def rule_of(service: str, method: str) -> Rule:
    """Who may call this rpc of this service, of which this is the full name."""
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
    """The roles that an rpc names in its proto, in that order."""
    numbers = method.GetOptions().Extensions[roles_pb2.allowed]
    return tuple(Role(roles_pb2.Role.Name(each).removeprefix(_PREFIX).lower()) for each in numbers if each)
