"""The kinds of executors of the matrix, and the lanes of calls that its cells make."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from replica_service.core.runs import ReplicaRun
from replica_service.core.session_records import Record
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.handlers import batch, deployment
from tests.support.wait import wait_until
from tests.unit.replica.hosting import Hosting

WAIT: Final = b"wait"
"""Payloads that begin so wait for the gate."""
FAIL: Final = b"fail"
ENCODED: Final = b'["MQ=="]'
"""JSON of the payload "1"."""


@deployment(max_ongoing=4)
class Handler:
    """A method of each kind. What has started is remembered, in order."""

    def __init__(self) -> None:
        self.started: list[bytes] = []
        self.gate = threading.Event()

    async def single(self, payload: bytes) -> bytes:
        await self._run(payload)
        return payload

    def threaded(self, payload: bytes) -> bytes:
        self._run_in_thread(payload)
        return payload

    @batch(max_batch_size=1, batch_wait_timeout_s=0.0)
    async def batched(self, payloads: list[bytes]) -> list[bytes]:
        for payload in payloads:
            await self._run(payload)
        return payloads

    @batch(max_batch_size=1, batch_wait_timeout_s=0.0)
    def batched_in_thread(self, payloads: list[bytes]) -> list[bytes]:
        for payload in payloads:
            self._run_in_thread(payload)
        return payloads

    async def yielding(self, payload: bytes) -> AsyncIterator[bytes]:
        await self._run(payload)
        yield payload

    def yielding_in_thread(self, payload: bytes) -> Iterator[bytes]:
        self._run_in_thread(payload)
        yield payload

    @batch(max_batch_size=1, batch_wait_timeout_s=0.0)
    async def yielding_batched(self, payloads: list[bytes]) -> AsyncIterator[list[bytes]]:
        for payload in payloads:
            await self._run(payload)
        yield payloads

    @batch(max_batch_size=1, batch_wait_timeout_s=0.0)
    def yielding_batched_in_thread(self, payloads: list[bytes]) -> Iterator[list[bytes]]:
        for payload in payloads:
            self._run_in_thread(payload)
        yield payloads

    async def _run(self, payload: bytes) -> None:
        self.started.append(payload)
        while payload.startswith(WAIT) and not self.gate.is_set():  # noqa: ASYNC110 - another loop's test opens it
            await asyncio.sleep(0.001)
        if payload.startswith(FAIL):
            raise ValueError("no good")

    def _run_in_thread(self, payload: bytes) -> None:
        self.started.append(payload)
        if payload.startswith(WAIT):
            self.gate.wait(10)
        if payload.startswith(FAIL):
            raise ValueError("no good")


@dataclass(frozen=True)
class Kind:
    """A kind of method, and where it runs."""

    method: str
    own_loop: bool = False

    @property
    def streams(self) -> bool:
        return "yielding" in self.method

    @property
    def is_batched(self) -> bool:
        return "batched" in self.method

    @property
    def can_interrupt(self) -> bool:
        """Whether code that waits is cancelled: no thread is, nor a batch that returns its results."""
        return "thread" not in self.method and self.method != "batched"

    @property
    def ends_as_cancelled(self) -> bool:
        """Whether a call that is taken back while it runs hears so, however its code ends."""
        return self.can_interrupt or self.streams

    def __str__(self) -> str:
        return f"{self.method}{' on its own loop' if self.own_loop else ''}"


KINDS: Final = [
    Kind(method, own_loop)
    for method in (name for name in vars(Handler) if not name.startswith("_"))
    for own_loop in (False, True)
    if not (own_loop and "thread" in method)
]


# -- what cells do -----------------------------------------------------------------------------------------------------


def calls(host: Hosting, kind: Kind, payloads: Sequence[bytes], **options: Any) -> ReplicaRun:
    options.setdefault("streaming", kind.streams)
    return host.run(kind.method, payloads, **options)


class Lane:
    """Calls of one ordering key and one session: one run of them, or a run for each."""

    def __init__(
        self, host: Hosting, kind: Kind, payloads: Sequence[bytes], *, is_whole: bool, first_id: int = 1, **options: Any
    ) -> None:
        self._host = host
        parts = [payloads] if is_whole else [[payload] for payload in payloads]
        self.runs = [calls(host, kind, part, key="k", **options) for part in parts]
        for run in self.runs:
            count = len(run.payloads)
            run.record = Record("s", 1, range(first_id, first_id + count), count, attempt=0, recovers=False)
            first_id += count

    async def begin(self, *started: bytes) -> None:
        """Submits all, and waits until these have started."""
        self._host.engine.submit(self.runs)
        await wait_until(lambda: self._host.handler.started == list(started))

    def run_id(self, at: int) -> int:
        return self.runs[0].first + at

    def outcome(self, at: int) -> bytes | Failure | None:
        return outcome_of(self._host, self.run_id(at))

    def failure(self, at: int) -> tuple[Reason, Executed]:
        failure = self.outcome(at)
        assert isinstance(failure, Failure), failure
        return failure.reason, failure.executed

    def cancel(self, at: int, **options: Any) -> None:
        self._host.engine.cancel(self._host.link, [(self.run_id(at), self.run_id(at))], **options)


def outcome_of(host: Hosting, run_id: int) -> bytes | Failure | None:
    """What a caller got: the payload or the only value, or the failure."""
    outbox = host.outbox
    if (failure := outbox.failures_of.get(run_id) or outbox.refusals_of.get(run_id)) is not None:
        return failure
    if run_id in outbox.ended_well and (values := outbox.values_of.get(run_id)):
        (value,) = values
        return value
    return outbox.results_of.get(run_id)


async def running(host: Hosting, *payloads: bytes) -> None:
    await wait_until(lambda: host.handler.started == list(payloads))
