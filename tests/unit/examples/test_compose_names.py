"""Replicas in compose files have names that a container in place of another one has again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.mesh import ROOT

FILES: Final = sorted(
    path
    for folder in ("", "deploy/compose", "examples/*", "tests/compose")
    for path in ROOT.glob(f"{folder}/*.y*ml".lstrip("/"))
    if "services:" in path.read_text("utf-8")
)


def replicas() -> Iterator[tuple[Path, list[str]]]:
    """The command of each replica that a compose file starts."""
    for path in FILES:
        services: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))["services"]
        for service in services.values():
            command = (service or {}).get("command") or []
            if "replica_service" in command:
                yield path, command


def test_the_files_with_replicas_are_found() -> None:
    names = {str(path.relative_to(ROOT)) for path, _ in replicas()}
    assert {"docker-compose.yml", "examples/compose-app/docker-compose.yml"} <= names


def test_no_replica_is_named_after_its_container() -> None:
    for path, command in replicas():
        assert "--replica-names=/var/lib/slotmesh" in command, path
        assert not [it for it in command if it.startswith("--replica-id")], path
