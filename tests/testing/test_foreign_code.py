"""Foreign code that raises, at every place where a replica or a client calls it: its call fails, and nothing else.

A real mesh: culprits leave in one frame with good calls of the same client, while another client makes good ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

import slotmesh
import slotmesh.testing
from slotmesh.codec import JSON, MSGPACK, DecodeError
from slotmesh.errors import Executed, Reason
from slotmesh.testing import Backend, RunningMesh
from tests.support.foreign_code import KINDS, Picky, Trap

pytestmark = pytest.mark.asyncio(loop_scope="module")

WITHIN_S = 20.0
"""What no wait here comes near."""


class Trials:
    async def on_loop(self, trap: Trap) -> Any:
        return trap.act()

    async def that_waits(self, trap: Trap) -> Any:
        await asyncio.sleep(0)
        return trap.act()

    def in_thread(self, trap: Trap) -> Any:
        return trap.act()

    @slotmesh.batch(max_batch_size=50)
    async def batch_on_loop(self, traps: list[Trap]) -> list[Any]:
        return [trap.act() for trap in traps]

    @slotmesh.batch(max_batch_size=50)
    def batch_in_thread(self, traps: list[Trap]) -> list[Any]:
        return [trap.act() for trap in traps]

    async def values_on_loop(self, trap: Trap) -> AsyncIterator[Any]:
        yield trap.act()

    def values_in_thread(self, trap: Trap) -> Iterator[Any]:
        yield trap.act()

    @slotmesh.batch(max_batch_size=50)
    async def batch_of_values(self, traps: list[Trap]) -> AsyncIterator[list[Any]]:
        yield [trap.act() for trap in traps]

    async def echo(self, kinds: str) -> dict[str, str]:
        return {"kind": kinds}

    async def echoes(self, kinds: Sequence[str]) -> AsyncIterator[dict[str, str]]:
        for kind in kinds:
            yield {"kind": kind}


SINGLE = ("on_loop", "that_waits", "in_thread", "values_on_loop", "values_in_thread")
BATCHES = ("batch_on_loop", "batch_in_thread", "batch_of_values")
PLACES = [
    *((method, at) for method in (*SINGLE, *BATCHES) for at in ("decode", "encode")),
    *((method, "run") for method in SINGLE),
    *((method, "entry") for method in BATCHES),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh() -> AsyncIterator[RunningMesh]:
    own_loop = slotmesh.deployment(own_loop=True)(type("OwnLoop", (Trials,), {}))
    async with slotmesh.testing.mesh({"shared": Backend(Trials), "own": Backend(own_loop)}) as mesh:
        yield mesh


def expected(kind: str, at: str) -> str:
    """What the message names: Python itself makes another error of a StopIteration in a coroutine or a generator."""
    return "Stop" if kind.startswith("Stop") and at == "run" else "ecursion" if kind == "RecursionError" else kind


@pytest.mark.parametrize("content_type", [MSGPACK, JSON])
@pytest.mark.parametrize("endpoint", ["shared", "own"])
@pytest.mark.parametrize(("method", "at"), PLACES, ids="-".join)
async def test_at_a_replica_only_the_culprits_call_fails(
    mesh: RunningMesh, endpoint: str, method: str, at: str, content_type: str
) -> None:
    kinds = [kind for kind in KINDS if not (at == "entry" and method == "batch_of_values" and kind.startswith("Stop"))]
    async with slotmesh.connect(mesh.router_addresses[0]) as other, asyncio.timeout(WITHIN_S):
        calls = mesh.endpoint(endpoint).options(content_type=content_type).method(method)
        others = other.endpoint(endpoint).options(content_type=content_type).method(method)
        made: list[tuple[str, Any]] = []
        for kind in kinds:
            made += [("", calls({"kind": "good"})), (kind, calls({"kind": kind, "at": at}))]
        made += [("", others({"kind": "good"})) for _ in range(20)]
        outcomes = await asyncio.gather(*(each for _, each in made), return_exceptions=True)
        good = ["good"] if "values" in method else "good"
        for (kind, _), outcome in zip(made, outcomes, strict=True):
            if not kind:
                assert outcome == good
                continue
            assert isinstance(outcome, slotmesh.SlotmeshError), kind
            assert expected(kind, at) in str(outcome)
            assert outcome.executed is (Executed.NO if at == "decode" else Executed.YES), str(outcome)
            assert outcome.reason == (Reason.BAD_ARGUMENTS if at == "decode" else Reason.HANDLER_ERROR)
        assert await calls({"kind": "good"}) == good
        assert await calls.map([{"kind": "good"}] * 3) == [good] * 3


@pytest.mark.parametrize("kind", KINDS)
async def test_a_lane_goes_on_behind_the_culprit(mesh: RunningMesh, kind: str) -> None:
    for method in ("on_loop", "in_thread", "batch_on_loop", "batch_in_thread"):
        async with asyncio.timeout(WITHIN_S), mesh.endpoint("shared").ordered(f"{kind}-{method}") as lane:
            calls = lane.method(method)
            made = [calls({"kind": each, "at": at}) for each in ("a", kind, "b") for at in ("decode", "encode")]
            outcomes = await asyncio.gather(*made, return_exceptions=True)
        assert [isinstance(each, slotmesh.SlotmeshError) for each in outcomes[2:4]] == [True, True]
        assert [each.executed for each in outcomes[2:4] if isinstance(each, slotmesh.SlotmeshError)] == [
            Executed.NO,
            Executed.YES,
        ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content_type", [MSGPACK, JSON])
async def test_a_result_that_is_not_what_was_asked_for_ends_its_call(
    mesh: RunningMesh, kind: str, content_type: str
) -> None:
    """By stream, unary, direct, in a slot, of a map and of values: its neighbours on the stream have their results."""
    endpoint = mesh.endpoint("shared").options(content_type=content_type)
    method = endpoint.echo.returning(Picky)
    async with asyncio.timeout(WITHIN_S):
        neighbours = [endpoint.echo("good") for _ in range(5)]
        culprit = method(kind)
        neighbours += [endpoint.echo("good") for _ in range(5)]
        found: list[BaseException | Any] = [*await asyncio.gather(culprit, method.unary(kind), return_exceptions=True)]
        assert await asyncio.gather(*neighbours) == [{"kind": "good"}] * 10
        async with endpoint.direct() as lanes:
            direct = lanes.echo.returning(Picky)
            outcomes = await asyncio.gather(direct("a"), direct(kind), direct("b"), return_exceptions=True)
            assert (outcomes[0], outcomes[2]) == (Picky("a"), Picky("b"))
            found.append(outcomes[1])
        async with endpoint.reserve() as slot:
            found += await asyncio.gather(slot.echo.returning(Picky)(kind), return_exceptions=True)
        first, undecodable, last = await method.map(["a", kind, "b"], return_exceptions=True)
        assert (first, last) == (Picky("a"), Picky("b"))
        found.append(undecodable)
        with pytest.raises(DecodeError):
            await method.map(["a", kind, "b"])
        values = endpoint.echoes.returning(Picky).stream(["a", kind, "b"])
        assert await anext(values) == Picky("a")
        found += await asyncio.gather(anext(values), return_exceptions=True)
        with pytest.raises(StopAsyncIteration):
            await anext(values)
        assert len(found) == 6
        for error in found:
            assert isinstance(error, DecodeError), error
            assert error.executed is Executed.YES
            assert ("ecursion" if kind == "RecursionError" else kind) in str(error)
        assert await method.map(["a", "b"]) == [Picky("a"), Picky("b")]


@pytest.mark.parametrize("kind", KINDS)
async def test_for_threads_it_is_the_same(mesh: RunningMesh, kind: str) -> None:
    def program() -> list[Any]:
        with slotmesh.connect_sync(mesh.router_addresses[0]) as sync_mesh:
            endpoint = sync_mesh.endpoint("shared")
            method = endpoint.echo.returning(Picky)
            neighbours = [endpoint.echo.future("good") for _ in range(5)]
            found = [method.future(kind).exception(WITHIN_S)]
            assert [each.result(WITHIN_S) for each in neighbours] == [{"kind": "good"}] * 5
            first, undecodable, last = method.map(["a", kind, "b"], return_exceptions=True)
            assert (first, last) == (Picky("a"), Picky("b"))
            with endpoint.direct() as lanes:
                found.append(lanes.echo.returning(Picky).future(kind).exception(WITHIN_S))
            values = endpoint.echoes.returning(Picky).stream(["a", kind])
            assert next(values) == Picky("a")
            try:
                next(values)
            except DecodeError as error:
                found.append(error)
            return [*found, undecodable]

    found = await asyncio.to_thread(program)
    assert [type(error) for error in found] == [DecodeError] * 4


@pytest.mark.parametrize("kind", KINDS)
async def test_a_callback_that_raises_takes_no_outcome_from_another_call(mesh: RunningMesh, kind: str) -> None:
    def program() -> list[Any]:
        with slotmesh.connect_sync(mesh.router_addresses[0]) as sync_mesh:
            echo = sync_mesh.endpoint("shared").echo
            futures = [echo.future(str(number)) for number in range(5)]
            for future in futures[1:4]:
                future.add_done_callback(lambda _: KINDS[kind]())
            return [*(each.result(WITHIN_S) for each in futures), echo("next")]

    assert [each["kind"] for each in await asyncio.to_thread(program)] == ["0", "1", "2", "3", "4", "next"]
