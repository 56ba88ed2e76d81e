"""One run: nodes, network, faults, and what is told of them."""

from __future__ import annotations

import hashlib
import itertools
import logging
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final

from controller_service.app import open_controller
from controller_service.config import ControllerSettings
from controller_service.shell.launchers.protocol import Launcher
from replica_service.app import ReplicaApp
from replica_service.config import ReplicaSettings
from router_service.app import serve as serve_router
from router_service.config import RouterSettings
from simulation.mesh.clients import run_client
from simulation.mesh.environment import Surroundings, dispose, simulated
from simulation.mesh.handlers import calls_in, make_handler
from simulation.mesh.history import Recorder
from simulation.mesh.judge import judge
from simulation.mesh.kept_state import KeptState
from simulation.mesh.logs import logs_in_trace
from simulation.mesh.loop import NodeLoop
from simulation.mesh.moments import Moments
from simulation.mesh.network import Network
from simulation.mesh.node import Main, Node
from simulation.mesh.scenario import BACKEND, ENDPOINT, Blow, ClientPlan, Fault, ReplicaPlan, RouterPlan, Scenario
from simulation.mesh.timeline import Stuck, Timeline
from slotmesh.spec import model
from tests.history.model import Violation

PORT: Final = 7000
DRAIN_S: Final = 60.0
"""What is unanswered so long after the last call and the last fault hangs: a call may wait for 30 s in the queue of a
router, and the one that its key gets then, for 20 s."""
GRACE: Final = timedelta(seconds=2)
_SUMMED_BYTES: Final = 16_384
"""Of larger messages, which are pieces of payloads, the digest has the length only."""
_MESH: Final = model.Mesh(
    backends=(model.Backend(name=BACKEND, graceful_timeout_s=2.0),),
    endpoints=(model.Endpoint(name=ENDPOINT, traffic=model.TrafficPolicy(weights={BACKEND: 1.0})),),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of a run."""

    scenario: Scenario
    violations: list[Violation]
    digest: str
    """Of everything that was sent and noted: the same for the same seed."""
    trace: list[str]
    calls: int
    executions: int
    seconds: float
    """Of virtual time."""
    steps: int
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def invariants(self) -> set[str]:
        return {each.invariant for each in self.violations}


def run(scenario: Scenario, *, is_traced: bool = False) -> Result:
    """Runs a scenario, in this process."""
    world = World(scenario, is_traced=is_traced)
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL if not is_traced else logging.NOTSET)
    try:
        with simulated(world.surroundings):
            try:
                return world.run()
            finally:
                dispose(world.loops)
    finally:
        logging.disable(disabled)


class World:
    """Everything that there is."""

    def __init__(self, scenario: Scenario, *, is_traced: bool) -> None:
        self.scenario = scenario
        self.timeline = Timeline(scenario.seed)
        self.network = Network(self.timeline)
        self.surroundings = Surroundings(self.network)
        self.history = Recorder(lambda: self.timeline.now)
        self.trace: list[str] = []
        self._is_traced = is_traced
        self._digest = hashlib.blake2b(digest_size=12)
        self._defects: list[Violation] = []
        self._pids = itertools.count(100)
        self._sequences: dict[tuple[str, str], Iterator[int]] = {}
        self.nodes: dict[str, Node] = {}
        """The newest process of each name."""
        self.loops: list[NodeLoop] = []
        """Of all processes that there ever were."""
        self._kept = KeptState()
        self._mains: dict[str, Main] = {}
        self._addresses: dict[str, str] = {}
        self._ends_at = scenario.seconds
        self._left = {client.name for client in scenario.clients} or {""}
        self._moments = Moments(self.network, self._strike)
        self.network.on_message = self._saw

    # -- for nodes -------------------------------------------------------------------------------------------------

    def next_pid(self) -> int:
        return next(self._pids)

    def sequence_of(self, client: str, key: str) -> Iterator[int]:
        """Numbers of a client's calls of a key, whichever of its work makes them."""
        return self._sequences.setdefault((client, key), itertools.count())

    def note(self, who: str, what: str) -> None:
        """Something has happened: a line of the trace, which counts in the digest."""
        self._digest.update(f"{self.timeline.now:.9f}{who}{what}".encode())
        self.tell(who, what)

    def tell(self, who: str, what: str) -> None:
        """A line of the trace, if there is one."""
        if self._is_traced:
            self.trace.append(f"{self.timeline.now:11.6f}  {who:<12} {what}")

    def defect(self, text: str, error: BaseException) -> None:
        """A process has failed of itself."""
        where = "".join(traceback.format_exception(error)[-3:]) if self._is_traced else ""
        self._defects.append(Violation(invariant="defect", text=f"{text} {where}".strip()))

    def calm_at(self) -> float:
        """When the last fault is over, as far as that is known."""
        return self._ends_at

    def is_whole(self) -> bool:
        """Whether there is a controller, a router that all clients know, and each replica that there ever was.

        What a replica owns that is gone for good, and did not say so, nobody else may have: its keys wait.
        """
        scenario = self.scenario
        living = {name for name, node in self.nodes.items() if node.is_alive}
        known = set.intersection(*(set(client.routers) for client in scenario.clients))
        replicas = {it.name for it in scenario.replicas}
        is_unique = not any(it.twin_of for it in scenario.replicas)
        is_there = "controller" in living and bool(known & living) and replicas <= living
        return is_there and is_unique and self.timeline.now >= self._ends_at

    # -- a run -----------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        scenario = self.scenario
        with logs_in_trace(self.tell if self._is_traced else None):
            self._add("controller", self._control, 0.0)
            for router in scenario.routers:
                self._add(router.name, self._route(router), router.begins_s)
            for replica in scenario.replicas:
                self._add(replica.name, self._host(replica), replica.begins_s)
            for client in scenario.clients:
                self._add(client.name, self._call(client), client.begins_s)
            for fault in scenario.faults:
                self._plan(fault)
            self._drive()
        self.history.is_over = True
        violations = [*self._defects, *judge(self.history, is_calm=not scenario.faults)]
        for each in violations:
            self._digest.update(str(each).encode())
        reasons: dict[str, int] = {}
        for outcome in self.history.outcomes:
            reasons[str(outcome)] = reasons.get(str(outcome), 0) + 1
        return Result(
            scenario=scenario,
            violations=violations,
            digest=self._digest.hexdigest(),
            trace=self.trace,
            calls=len(self.history.calls),
            executions=len(self.history.executions),
            seconds=self.timeline.now,
            steps=self.timeline.steps,
            reasons=reasons,
        )

    def _drive(self) -> None:
        try:
            self.timeline.run(self.scenario.seconds)
            while self.timeline.now < self._ends_at + DRAIN_S and not self.timeline.is_over:
                self.timeline.run(self._ends_at + DRAIN_S)
        except Stuck as stuck:
            self._defects.append(Violation(invariant="stuck", text=str(stuck)))

    def ended(self, node: Node) -> None:
        """A process is no more. The run is over when all clients have ended."""
        self._left.discard(node.name)
        if not self._left:
            self.timeline.is_over = True

    # -- processes -------------------------------------------------------------------------------------------------

    def _add(self, name: str, main: Main, at_s: float) -> None:
        self._mains[name] = main
        self._addresses[name] = f"127.0.0.{10 + len(self._addresses)}"
        self.timeline.at(at_s, lambda _: self._start(name))

    def _start(self, name: str) -> None:
        node = self.nodes.get(name)
        if node is None or not node.is_alive:
            node = self.nodes[name] = Node(self, name, self._addresses[name], self._mains[name])
            self.loops.append(node.loop)
            self.note(name, f"started, pid {node.pid}")

    @property
    def _controller(self) -> str:
        return f"{self._addresses['controller']}:{PORT}"

    async def _control(self, node: Node) -> None:
        settings = ControllerSettings(host=node.address, port=PORT, metrics_port=-1, launcher="external")
        open_store, stop = self._kept.open if self.scenario.remembers else None, node.stop.set
        launcher = Launcher()
        async with open_controller(settings, lambda *_: launcher, on_failure=stop, open_store=open_store) as controller:
            await controller.configurator.apply_mesh(_MESH, prune=False)
            controller.server.set_serving()
            await node.stop.wait()

    def _route(self, router: RouterPlan) -> Main:
        async def main(node: Node) -> None:
            settings = RouterSettings(
                host=node.address,
                port=PORT,
                metrics_port=-1,
                controller=self._controller,
                router_id=router.name,
                graceful_timeout=GRACE,
                subset_size=int(self.scenario.has_subsets),
            )
            async with serve_router(settings, on_failure=node.stop.set):
                await node.stop.wait()

        return main

    def _host(self, replica: ReplicaPlan) -> Main:
        async def main(node: Node) -> None:
            settings = ReplicaSettings(
                handler="simulation:Simulated",
                host=node.address,
                port=PORT,
                metrics_port=-1,
                controller=self._controller,
                backend=BACKEND,
                replica_id=replica.twin_of or replica.name,
                graceful_timeout=GRACE,
            )
            app = ReplicaApp(settings, load=lambda _name: make_handler(node, replica.max_ongoing))
            app.replica.stop_asked = node.stop
            await app.run()

        return main

    def _call(self, client: ClientPlan) -> Main:
        async def main(node: Node) -> None:
            addresses = [f"{self._addresses[name]}:{PORT}" for name in client.routers if name in self._addresses]
            await run_client(node, client, addresses, self.scenario.seconds)

        return main

    # -- faults ----------------------------------------------------------------------------------------------------

    def _plan(self, fault: Fault) -> None:
        if fault.moment is None:
            self.timeline.at(fault.at_s, lambda _: self._strike(fault))
        else:
            moment = fault.moment
            self.timeline.at(fault.at_s, lambda _: self._moments.wait_for(moment, fault))

    def _strike(self, fault: Fault) -> None:
        if self.timeline.now > self.scenario.seconds:
            return
        self.note("fault", str(fault))
        node, network, who, other = self.nodes.get(fault.who), self.network, fault.who, fault.other
        over: Callable[[], object] = lambda: None  # noqa: E731 - most have something to undo
        match fault.blow:
            case Blow.KILL | Blow.TERMINATE | Blow.PUT_BACK if node is not None:
                (node.terminate if fault.blow is Blow.TERMINATE else node.kill)()
                if fault.blow is Blow.PUT_BACK:
                    self._kept.put_back(int(fault.amount))
                if fault.for_s >= 0:
                    self._start_again(who, fault.for_s)
                return
            case Blow.PAUSE if node is not None:
                node.pause()
                over = node.resume
            case Blow.STALL:
                network.stall(who, other)
                over = partial(network.heal, who, other)
            case Blow.CUT:
                network.stall(who, other)
                network.stall(other, who)
                over = partial(network.heal_both, who, other)
            case Blow.RESET:
                network.reset(who, other)
            case Blow.SLOW:
                network.slow(who, other, fault.amount)
                over = partial(network.slow, who, other, 0.0)
            case Blow.JUMP:
                offsets = self.surroundings.wall_offset_s
                offsets[who] = offsets.get(who, 0.0) + fault.amount
            case _:
                return
        ends_at = self.timeline.now + fault.for_s
        self._ends_at = max(self._ends_at, ends_at)
        self.timeline.at(ends_at, lambda _: self._end(fault, over))

    def _end(self, fault: Fault, over: Callable[[], object]) -> None:
        self.note("fault", f"over: {fault.blow.value} {fault.who} {fault.other}")
        over()

    def _start_again(self, name: str, after_s: float) -> None:
        """Once it has ended, which takes a while where it was asked to."""

        def look(_: Any) -> None:
            node = self.nodes.get(name)
            if node is not None and node.is_alive:
                self.timeline.at(self.timeline.now + 0.05, look)
            else:
                self._start(name)

        self._ends_at = max(self._ends_at, self.timeline.now + after_s)
        self.timeline.at(self.timeline.now + after_s, look)

    # -- what is told ----------------------------------------------------------------------------------------------

    def _saw(self, source: str, target: str, rpc: str, message: bytes) -> None:
        # Not the bytes as they are: protobuf writes the entries of a map in any order.
        size = len(message)
        words = f"{self.timeline.now:.9f}{source}{target}{rpc}{size}{sum(message) if size <= _SUMMED_BYTES else ''}"
        self._digest.update(words.encode())
        if self._is_traced:
            words = self._moments.words(source, rpc, message)
            if words:
                self.tell(source, f"-> {target:<10} {words}")
        if rpc.endswith("/Execute") and self.history.stop_lanes and target.startswith("replica"):
            for tag, time_left_s in calls_in(message):
                self.history.came_to_replica(tag, time_left_s)
        self._moments.saw(source, target, rpc, message)
