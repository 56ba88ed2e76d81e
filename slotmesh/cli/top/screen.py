"""The screen of `slotmesh top`: columns and rows of each view, drawn by rich; all views as tables or documents. Pure.

Invariants: an unknown value is an empty cell, or null, and sorts last in either order. A screen has no more rows than
fit, and the cursor is among them. Output that is no terminal gets tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final, Literal, TextIO

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slotmesh.cli.console import console_of
from slotmesh.cli.figures import FiguresRow, MeshFigures, figures_document, row_name, shown_rate, shown_time
from slotmesh.cli.top.state import VIEWS, RowOrder, Scope, TopState, TopView, cursor_of
from slotmesh.names import printable_text

GOOD: Final = "green"
WARNING: Final = "yellow"
BAD: Final = "red"
BAR_CELLS: Final = 10
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in a row under a column."""

    text: str
    key: float | str | None
    """What it is sorted by; None: it is not known."""
    style: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a view. `cell` has the row, and the largest rate of calls in the view."""

    title: str
    cell: Callable[[FiguresRow, float], Cell]
    is_number: bool = True


def bar(share: float, cells: int = BAR_CELLS) -> str:
    """A bar of at most `cells` cells, in eighths of a cell; `share` is 0 to 1."""
    eighths = round(min(1.0, max(0.0, share)) * cells * 8)
    whole, part = divmod(eighths, 8)
    return (_EIGHTHS[8] * whole + (_EIGHTHS[part] if part else "")).ljust(cells)


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}" if value % 1 else f"{value:,.0f}"


def _figure(title: str, field: str, shown: Callable[[float | None], str] = _count, style: str = "") -> Column:
    """The style is that of a figure above 0."""
    return Column(title, lambda row, _: Cell(shown(row[field]), row[field], style if row[field] else ""))


def _text(title: str, read: Callable[[FiguresRow], str] = row_name) -> Column:
    return Column(title, lambda row, _: Cell(printable_text(read(row)), read(row).lower()), is_number=False)


def _time(title: str, quantile: str) -> Column:
    def cell(row: FiguresRow, _: float) -> Cell:
        time_s = getattr(row["times"], quantile)
        return Cell(shown_time(time_s), time_s, WARNING if not isfinite(time_s or 0) else "")

    return Column(title, cell)


def _links(linked: str, count: str) -> Column:
    def cell(row: FiguresRow, _: float) -> Cell:
        return Cell(f"{row[linked]}/{row[count]}", row[linked], "" if row[linked] == row[count] else WARNING)

    return Column("links", cell)


def _bar(row: FiguresRow, largest: float) -> Cell:
    rate: float | None = row["calls_per_s"]
    return Cell(bar(rate / largest) if rate and largest else "", rate)


def _shares(row: FiguresRow, _: float) -> Cell:
    """The division of the newest calls; without any, the policy."""
    shares = row["shares"] or row["traffic"]
    if not shares:
        return Cell("no policy: calls wait", None, WARNING)
    text = "  ".join(f"{name} {bar(share, 4).rstrip()}{share:.0%}" for name, share in shares.items())
    return Cell(text, None)


def _readiness(row: FiguresRow, _: float) -> Cell:
    ready, wanted = row["ready_replicas"], row["wanted_replicas"]
    enough = ready >= (1 if wanted is None else wanted)
    return Cell(f"{ready}/{'any' if wanted is None else wanted}", ready, GOOD if enough else WARNING)


def _in_use(row: FiguresRow, _: float) -> Cell:
    """Calls that run, of those that may."""
    ongoing, most = row["ongoing"], row["max_ongoing"]
    return Cell("", None) if ongoing is None else Cell(f"{ongoing:,}/{most:,}", ongoing / most if most else ongoing)


def _state(row: FiguresRow, _: float) -> Cell:
    state = row["state"]
    if state == "READY" and row["routers"] and not row["linked_routers"]:
        return Cell("READY, not reached", state, BAD)
    style = GOOD if state == "READY" else BAD if state == "FAILED" else WARNING
    return Cell(f"{state}{', outdated' if row['outdated'] else ''}", state, style)


def _router_state(row: FiguresRow, _: float) -> Cell:
    if not row["reports"]:
        return Cell("silent", "silent", BAD)
    return Cell("current", "current", GOOD) if row["current"] else Cell("behind", "behind", WARNING)


def _trouble(row: FiguresRow, _: float) -> Cell:
    lines = row["trouble"].splitlines()
    return Cell(lines[-1] if lines else "", row["trouble"] or None, BAD if row["state"] == "FAILED" else WARNING)


_CALLS: Final = (_figure("calls/s", "calls_per_s", shown_rate), Column("", _bar, is_number=False))
_ERRORS: Final = _figure("errors/s", "failures_per_s", shown_rate, BAD)
_TIMES: Final = (_time("p50", "p50_s"), _time("p99", "p99_s"))
_QUEUE: Final = _figure("queue", "queued", style=WARNING)
_BATCHES: Final = (_figure("slots", "slots"), _figure("batch", "batch_size"))
_RESTARTS: Final = _figure("restarts", "restart_count", style=WARNING)

COLUMNS: Final[Mapping[TopView, Sequence[Column]]] = {
    TopView.ENDPOINTS: (
        *(_text("endpoint"), *_CALLS, _ERRORS, *_TIMES, _QUEUE),
        Column("traffic", _shares, is_number=False),
    ),
    TopView.BACKENDS: (
        *(_text("backend"), *_CALLS, _ERRORS, *_TIMES, _QUEUE),
        *(Column("running", _in_use), *_BATCHES, Column("ready", _readiness), _RESTARTS),
    ),
    TopView.REPLICAS: (
        *(_text("replica"), Column("state", _state, is_number=False), *_CALLS, _ERRORS, *_TIMES),
        *(Column("running", _in_use), _figure("waiting", "waiting", style=WARNING), *_BATCHES),
        *(_links("linked_routers", "routers"), _RESTARTS),
        Column("error or warning", _trouble, is_number=False),
    ),
    TopView.ROUTERS: (
        *(_text("router"), Column("table", _router_state, is_number=False), *_CALLS, _ERRORS, _QUEUE),
        *(_figure("running", "ongoing"), _links("linked_replicas", "ready_replicas")),
        *(_text("address", lambda row: row["address"]), _text("version", lambda row: row["version"])),
    ),
    TopView.TENANTS: (
        *(_text("endpoint/tenant"), *_CALLS),
        *(_figure("refused/s", "refused_per_s", shown_rate, WARNING), _figure("unanswered", "unanswered")),
    ),
}


def rows_of(view: TopView, figures: MeshFigures) -> Sequence[FiguresRow]:
    """The figures that are the rows of a view."""
    rows: Sequence[FiguresRow] = getattr(figures, view.value)
    return rows


def document_of(controller: str, figures: MeshFigures, views: Collection[TopView] = VIEWS) -> dict[str, Any]:
    """The figures of these views as values of JSON."""
    document: dict[str, Any] = {
        "controller": controller,
        "time": datetime.fromtimestamp(figures.at_s, UTC).isoformat(),
        "revision": figures.revision,
    }
    for view in VIEWS:
        if view in views:
            document[view.value] = [figures_document(row) for row in rows_of(view, figures)]
    return {**document, "unlisted_replicas": figures.unlisted_replicas} if TopView.REPLICAS in views else document


def names_of(figures: MeshFigures, views: Collection[TopView] = VIEWS) -> list[str]:
    """The names of the rows of these views, as `backend/NAME`; tenants have none of this form."""
    named = [view for view in VIEWS if view in views and view is not TopView.TENANTS]
    return [f"{view.removesuffix('s')}/{row_name(row)}" for view in named for row in rows_of(view, figures)]


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
    largest = max((row["calls_per_s"] or 0.0 for row in rows), default=0.0)
    ordered = _in_order(rows, columns[state.order.column], state.order, largest)
    names = [row_name(row) for row in ordered]
    at = cursor_of(state, names)
    height = max(1, height)
    first = min(max(0, at - height // 2), max(0, len(ordered) - height))
    shown = ordered[first : first + height]
    footer = [f"{len(shown)} of {len(ordered)} rows"] if len(shown) < len(ordered) else []
    if state.view is TopView.REPLICAS and figures.unlisted_replicas:
        footer.append(f"{figures.unlisted_replicas} more replicas are not listed")
    if state.is_filtering or state.filter:
        footer.append(f"filter: {state.filter}{'▏' if state.is_filtering else ' (Esc drops it)'}")
    path = " > ".join((*(scope.name for scope in state.scopes), str(state.view)))
    return TopScreen(
        title=f"slotmesh {where}  revision {figures.revision}  {path}",
        notice=notice,
        names=names,
        rows=[[column.cell(row, largest) for column in columns] for row in shown],
        cursor=at - first if shown else -1,
        footer="  ".join((*footer, "? help  q quit")),
    )


def chosen(state: TopState, figures: MeshFigures) -> list[FiguresRow]:
    """The rows that are in the scope and pass the filter."""
    wanted = state.filter.lower()
    return [
        row
        for row in rows_of(state.view, figures)
        if (not wanted or wanted in row_name(row).lower())
        and all(_is_in(row, scope, figures) for scope in state.scopes[-1:])
    ]


def _is_in(row: FiguresRow, scope: Scope, figures: MeshFigures) -> bool:
    if scope.view is TopView.BACKENDS:
        return bool(row["backend"] == scope.name)
    endpoint = next((it for it in figures.endpoints if it["name"] == scope.name), None)
    return endpoint is not None and (row["name"] in endpoint["traffic"] or row["name"] in endpoint["shares"])


def _in_order(rows: list[FiguresRow], column: Column, order: RowOrder, largest: float) -> list[FiguresRow]:
    """What is not known is last, whichever way round. Rows that are equal stay in the order of their names."""
    keyed = [(column.cell(row, largest).key, row) for row in rows]
    known: list[Any] = [(key, row) for key, row in keyed if key is not None]
    known.sort(key=lambda it: it[0], reverse=order.descending)
    return [*(row for _, row in known), *(row for key, row in keyed if key is None)]


LINES_AROUND: Final = 6
"""Lines of a screen that are no rows: title, tabs, notice, heading, a space, footer."""
_ALL_ROWS: Final = 1_000_000


def draw(screen: TopScreen, state: TopState) -> RenderableType:
    """The whole screen."""
    tabs = Text()
    for number, view in enumerate(VIEWS, 1):
        tabs.append(f" {number} {view} ", style="reverse" if view is state.view else "dim")
    if state.shows_help:
        body: RenderableType = Text("\n" + "\n".join(f"  {line}" for line in HELP))
    else:
        body = _table(screen, state, is_live=True)
    return Group(
        Text(screen.title, style="bold", no_wrap=True, overflow="ellipsis"),
        tabs,
        Text(screen.notice, style="red", no_wrap=True, overflow="ellipsis"),
        body,
        Text(screen.footer, style="dim", no_wrap=True, overflow="ellipsis"),
    )


def print_views(where: str, figures: MeshFigures, views: Sequence[TopView], out: TextIO) -> None:
    """A table of each of these views. Colours only where `out` is a terminal."""
    console = console_of(out)
    console.print(f"controller {where}  revision {figures.revision}")
    for view in views:
        state = TopState(view=view)
        table = _table(screen_of(state, figures, height=_ALL_ROWS, where=where), state, is_live=False)
        table.title = view.title()
        console.print(table)
    if figures.unlisted_replicas and TopView.REPLICAS in views:
        console.print(f"{figures.unlisted_replicas} more replicas are not listed")


def _table(screen: TopScreen, state: TopState, *, is_live: bool) -> Table:
    """The rows. A live table marks the cursor and the column that they are sorted by."""
    table = Table(title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    table.padding = (0, 2, 0, 0)
    for number, column in enumerate(COLUMNS[state.view]):
        mark = ("▼" if state.order.descending else "▲") if is_live and number == state.order.column else ""
        justify: Literal["left", "right"] = "right" if column.is_number else "left"
        table.add_column(f"{column.title}{mark}", justify=justify, no_wrap=is_live, overflow="ellipsis")
    for number, row in enumerate(screen.rows):
        has_cursor = is_live and number == screen.cursor
        table.add_row(*(Text(cell.text, style=cell.style) for cell in row), style="reverse" if has_cursor else "")
    return table
