"""What every store does. Add an implementation to `STORES`, and it is held to all of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TypeAlias

import pytest
import pytest_asyncio

from controller_service.core.desired.revisions import ChangeOrigin
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.partition_owners import Incarnation, PartitionOwnership
from controller_service.store.etcd.store import EtcdCandidacy
from controller_service.store.protocol import Conflict, LeadershipLost, MemoryStore, Store
from controller_service.store.sqlite.store_thread import SqliteStore
from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.config.etcd import PLAIN_ACCESS
from slotmesh.spec.model import Backend, Endpoint, TrafficPolicy
from tests.support.etcd import etcd_cluster, needs_etcd
from tests.support.state_changes import random_change
from tests.support.wait import wait_until

OpenStore: TypeAlias = Callable[[], Awaitable[Store]]


def new() -> tuple[str, Desired]:
    return "0" * 32, Desired(epoch_floor=41)


@asynccontextmanager
async def in_memory(_folder: Path) -> AsyncIterator[OpenStore]:
    async def opened() -> Store:
        return MemoryStore(generation="0" * 32, epoch_floor=41)

    yield opened


@asynccontextmanager
async def in_a_file(folder: Path) -> AsyncIterator[OpenStore]:
    yield lambda: SqliteStore.open(folder / "state", new)


@asynccontextmanager
async def in_etcd(folder: Path) -> AsyncIterator[OpenStore]:
    async with etcd_cluster(folder) as cluster:

        async def opened() -> Store:
            store = await EtcdCandidacy(cluster.place(), PLAIN_ACCESS, new).try_to_lead()
            assert store is not None
            return store

        yield opened


STORES = {"memory": in_memory, "sqlite": in_a_file, "etcd": in_etcd}
LASTING = ("sqlite", pytest.param("etcd", marks=needs_etcd))
"""Those that outlive their controller."""

V1 = Backend(name="v1", handler="app:One", user_config={"k": 3, "deep": [1, {"a": None}]})
DIGITS = Endpoint(name="digits", traffic=TrafficPolicy(weights={"v1": 1.0}))
OWNED = PartitionOwnership(
    owners=(Incarnation("a", "1" * 32),),
    partition_owners=(0,) * PARTITIONS,
    epochs=tuple(range(100, 100 + PARTITIONS)),
)


@pytest_asyncio.fixture(params=["memory", *LASTING])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with STORES[request.param](tmp_path) as opened:
        made = await opened()
        yield made
        await made.close()


@pytest.mark.asyncio
async def test_what_was_committed_is_read(store: Store) -> None:
    assert store.read() == Desired(revision=store.read().revision, epoch_floor=41)
    change = ChangeSet(put_backends=(V1,), put_endpoints=(DIGITS,), put_ownership={"digits": OWNED})
    committed = await store.commit(change, expected_revision=store.read().revision)
    assert store.read() == committed
    assert committed.backends == {"v1": V1}
    assert committed.endpoints == {"digits": DIGITS}
    assert committed.ownership == {"digits": OWNED}


@pytest.mark.asyncio
async def test_every_commit_takes_a_revision_an_empty_one_too(store: Store) -> None:
    revisions = [store.read().revision]
    for change in (ChangeSet(put_backends=(V1,)), ChangeSet(), ChangeSet(delete_backends=("v1",))):
        revisions.append((await store.commit(change, expected_revision=revisions[-1])).revision)
    assert revisions == sorted(set(revisions))


@pytest.mark.asyncio
async def test_listeners_are_called_for_each_commit_before_it_returns(store: Store) -> None:
    calls: list[tuple[int, int, str]] = []
    store.listen(lambda before, after, origin: calls.append((before.revision, after.revision, origin.who)))
    first = store.read().revision
    for number in range(3):
        change = ChangeSet(put_backends=(V1,), origin=ChangeOrigin(who=f"caller {number}"))
        committed = await store.commit(change, expected_revision=first + number)
        assert calls[-1] == (first + number, committed.revision, f"caller {number}")
    with pytest.raises(Conflict):
        await store.commit(ChangeSet(), expected_revision=first)
    assert len(calls) == 3


@pytest.mark.asyncio
async def test_a_change_of_another_revision_is_refused_as_a_whole(store: Store) -> None:
    before = store.read().revision
    await store.commit(ChangeSet(put_backends=(V1,)), expected_revision=before)
    now = store.read()
    with pytest.raises(Conflict) as conflict:
        await store.commit(ChangeSet(put_endpoints=(DIGITS,), delete_backends=("v1",)), expected_revision=before)
    assert (conflict.value.expected_revision, conflict.value.actual_revision) == (before, now.revision)
    assert store.read() == now


@pytest.mark.asyncio
async def test_of_many_that_change_one_revision_exactly_one_wins(store: Store) -> None:
    before = store.read().revision
    attempts = [
        store.commit(ChangeSet(put_backends=(Backend(name=f"b{number}"),)), expected_revision=before)
        for number in range(10)
    ]
    results = await asyncio.gather(*attempts, return_exceptions=True)
    assert sum(isinstance(it, Desired) for it in results) == 1
    assert sum(isinstance(it, Conflict) for it in results) == 9
    assert len(store.read().backends) == 1


@pytest.mark.asyncio
async def test_a_reader_keeps_what_it_read(store: Store) -> None:
    before = store.read()
    await store.commit(ChangeSet(put_backends=(V1,)), expected_revision=before.revision)
    assert before.backends == {}


@pytest.mark.asyncio
async def test_epochs_of_a_deleted_endpoint_are_never_given_again(store: Store) -> None:
    first = await store.commit(
        ChangeSet(put_endpoints=(DIGITS,), put_ownership={"digits": OWNED}), expected_revision=store.read().revision
    )
    gone = await store.commit(ChangeSet(delete_endpoints=("digits",)), expected_revision=first.revision)
    assert gone.ownership == {}
    assert gone.epoch_floor == max(OWNED.epochs)


@pytest.mark.asyncio
async def test_watching_yields_the_newest_and_ends_with_the_store(store: Store) -> None:
    revision = store.read().revision
    start, seen = revision, list[int]()

    async def watch() -> None:
        async for desired in store.watch(after_revision=start):
            seen.append(desired.revision)

    watching = asyncio.create_task(watch())
    for _ in range(3):
        revision = (await store.commit(ChangeSet(), expected_revision=revision)).revision
    await wait_until(lambda: seen and seen[-1] == revision, what="the newest revision")
    await store.close()
    async with asyncio.timeout(20.0):
        await watching
    assert seen == sorted(set(seen))


@pytest.mark.asyncio
async def test_a_late_watcher_starts_with_what_is_there(store: Store) -> None:
    committed = await store.commit(ChangeSet(put_backends=(V1,)), expected_revision=store.read().revision)
    watching = store.watch(after_revision=-1)
    assert await anext(watching) == committed
    await watching.aclose()


@pytest.mark.asyncio
async def test_the_generation_is_an_identity(store: Store) -> None:
    assert len(store.generation) == 32
    assert store.generation == store.generation.lower()


@pytest.mark.parametrize("kind", LASTING)
@pytest.mark.asyncio
async def test_a_generation_begins_with_all_that_was_acknowledged(kind: str, tmp_path: Path) -> None:
    async with STORES[kind](tmp_path) as opened:
        store = await opened()
        before = store.read()
        change = ChangeSet(put_backends=(V1,))
        acknowledged, refused = await asyncio.gather(
            store.commit(change, expected_revision=before.revision),
            store.begin_generation("1" * 32, before, expected_revision=before.revision),
            return_exceptions=True,
        )
        assert isinstance(acknowledged, Desired)
        assert isinstance(refused, Conflict)
        assert store.read() == acknowledged
        await store.begin_generation("1" * 32, acknowledged, expected_revision=acknowledged.revision)
        with pytest.raises(LeadershipLost):
            await store.commit(ChangeSet(), expected_revision=acknowledged.revision)
        await store.close()
        after = await opened()
        assert (after.generation, after.read().backends) == ("1" * 32, {"v1": V1})
        await after.close()


@pytest.mark.parametrize("kind", LASTING)
@pytest.mark.asyncio
async def test_each_start_finds_all_of_it_under_a_later_term_and_revision(kind: str, tmp_path: Path) -> None:
    async with STORES[kind](tmp_path) as opened:
        seen = Desired(epoch_floor=41)
        for number in range(4):
            store = await opened()
            found = store.read()
            assert (store.term, found) == (number + 1, replace(seen, revision=found.revision))
            assert found.revision > seen.revision
            assert len(found.terms) == number + 1
            for seed in range(5):
                change = random_change(Random(10 * number + seed), store.read())
                await store.commit(change, expected_revision=store.read().revision)
            seen = store.read()
            await store.close()


@pytest.mark.parametrize("kind", LASTING)
@pytest.mark.asyncio
async def test_a_change_whose_caller_left_is_applied_with_a_call_of_listeners_or_not_at_all(
    kind: str, tmp_path: Path
) -> None:
    async with STORES[kind](tmp_path) as opened:
        store = await opened()
        calls: list[tuple[int, int]] = []
        store.listen(lambda before, after, _origin: calls.append((before.revision, after.revision)))
        first = store.read().revision
        for number in range(20):
            change = ChangeSet(put_backends=(Backend(name=f"b{number}"),))
            committing = asyncio.create_task(store.commit(change, expected_revision=store.read().revision))
            for _ in range(number):
                await asyncio.sleep(0)
            committing.cancel()
            with suppress(asyncio.CancelledError, Conflict):
                await committing
        while True:
            with suppress(Conflict):
                await store.commit(ChangeSet(), expected_revision=store.read().revision)
                break
        assert [it for it, _ in calls] == [first, *(it for _, it in calls[:-1])]
        assert len(store.read().backends) == len(calls) - 1
        assert calls[-1][1] == store.read().revision
        await store.close()
