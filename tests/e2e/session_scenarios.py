"""What is broken while the workload runs, and what has to hold: the same for the short tests and for the long soak.

Each scenario is a function that breaks things for so many seconds, and a `Scenario` that says what calls may come to.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, cycle
from pathlib import Path
from typing import Final

from tests.e2e.chaos import Chaos
from tests.e2e.rolling_restart import restart_replicas
from tests.e2e.session_workload import (
    EASY_PACE_S,
    LOAD,
    PACE_S,
    PATIENCE_S,
    Stall,
    Workload,
    is_patient,
    running_workload,
)
from tests.history.checker import assert_holds, assert_results
from tests.history.log import HistoryLog, executions_file, read_history
from tests.history.model import Call, Death, Fault, History
from tests.history.summary import silences, summary
from tests.support.faults import FaultyMesh, faulty_mesh
from tests.support.recorder import VARIABLE
from tests.support.tcp_proxy import BOTH, Direction, TcpProxy

HANDLER: Final = "tests.e2e.session_handlers:Ledger"
ENDPOINT: Final = "Ledger"
REPLICAS: Final = 3
RESTARTED: Final = 3
"""Replicas that are restarted one after the other."""
KILL_EVERY_S: Final = 2.0
FAULT_S: Final = 6.0
"""How long one process or link stands still: calls outlast it, and no replica is replaced for it."""
PATIENCE: Final = 4.0
"""Of tests, beside which anything may run. A soak measures how busy the machine is."""


@dataclass(frozen=True, slots=True)
class Running:
    """A mesh under load."""

    mesh: FaultyMesh
    workload: Workload
    log: HistoryLog


Break = Callable[[Running, float], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Something to survive."""

    breaks: Break
    """Breaks things for so many seconds, writes down each fault, and leaves everything whole."""
    seconds: float
    """How long the short test goes on."""
    routers: int = 2
    replicas: int = REPLICAS
    is_mixed: bool = False
    """Calls in slots and iterations are under way, too, and no call is hasty."""
    proxied: bool = False
    loses: Callable[[Call], bool]
    """Which calls may fail. All others get results."""
    silent_s: float
    """Longest time after a fault in which nobody gets a result."""
    client_silent_s: float
    """The same for the client that is worst off."""


def nothing(_call: Call) -> bool:
    """Every call has its result."""
    return False


def only_hasty(call: Call) -> bool:
    """Calls whose deadline passed."""
    return not is_patient(call)


def only_once(call: Call) -> bool:
    """And those that must not be executed again, where nobody knows whether they were."""
    return not is_patient(call) or not call.idempotent


async def kill_routers(running: Running, seconds: float) -> None:
    """One after the other, each started again at once."""
    begin = due = time.monotonic()
    for number in count():
        await _until(due)
        if time.monotonic() >= begin + seconds:
            return
        router = running.mesh.routers[number % len(running.mesh.routers)]
        at = await router.kill()
        await router.start()
        running.log.add(
            Fault(what=f"SIGKILL of {router.name}", at=at, cleared_at=time.monotonic(), seen="died of SIGKILL")
        )
        due = max(due + KILL_EVERY_S, time.monotonic() + KILL_EVERY_S / 2)  # what has started serves for a while


async def kill_replicas(running: Running, seconds: float) -> None:
    """One after the other, when the one before was replaced."""
    begin = due = time.monotonic()
    for number in count():
        await _until(due)
        if time.monotonic() >= begin + seconds:
            return
        pids = await running.mesh.replica_pids()
        replica_id = sorted(pids)[number % len(pids)]
        pid = pids[replica_id]
        at = await running.mesh.kill_process(pid)
        running.log.add(Death(pid=pid, at=at))
        await running.mesh.wait_linked(REPLICAS)
        running.log.add(Fault(what=f"SIGKILL of {replica_id}", at=at, cleared_at=time.monotonic(), seen="died"))
        due = max(due + KILL_EVERY_S, time.monotonic() + KILL_EVERY_S / 2)  # what has started serves for a while


async def kill_both(running: Running, seconds: float) -> None:
    """A router and a replica at the same moment, once."""
    router, pids = running.mesh.routers[0], await running.mesh.replica_pids()
    replica_id, pid = min(pids.items())
    at, killed_at = await asyncio.gather(router.kill(), running.mesh.kill_process(pid))
    running.log.add(Death(pid=pid, at=killed_at))
    await router.start()
    cleared_at = time.monotonic()
    running.log.add(Fault(what=f"SIGKILL of {router.name}, {replica_id}", at=at, cleared_at=cleared_at, seen="died"))
    await _until(at + seconds)


async def restart_routers(running: Running, seconds: float) -> None:
    """SIGTERM, one after the other, each started again when it has left."""
    begin = time.monotonic()
    for number in count():
        await _until(begin + number * KILL_EVERY_S)
        if time.monotonic() >= begin + seconds:
            return
        router = running.mesh.routers[number % len(running.mesh.routers)]
        at = time.monotonic()
        await router.stop()
        await router.start()
        running.log.add(Fault(what=f"SIGTERM of {router.name}", at=at, cleared_at=time.monotonic(), seen="it left"))


async def stop_router(running: Running, seconds: float) -> None:
    """SIGSTOP, and SIGCONT when the time is over."""
    await _stop(running, running.mesh.routers[0].name, running.mesh.routers[0].pid, seconds)


async def stop_replica(running: Running, seconds: float) -> None:
    """SIGSTOP, and SIGCONT when the time is over."""
    replica_id, pid = min((await running.mesh.replica_pids()).items())
    await _stop(running, replica_id, pid, seconds)


async def kill_controllers(running: Running, seconds: float) -> None:
    """Again and again; each time another one comes that remembers nothing."""
    begin = time.monotonic()
    for number in count():
        await _until(begin + number * 2 * KILL_EVERY_S)
        if time.monotonic() >= begin + seconds:
            return
        at = await running.mesh.controller.kill()
        await running.mesh.start_again(running.mesh.controller)
        await running.mesh.wait_linked(REPLICAS)
        running.log.add(
            Fault(what="SIGKILL of the controller", at=at, cleared_at=time.monotonic(), seen="died of SIGKILL")
        )


def chaos(seed: int) -> Break:
    """Every process is killed, stopped, asked to leave and cut off."""
    return lambda running, seconds: Chaos(running.mesh, running.log, seed).run(seconds)


def cut_off_router(directions: frozenset[Direction]) -> Break:
    """The network between the clients and a router, each in turn, loses everything in these directions.

    Clients that have left a router stay at the other one.
    """
    return lambda running, seconds: _stall(running, running.mesh.router_proxies, "router", directions, seconds)


def cut_off_replica(directions: frozenset[Direction]) -> Break:
    """The network between the routers and a replica loses everything in these directions."""
    return lambda running, seconds: _stall(running, running.mesh.replica_proxies[:1], "replica", directions, seconds)


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "controllers-killed": Scenario(
        breaks=kill_controllers, seconds=6.0, proxied=True, loses=only_hasty, silent_s=1.0, client_silent_s=1.0
    ),
    "controllers-of-launched-replicas-killed": Scenario(
        breaks=kill_controllers, seconds=6.0, loses=only_hasty, silent_s=1.0, client_silent_s=1.0
    ),
    **{
        f"chaos-{seed}": Scenario(
            breaks=chaos(seed), seconds=10.0, proxied=True, loses=only_once, silent_s=6.0, client_silent_s=6.0
        )
        for seed in range(10)
    },
    "replicas-restarted": Scenario(
        breaks=lambda running, seconds: restart_replicas(running.mesh, running.log, RESTARTED, seconds),
        seconds=0.0,
        replicas=RESTARTED,
        is_mixed=True,
        loses=nothing,
        silent_s=3.0,  # all processes start at once
        client_silent_s=5.0,
    ),
    "routers-killed": Scenario(breaks=kill_routers, seconds=6.0, loses=only_hasty, silent_s=1.0, client_silent_s=1.0),
    "only-router-killed": Scenario(
        breaks=kill_routers, seconds=3.0, routers=1, loses=only_hasty, silent_s=2.0, client_silent_s=2.0
    ),
    "routers-restarted": Scenario(
        breaks=restart_routers, seconds=4.0, loses=only_hasty, silent_s=1.0, client_silent_s=1.0
    ),
    "router-stopped": Scenario(breaks=stop_router, seconds=6.0, loses=only_hasty, silent_s=1.0, client_silent_s=5.0),
    "both-killed": Scenario(breaks=kill_both, seconds=3.0, loses=only_once, silent_s=1.0, client_silent_s=1.0),
    "replicas-killed": Scenario(breaks=kill_replicas, seconds=6.0, loses=only_once, silent_s=1.0, client_silent_s=1.0),
    "replica-stopped": Scenario(breaks=stop_replica, seconds=6.0, loses=only_once, silent_s=1.0, client_silent_s=2.0),
    "router-cut-off": Scenario(
        breaks=cut_off_router(BOTH), seconds=5.0, proxied=True, loses=only_hasty, silent_s=1.0, client_silent_s=5.0
    ),
    "router-not-heard": Scenario(
        breaks=cut_off_router(frozenset({Direction.DOWN})),
        seconds=5.0,
        proxied=True,
        loses=only_hasty,
        silent_s=1.0,
        client_silent_s=5.0,
    ),
    "router-not-hearing": Scenario(
        breaks=cut_off_router(frozenset({Direction.UP})),
        seconds=5.0,
        proxied=True,
        loses=only_hasty,
        silent_s=1.0,
        client_silent_s=5.0,
    ),
    "replica-cut-off": Scenario(
        breaks=cut_off_replica(BOTH), seconds=6.0, proxied=True, loses=only_once, silent_s=1.0, client_silent_s=2.0
    ),
    "replica-not-heard": Scenario(
        breaks=cut_off_replica(frozenset({Direction.DOWN})),
        seconds=6.0,
        proxied=True,
        loses=only_once,
        silent_s=1.0,
        client_silent_s=2.0,
    ),
    "replica-not-hearing": Scenario(
        breaks=cut_off_replica(frozenset({Direction.UP})),
        seconds=6.0,
        proxied=True,
        loses=only_once,
        silent_s=1.0,
        client_silent_s=2.0,
    ),
}


async def record(scenario: Scenario, seconds: float, folder: Path, pace_s: float) -> tuple[History, Stall]:
    """Runs a scenario, and leaves its history in the folder. Returns it, and how long the clients stood still."""
    environment = {VARIABLE: str(executions_file(folder))}
    async with faulty_mesh(
        HANDLER, replicas=scenario.replicas, routers=scenario.routers, proxied=scenario.proxied, env=environment
    ) as mesh:
        with HistoryLog(folder) as log:
            async with running_workload(
                ENDPOINT,
                mesh.addresses,
                log,
                is_mixed=scenario.is_mixed,
                pace_s=pace_s,
                connect_timeout_s=PATIENCE_S,
            ) as workload:
                await workload.wait_loaded()
                await scenario.breaks(Running(mesh, workload, log), seconds)
                await workload.wait_for_progress()
    return read_history(folder), workload.stall


def assert_survived(scenario: Scenario, history: History) -> None:
    """Everything holds, what may not fail did not, and results flowed again in time."""
    assert_holds(history, LOAD)
    assert_results(history, of=lambda call: not scenario.loses(call))
    for number, silence in enumerate(silences(history)):
        told = f"{silence.fault.what}: no result for {silence.everybody_s:.3f} s, {silence.worst_client_s:.3f} s"
        # Without another router clients wait for the process to start: how long that takes is the machine's.
        start_s = silence.fault.cleared_at - silence.fault.at if scenario.routers == 1 else 0.0
        # Clients that have left a router stay at the other one: a later fault can meet all of them.
        silent_s = scenario.client_silent_s if number else scenario.silent_s
        assert silence.everybody_s <= silent_s * history.patience + start_s, told
        assert silence.worst_client_s <= scenario.client_silent_s * history.patience + start_s, told


async def run(name: str, seconds: float | None, folder: Path, *, patience: float = PATIENCE) -> None:
    """Runs a scenario, prints what happened, and raises AssertionError where it was not survived.

    `patience`: how many times as long as on a machine that does nothing else something may take, or more if this
    process waited for the processor. With more than 1 the clients are not in such a hurry.
    """
    scenario = SCENARIOS[name]
    pace_s = PACE_S if patience == 1.0 else EASY_PACE_S
    ran_before_s, waited_before_s = _processor_s()
    history, stall = await record(scenario, scenario.seconds if seconds is None else seconds, folder, pace_s)
    ran_s, waited_s = _processor_s()
    stretch = 1.0 + (waited_s - waited_before_s) / max(0.001, ran_s - ran_before_s)
    history = replace(history, patience=max(patience, stretch))
    machine = f"everything took {stretch:.1f} times as long as on a machine that does nothing else"
    sys.stdout.write(f"\n{summary(history, f'{name}, in {folder}')}\n  at most, {stall}; {machine}\n")
    assert_survived(scenario, history)


def _processor_s() -> tuple[float, float]:
    """How long this thread, which has the clients, has run, and has waited for a processor."""
    ran, waited, _ = Path("/proc/thread-self/schedstat").read_bytes().split()
    return int(ran) / 1e9, int(waited) / 1e9


async def _stop(running: Running, name: str, pid: int, seconds: float) -> None:
    async for until in _rounds(seconds):
        at = await running.mesh.stop_process(pid)
        try:
            await _until(until)
        finally:
            running.mesh.continue_process(pid)
        running.log.add(Fault(what=f"SIGSTOP of {name}", at=at, cleared_at=time.monotonic(), seen="it stood still"))


async def _stall(
    running: Running, proxies: Sequence[TcpProxy], kind: str, directions: frozenset[Direction], seconds: float
) -> None:
    numbered = cycle(enumerate(proxies, 1))
    async for until in _rounds(seconds):
        number, proxy = next(numbered)
        what = f"{kind}-{number} cut off, {' and '.join(sorted(it.value for it in directions))}"
        at = time.monotonic()
        proxy.stall(directions)
        try:
            await _until(until)
            seen = f"{proxy.held_bytes} bytes were held" if proxy.held_bytes else ""
        finally:
            proxy.heal()
        running.log.add(Fault(what=what, at=at, cleared_at=time.monotonic(), seen=seen))


async def _rounds(seconds: float) -> AsyncIterator[float]:
    """Until when each fault of a scenario lasts, with time between them; all end within `seconds`."""
    end = time.monotonic() + seconds
    while (begin := time.monotonic()) < end:
        yield min(begin + FAULT_S, end)
        await _until(min(time.monotonic() + 2 * KILL_EVERY_S, end))


async def _until(at: float) -> None:
    """A fault lasts as long as it is meant to: there is nothing to wait for but the time."""
    await asyncio.sleep(max(0.0, at - time.monotonic()))
