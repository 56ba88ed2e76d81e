"""The command line: one file per command."""

from __future__ import annotations

import os


def main() -> None:
    """Entry point of `slotmesh` and of `python -m slotmesh.cli`."""
    # gRPC's core writes to stderr by itself, past all formats, and reads this when it is loaded.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from slotmesh.cli.app import app  # noqa: PLC0415 - it loads gRPC

    app()
