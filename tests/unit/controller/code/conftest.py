"""The project that snapshots are taken of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller_service.shell.code.snapshot_keeper import CodeSnapshots
from tests.unit.controller.code.project import Project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    root = tmp_path / "project"
    monkeypatch.syspath_prepend(str(root))
    snapshots = CodeSnapshots(lambda: tmp_path / "state.code", max_bytes=10_000, max_files=50, own=[root / "state"])
    project = Project(root, snapshots)
    project.write("shop/__init__.py", "raise AssertionError('imported')")
    project.write("shop/app.py", "class Shop: ...")
    project.write("helpers.py", "PRICE = 1")
    yield project
    snapshots.collect((), settle_s=0.0)
