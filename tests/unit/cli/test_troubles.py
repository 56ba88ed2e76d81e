"""What replicas say is wrong with them, in short."""

from __future__ import annotations

import pytest

from slotmesh.cli.controller_view import FAILED_STATE, READY_STATE, STARTING_STATE
from slotmesh.cli.view.replicas import crash_loop_lines, trouble_lines
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
    shown = trouble_lines([*replicas, failed("v1", ""), failed("v1", "was killed by SIGKILL")])
    assert [it.plain.strip() for it in shown] == [
        "v1, 2 replicas: json.decoder.JSONDecodeError: no",
        f"at {place}",
        "v2, 1 replica: json.decoder.JSONDecodeError: no",
        f"at {place}",
        "v1, 1 replica: json.decoder.JSONDecodeError: still no",
        f"at {place}",
        "The whole tracebacks: slotmesh status --tracebacks",
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
    first, *others = (it.plain.strip() for it in trouble_lines([failed("v1", error)]))
    assert first == f"v1, 1 replica: {what}"
    assert others[:-1] == ([f"at {place}"] if place else [])


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

    def lines(*replicas: mesh_pb2.Replica) -> list[str]:
        return [it.plain.strip() for it in crash_loop_lines(replicas, most_lines=3)]

    well = [replica("a", READY_STATE, 9), replica("b", STARTING_STATE, 2), replica("b", FAILED_STATE, 1)]
    assert lines(*well[:1]) == []
    log = "A process of b ended before it was ready; what it wrote: slotmesh logs b"
    assert lines(*well) == lines(well[1]) == lines(well[2]) == [log]
    assert lines(*well, failed("b", TRACEBACK)) == [], "the traceback says it"
    well[1].last_exit = ""
    assert lines(well[1]) == [], "it starts, and none has ended"
    looping = [replica("a", FAILED_STATE, 3), replica("a", STARTING_STATE, 5), replica("a", FAILED_STATE, 4)]
    title = "a is crash looping: 5 restarts; the last process: exited with status 1"
    assert lines(*looping) == [title, "6", "7", "8", "All that it wrote: slotmesh logs a"]
    assert lines(*looping, failed("a", TRACEBACK)) == [title], "the traceback says it"
