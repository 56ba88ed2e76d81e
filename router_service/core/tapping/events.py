"""Somebody begins to look at calls, or leaves.

Owner: the servicer of taps makes them, the scheduler reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

from router_service.core.events import RouterEvent
from router_service.core.tapping.tap import CallTap


@dataclass(slots=True, eq=False)
class TapOpened(RouterEvent):
    """Calls of its endpoint that end from now on are wanted."""

    tap: CallTap


@dataclass(slots=True, eq=False)
class TapClosed(RouterEvent):
    """No more are wanted."""

    tap: CallTap
