"""The state of a live view: view, order, filter, cursor. Keys change it. Pure: `(state, key, rows) -> state`.

Invariants: each view has its own order; a cursor holds the name of a row, so that new or removed rows do not move it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class TopView(StrEnum):
    """What the rows are."""

    ENDPOINTS = "endpoints"
    BACKENDS = "backends"
    REPLICAS = "replicas"
    ROUTERS = "routers"
    TENANTS = "tenants"


VIEWS: Final = tuple(TopView)
INNER: Final = {TopView.ENDPOINTS: TopView.BACKENDS, TopView.BACKENDS: TopView.REPLICAS}
"""What a row of a view is made of."""
MAX_FILTER_CHARS: Final = 100


@dataclass(frozen=True, slots=True)
class RowOrder:
    """By which column rows are, and from which end."""

    column: int = 0
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Scope:
    """The row whose parts are shown."""

    view: TopView
    """The view that it is a row of."""
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopState:
    """What is shown, and how."""

    view: TopView = TopView.ENDPOINTS
    scopes: tuple[Scope, ...] = ()
    """Where one has gone down to, the innermost last."""
    orders: Mapping[TopView, RowOrder] = field(default_factory=lambda: MappingProxyType({}))
    filter: str = ""
    """Only rows whose names have it, in whatever case."""
    is_filtering: bool = False
    """Keys go to the filter."""
    at: str = ""
    """The name of the row that the cursor is on; the first one where there is none of that name."""
    shows_help: bool = False
    has_quit: bool = False

    @property
    def order(self) -> RowOrder:
        """Of the present view."""
        return self.orders.get(self.view, RowOrder())


def press(state: TopState, key: str, rows: Sequence[str], columns: int) -> TopState:
    """The state after a key. `rows`: the names that are shown, in order. `columns`: how many the view has."""
    if state.shows_help:
        return replace(state, shows_help=False, has_quit=key == "q")
    if state.is_filtering:
        return _typed(state, key)
    if key in {"q", "?", "h", "/"}:
        return replace(state, has_quit=key == "q", shows_help=key in {"?", "h"}, is_filtering=key == "/")
    if key in _SIDEWAYS:
        return _go_to(state, VIEWS[(VIEWS.index(state.view) + _SIDEWAYS[key]) % len(VIEWS)])
    if key in _NUMBERS:
        return _go_to(state, VIEWS[_NUMBERS.index(key)])
    if key in {"s", "S", "r"}:
        return _reorder(state, key, columns)
    if key == "enter":
        return _enter(state, rows)
    return _leave(state) if key in {"escape", "backspace"} else _move(state, key, rows)


_SIDEWAYS: Final = {"tab": 1, "right": 1, "backtab": -1, "left": -1}
_NUMBERS: Final = ("1", "2", "3", "4", "5")


def _typed(state: TopState, key: str) -> TopState:
    if key == "enter":
        return replace(state, is_filtering=False)
    if key == "escape":
        return replace(state, is_filtering=False, filter="")
    if key == "backspace":
        return replace(state, filter=state.filter[:-1])
    if len(key) == 1 and key.isprintable():
        return replace(state, filter=(state.filter + key)[:MAX_FILTER_CHARS])
    return state


def _go_to(state: TopState, view: TopView) -> TopState:
    return replace(state, view=view, scopes=(), at="")


def _reorder(state: TopState, key: str, columns: int) -> TopState:
    """By the next column or the one before, largest first but for names; or from the other end."""
    order = state.order
    if key == "r":
        order = replace(order, descending=not order.descending)
    else:
        column = (order.column + (1 if key == "s" else -1)) % max(1, columns)
        order = RowOrder(column, descending=column > 0)
    return replace(state, orders=MappingProxyType({**state.orders, state.view: order}))


def _enter(state: TopState, rows: Sequence[str]) -> TopState:
    inner = INNER.get(state.view)
    if inner is None or not rows:
        return state
    scope = Scope(state.view, rows[cursor_of(state, rows)])
    return replace(state, view=inner, scopes=(*state.scopes, scope), at="", filter="")


def _leave(state: TopState) -> TopState:
    if state.filter:
        return replace(state, filter="")
    if not state.scopes:
        return state
    *outer, last = state.scopes
    return replace(state, view=last.view, scopes=tuple(outer), at=last.name)


_STEPS: Final = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -10, "pagedown": 10}


def _move(state: TopState, key: str, rows: Sequence[str]) -> TopState:
    if not rows:
        return state
    if key in {"home", "g"}:
        return replace(state, at=rows[0])
    if key in {"end", "G"}:
        return replace(state, at=rows[-1])
    if (step := _STEPS.get(key)) is None:
        return state
    return replace(state, at=rows[min(len(rows) - 1, max(0, cursor_of(state, rows) + step))])


def cursor_of(state: TopState, rows: Sequence[str]) -> int:
    """Where the cursor is among the rows."""
    return rows.index(state.at) if state.at in rows else 0
