"""Routers with different tables: a session that moves between them executes each call once.

Two real routers, each with a scripted controller of its own; real replicas and the real client. Each router is behind a
proxy, by which clients lose it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest
import pytest_asyncio

import slotmesh
from router_service.app import serve
from router_service.config import RouterSettings
from slotmesh.codec import OCTET_STREAM
from slotmesh.errors import Executed, Reason
from tests.support.fakes.controller import FakeController, fake_controller, table
from tests.support.gated_handler import Gated
from tests.support.replicas import RunningReplica, running_replica
from tests.support.tables import linked_ids
from tests.support.tcp_proxy import TcpProxy, tcp_proxy
from tests.support.tiers import long
from tests.support.wait import wait_until

PATIENCE_S = 15.0
"""Longer than a router waits for a table."""


@dataclass
class Side:
    """A router, the controller that it listens to, and the way of clients to it."""

    controller: FakeController
    proxy: TcpProxy
    leave: AsyncExitStack
    """Closed, the router stops in order."""
    revision: int = 0


@dataclass
class Divided:
    """Two routers, and replicas `r0`, `r1`, `r2`."""

    sides: list[Side]
    replicas: list[RunningReplica]
    departed: list[tuple[str, int]] = field(default_factory=list)
    """Replica ids, and the roster that was the first without each."""

    async def tell(
        self, number: int, *replicas: int, roster: int, generation: str = "g", owner: int | None = None, epoch: int = 1
    ) -> None:
        """The controller of one router names these replicas; returns when the router has that table."""
        side = self.sides[number]
        side.revision += 1
        named = {f"r{each}": self.replicas[each].address for each in replicas}
        wire = table(side.revision, named, max_ongoing=4, roster_revision=roster, epoch=epoch)
        wire.generation = generation
        for route in wire.backends[0].replicas:
            route.incarnation = self.replicas[int(route.replica_id[1:])].app.identity.incarnation
        for each in wire.assignments[0].owners:
            each.incarnation = self.replicas[int(each.replica_id[1:])].app.identity.incarnation
        if owner is not None:
            at = [each.replica_id for each in wire.assignments[0].owners].index(f"r{owner}")
            wire.assignments[0].partition_owners[:] = [at] * len(wire.assignments[0].partition_owners)
        for replica_id, revision in self.departed:
            wire.departed.add(replica_id=replica_id, incarnation="gone", generation="g", revision=revision)
        side.controller.push(wire)
        linked = sorted(named)
        await wait_until(
            lambda: any(
                (report.revision, report.generation, linked_ids(report)) == (side.revision, generation, linked)
                for report in side.controller.reports
            ),
            what=f"router {number} has roster {roster}",
        )

    def handler(self, number: int) -> Gated:
        handler = self.replicas[number].handler
        assert isinstance(handler, Gated)
        return handler

    @property
    def executions(self) -> Counter[bytes]:
        """How often each payload was executed."""
        return Counter(payload for number in range(len(self.replicas)) for payload in self.handler(number).seen)

    def open_gates(self) -> None:
        for number in range(len(self.replicas)):
            self.handler(number).gate.set()


@pytest_asyncio.fixture
async def divided() -> AsyncIterator[Divided]:
    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(
                running_replica("tests.support.gated_handler:Gated", replica_id=f"r{number}", backend="b")
            )
            for number in range(3)
        ]
        mesh = Divided([await _side(stack) for _ in range(2)], replicas)
        yield mesh
        mesh.open_gates()
        for side in mesh.sides:
            side.proxy.heal()


async def _side(stack: AsyncExitStack) -> Side:
    controller = await stack.enter_async_context(fake_controller())
    leave = await stack.enter_async_context(AsyncExitStack())
    proxy = await stack.enter_async_context(tcp_proxy())
    settings = RouterSettings(port=0, metrics_port=-1, controller=controller.address, advertise=proxy.address)
    server = await leave.enter_async_context(serve(settings))
    proxy.target = server.address
    return Side(controller, proxy, leave)


@asynccontextmanager
async def client_of(mesh: Divided) -> AsyncIterator[slotmesh.Endpoint]:
    """A client that begins at the first router, and knows both."""
    addresses = [side.proxy.address for side in mesh.sides]
    async with slotmesh.connect(addresses, connect_timeout=PATIENCE_S) as client:
        yield client.endpoint("echo").options(content_type=OCTET_STREAM)


async def begun(mesh: Divided, count: int) -> None:
    await wait_until(lambda: sum(mesh.executions.values()) == count, what=f"{count} executions have begun")


async def queued(mesh: Divided, count: int) -> None:
    await wait_until(
        lambda: any(load.queued == count for load in mesh.sides[0].controller.reports[-1].loads),
        what=f"{count} calls wait at the first router",
    )


async def outcomes(calls: Sequence[asyncio.Future[bytes]]) -> list[object]:
    async with asyncio.timeout(PATIENCE_S):
        return [*await asyncio.gather(*calls, return_exceptions=True)]


def payloads(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def is_unknown(outcome: object, reason: Reason) -> bool:
    return (
        isinstance(outcome, slotmesh.SlotmeshError)
        and outcome.reason == reason.value
        and outcome.executed is Executed.UNKNOWN
    )


@pytest.mark.asyncio
@pytest.mark.parametrize("comes", [True, long(False)])
async def test_a_replica_that_the_next_router_does_not_know_yet_is_waited_for(divided: Divided, comes: bool) -> None:
    await divided.tell(1, 0, roster=1)
    await divided.tell(0, 0, 1, roster=2)
    async with client_of(divided) as endpoint:
        calls = [endpoint(payload) for payload in payloads(8)]
        await begun(divided, 8)
        assert divided.handler(1).seen, "both replicas have some"
        divided.sides[0].proxy.cut()
        if comes:
            await divided.tell(1, 0, 1, roster=2)
            divided.open_gates()
            assert await outcomes(calls) == payloads(8)
        else:
            divided.open_gates()
            ends = await outcomes(calls)
            lost = [number for number, end in enumerate(ends) if is_unknown(end, Reason.ROUTER_LOST)]
            assert [payloads(8)[number] for number in lost] == sorted(divided.handler(1).seen)
            assert all(ends[number] == payloads(8)[number] for number in range(8) if number not in lost)
        assert set(divided.executions.values()) == {1}
        assert len(divided.executions) == 8


@pytest.mark.asyncio
async def test_a_router_that_leaves_starts_nothing_at_replicas_that_join_after_its_clients_went(
    divided: Divided,
) -> None:
    first, second = divided.sides
    await divided.tell(0, 0, roster=1)
    await divided.tell(1, 0, roster=1)
    async with client_of(divided) as endpoint:
        values = endpoint.method("values").stream(b"v")
        assert await anext(values) == b"v"
        calls = [endpoint(payload) for payload in payloads(6)]
        await begun(divided, 3)
        leaving = asyncio.create_task(first.leave.aclose())
        await wait_until(lambda: second.proxy.is_used, what="the client goes on at the other router")
        await divided.tell(1, 0, 1, roster=2)
        await begun(divided, 6)
        await divided.tell(0, 0, 2, roster=3)
        divided.open_gates()
        assert await outcomes(calls) == payloads(6)
        assert [value async for value in values] == [b"v"]
        await leaving
        assert divided.executions == Counter(payloads(6))
        assert not divided.handler(2).seen


@pytest.mark.long
@pytest.mark.asyncio
async def test_a_table_of_a_controller_that_remembers_nobody_proves_nothing(divided: Divided) -> None:
    await divided.tell(0, 0, roster=1)
    await divided.tell(1, roster=1, generation="fresh")
    async with client_of(divided) as endpoint:
        calls = [endpoint(payload) for payload in payloads(4)]
        await begun(divided, 4)
        divided.sides[0].proxy.cut()
        divided.open_gates()
        assert all(is_unknown(end, Reason.ROUTER_LOST) for end in await outcomes(calls))
        assert divided.executions == Counter(payloads(4))


@pytest.mark.asyncio
async def test_a_session_that_moves_to_a_router_without_a_table_is_answered(divided: Divided) -> None:
    await divided.tell(0, 0, roster=1)
    async with client_of(divided) as endpoint:
        calls = [endpoint(payload) for payload in payloads(4)]
        await begun(divided, 4)
        divided.sides[0].proxy.cut()
        divided.open_gates()
        assert all(is_unknown(end, Reason.ROUTER_LOST) for end in await outcomes(calls))


@pytest.mark.asyncio
async def test_only_what_was_sent_before_a_replica_departed_may_have_run_there(divided: Divided) -> None:
    await divided.tell(0, 0, roster=1)
    async with client_of(divided) as endpoint:
        before = [endpoint(payload) for payload in payloads(4)]
        await begun(divided, 4)
        older = endpoint(b"older")
        await queued(divided, 1)
        divided.departed.append(("someone", 2))
        await divided.tell(0, 0, roster=2)
        with pytest.raises(slotmesh.DeadlineInQueue):
            await endpoint.options(timeout=0.01)(b"late")  # its answer comes after the roster
        newer = endpoint(b"newer")
        await queued(divided, 2)
        await divided.tell(1, 0, roster=2)
        divided.sides[0].proxy.cut()
        await wait_until(older.done, timeout=PATIENCE_S, what="what may have run at who departed has failed")
        assert is_unknown(older.exception(), Reason.REPLICA_LOST)
        divided.open_gates()
        assert await outcomes([*before, newer]) == [*payloads(4), b"newer"]
        assert divided.executions == Counter([*payloads(4), b"newer"])
