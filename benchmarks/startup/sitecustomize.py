"""Python runs this before anything else where its folder is on PYTHONPATH: it samples the process that is wanted.

`BENCHMARK_PROFILE_MODULE` is the module of `python -m` to sample, `BENCHMARK_PROFILE_OUTPUT` the file for the report.
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


if (_module := os.environ.get("BENCHMARK_PROFILE_MODULE")) and sys.orig_argv[1:3] == ["-m", _module]:
    _sample(_module, Path(os.environ["BENCHMARK_PROFILE_OUTPUT"]))
