"""The context of an rpc of a user's own proto: how it ends, and what may be set."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from slotmesh.calls.result_envelopes import metadata_from_bytes
from slotmesh.errors import Executed, HandlerError
from slotmesh.handlers.context import CallContext, CallPlace
from slotmesh.handlers.rpc_context import RpcContext, RpcRaised


def make() -> RpcContext:
    return RpcContext(CallPlace(CallContext(metadata={"who": "ada"})))


@pytest.mark.parametrize("code", ["NOT_FOUND", 5, grpc.StatusCode.NOT_FOUND])
def test_abort_raises_with_the_status_and_the_metadata(code: Any) -> None:
    context = make()
    with pytest.raises(HandlerError) as raised:
        context.abort(code, "gone", (("a", "b"), ("c-bin", b"\xff")))

    error = raised.value
    assert (error.status, error.executed, str(error)) == ("NOT_FOUND", Executed.YES, "gone")
    with pytest.raises(RpcRaised) as with_trailers:
        context.raised(error)
    assert with_trailers.value.error is error
    assert metadata_from_bytes(with_trailers.value.trailers) == (("a", "b"), ("c-bin", b"\xff"))


def test_a_status_that_was_set_ends_the_rpc_when_the_method_returns() -> None:
    context = make()
    context.set_code(grpc.StatusCode.ABORTED)
    context.set_details("again")

    with pytest.raises(HandlerError) as raised:
        context.end()

    assert (raised.value.status, str(raised.value)) == ("ABORTED", "again")


def test_a_status_that_was_set_goes_before_what_is_raised() -> None:
    context = make()
    context.set_code("UNIMPLEMENTED")

    with pytest.raises(HandlerError) as raised:
        context.raised(NotImplementedError("not there"))

    assert (raised.value.status, str(raised.value)) == ("UNIMPLEMENTED", "not there")


def test_ok_is_no_failure_and_metadata_goes_with_the_response() -> None:
    context = make()
    context.set_code(grpc.StatusCode.OK)
    context.set_trailing_metadata([("a", "b")])
    context.send_initial_metadata([("c", "d")])

    assert context.end() == (b"c: d\r\n", b"a: b\r\n")
    assert context.invocation_metadata() == (("who", "ada"),)
    assert context.time_remaining() is None


@pytest.mark.parametrize(
    "pairs",
    [
        [("A", "b")],
        [("grpc-status", "0")],
        [("content-type", "x")],
        [("a", "é")],
        [("a", "b\r\nc: d")],
        [("a", "x" * 5000)],
        [("a", b"bytes")],
        [("a-bin", "text")],
    ],
)
def test_metadata_that_cannot_travel_is_refused_where_it_is_set(pairs: list[tuple[str, Any]]) -> None:
    for set_metadata in (make().set_trailing_metadata, make().send_initial_metadata):
        with pytest.raises((ValueError, TypeError), match="metadata"):
            set_metadata(pairs)


@pytest.mark.parametrize("code", ["OK", 0, 99, "NO_SUCH", True])
def test_a_status_that_is_none_is_refused(code: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        make().abort(code, "x")
