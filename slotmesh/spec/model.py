"""Backends, endpoints and traffic policies, as immutable values.

Purpose: the one model of what should run, shared by the CLI, `--spec` and the controller. Pure.
Invariants: a value may break `slotmesh.spec.rules` until it was checked; two values are equal exactly if they mean the
same mesh (defaults are filled in, `user_config` holds JSON values only).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"

_NOTHING: Mapping[str, JsonValue] = MappingProxyType({})


class Balancer(Enum):
    """How a router picks a replica for unkeyed calls. The values are those of `slotmesh.v1.Balancer`."""

    LEAST_LOADED = 1
    POWER_OF_TWO = 2
    ROUND_ROBIN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One version of a handler and its settings: a group of identical replicas."""

    name: str
    handler: str = ""
    """`MODULE:NAME`; may be empty where replicas are started by somebody else."""
    num_replicas: int | None = None
    """Replicas that should run; None means 1 where the controller launches them, and any number where not."""
    max_ongoing: int | None = None
    """Calls that one replica executes at once; None means what the handler's decorator says."""
    prefetch: int | None = None
    """Unkeyed calls that may wait at a replica; None means what the handler's decorator says."""
    user_config: Mapping[str, JsonValue] = field(default_factory=lambda: _NOTHING)
    """Arguments of the handler's constructor, by name."""
    max_queued_calls: int = 20_000
    """Calls that may wait in one router."""
    max_queued_bytes: int = 256 * 2**20
    """Payload bytes that may wait in one router."""
    max_queue_time_s: float = 30.0
    """Time a call may wait in the queue."""
    max_batch_size: int = 1024
    """Calls that travel to a replica as one batch, at most."""
    balancer: Balancer = Balancer.LEAST_LOADED
    graceful_timeout_s: float = 30.0
    """Time a draining replica has to finish what runs."""
    health_check_period_s: float | None = None
    """How often a handler's `check_health` is called; None means what the handler's decorator says."""
    health_check_timeout_s: float | None = None
    """How long it may take; None means what the handler's decorator says."""
    own_loop: bool | None = None
    """Whether the handler has an event loop of its own, in a thread; None means what the handler's decorator says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficPolicy:
    """How an endpoint's calls are divided."""

    weights: Mapping[str, float]
    """Share of each backend, by name; they sum to 1."""
    shadows: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Backends that get a sampled copy: probability of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A public name that clients call."""

    name: str
    traffic: TrafficPolicy | None = None
    """None: calls queue until a policy comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """A whole mesh, as a `mesh.yaml` says it. Names are unique within each tuple once it was checked."""

    backends: tuple[Backend, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class Mistake:
    """One thing that is wrong in a specification."""

    path: str
    """Where, as `endpoints.digits.traffic`."""
    message: str
    """What is wrong and what would be right."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class InvalidSpec(ValueError):
    """A specification with mistakes: all of them, in the order of their paths."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(dict.fromkeys(sorted(mistakes)))
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))
