"""A disk that takes no more: changes are refused by name, what is stored stays in force, and it goes on when it can."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.shell.loops import reconcile_loop
from controller_service.store.protocol import StateRefused, StoreWriteFailed
from controller_service.store.sqlite.state_file import StateFile, read_file
from slotmesh.errors import Executed, Reason
from slotmesh.spec.model import Backend
from slotmesh.status import from_rpc_error
from tests.support.controllers import running_controller
from tests.support.fakes.members import FakeReplica, FakeRouter, owners, replica_routes
from tests.support.wait import wait_until

ROOT = Path(__file__).resolve().parents[3]
DISK_BYTES = 4 * 2**20
LIMIT_BYTES = 128 * 2**10
MESH = """
backends:
  v1: {}
endpoints:
  e: {traffic: {v1: 1.0}}
"""


def large(number: int) -> ChangeSet:
    """A change of about 40 KB."""
    return ChangeSet(put_backends=(Backend(name=f"b{number}", user_config={"k": "x" * 40_000}),))


def open_state(path: Path) -> StateFile:
    return StateFile.open(path, lambda: ("a" * 32, Desired()))


def commit_until_refused(file: StateFile) -> tuple[StoreWriteFailed, int]:
    """Why, and how many changes were made."""
    for number in range(1_000):
        try:
            file.commit(large(number), file.desired.revision)
        except StoreWriteFailed as failed:
            return failed, number
    raise AssertionError("it was never refused")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)  # noqa: S607 - as above


def fill(folder: Path) -> Path:
    """Leaves no room at all."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue
    return filler


def test_on_a_full_disk_a_change_is_refused_as_a_whole_until_there_is_room(small_disk: Path) -> None:
    file = open_state(small_disk / "state")
    filler = small_disk / "filler"
    filler.write_bytes(bytes(DISK_BYTES // 2))
    failed, made = commit_until_refused(file)
    assert made > 10
    assert "the disk is full: make room on it" in str(failed)
    assert str(file.path) in str(failed)
    assert failed.is_unwritten
    kept = file.desired
    for _ in range(3):
        with pytest.raises(StoreWriteFailed):
            file.commit(large(made), kept.revision)
    assert file.desired is kept
    filler.unlink()
    after = file.commit(large(made), kept.revision)
    assert len(after.backends) == made + 1
    assert read_file(file.path)[1] == after
    file.close()


def test_a_full_disk_is_seen_by_the_next_check_and_so_is_its_end(small_disk: Path) -> None:
    """Nothing is written meanwhile."""
    file = open_state(small_disk / "state")
    assert not file.probe()
    filler = fill(small_disk)
    assert f"{small_disk}/state: there is no room for a change beside it" in file.probe()
    filler.unlink()
    assert not file.probe()
    file.close()


def test_a_controller_that_starts_on_a_full_disk_says_so_and_changes_nothing(small_disk: Path) -> None:
    file = open_state(small_disk / "state")
    file.commit(large(1), file.desired.revision)
    kept = file.desired
    file.close()
    filler = fill(small_disk)
    with pytest.raises(StateRefused, match=r"(disk is full|No space left|disk I/O error)"):
        open_state(file.path)
    with pytest.raises(StateRefused, match=r"(disk is full|No space left)"):
        open_state(small_disk / "other")
    assert not (small_disk / "other").exists()
    filler.unlink()
    again = open_state(file.path)
    assert again.desired.backends == kept.backends
    again.close()


def test_a_file_that_may_not_grow_takes_no_more_changes_and_loses_none(tmp_path: Path) -> None:
    code = f"import sys; from {__name__} import write_up_to_a_limit; write_up_to_a_limit(sys.argv[1])"
    path = tmp_path / "state"
    child = subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert child.returncode == 0, child.stderr
    made, _, told = child.stdout.partition(" ")
    assert "look at the disk, and at quotas and limits" in told
    file = open_state(path)
    assert len(file.desired.backends) == int(made) + 1
    file.close()


def write_up_to_a_limit(path: str) -> None:
    """In a process of its own: says how many changes were made, and why there were no more; then makes one more."""
    file = open_state(Path(path))
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, unlimited[1]))
    failed, made = commit_until_refused(file)
    assert not failed.is_unwritten
    assert len(file.desired.backends) == made
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    file.commit(large(made), file.desired.revision)
    sys.stdout.write(f"{made} {failed}")


@pytest.mark.asyncio
async def test_what_could_not_be_stored_is_tried_at_once_when_there_is_room(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not only after a delay that grows up to 30 s."""
    for delay in ("FIRST_RETRY_S", "LONGEST_RETRY_S"):
        monkeypatch.setattr(reconcile_loop, delay, 3_600.0)
    async with running_controller(state=small_disk / "state") as mesh, AsyncExitStack() as members:
        await mesh.apply(MESH)
        first = await members.enter_async_context(FakeReplica(mesh.channel, "v1", "a"))
        await first.report("READY")
        router = await members.enter_async_context(FakeRouter(mesh.channel, "r"))
        await router.wait_for(lambda table: "a" in owners(table, "e"), "the first owner")
        filler = fill(small_disk)
        leadership = mesh.controller.leadership
        await wait_until(lambda: leadership.standing.problem, timeout=60, what="it is seen that nothing can be written")
        second = await members.enter_async_context(FakeReplica(mesh.channel, "v1", "b"))
        await second.report("READY")
        await wait_until(lambda: mesh.controller.loop._errors, timeout=60, what="it cannot be stored")
        filler.unlink()
        async with asyncio.timeout(60.0):
            await router.wait_for(lambda table: set(replica_routes(table, "v1")) == {"a", "b"}, "the second replica")


@pytest.mark.asyncio
async def test_a_controller_whose_disk_fills_up_refuses_changes_and_keeps_serving(small_disk: Path) -> None:
    async with running_controller(state=small_disk / "state") as mesh, AsyncExitStack() as members:
        await mesh.apply(MESH)
        first = await members.enter_async_context(FakeReplica(mesh.channel, "v1", "a"))
        await first.report("READY")
        router = await members.enter_async_context(FakeRouter(mesh.channel, "r"))
        before = await router.wait_for(lambda table: "a" in owners(table, "e"), "the first owner")
        filler = fill(small_disk)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await mesh.apply(MESH.replace("v1: {}", "v1: {num_replicas: 2}"))
        failure = from_rpc_error(refused.value)
        assert (failure.reason, failure.executed) == (Reason.STORE_UNAVAILABLE, Executed.NO)
        assert failure.retry_delay_s
        assert f"{small_disk}/state: the disk is full: make room on it" in failure.message

        # What is not stored is not announced, and what is stored stays in force.
        second = await members.enter_async_context(FakeReplica(mesh.channel, "v1", "b"))
        await second.report("READY")
        await wait_until(lambda: mesh.controller.state.observed.replica("b"), what="it is known")
        late = await members.enter_async_context(FakeRouter(mesh.channel, "late", "127.0.0.1:7072"))
        table = await late.wait_for(lambda table: table.endpoints, "what is in force")
        assert table.roster_revision == before.roster_revision
        assert set(replica_routes(table, "v1")) == {"a"}

        filler.unlink()
        await mesh.apply(MESH.replace("v1: {}", "v1: {num_replicas: 2}"))
        async with asyncio.timeout(60.0):
            await late.wait_for(lambda table: set(replica_routes(table, "v1")) == {"a", "b"}, "the second replica")
