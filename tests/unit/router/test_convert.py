"""The router's edge: options, ids, tables."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from google.protobuf import duration_pb2, timestamp_pb2

from router_service import convert
from router_service.core.calls import CallOptions
from slotmesh.codec import OCTET_STREAM
from slotmesh.errors import Failure, Reason
from slotmesh.partitions import partition_of
from slotmesh.v1 import call_pb2
from tests.fakes.controller import table


def options(**fields: Any) -> CallOptions | Failure:
    return convert.options_from_wire(call_pb2.CallOptions(**fields))


def test_unset_options_have_their_defaults() -> None:
    plain = options()
    assert isinstance(plain, CallOptions)
    assert (plain.method, plain.content_type, plain.partition, plain.timeout_s) == ("", OCTET_STREAM, -1, inf)


def test_equal_options_are_one_object() -> None:
    assert options(method="m", ordering_key="k") is options(method="m", ordering_key="k")


def test_an_ordering_key_has_its_partition_and_wins_over_a_shard_key() -> None:
    keyed = options(ordering_key="k", shard_key="s")
    assert isinstance(keyed, CallOptions)
    assert keyed.partition == partition_of("k")


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"content_type": "text/html"}, Reason.BAD_REQUEST, "options.content_type"),
        ({"timeout": duration_pb2.Duration(nanos=-1)}, Reason.BAD_REQUEST, "options.timeout"),
        ({"timeout": duration_pb2.Duration(seconds=1, nanos=-1)}, Reason.BAD_REQUEST, "options.timeout"),
        ({"timeout": duration_pb2.Duration(nanos=10**9)}, Reason.BAD_REQUEST, "options.timeout"),
        ({"timeout": duration_pb2.Duration(seconds=2**63 - 1)}, Reason.BAD_REQUEST, "options.timeout"),
        ({"ordering_key": "k" * 1025}, Reason.BAD_REQUEST, "options.ordering_key"),
        ({"ordering_key": "ß" * 513}, Reason.BAD_REQUEST, "options.ordering_key"),
        ({"metadata": {"authorization": "x"}}, Reason.BAD_REQUEST, "options.metadata"),
        ({"metadata": {"grpc-trace": "x"}}, Reason.BAD_REQUEST, "options.metadata"),
        ({"metadata": {"Upper": "x"}}, Reason.BAD_REQUEST, "options.metadata"),
        ({"metadata": {"k": "x" * 9000}}, Reason.BAD_REQUEST, "options.metadata"),
        ({"metadata": {str(n): "" for n in range(65)}}, Reason.BAD_REQUEST, "options.metadata"),
        ({"absolute_slo": timestamp_pb2.Timestamp(seconds=1)}, Reason.NOT_IMPLEMENTED, "options.absolute_slo"),
        ({"shard_key": "s"}, Reason.NOT_IMPLEMENTED, "options.shard_key"),
    ],
)
def test_a_mistake_is_told_with_its_field(fields: dict[str, Any], reason: Reason, field: str) -> None:
    failure = options(**fields)
    assert isinstance(failure, Failure)
    assert failure.reason is reason
    assert failure.metadata["field"] == field


def test_private_methods_are_not_methods() -> None:
    failure = options(method="__init__")
    assert isinstance(failure, Failure)
    assert failure.reason is Reason.METHOD_NOT_FOUND


def test_partitions_are_part_of_the_contract() -> None:
    assert [partition_of(key) for key in ("", "session-42", "ключ")] == [692, 2732, 2080]


def test_a_table_names_the_owner_of_each_partition() -> None:
    routing = convert.table_from_wire(table(3, {"a": "127.0.0.1:1", "b": "127.0.0.1:2"}, epoch=7))
    endpoint = routing.endpoints["echo"]
    assert endpoint.owners[0] == (("a", "life"), 7)
    assert endpoint.owners[1] == (("b", "life"), 7)
    assert routing.backends["b"].max_queued_calls == 20_000
    assert routing.supersedes(convert.table_from_wire(table(2, {})))
    assert not routing.supersedes(routing)
