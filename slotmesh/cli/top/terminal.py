"""The live view on a terminal: keys come in, screens go out, the controller is asked again and again.

Invariants: the terminal is as it was before, however this ends; a controller that is away is said to be, and asked
again; at most one request is under way.
Owner: the command `top` runs `show`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import time
import tty
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.live import Live

from slotmesh.cli.saying import PrintableConsole
from slotmesh.cli.top.columns import COLUMNS
from slotmesh.cli.top.drawing import LINES_AROUND, draw
from slotmesh.cli.top.figures import NO_FIGURES, MeshFigures
from slotmesh.cli.top.keys import keys_of
from slotmesh.cli.top.screen import TopScreen, screen_of
from slotmesh.cli.top.state import TopState, press

_READ_BYTES: Final = 1024


class ControllerAway(Exception):
    """The controller could not be asked; the message says why."""


AskFigures = Callable[[], Awaitable[MeshFigures]]
"""Raises ControllerAway."""


async def show(where: str, ask: AskFigures, interval_s: float, state: TopState) -> None:
    """Shows figures until somebody quits, or the process is asked to end."""
    with _keyboard() as descriptor:
        console = PrintableConsole()
        with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            await _LiveView(where, state, live, console).run(ask, interval_s, descriptor)


class _LiveView:
    """What is shown now."""

    def __init__(self, where: str, state: TopState, live: Live, console: Console) -> None:
        self._where = where
        self._state = state
        self._live = live
        self._console = console
        self._figures = NO_FIGURES
        self._notice = "asking the controller"
        self._heard_at: float | None = None
        self._quit = asyncio.Event()

    async def run(self, ask: AskFigures, interval_s: float, descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, self._typed, descriptor)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._quit.set)
        loop.add_signal_handler(signal.SIGWINCH, self._draw)
        asking = asyncio.create_task(self._ask(ask, interval_s))
        try:
            self._draw()
            await self._quit.wait()
        finally:
            loop.remove_reader(descriptor)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH):
                loop.remove_signal_handler(number)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _ask(self, ask: AskFigures, interval_s: float) -> None:
        try:
            while True:
                began = time.monotonic()
                try:
                    self._figures = await ask()
                    self._heard_at, self._notice = time.monotonic(), ""
                except ControllerAway as away:
                    self._notice = self._away(str(away))
                self._draw()
                await asyncio.sleep(max(0.0, began + interval_s - time.monotonic()))
        finally:
            # Whatever ends the asking ends the view, which raises it.
            self._quit.set()

    def _away(self, why: str) -> str:
        if self._heard_at is None:
            return f"{why}; asking again"
        return f"what is shown is {time.monotonic() - self._heard_at:.0f} s old: {why}; asking again"

    def _typed(self, descriptor: int) -> None:
        try:
            sent = os.read(descriptor, _READ_BYTES)
        except OSError:
            sent = b""
        if not sent:  # the terminal is gone
            self._quit.set()
            return
        for key in keys_of(sent):
            self._state = press(self._state, key, self._screen().names, len(COLUMNS[self._state.view]))
        if self._state.has_quit:
            self._quit.set()
        self._draw()

    def _screen(self) -> TopScreen:
        height = self._console.size.height - LINES_AROUND
        return screen_of(self._state, self._figures, height=height, where=self._where, notice=self._notice)

    def _draw(self) -> None:
        self._live.update(draw(self._screen(), self._state), refresh=True)


@contextmanager
def _keyboard() -> Iterator[int]:
    """Keys come one by one and are not echoed, until the block ends. Ctrl-Z is none of them: the screen would stay."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        now = termios.tcgetattr(descriptor)
        now[6][termios.VSUSP] = b"\x00"
        termios.tcsetattr(descriptor, termios.TCSANOW, now)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
