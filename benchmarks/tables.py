"""What a change costs in a mesh of 10,000 replicas, and how much memory the table takes at a router.

A change costs the controller's processor time from when it is observed until its bytes for a router are there.

The controller's reconcile loop, board and store run in this process, with replicas that are only told of; the router's
part takes each delta, as it would from the stream. The store keeps its state in memory or in a file.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import findings
from benchmarks.findings import Finding
from benchmarks.progress import show
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.event_log import Notice
from controller_service.core.observed import routers, transitions
from controller_service.core.observed.member_messages import Hello, ObservedReport
from controller_service.core.observed.state import ObservedRouter, ReplicaState
from controller_service.core.reconciling.endpoints import TABLE_WITHIN_S
from controller_service.shell.code.snapshot_keeper import CodeSnapshots
from controller_service.shell.events import EventFeed
from controller_service.shell.launchers.protocol import Launcher
from controller_service.shell.leadership import NewerMembers
from controller_service.shell.loops.launching import Launching
from controller_service.shell.loops.reconcile_loop import ReconcileLoop
from controller_service.shell.members.replica_links import ReplicaLinks
from controller_service.shell.members.tables import TableBoard, TableFeed
from controller_service.shell.mesh_state import Concern, Key, MeshState, WorkQueue
from controller_service.store.protocol import MemoryStore, Store
from controller_service.store.sqlite.store_thread import SqliteStore
from router_service import convert
from router_service.core.routing_table import RoutingTable, follow_delta
from slotmesh.internal.v1 import membership_service_pb2 as wire
from slotmesh.runtime.clock import MonotonicClock
from slotmesh.runtime.tasks import Supervisor
from slotmesh.spec.model import Backend, Endpoint, TrafficPolicy

BACKENDS: Final = 100
REPLICAS: Final = 100
"""Of each backend."""
ENDPOINTS: Final = 50
MOST_CPU_S: Final = 0.1
MOST_TABLE_BYTES: Final = 20e6
_GENERATION: Final = "0" * 32
_QUIET_S: Final = 1.3
"""No table for so long: what a change has led to is over. Partitions leave live owners once a second at most."""


class _QuietState(MeshState):
    """Notices of 10,000 replicas are not what is measured."""

    def publish(self, notice: Notice) -> None:
        """Nobody reads them."""


class TableDrive:
    """A controller without members, and the table of one router."""

    def __init__(self, store: Store) -> None:
        self._queue = WorkQueue[Key]()
        self._state = _QuietState(MonotonicClock(), self._queue, EventFeed("benchmark"))
        self.board = TableBoard()
        self._feed = TableFeed(self.board)
        links = ReplicaLinks(self._state, store, NewerMembers(store, self._state), lease_s=3_600.0)
        snapshots = CodeSnapshots(Path, max_bytes=1, max_files=1)
        launching = Launching(self._state, links, Launcher(), str, snapshots)
        self.loop = ReconcileLoop(
            store=store, state=self._state, queue=self._queue, board=self.board, links=links, launching=launching
        )
        self._posted = asyncio.Event()
        self.board.listen(self._posted.set)
        self.table = RoutingTable()
        self.router_s: list[float] = []
        """Processor time that the router needed for each delta."""
        self.delta_bytes: list[int] = []

    def begin(self) -> float:
        """All replicas attach, one after another; returns the seconds of processor time."""
        started = time.process_time()
        for backend in range(BACKENDS):
            for number in range(REPLICAS):
                self.join(backend, number)
        elapsed_s = time.process_time() - started
        router = ObservedRouter(router_id="r", address="10.9.9.9:7000", started_at=0.0)
        self._state.apply(routers.attached(self._state.observed, router), Key(Concern.TABLE))
        return elapsed_s

    async def settle(self) -> None:
        """Until there is nothing new."""
        is_quiet = False
        while not is_quiet:
            self._posted.clear()
            try:
                async with asyncio.timeout(_QUIET_S):
                    await self._posted.wait()
            except TimeoutError:
                is_quiet = True
            self._take(frames_of(self._feed))

    async def cost(self, change: Callable[[], None]) -> float:
        """Seconds of the controller's processor time from a change to the bytes that a router gets."""
        self._posted.clear()
        started = time.process_time()
        change()
        await self._posted.wait()
        frames = frames_of(self._feed)
        elapsed_s = time.process_time() - started
        self._take(frames)
        self.delta_bytes.append(sum(map(len, frames)))
        return elapsed_s

    def join(self, backend: int, number: int) -> None:
        replica_id = f"backend-{backend}-{number:06x}"
        hello = Hello(replica_id=replica_id, incarnation=f"{number:032x}", backend=f"backend-{backend}")
        address = f"10.{backend}.{number // 256 % 256}.{number % 256}:7000"
        report = ObservedReport(state=ReplicaState.READY, address=address, max_ongoing=8)
        state = self._state
        state.apply_to_replica(replica_id, lambda it, now: transitions.attached(it, hello, now=now))
        state.apply_to_replica(
            replica_id, lambda it, now: transitions.reported(it, replica_id, hello.incarnation, report, now=now)
        )

    def fall_silent(self, backend: int, number: int) -> None:
        replica_id = f"backend-{backend}-{number:06x}"
        self._state.apply_to_replica(replica_id, lambda it, now: transitions.fell_silent(it, replica_id, now=now))

    def end(self, backend: int, number: int) -> None:
        if (replica := self._state.observed.replica(f"backend-{backend}-{number:06x}")) is not None:
            self._state.replica_ended(replica.owner, "the benchmark ends it")

    def _take(self, frames: Sequence[bytes]) -> None:
        started = time.process_time()
        self.table, is_delta = followed(self.table, frames)
        if is_delta:
            self.router_s.append(time.process_time() - started)


def frames_of(feed: TableFeed) -> list[bytes]:
    """What is to be sent now."""
    frames: list[bytes] = []
    while (frame := feed.next_frame()) is not None:
        frames.append(frame.SerializeToString())
    return frames


def followed(table: RoutingTable, frames: Sequence[bytes]) -> tuple[RoutingTable, bool]:
    """The router's table after these frames, and whether they are a delta."""
    parts = [wire.AttachRouterResponse.FromString(each).table_part for each in frames]
    if not parts:
        return table, False
    if parts[0].HasField("delta"):
        delta = convert.DeltaAssembly(parts[0].delta, table)
        for part in parts:
            delta.add(part.delta)
        return follow_delta(table, delta.finish()), True
    whole = convert.TableAssembly(parts[0].table, table)
    for part in parts:
        whole.add(part.table)
    return whole.finish(), False


async def measure(*, rounds: int) -> list[Finding]:
    """`rounds` of each kind of change, in a store in memory and in a file."""
    found: list[Finding] = []
    with tempfile.TemporaryDirectory() as directory:
        for place, path in (("in memory", None), ("in a file", Path(directory) / "state")):
            async with _driven(path) as drive:
                found += await _changes(drive, place, rounds)
                if path is None:
                    found += _memory(drive)
    show("")
    return found


async def _changes(drive: TableDrive, place: str, rounds: int) -> list[Finding]:
    show(f"tables: {BACKENDS * REPLICAS:,} replicas attach, state {place}")
    attached_s = drive.begin()
    await drive.settle()
    found: list[Finding] = []
    name = place.rsplit(maxsplit=1)[-1]
    kinds = {"silent": ("falls silent", drive.fall_silent), "joins": ("joins", drive.join), "ends": ("ends", drive.end)}
    for kind, (words, change) in kinds.items():
        costs: list[float] = []
        for number in range(rounds):
            show(f"tables: a replica {words}, {number + 1} of {rounds}, state {place}")
            await drive.settle()
            at = number + (REPLICAS if kind == "joins" else REPLICAS // 2 if kind == "ends" else 0)
            costs.append(await drive.cost(partial(change, 0, at)))
        title = f"a replica {words}, state {place}: controller's CPU"
        cost_s = statistics.median(costs)
        found.append(findings.at_most(f"tables_{kind}_{name}", title, cost_s, MOST_CPU_S, findings.milliseconds))
    if name == "memory":
        found += [
            findings.figure(
                "tables_attach", f"{BACKENDS * REPLICAS:,} replicas attach", attached_s, findings.milliseconds
            ),
            findings.figure("tables_delta", "a delta, largest", max(drive.delta_bytes), findings.kilobytes),
            findings.figure(
                "tables_router", "the table that follows, at the router", max(drive.router_s), findings.milliseconds
            ),
        ]
    return found


def _memory(drive: TableDrive) -> list[Finding]:
    whole = frames_of(TableFeed(drive.board))
    gc.collect()
    tracemalloc.start()
    try:
        table, _ = followed(RoutingTable(), whole)
        gc.collect()
        table_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    if table != drive.table:
        raise AssertionError("the table after deltas is another one than the whole")
    return [
        findings.figure("tables_whole", "the whole table on the wire", sum(map(len, whole)), findings.kilobytes),
        findings.at_most("tables_memory", "the router's table", table_bytes, MOST_TABLE_BYTES, findings.megabytes),
    ]


@asynccontextmanager
async def _driven(path: Path | None) -> AsyncIterator[TableDrive]:
    first = Desired(epoch_floor=1)
    store: Store = (
        MemoryStore(generation=_GENERATION, epoch_floor=1)
        if path is None
        else await SqliteStore.open(path, lambda: (_GENERATION, first))
    )
    drive = TableDrive(store)
    try:
        await store.commit(_mesh(), expected_revision=store.read().revision)
        async with Supervisor() as tasks:
            await asyncio.sleep(TABLE_WITHIN_S)  # in the first seconds it waits for tables of earlier generations
            tasks.start(drive.loop.watch_store(), name="watch-store")
            tasks.start(drive.loop.run(), name="reconcile")
            yield drive
    finally:
        await store.close()


def _mesh() -> ChangeSet:
    """Each endpoint divides its calls between two backends."""
    return ChangeSet(
        put_backends=tuple(Backend(name=f"backend-{number}", num_replicas=REPLICAS) for number in range(BACKENDS)),
        put_endpoints=tuple(
            Endpoint(
                name=f"endpoint-{number}",
                traffic=TrafficPolicy(weights={f"backend-{2 * number}": 0.5, f"backend-{2 * number + 1}": 0.5}),
            )
            for number in range(ENDPOINTS)
        ),
    )
