"""Every call ends exactly once, whatever comes at the same time: cancels, deadlines, ends, a drain and its end.

The real engine with its real executors and methods of each kind, on a clock that stands still. Steps come with or
without turns of the event loop between them, so that each meets calls in any state.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf

import pytest

from replica_service.core.events import ReplicaTimePassed
from replica_service.core.runs import ReplicaRun, RouterPeer
from slotmesh.errors import Executed, Failure
from slotmesh.handlers import batch, deployment
from tests.support.examples import examples
from tests.support.fakes.clock import FakeClock
from tests.support.wait import wait_until
from tests.unit.replica.hosting import Hosting, RememberingOutbox, hosting, open_link

ON_THE_LOOP = ("quick", "patient", "stubborn", "batched")
YIELDING = ("spelled", "spelled_in_thread")
METHODS = (*ON_THE_LOOP, "threaded", "batched_in_thread", *YIELDING)
KEYS = ("", "", "red", "green")
DEADLINES_S = (inf, inf, 1.0, 2.0)
TRIALS = examples(600)


@dataclass(frozen=True)
class Submit:
    method: str
    count: int
    key: str
    time_left_s: float
    is_others: bool
    """Over the link that may be closed."""


@dataclass(frozen=True)
class Cancel:
    first: int
    count: int


@dataclass(frozen=True)
class Finish:
    """So many calls that run come to their ends."""

    count: int


@dataclass(frozen=True)
class Advance:
    seconds: float


@dataclass(frozen=True)
class Close:
    """The other link ends."""


@dataclass(frozen=True)
class Drain:
    pass


@dataclass(frozen=True)
class CutOff:
    """The end of the grace."""


Step = Submit | Cancel | Finish | Advance | Close | Drain | CutOff
Turns = tuple[Step, int]
"""A step, and how often the event loop turns afterwards."""

ENDS: Sequence[Sequence[Step]] = (
    (),
    (Close(),),
    (Drain(),),
    (CutOff(),),
    (Drain(), CutOff()),
    (Close(), Drain()),
)


def _some_steps(dice: random.Random) -> list[Turns]:
    return [(_some_step(dice), dice.choice((0, 0, 1, 2, 5))) for _ in range(dice.randint(1, 12))]


def _some_step(dice: random.Random) -> Step:
    kind = dice.random()
    if kind < 0.5:
        return Submit(
            method=dice.choice(METHODS),
            count=dice.randint(1, 5),
            key=dice.choice(KEYS),
            time_left_s=dice.choice(DEADLINES_S),
            is_others=dice.random() < 0.25,
        )
    if kind < 0.7:
        return Cancel(first=dice.randint(1, 30), count=dice.randint(1, 6))
    if kind < 0.85:
        return Finish(count=dice.randint(1, 4))
    return Advance(seconds=dice.choice((0.5, 1.0)))


def _some_story(dice: random.Random) -> list[Turns]:
    ends = dice.choice(ENDS)
    turns = dice.choice((0, 0, 2))
    return [*_some_steps(dice), *((end, turns) for end in ends), *_some_steps(dice)]


@deployment
class Handler:
    """Calls that run until they are let go, and remember when they started."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.started: dict[bytes, float] = {}
        self.running: dict[bytes, Callable[[], object]] = {}
        self.is_open = False
        """Nothing waits any more."""

    def finish(self, count: int) -> None:
        for payload in sorted(self.running)[:count]:
            if (let_go := self.running.pop(payload, None)) is not None:
                let_go()

    def open(self) -> None:
        self.is_open = True
        while self.running:
            self.finish(len(self.running))

    async def quick(self, payload: bytes) -> bytes:
        self._start(payload)
        return payload

    async def patient(self, payload: bytes) -> bytes:
        await self._wait(payload)
        return payload

    async def stubborn(self, payload: bytes) -> bytes:
        try:
            await self._wait(payload)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return payload

    @batch(max_batch_size=3, batch_wait_timeout_s=0.0)
    async def batched(self, payloads: list[bytes]) -> list[bytes]:
        for payload in payloads[1:]:
            self._start(payload)
        await self._wait(payloads[0])
        return payloads

    def threaded(self, payload: bytes) -> bytes:
        self._wait_in_thread(payload)
        return payload

    @batch(max_batch_size=3, batch_wait_timeout_s=0.0)
    def batched_in_thread(self, payloads: list[bytes]) -> list[bytes]:
        for payload in payloads[1:]:
            self._start(payload)
        self._wait_in_thread(payloads[0])
        return payloads

    async def spelled(self, payload: bytes) -> AsyncIterator[bytes]:
        self._start(payload)
        yield payload
        await self._pass_gate(payload)
        yield payload

    def spelled_in_thread(self, payload: bytes) -> Iterator[bytes]:
        self._wait_in_thread(payload)
        yield payload
        yield payload

    def _start(self, payload: bytes) -> None:
        assert payload not in self.started, f"{payload!r} was started twice"
        self.started[payload] = self._clock.now()

    async def _wait(self, payload: bytes) -> None:
        self._start(payload)
        await self._pass_gate(payload)

    async def _pass_gate(self, payload: bytes) -> None:
        gate = asyncio.Event()
        self.running[payload] = partial(asyncio.get_running_loop().call_soon_threadsafe, gate.set)
        try:
            if not self.is_open:
                await gate.wait()
        finally:
            self.running.pop(payload, None)

    def _wait_in_thread(self, payload: bytes) -> None:
        self._start(payload)
        gate = threading.Event()
        self.running[payload] = gate.set
        if not self.is_open:
            assert gate.wait(10)
        self.running.pop(payload, None)


@dataclass
class Story:
    """What was submitted, and what must not start any more."""

    host: Hosting
    clock: FakeClock
    other: RouterPeer
    outboxes: dict[RouterPeer, RememberingOutbox]
    own_loop: bool
    runs: list[ReplicaRun] = field(default_factory=list)
    barred: dict[bytes, str] = field(default_factory=dict)
    """Calls that had not started when something happened after which they must not, and what."""

    def play(self, step: Step) -> None:
        engine = self.host.engine
        match step:
            case Submit():
                self._submit(step)
            case Cancel(first=first, count=count):
                for link in self.outboxes:
                    engine.cancel(link, [(first, first + count - 1)])
                self._bar("taken back", lambda run, index: first <= run.first + index < first + count)
            case Finish(count=count):
                self.host.handler.finish(count)
            case Advance(seconds=seconds):
                self.clock.advance(seconds)
                engine.post(ReplicaTimePassed())
                self._bar("expired", lambda run, _index: run.deadline <= self.clock.now())
            case Close():
                if not self.other.closed:
                    engine.close(self.other)
                self._bar("its link has ended", lambda run, _index: run.link is self.other)
            case Drain():
                engine.drain()
                self._bar("the replica drains", lambda run, _index: run.options.method not in YIELDING)
            case CutOff():
                engine.cut_off()
                self._bar("the replica ends", lambda _run, _index: True)

    def check(self) -> None:
        started = self.host.handler.started
        for run in self.runs:
            outbox = self.outboxes[run.link]
            for index, payload in enumerate(self.host.payloads(run)):
                run_id = run.first + index
                if run.link.closed:
                    continue
                assert run_id in outbox.order, f"{run_id} ({run.options.method}) was not answered"
                failure: Failure | None = outbox.failures_of.get(run_id) or outbox.refusals_of.get(run_id)
                if failure is not None and failure.executed is Executed.NO:
                    assert payload not in started, f"{payload!r} started, and was said not to have: {failure.message}"
                else:
                    assert payload in started
                    assert failure is None or failure.executed is Executed.UNKNOWN
        for payload, why in self.barred.items():
            assert payload not in started, f"{payload!r} started, although {why}"
        scheduler = self.host.engine.scheduler
        assert (scheduler.in_use, scheduler.waiting, scheduler.keyed) == (0, 0, 0)
        assert {(link.unkeyed, link.keyed, link.handed, len(link.waiting)) for link in self.outboxes} == {(0, 0, 0, 0)}

    def _submit(self, step: Submit) -> None:
        link = self.other if step.is_others else self.host.link
        if link.closed:
            return
        first = self.host._next
        payloads: Sequence[bytes] = [b"%d" % number for number in range(first, first + step.count)]
        run = self.host.run(
            step.method,
            payloads,
            key=step.key,
            time_left_s=step.time_left_s,
            link=link,
            streaming=step.method in YIELDING,
        )
        self.runs.append(run)
        self.host.engine.submit([run])

    def _bar(self, why: str, is_meant: Callable[[ReplicaRun, int], bool]) -> None:
        """What another thread has taken may have started a moment ago, so nothing is said of it here."""
        for run in self.runs:
            if self.own_loop or "thread" in run.options.method:
                continue
            for index, payload in enumerate(self.host.payloads(run)):
                if is_meant(run, index) and payload not in self.host.handler.started:
                    self.barred.setdefault(payload, why)


async def _play(steps: Sequence[Turns], *, own_loop: bool) -> None:
    clock = FakeClock()
    async with hosting(Handler, clock, clock=clock, max_ongoing=5, prefetch=3, own_loop=own_loop) as host:
        other, _ = open_link(host.engine)
        other.outbox = outbox = RememberingOutbox()
        host.engine._links[other] = outbox  # type: ignore[assignment]
        errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
        story = Story(host, clock, other, {host.link: host.outbox, other: outbox}, own_loop)
        for step, turns in steps:
            story.play(step)
            await _turn(turns)
        host.handler.open()
        await wait_until(lambda: host.handler.open() or host.engine.scheduler.is_idle, what="all calls have ended")
        await _turn(3)
        assert not errors
        story.check()


async def _turn(times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("own_loop", [False, True], ids=["the service's loop", "a loop of its own"])
def test_every_call_ends_once_and_none_starts_that_must_not(own_loop: bool) -> None:
    for seed in random.sample(range(2**32), TRIALS):
        story = _some_story(random.Random(seed))
        try:
            asyncio.run(_play(story, own_loop=own_loop))
        except AssertionError as error:
            raise AssertionError(f"{error}\nseed {seed}: {story}") from error
