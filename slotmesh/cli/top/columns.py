"""The columns of each view: the text of cells, and the sort keys of rows; and the views as documents. Pure.

Invariants: an unknown value is an empty cell, or null, and sorts last in either order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final

from slotmesh.cli.figures.rows import (
    FAILED,
    READY,
    BackendFigures,
    EndpointFigures,
    MeshFigures,
    ReplicaFigures,
    RouterFigures,
    figures_document,
    shown_rate,
    shown_time,
)
from slotmesh.cli.top.state import VIEWS, TopView
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
    """A column of a view. `cell` has the row's figures, and the largest rate of calls in the view."""

    title: str
    cell: Callable[[Any, float], Cell]
    is_number: bool = True


def bar(share: float, cells: int = BAR_CELLS) -> str:
    """A bar of at most `cells` cells, in eighths of a cell; `share` is 0 to 1."""
    eighths = round(min(1.0, max(0.0, share)) * cells * 8)
    whole, part = divmod(eighths, 8)
    return (_EIGHTHS[8] * whole + (_EIGHTHS[part] if part else "")).ljust(cells)


def _text(read: Callable[[Any], str]) -> Callable[[Any, float], Cell]:
    return lambda row, _: Cell(read(row), read(row).lower())


def _rate(read: Callable[[Any], float | None], style: str = "") -> Callable[[Any, float], Cell]:
    """The style is that of a rate above 0."""
    return lambda row, _: Cell(shown_rate(read(row)), read(row), style if read(row) else "")


def _count(read: Callable[[Any], float | None], style: str = "") -> Callable[[Any, float], Cell]:
    def cell(row: Any, _: float) -> Cell:
        value = read(row)
        return Cell(
            "" if value is None else f"{value:,.4g}" if value % 1 else f"{value:,.0f}", value, style if value else ""
        )

    return cell


def _time(read: Callable[[Any], float | None]) -> Callable[[Any, float], Cell]:
    return lambda row, _: Cell(shown_time(read(row)), read(row), WARNING if not isfinite(read(row) or 0) else "")


def _bar(row: Any, largest: float) -> Cell:
    rate: float | None = row.calls_per_s
    return Cell(bar(rate / largest) if rate and largest else "", rate)


def _shares(row: EndpointFigures, _: float) -> Cell:
    """The division of the newest calls; without any, the policy."""
    shares = row.shares or row.traffic
    if not shares:
        return Cell("no policy: calls wait", None, WARNING)
    text = "  ".join(f"{name} {bar(share, 4).rstrip()}{share:.0%}" for name, share in shares.items())
    return Cell(text, None)


def _readiness(row: BackendFigures, _: float) -> Cell:
    ready, wanted = row.ready_replicas, row.wanted_replicas
    enough = ready >= (1 if wanted is None else wanted)
    return Cell(f"{ready}/{'any' if wanted is None else wanted}", ready, GOOD if enough else WARNING)


def _in_use(row: BackendFigures | ReplicaFigures, _: float) -> Cell:
    """Calls that run, of those that may."""
    if row.ongoing is None:
        return Cell("", None)
    return Cell(
        f"{row.ongoing:,}/{row.max_ongoing:,}", row.ongoing / row.max_ongoing if row.max_ongoing else row.ongoing
    )


def _state(row: ReplicaFigures, _: float) -> Cell:
    if row.state == READY and not row.is_reached:
        return Cell("READY, not reached", row.state, BAD)
    style = GOOD if row.state == READY else BAD if row.state == FAILED else WARNING
    return Cell(f"{row.state}{', outdated' if row.outdated else ''}", row.state, style)


def _links(row: ReplicaFigures, _: float) -> Cell:
    return _of(row.linked_routers, row.routers)


def _router_links(row: RouterFigures, _: float) -> Cell:
    return _of(row.linked_replicas, row.ready_replicas)


def _of(linked: int, count: int) -> Cell:
    return Cell(f"{linked}/{count}", linked, "" if linked == count else WARNING)


def _router_state(row: RouterFigures, _: float) -> Cell:
    if not row.reports:
        return Cell("silent", "silent", BAD)
    return Cell("current", "current", GOOD) if row.current else Cell("behind", "behind", WARNING)


def _trouble(row: ReplicaFigures, _: float) -> Cell:
    lines = row.trouble.splitlines()
    return Cell(lines[-1] if lines else "", row.trouble or None, BAD if row.state == FAILED else WARNING)


_CALLS: Final = Column("calls/s", _rate(lambda row: row.calls_per_s))
_ERRORS: Final = Column("errors/s", _rate(lambda row: row.failures_per_s, BAD))
_P50: Final = Column("p50", _time(lambda row: row.times.p50_s))
_P99: Final = Column("p99", _time(lambda row: row.times.p99_s))
_QUEUE: Final = Column("queue", _count(lambda row: row.queued, WARNING))
_BAR: Final = Column("", _bar, is_number=False)
_BATCH: Final = Column("batch", _count(lambda row: row.batch_size))
_SLOTS: Final = Column("slots", _count(lambda row: row.slots))

COLUMNS: Final[Mapping[TopView, Sequence[Column]]] = {
    TopView.ENDPOINTS: (
        Column("endpoint", _text(lambda row: row.name), is_number=False),
        *(_CALLS, _BAR, _ERRORS, _P50, _P99, _QUEUE),
        Column("traffic", _shares, is_number=False),
    ),
    TopView.BACKENDS: (
        Column("backend", _text(lambda row: row.name), is_number=False),
        *(_CALLS, _BAR, _ERRORS, _P50, _P99, _QUEUE),
        Column("running", _in_use),
        *(_SLOTS, _BATCH),
        Column("ready", _readiness),
        Column("restarts", _count(lambda row: row.restart_count, WARNING)),
    ),
    TopView.REPLICAS: (
        Column("replica", _text(lambda row: row.name), is_number=False),
        Column("state", _state, is_number=False),
        *(_CALLS, _BAR, _ERRORS, _P50, _P99),
        Column("running", _in_use),
        Column("waiting", _count(lambda row: row.waiting, WARNING)),
        *(_SLOTS, _BATCH),
        Column("links", _links),
        Column("restarts", _count(lambda row: row.restart_count, WARNING)),
        Column("error or warning", _trouble, is_number=False),
    ),
    TopView.ROUTERS: (
        Column("router", _text(lambda row: row.name), is_number=False),
        Column("table", _router_state, is_number=False),
        *(_CALLS, _BAR, _ERRORS, _QUEUE),
        Column("running", _count(lambda row: row.ongoing)),
        Column("links", _router_links),
        Column("address", _text(lambda row: row.address), is_number=False),
        Column("version", _text(lambda row: row.version), is_number=False),
    ),
    TopView.TENANTS: (
        Column("endpoint/tenant", _text(lambda row: printable_text(row.name)), is_number=False),
        *(_CALLS, _BAR),
        Column("refused/s", _rate(lambda row: row.refused_per_s, WARNING)),
        Column("unanswered", _count(lambda row: row.unanswered)),
    ),
}


def rows_of(view: TopView, figures: MeshFigures) -> Sequence[Any]:
    """The figures that are the rows of a view."""
    rows: Sequence[Any] = getattr(figures, view.value)
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
    return [f"{view.removesuffix('s')}/{row.name}" for view in named for row in rows_of(view, figures)]
