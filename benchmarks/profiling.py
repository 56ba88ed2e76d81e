"""Where the time of one process goes while it is under load: `--profile router`, `replica` or `client`."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.sampler import Sampler

CLIENT: Final = "client"
COMPONENTS: Final = (CLIENT, "router", "replica", "controller")
_ROOT = Path(__file__).resolve().parent.parent
_STARTUP = Path(__file__).resolve().parent / "startup"


@dataclass(slots=True)
class Profile:
    """One profile, or none."""

    component: str | None = None
    output: Path | None = None
    """Where a process of the mesh leaves its report when it ends."""
    _report: str = ""

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Samples this process meanwhile, if it is the one."""
        if self.component != CLIENT:
            yield
            return
        sampler = Sampler(threading.get_ident())
        sampler.start()
        try:
            yield
        finally:
            sampler.stop()
            self._report = sampler.report(CLIENT)

    def collect(self) -> None:
        """Reads what a process of the mesh left. Call it when the process has ended."""
        if self.output is not None and self.output.exists():
            self._report = self.output.read_text(encoding="utf-8")

    def report(self) -> str:
        """What was found; empty where nothing was asked."""
        return self._report


@contextmanager
def profile(component: str | None) -> Iterator[Profile]:
    """Prepares a profile of a component; the mesh is started and ended inside."""
    if component is None or component == CLIENT:
        yield Profile(component)
        return
    with tempfile.TemporaryDirectory(prefix="slotmesh-profile-") as folder:
        output = Path(folder) / "report.txt"
        found = Profile(component, output)
        inherited = {
            "BENCHMARK_PROFILE_MODULE": f"{component}_service",
            "BENCHMARK_PROFILE_OUTPUT": str(output),
        }
        with environment_of_children(inherited):
            yield found
        found.collect()


@contextmanager
def environment_of_children(inherited: Mapping[str, str]) -> Iterator[None]:
    """What is in the environment of processes started meanwhile; `startup/sitecustomize.py` reads it there."""
    paths = [str(_STARTUP), str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    inherited = {"PYTHONPATH": os.pathsep.join(paths), **inherited}
    before = {name: os.environ.get(name) for name in inherited}
    os.environ.update(inherited)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
