"""`slotmesh broadcast`: one call on every replica, from the shell. Each outcome is written as it arrives."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from slotmesh.calls.call_options import CallRpc
from slotmesh.cli.commands.call import (
    SLACK_S,
    CallTimeout,
    GivenArguments,
    GivenMetadata,
    MethodName,
    OnBehalfOf,
    read_metadata,
    read_payload,
    view_of,
)
from slotmesh.cli.connection import Peer, begin
from slotmesh.cli.console import FAILED, say
from slotmesh.cli.parameters import ROUTER_ADDRESS, EndpointName, RouterAddress
from slotmesh.codec import JSON
from slotmesh.errors import SlotmeshError
from slotmesh.status import from_wire, to_exception
from slotmesh.v1 import router_service_pb2 as pb

_UNNAMED: Final = "the rpc has ended before each replica had its outcome; it is not known whether these were executed: "


class ReplicaOutcomes:
    """What has come of the calls, replica by replica."""

    def __init__(self) -> None:
        self.waiting: dict[str, None] | None = None
        """Replicas without an outcome, in order. None before the router has named them: there may be none."""
        self.ok = 0
        self.failed = 0

    def add(self, response: pb.BroadcastResponse) -> None:
        """Writes the outcome: results to stdout, failures to stderr."""
        if self.waiting is None:
            self.waiting = dict.fromkeys(each.replica_id for each in response.targets)
            return
        self.waiting.pop(response.replica_id, None)
        if response.WhichOneof("outcome") == "failure":
            self.failed += 1
            say(f"{response.replica_id}  {to_exception(from_wire(response.failure))}", err=True)
        else:
            self.ok += 1
            say(f"{response.replica_id}  {response.payload.decode(errors='replace')}")

    @property
    def summary(self) -> str:
        if not self.ok + self.failed:
            return "no replica is there: none of these backends has one that is not draining (slotmesh status)"
        return f"{self.ok} replica{'' if self.ok == 1 else 's'} executed it, {self.failed} failed"


async def broadcast(
    endpoint: EndpointName,
    method: MethodName,
    arguments: GivenArguments = None,
    *,
    backend: Annotated[
        str,
        typer.Option(metavar="NAME", help="Only replicas of this backend; all that have a share of the traffic, else."),
    ] = "",
    timeout: CallTimeout = None,
    tenant: OnBehalfOf = "",
    metadata: GivenMetadata = None,
    address: RouterAddress = ROUTER_ADDRESS,
) -> None:
    """Call a method on every replica of an endpoint, and print each result as JSON, a line each.

    The replicas are those that the router lists as not draining. Each executes the call at most once; it waits for
    room there, until `--timeout`, or for a minute. A failure goes to stderr, with its replica; then exit status is 1.

    Like this:

        slotmesh broadcast digits drop_cache
        slotmesh broadcast digits load_weights '{"version": 7}' --timeout 5m --backend digits-v2
    """
    changes: dict[str, Any] = {"timeout": timeout, "tenant": tenant, "metadata": read_metadata(metadata or ())}
    view = view_of(None, content_type=JSON, **changes)
    request = pb.BroadcastRequest(
        endpoint=endpoint,
        options=view.to_wire(method, rpc=CallRpc.BROADCAST),
        payload=read_payload(arguments),
        backend=backend,
    )
    outcomes, peer = ReplicaOutcomes(), Peer("router", address)
    async with peer.connect() as channel:
        call = begin(channel, request, timeout=None if view.timeout_s is None else view.timeout_s + SLACK_S)
        try:
            with peer.telling():
                async for response in call:
                    outcomes.add(response)
        except SlotmeshError:
            if outcomes.waiting:
                say(_UNNAMED + ", ".join(outcomes.waiting), err=True)
            raise
        finally:
            call.cancel()
    say(outcomes.summary, err=True)
    if outcomes.failed:
        raise typer.Exit(FAILED)
