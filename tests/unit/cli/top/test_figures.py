"""What is shown of what the controller knows: rates of one start of a router, and nothing where nothing is known."""

from __future__ import annotations

import json
from math import inf

import pytest

from slotmesh.cli.figures import CallQuantiles, rate, row_name, shown_time
from slotmesh.cli.top.screen import COLUMNS, document_of, screen_of
from slotmesh.cli.top.state import TopState, TopView
from slotmesh.histogram import CALL_TIMES, quantile_bound
from tests.unit.cli.top.samples import mesh, replica, router


def test_routers_are_summed() -> None:
    figures = mesh([router("a", (300, 10), (100, 0)), router("b", (50, 0), (30, 0))])
    (endpoint,), (backend,) = figures.endpoints, figures.backends
    assert (endpoint["calls_per_s"], endpoint["failures_per_s"]) == (110.0, 5.0)
    assert (endpoint["calls_total"], endpoint["failures_total"]) == (350, 10)
    assert (backend["calls_per_s"], backend["failures_per_s"]) == (110.0, 5.0)
    assert (backend["sent_total"], backend["ended_total"], backend["failed_total"]) == (350, 350, 10)
    assert endpoint["shares"] == {"v1": 1.0}
    assert [it["calls_per_s"] for it in figures.routers] == [100.0, 10.0]


def test_a_router_that_has_just_started_counts_and_has_no_rate() -> None:
    figures = mesh([router("a", (300, 10), None), router("b", (50, 0), (30, 0))])
    assert figures.endpoints[0]["calls_per_s"] == 10.0
    assert figures.endpoints[0]["calls_total"] == 350
    assert [it["calls_per_s"] for it in figures.routers] == [None, 10.0]


def test_a_silent_router_has_no_rate() -> None:
    figures = mesh([router("a", (300, 10), (100, 0), age=4)])
    assert figures.endpoints[0]["calls_per_s"] is None
    assert figures.endpoints[0]["times"] == CallQuantiles(None, None)
    assert not figures.routers[0]["reports"]
    assert figures.routers[0]["calls_per_s"] is None


def test_nothing_is_negative() -> None:
    figures = mesh([router("a", (5, 0), (100, 3))])
    assert figures.endpoints[0]["calls_per_s"] is None
    assert figures.backends[0]["calls_per_s"] is None
    assert figures.backends[0]["times"] == CallQuantiles(None, None)
    assert rate(5, 6, 1.0) is None
    assert rate(5, 5, 0.0) is None


def test_times_are_of_the_calls_in_between() -> None:
    figures = mesh([router("a", (300, 0), (100, 0), fast=150)])
    assert figures.backends[0]["times"] == CallQuantiles(0.001, 0.01)
    assert figures.endpoints[0]["times"] == CallQuantiles(0.001, 0.01)


def test_replicas_have_rates_of_their_own_and_the_size_of_batches() -> None:
    figures = mesh(
        [router("r", (0, 0), None)], [replica("v1-a"), replica("v1-b", earlier=None), replica("v1-c", calls=None)]
    )
    first, second, third = figures.replicas
    assert (first["calls_per_s"], first["batch_size"], first["ongoing"], first["slots"]) == (10.0, 4.0, 3, 1)
    assert (second["calls_per_s"], second["batch_size"], second["calls_total"]) == (None, None, 40)
    assert (third["calls_per_s"], third["ongoing"], third["slots"]) == (None, None, None)
    assert [it["linked_routers"] for it in figures.replicas] == [1, 0, 0]
    assert (figures.backends[0]["slots"], figures.backends[0]["max_ongoing"], figures.backends[0]["batch_size"]) == (
        2,
        24,
        4.0,
    )


def test_the_times_of_a_replica_are_of_the_calls_that_ended_there_in_between() -> None:
    slow = replica("v1-slow", times=({0.001: 900, 0.2: 10}, {0.001: 900}))
    quick = replica("v1-quick", times=({0.2: 50, 0.001: 99, 0.01: 1}, {0.2: 50}))
    figures = mesh([], [slow, quick, replica("v1-older"), replica("v1-new", earlier=None, times=({0.2: 1}, {}))])
    assert [it["times"] for it in figures.replicas] == [
        CallQuantiles(0.2, 0.2),
        CallQuantiles(0.001, 0.001),
        CallQuantiles(None, None),
        CallQuantiles(None, None),
    ]
    document = document_of("c:1", figures)["replicas"]
    assert [(it["p50_s"], it["p99_s"]) for it in document] == [(0.2, 0.2), (0.001, 0.001), (None, None), (None, None)]
    screen = screen_of(TopState(view=TopView.REPLICAS), figures, height=9, where="here")
    titles = [column.title for column in COLUMNS[TopView.REPLICAS]]
    cells = {row[0].text: row[titles.index("p99")].text for row in screen.rows}
    assert cells == {"v1-slow": "≤ 200 ms", "v1-quick": "≤ 1 ms", "v1-older": "", "v1-new": ""}


def test_the_document_is_json_whatever_is_known() -> None:
    empty = document_of("c:1", mesh())
    assert json.loads(json.dumps(empty, allow_nan=False)) == empty
    assert empty["endpoints"][0]["calls_per_s"] is None
    slow = mesh([router("a", (10, 0), (0, 0))])
    assert document_of("c:1", slow)["backends"][0]["p99_s"] == 0.01


def test_a_time_above_all_bounds_is_said_to_be() -> None:
    nothing, one = (0,) * 26, (*(0,) * 25, 1)
    times = CallQuantiles.of_counts([(one, nothing)])
    assert times == CallQuantiles(inf, inf)
    assert shown_time(times.p99_s) == "> 30 s"


def test_a_router_that_counts_in_another_way_has_no_times() -> None:
    assert CallQuantiles.of_counts([((5,), (0,)), ((5,), ())]) == CallQuantiles(None, None)


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ([0, 0, 0], 0.5, None),
        ([1, 0, 0], 0.5, 1.0),
        ([1, 1, 0], 0.5, 1.0),
        ([1, 1, 0], 0.51, 2.0),
        ([99, 1, 0], 0.99, 1.0),
        ([98, 2, 0], 0.99, 2.0),
        ([98, 0, 2], 0.99, inf),
        ([0, 0, 1], 1.0, inf),
    ],
)
def test_quantiles_are_upper_bounds(counts: list[int], share: float, expected: float | None) -> None:
    assert quantile_bound((1.0, 2.0), counts, share) == expected


@pytest.mark.parametrize(
    ("time_s", "text"), [(None, ""), (0.001, "≤ 1 ms"), (0.7, "≤ 700 ms"), (1.5, "≤ 1.5 s"), (CALL_TIMES[-1], "≤ 30 s")]
)
def test_times_as_people_read_them(time_s: float | None, text: str) -> None:
    assert shown_time(time_s) == text


def test_tenants_of_all_routers_that_report_are_summed_the_busiest_first() -> None:
    routers = [router("a", (300, 10), (100, 0)), router("b", (50, 0), (30, 0)), router("silent", (1, 0), None, age=9)]
    for each, calls in zip(routers, (10.0, 5.0, 99.0), strict=True):
        load = each.router.endpoint_loads[0]
        load.tenants.add(tenant="acme", calls_per_s=calls, unanswered=3, refused_per_s=1.0)
    routers[1].router.endpoint_loads[0].tenants.add(tenant="", calls_per_s=20.0, unanswered=1)
    figures = mesh(routers)
    assert [(row_name(it), it["calls_per_s"], it["unanswered"], it["refused_per_s"]) for it in figures.tenants] == [
        ("digits/other", 20.0, 1, 0.0),
        ("digits/acme", 15.0, 6, 2.0),
    ]
    assert document_of("c", figures)["tenants"][1] == {
        "endpoint": "digits",
        "tenant": "acme",
        "calls_per_s": 15.0,
        "refused_per_s": 2.0,
        "unanswered": 6,
    }
    screen = screen_of(TopState(view=TopView.TENANTS), figures, height=5, where="here")
    assert [row[0].text for row in screen.rows] == ["digits/acme", "digits/other"], "by name, unless told otherwise"
