"""The simulation of whole meshes."""
