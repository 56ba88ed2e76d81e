"""Fixtures of a cluster. A control plane lasts as long as tests of this folder follow each other, all else a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.kube.rig.cluster import Cluster, started_cluster
from tests.kube.rig.control_plane import ControlPlane
from tests.support.tcp_proxy import TcpProxy, tcp_proxy
from tools.kubetest.build import is_built


@pytest.fixture(scope="package")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real control plane without nodes."""
    if not is_built():
        pytest.skip(
            "NO KUBERNETES: `make kubetest-tools` builds it, with go; nothing shows that meshes run on a cluster"
        )
    started = ControlPlane(tmp_path_factory.mktemp("kubernetes"))
    try:
        started.start()
        yield started
    finally:
        started.stop()


@pytest_asyncio.fixture
async def cluster(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Cluster]:
    """A namespace of the test's own, and one node that runs its pods as processes."""
    async with started_cluster(control_plane, tmp_path) as started:
        yield started


@pytest_asyncio.fixture
async def api_proxy(control_plane: ControlPlane) -> AsyncIterator[TcpProxy]:
    """A way to the API server that a test can stall, slow down and cut; `https://` and its address is a server."""
    async with tcp_proxy(control_plane.server.removeprefix("https://")) as proxy:
        yield proxy
