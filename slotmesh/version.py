"""The version, in one place."""

from __future__ import annotations

from typing import Final

from slotmesh.wire import ranges

_RELEASE: Final = "0.1.0"

IS_COMPILED: Final = not ranges.__file__.endswith(".py")
"""Whether the cores were compiled. They are so together with `slotmesh.wire.ranges`, in one library."""

VERSION: Final = f"{_RELEASE}+compiled" if IS_COMPILED else _RELEASE
"""Of the package, and of every process that says what it is."""
