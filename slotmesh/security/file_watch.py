"""A thread of its own that has files looked at once a second, whether or not anybody asks for what they hold.

Purpose: who asks after a long silence must neither get what was there before it, nor wait for a disk and a parser.
Invariants: one thread, which ends with its owner. It keeps nobody alive.
Owner: who decides by the files. Any thread may call it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final

LOOK_S: Final = 1.0
"""How often files are looked at, at most, seconds."""


class FileWatch:
    """Calls one method, time and again."""

    def __init__(self, look: Callable[[], object], name: str) -> None:
        """`look` is a bound method of the owner. `name`: of the thread."""
        self._look = weakref.WeakMethod(look)
        self._name = name
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def ensure(self) -> None:
        """From now on the thread is there. Quick."""
        if self._thread is not None and self._thread.is_alive():
            return
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=_watch, args=(self._look, _end_of(self._look)), name=self._name)
                thread.daemon = True
                with suppress(RuntimeError):  # the process ends
                    thread.start()
                self._thread = thread


def _end_of(look: weakref.WeakMethod[Callable[[], object]]) -> threading.Event:
    """Set when the owner of the method is there no more."""
    ended = threading.Event()
    if (method := look()) is None:
        ended.set()
    else:
        weakref.finalize(method.__self__, ended.set).atexit = False  # type: ignore[attr-defined]  # it is bound
    return ended


def _watch(look: weakref.WeakMethod[Callable[[], object]], ended: threading.Event) -> None:
    while not ended.wait(LOOK_S):
        if (method := look()) is None:
            return
        method()
        del method
