"""The command line with all commands."""

from __future__ import annotations

from slotmesh.cli.command_table import COMMANDS, command_line

app = command_line(COMMANDS)
