"""What `slotmesh check` finds."""
