"""Clients of the simulation: the real SDK, and what it is asked to do."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import count
from math import isfinite
from random import Random
from typing import Any, Final

import slotmesh
from simulation.mesh.handlers import RAISE, SWALLOW
from simulation.mesh.history import Recorder
from simulation.mesh.node import Node
from simulation.mesh.reservations import call_in_repeated_slot
from simulation.mesh.scenario import ENDPOINT, ClientPlan, WorkKind, WorkPlan
from tests.history.model import Call

UNANSWERED: Final = 16
"""Calls of one kind of work that may be unanswered."""
PATIENCE_S: Final = 20.0
RECOVERY_S: Final = 10.0
"""What the mesh gets to find itself again, when all is whole."""
LARGE_BYTES: Final = 300_000
VALUES: Final = 8
_KNOWN: Final = {"NO": 0, "UNKNOWN": 1, "YES": 2}
"""Of several attempts at one call, the one that is certain, or else the one that is in doubt."""


async def run_client(node: Node, client: ClientPlan, addresses: list[str], until: float) -> None:
    """Makes calls until then, and hears all outcomes."""
    orders = [addresses]
    if any(work.kind in {WorkKind.REQUEST, WorkKind.RESERVATION} for work in client.work):
        orders += [[*addresses[at:], *addresses[:at]] for at in range(1, len(addresses))]
    meshes = [slotmesh.connect(order, connect_timeout=client.patience_s, close_grace=5.0) for order in orders]
    endpoints = [mesh.endpoint(ENDPOINT) for mesh in meshes]
    try:
        workers = [
            _Worker(node, client.name, number, work, endpoints, until).run() for number, work in enumerate(client.work)
        ]
        await asyncio.gather(*workers)
    finally:
        for mesh in meshes:
            await mesh.aclose()


class _Worker:
    """One kind of work of one client."""

    def __init__(
        self, node: Node, client: str, number: int, work: WorkPlan, endpoints: list[slotmesh.Endpoint], until: float
    ) -> None:
        """`endpoints`: the one to call, and for repetitions others, each by routers in another order."""
        self._world = node.world
        self._asks_again = node.world.scenario.asks_again
        self._timeline = node.world.timeline
        self._recorder: Recorder = node.world.history
        self._chance: Random = node.world.timeline.chance(f"{client} {number}")
        self._client = client
        self._name = f"{client}/{number}"
        self._work = work
        self._until = until
        self._numbers = count()
        self._unanswered: dict[asyncio.Future[Any], None] = {}
        timeout_s = work.timeout_s if isfinite(work.timeout_s) else None
        self._endpoints = [each.options(timeout=timeout_s, idempotent=work.idempotent) for each in endpoints]
        self._endpoint = self._endpoints[0]
        self._generation = 1
        self._has_failed = False
        self._keys = [work.key if work.keys == 1 else f"{work.key}.{each}" for each in range(work.keys)]
        self._sequences = {key: node.world.sequence_of(client, key) for key in self._keys}
        self._lanes: dict[str, Any] = {
            key: self._endpoint.ordered(key, after_failure="stop" if work.kind is WorkKind.STOP else "continue")
            if key
            else self._endpoint
            for key in self._keys
        }

    async def run(self) -> None:
        work = self._work
        while self._timeline.now < self._until:
            if self._has_failed and self._chance.random() < 0.5:
                self._has_failed = False
                self._generation += 1
                for lane in self._lanes.values():
                    lane.reset()
            for _ in range(work.burst):
                self._call()
            await asyncio.sleep(work.pause_s * self._chance.uniform(0.5, 1.5))
            while len(self._unanswered) > UNANSWERED - work.burst:
                await asyncio.wait(self._unanswered, return_when=asyncio.FIRST_COMPLETED)
        while self._unanswered:
            await asyncio.wait(self._unanswered)
        if self._asks_again and work.key:
            await asyncio.sleep(max(0.0, self._world.calm_at() + RECOVERY_S - self._timeline.now))
            await asyncio.gather(*(self._ask(key) for key in self._keys))

    async def _ask(self, key: str) -> None:
        """One more call of a key, with no haste."""
        tag, now = f"{self._name}/{key}/last", self._timeline.now
        call = Call(
            tag=tag,
            client=self._client,
            endpoint=ENDPOINT,
            key=key,
            sequence=next(self._sequences[key]),
            idempotent=True,
            sent_at=now,
            deadline=now + PATIENCE_S,
        )
        self._recorder.called(call)
        if self._world.is_whole():
            self._recorder.must_succeed.add(tag)
        view = self._endpoint.options(timeout=PATIENCE_S, idempotent=True).ordered(key)
        answer: asyncio.Future[Any] = asyncio.ensure_future(view.work(tag, key, 0.0, "", b""))
        answer.add_done_callback(partial(self._hear, tag))
        await asyncio.wait((answer,))

    def _call(self) -> None:
        work, chance, now = self._work, self._chance, self._timeline.now
        number = next(self._numbers)
        key = self._keys[number % len(self._keys)]
        tag = f"{self._name}/{number}"
        how = RAISE if chance.random() < work.fails else SWALLOW if chance.random() < work.swallows else ""
        is_request = work.kind is WorkKind.REQUEST
        call = Call(
            tag=tag,
            # Unary calls have no order.
            client=f"{self._client} {tag}" if is_request else self._client,
            endpoint=ENDPOINT,
            key=key,
            sequence=next(self._sequences[key]) if key else 0,
            idempotent=work.idempotent,
            sent_at=now,
            # A slot takes several rpcs, as repetitions do.
            deadline=None
            if is_request or work.kind in {WorkKind.SLOT, WorkKind.RESERVATION} or not isfinite(work.timeout_s)
            else now + work.timeout_s,
        )
        stops = self._generation if work.kind is WorkKind.STOP else 0
        self._recorder.called(call, stop_generation=stops, is_request=is_request)
        if work.must_succeed and how != RAISE:
            self._recorder.must_succeed.add(tag)
        answer: asyncio.Future[Any]
        if work.kind is WorkKind.STREAM:
            answer = asyncio.ensure_future(self._iterate(tag))
        elif work.kind is WorkKind.SLOT:
            answer = asyncio.ensure_future(self._in_a_slot(tag, how))
        elif work.kind is WorkKind.RESERVATION:
            self._recorder.given_up.add(tag)  # its earlier attempts are
            answer = asyncio.ensure_future(
                call_in_repeated_slot(self._endpoints, tag, work.run_s, how, chance, self._recorder)
            )
        elif is_request:
            answer = asyncio.ensure_future(self._repeated(tag, key, how))
        else:
            answer = self._lanes[key].work(tag, key, work.run_s, how, b"x" * LARGE_BYTES if work.large else b"")
        self._unanswered[answer] = None
        answer.add_done_callback(partial(self._hear, tag))
        if not is_request and chance.random() < work.gives_up:
            self._later(chance.choice((0.0, work.run_s * chance.random(), chance.random())), answer, tag)

    def _later(self, delay_s: float, answer: asyncio.Future[Any], tag: str) -> None:
        def give_up() -> None:
            if not answer.done():
                self._recorder.given_up.add(tag)
                answer.cancel()

        asyncio.get_running_loop().call_later(delay_s, give_up)

    def _hear(self, tag: str, answer: asyncio.Future[Any]) -> None:
        self._unanswered.pop(answer, None)
        if answer.cancelled():
            self._has_failed = self._work.kind is WorkKind.STOP
            self._recorder.heard(tag, reason="CANCELLED", executed="UNKNOWN")
            return
        error = answer.exception()
        if error is None:
            self._recorder.heard(tag, reply=answer.result())
        elif isinstance(error, slotmesh.SlotmeshError):
            self._has_failed = self._work.kind is WorkKind.STOP
            self._recorder.heard(tag, reason=error.reason.value, executed=error.executed.name)
        else:
            raise error

    async def _iterate(self, tag: str) -> str:
        values = [value async for value in self._endpoint.spell.stream(tag, VALUES, self._work.run_s)]
        return tag if values == [tag] * VALUES else f"{values}"

    async def _in_a_slot(self, tag: str, how: str) -> str:
        async with self._endpoint.reserve(timeout=min(self._work.timeout_s, 60.0), ttl=2.0) as slot:
            if self._chance.random() < 0.3:
                await asyncio.sleep(self._chance.random())
            reply: str = await slot.work(tag, "", self._work.run_s, how, b"")
        return reply

    # -- calls with a request id -----------------------------------------------------------------------------------

    async def _repeated(self, tag: str, key: str, how: str) -> str:
        """Up to `attempts` attempts, at any router each: the result that all get which get one.

        Raises:
            SlotmeshError: no attempt has a result. It was executed if one attempt got that answer, and not if all did.
        """
        chance, run_s = self._chance, self._work.run_s
        delays = [0.0, *(chance.choice((0.0, run_s * chance.random(), 3.0 * chance.random())) for _ in range(2))]
        delays = delays[: chance.randint(1, self._work.attempts)]
        attempts = [self._attempt(tag, key, how, delay_s) for delay_s in delays]
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        results = {it for it in outcomes if isinstance(it, str)}
        if results:
            return results.pop() if len(results) == 1 else f"{results}"
        failures = [it for it in outcomes if isinstance(it, slotmesh.SlotmeshError)]
        for each in outcomes:
            if isinstance(each, asyncio.CancelledError):
                self._recorder.given_up.add(tag)
            elif isinstance(each, BaseException) and each not in failures:
                raise each
        if len(failures) < len(outcomes):
            raise asyncio.CancelledError
        raise max(failures, key=lambda it: _KNOWN[it.executed.name])

    async def _attempt(self, tag: str, key: str, how: str, delay_s: float) -> str:
        chance = self._chance
        view = chance.choice(self._endpoints).options(request_id=tag.replace("/", "-"))
        await asyncio.sleep(delay_s)
        self._recorder.attempted(tag)
        blob = b"x" * LARGE_BYTES if self._work.large else b""
        method = (view.ordered(key) if key else view).work
        rpc: asyncio.Future[str] = asyncio.ensure_future(method.unary(tag, key, self._work.run_s, how, blob))
        if chance.random() < self._work.gives_up:
            asyncio.get_running_loop().call_later(self._work.run_s * 2 * chance.random(), rpc.cancel)
        return await rpc
