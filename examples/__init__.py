"""Examples of meshes, each a folder that runs by itself."""
