"""What handlers hold is theirs: no log shows arguments, metadata, keys, tokens, configurations or local variables.

What a log does show of an exception of a call: its type, and the lines of its traceback; its text may quote the call.
Of one of the handler's start or upkeep it shows the text as well.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

import slotmesh
from slotmesh.cli.operator import Operator
from slotmesh.spec.document import parse_mesh
from tests.e2e.secretive_handlers import SECRETS
from tests.support.mesh import MeshRun, started_mesh
from tests.support.tiers import long
from tests.support.wait import wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

HANDLERS = "tests.e2e.secretive_handlers"
CALLS = ("coroutine", "at_once", "threaded", "batched", "batched_in_thread", "weighed")
ITERATIONS = ("generated", "generated_in_thread")
LEFT_BEHIND = ("a task failed, and nothing awaited it", "a callback of the event loop failed")
TITLES = {"weighed": "size"}
"""How a method's exceptions are called, where not as it is."""
TEXTS = ("reconfigure", "check_health", "construct", "on_drain")
"""What raises exceptions that are logged with their texts."""


async def apply(mesh: MeshRun, handler: str, backend: str, stage: str) -> None:
    spec = {"handler": f"{HANDLERS}:{handler}", "num_replicas": 1}
    config = {"password": SECRETS["config"], "stage": stage}
    document = {
        "backends": {backend: {**spec, "user_config": config}},
        "endpoints": {backend: {"traffic": {backend: 1}}},
    }
    async with Operator.at(mesh.controller_address) as operator:
        await operator.apply(parse_mesh(json.dumps(document)))


async def until_logged(mesh: MeshRun, kind: str) -> None:
    text = f"planned: {kind}" if kind in TEXTS else kind
    await wait_until(lambda: text in mesh.log_text(), timeout=60, what=f"the exception of {kind}")


async def outcome(view: Any, method: str) -> object:
    """What becomes of a call, or of an iteration."""
    if method not in ITERATIONS:
        return await view.method(method)(SECRETS["argument"])
    return [value async for value in view.method(method).stream(SECRETS["argument"])]


async def call_until_logged(mesh: MeshRun, endpoint: Any, method: str) -> None:
    """Calls it as often as it takes: a replica logs only so many exceptions a second."""
    view = endpoint.options(metadata={"tenant": SECRETS["metadata"]})
    views = (view.ordered(SECRETS["key"]), view.options(shard_key=SECRETS["shard"]))
    kind = TITLES.get(method, method)
    while not is_logged(mesh.log_text(), method):
        for each in views:
            with pytest.raises(slotmesh.HandlerError, match=kind):
                await outcome(each, method)
        await asyncio.sleep(0.05)  # between two attempts


def is_logged(text: str, method: str) -> bool:
    """Whether an exception of this method is in the log, in either format."""
    lines = [line for line in text.splitlines() if "handler raised" in line]
    return any(f"method={method}" in line.split() or f'"method": "{method}"' in line for line in lines)


async def use_slot(endpoint: Any) -> str:
    """A call fails in a slot; returns its token."""
    async with endpoint.reserve() as slot:
        with pytest.raises(slotmesh.HandlerError):
            await slot.method("coroutine")(SECRETS["argument"])
        with pytest.raises(slotmesh.SlotUsed):
            await slot.method("coroutine")(SECRETS["argument"])
        return str(slot.token)


@pytest.mark.parametrize(
    ("log_format", "handler"),
    [("json", "Secretive"), long("console", "SecretiveOnItsOwnLoop")],
    ids=["json", "console"],
)
async def test_no_log_shows_a_secret(log_format: str, handler: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    env = {"SLOTMESH_LOG_FORMAT": log_format, "PYTHONASYNCIODEBUG": ""}
    async with started_mesh(f"{HANDLERS}:{handler}", env=env, flags=["--log-level=debug"]) as mesh:
        revision = (await mesh.members()).table_revision
        await apply(mesh, handler, "secretive", "")
        await mesh.wait_for_table(newer_than=revision)
        async with slotmesh.connect(mesh.router_address) as client:
            endpoint = client.endpoint("secretive")
            for method in (*CALLS, *ITERATIONS):
                await call_until_logged(mesh, endpoint, method)
            await endpoint.left_behind(SECRETS["argument"])
            for kind in LEFT_BEHIND:
                await until_logged(mesh, kind)
            with pytest.raises(slotmesh.BadArguments):
                await endpoint.number(SECRETS["argument"])
            tokens = [await use_slot(endpoint)]
            await apply(mesh, handler, "secretive", "reconfigure")
            await until_logged(mesh, "reconfigure")
            await apply(mesh, handler, "secretive", "sick")
            await until_logged(mesh, "check_health")
            await apply(mesh, handler, "broken", "construct")
            await until_logged(mesh, "construct")
        mesh.process.terminate()
        await mesh.wait_ended()
        await until_logged(mesh, "on_drain")
        text = mesh.log_text()
    written = {"services": text, "client": caplog.text}
    for name, each in written.items():
        for secret in (*SECRETS.values(), *tokens):
            assert secret not in each, (name, [line for line in each.splitlines() if secret in line][:2])
