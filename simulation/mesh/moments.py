"""Faults that wait for a certain frame: just before an acknowledgement is read, between two frames of one decision.

Owner: the world. Frames are parsed only where somebody waits for one of their rpc, or a trace is wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf import message_factory
from google.protobuf.message import Message

from simulation.mesh.network import Network
from simulation.mesh.scenario import Fault, Moment
from slotmesh.internal.v1 import membership_service_pb2, replica_service_pb2
from slotmesh.v1 import controller_service_pb2, router_service_pb2, slot_service_pb2

_FILES = (
    router_service_pb2,
    replica_service_pb2,
    membership_service_pb2,
    controller_service_pb2,
    slot_service_pb2,
)
_QUIET = frozenset({"heartbeat", "capacity", "report", "service_times", "Check"})
_MAX_WORDS = 300


def _types() -> dict[str, tuple[type[Message], type[Message]]]:
    """By full method name: what clients send, what servers send."""
    return {
        f"/{service.full_name}/{method.name}": (
            message_factory.GetMessageClass(method.input_type),
            message_factory.GetMessageClass(method.output_type),
        )
        for file in _FILES
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


_TYPES = _types()
_CLIENT_OF = {
    "StreamCalls": "client",
    "Execute": "router",
    "AttachRouter": "router",
    "AttachReplica": "replica",
}
"""Which kind of process calls an rpc."""


class Moments:
    """Those that are waited for."""

    def __init__(self, network: Network, strike: Callable[[Fault], None]) -> None:
        self._network = network
        self._strike = strike
        self._waiting: list[list[Any]] = []

    def wait_for(self, moment: Moment, fault: Fault) -> None:
        """From now on."""
        self._waiting.append([moment, moment.nth, fault])

    def saw(self, source: str, target: str, rpc: str, raw: bytes) -> None:
        """A message is about to be read."""
        if not self._waiting:
            return
        name = rpc.rpartition("/")[2]
        due = []
        for each in self._waiting:
            moment: Moment = each[0]
            if moment.rpc != name or not source.startswith(moment.source) or not target.startswith(moment.target):
                continue
            message = _parsed(source, rpc, raw)
            if message is not None and _frame_of(message) == moment.frame:
                each[1] -= 1
                if each[1] <= 0:
                    due.append(each)
        for each in due:
            self._waiting.remove(each)
            self._strike(each[2])

    def words(self, source: str, rpc: str, raw: bytes) -> str:
        """A message for a person; empty where it says nothing of interest."""
        name = rpc.rpartition("/")[2]
        if name in _QUIET:
            return ""
        message = _parsed(source, rpc, raw)
        if message is None:
            return ""
        frame = _frame_of(message)
        if frame in _QUIET:
            return ""
        inner = message.WhichOneof("frame") if frame else ""
        text = " ".join(str(getattr(message, inner) if inner else message).split())
        if frame == "table":
            text = _table(message)
        return f"{name} {frame}: {text[:_MAX_WORDS]}{'…' if len(text) > _MAX_WORDS else ''}"


def _table(message: Any) -> str:
    table = message.table_part.table
    who = [
        f"{it.replica_id}/{it.incarnation[:6]}{'-' if it.draining else ''}" for b in table.backends for it in b.replicas
    ]
    owners = [f"{it.replica_id}/{it.incarnation[:6]}" for each in table.assignments for it in each.owners]
    departed = [f"{it.replica_id}/{it.incarnation[:6]}" for it in table.departed]
    return f"{table.generation[:6]}:{table.revision} replicas {who} owners {owners} departed {departed}"


def _parsed(source: str, rpc: str, raw: bytes) -> Message | None:
    types = _TYPES.get(rpc)
    if types is None:
        return None
    name = rpc.rpartition("/")[2]
    is_request = source.startswith(_CLIENT_OF.get(name, "client"))
    message = types[0 if is_request else 1]()
    message.ParseFromString(raw)
    return message


def _frame_of(message: Any) -> str:
    """The kind of a frame. Parts of tables and of deltas are named after what they are part of."""
    frame = (message.WhichOneof("frame") or "") if "frame" in message.DESCRIPTOR.oneofs_by_name else ""
    return (message.table_part.WhichOneof("of") or "") if frame == "table_part" else frame
