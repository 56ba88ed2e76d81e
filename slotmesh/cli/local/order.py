"""What `slotmesh run` was asked for, as a value; and when the local mesh is ready. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from slotmesh.cli.controller_view import FAILED_STATE, Members, Snapshot
from slotmesh.spec.model import Backend, Endpoint, GrpcServices, JsonValue, Mesh, TrafficPolicy
from slotmesh.v1 import mesh_pb2

GRACEFUL_TIMEOUT_S: Final = 10.0
"""The grace of running calls when the mesh is taken down. Shorter than elsewhere: the user waits at the terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A mesh on this machine."""

    mesh: Mesh
    """The configuration for the controller."""
    file: Path | None = None
    """Where the configuration comes from, if from a file."""
    protos: tuple[Path, ...] = ()
    """Where the services of the endpoint come from, if they are not of a file."""
    routers: int
    router_port: int
    """Of the first router; 0: any free one."""
    controller_port: int
    """0: any free one."""
    http_port: int | None = None
    """Of the ingress; 0: any free one; None: no ingress."""
    state: str
    """The file of the controller's state, or `memory`."""
    start_timeout: timedelta
    log_level: str
    devices: str = ""
    """The controller's `--devices`; empty: none."""
    reloads: bool = False
    """Whether to replace replicas whose module changes, and to apply a changed file."""

    @property
    def endpoint_name(self) -> str:
        """Of the first endpoint; empty if there is none."""
        return self.mesh.endpoints[0].name if self.mesh.endpoints else ""

    @property
    def handlers(self) -> tuple[str, ...]:
        """`MODULE:NAME` of each backend, once each, as far as they can be imported here."""
        return handlers_here(self.mesh.backends)

    @property
    def backend_names(self) -> frozenset[str]:
        return frozenset(backend.name for backend in self.mesh.backends)

    @property
    def router_ids(self) -> tuple[str, ...]:
        return tuple(f"router-{number}" for number in range(1, self.routers + 1))

    @property
    def grace_s(self) -> float:
        """How long calls may run on when the mesh is taken down: as long as the backend that lets them run longest."""
        return max((backend.graceful_timeout_s for backend in self.mesh.backends), default=GRACEFUL_TIMEOUT_S)


def handlers_here(backends: Iterable[Backend]) -> tuple[str, ...]:
    """Those that replicas import as this process would: in its folder, with its interpreter and its variables."""
    return tuple(dict.fromkeys(it.handler for it in backends if not (it.cwd or it.python or it.env)))


def mesh_of_handler(
    handler: str, user_config: Mapping[str, JsonValue], replicas: int, services: GrpcServices | None = None
) -> Mesh:
    """A backend and an endpoint that have the handler's name; `handler` is `MODULE:NAME`, `services` the user's own."""
    name = handler.rpartition(":")[2]
    backend = Backend(
        name=name,
        handler=handler,
        num_replicas=replicas,
        user_config=user_config,
        graceful_timeout_s=GRACEFUL_TIMEOUT_S,
    )
    policy = TrafficPolicy(weights={name: 1.0})
    return Mesh(backends=(backend,), endpoints=(Endpoint(name=name, traffic=policy, grpc_services=services),))


def lacks(order: Order, snapshot: Snapshot) -> str:
    """Describes what the requested backends still lack; empty when the mesh is ready.

    Ready means that the first call finds the whole mesh: all replicas accept calls, and each router has their table and
    a link to each of them. The controller decides the number of replicas: with a state file it may differ from the
    order's.
    """
    members = snapshot.members
    wanted = {it.name: snapshot.wanted(it) or 0 for it in snapshot.backends if it.name in order.backend_names}
    ready = {name: members.ready(name) for name in wanted}
    if any(len(ready[name]) < count for name, count in wanted.items()):
        have = sum(min(len(ready[name]), count) for name, count in wanted.items())
        return f"{have} of {sum(wanted.values())} replicas ready"
    all_ready: frozenset[str] = frozenset().union(*ready.values())
    linked = [
        router.router_id
        for router in members.routers
        if router.router_id in order.router_ids
        and members.is_current(router)
        and not members.unlinked(router, all_ready)
    ]
    if len(linked) < order.routers:
        return f"all replicas ready; {len(linked)} of {order.routers} routers linked to them"
    return ""


def first_failure(order: Order, members: Members) -> mesh_pb2.Replica | None:
    """A replica whose handler could not start; one with an error text goes before one without."""
    failed = [it for it in members.replicas if it.backend in order.backend_names and it.state == FAILED_STATE]
    return max(failed, key=says_why, default=None)


def says_why(replica: mesh_pb2.Replica) -> bool:
    """Whether the error is the handler's traceback, and not only how the process ended."""
    return "\n" in replica.error.strip()
