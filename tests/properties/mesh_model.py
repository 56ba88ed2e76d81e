"""Naive clients of a whole mesh in memory, and what its handlers have executed."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from replica_service.core.runs import StartTurn
from replica_service.core.work import StartCalls
from router_service.core.commands import CallDelivery, DeliverDone, DeliverFailure, DeliverResults
from router_service.core.events import SessionDisconnected
from router_service.core.runs import Caller
from slotmesh.errors import Executed, Failure, Reason
from tests.properties.mesh_client import Call, Client, Connection
from tests.support.hand_executor import Running
from tests.support.memory_mesh import MemoryMesh
from tests.support.memory_nodes import ReplicaNode, RouterNode

REPLICAS = 3
MOST_REPLICAS = 6
"""Some join later."""
KEYS = ("red", "green")
"""Of both clients, which come through different routers or the same one."""
TROUBLES = ("routers", "replicas", "tables", "wires", "silence", "moves", "failures", "timeouts", "cancels")
CALL_SHARE = 0.1
"""Steps in which a client makes calls."""
TROUBLE_SHARE = 0.03
MOST_UNANSWERED = 16
"""Calls of one client."""
MAX_ROUNDS = 400
"""In which everything must have ended when nothing breaks any more."""
TIMEOUTS_S = (0.05, 0.2, 0.6)
ALLOWED = {Reason.REPLICA_LOST, Reason.ROUTER_LOST, Reason.HANDLER_ERROR, Reason.QUEUE_TIMEOUT, Reason.STALE_TABLE}
OVERDUE = {Reason.DEADLINE_IN_QUEUE, Reason.DEADLINE_RUNNING}


class MeshModel:
    """The mesh, its clients, and what became of their calls."""

    def __init__(self, troubles: set[str], *, is_lazy: bool) -> None:
        self.troubles = troubles
        self.loop = asyncio.new_event_loop()
        self.mesh = MemoryMesh(REPLICAS, KEYS, self.loop)
        self.clients = [Client("a", "a" * 32), Client("b", "b" * 32)]
        self.by_tag: dict[bytes, Call] = {}
        self.lanes: dict[tuple[str, str], list[bytes]] = defaultdict(list)
        """Tags by client and key, in the order of the calls."""
        self.newest: dict[tuple[str, str], int] = defaultdict(lambda: -1)
        """Place in its lane of the newest call that was executed."""
        self.is_lazy = is_lazy
        self.uninformed: set[RouterNode] = set()
        """Routers that get no tables."""
        for number, router in enumerate(self.mesh.routers):
            for name in self.mesh.replicas:
                self.mesh.connect(router, name)
            self.clients[number].connect(router, self.now)
        self.deliver_all()
        for router in self.mesh.routers:
            router.is_lazy = is_lazy

    @property
    def now(self) -> float:
        return self.mesh.time.now()

    # -- clients ---------------------------------------------------------------------------------------------------

    def call(self, client: Client, count: int, key: str, *, idempotent: bool, timeout_s: float) -> None:
        if len(client.unanswered) > MOST_UNANSWERED:
            return
        for call_id in client.make(count, key, idempotent=idempotent, timeout_s=timeout_s):
            call = client.calls[call_id]
            self.by_tag[call.tag] = call
            self.lanes[client.name, key].append(call.tag)
        client.send(self.now)

    def hear(self, client: Client, frames: int) -> None:
        connection = client.connection
        if connection is None or not connection.is_open:
            return
        inbox = connection.router.inboxes.get(connection.caller, [])
        for outcome in inbox[:frames]:
            self.heard(client, connection, outcome)
        del inbox[:frames]

    def heard(self, client: Client, connection: Connection, outcome: CallDelivery) -> None:
        assert connection.heard.isdisjoint(outcome.ids), "two outcomes of a call on one connection"
        connection.heard.update(outcome.ids)
        connection.unacknowledged.append(outcome)
        assert not isinstance(outcome, DeliverDone)
        if isinstance(outcome, DeliverResults):
            assert len(outcome.payloads) == len(outcome.ids)
        for at, call_id in enumerate(outcome.ids):
            call = client.calls[call_id]
            assert call.sent_at is not None
            assert call.outcome is None, "an answered call has another outcome"
            if isinstance(outcome, DeliverFailure):
                call.outcome = outcome.failure
                client.failed(call_id)
                self.check_failure(call, outcome.failure)
            else:
                payload = outcome.payloads[at]
                assert payload == b"result of " + call.tag
                call.outcome = b"result of " + call.tag
                assert call.executions

    def check_failure(self, call: Call, failure: Failure) -> None:
        is_allowed = failure.reason in ALLOWED
        is_allowed |= failure.reason in OVERDUE and call.timeout_s > 0
        is_allowed |= failure.reason is Reason.CANCELLED and call.is_cancelled
        is_allowed |= failure.reason is Reason.PREDECESSOR_FAILED and call.stop_generation > 0
        assert is_allowed, failure
        if failure.executed is Executed.NO:
            assert not call.executions, "it says NO, and was executed"
        elif failure.executed is Executed.YES:
            assert call.executions, "it says YES, and was not executed"

    def acknowledge(self, client: Client) -> None:
        connection = client.connection
        if connection is not None and connection.is_open:
            for outcome in connection.unacknowledged:
                if outcome.replica is not None:
                    count = len(outcome.ids)
                    connection.router.forget(outcome.replica, outcome.links, outcome.first, count)
            connection.unacknowledged.clear()

    def reconnect(self, client: Client, router: RouterNode, *, is_noticed: bool) -> None:
        """The client gives its router up, which may be the last to know."""
        old = client.connection
        if old is not None:
            old.is_open = False
            if is_noticed or old.router is router:
                self.disconnect(old.router, old.caller)
        client.connect(router, self.now)

    def disconnect(self, router: RouterNode, caller: Caller) -> None:
        router.named.pop(caller, None)
        if router.inboxes.pop(caller, None) is not None:
            router.step(SessionDisconnected(caller))

    def left_behind(self, router: RouterNode) -> list[Caller]:
        """Connections that their clients have left, and the router still has."""
        current = {client.connection.caller for client in self.clients if client.connection is not None}
        return [caller for caller in router.inboxes if caller not in current]

    def deliver_all(self) -> None:
        for router in self.mesh.routers:
            router.cut_all()
        while True:
            down, up = self.mesh.downward(), self.mesh.upward()
            for wire in down:
                wire.replica.accept(wire)
            for wire in up:
                if wire.up and wire.router.wires.get(wire.core) is wire:
                    wire.router.accept(wire)
            if not down and not up:
                return
            for router in self.mesh.routers:
                router.cut_all()

    def begin(self, replica: ReplicaNode, work: StartCalls | StartTurn) -> None:
        self.begun(replica.begin(work))

    def begun(self, running: Running | None) -> None:
        if running is None:
            return
        call = self.by_tag[running.payload]
        call.executions += 1
        assert call.idempotent or call.executions == 1, f"{call} was executed twice"
        if isinstance(call.outcome, Failure):
            assert call.outcome.executed is not Executed.NO, f"{call} was executed after all"
        if not call.key:
            return
        others = [
            each
            for replica in self.mesh.replicas.values()
            for each in replica.executor.running
            if each is not running and self.by_tag[each.payload].key == call.key
        ]
        assert not others, f"{call} runs beside {others[0].payload!r}"
        client = call.tag.partition(b"/")[0].decode()
        place = self.lanes[client, call.key].index(call.tag)
        assert call.idempotent or place > self.newest[client, call.key], f"{call} was overtaken"
        self.newest[client, call.key] = place

    def end(self, replica: ReplicaNode, running: Running, *, failure: Failure | None = None) -> None:
        replica.end(running, failure=failure)
        self.mesh.complete_moves()

    def work(self, replica: ReplicaNode) -> None:
        """A replica works off what it has."""
        while not replica.is_stopped and (replica.executor.running or replica.executor.startable):
            for running in list(replica.executor.running):
                replica.end(running)
            for work in replica.executor.startable[:1]:
                self.begun(replica.begin(work))
        self.mesh.complete_moves()

    def heal(self) -> None:
        for wire in self.mesh.wires():
            wire.is_held = False
        for replica in self.mesh.replicas.values():
            replica.is_stopped = False
        for number, client in enumerate(self.clients):
            if client.connection is None or not client.connection.is_open:
                client.connect(self.mesh.routers[number], self.now)

    def round(self) -> None:
        """Everybody does what there is to do."""
        self.mesh.complete_moves()
        for router in self.mesh.routers:
            for caller in self.left_behind(router):
                self.disconnect(router, caller)
            self.mesh.push(router)
        self.deliver_all()
        for wire in self.mesh.wires():
            self.mesh.notice(wire)
        for router, name in self.mesh.unconnected():
            self.mesh.connect(router, name)
        self.deliver_all()
        for replica in [*self.mesh.replicas.values()]:
            self.work(replica)
        self.deliver_all()
        for client in self.clients:
            client.acknowledge_roster(self.now)
            self.hear(client, 10**6)
            self.acknowledge(client)
        self.mesh.pass_time(0.5)
