"""All names that users write into their programs and files, as JSON on stdout.

python -m tests.compat.names

It runs in both versions: what it reads is there in each.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import typer

import slotmesh
import slotmesh.testing
from controller_service.config import ControllerSettings
from ingress_service.config import IngressSettings
from replica_service.config import ReplicaSettings
from router_service.config import RouterSettings
from slotmesh.cli.app import app
from slotmesh.errors import ERROR_OF
from slotmesh.spec.model import SETTINGS
from slotmesh.telemetry.names import metrics, prometheus_name

Parameters: TypeAlias = list[tuple[str, str, bool]]
"""Of each its name, its kind, and whether it may be left out."""


def public_names() -> dict[str, Any]:
    """By path, as `slotmesh.Mesh.endpoint`: the parameters of what can be called, None of anything else."""
    found: dict[str, Any] = {}
    for module in (slotmesh, slotmesh.testing):
        for name in module.__all__:
            value = getattr(module, name)
            found |= {f"{module.__name__}.{name}{path}": it for path, it in _described(value)}
    return found


def _described(value: Any) -> Iterator[tuple[str, Parameters | None]]:
    if not inspect.isclass(value):
        yield "", _parameters(value)
        return
    yield "", None
    own = [it for it in value.__mro__ if it.__module__.startswith("slotmesh")]
    for name in {name for it in own for name in (*vars(it), *inspect.get_annotations(it))}:
        if not name.startswith("_"):
            yield f".{name}", _parameters(getattr(value, name, None))


def _parameters(value: Any) -> Parameters | None:
    if not inspect.isroutine(value):
        return None
    return [
        (it.name, it.kind.name, it.default is not it.empty or it.kind in {it.VAR_POSITIONAL, it.VAR_KEYWORD})
        for it in inspect.signature(value).parameters.values()
    ]


def _settings(settings: Mapping[str, Any], at: str = "") -> Iterator[str]:
    for name, setting in settings.items():
        yield f"{at}{name}"
        yield from _settings(setting.settings, f"{at}{name}.")


def _flags(command: Any, at: str) -> Iterator[str]:
    yield at
    for parameter in command.params:
        yield from (f"{at} {it}" for it in (*parameter.opts, *parameter.secondary_opts) if it.startswith("-"))
    for name, each in getattr(command, "commands", {}).items():
        yield from _flags(each, f"{at} {name}")


def _services() -> Iterable[str]:
    for settings in (ControllerSettings, RouterSettings, ReplicaSettings, IngressSettings):
        yield from (f"{settings.__name__} {name}" for name in settings.model_fields)


def main() -> None:
    names = {
        "Python": public_names(),
        "reasons": [reason.value for reason in ERROR_OF],
        "metrics": {prometheus_name(it): it.attributes for it in metrics()},
        "settings of backends": [*_settings(SETTINGS)],
        "settings of processes": [*_services()],
        "commands": [*_flags(typer.main.get_command(app), "slotmesh")],
    }
    json.dump(names, sys.stdout)


if __name__ == "__main__":
    main()
