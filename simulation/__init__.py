"""The real cores of routers and replicas on virtual time: no sockets, no event loop, one seed, the same figures."""
