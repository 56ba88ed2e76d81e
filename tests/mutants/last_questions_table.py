"""Mutants of the last questions of operators: slow replicas, failed handshakes, earlier events, reasons of leaving."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

_REPLICA: Final = "replica_service"
_TIMES: Final = "tests/unit/replica/test_call_times.py tests/unit/replica/test_feature_matrix.py"

_CALL_TIMES: Final = (
    mutant(
        "calls of a run that start later are taken for all of it",
        _REPLICA,
        "self.started_at = now if running <= count else self.started_at + (now - self.started_at) * count / running",
        "self.started_at = now",
        _TIMES,
    ),
    mutant(
        "each call of a lane has the time of its whole turn",
        _REPLICA,
        "self.runs.observe((now - turn.started_at) / count, count)",
        "self.runs.observe(now - turn.started_at, count)",
        _TIMES,
    ),
    mutant(
        "turns that end together are not counted",
        _REPLICA,
        "        state.call_times.turn_ended(turn, count, now)\n",
        "        pass\n",
        _TIMES,
    ),
    mutant(
        "a batch counts as one call",
        _REPLICA,
        "self.runs.observe(now - batch.started_at, batch.count)",
        "self.runs.observe(now - batch.started_at, 1)",
        _TIMES,
    ),
    mutant(
        "times in other buckets are shown as if they were in these",
        "controller_service",
        "return tuple(times) if len(times) == len(CALL_TIMES) + 1 and min(times) >= 0 else ()",
        "return tuple(times)",
        "tests/contract/controller/test_snapshot.py",
    ),
    mutant(
        "the times of a replica are of all calls since its start",
        "slotmesh/cli",
        "CallQuantiles.of_counts([(newest.totals.times, earlier.totals.times)])",
        "CallQuantiles.of_counts([(newest.totals.times, (0,) * 26)])",
        "tests/unit/cli/top",
    ),
)

_CONTROLLER: Final = "controller_service"
_KEPT: Final = "tests/unit/controller/test_kept_events.py"
_EVENTS: Final = "tests/contract/controller/test_kept_events.py"

_EARLIER_EVENTS: Final = (
    mutant(
        "events of an earlier controller are not loaded",
        _CONTROLLER,
        "cls(EventFeed(name, kept=bounds, earlier=await store.load(bounds)), store, bounds)",
        "cls(EventFeed(name, kept=bounds), store, bounds)",
        _EVENTS,
    ),
    mutant(
        "the last events of a controller are not stored",
        _CONTROLLER,
        "    async with Supervisor(on_end) as tasks, archive:\n",
        "    async with Supervisor(on_end) as tasks:\n",
        _EVENTS,
    ),
    mutant(
        "events of a leader that leads no more are stored",
        _CONTROLLER,
        "        if row[0] != self._leader:\n",
        "        if False:\n",
        _EVENTS,
    ),
    mutant(
        "an earlier leader that opens the file of events again has it",
        _CONTROLLER,
        "        if not self._is_ours:\n            connection.execute",
        "        if True:\n            connection.execute",
        _EVENTS,
    ),
    mutant(
        "events that are not kept any more stay in the file",
        _CONTROLLER,
        "await self._store.append(batch, dropped_through=kept.dropped_through)",
        "await self._store.append(batch, dropped_through=0)",
        _EVENTS,
    ),
    mutant(
        "the bytes of events are characters",
        _CONTROLLER,
        'sum(len(text.encode("utf-8", "replace")) for text in (notice.subject, notice.message))',
        "sum(len(text) for text in (notice.subject, notice.message))",
        _KEPT,
    ),
    mutant(
        "a cursor that was never stored misses nothing",
        _CONTROLLER,
        "return self.newer_than(numbers[-1]), UNKNOWN",
        "return self.newer_than(numbers[-1]), 0",
        _KEPT,
    ),
    mutant(
        "events that cannot be stored are not tried again",
        _CONTROLLER,
        "self._retry_s = min(LONGEST_RETRY_S, self._retry_s * 2 or RETRY_S)\n        self._something.set()\n",
        "self._retry_s = min(LONGEST_RETRY_S, self._retry_s * 2 or RETRY_S)\n",
        _EVENTS,
    ),
)

_REASONS: Final = "tests/contract/replica/test_end_reasons.py"

_END_REASONS: Final = (
    mutant(
        "the last reason to stop counts, not the first",
        "slotmesh",
        "        if not self.is_set():\n            self.reason = reason\n",
        "        if True:\n            self.reason = reason\n",
        _REASONS,
    ),
    mutant(
        "a router breaks its connection to the controller when it stops",
        "router_service",
        "        await watch.goodbye()\n",
        "        pass\n",
        _REASONS,
    ),
    mutant(
        "a reason of a member has any length",
        _CONTROLLER,
        'return " ".join(text[:MAX_END_REASON_CHARS].split())',
        'return " ".join(text.split())',
        _REASONS,
    ),
    mutant(
        "a reason is lost with the next report",
        _CONTROLLER,
        "        end_reason=end_reason or known.end_reason,\n        reported_at=now,",
        "        end_reason=end_reason,\n        reported_at=now,",
        "tests/unit/controller/test_router_reasons.py",
    ),
    mutant(
        "a reason that is read after the process was reaped is lost",
        _CONTROLLER,
        "    elif report.end_reason and not known.end_reason:\n",
        "    elif False:\n",
        "tests/unit/controller/test_launches.py",
    ),
    mutant(
        "a router that has ended for a defect was stopped in order",
        "slotmesh/cli",
        "return message.startswith(ORDERLY) and FAILED_PART not in message",
        "return message.startswith(ORDERLY)",
        "tests/unit/cli/checking",
    ),
)

_FAILED: Final = "tests/unit/telemetry/test_failed_handshakes.py"

_TLS: Final = (
    mutant(
        "each address whose handshakes fail is remembered",
        "slotmesh",
        "if len(self._peers) >= MAX_PEERS:",
        "if False:",
        _FAILED,
    ),
    mutant(
        "each failed handshake is logged",
        "slotmesh",
        "left_out = self._backoff_of(host).take(self._now())",
        "left_out = 0",
        _FAILED,
    ),
    mutant(
        "handshakes that gRPC begins are not counted",
        "slotmesh/security",
        "                self.handshakes += 1\n",
        "                pass\n",
        "tests/contract/server/test_tls.py",
    ),
)

LAST_QUESTIONS: Final = (*_CALL_TIMES, *_EARLIER_EVENTS, *_END_REASONS, *_TLS)
