"""The links to replicas: what they carry, and what comes back."""
