"""Calls, rates and latencies of the mesh, from two snapshots of the controller."""
