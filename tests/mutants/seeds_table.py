"""Mutants that were seeded to try the tests, and that few or none noticed: second of several, edges, identities."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

ROUTER: Final = "router_service"
REPLICA: Final = "replica_service"
CONTROLLER: Final = "controller_service"
CLIENT: Final = "slotmesh/client"
INGRESS: Final = "ingress_service"

_SECOND_OF_SEVERAL: Final = (
    mutant(
        "the link to a replica that left the table closes before the calls that a session found there are recovered",
        ROUTER,
        "return bool(replica.inflight or replica.outbox or replica.ops or replica.link_users)",
        "return bool(replica.inflight or replica.outbox or replica.ops)",
        "tests/unit/router/features/test_sessions_found_calls.py",
    ),
    mutant(
        "calls of several keys that come back wait in the partition of the first",
        ROUTER,
        "self.options_of(key), self.partitions[begin]))",
        "self.options_of(key), self.partitions[lo]))",
        "tests/unit/router/replicas/test_key_columns.py",
    ),
    mutant(
        "each batch of a second attempt names the calls of the first batch",
        ROUTER,
        "FirstAttempt(origin.stream_id, origin.run_ids[at : at + most])",
        "FirstAttempt(origin.stream_id, origin.run_ids[:most])",
        "tests/unit/router/lifecycle/test_lost_links.py",
    ),
    mutant(
        "who joins a reservation takes time from those that wait for it",
        ROUTER,
        "run.deadline = max(run.deadline, step.now + (timeout_s if timeout_s != inf else _patience_s(run)))",
        "run.deadline = step.now + (timeout_s if timeout_s != inf else _patience_s(run))",
        "tests/unit/router/features/test_requests.py",
    ),
    mutant(
        "of several links that wait for parts of a run the first is told that it is handed back",
        REPLICA,
        "run.link.outbox.refused(run.first + lo, count, failure)\n        for taker in record.takers:",
        "run.link.outbox.refused(run.first + lo, count, failure)\n        for taker in record.takers[:1]:",
        "tests/unit/replica/test_calls_that_come_again.py",
    ),
    mutant(
        "a link that ends takes along all that wait for its run",
        REPLICA,
        "entry.record.takers = [each for each in entry.record.takers if each.link is not link]",
        "entry.record.takers = ()",
        "tests/unit/replica/test_calls_that_come_again.py",
    ),
    mutant(
        "what an earlier table named counts as given away once the next one was taken",
        CONTROLLER,
        "inherited=current.inherited.difference(changed) | named,",
        "inherited=named,",
        "tests/unit/controller/test_adoption_ownership.py",
    ),
    mutant(
        "of several shadows with guards the first one's copies are counted",
        CONTROLLER,
        "return tuple(dict.fromkeys(it.shadow for it in self.guards if it.shadow))",
        "return tuple(dict.fromkeys(it.shadow for it in self.guards if it.shadow))[:1]",
        "tests/unit/controller/test_shifter.py",
    ),
    mutant(
        "of several Connection headers the last one counts",
        INGRESS,
        'tokens.update(each.strip().lower() for each in value.split(b","))',
        'tokens = {each.strip().lower() for each in value.split(b",")}',
        "tests/properties/test_http_connection.py",
    ),
)

_EXACT_EDGES: Final = (
    mutant(
        "a batch as large as the window is refused",
        ROUTER,
        "    if count > most:\n        return Failure(\n            reason=Reason.WINDOW_EXCEEDED",
        "    if count >= most:\n        return Failure(\n            reason=Reason.WINDOW_EXCEEDED",
        "tests/unit/router/limits/test_exact_bounds.py",
    ),
    mutant(
        "as many bytes ahead of answers as may be are too many",
        INGRESS,
        "if self._ahead_bytes > self._limits.ahead_bytes or len(self._waiting)",
        "if self._ahead_bytes >= self._limits.ahead_bytes or len(self._waiting)",
        "tests/unit/ingress/test_exact_bounds.py",
    ),
)

_IDENTITIES: Final = (
    mutant(
        "the end of an older connection is that of the session",
        ROUTER,
        "        if self._newest.get(session.session_id) is not stream:\n            return",
        "        if session.session_id not in self._newest:\n            return",
        "tests/contract/router/test_sessions.py",
    ),
    mutant(
        "a replica counts as departed where an earlier life of it has",
        ROUTER,
        "return any(each.key == key for each in self.table.roster.departed)",
        "return any(each.key[0] == key[0] for each in self.table.roster.departed)",
        "tests/unit/router/features/test_bound_operations.py",
    ),
    mutant(
        "results of threads that end together go to the run of the first",
        REPLICA,
        "if entry[1] is not run or entry[2] != hi:",
        "if entry[2] != hi:",
        "tests/unit/replica/test_thread_executor.py",
    ),
    mutant(
        "a file of a snapshot is had of another one whatever its mode",
        CONTROLLER,
        "known.get((it.content, it.is_executable))",
        "known.get((it.content, False)) or known.get((it.content, True))",
        "tests/unit/controller/code/test_packs.py",
    ),
    mutant(
        "patterns mean for each root what they mean for the first",
        CONTROLLER,
        "if known is not None and known[0] == stamp and (known[1].above, known[1].below) == (above, below):",
        "if known is not None and known[0] == stamp:",
        "tests/unit/controller/code/test_links.py",
    ),
    mutant(
        "a path that was found for POST is found for PUT",
        INGRESS,
        "key = (raw_path, http_method)",
        "key = (raw_path, http_method[:1])",
        "tests/unit/ingress/test_route_table.py",
    ),
)

_BOOKS: Final = (
    mutant(
        "a tenant that has something waiting gets no bytes back",
        ROUTER,
        "self._by_tenant[key] = calls - count, total - size",
        "self._by_tenant[key] = calls - count, total",
        "tests/unit/router/limits/test_admission.py",
    ),
    mutant(
        "calls of the step before are calls of this one",
        CONTROLLER,
        "        self._ends = {}\n        self._flows = False",
        "        self._ends = {}",
        "tests/unit/controller/test_shifter.py",
    ),
    mutant(
        "replicas that are found running count as started",
        CONTROLLER,
        "self.counts[order.backend] += not instance.was_found",
        "self.counts[order.backend] += 1",
        "tests/unit/controller/test_reconcile_loop.py",
    ),
    mutant(
        "a call that waits for room no longer keeps those behind it waiting",
        CLIENT,
        "            del self._crowded[share]\n        self._let_in()",
        "            del self._crowded[share]",
        "tests/unit/client/test_buffer_shares.py",
    ),
)

_ROOM_TO_WAIT: Final = (
    mutant(
        "unkeyed calls wait at routers as long as lanes wait for permits",
        REPLICA,
        "return self.prefetch or (1 if self._lanes else 0)",
        "return self.prefetch",
        "tests/unit/replica/test_scheduler.py",
    ),
    mutant(
        "replicas do not report that a call may wait beside lanes",
        REPLICA,
        "            permits.room_to_wait,\n            self._state.keyed_window,",
        "            permits.prefetch,\n            self._state.keyed_window,",
        "tests/unit/replica/test_scheduler.py",
    ),
)

_TERMS: Final = (
    mutant(
        "a roster of a term that the table's controller never had is covered",
        ROUTER,
        "        return version.revision < self.terms[0].first_revision",
        "        return True",
        "tests/unit/router/replicas/test_rosters.py",
    ),
    mutant(
        "a roster that its term announced after the copy was made is covered",
        ROUTER,
        "return version.revision < end",
        "return version.revision <= end",
        "tests/unit/router/replicas/test_rosters.py",
    ),
    mutant(
        "a delta forgets the terms of its table",
        ROUTER,
        "delta.departed_since, before.covers, before.terms)",
        "delta.departed_since, before.covers)",
        "tests/properties/test_table_deltas.py",
    ),
    mutant(
        "a client that does not return the term of a roster stays suspended",
        ROUTER,
        "self._numbers.get(event.version[:2], 0)",
        "self._numbers.get(event.version[:2], 0) if event.version in [self._topology.table.roster.version] else 0",
        "tests/unit/router/features/test_sessions_rosters.py",
    ),
    mutant(
        "a client states one roster for all terms of a generation",
        CLIENT,
        "key = version.generation, version.term_id",
        'key = version.generation, ""',
        "tests/unit/client/test_resend.py",
    ),
)

_TAUTOLOGIES: Final = (
    mutant(
        "calls that are lost with their replica are no warning",
        ROUTER,
        "        Reason.PREDECESSOR_FAILED,\n        Reason.HANDLER_ERROR,",
        "        Reason.PREDECESSOR_FAILED,\n        Reason.REPLICA_LOST,\n        Reason.HANDLER_ERROR,",
        "tests/unit/router/shell/test_failure_log.py",
    ),
    mutant(
        "a replica that is stopped before it is ready has failed",
        REPLICA,
        "LifecycleEvent.STOP_ASKED: State.STOPPED,\n            }\n        ),\n        State.READY",
        "LifecycleEvent.STOP_ASKED: State.FAILED,\n            }\n        ),\n        State.READY",
        "tests/unit/replica/test_lifecycle.py",
    ),
)

SEEDS: Final = (*_SECOND_OF_SEVERAL, *_EXACT_EDGES, *_IDENTITIES, *_BOOKS, *_ROOM_TO_WAIT, *_TERMS, *_TAUTOLOGIES)
