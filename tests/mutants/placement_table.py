"""Mutants of what replicas' processes are started with, and of handlers' own metrics."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

PROCESSES: Final = "tests/contract/controller/test_process_settings.py"
BAD_PROCESSES: Final = "tests/contract/controller/test_bad_process_settings.py"
LOADS: Final = "tests/unit/handlers/test_multiplexed_loads.py"
METRICS: Final = "tests/unit/telemetry/test_handler_metrics.py"
LAUNCHERS: Final = "controller_service/shell/launchers"

PLACEMENT: Final = (
    mutant(
        "the record of a process has what a file of env holds",
        LAUNCHERS,
        "controller=self._controller,\n            generation",
        "controller=repr(dict(start.environment)),\n            generation",
        PROCESSES,
    ),
    mutant(
        "a named pipe as a file of env holds up the controller",
        LAUNCHERS,
        "if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):",
        "if False:",
        PROCESSES,
    ),
    mutant(
        "the controller stays on the CPUs of the replica that it started last",
        LAUNCHERS,
        "            os.sched_setaffinity(0, own)",
        "            pass",
        PROCESSES,
    ),
    mutant(
        "CPUs of replicas of an earlier life are not known",
        LAUNCHERS,
        "settings = ProcessSettings(cpus=record.cpus, memory=record.memory)",
        "settings = ProcessSettings(memory=record.memory)",
        PROCESSES,
    ),
    mutant(
        "the memory of what a replica has started does not count",
        LAUNCHERS,
        "return os.getpgid(pid)",
        "return pid",
        PROCESSES,
    ),
    mutant(
        "memory that processes share counts for each",
        LAUNCHERS,
        "(shared_once := sum(map(_proportional, members[group])))",
        "(shared_once := used)",
        PROCESSES,
    ),
    mutant(
        "variables of the controller's own Python reach another interpreter",
        LAUNCHERS,
        "for name, value in variables.items() if name not in _OF_PYTHON}",
        "for name, value in variables.items()}",
        PROCESSES,
    ),
    mutant(
        "the handler is looked for where the controller runs",
        "controller_service/core",
        "if not backend.cwd and not backend.python and path is None:",
        "if True:",
        "tests/unit/controller/code/test_places.py",
    ),
    mutant(
        "a collector of a handler that hangs is read again by each scrape",
        "slotmesh/telemetry",
        "if self._collecting is not None and self._collecting.is_alive():",
        "if False:",
        METRICS,
    ),
    mutant(
        "a handler's metric takes the name of one of slotmesh's",
        "slotmesh/telemetry",
        "if not names.isdisjoint(used) or it.name.startswith(OWN_PREFIX):",
        "if it.name.startswith(OWN_PREFIX):",
        METRICS,
    ),
    mutant(
        "a handler's metric that cannot be written costs the whole page",
        "slotmesh/telemetry",
        "if _is_writable(it):",
        "if it:",
        METRICS,
    ),
    mutant(
        "what an interpreter that hangs has started outlives the look at it",
        LAUNCHERS,
        "os.killpg(process.pid, signal.SIGKILL)  # not reaped yet: the group is its own",
        "process.kill()",
        BAD_PROCESSES,
    ),
    mutant(
        "an unloaded model is kept while the next one is loaded",
        "slotmesh/handlers",
        "victim.done = None",
        "pass",
        LOADS,
    ),
)
