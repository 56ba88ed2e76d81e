"""What becomes of a backend's `env`, `python`, `cwd`, `cpus` and `memory` in the container of a pod. Pure.

Invariants: what the backend's `pod` has, and the template's command, go first; what only a process of the controller's
machine can have (files of secrets, inherited variables) is refused, and named.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from pathlib import PurePosixPath
from typing import Any, Final

from controller_service.shell.launchers.protocol import LaunchFailed, LaunchOrder
from slotmesh.spec.environment import THREAD_VARIABLES, Environment
from slotmesh.spec.model import Backend, SpecViolation

COMMAND: Final = ("python", "-m", "replica_service")
_REFUSED: Final = "is not possible with --launcher kubernetes: have the --pod-template take it from a Secret"


def container_violations(backend: Backend) -> Iterator[SpecViolation]:
    """What pods cannot have."""
    for name, problem in _problems(backend.env):
        yield SpecViolation(f"backends.{backend.name}.env.{name}", problem)


def complete_container(container: dict[str, Any], order: LaunchOrder) -> None:
    """Raises LaunchFailed: the backend was applied with another launcher."""
    settings = order.process
    for name, problem in _problems(settings.env):
        raise LaunchFailed(f"backend {order.backend}: env.{name}: {problem}")
    values = {name: (it.value or "").replace("$(", "$$(") for name, it in settings.env.items()}  # no references
    if settings.cpus is not None:
        values = dict.fromkeys(THREAD_VARIABLES, str(ceil(settings.cpus))) | values
    if values:
        others = [it for it in container.get("env") or () if it.get("name") not in values]
        container["env"] = [*others, *({"name": name, "value": value} for name, value in values.items())]
    if settings.cwd:
        container["workingDir"] = settings.cwd
    if settings.python:
        container["command"] = [_interpreter(settings.python), *COMMAND[1:]]
    container.setdefault("command", [*COMMAND])
    if amounts := _amounts(order):
        resources = container.setdefault("resources", {})
        for kind in ("requests", "limits"):
            resources[kind] = {**(resources.get(kind) or {}), **amounts}


def _amounts(order: LaunchOrder) -> dict[str, str]:
    """Those that `pod` has not."""
    cpus, memory, pod = order.process.cpus, order.process.memory, order.pod
    amounts = dict[str, str]()
    if cpus is not None and not (pod is not None and pod.cpu):
        amounts["cpu"] = f"{ceil(cpus * 1000)}m"
    if memory is not None and not (pod is not None and pod.memory):
        amounts["memory"] = str(memory)
    return amounts


def _problems(environment: Environment) -> Iterator[tuple[str, str]]:
    for name, it in environment.items():
        if it.inherit or it.file:
            yield name, f"{'inherit' if it.inherit else 'file'} {_REFUSED}"


def _interpreter(python: str) -> str:
    """The file in the image: what is not called python… is the folder of a virtual environment."""
    path = PurePosixPath(python)
    return str(path if path.name.startswith("python") else path / "bin" / "python")
