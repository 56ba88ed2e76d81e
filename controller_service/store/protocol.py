"""What the controller expects of a store, and the store in memory.

Every implementation passes tests/contract/controller/test_store.py.

Invariants:
  1. A change is applied as a whole to the revision that its author saw, or not at all.
  2. When `commit` returns, the change is as durable as the store makes anything: only then it is announced.
  3. Revisions strictly increase within a generation. A store that cannot continue from its last one begins a
     generation.
  4. Epoch floors never go back within a generation. From one to the next they may: members report the epochs in use.
  5. A store that cannot write refuses changes with `StoreWriteFailed`, is read as before, and writes again when it can.
  6. One controller at a time has the store: it *leads*, under a term that is newer than those of all before it. What an
     earlier leader commits is refused with `LeadershipLost`, for good.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from controller_service.core.desired.revisions import UNKNOWN_ORIGIN, ChangeOrigin
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.event_log import EventBounds, FeedEvent
from controller_service.core.roster import LeaderTerm

CHECK_S: Final = 1.0
"""How often a leader looks whether it leads, and who waits."""

OnCommitted: TypeAlias = Callable[[Desired, Desired, ChangeOrigin], None]
"""The state before and after, and who asked for the change: UNKNOWN_ORIGIN where that is not known."""


class Conflict(Exception):
    """Another change was committed first: read again, plan again."""

    def __init__(self, expected_revision: int, actual_revision: int) -> None:
        super().__init__(f"expected revision {expected_revision}, but the store is at {actual_revision}")
        self.expected_revision = expected_revision
        self.actual_revision = actual_revision


class StoreWriteFailed(Exception):
    """The store cannot write now. What it has is read as before; the message has the reason and the way out."""

    def __init__(self, message: str, *, is_unwritten: bool) -> None:
        super().__init__(message)
        self.is_unwritten = is_unwritten
        """The change is not stored, and will not be. Otherwise that is not known until the store can be read again."""


class LeadershipLost(StoreWriteFailed):
    """Another controller may write the store from now on: this one stops, and announces nothing more."""

    def __init__(self, message: str, *, is_unwritten: bool = True) -> None:
        super().__init__(message, is_unwritten=is_unwritten)


@dataclass(frozen=True, slots=True)
class Leader:
    """The controller that has a store."""

    address: str
    """Where others reach it, `HOST:PORT`; empty while that is not known."""
    name: str
    """For a person: its address and its process."""


UNKNOWN_LEADER: Final = Leader("", "another controller")


class StateRefused(Exception):
    """A state that cannot be used. Nothing of it was changed."""


class StateInUse(StateRefused):
    """Another controller has the state."""

    def __init__(self, state: object, leader: Leader) -> None:
        """`state`: as `--state` names it."""
        super().__init__(
            f"{state}: is in use by {leader.name}: stop that one, or give this one another state with --state"
        )
        self.leader = leader


@dataclass(frozen=True, slots=True)
class Standing:
    """The facts about its leadership that a leader has."""

    term: int
    standbys: tuple[str, ...] = ()
    """Addresses of the controllers that wait to lead after this one, sorted; those whose address is not known are not
    among them."""
    waiting: int = 0
    """How many wait, those whose address is not known included."""
    problem: str = ""
    """Why the store cannot be written now, and the way out; empty if it can, as far as that was tried."""


class EventsUnwritten(Exception):
    """Events cannot be stored, or read, now; the message has the reason."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final
        """Nor will any later ones."""


class EventStore:
    """Keeps events for later controllers. They are no part of the state: without them everything else works.

    This one keeps none: the feed of this controller has them, and they end with its process.
    """

    async def load(self, bounds: EventBounds) -> list[FeedEvent]:  # noqa: ARG002 - there are none
        """The newest events that were stored, oldest first, within the bounds. To be called first, until it succeeds.

        Raises EventsUnwritten: they cannot be read now.
        """
        return []

    async def append(self, events: Sequence[FeedEvent], *, dropped_through: int) -> None:
        """Stores these events, as a whole or not at all, and deletes those up to a number.

        May be repeated. Raises EventsUnwritten.
        """

    async def close(self) -> None:
        """Nothing is stored any more. May be called again."""


class Store(ABC):
    """Keeps what should be.

    Revisions that are in force ascend. Everything is called on the event loop that it was made on.
    """

    def __init__(self, generation: str, term: int, desired: Desired, events: EventStore) -> None:
        self.generation: Final = generation
        """Identity of the sequence in which revisions count: 32 hexadecimal digits."""
        self.term: Final = term
        """Under which this controller leads: 1 or more, and newer than those before it of the same generation."""
        self.events: Final = events
        """What has happened, for those who look later."""
        self._desired = desired
        self._listeners: list[OnCommitted] = []
        self._changed = asyncio.Event()
        self._check_due = asyncio.Event()
        """`standing` looks again immediately."""
        self._is_closed = False

    def read(self) -> Desired:
        """The newest committed revision. An immutable value, at no cost."""
        return self._desired

    def listen(self, listener: OnCommitted) -> None:
        """Has it called, on the event loop, for every change that is in force from now on: in order, each once.

        Before `commit` returns, and also where its caller was cancelled. A write whose end was not seen, and that turns
        out to be stored, is part of the next call.
        """
        self._listeners.append(listener)

    async def watch(self, *, after_revision: int) -> AsyncGenerator[Desired, None]:
        """Yields the newest revision whenever it is newer than what was yielded last: levels, not every step."""
        while True:
            changed = self._changed
            if self._desired.revision > after_revision:
                after_revision = self._desired.revision
                yield self._desired
            elif self._is_closed:
                return
            else:
                await changed.wait()

    async def standing(self) -> AsyncGenerator[Standing, None]:
        """Yields how this controller's leadership stands: at first, and whenever that changes, until the store closes.

        Raises LeadershipLost where another one may lead. For one caller at a time.
        """
        reported: Standing | None = None
        while not self._is_closed:
            self._check_due.clear()
            try:
                waiting, problem = await self._check()
            except StoreWriteFailed:
                if self._is_closed:
                    return
                raise
            now = Standing(self.term, tuple(dict.fromkeys(filter(None, waiting))), len(waiting), problem)
            if now != reported:
                reported = now
                yield now
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    await self._check_due.wait()

    @abstractmethod
    async def _check(self) -> tuple[Sequence[str], str]:
        """The addresses of standbys, empty where they are not known; and the `problem` of `Standing`.

        Raises LeadershipLost.
        """

    @abstractmethod
    async def commit(self, change: ChangeSet, *, expected_revision: int) -> Desired:
        """Applies the change and returns the new revision. Raises Conflict if the store is at another one.

        Raises StoreWriteFailed if it cannot be written. After a cancellation the change may or may not be applied, now
        or later: the next commit finds out, and listeners are called if it was.
        """

    @abstractmethod
    async def begin_generation(self, generation: str, desired: Desired, *, expected_revision: int) -> None:
        """This state, in a new generation, is what the next controller finds. This one leads no more.

        Raises Conflict if the store is at another revision, StoreWriteFailed.
        """

    def serving_at(self, address: str) -> None:  # noqa: B027 - others find a store in a file only
        """Where others reach the controller that has the store, `HOST:PORT`: for those that find it in use."""

    @abstractmethod
    async def close(self) -> None:
        """Ends watches and releases what the store holds. Nothing may be committed any more; others may lead."""

    def _set(self, desired: Desired, origin: ChangeOrigin = UNKNOWN_ORIGIN) -> None:
        """The next revision is in force; who asked for it, where that is known."""
        before, self._desired = self._desired, desired
        self._wake()
        for listener in self._listeners:
            listener(before, desired, origin)

    def _end(self) -> None:
        """Ends watches."""
        self._is_closed = True
        self._check_due.set()
        self._wake()

    def _wake(self) -> None:
        """Each step has an event of its own: it need not be cleared, and no watcher can miss it."""
        self._changed.set()
        self._changed = asyncio.Event()


class Candidacy(Protocol):
    """How a controller comes to lead. The store is its caller's once it has one."""

    @property
    def leader(self) -> Leader:
        """Who leads, as far as that is known."""

    async def try_to_lead(self) -> Store | None:
        """The store, unless another controller has it. Raises what the store is refused with."""

    async def wait_to_lead(self, address: str) -> Store:
        """Waits until no other controller has the store, and takes it. Raises as `try_to_lead` does.

        `address` is where others reach this controller, `HOST:PORT`: the leader passes it on to members. Empty if
        unknown.
        """


class MemoryStore(Store):
    """Ends with its process; the next controller learns from the tables that routers send.

    Each start is a new generation. Epoch floors begin with the wall clock in milliseconds, so that they mostly grow
    from one generation to the next, and are raised when members report newer epochs.
    """

    def __init__(self, *, generation: str, epoch_floor: int = 0) -> None:
        desired = Desired(epoch_floor=epoch_floor, terms=(LeaderTerm(generation, 0),))
        super().__init__(generation, 1, desired, EventStore())  # no other controller can have it

    async def _check(self) -> tuple[Sequence[str], str]:
        return (), ""

    async def commit(self, change: ChangeSet, *, expected_revision: int) -> Desired:
        """Without an await inside, and so without a lock."""
        if self._is_closed:
            raise RuntimeError("the store is closed")
        if expected_revision != self._desired.revision:
            raise Conflict(expected_revision, self._desired.revision)
        self._set(self._desired.apply(change), change.origin)
        return self._desired

    async def begin_generation(self, generation: str, desired: Desired, *, expected_revision: int) -> None:  # noqa: ARG002 - no other can have it
        raise StoreWriteFailed("the state is in memory: it ends with its controller", is_unwritten=True)

    async def close(self) -> None:
        self._end()


class MemoryCandidacy:
    """Implements `Candidacy` for a store that no other controller can have."""

    def __init__(self, *, generation: str, epoch_floor: int = 0) -> None:
        self._store = MemoryStore(generation=generation, epoch_floor=epoch_floor)

    @property
    def leader(self) -> Leader:
        return Leader("", "this controller")

    async def try_to_lead(self) -> Store | None:
        return self._store

    async def wait_to_lead(self, address: str) -> Store:  # noqa: ARG002 - no other controller needs it
        return self._store
