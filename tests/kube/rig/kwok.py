"""Nodes without kubelets: KWOK says of their pods what kubelets would, for hundreds of pods that run nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from tests.kube.rig.api import Api, ApiRefused, Document
from tests.kube.rig.control_plane import ADMIN_TOKEN, ControlPlane, ends_with_us
from tests.support.wait import within
from tools.kubetest.build import folder

ANNOTATION: Final = "kwok.x-k8s.io/node"
LABEL: Final = "slotmesh.test/kwok"
"""On the nodes, for the `nodeSelector` of pods that are to run nothing."""
STAGES: Final = Path(__file__).with_name("kwok.yaml")
RENEWED_S: Final = 2
"""How often each node's lease is renewed, as by `Node`: many times within the grace of a node."""
_CAPACITY: Final = {"cpu": "1000", "memory": "4Ti", "pods": "1000"}


@asynccontextmanager
async def kwok_nodes(control_plane: ControlPlane, count: int = 1) -> AsyncIterator[list[str]]:
    """Yields the names of so many nodes, which hold a thousand pods each."""
    names = [f"kwok-{number}" for number in range(count)]
    with (control_plane.directory / "kwok.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *ends_with_us(),
            str(folder() / "kwok"),
            f"--kubeconfig={control_plane.kubeconfig}",
            f"--config={STAGES}",
            f"--node-lease-duration-seconds={4 * RENEWED_S}",  # KWOK renews after a quarter of it
            f"--manage-nodes-with-annotation-selector={ANNOTATION}=fake",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=control_plane.directory,
        )
    try:
        async with Api(control_plane.server, ADMIN_TOKEN, str(control_plane.ca)) as api:
            for name in names:
                await api.create("/api/v1/nodes", _node(name))
            try:
                for name in names:
                    await within(_wait_ready(api, name), f"{name} is ready", timeout=60)
                yield names
            finally:
                for name in names:
                    with suppress(ApiRefused):
                        await api.delete(f"/api/v1/nodes/{name}")
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _wait_ready(api: Api, name: str) -> None:
    async for _, item in api.observe("/api/v1/nodes", fieldSelector=f"metadata.name={name}"):
        for node in item.get("items", [item]):
            conditions = node.get("status", {}).get("conditions", ())
            is_ready = any(it["type"] == "Ready" and it["status"] == "True" for it in conditions)
            if is_ready and not any(
                it["key"].startswith("node.kubernetes.io/") for it in node["spec"].get("taints", ())
            ):
                return


def _node(name: str) -> Document:
    labels = {LABEL: "yes", "kubernetes.io/hostname": name}
    return {
        "metadata": {"name": name, "annotations": {ANNOTATION: "fake"}, "labels": labels},
        "status": {"capacity": _CAPACITY, "allocatable": _CAPACITY},
    }
