"""`python -m replica_service` as a process: flags, signals, exit statuses, the pipe to its launcher."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from slotmesh.convert.batches import ids_from_wire, ids_of_results
from slotmesh.internal.v1 import replica_service_pb2, replica_service_pb2_grpc
from slotmesh.runtime.channels import open_channel
from slotmesh.runtime.parent import AnnouncePipe, ParentPipe
from slotmesh.v1 import call_pb2
from tests.support.shell import running
from tests.support.tiers import long
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

Request = replica_service_pb2.ExecuteRequest

ROOT = Path(__file__).resolve().parents[3]

APP = """
import asyncio
import sys
import slotmesh
print("importing")
@slotmesh.deployment(max_ongoing=3)
class Model:
    async def echo(self, payload: bytes) -> bytes:
        return payload
    async def wait(self, payload: bytes) -> bytes:
        await asyncio.sleep(3600)
        return payload
    async def quit_in_a_task(self, payload: bytes) -> bytes:
        async def quit_later() -> None:
            await asyncio.sleep(0)
            sys.exit(7)
        await asyncio.gather(quit_later(), asyncio.sleep(0))
        return payload

    @slotmesh.batch(max_batch_size=2)
    def lengths(self, items: list[bytes]) -> list[int]:
        return [len(item) for item in items]

class Unsound:
    async def add(self, items: set[asyncio.Future]) -> int:
        return len(items)

class Broken:
    def __init__(self) -> None:
        raise RuntimeError("no model here")

    async def echo(self, payload: bytes) -> bytes:
        return payload
"""


ENDLESS = """
import asyncio
import pathlib
import threading
import time
import users_model

BEGUN = pathlib.Path("begun")

class Keeping(users_model.Model):
    def __init__(self) -> None:
        threading.Thread(target=time.sleep, args=(3600,), daemon=False).start()

class Endless(users_model.Model):
    async def wait_for_thread(self, payload: bytes) -> bytes:
        BEGUN.touch()
        await asyncio.to_thread(time.sleep, 3600)
        return payload

    async def ignore(self, payload: bytes) -> bytes:
        BEGUN.touch()
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass

    def sleep(self, payload: bytes) -> bytes:
        BEGUN.touch()
        time.sleep(3600)
        return payload
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a user's module in it, far from this repository."""
    (tmp_path / "users_model.py").write_text(APP)
    (tmp_path / "users_endless.py").write_text(ENDLESS)
    (tmp_path / "users_broken.py").write_text("import users_missing")
    return tmp_path


@asynccontextmanager
async def replica(here: Path, *flags: str, pass_fds: tuple[int, ...] = ()) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLOTMESH_")}
    command = sys.executable, "-m", "replica_service", *flags
    env = {**environment, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    async with running(*command, cwd=here, env=env, stdout=PIPE, stderr=PIPE, pass_fds=pass_fds) as process:
        yield process


async def outcome(here: Path, *flags: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a replica that ends by itself."""
    async with replica(here, *flags) as process, asyncio.timeout(20):
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def serving(
    here: Path, *flags: str, pass_fds: tuple[int, ...] = ()
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A replica on its own, and its address."""
    with AnnouncePipe() as pipe:
        own = ("--handler=users_model:Model", "--port=0", "--metrics-port=-1", f"--announce-fd={pipe.fd}")
        async with replica(here, *own, *flags, pass_fds=(*pipe.pass_fds, *pass_fds)) as process:
            async with asyncio.timeout(20):
                address = await pipe.address()
            assert address is not None, (await process.communicate())[1].decode()
            yield process, address


async def ended(process: asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(20):
        return await process.wait()


async def test_a_replica_without_a_controller_says_last_that_nobody_will_call_it(here: Path) -> None:
    async with serving(here) as (process, _):
        process.terminate()
        async with asyncio.timeout(20):
            _, err = await process.communicate()
    lines = err.decode().splitlines()
    ready = next(at for at, line in enumerate(lines) if " ready " in line)
    assert (
        "this replica belongs to no mesh, and no router sends it calls: it was started without --controller; start it "
        "with --controller HOST:PORT (SLOTMESH_CONTROLLER), as --controller 127.0.0.1:7070"
    ) in lines[ready + 1]
    assert "warning" in lines[ready + 1]


async def test_describe_prints_one_json_object_and_nothing_else(here: Path) -> None:
    status, out, _ = await outcome(here, "--describe", "users_model:Model")
    assert status == 0
    document = json.loads(out)
    schemas = {name: method.pop("schema") for name, method in document["methods"].items()}
    payload = {"type": "string", "contentEncoding": "base64"}
    arguments = {"type": "object", "required": ["payload"], "additionalProperties": False}
    echo = {"arguments": {**arguments, "properties": {"payload": payload}}, "result": payload, "$defs": {}}
    lengths = {
        "arguments": {**arguments, "required": ["items"], "properties": {"items": payload}},
        "result": {"type": "integer"},
        "$defs": {},
    }
    assert schemas == {"echo": echo, "wait": echo, "quit_in_a_task": echo, "lengths": lengths}, (
        "of a call, also where it is in a batch"
    )
    assert document == {
        "handler": "users_model:Model",
        "name": "Model",
        "max_ongoing": 3,
        "prefetch": 2,
        "own_loop": False,
        "health_check_period_s": 10.0,
        "health_check_timeout_s": 30.0,
        "methods": {
            "echo": {"kind": "async"},
            "wait": {"kind": "async"},
            "quit_in_a_task": {"kind": "async"},
            "lengths": {
                "kind": "batch",
                "batch": {
                    "kind": "def",
                    "max_batch_size": 2,
                    "batch_wait_timeout_s": 0.01,
                    "max_concurrent_batches": 1,
                },
            },
        },
    }


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("users_model:Modell", "users_model has no Modell; it has Broken, Model, Unsound"),
        ("users_model", "it is written MODULE:NAME"),
        ("users_model:Unsound", "'users_model:Unsound': Unsound.add: items: no payload can become a Future"),
        ("users_broken:Model", "ModuleNotFoundError: No module named 'users_missing'"),
    ],
)
async def test_describe_says_what_is_wrong(here: Path, path: str, words: str) -> None:
    status, out, err = await outcome(here, "--describe", path)
    assert (status, out) == (1, "")
    assert words in err


async def test_a_handler_that_cannot_start_shows_its_traceback(here: Path) -> None:
    status, _, err = await outcome(here, "--handler=users_model:Broken", "--port=0", "--metrics-port=-1")
    assert status == 1
    assert "Traceback (most recent call last)" in err
    assert 'raise RuntimeError("no model here")' in err
    assert err.splitlines()[-1] == "handler users_model:Broken cannot start: RuntimeError: no model here"


async def test_all_wrong_settings_are_told_at_once(here: Path) -> None:
    status, _, err = await outcome(here, "--port=x", "--graceful-timeout=soon")
    assert status == 2
    assert "--port" in err
    assert "--graceful-timeout" in err
    status, _, err = await outcome(here)
    assert status == 2
    assert "--handler MODULE:NAME (SLOTMESH_HANDLER) is required" in err
    status, _, err = await outcome(here, "--handler=a:B", "--controller=h:1", "--host=0.0.0.0", "--insecure")
    assert status == 2
    assert "--advertise HOST[:PORT] (SLOTMESH_ADVERTISE) is required" in err


def ignores(pid: int, asked: signal.Signals) -> bool:
    """As the kernel has it."""
    (mask,) = re.findall(r"^SigIgn:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text("utf-8"), re.MULTILINE)
    return bool(int(mask, 16) >> (asked - 1) & 1)


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
async def test_who_has_started_it_by_hand_ends_it(here: Path, asked: signal.Signals) -> None:
    async with serving(here) as (process, _):
        process.send_signal(asked)
        assert await ended(process) == 0


async def test_with_a_launcher_ctrl_c_is_the_launchers(here: Path) -> None:
    """Ctrl-C in a terminal reaches the whole group: the launcher says when its replicas end."""
    with ParentPipe() as parent:
        async with serving(here, f"--parent-fd={parent.fd}", pass_fds=parent.pass_fds) as (process, _):
            assert ignores(process.pid, signal.SIGINT)
            process.send_signal(signal.SIGINT)
            process.terminate()
            assert await ended(process) == 0


async def test_a_signal_that_comes_while_the_process_ends_does_not_change_its_status(here: Path) -> None:
    async with serving(here, "--handler=users_endless:Keeping") as (process, _):
        process.terminate()
        assert process.stderr is not None
        while b"stopped" not in await process.stderr.readline():
            pass

        def is_ended() -> bool:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGINT)  # by itself: the process's own way may take its status
            return process.returncode is not None

        await wait_until(is_ended)
        assert process.returncode == 0


async def test_it_ends_by_itself_when_its_launcher_is_gone(here: Path) -> None:
    with ParentPipe() as parent:
        async with serving(here, f"--parent-fd={parent.fd}", pass_fds=parent.pass_fds) as (process, _):
            parent.close()
            assert await ended(process) == 0


@pytest.mark.parametrize(
    ("method", "status"), [("wait", 0), long("wait_for_thread", 0), ("ignore", 1), long("sleep", 1)]
)
async def test_no_call_keeps_it_after_the_grace_and_those_that_are_lost_make_it_fail(
    here: Path, method: str, status: int
) -> None:
    flags = ("--handler=users_endless:Endless", "--replica-id=r-1", "--graceful-timeout=50ms")
    async with serving(here, *flags) as (process, address), open_channel(address) as channel:
        call = await executing(channel, method, "echo")
        assert (await call.read()).HasField("opened")
        while not (await call.read()).HasField("results"):
            pass  # heartbeats
        if method != "wait":
            await wait_until((here / "begun").exists, what="the call runs")
        process.terminate()
        assert await ended(process) == status
        call.cancel()


async def executing(channel: Any, *methods: str) -> Any:
    """A stream to the replica `r-1`, with a call of each of these methods."""
    stub = replica_service_pb2_grpc.ReplicaServiceStub(channel)
    call: Any = stub.Execute()
    await call.write(Request(open=replica_service_pb2.OpenExecute(replica_id="r-1")))
    with pytest.raises(Exception, match="this is replica r-1, incarnation ") as refused:
        await call.read()
    incarnation = str(refused.value).partition("incarnation ")[2][:32]
    call = stub.Execute()
    await call.write(Request(open=replica_service_pb2.OpenExecute(replica_id="r-1", incarnation=incarnation)))
    frame = replica_service_pb2.RunFrame()
    for run_id, method in enumerate(methods, 1):
        options = call_pb2.CallOptions(method=method)
        frame.batches.add(first_run_id=run_id, payloads=[b"x"], endpoint="e", options=options)
    await call.write(Request(runs=frame))
    return call


async def test_a_task_of_a_call_that_would_end_the_process_ends_its_call(here: Path) -> None:
    """`asyncio.gather` makes tasks, and a task that calls `sys.exit` stops its event loop: the process goes on."""
    async with serving(here, "--replica-id=r-1") as (process, address), open_channel(address) as channel:
        call = await executing(channel, "quit_in_a_task", "echo", "quit_in_a_task")
        results, failed = set[int](), dict[int, Any]()
        async with asyncio.timeout(20):
            while len(results) + len(failed) < 3:
                frame = (await call.read()).results
                results |= {call_id for batch in frame.batches for call_id in ids_of_results(batch)}
                failed |= {
                    call_id: errors.failure for errors in frame.errors for call_id in ids_from_wire(errors.calls)
                }
        assert results == {2}
        assert {(it.message, it.executed) for it in failed.values()} == {("SystemExit: 7", call_pb2.EXECUTED_YES)}
        process.terminate()
        assert await ended(process) == 0
        call.cancel()
