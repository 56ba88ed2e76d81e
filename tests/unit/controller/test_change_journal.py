"""What a commit is reported as: one audit line for each thing that changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller_service.core.desired.revisions import ChangeOrigin, ResourceChange, RevisionRecord
from controller_service.core.desired.state import Desired, RolloutRecord
from controller_service.shell.events import EventFeed
from controller_service.shell.mesh_state import ChangeJournal, Key, MeshState, WorkQueue
from slotmesh.runtime.clock import MonotonicClock
from slotmesh.spec.model import Backend

V1 = Backend(name="v1", handler="app:V1")
BEFORE = Desired(
    revision=3,
    configured_at=3,
    backends={"v1": V1},
    rollouts={"v1": RolloutRecord(backend="v1", template="a", is_paused=True)},
)
GOES_ON = {"v1": RolloutRecord(backend="v1", template="b")}
ROLLED_BACK = RevisionRecord(
    revision=4,
    origin=ChangeOrigin(),
    changes=(ResourceChange(before=V1, after=replace(V1, handler="app:V0")),),
    base=3,
)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("after", "subjects"),
    [
        (replace(BEFORE, revision=4, rollouts=GOES_ON), ["rollout/v1"]),
        (replace(BEFORE, revision=4, configured_at=4, rollouts=GOES_ON, history=(ROLLED_BACK,)), ["backend/v1"]),
    ],
    ids=["resumed", "rolled back"],
)
async def test_a_rollback_that_ends_a_pause_has_one_audit_line(
    after: Desired, subjects: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="slotmesh.audit")
    journal = ChangeJournal(MeshState(MonotonicClock(), WorkQueue[Key](), EventFeed("f")))
    journal.committed(BEFORE, after, ChangeOrigin())
    journal.close()
    lines = [each.getMessage() for each in caplog.records if each.name == "slotmesh.audit"]
    assert [line.partition("object=")[2].partition(" ")[0] for line in lines] == subjects
