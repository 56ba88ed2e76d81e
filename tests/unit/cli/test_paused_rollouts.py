"""A rollout that is paused is shown as that, whether or not it has anything to do."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from slotmesh.cli.checking.findings import Section, Severity
from slotmesh.cli.commands.status import print_tables
from slotmesh.cli.view.changes import rollout_document, rollout_line, rollout_lines
from slotmesh.v1 import rollout_pb2
from tests.support.messages import changed
from tests.unit.cli.checking.meshes import SEEN, SNAPSHOT, one, wrong

COMPLETE = rollout_pb2.Rollout(
    backend="b",
    phase=rollout_pb2.ROLLOUT_PHASE_COMPLETE,
    handler="a:B",
    version="",
    wanted=1,
    current=1,
    available=1,
    outdated=0,
)
PAUSED = changed(COMPLETE, paused=True)
HELD = changed(COMPLETE, paused=True, phase=rollout_pb2.ROLLOUT_PHASE_PAUSED, current=0, available=0, outdated=1)
WAY_OUT = "`slotmesh rollout resume b`"


@pytest.mark.parametrize("rollout", [PAUSED, HELD])
def test_the_line_of_a_paused_rollout_has_the_way_out(rollout: rollout_pb2.Rollout) -> None:
    assert [*rollout_lines([COMPLETE, rollout])] == [rollout_line(rollout)]
    assert "paused" in rollout_line(rollout)
    assert WAY_OUT in rollout_line(rollout)
    assert rollout_document(rollout)["paused"] is True


def test_a_rollout_says_what_it_waits_for() -> None:
    """`status` shows all replicas as ready beside it, where new ones have to be so for `min_ready`, or old ones end."""
    going = changed(COMPLETE, phase=rollout_pb2.ROLLOUT_PHASE_PROGRESSING, wanted=6, current=4, available=1, ready=3)
    start = "rollout of b to a:B: progressing, 1 of 6 new replicas ready"
    waits = "2 ready for less than min_ready, 1 not ready yet, 2 not started yet"
    assert rollout_line(going) == f"{start}, {waits}"
    assert rollout_line(changed(going, outdated=2)) == f"{start}, {waits}, 2 old left"
    earlier = changed(going, ready=0)
    assert rollout_line(earlier) == f"{start}, 2 not started yet", "slotmesh 0.2.0 reports no `ready`"
    assert rollout_line(changed(COMPLETE, ready=1, outdated=1)).endswith(
        "complete, 1 of 1 replicas ready, 1 earlier end"
    )


def test_others_are_not_called_paused() -> None:
    assert "paused" not in rollout_line(COMPLETE)
    assert rollout_document(COMPLETE)["paused"] is False


def test_the_status_of_the_mesh_has_it() -> None:
    out = io.StringIO()
    print_tables("127.0.0.1:1", replace(SNAPSHOT, rollouts=(PAUSED,)), out)
    assert "paused" in out.getvalue()


@pytest.mark.parametrize("rollout", [PAUSED, HELD])
def test_a_check_warns_of_it(rollout: rollout_pb2.Rollout) -> None:
    seen = replace(SEEN, snapshot=replace(SNAPSHOT, rollouts=(changed(COMPLETE, backend="a"), rollout)))
    severity, subject, text = one(seen, Section.BACKENDS)
    assert (severity, subject) == (Severity.WARNING, "backend/b")
    assert "paused" in text
    assert wrong(seen, Section.BACKENDS)[0].fix == WAY_OUT
    assert not wrong(replace(SEEN, snapshot=replace(SNAPSHOT, rollouts=(COMPLETE,))), Section.BACKENDS)
