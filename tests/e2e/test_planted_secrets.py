"""Secrets are planted in whatever users hand over, all fails that can, and nothing that leaves a process has one.

What leaves a process: its logs and output, what clients are told, metrics, events, taps without payloads, files beside
the state, command lines and environments of children. A state file has configurations, as that is what it is for, and
nothing else of these. What a handler says in an exception quotes the call, and is told to who has made it alone.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

import slotmesh
from slotmesh.cli.operator import Operator
from slotmesh.spec.document import parse_mesh
from slotmesh.spec.model import InvalidSpec
from slotmesh.v1 import slot_service_pb2, slot_service_pb2_grpc
from tests.e2e.secretive_handlers import SECRETS
from tests.support.mesh import ROOT, MeshRun, started_mesh
from tests.support.metrics import scraped_text
from tests.support.shell import running
from tests.support.wait import wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120), pytest.mark.slow, pytest.mark.long]

ENDINGS = {
    "exits": ("tests.e2e.secretive_lives:Leaving", "exit"),
    "crashes": ("tests.e2e.secretive_lives:Leaving", "crash"),
    "raises": ("tests.e2e.secretive_lives:Leaving", "raise"),
    "unimportable": ("tests.e2e.secretive_at_import:Nothing", ""),
    "unfitting": ("tests.e2e.secretive_lives:Slow", ""),
}
"""Backends that never get ready: handler, and stage."""
RPCS = ("RouterService/Call", "SlotService/Dispatch", "SlotService/RenewSlot")
STREAMS = ("RouterService/StreamCalls", "TapService/TapCalls")


class Told:
    """What a client was told, and what commands have printed."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.quoted = 0
        """Times that a handler has quoted the call."""

    async def by(self, call: Awaitable[object]) -> None:
        """The call fails."""
        with pytest.raises((slotmesh.SlotmeshError, grpc.aio.AioRpcError, InvalidSpec)) as caught:
            await call
        error = caught.value
        if isinstance(error, slotmesh.HandlerError):
            self.quoted += SECRETS["argument"] in str(error)
            return
        self.texts += [str(error), repr(error), str(getattr(error, "__dict__", ""))]
        if isinstance(error, grpc.aio.AioRpcError):
            self.texts.append(str(error.trailing_metadata()))


def document(backend: str, handler: str, stage: str = "") -> str:
    config = {"password": SECRETS["config"], "stage": stage}
    return json.dumps(
        {
            "backends": {backend: {"handler": handler, "num_replicas": 1, "user_config": config}},
            "endpoints": {backend: {"traffic": {backend: 1}}},
        }
    )


@asynccontextmanager
async def command(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`slotmesh …`, ended with the block."""
    full = sys.executable, "-m", "slotmesh.cli", *arguments
    async with running(*full, cwd=ROOT, stdout=PIPE, stderr=PIPE) as process:
        yield process


async def printed(*arguments: str) -> str:
    async with command(*arguments) as process, asyncio.timeout(30):
        return "\n".join(each.decode(errors="replace") for each in await process.communicate())


async def send_malformed(address: str, told: Told) -> None:
    """Bytes that are no message, and have a secret in them, to rpcs of one message and of many."""
    raw = b"\xff\xff\x0a" + SECRETS["argument"].encode()
    metadata = (("tenant", SECRETS["metadata"]), ("authorization", f"Bearer {SECRETS['shard']}"))
    async with grpc.aio.insecure_channel(address) as channel:
        for rpc in RPCS:
            call: Any = channel.unary_unary(f"/slotmesh.v1.{rpc}")
            await told.by(call(raw, metadata=metadata, timeout=10))
        for rpc in STREAMS:
            stream: Any = channel.stream_stream(f"/slotmesh.v1.{rpc}")
            await told.by(_all(stream(iter([raw]), metadata=metadata, timeout=10)))


async def _all(stream: Any) -> None:
    async for _ in stream:
        pass


async def call_until(tapped: asyncio.Task[bytes], address: str, told: Told) -> None:
    """Makes calls that fail until one of them is shown."""
    async with slotmesh.connect(address) as client, asyncio.timeout(30):
        view = client.endpoint("secretive").options(metadata={"tenant": SECRETS["metadata"]}).ordered(SECRETS["key"])
        while not tapped.done():
            await told.by(view.coroutine(SECRETS["argument"]))
            await asyncio.sleep(0.05)  # between two attempts


async def fail_calls(address: str, told: Told) -> list[str]:
    """Every way in which a call can fail; returns the tokens of slots."""
    async with slotmesh.connect(address) as client:
        secretive = client.endpoint("secretive").options(metadata={"tenant": SECRETS["metadata"]})
        keyed = secretive.ordered(SECRETS["key"])
        for view in (secretive, keyed, secretive.options(shard_key=SECRETS["shard"])):
            await told.by(view.coroutine(SECRETS["argument"]))
            await told.by(view.number(SECRETS["argument"]))
            await told.by(view.nowhere(SECRETS["argument"]))
            await told.by(view.number(SECRETS["argument"], 1))
            await told.by(view.number(item={SECRETS["argument"]: 1}))
        await told.by(_in_a_lane(secretive, SECRETS["key"] * 200))
        await told.by(secretive.options(content_type="application/json").number({"a": SECRETS["argument"]}))
        await told.by(client.endpoint("nowhere").coroutine(SECRETS["argument"]))
        slow = client.endpoint("slow")
        await told.by(slow.options(timeout=0.3)(SECRETS["argument"]))
        await told.by(slow.die(SECRETS["argument"]))
        async with secretive.reserve() as slot:
            await told.by(slot.coroutine(SECRETS["argument"]))
            token = str(slot.token)
            told.texts.append(repr(slot))
        for wrong in (token, f"{token[:-6]}AAAAAA", SECRETS["argument"]):
            await told.by(_into(address, wrong))
    return [token]


async def _in_a_lane(endpoint: Any, key: str) -> None:
    await endpoint.ordered(key).coroutine(SECRETS["argument"])


async def _into(address: str, token: str) -> None:
    """A call into a slot that is gone, or never was."""
    request = slot_service_pb2.DispatchRequest(token=token, payload=SECRETS["argument"].encode())
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = slot_service_pb2_grpc.SlotServiceStub(channel)
        await stub.Dispatch(request, timeout=10)


async def fail_changes(mesh: MeshRun, told: Told) -> None:
    """Backends that never get ready, and specifications that are none."""
    async with Operator.at(mesh.controller_address) as operator:
        for name, (handler, stage) in ENDINGS.items():
            await operator.apply(parse_mesh(document(name, handler, stage)))
        await wait_until(lambda: "planned: import" in mesh.log_text(), timeout=30, what="a module that fails")
        await wait_until(lambda: "planned: constructor" in mesh.log_text(), timeout=30, what="a constructor that fails")
        told.texts.append(repr(await operator.members()))
    secret = SECRETS["config"]
    for text in (
        f"backends: {{b: {{handler: 'a:B', user_config: {secret}}}}}",
        f"backends: {{b: {{handler: 'a:B', user_config: [{secret}]}}}}",
        f"backends: {{b: {{handler: 'a:B', user_config: {{password: [{secret}, 2026-01-01]}}}}}}",
        f"backends:\n  b:\n    user_config:\n      password: {secret}: x",
        f"backends: {{b: {{user_config: {{password: !secret {secret}}}}}}}",
        f"backends: {{b: {{user_config: {{password: '{secret}}}}}}}",
    ):
        with pytest.raises(InvalidSpec) as caught:
            parse_mesh(text)
        told.texts.append(str(caught.value))
        assert secret not in str(caught.value), text


async def exported(mesh: MeshRun) -> dict[str, str]:
    """What can be seen of the mesh from outside, by where."""
    members = await mesh.members()
    found: dict[str, str] = {}
    addresses = {it.metrics_address for it in members.replicas} | {it.metrics_address for it in members.routers}
    for address in addresses - {""}:
        with suppress(OSError):  # those that do not live
            found[f"metrics of {address}"] = await scraped_text(address)
    assert len(found) > 2
    controller = f"--controller={mesh.controller_address}"
    commands = (["events"], ["events", "--output=json"], ["logs", "secretive"], ["status"], ["history"])
    texts = await asyncio.gather(*(printed(*each, controller) for each in commands))
    found |= {" ".join(each): text for each, text in zip(commands, texts, strict=True)}
    for pid, line in mesh.processes().items():
        found[f"command line {pid}"] = line
    folders = [Path("/proc", str(pid)) for pid in mesh.processes()]
    return found | {str(path): _text(path) for path in (*(it / "environ" for it in folders), *_files(mesh.log.parent))}


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _text(path: Path) -> str:
    with suppress(OSError):  # of a process that has ended
        return path.read_bytes().decode("latin-1")
    return ""


def assert_nowhere(found: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    leaks = [
        (kind, place, [line[:300] for line in text.splitlines() if secret in line][:2])
        for place, text in found.items()
        for kind, secret in secrets.items()
        if secret in text
    ]
    assert not leaks


async def test_planted_secrets_leave_no_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="slotmesh")
    state = tmp_path / "mesh.state"
    told = Told()
    flags = ["--log-level=debug", f"--state={state}"]
    async with started_mesh("tests.e2e.secretive_handlers:Secretive", flags=flags) as mesh:
        revision = (await mesh.members()).table_revision
        async with Operator.at(mesh.controller_address) as operator:
            await operator.apply(parse_mesh(document("secretive", "tests.e2e.secretive_handlers:Secretive")))
            slow = {"backends": {"slow": {"handler": "tests.e2e.secretive_lives:Slow"}}}
            slow["endpoints"] = {"slow": {"traffic": {"slow": 1}}}  # type: ignore[dict-item]
            await operator.apply(parse_mesh(json.dumps(slow)))
        await mesh.wait_for_table(newer_than=revision)
        await mesh.wait_for_replicas(3)
        async with command("tap", "secretive", f"--controller={mesh.controller_address}") as tap:
            assert tap.stdout is not None
            tapped = asyncio.create_task(tap.stdout.readline())
            await call_until(tapped, mesh.router_address, told)
            told.texts.append(tapped.result().decode())
        tokens = await fail_calls(mesh.router_address, told)
        await send_malformed(mesh.router_address, told)
        await fail_changes(mesh, told)
        secrets = {**SECRETS, "token": tokens[0]}
        found = await exported(mesh)
        found |= {f"told {at}": text for at, text in enumerate(told.texts)} | {"the client's log": caplog.text}
        assert_nowhere(found, secrets)
        assert told.quoted
        mesh.process.terminate()
        await mesh.wait_ended()
        assert_nowhere({"all logs": mesh.log_text()}, secrets)
    kept = {path.name: _text(path) for path in _files(tmp_path)}
    assert any(SECRETS["config"] in text for text in kept.values()), "the state has configurations"
    assert_nowhere(kept, {kind: secret for kind, secret in secrets.items() if kind != "config"})
