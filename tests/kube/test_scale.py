"""Hundreds of pods: a real controller scales a backend on nodes whose pods run nothing.

No replica attaches, so all that run are starting for the controller, and own no partition. What is shown is who is
deleted first of those that are unschedulable and those that start, and the number of requests. That a replica with
fewer partitions goes first is shown by tests/unit/controller/test_lost_pods.py.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.kube.manifests import service
from tests.kube.mesh import BACKEND, HANDLER, LAUNCHER_RULES, KubeMesh
from tests.kube.rig.api import Document
from tests.kube.rig.cluster import started_cluster
from tests.kube.rig.control_plane import ControlPlane
from tests.kube.rig.kwok import LABEL, kwok_nodes

pytestmark = [pytest.mark.asyncio, pytest.mark.kube, pytest.mark.timeout(300)]

MANY: Final = 200
FITTING: Final = 190
"""As many of these pods have room on the node of KWOK, which has 1,000 processors."""
FEW: Final = 10
SCALED_S: Final = 100.0
"""Less than the 120 s after which a replica that runs and does not attach is killed."""
SELECTOR: Final = "slotmesh.dev/mesh=test"


class IdleMesh(KubeMesh):
    """A controller alone, whose replicas are pods of KWOK."""

    async def start(self, *, replicas: int = 0, routers: int = 0) -> None:
        cluster = self.cluster
        await cluster.account("controller", LAUNCHER_RULES)
        await cluster.api.create(cluster.path("configmaps"), self._files(replicas))
        await cluster.api.create(cluster.path("services"), service("controller", 7070, publishNotReadyAddresses=True))
        controller = self._controller()
        self._place(controller)
        await cluster.api.create(cluster.path("apps/v1/deployments"), controller)
        await self.settled(replicas=replicas, routers=routers)

    def _files(self, replicas: int) -> Document:
        backend = {"handler": HANDLER, "num_replicas": replicas, "graceful_timeout": "1s", "pod": {"cpu": "5250m"}}
        template = {
            "kind": "Pod",
            "spec": {"nodeSelector": {LABEL: "yes"}, "containers": [{"name": "replica", "image": "nothing"}]},
        }
        return {
            "metadata": {"name": "mesh"},
            "data": {
                "mesh.yaml": yaml.safe_dump({"backends": {BACKEND: backend}}),
                "template.yaml": yaml.safe_dump(template),
            },
        }

    def cpu_s(self) -> float:
        """Processor time that the controller has used."""
        (pod,) = self.pods("controller")
        ticks = 0
        for pid in pod.pids():
            fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def names(pods: list[Document]) -> set[str]:
    return {it["metadata"]["name"] for it in pods}


def runs(pod: Document) -> bool:
    """Not whether it is ready: Kubernetes takes that back if a busy machine delays the heartbeats of the node."""
    return bool(pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"])


@pytest.mark.long
async def test_the_right_ones_of_hundreds_of_pods_are_deleted_and_pods_are_listed_once(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """0, 200, 190, 10, 0 replicas; ten of the 200 have no room."""
    async with kwok_nodes(control_plane), started_cluster(control_plane, tmp_path / "cluster") as cluster:
        mesh = IdleMesh(cluster, tmp_path, "kubernetes", home=cluster.nodes[0].name)
        await mesh.start()
        figures: dict[str, Any] = {}

        def deleted() -> set[str]:
            requests = control_plane.requests_of(cluster.namespace, "controller")
            return {name for verb, name in requests if verb == "delete"}

        async def scaled(count: int, running: int) -> list[Document]:
            began, cpu = time.monotonic(), mesh.cpu_s()
            await mesh.scale(count)
            found = await cluster.wait_for_pods(
                lambda pods: len(pods) == count and sum(map(runs, pods)) == running,
                f"{count} pods, {running} that run",
                selector=SELECTOR,
                timeout=SCALED_S,
            )
            figures[f"to {count}"] = f"{time.monotonic() - began:.1f} s, {mesh.cpu_s() - cpu:.2f} s of the processor"
            return found

        pods = await scaled(MANY, FITTING)
        unschedulable = names([it for it in pods if not runs(it)])
        assert deleted() == set()
        assert names(await scaled(FITTING, FITTING)) == names(pods) - unschedulable
        assert deleted() == unschedulable
        left = await scaled(FEW, FEW)
        assert names(left) < names(pods) - unschedulable
        assert deleted() == names(pods) - names(left)
        await scaled(0, 0)
        assert deleted() == names(pods)
        requests = control_plane.requests_of(cluster.namespace, "controller")
        figures["lists"] = sum(verb == "list" for verb, _ in requests)
        sys.stdout.write(f"{figures}, {len(deleted())} deletions\n")
        assert figures["lists"] == 1
