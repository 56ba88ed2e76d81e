"""Mutants of what operators decide: replicas that have ended, states that are older, names that replicas hold."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

_CONTROLLER: Final = "controller_service"
_FORGETTING: Final = "tests/unit/controller/test_forgetting.py"
_OLDER: Final = "tests/contract/controller/test_older_state.py"
_REFUSALS: Final = "tests/contract/controller/test_state_refusals.py"
_LINEAGE: Final = "tests/unit/controller/test_lineage.py"

OPERATOR: Final = (
    mutant(
        "a replica to which a router has a link is forgotten",
        _CONTROLLER,
        "        if replica.owner in router.linked:",
        "        if False:",
        _FORGETTING,
    ),
    mutant(
        "a replica that reports is forgotten",
        _CONTROLLER,
        '    if replica.suspect_since is None:\n        return "it reports',
        '    if False:\n        return "it reports',
        _FORGETTING,
    ),
    mutant(
        "an incarnation that was forgotten attaches again after the controller's restart",
        _CONTROLLER,
        "    if has_departed:\n        raise AttachRefused",
        "    if False:\n        raise AttachRefused",
        "tests/contract/controller/test_forgetting.py",
    ),
    mutant(
        "forgetting one replica forgets all that are silent",
        _CONTROLLER,
        "return owner.replica_id == replica_id and incarnation",
        "return incarnation",
        f"{_FORGETTING} tests/contract/controller/test_forgetting.py",
    ),
    mutant(
        "a table of a term that has ended counts by the present revision",
        _CONTROLLER,
        "revision if is_last else terms[number + 1].first_revision - 1",
        "revision",
        _LINEAGE,
    ),
    mutant(
        "a term that the store never had counts by its revision alone",
        _CONTROLLER,
        "    if terms and held.revision >= terms[0].first_revision:",
        "    if False:",
        _LINEAGE,
    ),
    mutant(
        "a state file from before a later generation is accepted",
        _CONTROLLER,
        "is_of_later_generation=any(it.generation == self._own_generation for it in part.covers),",
        "",
        _OLDER,
    ),
    mutant(
        "a store that has learnt from a later generation is held for it",
        _CONTROLLER,
        "return roster.covered_revision(held.generation) < 0",
        "return True",
        _LINEAGE,
    ),
    mutant(
        "failed replicas serve on beside good ones until the roll-back is complete",
        _CONTROLLER,
        "or (is_going_back(record, backend) and any(",
        "or (False and any(",
        "tests/unit/controller/test_rollouts.py",
    ),
    mutant(
        "undo after a take-back removes the good version",
        _CONTROLLER,
        "if is_rolled_back(record, backend):",
        "if False:",
        "tests/unit/controller/test_rollouts.py",
    ),
    mutant(
        "a file after a rolled-back rollout is a conflict",
        _CONTROLLER,
        "or (subject in rolled_back and SETTINGS[field].attribute in RESTART_SETTINGS)",
        "",
        "tests/unit/controller/test_merging.py",
    ),
    mutant(
        "an operator's change of an old backend is overwritten as if it had been rolled back",
        _CONTROLLER,
        "return record is not None and bool(record.why) and record.template == template_of(backend)",
        "return True",
        "tests/unit/controller/test_merging.py",
    ),
    mutant(
        "a handler starts with the defaults before its backend is applied",
        "replica_service",
        "if not self._is_unknown:  # otherwise nothing in it is of this backend",
        "if True:",
        "tests/contract/replica/test_membership.py",
    ),
    mutant(
        "a state file of the release before is refused for a newer field that it lacks",
        _CONTROLLER,
        'newer=("pod_uid", "devices")',
        "",
        "tests/unit/controller/test_document_forms.py",
    ),
    mutant(
        "a second undo goes further back than what was undone",
        _CONTROLLER,
        "previous=undone)",
        "previous=record.previous)",
        "tests/unit/controller/test_rollouts.py",
    ),
    mutant(
        "a controller with an older state goes on to start and end replicas",
        _CONTROLLER,
        "if key.concern is not Concern.BACKEND or self._links.newer:",
        "if key.concern is not Concern.BACKEND:",
        _OLDER,
    ),
    mutant(
        "a controller with an older state goes on to announce tables",
        _CONTROLLER,
        "            if not self._links.newer:\n",
        "            if True:\n",
        _OLDER,
    ),
    mutant(
        "a controller with an older state sends routers its table",
        _CONTROLLER,
        "            if not self._newer.decides:\n                if not",
        "            if False:\n                if not",
        _OLDER,
    ),
    mutant(
        "a controller with an older state configures replicas",
        _CONTROLLER,
        "        if not self.newer.decides:\n            return\n",
        "",
        _OLDER,
    ),
    mutant(
        "the versions that replicas hold are not looked at",
        _CONTROLLER,
        '        self.newer.look_at(f"replica/{hello.replica_id}", held_from_hello(first.hello))\n',
        "",
        _OLDER,
    ),
    mutant(
        "the versions in records of launches are not looked at",
        _CONTROLLER,
        '                self._newer.look_at(f"replica/{instance.replica_id}", instance.order.version)\n',
        "",
        _OLDER,
    ),
    mutant(
        "a copy of a launch directory takes over the processes of the first one",
        _CONTROLLER,
        "if record.directory != self._directory.identity:",
        "if False:",
        "tests/contract/controller/test_launched_processes.py",
    ),
    mutant(
        "adopting from members keeps the traffic of the file",
        _CONTROLLER,
        "if it != desired.endpoints.get(name))",
        "if False)",
        _OLDER,
    ),
    mutant(
        "a replica takes a name that another process holds",
        "replica_service",
        "fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        "tests/unit/replica/test_held_name.py",
    ),
    mutant(
        "a replica takes the lowest free name, and not that of a crashed one",
        "replica_service",
        "return sorted(names, key=alive_at, reverse=True)",
        "return [*names]",
        "tests/unit/replica/test_held_name.py",
    ),
    mutant(
        "the name of a replica that has ended in order counts as that of a crashed one",
        "replica_service",
        "        self.is_end_known = self._written.is_set()\n",
        "",
        "tests/e2e/test_replica_names.py",
    ),
    mutant(
        "a write-ahead log of another state file is read into this one",
        _CONTROLLER,
        'if header[19:20] == b"\\1" and wal.exists()',
        "if wal.exists() and False",
        _REFUSALS,
    ),
    mutant(
        "a journal of another state file is rolled back into this one",
        _CONTROLLER,
        "return None if counters[0] - counters[1] in {0, 1} else (head, header, size)",
        "return None",
        _REFUSALS,
    ),
    mutant(
        "a state file is kept with a write-ahead log, so that a copy of it lacks the newest changes",
        _CONTROLLER,
        'PRAGMA journal_mode = DELETE")\n        connection.execute("PRAGMA synchronous = EXTRA',
        'PRAGMA journal_mode = WAL")\n        connection.execute("PRAGMA synchronous = EXTRA',
        _REFUSALS,
    ),
    mutant(
        "a full disk is seen with the next write only",
        _CONTROLLER,
        " or self._is_doubtful()):",
        "):",
        "tests/contract/controller/test_state_disk.py",
    ),
    mutant(
        "what could not be stored waits for its delay when the state can be written again",
        _CONTROLLER,
        "self.leadership.on_writable = loop.retry_now",
        "pass",
        "tests/contract/controller/test_state_disk.py",
    ),
)
