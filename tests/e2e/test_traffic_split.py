"""Weights, shadows and shard keys through real routers: counts of the backends that execute the calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable, Iterable
from math import sqrt
from pathlib import Path

import pytest

import slotmesh
from benchmarks.frames import FrameStream, frame_stream
from benchmarks.processes import ProcessMesh, ServerProcess, process_mesh
from slotmesh.convert.batches import ids_of_results
from slotmesh.runtime.channels import open_channel
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy
from tests.support.metrics import Metrics
from tests.support.recorder import VARIABLE, Event, read_records

WEIGHTS = {"a": 0.9, "b": 0.09, "c": 0.01}
SHADOWS = {"d": 0.2, "e": 0.2}
CALLS = 40_000
MAP_CALLS = 1_000
PAIRED_CALLS = 10_000
IN_FLIGHT = 256
"""Fewer than a shadow has slots: none is dropped for want of one."""
KEYS = [f"user-{number}" for number in range(300)]

# Chi-square, exceeded by chance once in 100,000 times.
LIMIT_1_DEGREE = 19.5
LIMIT_2_DEGREES = 23.0


def spec(
    weights: dict[str, float],
    shadows: dict[str, float] | None = None,
    handler: str = "Version",
    max_ongoing: int | None = None,
) -> Mesh:
    names = [*weights, *(shadows or {})]
    handler = f"tests.e2e.traffic_handlers:{handler}"
    return Mesh(
        backends=tuple(
            Backend(name=name, handler=handler, user_config={"name": name}, max_ongoing=max_ongoing) for name in names
        ),
        endpoints=(Endpoint(name="e", traffic=TrafficPolicy(weights=weights, shadows=shadows or {})),),
    )


def assert_share(count: int, of: int, probability: float) -> None:
    """Within four standard deviations of a binomial count."""
    deviation = sqrt(of * probability * (1 - probability))
    assert abs(count - of * probability) < 4 * deviation, (count, of, probability)


def chi_square(pairs: Iterable[tuple[Hashable, Hashable]]) -> float:
    """How far the pairs are from independent. Each pair must be a draw of its own."""
    seen = Counter(pairs)
    total = seen.total()
    rows: Counter[Hashable] = Counter()
    columns: Counter[Hashable] = Counter()
    for (row, column), count in seen.items():
        rows[row] += count
        columns[column] += count
    expected = {(row, column): rows[row] * columns[column] / total for row in rows for column in columns}
    assert min(expected.values()) > 5, "too few for chi-square"
    return sum((seen[pair] - mean) ** 2 / mean for pair, mean in expected.items())


@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_unkeyed_calls_are_divided_by_weight() -> None:
    answered: Counter[str] = Counter()
    async with (
        process_mesh(spec(WEIGHTS)) as mesh,
        slotmesh.connect(mesh.routers[0].address) as client,
    ):
        name = client.endpoint("e").method("name")
        for first in range(0, CALLS, MAP_CALLS):
            answered.update(await name.map(range(first, first + MAP_CALLS)))
    assert answered.total() == CALLS
    for backend, weight in WEIGHTS.items():
        assert_share(answered[backend], CALLS, weight)


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_shadows_are_drawn_independently_of_the_primary_and_of_each_other(tmp_path: Path) -> None:
    """A batch for each call, so that each is a run of its own.

    A run's draws are counts, and slices that begin at a random place: that is right for each call alone, but calls of
    one run are no independent draws, and chi-square would take neighbours in one slice for a dependence. There are
    slots for all copies, however late a replica comes to them: a copy that finds none is dropped.
    """
    file = tmp_path / "records"
    mesh_spec = spec(WEIGHTS, SHADOWS, "RecordedVersion", max_ongoing=PAIRED_CALLS)
    async with (
        process_mesh(mesh_spec, env={VARIABLE: str(file)}) as mesh,
        open_channel(mesh.routers[0].address) as channel,
        frame_stream(channel, "e", "take") as stream,
    ):
        primary = await call_one_by_one(stream, PAIRED_CALLS)
        await all_copies_ended(mesh)
    executed: dict[str, list[int]] = {name: [] for name in [*WEIGHTS, *SHADOWS]}
    for record in read_records(file):
        if record.event is Event.STARTED:
            executed[record.key].append(int(record.call))
    for name in WEIGHTS:
        assert sorted(executed[name]) == sorted(call for call, backend in primary.items() if backend == name)
    copied = {name: set(executed[name]) for name in SHADOWS}
    for name, probability in SHADOWS.items():
        assert len(copied[name]) == len(executed[name]), "a call was copied twice"
        assert_share(len(copied[name]), PAIRED_CALLS, probability)
        assert chi_square((backend, call in copied[name]) for call, backend in primary.items()) < LIMIT_2_DEGREES
    assert chi_square((call in copied["d"], call in copied["e"]) for call in primary) < LIMIT_1_DEGREE


async def all_copies_ended(mesh: ProcessMesh) -> None:
    """Nobody waits for copies: replicas that stop hand back those that they have not begun."""
    async with asyncio.timeout(30):
        while True:
            metrics = Metrics(await mesh.scrape(mesh.routers[0]))
            if not sum(metrics.total("slotmesh_router_ongoing", backend=name) for name in SHADOWS):
                return
            await asyncio.sleep(0.05)  # nobody tells


async def call_one_by_one(stream: FrameStream, calls: int) -> dict[int, str]:
    """Which backend answered each call. The payload of a call is its id."""
    answered: dict[int, str] = {}
    while len(answered) < calls:
        if room := min(IN_FLIGHT - (stream.next_id - 1 - len(answered)), calls + 1 - stream.next_id):
            numbers = range(stream.next_id, stream.next_id + room)
            await stream.send([str(number).encode() for number in numbers], batch=1)
        response = await stream.read()
        assert response is not None
        assert not response.results.errors, response
        for batch in response.results.batches:
            answered.update(zip(ids_of_results(batch), (payload.decode() for payload in batch.payloads), strict=True))
    return answered


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_a_shard_key_has_the_same_backend_at_every_router_and_after_all_restart() -> None:
    weights = {"a": 0.5, "b": 0.3, "c": 0.2}
    async with process_mesh(spec(weights), routers=2) as mesh:
        homes = await backend_of_each_key(mesh.routers[0])
        assert await backend_of_each_key(mesh.routers[1]) == homes
        for backend, weight in weights.items():
            assert_share(Counter(homes.values())[backend], len(KEYS), weight)

        await restart_routers(mesh)
        for router in mesh.routers:
            assert await backend_of_each_key(router) == homes

        # c grows at the cost of both others.
        revision = await mesh.operator.set_traffic(
            "e", TrafficPolicy(weights={"a": 0.25, "b": 0.15, "c": 0.6}), ["weights"]
        )
        await mesh.wait_for_revision(revision)
        after = await backend_of_each_key(mesh.routers[0])
        moved_to = Counter(after[key] for key in KEYS if homes[key] != after[key])
        assert set(moved_to) == {"c"}, "no key moves that need not"
        assert_share(moved_to["c"], len(KEYS), 0.4)
        assert await backend_of_each_key(mesh.routers[1]) == after


async def backend_of_each_key(router: ServerProcess) -> dict[str, str]:
    async with slotmesh.connect(router.address) as client:
        endpoint = client.endpoint("e")
        replies = {key: endpoint.options(shard_key=key).method("name").map(range(3)) for key in KEYS}
        homes = {key: set(await reply) for key, reply in replies.items()}
    assert all(len(backends) == 1 for backends in homes.values()), homes
    return {key: backends.pop() for key, backends in homes.items()}


async def restart_routers(mesh: ProcessMesh) -> None:
    """Others take their place: what a router knew is gone."""
    for router in [*mesh.routers]:
        await mesh.remove_router(router)
        await mesh.add_router()
    await mesh.wait_ready()
