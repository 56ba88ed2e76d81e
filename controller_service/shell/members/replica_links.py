"""The membership streams of replicas: their reports, and the controller's orders.

Invariants: a replica has one stream, that of its newest attachment; it gets its configuration first, and again when
that changes; it gets the orders to drain, and to give up each partition, once a stream, however often they are due;
partitions that it reports empty count only where it was ordered to give them up. A replica that served under an earlier
generation is ordered to give up everything, once the epoch floor is above all that it may have. The end of
a stream proves nothing about the replica: its lease lasts until it is silent for too long, and another process with its
id is refused until then.
Owner: the event loop. Each stream's rpc runs in `serve`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import grpc

from controller_service.convert.replicas import (
    busy_from_wire,
    emptied_from_wire,
    ended_calls_from_wire,
    held_from_hello,
    hello_from_wire,
    load_of_report,
    report_from_wire,
    revoke_to_wire,
)
from controller_service.core.desired.state import order_of
from controller_service.core.loads import RecentReports, SampledLoad
from controller_service.core.observed import routers as handovers
from controller_service.core.observed import transitions
from controller_service.core.observed.member_messages import Hello
from controller_service.core.observed.state import running_replicas, wanted_replicas
from controller_service.core.observed.transitions import AttachRefused, NamesakeLives
from controller_service.core.partition_owners import Incarnation, PartitionOwnership
from controller_service.core.reconciling.rollouts import EndedCalls
from controller_service.shell.leadership import NewerMembers
from controller_service.shell.members.member_stream import (
    AnnouncedConfiguration,
    ConfigurationFrames,
    LeaseWatch,
    MemberStream,
)
from controller_service.shell.mesh_state import Concern, Key, MeshState
from controller_service.store.protocol import Store
from slotmesh.errors import Failure, Reason
from slotmesh.internal.v1 import membership_service_pb2 as wire
from slotmesh.runtime.process_identity import has_ended
from slotmesh.security.rpc_roles import backend_refusal
from slotmesh.spec.model import Backend
from slotmesh.status import to_exception
from slotmesh.transport.duplex import read_request

PARTITIONS_AN_ORDER: Final = 8_192
"""Partitions, of whatever number of endpoints, that one frame orders a replica to give up."""


class AttachedReplica:
    """One attached replica."""

    def __init__(self, hello: Hello, context: grpc.aio.ServicerContext[Any, Any], term: int) -> None:
        """`term` is that under which this controller leads."""
        self.hello = hello
        self._term = term
        self.stream = MemberStream[wire.AttachReplicaRequest, wire.AttachReplicaResponse](context, self._next_frame)
        self._pending: deque[wire.AttachReplicaResponse] = deque()
        self.loads = RecentReports[SampledLoad]()
        """What it has reported of its load."""
        self._configuration: AnnouncedConfiguration | None = None
        self._was_ordered_to_drain = False
        self._revoked: dict[str, dict[int, int]] = {}
        """What it was ordered to give up on this stream: endpoint -> partition -> epoch."""
        self._orders: dict[str, dict[int, int]] = {}
        """Of that, what it was not sent yet."""
        self._fenced_through = 0
        """Up to which epoch it was ordered to give up everything on this stream."""
        self._sent_hold: bool | None = None
        """`is_starting` of the newest frame that reports that there is no configuration now; None: there was none."""

    def wait(self, *, is_starting: bool) -> None:
        """Reports that the controller is alive, and sends no configuration now."""
        if self._sent_hold is not is_starting:
            self._sent_hold = is_starting
            # Without a term: it orders nothing, and the term of an older copy proves nothing.
            self._pending.append(wire.AttachReplicaResponse(on_hold=wire.ControllerOnHold(is_starting=is_starting)))
            self.stream.wake()

    def configure(
        self, content: AnnouncedConfiguration, frame_of: Callable[[AnnouncedConfiguration], wire.AttachReplicaResponse]
    ) -> None:
        """Sends the replica its configuration, if it is new to it."""
        if self._configuration != content:
            self._configuration = content
            self._send(frame_of(content))

    def follow(
        self,
        routers: tuple[str, ...],
        controllers: tuple[str, ...],
        frame_of: Callable[[AnnouncedConfiguration], wire.AttachReplicaResponse],
    ) -> None:
        """Sends it again, where the routers or the controllers have changed."""
        if self._configuration is not None:
            content = self._configuration._replace(router_addresses=routers, controller_addresses=controllers)
            self.configure(content, frame_of)

    def drain(self, message: str) -> None:
        """Orders the replica to drain and end, once."""
        if not self._was_ordered_to_drain:
            self._was_ordered_to_drain = True
            self._send(wire.AttachReplicaResponse(drain=wire.DrainOrder(message=message)))

    def acknowledge(self, stamp: int) -> None:
        """Confirms a report, unless other frames wait: then the next one is confirmed."""
        if stamp and not self._pending:
            self._send(wire.AttachReplicaResponse(acknowledged=wire.ReportAcknowledged(stamp=stamp)))

    def revoke(self, endpoint: str, epochs: Mapping[int, int]) -> None:
        """Orders the replica to give up partitions (partition -> epoch that ends), each once.

        Orders that wait travel in groups. The replica reports partitions as they become empty.
        """
        known = self._revoked.setdefault(endpoint, {})
        if new := {number: epoch for number, epoch in epochs.items() if known.get(number) != epoch}:
            known.update(new)
            self._orders.setdefault(endpoint, {}).update(new)
            self.stream.wake()

    def ordered_of(self, endpoints: Mapping[str, Mapping[int, int]]) -> dict[str, dict[int, int]]:
        """Of these partitions (endpoint -> partition -> epoch), those that it was ordered to give up on this stream."""
        known: dict[str, dict[int, int]] = {}
        for name, epochs in endpoints.items():
            ordered = self._revoked.get(name, {})
            if answered := {number: epoch for number, epoch in epochs.items() if ordered.get(number) == epoch}:
                known[name] = answered
        return known

    def fence(self, through_epoch: int) -> None:
        """Orders the replica to give up all that it had at this epoch or older ones, once."""
        if through_epoch > self._fenced_through:
            self._fenced_through = through_epoch
            order = wire.RevokePartitions(through_epoch=through_epoch)
            self._send(wire.AttachReplicaResponse(revoke=order))

    def _send(self, frame: wire.AttachReplicaResponse) -> None:
        frame.term = self._term
        self._pending.append(frame)
        self.stream.wake()

    def _next_frame(self) -> wire.AttachReplicaResponse | None:
        if self._pending:
            return self._pending.popleft()
        order, count = dict[str, dict[int, int]](), 0
        while self._orders and count + len(next(iter(self._orders.values()))) <= PARTITIONS_AN_ORDER:
            endpoint = next(iter(self._orders))
            order[endpoint] = self._orders.pop(endpoint)
            count += len(order[endpoint])
        if not order:
            return None
        frame = revoke_to_wire(order)
        frame.term = self._term
        return frame


class ReplicaLinks:
    """All attached replicas."""

    def __init__(
        self, state: MeshState, store: Store, newer: NewerMembers, *, lease_s: float, launches: bool = False
    ) -> None:
        """Replicas are configured, and their reports acknowledged, only while `newer` lets this controller decide.

        `launches`: this controller starts replicas.
        """
        self.newer = newer
        self._launches = launches
        self._state = state
        self._store = store
        self._router_addresses: tuple[str, ...] = ()
        self._controller_addresses: tuple[str, ...] = ()
        self._frames = ConfigurationFrames(newer.version)
        self._links: dict[str, AttachedReplica] = {}
        self._ended: dict[str, str] = {}
        """Of replicas with a lease and without a stream: why their last one has ended."""
        self.ended_calls: dict[str, EndedCalls] = {}
        """By attached replica, as it reported last. Not observed state: it changes with each report."""
        self._leases = LeaseWatch(state.clock, lease_s=lease_s, on_silent=self._silent)
        newer.listen(self._introduce_all)

    def __len__(self) -> int:
        return len(self._links)

    @property
    def lease_s(self) -> float:
        """Silence after which a replica is suspect, seconds."""
        return self._leases.lease_s

    async def serve(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Runs one `AttachReplica`."""
        first = await read_request(context)
        if first is None:
            return
        hello = hello_from_wire(first, generation=self._store.generation)
        self.newer.look_at(f"replica/{hello.replica_id}", held_from_hello(first.hello))
        self._attach(hello)
        if older := self._links.get(hello.replica_id):
            older.stream.end(Failure(reason=Reason.REPLICA_GONE, message="the replica attached again, elsewhere"))
        self._links[hello.replica_id] = link = AttachedReplica(hello, context, self._store.term)
        self._ended.pop(hello.replica_id, None)
        self._leases.renew(hello.replica_id)
        self._introduce(link)
        try:
            await link.stream.run(lambda frame: self._heard(link, frame))
        finally:
            if self._links.get(hello.replica_id) is link:
                del self._links[hello.replica_id]
                if self._leases.is_heard(hello.replica_id):
                    self._ended[hello.replica_id] = link.stream.end_reason
                self.ended_calls.pop(hello.replica_id, None)

    def loads_of(self, replica_id: str) -> RecentReports[SampledLoad]:
        """What the attached incarnation of a replica has reported of its load; empty if there is none."""
        return link.loads if (link := self._links.get(replica_id)) is not None else RecentReports()

    def configure(self, backend: Backend) -> None:
        """Sends the backend's replicas their configuration, where it is new to them."""
        for replica in self._state.observed.replicas(backend.name):
            if link := self._links.get(replica.replica_id):
                self._configure(link, backend)

    def follow(self, *, routers: tuple[str, ...] | None = None, controllers: tuple[str, ...] | None = None) -> None:
        """Sends all replicas the addresses of the mesh's routers, or controllers, if they have changed."""
        known = self._router_addresses, self._controller_addresses
        if (
            new := (known[0] if routers is None else routers, known[1] if controllers is None else controllers)
        ) != known:
            self._router_addresses, self._controller_addresses = new
            for link in self._links.values():
                link.follow(*new, self._frames.of)

    def expect(self, replica_id: str) -> None:
        """The replica may attach: its lease begins now."""
        if replica_id not in self._links:
            self._leases.renew(replica_id)

    def fence(self, through_epoch: int) -> None:
        """Orders attached replicas to give up all that earlier generations gave them, unless they have."""
        if not self._state.observed.has_unfenced():
            return
        for replica_id, link in self._links.items():
            replica = self._state.observed.replica(replica_id)
            if replica is not None and not replica.is_fenced and replica.incarnation == link.hello.incarnation:
                link.fence(through_epoch)

    def drain(self, replica_id: str, message: str) -> None:
        """Orders a replica to drain and end, if it is attached."""
        if link := self._links.get(replica_id):
            link.drain(message)

    def dismiss(self, owner: Incarnation) -> None:
        """Ends the stream of an incarnation that counts as ended: it is refused when it attaches again."""
        link = self._links.get(owner.replica_id)
        if link is not None and link.hello.incarnation == owner.incarnation:
            link.stream.end(Failure(reason=Reason.REPLICA_GONE, message="this incarnation counts as ended"))

    def revoke(self, endpoint: str, ownership: PartitionOwnership) -> None:
        """Orders owners, as far as they are attached, to give up partitions of an endpoint."""
        for owner, epochs in ownership.leaving_by_owner().items():
            link = self._links.get(owner.replica_id)
            if link is not None and link.hello.incarnation == owner.incarnation:
                link.revoke(endpoint, epochs)

    def close(self) -> None:
        """The controller ends: replicas attach again when there is another one."""
        self._leases.close()
        for link in self._links.values():
            link.stream.end(Failure(reason=Reason.DRAINING, message="the controller is stopping"))

    def _introduce_all(self) -> None:
        for link in self._links.values():
            self._introduce(link)

    def _introduce(self, link: AttachedReplica) -> None:
        """Sends a replica its configuration, or that there is none now."""
        if not self.newer.decides:
            link.wait(is_starting=not self.newer)
            return
        # Of a backend that is not applied yet, too: replicas that are started elsewhere need not wait for that.
        backend = self._store.read().backends.get(link.hello.backend)
        self._configure(link, backend or Backend(name=link.hello.backend), is_known=backend is not None)

    def _attach(self, hello: Hello) -> None:
        """Raises what the replica is refused with."""
        known = self._state.observed.replica(hello.replica_id)
        for backend in (hello.backend, *([] if known is None else [known.backend])):
            if failure := backend_refusal(backend):
                raise to_exception(failure)
        if known is not None and known.incarnation != hello.incarnation and has_ended(known.process):
            self._state.replica_ended(known.owner, "its process has ended")
        owner = Incarnation(hello.replica_id, hello.incarnation)
        desired = self._store.read()
        order = order_of(desired.orders, owner)
        has_ended_before = desired.roster.has_departed(owner) or (order is not None and order.is_end)
        has_departed = has_ended_before and self._state.observed.incarnation(owner) is None
        is_heard = self._leases.is_heard(hello.replica_id)
        try:
            self._state.apply_to_replica(
                hello.replica_id,
                lambda observed, now: transitions.attached(
                    observed, hello, now=now, is_heard=is_heard, has_departed=has_departed
                ),
            )
        except AttachRefused as refusal:
            failure = Failure(reason=Reason.REPLICA_GONE, message=str(refusal), metadata={"field": "hello.incarnation"})
            raise to_exception(failure) from refusal
        except NamesakeLives as refusal:
            failure = Failure(reason=Reason.BAD_REQUEST, message=str(refusal), metadata={"field": "hello.replica_id"})
            raise to_exception(failure) from refusal
        if order is not None:
            self._state.apply_to_replica(hello.replica_id, lambda it, now: transitions.ordered(it, order, now=now))

    def _configure(self, link: AttachedReplica, backend: Backend, *, is_known: bool = True) -> None:
        if not self.newer.decides:
            return
        replica = self._state.observed.replica(link.hello.replica_id)
        content = AnnouncedConfiguration(
            *(backend, is_known, self._router_addresses, self._controller_addresses),
            num_replicas=self._number_of(backend),
            rank=None if replica is None else replica.rank,
        )
        link.configure(content, self._frames.of)

    def _number_of(self, backend: Backend) -> int:
        """How many replicas the backend should have; those that run, if no number is configured or chosen."""
        is_chosen = self._launches or backend.num_replicas is not None or backend.autoscale is not None
        observed = self._state.observed
        return wanted_replicas(backend, observed) if is_chosen else running_replicas(backend.name, observed)

    def _heard(self, link: AttachedReplica, frame: wire.AttachReplicaRequest) -> None:
        if self._links.get(link.hello.replica_id) is not link:
            return
        replica_id = link.hello.replica_id
        if frame.WhichOneof("frame") == "emptied":
            self._leases.renew(replica_id)
            self._emptied(link, frame.emptied)
            return
        report = report_from_wire(frame)
        self.ended_calls[replica_id] = ended_calls_from_wire(frame)
        if (load := load_of_report(frame)) is not None:
            link.loads.add(load, self._state.clock.now())
        self._state.apply_to_replica(
            replica_id,
            lambda observed, now: transitions.reported(observed, replica_id, link.hello.incarnation, report, now=now),
        )
        replica = self._state.observed.replica(replica_id)
        if replica is None or replica.gone:
            self._leases.end(replica_id)
        else:
            self._leases.renew(replica_id)
            if self.newer.decides and replica.incarnation == link.hello.incarnation:
                link.acknowledge(frame.report.stamp)

    def _emptied(self, link: AttachedReplica, frame: wire.PartitionsEmptied) -> None:
        owner = Incarnation(link.hello.replica_id, link.hello.incarnation)
        desired = self._store.read()
        emptied = link.ordered_of(emptied_from_wire(frame))
        known = {name: epochs for name, epochs in emptied.items() if name in desired.ownership}
        self._state.apply(
            handovers.emptied(self._state.observed, owner, known),
            *(Key(Concern.ENDPOINT, name) for name in known),
        )
        if frame.through_epoch:
            self._state.apply(
                handovers.fenced(self._state.observed, owner, frame.through_epoch, busy_from_wire(frame)),
                *(Key(Concern.ENDPOINT, name) for name in desired.endpoints),
            )

    def _silent(self, replica_id: str) -> None:
        why = self._ended.pop(replica_id, "")
        self._state.apply_to_replica(
            replica_id,
            lambda observed, now: transitions.fell_silent(observed, replica_id, why, now=now, lease_s=self.lease_s),
        )
