"""Each option of calls: all that follows from its declaration is right, without a word about it here.

`CONTRIBUTING.md` says which files a new option touches. These tests find it by themselves.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

import replica_service.convert.runs as at_replicas
import router_service.convert as at_routers
import slotmesh
from replica_service.core.call_metadata import ReplicaCallOptions as ReplicaOptions
from router_service.core.calls import RouterCallOptions as RouterOptions
from slotmesh.calls.call_options import OPTIONS, CallRpc, Option, OptionChanges, OptionKind, Reader, StatedOptions
from slotmesh.client.calls.options import ViewOptions
from slotmesh.client.slots.slot import in_slot
from slotmesh.codec import JSON
from slotmesh.convert.call_options import (
    options_failure,
    options_from_wire,
    options_to_wire,
    refused_option,
)
from slotmesh.errors import Failure, Reason
from slotmesh.spec.option_rules import MAX_KEY_BYTES
from slotmesh.v1 import call_pb2

F = FieldDescriptor
WIRE_TYPES = {
    OptionKind.METHOD: F.TYPE_STRING,
    OptionKind.CONTENT_TYPE: F.TYPE_STRING,
    OptionKind.KEY: F.TYPE_STRING,
    OptionKind.TENANT: F.TYPE_STRING,
    OptionKind.DURATION: F.TYPE_MESSAGE,
    OptionKind.TIME: F.TYPE_MESSAGE,
    OptionKind.FLAG: F.TYPE_BOOL,
    OptionKind.COUNT: F.TYPE_INT64,
    OptionKind.METADATA: F.TYPE_MESSAGE,
    OptionKind.MARK: F.TYPE_BYTES,
    OptionKind.BLOCKS: F.TYPE_FIXED64,
}
SAMPLES: dict[OptionKind, Any] = {
    OptionKind.METHOD: "classify",
    OptionKind.CONTENT_TYPE: JSON,
    OptionKind.KEY: "user-1",
    OptionKind.TENANT: "acme, Köln",
    OptionKind.DURATION: 1.5,
    OptionKind.TIME: datetime(2026, 1, 2, 12, 0, 0, 250_000, tzinfo=UTC),
    OptionKind.FLAG: True,
    OptionKind.COUNT: 7,
    OptionKind.METADATA: {"k": "v"},
    OptionKind.MARK: b"sixteen bytes or",
    OptionKind.BLOCKS: (1, 2**64 - 1),
}
WRONG: dict[OptionKind, list[Any]] = {
    OptionKind.METHOD: [5],
    OptionKind.CONTENT_TYPE: ["text/plain"],
    OptionKind.KEY: [5],
    OptionKind.TENANT: [5, "ä" * 129, "two\nlines", "\x1b[2J", "\ud800"],
    OptionKind.DURATION: ["1s", -1.0, float("nan"), True],
    OptionKind.TIME: [1, datetime(2026, 1, 2)],  # noqa: DTZ001 - this is what is wrong with it
    OptionKind.FLAG: ["no", 1, None],
    OptionKind.COUNT: ["7", -1, True],
    OptionKind.METADATA: [{"k": 1}, "x", [("k", "v")]],
    OptionKind.MARK: ["sixteen bytes or", b"few", b"x" * 33],
    OptionKind.BLOCKS: [5, "x", (-1,), (2**64,), ("x",), (0,) * 4_097],
}
"""What clients refuse."""
WRONG_ON_THE_WIRE: dict[OptionKind, Any] = {
    OptionKind.METHOD: "_private",
    OptionKind.CONTENT_TYPE: "text/plain",
    OptionKind.KEY: "x" * (MAX_KEY_BYTES + 1),
    OptionKind.TENANT: "ä" * 129,
    OptionKind.COUNT: -1,
    OptionKind.MARK: b"few",
    OptionKind.BLOCKS: (0,) * 4_097,
}

each_option = pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)


def said(option: Option) -> call_pb2.CallOptions:
    """A message that says nothing but this."""
    return options_to_wire(StatedOptions(**{option.attribute: SAMPLES[option.kind]}), CallRpc.STREAM_CALLS)


def test_the_message_has_the_same_options() -> None:
    paths = set(call_pb2.CallOptions.DESCRIPTOR.fields_by_name) - {"stream"}
    assert paths | {f"stream.{name}" for name in call_pb2.StreamOptions.DESCRIPTOR.fields_by_name} == {
        each.path for each in OPTIONS.values()
    }


@each_option
def test_the_message_has_the_type_of_the_option(option: Option) -> None:
    message: Any = call_pb2.StreamOptions if option.is_of_streams else call_pb2.CallOptions
    assert message.DESCRIPTOR.fields_by_name[option.name].type == WIRE_TYPES[option.kind]


def test_what_nobody_says_does_not_travel() -> None:
    for rpc in CallRpc:
        assert options_to_wire(StatedOptions(), rpc) == call_pb2.CallOptions()


@each_option
def test_who_decides_by_it_gets_it_and_nobody_else(option: Option) -> None:
    wire = said(option)
    owner: Any = wire.stream if option.is_of_streams else wire
    assert [field.name for field, _ in owner.ListFields()] == [option.name]
    for reader in Reader:
        expected = {option.attribute: SAMPLES[option.kind]} if reader in option.read_by else {}
        assert options_from_wire(wire, reader) == expected


@each_option
def test_router_and_replica_read_it_from_what_travels(option: Option) -> None:
    routed = at_routers.options_from_wire(said(option))
    assert isinstance(routed, RouterOptions)
    if Reader.ROUTER in option.read_by:
        assert getattr(routed, option.attribute) == SAMPLES[option.kind]
    sent_on = call_pb2.CallOptions.FromString(routed.wire)
    assert sent_on == (call_pb2.CallOptions() if option.stays else said(option))
    run = at_replicas.options_from_wire(said(option).SerializeToString())
    assert isinstance(run, ReplicaOptions)
    if Reader.REPLICA in option.read_by:
        assert getattr(run, option.attribute) == SAMPLES[option.kind]


@each_option
def test_options_that_differ_in_it_are_different(option: Option) -> None:
    if option.kind is not OptionKind.METADATA:
        one, other = RouterOptions(), RouterOptions(**{option.attribute: SAMPLES[option.kind]})
        assert len({one, other, RouterOptions()}) == 2


@each_option
def test_clients_refuse_what_it_cannot_be(option: Option) -> None:
    for value in WRONG.get(option.kind, []):
        with pytest.raises(slotmesh.BadRequest, match=f": {option.argument} must ") as caught:
            ViewOptions(**{option.attribute: value})
        assert caught.value.metadata == {"field": option.argument}


@each_option
def test_servers_refuse_what_it_cannot_be(option: Option) -> None:
    assert options_failure(said(option)) is None
    message = call_pb2.CallOptions()
    wire: Any = message.stream if option.is_of_streams else message
    if option.kind is OptionKind.BLOCKS:
        getattr(wire, option.name).extend(WRONG_ON_THE_WIRE[option.kind])
    elif (wrong := WRONG_ON_THE_WIRE.get(option.kind)) is not None:
        setattr(wire, option.name, wrong)
    elif option.kind is OptionKind.DURATION:
        getattr(wire, option.name).FromSeconds(-1)
    elif option.kind is OptionKind.TIME:
        getattr(wire, option.name).seconds = -1
    elif option.kind is OptionKind.METADATA:
        getattr(wire, option.name)["grpc-x"] = ""
    else:
        return  # a flag is always right
    failure = options_failure(message)
    assert isinstance(failure, Failure)
    assert option.path in failure.message


@each_option
@pytest.mark.parametrize("rpc", CallRpc, ids=lambda rpc: rpc.value)
def test_an_rpc_refuses_exactly_the_options_without_effect_on_it_and_clients_do_not_send_them(
    option: Option, rpc: CallRpc
) -> None:
    failure = refused_option(said(option), rpc)
    if rpc in option.rpcs:
        assert failure is None
        assert options_to_wire(StatedOptions(**{option.attribute: SAMPLES[option.kind]}), rpc) == said(option)
        return
    assert failure is not None
    assert (failure.reason, failure.metadata) == (Reason.BAD_REQUEST, {"field": f"options.{option.path}"})
    assert rpc.value in failure.message or option.is_of_streams
    assert options_to_wire(StatedOptions(**{option.attribute: SAMPLES[option.kind]}), rpc) == call_pb2.CallOptions()


@pytest.mark.parametrize("argument", OptionChanges.__annotations__)
def test_what_callers_may_say_is_an_option_and_described(argument: str) -> None:
    known = {each.argument: each for each in OPTIONS.values()}
    assert argument in {*known, "reply", "traced", "inherits", "request_id"}, (
        "`reply` is the other way round: `no_reply`; `traced` and `inherits` are the client's, `request_id` a request's"
    )
    assert f"\n        {argument}: " in (OptionChanges.__doc__ or "")
    if argument in known:
        option = known[argument]
        view = ViewOptions().changed(**{argument: SAMPLES[option.kind]})
        sent: Any = view.to_wire("add")
        stated: Any = said(option)
        if option.is_of_streams:
            sent, stated = sent.stream, stated.stream
        assert getattr(sent, option.name) == getattr(stated, option.name)


NOT_IN_SLOTS = {"method", "ordering_key", "shard_key", "affinity_key", "no_reply", "each_value", "stop_generation"}
"""A slot has its replica, its order and its rpc; these say nothing about its call."""


@each_option
def test_calls_in_slots_have_what_replicas_read_of_their_view(option: Option) -> None:
    if Reader.REPLICA not in option.read_by:
        return
    view = in_slot(ViewOptions(**{option.attribute: SAMPLES[option.kind]}))
    expected = ViewOptions() if option.name in NOT_IN_SLOTS else ViewOptions(**{option.attribute: SAMPLES[option.kind]})
    assert getattr(view, option.attribute) == getattr(expected, option.attribute)
