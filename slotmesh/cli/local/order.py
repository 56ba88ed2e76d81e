"""What `slotmesh run` was asked for, as a value. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from slotmesh.spec.model import Backend, Endpoint, JsonValue, Mesh, TrafficPolicy

GRACEFUL_TIMEOUT_S: Final = 10.0
"""The grace of running calls when the mesh is taken down. Shorter than elsewhere: the user waits at the terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A mesh with one endpoint."""

    handler: str
    """`MODULE:NAME`."""
    user_config: Mapping[str, JsonValue] = field(default_factory=dict)
    """Arguments of the handler's constructor, by name."""
    replicas: int
    routers: int
    router_port: int
    """Of the first router; 0: any free one."""
    controller_port: int
    """0: any free one."""
    start_timeout: timedelta
    log_level: str

    @property
    def name(self) -> str:
        """Of the endpoint and of its backend."""
        return self.handler.rpartition(":")[2]

    @property
    def router_ids(self) -> tuple[str, ...]:
        return tuple(f"router-{number}" for number in range(1, self.routers + 1))

    @property
    def mesh(self) -> Mesh:
        """The configuration for the controller."""
        return Mesh(
            backends=(
                Backend(
                    name=self.name,
                    handler=self.handler,
                    num_replicas=self.replicas,
                    user_config=self.user_config,
                    graceful_timeout_s=GRACEFUL_TIMEOUT_S,
                ),
            ),
            endpoints=(Endpoint(name=self.name, traffic=TrafficPolicy(weights={self.name: 1.0})),),
        )
