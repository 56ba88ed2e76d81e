"""`python -m tests.kube.rig [NODES]`: a cluster to try things by hand, until it is interrupted."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.kube.rig.cluster import started_cluster
from tests.kube.rig.control_plane import ControlPlane
from tools.kubetest.build import folder, is_built


async def main(nodes: int) -> None:
    with tempfile.TemporaryDirectory(prefix="slotmesh-kubetest-") as directory:
        control_plane = ControlPlane(Path(directory, "control-plane"))
        try:
            control_plane.start()
            async with started_cluster(control_plane, Path(directory), nodes=nodes) as cluster:
                print(f"export KUBECONFIG={control_plane.kubeconfig} PATH={folder()}:$PATH")
                print(f"namespace {cluster.namespace}; nodes {[node.name for node in cluster.nodes]}", flush=True)
                await asyncio.Event().wait()
        finally:
            control_plane.stop()


if __name__ == "__main__":
    if not is_built():
        raise SystemExit("not built: make kubetest-tools")
    with suppress(KeyboardInterrupt):
        asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
