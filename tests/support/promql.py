"""What PromQL expressions ask for: metrics, labels, and the single selections of series. Pure.

No parser: names are what remains of an expression without its strings, ranges and words of the language. A word that is
misspelt counts as a name, and is not found among those that exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import yaml

from slotmesh.telemetry import names
from slotmesh.telemetry.names import Metric, MetricKind, prometheus_name

LANGUAGE: Final = frozenset(
    (
        *(
            "absent",
            "and",
            "avg",
            "bool",
            "by",
            "count",
            "group_left",
            "group_right",
            "histogram_quantile",
            "ignoring",
            "increase",
        ),
        *("max", "max_over_time", "min", "offset", "on", "or", "rate", "sum", "time", "unless", "without"),
    )
)
OF_TARGETS: Final = frozenset({"job", "instance"})
"""Labels that Prometheus gives to whatever it scrapes."""
OF_PROCESSES: Final = frozenset(
    f"process_{it}"
    for it in (
        "cpu_seconds_total",
        "resident_memory_bytes",
        "virtual_memory_bytes",
        "start_time_seconds",
        "open_fds",
        "max_fds",
    )
)
"""Metrics of every Prometheus client."""
_STRING: Final = re.compile(r'"[^"]*"')
_RANGE: Final = re.compile(r"\[[^\]]*\]")
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_SELECTION: Final = re.compile(r"([A-Za-z_]\w*)(\{[^}]*\})?")


def known_series() -> Mapping[str, frozenset[str]]:
    """The labels of each name that Prometheus has of the mesh's processes."""
    known = dict.fromkeys((*OF_PROCESSES, "up"), OF_TARGETS)
    for metric in names.metrics():
        labels = OF_TARGETS | {it.replace(".", "_") for it in metric.attributes}
        for name in _series(metric):
            known[name] = labels | {"le"} if name.endswith("_bucket") else labels
    return known


def _series(metric: Metric) -> Iterator[str]:
    name = prometheus_name(metric)
    yield from (
        (f"{name}{it}" for it in ("_bucket", "_sum", "_count")) if metric.kind is MetricKind.HISTOGRAM else (name,)
    )


def mistakes(expression: str) -> list[str]:
    """Names of an expression that are neither metrics nor labels of the metrics that it asks for."""
    known = known_series()
    asked = words(expression)
    metrics = asked & known.keys()
    labels = frozenset[str]().union(*(known[it] for it in metrics))
    return [*sorted(asked - metrics - labels), *([] if metrics else [f"no metric in: {expression}"])]


def words(expression: str) -> frozenset[str]:
    """Its names, of metrics and labels."""
    bare = _RANGE.sub("", _STRING.sub("", expression))
    return frozenset(_NAME.findall(re.sub(r"\b\d[\w.]*", "", bare))) - LANGUAGE


def selections(expression: str) -> list[str]:
    """Each metric that it asks for, with the labels that it has to have, as an expression of its own."""
    known = known_series()
    bare = _RANGE.sub("", expression)
    return sorted({name + (labels or "") for name, labels in _SELECTION.findall(bare) if name in known})


def alert_expressions(path: Path) -> Mapping[str, str]:
    """Of a file with rules, by the name of the alert."""
    groups = yaml.safe_load(path.read_text("utf-8"))["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def panel_queries(path: Path) -> Mapping[tuple[str, str], str]:
    """Of a dashboard, by the panel's title and the legend."""
    panels = json.loads(path.read_text("utf-8"))["panels"]
    return {(it["title"], each["legendFormat"]): each["expr"] for it in panels for each in it.get("targets", ())}


def choices(path: Path) -> Mapping[str, tuple[str, str]]:
    """Of a dashboard: metric and label whose values each of its variables offers."""
    variables = json.loads(path.read_text("utf-8"))["templating"]["list"]
    found = {it["name"]: re.fullmatch(r"label_values\((\w+), (\w+)\)", it.get("definition", "")) for it in variables}
    return {name: (it[1], it[2]) for name, it in found.items() if it is not None}
