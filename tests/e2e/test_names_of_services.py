"""A module of the user's with the name of a service, or of what slotmesh imports, is named before anything starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.shell import program, slotmesh

pytestmark = pytest.mark.asyncio

HANDLER = "class Greeter:\n    async def hello(self) -> str:\n        return 'hello'\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a handler, and beside it a module of another folder's."""
    (tmp_path / "greeter.py").write_text(HANDLER, "utf-8")
    return tmp_path


async def ended(folder: Path, *command: str) -> tuple[int | None, str]:
    """Runs Python in the folder; returns its exit status and what it has written to stderr."""
    said = await program(sys.executable, *command, cwd=folder)
    return said.status, said.err


def expected(file: Path, name: str) -> str:
    return f"{file} has the name of slotmesh's own {name}, and would be imported in its place: rename it, or take"


@pytest.mark.parametrize("name", ["controller_service", "router_service", "replica_service", "ingress_service"])
async def test_a_module_in_the_working_directory(project: Path, name: str) -> None:
    file = project / f"{name}.py"
    file.write_text("MINE = 1\n", "utf-8")
    said = await slotmesh("run", "greeter:Greeter", "--router-port=0", "--controller-port=0", cwd=project)
    assert (said.status, said.out) == (2, "")
    assert expected(file, name) in said.err
    assert "nothing was started" in said.err


@pytest.mark.parametrize("name", ["slotmesh", "grpc", "logging", "queue"])
async def test_a_handler_with_the_name_of_what_slotmesh_imports(project: Path, name: str) -> None:
    file = (project / "greeter.py").rename(project / f"{name}.py")
    as_script = {"PYTHONSAFEPATH": "1"}  # the working directory is not on its import path
    said = await slotmesh("run", f"{name}:Greeter", cwd=project, env=as_script, timeout=20.0)
    assert (said.status, said.out) == (2, "")
    assert f"{file} has the name of {name}, which slotmesh or Python imports, and would be" in said.err
    assert "Traceback" not in said.err


async def test_a_package_on_the_python_path(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    file = elsewhere / "router_service" / "__init__.py"
    file.parent.mkdir()
    file.touch()
    path = os.pathsep.join([str(elsewhere), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    said = await slotmesh("run", "greeter:Greeter", cwd=project, env={"PYTHONPATH": path})
    assert said.status == 2
    assert expected(file, "router_service") in said.err
    said = await slotmesh("state", "export", "mesh.state", cwd=project, env={"PYTHONPATH": path})
    assert said.status == 2
    assert expected(file, "router_service") in said.err


@pytest.mark.parametrize("service", ["controller_service", "router_service", "ingress_service"])
async def test_a_service_does_not_start_beside_such_a_module(project: Path, service: str) -> None:
    file = project / "replica_service.py"
    file.touch()
    status, err = await ended(project, "-m", service, *([] if service == "ingress_service" else ["--port=0"]))
    assert (status, err.count("\n")) == (1, 1), err
    assert expected(file, "replica_service") in err


async def test_a_replica_does_not_import_a_handler_beside_such_a_module(project: Path) -> None:
    file = project / "router_service.py"
    file.touch()
    for flag in ("--handler", "--describe"):
        status, err = await ended(project, "-m", "replica_service", f"{flag}=greeter:Greeter", "--port=0")
        assert status == 1, err
        assert expected(file, "router_service") in err


async def test_meshes_of_tests_are_not_imported_beside_such_a_module(project: Path) -> None:
    file = project / "controller_service.py"
    file.touch()
    status, err = await ended(project, "-c", "import slotmesh.testing")
    assert status == 1
    assert expected(file, "controller_service") in err.splitlines()[-1]


async def test_a_folder_without_modules_is_no_obstacle(project: Path) -> None:
    (project / "router_service").mkdir()
    (project / "router_service" / "notes.txt").touch()
    status, err = await ended(project, "-m", "replica_service", "--describe=greeter:Greeter")
    assert (status, err) == (0, "")
