"""Balancers."""
