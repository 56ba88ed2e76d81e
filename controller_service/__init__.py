"""The control plane: what should run, what does run, and how traffic is divided."""
