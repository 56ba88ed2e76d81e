"""What could not be started leaves nothing: no record, no process, no descriptor, and no place in the bookkeeping."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from controller_service.shell.launchers.process import CommandOf
from controller_service.shell.launchers.protocol import LaunchFailed, LaunchOrder
from tests.contract.controller.test_launchers import OBEDIENT, order_of, process_launcher

pytestmark = pytest.mark.asyncio


def missing_program(_replica_id: str, _order: LaunchOrder) -> list[str]:
    return ["/no/such/program"]


def no_program(_replica_id: str, _order: LaunchOrder) -> list[str]:
    return [os.devnull]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only


@pytest.mark.parametrize("broken", [missing_program, no_program])
async def test_a_program_that_cannot_be_started_leaves_no_record(tmp_path: Path, broken: CommandOf) -> None:
    """Of several orders: those before and behind it are started."""

    def command(replica_id: str, order: LaunchOrder) -> list[str]:
        if order.backend == "b":
            return [*broken(replica_id, order)]
        return [sys.executable, "-S", "-c", OBEDIENT]

    launcher = process_launcher(tmp_path / "l", [], command)
    await launcher.start(order_of("a"), 1)
    before = descriptors()
    for _ in range(3):
        with pytest.raises(LaunchFailed, match="cannot start"):
            await launcher.start(order_of("b"), 1)
    assert descriptors() == before
    await launcher.start(order_of("c"), 1)
    assert sorted(it.replica_id for it in launcher.observe()) == ["a", "c"]
    assert sorted(it.replica_id for it in launcher._directory.records()) == ["a", "c"]
    await launcher.leave()
    again = process_launcher(tmp_path / "l", [], command)
    assert sorted(it.replica_id for it in again.observe()) == ["a", "c"]
    assert not again.strangers()
    await again.close()
    assert not again._directory.records()


@pytest.mark.parametrize("of", ["a.new", "a.log"])
async def test_a_record_or_a_file_that_cannot_be_written_leaves_no_record(tmp_path: Path, of: str) -> None:
    def command(_replica_id: str, _order: LaunchOrder) -> list[str]:
        return [sys.executable, "-S", "-c", OBEDIENT]

    launcher = process_launcher(tmp_path / "l", [], command)
    (tmp_path / "l" / of).mkdir()
    with pytest.raises(LaunchFailed, match=str(tmp_path / "l")):
        await launcher.start(order_of("a"), 1)
    assert not launcher.observe()
    (tmp_path / "l" / of).rmdir()
    await launcher.start(order_of("a"), 1)
    assert [it.replica_id for it in launcher.observe()] == ["a"]
    await launcher.close()
