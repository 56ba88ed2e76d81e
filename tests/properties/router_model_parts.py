"""What the naive model of a router is made of: names, settings, and what it knows of calls and replicas."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

from router_service.core.limits.capacity import ReportedCapacity
from router_service.core.replicas.replica import RoutedReplica
from slotmesh.calls.method_outlines import MethodOutline
from slotmesh.errors import Failure, Reason
from slotmesh.spec.model import Prospect

MAX_ONGOING = 4
KEYED_WINDOW = 6
MAX_QUEUED = 24
MAX_BATCH_SIZE = 3
QUEUE_TIME_S = 30.0
CALLERS = 3
KEYS_OF = {"e": ("red", "green", "blue"), "f": ("cyan", "plum", "gold")}
"""Of each endpoint: a key names one call of one endpoint in a message."""
KEYS = tuple(key for keys in KEYS_OF.values() for key in keys)
TENANTS = ("", "", "acme", "umbrella")
POLICIES: tuple[dict[str, float] | None, ...] = (
    {"b1": 1.0},
    {"b1": 0.5, "b2": 0.3, "b3": 0.2},
    {"b2": 0.5, "b3": 0.5},
    None,
)
BACKENDS = ("b1", "b2", "b3")
DARK = ("dark", "dim")
"""The backends that get copies only, so that the model knows them."""
FULL = Failure(reason=Reason.QUEUE_FULL, message="full")
ROOM = ReportedCapacity(max_ongoing=MAX_ONGOING, keyed_window=KEYED_WINDOW)
MAYBE = (Prospect.UNKNOWN, Prospect.COMING)
"""Calls wait for replicas of such a backend."""
OF_KEYLESS: dict[str, Any] = {"shard_key": "", "affinity_key": "", "prefix_blocks": ()}
"""Options without effect on calls with an ordering key."""
PREFERENCES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"affinity_key": "k1"},
    {"affinity_key": "k2", "model_id": "m1"},
    {"model_id": "m1"},
    {"model_id": "m2"},
    {"prefix_blocks": (1, 2)},
    {"prefix_blocks": (1, 3, 4), "affinity_key": "k1"},
)
"""What makes a router prefer a replica, as options of calls."""
OUTLINES = (MethodOutline("__call__", prefix_argument="prompt", prefix_position=1),)
STALE = Failure(reason=Reason.STALE_TABLE, message="not the owner")


@dataclass
class Call:
    """A call without outcome."""

    key: str
    deadline: float
    idempotent: bool
    endpoint: str = "e"
    tenant: str = ""


@dataclass
class Held:
    """What one replica holds: run id -> (call id, key, epoch)."""

    replica: RoutedReplica
    linked: bool = False
    runs: dict[int, tuple[int, str, int]] = field(default_factory=dict)
    yielded: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Run id -> values of it so far."""
    fences: dict[int, int] = field(default_factory=dict)
    """Partition -> it refuses keyed runs at this epoch and below."""

    @property
    def is_dark(self) -> bool:
        return self.replica.backend.name in DARK

    def running(self) -> list[int]:
        """Runs that may have started: of each key only the first."""
        keys = [key for _, key, _ in self.runs.values()]
        started = [not key or key not in keys[:at] for at, key in enumerate(keys)]
        return list(compress(self.runs, started))

    def unkeyed(self) -> int:
        return sum(1 for _, key, _ in self.runs.values() if not key)
