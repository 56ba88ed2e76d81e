"""What keys do, and what is on the screen then."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from slotmesh.cli.figures import MeshFigures, shown_rate
from slotmesh.cli.top.screen import COLUMNS, bar, document_of, draw, names_of, print_views, screen_of
from slotmesh.cli.top.state import VIEWS, TopState, TopView, press
from slotmesh.cli.top.terminal import keys_of
from tests.support.examples import examples
from tests.unit.cli.top.samples import mesh, replica, router

MESH = mesh(
    [router("r-1", (300, 10), (100, 0))], [replica("v1-a"), replica("v1-b", calls=60), replica("v1-c", calls=None)]
)
KEYS = [
    "1",
    "2",
    "3",
    "4",
    "tab",
    "backtab",
    "up",
    "down",
    "enter",
    "escape",
    "s",
    "S",
    "r",
    "/",
    "a",
    "?",
    "home",
    "end",
]


def after(keys: list[str], figures: MeshFigures = MESH, state: TopState | None = None) -> TopState:
    state = state or TopState()
    for key in keys:
        state = press(state, key, screen_of(state, figures, height=5, where="").names, len(COLUMNS[state.view]))
    return state


def names(state: TopState, figures: MeshFigures = MESH) -> list[str]:
    return [*screen_of(state, figures, height=50, where="").names]


def text_of(state: TopState, figures: MeshFigures = MESH, notice: str = "") -> str:
    out = io.StringIO()
    console = Console(file=out, width=160, height=20)
    console.print(draw(screen_of(state, figures, height=10, where="here", notice=notice), state))
    return out.getvalue()


def test_views_by_number_and_in_turn() -> None:
    assert after(["3"]).view is TopView.REPLICAS
    assert after(["tab"] * 5).view is TopView.ENDPOINTS
    assert after(["backtab"]).view is TopView.TENANTS


def test_enter_goes_down_to_replicas_and_escape_back() -> None:
    state = after(["enter", "enter"])
    assert (state.view, names(state)) == (TopView.REPLICAS, ["v1-a", "v1-b", "v1-c"])
    assert [scope.name for scope in state.scopes] == ["digits", "v1"]
    state = after(["enter"], state=state)
    assert state.view is TopView.REPLICAS
    state = after(["escape", "escape"], state=state)
    assert (state.view, state.at, state.scopes) == (TopView.ENDPOINTS, "digits", ())


def test_what_is_not_known_is_last_either_way() -> None:
    by_calls = after(["3", "s", "s"])
    assert COLUMNS[by_calls.view][by_calls.order.column].title == "calls/s"
    assert names(by_calls) == ["v1-b", "v1-a", "v1-c"]
    assert names(after(["r"], state=by_calls)) == ["v1-a", "v1-b", "v1-c"]


def test_each_view_keeps_its_order() -> None:
    state = after(["3", "r", "1", "3"])
    assert names(state) == ["v1-c", "v1-b", "v1-a"]
    assert not after(["3", "r", "1"]).order.descending


def test_a_filter_is_typed_kept_and_dropped() -> None:
    typing = after(["3", "/", "B"])
    assert (typing.is_filtering, names(typing)) == (True, ["v1-b"])
    assert names(after(["backspace"], state=typing)) == ["v1-a", "v1-b", "v1-c"]
    kept = after(["enter"], state=typing)
    assert (kept.is_filtering, kept.filter, names(kept)) == (False, "B", ["v1-b"])
    assert names(after(["escape"], state=kept)) == ["v1-a", "v1-b", "v1-c"]
    assert after(["3", "/", "q"]).has_quit is False


def test_the_cursor_stays_on_its_row_while_others_come_and_go() -> None:
    state = after(["3", "down"])
    assert state.at == "v1-b"
    fewer = mesh([], [replica("v1-b"), replica("v1-c")])
    assert screen_of(state, fewer, height=5, where="").cursor == 0
    gone = mesh([], [replica("v1-c")])
    assert screen_of(state, gone, height=5, where="").cursor == 0


def test_rows_that_do_not_fit_scroll_with_the_cursor() -> None:
    many = mesh([], [replica(f"v1-{number:03}") for number in range(100)])
    state = after(["3", "end"], many)
    screen = screen_of(state, many, height=10, where="")
    assert (len(screen.rows), screen.cursor, screen.rows[9][0].text) == (10, 9, "v1-099")
    assert "10 of 100 rows" in screen.footer
    assert screen_of(after(["pageup"], many, state), many, height=10, where="").rows[5][0].text == "v1-089"


def test_quitting() -> None:
    assert after(["q"]).has_quit
    assert after(["?"]).shows_help
    assert not after(["?", "x"]).has_quit


def test_what_is_wrong_is_drawn() -> None:
    shown = text_of(after(["3"]), notice="no controller answers")
    assert "no controller answers" in shown
    assert "READY, not reached" in shown
    assert "PgUp" in text_of(after(["?"]))
    assert "slotmesh here" in text_of(TopState(), mesh())


def test_all_views_print_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    print_views("c:1", MESH, VIEWS, out)
    assert all(title in out.getvalue() for title in ("Endpoints", "Backends", "Replicas", "Routers", "≤ 10 ms"))


@pytest.mark.parametrize("view", VIEWS)
def test_one_view_prints_alone_in_each_form(view: TopView) -> None:
    out = io.StringIO()
    print_views("c:1", MESH, (view,), out)
    assert [it.title() for it in VIEWS if it.title() in out.getvalue()] == [view.title()]
    document = document_of("c:1", MESH, (view,))
    assert [it for it in VIEWS if it in document] == [view]
    assert ("unlisted_replicas" in document) == (view is TopView.REPLICAS)
    names = names_of(MESH, (view,))
    assert {it.partition("/")[0] for it in names} <= {view.removesuffix("s")}
    assert bool(names) == (view is not TopView.TENANTS)
    assert set(names) <= set(names_of(MESH, VIEWS))


@settings(max_examples=examples(100))
@given(st.lists(st.sampled_from(KEYS), max_size=40), st.sampled_from([MESH, mesh(), mesh([router("a", (1, 0), None)])]))
def test_no_keys_lead_nowhere(keys: list[str], figures: MeshFigures) -> None:
    state = TopState()
    for key in keys:
        state = after([key], figures, state)
        screen = screen_of(state, figures, height=3, where="")
        assert len(screen.rows) <= 3
        assert -1 <= screen.cursor < max(1, len(screen.rows))
        assert (screen.cursor >= 0) == bool(screen.rows)


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[A\x1b[B\x1bOCx", ["up", "down", "right", "x"]),
        (b"\x1b[5~\x1b[6~\x1b[Z\t", ["pageup", "pagedown", "backtab", "tab"]),
        (b"\x1b[200~\x1b[1;5Ab", ["b"]),
        (b"\r\x7f\x00\x01", ["enter", "backspace"]),
        ("ä\xff".encode() + b"\xff", ["ä", "ÿ"]),
        (b"\x1b[", []),
        (b"\x1b\x1b", ["escape", "escape"]),
    ],
)
def test_what_a_terminal_sends(sent: bytes, keys: list[str]) -> None:
    assert [*keys_of(sent)] == keys


@given(st.binary(max_size=64))
def test_whatever_a_terminal_sends(sent: bytes) -> None:
    assert len([*keys_of(sent)]) <= len(sent)


def test_bars_and_rates() -> None:
    assert [bar(share, 4) for share in (0.0, 0.5, 1.0, 2.0)] == ["    ", "██  ", "████", "████"]
    assert bar(0.03, 4) == "▏   "
    assert [shown_rate(value) for value in (None, 0.0, 0.1234, 12.34, 1234.5)] == ["", "0", "0.123", "12.3", "1,234"]
