"""Writes the alerts as a PrometheusRule for Kubernetes; `make format` runs it.

It has the text of `deploy/prometheus/alerts.yaml`, below the head of a resource.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
ALERTS: Final = ROOT / "deploy/prometheus/alerts.yaml"
RULE: Final = ROOT / "deploy/kubernetes/components/observability/alerts.yaml"
HEAD: Final = """\
# Written by tools/generate_prometheus_rule.py, from deploy/prometheus/alerts.yaml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: slotmesh}
spec:
"""


def written(alerts: str) -> str:
    """The resource, with the groups of this file of alerts."""
    groups = alerts[alerts.index("groups:") :]
    return HEAD + "".join(f"  {line}" if line.strip() else line for line in groups.splitlines(keepends=True))


if __name__ == "__main__":
    RULE.write_text(written(ALERTS.read_text("utf-8")), "utf-8")
