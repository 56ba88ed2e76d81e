"""The brake of the router's queues, for as long as clients have too many results unread (`core/unread_results.py`).

Invariants: no call waits for the brake for longer than `BRAKE_S` at a time, whether any client reads or not.
Owner: the router's servicer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from router_service.core.queueing.events import BrakeChanged
from router_service.core.unread_results import BRAKE_S
from router_service.shell.dispatcher import Dispatcher


class Brake:
    """Called with whether the brake is to be on."""

    def __init__(self, dispatcher: Dispatcher, too_long: Callable[[], None]) -> None:
        """`too_long` is called when the brake was on for `BRAKE_S`."""
        self._dispatcher = dispatcher
        self._too_long = too_long
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, is_braked: bool) -> None:
        """Puts the brake on, or takes it off."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if is_braked:
            self._timer = asyncio.get_running_loop().call_later(BRAKE_S, self._too_long)
        self._dispatcher.post(BrakeChanged(is_braked))
