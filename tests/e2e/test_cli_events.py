"""`slotmesh events` against a real controller: history, what follows, filters and cursors."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import yaml

from controller_service.core.event_log import EventKind, Notice
from tests.support.controllers import Controlled, running_controller
from tests.support.mesh import ROOT
from tests.support.shell import Said, running, slotmesh
from tests.support.wait import within

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[Controlled]:
    async with running_controller() as mesh:
        tell(mesh, EventKind.REPLICA_READY, "replica/a")
        tell(mesh, EventKind.REPLICA_FAILED, "replica/a", "v1: no such model")
        tell(mesh, EventKind.REPLICA_READY, "replica/ab")
        tell(mesh, EventKind.BACKEND_UPDATED, "backend/v1")
        yield mesh


def tell(mesh: Controlled, kind: EventKind, subject: str, message: str = "so it is") -> None:
    mesh.controller.state.publish(Notice(kind=kind, subject=subject, message=message))


def at(mesh: Controlled) -> dict[str, str]:
    return {"SLOTMESH_ADDRESS": mesh.controller.address}


async def said(mesh: Controlled, *arguments: str) -> Said:
    return await slotmesh("events", *arguments, env=at(mesh))


@pytest.mark.long
async def test_history_in_each_form_and_since_a_cursor(mesh: Controlled) -> None:
    table, document, yaml_document = await asyncio.gather(
        said(mesh), said(mesh, "-o", "json"), said(mesh, "-o", "yaml")
    )
    names, newest = await asyncio.gather(said(mesh, "-o", "name"), said(mesh, "-n1"))
    assert (table.status, table.err) == (0, "")
    assert all(text in table.out for text in ("replica-failed", "replica/ab", "v1: no such model"))
    told = json.loads(document.out)["events"]
    assert [(it["kind"], it["resource"]) for it in told] == [
        ("replica-ready", "replica/a"),
        ("replica-failed", "replica/a"),
        ("replica-ready", "replica/ab"),
        ("backend-updated", "backend/v1"),
    ]
    assert yaml.safe_load(yaml_document.out) == json.loads(document.out)
    assert names.out.split() == ["replica/a", "replica/ab", "backend/v1"]
    assert ("backend/v1" in newest.out, "replica/a" in newest.out) == (True, False)
    assert f"slotmesh events --after {told[-1]['cursor']}" in newest.out

    since, none, foreign, nonsense = await asyncio.gather(
        said(mesh, "--after", told[1]["cursor"], "-o", "name"),
        said(mesh, "--after", told[3]["cursor"]),
        said(mesh, "--after", "0-1", "-o", "name"),
        said(mesh, "--after", "yesterday"),
    )
    assert since.out.split() == ["replica/ab", "backend/v1"]
    assert none == Said(0, "no such events\n", "")
    assert "slotmesh: some events before this one are not kept any more" in foreign.err
    assert (nonsense.status, "after: must be the cursor of an event" in nonsense.err) == (1, True)


@pytest.mark.long
async def test_kinds_and_subjects_are_filters(mesh: Controlled) -> None:
    exact, prefix = await asyncio.gather(said(mesh, "replica/a", "-o", "json"), said(mesh, "replica/a*", "-o", "name"))
    kind, both, unknown = await asyncio.gather(
        said(mesh, "--kind=REPLICA_FAILED", "--kind=backend-updated", "-o", "name"),
        said(mesh, "replica/a", "--kind=replica-failed", "-o", "json"),
        said(mesh, "--kind=replica-faild"),
    )
    assert [it["resource"] for it in json.loads(exact.out)["events"]] == ["replica/a"] * 2
    assert prefix.out.split() == ["replica/a", "replica/ab"]
    assert kind.out.split() == ["replica/a", "backend/v1"]
    assert [it["message"] for it in json.loads(both.out)["events"]] == ["v1: no such model"]
    bare = await said(mesh, "a")
    assert (bare.status, "replica/a" in bare.err) == (2, True)
    assert (unknown.status, "did you mean replica-failed?" in unknown.err) == (2, True)


async def test_what_comes_follows_the_history_until_ctrl_c(mesh: Controlled) -> None:
    command = sys.executable, "-m", "slotmesh.cli", "events", "replica/*", "--follow", "-n1", "-o", "json"
    env = {**os.environ, **at(mesh), "PYTHONFAULTHANDLER": "1"}
    async with running(*command, stdout=PIPE, stderr=PIPE, cwd=ROOT, env=env) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with asyncio.timeout(90.0):
                first = json.loads(await process.stdout.readline())
                tell(mesh, EventKind.BACKEND_UPDATED, "backend/v2")
                tell(mesh, EventKind.REPLICA_READY, "replica/c")
                second = json.loads(await process.stdout.readline())
                process.send_signal(signal.SIGINT)
                out, err = await process.communicate()
        except TimeoutError:
            process.send_signal(signal.SIGABRT)
            stacks = await within(process.stderr.read(), "the stacks of its threads", timeout=60.0)
            raise AssertionError(f"it has not ended:\n{stacks.decode()}") from None
    assert (first["resource"], second["resource"]) == ("replica/ab", "replica/c")
    assert (process.returncode, out, err) == (130, b"", b"")
