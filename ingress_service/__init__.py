"""The ingress: HTTP in front of a mesh, as an ordinary client of its routers. Stateless: more are started at will."""
