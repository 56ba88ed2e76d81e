"""Parts of the mesh's own wire contract, between its servers: no promise to clients."""
