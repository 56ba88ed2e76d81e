"""The interfaces between executors and the engine, and the encoding of handlers' results.

The interfaces are called on the event loop. Results are encoded when the call returns, before other code of the handler
runs, in the thread and context of the call: a caller gets the value as it was at that time, even if the handler changes
it later. A result that cannot be sent fails its own call and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from replica_service.core.events import Ended
from replica_service.core.runs import ReplicaRun, RouterPeer, StartTurn
from replica_service.core.work import StartBatch, StartCalls, WorkCommand
from replica_service.shell.handler.failures import HandlerErrors, unsendable
from replica_service.shell.handler.methods import FailedCall, HandlerMethod
from slotmesh.codec import encode_each, encoder
from slotmesh.errors import Failure

Encode = Callable[[Any], bytes]
"""Encodes a result. Raises any exception that the result raises when it is read."""
Outcome: TypeAlias = tuple[ReplicaRun, int, int, "list[bytes] | Failure"]
"""Of consecutive calls: run, index of the first, their number, and their payloads or their common failure."""


class Unsendable(FailedCall):
    """The result has a type that the call's content type cannot carry, or raises when it is read."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(unsendable(error))


def encoder_of(run: ReplicaRun) -> Encode:
    """Returns the function that encodes results of the run's calls."""
    return _nothing if run.options.no_reply else encoder(run.options.content_type)


def encoded(run: ReplicaRun, value: Any) -> bytes:
    """Encodes the result of one call of the run. Raises Unsendable."""
    try:
        return encoder_of(run)(value)
    except BaseException as error:  # noqa: BLE001 - a foreign object may fail in any way when it is read
        raise Unsendable(error) from None


def encoded_each(run: ReplicaRun, lo: int, values: Sequence[Any]) -> Iterator[Outcome]:
    """Encodes the results of consecutive calls from index `lo` on. A result that cannot be sent fails alone."""
    if run.options.no_reply:
        yield run, lo, len(values), [b""] * len(values)
        return
    try:
        payloads = encode_each(run.options.content_type, values)
    except BaseException:  # noqa: BLE001 - as above: each by itself, then
        payloads = []
    if len(payloads) == len(values):
        yield run, lo, len(payloads), payloads
        return
    for index in range(len(values)):
        try:
            payload = encoded(run, values[index])
        except Unsendable as error:
            yield run, lo + index, 1, error.failure
        else:
            yield run, lo + index, 1, [payload]


def _nothing(_value: Any) -> bytes:
    return b""


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


def deliver(outcomes: Iterable[Outcome], sink: OutcomeSink) -> None:
    """Passes the outcomes to the sink."""
    for run, lo, count, outcome in outcomes:
        if isinstance(outcome, Failure):
            sink.failed(run, lo, count, outcome)
        else:
            sink.payloads(run, lo, outcome)


class HandlerEnvironment(NamedTuple):
    """What the executors of one handler share."""

    methods: Mapping[str, HandlerMethod]
    sink: OutcomeSink
    errors: HandlerErrors
    now: Callable[[], float]
    """Monotonic seconds."""


class Executor(Protocol):
    """Runs what the scheduler has decided to start."""

    def start(self, work: WorkCommand) -> None:
        """Takes work, and returns immediately."""

    def hold(self, turn: StartTurn) -> None:
        """No further call of the turn starts; `turn.stop` is the index of the first that does not."""

    def recall(self, is_wanted: Callable[[ReplicaRun], bool]) -> list[StartCalls | StartBatch]:
        """Gives up what has not started of the wanted runs, and of batches in which they are."""

    # What runs ends by these three where it can be ended: no code in a thread can. Each call has its outcome all the
    # same, and one alone: the result of its code.

    def cancel(self, link: RouterPeer, ranges: Iterable[tuple[int, int]]) -> None:
        """Cancels the router's running calls in these ranges of run ids, both ends included; batches continue."""

    def abandon(self, link: RouterPeer) -> None:
        """The link has ended: cancels its calls, but for those of sessions and those without reply."""

    def cut_off(self) -> None:
        """Cancels all that runs: it comes to `CUT_OFF`."""

    async def close(self) -> None:
        """Ends what still runs, as far as it can be ended within `CLOSE_S`."""
