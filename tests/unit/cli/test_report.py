"""The mesh as tables and as JSON."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from google.protobuf.timestamp_pb2 import Timestamp

from slotmesh.cli.commands.status import print_tables, status_document
from slotmesh.cli.controller_view import FAILED_STATE, READY_STATE, STARTING_STATE, ControllerStatus, Members, Snapshot
from slotmesh.spec.model import Backend, Endpoint, TrafficPolicy
from slotmesh.v1 import mesh_pb2
from slotmesh.v1.info_service_pb2 import ControllerStanding
from tests.support.messages import changed
from tests.unit.cli.top.samples import mesh, router

TRACEBACK = (
    'Traceback (most recent call last):\n  File "[app].py", line 3, in load\nValueError: no [bold]model[/bold] :boom:'
)
WARNING = (
    'block blocked the event loop for 5.0 s at 12:00:00 UTC\n  File "app.py", line 7, in block\n    time.sleep(5)\n'
)
SNAPSHOT = Snapshot(
    backends=(Backend(name="v1", handler="app:Digits", num_replicas=2), Backend(name="v2", handler="app:Digits")),
    endpoints=(
        Endpoint(name="digits", traffic=TrafficPolicy(weights={"v2": 0.25, "v1": 0.75}, shadows={"v2": 0.1})),
        Endpoint(name="waiting"),
    ),
    members=Members(
        replicas=(
            mesh_pb2.Replica(
                replica_id="v1-abcdef",
                backend="v1",
                state=READY_STATE,
                address="[::1]:7072",
                pid=4711,
                max_ongoing=64,
                start_time=Timestamp(seconds=1_767_323_045),
                warning=WARNING,
                restart_count=3,
                last_exit="was killed by SIGKILL",
                version="0.1.0",
            ),
            mesh_pb2.Replica(replica_id="v1-ghijkl", backend="v1", state=FAILED_STATE, error=TRACEBACK),
            mesh_pb2.Replica(replica_id="v3-mnopqr", backend="v3", state=STARTING_STATE),
            mesh_pb2.Replica(
                replica_id="v4-stuvwx",
                backend="v4",
                state=STARTING_STATE,
                restart_count=4,
                last_exit="exited with status 1",
                last_output="\n".join("0123456789"),
            ),
        ),
        routers=(
            mesh_pb2.Router(
                router_id="router-1",
                address="127.0.0.1:7071",
                generation="g",
                table_revision=11,
                linked_replica_ids=frozenset({"v1-abcdef"}),
            ),
            mesh_pb2.Router(
                router_id="router-2",
                address="127.0.0.1:7081",
                generation="g",
                table_revision=12,
                linked_replica_ids=frozenset(),
            ),
        ),
        generation="g",
        table_revision=12,
    ),
    revision=9,
)


def rows(text: str) -> dict[str, list[str]]:
    """Cells of each row, by the first one."""
    cells = [
        [cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line.startswith("│")
    ]
    return {first: rest for first, *rest in cells}


def test_tables_tell_who_does_what_and_who_is_missing() -> None:
    out = io.StringIO()
    print_tables("127.0.0.1:7070", SNAPSHOT, out)
    text = out.getvalue()
    table = rows(text)
    assert table["digits"] == ["v1 0.75, v2 0.25", "v2 0.1", "", ""]
    assert table["waiting"] == ["none: calls wait", "", "", ""]
    assert table["v1"] == ["app:Digits", "1/2", "1", "", ""]
    assert table["v2"] == ["app:Digits", "0/any", "0", "", ""]
    assert table["v3-mnopqr"][-1] == "no backend v3: it gets no calls until that is applied"
    loop = "\nv4 is crash looping: 4 restarts; the last process: exited with status 1\n  5\n  6\n  7\n  8\n  9\n"
    assert f"{loop}All that it wrote: slotmesh logs v4\n" in text
    assert table["v1-abcdef"][:6] == ["v1", "", "READY", "[::1]:7072", "4711", "64"]
    assert table["v1-abcdef"][-3:-1] == ["0.1.0", "3: was killed by SIGKILL"]
    assert table["v1-ghijkl"][-3:-1] == ["", ""]
    assert table["v1-abcdef"][-1] == WARNING.splitlines()[0]
    assert f"\nv1-abcdef:\n{WARNING}" in text
    assert table["v1-ghijkl"][-1] == TRACEBACK.splitlines()[-1]
    assert table["router-1"][:3] == ["127.0.0.1:7071", "11 behind", "1/1"]
    assert table["router-2"][:3] == ["127.0.0.1:7081", "12 current", "0/1"]
    assert f"\nv1, 1 replica: {TRACEBACK.splitlines()[-1]}\n  at [app].py:3, in load\n" in text
    assert "slotmesh status --tracebacks" in text
    assert TRACEBACK not in text
    assert "\x1b" not in text


def test_a_reason_that_is_the_error_and_the_last_exit_is_shown_once_in_the_row() -> None:
    reason = "the code of this version is not whole"
    replica = mesh_pb2.Replica(replica_id="v1-a", backend="v1", restart_count=4, error=reason, last_exit=reason)
    out = io.StringIO()
    print_tables("127.0.0.1:7070", replace(SNAPSHOT, members=replace(SNAPSHOT.members, replicas=(replica,))), out)
    assert rows(out.getvalue())["v1-a"][-2:] == ["4", reason]


def test_load_is_shown_where_it_is_known() -> None:
    out, load = io.StringIO(), mesh([router("router-2", (300, 10), (100, 0))])
    print_tables("127.0.0.1:7070", SNAPSHOT, out, load=load)
    table = rows(out.getvalue())
    assert table["digits"][-2:] == ["100", "0"]
    assert table["v1"][-2:] == ["100", "0"]
    assert table["router-2"][-2:] == ["100", "0"]
    assert table["router-1"][-2:] == ["", ""]
    said = status_document("127.0.0.1:7070", SNAPSHOT, load)
    assert [it["calls_per_s"] for it in said["endpoints"]] == [100.0, None]
    assert [it["queued"] for it in said["routers"]] == [None, 0]


def test_tracebacks_are_shown_as_a_whole_to_whoever_asks() -> None:
    out = io.StringIO()
    print_tables("127.0.0.1:7070", SNAPSHOT, out, tracebacks=True)
    assert f"\nv1-ghijkl, FAILED:\n{TRACEBACK}\n" in out.getvalue()
    assert "exited with status 1\n  0\n  1\n" in out.getvalue()
    assert "--tracebacks" not in out.getvalue()


def test_json_says_the_same() -> None:
    document = json.loads(json.dumps(status_document("127.0.0.1:7070", SNAPSHOT)))
    assert (document["controller"], document["generation"], document["revision"]) == ("127.0.0.1:7070", "g", 9)
    assert document["endpoints"][0] == {
        "name": "digits",
        "traffic": {"v1": 0.75, "v2": 0.25},
        "shadows": {"v2": 0.1},
        "calls_per_s": None,
        "queued": None,
    }
    assert [*document["endpoints"][0]["traffic"]] == ["v1", "v2"], "in the order of their names"
    assert document["endpoints"][1]["traffic"] is None
    assert document["backends"][0] == {
        "name": "v1",
        "handler": "app:Digits",
        "ready_replicas": 1,
        "attached_replicas": 1,
        "num_replicas": 2,
        "wanted_replicas": 2,
        "deferred_start": "",
        "calls_per_s": None,
        "queued": None,
        "shadow_copies": 0,
        "shadow_drops": 0,
        "shadow_failures": 0,
    }
    ready, failed, _, looping = document["replicas"]
    assert looping["last_output"] == list("0123456789")
    assert (ready["state"], ready["pid"], ready["start_time"]) == ("READY", 4711, "2026-01-02T03:04:05+00:00")
    assert (ready["warning"], failed["warning"]) == (WARNING, "")
    assert (ready["restart_count"], ready["last_exit"], ready["version"]) == (3, "was killed by SIGKILL", "0.1.0")
    assert (failed["state"], failed["error"], failed["start_time"]) == ("FAILED", TRACEBACK, None)
    assert [router["current"] for router in document["routers"]] == [False, True]
    assert document["routers"][0]["linked_replica_ids"] == ["v1-abcdef"]


def test_a_controller_that_reconciles_nothing_says_why_above_the_tables() -> None:
    newer = ("router/r holds revision 9, which this state file never had",)
    status = ControllerStatus("127.0.0.1:1", ControllerStanding(leads=True, term=3, newer_members=newer))
    out = io.StringIO()
    print_tables("127.0.0.1:1", replace(SNAPSHOT, controller=status), out)
    text = out.getvalue()
    assert text.index("Nothing is reconciled") < text.index(newer[0]) < text.index("slotmesh state adopt")
    assert "slotmesh state adopt --from-members" in text
    assert "slotmesh state adopt --discard-members" in text
    assert "on hold" in text.splitlines()[0]
    assert "revision" not in text.splitlines()[0], "no table was announced"
    assert status_document("127.0.0.1:1", replace(SNAPSHOT, controller=status))["newer_members"] == [*newer]
    calm = io.StringIO()
    print_tables("127.0.0.1:1", SNAPSHOT, calm)
    assert "Nothing is reconciled" not in calm.getvalue()
    assert status_document("127.0.0.1:1", SNAPSHOT)["newer_members"] == []


def test_the_version_of_the_leader_is_shown_beside_those_of_members() -> None:
    status = ControllerStatus("127.0.0.1:1", ControllerStanding(leads=True, term=3), version="0.2.0")
    out = io.StringIO()
    print_tables("127.0.0.1:1", replace(SNAPSHOT, controller=status), out)
    assert "  version 0.2.0, leader, term 3" in out.getvalue().splitlines()[0]
    assert status_document("127.0.0.1:1", replace(SNAPSHOT, controller=status))["version"] == "0.2.0"


def test_members_that_end_are_shown_with_their_own_reason() -> None:
    members = SNAPSHOT.members
    replicas = (
        changed(members.replicas[0], state=mesh_pb2.REPLICA_STATE_DRAINING, end_reason="SIGTERM"),
        changed(members.replicas[1], end_reason="its handler could not be constructed"),
    )
    routers = (changed(members.routers[1], end_reason="its launcher has ended"), members.routers[0])
    ending = replace(SNAPSHOT, members=replace(members, replicas=replicas, routers=routers))
    out = io.StringIO()
    print_tables("127.0.0.1:7070", ending, out)
    table = rows(out.getvalue())
    assert table["v1-abcdef"][-1] == "ends: SIGTERM"
    assert "model" in table["v1-ghijkl"][-1], "an error says more"
    assert table["router-2"][1] == "12 current, ends: its launcher has ended"
    assert table["router-1"][1] == "11 behind"
    document = json.loads(json.dumps(status_document("127.0.0.1:7070", ending)))
    assert [it["end_reason"] for it in document["replicas"]] == ["SIGTERM", "its handler could not be constructed"]
    assert [it["end_reason"] for it in document["routers"]] == ["its launcher has ended", ""]
