"""What a replica does while no controller can be reached: it says so in its log, and does not wait for ever.

Invariants: the first failure to reach the controller is logged at once, as a warning, and again every minute, however
often it is tried meanwhile; with a time-out, the replica is told to drain once that has passed without an attachment.
Owner: the link to the controller, on its event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from slotmesh.telemetry.log import get_logger
from slotmesh.units import format_duration

REMIND_S: Final = 60.0
"""How often it is logged that the controller is still away."""

_log = get_logger(__name__)


class ControllerAbsence:
    """Begins when the controller cannot be reached, and ends with the next attachment."""

    def __init__(
        self, addresses: Callable[[], str], timeout_s: float | None, on_timeout: Callable[[str], None]
    ) -> None:
        """`addresses` are those that are tried, for people.

        `timeout_s`: how long the replica goes on without a controller; None: for ever.

        `on_timeout` is called once when that is over, with the reason.
        """
        self._addresses = addresses
        self._timeout_s = timeout_s
        self._on_timeout = on_timeout
        self._reason = ""
        self._ending: asyncio.TimerHandle | None = None
        self._reminder: asyncio.TimerHandle | None = None

    def begin(self, reason: str) -> None:
        """The controller cannot be reached, or ended the stream. May be called again while it is away."""
        self._reason = reason
        if self._reminder is not None:
            return
        if self._timeout_s is not None:
            self._ending = asyncio.get_running_loop().call_later(self._timeout_s, self._give_up, self._timeout_s)
        self._remind()

    def end(self) -> None:
        """The controller has answered, or the replica ends. May be called again."""
        for timer in (self._ending, self._reminder):
            if timer is not None:
                timer.cancel()
        self._ending = self._reminder = None

    def _remind(self) -> None:
        loop = asyncio.get_running_loop()
        self._reminder = loop.call_later(REMIND_S, self._remind)
        left: dict[str, str] = {}
        if self._ending is not None:
            left["drains_in"] = _in_words(round(self._ending.when() - loop.time(), 1))
        _log.warning(
            "no controller: this replica goes on with what it has, and tries again",
            controller=self._addresses(),
            reason=self._reason,
            **left,
        )

    def _give_up(self, timeout_s: float) -> None:
        self.end()
        _log.warning("no controller for too long: draining", controller=self._addresses(), orphan_timeout_s=timeout_s)
        self._on_timeout(f"no controller for {_in_words(timeout_s)} (--orphan-timeout)")


def _in_words(seconds: float) -> str:
    return format_duration(timedelta(seconds=seconds))
