"""`slotmesh bench` and the files that it is given: looked at before any load is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.shell import slotmesh

pytestmark = pytest.mark.asyncio


async def test_a_result_that_cannot_be_saved_is_told_before_the_load(tmp_path: Path) -> None:
    said = await slotmesh("bench", "e", "m", "--save", str(tmp_path / "none" / "x.json"), env={})
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith(f"--save {tmp_path}/none/x.json: No such file or directory: name a file in a folder")


async def test_what_is_no_result_is_not_compared_with(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import os\n", "utf-8")
    said = await slotmesh("bench", "e", "m", "--compare", str(tmp_path / "a.py"), env={})
    assert (said.status, said.out) == (2, "")
    assert "a.py: is no result of a bench: name a file that --save has written" in said.err
