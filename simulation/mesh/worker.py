"""One worker: `python -m simulation.mesh.worker SECONDS PLOTS DEFECT` runs the seeds of each line that it reads.

PLOTS are names with commas between them, which the seeds have in turn, or empty; DEFECT is a name, or empty. It writes
a JSON line for each seed, and an empty one when it has done those of a line.
Invariants: what runs leave behind is never collected, since going through it costs more than it takes; instead a child
does one line, and what it leaves ends with it. A child begins with all that is loaded, and warm.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback

from slotmesh.runtime.environment import set_grpc_environment

set_grpc_environment()

from simulation.mesh.defects import DEFECTS  # noqa: E402 - gRPC reads the environment when it is loaded
from simulation.mesh.generator import generate  # noqa: E402
from simulation.mesh.patching import changed  # noqa: E402
from simulation.mesh.world import run  # noqa: E402

_WARM_UP = 1
"""The seed that is run to load what is loaded late."""


def main() -> int:
    """Ends with the input, or with the status of a child that fails."""
    gc.disable()
    run(generate(_WARM_UP, 2.0))
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _run_and_exit([int(seed) for seed in line.split()])
        _, status = os.waitpid(child, 0)
        if status:
            return os.waitstatus_to_exitcode(status)
        sys.stdout.write("\n")
        sys.stdout.flush()
    return 0


def _run_and_exit(seeds: list[int]) -> None:
    """Without any clean-up."""
    status = 1
    try:
        for seed in seeds:
            sys.stdout.write(f"{json.dumps(_found(seed))}\n")
            sys.stdout.flush()
        status = 0
    except BrokenPipeError:
        pass  # nobody wants to know any more
    except Exception:  # noqa: BLE001 - the child ends here, whatever it is
        traceback.print_exc()
    finally:
        os._exit(status)


def _found(seed: int) -> dict[str, object]:
    seconds, plots, defect = float(sys.argv[1]), sys.argv[2].split(","), sys.argv[3]
    changes = DEFECTS[defect].changes if defect else ()
    began = time.process_time()
    scenario = generate(seed, seconds, plots[seed % len(plots)])
    with changed(changes) as reached:
        result = run(scenario)
    # What shows without the defect, too, was not found by it.
    is_its_own = not changes or not result.violations or not run(scenario).violations
    return {
        "seed": seed,
        "violations": [(each.invariant, each.text) for each in result.violations] if is_its_own else [],
        "digest": result.digest,
        "calls": result.calls,
        "virtual_s": result.seconds,
        "cpu_s": time.process_time() - began,
        "reached": reached.count,
    }


if __name__ == "__main__":
    os._exit(main())
