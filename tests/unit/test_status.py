"""The table of failures: every reason survives frames and rpcs, and says whether the call was executed."""

from __future__ import annotations

import string
from base64 import b64encode
from urllib.parse import quote

import grpc
import pytest
from google.protobuf import duration_pb2, message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from slotmesh import status
from slotmesh.errors import ERROR_OF, Executed, Failure, Reason, SlotmeshError
from slotmesh.server.guards import failure_of
from slotmesh.v1 import call_pb2

EVERY_REASON = pytest.mark.parametrize("reason", list(Reason))
EVERY_EXECUTED = pytest.mark.parametrize("executed", list(Executed))


def failure(reason: Reason, executed: Executed = Executed.NO) -> Failure:
    return Failure(
        reason=reason,
        message="what happened – précis",
        executed=executed,
        retry_delay_s=1.25,
        metadata={"replica_id": "r-1", "limit": "3"},
    )


def rpc_error(rich: status_pb2.Status) -> grpc.aio.AioRpcError:
    """The error that a client gets for a status that a server ended with."""
    sent = rpc_status.to_status(rich)
    return grpc.aio.AioRpcError(
        sent.code, grpc.aio.Metadata(), grpc.aio.Metadata(*sent.trailing_metadata), details=sent.details
    )


def details(rich: status_pb2.Status, kind: type[message.Message]) -> list[message.Message]:
    found = []
    for each in rich.details:
        unpacked = kind()
        if each.Unpack(unpacked):
            found.append(unpacked)
    return found


@EVERY_REASON
def test_every_reason_has_a_status_and_one_exception(reason: Reason) -> None:
    assert reason in status.STATUS_OF
    assert ERROR_OF[reason].reason is reason
    assert list(ERROR_OF.values()).count(ERROR_OF[reason]) == 1


@EVERY_EXECUTED
@EVERY_REASON
def test_a_failure_survives_a_frame(reason: Reason, executed: Executed) -> None:
    sent = failure(reason, executed)
    frame = call_pb2.Failure.FromString(status.to_wire(sent).SerializeToString())
    received = status.from_wire(frame)
    assert (received.reason, received.message, received.executed) == (reason, sent.message, executed)
    assert (received.retry_delay_s, received.metadata) == (sent.retry_delay_s, sent.metadata)
    assert status.code_of(received) == status.code_of(sent) == status.STATUS_OF[reason].value[0]


@EVERY_EXECUTED
@EVERY_REASON
def test_a_failure_survives_an_rpc(reason: Reason, executed: Executed) -> None:
    sent = failure(reason, executed)
    error = rpc_error(status.to_status(sent))
    assert error.code() is status.STATUS_OF[reason]
    received = status.from_rpc_error(error)
    assert (received.reason, received.message, received.executed) == (reason, sent.message, executed)
    assert (received.retry_delay_s, received.metadata) == (sent.retry_delay_s, sent.metadata)
    assert status.code_of(received) == status.code_of(sent)


@EVERY_EXECUTED
@EVERY_REASON
def test_a_failure_survives_an_exception(reason: Reason, executed: Executed) -> None:
    sent = failure(reason, executed)
    error = status.to_exception(sent, endpoint="e", method="m", call_id=7)
    name = status.STATUS_OF[reason].name
    assert str(error) == f"{name}/{reason}: {sent.message}"
    assert repr(error) == f"{type(error).__name__}({str(error)!r})"
    assert (error.status, error.reason, error.executed, error.replica_id) == (name, reason, executed, "r-1")
    assert (error.endpoint, error.method, error.call_id, error.retry_delay_s) == ("e", "m", 7, 1.25)
    received = failure_of(error)
    assert (received.reason, received.message, received.executed) == (reason, sent.message, executed)
    assert (received.retry_delay_s, received.metadata) == (sent.retry_delay_s, sent.metadata)
    assert status.code_of(received) == status.code_of(sent)


@pytest.mark.parametrize(
    ("reasons", "code"),
    [
        ("ENDPOINT_NOT_FOUND BACKEND_NOT_FOUND METHOD_NOT_FOUND", "NOT_FOUND"),
        ("BAD_REQUEST BAD_ARGUMENTS PAYLOAD_TOO_LARGE DUPLICATE_CALL_ID", "INVALID_ARGUMENT"),
        ("QUEUE_FULL WINDOW_EXCEEDED NO_SLOT", "RESOURCE_EXHAUSTED"),
        ("BACKEND_UNAVAILABLE DRAINING STALE_TABLE REPLICA_LOST ROUTER_LOST", "UNAVAILABLE"),
        ("QUEUE_TIMEOUT DEADLINE_IN_QUEUE DEADLINE_RUNNING", "DEADLINE_EXCEEDED"),
        ("CANCELLED", "CANCELLED"),
        ("SLOT_UNKNOWN SLOT_EXPIRED SLOT_USED REPLICA_GONE", "FAILED_PRECONDITION"),
        ("SESSION_FENCED RESULT_EVICTED PREDECESSOR_FAILED", "ABORTED"),
        ("HANDLER_ERROR", "UNKNOWN"),
        ("BATCH_SIZE_MISMATCH", "INTERNAL"),
    ],
)
def test_the_statuses_are_those_of_the_contract(reasons: str, code: str) -> None:
    assert {status.STATUS_OF[Reason(reason)].name for reason in reasons.split()} == {code}


def test_a_handlers_own_status_goes_before_the_reasons() -> None:
    chosen = Failure(reason=Reason.HANDLER_ERROR, message="gone", executed=Executed.YES, code=5)
    assert status.to_exception(status.from_wire(status.to_wire(chosen))).status == "NOT_FOUND"
    error = rpc_error(status.to_status(chosen))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert status.code_of(status.from_rpc_error(error)) == 5
    assert failure_of(status.to_exception(chosen)).code == 5


def test_what_a_handler_may_choose() -> None:
    assert {status.name_of(number): number for number in range(1, 17)} == status.STATUS_NUMBERS


def test_an_unknown_reason_keeps_its_status() -> None:
    received = status.from_wire(
        call_pb2.Failure(code=8, reason="FROM_THE_FUTURE", message="no", executed=call_pb2.EXECUTED_NO)
    )
    assert (received.reason, status.name_of(status.code_of(received))) == (Reason.INTERNAL, "RESOURCE_EXHAUSTED")
    rich = status.to_status(failure(Reason.QUEUE_FULL))
    info = error_details_pb2.ErrorInfo(reason="FROM_THE_FUTURE", domain="slotmesh.dev", metadata={"executed": "no"})
    rich.details[0].Pack(info)
    over_rpc = status.from_rpc_error(rpc_error(rich))
    assert (over_rpc.reason, over_rpc.executed, over_rpc.code) == (Reason.INTERNAL, Executed.NO, 8)


def test_a_peer_that_does_not_say_whether_it_executed_is_not_trusted() -> None:
    assert status.from_wire(call_pb2.Failure(code=14, reason="REPLICA_LOST")).executed is Executed.UNKNOWN
    future = call_pb2.Failure(code=14, reason="REPLICA_LOST", executed=99)  # type: ignore[arg-type]
    assert status.from_wire(future).executed is Executed.UNKNOWN


def test_a_delay_of_any_length_is_read() -> None:
    endless = call_pb2.Failure(code=8, reason="QUEUE_FULL", retry_delay=duration_pb2.Duration(seconds=2**62))
    assert status.from_wire(endless).retry_delay_s == 2.0**62


@pytest.mark.parametrize(
    ("code", "reason", "executed"),
    [
        (grpc.StatusCode.UNAVAILABLE, Reason.ROUTER_LOST, Executed.UNKNOWN),
        (grpc.StatusCode.CANCELLED, Reason.CANCELLED, Executed.UNKNOWN),
        (grpc.StatusCode.UNIMPLEMENTED, Reason.NOT_IMPLEMENTED, Executed.NO),
        (grpc.StatusCode.UNKNOWN, Reason.INTERNAL, Executed.UNKNOWN),
    ],
)
def test_what_the_transport_says_by_itself(code: grpc.StatusCode, reason: Reason, executed: Executed) -> None:
    error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details="socket closed")
    said = status.from_rpc_error(error)
    assert (said.reason, said.executed, said.message) == (reason, executed, "socket closed")
    assert said.code == code.value[0]


@pytest.mark.parametrize("details", ["", "\n ", None])
def test_an_error_without_details_has_a_message(details: str | None) -> None:
    error = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)
    assert status.from_rpc_error(error).message == "the rpc ended with INTERNAL, without details"


def test_an_rpc_that_nobody_knows_is_told_from_one_that_slotmesh_refuses() -> None:
    def error(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
        return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details="Method not found!")

    assert status.is_unknown_there(error(grpc.StatusCode.UNIMPLEMENTED))
    assert not status.is_unknown_there(error(grpc.StatusCode.UNAVAILABLE))
    assert not status.is_unknown_there(rpc_error(status.to_status(failure(Reason.NOT_IMPLEMENTED))))


def test_details_are_those_that_tools_know() -> None:
    rich = status.to_status(
        Failure(reason=Reason.BAD_REQUEST, message="must not be empty", metadata={"field": "options.method"})
    )
    (info,) = details(rich, error_details_pb2.ErrorInfo)
    assert isinstance(info, error_details_pb2.ErrorInfo)
    assert (info.reason, info.domain, info.metadata["executed"]) == ("BAD_REQUEST", "slotmesh.dev", "no")
    (bad,) = details(rich, error_details_pb2.BadRequest)
    assert isinstance(bad, error_details_pb2.BadRequest)
    assert [each.field for each in bad.field_violations] == ["options.method"]
    assert not details(rich, error_details_pb2.RetryInfo)


def test_exceptions_are_caught_by_family() -> None:
    families = {each.__mro__[1].__name__ for each in ERROR_OF.values()}
    assert all(issubclass(each, SlotmeshError) for each in ERROR_OF.values())
    assert {"NotFound", "InvalidArgument", "ResourceExhausted", "Unavailable", "DeadlineExceeded"} <= families


CHARS = ("x", "%", "é", "\n", "語", "😀")


@pytest.mark.parametrize("char", CHARS)
@pytest.mark.parametrize("facts", [0, 1, 200])
@pytest.mark.parametrize("violations", [0, 1, 400])
@pytest.mark.parametrize("size", [10, 1_000, 20_000])
def test_a_refusal_fits_in_the_trailers_that_default_clients_take(
    char: str, facts: int, violations: int, size: int
) -> None:
    """More than 8 KiB is rejected at random: then an error of the transport's is all that the client gets."""
    long = char * size
    metadata = {"field": "options.method"} | {f"{number} {long}": long for number in range(facts)}
    failure = Failure(reason=Reason.HANDLER_ERROR, message=long, metadata=metadata, executed=Executed.YES)
    rich = status.to_status(failure, [(f"field{number}", long) for number in range(violations)])
    header = len(quote(rich.message, safe=string.printable[:94].replace("%", "") + " "))
    assert header + len(b64encode(rich.SerializeToString())) + 300 < 8 * 1024
    (info,) = details(rich, error_details_pb2.ErrorInfo)
    assert isinstance(info, error_details_pb2.ErrorInfo)
    assert (info.reason, info.metadata["executed"]) == ("HANDLER_ERROR", "yes")
    assert len(rich.message) >= min(size, 3)


def test_a_message_that_fits_is_whole() -> None:
    long = "x" * 3_000
    assert status.to_status(Failure(reason=Reason.HANDLER_ERROR, message=long)).message == long
