"""Virtual environments without any download: those of tests see what is installed here, or nothing."""

from __future__ import annotations

import sys
import sysconfig
import venv
from collections.abc import Mapping
from pathlib import Path

import slotmesh

_CHECKOUT = Path(slotmesh.__file__).resolve().parents[1]


def make_venv(path: Path, *, has_slotmesh: bool, modules: Mapping[str, str] = {}) -> Path:
    """A virtual environment with these modules, by name: their sources. They go before what is installed here."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(path)
    packages = path / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for name, source in modules.items():
        (packages / f"{name}.py").write_text(source)
    if has_slotmesh:
        (packages / "here.pth").write_text(f"{_CHECKOUT}\n{sysconfig.get_path('purelib')}\n")
    return path
