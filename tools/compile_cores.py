"""Compiles the cores with mypyc: `python tools/compile_cores.py FOLDER` writes extension modules there.

Purpose: what `tools/build_hook.py` puts into a wheel where SLOTMESH_COMPILED=1. Needs mypy and setuptools, in the
versions of constraints.txt, and a C compiler.
Invariants: each extension module lies where the source of its module does, below FOLDER, and is imported instead of
that where both are installed. All are in one shared library, so that calls from one to the other stay in C.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CORES: Final = ("router_service/core", "replica_service/core")
SHARED: Final = ("slotmesh/histogram.py", "slotmesh/wire/ranges.py")
"""What the cores use in each call."""
INTERPRETED: Final = (
    # Options extend those of `slotmesh`, which are not compiled.
    "router_service/core/calls.py",
    "replica_service/core/call_options.py",
    # Balancers of others extend these.
    "router_service/core/routing/balancers/",
)
LIBRARY: Final = "slotmesh_cores"


def sources() -> Iterator[str]:
    """The modules that are compiled, from the root."""
    for core in CORES:
        for path in sorted((ROOT / core).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(INTERPRETED):
                yield name
    yield from SHARED


def compile_into(folder: Path) -> None:
    """Writes the extension modules."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    with tempfile.TemporaryDirectory(prefix="slotmesh-cores-") as scratch:
        extensions = mypycify(
            ["--config-file=", "--follow-imports=silent", "--ignore-missing-imports", *sources()],
            target_dir=scratch,
            group_name=LIBRARY,
            opt_level="3",
            debug_level="0",
        )
        command = build_ext(Distribution({"name": LIBRARY, "ext_modules": extensions}))
        command.build_lib, command.build_temp = os.fspath(folder), scratch
        command.ensure_finalized()
        command.run()


if __name__ == "__main__":
    os.chdir(ROOT)  # mypy names modules by where they are from here
    compile_into(Path(sys.argv[1]).resolve())
