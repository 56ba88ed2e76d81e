"""Ports that were asked for by number: looked at before anything is started."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from typing import Final

HOST: Final = "127.0.0.1"
"""A local mesh is there for this machine only."""


def port_mistakes(ports: Mapping[str, int]) -> list[str]:
    """Errors of the ports, by the option of each. 0 is always right.

    A port that is free now can be taken a moment later: then the server that needs it reports it.
    """
    mistakes = []
    for option, port in ports.items():
        if problem := _problem(port):
            mistakes.append(f"{option}: {problem}; choose another, or 0 for any free one")
    return mistakes


def _problem(port: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a connection that was closed a minute ago does not hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return f"port {port} is in use"
            return f"cannot listen on port {port}: {os.strerror(error.errno or 0)}"
    return ""
