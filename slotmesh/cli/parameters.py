"""Parameters of several commands: addresses, durations, names (`backend/NAME`, `replica/ID`), arguments of calls.

Invariants: a name that one command prints is accepted by each command that takes such a name; `backend/digits` and
`digits` are equal for a command that acts on backends only. JSON arguments are checked before any request is sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from slotmesh.cli.console import WRONG_INPUT, CommandFailed, some_of
from slotmesh.discovery.targets import parse_target
from slotmesh.names import did_you_mean
from slotmesh.units import join_host_port, parse_duration, parse_host_port

CONTROLLER = "127.0.0.1:7070"
"""The default address of a controller."""
ROUTER_ADDRESS = "127.0.0.1:7071"
"""The default address of a router."""


def read_address(text: str) -> str:
    """`HOST:PORT` as typed."""
    try:
        return join_host_port(*parse_host_port(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def read_target(text: str) -> str:
    """One server, as typed: an address, or a name that is resolved."""
    try:
        return str(parse_target(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _targets(text: str) -> str:
    """Several, with commas between them."""
    return ",".join(dict.fromkeys(read_target(each.strip()) for each in text.split(",")))


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


def duration(words: str, *, zero: bool = False, **shown: Any) -> Any:
    """An option that takes a duration: more than 0, unless `zero` is one, too."""
    return typer.Option(parser=read_call_duration if zero else read_duration, metavar="DURATION", help=words, **shown)


ControllerAddress = Annotated[
    str,
    typer.Option(
        "--controller",
        "--address",
        envvar=["SLOTMESH_CONTROLLER", "SLOTMESH_ADDRESS"],
        parser=_targets,
        metavar="HOST:PORT[,…]",
        help="Where the controller is: HOST:PORT or dns:///NAME:PORT. Of several, with commas between them, or of the "
        "addresses of the name, the one that leads is asked.",
    ),
]


def _server(words: str) -> Any:
    return typer.Option("--address", envvar="SLOTMESH_ADDRESS", parser=read_target, metavar="HOST:PORT", help=words)


RouterAddress = Annotated[str, _server("Where a router is: HOST:PORT or dns:///NAME:PORT.")]
ServerAddress = Annotated[str, _server("Where the server is: HOST:PORT or dns:///NAME:PORT.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what it would change, and change nothing.")]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask for confirmation, which is the default on a terminal.")
]
OneRouter = Annotated[
    str,
    typer.Option(
        "--router",
        parser=lambda text: text and read_address(text),
        metavar="HOST:PORT",
        help="Only this router. Default: all that the controller lists.",
    ),
]

BACKEND: Final = "backend"
ENDPOINT: Final = "endpoint"
ROUTE: Final = "route"
REPLICA: Final = "replica"
ROUTER: Final = "router"
REVISION: Final = "revision"
KINDS: Final = (BACKEND, ENDPOINT, ROUTE, REPLICA, ROUTER, REVISION)
_MOST_NAMED: Final = 20


def name_of(*kinds: str) -> Callable[[str], str]:
    """Reads the name of one of these kinds, with its kind before it or without. Refuses other kinds."""

    def read(text: str) -> str:
        kind, slash, name = text.partition("/")
        if not slash or kind not in KINDS:
            return text
        if kind not in kinds:
            wanted = " or ".join(f"{each}/NAME" for each in kinds)
            raise typer.BadParameter(f"takes {wanted}, is {text}")
        return name

    return read


def _without_kind(subject: str) -> str:
    return subject.partition("/")[2]


def unknown(subject: str, known: Collection[str]) -> CommandFailed:
    """There is no such subject; with the one that was probably meant, else with those that there are.

    One of another kind that has the same name was probably meant.
    """
    same = [it for it in known if _without_kind(it) == _without_kind(subject)]
    closest = f"; did you mean {same[0]}?" if same else did_you_mean(subject, known, _without_kind, cutoff=0.5)
    if not closest:
        closest = f"; there is {some_of(sorted(known), _MOST_NAMED)}" if known else "; there is none"
    return CommandFailed(f"there is no {subject}{closest}")


def configured_subject(text: str) -> str:
    """Reads a subject of the configuration, which needs its kind: all kinds may have the same names."""
    kind, slash, name = text.partition("/")
    if slash and (kind == ROUTE or (kind in {BACKEND, ENDPOINT} and name)):
        return text
    if slash and kind == REPLICA:
        way_out = "a replica leaves with `slotmesh drain`, and is shown by `slotmesh status` and `slotmesh logs`"
    else:
        way_out = f"say which it is: {BACKEND}/{name or text} or {ENDPOINT}/{name or text}"
    raise typer.BadParameter(f"takes {BACKEND}/NAME, {ENDPOINT}/NAME or {ROUTE}/PATH, is {text}; {way_out}")


EndpointName = Annotated[str, typer.Argument(parser=name_of(ENDPOINT), metavar="ENDPOINT", help="The endpoint's name.")]
BackendName = Annotated[str, typer.Argument(parser=name_of(BACKEND), metavar="BACKEND", help="The backend's name.")]
ReplicaIds = Annotated[
    list[str],
    typer.Argument(
        parser=name_of(REPLICA), metavar="REPLICA", help="The id of a replica, as `replica/ID`; more than one, too."
    ),
]

NONE: Final = b"[]"
"""A call without arguments."""

_KINDS: Final = {type(None): "null", bool: "a boolean", str: "a string"}
_SHOWN: Final = 60
"""Characters of the input shown around an error."""


def read_arguments(text: str) -> bytes:
    """The payload of a call: a JSON list of positional arguments, or a JSON object of named ones.

    It is sent as it was typed, so that no number loses digits. Raises CommandFailed, which points at the error.
    """
    if not text.strip():
        return NONE
    try:
        value = json.loads(text, parse_constant=refuse_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        message = f"the arguments are not JSON: {error.msg} at {where}\n{_point(text, error.pos)}"
        raise CommandFailed(message, WRONG_INPUT) from None
    except (ValueError, RecursionError) as error:
        raise CommandFailed(f"the arguments are not JSON: {error}", WRONG_INPUT) from None
    if not isinstance(value, list | dict):
        kind = _KINDS.get(type(value), "a number")
        message = f"the arguments must be a JSON list (positional) or object (named), not {kind}; try [{text.strip()}]"
        raise CommandFailed(message, WRONG_INPUT)
    return text.encode()


def refuse_constant(constant: str) -> None:
    """For `json.loads`: NaN and Infinity, which Python would accept."""
    raise ValueError(f"{constant} is no JSON number")


def _point(text: str, position: int) -> str:
    """The line with the error, or the part of it around the error, with a caret below."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : end if end >= 0 else len(text)]
    column = position - start
    first = max(0, column - _SHOWN // 2)
    return f"  {line[first : first + _SHOWN]}\n  {' ' * (column - first)}^"
