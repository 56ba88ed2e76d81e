"""Seeded defects of the protocol, to see that the simulation finds them.

Each one breaks one rule of docs/guarantees.md in the real code, by a change of one place or two, as somebody might who
has not understood it. A defect that no seed finds says that the simulation lacks a story, or its judge an eye.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simulation.mesh.patching import SourceChange


@dataclass(frozen=True, slots=True)
class Defect:
    """One of them."""

    name: str
    breaks: str
    promise: str
    """Of docs/guarantees.md: what does not hold with it."""
    plots: tuple[str, ...]
    """The stories that are made for it, which are tried in turn."""
    changes: tuple[SourceChange, ...]


ONE_SLOT: Final = "one slot"
ONCE: Final = "at most once"
TRUE: Final = "`executed` is true"
ORDER: Final = "in order"
STOPS: Final = "lanes that stop"
EPOCHS: Final = "epochs continue above each epoch"


def _defect(name: str, breaks: str, promise: str, plots: str, *changes: tuple[str, str, str]) -> Defect:
    return Defect(name, breaks, promise, tuple(plots.split()), tuple(SourceChange(*each) for each in changes))


_ROUTER: Final = (
    _defect(
        "coverage_assumed",
        "a router takes its table for one that covers what the client has acknowledged",
        ONCE,
        "older_table controller_forgets all_begin_anew",
        (
            "router_service.core.features.session_resumption:Resumptions._query",
            "self._topology.table.roster.covers_all(resumption.rosters)",
            "True",
        ),
    ),
    _defect(
        "terms_ignored",
        "a router takes the table of a state file that was put back for one that covers what the newer had announced",
        ONCE,
        "newer_state_unheard",
        ("router_service.core.rosters:TableRoster.covers_all", "self._follows_from(version)", "True"),
    ),
    _defect(
        "join_unacknowledged",
        "replicas that join get calls before the clients have acknowledged a roster with them",
        ONCE,
        "router_leaves older_table",
        (
            "router_service.core.features.session_connections:Acknowledgements.table_changed",
            "if not self._lagging:",
            "if True:",
        ),
    ),
    _defect(
        "departures_ignored",
        "a replica that has departed since a call was first sent counts as one that had not seen it",
        ONCE,
        "replica_departs",
        ("router_service.core.rosters:TableRoster.lost_since", "return key[0]", "continue"),
    ),
    _defect(
        "forgotten_is_unseen",
        "a replica that says that it has forgotten counts as one that has not seen the calls",
        ONCE,
        "long_away",
        ("router_service.core.features.session_resumption:Resumption.add_report", "if found.forgotten:", "if False:"),
    ),
    _defect(
        "silent_is_unseen",
        "a replica that does not answer in time counts as one that has not seen the calls",
        ONCE,
        "replica_departs storm",
        (
            "router_service.core.features.session_resumption:Resumptions._give_up",
            "resumption.unreachable = replica.replica_id",
            "pass",
        ),
    ),
    _defect(
        "first_answer_decides",
        "a router that asks several replicas decides while one of them has not answered",
        ONCE,
        "router_leaves older_table",
        (
            "router_service.core.features.session_resumption:Resumptions._decide",
            "if resumption.awaited:",
            "if len(resumption.awaited) > 1:",
        ),
    ),
    _defect(
        "owner_overtaken",
        "calls of a key go to the new owner while the earlier one owes answers",
        ORDER,
        "keys_move",
        ("router_service.core.routing.endpoints:Partition.sendable", "and not self.stale", ""),
    ),
    _defect(
        "earlier_sending_forgotten",
        "a part of a run that was sent again does not know that it was",
        TRUE,
        "hasty router_leaves",
        (
            "router_service.core.runs:RouterRun.slice",
            "part.earlier = self.earlier if",
            "part.earlier = Earlier.NONE if",
        ),
    ),
    _defect(
        "unknown_is_no",
        "calls that were sent before, and fail here, fail as not executed",
        TRUE,
        "hasty router_leaves",
        (
            "router_service.core.lifecycle.outcomes:CallerOutcomes._fail",
            "(run.attempt or run.earlier is not Earlier.NONE)",
            "run.attempt",
        ),
    ),
    _defect(
        "lost_is_retried",
        "calls at a replica whose link is lost are sent to another one, idempotent or not",
        ONCE,
        "storm keys_move",
        ("router_service.core.lifecycle.answers:Answers._retry_or_fail", "sent.run.options.idempotent and ", ""),
    ),
    _defect(
        "found_is_run_again",
        "calls that were found at a replica whose link is lost meanwhile run again",
        ONCE,
        "heard_and_lost",
        (
            "router_service.core.features.session_resumption:Resumptions._settle",
            "failures.not_heard(trace.replica.replica_id), step)",
            "None, step)",
        ),
    ),
    _defect(
        "generations_merged",
        "a router compares rosters by their revisions, of whatever generation they are",
        ONCE,
        "generations_differ",
        (
            "router_service.core.rosters:TableRoster.covers_all",
            "known.get(version.generation, -1)",
            "max(known.values())",
        ),
    ),
)

_TAKEOVER: Final = (
    _defect(
        "kept_not_believed",
        "a router that is told that an outcome is kept goes on as if it were not",
        ONCE,
        "router_leaves",
        ("router_service.core.features.session_resumption:Resumption.add_report", "(found.kept, False), ", ""),
    ),
    _defect(
        "new_overtakes_resent",
        "new calls of a key do not wait for those before them that were sent again",
        ORDER,
        "router_leaves keys_move",
        (
            "router_service.core.features.session_resumption:Resumptions.follows",
            "if not resent and key not in resumption.keys:",
            "if not resent:",
        ),
    ),
    _defect(
        "asked_not_fenced",
        "a replica that is asked for calls goes on starting those of older epochs",
        ONCE,
        "router_leaves",
        ("replica_service.shell.sessions:Sessions.reconcile", "self._meet(session_id, epoch)", "pass"),
    ),
    _defect(
        "stop_forgotten",
        "a replica does not look whether a call before the next one of a lane has failed",
        STOPS,
        "stop_lanes",
        (
            "replica_service.core.session_records:Stops.is_stopped",
            "self._failed.get(hash((endpoint, key, generation)), call_id) < call_id",
            "False",
        ),
    ),
)

_CLIENT: Final = (
    _defect(
        "rosters_not_said",
        "a client that moves does not say which rosters it has acknowledged",
        ONCE,
        "older_table router_leaves",
        ("slotmesh.client.stream.resends:Rosters.at_opening", "return list(self._known.values())", "return []"),
    ),
    _defect(
        "acknowledges_where_it_left",
        "a client acknowledges rosters to a router that it has left",
        ONCE,
        "router_leaves",
        ("slotmesh.client.stream.links:RouterLink._learn_roster", "if not self._lingers:", "if True:"),
    ),
    _defect(
        "first_roster_is_newest",
        "calls that are sent again are said to have been sent first under the newest roster",
        ONCE,
        "replica_departs",
        (
            "slotmesh.client.stream.outgoing_frames:OutgoingFrames._resent_frame",
            "self._batches.add_again(frame, resent, now)",
            "resent.part.roster = self._rosters.newest; self._batches.add_again(frame, resent, now)",
        ),
    ),
    _defect(
        "epoch_used_twice",
        "a client that moves again uses the epoch that it has used",
        ONCE,
        "moves_twice",
        (
            "slotmesh.client.stream.resends:EndpointSession.identify",
            "self._epoch += 1",
            "self._epoch += self._epoch < 2",
        ),
    ),
    _defect(
        "unanswered_not_said",
        "a client that moves does not say all calls that are unanswered",
        ONCE,
        "router_leaves all_begin_anew",
        ("slotmesh.client.stream.pending_calls:PendingCalls.unanswered", "return ranges", "return ranges[1:]"),
    ),
    _defect(
        "stopped_sent_again",
        "a client sends calls again that stand behind a failure in a lane that stops",
        STOPS,
        "stop_lanes_apart",
        (
            "slotmesh.client.stream.resends:Resends.take",
            "if part.spec.stop_generation and part.is_after_failure(place):",
            "if False:",
        ),
    ),
)

_REPLICA: Final = (
    _defect(
        "epoch_not_fenced",
        "a replica takes calls of a session from a router that the session has left",
        ONCE,
        "router_leaves",
        (
            "replica_service.core.session_table:SessionTable.meet",
            "if epoch < session.epoch:\n        return None",
            "if epoch < session.epoch:\n        return _NOTHING",
        ),
    ),
    _defect(
        "overtaken_starts",
        "what waits of an epoch that was overtaken starts all the same",
        ONCE,
        "router_leaves",
        ("replica_service.core.session_table:SessionTable.meet", "if record.pending:", "if False:"),
    ),
    _defect(
        "failure_leaves_no_trace",
        "of a call that has started and failed, as by its timeout, nothing is kept",
        ONCE,
        "hasty",
        (
            "replica_service.shell.sessions:Sessions.ended",
            "self._table.ended(record, lo, lo + count, outcome, 0)",
            "self._table.unstarted(record, lo, lo + count)",
        ),
    ),
    _defect(
        "delivered_is_acknowledged",
        "a result is forgotten when it is sent, before its client has it",
        ONCE,
        "router_leaves storm",
        (
            "replica_service.shell.sessions:Sessions.results",
            "self._table.ended(record, lo, lo + len(payloads), payloads, size)",
            "self._table.unstarted(record, lo, lo + len(payloads))",
        ),
    ),
    _defect(
        "forgotten_without_remnant",
        "of a session that is forgotten a replica does not remember that it has forgotten calls",
        ONCE,
        "long_away",
        (
            "replica_service.core.session_outcomes:ForgottenSessions.find",
            "return self._remnants.get(session_id)",
            "return None",
        ),
    ),
    _defect(
        "running_not_told",
        "a replica that is asked does not tell of calls that run",
        ONCE,
        "router_leaves",
        (
            "replica_service.core.session_table:SessionTable.reconcile",
            "(running if known is None else kept).append(span)",
            "known is None or kept.append(span)",
        ),
    ),
    _defect(
        "owner_epoch_not_fenced",
        "a replica takes calls of partitions that it has given up",
        ORDER,
        "keys_move",
        (
            "replica_service.core.served_partitions:ServedEpochs.admit",
            "if epoch < floor:\n        return False",
            "if epoch < floor:\n        return True",
        ),
    ),
    _defect(
        "order_by_arrival",
        "calls of a key start as they arrive, whatever has started of it before",
        ORDER,
        "key_overtaken",
        ("replica_service.core.session_records:Progress.is_passed", "return call_id < last", "return False"),
    ),
    _defect(
        "stop_not_noted",
        "that a call was taken back from a lane that stops is not noted where it runs",
        STOPS,
        "stop_lanes stop_lanes_apart",
        (
            "replica_service.shell.executors.executor_set:Recalls._stop",
            "note_failure(run, found[0][0] - run.first)",
            "pass",
        ),
    ),
    _defect(
        "emptied_too_soon",
        "a replica says that a partition is empty while calls of it run",
        ORDER,
        "owners_change keys_move",
        (
            "replica_service.core.scheduler:ReplicaScheduler.is_emptied",
            "not self._state.lanes.is_left(endpoint, partition)",
            "True",
        ),
    ),
    _defect(
        "late_is_well",
        "a call that ends after its deadline in a lane that stops has ended well where it ran",
        STOPS,
        "stop_lanes_late",
        (
            "replica_service.core.work:is_late",
            "run.options.stop_generation > 0 and now >= run.deadline",
            "False",
        ),
    ),
    _defect(
        "fence_answered_first",
        "a replica says that it is fenced, and goes on starting calls of older epochs",
        ORDER,
        "owners_fenced",
        (
            "replica_service.shell.engine:Engine.fence",
            "self.post(EpochFenced(epoch))\n    return self.scheduler.busy()",
            "return {}",
        ),
    ),
)

_CONTROLLER: Final = (
    _defect(
        "older_state_decides",
        "a controller goes on with an older copy of its store though members have newer tables",
        ONCE,
        "older_state_file",
        (
            "controller_service.shell.leadership:NewerMembers.look_at",
            "if not self.is_newer(held):",
            "if True:",
        ),
    ),
    _defect(
        "replicas_not_adopted",
        "a controller covers an earlier generation without listing its replicas",
        ONCE,
        "controller_forgets",
        (
            "controller_service.core.observed.adoption:_with_named",
            "records[owner.replica_id] = unattached(member, named_by, must_fence_through=1, now=now)",
            "pass",
        ),
    ),
    _defect(
        "roster_not_restored",
        "a controller that starts with its store counts replicas that have not attached yet as departed",
        ONCE,
        "controller_returns",
        (
            "controller_service.core.observed.replica_groups:restored",
            "for member in sorted(desired.roster.members, key=lambda it: it.is_unresolved)",
            "for member in ()",
        ),
    ),
    _defect(
        "silent_is_dead",
        "a replica that the controller does not hear counts as ended",
        ORDER,
        "owner_unheard",
        (
            "controller_service.core.observed.transitions:fell_silent",
            "record = replace(known, suspect_since=now, silent_since=now - lease_s)",
            "record = replace(known, suspect_since=now, silent_since=now - lease_s, gone=True)",
        ),
    ),
    _defect(
        "departure_not_listed",
        "a replica leaves the table without being listed as departed",
        ONCE,
        "replica_departs",
        (
            "controller_service.core.roster:IncarnationRoster.listing",
            "changed._with_departures(left, generation=generation, now=now)",
            "changed",
        ),
    ),
    _defect(
        "emptied_not_awaited",
        "partitions get their new owner before the old one has given them up",
        ORDER,
        "owners_change keys_move",
        (
            "controller_service.core.partition_owners:_handed_over",
            "if of[number] not in dead and (owners[of[number]], number, current.epochs[number]) in emptied",
            "if of[number] not in dead",
        ),
    ),
    _defect(
        "namesake_replaces",
        "whoever attaches with the id of another replica takes its place",
        ORDER,
        "namesake",
        ("controller_service.core.observed.transitions:_require_no_namesake", "if not may_live:", "if True:"),
    ),
    _defect(
        "draining_is_ended",
        "a replica that drains counts as ended, though calls run there",
        ORDER,
        "owners_change",
        (
            "controller_service.core.observed.transitions:reported",
            "gone=report.state is ReplicaState.STOPPED or",
            "gone=report.state in {ReplicaState.DRAINING, ReplicaState.STOPPED} or",
        ),
    ),
    _defect(
        "departures_not_learnt",
        "a controller that does not remember loses the departures that a router's table names",
        ONCE,
        "departures_forgotten",
        (
            "controller_service.core.roster:IncarnationRoster.learning",
            "added = [it if it.generation in trusted else as_of_now(it) for it in news]",
            "added = [it for it in news if False]",
        ),
    ),
    _defect(
        "owners_not_adopted",
        "a controller that does not remember does not take over who owns what",
        ORDER,
        "owner_unheard",
        ("controller_service.core.partition_owners:inherit", "if not changed:", "if True:"),
    ),
    _defect(
        "given_before_brought",
        "a controller that does not remember does not wait for the tables of routers",
        ORDER,
        "tables_late",
        (
            "controller_service.core.reconciling.endpoints:_held_s",
            "left_s = started_at + TABLE_WITHIN_S - now",
            "left_s = 0.0",
        ),
    ),
    _defect(
        "given_before_fenced",
        "a controller gives keys away while a replica may start what an earlier one gave it",
        ORDER,
        "fence_unheard",
        (
            "controller_service.core.reconciling.endpoints:_held_s",
            "if observed.awaits_fence() or observed.earlier_tables:",
            "if observed.earlier_tables:",
        ),
    ),
    _defect(
        "epochs_by_clock",
        "a controller that does not remember goes on with epochs from its clock alone",
        EPOCHS,
        "clock_goes_back",
        (
            "controller_service.shell.members.tables:EarlierTables.learn",
            "epoch_floor=learnt.epoch_floor if learnt.epoch_floor > desired.epoch_floor else 0",
            "epoch_floor=0",
        ),
    ),
)

_REQUESTS: Final = (
    _defect(
        "not_looked_up",
        "a router does not look calls with a request id up at the earlier owners of their partition",
        ONCE,
        "requests_repeated requests_drain",
        (
            "router_service.core.lifecycle.intake:RoutingIntake._unqueried",
            "for key, epoch in earlier.epochs.items():",
            "for key, epoch in ():",
        ),
    ),
    _defect(
        "not_looked_up_in_drain",
        "a router keeps calls with a request id until their partition has left an owner that drains",
        ONCE,
        "requests_drain",
        (
            "router_service.core.lifecycle.intake:RoutingIntake._unqueried",
            "owner is not None and owner.draining",
            "False",
        ),
    ),
    _defect(
        "outcome_forgotten",
        "a replica forgets a call with a request id when it ends",
        ONCE,
        "requests_repeated",
        (
            "replica_service.core.repeated_calls:RepeatedCalls.begin",
            "self._is_over(known, now)",
            "known.outcome is not None",
        ),
    ),
)

_RESERVATIONS: Final = (
    _defect(
        "slots_not_looked_up",
        "a router takes a slot for a repeated reservation without a query of the replicas",
        ONE_SLOT,
        "reservations_repeated",
        (
            "router_service.core.features.slot_look_ups:SlotLookUps.begin",
            "(work.admits(key[0]) if only is None else key == only)",
            "False",
        ),
    ),
    _defect(
        "older_attempts_not_fenced",
        "a replica grants a slot to an older attempt at a reservation that it was queried about",
        ONE_SLOT,
        "reservations_repeated",
        (
            "replica_service.core.requested_slots:RequestedSlots.look_up",
            "if not self._fence(request, now):",
            "if False:",
        ),
    ),
)

DEFECTS: Final = {
    each.name: each for each in (*_ROUTER, *_TAKEOVER, *_CLIENT, *_REPLICA, *_CONTROLLER, *_REQUESTS, *_RESERVATIONS)
}
"""By name. Each has to be found."""
