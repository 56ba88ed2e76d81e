"""What is remembered of a backend's rollouts: all else follows from the replicas that there are.

Invariants: immutable. `good` was in force at all replicas that should run; `template` is what was being rolled out when
the record was written, so one that differs from the backend's is a rollout that begins.
Owner: the store, by `Desired`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from slotmesh.spec.model import SETTINGS, Backend
from slotmesh.spec.setting import Change

RESTART_SETTINGS: Final = tuple(each.attribute for each in SETTINGS.values() if each.change is not Change.TAKEN_OVER)
"""What a rollout brings, and takes back: all else that changes, stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRecord:
    """The newest rollout of a backend."""

    backend: str
    template: str
    """A digest of what replicas should be started with."""
    since_s: float = 0.0
    """When it began, seconds since 1970."""
    is_complete: bool = False
    is_paused: bool = False
    good: Backend | None = None
    """The settings that were rolled out last, and completely. None: there were none yet."""
    previous: Backend | None = None
    """The settings before these."""
    why: str = ""
    """Why the rollout before this one was taken back; empty where it was not."""
    failed_at_s: float = 0.0
    """When that was, seconds since 1970."""


def restored(backend: Backend, settings: Backend) -> Backend:
    """The backend with what these settings start replicas with."""
    return replace(backend, **{name: getattr(settings, name) for name in RESTART_SETTINGS})
