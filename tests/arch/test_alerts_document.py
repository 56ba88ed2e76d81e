"""Every alert says what it means, and points to its row in docs/operations.md: when it fires, and what to do."""

from __future__ import annotations

import re

import pytest
import yaml

from controller_service.core.event_log import EventKind
from tests.arch.sources import ROOT

DOCUMENT = (ROOT / "docs/operations.md").read_text("utf-8")
SECTION = DOCUMENT.partition("\n## Alerts\n")[2].partition("\n## ")[0]
ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
}
ROWS = {
    found[2]: found
    for found in re.finditer(r'^\| <a id="(\w+)"></a>`(\w+)` \| (.+) \| (.+) \|$', SECTION, re.MULTILINE)
}


def test_there_is_one_row_for_each_alert() -> None:
    assert len(ALERTS) > 5
    assert SECTION.count("<a id=") == len(ROWS)
    assert [*ROWS] == [*ALERTS], "each has its row, in the order of the rules"


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_points_to_its_row(alert: str) -> None:
    anchor = ROWS[alert][1]
    assert anchor == alert.lower()
    assert ALERTS[alert]["annotations"]["runbook"] == f"docs/operations.md#{anchor}"


@pytest.mark.parametrize("alert", ALERTS)
def test_a_row_says_after_what_time(alert: str) -> None:
    assert ROWS[alert][3].startswith(f"{ALERTS[alert]['labels']['severity']}, {ALERTS[alert].get('for', 'at once')}")


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_what_it_means(alert: str) -> None:
    annotations = ALERTS[alert]["annotations"]
    assert len(annotations["summary"].split()) > 2
    assert len(annotations["description"].split()) > 5


def test_events_in_rules_are_kinds_of_events() -> None:
    named = {name for rule in ALERTS.values() for name in re.findall(r'slotmesh_event="(\w+)"', rule["expr"])}
    assert named
    assert named <= {kind.name.lower() for kind in EventKind}
