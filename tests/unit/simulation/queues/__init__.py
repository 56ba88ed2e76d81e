"""The simulation of queue times."""
