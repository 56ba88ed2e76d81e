"""A handler whose module does not exist is refused by name when it is applied; all that replicas may find is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller_service.core.desired.handler_code import HandlerCode, with_code
from controller_service.core.desired.state import ChangeSet, Desired
from slotmesh.spec.model import Backend, Mesh
from tests.unit.controller.code.project import HANDLER, Project


def problem_of(project: Project, handler: str) -> str:
    found = project.snapshots.versions_of([handler]).get(handler, HandlerCode())
    assert found.is_absent == bool(found.problem)
    return found.problem


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        ("shpo:Shop", "module 'shpo' is not in {root}, and is not installed; did you mean shop?"),
        ("nowhere_at_all:Shop", "module 'nowhere_at_all' is not in {root}, and is not installed"),
        ("nowhere_at_all.app:Shop", "module 'nowhere_at_all' is not in {root}, and is not installed"),
        ("shop.ap:Shop", "module 'shop.ap' is not in {root}; did you mean shop.app?"),
        ("shop.zebra.inner:Shop", "module 'shop.zebra' is not in {root}"),
        ("shop.app.py:Shop", "there is no module 'shop.app.py'; did you mean shop.app:Shop?"),
        ("helpers.py:Shop", "there is no module 'helpers.py'; did you mean helpers:Shop?"),
    ],
)
def test_a_module_that_does_not_exist_is_named_with_the_closest_one(
    handler: str, problem: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.root)
    assert problem_of(project, handler) == problem.format(root=project.root)


@pytest.mark.parametrize(
    "handler",
    [
        HANDLER,
        "yaml:load",
        "yaml.not_there:load",  # of what is installed the replicas decide
        "os.path:join",
        "sys:One",
        "folder.inner:Shop",
        "shop.data.inner:Shop",
        "shop.data:Shop",
        "plugins.elsewhere:Shop",
        "installed_later:Shop",
    ],
)
def test_what_replicas_may_find_is_not_refused(
    handler: str, project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(project.root)
    project.write("folder/inner.py")  # a package without a file of its own
    project.write("shop/data/inner.py", "class Shop: ...")
    project.write("plugins/__init__.py", "__path__.append('/elsewhere')")
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "installed_later.py").write_text("raise AssertionError('imported')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "later"))  # of new processes, not of this one
    assert not problem_of(project, handler)


def test_a_backend_keeps_the_snapshot_that_it_runs_when_its_module_has_gone() -> None:
    backend, absent = Backend(name="b", handler="a:B"), HandlerCode(problem="module 'a' is gone", is_absent=True)
    mesh, mistakes = with_code(Desired(), Mesh(backends=(backend,)), {"a:B": HandlerCode(code="1", version="file:1")})
    assert not mistakes
    desired = Desired().apply(ChangeSet(put_backends=mesh.backends))
    again, mistakes = with_code(desired, Mesh(backends=(backend,)), {"a:B": absent})
    assert (again.backends[0].code, mistakes) == ("1", [])
    _, (mistake,) = with_code(desired, Mesh(backends=(Backend(name="new", handler="a:B"),)), {"a:B": absent})
    assert (mistake.path, mistake.message) == ("backends.new.handler", "module 'a' is gone")


def test_a_module_in_a_folder_without_a_file_of_its_own_has_the_code_of_its_project(project: Project) -> None:
    project.write("shop/data/inner.py", "class Shop: ...")
    assert project.code("shop.data.inner:Shop") == project.code()
