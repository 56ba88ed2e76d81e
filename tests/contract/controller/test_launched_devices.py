"""Devices that the process launcher hands out: what a process sees, and who holds them after a restart."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from controller_service.shell.launchers.process import ProcessLauncher, replica_command
from controller_service.shell.launchers.protocol import Exit, LaunchDeferred, LaunchOrder
from slotmesh.spec.devices import variables_of
from tests.contract.controller.test_launchers import process_launcher
from tests.support.wait import wait_until

POOLS = {"cuda": ("0", "1"), "a-b": ("x", "y")}
PROGRAM = """
import os, pathlib, signal, sys
names = ("CUDA_VISIBLE_DEVICES", "OTHER", "SLOTMESH_DEVICES")
text = ";".join(f"{name}={os.environ.get(name)}" for name in names)
path = pathlib.Path(os.environ["SEEN_IN"], sys.argv[1].partition("=")[2])
path.with_suffix(".new").write_text(text)
path.with_suffix(".new").rename(path)
signal.pause()
"""


def launcher_in(path: Path, exits: list[Exit] | None = None) -> ProcessLauncher:
    names = iter(range(100))

    def command(replica_id: str, _order: LaunchOrder) -> list[str]:
        return [sys.executable, "-S", "-c", PROGRAM, f"--replica-id={replica_id}"]

    return process_launcher(
        path / "launched",
        [] if exits is None else exits,
        command,
        mint_id=lambda backend: f"{backend}-{os.getpid()}-{next(names)}",
        pools=POOLS,
        device_variables={"a-b": "OTHER"},
    )


def order_of(backend: str, **devices: float) -> LaunchOrder:
    wanted = {name.replace("_", "-"): amount for name, amount in devices.items()}
    return LaunchOrder(backend=backend, handler="a:B", template=str(wanted), wanted_devices=wanted)


def held(launcher: ProcessLauncher) -> dict[str, str]:
    return {it.order.backend: it.order.devices for it in launcher.observe()}


@pytest.mark.asyncio
async def test_a_process_sees_what_it_holds_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEN_IN", str(tmp_path))
    monkeypatch.setenv("SLOTMESH_DEVICES", "cuda=0-1,a-b=x,y")
    launcher = launcher_in(tmp_path)
    orders = [order_of("both", cuda=1, a_b=0.5), order_of("share", a_b=0.25), order_of("all", a_b=1), order_of("none")]
    for order in orders:
        await launcher.start(order, 1)
    assert held(launcher) == {"both": "a-b=x@0.5,cuda=0", "share": "a-b=x@0.25", "all": "a-b=y", "none": ""}
    files = {it.order.backend: tmp_path / it.replica_id for it in launcher.observe()}
    await wait_until(lambda: all(it.exists() for it in files.values()), what="what they see")
    assert {name: it.read_text("utf-8") for name, it in files.items()} == {
        "both": "CUDA_VISIBLE_DEVICES=0;OTHER=x;SLOTMESH_DEVICES=None",
        "share": "CUDA_VISIBLE_DEVICES=;OTHER=x;SLOTMESH_DEVICES=None",
        "all": "CUDA_VISIBLE_DEVICES=;OTHER=y;SLOTMESH_DEVICES=None",
        "none": "CUDA_VISIBLE_DEVICES=;OTHER=;SLOTMESH_DEVICES=None",
    }
    await launcher.close()


@pytest.mark.asyncio
async def test_a_device_is_free_once_its_holder_was_reaped_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEEN_IN", str(tmp_path))
    exits: list[Exit] = []
    launcher, order = launcher_in(tmp_path, exits), order_of("b", cuda=1)
    with pytest.raises(LaunchDeferred, match=r"no device is free: 1 of cuda is wanted, and 2 of 2 are held \(by b-"):
        await launcher.start(order, 3)
    first, second = launcher.observe()
    assert [it.order.devices for it in (first, second)] == ["cuda=0", "cuda=1"]
    launcher.stop(first.replica_id, grace_s=60.0)
    with pytest.raises(LaunchDeferred):
        await launcher.start(order, 2)
    await wait_until(lambda: exits, what="its end")
    await launcher.start(order, 2)
    assert [it.order.devices for it in launcher.observe()] == ["cuda=1", "cuda=0"]
    await launcher.close()


@pytest.mark.asyncio
async def test_what_earlier_lives_have_started_holds_its_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEEN_IN", str(tmp_path))
    launcher = launcher_in(tmp_path)
    await launcher.start(order_of("found", cuda=1), 1)
    (instance,) = launcher.observe()
    await launcher.leave()
    shutil.copytree(tmp_path / "launched", tmp_path / "copied" / "launched")
    again = launcher_in(tmp_path)
    assert held(again) == {"found": "cuda=0"}
    with pytest.raises(LaunchDeferred, match=instance.replica_id):
        await again.start(order_of("two", cuda=2), 1)
    copy = launcher_in(tmp_path / "copied")
    assert not copy.observe()
    with pytest.raises(LaunchDeferred, match=instance.replica_id):
        await copy.start(order_of("two", cuda=2), 1)
    copy.disown()
    await copy.close()
    os.kill(instance.pid, signal.SIGKILL)
    await again.close()


@pytest.mark.asyncio
async def test_a_record_of_an_earlier_version_holds_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEN_IN", str(tmp_path))
    launcher = launcher_in(tmp_path)
    await launcher.start(order_of("old"), 1)
    (instance,) = launcher.observe()
    await launcher.leave()
    path = tmp_path / "launched" / f"{instance.replica_id}.json"
    text = path.read_text("utf-8")
    assert '"devices": "", ' in text
    path.write_text(text.replace('"devices": "", ', ""), "utf-8")
    again = launcher_in(tmp_path)
    await again.start(order_of("two", cuda=2), 1)
    assert held(again) == {"old": "", "two": "cuda=0,cuda=1"}
    os.kill(instance.pid, signal.SIGKILL)
    await again.close()


def test_a_replica_gets_its_devices_as_a_flag() -> None:
    from datetime import timedelta

    command = replica_command(lambda: ["h:1"], log_format="json", log_level="info", orphan_timeout=timedelta(minutes=1))
    order = LaunchOrder(backend="b", handler="a:B", devices="cuda=0,cuda=1@0.5")
    assert "--devices=cuda=0,cuda=1@0.5" in command("b-1", order)
    assert not [it for it in command("b-1", LaunchOrder(backend="b", handler="a:B")) if it.startswith("--devices")]


def test_variables_are_named_after_pools() -> None:
    assert variables_of(("cuda", "fpga-2.x"), {}) == {
        "cuda": "CUDA_VISIBLE_DEVICES",
        "fpga-2.x": "FPGA_2_X_VISIBLE_DEVICES",
    }
