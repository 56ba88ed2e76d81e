"""`slotmesh calls`: calls of all routers that have not ended, the oldest first.

Invariants: all routers are queried concurrently; a router that does not respond is named, and the calls of the others
are listed. No list is longer than the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, TextIO

import typer

from slotmesh.cli.connection import Peer
from slotmesh.cli.console import (
    FAILED,
    CommandFailed,
    Output,
    OutputForm,
    Printable,
    TableColumns,
    console_of,
    say,
    table_of,
)
from slotmesh.cli.documents import message_document
from slotmesh.cli.operator import routers_of
from slotmesh.cli.parameters import CONTROLLER, ENDPOINT, REPLICA, ControllerAddress, OneRouter, name_of
from slotmesh.errors import SlotmeshError
from slotmesh.v1 import tap_service_pb2 as pb

ANSWER_S: Final = 10.0
"""The time limit for a router's response."""
_RUNNING: Final = "running"
_STATES: Final = {
    pb.OPEN_CALL_STATE_WAITING: "waiting",
    pb.OPEN_CALL_STATE_SENDING: "sending",
    pb.OPEN_CALL_STATE_AT_REPLICA: _RUNNING,
    pb.OPEN_CALL_STATE_ABANDONED: "left",
}
_IN_ROUTERS: Final = (pb.OPEN_CALL_STATE_WAITING, pb.OPEN_CALL_STATE_SENDING)
_AT_REPLICAS: Final = (pb.OPEN_CALL_STATE_AT_REPLICA, pb.OPEN_CALL_STATE_ABANDONED)
_NAMES: Final = {"sent_age_s": "sent_s", "replica_id": "replica", "ordering_key": "key"}
"""Fields that have another name in documents than in the message."""


def call_document(router: str, call: pb.OpenCall, *, is_behind: bool = False) -> dict[str, Any]:
    """A call of a router as values of JSON: those of the message, and null for an empty text.

    `is_behind`: it is at its replica, behind an older call of its ordering key. A state that only a newer router knows
    is shown by its number.
    """
    state = _STATES.get(call.state, str(call.state))
    values = message_document(call, leave_out=() if call.HasField("ordering_key") else ("ordering_key",))
    named = {
        _NAMES.get(name, name): round(it, 3) if isinstance(it, float) else None if it == "" else it
        for name, it in values.items()
    }
    return {**named, "state": "in lane" if state == _RUNNING and is_behind else state, "router": router}


def calls_document(
    request: pb.ListCallsRequest, answers: Mapping[str, pb.ListCallsResponse], silent: Mapping[str, str], limit: int
) -> dict[str, Any]:
    """The oldest calls of all routers, and the numbers of all calls. Null: the request excludes them.

    `answers`: by the address of a router. `silent`: why others have not responded.
    """
    requested = {*request.states} or {*_STATES}
    calls = [it for address, answer in answers.items() for it in _calls_of(address, answer)]
    calls.sort(key=lambda it: -it["age_s"])
    waiting = sum(it.waiting for it in answers.values()) if requested & {*_IN_ROUTERS} else None
    at_replicas = sum(it.at_replicas for it in answers.values()) if requested & {*_AT_REPLICAS} else None
    return {
        "calls": calls[:limit],
        "waiting": waiting,
        "at_replicas": at_replicas,
        "left_out": max(0, (waiting or 0) + (at_replicas or 0) - len(calls[:limit])),  # they match, and are not shown
        "partial_routers": [address for address, it in answers.items() if it.partial],  # had more than they look at
        "silent_routers": dict(silent),
    }


def _calls_of(address: str, response: pb.ListCallsResponse) -> Iterator[dict[str, Any]]:
    """The calls of one router. Of one key, at one replica, the oldest call is the one that runs."""
    seen: set[tuple[str, str, str]] = set()
    for call in response.calls:
        key = (call.endpoint, call.key_tag, call.replica_id)
        yield call_document(address, call, is_behind=key in seen)
        if call.key_tag and call.replica_id:
            seen.add(key)


async def list_calls(request: pb.ListCallsRequest, routers: Sequence[str], *, limit: int) -> dict[str, Any]:
    """Queries these routers. If none has responded, raises a router's error about the request itself."""
    peers = [Peer("router", each, is_listed=True) for each in routers]
    answers = await asyncio.gather(*(it.ask(request, ANSWER_S) for it in peers), return_exceptions=True)
    listed: dict[str, pb.ListCallsResponse] = {}
    silent: dict[str, str] = {}
    for address, answer in zip(routers, answers, strict=True):
        if isinstance(answer, CommandFailed | SlotmeshError):
            silent[address] = await answer.explained() if isinstance(answer, CommandFailed) else str(answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            listed[address] = answer
    if not listed and isinstance(answers[0], BaseException):
        raise answers[0]
    return calls_document(request, listed, silent, limit)


Keys = Annotated[
    bool,
    typer.Option(
        "--keys",
        help="Show ordering keys in place of their tags. Routers refuse it unless they were started with"
        " --tap-payloads.",
    ),
]


async def calls(
    endpoint: Annotated[
        str,
        typer.Argument(parser=name_of(ENDPOINT), metavar="ENDPOINT", help="Only calls of this endpoint. Default: all."),
    ] = "",
    *,
    waiting: Annotated[bool, typer.Option("--waiting", help="Only calls that wait in routers.")] = False,
    running: Annotated[bool, typer.Option("--running", help="Only calls at replicas.")] = False,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Only calls with this ordering key.")] = None,
    tenant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only calls of this tenant; empty: only those that name none.")
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
    states = _IN_ROUTERS if waiting else _AT_REPLICAS if running else ()
    request = pb.ListCallsRequest(
        endpoint=endpoint, states=states, tenant=tenant, ordering_key=key, limit=limit, with_ordering_keys=keys
    )
    listed = await list_calls(request, await routers_of(address, router), limit=limit)
    replicas = dict.fromkeys(f"{REPLICA}/{each['replica']}" for each in listed["calls"] if each["replica"])
    Printable(table=partial(print_calls, listed), document=lambda: listed, names=lambda: replicas).write(output)
    for silent, why in listed["silent_routers"].items():
        say(f"slotmesh: the calls of the router at {silent} are not known: {why}", err=True)
    if listed["silent_routers"]:
        raise typer.Exit(FAILED)


def print_calls(listed: Mapping[str, Any], out: TextIO) -> None:
    """The table, and below it the number of the calls that were requested."""
    console = console_of(out)
    if calls := listed["calls"]:
        with_router = len({each["router"] for each in calls}) > 1
        routers: TableColumns[dict[str, Any]] = {"router": lambda it: it["router"]} if with_router else {}
        console.print(table_of("Calls", {**_COLUMNS, **routers}, calls))
    more = f"; {listed['left_out']} not shown, which are younger" if listed["left_out"] else ""
    counts = ((listed["waiting"], "waiting"), (listed["at_replicas"], "at replicas"))
    console.print(", ".join(f"{count} {where}" for count, where in counts if count is not None) + more)
    for address in listed["partial_routers"]:
        console.print(f"the router at {address} has more calls than it looks at: there may be older ones")


def _call_text(call: dict[str, Any]) -> str:
    marks = [f"attempt {call['attempt']}"] if call["attempt"] > 1 else []
    marks += ["shadow"] if call["shadow"] else []
    return f"{call['endpoint']}.{call['method']}" + (f" ({', '.join(marks)})" if marks else "")


_COLUMNS: Final[TableColumns[dict[str, Any]]] = {
    "age": lambda it: age_text(it["age_s"]),
    "state": lambda it: it["state"],
    "call": _call_text,
    "key": lambda it: it.get("key") or (f"{it['partition'] or 0}/{it['key_tag']}" if it["key_tag"] else ""),
    "tenant": lambda it: it["tenant"] or "",
    "at": lambda it: it["replica"] or it["backend"] or "",
    "sent": lambda it: "" if it["sent_s"] is None else age_text(it["sent_s"]),
    "bytes": lambda it: f"{it['request_bytes']:,}",
    "waits for": lambda it: it["waits_for"] or "",
}


def age_text(age_s: float) -> str:
    """A duration, to three digits or so."""
    if age_s < 1:
        return f"{age_s * 1e3:.0f} ms"
    if age_s < 120:
        return f"{age_s:.1f} s"
    minutes, rest_s = divmod(round(age_s), 60)
    return f"{minutes} min {rest_s} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
