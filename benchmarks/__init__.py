"""What the mesh can do on this machine, beside what is expected of it: `python -m benchmarks`."""

import os

# gRPC reads this when it is loaded. It would tell each process that is started here that another thread uses gRPC.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
