"""Concurrent changes: none is lost, and none is refused because of another one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

import pytest

from controller_service.core.desired.handler_code import template_of
from controller_service.core.desired.planning import ChangeTerms
from controller_service.core.desired.state import ChangeSet, Desired, RolloutRecord
from controller_service.shell.changes.configurator import Configurator, PlannedChange
from controller_service.shell.events import EventFeed
from controller_service.shell.launchers.protocol import Launcher
from controller_service.shell.mesh_state import Key, MeshState, WorkQueue
from controller_service.store.protocol import MemoryStore
from slotmesh.errors import BackendInUse, Executed, Failure, Reason
from slotmesh.runtime.clock import MonotonicClock
from slotmesh.spec.model import (
    Autoscale,
    Backend,
    Endpoint,
    InvalidSpec,
    Mesh,
    SpecViolation,
    TrafficPolicy,
)
from slotmesh.status import to_status


class SlowStore(MemoryStore):
    """Takes its time, as one that writes to a disk does: others go on meanwhile."""

    async def commit(self, change: ChangeSet, *, expected_revision: int) -> Desired:
        await asyncio.sleep(0)
        return await super().commit(change, expected_revision=expected_revision)


def configurator(store: SlowStore) -> Configurator:
    state = MeshState(MonotonicClock(), WorkQueue[Key](), EventFeed("f"))
    return Configurator(store, state, launches=False)


@pytest.mark.asyncio
async def test_of_many_at_once_all_go_through_one_after_another() -> None:
    store = SlowStore(generation="0" * 32)
    changing = configurator(store)
    meshes = [Mesh(backends=(Backend(name=f"b{number}"),)) for number in range(20)]
    results = await asyncio.gather(*(changing.apply_mesh(mesh) for mesh in meshes))
    assert sorted(outcome.revision for outcome in results) == list(range(1, 21))
    assert len(store.read().backends) == 20


@pytest.mark.asyncio
async def test_a_plan_is_made_anew_when_the_ground_has_moved() -> None:
    store = SlowStore(generation="0" * 32)
    changing = configurator(store)
    await changing.apply_mesh(Mesh(backends=(Backend(name="v1"),), endpoints=(Endpoint(name="e"),)))
    naming = changing.apply_endpoint(lambda _: Endpoint(name="e", traffic=TrafficPolicy(weights={"v1": 1.0})), "e")
    # Both were planned when nobody used v1; the second to be written must not be.
    named, deleted = await asyncio.gather(naming, changing.delete(["backend/v1"]), return_exceptions=True)
    assert isinstance(named, PlannedChange)
    assert isinstance(deleted, BackendInUse)
    assert "v1" in store.read().backends


def test_violations_say_more_than_one_field_could() -> None:
    failure = Failure(reason=Reason.BAD_REQUEST, message="all of it", executed=Executed.NO, metadata={"field": "a"})
    assert len(to_status(failure).details) == 2
    (_, details) = to_status(failure, [("a", "wrong"), ("b", "wrong too")]).details
    assert b"wrong too" in details.value
    assert b"all of it" not in details.value


OLD = Backend(name="v1", handler="a:Old")
BACK = RolloutRecord(
    backend="v1", template=template_of(OLD), is_complete=True, good=OLD, why="it died", failed_at_s=5.0
)


@pytest.mark.parametrize(
    ("change", "is_confirmed"),
    [
        (lambda it: it.apply_mesh(Mesh(backends=(OLD,))), True),
        (lambda it: it.apply_file(Mesh(backends=(OLD,))), True),
        (lambda it: it.roll_back(1), True),
        (lambda it: it.apply_mesh(Mesh(backends=(OLD,)), ChangeTerms(validate_only=True)), False),
        (lambda it: it.roll_back(1, ChangeTerms(validate_only=True)), False),
        (lambda it: it.apply_mesh(Mesh(backends=(Backend(name="v2"),))), False),
        (lambda it: it.apply_endpoint(lambda _: Endpoint(name="e"), "e"), False),
    ],
)
@pytest.mark.asyncio
async def test_a_take_back_is_reported_until_a_change_wants_that_backend_as_it_is(
    change: Callable[[Configurator], Awaitable[PlannedChange]], is_confirmed: bool
) -> None:
    store = SlowStore(generation="0" * 32)
    others = tuple(replace(BACK, backend=name) for name in ("u", "w"))
    backends = tuple(replace(OLD, name=name) for name in ("u", "v1", "w"))
    await store.commit(ChangeSet(put_backends=backends, put_rollouts=(others[0], BACK, others[1])), expected_revision=0)
    await change(configurator(store))
    reported = {it.backend for it in store.read().rollouts.values() if it.why and it.failed_at_s}
    assert ("v1" not in reported) is is_confirmed
    assert store.read().backends["v1"] == OLD


@pytest.mark.parametrize("record", [replace(BACK, is_complete=False), replace(BACK, template="other")])
@pytest.mark.asyncio
async def test_a_take_back_that_is_under_way_is_not_confirmed(record: RolloutRecord) -> None:
    store = SlowStore(generation="0" * 32)
    await store.commit(ChangeSet(put_backends=(OLD,), put_rollouts=(record,)), expected_revision=0)
    await configurator(store).apply_mesh(Mesh(backends=(OLD,)))
    assert store.read().rollouts["v1"] == record


class WithoutMemory(Launcher):
    """Cannot bound memory."""

    def violations(self, backend: Backend) -> Iterable[SpecViolation]:
        if backend.memory:
            yield SpecViolation(f"backends.{backend.name}.memory", "is not for this launcher")


@pytest.mark.parametrize(
    "change",
    [
        lambda it, mesh: it.apply_mesh(mesh),
        lambda it, mesh: it.apply_file(mesh),
        lambda it, mesh: it.apply_file(mesh, ChangeTerms(validate_only=True)),
        lambda it, mesh: it.apply_file(mesh, force=True),
        lambda it, mesh: it.apply_backend(lambda _: (mesh.backends[0], []), "v1", ChangeTerms()),
    ],
    ids=["a mesh", "a file", "a file to be checked", "a file with force", "a backend"],
)
@pytest.mark.asyncio
async def test_what_the_launcher_or_the_controller_lacks_is_refused_each_way(
    change: Callable[[Configurator, Mesh], Awaitable[object]],
) -> None:
    store = SlowStore(generation="0" * 32)
    changing = configurator(store)
    changing.led_by(lambda: None, WithoutMemory())
    wanted = Backend(name="v1", handler="a:B", memory=1 << 20, autoscale=Autoscale(policy="a:b"))
    with pytest.raises(InvalidSpec) as refused:
        await change(changing, Mesh(backends=(wanted,)))
    assert [str(it).partition(":")[0] for it in refused.value.violations] == [
        "backends.v1.autoscale.policy",
        "backends.v1.memory",
    ]
    assert not store.read().backends


@pytest.mark.asyncio
async def test_what_the_launcher_lacks_for_a_backend_as_it_is_refuses_no_change_of_it() -> None:
    store = SlowStore(generation="0" * 32)
    changing = configurator(store)
    written = Backend(name="v1", handler="a:B", memory=1 << 20)
    await changing.apply_file(Mesh(backends=(written,)))
    changing.led_by(lambda: None, WithoutMemory())  # another life of the controller, elsewhere
    await changing.apply_file(Mesh(backends=(replace(written, num_replicas=3),)))
    assert store.read().backends["v1"].num_replicas == 3
