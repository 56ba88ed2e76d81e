"""The live view of a mesh: what is known, the figures of it, the screen that shows them, and the terminal."""
