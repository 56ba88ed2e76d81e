"""What a handler sees of `env`, `python`, `cwd`, `cpus` and `memory` of its backend: a mesh of real processes.

Two virtual environments have modules that contradict each other. The secret of a file reaches the handler, and nothing
else: neither commands nor files of the controller have it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

import slotmesh as sdk
from tests.support.lone_controller import LoneController, lone_controller
from tests.support.shell import slotmesh
from tests.support.venvs import make_venv

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120), pytest.mark.slow]

SECRET = "hunter-2-of-this-test"
HANDLER = """
import hashlib, os
import rival_of_test

class Placed:
    def __init__(self) -> None:
        self.kept = b""

    def look(self) -> dict:
        return {
            "rival": rival_of_test.VERSION,
            "secret": hashlib.sha256(os.environ["DB_PASSWORD"].encode()).hexdigest(),
            "plain": os.environ["GREETING"],
            "cwd": os.getcwd(),
            "cpus": len(os.sched_getaffinity(0)),
            "threads": os.environ["OMP_NUM_THREADS"],
        }

    def grow(self, mib: int) -> int:
        self.kept = b"x" * (mib << 20)
        return len(self.kept)
"""


def spec_of(folder: Path) -> str:
    settings = (
        f'handler: "placed_of_test:Placed", cwd: "{folder}/app", cpus: 1, memory: 400MiB, graceful_timeout: 2s,'
        f" env: {{DB_PASSWORD: {{file: {folder}/secret}}, GREETING: hello}}"
    )
    backends = "\n".join(f"  {name}: {{{settings}, python: {folder}/{name}}}" for name in ("one", "two"))
    return f"backends:\n{backends}\nendpoints:\n  one: {{traffic: {{one: 1.0}}}}\n  two: {{traffic: {{two: 1.0}}}}\n"


def files_below(folder: Path) -> dict[Path, bytes]:
    """Those of the controller and of its replicas, with their contents."""
    others = {"site-packages", "secret"}
    found = (it for it in folder.rglob("*") if it.is_file() and others.isdisjoint(it.parts))
    return {it: it.read_bytes() for it in found}


async def printed_by_commands(lone: LoneController) -> str:
    env = {"SLOTMESH_ADDRESS": lone.address}
    commands = (
        ("get",),
        ("get", "backend/one", "-o", "json"),
        ("describe", "backend/one"),
        ("status",),
        ("events",),
        ("history",),
        ("logs", "one"),
    )
    printed = await asyncio.gather(*(slotmesh(*it, env=env) for it in commands))
    assert all(it.status == 0 for it in printed), [it.err for it in printed if it.status]
    return "".join(it.out + it.err for it in printed)


async def test_replicas_have_what_their_backends_name(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_venv(tmp_path / name, has_slotmesh=True, modules={"rival_of_test": f"VERSION = {name!r}\n"})
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "placed_of_test.py").write_text(HANDLER)
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    state = tmp_path / "state" / "mesh.state"
    state.parent.mkdir()
    async with lone_controller(tmp_path, spec_of(tmp_path), f"--state={state}") as lone:
        first = await lone.ready(2)
        async with sdk.connect(lone.router_address) as client:
            for name in ("one", "two"):
                found = await client.endpoint(name).look()
                assert found == {
                    "rival": name,
                    "secret": hashlib.sha256(SECRET.encode()).hexdigest(),
                    "plain": "hello",
                    "cwd": f"{tmp_path}/app",
                    "cpus": 1,
                    "threads": "1",
                }
            growing = asyncio.ensure_future(client.endpoint("one").grow(1000))
            (grown,) = [it for it in first if it.startswith("one")]
            again = await lone.ready(2, without=grown)
            await asyncio.gather(growing, return_exceptions=True)  # it is killed before, or right after, it answers
        assert len(again.keys() - first.keys()) == 1
        printed = await printed_by_commands(lone)
        assert "MiB of its memory: 400MiB" in printed
        assert "DB_PASSWORD" in printed
        assert f"{tmp_path}/secret" in printed
        assert "hello" in printed
        assert SECRET not in printed + lone.log_text()
        kept = files_below(tmp_path)
        assert any(it.is_relative_to(state.parent) for it in kept)
        assert not [it for it, content in kept.items() if SECRET.encode() in content]


async def test_a_start_that_lacks_a_file_names_it_and_not_what_others_hold(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    env = f"{{A: {{file: {tmp_path}/secret}}, B: {{file: {tmp_path}/none}}}}"
    spec = f'backends:\n  one: {{handler: "tests.e2e.handlers:Talker", env: {env}}}\n'
    async with lone_controller(tmp_path, spec) as lone:
        env_of_command = {"SLOTMESH_ADDRESS": lone.address}
        async with asyncio.timeout(30):
            while "env.B" not in (status := await slotmesh("status", env=env_of_command)).out:
                pass
        events = await slotmesh("events", "-o", "json", env=env_of_command)
        why = f"backend one: env.B: file {tmp_path}/none cannot be read: No such file or directory"
        assert why in events.out
        assert SECRET not in status.out + events.out + lone.log_text()
    assert os.listdir(tmp_path / "launched") == ["lock"]  # noqa: PTH208 - names alone
