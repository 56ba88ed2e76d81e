"""The ways in which calls are executed: for tests of what must hold in each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from replica_service.core.runs import ReplicaRun
from slotmesh.codec import OCTET_STREAM
from tests.unit.replica.hosting import Hosting


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How calls of a run are sent, and where they are executed."""

    name: str
    key: str = ""
    """Of all calls, which are a lane then."""
    keys: bool = False
    """Whether each call has a key of its own."""
    own_loop: bool = False
    stops: bool = False
    """Whether the lane stops at a failure: its calls are started one by one."""

    def __str__(self) -> str:
        return self.name

    async def execute(
        self, host: Hosting, method: str, payloads: Sequence[bytes], *, content_type: str = OCTET_STREAM, **options: Any
    ) -> None:
        """Sends these calls, and waits for all of their outcomes."""
        wanted = len(host.outbox.order) + len(payloads)
        host.engine.submit(self.runs(host, method, payloads, content_type=content_type, **options))
        await host.answered(wanted)

    def runs(
        self, host: Hosting, method: str, payloads: Sequence[bytes], *, content_type: str = OCTET_STREAM, **options: Any
    ) -> list[ReplicaRun]:
        """These calls, of one batch."""
        if self.stops:
            options["stop_generation"] = 1
        key = "column" if self.keys else self.key
        whole = host.run(method, payloads, key=key, content_type=content_type, **options)
        if not self.keys:
            return [whole]
        return [_of_key(whole, index) for index in range(len(payloads))]


def _of_key(whole: ReplicaRun, index: int) -> ReplicaRun:
    """The call with this index, under a key of its own, as neighbour of the others."""
    run = ReplicaRun(
        *(whole.link, whole.first, whole.payloads, whole.options, whole.endpoint, whole.arrived),
        begin=index,
        end=index + 1,
    )
    run.ordering_key = f"key {index}"
    return run


UNKEYED: Final = Way(name="unkeyed")
LANE: Final = Way(name="lane", key="k")
STOPPING: Final = Way(name="stopping", key="k", stops=True)
KEYS: Final = Way(name="keys", keys=True)
OWN_LOOP: Final = Way(name="own-loop", own_loop=True)
OWN_LOOP_LANE: Final = Way(name="own-loop-lane", key="k", own_loop=True)
WAYS: Final = (UNKEYED, LANE, STOPPING, KEYS, OWN_LOOP, OWN_LOOP_LANE)
