"""The state in etcd: changes that exceed a request, answers that are lost, keys and leases that others touch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.store.etcd import etcd_state, layout
from controller_service.store.etcd.client import RPC_S, Compacted, EtcdClient, EtcdFailed
from controller_service.store.etcd.etcd_state import EtcdState
from controller_service.store.etcd.moving import create_state, read_state
from controller_service.store.etcd.operations import Delete, Get, Is, KeyOperation, Put, TxnResult
from controller_service.store.protocol import Conflict, LeadershipLost, StateInUse, StateRefused, StoreWriteFailed
from slotmesh.config.etcd import PLAIN_ACCESS, EtcdPlace
from slotmesh.spec.model import Backend, JsonValue
from tests.support.controllers import eventually
from tests.support.etcd import EtcdCluster, etcd_cluster, needs_etcd
from tests.support.state_changes import random_change
from tests.support.wait import wait_until, within

pytestmark = [needs_etcd, pytest.mark.asyncio]
V1 = ChangeSet(put_backends=(Backend(name="v1"),))
V2 = ChangeSet(put_backends=(Backend(name="v2"),))
MIB = 1024 * 1024


class FaultyClient(EtcdClient):
    """Fails one transaction: before it is carried out, or after."""

    fails_in = -1
    """After this number of transactions; negative: never."""
    is_carried_out = False
    is_over = False
    """Since the failure nothing is sent: the process has ended."""
    ends = True

    async def txn(
        self,
        conditions: Sequence[Is],
        then: Sequence[KeyOperation],
        otherwise: Sequence[Get] = (),
        *,
        within_s: float = RPC_S,
    ) -> TxnResult:
        failed = EtcdFailed("the connection broke", is_unwritten=False, is_refused=False)
        if self.is_over:
            raise failed
        self.fails_in -= 1
        if self.fails_in != -1:
            return await super().txn(conditions, then, otherwise, within_s=within_s)
        self.is_over = self.ends
        if self.is_carried_out:
            await super().txn(conditions, then, otherwise, within_s=within_s)
        raise failed


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EtcdCluster]:
    async with etcd_cluster(tmp_path) as running:
        yield running


@pytest_asyncio.fixture
async def client(cluster: EtcdCluster) -> AsyncIterator[FaultyClient]:
    connected = FaultyClient(cluster.place().members, PLAIN_ACCESS)
    yield connected
    await connected.close()


def new() -> tuple[str, Desired]:
    return "a" * 32, Desired()


async def opened(client: EtcdClient, place: EtcdPlace) -> EtcdState:
    return await EtcdState.open(client, place, new)


async def ended(client: FaultyClient, state: EtcdState) -> None:
    """As if its process had been killed, and its lease had lapsed."""
    client.is_over = False
    client.fails_in = -1
    await state.release()


def small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "MAX_BYTES", 8 * 1024)
    monkeypatch.setattr(layout, "PART_BYTES", 1024)
    monkeypatch.setattr(layout, "MAX_OPERATIONS", 12)


@pytest.mark.parametrize("is_carried_out", [False, True])
async def test_a_large_change_is_there_as_a_whole_or_not_at_all_wherever_its_writer_ends(
    is_carried_out: bool, cluster: EtcdCluster, client: FaultyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_requests(monkeypatch)
    monkeypatch.setattr(etcd_state, "PATIENCE_S", 0.0)
    place = cluster.place()
    outcomes: list[bool] = []
    for fails_in in range(-1, 100):  # the first one has no fault
        state = await opened(client, place)
        before = state.desired
        content: dict[str, JsonValue] = {"n": 100 + fails_in, "x": "y" * 3000}
        backends = tuple(Backend(name=f"b{it}", user_config=content) for it in range(6))
        change = ChangeSet(put_backends=backends)
        client.fails_in, client.is_carried_out = fails_in, is_carried_out
        acknowledged = True
        try:
            await state.commit(change, before.revision)
        except StoreWriteFailed:
            acknowledged = False
        is_complete = not client.is_over and fails_in >= 0
        await ended(client, state)
        found = (await read_state(place, PLAIN_ACCESS))[1]
        after = before.apply(change)
        assert found in (before, after), "a reader sees the one or the other"
        assert found == after or not acknowledged, "what was acknowledged is there"
        if fails_in >= 0:
            outcomes.append(found == after)
        next_one = await opened(client, place)
        assert next_one.desired == replace(found, revision=found.revision + 1)
        await ended(client, next_one)
        keys = cluster.keys(place.prefix)
        assert not [it for it in keys if "/journal/" in it], "the next controller leaves nothing of it"
        assert "journal" not in json.loads(keys[f"{place.prefix}head"])
        if is_complete:
            break
    assert outcomes == sorted(outcomes), "from one request on it is in force"
    assert len(outcomes) > 8
    assert {True, False} == {*outcomes}


async def test_documents_of_the_largest_size_are_stored(cluster: EtcdCluster, client: FaultyClient) -> None:
    state = await opened(client, cluster.place())
    large = Backend(name="large", user_config={"x": "y" * (4 * MIB - 100)})
    await state.commit(ChangeSet(put_backends=(large,)), 1)
    await state.commit(ChangeSet(put_backends=(replace(large, user_config={}),)), 2)
    await state.commit(V1, 3)
    assert (await read_state(cluster.place(), PLAIN_ACCESS))[1] == state.desired
    assert not [it for it in cluster.keys(cluster.place().prefix) if "/rows/backend/large#" in it], (
        "later parts are gone"
    )
    await state.release()
    again = await opened(client, cluster.place())
    assert again.desired == replace(state.desired, revision=5)
    await again.release()


async def test_any_sequence_of_changes_is_read_as_it_was_written(
    cluster: EtcdCluster, client: FaultyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_requests(monkeypatch)
    state, random = await opened(client, cluster.place()), Random(7)
    for number in range(60):
        await state.commit(random_change(random, state.desired), state.desired.revision)
        if number % 10 == 0:
            assert (await read_state(cluster.place(), PLAIN_ACCESS)) == ("a" * 32, state.desired)
    await state.release()


@pytest.mark.parametrize("is_carried_out", [False, True])
async def test_a_change_whose_answer_was_lost_is_applied_once(
    is_carried_out: bool, cluster: EtcdCluster, client: FaultyClient
) -> None:
    state = await opened(client, cluster.place())
    client.ends, client.fails_in, client.is_carried_out = False, 0, is_carried_out
    await state.commit(V1, 1)
    assert (state.desired.revision, set(state.desired.backends)) == (2, {"v1"})
    assert (await read_state(cluster.place(), PLAIN_ACCESS))[1] == state.desired
    await state.release()


@pytest.mark.parametrize("is_carried_out", [False, True])
async def test_a_change_of_unknown_outcome_is_found_out_before_the_next(
    is_carried_out: bool, cluster: EtcdCluster, client: FaultyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_state, "PATIENCE_S", 0.0)
    state = await opened(client, cluster.place())
    client.fails_in, client.is_carried_out = 0, is_carried_out
    with pytest.raises(StoreWriteFailed) as failed:
        await state.commit(V1, 1)
    assert not failed.value.is_unwritten
    assert state.desired.revision == 1
    assert "the connection broke" in state.problem
    client.is_over = False
    if is_carried_out:
        with pytest.raises(Conflict):
            await state.commit(V2, 1)
        assert set(state.desired.backends) == {"v1"}
    await state.commit(V2, state.desired.revision)
    assert set(state.desired.backends) == ({"v1", "v2"} if is_carried_out else {"v2"})
    assert not state.problem
    assert (await read_state(cluster.place(), PLAIN_ACCESS))[1] == state.desired
    await state.release()


async def test_a_write_that_arrives_late_changes_nothing(cluster: EtcdCluster, client: FaultyClient) -> None:
    """It was sent, and its sender found out meanwhile that it had not been carried out."""
    state = await opened(client, cluster.place())
    keys = layout.Layout(cluster.place().prefix)
    late = [*state._conditions()], [Put(keys.head, b"late")]
    await state._settle()
    assert not (await client.txn(*late)).is_met
    await state.commit(V1, 1)
    await state.release()


async def test_nothing_is_written_from_the_moment_at_which_another_controller_has_the_key(
    cluster: EtcdCluster, client: FaultyClient
) -> None:
    """It reads the state only then, and has not written to it yet."""
    state = await opened(client, cluster.place())
    await client.revoke(state._lease.identity)
    other = await EtcdState.hold(client, cluster.place())
    with pytest.raises(LeadershipLost):
        await state.commit(V1, 1)
    assert not (await read_state(cluster.place(), PLAIN_ACCESS))[1].backends
    for each in (other, state):
        await each.release()


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_leader_whose_lease_lapsed_leads_on_unless_another_one_has_led(
    is_known: bool, cluster: EtcdCluster, client: FaultyClient
) -> None:
    state = await opened(client, cluster.place())
    await client.revoke(state._lease.identity)
    if is_known:
        await wait_until(lambda: state._lease.has_lapsed, what="it finds out")
    await state.commit(V1, 1)
    assert await state.check() == ()
    assert state.term == 1
    await client.revoke(state._lease.identity)
    other = await opened(client, cluster.place())
    assert (other.term, set(other.desired.backends)) == (2, {"v1"})
    await other.release()
    for attempt in (state.check(), state.commit(V2, 2), state.check()):
        with pytest.raises(LeadershipLost, match="was taken over by"):
            await attempt
    assert set((await read_state(cluster.place(), PLAIN_ACCESS))[1].backends) == {"v1"}
    await state.release()


async def test_a_watch_continues_from_a_revision_on_or_reports_that_it_was_compacted(
    cluster: EtcdCluster, client: FaultyClient
) -> None:
    put = [await client.txn([], [Put(b"/k", b"%d" % number)]) for number in range(4)]
    async with asyncio.timeout(20.0), aclosing(client.watch(b"/k", put[1].revision)) as watching:
        seen: list[bytes] = []
        async for changes in watching:
            seen += [it.value for it in changes.put]
            if len(seen) == 2:
                break
    assert seen == [b"2", b"3"]
    await asyncio.to_thread(cluster.members[0].post, "kv/compaction", {"revision": put[3].revision})
    watching = client.watch(b"/k", put[1].revision)
    with pytest.raises(Compacted):
        await within(anext(watching), "the end of the watch")


async def test_a_second_controller_is_refused_with_the_name_of_the_first(
    cluster: EtcdCluster, client: FaultyClient
) -> None:
    state = await opened(client, cluster.place())
    state.serving_at("10.0.0.1:7070")
    await state.check()
    with pytest.raises(StateInUse, match=r"is in use by the controller at 10\.0\.0\.1:7070 \(.*, pid \d+\)"):
        await opened(client, cluster.place())
    other = await opened(client, cluster.place("other"))
    await other.commit(V2, 1)
    assert not state.desired.backends, "another mesh has other keys"
    for each in (other, state):
        await each.release()


@pytest.mark.parametrize("key", ["head", "leader"])
async def test_keys_that_someone_deleted_are_noticed(key: str, cluster: EtcdCluster, client: FaultyClient) -> None:
    state = await opened(client, cluster.place())
    await client.txn([], [Delete(f"{cluster.place().prefix}{key}".encode())])
    if key == "leader":
        await state.commit(V1, 1)
    else:
        with pytest.raises(StoreWriteFailed, match=r"its keys are gone|no head"):
            await state.commit(V1, 1)
    await state.release()


REFUSED = {
    "another format": ("head", b'{"format": 2}', "another version of slotmesh"),
    "no head": ("head", b"nonsense", "the state is damaged"),
    "a row": ("rows/backend/v1", b"1 7\n{}", "the checksum of backend v1 is wrong"),
    "a part": ("rows/backend/v1", b"3 7\n{}", "is missing"),
    "a kind": ("rows/nonsense/v1", b"1 0\n{}", "nonsense"),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_cannot_be_read_is_refused_and_left_alone(
    what: str, cluster: EtcdCluster, client: FaultyClient
) -> None:
    key, value, reason = REFUSED[what]
    place = cluster.place()
    state = await opened(client, place)
    await state.commit(V1, 1)
    await state.release()
    await client.txn([], [Put(f"{place.prefix}{key}".encode(), value)])
    before = cluster.keys(place.prefix)
    with pytest.raises(StateRefused, match=reason):
        await read_state(place, PLAIN_ACCESS)
    with pytest.raises(Exception, match=reason if what != "no head" else "head"):
        await opened(client, place)
    assert cluster.keys(place.prefix) == before


async def test_a_state_is_created_once(cluster: EtcdCluster, client: FaultyClient) -> None:
    place = cluster.place()
    with pytest.raises(StateRefused, match="there is no state"):
        await read_state(place, PLAIN_ACCESS)
    desired = Desired(revision=41).apply(V1)
    await create_state(place, PLAIN_ACCESS, "b" * 32, desired)
    assert await read_state(place, PLAIN_ACCESS) == ("b" * 32, desired)
    with pytest.raises(StateRefused, match="there is a state already"):
        await create_state(place, PLAIN_ACCESS, "c" * 32, desired)
    state = await opened(client, place)
    assert (state.generation, state.term, state.desired.revision) == ("b" * 32, 1, 43)
    with pytest.raises(StateRefused, match="is in use by"):
        await create_state(place, PLAIN_ACCESS, "c" * 32, desired)
    await state.release()


async def test_a_state_that_is_read_is_one_revision_though_it_is_compacted_meanwhile(
    cluster: EtcdCluster, client: FaultyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller_service.store.etcd.client.PAGE_KEYS", 2)
    state = await opened(client, cluster.place())
    for number in range(10):
        change = ChangeSet(put_backends=tuple(Backend(name=f"b{it}", user_config={"n": number}) for it in range(8)))
        await state.commit(change, state.desired.revision)

    async def compact() -> None:
        member = cluster.members[0]
        change = ChangeSet(put_backends=(Backend(name="b7"),))
        await state.commit(change, state.desired.revision)
        status = await asyncio.to_thread(member.status)
        request = {"revision": status["header"]["revision"]}
        await asyncio.to_thread(member.post, "kv/compaction", request)

    async def read() -> bool:
        compacting = asyncio.create_task(compact())
        found = (await read_state(cluster.place(), PLAIN_ACCESS))[1]
        await compacting
        assert len(found.backends) == 8
        return found.revision > 30

    await eventually(read, what="reads of revisions that go")
    await state.release()
