"""The options of calls at the router's edge: what is checked, what routing reads, what a replica gets."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from math import inf
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from router_service import convert
from router_service.convert import options as convert_options
from router_service.core.calls import RouterCallOptions
from slotmesh.calls.key_hash import partition_of
from slotmesh.codec import OCTET_STREAM
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.units import MAX_DURATION_S
from slotmesh.v1 import call_pb2


def options(**fields: Any) -> RouterCallOptions:
    converted = convert.options_from_wire(call_pb2.CallOptions(**fields))
    assert isinstance(converted, RouterCallOptions), converted
    return converted


def mistake(**fields: Any) -> Failure:
    failure = convert.options_from_wire(call_pb2.CallOptions(**fields))
    assert isinstance(failure, Failure)
    assert failure.executed is Executed.NO
    return failure


def at_replica(**fields: Any) -> call_pb2.CallOptions:
    return call_pb2.CallOptions.FromString(options(**fields).wire)


def test_unset_options_have_their_defaults() -> None:
    plain = options()
    assert (plain.method, plain.content_type, plain.partition, plain.timeout_s) == ("", OCTET_STREAM, -1, inf)
    assert (plain.shard_key, plain.slo_s, plain.slo_at, plain.idempotent) == ("", None, None, False)


def test_equal_options_are_one_object() -> None:
    assert options(method="m", ordering_key="k") is options(method="m", ordering_key="k")


def test_large_options_are_not_remembered() -> None:
    large = {"metadata": {"k": "x" * 1000}}
    assert options(**large) == options(**large)
    assert options(**large) is not options(**large)


def test_an_ordering_key_has_its_partition_and_wins_over_a_shard_key() -> None:
    keyed = options(ordering_key="k", shard_key="s")
    assert (keyed.ordering_key, keyed.partition, keyed.shard_key) == ("k", partition_of("k"), "")


def test_partitions_are_part_of_the_contract() -> None:
    assert [partition_of(key) for key in ("", "session-42", "ключ")] == [692, 2732, 2080]


def test_times_are_seconds() -> None:
    timed = options(timeout=Duration(seconds=2, nanos=500_000_000), relative_slo=Duration(nanos=250_000_000))
    assert (timed.timeout_s, timed.slo_s, timed.slo_at) == (2.5, 0.25, None)
    assert options(absolute_slo=Timestamp(seconds=10, nanos=500_000_000)).slo_at == datetime.fromtimestamp(10.5, UTC)
    assert options(timeout=Duration(), relative_slo=Duration()).slo_s == 0.0
    assert options(timeout=Duration()).timeout_s == 0.0


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"content_type": "text/html"}, "content_type"),
        ({"timeout": Duration(nanos=-1)}, "timeout"),
        ({"timeout": Duration(seconds=-1)}, "timeout"),
        ({"timeout": Duration(seconds=1, nanos=-1)}, "timeout"),
        ({"timeout": Duration(nanos=10**9)}, "timeout"),
        ({"timeout": Duration(seconds=MAX_DURATION_S + 1)}, "timeout"),
        ({"timeout": Duration(seconds=2**63 - 1)}, "timeout"),
        ({"relative_slo": Duration(nanos=-1)}, "relative_slo"),
        ({"relative_slo": Duration(seconds=-(2**63))}, "relative_slo"),
        ({"relative_slo": Duration(nanos=2**31 - 1)}, "relative_slo"),
        ({"relative_slo": Duration(seconds=2**63 - 1)}, "relative_slo"),
        ({"absolute_slo": Timestamp(seconds=-1)}, "absolute_slo"),
        ({"absolute_slo": Timestamp(seconds=1, nanos=-1)}, "absolute_slo"),
        ({"absolute_slo": Timestamp(seconds=1, nanos=10**9)}, "absolute_slo"),
        ({"absolute_slo": Timestamp(seconds=253_402_300_800)}, "absolute_slo"),
        ({"absolute_slo": Timestamp(seconds=2**63 - 1)}, "absolute_slo"),
        ({"ordering_key": "k" * 1025}, "ordering_key"),
        ({"ordering_key": "ß" * 513}, "ordering_key"),
        ({"shard_key": "k" * 1025}, "shard_key"),
        ({"shard_key": "ß" * 513}, "shard_key"),
        ({"metadata": {"authorization": "x"}}, "metadata"),
        ({"metadata": {"grpc-trace": "x"}}, "metadata"),
        ({"metadata": {"slotmesh-x": "x"}}, "metadata"),
        ({"metadata": {"Upper": "x"}}, "metadata"),
        ({"metadata": {"": "x"}}, "metadata"),
        ({"metadata": {"k": "x" * 9000}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(65)}}, "metadata"),
    ],
)
def test_a_mistake_is_told_with_its_field(fields: dict[str, Any], name: str) -> None:
    failure = mistake(**fields)
    assert failure.reason is Reason.BAD_REQUEST
    assert failure.metadata["field"] == f"options.{name}"
    assert failure.message.startswith(f"options.{name}: ")


@pytest.mark.parametrize(
    "fields",
    [
        {"timeout": Duration(seconds=MAX_DURATION_S, nanos=999_999_999)},
        {"relative_slo": Duration(seconds=MAX_DURATION_S)},
        {"absolute_slo": Timestamp(seconds=253_402_300_799, nanos=999_999_999)},
        {"shard_key": "k" * 1024},
        {"ordering_key": "ß" * 512},
    ],
)
def test_the_largest_that_is_allowed_is(fields: dict[str, Any]) -> None:
    options(**fields)


def test_private_methods_are_not_methods() -> None:
    assert mistake(method="__init__").reason is Reason.METHOD_NOT_FOUND
    assert options(method="__call__").method == "__call__"


# -- absolute SLOs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("now", "slo_s"), [(90.0, 10.0), (100.0, 0.0), (100.5, 0.0), (10**10, 0.0), (0.0, 100.0)])
def test_an_absolute_slo_counts_from_now_and_one_in_the_past_is_due_at_once(now: float, slo_s: float) -> None:
    timed = convert.with_relative_slo(options(absolute_slo=Timestamp(seconds=100), method="m"), now)
    assert (timed.slo_s, timed.slo_at, timed.method) == (slo_s, None, "m")


def test_options_without_an_absolute_slo_stay_the_same_object() -> None:
    for timed in (options(), options(relative_slo=Duration(seconds=1))):
        assert convert.with_relative_slo(timed, 5.0) is timed


# -- what a replica gets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "routing",
    [
        {"shard_key": "s"},
        {"ordering_key": "k"},
        {"relative_slo": Duration(seconds=1)},
        {"absolute_slo": Timestamp(seconds=1)},
        {"shard_key": "s", "relative_slo": Duration(seconds=1)},
    ],
)
def test_what_only_routing_reads_does_not_reach_a_replica(routing: dict[str, Any]) -> None:
    rest: dict[str, Any] = {"method": "m", "timeout": Duration(seconds=3), "metadata": {"a": "b"}}
    assert at_replica(**rest, **routing) == call_pb2.CallOptions(**rest)
    assert options(**routing).wire == options().wire, "such calls travel as one batch"


def test_all_else_reaches_a_replica() -> None:
    fields: dict[str, Any] = {
        "method": "m",
        "content_type": "application/json",
        "timeout": Duration(seconds=3),
        "idempotent": True,
        "metadata": {"a": "b"},
    }
    assert at_replica(**fields) == call_pb2.CallOptions(**fields)


@pytest.mark.parametrize("stated", ["", "other"])
def test_a_column_of_keys_stands_in_place_of_the_key_of_the_options(stated: str) -> None:
    options_of = convert.OptionsByKey(call_pb2.CallOptions(method="m", shard_key="s", ordering_key=stated)).of
    keyed, unkeyed = options_of("k"), options_of("")
    assert keyed == options(method="m", ordering_key="k")
    assert unkeyed == options(method="m", shard_key="s")


def test_options_that_differ_in_their_key_alone_share_what_replicas_get() -> None:
    options_of = convert.OptionsByKey(call_pb2.CallOptions(method="m")).of
    one, other = options_of("k"), options_of("j")
    assert isinstance(one, RouterCallOptions)
    assert isinstance(other, RouterCallOptions)
    assert one.wire is other.wire


def test_a_key_of_a_column_that_is_too_long_fails_alone() -> None:
    options_of = convert.OptionsByKey(call_pb2.CallOptions(method="m")).of
    failure = options_of("k" * 1025)
    assert isinstance(failure, Failure)
    assert failure.metadata == {"field": "options.ordering_key"}
    assert isinstance(options_of("k"), RouterCallOptions)


def test_what_is_wrong_with_the_options_is_wrong_with_every_key() -> None:
    failure = convert.OptionsByKey(call_pb2.CallOptions(method="_private")).of("k")
    assert isinstance(failure, Failure)


@pytest.mark.parametrize("size", [257, 1025, 100_000])
def test_large_keys_of_a_column_are_not_remembered(size: int) -> None:
    key = "k" * size
    before = sys.getrefcount(key)
    assert convert.partitions_of([key, "a"]) == ([partition_of(key), partition_of("a")] if size <= 1024 else [])
    partition_of.cache_clear()
    assert sys.getrefcount(key) == before


def test_the_partitions_of_a_column_are_known_only_where_all_its_keys_are_sound() -> None:
    assert convert.partitions_of(["a", "b"]) == [partition_of("a"), partition_of("b")]
    assert convert.partitions_of(["a", ""]) == []
    assert convert.partitions_of(["ß" * 513, "a"]) == []


def test_only_so_many_partitions_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert_options, "MAX_KNOWN_PARTITIONS", 3)
    keys = [f"key {number}" for number in range(20)]
    for key in keys:
        assert convert.partitions_of([key, key]) == [partition_of(key)] * 2
        assert len(convert_options._KNOWN_PARTITIONS) <= 3
    assert convert.partitions_of(keys) == list(map(partition_of, keys))


def test_too_many_entries_of_metadata_are_refused_before_they_are_written_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert_options, "_shared", lambda _: pytest.fail("they are written back"))
    metadata = {str(number): "" for number in range(65)}
    failure = mistake(metadata=metadata)
    assert failure.message == "options.metadata: at most 64 entries, got 65"
    by_key = convert.OptionsByKey(call_pb2.CallOptions(metadata=metadata))
    assert by_key.shared == by_key.of("key") == failure
