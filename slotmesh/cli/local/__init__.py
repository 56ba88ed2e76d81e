"""A mesh on this machine, each part a process of its own: what `slotmesh run` starts and ends."""
