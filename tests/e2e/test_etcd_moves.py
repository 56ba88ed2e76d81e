"""`slotmesh state export` and `import` move a state from a file to etcd, and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.store.sqlite.state_file import create_file, read_file
from slotmesh.spec.model import Backend, Endpoint, TrafficPolicy
from tests.support.etcd import etcd_cluster, needs_etcd
from tests.support.shell import slotmesh as command

CONFIGURED = ChangeSet(
    put_backends=(Backend(name="v1", user_config={"a": [1, None]}),),
    put_endpoints=(Endpoint(name="e", traffic=TrafficPolicy(weights={"v1": 1.0})),),
)


@needs_etcd
@pytest.mark.asyncio
@pytest.mark.timeout(400)  # five commands, each with a bound of its own
async def test_a_state_moves_from_a_file_to_etcd_and_back(tmp_path: Path) -> None:
    first, last = tmp_path / "first.state", tmp_path / "last.state"
    before = Desired(revision=7, configured_at=7).apply(CONFIGURED)
    create_file(first, "a" * 32, before)
    async with etcd_cluster(tmp_path / "etcd") as cluster:
        place = str(cluster.place())
        for source, target in ((str(first), place), (place, str(last))):
            exported = await command("state", "export", source)
            assert json.loads(exported.out)["revision"] == 8
            moved = await command("state", "import", "-", target, stdin=exported.out)
            assert (moved.status, moved.err) == (0, f"{target}: written, with 1 backends, 1 endpoints, 1 revisions\n")
        exported = await command("state", "export", str(last))
        again = await command("state", "import", "-", place, stdin=exported.out)
        assert (again.status, "there is a state already" in again.err) == (1, True)
    after = read_file(last)[1]
    assert (after.resources, after.history, after.revision) == (before.resources, before.history, 8)
