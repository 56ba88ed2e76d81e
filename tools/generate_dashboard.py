"""Writes the Grafana dashboard of its panels, or checks that it is what it should be.

deploy/grafana/panels.yaml has the panels; deploy/grafana/slotmesh.json is what Grafana reads.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
PANELS: Final = ROOT / "deploy" / "grafana" / "panels.yaml"
DASHBOARD: Final = ROOT / "deploy" / "grafana" / "slotmesh.json"
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS: Final = 3
_WIDTH: Final = 24 // _COLUMNS
"""Grafana's grid has 24 columns."""
_HEIGHT: Final = 8
_PANEL: Final = frozenset({"title", "about", "unit", "queries"})


def dashboard(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What Grafana reads, for rows of panels."""
    return {
        "uid": "slotmesh",
        "title": "slotmesh",
        "tags": ["slotmesh"],
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "schemaVersion": 39,
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                _choice("endpoint", "Endpoint", "label_values(slotmesh_router_calls_total, slotmesh_endpoint)"),
                _choice("backend", "Backend", "label_values(slotmesh_controller_replicas, slotmesh_backend)"),
            ]
        },
        "panels": list(_panels(rows)),
    }


def _choice(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "sort": 1,
    }


def _panels(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for row in rows:
        number += 1
        place = {"x": 0, "y": top, "w": 24, "h": 1}
        yield {"id": number, "type": "row", "title": row["row"], "collapsed": False, "gridPos": place, "panels": []}
        top += 1
        for index, panel in enumerate(row["panels"]):
            number += 1
            across, down = index % _COLUMNS, index // _COLUMNS
            place = {"x": across * _WIDTH, "y": top + down * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            yield _panel(panel) | {"id": number, "gridPos": place}
        top += -(-len(row["panels"]) // _COLUMNS) * _HEIGHT


def _panel(panel: Mapping[str, Any]) -> dict[str, Any]:
    if panel.keys() != _PANEL:
        raise ValueError(f"{PANELS.name}: {panel.get('title', panel)}: has to have {', '.join(sorted(_PANEL))}")
    return {
        "type": "timeseries",
        "title": panel["title"],
        "description": panel["about"],
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel["unit"], "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": expr, "legendFormat": legend}
            for index, (legend, expr) in enumerate(panel["queries"].items())
        ],
    }


def written() -> str:
    """The file as it should be."""
    return json.dumps(dashboard(yaml.safe_load(PANELS.read_text("utf-8"))), indent=2) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where something would change")
    arguments = parser.parse_args()
    before = DASHBOARD.read_text("utf-8") if DASHBOARD.exists() else ""
    if before == (after := written()):
        return 0
    if arguments.check:
        sys.stderr.write(f"{DASHBOARD.relative_to(ROOT)} is not what its panels say: run {Path(__file__).name}\n")
        return 1
    DASHBOARD.write_text(after, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
