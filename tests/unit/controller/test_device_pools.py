"""The pools of a controller's settings: named, found by NVML, refused; and the resources of pods."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from controller_service.config import ControllerSettings
from controller_service.core.devices import DeviceRules
from controller_service.shell.launchers import device_pools
from controller_service.shell.launchers.device_pools import VISIBLE, device_rules, pools_of
from slotmesh.config import SettingsError
from slotmesh.runtime.exits import CannotStart
from slotmesh.spec.model import Backend


def settings(*flags: str) -> ControllerSettings:
    return ControllerSettings.parse([*flags], {}, prog="controller")


class NVMLError(Exception):
    pass


def nvml(gpus: dict[str, tuple[str, ...] | None], *, is_there: bool = True) -> Any:
    """A module whose GPUs are divided into MIG devices, or cannot be (None)."""

    def init() -> None:
        if not is_there:
            raise NVMLError("no library")

    def mode(gpu: str) -> list[int]:
        if gpus[gpu] is None:
            raise NVMLError("not supported")
        return [int(bool(gpus[gpu])), 0]

    def unit(gpu: str, number: int) -> str:
        units = gpus[gpu] or ()
        if number >= len(units):
            raise NVMLError("not found")
        return units[number]

    return SimpleNamespace(
        NVMLError=NVMLError,
        NVML_DEVICE_MIG_ENABLE=1,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(gpus),
        nvmlDeviceGetHandleByIndex=lambda at: [*gpus][at],
        nvmlDeviceGetUUID=lambda handle: handle,
        nvmlDeviceGetMigMode=mode,
        nvmlDeviceGetMaxMigDeviceCount=lambda _: 7,
        nvmlDeviceGetMigDeviceHandleByIndex=unit,
    )


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(VISIBLE, raising=False)
    device_pools._nvidia_devices.cache_clear()
    yield
    device_pools._nvidia_devices.cache_clear()


def test_pools_are_those_of_the_flag() -> None:
    assert pools_of(settings("--devices=cuda=0-1,fpga=a")) == {"cuda": ("0", "1"), "fpga": ("a",)}
    assert device_rules(settings()) == DeviceRules(pools={})
    assert device_rules(settings("--launcher=external")) == DeviceRules()
    assert device_rules(settings("--launcher=kubernetes")) == DeviceRules(resources={"cuda": "nvidia.com/gpu"})


def test_gpus_are_found_by_uuid_and_divided_ones_by_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml({"GPU-1": None, "GPU-2": ("MIG-a", "MIG-b"), "GPU-3": ()}))
    found = pools_of(settings("--devices=cuda=auto,fpga=a"))
    assert found == {"cuda": ("GPU-1", "MIG-a", "MIG-b", "GPU-3"), "fpga": ("a",)}
    monkeypatch.setitem(sys.modules, "pynvml", nvml({}))
    assert pools_of(settings("--devices=cuda=auto")) == {"cuda": found["cuda"]}, "once in the life of the process"


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (None, r"--devices cuda=auto needs the extra `nvidia` \(pip install 'slotmesh\[nvidia\]'\)"),
        (nvml({}, is_there=False), r"NVML finds no GPU on this machine \(no library\): name the devices"),
        (nvml({}), "NVML finds no GPU on this machine"),
    ],
)
def test_without_gpus_the_error_names_the_way_out(module: Any, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with pytest.raises(CannotStart, match=problem):
        pools_of(settings("--devices=cuda=auto"))


def test_devices_that_the_controller_may_see_are_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "2, GPU-1,2")
    assert pools_of(settings("--devices=cuda=auto")) == {"cuda": ("2", "GPU-1")}


def test_what_names_no_gpu_ends_the_list_as_it_does_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "0,MIG-1/2,-1,3")
    assert pools_of(settings("--devices=cuda=auto")) == {"cuda": ("0", "MIG-1/2")}
    for none in ("", "-1", "NoDevFiles", "none"):
        device_pools._nvidia_devices.cache_clear()
        monkeypatch.setenv(VISIBLE, none)
        with pytest.raises(CannotStart, match="CUDA_VISIBLE_DEVICES is set, and names no GPU"):
            pools_of(settings("--devices=cuda=auto"))


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--devices=0-3"], "--devices: '0-3': write POOL=DEVICE"),
        (["--devices=cuda=0", "--launcher=external"], "--devices is for --launcher process"),
        (["--device-variables=cuda=A"], "--device-variables: --devices has no pool cuda"),
        (
            ["--devices=a-b=0,a.b=1"],
            "--device-variables: pools a-b and a.b both have the variable A_B_VISIBLE_DEVICES: name another for one",
        ),
        (["--devices=a=0,b=1", "--device-variables=a=X,b=X"], "pools a and b both have the variable X"),
        (["--devices=cuda=0", "--device-variables=cuda"], "--device-variables: 'cuda': write POOL=NAME"),
        (["--device-resources=cuda=x.com/gpu"], "--device-resources is for --launcher kubernetes"),
    ],
)
def test_flags_that_contradict_are_refused(flags: list[str], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        settings(*flags)


def test_pods_hold_whole_devices_of_known_resources() -> None:
    rules = device_rules(settings("--launcher=kubernetes", "--device-resources=cuda=amd.com/gpu"))
    backends = {"b": Backend(name="b", num_replicas=9_000, devices={"cuda": 0.5, "tpu": 1})}
    assert sorted(map(str, rules.problems({}, backends))) == [
        "backends.b.devices.cuda: pods hold whole devices only, is 0.5",
        "backends.b.devices.tpu: no resource of pods has this name: --device-resources has cuda",
    ]
    assert not [*rules.problems({}, {"b": Backend(name="b", num_replicas=9_000, devices={"cuda": 8})})]


@pytest.mark.parametrize(
    ("old", "new", "size", "fits"),
    [
        ({"devices": {"cuda": 2}, "num_replicas": 2}, {"devices": {"cuda": 1}}, 4, False),
        ({"devices": {"cuda": 2}, "num_replicas": 2}, {"devices": {"cuda": 1}}, 5, True),
        ({"devices": {"cuda": 2}, "num_replicas": 2}, {"devices": {"cuda": 1}, "max_unavailable": 1}, 4, True),
        ({"devices": {"cuda": 2}, "num_replicas": 2}, {"devices": {"cuda": 1}, "num_replicas": 1}, 4, True),
        ({"devices": {"cuda": 1}, "num_replicas": 4}, {"devices": {"cuda": 1}, "num_replicas": 2}, 4, True),
        ({"devices": {"cuda": 1}, "num_replicas": 1}, {"devices": {"cuda": 0.5}}, 1, False),
    ],
)
def test_a_rollout_to_fewer_devices_needs_a_spare_one_unless_a_replica_may_be_missing(
    old: dict[str, Any], new: dict[str, Any], size: int, fits: bool
) -> None:
    before = Backend(name="v1", handler="a:B", **old)
    after = replace(before, **{"max_unavailable": 0, **new})
    rules = DeviceRules(pools={"cuda": tuple(map(str, range(size)))})
    other = {"v2": Backend(name="v2", handler="a:B", num_replicas=1, devices={"cuda": 1})}
    beside = DeviceRules(pools={"cuda": tuple(map(str, range(size + 1)))})
    assert fits is not any(beside.problems({"v1": before, **other}, {"v1": after, **other}))
    problems = [str(it) for it in rules.problems({"v1": before}, {"v1": after})]
    assert fits is not any("max_unavailable" in it and "is spare for a new one" in it for it in problems)
    assert fits is not bool(problems)
