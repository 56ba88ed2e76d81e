"""Handwritten digits, classified by a mesh: `python -m examples.digits.run`."""
