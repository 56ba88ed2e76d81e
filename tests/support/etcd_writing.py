"""`python -m tests.support.etcd_writing PLACE NAME`: a process that leads with a state in etcd, or waits to; it writes.

Purpose: tests kill and stop it, and what surrounds it. It reports each step as a line of JSON: that it stands by, or
leads, has a change acknowledged, or refused; that its store has a problem; that it has lost its leadership. `Writer`
starts it and collects these lines; `check_history` compares those of all writers with the state that is there in the
end.
Each change puts a backend and an endpoint that names it, both with a number of its own, so that a state which has parts
of a change shows it.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from contextlib import suppress
from typing import Any, Final

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.store.etcd.store import EtcdCandidacy, EtcdStore
from controller_service.store.protocol import Conflict, LeadershipLost, StoreWriteFailed
from slotmesh.config.etcd import PLAIN_ACCESS, EtcdPlace, etcd_place
from slotmesh.ids import new_id
from slotmesh.spec.model import Backend, Endpoint, TrafficPolicy
from tests.support.mesh import ROOT

PAUSE_S: Final = 0.01
"""Between two changes."""


def say(event: str, **more: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, "at": time.monotonic(), **more}) + "\n")
    sys.stdout.flush()


async def write(place: EtcdPlace, name: str) -> None:
    candidacy = EtcdCandidacy(place, PLAIN_ACCESS, lambda: (new_id(), Desired()))
    store = await candidacy.try_to_lead()
    if store is None:
        say("waits")
        store = await candidacy.wait_to_lead(name)
    say("leads", term=store.term, revision=store.read().revision)
    store.serving_at(name)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    watching = asyncio.create_task(watch(store))
    with suppress(LeadershipLost):
        await make_changes(store, name, stop)
    watching.cancel()
    await store.close()
    say("ended")


async def make_changes(store: EtcdStore, name: str, stop: asyncio.Event) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        change = f"{name}-{number}"
        put = ChangeSet(
            put_backends=(Backend(name=change),),
            put_endpoints=(Endpoint(name=change, traffic=TrafficPolicy(weights={change: 1.0})),),
        )
        try:
            done = await store.commit(put, expected_revision=store.read().revision)
            say("acknowledged", change=change, revision=done.revision, term=store.term)
        except Conflict:
            say("conflict", change=change)
        except LeadershipLost as lost:
            say("lost", change=change, why=str(lost))
            raise
        except StoreWriteFailed as failed:
            say("refused", change=change, is_unwritten=failed.is_unwritten, why=str(failed))
        await asyncio.sleep(PAUSE_S)


async def watch(store: EtcdStore) -> None:
    with suppress(LeadershipLost):
        async for standing in store.standing():
            say("standing", problem=standing.problem, standbys=standing.standbys)


class Writer:
    """Such a process."""

    def __init__(self, place: EtcdPlace, name: str) -> None:
        self.place, self.name = place, name
        self.events: list[dict[str, Any]] = []
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.etcd_writing", str(self.place), self.name),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.events.append(json.loads(line))

    def of(self, event: str) -> list[dict[str, Any]]:
        return [it for it in self.events if it["event"] == event]

    @property
    def leads(self) -> bool:
        return bool(self.of("leads"))

    @property
    def acknowledged(self) -> int:
        """The number of changes that it was told are stored."""
        return len(self.of("acknowledged"))

    def signal(self, number: signal.Signals) -> float:
        """Returns the moment before it."""
        assert self._process is not None
        at = time.monotonic()
        self._process.send_signal(number)
        return at

    async def end(self) -> None:
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
        await asyncio.wait_for(self._process.wait(), 20.0)
        assert self._reading is not None
        await asyncio.wait_for(self._reading, 20.0)


def check_history(writers: list[Writer], found: Desired) -> int:
    """No acknowledged change is missing, each is as a whole, and they are in order. Returns the number of those."""
    acknowledged = [it for each in writers for it in each.of("acknowledged")]
    by_revision = sorted(acknowledged, key=lambda it: int(it["revision"]))
    assert len({it["revision"] for it in acknowledged}) == len(acknowledged), "a revision is one change"
    terms = [it["term"] for it in by_revision]
    assert terms == sorted(terms), "an earlier leader wrote nothing after a later one"
    for each in writers:
        revisions = [it["revision"] for it in each.of("acknowledged")]
        assert revisions == sorted(revisions)
    assert not {it["change"] for it in acknowledged} - found.backends.keys(), "an acknowledged change is missing"
    assert found.backends.keys() == found.endpoints.keys(), "a part of a change is there"
    surely_not = {
        it["change"]
        for each in writers
        for kind in ("refused", "lost")
        for it in each.of(kind)
        if it.get("is_unwritten")
    }
    assert not surely_not & found.backends.keys(), "a change that was refused for certain is there"
    recorded = [it.revision for it in found.history]
    assert recorded == sorted(recorded)
    return len(acknowledged)


if __name__ == "__main__":
    chosen = etcd_place(sys.argv[1])
    assert chosen is not None
    asyncio.run(write(chosen, sys.argv[2]))
