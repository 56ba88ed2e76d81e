"""What tests of direct lanes ask of a mesh in this process."""

from __future__ import annotations

from replica_service.core.scheduler import ReplicaScheduler
from slotmesh.testing import RunningMesh
from tests.support.wait import wait_until


def schedulers(mesh: RunningMesh) -> dict[str, ReplicaScheduler]:
    found = {}
    for replica_id in mesh.replica_ids("e"):
        engine = mesh._launcher.app(replica_id).replica.engine
        assert engine is not None
        found[replica_id] = engine.scheduler
    return found


def reserved(mesh: RunningMesh) -> dict[str, int]:
    """Slots out, by replica; those without any are left out."""
    return {name: each.slots.reserved for name, each in schedulers(mesh).items() if each.slots.reserved}


async def all_free(mesh: RunningMesh) -> None:
    await wait_until(lambda: all(each.is_idle for each in schedulers(mesh).values()), what="all permits free")
    assert not reserved(mesh)


def started(mesh: RunningMesh) -> list[bytes]:
    """Calls of `wait` that have started, at any replica."""
    return [payload for handler in mesh.instances("e") for payload in handler.started]


def open_gates(mesh: RunningMesh) -> None:
    for handler in mesh.instances("e"):
        handler.gate.set()
