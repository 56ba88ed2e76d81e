"""Which code is stored when a change is made: all that the request has found, and what was applied earlier."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from controller_service.core.desired.handler_code import template_of
from controller_service.core.desired.state import ChangeSet, RolloutRecord
from controller_service.shell.changes.configurator import Configurator
from controller_service.shell.code.project_files import CannotSnapshot
from controller_service.shell.code.snapshot_keeper import CodeSnapshots
from controller_service.shell.code.writing import CodeChanged
from controller_service.shell.events import EventFeed
from controller_service.shell.mesh_state import Key, MeshState, WorkQueue
from controller_service.store.protocol import MemoryStore
from slotmesh.errors import SlotmeshError
from slotmesh.runtime.clock import MonotonicClock
from slotmesh.spec.model import Backend, InvalidSpec, Mesh
from tests.unit.controller.code.project import HANDLER, Project


def test_the_code_of_many_folders_is_stored_by_one_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = [f"many_{number}:App" for number in range(40)]
    for number in range(len(handlers)):
        folder = tmp_path / f"project-{number}"
        folder.mkdir()
        (folder / f"many_{number}.py").write_text(f"N = {number}")
        monkeypatch.syspath_prepend(str(folder))
    snapshots = CodeSnapshots(lambda: tmp_path / "code", max_bytes=10_000, max_files=50)
    codes = {it.code for it in snapshots.versions_of(handlers).values()}
    snapshots.versions_of(handlers[:1])  # another request, before this one goes on
    snapshots.keep(codes)
    assert {it.name for it in (tmp_path / "code").iterdir()} == codes
    assert len(codes) == len(handlers)


def test_what_was_found_long_ago_is_not_remembered(project: Project) -> None:
    for number in range(60):
        project.write("helpers.py", f"PRICE = {number}")
        project.code()
    assert len(project.snapshots._scanned) == 16


def changing(project: Project) -> Configurator:
    state = MeshState(MonotonicClock(), WorkQueue[Key](), EventFeed("f"))
    store = MemoryStore(generation="0" * 32)
    return Configurator(store, state, launches=True, snapshots=project.snapshots)


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["roll back", "undo", "apply an earlier version"])
async def test_going_back_to_lost_code_of_files_that_were_edited_is_refused_with_the_way_out(
    way: str, project: Project
) -> None:
    configurator = changing(project)
    first, second = (Backend(name="shop", handler=HANDLER, version=it, num_replicas=1) for it in ("v1", "v2"))
    await configurator.apply_mesh(Mesh(backends=(first,)))
    project.write("helpers.py", "PRICE = 2")
    await configurator.apply_mesh(Mesh(backends=(second,)))
    store = configurator._store
    live, earlier = store.read().backends["shop"], store.read().history[0].changes[0].after
    assert isinstance(earlier, Backend)
    if way == "undo":
        rollout = RolloutRecord(
            backend="shop", template=template_of(live), good=live, previous=earlier, is_complete=True
        )
        await store.commit(ChangeSet(put_rollouts=(rollout,)), expected_revision=store.read().revision)
    project.snapshots.collect([live.code], settle_s=0.0)
    ways = {
        "roll back": lambda: configurator.roll_back(store.read().configured_at, undoes=True),
        "undo": lambda: configurator.undo_rollout("shop"),
        "apply an earlier version": lambda: configurator.apply_mesh(Mesh(backends=(first,))),
    }
    with pytest.raises(SlotmeshError, match=r"is not in .*state\.code any more: put back the folder") as refused:
        await ways[way]()
    assert "the change is not made" in str(refused.value)
    assert store.read().backends["shop"] == live
    project.write("helpers.py", "PRICE = 1")
    project.snapshots.versions_of([HANDLER])
    await configurator.roll_back(store.read().configured_at, undoes=True)
    assert store.read().backends["shop"].version == "v1", "with the same files it is taken again"


def test_code_of_this_request_that_cannot_be_stored_is_told_from_code_of_an_earlier_one(project: Project) -> None:
    code = project.code().code
    project.write("helpers.py", "PRICE = 2")
    project.code()
    with pytest.raises(CannotSnapshot, match=code):
        project.snapshots.keep([], earlier=[code])


@pytest.mark.asyncio
async def test_an_apply_warns_of_a_version_that_keeps_earlier_code(project: Project) -> None:
    configurator = changing(project)
    named = Mesh(backends=(Backend(name="shop", handler=HANDLER, version="v1", num_replicas=1),))
    assert (await configurator.apply_mesh(named)).plan.warnings == ()
    project.write("helpers.py", "PRICE = 2")
    (warning,) = (await configurator.apply_mesh(named)).plan.warnings
    assert "backend/shop runs the code that was stored for version 'v1'" in warning
    (warning,) = (await configurator.apply_file(named)).plan.warnings
    assert "Set another version, or none" in warning


@pytest.mark.asyncio
@pytest.mark.parametrize("problem", ["unreadable", "changes"])
async def test_a_controller_starts_where_the_code_cannot_be_read_and_what_runs_keeps_its_own(
    problem: str, project: Project, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    configurator = changing(project)
    (shop,) = mesh = (Backend(name="shop", handler=HANDLER, num_replicas=1),)
    await configurator.apply_file(Mesh(backends=mesh), keep=True)
    live = configurator._store.read().backends["shop"]
    if problem == "changes":

        def keep(*_: object, **__: object) -> None:
            raise CodeChanged("helpers.py")

        project.write("helpers.py", "PRICE = 2")
        monkeypatch.setattr(project.snapshots, "keep", keep)
    else:
        monkeypatch.setattr(project.snapshots._scanner, "_max_bytes", 1)
    await configurator.apply_file(Mesh(backends=(replace(shop, num_replicas=2),)), keep=True)
    after = configurator._store.read().backends["shop"]
    assert (after.code, after.version, after.num_replicas) == (live.code, live.version, 2)
    assert "the code of handlers cannot be read: what runs keeps its own" in caplog.text
    with pytest.raises(InvalidSpec):
        await configurator.apply_file(Mesh(backends=(shop,)))
    with pytest.raises(InvalidSpec):
        await configurator.apply_file(Mesh(backends=(replace(shop, name="new"),)), keep=True)
