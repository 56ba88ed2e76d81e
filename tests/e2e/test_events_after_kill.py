"""A controller that is killed leaves its events to the next one: real processes, and the command that shows them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.lone_controller import lone_controller
from tests.support.shell import slotmesh as command
from tests.support.wait import wait_until

pytestmark = pytest.mark.long

SPEC = "backends: {v1: {handler: 'app:One'}}\nendpoints: {digits: {traffic: {v1: 1}}}"


def stored(path: Path) -> int:
    """Events in the file."""
    if not path.exists():
        return 0
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as database:
        try:
            (count,) = database.execute("SELECT count(*) FROM events").fetchone()
        except sqlite3.OperationalError:  # it is being made
            return 0
    return int(count)


@pytest.mark.asyncio
async def test_the_next_controller_shows_what_happened_before_a_kill(tmp_path: Path) -> None:
    flags = (f"--state={tmp_path / 'mesh.state'}", "--launcher=external")
    async with lone_controller(tmp_path, SPEC, *flags) as mesh:
        await wait_until(lambda: stored(tmp_path / "mesh.state.events") >= 3, timeout=60, what="stored events")
        before = await command("events", "-o", "json", env={"SLOTMESH_CONTROLLER": mesh.address})
        assert before.status == 0, before
        first = json.loads(before.out)["events"]
        assert [it["resource"] for it in first[1:3]] == ["backend/v1", "endpoint/digits"]
        await mesh.kill()
        await mesh.start()
        after = await command("events", "-o", "json", env={"SLOTMESH_CONTROLLER": mesh.address})
        again = json.loads(after.out)["events"]
        assert again[:3] == first[:3]
        follow = await command(
            "events", "--after", first[0]["cursor"], "-o", "json", env={"SLOTMESH_CONTROLLER": mesh.address}
        )
        assert json.loads(follow.out)["events"][0] == first[1]
        assert not follow.err, "nothing is missed"
