"""What gRPC's core reads from the environment when it is loaded: to be set before gRPC is imported.

Purpose: one place for these settings, each with its reason. What the user has set stays, also what is set to nothing.
Owner: the entry points (`__main__`, the command line, the benchmarks), and the package itself for applications that
import slotmesh before grpc.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

QUIET: Final = ("GRPC_VERBOSITY", "ERROR")
"""gRPC's core writes to stderr by itself, past all formats; a peer that goes away is not worth a line of it."""

NO_EVENT_ENGINE: Final = ("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
"""The thread that waits for completions also reads the sockets. With the event engine gRPC's own threads read them, and
hand each message over once more: round trips of streams take half as long again (docs/performance.md)."""


def set_grpc_environment() -> None:
    """For processes of the mesh. Has an effect only before gRPC is imported; processes started from here inherit it."""
    for name, value in (QUIET, NO_EVENT_ENGINE):
        os.environ.setdefault(name, value)


def set_application_environment() -> None:
    """For applications: what makes their calls quicker, and nothing else; nothing where gRPC is there already."""
    if "grpc" not in sys.modules:
        os.environ.setdefault(*NO_EVENT_ENGINE)


def importable_here(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that imports from its working directory, where PYTHONSAFEPATH would keep it out."""
    if not variables.get("PYTHONSAFEPATH"):
        return dict(variables)
    path = variables.get("PYTHONPATH")
    return {**variables, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *([path] if path else [])])}
