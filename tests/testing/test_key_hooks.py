"""`on_keys_gained`, `on_keys_lost` and the owner's fields of `slotmesh.context()`, in whole meshes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

import slotmesh
from slotmesh.calls.key_hash import partition_of
from slotmesh.testing import Backend, call_context, make_context
from slotmesh.testing import handler as hosted
from slotmesh.testing import mesh as running_mesh
from tests.support.wait import wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

KEYS = [f"user-{number}" for number in range(24)]
Note = tuple[str, str, int, int]
"""What happened: `gained`, `call`, `lost`; the replica; the partition; its owner epoch."""

NOTES: list[Note] = []


@pytest.fixture(autouse=True)
def notes() -> Iterator[list[Note]]:
    NOTES.clear()
    yield NOTES
    NOTES.clear()


class Noting:
    """Notes what it is told, and each call."""

    def __init__(self) -> None:
        self.name = hex(id(self))

    def _note(self, what: str, keys: slotmesh.OwnedKeys) -> None:
        for partition, epoch in keys.owner_epochs.items():
            NOTES.append((what, self.name, partition, epoch))

    async def on_keys_gained(self, keys: slotmesh.OwnedKeys) -> None:
        await asyncio.sleep(0)
        self._note("gained", keys)

    async def on_keys_lost(self, keys: slotmesh.OwnedKeys) -> None:
        await asyncio.sleep(0)
        self._note("lost", keys)

    async def who(self) -> list[Any]:
        call = slotmesh.context()
        assert call.partition is not None
        assert call.owner_epoch is not None
        NOTES.append(("call", self.name, call.partition, call.owner_epoch))
        return [call.replica_id, call.backend, call.partition, call.owner_epoch]


@slotmesh.deployment
class NotingOnTheLoop(Noting):
    """Its hooks are `async def`."""


@slotmesh.deployment
class NotingInThreads:
    """The same with `def`."""

    def __init__(self) -> None:
        self.name = hex(id(self))

    def on_keys_gained(self, keys: slotmesh.OwnedKeys) -> None:
        for partition, epoch in keys.owner_epochs.items():
            NOTES.append(("gained", self.name, partition, epoch))

    def on_keys_lost(self, keys: slotmesh.OwnedKeys) -> None:
        for partition, epoch in keys.owner_epochs.items():
            NOTES.append(("lost", self.name, partition, epoch))

    def who(self) -> list[Any]:
        call = slotmesh.context()
        assert call.partition is not None
        assert call.owner_epoch is not None
        NOTES.append(("call", self.name, call.partition, call.owner_epoch))
        return [call.replica_id, call.backend, call.partition, call.owner_epoch]


def assert_in_step(killed: str = "") -> None:
    """Each owner is told before its first call and after its last one, and its epoch is greater than all before."""
    owner: dict[int, tuple[str, int]] = {}
    newest: dict[int, int] = {}
    for what, name, partition, epoch in NOTES:
        held = owner.get(partition)
        if what == "gained":
            assert held is None or held[0] == killed, f"{partition} has the owner {held}, and {name} gains it"
            assert epoch > newest.get(partition, 0), "a fencing token grows"
            owner[partition], newest[partition] = (name, epoch), epoch
        else:
            assert held == (name, epoch), f"{what} of {partition} at {name}, {epoch}, owned by {held}"
            if what == "lost":
                del owner[partition]


async def call_until(lanes: list[Any], over: asyncio.Event) -> None:
    while not over.is_set():
        await asyncio.gather(*(lane.who() for lane in lanes))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [NotingOnTheLoop, NotingInThreads], ids=["async", "def"])
async def test_owners_are_told_in_step_with_calls_while_replicas_scale_drain_and_die(kind: type) -> None:
    over = asyncio.Event()
    async with running_mesh({"n": Backend(kind, num_replicas=2)}) as mesh:
        lanes = [mesh.endpoint("n").options(idempotent=True, timeout=60).ordered(key) for key in KEYS]
        calling = asyncio.create_task(call_until(lanes, over))
        for replicas in (4, 2):
            await mesh.apply({"n": Backend(kind, num_replicas=replicas)})
            seen = len(NOTES)
            await wait_until(lambda since=seen: len(NOTES) > since + 200, timeout=30, what="calls go on")  # type: ignore[misc]
        assert {what for what, *_ in NOTES} == {"gained", "call", "lost"}
        await mesh.drain_replica(mesh.replica_ids("n")[0])
        await mesh.wait_ready()
        victim = mesh.replica_ids("n")[0]
        killed = mesh.instance(victim).name
        await mesh.kill_replica(victim)
        await mesh.wait_ready()
        over.set()
        await calling
    assert_in_step(killed)
    gained = {(name, partition, epoch) for what, name, partition, epoch in NOTES if what == "gained"}
    lost = {(name, partition, epoch) for what, name, partition, epoch in NOTES if what == "lost"}
    assert {each for each in gained - lost if each[0] != killed} == set(), "who drains in order is told of every loss"


async def test_the_context_names_the_replica_and_the_owner_of_the_key() -> None:
    async with running_mesh({"n": NotingOnTheLoop}) as mesh:
        (replica_id,) = mesh.replica_ids("n")
        first = await mesh.endpoint("n").ordered("ada").who()
        assert first[:3] == [replica_id, "n", partition_of("ada")]
        assert first[3] >= 1
        await mesh.kill_replica(replica_id)
        await mesh.wait_ready()
        second = await mesh.endpoint("n").ordered("ada").who()
        assert second[0] in mesh.replica_ids("n")
        assert second[3] > first[3]


@slotmesh.deployment
class Asked:
    """What a call without a key can know."""

    async def fields(self) -> list[Any]:
        call = slotmesh.context()
        return [call.replica_id, call.backend, call.partition, call.owner_epoch]


async def test_a_call_without_a_key_has_no_owner_and_one_in_a_slot_neither() -> None:
    async with running_mesh({"n": Asked}) as mesh:
        (replica_id,) = mesh.replica_ids("n")
        assert await mesh.endpoint("n").fields() == [replica_id, "n", None, None]
        async with mesh.endpoint("n").reserve() as slot:
            assert await slot.fields() == [replica_id, "n", None, None]
        async with mesh.endpoint("n").direct(1) as lanes:
            assert await lanes.fields() == [replica_id, "n", None, None]


async def test_a_handler_without_a_mesh_has_keys_and_an_owner_in_tests() -> None:
    with call_context(ordering_key="ada") as call:
        assert (call.partition, call.owner_epoch) == (partition_of("ada"), 1)
    assert make_context().owner_epoch is None
    assert make_context(ordering_key="ada", owner_epoch=5, replica_id="r", backend="b").owner_epoch == 5
    async with hosted(Asked) as asked:
        replica_id, backend, partition, owner_epoch = await asked.ordered("ada").fields()
        assert (partition, isinstance(owner_epoch, int)) == (partition_of("ada"), True)
        assert isinstance(replica_id, str)
        assert isinstance(backend, str)
        assert (await asked.fields())[2:] == [None, None]


async def test_the_test_kit_of_one_handler_gains_and_loses_its_keys() -> None:
    async with hosted(NotingOnTheLoop) as noting:
        await noting.ordered("ada").who()
        await noting.ordered("ada").who()
    assert [what for what, *_ in NOTES] == ["gained", "call", "call", "lost"]


class Raised(BaseException):
    """Of a hook that raises what nothing else catches."""


@slotmesh.deployment
class Failing:
    """Its hooks fail in the ways that there are."""

    how = "raises"

    def on_keys_gained(self, keys: slotmesh.OwnedKeys) -> None:
        if self.how == "exits":
            raise SystemExit(3)
        if self.how == "raises":
            raise Raised(f"of {keys.endpoint}")

    on_keys_lost = on_keys_gained

    async def echo(self, value: int) -> int:
        return value


@pytest.mark.parametrize("how", ["raises", "exits"])
async def test_a_hook_that_raises_is_logged_and_its_calls_go_on(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Failing, "how", how)
    with caplog.at_level(logging.ERROR):
        async with running_mesh({"n": Failing}) as mesh:
            assert await mesh.endpoint("n").ordered("ada").echo(1) == 1
            await mesh.drain_replica(mesh.replica_ids("n")[0])
            await mesh.wait_ready()
            assert await mesh.endpoint("n").ordered("ada").echo(2) == 2
    assert "on_keys_gained raised" in caplog.text
    assert "on_keys_lost raised" in caplog.text
