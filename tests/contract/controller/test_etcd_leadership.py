"""Who may write a state in etcd whose keys, leases or revisions are not what its leader left."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.store.etcd.client import RPC_S, EtcdClient, EtcdFailed
from controller_service.store.etcd.etcd_state import EtcdState
from controller_service.store.etcd.layout import Layout, election_in, note_of
from controller_service.store.etcd.moving import read_state
from controller_service.store.etcd.operations import Get, Is, KeyOperation, Kv, Put, TxnResult
from controller_service.store.etcd.store import EtcdCandidacy, EtcdStore
from controller_service.store.protocol import LeadershipLost, StoreWriteFailed
from slotmesh.config.etcd import PLAIN_ACCESS
from slotmesh.ids import new_id
from slotmesh.spec.model import Backend
from tests.support.controllers import eventually
from tests.support.etcd import EtcdCluster, etcd_cluster, needs_etcd
from tests.support.wait import within

pytestmark = [needs_etcd, pytest.mark.asyncio]


class InterruptedClient(EtcdClient):
    """Carries out one transaction whose response is lost, and has something happen then, or before a read."""

    after_txn: Callable[[], Awaitable[None]] | None = None
    before_read: Callable[[], Awaitable[None]] | None = None

    async def txn(
        self,
        conditions: Sequence[Is],
        then: Sequence[KeyOperation],
        otherwise: Sequence[Get] = (),
        *,
        within_s: float = RPC_S,
    ) -> TxnResult:
        result = await super().txn(conditions, then, otherwise, within_s=within_s)
        if (happens := self.after_txn) is not None:
            self.after_txn = None
            await happens()
            raise EtcdFailed("the connection broke", is_unwritten=False, is_refused=False)
        return result

    async def read(self, prefix: bytes) -> tuple[int, list[Kv]]:
        if (happens := self.before_read) is not None:
            self.before_read = None
            await happens()
        return await super().read(prefix)


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EtcdCluster]:
    async with etcd_cluster(tmp_path) as running:
        yield running


@pytest_asyncio.fixture
async def client(cluster: EtcdCluster) -> AsyncIterator[InterruptedClient]:
    connected = InterruptedClient(cluster.place().members, PLAIN_ACCESS)
    yield connected
    await connected.close()


async def opened(client: EtcdClient, cluster: EtcdCluster) -> EtcdState:
    return await EtcdState.open(client, cluster.place(), lambda: (new_id(), Desired()))


async def put(state: EtcdState, name: str) -> None:
    await state.commit(ChangeSet(put_backends=(Backend(name=name),)), state.desired.revision)


async def stored(cluster: EtcdCluster) -> list[str]:
    return sorted((await read_state(cluster.place(), PLAIN_ACCESS))[1].backends)


async def another_leads(client: EtcdClient, cluster: EtcdCluster, before: EtcdState, *names: str) -> None:
    """It takes the state over, makes changes, and ends."""
    await client.revoke(before._lease.identity)
    connected = EtcdClient(cluster.place().members, PLAIN_ACCESS)
    other = await opened(connected, cluster)
    for each in names:
        await put(other, each)
    await other.release()
    await connected.close()


async def test_a_leader_writes_nothing_into_an_etcd_that_was_emptied_and_has_another_leader_at_the_same_revisions(
    cluster: EtcdCluster, client: InterruptedClient
) -> None:
    first = await opened(client, cluster)
    await put(first, "first")
    (member,) = cluster.members
    member.kill()
    shutil.rmtree(member.folder / member.name)
    cluster.start()
    await cluster.leader()
    connected = EtcdClient(cluster.place().members, PLAIN_ACCESS)
    second = await opened(connected, cluster)
    await put(second, "second")
    assert (first._fence, first._modified) == (second._fence, second._modified), "the case: equal revisions"
    with pytest.raises(LeadershipLost):
        await put(first, "late")
    await put(second, "more")
    assert await stored(cluster) == ["more", "second"]
    await first.release()
    await second.release()
    await connected.close()


async def test_a_leader_ends_when_etcd_is_restored_to_an_earlier_revision(
    cluster: EtcdCluster, client: InterruptedClient
) -> None:
    state = await opened(client, cluster)
    await put(state, "kept")
    (member,) = cluster.members
    data = member.folder / member.name
    member.kill()
    shutil.copytree(data, member.folder / "backup")
    cluster.start()
    await cluster.leader()
    await put(state, "later")
    before = state.desired
    member.kill()
    shutil.rmtree(data)
    shutil.copytree(member.folder / "backup", data)
    cluster.start()
    await cluster.leader()
    with pytest.raises(LeadershipLost, match=r"went back from revision 3 to 2.*start this controller again"):
        await put(state, "much later")
    with pytest.raises(LeadershipLost):
        await state.check()
    assert state.desired is before, "what was announced last is not replaced by what is older"
    await state.release()
    again = await opened(client, cluster)
    assert sorted(again.desired.backends) == ["kept"]
    assert again.desired.terms[-1] not in before.terms, "members see that it is not the one before"
    await again.release()


async def test_a_change_whose_answer_was_lost_before_another_controller_led_is_of_unknown_outcome(
    cluster: EtcdCluster, client: InterruptedClient
) -> None:
    state = await opened(client, cluster)
    client.after_txn = lambda: another_leads(client, cluster, state)
    with pytest.raises(LeadershipLost) as lost:
        await put(state, "x")
    assert await stored(cluster) == ["x"]
    assert not lost.value.is_unwritten
    await state.release()


async def test_a_generation_has_begun_though_the_answer_was_lost(
    cluster: EtcdCluster, client: InterruptedClient
) -> None:
    async def nothing() -> None: ...

    state = await opened(client, cluster)
    client.after_txn = nothing
    await state.begin_generation("b" * 32, Desired(revision=1), state.desired.revision)
    assert (await read_state(cluster.place(), PLAIN_ACCESS))[0] == "b" * 32
    with pytest.raises(LeadershipLost, match="begins generation"):
        await state.check()
    await state.release()


async def test_a_controller_that_led_while_the_state_was_read_is_not_overlooked(
    cluster: EtcdCluster, client: InterruptedClient
) -> None:
    async def other() -> None:
        await another_leads(client, cluster, state, "of another one")

    async def lost() -> None:
        client.before_read = other

    state = await opened(client, cluster)
    client.after_txn = lost
    with pytest.raises(LeadershipLost):
        await put(state, "own")
    assert "of another one" not in state.desired.backends
    with pytest.raises(LeadershipLost):
        await state.check()
    await state.release()


async def test_a_change_is_made_though_the_lease_lapsed_a_moment_ago(
    cluster: EtcdCluster, client: InterruptedClient
) -> None:
    state = await opened(client, cluster)
    await client.revoke(state._lease.identity)
    await put(state, "x")
    assert await stored(cluster) == ["x"]
    await state.release()


@pytest.mark.parametrize("is_carried_out", [False, True])
async def test_a_change_that_a_full_etcd_refuses_is_in_force_if_it_was_carried_out(
    is_carried_out: bool, cluster: EtcdCluster
) -> None:
    """With one write etcd becomes full: it carries it out, and refuses it. Concurrent writers of 24 MiB show that."""

    class FullClient(EtcdClient):
        is_full = False

        async def txn(
            self,
            conditions: Sequence[Is],
            then: Sequence[KeyOperation],
            otherwise: Sequence[Get] = (),
            *,
            within_s: float = RPC_S,
        ) -> TxnResult:
            if not (self.is_full and then and not isinstance(then[0], Get)):
                return await super().txn(conditions, then, otherwise, within_s=within_s)
            if is_carried_out:
                await super().txn(conditions, then, otherwise, within_s=within_s)
            error = grpc.aio.AioRpcError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                grpc.aio.Metadata(),
                grpc.aio.Metadata(),
                "etcdserver: mvcc: database space exceeded",
            )
            raise self._failure(error, 0)

    client = FullClient(cluster.place().members, PLAIN_ACCESS)
    state = await opened(client, cluster)
    client.is_full = True
    if is_carried_out:
        await put(state, "x")
    else:
        with pytest.raises(StoreWriteFailed, match=r"space exceeded.*compact and defragment") as refused:
            await put(state, "x")
        assert refused.value.is_unwritten
    assert await stored(cluster) == [*state.desired.backends] == ["x"] * is_carried_out
    client.is_full = False
    await put(state, "y")
    await state.release()
    await client.close()


async def test_a_standby_takes_the_key_of_a_leader_that_has_not_noted_an_election(
    cluster: EtcdCluster, client: InterruptedClient
) -> None:
    """Its lease has long to go."""
    await (await opened(client, cluster)).release()
    keys = Layout(cluster.place().prefix)
    lease = await client.grant(600)
    await client.txn([], [Put(keys.leader, note_of("127.0.0.1:1", "silent", client.election - 1), lease)])
    store = await within(candidacy(cluster).wait_to_lead("127.0.0.1:2"), "a standby that leads")
    assert store.term == 2
    await store.close()


async def test_a_leader_notes_elections_and_keeps_its_key(cluster: EtcdCluster, client: InterruptedClient) -> None:
    state = await opened(client, cluster)

    async def noted() -> int:
        (held,) = (await client.txn([], [Get(Layout(cluster.place().prefix).leader)])).found[0]
        assert held.created == state._fence
        return election_in(held.value)

    client.election += 1
    await state.check()
    assert await noted() == client.election
    client.election += 1
    await state.check()
    assert await noted() == client.election
    await put(state, "x")
    await state.release()


async def test_a_leader_notes_elections_while_a_change_waits(cluster: EtcdCluster, client: InterruptedClient) -> None:
    store = EtcdStore(client, await opened(client, cluster))
    waiting = asyncio.create_task(store._step(asyncio.Event().wait))
    client.election += 1
    keys = Layout(cluster.place().prefix)

    async def is_noted() -> bool:
        (held,) = (await client.txn([], [Get(keys.leader)])).found[0]
        return election_in(held.value) == client.election

    await eventually(is_noted, what="the note")
    await store.close()
    await asyncio.gather(waiting, return_exceptions=True)


def candidacy(cluster: EtcdCluster) -> EtcdCandidacy:
    return EtcdCandidacy(cluster.place(), PLAIN_ACCESS, lambda: (new_id(), Desired()))
