"""The control plane: what should run, what does, and who gets which share of the traffic."""
