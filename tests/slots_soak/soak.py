"""Clients are killed, and then nothing of theirs may be left.

Invariants: when the last lease has run out, every replica says that nothing is reserved and nothing runs, each slot
that was granted had one end, and every permit of each replica is free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.e2e.slot_mesh import ENDPOINT, HANDLER, SlotCounts, assert_all_free, client_of, total_of, until_idle
from tests.slots_soak.clients import LEASE_S, Load, killing
from tests.support.mesh import started_mesh

_GRACE_S: Final = 1.0
"""For what is not leased, after the last lease has run out: a call whose caller was killed is cancelled."""


@dataclass(frozen=True, slots=True)
class Survived:
    """The figures of a soak in which everything held."""

    load: Load
    killed: int
    """Processes."""
    counts: SlotCounts
    """When the last lease had run out."""
    at_death: SlotCounts
    """When the last client was killed."""
    idle_after_s: float
    """From then on."""
    refused_s: float
    """How long it took at most to hear that there is no slot, with all of them taken."""

    def told(self) -> str:
        counts, left = self.counts, self.at_death
        return (
            f"{self.load.clients} clients in {self.load.processes} processes; {self.killed} processes killed, with "
            f"{self.killed * self.load.clients_each} clients\n"
            f"{counts.granted} slots granted: {counts.dispatched} dispatched, {counts.released} released, "
            f"{counts.expired} expired\n"
            f"after the last kill: {left.reserved} reserved, {left.ongoing} ongoing; 0 and 0 after "
            f"{self.idle_after_s:.2f} s; leases last {LEASE_S} s\n"
            f"every permit was free; the one too many was refused after {self.refused_s:.2f} s at most\n"
        )


async def soak(load: Load, seconds: float, *, routers: int = 2, replicas: int = 3, seed: int = 11) -> Survived:
    """Raises AssertionError where something does not hold."""
    async with started_mesh(HANDLER, replicas=replicas, routers=routers) as mesh:
        killed = await killing(mesh.router_addresses, f"{ENDPOINT}.work", load=load, seconds=seconds, seed=seed)
        at_death = await total_of(mesh)
        idle_after_s = await until_idle(mesh, within_s=LEASE_S + _GRACE_S)
        counts = await total_of(mesh)
        assert counts.adds_up, counts
        assert min(counts.dispatched, counts.released, counts.expired) > 0, "all that clients may do was done"
        async with client_of(mesh.router_address) as client:
            refused_s = await assert_all_free(mesh, client)
        assert len(await mesh.replica_pids()) == replicas
        return Survived(load, killed, counts, at_death, idle_after_s, refused_s)
