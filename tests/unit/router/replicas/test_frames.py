"""What the next frame to a replica carries."""

from __future__ import annotations

import random
from typing import Any

import pytest

from router_service.core.calls import Batch, KeyedBatch, RouterCallOptions
from router_service.core.events import CallsSubmitted
from router_service.core.replicas.frames import OutgoingBatch
from slotmesh.calls.key_hash import partition_of
from slotmesh.calls.trace_context import TraceContext
from slotmesh.streams.chunks import joined
from tests.support.keyed_batches import keyed_batch
from tests.unit.router.world import World
from tests.unit.router.world_callers import Fields, caller, options


def lazy_world(slots: int = 1000, **table: Any) -> World:
    return World({"b": ["r"]}, slots=slots, **{"owner": ("r", 1), "lazy": True, **table})


def calls_of(batch: OutgoingBatch) -> list[int]:
    return [int(joined(payload)) for payload in batch.payloads]


def test_equal_calls_of_different_callers_are_one_batch() -> None:
    world = lazy_world()
    world.submit([1, 2], method="m")
    world.submit([3], by=caller(), method="n")
    world.submit([4], by=caller(), method="m")
    world.submit([5], method="n")
    batches = world.cut("r")
    assert [(calls_of(batch), batch.options.method) for batch in batches] == [([1, 2, 4], "m"), ([3, 5], "n")]


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "n"},
        {"content_type": "application/json"},
        {"timeout_s": 5.0},
        {"idempotent": True},
        {"ordering_key": "k"},
    ],
)
def test_what_a_replica_could_tell_apart_is_not_one_batch(fields: Fields) -> None:
    world = lazy_world()
    world.submit([1])
    world.submit([2], **fields)
    world.submit([3])
    assert [calls_of(batch) for batch in world.cut("r")] == [[1, 3], [2]]


def test_calls_that_take_several_results_have_less_credit_the_more_their_caller_has() -> None:
    world, other = lazy_world(), caller()
    for call_id in range(1, 9):
        world.submit([call_id], streaming=True)
    world.submit([9], by=other, streaming=True)
    batches = world.cut("r")
    assert [(calls_of(batch), batch.level) for batch in batches] == [
        ([1, 9], 0),
        ([2, 3], 1),
        ([4, 5, 6, 7], 2),
        ([8], 3),
    ]
    world.submit([10, 11], by=other, streaming=True)
    assert [batch.level for batch in world.cut("r")] == [1]


@pytest.mark.parametrize("fields", [{"shard_key": "s"}, {"slo_s": 0.5}, {"slo_at": 10.0}])
def test_what_only_routing_reads_does_not_divide_a_batch(fields: Fields) -> None:
    world = lazy_world()
    world.submit([1])
    world.submit([2], **fields)
    assert [calls_of(batch) for batch in world.cut("r")] == [[1, 2]]


def test_equal_timeouts_of_different_arrivals_are_different_deadlines() -> None:
    world = lazy_world()
    for now in (0.0, 1.0, 1.0):
        world.now = now
        world.submit([len(world.caller.runs) + 1], timeout_s=5.0)
    assert [(calls_of(batch), batch.deadline) for batch in world.cut("r")] == [([1], 5.0), ([2, 3], 6.0)]


@pytest.mark.parametrize(("size", "sizes"), [(1, [1] * 7), (3, [3, 3, 1]), (7, [7]), (1024, [7])])
def test_a_batch_has_the_backends_max_batch_size_at_most(size: int, sizes: list[int]) -> None:
    for parts in ([7], [2, 5], [1] * 7):
        world = lazy_world(settings={"max_wire_batch_size": size})
        calls = iter(range(7))
        for count in parts:
            world.submit([next(calls) for _ in range(count)])
        batches = world.cut("r")
        assert [len(batch.payloads) for batch in batches] == sizes
        assert world.got("r") == list(range(7))


def test_run_ids_are_consecutive_in_the_order_of_the_frame() -> None:
    world = lazy_world(settings={"max_wire_batch_size": 2})
    world.submit([1], method="m")
    world.submit([2, 3], method="n")
    world.submit([4, 5], method="m")
    world.submit([6], ordering_key="k")
    batches = world.cut("r")
    assert [(batch.first_run_id, calls_of(batch)) for batch in batches] == [
        (1, [1, 4]),
        (3, [5]),
        (4, [2, 3]),
        (6, [6]),
    ]
    world.submit([7])
    assert world.cut("r")[0].first_run_id == 7
    assert world.at_replica("r") == [1, 4, 5, 2, 3, 6, 7]
    world.complete("r", 4, 2, 7)
    assert set(world.outcomes) == {2, 4, 7}


@pytest.mark.parametrize("batch_size", [1, 2, 1024])
def test_calls_of_one_key_keep_their_order_whatever_their_options(batch_size: int) -> None:
    draw = random.Random(batch_size)
    for _ in range(100):
        world = lazy_world(settings={"max_wire_batch_size": batch_size})
        keys = {call_id: draw.choice(("red", "green", "")) for call_id in range(30)}
        for call_id, key in keys.items():
            world.submit([call_id], ordering_key=key, method=draw.choice("ab"), timeout_s=draw.choice((5.0, 9.0)))
        while world.replicas["r"].outbox:
            world.cut("r", max_calls=draw.choice((1, 10, 100)))
        for key in ("red", "green"):
            mine = [call_id for call_id in world.got("r") if keys[call_id] == key]
            assert mine == sorted(mine)
        assert sorted(world.got("r")) == list(keys)


def test_calls_that_differ_in_their_keys_alone_share_a_batch() -> None:
    world = lazy_world()
    for call_id, key in enumerate(["k", "j", "k", "j"]):
        world.submit([call_id], ordering_key=key)
    (batch,) = world.cut("r")
    assert calls_of(batch) == [0, 1, 2, 3]
    assert [batch.lane(at) for at in range(4)] == [(key, partition_of(key), 1) for key in "kjkj"]


def test_a_batch_of_one_key_has_no_columns() -> None:
    world = lazy_world()
    for call_id in (1, 2):
        world.submit([call_id], ordering_key="k")
    (batch,) = world.cut("r")
    assert (batch.columns, batch.lane(1)) == (None, ("k", partition_of("k"), 1))


def test_columns_are_cut_with_the_batch() -> None:
    world = lazy_world(settings={"max_wire_batch_size": 2})
    for call_id, key in enumerate("abc"):
        world.submit([call_id], ordering_key=key)
    first, second = world.cut("r")
    assert [first.lane(0)[0], first.lane(1)[0], second.lane(0)[0]] == ["a", "b", "c"]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_that_is_parallel_to_calls_is_cut_with_the_batch(size: int) -> None:
    world = lazy_world(settings={"max_wire_batch_size": size})
    client = world.connect()
    batches: list[Batch | KeyedBatch] = [
        (options(shard_key=f"s{call_id}"), [call_id], [b"%d" % call_id]) for call_id in (2, 3, 5, 8, 9)
    ]
    world.step(CallsSubmitted(client, "e", batches, {call_id: TraceContext(f"t{call_id}") for call_id in (3, 8, 9)}))
    cut = world.cut("r")
    assert [len(batch.payloads) for batch in cut] == {1: [1] * 5, 2: [2, 2, 1], 3: [3, 2]}[size]
    found: list[tuple[int, int, str, str | None]] = []
    for batch in cut:
        keys = batch.shard_keys if len(batch.payloads) > 1 else batch.shard_keys[:1]
        traces = batch.traces or [None] * len(batch.payloads)
        found += zip(calls_of(batch), batch.call_ids, keys, [it and it.traceparent for it in traces], strict=True)
    assert found == [(2, 2, "s2", None), (3, 3, "s3", "t3"), (5, 5, "s5", None), (8, 8, "s8", "t8"), (9, 9, "s9", "t9")]


def test_calls_of_a_key_that_has_another_batch_since_do_not_go_before_it() -> None:
    world = lazy_world()
    world.submit([1], ordering_key="k", method="a")
    world.submit([2], ordering_key="j", method="b")
    world.submit([3], ordering_key="k", method="b")
    world.submit([4], ordering_key="k", method="a")
    world.submit([5], ordering_key="j", method="a")
    assert [calls_of(batch) for batch in world.cut("r")] == [[1], [2, 3], [4, 5]]


def test_each_call_of_a_batch_has_the_epoch_at_which_it_was_sent() -> None:
    world = lazy_world()
    world.submit([1], ordering_key="k")
    world.owner = ("r", 2)
    world.push()
    world.submit([2], ordering_key="j")
    (batch,) = world.cut("r")
    assert [batch.lane(at)[2] for at in range(2)] == [1, 2]


def test_a_keyed_batch_says_which_partition_and_epoch() -> None:
    world = lazy_world()
    world.submit([1], ordering_key="k")
    world.submit([2])
    keyed, plain = world.cut("r")
    assert (keyed.partition, keyed.owner_epoch) == (keyed.options.partition, 1)
    assert (plain.partition, plain.owner_epoch) == (-1, 0)


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_copy_of_a_keyed_call_travels_without_its_key_and_never_with_the_primary(epoch: int) -> None:
    world = lazy_world(shadows={"b": 1.0}, owner=("r", epoch))
    world.submit([1], ordering_key="k")
    world.submit([2], ordering_key="k")
    primary, copies = world.cut("r")
    assert (calls_of(primary), primary.partition >= 0) == ([1, 2], True)
    assert (calls_of(copies), copies.partition, copies.owner_epoch) == ([1, 2], -1, 0)


@pytest.mark.parametrize("between", [False, True])
def test_copies_that_replicas_of_their_primary_get_are_a_batch_of_their_own(between: bool) -> None:
    world = lazy_world(shadows={"b": 1.0})
    world.submit([1])
    if between:
        world.submit([2], method="n")
    world.submit([3])
    batches = world.cut("r")
    assert [each for batch in batches if not batch.is_shadow for each in calls_of(batch)] == [1, 3, *[2] * between]
    assert [each for batch in batches if batch.is_shadow for each in calls_of(batch)] == [1, 3, *[2] * between]


@pytest.mark.parametrize("between", [[], ["f"]])
def test_calls_of_two_endpoints_are_two_batches(between: list[str]) -> None:
    world = lazy_world(endpoints=["e", "f"])
    for call_id, endpoint in enumerate(["e", *between, "e", "f"]):
        world.submit([call_id], to=endpoint)
    assert [batch.endpoint for batch in world.cut("r")] == ["e", "f"]


def test_a_second_attempt_is_another_batch() -> None:
    world = World({"b": ["r1", "r2"]}, slots=10)
    world.report("r2", others=10)
    world.submit([1], idempotent=True)
    world.lazy = True
    world.report("r2")
    world.lose("r1")
    world.submit([2], idempotent=True)
    assert [(calls_of(batch), batch.attempt) for batch in world.cut("r2")] == [([1], 1), ([2], 0)]


@pytest.mark.parametrize(("most", "frames"), [(1, [3, 3, 3]), (4, [6, 3]), (6, [6, 3]), (7, [9])])
def test_a_frame_ends_with_the_slice_that_passes_its_bound(most: int, frames: list[int]) -> None:
    world = lazy_world()
    for first in (1, 4, 7):
        world.submit(range(first, first + 3))
    sizes = []
    while world.replicas["r"].outbox:
        sizes.append(sum(len(batch.payloads) for batch in world.cut("r", max_calls=most)))
    assert sizes == frames


def test_bytes_bound_a_frame_likewise() -> None:
    world = lazy_world()
    for call_id in (1_000_001, 1_000_002, 1_000_003):
        world.submit([call_id])
    frame = world.scheduler.cut_frame(world.replicas["r"], 10**6, 10)
    assert sum(len(batch.payloads) for batch in frame) == 2


@pytest.mark.parametrize("what", ["options", "keys", "traces"])
def test_what_is_beside_payloads_counts_as_well(what: str) -> None:
    """Two of three slices pass 1,000 bytes, of which payloads have next to none."""
    world = lazy_world()
    long = "x" * 600
    batches: list[Batch | KeyedBatch] = []
    for first in (1, 4, 7):
        ids, payloads = range(first, first + 2), [b"", b""]
        if what == "keys":
            batches.append(keyed_batch(options(), ids, payloads, [f"{long}{first}", f"{long}{first}b"]))
        else:
            batches.append((RouterCallOptions(wire=long.encode() if what == "options" else b""), ids, payloads))
    traces = {call_id: TraceContext(long) for call_id in range(1, 10)} if what == "traces" else None
    world.step(CallsSubmitted(world.caller, "e", batches, traces))
    most = 2_000 if what == "keys" else 1_000
    frame = world.scheduler.cut_frame(world.replicas["r"], 10**6, most)
    assert sum(len(batch.payloads) for batch in frame) == (2 if what == "traces" else 4)


def test_nothing_is_no_frame() -> None:
    world = lazy_world()
    assert world.cut("r") == []


def test_a_link_is_told_once_until_its_outbox_is_empty() -> None:
    world = lazy_world()
    for call_id in range(10):
        world.submit([call_id], ordering_key="k" if call_id % 2 else "")
    assert world.flushes == ["r"]
    world.cut("r")
    world.submit([10])
    assert world.flushes == ["r", "r"]
