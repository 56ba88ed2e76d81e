"""The live view on a terminal: reads keys, draws screens, polls the controller.

Invariants: the terminal is restored however the view ends; while the controller is unreachable, the view shows that and
retries; at most one request is in flight.
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

from slotmesh.cli.console import PrintableConsole
from slotmesh.cli.figures import NO_FIGURES, MeshFigures
from slotmesh.cli.top.screen import COLUMNS, LINES_AROUND, TopScreen, draw, screen_of
from slotmesh.cli.top.state import TopState, press

_LETTERS: Final = {"A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end"}
_SEQUENCES: Final = {
    **{f"\x1b{start}{letter}": key for letter, key in _LETTERS.items() for start in "[O"},
    "\x1b[5~": "pageup",
    "\x1b[6~": "pagedown",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\x1b[Z": "backtab",
    "\t": "tab",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x03": "q",
    "\x04": "q",
}
_ESCAPE: Final = "\x1b"


def keys_of(sent: bytes) -> Iterator[str]:
    """The keys of one read: a printable character, or a name as `up`. What is not known is left out."""
    text = sent.decode(errors="ignore")
    at = 0
    while at < len(text):
        size = _size_of(text, at)
        piece = text[at : at + size]
        at += size
        if piece == _ESCAPE:
            yield "escape"
        elif (key := _SEQUENCES.get(piece)) is not None:
            yield key
        elif len(piece) == 1 and piece.isprintable():
            yield piece


def _size_of(text: str, at: int) -> int:
    """How many characters one key has sent: an escape sequence ends with a letter or `~`."""
    if text[at] != _ESCAPE or at + 1 >= len(text) or text[at + 1] not in "[O":
        return 1
    end = at + 2
    while end < len(text) and not (text[end].isalpha() or text[end] == "~"):
        end += 1
    return min(end + 1, len(text)) - at


_READ_BYTES: Final = 1024


class ControllerAway(Exception):
    """The controller could not be queried; the message contains the reason."""


AskFigures = Callable[[], Awaitable[MeshFigures]]
"""Raises ControllerAway."""


async def show(where: str, ask: AskFigures, interval_s: float, state: TopState) -> None:
    """Shows figures until the user quits, or a signal ends the process."""
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
