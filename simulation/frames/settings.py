"""What is simulated, and what things cost. All times are seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Processor time."""

    message_s: float = 125e-6
    """A message at one of its ends. Two messages, at both ends, are `slotmesh.streams.pacing.MESSAGES_S`."""
    client_s: float = 1e-6
    """A call in a frame, at its client, each way; so are the next ones."""
    router_s: float = 0.5e-6
    replica_s: float = 0.5e-6
    travel_s: float = 20e-6
    """From one process to the next, beside that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FramesSettings:
    """One mesh, and what its clients do."""

    clients: int = 1
    routers: int = 1
    """Clients take them in turn."""
    replicas: int = 8
    slots: int = 512
    """Permits of a replica."""
    in_flight: int = 512
    """Calls of a client that are made and not answered."""
    rate: float = 0.0
    """Calls a second that each client makes instead, at random times; 0: as many as are in flight decides."""
    first_frames: Sequence[int] = ()
    """Sizes of the first frames, which leave at once: where the mesh begins. Empty: all calls are in one."""
    service_s: float = 5e-6
    """Mean time of a call's service."""
    is_waiting: bool = False
    """The service waits, beside others, and uses no processor; else one call of a replica is served at a time."""
    cores: int = 2
    """That all processes share; 0: each has one."""
    calls: int = 100_000
    """Calls that are measured."""
    warm_up: int = 20_000
    """Calls before that."""
    seed: int = 1
    costs: Costs = field(default_factory=Costs)
