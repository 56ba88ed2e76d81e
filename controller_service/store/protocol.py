"""What the controller expects of a store. Every implementation passes tests/contract/controller/test_store.py.

Invariants:
  1. A change is applied as a whole to the revision that its author saw, or not at all.
  2. When `commit` returns, the change is as durable as the store makes anything: only then it is announced.
  3. Revisions strictly increase within a generation. A store that cannot continue from its last one begins a
  generation. 4. Epoch floors never go back within a generation. From one to the next they may: members report the
  epochs in use. 5. A store that cannot write refuses changes with `StoreWriteFailed`, is read as before, and writes
  again when it can. 6. One controller at a time has the store: it *leads*, under a term that is newer than those of all
  before it. What an
     earlier leader commits is refused with `LeadershipLost`, for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from controller_service.core.desired.revisions import UNKNOWN_ORIGIN, ChangeOrigin
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.events import EventBounds, FeedEvent

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

    def __init__(self, message: str) -> None:
        super().__init__(message, is_unwritten=True)


@dataclass(frozen=True, slots=True)
class Leader:
    """The controller that has a store."""

    address: str
    """Where others reach it, `HOST:PORT`; empty while that is not known."""
    name: str
    """For a person: its address and its process."""


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


class EventStore(Protocol):
    """Keeps events for later controllers. They are no part of the state: without them everything else works."""

    async def load(self, bounds: EventBounds) -> list[FeedEvent]:
        """The newest events that were stored, oldest first, within the bounds. To be called first, until it succeeds.

        Raises EventsUnwritten: they cannot be read now.
        """

    async def append(self, events: Sequence[FeedEvent], *, dropped_through: int) -> None:
        """Stores these events, as a whole or not at all, and deletes those up to a number.

        May be repeated. Raises EventsUnwritten.
        """

    async def close(self) -> None:
        """Nothing is stored any more. May be called again."""


class Store(Protocol):
    """Keeps what should be."""

    @property
    def events(self) -> EventStore:
        """What has happened, for those who look later."""

    @property
    def generation(self) -> str:
        """Identity of the sequence in which revisions count: 32 hexadecimal digits."""

    @property
    def term(self) -> int:
        """Under which this controller leads: 1 or more, and newer than those before it of the same generation."""

    def standing(self) -> AsyncGenerator[Standing, None]:
        """Yields how this controller's leadership stands: at first, and whenever that changes, until the store closes.

        Raises LeadershipLost where another one may lead. For one caller at a time.
        """

    def read(self) -> Desired:
        """The newest committed revision. An immutable value, at no cost."""

    async def commit(self, change: ChangeSet, *, expected_revision: int) -> Desired:
        """Applies the change and returns the new revision. Raises Conflict if the store is at another one.

        Raises StoreWriteFailed if it cannot be written. After a cancellation the change may or may not be applied, now
        or later: the next commit finds out, and listeners are called if it was.
        """

    async def begin_generation(self, generation: str, desired: Desired, *, expected_revision: int) -> None:
        """This state, in a new generation, is what the next controller finds. This one leads no more.

        Raises Conflict if the store is at another revision, StoreWriteFailed.
        """

    def listen(self, listener: OnCommitted) -> None:
        """Has it called, on the event loop, for every change that is in force from now on: in order, each once.

        Before `commit` returns, and also where its caller was cancelled. A write whose end was not seen, and that turns
        out to be stored, is part of the next call.
        """

    def watch(self, *, after_revision: int) -> AsyncGenerator[Desired, None]:
        """Yields the newest revision whenever it is newer than what was yielded last: levels, not every step."""

    def serving_at(self, address: str) -> None:
        """Where others reach the controller that has the store, `HOST:PORT`: for those that find it in use."""

    async def close(self) -> None:
        """Ends watches and releases what the store holds. Nothing may be committed any more; others may lead."""


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


class NewestRevision:
    """The newest revision of a store, with listeners and watchers. Every store has one, on the event loop.

    Revisions that are set ascend; listeners are called for each, in order; a watcher gets levels, not every step, and
    misses no newest one.
    """

    def __init__(self, value: Desired) -> None:
        self.value = value
        self._listeners: list[OnCommitted] = []
        self._changed = asyncio.Event()
        self._closed = False

    def listen(self, listener: OnCommitted) -> None:
        """Has it called for each revision that is set from now on."""
        self._listeners.append(listener)

    def set(self, value: Desired, origin: ChangeOrigin = UNKNOWN_ORIGIN) -> None:
        """The next revision, and who asked for it, where that is known."""
        before, self.value = self.value, value
        self._wake()
        for listener in self._listeners:
            listener(before, value, origin)

    async def watch(self, *, after_revision: int) -> AsyncGenerator[Desired, None]:
        """Yields the newest revision whenever it is newer than what was yielded last, until it is closed."""
        while True:
            changed = self._changed
            if self.value.revision > after_revision:
                after_revision = self.value.revision
                yield self.value
            elif self._closed:
                return
            else:
                await changed.wait()

    def close(self) -> None:
        """Ends watches."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        """Each step has an event of its own: it need not be cleared, and no watcher can miss it."""
        self._changed.set()
        self._changed = asyncio.Event()
