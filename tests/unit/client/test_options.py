"""What views say about their calls: how it travels, how it is changed, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import slotmesh
from slotmesh.client.calls.options import ViewOptions, seconds
from slotmesh.codec import JSON, MSGPACK
from slotmesh.v1 import call_pb2

NOON = datetime(2026, 1, 2, 12, 0, 0, 250_000, tzinfo=UTC)


def test_options_travel() -> None:
    options = ViewOptions(
        timeout_s=1.5, slo_s=0.25, metadata={"k": "v"}, idempotent=True, ordering_key="key", shard_key="user"
    )
    wire = call_pb2.CallOptions(
        method="add",
        content_type=MSGPACK,
        shard_key="user",
        ordering_key="key",
        idempotent=True,
        metadata={"k": "v"},
    )
    wire.timeout.FromMilliseconds(1500)
    wire.relative_slo.FromMilliseconds(250)
    assert options.to_wire("add") == wire


def test_a_call_that_wants_no_reply_says_so() -> None:
    assert ViewOptions(no_reply=True).to_wire("add").stream.no_reply
    assert not ViewOptions().to_wire("add").HasField("stream")


def test_a_time_of_day_travels_in_utc() -> None:
    elsewhere = NOON.astimezone(timezone(timedelta(hours=5)))
    wire = ViewOptions(slo_at=elsewhere).to_wire("add")
    assert wire.absolute_slo.ToDatetime(tzinfo=UTC) == NOON
    assert not wire.HasField("relative_slo")


def test_without_options_only_method_and_content_type_travel() -> None:
    assert ViewOptions().to_wire("add") == call_pb2.CallOptions(method="add", content_type=MSGPACK)


def test_an_slo_of_nothing_is_an_slo() -> None:
    assert ViewOptions(slo_s=0).to_wire("add").HasField("relative_slo")


def test_the_handler_itself_travels_without_a_name() -> None:
    assert not ViewOptions().to_wire("__call__").method


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout", "1s"),
        ("slo", "50ms"),
        ("slo", True),
        ("shard_key", 5),
        ("metadata", {"a": 1}),
        ("metadata", {1: "a"}),
        ("request_id", 7),
        ("request_id", "a b"),
        ("request_id", "k" * 129),
    ],
)
def test_values_of_other_kinds_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(slotmesh.BadRequest, match=f"^INVALID_ARGUMENT/BAD_REQUEST: {name} must"):
        ViewOptions().changed(**{name: value})


@pytest.mark.parametrize("value", [-1, -1e-9, float("nan"), float("inf"), 1e12])
@pytest.mark.parametrize("name", ["timeout", "slo"])
def test_times_that_mean_nothing_are_refused_as_a_router_would(name: str, value: float) -> None:
    with pytest.raises(slotmesh.BadRequest, match=f"^INVALID_ARGUMENT/BAD_REQUEST: {name} must be") as caught:
        ViewOptions(timeout_s=value) if name == "timeout" else ViewOptions(slo_s=value)
    assert isinstance(caught.value, ValueError), "a mistake of the calling program, too"
    assert (caught.value.status, caught.value.reason.value) == ("INVALID_ARGUMENT", "BAD_REQUEST")
    assert (caught.value.executed, caught.value.metadata) == (slotmesh.Executed.NO, {"field": name})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"content_type": "text/plain"}, "content_type must be one of"),
        ({"slo_s": 1.0, "slo_at": NOON}, "slo and slo_at are both given"),
        ({"slo_at": NOON.replace(tzinfo=None)}, "slo_at must be aware of its time zone"),
        ({"request_id": ""}, "request_id must be 1 … 128 printable ASCII characters"),
        ({"request_id": "1", "shard_key": "k"}, "shard_key has no effect on a call with a request_id"),
        ({"request_id": "1", "affinity_key": "k"}, "affinity_key has no effect on a call with a request_id"),
        ({"request_id": "1", "prefix_blocks": (1,)}, "prefix_blocks has no effect on a call with a request_id"),
    ],
)
def test_what_no_call_may_have_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(slotmesh.BadRequest, match=problem):
        ViewOptions(**options)


def test_an_ordering_key_goes_before_the_keys_that_an_id_excludes() -> None:
    view = ViewOptions(request_id="k" * 128, ordering_key="lane", shard_key="k", affinity_key="k")
    assert view.request_id == "k" * 128


def test_a_view_differs_from_its_origin_in_what_is_said() -> None:
    base = ViewOptions(timeout_s=1, metadata={"k": "v"}, ordering_key="key")
    assert base.changed() == base
    assert base.changed(timeout=None, content_type=JSON) == ViewOptions(
        content_type=JSON, metadata={"k": "v"}, ordering_key="key"
    )
    said = base.changed(slo=timedelta(milliseconds=20), shard_key="user", idempotent=True, metadata={})
    assert said == ViewOptions(
        timeout_s=1, slo_s=0.02, shard_key="user", idempotent=True, metadata={}, ordering_key="key"
    )


def test_of_the_two_slos_the_one_said_last_holds() -> None:
    relative, absolute = ViewOptions(slo_s=1), ViewOptions(slo_at=NOON)
    assert relative.changed(slo_at=NOON) == absolute
    assert absolute.changed(slo=1) == relative
    assert absolute.changed(slo=None) == absolute
    assert absolute.changed(slo_at=None) == ViewOptions()
    with pytest.raises(slotmesh.BadRequest, match="both"):
        ViewOptions().changed(slo=1, slo_at=NOON)


def test_an_option_that_there_is_not_is_named() -> None:
    with pytest.raises(TypeError, match="there is no option timout; there are content_type, timeout, slo, "):
        ViewOptions().changed(timout=1)  # type: ignore[call-arg]  # that is the point


def test_times_are_seconds_or_timedeltas() -> None:
    assert (seconds(1.5), seconds(timedelta(milliseconds=1500)), seconds(None)) == (1.5, 1.5, None)
