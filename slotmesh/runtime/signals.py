"""SIGTERM and SIGINT as an event: the waiting task ends the process in order.

A second signal has no effect, as a terminal and a launcher often send one each. Neither has one during the bounded end
of a process.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from slotmesh.logs import get_logger

_log = get_logger(__name__)


class StopRequest(asyncio.Event):
    """Requests an orderly end of the process, with the reason. The first reason counts."""

    def __init__(self) -> None:
        super().__init__()
        self.reason = ""
        """For people, as `SIGTERM`; empty if none was given."""

    def ask(self, reason: str) -> None:
        """Sets the event, with this reason."""
        if not self.is_set():
            self.reason = reason
            self.set()


@contextmanager
def stop_signals(*, ignore_interrupt: bool = False, is_last: bool = False) -> Iterator[StopRequest]:
    """The event is set by SIGTERM, and by SIGINT unless `ignore_interrupt`. Needs the main thread's running loop.

    `ignore_interrupt` is for processes with a launcher: Ctrl-C in a terminal reaches the whole group, and the launcher
    decides the order of the end. `is_last`: only the bounded end of the process follows the block, and a signal must
    not
    change its exit status.
    """
    loop = asyncio.get_running_loop()
    stop = StopRequest()

    def ask(received: signal.Signals) -> None:
        if not stop.is_set():
            _log.info("stopping", signal=received.name)
            stop.ask(received.name)

    handled = [signal.SIGTERM] if ignore_interrupt else [signal.SIGTERM, signal.SIGINT]
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    if ignore_interrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    for each in handled:
        loop.add_signal_handler(each, ask, each)
    try:
        yield stop
    finally:
        for each in handled:
            loop.remove_signal_handler(each)
        for each, handler in before.items():
            signal.signal(each, signal.SIG_IGN if is_last else handler)
