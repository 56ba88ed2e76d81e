"""docs/metrics.md lists what the code declares, and alerts ask for metrics and labels that there are."""

from __future__ import annotations

import re
import subprocess
import sys

from slotmesh.telemetry import names
from slotmesh.telemetry.names import MetricKind, prometheus_name
from tests.arch.sources import ROOT

ALERTS = (ROOT / "deploy/prometheus/alerts.yaml").read_text("utf-8")
TRIED = (ROOT / "deploy/prometheus/alerts_test.yaml").read_text("utf-8")
ANSWERS = (ROOT / "docs/metrics.md").read_text("utf-8").partition("## Questions and answers")[2]
PARTS = ("_bucket", "_sum", "_count")


def test_the_tables_of_metrics_are_what_the_code_declares() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools/generate_metrics_document.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_every_metric_and_label_that_is_asked_for_exists() -> None:
    known = {it.replace(".", "_") for metric in names.metrics() for it in metric.attributes}
    for metric in names.metrics():
        histogram = metric.kind is MetricKind.HISTOGRAM
        known |= {prometheus_name(metric) + part for part in (PARTS if histogram else ("",))}
    asked = {it for text in (ALERTS, TRIED, ANSWERS) for it in re.findall(r"\bslotmesh_\w+", text)}
    assert sorted(asked - known) == []


def test_every_alert_is_tried() -> None:
    alerts = re.findall(r"- alert: (\w+)", ALERTS)
    assert len(alerts) == len(set(alerts)) > 5
    assert [it for it in alerts if it not in TRIED] == []
