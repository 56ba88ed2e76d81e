"""docs/kubernetes.md and docs/machines.md name files, resources, settings and units that there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from controller_service.config import ControllerSettings
from ingress_service.config import IngressSettings
from replica_service.config import ReplicaSettings
from router_service.config import RouterSettings
from tests.arch.sources import ROOT

KUBERNETES: Final = ROOT / "deploy/kubernetes"
PAGES: Final = {it: (ROOT / "docs" / it).read_text("utf-8") for it in ("kubernetes.md", "machines.md")}
SERVICES: Final = (ControllerSettings, RouterSettings, ReplicaSettings, IngressSettings)
NAMES: Final = {name for it in SERVICES for name in it.model_fields}
KINDS: Final = {"deploy": "Deployment", "deployment": "Deployment", "statefulset": "StatefulSet", "service": "Service"}
OF_KUBECTL: Final = {"force"}
UNWRITTEN: Final = {"digits-v2.yaml"}
"""Files that the reader writes."""


def documents() -> Iterator[dict[str, Any]]:
    for path in KUBERNETES.rglob("*.yaml"):
        yield from (it for it in yaml.safe_load_all(path.read_text("utf-8")) if isinstance(it, dict))


def quoted(page: str) -> set[str]:
    """What stands between backticks in lines of text."""
    return set(re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```$", "", page, flags=re.MULTILINE | re.DOTALL)))


@pytest.mark.parametrize("page", PAGES)
def test_files_are_there(page: str) -> None:
    folders = (ROOT, KUBERNETES, ROOT / "deploy/systemd")
    paths = {it for it in quoted(PAGES[page]) if re.fullmatch(r"[\w@.-]+(/[\w@.-]+)+|[\w@-]+\.(service|env)", it)}
    paths -= {it for it in paths if it.startswith(("kubernetes/", "overlays/own", "slotmesh.dev/"))}
    assert paths
    assert not [it for it in paths if not any((folder / it).exists() for folder in folders)]


@pytest.mark.parametrize("page", PAGES)
def test_settings_are_settings(page: str) -> None:
    text = PAGES[page]
    variables = {it.lower() for it in re.findall(r"SLOTMESH_([A-Z_]+)(?==|`)", text)}
    flags = {re.match(r"--([a-z-]+)", it) for it in quoted(text)}
    named = variables | {it[1].replace("-", "_") for it in flags if it}
    assert named
    assert not named - NAMES - OF_KUBECTL


def test_resources_are_in_the_files() -> None:
    found = {(it.get("kind"), it.get("metadata", {}).get("name")) for it in documents()}
    used = re.findall(r"[ `](deploy|deployment|statefulset|service)/([a-z][\w-]+)(?!\S*/)", PAGES["kubernetes.md"])
    used = [it for it in used if it != ("deploy", "kubernetes")]
    assert len(used) > 5
    assert not [it for it in used if (KINDS[it[0]], it[1]) not in found]


def test_labels_of_pods_and_of_commands_are_the_same() -> None:
    text = "\n".join(path.read_text("utf-8") for path in KUBERNETES.rglob("*.yaml"))
    for component in re.findall(r"app\.kubernetes\.io/component=(\w+)", PAGES["kubernetes.md"]):
        assert f"app.kubernetes.io/component: {component}" in text
    assert "slotmesh.dev/client" in text


def test_documents_in_pages_are_yaml_and_name_files_of_the_folder() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGES["kubernetes.md"], re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        read = yaml.safe_load(block)
        for path in [*read.get("resources", ()), *read.get("components", ())]:
            assert path in UNWRITTEN or (KUBERNETES / "overlays/own" / Path(path)).resolve().exists(), path


def test_each_folder_is_in_the_table() -> None:
    folders = {path.parent.relative_to(KUBERNETES).as_posix() for path in KUBERNETES.rglob("kustomization.yaml")}
    cells = re.findall(r"^\| (`[^|]+`) \|", PAGES["kubernetes.md"], re.MULTILINE)
    listed = {it for cell in cells for it in re.findall(r"`([^`]+)`", cell)}
    assert folders <= listed


def test_each_unit_is_in_the_table() -> None:
    units = {path.name for path in (ROOT / "deploy/systemd").iterdir()}
    assert units <= quoted(PAGES["machines.md"])
