"""Parameters that several commands take, and how their values are read."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from slotmesh.units import join_host_port, parse_duration, parse_host_port

CONTROLLER = "127.0.0.1:7070"
"""The default address of a controller."""
ROUTER = "127.0.0.1:7071"
"""The default address of a router."""


def read_address(text: str) -> str:
    """`HOST:PORT` as typed."""
    try:
        return join_host_port(*parse_host_port(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _addresses(text: str) -> str:
    """Several, with commas between them."""
    return ",".join(dict.fromkeys(read_address(each.strip()) for each in text.split(",")))


def read_duration(value: str | timedelta) -> timedelta:
    """A positive duration as typed; a default is one already."""
    duration = read_call_duration(value)
    if duration <= timedelta(0):
        raise typer.BadParameter(f"must be more than 0, is {value}")
    return duration


def read_call_duration(value: str | timedelta) -> timedelta:
    """A duration of a call as typed: 0, too, which is no more than nothing, as in the SDK and on the wire."""
    try:
        return parse_duration(value) if isinstance(value, str) else value
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


ControllerAddress = Annotated[
    str,
    typer.Option(
        "--controller",
        "--address",
        envvar=["SLOTMESH_CONTROLLER", "SLOTMESH_ADDRESS"],
        parser=_addresses,
        metavar="HOST:PORT[,…]",
        help="Where the controller is. Of several, with commas between them, the one that leads is asked.",
    ),
]
RouterAddress = Annotated[
    str,
    typer.Option(
        "--address", envvar="SLOTMESH_ADDRESS", parser=read_address, metavar="HOST:PORT", help="Where a router is."
    ),
]
ServerAddress = Annotated[
    str,
    typer.Option(
        "--address", envvar="SLOTMESH_ADDRESS", parser=read_address, metavar="HOST:PORT", help="Where the server is."
    ),
]
