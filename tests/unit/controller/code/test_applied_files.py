"""Files that `slotmesh apply` takes are no code, whatever their names."""

from __future__ import annotations

import pytest

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
