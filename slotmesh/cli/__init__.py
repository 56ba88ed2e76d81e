"""The command line: `commands/`, a file each; `view/`, what they print; `local/`, a mesh on this machine."""

from __future__ import annotations

import sys

from slotmesh.runtime.environment import set_grpc_environment


def main() -> None:
    """Entry point of `slotmesh` and of `python -m slotmesh.cli`."""
    set_grpc_environment()
    from slotmesh.cli.command_table import COMMANDS, command_line  # noqa: PLC0415 - it loads gRPC

    if sys.argv[1:] and (name := sys.argv[1]) in COMMANDS:
        command_line([name])()
    else:
        from slotmesh.cli.app import app  # noqa: PLC0415 - it loads all commands

        app()
