"""Files that `slotmesh apply` takes, and exported states, are no code, whatever their names."""

from __future__ import annotations

import pytest

from controller_service.core.desired.state import Desired
from controller_service.store.state_document import export_state
from tests.unit.controller.code.project import Project

MESH = 'backends:\n  shop: {handler: "shop.app:Shop", num_replicas: 1}\n'


@pytest.mark.parametrize("name", ["app.yaml", "deploy/production.yml", "shop.json", "applied"])
def test_a_file_that_is_applied_is_no_code_whatever_its_name(name: str, project: Project) -> None:
    project.write(name, MESH)
    before, files = project.code(), project.keep()
    assert project.shown()[name] == "link"
    project.write(name, MESH.replace("1", "2") + "endpoints: {shop: {traffic: {shop: 1.0}}}\n")
    assert project.code() == before, "a changed number of replicas, or a new endpoint, is no new version"
    assert "traffic" in (files / name).read_text()
    (project.root / name).unlink()
    assert project.code() == before


def test_a_file_of_the_project_that_is_no_mesh_stays_code(project: Project) -> None:
    project.write("app.yaml", MESH + "database: {url: a}\n")
    before = project.code()
    assert project.shown()["app.yaml"] == "copy"
    project.write("app.yaml", MESH + "database: {url: b}\n")
    assert project.code() != before


@pytest.mark.parametrize("name", ["app.yaml", "mesh.yaml"])
def test_a_mesh_is_code_if_the_project_says_so(name: str, project: Project) -> None:
    """As the data of a handler that reads it."""
    project.write(name, MESH)
    project.write(".slotmeshignore", f"!{name}\n")
    before = project.code()
    assert project.shown()[name] == "copy"
    project.write(name, MESH.replace("1", "2"))
    assert project.code() != before


@pytest.mark.parametrize("name", ["mesh.json", "backup/monday"])
def test_an_exported_state_is_no_code(name: str, project: Project) -> None:
    before = project.code()
    project.write(name, export_state("a" * 32, Desired()))
    assert project.code() == before
    assert project.shown()[name] == "link"


def test_a_file_that_mentions_the_format_of_states_stays_code(project: Project) -> None:
    project.write("formats.json", '{"formats": ["slotmesh-state"]}')
    assert project.shown()["formats.json"] == "copy"


@pytest.mark.parametrize("name", ["r.err", "run.out", "run.log"])
def test_redirected_output_is_no_code(name: str, project: Project) -> None:
    before = project.code()
    project.write(name, "started")
    assert project.code() == before
