"""Leased slots: limits, requests and tokens that all of the mesh shares."""
