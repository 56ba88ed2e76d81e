"""The devices that a controller's settings give to replicas: named, found by NVML, or resources of pods.

Invariants: a pool of `auto` is found once in the life of the process, so that its devices do not change under replicas.
Owner: the composition root and `process_life`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from itertools import takewhile
from typing import Any, Final

from controller_service.config import ControllerSettings
from controller_service.core.devices import DeviceRules, Pools
from slotmesh.runtime.exits import CannotStart
from slotmesh.spec.devices import AUTO, read_pairs, read_pools

DEFAULT_RESOURCES: Final = "cuda=nvidia.com/gpu"
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_GPU: Final = re.compile(r"\d{1,6}|(GPU|MIG)-[A-Za-z0-9/-]{1,90}")
"""A number or a UUID. Slurm has `NoDevFiles` for none, and -1 means none, too."""


def device_rules(settings: ControllerSettings) -> DeviceRules:
    """What backends of this controller may want. Raises CannotStart."""
    if settings.launcher == "process":
        return DeviceRules(pools=pools_of(settings))
    if settings.launcher == "kubernetes":
        return DeviceRules(resources=resources_of(settings))
    return DeviceRules()


def pools_of(settings: ControllerSettings) -> Pools:
    """The pools of `--devices`. Raises CannotStart."""
    return {
        pool: _nvidia_devices(f"--devices {pool}={AUTO}") if names == (AUTO,) else names
        for pool, names in read_pools(settings.devices).items()
    }


def resources_of(settings: ControllerSettings) -> Mapping[str, str]:
    """The resource that pods request of each pool."""
    return read_pairs(settings.device_resources or DEFAULT_RESOURCES)


@cache
def _nvidia_devices(flag: str) -> tuple[str, ...]:
    """The GPUs of this process by their UUIDs, whose order does not depend on a setting of CUDA."""
    visible = os.environ.get(VISIBLE)
    if visible is not None:
        listed = (it.strip() for it in visible.split(",") if it.strip())
        names = tuple(dict.fromkeys(takewhile(_GPU.fullmatch, listed)))  # as CUDA, which ends the list there
        if not names:
            raise CannotStart(f"{flag}: {VISIBLE} is set, and names no GPU: unset it, or name the devices")
        return names
    try:
        import pynvml  # noqa: PLC0415 - an extra
    except ImportError:
        raise CannotStart(
            f"{flag} needs the extra `nvidia` (pip install 'slotmesh[nvidia]'); or name the devices: --devices cuda=0-3"
        ) from None
    try:
        pynvml.nvmlInit()
        found = tuple(name for at in range(pynvml.nvmlDeviceGetCount()) for name in _units(pynvml, at))
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise CannotStart(f"{flag}: NVML finds no GPU on this machine ({error}): name the devices") from None
    if not found:
        raise CannotStart(f"{flag}: NVML finds no GPU on this machine")
    return found


def _units(nvml: Any, at: int) -> tuple[str, ...]:
    """The UUID of a GPU, or those of its MIG devices if it is divided."""
    gpu = nvml.nvmlDeviceGetHandleByIndex(at)
    try:
        is_divided = nvml.nvmlDeviceGetMigMode(gpu)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    except nvml.NVMLError:
        is_divided = False  # a GPU that cannot be divided
    if not is_divided:
        return (str(nvml.nvmlDeviceGetUUID(gpu)),)
    units: list[str] = []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            units.append(str(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number))))
        except nvml.NVMLError:
            continue  # no device has this number
    return tuple(units)
