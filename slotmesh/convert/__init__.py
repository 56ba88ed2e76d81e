"""Messages of `slotmesh.v1` from and to values: each message in one place."""
