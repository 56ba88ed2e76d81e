"""What all streams of the mesh share: ids, ledgers, chunks, pace, bounds, features, deadlines.

Invariants: pure, so that cores may import it: no asyncio, gRPC, protobuf, clock or chance. What turns these into
messages is in `slotmesh/id_ranges.py` and `slotmesh/runtime/`.
"""
