"""A naive model of a router: every call that was submitted, and every call that a replica holds."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from router_service.core.callers import Window
from router_service.core.calls import RouterCallOptions
from router_service.core.commands import (
    CancelRun,
    CloseLink,
    DeliverDone,
    DeliverFailure,
    DeliverResults,
    DeliverTargets,
    DeliverValues,
    Flush,
    OpenLink,
    ReportLoad,
    RouterCommand,
    TakeValues,
)
from router_service.core.events import CallsSubmitted, LinkLost, LinkOpened, RouterEvent, RunsRefused, TableReceived
from router_service.core.features.broadcasts import BroadcastRequested
from router_service.core.replicas.frames import OutgoingBatch
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.rosters import ReplicaKey, RosterVersion, TableRoster
from router_service.core.routing_table import BackendRoute, EndpointRoute, PartitionOwners, ReplicaRoute, RoutingTable
from router_service.core.runs import Caller
from router_service.core.scheduler import RouterScheduler
from slotmesh.calls.key_hash import PARTITIONS, partition_of
from slotmesh.calls.payload_block import block_of
from slotmesh.spec import model
from slotmesh.spec.model import Affinity, Prospect
from slotmesh.streams.chunks import joined
from tests.properties.router_model_parts import (
    BACKENDS,
    CALLERS,
    DARK,
    KEYED_WINDOW,
    KEYS,
    KEYS_OF,
    MAX_BATCH_SIZE,
    MAX_ONGOING,
    MAX_QUEUED,
    MAYBE,
    OF_KEYLESS,
    OUTLINES,
    POLICIES,
    QUEUE_TIME_S,
    ROOM,
    STALE,
    Call,
    Held,
)
from tests.support.erratic_balancer import erratic
from tests.support.keyed_batches import keyed_batch
from tests.support.shared_tables import sharing


class RouterModel:
    """What callers wait for, what each replica holds, and the scheduler between them."""

    def __init__(self, seed: int, balancer: str) -> None:
        plug_ins = erratic(seed, lambda: self.now, lambda: self.scheduler.topology)
        self.scheduler = RouterScheduler(random.Random(seed).random, plug_ins=plug_ins, prefix_blocks=4)
        self.balancer = balancer
        self.affinity = Affinity.NONE
        self.now = 0.0
        self.revision = 0
        self.next_id = 1
        self.lives = 0
        self.callers = [Caller(Window(calls=10**6, bytes=10**9)) for _ in range(CALLERS)]
        self.caller_of: dict[int, int] = {}
        self.pending: dict[int, Call] = {}
        self.outcomes: dict[int, str] = {}
        self.streaming: set[int] = set()
        self.opening = Call("", 0.0, idempotent=False)
        """What the calls of the newest broadcast have in common."""
        self.targets: dict[Caller, list[RoutedReplica]] = {}
        """The replicas of each broadcast. Its calls have ids of their own here, below 0 (`pinned_id`)."""
        self.executing: set[int] = set()
        """Calls of broadcasts that a replica has taken, and not refused."""
        self.silent: set[int] = set()
        """Calls that want no reply."""
        self.values: dict[int, int] = defaultdict(int)
        """Values that each call's caller has."""
        self.taken: dict[tuple[RoutedReplica, int], int] = defaultdict(int)
        """Values that nobody reads, of each run of each replica."""
        self.last_sent: dict[str, int] = defaultdict(int)
        self.held: dict[ReplicaKey, Held] = {}
        self.suspects: set[ReplicaKey] = set()
        """Those that the controller does not hear of."""
        backends = {"r-a": "b1", "r-b": "b2", "r-c": "b1", "r-d": "dark", "r-e": "b3", "r-f": "dim"}
        self.listed: dict[ReplicaKey, str] = {(name, "life"): backend for name, backend in backends.items()}
        self.to_flush: dict[RoutedReplica, None] = {}
        self.is_block_due = False
        self.lazy = False
        """Frames are cut by the rule `cut` only."""
        self.policy = POLICIES[1]
        self.shadows = {"dark": 0.5, "dim": 0.3}
        first = ("r-a", "life")
        self.owners: dict[int, tuple[ReplicaKey | None, int]] = {partition_of(key): (first, 1) for key in KEYS}
        self.exists = True
        self.prospects: dict[str, Prospect] = {}
        """What the controller says of backends without a ready replica; of the others nothing."""
        self.table()
        for key in self.listed:
            self.held[key].linked = True
            self.step(LinkOpened(self.held[key].replica, ROOM, outlines=OUTLINES))

    # -- the world -------------------------------------------------------------------------------------------------

    def table(self) -> None:
        """Pushes the table that follows from the model."""
        self.revision += 1
        owners: list[tuple[ReplicaKey | None, int]] = [(None, 0)] * PARTITIONS
        for number, owner in self.owners.items():
            owners[number] = owner
        routes = {
            name: EndpointRoute(name=name, weights=self.policy, shadows=self.shadows, owners=PartitionOwners.of(owners))
            for name in (["e"] if self.exists else []) + ["f"]
        }
        backends = {
            name: BackendRoute(
                settings=model.Backend(
                    name=name,
                    max_queued_calls=MAX_QUEUED,
                    max_queue_time_s=QUEUE_TIME_S,
                    balancer=self.balancer,
                    affinity=self.affinity,
                    max_wire_batch_size=MAX_BATCH_SIZE,
                ),
                replicas=[
                    ReplicaRoute(key=key, address="", max_ongoing=MAX_ONGOING, is_suspect=key in self.suspects)
                    for key, backend in self.listed.items()
                    if backend == name
                ],
                prospect=self.prospects.get(name, Prospect.UNKNOWN),
            )
            for name in (*BACKENDS, *DARK)
        }
        table = RoutingTable(
            generation="g",
            revision=self.revision,
            endpoints=routes,
            backends=backends,
            roster=TableRoster(RosterVersion("g", self.revision)),
        )
        self.step(TableReceived(sharing(table, self.scheduler.table)))

    def submit(self, who: int, endpoint: str, sizes: list[tuple[int, int]], kind: str, **said: Any) -> None:
        """A frame of batches. `sizes`: calls of each, and which key of the endpoint they have; 0: none."""
        batches = []
        for count, number in sizes:
            key = KEYS_OF[endpoint][number - 1] if number else ""
            options = RouterCallOptions(
                ordering_key=key,
                partition=partition_of(key) if key else -1,
                streaming=kind == "streaming",
                no_reply=kind == "silent",
                wire=repr((said["timeout_s"], said["idempotent"], kind, said["model_id"])).encode(),
                **{**said, **(OF_KEYLESS if key else {})},
            )
            ids = range(self.next_id, self.next_id + count)
            self.next_id += count
            if kind != "plain":
                (self.streaming if kind == "streaming" else self.silent).update(ids)
            for call_id in ids:
                deadline = self.now + options.timeout_s
                self.pending[call_id] = Call(key, deadline, options.idempotent, endpoint, options.tenant)
                self.caller_of[call_id] = who
            batches.append((options, ids, self.payloads("%070d", ids)))
        self.step(CallsSubmitted(self.callers[who], endpoint, batches))

    def broadcast(self, endpoint: str, backend: str, timeout_s: float, tenant: str) -> None:
        """One call for each replica, by a caller of its own."""
        number, caller = len(self.callers), Caller(Window(calls=10**6, bytes=10**9))
        self.callers.append(caller)
        wire = repr(("broadcast", timeout_s)).encode()
        options = RouterCallOptions(timeout_s=timeout_s, tenant=tenant, idempotent=True, wire=wire)
        self.opening = Call("", self.now + timeout_s, idempotent=False, endpoint=endpoint, tenant=tenant)
        self.step(BroadcastRequested(caller, endpoint, options, b"-%d" % number, backend))
        is_refused = (endpoint == "e" and not self.exists) or backend not in {"", *(self.policy or ())}
        assert is_refused is (caller not in self.targets)
        if not is_refused:
            names = {backend} if backend else {*(self.policy or ())}
            there = {key for key, name in self.listed.items() if name in names and not self.held[key].replica.draining}
            assert {each.key for each in self.targets[caller]} == there

    def pinned_id(self, number: int, at: int) -> int:
        """The id in this model of a call, from 1, of the broadcast of this caller."""
        return -(1000 * number + at)

    def submit_many_keys(
        self, who: int, endpoint: str, keys: list[str], timeout_s: float, tenant: str, *, idempotent: bool
    ) -> None:
        """One batch with a column of keys."""
        wire = repr((timeout_s, idempotent)).encode()
        options = RouterCallOptions(timeout_s=timeout_s, idempotent=idempotent, tenant=tenant, wire=wire)
        ids = range(self.next_id, self.next_id + len(keys))
        self.next_id += len(keys)
        for call_id, key in zip(ids, keys, strict=True):
            self.pending[call_id] = Call(key, self.now + timeout_s, idempotent, endpoint, tenant)
            self.caller_of[call_id] = who
        batch = keyed_batch(options, ids, self.payloads("%070d", ids), keys)
        self.step(CallsSubmitted(self.callers[who], endpoint, [batch]))

    def payloads(self, words: str, ids: Sequence[int]) -> Sequence[bytes]:
        """One for each call, by its id: of every other batch in a block."""
        payloads = [(words % call_id).encode() for call_id in ids]
        self.is_block_due = not self.is_block_due
        return block_of(payloads) if self.is_block_due else payloads

    def step(self, event: RouterEvent) -> None:
        """Something happens, now; commands are carried out."""
        self.do(self.scheduler.step(event, self.now))

    def do(self, commands: list[RouterCommand]) -> None:
        for command in commands:
            if self.is_of_broadcast(command):
                continue
            match command:
                case ReportLoad():
                    pass  # what it says is read, and decides nothing here
                case OpenLink(replica):
                    self.held[replica.key] = Held(replica)
                case CloseLink(replica):
                    assert not self.held[replica.key].runs, "disconnected from a replica that owes answers"
                    del self.held[replica.key]
                    self.to_flush.pop(replica, None)
                case Flush(replica):
                    self.to_flush[replica] = None
                case CancelRun(sent, lo, count):
                    assert not any(lo <= at < lo + count for at, _ in sent.open_parts())
                case DeliverResults(ids=ids, payloads=payloads):
                    assert [b"result %d" % call_id for call_id in ids] == list(payloads), "a reply at another call"
                    self.settle(command.caller, ids, "result")
                case DeliverFailure(ids=ids, failure=failure):
                    assert self.silent.isdisjoint(ids), "a failure of a call that wants no reply"
                    self.settle(command.caller, ids, failure.reason.value)
                case DeliverValues(ids=ids, payloads=payloads, run_ids=run_ids):
                    assert len(ids) == len(payloads) == len(run_ids)
                    for call_id, payload in zip(ids, payloads, strict=True):
                        assert call_id in self.pending, "a value of a call that has ended"
                        assert call_id in self.streaming
                        assert self.callers[self.caller_of[call_id]] is command.caller, "a value at another caller"
                        assert payload == b"value %d of %d" % (self.values[call_id], call_id), "lost, or come twice"
                        self.values[call_id] += 1
                case TakeValues(replica, run_id, count):
                    self.taken[replica, run_id] += count
                case DeliverDone(ids=ids):
                    assert (self.streaming | self.silent).issuperset(ids), "no result of a call that wants one"
                    self.settle(command.caller, ids, "done")
                case _:
                    raise AssertionError(f"no caller has a session or wants a slot, and no link failed: {command}")
        if not self.lazy:
            self.cut_all()

    def is_of_broadcast(self, command: RouterCommand) -> bool:
        """Notes the replicas of a broadcast; outcomes of its calls get their ids in this model."""
        if isinstance(command, DeliverTargets):
            number = self.callers.index(command.caller)
            self.targets[command.caller] = list(command.targets)
            for at in range(1, len(command.targets) + 1):
                self.pending[self.pinned_id(number, at)] = replace(self.opening)
                self.caller_of[self.pinned_id(number, at)] = number
            return True
        if isinstance(command, DeliverResults | DeliverFailure) and command.caller in self.targets:
            number = self.callers.index(command.caller)
            command.ids = [self.pinned_id(number, each) for each in command.ids]
        return False

    def cut_all(self) -> None:
        while self.to_flush:
            self.cut_one(next(iter(self.to_flush)), 100)

    def cut_one(self, replica: RoutedReplica, max_calls: int) -> None:
        self.to_flush.pop(replica, None)
        refused: list[int] = []
        for batch in self.scheduler.cut_frame(replica, max_calls, 10**6):
            refused += self.sent(self.held[replica.key], batch)
        if replica.outbox:
            self.to_flush[replica] = None
        if refused:
            self.step(RunsRefused(replica, refused, STALE, ROOM))

    def sent(self, held: Held, batch: OutgoingBatch) -> list[int]:
        """Takes a batch; returns the run ids that the replica does not take."""
        assert held.linked, "sent to a replica that is not linked"
        assert 0 < len(batch.payloads) <= MAX_BATCH_SIZE
        refused: list[int] = []
        for at, payload in enumerate(batch.payloads):
            run_id = batch.first_run_id + at
            assert run_id not in held.runs
            call_id = int(joined(payload))
            key, partition, owner_epoch = batch.lane(at)
            if held.is_dark:
                assert (key, partition) == ("", -1), "a copy that travels with a key"
                held.runs[run_id] = (call_id, "", 0)
                continue
            if call_id < 0:
                call_id = self.pinned_id(-call_id, self.targets[self.callers[-call_id]].index(held.replica) + 1)
                assert call_id not in self.executing, "a call of a broadcast was sent twice"
                self.executing.add(call_id)
            call = self.pending[call_id]
            assert batch.endpoint == call.endpoint, "a call travels as one of another endpoint"
            assert key == call.key, "a call travels under another key"
            assert self.now < call.deadline, "sent after its deadline"
            if key:
                assert call_id > self.last_sent[key], "a call overtook another one of its key"
                others = [run for other in self.held.values() if other is not held for run in other.runs.values()]
                assert all(k != key for _, k, _ in others), "sent to a new owner before the old one answered"
                owner, epoch = self.owners[partition]
                assert owner_epoch <= epoch
                assert owner_epoch < epoch or held.replica.key == owner
                if owner_epoch <= held.fences.get(partition, -1):
                    refused.append(run_id)
                    continue
                self.last_sent[key] = call_id
            held.runs[run_id] = (call_id, key, owner_epoch)
        assert held.unkeyed() <= MAX_ONGOING
        assert len(held.runs) - held.unkeyed() + len(refused) <= KEYED_WINDOW
        return refused

    def settle(self, caller: Caller, ids: object, outcome: str) -> None:
        for call_id in ids:  # type: ignore[attr-defined]  # a sequence of ids
            assert call_id not in self.outcomes, f"two outcomes: {self.outcomes[call_id]} and {outcome}"
            assert self.callers[self.caller_of[call_id]] is caller, "an outcome at another caller"
            assert outcome != "BACKEND_UNAVAILABLE" or self.is_unavailable(), "something can serve, or is on its way"
            del self.pending[call_id]
            self.outcomes[call_id] = outcome

    def can_serve(self, backend: str) -> bool:
        replicas = [held for key, held in self.held.items() if self.listed.get(key) == backend]
        return any(held.linked and not held.replica.draining for held in replicas)

    def is_coming(self, backend: str) -> bool:
        replicas = [held for key, held in self.held.items() if self.listed.get(key) == backend]
        prospect = self.prospects.get(backend, Prospect.UNKNOWN)
        return prospect in MAYBE or any(not held.replica.draining for held in replicas)

    def is_unavailable(self) -> bool:
        names = self.policy or ()
        return bool(names) and not any(self.can_serve(name) or self.is_coming(name) for name in names)

    def come_again(self, runs: list[tuple[int, str, int]]) -> None:
        """Calls that a replica had may be sent again."""
        for call_id, key, _ in runs:
            if key:
                self.last_sent[key] = min(self.last_sent[key], call_id - 1)

    def unlinked(self) -> list[Held]:
        return [held for held in self.held.values() if not held.linked and held.replica.key in self.listed]

    def link_up(self, held: Held) -> None:
        held.linked = True
        self.step(LinkOpened(held.replica, ROOM, outlines=OUTLINES))

    def cut_off(self, held: Held) -> None:
        held.linked = False
        read = {call_id for call_id, _, _ in held.runs.values() if self.values[call_id] and not held.is_dark}
        self.come_again(list(held.runs.values()))
        held.runs.clear()
        held.yielded.clear()
        self.to_flush.pop(held.replica, None)
        self.step(LinkLost(held.replica, "cut"))
        assert not held.replica.outbox
        assert self.pending.keys().isdisjoint(read), "executed again, though its caller has values"

    def busy(self) -> list[Held]:
        return [held for held in self.held.values() if held.runs]
