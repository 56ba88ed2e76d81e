"""Environment variables that gRPC's core reads when it is loaded: to be set before gRPC is imported.

Purpose: one place for these settings, each with its reason. Variables that the user has set are kept, also empty ones.
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
"""gRPC's core logs to stderr in its own format; without this, for each peer that disconnects."""

NO_EVENT_ENGINE: Final = ("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
"""The thread that polls for completions also reads the sockets. With the event engine, gRPC's own threads read them and
pass each message on once more: stream round trips take half as long again (docs/performance.md)."""


def set_grpc_environment() -> None:
    """For processes of the mesh. Effective only before gRPC is imported; child processes inherit it."""
    for name, value in (QUIET, NO_EVENT_ENGINE):
        os.environ.setdefault(name, value)


def set_application_environment() -> None:
    """For applications: only what speeds up their calls. No effect if gRPC is already imported."""
    if "grpc" not in sys.modules:
        os.environ.setdefault(*NO_EVENT_ENGINE)


def importable_here(variables: Mapping[str, str], cwd: Path | None = None) -> dict[str, str]:
    """The environment of a process that imports from its working directory, which PYTHONSAFEPATH would exclude.

    `cwd` None: that of this process.
    """
    if not variables.get("PYTHONSAFEPATH"):
        return dict(variables)
    path = variables.get("PYTHONPATH")
    return {**variables, "PYTHONPATH": os.pathsep.join([str(cwd or Path.cwd()), *([path] if path else [])])}
