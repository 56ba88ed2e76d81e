"""A file that `slotmesh apply` takes is told from others by what is in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slotmesh.spec.document import parse_mesh
from slotmesh.spec.model import InvalidSpec
from slotmesh.spec.sections import MAX_SPEC_BYTES, is_mesh_file
from tests.arch.sources import ROOT

BACKEND = 'backends:\n  v1: {handler: "app:One", num_replicas: 2}\n'
MESHES = {
    "backends": BACKEND,
    "all sections": BACKEND + "endpoints:\n  e: {traffic: {v1: 1.0}}\nroutes:\n  /e: {endpoint: e, method: m}\n",
    "endpoints alone": "endpoints:\n  e:\n    traffic:\n      v1: 0.9\n      v2: 0.1\n",
    "comments and a mark": f"# of the shop\n\n%YAML 1.1\n---\n{BACKEND}\n# end\n...\n",
    "lines of Windows": BACKEND.replace("\n", "\r\n"),
    "a byte order mark": "\ufeff" + BACKEND,
    "JSON": json.dumps({"backends": {"v1": {"handler": "app:One"}}}, indent=2),
    "quoted names": '"backends":\n  v1: {handler: "app:One"}\n',
    "a misspelt setting beside others": 'backends:\n  v1: {handler: "app:One", num_replcas: 2}\n',
    "a value of the wrong kind": 'backends:\n  v1: {handler: "app:One", num_replicas: two}\n',
    "an empty resource beside others": 'backends:\n  v1:\n  v2: {handler: "app:One"}\n',
}
OTHERS = {
    "empty": "",
    "code": '"""A module."""\nbackends: dict = {}\n',
    "another section": BACKEND + "database:\n  url: x\n",
    "no known setting": "backends:\n  primary: {host: a, port: 1}\n",
    "one resource is of another kind": BACKEND + "  v2: {host: a}\n",
    "texts": "endpoints:\n  search: https://search.example\n",
    "a list": "routes:\n- /a\n- /b\n",
    "a list of sections": "- backends\n",
    "no YAML": "backends: {\n",
    "two documents": f"{BACKEND}---\n{BACKEND}",
    "nothing in it": "backends:\n",
    "JSON of other things": '{"endpoints": {"a": {"url": 1}}}',
    "JSON with other things": '{"backends": {"v1": {"handler": "a:b"}}, "x": 1}',
    "bytes": "backends:\n\0\n",
    "too large": BACKEND + "#" * MAX_SPEC_BYTES,
}


@pytest.mark.parametrize("name", MESHES)
def test_what_can_be_applied_is_one(name: str) -> None:
    assert is_mesh_file(MESHES[name].encode())


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_are_none(name: str) -> None:
    assert not is_mesh_file(OTHERS[name].encode())


def test_those_of_this_repository_are_told_apart() -> None:
    """Each file of the examples is one exactly if it can be read as a mesh."""
    found = {path: path.read_bytes() for path in (ROOT / "examples").rglob("*") if path.is_file()}
    meshes = {path.name for path, content in found.items() if is_mesh_file(content)}
    assert meshes == {
        path.name for path, content in found.items() if path.suffix in {".yaml", ".json"} and reads(content, path)
    }
    assert meshes


def reads(content: bytes, path: Path) -> bool:
    try:
        mesh = parse_mesh(content, path.parent)
    except InvalidSpec:
        return False
    return bool(mesh.backends or mesh.endpoints)
