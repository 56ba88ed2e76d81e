"""The dashboard is what its panels say, and asks, as the alerts do, for metrics and labels that there are."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml

from tests.arch.sources import ROOT
from tests.support.promql import (
    alert_expressions,
    choices,
    known_series,
    mistakes,
    panel_queries,
    selections,
    words,
)

DASHBOARD = ROOT / "deploy/grafana/slotmesh.json"
ALERTS = ROOT / "deploy/prometheus/alerts.yaml"
QUERIES = panel_queries(DASHBOARD)
RULES = alert_expressions(ALERTS)


def test_the_dashboard_is_what_its_panels_say() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools/generate_dashboard.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("query", QUERIES.values(), ids=map(" · ".join, QUERIES))
def test_panels_ask_for_what_there_is(query: str) -> None:
    assert mistakes(query) == []


@pytest.mark.parametrize("alert", RULES)
def test_alerts_ask_for_what_there_is(alert: str) -> None:
    assert mistakes(RULES[alert]) == []


def test_legends_name_labels_by_which_queries_are_grouped() -> None:
    for (title, legend), query in QUERIES.items():
        for label in legend.split("{{")[1:]:
            assert label.partition("}}")[0] in words(query) | {"job", "instance"}, title


def test_what_can_be_chosen_exists_and_is_used() -> None:
    found, known = choices(DASHBOARD), known_series()
    assert found.keys() == {"endpoint", "backend"}
    for name, (metric, label) in found.items():
        assert label in known[metric]
        assert any(f'"${name}"' in query for query in QUERIES.values())


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ("sum(rate(slotmesh_router_cals_total[5m]))", "slotmesh_router_cals_total"),
        ("sum by (slotmesh_reason) (rate(slotmesh_router_calls_total[5m]))", "slotmesh_reason"),
        ('slotmesh_router_queued{slotmesh_endpoint="e"}', "slotmesh_endpoint"),
        ("slotmesh_router_queue_time_seconds > 1e3", "slotmesh_router_queue_time_seconds"),
        ("summ(slotmesh_router_queued)", "summ"),
        ("vector(1)", "vector"),
    ],
)
def test_a_name_that_does_not_exist_is_found(wrong: str, found: str) -> None:
    assert found in mistakes(wrong)


def test_selections_are_whole() -> None:
    query = 'rate(slotmesh_router_failures_total{slotmesh_reason!~"A|B"}[5m]) / on (x) slotmesh_router_calls_total'
    assert selections(query) == [
        "slotmesh_router_calls_total",
        'slotmesh_router_failures_total{slotmesh_reason!~"A|B"}',
    ]


def test_grafana_finds_what_it_is_given() -> None:
    folder = ROOT / "deploy/grafana/provisioning"
    (source, _) = yaml.safe_load((folder / "datasources/prometheus.yaml").read_text("utf-8"))["datasources"]
    (provider,) = yaml.safe_load((folder / "dashboards/slotmesh.yaml").read_text("utf-8"))["providers"]
    mounts = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]["grafana"]["volumes"]
    assert source["type"] == "prometheus"
    assert f"./deploy/grafana/slotmesh.json:{provider['options']['path']}/slotmesh.json:ro" in mounts
    assert "./deploy/grafana/provisioning:/etc/grafana/provisioning:ro" in mounts
