"""The links to replicas: their channels, frames and results."""
