"""What the controller expects of a store. Every implementation passes tests/contract/test_controller_store.py.

Invariants:
  1. A change is applied as a whole to the revision that its author saw, or not at all.
  2. When `commit` returns, the change is as durable as the store makes anything: only then it is announced.
  3. Revisions strictly increase within a generation. A store that cannot go on from where it was has a new generation.
  4. Epoch floors never go back within a generation. From one to the next they may: members say which epochs there were.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from controller_service.core.desired import ChangeSet, Desired


class Conflict(Exception):
    """Somebody else changed the store first: look again, plan again."""

    def __init__(self, expected_revision: int, actual_revision: int) -> None:
        super().__init__(f"expected revision {expected_revision}, but the store is at {actual_revision}")
        self.expected_revision = expected_revision
        self.actual_revision = actual_revision


class Store(Protocol):
    """Keeps what should be."""

    @property
    def generation(self) -> str:
        """Identity of the sequence in which revisions count: 32 hexadecimal digits."""

    def read(self) -> Desired:
        """The newest committed revision. An immutable value, at no cost."""

    async def commit(self, change: ChangeSet, *, expected_revision: int) -> Desired:
        """Applies the change and returns the new revision. Raises Conflict if the store is at another one.

        Cancelling it does not say whether the change was applied: read to find out.
        """

    def watch(self, *, after_revision: int) -> AsyncGenerator[Desired, None]:
        """Yields the newest revision whenever it is newer than what was yielded last: levels, not every step."""

    async def close(self) -> None:
        """Ends watches and releases what the store holds. Nothing may be committed any more."""
