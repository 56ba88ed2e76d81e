"""Pods as documents, as an API server has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def pod_document(
    name: str = "v1-abc",
    *,
    uid: str = "uid-1",
    node: str = "node-a",
    phase: str = "Running",
    state: Mapping[str, Any] | None = None,
    restart_policy: str = "Never",
    deleting: bool = False,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **status: Any,
) -> dict[str, Any]:
    """`state`: of its only container; None: there is no status of it."""
    metadata: dict[str, Any] = {"name": name, "uid": uid, "annotations": annotations or {}, "labels": labels or {}}
    if deleting:
        metadata["deletionTimestamp"] = "2026-11-29T12:00:00Z"
    spec: dict[str, Any] = {"containers": [{"name": "replica"}], "restartPolicy": restart_policy}
    if node:
        spec["nodeName"] = node
    statuses = [] if state is None else [{"name": "replica", "restartCount": 0, "state": state}]
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase, "containerStatuses": statuses, **status}}


RUNNING: Mapping[str, Any] = {"running": {"startedAt": "2026-11-29T12:00:00Z"}}


def terminated(code: int = 0, **more: Any) -> Mapping[str, Any]:
    """The state of a container that has ended."""
    return {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed", **more}}


def waiting(reason: str, message: str = "") -> Mapping[str, Any]:
    """The state of a container that has not started."""
    return {"waiting": {"reason": reason, "message": message}}
