"""Calls of the operator's own policies, in threads.

Purpose: a policy that blocks, recurses, or raises what would end the process, as `sys.exit` does, harms the backends
that name it, and neither the event loop nor any other backend.
Invariants: one call for a backend and policy at a time, and `MOST_THREADS` in all: more than these wait until one of
them returns. An answer is used once, and is a whole number or says why there is none; each new reason is logged once.
Owner: the autoscaler, on the event loop. Threads do not keep the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from controller_service.core.autoscaling.needs import PolicyAnswer
from slotmesh.autoscaling import ScaleFigures, ScalePolicy
from slotmesh.foreign import type_name
from slotmesh.spec.autoscale import MAX_REPLICAS
from slotmesh.telemetry.log import get_logger

ANSWER_WITHIN_S: Final = 5.0
"""A policy that takes longer is reported as one that does not answer. What it answers then is used all the same."""
MOST_THREADS: Final = 64
"""Calls that may be under way at once, those that never return included. Quick ones need a thread or two."""
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
    """Asks policies, and keeps what they answer until it is used."""

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
