"""Pods for launch orders, from the operator's template, and the orders of pods that run. Pure.

Invariants: what the template sets stays, but for the replica's identity and what its end depends on: it is never
restarted in its pod, and its grace is longer than its drain. A flag is not set where the template's container sets the
variable of that setting. All that a later controller needs is in annotations; labels are for selectors and people.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import timedelta
from math import ceil
from pathlib import Path
from typing import Any, Final

import yaml

from controller_service.core.pods.states import CONTAINER, REPLICA_CONTAINER, PodView
from controller_service.core.roster import HeldTable
from controller_service.shell.launchers.kubernetes.container_settings import complete_container
from controller_service.shell.launchers.protocol import LaunchFailed, LaunchOrder
from slotmesh.runtime.exits import CannotStart
from slotmesh.units import format_duration

PREFIX: Final = "slotmesh.dev/"
MESH: Final = f"{PREFIX}mesh"
BACKEND: Final = f"{PREFIX}backend"
TEMPLATE: Final = f"{PREFIX}template"
REPLICA_ID: Final = f"{PREFIX}replica-id"
_OF_ORDERS: Final = ("backend", "handler", "template", "fixed", "handler_version")
_OF_VERSIONS: Final = ("generation", "revision", "term_id")
LOST_NODE_S: Final = 30
"""A pod is deleted this long after Kubernetes has found its node lost: also a successor that was bound to that node
before, and never starts."""
_LOST_NODE: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_GRACE_MARGIN_S: Final = 15
"""Beyond the drain: for the kill that follows it, and for hooks."""


def selector_of(mesh: str) -> str:
    """Of the pods that controllers of this mesh have started."""
    return f"{MESH}={mesh},{TEMPLATE}"


def pod_name(replica_id: str) -> str:
    """A name that Kubernetes allows, and that a person recognises."""
    return re.sub(r"[^a-z0-9]+", "-", replica_id.lower()).strip("-")


def load_template(path: Path | None) -> Mapping[str, Any]:
    """The template. Raises CannotStart."""
    if path is None:
        return {"spec": {"containers": [{"name": REPLICA_CONTAINER}]}}
    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CannotStart(f"--pod-template {path}: {error}") from error
    if not isinstance(found, dict) or found.get("kind", "Pod") != "Pod" or not isinstance(found.get("spec"), dict):
        raise CannotStart(f"--pod-template {path}: must be one Pod in YAML: kind: Pod, with spec.containers")
    containers = found["spec"].get("containers")
    if not isinstance(containers, list) or not all(isinstance(it, dict) and it.get("name") for it in containers):
        raise CannotStart(f"--pod-template {path}: spec.containers must list containers, each with a name")
    if len(containers) != 1 and REPLICA_CONTAINER not in {it["name"] for it in containers}:
        raise CannotStart(
            f"--pod-template {path}: spec.containers has {len(containers)} containers: name the replica's "
            f"{REPLICA_CONTAINER!r}"
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PodManifests:
    """Makes pods of one mesh."""

    mesh: str
    template: Mapping[str, Any]
    controllers: Callable[[], Sequence[str]]
    """The addresses to which replicas attach, `HOST:PORT`."""
    orphan_timeout: timedelta
    fence_after: timedelta
    device_resources: Mapping[str, str] = field(default_factory=dict)
    """The resource that pods request for devices, by pool."""

    def pod_of(self, order: LaunchOrder, replica_id: str, owner: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """The pod of a replica. `owner`: an owner reference. Raises LaunchFailed."""
        pod: dict[str, Any] = deepcopy(dict(self.template))
        metadata, spec = pod.setdefault("metadata", {}), pod["spec"]
        metadata |= {
            "name": pod_name(replica_id),
            "labels": {**(metadata.get("labels") or {}), **self._labels(order)},
            "annotations": {**(metadata.get("annotations") or {}), **_annotations(order, replica_id)},
        }
        metadata.pop("namespace", None)  # the request has it
        if owner is not None:
            metadata["ownerReferences"] = [*(metadata.get("ownerReferences") or ()), owner]
        grace_s = ceil(order.graceful_timeout_s) + _GRACE_MARGIN_S
        spec["tolerations"] = [*(spec.get("tolerations") or ()), *_missing_tolerations(spec)]
        spec |= {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": max(grace_s, spec.get("terminationGracePeriodSeconds") or 0),
        }
        # No token for user code; no variable of a Service named slotmesh; in 0.2 a fence cannot end process 1 of a
        # container.
        for name, value in {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "shareProcessNamespace": True,
        }.items():
            spec.setdefault(name, value)
        containers = {it["name"]: it for it in spec["containers"]}
        own = containers.get(REPLICA_CONTAINER) or spec["containers"][0]
        metadata["annotations"][CONTAINER] = own["name"]
        own.pop("restartPolicy", None)
        for container in (*spec["containers"], *(spec.get("initContainers") or ())):
            container.pop("restartPolicyRules", None)  # those of any may restart all
        self._complete(own, order, replica_id)
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def _labels(self, order: LaunchOrder) -> dict[str, str]:
        return {MESH: self.mesh, BACKEND: order.backend.rstrip("-_."), TEMPLATE: order.template}

    def _complete(self, container: dict[str, Any], order: LaunchOrder, replica_id: str) -> None:
        """Makes it the container of this replica."""
        settings = order.pod
        if settings is not None and settings.image:
            container["image"] = settings.image
        if not container.get("image"):
            raise LaunchFailed(
                f"backend {order.backend} names no image: set `pod: {{image: …}}` in its specification, or one in the "
                "controller's --pod-template"
            )
        requests = {} if settings is None else {"cpu": settings.cpu, "memory": settings.memory}
        if requests := {name: value for name, value in requests.items() if value}:
            resources = container.setdefault("resources", {})
            resources["requests"] = {**(resources.get("requests") or {}), **requests}
            if memory := requests.get("memory"):
                resources["limits"] = {**(resources.get("limits") or {}), "memory": memory}
        if devices := self._devices(order):
            resources = container.setdefault("resources", {})  # a limit of an extended resource is its request, too
            resources["limits"] = {**(resources.get("limits") or {}), **devices}
        complete_container(container, order)
        environment = [*(container.get("env") or ())]
        given = {it.get("name", "") for it in environment}
        if "POD_IP" not in given:
            environment.append({"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
        container["env"] = environment
        container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
        optional = {
            "controller": ",".join(self.controllers()),
            "host": "$(POD_IP)",
            "orphan-timeout": format_duration(self.orphan_timeout),
            "fence-after": format_duration(self.fence_after),
        }
        container["args"] = [
            *(container.get("args") or ()),
            f"--handler={order.handler}",
            f"--backend={order.backend}",
            f"--replica-id={replica_id}",
            *(f"--{name}={value}" for name, value in optional.items() if _variable(name) not in given),
        ]

    def _devices(self, order: LaunchOrder) -> dict[str, str]:
        """The resources that stand for devices. Raises LaunchFailed: the backend was applied with other settings."""
        devices: dict[str, str] = {}
        for pool, amount in order.wanted_devices.items():
            if amount < 1 or pool not in self.device_resources:
                raise LaunchFailed(
                    f"backend {order.backend} wants {amount:g} of {pool}: pods hold whole devices, and"
                    f" --device-resources has {', '.join(sorted(self.device_resources)) or 'none'}"
                )
            devices[self.device_resources[pool]] = str(int(amount))
        return devices


def _missing_tolerations(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those of lost nodes, unless the template has its own: the default of Kubernetes is five minutes."""
    given = {it.get("key", "") for it in spec.get("tolerations") or ()}
    keys = () if "" in given else (it for it in _LOST_NODE if it not in given)
    limit = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_S}
    return [{"key": key, **limit} for key in keys]


def _variable(flag: str) -> str:
    return f"SLOTMESH_{flag.replace('-', '_').upper()}"


def _annotations(order: LaunchOrder, replica_id: str) -> dict[str, str]:
    values = {name: getattr(order, name) for name in _OF_ORDERS}
    values |= {name: str(getattr(order.version, name)) for name in _OF_VERSIONS}
    return {REPLICA_ID: replica_id, **{_annotation(name): value for name, value in values.items()}}


def _annotation(name: str) -> str:
    return f"{PREFIX}{name.replace('_', '-')}"


def order_of(pod: PodView) -> tuple[str, LaunchOrder] | None:
    """The replica id of a pod, and its order; None if no controller has written them."""
    found = pod.annotations
    replica_id, revision = found.get(REPLICA_ID, ""), found.get(_annotation("revision"), "")
    if not replica_id or not revision.isdecimal() or not found.get(BACKEND):
        return None
    version = HeldTable(
        generation=found.get(_annotation("generation"), ""),
        revision=int(revision),
        term_id=found.get(_annotation("term_id"), ""),
    )
    values: dict[str, Any] = {name: found.get(_annotation(name), "") for name in _OF_ORDERS}
    return replica_id, LaunchOrder(version=version, **values)
