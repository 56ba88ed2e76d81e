"""A scenario that is being made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from simulation.mesh.scenario import (
    CALM_S,
    SETTLE_S,
    Blow,
    ClientPlan,
    Fault,
    Moment,
    ReplicaPlan,
    RouterPlan,
    WorkKind,
    WorkPlan,
)


@dataclass(slots=True)
class Draft:
    """A scenario that is being made."""

    chance: Random
    seconds: float
    routers: list[RouterPlan]
    replicas: list[ReplicaPlan]
    clients: list[ClientPlan]
    faults: list[Fault]
    asks_again: bool = False
    """Each key is asked again at the end, whatever chance says."""
    remembers: bool = False
    """The controller has a store that it starts again with."""
    stays_on_hold: bool = False
    """The controller reconciles nothing any more in the end: keys of replicas that have ended wait."""
    has_subsets: bool = False
    """Routers link to a part of the replicas."""
    is_edge: bool = False
    """Were anything else to go wrong, more would than is promised (docs/guarantees.md)."""

    @property
    def begins_s(self) -> float:
        """When the plot begins."""
        return self.chance.uniform(SETTLE_S + 0.3, max(SETTLE_S + 0.4, self.seconds - 2 * CALM_S))

    def strike(
        self,
        blow: Blow,
        at_s: float,
        who: str,
        other: str = "",
        *,
        for_s: float = -1.0,
        amount: float = 0.0,
        moment: Moment | None = None,
    ) -> None:
        fault = Fault(blow=blow, at_s=at_s, who=who, other=other, for_s=for_s, amount=amount, moment=moment)
        self.faults.append(fault)

    def names(self) -> list[str]:
        """Of all but the controller."""
        names = [it.name for it in self.routers]
        names += [it.name for it in self.replicas]
        return names + [it.name for it in self.clients]

    def router(self) -> str:
        """The one that most clients begin with."""
        return self.clients[0].routers[0]

    def some_replica(self) -> str:
        return self.chance.choice(self.replicas).name

    def join(self, at_s: float, *, max_ongoing: int = 4) -> str:
        """One more replica, from then on."""
        name = f"replica{len(self.replicas)}"
        self.replicas.append(ReplicaPlan(name=name, begins_s=max(0.0, at_s), max_ongoing=max_ongoing))
        return name

    def need_routers(self, count: int) -> None:
        """So many at least, all of them there from the beginning, and known to the clients."""
        while len(self.routers) < count:
            self.routers.append(RouterPlan(name=f"router{len(self.routers)}"))
        self.routers = [replace(it, begins_s=0.0) for it in self.routers]
        names = [it.name for it in self.routers]
        self.clients = [
            replace(it, routers=(*it.routers, *(name for name in names if name not in it.routers)))
            for it in self.clients
        ]

    def need_replicas(self, count: int) -> None:
        while sum(it.begins_s < SETTLE_S for it in self.replicas) < count:
            self.join(0.0)

    def add_work(self, *work: WorkPlan) -> None:
        """For the first client."""
        first = self.clients[0]
        self.clients[0] = replace(first, work=(*first.work, *work))

    def press(self) -> None:
        """Calls wait at routers, patiently: few permits, and calls that take long."""
        kind, key = self.chance.choice(((WorkKind.UNKEYED, ""), (WorkKind.UNKEYED, ""), (WorkKind.KEYED, "pressed")))
        self.add_work(WorkPlan(kind=kind, key=key, keys=4 if key else 1, run_s=0.2, burst=4, pause_s=0.3))
        self.replicas = [replace(it, max_ongoing=self.chance.choice((1, 2))) for it in self.replicas]
        run_s = self.chance.choice((0.1, 0.2, 0.4))
        self.clients[0] = replace(
            self.clients[0],
            work=tuple(replace(it, run_s=max(run_s, it.run_s), burst=max(3, it.burst)) for it in self.clients[0].work),
        )
