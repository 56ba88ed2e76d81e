"""The ingress over real connections, in front of a real mesh."""
