"""The build of a wheel, called by hatchling: pure Python, or with compiled cores where SLOTMESH_COMPILED=1.

Purpose: `SLOTMESH_COMPILED=1 pip install .` and `pip install .` install the same modules. With the variable each module
of the cores is there as an extension module, too, which Python imports instead of the source beside it.
Invariants: without the variable nothing more is needed than hatchling. With it, mypy and setuptools are requirements of
the build, in the versions of constraints.txt; nothing is added to what the installed package requires.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE: Final = "SLOTMESH_COMPILED"
COMPILERS: Final = ("mypy", "librt", "setuptools")


class CompiledCores(BuildHookInterface):
    """Adds the compiled cores to the wheel, where they are wanted."""

    def dependencies(self) -> list[str]:
        """What the build has beside hatchling. Read from the constraints file, which pip does not apply to builds."""
        if not is_wanted():
            return []
        lines = Path(self.root, "constraints.txt").read_text("utf-8").splitlines()
        return [line for line in lines if line.partition("==")[0] in COMPILERS]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles, before the wheel is written."""
        if not is_wanted():
            return
        if version == "editable":
            raise RuntimeError(f"an editable install runs the sources: install without -e, or unset {VARIABLE}")
        self._folder = tempfile.TemporaryDirectory(prefix="slotmesh-compiled-")
        folder = Path(self._folder.name)
        sys.stderr.write("compiling the cores: this takes a few minutes\n")
        done = subprocess.run([sys.executable, Path(self.root, "tools", "compile_cores.py"), folder], check=False)
        if done.returncode != 0:
            raise RuntimeError(
                f"the cores could not be compiled, see above: that needs a C compiler and the headers of Python "
                f"(Debian, Ubuntu: gcc, python3-dev). Unset {VARIABLE} to install them as pure Python"
            )
        build_data["pure_python"], build_data["infer_tag"] = False, True
        for path in folder.rglob("*"):
            if path.is_file():
                build_data["force_include"][os.fspath(path)] = path.relative_to(folder).as_posix()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - hatchling's
        """The wheel is written."""
        if is_wanted():
            self._folder.cleanup()


def is_wanted() -> bool:
    """Whether the variable asks for compiled cores."""
    value = os.environ.get(VARIABLE, "")
    if value not in {"", "0", "1"}:
        raise ValueError(f"{VARIABLE} must be 1 for compiled cores, or 0 or unset for pure Python, got {value!r}")
    return value == "1"
