"""Reads the load each second, and has the number of replicas follow it.

Purpose: reads what routers have reported, asks the core (or a policy of the operator's own, beside the event loop), and
writes the number that should run into the observed state, where reconciling finds it.
Invariants: each backend with `autoscale` has a number from the first look on, others have none; a policy that fails, or
returns no number, changes nothing; calls that wait where no replica runs are looked at when their report arrives, not a
second later. Only policies that the controller was started with are imported, never one that a configuration names; one
that cannot be imported stops the start, with the way out. This is the only place in the controller that imports them.
Owner: one task, and the links to routers, which call `loads_reported`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from controller_service.core.event_log import EventKind, Notice
from controller_service.core.loads import BackendLoad
from controller_service.core.observed.state import BackendScale, running_replicas
from controller_service.core.observed.transitions import Transition
from controller_service.core.reconciling.autoscaling import PolicyAnswer, choose, figures_of, first_scale, need_of
from controller_service.shell.mesh_state import Concern, Key, MeshState
from controller_service.store.protocol import Store
from slotmesh.autoscaling import ScaleFigures, ScalePolicy
from slotmesh.logs import get_logger
from slotmesh.runtime.plug_ins import load_plug_in
from slotmesh.spec.model import MAX_REPLICAS, Autoscale, Backend
from slotmesh.user_code import type_name


def load_policies(names: tuple[str, ...]) -> Mapping[str, ScalePolicy]:
    """The functions of these names. Raises CannotStart."""
    return {name: load_plug_in("--autoscale-policies", name, _checked) for name in names}


def _checked(found: Any) -> ScalePolicy:
    if not callable(found):
        raise TypeError("it must be a function")
    policy: ScalePolicy = found
    return policy


ANSWER_WITHIN_S: Final = 5.0
"""A policy that takes longer is reported as one that does not answer. What it answers then is used all the same."""
MOST_THREADS: Final = 64
"""Calls that may be under way at the same time, those that never return included. Quick ones need a thread or two."""
IDLE_S: Final = 10.0
"""A thread that has had nothing to do for this long ends."""

_log = get_logger(__name__)

PolicyKey = tuple[str, str]
"""A backend, and the policy that it names."""


@dataclass(slots=True)
class _Asked:
    """What there is of one backend and policy."""

    since: float | None = None
    """When the call was made that has not returned, monotonic seconds; None: there is none."""
    answer: PolicyAnswer | None = None
    """One that was not used yet."""
    reported: str = ""
    """Why it has not answered, as was logged last; empty where it has."""


class PolicyCalls:
    """Calls the operator's own policies in threads, and keeps each answer until it is used.

    A policy that blocks, recurses, or raises what would end the process, as `sys.exit` does, harms the backends that
    name it, and neither the event loop nor any other backend. One call for a backend and policy at a time, and
    `MOST_THREADS` in all: more wait until one returns. An answer is used once, and is a whole number or the reason why
    there is none; each new reason is logged once. Threads do not keep the process.
    """

    def __init__(
        self, policies: Mapping[str, ScalePolicy], now: Callable[[], float], on_answer: Callable[[str], None]
    ) -> None:
        """`on_answer` is called with a backend's name when its policy has answered, or failed."""
        self._policies = policies
        self._now = now
        self._on_answer = on_answer
        self._threads = _Threads()
        self._asked: dict[PolicyKey, _Asked] = {}

    def answer(self, backend: str, policy: str, figures: ScaleFigures) -> PolicyAnswer | None:
        """What the policy answers about this backend. None: it was asked, and `on_answer` will be called."""
        function = self._policies.get(policy)
        if function is None:
            return PolicyAnswer(None, "is none of this controller's --autoscale-policies")
        key = backend, policy
        asked = self._asked.setdefault(key, _Asked())
        if (answer := asked.answer) is not None:
            asked.answer = None
            return answer
        if asked.since is None:
            asked.since = self._now()
            self._threads.put(self._call(key, function, figures))
            return None
        waited_s = self._now() - asked.since
        if waited_s < ANSWER_WITHIN_S:
            return None
        self._report(key, asked, f"has not answered within {ANSWER_WITHIN_S:g} s")
        return PolicyAnswer(None, f"has not answered for {waited_s:.0f} s")

    def forget_others(self, keys: Collection[PolicyKey]) -> None:
        """Only these are wanted. A call that is under way is remembered until it returns."""
        for key in [key for key, asked in self._asked.items() if asked.since is None and key not in keys]:
            del self._asked[key]

    def _call(self, key: PolicyKey, function: ScalePolicy, figures: ScaleFigures) -> Callable[[], None]:
        """The call, for a thread."""
        loop = asyncio.get_running_loop()

        def call() -> None:
            raised: BaseException | None = None
            try:
                answer = _answer_of(function(figures))
            except BaseException as error:  # noqa: BLE001 - whatever it is, the number stays, and others are looked at
                raised, answer = error, PolicyAnswer(None, f"has raised {type_name(error)}")
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._returned, key, answer, raised)

        return call

    def _returned(self, key: PolicyKey, answer: PolicyAnswer, error: BaseException | None) -> None:
        asked = self._asked[key]
        asked.since, asked.answer = None, answer
        self._report(key, asked, answer.error, error)
        self._on_answer(key[0])

    def _report(self, key: PolicyKey, asked: _Asked, problem: str, error: BaseException | None = None) -> None:
        if problem and problem != asked.reported:
            facts = {"backend": key[0], "policy": key[1], "problem": problem}
            _log.error("a scale policy has no answer; the number stays", **facts, exc_info=error)
        asked.reported = problem


class _Threads:
    """Daemon threads that take work in turn: as many as are needed, for as long as they are."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._work: deque[Callable[[], None]] = deque()
        self._count = self._idle = 0

    def put(self, work: Callable[[], None]) -> None:
        """Has a thread do it: one that is idle, a new one, or the next one that has done its own. It raises nothing."""
        with self._changed:
            self._work.append(work)
            self._changed.notify()
            if len(self._work) <= self._idle or self._count >= MOST_THREADS:
                return
            self._count += 1
        try:
            threading.Thread(target=self._serve, name="scale policies", daemon=True).start()
        except RuntimeError as error:  # the machine has no more of them: it is tried again with the next work
            with self._changed:
                self._count -= 1
            _log.warning("a thread for scale policies cannot be started", threads=self._count, problem=str(error))

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._work, IDLE_S)
                self._idle -= 1
                if not self._work:
                    self._count -= 1
                    return
                work = self._work.popleft()
            work()


def _answer_of(returned: object) -> PolicyAnswer:
    kind = type(returned)
    if not issubclass(kind, int) or issubclass(kind, bool):
        return PolicyAnswer(None, f"has returned a {type_name(returned)}, not a whole number")
    number = int.__int__(returned)  # type: ignore[arg-type]  # a plain one: a subclass may compare as it likes
    return PolicyAnswer(min(max(number, 0), MAX_REPLICAS))


LOOK_EVERY_S: Final = 1.0


class Autoscaler:
    """Chooses how many replicas run, of backends that have `autoscale`."""

    def __init__(self, store: Store, state: MeshState, policies: Mapping[str, ScalePolicy]) -> None:
        """`policies` are the operator's own, by `MODULE:NAME`."""
        self._store = store
        self._state = state
        self._policies = PolicyCalls(policies, state.clock.now, lambda backend: self._look_at({backend}))
        self._started_at = state.clock.now()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def watch_store(self) -> None:
        """Looks immediately when the configuration changes, until the store is closed."""
        configured_at = -1
        async for desired in self._store.watch(after_revision=-1):
            if desired.configured_at != configured_at:
                configured_at = desired.configured_at
                self.look()

    def loads_reported(self, loads: tuple[BackendLoad, ...]) -> None:
        """A router has reported: where calls wait and no replica should run, that is looked at now."""
        scales = self._state.observed.scales
        for load in loads:
            scale = scales.get(load.backend)
            if scale is not None and not scale.number and load.queued:
                self.look()
                return

    def look(self) -> None:
        """Looks at every backend, once. A policy is asked now; what it answers is followed when it comes."""
        self._look_at(None)

    def _look_at(self, names: Collection[str] | None) -> None:
        """Looks at these; None: at all."""
        scaled = {name: it for name, it in self._store.read().backends.items() if it.autoscale is not None}
        self._policies.forget_others({(name, it.autoscale.policy) for name, it in scaled.items() if it.autoscale})
        known = self._state.observed.scales
        left = known.keys() - (known.keys() if names is None else names)
        scales = {
            name: known[name] if name in left else self._next(backend, known.get(name))
            for name, backend in scaled.items()
        }
        if not scales and not known:
            return
        changed = [name for name, it in scales.items() if name not in known or it.number != known[name].number]
        notices = [
            _notice(name, it) for name, it in scales.items() if it.changed is it.latest and it is not known.get(name)
        ]
        wakes = [key for name in changed for key in (Key(Concern.BACKEND, name), Key(Concern.TABLE))]
        self._state.apply(Transition(self._state.observed.with_scales(scales), tuple(notices)), *wakes)

    def _next(self, backend: Backend, scale: BackendScale | None) -> BackendScale:
        rules, observed, now = backend.autoscale or Autoscale(), self._state.observed, self._state.clock.now()
        if scale is None:
            return first_scale(
                rules, figures_of(backend.name, observed, running_replicas(backend.name, observed), now), now
            )
        figures = figures_of(backend.name, observed, scale.number, now)
        answer = None
        if rules.policy and (answer := self._policies.answer(backend.name, rules.policy, figures)) is None:
            return scale
        need = need_of(rules, figures, answer)
        return choose(scale, rules, need, figures, now, started_at=self._started_at)


def _notice(backend: str, scale: BackendScale) -> Notice:
    decision = scale.latest
    message = f"from {decision.before} to {decision.number} replicas: {decision.why}"
    return Notice(kind=EventKind.BACKEND_SCALED, subject=f"backend/{backend}", message=message)
