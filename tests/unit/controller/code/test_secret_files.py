"""No version of the code has a copy of a file that a variable comes from."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from controller_service.shell.code.snapshot_keeper import secret_files
from slotmesh.spec.environment import EnvironmentValue
from slotmesh.spec.model import Backend
from tests.support.controllers import running_controller, violations
from tests.support.fakes.launcher import FakeLauncher
from tests.unit.controller.code.project import HANDLER, Project


def with_secret(path: Path | str) -> Backend:
    variables = {"TOKEN": EnvironmentValue(file=str(path)), "MODE": EnvironmentValue(value="x")}
    return Backend(name="v1", handler=HANDLER, env=variables)


@pytest.mark.parametrize("way", ["directly", "by a symlink", "by a hard link", "by a relative path"])
def test_a_secret_among_the_code_is_refused_by_whatever_path_it_is_named(
    way: str, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("shop/app.py", "class Shop: ...")
    secret = named = project.write("secrets/token.txt", "hunter")
    if way == "by a symlink":
        (named := tmp_path / "elsewhere").symlink_to(secret)
    elif way == "by a hard link":
        (named := tmp_path / "elsewhere").hardlink_to(secret)
    elif way == "by a relative path":
        monkeypatch.chdir(project.root / "secrets")
        named = Path("token.txt")
    secrets = secret_files([Backend(name="v2"), with_secret(named)])

    def problem() -> str:
        return project.snapshots.versions_of([HANDLER], secrets)[HANDLER].problem

    assert problem() == (
        f"backends.v1.env.TOKEN: the code below {project.root} has its file, secrets/token.txt, of which each version"
        f" would keep a copy: move it elsewhere, or list it in {project.root}/.slotmeshignore"
    )
    project.write(".slotmeshignore", "/secrets/\n")
    assert not problem(), "replicas find it where it is"
    assert project.shown()["secrets"] == "link"


def test_secrets_elsewhere_and_those_that_are_not_there_are_no_matter(project: Project, tmp_path: Path) -> None:
    project.write("shop/app.py", "class Shop: ...")
    (tmp_path / "elsewhere").write_text("x")
    for path in (tmp_path / "elsewhere", project.root / "absent"):
        found = project.snapshots.versions_of([HANDLER], secret_files([with_secret(path)]))
        assert found[HANDLER].code
        assert not found[HANDLER].problem


def test_a_secret_on_a_file_system_that_hangs_holds_up_no_start(project: Project, tmp_path: Path) -> None:
    looks, may_end = threading.Event(), threading.Event()

    class Hanging(type(tmp_path)):  # type: ignore[misc]
        def stat(self, **_: Any) -> Any:
            looks.set()
            assert may_end.wait(20)
            raise FileNotFoundError

    project.write("shop/app.py", "class Shop: ...")
    code = project.snapshots.versions_of([HANDLER])[HANDLER].code
    with ThreadPoolExecutor(2) as threads:
        change = threads.submit(project.snapshots.versions_of, [HANDLER], {Hanging("/mnt/token"): "env.TOKEN"})
        try:
            assert looks.wait(20)
            start = threads.submit(project.snapshots.versions_of, [HANDLER])
            assert start.result(10)[HANDLER].code == code
        finally:
            may_end.set()
        assert change.result(20)[HANDLER].code == code


@pytest.mark.asyncio
async def test_a_mesh_is_refused_whose_secret_is_among_the_code_of_any_backend(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeLauncher, "imports_snapshots", True)
    project.write("shop/app.py", "class Shop: ...")
    secret = project.write("token.txt", "hunter")
    async with running_controller(launches=True) as mesh:
        own = f"v1: {{handler: 'yaml:load', num_replicas: 0, env: {{TOKEN: {{file: {secret}}}}}}}"
        await mesh.apply(f"backends: {{{own}}}")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await mesh.apply(f"backends: {{v2: {{handler: '{HANDLER}', num_replicas: 0}}}}")
        (found,) = violations(caught.value).values()
        assert found.startswith(f"backends.v1.env.TOKEN: the code below {project.root} has its file, token.txt, of")
        assert "hunter" not in found
