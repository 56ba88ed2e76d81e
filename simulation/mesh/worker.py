"""One worker: `python -m simulation.mesh.worker SECONDS PLOT SEED…` writes a JSON line for each seed."""

from __future__ import annotations

import json
import os
import sys
import time

from slotmesh.runtime.environment import set_grpc_environment

set_grpc_environment()

from simulation.mesh.generator import generate  # noqa: E402 - gRPC reads the environment when it is loaded
from simulation.mesh.world import run  # noqa: E402


def main() -> None:
    """Ends without any clean-up."""
    seconds, plot = float(sys.argv[1]), sys.argv[2]
    for seed in map(int, sys.argv[3:]):
        began = time.process_time()
        result = run(generate(seed, seconds, plot))
        said = {
            "seed": seed,
            "violations": [(each.invariant, each.text) for each in result.violations],
            "digest": result.digest,
            "calls": result.calls,
            "virtual_s": result.seconds,
            "cpu_s": time.process_time() - began,
        }
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
