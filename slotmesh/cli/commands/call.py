"""`slotmesh call`: unary calls from the shell, one after another. Each result is written as it arrives."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Annotated, Final, Unpack

import grpc
import typer

from slotmesh.calls.call_options import CallRpc, OptionChanges
from slotmesh.cli.connection import Peer, begin
from slotmesh.cli.console import FAILED, WRONG_INPUT, CommandFailed, say
from slotmesh.cli.latencies import CallTally
from slotmesh.cli.parameters import ROUTER_ADDRESS, EndpointName, RouterAddress, duration, read_arguments
from slotmesh.client.calls.options import BadOption, ViewOptions, check_ordering_key
from slotmesh.codec import JSON
from slotmesh.errors import EndpointNotFound, SlotmeshError
from slotmesh.names import did_you_mean
from slotmesh.v1 import router_service_pb2 as pb

SLACK_S: Final = 1.0
"""How much later than the router's deadline the transport's is, so that the router's answer can arrive."""


MakeCall = Callable[[], Awaitable[None]]
"""Makes the call once, and writes what comes of it. Raises SlotmeshError."""


async def make_call(
    peer: Peer, channel: grpc.aio.Channel, request: pb.CallRequest | pb.CallStreamingRequest, timeout_s: float | None
) -> None:
    """Makes the call, and writes its result as it came, or each value as it comes. Raises SlotmeshError."""
    call = begin(channel, request, timeout=timeout_s)
    try:
        with peer.telling():
            if isinstance(request, pb.CallRequest):
                typer.echo((await call).payload)
                return
            async for response in call:
                typer.echo(response.payload)
    finally:
        call.cancel()


async def call_again_and_again(make: MakeCall, times: int) -> CallTally:
    """One call after another; failures go to stderr. With more than one call, so does a summary, whatever ends them.

    A single call raises its failure.
    """
    tally, began = CallTally(), time.monotonic()
    try:
        for _ in range(times):
            call_began, reason = time.monotonic(), ""
            try:
                await make()
            except SlotmeshError as failure:
                if times == 1:
                    raise
                reason = failure.reason.value
                say(failure, err=True)
            tally.add(time.monotonic() - call_began, reason)
    finally:
        if times > 1:
            for line in tally.lines(time.monotonic() - began):
                typer.echo(line, err=True)
    return tally


Slo = Annotated[
    timedelta | None,
    duration(
        "When the call should be answered, as 250ms: orders it among the calls that wait, and drops nothing.", zero=True
    ),
]
MethodName = Annotated[
    str, typer.Argument(metavar="METHOD", help="The handler's method; `__call__` for a handler that is a function.")
]
GivenArguments = Annotated[
    str | None,
    typer.Argument(
        metavar="JSON",
        help="A list of positional arguments or an object of named ones; `-` reads it from stdin; none by default.",
    ),
]
CallTimeout = Annotated[timedelta | None, duration("What the call may take in all, as 250ms or 30s.", zero=True)]
GivenMetadata = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="Handed to the handler. Repeat it for more.")
]
Times = Annotated[
    int,
    typer.Option(
        "--repeat", min=1, max=1_000_000, help="Make this number of calls, one after another; a summary ends them."
    ),
]
MayRepeat = Annotated[
    bool,
    typer.Option("--idempotent", help="The call may run more than once: it is run again where its outcome is unknown."),
]
AffinityKey = Annotated[
    str, typer.Option(metavar="KEY", help="Calls of one key prefer one replica, and run side by side.")
]
ModelId = Annotated[
    str, typer.Option(metavar="ID", help="The model that the call needs, of a handler that loads several.")
]
Streams = Annotated[
    bool, typer.Option("--stream", help="Print each value of a method that yields as it comes, a line each.")
]
RequestId = Annotated[
    str | None,
    typer.Option(
        metavar="ID", help="Names the call: made again with the same id, it is not executed again but answered again."
    ),
]
OrderedBy = Annotated[str | None, typer.Option(metavar="KEY", help="Calls of one key are executed one after another.")]

OnBehalfOf = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="On whose behalf the call is made: waiting calls take turns by tenant, and endpoints may limit each.",
    ),
]


async def call(
    endpoint: EndpointName,
    method: MethodName,
    arguments: GivenArguments = None,
    *,
    timeout: CallTimeout = None,
    slo: Slo = None,
    shard_key: Annotated[str, typer.Option(metavar="KEY", help="Calls of one key go to one backend, by weight.")] = "",
    affinity_key: AffinityKey = "",
    model_id: ModelId = "",
    ordering_key: OrderedBy = None,
    tenant: OnBehalfOf = "",
    idempotent: MayRepeat = False,
    request_id: RequestId = None,
    metadata: GivenMetadata = None,
    stream: Streams = False,
    repeat: Times = 1,
    address: RouterAddress = ROUTER_ADDRESS,
) -> None:
    """Make one call, and print its result as JSON.

    The result goes to stdout as it came. A failure goes to stderr as `STATUS/REASON: message`, with exit status 1. With
    `--repeat`, calls go on behind a failure; how many there were and how long they took goes to stderr at the end.

    Like this:

        slotmesh call digits classify '[[0, 12, 16, 3]]'
        slotmesh call greeter greet '{"name": "Ada"}' --timeout 2s --shard-key ada
        echo '[1, 2]' | slotmesh call calculator add -
        slotmesh call writer tokens '["once upon"]' --stream
        slotmesh call orders place '["tea"]' --request-id order-7
        slotmesh call digits classify '[[0, 12, 16, 3]]' --repeat 100 --metadata trace=1 --tenant ada
    """
    if request_id and repeat > 1:
        raise typer.BadParameter("stands for one call: leave --repeat out", param_hint="--request-id")
    view = view_of(
        ordering_key,
        timeout=timeout,
        slo=slo,
        content_type=JSON,
        shard_key=shard_key,
        affinity_key=affinity_key,
        model_id=model_id,
        tenant=tenant,
        idempotent=idempotent,
        request_id=request_id,
        metadata=read_metadata(metadata or ()),
    )
    request = (pb.CallStreamingRequest if stream else pb.CallRequest)(
        endpoint=endpoint,
        options=view.to_wire(method, rpc=CallRpc.CALL),
        payload=read_payload(arguments),
        request_id=request_id or "",
    )
    timeout_s = None if view.timeout_s is None else view.timeout_s + SLACK_S
    peer = Peer("router", address)
    async with peer.connect() as channel, _similar_names(channel, endpoint):
        tally = await call_again_and_again(partial(make_call, peer, channel, request, timeout_s), repeat)
    if tally.failed:
        raise typer.Exit(FAILED)


@asynccontextmanager
async def _similar_names(channel: grpc.aio.Channel, endpoint: str) -> AsyncGenerator[None]:
    """Adds endpoints with similar names to the failure that there is none of this name, if the router lists them."""
    try:
        yield
    except EndpointNotFound as failure:
        try:
            described = await begin(channel, pb.DescribeEndpointsRequest(), timeout=SLACK_S)
        except grpc.RpcError:
            raise failure from None
        meant = did_you_mean(endpoint, [it.name for it in described.endpoints])
        raise CommandFailed(f"{failure}{meant}") from failure


def read_metadata(entries: Iterable[str]) -> dict[str, str]:
    """From `KEY=VALUE`, each key once."""
    metadata: dict[str, str] = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals or key in metadata:
            problem = f"{key} is given twice" if equals else f"takes KEY=VALUE, as user=ada, is {entry!r}"
            raise typer.BadParameter(problem, param_hint="--metadata")
        metadata[key] = value
    return metadata


def view_of(ordering_key: str | None, **changes: Unpack[OptionChanges]) -> ViewOptions:
    """The options of the call, by the rules of the SDK."""
    try:
        if ordering_key is not None:
            check_ordering_key(ordering_key)
        return ViewOptions(ordering_key=ordering_key or "").changed(**changes)
    except BadOption as error:
        raise CommandFailed(str(error), WRONG_INPUT) from error


def read_payload(arguments: str | None) -> bytes:
    if arguments != "-":
        return read_arguments(arguments or "")
    try:
        return read_arguments(sys.stdin.buffer.read().decode())
    except UnicodeDecodeError as error:
        raise CommandFailed(f"the arguments are not UTF-8: {error}", WRONG_INPUT) from error
