"""SIGTERM and SIGINT as an event: the waiting task ends the process in order.

A second signal has no effect, as a terminal and a launcher often send one each. Neither has one during the bounded end
of a process.
Invariant: processes that a handler forks (`multiprocessing`) handle these signals as if there were no loop. An event
loop learns of signals by a pipe, which they share: SIGTERM to a child would stop its parent, and not the child. The
signals are blocked from before the fork until the child has its own handlers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from slotmesh.logs import get_logger

_log = get_logger(__name__)

_of_children: dict[signal.Signals, Any] = {}
"""How forked children handle the signals that this process handles by its event loop."""
_forking = threading.local()
"""The signal mask of the thread that forks."""


def _before_fork() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, tuple(_of_children))


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _after_fork_in_child() -> None:
    if _of_children:
        signal.set_wakeup_fd(-1)
    for each, handler in _of_children.items():
        signal.signal(each, handler)
    _of_children.clear()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


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
        _of_children[each] = before[each]
    try:
        yield stop
    finally:
        _of_children.clear()
        for each in handled:
            loop.remove_signal_handler(each)
        for each, handler in before.items():
            signal.signal(each, signal.SIG_IGN if is_last else handler)
