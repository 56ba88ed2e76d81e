"""A mesh on this machine, one process for each part: started and stopped by `slotmesh run`."""
