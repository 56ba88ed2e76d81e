"""Calls, rates and latencies of the mesh, from two reports of each member."""
