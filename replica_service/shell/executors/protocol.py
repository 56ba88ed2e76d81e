"""The interfaces between executors and the engine. Everything is called on the event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from replica_service.core.calls import ReplicaRun, RouterPeer, StartTurn
from replica_service.core.commands import StartBatch, StartCalls, WorkCommand
from replica_service.core.events import Ended
from slotmesh.errors import Failure

CLOSE_S = 1.0
"""How long handlers have to end when the process does. Those that run on end with it."""


class OutcomeSink(Protocol):
    """Takes outcomes of calls, and the ends of work. Indices are those of the run's payloads."""

    def payloads(self, run: ReplicaRun, lo: int, payloads: Sequence[bytes]) -> None:
        """What consecutive calls from index `lo` on returned, encoded; the sequence is the sink's from here on."""

    def values(self, run: ReplicaRun, index: int, payloads: Sequence[bytes]) -> None:
        """Some of what a call yields, encoded: its caller takes several results."""

    def streamed(self, run: ReplicaRun, index: int) -> None:
        """A call has ended well without a payload: its values were sent, or it was made with no_reply."""

    def failed(self, run: ReplicaRun, lo: int, count: int, failure: Failure) -> None:
        """Consecutive calls from index `lo` on failed alike."""

    def post(self, event: Ended, /) -> None:
        """Work has ended: each of its calls has its outcome, or was not started."""


class Executor(Protocol):
    """Runs what the scheduler has decided to start."""

    def start(self, work: WorkCommand) -> None:
        """Takes work, and returns at once."""

    def hold(self, turn: StartTurn) -> None:
        """No further call of the turn starts; `turn.stop` is the index of the first that does not."""

    def recall(self, is_wanted: Callable[[ReplicaRun], bool]) -> list[StartCalls | StartBatch]:
        """Gives up what has not started of the wanted runs, and of batches in which they are."""

    # What runs ends by these three where it can be ended: no code in a thread can. Each call has its outcome all the
    # same, and one alone: the result of its code.

    def cancel(self, link: RouterPeer, ranges: Iterable[tuple[int, int]]) -> None:
        """Cancels those of the router's calls that run, by run ids, both ends included. A batch goes on."""

    def abandon(self, link: RouterPeer) -> None:
        """The link has ended: cancels its calls, but for those of sessions and those without reply."""

    def cut_off(self) -> None:
        """Cancels all that runs: it comes to `CUT_OFF`."""

    async def close(self) -> None:
        """Ends what still runs, as far as it can be ended within `CLOSE_S`."""
