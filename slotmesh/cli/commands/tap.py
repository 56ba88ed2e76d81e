"""`slotmesh tap`: calls of all routers as they end.

Invariants: each router has one tap at a time; a router that disconnects is tapped again when the controller lists it.
The queue for printing is bounded: if its reader is slow, routers drop calls and report the number. Dropped calls are
printed immediately, then at most every `SAY_EVERY_S` for each router, and as a total at the end.
Owner: the command `tap` runs `TappedRouters`.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from math import inf
from typing import Annotated, Any, Final

import grpc
import typer

from slotmesh.cli.connection import NotOffered, Peer, begin
from slotmesh.cli.console import CommandFailed, ended_by_sigterm, say
from slotmesh.cli.documents import iso_time, word_of
from slotmesh.cli.operator import Operator, routers_of
from slotmesh.cli.parameters import CONTROLLER, ControllerAddress, EndpointName, OneRouter, duration
from slotmesh.convert.specification import seconds
from slotmesh.errors import Reason, SlotmeshError
from slotmesh.names import did_you_mean
from slotmesh.spec.tenants import tenant_problem
from slotmesh.v1 import tap_service_pb2 as pb
from slotmesh.v1.router_service_pb2 import DescribeEndpointsRequest

SAY_EVERY_S: Final = 5.0
"""The shortest time between two messages about dropped calls of one router."""


class TapDrops:
    """Calls that routers have dropped, counted by router."""

    def __init__(self) -> None:
        self.total = 0
        self._unreported: dict[str, int] = {}
        self._reported_at: dict[str, float] = {}

    def add(self, address: str, dropped: int, now: float) -> str:
        """Adds calls that a router has dropped. Returns the message to print; empty if none is due."""
        self.total += dropped
        unreported = self._unreported[address] = self._unreported.get(address, 0) + dropped
        if not unreported or now - self._reported_at.get(address, -inf) < SAY_EVERY_S:
            return ""
        self._unreported[address], self._reported_at[address] = 0, now
        return f"{address} dropped {unreported} calls; show fewer with --rate, or more with --max-per-second"


LOOK_EVERY_S: Final = 2.0
"""The interval at which the controller's list of routers is queried."""
_ASK_S: Final = 2.0
"""The time limit for a router's list of methods, and for the controller's list of replicas."""
_ASK_AGAIN_S: Final = 1.0
_AWAY_S: Final = 30.0
"""How long a controller that did not answer is not asked again for the versions of replicas."""
MAX_RESPONSES: Final = 16
"""The limit of responses that wait to be printed."""
_FINAL: Final = frozenset({Reason.BAD_REQUEST, Reason.ENDPOINT_NOT_FOUND, Reason.QUEUE_FULL})
"""Refusals that another router would repeat, or that an operator must resolve."""

ListRouters = Callable[[], Awaitable[list[str]]]
"""Lists the addresses of all routers; empty while that is unknown."""


class TappedRouters:
    """The taps of all routers."""

    def __init__(self, request: pb.TapCallsRequest, list_routers: ListRouters, tell: Callable[[str], None]) -> None:
        """`tell` prints a message for the operator."""
        self._request = request
        self._list_routers = list_routers
        self._tell = tell
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._has_opened = False
        self._came: asyncio.Queue[tuple[str, pb.TapCallsResponse] | BaseException] = asyncio.Queue(MAX_RESPONSES)

    async def responses(self) -> AsyncGenerator[tuple[str, pb.TapCallsResponse], None]:
        """The responses of the routers at these addresses, without end. Raises what makes it useless to go on."""
        looking = asyncio.create_task(self._look())
        try:
            while True:
                came = await self._came.get()
                if isinstance(came, BaseException):
                    raise came
                yield came
        finally:
            tasks = [looking, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        try:
            while True:
                for address in await self._list_routers():
                    task = self._tasks.get(address)
                    if task is None or task.done():
                        self._tasks[address] = asyncio.create_task(self._tap(address))
                await asyncio.sleep(LOOK_EVERY_S)
        except Exception as error:  # noqa: BLE001 - whatever it is, the command ends with it
            await self._came.put(error)

    async def _tap(self, address: str) -> None:
        peer = Peer("router", address, is_listed=True)
        try:
            async with peer.connect() as channel:
                call = begin(channel, self._request)
                with peer.telling():
                    await call.initial_metadata()
                    # A refusal also resolves the metadata; its status arrives before the response to this later rpc.
                    doubt = await _doubt_of(channel, self._request)
                    if call.done():
                        await call.read()  # raises the refusal
                    self._tell(f"tapping {self._request.endpoint} at {address}")
                    if doubt and not self._has_opened:
                        self._tell(doubt)
                    self._has_opened = True
                    while (response := await call.read()) is not grpc.aio.EOF:
                        await self._came.put((address, response))
            self._tell(f"the router at {address} has ended")
        except SlotmeshError as error:
            if error.reason in _FINAL:
                await self._came.put(error)
            else:
                self._tell(f"the tap at {address} ended: {error}")
        except CommandFailed as failure:
            if len(self._tasks) > 1 or (self._has_opened and not isinstance(failure, NotOffered)):
                self._tell(str(failure))
            else:
                await self._came.put(failure)


async def _doubt_of(channel: grpc.aio.Channel, request: pb.TapCallsRequest) -> str:
    """A warning if no replica known to the router has the method; empty otherwise, or if that is unknown."""
    try:
        described = await begin(channel, DescribeEndpointsRequest(endpoint=request.endpoint), timeout=_ASK_S)
    except grpc.RpcError:
        return ""
    methods = {method for endpoint in described.endpoints for method in endpoint.methods}
    if not request.method or not methods or request.method in methods:
        return ""
    closest = did_you_mean(request.method, methods) or f"; there is {', '.join(sorted(methods))}"
    return f"{request.endpoint} has no method {request.method} now{closest}"


class HandlerVersions:
    """The versions of the code that replicas run, as their controller knows them. Asked for when one is unknown."""

    def __init__(self, controller: str) -> None:
        self._controller = controller
        self._known: dict[str, str] = {}
        self._ask_after = float("-inf")

    async def of(self, replica_id: str) -> str:
        """Empty if it is not known, as of replicas that the controller has not started."""
        now = asyncio.get_running_loop().time()
        if replica_id and replica_id not in self._known and now >= self._ask_after:
            self._ask_after = now + _ASK_AGAIN_S
            try:
                async with asyncio.timeout(_ASK_S), Operator.at(self._controller) as operator:
                    self._known = {it.replica_id: it.handler_version for it in (await operator.members()).replicas}
            except (CommandFailed, SlotmeshError, TimeoutError):
                self._ask_after = now + _AWAY_S
        return self._known.get(replica_id, "")


def call_document(address: str, call: pb.TappedCall, version: str = "") -> dict[str, Any]:
    """A call as values of JSON. Times are milliseconds, and ISO 8601 in UTC. `version`: of the replica's code."""
    return {
        "time": iso_time(call.end_time),
        "router": address,
        "method": call.method,
        "backend": call.backend,
        "replica": call.replica_id,
        **({"version": version} if version else {}),
        "request_bytes": call.request_bytes,
        "response_bytes": call.response_bytes if call.HasField("response_bytes") else None,
        "queue_ms": round(seconds(call.queue_time) * 1e3, 3),
        "run_ms": round(seconds(call.run_time) * 1e3, 3) if call.HasField("run_time") else None,
        "outcome": "completed" if call.outcome == pb.TAPPED_OUTCOME_COMPLETED else "failed",
        "reason": call.reason or None,
        "executed": word_of(call, "executed"),
        "attempt": call.attempt,
        "ordered": call.ordered,
        **({"tenant": call.tenant} if call.tenant else {}),
        **_bytes("payload", call.payload if call.HasField("payload") else None),
        **_bytes("result", call.result if call.HasField("result") else None),
        **({"content_type": call.content_type} if call.content_type else {}),
    }


def _bytes(name: str, value: bytes | None) -> dict[str, str]:
    """Text where it is text, else base64."""
    if value is None:
        return {}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _tenant(text: str) -> str:
    if problem := tenant_problem(text):
        raise typer.BadParameter(f"is the name of no tenant: {problem}")
    return text


ShowsPayloads = Annotated[
    bool,
    typer.Option(
        "--payloads",
        help="Show payloads and results, too. Routers refuse it unless they were started with --tap-payloads.",
    ),
]
ShownBytes = Annotated[
    int, typer.Option("--payload-bytes", min=1, max=65_536, help="Of each payload and result, shown at most.")
]


async def tap(
    endpoint: EndpointName,
    *,
    method: Annotated[
        str,
        typer.Option(help="Only calls of this method; `__call__` for that of the handler itself."),
    ] = "",
    tenant: Annotated[
        str | None,
        typer.Option(
            parser=_tenant, metavar="NAME", help="Only calls of this tenant; empty: only those that name none."
        ),
    ] = None,
    rate: Annotated[
        float, typer.Option(min=0.000001, max=1.0, help="Which share of the calls is shown, drawn call by call.")
    ] = 1.0,
    most: Annotated[
        int, typer.Option("--max-per-second", min=1, max=10_000, help="Calls a second that each router shows at most.")
    ] = 1_000,
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            "-n",
            min=0,
            max=1_000_000,
            help="End after this number of calls, or after --duration; 0: no limit.",
        ),
    ] = 0,
    duration: Annotated[timedelta | None, duration("End after this time, as 30s. Default: at Ctrl-C.")] = None,
    payloads: ShowsPayloads = False,
    payload_bytes: ShownBytes = 4_096,
    router: OneRouter = "",
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Show calls of an endpoint as they end, one line of JSON each, until Ctrl-C.

    A line has the method, sizes in bytes, the replica and the version of its code, the time in the router's queue, the
    time from there to the outcome, and the outcome with its reason. Which routers are tapped, and how many calls they
    have dropped because there were too many a second, goes to stderr, and the sum of both at the end, after SIGTERM,
    too. Not seen are reservations, copies for shadows and calls that go straight to replicas. Without a tap, it costs
    routers nothing.

    Like this:

        slotmesh tap digits
        slotmesh tap digits --rate 0.01 --method classify | jq 'select(.outcome == "failed")'
        slotmesh tap digits --limit 100 --duration 30s --router 127.0.0.1:7071
    """
    request = pb.TapCallsRequest(
        endpoint=endpoint,
        method=method,
        tenant=tenant,
        sample_rate=rate,
        max_calls_per_s=most,
        with_payloads=payloads,
        max_payload_bytes=payload_bytes if payloads else 0,
    )
    await _tap(request, router, address, limit, None if duration is None else duration.total_seconds())


async def _tap(request: pb.TapCallsRequest, router: str, controller: str, limit: int, duration_s: float | None) -> None:
    await routers_of(controller, router)
    taps = TappedRouters(
        request, partial(_known_routers, controller, router), lambda text: say(f"slotmesh: {text}", err=True)
    )
    shown, drops, loop = 0, TapDrops(), asyncio.get_running_loop()
    versions = HandlerVersions(controller)
    try:
        async with asyncio.timeout(duration_s), ended_by_sigterm(), aclosing(taps.responses()) as responses:
            async for router_address, response in responses:
                if text := drops.add(router_address, response.dropped, loop.time()):
                    say(f"slotmesh: {text}", err=True)
                for call in response.calls:
                    version = await versions.of(call.replica_id)
                    typer.echo(json.dumps(call_document(router_address, call, version)))
                    shown += 1
                    if shown == limit:
                        return
    except TimeoutError:
        pass
    finally:
        typer.echo(f"slotmesh: {shown} calls shown, {drops.total} dropped", err=True)


async def _known_routers(controller: str, router: str) -> list[str]:
    """While the controller is away, the routers that are tapped are."""
    try:
        return await routers_of(controller, router)
    except (CommandFailed, SlotmeshError):
        return []
