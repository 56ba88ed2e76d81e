"""`slotmesh call`: one call from the shell."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Annotated, Final, Unpack

import typer

from slotmesh.call_options.model import OptionChanges
from slotmesh.cli.arguments import NONE, BadJson, read_arguments
from slotmesh.cli.connection import Peer
from slotmesh.cli.outcome import WRONG_INPUT, CommandFailed, complete
from slotmesh.cli.parameters import ROUTER, RouterAddress, read_call_duration
from slotmesh.client.calls.argument_checks import BadOption, check_ordering_key
from slotmesh.client.calls.options import ViewOptions
from slotmesh.codec import JSON
from slotmesh.v1 import router_service_pb2, router_service_pb2_grpc

_SLACK_S: Final = 1.0
"""How much later than the router's deadline the transport's is, so that the router's answer can arrive."""


Slo = Annotated[
    timedelta | None,
    typer.Option(
        parser=read_call_duration,
        metavar="DURATION",
        help="When the call should be answered, as 250ms: orders it among the calls that wait, and drops nothing.",
    ),
]


def call(
    endpoint: Annotated[str, typer.Argument(metavar="ENDPOINT", help="The endpoint's name.")],
    method: Annotated[
        str, typer.Argument(metavar="METHOD", help="The handler's method; `__call__` for a handler that is a function.")
    ],
    arguments: Annotated[
        str | None,
        typer.Argument(
            metavar="JSON",
            help="A list of positional arguments or an object of named ones; `-` reads it from stdin; none by default.",
            show_default=False,
        ),
    ] = None,
    *,
    timeout: Annotated[
        timedelta | None,
        typer.Option(
            parser=read_call_duration, metavar="DURATION", help="What the call may take in all, as 250ms or 30s."
        ),
    ] = None,
    slo: Slo = None,
    shard_key: Annotated[
        str, typer.Option(metavar="KEY", help="Calls of one key go to one backend, by weight.", show_default=False)
    ] = "",
    ordering_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Calls of one key are executed one after another.", show_default=False),
    ] = None,
    idempotent: Annotated[
        bool,
        typer.Option(
            "--idempotent", help="The call may run more than once: it is run again where its outcome is unknown."
        ),
    ] = False,
    address: RouterAddress = ROUTER,
) -> None:
    """Make one call, and print its result as JSON.

    The result goes to stdout as it came. A failure goes to stderr as `STATUS/REASON: message`, with exit status 1.

    Like this:

        slotmesh call digits classify '[[0, 12, 16, 3]]'
        slotmesh call greeter greet '{"name": "Ada"}' --timeout 2s --shard-key ada
        echo '[1, 2]' | slotmesh call calculator add -
    """
    view = partial(
        _view, ordering_key, timeout=timeout, slo=slo, content_type=JSON, shard_key=shard_key, idempotent=idempotent
    )
    typer.echo(complete(_call(endpoint, method, view, arguments, address)))


def _view(ordering_key: str | None, **changes: Unpack[OptionChanges]) -> ViewOptions:
    """The options of the call, by the rules of the SDK."""
    try:
        if ordering_key is not None:
            check_ordering_key(ordering_key)
        return ViewOptions(ordering_key=ordering_key or "").changed(**changes)
    except BadOption as mistake:
        raise CommandFailed(str(mistake), WRONG_INPUT) from mistake


async def _call(
    endpoint: str, method: str, view: Callable[[], ViewOptions], arguments: str | None, address: str
) -> bytes:
    options = view()
    payload = _read(arguments)
    deadline_s = None if options.timeout_s is None else options.timeout_s + _SLACK_S
    peer = Peer("router", address)
    async with peer.connect() as channel:
        stub = router_service_pb2_grpc.RouterServiceStub(channel)
        request = router_service_pb2.CallRequest(endpoint=endpoint, options=options.to_wire(method), payload=payload)
        with peer.telling():
            response = await stub.Call(request, timeout=deadline_s)
    return response.payload


def _read(arguments: str | None) -> bytes:
    try:
        if arguments is None:
            return NONE
        return read_arguments(sys.stdin.buffer.read().decode() if arguments == "-" else arguments)
    except UnicodeDecodeError as error:
        raise CommandFailed(f"the arguments are not UTF-8: {error}", WRONG_INPUT) from error
    except BadJson as mistake:
        raise CommandFailed(str(mistake), WRONG_INPUT) from mistake
