"""The simulation, piece by piece and as a whole."""
