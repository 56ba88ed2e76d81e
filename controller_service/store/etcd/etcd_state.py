"""A mesh's state in etcd that this controller leads: reads it once, then writes each change, fenced.

Invariants: `desired` equals what etcd has, as far as answers have arrived; a start takes a revision and a term, as that
of a state file does. Each write compares the lease and the creating revision of `leader` with those of this controller
(`_lease`, `_fence`) and the revision that wrote `head` with the one that this controller saw (`_modified`). Revisions
alone would not do: an etcd that was emptied counts them from the beginning. So nothing of an earlier leader, and
nothing of this one that was sent before the head moved, is carried out late. After a write without an answer the state
is in doubt: the next step writes the head anew under the same comparison, which settles it: either that write, and no
earlier one any more, is carried out, or the earlier one was, and is read.
A leader whose lease has lapsed takes the key again if no other controller has it and the head has its own term: then no
other one has led since.
Owner: the store, which runs one method at a time, and `note_election` beside them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final, TypeAlias, TypeVar

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.store.etcd.client import LOOK_S, EtcdClient, EtcdFailed
from controller_service.store.etcd.layout import (
    Layout,
    RowChange,
    RowName,
    StoredHead,
    address_in,
    batches,
    changes_between,
    fit_together,
    journal_chunks,
    leader_in,
    note_of,
    read_head,
)
from controller_service.store.etcd.lease import EtcdLease, process_name, with_note
from controller_service.store.etcd.operations import Delete, Get, Is, Put, Write, end_of
from controller_service.store.etcd.outcomes import has_generation, read_snapshot, revision_if_written, why_not_own
from controller_service.store.forms import BadDocument
from controller_service.store.protocol import (
    UNKNOWN_LEADER,
    Conflict,
    Leader,
    LeadershipLost,
    StateInUse,
    StateRefused,
    StoreWriteFailed,
)
from controller_service.store.rows import DamagedRows, Head
from slotmesh.config.etcd import EtcdPlace
from slotmesh.ids import new_id
from slotmesh.runtime.backoff import Backoff

PATIENCE_S: Final = 5.0
"""How long a change is tried while etcd does not answer: longer than it takes to elect a leader."""
CHECK_PATIENCE_S: Final = 2.5
"""The same of a check, before the state counts as one that cannot be written."""
PROBE_CHECKS: Final = 60
"""Checks, a second apart, without another write: then the head is written anew, as only a write shows a full etcd."""
MOST_READ: Final = 16
"""Standbys whose addresses members get."""

MakeState: TypeAlias = Callable[[], tuple[str, Desired]]
ResultT = TypeVar("ResultT")


class EtcdState:
    """The state of one controller."""

    def __init__(self, client: EtcdClient, place: EtcdPlace, lease: EtcdLease, address: str = "") -> None:
        self._client = client
        self._place = place
        self._keys = Layout(place.prefix)
        self._lease = lease
        self._address = address
        self._noted = b""  # the content of the leader's key, as far as this controller has written it
        self._fence = 0
        """The revision that created `leader` for this controller; 0: it does not hold that key."""
        self._stored = StoredHead(Head("", 0, 0, 0, 0))
        self._modified = 0
        """The revision that wrote the head."""
        self._split = frozenset[RowName]()
        self._journal: tuple[RowChange, ...] = ()
        """Changes that are in force, and not in the rows yet."""
        self._is_doubtful = False
        """A write may have been carried out, or may be yet, without an answer."""
        self._lost: LeadershipLost | None = None
        self._standbys: tuple[str, ...] = ()
        self._checks = 0
        self.desired = Desired()
        self.problem = ""
        """Why the newest write or check failed; empty if it did not."""

    @property
    def generation(self) -> str:
        return self._stored.head.generation

    @property
    def term(self) -> int:
        return self._stored.head.term

    @classmethod
    async def open(
        cls, client: EtcdClient, place: EtcdPlace, make_state: MakeState | None, address: str = ""
    ) -> EtcdState:
        """Leads from now on. `make_state`: generation and state where there is none yet; None: there has to be one.

        Raises StateInUse, StateRefused, EtcdFailed.
        """
        state = await cls.hold(client, place, address)
        try:
            if not await state._load():
                if make_state is None:
                    raise StateRefused(f"{place}: is gone, with all that it had: restore it, then start this again")
                await state.create(*make_state())
            await state._apply()
            await state._guarded([Delete(state._keys.journals, end_of(state._keys.journals))])
            head = state._stored.head
            await state._write(state.desired.beginning(new_id()), replace(head, term=head.term + 1))
        except BaseException:
            await state.release()
            raise
        return state

    @classmethod
    async def hold(cls, client: EtcdClient, place: EtcdPlace, address: str = "") -> EtcdState:
        """No other controller can write from now on; nothing is read yet. Raises StateInUse, EtcdFailed."""
        state = cls(client, place, await EtcdLease.grant(client), address)
        try:
            await state._take_key()
        except BaseException:
            await state.release()
            raise
        return state

    async def create(self, generation: str, desired: Desired) -> None:
        """Writes a state where there is none. Raises StateRefused, EtcdFailed."""
        if await self._load():
            raise StateRefused(f"{self._place}: there is a state already; name another mesh, or delete its keys")
        await self._write(desired, Head(generation, 0, 0, 0, 0))
        await self._apply()

    async def release(self) -> None:
        """Another controller may lead."""
        await self._lease.release()

    # -- what the store calls ------------------------------------------------------------------------------------------

    async def commit(self, change: ChangeSet, expected_revision: int) -> None:
        """Raises Conflict, StoreWriteFailed."""
        with self._noted_problem():
            await self._change(lambda: self.desired.apply(change), self.generation, expected_revision)

    async def begin_generation(self, generation: str, desired: Desired, expected_revision: int) -> None:
        """Etcd has this state from now on; this controller leads no more. Raises Conflict, StoreWriteFailed."""
        with self._noted_problem():
            try:
                await self._change(lambda: desired, generation, expected_revision)
            except LeadershipLost as lost:
                if lost.is_unwritten or not await has_generation(self._client, self._keys, generation):
                    raise
        self._lost = LeadershipLost(f"{self._place}: begins generation {generation} with the next start")

    async def check(self) -> tuple[str, ...]:
        """Raises LeadershipLost if another controller leads; returns addresses of those that wait, as far as known.

        Sets `problem`.
        """
        if self._lost is not None:
            raise self._lost
        with suppress(StoreWriteFailed), self._noted_problem():
            await self._tried(self._look, CHECK_PATIENCE_S)
        if self._lost is not None:
            raise self._lost
        return self._standbys

    def serving_at(self, address: str) -> None:
        """Where others reach this controller; noted with the next check."""
        self._address = address

    # -- attempts ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _noted_problem(self) -> Iterator[None]:
        try:
            yield
        except LeadershipLost:
            raise
        except StoreWriteFailed as failed:
            self.problem = str(failed)
            raise
        self.problem = ""

    async def _tried(self, attempt: Callable[[], Awaitable[ResultT]], patience_s: float) -> ResultT:
        """Again and again while etcd does not answer; once if that is known already. Raises StoreWriteFailed."""
        until = asyncio.get_running_loop().time() + (0.0 if self.problem else patience_s)
        backoff = Backoff(initial_s=0.05, max_s=0.5)
        while True:
            try:
                return await attempt()
            except EtcdFailed as failed:
                if failed.is_refused or asyncio.get_running_loop().time() >= until:
                    raise StoreWriteFailed(f"{self._place}: {failed}", is_unwritten=not self._is_doubtful) from failed
            except (DamagedRows, BadDocument) as error:
                raise StoreWriteFailed(f"{self._place}: {error}", is_unwritten=not self._is_doubtful) from error
            await asyncio.sleep(backoff.next_delay_s())

    async def _change(self, make: Callable[[], Desired], generation: str, expected_revision: int) -> None:
        """Raises Conflict, StoreWriteFailed."""
        if self._lost is not None:
            raise self._lost
        was_sent = is_unknown = False

        async def attempt() -> None:
            nonlocal was_sent, is_unknown
            await self._ready()
            is_unknown = False
            if was_sent and self.desired.revision == expected_revision + 1:
                return  # the answer to an earlier attempt was lost
            if self.desired.revision != expected_revision:
                raise Conflict(expected_revision, self.desired.revision)
            was_sent = True
            try:
                await self._write(make(), replace(self._stored.head, generation=generation))
            except EtcdFailed as failed:
                is_unknown = not failed.is_unwritten
                raise

        try:
            await self._tried(attempt, PATIENCE_S)
        except StoreWriteFailed as failed:  # after LeadershipLost the successor has an unknown change, or not
            raise type(failed)(str(failed), is_unwritten=not is_unknown) from failed

    async def _look(self) -> None:
        self._checks += 1
        await self._ready(is_tried=bool(self.problem) or self._checks >= PROBE_CHECKS)
        waiting = Get(self._keys.standbys, end_of(self._keys.standbys), MOST_READ)
        found = await self._client.txn(self._conditions(), [waiting], within_s=LOOK_S)
        if not found.is_met:
            raise self._moved()
        self._standbys = tuple(sorted(address_in(it.value) for it in found.found[0]))
        await self.note_election()

    async def note_election(self) -> None:
        """Beside other methods: one that waits for a member that hangs must not look silent. Raises EtcdFailed."""
        held = self._conditions()[:2]  # never true without the key
        self._noted = await with_note(self._client, held, self._lease.identity, self._note, self._noted)

    async def _ready(self, *, is_tried: bool = False) -> None:
        """To write. Raises LeadershipLost, EtcdFailed."""
        if not self._fence or self._lease.has_lapsed:
            await self._take_key_again()
        if self._is_doubtful or is_tried:
            await self._settle()
        if self._journal:
            await self._apply()

    # -- the key that fences -------------------------------------------------------------------------------------------

    def _conditions(self) -> list[Is]:
        leader, head = self._keys.leader, Is(self._keys.head, modified=self._modified)
        return [Is(leader, lease=self._lease.identity), Is(leader, created=self._fence), head]

    def _note(self) -> bytes:
        return note_of(self._address, process_name(), self._client.election)

    async def _take_key(self) -> None:
        """Raises StateInUse, EtcdFailed."""
        leader = self._keys.leader
        note = self._note()
        put = Put(leader, note, self._lease.identity)
        try:
            taken = await self._client.txn([Is(leader, created=0)], [put], [Get(leader)])
        except EtcdFailed as failed:
            self._lease.has_lapsed |= failed.is_of_lease
            raise
        if taken.is_met:
            self._fence, self._noted = taken.revision, note
            return
        for holder in taken.found[0]:
            if holder.lease != self._lease.identity:
                raise StateInUse(self._place, leader_in(holder.value))
            self._fence = holder.created  # the answer to an earlier attempt was lost

    async def _take_key_again(self) -> None:
        """Raises LeadershipLost, EtcdFailed."""
        self._fence = 0
        self._is_doubtful = True  # whether another one has led is read from the head
        if self._lease.has_lapsed:
            self._lease = await EtcdLease.grant(self._client)
        try:
            await self._take_key()
        except StateInUse as other:
            raise self._fenced(other.leader) from other
        except EtcdFailed as failed:
            if not failed.is_lease_missing:
                raise
            self._lease.has_lapsed = True  # as it is going to find out itself: the next attempt has another one
            raise self._moved() from failed

    def _fenced(self, leader: Leader) -> LeadershipLost:
        """From now on, whatever becomes of the keys."""
        self._lost = LeadershipLost(f"{self._place}: was taken over by {leader.name}")
        return self._lost

    def _moved(self) -> EtcdFailed:
        """A comparison failed: what etcd has counts."""
        self._is_doubtful = True
        return EtcdFailed(f"{self._client.name}: the state has changed", is_unwritten=True, is_refused=False)

    async def _settle(self) -> None:
        """Finds out what etcd has; no earlier write can change it any more. Raises LeadershipLost, EtcdFailed."""
        self._is_doubtful = True
        keys = self._keys
        moved = await self._client.txn(
            self._conditions(), [Put(keys.head, self._stored.encoded())], [Get(keys.leader), Get(keys.head)]
        )
        if moved.is_met:
            self._modified, self._is_doubtful, self._checks = moved.revision, False, 0
            return
        leaders, heads = moved.found
        if heads:
            head = read_head(heads[0].value).head
            if (head.generation, head.term) != (self.generation, self.term):
                raise self._fenced(leader_in(leaders[0].value) if leaders else UNKNOWN_LEADER)
        if leaders and leaders[0].lease != self._lease.identity:
            raise self._fenced(leader_in(leaders[0].value))
        if not leaders or leaders[0].created != self._fence:
            await self._take_key_again()
            await self._settle()
        elif not await self._load(after=self._stored.head):
            raise DamagedRows("its keys are gone: restore them, or end this controller before you begin a new state")
        self._is_doubtful = False

    # -- reading and writing -------------------------------------------------------------------------------------------

    async def _load(self, *, after: Head | None = None) -> bool:
        """False if there is no state. `after`: this leader's head. Raises EtcdFailed, LeadershipLost, as `snapshot`."""
        found = await read_snapshot(self._client, self._keys)
        if found.head is None or found.stored is None:
            return False
        if after is not None and (reason := why_not_own(found.stored.head, after)):
            self._lost = LeadershipLost(f"{self._place}: {reason}")
            raise self._lost
        self._modified, self._stored = found.head.modified, found.stored
        self.desired, self._split, self._journal = found.state, found.split, found.journal
        return True

    async def _write(self, after: Desired, head: Head) -> None:
        """One transaction, or a journal that one transaction puts into force. Raises EtcdFailed."""
        changes = changes_between(self.desired, after)
        stored = StoredHead(Head(head.generation, after.revision, after.configured_at, after.epoch_floor, head.term))
        writes = [it for change in changes for it in self._keys.writes(change, self._split)]
        if fit_together(writes):
            await self._put_head(stored, writes)
            self.desired = after
            self._split = self._keys.split_after(changes, self._split)
            return
        chunks = journal_chunks(changes)
        stored = replace(stored, journal=new_id(8), chunks=len(chunks))
        for batch in batches(Put(self._keys.chunk(stored.journal, it), chunk) for it, chunk in enumerate(chunks)):
            await self._guarded(batch)
        await self._put_head(stored, [])
        self.desired, self._journal = after, changes
        with suppress(EtcdFailed):  # it is in force; the next step finishes it
            await self._apply()

    async def _apply(self) -> None:
        """Writes the rows of a journal, and deletes it. Raises EtcdFailed."""
        if not self._journal:
            return
        for batch in batches(it for change in self._journal for it in self._keys.writes(change, self._split)):
            await self._guarded(batch)
        journals = Delete(self._keys.journals, end_of(self._keys.journals))
        await self._put_head(StoredHead(self._stored.head), [journals])
        self._split = self._keys.split_after(self._journal, self._split)
        self._journal = ()

    async def _put_head(self, stored: StoredHead, writes: Sequence[Write]) -> None:
        self._is_doubtful = True
        try:
            done = await self._client.txn(self._conditions(), [*writes, Put(self._keys.head, stored.encoded())])
        except EtcdFailed as failed:
            self._is_doubtful = not failed.is_unwritten
            if failed.is_unwritten or not failed.is_refused:
                raise
            modified = await revision_if_written(self._client, self._keys, stored, self._modified, failed)
        else:
            if not done.is_met:
                raise self._moved()
            modified = done.revision
        self._is_doubtful, self._stored, self._modified, self._checks = False, stored, modified, 0

    async def _guarded(self, writes: Sequence[Write]) -> None:
        """What changes no state. It may be repeated."""
        if not (await self._client.txn(self._conditions(), writes)).is_met:
            raise self._moved()
