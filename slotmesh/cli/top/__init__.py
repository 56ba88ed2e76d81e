"""The live view of a mesh: its state, columns and rows, the screen, and the terminal."""
