"""Handlers of backends with a folder, an interpreter or a PYTHONPATH of their own: their code is that of there."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller_service.core.desired.handler_code import (
    Code,
    HandlerCode,
    HandlerPlace,
    key_of,
    secret_warnings,
    warnings_of,
)
from controller_service.core.desired.state import Desired
from controller_service.shell.code.roots import import_path_of, root_of
from controller_service.shell.code.snapshot_keeper import CodeSnapshots
from slotmesh.spec.environment import EnvironmentValue
from slotmesh.spec.model import Backend, Mesh

HANDLER = "shop_of_places:Cart"


def snapshots(tmp_path: Path) -> CodeSnapshots:
    return CodeSnapshots(lambda: tmp_path / "kept", max_bytes=1 << 20, max_files=100)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("here", "there", "path"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shop_of_places.py").write_text(f"class Cart:\n    place = {name!r}\n")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def root(backend: Backend) -> str:
    found = root_of(backend.handler, import_path_of(key_of(backend)))
    return "" if found is None else found.path.name


def test_it_is_where_replicas_would_import_it(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = {"PYTHONPATH": EnvironmentValue(value=f"nothing:{folders}/path")}
    assert key_of(Backend(name="b", handler=HANDLER)) == HANDLER
    assert root(Backend(name="b", handler=HANDLER)) == "here"
    assert root(Backend(name="b", handler=HANDLER, cwd="../there")) == "there"
    assert root(Backend(name="b", handler=HANDLER, cwd=str(folders / "there"), python="venv")) == "there"
    assert root(Backend(name="b", handler=HANDLER, cwd=str(folders), env=path)) == "path"
    assert root(Backend(name="b", handler=HANDLER, cwd=str(folders), python="venv", env=path)) == "path"
    assert root(Backend(name="b", handler=HANDLER, python="venv")) == "here"
    monkeypatch.setenv("PYTHONPATH", str(folders / "path"))
    assert root(Backend(name="b", handler=HANDLER, cwd=str(folders), python="venv")) == "path", "it is inherited"


def test_two_places_are_two_versions_of_one_handler(folders: Path) -> None:
    keys = [key_of(Backend(name="b", handler=HANDLER, cwd=it)) for it in ("", "../there")]
    here, there = snapshots(folders).versions_of(keys).values()
    assert here.code != there.code


def test_what_only_another_interpreter_may_have_is_no_violation(folders: Path) -> None:
    yaml = "yaml:load"  # installed here; whether it is installed there is not known
    found = snapshots(folders).versions_of([HandlerPlace(it, "", "venv", None) for it in (yaml, "none_such:Cart")])
    assert found == {}
    absent = HandlerPlace("none_such:Cart", "../there", "", None)
    (code,) = snapshots(folders).versions_of([absent]).values()
    assert code.problem == f"module 'none_such' is not in {folders}/here/../there, and is not installed"
    (installed,) = snapshots(folders).versions_of(["yaml:load"]).values()
    assert installed.code.startswith("dist:")


def test_a_secret_in_the_configuration_is_warned_of_without_its_value() -> None:
    environment = {"API_KEY": EnvironmentValue(value="hunter-2"), "B_TOKEN": EnvironmentValue(file="/run/b")}
    mesh = Mesh(backends=(Backend(name="b", handler=HANDLER, env=environment), Backend(name="c", handler=HANDLER)))
    (line,) = secret_warnings(mesh)
    assert line.startswith("backend/b has env.API_KEY as plain text")
    assert "hunter" not in line
    code: Code = {HANDLER: HandlerCode(code="1", version="file:1", doubt="it is not there")}
    assert len(warnings_of(Desired(), mesh, code)) == 3, "two doubts about the handler, one secret"
