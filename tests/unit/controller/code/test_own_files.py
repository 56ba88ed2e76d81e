"""The controller's own files are part of no snapshot, by whatever path the project is found; files named alike are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from controller_service.shell.code.snapshot_keeper import CodeSnapshots
from slotmesh.code_manifest import FILES

HANDLER = "own_app:App"
OWN = [
    *("state.db", "state.db-wal", "state.db-shm", "state.db-journal", "state.db-room", "state.db.lock"),
    *("state.db.events", "state.db.events-wal", "state.db.events.damaged", "state.db.unfinished-journal"),
    *("state.db.standby-ab12", "state.db.standby-ab12.new"),
    *("state.db.code/x.py", "run/replica.json", "run/code/x.py"),
]
ALIKE = ["run.py", "run-me.txt", "run.toml", "state.db.py", "state.dbs", "sub/run/a.py", "sub/state.db-notes"]


def write(root: Path, names: list[str]) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


@pytest.mark.parametrize("way", ["directly", "project by a symlink", "state by a symlink", "a symlink in the project"])
def test_a_snapshot_has_none_of_the_controllers_files_and_all_that_are_named_alike(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, other, elsewhere = tmp_path / "project", tmp_path / "other", tmp_path / "elsewhere"
    write(root, ["own_app.py", ".slotmeshignore", *ALIKE])
    (root / ".slotmeshignore").write_text("!*\n")
    other.symlink_to(root)
    state_folder = root
    if way == "a symlink in the project":
        state_folder = elsewhere
        elsewhere.mkdir()
        (root / "data").symlink_to(elsewhere)
    write(state_folder, OWN)
    by = other if way == "state by a symlink" else state_folder
    monkeypatch.syspath_prepend(str(other if way == "project by a symlink" else root))
    folder = by / "state.db.code"
    snapshots = CodeSnapshots(lambda: folder, max_bytes=10_000, max_files=50, own=[by / "state.db", by / "run"])
    for _ in range(2):  # what the first one has stored does not become part of the second
        (code,) = {it.code for it in snapshots.versions_of([HANDLER]).values()}
        snapshots.keep([code])
        files = Path(snapshots.tree_of(HANDLER, code), FILES)
        found = {it.relative_to(files).as_posix() for it in files.rglob("*") if it.is_file()}
        assert found == {"own_app.py", ".slotmeshignore", *ALIKE}
    snapshots.collect([], settle_s=0.0)


def test_a_symlink_to_the_launch_directory_leads_to_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, ["project/own_app.py", "launched/replica.json", "state.db"])
    (tmp_path / "project" / "logs").symlink_to(tmp_path / "launched")
    (tmp_path / "project" / "configuration").symlink_to(tmp_path / "state.db")
    monkeypatch.syspath_prepend(str(tmp_path / "project"))
    own = [tmp_path / "launched", tmp_path / "state.db"]
    snapshots = CodeSnapshots(lambda: tmp_path / "code", max_bytes=10_000, max_files=50, own=own)
    before = snapshots.versions_of([HANDLER])
    write(tmp_path, ["launched/other.json"])
    (tmp_path / "state.db").write_text("written")
    assert snapshots.versions_of([HANDLER]) == before
    assert sys.path[0] == str(tmp_path / "project")


def test_snapshots_of_another_controller_are_left_out_and_folders_named_alike_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "project"
    alike = ["other.state.code/notes.txt", f"{'a' * 32}/x.py", f"{'b' * 32}/manifest.json"]
    write(root, ["own_app.py", *alike])
    monkeypatch.syspath_prepend(str(root))
    other, own = (
        CodeSnapshots(lambda place=place: place, max_bytes=100_000, max_files=50)  # type: ignore[misc]
        for place in (root / "other.state.code", tmp_path / "own.state.code")
    )
    (before,) = {it.code for it in other.versions_of([HANDLER]).values()}
    other.keep([before])
    for _ in range(2):  # as a pack, and unpacked
        (code,) = {it.code for it in own.versions_of([HANDLER]).values()}
        own.keep([code])
        files = Path(own.tree_of(HANDLER, code), FILES)
        assert {it.relative_to(files).as_posix() for it in files.rglob("*") if it.is_file()} == {"own_app.py", *alike}
        other.tree_of(HANDLER, before)
    other.collect([], settle_s=0.0)
    own.collect([], settle_s=0.0)
