"""The command line: `commands/`, a file each; `view/`, what they print; `local/`, a mesh on this machine."""

from __future__ import annotations

from slotmesh.runtime.environment import set_grpc_environment


def main() -> None:
    """Entry point of `slotmesh` and of `python -m slotmesh.cli`."""
    set_grpc_environment()
    from slotmesh.cli.app import app  # noqa: PLC0415 - it loads gRPC

    app()
