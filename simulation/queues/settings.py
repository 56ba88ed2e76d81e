"""What is simulated.

Invariants: all times are in mean service times, which are also the seconds of the virtual clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuesSettings:
    """One configuration."""

    routers: int = 8
    replicas: int = 1000
    slots: int = 8
    """Permits of a replica."""
    balancer: str = "least_loaded"
    load: float = 0.95
    """Calls that arrive in a mean service time, a slot."""
    link_delay: float = 0.02
    """From a router to a replica, and back: one way."""
    capacity_gap: float = 0.1
    """Least time between two capacity frames to one router, before jitter."""
    batch: int = 1
    """Calls that arrive together."""
    calls: int = 200_000
    """Calls that are measured."""
    warm_up: float = 10.0
    """Time that passes before the first call that is measured."""
    seed: int = 1
    subset_size: int = 0
    """Links of a router to replicas that are enough; 0: it links to all."""

    def __post_init__(self) -> None:
        """Raises ValueError with the field's name."""
        for name in ("routers", "replicas", "slots", "batch", "calls"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, is {getattr(self, name)}")
        if not 0 < self.load < 1:
            raise ValueError(f"load: must be above 0 and below 1, is {self.load}: queues would grow for ever")
        for name in ("link_delay", "capacity_gap", "warm_up", "subset_size"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: must not be negative, is {getattr(self, name)}")

    @property
    def arrival_rate(self) -> float:
        """Calls in a mean service time, at all routers together."""
        return self.load * self.slots * self.replicas
