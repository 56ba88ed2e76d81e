"""The screen of `slotmesh top`: built from its state and the figures, drawn by rich; or all views as tables. Pure.

Invariants: a screen has no more rows than fit, and the cursor is among them. Output that is no terminal gets tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TextIO

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slotmesh.cli.console import console_of
from slotmesh.cli.figures.rows import MeshFigures
from slotmesh.cli.top.columns import COLUMNS, Cell, Column, rows_of
from slotmesh.cli.top.state import VIEWS, RowOrder, Scope, TopState, TopView, cursor_of

HELP: Final = (
    "1 … 5, Tab       endpoints, backends, replicas, routers, tenants",
    "↑ ↓ PgUp PgDn    move the cursor (also k j, g G)",
    "Enter            what the row is made of: an endpoint's backends, a backend's replicas",
    "Esc, Backspace   back out, or drop the filter",
    "/                filter by name: Enter keeps it, Esc drops it",
    "s S              sort by the next column, by the one before",
    "r                turn the order round",
    "q, Ctrl-C        quit",
    "",
    "Rates are of the last 2 to 3 seconds. p50 and p99: upper bounds of the times of successful calls,",
    "from their arrival at the router to their last result. Empty: not known.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopScreen:
    """What is drawn."""

    title: str
    notice: str
    """A problem to show; empty if there is none."""
    columns: Sequence[Column]
    order: RowOrder
    names: Sequence[str]
    """Of all rows that pass the filter, in order."""
    rows: Sequence[Sequence[Cell]]
    """Those that fit."""
    cursor: int
    """Among those that fit; -1 where there is none."""
    footer: str


def screen_of(state: TopState, figures: MeshFigures, *, height: int, where: str, notice: str = "") -> TopScreen:
    """`height`: rows that fit. `where`: which mesh it is."""
    columns, rows = COLUMNS[state.view], chosen(state, figures)
    largest = max((getattr(row, "calls_per_s", None) or 0.0 for row in rows), default=0.0)
    ordered = _in_order(rows, columns[state.order.column], state.order, largest)
    names = [row.name for row in ordered]
    at = cursor_of(state, names)
    height = max(1, height)
    first = min(max(0, at - height // 2), max(0, len(ordered) - height))
    shown = ordered[first : first + height]
    return TopScreen(
        title=_title(state, where, figures),
        notice=notice,
        columns=columns,
        order=state.order,
        names=names,
        rows=[[column.cell(row, largest) for column in columns] for row in shown],
        cursor=at - first if shown else -1,
        footer=_footer(state, figures, len(ordered), len(shown)),
    )


def chosen(state: TopState, figures: MeshFigures) -> list[Any]:
    """The rows that are in the scope and pass the filter."""
    wanted = state.filter.lower()
    return [
        row
        for row in rows_of(state.view, figures)
        if (not wanted or wanted in row.name.lower())
        and all(_is_in(row, scope, figures) for scope in state.scopes[-1:])
    ]


def _is_in(row: Any, scope: Scope, figures: MeshFigures) -> bool:
    if scope.view is TopView.BACKENDS:
        return bool(row.backend == scope.name)
    endpoint = next((it for it in figures.endpoints if it.name == scope.name), None)
    return endpoint is not None and (row.name in endpoint.traffic or row.name in endpoint.shares)


def _in_order(rows: list[Any], column: Column, order: RowOrder, largest: float) -> list[Any]:
    """What is not known is last, whichever way round. Rows that are equal stay in the order of their names."""
    keyed = [(column.cell(row, largest).key, row) for row in rows]
    known = [(key, row) for key, row in keyed if key is not None]
    known.sort(key=lambda it: it[0], reverse=order.descending)
    return [*(row for _, row in known), *(row for key, row in keyed if key is None)]


def _title(state: TopState, where: str, figures: MeshFigures) -> str:
    path = " > ".join((*(scope.name for scope in state.scopes), str(state.view)))
    return f"slotmesh {where}  revision {figures.revision}  {path}"


def _footer(state: TopState, figures: MeshFigures, rows: int, shown: int) -> str:
    parts = [f"{shown} of {rows} rows"] if shown < rows else []
    if state.view is TopView.REPLICAS and figures.unlisted_replicas:
        parts.append(f"{figures.unlisted_replicas} more replicas are not listed")
    if state.is_filtering:
        parts.append(f"filter: {state.filter}▏")
    elif state.filter:
        parts.append(f"filter: {state.filter} (Esc drops it)")
    return "  ".join((*parts, "? help  q quit"))


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
