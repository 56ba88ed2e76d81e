"""`slotmesh calls`: calls of all routers that have not ended, the oldest first.

Invariants: all routers are queried concurrently; a router that does not respond is named, and the calls of the others
are listed. No list is longer than the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Final, TextIO

import typer

from slotmesh.cli.connection import Peer
from slotmesh.cli.console import FAILED, CommandFailed, Output, OutputForm, Printable, complete, console_of, say
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import CONTROLLER, ENDPOINT, REPLICA, ControllerAddress, name_of, read_address
from slotmesh.cli.view.report import new_table
from slotmesh.convert.specification import seconds
from slotmesh.errors import SlotmeshError
from slotmesh.v1 import tap_service_pb2 as pb
from slotmesh.v1.tap_service_pb2_grpc import TapServiceStub

ANSWER_S: Final = 10.0
"""How long a router may take."""
WAITING, SENDING, RUNNING, LANE, LEFT = "waiting", "sending", "running", "in lane", "left"
_STATES: Final = {
    pb.OPEN_CALL_STATE_WAITING: WAITING,
    pb.OPEN_CALL_STATE_SENDING: SENDING,
    pb.OPEN_CALL_STATE_AT_REPLICA: RUNNING,
    pb.OPEN_CALL_STATE_ABANDONED: LEFT,
}


@dataclass(frozen=True, slots=True)
class ListedCall:
    """A call, and the router that has it."""

    router: str
    """Its address."""
    call: pb.OpenCall
    is_behind: bool = False
    """It is at its replica, behind an older call of its ordering key."""

    @property
    def state(self) -> str:
        """One that a newer router knows is shown by its number."""
        state = _STATES.get(self.call.state, str(self.call.state))
        return LANE if state == RUNNING and self.is_behind else state


@dataclass(slots=True)
class ListedCalls:
    """The oldest calls of all routers, and how many there are."""

    calls: list[ListedCall] = field(default_factory=list)
    """Oldest first."""
    waiting: int | None = 0
    """None: they were not requested."""
    at_replicas: int | None = 0
    """None likewise."""
    partial: list[str] = field(default_factory=list)
    """Addresses of routers that had more calls than they look at."""
    silent: dict[str, str] = field(default_factory=dict)
    """Addresses of routers that did not answer, and why."""

    @classmethod
    def of(cls, request: pb.ListCallsRequest) -> ListedCalls:
        """Nothing yet, for a request: the others are not counted."""
        asked = {*request.states} or {*_STATES}
        return cls(
            waiting=0 if asked & {pb.OPEN_CALL_STATE_WAITING, pb.OPEN_CALL_STATE_SENDING} else None,
            at_replicas=0 if asked & {pb.OPEN_CALL_STATE_AT_REPLICA, pb.OPEN_CALL_STATE_ABANDONED} else None,
        )

    def add(self, address: str, response: pb.ListCallsResponse) -> None:
        """The calls of one router."""
        self.calls += _of_one(address, response)
        if self.waiting is not None:
            self.waiting += response.waiting
        if self.at_replicas is not None:
            self.at_replicas += response.at_replicas
        self.partial += [address] if response.is_partial else []

    @property
    def left_out(self) -> int:
        """Calls that match and are not shown."""
        return max(0, (self.waiting or 0) + (self.at_replicas or 0) - len(self.calls))

    def document(self) -> dict[str, Any]:
        """Values of JSON. Times are seconds."""
        return {
            "calls": [_document(each) for each in self.calls],
            "waiting": self.waiting,
            "at_replicas": self.at_replicas,
            "left_out": self.left_out,
            "partial_routers": self.partial,
            "silent_routers": self.silent,
        }


async def list_calls(request: pb.ListCallsRequest, routers: Sequence[str], *, limit: int) -> ListedCalls:
    """Queries these routers. If none has responded, raises a router's error about the request itself."""
    answers = await asyncio.gather(*(_of_router(request, each) for each in routers), return_exceptions=True)
    listed = ListedCalls.of(request)
    refusals: list[CommandFailed | SlotmeshError] = []
    for address, answer in zip(routers, answers, strict=True):
        match answer:
            case pb.ListCallsResponse():
                listed.add(address, answer)
            case CommandFailed() | SlotmeshError():
                listed.silent[address] = await answer.explained() if isinstance(answer, CommandFailed) else str(answer)
                refusals.append(answer)
            case BaseException():
                raise answer
    if len(refusals) == len(routers):
        raise refusals[0]
    listed.calls.sort(key=lambda each: -seconds(each.call.age))
    del listed.calls[limit:]
    return listed


async def _of_router(request: pb.ListCallsRequest, address: str) -> pb.ListCallsResponse:
    peer = Peer("router", address, is_listed=True)
    async with peer.connect() as channel:
        stub: Any = TapServiceStub(channel)
        with peer.telling():
            response: pb.ListCallsResponse = await stub.ListCalls(request, timeout=ANSWER_S)
            return response


def _of_one(address: str, response: pb.ListCallsResponse) -> list[ListedCall]:
    """Of one key, at one replica, the oldest call is the one that runs."""
    seen: set[tuple[str, str, str]] = set()
    listed: list[ListedCall] = []
    for call in response.calls:
        is_behind = False
        if call.key_tag and call.replica_id:
            key = (call.endpoint, call.key_tag, call.replica_id)
            is_behind = key in seen
            seen.add(key)
        listed.append(ListedCall(address, call, is_behind))
    return listed


def _document(listed: ListedCall) -> dict[str, Any]:
    call = listed.call
    return {
        "state": listed.state,
        "endpoint": call.endpoint,
        "method": call.method,
        "age_s": round(seconds(call.age), 3),
        "sent_s": round(seconds(call.sent_age), 3) if call.HasField("sent_age") else None,
        "backend": call.backend or None,
        "replica": call.replica_id or None,
        "tenant": call.tenant or None,
        "partition": call.partition if call.HasField("partition") else None,
        "key_tag": call.key_tag or None,
        "request_bytes": call.request_bytes,
        "attempt": call.attempt,
        "shadow": call.is_shadow,
        "waits_for": call.waits_for or None,
        "router": listed.router,
        **({"key": call.ordering_key} if call.HasField("ordering_key") else {}),
    }


Named = Annotated[
    str,
    typer.Argument(
        parser=name_of(ENDPOINT),
        metavar="ENDPOINT",
        help="Only calls of this endpoint. None: of all.",
        show_default=False,
    ),
]
OneRouter = Annotated[
    str,
    typer.Option(
        parser=lambda text: text and read_address(text),
        metavar="HOST:PORT",
        help="Only calls of this router. Not given: of all that the controller lists.",
        show_default=False,
    ),
]
Keys = Annotated[
    bool,
    typer.Option(
        "--keys",
        help="Show ordering keys in place of their tags. Routers refuse it unless they were started with"
        " --tap-payloads.",
    ),
]


def calls(
    endpoint: Named = "",
    *,
    waiting: Annotated[bool, typer.Option("--waiting", help="Only calls that wait in routers.")] = False,
    running: Annotated[bool, typer.Option("--running", help="Only calls at replicas.")] = False,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Only calls with this ordering key.", show_default=False)
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only calls of this tenant; empty: only those that name none."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="The oldest ones, at most.")] = 100,
    keys: Keys = False,
    router: OneRouter = "",
    output: Output = OutputForm.TABLE,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Show the calls that have not ended, oldest first: how old each is, where it is, and what it waits for.

    States: `waiting` in a router; `sending`: its replica is chosen; `running`: at its replica; `in lane`: there,
    behind an older call of its ordering key; `left`: its caller has gone, and the replica still works on it. Not
    listed are reservations, and calls that go straight to replicas.

    An ordering key is shown as its partition and a tag. The tag is the same for all calls of the key at one router, and
    does not give the key away. `--key` finds the calls of a key that you know.

    Like this:

        slotmesh calls --running
        slotmesh calls digits --waiting --limit 20
        slotmesh calls --key user-7 -o json
    """
    if waiting and running:
        raise typer.BadParameter("contradicts --running: give one of them, or none for all", param_hint="--waiting")
    if key == "":
        raise typer.BadParameter("is empty: leave it out for calls with any key or none", param_hint="--key")
    states = {
        (True, False): [pb.OPEN_CALL_STATE_WAITING, pb.OPEN_CALL_STATE_SENDING],
        (False, True): [pb.OPEN_CALL_STATE_AT_REPLICA, pb.OPEN_CALL_STATE_ABANDONED],
    }.get((waiting, running), [])
    request = pb.ListCallsRequest(
        endpoint=endpoint, states=states, tenant=tenant, ordering_key=key, limit=limit, show_keys=keys
    )
    listed = complete(_listed(request, router, address, limit))
    replicas = dict.fromkeys(f"{REPLICA}/{each.call.replica_id}" for each in listed.calls if each.call.replica_id)
    Printable(table=partial(print_calls, listed), document=listed.document, names=lambda: replicas).write(output)
    for silent, why in listed.silent.items():
        say(f"slotmesh: the calls of the router at {silent} are not known: {why}", err=True)
    if listed.silent:
        raise typer.Exit(FAILED)


async def _listed(request: pb.ListCallsRequest, router: str, controller: str, limit: int) -> ListedCalls:
    if router:
        return await list_calls(request, [router], limit=limit)
    async with Operator.at(controller) as operator:
        routers = [it.address for it in (await operator.members()).routers]
    if not routers:
        raise CommandFailed(f"the controller at {controller} knows no router")
    return await list_calls(request, routers, limit=limit)


def print_calls(listed: ListedCalls, out: TextIO) -> None:
    """The table, and below it the number of the calls that were requested."""
    console = console_of(out)
    if listed.calls:
        columns = ("age", "state", "call", "key", "tenant", "at", "sent", "bytes", "waits for")
        with_router = len({each.router for each in listed.calls}) > 1
        table = new_table("Calls", *columns, *(("router",) if with_router else ()))
        for each in listed.calls:
            table.add_row(*_row(each), *((each.router,) if with_router else ()))
        console.print(table)
    more = f"; {listed.left_out} not shown, which are younger" if listed.left_out else ""
    counts = ((listed.waiting, "waiting"), (listed.at_replicas, "at replicas"))
    console.print(", ".join(f"{count} {where}" for count, where in counts if count is not None) + more)
    for address in listed.partial:
        console.print(f"the router at {address} has more calls than it looks at: there may be older ones")


def _row(listed: ListedCall) -> list[str]:
    call = listed.call
    key = call.ordering_key or (f"{call.partition}/{call.key_tag}" if call.key_tag else "")
    marks = [f"attempt {call.attempt}"] if call.attempt > 1 else []
    marks += ["shadow"] if call.is_shadow else []
    return [
        age_text(seconds(call.age)),
        listed.state,
        f"{call.endpoint}.{call.method}" + (f" ({', '.join(marks)})" if marks else ""),
        key,
        call.tenant,
        call.replica_id or call.backend,
        age_text(seconds(call.sent_age)) if call.HasField("sent_age") else "",
        f"{call.request_bytes:,}",
        call.waits_for,
    ]


def age_text(age_s: float) -> str:
    """A duration, to three digits or so."""
    if age_s < 1:
        return f"{age_s * 1e3:.0f} ms"
    if age_s < 120:
        return f"{age_s:.1f} s"
    minutes, rest_s = divmod(round(age_s), 60)
    return f"{minutes} min {rest_s} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
