"""A greeter by a proto of its own: clients call it at the router, without anything of slotmesh."""
