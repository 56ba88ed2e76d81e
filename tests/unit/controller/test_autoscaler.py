"""The task that looks at the load: policies of the operator's own, and what it writes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from controller_service.config import ControllerSettings
from controller_service.core.desired.state import ChangeSet
from controller_service.core.loads import BackendLoad
from controller_service.core.observed import routers, transitions
from controller_service.core.observed.member_messages import Hello, ObservedReport
from controller_service.core.observed.state import BackendScale, Observed, ObservedRouter, ReplicaState
from controller_service.core.reconciling.autoscaling import figures_of
from controller_service.shell.events import EventFeed
from controller_service.shell.loops import autoscaler
from controller_service.shell.loops.autoscaler import Autoscaler, load_policies
from controller_service.shell.mesh_state import Key, MeshState, WorkQueue
from controller_service.store.protocol import MemoryStore
from slotmesh.autoscaling import ScaleFigures, ScalePolicy
from slotmesh.config import SettingsError
from slotmesh.runtime.clock import MonotonicClock
from slotmesh.runtime.exits import CannotStart
from slotmesh.spec.model import Autoscale, Backend
from tests.support.foreign_code import KINDS
from tests.support.wait import wait_until

NAME = "tests.unit.controller.test_autoscaler:five"


def five(figures: ScaleFigures) -> int:
    return 5


def fail(figures: ScaleFigures) -> int:
    raise ValueError("a secret")


def report(observed: Observed, router_id: str, now: float, *loads: BackendLoad) -> Observed:
    known: dict[str, Any] = {"generation": "g", "revision": 1, "linked": frozenset()}
    return routers.reported(observed, router_id, **known, loads=loads, now=now).observed


def test_figures_are_sums_over_routers_until_they_are_gone() -> None:
    observed = Observed()
    for router_id in ("r1", "r2", "r3"):
        router = ObservedRouter(router_id=router_id, address="h:1", started_at=0.0)
        observed = routers.attached(observed, router).observed
    observed = report(observed, "r1", 1.0, BackendLoad(backend="b", queued=1, ongoing=2, queue_time_s=0.5, sent=7))
    other = BackendLoad(backend="other", queued=100, ongoing=100)
    observed = report(observed, "r2", 4.0, BackendLoad(backend="b", queued=3, ongoing=4, queue_time_s=0.2), other)
    figures = figures_of("b", observed, 2, 4.5)
    assert (figures.queued, figures.ongoing, figures.queue_time_s, figures.sent) == (4, 6, 0.5, 7)
    assert (figures.routers, figures.late, figures.silent, figures.is_complete) == (3, 1, 1, False)
    for router_id in ("r1", "r3"):
        observed = routers.left(observed, router_id, "was silent past its lease").observed
    figures = figures_of("b", observed, 2, 4.5)
    assert (figures.queued, figures.ongoing, figures.late, figures.is_complete) == (3, 4, 0, True)


class Odd(int):
    """A whole number of a class that compares as it likes."""

    def __lt__(self, _: object) -> bool:
        raise SystemExit

    __gt__ = __le__ = __ge__ = __lt__


class Scaled:
    """An autoscaler with some backends, each of which has a policy of its own and a ready replica."""

    def __init__(self, policies: Mapping[str, ScalePolicy]) -> None:
        self.queue = WorkQueue[Key]()
        self.events = EventFeed("f")
        self.state = MeshState(MonotonicClock(), self.queue, self.events)
        self.store = MemoryStore(generation="0" * 32)
        self.autoscaler = Autoscaler(self.store, self.state, policies)

    async def start(self, *names: str) -> None:
        backends = [
            Backend(name=name, handler="a:B", autoscale=Autoscale(max=8, policy=name, up_delay_s=0.0, up_rate=100.0))
            for name in names
        ]
        await self.store.commit(ChangeSet(put_backends=tuple(backends)), expected_revision=0)
        self.autoscaler.look()
        for name in names:
            hello = Hello(replica_id=f"{name}-1", incarnation="1" * 32, backend=name)
            self._attach(hello)

    def _attach(self, hello: Hello) -> None:
        ready = ObservedReport(state=ReplicaState.READY, address="h:1")
        replica_id, apply = hello.replica_id, self.state.apply_to_replica
        apply(replica_id, lambda it, now: transitions.attached(it, hello, now=now))
        apply(replica_id, lambda it, now: transitions.reported(it, replica_id, hello.incarnation, ready, now=now))

    def scale(self, name: str) -> BackendScale:
        return self.state.observed.scales[name]

    async def decides(self, name: str, why: str) -> BackendScale:
        """Looks again and again, as the controller does, until this is why."""

        def does() -> bool:
            self.autoscaler.look()
            return why in self.scale(name).latest.why

        await wait_until(does, what=f"{name} has a number because: {why}")
        return self.scale(name)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("policy", "number", "why"),
    [
        (five, 5, f"policy {NAME} returned 5"),
        (lambda _: Odd(5), 5, f"policy {NAME} returned 5"),
        (lambda _: 10**30, 8, "returned 10,000"),
        (lambda _: -(10**30), 1, "returned 0"),
        (lambda _: "many", 1, "has returned a str, not a whole number: the number stays"),
        (lambda _: float("nan"), 1, "has returned a float, not a whole number"),
        (lambda _: True, 1, "has returned a bool"),
        (fail, 1, "has raised ValueError: the number stays"),
        (None, 1, "is none of this controller's --autoscale-policies"),
        *((lambda _, kind=kind: KINDS[kind](), 1, f"has raised {kind}: the number stays") for kind in KINDS),
    ],
)
async def test_a_policy_of_ones_own(
    policy: ScalePolicy | None, number: int, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it does is known of its backend, and the other one gets its number."""
    scaled = Scaled({"good": five} if policy is None else {NAME: policy, "good": five})
    await scaled.start(NAME, "good")
    scale = await scaled.decides(NAME, why)
    assert scale.number == number
    assert "a secret" not in scale.latest.why
    assert (await scaled.decides("good", "policy good returned 5")).number == 5
    for _ in range(3):
        await scaled.decides(NAME, why)
    logged = [each for each in caplog.records if "a scale policy has no answer" in each.getMessage()]
    assert len(logged) == (1 if "has r" in why else 0)
    scaled.queue.close()


@pytest.mark.asyncio
async def test_a_policy_that_blocks_holds_up_no_other(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autoscaler, "ANSWER_WITHIN_S", 0.0)
    calls: list[ScaleFigures] = []
    go_on = threading.Event()

    def blocked(figures: ScaleFigures) -> int:
        calls.append(figures)
        go_on.wait()
        return 7

    scaled = Scaled({"blocked": blocked, "good": five})
    await scaled.start("blocked", "good")
    try:
        assert (await scaled.decides("blocked", "has not answered for 0 s: the number stays")).number == 1
        assert (await scaled.decides("good", "policy good returned 5")).number == 5
        await scaled.decides("blocked", "has not answered")
        assert len(calls) == 1, "it is not called again before it has returned"
        assert len([each for each in caplog.records if "backend=blocked" in each.getMessage()]) == 1
    finally:
        go_on.set()
    assert (await scaled.decides("blocked", "policy blocked returned 7")).number == 7
    scaled.queue.close()


@pytest.mark.asyncio
async def test_an_answer_is_followed_when_it_comes_and_the_events_say_so_once() -> None:
    """Without another look: the first call of all does not wait a second for its replica."""
    scaled = Scaled({"good": five, "other": five})
    with scaled.events.watch() as events:
        await scaled.start("good", "other")
        scaled.autoscaler.look()
        await wait_until(lambda: scaled.scale("good").number == 5, what="the answer is followed")
        for name in ("good", "other") * 3:
            await scaled.decides(name, f"policy {name} returned 5")
        told = [(await events.next())[0].notice.message for _ in range(events.unread)]
    assert len([each for each in told if "to 5 replicas" in each]) == 2
    scaled.queue.close()


@pytest.mark.asyncio
async def test_calls_of_policies_are_bounded_those_too_that_never_return(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscaler, "MOST_THREADS", 2)
    monkeypatch.setattr(autoscaler, "ANSWER_WITHIN_S", 0.0)
    go_on = threading.Event()
    names = ["a", "b", "c"]
    scaled = Scaled(dict.fromkeys(names, lambda _: 4 if go_on.wait() else 0))
    await scaled.start(*names)
    try:
        for name in names:
            await scaled.decides(name, "has not answered")
        assert len(scaled.autoscaler._policies._threads._work) == 1, "the third one waits for a thread"
    finally:
        go_on.set()
    for name in names:
        assert (await scaled.decides(name, f"policy {name} returned 4")).number == 4
    scaled.queue.close()


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"KeyboardInterrupt"}))
def test_a_module_of_policies_that_raises_stops_the_start(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"policies_{kind.lower()}"
    (tmp_path / f"{name}.py").write_text(
        f"from tests.support.foreign_code import KINDS\nKINDS[{kind!r}]()\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CannotStart, match=f"cannot be loaded .{kind}: "):
        load_policies((f"{name}:f",))


def test_policies_are_loaded_at_the_start_or_the_start_is_refused() -> None:
    assert load_policies((NAME,)) == {NAME: five}
    with pytest.raises(CannotStart, match=r"--autoscale-policies no_such:f: cannot be loaded"):
        load_policies(("no_such:f",))
    with pytest.raises(CannotStart, match=r"cannot be loaded .AttributeError: .* has no attribute 'nothing'"):
        load_policies(("tests.unit.controller.test_autoscaler:nothing",))
    with pytest.raises(SettingsError, match="'nothing' is not MODULE:NAME"):
        ControllerSettings.parse(["--autoscale-policies=a:b, nothing"], {}, prog="controller")
