"""Autoscaling on virtual time: the core of the controller, and a model of calls, queue and replicas."""
