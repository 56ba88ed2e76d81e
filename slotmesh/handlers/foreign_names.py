"""Keyword arguments that decorators of other serving frameworks have, and what says the same here. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from slotmesh.suggestions import did_you_mean

_OF_A_BACKEND: Final = "say `{}` of the backend in mesh.yaml"
_REPLICAS: Final = f"{_OF_A_BACKEND.format('num_replicas: {value}')}, or `slotmesh run --replicas {{value}}`"
_AUTOSCALE: Final = f"{_OF_A_BACKEND.format('autoscale: {{min: …, max: …}}')} (docs/autoscaling.md)"
_PLACEMENT: Final = (
    "a replica is a process with the environment of whoever starts it: nothing is placed or reserved for it"
)
_METHOD_BATCH: Final = "put @slotmesh.batch on the method"
_DEPLOYMENT: Final = {
    "name": "a backend has its name from mesh.yaml; with `slotmesh run MODULE:NAME` it is NAME",
    "num_replicas": _REPLICAS,
    "replicas": _REPLICAS,
    "min_replicas": _AUTOSCALE,
    "max_replicas": _AUTOSCALE,
    "initial_replicas": _AUTOSCALE,
    "autoscaling_config": _AUTOSCALE,
    "autoscale": _AUTOSCALE,
    "workers": _REPLICAS,
    "version": _OF_A_BACKEND.format("version: {value}"),
    "user_config": f"{_OF_A_BACKEND.format('user_config')}, or `slotmesh run --config KEY=VALUE`",
    "init_args": f"arguments of the constructor have names: {_OF_A_BACKEND.format('user_config')}",
    "init_kwargs": _OF_A_BACKEND.format("user_config"),
    "max_ongoing_requests": "it is called max_ongoing here",
    "max_concurrent_queries": "it is called max_ongoing here",
    "concurrency": "it is called max_ongoing here",
    "max_queued_requests": _OF_A_BACKEND.format("max_queued_calls: {value}"),
    "max_queued_calls": _OF_A_BACKEND.format("max_queued_calls: {value}"),
    "max_queue_time": _OF_A_BACKEND.format("max_queue_time"),
    "graceful_shutdown_timeout_s": _OF_A_BACKEND.format("graceful_timeout: {value}s"),
    "graceful_shutdown_wait_loop_s": _OF_A_BACKEND.format("graceful_timeout"),
    "graceful_timeout": _OF_A_BACKEND.format("graceful_timeout"),
    "max_batch_size": _METHOD_BATCH,
    "batch_wait_timeout_s": _METHOD_BATCH,
    "batchable": _METHOD_BATCH,
    "timeout": "callers say it: `endpoint.options(timeout=…)`",
    "traffic": "an endpoint has its traffic from mesh.yaml, or from `slotmesh traffic`",
    "route_prefix": "there are no paths: an endpoint is called by its name, which mesh.yaml says",
    "ray_actor_options": _PLACEMENT,
    "placement_group_bundles": _PLACEMENT,
    "resources": _PLACEMENT,
    "num_cpus": _PLACEMENT,
    "num_gpus": _PLACEMENT,
    "runtime_env": _PLACEMENT,
    "logging_config": "each process has `--log-level` and `--log-format` (docs/configuration.md)",
}
_BATCH: Final = {
    "batch_size": "it is called max_batch_size here",
    "preferred_batch_size": "it is called max_batch_size here, and batches fill by themselves under load",
    "max_latency_ms": "it is called batch_wait_timeout_s here, in seconds",
    "max_wait_ms": "it is called batch_wait_timeout_s here, in seconds",
    "max_queue_delay_microseconds": "it is called batch_wait_timeout_s here, in seconds",
    "timeout": "it is called batch_wait_timeout_s here, in seconds",
    "batch_timeout": "it is called batch_wait_timeout_s here, in seconds",
    "batch_dim": "a batch is a list for each parameter, or an array with a row a call",
    "max_ongoing": "it belongs to @slotmesh.deployment on the class",
}
_PLACES: Final[Mapping[str, Mapping[str, str]]] = {"deployment": _DEPLOYMENT, "batch": _BATCH}


def refusal(decorator: str, given: Mapping[str, object], known: Collection[str]) -> TypeError:
    """The error of `deployment` or `batch` for arguments that it does not have: what says the same, or is near.

    `known` are the arguments that it has.
    """
    return TypeError("; ".join(_told(decorator, name, value, known) for name, value in given.items()))


def _told(decorator: str, name: str, value: object, known: Collection[str]) -> str:
    place = _PLACES[decorator].get(name)
    if place is not None:
        shown = str(value) if isinstance(value, int | float) else "…"
        return f"@{decorator} has no {name}: {place.format(value=shown)}"
    closest = did_you_mean(name, known) or f"; it has {', '.join(known)}"
    return f"@{decorator} has no {name}{closest}"
