"""What the mesh can do on this machine, beside what is expected of it: `python -m benchmarks`."""

from slotmesh.runtime.environment import set_grpc_environment

# For clients and servers alike, with the mesh and without: what is compared runs on the same footing.
set_grpc_environment()
