"""`python -m controller_service` as a process: settings, announcing, launching, signals, no process left over."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Set
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from slotmesh.runtime.channels import open_channel
from slotmesh.runtime.parent import AnnouncePipe, ParentPipe
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from slotmesh.v1.controller_service_pb2_grpc import ControllerServiceStub
from tests.support.controllers import eventually
from tests.support.wait import wait_until

ROOT = Path(__file__).resolve().parents[3]

MEMBER = '''
"""A replica that only belongs: attaches, reports, drains when asked. Shadows replica_service for these tests."""
import argparse, asyncio, os, secrets, signal, sys
import grpc
from slotmesh.runtime.channels import open_channel
from slotmesh.runtime.parent import watch_parent
from slotmesh.internal.v1 import membership_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from slotmesh.internal.v1.membership_service_pb2_grpc import MembershipServiceStub

async def main():
    flags = argparse.ArgumentParser()
    names = "handler code backend controller replica-id port metrics-port log-format log-level orphan-timeout"
    for name in names.split():
        flags.add_argument("--" + name)
    flags.add_argument("--parent-fd", type=int)
    told = flags.parse_args()
    stop = asyncio.Event()
    if told.parent_fd is not None:
        watch_parent(told.parent_fd, stop.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with open_channel(told.controller) as channel:
        call = MembershipServiceStub(channel).AttachReplica()
        await call.write(pb.AttachReplicaRequest(hello=pb.ReplicaHello(
            replica_id=told.replica_id, incarnation=secrets.token_hex(16), backend=told.backend, pid=os.getpid())))
        assert (await call.read()).WhichOneof("frame") == "configuration"
        async def say(state, **fields):
            await call.write(pb.AttachReplicaRequest(report=pb.ReplicaReport(
                state=mesh_pb2.ReplicaState.Value("REPLICA_STATE_" + state), **fields)))
        if told.handler == "app:Broken":
            await say("FAILED", error="Traceback: no model")
            await call.done_writing()
            return 1
        await say("READY", address="127.0.0.1:1", max_ongoing=8)
        while not stop.is_set():
            try:
                await asyncio.wait_for(stop.wait(), 1.0)
            except TimeoutError:
                await say("READY", address="127.0.0.1:1", max_ongoing=8)
        try:
            await say("STOPPED")
            await call.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass
    return 0

sys.exit(asyncio.run(main()))
'''

SPEC = """
backends:
  v1: {handler: "app:Digits", num_replicas: 2, graceful_timeout: 5s}
endpoints:
  digits: {traffic: {v1: 1.0}}
"""


def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, **options)


@asynccontextmanager
async def controller(
    tmp_path: Path, *flags: str, spec: str = "", with_launcher: bool = True, parent: ParentPipe | None = None
) -> AsyncIterator[tuple[subprocess.Popen[bytes], str]]:
    """A controller process and its address. It is killed in the end, whatever happened, and what it has started ends.

    `parent` outlives it where it is given.
    """
    stand_in = tmp_path / "stand_in"
    (stand_in / "replica_service").mkdir(parents=True)
    (stand_in / "replica_service" / "__init__.py").touch()
    (stand_in / "replica_service" / "__main__.py").write_text(MEMBER, "utf-8")
    # Only in processes of replicas: a controller refuses to start where another module has the name of a service.
    on_path = f"import sys\nif 'replica_service' in sys.orig_argv:\n    sys.path.insert(0, {str(stand_in)!r})\n"
    (tmp_path / "sitecustomize.py").write_text(on_path, "utf-8")
    (tmp_path / "app.py").touch()  # the module of the handlers, which the stand-in does not import
    (tmp_path / "mesh.yaml").write_text(spec, "utf-8")
    with ExitStack() as pipes:
        announced = pipes.enter_context(AnnouncePipe())
        parent = parent or pipes.enter_context(ParentPipe())
        command = [sys.executable, "-m", "controller_service", "--port=0", "--metrics-port=0", *flags]
        command += [f"--announce-fd={announced.fd}", f"--spec={tmp_path / 'mesh.yaml'}"]
        if with_launcher:
            command.append(f"--parent-fd={parent.fd}")
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "TMPDIR": str(tmp_path)}
        process = start(command, cwd=tmp_path, env=environment, pass_fds=(*announced.pass_fds, *parent.pass_fds))
        try:
            async with asyncio.timeout(20.0):
                address = await announced.address()
            assert address is not None
            yield process, address
        finally:
            process.kill()
            await asyncio.to_thread(process.wait)


async def ready_replicas(operator: Any, count: int, *, without: Set[str] = frozenset()) -> dict[str, int]:
    """Process ids of the replicas, by id, once that many are ready."""
    ready: dict[str, int] = {}

    async def look() -> bool:
        listed = (await operator.ListReplicas(pb.ListReplicasRequest())).replicas
        ready.clear()
        ready.update({it.replica_id: it.pid for it in listed if it.state == mesh_pb2.REPLICA_STATE_READY})
        return len(ready) == count and not ready.keys() & without

    await eventually(look, what=f"{count} ready replicas")
    return ready


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ignores(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    ignored = next(line for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(ignored.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
async def test_it_launches_replaces_and_takes_everything_down(tmp_path: Path, ending: signal.Signals) -> None:
    started = controller(tmp_path, spec=SPEC, with_launcher=False)
    async with started as (process, address), open_channel(address) as channel:
        operator: Any = ControllerServiceStub(channel)
        health: Any = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1
        before = await ready_replicas(operator, 2)
        victim, victim_pid = next(iter(before.items()))
        os.kill(victim_pid, signal.SIGKILL)
        await wait_until(lambda: not is_running(victim_pid), what="its death")
        after = await ready_replicas(operator, 2, without={victim})
        assert len(after.keys() - before.keys()) == 1

        process.send_signal(ending)
        assert await asyncio.to_thread(process.wait, 20.0) == 0
        assert not any(map(is_running, after.values()))


@pytest.mark.asyncio
@pytest.mark.parametrize("with_launcher", [True, False])
async def test_an_interrupt_is_left_to_the_launcher(tmp_path: Path, with_launcher: bool) -> None:
    async with controller(tmp_path, with_launcher=with_launcher) as (process, _):
        assert ignores(process.pid, signal.SIGINT) == with_launcher


@pytest.mark.asyncio
async def test_a_handler_that_fails_is_seen_with_its_traceback(tmp_path: Path) -> None:
    spec = SPEC.replace("app:Digits", "app:Broken")
    async with controller(tmp_path, spec=spec) as (_, address), open_channel(address) as channel:
        operator: Any = ControllerServiceStub(channel)

        async def failures() -> list[Any]:
            listed = (await operator.ListReplicas(pb.ListReplicasRequest(), wait_for_ready=True)).replicas
            # A process may be reaped before its last words are read; then they come a moment later.
            failed = [it for it in listed if it.state == mesh_pb2.REPLICA_STATE_FAILED]
            return [it for it in failed if it.error == "Traceback: no model"]

        await eventually(failures, what="a failed replica with its traceback")


@pytest.mark.asyncio
async def test_replicas_of_a_killed_controller_end_with_whoever_had_launched_it(tmp_path: Path) -> None:
    with ParentPipe() as parent:
        async with controller(tmp_path, spec=SPEC, parent=parent) as (process, address):
            async with open_channel(address) as channel:
                pids = (await ready_replicas(ControllerServiceStub(channel), 2)).values()
            process.kill()
            await asyncio.to_thread(process.wait)
            assert all(map(is_running, pids)), "they do not depend on it"
        parent.close()
        await wait_until(lambda: not any(map(is_running, pids)), timeout=20.0, what="the end of the replicas")


@pytest.mark.asyncio
async def test_the_controller_ends_when_its_launcher_is_gone(tmp_path: Path) -> None:
    with ParentPipe() as parent, AnnouncePipe() as announced:
        process = start(
            [
                *(sys.executable, "-m", "controller_service", "--port=0", "--metrics-port=-1", "--launcher=external"),
                *(f"--parent-fd={parent.fd}", f"--announce-fd={announced.fd}", "--log-format=json"),
            ],
            cwd=ROOT,
            pass_fds=(*parent.pass_fds, *announced.pass_fds),
            stderr=subprocess.PIPE,
        )
        async with asyncio.timeout(20.0):
            address = await announced.address()
        parent.close()
        _, log = await asyncio.to_thread(process.communicate)
        assert process.returncode == 0
        events = [json.loads(line) for line in log.splitlines()]
        assert any(it["event"] == "listening" and it["address"] == address for it in events)


@pytest.mark.asyncio
async def test_a_second_controller_with_the_same_replicas_is_refused_with_the_way_out(tmp_path: Path) -> None:
    flag = f"--launch-dir={tmp_path / 'launched'}"
    async with controller(tmp_path, flag):
        command = [sys.executable, "-m", "controller_service", "--port=0", "--metrics-port=-1", flag]
        second = await asyncio.to_thread(
            subprocess.run, command, cwd=ROOT, capture_output=True, text=True, timeout=30.0, check=False
        )
    assert second.returncode == 1
    words = (
        f"{tmp_path / 'launched'}: another controller keeps its replicas there: stop it, or name another --launch-dir"
    )
    assert second.stderr.splitlines()[-1] == words
    assert "Traceback" not in second.stderr


@pytest.mark.parametrize(
    ("spec", "flags", "told"),
    [
        (
            "endpoints: {e: {traffic: {a: 0.5, b: 0.4}}}\nmore:",
            (),
            [
                "endpoints.e.traffic: weights sum to 0.9, must be 1: list all backends that get calls",
                "more: there are `backends`, `endpoints` and `routes` only",
            ],
        ),
        ("backends: {v1: {}}", (), ["backends.v1.handler: is required"]),
        ("endpoints: {e: {traffic: {a: 1}}}", (), ["endpoints.e.traffic.a: no backend has this name (there is none)"]),
        ("backends: {v1: {handler: 'a:B', balancer: leastloaded}}", (), ["backends.v1.balancer"]),
        ("", ("--launcher=magic", "--port=70000"), ["--launcher", "--port"]),
        ("", ("--host=0.0.0.0",), ["--insecure"]),
    ],
)
def test_wrong_settings_are_told_all_at_once(
    tmp_path: Path, spec: str, flags: tuple[str, ...], told: list[str]
) -> None:
    path = tmp_path / "mesh.yaml"
    path.write_text(spec, "utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "controller_service", "--port=0", "--metrics-port=-1", f"--spec={path}", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30.0,
        check=False,
    )
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    for text in told:
        assert text in ended.stderr
