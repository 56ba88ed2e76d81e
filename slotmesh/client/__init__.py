"""The client, for asyncio: `connect`, endpoints, methods, lanes; in `sync/` the same for threads.

Applications import the names from `slotmesh`, which loads a module when one of its names is asked for. Nothing is
imported here: commands need `slotmesh.client.tls` only.
"""
