"""deploy/kubernetes on a real API server: it accepts all of it, and each part is replaced without a lost call."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

import slotmesh
from tests.kube.journal import ENDPOINT, KEYS
from tests.kube.manifests import pod
from tests.kube.rig.cluster import Cluster, started_cluster
from tests.kube.rig.control_plane import ControlPlane
from tests.support.mesh import ROOT
from tests.support.wait import wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.kube, pytest.mark.timeout(300)]

CALLERS: Final = "callers"
MOVED_S: Final = 60.0
"""Within this time keys go on elsewhere, on a busy machine."""
OWN_PROCESSES: Final = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "python", "-m")
HANDLER: Final = "tests.kube.journal:Journal"
RESTRICTED: Final = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def own_overlay(directory: Path, namespace: str, *components: str, command: Sequence[str] = ("python", "-m")) -> Path:
    """As an operator would write it: a copy of deploy/kubernetes, and an overlay with another handler.

    `command`: what replicas run their service with.
    """
    copy = directory / "kubernetes"
    shutil.copytree(ROOT / "deploy/kubernetes", copy)
    mesh = {
        "backends": {"digits-v1": {"handler": HANDLER}},
        "endpoints": {"journal": {"traffic": {"digits-v1": 1.0}}},
    }
    (copy / "base/mesh.yaml").write_text(yaml.safe_dump(mesh))
    container = "/spec/template/spec/containers/0"
    changes = [
        {"op": "replace", "path": f"{container}/args/1", "value": f"--handler={HANDLER}"},
        {"op": "add", "path": f"{container}/command", "value": [*command]},
    ]
    kustomization = {
        "namespace": namespace,
        "resources": ["../../base"],
        "components": [f"../../components/{it}" for it in components],
        "patches": [{"target": {"kind": "Deployment", "name": "digits-v1"}, "patch": json.dumps(changes)}],
    }
    overlay = copy / "overlays/own"
    overlay.mkdir()
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return overlay


async def started_callers(cluster: Cluster) -> Path:
    """Starts a pod that calls the mesh; returns its output."""
    program = {
        "name": "main",
        "image": "test",
        "args": ["tests.kube.journal", "dns:///routers:7071"],
        "securityContext": RESTRICTED,
    }
    await cluster.api.create(cluster.path("pods"), pod(CALLERS, program, terminationGracePeriodSeconds=30))
    await cluster.wait_for_ready(1, selector=f"app={CALLERS}")
    log = cluster.node_of(CALLERS).pod(CALLERS).place.log
    await wait_until(lambda: b"calling" in log.read_bytes(), what="each way of calling works")
    return log


@pytest.mark.parametrize("overlay", ["base", "overlays/dev"])
async def test_the_api_server_accepts_it(control_plane: ControlPlane, overlay: str) -> None:
    control_plane.kubectl("apply", "-f", str(ROOT / "deploy/kubernetes/base/namespace.yaml"))
    directory = str(ROOT / "deploy/kubernetes" / overlay)
    control_plane.kubectl("apply", "-k", directory, "--server-side", "--dry-run=server", "--validate=strict")


@pytest.mark.parametrize("components", [("tls", "ha"), ("kubernetes-launcher",)], ids=" ".join)
async def test_the_api_server_accepts_components(
    control_plane: ControlPlane, tmp_path: Path, components: tuple[str, ...]
) -> None:
    control_plane.kubectl("apply", "-f", str(ROOT / "deploy/kubernetes/base/namespace.yaml"))
    overlay = own_overlay(tmp_path, "slotmesh", *components)
    control_plane.kubectl("apply", "-k", str(overlay), "--server-side", "--dry-run=server", "--validate=strict")


@pytest.mark.long
async def test_each_part_is_replaced_without_a_lost_call(control_plane: ControlPlane, tmp_path: Path) -> None:
    async with started_cluster(control_plane, tmp_path, nodes=2) as cluster:
        overlay = own_overlay(tmp_path, cluster.namespace)
        await cluster.kubectl("apply", "-k", str(overlay), "--validate=strict")
        await cluster.wait_for_ready(7, selector="app.kubernetes.io/name=slotmesh")
        log = await started_callers(cluster)
        for part in ("deployment/router", "deployment/ingress", "deployment/digits-v1", "statefulset/controller"):
            await cluster.kubectl("rollout", "restart", part)
            await cluster.kubectl("rollout", "status", part, "--timeout=120s", timeout=130)
        await cluster.kubectl("delete", "pod", CALLERS, "--wait")
        found = json.loads(log.read_bytes().splitlines()[-1])
    assert all(it["calls"] > 100 for it in found.values()), found
    assert not any(it["failed"] for it in found.values()), json.dumps(found, indent=1)


async def test_keys_of_a_replica_that_was_killed_move_when_its_pod_has_ended(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """It hangs, so that it reports nothing itself, and the pod in its place has another name.

    Its process is in a namespace of its own, as in a real pod, so that the controller cannot see it end.
    """
    async with started_cluster(control_plane, tmp_path) as cluster:
        overlay = own_overlay(tmp_path, cluster.namespace, command=OWN_PROCESSES)
        await cluster.kubectl("apply", "-k", str(overlay), "--validate=strict")
        await cluster.wait_for_ready(7, selector="app.kubernetes.io/name=slotmesh")
        (router, *_) = await cluster.pods("app.kubernetes.io/component=router")
        async with slotmesh.connect(f"{router['status']['podIP']}:7071") as mesh:
            journal: Any = mesh.endpoint(ENDPOINT)

            async def write(number: int) -> list[int]:
                """One call of each key."""
                keys = [f"key-{key}" for key in range(KEYS)]
                return list(await asyncio.gather(*(journal.ordered(key).write(key, number) for key in keys)))

            await write(1)
            name = (await cluster.pods("slotmesh.dev/backend=digits-v1"))[0]["metadata"]["name"]
            cluster.node_of(name).freeze_pod(name)
            await cluster.kubectl("delete", "pod", name, "--grace-period=1")
            async with asyncio.timeout(MOVED_S):
                assert set(await write(2)) == {2}


async def test_the_controller_starts_replicas_as_pods(control_plane: ControlPlane, tmp_path: Path) -> None:
    async with started_cluster(control_plane, tmp_path) as cluster:
        overlay = own_overlay(tmp_path, cluster.namespace, "kubernetes-launcher")
        await cluster.kubectl("apply", "-k", str(overlay), "--validate=strict")
        replicas = "slotmesh.dev/backend=digits-v1"
        await cluster.wait_for_ready(6, selector="app.kubernetes.io/name=slotmesh")
        (replica,) = await cluster.pods(replicas)
        assert not replica["metadata"].get("ownerReferences"), "no Deployment has made it"
        log = await started_callers(cluster)
        name = replica["metadata"]["name"]
        await cluster.kubectl("delete", "pod", name, "--wait=false")
        await cluster.wait_for_pods(
            lambda pods: [it["metadata"]["name"] for it in pods] not in ([], [name]) and len(pods) == 1,
            "another one in its place",
            selector=replicas,
        )
        await cluster.kubectl("delete", "pod", CALLERS, "--wait")
        found = json.loads(log.read_bytes().splitlines()[-1])
    assert not any(it["failed"] for it in found.values()), json.dumps(found, indent=1)
