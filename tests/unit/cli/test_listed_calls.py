"""What `slotmesh calls` prints of calls that were not requested: nothing, since their number is not known."""

from __future__ import annotations

import io

import pytest

from slotmesh.cli.commands.calls import calls_document, print_calls
from slotmesh.v1 import tap_service_pb2 as pb

WAITING = [pb.OPEN_CALL_STATE_WAITING, pb.OPEN_CALL_STATE_SENDING]
AT_REPLICAS = [pb.OPEN_CALL_STATE_AT_REPLICA, pb.OPEN_CALL_STATE_ABANDONED]


@pytest.mark.parametrize(
    ("states", "printed", "waiting", "at_replicas"),
    [
        ([], "3 waiting, 9 at replicas", 3, 9),
        (WAITING, "3 waiting", 3, None),
        (AT_REPLICAS, "9 at replicas", None, 9),
    ],
    ids=["all", "--waiting", "--running"],
)
def test_only_what_was_requested_is_counted(
    states: list[pb.OpenCallState.ValueType], printed: str, waiting: int | None, at_replicas: int | None
) -> None:
    answers = {f"r:{number}": pb.ListCallsResponse(waiting=number, at_replicas=number + 2) for number in range(3)}
    listed = calls_document(pb.ListCallsRequest(states=states), answers, {}, 100)
    out = io.StringIO()
    print_calls(listed, out)
    assert out.getvalue().splitlines()[-1].partition(";")[0] == printed
    assert (listed["waiting"], listed["at_replicas"]) == (waiting, at_replicas)
