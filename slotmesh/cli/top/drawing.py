"""A screen as rich draws it, and tables of all views for output that is no terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TextIO

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slotmesh.cli.top.columns import Cell, Column
from slotmesh.cli.top.figures import MeshFigures
from slotmesh.cli.top.screen import HELP, TopScreen, screen_of
from slotmesh.cli.top.state import VIEWS, RowOrder, TopState, TopView
from slotmesh.cli.view.report import console_of

LINES_AROUND: Final = 6
"""Lines of a screen that are no rows: title, tabs, notice, heading, a space, footer."""
_ALL_ROWS: Final = 1_000_000


def draw(screen: TopScreen, state: TopState) -> RenderableType:
    """The whole screen."""
    body: RenderableType = _help() if state.shows_help else _table(screen.columns, screen.rows, screen)
    return Group(
        Text(screen.title, style="bold", no_wrap=True, overflow="ellipsis"),
        _tabs(state.view),
        Text(screen.notice, style="red", no_wrap=True, overflow="ellipsis"),
        body,
        Text(screen.footer, style="dim", no_wrap=True, overflow="ellipsis"),
    )


def print_views(where: str, figures: MeshFigures, views: Sequence[TopView], out: TextIO) -> None:
    """A table of each of these views. Colours only where `out` is a terminal."""
    console = console_of(out)
    console.print(f"controller {where}  revision {figures.revision}")
    for view in views:
        screen = screen_of(TopState(view=view), figures, height=_ALL_ROWS, where=where)
        console.print(_table(screen.columns, screen.rows, None, title=view.title()))
    if figures.unlisted_replicas and TopView.REPLICAS in views:
        console.print(f"{figures.unlisted_replicas} more replicas are not listed")


def _table(
    columns: Sequence[Column], rows: Iterable[Sequence[Cell]], screen: TopScreen | None, title: str | None = None
) -> Table:
    is_live = screen is not None
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        expand=False,
        pad_edge=False,
        header_style="bold",
        padding=(0, 2, 0, 0),
    )
    order = screen.order if screen is not None else RowOrder(-1)
    for number, column in enumerate(columns):
        mark = ("▼" if order.descending else "▲") if number == order.column else ""
        table.add_column(
            f"{column.title}{mark}",
            justify="right" if column.is_number else "left",
            no_wrap=is_live,
            overflow="ellipsis",
        )
    for number, row in enumerate(rows):
        has_cursor = screen is not None and number == screen.cursor
        table.add_row(*(Text(cell.text, style=cell.style) for cell in row), style="reverse" if has_cursor else "")
    return table


def _tabs(present: TopView) -> Text:
    tabs = Text()
    for number, view in enumerate(VIEWS, 1):
        tabs.append(f" {number} {view} ", style="reverse" if view is present else "dim")
    return tabs


def _help() -> Text:
    return Text("\n" + "\n".join(f"  {line}" for line in HELP))
