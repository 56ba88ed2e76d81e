"""How commands print texts of others: errors, events and names steer no terminal.

Invariants: what commands print for people comes by here, but for lines of handlers (`slotmesh logs`) and results of
calls, which are written as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from slotmesh.printable_text import LINES, printable_text


def say(text: object, *, err: bool = False) -> None:
    """Writes a line, or several, to stdout or stderr."""
    typer.echo(printable_text(str(text), LINES), err=err)


class PrintableConsole(Console):
    """A console that takes texts as they are: no markup in them, and nothing that steers the terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        # Before tables measure it: an escape is wider than what it stands for.
        return super().render_str(printable_text(text, LINES), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable_text(segment.text, LINES), segment.style)
