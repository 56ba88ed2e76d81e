"""Each name that a command prints with `--output name` is taken by every command that acts on such a thing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.support.controllers import Controlled, running_controller
from tests.support.fakes.members import FakeReplica
from tests.support.shell import Said, slotmesh

pytestmark = pytest.mark.long

FILE = """
backends:
  v1: {handler: "app:One"}
endpoints:
  e: {traffic: {v1: 1.0}}
"""
PRINTING: Mapping[str, tuple[Sequence[str], set[str]]] = {
    "status": (["status"], {"endpoint/e", "backend/v1", "replica/a"}),
    "get": (["get"], {"endpoint/e", "backend/v1"}),
    "events": (["events"], {"endpoint/e", "backend/v1", "replica/a"}),
    "traffic": (["traffic", "e"], {"endpoint/e"}),
    "apply": (["apply", "-"], {"endpoint/e", "backend/v1"}),
    "scale": (["scale", "v1", "2", "--dry-run"], {"backend/v1"}),
    "delete": (["delete", "endpoint/e", "--dry-run"], {"endpoint/e"}),
    "rollback": (["rollback", "--dry-run"], {"endpoint/e", "backend/v1"}),
}
"""What is typed, and what it prints."""
TAKING: Mapping[str, Sequence[Sequence[str]]] = {
    "backend": (["get"], ["scale", "--dry-run", "--", "3"], ["delete", "--dry-run", "endpoint/e"], ["events"]),
    "endpoint": (["get"], ["traffic"], ["delete", "--dry-run"], ["events"]),
    "replica": (["drain"], ["events"]),
    "revision": (["rollback", "--dry-run"],),
}
"""Commands that take a thing of each kind, beside `logs`, which this controller has none of."""


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[Controlled]:
    async with running_controller() as mesh, AsyncExitStack() as members:
        await mesh.apply(FILE)
        replica = await members.enter_async_context(FakeReplica(mesh.channel, "v1", "a"))
        await replica.report("READY")
        yield mesh


async def said(mesh: Controlled, *arguments: str) -> Said:
    return await slotmesh(*arguments, stdin=FILE, env={"SLOTMESH_ADDRESS": mesh.controller.address})


async def all_said(mesh: Controlled, lines: Sequence[Sequence[str]]) -> list[Said]:
    """Few at a time: each is a process."""
    few = asyncio.Semaphore(3)

    async def one(line: Sequence[str]) -> Said:
        async with few:
            return await said(mesh, *line)

    return await asyncio.gather(*map(one, lines))


@pytest.mark.asyncio
async def test_what_is_printed_as_a_name_can_be_pasted(mesh: Controlled) -> None:
    subjects: set[str] = set()
    told = await all_said(mesh, [[*typed, "-o", "name"] for typed, _ in PRINTING.values()])
    for (command, (_, names)), it in zip(PRINTING.items(), told, strict=True):
        assert (it.status, {*it.out.split()}) == (0, names), (command, it)
        subjects |= names
    revisions = await said(mesh, "history", "-o", "name")
    subjects |= {*revisions.out.split()}
    assert {it.partition("/")[0] for it in subjects} == {*TAKING}

    typed = [_with(command, it) for it in sorted(subjects) for command in TAKING[it.partition("/")[0]]]
    for line, it in zip(typed, await all_said(mesh, typed), strict=True):
        assert it.status == 0, (line, it)
    for subject in ("replica/a", "backend/v1"):
        logs = await said(mesh, "logs", subject)
        assert f"{subject.partition('/')[2]!r}; this controller starts none" in logs.err


def _with(command: Sequence[str], subject: str) -> list[str]:
    """The subject is the first argument that is no option."""
    if "--" in command:
        at = [*command].index("--")
        return [*command[:at], subject, *command[at + 1 :]]
    return [*command, subject]
