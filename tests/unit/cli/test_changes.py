"""Which files have changed, and where the module of a handler is."""

from __future__ import annotations

import os
from pathlib import Path

from slotmesh.cli.local.reloading import FileChanges, module_file


def write(path: Path, text: str, time_s: int) -> None:
    path.write_text(text)
    os.utime(path, (time_s, time_s))


def test_a_change_is_seen_once_and_a_missing_file_has_not_changed(tmp_path: Path) -> None:
    a, b = tmp_path / "a.py", tmp_path / "b.py"
    write(a, "1", 100)
    write(b, "1", 100)
    changes = FileChanges([a, b])
    assert changes.take() == set()
    write(a, "2", 101)
    assert changes.take() == {a}
    assert changes.take() == set()
    # The same time, as where a clock is coarse: the size tells.
    write(b, "22", 100)
    a.unlink()
    assert changes.take() == {b}
    write(a, "2", 101)
    assert changes.take() == set()
    write(a, "3", 102)
    assert changes.take() == {a}


def test_what_is_watched_can_be_changed_without_losing_a_change(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in ("a", "b", "c"))
    for path in (a, b, c):
        write(path, "1", 100)
    changes = FileChanges([a, b])
    for path in (a, b, c):
        write(path, "2", 101)
    assert changes.watch([b, c]) == {c}
    assert changes.take() == {b}
    write(c, "3", 102)
    assert changes.take() == {c}


def test_the_file_of_a_module_is_found_without_an_import(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    (second / "package" / "inner").mkdir(parents=True)
    first.mkdir()
    for path in (first / "app.py", second / "app.py", second / "package/inner/__init__.py", second / "package/deep.py"):
        path.write_text("raise SystemExit('imported')")
    folders = [str(first), str(tmp_path / "absent"), str(second)]
    assert module_file("app:Digits", folders) == first / "app.py"
    assert module_file("package.deep:Digits.Inner", folders) == second / "package/deep.py"
    assert module_file("package.inner:X", folders) == second / "package/inner/__init__.py"
    assert module_file("package:X", folders) is None
    assert module_file("sys:X", folders) is None
