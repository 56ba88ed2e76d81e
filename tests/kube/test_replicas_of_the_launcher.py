"""Pods that a controller starts, scaled and updated under load: no call fails, and order is kept."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from slotmesh.spec.model import PodSettings
from tests.history.summary import summary
from tests.kube.mesh import KubeMesh, assert_survived, history_of, loaded
from tests.kube.rig.cluster import started_cluster
from tests.kube.rig.control_plane import ControlPlane

pytestmark = [pytest.mark.asyncio, pytest.mark.kube, pytest.mark.timeout(300)]

IMAGE = "slotmesh:next"


@pytest.mark.long
async def test_no_call_fails_while_replicas_go_from_none_to_three_get_another_image_and_go_to_one(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """Calls are made before any replica is ready, and wait for the first one."""
    async with started_cluster(control_plane, tmp_path / "cluster", nodes=2) as cluster:
        mesh = KubeMesh(cluster, tmp_path, "kubernetes")
        await mesh.start(replicas=0)
        began = time.monotonic()
        await mesh.scale(3)
        async with loaded(mesh) as run:
            await mesh.settled(replicas=3)
            run.note("0 to 3 replicas", began, "they are ready", holds_calls_s=time.monotonic() - began)
            await run.workload.wait_for_progress()

            began, old = time.monotonic(), await mesh.replica_ids()
            await mesh.change(lambda backend: replace(backend, pod=PodSettings(image=IMAGE)))
            await mesh.settled(replicas=3, without=old)
            run.note("another image", began, "other replicas")
            await run.workload.wait_for_progress()
            pods = [pod for pod in await cluster.pods("app=replica") if "deletionTimestamp" not in pod["metadata"]]
            assert {it["spec"]["containers"][0]["image"] for it in pods} == {IMAGE}

            began, before = time.monotonic(), await mesh.replica_ids()
            await mesh.scale(1)
            await mesh.settled(replicas=1)
            run.note("3 to 1 replicas", began, "one is left")
            assert await mesh.replica_ids() < before
            await run.workload.wait_for_progress()
    history = history_of(mesh)
    sys.stdout.write(f"{summary(history)}\n")
    assert_survived(history)
