"""What replicas say is wrong with them, in short."""

from __future__ import annotations

import pytest

from slotmesh.cli.controller_view import FAILED_STATE, READY_STATE, STARTING_STATE
from slotmesh.cli.view.replicas import CrashLoop, Trouble, crash_loops_of, troubles_of
from slotmesh.v1 import mesh_pb2

TRACEBACK = """Traceback (most recent call last):
  File "/srv/app.py", line 3, in __init__
    self.load()
  File "/srv/app.py", line 6, in load
    json.loads("")
  File "/usr/lib/python3.12/json/__init__.py", line 346, in loads
    return _default_decoder.decode(s)
json.decoder.JSONDecodeError: no
"""


def failed(backend: str, error: str) -> mesh_pb2.Replica:
    return mesh_pb2.Replica(replica_id="r", backend=backend, state=FAILED_STATE, error=error)


def test_the_same_of_one_backend_is_told_once() -> None:
    other = TRACEBACK.replace("no\n", "still no\n")
    replicas = [failed("v1", TRACEBACK), failed("v2", TRACEBACK), failed("v1", TRACEBACK), failed("v1", other)]
    place = "/srv/app.py:6, in load"
    assert troubles_of([*replicas, failed("v1", ""), failed("v1", "was killed by SIGKILL")]) == [
        Trouble("v1", "json.decoder.JSONDecodeError: no", place, 2),
        Trouble("v2", "json.decoder.JSONDecodeError: no", place, 1),
        Trouble("v1", "json.decoder.JSONDecodeError: still no", place, 1),
    ]


@pytest.mark.parametrize(
    ("error", "what", "place"),
    [
        (
            f"{TRACEBACK}health check failed: 1 of 3 in a row",
            "json.decoder.JSONDecodeError: no; health check failed: 1 of 3 in a row",
            "/srv/app.py:6, in load",
        ),
        ('  File "/srv/app.py", line 3\n    def\n       ^\nSyntaxError: bad', "SyntaxError: bad", "/srv/app.py:3"),
        ("one\ntwo\nthree", "one; three", ""),
        ("one\n  two", "two", ""),
        ('Traceback:\n  File "/v/site-packages/a.py", line 3, in b\nValueError: no', "ValueError: no", ""),
    ],
)
def test_what_and_where(error: str, what: str, place: str) -> None:
    assert troubles_of([failed("v1", error)]) == [Trouble("v1", what, place, 1)]


def test_a_backend_crash_loops_while_its_restarted_replicas_do_not_get_ready() -> None:
    def replica(backend: str, state: mesh_pb2.ReplicaState.ValueType, restarts: int) -> mesh_pb2.Replica:
        output = "\n".join(str(number) for number in range(9))
        return mesh_pb2.Replica(
            replica_id="r",
            backend=backend,
            state=state,
            restart_count=restarts,
            last_exit="exited with status 1",
            last_output=output,
        )

    assert (
        crash_loops_of([replica("a", READY_STATE, 9), replica("b", STARTING_STATE, 2), replica("b", FAILED_STATE, 1)])
        == []
    )
    looping = [replica("a", FAILED_STATE, 3), replica("a", STARTING_STATE, 5), replica("a", FAILED_STATE, 4)]
    assert crash_loops_of(looping) == [CrashLoop("a", 5, "exited with status 1", tuple("012345678"))]
    looping.append(failed("a", TRACEBACK))
    assert crash_loops_of(looping) == [CrashLoop("a", 5, "exited with status 1", ())], "the traceback says it"
