"""A mesh of processes under attack, and somebody who goes on calling it: `python -m tests.attacks`."""
