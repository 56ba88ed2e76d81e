"""A Kubernetes cluster for tests: a real control plane, nodes whose pods are local processes, DNS, KWOK."""
