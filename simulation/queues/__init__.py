"""Queue times: the real cores of routers and replicas on virtual time, compared with queueing theory."""
