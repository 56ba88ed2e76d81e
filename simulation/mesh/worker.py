"""One worker: `python -m simulation.mesh.worker SECONDS PLOTS DEFECT SEED…` writes a JSON line for each seed.

PLOTS are names with commas between them, which the seeds have in turn, or empty; DEFECT is a name, or empty.
"""

from __future__ import annotations

import json
import os
import sys
import time

from slotmesh.runtime.environment import set_grpc_environment

set_grpc_environment()

from simulation.mesh.defects import DEFECTS  # noqa: E402 - gRPC reads the environment when it is loaded
from simulation.mesh.generator import generate  # noqa: E402
from simulation.mesh.patching import changed  # noqa: E402
from simulation.mesh.world import run  # noqa: E402


def main() -> None:
    """Ends without any clean-up."""
    seconds, plots, defect = float(sys.argv[1]), sys.argv[2].split(","), sys.argv[3]
    changes = DEFECTS[defect].changes if defect else ()
    for seed in map(int, sys.argv[4:]):
        began = time.process_time()
        scenario = generate(seed, seconds, plots[seed % len(plots)])
        with changed(changes) as reached:
            result = run(scenario)
        # What shows without the defect, too, was not found by it.
        is_its_own = not changes or not result.violations or not run(scenario).violations
        said = {
            "seed": seed,
            "violations": [(each.invariant, each.text) for each in result.violations] if is_its_own else [],
            "digest": result.digest,
            "calls": result.calls,
            "virtual_s": result.seconds,
            "cpu_s": time.process_time() - began,
            "reached": reached.count,
        }
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
