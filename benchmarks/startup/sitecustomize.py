"""Python runs this before anything else where its folder is on PYTHONPATH: it looks into the processes that are wanted.

`BENCHMARK_PROFILE_MODULE` is the module of `python -m` to sample, `BENCHMARK_PROFILE_OUTPUT` the file for the report.
`BENCHMARK_SAMPLING_SWITCH`: routers switch what they sample when they are told.
`BENCHMARK_HOPS_FOLDER` is where routers and replicas leave the stamps of their hops; `BENCHMARK_HOPS_COUNT`: they count
calls of functions, too.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from pathlib import Path


def _sample(module: str, output: Path) -> None:
    from benchmarks.sampler import Sampler

    sampler = Sampler(threading.get_ident())

    def tell() -> None:
        sampler.stop()
        with output.open("a", encoding="utf-8") as report:
            report.write(sampler.report(module))

    sampler.start()
    atexit.register(tell)


def _stamp(role: str, folder: Path) -> None:
    from slotmesh.runtime.environment import set_grpc_environment

    set_grpc_environment()
    from benchmarks.hop_stamps import stamp_until_exit

    stamp_until_exit(role, folder, counts="BENCHMARK_HOPS_COUNT" in os.environ)


if (_module := os.environ.get("BENCHMARK_PROFILE_MODULE")) and sys.orig_argv[1:3] == ["-m", _module]:
    _sample(_module, Path(os.environ["BENCHMARK_PROFILE_OUTPUT"]))

if "BENCHMARK_SAMPLING_SWITCH" in os.environ and sys.orig_argv[1:3] == ["-m", "router_service"]:
    from benchmarks.sampling_switch import install

    install()

_ROLES = {"router_service": "router", "replica_service": "replica"}
if (_folder := os.environ.get("BENCHMARK_HOPS_FOLDER")) and (
    _role := _ROLES.get("".join(sys.orig_argv[2:3])) if sys.orig_argv[1:2] == ["-m"] else None
):
    _stamp(_role, Path(_folder))
