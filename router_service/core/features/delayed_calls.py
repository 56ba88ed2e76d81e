"""Calls that wait for a replica with their model, as time passes.

Owner: the scheduler. `preferences/delays.py` decides.
"""

from __future__ import annotations

from collections.abc import Collection

from router_service.core.commands import Step
from router_service.core.lifecycle.feature import Feature
from router_service.core.lifecycle.sender import Sender


class DelayedCalls(Feature):
    """Sends calls that have waited for long enough."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    @property
    def waits(self) -> Collection[object]:
        """Backends with such calls."""
        return self._sender.delaying

    def next_deadline(self) -> float | None:
        """See `Feature`."""
        return min((each.delays.due for each in self._sender.delaying), default=None)

    def expire(self, step: Step) -> None:
        """See `Feature`."""
        for backend in [each for each in self._sender.delaying if each.delays.due <= step.now]:
            self._sender.pump_queue(backend, step)
