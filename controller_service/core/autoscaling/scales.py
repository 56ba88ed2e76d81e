"""The number of replicas that the controller has chosen for a backend, and why: values, kept in the observed state.

Invariants: the number is within the bounds of the backend's `autoscale` as of the last look; it is in no store: a
controller that starts again takes as many as run.
Owner: `core.autoscaling.choosing` makes them, `shell.autoscaler` has them applied.
"""

from __future__ import annotations

from dataclasses import dataclass

from slotmesh.autoscaling import ScaleFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDecision:
    """What one look at the load came to."""

    at: float
    """Seconds (monotonic)."""
    before: int
    """Replicas that should have run."""
    number: int
    """Replicas that should run from then on."""
    why: str
    """For a person, with the figures that decided."""
    figures: ScaleFigures


@dataclass(frozen=True, slots=True)
class LoadStreak:
    """Looks in a row that asked for more replicas."""

    since: float
    """When the first of them was, seconds (monotonic)."""
    number: int
    """The smallest number that was asked for."""


@dataclass(frozen=True, slots=True)
class NeedWindow:
    """What was needed in the newest time, as far as it decides which number was the largest."""

    since: float
    """From when on all is known, seconds (monotonic)."""
    peaks: tuple[tuple[float, int], ...] = ()
    """(when, number), oldest first: each larger than all that came after it."""

    def with_need(self, now: float, number: int, delay_s: float) -> NeedWindow:
        """With one more look; those that are older than the delay are forgotten."""
        kept = [peak for peak in self.peaks if peak[1] > number and peak[0] > now - delay_s]
        return NeedWindow(self.since, (*kept, (now, number)))

    @property
    def largest(self) -> int:
        """The largest number that was needed."""
        return self.peaks[0][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendScale:
    """How many replicas of a backend should run, and what speaks for another number."""

    number: int
    latest: ScaleDecision
    """Of the newest look."""
    changed: ScaleDecision | None = None
    """The newest one that changed the number; None: none has since the controller's start."""
    more: LoadStreak | None = None
    """The load asks for more, as far as it does."""
    needed: NeedWindow | None = None
    """What the load needed lately; None: that is not known."""
    idle_since: float | None = None
    """Since when nothing has waited or run, as far as all routers say so."""
    grown_at: float = float("-inf")
    """When the number last became larger."""
