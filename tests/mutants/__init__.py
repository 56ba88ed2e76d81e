"""Defects of the product on purpose, and the tests that must notice each: `make mutants`, before a release."""
