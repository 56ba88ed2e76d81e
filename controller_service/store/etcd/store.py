"""A store in etcd, for the event loop, and how a controller comes to lead with it.

Invariants: one task works on the state, one step at a time, in the order in which steps were asked for; what is read is
what etcd has acknowledged. A change goes on if its caller is cancelled. Events are not kept: they end with the process.
Owner: the event loop that it was opened on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, TypeVar

from controller_service.core.desired.revisions import UNKNOWN_ORIGIN, ChangeOrigin
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.store.etcd.client import LOOK_S, Compacted, EtcdClient, EtcdFailed
from controller_service.store.etcd.etcd_state import EtcdState, MakeState
from controller_service.store.etcd.layout import Layout, election_in, leader_in, note_of
from controller_service.store.etcd.lease import Elections, EtcdLease, process_name
from controller_service.store.etcd.moving import patient, refusals
from controller_service.store.etcd.operations import Delete, Get, Is, Put
from controller_service.store.protocol import (
    UNKNOWN_LEADER,
    EventStore,
    Leader,
    StateInUse,
    Store,
    StoreWriteFailed,
)
from slotmesh.config.etcd import EtcdAccess, EtcdPlace
from slotmesh.ids import new_id
from slotmesh.logs import get_logger
from slotmesh.runtime.backoff import WarningBackoff

NOTE_S: Final = 0.5
"""How often a leader looks whether etcd has elected, whatever else it does."""
TRY_S: Final = 0.25
"""When a standby that could not lead, or could not reach etcd, tries again."""
WATCH_S: Final = 0.5
"""How long a standby relies on a watch before it reads again: its member may hang or be cut off, and a watch does not
report elections."""

ResultT = TypeVar("ResultT")
_log = get_logger(__name__)


class EtcdStore(Store):
    """The store in etcd."""

    def __init__(self, client: EtcdClient, state: EtcdState) -> None:
        """Owns both."""
        super().__init__(state.generation, state.term, state.desired, EventStore())
        self._client = client
        self._state = state
        self._steps: asyncio.Queue[tuple[Callable[[], Awaitable[Any]], asyncio.Future[Any]]] = asyncio.Queue()
        self._working = asyncio.create_task(self._work(), name="etcd-state")
        self._noting = asyncio.create_task(self._note_elections(), name="etcd-elections")

    async def _check(self) -> tuple[Sequence[str], str]:
        return await self._step(self._checked), self._state.problem

    async def commit(self, change: ChangeSet, *, expected_revision: int) -> Desired:
        async def step() -> Desired:
            try:
                await self._state.commit(change, expected_revision)
                self._take(change.origin)
            except BaseException:
                self._take(UNKNOWN_ORIGIN)  # what was written before an error hid it
                self._check_due.set()
                raise
            return self._state.desired

        return await self._step(step)

    async def begin_generation(self, generation: str, desired: Desired, *, expected_revision: int) -> None:
        async def step() -> None:
            try:
                await self._state.begin_generation(generation, desired, expected_revision)
            finally:
                self._check_due.set()

        await self._step(step)

    def serving_at(self, address: str) -> None:
        self._state.serving_at(address)
        self._check_due.set()

    async def close(self) -> None:
        if self._is_closed:
            return
        self._end()
        await self.events.close()
        self._working.cancel()
        self._noting.cancel()
        await asyncio.gather(self._working, self._noting, return_exceptions=True)
        while not self._steps.empty():
            self._steps.get_nowait()[1].set_exception(_closed())
        await self._state.release()
        await self._client.close()

    async def _step(self, step: Callable[[], Awaitable[ResultT]]) -> ResultT:
        if self._is_closed:
            raise RuntimeError("the store is closed")
        done: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        self._steps.put_nowait((step, done))
        return await asyncio.shield(done)

    async def _work(self) -> None:
        while True:
            step, done = await self._steps.get()
            try:
                done.set_result(await step())
            except asyncio.CancelledError:
                done.set_exception(_closed())
                raise
            except BaseException as error:  # noqa: BLE001 - the caller's to handle
                done.set_exception(error)
                done.exception()  # a caller that was cancelled does not look at it

    async def _note_elections(self) -> None:
        wait_s = NOTE_S
        while True:
            await asyncio.sleep(wait_s)
            try:
                await self._state.note_election()
                wait_s = NOTE_S
            except EtcdFailed:  # the next check reports it
                wait_s = TRY_S

    async def _checked(self) -> tuple[str, ...]:
        waiting = await self._state.check()
        self._take(UNKNOWN_ORIGIN)
        return waiting

    def _take(self, origin: ChangeOrigin) -> None:
        if self._state.desired.revision > self._desired.revision:
            self._set(self._state.desired, origin)


def _closed() -> StoreWriteFailed:
    return StoreWriteFailed("the store was closed meanwhile", is_unwritten=False)


class EtcdCandidacy:
    """Implements `Candidacy`: a key that is bound to a lease, which lapses when the leader's process ends."""

    def __init__(self, place: EtcdPlace, access: EtcdAccess, make_state: MakeState) -> None:
        """`make_state` gives generation and state where there is none yet."""
        self._place = place
        self._access = access
        self._make_state = make_state
        self._keys = Layout(place.prefix)
        self._leader = UNKNOWN_LEADER

    @property
    def leader(self) -> Leader:
        return self._leader

    async def try_to_lead(self) -> EtcdStore | None:
        client = EtcdClient(self._place.members, self._access)
        try:
            return await patient(self._place, lambda: self._open(client, self._make_state, ""))
        except StateInUse as refusal:
            self._leader = refusal.leader
            await client.close()
            return None
        except BaseException:
            await client.close()
            raise

    async def wait_to_lead(self, address: str) -> EtcdStore:
        client = EtcdClient(self._place.members, self._access)
        note: EtcdLease | None = None
        warnings, elections = WarningBackoff(), Elections()
        try:
            while True:
                try:
                    if note is None or note.has_lapsed:
                        note = await self._noted(client, address)
                    found = await client.txn([], [Get(self._keys.leader)], within_s=LOOK_S)
                    if not found.found[0]:
                        # A state that was there and is gone is no reason to begin an empty one.
                        return await self._open(client, None, address)
                    holder = found.found[0][0]
                    self._leader = leader_in(holder.value)
                    if elections.is_overdue(
                        election_in(holder.value), client.election, asyncio.get_running_loop().time()
                    ):
                        _log.warning("the leading controller is silent since etcd elected", leader=self._leader.name)
                        unchanged = Is(self._keys.leader, modified=holder.modified)
                        await client.txn([unchanged], [Delete(self._keys.leader)])
                        continue
                    await self._followed(client, found.revision, note)
                    continue
                except StateInUse as refusal:
                    self._leader = refusal.leader
                except EtcdFailed as failed:
                    elections = Elections()  # the leading controller may not have reached etcd either
                    if warnings.take(asyncio.get_running_loop().time()) is not None:
                        _log.warning("this standby cannot look who leads", reason=str(failed))
                await asyncio.sleep(TRY_S)
        except BaseException:
            if note is not None:
                await note.release()
                note = None
            await client.close()
            raise
        finally:
            if note is not None:
                await note.release()

    async def _followed(self, client: EtcdClient, revision: int, note: EtcdLease) -> None:
        """Follows the leader's key from a revision on until it is gone, or has to be read anew. Raises EtcdFailed."""
        with suppress(TimeoutError, Compacted):
            async with asyncio.timeout(WATCH_S), aclosing(client.watch(self._keys.leader, revision)) as watching:
                async for changes in watching:
                    if changes.deleted or note.has_lapsed:
                        return
                    for each in changes.put:
                        self._leader = leader_in(each.value)

    async def _noted(self, client: EtcdClient, address: str) -> EtcdLease:
        note = await EtcdLease.grant(client)
        try:
            content = note_of(address, process_name())
            await client.txn([], [Put(self._keys.standbys + new_id(8).encode(), content, note.identity)])
        except BaseException:
            await note.release()
            raise
        return note

    async def _open(self, client: EtcdClient, make_state: MakeState | None, address: str) -> EtcdStore:
        with refusals(self._place):
            return EtcdStore(client, await EtcdState.open(client, self._place, make_state, address))
